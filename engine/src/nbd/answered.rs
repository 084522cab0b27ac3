//! Latencies are recorded when the reply has been passed to the socket: the latency of the request, and how long its
//! reply waited for the thread.
//!
//! ```text
//!   since ───────── now ═══════════════ now ──────────── handed over
//!     │ the thread   │ cache, queue, …   │ the thread       │
//!     does other work  the request is      does other work    latency: all of it
//!                      processed
//! ```
//!
//! A driver reads its clock once for many events, so for the engine no time passes between them. If the driver reports
//! when replies have been passed to the sockets ([`Server::handed_over`]), the time until then is a delay of the
//! thread. Otherwise replies count as passed at once. A reply that is sent in parts counts when its last byte is
//! passed; the end of each reply in the byte stream of its connection is recorded for this.

use super::Kind;
use crate::ids::{ConnId, VolumeId};
use crate::server::Server;
use crate::units::Nanos;

/// Replies that may wait to be recorded: many more than one pass of a driver makes. Further ones are recorded at once.
pub(crate) const ANSWERED_MAX: usize = 1024;

/// An answered request whose latency is not recorded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    volume: VolumeId,
    kind: Kind,
    arrived: Nanos,
    /// When the engine answered it.
    at: Nanos,
    conn: ConnId,
    /// Where its reply ends in the byte stream of its connection.
    end: u64,
}

impl Server {
    /// Counts an answered request. Its latency is recorded later, in `handed_over`.
    pub(super) fn count(&mut self, request: u32) {
        let state = &self.requests[request];
        let (volume, kind, arrived, bytes) = (state.volume, state.kind, state.arrived, state.end - state.start);
        let (conn, failed) = (state.conn, state.error.is_some());
        let stats = self.volume_mut(volume).counters.of(kind);
        stats.requests += 1;
        stats.bytes += bytes;
        stats.errors += u64::from(failed);
        let tenant = self.cache.volume(volume).tenant;
        self.device.books().delivered(tenant, if failed { 0 } else { bytes });
        if self.answered.len() == ANSWERED_MAX {
            self.handed_over(self.now, |_| None);
        }
        let connection = self.conn(conn);
        let end = connection.taken + connection.unsent;
        self.answered.push(Answered { volume, kind, arrived, at: self.now, conn, end });
    }

    /// The replies made so far were passed to the sockets at `at`, as far as the sockets accept bytes. If the driver
    /// calls this at all, it does so before the next event. `given(conn)` is the number of outgoing bytes that were
    /// passed if the driver stopped there by itself: the remaining bytes wait for the thread, and so do the replies
    /// that end in them.
    pub fn handed_over(&mut self, at: Nanos, given: impl Fn(ConnId) -> Option<u64>) {
        let mut answered = std::mem::take(&mut self.answered);
        answered.retain(|answer| {
            let connection = self.connections.get(answer.conn.0 as usize).and_then(|connection| connection.as_ref());
            let kept =
                connection.zip(given(answer.conn)).is_some_and(|(state, bytes)| answer.end > state.taken + bytes);
            if !kept {
                self.left(answer, at);
            }
            kept
        });
        self.kept = answered.len();
        self.answered = answered;
    }

    /// Replies that the driver did not report count as passed at the time of the answer.
    pub(crate) fn leave_at_once(&mut self) {
        if self.answered.len() > self.kept {
            let mut answered = std::mem::take(&mut self.answered);
            answered.drain(self.kept..).for_each(|answer| self.left(&answer, answer.at));
            self.answered = answered;
        }
    }

    /// Records the latency of a request.
    fn left(&mut self, answer: &Answered, at: Nanos) {
        let Some(Some(state)) = self.volumes.get_mut(answer.volume.0 as usize) else { return };
        let late_ns = at.saturating_sub(answer.at);
        let latency_ns = answer.at + late_ns - answer.arrived;
        state.counters.thread_delay_ns += late_ns;
        state.counters.of(answer.kind).latency.record(latency_ns);
        let recorders = self.latencies[state.spec.tenant.0 as usize].as_mut().expect("the tenant of a volume");
        match answer.kind {
            Kind::Read => recorders.read(self.now, latency_ns),
            Kind::Write => recorders.write(self.now, latency_ns),
            Kind::Flush | Kind::Trim | Kind::Cache | Kind::Zeroes | Kind::Status => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Event;
    use crate::ids::{ConnId, TenantId};
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
        rig.server.handed_over(110 * US, |_| None);
        assert_eq!(rig.server.volume(VOLUME).counters.thread_delay_ns, 40 * US, "nothing was answered");
        rig.now = 400 * US;
        rig.complete_since(250 * US);
        rig.server.handed_over(430 * US, |_| None);
        let counters = rig.server.volume(VOLUME).counters;
        assert_eq!(rig.answer(1), Some(0));
        assert_eq!(counters.thread_delay_ns, (40 + 150 + 30) * US);
        assert_eq!((counters.disk_delay_ns, counters.queue_delay_ns), (150 * US, 0));
        assert_eq!(counters.read.latency.sum_ns, (430 - 60) * US);
        let recorders = rig.server.latencies[0].as_mut().unwrap();
        assert_eq!(recorders.summary(rig.now).total.read.max_ns, 370 * US);
    }

    #[test]
    fn a_reply_in_parts_has_left_with_its_last_byte() {
        let mut rig = Rig::new();
        rig.deaf = vec![ConnId(0), ConnId(1)];
        rig.now = 100 * US;
        rig.ask_as(ConnId(1), 1, command::READ, 0, 0, 2 * BLOCK);
        rig.ask_as(ConnId(1), 2, command::READ, 0, 4 * BLOCK, BLOCK);
        rig.ask_as(ConnId(0), 3, command::READ, 0, 6 * BLOCK, BLOCK);
        rig.now = 300 * US;
        rig.finish_reads();
        let counted = |rig: &Rig| {
            let counters = rig.server.volume(VOLUME).counters;
            (counters.read.latency.count(), counters.thread_delay_ns / US)
        };
        let given = |bytes| move |conn| (conn == ConnId(1)).then_some(bytes);
        rig.server.handed_over(310 * US, given(BLOCK));
        assert_eq!(counted(&rig), (1, 10), "the other connection's");
        rig.now = 311 * US;
        rig.handle(Event::Sent { conn: ConnId(1), bytes: BLOCK });
        assert_eq!(counted(&rig), (1, 10));
        rig.server.handed_over(320 * US, given(BLOCK + 15));
        assert_eq!(counted(&rig), (1, 10), "all but a byte of the first one's");
        rig.now = 321 * US;
        rig.handle(Event::Sent { conn: ConnId(1), bytes: BLOCK + 15 });
        rig.server.handed_over(330 * US, given(1));
        assert_eq!(counted(&rig), (2, 40));
        rig.now = 331 * US;
        rig.server.handed_over(340 * US, |_| None);
        assert_eq!(counted(&rig), (3, 80), "what the socket does not take does not wait for the thread");
        let longest = rig.server.latencies[0].as_mut().unwrap().summary(rig.now).total.read.max_ns;
        assert_eq!(longest, 240 * US);
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
