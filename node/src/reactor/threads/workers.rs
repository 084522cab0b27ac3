//! Worker threads for device requests: each performs one request at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use engine::disk::Op;
use engine::ids::IoId;

use crate::frames::FrameMemory;
use crate::reactor::Waker;
use crate::reactor::errors::Failure;
use crate::reactor::request::{Progress, Request};

/// Threads of one disk at most. Each blocking request occupies a thread; with more requests than threads, requests wait
/// for threads, which reduces the throughput of a disk with a deep queue.
const WORKERS_MAX: usize = 32;
/// Stack of a worker, bytes: it does little besides system calls.
const STACK: usize = 64 * 1024;

/// A device request with its file.
pub struct Job {
    /// The request's number.
    pub io: IoId,
    /// The volume's file.
    pub file: Arc<File>,
    /// The request.
    pub request: Request,
    /// The result, once it is finished.
    pub result: Result<(), Failure>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    finished: Vec<Job>,
    idle: usize,
    stopping: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    finish: Waker,
    /// Keeps the frames mapped while a worker may use them.
    _memory: FrameMemory,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The workers of one reactor.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    threads_max: usize,
}

impl Workers {
    /// No worker is started yet.
    pub fn new(depth: usize, finish: Waker, memory: FrameMemory) -> Workers {
        let shared = Shared { queue: Mutex::default(), changed: Condvar::new(), finish, _memory: memory };
        Workers { shared: Arc::new(shared), threads: Vec::new(), threads_max: depth.clamp(1, WORKERS_MAX) }
    }

    /// Queues the jobs and starts workers if there are more jobs than idle workers.
    pub fn begin(&mut self, jobs: &mut Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let mut queue = self.shared.lock();
        queue.waiting.extend(jobs.drain(..));
        let wanted = queue.waiting.len().saturating_sub(queue.idle).min(self.threads_max - self.threads.len());
        drop(queue);
        for _ in 0..wanted {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("device".to_owned()).stack_size(STACK);
            match builder.spawn(move || work(&shared)) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => panic!("no thread for device requests: {error}"),
                Err(_) => break,
            }
        }
        self.shared.changed.notify_all();
    }

    /// Appends the finished jobs.
    pub fn take_finished(&mut self, finished: &mut Vec<Job>) {
        finished.append(&mut self.shared.lock().finished);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A worker that panicked has logged it.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut queue = shared.lock();
    loop {
        if let Some(mut job) = queue.waiting.pop_front() {
            drop(queue);
            job.result = perform(&job.file, &mut job.request);
            queue = shared.lock();
            queue.finished.push(job);
            // The first finished job of a batch wakes the reactor, which then takes all of them.
            if queue.finished.len() == 1 {
                shared.finish.wake();
            }
        } else if queue.stopping {
            return;
        } else {
            queue.idle += 1;
            queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

/// Performs a request completely.
fn perform(file: &File, request: &mut Request) -> Result<(), Failure> {
    loop {
        let answer = match call(file, request) {
            -1 => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
            bytes => bytes as i64,
        };
        if let Progress::Done(result) = request.advance(answer) {
            return result;
        }
    }
}

/// One system call for the remaining range.
fn call(file: &File, request: &Request) -> isize {
    let fd = file.as_raw_fd();
    let list = request.entries();
    let (entries, count) = (list.as_ptr(), list.len() as i32);
    let (offset, left) = (request.offset as i64, request.left as i64);
    // SAFETY: the list names frames of this request. They are mapped (`Shared` holds them), and nothing else uses them
    // until the request is complete.
    unsafe {
        match request.op {
            Op::Read => libc::preadv(fd, entries, count, offset),
            Op::Write { durable: false } => libc::pwritev(fd, entries, count, offset),
            Op::Write { durable: true } => libc::pwritev2(fd, entries, count, offset, libc::RWF_DSYNC),
            Op::Flush => libc::fdatasync(fd) as isize,
            Op::Zero => {
                libc::fallocate(fd, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, offset, left) as isize
            }
            Op::Punch => {
                libc::fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, left) as isize
            }
        }
    }
}
