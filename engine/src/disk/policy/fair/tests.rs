//! Shares hold for all kinds of requests, latency-bound tenants are answered soon, and no tenant is delayed without
//! need.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::disk::policy::{Kind, Prices};
use crate::disk::profile::{Finding, Key, Profile, Quantile};
use crate::disk::scheduler::Scheduler;
use crate::ids::IoId;
use crate::units::Share;

const A: TenantId = TenantId(0);
const B: TenantId = TenantId(1);
const C: TenantId = TenantId(2);
const WRITE: Op = Op::Write { durable: false };
const SMALL: u64 = 4096;
const LARGE: u64 = 64 << 10;

fn settings(prices: Prices) -> Settings {
    Settings {
        kind: Kind::Insulated,
        depth: 128,
        insulation_permille: 900,
        switch_ns: 0,
        round_max_ns: SECOND,
        needs_slices: false,
        prices,
        stream_bytes_per_s: 100_000_000,
        seed: 0,
    }
}

/// A policy, a device that serves one unit of cost in a nanosecond, in order, and the cost that each tenant got.
struct Rig {
    policy: Scheduler<Fair>,
    now: Nanos,
    requests: Vec<(TenantId, Entry, Nanos)>,
    in_device: VecDeque<IoId>,
    /// Cost that was submitted to the device, by tenant.
    given_ns: Vec<u64>,
}

impl Rig {
    fn new(prices: Prices, percents: &[u64]) -> Rig {
        let settings = settings(prices);
        let mut policy = Scheduler::new(Box::new(Fair::new(settings)), settings.depth);
        for (tenant, &percent) in (0..).zip(percents) {
            policy.set_tenant(0, TenantId(tenant), Share::from_ppb(percent * 10_000_000).into());
        }
        let given_ns = vec![0; percents.len()];
        Rig { policy, now: 0, requests: Vec::new(), in_device: VecDeque::new(), given_ns }
    }

    fn ask(&mut self, tenant: TenantId, op: Op, len: u64) {
        let io = IoId(self.requests.len() as u32);
        let cost_ns = self.policy.cost_ns(tenant, op, len, false);
        let entry = Entry { io, op, len, cost_ns, ..Entry::EMPTY };
        self.requests.push((tenant, entry, 0));
        self.policy.arrived(self.now, tenant, entry, false);
    }

    /// Submits the next request if the policy permits one. Returns its tenant.
    fn next(&mut self) -> Option<TenantId> {
        let io = self.policy.next(self.now)?.1.io;
        let (tenant, entry, submitted) = &mut self.requests[io.0 as usize];
        *submitted = self.now;
        self.given_ns[tenant.0 as usize] += entry.cost_ns;
        self.in_device.push_back(io);
        Some(*tenant)
    }

    fn fill(&mut self) {
        while self.next().is_some() {}
    }

    /// Completes the oldest request in the device, after the time that it costs by the profile. Returns its tenant.
    fn complete(&mut self) -> TenantId {
        let io = self.in_device.pop_front().expect("something is in the device");
        let (tenant, entry, submitted) = self.requests[io.0 as usize];
        self.policy.books.delivered(tenant, entry.len);
        self.now += self.policy.policy.settings.prices.cost_ns(entry.op, entry.len) as Nanos;
        self.policy.done(self.now, tenant, &entry, submitted);
        tenant
    }

    /// A sends one request and gets its answer. Whenever a request of B completes before, B sends another one.
    fn answer_one(&mut self) {
        self.ask(A, Op::Read, SMALL);
        self.fill();
        while self.complete() != A {
            self.ask(B, Op::Read, SMALL);
            self.fill();
        }
    }

    /// Two backlogged tenants, each with 64 requests of its size, until `until`.
    fn backlogged<const TENANTS: usize>(&mut self, lens: [u64; TENANTS], until: Nanos) {
        for (tenant, len) in (0..).zip(lens) {
            (0..64).for_each(|_| self.ask(TenantId(tenant), Op::Read, len));
        }
        while self.now < until {
            self.fill();
            let tenant = self.complete();
            self.ask(tenant, Op::Read, lens[tenant.0 as usize]);
        }
    }
}

