//! Whether what the server says of a tenant holds: mixes of tenants of every kind (`lab/mixes`), as the server decides.

use serde_json::{Map, Value, json};

use super::super::chart::{Group, bars};
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::short;
use crate::mix::{Kept, Mix, decision, play};

/// Three generations of disks with heads, and two that the server's parameters were never looked at on.
pub(super) const DISKS: [&str; 5] = ["cheetah-15k5", "barracuda-7200.9", "nearline", "laptop-5400", "enterprise-10k"];

/// A mix and its description.
macro_rules! mixes {
    ($($name:literal),*) => { [$(($name, include_str!(concat!("../../../mixes/", $name, ".toml")))),*] };
}

pub(super) const MIXES: [(&str, &str); 14] = mixes![
    "bursts",
    "log-scan",
    "logs",
    "mixed",
    "pauses",
    "rates",
    "roomy",
    "sixteen",
    "small",
    "unequal",
    "uniform",
    "writers",
    "zipf-readers",
    "zipf-writers"
];
/// The mixes of a quick run.
pub(super) const QUICK: [&str; 2] = ["small", "uniform"];

pub const EXPERIMENT: Experiment = Experiment {
    name: "insulated-mixes",
    question: "Does what the server calls admitted keep R, and does it show what a tenant keeps?",
    setup: "Fourteen mixes of three to sixteen tenants (`lab/mixes`): Zipf readers and writers whose working sets do \
            not fit, uniform readers, streams, transaction logs, clients that pause or do not wait, loads that come in \
            bursts. R = 0.9, 32 to 512 MiB. 300 s to warm up; what the server says then is compared with the next 120 \
            s. A tenant misses R if it keeps less than R minus a standard error of its mean over the seeds. Live \
            insulation is compared with throughput together / (share x throughput alone) over the counted time, where \
            the server shows it. A quick run has two mixes on one disk.",
    paper: "Argon has no admission for working sets that do not fit, and shows no live figure.",
    run: |context| run(context, 900),
};

pub const RELAXED: Experiment = Experiment {
    name: "insulated-relaxed",
    question: "If R is lower, does what the server calls admitted keep it, too?",
    setup: "The mixes of `insulated-mixes`, with R = 0.8.",
    paper: EXPERIMENT.paper,
    run: |context| run(context, 800),
};

/// Mixes in which streams want memory or disk time that other requests have.
const CONTESTED: [(&str, &str); 3] = mixes!["stream-within", "stream-within-large", "streams"];
/// The mix of a quick run.
const CONTESTED_QUICK: [&str; 1] = ["stream-within"];

pub const STREAMS_WITHIN: Experiment = Experiment {
    name: "insulated-streams-within",
    question: "Do streams keep R beside other requests of their own tenant, and streams of large requests in a small \
               cache, if they are admitted?",
    setup: "Three mixes (`lab/mixes/stream*.toml`) in 32 MiB, R = 0.9. A tenant with half of the disk has a Zipf \
            reader, 4 at a time, and a stream of 64 KiB or of 1 MiB reads at once, beside random reads, 4 at a time. \
            Four streams of 1 MiB reads among eight tenants, beside Zipf readers. As `insulated-mixes`. A quick run \
            has one mix on one disk.",
    paper: "Argon has one load in each tenant.",
    run: |context: &Context| -> Result<Outcome, String> {
        let Scored { all, data, pictures } = score(context, &CONTESTED, &CONTESTED_QUICK, 900)?;
        let claims = vec![
            Claim::new("admitted tenants that keep R", all.precision(), Bound::AtLeast(0.95)),
            Claim::new("tenants that are admitted", all.admitted as f64 / all.runs as f64, Bound::AtLeast(0.25)),
        ];
        Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
    },
};

/// The tenant-runs of a mix on all disks.
#[derive(Default)]
struct Score {
    runs: usize,
    admitted: usize,
    kept: usize,
    shown: usize,
    errors: Vec<f64>,
}

impl Score {
    fn add(&mut self, runs: &[&Kept], r: f64) {
        let kept: Vec<_> = runs.iter().map(|run| run.kept).collect();
        let average = mean(kept.iter().copied());
        let squares: f64 = kept.iter().map(|kept| (kept - average).powi(2)).sum();
        let count = kept.len() as f64;
        let error = if kept.len() > 1 { (squares / (count - 1.0) / count).sqrt() } else { 0.0 };
        for run in runs {
            self.runs += 1;
            let admitted = decision(run.sizing) == "admitted";
            self.admitted += usize::from(admitted);
            self.kept += usize::from(admitted && run.kept >= r - error);
            if let Some(live) = run.live {
                self.shown += 1;
                self.errors.push((live - run.kept).abs());
            }
        }
    }

