//! Sessions with leases: two gateways of different names, of which a cluster lets one have the volumes.
//!
//! ```text
//!   first gateway    serves ──── stopped, or cut off ──────────── continues: answers no request that comes now
//!   second gateway            the cluster issues it an epoch ── refused ── refused ── admitted by all servers: serves
//!   clients          some go to the second one; some stay
//! ```
//!
//! A server is as `node/src/sessions.rs` says: a session with a lease ends when nothing has arrived of it for so long,
//! and not when its connections end. A server that has restarted takes the client that was admitted last to have a
//! lease from then on.

use std::collections::BTreeMap;

use engine::driver::Driver as _;
use engine::ids::VolumeId;
use engine::nbd::Claim;
use engine::nbd::wire::command;
use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND};

use super::machine::Running;
use super::setup::{Focus, Kind, Setup};
use super::{Wake, World};
use crate::Verdict;
use crate::rng::Rng;
use crate::workload::Length;

/// The epoch that the cluster issues to the second gateway: above those of all processes of the first one.
pub(super) const ISSUED: u64 = 1 << 60;
/// How long it takes at most until a server knows of it.
const KNOWN_NS: Nanos = SECOND;
/// Requests that are made until the second gateway has the volumes at most, and after that.
const REQUESTS_MEANWHILE: u64 = 2000;
const REQUESTS: u64 = 300;

/// What the process of a server knows of sessions with leases that have no connection any more.
#[derive(Default)]
pub(crate) struct Leases {
    /// The last client of a volume, and since when its lease has run, by the machine's clock.
    past: BTreeMap<VolumeId, (String, Nanos)>,
}

impl Running<'_> {
    /// A process starts.
    pub(crate) fn remember_leases(&mut self) {
        let now = self.now();
        let leased = self.machine.lease_ms.is_some() && !planted!(RestartEndsLeases);
        let last = self.machine.epochs.iter().filter(|(_, epochs)| leased && !epochs.last.is_empty());
        let past = last.map(|(&volume, epochs)| (volume, (epochs.last.clone(), now)));
        self.process().leases = Leases { past: past.collect() };
    }

    /// For how long a lease runs of which something arrived, or which began, at a time.
    fn lease_left(&self, since: Nanos) -> Option<Nanos> {
        let ms = self.machine.lease_ms?;
        // The client's clock may be slower than ours.
        let length_ns = ms * MILLISECOND + ms * MILLISECOND / 1000;
        let length_ns = if planted!(LeaseEndedEarly) { length_ns / 2 } else { length_ns };
        (since + length_ns).checked_sub(self.now()).filter(|&left| left > 0)
    }

    /// Why a claim with a lease is refused because of another client; nothing if that has no lease any more.
    pub(super) fn lease_of_another(&mut self, volume: VolumeId, claim: &Claim) -> Option<String> {
        if !claim.leased {
            return None;
        }
        let conns = self.machine.process.as_ref().expect("a process").conns.values();
        let others = conns.filter(|conn| {
            conn.volume == volume && conn.claim.as_ref().is_some_and(|of| of.leased && of.client != claim.client)
        });
        // One that the engine has not forgotten has ended all the same.
        let heard = others.filter(|conn| !conn.is_released).map(|conn| conn.heard).max();
        if let Some(left) = heard.and_then(|heard| self.lease_left(heard)) {
            return Some(format!("another client has the volume, and its lease runs for {left} ns"));
        }
        let past = &self.process().leases.past;
        let past =
            past.get(&volume).filter(|(client, _)| *client != claim.client && !planted!(LeaseEndsWithConnection));
        let left = past.map(|&(_, since)| since).and_then(|since| self.lease_left(since))?;
        Some(format!("the lease of another client runs for {left} ns"))
    }

    /// The sessions of other clients have ended: they were silent for too long.
    pub(super) fn release_others(&mut self, volume: VolumeId, claim: &Claim) {
        let conns = self.process().conns.values_mut().filter(|conn| conn.volume == volume);
        let others = conns.filter(|conn| conn.claim.as_ref().is_some_and(|of| of.client != claim.client));
        others.for_each(|conn| conn.is_released = true);
    }

    /// A connection of a session has ended: its lease runs on.
    pub(super) fn lease_runs_on(&mut self, volume: VolumeId, claim: &Claim) {
        let now = self.now();
        self.process().leases.past.insert(volume, (claim.client.clone(), now));
    }
}

