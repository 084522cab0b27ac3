//! What a tenant's slices tell of it: how long its requests take when it has the disk to itself, and what it loses at a
//! slice's ends.
//!
//! ```text
//!   |switch|          steady           |  drain  |      useful := cost of all its requests x steady time / steady cost
//!   begin  ▲first batch is done        ▲nothing  ▲end   loss   := (end - begin) - useful
//!          requests come back as fast  more is
//!          as they would alone         issued          all of them sums over the last seconds
//! ```
//!
//! Short slices have little that is steady, or nothing: then long ones are asked for ([`Meter::look_ns`]).
//!
//! Time in which it thinks, the disk being held for it, is part of `steady`: alone it would think as well.
//!
//! Source: Argon (Wachs et al., FAST 2007), section 3.4, which derives the loss from an average seek; here it is
//! measured, since deep queues lose far more in the drain than in the seek. Downside: in the steady part a drive picks
//! the nearest requests and leaves the far ones to the drain, so that `useful` is a little too small and slices a
//! little too long.

use crate::disk::policy::{BYTE_NS, Entry};
use crate::units::Nanos;

/// What is remembered of a tenant: so much of its time, and at least a dozen slices. Seconds, so that many requests
/// make one figure where slices are short; no more, so that a tenant that changes is soon known anew.
const MEMORY_NS: f64 = 8e9;
const FADE_LEAST: f64 = 7.0 / 8.0;

/// What is left of the past after a slice that lasted so long.
fn fade(total: Nanos) -> f64 {
    (MEMORY_NS / (MEMORY_NS + total as f64)).max(FADE_LEAST)
}

/// Sums over parts of the last slices: time, and the cost of the requests that came back in it.
#[derive(Clone, Copy, Default, Debug)]
struct Span {
    slices: f64,
    requests: f64,
    time: f64,
    cost: f64,
}

impl Span {
    fn add(&mut self, fade: f64, requests: u32, time: Nanos, cost: Nanos) {
        self.slices = self.slices * fade + 1.0;
        self.requests = self.requests * fade + f64::from(requests);
        self.time = self.time * fade + time as f64;
        self.cost = self.cost * fade + cost as f64;
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

/// Requests in the steady parts of the last slices from which on they say more than what comes after each first
/// request.
const STEADY: f64 = 4.0;

/// A slice being watched, from its first request on that is not internal.
#[derive(Debug)]
pub(super) struct Watch {
    begun: Nanos,
    done_ns: Nanos,
    done: u32,
    /// A request was issued that is not internal.
    has_demand: bool,
    /// Requests that make the first batch: those in the device when the first one comes back, at most `depth`.
    batch: u32,
    /// How many are there all the while.
    depth: u32,
    first: Option<Mark>,
    steady: Option<Mark>,
    last: Option<Mark>,
    /// When the drain began, the cost of what was in the device, and how many requests that were.
    drain: Option<(Mark, Nanos, u32)>,
    /// The end of the steady part: the first request that came back when the drain had begun. The device chose it, or
    /// was at work on it, before. To leave it out because its slice was over would leave out the long ones.
    past: Option<Mark>,
}

impl Watch {
    fn new(begun: Nanos, depth: u32) -> Watch {
        let (first, steady, last, drain, past) = (None, None, None, None, None);
        Watch { begun, done_ns: 0, done: 0, has_demand: false, batch: 0, depth, first, steady, last, drain, past }
    }

    /// A request goes to the device.
    pub(super) fn issued(&mut self, now: Nanos, entry: &Entry) {
        if !entry.internal && !self.has_demand {
            (self.begun, self.has_demand) = (now, true);
        }
    }

    /// A request that is not internal came back; with it, so many were in the device.
    pub(super) fn done(&mut self, now: Nanos, cost_ns: Nanos, in_device: u32) {
        self.done += 1;
        self.done_ns += cost_ns;
        self.last = Some(Mark { at: now, done_ns: self.done_ns, done: self.done });
        if self.drain.is_some() && self.past.is_none() {
            self.past = self.last;
        }
        if self.done == 1 {
            self.batch = in_device.min(self.depth);
            self.first = self.last;
        }
        // And one more: what a drive took out of turn at first costs it a turn when it comes back to where it left off.
        if self.done == self.batch + 1 {
            self.steady = self.last;
        }
    }

    /// Nothing more is issued; so many requests are in the device, of this cost.
    pub(super) fn drain(&mut self, now: Nanos, in_device: u32, in_device_ns: Nanos) {
        self.drain = Some((Mark { at: now, done_ns: self.done_ns, done: self.done }, in_device_ns, in_device));
        self.past = self.last.filter(|_| in_device_ns == 0);
    }
}

impl Watch {
    /// Adds to `span` what came back between two marks: how long that was.
    fn add_to(span: &mut Span, from: Option<Mark>, to: Option<Mark>, fade: f64) -> Nanos {
        let part = from.zip(to).filter(|(from, to)| to.done > from.done && to.at > from.at);
        part.map_or(0, |(from, to)| {
            span.add(fade, to.done - from.done, to.at - from.at, to.done_ns - from.done_ns);
            to.at - from.at
        })
    }
}

/// What is known of a tenant.
#[derive(Default, Debug)]
pub(super) struct Meter {
    /// Between the first batch and the drain.
    steady: Span,
    /// Between the first request and the drain: until there is enough of the steady part.
    early: Span,
    /// From the first request to the last: while nothing better is known, the fastest that it can be said to be.
    rough: Span,
    /// From begin to end, of slices that were used up.
    whole: Span,
    /// Drains: their time, and the cost of what was in the device.
    drain: Span,
    /// The cost of what it has for the device when its slice begins: a mean that follows.
    backlog: Option<f64>,
    /// Requests in the device when a drain begins: what it has there all the while. A mean that follows.
    depth: Option<f64>,
    /// The last slice was too short to see how fast requests come back in the middle: how long it was.
    too_short_ns: Option<Nanos>,
    /// How long it has had slices of which less than a quarter was steady.
    dark_ns: Nanos,
    /// What work was worth beyond the slices in which it was done, so far: requests take longer in one slice than in
    /// another.
    carry: f64,
}

/// Follows what comes, an eighth of the way.
fn follow(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + (value - mean) / 8.0));
}

