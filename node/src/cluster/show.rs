//! The cluster, as this server sees it.

use super::view::{ClusterView, ClusterVolumeView, EtcdView, MemberView, ScheduleView};
use super::{Cluster, ClusterError};
use crate::control::view::InCluster;

/// What metrics say of the cluster.
#[derive(Debug)]
pub struct ClusterStanding {
    /// Its name.
    pub cluster: String,
    /// Whether this server has joined.
    pub joined: bool,
    /// Whether etcd answers.
    pub etcd_answers: bool,
    /// The version of the schedule that this server has; 0 for none.
    pub version: u64,
    /// The round of that schedule.
    pub round_ns: Option<u64>,
    /// The estimated error of the clock.
    pub clock_error_ns: u64,
    /// Servers that are away, as etcd said last.
    pub away: Option<usize>,
}

impl Cluster {
    /// The cluster: as it is, or as it was when etcd answered last.
    pub fn show(&self) -> ClusterView {
        let image = self.image();
        let state = self.state();
        let down = state.link.as_ref().err();
        let silent = down.and_then(|down| down.since.elapsed().ok());
        let of_image = |image: &super::records::Image| {
            let members = image.members.iter().map(|(name, member)| MemberView::of(name, member, image)).collect();
            let volumes = image.volumes.iter().map(|(name, volume)| ClusterVolumeView::of(name, volume)).collect();
            (members, volumes)
        };
        let (members, volumes) = image.as_deref().map(of_image).unwrap_or_default();
        ClusterView {
            cluster: self.settings.cluster.to_string(),
            server: self.settings.name.to_string(),
            joined: state.standing.is_ok(),
            reason: state.standing.clone().err().or_else(|| state.trouble.values().next().cloned()),
            disk: state.disk.as_ref().map(|(disk, _)| disk.to_string()),
            version: state.kept.as_ref().map_or(0, |kept| kept.schedule.version),
            etcd: EtcdView {
                endpoints: self.settings.endpoints.clone(),
                answers: down.is_none(),
                reason: down.map(|down| down.why.clone()),
                silent_seconds: silent.map(|silent| silent.as_secs()),
                revision: image.as_ref().map_or(0, |image| image.revision),
            },
            change: image.as_ref().and_then(|image| Some(image.change.as_ref()?.volume.to_string())),
            members,
            volumes,
            schedule: self.newest(image.as_deref(), state.kept.as_ref()),
        }
    }

    /// The same in a line.
    pub fn status(&self) -> InCluster {
        let ClusterView { cluster, server, joined, reason, version, etcd, schedule, .. } = self.show();
        let newest = schedule.map_or(0, |schedule| schedule.version);
        InCluster { cluster, server, joined, reason, version, in_step: version == newest, etcd_answers: etcd.answers }
    }

    /// The same in numbers.
    pub fn standing(&self) -> ClusterStanding {
        let image = self.image();
        let state = self.state();
        let is_away = |image: &super::records::Image| {
            image.members.keys().filter(|server| !image.alive.contains_key(*server)).count()
        };
        let kept = state.kept.as_ref().map(|kept| &kept.schedule);
        ClusterStanding {
            cluster: self.settings.cluster.to_string(),
            joined: state.standing.is_ok(),
            etcd_answers: state.link.is_ok(),
            version: kept.map_or(0, |schedule| schedule.version),
            round_ns: kept.filter(|schedule| !schedule.slots.is_empty()).map(|schedule| schedule.round_ns),
            clock_error_ns: state.clock.error_ns,
            away: image.as_deref().map(is_away),
        }
    }

    /// The schedule that etcd had last, or the one that this server has if that is newer.
    fn newest(&self, image: Option<&super::records::Image>, kept: Option<&super::Kept>) -> Option<ScheduleView> {
        let of_etcd = image.and_then(|image| image.schedule.as_ref()).map(|(schedule, _)| schedule);
        let all = of_etcd.into_iter().chain(kept.map(|kept| &kept.schedule));
        all.max_by_key(|schedule| schedule.version).map(ScheduleView::of)
    }

    /// The last schedule.
    pub fn show_schedule(&self) -> Result<ScheduleView, ClusterError> {
        let kept = self.state().kept.clone();
        let none = || ClusterError::NoSchedule(self.settings.cluster.clone());
        self.newest(self.image().as_deref(), kept.as_ref()).ok_or_else(none)
    }
}
