//! Load: what clients ask of a disk or a server, as requests in time. From a trace or from a description; the same
//! machine drives the engine in virtual time and a live server.
//!
//! ```text
//!   a trace's records ─┐            next(now) ─► Request     the driver makes it
//!   Generator ─────────┴► Source ─► Workload ◄── completed(now, id)
//!                                   poll_timeout() ─► when next() may have more
//! ```
//!
//! A [`Workload`] is a set of lanes. A lane is a [`Source`] of records and a [`Pace`]: *open*, each record at its time
//! whatever becomes of those before it, or *closed*, so many at once, with a pause for thought after each.
//!
//! Not to be confused with [`crate::workload`], which makes the nasty requests of the correctness swarm.

pub mod generate;
pub mod spec;
pub mod unroll;
pub mod workload;
pub mod zipf;

use engine::units::Nanos;

pub use generate::Generator;
pub use spec::{Bursts, Every, Pace, Place, Shift, Spec, SpecError, Stream};
pub use unroll::unroll;
pub use workload::{Lane, Request, Workload};

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Reads its range.
    Read,
    /// Writes its range.
    Write,
    /// Gives its range up (discard, unmap).
    Trim,
    /// Makes everything acknowledged durable. Has no range.
    Flush,
}

/// One request of a trace, or of a load that was made up. Ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Record {
    /// When, in nanoseconds since an origin of the trace's own.
    pub time_ns: Nanos,
    /// What.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub bytes: u64,
    /// Which device of the trace, or which stream of the description: a number from 0.
    pub stream: u32,
}

impl Record {
    /// Past its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Where records come from.
pub trait Source: Send {
    /// The next record; `None` is the end. `elapsed_ns` is the time since the load's beginning, for those whose records
    /// depend on it.
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record>;
}

/// Records that know their times themselves.
impl<I: Iterator<Item = Record> + Send> Source for I {
    fn next(&mut self, _: Nanos) -> Option<Record> {
        Iterator::next(self)
    }
}
