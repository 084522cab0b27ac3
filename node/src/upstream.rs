//! Connections to the servers of volumes that are elsewhere: dialled here, outside of the disk's thread, and passed to
//! it when they are established.
//!
//! ```text
//!   disk thread ── Dial(link) ─► Dialer ── connect, TLS ─► socket ─► mailbox ─► disk thread
//!               ◄─ Ended(link) ─ Dialer ◄─ a lost connection, until the server has ended it
//! ```
//!
//! The machine of the upstream runs the NBD handshake itself, in the disk's thread; only STARTTLS is done here. With
//! TLS the socket is one end of a pair, and a pump on the TLS threads has the other one (`tls/client.rs`).

mod reader;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use engine::ids::VolumeId;
use engine::nbd::{Claim, Form, Opened, Opening, Place, Unopened, Uri, Wanted};
use engine::upstream::{Loss, Request};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub use self::reader::{ReadError, Reader};
use crate::socket::Socket;
use crate::tls::{self, ClientFiles, Encrypted, TlsError};

/// Time for a connection and a handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A silent server is probed after this time, and then at this interval. A server that came back answers with a reset.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Probes that remain unanswered until the kernel gives the connection up: the most that Linux permits, 10 minutes.
const PROBES_MAX: u32 = 127;

/// The client that a probe calls itself. It claims nothing.
const PROBE: &str = "probe";

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("{0} cannot be reached: {1}")]
    Connect(Box<Uri>, io::Error),
    #[error("{0} does not answer")]
    Timeout(Box<Uri>),
    #[error("{0}: the server ended the handshake")]
    Ended(Box<Uri>),
    #[error("{0}: {1}")]
    Unopened(Box<Uri>, Box<Unopened>),
    #[error("{0}: {1}")]
    Tls(Box<Uri>, Box<TlsError>),
}

/// An export, and how its server is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub uri: Uri,
    /// If its connections use TLS.
    pub tls: Option<ClientFiles>,
}

impl Target {
    fn failed(&self, error: io::Error) -> DialError {
        DialError::Connect(Box::new(self.uri.clone()), error)
    }

    fn not_encrypted(&self, error: TlsError) -> DialError {
        DialError::Tls(Box::new(self.uri.clone()), Box::new(error))
    }
}

/// Why a connection over TLS ended, if TLS was the reason.
type Broken = Arc<OnceLock<TlsError>>;

/// What is known here of the end of a connection, of which the upstream sees only that it ended.
#[derive(Debug)]
enum Ending {
    /// There was none, for this reason.
    Undialled(String),
    /// There was one.
    Dialled(Broken),
}

impl Default for Ending {
    fn default() -> Ending {
        Ending::Dialled(Broken::default())
    }
}

impl Ending {
    fn reason(&self) -> Option<String> {
        match self {
            Ending::Undialled(reason) => Some(reason.clone()),
            Ending::Dialled(broken) => broken.get().map(ToString::to_string),
        }
    }
}

/// What is known of a server, for people.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// Whether a session has been opened since the last failure.
    pub is_online: bool,
    /// The last failure: why it could not be reached, did not open the export, or cannot be used.
    pub failure: Option<String>,
}

/// An export of a volume, by the number that the disk's engine knows it by: the volume's own, unless it is another one
/// of a striped volume.
#[derive(Clone, Debug)]
pub struct Leg {
    pub number: VolumeId,
    pub dialer: Dialer,
}

/// Dials the server of one export.
#[derive(Clone, Debug)]
pub struct Dialer {
    target: Arc<Target>,
    runtime: Handle,
    standing: Arc<Mutex<Standing>>,
    /// Limits the work for the tenant's TLS connections: see `tls`.
    gate: Arc<Semaphore>,
    /// Of the last connection.
    ending: Arc<Mutex<Ending>>,
    /// Nothing is dialled while it is set.
    is_held: Arc<AtomicBool>,
}

