//! `aerogel-lab list`, `run`, `report` and `stage`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use engine::units::SECOND;

use super::{ALL, Claim, Context, Experiment, Outcome, index, insulation, page, progress};

/// How thorough.
#[derive(Args, Debug, Clone)]
pub struct Effort {
    /// Short runs with one seed, for a first impression
    #[arg(long)]
    pub quick: bool,
    /// Number of seeds [default: 10, or 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Directory of real traces; experiments whose traces are missing are skipped
    #[arg(long, value_name = "DIR", default_value = "../shared/data/traces")]
    pub traces: PathBuf,
}

impl Effort {
    fn context(&self, name: &str) -> Context {
        let count = self.seeds.unwrap_or(if self.quick { 1 } else { 10 });
        let seeds = (0..count).map(|i| self.seed.wrapping_add(i)).collect();
        Context { quick: self.quick, seeds, traces: self.traces.clone(), stage: None, progress: progress(name) }
    }
}

/// Runs experiments, prints their claims, and keeps results and pictures.
#[derive(Args, Debug)]
pub struct Run {
    /// Experiments, as `aerogel-lab list` names them, or the first words of their names [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// An experiment that is left out. May be repeated
    #[arg(long, value_name = "NAME")]
    without: Vec<String>,
    #[command(flatten)]
    effort: Effort,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Compare with this index of claims (docs/claims-lab.md); a missing or different figure is an error
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Update the figures of these experiments in this index of claims instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "quick"])]
    write: Option<PathBuf>,
    /// Directory for results (NAME.json) and pictures (NAME-*.svg)
    #[arg(long, value_name = "DIR", default_value = "target/lab")]
    out: PathBuf,
}

/// Runs experiments and writes a report, one HTML page.
#[derive(Args, Debug)]
pub struct Report {
    /// Experiments [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    effort: Effort,
    /// The report: one self-contained HTML file
    #[arg(long, value_name = "FILE", default_value = "target/lab/report.html")]
    out: PathBuf,
}

/// Exports a mix of tenants for a real server: the requests of each client, as logs that fio replays, and the
/// throughput of each tenant in virtual time
#[derive(Args, Debug)]
pub struct Stage {
    /// The experiment
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    effort: Effort,
    /// The disk
    #[arg(long, value_name = "PRESET", default_value = "cheetah-15k5")]
    disk: String,
    /// Warm-up, s [default: as in the experiment]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    warm_up: Option<u64>,
    /// Measured time after the warm-up, s
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    counted: u64,
    /// Directory for mix.json and the logs
    #[arg(long, value_name = "DIR", default_value = "target/lab/stage")]
    out: PathBuf,
}

/// Prints the list of experiments.
pub fn list() -> ExitCode {
    for experiment in ALL {
        println!("{:24} {}", experiment.name, experiment.question);
    }
    ExitCode::SUCCESS
}

/// The named experiments, or all.
fn named(names: &[String]) -> Result<Vec<&'static Experiment>, String> {
    if names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    let mut found = Vec::new();
    for name in names {
        let is_part =
            |of: &str| of.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        let exactly = ALL.iter().filter(|experiment| experiment.name == name);
        let before = found.len();
        found.extend(exactly);
        if found.len() == before {
            found.extend(ALL.iter().filter(|experiment| is_part(experiment.name)));
        }
        if found.len() == before {
            let known: Vec<_> = ALL.iter().map(|experiment| experiment.name).collect();
            return Err(format!("there is no experiment '{name}': {}", known.join(", ")));
        }
    }
    Ok(found)
}

/// Runs one experiment, with a progress bar.
pub fn perform(experiment: &Experiment, effort: &Effort) -> Result<Outcome, String> {
    let context = effort.context(experiment.name);
    let outcome = (experiment.run)(&context);
    context.progress.finish_and_clear();
    outcome.map_err(|error| format!("{}: {error}", experiment.name))
}

impl Run {
    /// The exit status is 1 if a claim fails, 2 if something cannot be done.
    pub fn run(&self) -> ExitCode {
        finish(self.all())
    }

