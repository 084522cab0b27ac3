//! Chooses the round and the partitions together, and whom to admit.
//!
//! ```text
//!   R_time_i(T)  = 1 - loss_i / (w_i x T) - shortfall_i           longer rounds lose less
//!   c_i(T)       = the least c with R_time_i(T) x R_cache_i(c) >= R + reserve, and need less cache
//!   T            = the shortest round at which the c_i of all admitted tenants fit into the memory
//! ```
//!
//! Tenants are admitted one after the other, each if a round still exists with it. First come those that were admitted
//! before: the less a need has grown beyond what was promised, the earlier. So a need that grows takes nothing that is
//! promised to others. Its tenant holds what it was promised while more cache would be enough.

use super::allot::{Claim, bytes_of};
use super::load::Load;
use super::{Bound, Decision};
use crate::units::Nanos;

/// Candidate rounds between the shortest and the longest: an octave has 4 to 8 of them.
const STEPS: i32 = 32;
/// The shortest round relative to the longest.
const ROUND_LEAST: f64 = 1.0 / 256.0;
/// Reserves for the unforeseen, as fractions of the loss that R permits, best first. Nobody is admitted without one,
/// but a tenant that was admitted stays so.
const RESERVES: [f64; 4] = [1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0, 0.0];

/// The problem to solve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// R.
    pub(super) keep: f64,
    /// Frames.
    pub(super) memory: u64,
    pub(super) round_max_ns: f64,
}

/// A round, and a target for R_time x R_cache.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    aim: f64,
    round_ns: f64,
}

impl Question {
    /// R plus a reserve.
    fn aim(&self, reserve: f64) -> f64 {
        self.keep + reserve * (1.0 - self.keep)
    }

    /// Rounds from `least_ns` on with the largest reserve, then with smaller ones.
    fn candidates(&self, least_ns: f64) -> Vec<Candidate> {
        let longer = |step: i32| least_ns * (self.round_max_ns / least_ns).powf(f64::from(step) / f64::from(STEPS));
        let rounds =
            |reserve| (0..=STEPS).map(move |step| Candidate { aim: self.aim(reserve), round_ns: longer(step) });
        RESERVES.into_iter().flat_map(rounds).collect()
    }
}

/// The input for one tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant<'a> {
    /// The requested frames, or those that it was promised: 0 if it is not admitted.
    pub(super) claim: Claim,
    /// Its fraction of the round while all tenants are busy, 0 to 1.
    pub(super) weight: f64,
    /// Its loss per slice.
    pub(super) loss_ns: f64,
    /// What it measurably lacks of its R_time, whatever its slices.
    pub(super) shortfall: f64,
    /// Lower bound of its slices, independent of the loss.
    pub(super) slice_least_ns: f64,
    /// `None` while unknown.
    pub(super) load: Option<&'a Load>,
}

impl Tenant<'_> {
    /// R_time in a round by the loss alone.
    fn planned(&self, round_ns: f64) -> f64 {
        1.0 - (self.loss_ns / (self.weight * round_ns)).min(1.0)
    }

    /// R_time in a round.
    fn time(&self, round_ns: f64) -> f64 {
        (self.planned(round_ns) - self.shortfall).max(0.0)
    }

    /// The shortest round with this R_time.
    fn round_for(&self, time: f64) -> f64 {
        self.loss_ns / (self.weight * (1.0 - time - self.shortfall).max(f64::MIN_POSITIVE))
    }

    /// R_cache with `frames`. An unknown load is taken to keep all with any cache.
    fn cache(&self, frames: u64) -> f64 {
        self.load.map_or(1.0, |load| load.keeps(frames)[0])
    }

    /// The fewest frames with which R_cache is what a candidate asks for, or the best; of an unknown load, those that
    /// it has.
    fn least(&self, Candidate { aim, round_ns }: Candidate) -> u64 {
        self.load.map_or(self.claim.frames(), |load| load.least(aim / self.time(round_ns)))
    }

    /// The fewest frames with which it meets a candidate, whatever it has requested.
    fn need(&self, candidate: Candidate) -> Option<u64> {
        let frames = self.least(candidate);
        self.meets(frames, candidate).then_some(frames)
    }

    /// The frames with which it would be admitted.
    fn wants(&self, candidate: Candidate) -> Option<u64> {
        match self.claim {
            Claim::Exactly(frames) => self.meets(frames, candidate).then_some(frames),
            Claim::AtLeast(_) => self.need(candidate),
        }
    }

    fn meets(&self, frames: u64, Candidate { aim, round_ns }: Candidate) -> bool {
        // The tolerance allows for rounding when both sides are equal.
        self.time(round_ns) * self.cache(frames) >= aim * (1.0 - 1e-9)
    }

    /// Why it cannot be admitted, although there are `free` frames for it in the longest round.
    fn fails_by(&self, longest: Candidate, free: u64) -> Bound {
        let own = match (self.need(longest), self.claim) {
            (Some(needs), Claim::AtLeast(_)) => {
                return Bound::Memory { needs_bytes: bytes_of(needs), free_bytes: bytes_of(free) };
            }
            (Some(needs), Claim::Exactly(own)) if needs > own => return Bound::Asked { needs_bytes: bytes_of(needs) },
            (_, Claim::Exactly(own)) => own,
            (None, Claim::AtLeast(_)) => self.least(longest),
        };
        let permille = |part: f64| (part * 1000.0).round() as u32;
        match longest.aim / self.cache(own) {
            time if time < 1.0 - self.shortfall => Bound::Round { needs_ns: self.round_for(time) as Nanos },
            time if time < 1.0 => Bound::Shortfall { lacks_permille: permille(self.shortfall) },
            _ => Bound::Age { most_permille: permille(self.cache(u64::MAX)) },
        }
    }
}

