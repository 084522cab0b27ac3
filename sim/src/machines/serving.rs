//! A process as a server of other machines: handshakes, sessions that clients claim, connections.
//!
//! A claim is admitted as [`engine::nbd::Claim`] says: not while another client has the volume; not with an epoch that
//! is recorded already, unless this process has a connection of that session; not if it continues a session after which
//! another client was admitted. Then the epoch is recorded, the earlier connections of the client are closed, and GO is
//! answered when the engine has forgotten them.

use std::collections::BTreeMap;

use engine::driver::Driver as _;
use engine::ids::{ConnId, VolumeId};
use engine::nbd::{Claim, Export, Exports, Form, Handshake, Outcome};
use engine::units::Nanos;
use engine::{Event, Session};

use super::machine::{Running, Use};
use super::network::{Chunk, Service, Wire};
use crate::Verdict;
use crate::trace::Line;

/// The sessions of a volume that are recorded.
#[derive(Default)]
pub(crate) struct Epochs {
    /// The latest epoch of each client.
    of: BTreeMap<String, u64>,
    /// The client that was admitted last.
    pub(super) last: String,
}

/// A client in its handshake.
pub(crate) struct Door {
    handshake: Handshake,
    /// It has claimed a session of this volume, and waits until earlier ones have ended: what is to be answered then.
    waits: Option<(VolumeId, Session, Claim, Vec<u8>)>,
}

/// A connection in transmission.
pub(crate) struct Conn {
    pub(crate) wire: Wire,
    pub(crate) volume: VolumeId,
    pub(super) claim: Option<Claim>,
    /// When something arrived last, by the machine's clock, or it began. Its session has ended although its client does
    /// not know.
    pub(super) heard: Nanos,
    pub(super) is_released: bool,
    /// The engine wants it closed when everything is sent.
    pub(crate) is_closing: bool,
    /// The client has ended it; what it sent before is still there.
    pub(crate) has_ended: bool,
    /// The engine knows that it is closed.
    pub(crate) is_over: bool,
}

/// Whether a claim is admitted.
enum Admission {
    /// At once, or when earlier sessions have ended.
    Granted,
    Waits,
    Refused(String),
    /// The same, because another client was admitted since the session that it continues.
    Interrupted(String),
}

