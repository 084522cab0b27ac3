//! The mailbox of a disk thread: bounded and in order; each command is answered once.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::Session;
use engine::control::{Command, Report};
use engine::ids::VolumeId;
use engine::plan::Targets;
use engine::upstream::LinkId;
use tokio::sync::{mpsc, oneshot};

use super::places;
use super::{Backing, Stopped};
use crate::access::Access;
use crate::peer::Peer;
use crate::reactor::{LayerCommand, LayerReport, Waker};
use crate::sessions::Lease;

/// Queued messages. Further ones wait in their senders.
const MAILS_MAX: usize = 256;

/// A client whose handshake is complete.
#[derive(Debug)]
pub struct Client {
    /// Its connection.
    pub socket: OwnedFd,
    /// Bytes received beyond the handshake.
    pub received: Vec<u8>,
    /// The volume that it opened.
    pub volume: VolumeId,
    /// The result of the negotiation.
    pub session: Session,
    /// The client's identity, for the log.
    pub peer: Peer,
    /// Its seat, which is returned when the connection is forgotten.
    pub seat: Option<Arc<places::Place>>,
    /// Its part in the session that the client has claimed; dropped when the connection is forgotten.
    pub lease: Option<Lease>,
}

/// A message.
pub enum Mail {
    /// A command to the engine.
    Command {
        /// The command.
        command: Command,
        /// Where the data of a volume is that is opened.
        backing: Option<Backing>,
        /// Receives the answer.
        reply: oneshot::Sender<Report>,
    },
    /// A command to the layers on the device. It is answered even if the device hangs.
    Layers {
        /// The command.
        command: LayerCommand,
        /// Receives the answer.
        reply: oneshot::Sender<LayerReport>,
    },
    /// Disconnect the clients of a volume whose access is not permitted any more.
    Restrict {
        /// The volume.
        volume: VolumeId,
        /// The clients that may open it.
        access: Access,
        /// Whether all clients may only read.
        read_only: bool,
        /// Receives the answer.
        reply: oneshot::Sender<Report>,
    },
    /// Disconnect the clients whose sessions are superseded.
    Expel,
    /// End a session with a lease, unless that runs, and disconnect its client.
    ExpelSilent {
        /// The session.
        session: Lease,
        /// Receives for how long the lease runs, if it does.
        reply: oneshot::Sender<Option<Duration>>,
    },
    /// A new client.
    Attach(Client),
    /// A connection to the server of a volume was established, or could not be.
    Connected {
        /// The volume.
        volume: VolumeId,
        /// The opening of its number.
        serial: u64,
        /// The connection.
        link: LinkId,
        /// Its socket.
        socket: Option<OwnedFd>,
    },
    /// The server of a volume has ended a connection.
    Ended {
        /// The volume.
        volume: VolumeId,
        /// The opening of its number.
        serial: u64,
        /// The connection.
        link: LinkId,
    },
    /// The planner's answer to the engine's evidence.
    Targets(Box<Targets>),
}

/// The receiving end, in the disk thread.
pub struct Mailbox {
    mails: mpsc::Receiver<Mail>,
    stopping: Arc<AtomicBool>,
}

impl Mailbox {
    /// The next message, if there is one.
    pub fn take(&mut self) -> Option<Mail> {
        self.mails.try_recv().ok()
    }

    /// Whether the thread is to end.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// The sending end, in control.
#[derive(Clone, Debug)]
pub struct Sender {
    mails: mpsc::Sender<Mail>,
    stopping: Arc<AtomicBool>,
    waker: Waker,
}

/// Reserved room for a client.
#[derive(Debug)]
pub struct Room {
    permit: mpsc::OwnedPermit<Mail>,
    waker: Waker,
}

impl Room {
    /// Sends the client. If the thread has been stopped meanwhile, the connection is closed.
    pub fn take(self, client: Client) {
        self.permit.send(Mail::Attach(client));
        self.waker.wake();
    }
}

/// Both ends of a mailbox, for the thread that `waker` wakes.
pub fn new(waker: Waker) -> (Sender, Mailbox) {
    let (mails, mailbox) = mpsc::channel(MAILS_MAX);
    let stopping = Arc::new(AtomicBool::new(false));
    let sender = Sender { mails, stopping: Arc::clone(&stopping), waker };
    (sender, Mailbox { mails: mailbox, stopping })
}

impl Sender {
    /// Sends a command when there is room, and waits for the answer.
    pub fn ask(
        &self,
        command: Command,
        backing: Option<Backing>,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.post(|reply| Mail::Command { command, backing, reply })
    }

    /// Sends a command to the layers when there is room, and waits for the answer.
    pub fn ask_layers(&self, command: LayerCommand) -> impl Future<Output = Result<LayerReport, Stopped>> + use<> {
        self.post(|reply| Mail::Layers { command, reply })
    }

    /// Disconnects the clients of a volume whose access is not permitted any more.
    pub fn restrict(
        &self,
        volume: VolumeId,
        access: Access,
        read_only: bool,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.post(move |reply| Mail::Restrict { volume, access, read_only, reply })
    }

    /// Disconnects the clients whose sessions are superseded. Returns when there is room for the message.
    pub fn expel(&self) -> impl Future<Output = Result<(), Stopped>> + use<> {
        let sender = self.clone();
        async move {
            sender.mails.send(Mail::Expel).await.map_err(|_| Stopped)?;
            sender.waker.wake();
            Ok(())
        }
    }

    /// Ends a session, unless its lease runs: then the answer is for how long.
    pub fn expel_silent(&self, session: Lease) -> impl Future<Output = Result<Option<Duration>, Stopped>> + use<> {
        self.post(move |reply| Mail::ExpelSilent { session, reply })
    }

    fn post<T, F>(&self, mail: F) -> impl Future<Output = Result<T, Stopped>> + use<T, F>
    where
        F: FnOnce(oneshot::Sender<T>) -> Mail,
    {
        let sender = self.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            sender.mails.send(mail(reply)).await.map_err(|_| Stopped)?;
            sender.waker.wake();
            answer.await.map_err(|_| Stopped)
        }
    }

    /// Sends the planner's answer when there is room. Not for asynchronous callers.
    pub fn send_targets(&self, targets: Box<Targets>) -> Result<(), Stopped> {
        self.mails.blocking_send(Mail::Targets(targets)).map_err(|_| Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// A connection to the server of a volume was established, or could not be.
    pub async fn connected(self, volume: VolumeId, serial: u64, link: LinkId, socket: Option<OwnedFd>) {
        self.tell(Mail::Connected { volume, serial, link, socket }).await;
    }

    /// The server of a volume has ended a connection.
    pub async fn ended(self, volume: VolumeId, serial: u64, link: LinkId) {
        self.tell(Mail::Ended { volume, serial, link }).await;
    }

    /// Sends a message that needs no answer. A thread that was stopped needs none of them.
    async fn tell(&self, mail: Mail) {
        if self.mails.send(mail).await.is_ok() {
            self.waker.wake();
        }
    }

    /// Waits until there is room for a client.
    pub fn room(&self) -> impl Future<Output = Result<Room, Stopped>> + use<> {
        let (mails, waker) = (self.mails.clone(), self.waker.clone());
        async move { Ok(Room { permit: mails.reserve_owned().await.map_err(|_| Stopped)?, waker }) }
    }

    /// Ends the thread, before it handles queued messages.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }
}
