//! Slices on a disk that serves one request at a time.

use std::collections::VecDeque;

mod batches;

use super::*;
use crate::disk::policy::{Kind, STUCK_NS, Slice};
use crate::disk::scheduler::Scheduler;
use crate::ids::IoId;
use crate::units::{MILLISECOND, SECOND};

const MS: Nanos = MILLISECOND;
const COST: Nanos = 8 * MS;
const ENTRY: Entry = Entry { cost_ns: COST, ..Entry::EMPTY };

/// Bytes that a client receives with each request.
const BYTES: u64 = 4096;

/// A disk that serves one request at a time, 8 ms each, more for the first one of another tenant; and clients that keep
/// a fixed number outstanding, or think after each request.
struct Stage {
    policy: Scheduler<Insulated>,
    now: Nanos,
    /// Requests in the device, in order: tenant, number, time of submission.
    device: VecDeque<(usize, IoId, Nanos)>,
    /// When the first of them completes.
    done_at: Nanos,
    /// Outstanding requests of each tenant, and how many it keeps outstanding.
    depths: Vec<(u32, u32)>,
    next: u32,
    /// Completed requests, by tenant.
    served: Vec<u64>,
    /// Cost of a context switch, and the tenant that was served last.
    switch_ns: Nanos,
    last: usize,
    /// The think times of each tenant, which it repeats; none if it never thinks. And its number of think times so far.
    thinks: Vec<(Vec<Nanos>, usize)>,
    /// Requests to come: when, and of which tenant.
    to_come: Vec<(Nanos, usize)>,
    /// When each tenant made its latest request, and the longest response time, of a tenant with one at a time.
    asked_at: Vec<Nanos>,
    longest_ns: Vec<Nanos>,
}

impl Stage {
    fn new(shares: &[u64], depths: &[u32]) -> Stage {
        let settings = Settings {
            kind: Kind::Insulated,
            depth: 128,
            insulation_permille: 900,
            switch_ns: 10 * MS,
            round_max_ns: 2 * SECOND,
            needs_slices: true,
            prices: Default::default(),
            stream_bytes_per_s: 100_000_000,
            seed: 0,
        };
        let mut policy = Scheduler::new(Box::new(Insulated::new(settings)), settings.depth);
        for (at, &percent) in shares.iter().enumerate() {
            policy.set_tenant(0, TenantId(at as u32), Share::from_ppb(percent * 10_000_000).into());
        }
        Stage {
            policy,
            now: 0,
            device: VecDeque::new(),
            done_at: 0,
            depths: depths.iter().map(|&depth| (0, depth)).collect(),
            next: 0,
            served: vec![0; shares.len()],
            switch_ns: 0,
            last: 0,
            thinks: vec![Default::default(); shares.len()],
            to_come: Vec::new(),
            asked_at: vec![0; shares.len()],
            longest_ns: vec![0; shares.len()],
        }
    }

    /// The first of two tenants, with the first share, pauses for these times; the second has `depth` outstanding.
    fn pausing(percent: u64, depth: u32, thinks: &[Nanos]) -> Stage {
        let mut stage = Stage::new(&[percent, 100 - percent], &[1, depth]);
        stage.switch_ns = 10 * MS;
        stage.thinks[0].0 = thinks.to_vec();
        stage
    }

    /// Throughput of both tenants in a minute, relative to their shares of what they have alone.
    fn kept(&mut self) -> [f64; 2] {
        self.run(self.now + 60 * SECOND);
        let before = self.served.clone();
        (self.longest_ns[0], self.longest_ns[1]) = (0, 0);
        self.run(self.now + 60 * SECOND);
        [0, 1].map(|at| {
            let thinks = &self.thinks[at].0;
            let think = thinks.iter().sum::<Nanos>() as f64 / thinks.len().max(1) as f64;
            let alone = 60e9 / (COST as f64 + think);
            let share = self.policy.policy.tenants[TenantId(at as u32)].share.expect("a share").ppb() as f64 / 1e9;
            (self.served[at] - before[at]) as f64 / alone / share
        })
    }

