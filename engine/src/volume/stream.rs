//! Detection of sequential reads of a volume: a small table of streams, which may be interleaved and out of order.
//!
//! ```text
//!   reads    0  100  2  1  101  3 ...        an interval was read without a gap; a read that touches its end
//!   table    [0..1) [100..101)               extends it, and it merges newer intervals that it meets:
//!            [0..1) [100..101) [2..3)        2 came early, and is an interval of its own
//!            [0..3) [100..101)               1 fills the gap
//!            [0..3) [100..102)  ...          three requests in a row: 0.. is a stream
//! ```
//!
//! So requests that complete out of order (depth above 1, several connections) need no tolerance that random reads
//! could exploit: only what is really read without a gap counts. A new interval replaces the oldest one that is no
//! stream yet, and only another stream replaces a stream. So random reads, however many, never replace one.
//!
//! Source: Argon (Wachs et al., FAST 2007), section 4, "run count". Argon tracks one stream per object; the table is
//! ours.
//! Downside: each read compares all 32 ends (about 20 ns). A new stream is not detected if fewer than one read in 16 is
//! its own.

use crate::ids::ConnId;
use crate::units::{Nanos, SECOND};

/// Intervals in the table, streams included.
const INTERVALS: usize = 32;
/// Most streams in the table: the other half is for new intervals.
const STREAMS_MAX: usize = INTERVALS / 2;
/// Requests in a row that make a stream: two neighbours occur by chance now and then, three hardly ever.
const PROOF: u32 = 3;
/// A stream that is not read for this long has ended. A client at depth 1 waits at most two rounds of `max_round` (2
/// s).
pub(crate) const IDLE_NS: Nanos = 5 * SECOND;

/// An interval that was read without a gap, and its read-ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    start: u64,
    /// The number of requests in the interval.
    requests: u32,
    /// When it was last read: the time, and the number of the read.
    seen: Nanos,
    used: u64,
    /// The client that read it last.
    conn: ConnId,
    /// Identifies the stream while it has read-ahead; otherwise 0.
    serial: u32,
    /// End of the read-ahead. There is none if this is behind the reader.
    pub(crate) ahead: u64,
    /// Bytes of read-ahead in front of the reader, as last counted.
    unread: u64,
    /// A read beyond this byte triggers the next window.
    pub(crate) marker: u64,
    /// Blocks before this one were dropped behind the reader, or left to the eviction policy (`passed.rs`).
    pub(crate) passed: u64,
}

const EMPTY: Stream = Stream {
    start: 0,
    requests: 0,
    seen: 0,
    used: 0,
    conn: ConnId(0),
    serial: 0,
    ahead: 0,
    unread: 0,
    marker: 0,
    passed: 0,
};

impl Stream {
    /// It has enough reads in a row to be a stream.
    pub(crate) fn is_proven(&self) -> bool {
        self.requests >= PROOF
    }

    /// It has read-ahead.
    pub(crate) fn is_live(&self) -> bool {
        self.serial != 0
    }
}

/// The read-ahead of a stream that was halted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Halted {
    pub(crate) serial: u32,
    /// Bytes in front of the reader, as last counted.
    pub(crate) unread: u64,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// The index of the stream that it belongs to, if any.
    pub(crate) stream: Option<usize>,
    /// A stream with read-ahead that was replaced.
    pub(crate) ended: Option<Halted>,
}

/// The streams of a volume.
#[derive(Debug)]
pub(crate) struct Streams {
    /// The end of each interval. They are stored apart because every read compares all of them.
    ends: [u64; INTERVALS],
    intervals: [Stream; INTERVALS],
    /// Number of reads so far.
    reads: u64,
    serials: u32,
    /// Number of streams with read-ahead.
    live: u32,
    /// No stream reaches its idle timeout before this time.
    check_at: Nanos,
}

impl Default for Streams {
    fn default() -> Self {
        // No volume reaches the end of an empty interval.
        let (ends, intervals) = ([u64::MAX; INTERVALS], [EMPTY; INTERVALS]);
        Streams { ends, intervals, reads: 0, serials: 0, live: 0, check_at: 0 }
    }
}