impl Setup {
    /// Volumes that are striped over two or three servers, with two gateways whose sessions have leases.
    pub(crate) fn gateways(seed: u64, focus: Option<Focus>) -> Setup {
        let mut setup = Setup::stripes(seed, focus);
        let rng = &mut Rng::new(seed ^ 0x001e_a5e5);
        if let Kind::Stripes { is_foreign, .. } = &mut setup.kind {
            *is_foreign = false;
        }
        setup.volumes.retain(|volume| volume.is_remote);
        let Kind::Stripes { servers, unit, .. } = setup.kind else { return setup };
        // What a gateway has cached is used after its lease, if anything is. Larger volumes fill the cache with what is
        // not written.
        let is_small = !Rng::new(seed ^ 0x001a_26e5).one_in(4);
        for volume in &mut setup.volumes {
            if is_small {
                volume.size = (rng.pick(&[4, 8, 16]) * BLOCK).next_multiple_of(unit * servers as u64);
            }
            volume.clients = rng.between(2, 4);
        }
        if is_small {
            setup.mix.commands = vec![(60, command::READ), (20, command::WRITE), (1, command::FLUSH)];
            setup.mix.lengths = vec![(1, Length::Small)];
        }
        setup.mix.fua = rng.pick(&[0, 300_000, 300_000]);
        (setup.window, setup.think_ns) = (rng.pick(&[4, 16]), rng.pick(&[MILLISECOND, 10 * MILLISECOND]));
        setup.lease_ms = Some(rng.pick(&[300, 1000, 3000]));
        setup.deadline_ns = None;
        setup
    }
}

impl World {
    /// The first gateway is stopped or cut off, and the second one begins. Some clients stay with the first one.
    pub(super) fn hand_over(&mut self) -> Verdict {
        let (first, lease_ns) = (self.setup.kind.gateway(), self.setup.lease_ms.unwrap_or(0) * MILLISECOND);
        let away_ns = lease_ns + self.out.rng.between(lease_ns / 4, 2 * lease_ns + 2 * SECOND);
        let short_ns = lease_ns / 100 * self.out.rng.between(50, 95);
        self.resume(first);
        match self.out.rng.below(8) {
            // It continues when the second one is served, or before.
            0 | 1 => self.stop(first, away_ns),
            2 => {
                let server = self.out.rng.below(first as u64) as usize;
                self.note(format!("the first gateway does not reach server {server} for {away_ns} ns"));
                self.out.network.part(server, first, self.out.now + away_ns);
            }
            what => {
                self.note(format!("the first gateway reaches no server for {away_ns} ns"));
                (0..first).for_each(|server| self.out.network.part(server, first, self.out.now + away_ns));
                match what {
                    // Replies that were on their way wait for it.
                    3 | 4 => self.stop(first, short_ns),
                    5 => {
                        let wires = self.out.network.of_machine(first);
                        let out = &mut self.out;
                        wires.into_iter().for_each(|wire| out.network.lose(out.now, &mut out.queue, wire));
                    }
                    6 => (0..first).try_for_each(|server| self.kill(server, Some(5 * MILLISECOND)))?,
                    _ => {}
                }
            }
        }
        for server in 0..first {
            let at = self.out.now + self.out.rng.below(KNOWN_NS);
            self.out.queue.push(at, Wake::Issued(server));
        }
        for at in 0..self.volumes.len() {
            self.note(format!("volume {at} is taken over"));
            let ids: Vec<usize> = (0..self.clients.len()).filter(|&id| self.clients[id].volume == at).collect();
            for (place, id) in ids.into_iter().enumerate() {
                if place > 0 && self.out.rng.one_in(2) {
                    self.clients[id].stays = true;
                } else {
                    self.disconnect(id);
                }
            }
            (self.volumes[at].front, self.volumes[at].is_fenced) = (first + 1, true);
        }
        self.setup.requests = self.out.stats.requests + REQUESTS_MEANWHILE;
        self.start(first + 1)
    }

    /// At the end: the first gateway may have kept its leases. Then it dies.
    pub(super) fn finish_hand_over(&mut self) -> Verdict {
        let first = self.setup.kind.gateway();
        if self.setup.lease_ms.is_none() || !self.volumes.iter().any(|volume| volume.is_fenced && volume.front > first)
        {
            return Ok(());
        }
        for id in (0..self.clients.len()).filter(|&id| self.clients[id].stays).collect::<Vec<_>>() {
            self.disconnect(id);
            self.clients[id].stays = false;
        }
        self.kill(first, None)
    }

    /// The second gateway has a volume: what the first one had not flushed is lost, and it does nothing more.
    pub(super) fn handed_over(&mut self, at: usize) {
        (self.out.step, self.ops) = (self.out.step + 1, self.ops + 1);
        let volume = &mut self.volumes[at];
        volume.history.begin_loss(self.ops, self.out.step);
        volume.losses.push(self.ops);
        if volume.alone_since.is_none() && volume.front > self.setup.kind.gateway() {
            volume.alone_since = Some(self.out.step);
            self.setup.requests = self.setup.requests.min(self.out.stats.requests + REQUESTS);
        }
        self.out.step += 1;
    }
}
