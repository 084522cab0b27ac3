//! Slices at the moments that the schedule of a cluster says: the policy of a disk under a schedule.
//!
//! ```text
//!   schedule  |──── a ────|──── b ────|.....|──── a ────|──── b ────|     ..... no slot: lent
//!   disk      |──── a ──────|─── b ───|  c  |── a ──|  c |── b ─────|
//!                         ▲ overrun: b's slice is shorter, nobody's after it;
//!                           a's next slice is shorter by as much
//! ```
//!
//! - Each slice begins when its slot begins, and ends when it ends, by this machine's clock mapped to cluster time. No
//!   other server is asked. So the slices of a striped tenant coincide on all its servers.
//! - The disk idles for the owner of a slot while its next request is likely to come within the slot
//!   (`../../slices/gap.rs`): a client of a striped volume waits for its slowest server between two requests.
//! - When the next request of the owner does not fit into the rest of its slot, or the rest pays for an overrun, the
//!   next slot begins at once. So what one tenant leaves of its slot the next one has, and leaves as much of its own.
//! - An overrun is a debt as far as the tenant has not left as much before. Requests vary, so that each tenant exceeds
//!   some slices by a little; if one server shortened the next slot for that, the others would wait for it.
//! - Time that nobody owns, or that its owner does not use, is lent: to tenants of this server alone first, then to
//!   striped ones in the order of their slots, which is the same on all servers. While the owner of the slot may come
//!   back, one request of the borrower is in the device at a time: the owner waits for that one at most. An owner that
//!   had no work for three rounds is not waited for; when it returns, it waits once for the borrower's drain.
//! - Nothing that is lent is begun unless it is expected to end before the next slot begins.
//!
//! Source: Wachs and Ganger, "Co-scheduling of disk head time in cluster-based storage", CMU-PDL 2008, section 4.3.
//! Lending, and the debt of an overrun, are ours. Downside: a slice that loses more than the schedule assumed is not
//! made longer here; the planner of the cluster does that for all servers.

#[cfg(test)]
mod tests;
mod time;

use super::{Policy, Settings, TenantPlan, Turn};
use crate::cluster::{Clock, ClusterNanos, Timetable};
use crate::disk::Op;
use crate::disk::queue::Entry;
use crate::disk::slices::{Cause, Ended, Idling, Slicing, Slot, View, WriteBack};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::spec::Terms;
use crate::units::{Nanos, PIECE};
use time::{At, Times};

/// Rounds without work after which the owner of a slot is not waited for, and owes nothing. As in Argon, section 4.
const IDLE_ROUNDS: u64 = 3;
/// A request takes at most this part of its tenant's slot, so that little of it is lost because the next request does
/// not fit: as without a schedule (`docs/design/slices.md`).
const REQUEST_PART: Nanos = 8;

#[derive(Debug, Default)]
struct Tenant {
    /// The part of its slices, in thousandths, that it must not lose, if not the default.
    keep_permille: Option<u32>,
    /// It is backlogged: its last slice was used up, or most of it, so its loss counts.
    is_backlogged: bool,
    /// When it last had work; `None` if it never had. Not in cluster time: if that is corrected, the tenant was not
    /// away for longer or shorter.
    worked: Option<Nanos>,
    /// The last slot in which it had a slice of its own, by its beginning.
    served_in: Option<ClusterNanos>,
    /// What it left of its slices for the tenants after it, less what it took from them by overruns. If it is negative,
    /// slots that begin after the last overrun are shorter.
    balance_ns: i64,
    /// The part of the balance that its last slice left. If the tenant has another slice in the same slot, this part is
    /// taken back.
    left_ns: i64,
    overran: ClusterNanos,
    /// The slot that is shorter, by its beginning, and by how much.
    pays: Option<(ClusterNanos, Nanos)>,
}

impl Tenant {
    /// By how much it has exceeded its slices.
    fn debt_ns(&self) -> Nanos {
        self.balance_ns.min(0).unsigned_abs()
    }

    /// By how much its slot that begins at `start` is shorter. A tenant that had no slot, or did not use it, for some
    /// rounds after its overrun has left these to the others: it owes nothing.
    fn pays_in(&mut self, start: ClusterNanos, length_ns: Nanos, round_ns: Nanos) -> Nanos {
        if let Some((_, ns)) = self.pays.take_if(|&mut (paid_in, _)| paid_in != start) {
            self.balance_ns = (self.balance_ns + ns as i64).min(0);
        }
        if self.pays.is_none() && self.overran + IDLE_ROUNDS * round_ns < start {
            self.balance_ns = self.balance_ns.max(0);
        }
        if self.debt_ns() > 0 && self.overran <= start && self.pays.is_none() {
            self.pays = Some((start, self.debt_ns().min(length_ns)));
        }
        self.pays.map_or(0, |(_, ns)| ns)
    }

