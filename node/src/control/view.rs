//! What the API takes and gives. Requested and effective values stand side by side.

mod disks;
mod requests;
mod sizing;
mod tenants;
mod volumes;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use disks::*;
pub use requests::*;
pub use sizing::*;
pub use tenants::*;
pub use volumes::*;

/// Whether something can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// Yes.
    Online,
    /// No; see the reason.
    Offline,
    /// Not yet: it is being made.
    Creating,
}

/// The server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// Its process.
    pub process: u32,
    /// Its directory.
    pub data: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether it is draining.
    pub shutting_down: bool,
    /// Memory for caches and their bookkeeping.
    pub memory_bytes: u64,
    /// Where NBD clients connect.
    pub nbd: Vec<String>,
    /// Where the API is.
    pub http: Vec<String>,
    /// Open connections.
    pub connections: u32,
    /// Things to know, of all disks and volumes.
    pub warnings: Vec<String>,
    /// What was decided for tenants since the start, oldest first; the latest 64.
    pub events: Vec<EventView>,
    /// Its disks.
    pub disks: Vec<DiskView>,
    /// Its volumes.
    pub volumes: Vec<VolumeView>,
}

/// A sign of life.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Disks that are open.
    pub disks_online: usize,
}

/// Done, and what should be known about it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// For people.
    pub message: String,
    /// The volume, as it is now.
    pub volume: Option<VolumeView>,
    /// The disk, as it is now.
    pub disk: Option<DiskView>,
}

/// Not done; nothing changed, unless it says so.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What is wrong.
    pub error: String,
    /// What to do about it.
    pub hint: Option<String>,
}
