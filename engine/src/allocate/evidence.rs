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
}

/// What the requests of a tenant take of a disk that it has for itself.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskTime {
    /// Disk time of a read by the number of reads in the disk, least first: seeks get shorter in a deeper queue.
    /// Interpolated linearly in the logarithm of depth; one entry for all depths where that does not matter.
    pub reads: Vec<Depth>,
    /// Disk time of the write-back of a block.
    pub write_ns: f64,
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
        DiskTime { reads: vec![Depth { depth: 1, service_ns: read_ns }], write_ns }
    }
}

/// A disk that belongs to one tenant at a time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Round {
    /// Length of the round while all tenants are busy.
    pub round_ns: f64,
    /// The fraction of its slices that a tenant uses: the rest is lost in context switches. 1 if alone; 0 if it is not
    /// known yet, which counts as no round.
    pub efficiency: f64,
    /// Whether a request may interrupt another tenant's slice.
    pub interruption: Option<Interruption>,
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
