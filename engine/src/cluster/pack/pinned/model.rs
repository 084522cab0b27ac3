//! The problem of pinned slices, in a round of one length, as clauses and times.

use super::super::order::Placed;
use super::super::{MOVED, Problem, Servers};
use super::solver::{Answer, Lit, Solver};
use super::times::{Gap, Times};
use crate::dice::Dice;

/// Steps of the first turn, some milliseconds; each later one has a twentieth more.
const STEPS: u64 = 20_000;

/// A solver for one round.
pub(super) struct Model<'a> {
    problem: &'a Problem,
    round: i64,
    solver: Solver,
    /// Those with a present start: tenant, its start, and whether it keeps it.
    kept: Vec<(usize, i64, Lit)>,
    /// The count of those that keep it.
    keeping: usize,
    free: Vec<Free>,
    steps: u64,
}

/// A tenant that is not pinned.
struct Free {
    at: usize,
    /// By server: whether it is on it. `None` if there is no room for it.
    on: Vec<Option<Lit>>,
}

/// Whether a tenant is on a server.
enum On {
    Always,
    If(Lit),
    Never,
}

/// How many variables a model has, about.
pub(super) fn vars(problem: &Problem) -> usize {
    let slices = &problem.slices;
    let free = slices.iter().filter(|slice| slice.pinned.is_none()).count();
    let pairs = (0..slices.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let of_pair = |(a, b): (usize, usize)| match (&slices[a].pinned, &slices[b].pinned) {
        (Some(a), Some(b)) => usize::from(a.overlaps(b)),
        _ => 2,
    };
    free * problem.servers + slices.len() + pairs.map(of_pair).sum::<usize>()
}

impl Model<'_> {
    /// Slices are tried first in the order of these starts. Without `keeps`, nothing is asked about moves.
    pub(super) fn new<'a>(problem: &'a Problem, round: u64, order: &[u64], keeps: bool, dice: &mut Dice) -> Model<'a> {
        let (count, round) = (problem.slices.len(), round as i64);
        let lengths: Vec<i64> = problem.slices.iter().map(|slice| slice.length as i64).collect();
        // A slice that is longer than the round makes it impossible below.
        let latest: Vec<i64> = lengths.iter().map(|length| round - length).collect();
        let solver = Solver::new(Times::new(&latest), Dice::new(dice.below(u64::MAX)));
        let mut model = Model { problem, round, solver, kept: Vec::new(), keeping: 0, free: Vec::new(), steps: STEPS };
        model.choose_servers(&lengths, dice);
        if keeps {
            model.keep_starts();
        }
        for b in 0..count {
            for a in 0..b {
                model.separate(&lengths, (a, b), order[a] <= order[b]);
            }
        }
        model
    }

    fn choose_servers(&mut self, lengths: &[i64], dice: &mut Dice) {
        let slices = &self.problem.slices;
        let load = |server: usize| {
            let on = (0..slices.len()).filter(|&at| slices[at].pinned.is_some_and(|pinned| pinned.contains(server)));
            on.map(|at| lengths[at]).sum::<i64>()
        };
        let loads: Vec<i64> = (0..self.problem.servers).map(load).collect();
        for at in (0..slices.len()).filter(|&at| slices[at].pinned.is_none()) {
            let has_room = |load: &i64| load + lengths[at] <= self.round;
            let on: Vec<Option<Lit>> =
                loads.iter().map(|load| has_room(load).then(|| self.solver.var(dice.below(2) == 0, 0.5))).collect();
            self.solver.at_least(slices[at].servers, on.iter().flatten().copied().collect());
            self.free.push(Free { at, on });
        }
    }

    fn keep_starts(&mut self) {
        let origin = self.problem.slices.len();
        for (at, slice) in self.problem.slices.iter().enumerate() {
            let Some(start) = slice.start else { continue };
            let start = (start * self.round as f64).round() as i64;
            let tolerance = (self.round as f64 * MOVED) as i64;
            // Chosen before the others.
            let keeps = self.solver.var(true, 1.0);
            self.solver.mean(keeps, Gap { from: origin, to: at, gap: start - tolerance });
            self.solver.mean(keeps, Gap { from: at, to: origin, gap: -start - tolerance });
            self.kept.push((at, start, keeps));
        }
        self.keeping = self.solver.at_least(0, self.kept.iter().map(|kept| kept.2).collect());
    }

    /// Two slices keep apart where they share a server.
    fn separate(&mut self, lengths: &[i64], (a, b): (usize, usize), is_a_first: bool) {
        let slices = &self.problem.slices;
        let a_first = Gap { from: a, to: b, gap: lengths[a] };
        let b_first = Gap { from: b, to: a, gap: lengths[b] };
        if let (Some(on_a), Some(on_b)) = (&slices[a].pinned, &slices[b].pinned) {
            if on_a.overlaps(on_b) {
                let lit = self.solver.var(is_a_first, 0.0);
                self.solver.mean(lit, a_first);
                self.solver.mean(!lit, b_first);
            }
            return;
        }
        let (ab, ba) = (self.solver.var(is_a_first, 0.0), self.solver.var(!is_a_first, 0.0));
        self.solver.mean(ab, a_first);
        self.solver.mean(ba, b_first);
        self.solver.clause(&[!ab, !ba]);
        for server in 0..self.problem.servers {
            match (self.on(a, server), self.on(b, server)) {
                (On::If(a), On::If(b)) => self.solver.clause(&[!a, !b, ab, ba]),
                (On::If(one), On::Always) | (On::Always, On::If(one)) => self.solver.clause(&[!one, ab, ba]),
                _ => {}
            }
        }
    }

    fn on(&self, at: usize, server: usize) -> On {
        match &self.problem.slices[at].pinned {
            Some(pinned) if pinned.contains(server) => On::Always,
            Some(_) => On::Never,
            None => {
                let free = self.free.iter().find(|free| free.at == at).expect("it is not pinned");
                free.on[server].map_or(On::Never, On::If)
            }
        }
    }

    /// At most so many may move from now on: not more than before.
    pub(super) fn move_at_most(&mut self, moved: usize) {
        self.solver.spare(self.keeping, moved);
    }

    pub(super) fn turn(&mut self) -> (Answer, Option<Placed>) {
        let steps = self.steps;
        self.steps += steps / 20;
        self.search(steps)
    }

    pub(super) fn search(&mut self, steps: u64) -> (Answer, Option<Placed>) {
        let answer = self.solver.search(steps);
        (answer, (answer == Answer::Found).then(|| self.found()))
    }

    fn found(&mut self) -> Placed {
        let keep = self.kept.iter().filter(|kept| self.solver.is_true(kept.2));
        let close_to: Vec<(usize, i64)> = keep.map(|&(at, start, _)| (at, start)).collect();
        let starts: Vec<u64> = self.solver.starts(&close_to).into_iter().map(|start| start as u64).collect();
        let mut servers: Vec<Servers> = self.problem.slices.iter().map(|it| it.pinned.unwrap_or_default()).collect();
        for Free { at, on } in &self.free {
            let on = on.iter().enumerate().filter(|on| on.1.is_some_and(|on| self.solver.is_true(on)));
            servers[*at] = on.map(|on| on.0).take(self.problem.slices[*at].servers).collect();
        }
        // If nothing has a place to keep, the round may end with the last slice.
        let ends = starts.iter().zip(&self.problem.slices).map(|(start, slice)| start + slice.length);
        let last = ends.max().unwrap_or(0);
        let end = if self.problem.slices.iter().any(|it| it.start.is_some()) { self.round as u64 } else { last };
        Placed { starts, servers, end }
    }
}
