//! Slices in proportion to shares, long enough that context switches cost little: the policy of a disk with heads.
//!
//! ```text
//!   round  |  a's slice  |   b's slice   | c's slice |  a's ...          each: `../../slices/mod.rs`
//!             length: shares, R and measured losses (`plan.rs`)
//!                     + credit: time that was left of earlier slices; below 0 if they were exceeded
//! ```
//!
//! - The order of slices follows from where the tenants' data is (`cluster/tour.rs`).
//! - The lengths of slices follow from R and the tenants' measured losses (`plan.rs`, `../../slices/meter.rs`).
//! - The overrun of a slice is subtracted from the tenant's next ones, and time left because the next request did not
//!   fit is added: deficits, as in deficit round robin (Shreedhar and Varghese 1995). So an overrun never costs the
//!   successor.
//! - The disk idles for a tenant in its slice, or the tenant interrupts another one later with the time that it did not
//!   use, whichever takes less disk time (`interrupt.rs`, `../../slices/gap.rs`). After three rounds without work it is
//!   not planned for. It returns to its old place with its next request.
//! - While no other tenant wants the disk, a slice continues.
//!
//! Source: Argon (Wachs et al., FAST 2007), sections 3.4 and 4; `docs/design/slices.md`. Downside: response times are
//! rounds, not requests.

mod guarantee;
mod interrupt;
mod plan;
#[cfg(test)]
mod tests;

use super::{Policy, REQUEST_BYTES_LEAST, Settings, TenantPlan, Turn};
use crate::cluster::tour;
use crate::disk::Op;
use crate::disk::lanes::{Lane, Lanes};
use crate::disk::queue::Entry;
use crate::disk::slices::{Cause, Ended, Habits, Idling, Slicing, Slot, View, WriteBack};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::spec::Terms;
use crate::units::{Nanos, PIECE, Share};
use guarantee::{Class, Guarantee, Rounds};
use interrupt::Interrupts;
use plan::Needs;

/// Rounds without work after which a tenant is not planned for. Argon, section 4.
const IDLE_ROUNDS: u32 = 3;

/// A tenant that needs a long slice saves 1/4 of each slice if the meter needs it, and 1/2 if a batch of write-back
/// does: write-back can be most of its work.
const LOOK_PARTS: i64 = 4;
const BATCH_PARTS: i64 = 2;

/// Slices of a tenant that do not lengthen the round are gathered to one of as many, at most.
const GATHERED_MAX: u64 = 4;

#[derive(Debug)]
struct Tenant {
    share: Option<Share>,
    /// It has no R: its slices are no longer than its share of a round that the others need.
    is_store: bool,
    /// Where its data is on the disk, bytes from the beginning, if that is known.
    place: Option<u64>,
    /// Its position in the order of slices.
    rank: usize,
    /// The part of its slices, in thousandths, that it must not lose, if not the default.
    keep_permille: Option<u32>,
    /// Time that remains of earlier slices; negative if they were exceeded.
    credit: i64,
    /// Time saved from its slices for a long one: for a batch of write-back, or to show the meter a steady part that
    /// the usual slices do not show.
    saved: i64,
    /// Time of its slices that it did not use because it was idle: with it the tenant may interrupt others. At most one
    /// slice, so that it cannot save for more than that.
    unused_ns: Nanos,
    /// The disk time that it takes to have it back after its slice has ended: its idling is weighed against it.
    return_ns: Nanos,
    /// Consecutive rounds without work.
    idle_rounds: u32,
    /// The tenant is backlogged: its last slice was used up, or most of it, so its loss counts.
    is_backlogged: bool,
    /// The value of `Insulated::begun` since which it has had queued requests and a slice was due, but it did not own
    /// the disk.
    waiting_since: Option<u64>,
    /// Its minimum bandwidth, if it has one.
    guarantee: Option<Guarantee>,
    /// Its slice in progress: when it began; how much of it was released by others; and its part of the time that is
    /// divided by share, which comes first and is not released again.
    begun: Nanos,
    lent_ns: Nanos,
    spare_ns: Nanos,
}

