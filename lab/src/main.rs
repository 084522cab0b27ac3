//! Aerogel's measurements.

mod disk;
mod swarm;

use std::process::ExitCode;

use clap::Parser;

/// Aerogel's measurements: experiments, swarms, reports.
#[derive(Parser, Debug)]
#[command(name = "aerogel-lab", version)]
enum Lab {
    /// Run many simulated worlds, each from its seed, and say which one went wrong.
    Swarm(swarm::Swarm),
    Disk(disk::Disk),
}

fn main() -> ExitCode {
    match Lab::parse() {
        Lab::Swarm(swarm) => swarm.run(),
        Lab::Disk(disk) => disk.run(),
    }
}
