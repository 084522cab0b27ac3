//! The state machine of a load: it says which request is to be made when. It has no clock; time is an argument.
//!
//! ```text
//!   loop {
//!       while let Some(request) = workload.next(now) { make it }
//!       sleep until workload.poll_timeout(), or a completion
//!       workload.completed(now, id)
//!   }
//! ```
//!
//! An open request carries its intended time. Latency counts from there, so it includes the time that the request
//! waited because the server or the driver was late. Without that, a stalled server would look fast ("coordinated
//! omission", G. Tene, "How NOT to Measure Latency", 2013).
//!
//! Downside of the bound on outstanding requests of an open lane: beyond it arrivals wait here. They are late, and
//! their latency includes that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use engine::units::Nanos;

use super::spec::{Bursts, OUTSTANDING_MAX, Pace, Spec, SpecError};
use super::{Generator, Op, Record, Source};
use crate::rng::{MILLION, Rng};

/// A request to be made now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its number, for [`Workload::completed`].
    pub id: u64,
    /// Its intended time: latency counts from here.
    pub intended_ns: Nanos,
    /// The operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub bytes: u64,
    /// As in [`Record`].
    pub stream: u32,
}

/// A source of records with a pace.
pub struct Lane {
    source: Box<dyn Source>,
    pace: Pace,
    bursts: Option<Bursts>,
    start_ns: Nanos,
    stop_ns: Nanos,
    /// The next record of an open lane.
    ahead: Option<Record>,
    /// The time of an open lane's first record: the others are relative to it.
    base_ns: Option<Nanos>,
    outstanding: u32,
    /// When the think times of closed slots end.
    thinking: BinaryHeap<Reverse<Nanos>>,
    ended: bool,
}

impl Lane {
    /// Records of a trace. At an open pace the first one is at the load's beginning.
    pub fn of_trace(source: impl Source + 'static, pace: Pace) -> Lane {
        Lane::new(Box::new(source), pace, None)
    }

    /// The same with pauses, at a closed pace.
    pub fn with_bursts(self, bursts: Option<Bursts>) -> Lane {
        Lane { bursts, ..self }
    }

    /// The same, beginning so much later than the load, at a closed pace.
    pub fn starting_at(self, start_ns: Nanos) -> Lane {
        Lane { start_ns, ..self }
    }

    /// The same, ending so much later than the load begins, at a closed pace.
    pub fn ending_at(self, stop_ns: Nanos) -> Lane {
        Lane { stop_ns, ..self }
    }

    fn new(source: Box<dyn Source>, pace: Pace, base_ns: Option<Nanos>) -> Lane {
        let mut lane = Lane {
            source,
            pace,
            bursts: None,
            start_ns: 0,
            stop_ns: Nanos::MAX,
            ahead: None,
            base_ns,
            outstanding: 0,
            thinking: BinaryHeap::new(),
            ended: false,
        };
        lane.look_ahead();
        lane
    }

    /// An open lane reads its next record in advance, so that its time is known.
    fn look_ahead(&mut self) {
        if let Pace::Open { .. } = self.pace {
            self.ahead = self.source.next(0);
            self.ended = self.ahead.is_none();
            if let (None, Some(first)) = (self.base_ns, self.ahead) {
                self.base_ns = Some(first.time_ns);
            }
        }
    }

    /// When it may make its next request if none completes before, relative to the load's beginning.
    fn ready_ns(&self) -> Option<Nanos> {
        if self.ended {
            return None;
        }
        match self.pace {
            Pace::Open { .. } if self.outstanding >= OUTSTANDING_MAX => None,
            Pace::Open { speed_ppm, .. } => {
                let since = self.ahead?.time_ns.saturating_sub(self.base_ns?);
                Some((u128::from(since) * u128::from(MILLION) / u128::from(speed_ppm)).min(u128::from(u64::MAX)) as u64)
            }
            Pace::Closed { depth, .. } => {
                let thinking = self.thinking.len() as u32;
                let free_ns = if self.outstanding + thinking < depth { 0 } else { self.thinking.peek()?.0 };
                let from_ns = free_ns.max(self.start_ns) - self.start_ns;
                let gated_ns = self.bursts.map_or(from_ns, |bursts| bursts.gate(from_ns));
                Some(gated_ns.saturating_add(self.start_ns))
            }
        }
    }

    /// The next time, seen from `elapsed_ns`, at which it may make requests: for a closed lane a burst may have ended.
    fn ready_from(&self, elapsed_ns: Nanos) -> Option<Nanos> {
        let ready_ns = self.ready_ns()?;
        match (self.pace, self.bursts) {
            (Pace::Closed { .. }, Some(bursts)) if ready_ns < elapsed_ns => {
                Some(bursts.gate(elapsed_ns - self.start_ns).saturating_add(self.start_ns))
            }
            _ => Some(ready_ns),
        }
    }

