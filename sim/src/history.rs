//! The checker of one volume's content, cell by cell: what a read may return, and what must be on the medium.
//!
//! Each cell is a register. A write has a start (its payload arrived). It is *settled* when it cannot take effect any
//! more (it was answered, or its connection is closed), and *acknowledged* if the answer was success.
//!
//! ```text
//!     a:  start ├────────┤ acknowledged
//!     b:                    start ├─────────┤ acknowledged: a is dead for reads that start later …
//!     flush:                                    start ├────┤ success: … and must not be on the medium any more
//!     c:              start ├──────────────────────────────────── never answered: may have happened, until replaced
//! ```
//!
//! A read may return a version that started before the read ended and was not dead when the read started. From then on
//! the returned version is the truth: versions settled before that read began cannot come back. After a successful
//! flush, the medium holds only what a read that started with the flush might return; after a power cut too. TRIM (and
//! accepting a loss) may bring back anything that may still be on the medium, or zeros.
//!
//! Downside: the checks use steps of the world, not an order of all requests (linearisability). So a few wrong outcomes
//! of concurrent writes pass. In return a check looks at one short list only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use engine::units::{BLOCK, SECTOR};

use crate::Verdict;
use crate::cell::{self, CELL, CELLS_PER_BLOCK, Value, ZERO};
use crate::medium::{Blocks, Content, Medium};
use crate::register::{Cell, Made, NEVER, Version, describe_version};

/// A point in time: the number of events that the engine has received.
pub type Step = u64;

const ALL: Range<u64> = 0..u64::MAX;

/// The number of a request that changes content; for a write it is also its value.
pub type OpId = u64;

type Page = [Cell; CELLS_PER_BLOCK as usize];

/// The possible contents of a volume.
#[derive(Default, Debug)]
pub struct History {
    /// By block number; missing pages are certainly zeros.
    pages: BTreeMap<u64, Page>,
    /// Pages with uncertain cells.
    uncertain: BTreeSet<u64>,
    /// Zeroings, TRIMs and losses that are not settled: they also affect cells that are written meanwhile.
    active: BTreeMap<OpId, RangeOp>,
    /// A TRIM may also drop what a flush that has begun covers: where requests are seen when clients send them, the
    /// TRIM may have arrived before; and another server may lose data that was trimmed before the flush has ended.
    trims_drop_flushing: bool,
}

/// An operation on a range.
#[derive(Clone, Debug)]
struct RangeOp {
    cells: Range<u64>,
    start: Step,
    made: Made,
}

impl History {
    /// A history that sees requests when clients send them.
    pub(crate) fn of_clients() -> History {
        History { trims_drop_flushing: true, ..History::default() }
    }

    /// Those of `cells` that may be other than zeros, and their numbers.
    fn known(&mut self, cells: Range<u64>) -> impl Iterator<Item = (u64, &mut Cell)> {
        let pages = self.pages.range_mut(cells.start / CELLS_PER_BLOCK..cells.end.div_ceil(CELLS_PER_BLOCK));
        let all = pages.flat_map(|(number, page)| (number * CELLS_PER_BLOCK..).zip(page.iter_mut()));
        all.filter(move |(at, _)| cells.contains(at))
    }

    /// Creates a page, with the range operations that are not settled.
    fn make_page(&mut self, number: u64) -> &mut Page {
        self.uncertain.insert(number);
        let active = &self.active;
        self.pages.entry(number).or_insert_with(|| {
            let mut page = Page::default();
            for (&op, range) in active {
                let cells = page.iter_mut().zip(number * CELLS_PER_BLOCK..);
                for (cell, _) in cells.filter(|(_, at)| range.cells.contains(at)) {
                    cell.live().push(Version::new(op, range.made, range.start));
                }
            }
            page
        })
    }

