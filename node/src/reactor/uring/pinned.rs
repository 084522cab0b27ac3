//! Frames known to the ring (registered, or "fixed", buffers): pinned once, so that a device request need not look its
//! pages up. Measured on a virtio disk, 4 KiB random reads at depth 32: 4.3 µs of CPU a read instead of 4.8.
//!
//! The memory is registered in chunks, each when the device first uses it: what the cache does not use yet is not
//! pinned, and no start waits for gigabytes. A chunk of which the disk gives up all frames is forgotten again. Where
//! the limit of locked memory ends it, the rest goes on without, which is said once.
//!
//! Only a request for one contiguous stretch inside a chunk profits; others name their stretches in a list.

use super::ring::Ring;
use crate::frames::{Chunk, FrameMemory};

/// Bytes that a registered buffer can have at most.
const CHUNK_MAX: usize = 1 << 30;

/// Which chunks of the memory the ring knows.
pub struct Pinned {
    memory: FrameMemory,
    known: Vec<bool>,
    allowed: bool,
}

impl Pinned {
    /// None yet.
    pub fn new(ring: &Ring, memory: &FrameMemory) -> Pinned {
        let chunks = memory.chunks();
        let fits = chunks > 0 && memory.chunk_bytes() <= CHUNK_MAX;
        let mut pinned = Pinned { memory: memory.clone(), known: vec![false; chunks], allowed: fits };
        if fits && let Err(error) = ring.submitter().register_buffers_sparse(chunks as u32) {
            pinned.stop(&error);
        }
        pinned
    }

    /// The number of the buffer that holds all of `entry`, making it known first if need be.
    pub fn find(&mut self, ring: &Ring, entry: &libc::iovec) -> Option<u16> {
        let first = entry.iov_base as usize;
        if !self.allowed || first < self.memory.writable_range().0 {
            return None;
        }
        let at = self.memory.chunk_of(first);
        if at != self.memory.chunk_of(first + entry.iov_len - 1) {
            return None;
        }
        if !self.known[at] {
            let addresses = self.memory.chunk(at).addresses;
            let buffer = libc::iovec { iov_base: addresses.start as *mut libc::c_void, iov_len: addresses.len() };
            // SAFETY: the chunk is inside the frames' mapping, which outlives the ring (the reactor holds both, and
            // waits for the kernel before it goes).
            if let Err(error) = unsafe { ring.submitter().register_buffers_update(at as u32, &[buffer], None) } {
                self.stop(&error);
                return None;
            }
            self.known[at] = true;
        }
        Some(at as u16)
    }

    /// The ring forgets a chunk of which no frame is in use, so that its memory can be given back. False if it does
    /// not.
    pub fn forget(&mut self, ring: &Ring, chunk: &Chunk) -> bool {
        let Some(known) = self.known.get_mut(chunk.number).filter(|known| **known) else { return true };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: names no memory.
        match unsafe { ring.submitter().register_buffers_update(chunk.number as u32, &[nothing], None) } {
            Ok(()) => {
                *known = false;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "memory stays pinned");
                false
            }
        }
    }

    fn stop(&mut self, error: &std::io::Error) {
        self.allowed = false;
        tracing::info!(%error, "no more registered buffers (is the limit of locked memory low?): going on without");
    }
}
