//! The end of a world of machines: everything works again, so every request ends well, and everything is durable.

use engine::ids::VolumeId;
use engine::nbd::wire::command;
use engine::units::{BLOCK, Nanos, PIECE, SECOND};

use super::{Wake, World};
use crate::Verdict;
use crate::fault::Faults;
use crate::request::Request;

/// How long anything may take when nothing fails.
const LONG_NS: Nanos = 100 * SECOND;
/// How often a flush may fail because its deadline had passed when the server was away.
const FLUSHES_MAX: usize = 4;

impl World {
    pub(super) fn finale(&mut self) -> Verdict {
        (self.is_busy, self.payload_stalls_ns) = (false, None);
        self.note("the end begins".into());
        self.out.network.heal();
        self.restore()?;
        self.finish_hand_over()?;
        let since = self.out.now;
        for at in 0..self.machines.len() {
            self.machines[at].disk.faults = Faults::NONE;
            self.resume(at);
            let is_over =
                self.setup.lease_ms.is_some() && at == self.setup.kind.gateway() && self.volumes[0].front > at;
            if self.machines[at].life > 0 && !is_over {
                self.out.queue.push(self.out.now, Wake::Start(at));
            }
        }
        self.until("reaching all volumes", |world| !world.volumes.iter().any(|volume| volume.is_fenced))?;
        self.until("answering", |world| world.clients.iter().all(|client| client.pending.is_empty()))?;
        self.until("what was stuck", |world| world.machines.iter().all(|machine| !machine.is_stuck(since)))?;
        for at in 0..self.volumes.len() {
            self.flush(at)?;
            self.read_all(at)?;
            self.flush(at)?;
        }
        self.last_visit()?;
        self.end_offload()?;
        for at in 0..self.machines.len() {
            self.count_demotions(at)?;
        }
        self.close_all()?;
        for at in 0..self.machines.len() {
            self.machines[at].disk.power_cut(self.out.now);
        }
        for at in 0..self.volumes.len() {
            let mut history = std::mem::take(&mut self.volumes[at].history);
            history.power_cut(&self.media(at))?;
        }
        self.check_visited()
    }

    pub(super) fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) -> Verdict {
        let end = self.out.now + LONG_NS;
        while !done(self) {
            self.advance()?;
            if self.out.now > end {
                let waiting = self.clients.iter().map(|client| client.pending.len()).collect::<Vec<_>>();
                return Err(format!("{what} takes too long; requests of clients: {waiting:?}"));
            }
        }
        Ok(())
    }

    fn request(&mut self, command: u16, offset: u64, len: u64) -> Request {
        self.ops += 1;
        Request { op: self.ops, cookie: self.ops, command, flags: 0, offset, len: len as u32 }
    }

    /// One client of a volume sends these requests, one after the other.
    fn follow(&mut self, at: usize, script: Vec<Request>) -> Verdict {
        let id = self.clients.iter().position(|client| client.volume == at).expect("a client");
        self.clients[id].script = script.into();
        self.think_soon(id);
        self.until("a script", |world| world.clients[id].script.is_empty() && world.clients[id].pending.is_empty())
    }

    fn flush(&mut self, at: usize) -> Verdict {
        let may_fail = self.volumes[at].may_fail;
        for _ in 0..FLUSHES_MAX {
            let flush = self.request(command::FLUSH, 0, 0);
            self.follow(at, vec![flush])?;
            let id = self.clients.iter().position(|client| client.volume == at).expect("a client");
            match self.clients[id].error {
                None => return Ok(()),
                Some(_) if may_fail => {}
                Some(error) => return Err(format!("the last flush fails with error {error}")),
            }
        }
        Err(format!("the last flush of volume {at} fails although nothing is wrong"))
    }

    fn read_all(&mut self, at: usize) -> Verdict {
        let size = self.volumes[at].size;
        let blocks: Vec<u64> = self.volumes[at].history.blocks().collect();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some((from, len)) if *from + *len == block * BLOCK && *len < PIECE => *len += BLOCK,
                _ => runs.push((block * BLOCK, BLOCK)),
            }
        }
        let runs = runs.into_iter().map(|(offset, len)| (offset, len.min(size - offset)));
        let script = runs.map(|(offset, len)| self.request(command::READ, offset, len)).collect();
        self.follow(at, script)
    }

    /// Everything comes home.
    fn end_offload(&mut self) -> Verdict {
        let offloading: Vec<usize> =
            (0..self.machines.len()).filter(|&at| self.machines[at].control.is_some()).collect();
        for &at in &offloading {
            self.running(at).end_offload()?;
        }
        self.until("coming home", |world| {
            let is_over = |&at: &usize| world.machines[at].process.as_ref().is_some_and(|of| of.offloading.is_over);
            offloading.iter().all(is_over)
        })
    }

    /// The gateway closes its volumes: nothing is left to be written.
    fn close_all(&mut self) -> Verdict {
        for id in 0..self.clients.len() {
            self.disconnect(id);
        }
        for at in 0..self.volumes.len() {
            let (volume, front) = (VolumeId(at as u32), self.volumes[at].front);
            self.running(front).close_volume(volume)?;
            self.until("closing a volume", |world| {
                let process = world.machines[front].process.as_ref();
                process.is_some_and(|process| process.closed.contains(&volume))
            })?;
        }
        Ok(())
    }
}
