//! Device requests from creation to completion: a table, the policy that orders them, and the accounting of their time.

use std::cell::Cell;

use super::durability::Failures;
use super::own::{LOOK_NS, OwnTime};
use super::policy::{self, DiskTime, Entry, Policy, REQUEST_BYTES_LEAST, Slice, TenantPlan};
use super::{Io, Op, Segment};
use crate::errno::Errno;
use crate::ids::Ticket;
use crate::ids::{BlockId, IoId, TenantId, VolumeId};
use crate::slab::Slab;
use crate::units::{BLOCK, Nanos, SECOND, SectorMask, Share};

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
}

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
    /// The policy's view of the request, including whether it begins where an earlier one of its tenant ended.
    entry: Entry,
    arrived: Nanos,
    submitted: Nanos,
    /// Whether a flush or a writer waits for it. [`Policy::hurry`] may say so later than [`Policy::arrived`].
    urgent: Cell<bool>,
    /// [`Policy::others_ns`] when the policy received the request, and the time for which the request waited while
    /// other tenants owned the disk, under earlier policies too.
    others_at: Nanos,
    others_ns: Nanos,
    /// The policy that submitted it to the device, by [`Device::generation`].
    generation: u32,
    /// Failures of the target when it was submitted to the device.
    pub(crate) failures: Failures,
    /// It is a part of this transfer, which waits for all its parts (`route`).
    pub(crate) parent: Option<IoId>,
    /// It is a transfer with parts.
    pub(crate) split: Option<Split>,
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
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            io: Io { op: Op::Read, volume: VolumeId(0), offset: 0, len: 0, segments: Vec::new() },
            purpose: Purpose::Fill,
            tenant: TenantId(0),
            parts: Vec::new(),
            wanted: 0,
            entry: Entry { io: IoId(0), op: Op::Read, len: 0, cost_ns: 0, follows: false, internal: false },
            arrived: 0,
            submitted: 0,
            urgent: Cell::new(false),
            others_at: 0,
            others_ns: 0,
            generation: 0,
            failures: 0,
            parent: None,
            split: None,
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
}

/// The device as the engine sees it.
#[derive(Debug)]
pub(crate) struct Device {
    slots: Slab<Slot>,
    policy: Box<dyn Policy>,
    settings: policy::Settings,
    /// Number of changes of the policy. The present policy is not told of requests that an earlier one submitted.
    generation: u32,
    /// The accounting of earlier policies, and the device's busy time when the present one began.
    past_time: DiskTime,
    past_busy_ns: Nanos,
    tenants: Vec<OfTenant>,
    in_device: u32,
    /// Time of the last completion.
    done_at: Nanos,
    started: Option<Nanos>,
    changed_at: Nanos,
    pub(crate) busy_ns: Nanos,
    pub(crate) idle_ns: Nanos,
}

impl Device {
    pub(crate) fn new(settings: policy::Settings) -> Device {
        Device {
            slots: Slab::new(),
            policy: settings.build(),
            settings,
            generation: 0,
            past_time: DiskTime::default(),
            past_busy_ns: 0,
            tenants: Vec::new(),
            in_device: 0,
            done_at: 0,
            started: None,
            changed_at: 0,
            busy_ns: 0,
            idle_ns: 0,
        }
    }

