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
//! - **A guarantee** is a reservation of cost: a tenant behind it goes first, as long as it fits into the share
//!   (`reserve.rs`).
//! - **Phases** of reads and of writes, if reads suffer from acknowledged writes (`turns.rs`).
//! - **A tenant alone** is not limited at all.
//! - **A hung request** delays others for [`STUCK_NS`] at most; then it is no longer counted.
//!
//! The standalone-equivalent time of a tenant's work is its cost, divided by the utilisation that its outstanding
//! requests (queued ones included) would reach, plus the time between its requests.
//!
//! Source: Jin, Chase and Kaur, "Interposed Proportional Sharing for a Storage Service Utility", SIGMETRICS 2004
//! (SFQ(D)); Goyal, Vin and Cheng, SIGCOMM 1996 (SFQ and its bound); `docs/design/fair.md`. Downside: the policy does
//! not control the order inside the device. Each dispatch scans all tenants.

mod balance;
mod pace;
mod reserve;
mod scale;
mod tenant;
mod turns;

use super::weights::Weights;
use super::{Policy, STUCK_NS, Settings, TenantPlan, Turn};
use crate::disk::Op;
use crate::disk::lanes::{Lane, Lanes};
use crate::disk::profile::Direction;
use crate::disk::queue::{Entry, Which};
use crate::disk::slices::{Slicing, View};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::spec::Terms;
use crate::units::{MILLISECOND, Nanos, SECOND};
use balance::Balance;
use pace::Pace;
use reserve::Reserve;
use scale::{Scale, Who};
use tenant::Tenant;
use turns::{Lengths, Turns};

pub use pace::PACE_DEBT_NS;
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
    tenants: Table<TenantId, Tenant>,
    /// The time of the last [`Policy::next`].
    now: Nanos,
    /// Virtual time.
    virtual_ns: Nanos,
    /// Load in flight.
    load_ppm: u64,
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
    /// When the requests in the device were given up.
    gave_up_at: Option<Nanos>,
}

impl Fair {
    pub(crate) fn new(settings: Settings) -> Fair {
        Fair {
            split_bytes: [Op::Read, Op::Write { durable: false }].map(|op| settings.prices.split_bytes(op)),
            knee_ppm: settings.prices.knee_ppm(),
            settings,
            tenants: Table::default(),
            now: 0,
            virtual_ns: 0,
            load_ppm: 0,
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
            gave_up_at: None,
        }
    }

    fn load_ppm(&self, entry: &Entry) -> u64 {
        self.settings.prices.load_ppm(entry.op, entry.len)
    }

    fn weigh(&mut self) {
        let weights = Weights::new(self.tenants.values().map(|tenant| tenant.share));
        for tenant in self.tenants.values_mut() {
            tenant.weight = weights.of(tenant.share);
            tenant.reserve.iter_mut().for_each(|reserve| reserve.set_part(weights.part_ppb(tenant.share)));
        }
        self.tick_at = 0;
    }

