//! Which tenant's work the data thread does next, and for how long (docs/design/thread.md).
//!
//! ```text
//!   a pass:      newcomers first         C ──► A ──► B       each until its quantum of estimated time is used up;
//!                                        │     │             a tenant with a deficit is skipped until it is repaid
//!   each: queue of its work             c1    a1 ► a2 ► w    connections with input, and the backlog in the engine
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

use crate::ids::{ConnId, TenantId};
use crate::units::Nanos;

/// The cost of a request, including receiving and answering it: 3 µs on the machines that we have.
const REQUEST_NS: i64 = 3_000;
/// The cost of taking work from the queue, which a connection without input costs, too.
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
/// The most that is charged in a pass, beyond the last quantum: the quanta of more tenants than it suffices for follow
/// in the next passes, before completions and replies have waited long.
const PASS_NS: i64 = 250_000;
/// The maximum deficit of a tenant, whatever it requested at once.
const DEFICIT_NS_MAX: i64 = 1_000_000;
/// A tenant stays active for this long after its last request, as in the engine: the round trip to a client.
const ACTIVE_NS: Nanos = 1_000_000;
/// Bytes of replies sent in one pass, divided by share, while several tenants are present. A copy into a socket cannot
/// be interrupted, and data that has just come from a device is in no processor's cache (1.5 bytes a nanosecond: 90
/// µs).
const SENT_BYTES: u64 = 128 << 10;
/// The minimum of a tenant's part of it: a frame.
const SENT_BYTES_MIN: u64 = 4 << 10;
/// A tenant is present for this long after its last request; tenants that wait for a device send few requests.
const PRESENT_NS: Nanos = 1_000_000_000;

/// Work of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// A connection may have input.
    Connection(ConnId),
    /// The tenant's backlog in the engine has work (`Action::Work`).
    Backlog(TenantId),
}

#[derive(Debug, Default)]
struct Tenant {
    /// Its work, in order.
    queue: VecDeque<Job>,
    /// Its backlog is in the queue.
    has_backlog: bool,
    /// Its share in any unit; 0 until it is set.
    weight: u64,
    /// The remainder of its quantum; negative for a deficit.
    credit_ns: i64,
    quantum_ns: i64,
    /// Whether it is in `Scheduler::active`.
    active: bool,
    asked_at: Option<Nanos>,
    /// The number of a pass, and the bytes sent in it.
    sent: (u64, u64),
}

/// A connection that may be served.
#[derive(Clone, Copy, Debug)]
struct Connection {
    tenant: TenantId,
    queued: bool,
}

/// The CPU scheduler of a data thread.
///
/// ```text
///   attach, ready(conn), backlog(tenant)  ──►  what may be served
///   begin_pass(now)                       ──►  quanta
///   next_tenant, next_job, end_quantum    ◄──  the order
///   charge_…                              ──►  what was spent
/// ```
#[derive(Debug, Default)]
pub struct Scheduler {
    /// By tenant number.
    tenants: Vec<Tenant>,
    /// By connection number.
    connections: Vec<Option<Connection>>,
    /// Tenants with work, each in exactly one of these two, except the one that is being served.
    ring: VecDeque<TenantId>,
    newcomers: VecDeque<TenantId>,
    serving: Option<TenantId>,
    /// Tenants that remain to be served in this round, at the front of the ring.
    remaining: usize,
    /// What was charged to quanta in this pass.
    pass_ns: i64,
    active: Vec<TenantId>,
    /// The tenants that are present: their number, their weights, and when these were counted.
    present: usize,
    present_weight: u64,
    present_at: Nanos,
    /// Passes so far.
    pass: u64,
    now: Nanos,
}

/// What may be served.
impl Scheduler {
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

    /// From now on, the connection is served in the quanta of this tenant.
    pub fn attach(&mut self, conn: ConnId, tenant: TenantId) {
        let index = conn.0 as usize;
        if index >= self.connections.len() {
            self.connections.resize(index + 1, None);
        }
        self.connections[index] = Some(Connection { tenant, queued: false });
    }

