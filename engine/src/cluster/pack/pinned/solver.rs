//! A solver for clauses and times: chooses truth values, follows what they force, and learns a clause from each
//! conflict (conflict-driven clause learning, with difference constraints as its theory: [`Times`]).
//!
//! Sources: Marques-Silva and Sakallah, "GRASP", IEEE ToC 1999; Moskewicz et al., "Chaff", DAC 2001; Eén and Sörensson,
//! "An extensible SAT-solver", SAT 2003; for time as theory: Armando, Castellini, Giunchiglia, "SAT-based procedures
//! for temporal reasoning", ECP 1999.

use std::collections::BinaryHeap;

use super::times::{Gap, Times};
use crate::dice::Dice;

/// A variable or its negation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub(super) struct Lit(u32);

impl Lit {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    fn var(self) -> usize {
        self.0 as usize / 2
    }

    fn is_positive(self) -> bool {
        self.0 & 1 == 0
    }
}

impl std::ops::Not for Lit {
    type Output = Lit;

    fn not(self) -> Lit {
        Lit(self.0 ^ 1)
    }
}

/// What a search came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Answer {
    Found,
    Impossible,
    Unknown,
}

/// Why a variable has its value.
#[derive(Clone, Copy)]
enum Reason {
    Chosen,
    Clause(u32),
    /// A part of `reasons`: literals that were true.
    Lits(u32, u32),
}

#[derive(Clone, Copy)]
struct Var {
    value: Option<bool>,
    level: u32,
    reason: Reason,
    /// How much it took part in recent conflicts.
    activity: f64,
    /// Its value when it had one last.
    phase: bool,
    is_seen: bool,
}

struct Clause {
    lits: Vec<Lit>,
    /// Levels in it when it was learned; 0: not learned.
    levels: u32,
}

/// At least so many of these are true.
struct AtLeast {
    lits: Vec<Lit>,
    spare: usize,
    /// How many are false.
    falses: usize,
}

/// Where a level began.
struct Level {
    trail: usize,
    reasons: usize,
    times: usize,
}

pub(super) struct Solver {
    vars: Vec<Var>,
    clauses: Vec<Clause>,
    /// By literal: the clauses that have to be looked at when it becomes true; another literal of each.
    watches: Vec<Vec<(u32, Lit)>>,
    counted: Vec<AtLeast>,
    /// By literal: the counts in which it is.
    counted_of: Vec<Vec<usize>>,
    times: Times,
    trail: Vec<Lit>,
    /// How much of the trail was passed to the clauses, and to the times.
    clauses_done: usize,
    times_done: usize,
    levels: Vec<Level>,
    reasons: Vec<Lit>,
    /// Variables to choose, by activity: also ones that have a value, or had another activity.
    queue: BinaryHeap<(u64, u32)>,
    increase: f64,
    restarts: u64,
    /// Steps until the search ends: about the literals that are followed.
    steps: u64,
    learned_max: usize,
    is_impossible: bool,
    dice: Dice,
}

/// Conflicts until the first restart.
const RESTART: u64 = 64;
/// Clauses that are kept at first, and how many more after each cleaning.
const LEARNED: usize = 4_000;
const LEARNED_MORE: usize = 400;
/// Activities decay by this factor with each conflict.
const DECAY: f64 = 0.95;
/// One choice in so many is by chance.
const CHANCE: u64 = 100;

/// The sequence 1 1 2 1 1 2 4 … (Luby, Sinclair, Zuckerman 1993).
fn luby(mut at: u64) -> u64 {
    loop {
        let bits = u64::BITS - (at + 1).leading_zeros();
        if at + 1 == (1 << bits) - 1 {
            return 1 << (bits - 1);
        }
        at = at + 1 - (1 << (bits - 1));
    }
}

impl Solver {
    pub(super) fn new(times: Times, dice: Dice) -> Solver {
        Solver {
            vars: Vec::new(),
            clauses: Vec::new(),
            watches: Vec::new(),
            counted: Vec::new(),
            counted_of: Vec::new(),
            times,
            trail: Vec::new(),
            clauses_done: 0,
            times_done: 0,
            levels: Vec::new(),
            reasons: Vec::new(),
            queue: BinaryHeap::new(),
            increase: 1.0,
            restarts: 0,
            steps: 0,
            learned_max: LEARNED,
            is_impossible: false,
            dice,
        }
    }

    /// A new variable; `phase` is tried first, and those with much `activity` are chosen first.
    pub(super) fn var(&mut self, phase: bool, activity: f64) -> Lit {
        let lit = Lit(2 * self.vars.len() as u32);
        let (value, level, reason, is_seen) = (None, 0, Reason::Chosen, false);
        self.vars.push(Var { value, level, reason, activity, phase, is_seen });
        for _ in 0..2 {
            self.watches.push(Vec::new());
            self.counted_of.push(Vec::new());
        }
        lit
    }

