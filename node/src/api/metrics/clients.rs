//! Incidents with clients.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;

use super::counters;
use crate::incidents::{self, Incident};

/// Counts of all kinds.
pub(super) fn clients(to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    for family in &incidents::FAMILIES {
        let count = |(value, incident): &(&'static str, Incident)| {
            (vec![(family.label, *value)], incidents::count(*incident) as f64)
        };
        counters(to, family.name, family.help, family.kinds.iter().map(count))?;
    }
    Ok(())
}
