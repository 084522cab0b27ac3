//! The disk of a server: one head, one request after the other in order of arrival. It goes on when the process dies,
//! and says what it did for whom.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use engine::disk::Op;
use engine::units::Nanos;

use crate::disk::drive::{Drive, Tag};
use crate::rng::Rng;

/// The bytes of a volume; they follow one another on the disk.
pub(super) const VOLUME_BYTES: u64 = 1 << 30;

/// A request that the disk was given, in true time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) at: Nanos,
    /// The number of its volume on this disk.
    pub(super) guest: usize,
    /// When the head is busy with it.
    pub(super) from: Nanos,
    pub(super) to: Nanos,
}

#[derive(Debug)]
struct Queued {
    life: u64,
    tag: Tag,
    guest: usize,
    to: Nanos,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    service_ns: Nanos,
    /// Of each volume, how many of a million requests take longer, by how much at most.
    slow: Vec<u64>,
    slow_ns: Nanos,
    queue: VecDeque<Queued>,
    free_at: Nanos,
    /// The number of the present process.
    life: u64,
    given: Vec<Given>,
}

/// A disk, which the world shares with the process that uses it.
#[derive(Clone, Debug)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub(super) fn new(service_ns: Nanos, slow: Vec<u64>, slow_ns: Nanos, rng: Rng) -> Disk {
        let (queue, given) = (VecDeque::new(), Vec::new());
        Disk(Arc::new(Mutex::new(State { rng, service_ns, slow, slow_ns, queue, free_at: 0, life: 0, given })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("one thread uses it")
    }

    /// A process starts at `born`, true time. What an earlier one has submitted completes, and nobody is told.
    pub(super) fn open(&self, born: Nanos) -> Box<dyn Drive> {
        let mut state = self.state();
        state.life += 1;
        Box::new(Handle { disk: self.clone(), life: state.life, born })
    }

    /// The machine has lost power.
    pub(super) fn power_cut(&self, now: Nanos) {
        let mut state = self.state();
        state.queue.clear();
        state.free_at = now;
    }

    /// What it was given since the last call.
    pub(super) fn given(&self) -> Vec<Given> {
        std::mem::take(&mut self.state().given)
    }

    /// Requests of a volume that the present process waits for.
    pub(super) fn in_device(&self, guest: usize) -> u32 {
        let state = self.state();
        state.queue.iter().filter(|queued| queued.life == state.life && queued.guest == guest).count() as u32
    }

    /// Since when it has been idle, if it is.
    pub(super) fn idle_since(&self, now: Nanos) -> Option<Nanos> {
        let state = self.state();
        (state.free_at <= now).then_some(state.free_at)
    }
}

/// A disk as a process sees it, whose time begins with the process.
#[derive(Debug)]
struct Handle {
    disk: Disk,
    life: u64,
    born: Nanos,
}

impl Drive for Handle {
    fn submit(&mut self, now: Nanos, tag: Tag, _op: Op, offset: u64, _len: u64) {
        let state = &mut *self.disk.state();
        let (at, guest) = (now + self.born, (offset / VOLUME_BYTES) as usize);
        let slow_ns = if state.rng.chance(state.slow[guest]) { state.rng.below(state.slow_ns) } else { 0 };
        let from = state.free_at.max(at);
        let to = from + state.service_ns + state.rng.below(state.service_ns) + slow_ns;
        state.free_at = to;
        state.queue.push_back(Queued { life: self.life, tag, guest, to });
        state.given.push(Given { at, guest, from, to });
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        let state = &mut *self.disk.state();
        loop {
            let done = state.queue.pop_front_if(|first| first.to <= now + self.born)?;
            if done.life == self.life {
                return Some((done.tag, done.to - self.born));
            }
        }
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        let state = self.disk.state();
        let own = state.queue.iter().find(|queued| queued.life == self.life);
        own.map(|queued| queued.to - self.born)
    }

    fn power_cut(&mut self, now: Nanos) {
        self.disk.power_cut(now + self.born);
    }

    fn bytes(&self) -> u64 {
        self.disk.state().slow.len() as u64 * VOLUME_BYTES
    }
}
