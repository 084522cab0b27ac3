//! Derives the values of a profile from the times of phases.

use std::collections::BTreeMap;

use super::plan::{ALONE, BEHIND_READS_LEAST, BEHIND_WRITES, ROTATION_PLACES, STREAM_BYTES, SWITCH_RUN, Work};
use super::probe::{PhaseTimes, Sample};
use super::statistics::{Rate, Throttle, median, quantile, rotation_period_ns, spread, steady_rate, throttle};
use super::{Direction, Finding, Key, Quantile};
use crate::units::{BLOCK, Nanos};

/// If two interleaved streams reach less than this part of one, they lose more than the usual insulation (R = 0.9)
/// permits.
pub(super) const EFFICIENT: f64 = 0.9;
/// A switch that takes less than this part of a small read costs nothing that insulation would have to make up for.
pub(super) const SWITCH_PART: f64 = 1.0 - EFFICIENT;
/// Two limits that differ by less than this ratio are the same limit, seen twice.
const SAME_LIMIT: f64 = 0.15;
/// A read that takes less than this part of the median comes from a cache.
const CACHED: f64 = 0.25;
/// A rotating drive takes half a revolution for a random read on average; the measured median may be slightly lower by
/// chance.
const LEAST_OF_REVOLUTION: f64 = 0.4;

/// The results so far.
#[derive(Default, Debug)]
pub struct Findings {
    values: BTreeMap<Key, Finding>,
    /// Rates of the same work at different times.
    repeated: Vec<f64>,
    /// Rates of one stream, and of two.
    streams: [Vec<f64>; 2],
    /// Throttles that small and large reads showed, by size.
    throttles: BTreeMap<u32, Throttle>,
}

impl Findings {
    /// Evaluates a completed phase.
    pub fn take(&mut self, phase: PhaseTimes) {
        let PhaseTimes { work, began, mut samples } = phase;
        // Samples out of order belong to completions that were reaped together.
        samples.sort_by_key(|sample| sample.done);
        let done: Vec<Nanos> = samples.iter().map(|sample| sample.done).collect();
        match work {
            Work::Rest => {}
            Work::Random(direction, bytes, depth) => self.random(direction, bytes, depth, began, &samples, &done),
            Work::Again => self.repeated.extend(rate(began, &done, 1).map(|rate| rate.per_s)),
            Work::Sequential(direction, percent) => {
                if let Some(rate) = rate(began, &done, work.depth()) {
                    self.put_rate(Key::Sequential(direction, percent), rate, f64::from(STREAM_BYTES));
                }
            }
            Work::Streams(count) => {
                let found = rate(began, &done, work.depth()).map(|rate| rate.per_s);
                self.streams[count as usize - 1].extend(found);
            }
            Work::Switches => self.switches(&mut samples),
            Work::Rotation => self.rotation(&samples),
            Work::Behind => self.behind_writes(&samples),
        }
    }

    fn put_rate(&mut self, key: Key, rate: Rate, factor: f64) {
        let finding = Finding { value: Some(rate.per_s * factor), error_ratio: Some(rate.error) };
        self.values.insert(key, finding);
    }

    fn random(
        &mut self,
        direction: Direction,
        bytes: u32,
        depth: u16,
        began: Nanos,
        samples: &[Sample],
        done: &[Nanos],
    ) {
        let Some(rate) = rate(began, done, depth.into()) else { return };
        self.put_rate(Key::Random(direction, bytes, depth), rate, 1.0);
        if (bytes, depth) == ALONE {
            self.service_times(direction, rate.steady_at, samples);
            if direction == Direction::Read {
                self.repeated.push(rate.per_s);
            }
        }
        if Work::Random(direction, bytes, depth).follows_rest() {
            self.throttles.extend(throttle(began, done).map(|found| (bytes, found)));
        }
    }

    fn service_times(&mut self, direction: Direction, steady_at: Nanos, samples: &[Sample]) {
        let steady = samples.iter().filter(|sample| sample.issued >= steady_at);
        let mut times: Vec<f64> = steady.map(|sample| (sample.done - sample.issued) as f64).collect();
        times.sort_unstable_by(f64::total_cmp);
        for q in Quantile::ALL {
            self.values.insert(Key::ServiceTime(direction, q), Finding::plain(quantile(&times, q.part())));
        }
    }

    /// The first request at a place minus the last one there, which is the same request with the heads in place.
    fn switches(&mut self, samples: &mut [Sample]) {
        samples.sort_by_key(|sample| sample.number);
        let time = |sample: &Sample| (sample.done - sample.issued) as f64;
        let runs = samples.chunks_exact(SWITCH_RUN as usize);
        let mut costs: Vec<f64> = runs.map(|run| time(&run[0]) - time(&run[run.len() - 1])).collect();
        costs.sort_unstable_by(f64::total_cmp);
        for q in Quantile::ALL {
            // Where switching costs nothing, chance makes half of the differences negative.
            let cost = quantile(&costs, q.part()).map(|cost| cost.max(0.0));
            self.values.insert(Key::SwitchCost(q), Finding::plain(cost));
        }
    }

    fn behind_writes(&mut self, samples: &[Sample]) {
        let reads = samples.iter().filter(|sample| sample.number % (BEHIND_WRITES + 1) == BEHIND_WRITES);
        let mut times: Vec<f64> = reads.map(|sample| (sample.done - sample.issued) as f64).collect();
        if times.len() < BEHIND_READS_LEAST {
            return;
        }
        times.sort_unstable_by(f64::total_cmp);
        for q in Quantile::ALL {
            self.values.insert(Key::ReadBehindWrites(q), Finding::plain(quantile(&times, q.part())));
        }
    }

