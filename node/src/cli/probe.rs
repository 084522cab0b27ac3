//! Shows the progress of a probe until it ends.

use std::time::Duration;

use hyper::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::client::{ClientError, ask};
use super::{Reach, read};
use crate::control::view::{DiskView, Done, ProbeState, ProbeView, Problem};
use crate::quantity::Name;

/// The interval of progress updates.
const LOOK: Duration = Duration::from_millis(200);
/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// Starts a probe by awaiting `begun`, and shows its progress until it ends. An interrupt (Ctrl-C) cancels it. Returns
/// the summary, and the disk.
pub async fn follow(
    reach: &Reach,
    disk: &Name,
    begun: impl Future<Output = Result<Value, ClientError>>,
) -> Result<Value, ClientError> {
    // Registered before the probe starts, so that a later interrupt cannot leave it running.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| ClientError::Broken(error.to_string()))?;
    begun.await?;
    let path = format!("/v1/disks/{disk}/probe");
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} % {elapsed} {msg}");
    let bar = if reach.json { ProgressBar::hidden() } else { ProgressBar::new(STEPS) };
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let view = loop {
        let view: ProbeView = read(ask(&reach.data, Method::GET, &path, None).await?)?;
        if view.state != ProbeState::Running {
            break view;
        }
        bar.set_position((view.done_ratio * STEPS as f64) as u64);
        bar.set_message(view.doing);
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = interrupt.recv() => {
                // The probe may have ended already.
                let _ = ask(&reach.data, Method::DELETE, &path, None).await;
            }
        }
    };
    bar.finish_and_clear();
    let message = view.message.unwrap_or_default();
    let refused = |what: &str| {
        let error = format!("the probe of disk '{disk}' {what}");
        Err(ClientError::Refused(StatusCode::CONFLICT, Problem { error, hint: None }))
    };
    match view.state {
        ProbeState::Done => {
            let shown: DiskView = read(ask(&reach.data, Method::GET, &format!("/v1/disks/{disk}"), None).await?)?;
            Ok(json!(Done {
                message: format!("the probe of disk '{disk}' is complete; {message}"),
                disk: Some(shown),
                volume: None,
                tenant: None,
            }))
        }
        ProbeState::Failed => refused(&format!("failed: {message}")),
        _ => refused("was cancelled"),
    }
}
