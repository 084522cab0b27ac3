//! The volumes of a disk: their life cycle, order, pieces, flush, holes, read-ahead, and their cache.
//!
//! ```text
//!   server ──► open_volume, set_tenant, …                    effects: Done, Drained ──► server
//!   front ──► begin, filled, discarded, sent, abandon        effects: Data, Answer, Recheck, Gone ──► front
//!                        │                                            ▲
//!               read, write, range, flush ──► cache ──► route ──► disk │
//!                        └──────────── agenda, work in steps ─────────┘
//! ```
//!
//! [`Volumes`] is the machine of this layer. It calls the layers below, and writes what it wants of those above as
//! [`Effect`]s, in order.

mod behind;
mod bucket;
mod ceilings;
mod client;
mod curves;
mod demote;
mod effect;
mod flush;
mod holes;
mod initialise;
mod lease;
mod lifecycle;
mod order;
mod pace;
mod partitions;
mod passed;
mod prefetch;
mod range;
mod read;
mod reclaim;
mod request;
#[cfg(test)]
pub(crate) mod rig;
mod stream;
mod timer;
mod upstream;
mod work;
mod write;
mod writeback;
mod zeroes;

pub(crate) use crate::nbd::Kind;
pub(crate) use behind::Behind;
pub(crate) use ceilings::Throttle;
#[cfg(test)]
pub(crate) use client::REQUESTS_PER_TENANT;
pub use client::Receive;
pub(crate) use client::{ANSWER_UNITS, Client, Inbound, writes};
pub(crate) use curves::Measured;
use demote::Lower;
pub(crate) use effect::{Answer, Data, Effect, Effects};
pub(crate) use flush::{FlushFor, Flushes};
pub(crate) use holes::Holes;
pub(crate) use lifecycle::Change;
pub(crate) use order::{Order, Who};
pub(crate) use pace::Pace;
pub(crate) use range::RangeOp;
use reclaim::Copying;
pub(crate) use request::{Piece, Request, Waiter};
pub(crate) use stream::{Halted, Streams};
pub(crate) use timer::{Timer, Timers};
pub use work::{EVENT_UNITS_MAX, STEP_UNITS, UNIT_NS};
pub(crate) use work::{Todo, Work};

use std::collections::VecDeque;

use crate::cache::Cache;
use crate::config::Config;
use crate::curve::Curve;
use crate::disk::{Device, Io};
use crate::errno::Errno;
use crate::ids::{BlockId, ConnId, FrameId, IoId, TenantId, Ticket, VolumeId};
use crate::route::Route;
use crate::slab::{Slab, Table};
use crate::spec::{VolumeSpec, WriteCache};
use crate::stats::{DroppedBlocks, Fills, Hits, OpStats};
use crate::units::{Nanos, SECOND};

/// Pieces of one tenant that wait for frames. Reads and writes are separate, so that neither delays the other.
#[derive(Default, Debug)]
pub(crate) struct Waiting {
    pub(crate) reads: VecDeque<u32>,
    /// Volumes with pieces that wait to be written ([`Volume::writes`]), each once, round-robin: a volume whose clients
    /// send no payload does not delay the tenant's other volumes.
    pub(crate) writes: VecDeque<VolumeId>,
    /// CACHE requests beyond the number that a tenant may have in progress.
    pub(crate) caches: VecDeque<u32>,
    /// The tenant is in [`Volumes::tenants_waiting`].
    listed: bool,
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
    pub(crate) hits: Hits,
    pub(crate) fills: Fills,
    pub(crate) thread_delay_ns: Nanos,
    pub(crate) ceiling_delay_ns: Nanos,
    pub(crate) cache_delay_ns: Nanos,
    pub(crate) queue_delay_ns: Nanos,
    pub(crate) slice_delay_ns: Nanos,
    pub(crate) disk_delay_ns: Nanos,
    pub(crate) device_read_bytes: u64,
    pub(crate) device_write_bytes: u64,
    pub(crate) device_errors: u64,
    pub(crate) stalled_reader_disconnects: u64,
    pub(crate) stalled_writer_disconnects: u64,
    /// Blocks that its client has evicted: taken, and not taken.
    pub(crate) demotions_taken: u64,
    pub(crate) demotions_dropped: DroppedBlocks,
}

impl Counters {
    /// The counters of this kind of request.
    pub(crate) fn of(&mut self, kind: Kind) -> &mut OpStats {
        match kind {
            Kind::Read => &mut self.read,
            Kind::Write => &mut self.write,
            Kind::Flush => &mut self.flush,
            Kind::Trim | Kind::Cache | Kind::Zeroes | Kind::Status | Kind::Demote => &mut self.other,
        }
    }
}

