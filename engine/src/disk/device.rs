//! Device requests from creation to completion: a table of them, the scheduler, and the accounting of their waits.

use std::cell::Cell;

use super::books::{Arrivals, Books, DiskTime, Usage};
use super::durability::Failures;
use super::policy::{self, REQUEST_BYTES_LEAST, Slice, TenantPlan};
use super::queue::{Entry, Number};
use super::scheduler::Scheduler;
use super::thinking::Thought;
use super::windows::{Totals, Window, WindowCounts, Windows};
use super::{Io, Op, Segment};
use crate::cluster::{Clock, Timetable};
use crate::errno::Errno;
use crate::ids::{BlockId, IoId, TenantId, Ticket, VolumeId};
use crate::slab::Slab;
use crate::spec::{Refusal, Terms};
use crate::units::{BLOCK, Nanos, SECOND, SectorMask};

/// What a device request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Reads blocks into the cache for requests that wait for them.
    Fill,
    /// Reads blocks that no client has requested yet, ahead of the volume's stream of this number.
    Prefetch(u32),
    /// Writes cached sectors of blocks.
    WriteBack,
    /// Makes earlier writes of the volume durable. `internal` if no client waits for it: the server opens or closes the
    /// volume, changes its write cache, or shuts down.
    Sync { internal: bool },
    /// The range operation (TRIM, WRITE_ZEROES) with this number.
    Range(Ticket),
    /// The copy of off-loaded content with this number: it is read from a store, or written to the base.
    Reclaim(u32),
    /// A record or, without a number, a superblock in the log of a store.
    Log(u8, Option<u64>),
}

/// The largest read or write of a volume that is elsewhere, bytes: a network's delay hardly counts.
const ELSEWHERE_BYTES: u64 = 1 << 20;
/// Longest run of clean blocks that is rewritten, in blocks.
const GAP_BLOCKS_MOST: u128 = 64;

/// A device request and its state.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) io: Io,
    pub(crate) purpose: Purpose,
    pub(crate) tenant: TenantId,
    /// The blocks of the request, and the sectors of each.
    pub(crate) parts: Vec<(BlockId, SectorMask)>,
    /// How many of these blocks had to be written; the others are rewritten clean ones.
    pub(crate) wanted: u32,
    /// It may wait for a later slice.
    pub(crate) can_wait: bool,
    /// The scheduler's view of the request, including whether it begins where an earlier one of its tenant ended.
    entry: Entry,
    arrived: Nanos,
    submitted: Nanos,
    /// Whether a flush or a writer waits for it; this may become known after [`Device::submit`].
    urgent: Cell<bool>,
    /// While it is queued, [`Books::others_ns`] when it arrived; then the time for which it waited while other tenants
    /// owned the disk.
    others_ns: Nanos,
    /// The policy that submitted it to the device, by [`Device::generation`].
    generation: u32,
    /// Failures of the target when it was submitted to the device.
    pub(crate) failures: Failures,
    /// It is a part of this transfer, which waits for all its parts (`route`).
    pub(crate) parent: Option<IoId>,
    /// The order among the requests of its session, if the client has numbered them.
    pub(crate) order: Option<u64>,
    /// It is a transfer with parts.
    pub(crate) split: Option<Split>,
    /// It is not one of the device's.
    pub(crate) is_elsewhere: bool,
    /// The store and the position that it reads.
    pub(crate) reads: Option<(u8, u64)>,
    /// Since when it has waited for stores, in all.
    pub(crate) held_since: Option<Nanos>,
}

/// What became of the parts of a transfer so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    /// Parts that are not complete.
    pub(crate) left: u32,
    /// The first error.
    pub(crate) result: Result<(), Errno>,
    /// Failures of the target when the first part was submitted to the device.
    pub(crate) failures: Option<Failures>,
    /// A store did not deliver its part.
    pub(crate) unread: bool,
    /// How often the transfer was divided.
    pub(crate) tries: u8,
    /// The legs of a striped volume that have answered a write, which a lost session of theirs can still lose; and
    /// whether a session was lost meanwhile, so that a flush has no result.
    pub(crate) answered: u64,
    pub(crate) is_void: bool,
}

