//! The world's operator: commands in the middle of everything, power cuts, restarts, and the end of the story, at which
//! everything must be in order.

use std::collections::VecDeque;

use engine::control::LEAST_BYTES;
use engine::control::{Command, Refusal, Report, Snapshot, TenantId, TenantSpec, VolumeSpec, WriteCache};
use engine::disk::VolumeId;
use engine::nbd::wire::{command, command_flag};
use engine::units::{BLOCK, PIECE, SECOND, VOLUME_BYTES_MAX};
use engine::{Event, Server, Session};

use crate::Verdict;
use crate::fault::Faults;
use crate::frames::Frames;
use crate::history::{OpId, Step};
use crate::link::State;
use crate::request::Request;
use crate::trace::Line;
use crate::workload::Manners;
use crate::world::{LinkId, NEVER, Wake, World};

/// What was asked of the engine, and what the answer means.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Something that cannot be refused.
    Must,
    /// Something that may be refused.
    May,
    /// A change of a write cache, since when.
    WriteCache(VolumeId, WriteCache, Step),
    /// A volume grows.
    Grow(VolumeId, u64),
    /// A loss is accepted.
    Clear(VolumeId, OpId),
    /// A volume is closed, to be opened again or not.
    Close(VolumeId, bool),
    /// How it all is.
    Snapshot,
    /// The server is to stop.
    Drain,
}

impl World {
    pub(crate) fn ask(&mut self, command: Command, ask: Ask) -> Verdict {
        self.tokens += 1;
        let token = self.tokens;
        self.asks.insert(token, ask);
        let line = Line::Control(token, format!("{command:?}"));
        self.give(Event::Control { token, command }, line)
    }

    /// Tenants, volumes and clients of a new life of the server.
    pub(crate) fn boot(&mut self) -> Verdict {
        for (i, spec) in self.setup.tenants.clone().into_iter().enumerate() {
            self.ask(Command::SetTenant(TenantId(i as u32), spec), Ask::Must)?;
        }
        for i in 0..self.volumes.len() {
            self.open(i)?;
            for _ in 0..self.volumes[i].setup.clients {
                self.connect_soon(i);
            }
        }
        Ok(())
    }

    fn open(&mut self, volume: usize) -> Verdict {
        let state = &self.volumes[volume];
        let (id, size) = (state.setup.spec.volume, state.size);
        self.disk.set_size(id, size);
        // Holes may be too few.
        let mut holes = self.disk.medium(id).holes(size);
        holes.retain(|_| !self.rng.one_in(4));
        let state = &self.volumes[volume];
        let spec = VolumeSpec { size, holes, write_cache: state.mode, ..state.setup.spec.clone() };
        self.ask(Command::OpenVolume(spec), Ask::Must)
    }

    /// Perhaps something happens now.
    pub(crate) fn operate(&mut self) -> Verdict {
        if self.drained || self.rng.chance(self.setup.restarts) {
            if self.drained || self.rng.one_in(3) || self.draining {
                return self.power_cut();
            }
            self.draining = true;
            return self.ask(Command::Drain, Ask::Drain);
        }
        if self.rng.chance(self.setup.operations) {
            return self.command();
        }
        Ok(())
    }

    fn command(&mut self) -> Verdict {
        let at = self.rng.below(self.volumes.len() as u64) as usize;
        let volume = self.volumes[at].setup.spec.volume;
        match self.rng.below(8) {
            0 => {
                let tenant = TenantId(self.rng.below(self.setup.tenants.len() as u64) as u32);
                let cache = self.rng.pick(&[None, Some(LEAST_BYTES), Some(2 * LEAST_BYTES), Some(4 * LEAST_BYTES)]);
                self.ask(Command::SetTenant(tenant, TenantSpec { share: None, cache }), Ask::May)
            }
            1 => self.set_write_cache(at),
            2 => self.grow(at),
            3 if self.volumes[at].faulted => self.clear(at),
            4 => {
                let bytes = self.rng.between(LEAST_BYTES, self.setup.config.budget_bytes_max);
                self.ask(Command::SetBudget(bytes), Ask::May)
            }
            5 if !self.is_asked(volume) && !self.draining => self.close(at, true),
            6 => self.vanish_all(volume),
            _ => self.ask(Command::Snapshot, Ask::Snapshot),
        }
    }

