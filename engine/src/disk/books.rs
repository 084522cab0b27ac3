//! The books: what each tenant requested of the device, and how much of it each tenant had. They observe requests and
//! slices under any policy, so every policy can be measured alike. They decide nothing.
//!
//! ```text
//!   arrived ─► submitted ─► completed             requests, bytes, cost, time in the device
//!   answered by the front ─► delivered            requests and bytes of clients
//!
//!   owned     with slices: the slices of the tenant, idle time inside them included
//!             otherwise: the device's busy time, divided among tenants by the cost that each has in the device
//!   others    the slices of other tenants: a clock that stops during the tenant's own
//!   demand    time in which a request of the tenant's clients was outstanding, or a device request for one
//!   waiting   likewise, of clients alone
//!   away      long pauses of clients
//!   held      time in which ceilings held the tenant back while no request of its clients was outstanding otherwise:
//!             neither a pause nor demand
//! ```
//!
//! Hung requests take no device time from the moment at which they are given up.
//!
//! Downside: standalone-equivalent time is not here. It needs a model of the device: that of slices (`slices/meter.rs`)
//! or of costs (`policy/fair/`). Without a model, owned time counts as the tenants' in [`DiskTime`].

use super::lanes::STUCK_NS;
use super::queue::Entry;
use super::thinking::{Thinking, Thought};
use super::virtual_clock::{LOOK_NS, VirtualClock};
use crate::disk::Op;
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::Nanos;

/// A client that sends its next request within this time had demand in between: 1 ms for the reply's way to the client
/// and the request's way back.
pub(crate) const TURNAROUND_NS: Nanos = 1_000_000;

/// A client that sends nothing for longer was away: it had no demand, while in shorter pauses it thinks. Above the
/// longest usual round (2 s), in which a client may wait.
pub(super) const AWAY_NS: Nanos = 3_000_000_000;

/// A request that arrives later than this after the last answer, while others wait, hardly comes because of an answer:
/// longer than the turnaround of many clients at once, short compared with the wait for a slice.
const LATE_NS: Nanos = 50_000_000;

/// Interval of the largest number of outstanding requests: all clients of a tenant that think for some seconds have
/// been seen waiting together.
const MOST_NS: Nanos = 10_000_000_000;

/// When requests of a tenant's clients arrive: total numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Arrivals {
    /// Requests that arrived, and requests that were answered or cancelled.
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    /// The time in which a request was outstanding and nothing had been answered for [`LATE_NS`], and the requests that
    /// arrived in it, if all requests were answered afterwards: else those that wait may hold others back.
    pub(crate) late_ns: Nanos,
    pub(crate) late: u64,
}

/// A number of requests, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }
}

/// What a tenant requested of the disk, and what it got, under any policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Device requests that were queued, cancelled ones included.
    pub arrived: Count,
    /// Device requests that were submitted to the device.
    pub submitted: Count,
    /// Device requests that completed.
    pub completed: Count,
    /// The cost of the completed requests, by the policy's estimate.
    pub cost_ns: Nanos,
    /// The sum of the times for which the completed requests were in the device.
    pub device_ns: Nanos,
    /// Requests of clients that succeeded.
    pub delivered: Count,
    /// Disk time that the tenant had: its slices; without slices, its part of the device's busy time, by cost.
    pub owned_ns: Nanos,
}

/// The accounting of a disk's time. The rest was idle. Without slices all busy time counts as the tenants'.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskTime {
    /// Standalone-equivalent time of the tenants' work.
    pub tenant_ns: Nanos,
    /// Lost in context switches: switch costs and drains.
    pub switch_ns: Nanos,
    /// Hung requests: the device did not complete them in time, so that other tenants were served while they were in
    /// it.
    pub stuck: u64,
}