impl Default for Split {
    fn default() -> Split {
        Split { left: 0, result: Ok(()), failures: None, unread: false, tries: 0, answered: 0, is_void: false }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            io: Io { op: Op::Read, volume: VolumeId(0), offset: 0, len: 0, head: Vec::new(), segments: Vec::new() },
            purpose: Purpose::Fill,
            tenant: TenantId(0),
            parts: Vec::new(),
            wanted: 0,
            can_wait: false,
            entry: Entry::EMPTY,
            arrived: 0,
            submitted: 0,
            urgent: Cell::new(false),
            others_ns: 0,
            generation: 0,
            failures: 0,
            parent: None,
            order: None,
            split: None,
            is_elsewhere: false,
            reads: None,
            held_since: None,
        }
    }
}

/// How long a completed request waited and was served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// Queued while its tenant could have had the disk.
    pub(crate) queued_ns: Nanos,
    /// Queued while another tenant owned the disk.
    pub(crate) slice_ns: Nanos,
    pub(crate) device_ns: Nanos,
    /// Completed, and not yet seen by the thread.
    pub(crate) thread_ns: Nanos,
    /// Time since the previous completion, or since the submission of this request if that was later: its part of the
    /// device's time if requests are served one after the other.
    pub(crate) service_ns: Nanos,
    /// Writes of the same tenant were in the device with it.
    pub(crate) beside_writes: bool,
}

/// The device as the engine sees it.
#[derive(Debug)]
pub(crate) struct Device {
    slots: Slab<Slot>,
    scheduler: Scheduler,
    settings: policy::Settings,
    /// The schedule of the cluster that it is to follow, and the clock for that.
    timetable: Option<Timetable>,
    clock: Clock,
    /// Number of changes of the policy. The present policy is not told of requests that an earlier one submitted.
    generation: u32,
    /// By tenant number.
    ends: Vec<Ends>,
    writes: Vec<Writes>,
    /// Time of the last completion.
    done_at: Nanos,
    windows: Windows,
}

impl Device {
    pub(crate) fn new(settings: policy::Settings) -> Device {
        Device {
            slots: Slab::new(),
            scheduler: Scheduler::new(settings.build(false), settings.depth),
            settings,
            timetable: None,
            clock: Clock::default(),
            generation: 0,
            ends: Vec::new(),
            writes: Vec::new(),
            done_at: 0,
            windows: Windows::default(),
        }
    }

    /// Adds a tenant, or changes what it is promised. Without `terms` it has an account, but no disk time.
    pub(crate) fn set_tenant(&mut self, now: Nanos, tenant: TenantId, terms: Option<Terms>) {
        let Some(terms) = terms else { return self.scheduler.books.open(tenant) };
        let at = tenant.0 as usize;
        self.ends.resize(self.ends.len().max(at + 1), Ends::default());
        self.writes.resize(self.writes.len().max(at + 1), Writes::default());
        self.scheduler.set_tenant(now, tenant, terms);
        let (totals, _) = self.totals(now, tenant);
        self.windows.set_tenant(now, tenant, terms, totals);
    }

    /// Size of one read-ahead, bytes.
    pub(crate) fn prefetch_bytes(&self) -> u64 {
        self.settings.prefetch_bytes()
    }

    /// Sets the part of its slices that a tenant must not lose.
    pub(crate) fn set_keep(&mut self, tenant: TenantId, keep_permille: Option<u32>) {
        self.scheduler.set_keep(tenant, keep_permille);
    }

    /// Sets where the tenant's data is on the disk: the first byte of its first volume, if that is known.
    pub(crate) fn set_place(&mut self, tenant: TenantId, place: Option<u64>) {
        self.scheduler.set_place(tenant, place);
    }

