//! A disk that serves one request at a time follows a schedule.

use std::collections::VecDeque;

use super::*;
use crate::Config;
use crate::cluster::Slot as Timed;
use crate::disk::policy::Slice;
use crate::disk::scheduler::Scheduler;
use crate::ids::IoId;
use crate::units::{MILLISECOND, SECOND};

const MS: Nanos = MILLISECOND;
const A: TenantId = TenantId(0);
const B: TenantId = TenantId(1);
const C: TenantId = TenantId(2);
/// Cluster time is ahead of the disk's by so much.
const AHEAD: i64 = 1_000 * SECOND as i64;

/// Tenants with so many requests outstanding all the time, each of which takes so long.
struct Stage {
    scheduler: Scheduler<Follow>,
    now: Nanos,
    load: Vec<(u32, Nanos)>,
    outstanding: Vec<u32>,
    device: VecDeque<(TenantId, Entry, Nanos)>,
    done_at: Nanos,
    next: u32,
    served: Vec<u32>,
    /// Most requests of each tenant that were in the device at once since that was reset.
    deepest: Vec<u32>,
    slices: Vec<Slice>,
}

fn slot(tenant: TenantId, start_ms: u64, length_ms: u64) -> Timed {
    Timed { tenant, start_ns: start_ms * MS, length_ns: length_ms * MS, is_striped: true }
}

fn timetable(version: u64, begins_ms: u64, slots: &[Timed]) -> Timetable {
    let begins_ns = (begins_ms * MS).saturating_add_signed(AHEAD);
    Timetable { version, begins_ns, round_ns: 1000 * MS, slots: slots.to_vec() }
}

impl Stage {
    fn new(slots: &[Timed], load: &[(u32, Nanos)]) -> Stage {
        let settings = Settings { depth: 32, insulation_permille: 900, switch_ns: 5 * MS, ..Config::new(0).policy() };
        let mut scheduler = Scheduler::new(Box::new(Follow::new(settings)), settings.depth);
        let count = load.len();
        for tenant in 0..count as u32 {
            scheduler.set_tenant(0, TenantId(tenant), Terms::default());
        }
        scheduler.policy.set_clock(Clock { ahead_ns: AHEAD });
        scheduler.policy.set_timetable(0, &timetable(1, 0, slots));
        Stage {
            scheduler,
            now: 0,
            load: load.to_vec(),
            outstanding: vec![0; count],
            device: VecDeque::new(),
            done_at: 0,
            next: 0,
            served: vec![0; count],
            deepest: vec![0; count],
            slices: Vec::new(),
        }
    }

    fn step(&mut self) {
        for tenant in 0..self.load.len() {
            let (depth, cost_ns) = self.load[tenant];
            while self.outstanding[tenant] < depth {
                self.outstanding[tenant] += 1;
                self.next += 1;
                let io = IoId(self.next);
                let entry = Entry { io, len: 4096, cost_ns, ..Entry::EMPTY };
                self.scheduler.arrived(self.now, TenantId(tenant as u32), entry, false);
            }
        }
        while let Some((tenant, entry)) = self.scheduler.next(self.now) {
            if self.device.is_empty() {
                self.done_at = self.now + entry.cost_ns;
            }
            self.device.push_back((tenant, entry, self.now));
            let deepest = &mut self.deepest[tenant.0 as usize];
            *deepest = (*deepest).max(self.device.iter().filter(|(of, ..)| *of == tenant).count() as u32);
        }
        // The scheduler keeps the latest 64 only.
        let known = self.slices.last().map_or(0, |slice| slice.ended);
        self.slices.extend(self.scheduler.past_slices().into_iter().filter(|slice| slice.ended > known));
    }

    fn run(&mut self, until_ms: u64) {
        let until = until_ms * MS;
        loop {
            self.step();
            let done = (!self.device.is_empty()).then_some(self.done_at);
            let next = done.into_iter().chain(self.scheduler.poll_timeout()).min();
            let Some(next) = next.filter(|&next| next < until) else { break };
            assert!(next > self.now || done == Some(next), "no progress at {}", self.now);
            self.now = next;
            if done == Some(next) {
                let (tenant, entry, submitted) = self.device.pop_front().expect("a request completes");
                self.outstanding[tenant.0 as usize] -= 1;
                self.served[tenant.0 as usize] += 1;
                self.scheduler.done(next, tenant, &entry, submitted);
                if let Some((_, entry, _)) = self.device.front() {
                    self.done_at = next + entry.cost_ns;
                }
            }
        }
        self.now = until;
    }

