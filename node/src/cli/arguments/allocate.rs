//! Arguments of `aerogel allocate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::client::Place;
use crate::quantity::Time;

/// Divide the caches of gateways, the cache of their server and its disk time together
///
/// What a tenant has in the cache of its gateway it need not have in that of the server, and a tenant with more cache
/// needs less disk time. Shares and caches that are 'auto' are found; those that were requested are the least. A URL is
/// http://HOST:PORT, unix:PATH, or the directory of a server on this machine.
#[derive(Debug, Args)]
pub struct AllocateArgs {
    #[command(subcommand)]
    pub verb: AllocateVerb,
}

#[derive(Debug, Subcommand)]
pub enum AllocateVerb {
    /// Print the allocation that would be made, beside the present one and those of other methods. Changes nothing
    Plan {
        #[command(flatten)]
        what: Box<AllocateWhat>,
        /// Also draw the predicted latency of each tenant, with the chosen point, into this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Make the allocation, on all servers or on none
    Apply {
        #[command(flatten)]
        what: Box<AllocateWhat>,
    },
    /// Keep the allocation up to date, until it is interrupted
    Run {
        #[command(flatten)]
        what: Box<AllocateWhat>,
        /// The interval of plans, 1s to 60m
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = interval)]
        every: Duration,
        /// Change the allocation only if the goal is predicted to improve by more than this part: 5% or 0.05. Smaller
        /// gains are within the error of the model
        #[arg(long, value_name = "PART", default_value = "5%", value_parser = part)]
        threshold: f64,
        /// End after so many plans
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
}

/// Which servers, and what is to be reached.
#[derive(Debug, Args)]
pub struct AllocateWhat {
    /// The server whose cache and disks are divided
    #[arg(long, value_name = "URL")]
    pub server: Place,
    /// A gateway whose volumes are on that server; may be repeated
    #[arg(long = "gateway", value_name = "URL")]
    pub gateways: Vec<Place>,
    /// What is improved: the sum of the tenants' mean latencies; the sum of their utilities (--utility); or what their
    /// latencies exceed their targets by (--targets)
    #[arg(long, value_enum, default_value = "latency")]
    pub goal: GoalName,
    /// With --goal utility: a TOML file with the utility of each tenant by its latency (see the manual)
    #[arg(long, value_name = "FILE", required_if_eq("goal", "utility"))]
    pub utility: Option<PathBuf>,
    /// With --goal target: a TOML file with the target of each tenant (see the manual)
    #[arg(long, value_name = "FILE", required_if_eq("goal", "target"))]
    pub targets: Option<PathBuf>,
    /// How the allocation is found
    #[arg(long, value_enum, default_value = "ours")]
    pub method: Method,
    /// For how long latencies and load are measured first, 1s to 60m; 'run' measures between its plans
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    pub window: Duration,
    /// The seed of the search
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// A file with the token that changes over http:// need
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print JSON; 'run' prints a document a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum GoalName {
    Latency,
    Utility,
    Target,
}

impl GoalName {
    pub fn name(self) -> &'static str {
        match self {
            GoalName::Latency => "latency",
            GoalName::Utility => "utility",
            GoalName::Target => "target",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Method {
    /// All resources together
    Ours,
    /// Caches by the misses that each tier sees; the disk equally
    Mrc,
    /// The caches of mrc, and the best shares for them
    #[value(name = "mrc+disk")]
    MrcDisk,
    /// The caches equally, and the best shares for that
    DiskOnly,
    /// The disk equally, and the best caches for that
    CacheOnly,
    /// Each resource equally
    Equal,
}

/// An interval from a second to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let Time(time) = text.parse::<Time>().map_err(|error| error.to_string())?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    if range.contains(&time) { Ok(time) } else { Err(format!("{text} is not from 1s to 60m")) }
}

/// A part of a whole: 5% or 0.05.
fn part(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let value = number.parse::<f64>().ok().map(|value| value / scale);
    value.filter(|value| (0.0..1.0).contains(value)).ok_or_else(|| format!("'{text}' is not a part: write 5% or 0.05"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_intervals() {
        assert_eq!((part("5%"), part("0.05")), (Ok(0.05), Ok(0.05)));
        for wrong in ["", "x", "100%", "-1%", "1.5"] {
            assert!(part(wrong).unwrap_err().contains("is not a part"), "{wrong}");
        }
        assert_eq!(interval("2m"), Ok(Duration::from_secs(120)));
        assert!(interval("100ms").is_err() && interval("2").is_err() && interval("61m").is_err());
    }
}
