//! The closed loop: clients that think, and a disk that is theirs for a share of the time.
//!
//! ```text
//!   N clients ─► think Z ─► queue ─► disk: in own slices at rate 1 / service(n) ─┐     n: reads in the queue
//!       ▲                            in those of others: nothing                 │
//!       └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A Markov chain, solved exactly: its state is n, and whether the disk is in a slice of the tenant. Think times,
//! service times and slices are exponential. Throughput is then `X = (N - E[n]) / Z`, and the mean response `E[n] / X`
//! (the interactive response time law). There is no parameter to fit. Saturated, the response is that of the paper,
//! `N service / share - Z`.
//!
//! **Slices.** In a round of length T the tenant has `share T` and others have `V = (1 - share) T`. Slices have a fixed
//! length and those of the chain have not, so the chain uses half of both. Then its waits are right at both ends: a
//! client that seldom asks waits for `(1 - share) V / 2`, the mean residual of the others' slices, and one that thinks
//! for Z inside its slice waits for `(service + Z) V / share T` per request, as what it does in its slice takes the
//! whole round. (Exponential slices of full length would make the former twice as long.) In between, clients that
//! come in another tenant's slice accumulate, and all wait for its end. A slice ends with a completion, as a request
//! that overruns it is a debt of the next one; so slices of the chain are at least as long as a request.
//!
//! A request that may interrupt waits `delay_ns` for the disk instead, in the part of all cases that the tenant can pay
//! for with time that it does not use.
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
    /// The part of it in which others have the disk: the wait for slices. 0 without slices.
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
        let think_ns = self.think_ns.max(THINK_NS_MIN);
        let Some(round) = self.round.filter(|_| self.share < 1.0) else {
            return chain(think_ns, time, Slices::NONE, self.service_ns);
        };
        let speed = time / self.share;
        let longest_ns = self.service_ns.iter().copied().fold(0.0, f64::max) / speed;
        let own = (self.share * round.round_ns / 2.0).max(longest_ns);
        let others = own * (1.0 - self.share) / self.share;
        // Per nanosecond: interruptions while a request waits, and returns of the disk while none does.
        let interrupts = round.interruption.map_or(0.0, |Interruption { delay_ns, cost_ns }| {
            let unused = time - rate * self.service_ns[0];
            let paid = unused / (rate * (1.0 - self.share) * cost_ns);
            paid.clamp(0.0, 1.0) / delay_ns
        });
        let slices = Slices { begin: 1.0 / others, end: 1.0 / own, interrupts };
        chain(think_ns, speed, slices, self.service_ns)
    }
}

/// Rates, per nanosecond.
#[derive(Clone, Copy, Debug)]
struct Slices {
    /// Others' slices end.
    begin: f64,
    /// The tenant's slice ends.
    end: f64,
    /// A request that waits interrupts; and the disk goes back when there is none.
    interrupts: f64,
}

impl Slices {
    /// The tenant always has the disk.
    const NONE: Slices = Slices { begin: 1.0, end: 0.0, interrupts: 0.0 };
}

/// The chain. Its states: n reads, in a slice of the tenant (`own`) or not (`away`). `speed` is that of the disk in its
/// slices.
///
/// ```text
///   own(n + 1) speed / service(n + 1) = arrivals(n) (own(n) + away(n))                          cut above n
///   away(n) (arrivals(n) + begins)    = arrivals(n - 1) away(n - 1) + ends own(n + 1)           away(n)
///                                       (and ends own(0), if n is 0)
/// ```
///
/// The first replaces `own(n + 1)` in the second.
fn chain(think_ns: f64, speed: f64, slices: Slices, service_ns: &[f64]) -> Response {
    let clients = service_ns.len();
    let arrivals = |n: usize| (clients - n) as f64 / think_ns;
    // A slice ends with the request that is in service when its time is over.
    let ends = |n: usize| service_ns.get(n).map_or(0.0, |service_ns| slices.end * service_ns / speed * arrivals(n));
    let (mut own, mut away) = if slices.end > 0.0 {
        (arrivals(0) + slices.begin - ends(0), slices.end + slices.interrupts + ends(0))
    } else {
        (1.0, 0.0)
    };
    let (mut all, mut reads, mut waits, mut throughput) = (own + away, 0.0, 0.0, 0.0);
    for (n, service_ns) in (1..).zip(service_ns) {
        let enters = arrivals(n - 1) * (own + away);
        own = enters * service_ns / speed;
        let leaves = arrivals(n) + slices.begin + slices.interrupts - ends(n);
        away = (arrivals(n - 1) * away + ends(n) * own) / leaves;
        all += own + away;
        reads += n as f64 * (own + away);
        waits += n as f64 * away;
        throughput += enters;
        if all > WEIGHT_MAX {
            for weight in [&mut own, &mut away, &mut all, &mut reads, &mut waits, &mut throughput] {
                *weight /= WEIGHT_MAX;
            }
        }
    }
    Response { response_ns: reads / throughput, wait_ns: waits / throughput, rate: throughput / all }
}
