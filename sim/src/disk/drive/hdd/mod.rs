//! A hard disk: one arm, a bus, a command queue, a read cache with read-ahead and a write cache.
//!
//! ```text
//!   submit ─┬─ in a cache? ───────────────────────────────────────► bus ──► done
//!           ├─ a write, and the write cache is on ──► bus ──► dirty sectors, done
//!           └─ waiting ──► the queue chooses ──► the arm: move, wait, transfer ──► bus ──► done
//!                              ▲                  │ nothing waits: read ahead, destage dirty sectors
//!                              └──────────────────┘
//! ```
//!
//! The arm serves one request at a time, to its end, so `free_at` (the end of its present work) is all its state that
//! others need. Read-ahead is not an event: its position is computed on demand (see [`Hdd::read_on`]). The next request
//! is chosen at a separate time (`decide_at`), never when the previous one is served, so a request that arrives by then
//! is considered.
//!
//! Sources: Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994; DiskSim 4.0 for
//! the parts of a description and their meaning. `docs/design/disk.md` has the accuracy of the model and its limits.

pub mod cache;
pub mod geometry;
pub mod mech;
pub mod queue;
pub mod seek;

use engine::disk::Op;
use engine::units::{Nanos, SECTOR};

use self::cache::{ReadCache, ReadCacheSpec, WriteCache, WriteCacheSpec};
use self::mech::{Arm, Mechanism, Progress};
use self::queue::{Passing, QueueSpec, Waiting};
use super::done::{Done, earlier};
use super::{Drive, Tag};
use crate::rng::{MILLION, Rng};

/// Any constant: a drive is the same in each run.
const MISSES_SEED: u64 = 1;

/// The bus between drive and host.
#[derive(Clone, Copy, Debug)]
pub struct BusSpec {
    /// Picoseconds per byte: nanoseconds are too coarse.
    pub byte_ps: u64,
    /// The part of a read that must be in the buffer before the bus begins to send it, parts per million: 0 if it is
    /// sent while the medium is being read, [`MILLION`] if it is sent afterwards.
    pub read_water_ppm: u64,
    /// The data of a write crosses the bus while the arm moves, rather than before.
    pub write_overlaps_media: bool,
}

/// Time of the electronics for a request, without any movement.
#[derive(Clone, Copy, Debug)]
pub struct OverheadSpec {
    /// A read that needs the medium.
    pub read_ns: Nanos,
    /// A write that needs the medium.
    pub write_ns: Nanos,
    /// A read from the cache.
    pub read_hit_ns: Nanos,
    /// A write into the cache, or a flush.
    pub write_hit_ns: Nanos,
}

/// The parameters of a hard disk.
#[derive(Clone, Debug)]
pub struct HddSpec {
    /// Its moving parts.
    pub mechanism: Mechanism,
    /// Accesses that miss their first sector and take one more revolution, parts per million: the arm had not settled,
    /// or the data was read wrongly.
    pub missed_ppm: u64,
    /// Its bus.
    pub bus: BusSpec,
    /// Its electronics, for a request after a read and for the first one.
    pub overhead: OverheadSpec,
    /// Its electronics, for a request after a write.
    pub overhead_after_write: OverheadSpec,
    /// Its command queue.
    pub queue: QueueSpec,
    /// Its read cache, if enabled.
    pub read_cache: Option<ReadCacheSpec>,
    /// Its write cache, if enabled.
    pub write_cache: Option<WriteCacheSpec>,
}

/// The read-ahead after a request.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    segment: usize,
    /// Its position.
    progress: Progress,
    /// Where it ends.
    end: u64,
}

/// A flush, and the number of the newest write that it waits for.
#[derive(Clone, Copy, Debug)]
struct Flush {
    tag: Tag,
    ready_at: Nanos,
    turn: u64,
}

/// What the arm does next.
enum Choice {
    Request(usize),
    WriteBack(usize),
}

