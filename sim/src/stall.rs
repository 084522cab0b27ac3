//! Stalled senders and stalled readers, and what other clients are guaranteed meanwhile.
//!
//! ```text
//!   stalls:    header, a part of the payload ───────────────────── nothing, for ever
//!   trickles:  header, 20 KiB/s ──────────────────────────────────► complete: never disconnected
//!
//!   other volumes of the tenant, other tenants     answered within OTHERS_MAX_NS, in the smallest partitions too
//!   other writers of the volume                    while they wait for frames, the stalled sender is disconnected
//! ```

use engine::Receive;
use engine::ids::ConnId;
use engine::nbd::wire::command;
use engine::units::{BLOCK, MILLISECOND, Nanos, PIECE, SECOND};

use crate::Verdict;
use crate::link::{Item, Link, State};
use crate::request::Request;
use crate::workload::Sending;
use crate::world::{LinkId, Wake, World};

/// The engine's stall timeout for payloads, and the rate that is always accepted.
const STALL_TIMEOUT_NS: Nanos = 10 * SECOND;
const ENOUGH_BYTES_PER_S: u64 = 16 << 10;
/// How many bytes a slow sender sends at once, and how often: 20 KiB/s.
const TRICKLE_BYTES: u64 = 5 << 10;
const TRICKLE_NS: Nanos = 250 * MILLISECOND;
/// How late the engine may be, beyond its driver: the world checks once a second.
const SLACK_NS: Nanos = 3 * SECOND;
/// Maximum waiting time of requests to other volumes while senders stall: less than the stall timeout.
const OTHERS_MAX_NS: Nanos = 8 * SECOND;

/// A connection that waits for payload without progress: since when, of which request, and at which byte.
pub(crate) type Midway = Option<(Nanos, u64, u64)>;

impl World {
    /// A stalled sender announces a write, and sends as much of its payload as it ever will.
    pub(crate) fn begin_to_stall(&mut self, id: LinkId) {
        let link = self.links.get_mut(&id).expect("a link");
        if link.outstanding == 0 && self.busy {
            let size = self.volumes[link.volume.0 as usize].size;
            let len = (BLOCK * link.rng.between(1, PIECE / BLOCK)).min(size / BLOCK * BLOCK);
            let offset = link.rng.below((size - len) / BLOCK + 1) * BLOCK;
            self.ops += 1;
            let cookie = link.rng.next();
            let len = len as u32;
            link.write(Request { op: self.ops, cookie, command: command::WRITE, flags: 0, offset, len });
            link.withheld = link.rng.between(1, len.into());
        }
        self.plan_net(id, Wake::Arrive(id));
    }

    /// A slow sender sends some more of its payload.
    pub(crate) fn trickle(&mut self, id: LinkId) {
        let link = self.links.get_mut(&id).expect("a link");
        if link.withheld > 0 && link.manners.sending == Sending::Trickles {
            link.withheld -= link.withheld.min(TRICKLE_BYTES);
            self.plan(id, Wake::Arrive(id), TRICKLE_NS);
        }
    }

    /// A stalled sender sends the rest.
    pub(crate) fn send_rest(&mut self, id: LinkId) {
        let link = self.links.get_mut(&id).expect("a link");
        (link.withheld, link.manners.sending) = (0, Sending::Prompt);
        self.plan_net(id, Wake::Arrive(id));
    }

    /// Whether a client may be disconnected as a stalled sender: it has not sent its payload for the stall timeout
    /// while other clients of its tenant wait, perhaps for the frames reserved for it. A sender that is fast enough
    /// must never be.
    pub(crate) fn may_be_stalled(&self, link: &Link) -> bool {
        let long_ago = |arrived: Nanos| arrived + STALL_TIMEOUT_NS <= self.now + SECOND;
        let midway = link.pending.values().any(|pending| {
            let request = pending.request;
            request.command == command::WRITE && pending.taken < request.len.into() && long_ago(pending.arrived)
        });
        link.manners.sending == Sending::Stalls && midway && self.others_wait(link)
    }

    /// Once a second: checks that stalled senders delay other clients no longer than permitted.
    pub(crate) fn check_stalls(&mut self) -> Verdict {
        if self.setup.volumes.iter().all(|volume| volume.stalled == 0) {
            return Ok(());
        }
        for link in self.links.values_mut() {
            link.midway = match (link.midway, payload_place(link)) {
                (Some((since, op, taken)), Some(place)) if (op, taken) == place => Some((since, op, taken)),
                (_, place) => place.map(|(op, taken)| (self.now, op, taken)),
            };
        }
        self.check_stalled_are_closed()?;
        self.check_others_go_on()
    }

    fn check_stalled_are_closed(&self) -> Verdict {
        let tenant = |link: &Link| self.volumes[link.volume.0 as usize].setup.spec.tenant;
        let midway = |wanted: fn(Receive) -> bool| {
            let found = self.links.values().filter(move |link| wanted(self.server.receive(link.conn)));
            found.filter_map(|link| Some((link, link.midway?)))
        };
        for (link, (since, _, taken)) in midway(|wants| matches!(wants, Receive::Payload(_))) {
            let starved = midway(|wants| wants == Receive::Pause).filter(|(other, _)| tenant(other) == tenant(link));
            let Some((other, starved_since)) =
                starved.map(|(other, (since, ..))| (other.conn, since)).min_by_key(|&(_, since)| since)
            else {
                continue;
            };
            let timeout_ns = STALL_TIMEOUT_NS + taken * SECOND / ENOUGH_BYTES_PER_S + SLACK_NS + self.setup.late_ns;
            if self.now > since.max(starved_since) + timeout_ns {
                return Err(format!(
                    "{:?} has sent nothing of its payload since {since}, {other:?} waits for frames since \
                     {starved_since}, and the first one is still connected at {}",
                    link.conn, self.now
                ));
            }
        }
        Ok(())
    }

    fn check_others_go_on(&self) -> Verdict {
        let setup = |link: &Link| &self.setup.volumes[link.volume.0 as usize];
        // A connection with replies on their way may be slow because its client takes 200 bytes at a time.
        let waits = |link: &&Link| link.state == State::Open && self.server.outgoing(link.conn).next().is_none();
        for link in self.links.values().filter(waits).filter(|link| setup(link).stalled == 0) {
            let late = link.pending.values().find(|pending| pending.arrived + OTHERS_MAX_NS < self.now);
            if let Some(pending) = late {
                let conn: ConnId = link.conn;
                return Err(format!("beside clients of another volume that stall, {conn:?} waits for {pending:?}"));
            }
        }
        Ok(())
    }
}

/// The request whose payload comes next, and how many of its bytes were received.
fn payload_place(link: &Link) -> Option<(u64, u64)> {
    match link.items.front() {
        Some(&Item::Payload(request, done)) if link.state == State::Open => Some((request.op, done)),
        _ => None,
    }
}
