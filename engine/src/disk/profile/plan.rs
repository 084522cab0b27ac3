//! The plan of a probe: its phases, their order, and the part of the time that each may take.
//!
//! The order is part of the method. Reads come before writes, because writes leave work behind in caches. The first
//! phase meets a throttle with its full burst. Deep queues come before shallow ones: if a throttle or a write buffer
//! makes the first phase fast, the deepest queue uses that up, and the others show the sustained rate.

use super::Direction::{self, Read, Write};
use crate::units::{MILLISECOND, Nanos, SECOND};

/// Default limit of a probe's time. The scratch file is written in addition; together they take less than two minutes.
pub const BUDGET_NS: Nanos = 100 * SECOND;
/// The deepest queue of any phase.
pub const DEPTH_MAX: usize = 32;
/// The largest request of any phase, bytes.
pub const SIZE_MAX: u64 = MIB as u64;

/// Positions at which sequential rates are measured, hundredths of the space. The last one leaves room for a second's
/// transfer.
pub const POSITIONS_PERCENT: [u8; 5] = [0, 25, 50, 75, 95];
/// Size of a stream's requests, bytes: that of this server's own device requests.
pub const STREAM_BYTES: u32 = 256 * KIB;
/// Depth that keeps a fast device busy with such requests.
pub const STREAM_DEPTH: u16 = 8;
/// Size of an interrupted stream's requests, bytes: small, so that the transfer does not hide the loss.
pub const SWITCH_BYTES: u32 = 64 * KIB;
/// Requests at a place: the first one, one that may still find the drive settling, and the one that is compared.
pub const SWITCH_RUN: u64 = 3;
/// More places than a drive's cache has segments (32 in known drives), so that most have left the cache when they are
/// read again.
pub const ROTATION_PLACES: u64 = 48;
/// Longest pause between these reads: longer than any revolution.
pub const ROTATION_PAUSE_NS: Nanos = 20 * MILLISECOND;
/// Small writes before each read that shows how long reads wait behind writes: several for each part of a device that
/// works on many requests.
pub const BEHIND_WRITES: u64 = DEPTH_MAX as u64;
/// Minimum number of these reads; with fewer there is no value. A device that manages fewer has heads, and phases are
/// of no use there.
pub const BEHIND_READS_LEAST: usize = 64;
/// How often each place is read.
const ROTATION_ROUNDS: u64 = 6;

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;
const BLOCK: u32 = 4 * KIB;

/// Random reads: bytes and depth. The deepest of each size comes first.
pub const RANDOM_READS: [(u32, u16); 10] = [
    (BLOCK, 32),
    (BLOCK, 16),
    (BLOCK, 8),
    (BLOCK, 4),
    (BLOCK, 2),
    (BLOCK, 1),
    (MIB, 8),
    (MIB, 1),
    (64 * KIB, 32),
    (64 * KIB, 1),
];
/// Random writes, likewise. Large ones come first: they use up the burst of a limit in bytes, and fill a write buffer.
pub const RANDOM_WRITES: [(u32, u16); 6] =
    [(MIB, 8), (64 * KIB, 32), (64 * KIB, 1), (BLOCK, 32), (BLOCK, 4), (BLOCK, 1)];
/// The measurement that yields service times.
pub const ALONE: (u32, u16) = (BLOCK, 1);

/// Cells of a walk.
const CELLS: u64 = 16;
/// Steps of a walk: enough for an error of 2 % on a drive with heads.
const ROUND: u64 = CELLS * CELLS;
/// Cells of a short walk.
const CELLS_FEW: u64 = 8;

/// The work of a phase.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Work {
    /// No requests, so that a throttle saves up its burst and the device finishes its work.
    Rest,
    /// Random requests: direction, bytes, depth.
    Random(Direction, u32, u16),
    /// Random reads of 4 KiB at depth 1 once more.
    Again,
    /// A stream from a position on, in hundredths of the space.
    Sequential(Direction, u8),
    /// Short sequential runs at new places.
    Switches,
    /// This number of streams, interleaved.
    Streams(u64),
    /// Repeated reads of the same places.
    Rotation,
    /// Repeatedly some writes, and a read as soon as they are acknowledged.
    Behind,
}

/// A phase of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// Its work.
    pub work: Work,
    /// The part of the time that it may take: roughly seconds of [`BUDGET_NS`].
    pub weight: f64,
    /// Its minimum length, nanoseconds: a fast device would complete the requests in no time.
    pub least_ns: Nanos,
    /// Minimum number of its requests, if there is time.
    pub requests: u64,
}

