//! No policy: first come, first served, up to a depth. What a server without insulation does.
//!
//! ```text
//!   turns, by arrival:   a  b  a  a        a turn is a tenant's, not a request's: an urgent request takes the next
//!   tenant a: urgent     2  |              turn of its owner, so it delays nobody but its owner's own requests
//!             others     0  1              (here: device ◄─ 2, then b's 3, then 0 and 1)
//!   tenant b: others     3
//! ```

use std::collections::VecDeque;

use super::Policy;
use crate::control::TenantId;
use crate::disk::IoId;
use crate::units::Nanos;

/// Urgent requests that a tenant sends ahead of its others before one of those has its turn: enough that a flush hardly
/// notices, few enough that a client that only flushes, or writes through, leaves its tenant's reads a fifth of the turns.
const URGENT_IN_A_ROW: u32 = 4;

/// What waits of one tenant.
#[derive(Default, Debug)]
struct Queue {
    urgent: VecDeque<IoId>,
    others: VecDeque<IoId>,
    /// Urgent ones that have gone ahead since one of the others went.
    ahead: u32,
}

impl Queue {
    fn next(&mut self) -> Option<IoId> {
        if !self.urgent.is_empty() && (self.ahead < URGENT_IN_A_ROW || self.others.is_empty()) {
            self.ahead = if self.others.is_empty() { 0 } else { self.ahead + 1 };
            return self.urgent.pop_front();
        }
        self.ahead = 0;
        self.others.pop_front()
    }
}

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
    fn arrived(&mut self, _now: Nanos, tenant: TenantId, io: IoId, urgent: bool) {
        let at = tenant.0 as usize;
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, Queue::default);
        }
        let queue = &mut self.queues[at];
        if urgent { &mut queue.urgent } else { &mut queue.others }.push_back(io);
        self.turns.push_back(tenant);
    }

    fn hurry(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool) {
        if let Some(Queue { urgent, others, .. }) = self.queues.get_mut(tenant.0 as usize) {
            others.retain(|&io| {
                let wanted = wanted(io);
                if wanted {
                    urgent.push_back(io);
                }
                !wanted
            });
        }
    }

    fn next(&mut self, _now: Nanos, in_device: u32) -> Option<IoId> {
        if in_device >= self.depth {
            return Option::None;
        }
        let tenant = self.turns.pop_front()?;
        let io = self.queues[tenant.0 as usize].next();
        debug_assert!(io.is_some(), "a turn for each request");
        io
    }

    fn done(&mut self, _now: Nanos, _tenant: TenantId, _io: IoId) {}

    fn waiting(&self) -> usize {
        self.turns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    /// A policy with these requests, numbered as they come: whose, whether urgent.
    fn with(arrivals: &[(TenantId, bool)]) -> None {
        let mut policy = None::new(u32::MAX);
        for (i, &(tenant, urgent)) in arrivals.iter().enumerate() {
            policy.arrived(0, tenant, IoId(i as u32), urgent);
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
    fn no_more_than_the_depth() {
        let mut policy = None::new(1);
        policy.arrived(0, A, IoId(7), false);
        assert_eq!((policy.next(0, 1), policy.next(0, 0)), (Option::None, Some(IoId(7))));
    }
}
