//! How a server takes part in a cluster: flags and the table `[cluster]` of the configuration. etcd's credentials are
//! named as etcd's own tools name them, and so are the variables of the environment that count without them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use engine::nbd::{Place, Uri};
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use serde::{Deserialize, Serialize};

use crate::quantity::{Name, Time, as_text};

/// How long a connection to etcd may take to be opened.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection to etcd that is silent for so long is probed, and has so long to answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(3));
/// Permitted values of `change_timeout`: etcd itself takes seconds to elect a leader, and a client waits for a change.
const CHANGE_TIMEOUT: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(50);

/// What takes part in which cluster, and how.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Join the cluster whose state is in this etcd: http://HOST:PORT or https://HOST:PORT; several are separated by
    /// commas [default: $ETCDCTL_ENDPOINTS]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub etcd: Vec<String>,
    /// The name of the cluster: its state is below /aerogel/NAME/ in etcd
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<Name>,
    /// The name of this server in the cluster
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// Where clients reach the volumes of this server: nbd://HOST:PORT, nbds://HOST:PORT or
    /// nbd+unix://?socket=PATH
    #[arg(long, value_name = "URI")]
    pub advertise: Option<String>,
    /// The disk that takes part in the cluster [default: the only one with volumes of its own]
    #[arg(long, value_name = "NAME")]
    pub cluster_disk: Option<Name>,
    /// The authorities of etcd's certificate, a PEM file [default: $ETCDCTL_CACERT]
    #[arg(long, value_name = "FILE")]
    pub etcd_cacert: Option<PathBuf>,
    /// The client certificate for etcd [default: $ETCDCTL_CERT]
    #[arg(long, value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,
    /// Its private key [default: $ETCDCTL_KEY]
    #[arg(long, value_name = "FILE")]
    pub etcd_key: Option<PathBuf>,
    /// The user of etcd, NAME[:PASSWORD] [default: $ETCDCTL_USER; the password: $ETCDCTL_PASSWORD]
    #[arg(long, value_name = "USER")]
    pub etcd_user: Option<String>,
    /// Whether the clock of this machine is synchronised: as the kernel says, or trusted
    #[arg(skip)]
    pub clock: Trust,
    /// The error of a trusted clock.
    #[arg(skip)]
    pub clock_error: Option<Precision>,
    /// The largest error of the clock with which the server has striped volumes.
    #[arg(skip)]
    pub clock_error_max: Option<Precision>,
    /// How long a change waits for the servers that it concerns.
    #[arg(skip)]
    pub change_timeout: Option<Time>,
}

/// What is known of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// What the kernel says of it (`adjtimex`).
    #[default]
    Kernel,
    /// It is synchronised in a way that the kernel does not know of.
    Trusted,
}

/// A short duration, such as `100us` or `2ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precision(pub Duration);

/// A text is not a short duration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not an error of a clock: write it as 100us or 2ms")]
pub struct NotPrecision(String);

impl FromStr for Precision {
    type Err = NotPrecision;

    fn from_str(text: &str) -> Result<Precision, NotPrecision> {
        let wrong = || NotPrecision(text.into());
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u32 = text[..split].parse().map_err(|_| wrong())?;
        match &text[split..] {
            "us" => Ok(Precision(Duration::from_micros(number.into()))),
            "ms" => Ok(Precision(Duration::from_millis(number.into()))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_micros() {
            us if us.is_multiple_of(1000) && us > 0 => write!(f, "{}ms", us / 1000),
            us => write!(f, "{us}us"),
        }
    }
}

as_text!(Precision);

/// A server's place in a cluster: checked options.
#[derive(Clone, Debug)]
pub struct Settings {
    /// etcd.
    pub endpoints: Vec<String>,
    /// The name of the cluster.
    pub cluster: Name,
    /// The name of this server.
    pub name: Name,
    /// Where clients reach it.
    pub advertise: String,
    /// The disk, if one is named.
    pub disk: Option<Name>,
    /// The error of the clock, if it is trusted.
    pub trusted_ns: Option<u64>,
    /// The largest error of the clock with striped volumes.
    pub clock_error_max_ns: u64,
    /// How long a change waits for the servers that it concerns.
    pub change_timeout: Duration,
    /// etcd's credentials.
    pub credentials: Credentials,
}

/// How etcd knows this server, and this server etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    cacert: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    user: Option<(String, String)>,
}

fn environment(name: &str) -> Option<String> {
    std::env::var(format!("ETCDCTL_{name}")).ok().filter(|value| !value.is_empty())
}

impl Options {
    /// These options where they are given, else those.
    pub fn or(self, other: Options) -> Options {
        Options {
            etcd: if self.etcd.is_empty() { other.etcd } else { self.etcd },
            cluster: self.cluster.or(other.cluster),
            name: self.name.or(other.name),
            advertise: self.advertise.or(other.advertise),
            cluster_disk: self.cluster_disk.or(other.cluster_disk),
            etcd_cacert: self.etcd_cacert.or(other.etcd_cacert),
            etcd_cert: self.etcd_cert.or(other.etcd_cert),
            etcd_key: self.etcd_key.or(other.etcd_key),
            etcd_user: self.etcd_user.or(other.etcd_user),
            ..other
        }
    }