/// A device with this throttle that takes 1 ms for a request and serves four at a time.
fn throttled(requests_per_s: f64) -> Prices {
    let mut profile = Profile::default();
    let found = Key::all().filter_map(|key| {
        let value = match key {
            Key::Random(_, bytes, depth) => (1000.0 * f64::from(depth).min(4.0)).min(1e9 / f64::from(bytes)),
            Key::ThrottleRequests => requests_per_s,
            _ => return None,
        };
        Some((key, Finding::plain(Some(value))))
    });
    let found: Vec<_> = found.collect();
    profile.take(&found, 0);
    Prices::of(&profile).unwrap()
}

/// A device of 10,000 small reads and as many writes a second that serves ten at a time; a read right behind writes
/// takes `behind_writes_ns` longer.
fn programming(behind_writes_ns: f64) -> Prices {
    let mut profile = Profile::default();
    let found = Key::all().filter_map(|key| {
        let value = match key {
            Key::Random(_, bytes, depth) => (1000.0 * f64::from(depth).min(10.0)).min(4e7 / f64::from(bytes)),
            Key::ServiceTime(Direction::Read, Quantile::P95) => 1e6,
            Key::ReadBehindWrites(Quantile::P95) => 1e6 + behind_writes_ns,
            _ => return None,
        };
        Some((key, Finding::plain(Some(value))))
    });
    let found: Vec<_> = found.collect();
    profile.take(&found, 0);
    Prices::of(&profile).unwrap()
}

impl Rig {
    /// A client with one read outstanding (A), next to one with 64 requests of `op` (B) and a reader of depth 64 (C),
    /// for four seconds. Returns the directions in which backlogged tenants' requests were submitted in the last three,
    /// with their times.
    fn one_beside(&mut self, op: Op) -> Vec<(Nanos, Direction)> {
        let ops = [Op::Read, op, Op::Read];
        [(A, 1), (B, 64), (C, 64)]
            .into_iter()
            .for_each(|(tenant, count)| (0..count).for_each(|_| self.ask(tenant, ops[tenant.0 as usize], SMALL)));
        let mut went = Vec::new();
        while self.now < 4 * SECOND {
            while let Some(tenant) = self.next() {
                let (_, entry, _) = self.requests[self.in_device.back().unwrap().0 as usize];
                went.extend((tenant != A && self.now >= SECOND).then_some((self.now, entry.direction())));
            }
            if self.in_device.is_empty() {
                self.now = self.policy.poll_timeout().expect("somebody waits").max(self.now);
                continue;
            }
            let tenant = self.complete();
            self.ask(tenant, ops[tenant.0 as usize], SMALL);
            if self.now < SECOND {
                self.given_ns = vec![0; 3];
            }
        }
        went
    }
}

#[test]
fn where_reads_suffer_from_writes_they_have_turns_and_each_its_part() {
    let mut rig = Rig::new(programming(2e6), &[33, 33, 33]);
    let went = rig.one_beside(WRITE);
    let turns: Vec<_> = went.chunk_by(|a, b| a.1 == b.1).map(|turn| (turn[0].0, turn[0].1)).collect();
    // 2 ms are lost in a phase, so a read phase lasts at least 18 ms, and a write phase half of that.
    let cycles = turns.iter().filter(|turn| turn.1 == Direction::Write).count();
    assert!((80..=115).contains(&cycles), "{cycles}");
    let part = |tenant: TenantId| rig.given_ns[tenant.0 as usize] as f64 / (3 * SECOND) as f64;
    assert!((part(B) - 1.0 / 3.0).abs() < 0.02, "{}", part(B));
    // The latency-bound tenant gets the rest of a device that serves one request after the other, and is never held
    // back.
    assert!(part(A) > 0.02 && part(C) >= 0.9 / 3.0, "{} {}", part(A), part(C));
    for turn in turns.windows(2).filter(|turn| turn[1].1 == Direction::Read) {
        let wrote =
            went.iter().filter(|(at, direction)| (turn[0].0..turn[1].0).contains(at) && *direction == Direction::Write);
        let programmed_at = turn[0].0 + wrote.count() as Nanos * 100_000;
        assert!(turn[1].0 >= programmed_at, "reads went at {} ns, and it was programmed at {programmed_at}", turn[1].0);
    }
}

