//! What a probe does, in which order, and how much of its time each part may take.
//!
//! The order is part of the method. Reads come before writes, which leave work behind in caches. The first phase finds
//! a throttle with all that was saved up. Deep queues come before shallow ones: where a throttle or a write buffer
//! makes the first fast, it is used up by the deepest, and the others see what lasts.

use super::Direction::{self, Read, Write};
use crate::units::{MILLISECOND, Nanos, SECOND};

/// The time that a probe takes at most when nobody says otherwise. A scratch file is written besides: together below
/// two minutes.
pub const BUDGET_NS: Nanos = 100 * SECOND;
/// The deepest queue of any phase.
pub const DEPTH_MAX: usize = 32;
/// The longest request of any phase, bytes.
pub const SIZE_MAX: u64 = MIB as u64;

/// Where sequential rates are measured, hundredths of the space. The last leaves room for a second's transfer.
pub const POSITIONS_PERCENT: [u8; 5] = [0, 25, 50, 75, 95];
/// A request of a stream: what this server's own device requests come to.
pub const STREAM_BYTES: u32 = 256 * KIB;
/// As many as keep a fast device busy with that.
pub const STREAM_DEPTH: u16 = 8;
/// A request of a stream that is interrupted: small, so that its own transfer does not hide what is lost.
pub const SWITCH_BYTES: u32 = 64 * KIB;
/// Requests at a place: the first one, one that may still find the drive settling, and one that is compared.
pub const SWITCH_RUN: u64 = 3;
/// More places than a drive's cache has segments (32 in those that are known), so that most are gone when they are read
/// again.
pub const ROTATION_PLACES: u64 = 48;
/// Pauses between those reads, at most: longer than any revolution.
pub const ROTATION_PAUSE_NS: Nanos = 20 * MILLISECOND;
/// Small writes that a read comes after, when it is measured what it waits for them: some for each part of a device
/// that works on many.
pub const BEHIND_WRITES: u64 = DEPTH_MAX as u64;
/// Those reads at least, or nothing is said: a device that manages fewer is one with heads, and turns are of no use
/// there.
pub const BEHIND_READS_LEAST: usize = 64;
/// How often each place is read.
const ROTATION_ROUNDS: u64 = 6;

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;
const BLOCK: u32 = 4 * KIB;

/// Random reads: bytes and depth. The first of each size is the deepest.
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
/// Random writes, the same. Large ones first: they use up what a limit in bytes has saved, and fill a write buffer.
pub const RANDOM_WRITES: [(u32, u16); 6] =
    [(MIB, 8), (64 * KIB, 32), (64 * KIB, 1), (BLOCK, 32), (BLOCK, 4), (BLOCK, 1)];
/// The one that gives service times.
pub const ALONE: (u32, u16) = (BLOCK, 1);

/// Cells of a walk.
const CELLS: u64 = 16;
/// Its steps: enough for an error of 2 % on a drive with heads.
const ROUND: u64 = CELLS * CELLS;
/// Of a short one.
const CELLS_FEW: u64 = 8;

/// What is done in a phase.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Work {
    /// Nothing, so that the device saves up what it can, and finishes what it has.
    Rest,
    /// Random requests.
    Random(Direction, u32, u16),
    /// Those of depth 1 again.
    Again,
    /// A stream from a position on, hundredths.
    Sequential(Direction, u8),
    /// Turns to new places.
    Switches,
    /// So many streams in turns.
    Streams(u64),
    /// The same places again and again.
    Rotation,
    /// A read as soon as some writes are acknowledged, again and again.
    Behind,
}

/// A phase.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// What is done.
    pub work: Work,
    /// The part of the time that it may take: seconds of [`BUDGET_NS`], about.
    pub weight: f64,
    /// How long it takes at least, nanoseconds: for fast devices, whose requests would be over in no time.
    pub least_ns: Nanos,
    /// Requests that it makes at least, if there is time.
    pub requests: u64,
}

impl Work {
    /// How many requests are in the device at a time.
    pub fn depth(self) -> usize {
        match self {
            Work::Random(_, _, depth) => depth.into(),
            Work::Sequential(..) | Work::Streams(_) => STREAM_DEPTH.into(),
            Work::Behind => BEHIND_WRITES as usize,
            Work::Rest | Work::Again | Work::Switches | Work::Rotation => 1,
        }
    }

    /// Bytes of a request.
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

    /// For people who wait.
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
            // Long enough to see what comes after a burst.
            Work::Random(Read, ..) if self.follows_rest() => (4.0, 2 * SECOND, 2 * ROUND),
            // Its distribution is wanted too.
            Work::Random(_, bytes, depth) if (bytes, depth) == ALONE => (8.0, SECOND, 2 * ROUND),
            // A deep queue takes what is near: its completions are less alike, but come faster.
            Work::Random(Read, bytes, depth) if depth > 2 && bytes < MIB => (4.0, SECOND, 2 * ROUND),
            Work::Random(Read, ..) => (4.0, SECOND, ROUND),
            // What a write buffer holds takes a while to be spread as it will stay.
            Work::Random(Write, bytes, depth) if depth > 2 && bytes < MIB => (4.0, 3 * SECOND / 2, 2 * ROUND),
            Work::Random(Write, ..) => (4.0, 3 * SECOND / 2, ROUND),
            Work::Switches => (6.0, 600 * MILLISECOND, SWITCH_RUN * ROUND),
            Work::Streams(_) => (1.0, 500 * MILLISECOND, 128),
            Work::Rotation => (6.0, 0, ROTATION_PLACES * ROTATION_ROUNDS),
            Work::Behind => (0.5, 300 * MILLISECOND, ROUND * (BEHIND_WRITES + 1)),
        };
        // A deep queue takes the easy ones first: the beginning is not counted.
        Phase { work: self, weight, least_ns, requests: requests + 2 * self.depth() as u64 }
    }

    /// Whether a throttle shows in it: the deepest reads, small and large.
    pub fn follows_rest(self) -> bool {
        matches!(self, Work::Random(Read, BLOCK, 32) | Work::Random(Read, MIB, 8))
    }
}

/// The whole plan; without writes for a device that is only read.
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