    /// Slices of a tenant from a time on: beginning and end in their rounds, milliseconds. A slice begins up to a
    /// request before its slot, when the next request of the tenant before does not fit; so 7 ms are added to both, and
    /// what begins at 0 is at 7.
    fn of(&self, tenant: TenantId, from_ms: u64) -> Vec<(u64, u64)> {
        let slices = self.slices.iter().filter(|slice| slice.tenant == tenant && slice.begun >= from_ms * MS);
        slices
            .map(|slice| ((slice.begun / MS + 7) % 1000, slice.ended / MS + 7 - (slice.begun / MS + 7) / 1000 * 1000))
            .collect()
    }
}

#[test]
fn slices_begin_and_end_with_their_slots() {
    let mut stage = Stage::new(&[slot(A, 0, 300), slot(B, 300, 500), slot(C, 800, 200)], &[(4, 7 * MS); 3]);
    stage.run(20_000);
    for (tenant, begin, end) in [(A, 0, 300), (B, 300, 800), (C, 800, 1000)] {
        let slices = stage.of(tenant, 1000);
        assert!(slices.len() >= 18, "{tenant:?}: {slices:?}");
        let fits =
            |&(begun, ended): &(u64, u64)| (begin..=begin + 14).contains(&begun) && (end..=end + 14).contains(&ended);
        assert!(slices.iter().all(fits), "{tenant:?}: {slices:?}");
    }
    assert!(stage.served[1] > 2 * stage.served[2] && stage.served[0] > stage.served[2], "{:?}", stage.served);
}

#[test]
fn an_overrun_shortens_the_next_slice_and_the_overrunner_s_next_one() {
    // A request of A is expected to take 7 ms, and takes so long once.
    let mut stage = Stage::new(&[slot(A, 0, 300), slot(B, 300, 300), slot(C, 600, 400)], &[(1, 7 * MS); 3]);
    let is_last = |stage: &Stage| stage.scheduler.books.owner() == Some(A) && !stage.device.is_empty();
    let last = (10_287..10_300).find(|&ms| {
        stage.run(ms);
        is_last(&stage)
    });
    assert!(last.is_some(), "A's last request is in the device");
    stage.done_at += 100 * MS;
    stage.run(13_000);
    let begins = |tenant| stage.of(tenant, 10_290).iter().map(|slice| slice.0).collect::<Vec<_>>();
    let (late, next) = (begins(B)[0], begins(C)[0]);
    assert!((387..=417).contains(&late) && (600..=614).contains(&next), "B at {late}, C at {next}");
    let ends: Vec<u64> = stage.of(A, 10_900).iter().map(|slice| slice.1).collect();
    // 87 ms less, a request more or less, and what the long request has made the disk expect of the last one.
    assert!((107..=230).contains(&ends[0]), "A's next slice ends at {}", ends[0]);
    assert!(ends[1] > ends[0], "the debt is paid: {ends:?}");
    // What A pays is lent to B, which follows.
    assert!(stage.of(B, 11_000)[0].0 < 222, "{:?}", stage.of(B, 11_000));
}

#[test]
fn who_had_no_slot_since_its_overrun_owes_nothing() {
    let slots = [slot(A, 0, 500), slot(B, 500, 500)];
    let mut stage = Stage::new(&slots, &[(8, 7 * MS); 2]);
    stage.run(10_450);
    stage.done_at += 300 * MS;
    stage.scheduler.policy.set_timetable(stage.now, &timetable(2, 11_000, &slots[1..]));
    stage.scheduler.policy.set_timetable(stage.now, &timetable(3, 15_000, &slots));
    stage.run(17_000);
    let slices = stage.of(A, 14_990);
    assert!(slices[0].1 > 440, "not shorter: {slices:?}");
}

#[test]
fn what_an_overrun_gives_to_the_next_tenant_is_its_own_also_if_it_has_work_only_later() {
    let mut stage = Stage::new(&[slot(A, 0, 500), slot(B, 500, 500)], &[(8, 7 * MS); 2]);
    stage.run(10_450);
    stage.done_at += 300 * MS;
    stage.run(10_995);
    // A owes about 250 ms. B pauses when that is paid.
    stage.load[1].0 = 0;
    stage.run(11_300);
    stage.deepest[0] = 0;
    stage.run(11_400);
    assert_eq!((stage.scheduler.books.owner(), stage.deepest[0]), (Some(A), 1), "lent while B may come back");
    stage.load[1].0 = 1;
    let before = stage.served[1];
    stage.run(11_400 + 2 * 7 + 1);
    assert!(stage.served[1] > before, "after at most one request of A");
}

