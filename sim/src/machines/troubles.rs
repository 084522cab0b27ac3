//! What happens to machines and to the network between them.

use engine::control::Tiers;
use engine::ids::VolumeId;
use engine::units::{MILLISECOND, Nanos, SECOND};

use super::machine::{Hosted, Running};
use super::setup::{DECOY, Kind, SERVER};
use super::{Wake, World};
use crate::Verdict;
use crate::trace::Line;

/// Each time the special trouble has been put off so often, troubles become half as frequent: processes that die every
/// 50 ms would never be served, and it would never happen.
const PUT_OFF_MAX: u64 = 8;
/// The longest time between two troubles then: any gateway is served within a part of it.
const TROUBLE_NS_MAX: Nanos = 100 * SECOND;

/// How late what a stalled connection has sent arrives: so late that the next process has begun in most cases.
const STALL_NS_MIN: Nanos = 500 * MILLISECOND;
const STALL_NS_MAX: Nanos = 3 * SECOND;
/// How long at most a process lives whose connections have stalled.
const DYING_NS_MAX: Nanos = 200 * MILLISECOND;
/// How long a store is away: long enough that what was written before goes home or is overwritten.
const OUTAGE_NS_MIN: Nanos = SECOND;
const OUTAGE_NS_MAX: Nanos = 6 * SECOND;
/// When its client dies: so long before it is back, or after.
const DIES_NS_BEFORE: Nanos = 500 * MILLISECOND;
const DIES_NS_AFTER: Nanos = SECOND;

const _: () = assert!(DIES_NS_BEFORE <= OUTAGE_NS_MIN);

/// What can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Lose,
    Part,
    Stop,
    Kill,
    Power,
    /// What the kind of world is about.
    Special,
}

impl World {
    pub(crate) fn note(&mut self, what: String) {
        self.out.log(Line::Note(what));
    }

    /// Something happens, and the next time is planned.
    pub(crate) fn trouble(&mut self) -> Verdict {
        if !self.is_busy || self.troubles == 0 {
            return Ok(());
        }
        self.troubles -= 1;
        let doublings = (self.put_off / PUT_OFF_MAX).min(16);
        let most_ns = (self.setup.trouble_ns << doublings).min(TROUBLE_NS_MAX);
        let at = self.out.now + self.out.rng.between(most_ns / 4, most_ns);
        self.out.queue.push(at, Wake::Trouble);
        let is_early = self.special_at > 0;
        self.special_at = self.special_at.saturating_sub(1);
        let all = [Trouble::Lose, Trouble::Part, Trouble::Stop, Trouble::Kill, Trouble::Power];
        let weighted: [_; 5] = std::array::from_fn(|at| (self.setup.weights[at], all[at]));
        let what = self.out.rng.weighted(&weighted);
        let what = if self.special_at == 0 && is_early { Trouble::Special } else { what };
        // Until the first gateway is dead, the second one must not find the volume free.
        let may_happen = !is_early || self.setup.kind != Kind::Failover;
        if what != Trouble::Special && (!may_happen || self.swapped_at.is_some()) {
            return Ok(());
        }
        let (gateway, server) = match self.setup.kind.has_stores() {
            true => {
                let one = self.out.rng.below(self.machines.len() as u64) as usize;
                (one, (one + 1) % self.machines.len())
            }
            false => match self.setup.kind {
                Kind::Stripes { servers, .. } => (self.volumes[0].front, self.out.rng.below(servers as u64) as usize),
                _ => (self.volumes[0].front, SERVER),
            },
        };
        let machine = if self.out.rng.one_in(2) { gateway } else { server };
        let away_ns = self.out.rng.pick(&[5 * MILLISECOND, 300 * MILLISECOND, 3 * SECOND]);
        match what {
            Trouble::Lose => {
                let wires = self.out.network.between_machines();
                if !wires.is_empty() {
                    let wire = self.out.rng.pick(&wires);
                    self.note(format!("{wire:?} is lost"));
                    self.out.network.lose(self.out.now, &mut self.out.queue, wire);
                }
            }
            Trouble::Part if self.setup.tiers == Tiers::Demote => self.trouble_between_caches(away_ns)?,
            Trouble::Part => {
                self.note(format!("a partition for {away_ns} ns"));
                self.out.network.part(server, gateway, self.out.now + away_ns);
            }
            Trouble::Stop => self.stop(machine, away_ns),
            Trouble::Kill if self.setup.stalls => self.stall(away_ns),
            Trouble::Power if self.setup.outages => self.outage()?,
            Trouble::Kill => {
                if self.setup.is_late {
                    let late = self.out.network.of_machine(machine);
                    late.into_iter().for_each(|wire| self.out.network.lose(self.out.now, &mut self.out.queue, wire));
                }
                self.kill(machine, Some(away_ns))?;
            }
            Trouble::Power if self.setup.is_blackout => {
                for machine in 0..self.machines.len() {
                    self.power_off(machine, away_ns)?;
                }
            }
            Trouble::Power => self.power_off(machine, away_ns)?,
            Trouble::Special => self.special(away_ns)?,
        }
        Ok(())
    }

