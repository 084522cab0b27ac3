//! Standalone-equivalent time: how long a tenant's work and its clients' pauses would have taken with the whole disk,
//! and with the whole cache or with the cache that it has.
//!
//! ```text
//!   quiet    time in which no client waited for the server: clients pause (for at most 3 s: else they are away, which
//!            is no time at all), or the cache answers at once
//!   useful   standalone disk time of the disk's work, without context switches, divided by use (`cost.rs`)
//!            x what the whole cache would have left of it: reads m_r(whole) / m_r(partition), writes ALONE / NOW;
//!            x 1 with the cache that it has
//!
//!   waited     = useful of fills and flushes
//!   thinking   time in which some clients waited x the part of the clients that thought (`disk/thinking.rs`)
//!   standalone = max(quiet + closed loop of waited and thinking, waited + useful of read-ahead and write-back)
//! ```
//!
//! The closed loop (`closed.rs`) is what `waited` takes of the time if as many clients think as long. With one client
//! there is no other that waits, and it is `waited`.
//!
//! Clients wait for fills and flushes, so these come after the pauses; the disk reads ahead and writes back meanwhile.
//! Live insulation is standalone / (share x time): with the whole cache an estimate, with the cache that the tenant has
//! a measurement. Where requests are ordered by cost the policy's useful time has the
//! pauses already, and the time is that with demand ([`Pauses`]).
//!
//! Some clients do not wait for answers: a timer, or a replayed trace. Standalone they would not send more either. If
//! the server keeps up with them (from time to time no request is left), a second with them counts as up to a second:
//!
//! ```text
//!   open        (rate of requests while others wait and nothing is answered / rate at other times) x (1 + its standard
//!               error), 0 to 1
//!   standalone  at least open x requests answered / requests that arrived x time
//! ```
//!
//! With ceilings a tenant would be held back standalone as well: its work takes at least the time in which the ceilings
//! allow it. Time in which only they keep it from having demand is no pause.
//!
//! The *standalone clock* goes on by that time, so it is slow for clients that would be fast. What is written back
//! depends on it (`dirty.rs`): the faster clients write, the more of it is overwritten before it is 5 s old. So fast
//! clients and slow ones can both agree with what would be written, and standalone they write as fast as they can.
//! Hence for the first minute of a load the clock goes on as if write-back took no time; then it becomes as fast as it
//! must. Ninety per cent of writes in a hot set that fits into the cache kept 0.01 where 0.72 was named.
//!
//! Useful time of slices has the pauses for which the disk idled. They are quiet time, so useful time is at most the
//! time that the device took for the tenant's requests.

use super::closed::per_request;
use super::cost::{DISK_USES, DiskUse};
use crate::disk::{Arrivals, Thought};
use crate::units::Nanos;

/// Factor of earlier times per look (about a second), for the ratio of device time to useful time: half after 8 s, some
/// rounds.
const FADES: f64 = 0.917;

/// How long the standalone clock goes on without write-back after a load begins. A load begins after an absence of
/// [`BEGINS_AFTER_NS`].
const UNHINDERED_NS: Nanos = 60_000_000_000;
const BEGINS_AFTER_NS: f64 = 60e9;
/// Write-backs that a read waits for, if there are as many: those of a volume that are in the device at once
/// (`volume/writeback.rs`).
const AHEAD: f64 = 64.0;

/// The caches with which a tenant is compared, as indices: the whole cache, and the cache that it has.
const WHOLE: usize = 0;
const OWN: usize = 1;
const CACHES: usize = 2;

