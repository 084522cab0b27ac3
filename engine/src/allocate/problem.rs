//! What is divided, between whom, and within which bounds. Everything is in whole steps of a grid.

use crate::units::Share;

/// The steps in which memory and disk time are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Bytes of a step of cache, the same in all tiers.
    pub cache_step_bytes: u64,
    /// Steps of share that make a whole disk.
    pub share_steps: u32,
}

impl Grid {
    /// Steps of 32 MiB, halved until the smallest memory has 16 of them, but no finer than 256 KiB.
    pub fn fitting(memories_bytes: impl IntoIterator<Item = u64>, share_steps: u32) -> Grid {
        todo!()
    }

    /// Whole steps in `bytes`: for memory that is divided.
    pub fn steps_within(&self, bytes: u64) -> u32 {
        todo!()
    }

    /// Steps that cover `bytes`: for the least size of a partition.
    pub fn steps_covering(&self, bytes: u64) -> u32 {
        todo!()
    }

    /// Steps of share that cover this share: for the least share of a tenant.
    pub fn steps_of(&self, share: Share) -> u32 {
        todo!()
    }

    /// Bytes of `steps` of cache.
    pub fn bytes(&self, steps: u32) -> u64 {
        todo!()
    }

    /// `steps` of share as a share; `None` for no steps.
    pub fn share(&self, steps: u32) -> Option<Share> {
        todo!()
    }
}

/// What a tenant has, in steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Allotment {
    /// Its partition of its gateway: `c`. 0 without a gateway.
    pub first: u32,
    /// Its partition of its server: `s`.
    pub second: u32,
    /// Its share of its disk.
    pub share: u32,
}

/// The least and the most that a tenant may have. A stated size or share is a least; a share that the planner must not
/// change is both; what is `auto` has the least partition or share, and the whole resource as most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// At least this.
    pub least: Allotment,
    /// At most this.
    pub most: Allotment,
}

impl Bounds {
    /// At least `least`, and as much as there is.
    pub fn at_least(least: Allotment) -> Bounds {
        todo!()
    }

    /// Exactly this.
    pub fn exactly(at: Allotment) -> Bounds {
        todo!()
    }
}

/// A disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Its server, an index into [`Problem::servers`].
    pub server: usize,
    /// Steps of its time to divide: all, less what other tenants (of stores, say) are promised.
    pub share: u32,
}

/// A tenant: its place, and its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Its gateway, an index into [`Problem::gateways`]. Without one its partition of the first tier is 0.
    pub gateway: Option<usize>,
    /// Its disk, an index into [`Problem::disks`].
    pub disk: usize,
    /// Its bounds.
    pub bounds: Bounds,
}

/// What is divided, and between whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The steps.
    pub grid: Grid,
    /// Steps of memory of each gateway: the first tiers.
    pub gateways: Vec<u32>,
    /// Steps of memory of each server: the second tiers. The memory of a server serves all its disks; where it cannot
    /// move between disks, each disk is a server of its own.
    pub servers: Vec<u32>,
    /// The disks.
    pub disks: Vec<Disk>,
    /// The tenants.
    pub tenants: Vec<Tenant>,
}

impl Problem {
    /// An error if an index is out of range, a bound is empty, or the least of all tenants exceeds a resource.
    pub fn check(&self) -> Result<(), Unfit> {
        todo!()
    }

    /// An error if this allocation breaks a bound or exceeds a resource.
    pub fn permits(&self, allocation: &[Allotment]) -> Result<(), Unfit> {
        todo!()
    }

    /// Each resource divided equally, within the bounds (max-min fair); what cannot be divided goes to the first
    /// tenants.
    pub fn equal(&self) -> Vec<Allotment> {
        todo!()
    }
}

/// Why a problem has no solution, or an allocation is none. Indices as in [`Problem`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// An index is out of range, or the allocation is for another number of tenants.
    #[error("tenant {tenant} is on a gateway, disk or server that is not in the problem")]
    Place {
        /// The tenant.
        tenant: usize,
    },
    /// What the tenant has is outside of its bounds, or its bounds are empty.
    #[error("tenant {tenant} has {at:?}, but is bound to {bounds:?}")]
    Bounds {
        /// The tenant.
        tenant: usize,
        /// What it has.
        at: Allotment,
        /// What it may have.
        bounds: Bounds,
    },
    /// The tenants of this gateway need more memory than it has.
    #[error("gateway {gateway} has {steps} steps of memory; its tenants need {needed}")]
    Gateway {
        /// The gateway.
        gateway: usize,
        /// Steps that it has.
        steps: u32,
        /// Steps that its tenants have at least.
        needed: u64,
    },
    /// The tenants of this server need more memory than it has.
    #[error("server {server} has {steps} steps of memory; its tenants need {needed}")]
    Server {
        /// The server.
        server: usize,
        /// Steps that it has.
        steps: u32,
        /// Steps that its tenants have at least.
        needed: u64,
    },
    /// The tenants of this disk need more of its time than there is.
    #[error("disk {disk} has {steps} steps of its time to divide; its tenants need {needed}")]
    Disk {
        /// The disk.
        disk: usize,
        /// Steps that it has.
        steps: u32,
        /// Steps that its tenants have at least.
        needed: u64,
    },
}
