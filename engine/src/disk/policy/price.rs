//! Costs of requests on a device that serves many at a time: the part of a saturated device's time that each takes.
//!
//! ```text
//!   cost  = 1 / saturated rate of its kind and size       (the deepest queue that the profile has)
//!   alone = 1 / rate at depth 1                           response time if nothing else is in the device
//!   load  = cost / alone                                  the part of the device that one such request fills
//!   utilisation(load in the device)                       by the rates of 4 KiB at depths 1 to 32, extrapolated to 128
//! ```
//!
//! Costs between measured sizes are interpolated. Below the smallest size they are constant, above the largest one
//! proportional to the size.
//!
//! Source: the linear cost models of blk-iocost and mClock, with measured rates instead of those of a data sheet.
//! Downside: positions do not count (a device without heads has none), nor does work that the device does by itself.

use crate::disk::Op;
use crate::disk::profile::Direction::{self, Read, Write};
use crate::disk::profile::{Key, Profile, Quantile};
use crate::units::{BLOCK, Nanos, SECOND};

/// Load 1, in parts per million: the requests fill the device, and still take as long as alone.
pub(super) const FULL_PPM: u64 = 1_000_000;
/// Sizes that the profile measures, bytes, each with its deepest queue.
const SIZES: [(u32, u16); 3] = [(4 << 10, 32), (64 << 10, 32), (1 << 20, 8)];
/// Depths of small reads that the profile measures.
const DEPTHS: [u16; 6] = [1, 2, 4, 8, 16, 32];
/// Depths beyond, up to what the engine submits to a device: 32 requests do not fill a device that serves as many at a
/// time.
const DEEPER: [u16; 2] = [64, 128];
/// A device is saturated at this part of its best rate.
const SATURATED: f64 = 0.95;

/// Rates of small requests by depth. Beyond the measured depths, the response time grows with the requests in the
/// device by the same amount for each, as in any closed system near saturation: n / rate(n) = a n + b (balanced job
/// bounds, Zahorjan et al. 1982).
fn rates(profile: &Profile, direction: Direction) -> Option<[f64; DEPTHS.len() + DEEPER.len()]> {
    let rate = |depth: u16| profile.number(Key::Random(direction, SIZES[0].0, depth)).filter(|&rate| rate > 0.0);
    let mut rates = [0.0; DEPTHS.len() + DEEPER.len()];
    let mut best = 0.0;
    for (at, depth) in DEPTHS.into_iter().enumerate() {
        best = rate(depth)?.max(best);
        rates[at] = best;
    }
    let [.., before, deepest] = DEPTHS.map(f64::from);
    let [before_ns, deepest_ns] = [rates[DEPTHS.len() - 2], best].map(|rate| 1.0 / rate);
    let b = (before_ns - deepest_ns) / (1.0 / before - 1.0 / deepest);
    for (at, depth) in DEEPER.into_iter().enumerate() {
        let each_ns = deepest_ns - b * (1.0 / deepest - 1.0 / f64::from(depth));
        // A rate that grows more than linearly with the depth comes from errors of measurement; linear growth is the
        // limit.
        rates[DEPTHS.len() + at] = 1.0 / each_ns.max(deepest_ns * deepest / f64::from(depth));
    }
    Some(rates)
}
/// A size is as good as the largest one if it reaches this part of that one's bytes per second.
const AS_GOOD: f64 = 0.9;
/// Sizes to which large requests are split: the first one that is as good. None is so small that it costs noticeable
/// CPU time, none is larger than a piece.
const SPLIT_BYTES: [u64; 5] = [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];

/// Costs of reads, or of writes, by size.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Kind {
    cost_ns: [f64; 3],
    alone_ns: [f64; 3],
}

