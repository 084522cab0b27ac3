//! Standalone-equivalent time: how long a tenant's work and its clients' pauses would have taken with the whole disk and
//! the whole cache.
//!
//! ```text
//!   quiet    time in which no client waited for the server: a client pauses, or the cache answers at once
//!   useful   standalone disk time of the disk's work, without context switches, divided by cause (`cost.rs`)
//!            x what the whole cache would have left of it: reads m_r(whole) / m_r(partition), writes ALONE / NOW
//!
//!   standalone = useful of fills and flushes + max(quiet, useful of read-ahead and write-back)
//! ```
//!
//! Clients wait for fills and flushes, so these come after the pauses; the disk reads ahead and writes back meanwhile.
//! Live insulation is standalone / (share x time). On a device that needs no slices the policy's useful time has the
//! pauses already, and the time is that with demand.
//!
//! Useful time of slices has the pauses for which the disk idled. They are quiet time, so useful time is at most the
//! time that the device took for the tenant's requests.

use super::cost::{WORKS, Work};
use crate::units::Nanos;

/// Factor of earlier times per look (about a second), for the ratio of device time to useful time: half after 8 s, some
/// rounds.
const FADES: f64 = 0.917;

/// The standalone-equivalent time of one tenant.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Standalone {
    standalone_ns: f64,
    seen: Seen,
    /// What would have been left of the disk time of reads and of writes.
    gains: Option<[f64; 2]>,
    /// The fraction of disk time for which clients wait, times what would have been left of it; likewise the rest.
    waited: f64,
    beside: f64,
    /// Recent device time and useful time.
    device_ns: f64,
    useful_ns: f64,
    /// Standalone-equivalent time per nanosecond at the last look.
    speed: f64,
}

/// Counters of a tenant at one time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) now: Nanos,
    pub(crate) useful_ns: Nanos,
    /// Time in which a client waited. On a device without slices: `None`.
    pub(crate) waiting_ns: Option<Nanos>,
    /// Disk time by [`Work`].
    pub(crate) disk_ns: [f64; WORKS],
}

impl Standalone {
    /// Accounts for the time since the last look. Standalone, reads would have taken the fraction `reads` of their disk
    /// time, and writes the fraction `writes`.
    pub(crate) fn look(&mut self, seen: Seen, reads: f64, writes: f64) {
        let before = self.seen;
        self.gains = Some([reads, writes]);
        let parts: [f64; WORKS] = std::array::from_fn(|at| (seen.disk_ns[at] - before.disk_ns[at]).max(0.0));
        let sum: f64 = parts.iter().sum();
        if sum > 0.0 {
            let part = |work: Work, gain: f64| parts[work as usize] / sum * gain;
            self.waited = part(Work::Fill, reads) + part(Work::Sync, writes);
            self.beside = part(Work::Prefetch, reads) + part(Work::WriteBack, writes);
            self.device_ns = self.device_ns * FADES + sum;
            self.useful_ns = self.useful_ns * FADES + gained(before.useful_ns, seen.useful_ns).max(0.0);
        }
        let gained = self.gained(&seen);
        let past = (seen.now - before.now) as f64;
        self.standalone_ns += gained;
        self.speed = if past > 0.0 { (gained / past).clamp(0.0, 1.0) } else { self.speed };
        self.seen = seen;
    }

    /// Standalone-equivalent time since the last look.
    fn gained(&self, seen: &Seen) -> f64 {
        let useful = gained(self.seen.useful_ns, seen.useful_ns);
        if self.gains.is_none() {
            return useful;
        }
        let Some(waiting_ns) = seen.waiting_ns else { return useful * (self.waited + self.beside) };
        let past = (seen.now - self.seen.now) as f64;
        let quiet = past - waiting_ns.saturating_sub(self.seen.waiting_ns.unwrap_or(0)) as f64;
        let useful = useful * if self.useful_ns > 0.0 { (self.device_ns / self.useful_ns).min(1.0) } else { 1.0 };
        useful * self.waited + quiet.max(useful * self.beside)
    }

