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
//! Source: Everest, section 3.2.1, figure 4. Memory: 16 bytes a piece, in a B-tree.

use std::collections::BTreeMap;

/// A version, by its place in the table of versions.
pub(super) type Id = u32;

/// Most significant bit of a piece's number: it is home.
const HOME: u32 = 1 << 31;

/// A piece, which begins at its key.
#[derive(Clone, Copy, Debug)]
struct Piece {
    len: u32,
    /// The version, and [`HOME`].
    of: u32,
}

impl Piece {
    fn id(self) -> Id {
        self.of & !HOME
    }

    fn is_home(self) -> bool {
        self.of & HOME != 0
    }
}

/// A part of a range: bytes `start..end`, and the version that has them, or the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) version: Option<Id>,
    /// The base has the same content.
    pub(super) is_home: bool,
}

/// The pieces of a volume.
#[derive(Default, Debug)]
pub(super) struct Ranges {
    pieces: BTreeMap<u64, Piece>,
}

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces that overlap `start..end`: start, end, piece, not cut.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, Piece)> + '_ {
        let first = self.pieces.range(..start).next_back().filter(|&(&at, piece)| at + u64::from(piece.len) > start);
        let rest = self.pieces.range(start..end.max(start));
        first.into_iter().chain(rest).map(|(&at, &piece)| (at, at + u64::from(piece.len), piece))
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

    /// Cuts pieces so that none crosses `at`.
    fn cut(&mut self, at: u64) {
        let Some((&start, piece)) = self.pieces.range_mut(..at).next_back() else { return };
        let end = start + u64::from(piece.len);
        if end > at {
            piece.len = (at - start) as u32;
            let of = piece.of;
            self.pieces.insert(at, Piece { len: (end - at) as u32, of });
        }
    }

    /// Removes what lies in `start..end`, and reports it: version, bytes, whether it was home.
    fn clear(&mut self, start: u64, end: u64, mut removed: impl FnMut(Id, u64, bool)) {
        self.cut(start);
        self.cut(end);
        while let Some((&at, &piece)) = self.pieces.range(start..end).next() {
            self.pieces.remove(&at);
            removed(piece.id(), u64::from(piece.len), piece.is_home());
        }
    }

    /// `start..end` is the content of a new version. Reports what it covers: version, bytes, whether it was home.
    pub(super) fn cover(&mut self, start: u64, end: u64, id: Id, covered: impl FnMut(Id, u64, bool)) {
        self.clear(start, end, covered);
        self.pieces.insert(start, Piece { len: (end - start) as u32, of: id });
    }

    /// The base has `start..end` durably, as `id` has it. Returns the bytes for which that is new; where another
    /// version is the newest, nothing changes.
    pub(super) fn brought_home(&mut self, start: u64, end: u64, id: Id) -> u64 {
        self.cut(start);
        self.cut(end);
        let mut bytes = 0;
        for (_, piece) in self.pieces.range_mut(start..end) {
            if piece.id() == id && !piece.is_home() {
                piece.of |= HOME;
                bytes += u64::from(piece.len);
            }
        }
        bytes
    }

    /// No store has a version any more, whose write was `start..end`.
    pub(super) fn remove(&mut self, start: u64, end: u64, id: Id) {
        let mut at = start;
        while let Some((&piece_start, &piece)) = self.pieces.range(at..end.max(at)).next() {
            at = piece_start + u64::from(piece.len);
            if piece.id() == id {
                self.pieces.remove(&piece_start);
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
    use proptest::prelude::*;

    use super::*;

    fn parts(ranges: &Ranges, start: u64, end: u64) -> Vec<(u64, u64, Option<Id>)> {
        ranges.parts(start, end).map(|part| (part.start, part.end, part.version)).collect()
    }

    #[test]
    fn newer_versions_cover_older_ones_and_split_them() {
        let mut ranges = Ranges::default();
        ranges.cover(0, 15, 1, |_, _, _| panic!("there is nothing"));
        let mut covered = Vec::new();
        ranges.cover(10, 20, 2, |id, bytes, _| covered.push((id, bytes)));
        ranges.cover(3, 6, 3, |id, bytes, _| covered.push((id, bytes)));
        assert_eq!(covered, [(1, 5), (1, 3)]);
        let all = [(0, 3, Some(1)), (3, 6, Some(3)), (6, 10, Some(1)), (10, 20, Some(2)), (20, 25, None)];
        assert_eq!(parts(&ranges, 0, 25), all);
        assert_eq!(parts(&ranges, 5, 7), [(5, 6, Some(3)), (6, 7, Some(1))]);
        assert_eq!(ranges.away(0, 15, 1).collect::<Vec<_>>(), [(0, 3), (6, 10)]);
    }

    #[test]
    fn what_is_home_stays_until_its_version_is_removed() {
        let mut ranges = Ranges::default();
        ranges.cover(0, 10, 1, |_, _, _| {});
        ranges.cover(4, 6, 2, |_, _, _| {});
        assert_eq!((ranges.brought_home(0, 10, 1), ranges.brought_home(0, 10, 1)), (8, 0), "once");
        assert!(ranges.overlaps(0, 1) && ranges.away(0, 10, 1).next().is_none());
        ranges.remove(0, 10, 1);
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
        fn a_map_of_bytes_agrees(steps in proptest::collection::vec(step(), 1..60)) {
            let (mut ranges, mut model) = (Ranges::default(), [None::<(Id, bool)>; 80]);
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Cover(start, end) => {
                        let mut covered = BTreeMap::new();
                        let mut count = |id, bytes, home| *covered.entry((id, home)).or_insert(0) += bytes;
                        ranges.cover(start, end, next, &mut count);
                        let mut expected = BTreeMap::new();
                        for byte in &mut model[start as usize..end as usize] {
                            byte.iter_mut().for_each(|old| *expected.entry(*old).or_insert(0) += 1);
                            *byte = Some((next, false));
                        }
                        prop_assert_eq!(covered, expected);
                        next += 1;
                    }
                    Step::Home(start, end, id) => {
                        let bytes = ranges.brought_home(start, end, id);
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
                        ranges.remove(0, 80, id);
                        model.iter_mut().for_each(|byte| *byte = byte.filter(|of| of.0 != id));
                    }
                }
                let mut seen = Vec::new();
                for part in ranges.parts(0, 80) {
                    prop_assert!(part.start < part.end);
                    seen.extend((part.start..part.end).map(|_| part.version));
                }
                prop_assert_eq!(seen, model.map(|byte| byte.map(|of| of.0)).to_vec());
                for id in 0..next {
                    let away: Vec<_> = ranges.away(0, 80, id).flat_map(|(start, end)| start..end).collect();
                    let expected: Vec<_> = (0..80).filter(|&at| model[at as usize] == Some((id, false))).collect();
                    prop_assert_eq!(away, expected);
                }
            }
        }
    }
}
