//! A naive model of a volume's content: every write to each cell of 128 bytes, all of which are searched.
//!
//! A read that begins at `from` may return the content of any write that had begun, unless another write was
//! acknowledged before `from` that began after the first one had ended. After a flush that begins at `from`, the same
//! contents may be durable. TRIM leaves a cell undefined until it is written: it may hold anything that it ever held.

use std::collections::HashMap;

use sim::cell::{CELL, Value, ZERO};

/// A moment: the number of events so far.
pub type Step = u64;

const NEVER: Step = Step::MAX;

/// The content of cells after a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// This value.
    Value(Value),
    /// Zeros, or anything that they ever held: after TRIM.
    Undefined,
    /// Anything: after a request that covers cells in part, whose bytes are not modelled.
    Anything,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    leaves: Leaves,
    begun: Step,
    /// When it could not take effect any more, because it was answered or its client had disconnected.
    over: Step,
    acknowledged: bool,
}

/// All cells that were written.
#[derive(Default, Debug)]
pub struct Model {
    cells: HashMap<u64, Vec<(u64, Version)>>,
}

fn cells(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / CELL..(offset + len) / CELL
}

impl Model {
    /// Request `id` begins to change cells.
    pub fn begin(&mut self, now: Step, offset: u64, len: u64, id: u64, leaves: Leaves) {
        let version = Version { leaves, begun: now, over: NEVER, acknowledged: false };
        for cell in cells(offset, len) {
            self.cells.entry(cell).or_default().push((id, version));
        }
    }

    /// The request was answered, or its client has disconnected.
    pub fn end(&mut self, now: Step, offset: u64, len: u64, id: u64, acknowledged: bool) {
        for cell in cells(offset, len) {
            let versions = self.cells.get_mut(&cell).expect("it was begun");
            let (_, version) = versions.iter_mut().find(|(each, _)| *each == id).expect("it was begun");
            (version.over, version.acknowledged) = (now, acknowledged);
        }
    }

    /// Whether a read that begins at `from` may find this value in a cell.
    pub fn allows(&self, cell: u64, value: Option<Value>, from: Step) -> bool {
        let Some(versions) = self.cells.get(&cell) else { return value == Some(ZERO) };
        let first = Version { leaves: Leaves::Value(ZERO), begun: 0, over: 0, acknowledged: true };
        let all = || std::iter::once(&first).chain(versions.iter().map(|(_, version)| version));
        let replaces = |new: &Version, old: &Version| {
            let is_known = matches!(new.leaves, Leaves::Value(_));
            is_known && new.acknowledged && new.over < from && old.over < new.begun
        };
        let alive = |old: &Version| !all().any(|new| replaces(new, old));
        let some_alive = |leaves| all().any(|version| version.leaves == leaves && alive(version));
        let ever = || all().any(|version| Some(version.leaves) == value.map(Leaves::Value));
        some_alive(Leaves::Anything)
            || value.is_some_and(|value| some_alive(Leaves::Value(value)))
            || (some_alive(Leaves::Undefined) && (ever() || all().any(|version| version.leaves == Leaves::Anything)))
    }

    /// The cells of a range that were ever written.
    pub fn known(&self, offset: u64, len: u64) -> impl Iterator<Item = u64> {
        let range = cells(offset, len);
        self.cells.keys().copied().filter(move |cell| range.contains(cell))
    }
}
