//! Metrics for Prometheus: the counters of the disks' engines, in base units, read when scraped.
//!
//! Not included: time in which others used the device (`use="foreign"`). The kernel samples a device's busy time by
//! timer ticks, so the difference to our own time would not be meaningful (docs/design/store.md).

use std::fmt::Error;

use engine::control::{BUCKETS, Histogram, OpStats, Sizing, TenantStats, VolumeStats};
use engine::latency::{ByOp, Percentiles};
use engine::units::BLOCK;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::cluster::ClusterStanding;
use crate::control::view::Verdict;
use crate::control::{Observed, Standing};

mod clients;
mod cluster;
mod guarantees;
mod layers;
#[cfg(test)]
mod manual;
mod offload;
mod plain;
mod upstreams;

pub use plain::{is_wanted as plain_is_wanted, plain};

/// All metrics in the OpenMetrics text format.
pub fn encode(observed: Vec<Observed>, standing: Standing, cluster: Option<ClusterStanding>) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(observed, standing, cluster)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Scrape(Vec<Observed>, Standing, Option<ClusterStanding>);

type Labels<'a> = Vec<(&'static str, &'a str)>;
/// A value of a label, and the counter for it.
type Labelled = (&'static str, fn(&VolumeStats) -> u64);
/// A metric's name, its help text, and its value.
type Metric<S, T> = (&'static str, &'static str, fn(&S) -> T);

const VOLUME_COUNTERS: [Metric<VolumeStats, u64>; 5] = [
    ("aerogel_volume_device_read_bytes", "Bytes read from the device", |v| v.device_read_bytes),
    ("aerogel_volume_device_write_bytes", "Bytes written to the device", |v| v.device_write_bytes),
    ("aerogel_volume_device_errors", "Device requests that failed", |v| v.device_errors),
    (
        "aerogel_volume_deaf_disconnects",
        "Clients disconnected because they did not read their replies while others waited for the memory",
        |v| v.stalled_reader_disconnects,
    ),
    (
        "aerogel_volume_stalled_disconnects",
        "Clients disconnected because they did not send a payload while others waited for the memory",
        |v| v.stalled_writer_disconnects,
    ),
];
const VOLUME_LEVELS: [Metric<VolumeStats, f64>; 6] = [
    ("aerogel_volume_size_bytes", "Size", |v| v.size as f64),
    ("aerogel_volume_connections", "Open connections", |v| f64::from(v.connections)),
    ("aerogel_volume_dirty_bytes", "Not yet written to the device", |v| (v.dirty_blocks * BLOCK) as f64),
    ("aerogel_volume_uninitialised_bytes", "Never written", |v| v.hole_bytes as f64),
    ("aerogel_volume_failing", "1 if the last write-back or device flush failed", |v| f64::from(u8::from(v.failing))),
    ("aerogel_volume_lost", "1 if acknowledged data is lost", |v| f64::from(u8::from(v.lost))),
];

impl Collector for Scrape {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let build = [(vec![("version", env!("CARGO_PKG_VERSION"))], 1.0)];
        gauges(&mut to, "aerogel_build_info", "The program", build)?;
        let started = [(Vec::new(), self.1.started_s)];
        gauges(&mut to, "process_start_time_seconds", "When the process started, seconds since 1970", started)?;
        self.standing(&mut to)?;
        self.volume_requests(&mut to)?;
        self.volume_levels(&mut to)?;
        self.offloaded_volumes(&mut to)?;
        self.upstreams(&mut to)?;
        self.offload(&mut to)?;
        self.tenants(&mut to)?;
        self.disks(&mut to)?;
        self.layers(&mut to)?;
        self.cluster(&mut to)?;
        clients::clients(&mut to)
    }
}

