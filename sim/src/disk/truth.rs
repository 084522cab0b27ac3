//! The true values of a simulated drive, found without the probe: taken from its description where possible, otherwise
//! measured on fresh drives, each value with a load of its own, thousands of requests long.
//!
//! Nothing of the probe's plan, statistics or random numbers is used, so an error there is not repeated here. Downside:
//! about one second of CPU time per drive; values that a user may want to know first are in the description anyway.

use engine::disk::Op;
use engine::disk::profile::{Direction, Key, Quantile};
use engine::units::{BLOCK, Nanos, SECOND};

use super::drive::Drive;
use super::drive::describe::{DescribeError, Description};
use crate::rng::Rng;

/// A true value, and how close a probe must come to it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Truth {
    /// The measured quantity.
    pub key: Key,
    /// The value; `None` if the drive does not have it.
    pub value: Option<f64>,
    /// The least and the greatest accepted value.
    pub accepted: (f64, f64),
}

impl Truth {
    fn new(key: Key, value: Option<f64>, within_ratio: f64) -> Truth {
        let number = value.unwrap_or(0.0);
        Truth { key, value, accepted: (number * (1.0 - within_ratio), number * (1.0 + within_ratio)) }
    }

    /// A quantile of sorted `values` is accepted if it is close in value or in rank: where a distribution has a gap,
    /// one percent more or less of the requests moves a quantile far.
    fn quantile(key: Key, q: Quantile, values: &[i64], within_ratio: f64) -> Truth {
        let value = |part: f64| at(values, part.clamp(0.0, 1.0)).max(0) as f64;
        let mut truth = Truth::new(key, Some(value(q.part())), within_ratio);
        let (least, most) = truth.accepted;
        let rank = RANK.min(1.0 - q.part());
        truth.accepted = (least.min(value(q.part() - rank)), most.max(value(q.part() + rank)));
        truth
    }

    /// Whether `found` is accepted.
    pub fn accepts(&self, found: Option<f64>) -> bool {
        match (self.value, found) {
            (None, None) => true,
            (Some(_), Some(found)) => (self.accepted.0..=self.accepted.1).contains(&found),
            _ => false,
        }
    }
}

/// Tolerance of rates and service times.
const RATE: f64 = 0.05;
/// Tolerance of the rotation period.
const ROTATION: f64 = 0.01;
/// Tolerance of switch cost, throttles, and quantiles in the tail, of which a probe sees only a few requests.
const TENTH: f64 = 0.1;
/// Tolerance of a quantile's rank, as a fraction of the requests: the random error of the median of 500.
const RANK: f64 = 0.04;
/// Switch costs below this are too small for a scheduler to save, nanoseconds.
const SWITCH_NOTHING_NS: f64 = 100_000.0;

/// Requests per measured rate of a drive with heads.
const REQUESTS_HDD: usize = 20_000;
/// The same for other drives: they are a hundred times as fast, and have buffers and bursts that must be used up first.
const REQUESTS_FAST: usize = 400_000;
/// Upper limit on bytes per rate.
const BYTES_MOST: u64 = 12 << 30;
/// Number of context switches measured.
const SWITCHES: usize = 1500;
const SWITCH_BYTES: u64 = 64 * 1024;
const STREAM_BYTES: u64 = 256 * 1024;
const STREAM_DEPTH: usize = 8;
/// The room of a stream at the end of a drive, bytes: the smallest drive that is probed.
const STREAM_ROOM: u64 = 64 * STREAM_BYTES;

/// A description from which fresh drives are made.
struct Maker<'a> {
    description: &'a Description,
    requests: usize,
    rng: Rng,
}

/// All values that a probe is to find for a drive.
pub fn truth(description: &Description, seed: u64) -> Result<Vec<Truth>, DescribeError> {
    let hdd = description.hdd()?;
    let throttle = description.throttle()?;
    description.build()?;
    let requests = if hdd.is_some() { REQUESTS_HDD } else { REQUESTS_FAST };
    let mut maker = Maker { description, requests, rng: Rng::new(seed) };
    let mut all = Vec::new();
    let mut add = |key, value, within_ratio| all.push(Truth::new(key, value, within_ratio));
    add(Key::NeedsSlices, Some(f64::from(u8::from(hdd.is_some()))), 0.0);
    add(Key::RotationPeriod, hdd.map(|spec| spec.mechanism.geometry.rotation.period_ns() as f64), ROTATION);
    let per_s = |bucket: Option<super::drive::throttled::BucketSpec>| bucket.map(|bucket| bucket.rate as f64);
    let requests_per_s = per_s(throttle.and_then(|spec| spec.requests));
    add(Key::ThrottleRequests, requests_per_s, TENTH);
    add(Key::ThrottleBytes, per_s(throttle.and_then(|spec| spec.bytes)), TENTH);
    add(Key::ThrottleStall, requests_per_s.map(|rate| SECOND as f64 / rate), TENTH);
    for key in Key::all() {
        match key {
            Key::Random(direction, bytes, depth) => {
                let bytes = u64::from(bytes);
                let rate = maker.random(direction, bytes, depth.into()).0;
                add(key, Some(rate), RATE);
            }
            Key::Sequential(direction, percent) => add(key, Some(maker.sequential(direction, percent)), RATE),
            _ => {}
        }
    }
    for direction in [Direction::Read, Direction::Write] {
        let times = maker.random(direction, BLOCK, 1).1;
        for (q, within) in [(Quantile::P50, RATE), (Quantile::P95, RATE), (Quantile::P99, TENTH)] {
            all.push(Truth::quantile(Key::ServiceTime(direction, q), q, &times, within));
        }
    }
    let costs = maker.switch_costs();
    all.extend(Quantile::ALL.map(|q| {
        let mut truth = Truth::quantile(Key::SwitchCost(q), q, &costs, TENTH);
        let value = truth.value.unwrap_or(0.0);
        let (least, most) = truth.accepted;
        truth.accepted = (least.min(value - SWITCH_NOTHING_NS), most.max(value + SWITCH_NOTHING_NS));
        truth
    }));
    Ok(all)
}