    /// The payload of write `op` for `cells` arrives.
    pub fn begin_write(&mut self, op: OpId, cells: Range<u64>, step: Step) {
        let mut at = cells.start;
        while at < cells.end {
            let number = at / CELLS_PER_BLOCK;
            let past = ((number + 1) * CELLS_PER_BLOCK).min(cells.end);
            let inside = (at % CELLS_PER_BLOCK) as usize..(past - number * CELLS_PER_BLOCK) as usize;
            for cell in &mut self.make_page(number)[inside] {
                cell.live().push(Version::new(op, Made::Value(op), step));
            }
            at = past;
        }
    }

    fn begin_range(&mut self, op: OpId, range: RangeOp) {
        let mut touched = Vec::new();
        for (at, cell) in self.known(range.cells.clone()) {
            cell.live().push(Version::new(op, range.made, range.start));
            touched.push(at / CELLS_PER_BLOCK);
        }
        self.uncertain.extend(touched);
        self.active.insert(op, range);
    }

    /// A write of zeros arrives.
    pub fn begin_zero(&mut self, op: OpId, cells: Range<u64>, step: Step) {
        self.begin_range(op, RangeOp { cells, start: step, made: Made::Value(ZERO) });
    }

    /// A TRIM arrives: it leaves zeros, the present content, or what the medium still has.
    pub fn begin_trim(&mut self, op: OpId, cells: Range<u64>, step: Step) {
        self.begin_range(op, RangeOp { cells, start: step, made: Made::AnythingOrZero });
    }

    /// Accepting a loss begins: until it is settled, unflushed cells may return to earlier content.
    pub fn begin_loss(&mut self, op: OpId, step: Step) {
        for number in &self.uncertain {
            let page = self.pages.get_mut(number).expect("an uncertain page");
            for cell in page.iter_mut().filter(|cell| !cell.is_certain()) {
                cell.live.push(Version::new(op, Made::Anything, step));
            }
        }
        self.active.insert(op, RangeOp { cells: ALL, start: step, made: Made::Anything });
    }

    /// The loss is accepted.
    pub fn end_loss(&mut self, op: OpId, step: Step) {
        self.settle(op, ALL, step);
    }

    /// A write (of data or zeros) was acknowledged; `durable` says whether it must be on the medium by now.
    pub fn acknowledge(&mut self, op: OpId, cells: Range<u64>, step: Step, durable: bool, horizon: Step) {
        self.active.remove(&op);
        for (_, cell) in self.known(cells) {
            let Some(v) = cell.live.iter_mut().find(|v| v.op == op) else { continue };
            (v.settled, v.acked) = (step, step);
            let start = v.start;
            cell.kill_older(op, start, step, true);
            if durable {
                cell.durable(op, start);
            }
            cell.prune(horizon);
        }
    }

    /// An operation cannot take effect any more; whether it did is unknown.
    pub fn settle(&mut self, op: OpId, cells: Range<u64>, step: Step) {
        self.active.remove(&op);
        for (_, cell) in self.known(cells) {
            cell.live.iter_mut().filter(|v| v.op == op).for_each(|v| v.settled = step);
        }
    }

    /// A read that started at `start` returned `bytes` at `offset`.
    pub fn read(&mut self, offset: u64, bytes: &[u8], start: Step, step: Step) -> Verdict {
        let end = offset + bytes.len() as u64;
        for number in cell::touched(offset, bytes.len() as u64) {
            let (from, to) = ((number * CELL).max(offset), ((number + 1) * CELL).min(end));
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            if to - from < CELL {
                self.read_part(number, from, part, start)?;
                continue;
            }
            let value = cell::value(part, number);
            let cell = self.cell_mut(number);
            let fits = value.is_some_and(|value| cell.map_or(value == ZERO, |cell| cell.observe(value, start, step)));
            if !fits {
                return Err(self.describe(number, value, start));
            }
        }
        Ok(())
    }

    fn cell_mut(&mut self, number: u64) -> Option<&mut Cell> {
        let page = self.pages.get_mut(&(number / CELLS_PER_BLOCK))?;
        Some(&mut page[(number % CELLS_PER_BLOCK) as usize])
    }

