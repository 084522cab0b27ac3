//! What a tenant's work would have taken alone: with the whole disk, and with the whole cache.
//!
//! ```text
//!   useful   what the disk's work would have taken without turning  (policy: from the middle of the tenant's slices)
//!   worth  = useful x (reads x  m_r(whole) / m_r(partition)            (its curve)
//!                      + writes x  written ALONE / written NOW)        (`dirt.rs`)
//! ```
//!
//! reads and writes are parts of the disk time of a second. The insulation ratio that is shown is worth by share and
//! time.
//!
//! Downside: what the cache does alone is worth nothing here, so a tenant that hardly needs the disk seems to keep less
//! than it does.

use crate::units::Nanos;

/// One tenant's.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Worth {
    worth_ns: f64,
    /// What a nanosecond of useful time is worth.
    ratio: Option<f64>,
    /// The part of disk time that is reads'.
    reads: f64,
    seen: Seen,
    /// The clock that it would have alone, at the last look, and how fast that goes.
    alone_ns: f64,
    speed: f64,
}

/// Counters of a tenant at one time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seen {
    pub(super) now: Nanos,
    pub(super) useful_ns: Nanos,
    pub(super) wanting_ns: Nanos,
    /// Disk time of reads, of writes.
    pub(super) disk_ns: [f64; 2],
}

impl Worth {
    /// Time has passed in which reads alone would have taken so much of their disk time, and writes so much of theirs.
    pub(super) fn look(&mut self, seen: Seen, reads: f64, writes: f64) {
        let before = std::mem::replace(&mut self.seen, seen);
        let [read_ns, write_ns] = [0, 1].map(|at| (seen.disk_ns[at] - before.disk_ns[at]).max(0.0));
        if read_ns + write_ns > 0.0 {
            self.reads = read_ns / (read_ns + write_ns);
        }
        let ratio = self.reads * reads + (1.0 - self.reads) * writes;
        let gained = gained(before.useful_ns, seen.useful_ns) * ratio;
        (self.worth_ns, self.ratio) = (self.worth_ns + gained, Some(ratio));
        let past = (seen.now - before.now) as f64;
        let idle = past - seen.wanting_ns.saturating_sub(before.wanting_ns) as f64;
        self.alone_ns += self.speed * past;
        self.speed = if past > 0.0 { ((gained + idle.max(0.0)) / past).clamp(0.0, 1.0) } else { self.speed };
    }

    /// What was useful until the last look.
    pub(super) fn useful_ns(&self) -> Nanos {
        self.seen.useful_ns
    }

    /// Nanoseconds until now, when so many were useful.
    pub(super) fn at(&self, useful_ns: Nanos) -> Nanos {
        (self.worth_ns + gained(self.seen.useful_ns, useful_ns) * self.ratio.unwrap_or(1.0)).max(0.0) as Nanos
    }

    /// What time it would be alone: only differences mean something.
    pub(super) fn alone(&self, now: Nanos) -> Nanos {
        (self.alone_ns + self.speed * (now - self.seen.now) as f64) as Nanos
    }
}

/// What is known of the slice that runs is corrected when it ends; under another policy everything begins anew.
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
    fn useful_time_is_worth_what_it_would_have_taken_alone() {
        let mut worth = Worth::default();
        worth.look(seen(8, 4, [1.0, 0.0]), 0.5, 0.25);
        assert_eq!((worth.at(4 * SECOND), worth.at(6 * SECOND)), (2 * SECOND, 3 * SECOND), "reads");
        worth.look(seen(16, 8, [2.0, 3.0]), 0.5, 0.25);
        assert_eq!(worth.at(8 * SECOND), (2.0 * 1e9 + 4.0 * 1e9 * (0.25 * 0.5 + 0.75 * 0.25)) as Nanos, "both");
        assert_eq!(worth.alone(16 * SECOND), 2 * SECOND, "as fast as in the look before");
        let before = worth.at(8 * SECOND);
        worth.look(seen(24, 1, [2.0, 3.0]), 1.0, 1.0);
        assert_eq!(worth.at(SECOND) - before, SECOND, "another policy");
    }
}
