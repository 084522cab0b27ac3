//! The moving parts of a hard disk: an arm with heads over platters that rotate at constant speed.
//!
//! ```text
//!   move (seek or head switch) ──► rotational wait ──► sectors pass ──► next track: move, wait, …
//! ```
//!
//! Angles depend on virtual time only: at time `t` the platters are at `t mod period`.

use engine::units::Nanos;

use super::cache::ReadCacheSpec;
use super::geometry::{Geometry, Place};
use super::seek::SeekTable;

/// The position of the arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arm {
    /// The cylinder.
    pub cylinder: u32,
    /// The head in use.
    pub head: u32,
}

/// The moving parts of a drive.
#[derive(Clone, Debug)]
pub struct Mechanism {
    /// The layout of the sectors.
    pub geometry: Geometry,
    /// Seek times before reads.
    pub read_seek: SeekTable,
    /// Seek times before writes, which settle for longer.
    pub write_seek: SeekTable,
    /// Minimum time of a head switch.
    pub head_switch_ns: Nanos,
}

/// A point in a transfer: `sector` is the next one, and begins to pass at `at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The next sector.
    pub sector: u64,
    /// When the sector before it had passed.
    pub at: Nanos,
    /// The position of the arm.
    pub arm: Arm,
}

impl Mechanism {
    /// Time to move the arm to the track of `place`.
    #[inline]
    pub fn move_ns(&self, from: Arm, place: &Place, write: bool) -> Nanos {
        let table = if write { &self.write_seek } else { &self.read_seek };
        let seek_ns = table.time_ns(from.cylinder.abs_diff(place.cylinder));
        if from.head == place.head { seek_ns } else { seek_ns.max(self.head_switch_ns) }
    }

    /// Rotational wait until the platters are at `angle_ns`.
    #[inline]
    pub fn wait_ns(&self, now: Nanos, angle_ns: Nanos) -> Nanos {
        let rotation = &self.geometry.rotation;
        rotation.wait_ns(rotation.angle_at(now), angle_ns)
    }

    /// When `sector` begins to pass, if the arm starts at `start` and data to be written arrives at `data_at`.
    pub fn reach(&self, start: Nanos, from: Arm, sector: u64, write: bool, data_at: Nanos) -> Progress {
        let place = self.geometry.place(sector);
        let there = (start + self.move_ns(from, &place, write)).max(data_at);
        let at = there + self.wait_ns(there, self.geometry.angle_ns(&place));
        Progress { sector, at, arm: Arm { cylinder: place.cylinder, head: place.head } }
    }

    /// Transfers sectors up to `end` from the present position, but no sector that ends after `until`.
    ///
    /// Between two tracks the arm moves and then waits for the first sector; the skew determines how long.
    pub fn pass(&self, from: Progress, end: u64, until: Nanos, write: bool) -> Progress {
        let mut here = from;
        while here.sector < end && here.at < until {
            let place = self.geometry.place(here.sector);
            let track = Arm { cylinder: place.cylinder, head: place.head };
            let begin = if track == here.arm {
                here.at
            } else {
                let there = here.at + self.move_ns(here.arm, &place, write);
                there + self.wait_ns(there, self.geometry.angle_ns(&place))
            };
            let wanted = self.geometry.left_on_track(&place).min(end - here.sector) as u32;
            let (sectors, took_ns) = self.pass_on_track(&place, wanted, until.saturating_sub(begin));
            if sectors == 0 {
                break;
            }
            here = Progress { sector: here.sector + u64::from(sectors), at: begin + took_ns, arm: track };
        }
        here
    }

    /// Where the read-ahead after a request that ends at `end`, more than 0, ends.
    pub fn ahead_end(&self, end: u64, cache: &ReadCacheSpec) -> u64 {
        let limit = match cache.ahead_to_track_end {
            true => self.geometry.track_end(end - 1),
            false => self.geometry.sectors(),
        };
        (end + cache.ahead_sectors).min(limit)
    }

    /// How many of `wanted` sectors of one track pass within `limit_ns`, and the time that they take.
    fn pass_on_track(&self, place: &Place, wanted: u32, limit_ns: Nanos) -> (u32, Nanos) {
        let geometry = &self.geometry;
        let from_ns = geometry.along_ns(place.zone, place.sector);
        let took_ns = |sectors: u32| geometry.along_ns(place.zone, place.sector + sectors) - from_ns;
        if took_ns(wanted) <= limit_ns {
            return (wanted, took_ns(wanted));
        }
        let per_track = u64::from(geometry.zones[place.zone as usize].sectors_per_track);
        // Because of rounding the estimate may be one too large.
        let mut sectors = (limit_ns * per_track / geometry.rotation.period_ns() + 1).min(u64::from(wanted)) as u32;
        while took_ns(sectors) > limit_ns {
            sectors -= 1;
        }
        (sectors, took_ns(sectors))
    }
}
