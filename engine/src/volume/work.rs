//! Work in steps: no event takes long, for any request of a client.
//!
//! ```text
//!   event ──► at most one step ──► remaining work: backlog of its tenant ──► Action::Work(tenant)
//!                                         ▲                                       │ driver, in the tenant's quantum
//!                                         └─────────── Event::Work(tenant) ◄──────┘
//! ```
//!
//! Work is counted in units of about [`UNIT_NS`]: a look at a block that is in no cache of the processor. Loops over
//! blocks, pieces, places or connections count units and stop when the step is used up. The remaining work goes to the
//! backlog of the tenant that caused it. The driver charges the units to that tenant ([`crate::Server::take_spent`])
//! and decides when its backlog continues. So a tenant that causes much work has less thread time for its requests;
//! other tenants do not.
//!
//! Downside: a piece of 64 blocks and a device write of 256 blocks are never divided, so one of them may exceed a step.

use std::collections::VecDeque;

use crate::ids::Ticket;
use crate::ids::{TenantId, VolumeId};
use crate::units::Nanos;
use crate::volume::{Effect, Volumes};

/// Approximate time of a unit of work: a look-up of a block in an index that is larger than the processor's caches. An
/// estimate.
pub const UNIT_NS: Nanos = 100;
/// Units per step: 25 us, about the time from answer to answer of a client at depth 1 over a Unix socket. A read of 1
/// MiB from the cache is one step.
pub const STEP_UNITS: u32 = 256;
/// No event counts more units than this. A step is exceeded most by work that is not divided: the completion of the
/// largest device request, four units a block, followed by a write-back of 1 MiB.
pub const EVENT_UNITS_MAX: u32 = 8 * STEP_UNITS;

/// Units to see what a volume has to do: write-backs, flushes, streams.
const TEND_UNITS: u32 = 4;

/// Work that may be possible now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Todo {
    /// A request has pieces to start.
    Request(u32),
    /// A volume has data to write back, a flush or a range operation to continue, or is being closed.
    Volume(VolumeId),
    /// The place that `ticket` waited for was given up. It may have to wait for an older one, before `below`.
    Place { volume: VolumeId, ticket: Ticket, below: Ticket },
    /// Retry the pieces of a tenant that wait for frames.
    Frames(TenantId),
    /// Check the connections of a tenant that are paused or whose reads wait for room for replies.
    Replies(TenantId),
    /// Release requests of a tenant that its ceilings hold back.
    Held(TenantId),
}

#[derive(Default, Debug)]
struct Backlog {
    queue: VecDeque<Todo>,
    /// `Action::Work` was sent, and `Event::Work` has not come yet.
    announced: bool,
    /// [`Todo::Frames`] is in the queue.
    frames: bool,
    /// [`Todo::Replies`] is in the queue.
    replies: bool,
    /// [`Todo::Held`] is in the queue.
    held: bool,
    /// Units that the driver has not taken yet.
    spent: u32,
}

/// The backlogs of all tenants, and the units used in the current step.
#[derive(Default, Debug)]
pub(crate) struct Work {
    /// By tenant.
    backlogs: Vec<Backlog>,
    /// Tenants with units that the driver has not taken yet.
    spenders: Vec<TenantId>,
    used: u32,
}

impl Work {
    fn of(&mut self, tenant: TenantId) -> &mut Backlog {
        let at = tenant.0 as usize;
        if self.backlogs.len() <= at {
            self.backlogs.resize_with(at + 1, Backlog::default);
        }
        &mut self.backlogs[at]
    }

    /// A new event begins.
    pub(crate) fn begin_step(&mut self) {
        self.used = 0;
    }

    /// Counts units that the driver charges by itself: by the request and its bytes.
    pub(crate) fn step(&mut self, units: u32) {
        self.used = self.used.saturating_add(units);
    }

    /// Whether this event may start no further work.
    pub(crate) fn is_spent(&self) -> bool {
        self.used >= STEP_UNITS && !planted!(StepsNotBounded)
    }

    /// The next tenant with units that the driver has not taken yet, and these units.
    pub(crate) fn take_spent(&mut self) -> Option<(TenantId, u32)> {
        let tenant = self.spenders.pop()?;
        Some((tenant, std::mem::take(&mut self.of(tenant).spent)))
    }

    /// Units of this step.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Remaining units of the step.
    pub(crate) fn left(&self) -> u32 {
        STEP_UNITS.saturating_sub(self.used)
    }
}

impl Volumes {
    /// Counts units and charges them to a tenant.
    pub(crate) fn charge(&mut self, tenant: TenantId, units: u32) {
        if units == 0 {
            return;
        }
        self.work.step(units);
        let backlog = self.work.of(tenant);
        let before = backlog.spent;
        backlog.spent = before.saturating_add(units);
        if before == 0 {
            self.work.spenders.push(tenant);
        }
    }

