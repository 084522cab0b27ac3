//! Whose turn it is: tenants take turns, and within a tenant its connections.
//!
//! ```text
//!   ring of tenants with work      A ──► B ──► C ──► (A)
//!                                  │     │
//!   each: ring of connections     a1    b1 ► b2 ► b3
//! ```
//!
//! A tenant gets one budget in each pass, however many connections it has: a flood of hits on a hundred connections takes
//! no more of the thread than one on a single connection. What it could not finish stays queued, behind its others.

use std::collections::VecDeque;

use engine::ConnId;
use engine::control::TenantId;

/// Connections with something to be parsed, in turn.
#[derive(Debug, Default)]
pub struct Turns {
    /// By tenant number.
    queues: Vec<VecDeque<ConnId>>,
    /// Tenants with a queue that is not empty, each once; without the one whose turn it is.
    ring: VecDeque<TenantId>,
    turn: Option<TenantId>,
}

impl Turns {
    /// Queues a connection that is not queued.
    pub fn push(&mut self, tenant: TenantId, conn: ConnId) {
        let index = tenant.0 as usize;
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, VecDeque::new);
        }
        if self.queues[index].is_empty() && self.turn != Some(tenant) {
            self.ring.push_back(tenant);
        }
        self.queues[index].push_back(conn);
    }

    /// Tenants with work.
    pub fn tenants(&self) -> usize {
        self.ring.len()
    }

    /// The next tenant: its connections are taken with [`Turns::pop`], until [`Turns::end_turn`].
    pub fn begin_turn(&mut self) -> Option<TenantId> {
        self.turn = self.ring.pop_front();
        self.turn
    }

    /// The next connection of the tenant whose turn it is.
    pub fn pop(&mut self, tenant: TenantId) -> Option<ConnId> {
        self.queues[tenant.0 as usize].pop_front()
    }

    /// The tenant goes to the end, if it still has work.
    pub fn end_turn(&mut self) {
        if let Some(tenant) = self.turn.take()
            && !self.queues[tenant.0 as usize].is_empty()
        {
            self.ring.push_back(tenant);
        }
    }

    /// Forgets a connection.
    pub fn remove(&mut self, tenant: TenantId, conn: ConnId) {
        let Some(queue) = self.queues.get_mut(tenant.0 as usize) else { return };
        queue.retain(|&other| other != conn);
        if queue.is_empty() {
            self.ring.retain(|&other| other != tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_whatever_their_number_of_connections() {
        let mut turns = Turns::default();
        for conn in 0..4 {
            turns.push(TenantId(0), ConnId(conn));
        }
        turns.push(TenantId(3), ConnId(9));
        let mut served = Vec::new();
        for _ in 0..6 {
            let Some(tenant) = turns.begin_turn() else { break };
            let conn = turns.pop(tenant).unwrap();
            served.push(conn.0);
            if conn.0 == 9 {
                turns.push(tenant, conn);
            }
            turns.end_turn();
        }
        assert_eq!(served, [0, 9, 1, 9, 2, 9]);
        turns.remove(TenantId(0), ConnId(3));
        assert_eq!(turns.tenants(), 1);
    }
}