    /// A part of a cell was read: it must match one of the versions.
    fn read_part(&mut self, number: u64, from: u64, part: &[u8], start: Step) -> Verdict {
        let inside = (from % CELL) as usize..(from % CELL) as usize + part.len();
        let is = |value| cell::content(value, number)[inside.clone()] == *part;
        let fits = match self.cell_mut(number) {
            None => is(ZERO),
            Some(cell) if cell.is_certain() => is(cell.certain),
            Some(cell) => {
                let values =
                    cell.live.iter().filter_map(|v| if let Made::Value(value) = v.made { Some(value) } else { None });
                let mut values = values.chain(cell.old.iter().map(|old| old.value)).chain([ZERO]);
                values.any(|value| is(value) && cell.live.iter().any(|v| v.dead >= start && cell.fits(v, value)))
            }
        };
        if fits { Ok(()) } else { Err(format!("{} (a part of it)", self.describe(number, None, start))) }
    }

    /// The answer to a request that started at `start` said that these cells are zero.
    pub fn told_zero(&mut self, cells: Range<u64>, start: Step, step: Step) -> Verdict {
        let lie = self.known(cells).find_map(|(at, cell)| (!cell.observe(ZERO, start, step)).then_some(at));
        match lie {
            Some(at) => Err(self.describe(at, Some(ZERO), start)),
            None => Ok(()),
        }
    }

    /// A flush that started at `start` succeeded: everything that it covers must be on the medium, if that is known.
    pub fn flushed(&mut self, medium: Option<&dyn Blocks>, start: Step, horizon: Step) -> Verdict {
        let mut wrong = Ok(());
        let trims = if self.trims_drop_flushing { NEVER } else { start };
        let pages = &mut self.pages;
        self.uncertain.retain(|&number| {
            let page = pages.get_mut(&number).expect("an uncertain page");
            page.iter_mut().for_each(|cell| cell.flushed(start, trims, horizon));
            if let Some(medium) = medium.filter(|_| wrong.is_ok()) {
                wrong = check_block(number, page, medium);
            }
            page.iter_mut().for_each(|cell| cell.prune(horizon));
            page.iter().any(|cell| !cell.is_certain())
        });
        wrong.map_err(|what| format!("a flush that started at step {start} succeeded, but {what}"))
    }

    /// A durable write was acknowledged: `cells` must have this content or a later one on the medium.
    pub fn check_durable(&self, medium: &dyn Blocks, cells: Range<u64>) -> Verdict {
        let pages = self.pages.range(cells.start / CELLS_PER_BLOCK..cells.end.div_ceil(CELLS_PER_BLOCK));
        for (&number, page) in pages {
            check_block(number, page, medium)
                .map_err(|what| format!("a durable write was acknowledged, but {what}"))?;
        }
        Ok(())
    }

    /// Blocks of which the device has content older than a flush that starts at `start` requires.
    pub fn missing(&self, medium: &Medium, start: Step) -> BTreeSet<u64> {
        self.uncertain.iter().copied().filter(|&number| self.is_missing(number, medium, start)).collect()
    }

    /// Whether the device has content of block `number` older than a flush that starts at `start` requires.
    pub fn is_missing(&self, number: u64, medium: &Medium, start: Step) -> bool {
        (0..BLOCK / SECTOR).any(|sector| self.is_sector_missing(number * (BLOCK / SECTOR) + sector, medium, start))
    }

    /// The same for a sector.
    pub fn is_sector_missing(&self, sector: u64, medium: &Medium, start: Step) -> bool {
        let Some(page) = self.pages.get(&(sector * SECTOR / BLOCK)) else { return false };
        let mut bytes = [0; SECTOR as usize];
        medium.read(sector * SECTOR, &mut bytes);
        let first = sector * (SECTOR / CELL);
        (first..).zip(bytes.chunks(CELL as usize)).any(|(at, bytes)| {
            let cell = &page[(at % CELLS_PER_BLOCK) as usize];
            !cell::value(bytes, at).is_some_and(|value| cell.is_new_enough(value, start))
        })
    }

