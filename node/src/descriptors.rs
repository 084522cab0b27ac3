//! File descriptors are kept for the API's own socket: whatever clients take on other listeners, an operator gets in.

use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Resource, getrlimit};

/// Descriptors that clients of other listeners cannot take: connections of `api.sock`, and files that their requests
/// open.
const RESERVED: u64 = 64;
/// Of a small limit, so many of its descriptors are reserved at most: one in four.
const RESERVED_PART: u64 = 4;

/// Whether a connection that was just accepted has one of the reserved descriptors, and is to be closed at once. The
/// kernel gives the lowest free number: a high one means that all below it are in use.
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
