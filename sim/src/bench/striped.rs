//! Clients of striped volumes, in virtual time: each request becomes a fragment for each server that has a part of its
//! range, sent to all of them at once, and is answered with its last fragment.
//!
//! ```text
//!   load ─► request ─┬─► Bench: engine, drive        client `c` is a volume of its own on each of its servers
//!                    ├─► Bench: engine, drive
//!                    └─► Bench: engine, drive
//! ```
//!
//! The servers may follow a schedule, each with a clock of its own ([`Striped::set_clock`]). The client divides
//! requests as a gateway does, and has no cache. The network may delay fragments differently ([`Network`]), so that
//! they arrive in another order than they were sent in.

use std::collections::BTreeMap;

use engine::Config;
use engine::Session;
use engine::cluster::{Barrier, Clock, Slot, Timetable};
use engine::control::{Command, Snapshot, TenantSpec, WriteCache};
use engine::ids::TenantId;
use engine::nbd::ORDER_SHIFT;
use engine::units::Nanos;

use super::{Bench, Costs, Done, Volume, Wake};
use crate::disk::drive::Drive;
use crate::load::{Op, Request, Workload};
use crate::rng::Rng;

/// A client of a striped volume, which is one tenant with one volume on each of its servers.
pub struct Client {
    /// The servers, in the order of the stripes.
    pub servers: Vec<usize>,
    /// The stripe unit, bytes.
    pub unit: u64,
    /// First byte on the drive of each of them.
    pub starts: Vec<u64>,
    /// Bytes on each of them.
    pub bytes: u64,
    /// When writes are acknowledged.
    pub write_cache: WriteCache,
    /// The tenant on each of them.
    pub tenant: TenantSpec,
    /// Its load, on all stripes together.
    pub load: Workload,
}

/// A request that is not answered: its fragments that are not, and whether one has failed.
struct Pending {
    request: Request,
    fragments: u32,
    failed: bool,
}

struct Stripes {
    servers: Vec<usize>,
    unit: u64,
    load: Workload,
    pending: BTreeMap<u64, Pending>,
    /// What it loses of its slots, once it has some.
    barrier: Option<Barrier>,
}

/// The part of the range `offset`, `bytes` of a volume on `legs` servers that is on server `leg`: its first byte there,
/// and its length. All of it is contiguous there.
pub fn fragment(unit: u64, legs: u64, leg: u64, offset: u64, bytes: u64) -> Option<(u64, u64)> {
    // How many bytes of the first `at` bytes of the volume are on the server.
    let before = |at: u64| {
        let (row, rest) = (at / (unit * legs), at % (unit * legs));
        row * unit + rest.saturating_sub(leg * unit).min(unit)
    };
    let (from, to) = (before(offset), before(offset + bytes));
    (to > from).then_some((from, to - from))
}

/// What becomes of fragments on their way to a server.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Network {
    /// Each is delayed by up to so much, at random: on several connections they overtake one another.
    pub jitter_ns: Nanos,
    /// Clients number their requests, as gateways do, so that servers under a schedule put them in order.
    pub numbers: bool,
    /// Seed of the delays.
    pub seed: u64,
}

/// Servers and clients.
pub struct Striped {
    benches: Vec<Bench>,
    /// The clients of each server: their places are the numbers of their tenants and volumes there.
    guests: Vec<Vec<usize>>,
    clients: Vec<Stripes>,
    network: Network,
    dice: Rng,
    now: Nanos,
}

impl Striped {
    /// Sets everything up at time 0: servers by their configuration and drive.
    pub fn new(
        costs: Costs,
        network: Network,
        servers: Vec<(Config, Box<dyn Drive>)>,
        clients: Vec<Client>,
    ) -> Result<Striped, String> {
        let session = Session { numbers: network.numbers, ..Session::default() };
        let mut benches = Vec::new();
        let mut guests = Vec::new();
        for (at, (config, drive)) in servers.into_iter().enumerate() {
            let own: Vec<usize> = (0..clients.len()).filter(|&client| clients[client].servers.contains(&at)).collect();
            let tenants: Vec<TenantSpec> = own.iter().map(|&client| clients[client].tenant).collect();
            let volumes = own.iter().enumerate().map(|(tenant, &client)| {
                let Client { bytes, write_cache, ref servers, ref starts, .. } = clients[client];
                let start = starts[servers.iter().position(|&server| server == at).expect("it is there")];
                Volume { tenant, start, bytes, write_cache, load: Workload::new(Vec::new(), 0) }
            });
            let mut bench = Bench::with_session(config, drive, costs, &tenants, volumes.collect(), session)?;
            bench.is_driven = true;
            benches.push(bench);
            guests.push(own);
        }
        let of = |client: Client| Stripes {
            servers: client.servers,
            unit: client.unit,
            load: client.load,
            pending: BTreeMap::new(),
            barrier: None,
        };
        let (clients, dice) = (clients.into_iter().map(of).collect(), Rng::new(network.seed));
        Ok(Striped { benches, guests, clients, network, dice, now: 0 })
    }

