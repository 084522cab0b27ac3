//! Worlds of one upstream: a cache above it that follows its contract, a server below it that dies and comes back, and
//! connections that are lost while requests are on their way. What arrived on a lost connection may take effect late:
//! until the server grants the next session, or, with a stranger's, until it ends the connection.
//!
//! Checked: a completed flush has made durable what was acknowledged before it; a read returns the newest write; at the
//! end the server has the newest content of everything. The checks see: with each breach of the contract around the
//! machine some world fails.

use super::*;
use crate::dice::Rng;

/// Blocks of the volume that are used: few, so that requests overlap.
const BLOCKS: usize = 12;
const STEPS: u32 = 600;
const SEEDS: u64 = 400;

/// A breach of the contract, by the owner or the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Breach {
    /// A lost session does not make unflushed blocks dirty again.
    FailedIgnored,
    /// A server of ours grants a session while writes of the last one can take effect.
    GrantedTooEarly,
    /// A stranger's server ends a connection while requests that it received there can take effect.
    EndedTooEarly,
    /// The server answers a flush without flushing.
    FlushSkipped,
}

/// A request of the cache.
#[derive(Clone, Debug)]
enum Asked {
    Write { block: usize, value: u8, durable: bool, failures: u32 },
    Zero { blocks: std::ops::Range<usize> },
    Read { block: usize },
    Flush { newest: [u8; BLOCKS], began: u32, failures: u32 },
}

/// A block as the cache sees it.
#[derive(Clone, Copy, Default, Debug)]
struct Cached {
    newest: u8,
    dirty: bool,
    /// A request for it is not done.
    busy: bool,
    /// When it was written last, in flushes; 0 if a flush has covered that.
    written: u32,
    /// When its newest content came, in flushes.
    changed: u32,
}

struct World {
    rig: Rig,
    rng: Rng,
    blocks: [Cached; BLOCKS],
    asked: BTreeMap<IoId, Asked>,
    /// Counts flushes and failures.
    flushes: u32,
    failures: u32,
    writes: u8,
    durable: Vec<u8>,
    /// Requests that arrived on lost connections.
    ghosts: Vec<(LinkId, Header, Vec<u8>)>,
    /// Lost connections that the server has not ended.
    unended: Vec<LinkId>,
    log: Vec<String>,
    breach: Option<Breach>,
}

impl World {
    fn new(seed: u64, breach: Option<Breach>) -> World {
        let mut rng = Rng::new(seed);
        let identity = match breach {
            Some(Breach::GrantedTooEarly) => OURS,
            Some(Breach::EndedTooEarly) => None,
            _ if rng.one_in(2) => OURS,
            _ => None,
        };
        let no_flags = if rng.one_in(3) { export_flag::CAN_MULTI_CONN } else { 0 };
        let mut rig = Rig::idle(identity, 3, no_flags);
        rig.tick(0);
        World {
            rig,
            rng,
            blocks: Default::default(),
            asked: BTreeMap::new(),
            flushes: 1,
            failures: 0,
            writes: 0,
            durable: vec![0; SIZE as usize],
            ghosts: Vec::new(),
            unended: Vec::new(),
            log: Vec::new(),
            breach,
        }
    }

    fn breaks(&self, breach: Breach) -> bool {
        self.breach == Some(breach)
    }

    /// Whether requests of lost connections may take effect too late.
    fn are_late(&self) -> bool {
        self.breaks(Breach::GrantedTooEarly) || self.breaks(Breach::EndedTooEarly)
    }

    /// Carries out a request at the server.
    fn apply(&mut self, (_, header, payload): &(LinkId, Header, Vec<u8>)) {
        let range = header.offset as usize..(header.offset + header.len) as usize;
        match header.kind {
            Kind::Write => {
                self.rig.content[range.clone()].copy_from_slice(payload);
                if header.has(flag::FUA) {
                    self.durable[range].copy_from_slice(payload);
                }
            }
            Kind::Zeroes => self.rig.content[range].fill(0),
            Kind::Flush if !self.breaks(Breach::FlushSkipped) => self.durable.clone_from(&self.rig.content),
            _ => {}
        }
    }

    /// The server answers one of its requests; overlapping ones are never there together.
    fn serve(&mut self) {
        if self.rig.requests.is_empty() {
            return;
        }
        let at = self.rng.below(self.rig.requests.len() as u64) as usize;
        self.rig.requests.swap(0, at);
        let request = self.rig.requests[0].clone();
        self.apply(&request);
        self.rig.answer(request.1.kind);
        self.take_news();
    }

    /// A late request takes effect, or never will.
    fn settle_ghost(&mut self) {
        if !self.ghosts.is_empty() {
            let at = self.rng.below(self.ghosts.len() as u64) as usize;
            let ghost = self.ghosts.swap_remove(at);
            if self.rng.one_in(2) {
                self.apply(&ghost);
            }
        }
    }