    /// The connection is not served any more.
    pub fn detach(&mut self, conn: ConnId) {
        let Some(Connection { tenant, queued }) = self.connections.get_mut(conn.0 as usize).and_then(Option::take)
        else {
            return;
        };
        if !queued {
            return;
        }
        let state = &mut self.tenants[tenant.0 as usize];
        state.queue.retain(|&other| other != Job::Connection(conn));
        if state.queue.is_empty() {
            let before = self.ring.len();
            self.ring.retain(|&other| other != tenant);
            // The tenants that remain in this pass are at the front of the ring. If this one was not among them, one
            // tenant too many may be served, which is harmless.
            self.remaining = self.remaining.min(self.ring.len());
            if self.ring.len() == before {
                self.newcomers.retain(|&other| other != tenant);
            }
        }
    }

    /// The connection may have input. No effect if it is queued already, or not attached.
    pub fn ready(&mut self, conn: ConnId) {
        if let Some(Some(connection)) = self.connections.get_mut(conn.0 as usize)
            && !std::mem::replace(&mut connection.queued, true)
        {
            let tenant = connection.tenant;
            self.push(tenant, Job::Connection(conn));
        }
    }

    /// The tenant's backlog in the engine has work.
    pub fn backlog(&mut self, tenant: TenantId) {
        let announced = std::mem::replace(&mut self.tenant(tenant).has_backlog, true);
        assert!(!announced, "the engine announces a backlog again only after it was served");
        self.push(tenant, Job::Backlog(tenant));
    }

    /// Whether the tenant's backlog in the engine waits to be served.
    pub fn has_backlog(&self, tenant: TenantId) -> bool {
        self.tenants.get(tenant.0 as usize).is_some_and(|state| state.has_backlog)
    }

    fn push(&mut self, tenant: TenantId, job: Job) {
        let (now, serving) = (self.now, self.serving);
        let state = self.tenant(tenant);
        let was_active = std::mem::replace(&mut state.active, true);
        state.asked_at = Some(now);
        state.queue.push_back(job);
        if state.queue.len() == 1 && serving != Some(tenant) {
            self.newcomers.push_back(tenant);
        }
        if !was_active {
            self.active.push(tenant);
        }
    }

    /// Whether any tenant has work.
    pub fn has_work(&self) -> bool {
        !self.ring.is_empty() || !self.newcomers.is_empty()
    }

    /// Whether this tenant has work.
    pub fn is_waiting(&self, tenant: TenantId) -> bool {
        self.tenants.get(tenant.0 as usize).is_some_and(|state| !state.queue.is_empty())
    }

    /// Whether a tenant other than the one that is being served may need the thread soon.
    pub fn is_shared(&self) -> bool {
        self.active.len() > 1
    }
}

/// The order.
impl Scheduler {
    /// Begins a pass: continues the round that the last one could not finish, or else updates the active tenants and
    /// gives quanta to those with work. Returns whether there is work.
    pub fn begin_pass(&mut self, now: Nanos) -> bool {
        self.now = now;
        self.pass += 1;
        let was_cut = std::mem::take(&mut self.pass_ns) >= PASS_NS;
        if was_cut && self.remaining > 0 {
            return true;
        }
        self.count_present();
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
        self.remaining = self.ring.len();
        if self.remaining > 0 {
            self.give_quanta();
        }
        self.remaining > 0
    }