    /// Useful time at the last look.
    pub(crate) fn useful_ns(&self) -> Nanos {
        self.seen.useful_ns
    }

    /// Standalone-equivalent time at present.
    pub(crate) fn at(&self, seen: &Seen) -> Nanos {
        (self.standalone_ns + self.gained(seen)).max(0.0) as Nanos
    }

    /// The standalone clock: only differences are meaningful.
    pub(crate) fn alone(&self, now: Nanos) -> Nanos {
        (self.standalone_ns + self.speed * (now - self.seen.now) as f64).max(0.0) as Nanos
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
    fn seen(seconds: Nanos, waiting: Nanos, useful: Nanos, disk: [f64; WORKS]) -> Seen {
        let disk_ns = disk.map(|time| time * S);
        Seen { now: seconds * SECOND, useful_ns: useful * SECOND, waiting_ns: Some(waiting * SECOND), disk_ns }
    }

    fn after(seen: Seen, reads: f64, writes: f64) -> f64 {
        let mut standalone = Standalone::default();
        standalone.look(seen, reads, writes);
        standalone.at(&seen) as f64 / S
    }

    #[test]
    fn a_client_that_waits_takes_what_its_work_would_have_taken() {
        assert_eq!(after(seen(8, 8, 4, [4.0, 0.0, 0.0, 0.0]), 0.5, 0.25), 2.0, "reads");
        assert_eq!(after(seen(8, 8, 4, [1.0, 0.0, 3.0, 0.0]), 0.5, 0.25), 4.0 * (0.125 + 0.75 * 0.25), "both");
    }

    #[test]
    fn pauses_count_as_long_as_they_are_and_not_twice() {
        // A read of 10 ms, a pause of 90 ms for which the disk idles, and then the neighbour's slice of 100 ms: ten
        // times.
        let thinks = seen(20, 11, 10, [1.0, 0.0, 0.0, 0.0]);
        assert!((after(thinks, 1.0, 1.0) - 10.0).abs() < 1e-6, "{}", after(thinks, 1.0, 1.0));
        assert_eq!(after(seen(20, 0, 0, [0.0; WORKS]), 1.0, 1.0), 0.0, "nothing is known of it");
        assert_eq!(after(seen(20, 1, 1, [1.0, 0.0, 0.0, 0.0]), 0.0, 1.0), 19.0, "standalone the cache has all");
    }

    #[test]
    fn what_the_disk_does_meanwhile_is_not_waited_for() {
        assert_eq!(after(seen(10, 5, 5, [0.0, 5.0, 0.0, 0.0]), 1.0, 1.0), 5.0, "a stream that is read ahead");
        assert_eq!(after(seen(10, 0, 3, [0.0, 0.0, 3.0, 0.0]), 1.0, 1.0), 10.0, "a writer that never waits");
        assert_eq!(after(seen(10, 10, 3, [0.0, 0.0, 3.0, 0.0]), 1.0, 1.0), 3.0, "a writer that waits for frames");
    }

    #[test]
    fn without_slices_useful_time_is_all() {
        let mut standalone = Standalone::default();
        let seen = Seen { waiting_ns: None, ..seen(10, 0, 4, [1.0, 1.0, 0.0, 0.0]) };
        standalone.look(seen, 0.5, 1.0);
        assert_eq!(standalone.at(&seen), 2 * SECOND);
    }

    #[test]
    fn the_clock_goes_on_as_fast_as_before() {
        let mut standalone = Standalone::default();
        standalone.look(seen(16, 16, 8, [8.0, 0.0, 0.0, 0.0]), 0.5, 0.5);
        assert_eq!([16, 24].map(|second| standalone.alone(second * SECOND)), [4, 6].map(|second| second * SECOND));
        standalone.look(seen(24, 24, 1, [9.0, 0.0, 0.0, 0.0]), 1.0, 1.0);
        assert_eq!(standalone.alone(24 * SECOND), 5 * SECOND, "another policy has restarted useful time");
    }
}
