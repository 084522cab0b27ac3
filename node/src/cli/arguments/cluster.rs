//! Arguments of `aerogel cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Reach;
use crate::quantity::Name;

/// Show the cluster that a server takes part in, its schedule, and what would fit; drain and remove servers
#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub verb: ClusterVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum ClusterVerb {
    /// Show the state of all servers, of etcd, and of the schedule
    Status,
    /// List the servers, and the volumes that each has a part of
    Members,
    /// Show the schedule: which volume has which part of each round, on which servers
    Schedule {
        /// Draw it into this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Look for a schedule for a cluster that a file describes; needs no server
    Plan(PlanArgs),
    /// Remove a server that does not run
    Remove {
        /// Its name in the cluster
        name: Name,
        /// Even if it has parts of volumes: it is lost for good with its disk. Volumes that are on it alone are
        /// forgotten, and others broken
        #[arg(long)]
        lost: bool,
        /// Confirm it
        #[arg(long, required = true)]
        yes: bool,
    },
    /// Give a server no new volumes, before it leaves
    Drain {
        /// Its name in the cluster
        name: Name,
        /// Give it new volumes again
        #[arg(long)]
        undo: bool,
    },
}

/// A cluster that a file describes.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The cluster: a JSON file (see the manual)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The least R of the cluster: the part of its share that each slice must have
    #[arg(long, value_name = "R", default_value_t = 0.9)]
    pub least: f64,
    /// Search for at most so long
    #[arg(long, value_name = "SECONDS", default_value_t = 0.85)]
    pub seconds: f64,
    /// The seed of the search
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
}

/// Where a new volume of a cluster is.
#[derive(Debug, Args)]
pub struct CreateInCluster {
    /// In a cluster: stripe the volume over this many servers, which get their slices at the same time, each with
    /// --share [default: 1, this server]
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// In a cluster: its servers, in the order of the stripes [default: chosen by the cluster]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub on: Vec<Name>,
    /// In a cluster: the least R of the cluster that is accepted [default: 0.9]
    #[arg(long, value_name = "R")]
    pub least: Option<f64>,
}
