//! The world's operator: commands at any time, volumes and tenants that are added and removed, power cuts, restarts.

use engine::cache::EvictionPolicy;
use engine::control::LEAST_BYTES;
use engine::control::{
    CacheSpec, Ceilings, Command, Decision, Doubt, FRAME_BYTES, Refusal, Report, Snapshot, TenantSpec, VolumeSpec,
    WriteCache,
};
use engine::curve::{Point, View};
use engine::disk::policy::{Kind, Settings, Slice};
use engine::driver::Driver as _;
use engine::ids::{TenantId, VolumeId};
use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND, VOLUME_BYTES_MAX};
use engine::{Action, Event};

use crate::Verdict;
use crate::history::{History, OpId, Step};
use crate::link::State;
use crate::medium::Turn;
use crate::request::Request;
use crate::trace::Line;
use crate::world::{LinkId, NEVER, World};

/// A command sent to the engine, and how to check its answer.
#[derive(Clone, Debug)]
pub enum Ask {
    /// It must not be refused.
    Must,
    /// A change of the write cache mode: the mode, the step of the command, and whether it must flush the volume.
    WriteCache(VolumeId, WriteCache, Step, bool),
    /// A change of access rights, and the step of the command.
    Restrict(VolumeId, Step),
    /// A change of the memory budget, and when it was requested.
    Budget(Nanos),
    /// A volume grows to this size.
    Grow(VolumeId, u64),
    /// A loss is accepted: the number of the operation, the step of the command, and the disk's completion count then.
    Clear(VolumeId, OpId, Step, Turn),
    /// A volume is closed, since this step; its dirty data is flushed, or dropped by this operation.
    Close(VolumeId, Step, Option<OpId>),
    /// A tenant is created or changed; that may be refused.
    Tenant(TenantId),
    /// A tenant is removed, which is refused if it has volumes.
    Drop(TenantId),
    /// A snapshot of the server.
    Snapshot,
    Curve(EvictionPolicy),
    /// The server is to drain, since this step.
    Drain(Step),
}

impl World {
    pub(crate) fn ask(&mut self, command: Command, ask: Ask) -> Verdict {
        self.tokens += 1;
        let token = self.tokens;
        self.asks.insert(token, ask);
        let now = self.now;
        match &command {
            Command::SetTenant(tenant, spec) => self.entitled[tenant.0 as usize].set(now, spec.ceilings),
            // What is held back goes at once.
            Command::Drain => self.entitled.iter_mut().for_each(|tenant| tenant.set(now, Ceilings::default())),
            _ => {}
        }
        self.handle(Event::Control { token, command })
    }

    /// Creates the tenants, volumes and clients of a new server process.
    pub(crate) fn boot(&mut self) -> Verdict {
        for (i, spec) in self.setup.tenants.clone().into_iter().enumerate() {
            self.ask(Command::SetTenant(TenantId(i as u32), spec), Ask::Must)?;
            self.tenants[i] = true;
        }
        for i in 0..self.volumes.len() {
            self.open(i)?;
            for _ in 0..self.volumes[i].setup.clients + self.volumes[i].setup.stalled_readers {
                self.connect_soon(i);
            }
        }
        Ok(())
    }

    /// Opens a volume (again), unless there is no memory for its tenant.
    pub(crate) fn open(&mut self, volume: usize) -> Verdict {
        if self.is_fenced(volume) {
            return Ok(());
        }
        let tenant = self.volumes[volume].setup.spec.tenant;
        if !self.tenants[tenant.0 as usize] {
            let spec = TenantSpec::default();
            self.ask(Command::SetTenant(tenant, spec), Ask::Tenant(tenant))?;
        }
        if !self.tenants[tenant.0 as usize] {
            return Ok(());
        }
        let state = &self.volumes[volume];
        let (id, size) = (state.setup.spec.volume, state.size);
        self.disk.set_size(id, size);
        self.fence_is_over(volume);
        // The list of holes may be incomplete.
        let mut holes = self.disk.medium(id).holes(size);
        holes.retain(|_| !self.rng.one_in(4));
        let state = &mut self.volumes[volume];
        (state.closing, state.open, state.mode_asked) = (false, true, state.mode);
        let read_only = state.access.read_only;
        let spec = VolumeSpec { size, holes, write_cache: state.mode, read_only, ..state.setup.spec.clone() };
        self.ask(Command::OpenVolume(spec), Ask::Must)
    }

