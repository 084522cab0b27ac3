//! The configuration of the engine of one disk.

use crate::disk::policy;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND};

/// Memory of a frame, bytes, with its bookkeeping: the cache's, the tenants' curves, and the model of sizing.
pub const FRAME_BYTES: u64 = BLOCK + crate::cache::BYTES_PER_FRAME + crate::curve::BYTES_PER_FRAME;
/// Memory of the smallest partition, bytes.
pub const LEAST_BYTES: u64 = crate::cache::FRAMES_MIN as u64 * FRAME_BYTES;

/// The default age limit of dirty data (`docs/design/cache.md`): bounds what a crash can lose.
pub(crate) const DIRTY_AGE_MAX_NS: Nanos = 5 * SECOND;

/// The configuration of the engine of one disk.
#[derive(Clone, Debug)]
pub struct Config {
    /// Memory budget now, bytes, bookkeeping included. Changed by `Command::SetBudget`.
    pub budget_bytes: u64,
    /// The largest budget that `SetBudget` may request. Bookkeeping is laid out for it, and frame numbers are below
    /// [`Config::frames_max`].
    pub budget_bytes_max: u64,
    /// Requests in the device at the same time.
    pub device_depth: u32,
    /// The scheduling policy.
    pub policy: policy::Kind,
    /// R: the part of its standalone efficiency that a tenant keeps, in thousandths, below 1000.
    pub insulation_permille: u32,
    /// Cost of a context switch of the disk until it is measured: the profile's switch cost.
    pub switch_ns: Nanos,
    /// The longest round of slices.
    pub round_max_ns: Nanos,
    /// Whether tenants need slices of the disk (according to the profile) or share it by fair queueing.
    pub needs_slices: bool,
    /// Costs of requests on a disk that needs no slices: from the profile.
    pub prices: policy::Prices,
    /// Outstanding requests per connection.
    pub requests_per_connection: u32,
    /// Reply bytes per connection, being read or unsent, above which the engine starts no further work for it.
    pub unsent_bytes_per_connection: u64,
    /// Age limit of dirty data on its tenant's virtual clock. That clock slows down, at most to 1/6, while reads of the
    /// tenant wait and the disk serves other tenants.
    pub dirty_age_max_ns: Nanos,
    /// After this time without requests, never-written ranges may be initialised.
    pub idle_ns: Nanos,
    /// Longest trial of a tenant, from its first request.
    pub trial_ns_max: Nanos,
    /// Sequential read rate at the fastest place of the device, bytes per second: from the profile.
    pub stream_bytes_per_s: u64,
    /// Largest read-ahead window of a stream, bytes; 0 for none; `None`: derived from R and the disk
    /// ([`policy::Settings::prefetch_bytes`]). Changed by `Command::SetPrefetch`.
    pub prefetch_bytes_max: Option<u64>,
    /// Seed of the hash tables, and of policies that draw at random.
    pub seed: u64,
}

impl Config {
    /// The defaults, with a budget of `budget_bytes` that cannot grow.
    pub fn new(budget_bytes: u64) -> Config {
        Config {
            budget_bytes,
            budget_bytes_max: budget_bytes,
            // Deep enough for the parallelism of an SSD, shallow enough that the engine, not the device, determines the
            // order.
            device_depth: 128,
            policy: policy::Kind::None,
            // The default R, `docs/glossary.md`.
            insulation_permille: 900,
            // Argon, table 1: a seek and half a revolution of a typical disk.
            switch_ns: 12 * MILLISECOND,
            // `docs/design/slices.md`: bounds response times.
            round_max_ns: 2 * SECOND,
            // Until a probe: slices on a device that does not need them cost less than missing slices on a device that
            // does.
            needs_slices: true,
            prices: policy::Prices::default(),
            // Four times the usual queue depth of fio or qemu.
            requests_per_connection: 128,
            // Eight large reads in progress while eight are being sent; the bandwidth-delay product of 10 Gbit/s at 6
            // ms.
            unsent_bytes_per_connection: 8 << 20,
            dirty_age_max_ns: DIRTY_AGE_MAX_NS,
            idle_ns: 20 * MILLISECOND,
            // Some thousand requests of a disk, and no longer than an operator watches a newly created volume.
            trial_ns_max: 60 * SECOND,
            // A typical disk, until it is measured.
            stream_bytes_per_s: 100_000_000,
            prefetch_bytes_max: None,
            seed: 0,
        }
    }

    /// The initial policy. Changed by `Command::SetPolicy`.
    pub fn policy(&self) -> policy::Settings {
        policy::Settings {
            kind: self.policy,
            depth: self.device_depth,
            insulation_permille: self.insulation_permille,
            switch_ns: self.switch_ns,
            round_max_ns: self.round_max_ns,
            needs_slices: self.needs_slices,
            prices: self.prices,
            stream_bytes_per_s: self.stream_bytes_per_s,
            seed: self.seed,
        }
    }

    /// Frames that fit into `bytes` of memory, bookkeeping included.
    pub(crate) fn frames_of(bytes: u64) -> u32 {
        (bytes / FRAME_BYTES).min(u64::from(u32::MAX - 2)) as u32
    }

    /// Frames for which the driver needs memory, frame 0 (all zeros) included.
    pub fn frames_max(&self) -> usize {
        Self::frames_of(self.budget_bytes_max) as usize + 1
    }
}
