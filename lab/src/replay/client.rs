//! A small NBD client: the engine's handshake and reader of replies, over blocking sockets. Each connection has a
//! thread for writing and one for reading, so that neither waits for the other, and a slow connection delays no other
//! one.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, ensure};
use engine::nbd::wire::command;
use engine::nbd::{Asked, Form, Opened, Opening, Part, Place, Replies, Uri, Wanted};
use sim::request::Request;

/// Bytes of the noise that payloads are repeatedly taken from; they stay in the processor's cache.
const NOISE_BYTES: usize = 256 << 10;

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn connect(place: &Place) -> io::Result<Socket> {
        Ok(match place {
            Place::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
            Place::Tcp(at) => {
                let stream = TcpStream::connect(at)?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
        })
    }

    fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
        })
    }

    fn shutdown(&self) {
        // The other end may have closed it already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens an export over a connected stream. Returns also what the server has sent after its answers.
fn handshake<S: Read + Write>(stream: &mut S, name: &str) -> anyhow::Result<(Opened, Vec<u8>)> {
    // Simple replies, as the kernel's client: what is measured is the server, not a form of replies.
    let mut opening = Opening::new(Wanted { name: name.into(), ..Wanted::default() });
    let (mut received, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        stream.write_all(&opening.take_outgoing())?;
        if let Some(opened) = opening.opened() {
            return Ok((opened, received));
        }
        let len = stream.read(&mut bytes)?;
        ensure!(len > 0, "the server closed the connection");
        received.extend_from_slice(&bytes[..len]);
        let consumed = opening.handle(&received)?;
        received.drain(..consumed);
    }
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Answered, with NBD's error number or 0.
    Done(u32),
    /// The connection ended.
    Lost(String),
}

/// A result from a connection.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The number of the connection.
    pub connection: usize,
    /// The request's cookie; undefined if the connection ended.
    pub cookie: u64,
    /// When the reply was read from the socket.
    pub at: Instant,
    /// The result.
    pub answer: Answer,
}

/// An open connection.
pub struct Connection {
    socket: Socket,
    requests: Option<Sender<Request>>,
    threads: Vec<JoinHandle<()>>,
}

/// The outstanding requests, by cookie.
type Outstanding = Arc<Mutex<HashMap<u64, Asked>>>;

impl Connection {
    /// Opens an export. Completions are sent to `completions` with `number`.
    pub fn open(uri: &Uri, number: usize, completions: Sender<Completion>) -> anyhow::Result<(Connection, Opened)> {
        let place = match &uri.place {
            Place::Tcp(at) => at.clone(),
            Place::Unix(path) => path.display().to_string(),
        };
        let mut socket = Socket::connect(&uri.place).with_context(|| format!("no server answers at {place}"))?;
        let (export, received) = handshake(&mut socket, &uri.name).with_context(|| format!("at {place}"))?;
        let (requests, queue) = channel();
        let outstanding = Outstanding::default();
        let (to, from, known) = (socket.try_clone()?, socket.try_clone()?, outstanding.clone());
        let lost = completions.clone();
        let writer = std::thread::spawn(move || {
            if let Err(error) = write_requests(to, export.form, &queue, &known) {
                tell_lost(&lost, number, &error.to_string());
            }
        });
        let reader = std::thread::spawn(move || {
            let from = BufReader::with_capacity(256 << 10, io::Cursor::new(received).chain(from));
            let replies = Replies::new(export.form, None);
            if let Err(error) = read_replies(from, replies, number, &outstanding, &completions) {
                tell_lost(&completions, number, &error.to_string());
            }
        });
        Ok((Connection { socket, requests: Some(requests), threads: vec![writer, reader] }, export))
    }

    /// Queues a request for writing. Its payload is noise.
    pub fn send(&self, request: Request) {
        // If its thread has ended, this was reported as the end of the connection.
        let _ = self.requests.as_ref().expect("open until it is dropped").send(request);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.requests = None;
        // The writer disconnects and the server closes; if it does not, the reader must not wait for ever.
        let mut threads = std::mem::take(&mut self.threads).into_iter();
        let _ = threads.next().map(JoinHandle::join);
        self.socket.shutdown();
        threads.for_each(|thread| drop(thread.join()));
    }
}

