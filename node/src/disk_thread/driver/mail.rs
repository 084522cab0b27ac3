//! Mail: commands of control, their answers, and new clients.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use engine::Event;
use engine::control::{Command, Report};
use engine::ids::{ConnId, TenantId, VolumeId};
use engine::units::Nanos;
use tokio::sync::oneshot;

use super::Driver;
use crate::access::{Access, Grant};
use crate::disk_thread::Backing;
use crate::disk_thread::connection::{Connection, Handed, Phase};
use crate::disk_thread::giving::Giving;
use crate::disk_thread::mailbox::{Client, Mail};
use crate::incidents::{self, Incident};
use crate::reactor::{Place, Reactor};
use crate::sessions::Lease;

/// Messages in one pass.
const MAILS_PER_PASS: usize = 64;
/// New connections in one pass. Each takes the thread [`ATTACH_NS`], for which requests have to wait.
pub(super) const ATTACHES_PER_PASS: usize = 2;
/// The time that a new connection takes: setting up and closing its socket, its entries in the reactor and in the
/// engine: 20 µs. It is charged to its tenant.
const ATTACH_NS: Nanos = 20_000;
/// Size of the socket buffers of local clients, bytes: a reply of this size is sent in one call.
const SOCKET_BUFFER: libc::c_int = 1024 * 1024;

/// A command that is not answered yet.
pub struct Pending {
    reply: oneshot::Sender<Report>,
    pub then: Then,
}

/// What to do with a volume's file, or with memory, when the command is answered.
#[derive(Clone, Copy)]
pub enum Then {
    Nothing,
    /// Close the file if the command is refused.
    CloseUnlessDone(VolumeId),
    /// Close the file if the command succeeds.
    CloseIfDone(VolumeId),
    /// Unless refused, return the memory that the engine has released before answering.
    GiveBack,
}

impl<R: Reactor> Driver<R> {
    pub(super) fn read_mail(&mut self) {
        if !self.mail {
            return;
        }
        let mut attached = 0;
        for _ in 0..MAILS_PER_PASS {
            if attached == ATTACHES_PER_PASS {
                return;
            }
            match self.mailbox.take() {
                Some(Mail::Command { command, backing, reply }) => self.command(command, backing, reply),
                Some(Mail::Layers { command, reply }) => drop(reply.send(self.reactor.command(command))),
                Some(Mail::Expel) => self.expel(),
                Some(Mail::ExpelSilent { session, reply }) => drop(reply.send(self.expel_silent(&session))),
                Some(Mail::Attach(client)) => {
                    attached += 1;
                    self.attach(client);
                }
                Some(Mail::Connected { volume, serial, link, socket }) => self.connected(volume, serial, link, socket),
                Some(Mail::Ended { volume, serial, link }) => self.ended(volume, serial, link),
                Some(Mail::Targets(targets)) => self.apply(Event::Targets(targets)),
                Some(Mail::Restrict { volume, access, read_only, reply }) => {
                    let expelled = self.expelled(volume, &access);
                    self.command(Command::Restrict { volume, read_only, expelled }, None, reply);
                }
                None => {
                    self.mail = false;
                    return;
                }
            }
        }
    }

    pub(super) fn command(&mut self, command: Command, backing: Option<Backing>, reply: oneshot::Sender<Report>) {
        let mut then = Then::Nothing;
        self.token += 1;
        match (&command, backing) {
            // If the number is in use, the engine refuses, and the data of that number must stay.
            (Command::OpenVolume(spec), Some(backing)) if !self.tenants.contains_key(&spec.volume) => {
                match backing {
                    Backing::File(file, place) => self.open_file(spec.volume, file, place),
                    Backing::Upstream(legs) => self.enter_away(spec.volume, spec.tenant, legs),
                }
                self.tenants.insert(spec.volume, spec.tenant);
                then = Then::CloseUnlessDone(spec.volume);
            }
            (&Command::CloseVolume { volume, .. }, _) => then = Then::CloseIfDone(volume),
            (Command::SetBudget(_), _) => {
                // From now on, frames above the old limit may be used again.
                self.end_giving();
                then = Then::GiveBack;
            }
            _ => {}
        }
        self.pending.insert(self.token, Pending { reply, then });
        self.apply(Event::Control { token: self.token, command });
    }

    fn open_file(&mut self, volume: VolumeId, file: File, place: Place) {
        self.reactor.place(volume, place);
        if let Err(error) = self.reactor.open_volume(volume, file) {
            tracing::error!(disk = self.options.name, volume = volume.0, %error, "a file cannot be used");
        }
    }

