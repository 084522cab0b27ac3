//! The closed loop: clients that think, and a disk that is theirs for a share of the time.
//!
//! ```text
//!   N clients ─► think Z ─► queue ─► disk: in own slices at rate 1 / service(n) ─┐     n: reads in the queue
//!       ▲                            in those of others: nothing                 │
//!       └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A Markov chain, solved exactly: its state is n, and whether the disk is in a slice of the tenant. Think times,
//! service times and own slices are exponential; others' slices are a chain of phases. Throughput is then `X = (N -
//! E[n]) / Z`, and the mean response `E[n] / X` (the interactive response time law). There is no parameter to fit.
//! Saturated, the response is that of the paper, `N service / share - Z`.
//!
//! **Slices.** In a round of length T the tenant has `share T` and others have `V = (1 - share) T`. Of its slice the
//! tenant loses the context switch, and the end if its queue is empty then; V is that much longer. V has a fixed
//! length, and that of the chain has not (Erlang's distribution with [`PHASES`] phases), so the chain uses [`LENGTH`]
//! of both. Then its waits are right at both ends: a client that seldom asks waits for `(1 - share) V / 2`, the mean
//! residual of the others' slices, and one that thinks for Z inside its slice waits for `(service + Z) V / share T` per
//! request, as what it does in its slice takes the whole round. In between, clients that come in another tenant's slice
//! accumulate, and all wait for its end. A slice ends with a completion, as a request that overruns it is a debt of the
//! next one; so slices of the chain are at least as long as a request.
//!
//! **Write-back** takes disk time, and comes in batches: a read that meets one is delayed, beyond what write-back at an
//! even rate would take of the disk. The delay counts as think time in the chain.
//!
//! **Interruptions.** A tenant whose queue is empty keeps the disk for as long as having it back would cost, and then
//! gives it up: `max(cost, (delay + cost) share / (1 - share))`. If its pause Z / N is longer, each request that finds
//! no other interrupts another tenant's slice, and has the disk after `delay_ns`. It does so in the part of all cases
//! that the tenant can pay for with disk time that it does not use; otherwise it waits for its slice.
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
    /// By how much write-back delays a read, if it takes all disk time of the tenant.
    pub(super) delay_ns: f64,
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
const ACCURACY: f64 = 5e-3;
/// Steps to that accuracy: each halves the interval at least.
const STEPS_MAX: usize = 24;
/// Think times below this change nothing beside a disk's, and above it the chain needs no limit.
const THINK_NS_MIN: f64 = 1000.0;
/// Phases of other tenants' slices: more are more regular.
const PHASES: usize = 4;
/// Length of the chain's slices, of the true ones: the mean residual of the others' is then that of a fixed length.
const LENGTH: f64 = PHASES as f64 / (PHASES as f64 + 1.0);
/// The part of a slice that is lost at most: a slice serves a request in any case.
const LOSS_MAX: f64 = 0.5;
/// A disk that is given up at once is so after this part of a service.
const GIVES_UP: f64 = 100.0;
/// The chain counts weights from a state without requests in an own slice, so there must be one.
const LAST_MAX: f64 = 1.0 - 1e-9;
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
        let mut high = (clients / (self.think_ns + best_ns)).min(self.share / (best_ns + self.write_back_ns));
        let mut response = self.at(high);
        let mut low = response.rate;
        if high - low <= ACCURACY * high || self.is_constant() {
            return response;
        }
        // What the function exceeds its argument by, at both ends.
        let mut below = low - high;
        response = self.at(low);
        let mut above = response.rate - low;
        if above <= ACCURACY * low {
            return response;
        }
        for _ in 0..STEPS_MAX {
            if high - low <= ACCURACY * high {
                break;
            }
            // Regula falsi, in the Illinois variant: an end that stays counts half as much each time.
            let secant = low + (high - low) * above / (above - below);
            let margin = (ACCURACY * low / 2.0).min((high - low) / 16.0);
            let rate = if secant.is_finite() { secant.clamp(low + margin, high - margin) } else { (low + high) / 2.0 };
            response = self.at(rate);
            let excess = response.rate - rate;
            if excess.abs() <= ACCURACY * rate {
                break;
            }
            if excess > 0.0 {
                (low, above, below) = (rate, excess, below / 2.0);
            } else {
                (high, below, above) = (rate, excess, above / 2.0);
            }
        }
        response
    }

    /// Whether nothing depends on the throughput.
    fn is_constant(&self) -> bool {
        let depends = |round: Round| {
            let gives_up = round.interruption.is_some_and(|interruption| self.gives_up(&interruption));
            gives_up || round.loss.closing_ns > 0.0
        };
        self.write_back_ns == 0.0 && !self.slices().is_some_and(depends)
    }

    /// The round, if the tenant shares the disk in slices and their length is known.
    fn slices(&self) -> Option<Round> {
        self.round.filter(|round| self.share < 1.0 && round.others_ns > 0.0)
    }

    /// The steady state if write-back and interruptions take what they need at this rate of reads.
    fn at(&self, rate: f64) -> Response {
        let delay_ns = self.delay_ns * (rate * self.write_back_ns / self.share).min(1.0);
        let response = self.beside_writes(rate, (self.think_ns + delay_ns).max(THINK_NS_MIN));
        Response { response_ns: response.response_ns + delay_ns, ..response }
    }

    /// The same without the delay by batches of write-back, in which a client thinks as far as others are concerned.
    fn beside_writes(&self, rate: f64, think_ns: f64) -> Response {
        let time = self.share - rate * self.write_back_ns;
        let Some(round) = self.slices() else {
            return chain(think_ns, time, Slices::NONE, self.service_ns);
        };
        let speed = time / self.share;
        let longest_ns = self.service_ns.iter().copied().fold(0.0, f64::max) / speed;
        let idle = (1.0 - rate * self.service_ns[0] / time).max(0.0);
        let round_ns = round.round_ns(self.share);
        let slice_ns = self.share * round_ns;
        let loss_ns = (round.loss.switch_ns + round.loss.closing_ns * idle).min(LOSS_MAX * slice_ns);
        let own_ns = ((slice_ns - loss_ns) * LENGTH).max(longest_ns);
        let others_ns = own_ns * (round_ns - slice_ns + loss_ns) / (slice_ns - loss_ns);
        let slices = match round.interruption.filter(|interruption| self.gives_up(interruption)) {
            None => Slices { begin: 1.0 / others_ns, begin_idle: 1.0 / others_ns, end: 1.0 / own_ns, give_up: 0.0 },
            Some(Interruption { delay_ns, cost_ns }) => {
                let service_ns = self.service_ns[0];
                let interruptions = rate.min(1.0 / (self.pause_ns() + service_ns));
                let unused = (time - rate * service_ns).max(0.0);
                let paid = (unused / (interruptions * cost_ns)).min(1.0);
                let wait_ns = paid * delay_ns.min(others_ns) + (1.0 - paid) * others_ns;
                let give_up = GIVES_UP * speed / service_ns;
                Slices { begin: 1.0 / wait_ns, begin_idle: 0.0, end: 1.0 / own_ns, give_up }
            }
        };
        chain(think_ns, speed, slices, self.service_ns)
    }

    /// Mean time until the next request after the queue was empty.
    fn pause_ns(&self) -> f64 {
        self.think_ns / self.service_ns.len() as f64
    }

    /// Whether the tenant gives the disk up when its queue is empty, instead of having it wait for the next request.
    fn gives_up(&self, interruption: &Interruption) -> bool {
        let Interruption { delay_ns, cost_ns } = *interruption;
        self.pause_ns() > cost_ns.max((delay_ns + cost_ns) * self.share / (1.0 - self.share))
    }
}

