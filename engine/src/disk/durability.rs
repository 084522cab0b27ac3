//! Which completed writes a power cut could still lose: the durability generations of the targets of a disk's volumes.
//! A target is a device with one volatile cache. The disk is one; an upstream is one, of a single volume.
//!
//! A flush of a volume covers the writes of that volume which completed before it: `fdatasync` is per file, and its
//! success says nothing about another file. A failure concerns the target: the kernel reports a failed device flush
//! once, to one caller, and the data that the device dropped may belong to any volume on it. A failed durable write may
//! be such a failed flush.
//!
//! ```text
//!   volume a   written in 7 ── flush covers 7 ── written in 8 ─┐
//!   volume b   written in 3 ───────────────── flush covers 3 ──┼─ succeeds, not trusted: it began before the failure
//!                                                              │
//!   target                                   failure of a or b ┴─► 8 of a and 3, 4 of b are condemned
//! ```
//!
//! - A successful flush settles the generations of its own volume that it covers.
//! - A failure condemns every unsettled generation of every volume on the target: cached data is written again, evicted
//!   data is lost.
//! - The success of a write that was in the device when a failure was reported is not trusted: the device may have
//!   taken its data before the failure and dropped it then. Nor is the success of a flush that had begun, even if it
//!   was still queued in the server: the generations that it was to cover are condemned.
//! - A durable write that succeeds belongs to no generation.
//!
//! The cache of an upstream is lost whenever its server dies, so the blocks of its unsettled generations are never
//! evicted ([`Durability::is_kept`]), and nothing of it is condemned as lost.
//!
//! Downside: a bad sector under a durable write looks like a failed flush, so every volume of the target has to rewrite
//! its unflushed blocks.

use super::Op;
use crate::errno::Errno;
use crate::ids::VolumeId;

/// How often in a row the success of a request may be distrusted before the request counts as failed. A volume whose
/// requests always coincide with failures of other volumes thus gets errors after some attempts, rather than no answer.
pub(crate) const DISTRUST_MAX: u8 = 8;

/// The number of flushes and failures that a volume has seen. It wraps; only unsettled generations are compared.
pub(crate) type Generation = u32;

/// The number of failures of a target. It wraps; a request in flight compares it for equality.
pub(crate) type Failures = u32;

/// The generations of one volume on a target.
#[derive(Clone, Copy, Debug)]
struct Volume {
    /// Writes that complete now belong to this generation.
    open: Generation,
    /// The newest generation of which no data can be lost any more.
    settled: Generation,
    /// The newest generation of which data was evicted from the cache.
    evicted: Generation,
    /// The newest generation that a write completed in.
    written: Generation,
    /// The generation up to which the flush in progress covers, and the failures of the target when it began.
    covered: Generation,
    flush_failures: Failures,
    /// Its target is an upstream, with so many failures.
    upstream: Option<Failures>,
}

impl Default for Volume {
    fn default() -> Self {
        Volume { open: 1, settled: 0, evicted: 0, written: 0, covered: 0, flush_failures: 0, upstream: None }
    }
}

impl Volume {
    fn is_unsettled(&self, generation: Generation) -> bool {
        is_later(generation, self.settled)
    }
}

pub(crate) fn is_later(generation: Generation, other: Generation) -> bool {
    generation.wrapping_sub(other) as i32 > 0
}

/// The generations of all volumes of a disk.
#[derive(Default, Debug)]
pub(crate) struct Durability {
    /// Of the disk.
    failures: Failures,
    /// By `VolumeId`.
    volumes: Vec<Volume>,
}

impl Durability {
    /// A volume is served from now on. All its data on the device counts as settled, unless the caller says otherwise
    /// ([`Durability::unsettled`]).
    pub(crate) fn opened(&mut self, volume: VolumeId, is_upstream: bool) {
        let at = volume.0 as usize;
        if self.volumes.len() <= at {
            self.volumes.resize_with(at + 1, Volume::default);
        }
        self.volumes[at] = Volume { upstream: is_upstream.then_some(0), ..Volume::default() };
    }

    /// The number of failures that a write to the disk records when it is submitted, for [`Durability::trusts`].
    pub(crate) fn disk_failures(&self) -> Failures {
        self.failures
    }

    /// The failures of the volume's target.
    pub(crate) fn failures(&self, volume: VolumeId) -> Failures {
        self.volumes[volume.0 as usize].upstream.unwrap_or(self.failures)
    }

    /// Whether no failure was reported since a write of the volume that recorded `failures` was submitted.
    pub(crate) fn trusts(&self, volume: VolumeId, failures: Failures) -> bool {
        self.failures(volume) == failures
    }

    /// Whether the cache has to keep data of `generation`: an upstream may lose it at any time.
    pub(crate) fn is_kept(&self, volume: VolumeId, generation: Generation) -> bool {
        let volume = &self.volumes[volume.0 as usize];
        volume.upstream.is_some() && volume.is_unsettled(generation) && !planted!(UnsettledEvicted)
    }

    /// The generation of what happens now.
    pub(crate) fn open(&self, volume: VolumeId) -> Generation {
        self.volumes[volume.0 as usize].open
    }

    /// What happens from now on belongs to a later generation than what has happened. Returns it.
    pub(crate) fn advance(&mut self, volume: VolumeId) -> Generation {
        let open = &mut self.volumes[volume.0 as usize].open;
        *open = open.wrapping_add(1);
        *open
    }

