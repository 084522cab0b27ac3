//! Fair queueing on cost, for devices without heads: requests of all tenants are in the device together, and a tenant
//! gets no larger share of its time than promised while others want theirs.
//!
//! ```text
//!   tenant a  ▒▒▒▒▒▒ ─┐   least start tag first        in flight:
//!   tenant b  ▒▒▒    ─┼─►  start  = max(V, finish) ─►  cost of others <= limit that a latency-bound tenant sets
//!   tenant c  ·      ─┘   finish = start + cost/w       load <= knee; below a throttle           ─► device
//!                         V      = start of the last dispatched request
//! ```
//!
//! - **Cost** is device time at saturation (`price.rs`), corrected by measurements (`scale.rs`).
//! - **Shares**: start-time fair queueing. While two tenants have queued requests, the costs issued for them, each
//!   divided by the tenant's weight, differ by no more than the largest request of each, divided by its weight. A
//!   tenant gets no credit for time in which it was idle.
//! - **Load**: the policy issues requests until the device is full (the knee), and no more, because it cannot order
//!   requests that wait in the device.
//! - **A latency-bound tenant** uses less than its share although nothing limits it: a client with one request
//!   outstanding. Standalone it gets 1 / (time alone), so it is promised a response time: alone / (R x share). Its
//!   requests are submitted at once. The cost that others have in flight, which is what it waits for in the device, is
//!   limited to `alone x (1 / (R x share) - 1)`, apart from corrections (`balance.rs`). What the others lose by that is
//!   no more than the latency-bound tenant leaves of its share. One request of the others is always permitted.
//! - **Phases** of reads and of writes, if reads suffer from acknowledged writes (`turns.rs`).
//! - **A tenant alone** is not limited at all.
//! - **A hung request** delays others for [`STUCK_NS`] at most; then it is no longer counted.
//!
//! Accounting: the device's busy time is divided by cost in flight. The standalone-equivalent time of a tenant's work
//! is its cost, divided by the utilisation that its outstanding requests (queued ones included) would reach, plus the
//! time between its requests.
//!
//! Source: Jin, Chase and Kaur, "Interposed Proportional Sharing for a Storage Service Utility", SIGMETRICS 2004
//! (SFQ(D)); Goyal, Vin and Cheng, SIGCOMM 1996 (SFQ and its bound); `docs/design/fair.md`. Downside: the policy does
//! not control the order inside the device. Each dispatch scans all tenants.

mod balance;
mod pace;
mod price;
mod scale;
mod tenant;
mod turns;

use super::insulated::STUCK_NS;
use super::queue::Entry;
use super::weights::Weights;
use super::{DiskTime, Policy, Settings, TenantPlan, depth_of_one};
use crate::disk::Op;
use crate::disk::profile::Direction;
use crate::ids::{IoId, TenantId};
use crate::units::{MILLISECOND, Nanos, SECOND, Share};
use balance::Balance;
use pace::Pace;
use scale::{Scale, Who};
use tenant::{Books, Tenant};
use turns::{Lengths, Turns};

pub use pace::PACE_DEBT_NS;
pub use price::Prices;
pub use turns::HELD_BY_TURNS_NS;

/// A tenant without a request for this long is not active: longer than the pauses of an intermittent client.
const ACTIVE_NS: Nanos = SECOND;
/// Interval between updates of the limits: often enough for a client that changes its behaviour, seldom enough to cost
/// nothing.
const TICK_NS: Nanos = 10 * MILLISECOND;
/// Weight of a request in the decision whether its tenant is latency-bound: about the last dozen requests count.
const WEIGHT: f64 = 1.0 / 8.0;
/// Factor per tick by which earlier requested cost decays.
const FORGETS: f64 = 1.0 - WEIGHT;
/// The part of a latency-bound tenant's permitted wait that others' costs may take: requests also interfere with each
/// other.
const MARGIN: f64 = 0.75;

