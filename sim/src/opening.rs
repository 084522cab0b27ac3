//! Connection setup: clients negotiate with the engine's handshake, and each byte of its answers is compared with the
//! protocol.
//!
//! ```text
//!   client: plan of options ──► bytes, in any portions ──► Handshake ──► answers ─┬─► as `options.rs` expects
//!                                                             │                   └─► otherwise the run ends
//!                                                             ▼ transmission
//!                         the driver admits the client, or refuses it ──► Event::Attach with the negotiated session
//! ```
//!
//! The driver offers the volumes that are online and that the client may open. Some clients stop in the middle, some
//! disconnect, some are refused because there are too many; most connect again.

use std::collections::VecDeque;

use engine::Session;
use engine::nbd::{Export, Exports, Handshake, Outcome};
use engine::units::{MILLISECOND, SECOND};

use crate::Verdict;
use crate::access::{CLIENTS, Client, Grant};
use crate::options::{Agreed, Answer, Ask, End, Offer};
use crate::rng::Rng;
use crate::trace::Line;
use crate::workload::Manners;
use crate::world::{Wake, World};

/// A client that stops in the middle disconnects within this time.
const SILENT_NS: u64 = SECOND;
/// One of this many clients is refused although it may open its volume.
const REFUSED_ONE_IN: u64 = 30;

/// A client in its handshake.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The volume that it wants to open.
    pub(crate) volume: usize,
    /// Its behaviour after the handshake.
    pub(crate) manners: Manners,
    client: Client,
    rng: Rng,
    handshake: Handshake,
    /// The options that it will send.
    plan: VecDeque<Ask>,
    /// It stops when this many of them are left.
    silent_at: Option<usize>,
    gone: bool,
    /// Bytes that the client has written; then bytes that have arrived and the server has not consumed.
    written: Vec<u8>,
    arrived: Vec<u8>,
    /// Options sent and not consumed, with their lengths; then how many bytes of them are consumed.
    asked: VecDeque<(Ask, usize)>,
    consumed: usize,
    /// The answers that the server must send next.
    expected: Vec<Answer>,
    agreed: Agreed,
    /// Transmission is agreed: the volume and the session.
    begins: Option<(usize, Session)>,
}

impl World {
    /// A client connects and begins to negotiate.
    pub(crate) fn knock(&mut self, volume: usize, wanted: Session, manners: Manners) {
        self.openings_made += 1;
        let (id, mut rng) = (self.openings_made, self.rng.fork());
        let plan = Ask::plan(volume, self.volumes.len(), wanted, self.setup.tls, &mut rng);
        let opening = Opening {
            volume,
            manners,
            client: rng.below(CLIENTS),
            handshake: Handshake::with_tls(self.setup.tls),
            silent_at: rng.one_in(30).then(|| rng.below(plan.len() as u64) as usize),
            gone: false,
            plan,
            written: Vec::new(),
            arrived: Vec::new(),
            asked: VecDeque::new(),
            consumed: 0,
            expected: vec![Answer::greeting()],
            agreed: Agreed::default(),
            begins: None,
            rng,
        };
        self.openings.insert(id, opening);
        self.queue.push(self.now, Wake::Negotiate(id));
    }

    /// A client sends options, or some of their bytes arrive.
    pub(crate) fn negotiate(&mut self, id: u64) -> Verdict {
        let Some(opening) = self.openings.get_mut(&id) else { return Ok(()) };
        if opening.gone {
            self.give_up(id);
            return Ok(());
        }
        if !opening.write() {
            (opening.gone, opening.written) = (true, Vec::new());
            let at = self.now + opening.rng.below(if opening.silent_at.is_some() { SILENT_NS } else { MILLISECOND });
            self.queue.push(at, Wake::Negotiate(id));
            return Ok(());
        }
        opening.arrive();
        self.hand_over(id)
    }

    /// The exports that a client is offered.
    fn offer(&self, client: Client) -> Offer {
        let volumes = self.volumes.iter().enumerate().filter(|(_, volume)| volume.open && !volume.closing);
        let offered = volumes.filter_map(|(at, volume)| {
            let grant = volume.access.grant(client)?;
            let export = Export {
                lease_ms: None,
                name: format!("v{at}"),
                size: volume.size,
                rotational: at % 2 == 1,
                description: if at % 2 == 1 { format!("volume {at}") } else { String::new() },
                read_only: grant == Grant::Read,
                identity: None,
            };
            Some((at, export))
        });
        let (at, exports) = offered.unzip();
        Offer { at, exports, shutting_down: self.draining, tls: self.setup.tls }
    }

    /// The server receives the bytes that have arrived.
    fn hand_over(&mut self, id: u64) -> Verdict {
        let offer = self.offer(self.openings[&id].client);
        let opening = self.openings.get_mut(&id).expect("an opening");
        let end = opening.handle(&offer).map_err(|what| format!("handshake {id}: {what}"))?;
        let after_ns = opening.rng.between(opening.manners.net_ns / 4, opening.manners.net_ns);
        self.log(Line::Note(format!("handshake {id}: {end:?}")));
        match end {
            End::GoesOn => self.queue.push(self.now + after_ns, Wake::Negotiate(id)),
            End::Begins(..) => self.queue.push(self.now + after_ns, Wake::Enter(id)),
            End::Closes(_) => self.give_up(id),
            End::StartsTls => unreachable!("it goes on, encrypted"),
        }
        Ok(())
    }