    fn ask(&mut self) {
        for at in 0..self.depths.len() {
            while self.depths[at].0 < self.depths[at].1 {
                self.depths[at].0 += 1;
                let entry = Entry { io: IoId(self.next), ..ENTRY };
                self.next += 1;
                self.asked_at[at] = self.now;
                self.policy.arrived(self.now, TenantId(at as u32), entry, false);
            }
        }
    }

    /// A request of the tenant completed: the next one follows, now or when the client has thought.
    fn completes(&mut self, owner: usize) {
        self.served[owner] += 1;
        self.longest_ns[owner] = self.longest_ns[owner].max(self.now - self.asked_at[owner]);
        let (thinks, count) = &mut self.thinks[owner];
        match thinks.get(*count % thinks.len().max(1)) {
            Some(&think) => self.to_come.push((self.now + think, owner)),
            None => self.depths[owner].0 -= 1,
        }
        *count += 1;
    }

    /// Clients that have thought for long enough make their requests.
    fn come(&mut self) {
        let now = self.now;
        for (_, owner) in self.to_come.extract_if(.., |&mut (at, _)| at <= now) {
            self.depths[owner].0 -= 1;
        }
        self.ask();
    }

    fn dispatch(&mut self) {
        while let Some((tenant, entry)) = self.policy.next(self.now) {
            let owner = tenant.0 as usize;
            assert!(self.device.iter().all(|&(other, ..)| other == owner), "two tenants in the device");
            if self.device.is_empty() {
                let switch_ns = if std::mem::replace(&mut self.last, owner) == owner { 0 } else { self.switch_ns };
                self.done_at = self.now + COST + switch_ns;
            }
            self.device.push_back((owner, entry.io, self.now));
        }
    }

    /// Runs until `end`; each client sends its next request as soon as one completes.
    fn run(&mut self, end: Nanos) {
        self.ask();
        self.dispatch();
        loop {
            let done = (!self.device.is_empty()).then_some(self.done_at);
            let comes = self.to_come.iter().map(|&(at, _)| at).min();
            let Some(next) = [done, comes, self.policy.poll_timeout()].into_iter().flatten().min() else { return };
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            if done == Some(next) {
                let (owner, _, since) = self.device.pop_front().expect("one is done");
                self.policy.done(self.now, TenantId(owner as u32), &ENTRY, since);
                self.policy.books.delivered(TenantId(owner as u32), BYTES);
                self.done_at = self.now + COST;
                self.completes(owner);
            }
            self.come();
            self.dispatch();
        }
    }

    fn served_percent(&self, tenant: usize) -> u64 {
        100 * self.served[tenant] / self.served.iter().sum::<u64>()
    }
}

#[test]
fn disk_time_follows_shares_however_many_requests_each_has() {
    for (shares, depths) in [([50, 50], [1, 27]), ([75, 25], [1, 27]), ([25, 75], [4, 4])] {
        let mut stage = Stage::new(&shares, &depths);
        stage.run(60 * SECOND);
        let percent = stage.served_percent(0);
        assert!(percent.abs_diff(shares[0]) <= 2, "{percent} % for a share of {} %", shares[0]);
    }
}

/// Requests a second of two tenants with a share of a half, which guarantees are for so many.
fn guaranteed(requests_per_s: [u64; 2]) -> [u64; 2] {
    let mut stage = Stage::new(&[50, 50], &[4, 4]);
    stage.switch_ns = 40 * MS;
    for (at, requests) in (0..).zip(requests_per_s) {
        let terms = Terms { min_bytes_per_s: requests * BYTES, ..Share::from_ppb(500_000_000).into() };
        stage.policy.set_tenant(0, TenantId(at), terms);
    }
    stage.run(20 * SECOND);
    let before = stage.served.clone();
    stage.run(80 * SECOND);
    [0, 1].map(|at| (stage.served[at] - before[at]) / 60)
}