impl Scrape {
    /// Metrics for alerts: what is offline, free space, promised shares and R.
    fn standing(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let disks = &self.1.disks;
        let flag = |is_on: bool| f64::from(u8::from(is_on));
        let online = disks.iter().map(|disk| (vec![("disk", disk.name.as_str())], flag(disk.online)));
        gauges(to, "aerogel_disk_online", "1 if a disk can be used, 0 if it is offline", online)?;
        let sizes = disks.iter().filter_map(|disk| Some((vec![("disk", disk.name.as_str())], disk.space?)));
        let (size, free): (Vec<_>, Vec<_>) =
            sizes.map(|(labels, (size, free))| ((labels.clone(), size as f64), (labels, free as f64))).unzip();
        gauges(to, "aerogel_disk_size_bytes", "Size of a disk's file system, or of its simulated drive", size)?;
        gauges(to, "aerogel_disk_free_bytes", "Free space of a disk's file system, or of its simulated drive", free)?;
        let promised = disks.iter().filter_map(|disk| Some((vec![("disk", disk.name.as_str())], disk.insulation?)));
        let (requested, effective): (Vec<_>, Vec<_>) = promised
            .map(|(labels, (requested, effective))| ((labels.clone(), requested), effective.map(|part| (labels, part))))
            .unzip();
        let help = "R as set: the part of its standalone efficiency that each tenant shall keep";
        gauges(to, "aerogel_disk_insulation_requested_ratio", help, requested)?;
        let help = "R that is reached for every tenant; absent under a policy without insulation";
        gauges(to, "aerogel_disk_insulation_effective_ratio", help, effective.into_iter().flatten())?;
        let volumes = disks.iter().flat_map(|disk| {
            disk.volumes.iter().map(|(name, tenant, is_on)| {
                let labels = vec![("disk", disk.name.as_str()), ("volume", name.as_str()), ("tenant", tenant.as_str())];
                (labels, flag(*is_on))
            })
        });
        gauges(
            to,
            "aerogel_volume_online",
            "1 if a volume can be opened, 0 if it is offline or being created",
            volumes,
        )?;
        let refusals = disks.iter().flat_map(|disk| {
            disk.refusals.iter().map(|(name, tenant, count)| {
                let labels = vec![("disk", disk.name.as_str()), ("volume", name.as_str()), ("tenant", tenant.as_str())];
                (labels, *count as f64)
            })
        });
        let help = "Attempts to open a volume that its access list refused";
        counters(to, "aerogel_volume_access_refusals", help, refusals)?;
        let shares = disks.iter().flat_map(|disk| {
            disk.shares
                .iter()
                .map(|(tenant, share)| (vec![("disk", disk.name.as_str()), ("tenant", tenant.as_str())], *share))
        });
        gauges(to, "aerogel_tenant_share_ratio", "Share of the disk's time that a tenant has", shares)
    }

    /// One value for each volume.
    fn volumes<T>(&self, value: impl Fn(&VolumeStats) -> T) -> Vec<(Labels<'_>, T)> {
        let mut values = Vec::new();
        for observed in &self.0 {
            for (id, name, tenant) in &observed.volumes {
                let Some(stats) = observed.snapshot.volumes.iter().find(|stats| stats.volume == *id) else { continue };
                let labels =
                    vec![("disk", observed.disk.as_str()), ("volume", name.as_str()), ("tenant", tenant.as_str())];
                values.push((labels, value(stats)));
            }
        }
        values
    }

    fn volume_requests(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        type Select = fn(&VolumeStats) -> &OpStats;
        let ops: [(&str, &str, Select); 4] = [
            ("read", "Reads", |v| &v.read),
            ("write", "Writes", |v| &v.write),
            ("flush", "Flushes", |v| &v.flush),
            ("other", "Other requests (trim, zeroes, cache, block status)", |v| &v.other),
        ];
        for (op, what, of) in ops {
            let name = |suffix: &str| format!("aerogel_volume_{op}_{suffix}");
            counters(to, &name("requests"), &format!("{what} answered"), self.volumes(|v| of(v).requests as f64))?;
            counters(
                to,
                &name("errors"),
                &format!("{what} answered with an error"),
                self.volumes(|v| of(v).errors as f64),
            )?;
            if op != "flush" {
                counters(to, &name("bytes"), &format!("{what}, bytes"), self.volumes(|v| of(v).bytes as f64))?;
            }
            histograms(
                to,
                &name("latency_seconds"),
                &format!("{what}, time to the answer"),
                self.volumes(|v| of(v).latency),
            )?;
        }
        Ok(())
    }

