//! The description of a cluster, a JSON file.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use engine::cluster::pack::{Fraction, Refused, SERVERS_MAX, Servers, Tenant};
use serde::Deserialize;

/// A cluster and its tenants.
#[derive(Debug)]
pub(super) struct Cluster {
    /// How many servers it has.
    pub servers: usize,
    /// Their servers and shares.
    pub tenants: Vec<Tenant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    servers: usize,
    tenants: Vec<Asked>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    servers: usize,
    share: String,
    pinned: Option<Vec<usize>>,
}

/// Most tenants of a cluster.
const TENANTS_MAX: usize = 1024;

impl Cluster {
    pub(super) fn read(path: &Path) -> Result<Cluster> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        Cluster::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Cluster> {
        let File { servers, tenants } = serde_json::from_str(text)?;
        ensure!(tenants.len() <= TENANTS_MAX, "{} tenants: at most {TENANTS_MAX} are packed", tenants.len());
        let tenant = |(at, asked): (usize, Asked)| {
            let share = fraction(&asked.share).with_context(|| format!("the share of tenant {at}"))?;
            let pinned = asked.pinned.map(|on| pinned(at, &on)).transpose()?;
            Ok(Tenant { servers: asked.servers, share, pinned })
        };
        let tenants = tenants.into_iter().enumerate().map(tenant).collect::<Result<_>>()?;
        Ok(Cluster { servers, tenants })
    }
}

fn pinned(tenant: usize, on: &[usize]) -> Result<Servers> {
    for (at, server) in on.iter().enumerate() {
        ensure!(
            *server < SERVERS_MAX,
            "tenant {tenant} is pinned to server {server}: a cluster has {SERVERS_MAX} at most"
        );
        ensure!(!on[..at].contains(server), "tenant {tenant} is pinned to server {server} twice");
    }
    Ok(on.iter().copied().collect())
}

/// A share, exact: `1/3`, `0.25` or `25%`.
fn fraction(text: &str) -> Result<Fraction> {
    let wrong = || anyhow!("{text:?} is not more than 0 and at most 1: say it as 1/3, 0.25 or 25%");
    let (over, under) = match (text.split_once('/'), text.strip_suffix('%')) {
        (Some((over, under)), _) => (whole(over).ok_or_else(wrong)?, whole(under).ok_or_else(wrong)?),
        (None, Some(percent)) => decimal(percent).map(|(over, under)| (over, under * 100)).ok_or_else(wrong)?,
        (None, None) => decimal(text).ok_or_else(wrong)?,
    };
    ensure!(over > 0 && over <= under, wrong());
    let (mut a, mut b) = (over, under);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    let part = |of: u64| u32::try_from(of / a).map_err(|_| anyhow!("{text:?} has too many digits: at most 7 count"));
    Ok(Fraction { over: part(over)?, under: part(under)? })
}

fn whole(text: &str) -> Option<u64> {
    text.trim().parse::<u32>().ok().map(u64::from)
}

/// A number with at most seven places, and what it is to be divided by.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, places) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let is_number = |text: &str| text.len() <= 7 && text.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(places) || whole.is_empty() && places.is_empty() {
        return None;
    }
    let under = 10u64.pow(places.len() as u32);
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    Some((number(whole)? * under + number(places)?, under))
}

/// Why there is no schedule, and what to do.
pub(super) fn told(why: &Refused, least: f64) -> String {
    let remedy = match why {
        Refused::Load(_) => "; ask for smaller shares, more servers, or a lower --least",
        Refused::ServerLoad { .. } => "; move one of them, or ask for smaller shares or a lower --least",
        Refused::Impossible(_) => "; a lower --least takes it",
        Refused::NotFound(_) => "; a lower --least takes it, more --seconds or another --seed may find a better one",
        Refused::Servers | Refused::TooMany(_) | Refused::Pinned(_) | Refused::Share(_) => "",
    };
    match why {
        Refused::Load(_) | Refused::ServerLoad { .. } => format!("{why}, which is too much for R = {least}{remedy}"),
        _ => format!("{why}{remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact() {
        let of = |text: &str| fraction(text).map(|it| (it.over, it.under)).map_err(|why| why.to_string());
        for (text, share) in [("1/3", (1, 3)), ("2/6", (1, 3)), ("25%", (1, 4)), ("0.4", (2, 5)), ("1", (1, 1))] {
            assert_eq!(of(text), Ok(share), "{text}");
        }
        for text in ["12.5%", ".125", "0.1250", "125/1000"] {
            assert_eq!(of(text), Ok((1, 8)), "{text}");
        }
        for text in ["", "0", "1/0", "3/2", "-1/2", "101%", "a", ".", "1/", "1e3", "0.12345678"] {
            let why = of(text).expect_err(text);
            assert!(why.contains("1/3, 0.25 or 25%"), "{text}: {why}");
        }
    }

    #[test]
    fn a_cluster_is_read_or_refused_with_the_reason() {
        let text = r#"{"servers": 9, "tenants": [{"servers": 3, "share": "1/3", "pinned": [0, 4, 7]}]}"#;
        let cluster = Cluster::parse(text).expect("it is as the manual says");
        assert_eq!((cluster.servers, cluster.tenants[0].servers), (9, 3));
        assert_eq!(cluster.tenants[0].pinned, Some([0, 4, 7].into_iter().collect()));
        let why = |text: &str| format!("{:#}", Cluster::parse(text).expect_err("refused"));
        assert!(why(&text.replace("4, 7", "0, 7")).contains("tenant 0 is pinned to server 0 twice"));
        assert!(why(&text.replace("4, 7", "4, 999")).contains("server 999"));
        assert!(why(&text.replace("1/3", "x")).contains("the share of tenant 0"));
        assert!(why(&text.replace("\"share\"", "\"part\"")).contains("part"));
    }
}