/// Time in which a client may receive nothing while others wait for the frames of its replies. Longer than a network
/// needs to recover, shorter than the 30 s after which clients time out a request.
pub(crate) const STALL_TIMEOUT_NS: Nanos = 10 * SECOND;

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
    pub(crate) unsent: u32,
    /// Write-backs in flight.
    pub(crate) writebacks: u32,
    /// All write-backs that are still queued were promoted.
    pub(crate) hurried: bool,
    /// The rate at which dirty data is written.
    pub(crate) pace: Pace,
    /// Sequential writes, if the volume is on another server.
    pub(crate) behind: Behind,
    /// Copies of off-loaded content on their way home, their frames, and when the next one may begin.
    pub(crate) reclaims: u32,
    pub(crate) reclaim_frames: u32,
    /// Of these, those that are being read from stores.
    pub(crate) reclaim_reading: u32,
    /// Copies that were read, and those that are being written.
    pub(crate) reclaim_waiting: VecDeque<u32>,
    pub(crate) reclaim_writing: u32,
    pub(crate) reclaim_at: Nanos,
    /// All device requests that are queued or in the device.
    pub(crate) device_requests: u32,
    /// Failed write-backs are not retried in the background before this time.
    pub(crate) retry_at: Nanos,
    /// The error of the last failed write-back.
    pub(crate) write_error: Errno,
    /// Never-written ranges remain to be filled with zeros when the disk is idle.
    pub(crate) initialising: bool,
    /// A command is changing it.
    pub(crate) change: Option<Change>,
    /// Tokens of `clear` commands, which are answered when no block that was given up is in the device any more.
    pub(crate) clearing: Vec<u64>,
    /// Blocks that `clear` has still to look at.
    pub(crate) clear_looks: u32,
    /// Its last flush, before the server stops, has begun.
    pub(crate) draining: bool,
    /// It is on another server, and no session has been opened yet: another client may have the export. Writes are
    /// answered only when they are durable.
    pub(crate) is_unreached: bool,
    /// It is on other servers that grant leases; whether another client was admitted there; and requests that wait
    /// because a lease has ended (`lease.rs`).
    pub(crate) is_leased: bool,
    pub(crate) is_fenced: bool,
    pub(crate) lapsed: VecDeque<u32>,
    /// The session that demotes.
    lower: Lower,
    /// The volume is on the agenda.
    pub(crate) poked: bool,
    /// When it is put on the agenda by [`Timer::Volumes`].
    pub(crate) due_at: Option<Nanos>,
}

impl Volume {
    pub(crate) fn new(mut spec: VolumeSpec) -> Volume {
        let holes = Holes::new(&std::mem::take(&mut spec.holes));
        Volume {
            initialising: spec.initialise && !holes.is_empty(),
            is_unreached: spec.upstream.is_some(),
            is_leased: spec.upstream.as_ref().is_some_and(|upstream| upstream.is_leased),
            is_fenced: false,
            lapsed: VecDeque::new(),
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
            unsent: 0,
            writebacks: 0,
            hurried: false,
            pace: Pace::default(),
            behind: Behind::default(),
            reclaims: 0,
            reclaim_frames: 0,
            reclaim_reading: 0,
            reclaim_waiting: VecDeque::new(),
            reclaim_writing: 0,
            reclaim_at: 0,
            device_requests: 0,
            retry_at: 0,
            write_error: Errno::Io,
            change: None,
            clearing: Vec::new(),
            clear_looks: 0,
            draining: false,
            lower: Lower::default(),
            poked: false,
            due_at: None,
        }
    }

    pub(crate) fn id(&self) -> VolumeId {
        self.spec.volume
    }

    /// Whether a write is answered only when it is on the medium.
    pub(crate) fn writes_are_durable(&self, fua: bool) -> bool {
        match self.spec.write_cache {
            _ if self.is_unreached => true,
            WriteCache::Volatile => fua,
            WriteCache::None => true,
            WriteCache::Unsafe => false,
        }
    }
}