#[test]
fn time_that_a_guarantee_does_not_need_goes_to_the_one_that_is_behind() {
    let [small, large] = guaranteed([30, 75]);
    assert!((30..40).contains(&small) && large >= 75, "{small} and {large} of 125 requests a second");
    let [without, impossible] = guaranteed([0, 1000]);
    assert!(without >= 56 && impossible >= 56, "{without} and {impossible}: nothing is taken from a share");
    let [first, second] = guaranteed([30, 30]);
    assert!(first.abs_diff(second) <= 2 && first >= 54, "{first} and {second}: the rest is divided by share");
}

/// Tenants with equal shares, and guarantees that no disk can keep for all but the first `without`.
fn impossible(tenants: usize, without: usize) -> Stage {
    let percent = 100 / tenants as u64;
    let mut stage = Stage::new(&vec![percent; tenants], &vec![4; tenants]);
    let share = Share::from_ppb(percent * 10_000_000);
    for at in without as u32..tenants as u32 {
        stage.policy.set_tenant(0, TenantId(at), Terms { min_bytes_per_s: 1 << 30, ..share.into() });
    }
    stage
}

impl Stage {
    /// Runs until the tenant at this position of the order has its slice.
    fn run_to(&mut self, at: usize) {
        while self.policy.policy.at == at {
            self.run(self.now + COST);
        }
        while self.policy.policy.at != at {
            self.run(self.now + COST);
        }
    }
}

#[test]
fn a_change_in_a_round_with_guarantees_gives_no_tenant_two_slices_or_none() {
    let mut stage = impossible(5, 0);
    for round in 0..10 {
        stage.run_to(2);
        let mut due = stage.policy.policy.order[3..].to_vec();
        let since = stage.now;
        stage.policy.set_place(TenantId(round % 5), Some(u64::from(round)));
        stage.run_to(0);
        let slices = stage.policy.past_slices().into_iter().filter(|slice| slice.begun > since);
        let mut had: Vec<_> = slices.map(|slice| slice.tenant).collect();
        had.sort_unstable();
        due.sort_unstable();
        assert_eq!(had, due, "in round {round}");
    }
    // The same if a tenant comes, and if the one that was considered last goes.
    stage.run_to(2);
    let policy = &mut stage.policy.policy;
    let before = policy.order.clone();
    policy.set_tenant(stage.now, TenantId(5), Terms::default());
    assert_eq!((policy.order[..5].to_vec(), policy.order[5], policy.at), (before.clone(), TenantId(5), 2));
    policy.drop_tenant(before[2]);
    assert_eq!((&policy.order[..2], policy.at), (&before[..2], 1));
    assert_eq!(policy.order[2..], [before[3], before[4], TenantId(5)]);
    policy.drop_tenant(before[0]);
    policy.drop_tenant(before[1]);
    assert_eq!(policy.at + 1, policy.order.len(), "nobody had a slice: the round begins anew");
}

#[test]
fn a_slice_that_continues_counts_for_the_guarantee() {
    let mut stage = impossible(2, 0);
    stage.depths[1].1 = 0;
    stage.run(10 * SECOND);
    stage.depths[1].1 = 4;
    stage.run(stage.now + SECOND);
    let policy = &stage.policy.policy;
    let guarantee = policy.tenants[TenantId(0)].guarantee.as_ref().expect("a guarantee");
    let class = guarantee.class(stage.now, policy.length(TenantId(0)), policy.round_ns);
    assert_eq!(class, Class::Behind, "it had more than its share of the window");
}