    /// Acts now with the configured probabilities.
    pub(crate) fn operate(&mut self) -> Verdict {
        if self.drained || self.rng.chance(self.setup.restarts) {
            if self.drained || self.rng.one_in(3) || self.draining {
                return self.power_cut();
            }
            self.draining = true;
            let start = self.step + 1;
            return self.ask(Command::Drain, Ask::Drain(start));
        }
        if self.rng.chance(self.setup.kills) {
            return self.kill();
        }
        if self.rng.chance(self.setup.operations) {
            return self.command();
        }
        if self.setup.restricts > 0 && self.rng.chance(self.setup.restricts) {
            let at = self.rng.below(self.volumes.len() as u64) as usize;
            return self.restrict(at);
        }
        Ok(())
    }

    fn command(&mut self) -> Verdict {
        let at = self.rng.below(self.volumes.len() as u64) as usize;
        let volume = self.volumes[at].setup.spec.volume;
        if !self.volumes[at].open {
            return if self.draining { Ok(()) } else { self.open(at) };
        }
        let choice = if self.setup.clears { self.rng.pick(&[3, 3, 3, 7]) } else { self.rng.below(8) };
        match choice {
            0 => {
                let tenant = TenantId(self.rng.below(self.setup.tenants.len() as u64) as u32);
                let asked = |times| CacheSpec::Asked(times * LEAST_BYTES);
                let cache = self.rng.pick(&[CacheSpec::Trial, asked(1), asked(2), asked(4)]);
                let eviction = self.rng.pick(&EvictionPolicy::ALL);
                let share = if self.ops.is_multiple_of(2) { crate::setup::share(&mut self.rng, 1) } else { None };
                // Removed and set again, so that the choices of worlds without ceilings stay the same.
                let TenantSpec { ceilings, min_bytes_per_s, .. } = self.setup.tenants[tenant.0 as usize];
                let is_set = self.ops.is_multiple_of(3);
                let (ceilings, min_bytes_per_s) = if is_set { (ceilings, min_bytes_per_s) } else { Default::default() };
                let spec = TenantSpec { share, min_bytes_per_s, cache, eviction, ceilings, ..TenantSpec::default() };
                self.ask(Command::SetTenant(tenant, spec), Ask::Tenant(tenant))
            }
            1 => self.set_write_cache(at),
            2 => self.grow(at),
            3 if self.volumes[at].trouble.ever() => self.clear(at),
            4 => {
                let bytes = self.rng.between(LEAST_BYTES, self.setup.config.budget_bytes_max);
                self.ask(Command::SetBudget(bytes), Ask::Budget(self.now))
            }
            5 if !self.is_asked(volume) && !self.draining => {
                let discard = self.rng.one_in(2);
                self.close(at, discard)
            }
            6 => self.vanish_all(volume),
            _ if self.setup.changes_policy && self.rng.one_in(2) => self.set_policy(),
            _ if self.setup.config.prefetch_bytes_max != Some(0) && self.ops.is_multiple_of(3) => {
                let bytes = [Some(0), Some(64 << 10), None][(self.ops / 3 % 3) as usize];
                self.ask(Command::SetPrefetch(bytes), Ask::Must)
            }
            _ if self.ops.is_multiple_of(2) => {
                let policy = EvictionPolicy::ALL[(self.ops / 2 % 2) as usize];
                self.ask(Command::Curve(volume, Some(policy)), Ask::Curve(policy))
            }
            _ if self.ops.is_multiple_of(5) => self.plan_like(self.volumes[at].setup.spec.tenant),
            _ => self.ask(Command::Snapshot, Ask::Snapshot),
        }
    }

