//! Faults and simulated drives.

use std::fmt::Error;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use sim::fault::layer::Kind;

use super::{Scrape, counters, family, gauges, seconds, with};
use crate::control::Observed;
use crate::reactor::BOUNDS_NS;

impl Scrape {
    /// Counters of each kind of fault, and the lateness of simulated drives.
    pub(super) fn layers(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (mut counts, mut hanging, mut injected, mut late) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for Observed { disk, layers, .. } in &self.0 {
            let labels = vec![("disk", disk.as_str())];
            counts.push((labels.clone(), layers.faults.len() as f64));
            hanging.push((labels.clone(), layers.stuck as f64));
            for (kind, count) in Kind::NAMES.into_iter().zip(layers.injected) {
                injected.push((with(labels.clone(), "kind", kind), count as f64));
            }
            if let Some(lates) = layers.late {
                late.push((with(labels.clone(), "cause", "clock"), lates.clock));
                late.push((with(labels.clone(), "cause", "file"), lates.file));
            }
        }
        gauges(to, "aerogel_disk_faults", "Injected faults on the device", counts)?;
        gauges(to, "aerogel_disk_stuck_requests", "Device requests that hang because of a fault", hanging)?;
        counters(to, "aerogel_disk_injected_faults", "Requests affected by injected faults, by kind", injected)?;
        let (name, help) = (
            "aerogel_simulated_completion_late_seconds",
            "Delay of completions after the time that the model of a simulated drive computed, by cause",
        );
        family(to, (name, help, MetricType::Histogram), late, |metric, value| {
            let bounds = BOUNDS_NS.iter().map(|&ns| seconds(ns)).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(value.buckets).collect();
            metric.encode_histogram::<NoLabelSet>(seconds(value.sum_ns), value.count(), &buckets, None)
        })
    }
}