#[test]
fn time_that_is_divided_by_share_is_not_released_again() {
    let mut stage = impossible(2, 1);
    stage.run(20 * SECOND);
    // The first tenant's slice follows in a round in which another round is divided.
    stage.run_to(0);
    let policy = &mut stage.policy.policy;
    policy.rounds.forget();
    policy.rounds.slack.release(policy.round_ns);
    (0..3).for_each(|_| policy.rounds.begin(policy.round_ns));
    assert_eq!((policy.order[1], policy.rounds.slack.total()), (TenantId(0), 0));
    stage.run_to(1);
    let length = stage.policy.policy.length(TenantId(0));
    let credit = stage.policy.policy.tenants[TenantId(0)].credit;
    assert!(credit > 3 * length as i64 / 2, "{credit} ns, with a part of a round");
    // It goes away at once.
    stage.depths[0].1 = 0;
    while stage.policy.policy.at == 1 {
        stage.run(stage.now + COST);
    }
    let policy = &stage.policy.policy;
    let released = policy.rounds.slack.total() + policy.tenants[TenantId(0)].unused_ns;
    assert!(
        released as i64 <= credit - length as i64,
        "{released} ns of {credit} ns, of which {length} ns were divided"
    );
}

/// A tenant that needs little, one that does so at first and then suddenly needs all that was released, and one that
/// comes back now and then, and interrupts: the longest response time of the first.
#[test]
fn an_interrupted_slice_is_lent_no_more_time_when_it_goes_on() {
    for pause_ms in [700, 1100, 1500, 1900, 2300, 3100] {
        let mut stage = Stage::new(&[34, 33, 33], &[1, 4, 1]);
        stage.switch_ns = 60 * MS;
        stage.thinks[2].0 = vec![pause_ms * MS];
        let set = |stage: &mut Stage, at, requests: u64| {
            let terms = Terms { min_bytes_per_s: requests * BYTES, ..Share::from_ppb(330_000_000).into() };
            stage.policy.set_tenant(stage.now, TenantId(at), terms);
        };
        set(&mut stage, 0, 5);
        for _ in 0..5 {
            set(&mut stage, 1, 5);
            stage.run(stage.now + 20 * SECOND);
            stage.longest_ns[0] = 0;
            set(&mut stage, 1, 1000);
            stage.run(stage.now + 15 * SECOND);
            let longest_ns = stage.longest_ns[0];
            assert!(longest_ns <= 6 * SECOND, "{pause_ms} ms: {longest_ns} ns, more than three rounds");
        }
    }
}

#[test]
fn what_nobody_wants_goes_to_those_who_do() {
    let mut stage = Stage::new(&[10, 20, 70], &[2, 2, 0]);
    stage.run(60 * SECOND);
    assert!(stage.served_percent(1).abs_diff(66) <= 2, "{:?}", stage.served);
    assert!(stage.served.iter().sum::<u64>() >= 60 * SECOND / COST - 2, "the disk never rests: {:?}", stage.served);
}