    /// Adds a tenant, or changes its share.
    pub(crate) fn set_tenant(&mut self, now: Nanos, tenant: TenantId, share: Option<Share>) {
        let at = tenant.0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize_with(at + 1, OfTenant::default);
        }
        self.tenants[at].share = Some(share);
        self.policy.set_tenant(now, tenant, share);
    }

    /// Size of one read-ahead, bytes.
    pub(crate) fn prefetch_bytes(&self) -> u64 {
        self.settings.prefetch_bytes()
    }

    /// Sets the part of its slices that a tenant must not lose: [`Policy::set_keep`].
    pub(crate) fn set_keep(&mut self, tenant: TenantId, keep_permille: Option<u32>) {
        self.tenants[tenant.0 as usize].keep_permille = keep_permille;
        self.policy.set_keep(tenant, keep_permille);
    }

    /// The settings of the policy.
    pub(crate) fn settings(&self) -> &policy::Settings {
        &self.settings
    }

    /// Removes a tenant that has no volumes.
    pub(crate) fn drop_tenant(&mut self, now: Nanos, tenant: TenantId) {
        (self.tenants[tenant.0 as usize].share, self.tenants[tenant.0 as usize].keep_permille) = (None, None);
        self.policy.drop_tenant(now, tenant);
    }

    /// Changes the settings, and the policy if they need another one. Queued requests move to the new policy in order
    /// of arrival; it is not told when requests complete that are in the device already.
    pub(crate) fn set_policy(&mut self, now: Nanos, settings: policy::Settings) {
        let is_other = settings.is_other(&self.settings);
        self.settings = settings;
        if !is_other {
            return self.policy.set(settings);
        }
        self.account(now);
        let mut waiting = Vec::with_capacity(self.policy.waiting());
        for tenant in self.tenant_ids() {
            self.policy.withdraw(now, tenant, &|_| true, &mut waiting);
        }
        for io in &waiting {
            let slot = &mut self.slots[io.0];
            slot.others_ns += self.policy.others_ns(now, slot.tenant) - slot.others_at;
        }
        self.past_time = self.time(now);
        self.past_busy_ns = self.busy_ns;
        let before = std::mem::replace(&mut self.policy, settings.build());
        self.generation += 1;
        for tenant in self.tenant_ids() {
            let of_tenant = &mut self.tenants[tenant.0 as usize];
            self.policy.set_tenant(now, tenant, of_tenant.share.expect("a tenant that is there"));
            self.policy.set_keep(tenant, of_tenant.keep_permille);
            of_tenant.own.restart(before.others_ns(now, tenant), self.policy.others_ns(now, tenant));
        }
        // A stable sort: requests of a tenant that arrived at the same time keep their order.
        waiting.sort_by_key(|io| self.slots[io.0].arrived);
        for io in waiting {
            let slot = &mut self.slots[io.0];
            slot.others_at = 0;
            slot.entry.cost_ns = self.policy.cost_ns(slot.tenant, slot.entry.op, slot.entry.len, slot.entry.follows);
            self.policy.arrived(now, slot.tenant, slot.entry, slot.urgent.get());
        }
    }

    /// The tenants of the disk.
    fn tenant_ids(&self) -> Vec<TenantId> {
        let known = self.tenants.iter().enumerate().filter(|(_, tenant)| tenant.share.is_some());
        known.map(|(at, _)| TenantId(at as u32)).collect()
    }

    /// Creates a request. The caller adds segments and parts to it and then [`Device::submit`]s it.
    pub(crate) fn prepare(&mut self, op: Op, volume: VolumeId, tenant: TenantId, purpose: Purpose) -> IoId {
        let id = self.slots.take();
        let slot = &mut self.slots[id];
        slot.io.op = op;
        slot.io.volume = volume;
        slot.io.offset = 0;
        slot.io.len = 0;
        slot.io.segments.clear();
        slot.parts.clear();
        slot.purpose = purpose;
        slot.tenant = tenant;
        (slot.parent, slot.split) = (None, None);
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
        let bytes = self.policy.request_bytes_max(tenant, op);
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

    /// Queues the request in the policy; an urgent one ahead of its tenant's others.
    pub(crate) fn submit(&mut self, now: Nanos, io: IoId, urgent: bool) {
        let slot = &mut self.slots[io.0];
        slot.arrived = now;
        slot.urgent.set(urgent);
        let tenant = slot.tenant;
        (slot.others_at, slot.others_ns) = (self.policy.others_ns(now, tenant), 0);
        let of_tenant = &mut self.tenants[tenant.0 as usize];
        let follows = of_tenant.ends.follows(&slot.io);
        let internal = slot.purpose == Purpose::Sync { internal: true };
        if !internal {
            of_tenant.demand.begin(now);
        }
        let Io { op, len, .. } = slot.io;
        if op == Op::Read {
            of_tenant.own.begin(slot.others_at);
        }
        let cost_ns = self.policy.cost_ns(tenant, op, len, follows);
        slot.entry = Entry { io, op, len, cost_ns, follows, internal };
        self.policy.arrived(now, tenant, slot.entry, urgent);
    }

    /// Promotes the queued write-backs of `volume`, because a flush or a writer waits for them: they become urgent.
    pub(crate) fn hurry_writes(&mut self, tenant: TenantId, volume: VolumeId) {
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
        self.policy.hurry(tenant, &is_write);
    }

    /// Cancels the tenant's queued requests that are `unwanted`, except parts of a transfer, and adds them to `dropped`.
    /// The caller forgets them.
    pub(crate) fn withdraw(
        &mut self,
        now: Nanos,
        tenant: TenantId,
        unwanted: impl Fn(&Slot) -> bool,
        dropped: &mut Vec<IoId>,
    ) {
        let (slots, before) = (&self.slots, dropped.len());
        self.policy.withdraw(now, tenant, &|io| slots[io.0].parent.is_none() && unwanted(&slots[io.0]), dropped);
        let others_ns = self.policy.others_ns(now, tenant);
        let of_tenant = &mut self.tenants[tenant.0 as usize];
        for &io in &dropped[before..] {
            if !slots[io.0].entry.internal {
                of_tenant.demand.end(now);
            }
            if slots[io.0].io.op == Op::Read {
                of_tenant.own.end(others_ns);
            }
        }
    }

    /// Submits the requests that the policy releases to the device; `failures` are those of the target so far.
    pub(crate) fn dispatch(&mut self, now: Nanos, failures: Failures, submit: &mut impl FnMut(IoId)) {
        while let Some(io) = self.policy.next(now, self.in_device) {
            self.account(now);
            self.in_device += 1;
            let slot = &mut self.slots[io.0];
            slot.submitted = now;
            (slot.generation, slot.failures) = (self.generation, failures);
            let others_ns = self.policy.others_ns(now, slot.tenant);
            slot.others_ns += others_ns - slot.others_at;
            if slot.io.op == Op::Read {
                self.tenants[slot.tenant.0 as usize].own.end(others_ns);
            }
            submit(io);
        }
    }

    /// A request completed at `since`, which the thread sees at `now`. Its slot stays occupied until
    /// [`Device::forget`].
    pub(crate) fn done(&mut self, now: Nanos, since: Nanos, io: IoId) -> Served {
        self.account(now);
        self.in_device -= 1;
        let slot = &self.slots[io.0];
        let waited_ns = slot.submitted - slot.arrived;
        let slice_ns = slot.others_ns.min(waited_ns);
        let back = since.clamp(slot.submitted, now);
        let (device_ns, thread_ns) = (back - slot.submitted, now - back);
        let service_ns = back.saturating_sub(slot.submitted.max(self.done_at));
        let served = Served { queued_ns: waited_ns - slice_ns, slice_ns, device_ns, thread_ns, service_ns };
        self.done_at = back;
        let tenant = slot.tenant;
        if slot.generation == self.generation || planted!(OldRequestsReported) {
            self.policy.done(now, tenant, &slot.entry, slot.submitted);
        }
        if !self.slots[io.0].entry.internal {
            self.end_demand(now, tenant);
        }
        served
    }

    /// Frees the slot of a request.
    pub(crate) fn forget(&mut self, io: IoId) {
        self.slots.give(io.0);
    }

    /// Counts the time since the last change as busy or idle.
    pub(crate) fn account(&mut self, now: Nanos) {
        if self.started.is_none() {
            self.started = Some(now);
            self.changed_at = now;
        }
        let past = now - self.changed_at;
        if self.in_device > 0 {
            self.busy_ns += past;
        } else {
            self.idle_ns += past;
        }
        self.changed_at = now;
    }

    /// Whether no request is queued or in the device.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_device == 0 && self.policy.waiting() == 0
    }

    /// Requests in the device.
    pub(crate) fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Queued requests.
    pub(crate) fn waiting(&self) -> usize {
        self.policy.waiting()
    }

    /// When [`Device::dispatch`] may submit a request although no event occurred.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.policy.poll_timeout()
    }

    /// A tenant has demand: a client's request, or a device request for one.
    pub(crate) fn begin_demand(&mut self, now: Nanos, tenant: TenantId) {
        self.tenants[tenant.0 as usize].demand.begin(now);
    }

    /// That request was answered or cancelled.
    pub(crate) fn end_demand(&mut self, now: Nanos, tenant: TenantId) {
        self.tenants[tenant.0 as usize].demand.end(now);
    }

    /// Time in which the tenant had demand, nanoseconds.
    pub(crate) fn wanting_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.tenants[tenant.0 as usize].demand.wanting_ns(now)
    }

    /// The virtual time of a tenant, by which its dirty data ages.
    pub(crate) fn own_time(&mut self, now: Nanos, tenant: TenantId) -> Nanos {
        let own = &mut self.tenants[tenant.0 as usize].own;
        if own.is_time(now) {
            own.look(now, self.policy.others_ns(now, tenant));
        }
        own.now(now)
    }

    /// Wall-clock time until `own_ns` of a tenant's virtual time have passed, or until the caller has to ask again
    /// because the rate may have changed.
    pub(crate) fn own_time_lasts(&self, tenant: TenantId, own_ns: Nanos) -> Nanos {
        let lasts = self.tenants[tenant.0 as usize].own.lasts(own_ns);
        if lasts > own_ns { lasts.min(own_ns.max(LOOK_NS)) } else { lasts }
    }

    /// The policy's plan and counters for a tenant.
    pub(crate) fn plan(&mut self, now: Nanos, tenant: TenantId) -> Option<TenantPlan> {
        self.policy.plan(now, tenant)
    }

    /// The accounting of the disk's time, as of the last [`Device::account`].
    pub(crate) fn time(&self, now: Nanos) -> DiskTime {
        let busy = DiskTime { tenant_ns: self.busy_ns - self.past_busy_ns, ..DiskTime::default() };
        let time = self.policy.time(now).unwrap_or(busy);
        DiskTime {
            tenant_ns: self.past_time.tenant_ns + time.tenant_ns,
            switch_ns: self.past_time.switch_ns + time.switch_ns,
            stuck: self.past_time.stuck + time.stuck,
        }
    }

    /// The latest slices.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        self.policy.slices()
    }
}