    /// The settings of a server that takes part in a cluster; `None` for one that does not. Other hosts are reached
    /// with TLS, unless that is not wanted.
    pub fn settings(&self, allow_insecure: bool) -> anyhow::Result<Option<Settings>> {
        self.settings_with(allow_insecure, environment)
    }

    fn settings_with(
        &self,
        allow_insecure: bool,
        environment: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<Settings>> {
        let Some(cluster) = self.cluster.clone() else {
            let needless = !self.etcd.is_empty() || self.name.is_some() || self.advertise.is_some();
            ensure!(
                !needless && self.cluster_disk.is_none(),
                "the name of the cluster is missing: name it with --cluster, as on its other servers"
            );
            return Ok(None);
        };
        let name = self.name.clone().context("the name of this server in the cluster is missing: --name NAME")?;
        let from_environment = || Some(environment("ENDPOINTS")?.split(',').map(str::to_owned).collect());
        let endpoints = Some(self.etcd.clone()).filter(|etcd| !etcd.is_empty()).or_else(from_environment);
        let endpoints: Vec<String> = endpoints.context("the address of etcd is missing: --etcd http://HOST:PORT")?;
        endpoints.iter().try_for_each(|url| check_endpoint(url, allow_insecure))?;
        let advertise = self.advertise.clone();
        let advertise =
            advertise.context("the address of this server's volumes is missing: --advertise nbd://HOST:PORT")?;
        check_advertised(&advertise)?;
        let change_timeout = self.change_timeout.map_or(Duration::from_secs(20), |time| time.0);
        ensure!(
            CHANGE_TIMEOUT.contains(&change_timeout),
            "cluster.change_timeout is {}: give {} to {}",
            Time(change_timeout),
            Time(*CHANGE_TIMEOUT.start()),
            Time(*CHANGE_TIMEOUT.end())
        );
        Ok(Some(Settings {
            endpoints,
            cluster,
            name,
            advertise,
            disk: self.cluster_disk.clone(),
            trusted_ns: self.trusted()?.map(nanos),
            clock_error_max_ns: nanos(self.clock_error_max.unwrap_or(Precision(Duration::from_millis(1)))),
            change_timeout,
            credentials: self.credentials(environment)?,
        }))
    }

    fn trusted(&self) -> anyhow::Result<Option<Precision>> {
        match (self.clock, self.clock_error) {
            (Trust::Kernel, None) => Ok(None),
            (Trust::Trusted, Some(error)) => Ok(Some(error)),
            (Trust::Trusted, None) => {
                bail!("cluster.clock is \"trusted\": state its error, such as cluster.clock_error = \"100us\"")
            }
            (Trust::Kernel, Some(_)) => {
                bail!("cluster.clock_error needs cluster.clock = \"trusted\": the kernel says it otherwise")
            }
        }
    }

    fn credentials(&self, environment: impl Fn(&str) -> Option<String>) -> anyhow::Result<Credentials> {
        let file =
            |given: &Option<PathBuf>, variable| given.clone().or_else(|| environment(variable).map(PathBuf::from));
        let (certificate, key) = (file(&self.etcd_cert, "CERT"), file(&self.etcd_key, "KEY"));
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => bail!("a client certificate for etcd has a certificate and a key: --etcd-cert and --etcd-key"),
        };
        let user = self.etcd_user.clone().or_else(|| environment("USER"));
        let user = user.map(|user| match user.split_once(':') {
            Some((name, password)) => Ok((name.to_owned(), password.to_owned())),
            None => match environment("PASSWORD") {
                Some(password) => Ok((user, password)),
                None => Err(anyhow!(
                    "the password of etcd's user '{user}' is missing: write NAME:PASSWORD, or set ETCDCTL_PASSWORD"
                )),
            },
        });
        Ok(Credentials { cacert: file(&self.etcd_cacert, "CACERT"), certificate, user: user.transpose()? })
    }
}

fn nanos(Precision(of): Precision) -> u64 {
    of.as_nanos() as u64
}

fn check_endpoint(url: &str, allow_insecure: bool) -> anyhow::Result<()> {
    let wrong = || anyhow!("'{url}' is not an address of etcd: write http://HOST:PORT or https://HOST:PORT");
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let host = rest.trim_end_matches('/').rsplit_once(':').map_or(rest, |(host, _)| host);
    ensure!(!host.is_empty() && (scheme == "http" || scheme == "https"), wrong());
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    ensure!(
        is_local || scheme == "https" || allow_insecure,
        "{url} is on another host and has no TLS: use https://, or accept it with --allow-insecure-remote"
    );
    Ok(())
}

fn check_advertised(text: &str) -> anyhow::Result<()> {
    let wrong = || anyhow!("'{text}' is not an address for clients: write nbd://HOST:PORT, without a volume");
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let has_host = match &uri.place {
        Place::Tcp(at) => !at.starts_with(':') && !text.ends_with("://"),
        Place::Unix(path) => path.is_absolute(),
    };
    ensure!(has_host && uri.name.is_empty(), wrong());
    Ok(())
}

impl Credentials {
    /// For a new connection. The files are read each time, since certificates are renewed.
    pub fn options(&self) -> anyhow::Result<ConnectOptions> {
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_keep_alive_while_idle(true);
        if self.cacert.is_some() || self.certificate.is_some() {
            let mut tls = TlsOptions::new();
            if let Some(path) = &self.cacert {
                tls = tls.ca_certificate(Certificate::from_pem(read(path)?));
            }
            if let Some((certificate, key)) = &self.certificate {
                tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            options = options.with_tls(tls);
        }
        if let Some((name, password)) = &self.user {
            options = options.with_user(name.clone(), password.clone());
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Options {
        Options {
            etcd: vec!["http://127.0.0.1:2379".into()],
            cluster: Some("lab".parse().unwrap()),
            name: Some("s1".parse().unwrap()),
            advertise: Some("nbd://10.0.0.1:10809".into()),
            ..Options::default()
        }
    }

    fn why(options: &Options) -> String {
        options.settings_with(false, |_| None).unwrap_err().to_string()
    }

    #[test]
    fn a_server_joins_if_it_names_a_cluster() {
        assert!(Options::default().settings_with(false, |_| Some("http://localhost:1".into())).unwrap().is_none());
        let settings = given().settings_with(false, |_| None).unwrap().unwrap();
        assert_eq!((settings.cluster.as_str(), settings.name.as_str()), ("lab", "s1"));
        assert_eq!((settings.trusted_ns, settings.clock_error_max_ns), (None, 1_000_000));
        assert!(why(&Options { cluster: None, ..given() }).contains("--cluster"));
        assert!(why(&Options { name: None, ..given() }).contains("--name"));
        assert!(why(&Options { etcd: Vec::new(), ..given() }).contains("--etcd"));
        assert!(why(&Options { advertise: None, ..given() }).contains("--advertise"));
        for wrong in ["http://h/x", "nbd://", "nbd://h:1/volume", "nbd://:10809", "nbd+unix://?socket=relative"] {
            let why = why(&Options { advertise: Some(wrong.into()), ..given() });
            assert!(why.contains(wrong), "{wrong}: {why}");
        }
        let timeout = Some(Time(Duration::from_secs(1)));
        assert!(why(&Options { change_timeout: timeout, ..given() }).contains("2s to 50s"));
    }

    #[test]
    fn other_hosts_are_reached_with_tls() {
        let at = |url: &str| Options { etcd: vec![url.into()], ..given() };
        for good in ["http://localhost:2379", "http://[::1]:2379", "http://127.0.0.1:2379/", "https://etcd1:2379"] {
            assert!(at(good).settings_with(false, |_| None).unwrap().is_some(), "{good}");
        }
        assert!(why(&at("http://etcd1:2379")).contains("https://"));
        assert!(at("http://etcd1:2379").settings_with(true, |_| None).unwrap().is_some());
        assert!(why(&at("etcd1:2379")).contains("http://HOST:PORT"));
    }

    #[test]
    fn credentials_come_from_flags_or_from_the_environment() {
        let environment = |name: &str| match name {
            "ENDPOINTS" => Some("https://a:1,https://b:2".to_owned()),
            "USER" => Some("root".to_owned()),
            "PASSWORD" => Some("secret".to_owned()),
            "CACERT" => Some("/ca.pem".to_owned()),
            _ => None,
        };
        let plain = Options { etcd: Vec::new(), ..given() };
        let settings = plain.settings_with(false, environment).unwrap().unwrap();
        assert_eq!(settings.endpoints, ["https://a:1", "https://b:2"]);
        let user = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(settings.credentials.user, user("root", "secret"));
        assert_eq!(settings.credentials.cacert, Some("/ca.pem".into()));
        let named = Options { etcd_user: Some("me:x:y".into()), etcd_cacert: Some("/other.pem".into()), ..plain };
        let credentials = named.settings_with(false, environment).unwrap().unwrap().credentials;
        assert_eq!((credentials.user, credentials.cacert), (user("me", "x:y"), Some("/other.pem".into())));
        assert!(why(&Options { etcd_user: Some("me".into()), ..given() }).contains("ETCDCTL_PASSWORD"));
        assert!(why(&Options { etcd_cert: Some("/c.pem".into()), ..given() }).contains("--etcd-key"));
    }

    #[test]
    fn a_trusted_clock_has_an_error() {
        let error = Some("100us".parse().unwrap());
        let trusted = Options { clock: Trust::Trusted, clock_error: error, ..given() };
        assert_eq!(trusted.settings_with(false, |_| None).unwrap().unwrap().trusted_ns, Some(100_000));
        assert!(why(&Options { clock_error: None, ..trusted }).contains("clock_error"));
        assert!(why(&Options { clock_error: error, ..given() }).contains("trusted"));
        assert_eq!("2ms".parse::<Precision>().unwrap().to_string(), "2ms");
        assert!("2".parse::<Precision>().is_err() && "2s".parse::<Precision>().is_err());
    }
}
