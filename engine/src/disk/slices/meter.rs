//! Measurements on the slices of a tenant: its service rate while it owns the disk, and its loss at both ends of a
//! slice.
//!
//! ```text
//!   |switch|          steady           |  drain  |      useful := cost of all its requests x steady time / steady cost
//!   begin  ▲first batch done           ▲issuing  ▲end   loss   := (end - begin) - useful
//!          requests complete as fast    stops
//!          as they would standalone                     all of them sums over the last seconds
//! ```
//!
//! Short slices have little or no steady part; then the meter asks for long ones ([`Meter::look_ns`]).
//!
//! Think time for which the disk idles is part of `steady`: the tenant would think standalone as well.
//!
//! **Streams among other requests.** Alone, a drive serves the sequential reads of a tenant before its other requests,
//! because they are nearest; in each slice the first batch and the drain have random ones. So a tenant with both does
//! more of the random ones than it would standalone, and less of the stream, and no disk time is lost. The meter
//! compares the part of the cost that sequential reads are of the steady part and of all ([`Meter::streams_lack`]).
//!
//! Source: Argon (Wachs et al., FAST 2007), section 3.4, which derives the loss from an average seek. Here the loss is
//! measured, because deep queues lose far more in the drain than in the seek. Downside: in the steady part a drive
//! picks near requests and leaves the far ones to the drain, so `useful` is slightly too small and slices are slightly
//! too long.

#[cfg(test)]
mod tests;

use super::Cause;
use crate::disk::Op;
use crate::disk::queue::{BYTE_NS, Backlog, Entry};
use crate::units::Nanos;

/// The memory of the sums: 8 s of the tenant's slices, and at least about a dozen slices. Seconds, so that many
/// requests contribute to each figure where slices are short; not more, so that a changed behaviour of the tenant soon
/// shows.
const MEMORY_NS: f64 = 8e9;
const FADE_LEAST: f64 = 7.0 / 8.0;

/// The factor by which a slice of length `total` reduces the sums before it.
fn fade(total: Nanos) -> f64 {
    (MEMORY_NS / (MEMORY_NS + total as f64)).max(FADE_LEAST)
}

/// Sums over parts of the recent slices: time, and the cost of the requests that completed in it.
#[derive(Clone, Copy, Default, Debug)]
struct Span {
    slices: f64,
    requests: f64,
    time: f64,
    cost: f64,
    /// The cost of the sequential reads among them.
    stream_cost: f64,
}

impl Span {
    fn add(&mut self, fade: f64, requests: u32, time: Nanos, done: Done) {
        self.slices = self.slices * fade + 1.0;
        self.requests = self.requests * fade + f64::from(requests);
        self.time = self.time * fade + time as f64;
        self.cost = self.cost * fade + done.all_ns as f64;
        self.stream_cost = self.stream_cost * fade + done.stream_ns as f64;
    }

    fn rate(self) -> Option<f64> {
        (self.cost > 0.0 && self.time > 0.0).then(|| self.time / self.cost)
    }

    /// The part of the cost that is that of sequential reads.
    fn streams(self) -> f64 {
        if self.cost > 0.0 { self.stream_cost / self.cost } else { 0.0 }
    }
}

/// The cost of requests that have completed, and that of the sequential reads among them.
#[derive(Clone, Copy, Default, Debug)]
struct Done {
    all_ns: Nanos,
    stream_ns: Nanos,
}

impl Done {
    fn since(self, before: Done) -> Done {
        Done { all_ns: self.all_ns - before.all_ns, stream_ns: self.stream_ns - before.stream_ns }
    }
}

/// A moment in a slice: its time, and the cost and number of the requests that had completed.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Nanos,
    cost: Done,
    done: u32,
}

/// With this part of the cost, sequential reads are most of a tenant's bytes: while a drive positions once, it could
/// transfer hundreds of KiB.
const STREAMS_LEAST: f64 = 0.1;