#[derive(Default, Debug)]
struct OfTenant {
    /// The share, while the tenant exists; the inner `None` is a tenant without a share.
    share: Option<Option<Share>>,
    /// The part of its slices that it must not lose, in thousandths; `None` for the default.
    keep_permille: Option<u32>,
    ends: Ends,
    demand: Demand,
    own: OwnTime,
}

/// A client that sends its next request within this time had demand in between: 1 ms for the reply's way to the client
/// and the request's way back.
pub(super) const TURNAROUND_NS: Nanos = 1_000_000;

/// The time in which a tenant had a request outstanding.
#[derive(Default, Debug)]
struct Demand {
    outstanding: u32,
    since: Nanos,
    until: Nanos,
    past_ns: Nanos,
}

impl Demand {
    fn begin(&mut self, now: Nanos) {
        if self.outstanding == 0 {
            self.past_ns += Some(now - self.until).filter(|&gap| gap <= TURNAROUND_NS).unwrap_or(0);
            self.since = now;
        }
        self.outstanding += 1;
    }

    fn end(&mut self, now: Nanos) {
        self.outstanding -= 1;
        if self.outstanding == 0 {
            self.past_ns += now - self.since;
            self.until = now;
        }
    }

    fn wanting_ns(&self, now: Nanos) -> Nanos {
        self.past_ns + if self.outstanding > 0 { now - self.since } else { 0 }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::policy::{Kind, Settings};
    use crate::units::MILLISECOND;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    fn settings(kind: Kind, depth: u32) -> Settings {
        Settings {
            kind,
            depth,
            insulation_permille: 900,
            switch_ns: 0,
            round_max_ns: SECOND,
            needs_slices: true,
            prices: policy::Prices::default(),
            stream_bytes_per_s: 100_000_000,
        }
    }

    fn device(kind: Kind, depth: u32) -> Device {
        let mut device = Device::new(settings(kind, depth));
        device.account(0);
        [A, B].into_iter().for_each(|tenant| device.set_tenant(0, tenant, Share::from_ppb(500_000_000)));
        device
    }

    fn submit(device: &mut Device, now: Nanos, tenant: TenantId, urgent: bool) -> IoId {
        let io = device.prepare(Op::Write { durable: false }, VolumeId(tenant.0), tenant, Purpose::WriteBack);
        device.submit(now, io, urgent);
        io
    }

    /// The requests that go to the device now.
    fn goes(device: &mut Device, now: Nanos) -> Vec<IoId> {
        let mut submitted = Vec::new();
        device.dispatch(now, 0, &mut |io| submitted.push(io));
        submitted
    }

    #[test]
    fn what_waits_moves_to_another_policy_in_order() {
        let mut device = device(Kind::Insulated, 1);
        let first = submit(&mut device, 0, A, false);
        assert_eq!(goes(&mut device, 0), [first]);
        let late: Vec<_> =
            [(1, A), (2, B), (2, B), (3, A)].map(|(at, tenant)| submit(&mut device, at, tenant, false)).into();
        let urgent = submit(&mut device, 4, B, true);
        device.hurry_writes(A, VolumeId(0));
        device.set_policy(5, settings(Kind::None, 8));
        // Urgent requests go first at the places of their tenants in the order of arrival. All of A's are urgent by
        // now.
        assert_eq!(goes(&mut device, 5), [late[0], urgent, late[1], late[3], late[2]]);
        assert_eq!(device.waiting(), 0);
    }

    #[test]
    fn a_new_policy_is_not_told_of_what_an_earlier_one_began() {
        let mut device = device(Kind::None, 8);
        let old = [submit(&mut device, 0, A, false), submit(&mut device, 0, B, false)];
        assert_eq!(goes(&mut device, 0), old);
        device.set_policy(MILLISECOND, settings(Kind::Insulated, 8));
        let new = [submit(&mut device, MILLISECOND, A, false), submit(&mut device, MILLISECOND, B, false)];
        let begun = goes(&mut device, MILLISECOND);
        assert_eq!(begun.len(), 1, "the slice is one tenant's");
        for io in old {
            device.done(2 * MILLISECOND, 2 * MILLISECOND, io);
        }
        assert!(goes(&mut device, 2 * MILLISECOND).is_empty());
        assert_eq!(device.done(3 * MILLISECOND, 3 * MILLISECOND, begun[0]).device_ns, 2 * MILLISECOND);
        assert!(goes(&mut device, 3 * MILLISECOND).is_empty());
        let at = device.poll_timeout().expect("the slice is held for a while");
        let other = if begun[0] == new[0] { new[1] } else { new[0] };
        assert_eq!(goes(&mut device, at), [other]);
        assert_eq!(
            device.done(at + MILLISECOND, at + MILLISECOND, other).slice_ns,
            at - MILLISECOND,
            "the disk was another's"
        );
    }

    #[test]
    fn own_time_goes_slower_only_while_a_read_waits_for_another() {
        let mut device = device(Kind::Insulated, 1);
        let read = |device: &mut Device, now: Nanos, tenant: TenantId| {
            let io = device.prepare(Op::Read, VolumeId(tenant.0), tenant, Purpose::Fill);
            device.submit(now, io, false);
            io
        };
        let begun = read(&mut device, 0, A);
        assert_eq!(goes(&mut device, 0), [begun]);
        let waiting = [read(&mut device, 0, B), read(&mut device, 0, B)];
        submit(&mut device, 0, B, false);
        let at = 10 * SECOND;
        let [a, b] = [A, B].map(|tenant| device.own_time(at, tenant));
        assert_eq!(a, at);
        assert_eq!(b, at, "by the rate until then");
        let [a, b] = [A, B].map(|tenant| device.own_time(2 * at, tenant) - at);
        assert!(a == at && b < at / 2, "{a} {b}");
        // No read is queued any more: those that waited are cancelled, and the new policy submits the next one at once.
        device.withdraw(2 * at, B, |slot| slot.io.op == Op::Read && slot.io.offset == 0, &mut Vec::new());
        device.set_policy(2 * at, settings(Kind::None, 8));
        let other = read(&mut device, 2 * at, B);
        assert!(goes(&mut device, 2 * at).contains(&other) && !waiting.contains(&other));
        let before = (21..=80).map(|second| device.own_time(second * SECOND, B)).last().unwrap();
        assert!(device.own_time(81 * SECOND, B) - before > SECOND * 99 / 100);
    }

    #[test]
    fn settings_of_the_same_policy_change_live() {
        for kind in [Kind::None, Kind::Insulated] {
            let mut device = device(kind, 1);
            let ios = [submit(&mut device, 0, A, false), submit(&mut device, 0, A, false)];
            assert_eq!(goes(&mut device, 0), ios[..1], "{kind:?}");
            device.set_policy(1, settings(kind, 2));
            assert_eq!(goes(&mut device, 1), ios[1..], "{kind:?}");
            for io in ios {
                device.done(2, 2, io);
            }
            assert!(device.is_idle());
        }
    }

    #[test]
    fn the_books_of_time_go_on_under_another_policy() {
        let mut device = device(Kind::None, 8);
        let old = submit(&mut device, 0, A, false);
        goes(&mut device, 0);
        device.done(MILLISECOND, MILLISECOND, old);
        device.set_policy(2 * MILLISECOND, settings(Kind::Insulated, 8));
        let new = submit(&mut device, 2 * MILLISECOND, B, false);
        assert_eq!(goes(&mut device, 2 * MILLISECOND), [new]);
        device.done(5 * MILLISECOND, 5 * MILLISECOND, new);
        let owned = |time: DiskTime| time.tenant_ns + time.switch_ns;
        assert_eq!(owned(device.time(5 * MILLISECOND)), 4 * MILLISECOND);
        device.set_policy(5 * MILLISECOND, settings(Kind::None, 8));
        assert_eq!(owned(device.time(9 * MILLISECOND)), 4 * MILLISECOND);
    }
}