    fn absorb(&mut self, other: &Score) {
        self.runs += other.runs;
        self.admitted += other.admitted;
        self.kept += other.kept;
        self.shown += other.shown;
        self.errors.extend(&other.errors);
    }

    fn precision(&self) -> f64 {
        self.kept as f64 / self.admitted as f64
    }
}

/// What some mixes show.
struct Scored {
    all: Score,
    data: Map<String, Value>,
    pictures: Vec<Picture>,
}

/// Runs mixes on all disks, with R in thousandths; a quick run has those of `quick` on one disk.
fn score(context: &Context, mixes: &[(&str, &str)], quick: &[&str], r_permille: u32) -> Result<Scored, String> {
    let disks = &DISKS[..if context.quick { 1 } else { DISKS.len() }];
    let disks: Vec<_> = disks.iter().map(|&disk| disk.to_owned()).collect();
    let (mut all, mut data, mut groups) = (Score::default(), Map::new(), Vec::new());
    for (name, text) in mixes.iter().filter(|(name, _)| !context.quick || quick.contains(name)) {
        let mut mix = Mix::parse(text, "".as_ref()).map_err(|error| format!("{name}: {error:#}"))?;
        mix.insulation_permille = r_permille;
        let played = play(&mix, &disks, &context.seeds, &context.progress);
        let played = played.map_err(|error| format!("{name}: {error:#}"))?;
        let r = f64::from(r_permille) / 1000.0;
        let mut score = Score::default();
        for on in &played {
            for (at, tenant) in mix.tenants.iter().enumerate() {
                let runs: Vec<_> = on.seeds.iter().map(|(_, tenants)| &tenants[at]).collect();
                score.add(&runs, r);
                let label = format!("{name}, {}, {}", short(&on.disk), tenant.name);
                let kept: Vec<_> = runs.iter().map(|run| run.kept).collect();
                let live: Vec<_> = runs.iter().map(|run| run.live).collect();
                let decisions: Vec<_> = runs.iter().map(|run| decision(run.sizing)).collect();
                data.insert(label, json!({ "kept": kept, "live": live, "decision": decisions }));
            }
        }
        let parts = [score.admitted, score.kept].map(|count| count as f64 / score.runs as f64);
        groups.push(Group { label: (*name).into(), bars: parts.into() });
        all.absorb(&score);
    }
    let svg = bars("part of all tenants", &["admitted", "admitted and keeps R"], &groups, None)?;
    let caption = "How many tenants of each mix are admitted, and how many of them keep R, on all disks.".into();
    let pictures = vec![Picture { name: "admitted".into(), caption, svg }];
    Ok(Scored { all, data, pictures })
}

fn run(context: &Context, r_permille: u32) -> Result<Outcome, String> {
    let Scored { all, data, pictures } = score(context, &MIXES, &QUICK, r_permille)?;
    let count = all.errors.len().max(1) as f64;
    let largest = all.errors.iter().copied().fold(0.0, f64::max);
    let claims = vec![
        Claim::new("admitted tenants that keep R", all.precision(), Bound::AtLeast(0.95)),
        Claim::new("tenants that are admitted", all.admitted as f64 / all.runs as f64, Bound::AtLeast(0.25)),
        Claim::new("live insulation: mean error", all.errors.iter().sum::<f64>() / count, Bound::AtMost(0.05)),
        Claim::new("live insulation: largest error", largest, Bound::AtMost(0.1)),
        Claim::new("tenant-time without live insulation", 1.0 - all.shown as f64 / all.runs as f64, Bound::AtMost(0.1)),
    ];
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_misses_r_by_less_than_its_error_keeps_it() {
        let runs = [0.80, 0.96].map(|kept| Kept {
            alone: 1.0,
            together: kept,
            kept,
            sizing: None,
            admitted: 0.0,
            live: Some(kept + 0.04),
            live_own_cache: Some(kept),
            p99_ms: 1.0,
        });
        let mut score = Score::default();
        score.add(&[&runs[0], &runs[1]], 0.9);
        assert_eq!((score.runs, score.admitted, score.shown), (2, 0, 2), "no decision is no admission");
        assert!(score.errors.iter().all(|error| (error - 0.04).abs() < 1e-9));
        assert!(MIXES.iter().chain(&CONTESTED).all(|(_, text)| Mix::parse(text, "".as_ref()).is_ok()));
    }
}