    pub(super) fn answer(&mut self, token: u64, report: Report) {
        let Pending { reply, then } = self.pending.remove(&token).expect("each command is answered once");
        match (then, matches!(report, Report::Done)) {
            (Then::CloseIfDone(volume), true) | (Then::CloseUnlessDone(volume), false) => {
                self.tenants.remove(&volume);
                self.reactor.close_volume(volume);
                self.leave_away(volume);
            }
            _ => {}
        }
        // The sender of the command may have disconnected.
        let _ = reply.send(report);
    }

    pub(super) fn give_back(&mut self) {
        if let Some(giving) = &mut self.giving
            && giving.step(&self.server, &mut self.frames, &mut self.reactor)
        {
            self.end_giving();
        }
    }

    fn end_giving(&mut self) {
        if let Some(Giving { answer: Some((token, report)), .. }) = self.giving.take() {
            self.answer(token, report);
        }
    }

    /// Clients of a volume whose access exceeds what they may do.
    fn expelled(&self, volume: VolumeId, access: &Access) -> Vec<ConnId> {
        let is_expelled = |connection: &Connection| {
            let grant = access.grants(&connection.peer);
            connection.volume == volume && grant < Some(if connection.read_only { Grant::Read } else { Grant::Write })
        };
        let connections = self.connections.iter().enumerate();
        let expelled = connections.filter(|(_, connection)| connection.as_ref().is_some_and(is_expelled));
        expelled.map(|(at, _)| ConnId(at as u32)).collect()
    }

    /// Closes the connections of superseded sessions, without their last replies: their clients have given them up.
    fn expel(&mut self) {
        for at in 0..self.connections.len() {
            let Some(connection) = &self.connections[at] else { continue };
            let Some(session) = connection.lease.as_ref().filter(|session| session.is_superseded()) else { continue };
            if matches!(connection.phase, Phase::Open | Phase::Finishing { .. }) {
                if let Some(more) = incidents::note(Incident::Superseded) {
                    let (disk, volume) = (&self.options.name, self.reactor.name_of(connection.volume));
                    let (gateway, client) = (&session.claim.client, &connection.peer);
                    tracing::info!(disk, volume, gateway, %client, "a later session has begun: disconnected{more}");
                }
                self.close(ConnId(at as u32));
            }
        }
    }

    /// Ends a session and closes its connections, unless something of it has arrived within its lease. Nothing that
    /// arrives later is answered.
    fn expel_silent(&mut self, session: &Lease) -> Option<Duration> {
        let left = session.end_if_silent(self.now);
        if left.is_none() {
            self.expel();
        }
        left
    }

    pub(super) fn attach(&mut self, client: Client) {
        let disk = &self.options.name;
        if client.lease.as_ref().is_some_and(|session| session.is_superseded()) {
            return;
        }
        if self.free.is_empty() && self.connections.len() >= self.options.limits.disk as usize {
            // Cannot happen to clients that reserved a seat.
            tracing::error!(disk, client = %client.peer, "no free connection slot for the client: disconnected");
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() as u32 - 1
        });
        let conn = ConnId(index);
        let local = tune(&client.socket);
        if let Err(error) = self.reactor.open_socket(conn, client.socket) {
            tracing::error!(disk, %error, "a connection cannot be used");
            self.free.push(index);
            return;
        }
        let Client { volume, session, received, peer, seat, lease, .. } = client;
        let owner = self.tenants.get(&volume).copied();
        // An unknown volume has no tenant; its connection is closed before it is served.
        let tenant = owner.unwrap_or(TenantId(0));
        let handed = Handed { volume, received, read_only: session.read_only, peer, seat, lease };
        self.connections[index as usize] = Some(Connection::new(handed, tenant, local, self.now));
        // A connection to a volume that was closed is not served, and not charged to another tenant.
        if let Some(owner) = owner {
            self.cpu.attach(conn, owner);
            self.cpu.charge_to(owner, ATTACH_NS);
        }
        self.apply(Event::Attach { conn, volume, session });
        self.cpu.ready(conn);
    }
}

/// Disables Nagle's algorithm on TCP, whose buffers the kernel sizes by itself, and enlarges the buffers of Unix
/// sockets. Returns whether it is a Unix socket.
pub(super) fn tune(socket: &OwnedFd) -> bool {
    let set = |level, name, value: libc::c_int| {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: reads an integer of ours. Failures are harmless.
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(&value).cast(), len) == 0 }
    };
    let local = !set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if local {
        // Sizes above the system's limit need a privilege.
        for (force, plain) in [(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF), (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)] {
            if !set(libc::SOL_SOCKET, force, SOCKET_BUFFER) {
                set(libc::SOL_SOCKET, plain, SOCKET_BUFFER);
            }
        }
    }
    local
}
