//! Two caches in a row that do not have the same blocks (`docs/design/tiers.md`), from both ends.
//!
//! ```text
//!   upper: a volume on another server                    lower: a volume whose client's session demotes
//!   evicted ─► Evicted{number, frame} ─► Upstream ═════► DEMOTE ─► fresh, absent? ─► evicted last
//!                                            read ◄═════ reply, then dropped
//!                                                        written back ─► evicted first
//! ```
//!
//! **Versions.** Each change and each demotion of the session has a number in its cookie. A change has that of its
//! transfer, and a demotion that of the last transfer before the eviction. Before it is evicted, each change of a block
//! has been answered. So a demotion is fresh unless the server has received a change of its block with a higher number,
//! in whatever order the connections deliver them. The server remembers the highest number for each group of blocks,
//! for as long as the session lasts. Earlier sessions do not matter: their connections have ended, and a client demotes
//! only what it has read or written in the present one. Once somebody else changes the volume, the session demotes no
//! more.

use super::{Inbound, Request, Volumes};
use crate::cache::Evicted;
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, TenantId, VolumeId};
use crate::nbd::{Header, ORDER_SHIFT, Session};
use crate::stats::DemotionStats;
use crate::units::BLOCK;
use crate::volume::writes;

/// Blocks of a group: as many as a demotion has.
const GROUP_BLOCKS: u64 = 16;
/// Groups whose changes are told apart: 8 KiB of memory. Others share them, and a few demotions more are dropped.
const GROUPS: u64 = 1024;
/// Units of work of a block that is demoted: it is looked up, and enters the order.
const BLOCK_UNITS: u32 = 2;

/// The session of a volume that demotes, if there is one.
#[derive(Default, Debug)]
pub(crate) struct Lower {
    epoch: Option<u64>,
    /// Somebody else has changed the volume since the session began.
    is_foreign: bool,
    /// The highest number of a change, for each group of blocks.
    changed: Vec<u64>,
    /// Blocks that were sent since the last event: they are dropped.
    sent: Vec<(u64, u64)>,
}

impl Lower {
    fn group(number: u64) -> usize {
        (number / GROUP_BLOCKS % GROUPS) as usize
    }

    /// Whether this session demotes.
    fn is_of(&self, session: Session) -> bool {
        self.epoch.is_some() && session.demotes == self.epoch && !self.is_foreign
    }

    /// A change of this number has arrived.
    fn note(&mut self, version: u64, start: u64, end: u64) {
        let (first, last) = (start / BLOCK / GROUP_BLOCKS, (end - 1) / BLOCK / GROUP_BLOCKS);
        for group in first..=last.min(first + GROUPS - 1) {
            let changed = &mut self.changed[(group % GROUPS) as usize];
            *changed = (*changed).max(version);
        }
    }

    fn is_fresh(&self, version: u64, number: u64) -> bool {
        self.changed[Lower::group(number)] <= version || planted!(DemotionNotCompared)
    }
}

/// The upper cache.
impl Volumes {
    /// Takes frames for a tenant, all or none. What is evicted for that goes to the servers.
    pub(crate) fn take_frames(&mut self, tenant: TenantId, count: u32, into: &mut Vec<FrameId>) -> bool {
        let taken = self.cache.take_frames(tenant, count, into);
        self.pass_evicted();
        taken
    }

    /// Passes on what was evicted, before anything else is submitted to a server: a demotion has the number of the
    /// transfer before it.
    pub(crate) fn pass_evicted(&mut self) {
        let mut evicted = std::mem::take(&mut self.cache.evicted);
        for Evicted { volume, number, frame } in evicted.drain(..) {
            if !self.route.demote(volume, number, frame) {
                self.cache.demotion_done(volume, frame);
            }
        }
        self.cache.evicted = evicted;
    }

    /// A session of a volume has begun, or has ended: what is evicted goes there, or nowhere.
    pub(super) fn set_demoting(&mut self, volume: VolumeId, demotes: bool) {
        let size = self.table[volume].spec.size;
        self.cache.set_demoting(volume, demotes.then_some(size));
    }

    /// The frame of an evicted block is free.
    pub(super) fn demotion_done(&mut self, volume: VolumeId, frame: FrameId) {
        self.cache.demotion_done(volume, frame);
        if self.table[volume].is_closing() {
            self.poke(volume);
        }
    }

