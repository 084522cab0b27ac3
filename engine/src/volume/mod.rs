//! A volume: its size, holes and flushes, and how its requests become pieces that the cache and the disk process.

mod flush;
mod holes;
mod order;
mod pace;
mod prefetch;
mod range;
mod read;
mod request;
mod stream;
mod write;
mod writeback;

pub(crate) use flush::{FlushFor, Flushes};
pub(crate) use holes::Holes;
pub(crate) use order::{Order, Who};
pub(crate) use pace::Pace;
pub(crate) use range::RangeOp;
pub use request::Kind;
pub(crate) use request::{Piece, Request, Waiter};
pub(crate) use stream::{Halted, Streams};

use std::collections::VecDeque;

use crate::errno::Errno;
use crate::ids::VolumeId;
use crate::spec::{VolumeSpec, WriteCache};
use crate::stats::OpStats;
use crate::units::Nanos;

/// A volume that is being closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    /// Token of the command, for its report.
    pub(crate) token: u64,
    /// Dirty data is dropped instead of flushed.
    pub(crate) discard: bool,
    /// The flush has begun.
    pub(crate) flushing: bool,
}

/// Counters of a volume, since it was opened.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    pub(crate) read: OpStats,
    pub(crate) write: OpStats,
    pub(crate) flush: OpStats,
    pub(crate) other: OpStats,
    pub(crate) hit_blocks: u64,
    pub(crate) prefetched_blocks: u64,
    pub(crate) miss_blocks: u64,
    pub(crate) thread_delay_ns: Nanos,
    pub(crate) cache_delay_ns: Nanos,
    pub(crate) queue_delay_ns: Nanos,
    pub(crate) slice_delay_ns: Nanos,
    pub(crate) disk_delay_ns: Nanos,
    pub(crate) device_read_bytes: u64,
    pub(crate) device_write_bytes: u64,
    pub(crate) device_errors: u64,
    pub(crate) deaf_disconnects: u64,
    pub(crate) stalled_disconnects: u64,
}

impl Counters {
    /// The counters of this kind of request.
    pub(crate) fn of(&mut self, kind: Kind) -> &mut OpStats {
        match kind {
            Kind::Read => &mut self.read,
            Kind::Write => &mut self.write,
            Kind::Flush => &mut self.flush,
            Kind::Trim | Kind::Cache | Kind::Zeroes | Kind::Status => &mut self.other,
        }
    }
}

/// A volume that is being made read-only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restricting {
    pub(crate) token: u64,
    /// All clients that could write have disconnected, and their writes are being flushed.
    pub(crate) flushing: bool,
}

/// A volume that is served.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) spec: VolumeSpec,
    pub(crate) holes: Holes,
    pub(crate) flushes: Flushes,
    /// Range operations that wait or are in the device, in order of arrival; at most [`RANGES_MAX`].
    pub(crate) ranges: Vec<RangeOp>,
    /// There are too many range operations, or places in the order: the connections of the volume are not read.
    pub(crate) crowded: bool,
    /// The places of range operations and of the pieces that wait for them.
    pub(crate) order: Order,
    /// Sequential streams of reads.
    pub(crate) streams: Streams,
    pub(crate) counters: Counters,
    pub(crate) connections: u32,
    /// Requests received and not yet answered.
    pub(crate) requests: u32,
    /// Pieces of writes that wait for frames.
    pub(crate) writes: VecDeque<u32>,
    /// Frames that wait for payload.
    pub(crate) receiving: u32,
    /// Frames of replies that are being read or wait to be sent.
    pub(crate) owed: u32,
    /// Write-backs in flight.
    pub(crate) writebacks: u32,
    /// All write-backs that are still queued were promoted.
    pub(crate) hurried: bool,
    /// The rate at which dirty data is written.
    pub(crate) pace: Pace,
    /// All device requests that are queued or in the device.
    pub(crate) device_requests: u32,
    /// Failed write-backs are not retried in the background before this time.
    pub(crate) retry_at: Nanos,
    /// The error of the last failed write-back.
    pub(crate) write_error: Errno,
    /// Never-written ranges remain to be filled with zeros when the disk is idle.
    pub(crate) initialising: bool,
    pub(crate) closing: Option<Closing>,
    /// Its write-cache mode is being changed: the token of the command, and the old mode.
    pub(crate) changing: Option<(u64, WriteCache)>,
    /// It is being made read-only.
    pub(crate) restricting: Option<Restricting>,
    /// Tokens of `clear` commands, which are answered when no block that was given up is in the device any more.
    pub(crate) clearing: Vec<u64>,
    /// Blocks that `clear` has still to look at.
    pub(crate) clear_looks: u32,
    /// Its last flush, before the server stops, has begun.
    pub(crate) draining: bool,
    /// The volume is on the agenda.
    pub(crate) poked: bool,
}

impl Volume {
    pub(crate) fn new(mut spec: VolumeSpec) -> Volume {
        let holes = Holes::new(&std::mem::take(&mut spec.holes));
        Volume {
            initialising: spec.initialise && !holes.is_empty(),
            spec,
            holes,
            flushes: Flushes::default(),
            ranges: Vec::new(),
            crowded: false,
            order: Order::default(),
            streams: Streams::default(),
            counters: Counters::default(),
            connections: 0,
            requests: 0,
            writes: VecDeque::new(),
            receiving: 0,
            owed: 0,
            writebacks: 0,
            hurried: false,
            pace: Pace::default(),
            device_requests: 0,
            retry_at: 0,
            write_error: Errno::Io,
            closing: None,
            changing: None,
            restricting: None,
            clearing: Vec::new(),
            clear_looks: 0,
            draining: false,
            poked: false,
        }
    }

    pub(crate) fn id(&self) -> VolumeId {
        self.spec.volume
    }

    /// Whether a write is answered only when it is on the medium.
    pub(crate) fn writes_are_durable(&self, fua: bool) -> bool {
        match self.spec.write_cache {
            WriteCache::Volatile => fua,
            WriteCache::None => true,
            WriteCache::Unsafe => false,
        }
    }
}
