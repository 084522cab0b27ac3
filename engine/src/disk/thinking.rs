//! Clients that think while others of the same tenant wait.
//!
//! ```text
//!   clients    the most requests that waited at once, recently
//!   idle       clients that do not wait: they think, or they are gone
//!   silence    time in which nothing has been answered for 0.5 ms
//!
//!   return     requests that arrive in silence / (idle clients x silence): how often an idle client comes back by
//!              itself
//!   thinking   the part of the requests that come so, 0 to 1: return x idle clients x time / requests
//!
//! All without absences, in which no request arrives for more than 3 s.
//! ```
//!
//! A client that sends its next request because of an answer sends it at once. So a request that arrives in silence
//! comes from a client that has been thinking. A database that waits for one read at a time, and now and then sends
//! thirty at once, has many idle clients, but hardly a request arrives in silence: its idle clients are gone.
//!
//! Downside: a client that thinks for less than 0.5 ms seems not to think. So do clients of which one is answered at
//! least every 0.5 ms, as eight that think for 1 ms and are mostly served from cache: they are never silent.

use super::books::{AWAY_NS, Most};
use crate::units::{MILLISECOND, Nanos};

/// Silence begins so long after an answer: longer than the way of an answer and of a request over a local network.
const SILENT_NS: Nanos = MILLISECOND / 2;

/// Totals of a tenant.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Thought {
    /// Clients at present.
    pub(crate) clients: u32,
    /// Time in which a client waited, times the part of the clients that did not, nanoseconds.
    pub(crate) part_ns: f64,
    /// Idle clients x time: of all time, and of silence.
    pub(crate) idle_ns: f64,
    pub(crate) silent_idle_ns: f64,
    /// Requests that arrived, and those of them in silence.
    pub(crate) arrivals: u64,
    pub(crate) silent: u64,
}

/// The observation of one tenant's clients.
#[derive(Default, Debug)]
pub(super) struct Thinking {
    most: Most,
    waiting: u32,
    /// Ceilings hold requests back, which idle clients may have sent.
    is_held: bool,
    answered_at: Nanos,
    at: Nanos,
    totals: Thought,
}

impl Thinking {
    pub(super) fn arrived(&mut self, now: Nanos) {
        self.pass(now);
        if !self.is_held {
            self.totals.arrivals += 1;
            self.totals.silent += u64::from(now > self.answered_at + SILENT_NS);
        }
        self.waiting += 1;
    }

    pub(super) fn answered(&mut self, now: Nanos) {
        self.pass(now);
        self.waiting -= 1;
        self.answered_at = now;
    }

    pub(super) fn set_held(&mut self, now: Nanos, is_held: bool) {
        self.pass(now);
        self.is_held = is_held;
    }

    pub(super) fn totals(&mut self, now: Nanos) -> Thought {
        self.pass(now);
        Thought { clients: self.most.recent().max(1), ..self.totals }
    }

