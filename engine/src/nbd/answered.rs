//! What was answered is counted when its reply has left: how long it took, and how long its reply waited for the thread.
//!
//! ```text
//!   since ───────── now ═══════════════ now ──────────── handed over
//!     │ the thread   │ cache, queue, …   │ the thread       │
//!     does other work  the engine works    does other work    latency: all of it
//! ```
//!
//! A driver reads its clock once in many events, so to the engine what it does in between takes no time. A driver that says
//! when replies have left ([`Server::handed_over`]) has that time counted as the delay of the thread; for one that does not, they leave at once.

use super::Kind;
use crate::disk::VolumeId;
use crate::server::Server;
use crate::units::Nanos;

/// Replies that can wait to be counted: many more than a pass of a driver makes. Those beyond are counted at once.
pub(crate) const ANSWERED_MAX: usize = 1024;

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    volume: VolumeId,
    kind: Kind,
    arrived: Nanos,
}

impl Server {
    /// The request is answered: what it was is counted, and soon how long it took.
    pub(super) fn count(&mut self, request: u32) {
        let state = &self.requests[request];
        let (volume, kind, arrived, bytes) = (state.volume, state.kind, state.arrived, state.end - state.start);
        let failed = state.error.is_some();
        let stats = self.volume_mut(volume).counters.of(kind);
        stats.requests += 1;
        stats.bytes += bytes;
        stats.errors += u64::from(failed);
        if self.answered.len() == ANSWERED_MAX {
            self.handed_over(self.now);
        }
        self.answered.push(Answered { volume, kind, arrived });
    }

    /// Everything that was answered so far left at `at`: it was given to the sockets, as far as they took it. Said before the
    /// next event, or not at all.
    pub fn handed_over(&mut self, at: Nanos) {
        if self.answered.is_empty() {
            return;
        }
        let mut answered = std::mem::take(&mut self.answered);
        let late_ns = at.saturating_sub(self.now);
        for Answered { volume, kind, arrived } in answered.drain(..) {
            let Some(Some(state)) = self.volumes.get_mut(volume.0 as usize) else { continue };
            let latency_ns = self.now + late_ns - arrived;
            state.counters.thread_delay_ns += late_ns;
            state.counters.of(kind).latency.record(latency_ns);
            let recorders = self.latencies[state.spec.tenant.0 as usize].as_mut().expect("the tenant of a volume");
            match kind {
                Kind::Read => recorders.read(self.now, latency_ns),
                Kind::Write => recorders.write(self.now, latency_ns),
                Kind::Flush | Kind::Trim | Kind::Cache | Kind::Zeroes | Kind::Status => {}
            }
        }
        self.answered = answered;
    }
}

#[cfg(test)]
mod tests {
    use crate::control::TenantId;
    use crate::event::{ConnId, Event};
    use crate::nbd::wire::command;
    use crate::rig::{Rig, VOLUME};
    use crate::units::BLOCK;

    const US: u64 = 1000;

    #[test]
    fn the_thread_delays_before_and_after_and_the_device_in_between() {
        let mut rig = Rig::new();
        rig.now = 100 * US;
        rig.server.handle(rig.now, Event::Timer);
        rig.ask_since(60 * US, 1, command::READ, 0, BLOCK);
        rig.server.handed_over(110 * US);
        assert_eq!(rig.server.volume(VOLUME).counters.thread_delay_ns, 40 * US, "nothing was answered");
        rig.now = 400 * US;
        rig.complete_since(250 * US);
        rig.server.handed_over(430 * US);
        let counters = rig.server.volume(VOLUME).counters;
        assert_eq!(rig.answer(1), Some(0));
        assert_eq!(counters.thread_delay_ns, (40 + 150 + 30) * US);
        assert_eq!((counters.disk_delay_ns, counters.queue_delay_ns), (150 * US, 0));
        assert_eq!(counters.read.latency.sum_ns, (430 - 60) * US);
        let recorders = rig.server.latencies[0].as_mut().unwrap();
        assert_eq!(recorders.summary(rig.now).total.read.max_ns, 370 * US);
    }

    #[test]
    fn without_a_word_replies_leave_at_once() {
        let mut rig = Rig::new();
        rig.now = 100 * US;
        rig.ask_as(ConnId(0), 1, command::READ, 0, 0, BLOCK);
        rig.now = 300 * US;
        rig.finish_reads();
        rig.wait(5000 * US);
        let counters = rig.server.volume(VOLUME).counters;
        assert_eq!((counters.thread_delay_ns, counters.read.latency.sum_ns), (0, 200 * US));
        let stats = rig.server.snapshot().tenants[0];
        assert_eq!((stats.tenant, stats.latency.recent.read.count), (TenantId(0), 1));
    }
}
