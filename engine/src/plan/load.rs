//! R_cache: a tenant's throughput by partition size, relative to that with the whole cache, as an interval.
//!
//! ```text
//!   R_cache(c) = S(alone) / S(c)                 S: mean time of a block
//!
//!   reads(c)   = (m_r(c) x disk_r + (1 - m_r(c)) x hit) x part of the references that are reads
//!   writes(c)  = (m_w(c) x disk_w(c / 2) + (1 - m_w(c)) x hit) x part that are writes
//!   waited(c)  = what of these clients wait for: not read-ahead and write-back
//!   S(c)       = max(pause + closed loop of waited(c) and thinking, reads(c) + writes(c))
//! ```
//!
//! m are miss ratios from the tenant's curve, and what follows from it about unseen reuse (`curve/reuse.rs`), for the
//! low end, the estimate and the high end. At most half a partition is dirty, and the cost of a written block falls
//! with the amount of dirty data. The cost for more dirty data than the tenant has, and standalone, is estimated by
//! `curve/dirty.rs` ([`Gain`]).
//!
//! **Alone** the disk would do 1 / speed times as much for the tenant, and it is the disk that brings new blocks: by
//! now about seen / speed of them. The cache would hold at most these. (With the speed of the clients, which the cache
//! raises, more cache would let them see more, and a set that fits would always seem to have been read as a whole.) The
//! low end assumes four times as many ([`AHEAD`]), because the decision also has to hold later.
//!
//! **Low end.** It also has the error of the write model: the factor by which more dirty data lowers the cost is raised
//! to the power [`GAIN_POWER`], and at least [`WRITE_ERROR`] of the positioning that no flush demands may be gained.
//!
//! Source: Argon (Wachs et al., FAST 2007): "S = p x cache time + (1 - p) x disk time", throughput is 1 / S. Pauses and
//! unseen reuse are ours. Downside: hits and misses are assumed to follow each other, as with a queue depth of 1. At
//! higher depths hits cost even less; compared with milliseconds of disk time this does not matter.

use super::evidence::Observed;
use super::room::Room;
use crate::cache::FRAMES_MIN;
use crate::curve::{Cost, DISK_USES, DiskUse, Point, View, per_request};
use crate::units::Nanos;

/// Power of the gain by more dirty data that the low end assumes: blocks and runs standalone were within 5 % in half of
/// the figures of four traces, else off by 29 % at most (`docs/notes/sizing.md`).
const GAIN_POWER: f64 = 1.5;
/// The largest partition relative to that which the estimate asks for.
const CAUTION: u64 = 2;
/// The least error of the positioning for writes that no flush demands. With 0.06, two of 40 admitted tenants did not
/// keep R, both of whom wrote 40 to 50 % at random; with 0.15 one of 35 did not (`docs/notes/sizing.md`).
const WRITE_ERROR: f64 = 0.15;
/// What positioning for writes may gain standalone because the drive has more of them to sort at once: random writers
/// with a quarter and a half of a disk kept 0.50 to 0.66 where live insulation was 0.86 to 0.92.
const SORTED: f64 = 0.25;
/// Time of an absorbed block: a request of 4 KiB through the server's thread and a socket, measured at 5 us of CPU and
/// 14 us of latency at depth 1, less at higher depths. Accurate enough, as it is about a hundredth of a seek.
const HIT_NS: f64 = 10_000.0;

/// The cost of writes relative to the present partition: with the whole cache under contention, and standalone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gain {
    /// Frames of the present partition.
    pub(super) target: u64,
    pub(super) roomy: f64,
    pub(super) alone: f64,
    /// The part of the time of writes that is positioning for blocks that no flush demanded.
    pub(super) chosen: f64,
    /// The part of what would have been written standalone whose cost is not known yet.
    pub(super) open: f64,
}

impl Gain {
    /// The width of the interval in which the cost standalone is: the factor by which more dirty data lowers it is
    /// known up to the power [`GAIN_POWER`], what has not been written yet may never be, and [`SORTED`] of the
    /// positioning may be gained.
    pub(super) fn width(&self) -> f64 {
        let low = self.alone.powf(GAIN_POWER) * (1.0 - self.open).max(0.0) * (1.0 - SORTED * self.chosen);
        self.alone.powf(1.0 / GAIN_POWER) - low
    }

