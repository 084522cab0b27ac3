//! What is divided, between whom, and within which bounds. Everything is in whole steps of a grid.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::units::Share;

/// The paper's step.
const STEP_BYTES_MAX: u64 = 32 << 20;
/// A finer step than this is below the error of a sampled curve.
const STEP_BYTES_MIN: u64 = 256 << 10;
/// The paper's number of steps in the memory of a client.
const STEPS_MIN: u64 = 16;
/// Kinds of resources: first tiers, second tiers, disks.
pub(super) const KINDS: usize = 3;

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
        let smallest = memories_bytes.into_iter().min().unwrap_or(u64::MAX);
        let halved = std::iter::successors(Some(STEP_BYTES_MAX), |step| Some(step / 2));
        let step = halved.take_while(|&step| step >= STEP_BYTES_MIN).find(|step| smallest / step >= STEPS_MIN);
        Grid { cache_step_bytes: step.unwrap_or(STEP_BYTES_MIN), share_steps }
    }

    /// Whole steps in `bytes`: for memory that is divided.
    pub fn steps_within(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.cache_step_bytes).unwrap_or(u32::MAX)
    }

    /// Steps that cover `bytes`: for the least size of a partition.
    pub fn steps_covering(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(self.cache_step_bytes)).unwrap_or(u32::MAX)
    }

    /// Steps of share that cover this share: for the least share of a tenant.
    pub fn steps_of(&self, share: Share) -> u32 {
        let whole = Share::ONE.ppb();
        (share.ppb() * u64::from(self.share_steps)).div_ceil(whole) as u32
    }

    /// Bytes of `steps` of cache.
    pub fn bytes(&self, steps: u32) -> u64 {
        u64::from(steps) * self.cache_step_bytes
    }

    /// `steps` of share as a share; `None` for no steps.
    pub fn share(&self, steps: u32) -> Option<Share> {
        Share::from_ppb(Share::ONE.ppb() * u64::from(steps) / u64::from(self.share_steps))
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

impl Allotment {
    /// By kind of resource: first tier, second tier, disk.
    pub(super) fn parts(self) -> [u32; KINDS] {
        [self.first, self.second, self.share]
    }

    pub(super) fn of([first, second, share]: [u32; KINDS]) -> Allotment {
        Allotment { first, second, share }
    }
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
        Bounds { least, most: Allotment { first: u32::MAX, second: u32::MAX, share: u32::MAX } }
    }

    /// Exactly this.
    pub fn exactly(at: Allotment) -> Bounds {
        Bounds { least: at, most: at }
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
    /// An error if an index is out of range, a bound is empty, a tenant may be without disk time, or the least of all
    /// tenants exceeds a resource.
    pub fn check(&self) -> Result<(), Unfit> {
        for (tenant, at) in self.tenants.iter().enumerate() {
            let is_there = at.gateway.is_none_or(|gateway| gateway < self.gateways.len())
                && self.disks.get(at.disk).is_some_and(|disk| disk.server < self.servers.len());
            if !is_there {
                return Err(Unfit::Place { tenant });
            }
            let bounds = self.bounds(tenant);
            let is_empty = (bounds.least.parts().iter().zip(bounds.most.parts())).any(|(&least, most)| least > most);
            if is_empty || bounds.least.share == 0 {
                return Err(Unfit::Bounds { tenant, at: bounds.least, bounds });
            }
        }
        self.permits(&self.tenants.iter().map(|tenant| tenant.bounds.least).collect::<Vec<_>>())
    }

    /// An error if this allocation breaks a bound or exceeds a resource.
    pub fn permits(&self, allocation: &[Allotment]) -> Result<(), Unfit> {
        if allocation.len() != self.tenants.len() {
            return Err(Unfit::Place { tenant: allocation.len().min(self.tenants.len()) });
        }
        for (tenant, &at) in allocation.iter().enumerate() {
            let bounds = self.bounds(tenant);
            let (least, most) = (bounds.least.parts(), bounds.most.parts());
            if (at.parts().iter().enumerate()).any(|(kind, part)| !(least[kind]..=most[kind]).contains(part)) {
                return Err(Unfit::Bounds { tenant, at, bounds });
            }
        }
        for (resource, &steps) in self.capacities().iter().enumerate() {
            let (kind, index) = self.kind(resource);
            let parts = self.members(resource).map(|tenant| u64::from(allocation[tenant].parts()[kind]));
            let needed = parts.sum::<u64>();
            if needed > u64::from(steps) {
                return Err(match kind {
                    0 => Unfit::Gateway { gateway: index, steps, needed },
                    1 => Unfit::Server { server: index, steps, needed },
                    _ => Unfit::Disk { disk: index, steps, needed },
                });
            }
        }
        Ok(())
    }

    /// Each resource divided equally, within the bounds (max-min fair); what cannot be divided goes to the first
    /// tenants. The problem must have passed [`Problem::check`].
    pub fn equal(&self) -> Vec<Allotment> {
        let mut parts = vec![[0; KINDS]; self.tenants.len()];
        for (resource, &steps) in self.capacities().iter().enumerate() {
            let (kind, _) = self.kind(resource);
            let mut most = Vec::new();
            let mut lowest = BinaryHeap::new();
            let mut left = steps;
            for tenant in self.members(resource) {
                let bounds = self.bounds(tenant);
                let least = bounds.least.parts()[kind];
                parts[tenant][kind] = least;
                left -= least;
                lowest.push(Reverse((least, tenant, most.len())));
                most.push(bounds.most.parts()[kind]);
            }
            while left > 0
                && let Some(Reverse((has, tenant, at))) = lowest.pop()
            {
                if has < most[at] {
                    parts[tenant][kind] = has + 1;
                    left -= 1;
                    lowest.push(Reverse((has + 1, tenant, at)));
                }
            }
        }
        parts.into_iter().map(Allotment::of).collect()
    }

    /// The bounds of a tenant: no first tier without a gateway, and no more than the whole of a resource.
    pub(super) fn bounds(&self, tenant: usize) -> Bounds {
        let Bounds { least, most } = self.tenants[tenant].bounds;
        let capacities = self.uses(tenant).map(|used| used.map_or(0, |resource| self.capacity(resource)));
        let [first, second, share] = capacities;
        let most =
            Allotment { first: most.first.min(first), second: most.second.min(second), share: most.share.min(share) };
        Bounds { least, most }
    }

    /// The resources that a tenant uses, by kind. Resources are numbered: gateways, then servers, then disks.
    pub(super) fn uses(&self, tenant: usize) -> [Option<usize>; KINDS] {
        let Tenant { gateway, disk, .. } = self.tenants[tenant];
        let servers = self.gateways.len();
        [gateway, Some(servers + self.disks[disk].server), Some(servers + self.servers.len() + disk)]
    }

    /// Steps of a resource.
    pub(super) fn capacity(&self, resource: usize) -> u32 {
        match self.kind(resource) {
            (0, at) => self.gateways[at],
            (1, at) => self.servers[at],
            (_, at) => self.disks[at].share,
        }
    }

    /// Steps of all resources, by number.
    pub(super) fn capacities(&self) -> Vec<u32> {
        let disks = self.disks.iter().map(|disk| disk.share);
        self.gateways.iter().chain(&self.servers).copied().chain(disks).collect()
    }

    /// The kind of a resource, and its index among those of its kind.
    pub(super) fn kind(&self, resource: usize) -> (usize, usize) {
        let servers = self.gateways.len();
        let disks = servers + self.servers.len();
        match resource {
            at if at < servers => (0, at),
            at if at < disks => (1, at - servers),
            at => (2, at - disks),
        }
    }

    /// The tenants that use a resource.
    pub(super) fn members(&self, resource: usize) -> impl Iterator<Item = usize> {
        let (kind, _) = self.kind(resource);
        (0..self.tenants.len()).filter(move |&tenant| self.uses(tenant)[kind] == Some(resource))
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