#[test]
fn time_that_nobody_uses_is_lent_and_its_owner_waits_for_one_request() {
    let mut stage = Stage::new(&[slot(A, 0, 500), slot(B, 500, 500)], &[(1, 7 * MS), (8, 7 * MS)]);
    stage.run(5_000);
    // A pauses, and is waited for.
    stage.load[0].0 = 0;
    stage.run(6_010);
    stage.deepest[1] = 0;
    stage.run(6_300);
    assert_eq!(stage.deepest[1], 1, "one request at a time while A may come back");
    let before = stage.served[0];
    stage.load[0].0 = 1;
    stage.run(6_317);
    assert!(stage.served[0] > before, "after at most one request of B");
    // A has not worked for three rounds: B has its slots whole.
    stage.load[0].0 = 0;
    stage.run(10_100);
    stage.deepest[1] = 0;
    stage.run(10_300);
    assert_eq!(stage.deepest[1], 8);
    stage.load[0].0 = 1;
    let before = stage.served[0];
    stage.run(10_300 + 8 * 7 + 8);
    assert!(stage.served[0] > before, "after the drain of B");
}

#[test]
fn an_owner_that_is_away_for_longer_than_usual_is_not_waited_for() {
    let mut stage = Stage::new(&[slot(A, 0, 500), slot(B, 500, 500)], &[(1, 7 * MS), (4, 7 * MS)]);
    // A pauses for 2.8 s again and again. Then it stays away: it seems to come back any moment.
    for from in (0..18_000).step_by(3_000) {
        stage.load[0].0 = 1;
        stage.run(from + 200);
        stage.load[0].0 = 0;
        stage.run(from + 3_000);
    }
    stage.run(19_000);
    let before = stage.served[1];
    stage.run(19_480);
    assert!(stage.served[1] - before >= 60, "{}", stage.served[1] - before);
}

#[test]
fn free_time_goes_to_tenants_of_one_server_first_then_to_those_without_a_slot_then_to_striped_ones() {
    let alone = Timed { is_striped: false, ..slot(B, 300, 100) };
    let slots = [slot(A, 0, 300), alone];
    let mut stage = Stage::new(&slots, &[(4, 7 * MS), (4, 7 * MS), (4, 7 * MS)]);
    let counts = |stage: &mut Stage| {
        let before = stage.served.clone();
        stage.run(stage.now / MS + 10_000);
        stage.served.iter().zip(before).map(|(now, before)| now - before).collect::<Vec<_>>()
    };
    let served = counts(&mut stage);
    assert!(served[1] > 900 && served[2] == 0 && (380..440).contains(&served[0]), "{served:?}");
    stage.load[1].0 = 0;
    let served = counts(&mut stage);
    assert!(served[2] > 900 && (380..440).contains(&served[0]), "{served:?}");
    stage.load[2].0 = 0;
    let served = counts(&mut stage);
    assert!(served[0] > 1200, "{served:?}");
}

#[test]
fn a_schedule_takes_effect_when_it_begins() {
    let mut stage = Stage::new(&[slot(A, 0, 500), slot(B, 500, 500)], &[(2, 7 * MS); 2]);
    stage.run(3_100);
    stage.scheduler.policy.set_timetable(stage.now, &timetable(2, 5_300, &[slot(B, 0, 500), slot(A, 500, 500)]));
    stage.run(9_000);
    let begins = |tenant, from| stage.of(tenant, from).iter().map(|slice| slice.0).collect::<Vec<_>>();
    assert!(begins(B, 3_200)[..2].iter().all(|at| (500..=514).contains(at)), "{:?}", begins(B, 3_200));
    // In the middle of A's slot the other schedule begins.
    assert!(begins(B, 5_290).iter().all(|at| (300..=314).contains(at)), "{:?}", begins(B, 5_290));
    assert!(begins(A, 5_310).iter().all(|at| (800..=814).contains(at)), "{:?}", begins(A, 5_310));
}

