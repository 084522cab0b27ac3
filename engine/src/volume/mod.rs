//! A volume: its bounds, its holes, its flushes, and how requests become pieces that the cache and the disk work on.

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
pub(crate) use order::{Order, Ticket, Who};
pub(crate) use pace::Pace;
pub(crate) use range::RangeOp;
pub(crate) use request::{Piece, Request, Waiter};
pub(crate) use stream::{Halted, Streams};

use std::collections::VecDeque;

use crate::control::{OpStats, VolumeSpec, WriteCache};
use crate::disk::VolumeId;
use crate::nbd::{Errno, Kind};
use crate::units::Nanos;

/// How a volume is being closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    /// Whom to tell.
    pub(crate) token: u64,
    /// Drop dirt rather than flush it.
    pub(crate) discard: bool,
    /// The flush was begun.
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
    /// Those of this kind of request.
    pub(crate) fn of(&mut self, kind: Kind) -> &mut OpStats {
        match kind {
            Kind::Read => &mut self.read,
            Kind::Write => &mut self.write,
            Kind::Flush => &mut self.flush,
            Kind::Trim | Kind::Cache | Kind::Zeroes | Kind::Status => &mut self.other,
        }
    }
}

/// A volume becomes read-only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restricting {
    pub(crate) token: u64,
    /// Every client that could write has gone; what they wrote is being flushed.
    pub(crate) flushing: bool,
}

/// A volume being served.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) spec: VolumeSpec,
    pub(crate) holes: Holes,
    pub(crate) flushes: Flushes,
    /// Operations on ranges that are waiting or in the device, in order of arrival; at most [`RANGES_MAX`].
    pub(crate) ranges: Vec<RangeOp>,
    /// There are too many of them or of those that wait for them: its connections are not read.
    pub(crate) crowded: bool,
    /// They, and the pieces that wait for them.
    pub(crate) order: Order,
    /// What is read sequentially.
    pub(crate) streams: Streams,
    pub(crate) counters: Counters,
    pub(crate) connections: u32,
    /// Requests received and not answered.
    pub(crate) requests: u32,
    /// Pieces that wait for frames to be written.
    pub(crate) writes: VecDeque<u32>,
    /// Frames that wait for payload.
    pub(crate) receiving: u32,
    /// Frames of replies that are being read or wait to be sent.
    pub(crate) owed: u32,
    /// Write-backs in flight.
    pub(crate) writebacks: u32,
    /// All of them that wait for their turn at the device are urgent.
    pub(crate) hurried: bool,
    /// How fast dirt is written.
    pub(crate) pace: Pace,
    /// All device requests in flight or waiting.
    pub(crate) device_requests: u32,
    /// Failed write-backs are not tried again in the background before.
    pub(crate) retry_at: Nanos,
    /// Why the last one failed.
    pub(crate) write_error: Errno,
    /// Never-written ranges are still to be zero-written when the disk is idle.
    pub(crate) initialising: bool,
    pub(crate) closing: Option<Closing>,
    /// Its write cache is being changed: whom to tell, and what it was.
    pub(crate) changing: Option<(u64, WriteCache)>,
    /// It is becoming read-only: whom to tell.
    pub(crate) restricting: Option<Restricting>,
    /// Whom to tell when everything that was given up is out of the device.
    pub(crate) clearing: Vec<u64>,
    /// Blocks that it is still to look at.
    pub(crate) clear_looks: u32,
    /// Its last flush, before the server stops, was begun.
    pub(crate) draining: bool,
    /// Stands on the agenda.
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