impl Meter {
    /// A slice begins, and this much may go to the device at once.
    pub(super) fn begin(&mut self, backlog_ns: Nanos) {
        follow(&mut self.backlog, backlog_ns as f64);
    }

    /// Of a slice that begins now.
    pub(super) fn watch(&self, now: Nanos) -> Watch {
        Watch::new(now, self.depth.map_or(u32::MAX, |depth| depth.ceil() as u32 + 1))
    }

    /// A slice is over at `now`: what its work would have taken alone. `used_up` if it ended though there was more to
    /// do.
    pub(super) fn slice(&mut self, now: Nanos, watch: &Watch, used_up: bool) -> Nanos {
        let total = now - watch.begun;
        if watch.done == 0 || !watch.has_demand {
            return 0;
        }
        let fade = fade(total);
        let past = watch.past.or(watch.last);
        let seen_ns = Watch::add_to(&mut self.steady, watch.steady, past, fade);
        Watch::add_to(&mut self.early, watch.first, past, fade);
        Watch::add_to(&mut self.rough, watch.first, watch.last, fade);
        if let Some((mark, in_device_ns, in_device)) = watch.drain
            && in_device_ns > 0
        {
            follow(&mut self.depth, f64::from(in_device));
            self.drain.add(fade, watch.done - mark.done, now - mark.at, in_device_ns);
        }
        if used_up {
            self.whole.add(fade, watch.done, total, watch.done_ns);
            self.dark_ns = (self.dark_ns + total).saturating_sub(4 * seen_ns);
            self.too_short_ns = (seen_ns == 0 && self.seen_rate().is_none()).then_some(total);
        }
        let (useful, carry) = self.worth(now, watch);
        self.carry = carry;
        useful
    }

    /// How long a nanosecond of cost takes where nothing is lost.
    fn rate(&self) -> Option<f64> {
        self.seen_rate().or(self.rough.rate())
    }

    fn seen_rate(&self) -> Option<f64> {
        let enough = |span: Span| span.rate().filter(|_| span.requests >= STEADY);
        enough(self.steady).or(enough(self.early))
    }

    /// What the work of a slice, so far, would have taken alone, at most as long as it took, and what it was worth
    /// beyond that: of slices that are worth more and less than they lasted the sum is to be right. If all of
    /// its requests were internal, nothing.
    fn worth(&self, now: Nanos, watch: &Watch) -> (Nanos, f64) {
        if !watch.has_demand {
            return (0, self.carry);
        }
        let total = now - watch.begun;
        let Some(rate) = self.rate() else { return (total, 0.0) };
        let worth = watch.done_ns as f64 * rate + self.carry;
        let useful = worth.min(total as f64);
        (useful as Nanos, (worth - useful).min(total as f64))
    }

