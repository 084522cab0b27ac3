//! Earliest deadline first: each request has a deadline, and the earliest one goes first.
//!
//! The deadline is the arrival plus the tenant's latency target. For closed systems a bandwidth guarantee is a latency
//! target by Little's law (Wachs and Ganger, CMU-PDL-10-113, section 2.2.2): with N bytes under way, a tenant has its
//! guarantee if each request completes within N / guarantee ([`Head::deadline`]). So a tenant that floods has late
//! deadlines. A tenant without a guarantee has a fixed target. Within a tenant the order is that of arrival.
//!
//! Source: Liu and Layland, Scheduling algorithms for multiprogramming in a hard-real-time environment (JACM 20(1),
//! 1973). Downside: when the deadlines cannot be met, nothing bounds who misses them, or by how much.

use super::{Head, Rule, first};
use crate::units::Nanos;

#[derive(Debug)]
pub(in super::super) struct Edf {
    /// The latency target of tenants without a guarantee.
    latency_ns: Nanos,
}

impl Edf {
    pub(in super::super) fn new(latency_ns: Nanos) -> Edf {
        Edf { latency_ns }
    }
}

impl Rule for Edf {
    fn choose(&mut self, _now: Nanos, heads: &[Head], _in_device: u32) -> Result<Head, Option<Nanos>> {
        let ready = heads.iter().copied().filter(|head| head.is_ready);
        first(ready, |head| head.deadline(self.latency_ns)).ok_or(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Rig;
    use crate::disk::policy::Kind;
    use crate::units::{MILLISECOND, SECOND};

    const MB: u64 = 1_000_000;
    const EDF: Kind = Kind::Edf { latency_ns: 2400 * MILLISECOND };

    #[test]
    fn the_earliest_deadline_goes_first() {
        let mut rig = Rig::new(EDF, MB, &[(30, MB), (30, 2 * MB), (30, 0)]);
        // Deadlines: 2.4 s; 100, 200, 300 ms; 50, 100 ms.
        rig.ask(2, 4096);
        (0..3).for_each(|_| rig.ask(0, 100_000));
        (0..2).for_each(|_| rig.ask(1, 100_000));
        rig.run(10 * SECOND);
        let order: Vec<u32> = rig.submitted.iter().map(|one| one.tenant).collect();
        assert_eq!(order, [1, 0, 1, 0, 0, 2]);
    }

    #[test]
    fn deadlines_are_met_where_the_guarantees_fit() {
        let mut rig = Rig::new(EDF, 10 * MB, &[(30, 6 * MB), (30, 3 * MB), (30, 0)]);
        rig.backlog(0, 4, 65_536);
        rig.backlog(1, 16, 16_384);
        rig.backlog(2, 1, 65_536);
        rig.run(60 * SECOND);
        for (tenant, guarantee) in [(0, 6 * MB), (1, 3 * MB)] {
            let got = rig.bytes(tenant, 10 * SECOND..60 * SECOND) as f64 / (50 * guarantee) as f64;
            assert!(got >= 0.99, "tenant {tenant}: {got} of its guarantee");
        }
    }

    #[test]
    fn a_request_with_a_late_deadline_goes_when_it_is_due() {
        let mut rig = Rig::new(EDF, MB, &[(50, 2 * MB), (50, 0)]);
        rig.backlog(0, 4, 65_536);
        rig.ask(1, 4096);
        rig.run(10 * SECOND);
        let waited = rig.completed.iter().find(|one| one.tenant == 1).expect("it is served").at;
        assert!((2 * SECOND..3 * SECOND).contains(&waited), "{waited}");
    }
}
