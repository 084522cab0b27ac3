use proptest::prelude::*;

use super::*;
use crate::units::MILLISECOND;

const A: TenantId = TenantId(0);
const MIB: u64 = 1 << 20;
/// The guarantee: 1 MiB/s, so a window has 15 MiB.
const MIN: u64 = MIB;

fn terms(percent: u64) -> Terms {
    Terms { min_bytes_per_s: MIN, ..Share::from_ppb(percent * 10_000_000).into() }
}

/// A tenant with a guarantee, its totals, and the clock.
struct Stage {
    windows: Windows,
    now: Nanos,
    totals: Totals,
    idle_since: Nanos,
}

impl Stage {
    fn new(percent: u64) -> Stage {
        let (mut windows, totals) = (Windows::default(), Totals::default());
        windows.set_tenant(0, A, terms(percent), totals);
        Stage { windows, now: 0, totals, idle_since: 0 }
    }

    /// Demand for `wanted_ns`, then `bytes` are delivered for which a disk of its own needs `useful_ns`.
    fn work(&mut self, wanted_ns: Nanos, bytes: u64, useful_ns: Nanos) {
        self.now += wanted_ns;
        self.idle_since = self.now;
        self.totals.wanted_ns += wanted_ns;
        self.totals.owned_ns += useful_ns;
        self.totals.useful_ns += useful_ns;
        let wanted_ns = self.totals.wanted_ns;
        if self.windows.delivered(self.now, A, bytes, || wanted_ns) {
            self.look();
        }
    }

    /// No demand for this time; looked at each half second.
    fn pause(&mut self, ns: Nanos) {
        let until = self.now + ns;
        while self.now < until {
            self.now = (self.now + SECOND / 2).min(until);
            self.look();
        }
    }

    fn look(&mut self) {
        if self.windows.is_over(self.now, A, self.totals.wanted_ns, self.now - self.idle_since) {
            self.windows.close(self.now, A, self.totals, 900);
        }
    }

    /// A second of demand in each of which `bytes` are delivered, of which a disk of its own would do `own` in a
    /// second.
    fn seconds(&mut self, count: u64, bytes: u64, own: u64) {
        (0..count).for_each(|_| self.work(SECOND, bytes, bytes * SECOND / own));
    }

    fn counts(&self) -> WindowCounts {
        self.windows.counts(A).unwrap()
    }
}

fn counts(met: u64, no_demand: u64, fundamental: u64, avoidable: u64) -> WindowCounts {
    WindowCounts { met, no_demand, fundamental, avoidable, marginal: 0 }
}

#[test]
fn a_window_has_the_bytes_of_fifteen_seconds_and_may_take_as_long() {
    let mut stage = Stage::new(50);
    stage.seconds(30, MIB, 10 * MIB);
    assert_eq!(stage.counts(), counts(2, 0, 0, 0));
    stage.seconds(15, 2 * MIB, 10 * MIB);
    assert_eq!(stage.counts(), counts(4, 0, 0, 0), "twice as fast: twice as many windows");
    stage.work(SECOND, 50 * MIB, SECOND);
    assert_eq!(stage.counts(), counts(7, 0, 0, 0), "one request completes three windows");
    stage.seconds(10, MIB, 10 * MIB);
    assert_eq!(stage.counts(), counts(8, 0, 0, 0), "what it had too many counts for the next window");
}

#[test]
fn a_guarantee_that_fits_into_the_share_is_missed_avoidably() {
    let mut stage = Stage::new(50);
    // Alone it has 10 MiB/s: half of it, less a tenth, is 4.5 times the guarantee.
    stage.seconds(30, MIB / 2, 10 * MIB);
    assert_eq!(stage.counts(), counts(0, 0, 0, 1));
    let window = stage.windows.missed(A)[0];
    assert_eq!((window.begun, window.duration_ns, window.wanted_ns), (0, 30 * SECOND, 30 * SECOND));
    assert_eq!((window.bytes, window.share_ppb, window.keep_permille), (15 * MIB, 500_000_000, 900));
    assert_eq!((window.useful_ns, window.owned_ns), (1_500_000_000, 1_500_000_000));
    assert_eq!((window.own_bytes_per_s(), window.marginal), (Some(10 * MIB), false));
}

#[test]
fn a_guarantee_that_does_not_fit_into_the_share_is_missed_fundamentally() {
    // The threshold is where share x R x own rate is the guarantee: at 20/9 MiB/s alone.
    for (own, miss, marginal) in [
        (2 * MIB, Miss::Fundamental, false),
        (2 * MIB + MIB / 5, Miss::Fundamental, true),
        (2 * MIB + MIB / 4, Miss::Avoidable, true),
        (2 * MIB + MIB / 2, Miss::Avoidable, false),
    ] {
        let mut stage = Stage::new(50);
        stage.seconds(30, MIB / 2, own);
        let window = stage.windows.missed(A)[0];
        assert_eq!((window.miss, window.marginal), (miss, marginal), "{own}: {window:?}");
        assert_eq!(stage.counts().marginal, u64::from(marginal));
    }
}

#[test]
fn work_that_needs_no_disk_is_never_too_much_for_a_share() {
    let mut stage = Stage::new(1);
    (0..30).for_each(|_| stage.work(SECOND, MIB / 2, 0));
    assert_eq!(stage.counts(), counts(0, 0, 0, 1), "all of it came from the cache");
}