impl Kind {
    fn of(profile: &Profile, direction: Direction) -> Option<Kind> {
        let mut kind = Kind { cost_ns: [0.0; 3], alone_ns: [0.0; 3] };
        for (at, (bytes, deepest)) in SIZES.into_iter().enumerate() {
            let rate = |depth: u16| profile.number(Key::Random(direction, bytes, depth)).filter(|&rate| rate > 0.0);
            // Writes are measured at fewer depths: they fill a buffer at any depth.
            let best = if at == 0 { rates(profile, direction).map(|rates| rates[rates.len() - 1]) } else { None };
            kind.cost_ns[at] = SECOND as f64 / best.or_else(|| rate(deepest))?.max(rate(1).unwrap_or(0.0));
            // Large writes are not measured at depth 1: their time alone exceeds their cost by as much as that of the
            // next smaller size.
            let missing = || (at > 0).then(|| kind.cost_ns[at] + kind.alone_ns[at - 1] - kind.cost_ns[at - 1]);
            kind.alone_ns[at] = rate(1).map(|rate| SECOND as f64 / rate).or_else(missing)?.max(kind.cost_ns[at]);
        }
        Some(kind)
    }

    fn at(values: &[f64; 3], len: u64) -> f64 {
        let len = len as f64;
        let [small, middle, large] = SIZES.map(|(bytes, _)| f64::from(bytes));
        let between = |from: usize, low: f64, high: f64| {
            values[from] + (values[from + 1] - values[from]) * (len - low) / (high - low)
        };
        if len <= small {
            values[0]
        } else if len <= middle {
            between(0, small, middle)
        } else if len <= large {
            between(1, middle, large)
        } else {
            values[2] * len / large
        }
    }

    /// Whether requests of this size reach nearly the bytes per second of large ones.
    fn splits_well(&self, bytes: u64) -> bool {
        let per_byte = |bytes: u64| Kind::at(&self.cost_ns, bytes) / bytes as f64;
        per_byte(u64::from(SIZES[2].0)) >= AS_GOOD * per_byte(bytes)
    }
}

/// Costs of requests on a device with a known profile; by default, on a usual flash drive.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    read: Kind,
    write: Kind,
    /// Load, and the part of its best rate that the device reaches with it.
    utilisation: [(f64, f64); DEPTHS.len() + DEEPER.len()],
    /// Limits of a throttle, requests and bytes a second.
    throttle: [Option<f64>; 2],
    /// How much longer a small read takes right behind writes than alone: the difference of the 95th percentiles.
    behind_writes_ns: Option<f64>,
    /// How requests take their time on this device; `None` if it has no profile.
    model: Option<Model>,
}

/// How far the times of a profile hold for the requests of one tenant.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Model {
    /// Half a revolution; `None` if the device does not rotate.
    half_turn_ns: Option<f64>,
    /// The highest sequential read rate, bytes a second.
    stream_bytes_per_s: f64,
}

/// Standalone-equivalent time of a request, estimated from the profile, and by how much it may be off in each
/// direction.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Estimate {
    pub(super) standalone_ns: f64,
    pub(super) uncertain_ns: f64,
}

/// Sequential requests near the inner edge of a disk are slower than the fastest ones, by up to a half.
const STREAM_ERROR: f64 = 0.3;
/// Rates of a device without heads vary with what it does by itself, and with the mix of requests.
const RATE_ERROR: f64 = 0.2;

impl Default for Prices {
    /// 100,000 reads and 30,000 writes a second, 500 MB/s, 100 us: a usual SATA drive. Only ratios matter for shares,
    /// and the device's speed is measured in use.
    fn default() -> Prices {
        let read = Kind { cost_ns: [1e4, 1.3e5, 2.1e6], alone_ns: [1e5, 3e5, 2.5e6] };
        let write = Kind { cost_ns: [3e4, 1.5e5, 2.2e6], alone_ns: [5e4, 2e5, 2.5e6] };
        let utilisation =
            [(0.1, 0.1), (0.2, 0.2), (0.4, 0.38), (0.8, 0.6), (1.6, 0.8), (3.2, 0.95), (6.4, 0.99), (12.8, 1.0)];
        Prices { read, write, utilisation, throttle: [None; 2], behind_writes_ns: None, model: None }
    }
}

