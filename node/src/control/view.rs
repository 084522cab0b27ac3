//! Requests and answers of the API. Requested and effective values are both shown.

mod allocation;
mod disks;
mod guarantees;
mod offload;
mod policies;
mod requests;
mod sizing;
mod stores;
mod tenants;
mod volumes;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use allocation::*;
pub use disks::*;
pub use guarantees::*;
pub use offload::*;
pub use policies::*;
pub use requests::*;
pub use sizing::*;
pub use stores::*;
pub use tenants::*;
pub use volumes::*;

/// Whether a disk or volume can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// It can be used.
    Online,
    /// It cannot be used; see the reason.
    Offline,
    /// It is being created.
    Creating,
}

/// The server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The process id.
    pub process: u32,
    /// The server's directory.
    pub data: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether the server is draining.
    pub shutting_down: bool,
    /// Memory for caches and their metadata, bytes.
    pub memory_bytes: u64,
    /// The listeners for NBD.
    pub nbd: Vec<String>,
    /// The listeners for the API, except its own socket.
    pub http: Vec<String>,
    /// Open connections.
    pub connections: u32,
    /// Warnings of all disks and volumes.
    pub warnings: Vec<String>,
    /// Decisions on tenants, and other events, since the start, oldest first; the latest 64.
    pub events: Vec<EventView>,
    /// Its disks.
    pub disks: Vec<DiskView>,
    /// Its volumes.
    pub volumes: Vec<VolumeView>,
    /// Its place in a cluster; absent if it takes part in none.
    pub cluster: Option<InCluster>,
}

/// A server's place in a cluster.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct InCluster {
    /// The name of the cluster.
    pub cluster: String,
    /// The name of the server in it.
    pub server: String,
    /// Whether it has joined.
    pub joined: bool,
    /// Why it has not, or what fails on it.
    pub reason: Option<String>,
    /// The version of the schedule that it follows; 0 for none.
    pub version: u64,
    /// Whether that is the last one, as far as is known.
    pub in_step: bool,
    /// Whether etcd answers.
    pub etcd_answers: bool,
}

/// The answer of a liveness check.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Seconds since the server's start.
    pub uptime_seconds: u64,
    /// Disks that are online.
    pub disks_online: usize,
    /// What is the matter with off-load stores: some reads or writes may fail, and all else is served.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The answer to a change that succeeded.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// A message for the user.
    pub message: String,
    /// The volume after the change.
    pub volume: Option<VolumeView>,
    /// The disk after the change.
    pub disk: Option<DiskView>,
    /// The tenant after the change.
    pub tenant: Option<TenantDetail>,
}

/// The answer to a request that failed. Nothing was changed, unless the error says so.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The error.
    pub error: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}
