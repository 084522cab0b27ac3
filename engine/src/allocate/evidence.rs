//! What is known of a tenant.

use super::curve::MissRatios;
pub use crate::spec::Tiers;

/// What the model knows of a tenant. Latencies and times are nanoseconds, and means. A reference is a block that a
/// client reads or writes at the first tier (at the server, without a gateway).
#[derive(Clone, PartialEq, Debug)]
pub struct Evidence {
    /// How its tiers work together. `Lru`: a small second tier holds copies of the first, M(max(c, s)). `Demote`: the
    /// second tier holds what the first evicts (Wong and Wilkes, USENIX 2002), M(c + s).
    pub tiers: Tiers,
    /// Miss ratios of its reads, as its clients send them to the first tier.
    pub reads: MissRatios,
    /// Likewise of its writes: those that the cache does not absorb cost disk time.
    pub writes: MissRatios,
    /// Reads of all references, 0 to 1.
    pub read_fraction: f64,
    /// References a second, at the present allocation. Only the baselines that divide by misses use it.
    pub references_per_second: f64,
    /// Latency of a hit in the first tier.
    pub first_hit_ns: f64,
    /// Latency of a hit in the second tier, as the client sees it: network included.
    pub second_hit_ns: f64,
    /// Latency of a write, as the client sees it: write-back, so no disk time.
    pub write_ns: f64,
    /// What its requests take of the disk.
    pub disk: DiskTime,
    /// References that its clients have outstanding or think about: `N` of the closed loop.
    pub outstanding: u32,
    /// Mean think time of each of them between a reply and its next request: `z`.
    pub think_ns: f64,
    /// How its disk is divided in time. `None`: the share takes effect at any scale (fair queueing).
    pub round: Option<Round>,
    /// The part of the disk's time that it has whatever its share, 0 to 1: others leave it unused.
    pub share_least: f64,
    /// Measured disk latency at the present allotment / that of the model; 1 without a measurement. The model scales
    /// its disk latency by this factor at all allotments. It is below 1 if other tenants end their slices early, and
    /// above 1 if write-back uses up the slice.
    pub of_model: f64,
}

/// What the requests of a tenant take of a disk that it has for itself.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskTime {
    /// Disk time of a read by the number of reads in the disk, least first: seeks get shorter in a deeper queue.
    /// Interpolated linearly in the logarithm of depth; one entry for all depths where that does not matter.
    pub reads: Vec<Depth>,
    /// Disk time of the write-back of a block.
    pub write_ns: f64,
    /// How much longer a read is in the device because of a batch of write-back there, if all of the tenant's disk time
    /// were write-back. With a part of it, that part of the reads is delayed.
    pub delay_ns: f64,
    /// Dirty blocks that write-back could sort when `write_ns` and `delay_ns` were measured. 0 if that is not known:
    /// then both times are the same with any caches.
    pub sweep_blocks: f64,
}

/// What was measured of the device requests of a tenant: sums over a time.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Observed {
    /// Reads that clients waited for.
    pub reads: Reads,
    /// Those of them that were in the device together with writes of the tenant.
    pub beside_writes: Reads,
    /// Disk time of its writes.
    pub writes_ns: f64,
    /// Disk time that it had: its slices.
    pub owned_ns: f64,
}

/// Sums over reads of the device.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Reads {
    /// How many.
    pub count: f64,
    /// How long they were in the device.
    pub device_ns: f64,
    /// Their disk time: of each, the time since the previous completion, or since its submission if that was later.
    pub service_ns: f64,
}

impl Observed {
    /// What was measured since. `None` if a sum has gone back. Time that it had may be taken back from it.
    pub(super) fn since(&self, earlier: &Observed) -> Option<Observed> {
        let difference = |now: f64, then: f64| (now >= then).then_some(now - then);
        let reads = |now: &Reads, then: &Reads| {
            Some(Reads {
                count: difference(now.count, then.count)?,
                device_ns: difference(now.device_ns, then.device_ns)?,
                service_ns: difference(now.service_ns, then.service_ns)?,
            })
        };
        Some(Observed {
            reads: reads(&self.reads, &earlier.reads)?,
            beside_writes: reads(&self.beside_writes, &earlier.beside_writes)?,
            writes_ns: difference(self.writes_ns, earlier.writes_ns)?,
            owned_ns: (self.owned_ns - earlier.owned_ns).max(0.0),
        })
    }

