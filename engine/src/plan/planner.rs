//! The planner: from evidence to targets.

use std::collections::BTreeMap;

use super::allot::{self, Claim, bytes_of, frames_of};
use super::evidence::{Evidence, Facts, Gained, Look, Observed, Promise, Target, Targets};
use super::feedback::Feedback;
use super::load::{Gain, Keeps, Load, OTHER_FRAMES, Tempo, gain_of_reads};
use super::room::Room;
use super::split::{self, Fate, Question, Split, Verdict, split};
use super::trial::Trial;
use super::{Bound, Decision, Doubt, Plan, PlanRequest, Sizing};
use crate::cache::Reads;
use crate::config::Config;
use crate::curve::{Cost, View, Written};
use crate::disk::policy::{self, FOLLOWING_BYTES, Settings};
use crate::ids::TenantId;
use crate::spec::{CacheSpec, Refusal, TenantSpec};
use crate::units::{BLOCK, SECOND, Share};

/// Read-ahead windows that a partition holds for each stream: two windows in the quarter of the partition that streams
/// may use, or four reads in half of it (`volume/prefetch.rs`).
const WINDOWS: u64 = 8;
/// Longest read of a client that makes such windows longer, bytes: in longer ones, transfer amortises positioning.
const STREAM_READ_MAX: u64 = 2 << 20;
/// Blocks with which a writer's runs have full length: two of the largest device requests being written, as much
/// arriving, and half the partition dirty.
const WRITER_FRAMES: u64 = 8 << 20 >> 12;

/// Live insulation is shown if the interval in which it is ([`Tempo::width`]) is no wider than this. Of 134 tenants, 16
/// are not shown, which would be off by 0.09 on average; the others are off by 0.03 (`docs/notes/sizing.md`).
const CERTAIN_WITHIN: f64 = 0.4;
/// A partition that holds this part of the blocks used so far is taken to hold all of them,
const FILLED: f64 = 0.95;
/// or this many standard errors less than that: their number is an estimate from samples. A tenant whose working set is
/// in its cache has nothing left to fill it with; with an estimate that is too high it would be on trial forever.
const FILLED_ERRORS: f64 = 3.0;
/// The largest part of its slices that a tenant is to keep for a shortfall: more would take rounds of any length.
const KEEP_MOST: f64 = 0.995;

/// What is known of a tenant.
#[derive(Default, Debug)]
struct Known {
    created: u64,
    cost: Cost,
    trial: Trial,
    /// Known when its trial is over.
    load: Option<Load>,
    writes: bool,
    tempo: Tempo,
    /// Recent number of concurrent streams.
    streams: u32,
    /// The longest recent read of a stream, bytes.
    stream_read: u64,
    /// The most reads that were outstanding at once in recent looks, without those of streams.
    reads: Reads,
    /// Frames of its partition that are in use, and blocks that it has used.
    used: u64,
    seen: u64,
    seen_error: f64,
    feedback: Feedback,
}

impl Known {
    /// Learns from a look at the tenant.
    fn learn(&mut self, observed: Observed, evidence: &Evidence) -> (Gain, View) {
        let (view, whole) = (observed.counts.view(), evidence.frames);
        self.tempo.look(&observed);
        (self.cost, self.used) = (observed.cost, observed.used);
        (self.seen, self.seen_error) = (view.reuse.seen, view.reuse.seen_error);
        let gain = gain(&self.cost, observed.written, observed.target, evidence.settings.stream_bytes_per_s);
        self.trial.look(evidence.now, observed.references, || view.clone());
        if self.trial.is_over(evidence.now, evidence.trial_ns_max) {
            self.writes = view.writes > 0.0;
            // If the curve has been restarted, the earlier load is better than none.
            let room = self.room(evidence);
            self.load = Load::new(&view, &self.cost, gain, &self.tempo, room, whole).or(self.load.take());
        }
        (gain, view)
    }

    /// The reads that need room at once.
    fn room(&self, evidence: &Evidence) -> Room {
        let Settings { prices, depth, .. } = evidence.settings;
        Room { reads: self.reads, prices, depth }
    }

