//! HTTP over `DIR/api.sock`.

use std::path::Path;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::address::check_unix_path;
use crate::config::api_socket;
use crate::control::view::Problem;

/// Why there is no answer to show.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is there.
    #[error("{0}")]
    NoServer(String),
    /// The server said no.
    #[error("{}", .0.error)]
    Refused(Problem),
    /// The conversation broke.
    #[error("the server did not answer properly: {0}")]
    Broken(String),
}

impl ClientError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            ClientError::Refused(problem) => problem.hint.as_deref(),
            ClientError::NoServer(_) => Some(
                "start one with `aerogel serve`, or name the directory of a running one with --data or AEROGEL_DATA",
            ),
            ClientError::Broken(_) => None,
        }
    }
}

fn broken(error: impl std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// Asks the server of a directory.
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
    let succeeded = response.status().is_success();
    let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
    if succeeded {
        return serde_json::from_slice(&bytes).map_err(broken);
    }
    Err(serde_json::from_slice(&bytes).map_or_else(broken, ClientError::Refused))
}
