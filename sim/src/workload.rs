//! What clients request, and how they behave: small hot ranges, so that most requests overlap others.

use engine::Session;
use engine::nbd::Form;
use engine::nbd::wire::{command, command_flag};
use engine::units::{BLOCK, MILLISECOND, Nanos, PIECE, SECTOR};

use crate::cell::CELL;
use crate::request::Request;
use crate::rng::Rng;

/// A microsecond in [`Nanos`].
const MICROSECOND: Nanos = 1000;

/// The behaviour of a client on one connection.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Maximum number of outstanding requests.
    pub window: u32,
    /// Maximum think time, nanoseconds.
    pub think_ns: Nanos,
    /// Maximum network delay, nanoseconds.
    pub net_ns: Nanos,
    /// Buffer size of the socket to the server, bytes.
    pub in_bytes: u64,
    /// Buffer size of the socket from the server, bytes.
    pub out_bytes: u64,
    /// Maximum bytes per read from the socket.
    pub read_bytes: u64,
    /// Probability that it stops reading for a while, parts per million of reads.
    pub stops: u64,
    /// Requests until it disconnects.
    pub requests: u64,
    /// It disconnects without NBD_CMD_DISC.
    pub vanishes: bool,
    /// A stalled reader: it never reads a reply.
    pub stalled_reader: bool,
    /// How it sends payloads.
    pub sending: Sending,
}

/// How a client sends the payload of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// As fast as the network takes it.
    Prompt,
    /// Only a part of it, or nothing.
    Stalls,
    /// Slowly, but fast enough not to be disconnected.
    Trickles,
}

impl Default for Manners {
    fn default() -> Self {
        Manners {
            window: 4,
            think_ns: 0,
            net_ns: 10 * MICROSECOND,
            in_bytes: 64 << 10,
            out_bytes: 64 << 10,
            read_bytes: 64 << 10,
            stops: 0,
            requests: u64::MAX,
            vanishes: false,
            stalled_reader: false,
            sending: Sending::Prompt,
        }
    }
}

impl Manners {
    /// A random ordinary client.
    pub fn random(rng: &mut Rng) -> Manners {
        let slow = rng.one_in(6);
        Manners {
            window: rng.pick(&[1, 2, 4, 8, 16, 40]),
            think_ns: rng.pick(&[0, 0, 20 * MICROSECOND, 2 * MILLISECOND]),
            net_ns: rng.pick(&[1, 8, 60, 400]) * MICROSECOND,
            in_bytes: rng.pick(&[1 << 10, 16 << 10, 200 << 10, 1 << 20]),
            out_bytes: if slow { rng.pick(&[200, 5000]) } else { rng.pick(&[16 << 10, 200 << 10, 1 << 20]) },
            read_bytes: if slow { rng.pick(&[3000, 20_000]) } else { 1 << 20 },
            stops: if rng.one_in(4) { 30_000 } else { 0 },
            requests: rng.pick(&[3, 20, 100, 1000, u64::MAX]),
            vanishes: rng.one_in(2),
            stalled_reader: false,
            sending: Sending::Prompt,
        }
    }

    /// A stalled reader: it sends as many requests as it can, and never reads a reply.
    pub fn stalled_reader(rng: &mut Rng) -> Manners {
        Manners { window: rng.pick(&[8, 128]), requests: u64::MAX, stalled_reader: true, ..Manners::random(rng) }
    }

    /// A client that announces writes, and sends the payload too slowly or just fast enough.
    pub fn stalled(rng: &mut Rng) -> Manners {
        let sending = rng.pick(&[Sending::Stalls, Sending::Stalls, Sending::Trickles]);
        Manners { sending, net_ns: rng.pick(&[8, 60]) * MICROSECOND, ..Manners::default() }
    }

    /// A client that checks the content at the end.
    pub fn calm() -> Manners {
        Manners { out_bytes: 1 << 20, read_bytes: 1 << 20, ..Manners::default() }
    }
}

/// The frequencies of the kinds of requests.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Weights by command; [`OTHER`] stands for commands that do not exist.
    pub commands: Vec<(u64, u16)>,
    /// Requests with FUA, parts per million of those that change content.
    pub fua: u64,
    /// Invalid requests, parts per million.
    pub wrong: u64,
    /// Invalid headers, parts per million.
    pub garbage: u64,
    /// Classes of lengths by weight.
    pub lengths: Vec<(u64, Length)>,
    /// Requests with offset and length in whole blocks, parts per million.
    pub aligned: u64,
    /// Very long ranges, parts per million of commands other than READ and WRITE.
    pub long: u64,
}

/// A command that does not exist.
pub const OTHER: u16 = 77;

/// A class of lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// Up to a block.
    Small,
    /// A few blocks.
    Medium,
    /// Up to a piece.
    Large,
    /// Several pieces, up to more than the smallest partition.
    Huge,
}