/// The policy.
#[derive(Debug)]
pub(crate) struct Fair {
    settings: Settings,
    /// Derived from the prices.
    split_bytes: [u64; 2],
    knee_ppm: u64,
    tenants: Vec<Option<Tenant>>,
    waiting: usize,
    /// Virtual time.
    virtual_ns: Nanos,
    books: Books,
    scale: Scale,
    pace: Pace,
    /// Number of active tenants, and the sum of their weights.
    active: u32,
    active_ppb: u64,
    balance: Balance,
    turns: Turns,
    /// When the phase was last updated.
    looked_at: Nanos,
    /// Cost in flight that latency-bound tenants leave to the others.
    limit_ns: Nanos,
    tick_at: Nanos,
    /// Since when the first request in order has waited for requests in flight.
    blocked_since: Option<Nanos>,
    /// When the first request in order may be submitted although no event occurred.
    look_at: Option<Nanos>,
    /// Requests that were in the device then are no longer counted.
    written_off_at: Option<Nanos>,
    stuck: u64,
    /// Hung requests that have not completed yet.
    stuck_now: u32,
}

impl Fair {
    pub(crate) fn new(settings: Settings) -> Fair {
        Fair {
            split_bytes: [Op::Read, Op::Write { durable: false }].map(|op| settings.prices.split_bytes(op)),
            knee_ppm: settings.prices.knee_ppm(),
            settings,
            tenants: Vec::new(),
            waiting: 0,
            virtual_ns: 0,
            books: Books::default(),
            scale: Scale::default(),
            pace: Pace::default(),
            active: 0,
            active_ppb: 0,
            balance: Balance::default(),
            turns: Turns::default(),
            looked_at: 0,
            limit_ns: Nanos::MAX,
            tick_at: 0,
            blocked_since: None,
            look_at: None,
            written_off_at: None,
            stuck: 0,
            stuck_now: 0,
        }
    }

    fn tenant(&mut self, id: TenantId) -> &mut Tenant {
        self.tenants[id.0 as usize].as_mut().expect("a tenant")
    }

    fn load_ppm(&self, entry: &Entry) -> u64 {
        self.settings.prices.load_ppm(entry.op, entry.len)
    }

    fn weigh(&mut self) {
        let weights = Weights::new(self.tenants.iter().flatten().map(|tenant| tenant.share));
        self.tenants.iter_mut().flatten().for_each(|tenant| tenant.weight = weights.of(tenant.share));
        self.tick_at = 0;
    }

    /// Updates which tenants are active, the phases, and the limit of the cost in flight.
    fn tick(&mut self, now: Nanos) {
        (self.active, self.active_ppb) = (0, 0);
        for tenant in self.tenants.iter_mut().flatten() {
            tenant.active = !tenant.is_idle() || (tenant.active && now < tenant.idle_since + ACTIVE_NS);
            if tenant.active {
                self.active += 1;
                self.active_ppb += tenant.weight;
            }
        }
        let keep = f64::from(self.settings.insulation_permille.clamp(1, 999)) / 1000.0;
        let active_ppb = self.active_ppb as f64;
        if self.balance.is_due(now) {
            self.balance(now, keep);
        }
        let factor = self.balance.factor();
        let active = || self.tenants.iter().flatten().filter(|tenant| tenant.active);
        let pulled = |tenant: &Tenant| tenant.kept.pulled(tenant.weight) as f64;
        let all = active().map(pulled).sum::<f64>().max(1.0);
        let writes = active().map(|tenant| tenant.writes() * pulled(tenant)).sum::<f64>() / all;
        let behind_ns = self.settings.prices.behind_writes_ns();
        if !self.turns.are_taken() {
            self.looked_at = now;
        }
        self.turns.set(behind_ns.and_then(|behind_ns| Lengths::of(writes, behind_ns as Nanos, keep)));
        // In a read phase requests meet no programs; in a write phase half of one, on average.
        let programs_ns =
            behind_ns.filter(|_| self.turns.are_taken()).map_or(0.0, |behind_ns| writes * behind_ns / 2.0);
        let leaves = |tenant: &Tenant| {
            let part = keep * tenant.weight as f64 / active_ppb;
            (factor * MARGIN * (tenant.alone_ns * (1.0 / part - 1.0) - programs_ns)) as Nanos
        };
        self.limit_ns = active().filter(|tenant| tenant.is_polite()).map(leaves).min().unwrap_or(Nanos::MAX);
        self.tenants.iter_mut().flatten().for_each(|tenant| tenant.asked_ns = tenant.asked_ns.map(|ns| ns * FORGETS));
        self.tick_at = now + TICK_NS;
    }