    /// Whether something is asked of a volume and not yet answered.
    fn is_asked(&self, volume: VolumeId) -> bool {
        self.asks.values().any(|ask| match ask {
            Ask::WriteCache(asked, ..) | Ask::Close(asked, _) | Ask::Clear(asked, _) => *asked == volume,
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
        state.through_since = NEVER;
        if mode == WriteCache::Unsafe {
            state.unsafe_until = NEVER;
        }
        let start = self.step + 1;
        self.ask(Command::SetWriteCache(volume, mode), Ask::WriteCache(volume, mode, start))
    }

    fn grow(&mut self, at: usize) -> Verdict {
        let (volume, size) = (self.volumes[at].setup.spec.volume, self.volumes[at].size);
        let grown = (size + 512 * self.rng.between(1, 500)).min(VOLUME_BYTES_MAX);
        self.disk.set_size(volume, grown);
        self.ask(Command::GrowVolume(volume, grown), Ask::Grow(volume, grown))
    }

    fn clear(&mut self, at: usize) -> Verdict {
        let volume = self.volumes[at].setup.spec.volume;
        self.ops += 1;
        let (op, step) = (self.ops, self.step + 1);
        self.volumes[at].history.begin_loss(op, step);
        self.ask(Command::ClearVolume(volume), Ask::Clear(volume, op))
    }

    fn close(&mut self, at: usize, reopen: bool) -> Verdict {
        let volume = self.volumes[at].setup.spec.volume;
        self.volumes[at].closing = true;
        self.ask(Command::CloseVolume { volume, discard: false }, Ask::Close(volume, reopen))
    }

    /// All clients of a volume vanish at the same time.
    fn vanish_all(&mut self, volume: VolumeId) -> Verdict {
        let ids: Vec<LinkId> = self.links.iter().filter(|(_, link)| link.volume == volume).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.vanish(id));
        Ok(())
    }

    pub(crate) fn reported(&mut self, token: u64, report: Report) -> Verdict {
        let text = if let Report::Snapshot(_) = report { "Snapshot".into() } else { format!("{report:?}") };
        self.log(Line::Report(token, text));
        let Some(ask) = self.asks.remove(&token) else { return Err(format!("a report for token {token}: {report:?}")) };
        match (ask, report) {
            (Ask::Must | Ask::May, Report::Done) | (Ask::May, Report::Refused(_)) => Ok(()),
            (Ask::WriteCache(volume, mode, start), Report::Done) => self.write_cache_set(volume, mode, start),
            (Ask::WriteCache(volume, ..), Report::Refused(_)) => {
                let state = self.volume(volume);
                // What it does now is not known: a mode that promises nothing.
                state.through_since = NEVER;
                state.unsafe_until = NEVER;
                Ok(())
            }
            (Ask::Grow(volume, size), Report::Done) => {
                let state = self.volume(volume);
                (state.size, state.places.size) = (size, size);
                Ok(())
            }
            (Ask::Grow(..), Report::Refused(Refusal::BadSize | Refusal::UnknownVolume)) => Ok(()),
            (Ask::Clear(volume, op), Report::Done | Report::Refused(Refusal::UnknownVolume)) => {
                let step = self.step;
                self.volume(volume).history.end_loss(op, step);
                Ok(())
            }
            (Ask::Close(volume, reopen), Report::Done) => self.closed(volume, reopen),
            (Ask::Close(volume, _), Report::Refused(Refusal::FlushFailed)) if self.volume(volume).faulted => {
                self.volume(volume).closing = false;
                Ok(())
            }
            (Ask::Snapshot, Report::Snapshot(snapshot)) => self.check_snapshot(&snapshot),
            (Ask::Drain, Report::Drained { failed }) => self.on_drained(&failed),
            (ask, report) => Err(format!("{ask:?} was answered with {report:?}")),
        }
    }

    fn write_cache_set(&mut self, volume: VolumeId, mode: WriteCache, start: Step) -> Verdict {
        let step = self.step;
        let state = self.volume(volume);
        state.mode = mode;
        if mode == WriteCache::None {
            state.through_since = step;
        }
        if mode != WriteCache::Unsafe && state.unsafe_until == NEVER {
            state.unsafe_until = start;
        }
        Ok(())
    }

    fn closed(&mut self, volume: VolumeId, reopen: bool) -> Verdict {
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
        self.check_promised(volume)?;
        if reopen {
            self.volume(volume).closing = false;
            return self.open(volume.0 as usize);
        }
        Ok(())
    }

    /// Everything that was acknowledged before now is on the medium, whatever the mode was.
    fn check_promised(&mut self, volume: VolumeId) -> Verdict {
        let unsafe_until = std::mem::replace(&mut self.volume(volume).unsafe_until, 0);
        let step = self.step;
        let verdict = self.check_flushed(volume, step);
        self.volume(volume).unsafe_until = unsafe_until;
        verdict
    }

    fn on_drained(&mut self, failed: &[VolumeId]) -> Verdict {
        self.drained = true;
        for at in 0..self.volumes.len() {
            let volume = self.volumes[at].setup.spec.volume;
            if !failed.contains(&volume) {
                self.check_promised(volume)?;
            } else if !self.volumes[at].faulted {
                return Err(format!("{volume:?} could not be flushed, but nothing ever failed"));
            }
        }
        Ok(())
    }

    fn check_snapshot(&self, snapshot: &Snapshot) -> Verdict {
        let used: u64 = snapshot.tenants.iter().map(|tenant| tenant.used_frames).sum();
        let target: u64 = snapshot.tenants.iter().map(|tenant| tenant.target_frames).sum();
        let most = self.setup.config.requests_per_connection;
        let wrong = if target > snapshot.frames {
            "partitions are larger than the cache"
        } else if snapshot.tenants.iter().any(|tenant| tenant.dirty_frames > tenant.used_frames) {
            "there is more dirt than content"
        } else if used >= self.setup.config.frames_max() as u64 {
            "more frames are used than there are"
        } else if snapshot.in_flight != self.disk.in_flight() as u64 {
            "requests in the device are miscounted"
        } else if snapshot.connections.iter().any(|connection| connection.in_flight > most) {
            "a connection has too many requests in flight"
        } else {
            return Ok(());
        };
        Err(format!("{wrong}: {snapshot:?}"))
    }

    /// The power fails, and comes back: what survived is checked, a new server begins with it.
    pub(crate) fn power_cut(&mut self) -> Verdict {
        self.log(Line::Note("the power is cut".into()));
        self.stats.restarts += 1;
        self.life += 1;
        self.disk.power_cut(self.now);
        self.links.clear();
        self.by_conn.clear();
        self.asks.clear();
        (self.draining, self.drained) = (false, false);
        self.answered_at = self.now;
        self.server = Server::new(self.setup.config.clone());
        self.frames = Frames::new(self.setup.config.frames_max());
        for volume in &mut self.volumes {
            let medium = self.disk.medium(volume.setup.spec.volume);
            volume.history.power_cut(medium).map_err(|what| format!("{:?}: {what}", volume.setup.spec.volume))?;
            (volume.faulted, volume.closing) = (false, false);
            volume.through_since = if volume.mode == WriteCache::None { self.step } else { NEVER };
            volume.unsafe_until = if volume.mode == WriteCache::Unsafe { NEVER } else { self.step };
        }
        self.boot()
    }

    /// Peace: no faults, nothing new. Everything must come to an end, be whole, and be given back.
    pub(crate) fn finale(&mut self) -> Verdict {
        self.disk.faults = Faults::NONE;
        self.busy = false;
        self.until("draining", 100 * SECOND, |world| !world.draining || world.drained)?;
        if self.drained {
            self.power_cut()?;
        }
        self.log(Line::Note("peace".into()));
        for link in self.links.values_mut() {
            link.manners = Manners { vanishes: link.manners.vanishes, ..Manners::calm() };
        }
        self.until("peace", 100 * SECOND, |world| world.asks.is_empty() && world.is_quiet())?;
        self.dismiss()?;
        for at in 0..self.volumes.len() {
            self.inspect(at)?;
        }
        self.give_back()?;
        self.last_power_cut()
    }

    /// Nobody waits for anything.
    fn is_quiet(&self) -> bool {
        let quiet = |state| !matches!(state, State::Open | State::Leaving);
        self.links.values().all(|link| link.outstanding == 0 || link.garbage || quiet(link.state))
    }

    /// All clients leave.
    fn dismiss(&mut self) -> Verdict {
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in ids {
            self.leave(id);
        }
        self.until("leaving", 100 * SECOND, |world| world.links.is_empty())
    }

    /// One client asks for all this, in order.
    fn follow(&mut self, at: usize, script: VecDeque<Request>) -> Verdict {
        let session = Session { structured: true, base_allocation: true };
        let id = self.attach(at, session, Manners::calm())?;
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

    /// A volume is flushed, after accepting what was lost to faults, and read.
    fn inspect(&mut self, at: usize) -> Verdict {
        if self.volumes[at].faulted {
            let flush = self.request(command::FLUSH, 0, 0, 0);
            self.follow(at, [flush].into())?;
            self.clear(at)?;
            self.volumes[at].faulted = false;
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

    /// Without connections and volumes no frame is in use: none was leaked.
    fn give_back(&mut self) -> Verdict {
        for tenant in 0..self.setup.tenants.len() as u32 {
            let spec = TenantSpec { share: None, cache: Some(LEAST_BYTES) };
            self.ask(Command::SetTenant(TenantId(tenant), spec), Ask::Must)?;
        }
        self.shrunk()?;
        if self.rng.one_in(2) {
            self.draining = true;
            self.ask(Command::Drain, Ask::Drain)?;
            return self.until("the last drain", 100 * SECOND, |world| world.asks.is_empty());
        }
        for at in 0..self.volumes.len() {
            self.close(at, false)?;
        }
        self.until("closing", 100 * SECOND, |world| world.asks.is_empty())?;
        self.snapshot("after closing everything", |tenant| tenant.used_frames == 0)
    }

    /// Partitions get as small as they were told to.
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

    fn snapshot(&mut self, when: &str, fine: impl Fn(&engine::control::TenantStats) -> bool) -> Verdict {
        self.tokens += 1;
        let token = self.tokens;
        let event = Event::Control { token, command: Command::Snapshot };
        self.step += 1;
        self.log(Line::Control(token, "Snapshot".into()));
        self.server.handle(self.now, event);
        let Some(engine::Action::Report { report: Report::Snapshot(snapshot), .. }) = self.server.poll_action() else {
            return Err("a snapshot was not answered at once".into());
        };
        if !snapshot.connections.is_empty() || !snapshot.tenants.iter().all(fine) {
            return Err(format!("{when}: {snapshot:?}"));
        }
        self.check_snapshot(&snapshot)
    }

    /// What is on the medium now is all there is.
    fn last_power_cut(&mut self) -> Verdict {
        self.disk.power_cut(self.now);
        for volume in &mut self.volumes {
            volume.history.power_cut(self.disk.medium(volume.setup.spec.volume))?;
        }
        Ok(())
    }
}
