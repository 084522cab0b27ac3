//! The reactor on io_uring: one ring, and one system call per pass for device, sockets and waiting.
//!
//! ```text
//!   queue entries ──► submission ring ─┐                       ┌─► Completion
//!                     (backlog if full)├─ io_uring_enter(wait) ┤
//!   free buffers ───► buffer ring ─────┘                       └─► the remainder of short requests: queued again
//! ```
//!
//! Each entry names its slot in `user_data`. A slot is reused only after its completion, so no generation is needed.
//! What an entry points to (lists, message headers, frames, buffers) is kept in its slot until then.
//!
//! A send is first tried with `sendmsg` and goes through the ring only if the socket is full. Through the ring, the
//! completion of a reply would at once end the wait for the next request: two enters for each request of a client at
//! depth 1, instead of one send and one enter. With `sendmsg` the engine also knows at once which frames are free.
//! (Waiting for two completions with the kernel's minimum wait set a timer for each request: 37 µs instead of 13 on a
//! virtual machine. Without the minimum wait, replies that were sent in part would wait for another completion that
//! need not come.)
//!
//! Downside of the ring: where a file system blocks inside a request, the kernel uses a worker thread, which is not
//! visible here.

mod files;
mod pinned;
mod polling;
mod provided;
mod ring;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use engine::Outgoing;
use engine::disk::{Io, Op, Segment};
use engine::ids::{ConnId, IoId, VolumeId};
use engine::units::{Nanos, PIECE_BLOCKS};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{cqueue, opcode, squeue};

use self::files::{Files, Target};
use self::pinned::Pinned;
use self::polling::Polling;
use self::provided::{GROUP, Provided};
use self::ring::Ring;
use super::buffers::BUFFER_BYTES;
use super::errors::{Failure, FailureLog};
use super::gather::{Gather, Gathers, Receiving};
use super::request::{Progress, Request};
use super::transfer::{Direction, Transfer, transfer, unread};
use super::{BufferId, Completion, Options, Reactor, Waker, clock, slot};
use crate::frames::{Chunk, FrameMemory};

/// How long `drop` waits for requests in the kernel. Devices answer within their own timeouts (30 s for SCSI).
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// How long the remainder of a payload is polled for before a receive is submitted to the ring: the time that a
/// sleeping virtual processor takes to wake up (30 to 50 µs), so that polling never costs more than it saves. Whether
/// it is polled for: [`Polling`].
const LOOK_NS: Nanos = 50_000;

/// Bytes of a receive that waits for all of them: 8 s for a sender with 16 KiB/s, which has 10 s until the engine hears
/// of some.
const WAITED_BYTES: u64 = 128 << 10;
/// A yield that takes longer than this has switched to another thread: without that, it takes less than 1 µs.
const SWITCH_NS: Nanos = 4_000;

/// Copying a reply of this many bytes takes longer (10 µs) than the system call that submits the queued device
/// requests.
const COPY_BYTES: u64 = 16 << 10;

/// The kind of an operation: the upper half of `user_data`. The lower half is the slot.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Tag {
    Io,
    Receive,
    Send,
    Wake,
    /// Its completion says nothing: that of the cancelled operation does.
    Cancel,
}

impl Tag {
    fn with(self, index: u32) -> u64 {
        (self as u64) << 32 | u64::from(index)
    }

    fn split(user_data: u64) -> (Tag, u32) {
        let tag = match user_data >> 32 {
            0 => Tag::Io,
            1 => Tag::Receive,
            2 => Tag::Send,
            3 => Tag::Wake,
            _ => Tag::Cancel,
        };
        (tag, user_data as u32)
    }
}

struct Volume {
    /// Kept open for `target`.
    _file: File,
    target: Target,
}

struct Socket {
    fd: OwnedFd,
    target: Target,
    receiving: Option<Receiving>,
    sending: Option<Box<Gather>>,
    closing: bool,
    polling: Polling,
}

