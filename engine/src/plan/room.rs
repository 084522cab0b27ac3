//! Room for reads: a read takes longer if the partition holds fewer reads at once than clients have outstanding.
//!
//! ```text
//!   at once(c) = c / 2 / frames of a read, at most as many as are outstanding and as the device takes
//!   slower(c)  = time of a read at depth at once(c) / time of a read with all of them in the device
//! ```
//!
//! Replies that are being read or sent have at most half of a partition (`cache/partition.rs`). A drive sorts the
//! requests that it has: with 2 instead of 32 random reads of 256 KiB, each takes about twice as long. The profile has
//! these times, for reads all over the disk; only their ratio counts here. A slice that is too short for all reads
//! sorts as many as it has time for. Reads of streams do not count: the planner plans memory for their read-ahead by
//! itself.

use crate::cache::Reads;
use crate::disk::policy::Prices;
use crate::units::BLOCK;

/// The reads of a tenant that want room at once.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Room {
    pub(super) reads: Reads,
    pub(super) prices: Prices,
    /// Most requests in the device.
    pub(super) depth: u32,
}

impl Room {
    /// Time of a read with a partition of `frames` frames, relative to that with room for all reads: at least 1.
    pub(super) fn slower(&self, frames: u64) -> f64 {
        self.slower_at(frames / 2 / self.each())
    }

    /// The same by the length of the slices: `part` of the length in which all reads are served twice.
    pub(super) fn slower_in(&self, part: f64) -> f64 {
        self.slower_at((2.0 * part * self.all() as f64) as u64)
    }

    /// Blocks of a read.
    fn each(&self) -> u64 {
        u64::from(self.reads.blocks / self.reads.requests.max(1)).max(1)
    }

    fn all(&self) -> u64 {
        u64::from(self.reads.requests.min(self.depth)).max(1)
    }

    fn slower_at(&self, at_once: u64) -> f64 {
        let depths = [at_once.clamp(1, self.all()), self.all()];
        if depths[0] == depths[1] {
            return 1.0;
        }
        match depths.map(|depth| self.prices.read_ns(self.each() * BLOCK, depth)) {
            [Some(some_ns), Some(all_ns)] => (some_ns / all_ns).max(1.0),
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::FRAMES_MIN;
    use crate::disk::profile::{Direction, Finding, Key, Profile};
    use crate::units::SECOND;

    /// On a drive that positions in 10 ms, in less the more requests it has, and transfers 100 MB/s.
    fn room(requests: u32, blocks_each: u32) -> Room {
        let time = |key| match key {
            Key::Random(_, bytes, depth) => {
                let each_ns = 1e7 * f64::from(depth).powf(-0.3) + 10.0 * f64::from(bytes);
                Some((key, Finding::plain(Some(SECOND as f64 / each_ns))))
            }
            Key::Sequential(Direction::Read, _) => Some((key, Finding::plain(Some(1e8)))),
            Key::RotationPeriod => Some((key, Finding::plain(Some(8e6)))),
            _ => None,
        };
        let mut profile = Profile::default();
        profile.take(&Key::all().filter_map(time).collect::<Vec<_>>(), 1);
        let reads = Reads { requests, blocks: requests * blocks_each };
        Room { reads, prices: Prices::of(&profile).unwrap(), depth: 128 }
    }

    #[test]
    fn reads_take_longer_without_room_for_all_of_them() {
        let of = |requests, blocks_each, frames| room(requests, blocks_each).slower(frames);
        let least = u64::from(FRAMES_MIN);
        assert_eq!([of(0, 0, least), of(1, 256, least), of(32, 1, least)], [1.0; 3], "there is room");
        let large = [least, 1024, 2048, 4096].map(|frames| of(32, 64, frames));
        assert!(large.is_sorted_by(|a, b| a > b) && large[0] > 1.7 && large[3] == 1.0, "{large:?}");
        let two = of(2, 256, least);
        assert!((1.05..1.15).contains(&two), "two reads of 1 MiB: {two}");
    }

    #[test]
    fn slices_shorter_than_the_backlog_sort_a_part_of_it() {
        let of = |part| room(32, 64).slower_in(part);
        assert_eq!([0.5, 1.0, 7.0, f64::INFINITY].map(of), [1.0; 4]);
        assert_eq!(of(0.25), room(32, 64).slower(2048), "as with room for 16");
        assert!(of(0.0) > of(0.1) && of(0.1) > of(0.25) && of(0.25) > 1.0);
    }

    #[test]
    fn without_a_profile_nothing_is_known() {
        let unknown = Room { prices: Prices::default(), ..room(32, 64) };
        assert_eq!(unknown.slower(u64::from(FRAMES_MIN)), 1.0);
    }
}
