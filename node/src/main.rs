//! `aerogel`: the server and its command line.

mod access;
mod address;
mod api;
mod cli;
mod config;
mod control;
mod descriptors;
mod disk_thread;
mod fault;
mod frames;
mod listen;
mod peer;
mod probe;
mod quantity;
mod reactor;
mod serve;
mod store;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
