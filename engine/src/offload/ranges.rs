//! The off-loaded ranges of one volume: ordered, without overlaps, each with the version that is its newest content.
//!
//! ```text
//!   writes    v1 |--------------|        v2      |--------|            v3  |--|
//!   pieces       |v1|--v3--|-v1-|---v2-----------|            a new version splits and covers older ones
//! ```
//!
//! A piece is *home* when the base has its content durably, too. It stays in the map until no store has the version any
//! more: until then a new write of the range must be off-loaded.
//!
//! Source: Everest, section 3.2.1, figure 4. Memory: 10 bytes a piece, and about one of its leaf ([`Packed`]).

use super::packed::Packed;
use crate::units::SECTOR;

/// A version, by its place in the table of versions.
pub(super) type Id = u32;

/// Most significant bit of a piece's length: it is home.
const HOME: u16 = 1 << 15;

/// A piece, which begins at its key. In 16 bits each, so that a map packs it tightly.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Sectors, and [`HOME`].
    sectors: u16,
    /// The version, less significant half first.
    of: [u16; 2],
}

impl Piece {
    /// A piece of so many sectors that is not home.
    fn new(sectors: u64, id: Id) -> Piece {
        debug_assert!(sectors < u64::from(HOME));
        Piece { sectors: sectors as u16, of: [id as u16, (id >> 16) as u16] }
    }

    fn id(self) -> Id {
        u32::from(self.of[0]) | u32::from(self.of[1]) << 16
    }

    fn is_home(self) -> bool {
        self.sectors & HOME != 0
    }

    fn sectors(self) -> u64 {
        u64::from(self.sectors & !HOME)
    }

    /// The same content, of another number of sectors.
    fn resized(self, sectors: u64) -> Piece {
        Piece { sectors: sectors as u16 | self.sectors & HOME, ..self }
    }
}

const _: () = assert!(size_of::<Piece>() == 6 && align_of::<Piece>() == 2);

/// A part of a range: bytes `start..end`, and the version that has them, or the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) version: Option<Id>,
    /// The base has the same content.
    pub(super) is_home: bool,
}