    /// While `lit` is true, this holds.
    pub(super) fn mean(&mut self, lit: Lit, gap: Gap) {
        self.times.mean(lit, gap);
    }

    /// Starts after a search that has found some: each slice as early as it may be, but those as close to a time as
    /// they can be for which one is given.
    pub(super) fn starts(&mut self, close_to: &[(usize, i64)]) -> Vec<i64> {
        let mark = self.times.mark();
        for &(node, at) in close_to {
            self.times.fix(node, at);
        }
        let starts = self.times.starts();
        self.times.back(mark);
        starts
    }

    pub(super) fn is_true(&self, lit: Lit) -> bool {
        self.value(lit) == Some(true)
    }

    fn value(&self, lit: Lit) -> Option<bool> {
        self.vars[lit.var()].value.map(|value| value == lit.is_positive())
    }

    /// One of these is true. Only between searches.
    pub(super) fn clause(&mut self, lits: &[Lit]) {
        self.undo(0);
        if lits.iter().any(|&lit| self.value(lit) == Some(true)) {
            return;
        }
        let lits: Vec<Lit> = lits.iter().copied().filter(|&lit| self.value(lit).is_none()).collect();
        match lits[..] {
            [] => self.is_impossible = true,
            [lit] => self.assign(lit, Reason::Chosen),
            _ => {
                self.attach(Clause { lits, levels: 0 });
            }
        }
    }

    /// At least so many of these are true. Only between searches.
    pub(super) fn at_least(&mut self, count: usize, lits: Vec<Lit>) -> usize {
        self.undo(0);
        let at = self.counted.len();
        for &lit in &lits {
            self.counted_of[lit.index()].push(at);
        }
        let falses = lits.iter().filter(|&&lit| self.value(lit) == Some(false)).count();
        match lits.len().checked_sub(count) {
            Some(spare) => self.counted.push(AtLeast { lits, spare, falses }),
            None => self.is_impossible = true,
        }
        at
    }

    /// At most so many of a count may be false from now on. Only between searches.
    pub(super) fn spare(&mut self, at: usize, spare: usize) {
        self.undo(0);
        self.counted[at].spare = spare;
    }

    fn attach(&mut self, clause: Clause) -> u32 {
        let at = self.clauses.len() as u32;
        self.watches[(!clause.lits[0]).index()].push((at, clause.lits[1]));
        self.watches[(!clause.lits[1]).index()].push((at, clause.lits[0]));
        self.clauses.push(clause);
        at
    }

    fn assign(&mut self, lit: Lit, reason: Reason) {
        let var = &mut self.vars[lit.var()];
        (var.value, var.level, var.reason) = (Some(lit.is_positive()), self.levels.len() as u32, reason);
        for &at in &self.counted_of[(!lit).index()] {
            self.counted[at].falses += 1;
        }
        self.trail.push(lit);
    }

    fn assign_for(&mut self, lit: Lit, because: &[Lit]) {
        let from = self.reasons.len() as u32;
        self.reasons.extend(because);
        self.assign(lit, Reason::Lits(from, self.reasons.len() as u32));
    }

    /// Back to a level.
    fn undo(&mut self, level: usize) {
        if self.levels.len() <= level {
            return;
        }
        let Level { trail, reasons, times } = self.levels[level];
        self.levels.truncate(level);
        for lit in self.trail.drain(trail..) {
            let var = &mut self.vars[lit.var()];
            (var.value, var.phase) = (None, lit.is_positive());
            self.queue.push((var.activity.to_bits(), lit.var() as u32));
            for &at in &self.counted_of[(!lit).index()] {
                self.counted[at].falses -= 1;
            }
        }
        self.reasons.truncate(reasons);
        self.times.back(times);
        self.clauses_done = trail;
        self.times_done = trail;
    }

    /// Follows what the values force. A conflict is literals that are true and cannot all be.
    fn propagate(&mut self) -> Result<(), Vec<Lit>> {
        loop {
            while self.clauses_done < self.trail.len() {
                let lit = self.trail[self.clauses_done];
                self.clauses_done += 1;
                self.steps = self.steps.saturating_sub(1);
                self.follow(lit)?;
                self.count(lit)?;
            }
            if self.times_done == self.trail.len() {
                return Ok(());
            }
            while self.times_done < self.trail.len() {
                let lit = self.trail[self.times_done];
                self.times_done += 1;
                self.times.hold(lit)?;
            }
            let mut lits = Vec::new();
            self.times.changed(&mut lits);
            self.steps = self.steps.saturating_sub(lits.len() as u64 / 8);
            for lit in lits {
                if self.value(lit).is_none()
                    && let Some(because) = self.times.refutes(lit)
                {
                    self.assign_for(!lit, &because);
                }
            }
        }
    }

