//! Chooses the round and the partitions together.
//!
//! ```text
//!   R_time_i(T)  = 1 - loss_i / (w_i x T)                         longer rounds lose less
//!   c_i(T)       = the least c with R_time_i(T) x R_cache_i(c) >= R   and need less cache
//!   T            = the shortest round at which the c_i fit into the memory
//! ```
//!
//! Admitted tenants come first. Then each tenant that wants to be admitted is, one after the other, if such a round
//! still exists with it. If the needs of the admitted tenants have grown beyond the memory, each keeps what it had as
//! far as it still needs it. The rest goes to tenants that keep R with it, smallest shortage first.
//!
//! The target is R plus a quarter of the loss that R permits, as a reserve for the unforeseen (as in `insulated`), or a
//! smaller reserve if that cannot be had.

use super::load::Load;
use crate::cache::FRAMES_MIN;
use crate::units::Nanos;

/// Candidate rounds: an eighth of an octave apart, down to 1/256 of the longest.
const ROUNDS: usize = 65;
/// 2 to the power of -1/8.
const NEXT_ROUND: f64 = 0.917_004_043_204_671_2;
/// The least loss that is demanded of a cache, as a fraction of the loss that R permits. A smaller loss would reach
/// into the long tail of a curve, where much cache gains little.
const CACHE_LOSS_LEAST: f64 = 1.0 / 8.0;
/// The least part of the reserve with which a tenant is admitted.
const RESERVE_LEAST: f64 = 0.25;
/// A partition shrinks only if the need is below this fraction of it.
const SHRINKS_AT: f64 = 0.75;
const LEAST: u64 = FRAMES_MIN as u64;

/// The largest R_cache that is demanded.
fn cache_most(keep: f64) -> f64 {
    1.0 - (1.0 - keep) * CACHE_LOSS_LEAST
}

/// The problem to solve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// R.
    pub(super) keep: f64,
    /// Frames.
    pub(super) memory: u64,
    pub(super) round_max_ns: f64,
    /// The index of the tenant that is considered for readmission: one at a time, so that many refused tenants cost no
    /// more than one.
    pub(super) turn: usize,
}

impl Question {
    /// R plus a reserve.
    pub(super) fn margin(&self) -> f64 {
        self.keep + (1.0 - self.keep) / 4.0
    }

    /// The targets, best first.
    fn aims(&self) -> [f64; 3] {
        let reserve = self.margin() - self.keep;
        [1.0, 0.5, RESERVE_LEAST].map(|part| self.keep + part * reserve)
    }

    /// Candidate rounds, shortest first.
    fn rounds(&self) -> [f64; ROUNDS] {
        let mut rounds = [self.round_max_ns; ROUNDS];
        (1..ROUNDS).rev().for_each(|at| rounds[at - 1] = rounds[at] * NEXT_ROUND);
        rounds
    }

    /// The R_time that a tenant's slices must have, given its R_cache (`cache`) and its R_time in the longest round,
    /// for targets of at most `most`.
    pub(super) fn slices_keep(&self, cache: f64, time_longest: f64, most: f64) -> f64 {
        // If no round is long enough, a longer round would cost all other tenants more than this one gains.
        let mut by_slices = self.aims().into_iter().filter(|&aim| aim <= most).map(|aim| aim / cache);
        by_slices.find(|&keep| keep <= time_longest).unwrap_or(self.margin())
    }
}

/// A tenant's claim to cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Claim {
    /// This number of frames, independent of its need.
    Asked(u64),
    /// Its load is not known yet.
    Watched,
    /// It is admitted, with this number of frames.
    Kept(u64),
    /// It wants to be admitted; `again` if it was refused before.
    Wanted { again: bool },
}

/// The input for one tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant<'a> {
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
    /// Frames for its streams and writes in the longest round. They are the same in a shorter one: if needs grew with
    /// the round, each of several streams could have nearly what it needs, and none enough.
    pub(super) transfer: u64,
}