    /// The relative cost with `frames`, more than the present partition: each doubling gains the same factor.
    fn at(&self, frames: u64, whole: u64) -> f64 {
        let octaves = |frames: u64| (frames as f64 / self.target as f64).log2();
        let part = octaves(frames.min(whole)) / octaves(whole).max(f64::MIN_POSITIVE);
        self.roomy.powf(part.clamp(0.0, 1.0))
    }
}

/// R_cache with a partition: the estimate, and the interval in which it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Keeps {
    pub(super) low: f64,
    pub(super) point: f64,
    pub(super) high: f64,
}

impl Keeps {
    /// Of a tenant whose load is unknown.
    pub(super) const UNKNOWN: Keeps = Keeps { low: 1.0, point: 1.0, high: 1.0 };

    fn of(ends: [f64; 3]) -> Keeps {
        let [low, point, high] = ends;
        Keeps { low, point, high }
    }
}

/// Factor of earlier figures per look, about a second: half after 34 s, many requests of a client that pauses.
const TEMPO_FADES: f64 = 0.98;
/// R as measured replaces the estimate if it is less than this part of it. Measured sums cover half a minute, so they
/// lag behind while a partition fills; a small difference says nothing.
const FAR_LESS: f64 = 0.75;
/// How many times the blocks that it would have seen alone, by end of the interval.
const AHEAD: [f64; 3] = [4.0, 1.0, 1.0];

/// How the requests of a tenant follow each other: recent sums.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tempo {
    /// The totals at the last look.
    before: Totals,
    clients: u32,
    /// Time in which no client waited, references, and disk time by use.
    quiet_ns: f64,
    /// Time in which some clients waited, times the part of them that thought.
    thinking_ns: f64,
    references: f64,
    disk_ns: [f64; DISK_USES],
    /// Standalone-equivalent time with the cache that it has, and time in which its clients were not away.
    own_cache_ns: f64,
    there_ns: f64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Totals {
    references: u64,
    /// Quiet time, time in which clients thought while others waited, standalone-equivalent time, time in which its
    /// clients were not away.
    times_ns: [Nanos; 4],
    disk_ns: [f64; DISK_USES],
}

impl Tempo {
    pub(super) fn look(&mut self, seen: &Observed) {
        let times_ns = [seen.quiet_ns, seen.thinking.1, seen.own_cache_ns, seen.there_ns];
        let totals = Totals { references: seen.references, times_ns, disk_ns: seen.cost.time_ns() };
        let before = std::mem::replace(&mut self.before, totals);
        self.clients = seen.thinking.0;
        // A curve that is made anew counts from 0.
        let Some(more) = totals.references.checked_sub(before.references) else { return };
        let add = |sum: &mut f64, now: f64, before: f64| *sum = (*sum * TEMPO_FADES + now - before).max(0.0);
        add(&mut self.references, more as f64, 0.0);
        let sums = [&mut self.quiet_ns, &mut self.thinking_ns, &mut self.own_cache_ns, &mut self.there_ns];
        for (at, sum) in sums.into_iter().enumerate() {
            add(sum, times_ns[at] as f64, before.times_ns[at] as f64);
        }
        for (at, sum) in self.disk_ns.iter_mut().enumerate() {
            add(sum, totals.disk_ns[at], before.disk_ns[at]);
        }
    }

    /// The speed at which the disk works for the tenant relative to that alone, 0 to 1; `None` while it is unknown.
    fn speed(&self) -> Option<f64> {
        let speed = self.own_cache_ns / self.there_ns;
        (self.there_ns > 0.0 && speed > 0.0).then(|| speed.min(1.0))
    }

    /// The width of the interval of standalone-equivalent time, relative to the time that was taken, from those of
    /// reads and of writes relative to their disk time. Infinite if no time was taken.
    pub(super) fn width(&self, reads: f64, writes: f64) -> f64 {
        let [fill, prefetch, write_back, sync] = self.disk_ns;
        let all = self.disk_ns.iter().sum::<f64>() + self.quiet_ns;
        if all > 0.0 { ((fill + prefetch) * reads + (write_back + sync) * writes) / all } else { f64::INFINITY }
    }

