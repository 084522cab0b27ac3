//! Connections to the servers of volumes that are elsewhere.
//!
//! ```text
//!   Action::Upstream ── Open ─► dialer … Mail::Connected ─► reactor ── Received, Filled, Sent ─► Event::Upstream
//!                    ── Send ─► reactor
//!                    ── Close ► reactor ─► Closed ─► dialer watches until the server has ended it ─► Mail::Ended
//! ```
//!
//! Replies are read outside of tenants' quanta, because frames are reserved for them; the time is charged afterwards.
//! Data goes from the receive buffer, or from the socket if there is much of it, to its frames: the only copy.

use std::os::fd::OwnedFd;

use engine::Event;
use engine::disk::Segment;
use engine::ids::{ConnId, TenantId, VolumeId};
use engine::units::Nanos;
use engine::upstream::{self, LinkId, Request};

use super::mail::tune;
use super::{DIRECT_BYTES_MIN, Driver};
use crate::disk_thread::connection::Input;
use crate::disk_thread::uplink::{Away, Phase, State, UPLINKS_MAX, Uplink};
use crate::reactor::{BufferId, Completion, Reactor};
use crate::upstream::Leg;

/// Bytes of replies, other than data, that one event takes: a few headers, which are copied.
const HEADERS_BYTES: usize = 256;
/// Bytes of data that are copied or received per nanosecond, and the time of an event: charged to the tenant.
const BYTES_PER_NS: u64 = 10;
const EVENT_NS: Nanos = 500;

impl<R: Reactor> Driver<R> {
    /// From now on a volume is on another server, or striped over several.
    pub(super) fn enter_away(&mut self, volume: VolumeId, tenant: TenantId, legs: Vec<Leg>) {
        for Leg { number, dialer } in legs {
            self.away.insert(number, Away { serial: self.token, volume, dialer, tenant, links: Vec::new() });
        }
    }

    /// The volume is not served any more; its connections are closed.
    pub(super) fn leave_away(&mut self, volume: VolumeId) {
        let left: Vec<Away> = self.away.extract_if(|_, away| away.volume == volume).map(|(_, away)| away).collect();
        for state in left.into_iter().flat_map(|away| away.links) {
            if let State::There(conn) = state {
                self.close_uplink(conn, true);
            }
        }
    }

    pub(super) fn ask_upstream(&mut self, volume: VolumeId, request: &Request) {
        let Some(away) = self.away.get_mut(&volume) else { return };
        let (serial, sender) = (away.serial, self.sender.clone());
        match *request {
            Request::Open(link) => {
                *away.link(link) = State::Dialling { given_up: false };
                away.dialer.dial(move |socket| async move { sender.connected(volume, serial, link, socket).await });
            }
            Request::Send(link) => {
                if let State::There(conn) = *away.link(link) {
                    self.queue_uplink(conn);
                }
            }
            Request::Close { link, was_used } => match away.link(link) {
                State::Dialling { given_up } => *given_up = true,
                &mut State::There(conn) => self.close_uplink(conn, !was_used),
                State::None => {}
            },
            Request::Online(_) | Request::Refused(_) | Request::Lost(_) | Request::Offline(_) => {
                away.dialer.note(request);
            }
        }
    }

    /// A connection was established, or could not be.
    pub(super) fn connected(&mut self, volume: VolumeId, serial: u64, link: LinkId, socket: Option<OwnedFd>) {
        let Some(away) = self.away.get_mut(&volume).filter(|away| away.serial == serial) else { return };
        let given_up = *away.link(link) == State::Dialling { given_up: true };
        *away.link(link) = State::None;
        let conn = socket.filter(|_| !given_up).and_then(|socket| self.enter_uplink(volume, serial, link, socket));
        let Some(conn) = conn else {
            // Nothing was sent on it.
            self.apply(Event::Upstream { volume, event: upstream::Event::Closed(link) });
            return self.apply(Event::Upstream { volume, event: upstream::Event::Ended(link) });
        };
        if let Some(away) = self.away.get_mut(&volume) {
            *away.link(link) = State::There(conn);
        }
        self.apply(Event::Upstream { volume, event: upstream::Event::Connected(link) });
        self.receive_uplink(conn);
    }