/// The quantile `part` of the sorted `values`.
fn at(values: &[i64], part: f64) -> i64 {
    values[((values.len() - 1) as f64 * part).round() as usize]
}

fn op(direction: Direction) -> Op {
    match direction {
        Direction::Read => Op::Read,
        Direction::Write => Op::Write { durable: false },
    }
}

impl Maker<'_> {
    fn fresh(&self) -> Box<dyn Drive> {
        self.description.build().expect("it was built before")
    }

    /// Requests per second and sorted response times, both of the second half of a long load.
    fn random(&mut self, direction: Direction, bytes: u64, depth: usize) -> (f64, Vec<i64>) {
        let mut drive = self.fresh();
        let blocks = (drive.bytes() - bytes) / BLOCK;
        let count = self.requests.min((BYTES_MOST / bytes) as usize);
        let rng = &mut self.rng;
        closed(&mut *drive, op(direction), bytes, depth, count, || rng.below(blocks) * BLOCK)
    }

    /// Bytes per second.
    fn sequential(&mut self, direction: Direction, percent: u8) -> f64 {
        let mut drive = self.fresh();
        let from = drive.bytes() / 100 * u64::from(percent);
        let mut next = from.min(drive.bytes().saturating_sub(STREAM_ROOM)) / BLOCK * BLOCK;
        // One or two seconds, as in the probe: further on, tracks are shorter.
        let count = if self.requests == REQUESTS_HDD { 800 } else { 8000 };
        let left = (drive.bytes() - next) / STREAM_BYTES;
        let count = count.min(left as usize - STREAM_DEPTH);
        let offset = || {
            next += STREAM_BYTES;
            next - STREAM_BYTES
        };
        closed(&mut *drive, op(direction), STREAM_BYTES, STREAM_DEPTH, count, offset).0 * STREAM_BYTES as f64
    }

    /// Switch costs, sorted. Each is a difference of two drives: the same request after another stream, and after its
    /// own.
    fn switch_costs(&mut self) -> Vec<i64> {
        let (mut switching, mut staying) = (self.fresh(), self.fresh());
        let room = switching.bytes() / SWITCH_BYTES - 4;
        let mut now = 0;
        let mut costs = Vec::with_capacity(SWITCHES);
        for _ in 0..SWITCHES {
            let (here, there) = (self.rng.below(room) * SWITCH_BYTES, self.rng.below(room) * SWITCH_BYTES);
            let measured = there + 2 * SWITCH_BYTES;
            // Its time must not depend on the requests before.
            now += self.rng.below(SECOND / 10);
            let (switched, one) = one_by_one(&mut *switching, now, [here, here + SWITCH_BYTES, measured]);
            let (stayed, other) = one_by_one(&mut *staying, now, [there, there + SWITCH_BYTES, measured]);
            costs.push(switched as i64 - stayed as i64);
            now = one.max(other);
        }
        costs.sort_unstable();
        costs
    }
}

/// Reads one request at a time. Returns the response time of the last one and its completion time.
fn one_by_one(drive: &mut dyn Drive, begin: Nanos, offsets: [u64; 3]) -> (Nanos, Nanos) {
    let (mut now, mut took) = (begin, 0);
    for (tag, offset) in offsets.into_iter().enumerate() {
        drive.submit(now, tag as u64, Op::Read, offset, SWITCH_BYTES);
        let at = next(drive).1;
        (took, now) = (at - now, at);
    }
    (took, now)
}

fn next(drive: &mut dyn Drive) -> (u64, Nanos) {
    loop {
        let at = drive.poll_timeout().expect("a request is in the drive");
        if let Some(done) = drive.poll(at) {
            return done;
        }
    }
}

/// Keeps `depth` requests outstanding until `count` are complete. Returns completions per second and sorted response
/// times, both of the second half.
fn closed(
    drive: &mut dyn Drive,
    op: Op,
    bytes: u64,
    depth: usize,
    count: usize,
    mut offset: impl FnMut() -> u64,
) -> (f64, Vec<i64>) {
    let mut began = vec![0; depth];
    (0..depth).for_each(|slot| drive.submit(0, slot as u64, op, offset(), bytes));
    let (mut half_at, mut now, mut times) = (0, 0, Vec::with_capacity(count));
    for number in 0..count {
        let (slot, at) = next(drive);
        if number == count / 2 {
            half_at = at;
        } else if number > count / 2 {
            times.push((at - began[slot as usize]) as i64);
        }
        now = at;
        began[slot as usize] = now;
        drive.submit(now, slot, op, offset(), bytes);
    }
    let rate = times.len() as f64 * SECOND as f64 / (now - half_at) as f64;
    times.sort_unstable();
    (rate, times)
}
