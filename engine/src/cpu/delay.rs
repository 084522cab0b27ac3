//! Delayed receive: while a client has enough unread replies, its next requests are left in the socket to accumulate.
//!
//! A client that is slower than the server would otherwise lead to one request per pass: a system call to receive it,
//! one to answer it, and a wake-up of the client. While replies are unread, the client loses nothing if its next
//! requests are received a little later, and receiving several together costs both sides much less.
//!
//! ```text
//!   unread   ▆▆▆▆▅▅▄▄▃▃▂▂▆▆▆▆▅▅▄▄▃▃▂▂▆▆▆▆     replies in the client's socket buffer
//!   server   │   delay    │   delay    │      after each delay: one receive, many requests, one send
//! ```
//!
//! The receive is delayed only if all requests of the connection are answered, so never while the client waits for the
//! disk. It is delayed only if the client is slower than the server, which shows in few requests per receive; a faster
//! client always has more requests waiting than the server handles at once.
//!
//! The delay is adapted so that about a third of the replies are still unread at its end, and is at most
//! [`DELAY_NS_MAX`]: that is the most that a client loses if it stops sending requests meanwhile. It is used for local
//! (Unix) sockets only. On a TCP socket, the kernel counts bytes that the peer's kernel has not acknowledged, which
//! says nothing about the client.

use crate::units::Nanos;

/// No delay below this many bytes of unread replies, as the kernel counts them: about four replies of 4 KiB. A client
/// that waits for each reply never has that many.
const UNREAD_BYTES_MIN: u32 = 32 * 1024;
/// A client that sends more requests than this at once keeps the server busy; a delay would only add latency.
const RECEIVED_MAX: u32 = 4;
/// The shortest delay that is worth a timer, ns.
const DELAY_NS_MIN: Nanos = 8_000;
/// The longest delay, ns: a tenth of the latency of a fast SSD under load, and a two-hundredth of that of a hard disk.
const DELAY_NS_MAX: Nanos = 60_000;

/// The adaptive delay of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveDelay {
    delay_ns: Nanos,
    unread_before: u32,
}

impl Default for ReceiveDelay {
    fn default() -> Self {
        ReceiveDelay { delay_ns: DELAY_NS_MIN, unread_before: 0 }
    }
}

impl ReceiveDelay {
    /// The delay before the next receive, ns, if any. `received` is the number of requests of the last receive,
    /// `unread` the number of unread bytes.
    pub fn begin(&mut self, received: u32, unread: impl FnOnce() -> u32) -> Option<Nanos> {
        if received > RECEIVED_MAX {
            return None;
        }
        self.unread_before = unread();
        (self.unread_before >= UNREAD_BYTES_MIN).then_some(self.delay_ns)
    }

    /// Adapts the next delay to the bytes that are still unread after this one.
    pub fn end(&mut self, unread: u32) {
        let longer = unread > self.unread_before / 2;
        let shorter = unread < self.unread_before / 4;
        if longer {
            self.delay_ns = (self.delay_ns + self.delay_ns / 4).min(DELAY_NS_MAX);
        } else if shorter {
            self.delay_ns = (self.delay_ns - self.delay_ns / 4).max(DELAY_NS_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_settles_where_a_part_is_left_unread() {
        let mut delay = ReceiveDelay::default();
        // A client that reads 8 KiB (as counted) in 5 µs, and has 32 replies to read each time.
        let unread = 32 * 8192;
        for _ in 0..100 {
            let delay_ns = delay.begin(1, || unread).unwrap();
            delay.end(unread.saturating_sub((delay_ns * 8192 / 5000) as u32));
        }
        assert!((40_000..=DELAY_NS_MAX).contains(&delay.delay_ns), "{}", delay.delay_ns);
    }

    #[test]
    fn a_client_that_waits_for_each_reply_is_never_kept_waiting() {
        assert_eq!(ReceiveDelay::default().begin(1, || 9000), None);
    }

    #[test]
    fn a_client_that_keeps_the_server_busy_is_never_kept_waiting() {
        assert_eq!(ReceiveDelay::default().begin(16, || unreachable!("nobody asks")), None);
    }
}
