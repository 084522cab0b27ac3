//! Aerogel's measurements.

mod experiment;
mod quantity;
mod swarm;

use std::process::ExitCode;

use clap::Parser;

/// Aerogel's measurements: experiments, swarms, reports.
#[derive(Parser, Debug)]
#[command(name = "aerogel-lab", version)]
enum Lab {
    /// Run many simulated worlds, each from its seed, and say which one went wrong.
    Swarm(swarm::Swarm),
    /// List the experiments.
    List,
    /// Run experiments: what they claim, and whether it holds.
    Run(experiment::cli::Run),
    /// Run experiments and write a page that a person reads.
    Report(experiment::cli::Report),
}

fn main() -> ExitCode {
    match Lab::parse() {
        Lab::Swarm(swarm) => swarm.run(),
        Lab::List => experiment::cli::list(),
        Lab::Run(run) => run.run(),
        Lab::Report(report) => report.run(),
    }
}