/// The volumes of a disk, their clients and their cache.
#[derive(Debug)]
pub(crate) struct Volumes {
    pub(crate) config: Config,
    pub(crate) now: Nanos,
    /// Largest read-ahead window of a stream at present, bytes; 0 for none.
    pub(crate) prefetch_bytes: u64,
    pub(crate) table: Table<VolumeId, Volume>,
    pub(crate) clients: Table<ConnId, Client>,
    pub(crate) cache: Cache,
    pub(crate) route: Route,
    pub(crate) requests: Slab<Request>,
    pub(crate) pieces: Slab<Piece>,
    pub(crate) waiters: Slab<Waiter>,
    copies: Slab<Copying>,
    pub(crate) waiting: Table<TenantId, Waiting>,
    /// The tenants with pieces that wait for frames, and some with pieces that did.
    pub(crate) tenants_waiting: Vec<TenantId>,
    /// Of the tenants with ceilings, and of some that had some.
    pub(crate) throttles: Table<TenantId, Throttle>,
    pub(crate) curves: Table<TenantId, Curve>,
    pub(crate) measured: Table<TenantId, Measured>,
    pub(crate) agenda: VecDeque<Todo>,
    pub(crate) work: Work,
    pub(crate) effects: Effects,
    pub(crate) timers: Timers,
    pub(crate) last_request_at: Nanos,
    /// The token of a drain. New requests are refused: background work ends.
    pub(crate) draining: Option<u64>,
    /// The drain is complete.
    pub(crate) drained: bool,
    /// The token of the command that ends off-loading.
    ending: Option<u64>,
    /// Scratch memory of write-back.
    parts: Vec<(u32, u8)>,
    frames_taken: Vec<FrameId>,
    /// Scratch memory for dropped prefetches.
    dropped: Vec<IoId>,
    /// Scratch memory for completed writes: the block, whether it was written (then whether it must be again), and
    /// whether it was given up.
    ended: Vec<(BlockId, bool, bool)>,
    /// Scratch memory for completed range operations.
    freed: Vec<Ticket>,
}

impl Volumes {
    pub(crate) fn new(config: Config) -> Volumes {
        let frames = Config::frames_of(config.budget_bytes);
        let frames_max = Config::frames_of(config.budget_bytes_max);
        Volumes {
            now: 0,
            prefetch_bytes: config.prefetch_bytes_max.unwrap_or(config.policy().prefetch_bytes()),
            table: Table::default(),
            clients: Table::default(),
            cache: Cache::new(frames, frames_max, config.seed),
            route: Route::new(Device::new(config.policy())),
            requests: Slab::new(),
            pieces: Slab::new(),
            waiters: Slab::new(),
            copies: Slab::new(),
            waiting: Table::default(),
            tenants_waiting: Vec::new(),
            throttles: Table::default(),
            curves: Table::default(),
            measured: Table::default(),
            agenda: VecDeque::new(),
            work: Work::default(),
            effects: Effects::default(),
            timers: Timers::default(),
            last_request_at: 0,
            draining: None,
            drained: false,
            ending: None,
            parts: Vec::new(),
            frames_taken: Vec::new(),
            dropped: Vec::new(),
            ended: Vec::new(),
            freed: Vec::new(),
            config,
        }
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> &Volume {
        &self.table[volume]
    }

    pub(crate) fn volume_mut(&mut self, volume: VolumeId) -> &mut Volume {
        &mut self.table[volume]
    }

    pub(crate) fn tenant_of(&self, volume: VolumeId) -> TenantId {
        self.cache.volume(volume).tenant
    }

    /// A device request that was submitted and is not complete.
    pub(crate) fn io(&self, io: IoId) -> &Io {
        &self.route.slot(io).io
    }

    /// Puts a volume on the agenda.
    pub(crate) fn poke(&mut self, volume: VolumeId) {
        if !std::mem::replace(&mut self.table[volume].poked, true) {
            self.agenda.push_back(Todo::Volume(volume));
        }
    }

    /// Puts a volume on the agenda at `at`, or earlier if that was asked before.
    pub(crate) fn poke_at(&mut self, volume: VolumeId, at: Nanos) {
        let due_at = &mut self.table[volume].due_at;
        *due_at = Some(due_at.map_or(at, |before| before.min(at)));
        self.timers.wake_at(Timer::Volumes, at);
    }

    /// Puts the volumes on the agenda that are due.
    pub(crate) fn poke_due(&mut self) {
        for volume in (0..self.table.past()).map(VolumeId) {
            let Some(state) = self.table.get_mut(volume) else { continue };
            if state.due_at.take_if(|at| *at <= self.now).is_some() {
                self.poke(volume);
            } else if let Some(at) = state.due_at {
                self.timers.wake_at(Timer::Volumes, at);
            }
        }
    }

    /// When this layer and those below are to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        [self.timers.next(), self.route.poll_timeout()].into_iter().flatten().min()
    }

    /// Submits the device requests whose turn it is.
    pub(crate) fn dispatch(&mut self) {
        let Volumes { route, cache, effects, now, .. } = self;
        route.dispatch(*now, cache.durability.disk_failures(), &mut |io| effects.push(Effect::Submit(io)));
    }
}