impl Tenant {
    fn is_active(&self) -> bool {
        self.idle_rounds < IDLE_ROUNDS
    }

    /// Its slice of this length is skipped because it has no work. Returns as [`Tenant::idles`].
    fn passes(&mut self, now: Nanos, length: Nanos) -> Nanos {
        self.saved = 0;
        let is_active = self.is_active();
        let released_ns = self.idles(now, self.credit + length as i64, length);
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        if is_active { released_ns } else { 0 }
    }

    /// It has `left_ns` of its slices, of this length, and no work: the time first pays its debt. Returns the time that
    /// it will not use itself.
    fn idles(&mut self, now: Nanos, left_ns: i64, length: Nanos) -> Nanos {
        self.credit = left_ns.min(0);
        let unused_ns = self.unused_ns + left_ns.max(0) as Nanos;
        self.unused_ns = unused_ns.min(length);
        if let Some(guarantee) = &mut self.guarantee {
            guarantee.idles(now);
        }
        unused_ns - self.unused_ns
    }

    /// No slice was due to it in this round: its queued requests have waited for others' slices only since `begun`.
    fn wait_anew(&mut self, begun: u64) {
        self.waiting_since = self.waiting_since.map(|_| begun);
    }

    /// What bounds idling for it in its next slice, of this length.
    fn idling(&self, length: Nanos) -> Option<Idling> {
        let most_ns = (self.credit + length as i64).max(0) as Nanos;
        self.is_active().then_some(Idling { most_ns, return_ns: self.return_ns })
    }

    /// Whether a tenant whose slices do not lengthen the round leaves this one out: with short slices it would lose
    /// more of its time than others may, so it has a longer one in a later round.
    fn gathers(&self, length: Nanos, need_ns: Nanos) -> bool {
        self.is_backlogged && self.credit + (length as i64) <= need_ns.min(length * GATHERED_MAX) as i64
    }

    /// Its slice begins. A long one has at most `most_ns`, and begins only if it `is_time`. Returns whether it is a
    /// long one, and which background write-back goes to the device in it.
    ///
    /// Where reads share the slices with write-back that can wait, this goes to the device in batches. One that takes
    /// longer than the slice waits until half of the time of some slices is saved for it.
    fn prepare(
        &mut self,
        lanes: &Lanes,
        habits: &Habits,
        lane: &Lane,
        most_ns: Nanos,
        is_time: bool,
    ) -> (bool, WriteBack) {
        if self.is_store {
            // Nothing depends on the losses of a tenant without R.
            return (self.save(0, LOOK_PARTS, is_time), WriteBack::All);
        }
        let batches = self.guarantee.is_none() && lane.queue.is_awaited();
        let has_batch = batches && lane.queue.has_batch();
        let batch_ns = if has_batch { habits.batch_ns(lanes, lane).min(most_ns) } else { 0 };
        let needs_long = batch_ns as i64 > self.credit;
        let look_ns = habits.meter.look_ns().unwrap_or(0).min(most_ns);
        let (long_ns, parts) = if needs_long { (batch_ns, BATCH_PARTS) } else { (look_ns, LOOK_PARTS) };
        let is_long = self.save(long_ns, parts, is_time);
        let write_back = match has_batch {
            _ if !batches => WriteBack::All,
            true if is_long || !needs_long => WriteBack::Batch,
            _ => WriteBack::Later,
        };
        (is_long, write_back)
    }

    /// At the beginning of a slice: if the tenant needs a long slice of `long_ns`, one of `parts` of the time is saved
    /// for it. True if this slice is a long one.
    fn save(&mut self, long_ns: Nanos, parts: i64, is_time: bool) -> bool {
        if self.credit + self.saved < long_ns as i64 {
            let part = self.credit / parts;
            (self.credit, self.saved) = (self.credit - part, self.saved + part);
            return false;
        }
        let spends = self.saved > 0 && is_time;
        if spends {
            self.credit += std::mem::take(&mut self.saved);
        }
        spends
    }
}