    /// The tenant that a piece of work belongs to; `None` if its tenant or volume no longer exists.
    fn tenant_to_do(&self, todo: Todo) -> Option<TenantId> {
        let volume = match todo {
            Todo::Frames(tenant) | Todo::Replies(tenant) | Todo::Held(tenant) => {
                return self.cache.has_tenant(tenant).then_some(tenant);
            }
            Todo::Request(request) => self.requests[request].volume,
            Todo::Volume(volume) | Todo::Place { volume, .. } => volume,
        };
        self.table.contains(volume).then(|| self.tenant_of(volume))
    }

    /// Appends work to the backlog of its tenant.
    pub(crate) fn put_off(&mut self, todo: Todo) {
        let Some(tenant) = self.tenant_to_do(todo) else { return };
        let backlog = self.work.of(tenant);
        let known = match todo {
            Todo::Frames(_) => std::mem::replace(&mut backlog.frames, true),
            Todo::Replies(_) => std::mem::replace(&mut backlog.replies, true),
            Todo::Held(_) => std::mem::replace(&mut backlog.held, true),
            _ => false,
        };
        if !known {
            backlog.queue.push_back(todo);
            self.announce(tenant);
        }
    }

    fn announce(&mut self, tenant: TenantId) {
        if !std::mem::replace(&mut self.work.of(tenant).announced, true) {
            self.effects.push(Effect::Work(tenant));
        }
    }

    /// Whether [`Todo::Replies`] is in the tenant's backlog.
    pub(crate) fn replies_are_put_off(&self, tenant: TenantId) -> bool {
        self.work.backlogs.get(tenant.0 as usize).is_some_and(|backlog| backlog.replies)
    }

    /// One step of a tenant's backlog.
    pub(crate) fn work_on(&mut self, tenant: TenantId) {
        self.work.of(tenant).announced = false;
        while !self.work.is_spent() {
            let Some(todo) = self.work.of(tenant).queue.pop_front() else { return };
            self.charge(tenant, 1);
            self.do_now(todo);
            self.work_off_agenda();
        }
        if !self.work.of(tenant).queue.is_empty() {
            self.announce(tenant);
        }
    }

    fn do_now(&mut self, todo: Todo) {
        match todo {
            Todo::Request(request) => self.go_on(request),
            Todo::Volume(volume) => {
                self.work.step(TEND_UNITS);
                self.tend(volume);
            }
            Todo::Place { volume, ticket, below } => self.look_at_place(volume, ticket, below),
            Todo::Frames(tenant) => {
                self.work.of(tenant).frames = false;
                if self.cache.has_tenant(tenant) {
                    self.wake_waiting(tenant);
                }
            }
            Todo::Replies(tenant) => {
                self.work.of(tenant).replies = false;
                if self.cache.has_tenant(tenant) {
                    // Not divided into steps: checking a connection costs a tenth of a look at a block, and there are
                    // about a thousand connections at most.
                    self.charge(tenant, self.clients.past() / 10 + 1);
                    self.resume_tenant(tenant);
                }
            }
            Todo::Held(tenant) => {
                self.work.of(tenant).held = false;
                self.release_held(tenant);
            }
        }
    }

    /// One round of what the current event made possible; the rest goes to the backlogs. The layer above takes the
    /// effects before each round. False after the last one.
    pub(crate) fn settle_round(&mut self) -> bool {
        self.work_off_agenda();
        self.put_off_waiting();
        self.drain_on();
        !self.agenda.is_empty() || !self.effects.is_empty()
    }

