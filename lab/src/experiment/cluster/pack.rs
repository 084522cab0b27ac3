//! Schedules for clusters: how many of the paper's problems are packed.

use engine::cluster::pack::{Fraction, Refused, Tenant, Wanted, fault, pack};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use sim::rng::Rng;

use super::super::chart::{self, Group};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};

pub const PACK: Experiment = Experiment {
    name: "cluster-pack",
    question: "Does one schedule fit all striped tenants of a cluster?",
    setup: "20 problems of each size, made as in the paper: 1, 3, 5, 7 or 9 servers, a share of 1/2, 1/3, 2/3, 1/4, \
            1/5 or 1/6; the cluster has the sum of all, rounded up. CPU time of one core: 1 s for R = 1 and 0.95, \
            0.05 s for 0.9. Every schedule is checked.",
    paper: "Wachs and Ganger, section 3.6: minutes, up to a limit of 497 s.",
    run: packed,
};

/// Problems of a size.
pub(super) const PROBLEMS: u64 = 20;
/// By number of tenants: how many of 20 other problems an exact solver packs with R = 1, 0.95 and 0.9, or a lower
/// bound.
const ASKED: [(usize, [f64; 3]); 4] =
    [(13, [4.0, 12.0, 19.0]), (20, [10.0, 18.0, 20.0]), (30, [10.0, 20.0, 20.0]), (40, [6.0, 19.0, 20.0])];
/// R, the CPU time that the search may take, and that it is asked to keep to, seconds: it looks at the clock every few
/// milliseconds.
const LIMITS: [(f64, f64, f64); 3] = [(1.0, 0.9, 1.0), (0.95, 0.9, 1.0), (0.9, 0.044, 0.05)];

/// A cluster's servers, and tenants with equal probability of each size and share (section 3.6.1 of the paper).
pub(super) fn problem(count: usize, seed: u64) -> (usize, Vec<Tenant>) {
    let mut rng = Rng::new(seed << 16 | count as u64);
    let shares = [(1, 2), (1, 3), (2, 3), (1, 4), (1, 5), (1, 6)];
    let mut tenant = || {
        let servers = 1 + 2 * rng.below(5) as usize;
        let (over, under) = shares[rng.below(6) as usize];
        Tenant { servers, share: Fraction { over, under }, pinned: None, start: None }
    };
    let tenants: Vec<Tenant> = (0..count).map(|_| tenant()).collect();
    let sixtieths: u32 = tenants.iter().map(|of| of.servers as u32 * 60 * of.share.over / of.share.under).sum();
    let most = tenants.iter().map(|of| of.servers).max().unwrap_or(1);
    ((sixtieths.div_ceil(60) as usize).max(most), tenants)
}

/// What became of a problem.
#[derive(Clone, Copy, PartialEq)]
enum Found {
    Packed,
    /// The complete search has ended.
    Impossible,
    Nothing,
}

/// Seconds of this thread.
pub(in super::super) fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn packed(context: &Context) -> Result<Outcome, String> {
    let first = context.seeds[0];
    let work: Vec<(usize, f64, f64, u64)> = ASKED
        .iter()
        .flat_map(|(count, _)| LIMITS.iter().map(move |&(r, limit, _)| (*count, r, limit)))
        .flat_map(|(count, r, limit)| (0..PROBLEMS).map(move |at| (count, r, limit, first * PROBLEMS + at)))
        .collect();
    let found = context.parallel(&work, |&(count, r, limit, seed)| {
        let (servers, tenants) = problem(count, seed);
        let began = cpu_s();
        let wanted = Wanted { least: r, enough: r, seed: 1 };
        let schedule = pack(servers, &tenants, wanted, || cpu_s() - began < limit);
        let took = cpu_s() - began;
        let fault = schedule.as_ref().ok().and_then(|schedule| fault(servers, &tenants, schedule));
        match (fault, schedule) {
            (Some(fault), _) => Err(format!("{count} tenants, problem {seed}: {fault}")),
            (None, Ok(_)) => Ok((Found::Packed, took)),
            (None, Err(Refused::Impossible(_))) => Ok((Found::Impossible, took)),
            (None, Err(_)) => Ok((Found::Nothing, took)),
        }
    });
    let found: Vec<(Found, f64)> = found.into_iter().collect::<Result<_, String>>()?;
    let mut claims = Vec::new();
    let mut rows = Vec::new();
    let mut groups = Vec::new();
    for ((count, asked), of_size) in ASKED.iter().zip(found.chunks(LIMITS.len() * PROBLEMS as usize)) {
        let mut solved_of = Vec::new();
        for ((asked, (r, _, limit)), found) in asked.iter().zip(LIMITS).zip(of_size.chunks(PROBLEMS as usize)) {
            let count_of = |what: Found| found.iter().filter(|found| found.0 == what).count() as f64;
            let (solved, impossible) = (count_of(Found::Packed), count_of(Found::Impossible));
            let longest = found.iter().map(|found| found.1).fold(0.0, f64::max);
            claims.push(Claim::new(format!("{count} tenants, R = {r}: of 20"), solved, Bound::AtLeast(*asked)));
            claims.push(Claim::new(format!("{count} tenants, R = {r}: longest, s"), longest, Bound::AtMost(limit)));
            rows.push(
                json!({"tenants": count, "r": r, "solved": solved, "impossible": impossible, "longest_s": longest}),
            );
            solved_of.push(solved);
        }
        groups.push(Group { label: format!("{count} tenants"), bars: solved_of });
    }
    let svg = chart::bars("problems packed, of 20", &["R = 1", "R = 0.95", "R = 0.9"], &groups, None)?;
    let caption = "Problems of the paper's generator that were packed in the time.".into();
    let pictures = vec![Picture { name: "solved".into(), caption, svg }];
    Ok(Outcome { claims, data: rows.into(), pictures, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_the_paper_are_packed_in_a_few_turns() {
        let mut found = [0; 2];
        for seed in 0..10 {
            let (servers, tenants) = problem(20, seed);
            let mut turns = 0..20;
            let wanted = Wanted { least: 0.5, enough: 1.0, seed: 1 };
            let schedule = pack(servers, &tenants, wanted, || turns.next().is_some()).expect("half of the shares fits");
            assert_eq!(fault(servers, &tenants, &schedule), None, "seed {seed}");
            for (found, r) in found.iter_mut().zip([0.95, 0.9]) {
                *found += u32::from(schedule.r_cluster >= r);
            }
        }
        assert!(found[0] >= 7 && found[1] >= 9, "{found:?} of 10 with R = 0.95 and 0.9");
    }
}