    /// The settings of the policy.
    pub(crate) fn settings(&self) -> &policy::Settings {
        &self.settings
    }

    /// Removes a tenant that has no volumes.
    pub(crate) fn drop_tenant(&mut self, now: Nanos, tenant: TenantId) {
        self.scheduler.drop_tenant(now, tenant);
        self.windows.drop_tenant(tenant);
    }

    /// Changes the settings, and the policy if they need another one. Queued requests move to the new policy in order
    /// of arrival; it is not told when requests complete that are in the device already.
    pub(crate) fn set_policy(&mut self, now: Nanos, settings: policy::Settings) {
        let is_other = settings.is_other(&self.settings);
        self.settings = settings;
        match is_other {
            true => self.replace_policy(now),
            false => self.scheduler.set(settings),
        }
    }

    /// Sets the schedule that the disk follows; a version that is not above the present one is refused.
    pub(crate) fn set_timetable(&mut self, now: Nanos, timetable: Option<Timetable>) -> Result<(), Refusal> {
        if let Some(given) = &timetable {
            given.check()?;
            if let Some(have) = self.timetable.as_ref().map(|have| have.version).filter(|&have| have >= given.version)
                && !planted!(LowerVersionTaken)
            {
                return Err(Refusal::Outdated { have, given: given.version });
            }
            if given.slots.iter().any(|slot| !self.scheduler.has(slot.tenant)) {
                return Err(Refusal::UnknownTenant);
            }
        }
        let is_other = self.timetable.is_some() != timetable.is_some();
        self.timetable = timetable;
        match (is_other && self.settings.has_slices(), &self.timetable) {
            (true, _) => self.replace_policy(now),
            (false, Some(timetable)) => self.scheduler.policy.set_timetable(now, timetable),
            (false, None) => {}
        }
        Ok(())
    }

    /// Sets the relation of the engine's clock to cluster time.
    pub(crate) fn set_clock(&mut self, now: Nanos, clock: Clock) {
        self.clock = clock;
        self.scheduler.set_clock(now, clock);
    }

    fn replace_policy(&mut self, now: Nanos) {
        self.generation += 1;
        let mut queued = self.scheduler.replace(now, self.settings, self.timetable.as_ref(), self.clock);
        // A stable sort: requests of a tenant that arrived at the same time keep their order.
        queued.sort_by_key(|io| self.slots[io.0].arrived);
        for io in queued {
            let slot = &mut self.slots[io.0];
            slot.entry.number = numbered(slot, self.timetable.is_some());
            slot.entry.cost_ns = self.scheduler.cost_ns(slot.tenant, slot.entry.op, slot.entry.len, slot.entry.follows);
            self.scheduler.queue(now, slot.tenant, slot.entry, slot.urgent.get());
        }
        // Each policy has its own account of standalone-equivalent time.
        for tenant in self.windows.tenants() {
            let (totals, _) = self.totals(now, tenant);
            self.windows.restart(now, tenant, totals);
        }
    }

    /// Creates a request. The caller adds segments and parts to it and then [`Device::submit`]s it.
    pub(crate) fn prepare(&mut self, op: Op, volume: VolumeId, tenant: TenantId, purpose: Purpose) -> IoId {
        let id = self.slots.take();
        let slot = &mut self.slots[id];
        slot.io.op = op;
        slot.io.volume = volume;
        slot.io.offset = 0;
        slot.io.len = 0;
        slot.io.head.clear();
        slot.io.segments.clear();
        slot.parts.clear();
        slot.purpose = purpose;
        slot.tenant = tenant;
        (slot.parent, slot.order, slot.split) = (None, None, None);
        (slot.is_elsewhere, slot.reads, slot.held_since, slot.can_wait) = (false, None, None, false);
        IoId(id)
    }

    pub(crate) fn slot(&self, io: IoId) -> &Slot {
        &self.slots[io.0]
    }