    fn enter_uplink(&mut self, volume: VolumeId, serial: u64, link: LinkId, socket: OwnedFd) -> Option<ConnId> {
        let free = self.uplinks.iter().position(Option::is_none);
        let at = free.or_else(|| {
            let more = (self.uplinks.len() as u32) < UPLINKS_MAX;
            more.then(|| self.uplinks.push(None)).map(|()| self.uplinks.len() - 1)
        });
        let disk = &self.options.name;
        let Some(at) = at else {
            tracing::error!(disk, "more than {UPLINKS_MAX} connections to other servers are needed");
            return None;
        };
        tune(&socket);
        let conn = ConnId(self.options.limits.disk + at as u32);
        let shared = socket.try_clone();
        let opened = shared.and_then(|shared| self.reactor.open_socket(conn, socket).map(|()| shared));
        match opened {
            Ok(socket) => {
                let (input, phase) = (Input::default(), Phase::Open);
                let (receiving, sending, send_queued) = (false, false, false);
                let uplink = Uplink { volume, serial, link, socket, input, phase, receiving, sending, send_queued };
                self.uplinks[at] = Some(uplink);
                Some(conn)
            }
            Err(error) => {
                tracing::error!(disk, %error, "a connection to another server cannot be used");
                None
            }
        }
    }

    /// The server has ended a connection that the dialer watched.
    pub(super) fn ended(&mut self, volume: VolumeId, serial: u64, link: LinkId) {
        if self.away.get(&volume).is_some_and(|away| away.serial == serial) {
            self.apply(Event::Upstream { volume, event: upstream::Event::Ended(link) });
        }
    }

    /// Whether a slot is that of a connection to another server.
    fn uplink(&mut self, conn: ConnId) -> Option<&mut Uplink> {
        let at = conn.0.checked_sub(self.options.limits.disk)?;
        self.uplinks.get_mut(at as usize)?.as_mut()
    }

    /// Applies an event of a connection, unless its volume was closed. The event's time is the tenant's.
    fn apply_uplink(&mut self, conn: ConnId, bytes: u64, event: impl FnOnce(LinkId) -> upstream::Event<'static>) {
        let Some(&mut Uplink { volume, serial, link, .. }) = self.uplink(conn) else { return };
        let Some(away) = self.away.get(&volume).filter(|away| away.serial == serial) else { return };
        self.cpu.charge_to(away.tenant, EVENT_NS + bytes / BYTES_PER_NS);
        self.apply(Event::Upstream { volume, event: event(link) });
    }

    /// Handles a completion if it is one of a connection to another server.
    pub(super) fn complete_uplink(&mut self, completion: Completion) -> bool {
        let conn = match completion {
            Completion::Received { conn, .. } | Completion::Filled { conn, .. } | Completion::Sent { conn, .. } => conn,
            Completion::ReceiveEnded { conn } | Completion::SendFailed { conn } | Completion::Closed { conn } => conn,
            Completion::Io { .. } | Completion::Woken => return false,
        };
        let Some(uplink) = self.uplink(conn) else { return false };
        let is_open = uplink.phase == Phase::Open;
        match completion {
            Completion::Received { buffer, len, .. } => self.uplink_received(conn, buffer, len),
            Completion::Filled { bytes, .. } => {
                uplink.receiving = false;
                if is_open {
                    self.apply_uplink(conn, bytes, |link| upstream::Event::Filled(link, bytes));
                    self.feed_uplink(conn);
                }
            }
            Completion::Sent { bytes, .. } => {
                uplink.sending = false;
                if is_open {
                    self.apply_uplink(conn, bytes, |link| upstream::Event::Sent(link, bytes));
                    self.queue_uplink(conn);
                }
            }
            Completion::ReceiveEnded { .. } => {
                uplink.receiving = false;
                self.close_uplink(conn, true);
            }
            Completion::SendFailed { .. } => {
                uplink.sending = false;
                self.close_uplink(conn, false);
            }
            Completion::Closed { .. } => self.uplink_closed(conn),
            Completion::Io { .. } | Completion::Woken => unreachable!("excluded above"),
        }
        true
    }

    fn uplink_received(&mut self, conn: ConnId, buffer: BufferId, len: usize) {
        let Some(uplink) = self.uplink(conn) else { return self.reactor.release(buffer) };
        uplink.receiving = false;
        if uplink.phase != Phase::Open {
            return self.reactor.release(buffer);
        }
        uplink.input.hold(buffer, len);
        self.feed_uplink(conn);
    }

    /// Passes received bytes to the upstream, then receives more.
    fn feed_uplink(&mut self, conn: ConnId) {
        let at = (conn.0 - self.options.limits.disk) as usize;
        while let Some(uplink) = self.uplinks[at].as_mut().filter(|uplink| uplink.phase == Phase::Open) {
            if uplink.input.len() == 0 {
                break;
            }
            let (volume, serial, link) = (uplink.volume, uplink.serial, uplink.link);
            if self.away.get(&volume).is_none_or(|away| away.serial != serial) {
                uplink.input.clear(&mut self.reactor);
                break;
            }
            let filled = self.fill_uplink(at);
            if filled > 0 {
                self.apply_uplink(conn, filled, |link| upstream::Event::Filled(link, filled));
                continue;
            }
            let mut headers = [0; HEADERS_BYTES];
            let uplink = self.uplinks[at].as_mut().expect("just seen");
            let front = uplink.input.front(&self.reactor);
            let part = front.len().min(HEADERS_BYTES);
            headers[..part].copy_from_slice(&front[..part]);
            self.apply(Event::Upstream { volume, event: upstream::Event::Received(link, &headers[..part]) });
            let taken = self.server.upstream_taken(volume);
            // Otherwise the session was lost, and with it the input.
            let Some(uplink) = self.uplinks[at].as_mut().filter(|uplink| uplink.phase == Phase::Open) else { return };
            if taken == 0 {
                tracing::error!(disk = self.options.name, "an upstream takes no bytes: its connection is closed");
                return self.close_uplink(conn, false);
            }
            uplink.input.consume(taken, &mut self.reactor);
        }
        self.receive_uplink(conn);
    }