    /// What a reference takes of the time for which its clients wait for `waited_ns`: with the pauses of all of them,
    /// and in the closed loop of those that think while others wait. Without pauses if they are not known, which asks
    /// for more cache.
    fn per_reference_ns(&self, waited_ns: f64) -> f64 {
        let each = |sum: f64| if self.references > 0.0 { sum / self.references } else { 0.0 };
        each(self.quiet_ns) + per_request(self.clients, waited_ns, each(self.thinking_ns))
    }

    #[cfg(test)]
    pub(super) fn after(references: f64, fill_ns: f64) -> Tempo {
        let mut disk_ns = [0.0; DISK_USES];
        disk_ns[DiskUse::Fill as usize] = fill_ns;
        Tempo { references, disk_ns, ..Tempo::default() }
    }

    /// S with the reads as they were recently and this time of writes; not a number without a reference.
    fn measured_ns(&self, writes_ns: f64) -> f64 {
        let [fill_ns, prefetch_ns] =
            [DiskUse::Fill, DiskUse::Prefetch].map(|of| self.disk_ns[of as usize] / self.references);
        let write_back_ns = writes_ns * self.beside(DiskUse::WriteBack, DiskUse::Sync);
        let waited_ns = HIT_NS + fill_ns + writes_ns - write_back_ns;
        self.per_reference_ns(waited_ns).max(waited_ns + prefetch_ns + write_back_ns)
    }

    /// The part of the disk time of `beside` and `waited` that no client waits for.
    fn beside(&self, beside: DiskUse, waited: DiskUse) -> f64 {
        let [beside, waited] = [beside, waited].map(|of| self.disk_ns[of as usize]);
        if beside > 0.0 { beside / (beside + waited) } else { 0.0 }
    }
}

/// Frames of a partition that are not cache: data being received and sent. They are in use only while it is.
pub(super) const OTHER_FRAMES: u64 = FRAMES_MIN as u64;

/// Blocks that a partition of `frames` frames can cache.
fn blocks_of(frames: u64) -> u64 {
    frames.saturating_sub(OTHER_FRAMES)
}

/// Miss ratios of reads with `blocks` blocks of cache: for the low end, as estimated, and for the high end.
fn misses(view: &View, blocks: u64) -> [f64; 3] {
    // Without reads the ratio has no weight.
    let misses = view.misses_of_reads(blocks).unwrap_or(1.0);
    view.reuse.absorbed(blocks, misses).map(|more| (misses - more).max(0.0))
}

/// Miss ratios of reads standalone, with a cache of `whole` frames. While the speed is not known, it is full.
fn misses_alone(view: &View, tempo: &Tempo, whole: u64) -> [f64; 3] {
    let seen = tempo.speed().map_or(f64::MAX, |speed| view.reuse.seen as f64 / speed);
    let mut alone = std::array::from_fn(|end| misses(view, blocks_of(whole).min((AHEAD[end] * seen) as u64))[end]);
    // Of a set that moves, new blocks may come with time: alone, as many in more requests.
    if view.reuse.moves {
        alone[0] *= tempo.speed().unwrap_or(1.0);
    }
    alone
}

/// The cost of reads standalone relative to that with `target` of `whole` frames at present, as estimated, and how wide
/// the interval is in which it is.
pub(super) fn gain_of_reads(view: &View, tempo: &Tempo, room: Room, target: u64, whole: u64) -> (f64, f64) {
    // The cache has no blocks that have not been used yet.
    let now = misses(view, blocks_of(target).min(view.reuse.seen));
    let alone = misses_alone(view, tempo, whole);
    let faster = room.slower(whole) / room.slower(target);
    let gains: [f64; 3] =
        std::array::from_fn(|end| if now[end] > 0.0 { (alone[end] / now[end]).min(1.0) * faster } else { faster });
    let (least, most) = gains.iter().fold((1.0_f64, 0.0_f64), |(least, most), &gain| (least.min(gain), most.max(gain)));
    (gains[1], most - least)
}