/// The account of one tenant.
#[derive(Default, Debug)]
struct Account {
    /// Without `owned_ns`, which is the sum of the two below.
    usage: Usage,
    /// Its slices.
    slices_ns: Nanos,
    /// Its part of the busy time without slices, and [`Books::per_cost`] when its cost in the device changed last.
    divided_ns: f64,
    settled: f64,
    /// Cost of its requests in the device. Those that were submitted until `given_up_at` hang.
    in_device_ns: Nanos,
    given_up_at: Option<Nanos>,
    demand: Demand,
    /// Requests of clients alone, and device requests alone.
    clients: Demand,
    device: Demand,
    /// Since when its ceilings have held it back; and the time before.
    held_since: Option<Nanos>,
    held_ns: Nanos,
    arrivals: Arrivals,
    /// Late requests since some request has been outstanding.
    late: u64,
    most: Most,
    thinking: Thinking,
    own: VirtualClock,
}

impl Account {
    /// Counts its part of the busy time so far.
    fn settle(&mut self, per_cost: f64) {
        self.divided_ns += self.in_device_ns as f64 * (per_cost - self.settled);
        self.settled = per_cost;
    }
}

/// The books of a disk.
#[derive(Default, Debug)]
pub(crate) struct Books {
    accounts: Table<TenantId, Account>,
    /// Whether tenants own the disk in slices.
    has_slices: bool,
    /// The owner of the present slice, and when it began.
    slice: Option<(TenantId, Nanos)>,
    /// All slices so far, of former tenants too.
    slices_ns: Nanos,
    time: DiskTime,
    /// Requests in the device, and the cost of those that do not hang.
    in_device: u32,
    cost_ns: Nanos,
    /// The sum of busy time without slices, divided by the cost in the device at the time.
    per_cost: f64,
    /// The time of the last completion, or of the submission to an idle device if that was later. And how often nothing
    /// completed for longer than [`STUCK_NS`] from then on.
    progress_at: Nanos,
    silences: u64,
    /// The last [`Books::account`].
    changed_at: Option<Nanos>,
    busy_ns: Nanos,
    idle_ns: Nanos,
}

impl Books {
    /// Opens the account of a tenant, unless it is open.
    pub(super) fn open(&mut self, tenant: TenantId) {
        if self.accounts.get(tenant).is_none() {
            self.accounts.insert(tenant, Account { settled: self.per_cost, ..Account::default() });
        }
    }

    /// Closes the account of a tenant.
    pub(super) fn close(&mut self, now: Nanos, tenant: TenantId) {
        self.account(now);
        self.cost_ns -= self.accounts.remove(tenant).map_or(0, |account| account.in_device_ns);
    }

    /// Whether tenants own the disk in slices from now on.
    pub(super) fn set_slices(&mut self, has_slices: bool) {
        self.has_slices = has_slices;
    }

    /// Counts the time since the last call as busy or idle.
    pub(crate) fn account(&mut self, now: Nanos) {
        let past = now - self.changed_at.replace(now).unwrap_or(now);
        if self.in_device == 0 {
            self.idle_ns += past;
            return;
        }
        self.busy_ns += past;
        if !self.has_slices && self.cost_ns > 0 {
            self.time.tenant_ns += past;
            self.per_cost += past as f64 / self.cost_ns as f64;
        }
    }

    /// A request of the tenant is queued.
    pub(super) fn arrived(&mut self, now: Nanos, tenant: TenantId, entry: &Entry) {
        let others_ns = self.others_ns(now, tenant);
        let account = &mut self.accounts[tenant];
        account.usage.arrived.add(entry.len);
        if !entry.internal {
            account.demand.begin(now, TURNAROUND_NS);
            account.device.begin(now, TURNAROUND_NS);
        }
        if entry.op == Op::Read {
            account.own.begin(others_ns);
        }
    }

    /// A queued request of the tenant is cancelled.
    pub(super) fn cancelled(&mut self, now: Nanos, tenant: TenantId, entry: &Entry) {
        let others_ns = self.others_ns(now, tenant);
        let account = &mut self.accounts[tenant];
        if !entry.internal {
            account.demand.end(now);
            account.device.end(now);
        }
        if entry.op == Op::Read {
            account.own.end(others_ns);
        }
    }

