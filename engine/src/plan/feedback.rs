//! Feedback: what a tenant measurably lacks of the disk time that the plan expects for it.
//!
//! ```text
//!   R_time planned   = 1 - loss / slice
//!   R_time measured  = standalone-equivalent time of its work / (its part of the disk x time), while it wants it
//!   shortfall        = mean of planned - measured, at least 0      ─► subtracted from R_time planned
//! ```
//!
//! The loss per slice is an average of what the meter sees. It does not have what is lost between slices: a slice that
//! ends early because the next request does not fit, a long overrun of another tenant, places that make one switch
//! longer than another. The difference is not explained, but measured. What a fault of the disk takes is no loss: while
//! requests hang, or the device completes nothing, nothing is measured.

use super::evidence::Facts;
use crate::units::{Nanos, SECOND};

/// Length of a measurement: at least five of the longest usual rounds.
const WINDOW_NS: Nanos = 10 * SECOND;
/// The part of a window for which a tenant must want the disk: else it did not want all of its disk time.
const WANTED: f64 = 0.98;
/// Weight of a new measurement: three of them, half a minute, count for two thirds.
const GAIN: f64 = 0.3;
/// The largest shortfall that is believed: with more, no slice would be long enough.
const MOST: f64 = 0.3;

/// The totals at the beginning of a measurement.
#[derive(Clone, Copy, Debug)]
struct Since {
    at: Nanos,
    useful_ns: Nanos,
    wanted_ns: Nanos,
    faults: u64,
}

/// The feedback on one tenant.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Feedback {
    /// The beginning of the measurement, and what was known then.
    since: Option<Since>,
    shortfall: f64,
}

impl Feedback {
    /// Measures a tenant for which the plan expects the part `weight` of the disk and the R_time `planned`.
    pub(super) fn look(&mut self, now: Nanos, facts: &Facts, weight: f64, planned: f64) {
        let Some(faults) = facts.faults else {
            self.since = None;
            return;
        };
        let is_comparable = |since: &Since| since.faults == faults && facts.useful_ns >= since.useful_ns / 2;
        let begins = Since { at: now, useful_ns: facts.useful_ns, wanted_ns: facts.wanted_ns, faults };
        let Some(since) = self.since.filter(is_comparable) else {
            self.since = Some(begins);
            return;
        };
        let past = (now - since.at) as f64;
        if now < since.at + WINDOW_NS {
            return;
        }
        self.since = Some(begins);
        if (facts.wanted_ns - since.wanted_ns) as f64 >= WANTED * past {
            let measured = facts.useful_ns.saturating_sub(since.useful_ns) as f64 / (weight * past);
            self.shortfall = (self.shortfall + GAIN * (planned - measured - self.shortfall)).clamp(0.0, MOST);
        }
    }

    /// What the tenant lacks of its R_time.
    pub(super) fn shortfall(&self) -> f64 {
        self.shortfall
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::spec::TenantSpec;

    /// After twenty windows in each of which a tenant with half a disk does `useful` seconds of work and wants it for
    /// `wanting`.
    fn after(useful: Nanos, wanting: Nanos) -> f64 {
        beside(useful, wanting, |_| Some(0))
    }

    /// The same, with faults of the disk by window.
    fn beside(useful: Nanos, wanting: Nanos, faults: impl Fn(u64) -> Option<u64>) -> f64 {
        let mut feedback = Feedback::default();
        for window in 0..=20 {
            let facts = Facts {
                tenant: TenantId(0),
                created: 0,
                spec: TenantSpec::default(),
                kept: 0,
                decided: None,
                loss_ns: None,
                burst_ns: 0,
                streams_lack: 0.0,
                has_divided_streams: false,
                useful_ns: window * useful * SECOND,
                wanted_ns: window * wanting * SECOND,
                faults: faults(window),
            };
            feedback.look(window * WINDOW_NS, &facts, 0.5, 0.95);
        }
        feedback.shortfall()
    }

    #[test]
    fn who_gets_less_than_planned_lacks_the_difference() {
        assert!((after(4, 10) - 0.15).abs() < 1e-3, "{}", after(4, 10));
        assert_eq!(after(5, 10), 0.0, "more than planned");
        assert_eq!(after(1, 9), 0.0, "it did not want more");
        assert_eq!(after(0, 10), MOST);
    }

    #[test]
    fn what_a_fault_takes_is_no_loss() {
        assert_eq!(beside(0, 10, Some), 0.0, "each window has one");
        assert_eq!(beside(0, 10, |_| None), 0.0, "it lasts");
        assert!(beside(0, 10, |window| (window != 10).then_some(0)) > 0.2, "the other windows count");
    }
}
