//! First come, first served, up to a depth: the policy of a server without insulation.
//!
//! ```text
//!   turns, by arrival:   a  b  a  a        a turn belongs to a tenant, not to a request: an urgent request takes the
//!   tenant a: urgent     2  |              next turn of its tenant, so it delays only requests of its own tenant
//!             others     0  1              (here: device ◄─ 2, then b's 3, then 0 and 1)
//!   tenant b: others     3
//! ```
//!
//! A tenant at its bound of requests in the device ([`Lanes::places`]) is passed over; its turns keep their place in
//! the order of arrival.
//!
//! What a tenant's work would have taken standalone is estimated from the profile of the device, if it has one.
//!
//! Downside: shares have no effect.

use std::collections::VecDeque;

use super::estimates::Estimates;
use super::{Policy, Settings, TenantPlan, Turn};
use crate::disk::lanes::Lanes;
use crate::disk::queue::Entry;
use crate::disk::slices::{Slicing, View};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::spec::Terms;
use crate::units::Nanos;

/// First come, first served.
#[derive(Debug)]
pub(crate) struct None {
    estimates: Estimates,
    /// The tenants whose requests go next, each with its place in the order of arrival: one turn per queued request,
    /// except the turns that were passed over.
    turns: VecDeque<(u64, TenantId)>,
    arrived: u64,
    /// Of each tenant, the places of its turns that were passed over. These are its oldest turns.
    places: Table<TenantId, VecDeque<u64>>,
    /// Tenants with turns that were passed over.
    passed_over: Vec<TenantId>,
}

impl None {
    pub(super) fn new(settings: &Settings) -> None {
        let (turns, places, passed_over) = (VecDeque::new(), Table::default(), Vec::new());
        None { estimates: Estimates::new(settings.prices), turns, arrived: 0, places, passed_over }
    }

    /// Takes the oldest turn of a tenant that is below its bound.
    fn take_turn(&mut self, lanes: &Lanes) -> Option<TenantId> {
        let place = |tenant: &TenantId| self.places[*tenant].front().copied();
        let candidates = self.passed_over.iter().copied().filter(|&tenant| lanes.has_place(&lanes[tenant]));
        let oldest = candidates.min_by_key(place);
        let oldest_place = oldest.as_ref().and_then(place).unwrap_or(u64::MAX);
        while let Some((place, tenant)) = self.turns.pop_front_if(|(place, _)| *place < oldest_place) {
            if lanes.has_place(&lanes[tenant]) {
                return Some(tenant);
            }
            let places = &mut self.places[tenant];
            places.push_back(place);
            if places.len() == 1 {
                self.passed_over.push(tenant);
            }
        }
        let tenant = oldest?;
        let places = &mut self.places[tenant];
        places.pop_front();
        if places.is_empty() {
            self.passed_over.retain(|&other| other != tenant);
        }
        Some(tenant)
    }
}

impl Slicing for None {}

impl Policy for None {
    fn set_tenant(&mut self, _now: Nanos, tenant: TenantId, _terms: Terms) {
        if !self.places.contains(tenant) {
            self.places.insert(tenant, VecDeque::new());
        }
        self.estimates.add(tenant);
    }

    fn drop_tenant(&mut self, tenant: TenantId) {
        self.places.remove(tenant);
        self.estimates.remove(tenant);
    }

    fn arrived(&mut self, _now: Nanos, tenant: TenantId, _entry: &Entry, _view: View<'_>) {
        self.turns.push_back((self.arrived, tenant));
        self.arrived += 1;
    }

    fn cancelled(&mut self, _now: Nanos, tenant: TenantId, view: View<'_>) {
        // The tenant loses its latest turns: the remaining requests have waited since the oldest ones.
        let keep = view.lanes[tenant].queue.len();
        let places = &mut self.places[tenant];
        places.truncate(keep);
        let mut turns = places.len();
        if turns == 0 {
            self.passed_over.retain(|&other| other != tenant);
        }
        self.turns.retain(|&(_, turn)| {
            turns += usize::from(turn == tenant);
            turn != tenant || turns <= keep
        });
    }

    fn next(&mut self, _now: Nanos, view: View<'_>) -> Turn {
        let tenant = if view.lanes.is_full() { Option::None } else { self.take_turn(view.lanes) };
        tenant.map_or(Turn::Nothing(Option::None), |tenant| Turn::Request(tenant, Option::None))
    }

    fn set(&mut self, settings: Settings) {
        self.estimates.set(settings.prices);
    }

