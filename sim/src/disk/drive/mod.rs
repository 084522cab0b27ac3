//! Timing models of drives: they compute completion times and know no content.
//!
//! ```text
//!   submit(now, tag, op, offset, len) ──► Drive ──► poll(now): (tag, the exact time at which it was done)
//!                                           └─────► poll_timeout(): when to poll next
//! ```
//!
//! The contract is the engine's: time is an argument and never goes back, and a drive decides nothing before its time.
//! The caller polls with [`Drive::poll`] until it returns `None` whenever [`Drive::poll_timeout`] is reached, and may
//! submit at any time. The same calls give the same answers.
//!
//! `hdd` has heads, `flash` has channels, `throttled` is a token bucket in front of another drive, `lanes` is the
//! simplest one. `describe` builds drives from TOML; `presets` has descriptions of known drives.
//! `replay` repeats a measured list, and `compare` says how near the simulated times come.
//!
//! Downside: a submitted request cannot be cancelled, as on most real drives.

pub mod compare;
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

/// The number of a request, chosen by the caller. It is not reused while the request is in flight.
pub type Tag = u64;

/// Computes when a drive would complete requests.
pub trait Drive: std::fmt::Debug + Send {
    /// Submits a request for `len` bytes at `offset`: whole sectors inside [`Drive::bytes`], checked by the caller. For
    /// a flush both are 0.
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64);

    /// The next request that was complete by `now`, and its completion time; earliest first.
    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)>;

    /// When to poll next; nothing happens before. `None`: not before the next request.
    fn poll_timeout(&self) -> Option<Nanos>;

    /// A power cut and immediate restart: requests and caches are lost.
    fn power_cut(&mut self, now: Nanos);

    /// Size, bytes.
    fn bytes(&self) -> u64;
}
