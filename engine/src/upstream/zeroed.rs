//! Ranges that were zeroed and that no flush covers. After a lost session they are zeroed again, before anything else
//! is written: the owner of the volumes keeps no content for them. A zeroing request that failed because the server was
//! away counts as one that succeeded.
//!
//! *Bound.* From [`RANGES_MAX`] ranges on, further ones are made durable at once, and flushes are asked for. Without a
//! session, the owner submits no further ones, but writes zeros into its cache, whose size bounds them.
//!
//! A write that is acknowledged takes its range out: from then on the owner has the content, or it is durable.

/// Ranges above which further ones are made durable at once.
const RANGES_MAX: usize = 1024;

/// A retained range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The flush in progress covers it.
    covered: bool,
}

/// The retained ranges of one export. They do not overlap.
#[derive(Default, Debug)]
pub(super) struct Zeroed {
    ranges: Vec<Range>,
}

impl Zeroed {
    /// Whether further ranges must be durable at once.
    pub(super) fn is_full(&self) -> bool {
        self.ranges.len() >= RANGES_MAX
    }

    /// A range was zeroed.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        self.remove(start, end);
        self.ranges.push(Range { start, end, covered: false });
    }

    /// A range was written.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        let mut at = 0;
        while at < self.ranges.len() {
            let range = self.ranges[at];
            if range.end <= start || range.start >= end {
                at += 1;
                continue;
            }
            self.ranges.swap_remove(at);
            let before = Range { end: start, ..range };
            let after = Range { start: end, ..range };
            // Neither overlaps what is removed, so they may be looked at again.
            self.ranges.extend([before, after].into_iter().filter(|part| part.start < part.end));
        }
    }

    /// A flush is sent.
    pub(super) fn flush_begun(&mut self) {
        self.ranges.iter_mut().for_each(|range| range.covered = true);
    }

    /// That flush succeeded.
    pub(super) fn flushed(&mut self) {
        self.ranges.retain(|range| !range.covered);
    }

    /// That flush did not succeed.
    pub(super) fn flush_lost(&mut self) {
        self.ranges.iter_mut().for_each(|range| range.covered = false);
    }

    pub(super) fn ranges(&self) -> &[Range] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(zeroed: &Zeroed) -> Vec<(u64, u64)> {
        let mut bounds: Vec<_> = zeroed.ranges().iter().map(|range| (range.start, range.end)).collect();
        bounds.sort_unstable();
        bounds
    }

    #[test]
    fn writes_take_their_ranges_out() {
        let mut zeroed = Zeroed::default();
        zeroed.add(0, 100);
        zeroed.add(200, 300);
        zeroed.remove(90, 210);
        zeroed.remove(20, 30);
        assert_eq!(bounds(&zeroed), [(0, 20), (30, 90), (210, 300)]);
        zeroed.add(10, 250);
        assert_eq!(bounds(&zeroed), [(0, 10), (10, 250), (250, 300)]);
    }

    #[test]
    fn a_flush_settles_what_was_zeroed_before_it_was_sent() {
        let mut zeroed = Zeroed::default();
        zeroed.add(0, 10);
        zeroed.flush_begun();
        zeroed.add(20, 30);
        zeroed.add(5, 7);
        zeroed.flushed();
        assert_eq!(bounds(&zeroed), [(5, 7), (20, 30)]);
        zeroed.flush_begun();
        zeroed.flush_lost();
        zeroed.flushed();
        assert_eq!(bounds(&zeroed), [(5, 7), (20, 30)]);
    }
}