#[test]
fn a_tenant_that_gets_its_guarantee_while_it_has_demand_misses_no_window_by_our_fault() {
    let mut stage = Stage::new(50);
    (0..30).for_each(|_| {
        stage.work(SECOND / 2, MIB / 2, SECOND / 20);
        stage.pause(SECOND / 2);
    });
    // The demand of half the time, in windows that end by time.
    assert_eq!(stage.counts(), counts(0, 2, 0, 0));
    let [first, _] = stage.windows.missed(A)[..] else { panic!() };
    assert_eq!((first.duration_ns, first.wanted_ns, first.bytes), (15 * SECOND, 15 * SECOND / 2, 15 * MIB / 2));
}

#[test]
fn a_trickle_is_no_demand_however_slowly_it_is_served() {
    let mut stage = Stage::new(50);
    (0..30).for_each(|_| {
        stage.work(SECOND / 4, 4096, SECOND / 100);
        stage.pause(3 * SECOND / 4);
    });
    assert_eq!(stage.counts(), counts(0, 2, 0, 0));
}

#[test]
fn without_demand_there_is_no_window_and_time_before_it_does_not_count() {
    let mut stage = Stage::new(50);
    stage.pause(100 * SECOND);
    assert_eq!(stage.counts(), WindowCounts::default());
    stage.seconds(15, MIB, 10 * MIB);
    assert_eq!(stage.counts(), counts(1, 0, 0, 0));
    stage.pause(3600 * SECOND);
    stage.seconds(15, MIB, 10 * MIB);
    assert_eq!(stage.counts(), counts(2, 0, 0, 0));
}

#[test]
fn a_window_that_is_late_when_the_demand_ends_is_classified_by_what_it_has() {
    let mut stage = Stage::new(50);
    stage.seconds(20, MIB / 2, 10 * MIB);
    assert_eq!(stage.counts(), WindowCounts::default(), "it waits for its bytes");
    stage.pause(20 * SECOND);
    assert_eq!(stage.counts(), counts(0, 0, 0, 1));
    assert_eq!(stage.windows.missed(A)[0].bytes, 10 * MIB);
}

#[test]
fn another_promise_begins_another_window_and_keeps_the_counts() {
    let mut stage = Stage::new(50);
    stage.seconds(29, MIB / 2, 10 * MIB);
    stage.windows.set_tenant(stage.now, A, terms(25), stage.totals);
    stage.seconds(29, MIB / 2, 10 * MIB);
    assert_eq!(stage.counts(), WindowCounts::default());
    stage.seconds(1, MIB / 2, 10 * MIB);
    assert_eq!(stage.counts(), counts(0, 0, 0, 1));
    assert_eq!(stage.windows.missed(A)[0].share_ppb, 250_000_000);
    stage.windows.set_tenant(stage.now, A, Terms { min_bytes_per_s: 0, ..terms(25) }, stage.totals);
    assert!(stage.windows.counts(A).is_none());
    assert_eq!(stage.windows.missed(A).len(), 1, "what it missed stays");
}

#[test]
fn an_overcommitted_share_is_what_is_left_of_it() {
    let mut stage = Stage::new(100);
    stage.windows.set_tenant(0, TenantId(1), terms(100), Totals::default());
    stage.seconds(30, MIB / 2, 10 * MIB);
    assert_eq!(stage.windows.missed(A)[0].share_ppb, 500_000_000);
}

#[test]
fn missed_windows_are_bounded_and_those_without_demand_go_first() {
    let mut stage = Stage::new(50);
    stage.seconds(30, MIB / 2, 10 * MIB);
    for _ in 0..MISSED_MAX + 10 {
        stage.work(SECOND / 4, 4096, 0);
        stage.pause(16 * SECOND);
    }
    assert_eq!(stage.windows.missed(A).len(), MISSED_MAX);
    assert_eq!(stage.windows.missed(A)[0].miss, Miss::Avoidable);
    assert_eq!(stage.counts().no_demand, MISSED_MAX as u64 + 10);
}

proptest! {
    /// The experiment of the paper: a workload that always has demand, whose byte sequence is cut into windows
    /// afterwards.
    #[test]
    fn live_windows_are_those_that_are_cut_afterwards(
        steps in prop::collection::vec((1u64..4000, 1u64..8 * MIB), 1..400)
    ) {
        let mut stage = Stage::new(50);
        let (mut bytes, mut begun, mut cut) = (0, 0, Vec::new());
        for (ms, step) in steps {
            stage.work(ms * MILLISECOND, step, 0);
            bytes += step;
            while bytes >= 15 * MIB {
                cut.push(stage.now - begun);
                (bytes, begun) = (bytes - 15 * MIB, stage.now);
            }
        }
        let missed: Vec<Nanos> = cut.iter().copied().filter(|&ns| ns > WINDOW_NS).collect();
        let live: Vec<Nanos> = stage.windows.missed(A).iter().map(|window| window.duration_ns).collect();
        prop_assert_eq!(&live, &missed);
        prop_assert_eq!(stage.counts().met, (cut.len() - missed.len()) as u64);
    }
}
