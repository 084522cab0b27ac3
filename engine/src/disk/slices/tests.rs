//! What the slice runner does with slices of any policy.

use super::*;
use crate::disk::Op;
use crate::disk::policy::{Policy, Turn};
use crate::disk::scheduler::Scheduler;
use crate::ids::IoId;
use crate::spec::Terms;
use crate::units::{MILLISECOND, SECOND};

const MS: Nanos = MILLISECOND;
const A: TenantId = TenantId(0);
const B: TenantId = TenantId(1);

/// Slices of a second for A and B in turns, whenever one of them has a request queued.
#[derive(Default, Debug)]
struct Alternate {
    begun: u32,
    enough: Option<Enough>,
    write_back: Option<WriteBack>,
    /// How each slice ended.
    ends: Vec<(TenantId, i64, Cause)>,
    /// The slice of another tenant that this one interrupts, if it has a request queued.
    interrupter: Option<TenantId>,
}

impl Policy for Alternate {
    fn has_slices(&self) -> bool {
        true
    }
    fn set_tenant(&mut self, _now: Nanos, _tenant: TenantId, _terms: Terms) {}
    fn drop_tenant(&mut self, _tenant: TenantId) {}
    fn arrived(&mut self, _now: Nanos, _tenant: TenantId, _entry: &Entry, _view: View<'_>) {}
    fn next(&mut self, _now: Nanos, view: View<'_>) -> Turn {
        let turns = (0..2).map(|at| TenantId((self.begun + at) % 2));
        let Some(tenant) = turns.into_iter().find(|&tenant| view.lanes.wants_device(&view.lanes[tenant])) else {
            return Turn::Nothing(None);
        };
        self.begun = tenant.0 + 1;
        let (ns, enough, write_back) = (1000 * MS, self.enough, self.write_back.unwrap_or(WriteBack::All));
        Turn::Slice(Slot { tenant, ns, enough, lent: None, awaits: false, switch_ns: 0, write_back })
    }
}

impl Slicing for Alternate {
    fn interrupts(&mut self, owner: TenantId, _left_ns: Nanos, view: View<'_>) -> bool {
        self.interrupter.is_some_and(|tenant| tenant != owner && view.lanes.wants_device(&view.lanes[tenant]))
    }
    fn ended(&mut self, ended: Ended, _view: View<'_>) {
        self.ends.push((ended.tenant, ended.left_ns, ended.cause));
    }
}

fn scheduler(enough_bytes: Option<u64>) -> Scheduler<Alternate> {
    let enough = enough_bytes.map(|bytes| Enough { bytes, ..Enough::default() });
    let mut scheduler = Scheduler::new(Box::new(Alternate { enough, ..Alternate::default() }), 8);
    [A, B].into_iter().for_each(|tenant| scheduler.set_tenant(0, tenant, Terms::default()));
    scheduler
}

fn entry(io: u32) -> Entry {
    Entry { io: IoId(io), len: 4096, cost_ns: 8 * MS, ..Entry::EMPTY }
}

/// The next request completes 10 ms later, and its client is answered. Returns its tenant.
fn serve(scheduler: &mut Scheduler<Alternate>, now: &mut Nanos) -> Option<TenantId> {
    let (tenant, entry) = scheduler.next(*now)?;
    let submitted = std::mem::replace(now, *now + 10 * MS);
    scheduler.done(*now, tenant, &entry, submitted);
    scheduler.books.delivered(tenant, entry.len);
    Some(tenant)
}

#[test]
fn a_slice_ends_when_enough_is_delivered_and_another_tenant_waits() {
    let (mut scheduler, mut now) = (scheduler(Some(3 * 4096)), 0);
    (0..10).for_each(|io| scheduler.arrived(0, A, entry(io), false));
    // Nobody else waits: the slice goes on.
    let served: Vec<_> = (0..5).map_while(|_| serve(&mut scheduler, &mut now)).collect();
    assert_eq!(served, [A; 5]);
    (10..16).for_each(|io| scheduler.arrived(now, B, entry(io), false));
    let served: Vec<_> = (0..9).map_while(|_| serve(&mut scheduler, &mut now)).collect();
    assert_eq!(served, [B, B, B, A, A, A, B, B, B]);
    assert_eq!(scheduler.policy.ends[..2], [(A, 950 * MS as i64, Cause::Enough), (B, 970 * MS as i64, Cause::Enough)]);
}

#[test]
fn a_slice_that_has_enough_ends_in_time_though_no_request_completes() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    scheduler.policy.enough = Some(Enough { bytes: 4096, ns: 100 * MS, requests: 1 });
    (0..30).for_each(|io| scheduler.arrived(0, if io < 20 { A } else { B }, entry(io), false));
    assert_eq!(serve(&mut scheduler, &mut now), Some(A));
    while scheduler.next(now).is_some() {}
    assert_eq!(scheduler.poll_timeout(), Some(100 * MS), "A has its bytes, and all places in the device");
    assert!(scheduler.next(100 * MS).is_none() && scheduler.poll_timeout() > Some(100 * MS), "it drains");
}