    /// A write of the volume completed, perhaps only into the volatile cache. Returns its generation.
    pub(crate) fn written(&mut self, volume: VolumeId) -> Generation {
        let volume = &mut self.volumes[volume.0 as usize];
        volume.written = volume.open;
        volume.open
    }

    /// Whether a failure could still lose data that was written in `generation`.
    pub(crate) fn is_unsettled(&self, volume: VolumeId, generation: Generation) -> bool {
        self.volumes[volume.0 as usize].is_unsettled(generation)
    }

    /// Data of `generation` was evicted from the cache, so it could not be written again after a failure.
    pub(crate) fn evicted(&mut self, volume: VolumeId, generation: Generation) {
        let volume = &mut self.volumes[volume.0 as usize];
        // Blocks are not evicted in the order in which they were written. Those of an upstream are dropped only when
        // their content is of no use any more.
        if volume.upstream.is_none() && volume.is_unsettled(generation) && is_later(generation, volume.evicted) {
            volume.evicted = generation;
        }
    }

    /// The device has data of the volume that no flush covers and that is not cached: zeros of a range operation, data
    /// that remained when a loss was accepted, or writes of a killed process.
    pub(crate) fn unsettled(&mut self, volume: VolumeId) {
        let generation = self.written(volume);
        self.evicted(volume, generation);
    }

    /// A flush of the volume begins: it covers the writes that have completed.
    pub(crate) fn flush_begun(&mut self, volume: VolumeId) {
        let failures = self.failures(volume);
        let volume = &mut self.volumes[volume.0 as usize];
        (volume.covered, volume.flush_failures) = (volume.open, failures);
        volume.open = volume.open.wrapping_add(1);
    }

    /// Whether no failure was reported since the flush in progress began.
    pub(crate) fn trusts_flush(&self, volume: VolumeId) -> bool {
        self.trusts(volume, self.volumes[volume.0 as usize].flush_failures)
    }

    /// The flush in progress succeeded, and its success is trusted.
    pub(crate) fn flushed(&mut self, volume: VolumeId) {
        let volume = &mut self.volumes[volume.0 as usize];
        if planted!(FlushCoversLaterWrites) {
            (volume.covered, volume.open) = (volume.open, volume.open.wrapping_add(1));
        }
        if volume.is_unsettled(volume.covered) {
            volume.settled = volume.covered;
        }
    }

    /// A flush or a durable write of this volume failed. The caller condemns all volumes that share its target.
    pub(crate) fn failed(&mut self, volume: VolumeId) {
        let failures = self.volumes[volume.0 as usize].upstream.as_mut().unwrap_or(&mut self.failures);
        *failures = failures.wrapping_add(1);
    }

    /// Whether the two volumes have one target.
    pub(crate) fn share_target(&self, one: VolumeId, other: VolumeId) -> bool {
        let is_upstream = |volume: VolumeId| self.volumes[volume.0 as usize].upstream.is_some();
        one == other || !is_upstream(one) && !is_upstream(other)
    }

    /// Whether a failure could lose data of the volume.
    pub(crate) fn is_exposed(&self, volume: VolumeId) -> bool {
        let volume = &self.volumes[volume.0 as usize];
        volume.is_unsettled(volume.written)
    }

    /// Treats all unsettled writes of the volume as never made; the caller has made the cached ones dirty again. True
    /// if some of their data was evicted: it is lost.
    pub(crate) fn condemn(&mut self, volume: VolumeId) -> bool {
        let volume = &mut self.volumes[volume.0 as usize];
        let lost = volume.is_unsettled(volume.evicted);
        volume.settled = volume.open;
        volume.open = volume.open.wrapping_add(1);
        lost
    }
}

/// Whether a device request with this result may have been a failed flush of the device. A durable write that fails
/// with "no space" or "not supported" is not one: the device answers these before it flushes anything.
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
        book.opened(A, false);
        book.opened(B, false);
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
        book.failed(A);
        assert!(!book.is_exposed(A) && book.is_exposed(B));
        assert_eq!([book.condemn(A), book.condemn(B)], [false, true], "only what was evicted and unsettled is lost");
        assert!(!book.is_exposed(B));
        book.failed(A);
        assert!(!book.condemn(B), "a loss is found once");
    }

    #[test]
    fn what_was_in_the_device_when_a_failure_was_reported_is_distrusted() {
        let mut book = book();
        let before = book.failures(B);
        book.written(B);
        book.flush_begun(B);
        book.failed(A);
        book.condemn(B);
        assert!(!book.trusts(B, before) && book.trusts(B, book.failures(B)) && !book.trusts_flush(B));
        let after = book.written(B);
        book.flushed(B);
        assert!(book.is_unsettled(B, after), "an old flush covers nothing that was written after the failure");
    }

    #[test]
    fn an_upstream_fails_alone_and_keeps_its_data_cached() {
        let mut book = book();
        book.opened(B, true);
        let [disk, upstream] = [A, B].map(|volume| book.written(volume));
        assert!(book.is_kept(B, upstream) && !book.is_kept(A, disk) && !book.share_target(A, B));
        book.flush_begun(A);
        book.failed(B);
        assert!(book.trusts_flush(A) && book.trusts(A, book.disk_failures()));
        book.evicted(B, upstream);
        assert!(!book.condemn(B), "its data was not needed");
        book.flush_begun(B);
        book.failed(A);
        assert!(book.trusts_flush(B) && !book.trusts_flush(A));
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
