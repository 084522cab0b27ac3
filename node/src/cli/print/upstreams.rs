//! The upstreams of a gateway volume.

use super::bytes;
use crate::control::view::{DemotionView, StripesView, UpstreamState, UpstreamView};
use crate::quantity::duration;
use crate::store::Tiers;

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
    let tiers = match (upstream.tiers, upstream.effective_tiers) {
        (Tiers::Lru, _) => String::new(),
        (Tiers::Demote, Tiers::Demote) => format!("\ntiers demote, {} demoted", bytes(upstream.demoted_bytes)),
        (Tiers::Demote, Tiers::Lru) if upstream.state == UpstreamState::Online => format!(
            "\ntiers lru (requested: demote; the server does not grant it), {} demoted",
            bytes(upstream.demoted_bytes)
        ),
        (Tiers::Demote, Tiers::Lru) => "\ntiers lru (requested: demote)".into(),
    };
    format!(
        "{state}{failure}\n{} connections, round trip {round_trip}\n\
         {} requests outstanding, {} waiting, for {} at most\n\
         {} not flushed, {} reconnects, epoch {}{shared}{tiers}",
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

/// What the cache of a volume has exchanged with that of its gateway.
pub fn demotion(of: &DemotionView) -> String {
    let state = if of.active { "by its client" } else { "not at present" };
    let (taken, used, dropped) = (bytes(of.taken_bytes), bytes(of.used_bytes), bytes(of.dropped_bytes));
    format!("{state}: {taken} taken, {used} of them read again, {dropped} dropped")
}