    pub(crate) fn slot_mut(&mut self, io: IoId) -> &mut Slot {
        &mut self.slots[io.0]
    }

    /// Largest read or write that the tenant may submit at present, in blocks.
    pub(crate) fn request_blocks_max(&self, tenant: TenantId, op: Op) -> u64 {
        if !self.scheduler.has(tenant) {
            return ELSEWHERE_BYTES / BLOCK;
        }
        let bytes = self.scheduler.request_bytes_max(tenant, op);
        debug_assert!(bytes >= REQUEST_BYTES_LEAST);
        bytes / BLOCK
    }

    /// Longest run of clean blocks that is rewritten to join two dirty runs. On a device with heads each further
    /// position, however near, costs settling and rotational delay. Passing over this many blocks takes a sixteenth of
    /// the switch cost, which is less. 0 on a device that needs no slices.
    pub(crate) fn gap_blocks_max(&self) -> u64 {
        let policy::Settings { needs_slices, switch_ns, stream_bytes_per_s, .. } = self.settings;
        let bytes = u128::from(switch_ns / 16) * u128::from(stream_bytes_per_s) / u128::from(SECOND);
        if needs_slices { (bytes / u128::from(BLOCK)).min(GAP_BLOCKS_MOST) as u64 } else { 0 }
    }

    /// Appends a segment to a request that is being prepared.
    pub(crate) fn add_segment(&mut self, io: IoId, segment: Segment) {
        let io = &mut self.slots[io.0].io;
        io.len += u64::from(segment.len);
        io.segments.push(segment);
    }

    /// The request goes to another target, without waiting.
    pub(crate) fn submit_elsewhere(&mut self, now: Nanos, io: IoId, failures: Failures) {
        let slot = &mut self.slots[io.0];
        (slot.arrived, slot.submitted, slot.others_ns, slot.failures) = (now, now, 0, failures);
        slot.is_elsewhere = true;
    }

    /// Such a request completed.
    pub(crate) fn done_elsewhere(&self, now: Nanos, io: IoId) -> Served {
        let device_ns = now - self.slots[io.0].submitted;
        Served { queued_ns: 0, slice_ns: 0, device_ns, thread_ns: 0, service_ns: device_ns, beside_writes: false }
    }

    /// Queues the request; an urgent one ahead of its tenant's others.
    pub(crate) fn submit(&mut self, now: Nanos, io: IoId, urgent: bool) {
        let slot = &mut self.slots[io.0];
        let tenant = slot.tenant;
        slot.is_elsewhere = false;
        slot.arrived = now;
        slot.urgent.set(urgent);
        slot.others_ns = self.scheduler.books.others_ns(now, tenant);
        let Io { op, len, .. } = slot.io;
        // A write that a flush or a client waits for, and no other write goes before: by now the place after the last
        // one has passed the heads.
        let is_late = urgent && matches!(op, Op::Write { .. }) && self.scheduler.is_idle(tenant);
        let follows = self.ends[tenant.0 as usize].follows(&slot.io) && !is_late;
        let internal = slot.purpose == Purpose::Sync { internal: true };
        let cost_ns = self.scheduler.cost_ns(tenant, op, len, follows);
        let number = numbered(slot, self.timetable.is_some());
        slot.entry = Entry { io, op, len, cost_ns, follows, internal, can_wait: slot.can_wait, number };
        self.scheduler.arrived(now, tenant, slot.entry, urgent);
    }

    /// Promotes the queued write-backs of `volume`, because a flush or a writer waits for them: they become urgent.
    pub(crate) fn promote_writes(&mut self, tenant: TenantId, volume: VolumeId) {
        let slots = &self.slots;
        let is_write = |io: IoId| {
            let slot = &slots[io.0];
            let of = slot.parent.map_or(slot, |parent| &slots[parent.0]).io.volume;
            let wanted = of == volume && slot.purpose == Purpose::WriteBack;
            if wanted {
                slot.urgent.set(true);
            }
            wanted
        };
        self.scheduler.promote(tenant, &is_write);
    }

