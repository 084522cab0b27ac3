//! The summary of a trace, gathered record by record.
//!
//! Memory grows with the number of distinct items, not with the requests: 16 bytes for each second with requests, 300
//! for each device, and a bitmap of the 4 KiB blocks accessed (roaring: at most 8 KiB for each 256 MiB of them).
//!
//! *Sequential* is a read or write that begins where the one before it on the same device ended. *In streams* is one
//! that begins where any of the last 32 on the same device ended, which recognises several interleaved sequential
//! streams; what is sequential is in a stream.

use std::collections::{BTreeMap, HashMap, VecDeque};

use engine::units::{BLOCK, Nanos, SECOND};
use hdrhistogram::Histogram;
use roaring::RoaringTreemap;
use sim::load::{Op, Record};
use sim::rng::Rng;

/// Ends of requests that are remembered for each device to recognise streams.
const STREAMS_SEEN: usize = 32;
/// Distinct sizes at most; beyond, a size counts as the next power of two.
const SIZES_MAX: usize = 4096;
/// Requests that are drawn in the picture of offsets: each is 90 bytes of SVG.
const SAMPLE: usize = 10_000;

/// The requests of one second.
#[derive(Clone, Copy, Default, Debug)]
pub struct Count {
    /// Reads.
    pub reads: u32,
    /// Writes, trims and flushes.
    pub others: u32,
}

impl Count {
    /// All requests.
    pub fn all(self) -> u64 {
        u64::from(self.reads) + u64::from(self.others)
    }
}

/// The summary of a trace.
#[derive(Debug)]
pub struct Summary {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Trims.
    pub trims: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// The time of the first record.
    pub first_ns: Option<Nanos>,
    /// The earliest time.
    pub earliest_ns: Nanos,
    /// The latest time.
    pub latest_ns: Nanos,
    /// Records with a time before that of the previous record.
    pub unsorted: u64,
    /// Requests by second since the first record; earlier records have negative seconds.
    pub seconds: BTreeMap<i64, Count>,
    /// Blocks of 4 KiB that were read or written.
    pub footprint: RoaringTreemap,
    /// The lowest byte accessed.
    pub lowest: u64,
    /// The end of the highest byte accessed.
    pub highest: u64,
    /// See the module.
    pub sequential: u64,
    /// See the module.
    pub in_streams: u64,
    /// Nanoseconds from one record to the next.
    pub gaps: Histogram<u64>,
    /// Reads and writes by size in bytes.
    pub sizes: BTreeMap<u64, u64>,
    /// Reads and writes by the sector (of 8 in a block) at which they begin; the ninth counts those that begin inside a
    /// sector.
    pub begin_sectors: [u64; 9],
    /// Reads and writes of whole 4 KiB blocks.
    pub whole_blocks: u64,
    /// A sample of reads and writes, for the picture.
    pub sample: Vec<Record>,
    /// Requests by device.
    pub devices: HashMap<u32, u64>,
    last_ns: Nanos,
    /// For each device, where its last requests ended, oldest first.
    recent: HashMap<u32, VecDeque<u64>>,
    rng: Rng,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary {
            reads: 0,
            writes: 0,
            trims: 0,
            flushes: 0,
            read_bytes: 0,
            write_bytes: 0,
            first_ns: None,
            earliest_ns: Nanos::MAX,
            latest_ns: 0,
            unsorted: 0,
            seconds: BTreeMap::new(),
            footprint: RoaringTreemap::new(),
            lowest: u64::MAX,
            highest: 0,
            sequential: 0,
            in_streams: 0,
            gaps: Histogram::new(3).expect("3 digits are allowed"),
            sizes: BTreeMap::new(),
            begin_sectors: [0; 9],
            whole_blocks: 0,
            sample: Vec::new(),
            devices: HashMap::new(),
            last_ns: 0,
            recent: HashMap::new(),
            rng: Rng::new(1),
        }
    }
}