    /// Updates which tenants are active, the phases, and the limit of the cost in flight.
    fn tick(&mut self, now: Nanos) {
        (self.active, self.active_ppb) = (0, 0);
        for tenant in self.tenants.values_mut() {
            tenant.active = !tenant.is_idle() || (tenant.active && tenant.was_busy(now, ACTIVE_NS));
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
        let active = || self.tenants.values().filter(|tenant| tenant.active);
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
        self.limit_ns = active().filter(|tenant| tenant.is_latency_bound()).map(leaves).min().unwrap_or(Nanos::MAX);
        self.tenants.values_mut().for_each(|tenant| tenant.asked_ns = tenant.asked_ns.map(|ns| ns * FORGETS));
        self.tick_at = now + TICK_NS;
    }

    /// When the next request of a tenant is due that is behind its guarantee; the end of time for others.
    fn due(&self, tenant: &Tenant) -> Nanos {
        tenant.reserve.as_ref().and_then(|reserve| reserve.due_by(self.now)).unwrap_or(Nanos::MAX)
    }

    /// The first tenant in order that `waits` selects and that may have more requests in the device.
    fn first(&self, lanes: &Lanes, waits: impl Fn(&Tenant, &Lane) -> bool) -> Option<TenantId> {
        let ready = lanes.ready().map(|(id, lane)| (id, &self.tenants[id], lane));
        let first = ready.filter(|(_, tenant, lane)| waits(tenant, lane));
        let order = |&(id, tenant, _): &(TenantId, &Tenant, &Lane)| {
            (self.due(tenant), tenant.start, !tenant.is_latency_bound(), id)
        };
        first.min_by_key(order).map(|(id, ..)| id)
    }

    /// The first backlogged tenant with a queued read, or write.
    fn first_backlogged(&self, lanes: &Lanes, direction: Direction) -> Option<TenantId> {
        self.first(lanes, |tenant, lane| {
            !tenant.is_latency_bound() && lane.queue.peek_of(Which::Only(direction)).is_some()
        })
    }

    /// When the phase ends, if that is after `now`. A caller that waits for it must also wake up at the next tick: a
    /// tenant may be alone by then, and phases are no longer used.
    fn turn_ends_after(&self, now: Nanos) -> Option<Nanos> {
        Some(self.turns.ends_at()).filter(|&at| at > now)
    }

    /// Whether the requests in flight leave room for one of a backlogged tenant. In a write phase the limit is at least
    /// the time for which a read waits for programs anyway.
    fn fits(&self, entry: &Entry, turn: Option<Direction>, lanes: &Lanes) -> bool {
        let backlogged = self.tenants.iter().filter(|(_, tenant)| !tenant.is_latency_bound());
        let in_device_ns: Nanos = backlogged.map(|(id, _)| lanes[id].in_service_ns()).sum();
        let programs_ns = self.settings.prices.behind_writes_ns().filter(|_| turn == Some(Direction::Write));
        let limit_ns = self.limit_ns.max(programs_ns.map_or(0, |ns| ns as Nanos));
        let in_limits = in_device_ns.saturating_add(entry.cost_ns) <= limit_ns && self.load_ppm < self.knee_ppm;
        in_limits || in_device_ns == 0
    }

    /// The requests in the device hang: they are no longer counted.
    fn give_up(&mut self, now: Nanos, lanes: &Lanes) -> Turn {
        for (id, tenant) in self.tenants.iter_mut() {
            if lanes[id].queue.is_empty() {
                tenant.rest(now);
            }
        }
        (self.load_ppm, self.gave_up_at, self.blocked_since) = (0, Some(now), None);
        Turn::GiveUp
    }

    /// The next request of this tenant goes to the device.
    fn dispatch(&mut self, now: Nanos, id: TenantId, only: Option<Direction>, entry: &Entry) -> Turn {
        // A request that goes first because of a guarantee says nothing of how far the others are.
        if self.due(&self.tenants[id]) == Nanos::MAX {
            self.virtual_ns = self.virtual_ns.max(self.tenants[id].start);
        }
        let tenant = &mut self.tenants[id];
        if let Some(reserve) = &mut tenant.reserve {
            reserve.dispatched(now, entry.cost_ns);
        }
        // 128 bits: nanoseconds times parts per billion.
        let takes =
            u128::from(entry.cost_ns) * u128::from(self.active_ppb) / u128::from(tenant.kept.pulled(tenant.weight));
        tenant.finish = tenant.start + takes as Nanos;
        tenant.start = tenant.finish;
        self.load_ppm += self.settings.prices.load_ppm(entry.op, entry.len);
        if self.active > 1 {
            self.pace.passed(now, &self.settings.prices, entry.len);
        }
        Turn::Request(id, only)
    }

    /// The next request of a latency-bound tenant goes, or nothing until `ask_at`.
    fn latency_bound_or(&mut self, now: Nanos, lanes: &Lanes, ask_at: Option<Nanos>) -> Turn {
        match self.first(lanes, |tenant, _| tenant.is_latency_bound()) {
            Some(latency_bound) => self.dispatch_next(now, latency_bound, lanes),
            None => Turn::Nothing(ask_at),
        }
    }

    /// The tenant's next request goes to the device, whatever its direction.
    fn dispatch_next(&mut self, now: Nanos, id: TenantId, lanes: &Lanes) -> Turn {
        self.dispatch(now, id, None, lanes[id].queue.peek().expect("a queued request"))
    }

    /// What goes if `first`, a backlogged tenant, is first in order.
    fn next_backlogged(&mut self, now: Nanos, first: TenantId, lanes: &Lanes) -> Turn {
        let (turn, first) = match self.turns.are_taken() {
            true => {
                let (turn, first) = self.turn(now, lanes);
                (Some(turn), first)
            }
            false => (None, Some(first)),
        };
        let Some(first) = first else {
            // The end of a phase is no evidence of progress of the requests in flight: they may hang.
            if lanes.in_service() == 0 {
                self.blocked_since = None;
            }
            let ask_at = self.turn_ends_after(now).into_iter().chain([self.tick_at]).min();
            return self.latency_bound_or(now, lanes, ask_at);
        };
        let entry = lanes[first].queue.peek_of(turn.map_or(Which::All, Which::Only)).expect("it waits");
        let ready_at = self.pace.ready_at();
        let ask_at = if !self.fits(entry, turn, lanes) {
            let since = *self.blocked_since.get_or_insert(now);
            if now >= since + STUCK_NS {
                return self.give_up(now, lanes);
            }
            since + STUCK_NS
        } else if now < ready_at {
            ready_at
        } else {
            self.blocked_since = None;
            if turn == Some(Direction::Write) {
                self.turns.wrote(now, entry.cost_ns);
            }
            return self.dispatch(now, first, turn, entry);
        };
        // At the next tick the tenant may be alone, or the limit may differ; in the next phase, requests of the other
        // direction may fit.
        let turn_ends_at = turn.and_then(|_| self.turn_ends_after(now)).unwrap_or(Nanos::MAX);
        self.latency_bound_or(now, lanes, Some(ask_at.min(self.tick_at).min(turn_ends_at)))
    }
}

impl Slicing for Fair {}

impl Policy for Fair {
    fn detects_hung(&self) -> bool {
        true
    }

