//! NBD clients until the end of their handshake. They are accepted and negotiated with, bounded in time and number, and
//! passed to the thread of the disk whose volume they opened, together with bytes that they have already sent.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::sync::Arc;
use std::time::Duration;

use engine::Session;
use engine::nbd::{Ending, Export, Handshake, Outcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::address::{Listener, TlsMode};
use crate::cluster::Cluster;
use crate::control::{Control, Refused, Target};
use crate::descriptors;
use crate::disk_thread::{Client, Full, Seat};
use crate::gateway::Gateway;
use crate::handshakes::{Handshakes, Ticket};
use crate::incidents::{self, Incident};
use crate::peer::{Peer, Source};
use crate::sessions::Lease;
use crate::socket::Socket;
use crate::tls::{self, Pump, Tls};

/// Time limit of a handshake, TLS included.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Of this, the time that is kept for the answer to a claim whose earlier sessions do not end.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Bytes of an option that the handshake needs at once, header included, plus room for some bytes sent ahead.
const RECEIVED_BYTES_MAX: usize = (16 << 10) + 16 + 4096;
/// The delay before the next attempt after an accept failed (for want of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a listener needs to handle its clients.
#[derive(Clone, Debug)]
pub struct Door {
    /// Offers the volumes.
    pub control: Arc<Control>,
    /// Limits concurrent handshakes.
    pub handshakes: Arc<Handshakes>,
    /// The TLS mode of the listener.
    pub mode: TlsMode,
    /// Present if `mode` needs it.
    pub tls: Option<Arc<Tls>>,
    /// The cluster that this server takes part in, which answers gateways.
    pub cluster: Option<Arc<Cluster>>,
    /// The gateway to a cluster that this server is, which opens volumes when clients ask for them.
    pub gateway: Option<Arc<Gateway>>,
}

#[cfg(test)]
impl Door {
    /// That of a server without TLS and cluster.
    pub fn plain(control: Arc<Control>, handshakes: Arc<Handshakes>, mode: TlsMode) -> Door {
        Door { control, handshakes, mode, tls: None, cluster: None, gateway: None }
    }
}

/// Accepts clients until the process ends, without ever waiting for one of them.
pub async fn accept(listener: Listener, door: Door) {
    loop {
        let accepted = match &listener {
            Listener::Unix(listener) => listener.accept().await.and_then(|(socket, _)| {
                refuse_if_scarce(&socket)?;
                let peer = Peer::local(socket.peer_cred()?.uid());
                tokio::spawn(Greeting::new(peer, &door).greet(socket));
                Ok(())
            }),
            Listener::Tcp(listener) => listener.accept().await.and_then(|(socket, address)| {
                refuse_if_scarce(&socket)?;
                // Answers are sent whole, so Nagle's algorithm would only delay them.
                let _ = socket.set_nodelay(true);
                tokio::spawn(Greeting::new(Peer::remote(address), &door).greet(socket));
                Ok(())
            }),
        };
        if let Err(error) = accepted {
            if let Some(more) = incidents::note(Incident::RefusedDescriptors) {
                warn!("a client cannot be accepted: {error}{more}");
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Refuses a connection that would use a descriptor reserved for the API's own socket.
fn refuse_if_scarce(socket: &impl AsRawFd) -> io::Result<()> {
    if descriptors::are_scarce(socket) {
        return Err(io::Error::other("file descriptors are scarce, and the last ones are kept for api.sock"));
    }
    Ok(())
}

/// Why a handshake ended without a session.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the handshake took longer than {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    #[error(
        "too many handshakes at once, and this one was the oldest (limits.handshakes, limits.handshakes_per_source)"
    )]
    Displaced,
    #[error("the client disconnected during the handshake")]
    Disconnected,
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the client certificate cannot be read: {0}")]
    Certificate(#[from] x509_cert::der::Error),
    #[error("{}", describe(*.0))]
    Ended(Ending),
}

fn describe(ending: Ending) -> &'static str {
    match ending {
        Ending::Abort => "the client aborted the handshake",
        Ending::Oldstyle => {
            "the client uses the oldstyle NBD handshake, which is not supported: use a client with fixed newstyle"
        }
        Ending::UnknownFlags => "the client sent handshake flags that do not exist",
        Ending::Garbage => "the client sent bytes that are not an NBD handshake",
        Ending::Excess => "the client sent too many or too long options",
        Ending::Refused => "the client requested a volume that it cannot open, with EXPORT_NAME",
        Ending::TlsRequired => "the client requested a volume without TLS, and this listener requires TLS",
        Ending::ClearBehindStartTls => "the client sent unencrypted bytes after STARTTLS",
    }
}

impl Failure {
    fn incident(&self) -> Incident {
        match self {
            Failure::Timeout => Incident::HandshakeTimeout,
            Failure::Displaced => Incident::HandshakeDisplaced,
            Failure::Disconnected | Failure::Io(_) | Failure::Ended(Ending::Abort) => Incident::HandshakeDisconnected,
            Failure::Tls(_) | Failure::Certificate(_) => Incident::HandshakeTls,
            Failure::Ended(Ending::Oldstyle) => Incident::HandshakeOldstyle,
            Failure::Ended(Ending::Refused) => Incident::HandshakeRefused,
            Failure::Ended(Ending::TlsRequired) => Incident::HandshakeTlsRequired,
            Failure::Ended(Ending::UnknownFlags | Ending::Garbage | Ending::Excess | Ending::ClearBehindStartTls) => {
                Incident::HandshakeGarbage
            }
        }
    }
}

/// The result of a negotiation.
enum Step {
    /// The client has ended the handshake properly.
    Left,
    /// TLS has to start.
    StartTls,
    /// Transmission begins.
    Begin(Box<Opened>),
}

/// A volume that a client has opened.
struct Opened {
    target: Target,
    session: Session,
    seat: Arc<Seat>,
    /// If the client has claimed a session.
    lease: Option<Lease>,
    /// For TLS: the disk thread's end of the socket pair, and the pump's.
    pair: Option<(Pair, Pair)>,
}

/// The handshake of one client.
struct Greeting {
    handshake: Handshake,
    /// Received and not yet consumed.
    received: Vec<u8>,
    peer: Peer,
    door: Door,
    ticket: Ticket,
    deadline: Instant,
    encrypted: bool,
}

impl Greeting {
    fn new(peer: Peer, door: &Door) -> Greeting {
        Greeting {
            handshake: Handshake::with_tls(door.mode.into()),
            received: Vec::new(),
            ticket: door.handshakes.begin(&peer),
            peer,
            door: door.clone(),
            deadline: Instant::now() + HANDSHAKE_TIMEOUT,
            encrypted: false,
        }
    }

    async fn greet<S: Socket>(mut self, mut socket: S) {
        let negotiated = self.negotiate(&mut socket).await;
        let result = match negotiated {
            Ok(Step::Left) => Ok(()),
            Ok(Step::StartTls) => {
                let tls = self.door.tls.clone().expect("a listener that offers TLS has it");
                match socket.detach() {
                    Ok(socket) => return tls.clone().spawn_handshake(self.greet_encrypted::<S>(socket, tls)),
                    Err(error) => Err(error.into()),
                }
            }
            Ok(Step::Begin(opened)) => match socket.detach() {
                Ok(socket) => return self.hand_over(*opened, socket).await,
                Err(error) => Err(error.into()),
            },
            Err(failure) => Err(failure),
        };
        if let Err(failure) = result {
            tell(&self.peer, &failure);
        }
    }

    /// The handshake from STARTTLS on, which runs on the runtime of TLS handshakes.
    async fn greet_encrypted<S: Socket>(mut self, socket: OwnedFd, tls: Arc<Tls>) {
        let outcome = async {
            let accept = tls.acceptor().accept(S::attach(socket)?);
            let mut stream = self.bounded(async { accept.await.map_err(Failure::Tls) }).await?;
            if let Some([certificate, ..]) = stream.get_ref().1.peer_certificates() {
                self.peer.identity = tls::identity(certificate)?;
            }
            self.handshake.tls_started();
            self.encrypted = true;
            match self.negotiate(&mut stream).await? {
                Step::Begin(opened) => Ok(Some((opened, stream.into_inner()))),
                Step::Left | Step::StartTls => Ok(None),
            }
        };
        let (mut opened, (socket, connection)) = match outcome.await {
            Ok(Some(begun)) => begun,
            Ok(None) => return,
            Err(failure) => return tell(&self.peer, &failure),
        };
        let (disk, ours) = opened.pair.take().expect("it was made together with the seat");
        let (seat, peer, sent) = (opened.seat.clone(), self.peer.clone(), tls.busy());
        let socket = socket.detach();
        let pump = async move {
            // Sockets must be registered with the runtime of the pumps.
            let pump = Pump::new(S::attach(socket?)?, connection, UnixStream::from_std(ours)?)?;
            let gate = seat.tls();
            let result = pump.run(gate, sent).await;
            drop(seat);
            result
        };
        tls.pumps().spawn(async move {
            if let Err(error) = pump.await
                && let Some(more) = incidents::note(Incident::TlsBroken)
            {
                info!(client = %peer, "the client violated the TLS protocol: {error}: disconnected{more}");
            }
        });
        self.hand_over(*opened, disk.into()).await;
    }

    async fn hand_over(self, opened: Opened, socket: OwnedFd) {
        let Opened { target, session, seat, lease, .. } = opened;
        let Greeting { received, peer, door, .. } = self;
        // A disk that was stopped meanwhile closes its clients' connections.
        let Ok(room) = target.thread.room().await else { return };
        let shown = peer.clone();
        let client = Client { socket, received, volume: target.volume, session, peer, seat: Some(seat), lease };
        if !door.control.hand_over(&target, room, client) {
            debug!(client = %shown, "its access was revoked during the handshake: disconnected");
        }
    }

    /// Runs a part of this handshake, unless it exceeds the time limit or is displaced.
    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            result = work => result,
            () = self.ticket.displaced() => Err(Failure::Displaced),
            () = tokio::time::sleep_until(self.deadline) => Err(Failure::Timeout),
        }
    }

    /// Handles options until one of them ends the negotiation.
    async fn negotiate(&mut self, socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<Step, Failure> {
        self.send(socket).await?;
        loop {
            self.receive(socket).await?;
            self.open_at_gateway().await?;
            let mut offer = self.door.control.offer(&self.peer);
            let consumed = self.handshake.handle(&self.received, offer.exports());
            self.received.drain(..consumed);
            if let Outcome::Asked { export } = self.handshake.outcome() {
                let Export { name, read_only, .. } = offer.exports().volumes[export].clone();
                let target = offer.targets.swap_remove(export);
                drop(offer);
                self.answer(&name, &target, !read_only).await?;
                self.send(socket).await?;
                continue;
            }
            let mut opened = None;
            if let Outcome::Transmission { export, session } = self.handshake.outcome() {
                let name = offer.exports().volumes[export].name.clone();
                let target = offer.targets.swap_remove(export);
                // The other volumes' disks may be stopped while the client waits.
                drop(offer);
                opened = self.open(&name, target, session).await?;
            }
            self.send(socket).await?;
            // After the answer, so that it takes as long as for a volume that does not exist.
            if let Some(name) = self.handshake.take_unknown() {
                self.note_refusal(&name);
            }
            match (self.handshake.outcome(), opened) {
                (Outcome::Transmission { .. }, Some(opened)) => return Ok(Step::Begin(Box::new(opened))),
                (Outcome::StartTls, _) => return Ok(Step::StartTls),
                (Outcome::Closed, _) => {
                    self.bounded(async { Ok(socket.shutdown().await?) }).await?;
                    return match self.handshake.ending() {
                        Some(Ending::Abort) | None => Ok(Step::Left),
                        Some(ending) => Err(Failure::Ended(ending)),
                    };
                }
                _ => {}
            }
        }
    }

    /// Opens the volume that the next option names, if this is a gateway and the volume is one of its cluster.
    async fn open_at_gateway(&mut self) -> Result<(), Failure> {
        let Some(gateway) = self.door.gateway.clone() else { return Ok(()) };
        let name = self.handshake.next_name(&self.received).and_then(|name| std::str::from_utf8(name).ok());
        let Some(name) = name.and_then(|name| name.parse().ok()) else { return Ok(()) };
        let opening =
            tokio::time::timeout_at(self.deadline - ANSWER_TIME, gateway.open(&name, Source::from(&self.peer)));
        let why = match self.bounded(async { Ok(opening.await) }).await? {
            Ok(Ok(())) => return Ok(()),
            // It is refused as everywhere.
            Ok(Err(error)) if error.is_unknown() => return Ok(()),
            Ok(Err(why)) => why.to_string(),
            Err(_) => "the servers of the cluster do not answer in time".into(),
        };
        if let Some(more) = incidents::note(Incident::RefusedSession) {
            warn!(client = %self.peer, "volume '{name}' cannot be opened: {why}{more}");
        }
        self.handshake.explain_next(why);
        Ok(())
    }

    /// Answers a question about a volume.
    async fn answer(&mut self, name: &str, target: &Target, may_write: bool) -> Result<(), Failure> {
        let question = self.handshake.question().unwrap_or_default().to_owned();
        let answer = async {
            let cluster = self.door.cluster.as_ref().ok_or("this server is in no cluster")?;
            let name = name.parse().map_err(|_| "no volume has such a name")?;
            cluster.answer(&name, target, may_write, &question).await
        };
        let answer = tokio::time::timeout_at(self.deadline - ANSWER_TIME, answer);
        let answer = self.bounded(async { Ok(answer.await) }).await?;
        let answer = answer.unwrap_or_else(|_| Err("the answer takes too long".into()));
        self.handshake.reply_to_question(answer.as_deref().map_err(String::as_str));
        Ok(())
    }

    /// Reserves everything that a connection needs, or refuses it, before the client is told that transmission begins.
    async fn open(&mut self, name: &str, target: Target, session: Session) -> Result<Option<Opened>, Failure> {
        // First, since an earlier session may have all seats of the volume.
        let lease = self.claim(&target, session).await?;
        let pair = self.encrypted.then(tls::socket_pair).transpose();
        let seat = target.thread.reserve(target.volume, target.tenant, target.tenants);
        let is_outdated = lease.as_ref().is_err_and(Refused::is_final);
        let (incident, why) = match (lease, seat, pair) {
            (Ok(lease), Ok(seat), Ok(pair)) => {
                return Ok(Some(Opened { target, session, seat: Arc::new(seat), lease, pair }));
            }
            (Err(refused), _, _) => (Incident::RefusedSession, refused.to_string()),
            (_, Err(full), _) => (refused(full), full.to_string()),
            (_, _, Err(error)) => {
                (Incident::RefusedDescriptors, format!("the server has no descriptors left: {error}"))
            }
        };
        if let Some(more) = incidents::note(incident) {
            warn!(client = %self.peer, "volume '{name}' cannot be opened: {why}{more}");
        }
        match is_outdated {
            true => self.handshake.refuse_continuation(&why),
            false => self.handshake.refuse(&why),
        }
        Ok(None)
    }

    /// Waits for the session that the client has claimed, if it has claimed one.
    async fn claim(&self, target: &Target, session: Session) -> Result<Result<Option<Lease>, Refused>, Failure> {
        let control = &self.door.control;
        let granted = async {
            match self.handshake.claim() {
                Some(claim) => control.claim(target, claim, !session.read_only).await,
                None => control.claim_direct(target).await,
            }
        };
        if self.handshake.claim().is_none() && (target.part.is_none() || session.read_only) {
            return Ok(Ok(None));
        }
        let granted = tokio::time::timeout_at(self.deadline - ANSWER_TIME, granted);
        self.bounded(async { Ok(granted.await.unwrap_or(Err(Refused::Late)).map(Some)) }).await
    }

    /// Counts and logs that the access list of a volume does not name the client. The client gets the same answer as
    /// for a volume that does not exist.
    fn note_refusal(&self, name: &[u8]) {
        let Some(volume) = self.door.control.count_refusal(name, &self.peer) else { return };
        if let Some(more) = incidents::note(Incident::RefusedAccess) {
            info!(client = %self.peer, "volume '{volume}' is hidden from the client by its access list{more}");
        }
    }

    /// Receives until there is enough for the next step.
    async fn receive(&mut self, socket: &mut (impl AsyncRead + Unpin)) -> Result<(), Failure> {
        let mut received = std::mem::take(&mut self.received);
        while !self.handshake.is_enough(&received) {
            // The amount is bounded; further bytes stay in the socket.
            let room = (RECEIVED_BYTES_MAX - received.len()) as u64;
            let mut limited = (&mut *socket).take(room);
            let read = limited.read_buf(&mut received);
            if self.bounded(async { Ok(read.await?) }).await? == 0 {
                return Err(Failure::Disconnected);
            }
        }
        self.received = received;
        Ok(())
    }

    async fn send(&mut self, socket: &mut (impl AsyncWrite + Unpin)) -> Result<(), Failure> {
        let outgoing = self.handshake.take_outgoing();
        let write = async {
            socket.write_all(&outgoing).await?;
            Ok(socket.flush().await?)
        };
        self.bounded(write).await
    }
}

fn refused(full: Full) -> Incident {
    match full {
        Full::Volume(_) => Incident::RefusedVolume,
        Full::Tenant(_) => Incident::RefusedTenant,
        Full::Disk(_) => Incident::RefusedDisk,
    }
}

/// Counts a failed handshake, and logs it at a bounded rate.
fn tell(peer: &Peer, failure: &Failure) {
    let incident = failure.incident();
    let Some(more) = incidents::note(incident) else { return };
    match incident {
        // Port scans, health checks and clients with short timeouts cause these.
        Incident::HandshakeDisconnected | Incident::HandshakeTimeout => debug!(client = %peer, "{failure}{more}"),
        Incident::HandshakeOldstyle | Incident::HandshakeDisplaced => warn!(client = %peer, "{failure}{more}"),
        _ => info!(client = %peer, "{failure}{more}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn a_client_is_greeted_and_may_leave() {
        let dir = tempfile::tempdir().unwrap();
        let cache = "64MiB".parse().unwrap();
        let config = Config { data: dir.path().join("data"), cache, ..Config::default() };
        let control = Control::open(config).await.unwrap();
        let door = Door::plain(control, Handshakes::new(1, 1), TlsMode::Off);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let server = tokio::spawn(Greeting::new(Peer::local(0), &door).greet(theirs));
        let mut greeting = [0; 18];
        ours.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        ours.write_all(&[0, 0, 0, 3]).await.unwrap();
        // ABORT is acknowledged, then the connection ends.
        ours.write_all(b"IHAVEOPT\x00\x00\x00\x02\x00\x00\x00\x00").await.unwrap();
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest[8..16], [0, 0, 0, 2, 0, 0, 0, 1]);
        server.await.unwrap();
    }
}
