//! Whose the disk was: the last seconds up to now, in so many cells.

use crate::control::view::{LiveView, OwnedView};

/// The least that a strip shows, and the most: what is older does not explain what is seen below it.
const SECONDS: std::ops::RangeInclusive<f64> = 2.0..=60.0;
/// Rounds that it shows.
const ROUNDS: f64 = 4.0;

/// Whose a moment was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Before the oldest slice that is known.
    Unknown,
    /// Nobody's.
    Nobody,
    /// The slice has not ended: whose it is, is told when it has.
    Running,
    /// A tenant that is no more.
    Gone,
    /// The tenant of this place in the order of names.
    Tenant(usize),
}

/// How many seconds the strip of a disk shows.
pub fn seconds(disk: &LiveView) -> f64 {
    let round = disk.policy.as_ref().and_then(|policy| policy.round_seconds).unwrap_or(0.0);
    (ROUNDS * round).clamp(*SECONDS.start(), *SECONDS.end())
}

/// The longest slice of a tenant that is to be expected.
fn longest(disk: &LiveView) -> f64 {
    disk.tenants.iter().filter_map(|tenant| Some(tenant.slice.as_ref()?.seconds)).fold(0.0, f64::max)
}

/// The last seconds, the latest at the right. A disk that does nothing shows that: old slices leave the strip at its
/// left.
pub fn strip(disk: &LiveView, width: usize) -> Vec<Owner> {
    let (shown, slices) = (seconds(disk), &disk.slices);
    let Some((first, last)) = slices.first().zip(slices.last()) else { return vec![Owner::Nobody; width] };
    // Slices are told when they have ended: a tenant may have the disk since then.
    let since_last = last.seconds_ago - last.seconds;
    let may_run = disk.busy_ratio.is_some_and(|busy| busy > 0.0) && since_last <= longest(disk);
    let owner = |ago: f64| match slices.iter().find(|slice| has(slice, ago)) {
        Some(slice) => {
            let known = slice.tenant.as_ref();
            let place = known.and_then(|tenant| disk.tenants.iter().position(|one| one.name == *tenant));
            place.map_or(Owner::Gone, Owner::Tenant)
        }
        None if ago > first.seconds_ago => Owner::Unknown,
        None if ago < since_last && may_run => Owner::Running,
        None => Owner::Nobody,
    };
    (0..width).map(|cell| owner(shown * (1.0 - (cell as f64 + 0.5) / width as f64))).collect()
}

fn has(slice: &OwnedView, ago: f64) -> bool {
    slice.seconds_ago >= ago && ago > slice.seconds_ago - slice.seconds
}
