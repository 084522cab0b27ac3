//! What each tenant weighs: its share; what nobody was promised is divided in proportion among those who are active, which
//! follows from dividing each one's weight by the sum of theirs. Tenants without a share have, together, what is left, but at
//! least a little, so that nobody starves.

use crate::units::Share;

/// What those without a share have together at least, parts per billion of the whole: a percent, less than what R leaves.
const LEAST_PPB: u64 = 10_000_000;

/// How shares become weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// Of a tenant without a share.
    rest_ppb: u64,
}

impl Weights {
    /// From the shares of all tenants.
    pub(crate) fn new(shares: impl Iterator<Item = Option<Share>>) -> Weights {
        let (mut promised, mut others) = (0, 0);
        for share in shares {
            promised += share.map_or(0, Share::ppb);
            others += u64::from(share.is_none());
        }
        let rest = Share::ONE.ppb().saturating_sub(promised).max(LEAST_PPB);
        Weights { rest_ppb: rest.checked_div(others).unwrap_or(0) }
    }

    /// The weight of a tenant with this share, parts per billion of the disk, at least 1.
    pub(crate) fn of(self, share: Option<Share>) -> u64 {
        share.map_or(self.rest_ppb, Share::ppb).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_or_an_even_part_of_the_rest() {
        let share = |percent: u64| Share::from_ppb(percent * 10_000_000);
        let weights = Weights::new([share(30), None, None].into_iter());
        assert_eq!([share(30), None].map(|share| weights.of(share)), [300_000_000, 350_000_000]);
        assert_eq!(Weights::new([share(100), None].into_iter()).of(None), LEAST_PPB);
    }
}