impl Dialer {
    /// A dialer on the runtime of the caller.
    pub fn new(target: Target, gate: Arc<Semaphore>) -> Dialer {
        let target = Arc::new(target);
        let (standing, ending, is_held) = Default::default();
        Dialer { target, runtime: Handle::current(), standing, gate, ending, is_held }
    }

    /// Connects no more, until it is called with `false`: somebody else has the export for a while.
    pub fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Release);
    }

    /// What is known of the server.
    pub fn standing(&self) -> Standing {
        self.standing.lock().expect("no one panics while holding it").clone()
    }

    fn stand(&self, standing: Standing) {
        let before = std::mem::replace(&mut *self.standing.lock().expect("no one panics while holding it"), standing);
        let now = self.standing();
        if before != now {
            match &now.failure {
                Some(failure) => tracing::warn!(upstream = %self.target.uri, "{failure}"),
                None => tracing::info!(upstream = %self.target.uri, "a session with the server is open"),
            }
        }
    }

    /// Notes what the upstream reports.
    pub fn note(&self, request: &Request) {
        match request {
            Request::Online(_) => self.stand(Standing { is_online: true, failure: None }),
            Request::Refused(why) => self.stand(Standing { is_online: false, failure: Some(why.to_string()) }),
            Request::Lost(why) => {
                let reason = self.ending.lock().expect("no one panics while holding it").reason();
                let reason = reason.filter(|_| *why == Loss::Ended);
                self.stand(Standing { is_online: false, failure: Some(reason.unwrap_or_else(|| why.to_string())) });
            }
            Request::Offline(why) => self.stand(Standing { is_online: false, failure: Some(why.to_string()) }),
            Request::Open(_) | Request::Send(_) | Request::Close { .. } => {}
        }
    }

    /// Establishes a connection, and answers with it, or with `None` if that is not possible.
    pub fn dial<F>(&self, answer: impl FnOnce(Option<OwnedFd>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let dialer = self.clone();
        self.runtime.spawn(async move {
            if dialer.is_held.load(Ordering::Acquire) {
                return answer(None).await;
            }
            let connected = connect(&dialer.target, &dialer.gate).await;
            let (socket, ending) = match connected {
                Ok(Encrypted { socket, broken }) => (Some(socket), Ending::Dialled(broken)),
                Err(error) => (None, Ending::Undialled(error.to_string())),
            };
            if let Ending::Undialled(reason) = &ending {
                dialer.stand(Standing { is_online: false, failure: Some(reason.clone()) });
            }
            *dialer.ending.lock().expect("no one panics while holding it") = ending;
            answer(socket).await;
        });
    }

    /// Waits until the server has ended a connection: nothing more is sent on it, and what it brings is dropped.
    pub fn watch<F>(&self, socket: OwnedFd, answer: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let target = self.target.clone();
        self.runtime.spawn(async move {
            if let Err(error) = drain(&target, socket).await {
                tracing::debug!("a lost connection ended: {error}");
            }
            answer().await;
        });
    }
}

/// Ends the requests on a connection, and waits until the server has ended the replies.
async fn drain(target: &Target, socket: OwnedFd) -> io::Result<()> {
    let mut stream = attached(target, socket)?;
    stream.shutdown().await?;
    let mut dropped = vec![0; 64 << 10];
    while stream.read(&mut dropped).await? > 0 {}
    Ok(())
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A socket of [`connect`]: with TLS, the end of a pair.
fn attached(target: &Target, socket: OwnedFd) -> io::Result<Box<dyn Stream>> {
    Ok(match target.uri.place {
        Place::Tcp(_) if target.tls.is_none() => Box::new(<TcpStream as Socket>::attach(socket)?),
        Place::Tcp(_) | Place::Unix(_) => Box::new(<UnixStream as Socket>::attach(socket)?),
    })
}

fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(socket, PROBES_MAX)?)
}

