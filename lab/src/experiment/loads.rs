//! Loads of tenants in experiments: described streams, mixtures of them in one queue, records of a trace.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use engine::units::Nanos;
use sim::load::workload::Lane;
use sim::load::{Generator, Op, Pace, Record, Source, Spec, Stream, Workload};
use sim::rng::Rng;

/// The load of a tenant.
#[derive(Clone, Debug)]
pub enum Load {
    /// Concurrent streams, each with its own pace.
    Streams(Vec<Stream>),
    /// One queue of requests to several places.
    Mixture(Mixture),
    /// The first mixture, and from a time on the second one, at the pace of the first.
    Change(Mixture, Nanos, Mixture),
    /// A mixture on a log-structured layout, whose log begins at this offset of the volume and ends at the volume's
    /// end.
    Logged(Mixture, u64),
    /// Requests of a trace: at their own times until the trace ends, or closed and repeated. Offsets beyond the
    /// volume's end wrap around.
    Trace(Arc<Vec<Record>>, Pace),
}

/// One queue of requests that each go to one of several places at random: a workload with a knee in its curve.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Weights and streams. The streams' own paces are not used.
    pub parts: Vec<(u64, Stream)>,
    /// This many bytes from the volume's beginning are read sequentially first, which fills the cache in a second
    /// instead of an hour.
    pub warm_bytes: u64,
    /// Whether each block that is read is written a little later, as databases do.
    pub updates: bool,
    /// When requests are sent.
    pub pace: Pace,
}

/// At the depths that are used here, a read is complete when this many requests were sent after it.
const UPDATE_LAG: usize = 32;
/// Bytes per request when the cache is warmed.
const WARM_BYTES: u64 = 256 << 10;

impl From<Stream> for Load {
    fn from(stream: Stream) -> Load {
        Load::Streams(vec![stream])
    }
}

impl Load {
    /// Whether it only writes; then the bytes that reach the medium count.
    pub fn only_writes(&self) -> bool {
        matches!(self, Load::Streams(streams) if streams.iter().all(|stream| stream.read_ppm == 0))
    }

    /// Whether it is the same at all times, so that any second of it is equal work.
    pub fn is_steady(&self) -> bool {
        !matches!(self, Load::Trace(..) | Load::Change(..))
    }

    /// Whether it reads sequentially, so that the server reads ahead. Read-ahead for traces is negligible.
    pub fn streams(&self) -> bool {
        let streams = |stream: &Stream| stream.read_ppm > 0 && matches!(stream.place, sim::load::Place::Sequential);
        match self {
            Load::Streams(all) => all.iter().any(streams),
            Load::Mixture(mixture) | Load::Change(mixture, ..) | Load::Logged(mixture, _) => {
                mixture.parts.iter().any(|(_, part)| streams(part))
            }
            Load::Trace(..) => false,
        }
    }

    /// Whether its requests do not wait for answers.
    pub fn is_open(&self) -> bool {
        matches!(self, Load::Trace(_, Pace::Open { .. }))
    }

    /// The workload on a volume of so many bytes.
    pub fn workload(&self, bytes: u64, seed: u64) -> Result<Workload, String> {
        let lane = |source: Lane| Workload::new(vec![source], 0);
        match self {
            Load::Streams(streams) => described(streams.iter().map(|stream| cut(stream, bytes)).collect(), seed),
            Load::Mixture(mixture) => Ok(lane(Lane::of_trace(Mixed::new(mixture, bytes, seed)?, mixture.pace))),
            Load::Change(before, at_ns, after) => {
                let parts = [Mixed::new(before, bytes, seed)?, Mixed::new(after, bytes, seed)?];
                Ok(lane(Lane::of_trace(Changing { at_ns: *at_ns, parts }, before.pace)))
            }
            Load::Logged(mixture, start) => {
                let source =
                    Logged { source: Mixed::new(mixture, *start, seed)?, free: *start..bytes, newest: BTreeMap::new() };
                Ok(lane(Lane::of_trace(source, mixture.pace)))
            }
            Load::Trace(records, pace) => {
                let times = if self.is_open() { 1 } else { usize::MAX };
                Ok(lane(Lane::of_trace(repeated(records.clone(), bytes, times), *pace)))
            }
        }
    }
}

