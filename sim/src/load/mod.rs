//! Load: the requests of clients over time, from a trace or a description. The same code drives the engine in virtual
//! time and a live server.
//!
//! ```text
//!   records of a trace ─┐            next(now) ─► Request     the driver sends it
//!   Generator ──────────┴► Source ─► Workload ◄── completed(now, id)
//!                                    poll_timeout() ─► when next() may have more
//! ```
//!
//! A [`Workload`] is a set of lanes. A lane is a [`Source`] of records and a [`Pace`]: *open*, each record at its own
//! time regardless of earlier requests, or *closed*, a fixed number of requests outstanding, with a think time after
//! each.
//!
//! Not to be confused with [`crate::workload`], which makes the adversarial requests of the correctness swarm.

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

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Reads its range.
    Read,
    /// Writes its range.
    Write,
    /// Gives up its range (discard, unmap).
    Trim,
    /// Makes all acknowledged writes durable. Has no range.
    Flush,
}

/// One request of a trace or of a synthetic load. Ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Record {
    /// Its time, in nanoseconds since the trace's own origin.
    pub time_ns: Nanos,
    /// The operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub bytes: u64,
    /// The device in the trace, or the stream of the description: a number from 0.
    pub stream: u32,
}

impl Record {
    /// Past its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// A source of records.
pub trait Source: Send {
    /// The next record; `None` is the end. `elapsed_ns` is the time since the load's beginning, for sources whose
    /// records depend on it.
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record>;
}

/// Records that have their own times.
impl<I: Iterator<Item = Record> + Send> Source for I {
    fn next(&mut self, _: Nanos) -> Option<Record> {
        Iterator::next(self)
    }
}
