//! Flushes: a flush is answered when everything acknowledged before it is written and the device's cache is flushed.
//!
//! ```text
//!   arrives ─► waits until the blocks dirtied before it are written ─► device flush, shared by all that wait ─► answer
//! ```
//!
//! After a failed device flush, no volume of the device relies on what it wrote since its own last good flush. Blocks
//! that are still cached become dirty again. If one of them was evicted, data is lost, and every flush of that volume
//! fails until an operator accepts the loss (`clear`). `disk/durability.rs` says which writes are affected.

use std::collections::VecDeque;

use crate::disk::durability::DISTRUST_MAX;
use crate::disk::{Op, Purpose};
use crate::errno::Errno;
use crate::ids::VolumeId;
use crate::spec::{Refusal, WriteCache};
use crate::volume::request::Prospect;
use crate::volume::{ANSWER_UNITS, Effect, Volumes};

/// Units of work of a look at a block that may be given up: 0.4 us if it is given up.
const CLEAR_UNITS: u32 = 4;

/// The reason for a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlushFor {
    /// A request.
    Request(u32),
    /// A control operation: closing the volume, draining the server, changing the write cache, making the volume
    /// read-only.
    Control,
    /// The opening of the volume: the flush covers what a predecessor process left on the device, and nothing waits for
    /// it.
    Opening,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    who: FlushFor,
    epoch: u32,
    /// The error of a block that it covers and that could not be written.
    failed: Option<Errno>,
}

/// The flushes of one volume.
#[derive(Default, Debug)]
pub(crate) struct Flushes {
    /// Flushes that wait for blocks to be written, in order of arrival.
    waiting: VecDeque<Waiting>,
    /// Flushes that wait for the device flush in progress.
    syncing: Vec<Waiting>,
    pub(super) in_device: bool,
    /// The device is to be flushed although nothing waits for that: its cache has too much that is kept in ours.
    wanted: bool,
    /// How many device flushes in a row succeeded but were distrusted.
    distrusted: u8,
    /// Acknowledged data is known to be lost.
    pub(crate) lost: bool,
    /// The last device flush failed.
    pub(crate) failing: bool,
    /// Flushes for control in progress.
    control: u32,
    /// The result of the flushes for control; `None` while one is in progress.
    pub(crate) for_control: Option<Result<(), Errno>>,
}

impl Flushes {
    /// A block of `epoch` could not be written: the flushes that cover it fail.
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

    /// Whether a flush waits for `epoch`.
    pub(crate) fn covers(&self, epoch: u32) -> bool {
        self.wanted_epoch().is_some_and(|wanted| wanted.wrapping_sub(epoch) as i32 >= 0)
    }

    /// No flush waits for anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.in_device
    }
}

impl Volumes {
    pub(crate) fn flush_arrived(&mut self, volume: VolumeId, who: FlushFor) {
        if who == FlushFor::Control {
            let flushes = &mut self.volume_mut(volume).flushes;
            flushes.for_control = None;
            flushes.control += 1;
        }
        let is_request = matches!(who, FlushFor::Request(_));
        let is_unsafe = is_request && self.volume(volume).spec.write_cache == WriteCache::Unsafe;
        if is_unsafe || self.volume(volume).flushes.lost {
            return self.flush_answered(volume, who, if is_unsafe { Ok(()) } else { Err(Errno::Io) });
        }
        let tenant = self.tenant_of(volume);
        self.curve_flushed(tenant, volume);
        let epoch = self.cache.volume_mut(volume).ledger.close();
        self.volume_mut(volume).flushes.waiting.push_back(Waiting { who, epoch, failed: None });
        self.promote_writes(volume);
        self.poke(volume);
    }

