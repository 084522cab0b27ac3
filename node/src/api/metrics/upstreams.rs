//! The upstreams of gateway volumes.

use std::fmt::Error;
use std::sync::LazyLock;

use engine::control::{DemotionStats, LEGS_MAX};
use engine::units::BLOCK;
use engine::upstream::UpstreamStats;
use prometheus_client::encoding::DescriptorEncoder;

use super::{Metric, Scrape, counters, gauges, seconds, with};

/// The places of the exports of a striped volume, as labels.
static MEMBERS: LazyLock<Vec<String>> = LazyLock::new(|| (0..LEGS_MAX).map(|at| at.to_string()).collect());

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

/// Counters of demotions, blocks.
const DEMOTIONS: [Metric<DemotionStats, u64>; 4] = [
    (
        "aerogel_demote_unsent_bytes",
        "Evicted blocks that were not sent because too many were on their way to the server",
        |of| of.unsent_blocks,
    ),
    ("aerogel_demote_taken_bytes", "Blocks that the volume's gateway has evicted and its cache has taken", |of| {
        of.taken_blocks
    }),
    (
        "aerogel_demote_dropped_bytes",
        "Blocks that its gateway has evicted and its cache has not taken: written since, or no room",
        |of| of.dropped.total(),
    ),
    ("aerogel_demote_hit_bytes", "Taken blocks that the gateway has read again", |of| of.used_blocks),
];

impl Scrape {
    /// What the caches of volumes have exchanged with those of gateways and servers.
    fn demotions(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, of) in DEMOTIONS {
            let all = self.volumes(|v| v.demotions).into_iter();
            counters(to, name, help, all.map(|(labels, stats)| (labels, (of(&stats) * BLOCK) as f64)))?;
        }
        Ok(())
    }

    /// State and counters of each upstream. Those of a striped volume have its place among them as a label.
    pub(super) fn upstreams(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = || {
            let mut all = Vec::new();
            for (labels, stats) in self.volumes(|v| v.upstreams.clone()) {
                let is_striped = stats.len() > 1;
                for (stats, member) in stats.into_iter().zip(MEMBERS.iter()) {
                    let labels = labels.clone();
                    all.push((if is_striped { with(labels, "member", member) } else { labels }, stats));
                }
            }
            all.into_iter()
        };
        for (name, help, of) in LEVELS {
            gauges(to, name, help, all().map(|(labels, stats)| (labels, of(&stats))))?;
        }
        let lost = all().map(|(labels, stats)| (labels, stats.reconnects as f64));
        counters(
            to,
            "aerogel_volume_upstream_reconnects",
            "Sessions that were lost since the volume was opened",
            lost,
        )?;
        let demoting = all().map(|(labels, stats)| (labels, f64::from(u8::from(stats.is_demoting))));
        gauges(to, "aerogel_demote_granted", "1 if that server takes what the volume's cache evicts", demoting)?;
        let sent = all().map(|(labels, stats)| (labels, (stats.demoted_blocks * BLOCK) as f64));
        counters(to, "aerogel_demote_sent_bytes", "Evicted blocks that were sent to that server", sent)?;
        self.demotions(to)
    }
}