    /// Whether a volume that is being closed has evicted blocks on their way. Its session is of no use any more.
    pub(super) fn waits_for_demotions(&mut self, volume: VolumeId) -> bool {
        self.cache.set_demoting(volume, None);
        let waits = self.cache.volume(volume).demoted > 0;
        if waits {
            let now = self.now;
            self.route.each_upstream(volume, |upstream| upstream.give_up(now));
        }
        waits
    }
}

/// The lower cache.
impl Volumes {
    pub(crate) fn demotion_stats(&self, volume: VolumeId) -> DemotionStats {
        let (cached, counters) = (self.cache.volume(volume), &self.table[volume].counters);
        DemotionStats {
            is_lower: cached.is_lower,
            taken_blocks: counters.demotions_taken,
            dropped: counters.demotions_dropped,
            used_blocks: cached.demoted_used,
            unsent_blocks: cached.undemoted,
        }
    }

    /// A client has attached. If its session demotes, it is the session of the volume from now on.
    pub(super) fn lower_attached(&mut self, conn: ConnId) {
        let (volume, session) = (self.clients[conn].volume, self.clients[conn].session);
        let epoch = session.demotes.filter(|_| !session.read_only);
        if epoch.is_none() || self.table[volume].lower.epoch == epoch {
            return;
        }
        let others = self.clients.values().filter(|client| client.volume == volume && client.session.demotes != epoch);
        let is_foreign = others.map(|client| client.changing).sum::<u32>() > 0;
        let changed = vec![0; GROUPS as usize];
        self.table[volume].lower = Lower { epoch, is_foreign, changed, sent: Vec::with_capacity(64) };
        self.cache.volume_mut(volume).is_lower = !is_foreign;
    }

    /// A client is gone: with its last connection, the session is over.
    pub(super) fn lower_gone(&mut self, volume: VolumeId, session: Session) {
        let epoch = session.demotes;
        let is_over = epoch.is_some()
            && self.table[volume].lower.epoch == epoch
            && !self.clients.values().any(|client| client.volume == volume && client.session.demotes == epoch);
        if is_over {
            self.table[volume].lower = Lower::default();
            self.cache.volume_mut(volume).is_lower = false;
        }
    }

    /// A request has arrived. If it changes blocks, demotions of them may be outdated.
    pub(super) fn note_change(&mut self, conn: ConnId, header: &Header) {
        let (volume, session) = (self.clients[conn].volume, self.clients[conn].session);
        let lower = &self.table[volume].lower;
        if !writes(header.kind) || lower.epoch.is_none() || header.len == 0 {
            return;
        }
        if session.demotes != lower.epoch {
            return self.take_no_more(volume);
        }
        let end = header.offset.saturating_add(header.len).min(self.table[volume].spec.size);
        if header.offset < end {
            self.table[volume].lower.note(header.cookie >> ORDER_SHIFT, header.offset, end);
        }
    }

    /// The content of the volume changes, and the session does not know: it demotes no more.
    pub(super) fn take_no_more(&mut self, volume: VolumeId) {
        self.table[volume].lower.is_foreign = true;
        self.cache.volume_mut(volume).is_lower = false;
    }

    /// A read was answered: what its client has now is dropped after this event.
    pub(super) fn note_sent(&mut self, conn: ConnId, volume: VolumeId, start: u64, end: u64) {
        let (first, past) = (start.div_ceil(BLOCK), end / BLOCK);
        let lower = &mut self.table[volume].lower;
        if first < past && lower.is_of(self.clients[conn].session) {
            lower.sent.push((first, past));
            self.poke(volume);
        }
    }

    /// Drops what was sent.
    pub(super) fn drop_sent(&mut self, volume: VolumeId) {
        let mut sent = std::mem::take(&mut self.table[volume].lower.sent);
        for (first, past) in sent.drain(..) {
            self.work.step((past - first) as u32);
            (first..past).for_each(|number| self.cache.drop_sent(volume, number));
        }
        self.table[volume].lower.sent = sent;
    }