    /// Values of all volumes, by a further label.
    fn volumes_by(
        &self,
        label: &'static str,
        parts: &[Labelled],
        value: impl Fn(u64) -> f64,
    ) -> Vec<(Labels<'_>, f64)> {
        let of_part = |&(part, of): &Labelled| {
            let values = self.volumes(|v| value(of(v)));
            values.into_iter().map(move |(labels, value)| (with(labels, label, part), value))
        };
        parts.iter().flat_map(of_part).collect()
    }

    fn volume_levels(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let centers: [Labelled; 6] = [
            ("thread", |v| v.thread_delay_ns),
            ("cache", |v| v.cache_delay_ns),
            ("queue", |v| v.queue_delay_ns),
            ("slice", |v| v.slice_delay_ns),
            ("disk", |v| v.disk_delay_ns),
            ("ceiling", |v| v.ceiling_delay_ns),
        ];
        let help = "Time that requests waited, by cause; thread: while the disk's thread did other work; slice: while \
                    the disk belonged to another tenant; ceiling: held back by the tenant's own ceilings";
        counters(to, "aerogel_volume_delay_seconds", help, self.volumes_by("center", &centers, seconds))?;
        let bytes = |blocks: u64| (blocks * BLOCK) as f64;
        let reads: [Labelled; 3] =
            [("hit", |v| v.hit_blocks), ("prefetched", |v| v.prefetched_blocks), ("miss", |v| v.miss_blocks)];
        let help = "Blocks that clients read, by result: in the cache, read ahead before a request, or read from the \
                    device";
        counters(to, "aerogel_volume_cache_read_bytes", help, self.volumes_by("result", &reads, bytes))?;
        let prefetches: [Labelled; 2] =
            [("used", |v| v.prefetch_used_blocks), ("wasted", |v| v.prefetch_wasted_blocks)];
        let help = "Blocks read ahead, by result: requested later, or dropped before that";
        counters(to, "aerogel_volume_prefetch_bytes", help, self.volumes_by("result", &prefetches, bytes))?;
        for (name, help, of) in VOLUME_COUNTERS {
            counters(to, name, help, self.volumes(|v| of(v) as f64))?;
        }
        for (name, help, of) in VOLUME_LEVELS {
            gauges(to, name, help, self.volumes(of))?;
        }
        Ok(())
    }

    fn tenants(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut ratios = Vec::new();
        for observed in &self.0 {
            for (id, tenant) in &observed.tenants {
                let stats = observed.snapshot.tenants.iter().filter(|stats| stats.tenant == *id);
                for (cache, ratio) in stats.flat_map(|stats| ["0.5", "1", "2"].into_iter().zip(stats.miss_ratios)) {
                    let labels = vec![("disk", observed.disk.as_str()), ("tenant", tenant.as_str()), ("cache", cache)];
                    ratios.extend(ratio.map(|ratio| (labels, ratio)));
                }
            }
        }
        gauges(
            to,
            "aerogel_tenant_curve_miss_ratio",
            "Predicted miss ratio of block reads and writes with a multiple of the present cache",
            ratios,
        )?;
        let levels: [Metric<TenantStats, u64>; 3] = [
            ("aerogel_tenant_cache_target_bytes", "Cache that a tenant may use", |t| t.target_frames),
            ("aerogel_tenant_cache_used_bytes", "Cache that a tenant uses", |t| t.used_frames),
            ("aerogel_tenant_cache_dirty_bytes", "Cache that holds dirty data", |t| t.dirty_frames),
        ];
        for (name, help, of) in levels {
            let mut values = Vec::new();
            for observed in &self.0 {
                for (id, tenant) in &observed.tenants {
                    let Some(stats) = observed.snapshot.tenants.iter().find(|stats| stats.tenant == *id) else {
                        continue;
                    };
                    let labels = vec![("disk", observed.disk.as_str()), ("tenant", tenant.as_str())];
                    values.push((labels, (of(stats) * BLOCK) as f64));
                }
            }
            gauges(to, name, help, values)?;
        }
        self.sizings(to)?;
        self.latencies(to)?;
        self.slices(to)?;
        self.guarantees(to)?;
        self.usage(to)
    }

