//! Copies between a peer's TLS stream and the disk's thread, in both directions, until both have ended. The peer is a
//! client of ours, as in the words below, or the server of a gateway volume; then requests and replies are exchanged.
//!
//! Work is divided into turns of bounded length; each needs a permit of the tenant (see `mod.rs`). A turn does not
//! block. If it finds nothing to do, its waker is registered with the sockets. Memory of a connection: bytes from the
//! client that the disk's thread has not accepted yet, and encrypted bytes that the client has not accepted yet; of
//! each at most the bytes of a turn.
//!
//! A client can make bytes expensive: a record of 27 bytes updates the keys, and rustls closes the connection only
//! after 32 updates without data between them. Therefore the time of a turn is limited, too. What is not decrypted in
//! it is kept for the next one.
//!
//! End of a connection: if the client ends its side (TLS close_notify, or FIN), this ends the requests. The disk's
//! thread completes them and closes. Its remaining replies are encrypted and sent, followed by close_notify and FIN,
//! and the client has some time to read them before the socket is closed. A client that breaks the connection is
//! disconnected at once.
//!
//! The end of a connection to a server has another meaning: requests that were sent on it can take effect until the
//! server has ended it (`engine/src/upstream`). So the disk's thread sees the end only then, however long that takes,
//! and also after an error in TLS.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustls::Connection;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Bytes that a turn moves in each direction: four TLS records, some 50 µs.
const TURN_BYTES: usize = 64 << 10;
/// A turn stops decrypting after this time, which is several times what its bytes usually take. The time is checked
/// after each 4 KiB, which rustls splits into at most some 150 records.
const DECRYPTING_MAX: Duration = Duration::from_micros(200);
/// While the client does not read, the interval of checks whether the disk's thread has closed.
const HANGUP_CHECK: Duration = Duration::from_secs(1);
/// How long a client may accept none of its last replies; the same as on the disk's thread.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are read and discarded after the last reply: twice a request of the longest payload.
const LINGER_BYTES: u64 = 64 << 20;

thread_local! {
    /// The buffer of a turn.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; TURN_BYTES]);
}

/// See the module.
#[derive(Debug)]
pub struct Pump<S> {
    client: S,
    tls: Connection,
    disk: UnixStream,
    /// Received, and kept for the next turn; usually empty.
    received: Vec<u8>,
    /// Decrypted, and not yet accepted by the disk's thread.
    requests: Vec<u8>,
    requests_taken: usize,
    requests_end: RequestsEnd,
    /// The disk's thread has closed.
    replies_ended: bool,
    /// Bytes written to the client.
    written: u64,
}