    /// A connection is lost; the machine closes the others.
    fn lose(&mut self) {
        let open: Vec<LinkId> = self.rig.sessions.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        self.log.push("lost".into());
        let first = open[self.rng.below(open.len() as u64) as usize];
        self.close(first);
        self.take_news();
    }

    fn close(&mut self, link: LinkId) {
        if self.rig.sessions.remove(&link).is_some() {
            let (lost, kept) = std::mem::take(&mut self.rig.requests).into_iter().partition(|(of, ..)| *of == link);
            self.rig.requests = kept;
            let lost: VecDeque<_> = lost;
            self.ghosts.extend(lost);
            self.unended.push(link);
            self.rig.handle(Event::Closed(link));
        }
    }

    /// The server ends a lost connection: nothing of it takes effect any more.
    fn end(&mut self) {
        let Some(link) = self.unended.pop() else { return };
        while self.ghosts.iter().any(|(of, ..)| *of == link) && !self.are_late() {
            self.settle_ghost();
        }
        self.rig.handle(Event::Ended(link));
        self.take_news();
    }

    /// The server's process dies: of what is not flushed, any part is lost.
    fn die(&mut self) {
        self.log.push("died".into());
        while !self.ghosts.is_empty() {
            self.settle_ghost();
        }
        for block in 0..BLOCKS {
            let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
            if self.rng.one_in(2) {
                self.rig.content[range.clone()].copy_from_slice(&self.durable[range]);
            }
        }
        for link in self.rig.sessions.keys().copied().collect::<Vec<_>>() {
            self.close(link);
        }
        self.ghosts.clear();
        while !self.unended.is_empty() {
            self.end();
        }
        self.take_news();
    }

