//! One message over a socket by an ordinary system call, without waiting.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To us.
    In,
    /// To the peer.
    Out,
}

/// What came of it.
pub enum Transfer {
    /// So many went through, at least one.
    Bytes(u64),
    /// The socket is empty, or full.
    Later,
    /// The peer has ended, or the connection failed.
    Ended,
}

/// One message, without waiting. It names memory that is valid and that nobody else uses.
pub fn transfer(fd: &OwnedFd, message: *mut libc::msghdr, direction: Direction) -> Transfer {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the caller's message names memory that is valid and that nobody else uses: frames and headers of a
        // list in use, or a free buffer.
        let answer = unsafe {
            match direction {
                Direction::In => libc::recvmsg(fd.as_raw_fd(), message, flags),
                Direction::Out => libc::sendmsg(fd.as_raw_fd(), message, flags),
            }
        };
        match answer {
            1.. => return Transfer::Bytes(answer as u64),
            0 => return Transfer::Ended,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => return Transfer::Later,
                _ => return Transfer::Ended,
            },
        }
    }
}

/// Bytes that the peer of a Unix socket has not read, with the kernel's own overhead.
pub fn unread(fd: &OwnedFd) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: fills an integer of ours.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if answer == 0 { bytes.max(0) as u32 } else { 0 }
}