    /// The tenant begins a slice in its slot that begins at `start`, perhaps not the first one there.
    fn goes_on(&mut self, start: ClusterNanos) {
        let left_ns = std::mem::take(&mut self.left_ns);
        if self.served_in.replace(start) == Some(start) {
            self.balance_ns -= left_ns;
        }
    }

    /// A slice that was to end at `end` has ended with so much left, in slots of this length. What it leaves counts up
    /// to a few requests, a debt up to a slot. What the tenant pays in this slot is part of the balance until the next
    /// one, and does not limit the debt.
    fn leaves(&mut self, end: ClusterNanos, left_ns: i64, length_ns: Nanos) {
        let left_ns = if planted!(OverrunNotDebited) { left_ns.max(0) } else { left_ns };
        let (most, least) = (length_ns / REQUEST_PART, length_ns + self.pays.map_or(0, |(_, paid_ns)| paid_ns));
        let before_ns = self.balance_ns;
        self.balance_ns = (before_ns + left_ns).clamp(-(least as i64), most as i64);
        if left_ns < 0 {
            self.overran = end;
        } else {
            self.left_ns = self.balance_ns - before_ns;
        }
    }
}

/// The slice in progress.
#[derive(Clone, Copy, Debug)]
struct Current {
    tenant: TenantId,
    /// Its slot, or the disk is lent to it.
    is_own: bool,
    /// When it is to end.
    end: ClusterNanos,
    /// The owner of the slot, if the disk is lent and the slot has one.
    lender: Option<TenantId>,
}

/// The policy.
#[derive(Debug)]
pub(crate) struct Follow {
    settings: Settings,
    tenants: Table<TenantId, Tenant>,
    times: Times,
    current: Option<Current>,
}

impl Follow {
    pub(crate) fn new(settings: Settings) -> Follow {
        Follow { settings, tenants: Table::default(), times: Times::default(), current: None }
    }

    /// The efficiency target of slices: a quarter of the permitted loss is a reserve, as without a schedule.
    fn keep_permille(&self) -> u32 {
        let keep = self.settings.insulation_permille.min(999);
        keep + (1000 - keep) / 4
    }

    /// Whether the owner of a slot had work in the last rounds.
    fn is_active(&self, now: Nanos, tenant: TenantId) -> bool {
        let worked = self.tenants.get(tenant).and_then(|tenant| tenant.worked);
        worked.is_some_and(|at| now.saturating_sub(at) <= IDLE_ROUNDS * self.times.round_ns())
    }

    /// The time of the tenant's slot, 0 if it has none.
    fn slot_ns(&self, tenant: TenantId) -> Nanos {
        self.times.slots().find(|slot| slot.tenant == tenant).map_or(0, |slot| slot.length_ns)
    }

    /// The slice of a tenant until `end`.
    fn begins(&mut self, t: ClusterNanos, current: Current, most: Option<u32>) -> Slot {
        self.current = Some(current);
        let Current { tenant, end, is_own, .. } = current;
        let lent = if is_own { None } else { Some(most.unwrap_or(u32::MAX)) };
        Slot {
            tenant,
            ns: end - t,
            enough: None,
            lent,
            awaits: false,
            switch_ns: self.settings.switch_ns,
            write_back: WriteBack::All,
        }
    }

    /// The tenant to which the disk is lent for `left_ns`: the first that has a request which ends by then.
    fn borrower(&self, owner: Option<TenantId>, t: ClusterNanos, left_ns: Nanos, view: View<'_>) -> Option<TenantId> {
        let borrows = |&tenant: &TenantId| {
            let lane = &view.lanes[tenant];
            let takes_ns = || {
                let cost_ns = lane.queue.peek().map_or(0, |entry| entry.cost_ns);
                self.settings.switch_ns + view.slices[tenant].meter.drain_ns(lane.in_service_ns() + cost_ns)
            };
            Some(tenant) != owner && view.lanes.wants_device(lane) && takes_ns() <= left_ns
        };
        let slots = |is_striped| {
            let slots = self.times.from(t).filter(move |slot| slot.is_striped == is_striped);
            slots.map(|slot| slot.tenant).filter(|&tenant| self.tenants.contains(tenant))
        };
        let has_none = |&tenant: &TenantId| self.times.slots().all(|slot| slot.tenant != tenant);
        let others = self.tenants.iter().map(|(tenant, _)| tenant).filter(has_none);
        slots(false).chain(others).chain(slots(true)).find(borrows)
    }

