//! The description of a cluster and the schedule for it, in the form of the JSON that `aerogel-lab pack` and `aerogel
//! cluster plan` read and print.

use serde::{Deserialize, Serialize};

use super::pack::{self, Fraction, Refused, SERVERS_MAX, Schedule, Servers, Tenant, Wanted};

/// A cluster and its tenants.
#[derive(Debug)]
pub struct Description {
    /// How many servers it has.
    pub servers: usize,
    /// Their servers and shares.
    pub tenants: Vec<Tenant>,
}

/// The form of a description; what it says may be impossible.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    servers: usize,
    tenants: Vec<Asked>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    servers: usize,
    share: String,
    pinned: Option<Vec<usize>>,
    start: Option<f64>,
}

/// Most tenants of a cluster.
pub const TENANTS_MAX: usize = 1024;

/// Why a text is not the description of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// More tenants than are packed.
    #[error("{0} tenants: at most {TENANTS_MAX} are packed")]
    Tenants(usize),
    /// A share that is none.
    #[error("the share of tenant {0}: {1}")]
    Share(usize, FractionError),
    /// A server beyond the largest cluster.
    #[error("tenant {0} is pinned to server {1}: a cluster has {SERVERS_MAX} at most")]
    Server(usize, usize),
    /// A server that is named twice.
    #[error("tenant {0} is pinned to server {1} twice")]
    Twice(usize, usize),
}

/// Why a text is not a share.
#[derive(Debug, thiserror::Error)]
pub enum FractionError {
    /// It is no number, or out of bounds.
    #[error("{0:?} is not more than 0 and at most 1: say it as 1/3, 0.25 or 25%")]
    Value(String),
    /// It is more exact than lengths of slices are.
    #[error("{0:?} has too many digits: at most 7 count")]
    Digits(String),
}

impl TryFrom<File> for Description {
    type Error = FileError;

    fn try_from(File { servers, tenants }: File) -> Result<Description, FileError> {
        if tenants.len() > TENANTS_MAX {
            return Err(FileError::Tenants(tenants.len()));
        }
        let tenant = |(at, asked): (usize, Asked)| {
            let share = fraction(&asked.share).map_err(|why| FileError::Share(at, why))?;
            let pinned = asked.pinned.map(|on| pinned(at, &on)).transpose()?;
            Ok(Tenant { servers: asked.servers, share, pinned, start: asked.start })
        };
        let tenants = tenants.into_iter().enumerate().map(tenant).collect::<Result<_, FileError>>()?;
        Ok(Description { servers, tenants })
    }
}

impl Description {
    /// The schedule with the greatest R of the cluster that is found while `go_on` says so, or the reason why there is
    /// none, with what to do.
    pub fn pack(&self, wanted: Wanted, go_on: impl FnMut() -> bool) -> Result<Schedule, String> {
        let schedule =
            pack::pack(self.servers, &self.tenants, wanted, go_on).map_err(|why| told(&why, wanted.least))?;
        match pack::fault(self.servers, &self.tenants, &schedule) {
            Some(fault) => Err(format!("a schedule was found that is wrong: {fault}")),
            None => Ok(schedule),
        }
    }
}

fn pinned(tenant: usize, on: &[usize]) -> Result<Servers, FileError> {
    for (at, server) in on.iter().enumerate() {
        if *server >= SERVERS_MAX {
            return Err(FileError::Server(tenant, *server));
        }
        if on[..at].contains(server) {
            return Err(FileError::Twice(tenant, *server));
        }
    }
    Ok(on.iter().copied().collect())
}

