//! The rate at which dirty data is written: so that all of it would be written within a certain time.
//!
//! ```text
//!   owed grows by dirty / SPREAD          owed >= a batch ─► the oldest blocks are written until nothing is owed
//! ```
//!
//! Write-back by age alone makes throughput oscillate: the disk now writes what clients wrote 5 s ago. While the disk
//! writes much, a client that waits for its reads writes little. So 5 s later the disk has little to write, and the
//! client writes much. The period is twice the age limit. A rate in proportion to the amount of dirty data follows the
//! clients without delay and cannot oscillate. Blocks are then written at a mean age of `SPREAD`, which is 7/8 of the
//! age limit (Little's law).
//!
//! Only the oldest block of a run is written for its age. Its neighbours are written with it, however young they are.
//! So the time is `SPREAD` times the recently measured ratio of the mean age of a run's blocks to the age of its oldest
//! block. Then the oldest blocks have a mean age of `SPREAD`, a little below the age limit, and that limit, which
//! oscillates, is seldom reached.
//!
//! Blocks are written in batches, because a drive sorts the requests that it has: many writes at once take less time
//! each.
//!
//! Downside: dirty data is written an eighth of the age limit earlier, so a little less of it is overwritten first.

use super::writeback::WRITEBACKS_MAX;
use crate::cache::Wanted;
use crate::units::Nanos;

/// Blocks of a batch: as many as there can be write-backs in flight, each of at least one block.
const BATCH: i128 = WRITEBACKS_MAX as i128;
/// Blocks that a volume may be ahead of the pace. The longest run is several batches, and blocks that a flush wrote at
/// once must not stop the pace for long.
const AHEAD: i128 = 4 * BATCH;

/// Averaging of the ages of written blocks: over this many times the number of dirty blocks.
const MEMORY: f64 = 4.0;
/// Smallest ratio of ages that is used. A smaller one means that all dirty data was written with each oldest block.
const YOUTH_LEAST: f64 = 0.25;

/// The state of a volume's pace.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Pace {
    /// When `owed` was computed, and the number of dirty blocks then, divided by the ratio of ages.
    at: Nanos,
    dirty: u32,
    /// Sum of the ages of recently written blocks, and the sum if each had been as old as the oldest block of its run.
    ages_ms: f64,
    oldest_ms: f64,
    /// Blocks that are owed, times the nanoseconds of `SPREAD`; below 0 if the volume is ahead.
    owed: i128,
    /// A batch is being written.
    is_due: bool,
}

impl Pace {
    /// Time has passed. `dirty` blocks are dirty now, and are to be written within `spread_ns`.
    pub(super) fn pass(&mut self, now: Nanos, dirty: u32, spread_ns: Nanos) {
        let (past, spread) = (i128::from(now - self.at), i128::from(spread_ns));
        let owed = if dirty == 0 { 0 } else { self.owed + past * i128::from(self.dirty) };
        (self.at, self.dirty) = (now, (f64::from(dirty) / self.youth()) as u32);
        self.owed = owed.clamp(-AHEAD * spread, BATCH * spread);
        self.is_due = self.owed > 0 && (self.is_due || self.owed == BATCH * spread);
    }

    /// `blocks` dirty blocks are being written.
    pub(super) fn wrote(&mut self, blocks: u32, spread_ns: Nanos) {
        self.owed -= i128::from(blocks) * i128::from(spread_ns);
        self.is_due &= self.owed > 0;
    }

    /// The run `all` was written because its oldest block was `oldest_ms` old.
    pub(super) fn took(&mut self, all: Wanted, oldest_ms: u64) {
        let blocks = f64::from(all.blocks);
        let keep = 1.0 - blocks / (blocks + MEMORY * f64::from(self.dirty));
        self.ages_ms = self.ages_ms * keep + all.ages_ms as f64;
        self.oldest_ms = self.oldest_ms * keep + blocks * oldest_ms as f64;
    }

    /// The ratio of the ages of written blocks to those of the oldest blocks of their runs.
    fn youth(&self) -> f64 {
        if self.oldest_ms > 0.0 { (self.ages_ms / self.oldest_ms).clamp(YOUTH_LEAST, 1.0) } else { 1.0 }
    }

