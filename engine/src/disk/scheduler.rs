//! The scheduler of a disk: lanes hold the requests, books observe them, the policy decides which tenant is next, the
//! slice runner carries slices out.

use super::books::{Books, DiskTime};
use super::lanes::Lanes;
use super::policy::{Policy, Settings, Slice, TenantPlan, Turn, Weights};
use super::queue::{Entry, Which};
use super::slices::{Cause, Slices, Stage, Step, View};
use crate::cluster::{Clock, Timetable};
use crate::disk::Op;
use crate::ids::{IoId, TenantId};
use crate::slab::Table;
use crate::spec::Terms;
use crate::units::Nanos;

/// What a policy was told of a tenant, for the next policy.
#[derive(Debug)]
struct Told {
    terms: Terms,
    /// The part of its slices that it must not lose, in thousandths; `None` for the default.
    keep_permille: Option<u32>,
    /// Where its data is on the disk, bytes from the beginning, if that is known.
    place: Option<u64>,
}

/// The scheduler. Tests know its policy.
#[derive(Debug)]
pub(crate) struct Scheduler<P: Policy + ?Sized = dyn Policy> {
    told: Table<TenantId, Told>,
    pub(super) lanes: Lanes,
    pub(crate) books: Books,
    slices: Slices,
    has_slices: bool,
    /// When the policy wants to be asked again, if nothing could go.
    ask_at: Option<Nanos>,
    pub(super) policy: Box<P>,
}

impl Scheduler {
    /// Changes to another policy. Returns the queued requests, which are to be queued again: their costs may differ.
    /// Requests in the device stay there; [`Scheduler::done`] is not told of them, but [`Scheduler::left`].
    pub(crate) fn replace(
        &mut self,
        now: Nanos,
        settings: Settings,
        timetable: Option<&Timetable>,
        clock: Clock,
    ) -> Vec<IoId> {
        let mut queued = Vec::with_capacity(self.lanes.waiting());
        for (tenant, _) in self.told.iter() {
            self.lanes.withdraw(tenant, &|_| true, &mut queued);
        }
        self.books.slice_ends(now, self.slices.useful_ns(now));
        self.policy = settings.build(timetable.is_some());
        self.has_slices = self.policy.has_slices();
        self.books.account(now);
        self.books.set_slices(self.has_slices);
        self.lanes = self.lanes.renewed(settings.depth, self.policy.detects_hung());
        self.slices = Slices::default();
        self.ask_at = None;
        for (tenant, told) in self.told.iter() {
            if self.has_slices {
                self.slices.set_tenant(now, tenant);
                self.slices.set_held(now, tenant, self.books.is_held(tenant));
            }
            self.policy.set_tenant(now, tenant, told.terms);
            self.policy.set_keep(tenant, told.keep_permille);
            self.policy.set_place(tenant, told.place);
        }
        self.policy.set_clock(clock);
        if let Some(timetable) = timetable {
            self.policy.set_timetable(now, timetable);
        }
        queued
    }
}

impl<P: Policy + ?Sized> Scheduler<P> {
    pub(crate) fn new(policy: Box<P>, depth: u32) -> Scheduler<P> {
        let has_slices = policy.has_slices();
        let mut books = Books::default();
        books.set_slices(has_slices);
        Scheduler {
            told: Table::default(),
            lanes: Lanes::new(depth, policy.detects_hung()),
            books,
            slices: Slices::default(),
            has_slices,
            ask_at: None,
            policy,
        }
    }