    /// R_cache at present with a partition of `target` frames, which may not have filled yet.
    fn keeps(&self, target: u64) -> Option<Keeps> {
        let load = self.load.as_ref()?;
        if self.seen == 0 {
            // The curve has been restarted: it says nothing about what the partition has.
            return Some(load.keeps(target));
        }
        let frames = self.used + OTHER_FRAMES;
        // Between two sizes of the curve, a set that is wholly cached would seem to be cached in part. Its number of
        // blocks and the distances of the curve are estimates from the same samples.
        let has_all = self.used as f64 >= FILLED * self.seen as f64 - FILLED_ERRORS * self.seen_error;
        if !has_all {
            return Some(load.keeps(target.min(frames)));
        }
        // Few blocks may be missing, and still the tenant may wait for nothing but these.
        let has = load.size_from(frames.max(self.seen + OTHER_FRAMES));
        Some(load.as_measured(load.keeps(target.min(has)), &self.tempo))
    }

    /// Whether a partition of `target` frames has room to read ahead of streams of long reads. Without it, the measured
    /// times do not tell what these streams would do standalone.
    fn has_long_reads(&self, target: u64) -> bool {
        let read = if self.stream_read > FOLLOWING_BYTES { self.stream_read.min(STREAM_READ_MAX) } else { 0 };
        target >= OTHER_FRAMES + u64::from(self.streams) * WINDOWS * read / BLOCK
    }

    /// Frames for read-ahead and for full-length write runs: those transferred in a slice of `slice_ns`, or as many as
    /// suffice in any.
    fn transfer(&self, prefetch_bytes_max: u64, slice_ns: f64, has_divided_streams: bool) -> u64 {
        let dirty = WRITER_FRAMES / 2;
        // In its slice a stream is as fast with `FOLLOWING_BYTES` in the device as with longer windows, unless its
        // client waits for more than that in one read, or other reads of the tenant come after each window.
        let suffices = if has_divided_streams { prefetch_bytes_max } else { FOLLOWING_BYTES };
        let window = prefetch_bytes_max.min(suffices).max(self.stream_read.min(STREAM_READ_MAX));
        let reads = u64::from(self.streams) * WINDOWS * window / BLOCK;
        let writes = if self.writes { WRITER_FRAMES } else { 0 };
        let rate = |is_there: bool, block_ns: f64| if is_there { 1.0 / block_ns } else { 0.0 };
        let frames_ns = rate(reads > 0, self.cost.read_ns()).max(rate(self.writes, self.cost.write_ns(dirty)));
        ((frames_ns * slice_ns) as u64).min(reads + writes)
    }
}

/// The cost of writes relative to that with a partition of `target` frames.
fn gain(cost: &Cost, written: [Written; 3], target: u64, stream_bytes_per_s: u64) -> Gain {
    let transfer_ns = BLOCK as f64 * SECOND as f64 / stream_bytes_per_s.max(1) as f64;
    let [now, roomy, alone] = written;
    let open = alone.open();
    let mean_ns = cost.any_write_ns().unwrap_or(0.0);
    let [roomy, alone] = [roomy, alone].map(|other| other.by(now, mean_ns, transfer_ns));
    // Before the first write all of it may be positioning.
    let positioning = if mean_ns > 0.0 { (1.0 - transfer_ns / mean_ns).max(0.0) } else { 1.0 };
    Gain { target, roomy, alone: alone.min(roomy), chosen: now.chosen() * positioning, open: open * positioning }
}

/// The claim of a tenant with this cache size and `kept` promised frames.
fn claim(cache: CacheSpec, kept: u64, is_known: bool, again: bool) -> split::Claim {
    match cache {
        CacheSpec::Asked(bytes) | CacheSpec::Planned { asked: bytes, .. } => split::Claim::Asked(frames_of(bytes)),
        _ if kept > 0 => split::Claim::Kept(kept),
        _ if !is_known => split::Claim::Watched,
        _ => split::Claim::Wanted { again },
    }
}

/// The most reads at once after a look that found `look`: at least half as many as `before`. If the look found none,
/// the clients may only have paused, and nothing changes.
fn recent(before: Reads, look: Reads) -> Reads {
    let Reads { requests, blocks } = before;
    match look {
        Reads { requests: 0, .. } => before,
        _ if look.blocks < blocks / 2 => Reads { requests: requests.div_ceil(2), blocks: blocks / 2 },
        _ => look,
    }
}

/// All tenants, the guest last, and the result for them.
struct Survey {
    tenants: Vec<Facts>,
    weights: Vec<f64>,
    question: Option<Question>,
    /// `None` under a policy that does not insulate.
    split: Option<Split>,
}

