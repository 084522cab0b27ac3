//! CPU scheduling of the disk's thread: tenants share its time by weight, as they share the disk
//! (docs/design/thread.md).
//!
//! ```text
//!   a pass:      newcomers first         C ──► A ──► B       each until its quantum of estimated time is used up;
//!                                        │     │             a tenant with a deficit is skipped until it is repaid
//!   each: ring of its connections       c1    a1 ► a2 ► a3
//! ```
//!
//! Deficit round robin (Shreedhar and Varghese, 1995) over tenants, with quanta by weight; tenants with new work come
//! first, as in FQ-CoDel (RFC 8290). The sum of all quanta is small while several tenants are active: a tenant with one
//! request outstanding, whose request is with the client most of the time, has to wait for another tenant's quantum
//! each time. A tenant has one quantum per pass, however many connections it has. A connection that is not finished is
//! queued again, behind the tenant's other connections.
//!
//! Downside: costs are estimates, since reading the clock for each request would cost more than it is worth.

use std::collections::VecDeque;

use engine::ids::{ConnId, TenantId};
use engine::units::Nanos;

/// The cost of a request, including receiving and answering it: 3 µs on the machines that we have.
const REQUEST_NS: i64 = 3_000;
/// The cost of a connection that turns out to have no input, or to be paused.
const JOB_NS: i64 = 200;
/// Bytes that are copied in a nanosecond.
const BYTES_PER_NS: u64 = 10;
/// The quantum of a tenant that is the only active one, 16 requests: another tenant's request waits less than the
/// latency of an SSD varies, and the client reads the first replies while the server handles the next requests.
const ALONE_NS: i64 = 16 * REQUEST_NS;
/// The sum of the quanta in a pass while several tenants are active. A client at depth 1 that needs c from answer to
/// answer when alone keeps R of its share s if the others' quanta are at most (1 / (s R) - 1) c, together 2.3 c for any
/// share. Over a socket, c is at least 20 to 25 µs.
const SHARED_NS: i64 = 50_000;
/// The minimum quantum: even a tenant with hardly any weight gets a request in a few passes.
const QUANTUM_NS_MIN: i64 = 1_000;
/// The maximum deficit of a tenant, whatever it requested at once.
const DEBT_NS_MAX: i64 = 1_000_000;
/// A tenant stays active for this long after its last request, as in the engine: the round trip to a client.
const ACTIVE_NS: Nanos = 1_000_000;
/// Bytes of replies sent in one pass, divided by share, while several tenants are present. A copy into a socket cannot
/// be interrupted, and data that has just come from a device is in no processor's cache (1.5 bytes a nanosecond: 90
/// µs).
const SENT_BYTES: u64 = 128 << 10;
/// The minimum of a tenant's part of it: a frame.
const SENT_BYTES_MIN: u64 = 4 << 10;
/// A tenant is present for this long after its last request; tenants that wait for a device send few requests.
const COMPANY_NS: Nanos = 1_000_000_000;

/// Work of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// A connection has input.
    Conn(ConnId),
    /// The engine has work of the tenant that it has postponed (`engine::Action::Work`).
    Work,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Its work, in order.
    queue: VecDeque<Job>,
    /// Its share in any unit; 0 until it is set.
    weight: u64,
    /// The remainder of its quantum; negative for a deficit.
    credit_ns: i64,
    quantum_ns: i64,
    /// Whether it is in `Turns::active`.
    active: bool,
    asked_at: Option<Nanos>,
    /// The number of a pass, and the bytes sent in it.
    sent: (u64, u64),
}

/// The run queue: tenants with work, and quanta.
#[derive(Debug, Default)]
pub struct Turns {
    /// By tenant number.
    tenants: Vec<Tenant>,
    /// Tenants with work, each in exactly one of these two, except the one that is being served.
    ring: VecDeque<TenantId>,
    newcomers: VecDeque<TenantId>,
    turn: Option<TenantId>,
    /// Tenants that remain to be served in this pass.
    left: usize,
    active: Vec<TenantId>,
    /// The tenants that are present: their number, their weights, and when these were counted.
    company: usize,
    company_weight: u64,
    company_at: Nanos,
    /// Passes so far.
    pass: u64,
    now: Nanos,
}

