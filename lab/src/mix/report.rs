//! The result of a mix, as JSON, as a table with a picture, and as SVG.

use engine::control::Sizing;
use serde::Serialize;

use super::file::Mix;
use super::play::{Kept, Played, decision, most_frequent};
use crate::experiment::chart::{Group, bars};
use crate::experiment::stand::mean;

/// Columns of the picture of what a tenant keeps.
const COLUMNS: usize = 24;
/// What fills the picture; more is cut.
const KEPT_MAX: f64 = 1.5;

/// The result of a mix.
#[derive(Serialize, Debug)]
pub struct Report {
    /// R.
    r: f64,
    disks: Vec<OnDisk>,
}

#[derive(Serialize, Debug)]
struct OnDisk {
    disk: String,
    tenants: Vec<Line>,
}

/// What a tenant gets.
#[derive(Serialize, Debug)]
struct Figures {
    /// Bytes per second.
    alone: f64,
    together: f64,
    kept: f64,
    /// R as the server names it at the end of the warm-up: the estimate, and the ends of its interval.
    named: Option<f64>,
    named_low: Option<f64>,
    named_high: Option<f64>,
    live: Option<f64>,
    live_own_cache: Option<f64>,
    /// The decision at the end of the warm-up.
    decision: &'static str,
    /// The part of the counted time for which it was admitted.
    admitted: f64,
    p99_ms: f64,
}

impl Figures {
    fn new(run: &Kept) -> Figures {
        let named = |of: fn(&Sizing) -> Option<u32>| {
            run.sizing.as_ref().and_then(of).map(|permille| f64::from(permille) / 1000.0)
        };
        Figures {
            alone: run.alone,
            together: run.together,
            kept: run.kept,
            named: named(|sizing| sizing.best_permille),
            named_low: named(|sizing| sizing.low_permille),
            named_high: named(|sizing| sizing.high_permille),
            live: run.live,
            live_own_cache: run.live_own_cache,
            decision: decision(run.sizing),
            admitted: run.admitted,
            p99_ms: run.p99_ms,
        }
    }

    /// Means, of what is known; the decision of most runs.
    fn mean(runs: &[Single]) -> Figures {
        let of = |value: fn(&Figures) -> f64| mean(runs.iter().map(|run| value(&run.figures)));
        let known = |value: fn(&Figures) -> Option<f64>| {
            let values: Vec<_> = runs.iter().filter_map(|run| value(&run.figures)).collect();
            (!values.is_empty()).then(|| mean(values))
        };
        Figures {
            alone: of(|run| run.alone),
            together: of(|run| run.together),
            kept: of(|run| run.kept),
            named: known(|run| run.named),
            named_low: known(|run| run.named_low),
            named_high: known(|run| run.named_high),
            live: known(|run| run.live),
            live_own_cache: known(|run| run.live_own_cache),
            decision: most_frequent(runs.iter().map(|run| run.figures.decision)),
            admitted: of(|run| run.admitted),
            p99_ms: of(|run| run.p99_ms),
        }
    }
}

/// A tenant: means over the seeds.
#[derive(Serialize, Debug)]
struct Line {
    name: String,
    share: f64,
    #[serde(flatten)]
    figures: Figures,
    /// The standard error of `kept`; `None` with one seed.
    kept_error: Option<f64>,
    runs: Vec<Single>,
}

/// A tenant in the run of one seed.
#[derive(Serialize, Debug)]
struct Single {
    seed: u64,
    #[serde(flatten)]
    figures: Figures,
}

/// The standard error of the mean.
fn error(values: &[f64]) -> Option<f64> {
    let (count, mean) = (values.len() as f64, mean(values.iter().copied()));
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt())
}

/// The report of the runs of a mix.
pub fn report(mix: &Mix, played: &[Played]) -> Report {
    let of_disk = |on: &Played| {
        let line = |(at, tenant): (usize, &super::file::Tenant)| {
            let single = |(seed, kept): &(u64, Vec<Kept>)| Single { seed: *seed, figures: Figures::new(&kept[at]) };
            let runs: Vec<_> = on.seeds.iter().map(single).collect();
            Line {
                name: tenant.name.clone(),
                share: tenant.share(),
                figures: Figures::mean(&runs),
                kept_error: error(&runs.iter().map(|run| run.figures.kept).collect::<Vec<_>>()),
                runs,
            }
        };
        OnDisk { disk: on.disk.clone(), tenants: mix.tenants.iter().enumerate().map(line).collect() }
    };
    Report { r: f64::from(mix.insulation_permille) / 1000.0, disks: played.iter().map(of_disk).collect() }
}

/// Two digits after the point, or a dash.
fn two(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}"))
}

/// A bar for what a tenant keeps, with a mark at R.
fn bar(kept: f64, r: f64) -> String {
    let column = |value: f64| (value / KEPT_MAX * COLUMNS as f64).round() as usize;
    let cell = |at: usize| match (at == column(r), at < column(kept)) {
        (true, true) => '┃',
        (true, false) => '│',
        (false, true) => '█',
        (false, false) => ' ',
    };
    (0..COLUMNS).map(cell).collect::<String>().trim_end().into()
}

impl Report {
    /// A table for each disk.
    pub fn text(&self) -> String {
        let widest = self.disks.iter().flat_map(|on| &on.tenants).map(|line| line.name.chars().count()).max();
        let width = widest.unwrap_or(0).max("tenant".len());
        let mut text = String::new();
        for on in &self.disks {
            text += &format!("{}, R = {}\n", on.disk, self.r);
            text += &format!(
                "  {:width$}  share  alone MB/s  together  p99 ms  decision     named            disk  live  kept\n",
                "tenant"
            );
            for Line { name, share, figures, .. } in &on.tenants {
                let named = match (figures.named_low, figures.named_high) {
                    (Some(low), Some(high)) => format!("{} [{low:.2} {high:.2}]", two(figures.named)),
                    _ => two(figures.named),
                };
                text += &format!(
                    "  {:width$}  {:5.3}  {:10.3}  {:8.3}  {:6.0}  {:11}  {named:16} {:>4}  {:>4}  {} {}\n",
                    name,
                    share,
                    figures.alone / 1e6,
                    figures.together / 1e6,
                    figures.p99_ms,
                    figures.decision,
                    two(figures.live_own_cache),
                    two(figures.live),
                    two(Some(figures.kept).filter(|kept| kept.is_finite())),
                    bar(figures.kept, self.r),
                );
            }
        }
        text
    }

    /// A chart of what each tenant keeps, and of what the server names and measures.
    pub fn svg(&self) -> Result<String, String> {
        let groups = self.disks.iter().flat_map(|on| {
            on.tenants.iter().map(|line| {
                let label =
                    if self.disks.len() > 1 { format!("{}: {}", on.disk, line.name) } else { line.name.clone() };
                let Figures { kept, named, live, .. } = line.figures;
                let values = [Some(kept), named, live];
                Group { label, bars: values.map(|value| value.unwrap_or(f64::NAN)).into() }
            })
        });
        let groups: Vec<_> = groups.collect();
        bars("throughput / (share x alone)", &["kept", "named", "live"], &groups, Some((self.r, "R")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_r_and_what_is_kept() {
        assert_eq!(bar(0.75, 0.9), "████████████  │");
        assert_eq!(bar(1.0, 0.5), "████████┃███████");
        assert_eq!(bar(9.0, 2.0).chars().count(), COLUMNS);
    }

    #[test]
    fn an_error_needs_two_seeds() {
        assert_eq!(error(&[1.0]), None);
        assert_eq!(error(&[1.0, 3.0]), Some(1.0));
    }
}
