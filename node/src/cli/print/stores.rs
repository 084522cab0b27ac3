//! Stores.

use super::{access, bytes, condition, latency, list, share, share_in_words, table};
use crate::control::view::{SliceView, StoreView};

/// A table of stores. The share is that of all stores of a disk together.
pub fn stores(stores: &[StoreView]) -> String {
    if stores.is_empty() {
        return "no stores: create one with `aerogel store create NAME --size SIZE`\n".into();
    }
    let headings = ["STORE", "DISK", " SIZE", " SHARE", "CLIENT", "ACCESS", " CLIENTS", "STATE"];
    let row = |store: &StoreView| {
        vec![
            store.name.clone(),
            store.disk.clone(),
            bytes(store.size_bytes),
            share(&store.share),
            store.session.as_ref().map_or("-".into(), |session| session.client.clone()),
            access(&store.allow, store.read_only),
            store.connections.to_string(),
            condition(store.condition),
        ]
    };
    table(&headings, stores.iter().map(row).collect())
}

/// All properties of a store.
pub fn store(store: &StoreView) -> String {
    let session = store.session.as_ref();
    let session = session.map_or_else(String::new, |it| format!("client '{}', epoch {}", it.client, it.epoch));
    let traffic = &store.traffic;
    list(&[
        ("store", store.name.clone()),
        ("state", condition(store.condition)),
        ("reason", store.reason.clone().unwrap_or_default()),
        ("warnings", store.warnings.join("\n")),
        ("open it at", store.uris.join("\n")),
        ("description", store.description.clone()),
        ("allow", store.allow.join("\n")),
        ("read-only", if store.read_only { "yes".into() } else { String::new() }),
        ("size", bytes(store.size_bytes)),
        ("disk", store.disk.clone()),
        ("data", store.path.clone()),
        ("tenant", format!("{}: all stores of the disk", store.tenant)),
        ("share", format!("{}, for all of them together", share_in_words(&store.share))),
        ("slice", store.slice.as_ref().map_or_else(String::new, SliceView::in_words)),
        ("latency", store.latency.as_ref().map_or_else(String::new, latency)),
        ("session", session),
        ("connections", store.connections.to_string()),
        ("reads", format!("{} ({})", traffic.reads, bytes(traffic.read_bytes))),
        ("writes", format!("{} ({})", traffic.writes, bytes(traffic.write_bytes))),
        ("flushes", traffic.flushes.to_string()),
        ("errors", traffic.errors.to_string()),
    ])
}