/// A smaller lack may be chance: two scans beside random reads of their own tenant lack 0.03, and the tenant keeps R.
/// The stream of `lab/mixes/stream-within.toml` lacks 0.08 to 0.25.
const STREAMS_LACK_LEAST: f64 = 0.05;

/// The service rate of a queue that is so many times as deep is another one (`docs/notes/slices.md`). Not less: with 2
/// the rate of updates beside a scan, whose write-back comes in bursts, was forgotten again and again.
const DEEPER: f64 = 4.0;

/// A drain of less than the usual cost of a request, divided by this, does not count. A random request costs some
/// hundred times as much as a sequential one.
const CHEAP: f64 = 8.0;

/// From this number of requests on, the steady parts of the recent slices are better evidence than all time after the
/// first completion of each slice.
const STEADY: f64 = 4.0;

/// The observation of a slice, from its first request that is not internal.
#[derive(Debug)]
pub(crate) struct Watch {
    begun: Nanos,
    cost: Done,
    done: u32,
    /// Whether a request was issued that is not internal.
    has_demand: bool,
    /// Requests of the first batch: those in the device at the first completion, at most `depth`.
    batch: u32,
    /// The number of requests that the tenant usually has in the device, plus one.
    depth: u32,
    first: Option<Mark>,
    steady: Option<Mark>,
    last: Option<Mark>,
    /// When the drain began, the cost of the requests in the device, and their number.
    drain: Option<(Mark, Nanos, u32)>,
    /// End of the steady part: the first completion after the drain began. The device had chosen that request, or was
    /// serving it, before. Leaving it out because its slice was over would leave out the long requests.
    past: Option<Mark>,
    /// When the last request was issued, if the device was empty then; and the number and time of such requests after
    /// the first one that were alone until they completed.
    issued_at: Option<Nanos>,
    later: u32,
    later_ns: Nanos,
    /// The time and the cost of the last request that was in the device alone.
    alone: Option<(Nanos, Nanos)>,
    /// For how long the device was empty between two requests.
    empty_ns: Nanos,
    /// Writes in the device, and since when there are some; for how long there were in all, and the cost of those that
    /// completed.
    writes: u32,
    writing_since: Nanos,
    writing_ns: Nanos,
    written_ns: Nanos,
    /// The usual cost of a context switch on this disk.
    switch_ns: Nanos,
}

impl Watch {
    fn new(begun: Nanos, depth: u32, switch_ns: Nanos) -> Watch {
        Watch {
            begun,
            cost: Done::default(),
            done: 0,
            has_demand: false,
            batch: 0,
            depth,
            first: None,
            steady: None,
            last: None,
            drain: None,
            past: None,
            issued_at: None,
            later: 0,
            later_ns: 0,
            alone: None,
            empty_ns: 0,
            writes: 0,
            writing_since: 0,
            writing_ns: 0,
            written_ns: 0,
            switch_ns,
        }
    }

    /// A request is submitted to the device, in which there is no other one if it `is_alone`.
    pub(crate) fn issued(&mut self, now: Nanos, entry: &Entry, is_alone: bool) {
        self.issued_at = is_alone.then_some(now);
        self.empty_ns += self.last.filter(|_| is_alone).map_or(0, |last| now - last.at);
        if !entry.internal && !self.has_demand {
            (self.begun, self.has_demand) = (now, true);
        }
        if is_write(entry) {
            self.writing_since = if self.writes == 0 { now } else { self.writing_since };
            self.writes += 1;
        }
    }

