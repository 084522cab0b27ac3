//! The ten workloads: closed replay at depth 16 of sequences of requests whose locality changes strongly.
//!
//! ```text
//! description   runs of 8 KiB reads, 110 MB ──► random 4 KiB reads, 10 MB ──► runs … (lengths vary by half)
//! real trace    cut by time or by region; of servers, with scans in between: 300 MB ──► trace, 30 MB or more ──► …;
//!               times are dropped
//! ```
//!
//! A sequence depends on nothing but its seed: request number k is the same in every run, so windows that are cut by
//! bytes line up. Locality therefore changes after so many bytes, not after so many seconds. A sequence that ends
//! begins again.

use std::sync::Arc;

use engine::units::SECOND;
use sim::load::{Bursts, Generator, Lane, Pace, Place, Record, Source, Stream};
use sim::rng::Rng;

use super::super::Context;
use super::super::insulation::traces::{self, Recorded};
use super::super::loads::repeated;

/// Number of workloads.
pub const COUNT: usize = 10;
/// Outstanding requests of a workload: the threads of the paper's replayer.
pub const DEPTH: u32 = 16;
/// The pace of all workloads.
pub const PACE: Pace = Pace::Closed { depth: DEPTH, think_ns: 0 };
/// Number of alternations of a description before it begins again.
const CYCLES: usize = 12;
/// Number of real traces that are needed.
const TRACES: usize = 4;
/// Working set of a description, bytes: a tenth of the disk is 25 GB.
const AREA_BYTES: u64 = 16 << 30;
const MB: u64 = 1_000_000;
/// The descriptions, from 1, whose clients pause in shared runs, and their pauses: now and then a window has one.
const PAUSING: [u64; 2] = [4, 9];
const PAUSES: Bursts = Bursts { on_ns: 100 * SECOND, off_ns: 20 * SECOND };

/// A workload.
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its requests, which begin again at the end.
    pub records: Arc<Vec<Record>>,
    /// The pauses of its client in shared runs. The dedicated run has none: they are no part of the sequence.
    pub pauses: Option<Bursts>,
}

impl Workload {
    fn new(name: impl Into<String>, records: Vec<Record>) -> Workload {
        Workload { name: name.into(), records: Arc::new(records), pauses: None }
    }

    /// The load of its client on a volume of so many bytes.
    pub fn load(&self, volume_bytes: u64, pauses: Option<Bursts>) -> sim::load::Workload {
        let source = repeated(self.records.clone(), volume_bytes, usize::MAX);
        sim::load::Workload::new(vec![Lane::of_trace(source, PACE).with_bursts(pauses)], 0)
    }
}

/// The ten workloads. Full runs use six cuts of real traces and four descriptions if the traces are there, otherwise,
/// and in quick runs, ten descriptions.
pub fn ten(context: &Context) -> Result<Vec<Workload>, String> {
    let traces = if context.quick { None } else { traces::load(context, TRACES)? };
    let mut all = match traces {
        Some(traces) => traces.iter().flat_map(of_trace).collect(),
        None => Vec::new(),
    };
    let descriptions = descriptions();
    let from = descriptions.len() - (COUNT - all.len());
    all.extend(descriptions.into_iter().skip(from));
    Ok(all)
}

/// The workloads that are made of a trace. A virtual machine changes its locality by itself; of a web or database
/// server, a part is replayed between scans of its data, as for a backup.
fn of_trace(trace: &Recorded) -> Vec<Workload> {
    let (name, records) = (&trace.name, &trace.records[..]);
    let cut = |part: &str, records| Workload::new(format!("{name}, {part}"), records);
    let scanned =
        |part: &str, records: &[Record], trace_mb, seed| cut(part, between_scans(records, trace_mb * MB, seed));
    let quarter = |number: usize| &records[records.len() * number / 4..records.len() * (number + 1) / 4];
    let outer_half = |records| by_region(records).0;
    match &name[..] {
        "cloudPhysicsIO" => {
            vec![cut("first quarter", quarter(0).to_vec()), cut("third quarter, outer half", outer_half(quarter(2)))]
        }
        "linux-webserver-2" => {
            let (early, late) = records.split_at(records.len() / 2);
            vec![scanned("first half and scans", early, 30, 21), scanned("second half and scans", late, 30, 22)]
        }
        "linux-mysql" => vec![scanned("outer half and scans", &outer_half(records), 30, 23)],
        _ => vec![scanned("first quarter, outer half, and scans", &outer_half(quarter(0)), 36, 24)],
    }
}

/// The requests below and above the median offset.
fn by_region(records: &[Record]) -> (Vec<Record>, Vec<Record>) {
    let mut offsets: Vec<_> = records.iter().map(|record| record.offset).collect();
    offsets.sort_unstable();
    let middle = offsets[offsets.len() / 2];
    records.iter().partition(|record| record.offset < middle)
}

/// Parts of a trace with scans in between. With shorter parts, a window has something of both, so that no guarantee
/// fits at every share into as many windows as it should.
fn between_scans(records: &[Record], trace_bytes: u64, seed: u64) -> Vec<Record> {
    let records = records.to_vec();
    let trace = (0..usize::MAX).map(move |at| records[at % records.len()]);
    let scan = Generator::new(sequential(32 << 10, 1_000_000), 0, Rng::new(seed));
    alternate(
        vec![Phase { source: Box::new(scan), bytes: 300 * MB }, Phase { source: Box::new(trace), bytes: trace_bytes }],
        seed,
    )
}

