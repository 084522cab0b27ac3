//! Volumes on other servers: what their upstreams want, and what they bring.
//!
//! ```text
//!   driver ─ Event::Upstream ─► upstream ─► Done ─► io_done
//!                                  │        Void, Failed ─► flush.rs
//!                                  └──────► Effect::Upstream, Effect::Zero ─► driver
//! ```
//!
//! A lost session is a failed device flush ([`crate::upstream`]). Blocks that it could lose stay in the cache
//! ([`Durability::is_kept`](crate::disk::durability::Durability::is_kept)), so the server is flushed when they are a
//! quarter of the partition. A volume that is striped over several servers has an upstream for each
//! (`route/stripe.rs`).
//!
//! Until the first session, writes are answered when they are durable, so that they wait for it: the server may refuse
//! this client, because it has admitted another one.

use super::{Effect, Volume, Volumes};
use crate::cluster::{Slot, Timetable};
use crate::disk::Purpose;
use crate::ids::{IoId, VolumeId};
use crate::offload::{Invalid, Known, Recovered, Settings, Setup, StoreId};
use crate::route::Done;
use crate::spec::Refusal;
use crate::units::BLOCK;
use crate::upstream::{Action, Event, Request};

impl Volumes {
    pub(crate) fn upstream_event(&mut self, leg: VolumeId, event: Event<'_>) {
        self.route.upstream_event(self.now, leg, event);
    }

    /// Carries out what the upstreams and the client of the stores want. Whether there was anything.
    pub(crate) fn heed_others(&mut self) -> bool {
        self.heed_upstreams() | self.heed_offload()
    }

    /// Carries out what the upstreams want. Whether there was anything.
    fn heed_upstreams(&mut self) -> bool {
        let mut any = false;
        while let Some((leg, action)) = self.route.poll_upstream(self.now) {
            any = true;
            let volume = self.route.volume_of(leg);
            match action {
                Action::Ask(request) => {
                    if matches!(request, Request::Online(_)) && self.route.reached(leg) {
                        self.volume_mut(volume).is_unreached = false;
                    }
                    match request {
                        Request::Online(opened) => {
                            self.set_demoting(volume, opened.demotes);
                            self.lease_granted(volume);
                        }
                        Request::Offline(_) => self.fence(volume),
                        _ => {}
                    }
                    self.effects.push(Effect::Upstream(leg, request));
                }
                Action::Zero(segment) => {
                    let (frame, start, len) = (segment.frame, segment.start, segment.len);
                    self.effects.push(Effect::Zero { frame, start, len });
                }
                Action::Done(io, result) => {
                    self.io_done(io, self.now, result);
                    self.relieve_upstream(volume);
                }
                // A session that took longer to begin than its lease lasts has none until the first answer.
                Action::Granted if planted!(RenewedNotNoticed) => {}
                Action::Granted => self.lease_granted(volume),
                Action::Freed(frame) => self.demotion_done(volume, frame),
                Action::Load(load) => self.route.load_told(self.now, volume, load),
                // A part of a flush has ended, and with the last one the flush, without a result.
                Action::Void(io) if self.route.part_is_void(io) => self.io_done(io, self.now, Ok(())),
                Action::Void(io) => self.void(io),
                Action::Failed if planted!(LostSessionForgotten) => self.set_demoting(volume, false),
                Action::Failed if planted!(LostLegForgotten) && leg != volume => {}
                Action::Failed => {
                    self.set_demoting(volume, false);
                    self.device_flush_failed(volume);
                    let failures = self.cache.durability.failures(volume);
                    self.route.session_lost(leg, failures);
                }
            }
        }
        any
    }

    /// Carries out what the client of the off-load stores wants. Whether there was anything.
    fn heed_offload(&mut self) -> bool {
        let mut any = false;
        if !self.route.is_offloading() {
            return any;
        }
        let now = self.now;
        loop {
            let durability = &self.cache.durability;
            match self.route.poll_offload(now, |volume| durability.failures(volume)) {
                Some(Done::Io(io, result)) => self.io_done(io, now, result),
                Some(Done::Sum(io)) => self.effects.push(Effect::Sum(io)),
                None => break,
            }
            any = true;
        }
        if let Some(token) = self.ending.take_if(|_| self.route.offload_is_over()) {
            self.effects.push(Effect::Done(token, Ok(())));
            any = true;
        }
        any
    }