impl Prices {
    /// From a profile; `None` if it lacks necessary values. If writes were not measured, they cost the same as reads.
    pub fn of(profile: &Profile) -> Option<Prices> {
        let read = Kind::of(profile, Read)?;
        let write = Kind::of(profile, Write).unwrap_or(read);
        let (rates, mut depths) = (rates(profile, Read)?, DEPTHS.into_iter().chain(DEEPER));
        let utilisation = rates.map(|rate| {
            let depth = f64::from(depths.next().unwrap_or(1));
            (depth * read.cost_ns[0] / read.alone_ns[0], rate / rates[rates.len() - 1])
        });
        let throttle = [Key::ThrottleRequests, Key::ThrottleBytes].map(|key| profile.number(key));
        let most = |key: fn(Quantile) -> Key| profile.number(key(Quantile::P95));
        let behind_writes_ns = most(Key::ReadBehindWrites).zip(most(|q| Key::ServiceTime(Read, q)));
        let behind_writes_ns = behind_writes_ns.map(|(behind, alone)| behind - alone);
        let half_turn_ns = profile.number(Key::RotationPeriod).map(|turn| turn / 2.0);
        let stream = profile.stream_bytes_per_s();
        let model = stream.map(|rate| Model { half_turn_ns, stream_bytes_per_s: rate as f64 });
        Some(Prices { read, write, utilisation, throttle, behind_writes_ns, model })
    }

    fn kind(&self, op: Op) -> (&Kind, Option<u64>) {
        match op {
            Op::Read => (&self.read, None),
            Op::Write { .. } => (&self.write, None),
            // No data is transferred: the cost is that of a small write.
            Op::Flush | Op::Zero | Op::Punch => (&self.write, Some(BLOCK)),
        }
    }

    /// The time of a saturated device that a request takes.
    pub(super) fn cost_ns(&self, op: Op, len: u64) -> f64 {
        let (kind, small) = self.kind(op);
        Kind::at(&kind.cost_ns, small.unwrap_or(len))
    }

    /// Response time of a request if nothing else is in the device.
    pub(super) fn alone_ns(&self, op: Op, len: u64) -> f64 {
        let (kind, small) = self.kind(op);
        Kind::at(&kind.alone_ns, small.unwrap_or(len))
    }

    /// The part of the device that one such request fills, parts per million, at most the whole device.
    pub(super) fn load_ppm(&self, op: Op, len: u64) -> u64 {
        let load = self.cost_ns(op, len) / self.alone_ns(op, len);
        ((load * FULL_PPM as f64) as u64).clamp(1, FULL_PPM)
    }

    /// The part of its best rate that the device reaches with `count` requests in it, each of which fills `load_ppm`.
    pub(super) fn utilisation(&self, count: u64, load_ppm: u64) -> f64 {
        let [one, load] = [load_ppm, load_ppm * count].map(|ppm| ppm as f64 / FULL_PPM as f64);
        let (mut low, mut reached) = (0.0, 0.0);
        for (high, reaches) in self.utilisation {
            if load <= high {
                let between = reached + (reaches - reached) * (load - low) / (high - low);
                // One request alone reaches the part that it fills; the curve, which is that of small requests, may be
                // lower there.
                return between.max(one);
            }
            (low, reached) = (high, reaches);
        }
        1.0
    }

    /// The time of the device that each of `depth` random reads takes. A drive that rotates sorts the requests that it
    /// has. This saves the same part of the positioning for reads of any length. `None` if the device has no profile.
    pub(crate) fn read_ns(&self, len: u64, depth: u64) -> Option<f64> {
        if self.model?.half_turn_ns.is_none() {
            return Some(self.each_ns(Op::Read, len, depth));
        }
        let [small_ns, alone_ns] = [BLOCK, len].map(|len| self.alone_ns(Op::Read, len));
        Some(alone_ns - (small_ns - self.each_ns(Op::Read, BLOCK, depth)).max(0.0))
    }

    /// The time of the device that each of `depth` such requests takes, by the load that they are together.
    fn each_ns(&self, op: Op, len: u64, depth: u64) -> f64 {
        self.cost_ns(op, len) / self.utilisation(depth, self.load_ppm(op, len))
    }

    /// Whether they are those of a device with a profile.
    pub(super) fn have_profile(&self) -> bool {
        self.model.is_some()
    }

