//! Single responses and windows of a row, with the set and the moment: what `aerogel-lab set` runs again to find out
//! why.

use engine::units::{Nanos, SECOND};
use serde_json::{Value, json};
use sim::bench::Done;

use super::play::{ROUND_NS, Shared, response_ns};
use super::window::Window;
use super::{Cast, Row};

/// Avoidable windows of a row that are named at most: a policy may have hundreds.
const WINDOWS_NAMED: usize = 20;

/// Seconds, to a microsecond.
pub fn seconds(ns: Nanos) -> f64 {
    (ns as f64 / SECOND as f64 * 1e6).round() / 1e6
}

/// The longest response of a run where demand fits.
pub fn response(cast: &Cast, shared: &Shared, done: &Done) -> Value {
    let (request, ns) = (done.request, response_ns(done));
    json!({
        "set": shared.members, "member": done.volume,
        "workload": cast.workloads[shared.members[done.volume]].name,
        "sent_s": seconds(request.intended_ns), "seconds": seconds(ns), "rounds": ns as f64 / ROUND_NS as f64,
        "operation": format!("{:?}", request.op).to_lowercase(), "offset": request.offset, "bytes": request.bytes,
    })
}

/// An avoidable window of the workload `at` in a set, with shares of `1 / size`, and how long the same bytes take
/// alone.
pub fn window(cast: &Cast, size: usize, (set, at): (&[usize], usize), window: &Window) -> Value {
    let alone = cast.progress[at].windows(cast.levels(size)[at].window_bytes());
    json!({
        "set": set, "member": set.iter().position(|&member| member == at), "workload": cast.workloads[at].name,
        "window": window.number, "begun_s": seconds(window.begun_ns), "seconds": seconds(window.took_ns),
        "alone_s": alone.get(window.number).map(|&ns| seconds(ns)),
    })
}

/// The avoidable windows of a run.
pub fn windows(cast: &Cast, shared: &Shared) -> Vec<Value> {
    let set = &shared.members[..];
    let members = set.iter().zip(&shared.avoidable);
    members.flat_map(|(&at, of)| of.iter().map(move |found| window(cast, set.len(), (set, at), found))).collect()
}

/// The longest response of a row where demand fits; null if there is none.
pub fn longest(cast: &Cast, row: &Row) -> Value {
    let responses = row.shared.iter().filter_map(|shared| Some((shared, shared.responses.longest?)));
    let longest = responses.max_by_key(|(_, done)| response_ns(done));
    longest.map_or(Value::Null, |(shared, done)| response(cast, shared, &done))
}

/// The first avoidable windows of a row.
pub fn avoidable(cast: &Cast, row: &Row) -> Vec<Value> {
    row.shared.iter().flat_map(|shared| windows(cast, shared)).take(WINDOWS_NAMED).collect()
}
