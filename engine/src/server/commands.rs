//! Commands of the control plane, passed to the layers that execute them, and their reports; the memory budget.

use super::Server;
use crate::config::Config;
use crate::control::{Command, Refusal, Report, TenantSpec};
use crate::disk::policy::Weights;
use crate::event::{Action, CloseReason};
use crate::ids::{ConnId, FrameId, TenantId, VolumeId};
use crate::latency::Recorders;
use crate::plan::allot::{self, Claim, bytes_of};
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND};
use crate::volume::Timer;

/// Time in which `SetBudget` waits for retired frames, beyond the age limit of dirty data: a device that is not hung
/// has written what was due, and a client that receives at all has received its replies. After it the command is
/// answered with the memory that is still held.
const SHRINK_TIMEOUT: Nanos = 5 * SECOND;
/// Period of the check for frames that are still held after that.
const HELD_STEP: Nanos = 100 * MILLISECOND;

impl Server {
    pub(crate) fn command(&mut self, token: u64, command: Command) {
        let (done, later) = (|()| Some(Report::Done), |()| None);
        let report = match command {
            Command::SetTenant(tenant, spec) => self.set_tenant(tenant, spec).map(done),
            Command::DropTenant(tenant) => self.drop_tenant(tenant).map(done),
            Command::OpenVolume(spec) => self.volumes.open_volume(spec).map(done),
            Command::SetWriteCache(volume, mode) => self.volumes.set_write_cache(token, volume, mode).map(later),
            Command::Restrict { volume, read_only, expelled } => {
                self.restrict(token, volume, read_only, &expelled).map(later)
            }
            Command::GrowVolume(volume, size) => self.volumes.grow(volume, size).map(done),
            Command::CloseVolume { volume, discard } => self.close_volume(token, volume, discard).map(later),
            Command::SetUpstream { volume, deadline_ns, connections, tiers } => {
                self.volumes.set_upstream(volume, deadline_ns, connections, tiers).map(done)
            }
            Command::SetSlot { volume, timetable, slot } => self.volumes.set_slot(volume, &timetable, slot).map(done),
            Command::StartOffload(setup) => self.volumes.start_offload(*setup).map(done),
            Command::SetOffload(settings) => self.volumes.set_offload(settings).map(done),
            Command::StoreArrived(store, recovered) => self.volumes.store_arrived(store, *recovered).map(done),
            Command::RetireStore(store) => self.volumes.retire_store(store).map(done),
            Command::LoseStore(store) => self.volumes.lose_store(store).map(done),
            Command::Invalidate(invalid) => self.volumes.invalidate(invalid).map(done),
            Command::MapStores => self.volumes.map_stores().map(|known| Some(Report::Stores(known))),
            Command::EndOffload => self.volumes.end_offload(token).map(later),
            Command::ClearVolume(volume) => self.volumes.clear(token, volume).map(later),
            Command::SetBudget(bytes) => self.set_budget(token, bytes).map(later),
            Command::DeclareLost(volume) => self.volumes.known(volume).map(|state| state.flushes.lost = true).map(done),
            Command::SetPrefetch(bytes) => {
                self.volumes.set_prefetch(bytes);
                Ok(Some(Report::Done))
            }
            Command::SetPolicy(settings) => {
                self.volumes.set_policy(*settings);
                self.divide_anew();
                Ok(Some(Report::Done))
            }
            Command::SetTimetable(timetable) => {
                self.volumes.set_timetable(timetable.map(|timetable| *timetable)).map(done)
            }
            Command::SetClock(clock) => {
                self.volumes.route.disk.set_clock(self.volumes.now, clock);
                Ok(Some(Report::Done))
            }
            Command::Snapshot => {
                self.want_snapshot(token);
                Ok(None)
            }
            Command::Curve(volume, policy) => {
                self.volumes.known(volume).map(|state| state.spec.tenant).and_then(|tenant| {
                    let view = self.volumes.curve_view(tenant, policy).ok_or(Refusal::Store)?;
                    Ok(Some(Report::Curve(Box::new(view))))
                })
            }
            Command::Violations(tenant) => self.violations(tenant).map(Some),
            Command::Drain => {
                self.volumes.drain(token);
                Ok(None)
            }
        };
        match report {
            Ok(None) => {}
            Ok(Some(report)) => self.report(token, report),
            Err(refusal) => self.report(token, Report::Refused(refusal)),
        }
    }

    fn violations(&mut self, tenant: TenantId) -> Result<Report, Refusal> {
        if !self.volumes.cache.has_tenant(tenant) {
            return Err(Refusal::UnknownTenant);
        }
        let now = self.volumes.now;
        Ok(Report::Violations(now, self.volumes.route.disk.missed_windows(now, tenant)))
    }

    pub(crate) fn report(&mut self, token: u64, report: Report) {
        self.actions.push_back(Action::Report { token, report });
    }

    fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) -> Result<(), Refusal> {
        let spec = spec.settled();
        self.check_cache(tenant, spec)?;
        let before = self.volumes.set_tenant(tenant, spec);
        self.plan_tenant(tenant, spec.cache, before);
        if before.is_none() {
            self.front.latencies.insert(tenant, Recorders::new(self.volumes.now));
        }
        self.divide_anew();
        Ok(())
    }

    fn drop_tenant(&mut self, tenant: TenantId) -> Result<(), Refusal> {
        self.volumes.drop_tenant(tenant)?;
        self.front.latencies.remove(tenant);
        self.unplan_tenant(tenant);
        self.divide_anew();
        Ok(())
    }

    /// Restricts a volume, and has its connections closed that `expelled` names or that may write to a read-only
    /// volume.
    fn restrict(&mut self, token: u64, volume: VolumeId, read_only: bool, expelled: &[ConnId]) -> Result<(), Refusal> {
        self.volumes.restrict(token, volume, read_only)?;
        self.front.close_all(&self.volumes, volume, CloseReason::Revoked, |conn, session| {
            (expelled.contains(&conn) || read_only && !session.read_only) && !planted!(RevokedClientStays)
        });
        Ok(())
    }

    fn close_volume(&mut self, token: u64, volume: VolumeId, discard: bool) -> Result<(), Refusal> {
        self.volumes.close_volume(token, volume, discard)?;
        self.front.close_all(&self.volumes, volume, CloseReason::Over, |_, _| true);
        Ok(())
    }

    fn set_budget(&mut self, token: u64, bytes: u64) -> Result<(), Refusal> {
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
        Ok(())
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

    /// Moves frames between partitions. Answers `SetBudget` when the frames above the limit are free, or after the
    /// deadline.
    pub(crate) fn move_frames(&mut self) {
        // Frames that are still held after the deadline will hardly become free within a millisecond.
        let is_complete = self.volumes.move_frames(if self.held { HELD_STEP } else { MILLISECOND });
        if is_complete && let Some((token, _)) = self.budget_token.take() {
            self.report(token, Report::Done);
        }
        if self.volumes.cache.pool().retiring() == 0 && std::mem::take(&mut self.held) {
            self.actions.push_back(Action::Retired);
        }
        let Some((token, deadline)) = self.budget_token else { return };
        if self.volumes.now < deadline {
            return self.volumes.timers.wake_at(Timer::Frames, deadline);
        }
        self.budget_token = None;
        let bytes = u64::from(self.volumes.cache.pool().retiring()) * BLOCK;
        self.held = bytes > 0;
        self.report(token, if self.held { Report::Held { bytes } } else { Report::Done });
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
    use crate::errno::Errno;
    use crate::event::{Event, Receive, Session};
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