    /// A client that has finished its handshake is admitted or refused.
    pub(crate) fn enter(&mut self, id: u64) -> Verdict {
        let Some(opening) = self.openings.get_mut(&id) else { return Ok(()) };
        let (volume, session) = opening.begins.take().expect("it may begin");
        let needs = Some(if session.read_only { Grant::Read } else { Grant::Write });
        let admitted = self.volumes[volume].access.grant(opening.client) >= needs;
        if !admitted || opening.rng.one_in(REFUSED_ONE_IN) {
            let end = opening.refuse().map_err(|what| format!("handshake {id}: {what}"))?;
            self.log(Line::Note(format!("handshake {id} is refused: {end:?}")));
            match end {
                End::GoesOn => self.queue.push(self.now, Wake::Negotiate(id)),
                _ => self.give_up(id),
            }
            return Ok(());
        }
        opening.compare().map_err(|what| format!("handshake {id}: {what}"))?;
        let opening = self.openings.remove(&id).expect("an opening");
        self.attach(volume, session, opening.manners, opening.client).map(|_| ())
    }

    /// A handshake has ended without a connection; another client will connect.
    fn give_up(&mut self, id: u64) {
        let opening = self.openings.remove(&id).expect("an opening");
        self.connect_soon(opening.volume);
    }
}

impl Opening {
    /// The client writes its next options, some without waiting for answers. False if it will write no more.
    fn write(&mut self) -> bool {
        if !self.written.is_empty() || !self.asked.is_empty() {
            return true;
        }
        let mut more = true;
        while more {
            if self.silent_at == Some(self.plan.len()) {
                break;
            }
            let Some(ask) = self.plan.pop_front() else { break };
            let bytes = ask.bytes();
            more = !ask.is_waited_for() && self.rng.one_in(2) || ask.is_start_tls() && self.rng.one_in(8);
            self.asked.push_back((ask, bytes.len()));
            self.written.extend(bytes);
        }
        !self.written.is_empty()
    }

    /// Some of the written bytes arrive.
    fn arrive(&mut self) {
        let len = self.written.len();
        let some = if self.rng.one_in(2) && len > 0 { self.rng.between(1, len as u64) as usize } else { len };
        self.arrived.extend(self.written.drain(..some));
    }

    /// The server answers the bytes that have arrived; its answers must match the protocol.
    fn handle(&mut self, offer: &Offer) -> Result<End, String> {
        loop {
            let exports = Exports { volumes: &offer.exports, shutting_down: offer.shutting_down };
            let consumed = self.handshake.handle(&self.arrived, exports);
            self.arrived.drain(..consumed);
            self.consumed += consumed;
            let mut end = End::GoesOn;
            while end == End::GoesOn
                && let Some((_, bytes)) = self.asked.front()
                && self.consumed >= *bytes
            {
                let (ask, bytes) = self.asked.pop_front().expect("just seen");
                self.consumed -= bytes;
                let answer = ask.answer(&mut self.agreed, offer);
                end = answer.end;
                self.expected.push(answer);
            }
            if end == End::StartsTls && !self.arrived.is_empty() {
                end = Answer::clear_behind_start_tls();
                // Options sent earlier are not answered either.
                self.expected.clear();
            }
            self.check_outcome(end)?;
            match end {
                // This answer can still be replaced by a refusal.
                End::Begins(at, session) => {
                    self.begins = Some((offer.at[at], session));
                    return Ok(end);
                }
                End::StartsTls => {
                    self.compare()?;
                    self.handshake.tls_started();
                    self.agreed.tls_started();
                }
                _ => self.compare()?,
            }
            match end {
                End::Closes(_) => return Ok(end),
                _ if consumed == 0 || self.arrived.is_empty() => return Ok(End::GoesOn),
                _ => {}
            }
        }
    }

    /// The driver refuses the client after the handshake.
    fn refuse(&mut self) -> Result<End, String> {
        self.handshake.refuse("there are too many of you");
        let last = self.expected.pop().expect("an answer that begins transmission");
        let refused = last.refused();
        let end = refused.end;
        self.expected.push(refused);
        self.check_outcome(end)?;
        self.compare()?;
        Ok(end)
    }

    fn check_outcome(&self, end: End) -> Verdict {
        let (outcome, ending) = (self.handshake.outcome(), self.handshake.ending());
        let right = match end {
            End::GoesOn => outcome == Outcome::Negotiating,
            End::StartsTls => outcome == Outcome::StartTls,
            End::Begins(export, session) => outcome == Outcome::Transmission { export, session },
            End::Closes(why) => outcome == Outcome::Closed && ending == Some(why),
        };
        if right {
            return Ok(());
        }
        Err(format!("it stands at {outcome:?} ({ending:?}), not at {end:?}, after {:?}", self.expected))
    }

    /// The outgoing bytes are the expected ones, to the last byte.
    fn compare(&mut self) -> Verdict {
        let sent = self.handshake.take_outgoing();
        let mut rest = &sent[..];
        for answer in self.expected.drain(..) {
            rest = answer.compare(rest).map_err(|what| format!("{what}, of the answer {answer:?} in {sent:?}"))?;
        }
        if rest.is_empty() { Ok(()) } else { Err(format!("{rest:?} was not asked for")) }
    }
}
