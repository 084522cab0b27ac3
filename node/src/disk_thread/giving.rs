//! Returning memory to the system after a smaller budget was set, a part in each pass.
//!
//! The engine stops using the frames above its limit. Chunks of frames that are empty there are unregistered from the
//! ring and unmapped. `SetBudget` is answered after that, so that its sender may use the memory at once. Downside of
//! chunks: a single frame that is still in use, for example for a reply that a client does not read, keeps 2 MiB.

use engine::Server;
use engine::control::Report;

use crate::frames::Frames;
use crate::reactor::Reactor;

/// Chunks in one pass. Unpinning and unmapping 2 MiB takes 60 µs, so requests are not delayed noticeably.
const CHUNKS_PER_PASS: usize = 8;

/// The progress of returning memory.
#[derive(Debug)]
pub struct Giving {
    next: usize,
    kept_bytes: u64,
    /// The answer that is sent afterwards.
    pub answer: Option<(u64, Report)>,
}

impl Giving {
    /// Starts to return everything above the engine's limit.
    pub fn new(server: &Server, frames: &Frames, answer: Option<(u64, Report)>) -> Giving {
        Giving { next: frames.memory().first_chunk_above(server.frames_limit()), kept_bytes: 0, answer }
    }

    /// Returns the empty ones of the next chunks. True when there are no more chunks.
    pub fn step(&mut self, server: &Server, frames: &mut Frames, reactor: &mut impl Reactor) -> bool {
        let memory = frames.memory();
        let past = (self.next + CHUNKS_PER_PASS).min(memory.chunks());
        for number in self.next..past {
            let chunk = memory.chunk(number);
            let is_empty = chunk.frames.clone().all(|frame| server.is_retired(engine::ids::FrameId(frame)));
            if is_empty && reactor.unpin(&chunk) {
                frames.give_back(&chunk);
            } else {
                self.kept_bytes += chunk.addresses.len() as u64;
            }
        }
        self.next = past;
        if past < memory.chunks() {
            return false;
        }
        // The engine counts held frames; what stays resident is their whole chunks.
        if let Some((_, Report::Held { bytes })) = &mut self.answer {
            *bytes = self.kept_bytes;
        }
        true
    }
}
