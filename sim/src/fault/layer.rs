//! Faults as a layer over a device: some requests fail, are delayed, hang or are torn.
//!
//! ```text
//!   add(fault), clear ──┐
//!   submit(now, tag, …) ─► rules, in the order in which they were added ─► poll(now): (tag, its outcome)
//!                                                                     └──► poll_timeout(): when to poll next
//! ```
//!
//! The contract is that of the drives: time is an argument and never goes back. The caller polls until nothing is
//! returned, after each call and whenever [`FaultLayer::poll_timeout`] is reached. A returned request begins at that
//! time: a delay passes before the device sees the request. A request meets the rules in their order. Delays add up,
//! and the first rule that decides the outcome (`error`, `torn`, `stuck`, `gone`) is the last one that it meets. Each
//! rule has its own random number generator, so rules do not influence each other, and the same seed, requests and
//! order give the same faults.
//!
//! Downside: a fault is decided when a request arrives. Requests in the device when it vanishes still complete.

use std::ops::Range;

use engine::disk::Op;
use engine::nbd::Errno;
use engine::units::Nanos;

use crate::rng::Rng;

/// Maximum number of rules per layer: each request meets all of them.
pub const FAULTS_MAX: usize = 64;

/// The effect of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The request fails and has no effect.
    Error(Errno),
    /// The request begins later.
    Delay {
        /// Minimum, nanoseconds.
        least_ns: Nanos,
        /// Maximum, nanoseconds.
        most_ns: Nanos,
    },
    /// The request hangs until the fault is cleared or over; then it completes normally.
    Stuck,
    /// A first part of the write takes effect, in whole blocks of the device, perhaps none, never all; then it fails.
    Torn,
    /// The device has vanished: every request fails and has no effect.
    Gone,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 5;
    /// Their names, by [`Kind::index`].
    pub const NAMES: [&str; Kind::COUNT] = ["error", "delay", "stuck", "torn", "gone"];

    /// The index of its name.
    pub fn index(self) -> usize {
        match self {
            Kind::Error(_) => 0,
            Kind::Delay { .. } => 1,
            Kind::Stuck => 2,
            Kind::Torn => 3,
            Kind::Gone => 4,
        }
    }
}

/// The operations that a fault affects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ops {
    /// Reads.
    pub read: bool,
    /// Writes.
    pub write: bool,
    /// Zeroing and punching.
    pub zero: bool,
    /// Flushes.
    pub flush: bool,
}

impl Ops {
    /// All operations.
    pub const ALL: Ops = Ops { read: true, write: true, zero: true, flush: true };

    fn has(self, op: Op) -> bool {
        match op {
            Op::Read => self.read,
            Op::Write { .. } => self.write,
            Op::Zero | Op::Punch => self.zero,
            Op::Flush => self.flush,
        }
    }
}

/// A fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Its effect.
    pub kind: Kind,
    /// Which operations it affects.
    pub ops: Ops,
    /// The probability that it affects a request, parts per million.
    pub rate_ppm: u64,
    /// Only requests that overlap these bytes of their volume; flushes overlap none.
    pub range: Option<Range<u64>>,
    /// Only requests of this volume.
    pub volume: Option<String>,
    /// Maximum number of affected requests.
    pub count: Option<u64>,
    /// Time from its addition to its start, nanoseconds.
    pub after_ns: Nanos,
    /// Its duration, nanoseconds; `None`: until it is cleared.
    pub for_ns: Option<Nanos>,
    /// The seed of its random number generator.
    pub seed: u64,
}

/// A request that arrives at the layer.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The operation.
    pub op: Op,
    /// The name of its volume.
    pub volume: &'a str,
    /// First byte in the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Unit of atomic writes of the device, bytes.
    pub block: u64,
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The device executes it.
    Pass,
    /// It fails.
    Fail(Errno),
    /// The device executes its first `bytes`, perhaps none, and then it fails.
    Torn {
        /// Bytes that take effect.
        bytes: u64,
    },
}

/// The state of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It has not started.
    Coming,
    /// It is active.
    Active,
    /// It has ended: its duration or its count is used up.
    Over,
}

