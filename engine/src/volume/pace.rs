//! How fast dirt is written: at such a rate that all there is would be on the medium in a while.
//!
//! ```text
//!   owed grows by dirt / SPREAD          owed >= a batch ─► the oldest dirt is written until nothing is owed
//! ```
//!
//! Were dirt written when it has reached its age and not before, what is written now would be what was asked for 5 s
//! ago. A client that waits for its reads asks for little while much is written, so that 5 s later there is little to
//! write, and it asks for much: its throughput swings, twice the age from one crest to the next. What is written in
//! proportion to how much there is follows what is asked for without delay, and cannot swing. When it is written, it is
//! as old as that while on average (Little's law). Of what is written only the oldest is written for its age, and what
//! lies beside it goes with it, however young. So the while is such a part of `SPREAD` as blocks are of the oldest
//! one's age when they go together, of late: then it is the oldest ones that are as old as `SPREAD` on average, a
//! little less than they may become, and the rule of age, which swings, has nothing to do.
//!
//! In batches, since a drive sorts what it has: many writes at once take less time each.
//!
//! Downside: dirt is written an eighth of the age earlier, so that a little less of it is overwritten before.

use super::writeback::WRITEBACKS_MAX;
use crate::cache::Wanted;
use crate::units::Nanos;

/// Blocks that are begun together: as many as there are write-backs in flight at most, each of a block at least.
const BATCH: i128 = WRITEBACKS_MAX as i128;
/// Runs that a volume may be ahead: a longest one is several batches, and what a flush wrote at once must not stop it
/// for long.
const AHEAD: i128 = 4 * BATCH;

/// How long it is remembered how old blocks go: in times as much as there is.
const MEMORY: f64 = 4.0;
/// Less is not believed: all that is dirty went with every oldest block.
const YOUTH_LEAST: f64 = 0.25;

/// What a volume owes to its disk.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Pace {
    /// What is owed is of that moment, and so many blocks were dirty then; more, as if none went before it is old.
    at: Nanos,
    dirty: u32,
    /// Ages of blocks that went of late, and what they would have been had all been as old as the oldest they went
    /// with.
    ages_ms: f64,
    oldest_ms: f64,
    /// Blocks, times the nanoseconds in which all dirt is to be gone; below 0 it is ahead.
    owed: i128,
    /// A batch is being begun.
    is_due: bool,
}

impl Pace {
    /// Time has passed, and so many blocks are dirty now, which are to be gone after `spread_ns`.
    pub(super) fn pass(&mut self, now: Nanos, dirty: u32, spread_ns: Nanos) {
        let (past, spread) = (i128::from(now - self.at), i128::from(spread_ns));
        let owed = if dirty == 0 { 0 } else { self.owed + past * i128::from(self.dirty) };
        (self.at, self.dirty) = (now, (f64::from(dirty) / self.youth()) as u32);
        self.owed = owed.clamp(-AHEAD * spread, BATCH * spread);
        self.is_due = self.owed > 0 && (self.is_due || self.owed == BATCH * spread);
    }

    /// So many blocks are being written.
    pub(super) fn wrote(&mut self, blocks: u32, spread_ns: Nanos) {
        self.owed -= i128::from(blocks) * i128::from(spread_ns);
        self.is_due &= self.owed > 0;
    }

    /// These have gone, because the oldest of them was so old.
    pub(super) fn took(&mut self, all: Wanted, oldest_ms: u64) {
        let blocks = f64::from(all.blocks);
        let keep = 1.0 - blocks / (blocks + MEMORY * f64::from(self.dirty));
        self.ages_ms = self.ages_ms * keep + all.ages_ms as f64;
        self.oldest_ms = self.oldest_ms * keep + blocks * oldest_ms as f64;
    }

    /// The part of the oldest one's age that blocks have when they go.
    fn youth(&self) -> f64 {
        if self.oldest_ms > 0.0 { (self.ages_ms / self.oldest_ms).clamp(YOUTH_LEAST, 1.0) } else { 1.0 }
    }

    /// Whether the oldest dirt is to be written.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// How long after [`Pace::pass`] there is a batch, if dirt stays as it is.
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

    /// A client that makes dirt as fast as write-back leaves it time: the two share a disk.
    fn throughputs(mut is_written: impl FnMut(Nanos, &std::collections::VecDeque<Nanos>) -> usize) -> Vec<f64> {
        const STEP: Nanos = SECOND / 100;
        let (mut dirt, mut rates) = (std::collections::VecDeque::new(), Vec::new());
        for step in 0..6000 {
            let now = step * STEP;
            // Ten blocks a step are read and then dirtied, or written.
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
                // With each oldest block go three that are young.
                let oldest = now - dirt.pop_front().unwrap();
                let young: Nanos = (0..3).map(|_| now - dirt.remove(dirt.len() * 3 / 4).unwrap()).sum();
                pace.wrote(4, 4 * SECOND);
                pace.took(Wanted { blocks: 4, ages_ms: (oldest + young) / 1_000_000 }, oldest / 1_000_000);
                ages.push(oldest as f64 / SECOND as f64);
            }
        }
        let late = &ages[ages.len() / 2..];
        let (mean, most) = (late.iter().sum::<f64>() / late.len() as f64, late.iter().copied().fold(0.0, f64::max));
        // A batch later than it would be block by block.
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
