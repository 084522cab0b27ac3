//! The reactor without io_uring: sockets by epoll on this thread, device requests on worker threads.
//!
//! Some systems forbid io_uring (containers by default). All functions are available there, at up to three times the
//! CPU time: each receive and send is a system call, and each device request needs two context switches. The workers'
//! queue is the only lock on a data path.
//!
//! Sockets are registered once, edge-triggered. Each receive or send is tried at once, and again when epoll reports
//! that the socket has changed.

mod workers;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use engine::Outgoing;
use engine::disk::{Io, Segment};
use engine::ids::{ConnId, IoId, VolumeId};
use engine::units::PIECE_BLOCKS;

use self::workers::{Job, Workers};
use super::buffers::{BUFFER_BYTES, BUFFERS, BufferId, Buffers};
use super::errors::{Failure, FailureLog};
use super::gather::{Gather, Gathers, Receiving};
use super::request::Request;
use super::transfer::{Direction, Transfer, transfer, unread};
use super::{Completion, Options, Reactor, Waker, slot};
use crate::frames::{Chunk, FrameMemory};

/// Events collected at a time.
const EVENTS: usize = 128;
/// The event of the waker; sockets have their slot numbers.
const WAKER: u64 = u64::MAX;
/// The event of the workers: requests have finished.
const WORKERS: u64 = u64::MAX - 1;

struct Socket {
    fd: OwnedFd,
    receiving: Option<Receiving>,
    sending: Option<Box<Gather>>,
    /// False if the socket is known to be empty.
    readable: bool,
    /// False if the socket's send buffer is known to be full.
    writable: bool,
    /// Whether it is in `eager`.
    queued: bool,
}

/// See the module.
pub struct Threads {
    epoll: OwnedFd,
    waker: Waker,
    finish: Waker,
    memory: FrameMemory,
    volumes: Vec<Option<Arc<File>>>,
    workers: Workers,
    /// Slots of requests; `None` while a worker has the request.
    requests: Vec<Option<Request>>,
    /// Requests submitted since the last turn; the workers get them together.
    jobs: Vec<Job>,
    finished: Vec<Job>,
    sockets: Vec<Option<Socket>>,
    /// Sockets to try in the next turn.
    eager: VecDeque<ConnId>,
    /// Sockets whose receive waits for a buffer.
    starved: Vec<ConnId>,
    buffers: Buffers,
    free_buffers: Vec<BufferId>,
    gathers: Gathers,
    ready: Vec<Completion>,
    failures: FailureLog,
}

impl Threads {
    /// A reactor with workers of its own, which are started when they are needed.
    pub fn new(options: Options, memory: FrameMemory) -> io::Result<Threads> {
        // SAFETY: creates a descriptor, touches no memory.
        let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: new and ours alone.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let waker = Waker::new()?;
        let finish = Waker::new()?;
        watch(&epoll, waker.fd(), libc::EPOLLIN as u32, WAKER)?;
        watch(&epoll, finish.fd(), libc::EPOLLIN as u32, WORKERS)?;
        let depth = options.device_depth;
        Ok(Threads {
            epoll,
            workers: Workers::new(depth as usize, finish.clone(), memory.clone()),
            waker,
            finish,
            memory,
            volumes: Vec::new(),
            requests: (0..depth).map(|_| Some(Request::with_capacity(PIECE_BLOCKS))).collect(),
            jobs: Vec::with_capacity(depth as usize),
            finished: Vec::with_capacity(depth as usize),
            sockets: Vec::with_capacity(options.connections_max as usize),
            eager: VecDeque::with_capacity(options.connections_max as usize),
            starved: Vec::with_capacity(options.connections_max as usize),
            buffers: Buffers::new()?,
            free_buffers: (0..BUFFERS as u16).rev().map(BufferId).collect(),
            gathers: Gathers::default(),
            ready: Vec::new(),
            failures: FailureLog::new(),
        })
    }

    fn socket(&mut self, conn: ConnId) -> &mut Socket {
        self.sockets[conn.0 as usize].as_mut().expect("the socket is open")
    }

    /// Tries the socket in the next turn.
    fn try_soon(&mut self, conn: ConnId) {
        if !std::mem::replace(&mut self.socket(conn).queued, true) {
            self.eager.push_back(conn);
        }
    }

