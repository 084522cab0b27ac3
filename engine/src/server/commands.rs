//! Executes commands of the control plane, and moves frames between partitions.

use super::Server;
use crate::config::Config;
use crate::control::{Command, Refusal, Report, TenantSpec, VolumeSpec, WriteCache};
use crate::disk::policy::{Settings, Weights};
use crate::event::{Action, CloseReason, Session};
use crate::ids::{ConnId, FrameId, TenantId, VolumeId};
use crate::latency::Recorders;
use crate::plan::allot::{self, Claim, bytes_of};
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND, SECTOR, VOLUME_BYTES_MAX};
use crate::volume::{Client, Closing, FlushFor, Inbound, Restricting, Timer, Todo, Volume, Waiting};

/// Frames that all shrinking partitions together give back in one event: about 60 us.
const SHED_FRAMES: u32 = 256;
/// Units of work to drop a block with its volume.
const CLOSE_UNITS: u32 = 3;
/// Time in which `SetBudget` waits for retired frames, beyond the age limit of dirty data: a device that is not hung
/// has written what was due, and a client that receives at all has received its replies. After it the command is
/// answered with the memory that is still held.
const SHRINK_TIMEOUT: Nanos = 5 * SECOND;
/// Period of the check for frames that are still held after that.
const HELD_STEP: Nanos = 100 * MILLISECOND;

impl Server {
    pub(crate) fn command(&mut self, token: u64, command: Command) {
        let report = match command {
            Command::SetTenant(tenant, spec) => self.set_tenant(tenant, spec),
            Command::DropTenant(tenant) => self.drop_tenant(tenant),
            Command::OpenVolume(spec) => self.open_volume(spec),
            Command::SetWriteCache(volume, mode) => self.set_write_cache(token, volume, mode),
            Command::Restrict { volume, read_only, expelled } => self.restrict(token, volume, read_only, &expelled),
            Command::GrowVolume(volume, size) => self.grow(volume, size),
            Command::CloseVolume { volume, discard } => self.close_volume(token, volume, discard),
            Command::ClearVolume(volume) => self.found(volume).map(|()| {
                self.volumes.clear(volume, token);
                None
            }),
            Command::SetBudget(bytes) => self.set_budget(token, bytes),
            Command::DeclareLost(volume) => self.found(volume).map(|()| {
                self.volumes.volume_mut(volume).flushes.lost = true;
                Some(Report::Done)
            }),
            Command::SetPrefetch(bytes) => {
                self.set_prefetch(bytes);
                Ok(Some(Report::Done))
            }
            Command::SetPolicy(settings) => {
                // The driver's structures are laid out for the initial depth. With depth 0 there would be no progress.
                let depth = settings.depth.clamp(1, self.volumes.config.device_depth.max(1));
                self.volumes.route.disk.set_policy(self.volumes.now, Settings { depth, ..*settings });
                self.volumes.prefetch_bytes =
                    self.volumes.config.prefetch_bytes_max.unwrap_or(self.volumes.route.disk.prefetch_bytes());
                self.divide_anew();
                Ok(Some(Report::Done))
            }
            Command::Snapshot => {
                self.want_snapshot(token);
                Ok(None)
            }
            Command::Curve(volume, policy) => self.found(volume).map(|()| {
                let view = self.volumes.curve_view(self.volumes.tenant_of(volume), policy);
                view.map(|view| Report::Curve(Box::new(view)))
            }),
            Command::Drain => {
                self.draining = Some(token);
                self.volumes.draining = true;
                Ok(None)
            }
        };
        match report {
            Ok(None) => {}
            Ok(Some(report)) => self.report(token, report),
            Err(refusal) => self.report(token, Report::Refused(refusal)),
        }
    }

    pub(crate) fn report(&mut self, token: u64, report: Report) {
        self.actions.push_back(Action::Report { token, report });
    }

    fn found(&self, volume: VolumeId) -> Result<(), Refusal> {
        self.volumes.table.get(volume).map(|_| ()).ok_or(Refusal::UnknownVolume)
    }

    fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) -> Result<Option<Report>, Refusal> {
        self.check_cache(tenant, spec)?;
        let before = self.volumes.cache.has_tenant(tenant).then(|| self.volumes.cache.partition(tenant).spec.cache);
        self.volumes.cache.set_tenant(tenant, spec);
        self.volumes.route.disk.set_tenant(self.volumes.now, tenant, spec.share);
        self.plan_tenant(tenant, spec.cache, before);
        if before.is_none() {
            self.volumes.waiting.insert(tenant, Waiting::default());
            self.front.latencies.insert(tenant, Recorders::new(self.volumes.now));
        }
        self.volumes.fit_curves();
        self.divide_anew();
        Ok(Some(Report::Done))
    }

    pub(crate) fn set_targets(&mut self, targets: &[(TenantId, u32)]) {
        for &(tenant, target) in targets {
            let partition = self.volumes.cache.partition_mut(tenant);
            partition.target = target + u32::from(planted!(PartitionsTooLarge)) * 8;
            partition.stirred = true;
            // The bound of unsent reply bytes depends on the partition.
            if std::mem::take(&mut partition.throttled) {
                self.volumes.put_off(Todo::Replies(tenant));
            }
        }
        self.volumes.timers.wake_at(Timer::Frames, self.volumes.now);
    }

    fn drop_tenant(&mut self, tenant: TenantId) -> Result<Option<Report>, Refusal> {
        if !self.volumes.cache.has_tenant(tenant) {
            return Err(Refusal::UnknownTenant);
        }
        let partition = self.volumes.cache.partition(tenant);
        if partition.volumes > 0 || partition.used > 0 {
            return Err(Refusal::InUse);
        }
        self.volumes.cache.drop_tenant(tenant);
        self.volumes.route.disk.drop_tenant(self.volumes.now, tenant);
        self.front.latencies.remove(tenant);
        self.volumes.waiting.remove(tenant);
        self.unplan_tenant(tenant);
        self.volumes.fit_curves();
        self.divide_anew();
        Ok(Some(Report::Done))
    }

    fn open_volume(&mut self, spec: VolumeSpec) -> Result<Option<Report>, Refusal> {
        if !self.volumes.cache.has_tenant(spec.tenant) {
            return Err(Refusal::UnknownTenant);
        }
        if self.volumes.table.contains(spec.volume) {
            return Err(Refusal::Taken);
        }
        if spec.size == 0 || spec.size > VOLUME_BYTES_MAX || !spec.size.is_multiple_of(SECTOR) {
            return Err(Refusal::BadSize);
        }
        self.volumes.cache.open_volume(spec.volume, spec.tenant, u64::from(spec.device_block) == BLOCK);
        self.volumes.cache.partition_mut(spec.tenant).volumes += 1;
        self.volumes.curve(spec.tenant).opened(spec.volume);
        let (volume, unflushed) = (spec.volume, spec.unflushed);
        self.volumes.table.insert(volume, Volume::new(spec));
        if unflushed && !planted!(OpenedAsFlushed) {
            self.volumes.cache.durability.unsettled(volume);
            self.volumes.flush_arrived(volume, FlushFor::Opening);
        }
        self.volumes.initialise_soon();
        Ok(Some(Report::Done))
    }

    fn set_write_cache(&mut self, token: u64, volume: VolumeId, mode: WriteCache) -> Result<Option<Report>, Refusal> {
        self.found(volume)?;
        let state = self.volumes.volume_mut(volume);
        if state.changing.is_some() || state.closing.is_some() || state.restricting.is_some() {
            return Err(Refusal::InUse);
        }
        let before = std::mem::replace(&mut state.spec.write_cache, mode);
        if mode == before || mode == WriteCache::Unsafe || planted!(WriteCacheChangedUnflushed) {
            return Ok(Some(Report::Done));
        }
        // Data acknowledged in the old mode is flushed first, so that the promise of the new mode holds for it.
        state.changing = Some((token, before));
        self.volumes.flush_arrived(volume, FlushFor::Control);
        Ok(None)
    }

    fn restrict(
        &mut self,
        token: u64,
        volume: VolumeId,
        read_only: bool,
        expelled: &[ConnId],
    ) -> Result<Option<Report>, Refusal> {
        self.found(volume)?;
        let state = self.volumes.volume_mut(volume);
        if state.changing.is_some() || state.closing.is_some() || state.restricting.is_some() {
            return Err(Refusal::InUse);
        }
        state.spec.read_only = read_only;
        let is_expelled = |conn: ConnId, session: Session| {
            let writes = read_only && !session.read_only;
            (expelled.contains(&conn) || writes) && !planted!(RevokedClientStays)
        };
        self.front.close_all(&self.volumes, volume, CloseReason::Revoked, is_expelled);
        if !read_only || planted!(ReadOnlyNotFlushed) {
            return Ok(Some(Report::Done));
        }
        self.volumes.volume_mut(volume).restricting = Some(Restricting { token, flushing: false });
        self.volumes.poke(volume);
        Ok(None)
    }

    /// Continues making a volume read-only: when the last connection that could write is closed, flushes its data.
    fn restrict_on(&mut self, volume: VolumeId) {
        let Some(restricting) = self.volumes.volume(volume).restricting else { return };
        if !restricting.flushing {
            let all_read = |client: &Client| client.volume != volume || client.session.read_only;
            if self.volumes.clients.values().all(all_read) {
                self.volumes.volume_mut(volume).restricting = Some(Restricting { flushing: true, ..restricting });
                self.volumes.flush_arrived(volume, FlushFor::Control);
            }
            return;
        }
        let state = self.volumes.volume_mut(volume);
        let Some(result) = state.flushes.for_control else { return };
        state.restricting = None;
        state.spec.read_only = result.is_ok();
        let report = result.map_or(Report::Refused(Refusal::FlushFailed), |()| Report::Done);
        self.report(restricting.token, report);
    }

    fn grow(&mut self, volume: VolumeId, size: u64) -> Result<Option<Report>, Refusal> {
        self.found(volume)?;
        let state = self.volumes.volume_mut(volume);
        if size < state.spec.size || size > VOLUME_BYTES_MAX || !size.is_multiple_of(SECTOR) {
            return Err(Refusal::BadSize);
        }
        let before = std::mem::replace(&mut state.spec.size, size);
        if state.spec.grows_empty {
            state.holes.dig(before, size);
        }
        state.initialising = state.spec.initialise && !state.holes.is_empty();
        self.volumes.initialise_soon();
        Ok(Some(Report::Done))
    }

    fn close_volume(&mut self, token: u64, volume: VolumeId, discard: bool) -> Result<Option<Report>, Refusal> {
        self.found(volume)?;
        let state = self.volumes.volume_mut(volume);
        if state.closing.is_some() || state.changing.is_some() || state.restricting.is_some() {
            return Err(Refusal::InUse);
        }
        state.closing = Some(Closing { token, discard, flushing: false });
        self.volumes.end_streams(volume, None);
        self.front.close_all(&self.volumes, volume, CloseReason::Over, |_, _| true);
        self.volumes.poke(volume);
        Ok(None)
    }

    /// Continues closing a volume, changing its write cache, or making it read-only.
    pub(crate) fn change_on(&mut self, volume: VolumeId) {
        // An effect before this one may have closed it.
        let Some(state) = self.volumes.table.get_mut(volume) else { return };
        if let Some((token, before)) = state.changing
            && let Some(result) = state.flushes.for_control
        {
            state.changing = None;
            if result.is_err() {
                state.spec.write_cache = before;
            }
            let report = result.map_or(Report::Refused(Refusal::FlushFailed), |()| Report::Done);
            self.report(token, report);
        }
        self.restrict_on(volume);
        let state = self.volumes.volume_mut(volume);
        let Some(mut closing) = state.closing else { return };
        if state.connections > 0 || state.requests > 0 || !state.ranges.is_empty() {
            return;
        }
        if !closing.discard && !closing.flushing && !planted!(CloseDropsDirt) {
            closing.flushing = true;
            state.closing = Some(closing);
            return self.volumes.flush_arrived(volume, FlushFor::Control);
        }
        if closing.flushing {
            match state.flushes.for_control {
                None => return,
                Some(Ok(())) => {}
                Some(Err(_)) => {
                    // The volume stays open: the operator can retry, or clear it. Work for idle time was suspended
                    // while it was closing.
                    state.closing = None;
                    self.volumes.initialise_soon();
                    return self.report(closing.token, Report::Refused(Refusal::FlushFailed));
                }
            }
        }
        if state.device_requests > 0 && !planted!(ClosedBesideDeviceRequests) || !state.flushes.is_idle() {
            return;
        }
        let tenant = state.spec.tenant;
        let dropped = self.volumes.cache.drop_some(volume, (self.volumes.work.left() / CLOSE_UNITS).max(1));
        self.volumes.charge(tenant, CLOSE_UNITS * dropped);
        if self.volumes.cache.cached_blocks(volume) > 0 {
            // The rest continues in the tenant's quantum.
            return self.volumes.poke(volume);
        }
        self.volumes.cache.close_volume(volume);
        let partition = self.volumes.cache.partition_mut(tenant);
        partition.volumes -= u32::from(!planted!(ClosedVolumeStillCounted));
        let ahead = (partition.streams, partition.unread, partition.prefetching);
        assert!(partition.volumes > 0 || ahead == (0, 0, 0), "read ahead for no volume: {ahead:?}");
        self.volumes.table.remove(volume);
        self.report(closing.token, Report::Done);
    }

    fn set_budget(&mut self, token: u64, bytes: u64) -> Result<Option<Report>, Refusal> {
        if self.budget_token.is_some() {
            return Err(Refusal::InUse);
        }
        let frames = Config::frames_of(bytes).min(self.volumes.cache.pool().max());
        let claims = self.volumes.cache.tenants().map(|(id, partition)| (id, Claim::new(partition.spec.cache, 0)));
        let least = allot::least_bytes(&claims.collect::<Vec<_>>());
        if least > bytes_of(u64::from(frames)) {
            return Err(Refusal::BudgetTooSmall { budget: bytes, least });
        }
        self.volumes.config.budget_bytes = bytes;
        self.volumes.cache.set_frames(frames);
        self.divide_anew();
        self.volumes.timers.wake_at(Timer::Frames, self.volumes.now);
        self.budget_token = Some((token, self.volumes.now + self.volumes.config.dirty_age_max_ns + SHRINK_TIMEOUT));
        self.held = false;
        Ok(None)
    }

    /// Whether this frame was given up by `SetBudget` and is unused: until the budget grows again, its content is not
    /// needed, and the driver may give its memory back.
    pub fn is_retired(&self, frame: FrameId) -> bool {
        self.volumes.cache.pool().is_retired(frame)
    }

    /// The highest number of a frame that is used or free; only frames that are still to be retired have higher
    /// numbers.
    pub fn frames_limit(&self) -> u32 {
        self.volumes.cache.pool().limit()
    }

    fn set_prefetch(&mut self, bytes: Option<u64>) {
        self.volumes.config.prefetch_bytes_max = bytes;
        self.volumes.prefetch_bytes = bytes.unwrap_or(self.volumes.route.disk.prefetch_bytes());
        if self.volumes.prefetch_bytes == 0 {
            let ids: Vec<_> = self.volumes.table.values().map(Volume::id).collect();
            ids.into_iter().for_each(|id| self.volumes.end_streams(id, None));
        }
    }

    /// Partitions above their targets give frames back; unused frames above the limit are retired.
    pub(crate) fn move_frames(&mut self) {
        // A frame that one tenant gives back may serve requests of another.
        let tenants: Vec<_> = self.volumes.cache.tenants().map(|(id, _)| id).collect();
        tenants.into_iter().for_each(|id| self.volumes.cache.partition_mut(id).stirred = true);
        let over: Vec<_> = self.volumes.cache.tenants().filter(|(_, p)| p.used > p.target).map(|(id, _)| id).collect();
        let mut more = false;
        let each = (SHED_FRAMES / over.len().max(1) as u32).max(1);
        for &tenant in &over {
            more |= self.volumes.cache.shed(tenant, each);
            self.volumes.charge(tenant, CLOSE_UNITS * each);
        }
        self.volumes.poke_tenants(&over);
        let retiring = self.volumes.cache.retire_frames();
        // Frames that are still held after the deadline will hardly become free within a millisecond.
        let step = if self.held { HELD_STEP } else { MILLISECOND };
        if more || retiring {
            self.volumes.timers.wake_at(Timer::Frames, self.volumes.now + step);
        } else if let Some((token, _)) = self.budget_token.take() {
            self.report(token, Report::Done);
        }
        if !retiring && std::mem::take(&mut self.held) {
            self.actions.push_back(Action::Retired);
        }
        if let Some((token, _)) = self.budget_token.take_if(|(_, deadline)| *deadline <= self.volumes.now) {
            let bytes = u64::from(self.volumes.cache.pool().retiring()) * BLOCK;
            self.held = bytes > 0;
            self.report(token, if self.held { Report::Held { bytes } } else { Report::Done });
        }
    }

    /// Continues a drain: when all received requests are finished, flushes every volume once.
    pub(crate) fn drain_on(&mut self) {
        let received = self.volumes.clients.values().all(|client| {
            // A request whose payload is incomplete counts as not received. The drain does not wait for reads: a
            // stalled reader must not prevent the flush of other clients' data.
            let coming = !matches!(client.inbound, Inbound::Header | Inbound::Stopped);
            client.changing <= u32::from(coming)
        });
        if !received {
            return;
        }
        let ids: Vec<_> = self.volumes.table.values().map(Volume::id).collect();
        for &id in &ids {
            if !std::mem::replace(&mut self.volumes.volume_mut(id).draining, true) {
                self.volumes.flush_arrived(id, FlushFor::Control);
            }
        }
        if ids.iter().any(|&id| self.volumes.volume(id).flushes.for_control.is_none()) {
            return;
        }
        self.drained = true;
        let token = self.draining.expect("a drain");
        let failed =
            ids.into_iter().filter(|&id| self.volumes.volume(id).flushes.for_control != Some(Ok(()))).collect();
        self.report(token, Report::Drained { failed });
    }

    /// The weight of each tenant, in parts per billion: its share, or an equal part of the remaining time. The driver
    /// divides the time of its thread in the same proportion as the disk's.
    pub fn weights(&self) -> impl Iterator<Item = (TenantId, u64)> + '_ {
        let weights = Weights::new(self.volumes.cache.tenants().map(|(_, partition)| partition.spec.share));
        self.volumes.cache.tenants().map(move |(id, partition)| (id, weights.of(partition.spec.share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::LEAST_BYTES;
    use crate::disk::Op;
    use crate::errno::Errno;
    use crate::event::{Event, Receive};
    use crate::nbd::wire::command;
    use crate::rig::{Rig, VOLUME};
    use crate::units::PIECE;

    /// A stalled reader that has requested as much as its bounds permit; then the budget shrinks.
    fn shrinking() -> Rig {
        let mut rig = Rig::new();
        rig.stalled_readers.push(ConnId(1));
        // The blocks of the first client occupy the frames below the new limit.
        for at in 0..8 {
            rig.ask(at, command::READ, 0, at * PIECE, PIECE);
            rig.finish_reads();
        }
        for at in 8..32 {
            if rig.server.receive(ConnId(1)) == Receive::Header {
                rig.ask_as(ConnId(1), at, command::READ, 0, at * PIECE, PIECE);
                rig.finish_reads();
            }
        }
        rig.command(50, Command::SetBudget(2 * LEAST_BYTES));
        rig
    }

    fn held_bytes(rig: &mut Rig) -> u64 {
        rig.command(60, Command::Snapshot);
        let Some(Report::Snapshot(snapshot)) = rig.take_report(60) else { panic!("a snapshot is answered at once") };
        snapshot.held_frames * BLOCK
    }

    #[test]
    fn memory_that_is_held_is_named_in_bounded_time_and_follows() {
        let mut rig = shrinking();
        let timeout = rig.server.volumes.config.dirty_age_max_ns + SHRINK_TIMEOUT;
        rig.wait(timeout - MILLISECOND);
        assert!(rig.report(50).is_none(), "{:?}", rig.report(50));
        rig.wait(MILLISECOND);
        let Some(&Report::Held { bytes }) = rig.report(50) else { panic!("{:?}", rig.report(50)) };
        assert!(bytes >= PIECE, "{bytes}");
        assert_eq!(held_bytes(&mut rig), bytes);
        rig.wait(10 * HELD_STEP);
        assert_eq!((held_bytes(&mut rig), rig.retired), (bytes, 0), "nobody has read it");
        rig.stalled_readers.clear();
        rig.send(ConnId(1));
        rig.wait(HELD_STEP);
        assert_eq!((held_bytes(&mut rig), rig.retired), (0, 1));
    }

    #[test]
    fn memory_that_becomes_free_in_time_was_not_held() {
        let mut rig = shrinking();
        rig.stalled_readers.clear();
        rig.send(ConnId(1));
        rig.wait(MILLISECOND);
        assert!(rig.is_done(50), "{:?}", rig.report(50));
        assert_eq!((held_bytes(&mut rig), rig.retired), (0, 0));
    }

    const DONE: u64 = 70;

    fn restrict(rig: &mut Rig, read_only: bool, expelled: &[ConnId]) {
        rig.command(DONE, Command::Restrict { volume: VOLUME, read_only, expelled: expelled.to_vec() });
    }

    #[test]
    fn a_volume_is_read_only_when_its_writers_have_gone_and_what_they_wrote_is_flushed() {
        let mut rig = Rig::new();
        rig.write(1, 0, 0, BLOCK, 7);
        restrict(&mut rig, true, &[]);
        assert_eq!(rig.closed, [(ConnId(0), CloseReason::Revoked), (ConnId(1), CloseReason::Revoked)]);
        rig.complete_all();
        assert!(rig.report(DONE).is_none(), "the clients have not gone");
        rig.handle(Event::Closed { conn: ConnId(0) });
        rig.handle(Event::Closed { conn: ConnId(1) });
        assert!(rig.report(DONE).is_none(), "it is not flushed");
        rig.complete_all();
        assert!(rig.is_done(DONE), "{:?}", rig.report(DONE));
        assert_eq!(rig.medium[0], 7);
        // A session that was negotiated before the change is read-only as well.
        rig.handle(Event::Attach { conn: ConnId(0), volume: VOLUME, session: Session::default() });
        let perm = Errno::Perm as u32;
        for (cookie, command) in [(2, command::WRITE_ZEROES), (3, command::TRIM)] {
            rig.ask(cookie, command, 0, 0, BLOCK);
            assert_eq!(rig.answer(cookie), Some(perm));
        }
        rig.ask(4, command::WRITE, 0, 0, BLOCK);
        assert_eq!(rig.server.receive(ConnId(0)), Receive::Discard(BLOCK));
        rig.handle(Event::Discarded { conn: ConnId(0), bytes: BLOCK });
        assert_eq!(rig.answer(4), Some(perm));
        rig.ask(5, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        assert_eq!((rig.answer(5), rig.content(0)), (Some(0), 7));
    }

    #[test]
    fn a_volume_that_cannot_be_flushed_does_not_become_read_only() {
        let mut rig = Rig::new();
        rig.write(1, 0, 0, BLOCK, 7);
        restrict(&mut rig, true, &[]);
        rig.handle(Event::Closed { conn: ConnId(0) });
        rig.handle(Event::Closed { conn: ConnId(1) });
        while !rig.device.is_empty() {
            rig.complete(0, Err(Errno::Io));
        }
        assert!(matches!(rig.report(DONE), Some(Report::Refused(Refusal::FlushFailed))), "{:?}", rig.report(DONE));
        rig.handle(Event::Attach { conn: ConnId(0), volume: VOLUME, session: Session::default() });
        rig.write(2, 0, 0, BLOCK, 8);
        assert_eq!(rig.answer(2), Some(0));
    }

    #[test]
    fn a_volume_that_could_not_be_closed_is_initialised_further() {
        let mut rig = Rig::with(128, |spec| (spec.initialise, spec.holes) = (true, vec![(0, PIECE)]));
        rig.command(DONE, Command::DeclareLost(VOLUME));
        rig.command(DONE + 1, Command::CloseVolume { volume: VOLUME, discard: false });
        rig.wait(SECOND);
        rig.handle(Event::Closed { conn: ConnId(0) });
        rig.handle(Event::Closed { conn: ConnId(1) });
        assert!(matches!(rig.report(DONE + 1), Some(Report::Refused(Refusal::FlushFailed))));
        assert!(rig.device.is_empty());
        let at = rig.server.poll_timeout().expect("something to do in idle time");
        rig.wait(at - rig.now);
        assert_eq!(rig.ops(), [Op::Write { durable: false }]);
    }

    #[test]
    fn only_the_expelled_are_disconnected_and_what_they_sent_is_finished() {
        let mut rig = Rig::new();
        rig.ask(1, command::READ, 0, 0, BLOCK);
        restrict(&mut rig, false, &[ConnId(0)]);
        assert!(rig.is_done(DONE), "{:?}", rig.report(DONE));
        assert_eq!(rig.closed, [(ConnId(0), CloseReason::Revoked)]);
        assert_eq!(rig.server.receive(ConnId(0)), Receive::Closed);
        rig.complete_all();
        assert_eq!(rig.answer(1), Some(0));
        rig.ask_as(ConnId(1), 2, command::READ, 0, 0, BLOCK);
        rig.complete_all();
        assert_eq!(rig.answer(2), Some(0));
    }
}