    fn submit(&mut self, op: Op, block: usize, blocks: usize, value: u8, asked: Asked) {
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (block as u64 * BLOCK, blocks as u64 * BLOCK) };
        // The request may be answered while it is submitted.
        self.asked.insert(IoId(self.rig.ios + 1), asked);
        self.rig.submit(op, offset, len, value);
        self.take_news();
    }

    /// A client or the cache does something.
    fn act(&mut self) {
        let block = self.rng.below(BLOCKS as u64) as usize;
        let free = !self.blocks[block].busy;
        match self.rng.below(8) {
            0..2 if free => {
                self.writes = self.writes.wrapping_add(1).max(1);
                let (newest, changed) = (self.writes, self.flushes);
                self.blocks[block] = Cached { newest, dirty: true, changed, ..self.blocks[block] };
            }
            2..5 if free && self.blocks[block].dirty => self.write_back(block),
            5 => {
                let blocks = block..(block + 1 + self.rng.below(4) as usize).min(BLOCKS);
                if blocks.clone().all(|block| !self.blocks[block].busy) {
                    for cached in &mut self.blocks[blocks.clone()] {
                        *cached = Cached { busy: true, changed: self.flushes, ..Cached::default() };
                    }
                    let asked = Asked::Zero { blocks: blocks.clone() };
                    self.submit(Op::Zero, block, blocks.len(), 0, asked);
                }
            }
            6 if free && !self.blocks[block].dirty && self.blocks[block].written == 0 => {
                self.blocks[block].busy = true;
                self.submit(Op::Read, block, 1, 0xee, Asked::Read { block });
            }
            7 => self.flush(),
            _ => {}
        }
    }

    fn write_back(&mut self, block: usize) {
        let Cached { newest: value, .. } = self.blocks[block];
        (self.blocks[block].busy, self.blocks[block].dirty) = (true, false);
        let durable = self.rng.one_in(4);
        let asked = Asked::Write { block, value, durable, failures: self.failures };
        self.submit(Op::Write { durable }, block, 1, value, asked);
    }

    /// A flush begins when everything is written.
    fn flush(&mut self) {
        let idle = self.blocks.iter().all(|cached| !cached.busy && !cached.dirty);
        if idle && !self.asked.values().any(|asked| matches!(asked, Asked::Flush { .. })) {
            let newest = self.blocks.map(|cached| cached.newest);
            self.flushes += 1;
            let asked = Asked::Flush { newest, began: self.flushes, failures: self.failures };
            self.submit(Op::Flush, 0, 0, 0, asked);
        }
    }

    fn take_news(&mut self) {
        while !self.rig.news.is_empty() {
            let news = self.rig.news.remove(0);
            match news {
                Action::Done(io, result) => self.done(io, result),
                Action::Void(io) => drop(self.asked.remove(&io)),
                Action::Failed => {
                    self.failures += 1;
                    let ignored = self.breaks(Breach::FailedIgnored);
                    for cached in self.blocks.iter_mut().filter(|cached| cached.written > 0) {
                        (cached.dirty, cached.written) = (!ignored || cached.dirty, 0);
                    }
                }
                Action::Ask(Request::Close { link, .. }) => self.close(link),
                Action::Ask(Request::Online(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn done(&mut self, io: IoId, result: Result<(), Errno>) {
        let asked = self.asked.remove(&io).expect("a request");
        self.log.push(format!("{asked:?} {result:?}"));
        match asked {
            Asked::Write { block, value, durable, failures } => {
                let cached = &mut self.blocks[block];
                cached.busy = false;
                if durable && result.is_ok() {
                    // It belongs to no generation.
                    cached.written = 0;
                    return assert_eq!(self.durable[block * BLOCK as usize], value, "block {block} is not durable");
                }
                // What was on its way when a failure was reported is not trusted.
                if result.is_err() || failures != self.failures {
                    cached.dirty = true;
                } else {
                    cached.written = self.flushes;
                }
            }
            Asked::Zero { blocks } => {
                for cached in &mut self.blocks[blocks] {
                    cached.busy = false;
                    // A failed request is repeated as a write.
                    cached.dirty = result.is_err();
                }
            }
            Asked::Read { block } => {
                self.blocks[block].busy = false;
                let read = self.rig.frames[&FrameId(io.0 * 100)][0];
                let newest = self.blocks[block].newest;
                assert!(result.is_err() || read == newest, "block {block} was read as {read}, not as {newest}");
            }
            Asked::Flush { newest, began, failures } if result.is_ok() && failures == self.failures => {
                for (block, value) in newest.into_iter().enumerate() {
                    let cached = &mut self.blocks[block];
                    // Newer content may be durable already.
                    let found = self.durable[block * BLOCK as usize];
                    assert!(found == value || cached.changed >= began, "block {block} is {found}, not {value}");
                    cached.written = if cached.written < began { 0 } else { cached.written };
                }
            }
            Asked::Flush { .. } => {}
        }
    }

    /// A step of a server, a network, a client or the clock.
    fn step(&mut self, trouble: bool) {
        match self.rng.below(40) {
            0 if trouble && self.rng.one_in(3) => self.die(),
            1 if trouble && self.rng.one_in(3) => self.lose(),
            2..6 if !self.are_late() || self.rng.one_in(8) => self.settle_ghost(),
            6..9 => self.end(),
            9..12 => {
                let ns = self.rng.below(SECOND);
                // Before GO is answered, a server of ours has ended the earlier session.
                if self.rig.export.identity.is_some() && !self.are_late() {
                    while !self.ghosts.is_empty() {
                        self.settle_ghost();
                    }
                }
                self.rig.tick(ns);
                self.take_news();
            }
            12..26 => self.serve(),
            _ => self.act(),
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step(true);
        }
        // The trouble is over: everything becomes durable.
        for round in 0.. {
            assert!(round < 10_000, "it does not come to rest: {:?}", self.asked);
            if !self.unended.is_empty() {
                self.end();
            }
            for block in 0..BLOCKS {
                if self.blocks[block].dirty && !self.blocks[block].busy {
                    self.write_back(block);
                }
            }
            let flushes = self.log.iter().filter(|line| line.starts_with("Flush") && line.ends_with("Ok(())")).count();
            self.flush();
            self.step(false);
            while !self.rig.requests.is_empty() {
                self.serve();
            }
            let flushed = self.log.iter().filter(|line| line.starts_with("Flush") && line.ends_with("Ok(())")).count();
            let clean = self.blocks.iter().all(|cached| !cached.dirty && !cached.busy && cached.written == 0);
            if flushed > flushes && clean && self.ghosts.is_empty() && self.unended.is_empty() {
                break;
            }
        }
        for (block, cached) in self.blocks.iter().enumerate() {
            assert_eq!(self.rig.content[block * BLOCK as usize], cached.newest, "block {block} at the end");
        }
    }
}

#[test]
fn nothing_flushed_is_lost_and_nothing_old_comes_back() {
    for seed in 1..=SEEDS {
        let mut world = World::new(seed, None);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        if result.is_err() {
            let tail = world.log.len().saturating_sub(40);
            panic!("seed {seed}:\n{}", world.log[tail..].join("\n"));
        }
    }
}

#[test]
fn each_breach_of_the_contract_is_found() {
    use Breach::*;
    for breach in [FailedIgnored, GrantedTooEarly, EndedTooEarly, FlushSkipped] {
        let fails = |seed| {
            let mut world = World::new(seed, Some(breach));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run())).is_err()
        };
        assert!((1..=SEEDS).any(fails), "{breach:?} is not found");
    }
}
