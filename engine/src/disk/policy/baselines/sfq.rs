//! Start-time fair queueing: backlogged tenants get bytes in proportion to their shares, at any rate of the device.
//!
//! ```text
//!   start(request)  = max(virtual time at its arrival, finish of the request before)      the least start goes first
//!   finish(request) = start + bytes / weight
//!   virtual time    = start of the request that went last; after an idle period, the greatest finish
//! ```
//!
//! Two tenants f and m that are backlogged for a time differ by at most one request each (theorem 1), where W are their
//! bytes, r their weights, l their largest requests:
//!
//! ```text
//!   |W_f / r_f - W_m / r_m| <= l_f / r_f + l_m / r_m
//! ```
//!
//! With a depth D of the device, SFQ(D), the virtual time is that of the last request that went to it, and up to D
//! requests of each are added.
//!
//! Guarantees have no effect, shares are weights.
//!
//! Source: Goyal, Vin, Cheng, Start-time fair queueing (SIGCOMM 1996), theorem 1; Jin, Chase, Kaur, Interposed
//! proportional sharing for a storage service utility (SIGMETRICS 2004), for SFQ(D). Downside: bytes are shared fairly,
//! not the time that they take.

use super::{Head, Rule, first};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::{Nanos, Share};

/// Tags: bytes by the weight of a whole disk.
#[derive(Default, Debug)]
pub(in super::super) struct Sfq {
    /// The start of the next request of each tenant, which is the finish of its last one.
    starts: Table<TenantId, u128>,
    virtual_time: u128,
    finish_max: u128,
}

impl Sfq {
    /// Tenants whose queues were empty do not catch up.
    pub(super) fn wake(&mut self, heads: &[Head]) {
        for head in heads.iter().filter(|head| head.is_fresh) {
            let start = &mut self.starts[head.tenant];
            *start = self.virtual_time.max(*start);
        }
    }

    /// All requests have completed.
    pub(super) fn idle(&mut self) {
        self.virtual_time = self.finish_max;
    }

    /// The head that goes first.
    pub(super) fn first(&self, heads: impl Iterator<Item = Head>) -> Option<Head> {
        first(heads, |head| self.starts[head.tenant])
    }

    /// The head goes to the device.
    pub(super) fn serve(&mut self, head: &Head) {
        let start = &mut self.starts[head.tenant];
        self.virtual_time = *start;
        *start += u128::from(head.bytes) * u128::from(Share::ONE.ppb()) / u128::from(head.weight);
        self.finish_max = self.finish_max.max(*start);
    }
}

impl Rule for Sfq {
    fn add(&mut self, tenant: TenantId) {
        if !self.starts.contains(tenant) {
            self.starts.insert(tenant, 0);
        }
    }

    fn remove(&mut self, tenant: TenantId) {
        self.starts.remove(tenant);
    }

    fn choose(&mut self, _now: Nanos, heads: &[Head], in_device: u32) -> Result<Head, Option<Nanos>> {
        if in_device == 0 && heads.iter().all(|head| head.is_fresh) {
            self.idle();
        }
        self.wake(heads);
        let head = self.first(heads.iter().copied().filter(|head| head.is_ready)).ok_or(None)?;
        self.serve(&head);
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use crate::disk::policy::Kind;
    use crate::units::SECOND;

    const MB: u64 = 1_000_000;

    /// Theorem 1 of Goyal et al., for all intervals in which both tenants are backlogged.
    #[test]
    fn backlogged_tenants_differ_by_at_most_one_request_each() {
        for (percent, sizes) in [([20, 60], [4096, 65_536]), ([50, 25], [262_144, 4096]), ([33, 33], [8192, 8192])] {
            let mut rig = Rig::new(Kind::Sfq, 10 * MB, &[(percent[0], 0), (percent[1], 0)]);
            (0..2).for_each(|tenant| rig.backlog(tenant, 4, sizes[tenant as usize]));
            rig.run(SECOND);
            let per_weight = |tenant: u32, bytes: u64| bytes as f64 * 100.0 / percent[tenant as usize] as f64;
            let bound: f64 = (0..2).map(|tenant| per_weight(tenant, sizes[tenant as usize])).sum();
            let all = &rig.completed;
            assert!(all.len() > 50);
            for from in 0..all.len() {
                let mut got = [0.0; 2];
                for one in &all[from..] {
                    got[one.tenant as usize] += per_weight(one.tenant, one.bytes);
                    assert!((got[0] - got[1]).abs() <= bound + 1.0, "{got:?} differ by more than {bound}");
                }
            }
        }
    }

    #[test]
    fn a_tenant_that_was_idle_does_not_catch_up_and_is_not_punished() {
        let mut rig = Rig::new(Kind::Sfq, 10 * MB, &[(50, 0), (50, 0)]);
        rig.backlog(0, 4, 65_536);
        rig.run(10 * SECOND);
        rig.backlog(1, 4, 65_536);
        rig.run(20 * SECOND);
        let got = [0, 1].map(|tenant| rig.bytes(tenant, 10 * SECOND..20 * SECOND));
        assert!(got[0].abs_diff(got[1]) <= 2 * 65_536, "{got:?}");
        // After an idle period both begin at the same virtual time.
        (0..2).for_each(|tenant| rig.backlog(tenant, 0, 0));
        rig.run(30 * SECOND);
        rig.backlog(0, 4, 65_536);
        rig.run(31 * SECOND);
        rig.backlog(1, 4, 65_536);
        rig.run(41 * SECOND);
        let got = [0, 1].map(|tenant| rig.bytes(tenant, 31 * SECOND..41 * SECOND));
        assert!(got[0].abs_diff(got[1]) <= 2 * 65_536, "{got:?}");
    }
}
