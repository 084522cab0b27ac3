//! `aerogel-lab curve`: the error of the server's sampled miss-ratio curves, and what they cost.
//!
//! The same references are fed to curves of the size that a server uses, with several seeds, and to a curve that
//! samples everything and forgets nothing. Read-ahead is included: after two sequential reads, the next 32 blocks are
//! read ahead. The sampled curves fade as in the server; the exact one does not, so a load that changes adds to the
//! error.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use engine::cache::EvictionPolicy;
use engine::curve::{Ack, Curve, Limits, Point, View};
use engine::ids::VolumeId;
use engine::units::{BLOCK, Nanos, SECOND, SectorMask, sectors_touched};
use serde::Serialize;
use sim::load::Op;

use crate::trace::Trace;

/// Compare sampled miss-ratio curves of traces with exact ones, and measure the time for each block.
#[derive(Args, Debug)]
pub struct CurveArgs {
    /// Traces, in any format that `trace info` reads.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// Number of seeds.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// One JSON array.
    #[arg(long)]
    json: bool,
}

const VOLUME: VolumeId = VolumeId(0);
/// Largest size: 16 GiB, twice the memory of a server with 8 GiB.
const BLOCKS_MAX: u64 = 1 << 22;
/// Smallest size that is compared, blocks: 1 MiB, about twice the smallest partition.
const BLOCKS_MIN: u64 = 256;
/// The values of a server.
const BYTES: usize = 1 << 20;
const DIRTY_AGE: Nanos = 5 * SECOND;

/// An event for a curve.
#[derive(Clone, Copy)]
enum Told {
    Read(u64, SectorMask),
    Write(u64, SectorMask),
    Ahead(u64),
    Flush,
}

type Story = Vec<(Nanos, Told)>;

/// Mean absolute errors.
#[derive(Clone, Copy, Default, Serialize)]
struct Errors {
    /// Of the miss ratio of all block reads and writes, under LRU.
    lru: f64,
    lru_reads: f64,
    lru_writes: f64,
    /// Of the same miss ratio under SIEVE, which is estimated with miniature caches.
    sieve: f64,
}

#[derive(Serialize)]
struct Report {
    trace: String,
    block_reads: u64,
    block_writes: u64,
    blocks_read_ahead: u64,
    rate: f64,
    mean: Errors,
    worst: Errors,
    ns_per_block: f64,
}

impl CurveArgs {
    /// Measures, and prints the result.
    pub fn run(self) -> Result<()> {
        let mut reports = Vec::new();
        for path in &self.traces {
            let story = story(path).with_context(|| path.display().to_string())?;
            let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            reports.push(judge(name, &story, self.seeds.max(1)));
        }
        let text = if self.json { serde_json::to_string_pretty(&reports)? + "\n" } else { table(&reports) };
        // A closed pipe is ignored.
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(())
    }
}

/// The events of a trace, in blocks, with the read-ahead of a server.
fn story(path: &std::path::Path) -> Result<Story> {
    let mut story = Story::new();
    // The ends of the last reads, bytes, and how many reads have continued there.
    let mut ends: [(u64, u32); 32] = [(u64::MAX, 0); 32];
    for (i, record) in Trace::open(path, None)?.enumerate() {
        let record = record?;
        let (start, end) = (record.offset, record.offset + record.bytes);
        let blocks = (start / BLOCK..end.div_ceil(BLOCK)).map(|number| {
            let base = number * BLOCK;
            (number, sectors_touched(start.max(base) - base, end.min(base + BLOCK) - base))
        });
        match record.op {
            Op::Read => {
                story.extend(blocks.map(|(number, sectors)| (record.time_ns, Told::Read(number, sectors))));
                let at = ends.iter().position(|known| known.0 == start).unwrap_or(i % ends.len());
                ends[at] = if ends[at].0 == start { (end, ends[at].1 + 1) } else { (end, 1) };
                if ends[at].1 >= 3 && ends[at].1.is_multiple_of(8) {
                    let first = end.div_ceil(BLOCK);
                    story.extend((first..first + 32).map(|number| (record.time_ns, Told::Ahead(number))));
                }
            }
            Op::Write => story.extend(blocks.map(|(number, sectors)| (record.time_ns, Told::Write(number, sectors)))),
            Op::Flush => story.push((record.time_ns, Told::Flush)),
            Op::Trim => {}
        }
    }
    Ok(story)
}

