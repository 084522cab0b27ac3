//! The balance between two waits: latency-bound tenants wait for others' requests in the device, backlogged tenants for
//! room there.
//!
//! The less others have in flight, the sooner a latency-bound tenant is answered, and the less of the device the others
//! can use. The formula (`mod.rs`) assumes that the device serves the requests in flight one after the other, each for
//! its cost. In fact a device may serve them in parallel, or take longer than they cost (reads behind programs). So the
//! limit follows what all tenants keep of their shares, their live insulation:
//!
//! ```text
//!   kept     = standalone-equivalent time of a tenant's work / (share x its time with demand)
//!   factor x= 1 + GAIN x (least kept, latency-bound - least kept, backlogged)          each at most 1.1 x R
//! ```
//!
//! Among backlogged tenants, tags account for what a request costs alone, and phases for how long reads and writes may
//! each be issued. Neither accounts for how much they slow each other down. While one of these tenants keeps less than
//! 1.1 x R, the weight of each is multiplied by its pull:
//!
//! ```text
//!   pull  x= 1 + (mean kept of the backlogged tenants - its own) / mean / 10
//!         then all of these pulls by one number, so that the sum of the weights is preserved
//! ```
//!
//! When all tenants keep 1.1 x R, factor and pulls return to 1. They are bounded, and move by at most a tenth in a
//! tenth of a second.
//!
//! Downside: where the device cannot keep the promise to both kinds of tenants, both lose the same part of it.

use super::Fair;
use super::tenant::Tenant;
use crate::units::{MILLISECOND, Nanos};

/// Interval between updates: hundreds of requests of a fast device.
const LOOK_NS: Nanos = 100 * MILLISECOND;
/// Relative change of the factor for a difference of 1.
const GAIN: f64 = 0.25;
/// Largest relative change in one update.
const STEP: f64 = 0.1;
/// The part of the way back to 1 in one update, when no tenant needs help.
const RETURN: f64 = 0.02;
/// From this multiple of R on a tenant needs no help.
const COMFORT: f64 = 1.1;
/// Bounds of the factor. Where only one request fits, a lower limit means nothing; above, the knee limits the load.
const FACTOR: (f64, f64) = (1.0 / 4.0, 16.0);
/// Relative change of a pull for a difference of the whole mean: slower than the average that it follows, or it would
/// oscillate.
const PULL_GAIN: f64 = 0.1;
/// Bounds of a pull.
const PULL: (f64, f64) = (1.0 / 4.0, 4.0);
/// Weight of an update in the average of what a tenant keeps: about a second, which contains several phases.
const WEIGHT: f64 = 1.0 / 8.0;
/// Shortest time with demand, as a part of the interval; a tenant with less is not considered.
const WANTED: f64 = 0.5;

/// What a tenant keeps of its share.
#[derive(Debug)]
pub(super) struct Kept {
    useful_ns: f64,
    wanting_ns: Nanos,
    /// In the last interval, and on average.
    kept: f64,
    usual: f64,
    /// The factor of its weight.
    pub(super) pull: f64,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { useful_ns: 0.0, wanting_ns: 0, kept: f64::INFINITY, usual: f64::INFINITY, pull: 1.0 }
    }
}

impl Kept {
    /// Useful time divided by time with demand since the last update; infinite if the tenant had hardly any demand.
    fn since(&mut self, useful_ns: f64, wanting_ns: Nanos) -> f64 {
        let wanted = (wanting_ns - self.wanting_ns) as f64;
        let ratio =
            if wanted < WANTED * LOOK_NS as f64 { f64::INFINITY } else { (useful_ns - self.useful_ns) / wanted };
        (self.useful_ns, self.wanting_ns) = (useful_ns, wanting_ns);
        ratio
    }

    /// Records what the tenant kept in the last interval.
    fn keeps(&mut self, kept: f64) {
        self.kept = kept;
        self.usual =
            if self.usual.is_finite() && kept.is_finite() { self.usual + WEIGHT * (kept - self.usual) } else { kept };
    }

    /// A weight, multiplied by the pull.
    pub(super) fn pulled(&self, weight: u64) -> u64 {
        ((weight as f64 * self.pull) as u64).max(1)
    }

    /// Moves the pull towards the `mean` of the tenants that should keep the same; without a mean, back to 1.
    fn pull(&mut self, mean: Option<f64>) {
        match mean {
            Some(mean) => self.pull *= 1.0 + (PULL_GAIN * (mean - self.usual) / mean).clamp(-STEP, STEP),
            None => self.pull += RETURN * (1.0 - self.pull),
        }
    }
}

#[derive(Debug)]
pub(super) struct Balance {
    factor: f64,
    looked_at: Nanos,
}

impl Default for Balance {
    fn default() -> Balance {
        Balance { factor: 1.0, looked_at: 0 }
    }
}

impl Balance {
    /// The factor of the formula's limit.
    pub(super) fn factor(&self) -> f64 {
        self.factor
    }

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now >= self.looked_at + LOOK_NS
    }

    /// Updates the factor from what each tenant kept in the last interval (with true for a latency-bound one); `keep`
    /// is R. True after a pause, which shows nothing.
    fn look(&mut self, now: Nanos, keep: f64, kept: impl Iterator<Item = (bool, f64)>) -> bool {
        let is_late = now >= self.looked_at + 2 * LOOK_NS;
        self.looked_at = now;
        let mut least = [COMFORT * keep; 2];
        kept.for_each(|(is_latency_bound, kept)| {
            let least = &mut least[usize::from(is_latency_bound)];
            *least = least.min(kept);
        });
        let [backlogged, latency_bound] = least;
        if is_late {
            // After a pause: too few requests to show anything.
        } else if backlogged == latency_bound {
            self.factor += RETURN * (1.0 - self.factor);
        } else {
            self.factor *= 1.0 + (GAIN * (latency_bound - backlogged)).clamp(-STEP, STEP);
        }
        self.factor = self.factor.clamp(FACTOR.0, FACTOR.1);
        is_late
    }
}