impl Mix {
    /// A random mix.
    pub fn random(rng: &mut Rng) -> Mix {
        let (read, write) = rng.pick(&[(30, 40), (10, 60), (60, 30)]);
        let rare = rng.pick(&[1, 4, 10]);
        let commands = vec![
            (read, command::READ),
            (write, command::WRITE),
            (rng.pick(&[1, 2, 6, 15]), command::FLUSH),
            (rare, command::TRIM),
            (rare, command::WRITE_ZEROES),
            (rng.pick(&[0, 2]), command::CACHE),
            (rng.pick(&[1, 4]), command::BLOCK_STATUS),
            (1, OTHER),
        ];
        Mix {
            commands,
            fua: rng.pick(&[0, 30_000, 200_000]),
            wrong: rng.pick(&[0, 10_000]),
            garbage: rng.pick(&[0, 0, 500]),
            lengths: vec![
                (rng.pick(&[20, 60, 100, 1000]), Length::Small),
                (30, Length::Medium),
                (rng.pick(&[2, 6, 12]), Length::Large),
                (rng.pick(&[0, 1, 2]), Length::Huge),
            ],
            aligned: rng.pick(&[100_000, 500_000, 900_000]),
            long: 100_000,
        }
    }
}

impl Mix {
    /// Small writes, and rarely a request that concerns all of them.
    pub fn scattered() -> Mix {
        let commands = vec![
            (10, command::READ),
            (85, command::WRITE),
            (1, command::FLUSH),
            (2, command::TRIM),
            (1, command::WRITE_ZEROES),
        ];
        let lengths = vec![(1, Length::Small)];
        Mix { commands, fua: 0, wrong: 0, garbage: 0, lengths, aligned: 100_000, long: 500_000 }
    }
}

impl Mix {
    /// Range operations, and writes that overlap several of them.
    pub fn overlapping() -> Mix {
        let commands = vec![
            (30, command::READ),
            (30, command::WRITE),
            (15, command::FLUSH),
            (20, command::TRIM),
            (20, command::WRITE_ZEROES),
        ];
        let lengths = vec![(1, Length::Small), (1, Length::Medium), (10, Length::Large)];
        Mix { commands, fua: 0, wrong: 0, garbage: 0, lengths, aligned: 900_000, long: 0 }
    }

    /// Reads and writes of up to a piece, and flushes.
    pub fn short() -> Mix {
        let commands = vec![(40, command::READ), (50, command::WRITE), (5, command::FLUSH)];
        let lengths = vec![(10, Length::Small), (5, Length::Medium), (1, Length::Large)];
        Mix { commands, fua: 10_000, wrong: 0, garbage: 0, lengths, aligned: 700_000, long: 0 }
    }

    /// Long reads, whose time is known with their header, and CACHE requests of up to the whole volume, whose work
    /// becomes a backlog; in these proportions.
    pub fn long_hits(reads: u64, caches: u64) -> Mix {
        let commands = vec![(reads, command::READ), (caches, command::CACHE)];
        let lengths = vec![(1, Length::Huge)];
        Mix { commands, fua: 0, wrong: 0, garbage: 0, lengths, aligned: 900_000, long: 900_000 }
    }

    /// Small reads.
    pub fn short_hits() -> Mix {
        let commands = vec![(1, command::READ)];
        let lengths = vec![(3, Length::Small), (1, Length::Medium)];
        Mix { commands, fua: 0, wrong: 0, garbage: 0, lengths, aligned: 900_000, long: 0 }
    }

    /// Small reads and writes, and flushes.
    pub fn few_blocks() -> Mix {
        let commands = vec![(70, command::READ), (23, command::WRITE), (7, command::FLUSH)];
        let lengths = vec![(1, Length::Small)];
        Mix { commands, fua: 20_000, wrong: 0, garbage: 0, lengths, aligned: 900_000, long: 0 }
    }
}

/// The parts of a volume that its clients access.
#[derive(Clone, Debug)]
pub struct Places {
    /// Size of the volume as the clients know it, bytes.
    pub size: u64,
    /// Hot ranges (first byte, bytes), common to all clients.
    pub hot: Vec<(u64, u64)>,
}

impl Places {
    /// Random places in a volume of `size` bytes; one of them is at its end.
    pub fn random(size: u64, rng: &mut Rng) -> Places {
        let mut hot = Vec::new();
        for i in 0..rng.between(2, 4) {
            let len = rng.pick(&[BLOCK, 4 * BLOCK, 16 * BLOCK, 64 * BLOCK, 1024 * BLOCK]).min(size);
            let at = if i == 0 { size - len } else { rng.below(size - len + 1) / CELL * CELL };
            hot.push((at, len));
        }
        Places { size, hot }
    }

    /// One large place at the beginning, of at most 8 MiB.
    pub fn everywhere(size: u64) -> Places {
        Places { size, hot: vec![(0, size.min(8 << 20))] }
    }

    /// A random offset for a request of `len` bytes.
    fn place(&self, len: u64, aligned: bool, rng: &mut Rng) -> u64 {
        let unit = if aligned { BLOCK } else { CELL };
        let last = self.size.saturating_sub(len) / unit * unit;
        if rng.one_in(12) {
            // A large volume has too many distant positions for requests to overlap: stay near a hot range.
            let (at, _) = rng.pick(&self.hot);
            let reach = 1 << 20;
            let low = at.saturating_sub(reach);
            return (rng.between(low, (at + reach).min(self.size)) / unit * unit).min(last);
        }
        let (at, hot) = rng.pick(&self.hot);
        let back = len / 2;
        (rng.between(at.saturating_sub(back), at + hot) / unit * unit).min(last)
    }
}