/// The standalone-equivalent time of one tenant, by the cache that it would have.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Standalone {
    standalone_ns: [f64; CACHES],
    seen: Seen,
    /// Whether it is known what would have been left of disk time.
    has_gains: bool,
    /// The fraction of disk time for which clients wait, times what would have been left of it; likewise the rest.
    waited: [f64; CACHES],
    beside: [f64; CACHES],
    /// Recent device time, what context switches took of it, and useful time.
    device_ns: f64,
    switches_ns: f64,
    useful_ns: f64,
    /// Recent arrivals, and the part of the time for which they stand.
    recent: Recent,
    open: f64,
    /// Time so far in which no client waited, and none was away, nanoseconds; of clients that do not wait for answers,
    /// at least the time for which their requests stand.
    quiet_ns: f64,
    thinking_ns: f64,
    /// The standalone clock at the last look, and its speed. It never goes back.
    alone_ns: f64,
    speed: f64,
    /// When the load began.
    began: Nanos,
    /// Recent standalone time if each read waited for [`AHEAD`] write-backs, absences included, and what write-back and
    /// read-ahead would have taken.
    behind_ns: f64,
    beside_ns: f64,
    /// Whether the gains are known well enough for the result to be shown.
    pub(crate) is_certain: bool,
}

/// The pauses of clients that the policy's useful time contains.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Pauses {
    /// None: it is the sum over requests.
    #[default]
    Without,
    /// Those for which the disk idled within slices.
    Idled,
    /// All.
    All,
}

/// Counters of a tenant at one time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) now: Nanos,
    pub(crate) useful_ns: Nanos,
    /// What its context switches took so far.
    pub(crate) switches_ns: Nanos,
    /// Time in which a client waited, and in which none had demand.
    pub(crate) waiting_ns: Nanos,
    pub(crate) away_ns: Nanos,
    /// Time in which its ceilings held it back and no other request of its clients was outstanding; the part of it
    /// without demand; and the least time in which the ceilings allow what its clients got.
    pub(crate) held_ns: Nanos,
    pub(crate) held_without_demand_ns: Nanos,
    pub(crate) ceiling_ns: Nanos,
    pub(crate) arrivals: Arrivals,
    /// Clients that think while others wait.
    pub(crate) thought: Thought,
    /// The pauses in `useful_ns`.
    pub(crate) pauses: Pauses,
    /// Disk time by [`DiskUse`].
    pub(crate) disk_ns: [f64; DISK_USES],
    /// The part of its streams' work that a tenant's own random requests displace, 0 to 1.
    pub(crate) streams_lack: f64,
}

/// Fewest late requests, and fewest others, that tell how open a client is, and the shortest late time.
const LATE_LEAST: f64 = 8.0;
const LATE_NS_LEAST: f64 = 1e9;

/// Recent sums of [`Arrivals`], and of the time in which clients were not away.
#[derive(Clone, Copy, Default, Debug)]
struct Recent {
    requests: f64,
    answered: f64,
    late: f64,
    late_ns: f64,
    there_ns: f64,
    /// The sums of [`Thought`].
    idle_ns: f64,
    silent_idle_ns: f64,
    arrivals: f64,
    silent: f64,
}

impl Recent {
    fn add(&mut self, seen: &Seen, before: &Seen) {
        let add = |sum: &mut f64, now: u64, before: u64| *sum = *sum * FADES + (now as f64 - before as f64);
        add(&mut self.requests, seen.arrivals.requests, before.arrivals.requests);
        add(&mut self.answered, seen.arrivals.answered, before.arrivals.answered);
        add(&mut self.late, seen.arrivals.late, before.arrivals.late);
        add(&mut self.late_ns, seen.arrivals.late_ns, before.arrivals.late_ns);
        add(&mut self.there_ns, seen.there_ns(), before.there_ns());
        add(&mut self.arrivals, seen.thought.arrivals, before.thought.arrivals);
        add(&mut self.silent, seen.thought.silent, before.thought.silent);
        let fade = |sum: &mut f64, now: f64, before: f64| *sum = *sum * FADES + (now - before);
        fade(&mut self.idle_ns, seen.thought.idle_ns, before.thought.idle_ns);
        fade(&mut self.silent_idle_ns, seen.thought.silent_idle_ns, before.thought.silent_idle_ns);
    }

    /// The part of the idle clients that think, 0 to 1: the others are gone (`disk/thinking.rs`).
    fn thinks(&self) -> f64 {
        if self.silent_idle_ns <= 0.0 || self.arrivals <= 0.0 {
            return 0.0;
        }
        (self.silent / self.silent_idle_ns * self.idle_ns / self.arrivals).clamp(0.0, 1.0)
    }

