//! A small NBD client: fixed newstyle, GO, simple replies (NetworkBlockDevice/nbd, `doc/proto.md`). Each connection has
//! a thread for writing and one for reading, so that neither waits for the other, and a slow connection delays no other
//! one.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use engine::nbd::wire::{self, PAYLOAD_BYTES_MAX, command, info, option, reply};
use sim::request::Request;

use super::uri::{Place, Uri};

/// The longest accepted reply to an option, bytes.
const OPTION_REPLY_BYTES_MAX: u32 = 64 << 10;

/// Bytes of the noise that payloads are repeatedly taken from; they stay in the processor's cache.
const NOISE_BYTES: usize = 256 << 10;

/// The properties of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// Size, bytes.
    pub size: u64,
    /// Flags: `engine::nbd::wire::export_flag`.
    pub flags: u16,
    /// Offsets and lengths are multiples of this, bytes.
    pub block_bytes_min: u32,
    /// The longest payload, bytes.
    pub payload_bytes_max: u32,
}

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

fn read_u16(from: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    from.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn read_u64(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Opens an export over a connected stream.
fn handshake<S: Read + Write>(stream: &mut S, name: &str) -> anyhow::Result<Export> {
    ensure!(read_u64(stream)? == wire::MAGIC && read_u64(stream)? == wire::IHAVEOPT, "no newstyle NBD server is there");
    let flags = read_u16(stream)?;
    ensure!(flags & wire::FLAG_FIXED_NEWSTYLE != 0, "the server does not speak fixed newstyle");
    let no_zeroes = flags & wire::FLAG_NO_ZEROES;
    stream.write_all(&u32::from(wire::FLAG_FIXED_NEWSTYLE | no_zeroes).to_be_bytes())?;
    let mut body = (name.len() as u32).to_be_bytes().to_vec();
    body.extend(name.as_bytes());
    // One information request: block sizes.
    body.extend(1u16.to_be_bytes());
    body.extend(info::BLOCK_SIZE.to_be_bytes());
    let mut bytes = wire::IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend(option::GO.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    stream.write_all(&bytes)?;
    let mut export = None;
    let (mut block_bytes_min, mut payload_bytes_max) = (1, PAYLOAD_BYTES_MAX);
    loop {
        ensure!(read_u64(stream)? == wire::OPTION_REPLY_MAGIC, "the server's answer is no option reply");
        let (_, kind, len) = (read_u32(stream)?, read_u32(stream)?, read_u32(stream)?);
        ensure!(len <= OPTION_REPLY_BYTES_MAX, "the server's answer has {len} bytes");
        let mut body = vec![0; len as usize];
        stream.read_exact(&mut body)?;
        let mut rest = body.as_slice();
        match kind {
            reply::ACK => break,
            reply::INFO => match read_u16(&mut rest)? {
                info::EXPORT => export = Some((read_u64(&mut rest)?, read_u16(&mut rest)?)),
                info::BLOCK_SIZE => {
                    let (min, _, max) = (read_u32(&mut rest)?, read_u32(&mut rest)?, read_u32(&mut rest)?);
                    (block_bytes_min, payload_bytes_max) = (min.max(1), max.clamp(min.max(1), PAYLOAD_BYTES_MAX));
                }
                _ => {}
            },
            reply::ERR_UNKNOWN => bail!("the server has no export '{name}'"),
            _ => {
                let words = String::from_utf8_lossy(&body).escape_debug().to_string();
                bail!("the server refuses to open '{name}' (reply {kind:#x}) {words}");
            }
        }
    }
    let (size, flags) = export.context("the server did not say how large the export is")?;
    Ok(Export { size, flags, block_bytes_min, payload_bytes_max })
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

/// Payload bytes of the expected replies, by cookie.
type Expected = Arc<Mutex<HashMap<u64, u32>>>;

impl Connection {
    /// Opens an export. Completions are sent to `completions` with `number`.
    pub fn open(uri: &Uri, number: usize, completions: Sender<Completion>) -> anyhow::Result<(Connection, Export)> {
        let place = match &uri.place {
            Place::Tcp(at) => at.clone(),
            Place::Unix(path) => path.display().to_string(),
        };
        let mut socket = Socket::connect(&uri.place).with_context(|| format!("no server answers at {place}"))?;
        let export = handshake(&mut socket, &uri.name).with_context(|| format!("at {place}"))?;
        let (requests, queue) = channel();
        let expected = Expected::default();
        let (to, from, known) = (socket.try_clone()?, socket.try_clone()?, expected.clone());
        let lost = completions.clone();
        let writer = std::thread::spawn(move || {
            if let Err(error) = write_requests(to, &queue, &known) {
                tell_lost(&lost, number, &error.to_string());
            }
        });
        let reader = std::thread::spawn(move || {
            if let Err(error) = read_replies(from, number, &expected, &completions) {
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

fn write_requests(socket: Socket, queue: &Receiver<Request>, expected: &Expected) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, socket);
    let noise = noise();
    let mut next = queue.recv().ok();
    while let Some(request) = next {
        let bytes = if request.command == command::READ { request.len } else { 0 };
        expected.lock().expect("no thread panics").insert(request.cookie, bytes);
        out.write_all(&request.header())?;
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
    out.write_all(&goodbye.header())?;
    out.flush()
}

/// Bytes that are neither compressible nor zeros, so that a device cannot shorten them.
fn noise() -> Vec<u8> {
    let mut rng = sim::rng::Rng::new(1);
    (0..NOISE_BYTES / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

fn read_replies(
    socket: Socket,
    connection: usize,
    expected: &Expected,
    completions: &Sender<Completion>,
) -> io::Result<()> {
    let mut from = BufReader::with_capacity(256 << 10, socket);
    loop {
        let magic = match read_u32(&mut from) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(io::Error::new(error.kind(), "the server closed the connection"));
            }
            magic => magic?,
        };
        let broken = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        if magic != wire::SIMPLE_REPLY_MAGIC {
            return Err(broken(format!("{magic:#x} is no reply's beginning")));
        }
        let (error, cookie) = (read_u32(&mut from)?, read_u64(&mut from)?);
        let bytes = expected.lock().expect("no thread panics").remove(&cookie);
        let bytes = bytes.ok_or_else(|| broken(format!("a reply to {cookie}, which nobody asked")))?;
        if error == 0 {
            io::copy(&mut from.by_ref().take(u64::from(bytes)), &mut io::sink()).and_then(|copied| {
                let whole = copied == u64::from(bytes);
                if whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            })?;
        }
        let completion = Completion { connection, cookie, at: Instant::now(), answer: Answer::Done(error) };
        if completions.send(completion).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a server, and a buffer for the client's.
    struct Script(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Script {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The engine's own handshake answers the client's, as it would over a socket.
    #[test]
    fn it_opens_what_our_server_exports() {
        use engine::nbd::{Export as Offered, Exports, Handshake};
        let volumes = [Offered { name: "db".into(), size: 1 << 30, ..Offered::default() }];
        let exports = Exports { volumes: &volumes, shutting_down: false };
        let ask = |name: &str| {
            // First to record what the client sends, then with the server's answer to it.
            let mut server = Handshake::new();
            let mut bytes = server.take_outgoing();
            let mut script = Script(io::Cursor::new(bytes.clone()), Vec::new());
            assert!(handshake(&mut script, name).is_err(), "the server has not answered yet");
            server.handle(&script.1, exports);
            bytes.extend(server.take_outgoing());
            handshake(&mut Script(io::Cursor::new(bytes), Vec::new()), name)
        };
        let export = ask("db").unwrap();
        assert_eq!((export.size, export.payload_bytes_max), (1 << 30, PAYLOAD_BYTES_MAX));
        assert!(ask("other").unwrap_err().to_string().contains("no export 'other'"));
    }
}