/// Generates requests.
#[derive(Debug)]
pub struct Asker<'a> {
    /// The kinds of requests.
    pub mix: &'a Mix,
    /// The places that requests access.
    pub places: &'a Places,
    /// What its connection has negotiated.
    pub session: Session,
    /// Whether the device can zero long ranges.
    pub zeroes_fast: bool,
}

impl Asker<'_> {
    /// The next request, number `op`.
    pub fn ask(&self, op: u64, rng: &mut Rng) -> Request {
        let command = rng.weighted(&self.mix.commands);
        let mut request = Request { op, cookie: rng.next(), command, flags: 0, offset: 0, len: 0 };
        if command != command::FLUSH {
            let aligned = rng.chance(self.mix.aligned);
            let len = self.length(command, aligned, rng);
            request.offset = self.places.place(len, aligned, rng);
            request.len = len.min(self.places.size - request.offset).min(u64::from(u32::MAX - 4095)) as u32;
            self.loosen(&mut request, rng);
        }
        request.flags = self.flags(command, rng);
        if rng.chance(self.mix.wrong) {
            self.spoil(&mut request, rng);
        }
        request
    }

    fn length(&self, command: u16, aligned: bool, rng: &mut Rng) -> u64 {
        let ranged = !matches!(command, command::READ | command::WRITE);
        if ranged && rng.chance(self.mix.long) {
            // Where the device cannot zero, the engine writes zeros block by block, which takes long.
            let most = if self.zeroes_fast || command != command::WRITE_ZEROES {
                u64::from(u32::MAX - 4095)
            } else {
                16 * PIECE
            };
            return rng.pick(&[16 * PIECE, 1 << 31, most]).min(most) / BLOCK * BLOCK;
        }
        let (least, most) = match rng.weighted(&self.mix.lengths) {
            Length::Small => (CELL, BLOCK),
            Length::Medium => (BLOCK, 8 * BLOCK),
            Length::Large => (8 * BLOCK, PIECE),
            Length::Huge => (PIECE, 4 * PIECE),
        };
        let unit = if aligned { BLOCK } else { rng.pick(&[CELL, SECTOR]) };
        rng.between(least, most).next_multiple_of(unit)
    }

    /// Requests that do not change content may begin and end at any byte.
    fn loosen(&self, request: &mut Request, rng: &mut Rng) {
        let harmless = matches!(request.command, command::READ | command::CACHE | command::BLOCK_STATUS);
        if harmless && rng.one_in(8) && request.len > 2 * CELL as u32 {
            request.offset += rng.below(CELL);
            request.len -= rng.between(CELL, 2 * CELL - 1) as u32;
        }
    }

    fn flags(&self, command: u16, rng: &mut Rng) -> u16 {
        let mut flags = 0;
        let mut add = |rng: &mut Rng, flag, ppm| flags |= if rng.chance(ppm) { flag } else { 0 };
        match command {
            command::WRITE | command::TRIM => add(rng, command_flag::FUA, self.mix.fua),
            command::WRITE_ZEROES => {
                add(rng, command_flag::FUA, self.mix.fua);
                add(rng, command_flag::NO_HOLE, 300_000);
                add(rng, command_flag::FAST_ZERO, 200_000);
            }
            command::READ if self.session.form.is_structured() => add(rng, command_flag::DF, 100_000),
            command::BLOCK_STATUS => add(rng, command_flag::REQ_ONE, 300_000),
            _ => {}
        }
        flags
    }

    fn spoil(&self, request: &mut Request, rng: &mut Rng) {
        match rng.below(5) {
            0 => {
                request.flags |= 1 << rng.between(5, 15);
                if self.session.form == Form::Extended {
                    // It would announce a payload.
                    request.flags &= !command_flag::PAYLOAD_LEN;
                }
            }
            1 => request.offset = self.places.size.saturating_sub(u64::from(request.len / 2)).next_multiple_of(CELL),
            2 => request.offset = u64::MAX - rng.below(1 << 16),
            3 => request.len = 0,
            _ if request.command == command::READ => request.len = self.session.form.payload_bytes_max() + 1,
            _ => request.command = OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Expected;

    #[test]
    fn requests_are_right_unless_spoilt() {
        let mut rng = Rng::new(3);
        for _ in 0..300 {
            let mut mix = Mix::random(&mut rng);
            mix.wrong = 0;
            let size = rng.pick(&[512, 4096 + 512, 1 << 20, 1 << 60]);
            let places = Places::random(size, &mut rng);
            let session =
                Session { form: Form::Structured, base_allocation: true, load: false, read_only: false, demotes: None };
            let request = Asker { mix: &mix, places: &places, session, zeroes_fast: true }.ask(1, &mut rng);
            if request.command != OTHER {
                assert_eq!(request.verdict(size, Form::Structured, true), Expected::Ordinary, "{request:?} of {size}");
            }
        }
    }
}
