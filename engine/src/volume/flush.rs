//! Flushes: everything acknowledged before is on the medium, the device's cache flushed, before they are answered.
//!
//! ```text
//!   arrives ─► waits until the blocks dirtied before it are written ─► device flush, shared by all that wait ─► answer
//! ```
//!
//! A failed device flush leaves nothing to rely on that was written since the last good one (the kernel reports such a
//! failure once and forgets it): what is still cached is dirty again; if something was evicted, data is lost, and every
//! flush fails until an operator accepts that (`clear`).

use std::collections::VecDeque;

use crate::control::WriteCache;
use crate::disk::{Op, Purpose, VolumeId};
use crate::nbd::Errno;
use crate::server::Server;

/// Who waits for a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlushFor {
    /// A request.
    Request(u32),
    /// The volume's closing, the server's drain, or a change of its write cache.
    Control,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    who: FlushFor,
    epoch: u32,
    /// Why a block that it covers could not be written.
    failed: Option<Errno>,
}

/// The flushes of one volume.
#[derive(Default, Debug)]
pub(crate) struct Flushes {
    /// They wait for blocks to be written, in order of arrival.
    waiting: VecDeque<Waiting>,
    /// They wait for the device flush that is under way.
    syncing: Vec<Waiting>,
    /// The generation that the device flush under way covers.
    generation: u32,
    in_device: bool,
    /// Acknowledged data is known to be lost.
    pub(crate) lost: bool,
    /// The last device flush failed.
    pub(crate) failing: bool,
    /// Flushes for control that are under way.
    control: u32,
    /// How the flushes for control ended; `None` while one is under way.
    pub(crate) for_control: Option<Result<(), Errno>>,
}

impl Flushes {
    /// A block of `epoch` could not be written: flushes that cover it fail.
    pub(crate) fn write_failed(&mut self, epoch: u32, why: Errno) {
        for waiting in &mut self.waiting {
            if waiting.epoch.wrapping_sub(epoch) as i32 >= 0 {
                waiting.failed = Some(why);
            }
        }
    }

    /// The newest epoch that a flush waits for.
    pub(crate) fn wanted_epoch(&self) -> Option<u32> {
        self.waiting.back().map(|waiting| waiting.epoch)
    }

    /// Nobody waits for anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.in_device
    }
}

impl Server {
    pub(crate) fn flush_arrived(&mut self, volume: VolumeId, who: FlushFor) {
        if who == FlushFor::Control {
            let flushes = &mut self.volume_mut(volume).flushes;
            flushes.for_control = None;
            flushes.control += 1;
        }
        let is_unsafe = self.volume(volume).spec.write_cache == WriteCache::Unsafe && who != FlushFor::Control;
        if is_unsafe || self.volume(volume).flushes.lost {
            return self.flush_answered(volume, who, if is_unsafe { Ok(()) } else { Err(Errno::Io) });
        }
        let epoch = self.cache.volume_mut(volume).ledger.close();
        self.volume_mut(volume).flushes.waiting.push_back(Waiting { who, epoch, failed: None });
        self.poke(volume);
    }

    fn flush_answered(&mut self, volume: VolumeId, who: FlushFor, result: Result<(), Errno>) {
        match who {
            FlushFor::Request(request) => {
                self.requests[request].error = result.err();
                self.finish(request);
            }
            FlushFor::Control => {
                let flushes = &mut self.volume_mut(volume).flushes;
                flushes.control -= 1;
                if flushes.control == 0 {
                    flushes.for_control = Some(result);
                }
                self.poke(volume);
            }
        }
    }

    /// Begins a device flush for all whose blocks are written, unless one is under way.
    pub(crate) fn flush_on(&mut self, volume: VolumeId) {
        let ledger = &self.cache.volume(volume).ledger;
        let flushes = &mut self.volumes[volume.0 as usize].as_mut().expect("an open volume").flushes;
        if flushes.in_device {
            return;
        }
        debug_assert!(flushes.syncing.is_empty());
        while let Some(front) = flushes.waiting.front() {
            let settled = ledger.settled(front.epoch) || planted!(FlushDoesNotWait);
            let delayed = planted!(FlushWaitsForLaterWrites) && !ledger.settled(ledger.current());
            if !settled || delayed {
                break;
            }
            let waiting = flushes.waiting.pop_front().expect("a waiting flush");
            flushes.syncing.push(waiting);
        }
        if flushes.syncing.is_empty() {
            return;
        }
        if planted!(FlushSkipsDevice) {
            return self.sync_answered(volume, Ok(()));
        }
        flushes.in_device = true;
        flushes.generation = self.cache.begin_sync(volume);
        let tenant = self.tenant_of(volume);
        let io = self.device.prepare(Op::Flush, volume, tenant, Purpose::Sync);
        self.submit(io);
    }

    /// The device flush of a volume is over.
    pub(crate) fn sync_done(&mut self, volume: VolumeId, result: Result<(), Errno>) {
        let now = self.now;
        let cached = self.cache.volume_mut(volume);
        let flushes = &mut self.volumes[volume.0 as usize].as_mut().expect("an open volume").flushes;
        flushes.in_device = false;
        flushes.failing = result.is_err();
        if result.is_ok() || planted!(FailedFlushForgotten) {
            cached.synced = flushes.generation;
        } else {
            flushes.lost |= cached.is_unsynced(cached.evicted);
            self.cache.redirty_unsynced(now, volume);
            self.cover_redirtied(volume);
        }
        self.sync_answered(volume, result);
    }

    /// Flushes that arrived before a device flush failed promise what it did not deliver: they wait for the rewriting too.
    fn cover_redirtied(&mut self, volume: VolumeId) {
        let epoch = self.cache.volume_mut(volume).ledger.close();
        let flushes = &mut self.volumes[volume.0 as usize].as_mut().expect("an open volume").flushes;
        for waiting in &mut flushes.waiting {
            waiting.epoch = epoch;
        }
    }

    fn sync_answered(&mut self, volume: VolumeId, result: Result<(), Errno>) {
        let mut syncing = std::mem::take(&mut self.volume_mut(volume).flushes.syncing);
        let lost = self.volume(volume).flushes.lost;
        for waiting in syncing.drain(..) {
            let result = match waiting.failed {
                Some(why) => Err(why),
                None if lost => Err(Errno::Io),
                None => result,
            };
            self.flush_answered(volume, waiting.who, result);
        }
        self.volume_mut(volume).flushes.syncing = syncing;
        self.poke(volume);
    }

    /// An operator accepts the loss: blocks that could not be written are forgotten, flushes succeed again.
    pub(crate) fn clear(&mut self, volume: VolumeId) {
        self.cache.drop_failing(volume);
        let cached = self.cache.volume_mut(volume);
        cached.evicted = cached.synced;
        let flushes = &mut self.volume_mut(volume).flushes;
        flushes.lost = false;
        flushes.failing = false;
        self.poke(volume);
    }
}
