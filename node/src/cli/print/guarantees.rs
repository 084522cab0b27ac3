//! Guarantees: in the lists of tenants and volumes, in the table of `top`, and the windows that were missed.

use super::{bytes, ratio, table};
use crate::control::view::{GuaranteeView, ViolationView, ViolationsView, WindowsView};
use crate::quantity::duration;

/// A bandwidth.
pub(super) fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", bytes(bytes_per_second))
}

/// What is promised, and how often it was kept.
pub(super) fn guarantee(of: &GuaranteeView) -> String {
    let kept = of.kept_ratio.map_or_else(String::new, |kept| format!("\nrecently met {}", ratio(kept.min(1.0))));
    let windows = of.windows.map_or_else(String::new, |windows| format!("\n{}", windows.in_words()));
    of.promise() + &kept + &windows
}

/// The guarantee, and how much of the promise the tenant got.
pub(super) fn guarantee_met(of: &GuaranteeView) -> String {
    let met = of.kept_ratio.map_or_else(String::new, |kept| format!(" met {:.0}%", (kept * 100.0).floor().min(100.0)));
    rate(of.min_bandwidth) + &met
}

/// The output of `tenant violations`.
pub fn violations(all: &ViolationsView) -> String {
    let mut text = String::new();
    if all.violations.is_empty() {
        text += "no missed windows\n";
    } else {
        let headings = [
            "BEGAN",
            "DISK",
            " TOOK",
            " DEMAND",
            " BYTES",
            " GUARANTEE",
            " IN SLICES",
            " USEFUL",
            " SHARE",
            " R",
            " ALONE",
            "MISSED",
        ];
        text += &table(&headings, all.violations.iter().map(row).collect());
    }
    text += "\n";
    for on in &all.guarantees {
        let (promise, windows) = (on.guarantee.promise(), on.guarantee.windows.unwrap_or_default());
        text += &format!("disk '{}': {promise}; {}\n", on.disk, WindowsView::in_words(&windows));
    }
    if all.guarantees.is_empty() {
        text += &format!("'{0}' has no guarantee: `aerogel tenant set {0} --min-bandwidth RATE`\n", all.tenant);
    }
    text
}

fn row(of: &ViolationView) -> Vec<String> {
    vec![
        of.at.clone(),
        of.disk.clone(),
        duration(of.seconds),
        duration(of.demand_seconds),
        bytes(of.bytes),
        rate(of.min_bandwidth),
        duration(of.slice_seconds),
        duration(of.useful_seconds),
        ratio(of.share),
        format!("{:.2}", of.insulation),
        of.own_rate.map_or("-".into(), rate),
        format!("{}{}", of.class.name(), if of.marginal { ", marginal" } else { "" }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::view::{DiskGuarantee, ViolationClass};

    fn promise(kept_ratio: Option<f64>) -> GuaranteeView {
        let windows = Some(WindowsView { met: 118, avoidable: 2, marginal: 1, ..WindowsView::default() });
        GuaranteeView { min_bandwidth: 30 << 20, share: 0.25, kept_ratio, windows }
    }

    #[test]
    fn what_is_met_is_shown_without_rounding_up() {
        assert_eq!(guarantee_met(&promise(None)), "30MiB/s");
        assert_eq!(guarantee_met(&promise(Some(0.989))), "30MiB/s met 98%");
        assert_eq!(guarantee_met(&promise(Some(4.2))), "30MiB/s met 100%");
    }

    #[test]
    fn a_missed_window_is_shown_with_its_evidence() {
        let window = ViolationView {
            disk: "hdd".into(),
            at: "2026-11-24T17:00:00Z".into(),
            class: ViolationClass::Avoidable,
            marginal: true,
            seconds: 16.2,
            demand_seconds: 16.0,
            bytes: 450 << 20,
            min_bandwidth: 30 << 20,
            slice_seconds: 3.9,
            useful_seconds: 3.6,
            share: 0.25,
            insulation: 0.9,
            own_rate: Some(125 << 20),
        };
        let guarantees = vec![DiskGuarantee { disk: "hdd".into(), guarantee: promise(None) }];
        let text = violations(&ViolationsView { tenant: "db".into(), guarantees, violations: vec![window] });
        for part in [
            "2026-11-24T17:00:00Z  hdd",
            "450MiB",
            "30MiB/s",
            "3.9 s",
            "3.6 s",
            "25%",
            "0.90",
            "125MiB/s",
            "avoidable, marginal",
            "118 of 120 windows met",
            "0 fundamental, 2 avoidable, 1 of them marginal",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let none = violations(&ViolationsView { tenant: "db".into(), guarantees: vec![], violations: vec![] });
        assert!(none.contains("no missed windows") && none.contains("tenant set db --min-bandwidth"), "{none}");
    }
}