#[test]
fn there_are_no_turns_without_writes_or_where_reads_do_not_suffer() {
    let mut readers = Rig::new(programming(2e6), &[33, 33, 33]);
    readers.one_beside(Op::Read);
    assert!(!readers.policy.policy.turns.are_taken());
    // A fifth of the time of a read alone.
    let mut mixed = Rig::new(programming(2e5), &[33, 33, 33]);
    mixed.one_beside(WRITE);
    assert!(!mixed.policy.policy.turns.are_taken());
}

#[test]
fn backlogged_tenants_get_their_shares_of_the_cost_whatever_their_requests() {
    for (percents, ratio) in [([50, 50], 1.0), ([75, 25], 3.0), ([10, 10], 1.0)] {
        let mut rig = Rig::new(Prices::default(), &percents);
        rig.backlogged([SMALL, LARGE], SECOND / 2);
        let found = rig.given_ns[0] as f64 / rig.given_ns[1] as f64;
        assert!((found / ratio - 1.0).abs() < 0.02, "{percents:?}: {found}");
    }
}

/// Whether the shares exceed the device or leave nothing to a tenant without one.
#[test]
fn guarantees_of_the_whole_device_leave_the_others_their_parts() {
    for (percents, without, expected) in [([75, 75, 10], false, 0.0625), ([50, 50, 10], true, 0.0099)] {
        let mut rig = Rig::new(Prices::default(), &percents);
        for (tenant, percent) in (0..2).zip(percents) {
            let share = Share::from_ppb(percent * 10_000_000);
            rig.policy.set_tenant(0, TenantId(tenant), Terms { min_bytes_per_s: 1 << 40, ..share.into() });
        }
        if without {
            rig.policy.set_tenant(0, TenantId(2), Terms::default());
        }
        rig.backlogged([SMALL, LARGE, SMALL], SECOND);
        let found = rig.given_ns[2] as f64 / rig.given_ns.iter().sum::<u64>() as f64;
        assert!((found / expected - 1.0).abs() < 0.1, "{percents:?}: {found}");
    }
}

#[test]
fn a_guarantee_needs_no_share() {
    let mut rig = Rig::new(Prices::default(), &[50, 50]);
    rig.policy.set_tenant(0, B, Terms { min_bytes_per_s: 1 << 20, ..Terms::default() });
    (0..200).for_each(|_| rig.ask(A, Op::Read, LARGE));
    rig.fill();
    rig.ask(B, Op::Read, SMALL);
    assert!(rig.policy.policy.due(&rig.policy.policy.tenants[B]) < Nanos::MAX, "it goes first");
}

#[test]
fn in_the_device_is_what_fills_it_and_not_more() {
    let mut rig = Rig::new(Prices::default(), &[50, 50]);
    rig.backlogged([SMALL, SMALL], SECOND / 10);
    rig.fill();
    let each = rig.policy.policy.settings.prices.load_ppm(Op::Read, SMALL);
    let load = each * rig.in_device.len() as u64;
    assert!((rig.policy.policy.knee_ppm..rig.policy.policy.knee_ppm + each).contains(&load), "{load}");
}

#[test]
fn a_tenant_alone_is_not_held_back() {
    let mut rig = Rig::new(throttled(100.0), &[1]);
    (0..200).for_each(|_| rig.ask(A, Op::Read, 1 << 20));
    rig.fill();
    assert_eq!((rig.in_device.len(), rig.policy.request_bytes_max(A, Op::Read)), (96, u64::MAX));
}

