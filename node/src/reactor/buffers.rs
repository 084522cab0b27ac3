//! The pool of receive buffers that all connections of a disk share.

use crate::frames::Mapping;
use std::io;

/// Bytes of a receive buffer: 2340 request headers, or 15 writes of 4 KiB, in one system call.
pub const BUFFER_BYTES: usize = 64 * 1024;
/// Buffers of a disk; a power of two, as the ring of provided buffers requires. 4 MiB, resident where ever filled.
pub const BUFFERS: usize = 64;

const _: () = assert!(BUFFERS.is_power_of_two() && BUFFERS <= 1 << 15);

/// The number of a receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferId(pub u16);

/// The memory of the buffers, and which of them are lent to the caller.
#[derive(Debug)]
pub struct Buffers {
    memory: Mapping,
    lent: [bool; BUFFERS],
}

impl Buffers {
    /// All buffers, not yet resident.
    pub fn new() -> io::Result<Buffers> {
        Ok(Buffers { memory: Mapping::new(BUFFERS * BUFFER_BYTES)?, lent: [false; BUFFERS] })
    }

    /// The address of a buffer. The kernel may fill it while it is not lent.
    pub fn address(&self, buffer: BufferId) -> *mut u8 {
        self.memory.address(usize::from(buffer.0) * BUFFER_BYTES)
    }

    /// Marks a buffer as lent, after the kernel has filled it.
    pub fn lend(&mut self, buffer: BufferId) {
        assert!(!std::mem::replace(&mut self.lent[usize::from(buffer.0)], true), "a buffer is filled once");
    }

    /// Marks a buffer as returned by the caller.
    pub fn take_back(&mut self, buffer: BufferId) {
        assert!(std::mem::take(&mut self.lent[usize::from(buffer.0)]), "a buffer is given back once");
    }

    /// Whether at least one buffer is not lent.
    pub fn some_free(&self) -> bool {
        !self.lent.iter().all(|&lent| lent)
    }

    /// The bytes of a lent buffer.
    pub fn bytes(&self, buffer: BufferId) -> &[u8] {
        assert!(self.lent[usize::from(buffer.0)], "only lent buffers are read");
        // SAFETY: inside the mapping, zeroed or filled by the kernel, and lent (asserted): it is not written to until
        // `take_back`, which needs `&mut self` and so ends this borrow.
        unsafe { std::slice::from_raw_parts(self.address(buffer), BUFFER_BYTES) }
    }
}