    /// The part of the time for which the requests stand because they do not wait for answers, 0 to 1.
    fn open(&self) -> f64 {
        let (others, others_ns) = (self.requests - self.late, self.there_ns - self.late_ns);
        if self.late < LATE_LEAST || self.late_ns < LATE_NS_LEAST || others < LATE_LEAST || others_ns <= 0.0 {
            return 0.0;
        }
        // A standard error more: rates that are alike differ by chance, and only their lower half would count.
        let error = (1.0 / self.late + 1.0 / others).sqrt();
        let open = (self.late / self.late_ns) / (others / others_ns) * (1.0 + error);
        open.min(1.0) * (self.answered / self.requests).clamp(0.0, 1.0)
    }
}

impl Seen {
    /// Time in which clients were not away.
    fn there_ns(&self) -> Nanos {
        self.now.saturating_sub(self.away_ns)
    }
}

impl Standalone {
    /// Accounts for the time since the last look. Standalone, reads would have taken the fraction `reads` of their disk
    /// time, and writes the fraction `writes`.
    pub(crate) fn look(&mut self, seen: Seen, reads: f64, writes: f64) {
        let before = self.seen;
        self.has_gains = true;
        let parts: [f64; DISK_USES] = std::array::from_fn(|at| (seen.disk_ns[at] - before.disk_ns[at]).max(0.0));
        let sum: f64 = parts.iter().sum();
        if sum > 0.0 {
            let part = |of: DiskUse, gain: f64| parts[of as usize] / sum * gain;
            let both = |of: [DiskUse; 2], [reads, writes]: [f64; 2]| part(of[0], reads) + part(of[1], writes);
            let gains = [[reads, writes], [1.0; 2]];
            self.waited = gains.map(|gains| both([DiskUse::Fill, DiskUse::Sync], gains));
            self.beside = gains.map(|gains| both([DiskUse::Prefetch, DiskUse::WriteBack], gains));
            self.device_ns = self.device_ns * FADES + sum;
            self.switches_ns = self.switches_ns * FADES + gained(before.switches_ns, seen.switches_ns).max(0.0);
            self.useful_ns = self.useful_ns * FADES + gained(before.useful_ns, seen.useful_ns).max(0.0);
        }
        self.recent.add(&seen, &before);
        self.open = self.recent.open();
        let gained = [WHOLE, OWN].map(|cache| self.gained(&seen, cache));
        self.quiet_ns += self.at_least_open(self.quiet(&seen), &seen);
        self.thinking_ns += self.thinking(&seen);
        let past = (seen.now - before.now) as f64;
        self.standalone_ns = [WHOLE, OWN].map(|cache| self.standalone_ns[cache] + gained[cache]);
        self.alone_ns += self.speed * past;
        // Dirty data ages while clients are away, too.
        let away = seen.away_ns as f64 - before.away_ns as f64;
        let [unhindered_ns, behind_ns] =
            [1.0, AHEAD / f64::from(seen.thought.clients.max(1))].map(|longer| self.unhindered(&seen, longer.max(1.0)));
        if away > BEGINS_AFTER_NS {
            (self.began, self.behind_ns, self.beside_ns) = (seen.now, 0.0, 0.0);
        }
        self.behind_ns = self.behind_ns * FADES + behind_ns + away.max(0.0);
        self.beside_ns = self.beside_ns * FADES + self.useful(&seen) * self.beside[WHOLE];
        let alone_ns = if seen.now < self.began + UNHINDERED_NS { unhindered_ns } else { gained[WHOLE] };
        self.speed = if past > 0.0 { ((alone_ns + away) / past).clamp(0.0, 1.0) } else { self.speed };
        self.seen = seen;
    }