/// See the module.
pub struct Uring {
    ring: Ring,
    files: Files,
    pinned: Pinned,
    provided: Provided,
    memory: FrameMemory,
    waker: Waker,
    volumes: Vec<Option<Volume>>,
    requests: Vec<Request>,
    sockets: Vec<Option<Socket>>,
    gathers: Gathers,
    /// Sockets whose receive waits for a buffer.
    starved: Vec<ConnId>,
    /// Sockets whose payload is polled for, each with the end of polling.
    looking: Vec<(ConnId, Nanos)>,
    /// Completions that did not come through the ring.
    ready: Vec<Completion>,
    failures: FailureLog,
    /// Whether the last turn did not enter the ring.
    put_off: bool,
    /// Whether device requests are queued that the kernel does not have yet.
    queued: bool,
    /// Entries that the kernel has not completed, including the one that waits for the waker.
    in_flight: usize,
}

impl Uring {
    /// A reactor on its own ring. Only the thread that created it may use it.
    pub fn new(options: Options, memory: FrameMemory) -> io::Result<Uring> {
        let ring = Ring::new()?;
        let files = Files::new(&ring);
        let pinned = Pinned::new(&ring, &memory);
        let provided = Provided::new(&ring)?;
        let requests = (0..options.device_depth).map(|_| Request::with_capacity(PIECE_BLOCKS)).collect();
        let mut uring = Uring {
            ring,
            files,
            pinned,
            provided,
            memory,
            waker: Waker::new()?,
            volumes: Vec::new(),
            requests,
            sockets: Vec::with_capacity(options.connections_max as usize),
            gathers: Gathers::default(),
            starved: Vec::with_capacity(options.connections_max as usize),
            looking: Vec::with_capacity(options.connections_max as usize),
            ready: Vec::new(),
            failures: FailureLog::new(),
            put_off: false,
            queued: false,
            in_flight: 0,
        };
        uring.listen_for_wakes();
        Ok(uring)
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.in_flight += 1;
        // SAFETY: every caller builds entries from memory in its slot (request lists, message headers, buffers of the
        // pool), which is neither moved nor dropped until the completion. Frames and buffers are mapped as long as
        // `self` exists, and `drop` waits for the kernel.
        unsafe { self.ring.push(entry) }
    }

    fn listen_for_wakes(&mut self) {
        let entry = opcode::PollAdd::new(Fd(self.waker.fd()), libc::POLLIN as u32).build();
        self.push(entry.user_data(Tag::Wake.with(0)));
    }

    /// Queues an entry for the remaining range of a request.
    fn push_request(&mut self, io: IoId) {
        let request = &self.requests[io.0 as usize];
        let volume = self.volumes.get(request.volume.0 as usize).and_then(Option::as_ref);
        let Some(volume) = volume else {
            let result = Err(self.failures.report(request.op, request.volume, request.offset, Failure::NoVolume));
            self.ready.push(Completion::Io { io, result });
            return;
        };
        let fixed = match request.entries() {
            [one] => self.pinned.find(&self.ring, one),
            _ => None,
        };
        let entry = device_entry(volume.target, request, fixed);
        self.push(entry.user_data(Tag::Io.with(io.0)));
        self.queued = true;
    }

    fn push_receive(&mut self, conn: ConnId, most: usize) {
        let entry = {
            let target = self.socket(conn).target;
            let entry = opcode::Recv::new(target.fd, std::ptr::null_mut(), most as u32).buf_group(GROUP).build();
            entry.flags(target.flags | squeue::Flags::BUFFER_SELECT)
        };
        self.push(entry.user_data(Tag::Receive.with(conn.0)));
    }

    fn push_receive_into(&mut self, conn: ConnId, mut gather: Box<Gather>) {
        gather.shorten(WAITED_BYTES);
        let message = gather.message();
        let socket = self.socket(conn);
        socket.receiving = Some(Receiving::Direct(gather));
        // With MSG_WAITALL a piece takes few completions, not one per packet.
        let flags = libc::MSG_WAITALL as u32;
        let entry = opcode::RecvMsg::new(socket.target.fd, message).flags(flags).build().flags(socket.target.flags);
        self.push(entry.user_data(Tag::Receive.with(conn.0)));
    }

