//! Ceilings: what the clients of a tenant get at most, cache hits included.
//!
//! ```text
//!   header ─► Volumes::begin ─┬─ within the ceilings ──────────────────────► start: partition, device, …
//!                             └─ held back, in the order of arrival            ▲
//!                                reads:   ▪▪▪▪▪▪▪   ─── the buckets allow it ──┤ Todo::Held, in the tenant's quantum
//!                                changes: ▪▪        ───────────────────────────┘
//! ```
//!
//! A request that is held back has an entry in the table of requests, and nothing else: no frames, no place in a queue
//! of the device. The payload of a write stays in the socket. Limits on requests in flight bound what a tenant may have
//! held back. Flushes and BLOCK_STATUS are never held back.
//!
//! While a tenant is held back, it has no demand ([`crate::disk::Device::set_held`]): the disk does not idle for it,
//! and live insulation does not count the time. A tenant whose requests of the other direction still arrive and are
//! served is not taken to be held back. They are served unless a request that arrived before them waits for a ceiling
//! on the total.
//!
//! Downside: a write that is held back stops its connection, because its payload comes next in the socket.

use std::collections::VecDeque;

use super::bucket::Bucket;
use super::{Effect, Inbound, Kind, Request, Timer, Todo, Volumes};
use crate::ids::{ConnId, TenantId};
use crate::spec::{Ceiling, Ceilings, IO_BYTES};
use crate::units::{Nanos, PIECE, SECOND};

/// Requests are released at most this often: the thread spends little on timers, and the buckets save what is not used
/// meanwhile.
const TICK_NS: Nanos = 100_000;
/// A tenant whose requests of one direction are held back is served in the other one if a request was served there in
/// this time.
const PASSES_NS: Nanos = SECOND;
/// Units of work to release a request.
const RELEASE_UNITS: u32 = 2;

/// Indices of buckets and queues.
const READS: usize = 0;
const CHANGES: usize = 1;
const TOTAL: usize = 2;

/// What a request takes of the ceilings.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// [`READS`] or [`CHANGES`].
    side: usize,
    bytes: u64,
    ios: u64,
}

/// The buckets of a tenant, and its requests that are held back.
#[derive(Default, Debug)]
pub(crate) struct Throttle {
    bytes: [Option<Bucket>; 3],
    ios: [Option<Bucket>; 3],
    /// Requests that are held back, in order of arrival.
    held: [VecDeque<u32>; 2],
    /// When the last request went without being held back, or hardly, while others were.
    passed_at: Option<Nanos>,
    /// When requests may be released, or the tenant counts as held back because none passed.
    due_at: Option<Nanos>,
    /// Since when requests have been held back; and the time before.
    since: Option<Nanos>,
    past_ns: Nanos,
    /// The least time in which the ceilings allow what was taken.
    ceiling_ns: Nanos,
}

impl Throttle {
    fn set(&mut self, now: Nanos, ceilings: &Ceilings) {
        let adapt = |buckets: &mut [Option<Bucket>; 3], Ceiling { total, read, write }: Ceiling| {
            for (bucket, rate) in buckets.iter_mut().zip([read, write, total]) {
                match (bucket.as_mut(), rate) {
                    (Some(bucket), Some(rate)) => bucket.set(now, rate, ceilings.burst_ns),
                    _ => *bucket = rate.map(|rate| Bucket::new(now, rate, ceilings.burst_ns)),
                }
            }
        };
        adapt(&mut self.bytes, ceilings.bytes);
        adapt(&mut self.ios, ceilings.ios);
    }

    fn of(&self, at: usize) -> impl Iterator<Item = &Bucket> {
        [self.bytes[at].as_ref(), self.ios[at].as_ref()].into_iter().flatten()
    }

    fn is_ready(&self, now: Nanos, side: usize) -> bool {
        self.of(side).chain(self.of(TOTAL)).all(|bucket| bucket.is_ready(now))
    }

    /// Whether a request of this side is held back that waits for the total only.
    fn waits_for_total(&self, now: Nanos, side: usize) -> bool {
        !self.held[side].is_empty() && self.of(TOTAL).next().is_some() && self.of(side).all(|own| own.is_ready(now))
    }

    fn ready_at(&self, side: usize) -> Nanos {
        self.of(side).chain(self.of(TOTAL)).map(Bucket::ready_at).max().unwrap_or(0)
    }

