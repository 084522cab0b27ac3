//! Allocations that divide one resource at a time, as in section 5.1 of the paper: what the joint one is compared with.

use super::Surface;
use super::exact::TooLarge;
use super::goal::Goal;
use super::problem::Problem;
use super::search::{Effort, Found};

/// A way to divide resources. All keep to the bounds of the problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Baseline {
    /// Each resource equally.
    Equal,
    /// Each tier by itself: steps go where they save the most misses of the references that this tier sees. The disk
    /// equally.
    Mrc,
    /// The caches of `mrc`, and the best shares for them.
    MrcDisk,
    /// The caches equally, and the best shares for that.
    DiskOnly,
    /// The disk equally, and the best caches for that.
    CacheOnly,
    /// The best allocation of all, by exact search.
    Ideal,
}

impl Baseline {
    /// All of them.
    pub const ALL: [Baseline; 6] =
        [Baseline::Equal, Baseline::Mrc, Baseline::MrcDisk, Baseline::DiskOnly, Baseline::CacheOnly, Baseline::Ideal];

    /// `equal`, `mrc`, `mrc+disk`, `disk-only`, `cache-only`, `ideal`.
    pub fn name(self) -> &'static str {
        todo!()
    }

    /// The baseline of this name.
    pub fn named(name: &str) -> Option<Baseline> {
        Baseline::ALL.into_iter().find(|baseline| baseline.name() == name)
    }

    /// Its allocation. `levels` are what `mrc` and `mrc+disk` divide by, `surface` is what the others search, and what
    /// costs are stated on. Only `ideal` fails. Where exact search for the others is too large, they climb.
    ///
    /// The problem must have passed [`Problem::check`].
    pub fn allocate<S: Surface, L: Levels>(
        self,
        problem: &Problem,
        goal: &Goal,
        surface: &S,
        levels: &L,
        effort: Effort,
        seed: u64,
    ) -> Result<Found, TooLarge> {
        todo!()
    }
}

/// The misses that each tier sees by itself, in any unit that is the same for all tenants (misses a second, say).
pub trait Levels {
    /// Misses of the first tier with this partition, in steps.
    fn first(&self, tenant: usize, first: u32) -> f64;
    /// Misses of the second tier with `second` steps, while the first tier has `first`.
    fn second(&self, tenant: usize, first: u32, second: u32) -> f64;
}
