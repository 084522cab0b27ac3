//! The end of a world, without faults or new requests: everything must terminate, be intact, and release its resources.

use std::collections::VecDeque;

use engine::control::{CacheSpec, Command, LEAST_BYTES, Report, TenantSpec, TenantStats};
use engine::disk::policy::PACE_DEBT_NS;
use engine::ids::TenantId;
use engine::nbd::Form;
use engine::nbd::wire::{command, command_flag};
use engine::units::{BLOCK, Nanos, PIECE, SECOND};
use engine::{Action, Event, Session};

use crate::Verdict;
use crate::fault::Faults;
use crate::link::State;
use crate::operator::Ask;
use crate::request::Request;
use crate::trace::Line;
use crate::workload::Manners;
use crate::world::{LinkId, Wake, World};

/// The longest time that the device keeps a request: a slow one takes up to 100 times its normal duration.
const STUCK_MAX_NS: Nanos = 200 * SECOND;

impl World {
    /// Ends all faults and new work, waits until everything has terminated, then checks content and resources.
    pub(crate) fn finale(&mut self) -> Verdict {
        let calm_since = self.now;
        self.disk.faults = Faults::NONE;
        self.busy = false;
        self.openings.clear();
        self.release_hung();
        self.until("draining", 100 * SECOND + self.zeroing_ns(), |world| !world.draining || world.drained)?;
        if self.drained {
            self.power_cut()?;
        }
        self.log(Line::Note("peace".into()));
        for link in self.links.values_mut().filter(|link| !link.manners.stalled_reader) {
            link.manners = Manners { vanishes: link.manners.vanishes, ..Manners::calm() };
        }
        let stalled: Vec<LinkId> = self.links.iter().filter(|(_, link)| link.withheld > 0).map(|(id, _)| *id).collect();
        stalled.into_iter().for_each(|id| self.send_rest(id));
        // A stalled reader delays no command, except those that need the memory of its unsent replies.
        let can_wait = |ask: &Ask| matches!(ask, Ask::Budget(_));
        let limit_ns = 100 * SECOND + self.zeroing_ns();
        self.until("peace", limit_ns, |world| world.asks.values().all(can_wait) && world.is_quiet())?;
        let stalled_reader: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| link.manners.stalled_reader).map(|(id, _)| *id).collect();
        for id in stalled_reader {
            self.hear(id);
        }
        self.until("peace", 100 * SECOND, |world| world.asks.is_empty() && world.is_quiet())?;
        self.dismiss()?;
        self.old_requests_return(calm_since)?;
        self.reopen()?;
        for at in 0..self.volumes.len() {
            self.inspect(at)?;
        }
        self.give_back()?;
        self.last_power_cut()
    }

    /// The time that ranges being zeroed may take on a device with a throttle: at least 1 MiB at a time (the engine's
    /// `ZEROS_BYTES`), and each of these parts is delayed by at most the longest pause of pacing.
    fn zeroing_ns(&self) -> Nanos {
        let requests = self.links.values().flat_map(|link| link.pending.values().map(|pending| pending.request));
        let zeroes = requests.filter(|request| request.command == command::WRITE_ZEROES);
        zeroes.map(|request| u64::from(request.len).div_ceil(1 << 20) * PACE_DEBT_NS).sum()
    }

    /// Requests submitted before `since`, while the device had faults, may still be delayed, and may fail. Waits until
    /// they return. Perhaps no client waits for them: for example the flush of a newly opened volume, or writes of a
    /// volume whose write cache is `unsafe`.
    fn old_requests_return(&mut self, since: Nanos) -> Verdict {
        self.until("the fence", STUCK_MAX_NS, |world| {
            !world.volumes.iter().any(|volume| world.disk.has_orphans(volume.setup.spec.volume))
                && world.disk.requests().all(|(_, submitted_at)| submitted_at > since)
        })
    }

    /// No client waits for an answer, except stalled readers.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = |state| !matches!(state, State::Open | State::Leaving);
        self.links
            .values()
            .all(|link| link.outstanding == 0 || link.garbage || link.manners.stalled_reader || quiet(link.state))
    }

    /// Opens all closed volumes. Each tenant asks for the smallest cache, because a tenant that was admitted after its
    /// trial may keep so much that the engine refuses another one.
    fn reopen(&mut self) -> Verdict {
        self.ask(Command::SetBudget(self.setup.config.budget_bytes_max), Ask::Must)?;
        self.until("a budget", 100 * SECOND, |world| world.asks.is_empty())?;
        self.ask_for_smallest_caches()?;
        for at in 0..self.volumes.len() {
            if !self.volumes[at].open {
                self.open(at)?;
            }
            if !self.volumes[at].open {
                return Err(format!("volume {at} cannot be opened after all faults have ended"));
            }
        }
        Ok(())
    }

    fn ask_for_smallest_caches(&mut self) -> Verdict {
        let spec = TenantSpec { cache: CacheSpec::Asked(LEAST_BYTES), ..TenantSpec::default() };
        for tenant in (0..self.tenants.len()).filter(|&at| self.tenants[at]).collect::<Vec<_>>() {
            self.ask(Command::SetTenant(TenantId(tenant as u32), spec), Ask::Must)?;
        }
        Ok(())
    }

    /// All clients disconnect.
    fn dismiss(&mut self) -> Verdict {
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in ids {
            self.leave(id);
        }
        self.until("leaving", 100 * SECOND, |world| world.links.is_empty())
    }

    /// One client sends these requests, in order.
    fn follow(&mut self, at: usize, script: VecDeque<Request>) -> Verdict {
        let session =
            Session { form: Form::Structured, base_allocation: true, load: false, read_only: false, demotes: None };
        let id = self.attach(at, session, Manners::calm(), 0)?;
        self.links.get_mut(&id).expect("just attached").script = script;
        self.until("a script", 100 * SECOND, |world| {
            world.links.get(&id).is_none_or(|link| link.script.is_empty() && link.outstanding == 0)
        })?;
        self.dismiss()
    }

    fn request(&mut self, command: u16, flags: u16, offset: u64, len: u64) -> Request {
        self.ops += 1;
        Request { op: self.ops, cookie: self.ops, command, flags, offset, len: len as u32 }
    }

    /// Flushes a volume, after accepting its losses from faults, and reads it.
    fn inspect(&mut self, at: usize) -> Verdict {
        if self.volumes[at].trouble.ever() {
            let flush = self.request(command::FLUSH, 0, 0, 0);
            self.follow(at, [flush].into())?;
            self.clear(at)?;
            // Until the loss is accepted, a flush may still fail because of the blocks that are given up.
            self.until("accepting a loss", 100 * SECOND, |world| world.asks.is_empty())?;
            self.volumes[at].trouble = Default::default();
        }
        let mut script = VecDeque::from([self.request(command::FLUSH, 0, 0, 0)]);
        let blocks: Vec<u64> = self.volumes[at].history.blocks().collect();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some((from, len)) if *from + *len == block * BLOCK && *len < PIECE => *len += BLOCK,
                _ => runs.push((block * BLOCK, BLOCK)),
            }
        }
        let size = self.volumes[at].size;
        for (offset, len) in runs {
            let len = len.min(size - offset);
            script.push_back(self.request(command::BLOCK_STATUS, command_flag::REQ_ONE, offset, len));
            script.push_back(self.request(command::READ, 0, offset, len));
        }
        script.push_back(self.request(command::FLUSH, 0, 0, 0));
        self.follow(at, script)
    }

    /// Without connections and volumes no frame is in use: no frame was leaked.
    fn give_back(&mut self) -> Verdict {
        // Also the tenants that came with their volumes.
        self.ask_for_smallest_caches()?;
        self.shrunk()?;
        // No stalled reader, no failure and no hung request is left, so all memory above the new limit is returned.
        let tenants = self.tenants.iter().filter(|&&there| there).count() as u64;
        self.ask(Command::SetBudget(tenants.max(1) * LEAST_BYTES), Ask::Must)?;
        self.until("giving back memory", 100 * SECOND, |world| world.asks.is_empty())?;
        self.held_most = Some(0);
        self.give_back_frames()?;
        if self.rng.one_in(2) {
            self.draining = true;
            let start = self.step + 1;
            self.ask(Command::Drain, Ask::Drain(start))?;
            return self.until("the last drain", 100 * SECOND, |world| world.asks.is_empty());
        }
        let discard = self.rng.one_in(4);
        for at in 0..self.volumes.len() {
            self.close(at, discard)?;
        }
        self.until("closing", 100 * SECOND, |world| world.asks.is_empty())?;
        self.snapshot("after closing everything", |tenant| tenant.used_frames == 0)
    }

    /// Partitions shrink to their targets.
    fn shrunk(&mut self) -> Verdict {
        let mut verdict = Ok(());
        for _ in 0..100 {
            let end = self.now + SECOND;
            self.queue.push(end, Wake::Connect(0));
            self.until("shrinking", 2 * SECOND, |world| world.now >= end)?;
            verdict = self.snapshot("after shrinking", |tenant| tenant.used_frames <= tenant.target_frames);
            if verdict.is_ok() {
                break;
            }
        }
        verdict
    }

    fn snapshot(&mut self, when: &str, fine: impl Fn(&TenantStats) -> bool) -> Verdict {
        self.tokens += 1;
        let token = self.tokens;
        let event = Event::Control { token, command: Command::Snapshot };
        self.step += 1;
        self.log(Line::Control(token, "Snapshot".into()));
        self.server.handle(self.now, event);
        let mut found = None;
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Report { report: Report::Snapshot(snapshot), .. } => found = Some(snapshot),
                Action::Work(tenant) => self.cpu.backlog(tenant),
                other => self.carry_out(other)?,
            }
        }
        self.plan_pass();
        let Some(snapshot) = found else { return Err("a snapshot was not answered at once".into()) };
        if !snapshot.connections.is_empty() || !snapshot.tenants.iter().all(fine) {
            return Err(format!("{when}: {snapshot:?}"));
        }
        self.check_snapshot(&snapshot)
    }

    /// A last power cut: the surviving content is checked.
    fn last_power_cut(&mut self) -> Verdict {
        self.disk.power_cut(self.now);
        for volume in &mut self.volumes {
            volume.history.power_cut(self.disk.medium(volume.setup.spec.volume))?;
        }
        Ok(())
    }
}