    fn push_send(&mut self, conn: ConnId, mut gather: Box<Gather>) {
        let message = gather.message();
        let socket = self.socket(conn);
        socket.sending = Some(gather);
        let flags = libc::MSG_NOSIGNAL as u32;
        let entry = opcode::SendMsg::new(socket.target.fd, message).flags(flags).build().flags(socket.target.flags);
        self.push(entry.user_data(Tag::Send.with(conn.0)));
    }

    fn socket(&mut self, conn: ConnId) -> &mut Socket {
        self.sockets[conn.0 as usize].as_mut().expect("the socket is open")
    }

    fn complete(&mut self, entry: &cqueue::Entry, completions: &mut Vec<Completion>) {
        self.in_flight -= 1;
        let (tag, index) = Tag::split(entry.user_data());
        match tag {
            Tag::Io => self.io_done(IoId(index), entry.result(), completions),
            Tag::Receive => self.receive_done(ConnId(index), entry, completions),
            Tag::Send => self.send_done(ConnId(index), entry.result(), completions),
            Tag::Wake => {
                self.waker.clear();
                self.listen_for_wakes();
                completions.push(Completion::Woken);
            }
            Tag::Cancel => {}
        }
    }

    fn io_done(&mut self, io: IoId, answer: i32, completions: &mut Vec<Completion>) {
        let request = &mut self.requests[io.0 as usize];
        match request.advance(i64::from(answer)) {
            Progress::More => self.push_request(io),
            Progress::Done(result) => {
                let (op, volume, offset) = (request.op, request.volume, request.offset);
                let result = result.map_err(|failure| self.failures.report(op, volume, offset, failure));
                completions.push(Completion::Io { io, result });
            }
        }
    }

    fn receive_done(&mut self, conn: ConnId, entry: &cqueue::Entry, completions: &mut Vec<Completion>) {
        let answer = entry.result();
        let buffer = cqueue::buffer_select(entry.flags()).map(BufferId);
        if let Some(buffer) = buffer {
            self.provided.lend(buffer);
        }
        let receiving = self.socket(conn).receiving.take();
        let closing = self.socket(conn).closing;
        match (receiving, answer) {
            _ if closing => self.close_if_idle(conn),
            (Some(Receiving::Pooled(_)), n) if n > 0 => {
                let buffer = buffer.expect("bytes received into the pool are in a buffer");
                completions.push(Completion::Received { conn, buffer, len: n as usize });
                return;
            }
            // Buffers may have been returned since the kernel found none.
            (Some(Receiving::Pooled(most)), n) if n == -libc::ENOBUFS && self.provided.some_free() => {
                self.receive_most(conn, most);
            }
            (Some(Receiving::Pooled(_)), n) if n == -libc::ENOBUFS => {
                self.socket(conn).receiving = Some(Receiving::Starved);
                self.starved.push(conn);
            }
            (Some(Receiving::Pooled(most)), n) if is_transient(n) => self.receive_most(conn, most),
            (Some(Receiving::Direct(gather)), n) if is_transient(n) => self.push_receive_into(conn, gather),
            (Some(Receiving::Direct(gather)), n) => {
                self.gathers.give_back(gather);
                completions.push(match n {
                    1.. => Completion::Filled { conn, bytes: n as u64 },
                    _ => Completion::ReceiveEnded { conn },
                });
            }
            _ => completions.push(Completion::ReceiveEnded { conn }),
        }
        if let Some(buffer) = buffer {
            self.release(buffer);
        }
    }