/// The records so many times, on a volume of so many bytes.
pub fn repeated(records: Arc<Vec<Record>>, volume_bytes: u64, times: usize) -> impl Iterator<Item = Record> + Send {
    let count = records.len();
    (0..times).flat_map(move |_| 0..count).map(move |at| within(records[at], volume_bytes))
}

/// Moves a record into a volume of so many bytes.
fn within(record: Record, volume_bytes: u64) -> Record {
    Record { offset: (record.offset % volume_bytes).min(volume_bytes - record.bytes), ..record }
}

fn cut(load: &Stream, bytes: u64) -> Stream {
    Stream { area_bytes: load.area_bytes.min(bytes - load.area_start), ..load.clone() }
}

fn described(streams: Vec<Stream>, seed: u64) -> Result<Workload, String> {
    Workload::described(&Spec { seed, streams }, 0).map_err(|error| error.to_string())
}

/// The requests of a [`Mixture`].
struct Mixed {
    warm: Option<Generator>,
    weights: Vec<(u64, usize)>,
    parts: Vec<Generator>,
    rng: Rng,
    updates: bool,
    /// Records that were read and are to be written.
    read: VecDeque<Record>,
}

impl Mixed {
    fn new(mixture: &Mixture, bytes: u64, seed: u64) -> Result<Mixed, String> {
        let streams: Vec<_> = mixture.parts.iter().map(|(_, stream)| cut(stream, bytes)).collect();
        let spec = Spec { seed, streams };
        spec.check().map_err(|error| error.to_string())?;
        let mut rng = Rng::new(seed);
        let parts =
            spec.streams.into_iter().zip(0..).map(|(stream, n)| Generator::new(stream, n, rng.fork())).collect();
        let warm = (mixture.warm_bytes > 0).then(|| {
            let warm = Stream {
                place: sim::load::Place::Sequential,
                area_bytes: mixture.warm_bytes,
                sizes: vec![(1, WARM_BYTES)],
                requests: mixture.warm_bytes / WARM_BYTES,
                ..Stream::default()
            };
            Generator::new(warm, 0, rng.fork())
        });
        let weights = mixture.parts.iter().map(|&(weight, _)| weight).zip(0..).collect();
        Ok(Mixed { warm, weights, parts, rng, updates: mixture.updates, read: VecDeque::new() })
    }
}

impl Source for Mixed {
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record> {
        if let Some(record) = self.warm.as_mut().and_then(|warm| warm.next(elapsed_ns)) {
            return Some(record);
        }
        if self.read.len() > UPDATE_LAG
            && let Some(record) = self.read.pop_front()
        {
            return Some(Record { op: Op::Write, ..record });
        }
        let part = self.rng.weighted(&self.weights);
        let record = self.parts[part].next(elapsed_ns)?;
        if self.updates {
            self.read.push_back(record);
        }
        Some(record)
    }
}

/// One mixture, and another one from a time on.
struct Changing {
    at_ns: Nanos,
    parts: [Mixed; 2],
}

impl Source for Changing {
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record> {
        self.parts[usize::from(elapsed_ns >= self.at_ns)].next(elapsed_ns)
    }
}

/// The requests of a [`Mixture`], each write at the head of a log, each read where its block was written last. All
/// requests have the same length, and offsets that are multiples of it. The log is not cleaned.
struct Logged {
    source: Mixed,
    free: Range<u64>,
    /// The newest place of each block that was written.
    newest: BTreeMap<u64, u64>,
}

impl Source for Logged {
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record> {
        let record = self.source.next(elapsed_ns)?;
        if record.op == Op::Write {
            self.newest.insert(record.offset, self.free.start);
            self.free.start += record.bytes;
            assert!(self.free.start <= self.free.end, "the log has no room for the whole run");
        }
        let offset = self.newest.get(&record.offset).copied().unwrap_or(record.offset);
        Some(Record { offset, ..record })
    }
}