impl Work {
    /// Number of requests in the device at a time.
    pub fn depth(self) -> usize {
        match self {
            Work::Random(_, _, depth) => depth.into(),
            Work::Sequential(..) | Work::Streams(_) => STREAM_DEPTH.into(),
            Work::Behind => BEHIND_WRITES as usize,
            Work::Rest | Work::Again | Work::Switches | Work::Rotation => 1,
        }
    }

    /// Size of a request, bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Work::Random(_, bytes, _) => bytes.into(),
            Work::Sequential(..) => STREAM_BYTES.into(),
            Work::Switches | Work::Streams(_) => SWITCH_BYTES.into(),
            Work::Rest | Work::Again | Work::Rotation | Work::Behind => BLOCK.into(),
        }
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Work::Random(Write, ..) | Work::Sequential(Write, _) | Work::Behind)
    }

    /// Cells of its walk.
    pub fn cells(self) -> u64 {
        if self == Work::Again { CELLS_FEW } else { CELLS }
    }

    /// Description for an operator who waits.
    pub fn doing(self) -> &'static str {
        match self {
            Work::Rest => "resting",
            Work::Random(Read, ..) => "random reads",
            Work::Random(Write, ..) => "random writes",
            Work::Again => "reading again",
            Work::Sequential(Read, _) => "sequential reads",
            Work::Sequential(Write, _) => "sequential writes",
            Work::Switches => "switching",
            Work::Streams(_) => "two streams",
            Work::Rotation => "looking for a rotation",
            Work::Behind => "reading behind writes",
        }
    }

    fn phase(self) -> Phase {
        let (weight, least_ns, requests) = match self {
            Work::Rest => (1.0, SECOND, 0),
            Work::Again => (1.0, 300 * MILLISECOND, CELLS_FEW * CELLS_FEW),
            Work::Sequential(..) => (1.5, SECOND, 64),
            // Long enough to show the rate after a burst.
            Work::Random(Read, ..) if self.follows_rest() => (4.0, 2 * SECOND, 2 * ROUND),
            // The distribution is needed, too.
            Work::Random(_, bytes, depth) if (bytes, depth) == ALONE => (8.0, SECOND, 2 * ROUND),
            // A deep queue serves near requests first: its completions are less regular, but faster.
            Work::Random(Read, bytes, depth) if depth > 2 && bytes < MIB => (4.0, SECOND, 2 * ROUND),
            Work::Random(Read, ..) => (4.0, SECOND, ROUND),
            // It takes a while until the contents of a write buffer are spread as they remain.
            Work::Random(Write, bytes, depth) if depth > 2 && bytes < MIB => (4.0, 3 * SECOND / 2, 2 * ROUND),
            Work::Random(Write, ..) => (4.0, 3 * SECOND / 2, ROUND),
            Work::Switches => (6.0, 600 * MILLISECOND, SWITCH_RUN * ROUND),
            Work::Streams(_) => (1.0, 500 * MILLISECOND, 128),
            Work::Rotation => (6.0, 0, ROTATION_PLACES * ROTATION_ROUNDS),
            Work::Behind => (0.5, 300 * MILLISECOND, ROUND * (BEHIND_WRITES + 1)),
        };
        // A deep queue serves the easy requests first: the beginning is not counted.
        Phase { work: self, weight, least_ns, requests: requests + 2 * self.depth() as u64 }
    }

    /// Whether a throttle shows in it: the deepest reads, small and large. A rest precedes them.
    pub fn follows_rest(self) -> bool {
        matches!(self, Work::Random(Read, BLOCK, 32) | Work::Random(Read, MIB, 8))
    }
}

/// The whole plan; without writes for a device that must not be written.
pub fn plan(read_only: bool) -> Vec<Phase> {
    let mut works = Vec::new();
    for (bytes, depth) in RANDOM_READS {
        let work = Work::Random(Read, bytes, depth);
        if work.follows_rest() {
            works.push(Work::Rest);
        }
        works.push(work);
    }
    works.extend(POSITIONS_PERCENT.map(|position| Work::Sequential(Read, position)));
    works.extend([Work::Again, Work::Switches]);
    works.extend([Work::Streams(1), Work::Streams(2)].repeat(3));
    works.push(Work::Rotation);
    works.extend(RANDOM_WRITES.map(|(bytes, depth)| Work::Random(Write, bytes, depth)));
    works.extend(POSITIONS_PERCENT.map(|position| Work::Sequential(Write, position)));
    works.extend([Work::Rest, Work::Again, Work::Behind]);
    works.into_iter().filter(|work| !(read_only && work.writes())).map(Work::phase).collect()
}
