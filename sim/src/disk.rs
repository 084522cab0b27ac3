//! A simple disk: so many requests at a time, each for a fixed time and a little; volatile write cache; faults.
//!
//! Requests take effect when they complete, in any order: whoever has overlapping ones in flight gets what the dice say.
//! No heads yet: that is another disk's subject.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::disk::{Io, IoId, Op, VolumeId};
use engine::nbd::Errno;
use engine::units::{BLOCK, Nanos, SECTOR};

use crate::Verdict;
use crate::fault::Faults;
use crate::frames::Frames;
use crate::medium::{Content, Fate, Medium, Turn};
use crate::rng::Rng;

/// What kind of disk it is.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Requests served at the same time.
    pub parallel: usize,
    /// Nanoseconds for a request, without its bytes.
    pub service_ns: Nanos,
    /// Nanoseconds for each 4 KiB.
    pub block_ns: Nanos,
    /// Nanoseconds for a flush.
    pub flush_ns: Nanos,
    /// Requests that the engine may have in it.
    pub depth: u32,
    /// Bytes in which it wants offsets and lengths.
    pub block_bytes: u64,
}

#[derive(Debug)]
struct InFlight {
    io: Io,
    data: Rc<Vec<u8>>,
    submitted: Turn,
    error: Option<Errno>,
}

/// How a request went.
#[derive(Debug)]
pub struct Completion {
    /// What it was.
    pub io: Io,
    /// What the engine is told.
    pub result: Result<(), Errno>,
}

/// A disk with its volumes.
#[derive(Debug)]
pub struct Disk {
    spec: DiskSpec,
    /// What goes wrong from now on.
    pub faults: Faults,
    rng: Rng,
    /// When each of `parallel` servers is free.
    lanes: Vec<Nanos>,
    turn: Turn,
    in_flight: BTreeMap<IoId, InFlight>,
    volumes: BTreeMap<VolumeId, (u64, Medium)>,
    /// Flushes that succeeded.
    pub flushes: u64,
}

impl Disk {
    /// An empty disk.
    pub fn new(spec: DiskSpec, faults: Faults, rng: Rng) -> Disk {
        let lanes = vec![0; spec.parallel];
        let (in_flight, volumes) = (BTreeMap::new(), BTreeMap::new());
        Disk { spec, faults, rng, lanes, turn: 0, in_flight, volumes, flushes: 0 }
    }

    /// Make `volume` or resize it: files are rounded up to 4 KiB.
    pub fn set_size(&mut self, volume: VolumeId, size: u64) {
        self.volumes.entry(volume).or_default().0 = size.next_multiple_of(BLOCK);
    }

    /// What is on it of `volume`.
    pub fn medium(&self, volume: VolumeId) -> &Medium {
        &self.volumes[&volume].1
    }

    /// The file is deleted: another one of this number is empty.
    pub fn delete(&mut self, volume: VolumeId) {
        self.volumes.insert(volume, Default::default());
    }