fn tell_lost(completions: &Sender<Completion>, connection: usize, why: &str) {
    let answer = Answer::Lost(why.into());
    // The receiver may have been dropped at the end.
    let _ = completions.send(Completion { connection, cookie: 0, at: Instant::now(), answer });
}

fn write_requests(socket: Socket, form: Form, queue: &Receiver<Request>, outstanding: &Outstanding) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, socket);
    let noise = noise();
    let mut next = queue.recv().ok();
    while let Some(request) = next {
        outstanding.lock().expect("no thread panics").insert(request.cookie, request.asked());
        out.write_all(&request.header(form))?;
        let mut left = request.payload_bytes() as usize;
        while left > 0 {
            let part = left.min(noise.len());
            out.write_all(&noise[..part])?;
            left -= part;
        }
        // Queued requests are written together.
        next = match queue.try_recv() {
            Ok(request) => Some(request),
            Err(_) => {
                out.flush()?;
                queue.recv().ok()
            }
        };
    }
    let goodbye = Request { op: 0, cookie: 0, command: command::DISC, flags: 0, offset: 0, len: 0 };
    out.write_all(&goodbye.header(form))?;
    out.flush()
}

/// Bytes that are neither compressible nor zeros, so that a device cannot shorten them.
fn noise() -> Vec<u8> {
    let mut rng = sim::rng::Rng::new(1);
    (0..NOISE_BYTES / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

fn read_replies(
    mut from: impl BufRead,
    mut replies: Replies,
    connection: usize,
    outstanding: &Outstanding,
    completions: &Sender<Completion>,
) -> io::Result<()> {
    let mut error = 0;
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        // Data is not looked at.
        let data = replies.data_bytes().min(bytes.len() as u64) as usize;
        if data > 0 {
            replies.took(data as u64);
        }
        let asked = |cookie| outstanding.lock().expect("no thread panics").get(&cookie).copied();
        let (read, part) = replies.next(&bytes[data..], asked).map_err(io::Error::other)?;
        match part {
            Some((_, Part::Error(number))) => error = number,
            Some((cookie, Part::Done)) => {
                outstanding.lock().expect("no thread panics").remove(&cookie);
                let answer = Answer::Done(std::mem::take(&mut error));
                if completions.send(Completion { connection, cookie, at: Instant::now(), answer }).is_err() {
                    return Ok(());
                }
            }
            _ => {}
        }
        from.consume(data + read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::nbd::{Export, Exports, Handshake};

    /// The engine's own handshake at the other end of a stream.
    struct Peer {
        server: Handshake,
        received: Vec<u8>,
        unread: Vec<u8>,
        exports: Vec<Export>,
    }

    impl Read for Peer {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.unread.extend(self.server.take_outgoing());
            let len = self.unread.len().min(bytes.len()).min(7);
            bytes[..len].copy_from_slice(&self.unread[..len]);
            self.unread.drain(..len);
            Ok(len)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.received.extend_from_slice(bytes);
            let exports = Exports { volumes: &self.exports, shutting_down: false };
            loop {
                let consumed = self.server.handle(&self.received, exports);
                self.received.drain(..consumed);
                if consumed == 0 {
                    return Ok(bytes.len());
                }
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn it_opens_what_our_server_exports() {
        let open = |name: &str| {
            let exports = vec![Export { name: "db".into(), size: 1 << 30, ..Export::default() }];
            let (received, unread) = (Vec::new(), Vec::new());
            handshake(&mut Peer { server: Handshake::new(), received, unread, exports }, name)
        };
        let (export, received) = open("db").unwrap();
        assert_eq!((export.size, export.form, &received[..]), (1 << 30, Form::Simple, &[][..]));
        assert!(open("other").unwrap_err().to_string().contains("no export 'other'"));
    }
}