/// The policy.
#[derive(Debug)]
pub(crate) struct Insulated {
    settings: Settings,
    tenants: Table<TenantId, Tenant>,
    /// The tenants in the order of their places; the order of slices in the round, which is the same without
    /// guarantees; and the position of the tenant that was considered last.
    tour: Vec<TenantId>,
    order: Vec<TenantId>,
    at: usize,
    /// The plan: the slice of each tenant, and the round.
    lengths: Vec<Nanos>,
    round_ns: Nanos,
    /// The number of tenants that are planned for.
    active: usize,
    is_planned: bool,
    /// The input of the plan; its memory is reused.
    needs: Vec<Option<Needs>>,
    /// Number of slices that have begun, and that number when the last long one began: one long slice per round is
    /// enough.
    begun: u64,
    looked: u64,
    past: PastRounds,
    interrupts: Interrupts,
    rounds: Rounds,
}

/// The rounds so far.
#[derive(Clone, Copy, Default, Debug)]
struct PastRounds {
    count: u64,
    planned_ns: Nanos,
    /// The number of slices when the last one began: a round without a slice takes no time.
    begun: u64,
}

impl Insulated {
    pub(crate) fn new(settings: Settings) -> Insulated {
        Insulated {
            settings,
            tenants: Table::default(),
            tour: Vec::new(),
            order: Vec::new(),
            at: 0,
            lengths: Vec::new(),
            round_ns: 0,
            active: 0,
            is_planned: false,
            needs: Vec::new(),
            begun: 0,
            looked: 0,
            past: PastRounds::default(),
            interrupts: Interrupts::default(),
            rounds: Rounds::new(settings.seed),
        }
    }

    /// The efficiency target of slices: a quarter of the permitted loss, 1 - R, is a reserve for what the plan does not
    /// foresee.
    fn keep_permille(&self) -> u32 {
        let keep = self.settings.insulation_permille.min(999);
        keep + (1000 - keep) / 4
    }

    fn length(&self, tenant: TenantId) -> Nanos {
        self.lengths[tenant.0 as usize]
    }

    /// The tenants or their places have changed: the order of slices is another one. The round goes on after the tenant
    /// that was considered last. A round with guarantees keeps its order, so that no tenant has two slices in it, or
    /// none; new tenants come last.
    fn arrange(&mut self) {
        let last = self.order.get(self.at).copied();
        tour(self.tenants.iter().map(|(id, tenant)| (id, tenant.place)), &mut self.tour);
        if self.rounds.guarantees == 0 {
            self.order.clone_from(&self.tour);
            let found = self.order.iter().position(|&id| Some(id) == last);
            self.at = found.unwrap_or(self.at.saturating_sub(1)).min(self.order.len().saturating_sub(1));
        } else {
            let Insulated { tenants, tour, order, at, .. } = self;
            let is_there = |id: &TenantId| tenants.contains(*id);
            let considered = order.iter().take(*at + 1).filter(|id| is_there(id)).count();
            order.retain(is_there);
            let known = order.len();
            for id in tour {
                if !order[..known].contains(id) {
                    order.push(*id);
                }
            }
            // If none of the tenants that were considered is there, the round begins anew.
            *at = considered.checked_sub(1).unwrap_or(order.len().saturating_sub(1));
        }
        self.rank();
    }

    fn make_plan(&mut self, view: View<'_>) {
        let (switch_ns, keep_permille) = (self.settings.switch_ns, self.keep_permille());
        let lost_permille = |tenant: &Tenant| 1000 - tenant.keep_permille.unwrap_or(keep_permille).min(999);
        let need_ns = |id: TenantId, tenant: &Tenant| view.slices[id].meter.need_ns(lost_permille(tenant), switch_ns);
        let needs = |id: TenantId| {
            self.tenants.get(id).map(|tenant| Needs {
                share: tenant.share,
                active: tenant.is_active(),
                slice_ns: (tenant.is_backlogged && !tenant.is_store).then(|| need_ns(id, tenant)),
            })
        };
        self.needs.clear();
        self.needs.extend((0..self.tenants.past()).map(|at| needs(TenantId(at))));
        self.round_ns = plan::slices(&self.needs, self.settings.round_max_ns, &mut self.lengths);
        self.active = self.needs.iter().flatten().filter(|needs| needs.active).count();
        self.is_planned = true;
        self.price_returns(view);
    }

