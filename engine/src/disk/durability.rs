//! Which completed writes a power cut could still lose: the generations of one target, a device with one volatile
//! cache.
//!
//! A flush of a volume covers the writes of that volume which completed before it: `fdatasync` is per file, and its
//! success says nothing about another file. A failure concerns the target: the kernel reports a failed device flush
//! once, to one caller, and what the device dropped may belong to any volume on it. A failed durable write may be such
//! a failed flush.
//!
//! ```text
//!   volume a   written in 7 ── flush covers 7 ── written in 8 ─┐
//!   volume b   written in 3 ───────────────── flush covers 3 ──┼─ good, not trusted: it began before the failure
//!                                                              │
//!   target                                   failure of a or b ┴─► 8 of a and 3, 4 of b are condemned
//! ```
//!
//! - A good flush settles the generations of its own volume that it covers.
//! - A failure condemns every unsettled generation of every volume on the target: what is cached is written again; what
//!   was evicted is lost.
//! - A write that was in the device when a failure was reported proves nothing when it completes well: the device may
//!   have taken its data before the failure and dropped it then. Nor does a flush that had begun, even if it still
//!   waited in our queue: what it was to cover is condemned.
//! - A durable write that completes well belongs to no generation.
//!
//! Downside: a bad sector under a durable write looks like a failed flush, so it costs every volume of the target a
//! rewrite of its unflushed blocks.

use super::{Op, VolumeId};
use crate::nbd::Errno;

/// How often in a row a completed request may be distrusted before it counts as failed: a volume whose requests always
/// meet failures of other volumes gets errors after some attempts rather than no answer.
pub(crate) const DISTRUST_MAX: u8 = 8;

/// A count of the flushes and failures that a volume has seen. It wraps; only unsettled generations are compared.
pub(crate) type Generation = u32;

/// A count of the failures of a target. It wraps; a request in flight compares it for equality.
pub(crate) type Failures = u32;

/// The generations of one volume on a target.
#[derive(Clone, Copy, Debug)]
struct Volume {
    /// Writes that complete now belong to this generation.
    open: Generation,
    /// The newest generation of which nothing can be lost any more.
    settled: Generation,
    /// The newest generation of which something was evicted from the cache.
    evicted: Generation,
    /// The newest generation that something was written in.
    written: Generation,
    /// What the flush under way covers, and the failures of the target when it began.
    covered: Generation,
    flush_failures: Failures,
}

impl Default for Volume {
    fn default() -> Self {
        Volume { open: 1, settled: 0, evicted: 0, written: 0, covered: 0, flush_failures: 0 }
    }
}

impl Volume {
    fn is_unsettled(&self, generation: Generation) -> bool {
        is_later(generation, self.settled)
    }
}

fn is_later(generation: Generation, other: Generation) -> bool {
    generation.wrapping_sub(other) as i32 > 0
}

/// The generations of all volumes on one target.
#[derive(Default, Debug)]
pub(crate) struct Durability {
    failures: Failures,
    /// By `VolumeId`.
    volumes: Vec<Volume>,
}

impl Durability {
    /// A volume is served from now on. Everything that the device has of it is settled, unless the caller says
    /// otherwise ([`Durability::unsettled`]).
    pub(crate) fn opened(&mut self, volume: VolumeId) {
        let at = volume.0 as usize;
        if self.volumes.len() <= at {
            self.volumes.resize_with(at + 1, Volume::default);
        }
        self.volumes[at] = Volume::default();
    }

    /// What a write that goes to the device now is to remember for [`Durability::trusts`].
    pub(crate) fn failures(&self) -> Failures {
        self.failures
    }

    /// Whether no failure was reported since a write went to the device.
    pub(crate) fn trusts(&self, failures: Failures) -> bool {
        self.failures == failures
    }

    /// A write of the volume completed, perhaps only into the volatile cache: its generation.
    pub(crate) fn written(&mut self, volume: VolumeId) -> Generation {
        let volume = &mut self.volumes[volume.0 as usize];
        volume.written = volume.open;
        volume.open
    }

    /// Whether a failure could still lose what was written in `generation`.
    pub(crate) fn is_unsettled(&self, volume: VolumeId, generation: Generation) -> bool {
        self.volumes[volume.0 as usize].is_unsettled(generation)
    }

    /// What was written in `generation` is not cached any more, so it could not be written again.
    pub(crate) fn evicted(&mut self, volume: VolumeId, generation: Generation) {
        let volume = &mut self.volumes[volume.0 as usize];
        // Blocks are not evicted in the order in which they were written.
        if volume.is_unsettled(generation) && is_later(generation, volume.evicted) {
            volume.evicted = generation;
        }
    }

    /// The device has content of the volume that no flush covers and that the cache does not have: zeros that it made,
    /// what an accepted loss leaves, or what a killed process wrote.
    pub(crate) fn unsettled(&mut self, volume: VolumeId) {
        let generation = self.written(volume);
        self.evicted(volume, generation);
    }

