//! The strip of slice owners: the last seconds of a disk, divided into cells.

use crate::control::view::{LiveView, OwnedView};

/// The time that a strip shows: minimum and maximum. Older slices do not explain the values below the strip.
const SECONDS: std::ops::RangeInclusive<f64> = 2.0..=60.0;
/// The number of rounds that it shows.
const ROUNDS: f64 = 4.0;

/// The owner of a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Before the oldest known slice.
    Unknown,
    /// Idle.
    Nobody,
    /// A slice that has not ended; its owner is reported when it ends.
    Running,
    /// A tenant that was removed.
    Gone,
    /// The tenant at this position in the order of names.
    Tenant(usize),
}

/// How many seconds the strip of a disk shows.
pub fn seconds(disk: &LiveView) -> f64 {
    let round = disk.policy.as_ref().and_then(|policy| policy.round_seconds).unwrap_or(0.0);
    (ROUNDS * round).clamp(*SECONDS.start(), *SECONDS.end())
}

/// The longest expected slice of a tenant.
fn longest(disk: &LiveView) -> f64 {
    disk.tenants.iter().filter_map(|tenant| Some(tenant.slice.as_ref()?.seconds)).fold(0.0, f64::max)
}

/// The cells of the strip, the latest at the right. On an idle disk, old slices move out to the left.
pub fn strip(disk: &LiveView, width: usize) -> Vec<Owner> {
    let (shown, slices) = (seconds(disk), &disk.slices);
    let Some((first, last)) = slices.first().zip(slices.last()) else { return vec![Owner::Nobody; width] };
    // A slice is reported when it has ended, so a tenant may have been running since then.
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
