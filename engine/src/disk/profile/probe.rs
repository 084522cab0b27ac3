//! The probe: phases of requests in a closed loop, one phase after the other, with the device drained between phases.
//!
//! ```text
//!   loop:  while let Some(request) = probe.poll_request(now) { submit it }
//!          while let Some(phase) = probe.poll_phase() { findings.take(phase) }
//!          until probe.is_over(), then findings.values()
//!          wait for a completion, at most until probe.poll_timeout()
//!          probe.complete(now, request.slot)
//! ```
//!
//! The times are interpreted separately, in [`super::Findings`], because that sometimes takes a tenth of a second: a
//! driver with other work passes the phases to another thread.
//!
//! Time is an argument and never goes back. A phase ends when it has made its requests and reached its minimum length,
//! or when its part of the budget is used up; later phases may use the rest of its part. Slots are below
//! [`super::DEPTH_MAX`] and identify the buffer of a request. The driver judges the results of requests: after an error
//! it stops.
//!
//! Downside: times are taken when the driver calls, so a driver that wakes up late makes the device look slow. This
//! error is microseconds, and the driver reports how long it waited for a CPU.

use std::collections::VecDeque;

use super::plan::{
    BEHIND_WRITES, BUDGET_NS, DEPTH_MAX, Phase, ROTATION_PAUSE_NS, ROTATION_PLACES, SIZE_MAX, SWITCH_RUN, Work, plan,
};
use super::walk::{Space, Walk};
use crate::dice::Dice;
use crate::disk::Op;
use crate::units::Nanos;

/// Maximum number of completions in a phase: more add no information, and take memory.
const SAMPLES_MAX: usize = 1 << 19;

/// Options of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum time of the probe, nanoseconds.
    pub budget_ns: Nanos,
    /// Seed of the random positions.
    pub seed: u64,
    /// Whether the probe must not write.
    pub read_only: bool,
}

/// A request to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its number, free again when the request completes.
    pub slot: u32,
    /// Read or write; never durable.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The progress of a probe.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// The work of the present phase.
    pub doing: &'static str,
    /// Completed part, 0 to 1.
    pub done_ratio: f64,
}

/// A completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Its number in the phase; if places are read repeatedly, the number of the place.
    pub number: u64,
    /// When it was issued.
    pub issued: Nanos,
    /// When it completed.
    pub done: Nanos,
}

/// A completed phase: its work, and the times of all its requests.
#[derive(Clone, Debug)]
pub struct PhaseTimes {
    pub(super) work: Work,
    pub(super) began: Nanos,
    pub(super) samples: Vec<Sample>,
}

impl PhaseTimes {
    /// Whether the phase made no requests.
    pub fn is_rest(&self) -> bool {
        self.work == Work::Rest
    }
}

/// The phase in progress.
#[derive(Debug)]
struct Running {
    phase: Phase,
    began: Nanos,
    /// No request is issued from then on.
    ends_at: Nanos,
    least_until: Nanos,
    issued: u64,
    walk: Walk,
    /// Places that remain to be read in this round.
    round: Vec<u64>,
    /// Start of the present run of requests.
    place: u64,
    /// No request is issued before then.
    pause_until: Nanos,
    stopping: bool,
    samples: Vec<Sample>,
}

/// See the module.
#[derive(Debug)]
pub struct Probe {
    space: Space,
    dice: Dice,
    ends_at: Nanos,
    /// The budget, as a part of the full one.
    scale: f64,
    phases: VecDeque<Phase>,
    weight_all: f64,
    running: Option<Running>,
    in_flight: [Option<Sample>; DEPTH_MAX],
    free: Vec<u32>,
    /// Bytes read of each of two streams.
    streams: [u64; 2],
    over: VecDeque<PhaseTimes>,
}

/// The space is too small to probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a probe needs {least} bytes in pieces of at least {longest}, and there are {bytes}")]
pub struct TooSmall {
    bytes: u64,
    least: u64,
    longest: u64,
}

/// Minimum size of the space, bytes: less would fit into some cache.
const SPACE_LEAST: u64 = 16 * SIZE_MAX;

impl Probe {
    /// A probe of `space` that begins at `now`.
    pub fn new(space: Space, options: Options, now: Nanos) -> Result<Probe, TooSmall> {
        if space.bytes() < SPACE_LEAST || space.longest() < SIZE_MAX {
            return Err(TooSmall { bytes: space.bytes(), least: SPACE_LEAST, longest: SIZE_MAX });
        }
        let phases: VecDeque<Phase> = plan(options.read_only).into();
        Ok(Probe {
            space,
            dice: Dice::new(options.seed),
            ends_at: now + options.budget_ns,
            scale: (options.budget_ns as f64 / BUDGET_NS as f64).min(1.0),
            weight_all: phases.iter().map(|phase| phase.weight).sum(),
            phases,
            running: None,
            in_flight: [None; DEPTH_MAX],
            free: (0..DEPTH_MAX as u32).rev().collect(),
            streams: [0; 2],
            over: VecDeque::new(),
        })
    }

