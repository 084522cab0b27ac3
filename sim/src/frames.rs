//! The memory of a driver: real bytes behind the engine's frame numbers, and checks of who may access them when.
//!
//! ```text
//!   in a device write ─┐                     in a device read ─┐
//!   in unsent replies ─┴─► must not change                     └─► holds garbage: must neither change nor be used
//! ```
//!
//! The checks are by whole frames, which is stricter than a real machine, but for reads: different devices may read
//! into different parts of a frame at once.
//!
//! The engine returns memory by giving up frames above a limit. A returned frame holds garbage, and using it before the
//! limit is raised above it is an error.

use engine::disk::Segment;
use engine::ids::FrameId;
use engine::units::BLOCK;

use crate::Verdict;

/// The content of a frame while the device may be writing into it.
const GARBAGE: u8 = 0xdb;

/// The present uses of a frame.
#[derive(Clone, Copy, Default, Debug)]
struct Uses {
    device_writes: u32,
    sends: u32,
}

/// All frames, with their bytes and their uses.
#[derive(Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    uses: Vec<Uses>,
    /// What devices read into.
    reading: Vec<Segment>,
    /// The highest frame that the engine may use; the memory of those above it is returned.
    limit: u32,
    /// By frame: its memory was returned.
    given_back: Vec<bool>,
    /// Frames above the limit that are still in use.
    held: u64,
}

impl Frames {
    /// `count` frames of zeros.
    pub fn new(count: usize) -> Frames {
        Frames {
            bytes: vec![0; count * BLOCK as usize],
            uses: vec![Uses::default(); count],
            reading: Vec::new(),
            limit: count as u32 - 1,
            given_back: vec![false; count],
            held: 0,
        }
    }

    /// The highest frame that the engine may use; the memory of those above it is returned.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Frames above the limit that were still in use when [`Frames::give_back`] last looked.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Returns the memory of those frames above `limit` that the engine reports as unused.
    pub fn give_back(&mut self, limit: u32, is_retired: impl Fn(FrameId) -> bool) -> Verdict {
        (self.limit, self.held) = (limit, 0);
        let (below, above) = self.given_back.split_at_mut(limit as usize + 1);
        below.fill(false);
        for (at, given_back) in (limit as usize + 1..).zip(above) {
            let (frame, uses) = (FrameId(at as u32), self.uses[at]);
            let is_read = || self.reading.iter().any(|s| s.frame == frame);
            match is_retired(frame) {
                true if uses.device_writes + uses.sends > 0 || is_read() => {
                    return Err(format!("the memory of {frame:?} may be given back, but it is in use: {uses:?}"));
                }
                true if !*given_back => {
                    *given_back = true;
                    self.bytes[at * BLOCK as usize..][..BLOCK as usize].fill(GARBAGE);
                }
                true => {}
                false if *given_back => return Err(format!("{frame:?} is used after its memory was given back")),
                false => self.held += 1,
            }
        }
        Ok(())
    }

    fn range(&self, frame: FrameId, start: u16, len: u16) -> Result<std::ops::Range<usize>, String> {
        let (start, len) = (usize::from(start), usize::from(len));
        if frame.0 as usize >= self.uses.len() || start + len > BLOCK as usize {
            return Err(format!("{frame:?} {start}+{len}: no such bytes"));
        }
        if self.given_back[frame.0 as usize] {
            return Err(format!("{frame:?} is used after its memory was given back"));
        }
        let at = frame.0 as usize * BLOCK as usize + start;
        Ok(at..at + len)
    }

    fn uses(&mut self, frame: FrameId) -> &mut Uses {
        &mut self.uses[frame.0 as usize]
    }

    /// Whether a device reads into these bytes.
    fn is_being_read(&self, frame: FrameId, start: u16, len: u16) -> bool {
        let overlaps = |s: &Segment| s.frame == frame && s.start < start + len && start < s.start + s.len;
        self.reading.iter().any(overlaps)
    }

    /// The bytes of the range, if they may be changed.
    fn writable(&self, frame: FrameId, start: u16, len: u16) -> Result<std::ops::Range<usize>, String> {
        let range = self.range(frame, start, len)?;
        let uses = self.uses[frame.0 as usize];
        match uses {
            _ if frame == FrameId::ZERO => Err("the frame of zeros is written to".into()),
            Uses { device_writes: 1.., .. } => Err(format!("{frame:?} is changed while the device writes it")),
            Uses { sends: 1.., .. } => Err(format!("{frame:?} is changed while it waits to be sent")),
            _ if self.is_being_read(frame, start, len) => {
                Err(format!("{frame:?} is changed while the device reads into it"))
            }
            _ => Ok(range),
        }
    }

    /// The bytes, if they are defined.
    pub fn read(&self, frame: FrameId, start: u16, len: u16) -> Result<&[u8], String> {
        let range = self.range(frame, start, len)?;
        if self.is_being_read(frame, start, len) {
            return Err(format!("{frame:?} is used while the device reads into it"));
        }
        Ok(&self.bytes[range])
    }

    /// Executes `Action::Copy`.
    pub fn copy(&mut self, from: FrameId, to: FrameId, start: u16, len: u16) -> Verdict {
        self.read(from, start, len)?;
        let (from, to) = (self.range(from, start, len)?, self.writable(to, start, len)?);
        self.bytes.copy_within(from, to.start);
        Ok(())
    }

