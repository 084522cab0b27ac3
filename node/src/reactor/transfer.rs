//! Non-blocking transfer of one message over a socket by a system call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Receive.
    In,
    /// Send.
    Out,
}

/// The result of a transfer.
pub enum Transfer {
    /// Bytes transferred, at least one.
    Bytes(u64),
    /// The call would block: nothing to receive, or the send buffer is full.
    Later,
    /// The peer has shut down its side, or the connection failed.
    Ended,
}

/// Transfers one message without blocking. The message must name valid memory that is not used otherwise.
pub fn transfer(fd: &OwnedFd, message: *mut libc::msghdr, direction: Direction) -> Transfer {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the caller's message names valid memory that is not used otherwise: frames and headers of a list in
        // use, or a free buffer.
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

/// Bytes that the peer of a Unix socket has not read, with the kernel's overhead. 0 if the kernel does not tell.
pub fn unread(fd: &OwnedFd) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: fills an integer of ours.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if answer == 0 { bytes.max(0) as u32 } else { 0 }
}