    /// The reads that no write delayed; all reads, if each was in the device with a write.
    fn alone(&self) -> Reads {
        let (all, beside) = (self.reads, self.beside_writes);
        if all.count <= beside.count || all.service_ns <= beside.service_ns {
            return all;
        }
        Reads {
            count: all.count - beside.count,
            device_ns: all.device_ns - beside.device_ns,
            service_ns: all.service_ns - beside.service_ns,
        }
    }

    /// Mean disk time of a read, and the mean number of reads in the device in that time. `None` without a read.
    pub fn service(&self) -> Option<(f64, f64)> {
        let Reads { count, device_ns, service_ns } = self.alone();
        (count > 0.0 && service_ns > 0.0).then(|| (service_ns / count, device_ns / service_ns))
    }

    /// [`DiskTime::delay_ns`]: what a batch adds to the time of a read, times the part of the reads to which it does,
    /// divided by the part of the disk time that is write-back.
    pub fn delay_ns(&self) -> f64 {
        let (beside, alone) = (self.beside_writes, self.alone());
        if beside.count == 0.0 || alone == self.reads || self.writes_ns <= 0.0 {
            return 0.0;
        }
        let longer_ns = (beside.device_ns / beside.count - alone.device_ns / alone.count).max(0.0);
        longer_ns * (beside.count / self.reads.count) * (self.owned_ns / self.writes_ns)
    }
}

/// Disk time at one depth.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Depth {
    /// Reads in the disk.
    pub depth: u32,
    /// Mean disk time of a read: elapsed time / reads while so many are in the disk.
    pub service_ns: f64,
}

impl DiskTime {
    /// The same time at any depth.
    pub fn constant(read_ns: f64, write_ns: f64) -> DiskTime {
        DiskTime { reads: vec![Depth { depth: 1, service_ns: read_ns }], write_ns, delay_ns: 0.0, sweep_blocks: 0.0 }
    }
}

/// A disk that belongs to one tenant at a time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Round {
    /// The other tenants' part of a round while all are busy. It is the same with any share of this tenant, up to the
    /// longest round: their slices are as long as they need, to lose no more than they may. 0 if it is not known yet,
    /// which counts as no round.
    pub others_ns: f64,
    /// The longest round.
    pub round_ns_max: f64,
    /// What a tenant loses of each slice.
    pub loss: Loss,
    /// Whether a request may interrupt another tenant's slice.
    pub interruption: Option<Interruption>,
}

impl Round {
    /// The length of the round with this share, below 1.
    pub fn round_ns(&self, share: f64) -> f64 {
        (self.others_ns / (1.0 - share)).min(self.round_ns_max)
    }
}

/// The time of a slice in which no request of its tenant is served. It is the same in short and in long slices.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Loss {
    /// At the beginning: the context switch.
    pub switch_ns: f64,
    /// At the end, if no request is in the device then: a read that arrives in this time would not complete within the
    /// slice, and waits for the next one.
    pub closing_ns: f64,
}

/// An interruption of another tenant's slice.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interruption {
    /// Time from the arrival of a request until its tenant has the disk: the other tenants' mean drain (their
    /// outstanding reads x service time at that depth, by share) and a switch.
    pub delay_ns: f64,
    /// Disk time that the tenant pays beyond its own requests: the other tenants' mean loss per slice, at least a
    /// switch cost, and a switch cost more.
    pub cost_ns: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beside_a_batch_say_by_how_much_it_delays_and_nothing_of_the_depth() {
        let of = |count: f64, each_ns: f64, service_ns: f64| Reads {
            count,
            device_ns: count * each_ns,
            service_ns: count * service_ns,
        };
        let (alone, beside) = (of(90.0, 6.0, 3.0), of(10.0, 30.0, 4.0));
        let reads = Reads {
            count: 100.0,
            device_ns: alone.device_ns + beside.device_ns,
            service_ns: alone.service_ns + beside.service_ns,
        };
        let observed = Observed { reads, beside_writes: beside, writes_ns: 200.0, owned_ns: 2000.0 };
        assert_eq!(observed.service(), Some((3.0, 2.0)));
        // A tenth of the reads for 24 longer, with a tenth of the disk time for write-back.
        assert!((observed.delay_ns() - 24.0).abs() < 1e-9, "{}", observed.delay_ns());
        let without = Observed { beside_writes: Reads::default(), ..observed };
        assert_eq!((without.delay_ns(), without.service()), (0.0, Some((3.1, 840.0 / 310.0))));
        let only = Observed { reads: beside, ..observed };
        assert_eq!((only.delay_ns(), only.service()), (0.0, Some((4.0, 7.5))));
        assert_eq!(Observed::default().service(), None);
    }
}