/// Rates, per nanosecond.
#[derive(Clone, Copy, Debug)]
struct Slices {
    /// The disk comes to a tenant that waits for it.
    begin: f64,
    /// The disk comes to a tenant that has no request.
    begin_idle: f64,
    /// The tenant's slice ends.
    end: f64,
    /// The tenant gives the disk up, as it has no request.
    give_up: f64,
}

impl Slices {
    /// The tenant always has the disk.
    const NONE: Slices = Slices { begin: 1.0, begin_idle: 1.0, end: 0.0, give_up: 0.0 };
}

/// The chain. Its states: n reads, in a slice of the tenant (`own`) or in phase j of the others' (`away`). `speed` is
/// that of the disk in its slices.
///
/// ```text
///   own(n + 1) speed / service(n + 1)  = arrivals(n) (own(n) + away(n))                         cut above n
///   away(n, j) (arrivals(n) + passes)  = arrivals(n - 1) away(n - 1, j) + comes(n, j)           balance of away(n, j)
///
///   passes = PHASES begins; comes(n, j) = passes away(n, j - 1); comes(n, 1) = ends own(n + 1);
///   comes(0, 1) has (ends + gives up) own(0), too
/// ```
///
/// The first replaces `own(n + 1)` in the second, where all phases are linear in the first one.
fn chain(think_ns: f64, speed: f64, slices: Slices, service_ns: &[f64]) -> Response {
    // Planning for many tenants is mostly this function, so what one state adds to the next is computed without a
    // division.
    let (clients, per_client, per_speed) = (service_ns.len(), 1.0 / think_ns, 1.0 / speed);
    let arrivals = |n: usize| (clients - n) as f64 * per_client;
    let mut own = 1.0;
    let mut away = [0.0; PHASES];
    let phases = |n: usize, own: f64, before: [f64; PHASES], comes: f64| {
        let passes = PHASES as f64 * if n == 0 { slices.begin_idle } else { slices.begin };
        let arrivals = arrivals(n);
        let leaves = arrivals + passes;
        let stays = 1.0 / leaves;
        // The part of services in which a slice ends, so that the request is the last one of it.
        let last = service_ns.get(n).map_or(0.0, |service_ns| (slices.end * service_ns * per_speed).min(LAST_MAX));
        // Phase j is fixed[j] + slope[j] x the first one.
        let step = passes * stays;
        let (mut fixed, mut slope) = ([0.0; PHASES], [1.0; PHASES]);
        for j in 1..PHASES {
            fixed[j] = before[j] * stays + step * fixed[j - 1];
            slope[j] = step * slope[j - 1];
        }
        let ends = last * arrivals * (own + fixed.iter().sum::<f64>());
        // = 1 / (leaves - last x arrivals x the sum of slopes), without the difference.
        let per_first = stays / ((1.0 - last) + last * step * slope[PHASES - 1]);
        let first = (before[0] + comes + ends) * per_first;
        std::array::from_fn::<_, PHASES, _>(|j| fixed[j] + slope[j] * first)
    };
    if slices.end > 0.0 {
        away = phases(0, own, away, (slices.end + slices.give_up) * own);
    }
    let sum = |away: &[f64; PHASES]| away.iter().sum::<f64>();
    let (mut all, mut reads, mut waits, mut throughput) = (own + sum(&away), 0.0, 0.0, 0.0);
    let mut waiting = sum(&away);
    for (n, service_ns) in (1..).zip(service_ns) {
        let arrive = arrivals(n - 1);
        let enters = arrive * (own + waiting);
        own = enters * service_ns * per_speed;
        if slices.end > 0.0 {
            away = phases(n, own, away.map(|away| arrive * away), 0.0);
            waiting = sum(&away);
        }
        all += own + waiting;
        reads += n as f64 * (own + waiting);
        waits += n as f64 * waiting;
        throughput += enters;
        if all > WEIGHT_MAX {
            let weights = [&mut own, &mut all, &mut reads, &mut waits, &mut throughput, &mut waiting];
            weights.into_iter().chain(&mut away).for_each(|weight| *weight /= WEIGHT_MAX);
        }
    }
    Response { response_ns: reads / throughput, wait_ns: waits / throughput, rate: throughput / all }
}