    fn flush_answered(&mut self, volume: VolumeId, who: FlushFor, result: Result<(), Errno>) {
        match who {
            FlushFor::Request(request) => {
                self.requests[request].error = result.err();
                if self.work.is_spent() {
                    return self.put_on_agenda(request);
                }
                self.work.step(ANSWER_UNITS);
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
            // If the disk failed the flush, the data that it should cover is lost, which `device_flush_failed` has
            // recorded. If the flush waited too long for stores, the next one covers that data.
            FlushFor::Opening => self.poke(volume),
        }
    }

    /// Begins a device flush for all flushes whose blocks are written, unless one is in progress.
    pub(crate) fn flush_on(&mut self, volume: VolumeId) {
        let ledger = &self.cache.volume(volume).ledger;
        let flushes = &mut self.table[volume].flushes;
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
        if flushes.syncing.is_empty() && !flushes.wanted {
            return;
        }
        flushes.wanted = false;
        let stops_here = self.route.is_elsewhere(volume) && planted!(FlushStopsAtGateway);
        if stops_here {
            self.cache.durability.flush_begun(volume);
            return self.sync_done(volume, Ok(()));
        }
        if planted!(FlushSkipsDevice) {
            return self.sync_answered(volume, Ok(()));
        }
        flushes.in_device = true;
        self.cache.durability.flush_begun(volume);
        let tenant = self.tenant_of(volume);
        let syncing = &self.volume(volume).flushes.syncing;
        let internal = !syncing.iter().any(|waiting| matches!(waiting.who, FlushFor::Request(_)));
        let io = self.route.prepare(Op::Flush, volume, tenant, Purpose::Sync { internal });
        self.submit(io, true);
    }

    /// Begins a device flush of a volume for the sake of its upstream, unless one is in progress.
    pub(crate) fn flush_upstream(&mut self, volume: VolumeId) {
        self.volume_mut(volume).flushes.wanted = true;
        self.poke(volume);
    }

    /// The device flush of a volume is over without a result: a session was lost, and what it was to cover is dirty
    /// again.
    pub(crate) fn sync_void(&mut self, volume: VolumeId) {
        let flushes = &mut self.volume_mut(volume).flushes;
        flushes.in_device = false;
        while let Some(waiting) = flushes.syncing.pop() {
            flushes.waiting.push_front(waiting);
        }
        self.cover_redirtied(volume);
        self.poke(volume);
    }

    /// The device flush of a volume has ended. If a failure was reported since it began, its success proves nothing:
    /// the requests that wait for it wait until the data is rewritten and flushed again.
    pub(crate) fn sync_done(&mut self, volume: VolumeId, mut result: Result<(), Errno>) {
        let trusted = self.cache.durability.trusts_flush(volume);
        let flushes = &mut self.volume_mut(volume).flushes;
        flushes.in_device = false;
        if result.is_ok() && !trusted && !planted!(InFlightFlushTrusted) {
            flushes.distrusted += 1;
            if flushes.distrusted <= DISTRUST_MAX {
                return self.sync_void(volume);
            }
            result = Err(Errno::Io);
        }
        flushes.distrusted = 0;
        flushes.failing = result.is_err();
        if result.is_ok() {
            self.cache.durability.flushed(volume);
            self.cache.let_go(volume);
        }
        self.sync_answered(volume, result);
    }

    /// A device flush of a volume failed, or a durable write, which may be such a failure: no volume of the device may
    /// rely on what it wrote since its own last good flush.
    pub(crate) fn device_flush_failed(&mut self, failed: VolumeId) {
        if planted!(FailedFlushForgotten) {
            return;
        }
        self.cache.durability.failed(failed);
        for volume in (0..self.table.past()).map(VolumeId) {
            if !self.table.contains(volume) {
                continue;
            }
            let durability = &self.cache.durability;
            let concerned = volume == failed || !planted!(FailedFlushConcernsOneVolume);
            if !durability.is_exposed(volume) || !durability.share_target(volume, failed) || !concerned {
                continue;
            }
            let own = self.virtual_time(volume);
            let lost = self.cache.condemn(own, volume);
            self.volume_mut(volume).flushes.lost |= lost;
            self.cover_redirtied(volume);
            self.poke(volume);
        }
    }

    /// Data became dirty again. Flushes that arrived before promise that it is on the medium, so they wait for the
    /// rewriting too.
    pub(crate) fn cover_redirtied(&mut self, volume: VolumeId) {
        let epoch = self.cache.volume_mut(volume).ledger.close();
        let flushes = &mut self.table[volume].flushes;
        for waiting in &mut flushes.waiting {
            waiting.epoch = epoch;
        }
    }

    pub(super) fn sync_answered(&mut self, volume: VolumeId, result: Result<(), Errno>) {
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

    /// An operator accepts the loss: blocks that could not be written are given up, and flushes succeed again. Flushes
    /// that wait now and cover those blocks still fail, because they arrived before.
    pub(crate) fn clear(&mut self, token: u64, volume: VolumeId) -> Result<(), Refusal> {
        self.known(volume)?;
        self.take_no_more(volume);
        let looks = self.cache.cached_blocks(volume) as u32;
        let state = self.volume_mut(volume);
        state.clearing.push(token);
        state.clear_looks = looks;
        let lost = std::mem::take(&mut state.flushes.lost);
        if lost || (self.cache.volume(volume).failing > 0 && !planted!(ClearForgetsEvictions)) {
            // Clients then read the device's content instead, which no flush covers until the next one succeeds. The
            // cached content of a block hides it until the block is given up. A device flush that fails meanwhile is
            // another loss.
            self.cache.durability.unsettled(volume);
        }
        self.volume_mut(volume).flushes.failing = false;
        self.clear_on(volume);
        Ok(())
    }

    /// Looks for blocks to be given up, in steps. Answers `clear` when none of them is in the device any more: what
    /// clients read does not change after that.
    pub(crate) fn clear_on(&mut self, volume: VolumeId) {
        let state = &mut self.table[volume];
        if state.clear_looks > 0 {
            let most = state.clear_looks.min(self.work.left() / CLEAR_UNITS).max(1);
            let (flushes, why) = (&mut state.flushes, state.write_error);
            let looked = self.cache.give_up_failing(volume, most, |epoch, waiting| {
                flushes.write_failed(epoch, why);
                self.waiters.expect(waiting, Prospect::Lost);
            });
            // Fewer than `most`: no failing block remains.
            state.clear_looks -= if looked == most { looked } else { state.clear_looks };
            self.charge(self.tenant_of(volume), CLEAR_UNITS * looked);
            self.poke(volume);
        }
        if self.volume(volume).clear_looks == 0 && self.cache.volume(volume).given_up == 0 {
            while let Some(token) = self.volume_mut(volume).clearing.pop() {
                self.effects.push(Effect::Done(token, Ok(())));
            }
        }
    }
}

#[cfg(test)]
mod tests;