    /// What each tenant needs for R, what it has, and the decision on it.
    fn sizings(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = || {
            self.0.iter().flat_map(|observed| {
                observed.tenants.iter().filter_map(|(id, tenant)| {
                    let stats = observed.snapshot.tenants.iter().find(|stats| stats.tenant == *id)?;
                    Some((vec![("disk", observed.disk.as_str()), ("tenant", tenant.as_str())], stats.sizing?))
                })
            })
        };
        let permille = |value: u32| f64::from(value) / 1000.0;
        let of: [Metric<Sizing, Option<f64>>; 5] = [
            (
                "aerogel_tenant_cache_need_bytes",
                "Smallest cache with which a tenant keeps R; absent while it is not known",
                |s| s.need_bytes.map(|bytes| bytes as f64),
            ),
            ("aerogel_tenant_cache_guaranteed_bytes", "Guaranteed cache of a tenant", |s| Some(s.kept_bytes as f64)),
            ("aerogel_tenant_cache_lent_bytes", "Additional cache, lent until another tenant needs it", |s| {
                Some(s.lent_bytes as f64)
            }),
            (
                "aerogel_tenant_time_insulation_ratio",
                "R_time: the part of a tenant's slices that is not lost at context switches",
                |s| Some(f64::from(s.time_permille) / 1000.0),
            ),
            (
                "aerogel_tenant_cache_insulation_ratio",
                "R_cache: the part of the throughput with the whole cache",
                |s| s.cache_permille.map(|part| f64::from(part) / 1000.0),
            ),
        ];
        for (name, help, of) in of {
            gauges(to, name, help, all().filter_map(|(labels, sizing)| Some((labels, of(&sizing)?))))?;
        }
        let best = all().filter_map(|(labels, sizing)| Some((labels, permille(sizing.best_permille?))));
        gauges(to, "aerogel_tenant_best_insulation_ratio", "R_time x R_cache: the best R at present", best)?;
        let low = all().filter_map(|(labels, sizing)| Some((labels, permille(sizing.low_permille?))));
        let help = "The low end of the interval in which the best R is; a tenant is admitted by it";
        gauges(to, "aerogel_tenant_low_insulation_ratio", help, low)?;
        let decisions = all().flat_map(|(labels, sizing)| {
            let stands = Verdict::from(&sizing.decision);
            Verdict::ALL.map(|one| (with(labels.clone(), "decision", one.name()), f64::from(u8::from(one == stands))))
        });
        gauges(to, "aerogel_tenant_decision", "1 for the present decision on a tenant, 0 for the others", decisions)
    }

    /// Recent percentiles. To sum over tenants or servers, use the volumes' histograms.
    fn latencies(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        type Select = fn(&ByOp) -> &Percentiles;
        let ops: [(&str, &str, Select); 2] =
            [("read", "Reads", |all| &all.read), ("write", "Writes", |all| &all.write)];
        for (op, what, of) in ops {
            let mut values = Vec::new();
            for observed in &self.0 {
                for (id, tenant) in &observed.tenants {
                    let stats = observed.snapshot.tenants.iter().find(|stats| stats.tenant == *id);
                    let found = stats.map(|stats| *of(&stats.latency.recent)).filter(|of| of.count > 0);
                    let Some(Percentiles { p50_ns, p99_ns, p999_ns, max_ns, .. }) = found else { continue };
                    for (quantile, ns) in [("0.5", p50_ns), ("0.99", p99_ns), ("0.999", p999_ns), ("1", max_ns)] {
                        let labels =
                            vec![("disk", observed.disk.as_str()), ("tenant", tenant.as_str()), ("quantile", quantile)];
                        values.push((labels, seconds(ns)));
                    }
                }
            }
            let name = format!("aerogel_tenant_{op}_latency_recent_seconds");
            gauges(
                to,
                &name,
                &format!("{what} of the last 10 to 15 s, time to the answer; absent without any"),
                values,
            )?;
        }
        Ok(())
    }

