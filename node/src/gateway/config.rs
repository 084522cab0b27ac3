//! What a gateway to a cluster is told: flags and the table `[gateway]` of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use engine::nbd::Uri;
use serde::{Deserialize, Serialize};

use crate::quantity::{Name, Time};

/// How long a volume without clients stays open, so that a client that connects again finds its cache.
const IDLE_DEFAULT: Duration = Duration::from_secs(60);

/// A gateway to a cluster.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
#[group(id = "gateway_options")]
pub struct Options {
    /// Be a gateway to a cluster: clients open its volumes here
    #[arg(long = "gateway")]
    #[serde(skip)]
    pub is_gateway: bool,
    /// Servers of the cluster, of which one has to answer: nbds://HOST:PORT, nbd://HOST:PORT,
    /// nbd+unix://?socket=PATH, or HOST[:PORT]; several are separated by commas
    #[arg(long = "cluster-servers", value_name = "LIST", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// The directory with ca-cert.pem, client-cert.pem and client-key.pem of this gateway, for servers with TLS
    #[arg(long = "cluster-certificates", value_name = "DIR")]
    pub certificates: Option<PathBuf>,
    /// How long a request waits for a server that is away, then it fails [default: 60s]
    #[arg(long = "cluster-deadline", value_name = "TIME")]
    pub deadline: Option<Time>,
    /// How long a volume without clients stays open [default: 60s]
    #[arg(skip)]
    pub idle: Option<Time>,
}

/// The same, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    pub servers: Vec<Server>,
    pub certificates: Option<PathBuf>,
    pub deadline: Time,
    pub idle: Duration,
}

/// The address of a server, without a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server(String);

impl Server {
    fn parse(text: &str, is_encrypted: bool) -> anyhow::Result<Server> {
        let scheme = if is_encrypted { "nbds" } else { "nbd" };
        let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
        let uri: Uri = full.parse().with_context(|| format!("'{text}' is no address of a server"))?;
        ensure!(uri.name.is_empty(), "'{text}' names a volume: a gateway needs the address of the server only");
        ensure!(!text.is_empty(), "an address in --cluster-servers is empty");
        ensure!(!uri.tls || is_encrypted, "{text} needs TLS: name the certificates with --cluster-certificates DIR");
        Ok(Server(full))
    }

    /// The address of a volume there.
    pub fn of(&self, name: &Name) -> String {
        crate::cluster::layout::address_of(&self.0, name)
    }
}

impl Options {
    /// These options where they are given, else those.
    pub fn or(self, other: Options) -> Options {
        Options {
            is_gateway: self.is_gateway || !other.servers.is_empty(),
            servers: if self.servers.is_empty() { other.servers } else { self.servers },
            certificates: self.certificates.or(other.certificates),
            deadline: self.deadline.or(other.deadline),
            idle: self.idle.or(other.idle),
        }
    }

    /// The settings of a gateway; `None` for a server that is none.
    pub fn settings(&self) -> anyhow::Result<Option<Settings>> {
        if !self.is_gateway {
            let is_needless = !self.servers.is_empty() || self.certificates.is_some() || self.deadline.is_some();
            ensure!(!is_needless, "--cluster-servers and the like are those of a gateway: give --gateway, too");
            return Ok(None);
        }
        if let Some(directory) = &self.certificates {
            ensure!(directory.is_absolute(), "--cluster-certificates {} is not absolute", directory.display());
        }
        let servers = self.servers.iter().map(|server| Server::parse(server, self.certificates.is_some()));
        let servers = servers.collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(!servers.is_empty(), "a gateway needs the servers of its cluster: --cluster-servers HOST,…");
        let deadline = self.deadline.unwrap_or(crate::store::remote::DEADLINE_DEFAULT);
        Ok(Some(Settings {
            servers,
            certificates: self.certificates.clone(),
            deadline,
            idle: self.idle.map_or(IDLE_DEFAULT, |idle| idle.0),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(servers: &[&str], certificates: Option<&str>) -> anyhow::Result<Option<Settings>> {
        let servers = servers.iter().map(|server| (*server).to_owned()).collect();
        Options { is_gateway: true, servers, certificates: certificates.map(PathBuf::from), ..Options::default() }
            .settings()
    }

    #[test]
    fn servers_have_addresses() {
        assert!(Options::default().settings().unwrap().is_none());
        let of = |server: &str, certificates| {
            given(&[server], certificates).unwrap().unwrap().servers[0].of(&"big".parse().unwrap())
        };
        assert_eq!(of("s1", None), "nbd://s1/big");
        assert_eq!(of("s1:99", Some("/pki")), "nbds://s1:99/big");
        assert_eq!(of("nbd+unix://?socket=/run/s1", None), "nbd+unix:///big?socket=/run/s1");
        for (servers, certificates, part) in [
            (&["nbds://s1"][..], None, "--cluster-certificates"),
            (&["nbd://s1/big"], None, "names a volume"),
            (&["http://s1"], None, "no address"),
            (&[""], None, "empty"),
            (&[], None, "--cluster-servers"),
            (&["s1"], Some("pki"), "not absolute"),
        ] {
            let why = format!("{:#}", given(servers, certificates).unwrap_err());
            assert!(why.contains(part), "{servers:?}: {why}");
        }
    }
}
