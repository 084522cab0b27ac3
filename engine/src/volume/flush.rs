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

use crate::control::{Report, WriteCache};
use crate::disk::{Op, Purpose, VolumeId};
use crate::nbd::{ANSWER_UNITS, Errno};
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
        let is_unsafe = self.volume(volume).spec.write_cache == WriteCache::Unsafe && who != FlushFor::Control;
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
        self.submit(io, true);
    }

    /// The device flush of a volume is over.
    pub(crate) fn sync_done(&mut self, volume: VolumeId, result: Result<(), Errno>) {
        let own = self.own_time(volume);
        let cached = self.cache.volume_mut(volume);
        let flushes = &mut self.volumes[volume.0 as usize].as_mut().expect("an open volume").flushes;
        flushes.in_device = false;
        flushes.failing = result.is_err();
        if result.is_ok() || planted!(FailedFlushForgotten) {
            cached.synced = flushes.generation;
        } else {
            flushes.lost |= cached.is_unsynced(cached.evicted);
            self.cache.redirty_unsynced(own, volume);
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

    /// An operator accepts the loss: blocks that could not be written are forgotten, flushes succeed again. Flushes that
    /// wait now, and covered those blocks, still fail: they were asked for before.
    pub(crate) fn clear(&mut self, volume: VolumeId, token: u64) {
        let state = self.volumes[volume.0 as usize].as_mut().expect("an open volume");
        let (flushes, why) = (&mut state.flushes, state.write_error);
        self.cache.give_up_failing(volume, |epoch| flushes.write_failed(epoch, why));
        let cached = self.cache.volume_mut(volume);
        cached.evicted = cached.synced;
        flushes.lost = false;
        flushes.failing = false;
        state.clearing.push(token);
        self.poke(volume);
    }

    /// Answers `clear` when no block that was given up is in flight any more: what can be read does not change after that.
    pub(crate) fn clear_on(&mut self, volume: VolumeId) {
        if self.cache.volume(volume).given_up == 0 {
            while let Some(token) = self.volume_mut(volume).clearing.pop() {
                self.report(token, Report::Done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Command;
    use crate::nbd::wire::{command, command_flag as flag};
    use crate::rig::{Rig, VOLUME};
    use crate::units::{BLOCK, SECOND};

    const BAD: Result<(), Errno> = Err(Errno::Io);
    const FAILED: Option<u32> = Some(Errno::Io as u32);

    /// A block could not be written, and is being written again.
    fn retrying() -> Rig {
        let mut rig = Rig::new();
        rig.write(1, 0, 0, BLOCK, 7);
        rig.ask(2, command::FLUSH, 0, 0, 0);
        rig.complete(0, BAD);
        // The flush fails when the next attempt is over too, or rather what it began with it.
        while rig.answer(2).is_none() {
            rig.complete(0, if rig.ops() == [Op::Flush] { Ok(()) } else { BAD });
        }
        assert_eq!(rig.answer(2), FAILED);
        rig.wait(6 * SECOND);
        assert_eq!(rig.ops(), [Op::Write { durable: false }]);
        rig
    }

    fn is_failing(rig: &Rig) -> bool {
        rig.server.cache.volume(VOLUME).failing > 0
    }

    #[test]
    fn clear_gives_up_what_is_being_tried_again() {
        let mut rig = retrying();
        rig.command(9, Command::ClearVolume(VOLUME));
        assert!(!is_failing(&rig) && !rig.is_done(9), "the attempt decides what the block is");
        rig.write(3, 0, BLOCK, BLOCK, 8);
        rig.ask(4, command::FLUSH, 0, 0, 0);
        rig.complete(0, BAD);
        assert!(rig.is_done(9) && !is_failing(&rig));
        rig.complete_all();
        assert_eq!(rig.answer(4), Some(0), "it covers nothing that is not on the medium");
        assert_eq!([rig.content(0), rig.content(BLOCK)], [1, 8]);
    }

    #[test]
    fn what_was_given_up_and_is_written_after_all_stays() {
        let mut rig = retrying();
        rig.command(9, Command::ClearVolume(VOLUME));
        rig.complete(0, Ok(()));
        assert!(rig.is_done(9));
        assert_eq!(rig.content(0), 7);
    }

    #[test]
    fn what_is_written_after_clear_is_not_given_up() {
        let mut rig = retrying();
        rig.command(9, Command::ClearVolume(VOLUME));
        rig.write(3, 0, 0, 512, 9);
        rig.complete(0, BAD);
        assert!(rig.is_done(9));
        rig.ask(4, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        assert_eq!(rig.answer(4), Some(0));
        assert!(rig.medium[..512].iter().all(|&byte| byte == 9), "the later write");
        assert!(rig.medium[512..8192].iter().all(|&byte| byte == 1), "what was given up");
        // A failure of the later write is a new one.
        rig.write(5, 0, 0, 512, 10);
        rig.ask(6, command::FLUSH, 0, 0, 0);
        rig.complete(0, BAD);
        assert!(is_failing(&rig));
    }

    #[test]
    fn clear_does_not_make_a_durable_write_succeed() {
        let mut rig = retrying();
        rig.complete(0, BAD);
        rig.write(3, flag::FUA, 512, 512, 9);
        assert_eq!(rig.ops(), [Op::Write { durable: true }], "with what could not be written before");
        rig.command(9, Command::ClearVolume(VOLUME));
        rig.complete(0, BAD);
        assert_eq!(rig.answer(3), FAILED);
        assert!(rig.is_done(9));
    }

    #[test]
    fn what_durable_writes_overwrote_meanwhile_is_written_together() {
        let mut rig = Rig::new();
        for write in 0..2 {
            rig.write(write, flag::FUA, 0, 8 * BLOCK, 7 + write as u8);
        }
        assert_eq!(rig.ops(), [Op::Write { durable: true }]);
        rig.complete(0, Ok(()));
        assert_eq!((rig.device.len(), rig.io(0).len), (1, 8 * BLOCK), "one write, not one for each block");
        rig.complete_all();
        assert_eq!((rig.answer(0), rig.answer(1), rig.medium[0]), (Some(0), Some(0), 8));
    }

    #[test]
    fn a_flush_that_waits_while_its_blocks_are_given_up_fails() {
        let mut rig = retrying();
        rig.ask(3, command::FLUSH, 0, 0, 0);
        rig.command(9, Command::ClearVolume(VOLUME));
        rig.complete_all();
        assert_eq!(rig.answer(3), FAILED);
    }

    #[test]
    fn a_flush_goes_ahead_of_its_owners_reads() {
        let mut rig = Rig::with(1, |_| {});
        for block in [0, 10] {
            rig.write(block, 0, block * BLOCK, BLOCK, 7);
        }
        // One read is in the device, three wait; one block is being written already, behind them.
        for read in 0..4 {
            rig.ask(100 + read, command::READ, 0, (100 + 10 * read) * BLOCK, BLOCK);
        }
        let id = rig.server.cache.lookup(VOLUME, 0).unwrap();
        rig.server.write_out(id, false);
        rig.ask(1, command::FLUSH, 0, 0, 0);
        let mut order = Vec::new();
        while !rig.device.is_empty() {
            order.push((rig.ops()[0], rig.io(0).offset / BLOCK));
            rig.complete(0, Ok(()));
        }
        const WRITE: Op = Op::Write { durable: false };
        let reads = [110, 120, 130].map(|block| (Op::Read, block));
        assert_eq!(order[..4], [(Op::Read, 100), (WRITE, 0), (WRITE, 10), (Op::Flush, 0)]);
        assert_eq!(order[4..], reads);
        assert_eq!(rig.answer(1), Some(0));
    }

    #[test]
    fn a_durable_write_does_not_wait_behind_reads_for_an_ordinary_one() {
        let mut rig = Rig::with(1, |_| {});
        rig.write(1, 0, 0, BLOCK, 7);
        for read in 0..3 {
            rig.ask(100 + read, command::READ, 0, (100 + 10 * read) * BLOCK, BLOCK);
        }
        let id = rig.server.cache.lookup(VOLUME, 0).unwrap();
        rig.server.write_out(id, false);
        rig.write(2, flag::FUA, 0, BLOCK, 8);
        let mut ops = Vec::new();
        while rig.answer(2).is_none() {
            ops.extend(rig.ops());
            rig.complete(0, Ok(()));
        }
        assert_eq!(ops, [Op::Read, Op::Write { durable: false }, Op::Write { durable: true }]);
    }
}
