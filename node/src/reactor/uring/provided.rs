//! The receive buffers as a ring of provided buffers: the kernel takes a free one for a receive when bytes are there.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::ring::Ring;
use crate::frames::Mapping;
use crate::reactor::buffers::{BUFFER_BYTES, BUFFERS, BufferId, Buffers};

/// The only buffer group.
pub const GROUP: u16 = 0;

/// The buffers, and the ring of free ones.
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

    /// Marks a buffer as lent, after a receive has filled it.
    pub fn lend(&mut self, buffer: BufferId) {
        self.buffers.lend(buffer);
    }

    /// Whether at least one buffer is not lent.
    pub fn some_free(&self) -> bool {
        self.buffers.some_free()
    }

    /// The bytes of a lent buffer.
    pub fn bytes(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    /// Makes a lent buffer free again.
    pub fn take_back(&mut self, buffer: BufferId) {
        self.buffers.take_back(buffer);
        self.provide(buffer);
    }

    fn provide(&mut self, buffer: BufferId) {
        let index = usize::from(self.tail) & (BUFFERS - 1);
        let base = self.ring.address(0).cast::<BufRingEntry>();
        // SAFETY: inside the ring's memory. There are as many entries as buffers, so the kernel does not own this
        // entry. Entry 0 shares its last two bytes with the tail, which the setters do not touch.
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