    fn set_policy(&mut self) -> Verdict {
        let bare = if self.setup.config.policy == Kind::Insulated { Kind::None } else { self.setup.config.policy };
        let settings = Settings {
            kind: self.rng.pick(&[bare, Kind::Insulated, Kind::Insulated]),
            needs_slices: self.rng.one_in(2),
            insulation_permille: self.rng.pick(&[500, 900, 950]),
            round_max_ns: self.rng.pick(&[50 * MILLISECOND, 2 * SECOND]),
            ..self.policy
        };
        if (settings.kind, settings.needs_slices) != (self.policy.kind, self.policy.needs_slices) {
            self.policy_since = Some(self.now);
        }
        self.policy = settings;
        self.ask(Command::SetPolicy(Box::new(settings)), Ask::Must)
    }

    /// Whether a command for a volume is not yet answered.
    pub(crate) fn is_asked(&self, volume: VolumeId) -> bool {
        self.asks.values().any(|ask| match ask {
            Ask::WriteCache(asked, ..) | Ask::Close(asked, ..) | Ask::Clear(asked, ..) => *asked == volume,
            Ask::Restrict(asked, _) => *asked == volume,
            _ => false,
        })
    }

    fn set_write_cache(&mut self, at: usize) -> Verdict {
        let volume = self.volumes[at].setup.spec.volume;
        if self.is_asked(volume) {
            return Ok(());
        }
        let mode = self.rng.pick(&[WriteCache::Volatile, WriteCache::Volatile, WriteCache::None, WriteCache::Unsafe]);
        let state = &mut self.volumes[at];
        let flushes = mode != state.mode && mode != WriteCache::Unsafe;
        (state.through_since, state.mode_asked) = (NEVER, mode);
        if mode == WriteCache::Unsafe {
            state.unsafe_until = NEVER;
            state.promptness.forget();
        }
        let start = self.step + 1;
        self.ask(Command::SetWriteCache(volume, mode), Ask::WriteCache(volume, mode, start, flushes))
    }

    fn grow(&mut self, at: usize) -> Verdict {
        let (volume, size) = (self.volumes[at].setup.spec.volume, self.volumes[at].size);
        let grown = (size + 512 * self.rng.between(1, 500)).min(VOLUME_BYTES_MAX);
        self.disk.set_size(volume, grown);
        self.ask(Command::GrowVolume(volume, grown), Ask::Grow(volume, grown))
    }

    pub(crate) fn clear(&mut self, at: usize) -> Verdict {
        let volume = self.volumes[at].setup.spec.volume;
        self.ops += 1;
        let (op, step) = (self.ops, self.step + 1);
        self.volumes[at].history.begin_loss(op, step);
        self.ask(Command::ClearVolume(volume), Ask::Clear(volume, op, step, self.disk.turn()))
    }

    /// Closes a volume. With `discard` unflushed data may be lost, as if the loss had been accepted.
    pub(crate) fn close(&mut self, at: usize, discard: bool) -> Verdict {
        let (volume, start) = (self.volumes[at].setup.spec.volume, self.step + 1);
        let state = &mut self.volumes[at];
        state.closing = true;
        state.promptness.forget();
        let loss = discard.then(|| {
            self.ops += 1;
            state.history.begin_loss(self.ops, start);
            self.ops
        });
        self.ask(Command::CloseVolume { volume, discard }, Ask::Close(volume, start, loss))
    }