    /// Copies received data to its frames. Returns the bytes copied.
    fn fill_uplink(&mut self, at: usize) -> u64 {
        let Some(uplink) = &mut self.uplinks[at] else { return 0 };
        let mut filled = 0;
        for segment in self.server.upstream_data(uplink.volume, uplink.link) {
            let (mut start, end) = (u64::from(segment.start), u64::from(segment.start) + u64::from(segment.len));
            while start < end {
                let front = uplink.input.front(&self.reactor);
                let part = (front.len() as u64).min(end - start);
                if part == 0 {
                    return filled;
                }
                self.frames.put(Segment::new(segment.frame, start, start + part), &front[..part as usize]);
                uplink.input.consume(part as usize, &mut self.reactor);
                start += part;
                filled += part;
            }
        }
        filled
    }

    /// Receives the next bytes: much data directly into its frames.
    fn receive_uplink(&mut self, conn: ConnId) {
        let at = (conn.0 - self.options.limits.disk) as usize;
        let Some(uplink) = self.uplinks[at].as_mut().filter(|uplink| uplink.phase == Phase::Open) else { return };
        if uplink.receiving || uplink.input.len() > 0 {
            return;
        }
        uplink.receiving = true;
        let (volume, link) = (uplink.volume, uplink.link);
        let data: u64 = self.server.upstream_data(volume, link).map(|segment| u64::from(segment.len)).sum();
        if data >= DIRECT_BYTES_MIN {
            return self.reactor.receive_into(conn, self.server.upstream_data(volume, link));
        }
        match self.server.upstream_head_bytes(volume, link, DIRECT_BYTES_MIN).filter(|_| data == 0) {
            Some(bytes) => self.reactor.receive_most(conn, bytes),
            None => self.reactor.receive(conn),
        }
    }

    /// Queues a connection for sending in this pass.
    fn queue_uplink(&mut self, conn: ConnId) {
        let Some(uplink) = self.uplink(conn) else { return };
        if uplink.phase == Phase::Open && !uplink.sending && !std::mem::replace(&mut uplink.send_queued, true) {
            self.uplink_senders.push(conn);
        }
    }

    /// Starts the sends of this pass.
    pub(super) fn send_uplinks(&mut self) {
        for conn in std::mem::take(&mut self.uplink_senders) {
            let at = (conn.0 - self.options.limits.disk) as usize;
            let Some(uplink) = &mut self.uplinks[at] else { continue };
            uplink.send_queued = false;
            let mut parts = self.server.upstream_outgoing(uplink.volume, uplink.link).peekable();
            if uplink.phase == Phase::Open && parts.peek().is_some() {
                uplink.sending = true;
                self.reactor.send(conn, parts);
            }
        }
    }

    /// Closes a connection; `ended` if the server has ended it, or if nothing depends on that.
    fn close_uplink(&mut self, conn: ConnId, ended: bool) {
        let at = (conn.0 - self.options.limits.disk) as usize;
        let Some(uplink) = self.uplinks[at].as_mut().filter(|uplink| uplink.phase == Phase::Open) else { return };
        uplink.phase = Phase::Closing { ended };
        uplink.input.clear(&mut self.reactor);
        if ended { self.reactor.close_socket(conn) } else { self.reactor.leave_socket(conn) }
    }

    /// The kernel has no operation of a connection any more.
    fn uplink_closed(&mut self, conn: ConnId) {
        let at = (conn.0 - self.options.limits.disk) as usize;
        let Some(Uplink { volume, serial, link, socket, phase, .. }) = self.uplinks[at].take() else { return };
        let Some(away) = self.away.get_mut(&volume).filter(|away| away.serial == serial) else { return };
        *away.link(link) = State::None;
        let has_ended = phase == Phase::Closing { ended: true };
        if !has_ended {
            let sender = self.sender.clone();
            away.dialer.watch(socket, move || async move { sender.ended(volume, serial, link).await });
        }
        self.apply(Event::Upstream { volume, event: upstream::Event::Closed(link) });
        if has_ended {
            self.apply(Event::Upstream { volume, event: upstream::Event::Ended(link) });
        }
    }
}