impl Turns {
    fn tenant(&mut self, tenant: TenantId) -> &mut Tenant {
        let index = tenant.0 as usize;
        if index >= self.tenants.len() {
            self.tenants.resize_with(index + 1, Tenant::default);
        }
        &mut self.tenants[index]
    }

    /// Sets the weights of tenants.
    pub fn set_weights(&mut self, weights: impl Iterator<Item = (TenantId, u64)>) {
        weights.for_each(|(tenant, weight)| self.tenant(tenant).weight = weight);
    }

    /// Queues a connection, or postponed work of a tenant, that is not queued yet.
    pub fn push(&mut self, tenant: TenantId, job: Job) {
        let (now, turn) = (self.now, self.turn);
        let state = self.tenant(tenant);
        let was_active = std::mem::replace(&mut state.active, true);
        state.asked_at = Some(now);
        state.queue.push_back(job);
        if state.queue.len() == 1 && turn != Some(tenant) {
            self.newcomers.push_back(tenant);
        }
        if !was_active {
            self.active.push(tenant);
        }
    }

    /// The number of tenants with work.
    pub fn tenants(&self) -> usize {
        self.ring.len() + self.newcomers.len()
    }

    /// Whether a tenant other than the one that is being served may need the thread soon.
    pub fn are_shared(&self) -> bool {
        self.active.len() > 1
    }

    /// Begins a pass: updates the active tenants, and gives quanta to those with work. Returns whether there is work.
    pub fn begin_pass(&mut self, now: Nanos) -> bool {
        self.now = now;
        self.pass += 1;
        self.look_for_company();
        let tenants = &mut self.tenants;
        self.active.retain(|&id| {
            let tenant = &mut tenants[id.0 as usize];
            tenant.active = !tenant.queue.is_empty() || tenant.asked_at.is_some_and(|at| now < at + ACTIVE_NS);
            if !tenant.active {
                tenant.credit_ns = 0;
            }
            tenant.active
        });
        while let Some(newcomer) = self.newcomers.pop_back() {
            self.ring.push_front(newcomer);
        }
        self.left = self.ring.len();
        if self.left > 0 {
            self.give_quanta();
        }
        self.left > 0
    }

    /// Counts the tenants that are present, at most once per `ACTIVE_NS`.
    fn look_for_company(&mut self) {
        if self.now < self.company_at + ACTIVE_NS {
            return;
        }
        self.company_at = self.now;
        let asked = |tenant: &&Tenant| tenant.asked_at.is_some_and(|at| self.now < at + COMPANY_NS);
        let company = || self.tenants.iter().filter(asked);
        (self.company, self.company_weight) = (company().count(), company().map(|tenant| tenant.weight.max(1)).sum());
    }

    fn give_quanta(&mut self) {
        let tenants = &mut self.tenants;
        if let [alone] = self.active[..] {
            let tenant = &mut tenants[alone.0 as usize];
            (tenant.quantum_ns, tenant.credit_ns) = (ALONE_NS, ALONE_NS);
            return;
        }
        let weights: u64 = self.active.iter().map(|id| tenants[id.0 as usize].weight.max(1)).sum();
        // As many quanta at once as one tenant needs to repay its deficit: the thread does not idle while there is
        // work.
        let mut rounds = i64::MAX;
        for id in &self.ring {
            let tenant = &mut tenants[id.0 as usize];
            let part = SHARED_NS as u128 * u128::from(tenant.weight.max(1)) / u128::from(weights);
            tenant.quantum_ns = (part as i64).max(QUANTUM_NS_MIN);
            rounds = rounds.min(1 + (-tenant.credit_ns).max(0) / tenant.quantum_ns);
        }
        for id in &self.ring {
            let tenant = &mut tenants[id.0 as usize];
            tenant.credit_ns = (tenant.credit_ns + rounds * tenant.quantum_ns).min(tenant.quantum_ns);
        }
    }

