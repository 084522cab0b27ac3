//! Interruptions: a tenant that was idle gets the disk at once instead of in its slice, and pays for that with time of
//! its slices that it did not use.
//!
//! ```text
//!   a's slice          |drain| b     | a's slice goes on        |
//!          ▲ b's request      switch         switch
//!
//!   b pays        the disk time that it uses, and a's loss: a's mean loss per slice (drain and switch) + a switch cost
//!   a's slice     continues afterwards: with the time that was left of it, plus that loss
//! ```
//!
//! - `unused_ns` of a tenant counts the slices that it did not take because it was idle, and the rest of those that it
//!   gave up when it became idle; at most one slice. An interruption lasts no longer than that. So in any interval a
//!   tenant gets its slices and at most one more, whatever its think times.
//! - It interrupts if the wait that this saves is longer than what it pays. Otherwise, and when it cannot pay, it waits
//!   for its slice. At the end of another tenant's slice only the switch counts.
//! - Only requests that a client waits for interrupt: reads, and writes that a flush waits for.
//!
//! Letting a tenant go instead of idling for it costs both losses. It also costs the tenant the time until it has the
//! disk again, in which only its share of the disk's time passes for it:
//!
//! ```text
//!   return = max(losses, (drain + losses) x share / (1 - share))          the bound on idling, `../../slices/gap.rs`
//! ```
//!
//! A tenant that thinks for longer than that is let go, and keeps at least its share of its standalone throughput: each
//! of its requests takes less disk time than idling would, and the time between two of them grows by less than a factor
//! of 1 / share. One that thinks for less is idled for.
//!
//! Downside: the interrupted tenant is paid an estimate, which may be more or less than it loses this time.

use super::Insulated;
use crate::disk::slices::{Slot, View};
use crate::ids::TenantId;
use crate::units::Nanos;

/// The interruptions in progress and to come.
#[derive(Default, Debug)]
pub(super) struct Interrupts {
    /// Tenants whose requests arrived after a pause, while they did not own the disk.
    callers: Vec<TenantId>,
    /// The tenant for which the present slice drains, and what it pays for that.
    price: Option<(TenantId, Nanos)>,
    /// The tenant whose slice in progress is an interruption.
    guest: Option<TenantId>,
    /// The tenant whose slice goes on afterwards.
    interrupted: Option<TenantId>,
    /// The time released by others that this slice may still use.
    pub(super) lent_ns: Nanos,
}

impl Interrupts {
    /// The tenant was idle, and has a request now.
    pub(super) fn calls(&mut self, tenant: TenantId) {
        if !self.callers.contains(&tenant) {
            self.callers.push(tenant);
        }
    }

    /// The tenant has the disk.
    pub(super) fn served(&mut self, tenant: TenantId) {
        self.callers.retain(|&caller| caller != tenant);
    }

    /// The slice of a tenant ended. Whether it was an interruption.
    pub(super) fn guest_leaves(&mut self, tenant: TenantId) -> bool {
        self.guest.take() == Some(tenant)
    }

    /// No other tenant wants the disk, so no slice is interrupted: the slice in progress counts as the owner's own.
    pub(super) fn end(&mut self) {
        (self.guest, self.interrupted) = (None, None);
    }

    /// The tenant is removed.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.served(tenant);
        self.price = self.price.filter(|&(payer, _)| payer != tenant);
        self.guest = self.guest.filter(|&guest| guest != tenant);
        self.interrupted = self.interrupted.filter(|&interrupted| interrupted != tenant);
    }
}

impl Insulated {
    /// What an interruption costs the tenant that is interrupted: its mean loss, and a switch cost more. The first
    /// requests after a switch take longer than the meter can tell in a part of a slice, so that it measures too small
    /// a loss; hence also the minimum.
    fn cut_ns(&self, tenant: TenantId, view: View<'_>) -> Nanos {
        let switch_ns = self.settings.switch_ns;
        switch_ns + view.slices[tenant].meter.loss_ns().map_or(switch_ns, |loss| loss.max(switch_ns))
    }

    /// Computes for each tenant the disk time that it takes to have it back after its slice has ended.
    pub(super) fn price_returns(&mut self, view: View<'_>) {
        // Sums over the active tenants: their slices, and losses and drains weighted by these.
        let (mut slices, mut losses, mut drains) = (0.0, 0.0, 0.0);
        let parts = |policy: &Insulated, id: TenantId| {
            let slice = policy.length(id) as f64;
            let drain = view.slices[id].meter.drain_mean_ns() as f64;
            (slice, slice * policy.cut_ns(id, view) as f64, slice * drain)
        };
        for (id, _) in self.tenants.iter().filter(|(_, tenant)| tenant.is_active()) {
            let (slice, loss, drain) = parts(self, id);
            (slices, losses, drains) = (slices + slice, losses + loss, drains + drain);
        }
        for at in 0..self.tenants.past() {
            let id = TenantId(at);
            let Some(is_active) = self.tenants.get(id).map(|tenant| tenant.is_active()) else { continue };
            let own = parts(self, id);
            let (slice, loss, drain) = if is_active { own } else { (0.0, 0.0, 0.0) };
            let others = slices - slice;
            // Without other tenants idling costs nothing.
            let return_ns = if others < 1.0 {
                f64::MAX
            } else {
                let lost = self.settings.switch_ns as f64 + (losses - loss) / others;
                lost.max((lost + (drains - drain) / others) * own.0 / others)
            };
            self.tenants[id].return_ns = return_ns as Nanos;
        }
    }