    /// The first tenant in order that `waits` selects and that may have more requests in the device.
    fn first(&self, waits: impl Fn(&Tenant) -> bool) -> Option<usize> {
        let most = |tenant: &Tenant| depth_of_one(self.settings.depth, self.stuck_now - tenant.stuck);
        let goes = |tenant: &&Tenant| tenant.in_device + tenant.stuck < most(tenant) && waits(tenant);
        let tenants = self.tenants.iter().enumerate();
        let waiting = tenants.filter_map(|(at, tenant)| tenant.as_ref().filter(goes).map(|t| (at, t)));
        waiting.min_by_key(|(at, tenant)| (tenant.start, !tenant.is_polite(), *at)).map(|(at, _)| at)
    }

    fn first_polite(&self) -> Option<usize> {
        self.first(|tenant| tenant.is_polite() && !tenant.queue.is_empty())
    }

    /// The first backlogged tenant with a queued read, or write.
    fn first_greedy(&self, direction: Direction) -> Option<usize> {
        self.first(|tenant| !tenant.is_polite() && tenant.queue.peek_of(Some(direction)).is_some())
    }

    /// When the phase ends, if that is after `now`. A caller that waits for it must also wake up at the next tick: a
    /// tenant may be alone by then, and phases are no longer used.
    fn turn_ends_after(&self, now: Nanos) -> Option<Nanos> {
        Some(self.turns.ends_at()).filter(|&at| at > now)
    }

    /// Whether the requests in flight leave room for one of a backlogged tenant. In a write phase the limit is at least
    /// the time for which a read waits for programs anyway.
    fn fits(&self, entry: &Entry, turn: Option<Direction>) -> bool {
        let greedy = self.tenants.iter().flatten().filter(|tenant| !tenant.is_polite());
        let in_device_ns: Nanos = greedy.map(|tenant| tenant.in_device_ns).sum();
        let programs_ns = self.settings.prices.behind_writes_ns().filter(|_| turn == Some(Direction::Write));
        let limit_ns = self.limit_ns.max(programs_ns.map_or(0, |ns| ns as Nanos));
        let in_limits = in_device_ns.saturating_add(entry.cost_ns) <= limit_ns && self.books.load_ppm < self.knee_ppm;
        in_limits || in_device_ns == 0
    }

    /// The requests in the device hang: they are no longer counted.
    fn write_off(&mut self, now: Nanos) {
        self.books.settle(now);
        for tenant in self.tenants.iter_mut().flatten() {
            tenant.settle(&self.books);
            let was_idle = tenant.is_idle();
            self.stuck += u64::from(tenant.in_device);
            (tenant.stuck, self.stuck_now) = (tenant.stuck + tenant.in_device, self.stuck_now + tenant.in_device);
            (tenant.in_device, tenant.in_device_ns) = (0, 0);
            if tenant.is_idle() && !was_idle {
                tenant.rest(now);
            }
        }
        (self.books.cost_ns, self.books.load_ppm) = (0, 0);
        self.written_off_at = Some(now);
    }

    fn dispatch(&mut self, now: Nanos, at: usize, only: Option<Direction>) -> IoId {
        self.books.settle(now);
        let tenant = self.tenants[at].as_mut().expect("a tenant");
        tenant.settle(&self.books);
        let entry = tenant.queue.pop_of(only).expect("it waits");
        self.waiting -= 1;
        self.virtual_ns = self.virtual_ns.max(tenant.start);
        // 128 bits: nanoseconds times parts per billion.
        let takes =
            u128::from(entry.cost_ns) * u128::from(self.active_ppb) / u128::from(tenant.kept.pulled(tenant.weight));
        tenant.finish = tenant.start + takes as Nanos;
        tenant.start = tenant.finish;
        tenant.in_device += 1;
        tenant.in_device_ns += entry.cost_ns;
        self.books.cost_ns += entry.cost_ns;
        self.books.load_ppm += self.settings.prices.load_ppm(entry.op, entry.len);
        if self.active > 1 {
            self.pace.passed(now, &self.settings.prices, entry.len);
        }
        entry.io
    }
}