    /// A queued request of the tenant goes to the device.
    pub(super) fn submitted(&mut self, now: Nanos, tenant: TenantId, entry: &Entry) {
        self.account(now);
        if self.in_device == 0 {
            self.progress_at = now;
        }
        self.in_device += 1;
        self.cost_ns += entry.cost_ns;
        let others_ns = self.others_ns(now, tenant);
        let account = &mut self.accounts[tenant];
        account.settle(self.per_cost);
        account.in_device_ns += entry.cost_ns;
        account.usage.submitted.add(entry.len);
        if entry.op == Op::Read {
            account.own.end(others_ns);
        }
    }

    /// A request of the tenant completed that was submitted at `submitted`.
    pub(super) fn completed(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, submitted: Nanos) {
        self.account(now);
        self.silences += u64::from(self.is_silent(now));
        self.in_device -= 1;
        self.progress_at = now;
        let Some(account) = self.accounts.get_mut(tenant) else { return };
        account.settle(self.per_cost);
        account.usage.completed.add(entry.len);
        account.usage.cost_ns += entry.cost_ns;
        account.usage.device_ns += now - submitted;
        if account.given_up_at.is_none_or(|at| submitted > at) {
            // A request that was submitted at the very moment at which others were given up counts as one of them.
            let cost_ns = entry.cost_ns.min(account.in_device_ns);
            account.in_device_ns -= cost_ns;
            self.cost_ns -= cost_ns;
        }
        if !entry.internal {
            account.demand.end(now);
            account.device.end(now);
        }
    }

    /// The tenant's requests in the device hang; `count` of them did not before.
    pub(super) fn gave_up(&mut self, now: Nanos, tenant: TenantId, count: u32) {
        self.account(now);
        let account = &mut self.accounts[tenant];
        account.settle(self.per_cost);
        self.cost_ns -= std::mem::take(&mut account.in_device_ns);
        account.given_up_at = Some(now);
        self.time.stuck += u64::from(count);
    }

    /// The device has completed nothing for longer than [`STUCK_NS`].
    fn is_silent(&self, now: Nanos) -> bool {
        self.in_device > 0 && now > self.progress_at + STUCK_NS
    }

    /// How often requests were given up, and how often the device was silent; `None` while it is.
    pub(super) fn faults(&self, now: Nanos) -> Option<u64> {
        (!self.is_silent(now)).then_some(self.time.stuck + self.silences)
    }

    /// A client of the tenant was sent `bytes` of a read, or its write of so many bytes was acknowledged.
    pub(crate) fn delivered(&mut self, tenant: TenantId, bytes: u64) {
        self.accounts[tenant].usage.delivered.add(bytes);
    }

    /// A slice begins.
    pub(super) fn slice_begins(&mut self, now: Nanos, tenant: TenantId) {
        self.slice = Some((tenant, now));
    }

    /// The slice ends; `useful_ns` is the standalone-equivalent time of its work.
    pub(super) fn slice_ends(&mut self, now: Nanos, useful_ns: Nanos) {
        let Some((tenant, begun)) = self.slice.take() else { return };
        let owned_ns = now - begun;
        self.accounts[tenant].slices_ns += owned_ns;
        self.slices_ns += owned_ns;
        self.time.tenant_ns += useful_ns;
        self.time.switch_ns += owned_ns - useful_ns;
    }

    /// The owner of the present slice.
    pub(super) fn owner(&self) -> Option<TenantId> {
        self.slice.map(|(owner, _)| owner)
    }

