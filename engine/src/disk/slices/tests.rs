//! What the slice runner does with slices of any policy.

use super::*;
use crate::disk::Op;
use crate::disk::policy::{Policy, Turn};
use crate::disk::scheduler::Scheduler;
use crate::ids::IoId;
use crate::units::{MILLISECOND, Share};

const MS: Nanos = MILLISECOND;
const A: TenantId = TenantId(0);
const B: TenantId = TenantId(1);

/// Slices of a second for A and B in turns, whenever one of them has a request queued.
#[derive(Default, Debug)]
struct Alternate {
    begun: u32,
    enough_bytes: Option<u64>,
    /// How each slice ended.
    ends: Vec<(TenantId, i64, bool)>,
}

impl Policy for Alternate {
    fn has_slices(&self) -> bool {
        true
    }
    fn set_tenant(&mut self, _now: Nanos, _tenant: TenantId, _share: Option<Share>) {}
    fn drop_tenant(&mut self, _tenant: TenantId) {}
    fn arrived(&mut self, _now: Nanos, _tenant: TenantId, _entry: &Entry, _view: View<'_>) {}
    fn next(&mut self, _now: Nanos, view: View<'_>) -> Turn {
        let turns = (0..2).map(|at| TenantId((self.begun + at) % 2));
        let Some(tenant) = turns.into_iter().find(|&tenant| view.lanes.wants_device(&view.lanes[tenant])) else {
            return Turn::Nothing(None);
        };
        self.begun = tenant.0 + 1;
        Turn::Slice(Slot { tenant, ns: 1000 * MS, enough_bytes: self.enough_bytes })
    }
}

impl Slicing for Alternate {
    fn ended(&mut self, ended: Ended, _view: View<'_>) {
        self.ends.push((ended.tenant, ended.left_ns, ended.used_up));
    }
}

fn scheduler(enough_bytes: Option<u64>) -> Scheduler<Alternate> {
    let mut scheduler = Scheduler::new(Box::new(Alternate { enough_bytes, ..Alternate::default() }), 8);
    [A, B].into_iter().for_each(|tenant| scheduler.set_tenant(0, tenant, None));
    scheduler
}

fn entry(io: u32) -> Entry {
    Entry { io: IoId(io), op: Op::Read, len: 4096, cost_ns: 8 * MS, follows: false, internal: false }
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
    assert_eq!(scheduler.policy.ends[..2], [(A, 0, true), (B, 0, true)]);
}

#[test]
fn without_a_number_of_bytes_a_slice_lasts_as_long_as_its_time() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    (0..300).for_each(|io| scheduler.arrived(0, if io % 2 == 0 { A } else { B }, entry(io), false));
    let served: Vec<_> = (0..250).map_while(|_| serve(&mut scheduler, &mut now)).collect();
    let slices: Vec<_> = served.chunk_by(|a, b| a == b).map(|slice| (slice[0], slice.len())).collect();
    assert!(matches!(slices[..], [(A, 99..=101), (B, 99..=101), (A, _)]), "{slices:?}");
    let [a, b] = [A, B].map(|tenant| scheduler.books.usage(now, tenant));
    assert_eq!((a.owned_ns + b.owned_ns, a.completed.requests + b.completed.requests), (now, 250));
}

#[test]
fn an_idle_owner_keeps_its_slice_for_its_think_time_only() {
    let (mut scheduler, mut now) = (scheduler(None), 0);
    scheduler.arrived(0, A, entry(0), false);
    scheduler.arrived(0, B, entry(1), false);
    assert_eq!(serve(&mut scheduler, &mut now), Some(A));
    assert_eq!(serve(&mut scheduler, &mut now), None, "the disk idles for A");
    let until = scheduler.poll_timeout().expect("not for ever");
    assert!(until > now && until <= now + HOLD_MAX_NS, "{until}");
    now = until;
    assert_eq!(serve(&mut scheduler, &mut now), Some(B));
    let past = scheduler.past_slices();
    assert_eq!((past.len(), past[0].tenant, past[0].ended), (1, A, until));
    assert_eq!(scheduler.policy.ends, [(A, (1000 * MS - until) as i64, false)]);
}
