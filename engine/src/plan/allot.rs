//! Division of a disk's frames. A requested size is granted exactly, a needed size at least. Planned sizes are granted
//! from what is then left, except for an even part for each tenant without any size. Spare frames are lent max-min
//! fair: the smallest partitions grow first.

use crate::cache::FRAMES_MIN;
use crate::config::{FRAME_BYTES, LEAST_BYTES};
use crate::ids::TenantId;
use crate::spec::{CacheSpec, Refusal};

const LEAST: u64 = FRAMES_MIN as u64;

/// Frames in `bytes` of memory, at least those of the smallest partition.
pub(crate) fn frames_of(bytes: u64) -> u64 {
    (bytes / FRAME_BYTES).max(LEAST)
}

/// Memory of `frames`, bytes.
pub(crate) fn bytes_of(frames: u64) -> u64 {
    frames * FRAME_BYTES
}

/// The frames that a tenant is entitled to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// This number of frames, neither more nor less.
    Exactly(u64),
    /// At least this number of frames.
    AtLeast(u64),
    /// The first number of frames, and up to the second one as far as nobody else is entitled to them.
    Between(u64, u64),
}

impl Claim {
    /// The claim of a tenant with this cache size. If it requested no size, it claims `kept` frames.
    pub(crate) fn new(cache: CacheSpec, kept: u64) -> Claim {
        match cache {
            CacheSpec::Asked(bytes) => Claim::Exactly(frames_of(bytes)),
            CacheSpec::Planned { asked, planned } => Claim::Between(frames_of(asked), frames_of(planned.max(asked))),
            CacheSpec::Trial | CacheSpec::Decided(_) => Claim::AtLeast(kept.max(LEAST)),
        }
    }

    /// The smallest acceptable number of frames: the requested size, or the smallest partition.
    pub(crate) fn least(self) -> u64 {
        match self {
            Claim::Exactly(frames) | Claim::Between(frames, _) => frames,
            Claim::AtLeast(_) => LEAST,
        }
    }
}

/// The smallest memory, bytes, with which these tenants can work.
pub(crate) fn least_bytes(claims: &[(TenantId, Claim)]) -> u64 {
    claims.iter().map(|(_, claim)| bytes_of(claim.least())).sum()
}

/// Whether a new tenant, or one whose settings change, can have its smallest acceptable number of frames while the
/// other tenants keep `others` frames.
pub(crate) fn admit(total: u64, others: u64, cache: CacheSpec) -> Result<(), Refusal> {
    let own = Claim::new(cache, 0).least();
    if others + own <= total {
        return Ok(());
    }
    let free = total.saturating_sub(others);
    let (CacheSpec::Asked(asked) | CacheSpec::Planned { asked, .. }) = cache else {
        return Err(Refusal::CacheTooLarge { asked: bytes_of(own), free: bytes_of(free), least: LEAST_BYTES });
    };
    Err(Refusal::CacheTooLarge { asked, free: bytes_of(free), least: LEAST_BYTES })
}

/// The frames of each tenant out of `total`. `None` if that is less than the sum of the smallest acceptable sizes.
pub(crate) fn targets(total: u64, claims: &[(TenantId, Claim)]) -> Option<Vec<(TenantId, u32)>> {
    let least: u64 = claims.iter().map(|(_, claim)| claim.least()).sum();
    let over = total.checked_sub(least)?;
    // Frames beyond the smallest partition. If there are too few, all are cut in proportion.
    let beyond = |claim: Claim| if let Claim::AtLeast(frames) = claim { frames - LEAST } else { 0 };
    let wanted: u64 = claims.iter().map(|&(_, claim)| beyond(claim)).sum();
    let floor = |claim: Claim| {
        let cut = u128::from(beyond(claim)) * u128::from(over) / u128::from(wanted.max(over).max(1));
        claim.least() + cut as u64
    };
    let elastic = |claim: Claim| matches!(claim, Claim::AtLeast(_));
    let spare = total - claims.iter().map(|&(_, claim)| floor(claim)).sum::<u64>();
    let grants = Grants::new(spare, claims, floor);
    let mut floors: Vec<u64> =
        claims.iter().map(|&(_, claim)| claim).filter(|&claim| elastic(claim)).map(floor).collect();
    floors.sort_unstable();
    // Max-min fair: the level up to which the lowest floors are raised together.
    let mut spare = spare - claims.iter().map(|&(_, claim)| grants.of(claim)).sum::<u64>();
    let mut level = floors.first().copied().unwrap_or(0);
    for (below, next) in (1..).zip(floors.iter().skip(1).map(Some).chain([None])) {
        let rise = next.map_or(spare / below, |next| (next - level).min(spare / below));
        level += rise;
        spare -= rise * below;
        if next != Some(&level) {
            break;
        }
    }
    let target = |claim: Claim| if elastic(claim) { floor(claim).max(level) } else { floor(claim) + grants.of(claim) };
    Some(claims.iter().map(|&(tenant, claim)| (tenant, target(claim) as u32)).collect())
}

/// The frames that are planned beyond those that were requested.
fn planned_beyond(claim: Claim) -> u64 {
    if let Claim::Between(least, planned) = claim { planned - least } else { 0 }
}