    /// Clauses in which a literal is false now.
    fn follow(&mut self, lit: Lit) -> Result<(), Vec<Lit>> {
        let mut watches = std::mem::take(&mut self.watches[lit.index()]);
        let mut kept = 0;
        let mut conflict = None;
        let mut at = 0;
        while at < watches.len() {
            let (index, other) = watches[at];
            at += 1;
            if self.value(other) == Some(true) {
                watches[kept] = (index, other);
                kept += 1;
                continue;
            }
            let lits = &mut self.clauses[index as usize].lits;
            if lits[0] == !lit {
                lits.swap(0, 1);
            }
            let first = lits[0];
            let values = &self.vars;
            let is_false = |lit: Lit| values[lit.var()].value.is_some_and(|value| value != lit.is_positive());
            if let Some(next) = (2..lits.len()).find(|&next| !is_false(lits[next])) {
                lits.swap(1, next);
                self.watches[(!lits[1]).index()].push((index, first));
                continue;
            }
            watches[kept] = (index, first);
            kept += 1;
            match self.value(first) {
                Some(true) => {}
                Some(false) => {
                    conflict = Some(self.clauses[index as usize].lits.iter().map(|&lit| !lit).collect());
                    break;
                }
                None => self.assign(first, Reason::Clause(index)),
            }
        }
        watches.copy_within(at.., kept);
        watches.truncate(kept + watches.len() - at);
        self.watches[lit.index()] = watches;
        conflict.map_or(Ok(()), Err)
    }

    /// Counts in which a literal is false now.
    fn count(&mut self, lit: Lit) -> Result<(), Vec<Lit>> {
        for at in 0..self.counted_of[(!lit).index()].len() {
            self.counted_out(self.counted_of[(!lit).index()][at])?;
        }
        Ok(())
    }

    fn counted_out(&mut self, at: usize) -> Result<(), Vec<Lit>> {
        let count = &self.counted[at];
        if count.falses < count.spare {
            return Ok(());
        }
        let falses = count.lits.iter().filter(|&&lit| self.value(lit) == Some(false));
        let because: Vec<Lit> = falses.map(|&lit| !lit).collect();
        if count.falses > count.spare {
            return Err(because);
        }
        for of in 0..self.counted[at].lits.len() {
            let lit = self.counted[at].lits[of];
            if self.value(lit).is_none() {
                self.assign_for(lit, &because);
            }
        }
        Ok(())
    }

    /// The clause that a conflict teaches, with the literal that it forces first, and the level to go back to.
    fn learn(&mut self, mut because: Vec<Lit>) -> (Vec<Lit>, usize) {
        // A conflict may have been found after the level in which it came about.
        let level = because.iter().map(|lit| self.vars[lit.var()].level).max().unwrap_or(0);
        self.undo(level as usize);
        let mut learned = vec![Lit(0)];
        let mut open = 0;
        let mut at = self.trail.len();
        loop {
            for lit in because.drain(..) {
                let var = &mut self.vars[lit.var()];
                if var.is_seen || var.level == 0 {
                    continue;
                }
                var.is_seen = true;
                var.activity += self.increase;
                // If it has a value, which is usual, it comes into the queue when it loses it.
                if var.value.is_none() {
                    self.queue.push((var.activity.to_bits(), lit.var() as u32));
                }
                if var.level == level {
                    open += 1;
                } else {
                    learned.push(!lit);
                }
            }
            let lit = loop {
                at -= 1;
                let lit = self.trail[at];
                if self.vars[lit.var()].is_seen && self.vars[lit.var()].level == level {
                    break lit;
                }
            };
            self.vars[lit.var()].is_seen = false;
            open -= 1;
            if open == 0 {
                learned[0] = !lit;
                break;
            }
            self.because(lit, &mut because);
        }
        let seen = learned[1..].to_vec();
        // A literal that others of the clause force is not needed.
        let mut because = Vec::new();
        let mut kept = 1;
        for at in 1..learned.len() {
            let lit = !learned[at];
            because.clear();
            let is_chosen = matches!(self.vars[lit.var()].reason, Reason::Chosen);
            self.because(lit, &mut because);
            let is_known = |lit: &Lit| self.vars[lit.var()].is_seen || self.vars[lit.var()].level == 0;
            if is_chosen || !because.iter().all(is_known) {
                learned[kept] = learned[at];
                kept += 1;
            }
        }
        learned.truncate(kept);
        for lit in seen {
            self.vars[lit.var()].is_seen = false;
        }
        let back = (1..learned.len()).max_by_key(|&at| self.vars[learned[at].var()].level);
        if let Some(at) = back {
            learned.swap(1, at);
        }
        let level = back.map_or(0, |_| self.vars[learned[1].var()].level as usize);
        (learned, level)
    }

