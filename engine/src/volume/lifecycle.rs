//! The life cycle of volumes: opened, changed, drained, closed.
//!
//! ```text
//!   set_write_cache, restrict ───────────────► flush ─► Effect::Done(token, result)
//!   close_volume ─► its requests are finished ─► flush ─► blocks dropped, in steps ─► Effect::Done(token, result)
//!   drain        ─► all requests are finished ─► flush of each volume ─► Effect::Drained
//! ```
//!
//! A command is refused at once, or it begins, and [`Volumes::change_on`] continues it whenever its volume is tended.
//! The layer above closes the connections of a volume that is restricted or closed.

use super::{Client, Effect, FlushFor, Volume, Volumes};
use crate::cluster::Timetable;
use crate::disk::policy::Settings;
use crate::ids::VolumeId;
use crate::spec::{Refusal, StripeSpec, Tiers, VolumeSpec, WriteCache};
use crate::units::{BLOCK, Nanos, SECTOR, VOLUME_BYTES_MAX};
use crate::upstream::Upstream;

/// Units of work to drop a block with its volume.
pub(super) const DROP_UNITS: u32 = 3;

/// A change of a volume that a command has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// Token of the command, for its answer.
    token: u64,
    to: To,
    /// The data is being flushed.
    flushing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum To {
    /// Another mode of the write cache, in effect already; the previous one.
    WriteCache { before: WriteCache },
    /// Read-only, when all clients that could write have disconnected.
    ReadOnly,
    /// Closed. Dirty data is dropped or flushed.
    Closed { discard: bool },
}

impl Volume {
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.change, Some(Change { to: To::Closed { .. }, .. }))
    }
}

impl Volumes {
    /// An open volume.
    pub(crate) fn known(&mut self, volume: VolumeId) -> Result<&mut Volume, Refusal> {
        self.table.get_mut(volume).ok_or(Refusal::UnknownVolume)
    }

    /// A volume that no command is changing.
    fn unchanging(&mut self, volume: VolumeId) -> Result<&mut Volume, Refusal> {
        let state = self.known(volume)?;
        if state.change.is_some() { Err(Refusal::InUse) } else { Ok(state) }
    }

    /// Begins a change; `None`: the command is complete.
    fn begin_change(&mut self, token: u64, volume: VolumeId, to: Option<To>) {
        match to {
            None => self.effects.push(Effect::Done(token, Ok(()))),
            Some(to) => {
                self.table[volume].change = Some(Change { token, to, flushing: false });
                self.poke(volume);
            }
        }
    }

    pub(crate) fn open_volume(&mut self, spec: VolumeSpec) -> Result<(), Refusal> {
        if !self.cache.has_tenant(spec.tenant) {
            return Err(Refusal::UnknownTenant);
        }
        let others = spec.stripes.iter().flat_map(|stripes| &stripes.others).map(|(leg, _)| *leg);
        let mut numbers = std::iter::once(spec.volume).chain(others);
        if numbers.any(|number| self.table.contains(number) || self.route.has_upstream(number)) {
            return Err(Refusal::Taken);
        }
        if spec.size == 0 || spec.size > VOLUME_BYTES_MAX || !spec.size.is_multiple_of(SECTOR) {
            return Err(Refusal::BadSize);
        }
        let of_tenant = self.cache.partition(spec.tenant).spec;
        if of_tenant.is_remote != spec.upstream.is_some() {
            return Err(Refusal::Mixed);
        }
        if !spec.stripes_fit() {
            return Err(Refusal::BadStripes);
        }
        let others = spec.stripes.iter().flat_map(|stripes| &stripes.others).map(|(_, other)| other);
        let demotes = spec.upstream.iter().chain(others).any(|export| export.tiers == Tiers::Demote);
        if spec.stripes.is_some() && demotes {
            return Err(Refusal::Tiers);
        }
        if of_tenant.is_store && spec.write_cache != WriteCache::None {
            return Err(Refusal::Store);
        }
        let whole_blocks = u64::from(spec.device_block) == BLOCK;
        self.cache.open_volume(spec.volume, spec.tenant, whole_blocks, spec.upstream.is_some());
        if let Some(settings) = &spec.upstream {
            let first = Upstream::new(self.now, settings.clone());
            match &spec.stripes {
                None => self.route.set_upstream(spec.volume, first),
                Some(StripeSpec { unit, others }) => {
                    let others = others.iter().map(|(leg, other)| (*leg, Upstream::new(self.now, other.clone())));
                    let legs = std::iter::once((spec.volume, first)).chain(others).collect();
                    self.route.set_stripes(spec.volume, *unit, legs);
                }
            }
        }
        if let Some(key) = spec.offload {
            self.route.set_key(spec.volume, key, spec.tenant);
        }
        self.cache.partition_mut(spec.tenant).volumes += 1;
        if let Some(curve) = self.curves.get_mut(spec.tenant) {
            curve.opened(spec.volume);
        }
        let (volume, tenant, unflushed, size) = (spec.volume, spec.tenant, spec.unflushed, spec.size);
        let mut state = Volume::new(spec);
        // The base may not know of them.
        self.route.away(volume, size).for_each(|(start, end)| state.holes.fill(start, end));
        self.table.insert(volume, state);
        let specs = self.table.values().map(|volume| &volume.spec);
        let place = specs.filter(|spec| spec.tenant == tenant).filter_map(|spec| spec.disk_start).min();
        self.route.set_place(tenant, place);
        if unflushed && !planted!(OpenedAsFlushed) {
            self.cache.durability.unsettled(volume);
            self.flush_arrived(volume, FlushFor::Opening);
        }
        self.initialise_soon();
        Ok(())
    }