/// A hard disk.
#[derive(Debug)]
pub struct Hdd {
    mechanism: Mechanism,
    missed_ppm: u64,
    /// For missed revolutions. The seed is constant, so a drive is always the same.
    rng: Rng,
    bus: BusSpec,
    overhead: OverheadSpec,
    overhead_after_write: OverheadSpec,
    /// Whether the last request that arrived is a write.
    after_write: bool,
    queue: QueueSpec,
    read_cache: Option<ReadCache>,
    write_cache: Option<WriteCache>,
    /// Requests that need the arm, oldest first.
    waiting: Vec<Waiting>,
    flushes: Vec<Flush>,
    arm: Arm,
    /// When the arm finishes its present work.
    free_at: Nanos,
    bus_free_at: Nanos,
    ahead: Option<ReadAhead>,
    /// Where and when the arm's last write ended, if it has not moved since.
    wrote: Option<Progress>,
    /// When the last request arrived.
    arrived_at: Nanos,
    /// When the last write-back is on the medium.
    written_at: Nanos,
    /// When the next decision is due.
    decide_at: Option<Nanos>,
    done: Done,
    /// The arm's last busy interval, for the assertion that it serves one request at a time.
    served: (Nanos, Nanos),
}

impl Hdd {
    /// A drive that rotates and is idle, with the arm at the outermost cylinder.
    pub fn new(spec: HddSpec) -> Hdd {
        Hdd {
            mechanism: spec.mechanism,
            missed_ppm: spec.missed_ppm,
            rng: Rng::new(MISSES_SEED),
            bus: spec.bus,
            overhead: spec.overhead,
            overhead_after_write: spec.overhead_after_write,
            after_write: false,
            queue: spec.queue,
            read_cache: spec.read_cache.map(ReadCache::new),
            write_cache: spec.write_cache.map(WriteCache::new),
            waiting: Vec::with_capacity(spec.queue.depth),
            flushes: Vec::new(),
            arm: Arm { cylinder: 0, head: 0 },
            free_at: 0,
            bus_free_at: 0,
            ahead: None,
            wrote: None,
            arrived_at: 0,
            written_at: 0,
            decide_at: None,
            done: Done::default(),
            served: (0, 0),
        }
    }

    /// The last interval in which the arm worked for a request or for destaging.
    pub fn served(&self) -> (Nanos, Nanos) {
        self.served
    }

    /// Time of the electronics for a request that arrives now.
    fn overhead(&self) -> &OverheadSpec {
        if self.after_write { &self.overhead_after_write } else { &self.overhead }
    }

    fn bus_ns(&self, sectors: u64) -> Nanos {
        sectors * SECTOR * self.bus.byte_ps / 1000
    }

    /// Transfers `sectors` over the bus, from `from` or when the bus is free. Returns the end, which is at least
    /// `least`.
    fn transfer(&mut self, from: Nanos, sectors: u64, least: Nanos) -> Nanos {
        let end = (from.max(self.bus_free_at) + self.bus_ns(sectors)).max(least);
        self.bus_free_at = end;
        end
    }

    fn read(&mut self, now: Nanos, tag: Tag, sector: u64, sectors: u64) {
        self.read_on(now);
        if self.is_cached(now, sector, sector + sectors) {
            let end = self.transfer(now + self.overhead().read_hit_ns, sectors, 0);
            self.done.push(end, tag);
            self.extend_ahead(now, sector + sectors);
            return;
        }
        let ready_at = now + self.overhead().read_ns;
        self.wait(now, tag, false, sector, sectors, ready_at, ready_at);
    }

    fn is_cached(&mut self, now: Nanos, start: u64, end: u64) -> bool {
        if self.write_cache.as_ref().is_some_and(|cache| cache.contains(start, end)) {
            return true;
        }
        let Some(cache) = &mut self.read_cache else { return false };
        cache
            .find(start)
            .map(|found| cache.segment(found))
            .is_some_and(|found| end <= found.end && found.read_at <= now)
    }

