//! Commands on off-loading that take a while.

use std::io::Write;
use std::time::Duration;

use hyper::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::client::{ClientError, ask};
use super::request::Request;
use super::{Reach, read};
use crate::control::view::{Done, OffloadStoreState, OffloadStoreView, OffloadView};
use crate::quantity::Name;
use crate::store::offload::StoreRef;

/// The interval of progress updates.
const LOOK: Duration = Duration::from_millis(200);

/// Ends off-loading, or removes a store, by awaiting `begun`, and shows how much is still to come home until that has
/// ended. An interrupt ends the command only. A store that is waited for is named.
pub async fn follow(
    reach: &Reach,
    disk: &Name,
    store: Option<&StoreRef>,
    begun: impl Future<Output = Result<Value, ClientError>>,
) -> Result<Value, ClientError> {
    begun.await?;
    let path = format!("/v1/offload/{disk}");
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {elapsed}");
    let bar = if reach.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (mut most, mut told) = (0, Vec::new());
    loop {
        let view: OffloadView = match ask(&reach.data, Method::GET, &path, None).await {
            Err(ClientError::Refused(StatusCode::NOT_FOUND, _)) => break,
            answer => read(answer?)?,
        };
        let Some(remaining) = remaining(&view, store) else { break };
        let waits = waits(&view);
        for line in waits.iter().filter(|line| !told.contains(*line)) {
            bar.suspend(|| eprintln!("{line}"));
        }
        told = waits;
        most = most.max(remaining);
        bar.set_length(most);
        bar.set_position(most - remaining);
        tokio::time::sleep(LOOK).await;
    }
    bar.finish_and_clear();
    let message = match store {
        Some(store) => format!("disk '{disk}' does without store '{store}' now"),
        None => format!("everything of disk '{disk}' is home; its writes are not off-loaded any more"),
    };
    Ok(json!(Done { message, disk: None, volume: None, tenant: None }))
}

/// The stores that are waited for, and what can be done.
fn waits(view: &OffloadView) -> Vec<String> {
    let away = view.stores.iter().filter(|it| it.state != OffloadStoreState::Lost && it.used_bytes > 0);
    let line = |it: &OffloadStoreView| {
        let (disk, store) = (&view.disk, &it.store);
        Some(format!(
            "waiting for store '{store}': {}. If it is gone for good: `aerogel offload store remove {disk} {store} \
             --lost --yes`, then restart the server",
            it.failure.as_ref()?
        ))
    };
    away.filter_map(line).collect()
}

/// Bytes that are to come home, of a store or all. `None` if the disk does not use that store any more.
fn remaining(view: &OffloadView, store: Option<&StoreRef>) -> Option<u64> {
    let Some(store) = store.map(StoreRef::to_string) else { return Some(view.offloaded_bytes) };
    let leaving = view.stores.iter().find(|it| it.store == store && it.state != OffloadStoreState::Lost);
    leaving.map(|it| it.offloaded_bytes)
}

/// Prints the answer to a request at an interval, until the output is closed or the command is interrupted.
pub async fn watch(reach: &Reach, request: &Request, interval: Duration) -> Result<Value, ClientError> {
    loop {
        let answer = ask(&reach.data, request.method.clone(), &request.path, None).await?;
        let text = if reach.json { format!("{answer}\n") } else { (request.print)(answer)? + "\n" };
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(Value::Null);
        }
        drop(out);
        tokio::time::sleep(interval).await;
    }
}