    pub(crate) fn set_write_cache(&mut self, token: u64, volume: VolumeId, mode: WriteCache) -> Result<(), Refusal> {
        let tenant = self.unchanging(volume)?.spec.tenant;
        if self.is_store(tenant) && mode != WriteCache::None {
            return Err(Refusal::Store);
        }
        let before = std::mem::replace(&mut self.volume_mut(volume).spec.write_cache, mode);
        let at_once = mode == before || mode == WriteCache::Unsafe || planted!(WriteCacheChangedUnflushed);
        // Data acknowledged in the old mode is flushed first, so that the promise of the new mode holds for it.
        self.begin_change(token, volume, (!at_once).then_some(To::WriteCache { before }));
        Ok(())
    }

    /// Makes a volume read-only, or writable again. The layer above closes the connections of writers.
    pub(crate) fn restrict(&mut self, token: u64, volume: VolumeId, read_only: bool) -> Result<(), Refusal> {
        self.unchanging(volume)?.spec.read_only = read_only;
        let at_once = !read_only || planted!(ReadOnlyNotFlushed);
        self.begin_change(token, volume, (!at_once).then_some(To::ReadOnly));
        Ok(())
    }

    pub(crate) fn grow(&mut self, volume: VolumeId, size: u64) -> Result<(), Refusal> {
        let state = self.known(volume)?;
        if size < state.spec.size || size > VOLUME_BYTES_MAX || !size.is_multiple_of(SECTOR) {
            return Err(Refusal::BadSize);
        }
        let before = std::mem::replace(&mut state.spec.size, size);
        if state.spec.grows_empty {
            state.holes.dig(before, size);
        }
        state.initialising = state.spec.initialise && !state.holes.is_empty();
        self.initialise_soon();
        Ok(())
    }

    /// Closes a volume. The layer above closes its connections.
    pub(crate) fn close_volume(&mut self, token: u64, volume: VolumeId, discard: bool) -> Result<(), Refusal> {
        self.unchanging(volume)?;
        if self.route.is_store(volume) {
            return Err(Refusal::Offload);
        }
        self.end_streams(volume, None);
        if discard {
            let now = self.now;
            self.route.each_upstream(volume, |upstream| upstream.give_up(now));
        }
        self.begin_change(token, volume, Some(To::Closed { discard }));
        Ok(())
    }

    /// Changes how the exports of a volume are used; see [`Upstream::set`].
    pub(crate) fn set_upstream(
        &mut self,
        volume: VolumeId,
        deadline_ns: Nanos,
        connections: u32,
        tiers: Tiers,
    ) -> Result<(), Refusal> {
        if !self.route.is_elsewhere(volume) || !self.table.contains(volume) {
            return Err(Refusal::UnknownVolume);
        }
        if tiers == Tiers::Demote && self.route.is_striped(volume) {
            return Err(Refusal::Tiers);
        }
        let now = self.now;
        self.route.each_upstream(volume, |upstream| upstream.set(now, deadline_ns, connections, tiers));
        Ok(())
    }

