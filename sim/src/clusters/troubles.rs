//! What happens to servers, clients, links, clocks, and to the messages about what the servers have agreed on.

use engine::units::{MILLISECOND, Nanos, SECOND};

use super::agreed::Schedule;
use super::clock::ERROR_NS;
use super::{Wake, World};
use crate::Verdict;

/// How late messages about a schedule are, and when a lost one is sent again.
const LATE_NS: Nanos = 3 * SECOND;
const RESENT_NS: Nanos = SECOND;
/// A message that arrives twice arrives at most so late.
const TWICE_NS: Nanos = 8 * SECOND;
/// Rounds in which what a server did by a wrong clock or schedule shows.
const SHOWS_ROUNDS: u64 = 3;

/// What can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Die,
    Power,
    ClientDies,
    Stall,
    Cut,
    Clock,
}

impl World {
    /// A process starts.
    pub(super) fn start(&mut self, at: usize) -> Verdict {
        let server = &mut self.servers[at];
        if server.is_running() {
            return Ok(());
        }
        let kept = server.kept.checked_sub(1).map(|version| (&self.schedules[version as usize], &self.servers_of[..]));
        server.start(self.now, kept)?;
        self.note(format!("server {at} starts"));
        self.step(at)
    }

    /// Something happens, and the next time is planned.
    pub(super) fn trouble(&mut self) -> Verdict {
        let most_ns = self.setup.trouble_ns;
        self.queue.push(self.now + self.rng.between(most_ns / 4, most_ns), Wake::Trouble);
        let away_ns = self.rng.pick(&[5 * MILLISECOND, 300 * MILLISECOND, 3 * SECOND]);
        let server = self.rng.below(self.servers.len() as u64) as usize;
        let client = self.rng.below(self.clients.len() as u64) as usize;
        let what = self.rng.weighted(&[
            (2, Trouble::Die),
            (1, Trouble::Power),
            (2, Trouble::ClientDies),
            (2, Trouble::Stall),
            (3, Trouble::Cut),
            (2, Trouble::Clock),
        ]);
        self.note(format!("{what:?}, server {server}, client {client}, for {away_ns} ns"));
        match what {
            Trouble::Die | Trouble::Power => {
                self.stats.restarts += 1;
                if what == Trouble::Power {
                    self.servers[server].disk.power_cut(self.now);
                }
                self.servers[server].die();
                self.ask_again(server);
                self.queue.push(self.now + away_ns, Wake::Start(server));
            }
            Trouble::ClientDies => {
                self.clients[client].dies();
                self.queue.push(self.now + away_ns, Wake::Work(client, self.clients[client].life, true));
            }
            Trouble::Stall => {
                let server = self.clients[client].rng.pick(&self.servers_of[client]);
                self.clients[client].stalls = (server, self.now + away_ns);
            }
            Trouble::Cut => self.servers[server].cut_until = self.now + 2 * away_ns,
            Trouble::Clock => {
                self.servers[server].clock.goes_wrong(self.now, &mut self.rng);
                // Most servers notice at once that their clock was set, others when they look at it.
                if self.rng.below(4) > 0 {
                    self.servers[server].tell_clock(self.now)?;
                }
                let corrected = self.now + self.rng.between(300, 2000) * MILLISECOND;
                self.queue.push(corrected, Wake::Correct(server, false));
                return self.step(server);
            }
        }
        Ok(())
    }

    /// The time service corrects a clock.
    pub(super) fn correct(&mut self, at: usize, again: bool) -> Verdict {
        let (round_ns, server) = (self.spot(at).1, &mut self.servers[at]);
        let was_good = server.clock.is_good;
        let next = server.clock.is_corrected(self.now, &mut self.rng);
        if again {
            self.queue.push(next, Wake::Correct(at, true));
        }
        if was_good {
            return Ok(());
        }
        server.watch.excuse(self.now + SHOWS_ROUNDS * round_ns);
        server.tell_clock(self.now)?;
        self.step(at)
    }

    /// The servers agree on another schedule, and are told.
    pub(super) fn agree(&mut self) {
        let schedule = Schedule::next(self.schedules.last(), self.now, &self.servers_of, &mut self.rng);
        let version = schedule.version;
        self.note(format!("{schedule:?}"));
        self.schedules.push(schedule);
        let again = [self.setup.schedule_ns, SECOND];
        let most_ns = if self.rng.one_in(4) { again[1] } else { again[0] };
        self.queue.push(self.now + self.rng.between(most_ns / 4, most_ns), Wake::Agree);
        for server in 0..self.servers.len() {
            let late_ns = match self.rng.below(8) {
                0 => self.rng.below(LATE_NS),
                1 => self.rng.between(RESENT_NS / 2, RESENT_NS),
                _ => self.rng.below(30 * MILLISECOND),
            };
            self.queue.push(self.now + late_ns, Wake::Tell(server, version));
            if self.rng.one_in(3) {
                self.queue.push(self.now + self.rng.below(TWICE_NS), Wake::Tell(server, version));
            }
        }
    }

    /// A server hears of a version: the next one, or an earlier one again.
    pub(super) fn tell(&mut self, at: usize, version: u64) -> Verdict {
        let (spot, round_ns, _) = self.spot(at);
        let server = &mut self.servers[at];
        if self.now < server.cut_until {
            let again = server.cut_until + self.rng.below(RESENT_NS);
            self.queue.push(again, Wake::Tell(at, version));
            return Ok(());
        }
        let schedule = &self.schedules[version as usize - 1];
        let (is_later, is_first) =
            server.due().map_or((false, false), |due| (version > due.highest(), due.highest() == 0));
        // A slice that is in progress ends when it was to end. Without a schedule the disk has another policy, which
        // does not tell this one what it knows.
        let ends = spot.map_or(self.now + round_ns, |spot| spot.end) + ERROR_NS;
        if is_later && (is_first || schedule.begins < ends) {
            server.watch.excuse(ends + SHOWS_ROUNDS * round_ns.max(schedule.round_ns));
        }
        server.kept = server.kept.max(version);
        server.follow(self.now, schedule, &self.servers_of)?;
        self.note(format!("server {at} is told version {version}"));
        self.step(at)
    }
}
