//! A drive without heads: channels that work in parallel, and reads that wait for flash programs.
//!
//! ```text
//!   read  ──► channel of each page: after its reads and the program that runs on it ──► bus ──► done
//!   write ──► bus ──► buffer ──► done       the channel programs it when it has no reads: its backlog
//! ```
//!
//! A page read goes before waiting programs, but not before the running one. When the buffer is full, writes wait until
//! a channel has programmed enough. Source: Agrawal et al., "Design Tradeoffs for SSD Performance", USENIX ATC 2008;
//! the interference is the one that FIOS (Park and Shen, FAST 2012, section 2) measures.
//!
//! The completion time of a request is known when it arrives, so the model has no events. Downsides: no garbage
//! collection, so the cost of writes never changes; a read cannot suspend a program, as the best present drives can.

use engine::disk::Op;
use engine::units::Nanos;

use super::done::Done;
use super::{Drive, Tag};

/// Knuth's multiplicative hash (TAOCP 3, 6.4): odd and without pattern. Neighbouring pages are spread evenly over the
/// channels, and no stride of a workload uses one channel only.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The parameters of a flash drive.
#[derive(Clone, Copy, Debug)]
pub struct FlashSpec {
    /// Size, bytes.
    pub bytes: u64,
    /// Units that work in parallel.
    pub channels: usize,
    /// Unit of a read or a program, bytes.
    pub page_bytes: u64,
    /// Time to read a page.
    pub read_ns: Nanos,
    /// Time to program a page, including the internal work that it causes.
    pub program_ns: Nanos,
    /// Time of the electronics for each request.
    pub overhead_ns: Nanos,
    /// Bus time, picoseconds per byte.
    pub byte_ps: u64,
    /// Size of the write buffer, bytes.
    pub buffer_bytes: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Channel {
    /// When the channel has finished its reads.
    free_at: Nanos,
    /// Waiting programs, after `free_at`.
    backlog_ns: Nanos,
}

impl Channel {
    /// Advances the backlog to `now`. Returns the remaining time of the program that then runs.
    fn settle(&mut self, now: Nanos, program_ns: Nanos) -> Nanos {
        if self.free_at >= now {
            return 0;
        }
        let worked_ns = self.backlog_ns.min(now - self.free_at);
        self.backlog_ns -= worked_ns;
        self.free_at = now;
        self.backlog_ns % program_ns
    }
}

/// A flash drive.
#[derive(Debug)]
pub struct Flash {
    spec: FlashSpec,
    channels: Vec<Channel>,
    bus_free_at: Nanos,
    done: Done,
}

impl Flash {
    /// An idle drive.
    pub fn new(spec: FlashSpec) -> Flash {
        Flash { spec, channels: vec![Channel::default(); spec.channels], bus_free_at: 0, done: Done::default() }
    }

    fn channel(&self, page: u64) -> usize {
        ((u128::from(page.wrapping_mul(SPREAD)) * self.channels.len() as u128) >> 64) as usize
    }

    fn pages(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset / self.spec.page_bytes..(offset + len).div_ceil(self.spec.page_bytes)
    }

    fn transfer(&mut self, from: Nanos, len: u64) -> Nanos {
        self.bus_free_at = self.bus_free_at.max(from) + len * self.spec.byte_ps / 1000;
        self.bus_free_at
    }

    fn read(&mut self, now: Nanos, offset: u64, len: u64) -> Nanos {
        let start = now + self.spec.overhead_ns;
        let mut last = start;
        for page in self.pages(offset, len) {
            let index = self.channel(page);
            let channel = &mut self.channels[index];
            let program_left_ns = channel.settle(start, self.spec.program_ns);
            channel.backlog_ns -= program_left_ns;
            channel.free_at += program_left_ns + self.spec.read_ns;
            last = last.max(channel.free_at);
        }
        self.transfer(last, len)
    }

