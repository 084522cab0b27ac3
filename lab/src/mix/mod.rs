//! `aerogel-lab mix`: anybody's mix of tenants in virtual time, for users who ask "would this fit?".
//!
//! ```text
//!   FILE ─► file: r, memory, tenants ─► play: each tenant alone, all together, on each disk, with each seed
//!                                        └─► report: JSON, a table, a picture
//! ```

mod file;
mod play;
mod report;

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::experiment::progress;
pub(crate) use file::Mix;
pub(crate) use play::{Job, Kept, Scene, decision, judge, play};

/// The disks of a mix that names none: three generations of disks with heads.
const DISKS: [&str; 3] = ["cheetah-15k5", "barracuda-7200.9", "nearline"];

/// Run a mix of tenants in virtual time: what each gets alone and together, and what the server promises
#[derive(Args, Debug)]
pub struct MixArgs {
    /// The mix: a TOML file (see the manual)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A disk: a preset, or a file that describes a drive; may be given several times [default: cheetah-15k5,
    /// barracuda-7200.9, nearline]
    #[arg(long, value_name = "PRESET|FILE")]
    disk: Vec<String>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw what each tenant keeps into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl MixArgs {
    /// Runs the mix and prints what each tenant gets.
    pub fn run(&self) -> anyhow::Result<()> {
        let mix = Mix::read(&self.file)?;
        let disks = if self.disk.is_empty() { DISKS.map(String::from).to_vec() } else { self.disk.clone() };
        for (at, disk) in disks.iter().enumerate() {
            ensure!(!disks[..at].contains(disk), "--disk {disk} is given twice");
        }
        let seeds: Vec<_> = (0..self.seeds).map(|at| self.seed.wrapping_add(at)).collect();
        let bar = progress(&self.file.display().to_string());
        let played = play(&mix, &disks, &seeds, &bar);
        bar.finish_and_clear();
        let report = report::report(&mix, &played?);
        if let Some(path) = &self.svg {
            let svg = report.svg().map_err(anyhow::Error::msg)?;
            std::fs::write(path, svg).with_context(|| format!("{} cannot be written", path.display()))?;
        }
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&report)?),
            false => print!("{}", report.text()),
        }
        Ok(())
    }
}