    fn view(&self) -> View<'_> {
        View { lanes: &self.lanes, books: &self.books, slices: self.slices.observed() }
    }

    /// Changes the settings; the policy stays the same.
    pub(crate) fn set(&mut self, settings: Settings) {
        self.lanes.set_depth(settings.depth);
        self.policy.set(settings);
    }

    /// Sets the relation of the engine's clock to cluster time. A policy that waits for a moment is asked again.
    pub(crate) fn set_clock(&mut self, now: Nanos, clock: Clock) {
        self.policy.set_clock(clock);
        self.ask_at = self.ask_at.map(|at| at.min(now + 1));
    }

    /// Adds a tenant, or changes what it is promised.
    pub(crate) fn set_tenant(&mut self, now: Nanos, tenant: TenantId, terms: Terms) {
        let before = self.told.get(tenant);
        let (keep_permille, place) = before.map_or((None, None), |told| (told.keep_permille, told.place));
        self.told.insert(tenant, Told { terms, keep_permille, place });
        self.lanes.add(tenant);
        self.books.open(tenant);
        if self.has_slices {
            self.slices.set_tenant(now, tenant);
        }
        self.policy.set_tenant(now, tenant, terms);
    }

    /// Whether the tenant has disk time.
    pub(crate) fn has(&self, tenant: TenantId) -> bool {
        self.told.contains(tenant)
    }

    /// Sets the part of its slices that a tenant must not lose.
    pub(crate) fn set_keep(&mut self, tenant: TenantId, keep_permille: Option<u32>) {
        self.told[tenant].keep_permille = keep_permille;
        self.policy.set_keep(tenant, keep_permille);
    }

    /// Whether the ceilings of a tenant hold it back at present.
    pub(crate) fn set_held(&mut self, now: Nanos, tenant: TenantId, is_held: bool) {
        if self.books.set_held(now, tenant, is_held) && self.has_slices && self.has(tenant) {
            self.slices.set_held(now, tenant, is_held);
        }
    }

    /// Sets where the data of a tenant is on the disk, bytes from the beginning, if that is known.
    pub(crate) fn set_place(&mut self, tenant: TenantId, place: Option<u64>) {
        self.told[tenant].place = place;
        self.policy.set_place(tenant, place);
    }

    /// Removes a tenant that has no volumes.
    pub(crate) fn drop_tenant(&mut self, now: Nanos, tenant: TenantId) {
        if self.slices.owner() == Some(tenant) {
            let (slices, stage) = self.stage();
            slices.end(now, Cause::Idle, stage);
        }
        if self.told.remove(tenant).is_some() {
            self.policy.drop_tenant(tenant);
            self.slices.drop_tenant(tenant);
            self.lanes.remove(tenant);
        }
        self.books.close(now, tenant);
    }

    fn stage(&mut self) -> (&mut Slices, Stage<'_, P>) {
        let Scheduler { lanes, books, policy, slices, .. } = self;
        (slices, Stage { lanes, books, policy })
    }

    /// The cost of a request of the tenant; `follows` if it begins where an earlier one of its tenant ended.
    pub(crate) fn cost_ns(&self, tenant: TenantId, op: Op, len: u64, follows: bool) -> Nanos {
        self.policy.cost_ns(tenant, op, len, follows, self.view())
    }

    /// Largest read or write that the tenant may submit at present, in bytes.
    pub(crate) fn request_bytes_max(&self, tenant: TenantId, op: Op) -> u64 {
        self.policy.request_bytes_max(tenant, op, self.view())
    }

    /// Whether the tenant has no request queued or in the device, but hung ones.
    pub(crate) fn is_idle(&self, tenant: TenantId) -> bool {
        self.lanes[tenant].is_idle()
    }

    /// A request arrived: it is queued, an urgent one ahead of its tenant's others.
    pub(crate) fn arrived(&mut self, now: Nanos, tenant: TenantId, entry: Entry, urgent: bool) {
        self.books.arrived(now, tenant, &entry);
        self.queue(now, tenant, entry, urgent);
    }

    /// Queues a request.
    pub(crate) fn queue(&mut self, now: Nanos, tenant: TenantId, entry: Entry, urgent: bool) {
        if self.has_slices {
            self.slices.arrives(now, tenant, &self.lanes[tenant]);
        }
        self.lanes.push(tenant, entry, urgent);
        let Scheduler { lanes, books, policy, slices, .. } = self;
        policy.arrived(now, tenant, &entry, View { lanes, books, slices: slices.observed() });
    }

    /// Faults of the device so far, as far as they concern the tenant: hung requests, and times in which nothing was
    /// completed. `None` while one lasts.
    pub(crate) fn faults(&self, now: Nanos, tenant: TenantId) -> Option<u64> {
        if self.lanes[tenant].hangs() { None } else { self.books.faults(now) }
    }

    /// Promotes the tenant's queued requests that `wanted` selects: they become urgent.
    pub(crate) fn promote(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool) {
        self.lanes.promote(tenant, wanted);
    }

    /// Cancels the tenant's queued requests that `unwanted` selects, and adds them to `dropped`.
    pub(crate) fn withdraw(
        &mut self,
        now: Nanos,
        tenant: TenantId,
        unwanted: &dyn Fn(IoId) -> bool,
        dropped: &mut Vec<IoId>,
    ) {
        let before = dropped.len();
        self.lanes.withdraw(tenant, unwanted, dropped);
        if dropped.len() == before {
            return;
        }
        if self.has_slices {
            self.slices.left(now, tenant, &self.lanes[tenant]);
        }
        let Scheduler { lanes, books, policy, slices, .. } = self;
        policy.cancelled(now, tenant, View { lanes, books, slices: slices.observed() });
    }

    /// The next request that goes to the device, and its tenant.
    pub(crate) fn next(&mut self, now: Nanos) -> Option<(TenantId, Entry)> {
        loop {
            if let Some(owner) = self.slices.owner() {
                let (slices, stage) = self.stage();
                match slices.step(now, stage) {
                    Step::Issue(which) => return Some(self.submit(now, owner, which)),
                    Step::Wait => return None,
                    Step::Again | Step::Ended => continue,
                }
            }
            self.ask_at = None;
            let Scheduler { lanes, books, policy, slices, .. } = self;
            match policy.next(now, View { lanes, books, slices: slices.observed() }) {
                Turn::Request(tenant, only) => {
                    return Some(self.submit(now, tenant, only.map_or(Which::All, Which::Only)));
                }
                Turn::Slice(slot) => slices.begin(now, slot, lanes, books),
                Turn::GiveUp => {
                    self.give_up(now);
                    // Hung requests are told from later ones by their time of submission.
                    self.ask_at = Some(now + 1);
                    return None;
                }
                Turn::Nothing(ask_at) => {
                    self.ask_at = ask_at;
                    return None;
                }
            }
        }
    }

    fn submit(&mut self, now: Nanos, tenant: TenantId, which: Which) -> (TenantId, Entry) {
        let entry = self.lanes.submit(tenant, which);
        self.books.submitted(now, tenant, &entry);
        (tenant, entry)
    }

    /// All requests in the device hang.
    fn give_up(&mut self, now: Nanos) {
        for (tenant, _) in self.told.iter() {
            let given_up = self.lanes.give_up(now, tenant);
            if given_up > 0 {
                self.books.gave_up(now, tenant, given_up);
            }
        }
    }

    /// A request completed that the present policy submitted to the device at `submitted`.
    pub(crate) fn done(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, submitted: Nanos) {
        self.books.completed(now, tenant, entry, submitted);
        if self.lanes.done(tenant, entry, submitted) {
            return;
        }
        if self.has_slices {
            self.slices.done(now, tenant, entry, &self.lanes[tenant]);
        }
        let Scheduler { lanes, books, policy, slices, .. } = self;
        policy.done(now, tenant, entry, View { lanes, books, slices: slices.observed() });
    }

    /// A request completed that an earlier policy submitted to the device at `submitted`.
    pub(crate) fn left(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, submitted: Nanos) {
        self.books.completed(now, tenant, entry, submitted);
        self.lanes.left();
    }

    /// Queued requests.
    pub(crate) fn waiting(&self) -> usize {
        self.lanes.waiting()
    }

    /// Requests of a tenant that the device is not keeping up with: queued or in the device. While others own the disk,
    /// those that were left when it last did: what has arrived since waits for its slice, which is no overload.
    pub(crate) fn load(&self, tenant: TenantId) -> u32 {
        self.lanes.load(tenant)
    }

    /// The share of the disk that a tenant has, parts per billion: [`Weights`].
    pub(crate) fn share_ppb(&self, tenant: TenantId) -> u64 {
        let weights = Weights::new(self.told.values().map(|told| told.terms.share));
        self.told.get(tenant).map_or(0, |told| weights.of(told.terms.share))
    }

    /// All tenants.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.told.iter().map(|(tenant, _)| tenant)
    }

    /// Requests in the device.
    pub(crate) fn in_device(&self) -> u32 {
        self.lanes.in_device()
    }

    /// When [`Scheduler::next`] may have another answer although no event occurred.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        if self.slices.owner().is_some() { self.slices.poll_timeout(&self.lanes, &self.books) } else { self.ask_at }
    }

    /// As [`Policy::owes_slice`].
    pub(crate) fn owes_slice(&self, tenant: TenantId) -> bool {
        self.policy.owes_slice(tenant)
    }

    /// The plan for a tenant; `None` if the policy promises nothing.
    pub(crate) fn plan(&mut self, now: Nanos, tenant: TenantId) -> Option<TenantPlan> {
        let Scheduler { told, lanes, books, policy, slices, .. } = self;
        told.get(tenant)?;
        let mut plan = policy.plan(tenant, View { lanes, books, slices: slices.observed() })?;
        if self.has_slices {
            (plan.slices, plan.switches_ns, plan.useful_ns) = slices.of(now, tenant);
        }
        Some(plan)
    }

    /// The accounting of the disk's time, as of the last [`Books::account`].
    pub(crate) fn time(&self, now: Nanos) -> DiskTime {
        self.books.time(now, self.slices.useful_ns(now))
    }

    /// The latest slices.
    pub(crate) fn past_slices(&self) -> Vec<Slice> {
        self.slices.past()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{MILLISECOND, SECOND, Share};

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    /// A token bucket for each tenant, of one request: its share, in percent, is its rate in requests a second.
    #[derive(Default, Debug)]
    struct TokenBucket(Table<TenantId, (Nanos, Nanos)>);

    impl crate::disk::slices::Slicing for TokenBucket {}

    impl Policy for TokenBucket {
        fn set_tenant(&mut self, _now: Nanos, tenant: TenantId, terms: Terms) {
            let percent = terms.share.map_or(1, |share| share.ppb() / 10_000_000);
            self.0.insert(tenant, (0, SECOND / percent));
        }
        fn drop_tenant(&mut self, tenant: TenantId) {
            self.0.remove(tenant);
        }
        fn arrived(&mut self, _now: Nanos, _tenant: TenantId, _entry: &Entry, _view: View<'_>) {}
        fn next(&mut self, now: Nanos, view: View<'_>) -> Turn {
            let ready = view.lanes.ready().map(|(tenant, _)| (self.0[tenant].0, tenant)).min();
            let Some((_, tenant)) = ready.filter(|&(full_at, _)| full_at <= now) else {
                return Turn::Nothing(ready.map(|(full_at, _)| full_at));
            };
            let (full_at, interval) = &mut self.0[tenant];
            *full_at = now + *interval;
            Turn::Request(tenant, None)
        }
    }

    fn entry(io: u32) -> Entry {
        Entry { io: IoId(io), len: 4096, cost_ns: MILLISECOND, ..Entry::EMPTY }
    }

    fn scheduler(depth: u32) -> Scheduler<TokenBucket> {
        let mut scheduler = Scheduler::new(Box::<TokenBucket>::default(), depth);
        for (tenant, percent) in [(A, 40), (B, 10)] {
            scheduler.set_tenant(0, tenant, Share::from_ppb(percent * 10_000_000).into());
            (0..100).for_each(|io| scheduler.arrived(0, tenant, entry(100 * tenant.0 + io), false));
        }
        scheduler
    }

    /// A policy has no queues, bounds or accounting of its own.
    #[test]
    fn a_token_bucket_is_a_policy_of_a_few_lines() {
        let mut scheduler = scheduler(8);
        let mut now = 0;
        while now < SECOND {
            while let Some((tenant, entry)) = scheduler.next(now) {
                scheduler.done(now + MILLISECOND, tenant, &entry, now);
                now += MILLISECOND;
            }
            now = scheduler.poll_timeout().expect("a token to come");
        }
        let [a, b] = [A, B].map(|tenant| scheduler.books.usage(now, tenant));
        assert!((37..=41).contains(&a.completed.requests) && (10..=11).contains(&b.completed.requests), "{a:?} {b:?}");
        assert_eq!(a.owned_ns, a.completed.requests * MILLISECOND);
        assert_eq!(scheduler.waiting() as u64, 200 - a.completed.requests - b.completed.requests);
    }

    #[test]
    fn no_policy_fills_the_device_with_requests_of_one_tenant() {
        let mut scheduler = scheduler(8);
        scheduler.withdraw(0, B, &|_| true, &mut Vec::new());
        // Nothing completes.
        let went = |scheduler: &mut Scheduler<TokenBucket>, from: Nanos| {
            let times = (from..from + 100).map(|second| second * SECOND);
            times.filter_map(|now| scheduler.next(now)).map(|(tenant, _)| tenant).collect::<Vec<_>>()
        };
        assert_eq!(went(&mut scheduler, 0), [A; 6]);
        assert_eq!(scheduler.poll_timeout(), None, "the token does not matter");
        (0..9).for_each(|io| scheduler.arrived(100 * SECOND, B, entry(200 + io), false));
        assert_eq!((went(&mut scheduler, 100), scheduler.in_device()), (vec![B; 2], 8));
    }

    #[test]
    fn what_is_cancelled_does_not_go_and_what_is_promoted_goes_first() {
        let mut scheduler = scheduler(8);
        let mut dropped = Vec::new();
        scheduler.withdraw(0, A, &|io| io.0 % 2 == 0, &mut dropped);
        scheduler.promote(A, &|io| io.0 == 51);
        let next = |scheduler: &mut Scheduler<TokenBucket>, now| scheduler.next(now).map(|(_, entry)| entry.io.0);
        assert_eq!((dropped.len(), scheduler.waiting()), (50, 150));
        assert_eq!([(); 3].map(|()| next(&mut scheduler, 0)), [Some(51), Some(100), None]);
        assert_eq!([SECOND; 3].map(|now| next(&mut scheduler, now)), [Some(1), Some(101), None]);
    }
}
