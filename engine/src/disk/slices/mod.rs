//! The slice runner: carries out the slices that a policy decides. During a slice only its owner's requests go to the
//! device.
//!
//! ```text
//!   |a's slice         |  b's slice  |      c's slice       |  a's ...
//!   |switch| issue |drain|
//!    the heads   queued and     no further request
//!    return      new requests,  would complete in time:
//!                while they     the requests in the
//!                fit            device complete
//! ```
//!
//! - How many requests fit follows from the tenant's service times (`meter.rs`).
//! - A tenant without requests keeps its slice while idling takes less disk time than its return: anticipatory idling
//!   (`gap.rs`). Then the slice ends.
//! - The policy may interrupt a slice for another tenant: it drains, and the policy decides what follows.
//! - What goes to an empty device together, as the write-back that a flush waits for, is not divided between two
//!   slices: it waits for the next one if it fits into a slice, but not into the rest of this one. Write-back that can
//!   wait goes to the device in the slices that the policy has chosen for it ([`WriteBack`]).
//! - At most two sequential reads are in the device at once, more if they are small: a drive that reorders then keeps
//!   its place in the stream.
//! - While no other tenant wants the disk, a slice continues without a drain: a tenant alone loses nothing.
//! - A slice whose policy says what is enough ends early when the owner's clients have received that and another tenant
//!   wants the disk.
//! - A hung request delays the other tenants for [`STUCK_NS`] at most. Then they are served while it is in the device.
//!
//! Source: Argon (Wachs et al., FAST 2007), sections 3.4 and 4; `docs/design/slices.md`. Downside: response times are
//! rounds, not requests; devices that work on many requests in parallel are poorly utilised.

mod gap;
mod meter;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::books::Books;
use super::lanes::{Lane, Lanes, STUCK_NS};
use super::queue::{Backlog, Entry, Which};
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::{MILLISECOND, Nanos};
use gap::{Gap, RESERVE_NS};
use meter::{Meter, Watch};

/// At most two sequential reads are in the device at once, or more if they are small, up to these bytes: the next one
/// is there when one completes. Given a whole read-ahead window, command queueing may begin with the part that passes
/// first under the head, and complete last the block that the client waits for.
const FOLLOWERS_MAX: u32 = 2;
pub(crate) const FOLLOWING_BYTES: u64 = 256 << 10;
/// An idle drive has begun with a request by then: it takes 0.1 to 0.5 ms to process the command.
const CHOSEN_NS: Nanos = MILLISECOND;
/// Number of past slices that are kept for display.
pub const SLICES_KEPT: usize = 64;

/// A past slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// Its owner.
    pub tenant: TenantId,
    /// When it began.
    pub begun: Nanos,
    /// When it ended.
    pub ended: Nanos,
    /// Standalone-equivalent time of its work.
    pub useful_ns: Nanos,
}

/// What is known of a tenant from its slices.
#[derive(Debug)]
pub(crate) struct Habits {
    pub(crate) meter: Meter,
    gap: Gap,
    /// The tenant has been idle since then. While its ceilings hold it back, that moves on with the time.
    idle_since: Nanos,
    /// Since when its ceilings have held it back.
    held_since: Option<Nanos>,
    /// Sequential reads in the device, and their bytes.
    followers: u32,
    following: u64,
    useful_ns: Nanos,
    slices: u64,
    switches_ns: Nanos,
}

impl Habits {
    fn new(now: Nanos) -> Habits {
        Habits {
            meter: Meter::default(),
            gap: Gap::unknown(),
            idle_since: now,
            held_since: None,
            followers: 0,
            following: 0,
            useful_ns: 0,
            slices: 0,
            switches_ns: 0,
        }
    }

    /// For how long the tenant has been idle, without the time in which its ceilings held it back.
    fn idle_ns(&self, now: Nanos) -> Nanos {
        self.held_since.map_or(now, |since| since.max(self.idle_since)) - self.idle_since
    }

