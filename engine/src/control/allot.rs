//! How the frames of a disk are divided: who asked for a size gets it, the rest is lent evenly to the others.

use super::{Refusal, TenantId};
use crate::cache::{BOOKKEEPING_BYTES_PER_FRAME, FRAMES_MIN};
use crate::units::BLOCK;

/// Memory of a frame with its bookkeeping, bytes.
const FRAME_BYTES: u64 = BLOCK + BOOKKEEPING_BYTES_PER_FRAME;

/// The least memory, bytes, with which a tenant works.
pub const LEAST_BYTES: u64 = FRAMES_MIN as u64 * FRAME_BYTES;

fn frames(cache: u64) -> u64 {
    (cache / FRAME_BYTES).max(u64::from(FRAMES_MIN))
}

/// The memory, bytes, that these tenants need at least.
pub(crate) fn least_bytes(tenants: &[(TenantId, Option<u64>)]) -> u64 {
    tenants.iter().map(|(_, cache)| frames(cache.unwrap_or(0)) * FRAME_BYTES).sum()
}

/// The frames of each tenant out of `total`, by what each asked for. `asking` is the size that is newly asked for, to be
/// named if it does not fit.
pub(crate) fn targets(
    total: u64,
    tenants: &[(TenantId, Option<u64>)],
    asking: Option<u64>,
) -> Result<Vec<(TenantId, u32)>, Refusal> {
    let asked: u64 = tenants.iter().filter_map(|(_, cache)| cache.map(frames)).sum();
    let others = tenants.iter().filter(|(_, cache)| cache.is_none()).count() as u64;
    let needed = asked + others * u64::from(FRAMES_MIN);
    if needed > total {
        let own = frames(asking.unwrap_or(0));
        return Err(Refusal::CacheTooLarge {
            asked: own * FRAME_BYTES,
            free: (total + own).saturating_sub(needed) * FRAME_BYTES,
            least: LEAST_BYTES,
        });
    }
    let even = (total - asked).checked_div(others).unwrap_or(0);
    let target = |cache: Option<u64>| cache.map_or(even, frames) as u32;
    Ok(tenants.iter().map(|&(id, cache)| (id, target(cache))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asked_for_is_lent_evenly() {
        let tenants = [(TenantId(0), Some(1000 * FRAME_BYTES)), (TenantId(1), None), (TenantId(2), None)];
        let targets = targets(2001, &tenants, None).unwrap();
        assert_eq!(targets, [(TenantId(0), 1000), (TenantId(1), 500), (TenantId(2), 500)]);
    }

    #[test]
    fn too_much_is_refused_with_what_is_free() {
        let tenants = [(TenantId(0), Some(1000 * FRAME_BYTES)), (TenantId(1), Some(600 * FRAME_BYTES))];
        let refusal = targets(1500, &tenants, Some(600 * FRAME_BYTES)).unwrap_err();
        let (asked, free) = (600 * FRAME_BYTES, 500 * FRAME_BYTES);
        assert_eq!(refusal, Refusal::CacheTooLarge { asked, free, least: LEAST_BYTES });
    }
}