    /// A demotion arrives. It waits for nothing: without frames for it, its payload is discarded.
    pub(super) fn demote_arrived(&mut self, request: u32) {
        let Request { conn, volume, start, end, cookie, .. } = self.requests[request];
        // A gateway whose lease may have ended keeps out of it.
        if !self.table[volume].lower.is_of(self.clients[conn].session) || self.table[volume].is_leased {
            self.volume_mut(volume).counters.demotions_dropped.refused += (end - start) / BLOCK;
            return self.refuse(request, Errno::NotSupported, end - start);
        }
        let lower = &self.table[volume].lower;
        let is_fresh = (start / BLOCK..end / BLOCK).any(|number| lower.is_fresh(cookie >> ORDER_SHIFT, number));
        let (blocks, tenant) = (((end - start) / BLOCK) as u32, self.tenant_of(volume));
        let waiting = &self.waiting[tenant];
        let is_wanted = is_fresh && waiting.reads.is_empty() && waiting.writes.is_empty();
        let piece = self.open_piece(request, start, end);
        let mut frames = std::mem::take(&mut self.pieces[piece].frames);
        let taken =
            is_wanted && self.cache.admits_demoted(tenant, blocks) && self.take_frames(tenant, blocks, &mut frames);
        self.pieces[piece].frames = frames;
        let state = &mut self.requests[request];
        (state.next, state.active) = (end, state.active + 1);
        if !taken {
            self.pieces.give(piece);
            let dropped = &mut self.volume_mut(volume).counters.demotions_dropped;
            let why = if is_fresh { &mut dropped.no_room } else { &mut dropped.outdated };
            *why += u64::from(blocks);
            self.client(conn).inbound = Inbound::Discard { request, left: end - start };
            return;
        }
        self.cache.partition_mut(tenant).takes_payload(blocks);
        self.volume_mut(volume).receiving += blocks;
        self.pieces[piece].receiving_since = self.now;
        self.client(conn).inbound = Inbound::Payload { piece, received: 0 };
    }