    /// Standalone-equivalent time since the last look.
    fn gained(&self, seen: &Seen, cache: usize) -> f64 {
        let useful = gained(self.seen.useful_ns, seen.useful_ns) * (1.0 - seen.streams_lack);
        if !self.has_gains {
            return useful;
        }
        let beside = self.beside[cache];
        if seen.pauses == Pauses::All {
            // The time with demand does not contain the time in which the tenant is held back.
            let held = seen.held_without_demand_ns as f64 - self.seen.held_without_demand_ns as f64;
            return (useful * (self.waited[cache] + beside)).max(self.at_ceiling(seen) - held);
        }
        let quiet = self.quiet(seen);
        let useful = useful * self.without_pauses(seen);
        let waited = useful * self.waited[cache];
        let paused = quiet + self.closed(seen, waited);
        let standalone = if quiet < 0.0 { paused } else { paused.max(waited + useful * beside) };
        self.at_least_open(standalone, seen)
    }

    /// Standalone-equivalent time since the last look with the whole cache, if write-back and read-ahead took no time
    /// of their own, and clients waited `longer` times for the rest.
    fn unhindered(&self, seen: &Seen, longer: f64) -> f64 {
        let waited = longer * self.useful(seen) * self.waited[WHOLE];
        self.at_least_open(self.quiet(seen).max(0.0) + self.closed(seen, waited), seen).max(0.0)
    }

    /// What `waited` of disk time since the last look takes in the closed loop of clients that think while others wait.
    fn closed(&self, seen: &Seen, waited: f64) -> f64 {
        let thinking = self.thinking(seen);
        // Corrections of useful time may make the former negative.
        if waited > 0.0 && thinking > 0.0 { per_request(seen.thought.clients, waited, thinking) } else { waited }
    }

    /// The disk's work since the last look, nanoseconds.
    fn useful(&self, seen: &Seen) -> f64 {
        (gained(self.seen.useful_ns, seen.useful_ns) * self.without_pauses(seen)).max(0.0)
    }

    /// Whether standalone the disk would not keep up with write-back, although reads wait for it.
    pub(crate) fn outpaces(&self) -> bool {
        self.beside_ns > self.behind_ns
    }

    /// The part of the useful time that is the disk's work: useful time has no switches, device time has no pauses.
    fn without_pauses(&self, seen: &Seen) -> f64 {
        if seen.pauses == Pauses::Without || self.useful_ns <= 0.0 {
            return 1.0;
        }
        ((self.device_ns - self.switches_ns) / self.useful_ns).clamp(0.0, 1.0)
    }

    /// `time_ns`, or what the requests since the last look stand for because they do not wait for answers, or because
    /// of ceilings.
    fn at_least_open(&self, time_ns: f64, seen: &Seen) -> f64 {
        let there_ns = seen.there_ns() as f64 - self.seen.there_ns() as f64;
        let time_ns = if self.open > 0.0 && there_ns > 0.0 { time_ns.max(self.open * there_ns) } else { time_ns };
        let at_ceiling = self.at_ceiling(seen);
        if at_ceiling > 0.0 { time_ns.max(at_ceiling) } else { time_ns }
    }

    /// The least time in which the ceilings allow what the clients got since the last look, at most the time in which
    /// they were not away: more may have been saved before.
    fn at_ceiling(&self, seen: &Seen) -> f64 {
        let there_ns = seen.there_ns() as f64 - self.seen.there_ns() as f64;
        (seen.ceiling_ns as f64 - self.seen.ceiling_ns as f64).min(there_ns)
    }

    /// Time since the last look in which no client waited, and none was away or held back by a ceiling. A pause may
    /// turn out later to have been an absence: then it is negative.
    fn quiet(&self, seen: &Seen) -> f64 {
        let since = |now: Nanos, before: Nanos| now as f64 - before as f64;
        let busy = since(seen.waiting_ns, self.seen.waiting_ns) + since(seen.away_ns, self.seen.away_ns);
        let busy = busy + since(seen.held_ns, self.seen.held_ns);
        (seen.now - self.seen.now) as f64 - busy
    }

    /// Time since the last look in which some clients waited, times the part of the clients that thought.
    fn thinking(&self, seen: &Seen) -> f64 {
        self.recent.thinks() * (seen.thought.part_ns - self.seen.thought.part_ns).max(0.0)
    }