    /// Plans, if something has changed since the last plan.
    fn plan_anew(&mut self, view: View<'_>) {
        if !self.is_planned {
            self.make_plan(view);
        }
    }

    /// Considers each tenant once, until one takes the disk.
    fn pass(&mut self, now: Nanos, view: View<'_>) -> Option<Slot> {
        let wants_disk = |tenant: TenantId| view.lanes.wants_device(&view.lanes[tenant]);
        for _ in 0..self.order.len() {
            if !planted!(TurnNotPassed) || !wants_disk(self.order[self.at]) {
                self.at = (self.at + 1) % self.order.len();
            }
            if self.at == 0 {
                self.begin_round(now);
            }
            if self.at == 0 || !self.is_planned {
                self.make_plan(view);
            }
            if self.at == 0 && self.begun > self.past.begun {
                let PastRounds { count, planned_ns, .. } = self.past;
                self.past = PastRounds { count: count + 1, planned_ns: planned_ns + self.round_ns, begun: self.begun };
            }
            let id = self.order[self.at];
            let length = self.length(id);
            let spare_ns = self.rounds.spare_ns(length, self.round_ns);
            let habits = &view.slices[id];
            let need_ns = habits.meter.need_ns(1000 - self.keep_permille(), self.settings.switch_ns);
            let tenant = &mut self.tenants[id];
            let idling = tenant.idling(length);
            if !(wants_disk(id) || idling.is_some_and(|idling| habits.is_expected(now, &view.lanes[id], idling))) {
                let released_ns = tenant.passes(now, length);
                tenant.wait_anew(self.begun);
                self.release(released_ns);
                continue;
            }
            tenant.credit += (length + spare_ns) as i64;
            if tenant.credit <= 0 || tenant.is_store && tenant.gathers(length, need_ns) {
                tenant.wait_anew(self.begun);
                continue;
            }
            // One long slice in a round, so that no tenant waits longer than two rounds.
            let is_time = self.begun >= self.looked + self.lengths.len() as u64;
            let most_ns = length.saturating_add(self.round_ns);
            let (is_long, write_back) = tenant.prepare(view.lanes, habits, &view.lanes[id], most_ns, is_time);
            if is_long {
                self.looked = self.begun;
            }
            tenant.waiting_since = None;
            tenant.spare_ns = spare_ns;
            self.begun += 1;
            self.interrupts.served(id);
            self.look(now, view);
            let delivered = view.books.delivered_bytes(id);
            let tenant = &mut self.tenants[id];
            let bytes =
                tenant.guarantee.as_mut().map(|guarantee| guarantee.begin(now, delivered, length, self.round_ns));
            return Some(Slot { write_back, ..self.own_slot(now, id, bytes, Nanos::MAX, delivered) });
        }
        None
    }

    /// Windows of guarantees may be over.
    fn look(&mut self, now: Nanos, view: View<'_>) {
        for (id, tenant) in self.tenants.iter_mut().filter(|_| self.rounds.guarantees > 0) {
            if let Some(guarantee) = &mut tenant.guarantee {
                guarantee.look(now, view.books.delivered_bytes(id));
            }
        }
    }

    /// A slot of another length than the tenant's own slice.
    fn slot(&self, tenant: TenantId, ns: Nanos) -> Slot {
        let switch_ns = self.settings.switch_ns;
        Slot { tenant, ns, enough: None, lent: None, awaits: false, switch_ns, write_back: WriteBack::All }
    }

    /// The tenant's slice. If it has a guarantee, so many bytes are enough, and it may use what others released,
    /// `lent_ns` at most.
    fn own_slot(&mut self, now: Nanos, id: TenantId, bytes: Option<u64>, lent_ns: Nanos, delivered: u64) -> Slot {
        let tenant = &mut self.tenants[id];
        // No slice is longer than the longest round.
        let most_ns = self.settings.round_max_ns.saturating_sub(tenant.credit as Nanos);
        tenant.lent_ns = if bytes.is_some() { self.rounds.slack.total().min(most_ns).min(lent_ns) } else { 0 };
        let ns = tenant.credit as Nanos + tenant.lent_ns;
        tenant.begun = now;
        if let Some(guarantee) = &mut tenant.guarantee {
            guarantee.starts(delivered);
        }
        let spare_ns = tenant.spare_ns;
        Slot { enough: bytes.map(|bytes| guarantee::enough(bytes, spare_ns)), ..self.slot(id, ns) }
    }

