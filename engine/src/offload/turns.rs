//! The order in which writes are appended to a log: the tenants of the base divide its bandwidth by their shares.
//!
//! ```text
//!   tenant a, 3/4  |w|w|w|w|w|          next record   |a|a|a|b|a|a|a|b| …     the write with the lowest tag first
//!   tenant b, 1/4  |w|w|
//! ```
//!
//! A write of a tenant begins at the clock or at the tag behind the tenant's last write, whichever is greater, and
//! takes bytes / share of it. The clock is the tag of the write that was taken last. So a tenant with many writes does
//! not hold up one with few, and who was away is owed nothing.
//!
//! Source: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), section 2.

use std::collections::VecDeque;

use super::log::RECORD_BYTES_MAX;
use super::record::{HEADER, WRITES_MAX};
use super::store::Pending;
use crate::ids::TenantId;
use crate::units::Share;

/// The least share that counts, parts per billion: it keeps tags small.
const SHARE_MIN_PPB: u64 = 1_000_000;

/// The writes of a tenant, in order.
#[derive(Debug)]
struct Queue {
    tenant: Option<TenantId>,
    share_ppb: u64,
    waiting: VecDeque<Pending>,
    /// Of the first that waits, or of the next that comes.
    tag: u64,
}

/// What waits to be appended to a log.
#[derive(Default, Debug)]
pub(super) struct Turns {
    queues: Vec<Queue>,
    clock: u64,
    /// The writes of the next record, in order.
    record: Vec<Pending>,
    /// Writes in all, and their bytes.
    count: usize,
    bytes: u64,
}

impl Turns {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A write of a tenant that has so much of the base, parts per billion.
    pub(super) fn push(&mut self, tenant: Option<TenantId>, share_ppb: u64, pending: Pending) {
        (self.count, self.bytes) = (self.count + 1, self.bytes + u64::from(pending.stored.len));
        let at = self.queues.iter().position(|queue| queue.tenant == tenant).unwrap_or_else(|| {
            self.queues.push(Queue { tenant, share_ppb, waiting: VecDeque::new(), tag: self.clock });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[at];
        queue.share_ppb = share_ppb.max(SHARE_MIN_PPB);
        if queue.waiting.is_empty() {
            queue.tag = queue.tag.max(self.clock);
        }
        queue.waiting.push_back(pending);
    }

    /// Chooses the writes of the next record: their number, and the bytes of the record with its header.
    pub(super) fn choose(&mut self) -> (usize, u64) {
        let mut bytes = HEADER as u64 + self.record.iter().map(|write| u64::from(write.stored.len)).sum::<u64>();
        while self.record.len() < WRITES_MAX
            && let Some(queue) =
                self.queues.iter_mut().filter(|queue| !queue.waiting.is_empty()).min_by_key(|it| it.tag)
        {
            let len = u64::from(queue.waiting[0].stored.len);
            if !self.record.is_empty() && bytes + len > RECORD_BYTES_MAX {
                break;
            }
            bytes += len;
            self.clock = queue.tag;
            queue.tag += len * Share::ONE.ppb() / queue.share_ppb;
            self.record.extend(queue.waiting.pop_front());
        }
        (self.record.len(), bytes)
    }

    /// Takes what [`Turns::choose`] has chosen.
    pub(super) fn take(&mut self) -> Vec<Pending> {
        let record = std::mem::take(&mut self.record);
        self.count -= record.len();
        self.bytes -= record.iter().map(|write| u64::from(write.stored.len)).sum::<u64>();
        // A tenant that has gone is forgotten when nothing is held against it.
        self.queues.retain(|queue| !queue.waiting.is_empty() || queue.tag > self.clock);
        record
    }

    /// Takes everything.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Pending> + use<> {
        let Turns { queues, record, .. } = std::mem::take(self);
        record.into_iter().chain(queues.into_iter().flat_map(|queue| queue.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Stored;
    use super::*;
    use crate::ids::IoId;

    const A: Option<TenantId> = Some(TenantId(1));
    const B: Option<TenantId> = Some(TenantId(2));
    const MOST: u64 = 750_000_000;
    const REST: u64 = 250_000_000;

    fn push(turns: &mut Turns, tenant: Option<TenantId>, share_ppb: u64, len: u32, count: usize) {
        for _ in 0..count {
            let stored = Stored { version: 0, key: tenant.map_or(0, |it| it.0), start: 0, len, copies: 1 };
            turns.push(tenant, share_ppb, Pending { id: 0, io: IoId(0), stored });
        }
    }

    /// Bytes of the tenants in the next records.
    fn records(turns: &mut Turns, count: usize) -> [u64; 2] {
        let mut bytes = [0; 2];
        for _ in 0..count {
            let (writes, all) = turns.choose();
            assert!(writes <= WRITES_MAX && all <= RECORD_BYTES_MAX);
            assert_eq!(turns.choose(), (writes, all), "the choice stays until it is taken");
            turns.take().iter().for_each(|write| bytes[write.stored.key as usize - 1] += u64::from(write.stored.len));
        }
        bytes
    }

    #[test]
    fn tenants_have_the_log_by_their_shares_whatever_the_size_and_number_of_their_writes() {
        let mut turns = Turns::default();
        push(&mut turns, A, MOST, 4096, 6000);
        push(&mut turns, B, REST, 65536, 200);
        let [a, b] = records(&mut turns, 200);
        assert!((a as f64 / (3 * b) as f64 - 1.0).abs() < 0.05, "{a} and {b}");
        // Alone, a tenant has all of it, and what the other one had meanwhile is not held against it.
        turns.clear().for_each(drop);
        assert!(turns.is_empty() && turns.bytes() == 0 && turns.choose().0 == 0);
        push(&mut turns, B, REST, 4096, 2000);
        assert_eq!(records(&mut turns, 50), [0, 50 * WRITES_MAX as u64 * 4096]);
        push(&mut turns, A, MOST, 4096, 1000);
        let [a, b] = records(&mut turns, 40);
        assert!((a as f64 / (3 * b) as f64 - 1.0).abs() < 0.05, "{a} and {b}");
    }

    #[test]
    fn a_single_write_does_not_wait_behind_the_many_of_another_tenant() {
        let mut turns = Turns::default();
        push(&mut turns, A, MOST, 262_144, 1000);
        records(&mut turns, 10);
        push(&mut turns, B, REST, 4096, 1);
        assert_eq!(records(&mut turns, 2)[1], 4096, "in one of the next two records");
        assert!(turns.len() > 900, "the others still wait");
    }
}