    /// Cancels the tenant's queued requests that are `unwanted`, except parts of a transfer, and adds them to
    /// `dropped`. The caller forgets them.
    pub(crate) fn withdraw(
        &mut self,
        now: Nanos,
        tenant: TenantId,
        unwanted: impl Fn(&Slot) -> bool,
        dropped: &mut Vec<IoId>,
    ) {
        let (slots, before) = (&self.slots, dropped.len());
        self.scheduler.withdraw(now, tenant, &|io| slots[io.0].parent.is_none() && unwanted(&slots[io.0]), dropped);
        for &io in &dropped[before..] {
            self.scheduler.books.cancelled(now, tenant, &slots[io.0].entry);
        }
    }

    /// Submits the requests that the scheduler releases to the device; `failures` are those of the target so far.
    pub(crate) fn dispatch(&mut self, now: Nanos, failures: Failures, submit: &mut impl FnMut(IoId)) {
        while let Some((tenant, Entry { io, .. })) = self.scheduler.next(now) {
            let slot = &mut self.slots[io.0];
            slot.submitted = now;
            (slot.generation, slot.failures) = (self.generation, failures);
            slot.others_ns = self.scheduler.books.others_ns(now, tenant) - slot.others_ns;
            if slot.entry.op != Op::Read {
                self.writes[tenant.0 as usize].in_device += 1;
            }
            submit(io);
        }
    }

    /// A request completed at `since`, which the thread sees at `now`. Its slot stays occupied until
    /// [`Device::forget`].
    pub(crate) fn done(&mut self, now: Nanos, since: Nanos, io: IoId) -> Served {
        let slot = &self.slots[io.0];
        let waited_ns = slot.submitted - slot.arrived;
        let slice_ns = slot.others_ns.min(waited_ns);
        let back = since.clamp(slot.submitted, now);
        let (device_ns, thread_ns) = (back - slot.submitted, now - back);
        let service_ns = back.saturating_sub(slot.submitted.max(self.done_at));
        let beside_writes = self.writes[slot.tenant.0 as usize].completed(slot, back);
        let queued_ns = waited_ns - slice_ns;
        let served = Served { queued_ns, slice_ns, device_ns, thread_ns, service_ns, beside_writes };
        self.done_at = back;
        if slot.generation == self.generation || planted!(OldRequestsReported) {
            self.scheduler.done(now, slot.tenant, &slot.entry, slot.submitted);
        } else {
            self.scheduler.left(now, slot.tenant, &slot.entry, slot.submitted);
        }
        if planted!(DeviceBytesDelivered) {
            let (tenant, bytes) = (slot.tenant, slot.entry.len);
            self.delivered(now, tenant, bytes);
        }
        served
    }

    /// What waits, and whose part is how large.
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Frees the slot of a request.
    pub(crate) fn forget(&mut self, io: IoId) {
        self.slots.give(io.0);
    }

    /// The books, which observe the requests.
    pub(crate) fn books(&mut self) -> &mut Books {
        &mut self.scheduler.books
    }

