//! A session with an export outside of a disk's thread: for what happens before a volume is opened.
//!
//! Requests are made here one call at a time. [`Reader::scan`] reads the log of an off-load store at streaming rate:
//! the scan names one read after the other, and they nearly always follow one another, so the next ones are requested
//! before they are named. What is not named after all is dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::nbd::wire::{command, command_flag, export_flag};
use engine::nbd::{Asked, Broken, Claim, Form, Kind, Opened, Opening, Part, RawHeader, Replies, Wanted};
use engine::offload::{Recovered, Scan, Unusable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{CONNECT_TIMEOUT, DialError, Stream, Target, attached, connect, shake};
use crate::tls::{self, Encrypted};

/// Reads that are outstanding: several, so that the server always has the next one, and so few that 2 MiB of memory
/// are enough.
const OUTSTANDING: usize = 4;
/// A server that does not answer a read for so long is given up: longer than a disk with others on it takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of headers that are received at once.
const HEAD_BYTES: usize = 4096;

/// Why an export was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the connection was lost: {0}")]
    Io(#[from] io::Error),
    #[error("its server violates the protocol: {0}")]
    Broken(#[from] Broken),
    #[error("its server fails a {request} at {offset}: {}", in_words(*errno))]
    Refused { request: &'static str, offset: u64, errno: u32 },
    #[error("its server does not answer")]
    Timeout,
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// An error number of the NBD protocol, as the manuals of servers call it.
fn in_words(errno: u32) -> String {
    let (text, name) = match errno {
        1 => ("operation not permitted", "EPERM"),
        5 => ("input/output error", "EIO"),
        12 => ("out of memory", "ENOMEM"),
        22 => ("invalid argument", "EINVAL"),
        28 => ("no space left", "ENOSPC"),
        75 => ("value too large", "EOVERFLOW"),
        95 => ("not supported", "ENOTSUP"),
        108 => ("server is shutting down", "ESHUTDOWN"),
        _ => return format!("error {errno}"),
    };
    format!("{text} ({name})")
}

/// A session with an export.
pub struct Reader {
    stream: Box<dyn Stream>,
    /// What was negotiated.
    pub opened: Opened,
    replies: Replies,
    input: Vec<u8>,
    cookie: u64,
    /// Outstanding requests by cookie, in order, each with what has arrived of it.
    outstanding: VecDeque<Request>,
}

struct Request {
    cookie: u64,
    asked: Asked,
    bytes: Vec<u8>,
    error: Option<u32>,
    is_done: bool,
}

impl Reader {
    /// Opens an export. A server of ours grants the session `claim`: earlier ones of the same client have ended then.
    pub async fn open(target: &Target, claim: Claim) -> Result<Reader, ReadError> {
        let Encrypted { socket, .. } = connect(target, &Arc::new(Semaphore::new(tls::threads_per_tenant()))).await?;
        let mut stream = attached(target, socket)?;
        let wanted =
            Wanted { name: target.uri.name.clone(), form: Form::Extended, session: Some(claim), ..Wanted::default() };
        let mut opening = if target.tls.is_some() { Opening::encrypted(wanted) } else { Opening::new(wanted) };
        let shaken = shake(target, &mut stream, &mut opening, |opening| opening.opened().is_some());
        let late = |_| DialError::Timeout(Box::new(target.uri.clone()));
        timeout(CONNECT_TIMEOUT, shaken).await.map_err(late)??;
        let opened = opening.opened().expect("just seen");
        // The end of a handshake without reply.
        stream.write_all(&opening.take_outgoing()).await?;
        let replies = Replies::new(opened.form, None);
        Ok(Reader { stream, opened, replies, input: Vec::new(), cookie: 0, outstanding: VecDeque::new() })
    }

    /// Reads a range.
    pub async fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, ReadError> {
        self.ask(Kind::Read, offset, len, &[]).await?;
        self.answer().await
    }

    /// Writes a range durably.
    pub async fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ReadError> {
        self.ask(Kind::Write, offset, bytes.len() as u64, bytes).await?;
        self.answer().await?;
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), ReadError> {
        if self.opened.has(export_flag::SEND_FLUSH) {
            self.ask(Kind::Flush, 0, 0, &[]).await?;
            self.answer().await?;
        }
        Ok(())
    }

    /// Reads the log of a store. `scanned` is the number of bytes so far. What was read is durable then: of writes that
    /// an earlier process did not see answered, the store's disk may have had it in its cache only.
    pub async fn scan(&mut self, mut scan: Scan, scanned: &AtomicU64) -> Result<Recovered, ReadError> {
        let Some((_, superblocks)) = scan.wants() else { return Ok(scan.finish()?) };
        let bytes = self.read(0, superblocks).await?;
        scan.read(&bytes)?;
        let log_end = self.opened.size;
        let mut ahead: VecDeque<(u64, u64)> = VecDeque::new();
        while let Some(wanted) = scan.wants() {
            if ahead.front() != Some(&wanted) {
                for _ in ahead.drain(..) {
                    self.answer().await?;
                }
            }
            let mut next = ahead.back().map_or(wanted, |&last| following(last, superblocks, log_end));
            while ahead.len() < OUTSTANDING {
                self.ask(Kind::Read, next.0, next.1, &[]).await?;
                ahead.push_back(next);
                next = following(next, superblocks, log_end);
                if next.1 == 0 || ahead.contains(&next) {
                    break;
                }
            }
            ahead.pop_front();
            let bytes = self.answer().await?;
            scan.read(&bytes)?;
            scanned.store(scan.scanned_bytes(), Ordering::Relaxed);
        }
        for _ in ahead.drain(..) {
            self.answer().await?;
        }
        self.flush().await?;
        Ok(scan.finish()?)
    }

    async fn ask(&mut self, kind: Kind, offset: u64, len: u64, payload: &[u8]) -> Result<(), ReadError> {
        let (command, flags) = match kind {
            Kind::Write if self.opened.has(export_flag::SEND_FUA) => (command::WRITE, command_flag::FUA),
            Kind::Write => (command::WRITE, 0),
            Kind::Flush => (command::FLUSH, 0),
            _ => (command::READ, 0),
        };
        self.cookie += 1;
        let header = RawHeader::new(self.opened.form, command, flags, self.cookie, offset, len);
        let sent = async {
            self.stream.write_all(&header).await?;
            self.stream.write_all(payload).await
        };
        timeout(ANSWER_TIMEOUT, sent).await.map_err(|_| ReadError::Timeout)??;
        let bytes = if kind == Kind::Read { vec![0; len as usize] } else { Vec::new() };
        let asked = Asked { kind, offset, len };
        self.outstanding.push_back(Request { cookie: self.cookie, asked, bytes, error: None, is_done: false });
        Ok(())
    }

    /// The answer to the oldest outstanding request.
    async fn answer(&mut self) -> Result<Vec<u8>, ReadError> {
        while self.outstanding.front().is_some_and(|request| !request.is_done) {
            timeout(ANSWER_TIMEOUT, self.receive()).await.map_err(|_| ReadError::Timeout)??;
        }
        let Some(Request { asked, bytes, error, .. }) = self.outstanding.pop_front() else {
            return Err(ReadError::Io(io::ErrorKind::InvalidInput.into()));
        };
        match error {
            Some(errno) => {
                let request = match asked.kind {
                    Kind::Read => "read",
                    Kind::Write => "write",
                    _ => "flush",
                };
                Err(ReadError::Refused { request, offset: asked.offset, errno })
            }
            None => Ok(bytes),
        }
    }

    /// Receives one part of a reply.
    async fn receive(&mut self) -> Result<(), ReadError> {
        let Reader { replies, input, outstanding, stream, .. } = self;
        let asked = |cookie| outstanding.iter().find(|request| request.cookie == cookie).map(|request| request.asked);
        let (taken, part) = replies.next(input, asked)?;
        input.drain(..taken);
        let Some((cookie, part)) = part else {
            if input.is_empty() {
                input.reserve(HEAD_BYTES);
                if stream.read_buf(input).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
            return Ok(());
        };
        let request = outstanding.iter_mut().find(|request| request.cookie == cookie);
        let Some(request) = request else { return Err(Broken::NotAsked(cookie).into()) };
        match part {
            Part::Data { offset, len } => {
                let start = (offset - request.asked.offset) as usize;
                let to = &mut request.bytes[start..start + len as usize];
                let have = input.len().min(to.len());
                to[..have].copy_from_slice(&input[..have]);
                input.drain(..have);
                stream.read_exact(&mut to[have..]).await?;
                replies.took(len);
            }
            // The bytes are zero already.
            Part::Hole { .. } | Part::Extent { .. } | Part::Load(_) => {}
            Part::Error(errno) => request.error = Some(errno),
            Part::Done => request.is_done = true,
        }
        Ok(())
    }
}

/// The read behind another one in a circular log that begins at `starts` and ends at `end`.
fn following((offset, len): (u64, u64), starts: u64, end: u64) -> (u64, u64) {
    let capacity = (end - starts) / 512 * 512;
    let from = (offset - starts + len) % capacity;
    (starts + from, READ_BYTES.min(capacity - from))
}

/// Bytes of a read of a scan. If it asks for another number, reads ahead are dropped, and nothing else happens.
const READ_BYTES: u64 = 512 * 1024;
