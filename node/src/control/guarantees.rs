//! Guarantees: what a tenant is promised is checked before it is promised, told afterwards, and measured.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use engine::control::{Ceilings, Command, IO_BYTES, Report, Snapshot, TenantStats};
use engine::disk::Window;
use engine::units::{Nanos, Share};
use tracing::warn;

use super::shares::Shares;
use super::show::SNAPSHOT_TIMEOUT;
use super::upstreams::refuse_promises;
use super::view::{DiskGuarantee, ViolationView, ViolationsView};
use super::{Control, DiskReason, Error, Invalid, Running};
use crate::quantity::{Name, Rate, percent};
use crate::store::TenantSpec;
use crate::store::profile::date;

/// Interval of events about missed windows of one tenant: a disk that is overloaded misses one each 15 s.
const EVENTS_INTERVAL: Duration = Duration::from_secs(300);

/// Avoidable misses by disk and tenant: those seen, those told, and when.
pub(super) type Misses = BTreeMap<(Name, Name), Missed>;

/// See [`Misses`].
#[derive(Debug, Default)]
pub(super) struct Missed {
    seen: u64,
    told: u64,
    told_at: Option<Instant>,
}

impl Missed {
    /// The number of misses to tell of now, of `count` so far.
    fn news(&mut self, count: u64, now: Instant) -> Option<u64> {
        if count < self.seen {
            // The disk was opened again.
            *self = Missed { told_at: self.told_at, ..Missed::default() };
        }
        self.seen = count;
        let news = count - self.told;
        if news == 0 || self.told_at.is_some_and(|at| now < at + EVENTS_INTERVAL) {
            return None;
        }
        (self.told, self.told_at) = (count, Some(now));
        Some(news)
    }
}

impl Control {
    /// Refuses promises, before and after a change, that contradict each other, or that do not fit on the disk.
    pub(super) fn check_promises(
        &self,
        running: &Running,
        disk: &Name,
        tenant: &Name,
        (before, after): (&TenantSpec, &TenantSpec),
        overcommit: bool,
    ) -> Result<(), Error> {
        check_consistent(after)?;
        self.check_schedule(disk, tenant, (before, after))?;
        if running.is_remote(tenant) {
            refuse_promises(tenant, after)?;
        }
        let present_ppb = before.share.as_ref().map_or(0, |share| share.share.ppb());
        let share = after.share.as_ref().map(|share| share.share);
        running.check_share(disk, tenant, present_ppb, share, overcommit)?;
        let is_same = (&before.share, before.min_bandwidth) == (&after.share, after.min_bandwidth);
        if is_same { Ok(()) } else { self.check_reachable(running, disk, tenant, after) }
    }

    /// Refuses a guarantee that is above the sequential rate of the disk times the share, unless it would have fitted
    /// into the share in some window of the tenant's history: hits in the cache may be faster than the disk.
    fn check_reachable(&self, running: &Running, disk: &Name, tenant: &Name, after: &TenantSpec) -> Result<(), Error> {
        let stream = running.store.known().profile.stream_bytes_per_s();
        let (Some(asked), Some(stream)) = (after.min_bandwidth, stream) else { return Ok(()) };
        let part = running.part_of(tenant, after);
        let has_fitted = || self.fitting(running, disk, tenant, after).is_some_and(|(fitting, _)| fitting > 0);
        match asked.0 <= (stream as f64 * part) as u64 || has_fitted() {
            true => Ok(()),
            false => Err(Error::GuaranteeTooLarge {
                disk: disk.clone(),
                asked,
                share: percent((part * 1e9) as u64),
                stream: Rate(stream),
            }),
        }
    }
}

impl Running {
    /// The fraction of the disk's time that a tenant has with this specification, 0 to 1.
    pub(super) fn part_of(&self, tenant: &Name, after: &TenantSpec) -> f64 {
        let (others_ppb, whole) = (self.committed_ppb(Some(tenant)), Share::ONE.ppb());
        match &after.share {
            Some(share) => share.share.ppb() as f64 / whole.max(others_ppb + share.share.ppb()) as f64,
            None => {
                let has_none = |(name, of): &(&Name, &TenantSpec)| *name != tenant && of.share.is_none();
                let others = self.allotments().iter().filter(has_none).count();
                whole.saturating_sub(others_ppb) as f64 / whole as f64 / (others as f64 + 1.0)
            }
        }
    }

    /// Whether the shares of the disk sum to more than 1.
    pub(super) fn is_overcommitted(&self) -> bool {
        self.committed_ppb(None) > Share::ONE.ppb()
    }
}

