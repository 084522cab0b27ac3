//! Latency of a load as a function of what it has, measured: miss ratios by exact simulation, latency of the disk on a
//! grid of runs in which all other tenants are backlogged.
//!
//! ```text
//!   requests ─► exact: h1(c), M(c, s) ─────────────────┐
//!   runs at some (c, s, share), others backlogged ─► d ┴► L = f (h1 l1 + h2 l2 + M (l2 + d)) + (1 - f) w
//! ```
//!
//! Between the runs, the latency of the disk is interpolated: by the miss ratio for a partition of the first tier,
//! linearly between partitions of the first tier, and linearly in 1 / share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use engine::allocate::{Allotment, Grid, Levels};
use engine::control::FRAME_BYTES;
use engine::units::Share;

use super::super::Context;
use super::super::stand::mixed;
use super::exact::{First, Misses, Trace};
use super::loads::{Kind, PAST};
use super::play::{Actor, Played, Scene, Seen};

/// Client latency of hits in the first and in the second tier in the bench, nanoseconds: network and CPU.
pub const HIT1_NS: f64 = 19_000.0;
pub const HIT2_NS: f64 = 245_000.0;
/// Mean age at which a dirty block is written back, seconds: the pace begins at 3.75 s and the limit is 5 s.
const WRITE_BACK_S: f64 = 4.4;

/// The hits of a load in two tiers, for all sizes of a grid.
pub struct Ratios {
    grid: Grid,
    pub read_fraction: f64,
    firsts: Vec<(f64, Misses)>,
}

impl Ratios {
    /// Exactly, for up to `most` steps of the first tier. `rate` is the number of requests a second: it says how many
    /// requests a dirty block waits for.
    pub fn exact(kind: &Kind, grid: Grid, most: u32, rate: f64, counted: usize, seed: u64) -> Result<Ratios, String> {
        let before = PAST + counted / 2;
        let trace = Trace::new(kind.records(seed)?.take(before + counted), before);
        let lag = (rate * WRITE_BACK_S) as usize;
        let of = |steps: u32| {
            let first = First::new(&trace, frames(grid, steps), lag.max(1));
            (first.hit_ratio(&trace), first.lru(&trace))
        };
        Ok(Ratios { grid, read_fraction: trace.read_fraction(), firsts: (1..=most).map(of).collect() })
    }

    /// Hits in the first tier, of reads.
    pub fn first_hits(&self, first: u32) -> f64 {
        self.firsts[first as usize - 1].0
    }

    /// Misses in both tiers, of reads.
    pub fn misses(&self, first: u32, second: u32) -> f64 {
        self.firsts[first as usize - 1].1.ratio(frames(self.grid, second))
    }
}

/// Frames of a partition.
pub fn frames(grid: Grid, steps: u32) -> usize {
    (grid.bytes(steps) / FRAME_BYTES) as usize
}

/// The partitions and shares of the runs.
#[derive(Clone, Debug)]
pub struct Nodes {
    pub firsts: Vec<u32>,
    pub seconds: Vec<u32>,
    /// Of [`SHARES`].
    pub shares: Vec<u32>,
}

/// Steps of share of a disk, in [`Nodes`].
pub const SHARES: u32 = 16;

impl Nodes {
    pub fn new(quick: bool) -> Nodes {
        let of = |list: &[u32]| list.to_vec();
        match quick {
            true => Nodes { firsts: of(&[1, 15]), seconds: of(&[1, 29]), shares: of(&[2, 10]) },
            false => Nodes { firsts: of(&[1, 8, 15]), seconds: of(&[1, 12, 29]), shares: of(&[2, 4, 6, 10, 14]) },
        }
    }

    /// All of them, in the order of their cells.
    pub fn all(&self) -> Vec<Allotment> {
        let shares = |first, second| self.shares.iter().map(move |&share| Allotment { first, second, share });
        let seconds = |first| self.seconds.iter().flat_map(move |&second| shares(first, second));
        self.firsts.iter().flat_map(|&first| seconds(first)).collect()
    }
}

/// A measured surface.
pub struct Measured {
    pub kind: Kind,
    pub ratios: Ratios,
    pub nodes: Nodes,
    /// By node.
    pub cells: Vec<Seen>,
    /// Requests a second in a run in the middle of the grid.
    pub rate: f64,
}