/// R_cache by partition size.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Frames of the partition; R_cache with it: low end, estimate, high end. All increase.
    points: Vec<(u64, [f64; 3])>,
    /// S standalone, and the time of writes with the present partition, nanoseconds.
    alone_ns: [f64; 3],
    writes_ns: f64,
    /// The reads that need room at once.
    pub(super) room: Room,
}

/// The model of a tenant's mean times of a block.
struct Model<'a> {
    view: &'a View,
    cost: &'a Cost,
    gain: Gain,
    whole: u64,
    tempo: &'a Tempo,
    room: Room,
}

impl Model<'_> {
    /// Time of the part `weight` of all references.
    fn part(&self, weight: f64, misses: f64, disk_ns: f64) -> f64 {
        weight / (self.view.reads + self.view.writes) * (misses * disk_ns + (1.0 - misses) * HIT_NS)
    }

    /// Blocks of the present partition, and the time of writes with it.
    fn present(&self) -> (u64, f64) {
        let had = self.gain.target.saturating_sub(OTHER_FRAMES).max(1);
        // Without writes the ratio has no weight.
        let misses = self.view.misses_of_writes(had).unwrap_or(1.0);
        (had, self.part(self.view.writes, misses, self.cost.write_ns(had / 2)))
    }

    /// Time of writes with `blocks`. Up to the present partition costs are measured; beyond it the miniatures of dirty
    /// data estimate them.
    fn writes_ns(&self, blocks: u64) -> f64 {
        match self.present() {
            (had, writes_ns) if blocks > had => writes_ns * self.gain.at(blocks + OTHER_FRAMES, self.whole),
            _ => {
                // Without cache each write goes to the disk.
                let misses = self.view.misses_of_writes(blocks).filter(|_| blocks > 0).unwrap_or(1.0);
                self.part(self.view.writes, misses, self.cost.write_ns(blocks / 2))
            }
        }
    }

    /// S with `frames` frames, for a miss ratio of reads and a time of writes.
    fn time_ns(&self, frames: u64, reads: f64, writes_ns: f64) -> f64 {
        let read_ns = self.cost.read_ns() * self.room.slower(frames) / self.room.slower(self.gain.target);
        let reads_ns = self.part(self.view.reads, reads, read_ns);
        let beside_ns = reads_ns * self.tempo.beside(DiskUse::Prefetch, DiskUse::Fill)
            + writes_ns * self.tempo.beside(DiskUse::WriteBack, DiskUse::Sync);
        let waited_ns = (reads_ns + writes_ns - beside_ns).max(0.0);
        let time_ns = self.tempo.per_reference_ns(waited_ns).max(waited_ns + beside_ns);
        debug_assert!(time_ns.is_finite());
        time_ns.max(f64::MIN_POSITIVE)
    }

    /// S standalone. Writes cost what they cost with the whole cache, less the gain because the same writes come
    /// sooner.
    fn alone_ns(&self) -> [f64; 3] {
        let ((_, present_ns), gain) = (self.present(), &self.gain);
        let writes_ns = self.writes_ns(blocks_of(self.whole)) - present_ns * (gain.roomy - gain.alone);
        let less = gain.alone.powf(GAIN_POWER) * (1.0 - WRITE_ERROR * gain.chosen);
        let writes = [writes_ns - present_ns * (gain.alone - less), writes_ns, writes_ns];
        let reads = misses_alone(self.view, self.tempo, self.whole);
        std::array::from_fn(|end| self.time_ns(self.whole, reads[end], writes[end].max(0.0)))
    }
}