    /// All clients of a volume disconnect at the same time.
    fn vanish_all(&mut self, volume: VolumeId) -> Verdict {
        let ids: Vec<LinkId> = self.links.iter().filter(|(_, link)| link.volume == volume).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.vanish(id));
        Ok(())
    }

    pub(crate) fn reported(&mut self, token: u64, report: Report) -> Verdict {
        let text = match &report {
            Report::Snapshot(_) => "Snapshot".into(),
            Report::Curve(_) => "Curve".into(),
            Report::Stores(_) => "Stores".into(),
            report => format!("{report:?}"),
        };
        self.log(Line::Report(token, text));
        let Some(ask) = self.asks.remove(&token) else { return Err(format!("a report for token {token}: {report:?}")) };
        match (ask, report) {
            (Ask::Must, Report::Done) => Ok(()),
            (Ask::Restrict(volume, _), Report::Done) => self.restricted(volume),
            (Ask::Restrict(volume, start), Report::Refused(Refusal::FlushFailed)) => self.not_restricted(volume, start),
            (Ask::Budget(asked), Report::Done) => self.budget_set(asked, 0),
            (Ask::Budget(asked), Report::Held { bytes }) if bytes > 0 => self.budget_set(asked, bytes / BLOCK),
            (Ask::Budget(_), Report::Refused(Refusal::BudgetTooSmall { .. } | Refusal::InUse)) => Ok(()),
            (Ask::Tenant(tenant), Report::Done) => {
                self.tenants[tenant.0 as usize] = true;
                Ok(())
            }
            (Ask::Tenant(tenant), Report::Refused(Refusal::CacheTooLarge { .. } | Refusal::ShareTooLarge { .. })) => {
                // Its ceilings are those before.
                self.entitled[tenant.0 as usize].set(self.now, Ceilings::default());
                Ok(())
            }
            (Ask::Drop(tenant), Report::Done) if !self.has_volumes(tenant) => {
                self.tenants[tenant.0 as usize] = false;
                Ok(())
            }
            (Ask::Drop(tenant), Report::Refused(Refusal::InUse)) if self.has_volumes(tenant) => Ok(()),
            (Ask::WriteCache(volume, mode, start, flushes), Report::Done) => {
                self.write_cache_set(volume, mode, start, flushes)
            }
            (Ask::WriteCache(volume, ..), Report::Refused(_)) => {
                let state = self.volume(volume);
                // Its present mode is unknown: nothing is promised.
                (state.through_since, state.mode_asked) = (NEVER, state.mode);
                state.unsafe_until = NEVER;
                Ok(())
            }
            (Ask::Grow(volume, size), Report::Done) => {
                let state = self.volume(volume);
                (state.size, state.places.size) = (size, size);
                Ok(())
            }
            (Ask::Grow(..), Report::Refused(Refusal::BadSize | Refusal::UnknownVolume)) => Ok(()),
            (Ask::Clear(volume, op, asked, turn), Report::Done | Report::Refused(Refusal::UnknownVolume)) => {
                self.cleared(volume, op, asked, turn);
                Ok(())
            }
            (Ask::Close(volume, _, loss), Report::Done) => self.closed(volume, loss),
            (Ask::Close(volume, start, None), Report::Refused(Refusal::FlushFailed))
                if self.volume(volume).trouble.excuses_flush(start) =>
            {
                self.volume(volume).closing = false;
                Ok(())
            }
            (Ask::Curve(policy), Report::Curve(view)) => check_curve(policy, &view),
            (Ask::Snapshot, Report::Snapshot(snapshot)) => self.check_snapshot(&snapshot),
            (Ask::Drain(start), Report::Drained { failed }) => self.on_drained(&failed, start),
            (ask, report) => Err(format!("{ask:?} was answered with {report:?}")),
        }
    }

    fn write_cache_set(&mut self, volume: VolumeId, mode: WriteCache, start: Step, flushes: bool) -> Verdict {
        let (step, horizon) = (self.step, self.horizon(volume));
        let state = &mut self.volumes[volume.0 as usize];
        if flushes {
            // Data acknowledged under the old mode is on the medium, whatever that mode promised.
            state.history.flushed(Some(self.disk.medium(volume)), start, horizon)?;
        }
        state.mode = mode;
        if mode == WriteCache::None {
            state.through_since = step;
        }
        if mode != WriteCache::Unsafe && state.unsafe_until == NEVER {
            state.unsafe_until = start;
        }
        Ok(())
    }

    /// The memory budget has changed; `held` frames above the limit are still in use.
    fn budget_set(&mut self, asked: Nanos, held: u64) -> Verdict {
        /// The engine's deadline, beyond the age at which dirty data is written anyway.
        const STALL_TIMEOUT_NS: Nanos = 5 * SECOND;
        let most = asked + self.setup.config.dirty_age_max_ns + STALL_TIMEOUT_NS + self.setup.late_ns;
        if self.now > most + MILLISECOND {
            return Err(format!("SetBudget was asked at {asked} and is answered at {}, which is too late", self.now));
        }
        self.held_most = Some(held);
        Ok(())
    }

    fn has_volumes(&self, tenant: TenantId) -> bool {
        self.volumes.iter().any(|volume| volume.open && volume.setup.spec.tenant == tenant)
    }

    /// A loss was accepted: blocks that could not be written are forgotten, except those with requests in progress.
    fn cleared(&mut self, volume: VolumeId, op: OpId, asked: Step, turn: Turn) {
        let step = self.step;
        let requests: Vec<Request> = self
            .links
            .values()
            .filter(|link| link.volume == volume)
            .flat_map(|link| link.pending.values())
            .map(|p| p.request)
            .collect();
        let disk = &self.disk;
        let in_use = |block: u64| {
            let (from, to) = (u128::from(block * BLOCK), u128::from((block + 1) * BLOCK));
            disk.works_on(volume, block) || requests.iter().any(|r| u128::from(r.offset) < to && from < r.end())
        };
        let state = &mut self.volumes[volume.0 as usize];
        state.trouble.accepted(asked, step, in_use);
        self.disk.forgive(volume, turn);
        state.history.end_loss(op, step);
    }

    fn closed(&mut self, volume: VolumeId, loss: Option<OpId>) -> Verdict {
        if self.disk.is_busy(volume) {
            return Err(format!("{volume:?} is closed, but the device still works for it"));
        }
        if self
            .links
            .values()
            .any(|link| link.volume == volume && link.state == State::Open && !link.pending.is_empty())
        {
            return Err(format!("{volume:?} is closed, but has connections"));
        }
        let step = self.step;
        let state = self.volume(volume);
        state.open = false;
        match loss {
            Some(op) => state.history.end_loss(op, step),
            None => self.check_promised(volume)?,
        }
        self.volume(volume).trouble.accepted(NEVER, step, |_| false);
        if self.busy { self.after_close(volume, loss.is_some()) } else { Ok(()) }
    }

    /// Randomly deletes the closed volume (if its data was discarded), removes its tenant, opens it again now or later.
    fn after_close(&mut self, volume: VolumeId, discarded: bool) -> Verdict {
        let state = &mut self.volumes[volume.0 as usize];
        let tenant = state.setup.spec.tenant;
        if discarded && self.rng.one_in(2) {
            self.disk.delete(volume);
            state.history = History::default();
        }
        if self.rng.one_in(2) {
            self.ask(Command::DropTenant(tenant), Ask::Drop(tenant))?;
        }
        if self.rng.one_in(2) && !self.draining { self.open(volume.0 as usize) } else { Ok(()) }
    }

    /// Everything acknowledged before now is on the medium, whatever the mode was.
    pub(crate) fn check_promised(&mut self, volume: VolumeId) -> Verdict {
        let unsafe_until = std::mem::replace(&mut self.volume(volume).unsafe_until, 0);
        let step = self.step;
        let verdict = self.check_flushed(volume, step);
        self.volume(volume).unsafe_until = unsafe_until;
        verdict
    }

    fn on_drained(&mut self, failed: &[VolumeId], start: Step) -> Verdict {
        self.drained = true;
        for at in (0..self.volumes.len()).filter(|&at| self.volumes[at].open).collect::<Vec<_>>() {
            let volume = self.volumes[at].setup.spec.volume;
            if !failed.contains(&volume) {
                self.check_promised(volume)?;
            } else if !self.volumes[at].trouble.excuses_flush(start) {
                return Err(format!("{volume:?} could not be flushed, but nothing has failed"));
            }
        }
        Ok(())
    }

    pub(crate) fn check_snapshot(&self, snapshot: &Snapshot) -> Verdict {
        let used: u64 = snapshot.tenants.iter().map(|tenant| tenant.used_frames).sum();
        let target: u64 = snapshot.tenants.iter().map(|tenant| tenant.target_frames).sum();
        let most = self.setup.config.requests_per_connection;
        let put_off = self.batch.iter().filter(|action| matches!(action, Action::Submit(_))).count() as u64;
        let held = self.frames.limit() == self.server.frames_limit() && snapshot.held_frames > self.frames.held();
        let wrong = if held {
            "more frames above the limit are in use than before"
        } else if target > snapshot.frames {
            "partitions are larger than the cache"
        } else if snapshot.tenants.iter().any(|tenant| tenant.dirty_frames > tenant.used_frames) {
            "there is more dirt than content"
        } else if snapshot
            .tenants
            .iter()
            .any(|tenant| self.entitled[tenant.tenant.0 as usize].is_exceeded(tenant.usage.delivered.bytes))
        {
            "more bytes were delivered than requested"
        } else if used >= self.setup.config.frames_max() as u64 {
            "more frames are used than there are"
        } else if snapshot.in_flight != self.disk.in_flight() as u64 + put_off {
            "requests in the device are miscounted"
        } else if snapshot.connections.iter().any(|connection| connection.in_flight > most) {
            "a connection has too many requests in flight"
        } else if let Some(wrong) = check_sizing(snapshot).or_else(|| self.check_disk_time(snapshot)) {
            wrong
        } else {
            return Ok(());
        };
        Err(format!("{wrong}: {snapshot:?}"))
    }

    /// With slices: the accounting of disk time is consistent, and no tenant starves.
    fn check_disk_time(&self, snapshot: &Snapshot) -> Option<&'static str> {
        /// Maximum number of rounds until a waiting tenant gets its slice: one; more while the set of tenants changes.
        const ROUNDS_MAX: u64 = 6;
        if self.policy.kind != Kind::Insulated {
            return None;
        }
        let owned_ns = snapshot.time.tenant_ns + snapshot.time.switch_ns;
        let plans = || snapshot.tenants.iter().filter_map(|tenant| tenant.plan);
        let overlap = |pair: &[Slice]| pair[0].ended > pair[1].begun;
        let tenants = plans().count() as u64;
        if snapshot.slices.windows(2).any(overlap) {
            Some("slices overlap")
        } else if snapshot.tenants.iter().map(|tenant| tenant.usage.owned_ns).sum::<u64>() > owned_ns {
            Some("tenants owned more than all time")
        } else if owned_ns > snapshot.busy_ns + snapshot.idle_ns {
            Some("more time was owned than has passed")
        } else if snapshot.time.stuck == 0 && !self.setup.changes_policy && snapshot.busy_ns > owned_ns {
            Some("the device worked for nobody")
        } else if plans().any(|plan| plan.waiting_slices > ROUNDS_MAX * tenants) {
            Some("somebody's turn never comes")
        } else if plans().any(|plan| !self.setup.changes_policy && plan.debt_ns > self.setup.config.round_max_ns) {
            // Otherwise its next slice would be due only after a long time.
            Some("somebody owes more than a round")
        } else {
            None
        }
    }
}