    /// Clients at the last look, and the time until then in which some waited, times the part of them that thought.
    pub(crate) fn thinking_clients(&self) -> (u32, Nanos) {
        (self.seen.thought.clients, self.thinking_ns as Nanos)
    }

    /// Time until the last look in which no client waited, and none was away, or for which requests stand that do not
    /// wait for answers, nanoseconds.
    pub(crate) fn quiet_ns(&self) -> Nanos {
        self.quiet_ns.max(0.0) as Nanos
    }

    /// Standalone-equivalent time with the cache that the tenant has until the last look.
    pub(crate) fn own_cache_ns(&self) -> Nanos {
        self.standalone_ns[OWN].max(0.0) as Nanos
    }

    /// Time until the last look in which its clients were not away.
    pub(crate) fn there_ns(&self) -> Nanos {
        self.seen.there_ns()
    }

    /// Useful time at the last look.
    pub(crate) fn useful_ns(&self) -> Nanos {
        self.seen.useful_ns
    }

    /// Standalone-equivalent time at present: with the whole cache, and with the cache that the tenant has.
    pub(crate) fn at(&self, seen: &Seen) -> [Nanos; CACHES] {
        [WHOLE, OWN].map(|cache| (self.standalone_ns[cache] + self.gained(seen, cache)).max(0.0) as Nanos)
    }

    /// The standalone clock: only differences are meaningful.
    pub(crate) fn alone(&self, now: Nanos) -> Nanos {
        (self.alone_ns + self.speed * (now - self.seen.now) as f64) as Nanos
    }
}

