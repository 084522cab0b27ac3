//! Troubles of worlds in which the server takes what gateways evict, and how much of it is taken.

use engine::control::{Command, DroppedBlocks, Tiers};
use engine::ids::VolumeId;
use engine::units::{Nanos, SECOND};

use super::World;
use super::setup::{Kind, SERVER};
use crate::Verdict;

/// What two caches in a row have exchanged, blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demoted {
    /// Evicted and sent to the server.
    pub sent: u64,
    /// Evicted and not sent, because too many were on their way.
    pub unsent: u64,
    /// Taken by the server.
    pub taken: u64,
    /// Taken, and read again.
    pub used: u64,
    /// Not taken, by reason.
    pub dropped: DroppedBlocks,
    /// Sessions that were opened anew because a setting was changed.
    pub renegotiated: u64,
}

impl Demoted {
    /// Those that were sent and did not arrive as a whole.
    pub fn lost(&self) -> u64 {
        self.sent - self.taken - self.dropped.total()
    }

    /// Those of both.
    pub fn and(self, other: Demoted) -> Demoted {
        let (a, b) = (self.dropped, other.dropped);
        Demoted {
            sent: self.sent + other.sent,
            unsent: self.unsent + other.unsent,
            taken: self.taken + other.taken,
            used: self.used + other.used,
            dropped: DroppedBlocks {
                refused: a.refused + b.refused,
                outdated: a.outdated + b.outdated,
                overtaken: a.overtaken + b.overtaken,
                no_room: a.no_room + b.no_room,
                hole: a.hole + b.hole,
                present: a.present + b.present,
            },
            renegotiated: self.renegotiated + other.renegotiated,
        }
    }
}

impl World {
    /// Something happens between the caches.
    pub(super) fn trouble_between_caches(&mut self, away_ns: Nanos) -> Verdict {
        match self.out.rng.below(8) {
            0 => return self.renegotiate(),
            1 | 2 => self.payload_stalls_ns = Some(away_ns),
            3 => {
                self.note(format!("all connections stall for {away_ns} ns"));
                let wires = self.out.network.between_machines();
                wires.into_iter().for_each(|wire| self.out.network.stall(self.out.now, wire, away_ns));
            }
            4 | 5 if self.visitor.is_some() => self.visit(),
            _ => self.stall_one(away_ns),
        }
        Ok(())
    }

    /// One connection of a gateway stalls: what it has demoted there arrives after what it sends on others.
    fn stall_one(&mut self, away_ns: Nanos) {
        let wires = self.out.network.between_machines();
        if !wires.is_empty() {
            let wire = self.out.rng.pick(&wires);
            self.note(format!("{wire:?} stalls for {away_ns} ns"));
            self.out.network.stall(self.out.now, wire, away_ns);
        }
    }

    /// The next connection on which the server has a part of a payload stalls, if one is to.
    pub(super) fn stall_payload(&mut self) {
        let Some(away_ns) = self.payload_stalls_ns else { return };
        let Some(process) = &self.machines[SERVER].process else { return };
        let claimed = process.conns.iter().filter(|(_, conn)| conn.claim.is_some() && !conn.is_over);
        let receives = claimed.filter(|(conn, _)| process.server.payload(**conn).next().is_some());
        if let Some(wire) = receives.map(|(_, conn)| conn.wire).next() {
            self.payload_stalls_ns = None;
            self.note(format!("{wire:?} stalls for {away_ns} ns within a payload"));
            self.out.network.stall(self.out.now, wire, away_ns);
        }
    }

    /// All connections that a machine has opened to others are lost.
    pub(super) fn lose_all(&mut self, machine: usize) {
        self.note(format!("machine {machine} loses its connections"));
        for wire in self.out.network.of_machine(machine) {
            self.out.network.lose(self.out.now, &mut self.out.queue, wire);
        }
    }

    /// The operator changes settings of a gateway's volume, for which a new session is opened.
    fn renegotiate(&mut self) -> Verdict {
        let tiers = self.out.rng.pick(&[Tiers::Demote, Tiers::Demote, Tiers::Lru]);
        let connections = self.out.rng.pick(&[1, 2, 4]) as u32;
        for at in 0..self.volumes.len() {
            let (volume, front) = (VolumeId(at as u32), self.volumes[at].front);
            let is_open = self.machines[front].process.as_ref().is_some_and(|of| of.open.contains(&volume));
            if !self.volumes[at].is_remote || !is_open || !self.machines[front].is_running() {
                continue;
            }
            self.note(format!("volume {at} has {connections} connections and {tiers:?}"));
            self.out.stats.demotions.renegotiated += 1;
            let deadline_ns = self.setup.deadline_ns.unwrap_or(3600 * SECOND);
            let mut running = self.running(front);
            running.command(Command::SetUpstream { volume, deadline_ns, connections, tiers })?;
            running.settle()?;
        }
        Ok(())
    }

    /// Counts what the process of a machine, which ends now, has exchanged.
    pub(super) fn count_demotions(&mut self, machine: usize) -> Verdict {
        if self.setup.tiers == Tiers::Lru {
            return Ok(());
        }
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        let mut sum = Demoted::default();
        for volume in process.server.snapshot().volumes {
            let of = volume.demotions;
            let sent = volume.upstreams.iter().map(|upstream| upstream.demoted_blocks).sum();
            let (taken, used) = (of.taken_blocks, of.used_blocks);
            sum =
                sum.and(Demoted { sent, unsent: of.unsent_blocks, taken, used, dropped: of.dropped, renegotiated: 0 });
        }
        if self.setup.kind == Kind::Stranger && sum != Demoted::default() {
            return Err(format!("demotions to a server that does not know them: {sum:?}"));
        }
        self.out.stats.demotions = self.out.stats.demotions.and(sum);
        Ok(())
    }
}
