//! Whether the remainder of a payload is polled for: as long as that succeeds.
//!
//! Polling saves the time in which a sleeping processor wakes up, if the sender runs on another one. If the sender
//! needs this processor, or is slow, polling only takes its time. Yielding the processor does not help: the kernel
//! yields to threads of the same control group only, and the clients of a server are usually in another one. So each
//! poll in vain doubles the number of receives for which the next one is left out, and a successful one ends that.
//!
//! Downside: when a slow sender becomes fast, up to [`SKIPS_MAX`] payloads are received with a wake-up each.

/// Receives without polling after many polls in vain: polling then costs a 256th of what it would.
const SKIPS_MAX: u16 = 256;

/// The state of a socket.
#[derive(Clone, Copy, Default, Debug)]
pub struct Polling {
    /// Receives that are not polled for, after the last poll in vain and from now on.
    skips: u16,
    left: u16,
    /// The present receive has found nothing at first.
    pub waits: bool,
}

impl Polling {
    /// A receive begins: whether it is to be polled for.
    pub fn begins(&mut self) -> bool {
        self.waits = false;
        let polls = self.left == 0;
        self.left -= u16::from(!polls);
        polls
    }

    /// The receive got bytes; or (`pays` is false) it was polled for until the end, in vain.
    pub fn ends(&mut self, pays: bool) {
        if !pays {
            self.skips = (2 * self.skips).clamp(1, SKIPS_MAX);
            self.left = self.skips;
        } else if self.waits {
            self.skips = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `receives` receives are polled for, if none of them succeeds at once.
    fn polls(polling: &mut Polling, receives: u32, pays: bool) -> u32 {
        let mut polls = 0;
        for _ in 0..receives {
            if polling.begins() {
                polling.waits = true;
                polling.ends(pays);
                polls += 1;
            }
        }
        polls
    }

    #[test]
    fn what_is_in_vain_becomes_rare_and_what_pays_is_done_each_time() {
        let mut polling = Polling::default();
        assert_eq!(polls(&mut polling, 1000, true), 1000);
        assert_eq!(polls(&mut polling, 10_000, false), 9 + 37, "after 1, 2, 4, … 256, and then after each 256");
        polls(&mut polling, 256, true);
        assert_eq!(polls(&mut polling, 1000, true), 1000);
    }

    #[test]
    fn bytes_that_were_there_at_once_prove_nothing() {
        let mut polling = Polling::default();
        polls(&mut polling, 8, false);
        while !polling.begins() {}
        polling.ends(true);
        assert!(polling.begins());
        polling.waits = true;
        polling.ends(false);
        assert!(!polling.begins() && polling.left > 2);
    }
}
