//! Flushes: everything acknowledged before is on the medium, the device's cache flushed, before they are answered.
//!
//! ```text
//!   arrives ─► waits until the blocks dirtied before it are written ─► device flush, shared by all that wait ─► answer
//! ```
//!
//! A failed device flush leaves nothing to rely on that any volume of the device wrote since its last good flush: what
//! is still cached is dirty again; if something was evicted, data is lost, and every flush of that volume fails until
//! an operator accepts that (`clear`). `disk/durability.rs` says which writes that concerns.

use std::collections::VecDeque;

use crate::control::{Report, WriteCache};
use crate::disk::durability::DISTRUST_MAX;
use crate::disk::{Op, Purpose, VolumeId};
use crate::nbd::{ANSWER_UNITS, Errno};
use crate::server::Server;

/// Units of work of a look at a block that may be given up: 0.4 us if it is.
const CLEAR_UNITS: u32 = 4;

/// Who waits for a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlushFor {
    /// A request.
    Request(u32),
    /// The volume's closing, the server's drain, or a change of its write cache.
    Control,
    /// Nobody: it covers what a process before left on the device.
    Opening,
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
    in_device: bool,
    /// How often in a row a device flush succeeded and was distrusted.
    distrusted: u8,
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

    /// Whether a flush waits for `epoch`.
    pub(crate) fn covers(&self, epoch: u32) -> bool {
        self.wanted_epoch().is_some_and(|wanted| wanted.wrapping_sub(epoch) as i32 >= 0)
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
        let is_request = matches!(who, FlushFor::Request(_));
        let is_unsafe = is_request && self.volume(volume).spec.write_cache == WriteCache::Unsafe;
        if is_unsafe || self.volume(volume).flushes.lost {
            return self.flush_answered(volume, who, if is_unsafe { Ok(()) } else { Err(Errno::Io) });
        }
        let tenant = self.tenant_of(volume);
        self.curve(tenant).flushed(volume);
        self.flush_dirt(tenant, volume);
        let epoch = self.cache.volume_mut(volume).ledger.close();
        self.volume_mut(volume).flushes.waiting.push_back(Waiting { who, epoch, failed: None });
        self.hurry_writes(volume);
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
            // If it failed, what it was to cover is lost: `device_flush_failed` has seen to that.
            FlushFor::Opening => self.poke(volume),
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
        self.cache.durability.flush_begun(volume);
        let tenant = self.tenant_of(volume);
        let syncing = &self.volume(volume).flushes.syncing;
        let internal = !syncing.iter().any(|waiting| matches!(waiting.who, FlushFor::Request(_)));
        let io = self.device.prepare(Op::Flush, volume, tenant, Purpose::Sync { internal });
        self.submit(io, true);
    }

    /// The device flush of a volume is over. If a failure was reported since it began, its success proves nothing: the
    /// requests that wait for it wait for the rewriting and another flush.
    pub(crate) fn sync_done(&mut self, volume: VolumeId, mut result: Result<(), Errno>) {
        let trusted = self.cache.durability.trusts_flush(volume);
        let flushes = &mut self.volume_mut(volume).flushes;
        flushes.in_device = false;
        if result.is_ok() && !trusted && !planted!(InFlightFlushTrusted) {
            flushes.distrusted += 1;
            if flushes.distrusted <= DISTRUST_MAX {
                while let Some(waiting) = flushes.syncing.pop() {
                    flushes.waiting.push_front(waiting);
                }
                return self.cover_redirtied(volume);
            }
            result = Err(Errno::Io);
        }
        flushes.distrusted = 0;
        flushes.failing = result.is_err();
        if result.is_ok() {
            self.cache.durability.flushed(volume);
        }
        self.sync_answered(volume, result);
    }

    /// A device flush of a volume failed, or a durable write, which may be one: no volume of the device may rely on
    /// what it wrote since its own last good flush.
    pub(crate) fn device_flush_failed(&mut self, failed: VolumeId) {
        if planted!(FailedFlushForgotten) {
            return;
        }
        self.cache.durability.failed();
        for at in 0..self.volumes.len() {
            let volume = VolumeId(at as u32);
            let concerned = volume == failed || !planted!(FailedFlushConcernsOneVolume);
            if self.find_volume(volume).is_none() || !self.cache.durability.is_exposed(volume) || !concerned {
                continue;
            }
            let own = self.own_time(volume);
            let lost = self.cache.condemn(own, volume);
            self.volume_mut(volume).flushes.lost |= lost;
            self.cover_redirtied(volume);
            self.poke(volume);
        }
    }

    /// Flushes that arrived before something was made dirty again promise it: they wait for the rewriting too.
    pub(crate) fn cover_redirtied(&mut self, volume: VolumeId) {
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

    /// An operator accepts the loss: blocks that could not be written are forgotten, flushes succeed again. Flushes
    /// that wait now, and covered those blocks, still fail: they were asked for before.
    pub(crate) fn clear(&mut self, volume: VolumeId, token: u64) {
        let looks = self.cache.cached_blocks(volume) as u32;
        let state = self.volume_mut(volume);
        state.clearing.push(token);
        state.clear_looks = looks;
        let lost = std::mem::take(&mut state.flushes.lost);
        if lost || (self.cache.volume(volume).failing > 0 && !planted!(ClearForgetsEvictions)) {
            // What can be read instead is covered by no flush either, until the next one succeeds. Until a block is
            // given up its cached content hides that: a device flush that fails meanwhile is another loss.
            self.cache.durability.unsettled(volume);
        }
        self.volume_mut(volume).flushes.failing = false;
        self.clear_on(volume);
    }

    /// Looks for blocks to be given up, a step at a time. Answers `clear` when none of those is in flight any more:
    /// what can be read does not change after that.
    pub(crate) fn clear_on(&mut self, volume: VolumeId) {
        let state = self.volumes[volume.0 as usize].as_mut().expect("an open volume");
        if state.clear_looks > 0 {
            let most = state.clear_looks.min(self.work.left() / CLEAR_UNITS).max(1);
            let (flushes, why) = (&mut state.flushes, state.write_error);
            let looked = self.cache.give_up_failing(volume, most, |epoch| flushes.write_failed(epoch, why));
            // Fewer: there are no more.
            state.clear_looks -= if looked == most { looked } else { state.clear_looks };
            self.charge(self.tenant_of(volume), CLEAR_UNITS * looked);
            self.poke(volume);
        }
        if self.volume(volume).clear_looks == 0 && self.cache.volume(volume).given_up == 0 {
            while let Some(token) = self.volume_mut(volume).clearing.pop() {
                self.report(token, Report::Done);
            }
        }
    }
}

#[cfg(test)]
mod tests;