    /// Whether the request of the tenant that has just arrived found it idle after a pause, not only on the way to the
    /// client and back.
    pub(crate) fn has_paused(&self, now: Nanos, lane: &Lane) -> bool {
        lane.queue.len() == 1 && lane.in_service() == 0 && self.idle_ns(now) > RESERVE_NS
    }

    /// Until when the disk idles for the tenant, if it is idle and idling takes less disk time than its return. It does
    /// not idle for a tenant that its ceilings hold back.
    fn held_until(&self, now: Nanos, lane: &Lane, idling: Idling) -> Option<Nanos> {
        let idle_ns = self.idle_ns(now);
        let is_idle = is_idle(lane) && self.held_since.is_none();
        let timeout = is_idle.then(|| self.gap.idle_timeout(idle_ns, idling.most_ns, idling.return_ns));
        timeout.flatten().map(|timeout| self.idle_since + timeout)
    }

    /// How long the requests in the device take, and the queued ones that may go there now.
    pub(crate) fn batch_ns(&self, lanes: &Lanes, lane: &Lane) -> Nanos {
        self.meter.batch_ns(lane.in_service_ns() + at_once(lanes, lane).all_ns)
    }

    /// Whether the tenant is idle, and the disk would idle for it if it had become idle now.
    pub(crate) fn is_expected_anew(&self, lane: &Lane, idling: Idling) -> bool {
        let is_idle = lane.is_idle() && self.held_since.is_none();
        is_idle && self.gap.idle_timeout(0, idling.most_ns, idling.return_ns).is_some()
    }

    /// Whether the tenant is idle, and the disk would idle for it if its slice began now.
    pub(crate) fn is_expected(&self, now: Nanos, lane: &Lane, idling: Idling) -> bool {
        self.held_until(now, lane, idling).is_some()
    }
}

/// The queued requests of a tenant that may go to the device together now.
fn at_once(lanes: &Lanes, lane: &Lane) -> Backlog {
    let places = lanes.places(lane).saturating_sub(lane.in_device());
    lane.queue.backlog(places as usize, FOLLOWING_BYTES)
}

/// Whether a tenant has nothing for its slice: no request in the device, and none queued but write-back that can wait.
fn is_idle(lane: &Lane) -> bool {
    lane.in_service() == 0 && !lane.queue.is_awaited() && (lane.queue.is_empty() || lane.queue.has_batch())
}

/// What is known of the tenants from their slices.
pub(crate) type Observed = Table<TenantId, Habits>;

/// What a policy sees of the disk.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// Requests that are queued, in the device, or hung.
    pub(crate) lanes: &'a Lanes,
    /// What each tenant requested and got.
    pub(crate) books: &'a Books,
    /// Measurements on the tenants' slices; empty unless the policy has slices.
    pub(crate) slices: &'a Observed,
}

/// A slice to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// Its owner.
    pub(crate) tenant: TenantId,
    /// Its length.
    pub(crate) ns: Nanos,
    /// When it ends early if another tenant wants the disk.
    pub(crate) enough: Option<Enough>,
    /// It is time of others that the tenant borrows, with at most so many of its requests in the device at once. It
    /// shows nothing of what the tenant's own slices lose.
    pub(crate) lent: Option<u32>,
    /// The owner is idle, and has been waiting for other servers: its idle time counts from now on.
    pub(crate) awaits: bool,
    /// What a context switch costs on this disk.
    pub(crate) switch_ns: Nanos,
    /// Which write-back goes to the device.
    pub(crate) write_back: WriteBack,
}

/// Which write-back that can wait goes to the device in a slice while another tenant wants the disk. The drive sorts
/// it: divided between two slices it takes longer than in one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteBack {
    /// All of it.
    All,
    /// What is queued when the slice begins, and what arrives before that is written.
    Batch,
    /// None: it waits for a later slice.
    Later,
}

