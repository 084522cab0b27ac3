//! The round and the partitions, chosen together.
//!
//! ```text
//!   R_time_i(T)  = 1 - loss_i / (w_i x T)                         longer rounds lose less
//!   c_i(T)       = the least c with R_time_i(T) x R_cache_i(c) >= R   and need less cache
//!   T            = the shortest round at which the c_i fit into the memory
//! ```
//!
//! Who was admitted comes first; then, one after the other, those who wish to be: each of them is, if with it there is
//! still such a round. Where the needs of the admitted have grown beyond the memory, each keeps what it had as far as
//! it needs it, and what is left goes to those who keep R with it, who miss least first.
//!
//! Asked for is R and a quarter of what R may lose, for what is not foreseen (as `insulated` does); less of it where
//! that cannot be had.

use super::load::Load;
use crate::cache::FRAMES_MIN;
use crate::units::Nanos;

/// Rounds that are tried: an eighth of an octave apart, down to 1/256 of the longest one.
const ROUNDS: usize = 65;
/// 2 to the power of -1/8.
const NEXT_ROUND: f64 = 0.917_004_043_204_671_2;
/// Cache is never asked to keep more than this part of what R may lose: the rest of it is in a curve's long tail, where
/// much cache buys little.
const CACHE_LOSS_LEAST: f64 = 1.0 / 8.0;
/// What was refused before is admitted when it needs no more than this part of the memory: decisions do not come and
/// go.
const MEMORY_AGAIN: f64 = 15.0 / 16.0;
/// A partition follows a need that has become smaller than this part of it.
const SHRINKS_AT: f64 = 0.75;
const LEAST: u64 = FRAMES_MIN as u64;

/// What cache is asked to keep at most.
fn cache_most(keep: f64) -> f64 {
    1.0 - (1.0 - keep) * CACHE_LOSS_LEAST
}

/// What is asked of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// R.
    pub(super) keep: f64,
    /// Frames.
    pub(super) memory: u64,
    pub(super) round_max_ns: f64,
    /// Which of those that were refused before is asked again, by its place: one at a time, so that many cost no more
    /// than one.
    pub(super) turn: usize,
}

impl Question {
    /// R and a part of what it may lose.
    pub(super) fn margin(&self) -> f64 {
        self.keep + (1.0 - self.keep) / 4.0
    }

    /// What may be asked for, best first.
    fn aims(&self) -> [f64; 3] {
        [self.margin(), (self.margin() + self.keep) / 2.0, self.keep]
    }

    /// Shortest first.
    fn rounds(&self) -> [f64; ROUNDS] {
        let mut rounds = [self.round_max_ns; ROUNDS];
        (1..ROUNDS).rev().for_each(|at| rounds[at - 1] = rounds[at] * NEXT_ROUND);
        rounds
    }

    /// R_time that the slices of a tenant have to keep whose cache keeps so much, if the longest round gives it so
    /// much, where R is not to be more than `most`.
    pub(super) fn slices_keep(&self, cache: f64, time_longest: f64, most: f64) -> f64 {
        // Where no round is long enough, a longer one would cost all the others more than it gives to this one.
        let mut by_slices = self.aims().into_iter().filter(|&aim| aim <= most).map(|aim| aim / cache);
        by_slices.find(|&keep| keep <= time_longest).unwrap_or(self.margin())
    }
}

/// A tenant's claim to cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Claim {
    /// So many frames, whatever it needs.
    Asked(u64),
    /// Its load is not known yet.
    Watched,
    /// It was admitted, with so many frames.
    Kept(u64),
    /// It wishes to be admitted; `again` if that was refused before.
    Wanted { again: bool },
}

/// What has to be known of a tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant<'a> {
    pub(super) claim: Claim,
    /// Its part of the round while all are busy, 0 to 1.
    pub(super) weight: f64,
    /// What it loses of each slice.
    pub(super) loss_ns: f64,
    /// Its slices are not shorter, whatever it loses.
    pub(super) slice_least_ns: f64,
    /// `None` while it is not known.
    pub(super) load: Option<&'a Load>,
    /// Frames of what it transfers in a nanosecond of disk time, and frames that are enough for its streams in any
    /// slice.
    pub(super) transfer: (f64, u64),
}