impl Tenant<'_> {
    /// R_time in a round by the loss alone.
    pub(super) fn planned(&self, round_ns: f64) -> f64 {
        1.0 - (self.loss_ns / (self.weight * round_ns)).min(1.0)
    }

    /// R_time in a round. If the slice is too short for the backlog, the device sorts fewer requests together than it
    /// would standalone.
    fn time(&self, round_ns: f64) -> f64 {
        let part = self.weight * round_ns / self.slice_least_ns;
        let slower = self.load.map_or(1.0, |load| load.room.slower_in(part));
        (self.planned(round_ns) - self.shortfall).max(0.0) / slower
    }

    /// The fewest frames with which the tenant keeps `keep` in this round. If its load is unknown: the frames that it
    /// has.
    fn need(&self, keep: f64, round_ns: f64) -> Option<u64> {
        let time = self.time(round_ns);
        let (frames, keeps) = match (self.load, self.claim) {
            (Some(load), _) => {
                let frames = load.least((keep / time).min(cache_most(keep)));
                (frames, load.keeps(frames).low)
            }
            (None, Claim::Kept(frames)) => (frames, 1.0),
            (None, _) => (LEAST, 1.0),
        };
        // The tolerance allows for rounding when both sides are equal.
        (time * keeps >= keep * (1.0 - 1e-9)).then(|| frames.max(LEAST + self.transfer))
    }

    /// The fewest frames that are as good as any cache, apart from the loss that R permits.
    fn of_use(&self, keep: f64) -> u64 {
        let of_use = |load: &Load| load.least(cache_most(keep).min(keep * load.keeps(u64::MAX).low));
        self.load.map_or(u64::MAX, of_use).max(LEAST + self.transfer)
    }

    /// The shortest round with this R_time, and with room for the backlog.
    fn round_for(&self, time: f64) -> f64 {
        let slice_ns = self.loss_ns / (1.0 - time - self.shortfall).max(f64::MIN_POSITIVE);
        slice_ns.max(self.slice_least_ns) / self.weight
    }
}

/// Whether a tenant keeps R, or what is missing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Verdict {
    /// Unknown.
    Open,
    Met,
    /// Frames needed, and frames available.
    Memory(u64, u64),
    /// Frames needed by a tenant that has the requested size.
    Asked(u64),
    Round(Nanos),
    /// What it measurably lacks of its R_time: too much for any round.
    Shortfall(f64),
    /// R_cache with the largest cache.
    Age(f64),
}

/// The result for a tenant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Fate {
    pub(super) verdict: Verdict,
    /// Frames with which it keeps R in the round.
    pub(super) need: Option<u64>,
    /// Frames that are guaranteed to it; 0 if it only has spare frames.
    pub(super) kept: u64,
    /// Frames that cannot be reclaimed from it in any round.
    pub(super) hard: u64,
    /// R_time in the round, and by the loss alone.
    pub(super) time: f64,
    pub(super) planned: f64,
    /// R_time in the longest round.
    pub(super) time_longest: f64,
    /// Its target for R_time x R_cache.
    pub(super) aim: f64,
}

/// The round, and the results in the order of the tenants.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Split {
    pub(super) round_ns: f64,
    pub(super) fates: Vec<Fate>,
}

/// A round in which all `members` keep R, and the target that it meets.
#[derive(Clone, Copy, Debug)]
struct Found {
    round_ns: f64,
    target: f64,
}

struct Splitter<'a> {
    question: &'a Question,
    tenants: &'a [Tenant<'a>],
    /// Tenants that keep R, as far as is known.
    members: Vec<bool>,
    /// Frames of tenants that were admitted and cannot keep R with the memory; 0 for the others.
    held: Vec<u64>,
    /// Lower bound of the round, from the lower bounds of the slices.
    round_least_ns: f64,
}