    /// What the work of a slice, so far, would have taken alone. Of a tenant of which too little is known: as long as
    /// it took.
    pub(super) fn useful_ns(&self, now: Nanos, watch: &Watch) -> Nanos {
        self.worth(now, watch).0
    }

    /// How long requests of this cost, all in the device, take if nothing follows them.
    pub(super) fn drain_ns(&self, cost_ns: Nanos) -> Nanos {
        let rate = self.drain.rate().or(self.whole.rate()).unwrap_or(1.0);
        (cost_ns as f64 * rate) as Nanos
    }

    /// How long all takes that it has for the device when its slice begins.
    fn backlog_ns(&self) -> Nanos {
        self.drain_ns(self.backlog.unwrap_or(0.0) as Nanos)
    }

    /// It should have a slice so long once, in which everything that it has is in the device at once and stays there
    /// for a while: in those that it has that is not seen.
    pub(super) fn look_ns(&self) -> Option<Nanos> {
        let look_ns = 3 * self.backlog_ns();
        (self.dark_ns > look_ns).then_some(look_ns)
    }

    /// Bytes that go to or from the device in so long, once it is where they are.
    pub(super) fn bytes_in(&self, time_ns: Nanos) -> u64 {
        let rate = self.rate().or(self.whole.rate()).unwrap_or(1.0);
        (time_ns as f64 / rate) as u64 / BYTE_NS
    }

    /// What it loses of a slice.
    pub(super) fn loss_ns(&self) -> Option<Nanos> {
        let rate = self.rate().filter(|_| self.whole.slices > 0.0)?;
        Some(((self.whole.time - self.whole.cost * rate) / self.whole.slices).max(0.0) as Nanos)
    }

    /// The shortest slice in which all that it has for the device at once takes no more than half: otherwise it would
    /// never have there what it has alone.
    pub(super) fn burst_ns(&self) -> Nanos {
        2 * self.backlog_ns()
    }

    /// The shortest slice of which it loses at most so many thousandths, and in which there is room for a burst. Until
    /// the loss is measured: by the formula, with what a switch costs; and twice as long as one in which it cannot be
    /// measured.
    pub(super) fn need_ns(&self, lost_permille: u32, switch_ns: Nanos) -> Nanos {
        let need = |loss: Nanos| loss * 1000 / u64::from(lost_permille.max(1));
        let by_loss = need(self.loss_ns().unwrap_or(switch_ns)).max(self.too_short_ns.map_or(0, |total| 2 * total));
        by_loss.max(self.burst_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{IoId, Op};

    fn watch(meter: &Meter, begun: Nanos) -> Watch {
        let (io, op) = (IoId(0), Op::Read);
        let mut watch = meter.watch(begun);
        watch.issued(begun, &Entry { io, op, len: 0, cost_ns: 100, follows: false, internal: false });
        watch
    }

    /// 20 requests of cost 100: the first comes back after 50 of switch, then one every 10; two are in the device, and
    /// the last takes 30 alone.
    fn slice(meter: &mut Meter) -> Nanos {
        let mut watch = watch(meter, 1000);
        let mut now = 1050;
        for done in 1..=19 {
            now += 10;
            watch.done(now, 100, 2);
            if done == 18 {
                watch.drain(now + 5, 2, 200);
            }
        }
        watch.done(now + 30, 100, 1);
        meter.slice(now + 30, &watch, true)
    }

    #[test]
    fn the_loss_is_what_is_slower_than_the_middle() {
        let mut meter = Meter::default();
        assert_eq!(slice(&mut meter), 200, "20 requests of 10 each");
        assert_eq!(meter.loss_ns(), Some(50 + 20), "the switch, and what the last took longer");
        assert_eq!(meter.need_ns(100, 12), 700);
        assert_eq!(meter.drain_ns(200), 35);
    }

    #[test]
    fn a_slice_that_was_not_used_up_says_nothing_of_the_loss() {
        let mut meter = Meter::default();
        let mut watch = watch(&meter, 0);
        (1..=5).for_each(|at| watch.done(at * 10, 100, 1));
        assert_eq!(meter.slice(100, &watch, false), 50, "then the disk was held for it in vain");
        assert_eq!((meter.loss_ns(), meter.need_ns(100, 12)), (None, 120));
    }
}