    /// The largest read-ahead window, bytes; `None`: derived from R and the disk.
    pub(crate) fn set_prefetch(&mut self, bytes: Option<u64>) {
        self.config.prefetch_bytes_max = bytes;
        self.prefetch_bytes = bytes.unwrap_or(self.route.disk.prefetch_bytes());
        if self.prefetch_bytes == 0 {
            let ids: Vec<_> = self.table.values().map(Volume::id).collect();
            ids.into_iter().for_each(|id| self.end_streams(id, None));
        }
    }

    pub(crate) fn set_policy(&mut self, settings: Settings) {
        // The driver's structures are laid out for the initial depth. With depth 0 there would be no progress.
        let depth = settings.depth.clamp(1, self.config.device_depth.max(1));
        self.route.disk.set_policy(self.now, Settings { depth, ..settings });
        self.prefetch_bytes = self.config.prefetch_bytes_max.unwrap_or(self.route.disk.prefetch_bytes());
    }

    /// Sets the schedule that the disk follows.
    pub(crate) fn set_timetable(&mut self, timetable: Option<Timetable>) -> Result<(), Refusal> {
        self.route.disk.set_timetable(self.now, timetable)
    }

    /// Continues the change of a volume: when nothing that came before it is in progress, flushes; then completes it.
    pub(crate) fn change_on(&mut self, volume: VolumeId) {
        let state = self.volume(volume);
        let Some(Change { token, to, flushing }) = state.change else { return };
        let discards = matches!(to, To::Closed { discard } if discard || planted!(CloseDropsDirt));
        if !flushing {
            let all_read = |client: &Client| client.volume != volume || client.session.read_only;
            let is_ready = match to {
                To::WriteCache { .. } => true,
                To::ReadOnly => self.clients.values().all(all_read),
                To::Closed { .. } => state.connections == 0 && state.requests == 0 && state.ranges.is_empty(),
            };
            if !is_ready {
                return;
            }
            self.volume_mut(volume).change = Some(Change { token, to, flushing: true });
            if !discards {
                return self.flush_arrived(volume, FlushFor::Control);
            }
        }
        let state = self.volume_mut(volume);
        let Some(result) = (if discards { Some(Ok(())) } else { state.flushes.for_control }) else { return };
        match to {
            To::Closed { .. } if result.is_ok() => return self.close_on(volume, token, discards),
            // The volume stays open: the operator can retry, or clear it. Work for idle time was suspended while it was
            // closing.
            To::Closed { .. } => self.initialise_soon(),
            To::WriteCache { before } if result.is_err() => state.spec.write_cache = before,
            To::WriteCache { .. } => {}
            To::ReadOnly => state.spec.read_only = result.is_ok(),
        }
        self.volume_mut(volume).change = None;
        self.effects.push(Effect::Done(token, result.map_err(|_| Refusal::FlushFailed)));
    }

    /// Drops the blocks of a volume that is flushed, in steps, then the volume.
    fn close_on(&mut self, volume: VolumeId, token: u64, discards: bool) {
        let state = self.volume(volume);
        if state.device_requests > 0 && !planted!(ClosedBesideDeviceRequests) || !state.flushes.is_idle() {
            return;
        }
        let tenant = state.spec.tenant;
        if self.waits_for_demotions(volume) {
            return;
        }
        let dropped = self.cache.drop_some(volume, (self.work.left() / DROP_UNITS).max(1));
        self.charge(tenant, DROP_UNITS * dropped);
        if self.cache.cached_blocks(volume) > 0 {
            // The rest continues in the tenant's quantum.
            return self.poke(volume);
        }
        self.cache.close_volume(volume);
        self.route.drop_upstreams(volume);
        self.route.drop_key(self.now, volume, discards);
        let partition = self.cache.partition_mut(tenant);
        partition.volumes -= u32::from(!planted!(ClosedVolumeStillCounted));
        let ahead = (partition.streams, partition.unread, partition.prefetching);
        assert!(partition.volumes > 0 || ahead == (0, 0, 0), "read ahead for no volume: {ahead:?}");
        self.table.remove(volume);
        self.effects.push(Effect::Done(token, Ok(())));
    }