    fn rotation(&mut self, samples: &[Sample]) {
        let times = samples.iter().map(|sample| (sample.done - sample.issued) as f64).collect();
        let typical = median(times).unwrap_or(0.0);
        let mut last = [None; ROTATION_PLACES as usize];
        let mut distances = Vec::new();
        for sample in samples.iter().filter(|s| (s.done - s.issued) as f64 >= CACHED * typical) {
            let place = sample.number as usize;
            distances.extend(last[place].map(|before| sample.done - before));
            last[place] = Some(sample.done);
        }
        let period = rotation_period_ns(&distances).filter(|period| typical >= LEAST_OF_REVOLUTION * period);
        self.values.insert(Key::RotationPeriod, Finding::plain(period));
    }

    /// All values, including those that follow from several phases.
    pub fn values(&self) -> Vec<(Key, Finding)> {
        let mut values = self.values.clone();
        self.add_throttles(&mut values);
        self.add_streams(&mut values);
        if let Some(spread) = spread(&self.repeated) {
            values.insert(Key::RepeatedSpread, Finding::plain(Some(spread)));
        }
        values.into_iter().collect()
    }

    fn add_throttles(&self, values: &mut BTreeMap<Key, Finding>) {
        const LARGE: u32 = super::plan::SIZE_MAX as u32;
        let small_was_seen = values.contains_key(&Key::Random(Direction::Read, BLOCK as u32, 32));
        if !small_was_seen {
            return;
        }
        let (small, large) = (self.throttles.get(&(BLOCK as u32)), self.throttles.get(&LARGE));
        let bytes = |throttle: Option<&Throttle>, len: u32| throttle.map(|throttle| throttle.per_s * f64::from(len));
        let (small_bytes, large_bytes) = (bytes(small, BLOCK as u32), bytes(large, LARGE));
        let near = |a: Option<f64>, b: Option<f64>| a.zip(b).is_some_and(|(a, b)| (a / b - 1.0).abs() < SAME_LIMIT);
        // A limit in bytes also shows in small requests, and one in requests also in large ones.
        let requests = small.filter(|_| !near(small_bytes, large_bytes)).map(|small| small.per_s);
        let large_bytes = large_bytes.filter(|_| !near(requests, large.map(|large| large.per_s)));
        values.insert(Key::ThrottleRequests, Finding::plain(requests));
        values.insert(Key::ThrottleBytes, Finding::plain(large_bytes));
        let stall = small.or(large).map(|throttle| throttle.stall_ns);
        values.insert(Key::ThrottleStall, Finding::plain(stall));
    }

    fn add_streams(&self, values: &mut BTreeMap<Key, Finding>) {
        let [one, two] = &self.streams;
        let ratios: Vec<f64> = one.iter().zip(two).map(|(one, two)| two / one).collect();
        let (Some(efficiency), Some(spread)) = (median(ratios.clone()), spread(&ratios)) else { return };
        let finding = Finding { value: Some(efficiency), error_ratio: Some(spread / 2.0) };
        values.insert(Key::InterleavedEfficiency, finding);
        let number = |key| values.get(&key).and_then(|finding: &Finding| finding.value);
        let switch_ns = number(Key::SwitchCost(Quantile::P50));
        let service_ns = number(Key::ServiceTime(Direction::Read, Quantile::P50));
        let loses = efficiency * (1.0 + spread / 2.0) < EFFICIENT;
        let needs_slices = loses && switching_costs(switch_ns, service_ns);
        values.insert(Key::NeedsSlices, Finding::plain(Some(f64::from(u8::from(needs_slices)))));
    }
}

/// Whether a switch takes a relevant part of a request's time. If it does not, another user of the device disturbed the
/// probe, and the two streams lost by that. A switch that was not measured may take much.
fn switching_costs(switch_ns: Option<f64>, service_ns: Option<f64>) -> bool {
    switch_ns.zip(service_ns).is_none_or(|(switch, service)| switch > SWITCH_PART * service)
}

/// The rate of a phase. A deep queue is served the easy requests first: as many completions as the depth are not
/// counted, if there are enough.
fn rate(began: Nanos, done: &[Nanos], depth: usize) -> Option<Rate> {
    let skip = if depth > 1 && done.len() > 4 * depth { depth } else { 0 };
    let began = if skip > 0 { done[skip] } else { began };
    steady_rate(began, &done[skip..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether slices are needed, given the rates of one stream and of two, and the medians of a switch and a small
    /// read.
    fn needs_slices(streams: [[f64; 3]; 2], switch_ns: f64, service_ns: f64) -> bool {
        let mut findings = Findings { streams: streams.map(Vec::from), ..Findings::default() };
        findings.values.insert(Key::SwitchCost(Quantile::P50), Finding::plain(Some(switch_ns)));
        findings.values.insert(Key::ServiceTime(Direction::Read, Quantile::P50), Finding::plain(Some(service_ns)));
        let found = findings.values().into_iter().find(|(key, _)| *key == Key::NeedsSlices);
        found.and_then(|(_, finding)| finding.value) == Some(1.0)
    }

    #[test]
    fn a_disturbed_probe_does_not_take_a_device_for_one_with_heads() {
        let (whole, half) = ([100.0; 3], [40.0, 44.0, 48.0]);
        assert!(needs_slices([whole, half], 8e6, 6e6), "heads");
        assert!(!needs_slices([whole, half], 1_700.0, 72_000.0), "nothing that turning costs explains the loss");
        assert!(!needs_slices([whole, [95.0, 99.0, 97.0]], 1_700.0, 72_000.0));
    }
}