    /// Executes `Action::Zero`.
    pub fn zero(&mut self, frame: FrameId, start: u16, len: u16) -> Verdict {
        let range = self.writable(frame, start, len)?;
        self.bytes[range].fill(0);
        Ok(())
    }

    /// The bytes into which payload is received.
    pub fn receive(&mut self, frame: FrameId, start: u16, len: u16) -> Result<&mut [u8], String> {
        let range = self.writable(frame, start, len)?;
        Ok(&mut self.bytes[range])
    }

    /// The device begins to write `segments`. Returns their bytes.
    pub fn begin_device_write(&mut self, segments: &[Segment]) -> Result<Vec<u8>, String> {
        let mut data = Vec::with_capacity(segments.iter().map(|s| usize::from(s.len)).sum());
        for s in segments {
            data.extend_from_slice(self.read(s.frame, s.start, s.len)?);
            self.uses(s.frame).device_writes += 1;
        }
        Ok(data)
    }

    /// The driver will submit a device write of `segments` later: they must not change meanwhile.
    pub fn hold_for_write(&mut self, segments: &[Segment]) {
        segments.iter().for_each(|s| self.uses(s.frame).device_writes += 1);
    }

    /// The device has written `segments`.
    pub fn end_device_write(&mut self, segments: &[Segment]) {
        for s in segments {
            self.uses(s.frame).device_writes -= 1;
        }
    }

    /// The device begins to read into `segments`.
    pub fn begin_device_read(&mut self, segments: &[Segment]) -> Verdict {
        for s in segments {
            let range = self.writable(s.frame, s.start, s.len)?;
            self.bytes[range].fill(GARBAGE);
        }
        self.reading.extend_from_slice(segments);
        Ok(())
    }

    /// The device has read into `segments` and put `data` there; `None` leaves garbage.
    pub fn end_device_read(&mut self, segments: &[Segment], data: Option<&[u8]>) {
        let mut at = 0;
        for s in segments {
            let (start, len) = (s.frame.0 as usize * BLOCK as usize + usize::from(s.start), usize::from(s.len));
            if let Some(data) = data {
                self.bytes[start..start + len].copy_from_slice(&data[at..at + len]);
            }
            at += len;
            let place = self.reading.iter().position(|reading| reading == s).expect("it was begun");
            self.reading.swap_remove(place);
        }
    }

    /// A part of `frame` waits to be sent.
    pub fn begin_send(&mut self, frame: FrameId) -> Verdict {
        self.read(frame, 0, BLOCK as u16)?;
        self.uses(frame).sends += 1;
        Ok(())
    }

    /// The part was sent, or its connection is closed.
    pub fn end_send(&mut self, frame: FrameId) {
        self.uses(frame).sends -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: FrameId = FrameId(1);
    const G: FrameId = FrameId(2);

    #[test]
    fn a_frame_in_a_device_write_must_not_change() {
        let mut frames = Frames::new(3);
        frames.receive(F, 0, 4).unwrap().copy_from_slice(b"data");
        assert_eq!(frames.begin_device_write(&[Segment::new(F, 0, 4)]).unwrap(), b"data");
        assert!(frames.zero(F, 100, 1).is_err());
        assert!(frames.copy(F, G, 0, 4).is_ok());
        frames.end_device_write(&[Segment::new(F, 0, 4)]);
        assert!(frames.zero(F, 100, 1).is_ok());
        assert_eq!(frames.read(G, 0, 4).unwrap(), b"data");
    }

    #[test]
    fn a_frame_in_a_device_read_must_not_be_used() {
        let mut frames = Frames::new(3);
        let segments = [Segment::whole(F)];
        frames.begin_device_read(&segments).unwrap();
        assert!(frames.begin_send(F).is_err());
        assert!(frames.copy(F, G, 0, 1).is_err());
        assert!(frames.begin_device_read(&segments).is_err());
        frames.end_device_read(&segments, None);
        assert_eq!(frames.read(F, 0, 1).unwrap(), [GARBAGE]);
    }

    #[test]
    fn memory_that_was_given_back_must_not_be_used_until_the_limit_rises() {
        let mut frames = Frames::new(3);
        frames.begin_send(G).unwrap();
        assert!(frames.give_back(1, |_| true).is_err(), "it waits to be sent");
        frames.give_back(1, |_| false).unwrap();
        assert_eq!((frames.limit(), frames.held()), (1, 1));
        frames.end_send(G);
        frames.give_back(1, |_| true).unwrap();
        assert_eq!(frames.held(), 0);
        assert!(frames.receive(G, 0, 1).is_err() && frames.receive(F, 0, 1).is_ok());
        assert!(frames.give_back(1, |_| false).is_err(), "the engine took it again");
        frames.give_back(2, |_| false).unwrap();
        assert!(frames.receive(G, 0, 1).is_ok());
    }

    #[test]
    fn an_unsent_frame_and_the_zeros_must_not_change() {
        let mut frames = Frames::new(3);
        frames.begin_send(F).unwrap();
        assert!(frames.receive(F, 0, 1).is_err());
        frames.end_send(F);
        assert!(frames.receive(F, 0, 1).is_ok());
        assert!(frames.receive(FrameId::ZERO, 0, 1).is_err());
        assert!(frames.receive(FrameId(3), 0, 1).is_err());
    }
}