    /// Whether the oldest dirty block is to be written.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Time after [`Pace::pass`] until a batch is owed, if the number of dirty blocks stays as it is.
    pub(super) fn due_in(&self, spread_ns: Nanos) -> Nanos {
        let missing = BATCH * i128::from(spread_ns) - self.owed;
        (missing / i128::from(self.dirty.max(1))).clamp(0, i128::from(Nanos::MAX / 2)) as Nanos + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    #[test]
    fn a_batch_is_written_when_it_is_owed() {
        let mut pace = Pace::default();
        pace.pass(0, 640, SECOND);
        assert!(!pace.is_due());
        let at = pace.due_in(SECOND);
        assert_eq!(at, SECOND / 10 + 1, "a tenth of the dirt in a tenth of the time");
        pace.pass(at, 640, SECOND);
        assert!(pace.is_due());
        pace.wrote(63, SECOND);
        assert!(pace.is_due(), "until nothing is owed");
        pace.wrote(1, SECOND);
        assert!(!pace.is_due());
        pace.pass(at + SECOND / 20, 640, SECOND);
        assert!(!pace.is_due(), "half a batch");
        pace.pass(9 * SECOND, 0, SECOND);
        assert!(!pace.is_due(), "nothing to write");
    }

    #[test]
    fn what_was_written_together_does_not_stop_it_for_long() {
        let mut pace = Pace::default();
        pace.pass(SECOND, 1000, SECOND);
        pace.wrote(100_000, SECOND);
        pace.pass(SECOND, 1000, SECOND);
        assert_eq!(pace.due_in(SECOND), 5 * 64 * SECOND / 1000 + 1);
    }

    /// A client that writes as fast as write-back leaves it time: both share a disk.
    fn throughputs(mut is_written: impl FnMut(Nanos, &std::collections::VecDeque<Nanos>) -> usize) -> Vec<f64> {
        const STEP: Nanos = SECOND / 100;
        let (mut dirt, mut rates) = (std::collections::VecDeque::new(), Vec::new());
        for step in 0..6000 {
            let now = step * STEP;
            // In each step the disk transfers ten blocks: it writes old dirty blocks, or reads blocks that the client
            // then dirties.
            let written = is_written(now, &dirt).min(dirt.len()).min(9);
            dirt.drain(..written);
            dirt.extend(std::iter::repeat_n(now, 10 - written));
            rates.push((10 - written) as f64);
        }
        rates[3000..].chunks(200).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect()
    }

    fn spread_of(rates: &[f64]) -> f64 {
        let (least, most) = rates.iter().fold((f64::MAX, 0.0f64), |(l, m), &rate| (l.min(rate), m.max(rate)));
        (most - least) / (rates.iter().sum::<f64>() / rates.len() as f64)
    }

    #[test]
    fn the_oldest_goes_at_its_age_though_what_lies_beside_it_goes_younger() {
        const STEP: Nanos = SECOND / 100;
        let (mut pace, mut dirt) = (Pace::default(), std::collections::VecDeque::new());
        let mut ages = Vec::new();
        for now in (0..6000).map(|step| step * STEP) {
            dirt.extend([now; 4]);
            pace.pass(now, dirt.len() as u32, 4 * SECOND);
            while pace.is_due() && dirt.len() > 9 {
                // Three young blocks are written with each oldest one.
                let oldest = now - dirt.pop_front().unwrap();
                let young: Nanos = (0..3).map(|_| now - dirt.remove(dirt.len() * 3 / 4).unwrap()).sum();
                pace.wrote(4, 4 * SECOND);
                pace.took(Wanted { blocks: 4, ages_ms: (oldest + young) / 1_000_000 }, oldest / 1_000_000);
                ages.push(oldest as f64 / SECOND as f64);
            }
        }
        let late = &ages[ages.len() / 2..];
        let (mean, most) = (late.iter().sum::<f64>() / late.len() as f64, late.iter().copied().fold(0.0, f64::max));
        // At most one batch later than if blocks were written one by one.
        assert!((mean - 4.0).abs() < 0.3 && most - mean < 0.1, "{mean} {most}");
    }

    #[test]
    fn a_client_that_waits_for_its_reads_does_not_swing() {
        let by_age = throughputs(|now, dirt| dirt.iter().take_while(|&&since| now - since >= 5 * SECOND).count());
        let mut pace = Pace::default();
        let paced = throughputs(|now, dirt| {
            pace.pass(now, dirt.len() as u32, 4 * SECOND);
            let count = if pace.is_due() { 9 } else { 0 };
            pace.wrote(count.min(dirt.len() as u32), 4 * SECOND);
            count as usize
        });
        assert!(spread_of(&by_age) > 1.0 && spread_of(&paced) < 0.2, "{by_age:?} {paced:?}");
    }
}
