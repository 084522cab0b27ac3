//! Requests to volumes on other servers whose sessions have leases ([`crate::upstream`]).
//!
//! ```text
//!   begin ─► ceilings ─► start ─┬─ the leases of the servers that it needs run ──────► cache, upstream
//!                               ├─ one has ended: it waits here, in order of arrival ───┘ a session begins
//!                               │                                    └─► EIO after the deadline of the upstream
//!                               └─ another client was admitted: EIO
//! ```
//!
//! From the end of a lease on, another client may be admitted and write, so what is cached may be outdated, and what is
//! written may never be read. Whether a lease runs is decided when a request arrives: one that arrived before the end
//! may be answered after it, since it was there at the same time as the other client's requests.
//!
//! A flush does not wait: it goes to the servers that were written to, and waits there for a session.

use super::{Effect, Inbound, Kind, Request, Timer, Volumes};
use crate::errno::Errno;
use crate::ids::{ConnId, VolumeId};
use crate::units::{Nanos, PIECE};

impl Volumes {
    /// Whether a request must not begin now. It then waits for a session, or is refused.
    pub(super) fn is_stopped_by_lease(&mut self, request: u32) -> bool {
        let Request { conn, volume, kind, start, end, .. } = self.requests[request];
        let state = &self.table[volume];
        if !state.is_leased {
            return false;
        }
        if state.is_fenced || self.draining.is_some() && self.is_lapsed(request) {
            self.refuse_late(request);
            return true;
        }
        if !self.is_lapsed(request) {
            return false;
        }
        self.requests[request].held_at = Some(self.now);
        let client = &mut self.clients[conn];
        match kind {
            Kind::Write => client.inbound = Inbound::Held,
            // As without leases, see `read_arrived`.
            Kind::Read if end - start > PIECE && !client.session.form.is_structured() => {
                client.exclusive = Some(request);
            }
            _ => {}
        }
        self.table[volume].lapsed.push_back(request);
        self.fail_lapsed_later(volume);
        true
    }

    /// Whether a server that a request needs has granted a lease that has ended.
    fn is_lapsed(&self, request: u32) -> bool {
        let Request { volume, kind, start, end, .. } = self.requests[request];
        kind != Kind::Flush && self.route.is_lapsed(self.now, volume, start, end)
    }

    /// Answers with EIO.
    fn refuse_late(&mut self, request: u32) {
        let Request { kind, start, end, .. } = self.requests[request];
        self.refuse(request, Errno::Io, if kind == Kind::Write { end - start } else { 0 });
    }

    /// A session of a server of this volume has begun: what waited for it goes on, in order of arrival.
    pub(super) fn lease_granted(&mut self, volume: VolumeId) {
        self.go_through_lapsed(volume, |volumes, request| !volumes.is_lapsed(request));
    }

    /// Another client was admitted, or an export cannot be used any more: no request of the volume succeeds from now
    /// on.
    pub(super) fn fence(&mut self, volume: VolumeId) {
        if !self.table[volume].is_leased || planted!(FencedReadsCache) {
            return;
        }
        self.table[volume].is_fenced = true;
        let now = self.now;
        self.route.each_upstream(volume, |upstream| upstream.give_up(now));
        self.go_through_lapsed(volume, |_, _| true);
    }

    /// Something could not be written: if that is because another client was admitted, it never can be, and nobody
    /// waits for its frames.
    pub(super) fn forget_if_fenced(&mut self, volume: VolumeId) {
        if self.table[volume].is_fenced && !planted!(FencedDirtKept) {
            self.table[volume].clear_looks = self.cache.cached_blocks(volume) as u32;
            self.poke(volume);
        }
    }

    /// Requests have waited for too long, or the server stops.
    pub(crate) fn fail_lapsed(&mut self) {
        for volume in (0..self.table.past()).map(VolumeId) {
            if self.table.get(volume).is_none_or(|state| state.lapsed.is_empty()) {
                continue;
            }
            while let Some(&request) = self.table[volume].lapsed.front()
                && (self.draining.is_some() || self.lapsed_until(volume, request) <= self.now)
            {
                self.table[volume].lapsed.pop_front();
                self.take_lapsed(request);
                self.refuse_late(request);
            }
            self.fail_lapsed_later(volume);
        }
    }

    fn lapsed_until(&self, volume: VolumeId, request: u32) -> Nanos {
        self.requests[request].held_at.unwrap_or(0) + self.route.deadline_ns(volume)
    }

    fn fail_lapsed_later(&mut self, volume: VolumeId) {
        if let Some(&request) = self.table[volume].lapsed.front() {
            self.timers.wake_at(Timer::Leases, self.lapsed_until(volume, request));
        }
    }