    fn take(&mut self, now: Nanos, Cost { side, bytes, ios }: Cost) {
        let buckets = self.bytes.iter_mut().map(|bucket| (bucket, bytes));
        let buckets = buckets.zip(self.ios.iter_mut().map(|bucket| (bucket, ios))).enumerate();
        let of_side = buckets.filter(|&(at, _)| at == side || at == TOTAL).flat_map(|(_, (bytes, ios))| [bytes, ios]);
        let times = of_side.filter_map(|(bucket, units)| Some(bucket.as_mut()?.take(now, units)));
        self.ceiling_ns = self.ceiling_ns.saturating_add(times.max().unwrap_or(0));
    }

    fn holds_any(&self) -> bool {
        self.held.iter().any(|queue| !queue.is_empty())
    }

    /// Whether a request of this side may go now, without one that arrived before it.
    fn admits(&self, now: Nanos, side: usize) -> bool {
        let waits = !self.held[side].is_empty() || self.waits_for_total(now, 1 - side);
        !waits && self.is_ready(now, side)
    }

    /// The least time in which the ceilings allow what the clients got.
    pub(crate) fn ceiling_ns(&self) -> Nanos {
        self.ceiling_ns
    }

    /// Time in which requests were held back.
    pub(crate) fn throttled_ns(&self, now: Nanos) -> Nanos {
        self.past_ns + self.since.map_or(0, |since| now - since)
    }
}

impl Volumes {
    /// Sets the ceilings of a tenant, at once. Requests that are held back and no longer need to be go.
    pub(crate) fn set_ceilings(&mut self, tenant: TenantId, ceilings: &Ceilings) {
        if !ceilings.is_some() && !self.throttles.contains(tenant) {
            return;
        }
        if !self.throttles.contains(tenant) {
            self.throttles.insert(tenant, Throttle::default());
        }
        self.throttles[tenant].set(self.now, ceilings);
        self.put_off(Todo::Held(tenant));
    }

    /// What a request takes of the ceilings; `None` if it is never held back. A TRIM, and a WRITE_ZEROES that the
    /// device carries out, move no data.
    fn cost(&self, request: u32) -> Option<Cost> {
        let state = &self.requests[request];
        let bytes = state.end - state.start;
        let (side, bytes) = match state.kind {
            Kind::Read => (READS, bytes),
            Kind::Cache => (READS, bytes.min(self.cache_bytes_max(state.volume))),
            Kind::Write => (CHANGES, bytes),
            Kind::Zeroes if self.zeroed_by_device(request).is_none() => (CHANGES, bytes),
            Kind::Trim | Kind::Zeroes => (CHANGES, 0),
            Kind::Flush | Kind::Status | Kind::Demote => return None,
        };
        let bytes = if planted!(CeilingChargesFirstPiece) { bytes.min(PIECE) } else { bytes };
        Some(Cost { side, bytes, ios: bytes.div_ceil(IO_BYTES).max(1) })
    }

    /// Holds a request back if the ceilings of its tenant require it; else the request has been taken from the buckets.
    pub(crate) fn is_held_back(&mut self, tenant: TenantId, request: u32) -> bool {
        let Some(throttle) = self.throttles.get(tenant) else { return false };
        if self.requests[request].kind == Kind::Zeroes && self.is_too_slow(request) {
            // It is refused, which costs nothing.
            return false;
        }
        let (now, Some(cost)) = (self.now, self.cost(request)) else { return false };
        if throttle.admits(now, cost.side) {
            let throttle = &mut self.throttles[tenant];
            throttle.take(now, cost);
            if throttle.holds_any() {
                throttle.passed_at = Some(now);
                self.note_held(tenant);
                self.release_later(tenant);
            }
            return false;
        }
        let state = &mut self.requests[request];
        state.held_at = Some(now);
        let (conn, kind, bytes) = (state.conn, state.kind, state.end - state.start);
        let client = &mut self.clients[conn];
        match kind {
            Kind::Write => client.inbound = Inbound::Held,
            // As without ceilings, see `read_arrived`.
            Kind::Read if bytes > PIECE && !client.session.form.is_structured() => client.exclusive = Some(request),
            _ => {}
        }
        let throttle = &mut self.throttles[tenant];
        throttle.held[cost.side].push_back(request);
        if throttle.held[cost.side].len() == 1 {
            self.note_held(tenant);
            self.release_later(tenant);
        }
        true
    }

