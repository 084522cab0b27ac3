//! Latency of a tenant as a function of what it has.
//!
//! ```text
//!   L = f (h1 l1 + h2 l2 + M (l2 + d)) + (1 - f) lw        f: reads of all references
//!   h1 = 1 - M(c)       h2 = M(c) - M       M = M(max(c, s)) or M(c + s)
//! ```
//!
//! `d` is the disk latency of the closed loop (`closed.rs`), whose think time includes that of all hits between two
//! misses. The write-back of writes that no cache absorbs takes its time from the same share.

use super::Surface;
use super::baseline::Levels;
use super::closed::{Loop, Response};
use super::curve::MissRatios;
use super::evidence::{DiskTime, Evidence, Tiers};
use super::problem::{Allotment, Grid, Problem};
use crate::config::DIRTY_AGE_MAX_NS;
use crate::units::BLOCK;

/// Reads of the disk per reference, at least: a tenant whose reads all hit still has a time at the disk, which then
/// counts for nothing. If its write-back needs more than its share, that time is what its clients are held up for.
const VISITS_MIN: f64 = 1e-9;

/// The part of a partition that is dirty at most: then the cache writes back (`docs/design/cache.md`).
const DIRTY_PART: f64 = 0.5;

/// Disk times are scaled by at most 2 to this power, up or down.
const SCALE_OCTAVES: f64 = 10.0;

/// Steps of the integral over what has to be filled.
const REFILL_STEPS: u32 = 8;

/// What the model predicts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    /// Mean latency of all references, nanoseconds.
    pub latency_ns: f64,
    /// That of reads.
    pub read_ns: f64,
    /// Of all reads: hits in the first tier.
    pub first_hits: f64,
    /// Of all reads: hits in the second tier.
    pub second_hits: f64,
    /// Of all reads: misses in both.
    pub misses: f64,
    /// Mean disk latency of a read that misses, at the server: queueing and service.
    pub disk_ns: f64,
    /// The part of it in which other tenants have the disk: the wait for slices. 0 if the disk has none.
    pub slice_wait_ns: f64,
    /// References a second.
    pub references_per_second: f64,
}

impl Evidence {
    /// The prediction with these bytes of cache and this share (0 to 1). Without a first tier (`first` is 0) nothing
    /// hits there. Without disk time latencies are infinite.
    pub fn predict(&self, first: u64, second: u64, share: f64) -> Prediction {
        self.with(&self.disk.services(self.outstanding), first, second, share)
    }

