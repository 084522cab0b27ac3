//! Off-loading of disks.

use std::fmt::Error;

use engine::offload::OffloadStats;
use prometheus_client::encoding::DescriptorEncoder;

use super::{Metric, Scrape, counters, gauges, seconds};
use crate::quantity::Name;

const LEVELS: [Metric<OffloadStats, f64>; 4] = [
    ("aerogel_offload_bytes", "Bytes whose newest content is in stores and not on the disk", |it| it.away_bytes as f64),
    ("aerogel_offload_thin_bytes", "Off-loaded bytes that have fewer copies than they should", |it| {
        it.thin_bytes as f64
    }),
    ("aerogel_offload_oldest_seconds", "Age of the oldest content in stores, since the start at most", |it| {
        it.oldest_ns.map_or(0.0, seconds)
    }),
    ("aerogel_offload_active", "1 if the last write that could go to the disk went to stores", |it| {
        f64::from(u8::from(it.decided.is_peak))
    }),
];
const COUNTERS: [Metric<OffloadStats, u64>; 3] = [
    ("aerogel_offload_written_bytes", "Bytes written to stores", |it| it.written_bytes),
    ("aerogel_offload_reclaimed_bytes", "Bytes copied home from stores", |it| it.reclaimed_bytes),
    ("aerogel_offload_switches", "How often off-loading began or ended", |it| it.switches),
];

impl Scrape {
    /// What of each volume is off-loaded. Stores and gateway volumes never are.
    pub(super) fn offloaded_volumes(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = self.volumes(|v| v.upstreams.is_empty().then_some(v.offloaded_bytes)).into_iter();
        let stores = Name::of_stores();
        let all = all.filter(|(labels, _)| !labels.contains(&("tenant", stores.as_str())));
        let bytes = all.filter_map(|(labels, bytes)| Some((labels, bytes? as f64)));
        gauges(to, "aerogel_volume_offloaded_bytes", "Newest content in off-load stores", bytes)
    }

    /// What is off-loaded, of each disk whose writes may be, and the state of its stores.
    pub(super) fn offload(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = || {
            let stats = self.0.iter().filter_map(|it| Some((it.disk.as_str(), it.snapshot.offload.as_ref()?)));
            stats.map(|(disk, stats)| (vec![("disk", disk)], stats))
        };
        for (name, help, of) in LEVELS {
            gauges(to, name, help, all().map(|(labels, stats)| (labels, of(stats))))?;
        }
        for (name, help, of) in COUNTERS {
            counters(to, name, help, all().map(|(labels, stats)| (labels, of(stats) as f64)))?;
        }
        let online = self.0.iter().filter(|it| it.snapshot.offload.is_some()).flat_map(|it| {
            let stores = it.stores.iter().zip(it.snapshot.offload.iter().flat_map(|stats| &stats.stores));
            stores.filter(|(_, stats)| !stats.is_retired).map(|(store, stats)| {
                let labels = vec![("disk", it.disk.as_str()), ("store", store.as_str())];
                (labels, *stats)
            })
        });
        let online: Vec<_> = online.collect();
        let of = |value: fn(&engine::offload::StoreStats) -> f64| {
            online.iter().map(move |(labels, stats)| (labels.clone(), value(stats)))
        };
        let help = "1 if a store can be written";
        gauges(to, "aerogel_offload_store_online", help, of(|stats| f64::from(u8::from(stats.is_open))))?;
        let help = "Bytes whose newest content a store has";
        gauges(to, "aerogel_offload_store_bytes", help, of(|stats| stats.offloaded_bytes as f64))?;
        let help = "Bytes of the log in a store that are in use";
        gauges(to, "aerogel_offload_store_log_used_bytes", help, of(|stats| stats.used_bytes as f64))
    }
}