    /// Requests were held back, released or passed: tells the disk whether the tenant is held back by its ceilings.
    fn note_held(&mut self, tenant: TenantId) {
        let (now, throttle) = (self.now, &mut self.throttles[tenant]);
        if !throttle.holds_any() {
            throttle.passed_at = None;
            throttle.past_ns += throttle.since.take().map_or(0, |since| now - since);
        } else if throttle.since.is_none() {
            throttle.since = Some(now);
        }
        let passes = throttle.passed_at.is_some_and(|at| now < at + PASSES_NS);
        let is_held = throttle.since.is_some() && !passes;
        self.route.disk.set_held(now, tenant, is_held);
    }

    /// Sets the timer for the next release, and for the time at which the tenant counts as held back.
    fn release_later(&mut self, tenant: TenantId) {
        let throttle = &mut self.throttles[tenant];
        let sides = [READS, CHANGES].into_iter().filter(|&side| !throttle.held[side].is_empty());
        let Some(at) = sides.map(|side| throttle.ready_at(side)).min() else {
            throttle.due_at = None;
            return;
        };
        let passes_until = throttle.passed_at.map(|at| at + PASSES_NS).filter(|&until| until > self.now);
        let at = at.min(passes_until.unwrap_or(Nanos::MAX)).max(self.now + TICK_NS);
        throttle.due_at = Some(at);
        self.timers.wake_at(Timer::Ceilings, at);
    }

    /// Releases requests of the tenants for which it is time.
    pub(crate) fn release_due(&mut self) {
        for tenant in (0..self.throttles.past()).map(TenantId) {
            let Some(at) = self.throttles.get(tenant).and_then(|throttle| throttle.due_at) else { continue };
            if at <= self.now {
                self.put_off(Todo::Held(tenant));
            } else {
                self.timers.wake_at(Timer::Ceilings, at);
            }
        }
    }

    /// The server stops: new requests are refused, and those that are held back go at once.
    pub(crate) fn drain(&mut self, token: u64) {
        self.draining = Some(token);
        (0..self.throttles.past()).for_each(|tenant| self.put_off(Todo::Held(TenantId(tenant))));
        self.fail_lapsed();
    }

    /// Releases requests of a tenant, the oldest first, as far as the ceilings allow it.
    pub(crate) fn release_held(&mut self, tenant: TenantId) {
        while self.throttles.contains(tenant) {
            if self.work.is_spent() {
                return self.put_off(Todo::Held(tenant));
            }
            let Some((request, cost)) = self.next_released(tenant) else {
                self.note_held(tenant);
                return self.release_later(tenant);
            };
            let throttle = &mut self.throttles[tenant];
            throttle.held[cost.side].pop_front();
            throttle.take(self.now, cost);
            if self.requests[request].held_at.is_some_and(|at| self.now <= at + 2 * TICK_NS) {
                throttle.passed_at = Some(self.now);
            }
            self.charge(tenant, RELEASE_UNITS);
            let conn = self.unhold(tenant, request);
            self.start(request);
            self.effects.push(Effect::Recheck(conn));
        }
    }

    /// The oldest request that may go now. What is held back by a ceiling on the total holds back both sides.
    fn next_released(&self, tenant: TenantId) -> Option<(u32, Cost)> {
        let throttle = &self.throttles[tenant];
        let heads = [READS, CHANGES].into_iter().filter_map(|side| Some((*throttle.held[side].front()?, side)));
        let may_go = |side| throttle.is_ready(self.now, side) || self.draining.is_some();
        let is_crowded = |request: u32| {
            let Request { kind, volume, .. } = self.requests[request];
            matches!(kind, Kind::Trim | Kind::Zeroes) && self.volume(volume).crowded
        };
        let ready = heads.filter(|&(request, side)| may_go(side) && !is_crowded(request));
        let (request, _) = ready.min_by_key(|&(request, _)| self.requests[request].held_at)?;
        Some((request, self.cost(request)?))
    }

    /// A request is no longer held back: from now on it is demand.
    fn unhold(&mut self, tenant: TenantId, request: u32) -> ConnId {
        let (now, state) = (self.now, &mut self.requests[request]);
        let (conn, volume) = (state.conn, state.volume);
        let waited_ns = state.held_at.take().map_or(0, |at| now - at);
        self.table[volume].counters.ceiling_delay_ns += waited_ns;
        self.note_held(tenant);
        self.route.disk.begin_request(now, tenant);
        conn
    }