/// Refuses values that no disk could keep together.
pub(super) fn check_consistent(spec: &TenantSpec) -> Result<(), Invalid> {
    if spec.burst.is_some() && !spec.has_ceiling() {
        return Err(Invalid::BurstWithoutCeiling);
    }
    let Some(min) = spec.min_bandwidth else { return Ok(()) };
    if min.0 == 0 {
        return Err(Invalid::ZeroMinBandwidth);
    }
    let Ceilings { bytes, ios, .. } = spec.ceilings();
    let most = bytes.most().into_iter().chain(ios.most().map(|ios| ios.saturating_mul(IO_BYTES))).min();
    match most {
        Some(most) if most < min.0 => Err(Invalid::MinAboveMax { min, max: Rate(most) }),
        _ => Ok(()),
    }
}

impl Control {
    /// What a tenant is guaranteed now, and whether that would hold, if the promise has changed.
    pub(super) fn promise_note(&self, disk: &Name, tenant: &Name, before: &TenantSpec) -> String {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return String::new() };
        let now = running.allotment(tenant);
        if (&now.share, now.min_bandwidth) == (&before.share, before.min_bandwidth) {
            return String::new();
        }
        let shares = Shares::of(running);
        match (shares.guarantee(tenant), before.min_bandwidth) {
            (Some(guarantee), _) => {
                let admission = self.admission(disk, running, tenant, &now).map(|admission| admission.message);
                let promise = format!("; '{tenant}' gets {}", guarantee.promise());
                promise + &admission.map(|message| format!("\n{message}")).unwrap_or_default()
            }
            (None, Some(_)) => format!("; '{tenant}' has no minimum bandwidth any more"),
            (None, None) => String::new(),
        }
    }

    /// A note for a share or a guarantee that has no effect under the disk's policy, with the reason.
    pub(super) fn unheeded(&self, disk: &Name, tenant: &Name) -> String {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return String::new() };
        let allotment = running.allotment(tenant);
        let kind = self.chosen(disk, &running.store);
        let share = allotment.share.is_some() && !kind.name.0.uses_shares();
        let guarantee = allotment.min_bandwidth.is_some() && !kind.name.0.uses_guarantees();
        let what = match (share, guarantee) {
            (false, false) => return String::new(),
            (true, false) => "its share has",
            (false, true) => "its minimum bandwidth has",
            (true, true) => "its share and its minimum bandwidth have",
        };
        format!("\n{what} no effect: disk '{disk}' has the policy '{}' ({})", kind.name, kind.reason)
    }

    /// The windows in which a tenant missed its guarantee, on one disk or on all of them.
    pub async fn violations(&self, name: &Name, only: Option<&Name>) -> Result<ViolationsView, Error> {
        let tenant = self.show_tenant(name).await?;
        let is_wanted = |disk: &str| only.is_none_or(|only| only.as_str() == disk);
        let of = tenant.disks.into_iter().filter(|on| is_wanted(&on.disk)).collect::<Vec<_>>();
        if let (Some(disk), true) = (only, of.is_empty()) {
            return Err(Error::NotOnDisk { tenant: name.clone(), disk: disk.clone() });
        }
        let mut all = Vec::new();
        for on in &of {
            let Ok(disk) = on.disk.parse::<Name>() else { continue };
            all.extend(self.missed_on(&disk, name).await?);
        }
        all.sort_by_key(|(begun, _)| *begun);
        let guarantee =
            |on: super::view::AllotmentView| Some(DiskGuarantee { disk: on.disk, guarantee: on.guarantee? });
        Ok(ViolationsView {
            tenant: name.to_string(),
            guarantees: of.into_iter().filter_map(guarantee).collect(),
            violations: all.into_iter().map(|(_, violation)| violation).collect(),
        })
    }

    /// The missed windows of a tenant on a disk, with when they began.
    async fn missed_on(&self, disk: &Name, tenant: &Name) -> Result<Vec<(SystemTime, ViolationView)>, Error> {
        let answer = {
            let state = self.state();
            let running = state.disk(disk)?;
            let Some(entry) = running.tenants.get(tenant) else { return Ok(Vec::new()) };
            let id = entry.id;
            running.thread.command(Command::Violations(id))
        };
        let answer = tokio::time::timeout(SNAPSHOT_TIMEOUT, answer).await;
        let Ok(Ok(Report::Violations(now, windows))) = answer else {
            return Err(Error::DiskOffline(disk.clone(), DiskReason::NoAnswer));
        };
        let read_at = SystemTime::now();
        let begun = |window: &Window| read_at - Duration::from_nanos(now.saturating_sub(window.begun));
        Ok(windows.iter().map(|window| (begun(window), violation(disk, begun(window), window))).collect())
    }

    /// Tells of avoidable misses since the last snapshot.
    pub(super) fn note_misses(&self, disk: &Name, snapshot: &Snapshot) {
        // `None` while a tenant has no guarantee. The counter of the engine goes on when the tenant gets one again.
        let avoidable: Vec<(Name, Option<u64>)> = {
            let state = self.state();
            let Ok(running) = state.disk(disk) else { return };
            let name = |id| running.tenants.iter().find(|(_, tenant)| tenant.id == id).map(|(name, _)| name.clone());
            let count = |stats: &TenantStats| Some((name(stats.tenant)?, stats.windows.map(|counts| counts.avoidable)));
            snapshot.tenants.iter().filter_map(count).collect()
        };
        let mut news = Vec::new();
        {
            let mut misses = self.misses.lock().expect("nobody panics while holding it");
            misses.retain(|(of, tenant), _| of != disk || avoidable.iter().any(|(name, _)| name == tenant));
            for (tenant, count) in avoidable.into_iter().filter_map(|(tenant, count)| Some((tenant, count?))) {
                let missed = misses.entry((disk.clone(), tenant.clone())).or_default();
                news.extend(missed.news(count, Instant::now()).map(|count| (tenant, count)));
            }
        }
        for (tenant, count) in news {
            warn!(%disk, %tenant, count, "the guarantee was missed although it fitted into the share");
            let reason = format!(
                "tenant '{tenant}' missed its guarantee in {count} windows although it fitted into its share: \
                 `aerogel tenant violations {tenant}` shows them"
            );
            self.tell_of_tenant(disk, &tenant, reason);
        }
    }
}

