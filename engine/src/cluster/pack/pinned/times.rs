//! Starts of slices under constraints of the form "this one begins at least so long after that one".
//!
//! A literal of the solver stands for one or two such constraints, which hold while it is true. For each slice the
//! earliest and the latest start are kept, and for each of them the constraint that it comes from: following these back
//! to the origin gives the literals that are the reason.

use super::solver::Lit;

/// `start[to] >= start[from] + gap`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub from: usize,
    pub to: usize,
    pub gap: i64,
}

/// A bound, and the constraint and the other slice that it comes from; none if it holds from the beginning.
#[derive(Clone, Copy, Debug)]
struct End {
    at: i64,
    why: Option<(Lit, usize)>,
}

/// Earliest and latest starts. The last node is the origin, which begins at 0.
pub(super) struct Times {
    earliest: Vec<End>,
    latest: Vec<End>,
    /// By literal.
    gaps: Vec<Vec<Gap>>,
    /// Constraints that hold, by the slice that comes first and by the one that comes later.
    after: Vec<Vec<(Lit, usize, i64)>>,
    before: Vec<Vec<(Lit, usize, i64)>>,
    /// Literals with constraints, by slice.
    of_node: Vec<Vec<Lit>>,
    undo: Vec<Undo>,
    /// Slices whose earliest, and latest, start has changed and was not passed on.
    risen: Vec<usize>,
    fallen: Vec<usize>,
    /// Slices whose bounds have changed since [`Times::changed`] was asked.
    changed: Vec<usize>,
}

enum Undo {
    Earliest(usize, End),
    Latest(usize, End),
    Held(Gap),
}

impl Times {
    /// Slices that begin in `0..=latest`.
    pub(super) fn new(latest: &[i64]) -> Times {
        let origin = latest.len();
        let end = |at| End { at, why: None };
        Times {
            earliest: vec![end(0); origin + 1],
            latest: latest.iter().chain([&0]).map(|&at| end(at)).collect(),
            gaps: Vec::new(),
            after: vec![Vec::new(); origin + 1],
            before: vec![Vec::new(); origin + 1],
            of_node: vec![Vec::new(); origin + 1],
            undo: Vec::new(),
            risen: Vec::new(),
            fallen: Vec::new(),
            changed: Vec::new(),
        }
    }

    pub(super) fn origin(&self) -> usize {
        self.earliest.len() - 1
    }

    /// What a literal stands for.
    pub(super) fn mean(&mut self, lit: Lit, gap: Gap) {
        self.gaps.resize((lit.index() + 1).max(self.gaps.len()), Vec::new());
        self.gaps[lit.index()].push(gap);
        for node in [gap.from, gap.to] {
            if !self.of_node[node].contains(&lit) {
                self.of_node[node].push(lit);
            }
        }
    }

    pub(super) fn starts(&self) -> Vec<i64> {
        self.earliest[..self.origin()].iter().map(|end| end.at).collect()
    }

    pub(super) fn mark(&self) -> usize {
        self.undo.len()
    }

    /// Back to what held at a mark.
    pub(super) fn back(&mut self, mark: usize) {
        for undo in self.undo.drain(mark..).rev() {
            match undo {
                Undo::Earliest(node, end) => self.earliest[node] = end,
                Undo::Latest(node, end) => self.latest[node] = end,
                Undo::Held(gap) => {
                    self.after[gap.from].pop();
                    self.before[gap.to].pop();
                }
            }
        }
        self.risen.clear();
        self.fallen.clear();
        self.changed.clear();
    }

    /// A literal holds. Fails with literals that cannot all be true.
    pub(super) fn hold(&mut self, lit: Lit) -> Result<(), Vec<Lit>> {
        for at in 0..self.gaps.get(lit.index()).map_or(0, Vec::len) {
            let gap = self.gaps[lit.index()][at];
            self.after[gap.from].push((lit, gap.to, gap.gap));
            self.before[gap.to].push((lit, gap.from, gap.gap));
            self.undo.push(Undo::Held(gap));
            self.raise(gap.to, self.earliest[gap.from].at + gap.gap, (lit, gap.from))?;
            self.lower(gap.from, self.latest[gap.to].at - gap.gap, (lit, gap.to))?;
        }
        self.settle()
    }

