//! Which reads of a volume are sequential: a small table of streams, several at once, interleaved and out of order.
//!
//! ```text
//!   reads    0  100  2  1  101  3 ...        an interval is what was read without a gap; a read that touches its end
//!   table    [0..1) [100..101)               extends it, and takes in what it meets:
//!            [0..1) [100..101) [2..3)        2 came early, and is an interval of its own
//!            [0..3) [100..101)               1 fills the gap
//!            [0..3) [100..102)  ...          three requests in a row: 0.. is a stream
//! ```
//!
//! So requests that overtake each other (depth above 1, several connections) need no tolerance that random reads could
//! slip through: only what is really read without a gap counts. Newcomers replace the oldest interval that is no stream
//! yet, and a stream only ever makes room for another stream: random reads beside it, however many, do not push it out.
//!
//! Source: Argon (Wachs et al., FAST 2007), section 4, "run count"; the table is ours, Argon has one stream an object.
//! Downside: each read looks at all 32 ends (some 20 ns). A new stream of which fewer than one read in 16 is its own is
//! not seen.

use crate::event::ConnId;
use crate::units::{Nanos, SECOND};

/// Intervals that are remembered, streams included.
const INTERVALS: usize = 32;
/// Of those, streams at most: the other half is for newcomers.
const STREAMS_MAX: usize = INTERVALS / 2;
/// Requests in a row that make a stream: two neighbours are chance now and then, three hardly ever are.
const PROOF: u32 = 3;
/// A stream that is not read for this long has ended: longer than a depth-1 reader waits for two rounds of `max_round`
/// (2 s).
pub(crate) const IDLE_NS: Nanos = 5 * SECOND;

/// What was read without a gap, and how far ahead of it has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    start: u64,
    /// Requests that it consists of.
    requests: u32,
    /// When it was last read: on the clock, and as the number of the read.
    seen: Nanos,
    used: u64,
    /// Who read it last.
    conn: ConnId,
    /// Names it while it is read ahead of; 0 otherwise.
    serial: u32,
    /// Past the last byte that was read ahead. Nothing if that is behind the reader.
    pub(crate) ahead: u64,
    /// Bytes ahead of the reader, as last counted.
    unread: u64,
    /// A reader that gets past here wants the next window.
    pub(crate) marker: u64,
}

const EMPTY: Stream =
    Stream { start: 0, requests: 0, seen: 0, used: 0, conn: ConnId(0), serial: 0, ahead: 0, unread: 0, marker: 0 };

impl Stream {
    /// So many reads in a row that it is a stream.
    pub(crate) fn is_proven(&self) -> bool {
        self.requests >= PROOF
    }

    /// It is read ahead of.
    pub(crate) fn is_live(&self) -> bool {
        self.serial != 0
    }
}

/// A stream that is not read ahead of any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Halted {
    pub(crate) serial: u32,
    /// Bytes that were ahead of its reader, as last counted.
    pub(crate) unread: u64,
}

/// What a read is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// The place of the stream that it belongs to, if it does to one.
    pub(crate) stream: Option<usize>,
    /// A stream that was read ahead of had to make room.
    pub(crate) ended: Option<Halted>,
}

/// The streams of a volume.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Past the last byte of each interval; apart from the rest because every read looks at all of them.
    ends: [u64; INTERVALS],
    intervals: [Stream; INTERVALS],
    /// Reads so far.
    reads: u64,
    serials: u32,
    /// Streams that are read ahead of.
    live: u32,
    /// None of them has been idle for too long before.
    check_at: Nanos,
}

impl Default for Streams {
    fn default() -> Self {
        // No volume reaches as far as the end of an empty interval.
        let (ends, intervals) = ([u64::MAX; INTERVALS], [EMPTY; INTERVALS]);
        Streams { ends, intervals, reads: 0, serials: 0, live: 0, check_at: 0 }
    }
}

impl Streams {
    /// `conn` reads `start..end`, which is not empty.
    pub(crate) fn read(&mut self, now: Nanos, conn: ConnId, start: u64, end: u64) -> Seen {
        debug_assert!(start < end);
        self.reads += 1;
        let (at, before, was_proven) = match self.ends.iter().position(|past| (start..=end).contains(past)) {
            Some(at) => {
                let (before, was_proven) = (self.ends[at], self.intervals[at].is_proven());
                // What is read again at the very end does not make it longer.
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

    /// An interval has grown from `before`: it takes in those newcomers that it has met.
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

    /// There is one more stream. If that is one too many, the one that was read longest ago goes.
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

    /// The stream at a place.
    pub(crate) fn at(&mut self, at: usize) -> &mut Stream {
        &mut self.intervals[at]
    }

    /// What a stream consists of: first byte, past the last.
    pub(crate) fn span(&self, at: usize) -> (u64, u64) {
        (self.intervals[at].start, self.ends[at])
    }

    /// The name of a stream that is read ahead of from now on, and whether it was not before.
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

    /// The bytes of a stream that are ahead of its reader: when they were last counted, and now.
    pub(crate) fn count_unread(&mut self, at: usize) -> (u64, u64) {
        let unread = self.intervals[at].ahead.saturating_sub(self.ends[at]);
        (std::mem::replace(&mut self.intervals[at].unread, unread), unread)
    }

    /// Nothing is read ahead of a stream any more, until it is read again. What was, if something was.
    fn halt(&mut self, at: usize) -> Option<Halted> {
        let stream = &mut self.intervals[at];
        let halted = Halted { serial: stream.serial, unread: stream.unread };
        (stream.ahead, stream.unread, stream.marker, stream.serial) = (0, 0, 0, 0);
        self.live -= u32::from(halted.serial != 0);
        (halted.serial != 0).then_some(halted)
    }

    /// Halts one of the streams that `conn` (or anybody) was the last to read, and that are read ahead of.
    pub(crate) fn halt_of(&mut self, conn: Option<ConnId>) -> Option<Halted> {
        if self.live == 0 {
            return None;
        }
        let is_it = |stream: &Stream| stream.is_live() && conn.is_none_or(|conn| stream.conn == conn);
        self.intervals.iter().position(is_it).and_then(|at| self.halt(at))
    }

    /// Halts one of the streams that have not been read for [`IDLE_NS`].
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

    /// When to look for idle streams.
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
        // The same one again and again is not.
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
        // The one that was read longest ago, which is not the first one, makes room.
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

    /// What was read, in blocks, by a naive observer who forgets nothing.
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
        /// Whatever is read: what is called a stream consists of three reads without a gap, at least.
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

        /// Interleaved streams whose reads overtake each other, with random reads between: each is seen from its third
        /// read on, and its span is what was read of it without a gap.
        #[test]
        fn interleaved_streams_are_seen_though_their_reads_overtake_each_other(
            count in 1u64..=12,
            order in prop::collection::vec(any::<prop::sample::Index>(), 300),
            depth in 1usize..=2,
            noise in prop::collection::vec(1u64 << 40..1 << 50, 300),
        ) {
            let mut streams = Streams::default();
            // Of each stream: the reads on their way, the next one, what has come.
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
                    // The oldest one is overtaken once at most.
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