#[test]
fn without_a_number_of_bytes_a_slice_lasts_as_long_as_its_time() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    (0..300).for_each(|io| scheduler.arrived(0, if io % 2 == 0 { A } else { B }, entry(io), false));
    let served: Vec<_> = (0..240).map_while(|_| serve(&mut scheduler, &mut now)).collect();
    let slices: Vec<_> = served.chunk_by(|a, b| a == b).map(|slice| (slice[0], slice.len())).collect();
    // The device is always empty here, and all of its eight places could be used: the last ones would not fit.
    assert!(matches!(slices[..], [(A, 92..=97), (B, 92..=97), (A, _)]), "{slices:?}");
    let [a, b] = [A, B].map(|tenant| scheduler.books.usage(now, tenant));
    assert_eq!((a.owned_ns + b.owned_ns, a.completed.requests + b.completed.requests), (now, 240));
}

/// Eight requests that are in the device together, and take 30 ms each.
#[test]
fn what_goes_to_an_empty_device_together_is_not_divided_between_two_slices() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    scheduler.arrived(0, B, entry(1000), false);
    let mut batches = Vec::new();
    for batch in 0..40 {
        (0..8).for_each(|io| scheduler.arrived(now, A, entry(batch * 8 + io), false));
        let mut owners = Vec::new();
        while owners.len() < 8 {
            let submitted = now;
            let issued: Vec<_> = std::iter::from_fn(|| scheduler.next(submitted)).collect();
            assert!(!issued.is_empty(), "{:?}", scheduler.poll_timeout());
            for (tenant, entry) in issued {
                now += 30 * MS;
                scheduler.done(now, tenant, &entry, submitted);
                // B always has one.
                if tenant == B {
                    scheduler.arrived(now, B, entry, false);
                } else {
                    owners.push(scheduler.past_slices().len());
                }
            }
        }
        batches.push(owners[0] == owners[7]);
    }
    // A slice of 1 s has room for four and one request more; the first ones, of which the time is not known, may be
    // divided.
    assert!(batches[8..].iter().all(|&is_whole| is_whole), "{batches:?}");
    let by_a = |slice: &&Slice| slice.tenant == A;
    let shortest = scheduler.past_slices().iter().filter(by_a).skip(3).map(|it| it.ended - it.begun).min();
    assert!(shortest >= Some(600 * MS), "{shortest:?}");
}