/// A share, exact: `1/3`, `0.25` or `25%`.
pub fn fraction(text: &str) -> Result<Fraction, FractionError> {
    let wrong = || FractionError::Value(text.to_owned());
    let (over, under) = match (text.split_once('/'), text.strip_suffix('%')) {
        (Some((over, under)), _) => (whole(over).ok_or_else(wrong)?, whole(under).ok_or_else(wrong)?),
        (None, Some(percent)) => decimal(percent).map(|(over, under)| (over, under * 100)).ok_or_else(wrong)?,
        (None, None) => decimal(text).ok_or_else(wrong)?,
    };
    if over == 0 || over > under {
        return Err(wrong());
    }
    let (mut a, mut b) = (over, under);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    let part = |of: u64| u32::try_from(of / a).map_err(|_| FractionError::Digits(text.to_owned()));
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
fn told(why: &Refused, least: f64) -> String {
    let remedy = match why {
        Refused::Load(_) => "; ask for smaller shares, more servers, or a lower --least",
        Refused::ServerLoad { .. } => "; move one of them, or ask for smaller shares or a lower --least",
        Refused::Impossible(_) => "; a lower --least takes it",
        Refused::NotFound(_) => "; a lower --least takes it, more --seconds or another --seed may find a better one",
        Refused::Servers | Refused::TooMany(_) | Refused::Pinned(_) | Refused::Start(_) | Refused::Share(_) => "",
    };
    match why {
        Refused::Load(_) | Refused::ServerLoad { .. } => format!("{why}, which is too much for R = {least}{remedy}"),
        _ => format!("{why}{remedy}"),
    }
}

/// The form of a schedule.
#[derive(Debug, Serialize)]
pub struct Answer {
    r_cluster: f64,
    /// How many slices do not keep their starts; if any start was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<usize>,
    slots: Vec<Place>,
}

#[derive(Debug, Serialize)]
struct Place {
    tenant: usize,
    start: f64,
    length: f64,
    servers: Vec<usize>,
}

impl Description {
    /// How many slices do not keep their starts; `None` if no start was given.
    fn moved(&self, schedule: &Schedule) -> Option<usize> {
        self.tenants.iter().any(|tenant| tenant.start.is_some()).then(|| pack::moved(&self.tenants, schedule))
    }

    /// A schedule for it, in the form that is printed.
    pub fn answer(&self, schedule: &Schedule) -> Answer {
        let place = |(tenant, slot): (usize, &pack::Slot)| Place {
            tenant,
            start: slot.start,
            length: slot.length,
            servers: slot.servers.iter().collect(),
        };
        let (r_cluster, moved) = (schedule.r_cluster, self.moved(schedule));
        Answer { r_cluster, moved, slots: schedule.slots.iter().enumerate().map(place).collect() }
    }

    /// A schedule for it as a table.
    pub fn table(&self, schedule: &Schedule) -> String {
        let mut text = format!("R of the cluster: {:.3}\n", schedule.r_cluster);
        if let Some(moved) = self.moved(schedule) {
            text += &format!("slices that do not keep their starts: {moved}\n");
        }
        text += "\ntenant   start  length  servers\n";
        for (tenant, slot) in schedule.slots.iter().enumerate() {
            let servers: Vec<String> = slot.servers.iter().map(|server| server.to_string()).collect();
            text += &format!("{tenant:>6}  {:>6.4}  {:>6.4}  {}\n", slot.start, slot.length, servers.join(" "));
        }
        text
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
    fn a_description_is_taken_or_refused_with_the_reason() {
        let file = |share: &str, on: &[usize]| File {
            servers: 9,
            tenants: vec![Asked { servers: 3, share: share.into(), pinned: Some(on.to_vec()), start: None }],
        };
        let cluster = Description::try_from(file("1/3", &[0, 4, 7])).expect("it is possible");
        assert_eq!((cluster.servers, cluster.tenants[0].servers), (9, 3));
        assert_eq!(cluster.tenants[0].pinned, Some([0, 4, 7].into_iter().collect()));
        let why = |share: &str, on: &[usize]| Description::try_from(file(share, on)).expect_err("refused").to_string();
        assert!(why("1/3", &[0, 0, 7]).contains("tenant 0 is pinned to server 0 twice"));
        assert!(why("1/3", &[0, 4, 999]).contains("server 999"));
        assert!(why("x", &[0]).contains("the share of tenant 0"));
        let start = |pinned: Option<Vec<usize>>, start| File {
            servers: 9,
            tenants: vec![Asked { servers: 1, share: "1/3".into(), pinned, start: Some(start) }],
        };
        let wanted = Wanted { least: 0.9, enough: 1.0, seed: 1 };
        let pack = |file| Description::try_from(file).expect("it is possible").pack(wanted, || true);
        for (pinned, at) in [(None, 0.5), (Some(vec![0]), 1.0), (Some(vec![0]), -0.1), (Some(vec![0]), f64::NAN)] {
            let why = pack(start(pinned, at)).expect_err("refused");
            assert!(why.contains("the start of tenant 0"), "{why}");
        }
        let kept = pack(start(Some(vec![0]), 0.5)).expect("it fits").slots[0].start;
        assert!((kept - 0.5).abs() < 1e-8, "{kept}");
        let tenant = || Asked { servers: 1, share: "1".into(), pinned: None, start: None };
        let many = File { servers: 1, tenants: (0..=TENANTS_MAX).map(|_| tenant()).collect() };
        assert!(Description::try_from(many).expect_err("refused").to_string().contains("at most 1024"));
    }
}