    /// Whether no request is queued or in the device.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_device() == 0 && self.waiting() == 0
    }

    /// Requests in the device.
    pub(crate) fn in_device(&self) -> u32 {
        self.scheduler.in_device()
    }

    /// Queued requests.
    pub(crate) fn waiting(&self) -> usize {
        self.scheduler.waiting()
    }

    /// When [`Device::dispatch`] may submit a request although no event occurred.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.scheduler.poll_timeout()
    }

    /// A client's request is begun.
    pub(crate) fn begin_request(&mut self, now: Nanos, tenant: TenantId) {
        self.scheduler.books.begin_request(now, tenant);
    }

    /// That request was answered or cancelled.
    pub(crate) fn end_request(&mut self, now: Nanos, tenant: TenantId) {
        self.scheduler.books.end_request(now, tenant);
    }

    /// A client of the tenant was sent `bytes`, or its write of so many bytes was acknowledged.
    pub(crate) fn delivered(&mut self, now: Nanos, tenant: TenantId, bytes: u64) {
        let Device { scheduler, windows, .. } = self;
        scheduler.books.delivered(tenant, bytes);
        if windows.delivered(now, tenant, bytes, || scheduler.books.wanting_ns(now, tenant)) {
            self.close_window(now, tenant);
        }
    }

    /// Closes the tenant's window if it is over.
    fn close_window(&mut self, now: Nanos, tenant: TenantId) {
        let books = &self.scheduler.books;
        let (wanted_ns, idle_ns) = (books.wanting_ns(now, tenant), books.idle_ns(now, tenant));
        if self.windows.is_over(now, tenant, wanted_ns, idle_ns) {
            let (totals, keep_permille) = self.totals(now, tenant);
            self.windows.close(now, tenant, totals, keep_permille);
        }
    }

    /// What windows compare, and R: if the longest round is too short for that, the tenant's efficiency.
    fn totals(&mut self, now: Nanos, tenant: TenantId) -> (Totals, u32) {
        let (plan, usage) = (self.scheduler.plan(now, tenant), self.scheduler.books.usage(now, tenant));
        let totals = Totals {
            wanted_ns: self.scheduler.books.wanting_ns(now, tenant),
            owned_ns: usage.owned_ns,
            useful_ns: plan.map_or(usage.owned_ns, |plan| plan.useful_ns),
        };
        let is_short = |plan: &TenantPlan| plan.need_ns.is_some_and(|need| need > plan.slice_ns + plan.slice_ns / 100);
        let short = plan.filter(is_short).map(|plan| plan.efficiency_permille);
        let keep_permille = self.settings.insulation_permille;
        (totals, short.map_or(keep_permille, |short| short.min(keep_permille)))
    }

    /// Windows of the tenant's guarantee; `None` if it has none.
    pub(crate) fn windows(&mut self, now: Nanos, tenant: TenantId) -> Option<WindowCounts> {
        self.close_window(now, tenant);
        self.windows.counts(tenant)
    }

    /// The latest windows in which the tenant missed its guarantee, oldest first.
    pub(crate) fn missed_windows(&mut self, now: Nanos, tenant: TenantId) -> Vec<Window> {
        self.close_window(now, tenant);
        self.windows.missed(tenant)
    }

    /// Whether the ceilings of a tenant hold it back at present: then it has no demand.
    pub(crate) fn set_held(&mut self, now: Nanos, tenant: TenantId, is_held: bool) {
        self.scheduler.set_held(now, tenant, is_held);
    }

    /// Time in which the tenant had demand, nanoseconds.
    pub(crate) fn wanting_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.scheduler.books.wanting_ns(now, tenant)
    }

    /// Time in which the tenant wanted the device, nanoseconds.
    pub(crate) fn wanted_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.scheduler.books.device_wanted_ns(now, tenant)
    }

    /// Faults of the device so far, as far as they concern the tenant; `None` while one lasts.
    pub(crate) fn faults(&self, now: Nanos, tenant: TenantId) -> Option<u64> {
        self.scheduler.faults(now, tenant)
    }

    /// The most requests of the tenant's clients that were outstanding at once, recently.
    pub(crate) fn outstanding_max(&self, tenant: TenantId) -> u32 {
        self.scheduler.books.outstanding_max(tenant)
    }

    /// Time in which a client of the tenant waited for an answer, nanoseconds.
    pub(crate) fn waiting_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.scheduler.books.waiting_ns(now, tenant)
    }

    /// Clients of the tenant that think while others wait.
    pub(crate) fn thought(&mut self, now: Nanos, tenant: TenantId) -> Thought {
        self.scheduler.books.thought(now, tenant)
    }

    /// When the requests of the tenant's clients arrive.
    pub(crate) fn arrivals(&self, now: Nanos, tenant: TenantId) -> Arrivals {
        self.scheduler.books.arrivals(now, tenant)
    }

    /// Time in which its ceilings held the tenant back and no other request of its clients was outstanding,
    /// nanoseconds; and the part of it without demand, which device requests for its clients are, too.
    pub(crate) fn idle_held_ns(&self, now: Nanos, tenant: TenantId) -> [Nanos; 2] {
        self.scheduler.books.idle_held_ns(now, tenant)
    }

    /// Time in which no client of the tenant had demand, nanoseconds.
    pub(crate) fn away_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.scheduler.books.away_ns(now, tenant)
    }

    /// The virtual time of a tenant, by which its dirty data ages.
    pub(crate) fn virtual_time(&mut self, now: Nanos, tenant: TenantId) -> Nanos {
        self.scheduler.books.virtual_time(now, tenant)
    }

    /// Wall-clock time until `own_ns` of a tenant's virtual time have passed, or until the caller has to ask again
    /// because the rate may have changed.
    pub(crate) fn own_time_lasts(&self, tenant: TenantId, own_ns: Nanos) -> Nanos {
        self.scheduler.books.own_time_lasts(tenant, own_ns)
    }

    /// Whether a tenant pays for earlier slices with its next one.
    pub(crate) fn owes_slice(&self, tenant: TenantId) -> bool {
        self.scheduler.owes_slice(tenant)
    }

    /// The policy's plan for a tenant; `None` if it promises nothing.
    pub(crate) fn plan(&mut self, now: Nanos, tenant: TenantId) -> Option<TenantPlan> {
        self.scheduler.plan(now, tenant)
    }

    /// What the tenant requested of the disk, and what it got.
    pub(crate) fn usage(&mut self, now: Nanos, tenant: TenantId) -> Usage {
        self.scheduler.books.usage(now, tenant)
    }

    /// The accounting of the disk's time, as of the last [`Books::account`].
    pub(crate) fn time(&self, now: Nanos) -> DiskTime {
        self.scheduler.time(now)
    }

    /// The latest slices.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        self.scheduler.past_slices()
    }
}

