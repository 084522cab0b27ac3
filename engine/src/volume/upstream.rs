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
                Action::Load(load) => self.route.load_told(self.now, volume, load),
                // A part of a flush has ended, and with the last one the flush, without a result.
                Action::Void(io) if self.route.part_is_void(io) => self.io_done(io, self.now, Ok(())),
                Action::Void(io) => self.void(io),
                Action::Failed if planted!(LostSessionForgotten) => {}
                Action::Failed if planted!(LostLegForgotten) && leg != volume => {}
                Action::Failed => {
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
