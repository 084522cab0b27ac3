//! The server ends at any time: the power fails, or its process dies and the machine goes on.
//!
//! ```text
//!   process dies ─► its requests in the device go on ─► they complete one by one ─► the last one of a volume: the
//!                   its clients are disconnected        (the volume stays closed)   driver opens the volume
//! ```
//!
//! The memory of the dead process is lost, as at a power cut; the content of the device is not. A device flush that
//! fails after its process has died drops nothing in the simulation: no process would learn of it.

use engine::Server;
use engine::control::WriteCache;
use engine::cpu::Scheduler;
use engine::ids::IoId;
use engine::nbd::wire::command;

use crate::Verdict;
use crate::cell;
use crate::entitled::Entitled;
use crate::frames::Frames;
use crate::medium::Turn;
use crate::operator::Ask;
use crate::thread::ThreadTime;
use crate::trace::Line;
use crate::world::{NEVER, World};

impl World {
    /// The power fails and returns: the surviving content is checked, and a new server starts from it.
    pub(crate) fn power_cut(&mut self) -> Verdict {
        self.log(Line::Note("the power is cut".into()));
        self.disk.power_cut(self.now);
        for volume in &mut self.volumes {
            let medium = self.disk.medium(volume.setup.spec.volume);
            volume.history.power_cut(medium).map_err(|what| format!("{:?}: {what}", volume.setup.spec.volume))?;
            volume.losses.clear();
            volume.unsettled.clear();
        }
        self.restart()
    }

    /// The process dies: its requests in the device may still take effect, its memory is lost.
    pub(crate) fn kill(&mut self) -> Verdict {
        self.log(Line::Note("the server dies".into()));
        self.disk.server_died();
        self.step += 1;
        for link in self.links.values() {
            let changing = |command| matches!(command, command::WRITE | command::WRITE_ZEROES | command::TRIM);
            let requests = link.pending.values().map(|pending| pending.request);
            let unsettled = requests.filter(|request| changing(request.command));
            let unsettled = unsettled.map(|request| (request.op, cell::covered(request.offset, request.len.into())));
            self.volumes[link.volume.0 as usize].unsettled.extend(unsettled);
        }
        for ask in self.asks.values() {
            if let Ask::Clear(volume, op, ..) | Ask::Close(volume, _, Some(op)) = ask {
                self.volumes[volume.0 as usize].losses.push(*op);
            }
        }
        // A volume that still waits for an earlier process's requests already has its loss, and nothing was written
        // since.
        for volume in self.volumes.iter_mut().filter(|volume| !volume.fenced) {
            self.ops += 1;
            volume.history.begin_loss(self.ops, self.step);
            volume.losses.push(self.ops);
        }
        self.restart()
    }

    /// A new server starts.
    fn restart(&mut self) -> Verdict {
        self.stats.restarts += 1;
        self.links.clear();
        self.openings.clear();
        self.by_conn.clear();
        self.asks.clear();
        (self.draining, self.drained) = (false, false);
        self.entitled.fill(Entitled::default());
        self.batch.clear();
        self.held_most = None;
        self.server = Server::new(self.setup.config.clone());
        self.planning.restart(&self.setup.config);
        (self.cpu, self.thread) = (Scheduler::default(), ThreadTime::default());
        self.policy = self.setup.config.policy();
        self.frames = Frames::new(self.setup.config.frames_max());
        for volume in &mut self.volumes {
            (volume.trouble, volume.promptness) = Default::default();
            (volume.closing, volume.open, volume.fenced) = (false, false, false);
            volume.through_since = if volume.mode == WriteCache::None { self.step } else { NEVER };
            volume.unsafe_until = if volume.mode == WriteCache::Unsafe { NEVER } else { self.step };
        }
        self.boot()
    }

    /// Whether a volume must not be opened yet, because requests of an earlier process can still change it.
    pub(crate) fn is_fenced(&mut self, at: usize) -> bool {
        let volume = &mut self.volumes[at];
        let fenced = self.disk.has_orphans(volume.setup.spec.volume) && !planted!(SuccessorDoesNotWait);
        if fenced {
            (volume.fenced, volume.closing) = (true, true);
        }
        fenced
    }

    /// No request of an earlier process can change a volume any more: the driver opens it. Only the engine flushes the
    /// writes of these requests.
    pub(crate) fn fence_is_over(&mut self, at: usize) {
        let step = self.step;
        let volume = &mut self.volumes[at];
        volume.fenced = false;
        // Flushes that failed while it was closed, after its loss was accepted, concern no process any more.
        self.disk.forgive(volume.setup.spec.volume, Turn::MAX);
        volume.losses.drain(..).for_each(|op| volume.history.end_loss(op, step));
        volume.unsettled.drain(..).for_each(|(op, cells)| volume.history.settle(op, cells, step));
    }

    /// A request of an earlier process completes.
    pub(crate) fn land(&mut self, life: u64, io: IoId) -> Verdict {
        let Some(volume) = self.disk.land(life, io) else { return Ok(()) };
        self.log(Line::Note(format!("{io:?} of life {life} lands in {volume:?}")));
        let at = volume.0 as usize;
        if self.volumes[at].fenced && !self.disk.has_orphans(volume) && !self.draining { self.open(at) } else { Ok(()) }
    }
}