    fn pass(&mut self, now: Nanos) {
        let since = std::mem::replace(&mut self.at, now);
        let is_away = self.waiting == 0 && now > self.answered_at + AWAY_NS;
        if self.is_held || is_away {
            return;
        }
        let silent_ns = now.saturating_sub(since.max(self.answered_at + SILENT_NS));
        // Requests that are answered at once, however many, are not clients that wait together.
        if silent_ns > 0 && self.waiting > 0 {
            self.most.note(now, self.waiting);
        }
        let clients = self.most.recent().max(self.waiting).max(1);
        let (idle, past_ns) = (f64::from(clients - self.waiting), (now - since) as f64);
        let part = if self.waiting > 0 { idle / f64::from(clients) } else { 0.0 };
        self.totals.part_ns += part * past_ns;
        self.totals.idle_ns += idle * past_ns;
        self.totals.silent_idle_ns += idle * silent_ns as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = MILLISECOND;

    /// What is counted of `clients` clients in a second, from the second second on. Each request takes `service_ms`,
    /// one after another; then its client thinks for `think_ms` times 0.5 to 1.5. At every second `burst` more requests
    /// arrive, which are answered together after 10 ms.
    fn run(clients: u32, service_ms: Nanos, think_ms: Nanos, burst: u32) -> Thought {
        let mut thinking = Thinking::default();
        let mut arrivals: Vec<Nanos> = (0..u64::from(clients)).map(|at| at * MS).collect();
        let (mut waiting, mut done_at, mut at) = (0, Nanos::MAX, 1_u64);
        let mut before = Thought::default();
        for now in (0..20_000 * MS).step_by(MS as usize / 10) {
            if now % (1000 * MS) == 0 {
                (0..burst).for_each(|_| thinking.arrived(now));
                before = if now == 10_000 * MS { thinking.totals(now) } else { before };
            }
            if now % (1000 * MS) == 10 * MS {
                (0..burst).for_each(|_| thinking.answered(now));
            }
            if now >= done_at {
                (waiting, done_at) = (waiting - 1, if waiting > 1 { now + service_ms * MS } else { Nanos::MAX });
                thinking.answered(now);
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                arrivals.push(now + think_ms * (MS / 2 + (at >> 33) % MS));
            }
            let come = arrivals.iter().filter(|&&at| at <= now).count() as u64;
            arrivals.retain(|&at| at > now);
            if come > 0 && waiting == 0 {
                done_at = now + service_ms * MS;
            }
            waiting += come;
            (0..come).for_each(|_| thinking.arrived(now));
        }
        let after = thinking.totals(20_000 * MS);
        Thought {
            clients: after.clients,
            part_ns: after.part_ns - before.part_ns,
            idle_ns: after.idle_ns - before.idle_ns,
            silent_idle_ns: after.silent_idle_ns - before.silent_idle_ns,
            arrivals: after.arrivals - before.arrivals,
            silent: after.silent - before.silent,
        }
    }

    /// The part of the requests that come from clients that think.
    fn part(of: Thought) -> f64 {
        of.silent as f64 / of.silent_idle_ns.max(1.0) * of.idle_ns / of.arrivals.max(1) as f64
    }

    #[test]
    fn clients_that_think_come_back_by_themselves() {
        let thinks = run(8, 10, 20, 0);
        assert!((7..=8).contains(&thinks.clients), "{thinks:?}");
        assert!((part(thinks) - 1.0).abs() < 0.2, "{} {thinks:?}", part(thinks));
        // A client thinks for 20 of 80 ms, since each of the 8 has the disk for 10.
        assert!((thinks.part_ns / 10e9 - 0.25).abs() < 0.05, "{thinks:?}");
    }

    #[test]
    fn clients_that_wait_all_the_time_do_not_think() {
        let waits = run(8, 5, 0, 0);
        assert_eq!((waits.clients, waits.idle_ns), (8, 0.0));
    }

    #[test]
    fn a_burst_now_and_then_is_no_client_that_thinks() {
        let bursts = run(1, 5, 0, 30);
        assert_eq!(bursts.clients, 31);
        assert!(bursts.part_ns / 10e9 > 0.9 && part(bursts) < 0.2, "{} {bursts:?}", part(bursts));
    }

    #[test]
    fn requests_that_are_answered_at_once_are_no_clients() {
        let mut thinking = Thinking::default();
        thinking.arrived(0);
        (0..30).for_each(|_| thinking.arrived(5 * MS));
        (0..30).for_each(|_| thinking.answered(5 * MS));
        assert_eq!(thinking.totals(10 * MS).clients, 1);
    }

    #[test]
    fn what_ceilings_hold_back_does_not_think() {
        let mut thinking = Thinking::default();
        (0..4).for_each(|_| thinking.arrived(0));
        thinking.answered(10 * MS);
        thinking.set_held(10 * MS, true);
        thinking.set_held(50 * MS, false);
        assert_eq!(thinking.totals(60 * MS).idle_ns, 10e6);
    }
}