    /// A request that is not internal completed; `in_device` requests were in the device, this one included.
    pub(crate) fn done(&mut self, now: Nanos, entry: &Entry, in_device: u32) {
        self.done += 1;
        if is_write(entry) && self.writes > 0 {
            self.writes -= 1;
            self.written_ns += entry.cost_ns;
            self.writing_ns += now - std::mem::replace(&mut self.writing_since, now);
        }
        self.cost.all_ns += entry.cost_ns;
        self.cost.stream_ns += if entry.reads_on() { entry.cost_ns } else { 0 };
        self.last = Some(Mark { at: now, cost: self.cost, done: self.done });
        if self.drain.is_some() && self.past.is_none() {
            self.past = self.last;
        }
        if self.done == 1 {
            self.batch = in_device.min(self.depth);
            self.first = self.last;
        }
        if let Some(at) = self.issued_at.take().filter(|_| in_device == 1) {
            self.alone = Some((now - at, entry.cost_ns));
            if self.done > 1 {
                (self.later, self.later_ns) = (self.later + 1, self.later_ns + (now - at));
            }
        }
        // The batch and one more request: a drive that served a request out of order at first loses a revolution when
        // it returns to the place where it left off.
        if self.done == self.batch + 1 {
            self.steady = self.last;
        }
    }

    /// The drain begins: no more requests are issued, and `in_device` requests of cost `in_device_ns` are in the
    /// device.
    pub(crate) fn drain(&mut self, now: Nanos, in_device: u32, in_device_ns: Nanos) {
        self.drain = Some((Mark { at: now, cost: self.cost, done: self.done }, in_device_ns, in_device));
        self.past = self.last.filter(|_| in_device_ns == 0);
    }
}

fn is_write(entry: &Entry) -> bool {
    matches!(entry.op, Op::Write { .. }) && !entry.internal
}

impl Watch {
    /// Whether writes are in the device.
    pub(crate) fn is_writing(&self) -> bool {
        self.writes > 0
    }

    /// Adds the completions between two marks to `span`. Returns the time between the marks.
    fn add_to(span: &mut Span, from: Option<Mark>, to: Option<Mark>, fade: f64) -> Nanos {
        let part = from.zip(to).filter(|(from, to)| to.done > from.done && to.at > from.at);
        part.map_or(0, |(from, to)| {
            span.add(fade, to.done - from.done, to.at - from.at, to.cost.since(from.cost));
            to.at - from.at
        })
    }
}

/// The measurements of a tenant.
#[derive(Default, Debug)]
pub(crate) struct Meter {
    /// Between the first batch and the end of the steady part.
    steady: Span,
    /// Between the first completion and the end of the steady part: used until there is enough of the steady part
    /// itself.
    early: Span,
    /// From the first completion to the last: the highest service rate that can be assumed while nothing better is
    /// known.
    rough: Span,
    /// Whole slices that were used up, and of their time that in which the device was empty between two requests.
    whole: Span,
    empty_ns: f64,
    /// The first request of each slice if it was in the device alone, and such later ones.
    first: Span,
    later: Span,
    /// Drains: their time, and the cost of the requests that were in the device at their beginning.
    drain: Span,
    /// Writes: the time in which some were in the device, and their cost.
    writing: Span,
    /// All slices: the time of their drains.
    closing: Span,
    /// Cost of the requests that the tenant has for the device when its slice begins, a moving average.
    backlog: Option<f64>,
    /// The same without background write-back.
    awaited: Option<f64>,
    /// Requests in the device when a drain begins, which is their number throughout the slice: a moving average.
    depth: Option<f64>,
    /// The same where a slice showed a steady part.
    seen_depth: Option<f64>,
    /// Length of the last slice, if it was too short to show the service rate in its steady part.
    too_short_ns: Option<Nanos>,
    /// Slice time of the tenant in excess of four times its steady time: it grows while less than a quarter is steady.
    dark_ns: Nanos,
    /// Standalone-equivalent time that exceeded the slices in which the work was done, carried over to the next slice:
    /// requests take longer in one slice than in another.
    carry: f64,
}

/// Moves a moving average towards `value` by an eighth of the difference.
fn follow(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + (value - mean) / 8.0));
}

impl Meter {
    /// A slice begins; these requests may go to the device at once.
    pub(crate) fn begin(&mut self, Backlog { all_ns, awaited_ns }: Backlog) {
        follow(&mut self.backlog, all_ns as f64);
        follow(&mut self.awaited, awaited_ns as f64);
    }

