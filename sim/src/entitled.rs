//! What clients got, against the ceilings of their tenants and against what the engine counts as delivered to them.
//!
//! Only reads and writes that succeeded count for ceilings, and only those that arrived after the ceilings were set: at
//! most `rate x (time + burst)` and one request. Ceilings end when the server drains.

use engine::control::{Ceiling, Ceilings, IO_BYTES};
use engine::nbd::wire::command;
use engine::units::{Nanos, SECOND};

use crate::Verdict;
use crate::request::{Pending, Request};

/// Of reads, of writes, and in total.
type Sides = [u64; 3];

/// A tenant's ceilings, and what its clients got.
#[derive(Clone, Debug, Default)]
pub struct Entitled {
    ceilings: Ceilings,
    since: Nanos,
    bytes: Sides,
    ios: Sides,
    /// The largest requests: their bytes and their I/Os.
    largest: [Sides; 2],
    /// Bytes of reads and writes in this server process, except those that failed.
    requested: u64,
}

impl Entitled {
    /// The tenant's ceilings are set.
    pub fn set(&mut self, now: Nanos, ceilings: Ceilings) {
        *self = Entitled { ceilings, since: now, requested: self.requested, ..Entitled::default() };
    }

    /// The engine has received a request.
    pub fn begin(&mut self, request: &Request) {
        if matches!(request.command, command::READ | command::WRITE) {
            self.requested += u64::from(request.len);
        }
    }

    /// A request was answered.
    pub fn answered(&mut self, now: Nanos, pending: &Pending) -> Verdict {
        let (request, bytes) = (pending.request, u64::from(pending.request.len));
        let side = match request.command {
            command::READ => 0,
            command::WRITE => 1,
            _ => return Ok(()),
        };
        if pending.error.is_some() {
            self.requested -= bytes;
            return Ok(());
        }
        if pending.arrived <= self.since {
            return Ok(());
        }
        let ios = bytes.div_ceil(IO_BYTES).max(1);
        for side in [side, 2] {
            self.bytes[side] += bytes;
            self.ios[side] += ios;
            self.largest[0][side] = self.largest[0][side].max(bytes);
            self.largest[1][side] = self.largest[1][side].max(ios);
        }
        let time_ns = now - self.since + self.ceilings.burst_ns;
        let exceeds = |ceiling: Ceiling, got: &Sides, largest: &Sides| {
            let rates = [ceiling.read, ceiling.write, ceiling.total];
            rates.into_iter().zip(got).zip(largest).any(|((rate, &got), &largest)| {
                let beyond = u128::from(got - largest) * u128::from(SECOND);
                rate.is_some_and(|rate| beyond > u128::from(rate.get()) * u128::from(time_ns))
            })
        };
        let [bytes, ios] = &self.largest;
        if exceeds(self.ceilings.bytes, &self.bytes, bytes) || exceeds(self.ceilings.ios, &self.ios, ios) {
            return Err(format!("{request:?} exceeds a ceiling at {now}: {self:?}"));
        }
        Ok(())
    }

    /// Whether the engine cannot have delivered so many bytes.
    pub fn is_exceeded(&self, delivered: u64) -> bool {
        delivered > self.requested
    }
}