    /// The disk time that it takes to have the owner of a slot back while the disk is lent: the switch there and back,
    /// and half of a request of the borrower, which takes about as long as a switch.
    fn return_ns(&self) -> Nanos {
        self.settings.switch_ns * 5 / 2
    }
}

impl Policy for Follow {
    fn has_slices(&self) -> bool {
        true
    }

    fn detects_hung(&self) -> bool {
        true
    }

    fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    fn set_tenant(&mut self, _now: Nanos, tenant: TenantId, _terms: Terms) {
        if !self.tenants.contains(tenant) {
            self.tenants.insert(tenant, Tenant::default());
        }
    }

    fn set_keep(&mut self, tenant: TenantId, keep_permille: Option<u32>) {
        self.tenants[tenant].keep_permille = keep_permille;
    }

    fn set_timetable(&mut self, now: Nanos, timetable: &Timetable) {
        self.times.set(now, timetable.clone());
    }

    fn set_clock(&mut self, clock: Clock) {
        self.times.set_clock(clock);
    }

    fn drop_tenant(&mut self, tenant: TenantId) {
        self.tenants.remove(tenant);
    }

    fn arrived(&mut self, now: Nanos, tenant: TenantId, _entry: &Entry, _view: View<'_>) {
        self.tenants[tenant].worked = Some(now);
    }

    fn done(&mut self, now: Nanos, tenant: TenantId, _entry: &Entry, _view: View<'_>) {
        if let Some(known) = self.tenants.get_mut(tenant) {
            known.worked = Some(now);
        }
    }

    /// The owner of the present slot, or a borrower.
    fn next(&mut self, now: Nanos, view: View<'_>) -> Turn {
        self.current = None;
        self.times.advance(now);
        if view.lanes.waiting() == 0 {
            return Turn::Nothing(None);
        }
        let t = self.times.cluster_ns(now);
        let at = self.times.at(t);
        let Some(owner) = at.owner.filter(|&owner| self.tenants.contains(owner)) else {
            return self.lend(now, at.end, None, view);
        };
        if let Some(turn) = self.own(now, owner, at, view) {
            return turn;
        }
        if !view.lanes.wants_device(&view.lanes[owner]) && t < self.own_end(owner, at) {
            if planted!(IdleOwnerAwaited) {
                return Turn::Nothing(Some(self.times.engine_ns(at.end)));
            }
            return self.lend(now, at.end, Some(owner), view);
        }
        // The owner has no use for the rest of its slot: the next one begins early. If its owner has no work now, the
        // disk is lent until it has.
        let next = self.times.at(at.end);
        let follower = next.owner.filter(|&id| next.start == at.end && id != owner && self.tenants.contains(id));
        let (early, late) = match follower {
            Some(id) if view.lanes.wants_device(&view.lanes[id]) => (self.own(now, id, next, view), None),
            late => (None, late),
        };
        early.unwrap_or_else(|| self.lend(now, at.end, late, view))
    }

    /// A part of the slot. A tenant without one has requests of at most a piece.
    fn request_bytes_max(&self, tenant: TenantId, _op: Op, view: View<'_>) -> u64 {
        let slot_ns = self.slot_ns(tenant);
        let bytes = view.slices.get(tenant).map_or(0, |habits| habits.meter.bytes_in(slot_ns / REQUEST_PART));
        bytes.max(if slot_ns == 0 { PIECE } else { super::REQUEST_BYTES_LEAST })
    }

    fn plan(&mut self, id: TenantId, view: View<'_>) -> Option<TenantPlan> {
        let (tenant, meter) = (self.tenants.get(id)?, &view.slices[id].meter);
        let (slice_ns, loss_ns) = (self.slot_ns(id), meter.loss_ns().unwrap_or(self.settings.switch_ns));
        let lost_permille = 1000 - tenant.keep_permille.unwrap_or(self.keep_permille()).min(999);
        let need_ns = || meter.need_ns(lost_permille, self.settings.switch_ns);
        Some(TenantPlan {
            slice_ns,
            round_ns: self.times.round_ns(),
            loss_ns,
            efficiency_permille: 1000 - (1000 * loss_ns).checked_div(slice_ns).unwrap_or(1000).min(1000) as u32,
            debt_ns: tenant.debt_ns(),
            need_ns: tenant.is_backlogged.then(need_ns),
            burst_ns: if tenant.is_backlogged { meter.burst_ns() } else { 0 },
            ..TenantPlan::default()
        })
    }
}