/// The pieces of a volume, by their first sectors: all writes are whole sectors.
#[derive(Default, Debug)]
pub(super) struct Ranges {
    pieces: Packed<Piece>,
}

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces that overlap `start..end`: start, end, piece, not cut.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, Piece)> + '_ {
        let bytes = |(at, piece): (u64, Piece)| (at * SECTOR, (at + piece.sectors()) * SECTOR, piece);
        // A sector that `start` is in the middle of is overlapped, too.
        let sector = start.div_ceil(SECTOR);
        let first = self.pieces.before(sector).map(bytes).filter(|&(_, past, _)| past > start);
        let rest = self.pieces.range(sector).map(bytes);
        first.into_iter().chain(rest.take_while(move |&(at, ..)| at < end))
    }

    /// Whether a version of any byte is off-loaded.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.overlapping(start, end).next().is_some()
    }

    /// `start..end` in parts, in order: those that versions have, and those that the base has.
    pub(super) fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = Part> + '_ {
        let mut at = start;
        let mut pieces = self.overlapping(start, end).peekable();
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let from = at;
            at = match pieces.peek() {
                Some(&(piece_start, piece_end, piece)) if piece_start <= from => {
                    pieces.next();
                    at = piece_end.min(end);
                    return Some(Part { start: from, end: at, version: Some(piece.id()), is_home: piece.is_home() });
                }
                Some(&(piece_start, ..)) => piece_start.min(end),
                None => end,
            };
            Some(Part { start: from, end: at, version: None, is_home: true })
        })
    }

    /// Cuts pieces so that none crosses `sector`.
    fn cut(&mut self, sector: u64) {
        let Some((start, piece)) = self.pieces.before(sector) else { return };
        let end = start + piece.sectors();
        if end > sector {
            self.pieces.insert(start, piece.resized(sector - start));
            self.pieces.insert(sector, piece.resized(end - sector));
        }
    }

    /// The sectors of `start..end`. No piece crosses either end.
    fn cut_out(&mut self, start: u64, end: u64) -> (u64, u64) {
        debug_assert!(start.is_multiple_of(SECTOR) && end.is_multiple_of(SECTOR));
        let (first, past) = (start / SECTOR, end / SECTOR);
        self.cut(first);
        self.cut(past);
        (first, past)
    }

    /// `start..end` is the content of a new version. Reports what it covers: version, bytes, whether it was home.
    pub(super) fn cover(&mut self, start: u64, end: u64, id: Id, mut covered: impl FnMut(Id, u64, bool)) {
        let (first, sectors) = (start / SECTOR, (end - start) / SECTOR);
        if let Some(piece) = self.pieces.get(first)
            && piece.sectors() == sectors
        {
            // A block that is written again and again.
            self.pieces.insert(first, Piece::new(sectors, id));
            return covered(piece.id(), sectors * SECTOR, piece.is_home());
        }
        let (first, past) = self.cut_out(start, end);
        while let Some((at, piece)) = self.pieces.first_from(first).filter(|&(at, _)| at < past) {
            self.pieces.remove(at);
            covered(piece.id(), piece.sectors() * SECTOR, piece.is_home());
        }
        self.pieces.insert(first, Piece::new(past - first, id));
    }

    /// The base has `start..end` durably, as `id` has it. Returns the bytes for which that is new; where another
    /// version is the newest, nothing changes.
    pub(super) fn brought_home(&mut self, start: u64, end: u64, id: Id) -> u64 {
        let (mut at, past) = self.cut_out(start, end);
        let mut sectors = 0;
        while let Some((first, piece)) = self.pieces.first_from(at).filter(|&(first, _)| first < past) {
            at = first + piece.sectors();
            if piece.id() == id && !piece.is_home() {
                self.pieces.insert(first, Piece { sectors: piece.sectors | HOME, ..piece });
                sectors += piece.sectors();
            }
        }
        sectors * SECTOR
    }

    /// No store has a version any more, whose write was `start..end`.
    pub(super) fn remove(&mut self, start: u64, end: u64, id: Id) {
        let (mut at, past) = (start / SECTOR, end.div_ceil(SECTOR));
        while let Some((first, piece)) = self.pieces.first_from(at).filter(|&(first, _)| first < past) {
            at = first + piece.sectors();
            if piece.id() == id {
                self.pieces.remove(first);
            }
        }
    }

    /// What `start..end` has of a version that is not home.
    pub(super) fn away(&self, start: u64, end: u64, id: Id) -> impl Iterator<Item = (u64, u64)> + '_ {
        let is_away = move |&(.., piece): &(u64, u64, Piece)| piece.id() == id && !piece.is_home();
        self.overlapping(start, end).filter(is_away).map(move |(from, to, _)| (from.max(start), to.min(end)))
    }

    /// What `start..end` has of a version that is home.
    pub(super) fn home(&self, start: u64, end: u64, id: Id) -> impl Iterator<Item = (u64, u64)> + '_ {
        let is_home = move |part: &Part| part.version == Some(id) && part.is_home;
        self.parts(start, end).filter(is_home).map(|part| (part.start, part.end))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The tests count in sectors.
    fn parts(ranges: &Ranges, start: u64, end: u64) -> Vec<(u64, u64, Option<Id>)> {
        let parts = ranges.parts(start * SECTOR, end * SECTOR);
        parts.map(|part| (part.start / SECTOR, part.end / SECTOR, part.version)).collect()
    }

    fn cover(ranges: &mut Ranges, start: u64, end: u64, id: Id, mut covered: impl FnMut(Id, u64, bool)) {
        ranges.cover(start * SECTOR, end * SECTOR, id, |id, bytes, is_home| covered(id, bytes / SECTOR, is_home));
    }

    fn brought_home(ranges: &mut Ranges, start: u64, end: u64, id: Id) -> u64 {
        ranges.brought_home(start * SECTOR, end * SECTOR, id) / SECTOR
    }

    fn away(ranges: &Ranges, start: u64, end: u64, id: Id) -> Vec<(u64, u64)> {
        let away = ranges.away(start * SECTOR, end * SECTOR, id);
        away.map(|(start, end)| (start / SECTOR, end / SECTOR)).collect()
    }

    #[test]
    fn newer_versions_cover_older_ones_and_split_them() {
        let mut ranges = Ranges::default();
        cover(&mut ranges, 0, 15, 1, |_, _, _| panic!("there is nothing"));
        let mut covered = Vec::new();
        cover(&mut ranges, 10, 20, 2, |id, bytes, _| covered.push((id, bytes)));
        cover(&mut ranges, 3, 6, 3, |id, bytes, _| covered.push((id, bytes)));
        assert_eq!(covered, [(1, 5), (1, 3)]);
        let all = [(0, 3, Some(1)), (3, 6, Some(3)), (6, 10, Some(1)), (10, 20, Some(2)), (20, 25, None)];
        assert_eq!(parts(&ranges, 0, 25), all);
        assert_eq!(parts(&ranges, 5, 7), [(5, 6, Some(3)), (6, 7, Some(1))]);
        assert_eq!(away(&ranges, 0, 15, 1), [(0, 3), (6, 10)]);
    }

    #[test]
    fn what_is_home_stays_until_its_version_is_removed() {
        let mut ranges = Ranges::default();
        cover(&mut ranges, 0, 10, 1, |_, _, _| {});
        cover(&mut ranges, 4, 6, 2, |_, _, _| {});
        assert_eq!((brought_home(&mut ranges, 0, 10, 1), brought_home(&mut ranges, 0, 10, 1)), (8, 0), "once");
        assert!(ranges.overlaps(0, 1) && away(&ranges, 0, 10, 1).is_empty());
        ranges.remove(0, 10 * SECTOR, 1);
        assert_eq!(parts(&ranges, 0, 10), [(0, 4, None), (4, 6, Some(2)), (6, 10, None)]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Cover(u64, u64),
        Home(u64, u64, Id),
        Remove(Id),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0u64..60, 1u64..20).prop_map(|(start, len)| (start, start + len));
        prop_oneof![
            3 => range().prop_map(|(start, end)| Step::Cover(start, end)),
            2 => (range(), 0u32..30).prop_map(|((start, end), id)| Step::Home(start, end, id)),
            1 => (0u32..30).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn a_map_of_sectors_agrees(
            steps in proptest::collection::vec(step(), 1..60),
            (from, bytes) in (0..70 * SECTOR, 1..10 * SECTOR),
        ) {
            let (mut ranges, mut model) = (Ranges::default(), [None::<(Id, bool)>; 80]);
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Cover(start, end) => {
                        let mut covered = BTreeMap::new();
                        let mut count = |id, bytes, home| *covered.entry((id, home)).or_insert(0) += bytes;
                        cover(&mut ranges, start, end, next, &mut count);
                        let mut expected = BTreeMap::new();
                        for byte in &mut model[start as usize..end as usize] {
                            byte.iter_mut().for_each(|old| *expected.entry(*old).or_insert(0) += 1);
                            *byte = Some((next, false));
                        }
                        prop_assert_eq!(covered, expected);
                        next += 1;
                    }
                    Step::Home(start, end, id) => {
                        let bytes = brought_home(&mut ranges, start, end, id);
                        let mut expected = 0;
                        for byte in model[start as usize..end as usize].iter_mut().flatten() {
                            if *byte == (id, false) {
                                byte.1 = true;
                                expected += 1;
                            }
                        }
                        prop_assert_eq!(bytes, expected);
                    }
                    Step::Remove(id) => {
                        ranges.remove(0, 80 * SECTOR, id);
                        model.iter_mut().for_each(|byte| *byte = byte.filter(|of| of.0 != id));
                    }
                }
                let mut seen = Vec::new();
                for (start, end, version) in parts(&ranges, 0, 80) {
                    prop_assert!(start < end);
                    seen.extend((start..end).map(|_| version));
                }
                prop_assert_eq!(seen, model.map(|byte| byte.map(|of| of.0)).to_vec());
                // A client may ask for any bytes.
                let to = from + bytes;
                let mut at = from;
                for part in ranges.parts(from, to) {
                    prop_assert!(part.start == at && part.start < part.end && part.end <= to);
                    at = part.end;
                    let of = (part.start / SECTOR..part.end.div_ceil(SECTOR)).map(|at| model[at as usize]);
                    for byte in of {
                        prop_assert_eq!(part.version, byte.map(|of| of.0));
                        prop_assert_eq!(part.is_home, byte.is_none_or(|of| of.1));
                    }
                }
                prop_assert_eq!(at, to);
                let is_any = model[(from / SECTOR) as usize..to.div_ceil(SECTOR) as usize].iter().any(Option::is_some);
                prop_assert_eq!(ranges.overlaps(from, to), is_any);
                for id in 0..next {
                    let ranges = away(&ranges, 0, 80, id).into_iter();
                    let away: Vec<_> = ranges.flat_map(|(start, end)| start..end).collect();
                    let expected: Vec<_> = (0..80).filter(|&at| model[at as usize] == Some((id, false))).collect();
                    prop_assert_eq!(away, expected);
                }
            }
        }
    }
}
