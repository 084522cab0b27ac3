use proptest::prelude::*;

use super::*;

pub(super) fn wanted(least: f64, seed: u64) -> Wanted {
    Wanted { least, enough: 1.0, seed }
}

/// For so many turns.
pub(super) fn turns(mut count: u32) -> impl FnMut() -> bool {
    move || {
        count = count.saturating_sub(1);
        count > 0
    }
}

pub(super) fn tenant(servers: usize, over: u32, under: u32, pinned: Option<&[usize]>) -> Tenant {
    let pinned = pinned.map(|all| all.iter().copied().collect());
    Tenant { servers, share: Fraction { over, under }, pinned, start: None }
}

#[test]
fn a_slice_cannot_wrap_so_load_that_fits_everywhere_may_not_fit() {
    // With slices that wrap the load would fit, and there is no assignment of servers.
    let tenants = [tenant(1, 2, 3, None), tenant(1, 2, 3, None), tenant(1, 2, 3, None)];
    assert_eq!(pack(2, &tenants, wanted(0.9, 1), turns(50)), Err(Refused::Impossible(0.75)));
    let schedule = pack(2, &tenants, wanted(0.75, 1), turns(50)).expect("with three quarters they fit");
    assert_eq!(fault(2, &tenants, &schedule), None);
}

#[test]
fn pinned_tenants_stay_where_they_are() {
    // Each two of the first three share a server, so they take the whole round one after the other.
    let pinned = |on: &[usize]| tenant(2, 1, 3, Some(on));
    let tenants = [pinned(&[0, 1]), pinned(&[1, 2]), pinned(&[0, 2]), tenant(1, 1, 1, None), tenant(1, 1, 3, None)];
    let schedule = pack(4, &tenants, wanted(1.0, 1), turns(50)).expect("it fits");
    assert_eq!(fault(4, &tenants, &schedule), None);
    assert_eq!(schedule.slots[3].servers, [3].into_iter().collect());
    let crowded = [pinned(&[0, 1]), pinned(&[0, 2]), tenant(1, 1, 2, Some(&[0]))];
    let Err(Refused::ServerLoad { server: 0, asked }) = pack(4, &crowded, wanted(0.9, 1), turns(50)) else {
        panic!("server 0 has no time for all three")
    };
    assert!((asked - 7.0 / 6.0).abs() < 1e-9);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let refused =
        |servers: usize, tenants: &[Tenant]| pack(servers, tenants, wanted(0.9, 1), turns(5)).expect_err("refused");
    assert_eq!(refused(0, &[]), Refused::Servers);
    assert_eq!(refused(SERVERS_MAX + 1, &[]), Refused::Servers);
    assert_eq!(refused(3, &[tenant(4, 1, 2, None)]), Refused::TooMany(0));
    assert_eq!(refused(3, &[tenant(1, 1, 2, None), tenant(0, 1, 2, None)]), Refused::TooMany(1));
    assert_eq!(refused(3, &[tenant(1, 0, 2, None)]), Refused::Share(0));
    assert_eq!(refused(3, &[tenant(1, 3, 2, None)]), Refused::Share(0));
    assert_eq!(refused(3, &[tenant(1, 1, 2, Some(&[3]))]), Refused::Pinned(0));
    assert_eq!(refused(3, &[tenant(2, 1, 2, Some(&[1]))]), Refused::Pinned(0));
    assert_eq!(refused(2, &[tenant(2, 1, 1, None), tenant(1, 1, 2, None)]), Refused::Load(1.25));
    assert_eq!(pack(3, &[], wanted(1.0, 1), turns(5)).map(|schedule| schedule.slots.len()), Ok(0));
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let tenants = [tenant(2, 1, 3, Some(&[0, 1])), tenant(2, 1, 3, None), tenant(1, 1, 3, None)];
    let right = pack(3, &tenants, wanted(1.0, 1), turns(5)).expect("it fits");
    assert_eq!(fault(3, &tenants, &right), None);
    let wrong = |change: &dyn Fn(&mut Schedule)| {
        let mut schedule = right.clone();
        change(&mut schedule);
        fault(3, &tenants, &schedule).expect("something is wrong")
    };
    assert!(
        wrong(&|it| it.slots[1] = Slot { servers: it.slots[0].servers, ..it.slots[0].clone() }).contains("same time")
    );
    assert!(wrong(&|it| it.slots[0].servers = [0, 2].into_iter().collect()).contains("tenant 0"));
    assert!(wrong(&|it| it.slots[1].servers = [1, 3].into_iter().collect()).contains("tenant 1"));
    assert!(wrong(&|it| it.slots[2].length = 0.3).contains("tenant 2"));
    assert!(wrong(&|it| it.slots[2].start = 0.9).contains("tenant 2"));
    assert!(wrong(&|it| it.slots.truncate(2)).contains("no slice"));
}

fn any_tenant(servers: usize) -> impl Strategy<Value = Tenant> {
    let on = proptest::sample::subsequence((0..servers).collect::<Vec<_>>(), 1..=servers);
    (on, 1u32..40, 1u32..40, proptest::option::of(proptest::option::of(0.0..1.0))).prop_map(|(on, a, b, pinned)| {
        let start = pinned.flatten();
        Tenant { start, ..tenant(on.len(), a.min(b), a.max(b) * 4, pinned.map(|_| &on[..])) }
    })
}

proptest! {
    #[test]
    fn schedules_are_valid(
        (servers, tenants) in (1usize..6).prop_flat_map(|servers| {
            (Just(servers), proptest::collection::vec(any_tenant(servers), 0..8))
        }),
        seed: u64,
    ) {
        match pack(servers, &tenants, wanted(0.2, seed), turns(4)) {
            Ok(schedule) => prop_assert_eq!(fault(servers, &tenants, &schedule), None),
            Err(Refused::Load(asked)) => prop_assert!(asked > 5.0 - 1e-3),
            Err(Refused::ServerLoad { asked, .. }) => prop_assert!(asked > 5.0 - 1e-3),
            Err(Refused::NotFound(r) | Refused::Impossible(r)) => prop_assert!(r < 0.2),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
