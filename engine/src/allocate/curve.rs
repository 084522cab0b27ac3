//! A miss-ratio curve as the model uses it: bytes of cache and ratios, nothing else.

use crate::curve::View;

/// Miss ratio by cache size: interpolated linearly, never increasing, constant beyond the last point.
#[derive(Clone, PartialEq, Debug)]
pub struct MissRatios {
    points: Vec<(f64, f64)>,
}

impl MissRatios {
    /// From points of bytes and miss ratio, in any order. Without a point all references miss.
    pub fn new(points: impl IntoIterator<Item = (u64, f64)>) -> MissRatios {
        todo!()
    }

    /// The curve of reads of a tenant, as the engine measures it.
    pub fn of_reads(view: &View) -> MissRatios {
        todo!()
    }

    /// That of writes: a write is absorbed if the block is dirty already.
    pub fn of_writes(view: &View) -> MissRatios {
        todo!()
    }

    /// The miss ratio with this much cache.
    pub fn at(&self, bytes: f64) -> f64 {
        todo!()
    }
}