/// The number by which a request is ordered. On a disk under a schedule, all servers of a striped volume issue the same
/// requests in a slot if each issues the oldest ones of its client.
fn numbered(slot: &Slot, follows_schedule: bool) -> Option<Number> {
    let order = slot.order.filter(|_| follows_schedule)?;
    Some(Number { volume: slot.io.volume, order })
}

/// Where the latest requests of a tenant ended, for as many streams as a client usually has.
#[derive(Clone, Copy, Default, Debug)]
struct Ends {
    places: [(Option<VolumeId>, u64); 4],
    oldest: usize,
}

impl Ends {
    /// Whether the request begins where an earlier one ended. Records where it ends.
    fn follows(&mut self, io: &Io) -> bool {
        let begin = (Some(io.volume), io.offset);
        let found = self.places.iter().position(|&place| place == begin);
        let at = found.unwrap_or(self.oldest);
        self.places[at] = (Some(io.volume), io.offset + io.len);
        if found.is_none() {
            self.oldest = (self.oldest + 1) % self.places.len();
        }
        found.is_some()
    }
}

/// The requests of a tenant in the device that are no reads.
#[derive(Clone, Copy, Default, Debug)]
struct Writes {
    in_device: u32,
    /// When the last one completed.
    done_at: Nanos,
}

impl Writes {
    /// A request completed. Whether it is a read, and one of these was in the device with it.
    fn completed(&mut self, slot: &Slot, now: Nanos) -> bool {
        if slot.entry.op == Op::Read {
            return self.in_device > 0 || self.done_at > slot.submitted;
        }
        self.in_device = self.in_device.saturating_sub(1);
        self.done_at = now;
        false
    }
}

#[cfg(test)]
mod tests;
