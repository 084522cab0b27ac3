//! One cell as a register: the versions that operations may have left in it, which of them may still be read, and which
//! may be on the medium. `history.rs` has the picture.

use crate::cell::{Value, ZERO};
use crate::history::{OpId, Step};

pub(crate) const NEVER: Step = Step::MAX;

/// The version that one operation may have left in a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) op: OpId,
    pub(crate) made: Made,
    pub(crate) start: Step,
    pub(crate) settled: Step,
    pub(crate) acked: Step,
    /// No read that starts later may return it.
    pub(crate) dead: Step,
    /// No flush that starts later may leave it on the medium.
    pub(crate) superseded: Step,
    /// A power cut may leave it.
    pub(crate) on_medium: bool,
}

/// What an operation leaves in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Made {
    /// This value.
    Value(Value),
    /// Anything that may be on the medium, or zeros.
    AnythingOrZero,
    /// Anything that may be on the medium.
    Anything,
}

impl Version {
    pub(crate) fn new(op: OpId, made: Made, start: Step) -> Version {
        Version { op, made, start, settled: NEVER, acked: NEVER, dead: NEVER, superseded: NEVER, on_medium: true }
    }

    fn certain(value: Value) -> Version {
        Version { settled: 0, acked: 0, ..Version::new(0, Made::Value(value), 0) }
    }

    pub(crate) fn is(&self, value: Value) -> bool {
        self.made == Made::Value(value)
    }

    /// Whether it may have put `value` on the medium itself, not by reviving another version.
    fn may_have_put(&self, value: Value) -> bool {
        self.on_medium && (self.is(value) || self.made == Made::AnythingOrZero && value == ZERO)
    }

    pub(crate) fn revives(&self) -> bool {
        !matches!(self.made, Made::Value(_))
    }
}

/// A version that cannot be read any more, but may still be on the medium.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Old {
    pub(crate) value: Value,
    pub(crate) settled: Step,
    pub(crate) superseded: Step,
}

/// A cell: one certain value, or several versions.
#[derive(Clone, Default, Debug)]
pub(crate) struct Cell {
    pub(crate) certain: Value,
    pub(crate) live: Vec<Version>,
    pub(crate) old: Vec<Old>,
}

impl Cell {
    pub(crate) fn live(&mut self) -> &mut Vec<Version> {
        if self.live.is_empty() {
            self.live.push(Version::certain(self.certain));
        }
        &mut self.live
    }

    pub(crate) fn set_certain(&mut self, value: Value) {
        self.certain = value;
        self.live.clear();
        self.old.clear();
    }

    pub(crate) fn is_certain(&self) -> bool {
        self.live.is_empty()
    }

    /// Drops versions that can neither be read nor be on the medium. `horizon` is the start of the oldest request.
    pub(crate) fn prune(&mut self, horizon: Step) {
        let (old, live) = (&mut self.old, &mut self.live);
        let over = |v: &&Version| v.dead < horizon && v.superseded != NEVER;
        // Reviving versions extend how long the others may stay on the medium, so they are buried last.
        live.iter().filter(over).filter(|v| v.on_medium && !v.revives()).for_each(|v| bury(old, v));
        live.iter().filter(over).filter(|v| v.on_medium && v.revives()).for_each(|v| bury(old, v));
        live.retain(|v| v.on_medium && v.superseded == NEVER || v.dead >= horizon);
        if let [only] = self.live[..]
            && let Made::Value(value) = only.made
            && only.acked != NEVER
            && self.old.is_empty()
        {
            self.set_certain(value);
        }
    }

    /// `op`, which started at `start`, has certainly taken effect by `step`: versions settled before `start` are dead.
    pub(crate) fn kill_older(&mut self, op: OpId, start: Step, step: Step, superseded: bool) {
        for v in self.live.iter_mut().filter(|v| v.op != op && v.settled < start) {
            v.dead = v.dead.min(step);
            if superseded {
                v.superseded = v.superseded.min(step);
            }
        }
    }

    /// Whether `v` may have given the cell the value `value`.
    pub(crate) fn fits(&self, v: &Version, value: Value) -> bool {
        match v.made {
            Made::Value(made) => made == value,
            Made::AnythingOrZero if value == ZERO => true,
            Made::AnythingOrZero | Made::Anything => {
                self.live.iter().any(|other| other.may_have_put(value)) || self.old.iter().any(|old| old.value == value)
            }
        }
    }

    /// A read that started at `start` has just returned `value`. False if no version permits that.
    pub(crate) fn observe(&mut self, value: Value, start: Step, step: Step) -> bool {
        if self.is_certain() {
            return self.certain == value;
        }
        let mut fitting = self.live.iter().filter(|v| v.dead >= start && self.fits(v, value));
        let Some(&first) = fitting.next() else { return false };
        let unique = fitting.next().is_none();
        let accepted = self.is_left_by_a_loss(value, start, step);
        let mut found = Vec::new();
        for v in self.live.iter_mut().filter(|v| v.settled < start && v.dead > step) {
            if v.revives() {
                // The operation has ended, and the value that it left is the observed one. On the medium it may be
                // another.
                found.push(Version { made: Made::Value(value), ..*v });
                v.dead = step;
                if v.made == Made::Anything && accepted {
                    v.superseded = v.superseded.min(step);
                }
            } else if !v.is(value) {
                v.dead = step;
                if unique && first.acked != NEVER || accepted {
                    v.superseded = v.superseded.min(step);
                }
            }
        }
        self.live.extend(found);
        if unique {
            self.kill_older(first.op, first.start, step, first.acked != NEVER);
        }
        true
    }

