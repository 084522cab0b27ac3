//! Anonymous memory that becomes resident page by page, at the first access.

use std::io;
use std::ptr::NonNull;

/// An anonymous private mapping of fixed size. It provides addresses only; access is the responsibility of its users.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping owns its memory, belongs to no thread, and provides addresses only.
unsafe impl Send for Mapping {}
// SAFETY: as above; all methods taking `&self` are system calls or arithmetic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeros, none of them resident. Swap is not reserved, since the engine limits the use of the
    /// pool.
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
        // SAFETY: advice about a mapping that we own. It keeps clients' data out of core files; a failure is harmless.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTDUMP) };
        Ok(mapping)
    }

    /// Asks for huge pages: copies to sockets access many frames, and 2 MiB pages avoid most of the TLB misses. Memory
    /// then becomes resident 2 MiB at a time. On a kernel without huge pages this fails, which is harmless.
    pub fn advise_huge_pages(&self) {
        // SAFETY: advice about a mapping that we own.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// Makes the first `len` bytes read-only, for the kernel, too.
    pub fn protect_prefix(&self, len: usize) -> io::Result<()> {
        assert!(len <= self.len);
        // SAFETY: inside a mapping that we own; no Rust reference points there.
        match unsafe { libc::mprotect(self.base.as_ptr().cast(), len, libc::PROT_READ) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Frees the pages of a range; they read as zeros at the next access. Both numbers are multiples of a page.
    pub fn give_back(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside a mapping that we own; no Rust reference points there. It fails only for locked pages, which
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
        // SAFETY: ours, and a user that has passed addresses to the kernel keeps the mapping until the kernel has
        // finished with them.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
