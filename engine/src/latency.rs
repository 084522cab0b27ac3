//! Latencies of a tenant's requests: percentiles within 3 %, recent and total, in a fixed amount of memory.
//!
//! ```text
//!   latency, in units of 64 ns:   0 1 2 … 31 | 32 34 … 62 | 64 68 … 124 | …      16 buckets per octave, up to 137 s
//!   time:      | older, summed up     |  slot  |  slot  | current slot |       5 s per slot: the last 10 to 15 s
//! ```
//!
//! A bucket is at most 1/16 as wide as its lower bound, and stands for its midpoint: log-linear buckets as in
//! HdrHistogram (G. Tene). The maximum is exact. Recording a latency increments one counter, whose index follows from
//! the leading bits of the latency. Downside of the slots: the recent window varies between two and three slots.

use crate::units::{Nanos, SECOND};

/// A unit is 64 ns: no latency over a socket is known more accurately.
const UNIT_SHIFT: u32 = 6;
/// Buckets per octave. The midpoint of a bucket differs by at most 1/32 from the latencies in it.
const PARTS: usize = 16;
/// Up to 137 s; the last bucket also counts longer latencies. Clients time out long before.
const BUCKETS: usize = 28 * PARTS;
/// The slots of the recent window, and the length of each: operators look at the last ten seconds.
const SLOTS: usize = 3;
const SLOT_NS: Nanos = 5 * SECOND;

fn bucket(latency_ns: Nanos) -> usize {
    let units = latency_ns >> UNIT_SHIFT;
    // In the first two octaves each unit has its own bucket.
    let shift = (units | PARTS as u64).ilog2() - PARTS.ilog2();
    (shift as usize * PARTS + (units >> shift) as usize).min(BUCKETS - 1)
}

/// The midpoint of a bucket.
fn middle_ns(bucket: usize) -> Nanos {
    let shift = (bucket / PARTS).saturating_sub(1);
    let from = (bucket - shift * PARTS) as u64;
    ((2 * from + 1) << shift << UNIT_SHIFT) / 2
}

/// A summary of latencies. All fields are 0 if there were none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Percentiles {
    /// The number of latencies.
    pub count: u64,
    /// Median.
    pub p50_ns: Nanos,
    /// 99th percentile.
    pub p99_ns: Nanos,
    /// 99.9th percentile.
    pub p999_ns: Nanos,
    /// The maximum.
    pub max_ns: Nanos,
}

/// A summary of the latencies of a tenant's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByOp {
    /// Reads.
    pub read: Percentiles,
    /// Writes.
    pub write: Percentiles,
    /// Both together.
    pub both: Percentiles,
}

/// A summary of the latencies of a tenant's requests: recent, and since the tenant was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    /// Length of the recent window: 10 to 15 s, or the age of the tenant if that is less.
    pub window_ns: Nanos,
    /// In the recent window.
    pub recent: ByOp,
    /// Since the tenant was created.
    pub total: ByOp,
}

/// Counts by bucket, for sums.
#[derive(Clone, Copy, Debug)]
struct Counts {
    counts: [u64; BUCKETS],
    max_ns: Nanos,
}

impl Counts {
    const NONE: Counts = Counts { counts: [0; BUCKETS], max_ns: 0 };

    fn add(&mut self, other: &Slot) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += u64::from(count));
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    fn and(mut self, other: &Counts) -> Counts {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.max_ns = self.max_ns.max(other.max_ns);
        self
    }

    fn percentiles(&self) -> Percentiles {
        let count: u64 = self.counts.iter().sum();
        let (mut at, mut below) = (0, self.counts[0]);
        // The quantiles are computed in ascending order, so one pass over the buckets is enough.
        let mut quantile = |permille: u64| {
            let wanted = (u128::from(count) * u128::from(permille)).div_ceil(1000) as u64;
            while below < wanted {
                at += 1;
                below += self.counts[at];
            }
            middle_ns(at).min(self.max_ns)
        };
        let [p50_ns, p99_ns, p999_ns] = [500, 990, 999].map(&mut quantile);
        Percentiles { count, p50_ns, p99_ns, p999_ns, max_ns: self.max_ns }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    counts: [u32; BUCKETS],
    max_ns: Nanos,
}

impl Slot {
    const EMPTY: Slot = Slot { counts: [0; BUCKETS], max_ns: 0 };
}

/// Counts latencies of one kind.
#[derive(Debug)]
struct Recorder {
    /// The sum of all slots that have expired.
    past: Counts,
    slots: [Slot; SLOTS],
}

impl Recorder {
    const NEW: Recorder = Recorder { past: Counts::NONE, slots: [Slot::EMPTY; SLOTS] };

    fn recent(&self) -> Counts {
        let mut sum = Counts::NONE;
        self.slots.iter().for_each(|slot| sum.add(slot));
        sum
    }
}