    fn write(&mut self, now: Nanos, tag: Tag, durable: bool, sector: u64, sectors: u64, data: u64) {
        self.read_on(now);
        let end = sector + sectors;
        if let Some(cache) = &mut self.read_cache {
            cache.forget(sector, end);
            // The segment that is being extended must not cover outdated content.
            if self.ahead.is_some_and(|ahead| sector < ahead.end && ahead.progress.sector < end) {
                self.ahead = None;
            }
        }
        if let Some(cache) = &mut self.write_cache {
            let cached = !durable && cache.insert(sector, end);
            if !cached {
                cache.forget(sector, end);
            }
            // Flushes do not wait for overwritten sectors.
            self.finish_flushes(now);
            if cached {
                let done = self.transfer(now + self.overhead().write_hit_ns, data, 0);
                self.done.push(done, tag);
                return;
            }
        }
        let ready_at = now + self.overhead().write_ns;
        let data_at = self.transfer(ready_at, data, 0);
        let ready_at = if self.bus.write_overlaps_media { ready_at } else { data_at };
        self.wait(now, tag, true, sector, sectors, ready_at, data_at);
    }

    fn flush(&mut self, now: Nanos, tag: Tag) {
        let ready_at = now + self.overhead().write_hit_ns;
        let turn = self.write_cache.as_ref().map_or(0, WriteCache::turn);
        self.flushes.push(Flush { tag, ready_at, turn });
        self.finish_flushes(now);
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a request, once")]
    fn wait(&mut self, now: Nanos, tag: Tag, write: bool, sector: u64, sectors: u64, ready_at: Nanos, data_at: Nanos) {
        let place = self.mechanism.geometry.place(sector);
        let angle_ns = self.mechanism.geometry.angle_ns(&place);
        let request = Waiting { tag, write, sector, sectors, arrived: now, ready_at, data_at, place, angle_ns };
        self.waiting.push(request);
    }

    /// Advances the read-ahead to `now`.
    fn read_on(&mut self, now: Nanos) {
        let (Some(ahead), Some(cache)) = (&mut self.ahead, &mut self.read_cache) else { return };
        ahead.progress = self.mechanism.pass(ahead.progress, ahead.end, now, false);
        cache.extend(ahead.segment, ahead.progress.sector, ahead.progress.at);
        self.arm = ahead.progress.arm;
    }

    /// A request read up to `end` from the cache: if the read-ahead continues there, it is extended.
    fn extend_ahead(&mut self, now: Nanos, end: u64) {
        let (Some(ahead), Some(cache)) = (&mut self.ahead, &self.read_cache) else { return };
        let segment = cache.segment(ahead.segment);
        let further = self.mechanism.ahead_end(end, cache.spec());
        if !(segment.start..=segment.end).contains(&end) || further <= ahead.end {
            return;
        }
        if ahead.progress.sector == ahead.end && ahead.progress.at < now {
            // The read-ahead had stopped: the next sector has to come round again.
            ahead.progress = self.mechanism.reach(now, ahead.progress.arm, ahead.end, false, now);
        }
        ahead.end = further;
    }

    /// Computes when the next decision is due.
    fn plan(&mut self) {
        let mut at = None;
        if let Some(oldest) = self.waiting.first() {
            let free_at = self.free_at.saturating_sub(self.queue.decide_ahead_ns);
            // Usually the oldest request is ready before the arm is free. Only otherwise the first that is ready has to
            // be found.
            let ready_at = match oldest.ready_at <= free_at {
                true => oldest.ready_at,
                false => self
                    .waiting
                    .iter()
                    .take(self.queue.depth)
                    .map(|request| request.ready_at)
                    .fold(Nanos::MAX, Nanos::min),
            };
            at = Some(ready_at.max(free_at));
        }
        if let Some(cache) = self.write_cache.as_ref().filter(|cache| !cache.extents().is_empty()) {
            let must = self.must_write_back();
            let quiet_ns = if must { 0 } else { cache.spec().idle_ns };
            if must || self.waiting.is_empty() {
                at = earlier(at, Some((self.arrived_at + quiet_ns).max(self.free_at)));
            }
        }
        self.decide_at = at;
    }

    fn must_write_back(&self) -> bool {
        !self.flushes.is_empty() || self.write_cache.as_ref().is_some_and(WriteCache::is_high)
    }

    /// Executes all decisions that are due by `now`.
    fn advance(&mut self, now: Nanos) {
        while let Some(at) = self.decide_at.filter(|&at| at <= now) {
            self.read_on(at.max(self.free_at));
            match self.choose(at) {
                Some(Choice::Request(index)) => self.serve(at, index),
                Some(Choice::WriteBack(index)) => self.write_back(at, index),
                None => {}
            }
            self.plan();
        }
    }

    fn choose(&mut self, at: Nanos) -> Option<Choice> {
        let write_back = || {
            let extents = self.write_cache.as_ref()?.extents().iter().enumerate();
            let start = at.max(self.free_at);
            let cost = |sector| self.mechanism.reach(start, self.arm, sector, true, 0).at;
            extents.min_by_key(|(_, extent)| cost(extent.start)).map(|(index, _)| Choice::WriteBack(index))
        };
        if self.must_write_back()
            && let Some(choice) = write_back()
        {
            return Some(choice);
        }
        let passing = self.passing(at.max(self.free_at));
        let request = self.queue.choose(&self.waiting, at, self.free_at, self.arm, passing, &self.mechanism);
        request.map(Choice::Request).or_else(write_back)
    }

    /// Serves a waiting request: from the cache, if its data has arrived there meanwhile, or with the arm.
    fn serve(&mut self, at: Nanos, index: usize) {
        let request = self.waiting.remove(index);
        if request.write {
            let end = self.access(at, &request, request.sector, request.sectors, None);
            self.done.push(end, request.tag);
            return;
        }
        let end_sector = request.sector + request.sectors;
        let found = self.read_cache.as_mut().and_then(|cache| cache.find(request.sector));
        let found = found.zip(self.read_cache.as_ref()).map(|(index, cache)| (index, cache.segment(index)));
        let end = match found {
            Some((_, segment)) if end_sector <= segment.end => {
                let end = self.transfer(at.max(segment.read_at), request.sectors, 0);
                self.extend_ahead(at, end_sector);
                end
            }
            Some((index, segment)) => self.access(at, &request, segment.end, end_sector - segment.end, Some(index)),
            None => self.access(at, &request, request.sector, request.sectors, None),
        };
        self.done.push(end, request.tag);
    }

    /// Moves the arm for `sectors` from `sector` on, the part of `request` that is not cached. Returns the end of the
    /// request.
    fn access(&mut self, at: Nanos, request: &Waiting, sector: u64, sectors: u64, segment: Option<usize>) -> Nanos {
        let start = at.max(self.free_at);
        let begin = match self.passing(start).filter(|passing| passing.is_for(request, sector, start)) {
            Some(passing) => passing.progress,
            None => self.reach(start, sector, request.write, request.data_at),
        };
        self.ahead = None;
        let end = self.occupy(start, begin, sector + sectors, request.write);
        if request.write {
            return end.at;
        }
        self.note_read(request.sector, end, segment);
        let water_at = self.water_at(request, begin, end);
        self.transfer(water_at.max(request.ready_at), request.sectors, end.at + self.bus_ns(1))
    }

    /// When so much of a read is in the buffer that the bus begins to send it. The medium is read from `begin` to
    /// `end`; what comes before that in the request is there already.
    fn water_at(&self, request: &Waiting, begin: Progress, end: Progress) -> Nanos {
        let mark = (request.sectors * self.bus.read_water_ppm).div_ceil(MILLION);
        match request.sector + mark {
            mark if mark <= begin.sector => begin.at,
            mark if mark >= end.sector => end.at,
            mark => self.mechanism.pass(begin, mark, Nanos::MAX, false).at,
        }
    }

    /// When `sector` actually begins to pass: the planned time, or one revolution later if it is missed.
    fn reach(&mut self, start: Nanos, sector: u64, write: bool, data_at: Nanos) -> Progress {
        let mut begin = self.mechanism.reach(start, self.arm, sector, write, data_at);
        if self.missed_ppm > 0 && self.rng.chance(self.missed_ppm) {
            begin.at += self.mechanism.geometry.rotation.period_ns();
        }
        begin
    }

    /// The sector that is about to pass under the heads at `start`, because the drive reads ahead or has just written
    /// the sector before it.
    fn passing(&self, start: Nanos) -> Option<Passing> {
        if let Some(progress) = self.wrote.filter(|wrote| wrote.at == start) {
            return Some(Passing { progress, write: true });
        }
        let ReadAhead { progress, end, .. } = self.ahead?;
        let stopped = progress.sector == end && progress.at < start;
        (!stopped).then_some(Passing { progress, write: false })
    }

    /// Marks the arm as busy from `start`; it transfers from `begin` up to `end`.
    fn occupy(&mut self, start: Nanos, begin: Progress, end: u64, write: bool) -> Progress {
        let end = self.mechanism.pass(begin, end, Nanos::MAX, write);
        assert!(start >= self.served.1 && end.at >= start, "the arm serves one at a time");
        self.served = (start, end.at);
        self.arm = end.arm;
        self.free_at = end.at;
        self.wrote = write.then_some(end);
        end
    }

    /// The arm has read from `from` up to `end`, and reads ahead from there.
    fn note_read(&mut self, from: u64, end: Progress, segment: Option<usize>) {
        let Some(cache) = &mut self.read_cache else { return };
        let reads_on = segment.is_some() || !cache.spec().ahead_after_sequential;
        let ahead_end = if reads_on { self.mechanism.ahead_end(end.sector, cache.spec()) } else { end.sector };
        let segment = segment.unwrap_or_else(|| cache.begin(from));
        cache.extend(segment, end.sector, end.at);
        self.ahead = Some(ReadAhead { segment, progress: end, end: ahead_end });
    }

    fn write_back(&mut self, at: Nanos, index: usize) {
        let Some(cache) = &mut self.write_cache else { return };
        let extent = cache.remove(index);
        self.ahead = None;
        let start = at.max(self.free_at);
        let begin = self.reach(start, extent.start, true, 0);
        self.written_at = self.occupy(start, begin, extent.end, true).at;
        self.finish_flushes(at);
    }

    /// Completes the flushes whose writes are all destaged, once these are on the medium.
    fn finish_flushes(&mut self, now: Nanos) {
        let (cache, done, written_at) = (&self.write_cache, &mut self.done, self.written_at);
        self.flushes.retain(|flush| {
            let waits = cache.as_ref().is_some_and(|cache| cache.holds(flush.turn));
            if !waits {
                done.push(flush.ready_at.max(written_at).max(now), flush.tag);
            }
            waits
        });
    }
}

impl Drive for Hdd {
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64) {
        self.advance(now);
        self.arrived_at = now;
        let (sector, sectors) = (offset / SECTOR, len / SECTOR);
        match op {
            Op::Read => self.read(now, tag, sector, sectors),
            Op::Write { durable } => self.write(now, tag, durable, sector, sectors, sectors),
            // Only the command crosses the bus (WRITE SAME).
            Op::Zero => self.write(now, tag, false, sector, sectors, 0),
            // Drives of this kind do not release space; TRIM concerns only the host and the file system.
            Op::Punch => self.done.push(now + self.overhead().write_hit_ns, tag),
            Op::Flush => self.flush(now, tag),
        }
        match op {
            Op::Read => self.after_write = false,
            Op::Write { .. } | Op::Zero => self.after_write = true,
            Op::Punch | Op::Flush => {}
        }
        self.plan();
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        self.advance(now);
        self.done.pop(now)
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        earlier(self.done.next_at(), self.decide_at)
    }

    fn power_cut(&mut self, now: Nanos) {
        self.waiting.clear();
        self.flushes.clear();
        self.done.clear();
        self.read_cache.iter_mut().for_each(ReadCache::clear);
        self.write_cache.iter_mut().for_each(WriteCache::clear);
        (self.ahead, self.wrote) = (None, None);
        self.after_write = false;
        self.decide_at = None;
        (self.free_at, self.bus_free_at, self.written_at, self.served) = (now, now, now, (now, now));
    }

    fn bytes(&self) -> u64 {
        self.mechanism.geometry.sectors() * SECTOR
    }
}