    /// The time for which the tenant of the present slice has owned the disk, if it is `tenant`'s.
    pub(super) fn slice_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.slice.filter(|&(owner, _)| owner == tenant).map_or(0, |(_, begun)| now - begun)
    }

    /// The accounting of the disk's time, as of the last [`Books::account`]. The work of the present slice has a
    /// standalone-equivalent time of `useful_ns` so far.
    pub(super) fn time(&self, now: Nanos, useful_ns: Nanos) -> DiskTime {
        let owned_ns = self.slice.map_or(0, |(_, begun)| now - begun);
        let DiskTime { tenant_ns, switch_ns, stuck } = self.time;
        DiskTime { tenant_ns: tenant_ns + useful_ns, switch_ns: switch_ns + owned_ns - useful_ns, stuck }
    }

    /// Time for which tenants other than `tenant` have owned the disk, since an arbitrary moment.
    pub(super) fn others_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        let own_ns = self.accounts.get(tenant).map_or(0, |account| account.slices_ns);
        let others = self.slice.filter(|&(owner, _)| owner != tenant);
        (self.slices_ns + others.map_or(0, |(_, begun)| now - begun)).saturating_sub(own_ns)
    }

    /// What the tenant requested and got.
    pub(crate) fn usage(&mut self, now: Nanos, tenant: TenantId) -> Usage {
        self.account(now);
        let slice_ns = self.slice_ns(now, tenant);
        let Some(account) = self.accounts.get_mut(tenant) else { return Usage::default() };
        account.settle(self.per_cost);
        Usage { owned_ns: account.slices_ns + slice_ns + account.divided_ns as Nanos, ..account.usage }
    }

    /// Bytes of clients' requests that were answered.
    pub(super) fn delivered_bytes(&self, tenant: TenantId) -> u64 {
        self.accounts[tenant].usage.delivered.bytes
    }

    /// The cost of the requests in the device, without hung ones.
    #[cfg(test)]
    pub(super) fn cost_ns(&self) -> Nanos {
        self.cost_ns
    }

    /// Time with a request in the device, and without, as of the last [`Books::account`].
    pub(crate) fn busy_and_idle_ns(&self) -> (Nanos, Nanos) {
        (self.busy_ns, self.idle_ns)
    }

    /// A client's request is begun.
    pub(crate) fn begin_request(&mut self, now: Nanos, tenant: TenantId) {
        let account = &mut self.accounts[tenant];
        account.thinking.arrived(now);
        account.arrivals.requests += 1;
        account.late += u64::from(account.clients.late_ns(now) > 0);
        account.demand.begin(now, TURNAROUND_NS);
        account.clients.begin(now, 0);
        account.most.note(now, account.clients.outstanding);
    }

    /// That request was answered or cancelled.
    pub(crate) fn end_request(&mut self, now: Nanos, tenant: TenantId) {
        let account = &mut self.accounts[tenant];
        account.thinking.answered(now);
        account.arrivals.answered += 1;
        account.arrivals.late_ns += account.clients.late_ns(now);
        account.demand.end(now);
        account.clients.end(now);
        if account.clients.outstanding == 0 {
            account.arrivals.late += std::mem::take(&mut account.late);
        }
    }

    /// When the requests of the tenant's clients arrive.
    pub(crate) fn arrivals(&self, now: Nanos, tenant: TenantId) -> Arrivals {
        let Account { arrivals, clients, .. } = &self.accounts[tenant];
        Arrivals { late_ns: arrivals.late_ns + clients.late_ns(now), ..*arrivals }
    }

    /// Time in which the tenant had demand, nanoseconds: a client's request, or a device request for one.
    pub(crate) fn wanting_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.accounts[tenant].demand.wanting_ns(now)
    }

    /// How long the tenant has been without demand; 0 while it has some.
    pub(super) fn idle_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        let demand = &self.accounts[tenant].demand;
        if demand.outstanding > 0 { 0 } else { now - demand.until }
    }

    /// Time in which the tenant wanted the device, nanoseconds.
    pub(crate) fn device_wanted_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.accounts[tenant].device.wanting_ns(now)
    }

    /// Time in which a client of the tenant waited for an answer, nanoseconds.
    pub(crate) fn waiting_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.accounts[tenant].clients.wanting_ns(now)
    }

    /// Clients of the tenant that think while others wait.
    pub(crate) fn thought(&mut self, now: Nanos, tenant: TenantId) -> Thought {
        self.accounts[tenant].thinking.totals(now)
    }

    /// The most requests of clients that were outstanding at once, recently.
    pub(crate) fn outstanding_max(&self, tenant: TenantId) -> u32 {
        self.accounts[tenant].most.recent()
    }

    /// The ceilings of a tenant hold it back from now on, or no longer. Whether that is a change.
    pub(super) fn set_held(&mut self, now: Nanos, tenant: TenantId, is_held: bool) -> bool {
        let account = &mut self.accounts[tenant];
        if account.held_since.is_some() == is_held {
            return false;
        }
        account.held_ns += account.held_since.map_or(0, |since| now - since);
        account.held_since = is_held.then_some(now);
        account.thinking.set_held(now, is_held);
        let Account { demand, clients, device, .. } = account;
        [demand, clients, device].into_iter().for_each(|demand| demand.set_held(now, is_held));
        true
    }

    /// Whether its ceilings hold the tenant back.
    pub(super) fn is_held(&self, tenant: TenantId) -> bool {
        self.accounts[tenant].held_since.is_some()
    }

    /// Time in which its ceilings held the tenant back, nanoseconds.
    pub(super) fn held_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.accounts.get(tenant).map_or(0, |account| account.held_ns + account.held_since.map_or(0, |at| now - at))
    }

    /// Time in which its ceilings held the tenant back and no other request of its clients was outstanding,
    /// nanoseconds; and the part of it without demand, which device requests for its clients are, too.
    pub(crate) fn idle_held_ns(&self, now: Nanos, tenant: TenantId) -> [Nanos; 2] {
        let Account { clients, demand, .. } = &self.accounts[tenant];
        [clients, demand].map(|demand| demand.held_ns(now))
    }

    /// Time in which no client of the tenant had demand: pauses of more than [`AWAY_NS`], nanoseconds.
    pub(crate) fn away_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.accounts[tenant].clients.away_ns(now)
    }

    /// The virtual time of a tenant, by which its dirty data ages.
    pub(crate) fn virtual_time(&mut self, now: Nanos, tenant: TenantId) -> Nanos {
        if self.accounts[tenant].own.is_time(now) {
            let others_ns = self.others_ns(now, tenant);
            self.accounts[tenant].own.look(now, others_ns);
        }
        self.accounts[tenant].own.now(now)
    }

    /// Wall-clock time until `own_ns` of a tenant's virtual time have passed, or until the caller has to ask again
    /// because the rate may have changed.
    pub(crate) fn own_time_lasts(&self, tenant: TenantId, own_ns: Nanos) -> Nanos {
        let lasts = self.accounts[tenant].own.lasts(own_ns);
        if lasts > own_ns { lasts.min(own_ns.max(LOOK_NS)) } else { lasts }
    }
}

