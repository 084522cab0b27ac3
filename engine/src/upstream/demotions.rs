//! Blocks that the cache has evicted, on their way to the server (`docs/design/tiers.md`).
//!
//! ```text
//!   evicted ─► waiting ─► sent, neighbours together ─► answered: their frames are free
//!                 └────────────── the session is lost ──────────────┘
//! ```
//!
//! A demotion is sent at once or not at all: on a connection that has nothing else to send, in a session that takes
//! them. Its frames stay until it is answered, or the connection is closed. It is never repeated.
//!
//! Its cookie has the number of the last transfer before the eviction: the version. The server compares it with those
//! of the changes that it has received.

use std::collections::VecDeque;

use super::link::Link;
use super::{Action, Phase, State, Upstream};
use crate::disk::Segment;
use crate::ids::FrameId;
use crate::nbd::wire::{DEMOTE_BYTES_MAX, command};
use crate::nbd::{Asked, Head, Kind, RawHeader};
use crate::units::BLOCK;

/// Blocks of a demotion at most: 64 KiB delay a read that follows on the same connection by 50 us at 10 Gbit/s.
const BLOCKS_MAX: usize = (DEMOTE_BYTES_MAX / BLOCK) as usize;
/// Demotions that the server has not answered, at most.
const SENT_MAX: usize = 32;

/// An evicted block.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    version: u64,
    number: u64,
    frame: FrameId,
}

/// A demotion that is not answered.
#[derive(Debug)]
struct Sent {
    cookie: u64,
    link: usize,
    first: u64,
    blocks: usize,
    frames: [FrameId; BLOCKS_MAX],
}

/// The demotions of an upstream. The owner bounds the blocks.
#[derive(Debug)]
pub(super) struct Demotions {
    waiting: VecDeque<Waiting>,
    sent: Vec<Sent>,
    /// Blocks sent so far.
    pub(super) blocks: u64,
    /// The server has refused one in this session: others write to the volume.
    pub(super) is_refused: bool,
}

impl Default for Demotions {
    fn default() -> Self {
        Demotions { waiting: VecDeque::new(), sent: Vec::with_capacity(SENT_MAX), blocks: 0, is_refused: false }
    }
}

impl Demotions {
    /// What a reply on `link` must agree with.
    pub(super) fn asked(&self, link: usize, cookie: u64) -> Option<Asked> {
        let sent = self.sent.iter().find(|sent| sent.cookie == cookie && sent.link == link)?;
        Some(Asked { kind: Kind::Demote, offset: sent.first * BLOCK, len: sent.blocks as u64 * BLOCK })
    }

    /// Whether the server has still to answer this one.
    pub(super) fn has(&self, cookie: u64) -> bool {
        self.sent.iter().any(|sent| sent.cookie == cookie)
    }
}

impl Upstream {
    /// Whether the server takes what is evicted.
    pub(crate) fn is_demoting(&self) -> bool {
        let is_granted = self.export.is_some_and(|export| export.demotes);
        self.phase == Phase::Open && is_granted && !self.demotions.is_refused
    }

    /// Takes a block that was evicted when `version` was the number of the last transfer. The frame stays as it is
    /// until [`Action::Freed`]. False if the server does not take it.
    pub(crate) fn demote(&mut self, version: u64, number: u64, frame: FrameId) -> bool {
        let takes = self.is_demoting();
        if takes {
            self.demotions.waiting.push_back(Waiting { version, number, frame });
        }
        takes
    }

    /// Sends what waits, as far as there are connections with nothing else to send.
    pub(super) fn send_demotions(&mut self) {
        while !self.demotions.waiting.is_empty() && self.phase == Phase::Open && self.demotions.sent.len() < SENT_MAX {
            let is_free =
                |at: &usize| matches!(self.links[*at].state, State::Open) && self.links[*at].stream.is_drained();
            // Requests prefer the first ones.
            let Some(at) = (0..self.links.len()).rev().find(is_free) else { return };
            self.send_demotion(at);
        }
    }

    fn send_demotion(&mut self, at: usize) {
        let export = self.export.expect("a session has one");
        let waiting = &mut self.demotions.waiting;
        // The versions grow, so the first one holds for all.
        let Waiting { version, number: first, .. } = waiting[0];
        let mut frames = [FrameId::ZERO; BLOCKS_MAX];
        let mut blocks = 0;
        while blocks < BLOCKS_MAX
            && let Some(next) = waiting.front().filter(|next| next.number == first + blocks as u64)
        {
            frames[blocks] = next.frame;
            blocks += 1;
            waiting.pop_front();
        }
        let version = if planted!(DemotionVersionedLate) { self.requests.latest() } else { version };
        let cookie = self.requests.cookie(version);
        let (offset, len) = (first * BLOCK, blocks as u64 * BLOCK);
        self.push(at, Head::from(RawHeader::new(export.form, command::DEMOTE, 0, cookie, offset, len)));
        let link = &mut self.links[at];
        link.used = true;
        frames[..blocks].iter().for_each(|&frame| link.stream.push_frame(Segment::whole(frame)));
        self.demotions.blocks += blocks as u64;
        if planted!(DemotedFrameFreedEarly) {
            self.free(&frames[..blocks]);
            frames = [FrameId::ZERO; BLOCKS_MAX];
        }
        self.demotions.sent.push(Sent { cookie, link: at, first, blocks, frames });
    }

    /// A demotion was answered: with success, whether or not the server has kept it.
    pub(super) fn demoted(&mut self, cookie: u64) {
        let Some(at) = self.demotions.sent.iter().position(|sent| sent.cookie == cookie) else { return };
        let Sent { blocks, frames, .. } = self.demotions.sent.swap_remove(at);
        self.free(&frames[..blocks]);
    }

    fn free(&mut self, frames: &[FrameId]) {
        let frames = frames.iter().filter(|&&frame| frame != FrameId::ZERO);
        self.actions.extend(frames.map(|&frame| Action::Freed(frame)));
    }

    /// Without a session nothing waits, and as soon as no connection refers to their frames, nothing is sent either.
    pub(super) fn forget_demotions(&mut self) {
        if matches!(self.phase, Phase::Open | Phase::Replaying) {
            return;
        }
        while let Some(Waiting { frame, .. }) = self.demotions.waiting.pop_front() {
            self.free(&[frame]);
        }
        if !self.demotions.sent.is_empty() && !self.links.iter().any(Link::has_io) {
            while let Some(Sent { blocks, frames, .. }) = self.demotions.sent.pop() {
                self.free(&frames[..blocks]);
            }
        }
    }
}
