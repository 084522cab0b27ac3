//! Giving memory back to the system after a smaller budget was set, a little in each pass.
//!
//! The engine moves out of the frames above its limit; what is empty there is unknown to the ring and to the page
//! tables chunk by chunk. The answer to `SetBudget` waits for that, so whoever asked may use the memory at once. The
//! downside of chunks: one frame that a client does not read keeps 2 MiB.

use engine::Server;
use engine::control::Report;

use crate::frames::Frames;
use crate::reactor::Reactor;

/// Chunks in one pass: at 60 µs to unpin and unmap 2 MiB, less than other requests notice.
const CHUNKS_PER_PASS: usize = 8;

/// What is left to be done.
#[derive(Debug)]
pub struct Giving {
    next: usize,
    kept_bytes: u64,
    /// The answer that waits for it.
    pub answer: Option<(u64, Report)>,
}

impl Giving {
    /// Everything above the engine's limit.
    pub fn new(server: &Server, frames: &Frames, answer: Option<(u64, Report)>) -> Giving {
        Giving { next: frames.memory().first_chunk_above(server.frames_limit()), kept_bytes: 0, answer }
    }

    /// Gives back what is empty of the next chunks; true when there are no more.
    pub fn step(&mut self, server: &Server, frames: &mut Frames, reactor: &mut impl Reactor) -> bool {
        let memory = frames.memory();
        let past = (self.next + CHUNKS_PER_PASS).min(memory.chunks());
        for number in self.next..past {
            let chunk = memory.chunk(number);
            let is_empty = chunk.frames.clone().all(|frame| server.is_retired(engine::cache::FrameId(frame)));
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
        // The engine counts frames; what they keep resident is their chunks.
        if let Some((_, Report::Held { bytes })) = &mut self.answer {
            *bytes = self.kept_bytes;
        }
        true
    }
}
