//! The lengths of the slices of a round.
//!
//! ```text
//!   a slice loses loss_i, so it must last            need_i  = loss_i / (1 - R)       (`meter.rs`)
//!   slices are proportional to the weights w_i       slice_i = w_i x round
//!   the largest need_i / w_i sets the round          round   = max(need_i / w_i), at most `round_max`
//! ```
//!
//! Weights are shares (`../weights.rs`).
//!
//! If the round would be too long, slices are shorter than some tenants need, and these tenants do not reach R
//! (`docs/design/slices.md`).
//!
//! Source: Argon (Wachs et al., FAST 2007), section 3.4: the shortest slices that reach R keep response times low.

use crate::disk::policy::weights::Weights;
use crate::units::{MILLISECOND, Nanos, Share};

/// The shortest round: compared with a seek, more frequent context switches do not shorten response times noticeably.
const ROUND_MIN_NS: Nanos = 20 * MILLISECOND;

/// The plan's input for one tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Its share.
    pub(super) share: Option<Share>,
    /// Whether it had work in the last rounds.
    pub(super) active: bool,
    /// Shortest slice with which it keeps R; `None` if the tenant is not backlogged, or has no R.
    pub(super) slice_ns: Option<Nanos>,
}

/// Computes the slice of each tenant, by its number, into `lengths`. Returns the round.
pub(super) fn slices(tenants: &[Option<Needs>], round_max_ns: Nanos, lengths: &mut Vec<Nanos>) -> Nanos {
    let weights = Weights::new(tenants.iter().flatten().map(|needs| needs.share));
    let weight = |needs: &Needs| weights.of(needs.share);
    let active: u64 = tenants.iter().flatten().filter(|needs| needs.active).map(weight).sum();
    // 128 bits: nanoseconds times parts per billion.
    let round = |needs: &Needs| {
        let need = u128::from(needs.slice_ns.unwrap_or(0));
        (need * u128::from(active) / u128::from(weight(needs))).min(u128::from(round_max_ns)) as Nanos
    };
    let longest = tenants.iter().flatten().filter(|needs| needs.active).map(round).max().unwrap_or(0);
    let round_ns = longest.clamp(ROUND_MIN_NS.min(round_max_ns), round_max_ns);
    lengths.clear();
    lengths.extend(tenants.iter().map(|needs| match needs {
        Some(needs) => {
            // A tenant that is not active becomes active with its first slice, so its own weight is added.
            let sum = if needs.active { active } else { active + weight(needs) };
            ((u128::from(round_ns) * u128::from(weight(needs)) / u128::from(sum)) as Nanos).max(1)
        }
        None => 0,
    }));
    round_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = MILLISECOND;

    fn tenant(share: Option<u64>, need_ms: u64) -> Option<Needs> {
        let share = share.map(|percent| Share::from_ppb(percent * 10_000_000).unwrap());
        Some(Needs { share, active: true, slice_ns: Some(need_ms * MS) })
    }

    fn plan(tenants: &[Option<Needs>]) -> (Vec<u64>, u64) {
        let mut lengths = Vec::new();
        let round = slices(tenants, 2000 * MS, &mut lengths);
        (lengths.iter().map(|length| length / MS).collect(), round / MS)
    }

    #[test]
    fn whoever_needs_most_for_its_share_sets_the_round() {
        assert_eq!(plan(&[tenant(Some(50), 100), tenant(Some(50), 300)]), (vec![300, 300], 600));
        assert_eq!(plan(&[tenant(Some(25), 100), tenant(Some(75), 150)]), (vec![100, 300], 400));
    }

    #[test]
    fn what_nobody_was_promised_is_divided_in_proportion() {
        assert_eq!(plan(&[tenant(Some(10), 100), tenant(Some(30), 100)]), (vec![100, 300], 400));
        let mut away = tenant(Some(80), 500);
        away.as_mut().unwrap().active = false;
        assert_eq!(plan(&[tenant(Some(10), 100), None, away]), (vec![100, 0, 88], 100));
    }

    #[test]
    fn those_without_a_share_have_the_rest_and_never_nothing() {
        assert_eq!(plan(&[tenant(Some(50), 100), tenant(None, 100), tenant(None, 100)]), (vec![200, 100, 100], 400));
        let (lengths, round) = plan(&[tenant(Some(100), 100), tenant(None, 10)]);
        assert_eq!((lengths, round), (vec![1000, 10], 1010));
    }

    #[test]
    fn a_round_is_never_longer_than_allowed() {
        assert_eq!(plan(&[tenant(Some(50), 3000), tenant(Some(50), 10)]), (vec![1000, 1000], 2000));
    }
}