impl Streams {
    /// `conn` reads `start..end`, which must not be empty.
    pub(crate) fn read(&mut self, now: Nanos, conn: ConnId, start: u64, end: u64) -> Seen {
        debug_assert!(start < end);
        self.reads += 1;
        let (at, before, was_proven) = match self.ends.iter().position(|past| (start..=end).contains(past)) {
            Some(at) => {
                let (before, was_proven) = (self.ends[at], self.intervals[at].is_proven());
                // Reading the end of the interval again does not extend it.
                let requests = &mut self.intervals[at].requests;
                *requests = requests.saturating_add(u32::from(end > before));
                (at, before, was_proven)
            }
            None => {
                let at = self.oldest(|interval| !interval.is_proven());
                self.intervals[at] = Stream { start, requests: 1, ..EMPTY };
                (at, start, false)
            }
        };
        self.ends[at] = end;
        self.take_in(at, before);
        let interval = &mut self.intervals[at];
        (interval.seen, interval.used, interval.conn) = (now, self.reads, conn);
        let proven = interval.is_proven();
        let ended = if proven && !was_proven { self.make_room(at) } else { None };
        Seen { stream: proven.then_some(at), ended }
    }

    /// The interval `at` has grown from `before`: it merges the new intervals that it meets.
    fn take_in(&mut self, at: usize, before: u64) {
        loop {
            let past = self.ends[at];
            let met = (0..INTERVALS).find(|&other| {
                let (newcomer, end) = (&self.intervals[other], self.ends[other]);
                other != at && !newcomer.is_proven() && newcomer.start <= past && before <= end && end < u64::MAX
            });
            let Some(met) = met else { return };
            let requests = self.intervals[met].requests;
            self.intervals[at].requests = self.intervals[at].requests.saturating_add(requests);
            self.ends[at] = past.max(self.ends[met]);
            self.clear(met);
        }
    }

    /// There is one more stream. If that is one too many, the least recently read one is replaced.
    fn make_room(&mut self, at: usize) -> Option<Halted> {
        if self.intervals.iter().filter(|interval| interval.is_proven()).count() <= STREAMS_MAX {
            return None;
        }
        let used = self.intervals[at].used;
        let oldest = self.oldest(|interval| interval.is_proven() && interval.used != used);
        let ended = self.halt(oldest);
        self.clear(oldest);
        ended
    }

    fn oldest(&self, wanted: impl Fn(&Stream) -> bool) -> usize {
        let of_them = (0..INTERVALS).filter(|&at| wanted(&self.intervals[at]));
        of_them.min_by_key(|&at| self.intervals[at].used).expect("half of the intervals are streams at most")
    }

    fn clear(&mut self, at: usize) {
        (self.intervals[at], self.ends[at]) = (EMPTY, u64::MAX);
    }

    /// The stream with index `at`.
    pub(crate) fn at(&mut self, at: usize) -> &mut Stream {
        &mut self.intervals[at]
    }

    /// Start and end (exclusive) of a stream.
    pub(crate) fn span(&self, at: usize) -> (u64, u64) {
        (self.intervals[at].start, self.ends[at])
    }

    /// A stream gets read-ahead: returns its serial number, and whether it had none before.
    pub(crate) fn go_ahead(&mut self, now: Nanos, at: usize) -> (u32, bool) {
        let fresh = !self.intervals[at].is_live();
        if fresh {
            self.serials = self.serials.checked_add(1).unwrap_or(1);
            self.intervals[at].serial = self.serials;
            if self.live == 0 {
                self.check_at = now + IDLE_NS;
            }
            self.live += 1;
        }
        (self.intervals[at].serial, fresh)
    }

    /// Counts the bytes of read-ahead in front of the reader: returns the last count and the new one.
    pub(crate) fn count_unread(&mut self, at: usize) -> (u64, u64) {
        let unread = self.intervals[at].ahead.saturating_sub(self.ends[at]);
        (std::mem::replace(&mut self.intervals[at].unread, unread), unread)
    }

    /// Stops the read-ahead of a stream until it is read again. Returns the read-ahead, if there was any.
    fn halt(&mut self, at: usize) -> Option<Halted> {
        let stream = &mut self.intervals[at];
        let halted = Halted { serial: stream.serial, unread: stream.unread };
        (stream.ahead, stream.unread, stream.marker, stream.serial) = (0, 0, 0, 0);
        self.live -= u32::from(halted.serial != 0);
        (halted.serial != 0).then_some(halted)
    }

