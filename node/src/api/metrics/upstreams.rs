//! The upstreams of gateway volumes.

use std::fmt::Error;

use engine::upstream::UpstreamStats;
use prometheus_client::encoding::DescriptorEncoder;

use super::{Metric, Scrape, counters, gauges, seconds};

const LEVELS: [Metric<UpstreamStats, f64>; 7] = [
    ("aerogel_volume_upstream_online", "1 if a session with the server that has the volume's data is open", |u| {
        f64::from(u8::from(u.is_open))
    }),
    ("aerogel_volume_upstream_connections", "Open connections to that server", |u| f64::from(u.connections)),
    (
        "aerogel_volume_upstream_round_trip_seconds",
        "Mean time from a request to its answer, mostly of the latest; 0 before the first answer",
        |u| seconds(u.round_trip_ns),
    ),
    ("aerogel_volume_upstream_outstanding_requests", "Requests that were sent and are not answered", |u| {
        f64::from(u.outstanding)
    }),
    ("aerogel_volume_upstream_waiting_requests", "Requests that wait to be sent", |u| f64::from(u.waiting)),
    (
        "aerogel_volume_upstream_unflushed_bytes",
        "Acknowledged writes that the server has not flushed, which are kept in the cache",
        |u| u.unflushed_bytes as f64,
    ),
    ("aerogel_volume_upstream_epoch", "The number of the latest session, which grows", |u| u.epoch as f64),
];

impl Scrape {
    /// State and counters of each upstream.
    pub(super) fn upstreams(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = || self.volumes(|v| v.upstream).into_iter().filter_map(|(labels, stats)| Some((labels, stats?)));
        for (name, help, of) in LEVELS {
            gauges(to, name, help, all().map(|(labels, stats)| (labels, of(&stats))))?;
        }
        let lost = all().map(|(labels, stats)| (labels, stats.reconnects as f64));
        counters(to, "aerogel_volume_upstream_reconnects", "Sessions that were lost since the volume was opened", lost)
    }
}
