//! Standalone-equivalent time of a tenant's work: the time that it would take with the whole disk and the whole cache.
//!
//! ```text
//!   useful       standalone disk time of the disk's work, without context switches (policy: steady slices)
//!   standalone = useful x (reads x  m_r(whole) / m_r(partition)                    (its curve)
//!                          + writes x  written ALONE / written NOW)                    (`dirty.rs`)
//! ```
//!
//! reads and writes are fractions of the disk time of one second. Live insulation is standalone / (share x time).
//!
//! Downside: work that the cache does standalone counts as 0 here, so a tenant that hardly needs the disk seems to keep
//! less than it does.

use crate::units::Nanos;

/// The standalone-equivalent time of one tenant.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Standalone {
    standalone_ns: f64,
    /// Standalone-equivalent time per nanosecond of useful time.
    ratio: Option<f64>,
    /// The fraction of disk time that is spent on reads.
    reads: f64,
    seen: Seen,
    /// The standalone clock at the last look, and its speed.
    alone_ns: f64,
    speed: f64,
}

/// Counters of a tenant at one time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) now: Nanos,
    pub(crate) useful_ns: Nanos,
    pub(crate) wanting_ns: Nanos,
    /// Disk time of reads, of writes.
    pub(crate) disk_ns: [f64; 2],
}

impl Standalone {
    /// Accounts for the time since the last look. Standalone, reads would have taken the fraction `reads` of their disk
    /// time, and writes the fraction `writes`.
    pub(crate) fn look(&mut self, seen: Seen, reads: f64, writes: f64) {
        let before = std::mem::replace(&mut self.seen, seen);
        let [read_ns, write_ns] = [0, 1].map(|at| (seen.disk_ns[at] - before.disk_ns[at]).max(0.0));
        if read_ns + write_ns > 0.0 {
            self.reads = read_ns / (read_ns + write_ns);
        }
        let ratio = self.reads * reads + (1.0 - self.reads) * writes;
        let gained = gained(before.useful_ns, seen.useful_ns) * ratio;
        (self.standalone_ns, self.ratio) = (self.standalone_ns + gained, Some(ratio));
        let past = (seen.now - before.now) as f64;
        let idle = past - seen.wanting_ns.saturating_sub(before.wanting_ns) as f64;
        self.alone_ns += self.speed * past;
        self.speed = if past > 0.0 { ((gained + idle.max(0.0)) / past).clamp(0.0, 1.0) } else { self.speed };
    }

    /// Useful time at the last look.
    pub(crate) fn useful_ns(&self) -> Nanos {
        self.seen.useful_ns
    }

    /// Standalone-equivalent time at present, when useful time is `useful_ns`.
    pub(crate) fn at(&self, useful_ns: Nanos) -> Nanos {
        (self.standalone_ns + gained(self.seen.useful_ns, useful_ns) * self.ratio.unwrap_or(1.0)).max(0.0) as Nanos
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

    fn seen(seconds: Nanos, useful: Nanos, disk: [f64; 2]) -> Seen {
        Seen { now: seconds * SECOND, useful_ns: useful * SECOND, wanting_ns: seconds * SECOND, disk_ns: disk }
    }

    #[test]
    fn useful_time_counts_as_what_it_would_have_taken_alone() {
        let mut standalone = Standalone::default();
        standalone.look(seen(8, 4, [1.0, 0.0]), 0.5, 0.25);
        assert_eq!((standalone.at(4 * SECOND), standalone.at(6 * SECOND)), (2 * SECOND, 3 * SECOND), "reads");
        standalone.look(seen(16, 8, [2.0, 3.0]), 0.5, 0.25);
        assert_eq!(standalone.at(8 * SECOND), (2.0 * 1e9 + 4.0 * 1e9 * (0.25 * 0.5 + 0.75 * 0.25)) as Nanos, "both");
        assert_eq!(standalone.alone(16 * SECOND), 2 * SECOND, "as fast as in the look before");
        let before = standalone.at(8 * SECOND);
        standalone.look(seen(24, 1, [2.0, 3.0]), 1.0, 1.0);
        assert_eq!(standalone.at(SECOND) - before, SECOND, "another policy");
    }
}
