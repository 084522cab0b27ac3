//! The HTTP/JSON API: everything on `DIR/api.sock`, guarded on TCP.

mod guard;
mod metrics;
mod routes;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::{Extension, Router};

pub use guard::Guard;
use routes::{Failure, routes};

use crate::address::Listener;
use crate::control::Control;

/// The API, with everything allowed.
pub fn router(control: Arc<Control>) -> Router {
    let (router, document) = routes();
    router
        .fallback(|request: Request| async move { unknown(StatusCode::NOT_FOUND, &request) })
        .method_not_allowed_fallback(
            |request: Request| async move { unknown(StatusCode::METHOD_NOT_ALLOWED, &request) },
        )
        .layer(Extension(Arc::new(document)))
        .with_state(control)
}

fn unknown(status: StatusCode, request: &Request) -> Failure {
    let error = format!("there is no {} {}", request.method(), request.uri().path());
    Failure::new(status, error, Some("GET /openapi.json describes what there is".into()))
}

/// The API with what TCP clients have to fulfil.
pub fn guarded(control: Arc<Control>, guard: Guard) -> Router {
    let check = move |request: Request, next: Next| {
        let checked = guard.check(request.method(), request.headers());
        async move {
            match checked {
                Ok(()) => next.run(request).await,
                Err(failure) => failure.into_response(),
            }
        }
    };
    router(control).layer(middleware::from_fn(check))
}

/// Serves until the process ends.
pub async fn serve(listener: Listener, router: Router) -> std::io::Result<()> {
    match listener {
        Listener::Unix(listener) => axum::serve(listener, router).await,
        Listener::Tcp(listener) => axum::serve(listener, router).await,
    }
}

#[cfg(test)]
mod tests;