    /// The same evidence with disk times scaled so that the model predicts the disk latency that was measured with
    /// `first` and `second` bytes of cache and this share: the paper's base latency, scaled to the whole disk.
    pub fn calibrated(&self, first: u64, second: u64, share: f64, disk_ns: f64) -> Evidence {
        let (mut low, mut high) = (-SCALE_OCTAVES, SCALE_OCTAVES);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if self.scaled(middle).predict(first, second, share).disk_ns < disk_ns {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.scaled((low + high) / 2.0)
    }

    fn scaled(&self, octaves: f64) -> Evidence {
        let mut evidence = self.clone();
        let factor = octaves.exp2();
        evidence.disk.reads.iter_mut().for_each(|depth| depth.service_ns *= factor);
        evidence.disk.write_ns *= factor;
        evidence.disk.delay_ns *= factor;
        evidence
    }

    /// Reads that miss because caches of `first` and `second` bytes (`to`) still have to be filled, when those of
    /// `from` become these: what both have of the data stays. While f bytes of the e that the new caches have together
    /// are filled, M(f) of all reads miss, and M(e) in the long run:
    /// `(M(f) - M(e)) / M(f) df / block`, from what stays to e.
    fn refill_reads(&self, from: (u64, u64), to: (u64, u64)) -> f64 {
        let together = |first: u64, second: u64| match self.tiers {
            Tiers::Lru => first.max(second),
            Tiers::Demote => first + second,
        };
        let stays = together(from.0.min(to.0), from.1.min(to.1)) as f64;
        let full = together(to.0, to.1) as f64;
        let least = self.reads.at(full);
        let step = (full - stays) / f64::from(REFILL_STEPS);
        let part = |at: u32| {
            let misses = self.reads.at(stays + (f64::from(at) + 0.5) * step);
            if misses > least { (misses - least) / misses } else { 0.0 }
        };
        (0..REFILL_STEPS).map(part).sum::<f64>() * step.max(0.0) / BLOCK as f64
    }

    /// Dirty blocks that write-back can sort, with these bytes of cache. A partition holds dirty blocks in a part of
    /// it, until they are [`DIRTY_AGE_MAX_NS`] old. A gateway keeps them until the server has flushed them, so a small
    /// gateway has the server flush often, and the smaller partition decides.
    pub(super) fn sweep_blocks(&self, first: u64, second: u64) -> f64 {
        let smaller = if first == 0 { second } else { first.min(second) };
        let by_age = self.references_per_second * (1.0 - self.read_fraction) * DIRTY_AGE_MAX_NS as f64 / 1e9;
        (DIRTY_PART * smaller as f64 / BLOCK as f64).min(by_age).max(1.0)
    }

    /// How much longer the write-back of a block takes than when it was measured. The distance between n sorted blocks
    /// is 1/n of the volume, and the time of a short seek grows with the square root of its distance.
    fn longer_sweeps(&self, first: u64, second: u64) -> f64 {
        let measured = self.disk.sweep_blocks;
        if measured > 0.0 { (measured / self.sweep_blocks(first, second)).sqrt() } else { 1.0 }
    }

    /// Miss ratios of a curve in the first tier, and in both.
    fn misses(&self, curve: &MissRatios, first: u64, second: u64) -> (f64, f64) {
        let in_first = if first == 0 { 1.0 } else { curve.at(first as f64) };
        let effective = match self.tiers {
            Tiers::Lru => first.max(second),
            Tiers::Demote => first + second,
        };
        (in_first, curve.at(effective as f64).min(in_first))
    }

    fn with(&self, service_ns: &[f64], first: u64, second: u64, share: f64) -> Prediction {
        let share = share.max(self.share_least);
        let (in_first, misses) = self.misses(&self.reads, first, second);
        let (first_hits, second_hits) = (1.0 - in_first, in_first - misses);
        let (_, write_misses) = self.misses(&self.writes, first, second);
        let writes = 1.0 - self.read_fraction;
        // Without the disk: what a reference takes on average.
        let cached_ns = first_hits * self.first_hit_ns + (second_hits + misses) * self.second_hit_ns;
        let quick_ns = self.read_fraction * cached_ns + writes * self.write_ns;
        let visits = (self.read_fraction * misses).max(VISITS_MIN);
        let Response { response_ns, wait_ns, rate } = if share > 0.0 {
            let round = self.round;
            let think_ns = (self.think_ns + quick_ns) / visits;
            let longer = self.longer_sweeps(first, second);
            let write_back_ns = writes * write_misses * self.disk.write_ns * longer / visits;
            let delay_ns = self.disk.delay_ns * longer;
            let model = Loop { think_ns, write_back_ns, delay_ns, share, service_ns, round }.solve();
            let longer_ns = (self.of_model - 1.0) * model.response_ns;
            Response {
                response_ns: model.response_ns + longer_ns,
                wait_ns: model.wait_ns * self.of_model,
                // The loop of each client takes longer by that.
                rate: 1.0 / (1.0 / model.rate + longer_ns / f64::from(self.outstanding.max(1))),
            }
        } else {
            Response { response_ns: f64::INFINITY, wait_ns: f64::INFINITY, rate: 0.0 }
        };
        Prediction {
            latency_ns: quick_ns + visits * response_ns,
            read_ns: cached_ns + misses.max(VISITS_MIN) * response_ns,
            first_hits,
            second_hits,
            misses,
            disk_ns: response_ns,
            slice_wait_ns: wait_ns,
            references_per_second: rate / visits * 1e9,
        }
    }
}

impl DiskTime {
    /// Disk time of a read with 1, 2, … `outstanding` reads in the disk.
    fn services(&self, outstanding: u32) -> Vec<f64> {
        (1..=outstanding.max(1)).map(|depth| self.service_ns(depth.into())).collect()
    }