    /// A tenant does not use this part of its slice. Without guarantees the next slices only come sooner.
    fn release(&mut self, ns: Nanos) {
        if self.rounds.guarantees > 0 {
            self.rounds.slack.release(ns);
        }
    }

    /// With guarantees, the tenants that are behind come first, in random order, and the others in their old one.
    fn begin_round(&mut self, now: Nanos) {
        if self.rounds.guarantees == 0 {
            return;
        }
        self.rounds.begin(self.round_ns);
        let Insulated { tenants, tour, order, rounds, lengths, round_ns, .. } = self;
        let class = |id: TenantId| {
            let guarantee = tenants[id].guarantee.as_ref();
            guarantee.map_or(Class::Satisfied, |guarantee| guarantee.class(now, lengths[id.0 as usize], *round_ns))
        };
        order.clear();
        for next in [Class::Owed, Class::Behind, Class::Satisfied] {
            let first = order.len();
            order.extend(tour.iter().copied().filter(|&id| class(id) == next));
            if next != Class::Satisfied {
                rounds.shuffle(&mut order[first..]);
            }
        }
        self.rank();
    }

    /// The order of slices is another one.
    fn rank(&mut self) {
        for (rank, &id) in self.order.iter().enumerate() {
            self.tenants[id].rank = rank;
        }
    }

    /// Gives the tenant the guarantee of these terms, changes it, or takes it away.
    fn set_guarantee(&mut self, id: TenantId, terms: Terms) {
        let guarantee = &mut self.tenants[id].guarantee;
        match guarantee {
            _ if terms.min_bytes_per_s == 0 => *guarantee = None,
            Some(guarantee) => guarantee.set(terms),
            None => *guarantee = Some(Guarantee::new(terms)),
        }
        let before = self.rounds.guarantees;
        self.rounds.guarantees = self.tenants.values().filter(|tenant| tenant.guarantee.is_some()).count() as u32;
        if before > 0 && self.rounds.guarantees == 0 {
            self.rounds.forget();
            self.arrange();
        }
    }

    /// Skips at once the rounds in which all waiting tenants have debts.
    fn skip_rounds(&mut self, view: View<'_>) {
        let waits = |tenant: TenantId| view.lanes.wants_device(&view.lanes[tenant]);
        let Insulated { tenants, lengths, .. } = self;
        let debts = tenants.iter().filter(|&(id, _)| waits(id)).map(|(id, tenant)| {
            let debt = tenant.credit.min(0).unsigned_abs();
            debt / lengths[id.0 as usize]
        });
        let rounds = debts.min().unwrap_or(0);
        for (id, tenant) in tenants.iter_mut().filter(|&(id, _)| waits(id)) {
            tenant.credit += (rounds * lengths[id.0 as usize]) as i64;
        }
    }
}

impl Policy for Insulated {
    fn has_slices(&self) -> bool {
        true
    }

    fn detects_hung(&self) -> bool {
        true
    }

    fn set(&mut self, settings: Settings) {
        self.settings = settings;
        self.is_planned = false;
    }

    fn set_tenant(&mut self, _now: Nanos, tenant: TenantId, terms: Terms) {
        let Terms { share, is_store, .. } = terms;
        match self.tenants.get_mut(tenant) {
            Some(tenant) => (tenant.share, tenant.is_store) = (share, is_store),
            None => {
                let new = Tenant {
                    share,
                    is_store,
                    place: None,
                    rank: 0,
                    keep_permille: None,
                    credit: 0,
                    saved: 0,
                    unused_ns: 0,
                    return_ns: 0,
                    idle_rounds: IDLE_ROUNDS,
                    is_backlogged: true,
                    waiting_since: None,
                    guarantee: None,
                    begun: 0,
                    lent_ns: 0,
                    spare_ns: 0,
                };
                self.tenants.insert(tenant, new);
                self.lengths.resize(self.tenants.past() as usize, 0);
                self.arrange();
            }
        }
        self.set_guarantee(tenant, terms);
        self.is_planned = false;
    }