/// A slice may end early once all three conditions hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Enough {
    /// The owner's clients were sent so many bytes since the slice began.
    pub(crate) bytes: u64,
    /// The slice has lasted for this time.
    pub(crate) ns: Nanos,
    /// So many requests went to the device; at least one does in any case.
    pub(crate) requests: u32,
}

/// What bounds anticipatory idling for a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Idling {
    /// The length of its slice, or the rest of it: the disk idles for a tenant only within its own slice.
    pub(crate) most_ns: Nanos,
    /// The disk time that it takes to have the tenant back after its slice has ended.
    pub(crate) return_ns: Nanos,
}

/// Why a slice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// Its time is used up, and the owner had more requests.
    UsedUp,
    /// The owner has enough ([`Slot::enough`]), and another tenant wants the disk.
    Enough,
    /// The owner has no requests.
    Idle,
    /// The policy interrupted it ([`Slicing::interrupts`]).
    Interrupted,
}

/// How a slice ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// When.
    pub(crate) now: Nanos,
    /// Its owner.
    pub(crate) tenant: TenantId,
    /// The time that was left of it; negative if it was exceeded.
    pub(crate) left_ns: i64,
    /// Why it ended.
    pub(crate) cause: Cause,
    /// The disk idled for the owner, and its next request came.
    pub(crate) was_held: bool,
}

/// What the runner asks of the policy whose slices it carries out. A policy without slices needs none of this.
pub(crate) trait Slicing {
    /// What bounds idling for the tenant in its next slice. `None` if it had no work in the last rounds: the disk does
    /// not idle for it. By default the disk idles while the next request is likely to come within the slice.
    fn idling(&self, _tenant: TenantId) -> Option<Idling> {
        Some(Idling { most_ns: Nanos::MAX, return_ns: Nanos::MAX })
    }
    /// Whether the slice in progress, of which `left_ns` are left, ends now for another tenant. It drains first.
    fn interrupts(&mut self, _owner: TenantId, _left_ns: Nanos, _view: View<'_>) -> bool {
        false
    }
    /// The slice is used up, and no other tenant has work: the owner keeps the disk for at least this time. `None`: the
    /// slice ends nevertheless.
    fn continues(&mut self, _now: Nanos, _tenant: TenantId, _view: View<'_>) -> Option<Nanos> {
        Some(0)
    }
    /// The slice ended.
    fn ended(&mut self, _ended: Ended, _view: View<'_>) {}
}

/// The slice in progress.
#[derive(Debug)]
struct Current {
    owner: TenantId,
    begun: Nanos,
    /// When it should end.
    ends: Nanos,
    /// When it ends if another tenant waits. While none does, a backlog may extend the slice until its drain is over,
    /// which is no claim on the disk's time.
    granted: Nanos,
    /// What ends it early; the bytes count from the opening of the account.
    enough: Option<Enough>,
    /// See [`Slot::lent`].
    lent: Option<u32>,
    /// When the drain began, and why the slice ends: nothing more is issued.
    draining: Option<(Nanos, Cause)>,
    /// The owner is idle, and the disk idles for it until then.
    held_until: Option<Nanos>,
    /// The disk idled for the owner before, and its next request came.
    was_held: bool,
    issued: u32,
    /// See [`Slot::write_back`].
    write_back: WriteBack,
    /// The next request waits for requests in the device to complete: earlier sequential reads, or as many requests as
    /// the owner may have there. Or it waits for a later slice.
    is_held_up: bool,
    /// The sequential read in the device came to an idle drive, and is alone there until then: of two, the drive might
    /// begin with the later one.
    alone_until: Option<Nanos>,
    /// The time since which the next request has waited for earlier sequential reads.
    follows_since: Option<Nanos>,
    /// Requests of the slice hang, so its length says nothing about later slices.
    has_given_up: bool,
    watch: Watch,
}

impl Current {
    /// Nothing more is issued; when the device is empty, the slice ends for `cause`.
    fn drains(&mut self, now: Nanos, cause: Cause, lane: &Lane) -> Step {
        self.draining = Some((now, cause));
        self.watch.drain(now, lane.in_service(), lane.in_service_ns());
        Step::Again
    }