    /// From now on a striped volume has this slot.
    pub(crate) fn set_slot(&mut self, volume: VolumeId, timetable: &Timetable, slot: Slot) -> Result<(), Refusal> {
        self.route.set_slot(volume, timetable, slot).then_some(()).ok_or(Refusal::UnknownVolume)
    }

    /// The driver has computed the checksum of [`Effect::Sum`].
    pub(crate) fn summed(&mut self, io: IoId, sum: u32) {
        self.route.summed(self.now, io, sum);
    }

    /// From now on writes may be off-loaded.
    pub(crate) fn start_offload(&mut self, setup: Setup) -> Result<(), Refusal> {
        if self.route.is_offloading() {
            return Err(Refusal::Offload);
        }
        let is_usable = |store| self.route.is_elsewhere(store) && !self.route.is_striped(store);
        if !setup.stores.iter().all(|&(store, _)| is_usable(store)) {
            return Err(Refusal::UnknownVolume);
        }
        self.route.start_offload(self.now, setup);
        Ok(())
    }

    pub(crate) fn set_offload(&mut self, settings: Settings) -> Result<(), Refusal> {
        self.route.set_offload(settings).then_some(()).ok_or(Refusal::Offload)
    }

    pub(crate) fn store_arrived(&mut self, store: StoreId, recovered: Recovered) -> Result<(), Refusal> {
        self.route.store_arrived(self.now, store, recovered).then_some(()).ok_or(Refusal::Offload)
    }

    pub(crate) fn retire_store(&mut self, store: StoreId) -> Result<(), Refusal> {
        self.route.retire_store(self.now, store).then_some(()).ok_or(Refusal::Offload)
    }

    pub(crate) fn lose_store(&mut self, store: StoreId) -> Result<(), Refusal> {
        let is_lost = self.route.lose_store(self.now, store).ok_or(Refusal::Offload)?;
        is_lost.then_some(()).ok_or(Refusal::InUse)
    }

    pub(crate) fn invalidate(&mut self, invalid: Invalid) -> Result<(), Refusal> {
        self.route.invalidate(self.now, invalid).then_some(()).ok_or(Refusal::Offload)
    }

    /// What the next process has to know to start without stores, unless something is on its way.
    pub(crate) fn map_stores(&mut self) -> Result<Option<Vec<Known>>, Refusal> {
        if self.route.is_offloading() { Ok(self.route.map_stores()) } else { Err(Refusal::Offload) }
    }

    /// Brings everything home; the command is answered then.
    pub(crate) fn end_offload(&mut self, token: u64) -> Result<(), Refusal> {
        if self.ending.is_some() || !self.route.end_offload() {
            return Err(Refusal::Offload);
        }
        self.ending = Some(token);
        let volumes: Vec<VolumeId> = self.table.values().map(Volume::id).collect();
        volumes.into_iter().for_each(|volume| self.poke(volume));
        Ok(())
    }

    /// Whether the target of a volume takes zeroing requests at present.
    pub(super) fn may_zero(&self, volume: VolumeId) -> bool {
        self.route.may_zero(volume)
    }

    /// A flush ended without a result.
    pub(super) fn void(&mut self, io: IoId) {
        let (volume, purpose) = (self.route.slot(io).io.volume, self.route.slot(io).purpose);
        debug_assert!(matches!(purpose, Purpose::Sync { .. }), "{purpose:?} is no flush");
        self.route.forget(io);
        self.volume_mut(volume).device_requests -= 1;
        if planted!(VoidFlushAnswered) {
            self.volume_mut(volume).flushes.in_device = false;
            return self.sync_answered(volume, Ok(()));
        }
        self.sync_void(volume);
    }

