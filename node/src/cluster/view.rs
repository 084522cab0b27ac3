//! Answers of the API about the cluster.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::records;
use crate::quantity::Name;

/// A cluster, as one of its servers sees it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    /// The name of the cluster.
    pub cluster: String,
    /// The name of the server that answers.
    pub server: String,
    /// Whether it has joined.
    pub joined: bool,
    /// Why it has not, or what fails on it.
    pub reason: Option<String>,
    /// The disk that takes part; absent if there is none yet.
    pub disk: Option<String>,
    /// The version of the schedule that it follows; 0 for none.
    pub version: u64,
    /// etcd.
    pub etcd: EtcdView,
    /// The change that is being made: the name of its volume.
    pub change: Option<String>,
    /// All servers.
    pub members: Vec<MemberView>,
    /// All volumes.
    pub volumes: Vec<ClusterVolumeView>,
    /// The last schedule; absent if there never was one.
    pub schedule: Option<ScheduleView>,
}

/// Whether etcd answers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EtcdView {
    /// Its addresses.
    pub endpoints: Vec<String>,
    /// Whether it answers. If it does not, all below is as it was last.
    pub answers: bool,
    /// Why it does not.
    pub reason: Option<String>,
    /// For how long it has not answered, seconds.
    pub silent_seconds: Option<u64>,
    /// The revision of etcd that the answer is from.
    pub revision: i64,
}

/// The state of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It takes part.
    Ready,
    /// It takes part, and gets no new volumes.
    Draining,
    /// It does not run, or is cut off from etcd.
    Away,
}

/// A server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: MemberState,
    /// Whether it has the last schedule.
    pub in_step: bool,
    /// The version of the schedule that it has, as far as is known; 0 for none.
    pub version: u64,
    /// The UUID of its disk.
    #[schema(value_type = String)]
    pub uuid: Uuid,
    /// Where clients reach its volumes.
    pub advertise: String,
    /// Its disk; absent while it is away, like all below.
    pub disk: Option<String>,
    /// The size of the disk, bytes.
    pub size_bytes: Option<u64>,
    /// Its free space, bytes.
    pub free_bytes: Option<u64>,
    /// R of the disk.
    pub insulation: Option<f64>,
    /// Its clock.
    pub clock: Option<ClockView>,
    /// Volumes with a part on it.
    pub volumes: Vec<String>,
    /// Those of them that it does not serve.
    pub missing: Vec<String>,
    /// The slices that volumes need on it, of those for which it is measured.
    pub needs: Vec<NeedView>,
}

/// The clock of a server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClockView {
    /// Whether it is synchronised, as the kernel or the configuration says.
    pub synchronised: bool,
    /// Whether the configuration says so.
    pub trusted: bool,
    /// Its estimated error.
    pub error_ns: u64,
    /// Whether it is good enough for striped volumes.
    pub good: bool,
}

/// A volume of the cluster.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterVolumeView {
    /// Its name.
    pub name: String,
    /// The same on all its servers.
    #[schema(value_type = String)]
    pub uuid: Uuid,
    /// Size, bytes.
    pub size_bytes: u64,
    /// The size of its part on each server, bytes.
    pub member_bytes: u64,
    /// Bytes that follow each other on one server.
    pub stripe_bytes: u64,
    /// The share of each of its servers.
    pub share: String,
    /// Its servers, in the order of the stripes.
    pub servers: Vec<String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Servers that were removed with their parts: if there are any, it is broken.
    pub lost: Vec<String>,
}

/// A schedule.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScheduleView {
    /// Grows with each change.
    pub version: u64,
    /// When its first round begins, nanoseconds since the Unix epoch.
    pub begins_ns: u64,
    /// The same as text.
    pub begins: String,
    /// The length of the round.
    pub round_ns: u64,
    /// R of the cluster: the part of its share that each slice has.
    pub r_cluster: f64,
    /// What the round was chosen for: the need that is largest for its part of the round. Absent if there was none, or
    /// its volume was deleted.
    pub need: Option<NeedView>,
    /// One for each volume.
    pub slots: Vec<SlotView>,
}

/// The shortest slice with which a volume keeps R on a server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NeedView {
    /// The server.
    pub server: String,
    /// The volume.
    pub volume: String,
    /// The slice.
    pub slice_ns: u64,
}