    /// The device is empty: how long the requests take that go there together now and for which clients wait; 0 if that
    /// is longer than a slice.
    fn at_once_ns(&self, lanes: &Lanes, lane: &Lane, meter: &Meter) -> Nanos {
        let ns = meter.drain_ns(at_once(lanes, lane).awaited_ns);
        if ns <= self.granted - self.begun { ns } else { 0 }
    }

    /// From when on the slice may end early, if its other conditions hold.
    fn enough_at(&self, books: &Books) -> Option<Nanos> {
        let has_enough = |enough: &Enough| {
            self.issued >= enough.requests.max(1) && books.delivered_bytes(self.owner) >= enough.bytes
        };
        self.enough.filter(has_enough).map(|enough| self.begun + enough.ns)
    }
}

/// What a slice does next.
#[derive(Debug)]
pub(super) enum Step {
    /// The owner's next request of these goes to the device.
    Issue(Which),
    /// Nothing goes to the device until an event occurs, or until [`Slices::poll_timeout`].
    Wait,
    /// The slice has changed: another step follows.
    Again,
    /// The slice has ended.
    Ended,
}

/// The slice runner.
#[derive(Default, Debug)]
pub(super) struct Slices {
    observed: Observed,
    current: Option<Current>,
    /// The owner of the last slice, if that ended because ceilings held the owner back: if its next slice follows,
    /// there is no context switch.
    held_owner: Option<TenantId>,
    past: VecDeque<Slice>,
}

/// The rest of the disk, which a slice acts on.
pub(super) struct Stage<'a, P: ?Sized> {
    pub(super) lanes: &'a mut Lanes,
    pub(super) books: &'a mut Books,
    pub(super) policy: &'a mut P,
}

impl Slices {
    pub(super) fn set_tenant(&mut self, now: Nanos, tenant: TenantId) {
        if self.observed.get(tenant).is_none() {
            self.observed.insert(tenant, Habits::new(now));
        }
    }

    /// Removes a tenant, whose slice must have ended.
    pub(super) fn drop_tenant(&mut self, tenant: TenantId) {
        self.observed.remove(tenant);
    }

    pub(super) fn observed(&self) -> &Observed {
        &self.observed
    }

    /// The owner of the slice in progress.
    pub(super) fn owner(&self) -> Option<TenantId> {
        self.current.as_ref().map(|current| current.owner)
    }

    /// The latest slices.
    pub(super) fn past(&self) -> Vec<Slice> {
        self.past.iter().copied().collect()
    }

    /// The number of the tenant's slices, the cost of its switches, and the standalone-equivalent time of its work.
    pub(super) fn of(&self, now: Nanos, tenant: TenantId) -> (u64, Nanos, Nanos) {
        let Some(habits) = self.observed.get(tenant) else { return (0, 0, 0) };
        let useful_ns = if self.owner() == Some(tenant) { self.useful_ns(now) } else { 0 };
        (habits.slices, habits.switches_ns, habits.useful_ns + useful_ns)
    }

    /// Standalone-equivalent time of the work in the present slice so far.
    pub(super) fn useful_ns(&self, now: Nanos) -> Nanos {
        self.current.as_ref().map_or(0, |current| self.observed[current.owner].meter.useful_ns(now, &current.watch))
    }

    /// A request of the tenant is about to be queued in its lane.
    pub(super) fn arrives(&mut self, now: Nanos, tenant: TenantId, lane: &Lane) {
        if lane.is_idle() {
            let habits = &mut self.observed[tenant];
            habits.gap.add(habits.idle_ns(now));
        }
    }