    /// Runs until `end`; calls `done` for every answered request, with the number of its client as its volume.
    pub fn run(&mut self, end: Nanos, mut done: impl FnMut(Done)) {
        let mut answers = Vec::new();
        loop {
            let bench = self.benches.iter().enumerate().filter_map(|(at, bench)| Some((bench.next_at()?, at))).min();
            let asks = self.clients.iter().filter_map(|client| client.load.poll_timeout()).min();
            let asks = asks.map(|at| at.max(self.now));
            let Some(time) = bench.map(|(time, _)| time).into_iter().chain(asks).min().filter(|&time| time <= end)
            else {
                break;
            };
            self.now = self.now.max(time);
            if asks.is_some_and(|at| at <= self.now) {
                (0..self.clients.len()).for_each(|client| self.ask(client));
            }
            let Some((_, at)) = bench.filter(|&(at, _)| at <= self.now) else { continue };
            self.benches[at].now = self.now;
            self.benches[at].happen(&mut |fragment| answers.push(fragment));
            for fragment in answers.drain(..) {
                let client = self.guests[at][fragment.volume];
                self.answered(Done { volume: client, ..fragment }, &mut done);
            }
        }
        self.now = self.now.max(end);
        self.benches.iter_mut().for_each(|bench| bench.now = self.now);
    }

    /// A client makes the requests that are due.
    fn ask(&mut self, number: usize) {
        let client = &mut self.clients[number];
        while let Some(request) = client.load.next(self.now) {
            if let Some(barrier) = &mut client.barrier {
                barrier.asked(self.now);
            }
            let legs = client.servers.len() as u64;
            let mut fragments = 0;
            for (leg, &server) in (0..).zip(&client.servers) {
                let part = match request.op {
                    Op::Flush => Some((0, 0)),
                    _ => fragment(client.unit, legs, leg, request.offset, request.bytes),
                };
                let Some((offset, bytes)) = part else { continue };
                fragments += 1;
                let guest = self.guests[server].iter().position(|&guest| guest == number).expect("it has a volume");
                let bench = &mut self.benches[server];
                let jitter_ns = if self.network.jitter_ns > 0 { self.dice.below(self.network.jitter_ns) } else { 0 };
                let at = self.now + bench.costs.network_ns + jitter_ns;
                let id = request.id << ORDER_SHIFT;
                bench.queue.push(at, Wake::Arrive(guest, Request { id, offset, bytes, ..request }));
            }
            client.pending.insert(request.id, Pending { request, fragments, failed: false });
        }
    }

    fn answered(&mut self, fragment: Done, done: &mut impl FnMut(Done)) {
        let (client, id) = (&mut self.clients[fragment.volume], fragment.request.id >> ORDER_SHIFT);
        let pending = client.pending.get_mut(&id).expect("a request that was made");
        pending.fragments -= 1;
        pending.failed |= fragment.failed;
        if pending.fragments > 0 {
            return;
        }
        let Pending { request, failed, .. } = client.pending.remove(&id).expect("just seen");
        client.load.completed(self.now, request.id);
        if let Some(barrier) = &mut client.barrier {
            barrier.completed(self.now, client.pending.len());
        }
        done(Done { volume: fragment.volume, request, done_ns: self.now, failed });
        self.ask(fragment.volume);
    }

    /// The virtual time, which is cluster time, too.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The tenant that a client is on a server, if it has a volume there.
    pub fn tenant(&self, server: usize, client: usize) -> Option<TenantId> {
        self.guests[server].iter().position(|&guest| guest == client).map(|at| TenantId(at as u32))
    }

    /// A server's snapshot.
    pub fn snapshot(&mut self, server: usize) -> Result<Snapshot, String> {
        self.benches[server].snapshot()
    }

    /// Gives a server its part of the schedule.
    pub fn set_timetable(&mut self, server: usize, timetable: Timetable) -> Result<(), String> {
        self.benches[server].command(Command::SetTimetable(Some(Box::new(timetable))))
    }

    /// A client's slot.
    pub fn set_slot(&mut self, client: usize, timetable: &Timetable, slot: Slot) {
        match &mut self.clients[client].barrier {
            Some(barrier) => barrier.set(timetable, slot),
            none => *none = Some(Barrier::new(timetable, slot)),
        }
    }

    /// What a client loses of its slots.
    pub fn barrier(&self, client: usize) -> Option<&Barrier> {
        self.clients[client].barrier.as_ref()
    }

    /// The clock of a server is ahead of the true time by so much.
    pub fn set_clock(&mut self, server: usize, ahead_ns: i64) -> Result<(), String> {
        self.benches[server].command(Command::SetClock(Clock { ahead_ns }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_what_a_table_of_stripes_says() {
        let (unit, legs) = (4, 3);
        for offset in 0..40 {
            for bytes in 1..40 {
                for leg in 0..legs {
                    let of_leg = |at: &u64| at / unit % legs == leg;
                    let there: Vec<u64> = (offset..offset + bytes).filter(of_leg).collect();
                    let place = |at: u64| at / (unit * legs) * unit + at % unit;
                    let expected = there.first().map(|&first| (place(first), there.len() as u64));
                    assert_eq!(fragment(unit, legs, leg, offset, bytes), expected, "{offset} {bytes} {leg}");
                }
            }
        }
    }
}
