//! The length of a cluster's round: so long that every slice on every server keeps R.
//!
//! ```text
//!   a slice loses loss, so it must last     need   = loss / (1 - R)          (each server: its meter, `TenantPlan`)
//!   it lasts a part of the round            length = share x R of the cluster
//!   the largest need / length               round, at most the longest round of any server
//! ```
//!
//! Source: Argon (Wachs et al., FAST 2007), section 3.4, for all servers together: DESIGN 7.4.

use crate::units::{MILLISECOND, Nanos};

/// The shortest round: the clocks of servers differ by up to a millisecond, which is a hundredth of it.
pub const ROUND_NS_MIN: Nanos = 100 * MILLISECOND;
/// A round that is longer than needed by less than this factor stays: each change costs up to two rounds.
const SLACK: f64 = 1.4;
/// A round that needs to be longer is made longer by this factor more: needs are measured, and vary.
const RESERVE: f64 = 1.1;

/// What one tenant needs on one server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Need {
    /// The shortest slice with which it keeps R.
    pub slice_ns: Nanos,
    /// Its slice, as a part of the round.
    pub length: f64,
}

/// The round for these needs. The present one stays while it is long enough and not much too long.
pub fn round_ns(present_ns: Option<Nanos>, needs: impl IntoIterator<Item = Need>, round_ns_max: Nanos) -> Nanos {
    let of = |need: Need| need.slice_ns as f64 / need.length;
    let needed = needs.into_iter().map(of).fold(0.0, f64::max).max(ROUND_NS_MIN as f64);
    let fits = |&present: &Nanos| {
        let present = present as f64;
        present <= round_ns_max as f64 && (needed.min(round_ns_max as f64)..needed * RESERVE * SLACK).contains(&present)
    };
    present_ns.filter(fits).unwrap_or((needed * RESERVE) as Nanos).min(round_ns_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = MILLISECOND;

    fn round(present_ms: Option<u64>, needs: &[(u64, f64)]) -> Nanos {
        let needs = needs.iter().map(|&(ms, length)| Need { slice_ns: ms * MS, length });
        round_ns(present_ms.map(|ms| ms * MS), needs, 2000 * MS) / MS
    }

    #[test]
    fn the_tenant_that_needs_most_for_its_part_decides() {
        assert_eq!(round(None, &[(50, 0.25), (100, 0.5), (90, 0.25)]), 396);
        assert_eq!(round(None, &[(1, 0.5)]), 110, "not below the shortest");
        assert_eq!(round(None, &[(900, 0.25)]), 2000, "not above the longest");
    }

    #[test]
    fn a_round_stays_while_it_is_long_enough_and_not_much_too_long() {
        let needs = [(100, 0.25)];
        for (present, now) in [(399, 440), (400, 400), (615, 615), (620, 440)] {
            assert_eq!(round(Some(present), &needs), now, "{present}");
        }
        assert_eq!(round(Some(2000), &[(900, 0.25)]), 2000);
        assert_eq!(round(Some(3000), &[(900, 0.25)]), 2000, "the longest round was changed");
    }
}