    /// Queued requests of the tenant were cancelled, or one in the device completed that does not hang.
    pub(super) fn left(&mut self, now: Nanos, tenant: TenantId, lane: &Lane) {
        if is_idle(lane) {
            self.observed[tenant].idle_since = now;
        }
    }

    /// The ceilings of the tenant hold it back from now on, or no longer.
    pub(super) fn set_held(&mut self, now: Nanos, tenant: TenantId, is_held: bool) {
        let habits = &mut self.observed[tenant];
        habits.idle_since += now - habits.idle_since - habits.idle_ns(now);
        habits.held_since = is_held.then_some(now);
    }

    /// A request completed that does not hang.
    pub(super) fn done(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, lane: &Lane) {
        if entry.reads_on() {
            // A request that was submitted at the very moment at which others were given up may have been counted as
            // one of them.
            let habits = &mut self.observed[tenant];
            habits.followers = habits.followers.saturating_sub(1);
            habits.following = habits.following.saturating_sub(entry.len);
        }
        if let Some(current) = self.current.as_mut().filter(|current| current.owner == tenant && !entry.internal) {
            current.watch.done(now, entry, lane.in_service() + 1);
            current.alone_until = None;
        }
        self.left(now, tenant, lane);
    }

    /// A slice begins.
    pub(super) fn begin(&mut self, now: Nanos, slot: Slot, lanes: &Lanes, books: &mut Books) {
        let owner = slot.tenant;
        let lane = &lanes[owner];
        if slot.awaits {
            self.observed[owner].idle_since = now;
        }
        let meter = &mut self.observed[owner].meter;
        if !lane.queue.is_empty() && slot.lent.is_none() {
            meter.begin(at_once(lanes, lane));
        }
        let switch_ns = if self.held_owner.take() == Some(owner) { 0 } else { slot.switch_ns };
        books.slice_begins(now, owner);
        self.current = Some(Current {
            owner,
            begun: now,
            ends: now + slot.ns,
            granted: now + slot.ns,
            enough: slot
                .enough
                .map(|enough| Enough { bytes: books.delivered_bytes(owner).saturating_add(enough.bytes), ..enough }),
            lent: slot.lent,
            draining: None,
            held_until: None,
            was_held: false,
            issued: 0,
            write_back: slot.write_back,
            is_held_up: false,
            alone_until: None,
            follows_since: None,
            has_given_up: false,
            watch: meter.watch(now, switch_ns),
        });
    }

