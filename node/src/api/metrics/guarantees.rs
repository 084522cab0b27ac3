//! Guarantees and their windows.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;

use super::{Labels, Scrape, counters, gauges, with};
use crate::control::view::WindowsView;

impl Scrape {
    /// The guarantee of each tenant that has one, and whether it is met.
    pub(super) fn guarantees(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let promised = self.0.iter().flat_map(|observed| {
            observed
                .min_bandwidths
                .iter()
                .map(|(tenant, rate)| (labels(observed.disk.as_str(), tenant.as_str()), *rate as f64))
        });
        let help = "Minimum bandwidth of a tenant, which holds as long as it fits into its share";
        gauges(to, "aerogel_tenant_min_bandwidth_bytes_per_second", help, promised)?;
        let counts = || {
            self.0.iter().flat_map(|observed| {
                observed.tenants.iter().filter_map(|(id, tenant)| {
                    let stats = observed.snapshot.tenants.iter().find(|stats| stats.tenant == *id)?;
                    Some((labels(observed.disk.as_str(), tenant.as_str()), WindowsView::from(stats.windows?)))
                })
            })
        };
        let outcomes = counts().flat_map(|(labels, windows)| {
            windows.outcomes().map(|(name, count)| (with(labels.clone(), "outcome", name), count as f64))
        });
        let help = "Windows of 15 s x minimum bandwidth, by outcome: met, or why it was missed";
        counters(to, "aerogel_tenant_guarantee_windows", help, outcomes)?;
        let marginal = counts().map(|(labels, windows)| (labels, windows.marginal as f64));
        let help = "Missed windows whose class is uncertain: within 5 % of the threshold";
        counters(to, "aerogel_tenant_guarantee_windows_marginal", help, marginal)
    }
}

fn labels<'a>(disk: &'a str, tenant: &'a str) -> Labels<'a> {
    vec![("disk", disk), ("tenant", tenant)]
}
