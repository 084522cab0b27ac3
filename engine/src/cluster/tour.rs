//! The order of slices in a round: a tour of the disk.
//!
//! ```text
//!   place on the disk   0    1    2    3    4    5    6          outer edge … inner edge
//!   order               1 ─►      2 ─►      3 ─►      4          even places on the way in,
//!                            7 ◄─      6 ◄─      5               odd ones on the way back
//! ```
//!
//! Each context switch is a seek over two places at most. In the order of places the tenant after the last one follows
//! a seek over the whole disk, in every round: only it loses by that, and its slices are as long as all others'.
//!
//! Tenants whose place is unknown come last, in order of creation.
//!
//! Downside: with few tenants all seeks are long, whatever the order. The place of a tenant is that of its first
//! volume.

/// Puts tenants, with their places, into the order of their slices.
pub fn tour<Id: Ord + Copy>(tenants: impl Iterator<Item = (Id, Option<u64>)>, order: &mut Vec<Id>) {
    let mut places: Vec<_> = tenants.map(|(id, place)| (place.unwrap_or(u64::MAX), id)).collect();
    places.sort_unstable();
    let known = places.iter().filter(|&&(place, _)| place < u64::MAX).count();
    order.clear();
    order.extend(places[..known].iter().step_by(2).map(|&(_, id)| id));
    order.extend(places[..known].iter().skip(1).step_by(2).rev().map(|&(_, id)| id));
    order.extend(places[known..].iter().map(|&(_, id)| id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;

    fn toured(places: &[Option<u64>]) -> Vec<u32> {
        let mut order = Vec::new();
        tour((0..).map(TenantId).zip(places.iter().copied()), &mut order);
        order.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn no_seek_is_over_more_than_two_places() {
        let places = [30, 0, 60, 10, 40, 20, 50].map(Some);
        let order = toured(&places);
        assert_eq!(order, [1, 5, 4, 2, 6, 0, 3]);
        let steps = order.iter().zip(order.iter().cycle().skip(1));
        let seeks = steps.map(|(&a, &b)| places[a as usize].unwrap().abs_diff(places[b as usize].unwrap()));
        assert!(seeks.max() <= Some(20));
    }

    #[test]
    fn tenants_with_unknown_places_follow_in_order_of_creation() {
        assert_eq!(toured(&[None, Some(5), None, Some(2), None]), [3, 1, 0, 2, 4]);
        assert_eq!(toured(&[None; 3]), [0, 1, 2]);
        assert_eq!(toured(&[]), []);
    }
}
