//! Reserves file descriptors for the API's own socket, so that an operator can connect even if clients of other
//! listeners use up all others.

use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Resource, getrlimit};

/// Descriptors that clients of other listeners cannot use. They are left for connections of `api.sock`, and for files
/// that its requests open.
const RESERVED: u64 = 64;
/// With a low limit, at most one in this many of its descriptors is reserved.
const RESERVED_PART: u64 = 4;

/// Whether an accepted connection has a reserved descriptor, and must be closed at once. The kernel assigns the lowest
/// free number, so a high one means that all below it are in use.
pub fn are_scarce(accepted: &impl AsRawFd) -> bool {
    getrlimit(Resource::Nofile).current.is_some_and(|limit| is_reserved(accepted.as_raw_fd(), limit))
}

fn is_reserved(descriptor: RawFd, limit: u64) -> bool {
    let reserved = RESERVED.min(limit / RESERVED_PART);
    u64::try_from(descriptor).is_ok_and(|descriptor| descriptor >= limit - reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_reserved() {
        assert!(!is_reserved(959, 1024) && is_reserved(960, 1024));
        assert!(!is_reserved(74, 100) && is_reserved(75, 100));
        assert!(!is_reserved(3, u64::MAX));
    }
}
