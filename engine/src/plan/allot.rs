//! Division of a disk's frames. A requested size is granted exactly, a needed size at least. Spare frames are lent
//! max-min fair: the smallest partitions grow first.

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
}

impl Claim {
    /// The claim of a tenant with this cache size. If it requested no size, it claims `kept` frames.
    pub(crate) fn new(cache: CacheSpec, kept: u64) -> Claim {
        match cache {
            CacheSpec::Asked(bytes) => Claim::Exactly(frames_of(bytes)),
            CacheSpec::Trial | CacheSpec::Decided(_) => Claim::AtLeast(kept.max(LEAST)),
        }
    }

    /// The smallest acceptable number of frames: the requested size, or the smallest partition.
    pub(crate) fn least(self) -> u64 {
        match self {
            Claim::Exactly(frames) => frames,
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
    let asked = if let CacheSpec::Asked(bytes) = cache { bytes } else { bytes_of(own) };
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
    let mut floors: Vec<u64> =
        claims.iter().map(|&(_, claim)| claim).filter(|&claim| elastic(claim)).map(floor).collect();
    floors.sort_unstable();
    // Max-min fair: the level up to which the lowest floors are raised together.
    let mut spare = total - claims.iter().map(|&(_, claim)| floor(claim)).sum::<u64>();
    let mut level = floors.first().copied().unwrap_or(0);
    for (below, next) in (1..).zip(floors.iter().skip(1).map(Some).chain([None])) {
        let rise = next.map_or(spare / below, |next| (next - level).min(spare / below));
        level += rise;
        spare -= rise * below;
        if next != Some(&level) {
            break;
        }
    }
    let target = |claim: Claim| if elastic(claim) { floor(claim).max(level) } else { floor(claim) };
    Some(claims.iter().map(|&(tenant, claim)| (tenant, target(claim) as u32)).collect())
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
    fn too_much_is_refused_with_what_is_free() {
        // The refusal states the requested size, not that size rounded to frames.
        let (asked, free) = (bytes_of(600) + 1, bytes_of(500));
        let refusal = admit(1500, 1000, CacheSpec::Asked(asked)).unwrap_err();
        assert_eq!(refusal, Refusal::CacheTooLarge { asked, free, least: LEAST_BYTES });
        assert_eq!(admit(1500, 1000, CacheSpec::Decided(bytes_of(600))), Ok(()));
    }
}