    /// The next tenant to serve in this pass. Its work is taken with [`Turns::pop`], until [`Turns::end_turn`].
    pub fn begin_turn(&mut self) -> Option<TenantId> {
        while self.left > 0 {
            self.left -= 1;
            let tenant = self.ring.pop_front()?;
            if self.tenants[tenant.0 as usize].credit_ns > 0 {
                self.turn = Some(tenant);
                return self.turn;
            }
            self.ring.push_back(tenant);
        }
        None
    }

    /// The next work of the tenant that is being served, if its quantum is not used up.
    pub fn pop(&mut self) -> Option<Job> {
        let tenant = self.turn?;
        if self.is_spent() {
            return None;
        }
        let job = self.tenants[tenant.0 as usize].queue.pop_front()?;
        self.charge(JOB_NS);
        Some(job)
    }

    /// Charges the tenant that is being served for a request with a reply of so many bytes.
    pub fn charge_request(&mut self, reply_bytes: u64) {
        self.charge(REQUEST_NS);
        self.charge_bytes(reply_bytes);
    }

    /// Charges the tenant that is being served for copied bytes.
    pub fn charge_bytes(&mut self, bytes: u64) {
        self.charge((bytes / BYTES_PER_NS) as i64);
    }

    fn charge(&mut self, ns: i64) {
        if let Some(tenant) = self.turn {
            self.owe(tenant, ns);
        }
    }

    /// Charges a tenant, whether or not it is being served.
    pub fn charge_to(&mut self, tenant: TenantId, ns: Nanos) {
        self.tenant(tenant);
        self.owe(tenant, i64::try_from(ns).unwrap_or(i64::MAX));
    }

    fn owe(&mut self, tenant: TenantId, ns: i64) {
        let credit_ns = &mut self.tenants[tenant.0 as usize].credit_ns;
        *credit_ns = credit_ns.saturating_sub(ns).max(-DEBT_NS_MAX);
    }

    /// Whether a tenant has a deficit.
    #[cfg(test)]
    pub fn owes(&self, tenant: TenantId) -> bool {
        self.tenants[tenant.0 as usize].credit_ns < 0
    }

    /// Bytes of replies that a tenant may still send in this pass.
    pub fn may_send(&mut self, tenant: TenantId) -> u64 {
        if self.company < 2 {
            return u64::MAX;
        }
        let (pass, weights) = (self.pass, u128::from(self.company_weight));
        let tenant = self.tenant(tenant);
        let part = u128::from(SENT_BYTES) * u128::from(tenant.weight.max(1)) / weights;
        let part = (part as u64).clamp(SENT_BYTES_MIN, SENT_BYTES);
        if tenant.sent.0 == pass { part.saturating_sub(tenant.sent.1) } else { part }
    }

    /// Records that a tenant sends so many bytes.
    pub fn sends(&mut self, tenant: TenantId, bytes: u64) {
        let pass = self.pass;
        let sent = &mut self.tenant(tenant).sent;
        *sent = (pass, bytes + if sent.0 == pass { sent.1 } else { 0 });
    }

    /// How many small requests the rest of the current quantum allows.
    pub fn requests_left(&self) -> usize {
        let credit_ns = self.turn.map_or(0, |tenant| self.tenants[tenant.0 as usize].credit_ns);
        usize::try_from((credit_ns + REQUEST_NS - 1) / REQUEST_NS).unwrap_or(0)
    }

    /// Whether the current quantum is used up.
    pub fn is_spent(&self) -> bool {
        self.turn.is_some_and(|tenant| self.tenants[tenant.0 as usize].credit_ns <= 0)
    }

    /// Ends serving a tenant. It goes to the end of the ring if it still has work; otherwise it loses its credit, but
    /// not its deficit.
    pub fn end_turn(&mut self) {
        if let Some(tenant) = self.turn.take() {
            let state = &mut self.tenants[tenant.0 as usize];
            if state.queue.is_empty() {
                state.credit_ns = state.credit_ns.min(0);
            } else {
                self.ring.push_back(tenant);
            }
        }
    }

