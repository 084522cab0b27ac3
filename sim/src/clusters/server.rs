//! A server: a process with an engine, a disk, a clock, and what is known of the agreed state.

use std::collections::BTreeSet;

use engine::Config;
use engine::cluster::Clock as Told;
use engine::control::{CacheSpec, Command, LEAST_BYTES, Refusal, Report, TenantSpec};
use engine::disk::policy::Kind;
use engine::units::{BLOCK, MILLISECOND, Nanos};

use super::agreed::{Due, Schedule};
use super::checks::Watch;
use super::clock::Clock;
use super::disk::{Disk, VOLUME_BYTES};
use crate::Verdict;
use crate::bench::{Bench, Costs, Done};
use crate::load::Request;

/// What a context switch costs, as the engine is told.
pub(super) const SWITCH_NS: Nanos = 4 * MILLISECOND;
/// Requests in the device.
const DEPTH: u32 = 16;

/// A process.
struct Process {
    bench: Bench,
    /// When its time began.
    born: Nanos,
    due: Due,
}

/// A server.
pub(super) struct Server {
    /// The clients that have a volume here: their places are the numbers of their volumes and tenants.
    pub(super) guests: Vec<usize>,
    pub(super) disk: Disk,
    pub(super) clock: Clock,
    /// The last schedule that it has kept, by version; 0 if it has none.
    pub(super) kept: u64,
    /// Messages do not arrive until then.
    pub(super) cut_until: Nanos,
    /// The number of its processes so far.
    pub(super) life: u64,
    process: Option<Process>,
    /// Requests that the process has got and not answered: of which client, and with which number.
    unanswered: BTreeSet<(usize, u64)>,
    pub(super) watch: Watch,
}

impl Server {
    pub(super) fn new(guests: Vec<usize>, disk: Disk, clock: Clock) -> Server {
        let watch = Watch::new(guests.len());
        Server {
            guests,
            disk,
            clock,
            kept: 0,
            cut_until: 0,
            life: 0,
            process: None,
            unanswered: BTreeSet::new(),
            watch,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Which schedules the process has to follow.
    pub(super) fn due(&self) -> Option<&Due> {
        self.process.as_ref().map(|process| &process.due)
    }

    /// A process starts. It is told the time, and the schedule that the server has kept.
    pub(super) fn start(&mut self, now: Nanos, kept: Option<(&Schedule, &[Vec<usize>])>) -> Verdict {
        let count = self.guests.len();
        let config = Config {
            policy: Kind::Insulated,
            needs_slices: true,
            switch_ns: SWITCH_NS,
            device_depth: DEPTH,
            prefetch_bytes_max: Some(0),
            ..Config::new((count as u64 + 1) * LEAST_BYTES)
        };
        let tenant = TenantSpec { cache: CacheSpec::Asked(LEAST_BYTES), ..TenantSpec::default() };
        let drive = self.disk.open(now);
        let bench = Bench::driven(config, drive, Costs::default(), &vec![tenant; count], VOLUME_BYTES)?;
        self.process = Some(Process { bench, born: now, due: Due::default() });
        self.life += 1;
        self.clock.forget();
        self.tell_clock(now)?;
        self.watch.restart(now);
        match kept {
            Some((schedule, servers)) => self.follow(now, schedule, servers),
            None => Ok(()),
        }
    }

    /// The process dies.
    pub(super) fn die(&mut self) {
        self.process = None;
        self.unanswered.clear();
    }

    /// The engine is told the clock if it has moved.
    pub(super) fn tell_clock(&mut self, now: Nanos) -> Verdict {
        let Some(process) = &mut self.process else { return Ok(()) };
        let Some(ahead_ns) = self.clock.tell(now, process.born) else { return Ok(()) };
        process.bench.pass_to(now - process.born);
        process.bench.ask(Command::SetClock(Told { ahead_ns })).map(drop)
    }

    /// The engine is told a schedule. It takes a version only if that is above all earlier ones.
    pub(super) fn follow(&mut self, now: Nanos, schedule: &Schedule, servers: &[Vec<usize>]) -> Verdict {
        let timetable = schedule.part(&self.guests, servers);
        let Some(process) = &mut self.process else { return Ok(()) };
        process.bench.pass_to(now - process.born);
        let is_later = schedule.version > process.due.highest();
        let report = process.bench.ask(Command::SetTimetable(Some(Box::new(timetable))))?;
        match report {
            Report::Done if is_later => process.due.told(now, schedule),
            Report::Refused(Refusal::Outdated { .. }) if !is_later => {}
            // The disk shows which one it follows.
            Report::Done => {}
            other => return Err(format!("version {} is answered with {other:?}", schedule.version)),
        }
        Ok(())
    }

    /// A request arrives.
    pub(super) fn take(&mut self, now: Nanos, guest: usize, request: Request) {
        let Some(process) = &mut self.process else { return };
        if self.unanswered.insert((guest, request.id)) {
            process.bench.arrives(now - process.born, guest, request);
        }
    }

    /// When its process does something next.
    pub(super) fn due_at(&self) -> Option<Nanos> {
        let process = self.process.as_ref()?;
        Some(process.bench.due_at()? + process.born)
    }

    /// It does what is due.
    pub(super) fn step(&mut self, now: Nanos) -> Vec<Done> {
        let mut done = Vec::new();
        if let Some(process) = &mut self.process {
            process.bench.step(now - process.born, &mut |what| done.push(what));
        }
        for Done { volume, request, .. } in &done {
            self.unanswered.remove(&(*volume, request.id));
        }
        done
    }

    /// Requests of a guest that are not answered.
    pub(super) fn waiting(&self, guest: usize) -> u32 {
        self.unanswered.range((guest, 0)..=(guest, u64::MAX)).count() as u32
    }
}

/// A place in a volume.
pub(super) fn place(rng: &mut crate::rng::Rng, bytes: u64) -> u64 {
    rng.below((VOLUME_BYTES - bytes) / BLOCK) * BLOCK
}
