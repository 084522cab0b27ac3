//! Short time slices of the processor for threads that run briefly.
//!
//! With fewer processors than busy threads, a thread that wakes waits until the running one has used up its slice of 3
//! ms or more, and a request over TLS wakes a pump twice. Since Linux 6.12 a thread may request shorter slices. It is
//! then run at once when it wakes, unless it has had more than its part of the processor. Older kernels ignore the
//! request.

/// The shortest slice that the kernel grants, nanoseconds: two turns of a pump.
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` of the kernel, in its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Requests short slices for the calling thread, at unchanged priority.
pub fn shorten() {
    if let Err(error) = set(SLICE_NS) {
        tracing::debug!(%error, "TLS is slower under contention for the processor");
    }
}

fn set(slice_ns: u64) -> std::io::Result<()> {
    // SAFETY: reads a number of this thread. The error value, -1, is a valid nice value, too; this call cannot fail for
    // the calling thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let policy = libc::SCHED_OTHER as u32;
    let size = size_of::<SchedAttr>() as u32;
    let attr = SchedAttr { size, policy, flags: 0, nice, priority: 0, runtime: slice_ns, deadline: 0, period: 0 };
    // SAFETY: a setting of this thread, from a live structure that includes its length.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_it_and_the_priority_stays() {
        std::thread::spawn(|| {
            // SAFETY: settings of this thread, which ends.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
            set(SLICE_NS).expect("a thread may set this of itself");
            // SAFETY: reads a number.
            assert_eq!(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }, 5);
            // Kernels that support slices show this one; older ones accept the request and ignore it.
            let told = match std::fs::read_to_string("/proc/thread-self/sched") {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
                told => told.expect("the kernel tells of this thread"),
            };
            let slice = told.lines().find(|line| line.starts_with("se.slice"));
            assert!(slice.is_none_or(|line| line.ends_with(&format!(" {SLICE_NS}"))), "{slice:?}");
        })
        .join()
        .expect("it ends well");
    }
}