    /// The next request to submit now, if any.
    pub fn poll_request(&mut self, now: Nanos) -> Option<Request> {
        self.advance(now);
        let running = self.running.as_mut().filter(|running| !running.stopping && now >= running.pause_until)?;
        let work = running.phase.work;
        if work == Work::Rest || DEPTH_MAX - self.free.len() >= work.depth() {
            return None;
        }
        let reads_behind = work == Work::Behind && running.issued % (BEHIND_WRITES + 1) == BEHIND_WRITES;
        if work == Work::Behind && running.must_be_empty() && self.free.len() < DEPTH_MAX {
            return None;
        }
        let slot = self.free.pop()?;
        let number = running.next_number(&mut self.dice);
        let len = work.bytes();
        let place = running.next_place(number, self.space.bytes(), &mut self.streams, &mut self.dice);
        if work == Work::Rotation {
            // The pause before the next request begins when this one completes.
            running.pause_until = Nanos::MAX;
        }
        self.in_flight[slot as usize] = Some(Sample { number, issued: now, done: 0 });
        let op = if work.writes() && !reads_behind { Op::Write { durable: false } } else { Op::Read };
        Some(Request { slot, op, offset: self.space.offset(place, len), len })
    }

    /// The request in `slot` completed at `now`.
    pub fn complete(&mut self, now: Nanos, slot: u32) {
        let Some(sample) = self.in_flight[slot as usize].take() else {
            debug_assert!(false, "nothing is in flight in slot {slot}");
            return;
        };
        self.free.push(slot);
        if let Some(running) = &mut self.running {
            if !running.stopping {
                running.samples.push(Sample { done: now, ..sample });
            }
            if running.phase.work == Work::Rotation {
                running.pause_until = now + self.dice.below(ROTATION_PAUSE_NS);
            }
        }
        self.advance(now);
    }

    /// When the probe must be polled again if no request completes before.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let running = self.running.as_ref()?;
        match running.phase.work {
            Work::Rest => Some(running.least_until),
            _ if running.stopping => None,
            _ => Some(running.pause_until.min(running.ends_at)).filter(|_| running.pause_until > 0),
        }
    }

    /// Whether all phases are complete.
    pub fn is_over(&self) -> bool {
        self.running.is_none() && self.phases.is_empty()
    }

    /// The progress of the probe.
    pub fn progress(&self) -> Progress {
        let left: f64 = self.phases.iter().map(|phase| phase.weight).sum();
        let current = self.running.as_ref();
        let left = left + current.map_or(0.0, |running| running.phase.weight);
        Progress {
            doing: current.map_or("", |running| running.phase.work.doing()),
            done_ratio: 1.0 - left / self.weight_all.max(f64::MIN_POSITIVE),
        }
    }

    /// The next completed phase, in order.
    pub fn poll_phase(&mut self) -> Option<PhaseTimes> {
        self.over.pop_front()
    }

    /// Ends the present phase if it is complete, and begins the next.
    fn advance(&mut self, now: Nanos) {
        loop {
            let Some(running) = &mut self.running else {
                let Some(phase) = self.phases.pop_front() else { return };
                self.running = Some(self.begin(phase, now));
                continue;
            };
            running.stopping |= running.is_over(now);
            if !running.stopping || self.free.len() < DEPTH_MAX {
                return;
            }
            if let Some(over) = self.running.take() {
                self.over.push_back(PhaseTimes { work: over.phase.work, began: over.began, samples: over.samples });
            }
        }
    }

    fn begin(&self, phase: Phase, now: Nanos) -> Running {
        let left: f64 = self.phases.iter().map(|phase| phase.weight).sum::<f64>() + phase.weight;
        let time_ns = self.ends_at.saturating_sub(now) as f64 * phase.weight / left;
        let least_ns = (phase.least_ns as f64 * self.scale) as Nanos;
        Running {
            phase,
            began: now,
            ends_at: now + time_ns as Nanos,
            least_until: now + least_ns,
            issued: 0,
            walk: Walk::new(phase.work.cells()),
            round: Vec::new(),
            place: 0,
            pause_until: 0,
            stopping: false,
            samples: Vec::new(),
        }
    }
}

impl Running {
    fn is_over(&self, now: Nanos) -> bool {
        if self.phase.work == Work::Rest {
            return now >= self.least_until;
        }
        let enough = self.samples.len() as u64 >= self.phase.requests && now >= self.least_until;
        enough || now >= self.ends_at || self.samples.len() >= SAMPLES_MAX
    }

    /// Whether the device must be empty before the next request: a read behind writes, or the first write after it.
    fn must_be_empty(&self) -> bool {
        let at = self.issued % (BEHIND_WRITES + 1);
        at == 0 || at == BEHIND_WRITES
    }

    /// The number of the next request: how many there were before, or the place that it reads again.
    fn next_number(&mut self, dice: &mut Dice) -> u64 {
        self.issued += 1;
        if self.phase.work != Work::Rotation {
            return self.issued - 1;
        }
        if self.round.is_empty() {
            // Another order in each round: if rounds had a constant length, any period that divides it would look like
            // a rotation.
            self.round = dice.shuffled(ROTATION_PLACES);
        }
        self.round.pop().unwrap_or(0)
    }