    /// Halts one of the streams with read-ahead that `conn` was the last to read; `None` stands for any connection.
    pub(crate) fn halt_of(&mut self, conn: Option<ConnId>) -> Option<Halted> {
        if self.live == 0 {
            return None;
        }
        let is_it = |stream: &Stream| stream.is_live() && conn.is_none_or(|conn| stream.conn == conn);
        self.intervals.iter().position(is_it).and_then(|at| self.halt(at))
    }

    /// Halts one of the streams with read-ahead that were not read for [`IDLE_NS`].
    pub(crate) fn halt_idle(&mut self, now: Nanos) -> Option<Halted> {
        if self.live == 0 || now < self.check_at {
            return None;
        }
        let live = self.intervals.iter().filter(|stream| stream.is_live());
        let seen = live.map(|stream| stream.seen).min().expect("a live stream");
        if now < seen + IDLE_NS {
            self.check_at = seen + IDLE_NS;
            return None;
        }
        let is_it = |stream: &Stream| stream.is_live() && stream.seen == seen;
        self.intervals.iter().position(is_it).and_then(|at| self.halt(at))
    }

    /// When to look for idle streams; `None` if no stream has read-ahead.
    pub(crate) fn check_at(&self) -> Option<Nanos> {
        (self.live > 0).then_some(self.check_at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const READ: u64 = 4096;
    const CONN: ConnId = ConnId(0);

    fn read(streams: &mut Streams, start: u64, len: u64) -> Option<usize> {
        streams.read(0, CONN, start, start + len).stream
    }

    #[test]
    fn the_third_read_in_a_row_makes_a_stream() {
        let mut streams = Streams::default();
        assert_eq!([0, 1, 2, 3].map(|i| read(&mut streams, i * READ, READ).is_some()), [false, false, true, true]);
        let at = read(&mut streams, 4 * READ, READ).unwrap();
        assert_eq!(streams.span(at), (0, 5 * READ));
    }

    #[test]
    fn reads_that_overlap_or_lie_across_blocks_are_in_a_row_too() {
        let mut streams = Streams::default();
        let places = [1000, 4900, 9100, 13_000].map(|start| read(&mut streams, start, 4200).is_some());
        assert_eq!(places, [false, false, true, true]);
        // Reads of the same place are not a stream.
        let mut streams = Streams::default();
        assert!((0..100).all(|_| read(&mut streams, 0, READ).is_none()));
    }

    #[test]
    fn a_gap_makes_another_run() {
        let mut streams = Streams::default();
        assert!((0..100).all(|i| read(&mut streams, 2 * i * READ, READ).is_none()), "every other block is no stream");
    }

    #[test]
    fn random_reads_do_not_push_a_stream_out_but_seventeen_streams_do() {
        let mut streams = Streams::default();
        let stream = |streams: &mut Streams, base: u64| (0..3).map(|i| read(streams, base + i * READ, READ)).last();
        let first = stream(&mut streams, 0).unwrap().unwrap();
        let (serial, fresh) = streams.go_ahead(0, first);
        assert!(fresh);
        (0..1000).for_each(|i| assert_eq!(read(&mut streams, (i * 7919 + 1000) * 2 * READ, READ), None));
        assert_eq!(read(&mut streams, 3 * READ, READ), Some(first));
        let far = |i: u64| (1 << 40) + i * (1 << 30);
        (0..15).for_each(|i| assert!(stream(&mut streams, far(i)).unwrap().is_some()));
        assert_eq!(read(&mut streams, 4 * READ, READ), Some(first));
        // The least recently read stream, which is not the first one, is replaced.
        assert!(stream(&mut streams, far(15)).unwrap().is_some());
        assert_eq!(read(&mut streams, far(0) + 3 * READ, READ), None);
        assert_eq!(read(&mut streams, 5 * READ, READ), Some(first));
        let ended: Vec<_> = (0..48u64)
            .filter_map(|i| {
                streams.read(0, CONN, far(20 + i / 3) + i % 3 * READ, far(20 + i / 3) + (i % 3 + 1) * READ).ended
            })
            .collect();
        assert_eq!(ended, [Halted { serial, unread: 0 }]);
    }

    #[test]
    fn what_is_not_read_any_more_is_halted_and_what_is_read_again_goes_on() {
        let mut streams = Streams::default();
        let at = (0..3).filter_map(|i| read(&mut streams, i * READ, READ)).last().unwrap();
        let (serial, _) = streams.go_ahead(0, at);
        streams.read(SECOND, CONN, 3 * READ, 4 * READ);
        assert_eq!(streams.check_at(), Some(IDLE_NS));
        assert_eq!(streams.halt_idle(IDLE_NS), None);
        assert_eq!(streams.check_at(), Some(SECOND + IDLE_NS));
        assert_eq!(streams.halt_idle(SECOND + IDLE_NS).unwrap().serial, serial);
        assert_eq!((streams.check_at(), streams.halt_of(None)), (None, None));
        assert_eq!(read(&mut streams, 4 * READ, READ), Some(at));
        let (again, fresh) = streams.go_ahead(9 * SECOND, at);
        assert!(fresh && again != serial);
        assert_eq!((streams.halt_of(Some(ConnId(1))), streams.halt_of(Some(CONN)).unwrap().serial), (None, again));
    }

    /// The number of reads around `start..end` without a gap, by a naive model that forgets nothing.
    fn run_around(read: &[(u64, u64)], (start, end): (u64, u64)) -> usize {
        let (mut start, mut end, mut reads) = (start, end, 0);
        loop {
            let touching = read.iter().filter(|&&(s, e)| s <= end && start <= e);
            let (s, e, n) = touching.fold((start, end, 0), |(a, b, n), &(s, e)| (a.min(s), b.max(e), n + 1));
            if (s, e, n) == (start, end, reads) {
                return n;
            }
            (start, end, reads) = (s, e, n);
        }
    }

    proptest! {
        /// A stream always consists of at least three reads without a gap.
        #[test]
        fn nothing_else_is_called_a_stream(reads in prop::collection::vec((0u64..200, 1u64..4), 1..150)) {
            let mut streams = Streams::default();
            let mut before = Vec::new();
            for (start, len) in reads {
                before.push((start, start + len));
                if read(&mut streams, start, len).is_some() {
                    prop_assert!(run_around(&before, (start, start + len)) >= PROOF as usize);
                }
            }
        }

        /// Interleaved streams whose reads overtake each other, with random reads between them: each is detected from
        /// its third read on, and its span is what was read of it without a gap.
        #[test]
        fn interleaved_streams_are_seen_though_their_reads_overtake_each_other(
            count in 1u64..=12,
            order in prop::collection::vec(any::<prop::sample::Index>(), 300),
            depth in 1usize..=2,
            noise in prop::collection::vec(1u64 << 40..1 << 50, 300),
        ) {
            let mut streams = Streams::default();
            // Of each stream: the reads in flight, the next one, and those that have arrived.
            let mut on_their_way = vec![Vec::new(); count as usize];
            let mut next = vec![0u64; count as usize];
            let mut come = vec![Vec::new(); count as usize];
            for round in 0..300 / count as usize {
                for of in 0..count as usize {
                    while on_their_way[of].len() < depth {
                        on_their_way[of].push(next[of]);
                        next[of] += 1;
                    }
                    let index = order[(round * count as usize + of) % 300].index(depth);
                    // The oldest read is overtaken at most once.
                    let block = on_their_way[of].remove(if round % 2 == 0 { index } else { 0 });
                    come[of].push(block);
                    let base = of as u64 * (1 << 32);
                    let seen = read(&mut streams, base + block * READ, READ);
                    let gapless = (0..).find(|block| !come[of].contains(block)).unwrap();
                    if block < gapless && gapless >= u64::from(PROOF) {
                        let at = seen;
                        prop_assert!(at.is_some(), "read {block} of stream {of}, {gapless} without a gap");
                        prop_assert_eq!(streams.span(at.unwrap()), (base, base + gapless * READ));
                    }
                }
                let at = noise[round];
                prop_assert_eq!(read(&mut streams, at / READ * 2 * READ, 1), None);
            }
        }
    }
}
