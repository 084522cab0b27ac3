//! Cache sizes in buckets, and the weight of references by bucket.
//!
//! Buckets are exact up to 8 blocks, then eight per octave (9 % apart) up to 2^32 blocks (16 TiB).

/// A number for a cache size, rounded up.
pub(super) type Bucket = u8;

/// No cache size is sufficient.
pub(super) const NEVER: Bucket = u8::MAX;

/// The number of buckets.
pub(super) const BUCKETS: usize = 240;

/// The smallest bucket with at least `blocks` blocks, and at least one block.
pub(super) fn bucket(blocks: u64) -> Bucket {
    let last = blocks.max(1) - 1;
    if last < 8 {
        return last as Bucket;
    }
    let octave = 60 - last.leading_zeros();
    let at = u64::from(8 * (octave + 1)) + ((last >> octave) - 8);
    if at < BUCKETS as u64 { at as Bucket } else { NEVER }
}

/// The cache size of a bucket, blocks.
pub(super) fn blocks(bucket: Bucket) -> u64 {
    match bucket {
        0..8 => u64::from(bucket) + 1,
        _ => (9 + u64::from(bucket % 8)) << (bucket / 8 - 1),
    }
}

/// The buckets, and a place for references that no size absorbs.
const PLACES: usize = BUCKETS + 1;

fn sum(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight)).sum()
}

/// References of one kind by the smallest size that absorbs them. Weights fade with [`Tally::fade`].
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Weight of sampled references, by the smallest size that absorbs them.
    sampled: [f32; PLACES],
    /// The part of it that came soon after the previous reference to the same block.
    soon: [f32; PLACES],
    /// Weight of first references to blocks that were not prefetched, by the number of blocks seen by then.
    censored: [f32; PLACES],
    /// Weight of all references, sampled or not.
    all: f64,
    /// References that `all` does not include yet.
    fresh: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Tally { sampled: [0.0; PLACES], soon: [0.0; PLACES], censored: [0.0; PLACES], all: 0.0, fresh: 0 }
    }
}

impl Tally {
    /// Counts references, sampled or not.
    pub(super) fn count(&mut self, references: u64) {
        self.fresh += references;
    }

    /// Records a sampled reference, which stands for `weight` references.
    pub(super) fn record(&mut self, absorbed_by: Bucket, weight: f64, soon: bool) {
        let at = usize::from(absorbed_by).min(BUCKETS);
        self.sampled[at] += weight as f32;
        if soon {
            self.soon[at] += weight as f32;
        }
    }

    /// The reference just recorded, of this weight, is the first one to its block, and `seen` blocks have been seen by
    /// then.
    pub(super) fn record_first(&mut self, weight: f64, seen: u64) {
        self.censored[usize::from(bucket(seen)).min(BUCKETS)] += weight as f32;
    }

    /// The weight of first references at which the number of blocks of this bucket had been seen.
    pub(super) fn censored(&self, at: usize) -> f64 {
        f64::from(self.censored[at])
    }

    /// Multiplies the weight of all references so far.
    pub(super) fn fade(&mut self, factor: f64) {
        self.all = (self.all + std::mem::take(&mut self.fresh) as f64) * factor;
        let parts = self.sampled.iter_mut().chain(&mut self.soon).chain(&mut self.censored);
        parts.for_each(|weight| *weight *= factor as f32);
    }

    /// The weight of all references.
    pub(super) fn weight(&self) -> f64 {
        self.all + self.fresh as f64
    }

    /// The fraction of soon repeated references that a size absorbs.
    pub(super) fn soon_absorbed(&self, by: Bucket) -> f64 {
        let soon = sum(&self.soon);
        let absorbed = sum(&self.soon[..=usize::from(by).min(BUCKETS - 1)]);
        if soon > 0.0 { absorbed / soon } else { 0.0 }
    }

    /// The weight of references by the smallest size that absorbs them. `None` without references.
    ///
    /// Most of the error of a sample is that it has too many or too few of the few hot blocks. Blocks are sampled
    /// uniformly, so the weight that the sample lacks, compared with the weight of all references, consists of
    /// references to hot blocks. It is added where references fall that come soon after another one. (SHARDS-adj adds
    /// it at the smallest size.)
    pub(super) fn weights(&self) -> Option<[f64; PLACES]> {
        let all = self.weight();
        let (lacking, soon) = (all - sum(&self.sampled), sum(&self.soon));
        let part = if soon > 0.0 { lacking / soon } else { 0.0 };
        let weight = |at: usize| f64::from(self.sampled[at]) + part * f64::from(self.soon[at]);
        (all > 0.0).then(|| std::array::from_fn(weight))
    }

    /// The miss ratio of each bucket, 0 to 1; it decreases with size. `None` without references.
    pub(super) fn misses(&self) -> Option<[f64; BUCKETS]> {
        let (weights, all) = (self.weights()?, self.weight());
        let mut absorbed = 0.0;
        let mut misses = [1.0; BUCKETS];
        for (at, miss) in misses.iter_mut().enumerate() {
            absorbed += weights[at];
            *miss = 1.0 - absorbed / all;
        }
        // The correction may subtract more than there is at some sizes.
        let mut least = 1.0_f64;
        for miss in &mut misses {
            least = least.min(*miss).max(0.0);
            *miss = least;
        }
        Some(misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_at_first_and_then_nine_percent_apart() {
        assert!((1..=16).all(|size| blocks(bucket(size)) == size));
        for at in 0..BUCKETS as Bucket {
            assert_eq!(bucket(blocks(at)), at);
            assert_eq!(bucket(blocks(at) + 1), if at + 1 < BUCKETS as Bucket { at + 1 } else { NEVER });
        }
        assert_eq!(blocks(BUCKETS as Bucket - 1), 1 << 32);
        assert_eq!(bucket(u64::MAX), NEVER);
    }

    #[test]
    fn what_a_sample_lacks_is_entered_where_hot_references_fall() {
        let mut tally = Tally::default();
        tally.count(100);
        tally.record(0, 40.0, true);
        tally.record(20, 40.0, false);
        let misses = tally.misses().unwrap();
        assert!((misses[0] - 0.4).abs() < 1e-9 && (misses[19] - 0.4).abs() < 1e-9 && misses[20].abs() < 1e-9);
        // Too many of them: the correction subtracts some.
        tally.record(NEVER, 30.0, false);
        assert!((tally.misses().unwrap()[0] - 0.7).abs() < 1e-9);
        tally.fade(0.5);
        assert!((tally.misses().unwrap()[0] - 0.7).abs() < 1e-9 && (tally.weight() - 50.0).abs() < 1e-9);
    }
}
