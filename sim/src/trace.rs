//! The trace of a run: a hash over everything, and the last lines for people.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use engine::ids::{ConnId, FrameId, IoId, TenantId, VolumeId};
use engine::nbd::{Errno, Form};
use engine::units::Nanos;
use engine::{CloseReason, Event};

use crate::request::Request;

/// Number of lines kept for people.
const TAIL_LINES: usize = 120;

/// One event, action or note.
#[derive(Clone, Hash, Debug)]
#[allow(missing_docs, reason = "the names of events and actions")]
pub enum Line {
    Attach(ConnId, VolumeId, Form),
    Header(ConnId, Request),
    Garbage(ConnId),
    Payload(ConnId, u64),
    Discarded(ConnId, u64),
    Sent(ConnId, u64),
    Closed(ConnId),
    IoDone(IoId, Result<(), Errno>),
    Summed(IoId, u32),
    Control(u64, String),
    Work(TenantId),
    Targets,
    Upstream(VolumeId, String),
    Timer,
    Copy(FrameId, FrameId, u16, u16),
    Zero(FrameId, u16, u16),
    Submit(IoId, VolumeId, String, u64, u64),
    Receive(ConnId),
    Send(ConnId),
    Close(ConnId, CloseReason),
    Gone(ConnId),
    Report(u64, String),
    Answer(ConnId, Request, u32),
    Note(String),
    /// On one of several machines.
    On(u8, Box<Line>),
}

impl Line {
    /// An event. `taken` is the request of a header, if it is valid.
    pub fn of(event: &Event<'_>, taken: Option<Request>) -> Line {
        match *event {
            Event::Attach { conn, volume, session } => Line::Attach(conn, volume, session.form),
            Event::Header { conn, .. } => taken.map_or(Line::Garbage(conn), |request| Line::Header(conn, request)),
            Event::Payload { conn, bytes } => Line::Payload(conn, bytes),
            Event::Discarded { conn, bytes } => Line::Discarded(conn, bytes),
            Event::Sent { conn, bytes } => Line::Sent(conn, bytes),
            Event::Closed { conn } => Line::Closed(conn),
            Event::IoDone { io, result, .. } => Line::IoDone(io, result),
            Event::Control { token, ref command } => Line::Control(token, format!("{command:?}")),
            Event::Work { tenant } => Line::Work(tenant),
            Event::Summed { io, sum } => Line::Summed(io, sum),
            Event::Targets(_) => Line::Targets,
            Event::Upstream { volume, ref event } => Line::Upstream(volume, format!("{event:?}")),
            Event::Timer => Line::Timer,
        }
    }

    /// Whether the world, rather than the engine, caused it.
    fn is_event(&self) -> bool {
        use Line::*;
        if let On(_, line) = self {
            return line.is_event();
        }
        matches!(
            self,
            Attach(..) | Header(..) | Garbage(_) | Payload(..) | Discarded(..) | Sent(..) | Closed(_) | IoDone(..)
        ) || matches!(self, Control(..) | Work(_) | Summed(..) | Targets | Upstream(..) | Timer)
    }
}

/// Receives each line as it happens.
pub type Sink = Box<dyn FnMut(&str)>;

/// The hash of a run and its last lines.
pub struct Trace {
    hash: Mixer,
    tail: VecDeque<(Nanos, u64, Line)>,
    sink: Option<Sink>,
}

impl Trace {
    /// An empty trace; `sink` sees every line.
    pub fn new(sink: Option<Sink>) -> Trace {
        Trace { hash: Mixer(0xcbf2_9ce4_8422_2325), tail: VecDeque::with_capacity(TAIL_LINES), sink }
    }

    /// `line` happened at `now`, in step `step`.
    pub fn push(&mut self, now: Nanos, step: u64, line: Line) {
        now.hash(&mut self.hash);
        line.hash(&mut self.hash);
        if let Some(sink) = &mut self.sink {
            sink(&format(now, step, &line));
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back((now, step, line));
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// The last lines.
    pub fn tail(&self) -> Vec<String> {
        self.tail.iter().map(|(now, step, line)| format(*now, *step, line)).collect()
    }
}

fn format(now: Nanos, step: u64, line: &Line) -> String {
    let arrow = if line.is_event() { "──►" } else { "   ◄──" };
    format!("{:>12.6} ms  step {step:>6} {arrow} {line:?}", now as f64 / 1e6)
}

/// A hash that is the same on all machines and in all versions: multiply and rotate.
#[derive(Clone, Debug)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(27);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_order_and_time() {
        let hash = |lines: &[(Nanos, Line)]| {
            let mut trace = Trace::new(None);
            lines.iter().for_each(|(now, line)| trace.push(*now, 0, line.clone()));
            trace.hash()
        };
        let (a, b) = (Line::Timer, Line::Send(ConnId(0)));
        let there = hash(&[(1, a.clone()), (2, b.clone())]);
        assert_eq!(there, hash(&[(1, a.clone()), (2, b.clone())]));
        assert_ne!(there, hash(&[(1, b.clone()), (2, a.clone())]));
        assert_ne!(there, hash(&[(1, a), (3, b)]));
    }
}