/// A fault in a layer.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its number, never reused.
    pub id: u64,
    /// The fault.
    pub fault: Fault,
    /// Number of requests affected so far.
    pub hits: u64,
    starts_at: Nanos,
    ends_at: Option<Nanos>,
    rng: Rng,
}

impl Rule {
    /// Its state at `now`.
    pub fn phase(&self, now: Nanos) -> Phase {
        let used_up = self.fault.count.is_some_and(|count| self.hits >= count);
        match self.starts_at {
            _ if self.has_ended(now) || used_up => Phase::Over,
            starts_at if starts_at > now => Phase::Coming,
            _ => Phase::Active,
        }
    }

    fn has_ended(&self, now: Nanos) -> bool {
        self.ends_at.is_some_and(|end| end <= now)
    }

    fn is_about(&self, asked: &Asked<'_>) -> bool {
        let fault = &self.fault;
        let touches = |range: &Range<u64>| {
            asked.op != Op::Flush && asked.offset < range.end && range.start < asked.offset.saturating_add(asked.len)
        };
        let torn = !matches!(fault.kind, Kind::Torn) || matches!(asked.op, Op::Write { .. });
        torn && fault.ops.has(asked.op)
            && fault.volume.as_deref().is_none_or(|volume| volume == asked.volume)
            && fault.range.as_ref().is_none_or(touches)
    }
}

/// A request in the layer.
#[derive(Clone, Copy, Debug)]
struct Held {
    tag: u64,
    /// Held until then.
    until: Nanos,
    /// Held until this rule is cleared or has ended.
    stuck: Option<u64>,
    outcome: Outcome,
}

/// The layer: its rules, and the requests that it holds.
#[derive(Debug, Default)]
pub struct FaultLayer {
    rules: Vec<Rule>,
    /// In the order of arrival.
    held: Vec<Held>,
    last_id: u64,
    injected: [u64; Kind::COUNT],
}

impl FaultLayer {
    /// Adds a fault behind the present ones. Returns its number; `None` if there are [`FAULTS_MAX`].
    pub fn add(&mut self, now: Nanos, fault: Fault) -> Option<u64> {
        if self.rules.len() >= FAULTS_MAX {
            return None;
        }
        self.last_id += 1;
        let starts_at = now.saturating_add(fault.after_ns);
        let ends_at = fault.for_ns.map(|length| starts_at.saturating_add(length));
        let rng = Rng::new(fault.seed);
        self.rules.push(Rule { id: self.last_id, fault, hits: 0, starts_at, ends_at, rng });
        Some(self.last_id)
    }

    /// Removes one fault or all; returns how many. Requests that hang because of them continue.
    pub fn clear(&mut self, id: Option<u64>) -> usize {
        let before = self.rules.len();
        self.rules.retain(|rule| id.is_some_and(|id| id != rule.id));
        before - self.rules.len()
    }

    /// All faults.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Number of affected requests by [`Kind::index`], including cleared faults.
    pub fn injected(&self) -> [u64; Kind::COUNT] {
        self.injected
    }

    /// Number of hung requests, of one rule or of all.
    pub fn stuck(&self, id: Option<u64>) -> usize {
        self.held.iter().filter(|held| held.stuck.is_some_and(|by| id.is_none_or(|id| id == by))).count()
    }

