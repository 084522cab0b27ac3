//! The simulated disk of the world: its content, its volatile write cache, and its faults. Completion times come from a
//! [`drive`] of any kind.
//!
//! A request takes effect when it completes. Requests complete in any order, so the result of overlapping requests in
//! flight is random.
//!
//! All volumes share the device's volatile cache. A failed flush, reported for one volume, may drop any part of the
//! cached data of all volumes, including data of requests whose completion the server has not seen yet. A failed
//! durable write may be such a failed flush. A successful flush counts for its own volume only.

pub mod drive;
pub mod probe;
pub mod truth;

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::disk::{Io, Op};
use engine::ids::{IoId, VolumeId};
use engine::nbd::Errno;
use engine::units::{BLOCK, Nanos, SECTOR};

use self::drive::{Drive, Tag};
use crate::Verdict;
use crate::fault::Faults;
use crate::frames::Frames;
use crate::medium::{Content, Fate, Medium, Turn};
use crate::rng::Rng;

/// The distance between the starts of volumes on the drive: far enough that the arm moves between them, near enough
/// that several fit.
const VOLUME_PITCH: u64 = 1 << 30;
/// The longest request that the drive is charged with, bytes. Zeroing can be as long as a volume, which may be longer
/// than the drive; the rest takes no time.
const REQUEST_MAX: u64 = 1 << 20;

/// The limits of a disk that the engine must observe.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of requests in the device.
    pub depth: u32,
    /// Unit of offsets and lengths, bytes.
    pub block_bytes: u64,
}

#[derive(Debug)]
struct InFlight {
    io: Io,
    data: Rc<Vec<u8>>,
    submitted: Turn,
    submitted_at: Nanos,
    error: Option<Errno>,
    /// When a failed flush dropped its data from the device's cache, although the request itself will succeed.
    dropped: Option<Turn>,
}

/// A completed request.
#[derive(Debug)]
pub struct Completion {
    /// The request.
    pub io: Io,
    /// The result that the engine receives.
    pub result: Result<(), Errno>,
}

/// A volume on the disk.
#[derive(Debug)]
struct Volume {
    size: u64,
    /// First byte on the drive.
    base: u64,
    medium: Medium,
}

/// A disk with its volumes.
#[derive(Debug)]
pub struct Disk {
    limits: Limits,
    drive: Box<dyn Drive>,
    /// The fault rates from now on.
    pub faults: Faults,
    /// If set, only requests of this volume hang.
    pub hangs: Option<VolumeId>,
    rng: Rng,
    turn: Turn,
    /// Number of server processes so far. Request numbers are unique only within one of them.
    life: u64,
    in_flight: BTreeMap<IoId, InFlight>,
    /// Requests of dead server processes: they still take effect, but their completions are not reported.
    orphans: BTreeMap<(u64, IoId), InFlight>,
    /// Hung requests: not returned until [`Disk::release_hung`]; with the time since when.
    hung: Vec<(Nanos, u64, IoId)>,
    volumes: BTreeMap<VolumeId, Volume>,
    /// First byte of the next volume on the drive.
    next_base: u64,
    /// Number of successful flushes.
    pub flushes: u64,
}

impl Disk {
    /// An empty disk with the timing of `drive`.
    pub fn new(limits: Limits, drive: Box<dyn Drive>, faults: Faults, rng: Rng) -> Disk {
        Disk {
            limits,
            drive,
            faults,
            hangs: None,
            rng,
            turn: 0,
            life: 0,
            in_flight: BTreeMap::new(),
            orphans: BTreeMap::new(),
            hung: Vec::new(),
            volumes: BTreeMap::new(),
            next_base: 0,
            flushes: 0,
        }
    }

    /// Creates or resizes `volume`; sizes are rounded up to 4 KiB. A new volume begins [`VOLUME_PITCH`] after the last.
    pub fn set_size(&mut self, volume: VolumeId, size: u64) {
        let size = size.next_multiple_of(BLOCK);
        let base = self.next_base;
        let state = self.volumes.entry(volume).or_insert_with(|| {
            self.next_base += VOLUME_PITCH;
            Volume { size, base, medium: Medium::default() }
        });
        state.size = size;
    }