    /// It takes no more requests now.
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= self.spec.depth as usize
    }

    /// Whether a request in it is about this block of `volume`.
    pub fn works_on(&self, volume: VolumeId, block: u64) -> bool {
        let is_about = |io: &Io| io.offset < (block + 1) * BLOCK && block * BLOCK < io.offset + io.len;
        self.in_flight.values().any(|request| request.io.volume == volume && is_about(&request.io))
    }

    /// Requests in it.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether a request of `volume` is in it.
    pub fn is_busy(&self, volume: VolumeId) -> bool {
        self.in_flight.values().any(|request| request.io.volume == volume)
    }

    /// Whether a flush of `volume` is in it.
    pub fn is_flushing(&self, volume: VolumeId) -> bool {
        self.in_flight.values().any(|request| request.io.volume == volume && request.io.op == Op::Flush)
    }

    /// Give it a request: when it completes.
    pub fn submit(&mut self, now: Nanos, id: IoId, io: &Io, frames: &mut Frames) -> Result<Nanos, String> {
        self.check(id, io)?;
        let data = match io.op {
            Op::Write { .. } => frames.begin_device_write(&io.segments)?,
            _ => Vec::new(),
        };
        if io.op == Op::Read {
            frames.begin_device_read(&io.segments)?;
        }
        let error = self.faults.error(io.op, &mut self.rng);
        let request = InFlight { io: io.clone(), data: Rc::new(data), submitted: self.turn, error };
        self.in_flight.insert(id, request);
        Ok(self.service(now, io))
    }

    fn check(&self, id: IoId, io: &Io) -> Verdict {
        let Some((size, _)) = self.volumes.get(&io.volume) else { return Err(format!("{io:?}: no such volume")) };
        let unit = self.spec.block_bytes;
        let in_segments: u64 = io.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let wrong = if self.in_flight.contains_key(&id) {
            "its number is in use"
        } else if self.in_flight.len() >= self.spec.depth as usize {
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

    /// When a request that comes now is done.
    fn service(&mut self, now: Nanos, io: &Io) -> Nanos {
        let base_ns = match io.op {
            Op::Flush => self.spec.flush_ns,
            Op::Zero | Op::Punch => self.spec.service_ns,
            Op::Read | Op::Write { .. } => self.spec.service_ns + self.spec.block_ns * io.len / BLOCK,
        };
        let varied_ns = base_ns + self.rng.below(base_ns + 1);
        let lane = self.lanes.iter_mut().min().expect("at least one lane");
        let done = now.max(*lane) + self.faults.delay(varied_ns, &mut self.rng);
        *lane = done;
        done
    }

    /// A request completes.
    pub fn complete(&mut self, id: IoId, frames: &mut Frames) -> Completion {
        let request = self.in_flight.remove(&id).expect("a request in flight");
        let io = &request.io;
        self.turn += 1;
        let medium = &mut self.volumes.get_mut(&io.volume).expect("its volume").1;
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
            (Op::Flush, Some(_)) => medium.doom(),
            (Op::Write { durable: true }, None) => apply(medium, &request, Fate::Durable, self.turn, |_| true),
            (Op::Write { .. } | Op::Zero | Op::Punch, None) => {
                apply(medium, &request, Fate::Volatile, self.turn, |_| true);
            }
            (_, Some(Errno::NoSpace)) => {}
            (_, Some(_)) => apply(medium, &request, Fate::Doomed, self.turn, |_| self.rng.one_in(2)),
        }
        if matches!(io.op, Op::Write { .. }) {
            frames.end_device_write(&io.segments);
        }
        Completion { result: request.error.map_or(Ok(()), Err), io: request.io }
    }

    /// The power fails: what was in flight may have happened in part, what was volatile may survive in part.
    pub fn power_cut(&mut self) {
        self.turn += 1;
        for request in std::mem::take(&mut self.in_flight).into_values() {
            if !matches!(request.io.op, Op::Read | Op::Flush) {
                let medium = &mut self.volumes.get_mut(&request.io.volume).expect("its volume").1;
                apply(medium, &request, Fate::Volatile, self.turn, |_| self.rng.one_in(2));
            }
        }
        for (_, medium) in self.volumes.values_mut() {
            medium.power_cut(&mut self.rng);
        }
        self.lanes.fill(0);
    }
}

/// Put those sectors of a request on the medium that `keep` chooses.
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
    use super::*;
    use engine::cache::FrameId;
    use engine::disk::Segment;

    const V: VolumeId = VolumeId(0);
    const SPEC: DiskSpec =
        DiskSpec { parallel: 2, service_ns: 100, block_ns: 10, flush_ns: 1000, depth: 4, block_bytes: 512 };

    fn disk(faults: Faults) -> (Disk, Frames) {
        let mut disk = Disk::new(SPEC, faults, Rng::new(1));
        disk.set_size(V, 1 << 20);
        (disk, Frames::new(4))
    }

    fn io(op: Op, offset: u64, frame: u32) -> Io {
        let segments = vec![Segment::whole(FrameId(frame))];
        match op {
            Op::Read | Op::Write { .. } => Io { op, volume: V, offset, len: BLOCK, segments },
            _ => Io { op, volume: V, offset, len: BLOCK, segments: Vec::new() },
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