    /// No faults and no held requests: requests need not pass through the layer.
    pub fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.held.is_empty()
    }

    /// Submits a request. Its tag is not reused before the request is returned.
    pub fn submit(&mut self, now: Nanos, tag: u64, asked: &Asked<'_>) {
        let mut held = Held { tag, until: now, stuck: None, outcome: Outcome::Pass };
        for rule in &mut self.rules {
            if rule.phase(now) != Phase::Active || !rule.is_about(asked) || !rule.rng.chance(rule.fault.rate_ppm) {
                continue;
            }
            rule.hits += 1;
            self.injected[rule.fault.kind.index()] += 1;
            match rule.fault.kind {
                Kind::Delay { least_ns, most_ns } => {
                    held.until = held.until.saturating_add(rule.rng.between(least_ns, most_ns));
                    continue;
                }
                Kind::Error(errno) => held.outcome = Outcome::Fail(errno),
                Kind::Gone => held.outcome = Outcome::Fail(Errno::Io),
                Kind::Torn => {
                    let bytes = rule.rng.below((asked.len / asked.block).max(1)) * asked.block;
                    held.outcome = Outcome::Torn { bytes };
                }
                Kind::Stuck => held.stuck = Some(rule.id),
            }
            break;
        }
        self.held.push(held);
    }

    /// When nothing holds a request any longer, as far as is known.
    fn free_at(&self, held: &Held) -> Option<Nanos> {
        let rule = held.stuck.and_then(|id| self.rules.iter().find(|rule| rule.id == id));
        match rule {
            Some(rule) => rule.ends_at.map(|end| end.max(held.until)),
            None => Some(held.until),
        }
    }

    /// The next request that is free by `now`, in the order of arrival, and its outcome.
    pub fn poll(&mut self, now: Nanos) -> Option<(u64, Outcome)> {
        let at = self.held.iter().position(|held| self.free_at(held).is_some_and(|free_at| free_at <= now))?;
        let held = self.held.remove(at);
        Some((held.tag, held.outcome))
    }

    /// When to poll next; `None`: not before another call.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.held.iter().filter_map(|held| self.free_at(held)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::units::SECOND;

    const WRITE: Op = Op::Write { durable: false };

    fn fault(kind: Kind) -> Fault {
        let (range, volume, count, for_ns) = (None, None, None, None);
        Fault { kind, ops: Ops::ALL, rate_ppm: 1_000_000, range, volume, count, after_ns: 0, for_ns, seed: 1 }
    }

    fn with(faults: Vec<Fault>) -> FaultLayer {
        let mut layer = FaultLayer::default();
        for fault in faults {
            layer.add(0, fault).unwrap();
        }
        layer
    }

    fn asked(op: Op, offset: u64, len: u64) -> Asked<'static> {
        Asked { op, volume: "db", offset, len, block: 512 }
    }

    fn fate(layer: &mut FaultLayer, now: Nanos, asked: &Asked<'_>) -> Option<Outcome> {
        layer.submit(now, 7, asked);
        layer.poll(now).map(|(tag, outcome)| {
            assert_eq!(tag, 7);
            outcome
        })
    }

    const EIO: Option<Outcome> = Some(Outcome::Fail(Errno::Io));
    const PASS: Option<Outcome> = Some(Outcome::Pass);

    #[test]
    fn a_fault_is_about_what_it_says() {
        let ops = Ops { read: true, ..Ops::default() };
        let mut layer = with(vec![Fault { ops, range: Some(4096..8192), ..fault(Kind::Error(Errno::Io)) }]);
        for (op, offset, len, fails) in [
            (Op::Read, 0, 4096, false),
            (Op::Read, 0, 4097, true),
            (Op::Read, 8191, 1, true),
            (Op::Read, 8192, 4096, false),
            (WRITE, 4096, 4096, false),
            (Op::Flush, 0, 0, false),
        ] {
            assert_eq!(fate(&mut layer, 0, &asked(op, offset, len)), if fails { EIO } else { PASS });
        }
        let mut layer = with(vec![Fault { volume: Some("db".into()), ..fault(Kind::Error(Errno::NoSpace)) }]);
        assert_eq!(fate(&mut layer, 0, &asked(Op::Flush, 0, 0)), Some(Outcome::Fail(Errno::NoSpace)));
        assert_eq!(fate(&mut layer, 0, &Asked { volume: "other", ..asked(Op::Read, 0, 512) }), PASS);
    }

    #[test]
    fn rates_are_kept_and_a_seed_repeats_itself() {
        let run = |seed| {
            let mut layer = with(vec![Fault { rate_ppm: 250_000, seed, ..fault(Kind::Error(Errno::Io)) }]);
            (0..4000).map(|i| fate(&mut layer, i, &asked(Op::Read, 0, 512)) == EIO).collect::<Vec<_>>()
        };
        let (first, again, other) = (run(5), run(5), run(6));
        assert_eq!(first, again);
        assert_ne!(first, other);
        let failed = first.iter().filter(|failed| **failed).count();
        assert!((900..1100).contains(&failed), "{failed}");
    }

    #[test]
    fn delays_add_up_and_the_first_fate_is_the_last() {
        let delay = fault(Kind::Delay { least_ns: 10, most_ns: 10 });
        let mut layer =
            with(vec![delay.clone(), delay.clone(), fault(Kind::Error(Errno::Io)), delay, fault(Kind::Stuck)]);
        assert_eq!(fate(&mut layer, 100, &asked(Op::Read, 0, 512)), None);
        assert_eq!(layer.poll_timeout(), Some(120));
        assert_eq!(layer.poll(119), None);
        assert_eq!(layer.poll(120), Some((7, Outcome::Fail(Errno::Io))));
        assert_eq!(layer.injected(), [1, 2, 0, 0, 0]);
    }

    #[test]
    fn what_is_stuck_goes_on_when_the_fault_is_cleared_or_over() {
        let mut layer = with(vec![fault(Kind::Stuck)]);
        assert_eq!(fate(&mut layer, 0, &asked(Op::Read, 0, 512)), None);
        assert_eq!((layer.poll_timeout(), layer.stuck(None), layer.stuck(Some(1))), (None, 1, 1));
        assert_eq!(layer.poll(u64::MAX), None);
        assert_eq!(layer.clear(Some(2)), 0);
        assert_eq!(layer.clear(Some(1)), 1);
        assert_eq!(layer.poll(5), Some((7, Outcome::Pass)));
        assert!(layer.is_idle());

        let mut layer = with(vec![Fault { for_ns: Some(SECOND), ..fault(Kind::Stuck) }]);
        assert_eq!(fate(&mut layer, 0, &asked(Op::Read, 0, 512)), None);
        assert_eq!(layer.poll_timeout(), Some(SECOND));
        assert_eq!(layer.poll(SECOND), Some((7, Outcome::Pass)));
    }

    #[test]
    fn a_count_of_stuck_requests_holds_those() {
        let mut layer = with(vec![Fault { count: Some(1), ..fault(Kind::Stuck) }]);
        assert_eq!(fate(&mut layer, 0, &asked(Op::Read, 0, 512)), None);
        layer.submit(0, 8, &asked(Op::Read, 0, 512));
        assert_eq!(layer.poll(0), Some((8, Outcome::Pass)), "the count is used up");
        assert_eq!((layer.rules()[0].phase(0), layer.stuck(None)), (Phase::Over, 1));
    }

    #[test]
    fn torn_writes_lose_their_end() {
        let mut layer = with(vec![fault(Kind::Torn)]);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let Some(Outcome::Torn { bytes }) = fate(&mut layer, 0, &asked(WRITE, 0, 2048)) else { panic!("not torn") };
            seen.insert(bytes);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 512, 1024, 1536]);
        assert_eq!(fate(&mut layer, 0, &asked(Op::Read, 0, 2048)), PASS);
        assert_eq!(fate(&mut layer, 0, &asked(Op::Zero, 0, 2048)), PASS);
    }

    #[test]
    fn a_device_goes_and_comes_back() {
        let gone = Fault { after_ns: 100, for_ns: Some(50), ..fault(Kind::Gone) };
        let mut layer = with(vec![gone]);
        for (now, phase, outcome) in
            [(99, Phase::Coming, PASS), (100, Phase::Active, EIO), (149, Phase::Active, EIO), (150, Phase::Over, PASS)]
        {
            assert_eq!(layer.rules()[0].phase(now), phase);
            assert_eq!(fate(&mut layer, now, &asked(Op::Flush, 0, 0)), outcome);
        }
    }

    #[test]
    fn there_is_an_end_to_faults() {
        let mut layer = with(vec![fault(Kind::Gone); FAULTS_MAX]);
        assert_eq!(layer.add(0, fault(Kind::Gone)), None);
        assert_eq!(layer.clear(None), FAULTS_MAX);
        assert_eq!(layer.add(0, fault(Kind::Gone)), Some(FAULTS_MAX as u64 + 1));
    }
}
