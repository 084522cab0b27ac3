//! The server ends in the middle of everything: the power fails, or its process dies and the machine goes on.
//!
//! ```text
//!   process dies ─► its requests go on in the device ─► land, one after the other ─► the last one of a volume: the
//!                   clients are gone                    (the volume stays closed)    driver opens it
//! ```
//!
//! What the dead server had in memory is lost, as with a power cut; what the device has is not. A flush that fails in
//! the device after its process died is not pretended to drop anything: nobody is left who could be told.

use engine::Server;
use engine::control::WriteCache;
use engine::disk::IoId;
use engine::nbd::wire::command;

use crate::Verdict;
use crate::cell;
use crate::frames::Frames;
use crate::medium::Turn;
use crate::operator::Ask;
use crate::trace::Line;
use crate::world::{NEVER, World};

impl World {
    /// The power fails, and comes back: what survived is checked, a new server begins with it.
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

    /// The process dies: what it gave to the device may still have effects, what it had in memory is lost.
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
        // A volume that waits for an earlier server's requests has had its loss, and nothing was written since.
        for volume in self.volumes.iter_mut().filter(|volume| !volume.fenced) {
            self.ops += 1;
            volume.history.begin_loss(self.ops, self.step);
            volume.losses.push(self.ops);
        }
        self.restart()
    }

    /// A new server begins.
    fn restart(&mut self) -> Verdict {
        self.stats.restarts += 1;
        self.links.clear();
        self.openings.clear();
        self.by_conn.clear();
        self.asks.clear();
        (self.draining, self.drained) = (false, false);
        self.batch.clear();
        self.held_most = None;
        self.server = Server::new(self.setup.config.clone());
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

    /// Whether a volume must not be opened yet, as requests of an earlier server can still change it.
    pub(crate) fn is_fenced(&mut self, at: usize) -> bool {
        let volume = &mut self.volumes[at];
        let fenced = self.disk.has_orphans(volume.setup.spec.volume) && !planted!(SuccessorDoesNotWait);
        if fenced {
            (volume.fenced, volume.closing) = (true, true);
        }
        fenced
    }

    /// No request of an earlier server can change a volume any more: the driver opens it. What they brought is flushed
    /// by nobody but the engine.
    pub(crate) fn fence_is_over(&mut self, at: usize) {
        let step = self.step;
        let volume = &mut self.volumes[at];
        volume.fenced = false;
        // Flushes that failed while it was closed, after its loss was accepted, are nobody's any more.
        self.disk.forgive(volume.setup.spec.volume, Turn::MAX);
        volume.losses.drain(..).for_each(|op| volume.history.end_loss(op, step));
        volume.unsettled.drain(..).for_each(|(op, cells)| volume.history.settle(op, cells, step));
    }

    /// A request of an earlier server completes.
    pub(crate) fn land(&mut self, life: u64, io: IoId) -> Verdict {
        let Some(volume) = self.disk.land(life, io) else { return Ok(()) };
        self.log(Line::Note(format!("{io:?} of life {life} lands in {volume:?}")));
        let at = volume.0 as usize;
        if self.volumes[at].fenced && !self.disk.has_orphans(volume) && !self.draining { self.open(at) } else { Ok(()) }
    }
}