    /// A machine whose volume is served, if there is one.
    fn served(&mut self) -> Option<usize> {
        let served: Vec<usize> = (0..self.volumes.len()).filter(|&at| !self.volumes[at].is_fenced).collect();
        (!served.is_empty()).then(|| self.out.rng.pick(&served))
    }

    /// The connections of a client of stores stall, each for a time of its own. Its process sends on, dies, and starts
    /// again soon.
    fn stall(&mut self, away_ns: Nanos) {
        let Some(client) = self.served() else { return };
        self.note(format!("connections of machine {client} stall"));
        for wire in self.out.network.of_machine(client) {
            let late_ns = self.out.rng.between(STALL_NS_MIN, STALL_NS_MAX);
            self.out.network.stall(self.out.now, wire, late_ns);
        }
        let dies_at = self.out.now + self.out.rng.below(DYING_NS_MAX);
        let kill = Wake::Kill(client, self.machines[client].life, away_ns.min(STALL_NS_MIN));
        self.out.queue.push(dies_at, kill);
    }

    /// A store is away from its client, or without power. The client dies a little before it is back, or after.
    fn outage(&mut self) -> Verdict {
        let Some(client) = self.served() else { return Ok(()) };
        let store = (client + self.out.rng.between(1, 2) as usize) % self.machines.len();
        let away_ns = self.out.rng.between(OUTAGE_NS_MIN, OUTAGE_NS_MAX);
        self.note(format!("machine {client} is without machine {store} for {away_ns} ns"));
        let dies_at = self.out.now + away_ns - DIES_NS_BEFORE + self.out.rng.below(DIES_NS_BEFORE + DIES_NS_AFTER);
        self.out.queue.push(dies_at, Wake::Kill(client, self.machines[client].life, 5 * MILLISECOND));
        if self.out.rng.one_in(2) {
            self.out.network.part(store, client, self.out.now + away_ns);
            return Ok(());
        }
        self.power_off(store, away_ns)
    }

    pub(super) fn stop(&mut self, machine: usize, away_ns: Nanos) {
        if self.machines[machine].is_running() {
            self.note(format!("machine {machine} is stopped"));
            self.machines[machine].stopped = Some(Vec::new());
            self.out.queue.push(self.out.now + away_ns, Wake::Continue(machine));
        }
    }

    pub(crate) fn resume(&mut self, machine: usize) {
        if let Some(waiting) = self.machines[machine].stopped.take() {
            self.note(format!("machine {machine} continues"));
            waiting.into_iter().for_each(|wake| self.out.queue.push(self.out.now, wake));
        }
    }