/// The largest number of the present interval and of the one before.
#[derive(Default, Debug)]
pub(super) struct Most {
    present: u32,
    before: u32,
    since: Nanos,
}

impl Most {
    pub(super) fn note(&mut self, now: Nanos, outstanding: u32) {
        if now >= self.since + MOST_NS {
            (self.before, self.present, self.since) = (self.present, 0, now);
        }
        self.present = self.present.max(outstanding);
    }

    pub(super) fn recent(&self) -> u32 {
        self.present.max(self.before)
    }
}

/// The time in which a tenant had a request outstanding.
#[derive(Default, Debug)]
struct Demand {
    outstanding: u32,
    since: Nanos,
    /// The last end of a request. While ceilings hold the tenant back, it moves on with the time.
    until: Nanos,
    /// Ceilings hold the tenant back, and since when they have while no request was outstanding.
    is_held: bool,
    held_since: Option<Nanos>,
    held_ns: Nanos,
    past_ns: Nanos,
    away_ns: Nanos,
}

impl Demand {
    /// A request is outstanding. A gap before it of at most `turnaround_ns` counts, too.
    fn begin(&mut self, now: Nanos, turnaround_ns: Nanos) {
        if self.outstanding == 0 {
            self.pass_held(now);
            let gap = now - self.until;
            self.past_ns += Some(gap).filter(|&gap| gap <= turnaround_ns).unwrap_or(0);
            self.away_ns += Some(gap).filter(|&gap| gap > AWAY_NS).unwrap_or(0);
            self.since = now;
        }
        self.outstanding += 1;
    }