    /// When a write is in the buffer, and when it is programmed.
    fn write(&mut self, now: Nanos, offset: u64, len: u64, data: u64) -> (Nanos, Nanos) {
        let start = self.transfer(now + self.spec.overhead_ns, data);
        let room_ns = self.spec.buffer_bytes / self.spec.page_bytes / self.spec.channels as u64 * self.spec.program_ns;
        let (mut buffered, mut programmed) = (start, start);
        for page in self.pages(offset, len) {
            let index = self.channel(page);
            let channel = &mut self.channels[index];
            channel.settle(start, self.spec.program_ns);
            channel.backlog_ns += self.spec.program_ns;
            let end = channel.free_at + channel.backlog_ns;
            programmed = programmed.max(end);
            buffered = buffered.max(end.saturating_sub(room_ns));
        }
        (buffered, programmed)
    }

    fn flush(&self, now: Nanos) -> Nanos {
        let ends = self.channels.iter().filter(|c| c.backlog_ns > 0).map(|c| c.free_at + c.backlog_ns);
        ends.fold(now, Nanos::max) + self.spec.overhead_ns
    }
}

impl Drive for Flash {
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64) {
        let at = match op {
            Op::Read => self.read(now, offset, len),
            Op::Write { durable: true } => self.write(now, offset, len, len).1,
            Op::Write { durable: false } => self.write(now, offset, len, len).0,
            // Only the mapping changes.
            Op::Zero | Op::Punch => now + self.spec.overhead_ns,
            Op::Flush => self.flush(now),
        };
        self.done.push(at, tag);
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        self.done.pop(now)
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.done.next_at()
    }

    fn power_cut(&mut self, now: Nanos) {
        self.channels.fill(Channel { free_at: now, backlog_ns: 0 });
        self.bus_free_at = now;
        self.done.clear();
    }

    fn bytes(&self) -> u64 {
        self.spec.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: FlashSpec = FlashSpec {
        bytes: 1 << 30,
        channels: 4,
        page_bytes: 4096,
        read_ns: 80_000,
        program_ns: 400_000,
        overhead_ns: 5_000,
        byte_ps: 2_000,
        buffer_bytes: 4096 * 32,
    };

    fn one(drive: &mut Flash, now: Nanos, op: Op, offset: u64, len: u64) -> Nanos {
        drive.submit(now, 1, op, offset, len);
        drive.poll(Nanos::MAX).unwrap().1 - now
    }

    #[test]
    fn a_large_read_uses_all_channels() {
        let one_page_ns = one(&mut Flash::new(SPEC), 0, Op::Read, 0, 4096);
        assert_eq!(one_page_ns, 5_000 + 80_000 + 8_192);
        let (pages, bus_ns) = (64, 64 * 8_192);
        let all_ns = one(&mut Flash::new(SPEC), 0, Op::Read, 0, pages * 4096);
        assert!(all_ns - bus_ns < pages * 80_000 / 2, "{all_ns}");
    }

    #[test]
    fn writes_slow_reads_down() {
        let mut drive = Flash::new(SPEC);
        let alone_ns = one(&mut drive, 0, Op::Read, 0, 4096);
        let write_ns = one(&mut drive, 1_000_000, Op::Write { durable: false }, 0, 4096);
        assert!(write_ns < 20_000, "{write_ns}");
        let after_ns = one(&mut drive, 1_000_000 + write_ns, Op::Read, 0, 4096);
        assert!(after_ns > alone_ns + 300_000, "{after_ns}");
        // Much later the programs have ended.
        assert_eq!(one(&mut drive, 1_000_000_000, Op::Read, 0, 4096), alone_ns);
    }

    #[test]
    fn a_full_buffer_makes_writes_wait_and_a_flush_empties_it() {
        let mut drive = Flash::new(SPEC);
        let write = Op::Write { durable: false };
        let times: Vec<_> = (0..200).map(|page| one(&mut drive, 0, write, page * 4096, 4096)).collect();
        assert!(times[0] < 20_000 && times[199] > 10 * 400_000, "{times:?}");
        let flush_ns = one(&mut drive, 0, Op::Flush, 0, 0);
        assert!(flush_ns >= 200 / 4 * 400_000, "{flush_ns}");
        let durable_ns = one(&mut drive, 1_000_000_000, Op::Write { durable: true }, 0, 4096);
        assert!(durable_ns > 400_000, "{durable_ns}");
    }
}