/// With 5 % of the disk, a tenant with R makes the round as long as is permitted.
#[test]
fn a_store_tenant_has_its_share_of_a_round_that_the_others_need() {
    let store = |stage: &mut Stage, percent: u64| {
        let terms = Terms { is_store: true, ..Share::from_ppb(percent * 10_000_000).into() };
        stage.policy.set_tenant(stage.now, TenantId(1), terms);
    };
    let round_ms = |is_store: bool| {
        let mut stage = Stage::new(&[95, 5], &[4, 64]);
        stage.switch_ns = 10 * MS;
        if is_store {
            store(&mut stage, 5);
        }
        stage.run(60 * SECOND);
        let policy = &stage.policy.policy;
        let round_ms = policy.round_ns / MS;
        let parts = [0, 1].map(|at| policy.length(TenantId(at)) * 1000 / policy.round_ns);
        assert!(parts[0].abs_diff(950) <= 1 && parts[1].abs_diff(50) <= 1, "{parts:?} thousandths of the round");
        let longest_ns = stage.policy.past_slices().iter().map(|slice| slice.ended - slice.begun).max();
        (round_ms, stage.served_percent(1), longest_ns.unwrap_or(0) / MS, stage)
    };
    let (with_r, ..) = round_ms(false);
    assert_eq!(with_r, 2000);
    let (round, percent, longest, mut stage) = round_ms(true);
    assert!(round < 200 && longest < 2 * round, "{round} and {longest} ms");
    assert!((2..=5).contains(&percent), "{percent} % of the requests: it loses much of its slices, and only those");
    // It has gathered short slices to one that is worth the switch.
    let past = stage.policy.past_slices();
    let own: Vec<_> = past.iter().filter(|slice| slice.tenant == TenantId(1)).collect();
    let length = stage.policy.policy.length(TenantId(1));
    let is_gathered = |slice: &Slice| {
        slice.useful_ns > GATHERED_MAX / 2 * length && slice.ended - slice.begun < (GATHERED_MAX + 2) * length
    };
    assert!(own.len() > 1 && own.iter().all(|slice| is_gathered(slice)), "slices of {length} ns: {own:?}");
    assert_eq!(stage.policy.plan(stage.now, TenantId(1)).and_then(|plan| plan.need_ns), None);
    // The other one goes: it has the disk, when the disk has idled for that one for three rounds at most. Alone it
    // needs no more than the shortest round either.
    stage.depths[0].1 = 0;
    stage.run(stage.now + Nanos::from(IDLE_ROUNDS) * round * MS);
    let (before, from) = (stage.served[1], stage.now);
    stage.run(from + 10 * SECOND);
    assert!(stage.served[1] - before >= 10 * SECOND / COST - 5, "{:?} of {before}", stage.served);
    assert_eq!(stage.policy.policy.round_ns, 20 * MS);
}

#[test]
fn a_tenant_alone_keeps_its_depth_all_the_time() {
    let mut stage = Stage::new(&[10, 90], &[8, 0]);
    stage.run(SECOND);
    for _ in 0..1000 {
        stage.run(stage.now + COST);
        assert_eq!(stage.device.len(), 8);
    }
}

#[test]
fn who_is_left_alone_in_the_middle_of_a_slice_has_requests_of_any_length() {
    let mut stage = Stage::new(&[50, 50], &[8, 8]);
    stage.run(10 * SECOND);
    let most = |stage: &Stage| stage.policy.request_bytes_max(TenantId(0), crate::disk::Op::Read);
    assert!(most(&stage) < u64::MAX);
    stage.depths[1].1 = 0;
    // Its last slice is continued again and again.
    stage.run(20 * SECOND);
    assert_eq!(most(&stage), u64::MAX);
}

#[test]
fn who_comes_back_waits_for_the_slices_of_one_round_at_most() {
    let mut stage = Stage::new(&[25, 25, 50], &[4, 4, 0]);
    stage.run(10 * SECOND);
    stage.depths[2] = (0, 1);
    let (before, now) = (stage.served[2], stage.now);
    let round_ns = stage.policy.plan(now, TenantId(0)).expect("a plan").round_ns;
    stage.run(now + round_ns + 4 * COST);
    assert!(stage.served[2] > before, "not served within {round_ns} ns");
}

#[test]
fn who_was_away_has_its_slices_at_once_when_it_is_back() {
    let mut stage = Stage::new(&[50, 50], &[1, 27]);
    for away_ns in [200 * MS, 10 * SECOND] {
        let full = stage.depths[0];
        stage.depths[0].1 = 0;
        stage.run(stage.now + away_ns);
        assert_eq!(stage.depths[0].0, 0, "it is away");
        stage.depths[0].1 = full.1;
        stage.served = vec![0; 2];
        stage.run(stage.now + 2 * SECOND);
        let percent = stage.served_percent(0);
        assert!(percent >= 40, "a slice, not a request: {percent} % after {away_ns} ns");
    }
}