    /// The process of a machine ends; another one starts after `away_ns`.
    pub(crate) fn kill(&mut self, machine: usize, away_ns: Option<Nanos>) -> Verdict {
        if self.machines[machine].process.is_none() {
            return Ok(());
        }
        self.resume(machine);
        self.note(format!("the process of machine {machine} dies"));
        self.out.stats.restarts += 1;
        self.running(machine).end_readers();
        self.count_demotions(machine)?;
        let state = &mut self.machines[machine];
        state.process = None;
        state.disk.server_died();
        let ends = self.out.network.ends_of(machine, state.life);
        self.machines[machine].unended = ends;
        self.end_connections(machine);
        self.lose_fronts(machine, false)?;
        if let Some(away_ns) = away_ns {
            self.out.queue.push(self.out.now + away_ns, Wake::Start(machine));
        }
        Ok(())
    }

    /// Ends the connections of dead processes. A stranger's server ends them when it has finished their requests.
    pub(crate) fn end_connections(&mut self, machine: usize) {
        let state = &self.machines[machine];
        let has_orphans = state.hosted.iter().any(|hosted| state.disk.has_orphans(hosted.volume));
        if self.setup.kind.has_strangers() && has_orphans || !state.is_on {
            return;
        }
        for (wire, side) in std::mem::take(&mut self.machines[machine].unended) {
            self.out.network.close(self.out.now, &mut self.out.queue, wire, side);
        }
    }

    pub(crate) fn power_off(&mut self, machine: usize, away_ns: Nanos) -> Verdict {
        if !self.machines[machine].is_on {
            return Ok(());
        }
        self.resume(machine);
        self.note(format!("machine {machine} loses power"));
        self.out.stats.restarts += 1;
        self.running(machine).end_readers();
        self.count_demotions(machine)?;
        let state = &mut self.machines[machine];
        (state.process, state.is_on) = (None, false);
        state.disk.power_cut(self.out.now);
        let ends = self.out.network.ends_of(machine, state.life);
        ends.iter().for_each(|&(wire, side)| self.out.network.unplug(wire, side));
        state.unended.extend(ends);
        self.lose_fronts(machine, true)?;
        self.out.queue.push(self.out.now + away_ns, Wake::Start(machine));
        Ok(())
    }

    /// The clients of a gateway that has died are disconnected, and what its process had in memory is lost.
    fn lose_fronts(&mut self, machine: usize, power: bool) -> Verdict {
        for at in 0..self.volumes.len() {
            let has_stores = self.setup.kind.has_stores();
            if self.volumes[at].front != machine || machine == SERVER && !has_stores {
                continue;
            }
            self.lose_front(at);
            let volume = &mut self.volumes[at];
            // Of a volume that may be off-loaded, stores may have newer content than the medium.
            if power && !volume.is_remote && !has_stores {
                volume.history.power_cut(self.machines[machine].disk.medium(VolumeId(at as u32)))?;
                volume.losses.clear();
                volume.unsettled.clear();
            }
        }
        Ok(())
    }

    fn lose_front(&mut self, at: usize) {
        for id in 0..self.clients.len() {
            if self.clients[id].volume == at && !self.clients[id].stays {
                self.disconnect(id);
            }
        }
        if self.setup.lease_ms.is_some() {
            // What that has lost is known when the next one has the volume.
            self.volumes[at].is_fenced = true;
            return;
        }
        (self.out.step, self.ops) = (self.out.step + 1, self.ops + 1);
        let volume = &mut self.volumes[at];
        volume.history.begin_loss(self.ops, self.out.step);
        volume.losses.push(self.ops);
        volume.is_fenced = true;
    }

    /// A process starts, unless the machine has none to start or must wait.
    pub(crate) fn start(&mut self, machine: usize) -> Verdict {
        let state = &mut self.machines[machine];
        if state.process.is_some() {
            return Ok(());
        }
        state.is_on = true;
        self.end_connections(machine);
        let state = &self.machines[machine];
        // A stranger's server cannot tell a new gateway from the old one, so the operator waits.
        let is_client = self.setup.kind.has_strangers() && !self.setup.kind.has_stores();
        let must_wait = is_client && self.out.network.has_peers_of(machine);
        if must_wait || !state.unended.is_empty() {
            self.out.queue.push(self.out.now + 20 * MILLISECOND, Wake::Start(machine));
            return Ok(());
        }
        Running { machine: &mut self.machines[machine], out: &mut self.out }.start()
    }