    /// A slice begins as close to a time as it can, with all that holds.
    pub(super) fn fix(&mut self, node: usize, at: i64) {
        let at = at.clamp(self.earliest[node].at, self.latest[node].at);
        self.undo.push(Undo::Earliest(node, self.earliest[node]));
        self.undo.push(Undo::Latest(node, self.latest[node]));
        self.earliest[node] = End { at, why: None };
        self.latest[node] = End { at, why: None };
        self.risen.push(node);
        self.fallen.push(node);
        self.settle().expect("any time between the bounds of one slice has a schedule");
    }

    fn settle(&mut self) -> Result<(), Vec<Lit>> {
        loop {
            if let Some(node) = self.risen.pop() {
                for at in 0..self.after[node].len() {
                    let (lit, to, gap) = self.after[node][at];
                    self.raise(to, self.earliest[node].at + gap, (lit, node))?;
                }
            } else if let Some(node) = self.fallen.pop() {
                for at in 0..self.before[node].len() {
                    let (lit, from, gap) = self.before[node][at];
                    self.lower(from, self.latest[node].at - gap, (lit, node))?;
                }
            } else {
                return Ok(());
            }
        }
    }

    fn raise(&mut self, node: usize, at: i64, why: (Lit, usize)) -> Result<(), Vec<Lit>> {
        if at <= self.earliest[node].at {
            return Ok(());
        }
        if let Some(circle) = circle(&self.earliest, node, why) {
            return Err(circle);
        }
        self.undo.push(Undo::Earliest(node, self.earliest[node]));
        self.earliest[node] = End { at, why: Some(why) };
        self.risen.push(node);
        self.changed.push(node);
        self.check(node)
    }

    fn lower(&mut self, node: usize, at: i64, why: (Lit, usize)) -> Result<(), Vec<Lit>> {
        if at >= self.latest[node].at {
            return Ok(());
        }
        if let Some(circle) = circle(&self.latest, node, why) {
            return Err(circle);
        }
        self.undo.push(Undo::Latest(node, self.latest[node]));
        self.latest[node] = End { at, why: Some(why) };
        self.fallen.push(node);
        self.changed.push(node);
        self.check(node)
    }

    fn check(&self, node: usize) -> Result<(), Vec<Lit>> {
        match self.earliest[node].at > self.latest[node].at {
            true => Err(self.reason(node, node)),
            false => Ok(()),
        }
    }

    /// Why one slice does not begin earlier, and another one not later.
    fn reason(&self, early: usize, late: usize) -> Vec<Lit> {
        let mut lits = Vec::new();
        chain(&self.earliest, early, &mut lits);
        chain(&self.latest, late, &mut lits);
        lits
    }

    /// Literals that are of interest since bounds have changed.
    pub(super) fn changed(&mut self, lits: &mut Vec<Lit>) {
        for node in self.changed.drain(..) {
            lits.extend(&self.of_node[node]);
        }
    }

    /// The reason why a literal cannot hold, if that is known.
    pub(super) fn refutes(&self, lit: Lit) -> Option<Vec<Lit>> {
        let is_late = |gap: &&Gap| self.earliest[gap.from].at + gap.gap > self.latest[gap.to].at;
        let gap = self.gaps[lit.index()].iter().find(is_late)?;
        Some(self.reason(gap.from, gap.to))
    }
}

fn chain(ends: &[End], mut node: usize, lits: &mut Vec<Lit>) {
    while let Some((lit, from)) = ends[node].why {
        lits.push(lit);
        node = from;
    }
}

/// The literals of a circle of constraints that would push a slice beyond itself.
fn circle(ends: &[End], node: usize, why: (Lit, usize)) -> Option<Vec<Lit>> {
    let mut lits = vec![why.0];
    let mut from = why.1;
    while from != node {
        let (lit, next) = ends[from].why?;
        lits.push(lit);
        from = next;
    }
    Some(lits)
}