    /// Standalone-equivalent time of a request while its tenant has `outstanding` of them; `follows` if it begins where
    /// an earlier one ended. `None` if the device has no profile.
    ///
    /// The profile was measured with positions all over the disk. A volume is in one part of it, so seeks take between
    /// nothing and the measured time: half of it, give or take the other half.
    pub(super) fn estimate(&self, op: Op, len: u64, follows: bool, outstanding: u64) -> Option<Estimate> {
        let Model { half_turn_ns, stream_bytes_per_s } = self.model?;
        let of = |standalone_ns: f64, error: f64| Estimate { standalone_ns, uncertain_ns: error * standalone_ns };
        if follows && matches!(op, Op::Read | Op::Write { durable: false }) {
            return Some(of(len as f64 * SECOND as f64 / stream_bytes_per_s, STREAM_ERROR));
        }
        let alone_ns = self.each_ns(op, len, outstanding);
        let Some(half_turn_ns) = half_turn_ns else { return Some(of(alone_ns, RATE_ERROR)) };
        let seeks = (1.0 - half_turn_ns / self.alone_ns(Op::Read, BLOCK)).clamp(0.0, 1.0) * alone_ns;
        Some(Estimate { standalone_ns: alone_ns - seeks / 2.0, uncertain_ns: seeks / 2.0 })
    }

    /// The knee: the smallest load with which the device is saturated.
    pub(super) fn knee_ppm(&self) -> u64 {
        let (mut low, mut reached) = (0.0, 0.0);
        for (high, reaches) in self.utilisation {
            if reaches >= SATURATED {
                let load = low + (high - low) * (SATURATED - reached) / (reaches - reached);
                return ((load * FULL_PPM as f64) as u64).max(FULL_PPM);
            }
            (low, reached) = (high, reaches);
        }
        FULL_PPM
    }

    /// Largest size of requests of this kind while others wait for them: the smallest size that reaches nearly the
    /// bytes per second of large ones. Writes have the largest size unless a throttle makes others wait for them: a
    /// device takes them into its buffer, and programs that are scattered over more time would slow down more reads.
    pub(super) fn split_bytes(&self, op: Op) -> u64 {
        let [sizes @ .., largest] = SPLIT_BYTES;
        let (kind, _) = self.kind(op);
        let splits = op == Op::Read || self.is_throttled();
        sizes.into_iter().find(|&bytes| splits && kind.splits_well(bytes)).unwrap_or(largest)
    }

    /// Longest wait of a read for writes that are acknowledged already, if reads suffer from them: if the read then
    /// takes at least twice as long as alone. Less is within the noise of a probe, and phases that short have room for
    /// a few requests only. Behind a throttle so few requests pass that it does not matter.
    pub(super) fn behind_writes_ns(&self) -> Option<f64> {
        let suffers = |&ns: &f64| ns > self.read.alone_ns[0];
        self.behind_writes_ns.filter(suffers).filter(|_| !self.is_throttled())
    }

    /// Whether the device is throttled.
    pub(super) fn is_throttled(&self) -> bool {
        self.throttle.iter().any(Option::is_some)
    }