/// The result for a tenant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Fate {
    /// `None` while its load is unknown.
    pub(super) decision: Option<Decision>,
    /// Frames with which it keeps R in the round.
    pub(super) need: Option<u64>,
    /// Frames that are guaranteed to it; 0 if it only has spare frames.
    pub(super) kept: u64,
    /// Frames that cannot be reclaimed from it in any round.
    pub(super) hard: u64,
    pub(super) weight: f64,
    /// R_time in the round, and by the loss alone.
    pub(super) time: f64,
    pub(super) planned: f64,
    /// R_time in the longest round.
    pub(super) time_longest: f64,
}

/// The round, and the results in the order of the tenants.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Split {
    pub(super) round_ns: f64,
    /// The target for R_time x R_cache, and smaller ones.
    pub(super) aims: Vec<f64>,
    pub(super) fates: Vec<Fate>,
}

/// Divides a disk among at least one tenant.
pub(super) fn split(question: &Question, tenants: &[Tenant<'_>]) -> Split {
    let longest_ns = question.round_max_ns;
    // Every tenant, admitted or not, has slices for its backlog, and an R_time with which R is possible.
    let rounds = tenants
        .iter()
        .map(|tenant| (tenant.slice_least_ns / tenant.weight).max(tenant.round_for(question.aim(RESERVES[0]))));
    let candidates = question.candidates(rounds.fold(longest_ns * ROUND_LEAST, f64::max).min(longest_ns));
    let longest = *candidates.last().expect("there are reserves");
    let free = question.memory.saturating_sub(tenants.iter().map(|tenant| tenant.claim.least()).sum());
    let order = |&at: &usize| match tenants[at].claim {
        Claim::Exactly(_) => (false, 0),
        Claim::AtLeast(had) => (had == 0, tenants[at].need(longest).map_or(u64::MAX, |need| need.saturating_sub(had))),
    };
    let is_known = |at: &usize| tenants[*at].load.is_some() || tenants[*at].claim != Claim::AtLeast(0);
    let mut known: Vec<usize> = (0..tenants.len()).filter(is_known).collect();
    known.sort_by_key(order);
    // Frames of these tenants beyond the smallest acceptable number, by candidate.
    let mut taken = vec![Some(0); candidates.len()];
    let fits = |sum: &Option<u64>| sum.is_some_and(|sum| sum <= free);
    let (mut admitted, mut held) = (vec![false; tenants.len()], vec![0; tenants.len()]);
    for at in known {
        let (claim, is_new) = (tenants[at].claim, tenants[at].claim == Claim::AtLeast(0));
        let with = |frames: &dyn Fn(Candidate) -> Option<u64>| -> Vec<_> {
            let more = |candidate| Some(frames(candidate)?.saturating_sub(claim.least()));
            taken.iter().zip(&candidates).map(|(sum, &of)| Some((*sum)? + more(of)?)).collect()
        };
        let all = with(&|candidate| tenants[at].wants(candidate));
        let usual = candidates.partition_point(|candidate| !is_new || candidate.aim > question.keep);
        admitted[at] = all[..usual].iter().any(fits);
        if admitted[at] {
            taken = all;
        } else if tenants[at].need(longest).is_some() {
            // More cache would be enough: it holds what it had until then.
            let holding = with(&|_| Some(claim.frames()));
            if holding.iter().any(fits) {
                (taken, held[at]) = (holding, claim.frames());
            }
        }
    }
    let found = candidates[taken.iter().position(fits).expect("the needs of those admitted fit")];
    let left = free.saturating_sub(taken[candidates.len() - 1].unwrap_or(free));
    let fates = tenants.iter().zip(admitted.into_iter().zip(held)).map(|(tenant, (is_admitted, held))| {
        let (least, own) =
            (tenant.claim.least(), if let Claim::Exactly(frames) = tenant.claim { frames } else { held });
        let kept = tenant.wants(found).filter(|_| is_admitted).unwrap_or(own);
        let decision = match tenant.load {
            _ if is_admitted => Some(Decision::Admitted),
            Some(_) => Some(Decision::BestEffort(tenant.fails_by(longest, left + own.max(least)))),
            None => None,
        };
        // The need is rounded up to a size of the curve; a smaller requested size can still be enough.
        let most = if is_admitted { kept } else { u64::MAX };
        Fate {
            decision,
            need: tenant.need(found).filter(|_| tenant.load.is_some()).map(|need| need.min(most)),
            kept,
            hard: tenant.wants(longest).unwrap_or(u64::MAX).clamp(least, kept.max(tenant.claim.frames()).max(least)),
            weight: tenant.weight,
            time: tenant.time(found.round_ns),
            planned: tenant.planned(found.round_ns),
            time_longest: tenant.time(longest_ns),
        }
    });
    let aims = RESERVES.into_iter().map(|reserve| question.aim(reserve)).filter(|&aim| aim <= found.aim).collect();
    Split { round_ns: found.round_ns, aims, fates: fates.collect() }
}

#[cfg(test)]
mod tests;