/// About equal parts: where the evidence for the model of a load is taken.
pub const BASE: Allotment = Allotment { first: 8, second: 8, share: SHARES / 4 };
/// Steps of the first tier up to which miss ratios are known.
pub const FIRST_MAX: u32 = 24;

/// The surfaces that were measured so far, by load.
static KNOWN: Mutex<BTreeMap<String, Arc<Measured>>> = Mutex::new(BTreeMap::new());

impl Measured {
    /// Measures the surfaces of these loads, unless that was done.
    pub fn all(context: &Context, scene: &Scene, grid: Grid, kinds: &[Kind]) -> Result<Vec<Arc<Measured>>, String> {
        let nodes = Nodes::new(context.quick);
        let known = || KNOWN.lock().expect("nobody panics with it");
        let key = |kind: &Kind| format!("{} {} {}", kind.name, context.quick, context.seeds[0]);
        let fresh: Vec<&Kind> = kinds.iter().filter(|kind| !known().contains_key(&key(kind))).collect();
        let seed = context.seeds[0];
        let of_load = |at: usize| nodes.all().into_iter().map(move |node| (at, node));
        let points: Vec<(usize, Allotment)> = (0..fresh.len()).flat_map(of_load).collect();
        let cells =
            context.parallel(&points, |&(at, node)| Ok(scene.among_backlogged(fresh[at], grid, node, seed)?.seen[0]));
        let mut cells = cells.into_iter().collect::<Result<Vec<Seen>, String>>()?;
        let each = nodes.all().len();
        let work: Vec<(&Kind, Vec<Seen>)> =
            fresh.into_iter().map(|kind| (kind, cells.drain(..each).collect())).collect();
        let counted = if context.quick { 60_000 } else { 200_000 };
        let measured = context.parallel(&work, |(kind, cells)| {
            let middle = &cells[each / 2];
            let rate = middle.requests as f64 / middle.seconds;
            let ratios = Ratios::exact(kind, grid, FIRST_MAX, rate, counted, mixed(seed, 0))?;
            Ok(Measured { kind: (*kind).clone(), ratios, nodes: nodes.clone(), cells: cells.clone(), rate })
        });
        for of in measured.into_iter().collect::<Result<Vec<_>, String>>()? {
            known().insert(key(&of.kind), Arc::new(of));
        }
        Ok(kinds.iter().map(|kind| known()[&key(kind)].clone()).collect())
    }

    /// Mean latency of all requests, nanoseconds. `share` is a fraction of the disk.
    pub fn latency_ns(&self, first: u32, second: u32, share: f64) -> f64 {
        self.latency_with(first, self.ratios.misses(first, second), share)
    }

    /// The same with this ratio of reads that miss in both tiers.
    pub fn latency_with(&self, first: u32, misses: f64, share: f64) -> f64 {
        let h1 = self.ratios.first_hits(first);
        let disk = self.between(first, misses, share, |cell| cell.disk_ns);
        let write = self.between(first, misses, share, |cell| cell.write_ns);
        let f = self.ratios.read_fraction;
        f * (h1 * HIT1_NS + (1.0 - h1) * HIT2_NS + misses * disk) + (1.0 - f) * write
    }

    /// A value of the runs at a point between them.
    pub fn between(&self, first: u32, misses: f64, share: f64, of: impl Fn(&Seen) -> f64) -> f64 {
        let (seconds, shares) = (self.nodes.seconds.len(), self.nodes.shares.len());
        let at = |first_at: usize, share_at: usize| {
            let row = (0..seconds).map(|second_at| {
                let cell = &self.cells[(first_at * seconds + second_at) * shares + share_at];
                let node = self.ratios.misses(self.nodes.firsts[first_at], self.nodes.seconds[second_at]);
                (node, of(cell))
            });
            interpolate(row.collect(), misses)
        };
        let by_share = |first_at: usize| {
            let points = self.nodes.shares.iter().enumerate();
            let points =
                points.map(|(share_at, &steps)| (f64::from(SHARES) / f64::from(steps), at(first_at, share_at)));
            interpolate(points.collect(), 1.0 / share)
        };
        let points = self.nodes.firsts.iter().enumerate();
        interpolate(points.map(|(at, &steps)| (f64::from(steps), by_share(at))).collect(), f64::from(first))
    }
}

