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
//! quarter of the partition.
//!
//! Until the first session, writes are answered when they are durable, so that they wait for it: the server may refuse
//! this client, because it has admitted another one.

use super::{Effect, Volumes};
use crate::disk::Purpose;
use crate::ids::{IoId, VolumeId};
use crate::units::BLOCK;
use crate::upstream::{Action, Event, Request, Upstream};

impl Volumes {
    pub(crate) fn upstream_event(&mut self, volume: VolumeId, event: Event<'_>) {
        self.route.upstream_event(self.now, volume, event);
    }

    /// Carries out what the upstreams want. Whether there was anything.
    pub(crate) fn heed_upstreams(&mut self) -> bool {
        let mut any = false;
        while let Some((volume, action)) = self.route.poll_upstream(self.now) {
            any = true;
            match action {
                Action::Ask(request) => {
                    self.volume_mut(volume).is_unreached &= !matches!(request, Request::Online(_));
                    self.effects.push(Effect::Upstream(volume, request));
                }
                Action::Zero(segment) => {
                    let (frame, start, len) = (segment.frame, segment.start, segment.len);
                    self.effects.push(Effect::Zero { frame, start, len });
                }
                Action::Done(io, result) => {
                    self.io_done(io, self.now, result);
                    self.relieve_upstream(volume);
                }
                Action::Void(io) => self.void(io),
                Action::Failed if planted!(LostSessionForgotten) => {}
                Action::Failed => {
                    self.device_flush_failed(volume);
                    let failures = self.cache.durability.failures(volume);
                    self.route.repeats_pending(volume, failures);
                }
            }
        }
        any
    }

    /// Whether the target of a volume takes zeroing requests at present.
    pub(super) fn may_zero(&self, volume: VolumeId) -> bool {
        self.route.upstream(volume).is_none_or(Upstream::may_zero)
    }

    /// A flush ended without a result.
    fn void(&mut self, io: IoId) {
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
        if self.route.upstream(volume).is_some_and(|upstream| upstream.wants_flush(quarter)) {
            self.flush_upstream(volume);
        }
    }
}