/// Ratios are between 0 and 1, and under LRU a larger cache does not miss more.
fn check_curve(policy: EvictionPolicy, view: &View) -> Verdict {
    let parts =
        |point: &Point| [point.reads, point.writes, point.all].into_iter().flatten().all(|p| (0.0..=1.0).contains(&p));
    let falls = |pair: &[Point]| {
        pair[0].blocks < pair[1].blocks && (policy != EvictionPolicy::Lru || pair[0].all >= pair[1].all)
    };
    if view.policy == policy && view.points.iter().all(parts) && view.points.windows(2).all(falls) {
        return Ok(());
    }
    Err(format!("this is no curve: {view:?}"))
}

/// An admitted tenant has what it needs, and so has one whose partition fills; and no more memory is promised than
/// exists, once the planner has seen the present tenants and memory.
fn check_sizing(snapshot: &Snapshot) -> Option<&'static str> {
    if !snapshot.is_planned {
        return None;
    }
    let sizings =
        || snapshot.tenants.iter().filter_map(|tenant| Some((tenant.target_frames * FRAME_BYTES, tenant.sizing?)));
    let is_guaranteed = |decision| matches!(decision, Decision::Admitted | Decision::Trial(Doubt::Filling { .. }));
    let admitted = || sizings().filter(|(_, sizing)| is_guaranteed(sizing.decision));
    if admitted().any(|(target_bytes, sizing)| target_bytes < sizing.kept_bytes.max(sizing.need_bytes.unwrap_or(0))) {
        Some("the partition of an admitted tenant is below its need")
    } else if sizings().map(|(_, sizing)| sizing.kept_bytes).sum::<u64>() > snapshot.frames * FRAME_BYTES {
        Some("more cache is promised than there is")
    } else {
        None
    }
}