    /// Whether `value`, read from `start` to `step`, is certainly what an accepted loss left: then it is the content of
    /// the cell, also on the medium once a flush has succeeded. Zeros may also be what remains of a zeroing that failed
    /// and was not over before the loss: that can be read, but no flush saves it, and the medium may have what the loss
    /// left.
    fn is_left_by_a_loss(&self, value: Value, start: Step, step: Step) -> bool {
        let remains = |loss: &Version, v: &Version| {
            value == ZERO && v.is(ZERO) && v.acked == NEVER && v.settled > loss.start && v.dead >= start
        };
        let ended = |v: &&Version| v.made == Made::Anything && v.settled < start && v.dead > step;
        self.live.iter().filter(ended).any(|loss| !self.live.iter().any(|v| remains(loss, v)))
    }

    /// Whether a flush that started at `start` may leave `value` on the medium, as far as is known.
    pub(crate) fn is_new_enough(&self, value: Value, start: Step) -> bool {
        if self.is_certain() {
            return self.certain == value;
        }
        self.live.iter().any(|v| v.revives() || v.superseded >= start && self.fits(v, value))
            || self.old.iter().any(|old| old.value == value && old.superseded >= start)
    }

    pub(crate) fn may_survive(&self, value: Value) -> bool {
        match &self.live[..] {
            [] => self.certain == value,
            live => {
                live.iter().any(|v| v.on_medium && self.fits(v, value)) || self.old.iter().any(|old| old.value == value)
            }
        }
    }

    /// A flush that started at `start` succeeded; TRIMs that started before `trims` may have dropped what it covers.
    /// `horizon` is the start of the oldest request.
    pub(crate) fn flushed(&mut self, start: Step, trims: Step, horizon: Step) {
        self.leave_medium(start, trims, horizon, |_, _, superseded| superseded < start);
    }

    /// `op` was durable: only `op` and versions that were not settled before `start` may be on the medium.
    pub(crate) fn durable(&mut self, op: OpId, start: Step) {
        self.leave_medium(NEVER, NEVER, 0, |other, settled, _| other != Some(op) && settled < start);
    }

    /// Removes the versions selected by `gone` from the medium, unless a live operation from before `trims` may have
    /// revived them.
    fn leave_medium(
        &mut self,
        since: Step,
        trims: Step,
        horizon: Step,
        gone: impl Fn(Option<OpId>, Step, Step) -> bool,
    ) {
        // A revived version may be on the medium although it was superseded once, and a client may still be reading it.
        // But a TRIM does not revive a version that an earlier flush has ruled out. An accepted loss does not count if
        // its result was observed and no read can return another version any more.
        let found = |v: &Version| v.made == Made::Anything && v.superseded < since && v.dead < horizon;
        let trimmed = |v: &Version| v.revives() && (v.start < trims || v.made == Made::Anything) && !found(v);
        if !self.live.iter().any(trimmed) {
            let live = self.live.iter_mut().filter(|v| gone(Some(v.op), v.settled, v.superseded));
            live.for_each(|v| v.on_medium = false);
            self.old.retain(|old| !gone(None, old.settled, old.superseded));
        }
    }
}

/// `v` cannot be read any more: it moves to the old versions.
fn bury(old: &mut Vec<Old>, v: &Version) {
    let (settled, superseded) = (v.settled, v.superseded);
    if v.revives() {
        for old in old.iter_mut() {
            (old.settled, old.superseded) = (old.settled.max(settled), old.superseded.max(superseded));
        }
    }
    let value = match v.made {
        Made::Value(value) => value,
        Made::AnythingOrZero => ZERO,
        Made::Anything => return,
    };
    match old.iter_mut().find(|old| old.value == value) {
        Some(old) => {
            (old.settled, old.superseded) = (old.settled.max(settled), old.superseded.max(superseded));
        }
        None => old.push(Old { value, settled, superseded }),
    }
}

/// Describes a version for error messages.
pub(crate) fn describe_version(v: &Version) -> String {
    let at = |step: Step| if step == NEVER { "-".into() } else { step.to_string() };
    let medium = if v.on_medium { ", maybe on the medium" } else { "" };
    let (settled, acked, dead, gone) = (at(v.settled), at(v.acked), at(v.dead), at(v.superseded));
    let (op, made, start) = (v.op, v.made, v.start);
    format!("op {op} = {made:?}: start {start} settled {settled} acked {acked} dead {dead} superseded {gone}{medium}")
}
