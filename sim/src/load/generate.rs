//! Generates records from a description: position, length, read or write, and for open streams the time.

use engine::units::Nanos;

use super::spec::{Every, Pace, Place, Stream};
use super::zipf::{Zipf, unit};
use super::{Op, Record, Source};
use crate::rng::Rng;

/// The records of one stream.
#[derive(Clone, Debug)]
pub struct Generator {
    stream: Stream,
    number: u32,
    rng: Rng,
    /// The distribution over the positions of the working set.
    zipf: Option<Zipf>,
    /// Spreads ranks over positions: rank * step modulo the number of positions.
    step: u64,
    made: u64,
    /// Nanoseconds of activity until the next request of an open stream.
    active_ns: Nanos,
    /// Where the last request ended, relative to the beginning of the working set; with a stride, where the next one
    /// begins.
    cursor: u64,
    /// Writes since the last flush.
    unflushed: u64,
}

impl Generator {
    /// A generator for a checked stream. `number` marks its records.
    pub fn new(stream: Stream, number: u32, rng: Rng) -> Generator {
        let places = (stream.area_bytes / stream.align_bytes).max(1);
        let zipf = match stream.place {
            Place::Zipf { exponent } => Some(Zipf::new(places, exponent)),
            Place::Sequential | Place::Uniform => None,
        };
        let step = coprime_step(places);
        Generator { stream, number, rng, zipf, step, made: 0, active_ns: 0, cursor: 0, unflushed: 0 }
    }

    /// The time of an open stream's next request since the load's beginning; a closed stream uses the present time.
    fn arrive(&mut self, elapsed_ns: Nanos) -> Nanos {
        let Pace::Open { interval_ns, poisson, .. } = self.stream.pace else { return elapsed_ns };
        let at_ns = self.stream.bursts.map_or(self.active_ns, |bursts| bursts.stretch(self.active_ns));
        let gap_ns = match poisson {
            // Inversion method; 1 - u is never 0.
            true => (-libm::log(1.0 - unit(&mut self.rng)) * interval_ns as f64) as Nanos,
            false => interval_ns,
        };
        self.active_ns = self.active_ns.saturating_add(gap_ns);
        self.stream.start_ns.saturating_add(at_ns)
    }

    /// By how many bytes the working set has moved.
    fn moved(&self, elapsed_ns: Nanos) -> u64 {
        let Some(shift) = self.stream.shift else { return 0 };
        let times = match shift.every {
            Every::Requests(requests) => self.made / requests,
            Every::Time(period_ns) => elapsed_ns.saturating_sub(self.stream.start_ns) / period_ns,
        };
        // The last possible start of the working set is still inside.
        let room = shift.within_bytes - self.stream.area_bytes + 1;
        let by = (u128::from(times) * u128::from(shift.by_bytes) % u128::from(room)) as u64;
        by / self.stream.align_bytes * self.stream.align_bytes
    }

    /// A position relative to the beginning of the working set, such that `bytes` fit.
    fn place(&mut self, bytes: u64) -> u64 {
        let align = self.stream.align_bytes;
        let last = (self.stream.area_bytes - bytes) / align;
        let follows = self.stream.place == Place::Sequential
            || (self.stream.follow_ppm > 0 && self.rng.chance(self.stream.follow_ppm));
        if let Some(stride) = self.stream.stride_bytes {
            return self.strides(stride, last * align);
        }
        if follows {
            let at = self.cursor.div_ceil(align);
            return if at <= last { at * align } else { 0 };
        }
        let place = match &self.zipf {
            None => self.rng.below(last + 1),
            Some(zipf) => {
                let places = self.stream.area_bytes / align;
                let rank = u128::from(zipf.rank(&mut self.rng) - 1);
                ((rank * u128::from(self.step) % u128::from(places)) as u64).min(last)
            }
        };
        place * align
    }

    /// The next position of a stream with a stride: past an end of the positions up to `last`, it continues at the
    /// other one.
    fn strides(&mut self, stride: i64, last: u64) -> u64 {
        let at = if self.cursor <= last { self.cursor } else { 0 };
        self.cursor = match at.checked_add_signed(stride) {
            Some(next) => next,
            None => last,
        };
        at
    }
}

impl Source for Generator {
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record> {
        if self.made >= self.stream.requests {
            return None;
        }
        let time_ns = self.arrive(elapsed_ns);
        if time_ns >= self.stream.stop_ns {
            return None;
        }
        if self.stream.flush_every > 0 && self.unflushed >= self.stream.flush_every {
            self.unflushed = 0;
            return Some(Record { time_ns, op: Op::Flush, offset: 0, bytes: 0, stream: self.number });
        }
        let op = if self.rng.chance(self.stream.read_ppm) { Op::Read } else { Op::Write };
        self.unflushed += u64::from(op == Op::Write);
        let bytes = self.rng.weighted(&self.stream.sizes);
        let place = self.place(bytes);
        let offset = self.stream.area_start + self.moved(time_ns) + place;
        if self.stream.stride_bytes.is_none() {
            self.cursor = place + bytes;
        }
        self.made += 1;
        Some(Record { time_ns, op, offset, bytes, stream: self.number })
    }
}