impl Policy for Fair {
    fn set_tenant(&mut self, now: Nanos, tenant: TenantId, share: Option<Share>) {
        let at = tenant.0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize_with(at + 1, || None);
        }
        match &mut self.tenants[at] {
            Some(tenant) => tenant.share = share,
            none => {
                *none = Some(Tenant::new(now, share, self.virtual_ns, &self.books));
            }
        }
        self.weigh();
    }

    fn drop_tenant(&mut self, _now: Nanos, tenant: TenantId) {
        let gone = self.tenants[tenant.0 as usize].take();
        debug_assert!(gone.as_ref().is_none_or(|tenant| tenant.is_idle()), "it has volumes");
        self.stuck_now -= gone.map_or(0, |tenant| tenant.stuck);
        self.weigh();
    }

    fn arrived(&mut self, now: Nanos, tenant: TenantId, entry: Entry, urgent: bool) {
        let (virtual_ns, alone_ns) = (self.virtual_ns, self.settings.prices.alone_ns(entry.op, entry.len));
        let alone = self.active <= 1;
        let tenant = self.tenant(tenant);
        if tenant.is_idle() {
            tenant.resume(now, alone && tenant.active);
        }
        let mut is_behind = false;
        if tenant.queue.is_empty() {
            is_behind = tenant.finish <= virtual_ns;
            tenant.start = tenant.finish.max(virtual_ns);
        }
        tenant.behind += WEIGHT * (f64::from(u8::from(is_behind)) - tenant.behind);
        tenant.alone_ns += if tenant.alone_ns == 0.0 { alone_ns } else { WEIGHT * (alone_ns - tenant.alone_ns) };
        tenant.asked_ns[entry.direction() as usize] += entry.cost_ns as f64;
        tenant.queue.push(entry, urgent);
        let is_new = !std::mem::replace(&mut tenant.active, true);
        self.waiting += 1;
        if is_new || now >= self.tick_at {
            self.tick(now);
        }
    }

    fn hurry(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool) {
        self.tenant(tenant).queue.hurry(wanted);
    }

    fn withdraw(&mut self, now: Nanos, tenant: TenantId, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>) {
        let before = dropped.len();
        let tenant = self.tenant(tenant);
        tenant.queue.withdraw(unwanted, dropped);
        if dropped.len() > before && tenant.is_idle() {
            tenant.rest(now);
        }
        self.waiting -= dropped.len() - before;
    }

    fn next(&mut self, now: Nanos, in_device: u32) -> Option<IoId> {
        self.look_at = None;
        if self.waiting == 0 || in_device >= self.settings.depth {
            self.blocked_since = None;
            return None;
        }
        if now >= self.tick_at {
            self.tick(now);
        }
        if self.written_off_at.is_some_and(|at| now <= at) {
            // Requests are told from the written-off ones by their time of submission, so nothing is submitted at that
            // very moment.
            self.look_at = Some(now + 1);
            return None;
        }
        let first = self.first(|tenant| !tenant.queue.is_empty())?;
        let is_polite = self.tenants[first].as_ref().expect("a tenant").is_polite();
        if self.active <= 1 || is_polite {
            self.blocked_since = if self.active <= 1 { None } else { self.blocked_since };
            return Some(self.dispatch(now, first, None));
        }
        let (turn, first) = match self.turns.are_taken() {
            true => {
                let (turn, first) = self.turn(now);
                (Some(turn), first)
            }
            false => (None, Some(first)),
        };
        let Some(first) = first else {
            // The end of a phase is no evidence of progress of the requests in flight: they may hang.
            if self.books.cost_ns == 0 {
                self.blocked_since = None;
            }
            self.look_at = self.turn_ends_after(now).into_iter().chain([self.tick_at]).min();
            return self.first_polite().map(|polite| self.dispatch(now, polite, None));
        };
        let entry = *self.tenants[first].as_ref().and_then(|tenant| tenant.queue.peek_of(turn)).expect("it waits");
        let ready_at = self.pace.ready_at();
        if !self.fits(&entry, turn) {
            let since = *self.blocked_since.get_or_insert(now);
            if now >= since + STUCK_NS {
                self.blocked_since = None;
                self.write_off(now);
                self.look_at = Some(now + 1);
                return None;
            }
            self.look_at = Some(since + STUCK_NS);
        } else if now < ready_at {
            self.look_at = Some(ready_at);
        } else {
            self.blocked_since = None;
            if turn == Some(Direction::Write) {
                self.turns.wrote(now, entry.cost_ns);
            }
            return Some(self.dispatch(now, first, turn));
        }
        // At the next tick the tenant may be alone, or the limit may differ; in the next phase, requests of the other
        // direction may fit.
        let turn_ends_at = turn.and_then(|_| self.turn_ends_after(now));
        self.look_at = [self.look_at, Some(self.tick_at), turn_ends_at].into_iter().flatten().min();
        self.first_polite().map(|polite| self.dispatch(now, polite, None))
    }

    fn done(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, submitted: Nanos) {
        if self.written_off_at.is_some_and(|at| submitted <= at) {
            if let Some(tenant) = self.tenants[tenant.0 as usize].as_mut().filter(|tenant| tenant.stuck > 0) {
                (tenant.stuck, self.stuck_now) = (tenant.stuck - 1, self.stuck_now - 1);
            }
            return;
        }
        self.books.settle(now);
        let load_ppm = self.load_ppm(entry);
        let Fair { settings, books, scale, tenants, active, .. } = self;
        let at = tenant.0 as usize;
        let tenant = tenants[at].as_mut().expect("a tenant");
        tenant.settle(books);
        let (outstanding, in_device_ppm) = (tenant.outstanding(), books.load_ppm);
        let alone_ns = entry.cost_ns as f64 / settings.prices.utilisation(outstanding, load_ppm);
        tenant.useful_ns += alone_ns;
        tenant.internal_ns += if entry.internal { alone_ns } else { 0.0 };
        let (who, expected_ns) = match *active {
            0 | 1 => (Who::One(at, tenant.wanting_ns(now) - tenant.gaps_ns), alone_ns),
            _ => (Who::Several, entry.cost_ns as f64 / settings.prices.utilisation(in_device_ppm, 1)),
        };
        scale.done(now, &settings.prices, (entry.op, entry.len, outstanding > 1), expected_ns, in_device_ppm, who);
        books.cost_ns -= entry.cost_ns;
        books.load_ppm -= load_ppm;
        tenant.in_device -= 1;
        tenant.in_device_ns -= entry.cost_ns;
        if tenant.is_idle() {
            tenant.rest(now);
        }
        if now >= self.tick_at {
            self.tick(now);
        }
    }

    fn cost_ns(&self, tenant: TenantId, op: Op, len: u64, _follows: bool) -> Nanos {
        let beside = self.tenants[tenant.0 as usize].as_ref().is_some_and(|tenant| !tenant.is_idle());
        ((self.settings.prices.cost_ns(op, len) * self.scale.of(op, len, beside)) as Nanos).max(1)
    }

    fn request_bytes_max(&self, _tenant: TenantId, op: Op) -> u64 {
        if self.active <= 1 { u64::MAX } else { self.split_bytes[usize::from(op != Op::Read)] }
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.look_at
    }

    fn plan(&mut self, now: Nanos, tenant: TenantId) -> Option<TenantPlan> {
        self.books.settle(now);
        let tenant = self.tenants[tenant.0 as usize].as_mut()?;
        tenant.settle(&self.books);
        Some(TenantPlan {
            efficiency_permille: 1000,
            owned_ns: tenant.owned_ns as Nanos,
            useful_ns: (tenant.useful_ns - tenant.internal_ns) as Nanos,
            ..TenantPlan::default()
        })
    }

    fn set(&mut self, settings: Settings) {
        self.settings = settings;
        self.tick_at = 0;
    }

    fn time(&self, now: Nanos) -> Option<DiskTime> {
        let tenant_ns = self.books.busy_ns + self.books.running_ns(now);
        Some(DiskTime { tenant_ns, switch_ns: 0, stuck: self.stuck })
    }
}

#[cfg(test)]
mod tests;
