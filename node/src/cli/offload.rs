//! Commands on off-loading that take a while.

use std::io::Write;
use std::time::Duration;

use hyper::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::client::{ClientError, ask};
use super::request::Request;
use super::{Reach, read};
use crate::control::view::{Done, OffloadView};
use crate::quantity::Name;

/// The interval of progress updates.
const LOOK: Duration = Duration::from_millis(200);

/// Ends off-loading by awaiting `begun`, and shows how much is still to come home until it has ended. An interrupt ends
/// the command only.
pub async fn follow(
    reach: &Reach,
    disk: &Name,
    begun: impl Future<Output = Result<Value, ClientError>>,
) -> Result<Value, ClientError> {
    begun.await?;
    let path = format!("/v1/offload/{disk}");
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {elapsed}");
    let bar = if reach.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut most = 0;
    loop {
        let view: OffloadView = match ask(&reach.data, Method::GET, &path, None).await {
            Err(ClientError::Refused(StatusCode::NOT_FOUND, _)) => break,
            answer => read(answer?)?,
        };
        most = most.max(view.offloaded_bytes);
        bar.set_length(most);
        bar.set_position(most - view.offloaded_bytes);
        tokio::time::sleep(LOOK).await;
    }
    bar.finish_and_clear();
    let message = format!("everything of disk '{disk}' is home; its writes are not off-loaded any more");
    Ok(json!(Done { message, disk: None, volume: None, tenant: None }))
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
