//! Lottery scheduling: each decision is a draw, in which a tenant has as many tickets as its share.
//!
//! A tenant whose last request was short gets compensation tickets until it wins again: its tickets are worth quantum /
//! bytes as much, so bytes, not requests, are proportional to shares. Guarantees have no effect.
//!
//! Source: Waldspurger and Weihl, Lottery scheduling: flexible proportional-share resource management (OSDI 1994),
//! section 3.4 for compensation tickets. Downside: proportional over many draws only; the error grows with their square
//! root.

use super::{Head, Rule};
use crate::dice::Dice;
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::Nanos;

/// The quantum of compensation tickets. Only ratios count, so it is any size that gives whole numbers: a request has at
/// most 32 MiB. A tenant has at most 2^30 x 2^18 tickets, 4,096 of them less than 2^64.
const QUANTUM_BYTES: u64 = 1 << 27;

#[derive(Debug)]
pub(in super::super) struct Lottery {
    dice: Dice,
    /// Bytes of each tenant's last request; 0 before the first one.
    last_bytes: Table<TenantId, u64>,
}

impl Lottery {
    pub(in super::super) fn new(dice: Dice) -> Lottery {
        Lottery { dice, last_bytes: Table::default() }
    }

    fn tickets(&self, head: &Head) -> u64 {
        let last = match self.last_bytes[head.tenant] {
            0 => head.bytes,
            last => last,
        };
        head.weight * (QUANTUM_BYTES / last).max(1)
    }
}

impl Rule for Lottery {
    fn add(&mut self, tenant: TenantId) {
        if !self.last_bytes.contains(tenant) {
            self.last_bytes.insert(tenant, 0);
        }
    }

    fn remove(&mut self, tenant: TenantId) {
        self.last_bytes.remove(tenant);
    }

    fn choose(&mut self, _now: Nanos, heads: &[Head], _in_device: u32) -> Result<Head, Option<Nanos>> {
        let ready = || heads.iter().copied().filter(|head| head.is_ready);
        let mut drawn = self.dice.below(ready().map(|head| self.tickets(&head)).sum());
        let wins = |head: &Head| {
            let tickets = self.tickets(head);
            let wins = drawn < tickets;
            drawn = drawn.saturating_sub(tickets);
            wins
        };
        let head = ready().find(wins).ok_or(None)?;
        self.last_bytes[head.tenant] = head.bytes;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use crate::disk::policy::Kind;
    use crate::units::SECOND;

    const MB: u64 = 1_000_000;

    #[test]
    fn bytes_are_proportional_to_shares_over_many_draws() {
        let mut rig = Rig::new(Kind::Lottery, 100 * MB, &[(60, 0), (30, 0), (10, 0)]);
        for (tenant, bytes) in [(0, 4096), (1, 65_536), (2, 16_384)] {
            rig.backlog(tenant, 4, bytes);
        }
        rig.run(60 * SECOND);
        let got = [0, 1, 2].map(|tenant| rig.bytes(tenant, 0..60 * SECOND) as f64 / (6000 * MB) as f64);
        for (got, share) in got.into_iter().zip([0.6, 0.3, 0.1]) {
            assert!((got - share).abs() < 0.01, "{got} of the bytes with a share of {share}");
        }
    }

    #[test]
    fn a_seed_has_one_order_and_another_seed_another_one() {
        let order = |seed: u64| {
            let mut rig = Rig::seeded(Kind::Lottery, seed, 100 * MB, &[(50, 0), (50, 0)]);
            (0..2).for_each(|tenant| rig.backlog(tenant, 4, 65_536));
            rig.run(SECOND);
            rig.submitted.iter().map(|one| one.tenant).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn a_tenant_alone_wins_every_draw() {
        let mut rig = Rig::new(Kind::Lottery, 100 * MB, &[(1, 0), (99, 0)]);
        rig.backlog(0, 1, 65_536);
        rig.run(SECOND);
        assert!(rig.bytes(0, 0..SECOND) > 99 * MB);
    }
}