impl Survey {
    /// Frames that the tenants other than the last one do not give up.
    fn others_hold(&self) -> u64 {
        let fates = self.split.as_ref().map(|split| &split.fates);
        let hard = |at: usize| match fates {
            Some(fates) => fates[at].hard,
            None => Claim::new(self.tenants[at].spec.cache, 0).least(),
        };
        (0..self.tenants.len().saturating_sub(1)).map(hard).sum()
    }

    /// The claims of all tenants, those without R last.
    fn claims(&self, others: &[(TenantId, CacheSpec)]) -> Vec<(TenantId, Claim)> {
        let shrunk = planted!(AdmittedShrunk);
        let kept = |at: usize| self.split.as_ref().filter(|_| !shrunk).map_or(0, |split| split.fates[at].kept);
        let all = self.tenants.iter().enumerate();
        let claims = all.map(|(at, facts)| (facts.tenant, Claim::new(facts.spec.cache, kept(at))));
        claims.chain(others.iter().map(|&(tenant, cache)| (tenant, Claim::new(cache, 0)))).collect()
    }
}

/// The planner of one disk: a deterministic machine, whose time is that of the evidence. It knows what tenants do; what
/// they are promised comes with the evidence.
#[derive(Debug)]
pub struct Planner {
    known: BTreeMap<TenantId, Known>,
    /// The latest evidence, without looks.
    latest: Evidence,
}

impl Planner {
    /// The planner of a disk with this configuration.
    pub fn new(config: &Config) -> Planner {
        Planner { known: BTreeMap::new(), latest: Evidence::new(config) }
    }

    /// The generation of the latest evidence.
    pub fn generation(&self) -> u64 {
        self.latest.generation
    }

    /// Determines the tenants' needs, and divides the disk accordingly.
    pub fn handle(&mut self, evidence: Evidence) -> Targets {
        self.latest = evidence;
        let created: BTreeMap<TenantId, u64> =
            self.latest.tenants.iter().map(|facts| (facts.tenant, facts.created)).collect();
        self.known.retain(|tenant, known| created.get(tenant) == Some(&known.created));
        for (&tenant, &created) in &created {
            self.known.entry(tenant).or_insert_with(|| Known { created, ..Known::default() });
        }
        let looks = std::mem::take(&mut self.latest.looks);
        let gains = looks.into_iter().filter_map(|look| self.look(look)).collect();
        let survey = self.survey(None);
        let targets = Targets { generation: self.latest.generation, tenants: self.targets(&survey), gains };
        self.measure(&survey);
        targets
    }

    /// Examines the curve and the streams of a tenant.
    fn look(&mut self, look: Look) -> Option<Gained> {
        let known = self.known.get_mut(&look.tenant)?;
        known.streams = look.streams.max(known.streams.saturating_sub(1));
        // In a long round a tenant has no slice between two looks. If its need fell with that, it would be admitted
        // and withdrawn in turns.
        if look.stream_read > 0 {
            known.stream_read = look.stream_read.max(known.stream_read / 2);
        }
        known.reads = recent(known.reads, look.reads);
        let observed = *look.observed?;
        let target = observed.target;
        let (gain, view) = known.learn(observed, &self.latest);
        let (reads, width) = gain_of_reads(&view, &known.tempo, known.room(&self.latest), target, self.latest.frames);
        let is_certain = known.tempo.width(width, gain.width()) <= CERTAIN_WITHIN && known.has_long_reads(target);
        Some(Gained {
            tenant: look.tenant,
            reads,
            is_certain,
            writes: gain.alone,
            miss_ratios: [target / 2, target, 2 * target].map(|frames| view.misses(frames)),
        })
    }

    /// Compares what the tenants get with what the plan expects.
    fn measure(&mut self, survey: &Survey) {
        let Some(split) = &survey.split else { return };
        for (at, facts) in survey.tenants.iter().enumerate() {
            if let Some(known) = self.known.get_mut(&facts.tenant) {
                known.feedback.look(self.latest.now, facts, survey.weights[at], split.fates[at].planned);
            }
        }
    }

    /// Frames that tenants without R do not give up.
    fn other_frames(&self) -> u64 {
        self.latest.others.iter().map(|&(_, cache)| Claim::new(cache, 0).least()).sum()
    }

