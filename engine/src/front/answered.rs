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
//! when replies have been passed to the sockets ([`Front::handed_over`]), the time until then is a delay of the
//! thread. Otherwise replies count as passed at once. A reply that is sent in parts counts when its last byte is
//! passed; the end of each reply in the byte stream of its connection is recorded for this.

use super::Front;
use crate::ids::{ConnId, VolumeId};
use crate::nbd::Kind;
use crate::units::Nanos;
use crate::volume::{Answer, Volumes};

/// Replies that may wait to be recorded: many more than one pass of a driver makes. Further ones are recorded at once.
pub(crate) const ANSWERED_MAX: usize = 1024;

/// An answered request whose latency is not recorded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    volume: VolumeId,
    kind: Kind,
    missed: bool,
    arrived: Nanos,
    /// When the engine answered it.
    at: Nanos,
    conn: ConnId,
    /// Where its reply ends in the byte stream of its connection.
    end: u64,
}

impl Front {
    /// Counts an answered request. Its latency is recorded later, in `handed_over`.
    pub(super) fn count(&mut self, volumes: &mut Volumes, answer: &Answer) {
        let &Answer { conn, volume, kind, bytes, arrived, error, missed, .. } = answer;
        if kind == Kind::Demote {
            // Nobody waits for it; the volume counts blocks.
            return;
        }
        let stats = volumes.volume_mut(volume).counters.of(kind);
        stats.requests += 1;
        stats.errors += u64::from(error.is_some());
        if error.is_none() {
            // A refused request may claim any length.
            stats.bytes += bytes;
            let tenant = volumes.tenant_of(volume);
            // Guarantees are of data: a TRIM or a BLOCK_STATUS of a terabyte moves none.
            let data = if matches!(kind, Kind::Read | Kind::Write) { bytes } else { 0 };
            volumes.route.disk.delivered(volumes.now, tenant, data);
        }
        if self.answered.len() == ANSWERED_MAX {
            self.handed_over(volumes, volumes.now, |_| None);
        }
        let connection = &self.connections[conn];
        let end = connection.stream.taken + connection.stream.unsent;
        self.answered.push(Answered { volume, kind, missed, arrived, at: volumes.now, conn, end });
    }

    /// The replies made so far were passed to the sockets at `at`, as far as the sockets accept bytes. If the driver
    /// calls this at all, it does so before the next event. `given(conn)` is the number of outgoing bytes that were
    /// passed if the driver stopped there by itself: the remaining bytes wait for the thread, and so do the replies
    /// that end in them.
    pub(crate) fn handed_over(&mut self, volumes: &mut Volumes, at: Nanos, given: impl Fn(ConnId) -> Option<u64>) {
        let mut answered = std::mem::take(&mut self.answered);
        answered.retain(|answer| {
            let connection = self.connections.get(answer.conn);
            let kept = connection
                .zip(given(answer.conn))
                .is_some_and(|(state, bytes)| answer.end > state.stream.taken + bytes);
            if !kept {
                self.left(volumes, answer, at);
            }
            kept
        });
        self.kept = answered.len();
        self.answered = answered;
    }

    /// Replies that the driver did not report count as passed at the time of the answer.
    pub(crate) fn leave_at_once(&mut self, volumes: &mut Volumes) {
        if self.answered.len() > self.kept {
            let mut answered = std::mem::take(&mut self.answered);
            answered.drain(self.kept..).for_each(|answer| self.left(volumes, &answer, answer.at));
            self.answered = answered;
        }
    }

