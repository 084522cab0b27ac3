//! The receive buffers as the kernel takes them: a ring of free ones, out of which each receive picks its own when
//! bytes are there.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::ring::Ring;
use crate::frames::Mapping;
use crate::reactor::buffers::{BUFFER_BYTES, BUFFERS, BufferId, Buffers};

/// The only group of buffers.
pub const GROUP: u16 = 0;

/// The buffers and the ring of the free ones.
pub struct Provided {
    buffers: Buffers,
    ring: Mapping,
    tail: u16,
}

impl Provided {
    /// All buffers free.
    pub fn new(ring: &Ring) -> io::Result<Provided> {
        let entries = Mapping::new(BUFFERS * size_of::<BufRingEntry>())?;
        // SAFETY: page-aligned zeros of the right size, and `Uring` keeps them until the kernel's ring is gone.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries.address(0) as u64, BUFFERS as u16, GROUP, 0)?;
        }
        let mut provided = Provided { buffers: Buffers::new()?, ring: entries, tail: 0 };
        for number in 0..BUFFERS as u16 {
            provided.provide(BufferId(number));
        }
        Ok(provided)
    }

    /// A receive has filled it.
    pub fn lend(&mut self, buffer: BufferId) {
        self.buffers.lend(buffer);
    }

    /// Whether not all are lent.
    pub fn some_free(&self) -> bool {
        self.buffers.some_free()
    }

    /// The bytes of a lent buffer.
    pub fn bytes(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    /// Free again.
    pub fn take_back(&mut self, buffer: BufferId) {
        self.buffers.take_back(buffer);
        self.provide(buffer);
    }

    fn provide(&mut self, buffer: BufferId) {
        let index = usize::from(self.tail) & (BUFFERS - 1);
        let base = self.ring.address(0).cast::<BufRingEntry>();
        // SAFETY: inside the ring's memory; there are as many places as buffers, so the place is not in the kernel's
        // hands. Entry 0 shares its last two bytes with the tail, which the setters leave alone.
        let entry = unsafe { &mut *base.add(index) };
        entry.set_addr(self.buffers.address(buffer) as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer.0);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is an aligned u16 inside the ring's memory that only we write; the kernel reads it with
        // acquire.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