/// A step that visits all `places`, distant from one to the next: the golden section (Knuth, TAOCP 3, 6.4), made
/// coprime.
fn coprime_step(places: u64) -> u64 {
    let golden = (u128::from(places) * 618_033_989 / 1_000_000_000) as u64;
    (golden.max(1)..).find(|&step| gcd(step, places) == 1).expect("places + 1 is coprime to places")
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::load::spec::{Bursts, Shift};

    fn records(stream: Stream, count: usize) -> Vec<Record> {
        let mut generator = Generator::new(stream, 3, Rng::new(9));
        std::iter::from_fn(|| generator.next(0)).take(count).collect()
    }

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let stream = Stream { place: Place::Zipf { exponent: 0.99 }, read_ppm: 500_000, ..Stream::default() };
        let offsets: Vec<_> = records(stream, 4).iter().map(|record| (record.op, record.offset)).collect();
        let same =
            [(Op::Write, 497_348_608), (Op::Write, 451_629_056), (Op::Read, 760_406_016), (Op::Write, 461_070_336)];
        assert_eq!(offsets, same);
    }

    #[test]
    fn a_sequential_stream_comes_round() {
        let stream = Stream {
            place: Place::Sequential,
            area_start: 1 << 20,
            area_bytes: 100 << 10,
            sizes: vec![(1, 64 << 10)],
            ..Stream::default()
        };
        let offsets: Vec<_> = records(stream, 3).iter().map(|record| record.offset - (1 << 20)).collect();
        assert_eq!(offsets, [0, 0, 0], "the second does not fit behind the first");
        let small = Stream { place: Place::Sequential, area_bytes: 12 << 10, ..Stream::default() };
        let offsets: Vec<_> = records(small, 5).iter().map(|record| record.offset).collect();
        assert_eq!(offsets, [0, 4096, 8192, 0, 4096]);
    }

    #[test]
    fn a_stride_leaves_gaps_and_goes_backwards() {
        let offsets = |stride_bytes| {
            let place = Place::Sequential;
            let stream = Stream { place, area_bytes: 40 << 10, stride_bytes: Some(stride_bytes), ..Stream::default() };
            records(stream, 6).iter().map(|record| record.offset >> 12).collect::<Vec<_>>()
        };
        assert_eq!(offsets(3 * 4096), [0, 3, 6, 9, 0, 3]);
        assert_eq!(offsets(-2 * 4096), [0, 9, 7, 5, 3, 1], "from the end");
    }

    #[test]
    fn a_log_flushes_after_so_many_writes() {
        let stream = Stream { read_ppm: 0, flush_every: 3, requests: 7, ..Stream::default() };
        let ops: Vec<_> = records(stream, 100).iter().map(|record| record.op).collect();
        let (write, flush) = (Op::Write, Op::Flush);
        assert_eq!(ops, [write, write, write, flush, write, write, write, flush, write]);
        let reads = Stream { flush_every: 3, ..Stream::default() };
        assert!(records(reads, 100).iter().all(|record| record.op == Op::Read), "nothing to flush");
    }

    #[test]
    fn everything_stays_inside_and_is_aligned() {
        for place in [Place::Sequential, Place::Uniform, Place::Zipf { exponent: 1.2 }] {
            let shift = Some(Shift { every: Every::Requests(10), by_bytes: 1 << 20, within_bytes: 9 << 20 });
            let stream = Stream {
                place,
                area_start: 4096,
                area_bytes: 1 << 20,
                align_bytes: 512,
                follow_ppm: 100_000,
                sizes: vec![(3, 512), (1, 65_536), (1, 1 << 20)],
                shift,
                ..Stream::default()
            };
            for record in records(stream, 2000) {
                assert!(record.offset >= 4096 && record.end() <= 4096 + (9 << 20), "{place:?} {record:?}");
                assert_eq!(record.offset % 512, 0);
            }
        }
    }

    #[test]
    fn shares_and_sizes_are_as_described() {
        let stream = Stream { read_ppm: 700_000, sizes: vec![(1, 4096), (3, 8192)], ..Stream::default() };
        let records = records(stream, 20_000);
        let reads = records.iter().filter(|record| record.op == Op::Read).count();
        let large = records.iter().filter(|record| record.bytes == 8192).count();
        assert!((13_700..14_300).contains(&reads) && (14_700..15_300).contains(&large), "{reads} {large}");
    }

    #[test]
    fn favourites_are_few_and_strewn() {
        let stream = Stream { place: Place::Zipf { exponent: 1.0 }, area_bytes: 1000 * 4096, ..Stream::default() };
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        records(stream, 50_000).iter().for_each(|record| *counts.entry(record.offset / 4096).or_default() += 1);
        let mut favourites: Vec<_> = counts.iter().map(|(&place, &count)| (count, place)).collect();
        favourites.sort_unstable_by(|a, b| b.cmp(a));
        assert!(counts.len() > 950, "all places are visited: {}", counts.len());
        assert!(favourites[0].0 > 6000 && favourites[0].1.abs_diff(favourites[1].1) > 100, "{:?}", &favourites[..3]);
    }

    #[test]
    fn the_working_set_moves_on() {
        let shift = Some(Shift { every: Every::Requests(100), by_bytes: 1 << 20, within_bytes: 1 << 30 });
        let stream = Stream { area_bytes: 1 << 20, shift, ..Stream::default() };
        for (i, record) in records(stream, 500).iter().enumerate() {
            assert_eq!(record.offset >> 20, i as u64 / 100);
        }
    }

    #[test]
    fn open_streams_arrive_at_their_rate_and_pause() {
        let pace = Pace::Open { interval_ns: 1000, poisson: true, speed_ppm: 1_000_000 };
        let bursts = Some(Bursts { on_ns: 1_000_000, off_ns: 9_000_000 });
        let times: Vec<_> =
            records(Stream { pace, bursts, ..Stream::default() }, 20_000).iter().map(|r| r.time_ns).collect();
        assert!(times.is_sorted() && times.iter().all(|at| at % 10_000_000 < 1_000_000));
        let last = times[times.len() - 1];
        assert!((190_000_000..210_000_000).contains(&last), "20,000 at 1 a microsecond, a tenth of the time: {last}");
    }
}