    /// What the present slice does now.
    pub(super) fn step<P: Slicing + ?Sized>(&mut self, now: Nanos, stage: Stage<'_, P>) -> Step {
        if let Some((since, cause)) = self.current.as_ref().and_then(|current| current.draining) {
            return self.drain(now, since, cause, stage);
        }
        let Stage { lanes, books, policy } = stage;
        let current = self.current.as_mut().expect("a slice");
        let owner = current.owner;
        let lane = &lanes[owner];
        let others = lane.queue.len() < lanes.waiting();
        if others {
            current.ends = current.ends.min(current.granted.max(now));
        }
        current.alone_until = current.alone_until.filter(|&until| now < until);
        let left_ns = current.ends.saturating_sub(now);
        if policy.interrupts(owner, left_ns, View { lanes, books, slices: &self.observed }) {
            return current.drains(now, Cause::Interrupted, lane);
        }
        let habits = &mut self.observed[owner];
        if lanes.is_full() && lane.in_service() == 0 {
            return Step::Wait;
        }
        if others && current.enough_at(books).is_some_and(|at| now >= at) {
            return current.drains(now, Cause::Enough, lane);
        }
        let is_full = !lanes.has_place(lane) || current.lent.is_some_and(|most| lane.in_service() >= most);
        let left = current.ends.saturating_sub(now);
        let has_batch = lane.queue.has_batch();
        if current.write_back == WriteBack::Batch && !has_batch && !current.watch.is_writing() {
            current.write_back = WriteBack::Later;
        }
        let waits = others && has_batch && current.write_back == WriteBack::Later;
        let which = if waits { Which::Awaited } else { Which::All };
        current.is_held_up = is_full && others || waits;
        let Some(entry) = lane.queue.peek_of(which).filter(|_| !is_full) else {
            return self.pause(now, Stage { lanes, books, policy });
        };
        current.was_held |= current.held_until.take().is_some();
        let at_once_ns = if lane.in_service() == 0 { current.at_once_ns(lanes, lane, &habits.meter) } else { 0 };
        let is_of_batch = entry.can_wait && current.write_back == WriteBack::Batch;
        let cost_ns = lane.in_service_ns() + entry.cost_ns;
        let ns = if is_of_batch { habits.meter.batch_ns(cost_ns) } else { habits.meter.drain_ns(cost_ns) };
        let needs_ns = ns.max(at_once_ns);
        if needs_ns > left && current.issued > 0 {
            return self.is_over(now, needs_ns, Stage { lanes, books, policy });
        }
        let count = if current.alone_until.is_some() { 1 } else { FOLLOWERS_MAX };
        let are_many = habits.followers >= count && habits.following >= FOLLOWING_BYTES;
        if entry.reads_on() && are_many {
            let since = *current.follows_since.get_or_insert(now);
            current.is_held_up = now < since + habits.meter.drain_ns(lane.in_service_ns()) + STUCK_NS;
            if current.is_held_up {
                return Step::Wait;
            }
            // They hang.
            (habits.followers, habits.following) = (0, 0);
        }
        current.follows_since = None;
        current.issued += 1;
        current.watch.issued(now, entry, lane.in_service() == 0);
        if entry.reads_on() {
            if lane.in_service() == 0 {
                current.alone_until = Some(now + CHOSEN_NS);
            }
            habits.followers += 1;
            habits.following += entry.len;
        }
        Step::Issue(which)
    }

    /// The slice is too short for what the owner issues next: until that completes, it takes `needs_ns`.
    fn is_over<P: Slicing + ?Sized>(&mut self, now: Nanos, needs_ns: Nanos, stage: Stage<'_, P>) -> Step {
        let Stage { lanes, books, policy } = stage;
        let current = self.current.as_mut().expect("a slice");
        let owner = current.owner;
        let lane = &lanes[owner];
        // A client with one request outstanding has none queued at the moment at which a slice ends.
        let is_expected = |(tenant, habits): (TenantId, &Habits)| {
            let is_expected = |idling| habits.is_expected(now, &lanes[tenant], idling);
            tenant != owner && policy.idling(tenant).is_some_and(is_expected)
        };
        if lane.queue.len() < lanes.waiting() || self.observed.iter().any(is_expected) {
            return current.drains(now, Cause::UsedUp, lane);
        }
        // No other tenant has work: the owner's next slice follows without a drain.
        let next_ns = policy.continues(now, owner, View { lanes, books, slices: &self.observed });
        let Some(next_ns) = next_ns else { return current.drains(now, Cause::UsedUp, lane) };
        (current.ends, current.granted) = (now + next_ns.max(needs_ns), now + next_ns);
        current.enough = None;
        Step::Again
    }

    /// Nothing of the owner can be issued: nothing of these requests is queued, or the device takes no more.
    fn pause<P: Slicing + ?Sized>(&mut self, now: Nanos, stage: Stage<'_, P>) -> Step {
        let Stage { lanes, policy, .. } = &stage;
        let current = self.current.as_mut().expect("a slice");
        let owner = current.owner;
        let lane = &lanes[owner];
        if lane.in_service() > 0 {
            if now < current.ends || lane.queue.len() == lanes.waiting() {
                return Step::Wait;
            }
            // The slice is over, and the owner's requests in the device may hang.
            return current.drains(now, Cause::UsedUp, lane);
        }
        // The owner is idle: the disk idles for it until its idle timeout.
        let most_ns = current.ends.saturating_sub(now);
        let idling = policy.idling(owner).map(|idling| Idling { most_ns, ..idling });
        current.held_until = idling.and_then(|idling| self.observed[owner].held_until(now, lane, idling));
        if current.held_until.is_some_and(|until| now < until) {
            return Step::Wait;
        }
        let is_held = self.observed[owner].held_since.is_some();
        self.end(now, Cause::Idle, stage);
        self.held_owner = is_held.then_some(owner);
        Step::Ended
    }