impl Tenant<'_> {
    /// R_time in a round.
    fn time(&self, round_ns: f64) -> f64 {
        1.0 - (self.loss_ns / (self.weight * round_ns)).min(1.0)
    }

    /// The least frames with which it keeps `keep` in such a round. Of one whose load is not known: what it has.
    fn need(&self, keep: f64, round_ns: f64) -> Option<u64> {
        let time = self.time(round_ns);
        let (frames, keeps) = match (self.load, self.claim) {
            (Some(load), _) => {
                let frames = load.least((keep / time).min(cache_most(keep)));
                (frames, load.keeps(frames))
            }
            (None, Claim::Kept(frames)) => (frames, 1.0),
            (None, _) => (LEAST, 1.0),
        };
        let streams = (self.transfer.0 * self.weight * round_ns) as u64;
        // A bit less, for what rounding does to equals.
        (time * keeps >= keep * (1.0 - 1e-9)).then(|| frames.max(LEAST + streams.min(self.transfer.1)))
    }

    /// The least frames that keep as much as any cache does, but for what R may lose.
    fn of_use(&self, keep: f64) -> u64 {
        self.load.map_or(u64::MAX, |load| load.least(cache_most(keep).min(keep * load.keeps(u64::MAX))))
    }

    /// The shortest round in which it loses no more than that.
    fn round_for(&self, time: f64) -> f64 {
        self.loss_ns / (self.weight * (1.0 - time))
    }
}

/// Whether a tenant keeps R, and what it fails by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Verdict {
    /// Not known.
    Open,
    Met,
    /// Frames needed, and those there are.
    Memory(u64, u64),
    /// Frames needed, of one that has what it asked for.
    Asked(u64),
    Round(Nanos),
    /// R_cache with any cache.
    Age(f64),
}

/// What a tenant gets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Fate {
    pub(super) verdict: Verdict,
    /// Frames with which it keeps R in the round.
    pub(super) need: Option<u64>,
    /// Frames that are its own; 0 if it has what is spare.
    pub(super) kept: u64,
    /// Frames that cannot be taken from it in any round.
    pub(super) hard: u64,
    /// R_time in the round.
    pub(super) time: f64,
    /// R_time in the longest one.
    pub(super) time_longest: f64,
    /// What it has to have of R, its cache and its slices together.
    pub(super) aim: f64,
}

/// The round and everybody's fate, in the order of the tenants.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Split {
    pub(super) round_ns: f64,
    pub(super) fates: Vec<Fate>,
}

/// A round in which all of `members` keep their R, and the target that it is made for.
#[derive(Clone, Copy, Debug)]
struct Found {
    round_ns: f64,
    target: f64,
}

struct Splitter<'a> {
    question: &'a Question,
    tenants: &'a [Tenant<'a>],
    /// Who keeps R as far as is known.
    members: Vec<bool>,
    /// Frames of those who have some and do not keep R with what there is; 0 for the others.
    held: Vec<u64>,
    /// Slices are as long as somebody needs them for what it has at once.
    round_least_ns: f64,
}