impl Summary {
    /// Adds the next record.
    pub fn add(&mut self, record: Record) {
        self.add_time(record);
        *self.devices.entry(record.stream).or_default() += 1;
        match record.op {
            Op::Read => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + record.bytes),
            Op::Write => (self.writes, self.write_bytes) = (self.writes + 1, self.write_bytes + record.bytes),
            Op::Trim => self.trims += 1,
            Op::Flush => self.flushes += 1,
        }
        if matches!(record.op, Op::Read | Op::Write) {
            self.add_range(record);
            self.add_place(record);
            self.sample(record);
        }
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.trims + self.flushes
    }

    /// Nanoseconds from the earliest to the latest.
    pub fn duration_ns(&self) -> Nanos {
        self.latest_ns.saturating_sub(self.earliest_ns)
    }

    /// The interval of `seconds` with the most requests: (its number since the first record, requests).
    pub fn busiest(&self, seconds: i64) -> (i64, u64) {
        let mut best = (0, 0);
        let mut now = (i64::MIN, 0);
        for (&second, count) in &self.seconds {
            let period = second.div_euclid(seconds);
            now = if period == now.0 { (period, now.1 + count.all()) } else { (period, count.all()) };
            best = if now.1 > best.1 { now } else { best };
        }
        best
    }

    fn add_time(&mut self, record: Record) {
        let at = record.time_ns;
        let first = *self.first_ns.get_or_insert(at);
        (self.earliest_ns, self.latest_ns) = (self.earliest_ns.min(at), self.latest_ns.max(at));
        if self.requests() > 0 {
            self.unsorted += u64::from(at < self.last_ns);
            // A value out of the histogram's range of a year does not affect what is shown.
            self.gaps.record(at.saturating_sub(self.last_ns)).unwrap_or_default();
        }
        self.last_ns = at;
        let second = (i128::from(at) - i128::from(first)).div_euclid(i128::from(SECOND)) as i64;
        let count = self.seconds.entry(second).or_default();
        match record.op {
            Op::Read => count.reads = count.reads.saturating_add(1),
            _ => count.others = count.others.saturating_add(1),
        }
    }

    fn add_range(&mut self, record: Record) {
        let Record { offset, bytes, .. } = record;
        (self.lowest, self.highest) = (self.lowest.min(offset), self.highest.max(record.end()));
        let blocks = offset / BLOCK..record.end().div_ceil(BLOCK);
        if blocks.end - blocks.start == 1 {
            self.footprint.insert(blocks.start);
        } else {
            self.footprint.insert_range(blocks);
        }
        let size = if self.sizes.len() < SIZES_MAX || self.sizes.contains_key(&bytes) {
            bytes
        } else {
            bytes.next_power_of_two()
        };
        *self.sizes.entry(size).or_default() += 1;
        let sector = if offset.is_multiple_of(512) { (offset / 512 % 8) as usize } else { 8 };
        self.begin_sectors[sector] += 1;
        self.whole_blocks += u64::from(offset.is_multiple_of(BLOCK) && bytes.is_multiple_of(BLOCK));
    }

    fn add_place(&mut self, record: Record) {
        let ends = self.recent.entry(record.stream).or_default();
        self.sequential += u64::from(ends.back() == Some(&record.offset));
        self.in_streams += u64::from(ends.contains(&record.offset));
        if ends.len() == STREAMS_SEEN {
            ends.pop_front();
        }
        ends.push_back(record.end());
    }

    /// Keeps each record with the same probability (Vitter's algorithm R).
    fn sample(&mut self, record: Record) {
        if self.sample.len() < SAMPLE {
            return self.sample.push(record);
        }
        let at = self.rng.below(self.reads + self.writes);
        if let Some(slot) = self.sample.get_mut(at as usize) {
            *slot = record;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(records: &[(u64, Op, u64, u64)]) -> Summary {
        let mut summary = Summary::default();
        for &(time_ns, op, offset, bytes) in records {
            summary.add(Record { time_ns, op, offset, bytes, stream: 0 });
        }
        summary
    }

    #[test]
    fn two_streams_side_by_side_are_streams() {
        let far = 1 << 30;
        let records: Vec<_> =
            (0..20).flat_map(|i| [(0, Op::Read, i * 4096, 4096), (0, Op::Read, far + i * 4096, 4096)]).collect();
        let summary = of(&records);
        assert_eq!((summary.sequential, summary.in_streams), (0, 38));
        assert_eq!(summary.footprint.len(), 40);
    }

    /// The last 32 requests count, not the last 32 streams, and each device has its own.
    #[test]
    fn a_stream_is_seen_for_32_requests() {
        let mut records = vec![(0, Op::Read, 0, 4096)];
        let apart = |i: u64| (0, Op::Read, (i + 1) << 30, 4096);
        records.extend((0..31).map(apart));
        // Twice from the same end.
        records.extend([(0, Op::Read, 4096, 512); 2]);
        let summary = of(&records);
        assert_eq!(summary.in_streams, 1, "the second of them is the 33rd after it");
        let summary = of(&[records[0], records[32], records[32]]);
        assert_eq!((summary.in_streams, summary.sequential), (2, 1));
        let mut summary = Summary::default();
        for stream in (0..100).chain([0]) {
            let offset = if summary.reads == 100 { 4096 } else { 0 };
            summary.add(Record { time_ns: 0, op: Op::Read, offset, bytes: 4096, stream });
        }
        assert_eq!((summary.in_streams, summary.sequential), (1, 1));
    }

    #[test]
    fn seconds_count_from_the_first_record() {
        let at = |seconds: f64| ((100.0 + seconds) * 1e9) as u64;
        let summary = of(&[
            (at(0.5), Op::Read, 0, 512),
            (at(1.4), Op::Write, 512, 512),
            (at(1.6), Op::Write, 7 * 512, 4096),
            (at(0.1), Op::Flush, 0, 0),
        ]);
        assert_eq!(summary.busiest(1), (0, 2));
        assert_eq!(summary.seconds.keys().copied().collect::<Vec<_>>(), [-1, 0, 1]);
        assert_eq!((summary.unsorted, summary.duration_ns(), summary.flushes), (1, 1_500_000_000, 1));
        assert_eq!((summary.begin_sectors[7], summary.footprint.len(), summary.sequential), (1, 2, 1));
    }
}
