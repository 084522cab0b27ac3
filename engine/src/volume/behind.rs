//! Write-behind, for volumes on other servers: what clients write in sequence is sent as soon as it fills a request.
//!
//! ```text
//!   client ─► |··· sent ···|··· 1 MiB: sent now ···|·· grows ··► end
//!                                                  ▲start
//! ```
//!
//! On a disk, write-back is delayed because blocks that are written again meanwhile need one write, and because many
//! writes together need fewer positionings. Neither is true of the middle of a sequential stream on another server.
//! There, a delay means that the network idles until half the partition is dirty, that the frames have left the
//! processor's cache when they are sent, and that a flush waits for all of it.
//!
//! Sequential means that each write begins where one of the last writes of the volume ended. Source: Linux and other
//! file servers do the same for streams ("write-behind"). Downside: a stream of 1 MiB or more that is written again
//! within seconds is sent twice.

use crate::ids::VolumeId;
use crate::units::BLOCK;
use crate::volume::Volumes;
use crate::volume::writeback::WRITEBACKS_MAX;

/// Bytes that are sent at once: the longest run of a write-back.
const REQUEST_BYTES: u64 = 1 << 20;
/// Sequences of a volume that are followed at the same time.
const SEQUENCES: usize = 8;

/// Bytes written in sequence, and not yet considered.
#[derive(Clone, Copy, Default, Debug)]
struct Sequence {
    start: u64,
    end: u64,
    /// The number of the last write that extended it.
    used: u64,
}

/// The sequences of a volume.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Behind {
    sequences: [Sequence; SEQUENCES],
    writes: u64,
}

impl Behind {
    /// Bytes were written to the cache.
    fn wrote(&mut self, start: u64, end: u64) {
        self.writes += 1;
        let used = self.writes;
        match self.sequences.iter_mut().find(|sequence| sequence.end == start && sequence.used > 0) {
            Some(sequence) => (sequence.end, sequence.used) = (end, used),
            None => {
                let oldest = self.sequences.iter_mut().min_by_key(|sequence| sequence.used).expect("there are some");
                *oldest = Sequence { start, end, used };
            }
        }
    }

    /// The first byte of a full request, which counts as considered from now on.
    fn take_full(&mut self) -> Option<u64> {
        let full = self.sequences.iter_mut().find(|sequence| sequence.end - sequence.start >= REQUEST_BYTES)?;
        full.start += REQUEST_BYTES;
        Some(full.start - REQUEST_BYTES)
    }
}

impl Volumes {
    /// A piece of a write has taken effect.
    pub(crate) fn note_written(&mut self, volume: VolumeId, start: u64, end: u64) {
        if self.route.is_elsewhere(volume) {
            self.volume_mut(volume).behind.wrote(start, end);
        }
    }

    /// Writes full requests of sequences, as long as few enough write-backs are in flight.
    pub(crate) fn write_behind(&mut self, volume: VolumeId) {
        while self.volume(volume).writebacks < WRITEBACKS_MAX {
            if self.work.is_spent() {
                // The rest follows in a later quantum of the tenant.
                return self.poke(volume);
            }
            let Some(start) = self.volume_mut(volume).behind.take_full() else { return };
            let first = self.cache.lookup(volume, start / BLOCK).map(|id| (id, self.cache.block(id)));
            // Otherwise it is being written, or waits to be written again after a failure.
            let is_due = |block: &crate::cache::Block| block.dirty != 0 && block.writing == 0 && !block.is_failing();
            if let Some((id, _)) = first.filter(|(_, block)| is_due(block)) {
                self.write_out(id, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = REQUEST_BYTES / 4;

    #[test]
    fn a_request_is_full_when_a_mebibyte_was_written_in_sequence() {
        let mut behind = Behind::default();
        let mut full = Vec::new();
        for at in 3..13 {
            behind.wrote(at * PIECE, (at + 1) * PIECE);
            full.extend(behind.take_full());
        }
        assert_eq!(full, [3 * PIECE, 7 * PIECE]);
    }

    #[test]
    fn interleaved_sequences_are_told_apart_and_random_writes_are_none() {
        let mut behind = Behind::default();
        let mut full = Vec::new();
        for at in 0..4 {
            for of in 0..SEQUENCES as u64 {
                let base = of << 40;
                behind.wrote(base + at * PIECE, base + (at + 1) * PIECE);
                full.extend(behind.take_full());
            }
        }
        assert_eq!(full, (0..SEQUENCES as u64).map(|of| of << 40).collect::<Vec<_>>());
        for at in 0..1000 {
            behind.wrote(at * 7919 % 1000 * 2 * PIECE, (at * 7919 % 1000 * 2 + 1) * PIECE);
            assert_eq!(behind.take_full(), None);
        }
    }
}
