//! Volumes that exist stay on their servers: the search if any is pinned.
//!
//! Slices that share a server follow each other. Which one is first is a variable of a solver that learns from
//! conflicts (solver.rs, times.rs). So is whether a volume keeps its present start, and, for a new one, on which
//! servers it is.
//!
//! ```text
//!   all keep their starts, new ones in gaps, for R = 1, 0.99 and so on ─┐
//!   orders, and a local search over them (../order.rs) ─────────────────┼──► best: R, then moves
//!   in turns: more R?                                    complete ──────┤
//!             fewer moves with the same R?               complete ──────┘
//! ```
//!
//! A complete search may end: then there is no schedule with more R, or none with fewer moves.

mod model;
mod solver;
#[cfg(test)]
mod tests;
mod times;

use super::order::{self, Placed, Placer, Search};
use super::{MOVED_MOST, Problem, Slice};
use crate::dice::Dice;
use model::Model;
use solver::Answer;

/// Turns in which fewer moves are looked for when R is enough.
const TURNS: u32 = 40;
/// Steps of the solver for the question whether all keep their starts, some milliseconds.
const STEPS_KEEP: u64 = 20_000;
/// Variables of a solver, at most: with more, it is not used.
const VARS_MAX: usize = 20_000;
/// Steps between the values of R that are tried: 0.01.
const R_STEPS: u32 = 100;

/// How many do not keep their present starts.
fn moved(problem: &Problem, placed: &Placed) -> usize {
    let round = placed.end.max(problem.unit) as f64;
    let is_moved = |at: usize| {
        problem.slices[at].start.is_some_and(|present| (placed.starts[at] as f64 / round - present).abs() > MOVED_MOST)
    };
    (0..placed.starts.len()).filter(|&at| is_moved(at)).count()
}

/// Rounds to try, ascending: of what is enough, of the least R, and of R = 1, 0.99 and so on between them; also the
/// shortest one in which all present starts can stay.
fn rounds(problem: &Problem, enough: f64, least: f64) -> Vec<u64> {
    let steps = (0..R_STEPS).map(|step| 1.0 - f64::from(step) / f64::from(R_STEPS)).take_while(|&r| r > least);
    // Other rounds are not better unless slices stay where they are.
    let steps = steps.map(|r| problem.round(r) / problem.grain * problem.grain);
    let ends = [problem.round(enough), problem.round(least), of_present(problem)];
    let mut rounds: Vec<u64> = steps.chain(ends).collect();
    let shortest = problem.round(enough).max(problem.least().0);
    rounds.retain(|round| (shortest..=problem.round(least)).contains(round));
    rounds.sort_unstable();
    rounds.dedup();
    rounds
}

/// The shortest round in which all present starts can stay.
fn of_present(problem: &Problem) -> u64 {
    let known = problem.slices.iter().filter_map(|slice| Some((slice.start?, slice.pinned?, slice.length)));
    let mut known: Vec<_> = known.collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut round = problem.unit;
    for (at, (start, on, length)) in known.iter().enumerate() {
        let next = known[at + 1..].iter().find(|next| next.1.overlaps(on)).map_or(1.0, |next| next.0);
        // At the same time: no round is long enough.
        round = round.max((*length as f64 / (next - start).max(1e-9)) as u64);
    }
    round
}

/// Orders, and the local search over them.
struct Orders<'a> {
    placer: Placer<'a>,
    local: Search,
    placed: Placed,
}

impl Orders<'_> {
    fn new(problem: &Problem) -> Orders<'_> {
        let mut placer = Placer::new(problem);
        let orders = order::first_orders(problem);
        let placed = orders.into_iter().map(|order| (placer.place(&order).clone(), order));
        let (placed, order) = placed.min_by_key(|(placed, _)| placed.end).expect("there are orders");
        Orders { placer, local: Search::new(order, placed.end), placed }
    }
}

/// The search for more R.
struct More<'a> {
    problem: &'a Problem,
    /// Rounds that are shorter than the best one, of which it is not known that there is no schedule. A solver is made
    /// when its turn comes.
    rounds: Vec<(u64, Option<Model<'a>>)>,
    /// The longest round of which it is known, or 0.
    impossible: u64,
    is_hardest: bool,
}

impl More<'_> {
    /// In turns the round that would be best, with starts as they come, and the one that is the least better, with
    /// present starts tried first.
    fn turn(&mut self, order: &[u64], dice: &mut Dice) -> Option<Placed> {
        self.is_hardest = !self.is_hardest;
        let at = if self.is_hardest { 0 } else { self.rounds.len().saturating_sub(1) };
        let (round, model) = self.rounds.get_mut(at)?;
        let model = model.get_or_insert_with(|| Model::new(self.problem, *round, order, !self.is_hardest, dice));
        match model.turn() {
            (_, Some(found)) => return Some(found),
            (Answer::Impossible, None) => {
                self.impossible = self.impossible.max(*round);
                self.rounds.drain(..=at);
            }
            _ => {}
        }
        None
    }
}