fn tell(limits: Limits, seed: u64, story: &Story) -> Curve {
    let mut curve = Curve::new(limits, seed);
    curve.opened(VOLUME);
    for &(now, told) in story {
        match told {
            Told::Read(number, sectors) => curve.read(now, VOLUME, number, sectors, false),
            Told::Write(number, sectors) => curve.write(now, VOLUME, number, sectors, Ack::Cached),
            Told::Ahead(number) => curve.read_ahead(now, VOLUME, number),
            Told::Flush => curve.flushed(VOLUME),
        }
    }
    curve
}

fn judge(trace: String, story: &Story, seeds: u64) -> Report {
    let exact = tell(Limits::exact(BLOCKS_MAX, DIRTY_AGE), 0, story);
    let truths = EvictionPolicy::ALL.map(|policy| exact.view(policy));
    let limits = Limits::within(BYTES, BLOCKS_MAX, DIRTY_AGE);
    let (mut mean, mut worst, mut ns, mut rate) = (Errors::default(), Errors::default(), f64::MAX, 0.0);
    for seed in 1..=seeds {
        let began = Instant::now();
        let curve = tell(limits, seed, story);
        ns = ns.min(began.elapsed().as_nanos() as f64 / story.len().max(1) as f64);
        let views = EvictionPolicy::ALL.map(|policy| curve.view(policy));
        let of = |policy: usize, part: fn(&Point) -> Option<f64>| distance(&views[policy], &truths[policy], part);
        let errors = [
            (of(0, |p| p.all), &mut mean.lru, &mut worst.lru),
            (of(0, |p| p.reads), &mut mean.lru_reads, &mut worst.lru_reads),
            (of(0, |p| p.writes), &mut mean.lru_writes, &mut worst.lru_writes),
            (of(1, |p| p.all), &mut mean.sieve, &mut worst.sieve),
        ];
        for (error, mean, worst) in errors {
            *mean += error / seeds as f64;
            *worst = error.max(*worst);
        }
        rate = views[0].rate;
    }
    let count = |which: fn(&Told) -> bool| story.iter().filter(|(_, told)| which(told)).count() as u64;
    Report {
        trace,
        block_reads: count(|told| matches!(told, Told::Read(..))),
        block_writes: count(|told| matches!(told, Told::Write(..))),
        blocks_read_ahead: count(|told| matches!(told, Told::Ahead(..))),
        rate,
        mean,
        worst,
        ns_per_block: ns,
    }
}

/// The mean absolute distance of two curves over the sizes that both have, from [`BLOCKS_MIN`] to where the exact curve
/// is flat. Points are an octave apart, so that each octave has the same weight.
fn distance(view: &View, truth: &View, part: fn(&Point) -> Option<f64>) -> f64 {
    let floor = truth.points.last().and_then(part);
    let judged = truth.points.iter().take_while(|point| part(point) != floor).count() + 1;
    let pairs = view.points.iter().zip(&truth.points).take(judged).filter(|(point, _)| point.blocks >= BLOCKS_MIN);
    let distances: Vec<f64> = pairs.filter_map(|(a, b)| Some((part(a)? - part(b)?).abs())).collect();
    distances.iter().sum::<f64>() / distances.len().max(1) as f64
}

fn table(reports: &[Report]) -> String {
    let mut text = format!(
        "{:<28} {:>9} {:>9} {:>9} {:>7}  {:>13}  {:>13}  {:>13}  {:>13} {:>8}\n",
        "mean absolute error: mean, worst",
        "reads",
        "writes",
        "ahead",
        "rate",
        "LRU",
        "reads",
        "writes",
        "SIEVE",
        "ns/block"
    );
    for report in reports {
        let pair = |mean: f64, worst: f64| format!("{mean:.4} {worst:.4}");
        let (mean, worst) = (&report.mean, &report.worst);
        text += &format!(
            "{:<32} {:>9} {:>9} {:>9} {:>7.4}  {:>13}  {:>13}  {:>13}  {:>13} {:>8.1}\n",
            report.trace,
            report.block_reads,
            report.block_writes,
            report.blocks_read_ahead,
            report.rate,
            pair(mean.lru, worst.lru),
            pair(mean.lru_reads, worst.lru_reads),
            pair(mean.lru_writes, worst.lru_writes),
            pair(mean.sieve, worst.sieve),
            report.ns_per_block,
        );
    }
    text
}