impl Follow {
    /// When the owner's slice in its slot is to end: what it pays for an overrun, others have.
    fn own_end(&mut self, owner: TenantId, slot: At) -> ClusterNanos {
        let At { start, end, length_ns, .. } = slot;
        end - self.tenants[owner].pays_in(start, length_ns, self.times.round_ns()).min(end - start)
    }

    /// The slice of the owner of a slot, which has begun or is about to, if it has use for it.
    fn own(&mut self, now: Nanos, owner: TenantId, slot: At, view: View<'_>) -> Option<Turn> {
        let (t, end) = (self.times.cluster_ns(now), self.own_end(owner, slot));
        let left_ns = end.checked_sub(t).filter(|&left| left > 0)?;
        let lane = &view.lanes[owner];
        let wants_device = view.lanes.wants_device(lane);
        let cost_ns = lane.queue.peek().map_or(0, |entry| entry.cost_ns);
        // A request that seems to take longer than the slot is issued nevertheless, or it never would be, unless the
        // tenant had its slice or an overrun took most of the slot.
        let is_first = self.tenants[owner].served_in != Some(slot.start) && left_ns > slot.length_ns / 2;
        let fits = is_first || view.slices[owner].meter.drain_ns(lane.in_service_ns() + cost_ns) <= left_ns;
        // The client of a striped volume may wait for another server since its last slot, and have its next request
        // here as soon as that one has answered.
        let idling = Idling { most_ns: left_ns, return_ns: self.return_ns() };
        let may_wait = !wants_device && (self.is_active(now, owner) || planted!(UsualPauseAwaited));
        let is_new = self.tenants[owner].served_in != Some(slot.start) && slot.is_striped;
        let awaits = may_wait && is_new && view.slices[owner].is_expected_anew(lane, idling);
        let is_awaited = awaits || may_wait && view.slices[owner].is_expected(now, lane, idling);
        if !(wants_device && fits || is_awaited) {
            return None;
        }
        self.tenants[owner].goes_on(slot.start);
        let end = if planted!(OverrunShiftsSlices) && wants_device { t + slot.length_ns } else { end };
        let slice = self.begins(t, Current { tenant: owner, is_own: true, end, lender: None }, None);
        Some(Turn::Slice(Slot { awaits, ..slice }))
    }

    /// Lends the disk until `end`, or until the owner of the slot wants it.
    fn lend(&mut self, now: Nanos, end: ClusterNanos, owner: Option<TenantId>, view: View<'_>) -> Turn {
        let t = self.times.cluster_ns(now);
        match self.borrower(owner, t, end - t, view) {
            Some(tenant) => {
                let may_return = |&owner: &TenantId| self.is_active(now, owner) && !planted!(LentWithoutBound);
                let most = owner.filter(may_return).map(|_| 1);
                Turn::Slice(self.begins(t, Current { tenant, is_own: false, end, lender: owner }, most))
            }
            None => Turn::Nothing(Some(self.times.engine_ns(end)).filter(|_| end < ClusterNanos::MAX)),
        }
    }
}

impl Slicing for Follow {
    /// Only the owner of the slot in progress is waited for.
    fn idling(&self, tenant: TenantId) -> Option<Idling> {
        let is_own = self.current.is_some_and(|current| current.is_own && current.tenant == tenant);
        is_own.then(|| Idling { most_ns: Nanos::MAX, return_ns: self.return_ns() })
    }

    /// The owner of the slot has come back.
    fn interrupts(&mut self, _owner: TenantId, _left_ns: Nanos, view: View<'_>) -> bool {
        let lender = self.current.and_then(|current| current.lender);
        lender.is_some_and(|lender| view.lanes.wants_device(&view.lanes[lender]) && !planted!(LentSlotKept))
    }

    /// Slices end when their slots do.
    fn continues(&mut self, _now: Nanos, _tenant: TenantId, _view: View<'_>) -> Option<Nanos> {
        None
    }

    fn ended(&mut self, ended: Ended, _view: View<'_>) {
        let Ended { tenant: id, left_ns, cause, was_held, .. } = ended;
        let length_ns = self.slot_ns(id);
        let Some(current) = self.current.take() else { return };
        let tenant = &mut self.tenants[id];
        if left_ns < 0 || current.is_own && cause == Cause::UsedUp {
            tenant.leaves(current.end, left_ns, length_ns);
        }
        if current.is_own {
            tenant.is_backlogged = match cause {
                Cause::UsedUp | Cause::Enough => true,
                Cause::Idle => was_held && left_ns < length_ns as i64 / 2,
                Cause::Interrupted => tenant.is_backlogged,
            };
        }
    }
}
