//! When writes are off-loaded and brought home.

/// What an operator chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Stores that have each off-loaded write, 1 to [`COPIES_MAX`](super::COPIES_MAX).
    pub copies: usize,
    /// Requests at the base above which writes are off-loaded.
    pub base_threshold: u32,
    /// Requests at a store from which on no writes are off-loaded to it.
    pub store_threshold: u32,
    /// Content of a tenant that is copied home at the same time while it has no other requests.
    pub reclaim_depth: u32,
    /// Off-loaded bytes of a volume, at most.
    pub limit_bytes: u64,
    /// For measurements: every write is off-loaded, whatever the loads are, and nothing is copied home but what must be
    /// (Everest, section 4.1, "always off-load").
    pub is_always: bool,
}

impl Settings {
    /// What is used if an operator chooses nothing.
    pub const DEFAULT: Settings = Settings {
        // Enough where a store's disk is as safe as the base.
        copies: 1,
        // A hard disk that has as many requests is busy for a tenth of a second.
        base_threshold: 16,
        // Twice the base's, since a log is written in sequence.
        store_threshold: 32,
        // With 32, random writes of a hard disk have 0.90 of their rate with 64 (`aerogel-lab run offload-reclaim`).
        reclaim_depth: 64,
        // Half an hour of random writes of a hard disk.
        limit_bytes: 4 << 30,
        is_always: false,
    };
}
