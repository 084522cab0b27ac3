//! First come, first served, up to a depth: the policy of a server without insulation.
//!
//! ```text
//!   turns, by arrival:   a  b  a  a        a turn belongs to a tenant, not to a request: an urgent request takes the
//!   tenant a: urgent     2  |              next turn of its tenant, so it delays only requests of its own tenant
//!             others     0  1              (here: device ◄─ 2, then b's 3, then 0 and 1)
//!   tenant b: others     3
//! ```
//!
//! One exception: on a disk with several tenants, each may have at most three quarters of the depth that the others
//! leave in the device (dynamic thresholds, Choudhury and Hahne 1998). So a tenant whose requests never return, because
//! its file hangs, leaves places to the others, and no timeout has to tell hung requests from slow ones. A tenant at
//! that bound is passed over; its turns keep their place in the order of arrival.
//!
//! Downside: a tenant next to idle ones has a quarter less of the depth than alone; and four tenants whose requests all
//! hang still fill a device of the usual depth of 128.

use std::collections::VecDeque;

use super::queue::{Entry, Queue};
use super::{Policy, Settings, TenantPlan, depth_of_one};
use crate::ids::{IoId, TenantId};
use crate::units::{Nanos, Share};

/// First come, first served.
#[derive(Debug)]
pub(crate) struct None {
    /// The tenants whose requests go next, each with its place in the order of arrival: one turn per queued request,
    /// except the turns that were passed over.
    turns: VecDeque<(u64, TenantId)>,
    arrived: u64,
    /// By tenant number.
    tenants: Vec<Tenant>,
    /// Tenants with turns that were passed over.
    passed_over: Vec<TenantId>,
    depth: u32,
}

#[derive(Default, Debug)]
struct Tenant {
    is_there: bool,
    queue: Queue,
    in_device: u32,
    /// Places of its turns that were passed over. These are its oldest turns.
    passed_over: VecDeque<u64>,
}

impl None {
    /// At most `depth` requests in the device.
    pub(crate) fn new(depth: u32) -> None {
        None { turns: VecDeque::new(), arrived: 0, tenants: Vec::new(), passed_over: Vec::new(), depth }
    }

    fn tenant(&mut self, tenant: TenantId) -> &mut Tenant {
        &mut self.tenants[tenant.0 as usize]
    }

    /// Whether one more request of the tenant may go to the device.
    fn may_go(&self, tenant: TenantId, in_device: u32) -> bool {
        let own = self.tenants[tenant.0 as usize].in_device;
        // A tenant alone on the disk may use the whole depth.
        let several = || self.tenants.iter().filter(|tenant| tenant.is_there).nth(1).is_some();
        own < depth_of_one(self.depth, in_device - own) || !several()
    }

    /// Takes the oldest turn of a tenant that is below its bound.
    fn take_turn(&mut self, in_device: u32) -> Option<TenantId> {
        let place = |tenant: &TenantId| self.tenants[tenant.0 as usize].passed_over.front().copied();
        let candidates = self.passed_over.iter().copied().filter(|&tenant| self.may_go(tenant, in_device));
        let oldest = candidates.min_by_key(place);
        let oldest_place = oldest.as_ref().and_then(place).unwrap_or(u64::MAX);
        while let Some((place, tenant)) = self.turns.pop_front_if(|(place, _)| *place < oldest_place) {
            if self.may_go(tenant, in_device) {
                return Some(tenant);
            }
            let state = self.tenant(tenant);
            state.passed_over.push_back(place);
            if state.passed_over.len() == 1 {
                self.passed_over.push(tenant);
            }
        }
        let tenant = oldest?;
        let state = self.tenant(tenant);
        state.passed_over.pop_front();
        if state.passed_over.is_empty() {
            self.passed_over.retain(|&other| other != tenant);
        }
        Some(tenant)
    }
}

