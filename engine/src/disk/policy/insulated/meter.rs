//! What a tenant's slices tell of it: how long its requests take when it has the disk to itself, and what it loses at a
//! slice's ends.
//!
//! ```text
//!   |switch|          steady           |  drain  |      useful := cost of all its requests x steady time / steady cost
//!   begin  ▲first batch is done        ▲last     ▲end   loss   := (end - begin) - useful
//!          requests come back as fast  request
//!          as they would alone         issued
//! ```
//!
//! Time in which it thinks, the disk being held for it, is part of `steady`: alone it would think as well.
//!
//! Source: Argon (Wachs et al., FAST 2007), section 3.4, which derives the loss from an average seek; here it is measured,
//! since deep queues lose far more in the drain than in the seek.
//! Downside: in the steady part a drive picks the nearest requests and leaves the far ones to the drain, so that `useful` is
//! a little too small and slices a little too long.

use crate::disk::policy::BYTE_NS;
use crate::units::Nanos;

/// What a new sample weighs: a dozen slices, some seconds, until the past is forgotten.
const WEIGHT: f64 = 1.0 / 8.0;

/// An exponentially weighted mean that starts with its first sample.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Mean(Option<f64>);

impl Mean {
    pub(super) fn add(&mut self, sample: f64) {
        self.0 = Some(self.0.map_or(sample, |mean| mean + WEIGHT * (sample - mean)));
    }

    pub(super) fn get(self) -> Option<f64> {
        self.0
    }
}

/// A part of a slice: time, and the cost of the requests that came back in it.
#[derive(Clone, Copy, Default, Debug)]
struct Span {
    time: f64,
    cost: f64,
}

impl Span {
    /// Keeps the last dozen slices.
    fn add(&mut self, time: Nanos, cost: Nanos) {
        self.time += time as f64 - WEIGHT * self.time;
        self.cost += cost as f64 - WEIGHT * self.cost;
    }

    fn rate(self) -> Option<f64> {
        (self.cost > 0.0 && self.time > 0.0).then(|| self.time / self.cost)
    }
}

/// A mark in a slice: when, and the cost of what was done by then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Nanos,
    done_ns: Nanos,
    done: u32,
}

/// Requests that the steady part has at least: after the first batch, or in slices that are too short for that after the first
/// request. Few, since a slice has no more than some eight of the longest.
const STEADY: u32 = 4;

/// A slice being watched.
#[derive(Debug)]
pub(super) struct Watch {
    begun: Nanos,
    done_ns: Nanos,
    done: u32,
    /// Requests that make the first batch: those in the device when the first one comes back.
    batch: u32,
    first: Option<Mark>,
    steady: Option<Mark>,
    last: Option<Mark>,
    /// When the drain began, and the cost of what was in the device.
    drain: Option<(Mark, Nanos)>,
}

impl Watch {
    pub(super) fn new(begun: Nanos) -> Watch {
        Watch { begun, done_ns: 0, done: 0, batch: 0, first: None, steady: None, last: None, drain: None }
    }

    /// A request came back; with it, so many were in the device.
    pub(super) fn done(&mut self, now: Nanos, cost_ns: Nanos, in_device: u32) {
        self.done += 1;
        self.done_ns += cost_ns;
        self.last = Some(Mark { at: now, done_ns: self.done_ns, done: self.done });
        if self.done == 1 {
            self.batch = in_device;
            self.first = self.last;
        }
        // And one more: what a drive took out of turn at first costs it a turn when it comes back to where it left off.
        if self.done == self.batch + 1 {
            self.steady = self.last;
        }
    }

    /// Nothing more is issued; this much is in the device.
    pub(super) fn drain(&mut self, now: Nanos, in_device_ns: Nanos) {
        self.drain = Some((Mark { at: now, done_ns: self.done_ns, done: self.done }, in_device_ns));
    }
}

impl Watch {
    /// From where to where requests came back as fast as they would alone.
    fn steady_part(&self) -> Option<(Mark, Mark)> {
        let to = self.drain.map(|(mark, _)| mark).or(self.last)?;
        let from = |from: Option<Mark>, least: u32| from.filter(|from| to.done >= from.done + least);
        from(self.steady, STEADY).or(from(self.first, STEADY)).map(|from| (from, to))
    }
}

/// What is known of a tenant.
#[derive(Default, Debug)]
pub(super) struct Meter {
    /// Between the first batch and the drain.
    steady: Span,
    /// From begin to end.
    whole: Span,
    /// How long a drain took, for each nanosecond of cost in the device.
    drain: Mean,
    loss: Mean,
    /// The cost of what it has for the device when its slice begins.
    backlog: Mean,
    /// The last slice was too short to see how fast requests come back in the middle: how long it was.
    too_short_ns: Option<Nanos>,
}