/// A connection to the server, after STARTTLS and the TLS handshake if the target says so.
async fn connect(target: &Target, gate: &Arc<Semaphore>) -> Result<Encrypted, DialError> {
    let failed = |error| target.failed(error);
    let connecting = async {
        match &target.uri.place {
            Place::Unix(path) => encrypt(target, UnixStream::connect(path).await.map_err(failed)?, gate).await,
            Place::Tcp(at) => {
                let stream = TcpStream::connect(at).await.map_err(failed)?;
                keep_alive(&stream).map_err(failed)?;
                encrypt(target, stream, gate).await
            }
        }
    };
    timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| DialError::Timeout(Box::new(target.uri.clone())))?
}

async fn encrypt<S: Socket>(target: &Target, mut stream: S, gate: &Arc<Semaphore>) -> Result<Encrypted, DialError> {
    let Some(files) = &target.tls else {
        let socket = stream.detach().map_err(|error| target.failed(error))?;
        return Ok(Encrypted { socket, broken: Broken::default() });
    };
    let mut opening = Opening::new(Wanted { name: target.uri.name.clone(), tls: true, ..Wanted::default() });
    shake(target, &mut stream, &mut opening, Opening::wants_tls).await?;
    files.encrypt(stream, gate.clone()).await.map_err(|error| target.not_encrypted(error))
}

/// Continues a handshake up to a point.
async fn shake(
    target: &Target,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    opening: &mut Opening,
    is_there: impl Fn(&Opening) -> bool,
) -> Result<(), DialError> {
    let uri = || Box::new(target.uri.clone());
    let mut received = Vec::new();
    loop {
        let consumed = opening.handle(&received).map_err(|why| DialError::Unopened(uri(), Box::new(why)))?;
        received.drain(..consumed);
        if is_there(opening) {
            return Ok(());
        }
        stream.write_all(&opening.take_outgoing()).await.map_err(|error| target.failed(error))?;
        if stream.read_buf(&mut received).await.map_err(|error| target.failed(error))? == 0 {
            return Err(DialError::Ended(uri()));
        }
    }
}

/// Asks a server of ours something about an export, which is not opened; nothing if it is none of ours.
pub async fn ask(target: &Target, question: &str) -> Result<Vec<u8>, DialError> {
    let (question, form) = (Some(question.to_owned()), Form::Structured);
    let opening = inquire(target, Wanted { question, form, info: true, ..Wanted::default() }).await?;
    Ok(opening.answer().unwrap_or_default().to_vec())
}

/// Asks a server for the form of an export, without opening it or claiming a session. One of ours also tells which
/// volume it is.
pub async fn probe(target: &Target) -> Result<Opened, DialError> {
    let claim = Claim { client: PROBE.into(), epoch: 0, after: None, shared: false, leased: false };
    let wanted = Wanted { form: Form::Extended, session: Some(claim), info: true, ..Wanted::default() };
    let opening = inquire(target, wanted).await?;
    Ok(opening.opened().expect("an export that was described"))
}

/// A handshake that opens nothing.
async fn inquire(target: &Target, wanted: Wanted) -> Result<Opening, DialError> {
    let Encrypted { socket, broken } = connect(target, &Arc::new(Semaphore::new(tls::threads_per_tenant()))).await?;
    let mut stream = attached(target, socket).map_err(|error| target.failed(error))?;
    let wanted = Wanted { name: target.uri.name.clone(), ..wanted };
    let mut opening = if target.tls.is_some() { Opening::encrypted(wanted) } else { Opening::new(wanted) };
    let is_told = |opening: &Opening| opening.opened().is_some() || opening.answer().is_some();
    let shaken = shake(target, &mut stream, &mut opening, is_told);
    let shaken = timeout(CONNECT_TIMEOUT, shaken).await;
    match shaken.unwrap_or_else(|_| Err(DialError::Timeout(Box::new(target.uri.clone())))) {
        Ok(()) => Ok(opening),
        Err(error) => Err(broken.get().map_or(error, |broken| target.not_encrypted(broken.clone()))),
    }
}
