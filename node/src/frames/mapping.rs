//! Anonymous memory that the kernel gives page by page, on first touch.

use std::io;
use std::ptr::NonNull;

/// An anonymous private mapping of fixed size. It only tells addresses: reading and writing is its users' business.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping owns its memory, belongs to no thread, and gives out nothing but addresses.
unsafe impl Send for Mapping {}
// SAFETY: as above; all methods taking `&self` are system calls or arithmetic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of zeros, none of them resident. No swap is reserved: the pool's bound is kept by the engine.
    pub fn new(len: usize) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("a mapping at address zero"))?;
        let mapping = Mapping { base, len };
        // SAFETY: advice about a mapping that we own. Clients' data does not belong into core files; a refusal is
        // harmless.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTDUMP) };
        Ok(mapping)
    }

    /// Ask for huge pages: copying to sockets touches many frames, and 2 MiB pages save most of the TLB misses. They
    /// become resident 2 MiB at a time; a kernel without them refuses, which is harmless.
    pub fn advise_huge_pages(&self) {
        // SAFETY: advice about a mapping that we own.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// Nobody, the kernel included, writes to the first `len` bytes any more.
    pub fn protect_prefix(&self, len: usize) -> io::Result<()> {
        assert!(len <= self.len);
        // SAFETY: inside a mapping that we own; no Rust reference points there.
        match unsafe { libc::mprotect(self.base.as_ptr().cast(), len, libc::PROT_READ) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Pages are no longer resident, and zeros when they are touched again. Both numbers are multiples of a page.
    pub fn give_back(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside a mapping that we own; no Rust reference points there. It fails for locked pages only, which
        // then stay.
        unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, libc::MADV_DONTNEED) };
    }

    /// The address of byte `offset`.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len);
        // SAFETY: inside the mapping (asserted), which is one allocation.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and whoever handed addresses to the kernel holds the mapping until the kernel is done with
        // them.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
