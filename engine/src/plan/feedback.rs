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
//! longer than another. The difference is not explained, but measured.

use super::evidence::Facts;
use crate::units::{Nanos, SECOND};

/// Length of a measurement: at least five of the longest usual rounds.
const WINDOW_NS: Nanos = 10 * SECOND;
/// The part of a window for which a tenant must want the disk: else it did not want all of its disk time.
const WANTED: f64 = 0.98;
/// Weight of a new measurement: three of them, half a minute, count for two thirds.
const GAIN: f64 = 0.3;
/// The largest shortfall that is believed: more is not a loss but a fault.
const MOST: f64 = 0.3;

/// The feedback on one tenant.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Feedback {
    /// The beginning of the measurement, useful time and time in which it wanted the disk then.
    since: Option<(Nanos, Nanos, Nanos)>,
    shortfall: f64,
}

impl Feedback {
    /// Measures a tenant for which the plan expects the part `weight` of the disk and the R_time `planned`.
    pub(super) fn look(&mut self, now: Nanos, facts: &Facts, weight: f64, planned: f64) {
        let began_anew = |useful: Nanos| facts.useful_ns < useful / 2;
        let Some((at, useful, wanting)) = self.since.filter(|&(_, useful, _)| !began_anew(useful)) else {
            self.since = Some((now, facts.useful_ns, facts.wanted_ns));
            return;
        };
        let past = (now - at) as f64;
        if now < at + WINDOW_NS {
            return;
        }
        self.since = Some((now, facts.useful_ns, facts.wanted_ns));
        if (facts.wanted_ns - wanting) as f64 >= WANTED * past {
            let measured = facts.useful_ns.saturating_sub(useful) as f64 / (weight * past);
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
                useful_ns: window * useful * SECOND,
                wanted_ns: window * wanting * SECOND,
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
}