impl Load {
    /// From a curve, measured disk times, the gain by more dirty data, the tempo, and the reads that need room at once;
    /// `None` without references. `whole`: frames of the whole cache.
    pub(super) fn new(view: &View, cost: &Cost, gain: Gain, tempo: &Tempo, room: Room, whole: u64) -> Option<Load> {
        if view.reads + view.writes <= 0.0 {
            return None;
        }
        let model = Model { view, cost, gain, whole, tempo, room };
        let known = |point: &&Point| {
            let has = |weight: f64, misses: Option<f64>| weight == 0.0 || misses.is_some();
            has(view.reads, point.reads) && has(view.writes, point.writes)
        };
        // The last point is at the whole cache, or the next one above it: interpolation between two points is accurate
        // enough.
        let past = view.points.partition_point(|point| OTHER_FRAMES + point.blocks < whole) + 1;
        let sizes = view.points[..past.min(view.points.len())].iter().filter(known).map(|point| point.blocks);
        let nothing = model.time_ns(OTHER_FRAMES, 1.0, model.writes_ns(0));
        let mut points = vec![(OTHER_FRAMES, [nothing; 3])];
        for blocks in sizes {
            let writes_ns = model.writes_ns(blocks);
            let frames = OTHER_FRAMES + blocks;
            points.push((frames, misses(view, blocks).map(|reads| model.time_ns(frames, reads, writes_ns))));
        }
        let (mut least, alone) = ([f64::MAX; 3], model.alone_ns());
        for (_, ends) in &mut points {
            for end in 0..3 {
                // More cache is never worse: if the measurement says so, that is noise.
                least[end] = least[end].min(ends[end]);
                ends[end] = (alone[end] / least[end]).min(1.0);
            }
            (ends[0], ends[2]) = (ends[0].min(ends[1]), ends[2].max(ends[1]));
        }
        Some(Load { points, alone_ns: alone, writes_ns: model.present().1, room })
    }

    /// R_cache with `frames` frames that are in use: interpolated linearly.
    pub(super) fn keeps(&self, frames: u64) -> Keeps {
        let past = self.points.partition_point(|point| point.0 < frames);
        let Some(&(after, to)) = self.points.get(past) else { return Keeps::of(self.points[past - 1].1) };
        let Some(&(before, from)) = past.checked_sub(1).map(|at| &self.points[at]) else { return Keeps::of(to) };
        let part = (frames - before) as f64 / (after - before) as f64;
        Keeps::of(std::array::from_fn(|end| from[end] + (to[end] - from[end]) * part))
    }

    /// `keeps`, or R as measured from the disk time of recent reads if that is far less ([`FAR_LESS`]).
    pub(super) fn as_measured(&self, keeps: Keeps, tempo: &Tempo) -> Keeps {
        let now_ns = tempo.measured_ns(self.writes_ns);
        let measured = Keeps::of(self.alone_ns.map(|alone_ns| alone_ns / now_ns));
        if measured.point < FAR_LESS * keeps.point { measured } else { keeps }
    }

    /// The smallest size of the curve of at least `frames` frames, or `frames`.
    pub(super) fn size_from(&self, frames: u64) -> u64 {
        let past = self.points.partition_point(|point| point.0 < frames);
        self.points.get(past).map_or(frames, |point| point.0)
    }

    /// The smallest partition, in frames and of the sizes of the curve, with a low end of R_cache of at least `keeps`;
    /// at most [`CAUTION`] times that by the estimate: more would take memory from others for what may not be there.
    pub(super) fn least(&self, keeps: f64) -> u64 {
        let by = |end: usize| {
            let at = self.points.partition_point(|point| point.1[end] < keeps);
            self.points[at.min(self.points.len() - 1)].0
        };
        by(0).min(CAUTION * by(1))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::curve::{Curve, Limits, Reuse};
    use crate::eviction::Policy as EvictionPolicy;
    use crate::ids::VolumeId;
    use crate::units::SECOND;

    /// Reads only, with these miss ratios by size.
    pub(in super::super) fn reads(misses: &[(u64, f64)]) -> View {
        let point = |&(blocks, misses)| Point { blocks, reads: Some(misses), writes: None, all: Some(misses) };
        let points = misses.iter().map(point).collect();
        View {
            policy: EvictionPolicy::Lru,
            points,
            reads: 1000.0,
            writes: 0.0,
            reuse: Reuse::default(),
            rate: 1.0,
            samples: 100,
        }
    }

    /// A miss takes 5 ms.
    pub(in super::super) fn cost() -> Cost {
        let mut cost = Cost::default();
        cost.read(5_000_000, 1);
        cost
    }

    /// More dirty data gains nothing.
    pub(in super::super) fn new(view: &View, cost: &Cost, whole: u64) -> Option<Load> {
        Load::new(
            view,
            cost,
            Gain { target: whole, roomy: 1.0, alone: 1.0, chosen: 0.0, open: 0.0 },
            &Tempo::default(),
            Room::default(),
            whole,
        )
    }

    #[test]
    fn throughput_follows_what_goes_to_the_disk() {
        let load = new(&reads(&[(1000, 0.8), (2000, 0.4), (4000, 0.4)]), &cost(), 5000).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} {b}");
        near(load.keeps(OTHER_FRAMES).point, 0.4);
        near(load.keeps(OTHER_FRAMES + 1000).point, 0.5);
        near(load.keeps(OTHER_FRAMES + 1500).point, 0.75);
        near(load.keeps(1 << 30).point, 1.0);
        assert_eq!([0.3, 0.45, 0.9].map(|keeps| load.least(keeps)), [0, 1000, 2000].map(|c| c + OTHER_FRAMES));
    }

