//! Timing machines: when a disk would be done with what is asked of it. They know nothing of content.
//!
//! ```text
//!   submit(now, tag, op, offset, len) ──► Drive ──► poll(now): (tag, the exact time at which it was done)
//!                                           └─────► poll_timeout(): when to poll next
//! ```
//!
//! The contract is the engine's: time is an argument and never goes back, and a drive decides nothing before its time
//! comes. Whoever drives one calls [`Drive::poll`] until it is empty whenever [`Drive::poll_timeout`] has come, and may
//! submit at any moment. The same calls give the same answers.
//!
//! `hdd` has heads, `flash` has channels, `throttled` stands before another drive, `lanes` is the simplest there can
//! be. `describe` reads them from TOML; `presets` has some that are known.
//!
//! Downside: nothing that was submitted can be taken back, as with most real drives.

pub mod describe;
pub mod done;
pub mod flash;
pub mod hdd;
pub mod lanes;
pub mod presets;
pub mod replay;
pub mod throttled;

use engine::disk::Op;
use engine::units::Nanos;

/// A request's number, of the caller's choice. One is not used again while it is in flight.
pub type Tag = u64;

/// When a drive would be done with what is asked of it.
pub trait Drive: std::fmt::Debug + Send {
    /// Takes a request for `len` bytes at `offset`: whole sectors inside of [`Drive::bytes`]; the caller has checked.
    /// A flush has neither.
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64);

    /// The next request that was done by `now`, and when: the earliest first.
    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)>;

    /// When to poll next: nothing happens before. `None` means not before the next request.
    fn poll_timeout(&self) -> Option<Nanos>;

    /// The power fails and is back at once: requests and caches are forgotten.
    fn power_cut(&mut self, now: Nanos);

    /// Its size.
    fn bytes(&self) -> u64;
}