    fn set_keep(&mut self, tenant: TenantId, keep_permille: Option<u32>) {
        self.tenants[tenant].keep_permille = keep_permille;
    }

    fn set_place(&mut self, tenant: TenantId, place: Option<u64>) {
        self.tenants[tenant].place = place;
        self.arrange();
    }

    fn drop_tenant(&mut self, tenant: TenantId) {
        self.set_guarantee(tenant, Terms::default());
        self.tenants.remove(tenant);
        self.interrupts.forget(tenant);
        self.arrange();
        self.is_planned = false;
    }

    fn arrived(&mut self, now: Nanos, id: TenantId, _entry: &Entry, view: View<'_>) {
        let tenant = &mut self.tenants[id];
        if !tenant.is_active() {
            self.is_planned = false;
        }
        tenant.idle_rounds = 0;
        if let Some(guarantee) = &mut tenant.guarantee {
            guarantee.arrived(now, view.books.delivered_bytes(id));
        }
        if view.books.owner() != Some(id) {
            tenant.waiting_since.get_or_insert(self.begun);
            if view.slices[id].has_paused(now, &view.lanes[id]) {
                self.interrupts.calls(id);
            }
        }
    }

    fn cancelled(&mut self, _now: Nanos, tenant: TenantId, view: View<'_>) {
        if view.lanes[tenant].queue.is_empty() {
            self.tenants[tenant].waiting_since = None;
        }
    }

    /// The slice of the next tenant in the round.
    fn next(&mut self, now: Nanos, view: View<'_>) -> Turn {
        let View { lanes, .. } = view;
        if lanes.waiting() == 0 || !lanes.iter().any(|(_, lane)| lanes.wants_device(lane)) {
            return Turn::Nothing(None);
        }
        if let Some(slot) = self.interruption(view).or_else(|| self.resumed(now, view)) {
            return Turn::Slice(slot);
        }
        // All waiting tenants may have debts: then as many rounds are skipped as the smallest debt takes, more if the
        // plan has changed meanwhile.
        loop {
            if let Some(slot) = self.pass(now, view) {
                return Turn::Slice(slot);
            }
            self.skip_rounds(view);
        }
    }

    /// An eighth of a slice (`docs/design/slices.md`), so that little of it is lost because the next request does not
    /// fit. A tenant alone is not limited.
    fn request_bytes_max(&self, tenant: TenantId, _op: Op, view: View<'_>) -> u64 {
        match view.slices.get(tenant) {
            Some(habits) if self.active > 1 => {
                let least = if self.tenants[tenant].is_store { PIECE } else { REQUEST_BYTES_LEAST };
                habits.meter.bytes_in(self.length(tenant) / 8).max(least)
            }
            _ => u64::MAX,
        }
    }

    fn owes_slice(&self, id: TenantId) -> bool {
        self.tenants.get(id).is_some_and(|tenant| tenant.credit + self.length(id) as i64 <= 0)
    }

    fn plan(&mut self, id: TenantId, view: View<'_>) -> Option<TenantPlan> {
        self.plan_anew(view);
        let (tenant, meter) = (self.tenants.get(id)?, &view.slices[id].meter);
        let (slice_ns, loss_ns) = (self.length(id), meter.loss_ns().unwrap_or(self.settings.switch_ns));
        let needs = self.needs[id.0 as usize].filter(|needs| needs.active);
        Some(TenantPlan {
            slice_ns,
            round_ns: self.round_ns,
            rounds: self.past.count,
            rounds_ns: self.past.planned_ns,
            loss_ns,
            efficiency_permille: 1000 - (1000 * loss_ns).checked_div(slice_ns).unwrap_or(1000).min(1000) as u32,
            closing_ns: meter.closing_ns(),
            debt_ns: tenant.credit.min(0).unsigned_abs(),
            waiting_slices: tenant.waiting_since.map_or(0, |since| self.begun - since),
            need_ns: needs.and_then(|needs| needs.slice_ns),
            burst_ns: if tenant.is_backlogged && !tenant.is_store { meter.burst_ns() } else { 0 },
            streams_lack_permille: (meter.streams_lack() * 1000.0) as u32,
            has_divided_streams: meter.has_divided_streams(),
            ..TenantPlan::default()
        })
    }
}

