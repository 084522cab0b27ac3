//! Division of a disk's frames. A requested size is granted exactly, a needed size at least. Spare frames are lent
//! max-min fair: the smallest partitions grow first.

use crate::cache::FRAMES_MIN;
use crate::config::{FRAME_BYTES, LEAST_BYTES};
use crate::ids::TenantId;
use crate::spec::{CacheSpec, Refusal};

pub(super) const LEAST: u64 = FRAMES_MIN as u64;

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
            CacheSpec::Trial | CacheSpec::Decided(_) => Claim::AtLeast(kept),
        }
    }

    /// The frames that it asks for.
    pub(super) fn frames(self) -> u64 {
        let (Claim::Exactly(frames) | Claim::AtLeast(frames)) = self;
        frames
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

/// The frames of each tenant out of `total`, of which the smallest acceptable numbers of frames take no more.
pub(crate) fn targets(total: u64, claims: &[(TenantId, Claim)]) -> Vec<(TenantId, u32)> {
    let claimed: u64 = claims.iter().map(|(_, claim)| claim.frames().max(claim.least())).sum();
    // Max-min fair: up to one level the smallest partitions are raised, or, of too many, the largest are cut.
    let at_level = |claim: Claim, level: u64| match claim {
        Claim::Exactly(frames) => frames,
        Claim::AtLeast(frames) if claimed <= total => frames.max(level).max(LEAST),
        Claim::AtLeast(frames) => frames.min(level).max(LEAST),
    };
    let fits = |level: u64| claims.iter().map(|&(_, claim)| at_level(claim, level)).sum::<u64>() <= total;
    let bits = (0..u64::BITS - total.leading_zeros()).rev();
    let level = bits.map(|bit| 1 << bit).fold(0, |level, more| if fits(level + more) { level + more } else { level });
    claims.iter().map(|&(tenant, claim)| (tenant, at_level(claim, level) as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(total: u64, claims: &[Claim]) -> Vec<u64> {
        let claims: Vec<_> = (0..).map(TenantId).zip(claims.iter().copied()).collect();
        targets(total, &claims).into_iter().map(|(_, frames)| u64::from(frames)).collect()
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
    fn of_needs_beyond_the_memory_the_largest_are_cut_and_nobody_is_below_the_least() {
        let claims = [400, 0, 200].map(|more| Claim::AtLeast(LEAST + more));
        assert_eq!(divided(LEAST * 3 + 500, &claims), [LEAST + 300, LEAST, LEAST + 200]);
        assert_eq!(divided(LEAST * 3 + 300, &claims), [LEAST + 150, LEAST, LEAST + 150]);
        assert_eq!(divided(LEAST * 3 + 50, &claims), [LEAST + 25, LEAST, LEAST + 25]);
        assert_eq!(
            divided(LEAST * 3 + 700, &[&claims[..2], &[Claim::Exactly(LEAST + 600)]].concat()),
            [LEAST + 100, LEAST, LEAST + 600]
        );
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