    /// Divides the disk anew.
    fn targets(&self, survey: &Survey) -> Vec<Target> {
        let divided = allot::targets(self.latest.frames, &survey.claims(&self.latest.others)).unwrap_or_default();
        let target = |(at, (tenant, frames)): (usize, (TenantId, u32))| {
            let promise = survey.question.zip(survey.split.as_ref()).filter(|_| at < survey.tenants.len());
            let promise = promise.map(|(question, split)| self.promise(survey, at, question, split, frames.into()));
            Target { tenant, frames, promise }
        };
        divided.into_iter().enumerate().map(target).collect()
    }

    fn promise(&self, survey: &Survey, at: usize, question: Question, split: &Split, frames: u64) -> Promise {
        let (facts, fate) = (&survey.tenants[at], split.fates[at]);
        let known = self.known.get(&facts.tenant);
        // Lent cache counts as long as it is lent. The size that an allocation has found for a tenant may be too small
        // for R. Its slices do not make up for that: they would lengthen the rounds of all tenants.
        let load = known.and_then(|known| known.load.as_ref());
        let load = load.filter(|_| !matches!(facts.spec.cache, CacheSpec::Planned { .. }));
        let cache = load.map_or(Keeps::UNKNOWN, |load| load.keeps(frames)).low;
        // Longer slices make up for what is lost beside them.
        let shortfall = known.map_or(0.0, |known| known.feedback.shortfall());
        let keep = question.slices_keep(cache, fate.time_longest, fate.aim);
        let keep = keep.max((keep + shortfall).min(KEEP_MOST));
        Promise {
            kept: if facts.spec.cache.is_given() { 0 } else { fate.kept },
            hard: fate.hard,
            keep_permille: (keep * 1000.0 + 1e-6) as u32,
            sizing: self.sizing(known, facts, split.round_ns, fate, survey.weights[at], frames),
        }
    }

    /// All tenants, and the guest, which is like the tenant `like`, in place of the tenant that it replaces.
    fn survey(&self, guest: Option<(Facts, Option<TenantId>)>) -> Survey {
        let Evidence { settings, reviews, prefetch_bytes, .. } = self.latest;
        let is_other = |facts: &&Facts| guest.is_none_or(|(guest, _)| guest.tenant != facts.tenant);
        let mut tenants: Vec<Facts> = self.latest.tenants.iter().filter(is_other).copied().collect();
        let others = tenants.len();
        tenants.extend(guest.map(|(facts, _)| facts));
        let stores = self.latest.stores.iter().copied();
        let shares: Vec<_> = tenants.iter().map(|facts| facts.spec.share).chain(stores).collect();
        let mut weights = policy::weights(&shares);
        weights.truncate(tenants.len());
        let switch_ns = if settings.needs_slices { settings.switch_ns } else { 0 };
        let insulates = settings.insulates() && !tenants.is_empty();
        let answer = insulates.then(|| {
            let tenant = |at: usize| {
                let facts = &tenants[at];
                let model = guest.filter(|_| at == others).and_then(|(_, like)| like).unwrap_or(facts.tenant);
                let known = self.known.get(&model);
                let load = known.and_then(|known| known.load.as_ref());
                let again = matches!(facts.decided, Some((Decision::BestEffort(_), _)));
                split::Tenant {
                    claim: claim(facts.spec.cache, facts.kept, load.is_some(), again),
                    weight: weights[at],
                    loss_ns: facts.loss_ns.unwrap_or(switch_ns) as f64,
                    shortfall: known.map_or(0.0, |known| known.feedback.shortfall()),
                    slice_least_ns: facts.burst_ns as f64,
                    load,
                    transfer: known.map_or(0, |known| {
                        let slice_ns = weights[at] * settings.round_max_ns as f64;
                        known.transfer(prefetch_bytes, slice_ns, facts.has_divided_streams)
                    }),
                }
            };
            let all: Vec<_> = (0..tenants.len()).map(tenant).collect();
            let question = Question {
                keep: f64::from(settings.insulation_permille) / 1000.0,
                memory: self.latest.frames.saturating_sub(self.other_frames()),
                round_max_ns: settings.round_max_ns as f64,
                turn: reviews % tenants.len(),
            };
            (question, split(&question, &all))
        });
        let (question, split) = answer.unzip();
        Survey { tenants, weights, question, split }
    }

