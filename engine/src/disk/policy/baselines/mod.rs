//! Policies from the literature, for comparison: each orders single device requests, and none of them insulates.
//!
//! ```text
//!   lanes ──► the head of each tenant's queue:       ──► rule (one file each) ──► a tenant, or nothing until a time
//!             arrival, bytes, guarantee, weight
//! ```
//!
//! A rule keeps tags for each tenant, not for each request: the tags of a head follow from those of the request before
//! it, so nothing has to be repaired when queued requests are cancelled or become urgent. The oldest arrival of a
//! tenant belongs to its head: an urgent request delays only requests of its own tenant.
//!
//! All of them charge bytes. Requests without data (flush, TRIM, WRITE_ZEROES) are charged as one block.
//!
//! Downside: each decision looks at all tenants. Positions on the disk do not count, and no rule knows how long a
//! request takes: that is what these policies are compared for.

mod bucket;
mod edf;
mod facade;
mod lottery;
mod mclock;
mod pclock;
#[cfg(test)]
mod rig;
mod sfq;
mod token_bucket;

use std::collections::VecDeque;
use std::fmt::Debug;

use super::estimates::Estimates;
use super::{Policy, Settings, TenantPlan, Turn, Weights};
use crate::disk::Op;
use crate::disk::queue::Entry;
use crate::disk::slices::{Slicing, View};
use crate::ids::{IoId, TenantId};
use crate::slab::Table;
use crate::spec::Terms;
use crate::units::{BLOCK, Nanos, SECOND, SECTOR};

pub(super) use edf::Edf;
pub(super) use facade::Facade;
pub(super) use lottery::Lottery;
pub(super) use mclock::MClock;
pub(super) use pclock::PClock;
pub(super) use sfq::Sfq;
pub(super) use token_bucket::TokenBucket;

/// The first request of a tenant's queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    tenant: TenantId,
    io: IoId,
    /// What it is charged.
    bytes: u64,
    /// When it arrived: the oldest arrival among the tenant's queued requests.
    arrived: Nanos,
    /// Its place in the order of arrival of all tenants' requests.
    place: u64,
    /// Bytes of its tenant that were queued or in the device when it arrived, its own included.
    outstanding: u64,
    /// Whether the tenant had no request queued when the rule was last asked.
    is_fresh: bool,
    /// Whether it may go to the device now.
    is_ready: bool,
    /// The tenant's minimum bandwidth, bytes a second; 0 if it has none.
    guarantee: u64,
    /// The tenant's weight by its share, parts per billion.
    weight: u64,
}

impl Head {
    /// The deadline of a request with which the tenant gets its guarantee, by Little's law: its clients have
    /// `outstanding` bytes under way, so each has to complete within the time that these take at the guarantee. A
    /// tenant without a guarantee has `latency_ns`.
    fn deadline(&self, latency_ns: Nanos) -> Nanos {
        let within_ns = if self.guarantee == 0 { latency_ns } else { time_ns(self.outstanding, self.guarantee) };
        self.arrived.saturating_add(within_ns)
    }
}

/// How long so many bytes take at a rate, bytes a second, which is not 0; rounded up, so that no rate is exceeded.
fn time_ns(bytes: u64, rate: u64) -> Nanos {
    (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(rate)).min(Nanos::MAX.into()) as Nanos
}

/// How a baseline orders requests.
pub(super) trait Rule: Debug {
    /// Adds a tenant, unless it is there.
    fn add(&mut self, _tenant: TenantId) {}
    fn remove(&mut self, _tenant: TenantId) {}
    /// The head that goes to the device now, one of those that are ready; or when the answer may be another one, later
    /// than `now`, although no event occurred. At least one head is ready. There are `in_device` requests in the
    /// device.
    fn choose(&mut self, now: Nanos, heads: &[Head], in_device: u32) -> Result<Head, Option<Nanos>>;
    /// This request completed.
    fn done(&mut self, _now: Nanos, _io: IoId) {}
}

/// The head that has the least key; heads that arrived earlier go first.
fn first<K: Ord>(heads: impl Iterator<Item = Head>, key: impl Fn(&Head) -> K) -> Option<Head> {
    heads.min_by_key(|head| (key(head), head.place))
}

/// The arrival of a queued request.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Nanos,
    place: u64,
    bytes: u64,
    outstanding: u64,
}

#[derive(Debug)]
struct Tenant {
    terms: Terms,
    /// One for each queued request.
    arrivals: VecDeque<Arrival>,
    /// Bytes of its requests that are queued or in the device.
    outstanding: u64,
    was_empty: bool,
}

/// A policy that orders requests by a rule.
#[derive(Debug)]
pub(super) struct Baseline<R> {
    rule: R,
    tenants: Table<TenantId, Tenant>,
    weights: Weights,
    arrived: u64,
    estimates: Estimates,
    /// A buffer.
    heads: Vec<Head>,
}

/// What a request is charged.
fn charge(entry: &Entry) -> u64 {
    match entry.op {
        Op::Read | Op::Write { .. } => entry.len.max(SECTOR),
        Op::Flush | Op::Zero | Op::Punch => BLOCK,
    }
}

