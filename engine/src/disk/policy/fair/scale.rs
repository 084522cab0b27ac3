//! Corrections of the profile's costs, by kind of request: how much slower or faster the device serves it when no other
//! tenant uses the device.
//!
//! They are derived from windows in which only one tenant had demand: there the expected time of its requests
//! (`mod.rs`: cost divided by the utilisation that they reach) equals its time with demand. They are also derived from
//! windows of several tenants in which the device was full with one kind of requests: there the costs add up to the
//! elapsed time.
//!
//! ```text
//!   found    = time / expected time                               in a window of 20 ms
//!   factor  += (found - 1) x factor x the kind's part of it / 8   per direction: one small, several small, large ones
//! ```
//!
//! Windows of several tenants and kinds are not used: they do not show which kind slows down which, and need not.
//! Shares are fractions of standalone throughput, so reads cost what they cost without concurrent writes. Windows of
//! several tenants in which this policy's limits kept the device less than full are not used either: requests that are
//! held back would look slow, and would be held back more.
//!
//! Source: `docs/design/fair.md`; the update is that of normalised least mean squares (Widrow and Hoff 1960), each kind
//! by its part. Downside: the costs of a tenant that is never alone are those of the profile, or of windows full of
//! other tenants' requests of its kind.

use crate::disk::Op;
use crate::disk::policy::Prices;
use crate::ids::TenantId;
use crate::units::{MILLISECOND, Nanos};

/// Length of a window: some hundred requests of a fast device, and so short that a queue stays full.
const WINDOW_NS: Nanos = 20 * MILLISECOND;
/// Shortest time with demand in a window of one tenant: a dozen requests of a fast device. A window with less is not
/// used.
const WANTED_NS: Nanos = MILLISECOND;
/// Weight of a window: after an eighth of a second the past is half forgotten.
const WEIGHT: f64 = 1.0 / 8.0;
/// Part of a window of several tenants that must be of one kind; other windows are not used.
const PURE: f64 = 0.95;
/// Bounds of the factors. Beyond them the profile is that of another device.
const BELIEVED: (f64, f64) = (1.0 / 8.0, 8.0);
/// From this size on a request is large: its cost follows from its bytes.
const LARGE_BYTES: u64 = 16 << 10;
/// Number of kinds of reads, and of writes.
const KINDS: usize = 3;

/// The kind of a request, as factors distinguish them; `beside` if other requests of its tenant are outstanding.
fn kind(op: Op, len: u64, beside: bool) -> usize {
    let size = if len >= LARGE_BYTES { 2 } else { usize::from(beside) };
    size + if op == Op::Read { 0 } else { KINDS }
}

#[derive(Debug)]
pub(super) struct Scale {
    factors: [f64; 2 * KINDS],
    window: Window,
}

/// The tenants with demand in a window: one, or several.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) enum Who {
    #[default]
    Several,
    /// A tenant, and its time with demand so far, without think time.
    One(TenantId, Nanos),
}

#[derive(Default, Debug)]
struct Window {
    begun: Nanos,
    who: Who,
    /// Expected time of the requests, by kind.
    expected_ns: [f64; 2 * KINDS],
    /// The lowest load in the device at a completion.
    least_ppm: Option<u64>,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { factors: [1.0; 2 * KINDS], window: Window::default() }
    }
}

impl Scale {
    /// The factor of the profile's cost.
    pub(super) fn of(&self, op: Op, len: u64, beside: bool) -> f64 {
        self.factors[kind(op, len, beside)]
    }