    /// Insulation and slices of tenants.
    fn slices(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (mut ratios, mut own, mut slices) = (Vec::new(), Vec::new(), Vec::new());
        for observed in &self.0 {
            let labels = |tenant| vec![("disk", observed.disk.as_str()), ("tenant", tenant)];
            for (all, of) in [(&mut ratios, &observed.insulation), (&mut own, &observed.own_cache_insulation)] {
                all.extend(of.iter().map(|(tenant, ratio)| (labels(tenant.as_str()), *ratio)));
            }
            for (id, tenant) in &observed.tenants {
                let stats = observed.snapshot.tenants.iter().find(|stats| stats.tenant == *id);
                let plan = stats.and_then(|stats| stats.plan);
                slices.extend(
                    plan.filter(|plan| plan.round_ns > 0).map(|plan| (labels(tenant.as_str()), seconds(plan.slice_ns))),
                );
            }
        }
        let help = "Part of its share of a disk of its own with the whole cache that a tenant kept in the last rounds, \
                    estimated; absent without demand, or while it is not known";
        gauges(to, "aerogel_tenant_insulation_ratio", help, ratios)?;
        let help = "Part of its share of a disk of its own with the cache that it has that a tenant kept in the last \
                    rounds, measured; at least R is promised where the longest round is long enough; absent without \
                    demand";
        gauges(to, "aerogel_tenant_own_cache_insulation_ratio", help, own)?;
        gauges(to, "aerogel_tenant_slice_seconds", "Slice of disk time in each round", slices)
    }

    /// What tenants requested of the disk and what they got, under any policy.
    fn usage(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        type Select = fn(&TenantStats) -> f64;
        let of: [(&str, &str, Select); 5] = [
            (
                "aerogel_tenant_disk_time_seconds",
                "Disk time that a tenant had: its slices; without slices, its part of the device's busy time, by cost",
                |stats| seconds(stats.usage.owned_ns),
            ),
            (
                "aerogel_tenant_throttled_seconds",
                "Time in which a tenant's ceilings held at least one of its requests back",
                |stats| seconds(stats.throttled_ns),
            ),
            ("aerogel_tenant_device_requests", "Device requests of a tenant that completed", |stats| {
                stats.usage.completed.requests as f64
            }),
            ("aerogel_tenant_device_bytes", "Bytes of a tenant's device requests that completed", |stats| {
                stats.usage.completed.bytes as f64
            }),
            ("aerogel_tenant_delivered_bytes", "Bytes of its clients' requests that succeeded", |stats| {
                stats.usage.delivered.bytes as f64
            }),
        ];
        for (name, help, value) in of {
            let all = self.0.iter().flat_map(|observed| {
                observed.tenants.iter().filter_map(move |(id, tenant)| {
                    let stats = observed.snapshot.tenants.iter().find(|stats| stats.tenant == *id)?;
                    let labels = vec![("disk", observed.disk.as_str()), ("tenant", tenant.as_str())];
                    Some((labels, value(stats)))
                })
            });
            counters(to, name, help, all)?;
        }
        Ok(())
    }

    fn disks(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let of_disks = |value: &dyn Fn(&Observed) -> f64| -> Vec<(Labels<'_>, f64)> {
            self.0.iter().map(|observed| (vec![("disk", observed.disk.as_str())], value(observed))).collect()
        };
        let (mut time, mut rounds) = (Vec::new(), Vec::new());
        for Observed { disk, snapshot, time: used, .. } in &self.0 {
            let labels = vec![("disk", disk.as_str())];
            for (name, ns) in [("tenant", used.tenant_ns), ("switch", used.switch_ns), ("idle", used.idle_ns)] {
                time.push((with(labels.clone(), "use", name), seconds(ns)));
            }
            let round = snapshot
                .tenants
                .iter()
                .filter_map(|stats| stats.plan)
                .map(|plan| plan.round_ns)
                .filter(|&round| round > 0)
                .max();
            rounds.extend(round.map(|round| (labels, seconds(round))));
        }
        let help = "Use of a disk's time; switch: lost at context switches";
        counters(to, "aerogel_disk_time_seconds", help, time)?;
        gauges(to, "aerogel_disk_round_seconds", "Present round: one pass over the slices of all tenants", rounds)?;
        let levels: [Metric<Observed, f64>; 6] = [
            ("aerogel_disk_committed_share_ratio", "Sum of the shares that were set", |o| o.committed_share),
            ("aerogel_disk_memory_bytes", "Memory for cached data and metadata", |o| o.snapshot.budget_bytes as f64),
            ("aerogel_disk_cache_bytes", "Cache", |o| (o.snapshot.frames * BLOCK) as f64),
            ("aerogel_disk_cache_free_bytes", "Unused cache", |o| (o.snapshot.free_frames * BLOCK) as f64),
            ("aerogel_disk_queued_requests", "Device requests queued in the scheduler", |o| o.snapshot.queued as f64),
            ("aerogel_disk_in_flight_requests", "Device requests in the device", |o| o.snapshot.in_flight as f64),
        ];
        for (name, help, of) in levels {
            gauges(to, name, help, of_disks(&of))?;
        }
        Ok(())
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn with<'a>(mut labels: Labels<'a>, key: &'static str, value: &'a str) -> Labels<'a> {
    labels.push((key, value));
    labels
}

