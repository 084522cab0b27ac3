//! What control sends to a disk thread: bounded, in order, and each command answered once.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::Session;
use engine::control::{Command, Report};
use engine::disk::VolumeId;
use tokio::sync::{mpsc, oneshot};

use super::Stopped;
use super::places;
use crate::access::Access;
use crate::peer::Peer;
use crate::reactor::{LayerCommand, LayerReport, Place, Waker};

/// Messages that wait. Those beyond wait on their sender's side.
const MAILS_MAX: usize = 256;

/// A client whose handshake is done.
#[derive(Debug)]
pub struct Client {
    /// Its connection.
    pub socket: OwnedFd,
    /// Bytes read beyond the handshake.
    pub received: Vec<u8>,
    /// What it opened.
    pub volume: VolumeId,
    /// What was agreed on.
    pub session: Session,
    /// Who it is, for the log.
    pub peer: Peer,
    /// Its seat; it is given back when the connection is forgotten.
    pub seat: Option<Arc<places::Place>>,
}

/// A message.
pub enum Mail {
    /// Something to do.
    Command {
        /// What.
        command: Command,
        /// The file of a volume to be opened, and its place.
        file: Option<(File, Place)>,
        /// Where the answer goes.
        reply: oneshot::Sender<Report>,
    },
    /// Something to do with the layers on the device; answered even when the device hangs.
    Layers {
        /// What.
        command: LayerCommand,
        /// Where the answer goes.
        reply: oneshot::Sender<LayerReport>,
    },
    /// Clients of a volume that may not use it any more, or not in this way, are to be disconnected.
    Restrict {
        /// Which volume.
        volume: VolumeId,
        /// Which clients may.
        access: Access,
        /// Whether no client may write.
        read_only: bool,
        /// Where the answer goes.
        reply: oneshot::Sender<Report>,
    },
    /// Somebody to serve.
    Attach(Client),
}

/// The thread's end.
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

/// Control's end.
#[derive(Clone, Debug)]
pub struct Sender {
    mails: mpsc::Sender<Mail>,
    stopping: Arc<AtomicBool>,
    waker: Waker,
}

/// Room for a client.
#[derive(Debug)]
pub struct Room {
    permit: mpsc::OwnedPermit<Mail>,
    waker: Waker,
}

impl Room {
    /// The client is sent. If the thread has been stopped meanwhile, its connection is closed.
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
        file: Option<(File, Place)>,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.post(|reply| Mail::Command { command, file, reply })
    }

    /// The same for the layers.
    pub fn ask_layers(&self, command: LayerCommand) -> impl Future<Output = Result<LayerReport, Stopped>> + use<> {
        self.post(|reply| Mail::Layers { command, reply })
    }

    /// Disconnects the clients of a volume that may not use it, or not in this way.
    pub fn restrict(
        &self,
        volume: VolumeId,
        access: Access,
        read_only: bool,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.post(move |reply| Mail::Restrict { volume, access, read_only, reply })
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

    /// Waits until there is room for a client.
    pub fn room(&self) -> impl Future<Output = Result<Room, Stopped>> + use<> {
        let (mails, waker) = (self.mails.clone(), self.waker.clone());
        async move { Ok(Room { permit: mails.reserve_owned().await.map_err(|_| Stopped)?, waker }) }
    }

    /// Ends the thread, before any mail that waits.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }
}