    /// Records the latency of a request.
    fn left(&mut self, volumes: &mut Volumes, answer: &Answered, at: Nanos) {
        let now = volumes.now;
        let Some(state) = volumes.table.get_mut(answer.volume) else { return };
        let late_ns = at.saturating_sub(answer.at);
        let latency_ns = answer.at + late_ns - answer.arrived;
        state.counters.thread_delay_ns += late_ns;
        state.counters.of(answer.kind).latency.record(latency_ns);
        if answer.kind == Kind::Read && !answer.missed {
            state.counters.hits.requests += 1;
            state.counters.hits.sum_ns += latency_ns;
        }
        let recorders = &mut self.latencies[state.spec.tenant];
        match answer.kind {
            Kind::Read => recorders.read(now, latency_ns),
            Kind::Write => recorders.write(now, latency_ns),
            Kind::Flush | Kind::Trim | Kind::Cache | Kind::Zeroes | Kind::Status | Kind::Demote => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::front::rig::Rig;
    use crate::ids::{ConnId, TenantId};
    use crate::nbd::wire::command;
    use crate::units::BLOCK;
    use crate::volume::rig::{VOLUME, header};

    const US: u64 = 1000;

    #[test]
    fn the_thread_delays_before_and_after_and_the_device_in_between() {
        let mut rig = Rig::new();
        rig.now = 100 * US;
        rig.wait(0);
        rig.ask_at(60 * US, ConnId(0), header(1, command::READ, 0, 0, BLOCK));
        rig.handed_over(110 * US, |_| None);
        assert_eq!(rig.volumes.volume(VOLUME).counters.thread_delay_ns, 40 * US, "nothing was answered");
        rig.now = 400 * US;
        rig.complete_at(250 * US, 0, Ok(()));
        rig.handed_over(430 * US, |_| None);
        let counters = rig.volumes.volume(VOLUME).counters;
        assert_eq!(rig.answer(1), Some(0));
        assert_eq!(counters.thread_delay_ns, (40 + 150 + 30) * US);
        assert_eq!((counters.disk_delay_ns, counters.queue_delay_ns), (150 * US, 0));
        assert_eq!(counters.read.latency.sum_ns, (430 - 60) * US);
        let recorders = &mut rig.above.front.latencies[TenantId(0)];
        assert_eq!(recorders.summary(rig.now).total.read.max_ns, 370 * US);
    }

    #[test]
    fn a_reply_in_parts_has_left_with_its_last_byte() {
        let mut rig = Rig::new();
        rig.above.stalled_readers = vec![ConnId(0), ConnId(1)];
        rig.now = 100 * US;
        rig.ask_as(ConnId(1), 1, command::READ, 0, 0, 2 * BLOCK);
        rig.ask_as(ConnId(1), 2, command::READ, 0, 4 * BLOCK, BLOCK);
        rig.ask_as(ConnId(0), 3, command::READ, 0, 6 * BLOCK, BLOCK);
        rig.now = 300 * US;
        rig.finish_reads();
        let counted = |rig: &Rig| {
            let counters = rig.volumes.volume(VOLUME).counters;
            (counters.read.latency.count(), counters.thread_delay_ns / US)
        };
        let given = |bytes| move |conn| (conn == ConnId(1)).then_some(bytes);
        rig.handed_over(310 * US, given(BLOCK));
        assert_eq!(counted(&rig), (1, 10), "the other connection's");
        rig.now = 311 * US;
        rig.sent(ConnId(1), BLOCK);
        assert_eq!(counted(&rig), (1, 10));
        rig.handed_over(320 * US, given(BLOCK + 15));
        assert_eq!(counted(&rig), (1, 10), "all but a byte of the first one's");
        rig.now = 321 * US;
        rig.sent(ConnId(1), BLOCK + 15);
        rig.handed_over(330 * US, given(1));
        assert_eq!(counted(&rig), (2, 40));
        rig.now = 331 * US;
        rig.handed_over(340 * US, |_| None);
        assert_eq!(counted(&rig), (3, 80), "what the socket does not take does not wait for the thread");
        let longest = rig.above.front.latencies[TenantId(0)].summary(rig.now).total.read.max_ns;
        assert_eq!(longest, 240 * US);
    }

    #[test]
    fn reads_of_the_cache_are_counted_apart() {
        let mut rig = Rig::new();
        rig.now = 100 * US;
        rig.ask_as(ConnId(0), 1, command::READ, 0, 0, BLOCK);
        rig.now = 300 * US;
        rig.finish_reads();
        rig.ask_as(ConnId(0), 2, command::READ, 0, 0, BLOCK);
        rig.wait(5000 * US);
        let counters = rig.volumes.volume(VOLUME).counters;
        assert_eq!((counters.read.latency.count(), counters.read.latency.sum_ns), (2, 200 * US));
        assert_eq!((counters.hits.requests, counters.hits.sum_ns), (1, 0));
        assert_eq!((counters.fills.requests, counters.fills.device_ns), (1, 200 * US));
    }

    #[test]
    fn without_a_word_replies_leave_at_once() {
        let mut rig = Rig::new();
        rig.now = 100 * US;
        rig.ask_as(ConnId(0), 1, command::READ, 0, 0, BLOCK);
        rig.now = 300 * US;
        rig.finish_reads();
        rig.wait(5000 * US);
        let counters = rig.volumes.volume(VOLUME).counters;
        assert_eq!((counters.thread_delay_ns, counters.read.latency.sum_ns), (0, 200 * US));
        let latency = rig.above.front.latencies[TenantId(0)].summary(rig.now);
        assert_eq!(latency.recent.read.count, 1);
    }
}
