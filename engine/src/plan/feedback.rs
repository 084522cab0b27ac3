//! Feedback: what a tenant measurably lacks of the disk time that the plan expects for it.
//!
//! ```text
//!   R_time planned   = 1 - loss / slice, of the slices that the tenant has
//!   R_time measured  = standalone-equivalent time of its work / (its part of the disk x time), while it wants it
//!   shortfall        = mean of planned - measured, at least 0      ─► subtracted from R_time planned
//! ```
//!
//! The loss per slice is an average of what the meter sees. It does not have what is lost between slices: a slice that
//! ends early because the next request does not fit, a long overrun of another tenant, places that make one switch
//! longer than another. The difference is not explained, but measured.
//!
//! A measurement lasts from the end of one slice of the tenant to the end of another, so it has whole rounds. From one
//! time to another it would have a slice more or less: 0.1 of what a tenant gets in ten rounds. What exceeds the plan
//! is remembered like what lacks, as most of both is due to slices that follow each other unevenly.

use super::evidence::Facts;
use crate::units::{Nanos, SECOND};

/// Length of a measurement: at least five of the longest usual rounds.
const WINDOW_NS: Nanos = 10 * SECOND;
/// The part of a window for which a tenant must want the disk: else it did not want all of its disk time.
const WANTED: f64 = 0.98;
/// Weight of a new measurement: three of them, half a minute, count for two thirds.
const GAIN: f64 = 0.3;
/// Windows that count for two thirds of the mean.
const WINDOWS_KNOWN: u32 = 3;
/// The largest shortfall that is believed: more is not a loss but a fault.
const MOST: f64 = 0.3;
/// The largest excess that is remembered: one long slice in a window. More is time that others did not use, and must
/// not hide what lacks when they do.
const EXCESS_MOST: f64 = 0.05;

/// The beginning of a measurement.
#[derive(Clone, Copy, Debug)]
struct Mark {
    now: Nanos,
    wanted_ns: Nanos,
    /// The end of the last slice, and useful time until then.
    ended: Nanos,
    useful_ns: Nanos,
}

/// The feedback on one tenant.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Feedback {
    since: Option<Mark>,
    /// Mean of planned - measured.
    lacks: f64,
    /// Number of windows in a row that were measured.
    windows: u32,
}

impl Feedback {
    /// Measures a tenant that is to have the part `weight` of the disk.
    pub(super) fn look(&mut self, now: Nanos, facts: &Facts, weight: f64) {
        let Facts { wanted_ns, ended, useful_ns, .. } = *facts;
        let mark = Mark { now, wanted_ns, ended, useful_ns };
        let began_anew = |before: Mark| useful_ns < before.useful_ns / 2;
        let Some(since) = self.since.filter(|&before| !began_anew(before)) else {
            self.since = Some(mark);
            return;
        };
        let past_ns = ended.saturating_sub(since.ended);
        if past_ns < WINDOW_NS {
            return;
        }
        self.since = Some(mark);
        if (wanted_ns - since.wanted_ns) as f64 >= WANTED * (now - since.now) as f64 {
            self.windows = self.windows.saturating_add(1);
            let measured = useful_ns.saturating_sub(since.useful_ns) as f64 / (weight * past_ns as f64);
            self.lacks = (self.lacks + GAIN * (facts.efficiency() - measured - self.lacks)).clamp(-EXCESS_MOST, MOST);
        } else {
            self.windows = 0;
        }
    }

    /// Whether its R_time is known by measurement: it has wanted the disk all the time lately.
    pub(super) fn is_measured(&self) -> bool {
        self.windows >= WINDOWS_KNOWN
    }

    /// What the tenant lacks of its R_time.
    pub(super) fn shortfall(&self) -> f64 {
        self.lacks.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::spec::TenantSpec;

    /// A tenant with half a disk and slices of which it loses a twentieth: what it did until the end of its last slice.
    fn facts(ended: Nanos, useful_ns: Nanos, wanted_ns: Nanos) -> Facts {
        Facts {
            tenant: TenantId(0),
            created: 0,
            spec: TenantSpec::default(),
            kept: 0,
            decided: None,
            loss_ns: Some(SECOND / 20),
            burst_ns: 0,
            slice_ns: SECOND,
            parts: 1,
            useful_ns,
            ended,
            wanted_ns,
        }
    }

    /// After twenty windows in each of which it does `useful` seconds of work and wants the disk for `wanting`.
    fn after(useful: Nanos, wanting: Nanos) -> f64 {
        let mut feedback = Feedback::default();
        for window in 0..=20 {
            let now = window * WINDOW_NS;
            feedback.look(now, &facts(now, window * useful * SECOND, window * wanting * SECOND), 0.5);
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

    /// A look each second, while each round is as long as two slices: nearly as long as two looks, so that the looks
    /// see more slices at one time than at another.
    #[test]
    fn who_gets_what_was_planned_lacks_nothing_whenever_that_is_looked_at() {
        let (slice, mut feedback) = (SECOND * 9 / 10, Feedback::default());
        for now in (0..600).map(|second| second * SECOND) {
            let rounds = now / (2 * slice);
            feedback.look(now, &facts(rounds * 2 * slice, rounds * slice * 95 / 100, now), 0.5);
            assert!(feedback.shortfall() < 1e-9, "{} at {now}", feedback.shortfall());
        }
    }
}