impl Splitter<'_> {
    fn members(&self) -> impl Iterator<Item = &Tenant<'_>> {
        self.tenants.iter().zip(&self.members).filter(|(_, is_member)| **is_member).map(|(tenant, _)| tenant)
    }

    /// Frames of a tenant that is no member: asked for, held, or the least to work with.
    fn reserved_for(&self, at: usize) -> u64 {
        match self.tenants[at].claim {
            Claim::Asked(frames) => frames,
            _ => self.held[at].max(LEAST),
        }
    }

    /// Frames for members.
    fn memory(&self) -> u64 {
        let others = (0..self.tenants.len()).filter(|&at| !self.members[at]);
        self.question.memory.saturating_sub(others.map(|at| self.reserved_for(at)).sum())
    }

    /// The shortest round for the members within so many frames.
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

    /// The same; rather with an even part of the memory for each of those whose load is not known yet.
    fn find_kindly(&self) -> Option<Found> {
        let watched = self.tenants.iter().filter(|tenant| tenant.claim == Claim::Watched).count() as u64;
        let even = (self.question.memory / self.tenants.len() as u64).saturating_sub(LEAST);
        self.find(self.memory().saturating_sub(watched * even)).or_else(|| self.find(self.memory()))
    }

    /// Whoever does not keep R though the round is the longest is no member, and holds what it had, as far as that is
    /// of use: where the round is too short, or dirt may not wait, more cache does not help.
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

    /// Who wishes to be a member is one, if then there is still a round.
    fn admit(&mut self, at: usize, again: bool, before: Option<Found>) -> Option<Found> {
        self.members[at] = true;
        let (memory, all) = (self.memory(), self.question.memory);
        let spared = if again { all - (all as f64 * MEMORY_AGAIN) as u64 } else { 0 };
        let found = self.find(memory.saturating_sub(spared)).and_then(|_| self.find_kindly());
        self.members[at] = found.is_some();
        found.or(before)
    }

    /// Why one cannot be a member, or does not have enough as one.
    fn fails_by(&self, at: usize) -> Verdict {
        let Question { keep, round_max_ns, .. } = *self.question;
        let tenant = &self.tenants[at];
        let Some(needs) = tenant.need(keep, round_max_ns) else {
            return self.fails_by_time(at, tenant.load.map_or(1.0, |load| load.keeps(load.least(cache_most(keep)))));
        };
        let others = (0..self.tenants.len()).filter(|&other| other != at && self.members[other]);
        let taken: u64 = others.map(|other| self.tenants[other].need(keep, round_max_ns).unwrap_or(LEAST)).sum();
        let own = if self.members[at] { 0 } else { self.reserved_for(at) };
        Verdict::Memory(needs, (self.memory() + own).saturating_sub(taken))
    }

    /// The same of one whose cache keeps so much, and for which the longest round is too short.
    fn fails_by_time(&self, at: usize, cache: f64) -> Verdict {
        let keep = self.question.keep;
        let most = self.tenants[at].load.map_or(1.0, |load| load.keeps(u64::MAX));
        match keep / cache {
            time if time < 1.0 => Verdict::Round(self.tenants[at].round_for(time) as Nanos),
            _ => Verdict::Age(most),
        }
    }

    /// Of a tenant with so many frames that needs so many, and loses no more of its slices than that.
    fn verdict(&self, at: usize, kept: u64, needs: u64, time: f64) -> Verdict {
        let (tenant, keep) = (&self.tenants[at], self.question.keep);
        match (tenant.claim, tenant.load) {
            _ if self.members[at] && needs <= kept => Verdict::Met,
            (Claim::Watched, _) | (Claim::Asked(_), None) => Verdict::Open,
            (Claim::Asked(frames), Some(load)) if load.keeps(frames) * time < keep => {
                let needs = tenant.need(keep, self.question.round_max_ns).filter(|&needs| needs > frames);
                needs.map_or_else(|| self.fails_by_time(at, load.keeps(frames)), Verdict::Asked)
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
            found = this.admit(at, again, found);
        }
    }
    let had = |at: usize| match tenants[at].claim {
        Claim::Asked(frames) => frames,
        _ => this.held[at],
    };
    // Those who are no members wish for a round, too: the one that their slices make.
    let others = (0..tenants.len()).filter(|&at| !this.members[at]);
    let wishes = others.map(|at| {
        let (tenant, own) = (&tenants[at], had(at));
        let cache = tenant.load.filter(|_| own > 0).map_or(1.0, |load| load.keeps(own));
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
        // Between the sizes of a curve, what was asked for may be enough though the next size is needed.
        let most =
            if (matches!(tenant.claim, Claim::Asked(_)), verdict) == (true, Verdict::Met) { kept } else { u64::MAX };
        let need = needs[at].filter(|_| tenant.load.is_some()).map(|need| need.min(most));
        Fate {
            verdict,
            need,
            kept,
            hard,
            time,
            time_longest: tenant.time(longest),
            aim: if this.members[at] { target } else { question.margin() },
        }
    });
    Split { round_ns, fates: fates.collect() }
}

/// `frames` of each member, nothing of others.
fn of_members(members: &[bool], frames: impl Fn(usize) -> u64) -> Vec<u64> {
    members.iter().enumerate().map(|(at, &is_member)| if is_member { frames(at) } else { 0 }).collect()
}

/// The frames that a tenant had.
fn had(tenant: &Tenant<'_>) -> u64 {
    if let Claim::Kept(frames) = tenant.claim { frames } else { 0 }
}

/// The frames of each member out of `memory`: their needs fit in the round that was found for them, not always in the
/// longer one of others.
fn give(tenants: &[Tenant<'_>], members: &[bool], needs: &[Option<u64>], memory: u64) -> Vec<u64> {
    let needed = of_members(members, |at| needs[at].unwrap_or(had(&tenants[at])));
    // What has become a little smaller stays.
    let steady = of_members(members, |at| {
        let had = had(&tenants[at]);
        if needed[at] as f64 >= SHRINKS_AT * had as f64 { needed[at].max(had) } else { needed[at] }
    });
    let fits = |frames: &Vec<u64>| frames.iter().sum::<u64>() <= memory;
    [steady, needed].into_iter().find(fits).unwrap_or_else(|| meet_most(tenants, members, needs, memory))
}

/// Frames of the members out of `memory` that is not enough: what each one had and still needs, cut in proportion where
/// there is less than then; and what is left is for those who keep R with it, who miss least first.
fn meet_most(tenants: &[Tenant<'_>], members: &[bool], needs: &[Option<u64>], memory: u64) -> Vec<u64> {
    // Nobody has less than the least: what is said of that is not cut.
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
