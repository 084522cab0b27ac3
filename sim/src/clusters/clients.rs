//! The clients: each is striped over some servers, as a gateway is that has no cache.

use std::collections::BTreeMap;

use engine::units::{MILLISECOND, Nanos};

use super::server::place;
use super::setup::ClientSetup;
use super::{Wake, World};
use crate::Verdict;
use crate::load::{Op, Request};
use crate::rng::Rng;

/// The way to a server.
const WAY_NS: Nanos = MILLISECOND / 10;
/// When a request is made again whose server was dead.
const AGAIN_NS: Nanos = 50 * MILLISECOND;

/// A part of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    server: usize,
    request: Request,
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) setup: ClientSetup,
    pub(super) rng: Rng,
    /// Its processes so far.
    pub(super) life: u64,
    works: bool,
    /// Requests so far, and those that are not answered: with the parts that are missing.
    made: u64,
    pub(super) pending: BTreeMap<u64, Vec<Fragment>>,
    /// Nothing arrives at this server until then.
    pub(super) stalls: (usize, Nanos),
}

impl Client {
    pub(super) fn new(setup: ClientSetup, rng: Rng) -> Client {
        Client { setup, rng, life: 0, works: false, made: 0, pending: BTreeMap::new(), stalls: (0, 0) }
    }

    /// It dies, and what it had asked is of no use.
    pub(super) fn dies(&mut self) {
        (self.life, self.works) = (self.life + 1, false);
        self.pending.clear();
    }

    fn makes(&mut self, now: Nanos) -> u64 {
        let Client { setup, rng, .. } = self;
        self.made += 1;
        let servers = match setup.is_wide {
            true => setup.servers.clone(),
            false => vec![rng.pick(&setup.servers)],
        };
        let op = if rng.one_in(4) { Op::Write } else { Op::Read };
        let offset = place(rng, setup.bytes);
        let request = Request { id: self.made, intended_ns: now, op, offset, bytes: setup.bytes, stream: 0 };
        let fragments = servers.into_iter().map(|server| Fragment { server, request });
        self.pending.insert(self.made, fragments.collect());
        self.made
    }
}

impl World {
    /// A client begins to work, or pauses.
    pub(super) fn work(&mut self, number: usize, life: u64, works: bool) {
        let client = &mut self.clients[number];
        if client.life != life {
            return;
        }
        client.works = works;
        if let Some((work_ns, pause_ns)) = client.setup.bursts {
            let most_ns = if works { work_ns } else { pause_ns };
            let until = self.now + client.rng.between(most_ns / 8, most_ns);
            self.queue.push(until, Wake::Work(number, life, !works));
        }
        self.think(number);
    }

    /// A client makes requests until it has as many outstanding as it may.
    pub(super) fn think(&mut self, number: usize) {
        let client = &mut self.clients[number];
        while self.is_busy && client.works && client.pending.len() < client.setup.depth {
            let made = client.makes(self.now);
            self.stats.requests += 1;
            for fragment in &client.pending[&made] {
                self.queue.push(self.now + WAY_NS, Wake::Arrive(number, made, fragment.server));
            }
        }
    }

    /// A request arrives at a server, unless the client has died, or the link stalls, or the server is dead.
    pub(super) fn arrive(&mut self, number: usize, made: u64, server: usize) -> Verdict {
        let Client { pending, stalls, .. } = &self.clients[number];
        let fragment = pending.get(&made).and_then(|all| all.iter().find(|fragment| fragment.server == server));
        let Some(&Fragment { request, .. }) = fragment else { return Ok(()) };
        let stalled_until = if stalls.0 == server { stalls.1 } else { 0 };
        let later = match self.servers[server].is_running() {
            _ if stalled_until > self.now => stalled_until,
            false => self.now + AGAIN_NS,
            true => {
                let guest = self.servers[server].guests.iter().position(|&guest| guest == number);
                self.servers[server].take(self.now, guest.expect("it has a volume there"), request);
                return self.step(server);
            }
        };
        self.queue.push(later, Wake::Arrive(number, made, server));
        Ok(())
    }

    /// A server has answered.
    pub(super) fn answered(&mut self, server: usize, guest: usize, made: u64) {
        let number = self.servers[server].guests[guest];
        let client = &mut self.clients[number];
        let Some(missing) = client.pending.get_mut(&made) else { return };
        missing.retain(|fragment| fragment.server != server);
        if missing.is_empty() {
            client.pending.remove(&made);
            self.stats.answers += 1;
            let think_ns = if client.setup.think_ns > 0 { client.rng.below(2 * client.setup.think_ns) } else { 0 };
            self.queue.push(self.now + think_ns, Wake::Think(number));
        }
    }

    /// A server has died: what it has not answered is asked again.
    pub(super) fn ask_again(&mut self, server: usize) {
        for (number, client) in self.clients.iter().enumerate() {
            for (&made, fragments) in &client.pending {
                if fragments.iter().any(|fragment| fragment.server == server) {
                    self.queue.push(self.now + AGAIN_NS, Wake::Arrive(number, made, server));
                }
            }
        }
    }
}
