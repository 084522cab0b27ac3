//! Effective shares, and the guarantees that have to fit into them.
//!
//! ```text
//!   whole disk = requested shares                    promises
//!              + an even part for each other tenant  as it would be if nothing were planned
//!              + planned shares                      what the planner of allocations has found beyond them
//! ```
//!
//! So a planned share yields to promises and to tenants that were created since: if the planned shares do not fit into
//! what is then left, all are cut in proportion.

use std::collections::BTreeMap;

use engine::units::Share;

use super::Running;
use super::view::{GuaranteeView, ShareView};
use crate::quantity::{Name, ShareText};
use crate::store::TenantSpec;

/// The requested and planned shares of a disk's tenants, and the even division of the rest among tenants without one.
pub(super) struct Shares {
    allotments: BTreeMap<Name, TenantSpec>,
    even_ppb: u64,
    /// The sum of the requested shares, at least 1: more if the disk is overcommitted.
    whole_ppb: u64,
    /// What planned shares can have beyond requested ones, and what they would have.
    free_ppb: u64,
    planned_ppb: u64,
}

impl Shares {
    pub(super) fn of(running: &Running) -> Shares {
        Shares::new(running.allotments())
    }

    fn new(allotments: BTreeMap<Name, TenantSpec>) -> Shares {
        let asked = allotments.values().filter_map(|allotment| allotment.share.as_ref());
        let promised: u64 = asked.map(|share| share.share.ppb()).sum();
        let left = Share::ONE.ppb().saturating_sub(promised);
        let count = |is: fn(&TenantSpec) -> bool| allotments.values().filter(|allotment| is(allotment)).count() as u64;
        let without = count(|allotment| allotment.share.is_none());
        let others = count(|allotment| allotment.share.is_none() && allotment.planned_ppb().is_none());
        let free_ppb = left - left / without.max(1) * others;
        let planned_ppb: u64 = allotments.values().filter_map(TenantSpec::planned_ppb).sum();
        let even_ppb = (left - planned_ppb.min(free_ppb)).checked_div(others).unwrap_or(0);
        Shares { allotments, even_ppb, whole_ppb: promised.max(Share::ONE.ppb()), free_ppb, planned_ppb }
    }

    pub(super) fn view(&self, tenant: &Name) -> ShareView {
        let allotment = self.allotments.get(tenant);
        let requested = allotment.and_then(|allotment| allotment.share.as_ref()).map(ToString::to_string);
        let is_auto = allotment.is_some_and(|allotment| allotment.auto_share);
        let planned = allotment.and_then(|allotment| allotment.planned_share.as_ref());
        ShareView {
            requested: if is_auto { Some("auto".into()) } else { requested },
            planned: planned.map(|share| part(share.share.ppb())),
            effective: self.effective(tenant),
        }
    }

    /// The fraction of the disk's time, 0 to 1; `None` for a tenant that has none.
    pub(super) fn effective(&self, tenant: &Name) -> Option<f64> {
        Some(part(self.effective_ppb(tenant)?))
    }

    pub(super) fn effective_ppb(&self, tenant: &Name) -> Option<u64> {
        let allotment = self.allotments.get(tenant)?;
        let whole = |ppb: u64| u128::from(ppb) * u128::from(Share::ONE.ppb());
        let requested = |share: &ShareText| (whole(share.share.ppb()) / u128::from(self.whole_ppb)) as u64;
        Some(match (&allotment.share, allotment.planned_ppb()) {
            (None, None) => self.even_ppb,
            (share, planned) => share.as_ref().map_or(0, requested) + planned.map_or(0, |ppb| self.granted_ppb(ppb)),
        })
    }

    /// What a planned share of so much beyond the requested one gets.
    fn granted_ppb(&self, planned: u64) -> u64 {
        let all = self.planned_ppb.max(1);
        (u128::from(planned) * u128::from(self.free_ppb.min(self.planned_ppb)) / u128::from(all)) as u64
    }