    fn send_done(&mut self, conn: ConnId, answer: i32, completions: &mut Vec<Completion>) {
        let socket = self.socket(conn);
        let gather = socket.sending.take().expect("a send completes once");
        if socket.closing {
            self.gathers.give_back(gather);
            return self.close_if_idle(conn);
        }
        if is_transient(answer) {
            return self.push_send(conn, gather);
        }
        self.gathers.give_back(gather);
        completions.push(match answer {
            1.. => Completion::Sent { conn, bytes: answer as u64 },
            _ => Completion::SendFailed { conn },
        });
    }

    /// Drops what has not reached the kernel, and the completions that nobody waits for.
    fn begin_close(&mut self, conn: ConnId) {
        self.ready.retain(|completion| match *completion {
            Completion::Sent { conn: other, .. } | Completion::SendFailed { conn: other } => other != conn,
            _ => true,
        });
        let socket = self.socket(conn);
        socket.closing = true;
        if matches!(socket.receiving, Some(Receiving::Starved)) {
            socket.receiving = None;
            self.starved.retain(|&other| other != conn);
        }
        if let Some(at) = self.looking.iter().position(|&(other, _)| other == conn) {
            self.looking.swap_remove(at);
            if let Some(Receiving::Direct(gather)) = self.socket(conn).receiving.take() {
                self.gathers.give_back(gather);
            }
        }
    }

    /// Removes a closing socket once the kernel has no operation of it.
    fn close_if_idle(&mut self, conn: ConnId) {
        let place = &mut self.sockets[conn.0 as usize];
        if let Some(socket) = place.take_if(|socket| socket.receiving.is_none() && socket.sending.is_none()) {
            self.forget(socket.target);
            self.ready.push(Completion::Closed { conn });
        }
    }

    fn forget(&mut self, target: Target) {
        if let Err(error) = self.files.unregister(&self.ring, target) {
            tracing::warn!(%error, "a file stays registered with the ring");
        }
    }

    /// Receives the payloads that are polled for. At the end of polling, a receive is submitted to the ring.
    fn look(&mut self) {
        let mut at = 0;
        while let Some(&(conn, until)) = self.looking.get(at) {
            let socket = self.sockets[conn.0 as usize].as_mut().expect("a socket that is looked at is open");
            let Some(Receiving::Direct(mut gather)) = socket.receiving.take() else { unreachable!("it is looked for") };
            match transfer(&socket.fd, gather.message(), Direction::In) {
                Transfer::Later if until > 0 && clock() < until => {
                    socket.receiving = Some(Receiving::Direct(gather));
                    socket.polling.waits = true;
                    at += 1;
                    continue;
                }
                Transfer::Later => {
                    if until > 0 {
                        socket.polling.ends(false);
                    }
                    self.push_receive_into(conn, gather);
                }
                Transfer::Bytes(bytes) => {
                    socket.polling.ends(true);
                    self.gathers.give_back(gather);
                    self.ready.push(Completion::Filled { conn, bytes });
                }
                Transfer::Ended => {
                    self.gathers.give_back(gather);
                    self.ready.push(Completion::ReceiveEnded { conn });
                }
            }
            self.looking.swap_remove(at);
        }
        if self.ready.is_empty() && !self.looking.is_empty() {
            // The sender may need this processor.
            let before = clock();
            std::thread::yield_now();
            if clock() - before >= SWITCH_NS {
                // Another thread has run here: the processor does not go to sleep, so polling saves nothing.
                self.looking.iter_mut().for_each(|(_, until)| *until = 0);
            }
        }
    }

    fn collect(&mut self, completions: &mut Vec<Completion>) {
        loop {
            let mut some = false;
            for entry in self.ring.collect() {
                some = true;
                self.complete(&entry, completions);
            }
            if !some {
                break;
            }
        }
        completions.append(&mut self.ready);
    }
}

impl Reactor for Uring {
    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn open_volume(&mut self, volume: VolumeId, file: File) -> io::Result<()> {
        // Not registered: the ring of a killed server keeps all registered files until its last request has ended,
        // whereas a request keeps only its own file. Thus a successor can lock a volume (store/data.rs) once the
        // volume's own requests have ended.
        let target = Target::plain(file.as_raw_fd());
        *slot(&mut self.volumes, volume.0) = Some(Volume { _file: file, target });
        Ok(())
    }