    /// The observation of a slice that begins now.
    pub(crate) fn watch(&self, now: Nanos, switch_ns: Nanos) -> Watch {
        Watch::new(now, self.depth.map_or(u32::MAX, |depth| depth.ceil() as u32 + 1), switch_ns)
    }

    /// A slice ended at `now`. Returns the standalone-equivalent time of its work.
    pub(crate) fn slice(&mut self, now: Nanos, watch: &Watch, cause: Cause) -> Nanos {
        let total = now - watch.begun;
        if watch.done == 0 || !watch.has_demand {
            return 0;
        }
        let past = watch.past.or(watch.last);
        if let Some((_, _, in_device)) = watch.drain.filter(|&(_, in_device_ns, _)| in_device_ns > 0) {
            self.drains_at(f64::from(in_device), watch.steady.zip(past).is_some_and(|(from, to)| to.done > from.done));
        }
        let fade = fade(total);
        let seen_ns = Watch::add_to(&mut self.steady, watch.steady, past, fade);
        Watch::add_to(&mut self.early, watch.first, past, fade);
        Watch::add_to(&mut self.rough, watch.first, watch.last, fade);
        let own_cost = watch.cost.all_ns as f64 / f64::from(watch.done);
        // A drain of a few cheap requests, such as one sequential read that had to wait for the heads, says nothing of
        // the time that others take by their cost.
        if let Some((mark, in_device_ns, _)) = watch.drain
            && in_device_ns > 0
            && in_device_ns as f64 >= self.usual_cost().unwrap_or(own_cost) / CHEAP
        {
            let in_device = Done { all_ns: in_device_ns, stream_ns: 0 };
            self.drain.add(fade, watch.done - mark.done, now - mark.at, in_device);
        } else {
            self.drains_empty(watch);
        }
        let closing_ns = watch.drain.filter(|_| cause == Cause::UsedUp).map_or(0, |(mark, ..)| now - mark.at);
        self.closing.add(fade, 0, closing_ns, Done::default());
        self.writing.add(fade, 0, watch.writing_ns, Done { all_ns: watch.written_ns, stream_ns: 0 });
        // If the disk idled for the tenant when its slice was interrupted, nothing was lost in a drain.
        let is_drained = watch.drain.is_some_and(|(_, in_device_ns, _)| in_device_ns > 0);
        let is_cut = matches!(cause, Cause::Interrupted | Cause::Enough);
        if cause == Cause::UsedUp || is_cut && is_drained {
            self.whole.add(fade, watch.done, total, watch.cost);
            self.empty_ns = self.empty_ns * fade + watch.empty_ns as f64;
        }
        // The length of a slice that was interrupted, or ended early, is not the plan's.
        if cause == Cause::UsedUp {
            self.dark_ns = (self.dark_ns + total).saturating_sub(4 * seen_ns);
            self.too_short_ns = (seen_ns == 0 && self.seen_rate().is_none()).then_some(total);
        }
        if let Some(mark) = watch.first.filter(|_| watch.batch == 1) {
            self.first.add(fade, 1, mark.at - watch.begun, mark.cost);
            self.later.add(fade, watch.later, watch.later_ns, Done::default());
        }
        let (useful, carry) = self.worth(now, watch);
        self.carry = carry;
        useful
    }

    /// Mean cost of a request; `None` if no slice was used up.
    fn usual_cost(&self) -> Option<f64> {
        (self.whole.requests > 0.0).then(|| self.whole.cost / self.whole.requests)
    }

    /// A slice ended without a drain that counts: with an empty device, or with cheap requests in it. If its next
    /// request was held back because the estimate was too high, no later drain would correct the estimate. So the last
    /// request, if it was alone, stands for a drain: a request of usual cost moves the estimate by an eighth, and a
    /// cheaper one by less.
    fn drains_empty(&mut self, watch: &Watch) {
        if let Some((ns, cost_ns)) = watch.alone.filter(|&(_, cost_ns)| cost_ns > 0) {
            let (ns, cost) = (ns as f64, cost_ns as f64);
            let usual = self.usual_cost().unwrap_or(cost);
            self.drain.time += (self.drain.cost * ns - self.drain.time * cost) / (cost + 7.0 * usual);
        }
    }

