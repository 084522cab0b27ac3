//! The upstreams of a gateway volume.

use super::bytes;
use crate::control::view::{StripesView, UpstreamState, UpstreamView};
use crate::quantity::duration;

/// State, connections and counters of an upstream.
pub fn upstream(upstream: &UpstreamView) -> String {
    let state = match upstream.state {
        UpstreamState::Online => "online",
        UpstreamState::Connecting => "connecting",
        UpstreamState::Offline => "OFFLINE",
    };
    let failure = upstream.failure.as_ref().map_or_else(String::new, |failure| format!(": {failure}"));
    let shared = if upstream.shared { ", shared with other servers" } else { "" };
    let round_trip = match upstream.round_trip_us {
        0 => "-".into(),
        us => duration(us as f64 / 1e6),
    };
    format!(
        "{state}{failure}\n{} connections, round trip {round_trip}\n\
         {} requests outstanding, {} waiting, for {} at most\n\
         {} not flushed, {} reconnects, epoch {}{shared}",
        upstream.connections,
        upstream.outstanding,
        upstream.waiting,
        duration(upstream.deadline_s),
        bytes(upstream.unflushed_bytes),
        upstream.reconnects,
        upstream.epoch,
    )
}

/// The unit of a striped volume, and its exports in order.
pub fn stripes(stripes: &StripesView) -> String {
    let member = |(at, member): (usize, &UpstreamView)| {
        format!("\n{at}: {}\n   {}", member.from, upstream(member).replace('\n', "\n   "))
    };
    let members: String = stripes.members.iter().enumerate().map(member).collect();
    format!("units of {} on {} exports in turn{members}", bytes(stripes.unit_bytes), stripes.members.len())
}