    /// How long the throttle takes to admit a request, by its limits of requests and of bytes; 0 without a limit.
    pub(super) fn throttle_ns(&self, len: u64) -> [Nanos; 2] {
        let of = |tokens: f64, rate: Option<f64>| rate.map_or(0, |rate| (tokens * SECOND as f64 / rate) as Nanos);
        [of(1.0, self.throttle[0]), of(len as f64, self.throttle[1])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::profile::Finding;

    /// A device that serves 8 requests at a time, and up to 1 GB/s.
    fn profile() -> Profile {
        let mut profile = Profile::default();
        let found: Vec<(Key, Finding)> = Key::all()
            .filter_map(|key| match key {
                Key::Random(_, bytes, depth) => {
                    let each_ns = 1e5 + f64::from(bytes);
                    let rate = (f64::from(depth) * 1e9 / each_ns).min(8.0 * 1e4).min(1e9 / f64::from(bytes));
                    Some((key, Finding::plain(Some(rate))))
                }
                Key::ThrottleBytes => Some((key, Finding::plain(Some(5e8)))),
                _ => None,
            })
            .collect();
        profile.take(&found, 1);
        profile
    }

    #[test]
    fn more_reads_at_once_take_less_time_each_as_long_as_the_device_gains_by_them() {
        assert_eq!(Prices::default().read_ns(4096, 1), None, "no profile");
        // A device without heads serves 8 at a time.
        let mut flash = profile();
        flash.take(&[(Key::Sequential(Read, 0), Finding::plain(Some(1e9)))], 1);
        let times = |profile: &Profile| {
            let prices = Prices::of(profile).unwrap();
            [1, 4, 8, 32].map(|depth| prices.read_ns(4096, depth).unwrap())
        };
        let [one, four, eight, all] = times(&flash);
        assert!(one > 3.5 * four && four > 1.5 * eight && eight < 1.2 * all, "{one} {four} {eight} {all}");
        // A drive saves as much of 1 MiB as of 4 KiB.
        flash.take(&[(Key::RotationPeriod, Finding::plain(Some(8e6)))], 1);
        let prices = Prices::of(&flash).unwrap();
        let saved = |len: u64| prices.read_ns(len, 1).unwrap() - prices.read_ns(len, 8).unwrap();
        assert!((saved(1 << 20) / saved(4096) - 1.0).abs() < 0.01, "{} {}", saved(1 << 20), saved(4096));
    }

    #[test]
    fn costs_are_those_of_the_profile_and_between_them() {
        let prices = Prices::of(&profile()).unwrap();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
        assert!(near(prices.cost_ns(Op::Read, 4096), 12_500.0), "{prices:?}");
        assert!(near(prices.cost_ns(Op::Read, 512), 12_500.0) && near(prices.cost_ns(Op::Flush, 0), 12_500.0));
        assert!(near(prices.cost_ns(Op::Write { durable: true }, 64 << 10), 65_536.0));
        assert!(near(prices.cost_ns(Op::Read, 2 << 20), 2.0 * 1_048_576.0));
        assert!(near(prices.alone_ns(Op::Read, 4096), 104_096.0));
        let middle = prices.cost_ns(Op::Read, 34 << 10);
        assert!(near(middle, (12_500.0 + 65_536.0) / 2.0), "{middle}");
    }

    #[test]
    fn the_knee_is_where_more_requests_bring_no_more() {
        let prices = Prices::of(&profile()).unwrap();
        let of_one = prices.load_ppm(Op::Read, 4096);
        let depth = prices.knee_ppm() as f64 / of_one as f64;
        assert!((7.0..16.5).contains(&depth), "{depth}");
        assert!((prices.utilisation(1, of_one) - 0.12).abs() < 0.01 && prices.utilisation(1000, of_one) == 1.0);
        assert_eq!((prices.split_bytes(Op::Read), prices.throttle_ns(5000)), (64 << 10, [0, 10_000]));
    }

    #[test]
    fn what_a_request_takes_standalone_is_estimated_within_bounds() {
        assert_eq!(Prices::default().estimate(Op::Read, 4096, false, 1), None, "no profile");
        let found = |turn: Option<f64>| {
            let mut profile = profile();
            let stream = (Key::Sequential(Read, 0), Finding::plain(Some(2e8)));
            profile.take(&[stream, (Key::RotationPeriod, Finding::plain(turn))], 1);
            let prices = Prices::of(&profile).unwrap();
            let bounds = |len, follows, outstanding| {
                let Estimate { standalone_ns, uncertain_ns } =
                    prices.estimate(Op::Read, len, follows, outstanding).unwrap();
                [standalone_ns - uncertain_ns, standalone_ns + uncertain_ns].map(|ns| (ns / 1e3).round())
            };
            [bounds(4096, false, 1), bounds(4096, false, 100), bounds(1 << 20, true, 1)]
        };
        // 104 us alone and 12.5 us at a large depth; 5.2 ms for a MiB.
        assert_eq!(found(None), [[83.0, 125.0], [10.0, 15.0], [3670.0, 6816.0]]);
        assert_eq!(found(Some(100e3)), [[50.0, 104.0], [6.0, 13.0], [3670.0, 6816.0]], "half a revolution is certain");
    }

    #[test]
    fn a_profile_that_lacks_something_is_not_enough() {
        assert_eq!(Prices::of(&Profile::default()), None);
        let mut profile = profile();
        profile.values.retain(|key, _| !matches!(key, Key::Random(Write, ..)));
        let prices = Prices::of(&profile).unwrap();
        assert_eq!(prices.read, prices.write);
    }
}
