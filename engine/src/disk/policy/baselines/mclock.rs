//! mClock: a reservation, a weight and a limit for each tenant, in this order.
//!
//! ```text
//!   R = max(R + bytes / reservation, arrival)     a request with R <= now?  the least R goes
//!   L = max(L + bytes / limit, arrival)           otherwise, of those with L <= now: the least P
//!   P = P + bytes / weight                        otherwise nothing, until the first R or L
//! ```
//!
//! - The reservation is the tenant's guarantee; a tenant without one has no R. The weight is its share. The limit, if
//!   there is one, is a multiple of the guarantee; a tenant without a guarantee has none.
//! - A request that goes by weight does not use the reservation: its R tags move back. One that goes by reservation
//!   counts for weight and limit.
//! - A tenant that becomes active gets the least P of the tenants with queued requests. If there is none, it gets the P
//!   of the request that went to the device last. So it neither catches up nor falls behind. The paper moves the
//!   others' P to the present instead: the order is the same.
//!
//! The tags are those of the tenants' next requests, which follow from the request before.
//!
//! Source: Gulati, Merchant, Varman, mClock: handling throughput variability for hypervisor IO scheduling (OSDI 2010),
//! section 3. Downside: if the device cannot serve the sum of the reservations, the tags fall behind, and tenants get
//! in proportion to their reservations, not what they pay in disk time.

use super::{Head, Rule, first, time_ns};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::{Nanos, Share};

/// When, by its tags, the next request of a tenant is due.
#[derive(Clone, Copy, Default, Debug)]
struct Tags {
    reservation: Nanos,
    limit: Nanos,
    /// Bytes by the weight of a whole disk.
    proportion: u128,
}

#[derive(Debug)]
pub(in super::super) struct MClock {
    /// The limit, thousandths of the guarantee.
    limit_permille: Option<u32>,
    tags: Table<TenantId, Tags>,
    /// P of the request that went to the device last.
    served: u128,
}

impl MClock {
    pub(in super::super) fn new(limit_permille: Option<u32>) -> MClock {
        MClock { limit_permille, tags: Table::default(), served: 0 }
    }

    /// R; `None` without a reservation.
    fn reserved_at(&self, head: &Head) -> Option<Nanos> {
        (head.guarantee > 0).then(|| self.tags[head.tenant].reservation.max(head.arrived))
    }

    /// Bytes a second; `None` if the tenant is not limited.
    fn limit(&self, head: &Head) -> Option<u64> {
        let permille = self.limit_permille.filter(|_| head.guarantee > 0)?;
        Some((u128::from(head.guarantee) * u128::from(permille) / 1000).clamp(1, u64::MAX.into()) as u64)
    }

    /// L; without a limit the arrival.
    fn permitted_at(&self, head: &Head) -> Nanos {
        self.limit(head).map_or(head.arrived, |_| self.tags[head.tenant].limit.max(head.arrived))
    }

    fn wake(&mut self, heads: &[Head]) {
        let active = heads.iter().filter(|head| !head.is_fresh).map(|head| self.tags[head.tenant].proportion).min();
        for head in heads.iter().filter(|head| head.is_fresh) {
            let proportion = &mut self.tags[head.tenant].proportion;
            *proportion = active.unwrap_or(self.served).max(*proportion);
        }
    }

    fn serve(&mut self, head: &Head) {
        let (limit, from) = (self.limit(head), self.permitted_at(head));
        let tags = &mut self.tags[head.tenant];
        self.served = tags.proportion;
        tags.proportion += u128::from(head.bytes) * u128::from(Share::ONE.ppb()) / u128::from(head.weight);
        if let Some(limit) = limit {
            tags.limit = from.saturating_add(time_ns(head.bytes, limit));
        }
    }
}

impl Rule for MClock {
    fn add(&mut self, tenant: TenantId) {
        if !self.tags.contains(tenant) {
            // It begins with the others, not before them.
            let proportion = self.tags.values().map(|tags| tags.proportion).max().unwrap_or(0);
            self.tags.insert(tenant, Tags { proportion, ..Tags::default() });
        }
    }