    /// A lent slice ended at `now`. Returns the standalone-equivalent time of its work. A lent slice has few requests
    /// at a time, so the meter takes no service rate from it. It does take how long the last request took: a tenant
    /// whose requests seem too long for its own slots has no other slices.
    pub(crate) fn lent(&mut self, now: Nanos, watch: &Watch) -> Nanos {
        self.drains_empty(watch);
        self.useful_ns(now, watch)
    }

    /// A drain of a slice with or without a steady part begins with so many requests in the device. Where slices show
    /// no steady part and the queue has become more than [`DEEPER`] times as deep as where they did, the known service
    /// rate is that of another load, and would only fade with long slices.
    fn drains_at(&mut self, in_device: f64, is_seen: bool) {
        follow(&mut self.depth, in_device);
        if is_seen {
            follow(&mut self.seen_depth, in_device);
        } else if self.depth.zip(self.seen_depth).is_some_and(|(depth, seen)| depth > DEEPER * seen) {
            let Meter { backlog, awaited, depth, dark_ns, .. } = *self;
            *self = Meter { backlog, awaited, depth, dark_ns, ..Meter::default() };
        }
    }

    /// What the context switch at the beginning of the slice cost: by how much longer the first request takes than
    /// later ones that are in the device alone, if there are such requests; else what it usually costs on this disk.
    pub(crate) fn switch_ns(&self, watch: &Watch) -> Nanos {
        let mean = |span: Span| (span.requests >= STEADY).then(|| span.time / span.requests);
        let more = mean(self.first).zip(mean(self.later)).map(|(first, later)| (first - later).max(0.0) as Nanos);
        if watch.done > 0 { more.unwrap_or(watch.switch_ns) } else { 0 }
    }

    /// Time per nanosecond of cost where nothing is lost.
    fn rate(&self) -> Option<f64> {
        self.seen_rate().or(self.rough.rate())
    }

    fn seen_rate(&self) -> Option<f64> {
        let enough = |span: Span| span.rate().filter(|_| span.requests >= STEADY);
        enough(self.steady).or(enough(self.early))
    }

    /// Whether sequential reads and other requests each are at least [`STREAMS_LEAST`] of the cost.
    pub(crate) fn has_divided_streams(&self) -> bool {
        (STREAMS_LEAST..1.0 - STREAMS_LEAST).contains(&self.whole.streams())
    }

    /// The part of its streams that the tenant lacks although its disk time is not lost: what sequential reads are of
    /// the steady cost, against what they are of all. 0 without streams, and if it is not more than
    /// [`STREAMS_LACK_LEAST`].
    pub(crate) fn streams_lack(&self) -> f64 {
        let part = self.steady.streams();
        let is_known = self.steady.requests >= STEADY && part >= STREAMS_LEAST && self.whole.cost > 0.0;
        let lack = if is_known { 1.0 - self.whole.streams() / part } else { 0.0 };
        if lack > STREAMS_LACK_LEAST { lack } else { 0.0 }
    }

    /// Standalone-equivalent time of the slice's work so far, at most the time that passed, and the excess over that.
    /// The excess is carried over, so that the sum over slices with more and less work is right. If all requests were
    /// internal, nothing is added. A slice with one request does not show its switch by itself.
    fn worth(&self, now: Nanos, watch: &Watch) -> (Nanos, f64) {
        if !watch.has_demand {
            return (0, self.carry);
        }
        let is_alone = watch.done == 1 && watch.batch == 1;
        let switch_ns = if is_alone { self.switch_ns(watch) } else { 0 };
        // What takes less than a switch had none: the drive's own cache, for example.
        let total = now - watch.begun;
        let total = if total > switch_ns { total - switch_ns } else { total };
        let Some(rate) = self.rate() else { return (total, 0.0) };
        let worth = watch.cost.all_ns as f64 * rate + self.carry;
        let useful = worth.min(total as f64);
        (useful as Nanos, (worth - useful).min(total as f64))
    }