#[test]
fn write_back_that_can_wait_goes_in_the_slices_that_are_chosen_for_it() {
    let batch = |scheduler: &mut Scheduler<Alternate>, now| {
        let write = |io| Entry { op: Op::Write { durable: false }, can_wait: true, ..entry(io) };
        (0..3).for_each(|io| scheduler.arrived(now, A, write(io), false));
    };
    let issued = |scheduler: &mut Scheduler<Alternate>, now| {
        let all: Vec<_> = std::iter::from_fn(|| scheduler.next(now)).collect();
        all.iter().for_each(|(tenant, entry)| scheduler.done(now + 10 * MS, *tenant, entry, now));
        all.into_iter().map(|(tenant, entry)| (tenant, entry.io.0)).collect::<Vec<_>>()
    };
    let (reads, all) = ([(A, 10)], [(A, 0), (A, 1), (A, 2), (A, 10)]);
    for (choice, other_waits, expected, waiting) in [
        (WriteBack::All, true, &all[..], 0),
        (WriteBack::Batch, true, &all, 3),
        (WriteBack::Later, true, &reads, 6),
        (WriteBack::Later, false, &all, 0),
    ] {
        let mut scheduler = scheduler(None);
        scheduler.policy.write_back = Some(choice);
        batch(&mut scheduler, 0);
        scheduler.arrived(0, A, entry(10), false);
        if other_waits {
            scheduler.arrived(0, B, entry(20), false);
        }
        assert_eq!(issued(&mut scheduler, 0), expected, "{choice:?}");
        // What comes when the batch is done is not part of it.
        assert!(scheduler.next(10 * MS).is_none());
        batch(&mut scheduler, 10 * MS);
        let later = if waiting == 0 { &all[..3] } else { &[] };
        assert_eq!(issued(&mut scheduler, 10 * MS), later, "{choice:?}");
        // A flush waits for it now.
        scheduler.promote(A, &|io| io.0 < 3);
        assert_eq!(issued(&mut scheduler, 20 * MS).len(), waiting, "{choice:?}");
    }
}

#[test]
fn an_idle_owner_keeps_its_slice_for_its_think_time_only() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    scheduler.arrived(0, A, entry(0), false);
    scheduler.arrived(0, B, entry(1), false);
    assert_eq!(serve(&mut scheduler, &mut now), Some(A));
    assert_eq!(serve(&mut scheduler, &mut now), None, "the disk idles for A");
    let until = scheduler.poll_timeout().expect("not for ever");
    assert!(until > now && until <= now + 20 * MS, "{until}");
    now = until;
    assert_eq!(serve(&mut scheduler, &mut now), Some(B));
    let past = scheduler.past_slices();
    assert_eq!((past.len(), past[0].tenant, past[0].ended), (1, A, until));
    assert_eq!(scheduler.policy.ends, [(A, (1000 * MS - until) as i64, Cause::Idle)]);
}

#[test]
fn the_disk_idles_for_a_client_that_pauses_within_its_slice() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    // A pauses for 300 ms after each request, B always has one.
    let (mut comes, mut is_out, mut served) = (0, [false; 2], 0);
    while now < 60 * SECOND {
        for (tenant, comes) in [(A, comes), (B, now)] {
            if !is_out[tenant.0 as usize] && comes <= now {
                scheduler.arrived(now, tenant, entry(tenant.0), false);
                is_out[tenant.0 as usize] = true;
            }
        }
        let Some(tenant) = serve(&mut scheduler, &mut now) else {
            let comes = (!is_out[0]).then_some(comes);
            now = [comes, scheduler.poll_timeout()].into_iter().flatten().min().expect("something happens");
            continue;
        };
        is_out[tenant.0 as usize] = false;
        if tenant == A {
            (comes, served) = (now + 300 * MS, served + 1);
        }
    }
    assert!(served > 100, "{served} requests, about four for each of 30 slices");
}

/// Puts the requests `hung` of tenant A into the device, where they hang, and queues `next`, while no other tenant
/// waits. Returns the time until `next` goes to the device.
fn after_hung(hung: &[Entry], next: Entry) -> Nanos {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    hung.iter().for_each(|&entry| scheduler.arrived(0, A, entry, false));
    for _ in hung {
        now += CHOSEN_NS;
        assert!(scheduler.next(now).is_some());
    }
    scheduler.arrived(now, A, next, false);
    let since = now;
    while scheduler.next(now).is_none() {
        now = scheduler.poll_timeout().expect("something happens").max(now + 1);
        assert!(now < 10 * SECOND, "it waits for ever");
    }
    now - since
}

