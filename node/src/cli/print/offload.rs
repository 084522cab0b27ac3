//! Off-loading.

use super::{bytes, list, table};
use crate::control::view::{OffloadPhase, OffloadStoreState, OffloadStoreView, OffloadView};
use crate::quantity::duration;

fn phase(view: &OffloadView) -> String {
    match view.phase {
        OffloadPhase::Starting => "starting".into(),
        OffloadPhase::Active if view.is_peak => "off-loading".into(),
        OffloadPhase::Active => "waiting for a peak".into(),
        OffloadPhase::Ending => "ending: everything is copied home".into(),
    }
}

fn age(view: &OffloadView) -> String {
    let more = if view.oldest_is_earlier { "over " } else { "" };
    view.oldest_s.map_or_else(|| "-".into(), |seconds| format!("{more}{}", duration(seconds)))
}

fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", bytes(bytes_per_s as u64))
}

/// A table of disks.
pub fn offload_list(all: &[OffloadView]) -> String {
    if all.is_empty() {
        return "no writes are off-loaded: `aerogel offload enable DISK --store STORE` begins it\n".into();
    }
    let row = |view: &OffloadView| {
        let stores: Vec<&str> = view.stores.iter().map(|store| store.store.as_str()).collect();
        vec![
            view.disk.clone(),
            stores.join(" "),
            view.copies.to_string(),
            bytes(view.offloaded_bytes),
            age(view),
            phase(view),
        ]
    };
    table(&["DISK", "STORES", " COPIES", " OFF-LOADED", " OLDEST", "STATE"], all.iter().map(row).collect())
}

/// Off-loading of one disk.
pub fn offload(view: &OffloadView) -> String {
    let text = list(&[
        ("disk", view.disk.clone()),
        ("state", phase(view)),
        ("reason", view.reason.clone().unwrap_or_default()),
        ("off-loaded", format!("{}, at most {} of a volume", bytes(view.offloaded_bytes), bytes(view.limit_bytes))),
        ("oldest", age(view)),
        ("off-load rate", rate(view.written_bytes_per_s)),
        ("reclaim rate", rate(view.reclaimed_bytes_per_s)),
        ("too few copies", if view.thin_bytes > 0 { bytes(view.thin_bytes) } else { String::new() }),
        ("copies", view.copies.to_string()),
        ("thresholds", format!("disk {}, store {}", view.base_threshold, view.store_threshold)),
        ("reclaim depth", view.reclaim_depth.to_string()),
        ("peaks", format!("{} switches on and off", view.switches)),
        ("volumes", view.volumes.join("\n")),
        ("left out", view.except.join("\n")),
    ]);
    format!("{text}\n{}", stores(&view.stores))
}

fn stores(stores: &[OffloadStoreView]) -> String {
    let row = |store: &OffloadStoreView| {
        let state = match store.state {
            OffloadStoreState::Reading => format!("reading: {}", bytes(store.scanned_bytes)),
            OffloadStoreState::Online => "online".into(),
            OffloadStoreState::Connecting => "connecting".into(),
            OffloadStoreState::Missing => "MISSING".into(),
            OffloadStoreState::Lost => "removed".into(),
        };
        let leaving = || format!("leaving, {} left", bytes(store.offloaded_bytes));
        let state = match store.leaving {
            true if store.state == OffloadStoreState::Online => leaving(),
            true => format!("{}, {state}", leaving()),
            false => state,
        };
        let failure = store.failure.as_ref().map_or_else(String::new, |failure| format!(": {failure}"));
        vec![
            store.store.clone(),
            bytes(store.offloaded_bytes),
            bytes(store.used_bytes),
            bytes(store.log_bytes),
            store.load.to_string(),
            state + &failure,
        ]
    };
    table(&["STORE", " OFF-LOADED", " LOG USED", " LOG", " LOAD", "STATE"], stores.iter().map(row).collect())
}
