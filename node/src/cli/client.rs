//! HTTP client for `DIR/api.sock`.

use std::path::Path;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::address::check_unix_path;
use crate::config::api_socket;
use crate::control::view::Problem;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server answers at the socket.
    #[error("{0}")]
    NoServer(String),
    /// The server refused the request.
    #[error("{}", .1.error)]
    Refused(StatusCode, Problem),
    /// The connection failed, or the answer was malformed.
    #[error("the server did not answer properly: {0}")]
    Broken(String),
}

impl ClientError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            ClientError::Refused(_, problem) => problem.hint.as_deref(),
            ClientError::NoServer(_) => Some(
                "start one with `aerogel serve`, or name the directory of a running one with --data or AEROGEL_DATA",
            ),
            ClientError::Broken(_) => None,
        }
    }
}

impl ClientError {
    /// The exit status of a failed command.
    pub fn exit_status(&self) -> u8 {
        match self {
            ClientError::NoServer(_) => 3,
            // Invalid requests have the exit status of invalid command lines.
            ClientError::Refused(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, _) => 2,
            ClientError::Refused(..) | ClientError::Broken(_) => 1,
        }
    }
}

fn broken(error: impl std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// Sends a request to the server whose directory is `data`.
pub async fn ask(data: &Path, method: Method, path: &str, body: Option<Value>) -> Result<Value, ClientError> {
    let socket = api_socket(data);
    check_unix_path(&socket).map_err(|error| ClientError::NoServer(error.to_string()))?;
    let no_server = |error| ClientError::NoServer(format!("no server answers at {}: {error}", socket.display()));
    let stream = UnixStream::connect(&socket).await.map_err(no_server)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection);
    let bytes = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(bytes)))
        .map_err(broken)?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(broken);
    }
    Err(serde_json::from_slice(&bytes).map_or_else(broken, |problem| ClientError::Refused(status, problem)))
}
