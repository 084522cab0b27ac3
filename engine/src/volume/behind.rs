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

    /// A sequence that has a full request.
    fn full(&self) -> Option<usize> {
        self.sequences.iter().position(|sequence| sequence.end - sequence.start >= REQUEST_BYTES)
    }

    /// The first byte of a full request, which counts as considered from now on.
    fn take_full(&mut self) -> Option<u64> {
        let full = &mut self.sequences[self.full()?];
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
        // A completion continues here if all write-backs are in flight.
        while self.volume(volume).behind.full().is_some() && self.volume(volume).writebacks < WRITEBACKS_MAX {
            if self.work.is_spent() {
                // The rest follows in a later quantum of the tenant.
                return self.poke(volume);
            }
            let Some(start) = self.volume_mut(volume).behind.take_full() else { return };
            let first = self.cache.lookup(volume, start / BLOCK).map(|id| (id, self.cache.block(id)));
            // Otherwise it is being written, or waits to be written again after a failure.
            let is_due = |block: &crate::cache::Block| block.dirty != 0 && block.writing == 0 && !block.is_failing();
            if let Some((id, _)) = first.filter(|(_, block)| is_due(block)) {
                self.write_out(id, false, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConnId, TenantId};
    use crate::spec::{TenantSpec, UpstreamSpec, VolumeSpec};
    use crate::volume::rig::Rig;

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
    fn a_full_request_is_sent_at_once_to_another_server_and_waits_for_a_disk() {
        let (there, far, conn) = (VolumeId(1), TenantId(1), ConnId(2));
        let mut rig = Rig::new();
        rig.set_tenant(far, TenantSpec { is_remote: true, ..TenantSpec::default() });
        let upstream = UpstreamSpec::plain(4 * REQUEST_BYTES);
        rig.open_volume(VolumeSpec { upstream: Some(upstream), ..VolumeSpec::plain(there, far, 4 * REQUEST_BYTES) });
        rig.attach(conn, there);
        let waiting = |rig: &Rig| rig.volumes.route.upstream(there).unwrap().stats().waiting;
        // There was a session, and is none: requests of the volume wait.
        rig.volumes.volume_mut(there).is_unreached = false;
        let before = waiting(&rig);
        for at in 0..3 {
            rig.write_as(conn, at, 0, at * PIECE, PIECE, 7);
            rig.write(at, 0, at * PIECE, PIECE, 7);
        }
        assert_eq!((waiting(&rig), rig.device.len()), (before, 0));
        rig.write_as(conn, 3, 0, 3 * PIECE, PIECE, 7);
        rig.write(3, 0, 3 * PIECE, PIECE, 7);
        assert_eq!((waiting(&rig), rig.device.len()), (before + 1, 0));
        assert_eq!(rig.volumes.cache.dirty_blocks(there), 0, "all of it is on its way");
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