    /// Takes its next record if it is ready: (record, intended time).
    fn take(&mut self, elapsed_ns: Nanos) -> Option<(Record, Nanos)> {
        let ready_ns = self.ready_from(elapsed_ns).filter(|&at| at <= elapsed_ns)?;
        let (record, intended_ns) = match self.pace {
            Pace::Open { .. } => (self.ahead.take(), ready_ns),
            Pace::Closed { .. } if elapsed_ns >= self.stop_ns => (None, elapsed_ns),
            Pace::Closed { .. } => (self.source.next(elapsed_ns), elapsed_ns),
        };
        let Some(record) = record else {
            self.ended = true;
            return None;
        };
        if let Pace::Closed { depth, .. } = self.pace
            && self.outstanding + self.thinking.len() as u32 >= depth
        {
            self.thinking.pop();
        }
        self.outstanding += 1;
        self.look_ahead();
        Some((record, intended_ns))
    }

    fn completed(&mut self, elapsed_ns: Nanos) {
        self.outstanding -= 1;
        if let Pace::Closed { think_ns, .. } = self.pace
            && think_ns > 0
        {
            self.thinking.push(Reverse(elapsed_ns.saturating_add(think_ns)));
        }
    }
}

/// Several concurrent lanes.
pub struct Workload {
    lanes: Vec<Lane>,
    /// The time of the load's beginning.
    origin: Nanos,
    /// The latest time that it was given.
    elapsed_ns: Nanos,
    /// The lane that is asked first next time, so that no lane starves another.
    turn: usize,
    next_id: u64,
    /// The lanes of outstanding requests.
    outstanding: BTreeMap<u64, usize>,
    requests_left: u64,
    stop_ns: Nanos,
}

impl Workload {
    /// Lanes that begin at `origin`.
    pub fn new(lanes: Vec<Lane>, origin: Nanos) -> Workload {
        Workload {
            lanes,
            origin,
            elapsed_ns: 0,
            turn: 0,
            next_id: 0,
            outstanding: BTreeMap::new(),
            requests_left: u64::MAX,
            stop_ns: Nanos::MAX,
        }
    }

    /// The load of a description, beginning at `origin`.
    pub fn described(spec: &Spec, origin: Nanos) -> Result<Workload, SpecError> {
        spec.check()?;
        let mut rng = Rng::new(spec.seed);
        let lanes = spec.streams.iter().zip(0..).map(|(stream, number)| {
            let generator = Generator::new(stream.clone(), number, rng.fork());
            let mut lane = Lane::new(Box::new(generator), stream.pace, Some(0));
            // The records of open streams include these in their times.
            (lane.start_ns, lane.stop_ns, lane.bursts) = (stream.start_ns, stream.stop_ns, stream.bursts);
            lane
        });
        Ok(Workload::new(lanes.collect(), origin))
    }

    /// Ends after `requests` requests or `duration_ns` nanoseconds.
    pub fn limited(self, requests: u64, duration_ns: Nanos) -> Workload {
        Workload { requests_left: requests, stop_ns: duration_ns, ..self }
    }

    /// The same, beginning at `origin`.
    pub fn beginning_at(self, origin: Nanos) -> Workload {
        Workload { origin, ..self }
    }

    /// A request to be made now, if any. Call it until it returns `None`.
    pub fn next(&mut self, now: Nanos) -> Option<Request> {
        self.elapsed_ns = now.saturating_sub(self.origin);
        if self.is_over() {
            return None;
        }
        for i in 0..self.lanes.len() {
            let at = (self.turn + i) % self.lanes.len();
            let Some((record, intended_ns)) = self.lanes[at].take(self.elapsed_ns) else { continue };
            self.turn = at + 1;
            self.requests_left -= 1;
            let id = self.next_id;
            self.next_id += 1;
            self.outstanding.insert(id, at);
            let Record { op, offset, bytes, stream, .. } = record;
            return Some(Request { id, intended_ns: self.origin + intended_ns, op, offset, bytes, stream });
        }
        None
    }

    /// Request `id` was answered. Panics if it is not outstanding: an error of the driver.
    pub fn completed(&mut self, now: Nanos, id: u64) {
        self.elapsed_ns = now.saturating_sub(self.origin);
        let lane = self.outstanding.remove(&id).expect("a request that was made and not completed");
        self.lanes[lane].completed(self.elapsed_ns);
    }