    fn close_volume(&mut self, volume: VolumeId) {
        *slot(&mut self.volumes, volume.0) = None;
    }

    fn submit(&mut self, io: IoId, request: &Io) {
        let index = io.0 as usize;
        if index >= self.requests.len() {
            self.requests.resize_with(index + 1, || Request::with_capacity(PIECE_BLOCKS));
        }
        self.requests[index].begin(request, &self.memory);
        self.push_request(io);
    }

    fn open_socket(&mut self, conn: ConnId, fd: OwnedFd) -> io::Result<()> {
        let target = self.files.register(&self.ring, fd.as_raw_fd());
        let socket = Socket { fd, target, receiving: None, sending: None, closing: false, polling: Polling::default() };
        let old = slot(&mut self.sockets, conn.0).replace(socket);
        assert!(old.is_none(), "a slot is used again only after its socket was closed");
        Ok(())
    }

    fn receive_most(&mut self, conn: ConnId, bytes: usize) {
        let old = self.socket(conn).receiving.replace(Receiving::Pooled(bytes));
        assert!(old.is_none(), "one receive at a time");
        self.push_receive(conn, bytes);
    }

    fn receive_into(&mut self, conn: ConnId, segments: impl Iterator<Item = Segment>) {
        assert!(self.socket(conn).receiving.is_none(), "one receive at a time");
        let gather = self.gathers.incoming(&self.memory, segments);
        let socket = self.socket(conn);
        socket.receiving = Some(Receiving::Direct(gather));
        let until = if socket.polling.begins() { clock() + LOOK_NS } else { 0 };
        self.looking.push((conn, until));
    }

    fn send<'a>(&mut self, conn: ConnId, parts: impl Iterator<Item = Outgoing<'a>>) -> u64 {
        assert!(self.socket(conn).sending.is_none(), "one send at a time");
        let mut gather = self.gathers.outgoing(&self.memory, parts);
        let all = gather.bytes();
        if self.queued && all >= COPY_BYTES {
            // A persistent error occurs again in the next turn, which reports it.
            self.queued = self.ring.enter(Some(Duration::ZERO)).is_err();
        }
        let completion = match transfer(&self.socket(conn).fd, gather.message(), Direction::Out) {
            Transfer::Later => {
                self.push_send(conn, gather);
                return all;
            }
            Transfer::Bytes(bytes) => Completion::Sent { conn, bytes },
            Transfer::Ended => Completion::SendFailed { conn },
        };
        self.gathers.give_back(gather);
        self.ready.push(completion);
        all
    }

    fn unread(&self, conn: ConnId) -> u32 {
        self.sockets[conn.0 as usize].as_ref().map_or(0, |socket| unread(&socket.fd))
    }

    fn close_socket(&mut self, conn: ConnId) {
        self.begin_close(conn);
        // SAFETY: a system call on a descriptor that we own. It ends the receive and the send in the kernel. It fails
        // on a socket whose peer has disconnected, where both have ended already.
        unsafe { libc::shutdown(self.socket(conn).fd.as_raw_fd(), libc::SHUT_RDWR) };
        self.close_if_idle(conn);
    }

    fn leave_socket(&mut self, conn: ConnId) {
        self.begin_close(conn);
        let socket = self.socket(conn);
        // SAFETY: a system call on a descriptor that we own.
        unsafe { libc::shutdown(socket.fd.as_raw_fd(), libc::SHUT_WR) };
        let pending = [(socket.receiving.is_some(), Tag::Receive), (socket.sending.is_some(), Tag::Send)];
        for (_, tag) in pending.into_iter().filter(|&(is_pending, _)| is_pending) {
            let entry = opcode::AsyncCancel::new(tag.with(conn.0)).build();
            self.push(entry.user_data(Tag::Cancel.with(conn.0)));
        }
        self.close_if_idle(conn);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.provided.bytes(buffer)
    }

    fn release(&mut self, buffer: BufferId) {
        self.provided.take_back(buffer);
        // All of them are tried again: only the kernel knows which one has bytes.
        for at in 0..self.starved.len() {
            let conn = self.starved[at];
            self.socket(conn).receiving = Some(Receiving::Pooled(BUFFER_BYTES));
            self.push_receive(conn, BUFFER_BYTES);
        }
        self.starved.clear();
    }

    fn unpin(&mut self, chunk: &Chunk) -> bool {
        self.pinned.forget(&self.ring, chunk)
    }

    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<bool> {
        // Handling the present completions may queue more entries. The ring is entered for all of them in the next
        // turn, which does not postpone this again.
        self.look();
        self.put_off = !self.ready.is_empty() && !self.put_off;
        let mut slept = false;
        if !self.put_off {
            let wait = self.ready.is_empty() && self.looking.is_empty();
            slept = self.ring.enter(if wait { timeout } else { Some(Duration::ZERO) })?;
            self.queued = false;
        }
        self.collect(completions);
        Ok(slept)
    }
}