impl Splitter<'_> {
    fn members(&self) -> impl Iterator<Item = &Tenant<'_>> {
        self.tenants.iter().zip(&self.members).filter(|(_, is_member)| **is_member).map(|(tenant, _)| tenant)
    }

    /// Frames of a tenant that is no member: requested, held, or the smallest partition.
    fn reserved_for(&self, at: usize) -> u64 {
        match self.tenants[at].claim {
            Claim::Asked(frames) => frames,
            _ => self.held[at].max(LEAST),
        }
    }

    /// Frames for the members.
    fn memory(&self) -> u64 {
        let others = (0..self.tenants.len()).filter(|&at| !self.members[at]);
        self.question.memory.saturating_sub(others.map(|at| self.reserved_for(at)).sum())
    }

    /// The shortest round for the members within `memory` frames.
    fn find(&self, memory: u64) -> Option<Found> {
        let least_ns = self.round_least_ns;
        let longer = || self.question.rounds().into_iter().filter(|&round_ns| round_ns > least_ns);
        let rounds = || (least_ns > 0.0).then_some(least_ns).into_iter().chain(longer());
        self.question.aims().into_iter().find_map(|target| {
            let fits = |found: &Found| {
                let needs = self.members().map(|tenant| tenant.need(found.target, found.round_ns));
                needs.sum::<Option<u64>>().is_some_and(|sum| sum <= memory)
            };
            rounds().map(|round_ns| Found { round_ns, target }).find(fits)
        })
    }

    /// Likewise; preferably with an even part of the memory for each tenant whose load is unknown.
    fn find_kindly(&self) -> Option<Found> {
        let watched = self.tenants.iter().filter(|tenant| tenant.claim == Claim::Watched).count() as u64;
        let even = (self.question.memory / self.tenants.len() as u64).saturating_sub(LEAST);
        self.find(self.memory().saturating_sub(watched * even)).or_else(|| self.find(self.memory()))
    }

    /// Members that do not keep R even in the longest round are no members any more. They hold the frames that they
    /// had, as far as these help: where the round is too short, or the age limit binds, more cache does not help.
    fn hold(&mut self) {
        let Question { keep, round_max_ns, .. } = *self.question;
        let needs: Vec<_> = self.tenants.iter().map(|tenant| tenant.need(keep, round_max_ns)).collect();
        let given = meet_most(self.tenants, &self.members, &needs, self.memory());
        for (at, need) in needs.into_iter().enumerate() {
            if self.members[at] && need.is_none_or(|need| need > given[at]) {
                (self.members[at], self.held[at]) = (false, given[at].min(self.tenants[at].of_use(keep)).max(1));
            }
        }
    }

    /// Makes a tenant a member if a round for all members then still exists.
    fn admit(&mut self, at: usize, before: Option<Found>) -> Option<Found> {
        self.members[at] = true;
        let found = self.find_kindly();
        self.members[at] = found.is_some();
        found.or(before)
    }

    /// Why a tenant cannot be a member, or does not have enough as one.
    fn fails_by(&self, at: usize) -> Verdict {
        let Question { keep, round_max_ns, .. } = *self.question;
        let tenant = &self.tenants[at];
        let Some(needs) = tenant.need(keep, round_max_ns) else {
            return self
                .fails_by_time(at, tenant.load.map_or(1.0, |load| load.keeps(load.least(cache_most(keep))).low));
        };
        let others = (0..self.tenants.len()).filter(|&other| other != at && self.members[other]);
        let taken: u64 = others.map(|other| self.tenants[other].need(keep, round_max_ns).unwrap_or(LEAST)).sum();
        let own = if self.members[at] { 0 } else { self.reserved_for(at) };
        Verdict::Memory(needs, (self.memory() + own).saturating_sub(taken))
    }

    /// Likewise for a tenant with R_cache `cache`, for which the longest round is too short.
    fn fails_by_time(&self, at: usize, cache: f64) -> Verdict {
        let keep = self.question.keep;
        let most = self.tenants[at].load.map_or(1.0, |load| load.keeps(u64::MAX).low);
        match (keep / cache, self.tenants[at].shortfall) {
            (time, shortfall) if time < 1.0 - shortfall => Verdict::Round(self.tenants[at].round_for(time) as Nanos),
            (time, shortfall) if time < 1.0 => Verdict::Shortfall(shortfall),
            _ => Verdict::Age(most),
        }
    }

    /// The verdict for a tenant with `kept` frames that needs `needs` frames, and has the R_time `time`.
    fn verdict(&self, at: usize, kept: u64, needs: u64, time: f64) -> Verdict {
        let (tenant, keep) = (&self.tenants[at], self.question.keep);
        match (tenant.claim, tenant.load) {
            _ if self.members[at] && needs <= kept => Verdict::Met,
            (Claim::Watched, _) | (Claim::Asked(_), None) => Verdict::Open,
            (Claim::Asked(frames), Some(load)) if load.keeps(frames).low * time < keep => {
                let needs = tenant.need(keep, self.question.round_max_ns).filter(|&needs| needs > frames);
                needs.map_or_else(|| self.fails_by_time(at, load.keeps(frames).low), Verdict::Asked)
            }
            (Claim::Asked(_), Some(_)) => Verdict::Met,
            (Claim::Wanted { .. } | Claim::Kept(_), _) => self.fails_by(at),
        }
    }
}