    #[test]
    fn a_stream_needs_no_cache_and_an_unused_tenant_has_no_load() {
        let load = new(&reads(&[(1000, 1.0), (4000, 1.0)]), &cost(), 5000).unwrap();
        assert_eq!((load.keeps(OTHER_FRAMES).point, load.least(0.999)), (1.0, OTHER_FRAMES));
        assert!(new(&View { reads: 0.0, ..reads(&[]) }, &cost(), 5000).is_none());
    }

    #[test]
    fn more_dirt_is_cheaper_to_write() {
        let mut cost = Cost::default();
        cost.wrote(64 * 8_000_000, 64, 500);
        cost.wrote(64 * 4_000_000, 64, 2000);
        let points = [1000, 4000].map(|blocks| Point { blocks, reads: None, writes: Some(1.0), all: Some(1.0) });
        let view = View { reads: 0.0, writes: 10.0, points: points.into(), ..reads(&[]) };
        let load = new(&view, &cost, 4000 + OTHER_FRAMES).unwrap();
        assert_eq!((load.keeps(1000 + OTHER_FRAMES).point, load.least(0.6)), (0.5, 4000 + OTHER_FRAMES));
    }

    #[test]
    fn what_is_more_than_the_whole_cache_does_not_count() {
        let load = new(&reads(&[(1000, 0.5), (3000, 0.5), (4000, 0.01)]), &cost(), 3000 + OTHER_FRAMES).unwrap();
        assert_eq!(load.least(0.99), 1000 + OTHER_FRAMES);
    }