#[test]
fn a_latency_bound_tenant_goes_at_once_and_finds_little_before_it() {
    let mut rig = Rig::new(Prices::default(), &[50, 50]);
    (0..200).for_each(|_| rig.ask(B, Op::Read, LARGE));
    rig.ask(A, Op::Read, SMALL);
    let alone_ns = Prices::default().alone_ns(Op::Read, SMALL);
    let (mut worst_ns, mut asked_at, mut answers) = (0, 0, 0);
    while answers < 1000 {
        rig.fill();
        if rig.complete() == A {
            worst_ns = worst_ns.max(if answers > 50 { rig.now - asked_at } else { 0 });
            (answers, asked_at) = (answers + 1, rig.now);
            rig.ask(A, Op::Read, SMALL);
            let next = rig.next();
            assert!(answers <= 50 || next == Some(A), "at once, when it is known");
        } else {
            rig.ask(B, Op::Read, LARGE);
        }
    }
    // One request of the other tenant is always permitted.
    let allowed_ns = alone_ns / 0.45 + Prices::default().cost_ns(Op::Read, LARGE);
    assert!((worst_ns as f64) < allowed_ns, "{worst_ns} {allowed_ns}");
    assert!(rig.given_ns[1] > 5 * rig.given_ns[0], "what the latency-bound tenant leaves is used");
}

#[test]
fn below_a_throttle_requests_wait_here_and_not_in_it() {
    let mut rig = Rig::new(throttled(1000.0), &[50, 50]);
    [A, B].into_iter().for_each(|tenant| (0..2000).for_each(|_| rig.ask(tenant, Op::Read, SMALL)));
    let mut went = 0;
    while rig.now < SECOND {
        while rig.next().is_some() {
            went += 1;
            rig.complete();
        }
        rig.now = rig.policy.poll_timeout().expect("it is held").max(rig.now);
    }
    assert!((960..=1000).contains(&went), "{went}");
    assert!(rig.given_ns[0].abs_diff(rig.given_ns[1]) <= rig.given_ns[0] / 50, "{:?}", rig.given_ns);
}

#[test]
fn what_the_device_keeps_is_written_off_and_may_still_come_back() {
    let mut rig = Rig::new(Prices::default(), &[50, 50]);
    [A, B].into_iter().for_each(|tenant| (0..500).for_each(|_| rig.ask(tenant, Op::Read, SMALL)));
    rig.fill();
    let stuck = rig.in_device.len();
    while rig.now < STUCK_NS {
        rig.now = rig.policy.poll_timeout().expect("a look at what is stuck");
        rig.fill();
        assert_eq!(rig.in_device.len(), stuck, "more went at {} ns", rig.now);
    }
    assert_eq!(rig.now, STUCK_NS);
    assert_eq!(rig.in_device.len(), stuck, "not yet: who goes now could not be told from who is stuck");
    rig.now = rig.policy.poll_timeout().unwrap();
    rig.fill();
    assert_eq!(rig.in_device.len(), (2 * stuck).min(128));
    while !rig.in_device.is_empty() {
        rig.complete();
    }
    assert_eq!((rig.policy.books.cost_ns(), rig.policy.policy.load_ppm), (0, 0));
    assert!(rig.policy.lanes.iter().all(|(_, lane)| (lane.in_device(), lane.in_service_ns()) == (0, 0)));
}

#[test]
fn however_many_requests_do_not_come_back_others_are_served() {
    let mut rig = Rig::new(Prices::default(), &[40, 40, 10]);
    [B, C].into_iter().for_each(|tenant| (0..300).for_each(|_| rig.ask(tenant, Op::Read, SMALL)));
    rig.ask(A, Op::Read, SMALL);
    let mut served = 0;
    while rig.now < 60 * SECOND {
        // All requests of the other tenants hang.
        while rig.now < 60 * SECOND
            && let Some(tenant) = rig.next()
        {
            if tenant != A {
                continue;
            }
            let io = rig.in_device.pop_back().expect("it went");
            let (_, entry, submitted) = rig.requests[io.0 as usize];
            rig.now += MILLISECOND;
            rig.policy.done(rig.now, A, &entry, submitted);
            (served, rig.given_ns[0]) = (served + 1, 0);
            rig.ask(A, Op::Read, SMALL);
        }
        rig.now = rig.policy.poll_timeout().unwrap_or(0).max(rig.now + 1);
    }
    assert!(rig.in_device.len() < 128, "{}", rig.in_device.len());
    assert!(served > 40_000, "{served}");
}

