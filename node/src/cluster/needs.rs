//! What the slices on this server's disk need: measured by its engine, or by the gateways of volumes. Told to the
//! cluster with the rest of what a server says of itself; the round follows it (`place.rs`, `retime.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use engine::units::{MILLISECOND, Nanos};
use tokio::time::{MissedTickBehavior, interval};

use super::Cluster;
use super::place::switch_need_ns;
use crate::quantity::Name;

/// How often the engine is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// What gateways say of a volume counts for so long.
const REPORT_KEPT: Duration = Duration::from_secs(30);
/// A need that is not measured any more, because the tenant is not backlogged, counts for so long: loads pause.
const KEPT: Duration = Duration::from_secs(60);
/// Changes of less than this part of a need are not told. The round has as much in reserve.
const STEADY_PART: Nanos = 10;

/// A need as it is told.
#[derive(Clone, Copy, Debug)]
struct Told {
    slice_ns: Nanos,
    measured: Instant,
}

/// The needs of the volumes that have a slot on a disk.
#[derive(Debug, Default)]
pub struct Needs {
    told: BTreeMap<Name, Told>,
    /// What gateways say, and when they did.
    reported: BTreeMap<Name, (Nanos, Instant)>,
}

impl Needs {
    /// A gateway says what its volume needs.
    fn report(&mut self, now: Instant, volume: Name, slice_ns: Nanos) {
        self.reported.insert(volume, (slice_ns, now));
    }

    /// Takes what the disk has measured of the volumes with a slot. A volume of which only a gateway says something
    /// needs at least what the disk's context switch does.
    fn measure(
        &mut self,
        now: Instant,
        slots: &BTreeSet<Name>,
        measured: &BTreeMap<Name, Nanos>,
        switch_need_ns: Nanos,
    ) {
        self.reported.retain(|_, (_, at)| now.duration_since(*at) < REPORT_KEPT);
        for volume in slots {
            let reported = self.reported.get(volume).map(|&(slice_ns, _)| slice_ns);
            let own = measured.get(volume).copied().or(reported.map(|_| switch_need_ns));
            let Some(slice_ns) = own.max(reported) else { continue };
            let before = self.told.get(volume).map(|told| told.slice_ns);
            let is_steady = |&before: &Nanos| slice_ns.abs_diff(before) < before / STEADY_PART;
            let rounded = || slice_ns.div_ceil(MILLISECOND) * MILLISECOND;
            let slice_ns = before.filter(is_steady).unwrap_or_else(rounded);
            self.told.insert(volume.clone(), Told { slice_ns, measured: now });
        }
        self.told.retain(|volume, told| slots.contains(volume) && now.duration_since(told.measured) < KEPT);
    }

    /// The needs that are told.
    pub fn told(&self) -> BTreeMap<Name, Nanos> {
        self.told.iter().map(|(volume, told)| (volume.clone(), told.slice_ns)).collect()
    }
}

impl Cluster {
    /// A gateway says which slice its volume needs to lose at most 1 - R of it at barriers: when it waits for the
    /// slowest of the servers. To be said again within 30 s.
    pub fn report_need(&self, volume: &Name, need_ns: Nanos) {
        self.state().needs.report(Instant::now(), volume.clone(), need_ns);
    }

    /// Looks at what slices lose until the process ends.
    pub(super) async fn measure(&self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.measure_now().await;
        }
    }

    async fn measure_now(&self) {
        let (disk, switch_need_ns, slots) = {
            let state = self.state();
            let (Some((disk, facts)), Some(kept)) = (&state.disk, &state.kept) else { return };
            let here = kept.schedule.slots.iter().filter(|slot| slot.servers.contains(&self.settings.name));
            let slots: BTreeSet<Name> = here.map(|slot| slot.volume.clone()).collect();
            (disk.clone(), switch_need_ns(facts.switch_ns, facts.insulation_permille), slots)
        };
        let Some(measured) = self.control.needs(&disk).await else { return };
        self.state().needs.measure(Instant::now(), &slots, &measured, switch_need_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = MILLISECOND;
    const SWITCH_MS: Nanos = 120;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    /// Needs, and the time.
    struct Stage(Needs, Instant);

    impl Stage {
        /// `a` and `b` have slots. What is measured, ms, and what is told after so many seconds.
        fn after(&mut self, seconds: u64, measured: &[(&str, Nanos)]) -> Vec<(String, Nanos)> {
            let Stage(needs, now) = self;
            *now += Duration::from_secs(seconds);
            let measured = measured.iter().map(|(volume, ms)| (name(volume), ms * MS)).collect();
            needs.measure(*now, &[name("a"), name("b")].into(), &measured, SWITCH_MS * MS);
            needs.told().into_iter().map(|(volume, ns)| (volume.to_string(), ns / MS)).collect()
        }

        fn report(&mut self, volume: &str, ms: Nanos) {
            self.0.report(self.1, name(volume), ms * MS);
        }
    }

    fn told(all: &[(&str, Nanos)]) -> Vec<(String, Nanos)> {
        all.iter().map(|&(volume, ms)| (volume.to_owned(), ms)).collect()
    }

    #[test]
    fn small_changes_of_a_need_are_not_told() {
        let mut stage = Stage(Needs::default(), Instant::now());
        assert_eq!(stage.after(0, &[("a", 200), ("c", 999)]), told(&[("a", 200)]), "c has no slot");
        for steady in [219, 181, 210] {
            assert_eq!(stage.after(1, &[("a", steady)]), told(&[("a", 200)]), "{steady}");
        }
        assert_eq!(stage.after(1, &[("a", 220)]), told(&[("a", 220)]));
        assert_eq!(stage.after(1, &[("a", 150), ("b", 90)]), told(&[("a", 150), ("b", 90)]));
    }

    #[test]
    fn a_need_is_kept_for_a_minute_without_a_backlog() {
        let mut stage = Stage(Needs::default(), Instant::now());
        stage.after(0, &[("a", 200)]);
        assert_eq!(stage.after(59, &[]), told(&[("a", 200)]));
        assert_eq!(stage.after(1, &[]), told(&[]));
    }

    #[test]
    fn what_a_gateway_says_lengthens_a_need_for_half_a_minute() {
        let mut stage = Stage(Needs::default(), Instant::now());
        stage.report("a", 300);
        stage.report("b", 50);
        assert_eq!(stage.after(0, &[("a", 200)]), told(&[("a", 300), ("b", SWITCH_MS)]));
        assert_eq!(stage.after(29, &[("a", 200)]), told(&[("a", 300), ("b", SWITCH_MS)]));
        assert_eq!(stage.after(1, &[("a", 200)])[0], ("a".to_owned(), 200));
        stage.report("a", 100);
        assert_eq!(stage.after(1, &[("a", 200)])[0], ("a".to_owned(), 200), "the disk loses more");
    }
}