    /// Receives and sends as far as possible without blocking.
    fn try_socket(&mut self, conn: ConnId) {
        let Some(socket) = &mut self.sockets[conn.0 as usize] else { return };
        socket.queued = false;
        if socket.writable
            && let Some(gather) = &mut socket.sending
        {
            match transfer(&socket.fd, gather.message(), Direction::Out) {
                Transfer::Later => socket.writable = false,
                done => {
                    self.gathers.give_back(socket.sending.take().expect("just seen"));
                    self.ready.push(match done {
                        Transfer::Bytes(bytes) => Completion::Sent { conn, bytes },
                        _ => Completion::SendFailed { conn },
                    });
                }
            }
        }
        if socket.readable {
            match socket.receiving {
                Some(Receiving::Pooled(most)) => self.try_receive(conn, most),
                Some(Receiving::Direct(_)) => self.try_receive_into(conn),
                Some(Receiving::Starved) | None => {}
            }
        }
    }

    fn try_receive(&mut self, conn: ConnId, most: usize) {
        let Some(&buffer) = self.free_buffers.last() else {
            self.socket(conn).receiving = Some(Receiving::Starved);
            return self.starved.push(conn);
        };
        let mut entry = libc::iovec { iov_base: self.buffers.address(buffer).cast(), iov_len: most.min(BUFFER_BYTES) };
        // SAFETY: a msghdr is plain data for which all zeros means "nothing".
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&mut entry, 1);
        let socket = self.socket(conn);
        let completion = match transfer(&socket.fd, &mut message, Direction::In) {
            Transfer::Later => return socket.readable = false,
            Transfer::Bytes(bytes) => Completion::Received { conn, buffer, len: bytes as usize },
            Transfer::Ended => Completion::ReceiveEnded { conn },
        };
        socket.receiving = None;
        if let Completion::Received { .. } = completion {
            self.free_buffers.pop();
            self.buffers.lend(buffer);
        }
        self.ready.push(completion);
    }

    fn try_receive_into(&mut self, conn: ConnId) {
        let socket = self.socket(conn);
        let Some(Receiving::Direct(mut gather)) = socket.receiving.take() else { return };
        let completion = match transfer(&socket.fd, gather.message(), Direction::In) {
            Transfer::Later => {
                socket.readable = false;
                return socket.receiving = Some(Receiving::Direct(gather));
            }
            Transfer::Bytes(bytes) => Completion::Filled { conn, bytes },
            Transfer::Ended => Completion::ReceiveEnded { conn },
        };
        self.gathers.give_back(gather);
        self.ready.push(completion);
    }

    /// Waits for events and records which sockets have changed.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        for event in poll(&self.epoll, &mut events, timeout)? {
            let (flags, number) = (event.events, event.u64);
            if number == WAKER {
                self.waker.clear();
                self.ready.push(Completion::Woken);
                continue;
            }
            if number == WORKERS {
                self.finish.clear();
                continue;
            }
            let conn = ConnId(number as u32);
            let Some(socket) = self.sockets.get_mut(conn.0 as usize).and_then(Option::as_mut) else { continue };
            let over = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            socket.readable |= flags & (libc::EPOLLIN as u32 | libc::EPOLLRDHUP as u32 | over) != 0;
            socket.writable |= flags & (libc::EPOLLOUT as u32 | over) != 0;
            self.try_soon(conn);
        }
        Ok(())
    }

    /// Takes finished device requests from the workers.
    fn collect_requests(&mut self) {
        self.workers.take_finished(&mut self.finished);
        for job in self.finished.drain(..) {
            let request = job.request;
            let result =
                job.result.map_err(|failure| self.failures.report(request.op, request.volume, request.offset, failure));
            self.requests[job.io.0 as usize] = Some(request);
            self.ready.push(Completion::Io { io: job.io, result });
        }
    }

    fn try_eager(&mut self) {
        for _ in 0..self.eager.len() {
            let Some(conn) = self.eager.pop_front() else { break };
            self.try_socket(conn);
        }
    }

    /// Between two turns the kernel holds no operation of a socket, so the socket is closed at once.
    fn end_socket(&mut self, conn: ConnId, how: libc::c_int) {
        let socket = slot(&mut self.sockets, conn.0).take().expect("the socket is open");
        self.starved.retain(|&other| other != conn);
        self.eager.retain(|&other| other != conn);
        // Closing does not remove it from epoll if there is a copy of the descriptor. It cannot fail: it is in there.
        // SAFETY: a system call on descriptors that we own; it reads no event.
        unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, socket.fd.as_raw_fd(), std::ptr::null_mut())
        };
        // SAFETY: a system call on a descriptor that we own. With shutdown, the peer sees the end even if a child
        // process has inherited a copy of the descriptor.
        unsafe { libc::shutdown(socket.fd.as_raw_fd(), how) };
        self.ready.push(Completion::Closed { conn });
    }
}

