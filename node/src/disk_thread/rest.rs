//! When to leave a client alone: while it has enough replies to read, its next requests are let gather.
//!
//! A client that is slower than the server otherwise sets a pace of one request a pass: a system call to receive it,
//! one to answer it, a wake-up of whoever waits. With replies still unread, it loses nothing if its next requests are
//! read a little later, and it costs both sides much less if they are read together.
//!
//! ```text
//!   unread   ▆▆▆▆▅▅▄▄▃▃▂▂▆▆▆▆▅▅▄▄▃▃▂▂▆▆▆▆     replies in the client's socket buffer
//!   we       │  rests     │  rests     │      then: one receive, many requests, one send
//! ```
//!
//! Only a client whose requests are all answered is left alone: one that waits for the disk is not. And only one that
//! is slower than the server, which is seen by how few requests come at once: with those of a faster one the server is
//! never done.
//!
//! The rest is as long as leaves about a third of the replies unread, found by trying. It ends at the latest after
//! [`REST_MAX`]: that is the most that a client can lose which stops asking in the middle. Local (Unix) sockets only:
//! what a TCP socket counts is what the peer's kernel has not acknowledged, which says nothing about the client.

use engine::units::Nanos;

/// Bytes of unread replies, as the kernel accounts them, below which nobody rests: about four replies of 4 KiB. A
/// client that waits for each reply never has so many.
const UNREAD_MIN: u32 = 32 * 1024;
/// A client of which so many requests came at once keeps the server busy: resting would only keep it waiting.
const BROUGHT_MAX: u32 = 4;
/// The shortest rest worth a timer, ns.
const REST_MIN: Nanos = 8_000;
/// The longest rest, ns: a tenth of what a fast SSD needs under load, and a two-hundredth of what a disk needs.
const REST_MAX: Nanos = 60_000;

/// How long a connection rests.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    length: Nanos,
    unread_before: u32,
}

impl Default for Rest {
    fn default() -> Self {
        Rest { length: REST_MIN, unread_before: 0 }
    }
}

impl Rest {
    /// After so many requests at once, with so many bytes unread: how long to rest before anything more is received, if
    /// at all.
    pub fn begin(&mut self, brought: u32, unread: impl FnOnce() -> u32) -> Option<Nanos> {
        if brought > BROUGHT_MAX {
            return None;
        }
        self.unread_before = unread();
        (self.unread_before >= UNREAD_MIN).then_some(self.length)
    }

    /// The rest is over, and so many bytes are still unread: longer next time, or shorter.
    pub fn end(&mut self, unread: u32) {
        let longer = unread > self.unread_before / 2;
        let shorter = unread < self.unread_before / 4;
        if longer {
            self.length = (self.length + self.length / 4).min(REST_MAX);
        } else if shorter {
            self.length = (self.length - self.length / 4).max(REST_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_settles_where_a_part_is_left_unread() {
        let mut rest = Rest::default();
        // A client that reads 8 KiB of accounted bytes in 5 µs, and has 32 replies to read each time.
        let unread = 32 * 8192;
        for _ in 0..100 {
            let length = rest.begin(1, || unread).unwrap();
            rest.end(unread.saturating_sub((length * 8192 / 5000) as u32));
        }
        assert!((40_000..=REST_MAX).contains(&rest.length), "{}", rest.length);
    }

    #[test]
    fn a_client_that_waits_for_each_reply_is_never_kept_waiting() {
        assert_eq!(Rest::default().begin(1, || 9000), None);
    }

    #[test]
    fn a_client_that_keeps_the_server_busy_is_never_kept_waiting() {
        assert_eq!(Rest::default().begin(16, || unreachable!("nobody asks")), None);
    }
}