    /// Standalone-equivalent time of the slice's work so far. If too little is known of the tenant, it is the time that
    /// passed.
    pub(crate) fn useful_ns(&self, now: Nanos, watch: &Watch) -> Nanos {
        self.worth(now, watch).0
    }

    /// How long requests of this total cost, all in the device, take if no further request follows.
    pub(crate) fn drain_ns(&self, cost_ns: Nanos) -> Nanos {
        let busy = Span { time: self.whole.time - self.empty_ns, ..self.whole };
        let rate = self.drain.rate().or(busy.rate()).unwrap_or(1.0);
        (cost_ns as f64 * rate) as Nanos
    }

    /// How long write-back of this total cost takes that goes to the device together, with the reads that the drive
    /// serves meanwhile.
    pub(crate) fn batch_ns(&self, cost_ns: Nanos) -> Nanos {
        self.writing.rate().map_or_else(|| self.drain_ns(cost_ns), |rate| (cost_ns as f64 * rate) as Nanos)
    }

    /// The same for a mean cost. 0 before the first slice: until then no backlog was observed.
    fn drain_of_ns(&self, cost: Option<f64>) -> Nanos {
        cost.map_or(0, |cost| self.drain_ns(cost as Nanos))
    }

    /// Mean time of a drain.
    pub(crate) fn drain_mean_ns(&self) -> Nanos {
        if self.drain.slices > 0.0 { (self.drain.time / self.drain.slices) as Nanos } else { 0 }
    }

    /// Mean time at the end of a slice in which nothing was issued, as it would not have completed within the slice.
    pub(crate) fn closing_ns(&self) -> Nanos {
        if self.closing.slices > 0.0 { (self.closing.time / self.closing.slices) as Nanos } else { 0 }
    }

    /// Length of a long slice that the tenant needs once, for its whole backlog to be in the device at once and to stay
    /// there for a while; its usual slices do not show this. `None` if they do.
    pub(crate) fn look_ns(&self) -> Option<Nanos> {
        let look_ns = 3 * self.drain_of_ns(self.backlog);
        (self.dark_ns > look_ns).then_some(look_ns)
    }

    /// Bytes that are transferred in `time_ns`, without positioning.
    pub(crate) fn bytes_in(&self, time_ns: Nanos) -> u64 {
        let rate = self.rate().or(self.whole.rate()).unwrap_or(1.0);
        (time_ns as f64 / rate) as u64 / BYTE_NS
    }

    /// Mean loss per slice.
    pub(crate) fn loss_ns(&self) -> Option<Nanos> {
        let rate = self.rate().filter(|_| self.whole.slices > 0.0)?;
        Some(((self.whole.time - self.whole.cost * rate) / self.whole.slices).max(0.0) as Nanos)
    }

    /// Shortest slice in which the tenant's backlog takes at most half of the time. In a shorter one it would never
    /// have as many requests in the device as standalone. Background write-back does not count: the cache sorts it,
    /// so many requests in the device hardly make it faster, and its bursts would make slices long.
    pub(crate) fn burst_ns(&self) -> Nanos {
        2 * self.drain_of_ns(self.awaited)
    }

    /// Shortest slice of which at most `lost_permille` thousandths are lost, and which has room for the backlog
    /// (`burst_ns`). Until the loss is measured, `switch_ns` stands for it; and the slice is twice as long as one that
    /// was too short to measure it.
    pub(crate) fn need_ns(&self, lost_permille: u32, switch_ns: Nanos) -> Nanos {
        let need = |loss: Nanos| loss * 1000 / u64::from(lost_permille.max(1));
        let by_loss = need(self.loss_ns().unwrap_or(switch_ns)).max(self.too_short_ns.map_or(0, |total| 2 * total));
        by_loss.max(self.burst_ns())
    }
}