/// What planned sizes get beyond what was requested.
struct Grants {
    /// Frames for all of them, and what all of them would take.
    free: u64,
    wanted: u64,
}

impl Grants {
    /// Tenants without a size have an even part of the frames that nobody requested, as far as they had it if nothing
    /// was planned.
    fn new(spare: u64, claims: &[(TenantId, Claim)], floor: impl Fn(Claim) -> u64) -> Grants {
        let claims = || claims.iter().map(|&(_, claim)| claim);
        let is_without = |claim: &Claim| matches!(claim, Claim::AtLeast(_) | Claim::Between(LEAST, _));
        let without = claims().filter(is_without);
        let (count, sum) = without.fold((0, spare), |(count, sum), claim| (count + 1, sum + floor(claim)));
        let even = sum.checked_div(count).unwrap_or(0);
        let others = claims().filter(|claim| matches!(claim, Claim::AtLeast(_)));
        let kept: u64 = others.map(|claim| even.saturating_sub(floor(claim))).sum();
        let wanted = claims().map(planned_beyond).sum();
        Grants { free: spare.saturating_sub(kept), wanted }
    }

    /// The frames of one claim; all are cut in proportion if there are too few.
    fn of(&self, claim: Claim) -> u64 {
        let part = u128::from(planned_beyond(claim)) * u128::from(self.free.min(self.wanted));
        (part / u128::from(self.wanted.max(1))) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(total: u64, claims: &[Claim]) -> Vec<u64> {
        let claims: Vec<_> = (0..).map(TenantId).zip(claims.iter().copied()).collect();
        targets(total, &claims).unwrap().into_iter().map(|(_, frames)| u64::from(frames)).collect()
    }

    #[test]
    fn what_nobody_asked_for_is_lent_evenly() {
        let trial = Claim::new(CacheSpec::Trial, 0);
        assert_eq!(divided(2001, &[Claim::Exactly(1000), trial, trial]), [1000, 500, 500]);
        assert_eq!(divided(1000, &[Claim::Exactly(1000)]), [1000]);
        assert_eq!(divided(0, &[]), [0; 0]);
    }

    #[test]
    fn who_needs_more_than_an_even_part_has_it() {
        let claims = [300, 900, 200].map(Claim::AtLeast);
        assert_eq!(divided(1500, &claims), [300, 900, 300]);
        assert_eq!(divided(1620, &claims), [360, 900, 360]);
        assert_eq!(divided(2850, &claims), [950, 950, 950]);
        assert_eq!(divided(1430, &claims), [300, 900, 230]);
    }

    #[test]
    fn needs_beyond_the_memory_are_cut_and_nobody_is_below_the_least() {
        let cut = divided(
            LEAST * 3 + 300,
            &[Claim::AtLeast(LEAST + 400), Claim::AtLeast(LEAST), Claim::AtLeast(LEAST + 200)],
        );
        assert_eq!(cut, [LEAST + 200, LEAST, LEAST + 100]);
        assert_eq!(targets(2 * LEAST - 1, &[(TenantId(0), Claim::AtLeast(0)), (TenantId(1), Claim::AtLeast(0))]), None);
    }

    #[test]
    fn a_plan_yields_to_requests_to_needs_and_to_an_even_part_for_newcomers() {
        let planned = |asked, frames| Claim::Between(asked, frames);
        assert_eq!(divided(3000, &[planned(LEAST, 2000), planned(LEAST, 1000)]), [2000, 1000]);
        assert_eq!(divided(3500, &[planned(LEAST, 2000), planned(LEAST, 1000)]), [2000, 1000], "nothing is lent");
        let with_request = divided(3000, &[planned(LEAST, 2000), planned(LEAST, 1000), Claim::Exactly(1500)]);
        assert_eq!(with_request[2], 1500);
        assert!(with_request.iter().sum::<u64>() <= 3000 && with_request[0] > with_request[1], "{with_request:?}");
        // A request is kept, whatever is planned.
        assert_eq!(divided(1000 + LEAST, &[planned(1000, 2000), planned(LEAST, 900)]), [1000, LEAST]);
        let newcomer = divided(3000, &[planned(LEAST, 2000), planned(LEAST, 1000), Claim::AtLeast(LEAST)]);
        assert!(newcomer[2] >= 1000 && newcomer.iter().sum::<u64>() == 3000, "{newcomer:?}");
        assert_eq!(divided(3000, &[planned(LEAST, 3000), Claim::AtLeast(2500)])[1], 2500);
    }

    #[test]
    fn too_much_is_refused_with_what_is_free() {
        // The refusal states the requested size, not that size rounded to frames.
        let (asked, free) = (bytes_of(600) + 1, bytes_of(500));
        let refusal = admit(1500, 1000, CacheSpec::Asked(asked)).unwrap_err();
        assert_eq!(refusal, Refusal::CacheTooLarge { asked, free, least: LEAST_BYTES });
        assert_eq!(admit(1500, 1000, CacheSpec::Decided(bytes_of(600))), Ok(()));
    }
}