    fn end(&mut self, now: Nanos) {
        self.outstanding -= 1;
        self.until = now;
        if self.outstanding == 0 {
            self.past_ns += now - self.since;
            self.held_since = self.is_held.then_some(now);
        }
    }

    /// Ceilings hold the tenant back from now on, or no longer.
    fn set_held(&mut self, now: Nanos, is_held: bool) {
        self.pass_held(now);
        self.is_held = is_held;
        self.held_since = (is_held && self.outstanding == 0).then_some(now);
    }

    /// The time in which the tenant was held back is not a part of the pause around it.
    fn pass_held(&mut self, now: Nanos) {
        let held_ns = self.held_since.take().map_or(0, |since| now - since);
        (self.held_ns, self.until) = (self.held_ns + held_ns, self.until + held_ns);
    }

    /// The time since [`LATE_NS`] after the last answer, if a request has been outstanding since then.
    fn late_ns(&self, now: Nanos) -> Nanos {
        if self.outstanding > 0 { now.saturating_sub(self.since.max(self.until) + LATE_NS) } else { 0 }
    }

    fn away_ns(&self, now: Nanos) -> Nanos {
        let held_ns = self.held_since.map_or(0, |since| now - since);
        let pause = if self.outstanding == 0 { now - self.until - held_ns } else { 0 };
        self.away_ns + if pause > AWAY_NS { pause } else { 0 }
    }

    fn held_ns(&self, now: Nanos) -> Nanos {
        self.held_ns + self.held_since.map_or(0, |since| now - since)
    }

