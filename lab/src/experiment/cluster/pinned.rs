//! Schedules for clusters in which all volumes are on their servers already: one tenant comes or goes.

use std::collections::HashMap;

use engine::cluster::pack::{Refused, Tenant, Wanted, fault, moved, pack};
use serde_json::{Value, json};
use sim::rng::Rng;

use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::pack::{PROBLEMS, cpu_s, problem};

pub const PINNED: Experiment = Experiment {
    name: "cluster-pinned",
    question: "Does one schedule fit when a tenant comes or goes and all others stay on their servers?",
    setup: "20 problems of each size, made as in the paper (see cluster-pack). An earlier schedule pins all tenants to \
            servers; then one that may be on any servers is added, or one is removed. CPU time of one core: 1 s. Every \
            schedule is checked. The exact solver: scripts/exact-pinned.",
    paper: "Wachs and Ganger: not measured.",
    run: pinned,
};

/// Tenants, with the one that is added or removed.
const SIZES: [usize; 4] = [13, 20, 30, 40];
/// R that is asked for.
const ASKED: [f64; 3] = [1.0, 0.95, 0.9];
/// CPU time that the search is asked to keep to, and that it may take, seconds: it looks at the clock every few
/// milliseconds.
const LIMIT_S: (f64, f64) = (0.9, 1.0);
/// Turns of the search for the earlier schedule: the same on every machine.
const TURNS: u32 = 60;
/// By problem, for each of [`ASKED`]: whether there is a schedule, as the exact solver found; null if it did not find
/// out. Made by `scripts/exact-pinned target/lab/cluster-pinned.json --write FILE`.
const EXACT: &str = include_str!("pinned-exact.json");

/// A cluster whose tenants have changed.
struct Changed {
    servers: usize,
    tenants: Vec<Tenant>,
    /// R of the earlier schedule.
    before: f64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Change {
    Added,
    Removed,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Change::Added => "added",
            Change::Removed => "removed",
        }
    }
}

/// A cluster for `count` tenants, in which one was added to a schedule of the others, or removed from one of all.
fn changed(count: usize, change: Change, seed: u64) -> Result<Changed, String> {
    let (servers, mut tenants) = problem(count, seed);
    let which = Rng::new(seed << 16 | count as u64 | 1 << 15).below(count as u64) as usize;
    let one = tenants[which].clone();
    if change == Change::Added {
        tenants.remove(which);
    }
    let mut turns = 0..TURNS;
    let wanted = Wanted { least: 0.1, enough: 1.0, seed: 1 };
    let earlier = pack(servers, &tenants, wanted, || turns.next().is_some()).map_err(|why| why.to_string())?;
    for (tenant, slot) in tenants.iter_mut().zip(&earlier.slots) {
        (tenant.pinned, tenant.start) = (Some(slot.servers), Some(slot.start));
    }
    match change {
        Change::Added => tenants.push(one),
        Change::Removed => drop(tenants.remove(which)),
    }
    Ok(Changed { servers, tenants, before: earlier.r_cluster })
}

/// The problem as the exact solver reads it: the form of `aerogel-lab pack`.
fn told(servers: usize, tenants: &[Tenant]) -> Value {
    let tenant = |tenant: &Tenant| {
        let share = format!("{}/{}", tenant.share.over, tenant.share.under);
        let mut told = json!({"servers": tenant.servers, "share": share});
        if let Some(pinned) = tenant.pinned {
            told["pinned"] = pinned.iter().collect::<Vec<_>>().into();
        }
        told
    };
    json!({"servers": servers, "tenants": tenants.iter().map(tenant).collect::<Vec<_>>()})
}

/// A name for a problem: the same problem has the same one (FNV-1a).
fn key(told: &Value) -> String {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", told.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, hash))
}

/// What became of a problem, with one R.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// How many slices have moved, if there is a schedule.
    moved: Option<usize>,
    is_impossible: bool,
    took_s: f64,
}

fn run(changed: &Changed, r: f64) -> Result<Run, String> {
    let Changed { servers, tenants, .. } = changed;
    let began = cpu_s();
    let wanted = Wanted { least: r, enough: r, seed: 1 };
    let found = pack(*servers, tenants, wanted, || cpu_s() - began < LIMIT_S.0);
    let took_s = cpu_s() - began;
    if let Some(fault) = found.as_ref().ok().and_then(|schedule| fault(*servers, tenants, schedule)) {
        return Err(fault);
    }
    let is_impossible = match found {
        Ok(_) | Err(Refused::NotFound(_)) => false,
        Err(Refused::Impossible(_) | Refused::Load(_) | Refused::ServerLoad { .. }) => true,
        Err(why) => return Err(why.to_string()),
    };
    Ok(Run { moved: found.ok().map(|schedule| moved(tenants, &schedule)), is_impossible, took_s })
}

/// The middle one, the lower one of two.
fn median(mut of: Vec<usize>) -> Option<usize> {
    of.sort_unstable();
    of.get(of.len().saturating_sub(1) / 2).copied()
}