#[test]
fn weights_move_among_backlogged_tenants_only() {
    const LOOK_NS: Nanos = 100 * MILLISECOND;
    let mut rig = Rig::new(programming(0.0), &[30, 30, 30]);
    let fair = &mut *rig.policy.policy;
    // The last tenant is latency-bound. Whatever the weights are, the first one keeps half of its share.
    let kept = [0.5, 1.5, 1.0];
    let mut now = 0;
    let mut look = |fair: &mut Fair, looks: u64| {
        for _ in 0..looks {
            now += LOOK_NS;
            for (tenant, kept) in fair.tenants.values_mut().zip(kept) {
                (tenant.active, tenant.behind) = (true, if kept == 1.0 { 1.0 } else { 0.0 });
                tenant.wanted_ns += LOOK_NS;
                tenant.useful_ns += LOOK_NS as f64 * kept / 3.0;
            }
            fair.active_ppb = fair.tenants.values().map(|tenant| tenant.weight).sum();
            fair.balance(now, 0.9);
        }
        [A, B, C].map(|id| fair.tenants[id].kept.pull)
    };
    let [slow, fast, latency_bound] = look(fair, 12);
    assert!(slow > 1.2 && fast < 0.8 && latency_bound == 1.0, "{slow} {fast} {latency_bound}");
    assert!((slow + fast - 2.0).abs() < 1e-6, "their weights together are what they were: {slow} {fast}");
    fair.tenants[A].active = false;
    fair.balance(now + LOOK_NS, 0.9);
    assert_eq!(fair.tenants[A].kept.pull, 1.0, "who comes back begins anew");
}

#[test]
fn the_devices_time_is_divided_among_those_who_have_something_in_it() {
    let mut rig = Rig::new(Prices::default(), &[50, 50]);
    rig.backlogged([SMALL, LARGE], SECOND / 2);
    let [a, b] = [A, B].map(|tenant| rig.policy.books.usage(rig.now, tenant));
    assert!((a.owned_ns + b.owned_ns).abs_diff(rig.now) < 1000, "{a:?} {b:?}");
    let a = rig.policy.plan(rig.now, A).unwrap();
    // The device is as fast as its prices say, and each tenant had half of it.
    assert!((a.useful_ns as f64 / rig.now as f64 - 0.5).abs() < 0.02, "{a:?}");
}

#[test]
fn a_client_that_waits_for_a_processor_is_not_taken_for_one_that_thinks() {
    let mut rig = Rig::new(Prices::default(), &[50, 50]);
    // A sends one request at a time, with think time `gap_ns`, for `more_ns`. Returns the useful time per answer.
    let one_at_a_time = |rig: &mut Rig, gap_ns: Nanos, more_ns: Nanos| {
        let from = rig.policy.plan(rig.now, A).unwrap().useful_ns;
        let (begun, mut answers) = (rig.now, 0);
        while rig.now < begun + more_ns {
            rig.answer_one();
            answers += 1;
            rig.now += gap_ns;
        }
        (rig.policy.plan(rig.now, A).unwrap().useful_ns - from) / answers
    };
    one_at_a_time(&mut rig, 50_000, SECOND);
    let alone_ns = one_at_a_time(&mut rig, 50_000, SECOND);
    assert!(alone_ns.abs_diff(60_000) < 3_000, "{alone_ns}");
    rig.ask(B, Op::Read, SMALL);
    let beside_ns = one_at_a_time(&mut rig, 400_000, SECOND / 2);
    assert!(beside_ns.abs_diff(alone_ns) < alone_ns / 10, "{alone_ns} {beside_ns}");
}