impl<R: Rule> Baseline<R> {
    pub(super) fn new(settings: &Settings, rule: R) -> Baseline<R> {
        Baseline {
            rule,
            tenants: Table::default(),
            weights: Weights::new(std::iter::empty()),
            arrived: 0,
            estimates: Estimates::new(settings.prices),
            heads: Vec::new(),
        }
    }

    fn weigh(&mut self) {
        self.weights = Weights::new(self.tenants.values().map(|tenant| tenant.terms.share));
    }

    /// Collects the heads. Whether one of them is ready.
    fn collect(&mut self, view: View<'_>) -> bool {
        self.heads.clear();
        for (id, lane) in view.lanes.iter() {
            let Some(entry) = lane.queue.peek() else { continue };
            let tenant = &self.tenants[id];
            let arrival = tenant.arrivals.front().expect("one for each queued request");
            self.heads.push(Head {
                tenant: id,
                io: entry.io,
                bytes: charge(entry),
                arrived: arrival.at,
                place: arrival.place,
                outstanding: arrival.outstanding,
                is_fresh: tenant.was_empty,
                is_ready: view.lanes.has_place(lane),
                guarantee: tenant.terms.min_bytes_per_s,
                weight: self.weights.of(tenant.terms.share),
            });
        }
        self.heads.iter().any(|head| head.is_ready)
    }

    /// The head goes to the device.
    fn took(&mut self, head: &Head) {
        let tenant = &mut self.tenants[head.tenant];
        let arrival = tenant.arrivals.pop_front().expect("one for each queued request");
        // The arrival of another request, if this one is urgent.
        tenant.outstanding = tenant.outstanding + head.bytes - arrival.bytes;
        tenant.was_empty = tenant.arrivals.is_empty();
    }
}

impl<R> Slicing for Baseline<R> {}

impl<R: Rule> Policy for Baseline<R> {
    fn set(&mut self, settings: Settings) {
        self.estimates.set(settings.prices);
    }

    fn set_tenant(&mut self, _now: Nanos, tenant: TenantId, terms: Terms) {
        match self.tenants.get_mut(tenant) {
            Some(tenant) => tenant.terms = terms,
            None => {
                let arrivals = VecDeque::new();
                self.tenants.insert(tenant, Tenant { terms, arrivals, outstanding: 0, was_empty: true });
            }
        }
        self.rule.add(tenant);
        self.estimates.add(tenant);
        self.weigh();
    }

    fn drop_tenant(&mut self, tenant: TenantId) {
        self.tenants.remove(tenant);
        self.rule.remove(tenant);
        self.estimates.remove(tenant);
        self.weigh();
    }

    fn arrived(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, _view: View<'_>) {
        let Tenant { arrivals, outstanding, .. } = &mut self.tenants[tenant];
        let bytes = charge(entry);
        *outstanding += bytes;
        arrivals.push_back(Arrival { at: now, place: self.arrived, bytes, outstanding: *outstanding });
        self.arrived += 1;
    }

    fn cancelled(&mut self, _now: Nanos, tenant: TenantId, view: View<'_>) {
        // The latest arrivals are lost: the remaining requests have waited since the oldest ones.
        let tenant_of = &mut self.tenants[tenant];
        for arrival in tenant_of.arrivals.drain(view.lanes[tenant].queue.len()..) {
            tenant_of.outstanding -= arrival.bytes;
        }
        tenant_of.was_empty |= tenant_of.arrivals.is_empty();
    }

    fn next(&mut self, now: Nanos, view: View<'_>) -> Turn {
        if view.lanes.is_full() || view.lanes.waiting() == 0 || !self.collect(view) {
            return Turn::Nothing(None);
        }
        let choice = self.rule.choose(now, &self.heads, view.lanes.in_device());
        for head in &self.heads {
            self.tenants[head.tenant].was_empty = false;
        }
        match choice {
            Ok(head) => {
                self.took(&head);
                Turn::Request(head.tenant, None)
            }
            Err(at) => {
                debug_assert!(at.is_none_or(|at| at > now), "an answer that is due has been given");
                Turn::Nothing(at)
            }
        }
    }

    fn done(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, view: View<'_>) {
        self.tenants[tenant].outstanding -= charge(entry);
        self.rule.done(now, entry.io);
        self.estimates.done(tenant, entry, view);
    }

