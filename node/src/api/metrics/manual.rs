//! Compares `docs/manual/metrics.md` with the metrics that are exported.

use std::cell::RefCell;
use std::collections::BTreeMap;

use prometheus_client::metrics::MetricType;

use super::encode;
use crate::control::Standing;

const MANUAL: &str = include_str!("../../../../docs/manual/metrics.md");
/// The operations for which `OP` stands.
const OPS: [&str; 4] = ["read", "write", "flush", "other"];

thread_local! {
    /// The metrics that were encoded, with and without values, each with its type in words.
    static NOTED: RefCell<BTreeMap<String, &'static str>> = RefCell::default();
}

/// Records a metric, which is exported as soon as it has values.
pub(super) fn note(name: &str, kind: MetricType) {
    let (name, kind) = match kind {
        MetricType::Counter => (format!("{name}_total"), "counter"),
        MetricType::Gauge => (name.to_owned(), "gauge"),
        MetricType::Histogram => (name.to_owned(), "histogram"),
        MetricType::Info | MetricType::Unknown => (name.to_owned(), "other"),
    };
    NOTED.with_borrow_mut(|noted| noted.insert(name, kind));
}

/// All metrics with their types. They are encoded even if there is no disk: only their values are missing.
fn exported() -> BTreeMap<String, &'static str> {
    encode(Vec::new(), Standing { started_s: 0.0, disks: Vec::new() }, None).unwrap();
    NOTED.take()
}

/// The names and types in the tables of the manual.
fn documented() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for row in MANUAL.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let names = cells[0].split('`').skip(1).step_by(2);
        let names = names.filter(|name| name.starts_with("aerogel_") || name.starts_with("process_"));
        for name in names {
            let kind = cells[1].split(' ').next().unwrap_or_default();
            let all = OPS.map(|op| name.replace("_OP_", &format!("_{op}_")));
            found.extend(all.map(|name| (name, kind.to_owned())));
        }
    }
    found.remove("aerogel_volume_flush_bytes_total");
    found
}

#[test]
fn the_manual_has_every_metric_with_its_type_and_no_other() {
    let (exported, documented) = (exported(), documented());
    assert!(exported.len() > 80, "{} metrics", exported.len());
    let undocumented: Vec<_> = exported.keys().filter(|name| !documented.contains_key(*name)).collect();
    assert!(undocumented.is_empty(), "docs/manual/metrics.md lacks {undocumented:?}");
    for (name, kind) in &documented {
        assert_eq!(exported.get(name), Some(&kind.as_str()), "docs/manual/metrics.md: {name}");
    }
}
