//! Off-loading of the writes of a disk.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::quantity::{Name, Size};
use crate::store::offload::StoreRef;

/// Off-loading to begin, or settings to change. What is left out stays as it is, or has its default.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnableOffload {
    /// The stores: the name of a store of this server, or the address of an NBD export. With settings to change: the
    /// same ones, or none.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub stores: Vec<StoreRef>,
    /// Stores that have each off-loaded write: 1 or 2. The default is 1. It cannot be changed.
    #[serde(default)]
    pub copies: Option<u32>,
    /// Off-loaded bytes of a volume, at most; a number or a string such as "4GiB", which is the default.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub limit: Option<Size>,
    /// Requests of a tenant at the disk above which its writes are off-loaded. The default is 16.
    #[serde(default)]
    pub base_threshold: Option<u32>,
    /// Requests at a store from which on no writes are off-loaded to it. The default is 32.
    #[serde(default)]
    pub store_threshold: Option<u32>,
    /// Content of a tenant that is copied home at the same time. The default is 64.
    #[serde(default)]
    pub reclaim_depth: Option<u32>,
    /// Volumes that are not off-loaded. They cannot be changed.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub except: Vec<Name>,
    /// Whether what the stores have is overwritten. Otherwise they must be empty.
    #[serde(default)]
    pub force: bool,
}

/// A store to do without.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveStore {
    /// As it was named.
    #[schema(value_type = String)]
    pub store: StoreRef,
    /// Whether it is gone for good: nothing is brought home, and ranges of which only it has the newest content are
    /// old. Otherwise its data is brought home first, and off-loading goes on with the other stores.
    #[serde(default)]
    pub lost: bool,
}

/// How far off-loading is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OffloadPhase {
    /// The stores are being read; volumes that may have data there are offline.
    Starting,
    /// Writes are off-loaded when the disk is overloaded.
    Active,
    /// Everything is brought home.
    Ending,
}

/// The state of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OffloadStoreState {
    /// Its log is being read.
    Reading,
    /// It can be written.
    Online,
    /// It cannot be written at present.
    Connecting,
    /// It could not be reached at the start: what it has is not known.
    Missing,
    /// It was removed as lost.
    Lost,
}

/// A store.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OffloadStoreView {
    /// As it was named.
    pub store: String,
    /// Its state.
    pub state: OffloadStoreState,
    /// Whether it is being removed: its data is brought home, and then it is forgotten.
    pub leaving: bool,
    /// Why it is not online, if known.
    pub failure: Option<String>,
    /// Bytes whose newest content it has.
    pub offloaded_bytes: u64,
    /// Bytes of its log that are in use.
    pub used_bytes: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Requests that wait there or are outstanding.
    pub load: u32,
    /// Bytes of its log that were read at the start.
    pub scanned_bytes: u64,
}

/// What is off-loaded of a disk, over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveOffloadView {
    /// Bytes whose newest content the disk does not have.
    pub offloaded_bytes: u64,
    /// The same over time, oldest first, the largest value of each period; the last period has not ended.
    pub history_bytes: Vec<u64>,
    /// The length of a period.
    pub period_seconds: f64,
    /// Bytes a second that were off-loaded in the last ten seconds.
    pub written_bytes_per_s: f64,
    /// Bytes a second that were brought home in the last ten seconds.
    pub reclaimed_bytes_per_s: f64,
}

/// Off-loading of a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OffloadView {
    /// The disk.
    pub disk: String,
    /// How far it is.
    pub phase: OffloadPhase,
    /// Why it has not started, if so.
    pub reason: Option<String>,
    /// Stores that have each off-loaded write.
    pub copies: u32,
    /// Off-loaded bytes of a volume, at most.
    pub limit_bytes: u64,
    /// Requests of a tenant at the disk above which its writes are off-loaded.
    pub base_threshold: u32,
    /// Requests at a store from which on no writes are off-loaded to it.
    pub store_threshold: u32,
    /// Content of a tenant that is copied home at the same time.
    pub reclaim_depth: u32,
    /// Whether the last write that could go to the disk went to stores.
    pub is_peak: bool,
    /// How often that changed since the start.
    pub switches: u64,
    /// Bytes whose newest content the disk does not have.
    pub offloaded_bytes: u64,
    /// Bytes that have fewer copies than they should.
    pub thin_bytes: u64,
    /// Age of the oldest content that is away, seconds; since the start at most.
    pub oldest_s: Option<f64>,
    /// Whether that data was off-loaded before the start: it is older.
    pub oldest_is_earlier: bool,
    /// Bytes that were off-loaded since the start.
    pub written_bytes: u64,
    /// Bytes that were brought home since the start.
    pub reclaimed_bytes: u64,
    /// Bytes a second that were off-loaded in the last ten seconds.
    pub written_bytes_per_s: f64,
    /// Bytes a second that were brought home in the last ten seconds.
    pub reclaimed_bytes_per_s: f64,
    /// Its stores.
    pub stores: Vec<OffloadStoreView>,
    /// Volumes whose writes may be off-loaded.
    pub volumes: Vec<String>,
    /// Volumes of the disk whose writes are not.
    pub except: Vec<String>,
}