/// What the exact solver has found.
fn exact() -> Result<HashMap<String, [Option<bool>; 3]>, String> {
    serde_json::from_str(EXACT).map_err(|why| format!("what the exact solver has found: {why}"))
}

/// The counts of the problems of a kind, with one R.
#[derive(Default)]
struct Counts {
    solved: usize,
    /// Solved, or possible as the exact solver says.
    possible: usize,
    impossible: usize,
    /// Neither solver has decided.
    unknown: usize,
    moves: Vec<usize>,
}

impl Counts {
    fn count(&mut self, run: Run, certain: Option<bool>) -> Result<(), String> {
        let is_solved = run.moved.is_some();
        if certain == Some(true) && run.is_impossible || certain == Some(false) && is_solved {
            return Err(format!("the exact solver says {certain:?}, the search {run:?}"));
        }
        self.solved += usize::from(is_solved);
        self.possible += usize::from(is_solved || certain == Some(true));
        self.impossible += usize::from(run.is_impossible || certain == Some(false));
        self.unknown += usize::from(!is_solved && !run.is_impossible && certain.is_none());
        self.moves.extend(run.moved);
        Ok(())
    }
}

fn pinned(context: &Context) -> Result<Outcome, String> {
    let exact = exact()?;
    let first = context.seeds[0];
    let problems = if context.quick { PROBLEMS / 4 } else { PROBLEMS };
    let kinds = || SIZES.into_iter().flat_map(|count| [Change::Added, Change::Removed].map(|change| (count, change)));
    let work: Vec<(usize, Change, u64)> = kinds()
        .flat_map(|(count, change)| (0..problems).map(move |at| (count, change, first * PROBLEMS + at)))
        .collect();
    let found = context.parallel(&work, |&(count, change, seed)| {
        let of = changed(count, change, seed)?;
        let [a, b, c] = ASKED.map(|r| run(&of, r).map_err(|why| format!("{count} tenants, problem {seed}: {why}")));
        Ok((of, [a?, b?, c?]))
    });
    let found: Vec<(Changed, [Run; 3])> = found.into_iter().collect::<Result<_, String>>()?;
    let told: Vec<Value> = found.iter().map(|(of, _)| told(of.servers, &of.tenants)).collect();
    let keys: Vec<String> = told.iter().map(key).collect();
    let unseen = keys.iter().filter(|&key| !exact.contains_key(key)).count();
    if unseen > 0 {
        context
            .note(&format!("the exact solver has not seen {unseen} of {} problems: scripts/exact-pinned", keys.len()));
    }
    let (mut claims, mut rows) = (Vec::new(), Vec::new());
    let of_kinds = found.chunks(problems as usize).zip(keys.chunks(problems as usize));
    for ((count, change), (found, keys)) in kinds().zip(of_kinds) {
        for (at, r) in ASKED.into_iter().enumerate() {
            let mut counts = Counts::default();
            for ((_, runs), key) in found.iter().zip(keys) {
                let certain = exact.get(key).and_then(|certain| certain[at]);
                counts.count(runs[at], certain).map_err(|why| format!("problem {key}, R = {r}: {why}"))?;
            }
            let Counts { solved, possible, impossible, unknown, moves } = counts;
            let name = format!("{count} tenants, one {}, R = {r}: of {possible}", change.name());
            claims.push(Claim::new(name, solved as f64, Bound::AtLeast(0.9 * possible as f64)));
            rows.push(json!({
                "tenants": count, "change": change.name(), "r": r, "solved": solved, "possible": possible,
                "impossible": impossible, "unknown": unknown, "median_moved": median(moves),
            }));
        }
    }
    let longest_s = found.iter().flat_map(|(_, runs)| runs.map(|run| run.took_s)).fold(0.0, f64::max);
    claims.push(Claim::new("longest search, s", longest_s, Bound::AtMost(LIMIT_S.1)));
    let problem = |at: usize| {
        let (of, runs) = &found[at];
        let [moved, impossible] = [runs.map(|run| json!(run.moved)), runs.map(|run| json!(run.is_impossible))];
        json!({
            "key": keys[at], "change": work[at].1.name(), "problem": told[at], "r_before": of.before,
            "moved": moved, "impossible": impossible,
        })
    };
    let problems: Vec<Value> = (0..work.len()).map(problem).collect();
    let data = json!({"asked": ASKED, "rows": rows, "problems": problems});
    Ok(Outcome { claims, data, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_solver_has_seen_these_problems_and_agrees() {
        let exact = exact().expect("it is well-formed");
        for change in [Change::Added, Change::Removed] {
            for seed in PROBLEMS..PROBLEMS + 4 {
                let of = changed(13, change, seed).expect("it is packed");
                let key = key(&told(of.servers, &of.tenants));
                let certain = exact.get(&key).expect("not seen: run cluster-pinned, then scripts/exact-pinned");
                for (r, certain) in ASKED.into_iter().zip(certain) {
                    let found = run(&of, r).expect("what is found is right");
                    assert_eq!(Some(found.moved.is_some()), *certain, "{change:?}, problem {seed}, R = {r}");
                }
            }
        }
    }
}