#[test]
fn slices_follow_in_the_order_of_places() {
    let mut stage = Stage::new(&[20; 5], &[2; 5]);
    for (at, place) in [40, 0, 30, 10, 20].into_iter().enumerate() {
        stage.policy.set_place(TenantId(at as u32), Some(place));
    }
    stage.run(20 * SECOND);
    let order: Vec<_> =
        stage.policy.past_slices().iter().map(|slice| slice.tenant.0).skip_while(|&id| id != 1).collect();
    assert_eq!(order[..7], [1, 4, 0, 2, 3, 1, 4], "in on even places, back on odd ones");
    stage.depths[4].1 = 0;
    stage.run(stage.now + 10 * SECOND);
    stage.policy.drop_tenant(stage.now, TenantId(4));
    stage.policy.set_place(TenantId(1), Some(90));
    let arranged: Vec<_> = stage.policy.policy.order.iter().map(|id| id.0).collect();
    assert_eq!(arranged, [3, 0, 1, 2]);
}

#[test]
fn rounds_are_counted_with_their_lengths() {
    let mut stage = Stage::new(&[50, 50], &[8, 8]);
    stage.run(20 * SECOND);
    let plan = stage.policy.plan(stage.now, TenantId(0)).expect("a plan");
    assert!(plan.rounds > 5, "{plan:?}");
    // Both use their slices up, so rounds take as long as planned.
    let took = plan.rounds_ns as f64 / stage.now as f64;
    assert!((took - 1.0).abs() < 0.1, "{took}");
}

#[test]
fn a_share_changes_live() {
    let mut stage = Stage::new(&[50, 50], &[4, 4]);
    stage.run(20 * SECOND);
    stage.policy.set_tenant(stage.now, TenantId(0), Share::from_ppb(100_000_000).into());
    stage.policy.set_tenant(stage.now, TenantId(1), Share::from_ppb(900_000_000).into());
    stage.served = vec![0; 2];
    stage.run(80 * SECOND);
    assert!(stage.served_percent(0).abs_diff(10) <= 2, "{:?}", stage.served);
}

#[test]
fn a_request_that_does_not_come_back_holds_up_the_others_for_a_while_only() {
    let mut stage = Stage::new(&[50, 50], &[1, 0]);
    stage.run(SECOND);
    stage.depths[1] = (0, 1);
    stage.ask();
    // No request completes any more; the owner's next request would never fit.
    let stuck = stage.device.len();
    while stage.device.len() == stuck {
        stage.now = stage.policy.poll_timeout().unwrap_or(stage.now + 100 * MS);
        if let Some((_, entry)) = stage.policy.next(stage.now).filter(|&(tenant, _)| tenant == TenantId(1)) {
            stage.device.push_back((1, entry.io, stage.now));
        }
        assert!(stage.now < SECOND + 2 * STUCK_NS, "the other one still waits");
    }
    assert_eq!(stage.policy.time(stage.now).stuck, 1);
}

#[test]
fn who_is_in_debt_has_the_disk_though_the_plan_changes_meanwhile() {
    let mut stage = Stage::new(&[50, 50], &[1, 0]);
    stage.now = SECOND;
    stage.ask();
    // The other tenant has just become idle: in this round it is planned for, and in the next it is not, so that slices
    // become shorter.
    let policy = &mut stage.policy.policy;
    policy.at = 1;
    let first = &mut policy.tenants[TenantId(0)];
    (first.credit, first.is_backlogged) = (-530 * MS as i64, false);
    policy.tenants[TenantId(1)].idle_rounds = IDLE_ROUNDS - 1;
    stage.run(stage.now + 100 * MS);
    assert!(stage.served[0] > 0, "it is alone");
}

