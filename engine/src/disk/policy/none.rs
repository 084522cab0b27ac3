//! No policy: first come, first served, up to a depth. What a server without insulation does.
//!
//! ```text
//!   turns, by arrival:   a  b  a  a        a turn is a tenant's, not a request's: an urgent request takes the next
//!   tenant a: urgent     2  |              turn of its owner, so it delays nobody but its owner's own requests
//!             others     0  1              (here: device ◄─ 2, then b's 3, then 0 and 1)
//!   tenant b: others     3
//! ```

use std::collections::VecDeque;

use super::queue::{Entry, Queue};
use super::{Policy, Settings, TenantPlan};
use crate::control::TenantId;
use crate::disk::IoId;
use crate::units::{Nanos, Share};

/// First come, first served.
#[derive(Debug)]
pub(crate) struct None {
    /// Whose request goes next: as many turns as requests wait.
    turns: VecDeque<TenantId>,
    /// By tenant.
    queues: Vec<Queue>,
    depth: u32,
}

impl None {
    /// At most `depth` requests in the device.
    pub(crate) fn new(depth: u32) -> None {
        None { turns: VecDeque::new(), queues: Vec::new(), depth }
    }
}

impl Policy for None {
    fn set_tenant(&mut self, _now: Nanos, tenant: TenantId, _share: Option<Share>) {
        let at = tenant.0 as usize;
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, Queue::default);
        }
    }

    fn drop_tenant(&mut self, _now: Nanos, tenant: TenantId) {
        debug_assert!(self.queues[tenant.0 as usize].is_empty(), "its volumes are closed");
    }

    fn arrived(&mut self, _now: Nanos, tenant: TenantId, entry: Entry, urgent: bool) {
        self.queues[tenant.0 as usize].push(entry, urgent);
        self.turns.push_back(tenant);
    }

    fn hurry(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool) {
        self.queues[tenant.0 as usize].hurry(wanted);
    }

    fn withdraw(&mut self, _now: Nanos, tenant: TenantId, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>) {
        let queue = &mut self.queues[tenant.0 as usize];
        queue.withdraw(unwanted, dropped);
        // The tenant's last turns go: what is left of its requests has waited for the others.
        let keep = queue.len();
        let mut turns = 0;
        self.turns.retain(|&turn| {
            turns += usize::from(turn == tenant);
            turn != tenant || turns <= keep
        });
    }

    fn next(&mut self, _now: Nanos, in_device: u32) -> Option<IoId> {
        if in_device >= self.depth {
            return Option::None;
        }
        let tenant = self.turns.pop_front()?;
        let entry = self.queues[tenant.0 as usize].pop();
        debug_assert!(entry.is_some(), "a turn for each request");
        entry.map(|entry| entry.io)
    }

    fn done(&mut self, _now: Nanos, _tenant: TenantId, _entry: &Entry, _submitted: Nanos) {}

    fn waiting(&self) -> usize {
        self.turns.len()
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

    /// A policy with these requests, numbered as they come: whose, whether urgent.
    fn with(arrivals: &[(TenantId, bool)]) -> None {
        let mut policy = None::new(u32::MAX);
        [A, B].into_iter().for_each(|tenant| policy.set_tenant(0, tenant, Option::None));
        for (i, &(tenant, urgent)) in arrivals.iter().enumerate() {
            policy.arrived(
                0,
                tenant,
                Entry { io: IoId(i as u32), op: Op::Read, len: 0, cost_ns: 0, follows: false },
                urgent,
            );
        }
        policy
    }

    fn all(mut policy: None) -> Vec<u32> {
        std::iter::from_fn(|| policy.next(0, 0)).map(|io| io.0).collect()
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
    fn no_more_than_the_depth() {
        let mut policy = with(&[(A, false)]);
        policy.depth = 1;
        assert_eq!((policy.next(0, 1), policy.next(0, 0)), (Option::None, Some(IoId(0))));
    }
}