    fn all(&self) -> Result<bool, String> {
        let (mut good, mut results) = (true, serde_json::Map::new());
        let (mut experiments, mut found, mut looked) = (named(&self.names)?, Vec::new(), Vec::new());
        if !self.without.is_empty() {
            let without: Vec<&str> = named(&self.without)?.iter().map(|experiment| experiment.name).collect();
            experiments.retain(|experiment| !without.contains(&experiment.name));
        }
        for experiment in experiments {
            let outcome = perform(experiment, &self.effort)?;
            keep(&self.out, experiment, &outcome)?;
            if let Some(why) = &outcome.left_out {
                if self.write.is_some() {
                    return Err(format!("{} cannot be recorded: {why}", experiment.name));
                }
                eprintln!("{}: left out: {why}", experiment.name);
                continue;
            }
            good &= outcome.claims.iter().all(|claim| claim.holds);
            if self.json {
                results.insert(experiment.name.into(), serde_json::to_value(&outcome).map_err(|e| e.to_string())?);
            } else {
                println!("{}: {}", experiment.name, experiment.question);
                outcome.claims.iter().for_each(|claim| println!("  {}", line(claim)));
            }
            found.push((experiment.name, outcome.claims));
            if self.write.is_some() {
                let quick = Effort { quick: true, seeds: None, ..self.effort.clone() };
                looked.push((experiment.name, perform(experiment, &quick)?.claims));
            }
        }
        if let Some(file) = &self.check {
            index::check(file, &found)?;
        }
        if let Some(file) = &self.write {
            index::write(file, &found, &looked)?;
        }
        // With an index, claims that fail are on record and not an error of this run.
        good |= self.check.is_some() || self.write.is_some();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&results).map_err(|e| e.to_string())?);
        } else {
            println!("results and pictures: {}", self.out.display());
        }
        Ok(good)
    }
}

impl Stage {
    /// The exit status is 2 if something cannot be done.
    pub fn run(&self) -> ExitCode {
        finish(self.all().map(|()| true))
    }

    fn all(&self) -> Result<(), String> {
        let mix = insulation::MIXES.iter().find(|mix| mix.name == self.name).ok_or_else(|| {
            let known: Vec<_> = insulation::MIXES.iter().map(|mix| mix.name).collect();
            format!("'{}' is no mix that can be written down: {}", self.name, known.join(", "))
        })?;
        std::fs::create_dir_all(&self.out).map_err(|error| format!("{}: {error}", self.out.display()))?;
        let mut context = self.effort.context(&self.name);
        let (disk, directory) = (self.disk.clone(), self.out.clone());
        let (warm_up_ns, counted_ns) = (self.warm_up.map(|seconds| seconds * SECOND), self.counted * SECOND);
        context.stage = Some(insulation::stage::Stage { disk, directory, warm_up_ns, counted_ns });
        let outcome = (mix.run)(&context);
        context.progress.finish_and_clear();
        match outcome?.left_out {
            Some(why) => Err(format!("{}: {why}", self.name)),
            None => {
                println!("{}", self.out.join("mix.json").display());
                Ok(())
            }
        }
    }
}

impl Report {
    /// The exit status is 2 if something cannot be done. Which claims hold is on the page.
    pub fn run(&self) -> ExitCode {
        finish(self.all())
    }

    fn all(&self) -> Result<bool, String> {
        let experiments = named(&self.names)?;
        let outcomes = experiments.iter().map(|of| perform(of, &self.effort)).collect::<Result<Vec<_>, _>>()?;
        let effort = if self.effort.quick { "a quick look: short runs, one seed" } else { "full runs" };
        let page = page::page(&experiments, &outcomes, effort);
        let directory = self.out.parent().unwrap_or(Path::new(""));
        write(directory, &self.out, page.as_bytes())?;
        println!("{}", self.out.display());
        Ok(true)
    }
}

fn finish(result: Result<bool, String>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn line(claim: &Claim) -> String {
    let verdict = if claim.holds { "holds" } else { "FAILS" };
    format!("{verdict}  {}  {} ({})", claim.shown(), claim.name, claim.bound)
}

fn keep(directory: &Path, experiment: &Experiment, outcome: &Outcome) -> Result<(), String> {
    let json = serde_json::to_vec_pretty(outcome).map_err(|error| error.to_string())?;
    write(directory, &directory.join(format!("{}.json", experiment.name)), &json)?;
    for picture in &outcome.pictures {
        let file = directory.join(format!("{}-{}.svg", experiment.name, picture.name));
        write(directory, &file, picture.svg.as_bytes())?;
    }
    Ok(())
}

fn write(directory: &Path, file: &Path, bytes: &[u8]) -> Result<(), String> {
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(file, bytes));
    written.map_err(|error| format!("{} cannot be written: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_those_that_there_are() {
        let error = named(&["sharing-strea".into()]).err().unwrap();
        assert!(error.contains("'sharing-strea'") && ALL.iter().all(|of| error.contains(of.name)), "{error}");
        assert_eq!(named(&[]).unwrap().len(), ALL.len());
    }
}