    /// The decision for a tenant and its numbers, for this round, weight and partition.
    fn sizing(
        &self,
        known: Option<&Known>,
        facts: &Facts,
        round_ns: f64,
        fate: Fate,
        weight: f64,
        target: u64,
    ) -> Sizing {
        let Fate { verdict, need, kept, time, .. } = fate;
        let Evidence { settings, now, trial_ns_max, .. } = self.latest;
        let keeps = known.and_then(|known| known.keeps(target));
        let target_permille = settings.insulation_permille;
        // As part of the shortfall it would lengthen the rounds of all tenants, which helps this one little.
        let lack = known.filter(|known| known.load.is_some()).map_or(0.0, |_| facts.streams_lack);
        let time = (time - lack).max(0.0);
        let is_below = || keeps.is_some_and(|keeps| permille(keeps.low * time) < target_permille);
        let decision = match verdict {
            Verdict::Met if lack > 0.0 && is_below() => {
                Decision::BestEffort(Bound::Shortfall { lacks_permille: permille(lack) })
            }
            Verdict::Met if is_below() => {
                let used = known.map_or(0, |known| known.used.min(target));
                Decision::Trial(Doubt::Filling { used_bytes: bytes_of(used) })
            }
            Verdict::Met => Decision::Admitted,
            Verdict::Open if facts.spec.cache.is_given() => Decision::Admitted,
            Verdict::Open => Decision::Trial(match known.and_then(|known| known.trial.begun()) {
                Some(begun) => Doubt::Unsettled { until: begun + trial_ns_max },
                None => Doubt::Unused,
            }),
            Verdict::Memory(needs, free) => {
                Decision::BestEffort(Bound::Memory { needs_bytes: bytes_of(needs), free_bytes: bytes_of(free) })
            }
            Verdict::Asked(needs) => Decision::BestEffort(Bound::Asked { needs_bytes: bytes_of(needs) }),
            Verdict::Round(needs_ns) => Decision::BestEffort(Bound::Round { needs_ns }),
            Verdict::Shortfall(lacks) => Decision::BestEffort(Bound::Shortfall { lacks_permille: permille(lacks) }),
            Verdict::Age(most) => Decision::BestEffort(Bound::Age { most_permille: permille(most) }),
        };
        let is_same = |before: &Decision| std::mem::discriminant(before) == std::mem::discriminant(&decision);
        let since = facts.decided.filter(|(before, _)| is_same(before)).map_or(now, |(_, since)| since);
        let round_ns = if settings.needs_slices { round_ns } else { 0.0 };
        Sizing {
            decision,
            since,
            insulation_permille: settings.insulation_permille,
            need_bytes: need.map(bytes_of),
            kept_bytes: bytes_of(kept),
            lent_bytes: bytes_of(target.saturating_sub(kept)),
            time_permille: permille(time),
            cache_permille: keeps.map(|keeps| permille(keeps.point)),
            best_permille: keeps.map(|keeps| permille(keeps.point * time)),
            low_permille: keeps.map(|keeps| permille(keeps.low * time)),
            high_permille: keeps.map(|keeps| permille(keeps.high * time)),
            round_ns: round_ns as u64,
            wait_ns: (round_ns * (1.0 - weight)) as u64,
        }
    }

    /// The decision for a planned tenant, as of the latest evidence.
    pub fn plan(&self, request: PlanRequest) -> Result<Plan, Refusal> {
        let PlanRequest { tenant, share, overcommit, cache, like } = request;
        let find = |tenant: TenantId| {
            let found = self.latest.tenants.iter().find(|facts| facts.tenant == tenant);
            found.ok_or(Refusal::UnknownTenant)
        };
        let replaced = tenant.map(find).transpose()?;
        let model = like.map(find).transpose()?.or(replaced);
        let others = self.latest.tenants.iter().filter(|facts| Some(facts.tenant) != tenant);
        let stores = self.latest.stores.iter().flatten().copied();
        let promised: u64 = others.filter_map(|facts| facts.spec.share).chain(stores).map(Share::ppb).sum();
        let left_ppb = Share::ONE.ppb().saturating_sub(promised);
        if let Some(asked) = share.filter(|share| !overcommit && share.ppb() > left_ppb) {
            return Err(Refusal::ShareTooLarge { asked_ppb: asked.ppb(), left_ppb });
        }
        let guest = self.guest(request, model);
        let survey = self.survey(Some((guest, model.map(|model| model.tenant))));
        let (frames, others) = (self.latest.frames, survey.others_hold() + self.other_frames());
        allot::admit(frames, others, cache)?;
        let at = survey.tenants.len() - 1;
        let target =
            allot::targets(frames, &survey.claims(&self.latest.others)).map_or(0, |targets| u64::from(targets[at].1));
        let sizing = survey.split.as_ref().map(|split| {
            let known = model.and_then(|model| self.known.get(&model.tenant));
            self.sizing(known, &guest, split.round_ns, split.fates[at], survey.weights[at], target)
        });
        let round_ns = sizing.map_or(0, |sizing| sizing.round_ns);
        Ok(Plan {
            slice_ns: round_ns - sizing.map_or(0, |sizing| sizing.wait_ns),
            sizing,
            free_bytes: bytes_of(frames.saturating_sub(others)),
            share_left_ppb: left_ppb,
        })
    }

