//! HTTP client of the API: over `DIR/api.sock`, another Unix socket, or TCP.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};

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

fn broken(error: impl fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

/// Where the API of a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// The directory of the server.
    Directory(PathBuf),
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

/// Why a text names no server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlaceError {
    /// Another form.
    #[error("'{0}' is no server: write http://HOST:PORT, unix:PATH, or the directory of a server on this machine")]
    Form(String),
    /// TLS.
    #[error("'{0}' has TLS, which the API has not: write http://HOST:PORT of what is in front of it on this machine")]
    Tls(String),
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Place, PlaceError> {
        let wrong = || PlaceError::Form(text.into());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Place::Unix(path.into())) };
        }
        if let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("tcp:")) {
            let (host, port) = rest.strip_suffix('/').unwrap_or(rest).rsplit_once(':').ok_or_else(wrong)?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let is_host = !host.is_empty() && !host.contains('/');
            return port.parse().ok().filter(|_| is_host).map(|port| Place::Tcp(host.into(), port)).ok_or_else(wrong);
        }
        match text.split_once("://") {
            Some(("https", _)) => Err(PlaceError::Tls(text.into())),
            Some(_) => Err(wrong()),
            None if text.is_empty() => Err(wrong()),
            None => Ok(Place::Directory(text.into())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory(path) => write!(f, "{}", path.display()),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Tcp(host, port) if host.contains(':') => write!(f, "http://[{host}]:{port}"),
            Place::Tcp(host, port) => write!(f, "http://{host}:{port}"),
        }
    }
}

/// A request to be sent.
struct Outgoing<'a> {
    method: Method,
    path: &'a str,
    body: Option<Value>,
    host: &'a str,
    token: Option<&'a str>,
}

/// Sends a request to the server whose directory is `data`.
pub async fn ask(data: &Path, method: Method, path: &str, body: Option<Value>) -> Result<Value, ClientError> {
    let request = Outgoing { method, path, body, host: "localhost", token: None };
    send(connect_unix(&api_socket(data)).await?, request).await
}

/// Sends a request to a server, over TCP with a token if there is one.
pub async fn ask_at(
    place: &Place,
    token: Option<&str>,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, ClientError> {
    let outgoing = |host, token| Outgoing { method, path, body, host, token };
    match place {
        Place::Directory(data) => send(connect_unix(&api_socket(data)).await?, outgoing("localhost", None)).await,
        Place::Unix(socket) => send(connect_unix(socket).await?, outgoing("localhost", None)).await,
        Place::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await;
            let no_server = |error| ClientError::NoServer(format!("no server answers at {place}: {error}"));
            let authority = place.to_string();
            let authority = authority.trim_start_matches("http://");
            send(stream.map_err(no_server)?, outgoing(authority, token)).await
        }
    }
}

async fn connect_unix(socket: &Path) -> Result<UnixStream, ClientError> {
    check_unix_path(socket).map_err(|error| ClientError::NoServer(error.to_string()))?;
    let no_server = |error| ClientError::NoServer(format!("no server answers at {}: {error}", socket.display()));
    UnixStream::connect(socket).await.map_err(no_server)
}

async fn send<S>(stream: S, outgoing: Outgoing<'_>) -> Result<Value, ClientError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let Outgoing { method, path, body, host, token } = outgoing;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection);
    let bytes = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(bytes))).map_err(broken)?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(broken);
    }
    Err(serde_json::from_slice(&bytes).map_or_else(broken, |problem| ClientError::Refused(status, problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_servers() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("http://10.0.0.1:8809"), Ok(Place::Tcp("10.0.0.1".into(), 8809)));
        assert_eq!(place("http://[::1]:8809/"), Ok(Place::Tcp("::1".into(), 8809)));
        assert_eq!(place("tcp:10.0.0.1:8809"), place("http://10.0.0.1:8809"));
        assert_eq!(place("unix:/run/aerogel.sock"), Ok(Place::Unix("/run/aerogel.sock".into())));
        assert_eq!(place("/var/lib/aerogel"), Ok(Place::Directory("/var/lib/aerogel".into())));
        assert_eq!(place("http://[::1]:8809/").unwrap().to_string(), "http://[::1]:8809");
        for wrong in ["", "unix:", "http://host", "http://:80", "http://a/b:80", "ftp://a:1", "nbd://a:1"] {
            assert!(matches!(place(wrong), Err(PlaceError::Form(_))), "{wrong}");
        }
        assert!(matches!(place("https://a:1"), Err(PlaceError::Tls(_))));
    }
}