/// Linear interpolation between points; constant outside. Points at the same place count as their mean.
fn interpolate(mut points: Vec<(f64, f64)>, at: f64) -> f64 {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut merged: Vec<(f64, f64, f64)> = Vec::new();
    for (x, y) in points {
        match merged.last_mut() {
            Some(last) if x - last.0 < SAME => (last.1, last.2) = (last.1 + y, last.2 + 1.0),
            _ => merged.push((x, y, 1.0)),
        }
    }
    let value = |at: usize| merged[at].1 / merged[at].2;
    let past = merged.partition_point(|point| point.0 < at);
    if past == 0 || past == merged.len() {
        return value(past.min(merged.len() - 1));
    }
    let part = (at - merged[past - 1].0) / (merged[past].0 - merged[past - 1].0);
    value(past - 1) + (value(past) - value(past - 1)) * part
}

/// Miss ratios that differ by less are the same.
const SAME: f64 = 0.004;

/// What the baselines divide by: exact misses a second of each tier.
pub struct ExactLevels<'a>(pub &'a [Arc<Measured>]);

impl Levels for ExactLevels<'_> {
    fn first(&self, tenant: usize, first: u32) -> f64 {
        let of = &self.0[tenant];
        of.rate * of.ratios.read_fraction * (1.0 - of.ratios.first_hits(first))
    }

    fn second(&self, tenant: usize, first: u32, second: u32) -> f64 {
        let of = &self.0[tenant];
        of.rate * of.ratios.read_fraction * of.ratios.misses(first, second)
    }
}

impl Scene {
    /// A run of this load with this allotment (its share of [`SHARES`]), beside three backlogged readers that have the
    /// rest of the disk.
    pub fn among_backlogged(&self, kind: &Kind, grid: Grid, at: Allotment, seed: u64) -> Result<Played, String> {
        let backlogged = Kind::backlogged();
        let share = |steps: f64| Share::from_ppb((steps / f64::from(SHARES) * 1e9) as u64);
        let least = Scene::least();
        let rest = share(f64::from(SHARES - at.share) / 3.0).ok_or("nothing is left of the disk")?;
        let own = share(f64::from(at.share)).ok_or("a share is above 0")?;
        let (first, second) = (grid.bytes(at.first), grid.bytes(at.second));
        let mut actors = vec![Actor { kind, gateway: 0, first, second, share: own }];
        for number in 0..3 {
            let gateway = number % self.gateways.len();
            actors.push(Actor { kind: &backlogged, gateway, first: least, second: least, share: rest });
        }
        self.play(&actors, seed).map_err(|why| format!("{} at {at:?}: {why}", kind.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_points_it_is_linear_and_outside_constant() {
        let of = |at| interpolate(vec![(1.0, 10.0), (3.0, 30.0), (3.001, 50.0)], at);
        assert_eq!([0.0, 1.0, 2.0, 9.0].map(of), [10.0, 10.0, 25.0, 40.0]);
    }

    #[test]
    fn the_exact_ratios_of_a_hot_set_end_at_its_size() {
        let parts = vec![super::super::loads::part(1, 0, 8 << 10, 0)];
        let kind = Kind { name: "hot".into(), bytes: 8 << 20, ..Kind::backlogged() };
        let kind = Kind { requests: super::super::loads::Requests::Parts(parts), ..kind };
        let grid = Grid { cache_step_bytes: 2 << 20, share_steps: SHARES };
        let ratios = Ratios::exact(&kind, grid, 5, 100.0, 20_000, 1).unwrap();
        let half = frames(grid, 2) as f64 / 2048.0;
        assert!((ratios.first_hits(2) - half).abs() < 0.02, "{}", ratios.first_hits(2));
        assert!((ratios.misses(1, 2) - (1.0 - half)).abs() < 0.03, "{}", ratios.misses(1, 2));
        assert!(ratios.misses(1, 5) == 0.0 && ratios.misses(5, 1) == 0.0 && ratios.first_hits(5) == 1.0);
    }
}