    /// Counts the tenants that are present, at most once per `ACTIVE_NS`.
    fn count_present(&mut self) {
        if self.now < self.present_at + ACTIVE_NS {
            return;
        }
        self.present_at = self.now;
        let asked = |tenant: &&Tenant| tenant.asked_at.is_some_and(|at| self.now < at + PRESENT_NS);
        let present = || self.tenants.iter().filter(asked);
        (self.present, self.present_weight) = (present().count(), present().map(|tenant| tenant.weight.max(1)).sum());
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
            if planted!(QuantumPerConnection) {
                tenant.quantum_ns *= tenant.queue.len() as i64;
            }
            rounds = rounds.min(1 + (-tenant.credit_ns).max(0) / tenant.quantum_ns);
        }
        for id in &self.ring {
            let tenant = &mut tenants[id.0 as usize];
            tenant.credit_ns = (tenant.credit_ns + rounds * tenant.quantum_ns).min(tenant.quantum_ns);
        }
    }

    /// The next tenant to serve in this pass. Its work is taken with [`Scheduler::next_job`], until
    /// [`Scheduler::end_quantum`].
    pub fn next_tenant(&mut self) -> Option<TenantId> {
        while self.remaining > 0 && self.pass_ns < PASS_NS {
            self.remaining -= 1;
            let Some(tenant) = self.ring.pop_front() else { break };
            if self.tenants[tenant.0 as usize].credit_ns > 0 {
                self.serving = Some(tenant);
                return self.serving;
            }
            self.ring.push_back(tenant);
        }
        None
    }

    /// The next work of the tenant that is being served, if its quantum is not used up.
    pub fn next_job(&mut self) -> Option<Job> {
        let tenant = self.serving?;
        if self.is_spent() {
            return None;
        }
        let state = &mut self.tenants[tenant.0 as usize];
        let job = state.queue.pop_front()?;
        match job {
            Job::Backlog(_) => state.has_backlog = false,
            Job::Connection(conn) => {
                if let Some(connection) = &mut self.connections[conn.0 as usize] {
                    connection.queued = false;
                }
            }
        }
        self.charge(JOB_NS);
        Some(job)
    }

    /// Ends serving a tenant. It goes to the end of the ring if it still has work; otherwise it loses its credit, but
    /// not its deficit.
    pub fn end_quantum(&mut self) {
        if let Some(tenant) = self.serving.take() {
            let state = &mut self.tenants[tenant.0 as usize];
            if planted!(DeficitForgotten) {
                state.credit_ns = state.credit_ns.max(0);
            }
            if state.queue.is_empty() {
                state.credit_ns = state.credit_ns.min(0);
            } else {
                self.ring.push_back(tenant);
            }
        }
    }

    /// How many small requests the rest of the current quantum allows.
    pub fn remaining_requests(&self) -> usize {
        let credit_ns = self.serving.map_or(0, |tenant| self.tenants[tenant.0 as usize].credit_ns);
        usize::try_from((credit_ns + REQUEST_NS - 1) / REQUEST_NS).unwrap_or(0)
    }

    /// Whether the current quantum is used up.
    pub fn is_spent(&self) -> bool {
        self.serving.is_some_and(|tenant| self.tenants[tenant.0 as usize].credit_ns <= 0)
    }
}

