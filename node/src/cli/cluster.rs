//! `aerogel cluster`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use engine::cluster::file::{Description, File};
use engine::cluster::pack::Wanted;
use hyper::Method;
use serde_json::json;

use super::arguments::{ClusterArgs, ClusterVerb, PlanArgs};
use super::request::{Picture, Request};
use super::{fail, fail_in_json, print, print_out, read, run_request};
use crate::cluster::view::{ClusterView, ScheduleView};

/// Executes the command.
pub fn run(ClusterArgs { verb, reach }: ClusterArgs) -> ExitCode {
    let request = match verb {
        ClusterVerb::Plan(arguments) => return plan(&arguments, reach.json),
        ClusterVerb::Status => {
            Request::get("/v1/cluster", |answer| Ok(print::cluster_status(&read::<ClusterView>(answer)?)))
        }
        ClusterVerb::Members => {
            Request::get("/v1/cluster", |answer| Ok(print::cluster_members(&read::<ClusterView>(answer)?)))
        }
        ClusterVerb::Schedule { svg } => {
            let print = |answer| Ok(print::schedule(&read::<ScheduleView>(answer)?));
            let draw = |answer| Ok(print::schedule_svg(&read::<ScheduleView>(answer)?));
            Request { svg: svg.map(|path| Picture { path, draw }), ..Request::get("/v1/cluster/schedule", print) }
        }
        ClusterVerb::Remove { name, lost, yes: _ } => {
            let query = if lost { "?lost=true" } else { "" };
            Request::new(Method::DELETE, format!("/v1/cluster/members/{name}{query}"), None)
        }
        ClusterVerb::Drain { name, undo } => {
            let method = if undo { Method::DELETE } else { Method::PUT };
            Request::new(method, format!("/v1/cluster/draining/{name}"), None)
        }
    };
    run_request(&reach, &request)
}

/// Looks for a schedule, without a server.
fn plan(arguments: &PlanArgs, json: bool) -> ExitCode {
    match planned(arguments, json) {
        Ok(text) => {
            print_out(&text);
            ExitCode::SUCCESS
        }
        Err(Unplanned { error, code }) if json => fail_in_json(&error, None, code),
        Err(Unplanned { error, code }) => fail(&error, None, code),
    }
}

/// Why there is no schedule, and the exit status.
struct Unplanned {
    error: String,
    code: u8,
}

fn planned(arguments: &PlanArgs, json: bool) -> Result<String, Unplanned> {
    let PlanArgs { file: path, least, seconds, seed } = arguments;
    let wrong = |error: String| Unplanned { error, code: 2 };
    if !(*least > 0.0 && *least <= 1.0) {
        return Err(wrong(format!("--least {least}: R of a cluster is more than 0 and at most 1")));
    }
    let limit = Duration::try_from_secs_f64(*seconds)
        .map_err(|_| wrong(format!("--seconds {seconds}: say a number of seconds, such as 0.9")))?;
    let of_file = |why: String| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(of_file(error.to_string())))?;
    let file: File = serde_json::from_str(&text).map_err(|error| wrong(of_file(error.to_string())))?;
    let cluster = Description::try_from(file).map_err(|error| wrong(of_file(error.to_string())))?;
    let (wanted, began) = (Wanted { least: *least, enough: 1.0, seed: *seed }, Instant::now());
    let schedule = cluster.pack(wanted, || began.elapsed() < limit);
    let schedule = schedule.map_err(|why| Unplanned { error: of_file(why), code: 1 })?;
    Ok(if json { format!("{:#}\n", json!(cluster.answer(&schedule))) } else { cluster.table(&schedule) })
}