impl Drop for Uring {
    /// Waits until the kernel has finished with memory of this reactor, before that memory is freed.
    fn drop(&mut self) {
        for index in 0..self.sockets.len() as u32 {
            if self.sockets[index as usize].as_ref().is_some_and(|socket| !socket.closing) {
                self.close_socket(ConnId(index));
            }
        }
        let start = Instant::now();
        let mut rest = Vec::new();
        // One entry is always in the kernel: the poll of the waker, which points to no memory.
        while self.in_flight > 1 && start.elapsed() < DRAIN_MAX {
            rest.clear();
            if self.turn(Some(Duration::from_millis(100)), &mut rest).is_err() {
                break;
            }
        }
        if self.in_flight > 1 {
            // Continuing would free memory that the kernel may still write to.
            tracing::error!(requests = self.in_flight - 1, "device requests do not complete: aborting");
            std::process::abort();
        }
    }
}

/// Whether a socket operation has to be repeated.
fn is_transient(answer: i32) -> bool {
    matches!(-answer, libc::EINTR | libc::EAGAIN)
}

/// The entry for the remaining range of a device request. `fixed` is the registered buffer that holds all of its
/// memory.
fn device_entry(target: Target, request: &Request, fixed: Option<u16>) -> squeue::Entry {
    let entries = request.entries();
    let (fd, list, len, offset) = (target.fd, entries.as_ptr(), entries.len() as u32, request.offset);
    let fallocate = |mode| {
        let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
        opcode::Fallocate::new(fd, request.left).offset(offset).mode(mode).build()
    };
    let durability = |durable| if durable { libc::RWF_DSYNC } else { 0 };
    let entry = match (request.op, entries) {
        (Op::Read, [one]) if let Some(fixed) = fixed => {
            opcode::ReadFixed::new(fd, one.iov_base.cast(), one.iov_len as u32, fixed).offset(offset).build()
        }
        (Op::Write { durable }, [one]) if let Some(fixed) = fixed => {
            opcode::WriteFixed::new(fd, one.iov_base.cast(), one.iov_len as u32, fixed)
                .offset(offset)
                .rw_flags(durability(durable))
                .build()
        }
        (Op::Read, [one]) => opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(offset).build(),
        (Op::Read, _) => opcode::Readv::new(fd, list, len).offset(offset).build(),
        (Op::Write { durable }, _) => {
            let flags = durability(durable);
            match entries {
                [one] => opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
                _ => opcode::Writev::new(fd, list, len).offset(offset).rw_flags(flags).build(),
            }
        }
        (Op::Flush, _) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        (Op::Zero, _) => fallocate(libc::FALLOC_FL_ZERO_RANGE),
        (Op::Punch, _) => fallocate(libc::FALLOC_FL_PUNCH_HOLE),
    };
    entry.flags(target.flags)
}