    fn plan(&mut self, tenant: TenantId, _view: View<'_>) -> Option<TenantPlan> {
        self.estimates.plan(tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::cluster::Clock;
    use crate::disk::policy::Kind;
    use crate::disk::scheduler::Scheduler;
    use crate::units::MILLISECOND;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    fn entry(io: u32) -> Entry {
        Entry { io: IoId(io), len: 4096, ..Entry::EMPTY }
    }

    /// 60 requests of each of two tenants; the first one has a guarantee.
    fn scheduler(kind: Kind, depth: u32) -> Scheduler {
        let settings = Settings { kind, depth, ..Config::new(0).policy() };
        let mut scheduler = Scheduler::new(settings.build(false), depth);
        for (tenant, min_bytes_per_s) in [(A, 4_096_000), (B, 0)] {
            scheduler.set_tenant(0, tenant, Terms { min_bytes_per_s, ..Terms::default() });
            (0..60).for_each(|io| scheduler.arrived(0, tenant, entry(100 * tenant.0 + io), false));
        }
        scheduler
    }

    fn baselines() -> impl Iterator<Item = Kind> {
        let with_parameter = ["token-bucket:0.1", "mclock:0.1", "facade:1ms", "edf:1ms", "pclock:1ms"];
        let usual = Kind::ALL.into_iter().filter(|&kind| kind != Kind::Insulated);
        usual.chain(with_parameter.map(|text| text.parse().expect("a policy")))
    }

    /// The requests that go to the device from `now` on, which takes a millisecond for each.
    fn order(scheduler: &mut Scheduler, mut now: Nanos) -> Vec<u32> {
        let mut order = Vec::new();
        loop {
            while let Some((tenant, entry)) = scheduler.next(now) {
                order.push(entry.io.0);
                scheduler.done(now + MILLISECOND, tenant, &entry, now);
                now += MILLISECOND;
            }
            let Some(at) = scheduler.poll_timeout() else { return order };
            assert!(at > now, "no progress at {now}");
            now = at;
        }
    }

    #[test]
    fn cancelled_requests_do_not_go_promoted_ones_go_first_and_all_others_go() {
        for kind in baselines() {
            let mut scheduler = scheduler(kind, 1);
            let mut dropped = Vec::new();
            scheduler.withdraw(0, A, &|io| io.0 % 2 == 0, &mut dropped);
            [A, B].into_iter().for_each(|tenant| scheduler.promote(tenant, &|io| io.0 % 100 == 51));
            let order = order(&mut scheduler, 0);
            assert_eq!((dropped.len(), order.len(), scheduler.waiting()), (30, 90, 0), "{kind}");
            let of = |tenant: u32| order.iter().copied().filter(move |io| io / 100 == tenant);
            assert!(of(0).next() == Some(51) && of(1).next() == Some(151), "{kind}: {order:?}");
            assert!(of(0).skip(1).is_sorted() && of(1).skip(1).is_sorted(), "{kind}: {order:?}");
            // A tenant whose queue was emptied begins anew.
            let later = 3600 * SECOND;
            (0..9).for_each(|io| scheduler.arrived(later, A, entry(io), false));
            scheduler.withdraw(later, A, &|_| true, &mut dropped);
            scheduler.arrived(later, A, entry(70), false);
            assert_eq!((dropped.len(), self::order(&mut scheduler, later)), (39, vec![70]), "{kind}");
        }
    }

    #[test]
    fn hung_requests_of_one_tenant_leave_the_device_to_the_others() {
        for kind in baselines() {
            let mut scheduler = scheduler(kind, 8);
            let (mut now, mut of_b) = (0, 0);
            while let Some(at) = {
                while let Some((tenant, entry)) = scheduler.next(now) {
                    if tenant == B {
                        scheduler.done(now, tenant, &entry, now);
                        of_b += 1;
                    }
                }
                scheduler.poll_timeout()
            } {
                now = at;
            }
            assert_eq!((of_b, scheduler.in_device()), (60, 6), "{kind}");
        }
    }

    #[test]
    fn queued_requests_move_from_each_policy_to_the_next() {
        let mut scheduler = scheduler(Kind::Insulated, 8);
        for kind in baselines() {
            let settings = Settings { kind, depth: 8, ..Config::new(0).policy() };
            let queued = scheduler.replace(0, settings, None, Clock::default());
            assert_eq!(queued.len(), 120, "{kind}");
            queued.into_iter().for_each(|io| scheduler.queue(0, TenantId(io.0 / 100), entry(io.0), false));
        }
        scheduler.drop_tenant(0, TenantId(7));
        assert_eq!(order(&mut scheduler, 0).len(), 120);
    }
    #[test]
    fn what_is_under_way_is_neither_lost_nor_kept_when_requests_are_cancelled_or_promoted() {
        let settings = Settings { kind: Kind::Sfq, depth: 4, ..Config::new(0).policy() };
        let mut scheduler = Scheduler::new(Box::new(Baseline::new(&settings, Sfq::default())), 4);
        scheduler.set_tenant(0, A, Terms::default());
        (1..20u32).for_each(|io| scheduler.arrived(0, A, Entry { len: 4096 * u64::from(io), ..entry(io) }, io == 9));
        let sent: Vec<_> = std::iter::from_fn(|| scheduler.next(0)).collect();
        scheduler.promote(A, &|io| io.0 > 15);
        scheduler.withdraw(0, A, &|io| io.0 % 3 == 0, &mut Vec::new());
        sent.into_iter().for_each(|(tenant, entry)| scheduler.done(1, tenant, &entry, 0));
        while let Some((tenant, entry)) = scheduler.next(1) {
            scheduler.done(1, tenant, &entry, 1);
        }
        let Tenant { arrivals, outstanding, .. } = &scheduler.policy.tenants[A];
        assert_eq!((arrivals.len(), *outstanding), (0, 0));
    }
}