    /// A client has disconnected: its requests that are held back are dropped.
    pub(crate) fn forget_held(&mut self, tenant: TenantId, conn: ConnId) {
        for side in [READS, CHANGES] {
            let held = self.throttles.get(tenant).map_or(0, |throttle| throttle.held[side].len());
            for _ in 0..held {
                let Some(request) = self.throttles[tenant].held[side].pop_front() else { break };
                if self.requests[request].conn != conn {
                    self.throttles[tenant].held[side].push_back(request);
                    continue;
                }
                self.unhold(tenant, request);
                let state = &mut self.requests[request];
                state.next = state.end;
                self.finish(request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::disk::Op;
    use crate::errno::Errno;
    use crate::nbd::wire::{command, command_flag};
    use crate::spec::TenantSpec;
    use crate::units::{BLOCK, MILLISECOND};
    use crate::volume::Receive;
    use crate::volume::range::RANGES_MAX;
    use crate::volume::rig::Rig;

    const OWNER: TenantId = TenantId(0);
    const MIB: u64 = 1 << 20;

    fn only(part: fn(&mut Ceilings) -> &mut Option<NonZeroU64>, per_second: u64) -> Ceilings {
        let mut ceilings = Ceilings { burst_ns: 10 * MILLISECOND, ..Ceilings::default() };
        *part(&mut ceilings) = NonZeroU64::new(per_second);
        ceilings
    }

    fn ios(per_second: u64) -> Ceilings {
        only(|ceilings| &mut ceilings.ios.total, per_second)
    }

    fn rig(ceilings: Ceilings) -> Rig {
        let mut rig = Rig::new();
        rig.set_tenant(OWNER, TenantSpec { ceilings, ..TenantSpec::default() });
        rig
    }

    /// How many of these requests are answered.
    fn answered(rig: &Rig, cookies: std::ops::Range<u64>) -> usize {
        cookies.filter(|&cookie| rig.answer(cookie).is_some()).count()
    }

    #[test]
    fn requests_beyond_the_ceiling_wait_without_frames_and_go_in_order() {
        let mut rig = rig(ios(10));
        rig.ask(0, command::READ, 0, 0, BLOCK);
        rig.complete_all();
        let used = rig.volumes.cache.partition(OWNER).used;
        (1..=20).for_each(|cookie| rig.ask(cookie, command::READ, 0, cookie % 2 * BLOCK, BLOCK));
        assert_eq!((answered(&rig, 1..21), rig.device.len()), (0, 0));
        assert_eq!((rig.volumes.cache.partition(OWNER).used, rig.receive(ConnId(0))), (used, Receive::Header));
        for tenths in 1..=20 {
            rig.wait(SECOND / 10);
            rig.complete_all();
            assert_eq!((answered(&rig, 1..21), answered(&rig, 1..tenths + 1)), (tenths as usize, tenths as usize));
        }
        let throttle = &rig.volumes.throttles[OWNER];
        assert_eq!(throttle.throttled_ns(rig.now), 2 * SECOND);
        assert_eq!(
            rig.volumes.volume(crate::volume::rig::VOLUME).counters.ceiling_delay_ns,
            (1..=20).sum::<u64>() * SECOND / 10
        );
        rig.wait(SECOND);
        assert_eq!(rig.volumes.throttles[OWNER].throttled_ns(rig.now), 2 * SECOND);
    }

    #[test]
    fn a_flush_and_a_disconnect_do_not_wait() {
        let mut rig = rig(ios(1));
        rig.write(0, 0, 0, BLOCK, 7);
        rig.write(1, 0, BLOCK, BLOCK, 8);
        assert_eq!((rig.answer(0), rig.answer(1), rig.receive(ConnId(0))), (Some(0), None, Receive::Pause));
        rig.ask_as(ConnId(1), 2, command::READ, 0, 0, BLOCK);
        rig.ask_as(ConnId(1), 3, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        assert_eq!((rig.answer(2), rig.answer(3), rig.medium[0]), (None, Some(0), 7));
        rig.close(ConnId(0));
        rig.close(ConnId(1));
        assert_eq!((rig.volumes.clients.iter().count(), rig.volumes.cache.partition(OWNER).requests), (0, 0));
        assert!(!rig.volumes.throttles[OWNER].holds_any());
    }

    #[test]
    fn directions_have_ceilings_of_their_own() {
        let mut rig = rig(only(|ceilings| &mut ceilings.bytes.write, MIB));
        rig.write(0, 0, 0, MIB, 7);
        rig.ask_as(ConnId(1), 1, command::TRIM, 0, 0, BLOCK);
        rig.ask_as(ConnId(1), 2, command::READ, 0, 0, BLOCK);
        rig.complete_all();
        assert_eq!([1, 2].map(|cookie| rig.answer(cookie)), [None, Some(0)]);
        rig.wait(SECOND);
        assert_eq!(rig.answer(1), Some(0));
        // A TRIM moves no data.
        rig.write(3, 0, 0, BLOCK, 7);
        assert_eq!(rig.answer(3), Some(0));
    }

    #[test]
    fn a_large_read_behind_requests_that_are_held_back_ends_with_its_connection() {
        let mut rig = rig(only(|ceilings| &mut ceilings.bytes.write, MIB));
        rig.write(0, 0, 0, MIB, 7);
        rig.ask_as(ConnId(1), 1, command::TRIM, 0, 0, BLOCK);
        // Its simple reply must not be mixed with another one.
        rig.ask_as(ConnId(1), 2, command::READ, 0, 0, 2 * PIECE);
        assert_eq!((rig.answer(1), rig.volumes.clients[ConnId(1)].in_flight), (None, 2));
        rig.close(ConnId(1));
        rig.close(ConnId(0));
        rig.complete_all();
        assert_eq!((rig.volumes.clients.iter().count(), rig.volumes.cache.partition(OWNER).requests), (0, 0));
    }

    #[test]
    fn zeros_cost_what_is_written_of_them_and_nothing_if_they_are_refused() {
        let mut rig = Rig::with(128, |spec| (spec.can_zero, spec.can_punch) = (false, false));
        let ceilings = only(|ceilings| &mut ceilings.bytes.write, MIB);
        rig.set_tenant(OWNER, TenantSpec { ceilings, ..TenantSpec::default() });
        rig.ask(0, command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 2 * MIB);
        assert_eq!(rig.answer(0), Some(Errno::NotSupported as u32));
        rig.write(1, 0, 0, BLOCK, 7);
        assert_eq!(rig.answer(1), Some(0), "what is refused costs nothing");
        rig.write(2, 0, 0, MIB, 7);
        rig.ask_as(ConnId(1), 3, command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 2 * MIB);
        assert_eq!(rig.answer(3), Some(Errno::NotSupported as u32), "it is not held back");

        let mut rig = self::rig(ceilings);
        rig.ask(0, command::WRITE_ZEROES, 0, 0, 2 * MIB);
        rig.complete_all();
        rig.write(1, 0, 0, BLOCK, 7);
        assert_eq!([0, 1].map(|cookie| rig.answer(cookie)), [Some(0), Some(0)], "the device zeroes a large range");
        rig.wait(SECOND);
        rig.ask(2, command::WRITE_ZEROES, 0, 0, MIB / 2);
        rig.write(3, 0, 0, BLOCK, 7);
        assert_eq!([2, 3].map(|cookie| rig.answer(cookie)), [Some(0), None], "and a small one is written");
    }

    #[test]
    fn a_volume_has_no_more_ranges_when_many_are_released_at_once() {
        let mut rig = rig(only(|ceilings| &mut ceilings.ios.write, 1));
        let each = RANGES_MAX as u64;
        for cookie in 0..2 * each {
            rig.ask_as(ConnId((cookie / each) as u32), cookie, command::TRIM, 0, cookie % 4 * BLOCK, BLOCK);
        }
        assert!(answered(&rig, 0..2 * each) <= 1);
        rig.set_tenant(OWNER, TenantSpec::default());
        for _ in 0..1000 {
            assert!(rig.volumes.volume(crate::volume::rig::VOLUME).ranges.len() <= RANGES_MAX);
            rig.complete_all();
            rig.wait(10 * MILLISECOND);
        }
        assert_eq!(answered(&rig, 0..2 * each), 2 * each as usize);
    }

    /// A ceiling on the total, which does not limit the tenant, beside one on reads.
    #[test]
    fn a_tenant_whose_writes_are_served_is_not_held_back_until_they_end() {
        let reads_and_total = Ceiling { read: NonZeroU64::new(1), total: NonZeroU64::new(1000), write: None };
        let mut rig = rig(Ceilings { ios: reads_and_total, burst_ns: 10 * MILLISECOND, ..Ceilings::default() });
        let held_ns = |rig: &Rig| rig.volumes.route.disk.idle_held_ns(rig.now, OWNER)[0];
        (0..7).for_each(|cookie| rig.ask(cookie, command::READ, 0, 0, BLOCK));
        rig.complete_all();
        rig.wait(10 * MILLISECOND);
        let before_ns = held_ns(&rig);
        for cookie in 10..30 {
            rig.write_as(ConnId(1), cookie, 0, BLOCK, BLOCK, 7);
            assert_eq!(rig.answer(cookie), Some(0), "no read that is held back waits for the total");
            rig.wait(SECOND / 10);
        }
        assert_eq!((answered(&rig, 0..7), held_ns(&rig)), (3, before_ns));
        (0..30).for_each(|_| rig.wait(SECOND / 10));
        // The last write was 0.1 s before the wait.
        let held_ms = (held_ns(&rig) - before_ns) / MILLISECOND;
        assert!((2095..=2105).contains(&held_ms), "{held_ms} ms");
        assert_eq!(rig.volumes.throttles[OWNER].throttled_ns(rig.now), rig.now);
    }

    #[test]
    fn requests_that_wait_for_the_total_go_in_order_of_arrival() {
        let mut rig = rig(ios(10));
        (0..3).for_each(|cookie| rig.ask(cookie, command::READ, 0, 0, BLOCK));
        rig.complete_all();
        rig.ask_as(ConnId(1), 3, command::TRIM, 0, BLOCK, BLOCK);
        for (at, seen) in [(1, [true, false, false]), (2, [true, true, false]), (3, [true; 3])] {
            rig.wait(SECOND / 10);
            rig.complete_all();
            assert_eq!([1, 2, 3].map(|cookie| rig.answer(cookie).is_some()), seen, "after {at} tenths");
        }
    }

    #[test]
    fn a_large_request_counts_as_several_and_a_change_takes_effect_at_once() {
        let mut rig = rig(ios(4));
        rig.ask(0, command::READ, 0, 0, MIB + 1);
        rig.complete_all();
        rig.ask(1, command::READ, 0, 0, BLOCK);
        rig.wait(SECOND);
        assert_eq!(rig.answer(1), None, "five I/Os take longer than a second");
        rig.wait(SECOND / 4);
        assert_eq!(rig.answer(1), Some(0));
        (2..5).for_each(|cookie| rig.ask(cookie, command::READ, 0, 0, BLOCK));
        assert_eq!(answered(&rig, 2..5), 0);
        rig.set_tenant(OWNER, TenantSpec::default());
        assert_eq!(answered(&rig, 2..5), 3);
    }

    #[test]
    fn what_is_held_back_when_the_server_stops_goes_at_once() {
        let mut rig = rig(ios(1));
        (0..9).for_each(|cookie| rig.ask(cookie, command::WRITE_ZEROES, command_flag::NO_HOLE, cookie * BLOCK, BLOCK));
        assert_eq!(answered(&rig, 0..9), 1);
        rig.event(|volumes| volumes.drain(5));
        rig.complete_all();
        assert_eq!(answered(&rig, 0..9), 9);
        assert!(rig.ops().is_empty() && rig.drained.is_some() && rig.medium[8 * BLOCK as usize] == 0);
    }

    #[test]
    fn a_tenant_that_is_held_back_delays_no_other_one() {
        let mut rig = rig(ios(1));
        let other = TenantId(1);
        rig.set_tenant(other, TenantSpec::default());
        rig.open_volume(crate::spec::VolumeSpec::plain(crate::ids::VolumeId(1), other, MIB));
        rig.attach(ConnId(9), crate::ids::VolumeId(1));
        (0..100).for_each(|cookie| rig.ask(cookie, command::READ, 0, cookie * BLOCK, BLOCK));
        rig.ask_as(ConnId(9), 1000, command::READ, 0, 0, BLOCK);
        assert_eq!(rig.ops(), [Op::Read; 2]);
        rig.complete_all();
        assert_eq!((rig.answer(1000), rig.answer(0), answered(&rig, 0..100)), (Some(0), Some(0), 1));
    }
}