/// Divides a disk among at least one tenant.
pub(super) fn split(question: &Question, tenants: &[Tenant<'_>]) -> Split {
    let longest = question.round_max_ns;
    let members = tenants.iter().map(|tenant| matches!(tenant.claim, Claim::Kept(_))).collect();
    let bursts = tenants.iter().map(|tenant| tenant.slice_least_ns / tenant.weight);
    let round_least_ns = bursts.fold(0.0, f64::max).min(longest);
    let mut this = Splitter { question, tenants, members, held: vec![0; tenants.len()], round_least_ns };
    let mut found = this.find_kindly();
    if found.is_none() {
        this.hold();
        found = this.find_kindly();
    }
    for (at, tenant) in tenants.iter().enumerate() {
        if let Claim::Wanted { again } = tenant.claim
            && (!again || at == question.turn)
        {
            found = this.admit(at, found);
        }
    }
    let had = |at: usize| match tenants[at].claim {
        Claim::Asked(frames) => frames,
        _ => this.held[at],
    };
    // The round must also be long enough for the slices of tenants that are no members.
    let others = (0..tenants.len()).filter(|&at| !this.members[at]);
    let wishes = others.map(|at| {
        let (tenant, own) = (&tenants[at], had(at));
        let cache = tenant.load.filter(|_| own > 0).map_or(1.0, |load| load.keeps(own).low);
        tenant.round_for(question.slices_keep(cache, tenant.time(longest), 1.0)).min(longest)
    });
    let round_ns = wishes.fold(found.map_or(longest, |found| found.round_ns), f64::max);
    let target = found.map_or(question.keep, |found| found.target);
    let needs: Vec<_> = tenants.iter().map(|tenant| tenant.need(target, round_ns)).collect();
    let kept = give(tenants, &this.members, &needs, this.memory());
    let fates = (0..tenants.len()).map(|at| {
        let (tenant, time) = (&tenants[at], tenants[at].time(round_ns));
        let hard = match tenant.claim {
            Claim::Asked(frames) => frames,
            Claim::Kept(frames) => {
                let of_use = || tenant.of_use(question.keep);
                tenant.need(question.keep, longest).unwrap_or_else(of_use).min(frames).max(LEAST)
            }
            Claim::Watched | Claim::Wanted { .. } => LEAST,
        };
        let kept = if this.members[at] { kept[at] } else { had(at) };
        let verdict = this.verdict(at, kept, needs[at].unwrap_or(u64::MAX), time);
        // The need is rounded up to a size of the curve; a smaller requested size can still be enough.
        let most =
            if (matches!(tenant.claim, Claim::Asked(_)), verdict) == (true, Verdict::Met) { kept } else { u64::MAX };
        let need = needs[at].filter(|_| tenant.load.is_some()).map(|need| need.min(most));
        Fate {
            verdict,
            need,
            kept,
            hard,
            time,
            planned: tenant.planned(round_ns),
            time_longest: tenant.time(longest),
            aim: if this.members[at] { target } else { question.margin() },
        }
    });
    Split { round_ns, fates: fates.collect() }
}

/// `frames` of each member, 0 for others.
fn of_members(members: &[bool], frames: impl Fn(usize) -> u64) -> Vec<u64> {
    members.iter().enumerate().map(|(at, &is_member)| if is_member { frames(at) } else { 0 }).collect()
}

/// The frames that a tenant had.
fn had(tenant: &Tenant<'_>) -> u64 {
    if let Claim::Kept(frames) = tenant.claim { frames } else { 0 }
}

/// The frames of each member out of `memory`. Their needs fit in the round that was found for them, but not always in
/// the longer round that other tenants require.
fn give(tenants: &[Tenant<'_>], members: &[bool], needs: &[Option<u64>], memory: u64) -> Vec<u64> {
    let needed = of_members(members, |at| needs[at].unwrap_or(had(&tenants[at])));
    // A need that has become slightly smaller changes nothing.
    let steady = of_members(members, |at| {
        let had = had(&tenants[at]);
        if needed[at] as f64 >= SHRINKS_AT * had as f64 { needed[at].max(had) } else { needed[at] }
    });
    let fits = |frames: &Vec<u64>| frames.iter().sum::<u64>() <= memory;
    [steady, needed].into_iter().find(fits).unwrap_or_else(|| meet_most(tenants, members, needs, memory))
}

/// The frames of the members if `memory` is less than their needs: each gets what it had and still needs, cut in
/// proportion if that does not fit. The rest goes to tenants that keep R with it, smallest shortage first.
fn meet_most(tenants: &[Tenant<'_>], members: &[bool], needs: &[Option<u64>], memory: u64) -> Vec<u64> {
    // No tenant has less than the smallest partition, which is therefore not cut.
    let mut given = of_members(members, |_| LEAST);
    let mut left = memory.saturating_sub(given.iter().sum());
    let more = of_members(members, |at| {
        let had = had(&tenants[at]);
        needs[at].map_or(had, |need| need.min(had)).saturating_sub(LEAST)
    });
    let sum = more.iter().sum::<u64>().max(1);
    let part = left.min(sum);
    for (given, more) in given.iter_mut().zip(more) {
        let more = (u128::from(more) * u128::from(part) / u128::from(sum)) as u64;
        (*given, left) = (*given + more, left - more);
    }
    let mut missing: Vec<_> = (0..given.len())
        .filter(|&at| members[at])
        .filter_map(|at| Some((needs[at]?.saturating_sub(given[at]), at)))
        .collect();
    missing.sort_unstable();
    for (more, at) in missing {
        let more = if more <= left { more } else { 0 };
        (given[at], left) = (given[at] + more, left - more);
    }
    given
}

#[cfg(test)]
mod tests;