fn family<'a, T>(
    to: &mut DescriptorEncoder<'_>,
    (name, help, kind): (&str, &str, MetricType),
    values: impl IntoIterator<Item = (Labels<'a>, T)>,
    mut encode: impl FnMut(&mut MetricEncoder<'_>, T) -> Result<(), Error>,
) -> Result<(), Error> {
    #[cfg(test)]
    manual::note(name, kind);
    let mut values = values.into_iter().peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut metric = to.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        // Without labels there must be no braces.
        if labels.is_empty() {
            encode(&mut metric, value)?;
        } else {
            encode(&mut metric.encode_family(&labels.as_slice())?, value)?;
        }
    }
    Ok(())
}

fn counters<'a>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels<'a>, f64)>,
) -> Result<(), Error> {
    family(to, (name, help, MetricType::Counter), values, |metric, value| {
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    })
}

fn gauges<'a>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels<'a>, f64)>,
) -> Result<(), Error> {
    family(to, (name, help, MetricType::Gauge), values, |metric, value| metric.encode_gauge(&value))
}

fn histograms<'a>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels<'a>, Histogram)>,
) -> Result<(), Error> {
    family(to, (name, help, MetricType::Histogram), values, |metric, value| {
        let bound = |i| Histogram::bound_ns(i).map_or(f64::INFINITY, seconds);
        let buckets: Vec<(f64, u64)> = (0..BUCKETS).map(|i| (bound(i), value.buckets[i])).collect();
        metric.encode_histogram::<NoLabelSet>(seconds(value.sum_ns), value.count(), &buckets, None)
    })
}

#[cfg(test)]
mod tests {
    use engine::control::{DemotionStats, Snapshot};
    use engine::disk::WindowCounts;
    use engine::disk::policy::TenantPlan;
    use engine::ids::{TenantId, VolumeId};
    use engine::latency::Latencies;
    use engine::upstream::UpstreamStats;

    use super::*;
    use crate::control::DiskStanding;
    use crate::control::live::DiskUse;
    use crate::reactor::LayerView;

    fn volume_stats() -> VolumeStats {
        let mut stats = VolumeStats {
            volume: VolumeId(1),
            tenant: TenantId(2),
            size: 1 << 30,
            read: OpStats { requests: 1, bytes: 4096, ..OpStats::default() },
            write: OpStats::default(),
            flush: OpStats::default(),
            other: OpStats::default(),
            hit_blocks: 1,
            prefetched_blocks: 2,
            miss_blocks: 0,
            thread_delay_ns: 125_000_000,
            cache_delay_ns: 1_500_000_000,
            queue_delay_ns: 0,
            slice_delay_ns: 250_000_000,
            disk_delay_ns: 0,
            ceiling_delay_ns: 0,
            device_read_bytes: 0,
            device_write_bytes: 0,
            offloaded_bytes: 0,
            device_errors: 0,
            stalled_reader_disconnects: 0,
            stalled_writer_disconnects: 0,
            prefetch_used_blocks: 0,
            prefetch_wasted_blocks: 3,
            demotions: DemotionStats { taken_blocks: 5, ..DemotionStats::default() },
            slot_loss_ns: None,
            upstreams: vec![UpstreamStats {
                is_open: true,
                round_trip_ns: 250_000,
                reconnects: 2,
                ..Default::default()
            }],
            dirty_blocks: 0,
            hole_bytes: 0,
            lost: false,
            failing: false,
            connections: 1,
        };
        stats.read.latency.record(3_000_000);
        stats
    }

