//! Who waits: the polite for the greedy in the device, or the greedy for room there.
//!
//! The less others have in flight, the sooner a polite tenant is answered, and the less of the device they can use. The formula
//! (`mod.rs`) starts from costs in flight being waited for one after the other. In truth a device may work beside them, or take
//! longer than they cost (reads behind programs). So the limit is moved by what all of them keep:
//!
//! ```text
//!   kept   = what a tenant's work would have taken alone / (share x time in which it wanted something)
//!   factor x= 1 + GAIN x (least kept of the polite - least kept of the greedy)        each capped at R and a little
//! ```
//!
//! When all keep R, the factor goes back to 1. It is bounded, and moves by a tenth in a tenth of a second at most.
//!
//! Downside: where the device cannot keep the promise to both, both lose the same part of it.

use crate::units::{MILLISECOND, Nanos};

/// Between looks: hundreds of requests of a fast device.
const LOOK_NS: Nanos = 100 * MILLISECOND;
/// How far it moves for a difference of 1.
const GAIN: f64 = 0.25;
/// The most at once.
const STEP: f64 = 0.1;
/// Back to 1, when there is no need for anything else.
const RETURN: f64 = 0.02;
/// Beyond R by so much, nobody needs help.
const COMFORT: f64 = 1.1;
/// Its bounds. Where no more than one request fits, less means nothing; the knee bounds it above.
const FACTOR: (f64, f64) = (1.0 / 4.0, 16.0);
/// A tenant that wanted something for less of the time is not asked.
const WANTED: f64 = 0.5;

/// What a tenant kept since the last look.
#[derive(Default, Debug)]
pub(super) struct Kept {
    useful_ns: f64,
    wanting_ns: Nanos,
}

impl Kept {
    /// Useful time by wanting time since the look before; of one that hardly wanted anything, infinite.
    pub(super) fn since(&mut self, useful_ns: f64, wanting_ns: Nanos) -> f64 {
        let wanted = (wanting_ns - self.wanting_ns) as f64;
        let ratio =
            if wanted < WANTED * LOOK_NS as f64 { f64::INFINITY } else { (useful_ns - self.useful_ns) / wanted };
        (self.useful_ns, self.wanting_ns) = (useful_ns, wanting_ns);
        ratio
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
    /// What the limit of the formula is multiplied by.
    pub(super) fn factor(&self) -> f64 {
        self.factor
    }

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now >= self.looked_at + LOOK_NS
    }

    /// What each tenant has kept of its share of late, the polite ones marked; `keep` is R.
    pub(super) fn look(&mut self, now: Nanos, keep: f64, kept: impl Iterator<Item = (bool, f64)>) {
        let is_late = now >= self.looked_at + 2 * LOOK_NS;
        self.looked_at = now;
        let mut least = [COMFORT * keep; 2];
        kept.for_each(|(is_polite, kept)| {
            let least = &mut least[usize::from(is_polite)];
            *least = least.min(kept);
        });
        let [greedy, polite] = least;
        if is_late {
            // After a pause: too little happened.
        } else if greedy == polite {
            self.factor += RETURN * (1.0 - self.factor);
        } else {
            self.factor *= 1.0 + (GAIN * (polite - greedy)).clamp(-STEP, STEP);
        }
        self.factor = self.factor.clamp(FACTOR.0, FACTOR.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at the same again and again.
    fn looks(balance: &mut Balance, polite: f64, greedy: f64) -> f64 {
        for _ in 0..200 {
            let now = balance.looked_at + LOOK_NS;
            assert!(balance.is_due(now));
            balance.look(now, 0.9, [(true, polite), (false, greedy), (false, 5.0)].into_iter());
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
            // The more in flight, the less the polite keep and the more the others.
            kept = (0.9 / (1.0 + 0.2 * balance.factor()), 0.3 * (1.0 + balance.factor()).sqrt());
            balance.look(balance.looked_at + LOOK_NS, 0.9, [(true, kept.0), (false, kept.1)].into_iter());
        }
        assert!((kept.0 - kept.1).abs() < 0.02, "{kept:?}");
    }

    #[test]
    fn one_that_hardly_wants_anything_says_nothing() {
        let mut kept = Kept::default();
        assert_eq!(kept.since(1e6, LOOK_NS / 4), f64::INFINITY);
        assert_eq!(kept.since(1e6 + 3e7, LOOK_NS / 4 + 60 * MILLISECOND), 0.5);
    }
}