    /// Literals that forced a true one.
    fn because(&self, lit: Lit, lits: &mut Vec<Lit>) {
        match self.vars[lit.var()].reason {
            Reason::Chosen => {}
            Reason::Clause(at) => {
                let of = self.clauses[at as usize].lits.iter();
                lits.extend(of.filter(|&&other| other != lit).map(|&other| !other));
            }
            Reason::Lits(from, to) => lits.extend(&self.reasons[from as usize..to as usize]),
        }
    }

    /// Searches for so many steps.
    pub(super) fn search(&mut self, steps: u64) -> Answer {
        self.undo(0);
        self.steps = steps;
        while !self.is_impossible {
            if self.steps == 0 {
                return Answer::Unknown;
            }
            let conflicts = RESTART * luby(self.restarts);
            self.restarts += 1;
            self.queue = self.vars.iter().enumerate().map(|(at, var)| (var.activity.to_bits(), at as u32)).collect();
            if self.attempt(conflicts) {
                return Answer::Found;
            }
            self.undo(0);
            self.is_impossible |= self.propagate().is_err();
            self.clean();
        }
        Answer::Impossible
    }

    fn attempt(&mut self, mut conflicts: u64) -> bool {
        // Counts that are out from the beginning.
        let mut state = (0..self.counted.len()).try_for_each(|at| self.counted_out(at));
        loop {
            state = state.and_then(|()| self.propagate());
            let Err(because) = state else {
                if self.steps == 0 {
                    return false;
                }
                let Some(lit) = self.choice() else { return true };
                self.levels.push(Level {
                    trail: self.trail.len(),
                    reasons: self.reasons.len(),
                    times: self.times.mark(),
                });
                self.assign(lit, Reason::Chosen);
                state = Ok(());
                continue;
            };
            if because.iter().all(|lit| self.vars[lit.var()].level == 0) {
                self.is_impossible = true;
                return false;
            }
            let (learned, back) = self.learn(because);
            self.undo(back);
            let first = learned[0];
            if learned.len() == 1 {
                self.assign(first, Reason::Chosen);
            } else {
                let mut levels: Vec<u32> = learned.iter().map(|lit| self.vars[lit.var()].level).collect();
                levels.sort_unstable();
                levels.dedup();
                let at = self.attach(Clause { lits: learned, levels: levels.len() as u32 });
                self.assign(first, Reason::Clause(at));
            }
            self.increase /= DECAY;
            if self.increase > 1e100 {
                self.increase *= 1e-100;
                self.vars.iter_mut().for_each(|var| var.activity *= 1e-100);
                // The queue has the old activities.
                return false;
            }
            state = Ok(());
            conflicts = conflicts.saturating_sub(1);
            if conflicts == 0 {
                return false;
            }
        }
    }

    /// A variable without value, and the value to try.
    fn choice(&mut self) -> Option<Lit> {
        let lit = |at: usize, var: &Var| Lit(2 * at as u32 + u32::from(!var.phase));
        if self.dice.below(CHANCE) == 0 {
            let at = self.dice.below(self.vars.len() as u64) as usize;
            if self.vars[at].value.is_none() {
                return Some(lit(at, &self.vars[at]));
            }
        }
        while let Some((activity, at)) = self.queue.pop() {
            let var = &self.vars[at as usize];
            if var.value.is_none() && var.activity.to_bits() == activity {
                return Some(lit(at as usize, var));
            }
        }
        None
    }

    /// Forgets learned clauses with many levels, if there are too many. Only at level 0.
    fn clean(&mut self) {
        let learned = self.clauses.iter().filter(|clause| clause.levels > 0).count();
        if learned <= self.learned_max {
            return;
        }
        self.learned_max += LEARNED_MORE;
        let mut levels: Vec<u32> = self.clauses.iter().map(|clause| clause.levels).filter(|&it| it > 0).collect();
        levels.sort_unstable();
        let most = levels[levels.len() / 2].max(2);
        self.watches.iter_mut().for_each(Vec::clear);
        let clauses = std::mem::take(&mut self.clauses);
        for clause in clauses {
            let is_done = clause.lits.iter().any(|&lit| self.value(lit) == Some(true));
            if is_done || clause.levels > most {
                continue;
            }
            let lits: Vec<Lit> = clause.lits.iter().copied().filter(|&lit| self.value(lit).is_none()).collect();
            // What is at level 0 was followed, so two are left at least.
            self.attach(Clause { lits, ..clause });
        }
    }
}