#[test]
fn however_many_requests_do_not_come_back_others_are_served() {
    let mut stage = Stage::new(&[40, 40, 10], &[1, 300, 300]);
    // All requests of the last two tenants hang.
    let (mut stuck, mut served) = ([0, 0], 0);
    stage.ask();
    while stage.now < 100 * SECOND {
        while stage.now < 100 * SECOND
            && let Some((tenant, _)) = stage.policy.next(stage.now)
        {
            match tenant.0 {
                0 => {
                    let since = stage.now;
                    stage.now += COST;
                    stage.policy.done(stage.now, TenantId(0), &ENTRY, since);
                    (stage.depths[0].0, served) = (0, served + 1);
                    stage.ask();
                }
                other => stuck[other as usize - 1] += 1,
            }
        }
        stage.now = stage.policy.poll_timeout().unwrap_or(0).max(stage.now + 1);
    }
    assert!(stuck[0] <= 96 && stuck[0] + stuck[1] < 128, "{stuck:?}");
    assert!(served > 60 * SECOND / COST, "{served}");
    let waiting = [1, 2].map(|at| stage.policy.plan(stage.now, TenantId(at)).map(|plan| plan.waiting_slices));
    assert!(waiting.iter().all(|&slices| slices <= Some(6)), "they wait for their own requests: {waiting:?}");
}

#[test]
fn a_stream_has_two_requests_in_the_device_once_the_drive_has_begun_with_the_first() {
    let mut policy = Stage::new(&[50, 50], &[0, 0]).policy;
    let entry = |io| Entry { io: IoId(io), len: 1 << 20, follows: true, ..ENTRY };
    (0..4).for_each(|io| policy.arrived(0, TenantId(0), entry(io), false));
    let next = |policy: &mut Scheduler<Insulated>, now| policy.next(now).map(|(_, entry)| entry.io.0);
    assert_eq!([(); 2].map(|()| next(&mut policy, 0)), [Some(0), None], "it might begin with the second");
    let chosen = policy.poll_timeout().expect("the drive begins");
    assert!(chosen <= MILLISECOND);
    assert_eq!([(); 2].map(|()| next(&mut policy, chosen)), [Some(1), None]);
    assert!(policy.poll_timeout().is_some(), "if they do not come back");
    policy.done(COST, TenantId(0), &entry(0), 0);
    assert_eq!([(); 2].map(|()| next(&mut policy, COST)), [Some(2), None], "the next when one is back");
    (1..3).for_each(|io| policy.done(2 * COST, TenantId(0), &entry(io), COST));
    policy.arrived(2 * COST, TenantId(0), entry(4), false);
    assert_eq!([(); 2].map(|()| next(&mut policy, 2 * COST)), [Some(3), None], "the drive was idle");
    policy.done(2 * COST + 1, TenantId(0), &entry(3), 2 * COST);
    assert_eq!(next(&mut policy, 2 * COST + 1), Some(4), "it had begun");
}

#[test]
fn an_overrun_is_paid_back() {
    let mut stage = Stage::new(&[50, 50], &[1, 1]);
    stage.run(10 * SECOND);
    // One request of the first tenant takes half a second longer.
    while stage.device.front().is_none_or(|&(owner, ..)| owner != 0) {
        stage.run(stage.now + COST);
    }
    stage.done_at += SECOND / 2;
    let (now, before) = (stage.now, stage.served.clone());
    // Slices are longer for a while.
    stage.run(now + 20 * SECOND);
    let [first, second] = [0, 1].map(|at| (stage.served[at] - before[at]) * COST);
    assert!(second > first + 400 * MS, "the second was not compensated: {first} and {second} ns");
}

#[test]
fn no_slice_is_due_to_a_tenant_that_owes_time() {
    let mut stage = Stage::new(&[5, 95], &[1, 1]);
    let run = |stage: &mut Stage| {
        stage.run(stage.now + COST);
        let plan = stage.policy.plan(stage.now, TenantId(0)).expect("a plan");
        assert!(plan.waiting_slices <= 2 && plan.debt_ns <= 2 * SECOND, "{plan:?}");
        stage.device.front().is_some_and(|&(owner, ..)| owner == 0)
    };
    for _ in 0..20 {
        while !run(&mut stage) {}
        // Each of its requests takes half a second longer.
        stage.done_at += SECOND / 2;
        while run(&mut stage) {}
    }
    assert_eq!(stage.served[0], 20);
}

