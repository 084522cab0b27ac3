//! A drive that is prompt until a stated time: caches fill with the real requests, but without waiting for the disk.

use engine::disk::Op;
use engine::units::Nanos;
use sim::disk::drive::done::{Done, earlier};
use sim::disk::drive::{Drive, Tag};

/// What a request takes while the drive is prompt.
const PROMPT_NS: Nanos = 20_000;

/// The drive.
#[derive(Debug)]
pub struct Prompt {
    drive: Box<dyn Drive>,
    until: Nanos,
    done: Done,
}

impl Prompt {
    pub fn new(drive: Box<dyn Drive>, until: Nanos) -> Prompt {
        Prompt { drive, until, done: Done::default() }
    }
}

impl Drive for Prompt {
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64) {
        if now < self.until {
            self.done.push(now + PROMPT_NS, tag);
        } else {
            self.drive.submit(now, tag, op, offset, len);
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        self.done.pop(now).or_else(|| self.drive.poll(now))
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        earlier(self.done.next_at(), self.drive.poll_timeout())
    }

    fn power_cut(&mut self, now: Nanos) {
        self.done.clear();
        self.drive.power_cut(now);
    }

    fn bytes(&self) -> u64 {
        self.drive.bytes()
    }
}

#[cfg(test)]
mod tests {
    use engine::units::SECOND;
    use sim::disk::drive::lanes::{Lanes, LanesSpec};
    use sim::rng::Rng;

    use super::*;

    #[test]
    fn it_is_prompt_until_its_time() {
        let spec = LanesSpec { parallel: 1, service_ns: SECOND, block_ns: 0, flush_ns: 0 };
        let mut drive = Prompt::new(Box::new(Lanes::new(spec, Rng::new(1))), SECOND);
        drive.submit(0, 1, Op::Read, 0, 4096);
        drive.submit(SECOND, 2, Op::Read, 0, 4096);
        assert_eq!(drive.poll_timeout(), Some(PROMPT_NS));
        assert_eq!((drive.poll(SECOND), drive.poll(SECOND)), (Some((1, PROMPT_NS)), None));
        assert!(drive.poll_timeout() >= Some(2 * SECOND) && drive.bytes() == u64::MAX);
    }
}