fn violation(disk: &Name, begun: SystemTime, window: &Window) -> ViolationView {
    let seconds = |ns: Nanos| ns as f64 / 1e9;
    let at = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    ViolationView {
        disk: disk.to_string(),
        at: date(at.as_secs()),
        class: window.miss.into(),
        marginal: window.marginal,
        seconds: seconds(window.duration_ns),
        demand_seconds: seconds(window.wanted_ns),
        bytes: window.bytes,
        min_bandwidth: window.min_bytes_per_s,
        slice_seconds: seconds(window.owned_ns),
        useful_seconds: seconds(window.useful_ns),
        share: window.share_ppb as f64 / 1e9,
        insulation: f64::from(window.keep_permille) / 1000.0,
        own_rate: window.own_bytes_per_s(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_told_at_a_bounded_rate_and_none_is_forgotten() {
        let (mut missed, start) = (Missed::default(), Instant::now());
        assert_eq!(missed.news(0, start), None);
        assert_eq!(missed.news(1, start), Some(1));
        assert_eq!(missed.news(3, start + EVENTS_INTERVAL / 2), None);
        assert_eq!(missed.news(4, start + EVENTS_INTERVAL), Some(3), "with those that were not told");
        assert_eq!(missed.news(4, start + 2 * EVENTS_INTERVAL), None, "nothing new");
        assert_eq!(missed.news(1, start + 3 * EVENTS_INTERVAL), Some(1), "the disk was opened again");
    }

    /// Of tenants without known volumes, those count that may be the tenant of a volume that cannot be read now.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_counts_in_the_sum_of_shares() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let open = || {
            let cache = "64MiB".parse().unwrap();
            Control::open(crate::config::Config { data: data.clone(), cache, ..Default::default() })
        };
        let create = |name: &str, share: &str| {
            serde_json::from_value(serde_json::json!({"name": name, "size": "1MiB", "share": share})).unwrap()
        };
        let control = open().await.unwrap();
        control.create_volume(create("a", "3/5")).await.unwrap();
        control.create_volume(create("b", "1/5")).await.unwrap();
        assert!(control.drain().await.is_empty());
        drop(control);
        // A tenant that a crash has left, and a volume that cannot be read.
        let disk = data.join("disks/default");
        std::fs::copy(disk.join("tenants/b.toml"), disk.join("tenants/left.toml")).unwrap();
        let (spec, kept) = (disk.join("volumes/a.toml"), std::fs::read(disk.join("volumes/a.toml")).unwrap());
        std::fs::write(&spec, "garbage").unwrap();
        let control = open().await.unwrap();
        let refused = control.create_volume(create("c", "1/10")).await;
        assert!(matches!(refused, Err(Error::ShareTooLarge { left_ppb: 0, .. })), "{refused:?}");
        assert!(control.drain().await.is_empty());
        drop(control);
        std::fs::write(&spec, kept).unwrap();
        let control = open().await.unwrap();
        let refused = control.create_volume(create("c", "3/10")).await;
        assert!(matches!(refused, Err(Error::ShareTooLarge { left_ppb: 200_000_000, .. })), "{refused:?}");
        control.create_volume(create("c", "1/5")).await.unwrap();
        // A volume that is gone.
        control.delete_volume(&"a".parse().unwrap(), false).await.unwrap();
        control.create_volume(create("d", "3/5")).await.unwrap();
        assert!(control.drain().await.is_empty());
    }

    #[test]
    fn a_guarantee_of_nothing_is_refused() {
        let spec = |min_bandwidth: Option<&str>| TenantSpec {
            min_bandwidth: min_bandwidth.map(|rate| rate.parse().unwrap()),
            ..TenantSpec::default()
        };
        assert!(check_consistent(&spec(None)).is_ok() && check_consistent(&spec(Some("1MiB/s"))).is_ok());
        assert!(check_consistent(&spec(Some("0"))).unwrap_err().to_string().contains("'none'"));
    }
}
