//! The closed loop: clients that think, and a disk that is theirs for a share of the time.
//!
//! ```text
//!   N clients ─► think Z ─► queue ─► disk at rate share / service(n) ─┐        n: reads in the queue
//!       ▲                     │ empty before: wait W for a slice      │
//!       └─────────────────────┴───────────────────────────────────────┘
//! ```
//!
//! A Markov chain over n, solved exactly: think times, service times and the wait are exponential. Throughput is then
//! `X = (N - E[n]) / Z`, and the mean response `E[n] / X` (the interactive response time law). There is no parameter
//! to fit. Saturated, the response is that of the paper, `N service / share - Z`; with one client that seldom asks it
//! is service and wait.
//!
//! **The wait for a slice.** A round has length T, of which V = (1 - share) T belongs to others. The disk goes on for
//! the tenant while it has requests, so only a request that finds no other may have to wait. The last reply was at a
//! random time of the tenant's slice, and the next request comes after an exponential time of mean Y = Z / N. It comes
//! into a slice of others with probability `away`, and waits `residual` on average over all such requests:
//!
//! ```text
//!   before   = Y (1 - e^(-share T / Y)) / (share T)          P(the slice ends first)
//!   away     = before (1 - e^(-V / Y)) / (1 - e^(-T / Y))
//!   residual = before (V - Y (1 - e^(-V / Y))) / (1 - e^(-T / Y))
//! ```
//!
//! For short think times that is Y (1 - share) / share: what the tenant thinks in its slice, it pays for outside. For
//! long ones it is V² / 2T, the mean residual of the others' slices. The rate share / service in the chain already
//! contains part of the wait, as if slices were short; W is what exceeds it. A request that may interrupt waits only
//! `delay_ns`, as long as the tenant has unused time to pay with.
//!
//! Downside: service times of a disk vary less than exponential ones, so the wait behind others is slightly too long.
//! Where tenants end their slices early, the round is shorter than T, and so is the wait.

use super::evidence::{Interruption, Round};

/// The loop of one tenant. Times are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop<'a> {
    /// Time between a reply of the disk and the next read of the same client that the disk sees.
    pub(super) think_ns: f64,
    /// Disk time of write-back for each read that the disk sees.
    pub(super) write_back_ns: f64,
    /// Fraction of the disk, more than 0.
    pub(super) share: f64,
    /// Disk time of a read with 1, 2, … in the disk: one entry for each client.
    pub(super) service_ns: &'a [f64],
    /// How the disk is divided in time.
    pub(super) round: Option<Round>,
}

/// What follows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Response {
    /// Mean time of a read at the disk.
    pub(super) response_ns: f64,
    /// The part of it that is the wait for a slice, beyond that of the rate.
    pub(super) wait_ns: f64,
    /// Reads per nanosecond.
    pub(super) rate: f64,
}

/// Relative accuracy of the throughput, well below that of any input.
const ACCURACY: f64 = 1e-3;
/// Steps to that accuracy: each halves the interval at least.
const STEPS_MAX: usize = 24;
/// Think times below this change nothing beside a disk's, and above it the chain needs no limit.
const THINK_NS_MIN: f64 = 1.0;
/// Weights of states are rescaled beyond this.
const WEIGHT_MAX: f64 = 1e200;

