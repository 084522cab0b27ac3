//! Token buckets: a tenant's requests wait until its bucket has tokens for their bytes, so it gets at most a rate and a
//! bounded burst.
//!
//! ```text
//!   tokens arrive at rate = factor x guarantee ─► bucket of 5 s ─► a request takes its bytes, or waits for them
//! ```
//!
//! Requests with tokens go in order of arrival. A tenant without a guarantee is not limited. A request that is larger
//! than the bucket waits for a full one and leaves a debt.
//!
//! Source: Turner, New directions in communications (IEEE Communications Magazine 24(10), 1986); the bucket of 5 s from
//! Wachs and Ganger, CMU-PDL-10-113 (2010), section 5. Downside: it limits what it should guarantee, also while the
//! disk is idle.

use super::bucket::Bucket;
use super::{Head, Rule, first};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::{Nanos, SECOND};

/// Size of the bucket: what arrives in this time (CMU-PDL-10-113, section 5).
const BUCKET_NS: Nanos = 5 * SECOND;

#[derive(Debug)]
pub(in super::super) struct TokenBucket {
    /// Rate of the tokens, thousandths of the guarantee.
    rate_permille: u32,
    buckets: Table<TenantId, Bucket>,
}

impl TokenBucket {
    pub(in super::super) fn new(rate_permille: u32) -> TokenBucket {
        TokenBucket { rate_permille, buckets: Table::default() }
    }

    /// Tokens of a second; `None` if the tenant is not limited.
    fn rate(&self, head: &Head) -> Option<u64> {
        let rate = u128::from(head.guarantee) * u128::from(self.rate_permille) / 1000;
        (head.guarantee > 0).then(|| rate.clamp(1, u64::MAX.into()) as u64)
    }

    fn goes_at(&self, now: Nanos, head: &Head) -> Nanos {
        self.rate(head).map_or(now, |rate| self.buckets[head.tenant].has_at(now, head.bytes, rate, BUCKET_NS))
    }
}

impl Rule for TokenBucket {
    fn add(&mut self, tenant: TenantId) {
        if !self.buckets.contains(tenant) {
            self.buckets.insert(tenant, Bucket::default());
        }
    }

    fn remove(&mut self, tenant: TenantId) {
        self.buckets.remove(tenant);
    }

    fn choose(&mut self, now: Nanos, heads: &[Head], _in_device: u32) -> Result<Head, Option<Nanos>> {
        let ready = || heads.iter().copied().filter(|head| head.is_ready);
        let Some(head) = first(ready().filter(|head| self.goes_at(now, head) <= now), |_| ()) else {
            return Err(ready().map(|head| self.goes_at(now, &head)).min());
        };
        if let Some(rate) = self.rate(&head) {
            self.buckets[head.tenant].take(now, head.bytes, rate);
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use super::*;
    use crate::disk::policy::Kind;

    const MB: u64 = 1_000_000;
    /// A disk of 100 MB/s; a tenant with 1 MB/s, and one without a guarantee.
    fn rig(rate_permille: u32) -> Rig {
        Rig::new(Kind::TokenBucket { rate_permille }, 100 * MB, &[(50, MB), (50, 0)])
    }

    #[test]
    fn no_tenant_gets_more_than_its_rate_and_one_bucket_in_any_interval() {
        for (factor, size) in [(1000, 4096), (1200, 65_536), (1500, 300_000)] {
            let mut rig = rig(factor);
            rig.backlog(0, 8, size);
            rig.run(20 * SECOND);
            let (rate, done) = (MB * u64::from(factor) / 1000, &rig.submitted);
            for from in 0..done.len() {
                let mut bytes = 0;
                for to in &done[from..] {
                    bytes += to.bytes;
                    let most = u128::from(to.at - done[from].at) * u128::from(rate) / u128::from(SECOND);
                    assert!(
                        u128::from(bytes) <= most + u128::from(5 * rate),
                        "{bytes} from {:?} to {to:?}",
                        done[from]
                    );
                }
            }
            // The first bucket, and what arrived.
            let got = rig.bytes(0, 0..20 * SECOND) as f64 / (25 * rate) as f64;
            assert!((0.98..=1.0).contains(&got), "{got}");
        }
    }

    #[test]
    fn after_a_long_absence_there_is_one_bucket() {
        let mut rig = rig(1000);
        rig.backlog(0, 8, 4096);
        rig.run(20 * SECOND);
        rig.backlog(0, 0, 4096);
        rig.run(3600 * SECOND);
        rig.backlog(0, 8, 4096);
        rig.run(3601 * SECOND);
        let got = rig.bytes(0, 3600 * SECOND..3601 * SECOND) as f64 / (6 * MB) as f64;
        assert!((0.99..=1.0).contains(&got), "{got}");
    }

    #[test]
    fn a_tenant_without_a_guarantee_is_not_limited_and_does_not_wait_for_tokens_of_others() {
        let mut rig = rig(1000);
        rig.backlog(0, 64, 65_536);
        rig.backlog(1, 1, 65_536);
        rig.run(20 * SECOND);
        // The whole disk, but for what the other tenant may have.
        let got = rig.bytes(1, 10 * SECOND..20 * SECOND) as f64 / (990 * MB) as f64;
        assert!((0.95..=1.01).contains(&got), "{got}");
    }

    #[test]
    fn a_request_larger_than_the_bucket_waits_for_a_full_one() {
        let mut rig = rig(1000);
        rig.ask(0, 20 * MB);
        rig.ask(0, 4096);
        rig.run(60 * SECOND);
        let at: Vec<Nanos> = rig.submitted.iter().map(|one| one.at).collect();
        assert_eq!(at, [0, 15 * SECOND + 4_096_000], "the bucket is full at 0, and has 4096 bytes again after 15 s");
    }
}