#[cfg(test)]
mod tests {
    use sim::load::unroll;

    use super::*;

    const CLOSED: Pace = Pace::Closed { depth: 2, think_ns: 0 };

    fn records(load: &Load, bytes: u64, count: usize) -> Vec<Record> {
        unroll(load.workload(bytes, 7).unwrap(), 1000).take(count).collect()
    }

    #[test]
    fn a_mixture_is_warm_first_and_then_goes_by_chance_and_writes_what_it_read() {
        let hot = Stream { area_bytes: 1 << 20, ..Stream::default() };
        let cold = Stream { area_start: 1 << 20, area_bytes: u64::MAX, ..Stream::default() };
        let parts = vec![(3, hot), (1, cold)];
        let load = Load::Mixture(Mixture { parts, warm_bytes: 1 << 20, updates: true, pace: CLOSED });
        let records = records(&load, 64 << 20, 4004);
        let (warm, rest) = records.split_at(4);
        assert!(
            warm.iter().zip(0..).all(|(record, at)| (record.offset, record.bytes) == (at * WARM_BYTES, WARM_BYTES))
        );
        let reads: Vec<_> = rest.iter().filter(|record| record.op == Op::Read).map(|record| record.offset).collect();
        let writes: Vec<_> = rest.iter().filter(|record| record.op == Op::Write).map(|record| record.offset).collect();
        assert_eq!(writes, reads[..writes.len()]);
        assert_eq!(reads.len() - writes.len(), UPDATE_LAG);
        let hot = reads.iter().filter(|&&offset| offset < 1 << 20).count();
        assert!((1400..1640).contains(&hot) && rest.iter().all(|record| record.end() <= 64 << 20), "{hot}");
    }

    #[test]
    fn a_change_comes_at_its_time() {
        let place = |area_start| Stream { area_start, area_bytes: 1 << 20, ..Stream::default() };
        let at = |start| Mixture { parts: vec![(1, place(start))], warm_bytes: 0, updates: false, pace: CLOSED };
        let load = Load::Change(at(0), 5000, at(1 << 20));
        let records = records(&load, 64 << 20, 20);
        assert!(records.iter().all(|record| (record.offset < 1 << 20) == (record.time_ns < 5000)), "{records:?}");
    }

    #[test]
    fn a_log_has_the_writes_in_sequence_and_the_newest_blocks() {
        let part = Stream { read_ppm: 500_000, area_bytes: 1 << 20, ..Stream::default() };
        let mixture = Mixture { parts: vec![(1, part)], warm_bytes: 0, updates: false, pace: CLOSED };
        let plain = records(&Load::Mixture(mixture.clone()), 1 << 20, 1000);
        let logged = records(&Load::Logged(mixture, 1 << 20), 64 << 20, 1000);
        let (mut newest, mut head) = (BTreeMap::new(), 1 << 20);
        for (plain, logged) in plain.iter().zip(&logged) {
            if plain.op == Op::Write {
                newest.insert(plain.offset, head);
                head += plain.bytes;
            }
            assert_eq!(logged.op, plain.op);
            assert_eq!(logged.offset, newest.get(&plain.offset).copied().unwrap_or(plain.offset));
        }
        assert!(newest.len() > 100);
    }

    #[test]
    fn a_trace_stays_inside() {
        let record = |time_ns, offset| Record { time_ns, op: Op::Write, offset, bytes: 4096, stream: 0 };
        let trace = Arc::new(vec![record(5, 512), record(6, (9 << 20) + 512), record(10, (1 << 20) - 512)]);
        let load = Load::Trace(trace, CLOSED);
        let offsets: Vec<_> = records(&load, 1 << 20, 4).iter().map(|record| record.offset).collect();
        assert_eq!(offsets, [512, 512, (1 << 20) - 4096, 512], "and begins again");
        assert!(!load.is_steady() && !load.only_writes() && !load.is_open());
    }
}
