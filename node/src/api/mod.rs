//! The HTTP/JSON API: unrestricted on `DIR/api.sock`, guarded on TCP.

mod cluster;
mod guard;
mod metrics;
mod routes;
mod serve;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};

pub use guard::Guard;
use routes::{Failure, routes};
pub use serve::{Purpose, serve};

use crate::cluster::Cluster;
use crate::control::{Control, Error};

/// Bytes of a request's body at most. The largest sensible one, an access list of 64 long rules, has about 66,000.
const BODY_BYTES_MAX: usize = 128 << 10;
/// Time limit of queries. They take a second or two at most if a disk does not answer.
const LOOK_TIMEOUT: Duration = Duration::from_secs(15);

/// The API without restrictions.
pub fn router(control: Arc<Control>, cluster: Option<Arc<Cluster>>) -> Router {
    let (router, document) = routes();
    router
        .fallback(|request: Request| async move { unknown(StatusCode::NOT_FOUND, &request) })
        .method_not_allowed_fallback(
            |request: Request| async move { unknown(StatusCode::METHOD_NOT_ALLOWED, &request) },
        )
        .layer(Extension(Arc::new(document)))
        .layer(Extension(cluster))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(bound))
        .with_state(control)
}

/// Limits the time of queries. Changes are not limited here; they limit the time of their own answers.
async fn bound(request: Request, next: Next) -> Response {
    if !request.method().is_safe() {
        return next.run(request).await;
    }
    match tokio::time::timeout(LOOK_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Failure::from(Error::Unanswered("the request", LOOK_TIMEOUT.as_secs())).into_response(),
    }
}

fn unknown(status: StatusCode, request: &Request) -> Failure {
    let error = format!("there is no {} {}", request.method(), request.uri().path());
    Failure::new(status, error, Some("GET /openapi.json describes the API".into()))
}

/// The API with the requirements for TCP clients.
pub fn guarded(control: Arc<Control>, cluster: Option<Arc<Cluster>>, guard: Guard) -> Router {
    let check = move |request: Request, next: Next| {
        let checked = guard.check(request.method(), request.headers());
        async move {
            match checked {
                Ok(()) => next.run(request).await,
                Err(failure) => failure.into_response(),
            }
        }
    };
    router(control, cluster).layer(middleware::from_fn(check))
}

#[cfg(test)]
mod tests;
