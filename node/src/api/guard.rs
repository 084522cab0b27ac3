//! Access control over TCP. Pages in a browser on this machine can reach a loopback listener, too, by a name that their
//! author resolves to this address (DNS rebinding). Therefore the host name in a request is checked, and changes need a
//! token.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, StatusCode, header};

use super::routes::Failure;

/// The requirements for TCP clients.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// The token that changes need. Without one, changes over TCP are refused.
    pub token: Option<String>,
    /// Host names of the server, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// The socket where changes are always possible, for the hint.
    pub socket: String,
}

impl Guard {
    /// Checks a request.
    pub fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or(""));
        let host = text(header::HOST).unwrap_or("");
        if !self.is_known(host) {
            let hint = "call it by its IP address or as localhost, or add the name to http_hosts in the configuration";
            let error = format!("this server is not known as '{}'", host.escape_debug());
            return Err(Failure::new(StatusCode::FORBIDDEN, error, Some(hint.into())));
        }
        if let Some(origin) = text(header::ORIGIN)
            && origin.split_once("://").map(|(_, rest)| rest) != Some(host)
        {
            let error = format!("pages of '{}' may not use this server", origin.escape_debug());
            return Err(Failure::new(StatusCode::FORBIDDEN, error, None));
        }
        if method.is_safe() || self.has_token(text(header::AUTHORIZATION).unwrap_or("")) {
            return Ok(());
        }
        let hint = format!(
            "use the Unix socket {}, or set http_token_file and send `Authorization: Bearer TOKEN`",
            self.socket
        );
        Err(Failure::new(StatusCode::FORBIDDEN, "over TCP the API is read-only without a token", Some(hint)))
    }

    fn is_known(&self, host: &str) -> bool {
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(""),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        bare.parse::<IpAddr>().is_ok() || bare == "localhost" || self.hosts.iter().any(|known| known == bare)
    }

    /// Compares in constant time, so that the duration does not show how much of the token was right.
    fn has_token(&self, authorization: &str) -> bool {
        let (Some(token), Some(given)) = (&self.token, authorization.strip_prefix("Bearer ")) else { return false };
        let differing = token.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        token.len() == given.len() && differing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(token: Option<&str>, method: Method, headers: &[(&str, &str)]) -> bool {
        let guard = Guard { token: token.map(Into::into), hosts: vec!["storage.lan".into()], socket: String::new() };
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        guard.check(&method, &pairs.collect::<HeaderMap>()).is_ok()
    }

    #[test]
    fn names_and_origins_are_checked() {
        for host in ["127.0.0.1:8809", "localhost:8809", "[::1]:8809", "storage.lan", "10.0.0.1"] {
            assert!(allowed(None, Method::GET, &[("host", host)]), "{host}");
        }
        for host in ["evil.example:8809", "", "localhost.evil.example", "127.0.0.1.evil.example"] {
            assert!(!allowed(None, Method::GET, &[("host", host)]), "{host}");
        }
        let host = ("host", "localhost:8809");
        assert!(allowed(None, Method::GET, &[host, ("origin", "http://localhost:8809")]));
        assert!(!allowed(None, Method::GET, &[host, ("origin", "http://evil.example")]));
        assert!(!allowed(None, Method::GET, &[host, ("origin", "null")]));
    }

    #[test]
    fn changes_need_the_token() {
        let host = ("host", "localhost");
        assert!(!allowed(None, Method::POST, &[host]));
        assert!(!allowed(None, Method::POST, &[host, ("authorization", "Bearer ")]));
        assert!(!allowed(Some("right"), Method::DELETE, &[host, ("authorization", "Bearer wrong")]));
        assert!(allowed(Some("right"), Method::DELETE, &[host, ("authorization", "Bearer right")]));
    }
}
