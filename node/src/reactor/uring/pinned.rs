//! Frames registered with the ring ("fixed" buffers): their pages are pinned once instead of for each device request.
//! Measured on a virtio disk, 4 KiB random reads at depth 32: 4.3 µs of CPU per read instead of 4.8.
//!
//! Memory is registered in chunks, each at its first use by the device. So unused cache memory is not pinned, and a
//! start does not wait until gigabytes are pinned. A chunk is unregistered when the disk gives up all of its frames.
//! When the limit of locked memory is reached, further chunks are used unregistered, and this is logged once.
//!
//! Only a request for one contiguous range inside a chunk uses a registered buffer. Other requests pass a list.

use super::ring::Ring;
use crate::frames::{Chunk, FrameMemory};

/// Bytes of a registered buffer at most.
const CHUNK_MAX: usize = 1 << 30;

/// Which chunks of the memory are registered.
pub struct Pinned {
    memory: FrameMemory,
    known: Vec<bool>,
    allowed: bool,
}

impl Pinned {
    /// No chunk is registered yet.
    pub fn new(ring: &Ring, memory: &FrameMemory) -> Pinned {
        let chunks = memory.chunks();
        let fits = chunks > 0 && memory.chunk_bytes() <= CHUNK_MAX;
        let mut pinned = Pinned { memory: memory.clone(), known: vec![false; chunks], allowed: fits };
        if fits && let Err(error) = ring.submitter().register_buffers_sparse(chunks as u32) {
            pinned.stop(&error);
        }
        pinned
    }

    /// The number of the registered buffer that holds all of `entry`. Registers the chunk first if needed.
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
            // SAFETY: the chunk is inside the frames' mapping, which outlives the ring (the reactor holds both, and its
            // `drop` waits for the kernel).
            if let Err(error) = unsafe { ring.submitter().register_buffers_update(at as u32, &[buffer], None) } {
                self.stop(&error);
                return None;
            }
            self.known[at] = true;
        }
        Some(at as u16)
    }

    /// Unregisters a chunk that has no frame in use, so that its memory can be freed. Returns false if this failed.
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
        tracing::info!(%error, "no more registered buffers (is RLIMIT_MEMLOCK too low?): continuing without them");
    }
}
