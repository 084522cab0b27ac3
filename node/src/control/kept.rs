//! What the volumes of a gateway keep of their shares. Their disk time is on the servers of the cluster, so it is told
//! here: by the gateway, which knows what a client loses of its slots, and what the servers say of their parts.
//!
//! ```text
//!   slots         R of the cluster x (1 - loss / slot)      what the client has of its slots, barriers included
//!   DISK  = least of slots and DISK of each part
//!   KEEPS = DISK x least KEEPS / DISK of a part             what larger caches of the servers would add
//! ```
//!
//! A server takes the time in which a client waits for another server for a pause, so its DISK is too high for a
//! client that waits at barriers; what the client loses of its slots contains context switches, but not what a deep
//! queue hides. Each is an upper bound, and they have losses in common: the least is taken, not the product. If a
//! part's figure is unknown, because the tenant has no demand there, so is that of the volume.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::Control;
use super::live::Against;
use super::view::RatioView;
use crate::cluster::layout::{PartKept, SlotOf};
use crate::quantity::Name;

/// How long what was told is shown: gateways tell it every 5 s.
const TOLD_FOR: Duration = Duration::from_secs(15);
/// Slots whose losses are averaged (`engine::cluster::Barrier`).
const SLOTS: f64 = 100.0;
const PREDICTION: &str = "from the client's slots, and from the least of what the volume's servers measure";

/// What a volume keeps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Kept {
    own_cache: f64,
    whole_cache: Option<f64>,
    window: Duration,
}

/// What was told of volumes, and when.
pub(super) type AllKept = Mutex<BTreeMap<Name, (Kept, Instant)>>;

impl Kept {
    /// From what a striped volume loses of its slot, ns, and its parts. `None` if that is not known.
    pub fn striped(slot: &SlotOf, loss_ns: u64, parts: &[PartKept]) -> Option<Kept> {
        let lost = loss_ns as f64 / slot.length_ns.max(1) as f64;
        let of_slots = slot.r_cluster * (1.0 - lost).max(0.0);
        let window = Duration::from_nanos(slot.round_ns).mul_f64(SLOTS);
        Kept::of(of_slots, parts, window)
    }

    /// The same for a volume on one server, which waits at no barrier.
    pub fn single(part: PartKept) -> Option<Kept> {
        Kept::of(f64::INFINITY, &[part], Duration::from_secs(5))
    }

    fn of(of_slots: f64, parts: &[PartKept], window: Duration) -> Option<Kept> {
        let own = parts.iter().map(|part| part.own_cache).collect::<Option<Vec<f64>>>()?;
        let own_cache = own.iter().copied().fold(of_slots, f64::min);
        let whole = parts.iter().map(|part| Some(part.whole_cache? / part.own_cache.filter(|&own| own > 0.0)?));
        let least = whole.collect::<Option<Vec<f64>>>().map(|all| all.into_iter().fold(f64::INFINITY, f64::min));
        own_cache.is_finite().then(|| Kept { own_cache, whole_cache: least.map(|least| own_cache * least), window })
    }
}

impl Control {
    /// A gateway says what a volume keeps; `None` if that is not known any more.
    pub fn set_kept(&self, name: &Name, kept: Option<Kept>) {
        let mut all = self.kept.lock().expect("nobody panics while holding it");
        all.retain(|_, (_, told)| told.elapsed() < TOLD_FOR);
        match kept {
            Some(kept) => drop(all.insert(name.clone(), (kept, Instant::now()))),
            None => drop(all.remove(name)),
        }
    }

    /// What was told of a tenant whose volume is that of a cluster.
    pub(super) fn told_ratio(&self, tenant: &Name, against: Against) -> Option<RatioView> {
        let all = self.kept.lock().expect("nobody panics while holding it");
        let (kept, _) = all.get(tenant).filter(|(_, told)| told.elapsed() < TOLD_FOR)?;
        let ratio = match against {
            Against::OwnCache => Some(kept.own_cache),
            Against::WholeCache => kept.whole_cache,
        };
        Some(RatioView { ratio: ratio?, window_seconds: kept.window.as_secs_f64(), prediction: PREDICTION.into() })
    }

    /// What a part of a cluster's volume on this server keeps, as it is measured.
    pub async fn part_kept(&self, name: &Name) -> PartKept {
        let unknown = PartKept { own_cache: None, whole_cache: None };
        let Ok(disk) = self.state().find(name).map(|(disk, _)| disk) else { return unknown };
        let Some(snapshot) = self.snapshot(&disk).await else { return unknown };
        let state = self.state();
        let Ok(running) = state.disk(&disk) else { return unknown };
        let ratio = |against| {
            let all = self.ratios(&disk, running, &snapshot, against);
            all.into_iter().find(|(tenant, _)| tenant == name).map(|(_, ratio)| ratio)
        };
        PartKept { own_cache: ratio(Against::OwnCache), whole_cache: ratio(Against::WholeCache) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotOf = SlotOf {
        version: 1,
        begins_ns: 0,
        round_ns: 1_000_000_000,
        start_ns: 0,
        length_ns: 250_000_000,
        r_cluster: 0.96,
    };

    fn part(own: f64, whole: f64) -> PartKept {
        PartKept { own_cache: Some(own), whole_cache: Some(whole) }
    }

    fn kept(loss_ms: u64, parts: &[PartKept]) -> Option<(u64, Option<u64>)> {
        let thousandths = |ratio: f64| (ratio * 1000.0).round() as u64;
        let kept = Kept::striped(&SLOT, loss_ms * 1_000_000, parts)?;
        Some((thousandths(kept.own_cache), kept.whole_cache.map(thousandths)))
    }

    #[test]
    fn the_least_of_slots_and_parts_counts() {
        assert_eq!(kept(25, &[part(0.95, 0.95), part(0.97, 0.97)]), Some((864, Some(864))), "0.96 x 0.9");
        assert_eq!(kept(0, &[part(0.95, 0.95), part(0.93, 0.93)]), Some((930, Some(930))));
        // The cache of one server is too small: by that factor less.
        assert_eq!(kept(25, &[part(0.95, 0.95), part(1.0, 0.5)]), Some((864, Some(432))));
        assert_eq!(kept(300, &[part(0.95, 0.95)]), Some((0, Some(0))), "more than the slot");
    }

    #[test]
    fn what_is_unknown_of_a_part_is_unknown() {
        let unknown = PartKept { own_cache: None, whole_cache: None };
        assert_eq!(kept(0, &[part(0.95, 0.95), unknown]), None);
        assert_eq!(kept(0, &[part(0.95, 0.95), PartKept { own_cache: Some(0.9), ..unknown }]), Some((900, None)));
        assert_eq!(kept(0, &[part(0.0, 0.0)]), Some((0, None)));
        assert_eq!(Kept::single(unknown), None);
        assert_eq!(Kept::single(part(0.9, 0.8)).map(|kept| kept.own_cache), Some(0.9));
    }
}