impl Reactor for Threads {
    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn open_volume(&mut self, volume: VolumeId, file: File) -> io::Result<()> {
        *slot(&mut self.volumes, volume.0) = Some(Arc::new(file));
        Ok(())
    }

    fn close_volume(&mut self, volume: VolumeId) {
        *slot(&mut self.volumes, volume.0) = None;
    }

    fn submit(&mut self, io: IoId, request: &Io) {
        let Some(file) = slot(&mut self.volumes, request.volume.0).clone() else {
            let result = Err(self.failures.report(request.op, request.volume, request.offset, Failure::NoVolume));
            return self.ready.push(Completion::Io { io, result });
        };
        if self.requests.len() <= io.0 as usize {
            self.requests.resize_with(io.0 as usize + 1, || Some(Request::with_capacity(PIECE_BLOCKS)));
        }
        let mut slot = self.requests[io.0 as usize].take().expect("a request number is used again after completion");
        slot.begin(request, &self.memory);
        self.jobs.push(Job { io, file, request: slot, result: Ok(()) });
    }

    fn open_socket(&mut self, conn: ConnId, fd: OwnedFd) -> io::Result<()> {
        let interest = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        watch(&self.epoll, fd.as_raw_fd(), interest, u64::from(conn.0))?;
        let socket = Socket { fd, receiving: None, sending: None, readable: true, writable: true, queued: false };
        let old = slot(&mut self.sockets, conn.0).replace(socket);
        assert!(old.is_none(), "a slot is used again only after its socket was closed");
        Ok(())
    }

    fn receive_most(&mut self, conn: ConnId, bytes: usize) {
        let old = self.socket(conn).receiving.replace(Receiving::Pooled(bytes));
        assert!(old.is_none(), "one receive at a time");
        self.try_soon(conn);
    }

    fn receive_into(&mut self, conn: ConnId, segments: impl Iterator<Item = Segment>) {
        let gather = self.gathers.incoming(&self.memory, segments);
        let old = self.socket(conn).receiving.replace(Receiving::Direct(gather));
        assert!(old.is_none(), "one receive at a time");
        self.try_soon(conn);
    }

    fn send<'a>(&mut self, conn: ConnId, parts: impl Iterator<Item = Outgoing<'a>>) -> u64 {
        let gather = self.gathers.outgoing(&self.memory, parts);
        let bytes = gather.bytes();
        let old = self.socket(conn).sending.replace(gather);
        assert!(old.is_none(), "one send at a time");
        self.try_soon(conn);
        bytes
    }

    fn unread(&self, conn: ConnId) -> u32 {
        self.sockets[conn.0 as usize].as_ref().map_or(0, |socket| unread(&socket.fd))
    }

    fn close_socket(&mut self, conn: ConnId) {
        self.end_socket(conn, libc::SHUT_RDWR);
    }

    fn leave_socket(&mut self, conn: ConnId) {
        self.end_socket(conn, libc::SHUT_WR);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers.take_back(buffer);
        self.free_buffers.push(buffer);
        for at in 0..self.starved.len() {
            let conn = self.starved[at];
            self.socket(conn).receiving = Some(Receiving::Pooled(BUFFER_BYTES));
            self.try_soon(conn);
        }
        self.starved.clear();
    }

    /// Nothing is pinned here.
    fn unpin(&mut self, _chunk: &Chunk) -> bool {
        true
    }

    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<bool> {
        self.workers.begin(&mut self.jobs);
        self.try_eager();
        self.collect_requests();
        let idle = self.ready.is_empty() && self.eager.is_empty();
        self.wait(if idle { timeout } else { Some(Duration::ZERO) })?;
        self.try_eager();
        self.collect_requests();
        completions.append(&mut self.ready);
        Ok(idle && timeout != Some(Duration::ZERO))
    }
}

fn watch(epoll: &OwnedFd, fd: RawFd, events: u32, number: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: number };
    // SAFETY: reads a structure of ours; both descriptors are open.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
}

/// Waits for events for at most `timeout`. Returns none after a signal.
fn poll<'a>(
    epoll: &OwnedFd,
    events: &'a mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<&'a [libc::epoll_event]> {
    let limit = timeout
        .map(|limit| libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let (list, len) = (events.as_mut_ptr(), events.len() as i32);
    // SAFETY: the kernel fills at most `len` events of ours; the limit is null or lives until the end of the call.
    match check(unsafe { libc::epoll_pwait2(epoll.as_raw_fd(), list, len, limit, std::ptr::null()) }) {
        Ok(count) => Ok(&events[..count as usize]),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(&[]),
        Err(error) => Err(error),
    }
}

fn check(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
