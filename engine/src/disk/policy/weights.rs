//! The weight of each tenant: its share. A policy divides the weight of each active tenant by the sum over the active
//! ones, so unpromised and unused time is divided among them in proportion. Tenants without a share get the unpromised
//! rest together, but at least a small part, so that none of them starves.

use crate::units::Share;

/// Minimum weight of all tenants without a share together, parts per billion of the whole: one percent, less than the
/// loss that R permits.
const LEAST_PPB: u64 = 10_000_000;

/// Minimum weight of a tenant, however small its share, parts per billion: a thousandth. A request that takes 10 ms of
/// disk time is then served within 10 s, before a client gives up. Virtual times, which count cost divided by weight,
/// last for centuries.
const FLOOR_PPB: u64 = 1_000_000;
/// Maximum weight of all tenants at the minimum together, parts per billion: one percent, as [`LEAST_PPB`].
const FLOORS_PPB: u64 = 10_000_000;

/// Maps shares to weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// The minimum weight of a tenant.
    floor_ppb: u64,
    /// The weight of a tenant without a share.
    rest_ppb: u64,
    /// The sum of all weights.
    pub(super) sum_ppb: u64,
}

impl Weights {
    /// From the shares of all tenants.
    pub(crate) fn new(shares: impl Iterator<Item = Option<Share>> + Clone) -> Weights {
        let (mut promised, mut others, mut with_share) = (0u64, 0, 0);
        for share in shares.clone() {
            with_share += u64::from(share.is_some());
            promised += share.map_or(0, Share::ppb);
            others += u64::from(share.is_none());
        }
        let rest = Share::ONE.ppb().saturating_sub(promised).max(LEAST_PPB);
        let floor_ppb = FLOOR_PPB.min(FLOORS_PPB / (with_share + others).max(1)).max(1);
        let weights = Weights { floor_ppb, rest_ppb: rest.checked_div(others).unwrap_or(0), sum_ppb: 0 };
        Weights { sum_ppb: shares.map(|share| weights.of(share)).sum(), ..weights }
    }

    /// The weight of a tenant with this share, parts per billion of the disk, at least the floor.
    pub(crate) fn of(self, share: Option<Share>) -> u64 {
        share.map_or(self.rest_ppb, Share::ppb).max(self.floor_ppb)
    }

    /// The part of the disk that a tenant with this share can count on, parts per billion: less than its weight if the
    /// weights sum to more than the disk. The parts of all tenants sum to at most the disk.
    pub(crate) fn part_ppb(self, share: Option<Share>) -> u64 {
        let whole = Share::ONE.ppb();
        (u128::from(self.of(share)) * u128::from(whole) / u128::from(self.sum_ppb.max(whole))) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_share_or_an_even_part_of_the_rest() {
        let share = |percent: u64| Share::from_ppb(percent * 10_000_000);
        let weights = Weights::new([share(30), None, None].into_iter());
        assert_eq!([share(30), None].map(|share| weights.of(share)), [300_000_000, 350_000_000]);
        assert_eq!(Weights::new([share(100), None].into_iter()).of(None), LEAST_PPB);
        let parts = |shares: [Option<Share>; 2]| shares.map(|share| Weights::new(shares.into_iter()).part_ppb(share));
        assert_eq!(parts([share(30), share(50)]), [300_000_000, 500_000_000]);
        assert_eq!(parts([share(50), share(100)]), [333_333_333, 666_666_666]);
    }

    proptest! {
        #[test]
        fn nobody_weighs_next_to_nothing_and_those_at_the_floor_are_a_percent(
            shares in prop::collection::vec(
                prop_oneof![Just(None), (1u64..=1_000_000_000).prop_map(Some), Just(Some(1))],
                1..400,
            )
        ) {
            let shares: Vec<_> = shares.into_iter().map(|ppb| ppb.and_then(Share::from_ppb)).collect();
            let weights = Weights::new(shares.iter().copied());
            let of: Vec<_> = shares.iter().map(|&share| weights.of(share)).collect();
            let least = *of.iter().min().unwrap();
            prop_assert!(least >= FLOOR_PPB.min(FLOORS_PPB / shares.len() as u64), "{least}");
            let is_raised = |share: &Option<Share>, weight| share.is_some_and(|share| share.ppb() < weight);
            let raised = shares.iter().zip(&of).filter(|(share, of)| is_raised(share, **of));
            let raised: u64 = raised.map(|(_, of)| of).sum();
            prop_assert!(raised <= FLOORS_PPB);
            let parts: u64 = shares.iter().map(|&share| weights.part_ppb(share)).sum();
            prop_assert!(parts <= Share::ONE.ppb(), "{parts}");
        }
    }
}