#[test]
fn schedules_that_are_announced_together_take_effect_one_after_the_other() {
    let (ab, ba) = ([slot(A, 0, 500), slot(B, 500, 500)], [slot(B, 0, 500), slot(A, 500, 500)]);
    let mut stage = Stage::new(&ab, &[(2, 7 * MS); 2]);
    stage.run(3_100);
    for (version, begins_ms, slots) in [(2, 5_300, &ba), (3, 8_300, &ab)] {
        stage.scheduler.policy.set_timetable(stage.now, &timetable(version, begins_ms, slots));
    }
    stage.run(12_000);
    let begins = |from, to| {
        let slices = stage.slices.iter().filter(|slice| slice.tenant == B && (from..to).contains(&(slice.begun / MS)));
        slices.map(|slice| (slice.begun / MS + 7) % 1000).collect::<Vec<_>>()
    };
    for (from, to, at) in [(3_100, 5_280, 500), (5_280, 8_280, 300), (8_310, 12_000, 800)] {
        let begins = begins(from, to);
        assert!(begins.len() >= 2 && begins.iter().all(|begin| (at..=at + 14).contains(begin)), "{from}: {begins:?}");
    }
}

#[test]
fn a_clock_that_is_set_moves_the_slices() {
    let mut stage = Stage::new(&[slot(A, 0, 500), slot(B, 500, 500)], &[(2, 7 * MS); 2]);
    stage.run(3_100);
    stage.scheduler.set_clock(stage.now, Clock { ahead_ns: AHEAD + 200 * MS as i64 });
    stage.run(7_000);
    let begins: Vec<u64> = stage.of(B, 4_000).iter().map(|slice| slice.0).collect();
    assert!(begins.len() >= 2 && begins.iter().all(|at| (300..=314).contains(at)), "{begins:?}");
}

#[test]
fn a_request_longer_than_its_slot_is_served_all_the_same() {
    let mut stage = Stage::new(&[slot(A, 0, 50), slot(B, 50, 950)], &[(1, 80 * MS), (4, 7 * MS)]);
    stage.run(20_000);
    assert!(stage.served[0] >= 9, "{:?}", stage.served);
    assert!(stage.served[1] >= 19 * 110, "B has lost no more than A's overruns: {:?}", stage.served);
}

#[test]
fn a_slot_may_end_in_the_next_round() {
    let times = {
        let mut times = Times::default();
        times.set_clock(Clock { ahead_ns: AHEAD });
        times.set(0, timetable(1, 0, &[slot(A, 100, 300), slot(B, 800, 300)]));
        times
    };
    let at = |ms: u64| {
        let t = times.cluster_ns(ms * MS);
        let At { owner, start, end, .. } = times.at(t);
        (owner, times.engine_ns(start) / MS, times.engine_ns(end) / MS)
    };
    assert_eq!(at(5_050), (Some(B), 4_800, 5_100));
    assert_eq!(at(5_100), (Some(A), 5_100, 5_400));
    assert_eq!(at(5_399), (Some(A), 5_100, 5_400));
    assert_eq!(at(5_400), (None, 5_400, 5_800));
    assert_eq!(at(5_999), (Some(B), 5_800, 6_100));
    let order = |ms: u64| times.from(times.cluster_ns(ms * MS)).map(|slot| slot.tenant).collect::<Vec<_>>();
    assert_eq!((order(5_050), order(5_150), order(5_900)), (vec![A, B], vec![B, A], vec![A, B]));
}

/// The rest of a slot counts once if its owner ends a slice and begins another one in the same slot.
#[test]
fn what_is_left_counts_once() {
    let mut tenant = Tenant { balance_ns: -50, ..Tenant::default() };
    for (slot, left_ns) in [(100, 8), (100, 4), (100, 0), (200, 6)] {
        tenant.goes_on(slot);
        tenant.leaves(slot + 80, left_ns, 80);
    }
    assert_eq!(tenant.balance_ns, -44);
    tenant.goes_on(300);
    tenant.leaves(380, -10, 80);
    assert_eq!(tenant.balance_ns, -54);
}

/// A tenant that exceeds the slot in which it pays for an overrun pays for both: up to a slot in each.
#[test]
fn an_overrun_counts_in_full_while_an_earlier_one_is_paid() {
    let mut tenant = Tenant::default();
    tenant.goes_on(100);
    tenant.leaves(180, -60, 80);
    assert_eq!(tenant.pays_in(500, 80, 400), 60);
    tenant.goes_on(500);
    tenant.leaves(520, -70, 80);
    assert_eq!((tenant.pays_in(500, 80, 400), tenant.pays_in(900, 80, 400)), (60, 70));
    tenant.leaves(910, -500, 80);
    assert_eq!(tenant.pays_in(1300, 80, 400), 80, "a whole slot, and no more is kept");
    assert_eq!(tenant.pays_in(1700, 80, 400), 0);
}