/// What was spent.
impl Scheduler {
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
        if let Some(tenant) = self.serving {
            self.owe(tenant, ns);
        }
    }

    /// Charges a tenant, whether or not it is being served.
    pub fn charge_to(&mut self, tenant: TenantId, ns: Nanos) {
        if planted!(BacklogNotCharged) {
            return;
        }
        self.tenant(tenant);
        self.owe(tenant, i64::try_from(ns).unwrap_or(i64::MAX));
    }

    fn owe(&mut self, tenant: TenantId, ns: i64) {
        if self.serving == Some(tenant) {
            self.pass_ns = self.pass_ns.saturating_add(ns);
        }
        let credit_ns = &mut self.tenants[tenant.0 as usize].credit_ns;
        *credit_ns = credit_ns.saturating_sub(ns).max(-DEFICIT_NS_MAX);
    }

    /// Whether a tenant has a deficit.
    pub fn has_deficit(&self, tenant: TenantId) -> bool {
        self.tenants.get(tenant.0 as usize).is_some_and(|state| state.credit_ns < 0)
    }

    /// Bytes of replies that a tenant may still send in this pass.
    pub fn may_send(&mut self, tenant: TenantId) -> u64 {
        if self.present < 2 {
            return u64::MAX;
        }
        let (pass, weights) = (self.pass, u128::from(self.present_weight));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(3);

    fn with_weights(a: u64, b: u64) -> Scheduler {
        let mut cpu = Scheduler::default();
        cpu.set_weights([(A, a), (B, b)].into_iter());
        cpu
    }

    /// A connection of the tenant, which is not queued, has input.
    fn ask(cpu: &mut Scheduler, tenant: TenantId, conn: u32) {
        cpu.attach(ConnId(conn), tenant);
        cpu.ready(ConnId(conn));
    }

    /// The thread in virtual time. A always has 16 connections with requests. B has `depth` requests; each is sent
    /// again `away_ns` after its answer. A request takes the time that is charged; each pass takes 2 µs in addition.
    /// Returns the requests of A and B in one second.
    fn share(mut cpu: Scheduler, flood: bool, depth: u32, away_ns: Nanos) -> [f64; 2] {
        let (mut now, mut served) = (0, [0.0; 2]);
        let mut back: VecDeque<(Nanos, u32)> = (0..depth).map(|i| (0, 100 + i)).collect();
        if flood {
            (0..16).for_each(|i| ask(&mut cpu, A, i));
        }
        while now < 1_000_000_000 {
            while let Some((_, conn)) = back.pop_front_if(|(at, _)| *at <= now) {
                ask(&mut cpu, B, conn);
            }
            let start = now;
            cpu.begin_pass(start);
            while let Some(tenant) = cpu.next_tenant() {
                while let Some(Job::Connection(ConnId(conn))) = cpu.next_job() {
                    cpu.charge_request(0);
                    now += REQUEST_NS as Nanos;
                    served[usize::from(tenant == B)] += 1.0;
                    if tenant == A { ask(&mut cpu, A, conn) } else { back.push_back((now + away_ns, conn)) }
                }
                cpu.end_quantum();
            }
            now = match back.front() {
                Some(&(at, _)) if now == start && !cpu.has_work() => at.max(now),
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
    fn what_a_tenant_causes_elsewhere_it_has_less_of_its_quanta() {
        let mut cpu = with_weights(50, 50);
        cpu.backlog(A);
        ask(&mut cpu, B, 1);
        assert!(cpu.begin_pass(0));
        cpu.charge_to(A, u64::MAX);
        let mut passes = 0;
        while cpu.next_tenant() != Some(A) {
            assert_eq!(cpu.next_job(), Some(Job::Connection(ConnId(1))));
            cpu.charge_request(1 << 20);
            ask(&mut cpu, B, 1);
            cpu.end_quantum();
            passes += 1;
            cpu.begin_pass(passes);
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
        let mut cpu = with_weights(50, 50);
        ask(&mut cpu, A, 0);
        assert!(cpu.begin_pass(0));
        assert_eq!(
            (cpu.next_tenant(), cpu.remaining_requests(), cpu.next_job()),
            (Some(A), 16, Some(Job::Connection(ConnId(0))))
        );
        let mut requests = 0;
        while !cpu.is_spent() {
            cpu.charge_request(0);
            requests += 1;
        }
        assert_eq!(requests, 16);
        ask(&mut cpu, A, 0);
        cpu.end_quantum();
        ask(&mut cpu, B, 1);
        assert!(cpu.begin_pass(1000) && cpu.is_shared());
        assert_eq!(cpu.next_tenant(), Some(B), "who has just come is first");
        assert_eq!(cpu.next_job(), Some(Job::Connection(ConnId(1))));
        cpu.charge_request(1 << 20);
        ask(&mut cpu, B, 1);
        cpu.end_quantum();
        // A megabyte costs four quanta, so A is served in as many passes before B is served again.
        let mut passes = 0;
        while cpu.begin_pass(2000) && cpu.next_tenant() == Some(A) {
            assert_eq!((cpu.next_job(), cpu.next_job()), (Some(Job::Connection(ConnId(0))), None));
            ask(&mut cpu, A, 0);
            cpu.charge_request(1 << 18);
            cpu.end_quantum();
            passes += 1;
        }
        assert!((3..=5).contains(&passes), "{passes}");
    }

    #[test]
    fn replies_are_sent_in_parts_by_share_in_company() {
        let mut cpu = with_weights(75, 25);
        let mut later = 0;
        let mut pass = |cpu: &mut Scheduler, ns: Nanos| {
            later += ns;
            cpu.begin_pass(later);
        };
        ask(&mut cpu, A, 0);
        pass(&mut cpu, ACTIVE_NS);
        assert_eq!(cpu.may_send(A), u64::MAX, "nobody else has asked");
        ask(&mut cpu, B, 1);
        pass(&mut cpu, ACTIVE_NS);
        assert_eq!([A, B].map(|tenant| cpu.may_send(tenant)), [SENT_BYTES / 4 * 3, SENT_BYTES / 4]);
        cpu.sends(A, SENT_BYTES / 4 * 3 - 1);
        assert_eq!([A, B].map(|tenant| cpu.may_send(tenant)), [1, SENT_BYTES / 4]);
        cpu.sends(A, 4096);
        assert_eq!(cpu.may_send(A), 0);
        pass(&mut cpu, 1);
        assert_eq!(cpu.may_send(A), SENT_BYTES / 4 * 3);
        pass(&mut cpu, PRESENT_NS);
        while cpu.next_tenant().is_some() {
            while cpu.next_job().is_some() {}
            cpu.end_quantum();
        }
        ask(&mut cpu, A, 0);
        pass(&mut cpu, ACTIVE_NS);
        assert_eq!(cpu.may_send(A), u64::MAX, "the other has not come back");
    }

    #[test]
    fn a_round_of_many_tenants_takes_several_passes_and_serves_each_once() {
        const TENANTS: u32 = 1000;
        let mut cpu = Scheduler::default();
        cpu.set_weights((0..=TENANTS).map(|at| (TenantId(at), 1)));
        (0..=TENANTS).for_each(|at| cpu.attach(ConnId(at), TenantId(at)));
        (0..TENANTS).for_each(|at| cpu.ready(ConnId(at)));
        let (mut served, mut passes) = (Vec::new(), 0);
        while cpu.begin_pass(passes) {
            let mut charged_ns = 0;
            while let Some(tenant) = cpu.next_tenant() {
                assert_eq!(cpu.next_job(), Some(Job::Connection(ConnId(tenant.0))));
                cpu.charge_request(0);
                charged_ns += REQUEST_NS + JOB_NS;
                served.push(tenant);
                cpu.end_quantum();
            }
            assert!(charged_ns <= PASS_NS + REQUEST_NS + JOB_NS, "{charged_ns} ns in a pass");
            passes += 1;
            if passes == 1 {
                // A newcomer does not delay those that the round has left.
                cpu.ready(ConnId(TENANTS));
            }
        }
        assert_eq!((served.len() as u32, served.pop()), (TENANTS + 1, Some(TenantId(TENANTS))));
        served.sort_unstable();
        served.dedup();
        assert_eq!(served.len() as u32, TENANTS);
    }

    #[test]
    fn a_detached_connection_leaves_nothing() {
        let mut cpu = with_weights(50, 50);
        ask(&mut cpu, A, 0);
        ask(&mut cpu, A, 1);
        ask(&mut cpu, B, 2);
        cpu.detach(ConnId(0));
        cpu.detach(ConnId(2));
        assert!(cpu.is_waiting(A) && !cpu.is_waiting(B) && cpu.has_work());
        assert!(cpu.begin_pass(0));
        cpu.detach(ConnId(1));
        cpu.ready(ConnId(1));
        assert_eq!((cpu.next_tenant(), cpu.has_work()), (None, false));
        assert!(!cpu.begin_pass(2 * ACTIVE_NS) && !cpu.is_shared());
    }
}