    #[test]
    fn what_dirt_would_gain_with_more_cache_and_what_only_alone() {
        let mut cost = Cost::default();
        cost.wrote(64 * 8_000_000, 64, 500);
        let points = [1000, 16_000].map(|blocks| Point { blocks, reads: None, writes: Some(1.0), all: Some(1.0) });
        let view = View { reads: 0.0, writes: 10.0, points: points.into(), ..reads(&[]) };
        let gain = Gain { target: 1000 + OTHER_FRAMES, roomy: 0.5, alone: 0.25, chosen: 0.0, open: 0.0 };
        let load = Load::new(&view, &cost, gain, &Tempo::default(), Room::default(), 16_000 + OTHER_FRAMES).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} {b}");
        near(load.keeps(1000 + OTHER_FRAMES).point, 0.25);
        near(load.keeps(16_000 + OTHER_FRAMES).point, 0.5);
    }

    /// A uniformly used set of 8,000 blocks after 3,000 reads.
    fn uniform() -> View {
        let mut curve = Curve::new(Limits::exact(1 << 14, SECOND), 0);
        curve.opened(VolumeId(0));
        let mut at = 1u64;
        for _ in 0..3000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            curve.read(0, VolumeId(0), (at >> 33) % 8000, u8::MAX, false);
        }
        curve.view(EvictionPolicy::Lru)
    }

    #[test]
    fn first_references_may_be_unseen_reuse() {
        let gain = Gain { target: 1000, roomy: 1.0, alone: 1.0, chosen: 0.0, open: 0.0 };
        let keeps = |tempo: &Tempo| {
            let load = Load::new(&uniform(), &cost(), gain, tempo, Room::default(), 4000 + OTHER_FRAMES).unwrap();
            (load.keeps(1000 + OTHER_FRAMES), load.keeps(2600 + OTHER_FRAMES))
        };
        // A cache of half of the set against one of an eighth.
        let (eighth, seen) = keeps(&Tempo::default());
        let truth = (1.0 - 0.5) / (1.0 - 0.125);
        assert!((eighth.low..eighth.high).contains(&truth) && (eighth.point - truth).abs() < 0.1, "{eighth:?} {truth}");
        assert!(seen.point < 0.9, "standalone it would have seen more than it has: {seen:?}");
        // If it runs as fast as alone, it would not, and a cache of what it has seen is as good.
        let (_, seen) = keeps(&Tempo { own_cache_ns: 1.0, there_ns: 1.0, ..Tempo::default() });
        assert!(seen.point > 0.95, "{seen:?}");
    }

    #[test]
    fn a_client_that_pauses_has_no_use_for_cache() {
        let view = reads(&[(1000, 0.8), (2000, 0.4), (4000, 0.4)]);
        let tempo = Tempo { quiet_ns: 100e6, references: 1.0, ..Tempo::default() };
        let gain = Gain { target: 1000, roomy: 1.0, alone: 1.0, chosen: 0.0, open: 0.0 };
        let load = Load::new(&view, &cost(), gain, &tempo, Room::default(), 5000).unwrap();
        let keeps = load.keeps(1000 + OTHER_FRAMES).point;
        assert!((keeps - (100.0 + 2.0) / (100.0 + 4.0)).abs() < 0.001, "{keeps}");
    }

    #[test]
    fn the_width_of_a_gain_is_a_part_of_the_time() {
        let gain = |alone, chosen, open| Gain { target: 1000, roomy: 1.0, alone, chosen, open }.width();
        assert_eq!(
            [gain(1.0, 0.0, 0.0), gain(1.0, 1.0, 0.0), gain(1.0, 0.0, 1.0), gain(0.0, 1.0, 0.0)],
            [0.0, SORTED, 1.0, 0.0]
        );
        assert!((gain(0.5, 0.0, 0.0) - (0.63 - 0.354)).abs() < 1e-3, "{}", gain(0.5, 0.0, 0.0));
    }

    #[test]
    fn between_two_sizes_of_the_curve_the_next_one_is_found() {
        let load = new(&reads(&[(1000, 0.5), (3000, 0.1)]), &cost(), 4000).unwrap();
        let sizes = [0, 999, 1000, 1001, 9000].map(|blocks| load.size_from(blocks + OTHER_FRAMES) - OTHER_FRAMES);
        assert_eq!(sizes, [0, 1000, 1000, 3000, 9000]);
    }

    #[test]
    fn a_gain_by_more_dirty_data_may_be_larger() {
        let mut cost = Cost::default();
        cost.wrote(64 * 8_000_000, 64, 500);
        let points = [1000, 16_000].map(|blocks| Point { blocks, reads: None, writes: Some(1.0), all: Some(1.0) });
        let view = View { reads: 0.0, writes: 10.0, points: points.into(), ..reads(&[]) };
        let keeps = |alone| {
            let gain = Gain { target: 1000 + OTHER_FRAMES, roomy: alone, alone, chosen: 0.0, open: 0.0 };
            Load::new(&view, &cost, gain, &Tempo::default(), Room::default(), 16_000 + OTHER_FRAMES)
                .unwrap()
                .keeps(1000 + OTHER_FRAMES)
        };
        assert_eq!(keeps(1.0), Keeps::UNKNOWN);
        let Keeps { low, point, high } = keeps(0.64);
        assert!((point - 0.64).abs() < 1e-3 && (low - 0.512).abs() < 1e-3 && high == point, "{low} {point}");
    }
}