    /// The share that the engine is told; without one a tenant has an even part of the rest.
    pub(super) fn told(&self, tenant: &Name) -> Option<Share> {
        let allotment = self.allotments.get(tenant)?;
        let asked = allotment.share.as_ref().map(|share| share.share);
        match allotment.planned_ppb() {
            None => asked,
            Some(planned) => Share::from_ppb(asked.map_or(0, Share::ppb) + self.granted_ppb(planned)),
        }
    }

    /// The shares as they would be if nothing were planned.
    pub(super) fn unplanned(allotments: BTreeMap<Name, TenantSpec>) -> Shares {
        let without = |(name, of): (Name, TenantSpec)| (name, TenantSpec { planned_share: None, ..of });
        Shares::new(allotments.into_iter().map(without).collect())
    }

    /// What may be planned beyond the requested shares if all tenants whose share is handed to the planner get one.
    pub(super) fn plannable(allotments: BTreeMap<Name, TenantSpec>) -> f64 {
        let handed = |(name, mut of): (Name, TenantSpec)| {
            of.planned_share = if of.auto_share { Some(ShareText::from(Share::ONE)) } else { None };
            (name, of)
        };
        part(Shares::new(allotments.into_iter().map(handed).collect()).free_ppb)
    }

    /// The guarantee of a tenant, without measurements.
    pub(super) fn guarantee(&self, tenant: &Name) -> Option<GuaranteeView> {
        let rate = self.allotments.get(tenant)?.min_bandwidth?;
        let share = self.effective(tenant)?;
        Some(GuaranteeView { min_bandwidth: rate.0, share, kept_ratio: None, windows: None })
    }
}

fn part(ppb: u64) -> f64 {
    ppb as f64 / Share::ONE.ppb() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(of: &[(&str, Option<&str>, Option<&str>)]) -> Shares {
        let allotment = |&(name, asked, planned): &(&str, Option<&str>, Option<&str>)| {
            let share = |text: Option<&str>| text.map(|text| text.parse().unwrap());
            let spec = TenantSpec {
                share: share(asked),
                auto_share: asked.is_none() && planned.is_some(),
                planned_share: share(planned),
                ..TenantSpec::default()
            };
            (name.parse().unwrap(), spec)
        };
        Shares::new(of.iter().map(allotment).collect())
    }

    fn effective(of: &[(&str, Option<&str>, Option<&str>)]) -> Vec<f64> {
        let shares = shares(of);
        let names: Vec<Name> = of.iter().map(|(name, ..)| name.parse().unwrap()).collect();
        assert!(names.iter().map(|name| shares.effective_ppb(name).unwrap()).sum::<u64>() <= Share::ONE.ppb());
        names.iter().map(|name| (shares.effective(name).unwrap() * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn a_planned_share_yields_to_promises_and_newcomers() {
        let planned = [("a", None, Some("3/4")), ("b", None, Some("1/4"))];
        assert_eq!(effective(&planned), [0.75, 0.25]);
        let with_promise = [planned[0], planned[1], ("c", Some("1/2"), None)];
        assert_eq!(effective(&with_promise), [0.375, 0.125, 0.5]);
        let with_newcomer = [planned[0], planned[1], ("c", None, None)];
        assert_eq!(effective(&with_newcomer), [0.5, 0.167, 0.333]);
        let beyond_promise = [("a", Some("1/4"), Some("1/2")), ("b", None, Some("1/2"))];
        assert_eq!(effective(&beyond_promise), [0.5, 0.5]);
        assert_eq!(effective(&[("a", Some("1/4"), Some("1")), ("b", Some("1/2"), None)]), [0.5, 0.5]);
        assert_eq!(effective(&[("a", None, None), ("b", None, Some("1/8"))]), [0.875, 0.125], "the rest is not lost");
    }

    #[test]
    fn what_may_be_planned_leaves_an_even_part_to_others() {
        let free = |of: &[(&str, Option<&str>, Option<&str>)]| Shares::plannable(shares(of).allotments);
        assert_eq!(free(&[("a", None, Some("1/8")), ("b", None, None), ("c", Some("1/2"), None)]), 0.25);
        assert_eq!(free(&[("a", Some("1/4"), None)]), 0.75);
        assert_eq!(free(&[("a", None, None)]), 0.0);
    }
}
