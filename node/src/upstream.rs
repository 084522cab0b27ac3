//! Connections to the servers of volumes that are elsewhere: dialled here, outside of the disk's thread, and passed to
//! it when they are established.
//!
//! ```text
//!   disk thread ── Dial(link) ─► Dialer ── connect, TLS ─► socket ─► mailbox ─► disk thread
//!               ◄─ Ended(link) ─ Dialer ◄─ a lost connection, until the server has ended it
//! ```
//!
//! The machine of the upstream runs the NBD handshake itself, in the disk's thread; only STARTTLS is done here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::nbd::{Form, Opened, Opening, Place, Unopened, Uri, Wanted};
use engine::upstream::Request;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Time for a connection and a handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A silent server is probed after this time, and then at this interval. A server that came back answers with a reset.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Probes that remain unanswered until the kernel gives the connection up: the most that Linux permits, 10 minutes.
const PROBES_MAX: u32 = 127;

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
    #[error("{0} requires TLS, which is not possible yet for volumes on other servers")]
    Tls(Box<Uri>),
}

/// What is known of a server, for people.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// Whether a session has been opened since the last failure.
    pub is_online: bool,
    /// The last failure: why it could not be reached, did not open the export, or cannot be used.
    pub failure: Option<String>,
}

/// Dials the server of one export.
#[derive(Clone, Debug)]
pub struct Dialer {
    uri: Uri,
    runtime: Handle,
    standing: Arc<Mutex<Standing>>,
}

impl Dialer {
    /// A dialer on the runtime of the caller.
    pub fn new(uri: Uri) -> Dialer {
        Dialer { uri, runtime: Handle::current(), standing: Arc::default() }
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
                Some(failure) => tracing::warn!(upstream = %self.uri, "{failure}"),
                None => tracing::info!(upstream = %self.uri, "a session with the server is open"),
            }
        }
    }

    /// Notes what the upstream reports.
    pub fn note(&self, request: &Request) {
        match request {
            Request::Online(_) => self.stand(Standing { is_online: true, failure: None }),
            Request::Refused(why) => self.stand(Standing { is_online: false, failure: Some(why.to_string()) }),
            Request::Lost(why) => self.stand(Standing { is_online: false, failure: Some(why.to_string()) }),
            Request::Offline(why) => self.stand(Standing { is_online: false, failure: Some(why.to_string()) }),
            Request::Open(_) | Request::Send(_) | Request::Close(_) => {}
        }
    }

    /// Establishes a connection, and answers with it, or with `None` if that is not possible.
    pub fn dial<F>(&self, answer: impl FnOnce(Option<OwnedFd>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let dialer = self.clone();
        self.runtime.spawn(async move {
            let connected = connect(&dialer.uri).await;
            if let Err(error) = &connected {
                dialer.stand(Standing { is_online: false, failure: Some(error.to_string()) });
            }
            answer(connected.ok()).await;
        });
    }

    /// Waits until the server has ended a connection: nothing more is sent on it, and what it brings is dropped.
    pub fn watch<F>(&self, socket: OwnedFd, answer: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let place = self.uri.place.clone();
        self.runtime.spawn(async move {
            if let Err(error) = drain(&place, socket).await {
                tracing::debug!("a lost connection ended: {error}");
            }
            answer().await;
        });
    }
}

/// Ends the requests on a connection, and waits until the server has ended the replies.
async fn drain(place: &Place, socket: OwnedFd) -> io::Result<()> {
    let mut stream: Box<dyn Stream> = match place {
        Place::Unix(_) => Box::new(UnixStream::from_std(socket.into())?),
        Place::Tcp(_) => Box::new(TcpStream::from_std(socket.into())?),
    };
    stream.shutdown().await?;
    let mut dropped = vec![0; 64 << 10];
    while stream.read(&mut dropped).await? > 0 {}
    Ok(())
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

enum Connected {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn open(uri: &Uri) -> Result<Connected, DialError> {
    if uri.tls {
        return Err(DialError::Tls(Box::new(uri.clone())));
    }
    let failed = |error| DialError::Connect(Box::new(uri.clone()), error);
    let connecting = async {
        match &uri.place {
            Place::Unix(path) => UnixStream::connect(path).await.map(Connected::Unix).map_err(failed),
            Place::Tcp(at) => {
                let stream = TcpStream::connect(at).await.map_err(failed)?;
                keep_alive(&stream).map_err(failed)?;
                Ok(Connected::Tcp(stream))
            }
        }
    };
    timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| DialError::Timeout(Box::new(uri.clone())))?
}

fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(socket, PROBES_MAX)?)
}

async fn connect(uri: &Uri) -> Result<OwnedFd, DialError> {
    let detached = match open(uri).await? {
        Connected::Tcp(stream) => stream.into_std().map(OwnedFd::from),
        Connected::Unix(stream) => stream.into_std().map(OwnedFd::from),
    };
    detached.map_err(|error| DialError::Connect(Box::new(uri.clone()), error))
}

/// Asks a server for the form of an export, without claiming it.
pub async fn probe(uri: &Uri) -> Result<Opened, DialError> {
    let mut stream: Box<dyn Stream> = match open(uri).await? {
        Connected::Tcp(stream) => Box::new(stream),
        Connected::Unix(stream) => Box::new(stream),
    };
    let shaking = async {
        let mut opening = Opening::new(Wanted { name: uri.name.clone(), form: Form::Extended, ..Wanted::default() });
        let mut received = Vec::new();
        loop {
            let consumed =
                opening.handle(&received).map_err(|why| DialError::Unopened(Box::new(uri.clone()), Box::new(why)))?;
            received.drain(..consumed);
            let failed = |error| DialError::Connect(Box::new(uri.clone()), error);
            stream.write_all(&opening.take_outgoing()).await.map_err(failed)?;
            if let Some(opened) = opening.opened() {
                return Ok(opened);
            }
            if stream.read_buf(&mut received).await.map_err(failed)? == 0 {
                return Err(DialError::Ended(Box::new(uri.clone())));
            }
        }
    };
    timeout(CONNECT_TIMEOUT, shaking).await.map_err(|_| DialError::Timeout(Box::new(uri.clone())))?
}
