//! `aerogel`: the server and its command line.

mod access;
mod address;
mod api;
mod ceiling;
mod cli;
mod cluster;
mod config;
mod control;
mod descriptors;
mod disk_thread;
mod fault;
mod frames;
mod gateway;
mod handshakes;
mod incidents;
mod listen;
#[cfg(test)]
mod malformed;
mod peer;
mod probe;
mod quantity;
mod reactor;
mod semaphores;
mod serve;
mod sessions;
mod signals;
mod socket;
mod store;
mod tls;
mod upstream;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
