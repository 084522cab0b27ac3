//! Aerogel's measurements.

mod probe;
mod swarm;

use std::process::ExitCode;

use clap::Parser;
use lab::replay::Replay;
use lab::trace::cli::TraceArgs;

/// Aerogel's measurements: experiments, swarms, reports.
#[derive(Parser, Debug)]
#[command(name = "aerogel-lab", version, max_term_width = 100)]
enum Lab {
    /// Run many simulated worlds, each from its seed, and say which one went wrong.
    Swarm(swarm::Swarm),
    /// Simulated drives.
    #[command(subcommand)]
    Disk(Disk),
    Trace(TraceArgs),
    Replay(Box<Replay>),
}

#[derive(clap::Subcommand, Debug)]
enum Disk {
    Probe(probe::ProbeDrive),
}

fn main() -> ExitCode {
    match Lab::parse() {
        Lab::Swarm(swarm) => swarm.run(),
        Lab::Disk(Disk::Probe(probe)) => probe.run().unwrap_or_else(|error| status(Err(error))),
        Lab::Trace(trace) => status(trace.run()),
        Lab::Replay(replay) => status(replay.run()),
    }
}

/// 1 if it was not done, with all reasons in one line.
fn status(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
