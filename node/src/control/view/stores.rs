//! Stores: volumes set aside for writes that other disks off-load.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Condition, LatencyView, SessionView, ShareView, SliceView, Traffic, VolumeView};
use crate::access::Access;
use crate::quantity::{Description, Name, ShareText, Size};

/// A store to create.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateStore {
    /// Its name, among those of volumes.
    #[schema(value_type = String)]
    pub name: Name,
    /// Bytes, at least 17 MiB, rounded up to 4 KiB; a number or a string such as "4GiB".
    #[schema(value_type = String)]
    pub size: Size,
    /// The disk; may be omitted if there is only one, or one called `default`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub disk: Option<Name>,
    /// The fraction of the disk's time promised to all stores of the disk together: "1/20", "0.05" or "5%". The default
    /// is the present one, or 5 % with the first store.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub share: Option<ShareText>,
    /// Whether the shares of the disk may sum to more than 1 with this one.
    #[serde(default)]
    pub overcommit: bool,
    /// The clients that may open it, as for a volume. The default is any client.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub allow: Access,
    /// A description that clients can read: at most 255 bytes of text.
    #[serde(default)]
    #[schema(value_type = String)]
    pub description: Description,
}

/// A change of all stores of a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetStores {
    /// The disk; may be omitted if there is only one, or one called `default`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub disk: Option<Name>,
    /// The fraction of the disk's time promised to all its stores together: "1/20", "0.05" or "5%".
    #[schema(value_type = String)]
    pub share: ShareText,
    /// Whether the shares of the disk may sum to more than 1 with this one.
    #[serde(default)]
    pub overcommit: bool,
}

/// A store.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// Its name.
    pub name: String,
    /// Its disk.
    pub disk: String,
    /// The tenant that all stores of the disk are volumes of.
    pub tenant: String,
    /// Whether it can be used.
    pub condition: Condition,
    /// Why it cannot be used.
    pub reason: Option<String>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Its data file.
    pub path: String,
    /// The URIs under which clients open it.
    pub uris: Vec<String>,
    /// The clients that may open it, as rules; `["any"]` is every client.
    pub allow: Vec<String>,
    /// Whether all clients are refused writes.
    pub read_only: bool,
    /// The description that clients can read.
    pub description: String,
    /// The share of all stores of the disk together.
    pub share: ShareView,
    /// Their slice; absent if the disk's policy has no slices.
    pub slice: Option<SliceView>,
    /// Latency of the requests of all stores of the disk; absent while the disk does not answer.
    pub latency: Option<LatencyView>,
    /// Open connections.
    pub connections: u32,
    /// The session that a client has claimed; absent without one.
    pub session: Option<SessionView>,
    /// Requests since the server started.
    pub traffic: Traffic,
}

impl StoreView {
    /// A volume as a store, if it is one.
    pub fn of(volume: VolumeView) -> Option<StoreView> {
        if volume.tenant != Name::of_stores().as_str() {
            return None;
        }
        Some(StoreView {
            name: volume.name,
            disk: volume.disk,
            tenant: volume.tenant,
            condition: volume.condition,
            reason: volume.reason,
            warnings: volume.warnings,
            size_bytes: volume.size_bytes,
            path: volume.path,
            uris: volume.uris,
            allow: volume.allow,
            read_only: volume.read_only,
            description: volume.description,
            share: volume.share,
            slice: volume.slice,
            latency: volume.latency,
            connections: volume.connections,
            session: volume.session,
            traffic: volume.traffic,
        })
    }
}