    /// Forgets a connection.
    pub fn remove(&mut self, tenant: TenantId, conn: ConnId) {
        let Some(state) = self.tenants.get_mut(tenant.0 as usize) else { return };
        state.queue.retain(|&other| other != Job::Conn(conn));
        if state.queue.is_empty() {
            let before = self.ring.len();
            self.ring.retain(|&other| other != tenant);
            // The tenants that remain in this pass are at the front of the ring. If this one was not among them, one
            // tenant too many may be served, which is harmless.
            self.left = self.left.min(self.ring.len());
            if self.ring.len() == before {
                self.newcomers.retain(|&other| other != tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(3);

    fn with_weights(a: u64, b: u64) -> Turns {
        let mut turns = Turns::default();
        turns.set_weights([(A, a), (B, b)].into_iter());
        turns
    }

    /// The thread in virtual time. A always has 16 connections with requests. B has `depth` requests; each is sent
    /// again `away_ns` after its answer. A request takes the time that is charged; each pass takes 2 µs in addition.
    /// Returns the requests of A and B in one second.
    fn share(mut turns: Turns, flood: bool, depth: u32, away_ns: Nanos) -> [f64; 2] {
        let (mut now, mut served) = (0, [0.0; 2]);
        let mut back: VecDeque<(Nanos, ConnId)> = (0..depth).map(|i| (0, ConnId(100 + i))).collect();
        if flood {
            (0..16).for_each(|i| turns.push(A, Job::Conn(ConnId(i))));
        }
        while now < 1_000_000_000 {
            while let Some((_, conn)) = back.pop_front_if(|(at, _)| *at <= now) {
                turns.push(B, Job::Conn(conn));
            }
            let start = now;
            turns.begin_pass(start);
            while let Some(tenant) = turns.begin_turn() {
                while let Some(Job::Conn(conn)) = turns.pop() {
                    turns.charge_request(0);
                    now += REQUEST_NS as Nanos;
                    served[usize::from(tenant == B)] += 1.0;
                    if tenant == A { turns.push(A, Job::Conn(conn)) } else { back.push_back((now + away_ns, conn)) }
                }
                turns.end_turn();
            }
            now = match back.front() {
                Some(&(at, _)) if now == start && turns.tenants() == 0 => at.max(now),
                _ => now,
            } + 2_000;
        }
        served
    }

    #[test]
    fn one_request_at_a_time_keeps_its_share_beside_a_flood() {
        for percent in [5, 10, 25, 50, 75, 90, 95] {
            for away_ns in [20_000, 50_000, 200_000, 3_000_000] {
                let [_, alone] = share(with_weights(0, percent), false, 1, away_ns);
                let [others, kept] = share(with_weights(100 - percent, percent), true, 1, away_ns);
                let least = 0.9 * alone * percent as f64 / 100.0;
                assert!(kept >= least, "{percent} %, away {away_ns}: {kept} of {alone} beside {others}");
            }
        }
    }

    #[test]
    fn weights_of_any_size_neither_starve_nor_overflow() {
        for (a, b) in [(1, 1_000_000_000), (1, u64::MAX / 2), (0, 1_000_000_000), (u64::MAX / 2, u64::MAX / 2)] {
            let [a, b] = share(with_weights(a, b), true, 64, 0);
            assert!(a > 1000.0 && b > 1000.0, "{a} {b}");
        }
    }

    #[test]
    fn what_a_tenant_causes_elsewhere_it_has_less_of_its_turns() {
        let mut turns = with_weights(50, 50);
        turns.push(A, Job::Work);
        turns.push(B, Job::Conn(ConnId(1)));
        assert!(turns.begin_pass(0));
        turns.charge_to(A, u64::MAX);
        let mut passes = 0;
        while turns.begin_turn() != Some(A) {
            assert_eq!(turns.pop(), Some(Job::Conn(ConnId(1))));
            turns.charge_request(1 << 20);
            turns.push(B, Job::Conn(ConnId(1)));
            turns.end_turn();
            passes += 1;
            turns.begin_pass(passes);
        }
        assert!((10..100).contains(&passes), "{passes}");
    }

    #[test]
    fn two_floods_get_what_they_weigh() {
        for percent in [5, 10, 25, 50, 75] {
            let [a, b] = share(with_weights(100 - percent, percent), true, 64, 0);
            let got = b / (a + b) * 100.0;
            assert!((got - percent as f64).abs() < 2.0, "{percent} %: {got}");
        }
    }

    #[test]
    fn who_is_alone_has_long_passes_and_large_requests_are_paid_for() {
        let mut turns = with_weights(50, 50);
        turns.push(A, Job::Conn(ConnId(0)));
        assert!(turns.begin_pass(0));
        assert_eq!((turns.begin_turn(), turns.requests_left(), turns.pop()), (Some(A), 16, Some(Job::Conn(ConnId(0)))));
        let mut requests = 0;
        while !turns.is_spent() {
            turns.charge_request(0);
            requests += 1;
        }
        assert_eq!(requests, 16);
        turns.push(A, Job::Conn(ConnId(0)));
        turns.end_turn();
        turns.push(B, Job::Conn(ConnId(1)));
        assert!(turns.begin_pass(1000) && turns.are_shared());
        assert_eq!(turns.begin_turn(), Some(B), "who has just come is first");
        assert_eq!(turns.pop(), Some(Job::Conn(ConnId(1))));
        turns.charge_request(1 << 20);
        turns.push(B, Job::Conn(ConnId(1)));
        turns.end_turn();
        // A megabyte costs four quanta, so A is served in as many passes before B is served again.
        let mut passes = 0;
        while turns.begin_pass(2000) && turns.begin_turn() == Some(A) {
            assert_eq!((turns.pop(), turns.pop()), (Some(Job::Conn(ConnId(0))), None));
            turns.push(A, Job::Conn(ConnId(0)));
            turns.charge_request(1 << 18);
            turns.end_turn();
            passes += 1;
        }
        assert!((3..=5).contains(&passes), "{passes}");
    }

    #[test]
    fn replies_are_sent_in_parts_by_share_in_company() {
        let mut turns = with_weights(75, 25);
        let mut later = 0;
        let mut pass = |turns: &mut Turns, ns: Nanos| {
            later += ns;
            turns.begin_pass(later);
        };
        turns.push(A, Job::Conn(ConnId(0)));
        pass(&mut turns, ACTIVE_NS);
        assert_eq!(turns.may_send(A), u64::MAX, "nobody else has asked");
        turns.push(B, Job::Conn(ConnId(1)));
        pass(&mut turns, ACTIVE_NS);
        assert_eq!([A, B].map(|tenant| turns.may_send(tenant)), [SENT_BYTES / 4 * 3, SENT_BYTES / 4]);
        turns.sends(A, SENT_BYTES / 4 * 3 - 1);
        assert_eq!([A, B].map(|tenant| turns.may_send(tenant)), [1, SENT_BYTES / 4]);
        turns.sends(A, 4096);
        assert_eq!(turns.may_send(A), 0);
        pass(&mut turns, 1);
        assert_eq!(turns.may_send(A), SENT_BYTES / 4 * 3);
        pass(&mut turns, COMPANY_NS);
        turns.push(A, Job::Conn(ConnId(0)));
        pass(&mut turns, ACTIVE_NS);
        assert_eq!(turns.may_send(A), u64::MAX, "the other has not come back");
    }

    #[test]
    fn who_is_gone_leaves_nothing() {
        let mut turns = with_weights(50, 50);
        turns.push(A, Job::Conn(ConnId(0)));
        turns.push(A, Job::Conn(ConnId(1)));
        turns.push(B, Job::Conn(ConnId(2)));
        turns.remove(A, ConnId(0));
        turns.remove(B, ConnId(2));
        assert_eq!(turns.tenants(), 1);
        assert!(turns.begin_pass(0));
        turns.remove(A, ConnId(1));
        assert_eq!((turns.begin_turn(), turns.tenants()), (None, 0));
        assert!(!turns.begin_pass(2 * ACTIVE_NS) && !turns.are_shared());
    }
}