/// The slice of a volume in each round.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SlotView {
    /// The volume.
    pub volume: String,
    /// From the beginning of the round.
    pub start_ns: u64,
    /// How long it is.
    pub length_ns: u64,
    /// The servers.
    pub servers: Vec<String>,
}

/// A volume as it would be created.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterPlanView {
    /// A message for the user.
    pub message: String,
    /// Its servers.
    pub servers: Vec<String>,
    /// The size of its part on each server, bytes.
    pub member_bytes: u64,
    /// Bytes that follow each other on one server.
    pub stripe_bytes: u64,
    /// R of the cluster with it.
    pub r_cluster: f64,
    /// The length of the round with it.
    pub round_ns: u64,
    /// Its slice.
    pub slot: SlotView,
}

fn texts(names: &[Name]) -> Vec<String> {
    names.iter().map(Name::to_string).collect()
}

impl SlotView {
    pub(super) fn of(slot: &records::Slot) -> SlotView {
        SlotView {
            volume: slot.volume.to_string(),
            start_ns: slot.start_ns,
            length_ns: slot.length_ns,
            servers: texts(&slot.servers),
        }
    }
}

impl NeedView {
    fn of(need: &records::SliceNeed) -> NeedView {
        let records::SliceNeed { server, volume, slice_ns } = need;
        NeedView { server: server.to_string(), volume: volume.to_string(), slice_ns: *slice_ns }
    }
}

impl ScheduleView {
    pub(super) fn of(schedule: &records::Schedule) -> ScheduleView {
        let seconds = std::time::Duration::from_nanos(schedule.begins_ns);
        ScheduleView {
            version: schedule.version,
            begins_ns: schedule.begins_ns,
            begins: humantime::format_rfc3339_millis(std::time::SystemTime::UNIX_EPOCH + seconds).to_string(),
            round_ns: schedule.round_ns,
            r_cluster: schedule.r_cluster,
            need: schedule.need.as_ref().map(NeedView::of),
            slots: schedule.slots.iter().map(SlotView::of).collect(),
        }
    }
}

impl ClusterVolumeView {
    pub(super) fn of(name: &Name, volume: &records::Volume) -> ClusterVolumeView {
        ClusterVolumeView {
            name: name.to_string(),
            uuid: volume.uuid,
            size_bytes: volume.size,
            member_bytes: volume.member_size,
            stripe_bytes: volume.stripe,
            share: volume.share.to_string(),
            servers: texts(&volume.servers),
            deleting: volume.deleting,
            lost: texts(&volume.lost),
        }
    }
}

impl MemberView {
    pub(super) fn of(name: &Name, member: &records::Member, image: &records::Image) -> MemberView {
        let alive = image.alive.get(name);
        let state = match (alive, image.draining.contains(name)) {
            (None, _) => MemberState::Away,
            (Some(_), true) => MemberState::Draining,
            (Some(_), false) => MemberState::Ready,
        };
        let version = alive.map(|alive| alive.version).or(image.versions.get(name).copied()).unwrap_or(0);
        let clock = alive.map(|alive| ClockView {
            synchronised: alive.clock.synchronised,
            trusted: alive.clock.trusted,
            error_ns: alive.clock.error_ns,
            good: alive.clock.good,
        });
        let volumes = image.volumes_of(name).filter(|(_, volume)| !volume.deleting);
        let needs = |(volume, slice_ns): (&Name, &u64)| NeedView {
            server: name.to_string(),
            volume: volume.to_string(),
            slice_ns: *slice_ns,
        };
        MemberView {
            name: name.to_string(),
            state,
            in_step: version == image.schedule().version,
            version,
            uuid: member.uuid,
            advertise: member.advertise.clone(),
            disk: alive.map(|alive| alive.disk.to_string()),
            size_bytes: alive.map(|alive| alive.size_bytes),
            free_bytes: alive.map(|alive| alive.free_bytes),
            insulation: alive.map(|alive| f64::from(alive.insulation_permille) / 1000.0),
            clock,
            volumes: volumes.map(|(name, _)| name.to_string()).collect(),
            missing: alive.map_or_else(Vec::new, |alive| texts(&alive.missing)),
            needs: alive.and_then(|alive| alive.needs.as_ref()).into_iter().flatten().map(needs).collect(),
        }
    }
}