    /// Number of blocks whose required content on the device is unclear: an operation is changing them, or they were
    /// trimmed.
    pub fn unclear_blocks(&self) -> u64 {
        let unclear = |cell: &Cell| cell.live.iter().any(|v| v.settled == NEVER || v.revives()) || !cell.old.is_empty();
        self.uncertain.iter().filter(|number| self.pages[number].iter().any(unclear)).count() as u64
    }

    /// A power cut: the surviving content must be permitted, and is certain from now on.
    pub fn power_cut(&mut self, medium: &dyn Blocks) -> Verdict {
        for (&number, page) in &mut self.pages {
            check_block(number, page, medium).map_err(|what| format!("after a power cut, {what}"))?;
            for (i, cell) in page.iter_mut().enumerate() {
                let survivor = match medium.block(number) {
                    Some(sectors) => {
                        let at = i as u64 * CELL;
                        let content = sectors[(at / SECTOR) as usize].survivors().next().expect("the stable one");
                        value_in(content, number, i as u64).expect("just checked")
                    }
                    None => ZERO,
                };
                cell.set_certain(survivor);
            }
        }
        self.uncertain.clear();
        self.active.clear();
        Ok(())
    }

    /// Blocks that were ever written.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    fn describe(&self, number: u64, value: Option<Value>, start: Step) -> String {
        let found = match value {
            None => "bytes of no write at all".into(),
            Some(ZERO) => "zeros".into(),
            Some(value) => format!("write {value}"),
        };
        let cell = self.pages.get(&(number / CELLS_PER_BLOCK)).map(|page| &page[(number % CELLS_PER_BLOCK) as usize]);
        format!("{found} at cell {} read since step {start}, which has {}", place(number), versions_of(cell))
    }
}

fn place(number: u64) -> String {
    let byte = number * CELL;
    format!("{number} (byte {byte}, block {} + {})", byte / BLOCK, byte % BLOCK)
}

fn versions_of(cell: Option<&Cell>) -> String {
    match cell {
        None => "never been written".into(),
        Some(cell) if cell.is_certain() => format!("certainly {}", cell.certain),
        Some(cell) => {
            let list: Vec<String> = cell.live.iter().map(describe_version).collect();
            format!("versions [{}], perhaps on the medium {:?}", list.join(", "), cell.old)
        }
    }
}

/// Every version of a block that could survive a power cut must be permitted.
fn check_block(number: u64, page: &Page, medium: &dyn Blocks) -> Verdict {
    let wrong = |i: u64, what: String| {
        let cell = &page[i as usize];
        Err(format!(
            "cell {} could be {what} on the medium: {}",
            place(number * CELLS_PER_BLOCK + i),
            versions_of(Some(cell))
        ))
    };
    let Some(sectors) = medium.block(number) else {
        return match page.iter().position(|cell| !cell.may_survive(ZERO)) {
            Some(i) => wrong(i as u64, "zeros".into()),
            None => Ok(()),
        };
    };
    for (s, sector) in sectors.iter().enumerate() {
        for content in sector.survivors() {
            for i in s as u64 * (SECTOR / CELL)..(s as u64 + 1) * (SECTOR / CELL) {
                match value_in(content, number, i) {
                    None => return wrong(i, "bytes of no write at all".into()),
                    Some(value) if !page[i as usize].may_survive(value) => return wrong(i, format!("write {value}")),
                    Some(_) => {}
                }
            }
        }
    }
    Ok(())
}