    /// Flushes the server if much of the partition waits for that.
    fn relieve_upstream(&mut self, volume: VolumeId) {
        let quarter = u64::from(self.cache.partition(self.tenant_of(volume)).target) * BLOCK / 4;
        if self.route.wants_flush(volume, quarter) {
            self.flush_upstream(volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Op;
    use crate::errno::Errno;
    use crate::ids::{ConnId, TenantId};
    use crate::nbd::wire::{command, command_flag as flag};
    use crate::spec::{StripeSpec, TenantSpec, Tiers, UpstreamSpec, VolumeSpec};
    use crate::units::SECOND;
    use crate::volume::rig::Rig;

    const STRIPED: VolumeId = VolumeId(1);
    const LEG: VolumeId = VolumeId(2);

    /// A volume that is striped over two servers, in units of a block, and its client.
    fn striped() -> (Rig, ConnId) {
        let (far, conn) = (TenantId(1), ConnId(2));
        let mut rig = Rig::new();
        rig.set_tenant(far, TenantSpec { is_remote: true, ..TenantSpec::default() });
        let upstream = UpstreamSpec::plain(1 << 20);
        let stripes = Some(StripeSpec { unit: BLOCK, others: vec![(LEG, upstream.clone())] });
        rig.open_volume(VolumeSpec { upstream: Some(upstream), stripes, ..VolumeSpec::plain(STRIPED, far, 2 << 20) });
        rig.attach(conn, STRIPED);
        (rig, conn)
    }

    #[test]
    fn a_durable_write_that_fails_on_one_leg_is_a_failed_flush_before_the_other_leg_has_answered() {
        let (mut rig, conn) = striped();
        rig.write_as(conn, 1, flag::FUA, 0, 2 * BLOCK, 7);
        let part = |rig: &Rig, leg| rig.volumes.route.upstream(leg).unwrap().pending().last().unwrap();
        let [first, second] = [STRIPED, LEG].map(|leg| part(&rig, leg));
        assert_eq!(rig.volumes.route.slot(first).io.op, Op::Write { durable: true });
        let failures = |rig: &Rig| rig.volumes.cache.durability.failures(STRIPED);
        rig.event(|volumes| volumes.io_done(second, 0, Err(Errno::Io)));
        assert_eq!((failures(&rig), rig.answer(1)), (1, None));
        rig.event(|volumes| volumes.io_done(first, 0, Ok(())));
        assert_eq!(rig.answer(1), Some(Errno::Io as u32));
    }

    /// The servers may lose what they have answered until they are flushed, so the cache keeps it until then.
    #[test]
    fn a_range_waits_for_a_flush_of_what_is_kept_in_it() {
        let (mut rig, conn) = striped();
        rig.event(|volumes| volumes.set_upstream(STRIPED, 1000 * SECOND, 1, Tiers::Lru)).unwrap();
        rig.volumes.volume_mut(STRIPED).is_unreached = false;
        let sent = |rig: &Rig, leg| rig.volumes.route.upstream(leg).unwrap().pending().count();
        // There is no server: the upstreams do not learn that their requests are done, so the last one is the new one.
        let answer = |rig: &mut Rig| {
            [STRIPED, LEG].map(|leg| {
                let io = rig.volumes.route.upstream(leg).unwrap().pending().last().unwrap();
                let op = rig.volumes.route.slot(io).io.op;
                rig.event(|volumes| volumes.io_done(io, 0, Ok(())));
                op
            })
        };
        rig.write_as(conn, 1, 0, 0, 2 * BLOCK, 7);
        (0..60).find(|_| {
            rig.wait(SECOND);
            sent(&rig, LEG) > 0
        });
        assert_eq!(answer(&mut rig), [Op::Write { durable: false }; 2]);
        rig.ask_as(conn, 2, command::WRITE_ZEROES, 0, 0, 1 << 20);
        assert_eq!((rig.volumes.cache.cached_blocks(STRIPED), rig.answer(2)), (2, None));
        assert_eq!(answer(&mut rig), [Op::Flush; 2]);
        assert_eq!(answer(&mut rig), [Op::Zero; 2]);
        assert_eq!((rig.volumes.cache.cached_blocks(STRIPED), rig.answer(2)), (0, Some(0)));
    }

    #[cfg(feature = "planted-bugs")]
    #[test]
    fn blocks_that_a_range_drops_too_early_are_found() {
        use crate::planted::{Bug, is_found_by};
        assert!(is_found_by(Bug::KeptSwept, a_range_waits_for_a_flush_of_what_is_kept_in_it));
    }

    #[test]
    fn what_a_striped_volume_loses_of_its_slots_is_measured() {
        let (mut rig, conn) = striped();
        let slot = Slot { tenant: TenantId(0), start_ns: SECOND / 10, length_ns: SECOND / 10, is_striped: true };
        let timetable = Timetable { version: 1, begins_ns: 0, round_ns: SECOND / 2, slots: Vec::new() };
        rig.event(|volumes| volumes.set_slot(STRIPED, &timetable, slot)).unwrap();
        // There is no server: the upstreams do not learn that their requests are done.
        rig.event(|volumes| volumes.set_upstream(STRIPED, 1000 * SECOND, 1, Tiers::Lru)).unwrap();
        let mut cookie = 0;
        for _ in 0..20 {
            rig.wait(SECOND / 10);
            // Ten requests with a part on each leg take 9 ms each; so the slot has room for one more.
            for _ in 0..10 {
                cookie += 1;
                rig.ask_as(conn, cookie, command::READ, 0, cookie * 89 % 250 * 2 * BLOCK, 2 * BLOCK);
                rig.wait(SECOND / 1000 * 9);
                for leg in [STRIPED, LEG] {
                    let part = rig.volumes.route.upstream(leg).unwrap().pending().last().unwrap();
                    rig.event(|volumes| volumes.io_done(part, 0, Ok(())));
                }
                rig.send(conn);
            }
            rig.wait(SECOND / 10 * 4 - SECOND / 1000 * 90);
        }
        let loss_ns = rig.volumes.route.slot_loss_ns(STRIPED).expect("it used many slots");
        assert!((9..=11).contains(&(loss_ns / (SECOND / 1000))), "{loss_ns}");
        let other = rig.event(|volumes| volumes.set_slot(LEG, &timetable, slot));
        assert_eq!(other, Err(Refusal::UnknownVolume));
    }

    #[test]
    fn the_numbers_of_the_legs_are_taken_while_the_volume_is_open() {
        let (mut rig, _) = striped();
        for number in [STRIPED, LEG] {
            let spec = VolumeSpec::plain(number, TenantId(0), 1 << 20);
            assert_eq!(rig.event(|volumes| volumes.open_volume(spec)), Err(Refusal::Taken));
        }
    }

    #[test]
    fn stripes_that_do_not_fit_are_refused() {
        let (mut rig, _) = striped();
        let (spec, free) = (rig.volumes.volume(STRIPED).spec.clone(), VolumeId(8));
        let refused = |rig: &mut Rig, change: &dyn Fn(&mut VolumeSpec, &mut StripeSpec)| {
            let mut stripes = spec.stripes.clone().unwrap();
            stripes.others[0].0 = VolumeId(9);
            let mut spec = VolumeSpec { volume: free, ..spec.clone() };
            change(&mut spec, &mut stripes);
            rig.event(|volumes| volumes.open_volume(VolumeSpec { stripes: Some(stripes), ..spec }))
        };
        type Change = dyn Fn(&mut VolumeSpec, &mut StripeSpec);
        let changes: [&Change; 6] = [
            &|_, stripes| stripes.unit = 3 * BLOCK,
            &|_, stripes| stripes.unit = BLOCK / 2,
            &|_, stripes| stripes.others.clear(),
            &|_, stripes| stripes.others[0].0 = VolumeId(8),
            &|spec, _| spec.size += BLOCK,
            &|_, stripes| stripes.others[0].1.size -= 1,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert_eq!(refused(&mut rig, change), Err(Refusal::BadStripes), "{at}");
        }
        assert_eq!(refused(&mut rig, &|_, _| {}), Ok(()));
    }
}