/// The useful time of a running slice is corrected when the slice ends; a new policy restarts the counter.
fn gained(before: Nanos, now: Nanos) -> f64 {
    let began_anew = now < before / 2;
    if began_anew { now as f64 } else { now as f64 - before as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    const S: f64 = SECOND as f64;

    /// After `seconds`, of which a client waited for `waiting`; disk time of fills, read-ahead, write-back and flushes.
    fn seen(seconds: Nanos, waiting: Nanos, useful: Nanos, disk: [f64; DISK_USES]) -> Seen {
        let disk_ns = disk.map(|time| time * S);
        let (now, useful_ns, waiting_ns) = (seconds * SECOND, useful * SECOND, waiting * SECOND);
        Seen { now, useful_ns, waiting_ns, pauses: Pauses::Idled, disk_ns, ..Seen::default() }
    }

    fn after(seen: Seen, reads: f64, writes: f64) -> f64 {
        let mut standalone = Standalone::default();
        standalone.look(seen, reads, writes);
        standalone.at(&seen)[WHOLE] as f64 / S
    }

    #[test]
    fn a_client_that_waits_takes_what_its_work_would_have_taken() {
        assert_eq!(after(seen(8, 8, 4, [4.0, 0.0, 0.0, 0.0]), 0.5, 0.25), 2.0, "reads");
        assert_eq!(after(seen(8, 8, 4, [1.0, 0.0, 3.0, 0.0]), 0.5, 0.25), 4.0 * (0.125 + 0.75 * 0.25), "both");
    }

    #[test]
    fn with_the_cache_that_it_has_its_work_takes_what_the_device_took() {
        let own = |seen: Seen| {
            let mut standalone = Standalone::default();
            standalone.look(seen, 0.5, 0.25);
            standalone.at(&seen)[OWN] as f64 / S
        };
        let reader = seen(8, 8, 4, [4.0, 0.0, 0.0, 0.0]);
        assert_eq!(own(reader), 4.0, "a reader");
        assert_eq!(own(Seen { streams_lack: 0.25, ..reader }), 3.0, "a quarter of its stream's time went to others");
        assert_eq!(own(seen(10, 0, 3, [0.0, 0.0, 3.0, 0.0])), 10.0, "a writer that never waits");
    }

    #[test]
    fn pauses_count_as_long_as_they_are_and_not_twice() {
        // A read of 10 ms, a pause of 90 ms for which the disk idles, and then the neighbour's slice of 100 ms: ten
        // times.
        let thinks = seen(20, 11, 10, [1.0, 0.0, 0.0, 0.0]);
        assert!((after(thinks, 1.0, 1.0) - 10.0).abs() < 1e-6, "{}", after(thinks, 1.0, 1.0));
        assert_eq!(after(seen(20, 0, 0, [0.0; DISK_USES]), 1.0, 1.0), 20.0, "the cache answers at once");
        assert_eq!(after(seen(20, 1, 1, [1.0, 0.0, 0.0, 0.0]), 0.0, 1.0), 19.0, "standalone the cache has all");
    }

    #[test]
    fn clients_that_think_while_others_wait_would_think_standalone() {
        // Four clients: one of them always waits, for 1 s of disk time in 10 s; half of them think on average.
        let with = |silent: u64| {
            let (idle_ns, part_ns) = (2.0 * 10.0 * S, 5.0 * S);
            let thought =
                Thought { clients: 4, part_ns, idle_ns, silent_idle_ns: idle_ns / 2.0, arrivals: 200, silent };
            after(Seen { thought, ..seen(10, 10, 1, [1.0, 0.0, 0.0, 0.0]) }, 1.0, 1.0)
        };
        let [gone, thinks] = [0, 100].map(with);
        assert_eq!(gone, 1.0, "no request comes by itself");
        assert!((thinks - per_request(4, 1.0, 5.0)).abs() < 1e-6 && thinks < 6.0, "{thinks}");
    }

    #[test]
    fn an_absence_is_no_time_at_all() {
        let mut standalone = Standalone::default();
        let (before, after) = (seen(10, 10, 5, [5.0, 0.0, 0.0, 0.0]), seen(20, 10, 5, [5.0, 0.0, 0.0, 0.0]));
        standalone.look(before, 1.0, 1.0);
        assert_eq!(standalone.at(&Seen { now: 12 * SECOND, ..after })[WHOLE], 7 * SECOND, "a pause");
        standalone.look(Seen { now: 12 * SECOND, ..after }, 1.0, 1.0);
        let away = Seen { away_ns: 10 * SECOND, ..after };
        assert_eq!(standalone.at(&away)[WHOLE], 5 * SECOND, "the pause was its beginning");
    }

    #[test]
    fn what_the_disk_does_meanwhile_is_not_waited_for() {
        assert_eq!(after(seen(10, 5, 5, [0.0, 5.0, 0.0, 0.0]), 1.0, 1.0), 5.0, "a stream that is read ahead");
        assert_eq!(after(seen(10, 0, 3, [0.0, 0.0, 3.0, 0.0]), 1.0, 1.0), 10.0, "a writer that never waits");
        assert_eq!(after(seen(10, 10, 3, [0.0, 0.0, 3.0, 0.0]), 1.0, 1.0), 3.0, "a writer that waits for frames");
    }

    #[test]
    fn clients_that_do_not_wait_for_answers_get_what_they_would_get() {
        // 20 requests a second, answered in the tenant's slice, a quarter of the time.
        let look = |standalone: &mut Standalone, second: u64, late: u64, answered: u64| {
            let arrivals = Arrivals { requests: 20 * second, answered, late_ns: second * 3 * SECOND / 4, late };
            let seen = Seen { arrivals, ..seen(second, second, 0, [0.1 * second as f64, 0.0, 0.0, 0.0]) };
            standalone.look(seen, 1.0, 1.0);
            standalone.at(&seen)[WHOLE] as f64 / S
        };
        let all = |late: u64, answered: u64| {
            let mut standalone = Standalone::default();
            let seconds: Vec<_> =
                (1..=20).map(|second| look(&mut standalone, second, late * second, answered * second)).collect();
            seconds[19] - seconds[9]
        };
        assert!((all(15, 20) - 10.0).abs() < 0.01, "an open client: {}", all(15, 20));
        assert!((all(15, 10) - 5.0).abs() < 0.01, "half of it is answered: {}", all(15, 10));
        assert!(all(0, 20) < 0.01, "each of its requests waits for an answer: {}", all(0, 20));
    }

    #[test]
    fn without_slices_useful_time_is_all() {
        let mut standalone = Standalone::default();
        let fair = Seen { pauses: Pauses::All, ..seen(10, 9, 4, [1.0, 1.0, 0.0, 0.0]) };
        standalone.look(fair, 0.5, 1.0);
        assert_eq!(standalone.at(&fair), [2 * SECOND, 4 * SECOND]);
        let none = Seen { pauses: Pauses::Without, ..seen(10, 9, 4, [1.0, 1.0, 0.0, 0.0]) };
        let mut without = Standalone::default();
        without.look(none, 0.5, 1.0);
        assert_eq!(without.at(&none), [2 * SECOND, 4 * SECOND], "1 s of fills and a pause, or 2 s and 2 s beside them");
        // With a new policy useful time begins anew; what clients waited for before does not count again.
        let slices = seen(20, 19, 1, [4.0, 1.0, 0.0, 0.0]);
        standalone.look(slices, 1.0, 1.0);
        assert_eq!(standalone.at(&slices)[WHOLE], 3 * SECOND);
    }

    #[test]
    fn in_the_first_minute_of_a_load_write_back_takes_no_time() {
        // Half of each second is waited for; write-back takes a quarter of a second.
        let mut standalone = Standalone::default();
        let mut look = |at: f64, busy: f64, away: f64| {
            let ns = |seconds: f64| (seconds * S) as Nanos;
            let seen = Seen {
                now: ns(at),
                useful_ns: ns(0.75 * busy),
                waiting_ns: ns(busy),
                away_ns: ns(away),
                ..seen(0, 0, 0, [0.5 * busy, 0.0, 0.25 * busy, 0.0])
            };
            standalone.look(seen, 1.0, 1.0);
            (standalone.speed, standalone.outpaces())
        };
        let near = |(speed, outpaces): (f64, bool), expected: f64| {
            assert!((speed - expected).abs() < 1e-6 && !outpaces, "{speed}, {outpaces}");
        };
        (1..30).for_each(|at| near(look(f64::from(at), f64::from(at), 0.0), 0.5));
        (60..90).for_each(|at| _ = look(f64::from(at), f64::from(at), 0.0));
        near(look(90.0, 90.0, 0.0), 0.75);
        near(look(95.0, 90.0, 5.0), 1.0);
        near(look(200.0, 91.0, 109.0), (104.0 + 0.5) / 105.0);
        near(look(201.0, 92.0, 109.0), 0.5);
        near(look(270.0, 161.0, 109.0), 0.75);
    }

    #[test]
    fn only_a_client_that_is_there_outpaces_the_disk() {
        let run = |away: Nanos| {
            let mut standalone = Standalone::default();
            // Write-back takes all of the time, and nothing is waited for but that.
            for at in 1..30 {
                let writes = seen(at, at * (1 - away), at, [0.0, 0.0, at as f64, 0.0]);
                standalone.look(Seen { away_ns: at * away * SECOND, ..writes }, 1.0, 1.0);
            }
            standalone.outpaces()
        };
        assert!(run(0) && !run(1));
    }

    #[test]
    fn the_clock_goes_on_as_fast_as_before() {
        let mut standalone = Standalone::default();
        standalone.look(seen(16, 16, 8, [8.0, 0.0, 0.0, 0.0]), 0.5, 0.5);
        let alone = |standalone: &Standalone| [16, 24].map(|second| standalone.alone(second * SECOND) / SECOND);
        assert_eq!(alone(&standalone), [0, 2], "a quarter");
        standalone.look(seen(24, 24, 16, [16.0, 0.0, 0.0, 0.0]), 1.0, 1.0);
        assert_eq!([24, 32].map(|second| standalone.alone(second * SECOND) / SECOND), [2, 10], "as fast as it can");
        assert_eq!(standalone.at(&seen(24, 24, 16, [0.0; DISK_USES]))[WHOLE], 12 * SECOND);
        assert_eq!(standalone.at(&seen(24, 24, 1, [0.0; DISK_USES]))[WHOLE], 13 * SECOND, "useful time began anew");
    }
}