/// The progress of ending the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestsEnd {
    /// More requests may come.
    Open,
    /// The client has ended its side; the disk's thread is told after the last request.
    Received,
    /// The disk's thread was told, or has closed.
    Told,
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// Bytes were moved; there may be more.
    Moved,
    /// Nothing can be moved until a socket wakes the task.
    Blocked,
    /// Both directions have ended.
    Over,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pump<S> {
    /// A pump between a client whose TLS handshake is complete and the other end of the disk thread's socket.
    pub fn new(client: S, tls: impl Into<Connection>, disk: UnixStream) -> io::Result<Pump<S>> {
        let mut tls = tls.into();
        // No limit is needed: a turn encrypts only when everything before was sent.
        tls.set_buffer_limit(None);
        let (received, requests, requests_end) = (Vec::new(), Vec::new(), RequestsEnd::Open);
        let mut pump = Pump {
            client,
            tls,
            disk,
            received,
            requests,
            requests_taken: 0,
            requests_end,
            replies_ended: false,
            written: 0,
        };
        // Bytes that the client has sent after the handshake.
        pump.take_decrypted()?;
        Ok(pump)
    }

    /// Runs the pump to its end. `sent` is dropped when everything for the client was sent. An error means that the
    /// client violated the TLS protocol.
    pub async fn run<T>(mut self, gate: Arc<Semaphore>, sent: T) -> io::Result<()> {
        let result = self.pump(&gate).await;
        if let Err(error) = &result {
            // Sends an alert, if there is one; the client may have disconnected.
            let _ = poll_fn(|cx| Poll::Ready(self.send(cx))).await;
            return if error.kind() == ErrorKind::InvalidData { result } else { Ok(()) };
        }
        drop((self.disk, sent));
        if self.client.shutdown().await.is_ok() {
            // Closing with unread bytes would reset the connection, and the last replies would be lost.
            let mut rest = self.client.take(LINGER_BYTES);
            let discard = async { while matches!(rest.read_buf(&mut Vec::with_capacity(4096)).await, Ok(1..)) {} };
            let _ = timeout(FINISH_TIMEOUT, discard).await;
        }
        Ok(())
    }

    /// Runs the pump to a server to its end, which is when the server has ended the connection. `broken` is told of a
    /// violation of the TLS protocol, refusals of our certificate among them.
    pub async fn run_to_server(mut self, gate: Arc<Semaphore>, broken: impl FnOnce(&io::Error)) {
        if let Err(error) = self.pump(&gate).await {
            if error.kind() == ErrorKind::InvalidData {
                broken(&error);
            }
            let _ = poll_fn(|cx| Poll::Ready(self.send(cx))).await;
        }
        // Nothing more is sent. What the server still sends is of no interest, but its end is.
        let _ = self.client.shutdown().await;
        let mut dropped = vec![0; TURN_BYTES];
        while matches!(self.client.read(&mut dropped).await, Ok(1..)) {}
    }

    /// Whether the peer is the server of a gateway volume.
    fn is_to_server(&self) -> bool {
        matches!(self.tls, Connection::Client(_))
    }

    async fn pump(&mut self, gate: &Semaphore) -> io::Result<()> {
        let (mut checked, mut progress) = (Instant::now(), (self.written, Instant::now()));
        loop {
            let turn = {
                let _permit = gate.acquire().await.expect("it is never closed");
                poll_fn(|cx| Poll::Ready(SCRATCH.with_borrow_mut(|scratch| self.turn(cx, scratch)))).await?
            };
            if turn == Turn::Blocked && self.requests.is_empty() {
                // An idle connection keeps no memory.
                self.requests = Vec::new();
            }
            match turn {
                Turn::Over => return Ok(()),
                Turn::Moved => tokio::task::yield_now().await,
                Turn::Blocked if !self.tls.wants_write() => woken().await,
                Turn::Blocked => {
                    // The client does not read its replies, so the end of the replies is not noticed without this
                    // check.
                    let _ = timeout(HANGUP_CHECK, woken()).await;
                    let now = Instant::now();
                    if self.written != progress.0 {
                        progress = (self.written, now);
                    }
                    if now - checked >= HANGUP_CHECK {
                        checked = now;
                        // A server that is stopped may continue, and only its end means something.
                        let is_over = match self.is_to_server() {
                            true => self.requests_end == RequestsEnd::Told,
                            false => self.replies_ended || is_hung_up(&self.disk),
                        };
                        if now - progress.1 >= FINISH_TIMEOUT && is_over {
                            return Err(ErrorKind::TimedOut.into());
                        }
                    }
                }
            }
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> io::Result<Turn> {
        let requests = self.move_requests(cx, scratch)?;
        Ok(match self.move_replies(cx, scratch)? {
            Turn::Blocked => requests,
            other => other,
        })
    }

    /// Moves bytes from the client to the disk's thread.
    fn move_requests(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> io::Result<Turn> {
        if !self.pass_on(cx) || self.requests_end != RequestsEnd::Open || self.replies_ended {
            return Ok(Turn::Blocked);
        }
        if !self.received.is_empty() {
            let received = std::mem::take(&mut self.received);
            self.decrypt(&received)?;
            self.pass_on(cx);
            return Ok(Turn::Moved);
        }
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(&mut self.client).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(Turn::Blocked),
            Poll::Ready(received) => received?,
        }
        match buffer.filled() {
            [] => self.requests_end = RequestsEnd::Received,
            bytes => self.decrypt(bytes)?,
        }
        self.pass_on(cx);
        Ok(Turn::Moved)
    }

    /// Decrypts within the time limit of a turn, and keeps the remaining bytes.
    fn decrypt(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let started = Instant::now();
        while !bytes.is_empty() && self.requests_end == RequestsEnd::Open {
            if started.elapsed() >= DECRYPTING_MAX {
                self.received = bytes.to_vec();
                break;
            }
            if self.tls.read_tls(&mut bytes)? == 0 {
                break;
            }
            self.take_decrypted()?;
        }
        Ok(())
    }

    fn take_decrypted(&mut self) -> io::Result<()> {
        let state = self.tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let start = self.requests.len();
        self.requests.resize(start + state.plaintext_bytes_to_read(), 0);
        self.tls.reader().read_exact(&mut self.requests[start..])?;
        if state.peer_has_closed() {
            self.requests_end = RequestsEnd::Received;
        }
        Ok(())
    }

    /// Passes decrypted bytes to the disk's thread. Returns whether it accepted all.
    fn pass_on(&mut self, cx: &mut Context<'_>) -> bool {
        while self.requests_taken < self.requests.len() {
            match Pin::new(&mut self.disk).poll_write(cx, &self.requests[self.requests_taken..]) {
                Poll::Pending => return false,
                Poll::Ready(Ok(bytes)) => self.requests_taken += bytes,
                Poll::Ready(Err(_)) => {
                    // It has closed. What it sent before is still delivered.
                    self.requests_end = RequestsEnd::Told;
                    break;
                }
            }
        }
        self.requests.clear();
        self.requests_taken = 0;
        if self.requests_end == RequestsEnd::Received {
            // On a Unix socket this completes at once.
            let _ = Pin::new(&mut self.disk).poll_shutdown(cx);
            self.requests_end = RequestsEnd::Told;
        }
        true
    }

    /// Moves bytes from the disk's thread to the client.
    fn move_replies(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> io::Result<Turn> {
        if !self.send(cx)? {
            return Ok(Turn::Blocked);
        }
        if self.replies_ended {
            return Ok(Turn::Over);
        }
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(&mut self.disk).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(Turn::Blocked),
            // It has closed without reading all requests. What it sent before has been read.
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::ConnectionReset => {}
            Poll::Ready(received) => received?,
        }
        match buffer.filled() {
            [] => {
                self.replies_ended = true;
                self.tls.send_close_notify();
            }
            bytes => self.tls.writer().write_all(bytes)?,
        }
        self.send(cx)?;
        Ok(Turn::Moved)
    }

    /// Sends encrypted bytes. Returns whether the client accepted all.
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Polled { socket: &mut self.client, cx }) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.written += bytes as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Completes when the task is woken after the first poll.
async fn woken() {
    let mut polled = false;
    poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Whether the other end is closed, even if there are bytes to read.
fn is_hung_up(socket: &UnixStream) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let found = rustix::event::poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
    found.is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Adapts a socket for rustls, which writes without waiting.
struct Polled<'a, 'b, S> {
    socket: &'a mut S,
    cx: &'a mut Context<'b>,
}

impl<S> Polled<'_, '_, S> {
    fn now(polled: Poll<io::Result<usize>>) -> io::Result<usize> {
        match polled {
            Poll::Ready(result) => result,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl<S: AsyncWrite + Unpin> Write for Polled<'_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::now(Pin::new(&mut *self.socket).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Self::now(Pin::new(&mut *self.socket).poll_write_vectored(self.cx, parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub mod tests;
