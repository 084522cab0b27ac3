//! Several drives as one, striped without redundancy (RAID-0).
//!
//! ```text
//!   chunk  0 1 2 3 4 5 ..   drive 0: chunks 0 2 4 ..   drive 1: chunks 1 3 5 ..
//! ```
//!
//! How many requests each drive has in its queue follows from their addresses.
//!
//! Downside: a request has to lie within a chunk, and the drives must not have a write cache, since a flush would have
//! to reach all of them.

use engine::disk::Op;
use engine::units::Nanos;
use sim::disk::drive::done::{Done, earlier};
use sim::disk::drive::{Drive, Tag};

/// Consecutive bytes on a drive: a common default, and a multiple of the database's block.
const CHUNK: u64 = 64 << 10;

/// The drives.
#[derive(Debug)]
pub struct Striped {
    drives: Vec<Box<dyn Drive>>,
    done: Done,
}

impl Striped {
    /// Drives of the same size.
    pub fn new(drives: Vec<Box<dyn Drive>>) -> Striped {
        Striped { drives, done: Done::default() }
    }
}

impl Drive for Striped {
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64) {
        assert!(op != Op::Flush && offset % CHUNK + len <= CHUNK, "{op:?} of {len} bytes at {offset} is on one drive");
        let (chunk, count) = (offset / CHUNK, self.drives.len() as u64);
        let place = chunk / count * CHUNK + offset % CHUNK;
        self.drives[(chunk % count) as usize].submit(now, tag, op, place, len);
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        for drive in &mut self.drives {
            while let Some((tag, at)) = drive.poll(now) {
                self.done.push(at, tag);
            }
        }
        self.done.pop(now)
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.drives.iter().fold(self.done.next_at(), |first, drive| earlier(first, drive.poll_timeout()))
    }

    fn power_cut(&mut self, now: Nanos) {
        self.done.clear();
        self.drives.iter_mut().for_each(|drive| drive.power_cut(now));
    }

    fn bytes(&self) -> u64 {
        self.drives.iter().map(|drive| drive.bytes() / CHUNK * CHUNK).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn striped() -> Striped {
        let drive = || crate::disk::build("cheetah-15k5").unwrap();
        Striped::new(vec![drive(), drive()])
    }

    fn until_idle(drive: &mut dyn Drive) -> Vec<(Tag, Nanos)> {
        let mut all = Vec::new();
        while let Some(at) = drive.poll_timeout() {
            all.extend(std::iter::from_fn(|| drive.poll(at)));
        }
        all
    }

    #[test]
    fn chunks_alternate_and_answers_come_in_order() {
        let mut both = striped();
        let places = [0, CHUNK, 7 * CHUNK + 512, 1000 * CHUNK, 3 * CHUNK, 501 * CHUNK];
        places.iter().zip(0..).for_each(|(&at, tag)| both.submit(0, tag, Op::Read, at, 8192));
        let done = until_idle(&mut both);
        assert!(done.is_sorted_by_key(|&(_, at)| at));
        let mut expected = Vec::new();
        for parity in 0..2 {
            let mut one = crate::disk::build("cheetah-15k5").unwrap();
            let its = |&(at, _): &(&u64, u64)| *at / CHUNK % 2 == parity;
            for (&at, tag) in places.iter().zip(0..).filter(its) {
                one.submit(0, tag, Op::Read, at / CHUNK / 2 * CHUNK + at % CHUNK, 8192);
            }
            expected.extend(until_idle(&mut *one));
        }
        expected.sort_by_key(|&(_, at)| at);
        assert_eq!(done, expected);
    }

    #[test]
    #[should_panic(expected = "is on one drive")]
    fn a_request_on_two_drives_is_refused() {
        striped().submit(0, 1, Op::Read, CHUNK - 512, 1024);
    }
}
