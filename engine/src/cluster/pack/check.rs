//! A check of schedules that shares nothing with the search.

use super::{Schedule, Tenant};

/// Parts of the round that do not count: lengths are rounded to units.
const ROUNDING: f64 = 1e-9;
/// A slice is at most so much longer than its share x R, as a part of the round.
const LENGTH_ROUNDING: f64 = 1e-5;

/// What is wrong with a schedule, if anything is: a slice that is too short, leaves the round, or is not on the servers
/// that it should be on; two slices on one server at the same time.
pub fn fault(servers: usize, tenants: &[Tenant], schedule: &Schedule) -> Option<String> {
    for (at, (slot, tenant)) in schedule.slots.iter().zip(tenants).enumerate() {
        let share = f64::from(tenant.share.over) / f64::from(tenant.share.under);
        let is_there = slot.servers.iter().all(|server| server < servers);
        let is_right =
            slot.servers.len() == tenant.servers && tenant.pinned.is_none_or(|pinned| pinned == slot.servers);
        let is_inside = slot.start >= 0.0 && slot.start + slot.length < 1.0 + ROUNDING;
        if !is_there || !is_right || !is_inside || (slot.length - share * schedule.r_cluster).abs() > LENGTH_ROUNDING {
            return Some(format!("tenant {at}: {slot:?} for {tenant:?} with R = {}", schedule.r_cluster));
        }
        for (other, with) in schedule.slots[..at].iter().enumerate() {
            let is_apart =
                slot.start + slot.length < with.start + ROUNDING || with.start + with.length < slot.start + ROUNDING;
            if slot.servers.overlaps(&with.servers) && !is_apart {
                return Some(format!("tenants {at} and {other} at the same time: {slot:?}, {with:?}"));
            }
        }
    }
    (schedule.slots.len() != tenants.len()).then(|| "a tenant has no slice".to_string())
}