    /// The drain has lasted since `since`; afterwards the slice ends for `cause`.
    fn drain<P: Slicing + ?Sized>(&mut self, now: Nanos, since: Nanos, cause: Cause, stage: Stage<'_, P>) -> Step {
        let owner = self.current.as_ref().expect("a slice").owner;
        let lane = &stage.lanes[owner];
        if lane.in_service() > 0 && !planted!(SliceNotDrained) {
            let habits = &mut self.observed[owner];
            let is_late = now >= since + habits.meter.drain_ns(lane.in_service_ns()) + STUCK_NS;
            if !is_late || planted!(HungRequestHoldsSlice) {
                return Step::Wait;
            }
            let given_up = stage.lanes.give_up(now, owner);
            stage.books.gave_up(now, owner, given_up);
            (habits.followers, habits.following) = (0, 0);
            self.current.as_mut().expect("a slice").has_given_up = true;
        }
        self.end(now, cause, stage);
        Step::Ended
    }

    /// Ends the slice.
    pub(super) fn end<P: Slicing + ?Sized>(&mut self, now: Nanos, cause: Cause, stage: Stage<'_, P>) {
        let Stage { lanes, books, policy } = stage;
        let current = self.current.take().expect("a slice");
        let Current { owner, begun, ends, watch, was_held, lent, has_given_up, .. } = current;
        let habits = &mut self.observed[owner];
        let useful_ns = match lent {
            _ if has_given_up => habits.meter.useful_ns(now, &watch),
            Some(_) => habits.meter.lent(now, &watch),
            None => habits.meter.slice(now, &watch, cause),
        };
        habits.slices += 1;
        habits.switches_ns += habits.meter.switch_ns(&watch);
        if cause == Cause::Idle && planted!(IdleSliceNotBooked) {
            books.slice_begins(now, owner);
            books.slice_ends(now, 0);
        } else {
            habits.useful_ns += useful_ns;
            books.slice_ends(now, useful_ns);
        }
        let ended = Ended { now, tenant: owner, left_ns: ends as i64 - now as i64, cause, was_held };
        policy.ended(ended, View { lanes, books, slices: &self.observed });
        if self.past.len() == SLICES_KEPT {
            self.past.pop_front();
        }
        self.past.push_back(Slice { tenant: owner, begun, ended: now, useful_ns });
    }

    /// When [`Slices::step`] may have another answer although no event occurred.
    pub(super) fn poll_timeout(&self, lanes: &Lanes, books: &Books) -> Option<Nanos> {
        let current = self.current.as_ref()?;
        let lane = &lanes[current.owner];
        let meter = &self.observed[current.owner].meter;
        if let Some((since, _)) = current.draining {
            return Some(since + meter.drain_ns(lane.in_service_ns()) + STUCK_NS);
        }
        let others = lane.queue.len() < lanes.waiting();
        // The owner only has requests in the device, which may hang, and another tenant waits.
        let ends = || (current.is_held_up || lane.queue.is_empty() && others).then_some(current.ends);
        let is_hung = lanes.is_full() && lane.in_service() == 0;
        let enough_at = current.enough_at(books).filter(|_| others && !is_hung);
        let alone_until = current.alone_until.filter(|_| !lane.queue.is_empty());
        current.held_until.or_else(ends).into_iter().chain(enough_at).chain(alone_until).min()
    }
}
