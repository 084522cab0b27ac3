//! A naive model of a device with a volatile cache. The fuzzer completes its requests in any order.

use std::collections::HashMap;

use engine::disk::{Io, Op, Segment};
use engine::ids::FrameId;
use engine::units::{BLOCK, SECTOR};

/// Content of a sector, when its write completed, and whether a flush has failed since.
#[derive(Clone, Debug)]
struct Version {
    bytes: Vec<u8>,
    completed: u64,
    doomed: bool,
}

#[derive(Clone, Debug)]
struct Sector {
    stable: Vec<u8>,
    volatile: Vec<Version>,
}

impl Default for Sector {
    fn default() -> Self {
        Sector { stable: vec![0; SECTOR as usize], volatile: Vec::new() }
    }
}

/// A request in the device. A write has the data of the moment when it was submitted.
#[derive(Debug)]
pub struct InFlight {
    /// The request.
    pub io: Io,
    bytes: Vec<u8>,
    submitted: u64,
}

/// The sectors of a volume, and the frames of the driver.
#[derive(Debug)]
pub struct Device {
    sectors: HashMap<u64, Sector>,
    frames: Vec<u8>,
    completions: u64,
}

fn place(segment: &Segment) -> std::ops::Range<usize> {
    let start = segment.frame.0 as usize * BLOCK as usize + usize::from(segment.start);
    start..start + usize::from(segment.len)
}

impl Device {
    pub fn new(frames: usize) -> Device {
        Device { sectors: HashMap::new(), frames: vec![0; frames * BLOCK as usize], completions: 0 }
    }

    /// Bytes of a frame.
    pub fn bytes(&self, frame: FrameId, start: u16, len: u16) -> &[u8] {
        &self.frames[place(&Segment { frame, start, len })]
    }

    pub fn bytes_mut(&mut self, segment: &Segment) -> &mut [u8] {
        &mut self.frames[place(segment)]
    }

    pub fn copy(&mut self, from: FrameId, to: FrameId, start: u16, len: u16) {
        let to = place(&Segment { frame: to, start, len }).start;
        self.frames.copy_within(place(&Segment { frame: from, start, len }), to);
    }

    /// Submits a request.
    pub fn submit(&self, io: &Io) -> InFlight {
        let is_write = matches!(io.op, Op::Write { .. });
        let bytes = if is_write {
            io.segments.iter().flat_map(|s| &self.frames[place(s)]).copied().collect()
        } else {
            Vec::new()
        };
        InFlight { io: io.clone(), bytes, submitted: self.completions }
    }

    /// Completes a request. Of a write that fails, every other sector is written, and no flush makes these durable.
    pub fn complete(&mut self, request: InFlight, fails: bool) {
        self.completions += 1;
        let InFlight { io, bytes, submitted } = request;
        match io.op {
            Op::Read if fails => {}
            Op::Read => self.read(&io),
            Op::Flush => self.sectors.values_mut().for_each(|sector| sector.flush(submitted, fails)),
            Op::Write { .. } | Op::Zero | Op::Punch => {
                let durable = io.op == Op::Write { durable: true } && !fails;
                for (i, at) in (io.offset..io.offset + io.len).step_by(SECTOR as usize).enumerate() {
                    if fails && i % 2 == 0 {
                        continue;
                    }
                    let from = i * SECTOR as usize;
                    let bytes = bytes.get(from..from + SECTOR as usize).unwrap_or(&[0; SECTOR as usize]);
                    if bytes.iter().all(|&byte| byte == 0) && !self.sectors.contains_key(&(at / SECTOR)) {
                        // A new volume reads as zeros, so zeros change nothing.
                        continue;
                    }
                    let sector = self.sectors.entry(at / SECTOR).or_default();
                    sector.volatile.push(Version { bytes: bytes.to_vec(), completed: self.completions, doomed: fails });
                    if durable {
                        sector.settle(sector.volatile.len() - 1);
                    }
                }
            }
        }
    }

    fn read(&mut self, io: &Io) {
        let mut at = io.offset;
        for segment in &io.segments {
            for place in place(segment).step_by(SECTOR as usize) {
                let bytes = self.sectors.get(&(at / SECTOR)).map_or(&[0; SECTOR as usize][..], Sector::newest);
                self.frames[place..place + SECTOR as usize].copy_from_slice(bytes);
                at += SECTOR;
            }
        }
    }

    /// All contents of a sector that are possible after a power cut.
    pub fn survivors(&self, sector: u64) -> Vec<&[u8]> {
        let Some(sector) = self.sectors.get(&sector) else { return vec![&[0; SECTOR as usize]] };
        std::iter::once(&sector.stable)
            .chain(sector.volatile.iter().map(|version| &version.bytes))
            .map(|b| &b[..])
            .collect()
    }
}

impl Sector {
    fn newest(&self) -> &[u8] {
        self.volatile.last().map_or(&self.stable, |version| &version.bytes)
    }

    fn settle(&mut self, at: usize) {
        self.stable = self.volatile.drain(..=at).next_back().expect("the newest").bytes;
    }

    fn flush(&mut self, submitted: u64, fails: bool) {
        if fails {
            self.volatile.iter_mut().for_each(|version| version.doomed = true);
        } else if let Some(at) = self.volatile.iter().rposition(|v| !v.doomed && v.completed <= submitted) {
            self.settle(at);
        }
    }
}