    /// A request is out of the queue. Returns its connection.
    fn take_lapsed(&mut self, request: u32) -> ConnId {
        let Request { conn, .. } = self.requests[request];
        self.requests[request].held_at = None;
        if self.clients[conn].inbound == Inbound::Held && self.requests[request].kind == Kind::Write {
            self.clients[conn].inbound = Inbound::Header;
        }
        self.effects.push(Effect::Recheck(conn));
        conn
    }

    /// Begins those of the waiting requests that `may_go`.
    fn go_through_lapsed(&mut self, volume: VolumeId, may_go: impl Fn(&Volumes, u32) -> bool) {
        for _ in 0..self.table[volume].lapsed.len() {
            let Some(request) = self.table[volume].lapsed.pop_front() else { break };
            if may_go(self, request) {
                self.take_lapsed(request);
                self.start(request);
            } else {
                self.table[volume].lapsed.push_back(request);
            }
        }
    }

    /// A client has disconnected: its requests that wait are dropped.
    pub(super) fn forget_lapsed(&mut self, volume: VolumeId, conn: ConnId) {
        for _ in 0..self.table[volume].lapsed.len() {
            let Some(request) = self.table[volume].lapsed.pop_front() else { break };
            if self.requests[request].conn == conn {
                let state = &mut self.requests[request];
                (state.next, state.held_at) = (state.end, None);
                self.finish(request);
            } else {
                self.table[volume].lapsed.push_back(request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::errno::Errno;
    use crate::ids::{ConnId, TenantId, VolumeId};
    use crate::nbd::wire::command;
    use crate::spec::{StripeSpec, TenantSpec, UpstreamSpec, VolumeSpec};
    use crate::units::{BLOCK, SECOND};
    use crate::volume::Receive;
    use crate::volume::rig::Rig;

    const VOLUME: VolumeId = VolumeId(1);

    /// A volume that is striped over two servers with leases, without a session, and its client.
    fn rig() -> (Rig, ConnId) {
        let (far, conn) = (TenantId(1), ConnId(2));
        let mut rig = Rig::new();
        rig.set_tenant(far, TenantSpec { is_remote: true, ..TenantSpec::default() });
        let upstream = UpstreamSpec { is_leased: true, ..UpstreamSpec::plain(1 << 20) };
        let stripes = Some(StripeSpec { unit: BLOCK, others: vec![(VolumeId(2), upstream.clone())] });
        rig.open_volume(VolumeSpec { upstream: Some(upstream), stripes, ..VolumeSpec::plain(VOLUME, far, 2 << 20) });
        rig.attach(conn, VOLUME);
        (rig, conn)
    }

    fn pending(rig: &Rig) -> usize {
        rig.volumes.route.upstreams(VOLUME).map(|upstream| upstream.pending().count()).sum()
    }

    #[test]
    fn requests_wait_for_a_lease_and_fail_at_the_deadline() {
        let (mut rig, conn) = rig();
        rig.ask_as(conn, 1, command::READ, 0, 0, BLOCK);
        rig.wait(SECOND / 2);
        rig.write_as(conn, 2, 0, BLOCK, BLOCK, 7);
        assert_eq!((rig.answer(1), pending(&rig)), (None, 0), "nothing is asked of a server");
        rig.wait(SECOND / 2);
        assert_eq!((rig.answer(1), rig.answer(2)), (Some(Errno::Io as u32), None));
        rig.wait(SECOND / 2);
        assert_eq!(rig.receive(conn), Receive::Discard(BLOCK), "its payload is on the way");
        rig.event(|volumes| volumes.discarded(conn, BLOCK));
        assert_eq!(rig.answer(2), Some(Errno::Io as u32));
        assert!(rig.volumes.volume(VOLUME).lapsed.is_empty());
    }

    #[test]
    fn what_waits_is_dropped_with_its_client_and_fails_when_another_client_was_admitted() {
        let (mut rig, conn) = rig();
        let other = ConnId(3);
        rig.attach(other, VOLUME);
        for (conn, cookie) in [(conn, 1), (other, 2), (conn, 3)] {
            rig.ask_as(conn, cookie, command::READ, 0, 0, BLOCK);
        }
        rig.close(conn);
        assert_eq!(rig.volumes.volume(VOLUME).lapsed.len(), 1);
        rig.event(|volumes| volumes.fence(VOLUME));
        assert_eq!(rig.answer(2), Some(Errno::Io as u32));
        rig.ask_as(other, 4, command::READ, 0, 0, BLOCK);
        rig.ask_as(other, 5, command::FLUSH, 0, 0, 0);
        assert_eq!([4, 5].map(|cookie| rig.answer(cookie)), [Some(Errno::Io as u32); 2], "at once");
    }
}
