//! How long requests wait in the peaks of a mail server.

use engine::control::WriteCache;
use engine::offload::Settings;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::super::chart::{self, Group};
use super::super::guarantees::plot::{Panel, panels};
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::episodes::{Case, Episode, Policy, Seen, VOLUMES, episodes};

pub const PEAKS: Experiment = Experiment {
    name: "offload-mail",
    question: "How long do requests wait in the peaks of a mail server?",
    setup: "Three volumes of 120 GB on three disks, each with stores on the two others; 8 KiB, anywhere; the paper's \
            three episodes: requests, part of reads, requests of the peak minute and 90 % of these on one volume, the \
            rest spread evenly over minutes and volumes. Arrivals are independent, and all rates of an episode are \
            scaled until the mean response without off-load is 1.5, 0.06 and 0.04 s. Without caches; all writes \
            off-loaded and never brought home (`always`), and the default settings (`peak`). A quick run has the first \
            12 minutes.",
    paper: "Everest, section 4.1, tables 1 and 2, figures 5 and 6: 1.4 to 70 times shorter means.",
    run,
};

const POLICIES: [(&str, Policy); 3] =
    [("baseline", Policy::Baseline), ("always", Policy::Always), ("peak", Policy::Peak(Settings::DEFAULT))];

/// By episode, policy and seed.
pub type All = Vec<Vec<Vec<Seen>>>;

/// Episodes and the factor of their rates, by seed.
pub struct Scaled {
    pub episodes: Vec<Episode>,
    pub scales: Vec<Vec<f64>>,
}

impl Scaled {
    /// For the first of the seeds.
    pub fn new(context: &Context, seeds: usize) -> Result<Scaled, String> {
        let (episodes, seeds) = (episodes(context.quick), &context.seeds[..seeds]);
        let work: Vec<(usize, u64)> =
            (0..episodes.len()).flat_map(|episode| seeds.iter().map(move |&seed| (episode, seed))).collect();
        let all = context.parallel(&work, |&(episode, seed)| episodes[episode].scale(seed));
        let all: Vec<f64> = all.into_iter().map(|found| Ok(found?.0)).collect::<Result<_, String>>()?;
        let scales = all.chunks(seeds.len()).map(<[f64]>::to_vec).collect();
        Ok(Scaled { episodes, scales })
    }

    /// Runs all cases.
    pub fn measure(&self, context: &Context, cases: &[Case]) -> Result<All, String> {
        let (seeds, count) = (self.scales[0].len(), self.episodes.len());
        let work: Vec<(usize, usize, usize)> = (0..count)
            .flat_map(|episode| {
                (0..cases.len()).flat_map(move |case| (0..seeds).map(move |seed| (episode, case, seed)))
            })
            .collect();
        let seen = context.parallel(&work, |&(episode, case, seed)| {
            self.episodes[episode].measure(&cases[case], self.scales[episode][seed], context.seeds[seed])
        });
        let mut seen = seen.into_iter();
        let mut some = |count: usize| seen.by_ref().take(count).collect::<Result<Vec<Seen>, String>>();
        (0..count).map(|_| (0..cases.len()).map(|_| some(seeds)).collect()).collect()
    }
}

/// How many times shorter a mean over seeds is.
fn gain(from: &[Seen], to: &[Seen], of: impl Fn(&Seen) -> f64) -> f64 {
    mean(from.iter().map(&of)) / mean(to.iter().map(&of))
}

fn claims(all: &All) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (episode, least) in [(0, 20.0), (2, 1.4)] {
        let [from, to] = [&all[episode][0], &all[episode][2]];
        let mut claim = |what: &str, of: &dyn Fn(&Seen) -> f64| {
            let name = format!("episode {}, {what}: times shorter", episode + 1);
            claims.push(Claim::new(name, gain(from, to, of), Bound::AtLeast(least)));
        };
        claim("mean", &Seen::mean_s);
        claim("worst minute", &Seen::worst_minute_s);
    }
    let [from, to] = [&all[1][0], &all[1][2]];
    let worst =
        (0..VOLUMES).map(|volume| gain(from, to, |seen| seen.volume_mean_s(volume))).fold(f64::INFINITY, f64::min);
    claims.push(Claim::new("episode 2, the volume that gains least: times shorter", worst, Bound::AtLeast(1.0)));
    let left = all.iter().flat_map(|policies| &policies[2]).map(|seen| seen.left).max().unwrap_or(0);
    claims.push(Claim::new("bytes that are off-loaded at the end, most", left as f64, Bound::AtMost(0.0)));
    claims
}

/// Means of reads or of writes of all volumes, by episode, seconds.
fn means(all: &All, write: usize) -> Result<Picture, String> {
    let of = |seen: &Seen| {
        let sum = |at: &[Histogram<u64>; 2]| (at[write].mean() * at[write].len() as f64, at[write].len());
        let (sum, count) = seen.volumes.iter().map(sum).fold((0.0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        sum / count as f64 / 1e6
    };
    let groups: Vec<Group> = all
        .iter()
        .zip(1..)
        .map(|(policies, episode)| Group {
            label: format!("episode {episode}"),
            bars: policies.iter().map(|seen| mean(seen.iter().map(of)).log10()).collect(),
        })
        .collect();
    let names = POLICIES.map(|(name, _)| name);
    let what = ["reads", "writes"][write];
    let svg = chart::bars(&format!("{what}: log10 of mean milliseconds"), &names, &groups, None)?;
    let caption = format!("Mean response of {what} (Everest, figure 5).");
    Ok(Picture { name: what.into(), caption, svg })
}

/// Off-loaded bytes over time, of one seed.
fn over_time(all: &All) -> Result<Picture, String> {
    let panel = |episode: usize, policy: usize| Panel {
        title: format!("episode {}, {}", episode + 1, POLICIES[policy].0),
        points: all[episode][policy][0].away.iter().map(|&(minute, bytes)| (minute, bytes as f64 / 1e6)).collect(),
        joined: true,
    };
    let shown: Vec<Panel> = (0..all.len()).flat_map(|episode| [panel(episode, 1), panel(episode, 2)]).collect();
    let svg = panels(("minutes", "MB off-loaded"), &shown, 2, None)?;
    let caption = "What is off-loaded over time (Everest, figure 6).".into();
    Ok(Picture { name: "away".into(), caption, svg })
}

fn run(context: &Context) -> Result<Outcome, String> {
    let scaled = Scaled::new(context, context.seeds.len())?;
    let cases = |write_cache| POLICIES.map(|(_, policy)| Case { policy, write_cache });
    let all = scaled.measure(context, &cases(WriteCache::None))?;
    let cached = scaled.measure(context, &cases(WriteCache::Volatile))?;
    let of_seed = |all: &All, episode: usize| -> Value {
        POLICIES
            .iter()
            .zip(&all[episode])
            .map(|((name, _), seen)| (*name, seen.iter().map(Seen::data).collect::<Value>()))
            .collect()
    };
    let of_episode = |at: usize| {
        json!({
            "scale": scaled.scales[at],
            "cacheless": of_seed(&all, at),
            "write_back": of_seed(&cached, at),
        })
    };
    let data: Value = (0..scaled.episodes.len()).map(of_episode).collect();
    let pictures = vec![means(&all, 0)?, means(&all, 1)?, over_time(&all)?];
    Ok(Outcome { claims: claims(&all), data, pictures, ..Outcome::default() })
}