impl Loop<'_> {
    /// The steady state.
    ///
    /// Write-back takes from the share what it needs at the throughput, and so do interruptions. More throughput leaves
    /// less for reads, so the solution is the only fixed point of a decreasing function. It lies between the function's
    /// value at the largest possible throughput and that throughput.
    pub(super) fn solve(&self) -> Response {
        let best_ns = self.service_ns.iter().copied().fold(f64::INFINITY, f64::min);
        let clients = self.service_ns.len() as f64;
        let mut high = (clients / (self.think_ns + best_ns)).min(self.time() / (best_ns + self.write_back_ns));
        let mut response = self.at(high);
        let mut low = response.rate;
        // What the function exceeds its argument by, at both ends.
        let (mut above, mut below) = (self.at(low).rate - low, response.rate - high);
        for _ in 0..STEPS_MAX {
            if high - low <= ACCURACY * high {
                break;
            }
            // Regula falsi; the middle where that would hardly move an end.
            let secant = low + (high - low) * above / (above - below);
            let margin = (high - low) / 16.0;
            let rate = if secant.is_finite() { secant.clamp(low + margin, high - margin) } else { (low + high) / 2.0 };
            response = self.at(rate);
            let excess = response.rate - rate;
            if excess.abs() <= ACCURACY * rate {
                break;
            }
            if excess > 0.0 {
                (low, above) = (rate, excess);
            } else {
                (high, below) = (rate, excess);
            }
        }
        response
    }

    /// The fraction of the disk's time that is useful to the tenant.
    fn time(&self) -> f64 {
        let loses = self.round.filter(|_| self.share < 1.0);
        self.share * loses.map_or(1.0, |round| round.efficiency)
    }

    /// The steady state if write-back and interruptions take what they need at this rate of reads.
    fn at(&self, rate: f64) -> Response {
        let time = self.time() - rate * self.write_back_ns;
        let wait_ns = self.round.filter(|_| self.share < 1.0).map_or(0.0, |round| self.wait_ns(round, rate));
        chain(self.think_ns.max(THINK_NS_MIN), time, wait_ns, self.service_ns)
    }

    /// W: what a request that finds no other waits for a slice, beyond what the rate contains.
    fn wait_ns(&self, round: Round, rate: f64) -> f64 {
        let (round_ns, share) = (round.round_ns, self.share);
        let (own, others) = (share * round_ns, (1.0 - share) * round_ns);
        let pause = self.think_ns.max(THINK_NS_MIN) / self.service_ns.len() as f64;
        let before = -(-own / pause).exp_m1() * pause / own;
        let turns = -(-round_ns / pause).exp_m1();
        let away = before * -(-others / pause).exp_m1() / turns;
        let residual = before * pause * past_linear(others / pause) / turns;
        let waited = match round.interruption {
            None => residual,
            Some(Interruption { delay_ns, cost_ns }) => {
                let service_ns = self.service_ns[0] + self.write_back_ns;
                let unused = (self.time() - rate * service_ns).max(0.0);
                let paid = (unused / (rate * away * cost_ns)).min(1.0);
                let paid = if paid.is_nan() { 1.0 } else { paid };
                paid * (away * delay_ns).min(residual) + (1.0 - paid) * residual
            }
        };
        let in_rate = away * self.service_ns[0] * (1.0 - share) / share;
        (waited - in_rate).max(0.0)
    }
}

/// x - 1 + e^(-x), also for small x.
fn past_linear(x: f64) -> f64 {
    if x < 1e-3 { x * x / 2.0 - x * x * x / 6.0 } else { x + (-x).exp_m1() }
}

/// The chain. Its states: n reads and the disk at work on them at rate `time / service_ns[n]`, or n reads that wait for
/// a slice, for `wait_ns` on average since the first came.
///
/// ```text
///   waiting(n) (arrivals(n) + 1 / wait) = arrivals(n - 1) waiting(n - 1)                  waiting(0): empty
///   served(n + 1) time / service(n + 1) = arrivals(n) (waiting(n) + served(n))            the cut above n
/// ```
fn chain(think_ns: f64, time: f64, wait_ns: f64, service_ns: &[f64]) -> Response {
    let clients = service_ns.len();
    let (mut waiting, mut served) = (1.0, 0.0);
    let (mut all, mut reads, mut throughput) = (1.0, 0.0, 0.0);
    let mut starts = clients as f64 / think_ns;
    for (n, service_ns) in (1..).zip(service_ns) {
        let arrivals = (clients - n + 1) as f64 / think_ns;
        let enters = arrivals * (waiting + served);
        // After the last client there are no arrivals, so the wait only ends.
        let leaves = (clients - n) as f64 / think_ns;
        waiting = if wait_ns > 0.0 { arrivals * waiting / (leaves + 1.0 / wait_ns) } else { 0.0 };
        served = enters * service_ns / time;
        all += waiting + served;
        reads += n as f64 * (waiting + served);
        throughput += enters;
        if all > WEIGHT_MAX {
            for weight in [&mut waiting, &mut served, &mut all, &mut reads, &mut throughput, &mut starts] {
                *weight /= WEIGHT_MAX;
            }
        }
    }
    Response { response_ns: reads / throughput, wait_ns: wait_ns * starts / throughput, rate: throughput / all }
}