    /// Continues a drain: when all received requests are finished, flushes every volume once. Stores are served until
    /// the process ends: another disk of this server may need its store for its own drain, and what a store has
    /// answered is on the medium.
    pub(super) fn drain_on(&mut self) {
        let Some(token) = self.draining.filter(|_| !self.drained) else { return };
        let received = self.clients.values().all(|client| {
            // A request whose payload is incomplete counts as not received. The drain does not wait for reads: a
            // stalled reader must not prevent the flush of other clients' data.
            client.changing <= u32::from(self.is_receiving_change(client))
                || self.is_store(self.tenant_of(client.volume))
        });
        if !received {
            return;
        }
        // A volume that leads to a store is not flushed: what the store has answered is durable, and it may be away.
        let is_asked = |volume: &&Volume| !self.is_store(volume.spec.tenant) && !self.route.is_store(volume.id());
        let drained = self.table.values().filter(is_asked);
        let ids: Vec<_> = drained.map(Volume::id).collect();
        for &id in &ids {
            if !std::mem::replace(&mut self.volume_mut(id).draining, true) {
                self.flush_arrived(id, FlushFor::Control);
            }
        }
        if ids.iter().any(|&id| self.volume(id).flushes.for_control.is_none()) {
            return;
        }
        self.drained = true;
        let failed = ids.into_iter().filter(|&id| self.volume(id).flushes.for_control != Some(Ok(()))).collect();
        self.effects.push(Effect::Drained(token, failed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Op;
    use crate::errno::Errno;
    use crate::ids::ConnId;
    use crate::units::{PIECE, SECOND};
    use crate::volume::rig::{Rig, VOLUME};

    const DONE: u64 = 70;
    const FAILED: Option<Result<(), Refusal>> = Some(Err(Refusal::FlushFailed));

    fn close_clients(rig: &mut Rig) {
        [ConnId(0), ConnId(1)].into_iter().for_each(|conn| rig.close(conn));
    }

    fn fail_all(rig: &mut Rig) {
        while !rig.device.is_empty() {
            rig.complete(0, Err(Errno::Io));
        }
    }

    #[test]
    fn one_command_at_a_time_changes_a_volume() {
        let mut rig = Rig::new();
        rig.command(|volumes| volumes.close_volume(DONE, VOLUME, false));
        let busy = rig.event(|volumes| {
            [
                volumes.close_volume(1, VOLUME, true),
                volumes.restrict(2, VOLUME, true),
                volumes.set_write_cache(3, VOLUME, WriteCache::None),
            ]
        });
        assert_eq!(busy, [Err(Refusal::InUse); 3]);
        close_clients(&mut rig);
        rig.complete_all();
        assert!(rig.is_done(DONE));
        assert_eq!(rig.event(|volumes| volumes.close_volume(4, VOLUME, true)), Err(Refusal::UnknownVolume));
    }

    #[test]
    fn the_write_cache_stays_as_it_was_if_the_flush_fails() {
        let mut rig = Rig::new();
        rig.write(1, 0, 0, BLOCK, 7);
        rig.command(|volumes| volumes.set_write_cache(DONE, VOLUME, WriteCache::None));
        assert_eq!(rig.result(DONE), None, "it is not flushed");
        fail_all(&mut rig);
        assert_eq!((rig.result(DONE), rig.volumes.volume(VOLUME).spec.write_cache), (FAILED, WriteCache::Volatile));
    }

    #[test]
    fn a_volume_that_cannot_be_flushed_does_not_become_read_only() {
        let mut rig = Rig::new();
        rig.write(1, 0, 0, BLOCK, 7);
        rig.command(|volumes| volumes.restrict(DONE, VOLUME, true));
        close_clients(&mut rig);
        fail_all(&mut rig);
        assert_eq!(rig.result(DONE), FAILED);
        rig.attach(ConnId(0), VOLUME);
        assert!(!rig.volumes.clients[ConnId(0)].session.read_only);
        rig.write(2, 0, 0, BLOCK, 8);
        assert_eq!(rig.answer(2), Some(0));
    }

    #[test]
    fn a_volume_that_could_not_be_closed_is_initialised_further() {
        let mut rig = Rig::with(128, |spec| (spec.initialise, spec.holes) = (true, vec![(0, PIECE)]));
        rig.event(|volumes| volumes.volume_mut(VOLUME).flushes.lost = true);
        rig.command(|volumes| volumes.close_volume(DONE, VOLUME, false));
        rig.wait(SECOND);
        close_clients(&mut rig);
        assert_eq!((rig.result(DONE), rig.device.len()), (FAILED, 0));
        let at = rig.volumes.poll_timeout().expect("something to do in idle time");
        rig.wait(at - rig.now);
        assert_eq!(rig.ops(), [Op::Write { durable: false }]);
    }
}