    /// A request completed whose expected time is `expected_ns` of its tenant's time; the load in the device was
    /// `load_ppm`, this request included.
    pub(super) fn done(
        &mut self,
        now: Nanos,
        prices: &Prices,
        request: (Op, u64, bool),
        expected_ns: f64,
        load_ppm: u64,
        who: Who,
    ) {
        let window = &mut self.window;
        let past_ns = match (window.who, who) {
            (Who::Several, Who::Several) => now - window.begun,
            // Less than before: the number belongs to another tenant now.
            (Who::One(before, from), Who::One(after, to)) if before == after && from <= to => to - from,
            _ => {
                *window = Window { begun: now, who, ..Window::default() };
                return;
            }
        };
        let (op, len, beside) = request;
        window.expected_ns[kind(op, len, beside)] += expected_ns;
        let least_ppm = window.least_ppm.map_or(load_ppm, |least| least.min(load_ppm));
        window.least_ppm = Some(least_ppm);
        let lasted_ns = now - window.begun;
        if lasted_ns < WINDOW_NS {
            return;
        }
        let all_ns: f64 = window.expected_ns.iter().sum();
        let is_pure = window.expected_ns.iter().any(|&of| of >= PURE * all_ns);
        // A window with a pause shows too little.
        let says = match who {
            Who::One(..) => past_ns >= WANTED_NS,
            Who::Several => is_pure && least_ppm >= prices.knee_ppm() * 3 / 4 && lasted_ns < 2 * WINDOW_NS,
        };
        // A throttle's rate is fixed; a faster one comes from a saved-up burst.
        if says && !prices.is_throttled() {
            let found = past_ns as f64 / all_ns;
            for (factor, expected_ns) in self.factors.iter_mut().zip(window.expected_ns) {
                let step = WEIGHT * (found.clamp(BELIEVED.0, BELIEVED.1) - 1.0) * expected_ns / all_ns;
                *factor = (*factor * (1.0 + step)).clamp(BELIEVED.0, BELIEVED.1);
            }
        }
        *window = Window { begun: now, who, ..Window::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Op = Op::Write { durable: false };

    /// Two seconds of requests that take `factor` times what the profile says, at this load in the device.
    fn seconds(scale: &mut Scale, op: Op, factor: f64, load_ppm: u64, alone: bool) {
        let (prices, len) = (Prices::default(), 4096);
        let each = (prices.cost_ns(op, len) * factor) as Nanos;
        for at in 1..2_000_000_000 / each {
            let who = if alone { Who::One(TenantId(1), at * each) } else { Who::Several };
            let expected_ns = prices.cost_ns(op, len) * scale.of(op, len, true);
            scale.done(at * each, &prices, (op, len, true), expected_ns, load_ppm, who);
        }
    }

    #[test]
    fn a_slower_device_is_noticed_by_what_is_slower() {
        for alone in [false, true] {
            let mut scale = Scale::default();
            seconds(&mut scale, WRITE, 3.0, 10_000_000, alone);
            let [write, read, large] =
                [(WRITE, 4096), (Op::Read, 4096), (WRITE, 1 << 20)].map(|(op, len)| scale.of(op, len, true));
            assert!((write - 3.0).abs() < 0.1 && (read, large) == (1.0, 1.0), "{scale:?}");
        }
    }

    #[test]
    fn a_device_that_is_not_full_is_slow_only_if_nobody_else_is_there() {
        let mut scale = Scale::default();
        seconds(&mut scale, Op::Read, 3.0, 1_000_000, false);
        assert_eq!(scale.of(Op::Read, 4096, true), 1.0);
        seconds(&mut scale, Op::Read, 3.0, 1_000_000, true);
        assert!((scale.of(Op::Read, 4096, true) - 3.0).abs() < 0.1);
    }

    #[test]
    fn a_mixture_is_corrected_as_a_whole() {
        let (mut scale, prices) = (Scale::default(), Prices::default());
        let (mut now, mut expected_ns) = (0, 0.0);
        for at in 0..100_000 {
            let len = if at % 10 == 0 { 64 << 10 } else { 4096 };
            expected_ns = prices.cost_ns(Op::Read, len) * scale.of(Op::Read, len, true);
            now += (2.0 * prices.cost_ns(Op::Read, len)) as Nanos;
            scale.done(now, &prices, (Op::Read, len, true), expected_ns, 1_000_000, Who::One(TenantId(0), now));
        }
        let whole = |scale: &Scale| {
            [(4096, 9.0), (64 << 10, 1.0)]
                .map(|(len, n)| n * prices.cost_ns(Op::Read, len) * scale.of(Op::Read, len, true))
        };
        let found: f64 = whole(&scale).iter().sum::<f64>() / whole(&Scale::default()).iter().sum::<f64>();
        assert!((found - 2.0).abs() < 0.1, "{found} {expected_ns}");
    }
}
