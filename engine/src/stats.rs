//! Counters and histograms that layers fill and snapshots report.

use crate::units::Nanos;

/// Buckets of a [`Histogram`]: bucket i counts latencies below 2^i microseconds, the last one all longer latencies.
pub const BUCKETS: usize = 26;

/// Latencies by powers of two of a microsecond, which can be summed over volumes and servers. More accurate percentiles
/// are in [`TenantStats::latency`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// Counts by bucket.
    pub buckets: [u64; BUCKETS],
    /// Sum of all latencies, nanoseconds.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    /// Records a latency.
    pub fn record(&mut self, latency_ns: Nanos) {
        let us = latency_ns / 1000;
        let bucket = (64 - us.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.sum_ns += latency_ns;
    }

    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Upper bound of bucket `i`, nanoseconds; `None` for the last bucket.
    pub fn bound_ns(i: usize) -> Option<Nanos> {
        (i + 1 < BUCKETS).then(|| 1000 << i)
    }
}

/// Device reads that clients waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fills {
    /// Completed device reads.
    pub requests: u64,
    /// Nanoseconds that they waited while their tenant owned the disk or could have owned it.
    pub queued_ns: u64,
    /// Nanoseconds that they waited while other tenants owned the disk.
    pub slice_ns: u64,
    /// Nanoseconds that they were in the device.
    pub device_ns: u64,
    /// Those of them that were in the device together with writes of the same tenant.
    pub beside_writes: BesideWrites,
}

/// Device reads that were in the device together with writes of the same tenant: a batch of write-back delays them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BesideWrites {
    /// Completed device reads.
    pub requests: u64,
    /// Nanoseconds that they were in the device.
    pub device_ns: u64,
    /// Disk time of them, as in `Spent`.
    pub service_ns: u64,
}

/// Reads whose blocks were all in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hits {
    /// Reads answered.
    pub requests: u64,
    /// The sum of their latencies, nanoseconds.
    pub sum_ns: u64,
}

/// One kind of request of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpStats {
    /// Requests answered, errors included.
    pub requests: u64,
    /// Bytes requested by them.
    pub bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// From the arrival of the header to the hand-over of the reply to the socket. The most recent replies may be
    /// missing.
    pub latency: Histogram,
}

/// Why blocks that a client has evicted were not taken, blocks of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DroppedBlocks {
    /// The session demotes no more: a client without it has changed the volume.
    pub refused: u64,
    /// All blocks of the demotion had been written since when its header arrived.
    pub outdated: u64,
    /// The block had been written since when the payload was complete.
    pub overtaken: u64,
    /// The cache had no room, or other requests waited for it.
    pub no_room: u64,
    /// The volume has a hole there.
    pub hole: u64,
    /// The cache has something else of the block: it is dirty, being read, or there in part.
    pub present: u64,
}

impl DroppedBlocks {
    /// All of them.
    pub fn total(&self) -> u64 {
        let DroppedBlocks { refused, outdated, overtaken, no_room, hole, present } = self;
        refused + outdated + overtaken + no_room + hole + present
    }
}

/// What the caches of a client and of its server have exchanged, blocks of 4 KiB since the volume was opened. What a
/// gateway has sent is in the statistics of its upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DemotionStats {
    /// A session of a client demotes: the server drops what it has sent, and takes what the client evicts.
    pub is_lower: bool,
    /// Blocks that the client has evicted and this cache has taken.
    pub taken_blocks: u64,
    /// Those that it has not taken.
    pub dropped: DroppedBlocks,
    /// Those that the client has read again before they were evicted here.
    pub used_blocks: u64,
    /// Blocks that this cache has evicted and that were not sent to the server, because too many were on their way.
    pub unsent_blocks: u64,
}