    /// When `next` has a request if none completes before, or when the load ends. In the past if `next` has one now.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if self.is_over() {
            return None;
        }
        let ready = self.lanes.iter().filter_map(|lane| lane.ready_from(self.elapsed_ns)).min()?;
        Some(self.origin.saturating_add(ready.min(self.stop_ns)))
    }

    /// Number of outstanding requests.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether no more requests will come and all are answered.
    pub fn is_done(&self) -> bool {
        self.outstanding.is_empty() && (self.is_over() || self.lanes.iter().all(|lane| lane.ended))
    }

    fn is_over(&self) -> bool {
        self.requests_left == 0 || self.elapsed_ns >= self.stop_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::spec::Stream;

    fn record(time_ns: Nanos) -> Record {
        Record { time_ns, op: Op::Read, offset: time_ns * 4096, bytes: 4096, stream: 0 }
    }

    fn trace(times: &'static [Nanos], pace: Pace) -> Workload {
        Workload::new(vec![Lane::of_trace(times.iter().map(|&at| record(at)), pace)], 1000)
    }

    #[test]
    fn open_requests_come_at_their_times_whatever_is_unanswered() {
        let mut workload = trace(&[50, 60, 80], Pace::as_recorded(MILLION / 2));
        assert_eq!(workload.next(1000).map(|request| request.intended_ns), Some(1000));
        assert_eq!((workload.next(1000), workload.poll_timeout()), (None, Some(1020)));
        assert_eq!(workload.next(1100).map(|request| request.intended_ns), Some(1020), "late, and says so");
        assert_eq!(workload.next(1100).map(|request| request.intended_ns), Some(1060));
        assert_eq!((workload.outstanding(), workload.poll_timeout(), workload.is_done()), (3, None, false));
        (0..3).for_each(|id| workload.completed(1200, id));
        assert!(workload.is_done());
    }

    #[test]
    fn times_that_go_back_are_due_at_once() {
        let mut workload = trace(&[100, 40, 110], Pace::as_recorded(MILLION));
        assert!(workload.next(1000).is_some() && workload.next(1000).is_some());
        assert_eq!(workload.poll_timeout(), Some(1010));
    }

    #[test]
    fn closed_requests_wait_for_answers_and_thought() {
        let mut workload = trace(&[0, 1_000_000, 2, 3], Pace::Closed { depth: 2, think_ns: 10 });
        assert!(workload.next(1000).is_some() && workload.next(1000).is_some() && workload.next(1000).is_none());
        assert_eq!(workload.poll_timeout(), None, "only an answer helps");
        workload.completed(1005, 1);
        assert_eq!((workload.next(1014), workload.poll_timeout()), (None, Some(1015)));
        assert_eq!(workload.next(1015).map(|request| (request.id, request.intended_ns)), Some((2, 1015)));
        workload.completed(1020, 0);
        workload.completed(1020, 2);
        assert!(workload.next(1030).is_some());
        assert_eq!(workload.next(1030), None);
        workload.completed(1040, 3);
        assert_eq!((workload.next(1050), workload.is_done()), (None, true));
    }

    #[test]
    fn closed_streams_pause_between_bursts() {
        let bursts = Some(Bursts { on_ns: 10, off_ns: 90 });
        let stream = Stream { bursts, start_ns: 5, stop_ns: 300, ..Stream::default() };
        let mut workload = Workload::described(&Spec { seed: 1, streams: vec![stream] }, 0).unwrap();
        let (mut now, mut times) = (0, vec![]);
        while !workload.is_done() {
            match workload.next(now) {
                Some(request) => {
                    times.push(now);
                    now += 4;
                    workload.completed(now, request.id);
                }
                None => now = workload.poll_timeout().map_or(now, |at| at.max(now)),
            }
        }
        assert_eq!(times, [5, 9, 13, 105, 109, 113, 205, 209, 213]);
    }

    #[test]
    fn lanes_take_turns() {
        let streams = vec![Stream { pace: Pace::Closed { depth: 2, think_ns: 0 }, ..Stream::default() }; 3];
        let mut workload = Workload::described(&Spec { seed: 1, streams }, 0).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| workload.next(0)).map(|request| request.stream).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_limit_ends_it() {
        let spec = Spec { seed: 1, streams: vec![Stream::default()] };
        let mut workload = Workload::described(&spec, 0).unwrap().limited(2, Nanos::MAX);
        for id in 0..2 {
            assert!(workload.next(id).is_some() && !workload.is_done());
            workload.completed(id, id);
        }
        assert_eq!((workload.next(2), workload.poll_timeout(), workload.is_done()), (None, None, true));
        let mut workload = Workload::described(&spec, 0).unwrap().limited(u64::MAX, 10);
        assert!(workload.next(9).is_some());
        workload.completed(10, 0);
        assert!(workload.next(10).is_none() && workload.is_done());
    }
}