    /// Does what is on the agenda, up to the end of the step.
    fn work_off_agenda(&mut self) {
        while let Some(todo) = self.agenda.pop_front() {
            if self.work.is_spent() { self.put_off(todo) } else { self.do_now(todo) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ConnId;
    use crate::nbd::wire::command;
    use crate::spec::{TenantSpec, VolumeSpec};
    use crate::units::BLOCK;
    use crate::volume::Receive;
    use crate::volume::rig::{Rig, VOLUME, VOLUME_BYTES};

    const MIB: u64 = 1 << 20;
    const ALL: u64 = VOLUME_BYTES as u64;
    /// A client of another tenant, on a volume of its own.
    const VICTIM: ConnId = ConnId(2);
    const ATTACKER: TenantId = TenantId(0);

    /// Two tenants; the first one's volume is in the cache, as much of it as fits.
    fn rig() -> Rig {
        let mut rig = Rig::new();
        rig.set_tenant(TenantId(1), TenantSpec::default());
        rig.open_volume(VolumeSpec::plain(VolumeId(1), TenantId(1), MIB));
        rig.attach(VICTIM, VolumeId(1));
        rig.ask_as(VICTIM, 5000, command::READ, 0, 0, BLOCK);
        for at in 0..ALL / MIB {
            rig.ask(5001 + at, command::READ, 0, at * MIB, MIB);
            rig.complete_all();
        }
        (rig.lazy, rig.units_max) = (true, 0);
        rig.spent_ns.clear();
        rig
    }

    /// A request of the victim is answered at once, and takes no more work than alone.
    fn ask_victim(rig: &mut Rig, cookie: u64) {
        let before = std::mem::take(&mut rig.units_max);
        rig.ask_as(VICTIM, cookie, command::READ, 0, 0, BLOCK);
        assert_eq!(rig.answer(cookie), Some(0));
        assert!(rig.units_max <= 1, "{} units", rig.units_max);
        rig.units_max = before;
    }

    /// The victim's request takes no more work beside all requests of the attacker than alone; then everything
    /// completes.
    fn check(mut rig: Rig, requests: u64, least: u64) {
        assert!(rig.units_max <= STEP_UNITS + 2 * 64, "{} units for one request", rig.units_max);
        ask_victim(&mut rig, 1000);
        let mut steps = 0;
        while rig.work_once() || !rig.device.is_empty() {
            if !rig.cpu.has_work() && !rig.device.is_empty() {
                rig.complete(0, Ok(()));
            }
            if steps % 16 == 0 {
                ask_victim(&mut rig, 1001 + steps);
            }
            steps += 1;
        }
        assert!(steps >= least, "{steps} steps");
        assert_eq!((0..requests).find(|&at| rig.answer(at).is_none()), None);
        assert!(rig.units_max <= EVENT_UNITS_MAX, "{} units in one event", rig.units_max);
        assert!(rig.spent_ns.keys().all(|&tenant| tenant == ATTACKER), "{:?}", rig.spent_ns);
        assert!(rig.spent_ns[&ATTACKER] >= (least - 1) * Nanos::from(STEP_UNITS / 2) * UNIT_NS, "{:?}", rig.spent_ns);
    }

    #[test]
    fn many_large_ranges_are_worked_in_steps_that_their_tenant_pays_for() {
        for command in [command::CACHE, command::TRIM, command::WRITE_ZEROES] {
            let mut rig = rig();
            for at in 0..100 {
                rig.ask(at, command, 0, 0, ALL);
            }
            check(rig, 100, if command == command::CACHE { 100 } else { 10 });
        }
    }

    #[test]
    fn a_flush_of_much_dirty_data_is_worked_in_steps() {
        let mut rig = rig();
        rig.lazy = false;
        // No two of them are adjacent.
        for block in 0..120 {
            rig.write(block, 0, 2 * block * BLOCK, BLOCK, 7);
        }
        (rig.lazy, rig.units_max) = (true, 0);
        rig.spent_ns.clear();
        for at in 0..100 {
            rig.ask_as(ConnId(1), at, command::FLUSH, 0, 0, 0);
        }
        check(rig, 100, 1);
    }

    #[test]
    fn a_volume_is_closed_in_steps() {
        let mut rig = rig();
        for conn in [ConnId(0), ConnId(1)] {
            rig.close(conn);
        }
        rig.command(|volumes| volumes.close_volume(5, VOLUME, true));
        let mut steps = 0;
        while rig.work_once() {
            steps += 1;
        }
        assert!(rig.is_done(5) && steps >= 5, "{steps} steps");
        assert!(rig.units_max <= STEP_UNITS + 8, "{}", rig.units_max);
    }

    #[test]
    fn what_waited_for_a_range_goes_on_in_steps_and_is_not_overtaken() {
        let mut rig = rig();
        rig.ask(0, command::WRITE_ZEROES, 0, 0, ALL);
        while rig.work_once() {}
        assert_eq!(rig.device.len(), 1);
        // All of them wait for the range: 100 pieces of 64 blocks.
        for at in 1..=100 {
            rig.ask(at, command::CACHE, 0, 0, MIB / 4);
            rig.ask_as(ConnId(1), 100 + at, command::READ, 0, 0, MIB / 4);
        }
        rig.units_max = 0;
        check(rig, 201, 10);
    }

    #[test]
    fn a_tenant_has_so_many_requests_at_once_over_all_its_connections() {
        let mut rig = rig();
        rig.lazy = false;
        rig.volumes.config.requests_per_connection = u32::MAX;
        rig.above.stalled_readers = vec![ConnId(0), ConnId(1)];
        let [first, second] = [ConnId(0), ConnId(1)];
        rig.ask(0, command::WRITE, 0, 0, BLOCK);
        rig.volumes.cache.partition_mut(ATTACKER).requests = crate::volume::REQUESTS_PER_TENANT - 1;
        rig.ask_as(second, 2, command::CACHE, 0, MIB, BLOCK);
        assert!(rig.volumes.cache.partition(ATTACKER).crowded);
        let third = ConnId(3);
        rig.attach(third, VOLUME);
        let [second, third] = [second, third].map(|conn| rig.receive(conn));
        assert_eq!((second, third), (Receive::Pause, Receive::Header), "one at a time");
        assert_eq!(rig.receive(VICTIM), Receive::Header);
        rig.volumes.cache.partition_mut(ATTACKER).requests = crate::volume::REQUESTS_PER_TENANT / 4 * 3 + 1;
        let Receive::Payload(bytes) = rig.receive(first) else { panic!("a payload is wanted") };
        rig.filled(first, bytes);
        assert!(!rig.volumes.cache.partition(ATTACKER).crowded);
    }
}
