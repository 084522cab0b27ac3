//! Zipf-distributed ranks in constant time and memory, for any number of ranks and any exponent.
//!
//! Rejection-inversion: W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
//! distributions", ACM TOMACS 6(3), 1996, section 4 (there `q` = exponent, `v` = 1). The usual alternative (Gray et
//! al., SIGMOD 1994, as in YCSB) first needs a sum over all ranks, and an exponent below 1. Logarithms come from `libm`
//! and not from the system's library, so a seed gives the same ranks on every machine.

use crate::rng::Rng;

/// Ranks 1 to `n`; rank k has a probability proportional to k^-exponent.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    /// H(1.5) - h(1): the lower end of the inversion.
    low: f64,
    /// H(n + 0.5): its upper end.
    high: f64,
    /// A rank within this distance of the inverted value is accepted without further test.
    squeeze: f64,
}

impl Zipf {
    /// A distribution over `n` ranks, at least 1.
    pub fn new(n: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { n: n.max(1) as f64, exponent, low: 0.0, high: 0.0, squeeze: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.n + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// A random rank, from 1.
    pub fn rank(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + unit(rng) * (self.low - self.high);
            let x = self.inverse(u);
            let k = libm::round(x).clamp(1.0, self.n);
            if k - x <= self.squeeze || u >= self.integral(k + 0.5) - self.density(k) {
                return k as u64;
            }
        }
    }

    /// h(x) = x^-exponent.
    fn density(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// H(x), the integral of h from 1 to x: (x^(1-q) - 1) / (1 - q), or ln x at q = 1.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        log * expm1_over((1.0 - self.exponent) * log)
    }

    fn inverse(&self, y: f64) -> f64 {
        // Rounding may carry it past the pole of the logarithm.
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        libm::exp(y * log1p_over(t))
    }
}

/// A uniform random number, at least 0 and below 1.
pub fn unit(rng: &mut Rng) -> f64 {
    (rng.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// (e^x - 1) / x, accurate also near 0.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { libm::expm1(x) / x } else { 1.0 + x / 2.0 }
}

/// ln(1 + x) / x, accurate also near 0.
fn log1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { libm::log1p(x) / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frequency of the first ranks matches the definition within five standard deviations.
    #[test]
    fn ranks_are_as_frequent_as_the_definition_says() {
        for exponent in [0.5, 0.99, 1.0, 1.5, 3.0] {
            let (n, draws) = (1000u64, 200_000u64);
            let (zipf, mut rng) = (Zipf::new(n, exponent), Rng::new(5));
            let mut counts = vec![0u64; n as usize + 1];
            (0..draws).for_each(|_| counts[zipf.rank(&mut rng) as usize] += 1);
            let sum: f64 = (1..=n).map(|k| (k as f64).powf(-exponent)).sum();
            for k in [1, 2, 3, 10, 100] {
                let p = (k as f64).powf(-exponent) / sum;
                let (expected, deviation) = (p * draws as f64, (draws as f64 * p * (1.0 - p)).sqrt());
                let error = (counts[k as usize] as f64 - expected).abs();
                assert!(error <= 5.0 * deviation + 1.0, "exponent {exponent}, rank {k}: {error} off {expected}");
            }
        }
    }

    #[test]
    fn few_and_many_ranks() {
        let mut rng = Rng::new(1);
        assert_eq!(Zipf::new(1, 0.99).rank(&mut rng), 1);
        for exponent in [0.01, 0.99, 10.0] {
            let zipf = Zipf::new(1 << 48, exponent);
            assert!((0..1000).all(|_| (1..=1 << 48).contains(&zipf.rank(&mut rng))));
        }
    }
}