/// The value of cell `i` of block `number` in its sector's content.
fn value_in(content: &Content, number: u64, i: u64) -> Option<Value> {
    let at = (i * CELL % SECTOR) as usize;
    cell::value(&content.bytes()[at..at + CELL as usize], number * CELLS_PER_BLOCK + i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Fate;
    use crate::rng::Rng;
    use std::rc::Rc;

    fn bytes(value: Value) -> [u8; 128] {
        cell::content(value, 0)
    }

    fn read(history: &mut History, value: Value, start: Step, step: Step) -> bool {
        history.read(0, &bytes(value), start, step).is_ok()
    }

    fn write(history: &mut History, op: OpId, start: Step, acked: Step) {
        history.begin_write(op, 0..1, start);
        history.acknowledge(op, 0..1, acked, false, start);
    }

    fn put(medium: &mut Medium, value: Value, fate: Fate) {
        let mut sector = vec![0; 512];
        sector[..128].copy_from_slice(&bytes(value));
        medium.write(0, Content::new(&Rc::new(sector), 0), fate, 0);
    }

    #[test]
    fn reads_return_the_last_write_or_one_in_flight() {
        let mut h = History::default();
        assert!(read(&mut h, ZERO, 1, 2) && !read(&mut h, 5, 1, 2));
        write(&mut h, 1, 3, 4);
        assert!(read(&mut h, 1, 5, 6) && !read(&mut h, ZERO, 5, 6));
        assert!(!read(&mut h, ZERO, 4 + 1, 6), "started after the write was acknowledged");
        h.begin_write(2, 0..1, 7);
        assert!(read(&mut h, 1, 8, 9) && read(&mut h, 2, 8, 9));
        assert!(!read(&mut h, 1, 10, 11), "it was already seen to be over");
    }

    #[test]
    fn a_read_that_began_before_may_see_what_was() {
        let mut h = History::default();
        write(&mut h, 1, 1, 2);
        h.begin_write(2, 0..1, 4);
        h.acknowledge(2, 0..1, 5, false, 3);
        assert!(read(&mut h, 1, 3, 6));
        assert!(!read(&mut h, 1, 6, 7));
    }

    #[test]
    fn an_unanswered_write_may_have_happened_until_superseded() {
        let mut h = History::default();
        write(&mut h, 1, 1, 2);
        h.begin_write(2, 0..1, 3);
        h.settle(2, 0..1, 4);
        let mut other = History { pages: h.pages.clone(), ..History::default() };
        assert!(read(&mut h, 2, 5, 6) && !read(&mut h, 1, 7, 8));
        assert!(read(&mut other, 1, 5, 6) && !read(&mut other, 2, 7, 8));
        write(&mut other, 3, 9, 10);
        assert!(read(&mut other, 3, 11, 12) && !read(&mut other, 2, 13, 14));
    }

    #[test]
    fn trim_is_old_or_zero_and_then_stable() {
        let mut h = History::default();
        write(&mut h, 1, 1, 2);
        h.begin_trim(2, 0..1, 3);
        h.settle(2, 0..1, 4);
        assert!(read(&mut h, ZERO, 5, 6));
        assert!(!read(&mut h, 1, 7, 8));
        write(&mut h, 3, 9, 10);
        assert!(read(&mut h, 3, 11, 12) && !read(&mut h, ZERO, 13, 14));
    }

    #[test]
    fn a_flush_wants_the_last_write_on_the_medium() {
        let (mut h, mut medium) = (History::default(), Medium::default());
        write(&mut h, 1, 1, 2);
        assert!(h.flushed(Some(&medium), 3, 3).is_err());
        let (mut h, _) = (History::default(), ());
        write(&mut h, 1, 1, 2);
        put(&mut medium, 1, Fate::Volatile);
        assert!(h.flushed(Some(&medium), 2, 3).is_ok(), "it was acknowledged after the flush began");
        assert!(h.flushed(Some(&medium), 3, 3).is_err(), "zeros could survive");
        medium.flush(9);
        let mut h = History::default();
        write(&mut h, 1, 1, 2);
        assert!(h.flushed(Some(&medium), 3, 3).is_ok());
        assert!(h.uncertain.is_empty());
    }

    #[test]
    fn after_a_power_cut_what_survived_is_the_truth() {
        let (mut h, mut medium) = (History::default(), Medium::default());
        write(&mut h, 1, 1, 2);
        put(&mut medium, 1, Fate::Durable);
        h.flushed(Some(&medium), 3, 3).unwrap();
        write(&mut h, 2, 4, 5);
        put(&mut medium, 2, Fate::Volatile);
        medium.power_cut(&mut Rng::new(3));
        h.power_cut(&medium).unwrap();
        let survivor =
            cell::value(medium.block(0).unwrap()[0].survivors().next().unwrap().bytes().get(..128).unwrap(), 0);
        assert!(read(&mut h, survivor.unwrap(), 6, 7) && !read(&mut h, 3 - survivor.unwrap(), 6, 7));
        write(&mut h, 3, 8, 9);
        h.flushed(Some(&medium), 10, 10).unwrap_err();
    }

    #[test]
    fn a_durable_write_needs_no_flush() {
        let (mut h, mut medium) = (History::default(), Medium::default());
        h.begin_write(1, 0..1, 1);
        h.acknowledge(1, 0..1, 2, true, 2);
        assert!(h.power_cut(&medium).is_err());
        put(&mut medium, 1, Fate::Durable);
        h.begin_write(1, 0..1, 1);
        assert!(h.power_cut(&medium).is_ok());
    }

    #[test]
    fn an_accepted_loss_may_bring_back_the_zeros_of_a_trim() {
        let mut h = History::default();
        write(&mut h, 1, 1, 2);
        h.begin_trim(2, 0..1, 3);
        h.settle(2, 0..1, 4);
        write(&mut h, 3, 5, 6);
        assert!(!read(&mut h, ZERO, 7, 8), "it was overwritten");
        // The device punched the range, the write-back of 3 fails, and the operator accepts the loss.
        h.begin_loss(4, 9);
        h.end_loss(4, 10);
        assert!(read(&mut h, ZERO, 11, 12) && !read(&mut h, 3, 13, 14), "what was read stays");
    }

    /// A write, an accepted loss, and zeros that fail between `zeros`; then zeros are read, and a flush succeeds.
    fn flushed_after_a_loss(loss: (Step, Step), zeros: Option<(Step, Step)>) -> Verdict {
        let (mut h, mut medium) = (History::default(), Medium::default());
        write(&mut h, 1, 1, 2);
        write(&mut h, 2, 3, 4);
        put(&mut medium, 1, Fate::Durable);
        put(&mut medium, ZERO, Fate::Doomed(1));
        h.begin_loss(3, loss.0);
        if let Some((start, failed)) = zeros {
            h.begin_zero(4, 0..1, start);
            h.settle(4, 0..1, failed);
        }
        h.end_loss(3, loss.1);
        assert!(read(&mut h, ZERO, 20, 21) && !read(&mut h, 2, 22, 23), "what was read stays");
        h.flushed(Some(&medium), 24, 24)
    }

    #[test]
    fn what_is_read_after_an_accepted_loss_is_flushed_unless_failed_zeros_explain_it() {
        assert!(flushed_after_a_loss((5, 6), None).is_err(), "the loss left zeros, and the medium has a write");
        assert!(flushed_after_a_loss((7, 8), Some((5, 6))).is_err(), "the loss forgives what remained before it");
        // The loss left write 1, and what is read is the rest of the failed zeros, which no flush saves.
        assert!(flushed_after_a_loss((5, 6), Some((7, 8))).is_ok());
        assert!(flushed_after_a_loss((6, 7), Some((5, 8))).is_ok());
    }

    #[test]
    fn an_accepted_loss_brings_back_what_is_not_flushed() {
        let (mut h, medium) = (History::default(), Medium::default());
        write(&mut h, 1, 1, 2);
        h.begin_loss(2, 3);
        h.end_loss(2, 4);
        h.flushed(Some(&medium), 5, 5).unwrap();
        assert!(read(&mut h, ZERO, 6, 7));
        assert!(!read(&mut h, 1, 8, 9));
    }
}
