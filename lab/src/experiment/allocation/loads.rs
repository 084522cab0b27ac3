//! The loads of tenants with two tiers of cache: shapes of miss-ratio curves, and traces.

use std::collections::HashSet;
use std::sync::Arc;

use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND};
use sim::load::workload::Lane;
use sim::load::{Op, Pace, Place, Record, Stream, Workload, unroll};

use super::super::loads::{Load, Mixture, repeated};

/// A load: what its clients request, how many requests they have outstanding or think about, and for how long each of
/// them thinks.
#[derive(Clone, Debug)]
pub struct Kind {
    pub name: String,
    pub requests: Requests,
    /// Bytes of its volume that it uses.
    pub bytes: u64,
    pub depth: u32,
    pub think_ns: Nanos,
    /// The load that it turns into, and when.
    pub then: Option<(Nanos, Box<Kind>)>,
}

/// What is requested.
#[derive(Clone, Debug)]
pub enum Requests {
    /// Requests of 4 KiB at random: weights and places.
    Parts(Vec<(u64, Stream)>),
    /// A trace, again from its beginning when it has ended.
    Trace(Arc<Vec<Record>>),
}

/// Requests before those of a run. They determine what is in the caches when it begins.
pub const PAST: usize = 150_000;

const MIB: u64 = 1 << 20;
const MILLION: u64 = 1_000_000;

/// Uniform requests to a part of the volume.
pub fn part(weight: u64, start_kib: u64, kib: u64, writes_percent: u64) -> (u64, Stream) {
    let read_ppm = MILLION - writes_percent * MILLION / 100;
    (weight, Stream { area_start: start_kib << 10, area_bytes: kib << 10, read_ppm, ..Stream::default() })
}

impl Kind {
    fn of_parts(name: &str, parts: Vec<(u64, Stream)>, depth: u32, think_ms: u64) -> Kind {
        let bytes = parts.iter().map(|(_, stream)| stream.area_start + stream.area_bytes).max().unwrap_or(0);
        let (name, requests) = (name.into(), Requests::Parts(parts));
        Kind { name, requests, bytes, depth, think_ns: think_ms * MILLISECOND, then: None }
    }

    /// A hot set in two parts, `knee_kib` together, and cold data: `cold` of 100 requests.
    pub fn knee(name: &str, hottest: (u64, u64), knee_kib: u64, cold: u64, writes: u64, think_ms: u64) -> Kind {
        let (weight, kib) = hottest;
        let parts = vec![
            part(weight, 0, kib, writes),
            part(100 - weight - cold, kib, knee_kib - kib, writes),
            part(cold, knee_kib, (COLD_MIB << 10) - knee_kib, writes),
        ];
        Kind::of_parts(name, parts, 8, think_ms)
    }

    /// Like the paper's TPC-W, by a sixteenth: its cache is large enough at 22.5 MiB, 20 % are writes.
    pub fn tpcw() -> Kind {
        Kind::knee("TPC-W", (45, 4 << 10), 23_040, 8, 20, 10)
    }

    /// Like the paper's RUBiS, by a sixteenth: its cache is large enough at 43.75 MiB, 15 % are writes.
    pub fn rubis() -> Kind {
        Kind::knee("RUBiS", (35, 8 << 10), 44_800, 8, 15, 10)
    }

    /// Reads with a Zipf distribution.
    pub fn zipf(name: &str, exponent: f64, mib: u64, think_ms: u64) -> Kind {
        let stream = Stream { place: Place::Zipf { exponent }, area_bytes: mib * MIB, ..Stream::default() };
        Kind::of_parts(name, vec![(1, stream)], 8, think_ms)
    }

    /// The paper's Zipf40: cache hardly helps.
    pub fn zipf40() -> Kind {
        Kind::zipf("Zipf40", 0.4, 1024, 5)
    }

    /// The paper's Zipf95: some megabytes help most.
    pub fn zipf95() -> Kind {
        Kind::zipf("Zipf95", 0.95, 256, 5)
    }

    /// A trace, with 8 requests outstanding or thought about.
    pub fn trace(name: &str, records: &Arc<Vec<Record>>, think_ms: u64) -> Kind {
        let (name, requests) = (name.into(), Requests::Trace(records.clone()));
        Kind { name, requests, bytes: TRACE_BYTES, depth: 8, think_ns: think_ms * MILLISECOND, then: None }
    }

    /// Reads without pause and without reuse: a tenant that always has requests for the disk.
    pub fn backlogged() -> Kind {
        Kind::of_parts("backlogged", vec![part(1, 0, BACKLOG_BYTES >> 10, 0)], 8, 0)
    }

