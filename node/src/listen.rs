//! NBD clients, until their handshake is done: accepted, negotiated with in bounded time and number, and handed to the
//! thread of the disk whose volume they opened, together with what they sent ahead.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use engine::Session;
use engine::nbd::{Handshake, Outcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use crate::address::Listener;
use crate::control::{Control, Target};
use crate::descriptors;
use crate::peer::Peer;

/// A client that takes longer to say what it wants is disconnected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an option, its header included, that the handshake wants to see at once; and a little sent ahead.
const RECEIVED_BYTES_MAX: usize = (64 << 10) + 4096;
/// After a failure to accept (out of descriptors), until the next attempt.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a client is turned away when the process has hardly any descriptors left.
const SCARCE: &str = "a client is turned away: file descriptors are scarce, and the last ones are kept for api.sock";

/// A client that has come.
enum Accepted {
    Unix(UnixStream, Peer),
    Tcp(TcpStream, Peer),
}

/// Accepts clients until the process ends.
pub async fn accept(listener: Listener, control: Arc<Control>, handshakes: Arc<Semaphore>) {
    loop {
        let accepted = match &listener {
            Listener::Unix(listener) => listener.accept().await.and_then(|(socket, _)| {
                let peer = Peer::local(socket.peer_cred()?.uid());
                Ok(Accepted::Unix(socket, peer))
            }),
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(socket, address)| Accepted::Tcp(socket, Peer::remote(address)))
            }
        };
        // Only then: a listener without clients takes no place from the others.
        let permit = handshakes.clone().acquire_owned().await.expect("it is never closed");
        let accepted = accepted.map(|accepted| match accepted {
            Accepted::Unix(socket, _) if descriptors::are_scarce(&socket) => debug!("{SCARCE}"),
            Accepted::Tcp(socket, _) if descriptors::are_scarce(&socket) => debug!("{SCARCE}"),
            Accepted::Unix(socket, peer) => drop(tokio::spawn(greet_unix(socket, peer, control.clone(), permit))),
            Accepted::Tcp(socket, peer) => drop(tokio::spawn(greet_tcp(socket, peer, control.clone(), permit))),
        });
        if let Err(error) = accepted {
            warn!("a client cannot be accepted: {error}");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn greet_unix(mut socket: UnixStream, peer: Peer, control: Arc<Control>, _permit: OwnedSemaphorePermit) {
    if let Some(client) = greet(&mut socket, &peer, &control).await {
        client.hand_over(&control, peer, socket.into_std().map(OwnedFd::from));
    }
}

async fn greet_tcp(mut socket: TcpStream, peer: Peer, control: Arc<Control>, _permit: OwnedSemaphorePermit) {
    // Answers are sent whole: waiting for more to send would only delay them.
    let _ = socket.set_nodelay(true);
    if let Some(client) = greet(&mut socket, &peer, &control).await {
        client.hand_over(&control, peer, socket.into_std().map(OwnedFd::from));
    }
}

/// A client whose handshake is done.
struct Client {
    target: Target,
    session: Session,
    received: Vec<u8>,
}

impl Client {
    fn hand_over(self, control: &Control, peer: Peer, socket: io::Result<OwnedFd>) {
        match socket {
            Ok(socket) => {
                if !control.hand_over(self.target, socket, self.received, self.session, peer.clone()) {
                    debug!(%peer, "the volume was taken from it during its handshake: disconnected");
                }
            }
            Err(error) => warn!("a client is lost: {error}"),
        }
    }
}

async fn greet(socket: &mut (impl AsyncRead + AsyncWrite + Unpin), peer: &Peer, control: &Control) -> Option<Client> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, negotiate(socket, peer, control)).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => {
            debug!(%peer, "a handshake ended: {error}");
            None
        }
        Err(_) => {
            debug!(%peer, "a handshake took too long");
            None
        }
    }
}

/// The handshake; nothing if it ended without a session.
async fn negotiate(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    peer: &Peer,
    control: &Control,
) -> io::Result<Option<Client>> {
    let mut handshake = Handshake::new();
    let mut received = Vec::with_capacity(4096);
    socket.write_all(&handshake.take_outgoing()).await?;
    loop {
        // Bounded: what is beyond stays in the socket.
        let room = RECEIVED_BYTES_MAX - received.len();
        if (&mut *socket).take(room as u64).read_buf(&mut received).await? == 0 {
            return Ok(None);
        }
        let mut offer = control.offer(peer);
        let consumed = handshake.handle(&received, offer.exports());
        received.drain(..consumed);
        socket.write_all(&handshake.take_outgoing()).await?;
        match handshake.outcome() {
            Outcome::Negotiating => {}
            Outcome::Closed => {
                socket.shutdown().await?;
                return Ok(None);
            }
            Outcome::Transmission { export, session } => {
                return Ok(Some(Client { target: offer.targets.swap_remove(export), session, received }));
            }
        }
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
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let server = tokio::spawn(async move { greet(&mut theirs, &Peer::local(0), &control).await.is_none() });
        let mut greeting = [0; 18];
        ours.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        ours.write_all(&[0, 0, 0, 3]).await.unwrap();
        // ABORT is acknowledged, then the connection ends.
        ours.write_all(b"IHAVEOPT\x00\x00\x00\x02\x00\x00\x00\x00").await.unwrap();
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest[8..16], [0, 0, 0, 2, 0, 0, 0, 1]);
        assert!(server.await.unwrap());
    }
}