    /// The planned tenant: its load is that of `model`, and nothing has been decided for it.
    fn guest(&self, request: PlanRequest, model: Option<&Facts>) -> Facts {
        let spec = TenantSpec {
            share: request.share,
            cache: request.cache,
            ..model.map(|model| model.spec).unwrap_or_default()
        };
        Facts {
            tenant: request.tenant.unwrap_or(TenantId(u32::MAX)),
            created: 0,
            spec,
            kept: if let CacheSpec::Decided(bytes) = request.cache { frames_of(bytes) } else { 0 },
            decided: None,
            loss_ns: model.and_then(|model| model.loss_ns),
            burst_ns: model.map_or(0, |model| model.burst_ns),
            streams_lack: model.map_or(0.0, |model| model.streams_lack),
            has_divided_streams: model.is_some_and(|model| model.has_divided_streams),
            useful_ns: 0,
            wanted_ns: 0,
            faults: None,
        }
    }
}

fn permille(part: f64) -> u32 {
    (part * 1000.0).round() as u32
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::{cost, new, reads};
    use super::*;

    #[test]
    fn a_load_with_fewer_reads_at_once_is_believed_within_seconds() {
        let of = |requests, each| Reads { requests, blocks: requests * each };
        let mut reads = recent(Reads::default(), of(32, 64));
        assert_eq!([recent(reads, of(0, 0)), recent(reads, of(20, 64))], [of(32, 64), of(20, 64)]);
        (0..11).for_each(|_| reads = recent(reads, of(2, 1)));
        assert_eq!(reads, of(2, 1));
    }

    /// The curve says that 2,200 blocks are needed; the partition has 2,048, and there are no others to fill it with.
    #[test]
    fn an_estimate_of_the_blocks_that_is_too_high_does_not_leave_a_partition_empty() {
        let curve = reads(&[(1000, 0.5), (2000, 0.1), (2250, 0.0), (4000, 0.0)]);
        let keeps = |used, seen_error| {
            let load = new(&curve, &cost(), 5000);
            let known = Known { load, used, seen: 2200, seen_error, ..Known::default() };
            known.keeps(3000).expect("a load").point
        };
        assert!(keeps(2048, 0.0) < 0.9, "the number of blocks is exact: {}", keeps(2048, 0.0));
        assert_eq!(keeps(2048, 80.0), 1.0);
        assert!(keeps(1500, 80.0) < 0.5, "it is not full yet: {}", keeps(1500, 80.0));
    }

    #[test]
    fn beside_other_reads_a_stream_needs_the_windows_that_it_has_alone() {
        let known = Known { streams: 1, stream_read: 256 << 10, cost: cost(), ..Known::default() };
        let frames = |max_bytes, has_divided_streams| known.transfer(max_bytes, 1e15, has_divided_streams);
        let windows = |bytes: u64| WINDOWS * bytes / BLOCK;
        assert_eq!(frames(8 << 20, false), windows(FOLLOWING_BYTES));
        assert_eq!(frames(8 << 20, true), windows(8 << 20));
        assert_eq!([false, true].map(|divided| frames(128 << 10, divided)), [windows(256 << 10); 2]);
    }

    /// A hot set that is used at the speed of memory once the last of its blocks are there.
    #[test]
    fn the_last_blocks_of_a_set_may_be_all_that_its_clients_wait_for() {
        let curve = reads(&[(1000, 0.5), (2000, 0.1), (2250, 0.0), (4000, 0.0)]);
        let keeps = |fill_ns| {
            let tempo = Tempo::after(1000.0, fill_ns);
            let load = new(&curve, &cost(), 5000);
            let known = Known { load, used: 2048, seen: 2100, tempo, ..Known::default() };
            known.keeps(3000).expect("a load").point
        };
        assert_eq!(keeps(0.0), 1.0);
        assert!((keeps(10e6) - 0.5).abs() < 0.01, "a thousand hits and two misses: {}", keeps(10e6));
    }
}