impl Slicing for Insulated {
    fn idling(&self, tenant: TenantId) -> Option<Idling> {
        self.tenants[tenant].idling(self.length(tenant))
    }

    fn interrupts(&mut self, owner: TenantId, left_ns: Nanos, view: View<'_>) -> bool {
        self.is_interrupted(owner, left_ns, view)
    }

    /// It counts as a round without work for the others, so that they do not stay in the plan during a slice that
    /// continues for hours, and the next slice is as long as is known by now.
    fn continues(&mut self, now: Nanos, owner: TenantId, view: View<'_>) -> Option<Nanos> {
        for (id, tenant) in self.tenants.iter_mut().filter(|&(id, _)| id != owner) {
            tenant.passes(now, self.lengths[id.0 as usize]);
        }
        self.interrupts.end();
        self.rounds.forget();
        let tenant = &mut self.tenants[owner];
        if let Some(guarantee) = &mut tenant.guarantee {
            guarantee.continues(now, now - tenant.begun, view.books.delivered_bytes(owner));
        }
        (tenant.begun, tenant.lent_ns, tenant.spare_ns) = (now, 0, 0);
        self.make_plan(view);
        Some(self.length(owner))
    }

    fn ended(&mut self, ended: Ended, view: View<'_>) {
        let Ended { now, tenant: id, left_ns, cause, was_held } = ended;
        let (length, least) = (self.length(id), -(self.settings.round_max_ns as i64));
        let is_guest = self.interrupts.guest_leaves(id);
        let paid_ns = if cause == Cause::Interrupted { self.pay(id) } else { 0 };
        let tenant = &mut self.tenants[id];
        let used_ns = now - tenant.begun;
        if let Some(guarantee) = tenant.guarantee.as_mut().filter(|_| !is_guest) {
            guarantee.ended(used_ns, view.books.delivered_bytes(id));
        }
        // Its own time is used first.
        let lent_ns = std::mem::take(&mut tenant.lent_ns);
        let lent_left_ns = left_ns.clamp(0, lent_ns as i64);
        self.rounds.slack.take(lent_ns - lent_left_ns as Nanos);
        if cause == Cause::Interrupted {
            self.interrupts.lent_ns = lent_left_ns as Nanos;
        }
        let left_ns = left_ns - lent_left_ns;
        let mut released_ns = 0;
        tenant.waiting_since = (!view.lanes[id].queue.is_empty()).then_some(self.begun);
        if is_guest {
            let credit = tenant.credit + left_ns.min(0);
            tenant.credit = credit.max(least);
            tenant.unused_ns = (tenant.unused_ns + left_ns.max(0) as Nanos).min(length);
            tenant.is_backlogged &= cause != Cause::Idle;
            return;
        }
        let spare_ns = std::mem::take(&mut tenant.spare_ns).saturating_sub(used_ns);
        match cause {
            // Time left because the next request did not fit is less than that request takes.
            Cause::UsedUp => tenant.credit = left_ns.clamp(least, length as i64),
            Cause::Enough => {
                tenant.credit = left_ns.clamp(least, 0);
                released_ns = left_ns.max(0) as Nanos;
            }
            Cause::Idle => released_ns = tenant.idles(now, (left_ns - spare_ns as i64).max(least), length),
            Cause::Interrupted => {
                tenant.credit = (left_ns + paid_ns as i64).max(least);
                tenant.spare_ns = spare_ns;
            }
        }
        tenant.is_backlogged = match cause {
            Cause::UsedUp | Cause::Enough => true,
            // It uses its slices, with pauses, and loses as much of each as if it were never idle.
            Cause::Idle => was_held && left_ns < length as i64 / 2,
            Cause::Interrupted => tenant.is_backlogged,
        };
        self.release(released_ns);
    }
}
