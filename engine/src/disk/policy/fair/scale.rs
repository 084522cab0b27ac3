//! How much slower or faster the device is than its profile says, reads and writes apart.
//!
//! Told from windows in which the device was full all the time, with requests of one kind: then the costs of what it did add
//! up to the time that passed. Windows of both kinds say nothing: which of them slows the other down is not to be seen, and not
//! needed. Shares are parts of what a tenant gets alone, so the cost of reads is that of reads without writes beside them.
//!
//! A window in which the limits of this policy kept the device less than full says nothing either: otherwise what is held back
//! would look slow, and be held back more.

use super::price::Prices;
use crate::disk::Op;
use crate::disk::policy::Entry;
use crate::units::{MILLISECOND, Nanos};

/// Long enough for some hundred requests of a fast device, short enough that a queue stays full.
const WINDOW_NS: Nanos = 20 * MILLISECOND;
/// What a window weighs: an eighth of a second until the past is half forgotten.
const WEIGHT: f64 = 1.0 / 8.0;
/// So much of a window's cost is of one kind, or it says nothing.
const PURE: f64 = 0.95;
/// Factors beyond these are not believed: then the profile is of another device.
const BELIEVED: (f64, f64) = (1.0 / 8.0, 8.0);

#[derive(Debug)]
pub(super) struct Scale {
    read: f64,
    write: f64,
    window: Window,
}

#[derive(Default, Debug)]
struct Window {
    begun: Nanos,
    read_ns: f64,
    write_ns: f64,
    /// The least load in the device when a request came back.
    least_ppm: u64,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { read: 1.0, write: 1.0, window: Window::default() }
    }
}

impl Scale {
    pub(super) fn of(&self, op: Op) -> f64 {
        if op == Op::Read { self.read } else { self.write }
    }

    /// A request came back; with it, so much was in the device.
    pub(super) fn done(&mut self, now: Nanos, prices: &Prices, entry: &Entry, load_ppm: u64) {
        let window = &mut self.window;
        let sum = if entry.op == Op::Read { &mut window.read_ns } else { &mut window.write_ns };
        *sum += prices.cost_ns(entry.op, entry.len);
        window.least_ppm = window.least_ppm.min(load_ppm);
        let past = now - window.begun;
        if past < WINDOW_NS {
            return;
        }
        let full = window.least_ppm >= prices.knee_ppm() * 3 / 4;
        let (read, all) = (window.read_ns, window.read_ns + window.write_ns);
        // A throttle's rate is what it is; what is faster is saved up.
        if full && past < 2 * WINDOW_NS && !prices.is_throttled() {
            let found = past as f64 * prices.utilisation(window.least_ppm, 1) / all;
            let learn = |scale: &mut f64| *scale += WEIGHT * (found.clamp(BELIEVED.0, BELIEVED.1) - *scale);
            if read >= PURE * all {
                learn(&mut self.read);
            } else if all - read >= PURE * all {
                learn(&mut self.write);
            }
        }
        self.window = Window { begun: now, read_ns: 0.0, write_ns: 0.0, least_ppm: u64::MAX };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::IoId;

    /// A second of reads that cost `factor` times what they should, with so much in the device.
    fn second(scale: &mut Scale, op: Op, factor: f64, load_ppm: u64) {
        let (prices, len) = (Prices::default(), 4096);
        let each = (prices.cost_ns(op, len) * factor) as Nanos;
        for at in 1..1_000_000_000 / each {
            scale.done(at * each, &prices, &Entry { io: IoId(0), op, len, cost_ns: 0, follows: false }, load_ppm);
        }
    }

    #[test]
    fn a_slower_device_is_noticed_by_what_is_slower() {
        let mut scale = Scale::default();
        let write = Op::Write { durable: false };
        second(&mut scale, write, 3.0, 10_000_000);
        assert!((scale.of(write) - 3.0).abs() < 0.1 && scale.of(Op::Read) == 1.0, "{scale:?}");
    }

    #[test]
    fn a_device_that_is_not_full_is_not_slow() {
        let mut scale = Scale::default();
        second(&mut scale, Op::Read, 3.0, 1_000_000);
        assert_eq!(scale.of(Op::Read), 1.0);
    }
}