#[test]
fn who_was_never_alone_is_believed_to_think_for_the_least_of_its_gaps() {
    let mut rig = Rig::new(Prices::default(), &[50, 50]);
    // The first request must not come after a short pause.
    rig.now = 2 * MILLISECOND;
    (0..4).for_each(|_| rig.ask(B, Op::Read, SMALL));
    rig.fill();
    let mut answers = 0;
    while rig.now < SECOND {
        rig.answer_one();
        answers += 1;
        // Now and then the server's thread has no other work, and the pause is short.
        let until = rig.now + if answers % 16 == 0 { 50_000 } else { 400_000 };
        while rig.now < until {
            let tenant = rig.complete();
            rig.ask(tenant, Op::Read, SMALL);
            rig.fill();
        }
    }
    let each_ns = rig.policy.plan(rig.now, A).unwrap().useful_ns / answers;
    assert!(each_ns.abs_diff(150_000) < 10_000, "100 us alone by the profile, 50 us until it asks again: {each_ns}");
}

/// A step of a property test: a tenant sends a request, or a request is submitted to the device.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u32, bool, u64),
    Go,
}

/// Generalised processor sharing (Parekh and Gallager 1993): divides `amount` by weight among the tenants that have not
/// received all that they requested.
fn flow(fluid: &mut [f64], asked: &[f64], weights: &[u64], mut amount: f64) {
    while amount > 1e-6 {
        let waits: Vec<usize> = (0..fluid.len()).filter(|&at| asked[at] - fluid[at] > 1e-6).collect();
        let all: u64 = waits.iter().map(|&at| weights[at]).sum();
        let until_one_is_done = waits.iter().map(|&at| (asked[at] - fluid[at]) * all as f64 / weights[at] as f64);
        let now = until_one_is_done.fold(amount, f64::min);
        waits.iter().for_each(|&at| fluid[at] += now * weights[at] as f64 / all as f64);
        amount -= now;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No tenant lags behind a fluid server by more than the largest request of each tenant plus its own largest once
    /// more.
    #[test]
    fn nobody_lags_behind_a_fluid(
        percents in prop::collection::vec(1u64..30, 2..5),
        steps in prop::collection::vec(prop_oneof![
            (0u32..4, any::<bool>(), 1u64..256)
                .prop_map(|(tenant, is_read, blocks)| Step::Ask(tenant, is_read, blocks * SMALL)),
            Just(Step::Go),
        ], 1..800),
    ) {
        let mut rig = Rig::new(Prices::default(), &percents);
        let count = percents.len();
        // All tenants are active from the beginning.
        (0..count as u32).for_each(|tenant| rig.ask(TenantId(tenant), Op::Read, SMALL));
        let (mut fluid, mut asked) = (vec![0.0; count], vec![rig.requests[0].1.cost_ns as f64; count]);
        let mut largest = asked.clone();
        for step in steps {
            match step {
                Step::Ask(tenant, is_read, len) => {
                    let tenant = tenant % count as u32;
                    let op = if is_read { Op::Read } else { Op::Write { durable: false } };
                    rig.ask(TenantId(tenant), op, len);
                    let (at, cost) = (tenant as usize, rig.policy.cost_ns(TenantId(tenant), op, len, false) as f64);
                    asked[at] += cost;
                    largest[at] = cost.max(largest[at]);
                }
                Step::Go => {
                    let before: u64 = rig.given_ns.iter().sum();
                    if rig.next().is_none() {
                        continue;
                    }
                    flow(&mut fluid, &asked, &percents, (rig.given_ns.iter().sum::<u64>() - before) as f64);
                    rig.complete();
                    for at in 0..count {
                        let lag = fluid[at] - rig.given_ns[at] as f64;
                        let bound = largest.iter().sum::<f64>() + largest[at];
                        prop_assert!(lag <= bound, "tenant {} lags {} of {}", at, lag, bound);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Without a minimum weight, the virtual time of a share of a billionth exceeded 2^64 within minutes.
    #[test]
    fn shares_of_any_size_neither_starve_nor_overflow(
        ppb in prop_oneof![Just(1u64), 1u64..1000, 1u64..1_000_000_000],
        last in any::<bool>(),
    ) {
        let mut rig = Rig::new(Prices::default(), &[50, 50]);
        let shares = [ppb, (1_000_000_000 - ppb).max(1)];
        let shares = if last { [shares[1], shares[0]] } else { shares };
        for (tenant, ppb) in [A, B].into_iter().zip(shares) {
            rig.policy.set_tenant(0, tenant, Share::from_ppb(ppb).into());
        }
        rig.backlogged([SMALL; 2], 4 * SECOND);
        let [a, b] = [rig.given_ns[0], rig.given_ns[1]];
        prop_assert!(a.min(b) * 4000 >= a + b, "{a} {b} for {shares:?}");
        // The tenant with hardly any share uses the disk alone, again and again: its virtual time does not overflow.
        let small = if last { B } else { A };
        for _ in 0..20_000 {
            rig.ask(small, Op::Read, LARGE);
            rig.fill();
            while !rig.in_device.is_empty() {
                rig.complete();
                rig.fill();
            }
        }
        prop_assert!(rig.policy.policy.virtual_ns < u64::MAX / 1_000_000, "{}", rig.policy.policy.virtual_ns);
    }
}

/// Writes hang in the device, and only writes are queued: that read phases begin and end is no evidence of progress.
#[test]
fn what_the_device_keeps_is_written_off_where_reads_and_writes_take_turns() {
    let mut rig = Rig::new(programming(2e6), &[50, 50]);
    (0..64).for_each(|_| rig.ask(A, WRITE, SMALL));
    (0..64).for_each(|_| rig.ask(B, Op::Read, SMALL));
    let mut reads = 64;
    while reads > 0 {
        rig.fill();
        if rig.in_device.is_empty() {
            rig.now = rig.policy.poll_timeout().expect("somebody waits").max(rig.now);
            continue;
        }
        let op = rig.requests[rig.in_device[0].0 as usize].1.op;
        let tenant = rig.complete();
        let last = op == Op::Read && rig.now > SECOND / 2;
        reads -= u32::from(last);
        rig.ask(tenant, if last { WRITE } else { op }, SMALL);
    }
    assert!(rig.policy.policy.turns.are_taken());
    while rig.in_device.is_empty() {
        rig.now = rig.policy.poll_timeout().expect("writes wait").max(rig.now);
        rig.fill();
    }
    let (hang_since, mut hanging) = (rig.now, rig.in_device.len());
    while rig.policy.time(rig.now).stuck == 0 {
        rig.now = rig.policy.poll_timeout().expect("a look at what hangs").max(rig.now);
        assert!(rig.now <= hang_since + 2 * STUCK_NS, "{hanging} requests hang, and the others wait for them");
        rig.fill();
        hanging = hanging.max(rig.in_device.len());
    }
}

/// Readers and writers alternate in phases until the readers stop. Whenever no request may be submitted, a driver that
/// polls shortly before the announced time finds nothing to do; not even that the writer is alone by then.
#[test]
fn nothing_may_go_before_the_moment_that_the_driver_is_told() {
    let mut rig = Rig::new(programming(2e6), &[50, 50]);
    (0..8).for_each(|_| rig.ask(A, WRITE, 256 << 10));
    (0..8).for_each(|_| rig.ask(B, Op::Read, SMALL));
    let (mut readers_left, mut turns_seen) = (None, 0);
    while rig.policy.policy.active == 2 {
        rig.fill();
        if !rig.in_device.is_empty() {
            let tenant = rig.complete();
            if tenant == A || rig.now < SECOND {
                rig.ask(
                    tenant,
                    if tenant == A { WRITE } else { Op::Read },
                    if tenant == A { 256 << 10 } else { SMALL },
                );
            } else {
                readers_left = Some(rig.now);
            }
            continue;
        }
        turns_seen += u32::from(rig.policy.policy.turns.are_taken());
        let told = rig.policy.poll_timeout().expect("writes wait");
        rig.now = told - 1;
        assert_eq!(rig.next(), None, "{told} was told, the readers left at {readers_left:?}");
        rig.now = told;
    }
    assert!(turns_seen > 20 && readers_left.is_some_and(|at| rig.now >= at + ACTIVE_NS), "{turns_seen}");
}
