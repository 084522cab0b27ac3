//! What is to be reached: latency, utilities, or targets of a TOML file.

use std::collections::BTreeMap;
use std::path::Path;

use engine::allocate::{Goal, Utility};
use serde::Deserialize;

use super::Failure;
use crate::cli::arguments::{AllocateWhat, GoalName};

/// What is to be reached, by tenant.
pub(super) enum Goals {
    Latency,
    Utility(BTreeMap<String, Utility>, String),
    Target(BTreeMap<String, f64>, String),
}

/// A tenant in the file. Both kinds may be in the same file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Points of latency and utility.
    #[serde(default)]
    utility: Option<Vec<(String, f64)>>,
    #[serde(default)]
    target: Option<String>,
}

impl Goals {
    /// Reads the file that the goal needs.
    pub(super) fn read(what: &AllocateWhat) -> Result<Goals, Failure> {
        let unused = |file: &Option<std::path::PathBuf>, option: &str, goal: GoalName| match file {
            Some(_) if what.goal != goal => Err(Failure::usage(
                format!("{option} has no effect with --goal {}", what.goal.name()),
                Some(format!("leave it out, or use --goal {}", goal.name())),
            )),
            _ => Ok(()),
        };
        unused(&what.utility, "--utility", GoalName::Utility)?;
        unused(&what.targets, "--targets", GoalName::Target)?;
        match (what.goal, &what.utility, &what.targets) {
            (GoalName::Utility, Some(path), _) => Goals::utilities(path),
            (GoalName::Target, _, Some(path)) => Goals::targets(path),
            _ => Ok(Goals::Latency),
        }
    }

    fn utilities(path: &Path) -> Result<Goals, Failure> {
        let mut utilities = BTreeMap::new();
        for (tenant, entry) in entries(path)? {
            let wrong = |why: String| in_file(path, &format!("tenant '{tenant}': {why}"));
            let Some(points) = entry.utility else { continue };
            let point = |(latency, utility): (String, f64)| match utility.is_finite() {
                true => nanoseconds(&latency).map(|latency| (latency, utility)),
                false => Err(format!("the utility {utility} is no number")),
            };
            let points: Vec<_> = points.into_iter().map(point).collect::<Result<_, _>>().map_err(wrong)?;
            let utility = Utility::new(points).map_err(|why| wrong(why.to_string()))?;
            utilities.insert(tenant, utility);
        }
        Ok(Goals::Utility(utilities, path.display().to_string()))
    }

    fn targets(path: &Path) -> Result<Goals, Failure> {
        let mut targets = BTreeMap::new();
        for (tenant, entry) in entries(path)? {
            let Some(target) = entry.target else { continue };
            let target = nanoseconds(&target).map_err(|why| in_file(path, &format!("tenant '{tenant}': {why}")))?;
            targets.insert(tenant, target);
        }
        Ok(Goals::Target(targets, path.display().to_string()))
    }

    /// The goal for the tenants that are planned. Others are not planned now, because they are idle, for example.
    pub(super) fn of(&self, names: &[&str], others: &[&str]) -> Result<Goal, Failure> {
        match self {
            Goals::Latency => Ok(Goal::Latency),
            Goals::Utility(all, file) => Ok(Goal::Utility(pick(all, names, others, (file, "utility"))?)),
            Goals::Target(all, file) => Ok(Goal::Target(pick(all, names, others, (file, "target"))?)),
        }
    }
}

/// The values of these tenants. A name that is none, nor one of the others, is an error: it may be a typing error.
fn pick<T: Clone>(
    all: &BTreeMap<String, T>,
    names: &[&str],
    others: &[&str],
    (file, what): (&str, &str),
) -> Result<Vec<T>, Failure> {
    if let Some(unknown) = all.keys().map(String::as_str).find(|name| !names.contains(name) && !others.contains(name)) {
        let hint = format!("the tenants: {}", names.iter().chain(others).copied().collect::<Vec<_>>().join(", "));
        return Err(Failure::usage(format!("{file}: there is no tenant '{unknown}' to plan for"), Some(hint)));
    }
    let value = |name: &&str| {
        let missing = || {
            let hint = format!("add a section [{name}] with {what} = …");
            Failure::usage(format!("{file}: tenant '{name}' has no {what}"), Some(hint))
        };
        all.get(*name).cloned().ok_or_else(missing)
    };
    names.iter().map(value).collect()
}

fn in_file(path: &Path, why: &str) -> Failure {
    Failure::usage(format!("{}: {why}", path.display()), None)
}

fn entries(path: &Path) -> Result<BTreeMap<String, Entry>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| in_file(path, &error.to_string()))?;
    toml::from_str(&text).map_err(|error| in_file(path, error.message()))
}

/// A latency such as 200us, 5ms or 1.5s.
fn nanoseconds(text: &str) -> Result<f64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let scale = match &text[split..] {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("'{text}' is not a latency: write it as 200us, 5ms or 1.5s")),
    };
    let number = text[..split].parse::<f64>().ok().filter(|number| *number >= 0.0);
    number.map(|number| number * scale).ok_or_else(|| format!("'{text}' is not a latency: write it as 200us or 5ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_a_unit() {
        assert_eq!((nanoseconds("200us"), nanoseconds("1.5s")), (Ok(2e5), Ok(1.5e9)));
        for wrong in ["5", "ms", "5 ms", "-1ms", "1h"] {
            assert!(nanoseconds(wrong).unwrap_err().contains("is not a latency"), "{wrong}");
        }
    }
}