    fn special(&mut self, away_ns: Nanos) -> Verdict {
        let is_reached = !self.volumes.iter().any(|volume| volume.is_remote && volume.is_fenced);
        let is_refused = self.setup.kind != Kind::Failover || self.machines[2].life > 0;
        if !is_reached || !is_refused {
            // Of a swap, a gateway without a session would take the other volume for the right one.
            (self.special_at, self.troubles) = (2, self.troubles + 2);
            self.put_off += 1;
            return Ok(());
        }
        match self.setup.kind {
            Kind::Stripes { .. } if self.setup.lease_ms.is_some() => self.hand_over(),
            Kind::Plain | Kind::Stranger | Kind::Stores { .. } | Kind::Stripes { .. } => Ok(()),
            Kind::Swap => self.swap(away_ns),
            Kind::Failover => {
                self.kill(1, Some(away_ns))?;
                // It comes back without the volumes that it has lost.
                self.machines[1].hosted.retain(|hosted| hosted.upstream.is_none());
                self.take_over();
                Ok(())
            }
            Kind::Return if !self.is_cut => {
                self.resume(1);
                self.note("the first gateway is cut off".into());
                self.is_cut = true;
                self.out.network.cut(self.out.now, &mut self.out.queue, SERVER, 1);
                self.take_over();
                // When the second one is served, it leaves.
                let served = self.out.rng.between(1, 6);
                (self.special_at, self.troubles) = (served, self.troubles + served);
                self.start(2)
            }
            Kind::Return => {
                self.note("the second gateway leaves, and the first one comes back".into());
                self.kill(2, Some(3 * SECOND + away_ns))?;
                self.out.network.heal();
                Ok(())
            }
            Kind::Zombie => {
                self.resume(1);
                let is_running = self.machines[1].is_running();
                self.stop(1, 2 * away_ns);
                if !is_running {
                    // It may start again later, and is then the zombie.
                    self.out.queue.push(self.out.now + 2 * away_ns, Wake::Start(1));
                }
                self.take_over();
                self.start(2)
            }
        }
    }

    /// The clients of volumes that are elsewhere go to the second gateway.
    fn take_over(&mut self) {
        for at in 0..self.volumes.len() {
            if self.volumes[at].is_remote {
                self.note(format!("volume {at} is taken over"));
                self.lose_front(at);
                self.volumes[at].front = 2;
            }
        }
    }

    /// The server comes back with another volume of the same name.
    fn swap(&mut self, away_ns: Nanos) -> Verdict {
        self.kill(SERVER, None)?;
        self.volumes.iter_mut().filter(|volume| volume.is_remote).for_each(|volume| volume.may_fail = true);
        for hosted in &mut self.machines[SERVER].hosted {
            *hosted = Hosted {
                volume: VolumeId(hosted.volume.0 + DECOY),
                identity: hosted.identity.map(|of| of + 1000),
                ..hosted.clone()
            };
        }
        self.note("the server comes back with another volume".into());
        self.swapped_at = Some(self.out.now);
        self.start(SERVER)?;
        self.out.queue.push(self.out.now + SECOND + away_ns, Wake::Restore);
        Ok(())
    }

    /// The right volume is there again, and the operator starts the gateway anew.
    pub(crate) fn restore(&mut self) -> Verdict {
        if self.swapped_at.take().is_none() {
            return Ok(());
        }
        for hosted in &self.machines[SERVER].hosted {
            let medium = self.machines[SERVER].disk.medium(hosted.volume);
            if !medium.written_sectors(0, hosted.size).is_empty() {
                return Err(format!("{:?} was written to, and is another volume", hosted.volume));
            }
        }
        self.kill(SERVER, Some(MILLISECOND))?;
        self.machines[SERVER].hosted = self.setup.hosted(SERVER);
        let may_fail = self.setup.deadline_ns.is_some();
        self.kill(self.volumes[0].front, Some(10 * MILLISECOND))?;
        let remote = self.volumes.iter_mut().filter(|volume| volume.is_remote);
        remote.for_each(|volume| volume.may_fail = may_fail);
        Ok(())
    }
}