    fn remove(&mut self, tenant: TenantId) {
        self.tags.remove(tenant);
    }

    fn choose(&mut self, now: Nanos, heads: &[Head], _in_device: u32) -> Result<Head, Option<Nanos>> {
        self.wake(heads);
        let ready = || heads.iter().copied().filter(|head| head.is_ready);
        let reserved = |head: &Head| self.reserved_at(head).unwrap_or(Nanos::MAX);
        if let Some(head) = first(ready().filter(|head| reserved(head) <= now), reserved) {
            self.tags[head.tenant].reservation = reserved(&head).saturating_add(time_ns(head.bytes, head.guarantee));
            self.serve(&head);
            return Ok(head);
        }
        let permitted = ready().filter(|head| self.permitted_at(head) <= now);
        if let Some(head) = first(permitted, |head| self.tags[head.tenant].proportion) {
            self.serve(&head);
            return Ok(head);
        }
        Err(ready().map(|head| reserved(&head).min(self.permitted_at(&head))).min())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use crate::disk::policy::Kind;
    use crate::units::SECOND;

    const MB: u64 = 1_000_000;
    const SIZE: u64 = 50_000;
    const UNLIMITED: Kind = Kind::MClock { limit_permille: None };

    /// Bytes a second, MB, of tenants that are all backlogged.
    fn rates<const N: usize>(kind: Kind, tenants: [(u64, u64); N]) -> [f64; N] {
        let mut rig = Rig::new(kind, 10 * MB, &tenants);
        (0..N).for_each(|tenant| rig.backlog(tenant as u32, 4, SIZE));
        rig.run(20 * SECOND);
        std::array::from_fn(|tenant| rig.bytes(tenant as u32, 10 * SECOND..20 * SECOND) as f64 / (10 * MB) as f64)
    }

    fn is_near(got: &[f64], wanted: &[f64]) {
        assert!(got.iter().zip(wanted).all(|(got, wanted)| (got - wanted).abs() < 0.1), "{got:?} MB/s, not {wanted:?}");
    }

    #[test]
    fn reservations_come_before_weights() {
        is_near(&rates(UNLIMITED, [(10, 6 * MB), (30, 0), (60, 0)]), &[6.0, 4.0 / 3.0, 8.0 / 3.0]);
        // What a reservation gives counts for the weight: a tenant above it has no more than by weight.
        is_near(&rates(UNLIMITED, [(50, 2 * MB), (50, 0)]), &[5.0, 5.0]);
        is_near(&rates(UNLIMITED, [(25, 0), (75, 0)]), &[2.5, 7.5]);
    }

    #[test]
    fn limits_come_before_weights_and_leave_the_rest_to_others() {
        let limited = Kind::MClock { limit_permille: Some(1500) };
        is_near(&rates(limited, [(80, 2 * MB), (20, 0)]), &[3.0, 7.0]);
        is_near(&rates(limited, [(80, 2 * MB)]), &[3.0]);
        is_near(&rates(UNLIMITED, [(80, 2 * MB)]), &[10.0]);
    }

    #[test]
    fn a_tenant_that_was_idle_has_no_credit() {
        // With one request outstanding the queue of the first tenant is empty whenever its request is in the device.
        for (guarantee, depth) in [(0, 4), (MB, 4), (0, 1)] {
            let mut rig = Rig::new(UNLIMITED, 10 * MB, &[(50, guarantee), (50, guarantee)]);
            rig.backlog(0, depth, SIZE);
            rig.run(30 * SECOND);
            rig.backlog(1, 4, SIZE);
            rig.run(40 * SECOND);
            let got = [0, 1].map(|tenant| rig.bytes(tenant, 30 * SECOND..40 * SECOND));
            assert!(got[0].abs_diff(got[1]) <= 4 * SIZE, "{got:?}");
        }
    }
}
