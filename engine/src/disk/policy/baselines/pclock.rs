//! pClock: a tenant whose requests stay within its arrival curve has each of them completed within a latency.
//!
//! ```text
//!   arrival curve: at most sigma + rho x t bytes in any time t; a request within it is due after delta
//!   start(request)  = the earliest time at which its arrival is within the curve
//!   finish(request) = start + delta                                       the least finish goes first
//! ```
//!
//! - rho is the guarantee, delta the latency, the same for all. sigma is rho x delta: the largest burst that is due no
//!   faster than the guarantee, so a disk that can serve the sum of the guarantees meets all deadlines.
//! - A tenant that exceeds its curve has starts in the future, so it delays no tenant that stays within its own.
//! - Spare time, when no start is due, goes to the tenants without a guarantee (best effort, by share with start-time
//!   fair queueing). If these want nothing, it goes to the tenants that exceed their curves, in the order of their
//!   tags. All their tags are then moved back, so that they do not pay for spare time later.
//!
//! Source: Gulati, Merchant, Varman, pClock: an arrival curve based approach for QoS guarantees in shared storage
//! systems (SIGMETRICS 2007), sections 3 and 4. Downside: the deadlines hold if the disk can serve the sum of the
//! guarantees, for requests that are not known in advance.

use super::bucket::Bucket;
use super::{Head, Rule, Sfq, first};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::Nanos;

#[derive(Debug)]
pub(in super::super) struct PClock {
    /// delta, and sigma / rho.
    latency_ns: Nanos,
    buckets: Table<TenantId, Bucket>,
    /// The order of tenants without a guarantee.
    best_effort: Sfq,
}

impl PClock {
    pub(in super::super) fn new(latency_ns: Nanos) -> PClock {
        PClock { latency_ns, buckets: Table::default(), best_effort: Sfq::default() }
    }

    /// The start tag. Since delta is the same for all, the order of starts is that of finishes.
    fn start(&self, head: &Head) -> Nanos {
        self.buckets[head.tenant].has_at(head.arrived, head.bytes, head.guarantee, self.latency_ns)
    }
}

impl Rule for PClock {
    fn add(&mut self, tenant: TenantId) {
        if !self.buckets.contains(tenant) {
            self.buckets.insert(tenant, Bucket::default());
        }
        self.best_effort.add(tenant);
    }

    fn remove(&mut self, tenant: TenantId) {
        self.buckets.remove(tenant);
        self.best_effort.remove(tenant);
    }

    fn choose(&mut self, now: Nanos, heads: &[Head], _in_device: u32) -> Result<Head, Option<Nanos>> {
        self.best_effort.wake(heads);
        let of = |guaranteed: bool| heads.iter().copied().filter(move |head| (head.guarantee > 0) == guaranteed);
        let due = first(of(true).filter(|head| head.is_ready), |head| self.start(head));
        let spare = self.best_effort.first(of(false).filter(|head| head.is_ready));
        match (due, spare) {
            (Some(head), spare) if spare.is_none() || self.start(&head) <= now => {
                let ahead_ns = of(true).map(|head| self.start(&head)).min().unwrap_or(0).saturating_sub(now);
                if ahead_ns > 0 {
                    of(true).for_each(|head| self.buckets[head.tenant].add(ahead_ns));
                }
                self.buckets[head.tenant].take(head.arrived, head.bytes, head.guarantee);
                Ok(head)
            }
            (_, spare) => {
                let head = spare.ok_or(None)?;
                self.best_effort.serve(&head);
                Ok(head)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use super::*;
    use crate::disk::policy::Kind;
    use crate::units::{MILLISECOND, SECOND};

    const MB: u64 = 1_000_000;
    const LATENCY_NS: Nanos = 500 * MILLISECOND;
    const PCLOCK: Kind = Kind::PClock { latency_ns: LATENCY_NS };
    const SIZE: u64 = 50_000;

    /// The longest latency of a tenant that sends a burst of sigma bytes each time its bucket is full.
    fn latency_ns_max(rig: &mut Rig, rho: u64) -> Nanos {
        let mut asked = 0;
        for second in 0..20 {
            for _ in 0..rho / 2 / SIZE {
                rig.ask_at(0, second * SECOND, SIZE);
                asked += 1;
            }
        }
        rig.run(21 * SECOND);
        let of: Vec<Nanos> = rig.completed.iter().filter(|one| one.tenant == 0).map(|one| one.latency_ns).collect();
        assert_eq!(of.len(), asked);
        of.into_iter().max().unwrap()
    }

    #[test]
    fn a_tenant_within_its_curve_meets_its_deadlines_whatever_the_others_send() {
        // 10 MB/s, of which 9 are guaranteed. A request in the device delays others by 5 ms.
        let mut rig = Rig::new(PCLOCK, 10 * MB, &[(30, 4 * MB), (30, 5 * MB), (30, 0)]);
        rig.backlog(1, 1000, SIZE);
        rig.backlog(2, 1000, SIZE);
        let latency = latency_ns_max(&mut rig, 4 * MB);
        assert!(latency <= LATENCY_NS + 5 * MILLISECOND, "{latency}");
        assert!(latency > LATENCY_NS / 4, "the bursts are long, and others have deadlines too: {latency}");
        // The bursts are 2 MB/s. The tenant that exceeds its curve has its guarantee, the one without has the rest.
        let got = [1, 2].map(|tenant| rig.bytes(tenant, SECOND..20 * SECOND) as f64 / (19 * MB) as f64);
        assert!((got[0] - 5.0).abs() < 0.1 && (got[1] - 3.0).abs() < 0.1, "{got:?} MB/s");
    }

    #[test]
    fn spare_time_is_used_and_not_paid_for_later() {
        let mut rig = Rig::new(PCLOCK, 10 * MB, &[(30, 2 * MB), (30, 2 * MB)]);
        rig.backlog(1, 16, SIZE);
        rig.run(10 * SECOND);
        assert!(rig.bytes(1, 0..10 * SECOND) > 99 * MB, "alone it has the whole disk");
        rig.backlog(0, 16, SIZE);
        rig.run(20 * SECOND);
        let got = [0, 1].map(|tenant| rig.bytes(tenant, 11 * SECOND..20 * SECOND) as f64 / (9 * MB) as f64);
        assert!(got.iter().all(|got| (got - 5.0).abs() < 0.1), "{got:?} MB/s");
    }

    #[test]
    fn tenants_without_a_guarantee_share_by_weight() {
        let mut rig = Rig::new(PCLOCK, 10 * MB, &[(60, 0), (20, 0)]);
        (0..2).for_each(|tenant| rig.backlog(tenant, 4, SIZE));
        rig.run(10 * SECOND);
        let got = [0, 1].map(|tenant| rig.bytes(tenant, 0..10 * SECOND));
        assert!(got[0].abs_diff(3 * got[1]) < 4 * SIZE, "{got:?}");
    }
}
