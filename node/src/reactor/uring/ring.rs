//! The ring: set up with the best flags that the kernel supports, entered once per pass. Entries beyond its size wait
//! in a backlog.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};

/// Submission entries. A pass rarely queues more; further entries wait in a list and cost one more system call.
const ENTRIES: u32 = 256;
/// Completion entries: as many as can be in flight on a busy disk, so that the kernel's slow overflow list is not used.
const COMPLETIONS: u32 = 4096;
/// Completions collected at a time.
const BATCH: usize = 64;

/// The ring and the entries that do not fit into it.
pub struct Ring {
    uring: IoUring,
    backlog: VecDeque<squeue::Entry>,
}

impl Ring {
    /// A ring with all features that are needed, or the reason why there is none.
    pub fn new() -> io::Result<Ring> {
        let uring = build()?;
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
            return Err(io::Error::other("the kernel's io_uring is too old"));
        }
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::PollAdd::CODE,
            opcode::Read::CODE,
            opcode::Readv::CODE,
            opcode::Write::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::Recv::CODE,
            opcode::RecvMsg::CODE,
            opcode::SendMsg::CODE,
        ];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return Err(io::Error::other("the kernel's io_uring lacks operations"));
        }
        let backlog = VecDeque::with_capacity(ENTRIES as usize);
        Ok(Ring { uring, backlog })
    }

    /// For registering files and buffers.
    pub fn submitter(&self) -> io_uring::Submitter<'_> {
        self.uring.submitter()
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// What the entry points to stays valid until its completion.
    pub unsafe fn push(&mut self, entry: squeue::Entry) {
        if !self.backlog.is_empty() {
            self.backlog.push_back(entry);
            return;
        }
        // SAFETY: passed on to our caller.
        if unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Submits what is queued and waits for a completion, at most for `timeout`. Returns false if it did not have to
    /// wait.
    pub fn enter(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        while !self.fill() {
            self.submit(0, None)?;
            if !self.uring.completion().is_empty() {
                break; // The kernel accepts no more until these are collected.
            }
        }
        if !self.uring.completion().is_empty() || timeout == Some(Duration::ZERO) {
            return self.submit(0, None).map(|()| false);
        }
        self.submit(1, timeout).map(|()| true)
    }

    /// Moves the backlog into the queue. Returns false if it does not fit.
    fn fill(&mut self) -> bool {
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: what it points to is valid until its completion, as `push` requires.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }

    fn submit(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let limit = timeout.map(|limit| Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos()));
        let mut args = SubmitArgs::new();
        if let Some(limit) = &limit {
            args = args.timespec(limit);
        }
        let answer = match want {
            0 => self.uring.submit(),
            _ => self.uring.submitter().submit_with_args(want, &args),
        };
        match answer {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Timeout; signal; too many uncollected completions; temporarily no memory.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes up to `BATCH` completions.
    pub fn collect(&mut self) -> impl Iterator<Item = cqueue::Entry> + use<> {
        let mut batch = [const { None }; BATCH];
        let mut count = 0;
        for (place, entry) in batch.iter_mut().zip(self.uring.completion()) {
            *place = Some(entry);
            count += 1;
        }
        batch.into_iter().take(count).flatten()
    }
}

/// The best ring that this kernel supports. The flags only improve performance.
fn build() -> io::Result<IoUring> {
    let mut last = None;
    for (single_issuer, coop) in [(true, true), (false, true), (false, false)] {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(COMPLETIONS).dontfork();
        if single_issuer {
            builder.setup_single_issuer(); // Linux 6.0
        }
        if coop {
            // Not DEFER_TASKRUN: it was measured to use more CPU on the machines we have.
            builder.setup_coop_taskrun().setup_taskrun_flag(); // Linux 5.19
            builder.setup_submit_all(); // Linux 5.18
        }
        match builder.build(ENTRIES) {
            Ok(uring) => return Ok(uring),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL)))
}