/// The search for fewer moves in the round of the best schedule.
#[derive(Default)]
struct Fewer<'a> {
    model: Option<Model<'a>>,
    /// There are none, or it is not searched.
    is_fewest: bool,
}

impl<'a> Fewer<'a> {
    fn turn(&mut self, problem: &'a Problem, best: &Placed, order: &[u64], dice: &mut Dice) -> Option<Placed> {
        let model = self.model.get_or_insert_with(|| {
            let mut model = Model::new(problem, best.end.max(problem.unit), order, true, dice);
            model.move_at_most(moved(problem, best) - 1);
            model
        });
        let (answer, found) = model.turn();
        if let Some(found) = &found {
            model.move_at_most(moved(problem, found).saturating_sub(1));
        }
        self.is_fewest = answer == Answer::Impossible;
        found
    }
}

/// A schedule in which present starts stay, and new slices are in gaps, in the shortest of these rounds that has one.
fn kept(
    problem: &Problem,
    rounds: &[u64],
    placer: &mut Placer<'_>,
    order: &[u64],
    dice: &mut Dice,
    go_on: &mut dyn FnMut() -> bool,
) -> Option<Placed> {
    let is_solved = model::vars(problem) <= VARS_MAX;
    for &round in rounds {
        if !go_on() {
            break;
        }
        let greedy = placer.place_kept(round).cloned();
        let is_kept = greedy.as_ref().is_some_and(|greedy| moved(problem, greedy) == 0);
        let mut solved = None;
        if is_solved && !is_kept {
            let mut model = Model::new(problem, round, order, true, dice);
            model.move_at_most(0);
            solved = model.search(STEPS_KEEP).1;
        }
        if let Some(found) = solved.or(greedy) {
            return Some(found);
        }
    }
    None
}

/// Ends when R is `enough` and moves are few. Also the longest round of which it is known that there is no schedule, or
/// 0.
pub(super) fn search(
    problem: &Problem,
    (enough, least): (f64, f64),
    seed: u64,
    go_on: &mut dyn FnMut() -> bool,
) -> (Placed, u64) {
    let mut dice = Dice::new(seed);
    let is_solved = model::vars(problem) <= VARS_MAX;
    let has_starts = problem.slices.iter().any(|slice| slice.start.is_some());
    let rounds = rounds(problem, enough, least);
    // With present starts, R is compared in its steps: what is between them is not worth moves.
    let stepped = |placed: &Placed| {
        let step = rounds.iter().copied().find(|&round| has_starts && round >= placed.end);
        Placed { end: step.unwrap_or(placed.end), ..placed.clone() }
    };
    let mut orders = Orders::new(problem);
    let mut best = stepped(&orders.placed);
    let start = |(slice, &placed): (&Slice, &u64)| slice.start.map_or(placed, |it| (it * best.end as f64) as u64);
    let order: Vec<u64> = problem.slices.iter().zip(&best.starts).map(start).collect();
    if has_starts {
        let better = rounds.partition_point(|&round| round <= best.end);
        let kept = kept(problem, &rounds[..better], &mut orders.placer, &order, &mut dice, go_on);
        best = kept.unwrap_or(best);
    }
    let untried = rounds.iter().filter(|_| is_solved).map(|&round| (round, None)).collect();
    let mut more = More { problem, rounds: untried, impossible: 0, is_hardest: false };
    let mut fewer = Fewer::default();
    let mut turns = 0;
    loop {
        more.rounds.retain(|(round, _)| *round < best.end);
        let is_fewest = fewer.is_fewest || !is_solved || moved(problem, &best) == 0;
        let is_best = best.end <= problem.round(enough) || is_solved && more.rounds.is_empty();
        if is_best && (is_fewest || turns >= TURNS) || !go_on() {
            return (best, more.impossible);
        }
        if !is_best {
            orders.local.go_on(&mut orders.placer, &mut orders.placed, problem.least().0, &mut dice);
            let found = [Some(stepped(&orders.placed)), more.turn(&order, &mut dice)].into_iter().flatten();
            if let Some(found) = found.min_by_key(|found| found.end).filter(|found| found.end < best.end) {
                (best, fewer) = (found, Fewer::default());
                continue;
            }
        }
        if !is_fewest {
            turns += u32::from(is_best);
            best = fewer.turn(problem, &best, &order, &mut dice).unwrap_or(best);
        }
    }
}