impl Policy for None {
    fn set_tenant(&mut self, _now: Nanos, tenant: TenantId, _share: Option<Share>) {
        let at = tenant.0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize_with(at + 1, Tenant::default);
        }
        self.tenants[at].is_there = true;
    }

    fn drop_tenant(&mut self, _now: Nanos, tenant: TenantId) {
        let state = self.tenant(tenant);
        debug_assert!(state.queue.is_empty(), "its volumes are closed");
        state.is_there = false;
    }

    fn arrived(&mut self, _now: Nanos, tenant: TenantId, entry: Entry, urgent: bool) {
        self.tenant(tenant).queue.push(entry, urgent);
        self.turns.push_back((self.arrived, tenant));
        self.arrived += 1;
    }

    fn hurry(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool) {
        self.tenant(tenant).queue.hurry(wanted);
    }

    fn withdraw(&mut self, _now: Nanos, tenant: TenantId, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>) {
        let state = self.tenant(tenant);
        state.queue.withdraw(unwanted, dropped);
        // The tenant loses its latest turns: the remaining requests have waited since the oldest ones.
        let keep = state.queue.len();
        state.passed_over.truncate(keep);
        let mut turns = state.passed_over.len();
        if turns == 0 {
            self.passed_over.retain(|&other| other != tenant);
        }
        self.turns.retain(|&(_, turn)| {
            turns += usize::from(turn == tenant);
            turn != tenant || turns <= keep
        });
    }

    fn next(&mut self, _now: Nanos, in_device: u32) -> Option<IoId> {
        if in_device >= self.depth {
            return Option::None;
        }
        let tenant = self.take_turn(in_device)?;
        let state = self.tenant(tenant);
        state.in_device += 1;
        let entry = state.queue.pop();
        debug_assert!(entry.is_some(), "a turn for each request");
        entry.map(|entry| entry.io)
    }

    fn done(&mut self, _now: Nanos, tenant: TenantId, _entry: &Entry, _submitted: Nanos) {
        self.tenant(tenant).in_device -= 1;
    }

    fn waiting(&self) -> usize {
        let passed_over = self.passed_over.iter().map(|tenant| self.tenants[tenant.0 as usize].passed_over.len());
        self.turns.len() + passed_over.sum::<usize>()
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        Option::None
    }

    fn set(&mut self, settings: Settings) {
        self.depth = settings.depth;
    }

    fn plan(&mut self, _now: Nanos, _tenant: TenantId) -> Option<TenantPlan> {
        Option::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Op;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    fn entry(number: u32) -> Entry {
        Entry { io: IoId(number), op: Op::Read, len: 0, cost_ns: 0, follows: false, internal: false }
    }

    /// A policy with these requests, numbered by arrival: the tenant, and whether the request is urgent.
    fn with(arrivals: &[(TenantId, bool)]) -> None {
        let mut policy = None::new(u32::MAX);
        [A, B].into_iter().for_each(|tenant| policy.set_tenant(0, tenant, Option::None));
        for (i, &(tenant, urgent)) in arrivals.iter().enumerate() {
            policy.arrived(0, tenant, entry(i as u32), urgent);
        }
        policy
    }

    /// The order in which all requests are submitted, each one completing before the next.
    fn all(mut policy: None) -> Vec<u32> {
        let mut next = || {
            policy.tenants.iter_mut().for_each(|tenant| tenant.in_device = 0);
            policy.next(0, 0)
        };
        std::iter::from_fn(|| next().map(|io| io.0)).collect()
    }

    #[test]
    fn what_is_urgent_goes_ahead_of_its_owners_requests_only() {
        assert_eq!(all(with(&[(A, false), (A, false), (A, true), (B, false)])), [2, 0, 1, 3]);
        assert_eq!(all(with(&[(B, false), (A, false), (B, false), (A, true)])), [0, 3, 2, 1]);
    }

    #[test]
    fn what_waits_can_become_urgent() {
        let mut policy = with(&[(A, false), (A, false), (A, false)]);
        policy.hurry(A, &|io| io.0 == 2);
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
        policy.depth = 128;
        let (mut in_device, mut of_a, mut others) = (0, 0, Vec::new());
        while let Some(io) = policy.next(0, in_device) {
            if io.0 < 200 {
                (of_a, in_device) = (of_a + 1, in_device + 1);
            } else {
                // The device completes these at once.
                policy.done(0, B, &entry(io.0), 0);
                others.push(io.0);
            }
        }
        assert_eq!((of_a, others), (96, (200..300).collect()));
        assert_eq!(policy.waiting(), 104);
        // One hung request completes: the oldest turn that was passed over goes before later arrivals.
        policy.arrived(0, B, entry(300), false);
        policy.done(0, A, &entry(0), 0);
        assert_eq!(
            [policy.next(0, 95), policy.next(0, 96), policy.next(0, 97)].map(|io| io.map(|io| io.0)),
            [Some(96), Some(300), Option::None]
        );
        // A cancelled request leaves no turn behind.
        let mut dropped = Vec::new();
        policy.withdraw(0, A, &|io| io.0 > 100, &mut dropped);
        assert_eq!((dropped.len(), policy.waiting()), (99, 4));
        // Alone, the tenant may use the whole depth.
        policy.drop_tenant(0, B);
        assert_eq!(policy.next(0, 97), Some(IoId(97)));
    }

    #[test]
    fn no_more_than_the_depth() {
        let mut policy = with(&[(A, false)]);
        policy.depth = 1;
        assert_eq!((policy.next(0, 1), policy.next(0, 0)), (Option::None, Some(IoId(0))));
    }
}