    /// The payload of a demotion is complete.
    pub(super) fn demoted(&mut self, piece: u32) {
        let request = self.pieces[piece].request;
        let Request { conn, volume, cookie, start, .. } = self.requests[request];
        let mut frames = std::mem::take(&mut self.pieces[piece].frames);
        let (blocks, tenant) = (frames.len() as u64, self.tenant_of(volume));
        let (mut taken, mut dropped) = (0, self.table[volume].counters.demotions_dropped);
        for (number, frame) in (start / BLOCK..).zip(frames.drain(..)) {
            let state = &self.table[volume];
            // Changes that have arrived with the payload count, and so do clients that have come.
            let is_fresh = state.lower.is_fresh(cookie >> ORDER_SHIFT, number) || planted!(DemotionComparedEarly);
            let why = if !state.lower.is_of(self.clients[conn].session) {
                &mut dropped.refused
            } else if !is_fresh {
                &mut dropped.overtaken
            } else if state.holes.contains(number * BLOCK, (number + 1) * BLOCK) {
                &mut dropped.hole
            } else {
                let is_taken = self.cache.take_demoted(volume, number, frame);
                (taken, dropped.present) = (taken + u64::from(is_taken), dropped.present + u64::from(!is_taken));
                continue;
            };
            *why += 1;
            self.cache.release(frame);
        }
        self.charge(tenant, BLOCK_UNITS * blocks as u32);
        let counters = &mut self.volume_mut(volume).counters;
        counters.demotions_taken += taken;
        counters.demotions_dropped = dropped;
        self.pieces[piece].frames = frames;
        self.pieces.give(piece);
        self.part_done(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::EvictionPolicy;
    use crate::ids::TenantId;
    use crate::nbd::Form;
    use crate::nbd::wire::{command, command_flag as flag};
    use crate::nbd::{Header, Kind};
    use crate::spec::TenantSpec;
    use crate::stats::DroppedBlocks;
    use crate::volume::Receive;
    use crate::volume::rig::{Rig, VOLUME, VOLUME_BYTES};

    /// The two connections of the gateway's session, and a client without a session.
    const LINKS: [ConnId; 2] = [ConnId(10), ConnId(11)];
    const OTHER: ConnId = ConnId(0);

    fn rig() -> Rig {
        let mut rig = Rig::new();
        for link in LINKS {
            let session = Session { form: Form::Extended, demotes: Some(5), ..Session::default() };
            assert!(rig.event(|volumes| volumes.attach(link, VOLUME, session)));
        }
        rig
    }

    impl Rig {
        /// The header of a demotion of so many blocks.
        fn begin_demotion(&mut self, link: ConnId, version: u64, number: u64, blocks: u64) {
            let (offset, len) = (number * BLOCK, blocks * BLOCK);
            let header = Header { kind: Kind::Demote, flags: 0, cookie: version << 16, offset, len, payload: len };
            let now = self.now;
            self.event(|volumes| volumes.begin(link, now, &header, None));
        }

        /// A demotion of blocks full of `byte`. Returns its answer.
        fn demote(&mut self, link: ConnId, version: u64, number: u64, blocks: u64, byte: u8) -> u32 {
            self.begin_demotion(link, version, number, blocks);
            self.end_demotion(link, version, byte)
        }

        fn end_demotion(&mut self, link: ConnId, version: u64, byte: u8) -> u32 {
            self.write_on(link, byte);
            if let Receive::Discard(bytes) = self.receive(link) {
                self.event(|volumes| volumes.discarded(link, bytes));
            }
            assert_eq!(self.receive(link), Receive::Header);
            self.answer(version << 16).expect("a demotion is answered at once")
        }

        /// The gateway reads a block; returns how many device requests that takes.
        fn fetch(&mut self, number: u64) -> usize {
            self.ask_as(LINKS[0], 7, command::READ, 0, number * BLOCK, BLOCK);
            let requests = self.device.len();
            self.complete_all();
            assert_eq!(self.answer(7), Some(0));
            requests
        }

        /// The gateway writes a block in a transfer of this number, and flushes.
        fn put(&mut self, link: ConnId, version: u64, number: u64, byte: u8) {
            self.write_as(link, version << 16 | 1, 0, number * BLOCK, BLOCK, byte);
            self.ask_as(link, version << 16 | 2, command::FLUSH, 0, 0, 0);
            self.complete_all();
            assert_eq!(self.answer(version << 16 | 2), Some(0));
        }

        fn has(&self, number: u64) -> bool {
            self.volumes.cache.lookup(VOLUME, number).is_some()
        }

        fn demotions(&self) -> DemotionStats {
            self.volumes.demotion_stats(VOLUME)
        }
    }

    #[test]
    fn what_was_sent_is_dropped_and_what_is_demoted_is_read_from_the_cache() {
        let mut rig = rig();
        assert_eq!((rig.fetch(3), rig.has(3)), (1, false));
        assert_eq!((rig.demote(LINKS[1], 1, 3, 4, 9), rig.has(6)), (0, true));
        assert_eq!((rig.fetch(3), rig.has(3), rig.has(4)), (0, false, true));
        assert_eq!(rig.fetch(3), 1);
        let DemotionStats { is_lower, taken_blocks, dropped, used_blocks, .. } = rig.demotions();
        assert_eq!((is_lower, taken_blocks, dropped.total(), used_blocks), (true, 4, 0, 1));
        // Nothing of it is a request of a client.
        let counters = &rig.volumes.volume(VOLUME).counters;
        assert_eq!((counters.hit_blocks, counters.miss_blocks), (1, 2));
        assert_eq!((counters.write.requests, counters.other.requests), (0, 0));
    }

    #[test]
    fn a_demotion_is_dropped_if_a_later_change_of_its_block_has_arrived_on_any_connection() {
        let mut rig = rig();
        rig.put(LINKS[1], 5, 3, 8);
        rig.fetch(3);
        assert!(!rig.has(3));
        assert_eq!((rig.demote(LINKS[0], 4, 3, 1, 1), rig.has(3)), (0, false));
        assert_eq!((rig.demote(LINKS[0], 5, 3, 1, 8), rig.has(3)), (0, true));
        // The same if the change comes between its header and the end of its payload.
        rig.fetch(3);
        rig.begin_demotion(LINKS[0], 6, 3, 1);
        rig.put(LINKS[1], 7, 3, 9);
        rig.fetch_on(LINKS[1], 3);
        assert_eq!((rig.end_demotion(LINKS[0], 6, 8), rig.has(3)), (0, false));
        let DemotionStats { taken_blocks, dropped, .. } = rig.demotions();
        assert_eq!((taken_blocks, dropped), (1, DroppedBlocks { outdated: 1, overtaken: 1, ..Default::default() }));
    }

    impl Rig {
        fn fetch_on(&mut self, link: ConnId, number: u64) {
            self.ask_as(link, 6, command::READ, 0, number * BLOCK, BLOCK);
            self.complete_all();
        }
    }

    #[test]
    fn a_change_of_many_blocks_counts_for_all_of_them() {
        let mut rig = rig();
        rig.ask_as(LINKS[0], 9 << 16, command::WRITE_ZEROES, 0, 0, VOLUME_BYTES as u64);
        rig.complete_all();
        let last = VOLUME_BYTES as u64 / BLOCK - 1;
        for number in [0, 700, last] {
            assert_eq!((rig.demote(LINKS[1], 8, number, 1, 1), rig.has(number)), (0, false));
        }
        // Not only because there is a hole.
        assert_eq!(rig.demotions().dropped, DroppedBlocks { outdated: 3, ..Default::default() });
    }

    #[test]
    fn what_was_read_from_a_hole_is_not_taken() {
        let mut rig = rig();
        rig.ask_as(LINKS[0], 9 << 16, command::WRITE_ZEROES, 0, 0, VOLUME_BYTES as u64);
        rig.complete_all();
        // The gateway does not know of the hole, as after a restart, and has read it since.
        assert_eq!((rig.demote(LINKS[1], 10, 3, 1, 0), rig.has(3)), (0, false));
        assert_eq!(rig.demotions().dropped, DroppedBlocks { hole: 1, ..Default::default() });
    }

    #[test]
    fn beside_what_the_cache_has_a_demotion_counts_for_the_order_only() {
        let mut rig = rig();
        rig.write_as(LINKS[0], 5 << 16, 0, 3 * BLOCK, BLOCK, 8);
        assert_eq!((rig.demote(LINKS[1], 5, 3, 1, 8), rig.demotions().taken_blocks), (0, 0));
        rig.complete_all();
        rig.ask_as(LINKS[0], 6 << 16, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        assert_eq!((rig.demote(LINKS[1], 5, 3, 1, 8), rig.demotions().taken_blocks), (0, 1));
        assert_eq!(rig.medium[3 * BLOCK as usize], 8);
    }

    #[test]
    fn what_is_dirty_or_unflushed_stays_when_it_was_sent() {
        let mut rig = rig();
        rig.write_as(LINKS[0], 5 << 16, 0, 3 * BLOCK, BLOCK, 8);
        rig.fetch(3);
        assert!(rig.has(3));
        rig.put(LINKS[0], 6, 3, 9);
        rig.fetch(3);
        assert!(!rig.has(3));
        assert_eq!(rig.medium[3 * BLOCK as usize], 9);
    }

    #[test]
    fn when_somebody_else_changes_the_volume_the_session_demotes_no_more() {
        let mut rig = rig();
        rig.fetch(3);
        rig.begin_demotion(LINKS[0], 1, 3, 1);
        rig.write_as(OTHER, 1, 0, 100 * BLOCK, BLOCK, 2);
        assert_eq!((rig.end_demotion(LINKS[0], 1, 1), rig.has(3)), (0, false), "it had begun before");
        assert_eq!(rig.demote(LINKS[0], 2, 3, 1, 1), Errno::NotSupported as u32);
        assert_eq!((rig.fetch(3), rig.has(3)), (1, true), "as without demotion");
        assert!(!rig.demotions().is_lower);
        // The next session begins anew, unless a change of somebody else is on its way.
        LINKS.into_iter().for_each(|link| rig.close(link));
        rig.ask_as(OTHER, 2, command::WRITE, 0, 101 * BLOCK, BLOCK);
        let session = Session { form: Form::Extended, demotes: Some(6), ..Session::default() };
        rig.event(|volumes| volumes.attach(LINKS[0], VOLUME, session));
        assert!(!rig.demotions().is_lower);
        rig.close(LINKS[0]);
        rig.write_on(OTHER, 2);
        rig.complete_all();
        rig.event(|volumes| volumes.attach(LINKS[0], VOLUME, Session { demotes: Some(7), ..session }));
        assert_eq!((rig.demote(LINKS[0], 1, 200, 1, 1), rig.has(200), rig.demotions().is_lower), (0, true, true));
    }

    #[test]
    fn demoted_blocks_are_evicted_last_and_what_the_client_has_first() {
        for eviction in EvictionPolicy::ALL {
            let mut rig = rig();
            rig.set_tenant(TenantId(0), TenantSpec { eviction, ..TenantSpec::default() });
            rig.demote(LINKS[0], 1, 1000, 16, 1);
            rig.put(LINKS[0], 2, 0, 2);
            rig.put(LINKS[0], 3, 1, 2);
            rig.demote(LINKS[0], 4, 1100, 16, 1);
            let cached = |rig: &Rig| [0, 1, 1000, 1100].map(|number| rig.has(number));
            rig.event(|volumes| (0..2).for_each(|_| assert!(volumes.cache.evict(TenantId(0)))));
            assert_eq!(cached(&rig), [false, false, true, true], "{eviction:?}");
            rig.event(|volumes| (0..16).for_each(|_| assert!(volumes.cache.evict(TenantId(0)))));
            assert_eq!(cached(&rig), [false, false, false, true], "{eviction:?}");
        }
    }

    #[test]
    fn a_demotion_that_finds_no_room_is_dropped_at_once() {
        let mut rig = rig();
        rig.set_smallest(TenantId(0));
        let target = u64::from(rig.volumes.cache.partition(TenantId(0)).target);
        for at in 0..target {
            if rig.receive(OTHER) == Receive::Header {
                rig.ask_as(OTHER, at, command::WRITE, 0, at * BLOCK, BLOCK);
            }
        }
        rig.volumes.table[VOLUME].lower.is_foreign = false;
        rig.volumes.cache.partition_mut(TenantId(0)).receiving = target as u32 / 2;
        assert_eq!((rig.demote(LINKS[0], 1, 700, 16, 1), rig.has(700)), (0, false));
        assert_eq!(rig.demotions().dropped, DroppedBlocks { no_room: 16, ..Default::default() });
        rig.volumes.cache.partition_mut(TenantId(0)).receiving = 1;
    }

    /// A session of a volume that takes what is evicted; then the numbers of evicted blocks that it would be sent.
    fn evicted(rig: &mut Rig, evictions: usize) -> Vec<u64> {
        rig.event(|volumes| {
            (0..evictions).for_each(|_| assert!(volumes.cache.evict(TenantId(0))));
            let evicted: Vec<Evicted> = volumes.cache.evicted.drain(..).collect();
            evicted.iter().for_each(|of| volumes.cache.demotion_done(VOLUME, of.frame));
            evicted.iter().map(|of| of.number).collect()
        })
    }

    #[test]
    fn only_what_was_read_or_written_as_a_whole_in_the_session_is_demoted() {
        let mut rig = Rig::new();
        let begin = |rig: &mut Rig| rig.event(|volumes| volumes.set_demoting(VOLUME, true));
        // So far apart that nothing is read ahead or written together.
        let at = |number: u64| number * 100 * BLOCK;
        begin(&mut rig);
        rig.content(at(9));
        rig.content(at(8));
        assert_eq!(evicted(&mut rig, 2), [900, 800]);
        rig.content(at(2));
        rig.content(at(3));
        // Another session: others may have changed what was read in the first one.
        rig.event(|volumes| {
            volumes.set_demoting(VOLUME, false);
            volumes.device_flush_failed(VOLUME);
        });
        begin(&mut rig);
        rig.write(1, 0, at(2), 512, 7);
        rig.write(2, 0, at(4), BLOCK, 7);
        rig.write(3, flag::FUA, at(5), BLOCK, 7);
        rig.write(4, flag::FUA, at(6), 512, 7);
        rig.ask(5, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        rig.ask(6, command::READ, 0, at(6), BLOCK);
        rig.content(at(7));
        let mut sent = evicted(&mut rig, 6);
        sent.sort_unstable();
        assert_eq!(sent, [400, 500, 700]);
    }

    #[test]
    fn a_part_of_the_partition_may_be_on_its_way() {
        let mut rig = Rig::new();
        rig.set_smallest(TenantId(0));
        rig.event(|volumes| volumes.set_demoting(VOLUME, true));
        (0..100).for_each(|at| _ = rig.content(at * 37 % 100 * 16 * BLOCK));
        let limit = rig.volumes.cache.partition(TenantId(0)).target / 16;
        let sent = evicted(&mut rig, 100).len() as u32;
        assert_eq!((sent, rig.demotions().unsent_blocks), (limit, u64::from(100 - limit)));
        assert_eq!(rig.volumes.cache.partition(TenantId(0)).demoting, 0);
    }

    #[cfg(feature = "planted-bugs")]
    #[test]
    fn planted_bugs_are_found() {
        use crate::planted::{Bug, is_found_by};
        assert!(is_found_by(
            Bug::DemotionNotCompared,
            a_demotion_is_dropped_if_a_later_change_of_its_block_has_arrived_on_any_connection,
        ));
        assert!(is_found_by(Bug::DemotionNotCompared, a_change_of_many_blocks_counts_for_all_of_them));
        assert!(is_found_by(
            Bug::DemotionComparedEarly,
            a_demotion_is_dropped_if_a_later_change_of_its_block_has_arrived_on_any_connection,
        ));
        assert!(is_found_by(Bug::SentDirtDropped, what_is_dirty_or_unflushed_stays_when_it_was_sent));
        let whole = only_what_was_read_or_written_as_a_whole_in_the_session_is_demoted;
        assert!(is_found_by(Bug::EarlierSessionDemoted, whole));
    }
}