#[test]
fn sequential_reads_that_hang_hold_up_a_tenant_that_is_alone_for_a_limited_time() {
    let follows = |io| Entry { follows: true, len: FOLLOWING_BYTES, ..entry(io) };
    let hung: Vec<Entry> = (0..FOLLOWERS_MAX).map(follows).collect();
    let at = after_hung(&hung, follows(8));
    assert!((STUCK_NS..STUCK_NS + 2 * SECOND).contains(&at), "{at}");
    assert_eq!(after_hung(&hung, entry(8)), 0, "another read follows nothing");
}

#[test]
fn hung_requests_do_not_shorten_the_slices_of_their_tenant() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    // They would take longer than a slice.
    let hung = Entry { cost_ns: 2 * SECOND, ..entry(0) };
    scheduler.arrived(0, A, hung, false);
    assert!(scheduler.next(0).is_some());
    scheduler.arrived(0, B, entry(1), false);
    while scheduler.next(now).is_none() {
        now = scheduler.poll_timeout().expect("something happens").max(now + 1);
    }
    scheduler.done(now, B, &entry(1), now);
    (0..300).for_each(|io| scheduler.arrived(now, if io % 2 == 0 { A } else { B }, entry(io), false));
    let served: Vec<_> = (0..220).map_while(|_| serve(&mut scheduler, &mut now)).collect();
    let slices: Vec<_> = served.chunk_by(|a, b| a == b).map(|slice| (slice[0], slice.len())).collect();
    assert!(slices.iter().any(|&(tenant, requests)| tenant == A && requests > 90), "{slices:?}");
}

#[test]
fn a_backlog_that_extended_a_slice_gives_no_claim_when_another_tenant_comes() {
    let (mut scheduler, mut now) = (Scheduler::new(Box::new(Alternate::default()), 8), 0);
    scheduler.set_tenant(0, A, Terms::default());
    // Their predicted drain is as long as several slices.
    let long = |io| Entry { cost_ns: 900 * MS, ..entry(io) };
    (0..6).for_each(|io| scheduler.arrived(0, A, long(io), false));
    let sent: Vec<_> = std::iter::from_fn(|| scheduler.next(0)).collect();
    assert_eq!(sent.len(), 6, "nobody else waits");
    // They take less than predicted, and A goes on with one request at a time.
    now += 100 * MS;
    sent.iter().for_each(|(tenant, entry)| scheduler.done(now, *tenant, entry, 0));
    scheduler.set_tenant(now, B, Terms::default());
    (0..400).for_each(|io| scheduler.arrived(now, if io < 300 { A } else { B }, entry(io), false));
    let served: Vec<_> = (0..250).map_while(|_| serve(&mut scheduler, &mut now)).collect();
    let slices: Vec<_> = served.chunk_by(|a, b| a == b).map(|slice| (slice[0], slice.len())).collect();
    assert!(slices[0].0 == B || slices[0].1 <= 100, "at most the rest of a slice of a second: {slices:?}");
}

#[test]
fn an_interrupted_slice_drains_before_the_next_one_begins() {
    let (mut scheduler, now) = (scheduler(None), 10 * MS);
    scheduler.policy.interrupter = Some(B);
    (0..10).for_each(|io| scheduler.arrived(0, A, entry(io), false));
    let issued: Vec<_> = std::iter::from_fn(|| scheduler.next(now)).collect();
    assert!(issued.len() > 1);
    scheduler.arrived(now, B, entry(20), false);
    assert_eq!(scheduler.next(now), None, "A's requests are in the device");
    for (at, (tenant, entry)) in issued.iter().enumerate() {
        assert_eq!(scheduler.policy.ends, []);
        scheduler.done(now + at as Nanos, *tenant, entry, now);
        assert!(at + 1 == issued.len() || scheduler.next(now + at as Nanos).is_none(), "nothing more of A");
    }
    assert_eq!(scheduler.next(110 * MS).map(|(tenant, _)| tenant), Some(B));
    assert_eq!(scheduler.policy.ends, [(A, 900 * MS as i64, Cause::Interrupted)]);
}