    fn observed() -> Observed {
        let plan = TenantPlan { slice_ns: 50_000_000, round_ns: 100_000_000, ..TenantPlan::default() };
        let percentiles =
            Percentiles { count: 9, p50_ns: 1_000_000, p99_ns: 20_000_000, p999_ns: 30_000_000, max_ns: 50_000_000 };
        let tenant = TenantStats {
            tenant: TenantId(2),
            target_frames: 1,
            used_frames: 1,
            dirty_frames: 0,
            wanting_ns: 0,
            throttled_ns: 0,
            progress: None,
            sizing: None,
            miss_ratios: [None; 3],
            windows: Some(WindowCounts { met: 7, avoidable: 2, marginal: 1, ..WindowCounts::default() }),
            plan: Some(plan),
            usage: engine::disk::policy::Usage { owned_ns: 2_500_000_000, ..Default::default() },
            spent: Default::default(),
            latency: Latencies { recent: ByOp { read: percentiles, ..ByOp::default() }, ..Latencies::default() },
        };
        let snapshot = Snapshot { volumes: vec![volume_stats()], tenants: vec![tenant], ..Snapshot::default() };
        let name = |text: &str| text.parse::<crate::quantity::Name>().unwrap();
        let volumes = vec![(VolumeId(1), name("db"), name("team"))];
        let mut layers =
            LayerView { injected: [0, 0, 3, 0, 0], late: Some(Default::default()), ..LayerView::default() };
        layers.late.iter_mut().for_each(|late| late.clock.record(60_000));
        Observed {
            disk: name("default"),
            snapshot: snapshot.into(),
            volumes,
            tenants: vec![(TenantId(2), name("team"))],
            insulation: vec![(name("team"), 0.925)],
            own_cache_insulation: vec![(name("team"), 0.955)],
            time: DiskUse { tenant_ns: 1_500_000_000, switch_ns: 250_000_000, idle_ns: 1_250_000_000 },
            min_bandwidths: vec![(name("team"), 30 << 20)],
            committed_share: 0.25,
            layers,
            stores: Vec::new(),
        }
    }