    /// Disk time of a read with so many in the disk on average.
    pub(super) fn service_ns(&self, depth: f64) -> f64 {
        let past = self.reads.partition_point(|entry| f64::from(entry.depth) < depth);
        let Some(after) = self.reads.get(past) else { return self.reads[self.reads.len() - 1].service_ns };
        let Some(before) = past.checked_sub(1).map(|at| &self.reads[at]) else { return after.service_ns };
        let octaves = |from: u32, to: f64| (to / f64::from(from)).log2();
        let part = octaves(before.depth, depth) / octaves(before.depth, after.depth.into());
        before.service_ns + (after.service_ns - before.service_ns) * part
    }
}

/// So many more reads miss than the curves say, for plans: the mean error of sampled curves that is aimed at. A tenant
/// that seems never to miss would get hardly any disk time, and wait long where it does.
const CURVE_ERROR: f64 = 0.01;

/// The model of all tenants of a problem, for plans: with [`CURVE_ERROR`]. A surface.
#[derive(Clone, Debug)]
pub struct Model {
    grid: Grid,
    tenants: Vec<Known>,
}

/// Evidence, and what is computed from it once.
#[derive(Clone, Debug)]
struct Known {
    evidence: Evidence,
    service_ns: Vec<f64>,
}

impl Model {
    /// Evidence is in the order of the problem's tenants.
    pub fn new(problem: &Problem, tenants: Vec<Evidence>) -> Model {
        assert_eq!(problem.tenants.len(), tenants.len(), "evidence of each tenant");
        let known = |evidence: Evidence| Known {
            service_ns: evidence.disk.services(evidence.outstanding),
            evidence: Evidence { reads: evidence.reads.plus(CURVE_ERROR), ..evidence },
        };
        Model { grid: problem.grid, tenants: tenants.into_iter().map(known).collect() }
    }

    /// The prediction for a tenant.
    pub fn predict(&self, tenant: usize, at: Allotment) -> Prediction {
        let Known { evidence, service_ns } = &self.tenants[tenant];
        let share = f64::from(at.share) / f64::from(self.grid.share_steps);
        evidence.with(service_ns, self.grid.bytes(at.first), self.grid.bytes(at.second), share)
    }

    /// Reads that miss because the caches of a tenant still have to be filled, when `from` becomes `to`.
    pub fn refill_reads(&self, tenant: usize, from: Allotment, to: Allotment) -> f64 {
        let bytes = |at: Allotment| (self.grid.bytes(at.first), self.grid.bytes(at.second));
        self.evidence(tenant).refill_reads(bytes(from), bytes(to))
    }

    fn evidence(&self, tenant: usize) -> &Evidence {
        &self.tenants[tenant].evidence
    }
}

impl Surface for Model {
    fn latency_ns(&self, tenant: usize, at: Allotment) -> f64 {
        self.predict(tenant, at).latency_ns
    }
}

/// Misses of reads a second, at the references a second of the evidence.
impl Levels for Model {
    fn first(&self, tenant: usize, first: u32) -> f64 {
        let evidence = self.evidence(tenant);
        let (misses, _) = evidence.misses(&evidence.reads, self.grid.bytes(first), 0);
        evidence.references_per_second * evidence.read_fraction * misses
    }

    fn second(&self, tenant: usize, first: u32, second: u32) -> f64 {
        let evidence = self.evidence(tenant);
        let (_, misses) = evidence.misses(&evidence.reads, self.grid.bytes(first), self.grid.bytes(second));
        evidence.references_per_second * evidence.read_fraction * misses
    }
}
