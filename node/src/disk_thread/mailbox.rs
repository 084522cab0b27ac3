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

    /// Sends a client when there is room.
    pub fn attach(&self, client: Client) -> impl Future<Output = Result<(), Stopped>> + use<> {
        let sender = self.clone();
        async move {
            sender.mails.send(Mail::Attach(client)).await.map_err(|_| Stopped)?;
            sender.waker.wake();
            Ok(())
        }
    }

    /// Ends the thread, before any mail that waits.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }
}
