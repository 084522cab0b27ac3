//! The command `aerogel-lab`.

mod swarm;

use std::process::ExitCode;

use clap::Parser;
use lab::curve::CurveArgs;
use lab::mix::MixArgs;
use lab::pack::PackArgs;
use lab::replay::Replay;
use lab::trace::cli::TraceArgs;
use lab::{disk, experiment};

/// Aerogel's measurements: experiments, swarms, reports.
#[derive(Parser, Debug)]
#[command(name = "aerogel-lab", version, max_term_width = 100)]
enum Lab {
    /// List the experiments.
    List,
    Run(experiment::cli::Run),
    Report(experiment::cli::Report),
    Stage(experiment::cli::Stage),
    Set(experiment::Single),
    Trace(TraceArgs),
    Curve(CurveArgs),
    Mix(MixArgs),
    Pack(PackArgs),
    Replay(Box<Replay>),
    Disk(disk::Disk),
    /// Run many simulations with faults, each from its seed, and report failures.
    Swarm(swarm::Swarm),
}

fn main() -> ExitCode {
    sigpipe::reset();
    match Lab::parse() {
        Lab::List => experiment::cli::list(),
        Lab::Run(run) => run.run(),
        Lab::Report(report) => report.run(),
        Lab::Stage(stage) => stage.run(),
        Lab::Set(set) => set.run(),
        Lab::Disk(disk) => disk.run(),
        Lab::Trace(trace) => status(trace.run()),
        Lab::Curve(curve) => status(curve.run()),
        Lab::Mix(mix) => status(mix.run()),
        Lab::Pack(pack) => status(pack.run()),
        Lab::Replay(replay) => status(replay.run()),
        Lab::Swarm(swarm) => swarm.run(),
    }
}

/// Exit status 1 on failure; all reasons are printed in one line.
fn status(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