    /// The content of `volume`.
    pub fn medium(&self, volume: VolumeId) -> &Medium {
        &self.volumes[&volume].medium
    }

    /// The losses of a volume from flushes that failed by `until` are accepted: see [`Medium::forgive`].
    pub fn forgive(&mut self, volume: VolumeId, until: Turn) {
        self.volumes.get_mut(&volume).expect("a volume").medium.forgive(until);
    }

    /// The number of completions so far.
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Deletes the content of a volume; a new volume with this number is empty.
    pub fn delete(&mut self, volume: VolumeId) {
        let state = self.volumes.get_mut(&volume).expect("a volume");
        (state.size, state.medium) = (0, Medium::default());
    }

    /// Whether the device is at its maximum depth.
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= self.limits.depth as usize
    }

    /// Whether a request in the device overlaps this block of `volume`.
    pub fn works_on(&self, volume: VolumeId, block: u64) -> bool {
        let is_about = |io: &Io| io.offset < (block + 1) * BLOCK && block * BLOCK < io.offset + io.len;
        self.in_flight.values().any(|request| request.io.volume == volume && is_about(&request.io))
    }

    /// Number of requests in the device.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The volumes of the requests in the device, and when each was submitted.
    pub fn requests(&self) -> impl Iterator<Item = (VolumeId, Nanos)> {
        self.in_flight.values().map(|request| (request.io.volume, request.submitted_at))
    }

    /// Whether a request of `volume` is in the device.
    pub fn is_busy(&self, volume: VolumeId) -> bool {
        self.in_flight.values().any(|request| request.io.volume == volume)
    }

    /// Whether a flush of `volume` is in the device.
    pub fn is_flushing(&self, volume: VolumeId) -> bool {
        self.in_flight.values().any(|request| request.io.volume == volume && request.io.op == Op::Flush)
    }

    /// Submits a request to the device.
    pub fn submit(&mut self, now: Nanos, id: IoId, io: &Io, frames: &mut Frames) -> Verdict {
        self.check(id, io)?;
        let data = match io.op {
            Op::Write { .. } => frames.begin_device_write(&io.segments)?,
            _ => Vec::new(),
        };
        if io.op == Op::Read {
            frames.begin_device_read(&io.segments)?;
        }
        let error = self.faults.error(io.op, &mut self.rng);
        let (data, submitted) = (Rc::new(data), self.turn);
        self.in_flight
            .insert(id, InFlight { io: io.clone(), data, submitted, submitted_at: now, error, dropped: None });
        let (offset, len) = self.place(io);
        self.drive.submit(now, self.life << 32 | Tag::from(id.0), io.op, offset, len);
        Ok(())
    }

    /// The position of a request on the drive. Volumes can have any size, the drive cannot: positions wrap around at
    /// its end.
    fn place(&self, io: &Io) -> (u64, u64) {
        if io.op == Op::Flush {
            return (0, 0);
        }
        let len = io.len.next_multiple_of(SECTOR).min(REQUEST_MAX);
        let offset = (self.volumes[&io.volume].base + io.offset) % (self.drive.bytes() - REQUEST_MAX);
        (offset / SECTOR * SECTOR, len)
    }

    /// The next due request: the server process that sent it, its number, and when the engine is told (faults delay
    /// it).
    pub fn poll(&mut self, now: Nanos) -> Option<(u64, IoId, Nanos)> {
        loop {
            let (tag, at) = self.drive.poll(now)?;
            let (life, id) = (tag >> 32, IoId(tag as u32));
            let request = if life == self.life { self.in_flight.get(&id) } else { self.orphans.get(&(life, id)) };
            let Some(request) = request else { continue };
            let since = request.submitted_at;
            let may_hang = self.hangs.is_none_or(|volume| volume == request.io.volume);
            if may_hang && self.rng.chance(self.faults.hung) {
                self.hung.push((at, life, id));
                continue;
            }
            return Some((life, id, at.max(since + self.faults.delay(at - since, &mut self.rng))));
        }
    }

    /// The number of the present server process.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// The volumes of the hung requests of the present server process.
    pub fn hung(&self) -> impl Iterator<Item = VolumeId> {
        let of_life = self.hung.iter().filter(|(_, life, _)| *life == self.life);
        of_life.filter_map(|(_, _, id)| Some(self.in_flight.get(id)?.io.volume))
    }

    /// Since when the oldest hung request has been hung.
    pub fn hung_since(&self) -> Option<Nanos> {
        self.hung.first().map(|(since, ..)| *since)
    }

    /// Completes all hung requests.
    pub fn release_hung(&mut self) -> Vec<(u64, IoId)> {
        std::mem::take(&mut self.hung).into_iter().map(|(_, life, id)| (life, id)).collect()
    }

    /// When to poll next.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.drive.poll_timeout()
    }

    fn check(&self, id: IoId, io: &Io) -> Verdict {
        let Some(Volume { size, .. }) = self.volumes.get(&io.volume) else {
            return Err(format!("{io:?}: no such volume"));
        };
        let unit = self.limits.block_bytes;
        let in_segments: u64 = io.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let wrong = if self.in_flight.contains_key(&id) {
            "its number is in use"
        } else if self.in_flight.len() >= self.limits.depth as usize {
            "there are too many in the device"
        } else if io.op == Op::Flush {
            return Ok(());
        } else if io.len == 0 || !io.offset.is_multiple_of(unit) || !io.len.is_multiple_of(unit) {
            "it is not in whole blocks of the device"
        } else if io.offset.checked_add(io.len).is_none_or(|end| end > *size) {
            "it is outside of the volume"
        } else if matches!(io.op, Op::Read | Op::Write { .. }) && in_segments != io.len {
            "its segments are not its length"
        } else if io.segments.iter().any(|s| !u64::from(s.start).is_multiple_of(SECTOR) || s.len == 0) {
            "its segments are not aligned"
        } else {
            return Ok(());
        };
        Err(format!("{io:?}: {wrong}"))
    }

    /// Completes a request: its effect on content and frames, and its result.
    pub fn complete(&mut self, id: IoId, frames: &mut Frames) -> Completion {
        let request = self.in_flight.remove(&id).expect("a request in flight");
        let io = &request.io;
        self.turn += 1;
        let fate = |fate| request.dropped.map_or(fate, Fate::Doomed);
        let medium = &mut self.volumes.get_mut(&io.volume).expect("its volume").medium;
        match (io.op, request.error) {
            (Op::Read, None) => {
                let mut data = vec![0; io.len as usize];
                medium.read(io.offset, &mut data);
                frames.end_device_read(&io.segments, Some(&data));
            }
            (Op::Read, Some(_)) => frames.end_device_read(&io.segments, None),
            (Op::Flush, None) => {
                self.flushes += 1;
                medium.flush(request.submitted + 1);
            }
            (Op::Flush, Some(_)) => {}
            (Op::Write { durable: true }, None) => apply(medium, &request, fate(Fate::Durable), self.turn, |_| true),
            (Op::Write { .. } | Op::Zero | Op::Punch, None) => {
                apply(medium, &request, fate(Fate::Volatile), self.turn, |_| true);
            }
            (_, Some(Errno::NoSpace | Errno::NotSupported)) => {}
            // The remains of a failed write are forgiven with the next accepted loss, even if that was requested while
            // the write waited in the engine's queue. A flush that failed meanwhile is a loss of its own.
            (_, Some(_)) => {
                let since = request.dropped.unwrap_or(0);
                apply(medium, &request, Fate::Doomed(since), self.turn, |_| self.rng.one_in(2));
            }
        }
        if matches!(io.op, Op::Write { .. }) {
            frames.end_device_write(&io.segments);
        }
        let flush_failed = match (io.op, request.error) {
            (Op::Flush, Some(_)) => true,
            (Op::Write { durable: true }, Some(Errno::Io)) => self.rng.one_in(2),
            _ => false,
        };
        if flush_failed {
            self.drop_cached();
        }
        Completion { result: request.error.map_or(Ok(()), Err), io: request.io }
    }

    /// A flush fails: all data in the device's cache is dropped, or any part of it.
    fn drop_cached(&mut self) {
        let (rng, now) = (&mut self.rng, self.turn);
        let all = rng.one_in(2);
        for volume in self.volumes.values_mut() {
            volume.medium.doom(now, || all || rng.one_in(2));
        }
        for request in self.in_flight.values_mut().chain(self.orphans.values_mut()) {
            request.dropped = if rng.one_in(2) { Some(now) } else { request.dropped };
        }
    }

    /// The power fails: requests in flight may have taken effect in part, volatile data may survive in part.
    pub fn power_cut(&mut self, now: Nanos) {
        (self.turn, self.life) = (self.turn + 1, self.life + 1);
        self.hung.clear();
        let orphans = std::mem::take(&mut self.orphans).into_values();
        for request in std::mem::take(&mut self.in_flight).into_values().chain(orphans) {
            if !matches!(request.io.op, Op::Read | Op::Flush) {
                let medium = &mut self.volumes.get_mut(&request.io.volume).expect("its volume").medium;
                apply(medium, &request, Fate::Volatile, self.turn, |_| self.rng.one_in(2));
            }
        }
        for volume in self.volumes.values_mut() {
            volume.medium.power_cut(&mut self.rng);
        }
        self.drive.power_cut(now);
    }
}