#[test]
fn a_queue_that_is_deeper_than_its_slices_saves_for_long_ones() {
    let mut stage = Stage::new(&[50, 50], &[27, 27]);
    let settings = Settings { round_max_ns: 200 * MS, ..stage.policy.policy.settings };
    stage.policy.set(settings);
    stage.run(60 * SECOND);
    let percent = stage.served_percent(0);
    assert!(percent.abs_diff(50) <= 2, "{percent} % for a share of 50 %");
    let slices: Vec<_> = stage.policy.past_slices();
    let is_long = |slice: &&Slice| slice.ended - slice.begun > 216 * MS;
    let long = slices.iter().filter(is_long).count();
    assert!((2..=slices.len() / 8).contains(&long), "{long} of {} hold 27 requests", slices.len());
    let in_a_row = slices.windows(2).filter(|pair| pair.iter().all(|slice| is_long(&slice))).count();
    assert_eq!(in_a_row, 0, "nobody waits for two of them in a round");
}

#[test]
fn shares_of_any_size_neither_starve_nor_overflow() {
    for ppb in [1, 7, 1000, 999_999, 500_000_000, 999_999_999, 1_000_000_000] {
        let mut stage = Stage::new(&[50, 50], &[16, 16]);
        for (at, ppb) in [ppb, (1_000_000_000 - ppb).max(1)].into_iter().enumerate() {
            stage.policy.set_tenant(0, TenantId(at as u32), Share::from_ppb(ppb).into());
        }
        stage.run(60 * SECOND);
        assert!(stage.served.iter().all(|&served| served > 0), "{:?} for {ppb} ppb", stage.served);
    }
}

#[test]
fn a_client_that_pauses_keeps_its_share_beside_any_queue_and_so_does_the_other() {
    for percent in [50, 25] {
        for (depth, pause_ms) in [1, 4, 27]
            .into_iter()
            .flat_map(|depth| [1, 5, 20, 50, 100, 150, 250, 400, 700, 1000, 2000].map(|pause_ms| (depth, pause_ms)))
        {
            let mut stage = Stage::pausing(percent, depth, &[pause_ms * MS]);
            let kept = stage.kept();
            let what = format!("{percent} %, beside {depth}, {pause_ms} ms: {kept:?}, {:?}", stage.longest_ns);
            assert!(kept[0] >= 0.9 && kept[1] >= 0.9, "{what}");
            let plan = stage.policy.plan(stage.now, TenantId(0)).expect("a plan");
            let is_long = pause_ms * MS > plan.slice_ns / 2;
            assert!(!is_long || stage.longest_ns[0] <= plan.round_ns + 3 * COST, "{what}, {plan:?}");
        }
    }
}

/// The think times that make a client interrupt as often as possible are not known, so many are tried.
#[test]
fn no_pauses_take_more_than_a_share() {
    let random = |seed: u64| {
        let mut state = seed;
        let times = std::iter::from_fn(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Some((state >> 33) % (1 << (21 + seed % 10)))
        });
        times.take(97).collect::<Vec<_>>()
    };
    for depth in [1, 27] {
        for seed in 0..40 {
            for percent in [50, 20] {
                let mut stage = Stage::pausing(percent, depth, &random(seed));
                let kept = stage.kept();
                assert!(kept[1] >= 0.9, "{percent} %, beside {depth}, {seed}: {kept:?}");
            }
        }
    }
}

#[test]
fn who_was_away_for_long_has_no_more_than_a_slice_at_once() {
    let mut stage = Stage::pausing(50, 4, &[]);
    stage.run(20 * SECOND);
    for away_s in [1, 100] {
        stage.depths[0].1 = 0;
        stage.run(stage.now + away_s * SECOND);
        let (slice_ns, before) = (stage.policy.policy.length(TenantId(1)), stage.served[1]);
        stage.depths[0].1 = 16;
        // Its interruption, its slice, and one of the other.
        stage.run(stage.now + 4 * slice_ns);
        let other_ns = (stage.served[1] - before) * COST;
        assert!(other_ns >= slice_ns / 2, "{other_ns} ns in four slices of {slice_ns} ns");
    }
}