    fn set(&mut self, settings: Settings) {
        self.settings = settings;
        self.tick_at = 0;
    }

    fn set_tenant(&mut self, now: Nanos, tenant: TenantId, terms: Terms) {
        let Terms { share, min_bytes_per_s, .. } = terms;
        match self.tenants.get_mut(tenant) {
            Some(tenant) => tenant.share = share,
            None => self.tenants.insert(tenant, Tenant::new(now, share, self.virtual_ns)),
        }
        let reserve = &mut self.tenants[tenant].reserve;
        if reserve.as_ref().map_or(0, Reserve::bytes_per_s) != min_bytes_per_s {
            *reserve = Reserve::new(now, min_bytes_per_s);
        }
        self.weigh();
    }

    fn drop_tenant(&mut self, tenant: TenantId) {
        let gone = self.tenants.remove(tenant);
        debug_assert!(gone.is_none_or(|tenant| tenant.is_idle()), "it has volumes");
        self.weigh();
    }

    fn arrived(&mut self, now: Nanos, id: TenantId, entry: &Entry, view: View<'_>) {
        let (virtual_ns, alone_ns) = (self.virtual_ns, self.settings.prices.alone_ns(entry.op, entry.len));
        let alone = self.active <= 1;
        let tenant = &mut self.tenants[id];
        if tenant.is_idle() {
            tenant.resume(now, alone && tenant.active, view.books.held_ns(now, id));
            if let Some(reserve) = &mut tenant.reserve {
                reserve.resume(now);
            }
        }
        let mut is_behind = false;
        if view.lanes[id].queue.len() == 1 {
            is_behind = tenant.finish <= virtual_ns;
            tenant.start = tenant.finish.max(virtual_ns);
        }
        tenant.behind += WEIGHT * (f64::from(u8::from(is_behind)) - tenant.behind);
        tenant.alone_ns += if tenant.alone_ns == 0.0 { alone_ns } else { WEIGHT * (alone_ns - tenant.alone_ns) };
        tenant.asked_ns[entry.direction() as usize] += entry.cost_ns as f64;
        let is_new = !std::mem::replace(&mut tenant.active, true);
        if is_new || now >= self.tick_at {
            self.tick(now);
        }
    }