/// Counts the latencies of a tenant.
#[derive(Debug)]
pub(crate) struct Recorders {
    read: Recorder,
    write: Recorder,
    begun: Nanos,
    /// The number of the current slot; its index is this number modulo [`SLOTS`].
    slot: u64,
}

impl Recorders {
    pub(crate) fn new(now: Nanos) -> Box<Recorders> {
        Box::new(Recorders { read: Recorder::NEW, write: Recorder::NEW, begun: now, slot: now / SLOT_NS })
    }

    pub(crate) fn read(&mut self, now: Nanos, latency_ns: Nanos) {
        self.turn(now);
        let slot = (self.slot % SLOTS as u64) as usize;
        count(&mut self.read.slots[slot], latency_ns);
    }

    pub(crate) fn write(&mut self, now: Nanos, latency_ns: Nanos) {
        self.turn(now);
        let slot = (self.slot % SLOTS as u64) as usize;
        count(&mut self.write.slots[slot], latency_ns);
    }

    /// Advances to the current slot. Each expired slot is added to the past.
    fn turn(&mut self, now: Nanos) {
        let now = now / SLOT_NS;
        // After a long idle time each slot expires once.
        self.slot = self.slot.max(now.saturating_sub(SLOTS as u64));
        while self.slot < now {
            self.slot += 1;
            for recorder in [&mut self.read, &mut self.write] {
                let oldest = &mut recorder.slots[(self.slot % SLOTS as u64) as usize];
                recorder.past.add(oldest);
                *oldest = Slot::EMPTY;
            }
        }
    }

    /// A summary of all latencies.
    pub(crate) fn summary(&mut self, now: Nanos) -> Latencies {
        self.turn(now);
        let by_op = |read: Counts, write: Counts| ByOp {
            read: read.percentiles(),
            write: write.percentiles(),
            both: read.and(&write).percentiles(),
        };
        let (read, write) = (self.read.recent(), self.write.recent());
        let since = (self.slot.saturating_sub(SLOTS as u64 - 1) * SLOT_NS).max(self.begun);
        Latencies {
            window_ns: now.saturating_sub(since),
            recent: by_op(read, write),
            total: by_op(read.and(&self.read.past), write.and(&self.write.past)),
        }
    }
}

fn count(slot: &mut Slot, latency_ns: Nanos) {
    slot.counts[bucket(latency_ns)] += 1;
    slot.max_ns = slot.max_ns.max(latency_ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MILLISECOND;

    #[test]
    fn a_bucket_stands_for_what_is_in_it_within_three_percent() {
        let mut last = 0;
        for latency in
            (0..4096u64).chain((12..37).flat_map(|bits| (0..257).map(move |i| (1 << bits) + (i << (bits - 8)))))
        {
            let at = bucket(latency);
            assert!(at == last || at == last + 1, "{latency}: {last} to {at}");
            let (middle, error) = (middle_ns(at), middle_ns(at).abs_diff(latency));
            assert!(error <= 32 || error * 32 <= latency, "{latency} ns counts as {middle}");
            last = at;
        }
        assert_eq!((bucket(0), bucket((1 << 37) - 1), bucket(u64::MAX)), (0, BUCKETS - 1, BUCKETS - 1));
        (0..BUCKETS).for_each(|at| assert_eq!(bucket(middle_ns(at)), at));
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list() {
        let mut recorders = Recorders::new(0);
        // From microseconds to seconds, spread about evenly on a logarithmic scale.
        let mut all: Vec<Nanos> = (0..10_000u64).map(|i| 1500 << (i * 7919 % 21) | (i * 104_729 % 1024)).collect();
        all.iter().for_each(|&latency| recorders.read(7, latency));
        all.sort_unstable();
        let told = recorders.summary(7).total.read;
        assert_eq!((told.count, told.max_ns), (10_000, all[9_999]));
        for (told, true_ns) in [(told.p50_ns, all[4_999]), (told.p99_ns, all[9_899]), (told.p999_ns, all[9_989])] {
            assert!(told.abs_diff(true_ns) * 32 <= true_ns, "{told} for {true_ns}");
        }
    }

    #[test]
    fn what_is_old_counts_in_the_total_only() {
        let mut recorders = Recorders::new(2 * SECOND);
        (0..100).for_each(|_| recorders.write(3 * SECOND, SECOND));
        recorders.read(14 * SECOND, MILLISECOND);
        let both = recorders.summary(14 * SECOND);
        assert_eq!((both.window_ns, both.recent.both.count, both.recent.write.max_ns), (12 * SECOND, 101, SECOND));
        let later = recorders.summary(15 * SECOND);
        assert_eq!((later.window_ns, later.recent.both.count, later.recent.both.max_ns), (10 * SECOND, 1, MILLISECOND));
        assert_eq!(later.recent.write, Percentiles::default());
        assert_eq!((later.total.both.count, later.total.both.max_ns), (101, SECOND));
        let rested = recorders.summary(1000 * SECOND);
        assert_eq!((rested.recent, rested.total), (ByOp::default(), later.total));
    }
}
