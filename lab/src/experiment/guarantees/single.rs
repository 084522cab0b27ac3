//! `aerogel-lab set`: one set of the experiment under one policy, for a closer look at what its JSON names: the longest
//! response, and windows that were avoidable.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use engine::disk::policy::Slice;
use engine::units::SECOND;
use serde_json::{Value, json};

use super::super::{Context, progress};
use super::detail::{self, seconds};
use super::play::{Cache, Set, Shared};
use super::policies::{ALL, OURS, Policy};
use super::workloads::COUNT;
use super::{Cast, Extent, SIZES, judge, rows};

/// Runs one set of workloads of the experiment `guarantees` under one policy, and prints as JSON its windows, its
/// longest response time where demand fits, and its slices, if they are asked for
#[derive(Args, Debug)]
pub struct Single {
    /// The workloads, as `set` of the experiment's results names them, as in 0,3,7
    #[arg(value_name = "NUMBER,…", value_delimiter = ',', required_unless_present = "sizes")]
    members: Vec<usize>,
    /// All sets of the experiment of these numbers of workloads instead, as rows of its results
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with_all = ["members", "mixed", "length", "from"])]
    sizes: Vec<usize>,
    /// The policy, as the experiment's results name it
    #[arg(long, value_name = "POLICY", default_value = OURS)]
    policy: String,
    /// With cache, as in `guarantees-cached`
    #[arg(long)]
    cached: bool,
    /// Guarantees for every second workload only, as in `guarantees-mixed`
    #[arg(long)]
    mixed: bool,
    /// Short dedicated runs, and ten described workloads, as with `run --quick`
    #[arg(long)]
    quick: bool,
    /// The run's seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// The length of the run, s [default: as in the experiment]
    #[arg(long, value_name = "SECONDS")]
    length: Option<u64>,
    /// Print the slices from this moment on, s
    #[arg(long, value_name = "SECONDS")]
    from: Option<u64>,
    /// Print the slices until this moment, s
    #[arg(long, value_name = "SECONDS", requires = "from")]
    until: Option<u64>,
    /// Directory of real traces; without them the workloads are described ones
    #[arg(long, value_name = "DIR", default_value = "../shared/data/traces")]
    traces: PathBuf,
}

impl Single {
    /// The exit status is 2 if something cannot be done.
    pub fn run(&self) -> ExitCode {
        match self.all() {
            Ok(found) => {
                println!("{found:#}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::from(2)
            }
        }
    }

    /// The policy, if the sets exist.
    fn checked(&self) -> Result<&'static Policy, String> {
        let members = &self.members;
        let is_set = SIZES.contains(&members.len()) && members.is_sorted_by(|a, b| a < b);
        if self.sizes.is_empty() && !(is_set && members.last() < Some(&COUNT)) {
            return Err(format!("a set has 2 to {COUNT} numbers from 0 to {}, in ascending order", COUNT - 1));
        }
        if !self.sizes.iter().all(|size| SIZES.contains(size)) {
            return Err(format!("--sizes: a set has 2 to {COUNT} workloads"));
        }
        ALL.iter().find(|policy| policy.name == self.policy).ok_or_else(|| {
            let known: Vec<_> = ALL.iter().map(|policy| policy.name).collect();
            format!("there is no policy '{}': {}", self.policy, known.join(", "))
        })
    }

    fn all(&self) -> Result<Value, String> {
        let policy = self.checked()?;
        let extent = Extent::new(self.quick);
        let (seeds, progress) = (vec![self.seed], progress("set"));
        let context = Context { quick: self.quick, seeds, traces: self.traces.clone(), stage: None, progress };
        let cache = if self.cached { Cache::EACH } else { Cache::Smallest };
        let found = if self.sizes.is_empty() {
            let cast = Cast::of(&context, cache, extent.dedicated_ns(), &self.members)?;
            self.one(&cast, &extent, policy)?
        } else {
            let cast = Cast::new(&context, cache, extent.dedicated_ns())?;
            let extent = Extent { sizes: self.sizes.clone(), ..extent };
            judge::data(&cast, &rows(&context, &extent, &cast, std::slice::from_ref(policy), false)?)
        };
        context.progress.finish_and_clear();
        Ok(found)
    }

    /// One set.
    fn one(&self, cast: &Cast, extent: &Extent, policy: &Policy) -> Result<Value, String> {
        let (members, size) = (&self.members[..], self.members.len());
        let levels = cast.levels(size);
        let end_ns = self.length.map_or(extent.end_ns(size), |length| length * SECOND);
        let set = Set { cast, levels: &levels, members, is_mixed: self.mixed, end_ns, seed: self.seed };
        let at = |seconds: Option<u64>| seconds.map_or(end_ns, |seconds| (seconds * SECOND).min(end_ns));
        let (shared, slices) = set.watch(policy, at(self.from)..at(self.until))?;
        Ok(json!({
            "policy": policy.name,
            "members": (0..size).map(|at| member(&set, &shared, at)).collect::<Vec<_>>(),
            "longest_response": shared.responses.longest.map(|done| detail::response(cast, &shared, &done)),
            "avoidable_windows": detail::windows(cast, &shared),
            "slices": slices.iter().map(slice).collect::<Vec<_>>(),
        }))
    }
}

/// What a member got.
fn member(set: &Set<'_>, shared: &Shared, member: usize) -> Value {
    let (at, counts) = (shared.members[member], &shared.counts[member]);
    let level = &set.levels[at];
    json!({
        "workload": set.cast.workloads[at].name,
        "bytes_per_second": set.has_guarantee(member).then_some(level.bytes_per_s),
        "windows": counts.windows, "no_demand": counts.no_demand, "fundamental": counts.fundamental,
        "avoidable": counts.avoidable, "marginal": counts.marginal, "insulation": shared.insulation[member],
        "windows_s": shared.windows[member].iter().map(|&ns| seconds(ns)).collect::<Vec<_>>(),
    })
}

fn slice(slice: &Slice) -> Value {
    json!({
        "member": slice.tenant.0, "begun_s": seconds(slice.begun), "ended_s": seconds(slice.ended),
        "useful_s": seconds(slice.useful_ns),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        single: Single,
    }

    fn checked(words: &str) -> Result<&'static str, String> {
        let command = Command::try_parse_from(words.split(' ')).map_err(|error| error.to_string())?;
        command.single.checked().map(|policy| policy.name)
    }

    #[test]
    fn sets_and_policies_that_do_not_exist_are_refused() {
        assert_eq!(checked("set 0,3,9"), Ok(OURS));
        assert_eq!(checked("set --sizes 2,10 --policy pclock"), Ok("pclock"));
        for wrong in
            ["set 3", "set 3,0", "set 3,3", "set 3,10", "set", "set --sizes 1", "set --sizes 11", "set 0,1 --sizes 2"]
        {
            assert!(checked(wrong).is_err(), "{wrong}");
        }
        assert!(checked("set 0,3 --policy fair").unwrap_err().contains("token-bucket:1.2"));
    }
}