impl Meter {
    /// A slice begins, and this much may go to the device at once.
    pub(super) fn begin(&mut self, backlog_ns: Nanos) {
        self.backlog.add(backlog_ns as f64);
    }

    /// A slice is over at `now`: what its work would have taken alone. `used_up` if it ended though there was more to do.
    pub(super) fn slice(&mut self, now: Nanos, watch: &Watch, used_up: bool) -> Nanos {
        let total = now - watch.begun;
        if watch.done == 0 {
            return 0;
        }
        self.whole.add(total, watch.done_ns);
        let too_short = match watch.steady_part() {
            Some((from, to)) => {
                self.steady.add(to.at - from.at, to.done_ns - from.done_ns);
                None
            }
            None => used_up.then_some(total),
        };
        if let Some((mark, in_device_ns)) = watch.drain
            && in_device_ns > 0
        {
            self.drain.add((now - mark.at) as f64 / in_device_ns as f64);
        }
        let useful = self.useful_ns(now, watch);
        self.too_short_ns = too_short.filter(|_| self.steady.rate().is_none());
        if used_up && self.steady.rate().is_some() {
            self.loss.add((total - useful) as f64);
        }
        useful
    }

    /// What the work of a slice, so far, would have taken alone. Of a tenant of which too little is known: as long as it took.
    pub(super) fn useful_ns(&self, now: Nanos, watch: &Watch) -> Nanos {
        let total = now - watch.begun;
        self.steady.rate().map_or(total, |rate| ((watch.done_ns as f64 * rate) as Nanos).min(total))
    }

    /// How long requests of this cost, all in the device, take if nothing follows them.
    pub(super) fn drain_ns(&self, cost_ns: Nanos) -> Nanos {
        let rate = self.drain.get().or(self.whole.rate()).unwrap_or(1.0);
        (cost_ns as f64 * rate) as Nanos
    }

    /// Bytes that go to or from the device in so long, once it is where they are.
    pub(super) fn bytes_in(&self, time_ns: Nanos) -> u64 {
        let rate = self.steady.rate().or(self.whole.rate()).unwrap_or(1.0);
        (time_ns as f64 / rate) as u64 / BYTE_NS
    }

    /// What it loses of a slice.
    pub(super) fn loss_ns(&self) -> Option<Nanos> {
        self.loss.get().map(|loss| loss as Nanos)
    }

    /// The shortest slice of which it loses at most so many thousandths, and in which all that it has for the device at once
    /// takes no more than half: otherwise it would never have there what it has alone. Until the loss is measured: by the
    /// formula, with what a switch costs; and twice as long as one in which it cannot be measured.
    pub(super) fn need_ns(&self, lost_permille: u32, switch_ns: Nanos) -> Nanos {
        let need = |loss: Nanos| loss * 1000 / u64::from(lost_permille.max(1));
        let backlog = 2 * self.drain_ns(self.backlog.get().unwrap_or(0.0) as Nanos);
        let by_loss = match (self.loss_ns(), self.too_short_ns) {
            (Some(loss), _) => need(loss),
            (None, Some(total)) => need(switch_ns).max(2 * total),
            (None, None) => need(switch_ns),
        };
        by_loss.max(backlog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 requests of cost 100: the first comes back after 50 of switch, then one every 10; two are in the device, and the
    /// last takes 30 alone.
    fn slice(meter: &mut Meter) -> Nanos {
        let mut watch = Watch::new(1000);
        let mut now = 1050;
        for _ in 0..19 {
            now += 10;
            watch.done(now, 100, 2);
        }
        watch.drain(now, 100);
        watch.done(now + 30, 100, 1);
        meter.slice(now + 30, &watch, true)
    }

    #[test]
    fn the_loss_is_what_is_slower_than_the_middle() {
        let mut meter = Meter::default();
        assert_eq!(slice(&mut meter), 200, "20 requests of 10 each");
        assert_eq!(meter.loss_ns(), Some(50 + 20), "the switch, and what the last took longer");
        assert_eq!(meter.need_ns(100, 12), 700);
        assert_eq!(meter.drain_ns(100), 30);
    }

    #[test]
    fn a_slice_that_was_not_used_up_says_nothing_of_the_loss() {
        let mut meter = Meter::default();
        let mut watch = Watch::new(0);
        (1..=5).for_each(|at| watch.done(at * 10, 100, 1));
        assert_eq!(meter.slice(100, &watch, false), 50, "then the disk was held for it in vain");
        assert_eq!((meter.loss_ns(), meter.need_ns(100, 12)), (None, 120));
    }
}