    fn wanting_ns(&self, now: Nanos) -> Nanos {
        self.past_ns + if self.outstanding > 0 { now - self.since } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    fn entry(cost_ns: Nanos, internal: bool) -> Entry {
        Entry { len: 4096, cost_ns, internal, ..Entry::EMPTY }
    }

    fn books() -> Books {
        let mut books = Books::default();
        books.account(0);
        [A, B].into_iter().for_each(|tenant| books.open(tenant));
        books
    }

    fn submit(books: &mut Books, now: Nanos, tenant: TenantId, cost_ns: Nanos) {
        books.arrived(now, tenant, &entry(cost_ns, false));
        books.submitted(now, tenant, &entry(cost_ns, false));
    }

    #[test]
    fn requests_come_late_if_others_wait_and_all_are_answered_afterwards() {
        const MS: Nanos = 1_000_000;
        let mut books = books();
        [0, 30, 100, 200].into_iter().for_each(|at| books.begin_request(at * MS, A));
        (0..3).for_each(|_| books.end_request(300 * MS, A));
        let waiting = books.arrivals(300 * MS, A);
        assert_eq!((waiting.requests, waiting.answered, waiting.late, waiting.late_ns), (4, 3, 0, 250 * MS));
        books.end_request(310 * MS, A);
        assert_eq!(books.arrivals(310 * MS, A).late, 2, "those of 100 and 200 ms");
        books.begin_request(900 * MS, A);
        assert_eq!(books.arrivals(940 * MS, A), Arrivals { requests: 5, answered: 4, late: 2, late_ns: 250 * MS });
    }

    #[test]
    fn busy_time_is_divided_by_the_cost_that_each_has_in_the_device() {
        let mut books = books();
        submit(&mut books, 100, A, 3000);
        submit(&mut books, 100, B, 1000);
        books.completed(500, A, &entry(3000, false), 100);
        books.completed(600, B, &entry(1000, false), 100);
        let [a, b] = [A, B].map(|tenant| books.usage(1000, tenant));
        assert_eq!((a.owned_ns, b.owned_ns), (300, 100 + 100));
        assert_eq!((a.device_ns, b.device_ns), (400, 500));
        let one = Count { requests: 1, bytes: 4096 };
        assert_eq!((a.arrived, a.submitted, a.completed, a.cost_ns), (one, one, one, 3000));
        assert_eq!((books.busy_and_idle_ns(), books.time(1000, 0).tenant_ns), ((500, 500), 500));
    }

    #[test]
    fn what_hangs_owns_no_time_and_may_still_complete() {
        let mut books = books();
        submit(&mut books, 0, A, 1000);
        books.gave_up(100, A, 1);
        submit(&mut books, 200, B, 1000);
        books.completed(300, A, &entry(1000, false), 0);
        books.completed(400, B, &entry(1000, false), 200);
        let owned = [A, B].map(|tenant| books.usage(400, tenant).owned_ns);
        assert_eq!((owned, books.time(400, 0).stuck, books.cost_ns()), ([100, 200], 1, 0));
    }

    #[test]
    fn with_slices_a_tenant_owns_its_slices() {
        let mut books = books();
        books.set_slices(true);
        books.slice_begins(1000, A);
        submit(&mut books, 1000, A, 1000);
        books.arrived(1200, B, &entry(1000, false));
        assert_eq!([A, B].map(|tenant| books.others_ns(1500, tenant)), [0, 500]);
        books.completed(1700, A, &entry(1000, false), 1000);
        assert_eq!(books.usage(1800, A).owned_ns, 800, "so far");
        assert_eq!(books.time(1800, 600), DiskTime { tenant_ns: 600, switch_ns: 200, stuck: 0 });
        books.slice_ends(2000, 700);
        assert_eq!([A, B].map(|tenant| books.usage(9000, tenant).owned_ns), [1000, 0]);
        assert_eq!([A, B].map(|tenant| books.others_ns(9000, tenant)), [0, 1000]);
        assert_eq!(books.time(9000, 0), DiskTime { tenant_ns: 700, switch_ns: 300, stuck: 0 });
    }

    #[test]
    fn demand_is_that_of_clients_with_short_gaps() {
        let mut books = books();
        submit(&mut books, 0, A, 1000);
        books.completed(100, A, &entry(1000, false), 0);
        books.begin_request(100 + TURNAROUND_NS, A);
        books.end_request(200 + TURNAROUND_NS, A);
        assert_eq!((books.wanting_ns(SECOND, A), books.waiting_ns(SECOND, A)), (200 + TURNAROUND_NS, 100));
        books.arrived(SECOND, A, &entry(1000, true));
        books.arrived(SECOND, A, &entry(1000, false));
        books.cancelled(SECOND + 50, A, &entry(1000, false));
        assert_eq!([3, 5].map(|second| books.away_ns(second * SECOND, A)), [0, 5 * SECOND - TURNAROUND_NS - 200]);
        assert_eq!(books.wanting_ns(2 * SECOND, A), 250 + TURNAROUND_NS, "the server's own request is not demand");
    }

    #[test]
    fn a_closed_account_is_forgotten_and_others_go_on() {
        let mut books = books();
        submit(&mut books, 0, A, 1000);
        books.delivered(B, 512);
        books.close(100, A);
        books.completed(200, A, &entry(1000, false), 0);
        books.open(A);
        assert_eq!(books.usage(300, A), Usage::default());
        assert_eq!(books.usage(300, B).delivered, Count { requests: 1, bytes: 512 });
        assert_eq!((books.cost_ns(), books.busy_and_idle_ns()), (0, (200, 100)));
    }
}