/// Restarts of the server without a power cut.
impl Disk {
    /// The server's process dies. Its requests in the device continue.
    pub fn server_died(&mut self) {
        let life = self.life;
        self.life += 1;
        self.orphans.extend(std::mem::take(&mut self.in_flight).into_iter().map(|(id, request)| ((life, id), request)));
        self.volumes.values_mut().for_each(|volume| volume.medium.forgive(Turn::MAX));
    }

    /// Whether requests of dead server processes for `volume` are in the device.
    pub fn has_orphans(&self, volume: VolumeId) -> bool {
        self.orphans.values().any(|request| request.io.volume == volume)
    }

    /// A request of a dead server process completes; returns its volume. `None` if the power has failed since.
    pub fn land(&mut self, life: u64, id: IoId) -> Option<VolumeId> {
        let request = self.orphans.remove(&(life, id))?;
        let io = &request.io;
        self.turn += 1;
        let medium = &mut self.volumes.get_mut(&io.volume).expect("its volume").medium;
        let fate = match (io.op, request.dropped) {
            (Op::Read | Op::Flush, _) => return Some(io.volume),
            (_, Some(since)) => Fate::Doomed(since),
            (Op::Write { durable: true }, None) => Fate::Durable,
            _ => Fate::Volatile,
        };
        match request.error {
            None => apply(medium, &request, fate, self.turn, |_| true),
            Some(Errno::NoSpace | Errno::NotSupported) => {}
            Some(_) => apply(medium, &request, Fate::Volatile, self.turn, |_| self.rng.one_in(2)),
        }
        Some(request.io.volume)
    }
}