impl Running<'_> {
    /// A connection arrives.
    pub(crate) fn accept(&mut self, wire: Wire, service: Service) -> Verdict {
        self.out.network.accepted(wire, self.machine.life);
        self.send(wire, 0, Chunk::Welcome);
        match service {
            Service::Export => {
                self.process().uses.insert(wire, Use::Door);
                let door = Door { handshake: Handshake::new(), waits: None };
                self.process().doors.insert(wire, door);
                self.negotiate(wire)?;
            }
            // Its client has gone to another machine meanwhile.
            Service::Volume(at) if !self.process().open.contains(&VolumeId(at as u32)) => self.close(wire, 1),
            Service::Volume(at) => {
                let session = Session { form: Form::Structured, ..Session::default() };
                self.attach(wire, VolumeId(at as u32), session, None)?;
            }
        }
        self.settle()
    }

    fn attach(&mut self, wire: Wire, volume: VolumeId, session: Session, claim: Option<Claim>) -> Verdict {
        let process = self.process();
        let conn = (0..).map(ConnId).find(|conn| !process.conns.contains_key(conn)).expect("a free slot");
        process.uses.insert(wire, Use::Conn(conn));
        let heard = self.now();
        let process = self.process();
        let state = Conn {
            wire,
            volume,
            claim,
            heard,
            is_released: false,
            is_closing: false,
            has_ended: false,
            is_over: false,
        };
        process.conns.insert(conn, state);
        let tenant = self.machine.hosted(volume).tenant();
        let process = self.process();
        process.cpu.attach(conn, tenant);
        process.cpu.ready(conn);
        self.out.stats.connections += 1;
        self.handle(Event::Attach { conn, volume, session })
    }

    /// Something arrived on a connection that another host has opened.
    pub(crate) fn receives(&mut self, wire: Wire, what: &Chunk) -> Verdict {
        match (self.process().uses.get(&wire).copied(), what) {
            (Some(Use::Door), Chunk::Bytes(_)) => self.negotiate(wire)?,
            (Some(Use::Door), Chunk::End) => self.slam(wire),
            (Some(Use::Conn(conn)), Chunk::Bytes(_)) => {
                let now = self.now();
                self.process().conns.get_mut(&conn).expect("a connection").heard = now;
                self.process().cpu.ready(conn);
            }
            (Some(Use::Conn(conn)), Chunk::End) => {
                self.process().conns.get_mut(&conn).expect("a connection").has_ended = true;
                self.process().cpu.ready(conn);
            }
            _ => {}
        }
        self.settle()
    }

    /// The connection is lost: what was not taken is lost, too.
    pub(crate) fn lost(&mut self, wire: Wire) -> Verdict {
        match self.process().uses.get(&wire).copied() {
            Some(Use::Door) => self.slam(wire),
            Some(Use::Conn(conn)) => self.hang_up(conn)?,
            _ => {}
        }
        self.settle()
    }

    fn slam(&mut self, wire: Wire) {
        self.process().doors.remove(&wire);
        self.process().uses.remove(&wire);
        self.close(wire, 1);
    }

    fn exports(&mut self) -> (Vec<VolumeId>, Vec<Export>) {
        let open = self.process().open.clone();
        let hosted = self.machine.hosted.iter().filter(|hosted| open.contains(&hosted.volume));
        let exports = hosted.filter_map(|hosted| {
            let (name, size, identity) = (hosted.export.clone()?, hosted.size, hosted.identity);
            Some((hosted.volume, Export { name, size, identity, lease_ms: self.machine.lease_ms, ..Export::default() }))
        });
        exports.unzip()
    }

    /// Continues a handshake with the bytes that have arrived.
    fn negotiate(&mut self, wire: Wire) -> Verdict {
        let (volumes, exports) = self.exports();
        let exports = Exports { volumes: &exports, shutting_down: false };
        loop {
            let input = self.out.network.input(wire, 1);
            let Some(door) = self.machine.process.as_mut().and_then(|process| process.doors.get_mut(&wire)) else {
                return Ok(());
            };
            if door.waits.is_some() {
                return Ok(());
            }
            let consumed = door.handshake.handle(input, exports);
            let outcome = door.handshake.outcome();
            self.take(wire, 1, consumed);
            let Outcome::Transmission { export, session } = outcome else {
                let door = self.process().doors.get_mut(&wire).expect("a door");
                let outgoing = door.handshake.take_outgoing();
                let is_over = outcome == Outcome::Closed;
                let more = consumed > 0 && !is_over;
                self.send(wire, 0, Chunk::Bytes(outgoing));
                if is_over {
                    self.slam(wire);
                }
                if !more {
                    return Ok(());
                }
                continue;
            };
            if !self.knock(wire, volumes[export], session)? {
                return Ok(());
            }
        }
    }

    /// A handshake has led to transmission. Whether it continues, because the client was refused.
    fn knock(&mut self, wire: Wire, volume: VolumeId, session: Session) -> Result<bool, String> {
        let door = self.process().doors.get(&wire).expect("a door");
        let claim = door.handshake.claim().cloned();
        let admission = match &claim {
            None => Admission::Granted,
            Some(claim) => self.admit(wire, volume, claim)?,
        };
        let door = self.process().doors.get_mut(&wire).expect("a door");
        match (admission, claim) {
            (Admission::Interrupted(why), _) => {
                door.handshake.refuse_continuation(&why);
                self.log(Line::Note(format!("refused: {why}")));
                return Ok(true);
            }
            (Admission::Refused(why), _) => {
                door.handshake.refuse(&why);
                self.log(Line::Note(format!("refused: {why}")));
                return Ok(true);
            }
            (Admission::Waits, Some(claim)) => {
                let outgoing = door.handshake.take_outgoing();
                door.waits = Some((volume, session, claim, outgoing));
            }
            (_, claim) => {
                let outgoing = door.handshake.take_outgoing();
                self.enter(wire, volume, session, claim, outgoing)?;
            }
        }
        Ok(false)
    }

    fn enter(
        &mut self,
        wire: Wire,
        volume: VolumeId,
        session: Session,
        claim: Option<Claim>,
        outgoing: Vec<u8>,
    ) -> Verdict {
        self.process().doors.remove(&wire);
        self.log(Line::Note(format!("{wire:?} opens {volume:?}: {claim:?}")));
        self.send(wire, 0, Chunk::Bytes(outgoing));
        self.attach(wire, volume, session, claim)
    }

    /// The connections of a volume with a claim that the engine has not forgotten.
    fn claimed(&self, volume: VolumeId) -> impl Iterator<Item = (ConnId, &Claim, bool)> {
        let process = self.machine.process.as_ref().expect("a process");
        let of_volume = process.conns.iter().filter(move |(_, conn)| conn.volume == volume);
        of_volume.filter_map(|(&id, conn)| Some((id, conn.claim.as_ref()?, conn.is_over)))
    }

    fn admit(&mut self, wire: Wire, volume: VolumeId, claim: &Claim) -> Result<Admission, String> {
        let waiting = self.machine.process.as_ref().expect("a process").doors.iter();
        let waiting: Vec<Claim> = waiting
            .filter(|(door, _)| **door != wire)
            .filter_map(|(_, door)| door.waits.as_ref().filter(|(of, ..)| *of == volume))
            .map(|(_, _, claim, _)| claim.clone())
            .collect();
        let open: Vec<(ConnId, Claim, bool)> =
            self.claimed(volume).map(|(conn, claim, is_over)| (conn, claim.clone(), is_over)).collect();
        if claim.leased && claim.epoch < self.machine.issued {
            return Ok(Admission::Interrupted("another client was issued a higher epoch".into()));
        }
        if let Some(why) = self.lease_of_another(volume, claim) {
            return Ok(Admission::Refused(why));
        }
        let leased = claim.leased;
        let mut holders = open.iter().map(|(_, claim, _)| claim).chain(&waiting);
        if let Some(holder) = holders.find(|holder| holder.client != claim.client && !leased) {
            return Ok(Admission::Refused(format!("{} has the volume", holder.client)));
        }
        let is_open = open.iter().any(|(_, of, is_over)| of == claim && !is_over) || waiting.contains(claim);
        let Epochs { of, last } = self.machine.epochs.entry(volume).or_default();
        if claim.after.is_some() && !last.is_empty() && *last != claim.client && !is_open {
            return Ok(Admission::Interrupted(format!("{last} was admitted since session {:?}", claim.after)));
        }
        // Those of sessions with leases are of all clients.
        let latest = of.values().copied().max().filter(|_| leased).unwrap_or(0);
        let recorded = of.entry(claim.client.clone()).or_default();
        if claim.epoch <= latest.max(*recorded) && !is_open && !planted!(EarlierEpochAdmitted) {
            let why = format!("the latest session has epoch {}", latest.max(*recorded));
            let is_outdated = claim.is_outdated_by(latest.max(*recorded));
            return Ok(if is_outdated { Admission::Interrupted(why) } else { Admission::Refused(why) });
        }
        (*recorded, *last) = (claim.epoch, claim.client.clone());
        let earlier = |of: &Claim| of.epoch < claim.epoch || planted!(EarlierEpochAdmitted) && of != claim;
        if leased {
            self.release_others(volume, claim);
        }
        let mut waits = false;
        for (conn, ..) in open.iter().filter(|(_, of, _)| earlier(of) && !planted!(EarlierSessionKept)) {
            waits = true;
            self.hang_up(*conn)?;
        }
        // Some may have been closed before, and some be forgotten by now.
        let waits = waits && self.claimed(volume).any(|(_, of, _)| earlier(of));
        Ok(if waits { Admission::Waits } else { Admission::Granted })
    }

    /// Does no more for a connection.
    pub(crate) fn hang_up(&mut self, conn: ConnId) -> Verdict {
        let Some(state) = self.process().conns.get_mut(&conn) else { return Ok(()) };
        if std::mem::replace(&mut state.is_over, true) {
            return Ok(());
        }
        self.process().cpu.detach(conn);
        self.handle(Event::Closed { conn })
    }

    /// The engine has forgotten a connection: nothing of it takes effect any more. Now the client learns that it ends.
    pub(crate) fn gone(&mut self, conn: ConnId) -> Verdict {
        self.log(Line::Gone(conn));
        let process = self.process();
        let state = process.conns.remove(&conn).ok_or("an unknown connection is gone")?;
        process.uses.remove(&state.wire);
        process.to_send.remove(&conn);
        self.close(state.wire, 1);
        if let Some(claim) = state.claim.filter(|claim| claim.leased && !state.is_released) {
            self.lease_runs_on(state.volume, &claim);
        }
        let at = (self.machine.at, self.machine.life);
        self.out.queue.push(self.out.now, super::Wake::Process(at.0, at.1, super::Call::Grant));
        Ok(())
    }

    /// Opens the sessions for which nothing has to end any more.
    pub(crate) fn grant(&mut self) -> Verdict {
        let process = self.machine.process.as_ref().expect("a process");
        let waiting: Vec<(Wire, VolumeId, Claim)> = process
            .doors
            .iter()
            .filter_map(|(&wire, door)| door.waits.as_ref().map(|(volume, _, claim, _)| (wire, *volume, claim.clone())))
            .collect();
        for (wire, volume, claim) in waiting {
            let recorded = self.machine.epochs[&volume].of[&claim.client];
            if claim.epoch < recorded {
                self.slam(wire);
            } else if !self.claimed(volume).any(|(_, of, _)| of.epoch < claim.epoch) {
                let door = self.process().doors.get_mut(&wire).and_then(|door| door.waits.take());
                let (volume, session, claim, outgoing) = door.expect("it waits");
                self.enter(wire, volume, session, Some(claim), outgoing)?;
            }
        }
        self.settle()
    }
}
