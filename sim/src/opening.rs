//! How connections begin: clients negotiate with the engine's handshake, and each byte that it answers is compared with
//! what the protocol says.
//!
//! ```text
//!   client: plan of options ──► bytes, in any portions ──► Handshake ──► answers ─┬─► what `options.rs` expects
//!                                                             │                   └─► otherwise the run ends
//!                                                             ▼ transmission
//!                                  the driver admits it, or refuses it ──► Event::Attach with what was agreed on
//! ```
//!
//! The driver offers the volumes that are served and that the client may open. Some clients stop in the middle, some
//! vanish, some are told that there are too many of them; most come back.

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

/// A client that stops in the middle vanishes within this time.
const SILENT_NS: u64 = SECOND;
/// One in so many clients is refused although it may open its volume.
const REFUSED_ONE_IN: u64 = 30;

/// A client that has not opened a volume yet.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The volume that it wants.
    pub(crate) volume: usize,
    /// How it behaves then.
    pub(crate) manners: Manners,
    client: Client,
    rng: Rng,
    handshake: Handshake,
    /// What it is going to ask.
    plan: VecDeque<Ask>,
    /// It stops when so many are left.
    silent_at: Option<usize>,
    gone: bool,
    /// Bytes on their way, and bytes that the server has not consumed.
    written: Vec<u8>,
    arrived: Vec<u8>,
    /// What was asked and not consumed, with its bytes; how many of them are consumed.
    asked: VecDeque<(Ask, usize)>,
    consumed: usize,
    /// What the server must answer next.
    expected: Vec<Answer>,
    agreed: Agreed,
    /// It may begin.
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

    /// A client asks something, or some of it arrives.
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

    /// The volumes that a client is offered.
    fn offer(&self, client: Client) -> Offer {
        let volumes = self.volumes.iter().enumerate().filter(|(_, volume)| volume.open && !volume.closing);
        let offered = volumes.filter_map(|(at, volume)| {
            let grant = volume.access.grant(client)?;
            let export = Export {
                name: format!("v{at}"),
                size: volume.size,
                rotational: at % 2 == 1,
                description: if at % 2 == 1 { format!("volume {at}") } else { String::new() },
                read_only: grant == Grant::Read,
            };
            Some((at, export))
        });
        let (at, exports) = offered.unzip();
        Offer { at, exports, shutting_down: self.draining, tls: self.setup.tls }
    }

    /// The server gets what has arrived.
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

    /// A client that may begin is admitted, or refused after all.
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

    /// A handshake is over without a connection; somebody else will come.
    fn give_up(&mut self, id: u64) {
        let opening = self.openings.remove(&id).expect("an opening");
        self.connect_soon(opening.volume);
    }
}

impl Opening {
    /// The client writes its next options, some of them without waiting for answers. False if it is not going to.
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

    /// Some of what was written arrives.
    fn arrive(&mut self) {
        let len = self.written.len();
        let some = if self.rng.one_in(2) && len > 0 { self.rng.between(1, len as u64) as usize } else { len };
        self.arrived.extend(self.written.drain(..some));
    }

    /// The server answers what has arrived; its answers must be what the protocol says.
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
                // Not even what was asked before is answered.
                self.expected.clear();
            }
            self.check_outcome(end)?;
            match end {
                // Its answer can still be taken back.
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

    /// The driver has no place for it after all.
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

    /// What is outgoing is what is expected, to the last byte.
    fn compare(&mut self) -> Verdict {
        let sent = self.handshake.take_outgoing();
        let mut rest = &sent[..];
        for answer in self.expected.drain(..) {
            rest = answer.compare(rest).map_err(|what| format!("{what}, of the answer {answer:?} in {sent:?}"))?;
        }
        if rest.is_empty() { Ok(()) } else { Err(format!("{rest:?} was not asked for")) }
    }
}