    /// The place of request `number` of the phase, in a space of this many bytes.
    fn next_place(&mut self, number: u64, bytes: u64, streams: &mut [u64; 2], dice: &mut Dice) -> u64 {
        let work = self.phase.work;
        let len = work.bytes();
        match work {
            Work::Sequential(_, percent) => bytes / 100 * u64::from(percent) + number * len,
            Work::Switches => {
                let run = SWITCH_RUN * len;
                if number.is_multiple_of(SWITCH_RUN) {
                    self.place = self.walk.next(bytes - run, dice) / len * len;
                }
                self.place + number % SWITCH_RUN * len
            }
            Work::Streams(count) => {
                // Each stream reads its own half, and continues from phase to phase.
                let stream = (number % count) as usize;
                let half = bytes / 2 / len * len;
                let place = stream as u64 * half + (half / 8 / len * len + streams[stream]) % half;
                streams[stream] += len;
                place
            }
            Work::Rotation => bytes / ROTATION_PLACES * number + bytes / ROTATION_PLACES / 2,
            Work::Rest | Work::Random(..) | Work::Again | Work::Behind => self.walk.next(bytes - len, dice),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::disk::profile::{Finding, Findings, Key};
    use crate::units::{MILLISECOND, SECOND};

    const SIZE: u64 = 1 << 30;

    fn probe(budget_ns: Nanos, read_only: bool) -> Probe {
        Probe::new(Space::whole(SIZE, 4096), Options { budget_ns, seed: 1, read_only }, 0).unwrap()
    }

    /// Drives a probe on a device that takes `service_ns` for each request, any number at a time. Returns all requests,
    /// the end and the values.
    fn drive(mut probe: Probe, service_ns: Nanos) -> (Vec<Request>, Nanos, Vec<(Key, Finding)>) {
        let (mut now, mut all, mut findings) = (0, Vec::new(), Findings::default());
        let mut queue: VecDeque<(Nanos, u32)> = VecDeque::new();
        loop {
            while let Some(request) = probe.poll_request(now) {
                all.push(request);
                queue.push_back((now + service_ns, request.slot));
                assert!(queue.len() <= DEPTH_MAX);
            }
            while let Some(phase) = probe.poll_phase() {
                findings.take(phase);
            }
            if probe.is_over() {
                return (all, now, findings.values());
            }
            let done = queue.front().map(|&(at, _)| at);
            let next = done.into_iter().chain(probe.poll_timeout()).min().expect("it waits for something");
            assert!(next >= now, "it wants to be woken in the past");
            now = next;
            if let Some((_, slot)) = queue.pop_front_if(|&mut (at, _)| at <= now) {
                probe.complete(now, slot);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        /// For any device and budget, the probe ends in time and stays within the space.
        #[test]
        fn it_ends_in_time(budget_ms in 200u64..100_000, service_us in 50u64..300_000) {
            let (budget_ns, service_ns) = (budget_ms * MILLISECOND, service_us * 1000);
            let (all, end, _) = drive(probe(budget_ns, false), service_ns);
            // The probe waits for requests in flight at the end of a phase.
            prop_assert!(end <= budget_ns + 64 * service_ns + SECOND, "{} of {}", end, budget_ns);
            prop_assert!(all.iter().all(|r| r.offset + r.len <= SIZE && r.offset.is_multiple_of(4096)));
        }
    }

    #[test]
    fn a_device_that_is_only_read_is_not_written() {
        let (all, _, findings) = drive(probe(5 * SECOND, true), 100_000);
        assert!(all.iter().all(|request| request.op == Op::Read));
        assert!(findings.iter().all(|(key, _)| !key.to_string().contains("write")));
    }

    #[test]
    fn a_constant_device_is_measured() {
        let (_, _, findings) = drive(probe(BUDGET_NS, false), MILLISECOND);
        let number = |key: &str| findings.iter().find(|(k, _)| k.to_string() == key).unwrap().1.value;
        for (key, expected) in [
            ("service_read_p99_ns", 1e6),
            ("random_write_4096_bytes_depth_32_requests_per_s", 32_000.0),
            ("random_read_4096_bytes_depth_4_requests_per_s", 4_000.0),
            ("sequential_read_at_25_percent_bytes_per_s", 8_000.0 * 262_144.0),
        ] {
            let found = number(key).unwrap();
            assert!((found / expected - 1.0).abs() < 0.01, "{key}: {found}");
        }
        assert_eq!(["rotation_period_ns", "throttle_requests_per_s"].map(number), [None, None]);
        assert_eq!(["needs_slices", "switch_cost_p95_ns"].map(number), [Some(0.0), Some(0.0)]);
    }

    #[test]
    fn too_little_space_is_refused() {
        let options = Options { budget_ns: SECOND, seed: 1, read_only: false };
        assert!(Probe::new(Space::whole(1 << 20, 4096), options, 0).is_err());
        assert!(Probe::new(Space::new((0..100).map(|i| i << 20..(i << 20) + 65536), 4096), options, 0).is_err());
    }
}