    fn cancelled(&mut self, now: Nanos, tenant: TenantId, view: View<'_>) {
        if view.lanes[tenant].is_idle() {
            self.tenants[tenant].rest(now);
        }
    }

    fn next(&mut self, now: Nanos, view: View<'_>) -> Turn {
        let lanes = view.lanes;
        self.now = now;
        if lanes.waiting() == 0 || lanes.is_full() {
            self.blocked_since = None;
            return Turn::Nothing(None);
        }
        if now >= self.tick_at {
            self.tick(now);
        }
        if self.gave_up_at.is_some_and(|at| now <= at) {
            // Hung requests are told from later ones by their time of submission, so nothing is submitted at that very
            // moment.
            return Turn::Nothing(Some(now + 1));
        }
        let Some(first) = self.first(lanes, |_, _| true) else { return Turn::Nothing(None) };
        if self.active > 1 && !self.tenants[first].is_latency_bound() {
            return self.next_backlogged(now, first, lanes);
        }
        if self.active <= 1 {
            self.blocked_since = None;
        }
        self.dispatch_next(now, first, lanes)
    }

    fn done(&mut self, now: Nanos, id: TenantId, entry: &Entry, view: View<'_>) {
        let load_ppm = self.load_ppm(entry);
        let Fair { settings, load_ppm: in_device_ppm, scale, tenants, active, .. } = self;
        let (tenant, lane) = (&mut tenants[id], &view.lanes[id]);
        // With the request that completed.
        let outstanding = lane.queue.len() as u64 + u64::from(lane.in_service()) + 1;
        let alone_ns = entry.cost_ns as f64 / settings.prices.utilisation(outstanding, load_ppm);
        if let Some(reserve) = &mut tenant.reserve {
            reserve.done(entry.cost_ns, view.books.delivered_bytes(id));
        }
        tenant.useful_ns += alone_ns;
        tenant.internal_ns += if entry.internal { alone_ns } else { 0.0 };
        let (who, expected_ns) = match *active {
            0 | 1 => (Who::One(id, tenant.wanting_ns(now) - tenant.gaps_ns), alone_ns),
            _ => (Who::Several, entry.cost_ns as f64 / settings.prices.utilisation(*in_device_ppm, 1)),
        };
        scale.done(now, &settings.prices, (entry.op, entry.len, outstanding > 1), expected_ns, *in_device_ppm, who);
        *in_device_ppm -= load_ppm;
        if lane.is_idle() {
            tenant.rest(now);
        }
        if now >= self.tick_at {
            self.tick(now);
        }
    }

    fn cost_ns(&self, tenant: TenantId, op: Op, len: u64, _follows: bool, _view: View<'_>) -> Nanos {
        let beside = self.tenants.get(tenant).is_some_and(|tenant| !tenant.is_idle());
        ((self.settings.prices.cost_ns(op, len) * self.scale.of(op, len, beside)) as Nanos).max(1)
    }

    fn request_bytes_max(&self, _tenant: TenantId, op: Op, _view: View<'_>) -> u64 {
        if self.active <= 1 { u64::MAX } else { self.split_bytes[usize::from(op != Op::Read)] }
    }

    fn plan(&mut self, tenant: TenantId, _view: View<'_>) -> Option<TenantPlan> {
        let tenant = self.tenants.get(tenant)?;
        let useful_ns = (tenant.useful_ns - tenant.internal_ns) as Nanos;
        Some(TenantPlan { efficiency_permille: 1000, useful_ns, ..TenantPlan::default() })
    }
}

#[cfg(test)]
mod tests;
