//! Façade: earliest deadline first, and a bound on the requests in the device that follows the latency targets.
//!
//! ```text
//!   deadlines (as `edf.rs`) ─► a request goes if the device has fewer than `bound` requests, or its deadline is past
//!   each second: some tenant misses its target on average ─► bound x target / latency     (shorter queue, latency)
//!                otherwise, if the bound was reached      ─► bound + 10 %                 (longer queue, throughput)
//! ```
//!
//! A tenant without a guarantee has a fixed latency target; the target of the others follows from their guarantees, by
//! Little's law ([`Head::deadline`]). The paper's targets are given by the operator, by read and write and by rate.
//!
//! Source: Lumb, Merchant, Alvarez, Façade: virtual storage devices with performance guarantees (FAST 2003), section 3.
//! Downside: a short queue costs the device its own scheduling, and so throughput; when no bound meets the targets, it
//! ends with one request in the device.

use super::{Head, Rule, first};
use crate::ids::{IoId, TenantId};
use crate::slab::Table;
use crate::units::{Nanos, SECOND};

/// Time between changes of the bound: enough requests for a mean, short enough to follow a burst.
const PERIOD_NS: Nanos = SECOND;
/// By what part the bound grows, thousandths, but at least by one: slowly, since it shrinks at once.
const GROWTH_PERMILLE: u32 = 100;

/// A request in the device.
#[derive(Clone, Copy, Debug)]
struct Sent {
    io: IoId,
    tenant: TenantId,
    arrived: Nanos,
    target_ns: Nanos,
}

/// Sums over the requests of a tenant that completed in this period.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    latency_ns: u128,
    target_ns: u128,
}

#[derive(Debug)]
pub(in super::super) struct Facade {
    /// The latency target of tenants without a guarantee.
    latency_ns: Nanos,
    /// Requests in the device, at most.
    bound: u32,
    /// Whether the bound held a request back in this period.
    was_reached: bool,
    changes_at: Nanos,
    sent: Vec<Sent>,
    sums: Table<TenantId, Sums>,
}

impl Facade {
    pub(in super::super) fn new(latency_ns: Nanos, depth: u32) -> Facade {
        Facade {
            latency_ns,
            bound: depth,
            was_reached: false,
            changes_at: PERIOD_NS,
            sent: Vec::new(),
            sums: Table::default(),
        }
    }

    /// Changes the bound at the end of a period.
    fn adjust(&mut self, now: Nanos) {
        if now < self.changes_at {
            return;
        }
        let missed = |sums: &&Sums| sums.latency_ns > sums.target_ns;
        let part = |sums: &Sums| sums.target_ns as f64 / sums.latency_ns as f64;
        let least = self.sums.values().filter(missed).map(part).reduce(f64::min);
        match least {
            Some(part) => self.bound = ((f64::from(self.bound) * part) as u32).max(1),
            None if self.was_reached => self.bound += (self.bound * GROWTH_PERMILLE / 1000).max(1),
            None => {}
        }
        (self.was_reached, self.changes_at) = (false, now + PERIOD_NS);
        self.sums.iter_mut().for_each(|(_, sums)| *sums = Sums::default());
    }
}

impl Rule for Facade {
    fn add(&mut self, tenant: TenantId) {
        if !self.sums.contains(tenant) {
            self.sums.insert(tenant, Sums::default());
        }
    }

    fn remove(&mut self, tenant: TenantId) {
        self.sums.remove(tenant);
    }

    fn choose(&mut self, now: Nanos, heads: &[Head], in_device: u32) -> Result<Head, Option<Nanos>> {
        self.adjust(now);
        let ready = heads.iter().copied().filter(|head| head.is_ready);
        let head = first(ready, |head| head.deadline(self.latency_ns)).ok_or(None)?;
        let deadline = head.deadline(self.latency_ns);
        if in_device >= self.bound && deadline > now {
            self.was_reached = true;
            return Err(Some(deadline.min(self.changes_at)));
        }
        let Head { io, tenant, arrived, .. } = head;
        self.sent.push(Sent { io, tenant, arrived, target_ns: deadline - arrived });
        Ok(head)
    }

    fn done(&mut self, now: Nanos, io: IoId) {
        let Some(at) = self.sent.iter().position(|sent| sent.io == io) else { return };
        let sent = self.sent.swap_remove(at);
        if let Some(sums) = self.sums.get_mut(sent.tenant) {
            sums.latency_ns += u128::from(now - sent.arrived);
            sums.target_ns += u128::from(sent.target_ns);
        }
        self.adjust(now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use super::*;
    use crate::disk::policy::Kind;
    use crate::units::MILLISECOND;

    const MB: u64 = 1_000_000;
    const FACADE: Kind = Kind::Facade { latency_ns: 2400 * MILLISECOND };
    const SIZE: u64 = 50_000;

    /// Most requests in the device in each second. The device serves 10 MB/s in its own order: it is first come first
    /// served, so a deep queue delays the tenant with the early deadline.
    fn depths(rig: &Rig, seconds: u64) -> Vec<u32> {
        let most = |second: u64| {
            let of = rig.submitted.iter().filter(|one| one.at / SECOND == second);
            of.map(|one| one.in_device).max().unwrap_or(0)
        };
        (0..seconds).map(most).collect()
    }

    #[test]
    fn the_queue_of_the_device_shrinks_until_targets_are_met_and_grows_again() {
        // One request at a time at 5 MB/s: a target of 10 ms, which is two requests in the device.
        let mut rig = Rig::new(FACADE, 10 * MB, &[(50, 5 * MB), (50, 0)]);
        rig.backlog(0, 1, SIZE);
        rig.backlog(1, 100, SIZE);
        rig.run(30 * SECOND);
        let shrunk = depths(&rig, 30);
        assert!(shrunk[0] > 60 && shrunk[20..].iter().all(|&depth| depth <= 4), "{shrunk:?}");
        let got = rig.bytes(0, 20 * SECOND..30 * SECOND) as f64 / (10 * MB) as f64;
        assert!(got > 3.0, "{got} MB/s");
        // Without it the others' target is far away, and the queue grows while it is full.
        rig.backlog(0, 0, SIZE);
        rig.backlog(1, 20, SIZE);
        rig.run(60 * SECOND);
        let grown = depths(&rig, 60);
        assert!(grown[59] >= 15, "{grown:?}");
    }

    #[test]
    fn a_request_that_is_past_its_deadline_goes_whatever_hangs_in_the_device() {
        let mut rig = Rig::new(FACADE, 10 * MB, &[(50, 5 * MB), (50, 0)]);
        rig.backlog(0, 1, SIZE);
        rig.backlog(1, 100, SIZE);
        rig.run(10 * SECOND);
        (0..2).for_each(|tenant| rig.backlog(tenant, 0, SIZE));
        rig.run(20 * SECOND);
        rig.hang();
        (0..20).for_each(|_| rig.ask(1, SIZE));
        let before = rig.submitted.len();
        rig.run(22 * SECOND);
        assert!(rig.submitted.len() - before < 6, "the bound is short");
        rig.run(23 * SECOND);
        assert_eq!(rig.submitted.len() - before, 20, "2.4 s have passed");
    }
}