    /// A flush of the volume begins: it covers what has completed.
    pub(crate) fn flush_begun(&mut self, volume: VolumeId) {
        let volume = &mut self.volumes[volume.0 as usize];
        (volume.covered, volume.flush_failures) = (volume.open, self.failures);
        volume.open = volume.open.wrapping_add(1);
    }

    /// Whether no failure was reported since that flush began.
    pub(crate) fn trusts_flush(&self, volume: VolumeId) -> bool {
        self.trusts(self.volumes[volume.0 as usize].flush_failures)
    }

    /// That flush succeeded, and is trusted.
    pub(crate) fn flushed(&mut self, volume: VolumeId) {
        let volume = &mut self.volumes[volume.0 as usize];
        if volume.is_unsettled(volume.covered) {
            volume.settled = volume.covered;
        }
    }

    /// A flush or a durable write of any volume failed. The caller condemns all volumes.
    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.wrapping_add(1);
    }

    /// Whether a failure could lose anything of the volume.
    pub(crate) fn is_exposed(&self, volume: VolumeId) -> bool {
        let volume = &self.volumes[volume.0 as usize];
        volume.is_unsettled(volume.written)
    }

    /// All that is unsettled of the volume is as good as never written; the caller has made dirty again what is cached.
    /// True if something was evicted: it is lost.
    pub(crate) fn condemn(&mut self, volume: VolumeId) -> bool {
        let volume = &mut self.volumes[volume.0 as usize];
        let lost = volume.is_unsettled(volume.evicted);
        volume.settled = volume.open;
        volume.open = volume.open.wrapping_add(1);
        lost
    }
}

/// Whether a device request that ended so may have been a failed flush of the device. A full disk and a refused
/// operation are answered before anything is flushed.
pub(crate) fn is_failed_flush(op: Op, result: Result<(), Errno>) -> bool {
    match op {
        Op::Flush => result.is_err(),
        Op::Write { durable: true } => {
            result.is_err_and(|why| !matches!(why, Errno::NoSpace | Errno::NotSupported))
                && !planted!(FailedDurableWriteIgnored)
        }
        Op::Write { durable: false } | Op::Read | Op::Zero | Op::Punch => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: VolumeId = VolumeId(0);
    const B: VolumeId = VolumeId(1);

    fn book() -> Durability {
        let mut book = Durability::default();
        book.opened(A);
        book.opened(B);
        book
    }

    #[test]
    fn a_flush_settles_what_completed_before_it_and_only_of_its_volume() {
        let mut book = book();
        let (before, other) = (book.written(A), book.written(B));
        book.flush_begun(A);
        let after = book.written(A);
        assert!(book.is_unsettled(A, before));
        book.flushed(A);
        assert!(!book.is_unsettled(A, before) && book.is_unsettled(A, after) && book.is_unsettled(B, other));
        assert!(book.is_exposed(A) && book.is_exposed(B));
    }

    #[test]
    fn a_failure_condemns_what_is_unsettled_of_every_volume() {
        let mut book = book();
        let settled = book.written(A);
        book.flush_begun(A);
        book.flushed(A);
        book.evicted(A, settled);
        let evicted = book.written(B);
        book.evicted(B, evicted);
        book.failed();
        assert!(!book.is_exposed(A) && book.is_exposed(B));
        assert_eq!([book.condemn(A), book.condemn(B)], [false, true], "only what was evicted and unsettled is lost");
        assert!(!book.is_exposed(B));
        book.failed();
        assert!(!book.condemn(B), "a loss is found once");
    }

    #[test]
    fn what_was_in_the_device_when_a_failure_was_reported_is_distrusted() {
        let mut book = book();
        let before = book.failures();
        book.written(B);
        book.flush_begun(B);
        book.failed();
        book.condemn(B);
        assert!(!book.trusts(before) && book.trusts(book.failures()) && !book.trusts_flush(B));
        let after = book.written(B);
        book.flushed(B);
        assert!(book.is_unsettled(B, after), "an old flush covers nothing that was written after the failure");
    }

    #[test]
    fn generations_wrap() {
        let mut book = book();
        (book.volumes[0].open, book.volumes[0].settled) = (u32::MAX, u32::MAX - 1);
        let last = book.written(A);
        book.flush_begun(A);
        let first = book.written(A);
        book.evicted(A, last);
        book.evicted(A, first);
        book.flushed(A);
        assert!(!book.is_unsettled(A, last) && book.is_unsettled(A, first));
        assert!(book.condemn(A));
    }

    #[test]
    fn only_flushes_and_durable_writes_may_be_failed_flushes() {
        let durable = Op::Write { durable: true };
        assert!(is_failed_flush(Op::Flush, Err(Errno::Io)) && is_failed_flush(durable, Err(Errno::Io)));
        assert!(!is_failed_flush(durable, Err(Errno::NoSpace)) && !is_failed_flush(durable, Ok(())));
        assert!(!is_failed_flush(Op::Write { durable: false }, Err(Errno::Io)));
    }
}