/// A phase of a sequence: its requests, and how many bytes of them on average.
struct Phase {
    source: Box<dyn Source>,
    bytes: u64,
}

/// Requests at random.
fn random(bytes: u64, read_ppm: u64) -> Stream {
    Stream { area_bytes: AREA_BYTES, sizes: vec![(1, bytes)], read_ppm, ..Stream::default() }
}

/// Requests of which so many in a million begin where the previous one ended.
fn runs(bytes: u64, read_ppm: u64, follow_ppm: u64) -> Stream {
    Stream { follow_ppm, ..random(bytes, read_ppm) }
}

/// Sequential requests.
fn sequential(bytes: u64, read_ppm: u64) -> Stream {
    Stream { place: Place::Sequential, ..random(bytes, read_ppm) }
}

/// The ten descriptions. The fast phase of each is at least ten times as fast as its slow phase on a disk of its own,
/// so that one guarantee fits the former and not the latter at every share from 1/2 to 1/10.
fn descriptions() -> Vec<Workload> {
    const READ: u64 = 1_000_000;
    let all: [(&str, Stream, u64, Stream, u64); COUNT] = [
        ("runs, random reads", runs(8 << 10, READ, 970_000), 110, random(4 << 10, READ), 10),
        ("scan, random reads", sequential(16 << 10, READ), 130, random(4 << 10, READ), 11),
        ("scan, random updates", sequential(16 << 10, READ), 120, random(4 << 10, READ / 2), 9),
        ("long runs, random reads", runs(16 << 10, READ, 980_000), 140, random(8 << 10, READ), 18),
        ("log, random writes", sequential(16 << 10, 0), 100, random(4 << 10, 0), 9),
        ("runs, random mix", runs(16 << 10, READ, 970_000), 110, random(8 << 10, READ * 7 / 10), 16),
        ("scan, random 8 KiB reads", sequential(32 << 10, READ), 200, random(8 << 10, READ), 20),
        ("runs, random 4 KiB updates", runs(8 << 10, READ, 980_000), 100, random(4 << 10, READ * 8 / 10), 10),
        ("scan, short runs", sequential(64 << 10, READ), 240, runs(4 << 10, READ, 300_000), 14),
        ("runs, random writes", runs(16 << 10, READ, 960_000), 120, random(8 << 10, READ / 5), 16),
    ];
    let workload = |(number, (name, fast, fast_mb, slow, slow_mb))| {
        let phase = |stream, mb, seed| described(stream, mb * MB, seed);
        let phases = vec![phase(fast, fast_mb, 2 * number), phase(slow, slow_mb, 2 * number + 1)];
        let pauses = PAUSING.contains(&number).then_some(PAUSES);
        Workload { pauses, ..Workload::new(name, alternate(phases, number)) }
    };
    (1..).zip(all).map(workload).collect()
}

/// A phase of described requests.
fn described(stream: Stream, bytes: u64, seed: u64) -> Phase {
    Phase { source: Box::new(Generator::new(stream, 0, Rng::new(seed))), bytes }
}

/// The requests of phases that alternate, each 0.5 to 1.5 times its mean length, from a random point on.
fn alternate(mut phases: Vec<Phase>, seed: u64) -> Vec<Record> {
    let mut rng = Rng::new(seed);
    let mut records = Vec::new();
    for _ in 0..CYCLES {
        for phase in &mut phases {
            let mut left = phase.bytes / 2 + rng.below(phase.bytes);
            while left > 0 {
                let record = phase.source.next(0).expect("phases have no end");
                left = left.saturating_sub(record.bytes);
                records.push(record);
            }
        }
    }
    let start = rng.below(records.len() as u64) as usize;
    records.rotate_left(start);
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_alternate_by_bytes_and_a_seed_gives_the_same_sequence() {
        let phases =
            || vec![described(sequential(16 << 10, 0), 2 * MB, 1), described(random(4 << 10, 1_000_000), MB, 2)];
        let records = alternate(phases(), 3);
        assert_eq!(records, alternate(phases(), 3));
        let bytes = |size: u64| records.iter().map(|record| record.bytes).filter(|&bytes| bytes == size).sum::<u64>();
        let cycles = CYCLES as u64;
        assert!((cycles * MB..cycles * 3 * MB).contains(&bytes(16 << 10)), "{}", bytes(16 << 10));
        assert!((cycles * MB / 2..cycles * MB * 3 / 2).contains(&bytes(4 << 10)), "{}", bytes(4 << 10));
        let changes = records.windows(2).filter(|two| two[0].bytes != two[1].bytes).count();
        assert!((2 * CYCLES - 1..=2 * CYCLES).contains(&changes), "{changes}");
    }

    #[test]
    fn there_are_ten_described_workloads_of_different_names() {
        let mut names: Vec<_> = descriptions().into_iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNT);
    }

    #[test]
    fn a_trace_is_cut_by_region_without_losing_requests() {
        let record = |offset| Record { time_ns: 0, op: sim::load::Op::Read, offset, bytes: 4096, stream: 0 };
        let records: Vec<_> = [5, 1, 9, 7].map(|block| record(block * 4096)).into();
        let blocks = |records: Vec<Record>| records.iter().map(|record| record.offset / 4096).collect::<Vec<_>>();
        let (outer, inner) = by_region(&records);
        assert_eq!([blocks(outer), blocks(inner)], [vec![5, 1], vec![9, 7]]);
    }
}