    fn done(&mut self, _now: Nanos, tenant: TenantId, entry: &Entry, view: View<'_>) {
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
    use crate::disk::scheduler::Scheduler;
    use crate::ids::IoId;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    fn entry(number: u32) -> Entry {
        Entry { io: IoId(number), ..Entry::EMPTY }
    }

    /// A scheduler with these requests, numbered by arrival: the tenant, and whether the request is urgent.
    fn with(arrivals: &[(TenantId, bool)]) -> Scheduler<None> {
        let mut policy = Scheduler::new(Box::new(None::new(&Config::new(0).policy())), u32::MAX);
        [A, B].into_iter().for_each(|tenant| policy.set_tenant(0, tenant, Terms::default()));
        for (i, &(tenant, urgent)) in arrivals.iter().enumerate() {
            policy.arrived(0, tenant, entry(i as u32), urgent);
        }
        policy
    }

    /// The order in which all requests are submitted, each one completing before the next.
    fn all(mut policy: Scheduler<None>) -> Vec<u32> {
        let next = || {
            let (tenant, entry) = policy.next(0)?;
            policy.done(0, tenant, &entry, 0);
            Some(entry.io.0)
        };
        std::iter::from_fn(next).collect()
    }

    /// The next request, which stays in the device.
    fn next(policy: &mut Scheduler<None>) -> Option<u32> {
        policy.next(0).map(|(_, entry)| entry.io.0)
    }

    #[test]
    fn what_is_urgent_goes_ahead_of_its_owners_requests_only() {
        assert_eq!(all(with(&[(A, false), (A, false), (A, true), (B, false)])), [2, 0, 1, 3]);
        assert_eq!(all(with(&[(B, false), (A, false), (B, false), (A, true)])), [0, 3, 2, 1]);
    }

    #[test]
    fn what_waits_can_become_urgent() {
        let mut policy = with(&[(A, false), (A, false), (A, false)]);
        policy.promote(A, &|io| io.0 == 2);
        assert_eq!(policy.waiting(), 3);
        assert_eq!(all(policy), [2, 0, 1]);
    }

    #[test]
    fn urgent_requests_never_keep_the_others_waiting_for_ever() {
        let arrivals: Vec<_> = [(A, false); 2].into_iter().chain([(A, true); 10]).collect();
        assert_eq!(all(with(&arrivals)), [2, 3, 4, 5, 0, 6, 7, 8, 9, 1, 10, 11]);
    }

    #[test]
    fn what_is_taken_back_leaves_a_turn_for_each_of_the_others() {
        let mut policy = with(&[(A, false), (B, false), (A, true), (A, false), (B, false)]);
        let mut dropped = Vec::new();
        policy.withdraw(0, A, &|io| io.0 == 0 || io.0 == 4, &mut dropped);
        assert_eq!((dropped, policy.waiting()), (vec![IoId(0)], 4));
        assert_eq!(all(policy), [2, 1, 3, 4]);
    }

    #[test]
    fn requests_of_one_tenant_that_hang_leave_the_device_to_others() {
        // 200 requests of the first tenant arrive, then 100 of the second.
        let arrivals: Vec<_> = [(A, false); 200].into_iter().chain([(B, false); 100]).collect();
        let mut policy = with(&arrivals);
        policy.lanes.set_depth(128);
        let (mut of_a, mut others) = (0, Vec::new());
        while let Some((tenant, entry)) = policy.next(0) {
            if tenant == A {
                of_a += 1;
            } else {
                // The device completes these at once.
                policy.done(0, B, &entry, 0);
                others.push(entry.io.0);
            }
        }
        assert_eq!((of_a, others), (96, (200..300).collect()));
        assert_eq!(policy.waiting(), 104);
        // One hung request completes: the oldest turn that was passed over goes before later arrivals.
        policy.arrived(0, B, entry(300), false);
        policy.done(0, A, &entry(0), 0);
        assert_eq!([(); 3].map(|()| next(&mut policy)), [Some(96), Some(300), Option::None]);
        // A cancelled request leaves no turn behind.
        let mut dropped = Vec::new();
        policy.withdraw(0, A, &|io| io.0 > 100, &mut dropped);
        assert_eq!((dropped.len(), policy.waiting()), (99, 4));
        // Alone, the tenant may use the whole depth.
        policy.drop_tenant(0, B);
        assert_eq!(next(&mut policy), Some(97));
    }

    #[test]
    fn no_more_than_the_depth() {
        let mut policy = with(&[(A, false)]);
        policy.arrived(0, A, entry(1), false);
        policy.lanes.set_depth(1);
        assert_eq!([(); 2].map(|()| next(&mut policy)), [Some(0), Option::None]);
        policy.done(0, A, &entry(0), 0);
        assert_eq!(next(&mut policy), Some(1));
    }
}