    #[test]
    fn the_names_are_those_of_the_design() {
        let disk = |name: &str, online: bool| DiskStanding {
            name: name.parse().unwrap(),
            online,
            space: online.then_some((1 << 40, 1 << 30)),
            insulation: online.then_some((0.9, Some(0.8))),
            volumes: vec![("db".parse().unwrap(), "team".parse().unwrap(), online)],
            refusals: if online { vec![("db".parse().unwrap(), "team".parse().unwrap(), 4)] } else { Vec::new() },
            shares: if online { vec![("team".parse().unwrap(), 0.25)] } else { Vec::new() },
        };
        let standing = Standing { started_s: 1.5e9, disks: vec![disk("default", true), disk("away", false)] };
        let text = encode(vec![observed()], standing, None).unwrap();
        assert!(!text.contains("aerogel_cluster"), "it is in none");
        for line in [
            r#"aerogel_volume_access_refusals_total{disk="default",volume="db",tenant="team"} 4.0"#,
            r#"aerogel_volume_upstream_online{disk="default",volume="db",tenant="team"} 1.0"#,
            r#"aerogel_volume_upstream_round_trip_seconds{disk="default",volume="db",tenant="team"} 0.00025"#,
            r#"aerogel_volume_upstream_reconnects_total{disk="default",volume="db",tenant="team"} 2.0"#,
            r#"aerogel_volume_read_bytes_total{disk="default",volume="db",tenant="team"} 4096.0"#,
            r#"aerogel_volume_delay_seconds_total{disk="default",volume="db",tenant="team",center="thread"} 0.125"#,
            r#"aerogel_volume_delay_seconds_total{disk="default",volume="db",tenant="team",center="cache"} 1.5"#,
            "aerogel_volume_cache_read_bytes_total{disk=\"default\",volume=\"db\",tenant=\"team\",\
             result=\"prefetched\"} 8192.0",
            r#"aerogel_volume_prefetch_bytes_total{disk="default",volume="db",tenant="team",result="wasted"} 12288.0"#,
            r#"aerogel_volume_read_latency_seconds_bucket{le="0.002048",disk="default",volume="db",tenant="team"} 0"#,
            r#"aerogel_volume_read_latency_seconds_bucket{le="0.004096",disk="default",volume="db",tenant="team"} 1"#,
            r#"aerogel_volume_read_latency_seconds_bucket{le="+Inf",disk="default",volume="db",tenant="team"} 1"#,
            r#"aerogel_volume_delay_seconds_total{disk="default",volume="db",tenant="team",center="slice"} 0.25"#,
            r#"aerogel_disk_time_seconds_total{disk="default",use="tenant"} 1.5"#,
            r#"aerogel_disk_time_seconds_total{disk="default",use="switch"} 0.25"#,
            r#"aerogel_disk_time_seconds_total{disk="default",use="idle"} 1.25"#,
            r#"aerogel_disk_round_seconds{disk="default"} 0.1"#,
            r#"aerogel_tenant_slice_seconds{disk="default",tenant="team"} 0.05"#,
            r#"aerogel_tenant_disk_time_seconds_total{disk="default",tenant="team"} 2.5"#,
            r#"aerogel_tenant_read_latency_recent_seconds{disk="default",tenant="team",quantile="0.5"} 0.001"#,
            r#"aerogel_tenant_read_latency_recent_seconds{disk="default",tenant="team",quantile="0.999"} 0.03"#,
            r#"aerogel_tenant_read_latency_recent_seconds{disk="default",tenant="team",quantile="1"} 0.05"#,
            r#"aerogel_tenant_insulation_ratio{disk="default",tenant="team"} 0.925"#,
            r#"aerogel_tenant_own_cache_insulation_ratio{disk="default",tenant="team"} 0.955"#,
            r#"aerogel_disk_committed_share_ratio{disk="default"} 0.25"#,
            r#"aerogel_tenant_min_bandwidth_bytes_per_second{disk="default",tenant="team"} 31457280.0"#,
            r#"aerogel_tenant_guarantee_windows_total{disk="default",tenant="team",outcome="met"} 7.0"#,
            r#"aerogel_tenant_guarantee_windows_total{disk="default",tenant="team",outcome="avoidable"} 2.0"#,
            r#"aerogel_tenant_guarantee_windows_marginal_total{disk="default",tenant="team"} 1.0"#,
            "process_start_time_seconds 1500000000.0",
            r#"aerogel_disk_online{disk="default"} 1.0"#,
            r#"aerogel_disk_online{disk="away"} 0.0"#,
            r#"aerogel_disk_free_bytes{disk="default"} 1073741824.0"#,
            r#"aerogel_disk_size_bytes{disk="default"} 1099511627776.0"#,
            r#"aerogel_disk_insulation_requested_ratio{disk="default"} 0.9"#,
            r#"aerogel_disk_insulation_effective_ratio{disk="default"} 0.8"#,
            r#"aerogel_volume_online{disk="away",volume="db",tenant="team"} 0.0"#,
            r#"aerogel_volume_connections{disk="default",volume="db",tenant="team"} 1.0"#,
            r#"aerogel_tenant_share_ratio{disk="default",tenant="team"} 0.25"#,
            r#"aerogel_disk_injected_faults_total{disk="default",kind="stuck"} 3.0"#,
            r#"aerogel_simulated_completion_late_seconds_bucket{le="0.00005",disk="default",cause="clock"} 0"#,
            r#"aerogel_simulated_completion_late_seconds_bucket{le="0.000075",disk="default",cause="clock"} 1"#,
            r#"aerogel_simulated_completion_late_seconds_count{disk="default",cause="file"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("aerogel_tenant_write_latency"), "there were no writes");
    }
}