    /// The same until a time of the run, and then this one.
    pub fn then(self, at_ns: Nanos, next: Kind) -> Kind {
        Kind { bytes: self.bytes.max(next.bytes), then: Some((at_ns, Box::new(next))), ..self }
    }

    /// Its requests from the first one on, whenever they are made.
    pub fn records(&self, seed: u64) -> Result<Box<dyn Iterator<Item = Record> + Send>, String> {
        match &self.requests {
            Requests::Parts(parts) => {
                let pace = Pace::Closed { depth: 1, think_ns: 0 };
                let mixture = Mixture { parts: parts.clone(), warm_bytes: 0, updates: false, pace };
                Ok(Box::new(unroll(Load::Mixture(mixture).workload(self.bytes, seed)?, 1)))
            }
            Requests::Trace(records) => Ok(Box::new(repeated(records.clone(), self.bytes, usize::MAX))),
        }
    }

    /// The load of a run: within [`FILL_NS`] it reads the `blocks` blocks that were used last, in that order, and then
    /// goes on with the request after [`PAST`]; a load that never thinks, at `disk_ns`, when the disk takes its time.
    pub fn workload(&self, blocks: usize, disk_ns: Nanos, seed: u64) -> Result<Workload, String> {
        let mut records = self.records(seed)?;
        let past: Vec<Record> = records.by_ref().take(PAST).collect();
        let fill = last_used(&past, blocks).into_iter().map(|block| Record {
            time_ns: 0,
            op: Op::Read,
            offset: block * BLOCK,
            bytes: BLOCK,
            stream: FILLING,
        });
        let pace = |depth, think_ns| Pace::Closed { depth, think_ns };
        let fill = Lane::of_trace(fill.collect::<Vec<_>>().into_iter(), pace(FILL_DEPTH, 0));
        let records = records.map(|record| Record { stream: 0, ..record });
        let start_ns = if self.think_ns > 0 { FILL_NS } else { disk_ns };
        let lane = Lane::of_trace(records, pace(self.depth, self.think_ns)).starting_at(start_ns);
        let Some((at_ns, next)) = &self.then else { return Ok(Workload::new(vec![fill, lane], 0)) };
        let records = next.records(seed)?.map(|record| Record { stream: 0, ..record });
        let later = Lane::of_trace(records, pace(next.depth, next.think_ns)).starting_at(*at_ns);
        Ok(Workload::new(vec![fill, lane.ending_at(*at_ns), later], 0))
    }
}

/// The stream of requests that fill the caches when a run begins, how many are outstanding, and how long they may take.
pub const FILLING: u32 = 1;
const FILL_DEPTH: u32 = 32;
const FILL_NS: Nanos = 6 * SECOND;
/// Bytes of data of a load with a knee: a sixteenth of the paper's databases.
const COLD_MIB: u64 = 2560;
/// Bytes of the volume of a trace; offsets beyond wrap around.
const TRACE_BYTES: u64 = 12 << 30;
/// Bytes of the volume of a backlogged reader.
const BACKLOG_BYTES: u64 = 4 << 30;

/// The blocks of a request.
pub fn blocks(record: &Record) -> std::ops::Range<u64> {
    record.offset / BLOCK..record.end().div_ceil(BLOCK)
}

/// The last `most` distinct blocks of these requests, the last one at the end.
fn last_used(past: &[Record], most: usize) -> Vec<u64> {
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for block in past.iter().rev().flat_map(|record| blocks(record).rev()) {
        if found.len() >= most {
            break;
        }
        if seen.insert(block) {
            found.push(block);
        }
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_begins_with_the_blocks_that_were_used_last() {
        let record = |block: u64| Record { time_ns: 0, op: Op::Read, offset: block * BLOCK, bytes: BLOCK, stream: 0 };
        let past: Vec<Record> = [5, 1, 2, 1, 3, 2].map(record).into();
        assert_eq!(last_used(&past, 3), [1, 3, 2]);
        assert_eq!(last_used(&past, 9), [5, 1, 3, 2]);
    }

    #[test]
    fn a_load_has_its_writes_and_its_knee() {
        let kind = Kind::tpcw();
        let records: Vec<Record> = kind.records(1).unwrap().take(50_000).collect();
        let writes = records.iter().filter(|record| record.op == Op::Write).count();
        let hot = records.iter().filter(|record| record.offset < 23_040 << 10).count();
        assert!((9_700..10_300).contains(&writes) && (45_700..46_300).contains(&hot), "{writes} {hot}");
        assert!(records.iter().all(|record| record.end() <= kind.bytes));
    }
}