    /// Whether the slice of `owner`, of which `left_ns` are left, is interrupted now.
    pub(super) fn is_interrupted(&mut self, owner: TenantId, left_ns: Nanos, view: View<'_>) -> bool {
        if self.interrupts.callers.is_empty() || self.interrupts.guest.is_some() {
            return false;
        }
        // The lengths are those of the last plan, 0 for a new tenant: a plan takes too long for each request.
        let lost_ns = self.cut_ns(owner, view);
        let drain_ns = view.slices[owner].meter.drain_ns(view.lanes[owner].in_service_ns());
        let payer = self.payer(left_ns, drain_ns, lost_ns, view);
        self.interrupts.price = payer.map(|payer| (payer, lost_ns));
        payer.is_some()
    }

    /// The first caller that pays `lost_ns` and its own switch, to have the disk in `drain_ns` instead of in its slice.
    /// The slice in progress lasts for another `left_ns`.
    fn payer(&self, left_ns: Nanos, drain_ns: Nanos, lost_ns: Nanos, view: View<'_>) -> Option<TenantId> {
        let price_ns = lost_ns + self.settings.switch_ns;
        let can_pay = |&id: &TenantId| {
            let lane = &view.lanes[id];
            self.tenants[id].unused_ns.min(self.length(id)) > price_ns
                && lane.queue.is_awaited()
                && view.lanes.wants_device(lane)
        };
        let mut callers = self.interrupts.callers.iter().copied().filter(can_pay).peekable();
        callers.peek()?;
        let soon = self.slices_within((drain_ns + price_ns).checked_sub(left_ns), view);
        callers.find(|&id| self.slices_before(id) >= soon)
    }

    /// The number of slices in the order, from the next one, after which more than `ns` have passed; 0 for `None`.
    /// Tenants without work take no time.
    fn slices_within(&self, ns: Option<Nanos>, view: View<'_>) -> usize {
        let Some(ns) = ns else { return 0 };
        let next = self.order.iter().cycle().skip(self.at + 1).take(self.order.len());
        let mut sum_ns = 0;
        let within = next.take_while(|&&id| {
            sum_ns += if view.lanes.wants_device(&view.lanes[id]) { self.length(id) } else { 0 };
            sum_ns <= ns
        });
        within.count() + 1
    }

    /// The number of slices in the order before the tenant's own, from the next one.
    fn slices_before(&self, id: TenantId) -> usize {
        (self.tenants[id].rank + self.order.len() - (self.at + 1) % self.order.len()) % self.order.len()
    }

    /// The slice of `interrupted` has ended for another tenant. Returns what that tenant pays for it.
    pub(super) fn pay(&mut self, interrupted: TenantId) -> Nanos {
        self.interrupts.interrupted = Some(interrupted);
        let Some((payer, lost_ns)) = self.interrupts.price.take() else { return 0 };
        let payer = &mut self.tenants[payer];
        payer.unused_ns = payer.unused_ns.saturating_sub(lost_ns);
        lost_ns
    }

    /// At the end of a slice: the interruption that follows.
    pub(super) fn interruption(&mut self, view: View<'_>) -> Option<Slot> {
        self.interrupts.callers.retain(|&caller| !view.lanes[caller].queue.is_empty());
        if !self.interrupts.callers.is_empty() {
            self.plan_anew(view);
        }
        let left_ns = self.interrupts.interrupted.map_or(0, |tenant| self.tenants[tenant].credit.max(0) as Nanos);
        let tenant = self.payer(left_ns, 0, 0, view)?;
        let ns = self.tenants[tenant].unused_ns.min(self.length(tenant));
        self.tenants[tenant].unused_ns = 0;
        self.tenants[tenant].waiting_since = None;
        self.interrupts.served(tenant);
        self.interrupts.guest = Some(tenant);
        Some(self.slot(tenant, ns))
    }

    /// The interrupted slice goes on.
    pub(super) fn resumed(&mut self, now: Nanos, view: View<'_>) -> Option<Slot> {
        let id = self.interrupts.interrupted.take()?;
        let length = self.length(id);
        let tenant = &mut self.tenants[id];
        let (lane, habits) = (&view.lanes[id], &view.slices[id]);
        let is_expected = tenant.idling(0).is_some_and(|idling| habits.is_expected(now, lane, idling));
        if tenant.credit > 0 && (view.lanes.wants_device(lane) || is_expected) {
            tenant.waiting_since = None;
            self.interrupts.served(id);
            let delivered = view.books.delivered_bytes(id);
            let bytes = tenant.guarantee.as_ref().map(|guarantee| guarantee.resume(delivered));
            return Some(self.own_slot(now, id, bytes, self.interrupts.lent_ns, delivered));
        }
        if tenant.credit > 0 {
            let released_ns = tenant.idles(now, tenant.credit - tenant.spare_ns as i64, length);
            self.release(released_ns);
        }
        None
    }
}