/// The mean of what the backlogged tenants keep on average, if one of them keeps too little.
fn to_be_even(keep: f64, usual: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count, mut least) = (0.0, 0.0, COMFORT * keep);
    usual.filter(|usual| usual.is_finite()).for_each(|usual| {
        (sum, count, least) = (sum + usual, count + 1.0, usual.min(least));
    });
    (least < COMFORT * keep && sum > 0.0).then(|| sum / count)
}

impl Fair {
    /// Updates the factor and the pulls from what the active tenants kept in the last interval.
    pub(super) fn balance(&mut self, now: Nanos, keep: f64) {
        let all_ppb = self.active_ppb as f64;
        for tenant in self.tenants.values_mut().filter(|tenant| tenant.active) {
            let part = tenant.kept.since(tenant.useful_ns, tenant.wanting_ns(now));
            tenant.kept.keeps(part * all_ppb / tenant.weight as f64);
        }
        let active = || self.tenants.values().filter(|tenant| tenant.active);
        let is_late =
            self.balance.look(now, keep, active().map(|tenant| (tenant.is_latency_bound(), tenant.kept.kept)));
        let mean =
            to_be_even(keep, active().filter(|tenant| !tenant.is_latency_bound()).map(|tenant| tenant.kept.usual));
        let is_even = |tenant: &Tenant| tenant.active && !tenant.is_latency_bound() && tenant.kept.usual.is_finite();
        let (mut weights, mut pulled) = (0.0, 0.0);
        for tenant in self.tenants.values_mut() {
            if !is_even(tenant) {
                // Latency-bound tenants keep the weight that they were promised, and a tenant that returns begins with
                // it.
                tenant.kept.pull = 1.0;
                continue;
            }
            if !is_late {
                tenant.kept.pull(mean);
            }
            weights += tenant.weight as f64;
            pulled += tenant.weight as f64 * tenant.kept.pull;
        }
        for tenant in self.tenants.values_mut().filter(|tenant| is_even(tenant)) {
            tenant.kept.pull = (tenant.kept.pull * weights / pulled).clamp(PULL.0, PULL.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Repeats the update with the same figures.
    fn looks(balance: &mut Balance, latency_bound: f64, backlogged: f64) -> f64 {
        for _ in 0..200 {
            let now = balance.looked_at + LOOK_NS;
            assert!(balance.is_due(now));
            balance.look(now, 0.9, [(true, latency_bound), (false, backlogged), (false, 5.0)].into_iter());
        }
        balance.factor()
    }

    #[test]
    fn who_keeps_least_is_helped_within_bounds() {
        let mut balance = Balance::default();
        assert_eq!(looks(&mut balance, 0.6, 2.0), FACTOR.0);
        assert_eq!(looks(&mut balance, 2.0, 0.6), FACTOR.1);
        assert!(looks(&mut balance, 2.0, 1.5) < 1.5, "nobody needs it any more");
    }

    #[test]
    fn it_settles_where_both_lose_the_same() {
        let mut balance = Balance::default();
        let mut kept = (0.0, 0.0);
        for _ in 0..200 {
            // The more the others have in flight, the less the latency-bound tenant keeps, and the more the others do.
            kept = (0.9 / (1.0 + 0.2 * balance.factor()), 0.3 * (1.0 + balance.factor()).sqrt());
            balance.look(balance.looked_at + LOOK_NS, 0.9, [(true, kept.0), (false, kept.1)].into_iter());
        }
        assert!((kept.0 - kept.1).abs() < 0.02, "{kept:?}");
    }

    #[test]
    fn backlogged_tenants_are_evened_out_while_one_lacks_something() {
        let mut tenants = [Kept::default(), Kept::default()];
        let looks = |gets: [f64; 2], tenants: &mut [Kept; 2]| {
            for _ in 0..500 {
                // Each tenant gets this much for its weight.
                tenants.iter_mut().zip(gets).for_each(|(tenant, gets)| tenant.keeps(gets * tenant.pull));
                let mean = to_be_even(0.9, tenants.iter().map(|tenant| tenant.usual));
                tenants.iter_mut().for_each(|tenant| tenant.pull(mean));
            }
            tenants.each_ref().map(|tenant| tenant.kept)
        };
        let [a, b] = looks([0.5, 1.5], &mut tenants);
        assert!((a / b - 1.0).abs() < 0.05 && a > 0.7, "{a} {b}");
        let [a, b] = looks([1.2, 2.0], &mut tenants);
        assert!((a - 1.2).abs() < 0.01 && (b - 2.0).abs() < 0.01, "nobody needs it any more: {a} {b}");
    }

    #[test]
    fn one_that_hardly_wants_anything_says_nothing() {
        let mut kept = Kept::default();
        assert_eq!(kept.since(1e6, LOOK_NS / 4), f64::INFINITY);
        assert_eq!(kept.since(1e6 + 3e7, LOOK_NS / 4 + 60 * MILLISECOND), 0.5);
    }
}
