//! `aerogel-lab pack`: one schedule of slices for the servers of a cluster, for users who ask "would this fit?".

mod picture;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use engine::cluster::file::{Description, File};
use engine::cluster::pack::Wanted;

/// Pack the slices of striped volumes: one schedule in which each has its slice at the same time on all its servers
#[derive(Args, Debug)]
pub struct PackArgs {
    /// The cluster: a JSON file (see the manual)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The least R of the cluster: the part of its share that each slice must have
    #[arg(long, value_name = "R", default_value_t = 0.9)]
    least: f64,
    /// Stop as soon as R of the cluster is so much
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    enough: f64,
    /// Search for at most so long
    #[arg(long, value_name = "SECONDS", default_value_t = 0.85)]
    seconds: f64,
    /// The seed of the search
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the schedule into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl PackArgs {
    /// Packs, and prints the schedule.
    pub fn run(&self) -> anyhow::Result<()> {
        for (option, r) in [("--least", self.least), ("--enough", self.enough)] {
            ensure!(r > 0.0 && r <= 1.0, "{option} {r}: R of a cluster is more than 0 and at most 1");
        }
        ensure!(self.enough >= self.least, "--enough {} is less than --least {}", self.enough, self.least);
        let limit = Duration::try_from_secs_f64(self.seconds)
            .map_err(|_| anyhow::anyhow!("--seconds {}: say a number of seconds, such as 0.9", self.seconds))?;
        let named = || self.file.display().to_string();
        let text = std::fs::read_to_string(&self.file).with_context(|| format!("{} cannot be read", named()))?;
        let file: File = serde_json::from_str(&text).with_context(named)?;
        let cluster = Description::try_from(file).with_context(named)?;
        let wanted = Wanted { least: self.least, enough: self.enough, seed: self.seed };
        let began = Instant::now();
        let schedule = cluster.pack(wanted, || began.elapsed() < limit);
        let schedule = schedule.map_err(|why| anyhow::anyhow!("{}: {why}", named()))?;
        if let Some(path) = &self.svg {
            let svg = picture::svg(cluster.servers, &schedule).map_err(anyhow::Error::msg)?;
            std::fs::write(path, svg).with_context(|| format!("{} cannot be written", path.display()))?;
        }
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&cluster.answer(&schedule))?),
            false => print!("{}", cluster.table(&schedule)),
        }
        Ok(())
    }
}