/// Puts those sectors of a request on the medium that `keep` selects.
fn apply(medium: &mut Medium, request: &InFlight, fate: Fate, turn: Turn, mut keep: impl FnMut(u64) -> bool) {
    let (offset, len) = (request.io.offset, request.io.len);
    if matches!(request.io.op, Op::Write { .. }) {
        for at in (0..len).step_by(SECTOR as usize) {
            if keep(at) {
                medium.write((offset + at) / SECTOR, Content::new(&request.data, at), fate, turn);
            }
        }
    } else {
        for sector in medium.written_sectors(offset, len) {
            if keep(sector) {
                medium.write(sector, Content::default(), fate, turn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::drive::lanes::{Lanes, LanesSpec};
    use super::*;
    use crate::medium::Blocks;
    use engine::disk::Segment;
    use engine::ids::FrameId;

    const V: VolumeId = VolumeId(0);
    const LIMITS: Limits = Limits { depth: 4, block_bytes: 512 };
    const LANES: LanesSpec = LanesSpec { parallel: 2, service_ns: 100, block_ns: 10, flush_ns: 1000 };

    fn disk(faults: Faults) -> (Disk, Frames) {
        let mut disk = Disk::new(LIMITS, Box::new(Lanes::new(LANES, Rng::new(2))), faults, Rng::new(1));
        disk.set_size(V, 1 << 20);
        (disk, Frames::new(4))
    }

    fn io(op: Op, offset: u64, frame: u32) -> Io {
        let segments = vec![Segment::whole(FrameId(frame))];
        match op {
            Op::Read | Op::Write { .. } => Io { op, volume: V, offset, len: BLOCK, segments, head: Vec::new() },
            _ => Io { op, volume: V, offset, len: BLOCK, segments: Vec::new(), head: Vec::new() },
        }
    }

    fn run(disk: &mut Disk, frames: &mut Frames, io: &Io) -> Result<(), Errno> {
        disk.submit(0, IoId(9), io, frames).unwrap();
        disk.complete(IoId(9), frames).result
    }

    #[test]
    fn what_is_written_is_read() {
        let (mut disk, mut frames) = disk(Faults::NONE);
        frames.receive(FrameId(1), 0, 4096).unwrap().fill(7);
        run(&mut disk, &mut frames, &io(Op::Write { durable: false }, 4096, 1)).unwrap();
        run(&mut disk, &mut frames, &io(Op::Read, 4096, 2)).unwrap();
        assert_eq!(frames.read(FrameId(2), 0, 4096).unwrap(), [7; 4096]);
        run(&mut disk, &mut frames, &io(Op::Punch, 4096, 0)).unwrap();
        run(&mut disk, &mut frames, &io(Op::Read, 4096, 2)).unwrap();
        assert_eq!(frames.read(FrameId(2), 0, 4096).unwrap(), [0; 4096]);
    }

    #[test]
    fn a_flush_covers_what_completed_before_it_was_submitted() {
        let (mut disk, mut frames) = disk(Faults::NONE);
        frames.receive(FrameId(1), 0, 4096).unwrap().fill(7);
        let (write, flush) = (io(Op::Write { durable: false }, 0, 1), io(Op::Flush, 0, 0));
        disk.submit(0, IoId(1), &write, &mut frames).unwrap();
        disk.submit(0, IoId(2), &flush, &mut frames).unwrap();
        disk.complete(IoId(1), &mut frames).result.unwrap();
        disk.complete(IoId(2), &mut frames).result.unwrap();
        assert_eq!(disk.medium(V).block(0).unwrap()[0].survivors().count(), 2);
        run(&mut disk, &mut frames, &flush).unwrap();
        assert_eq!(disk.medium(V).block(0).unwrap()[0].survivors().count(), 1);
    }

    #[test]
    fn faults_show() {
        let (mut disk, mut frames) = disk(Faults { read: 1_000_000, flush: 1_000_000, ..Faults::NONE });
        assert_eq!(run(&mut disk, &mut frames, &io(Op::Read, 0, 2)), Err(Errno::Io));
        assert_ne!(frames.read(FrameId(2), 0, 1).unwrap(), [0]);
        assert_eq!(run(&mut disk, &mut frames, &io(Op::Flush, 0, 0)), Err(Errno::Io));
        disk.faults = Faults { no_space: 1_000_000, ..Faults::NONE };
        assert_eq!(run(&mut disk, &mut frames, &io(Op::Write { durable: true }, 0, 1)), Err(Errno::NoSpace));
        assert!(disk.medium(V).block(0).is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let (mut disk, mut frames) = disk(Faults::NONE);
        assert!(disk.submit(0, IoId(1), &io(Op::Read, 100, 1), &mut frames).is_err());
        assert!(disk.submit(0, IoId(1), &io(Op::Read, 1 << 20, 1), &mut frames).is_err());
        assert!(disk.submit(0, IoId(1), &Io { len: 512, ..io(Op::Read, 0, 1) }, &mut frames).is_err());
        assert!(disk.submit(0, IoId(1), &io(Op::Read, 0, 1), &mut frames).is_ok());
        assert!(disk.submit(0, IoId(1), &io(Op::Read, 0, 2), &mut frames).is_err());
    }
}
