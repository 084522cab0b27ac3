//! The description of a mix, a TOML file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::control::{CacheSpec, TenantSpec};
use engine::disk::policy::Kind;
use engine::units::{BLOCK, Nanos, SECOND, Share};
use serde::Deserialize;
use sim::load::{Pace, Record};
use sim::rng::MILLION;

use crate::experiment::loads::Load;
use crate::load::Text;
use crate::quantity::{decimal, share, show_bytes, size, time};
use crate::trace::Trace;

/// The time for trials and for filling partitions, after which a decision counts.
const WARM_UP_NS: Nanos = 300 * SECOND;
const COUNTED_NS: Nanos = 120 * SECOND;
/// The default R, parts per million.
const R_PPM: u64 = 900_000;
/// Most tenants of a mix: each is run alone, too.
const TENANTS_MAX: usize = 1024;
/// Most records of a trace: about 2 GB of memory.
const RECORDS_MAX: usize = 50_000_000;

/// A mix of tenants.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The policy of the disk.
    pub policy: Kind,
    /// R, thousandths.
    pub insulation_permille: u32,
    /// The server's memory, bytes.
    pub memory: u64,
    /// The time before counting begins.
    pub warm_up_ns: Nanos,
    /// The counted time.
    pub counted_ns: Nanos,
    /// The longest round.
    pub round_max_ns: Nanos,
    /// The tenants.
    pub tenants: Vec<Tenant>,
}

/// A tenant with one volume.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub name: String,
    pub share: Share,
    /// Bytes of its volume.
    pub bytes: u64,
    /// Where its volume begins; `None`: evenly spread.
    pub at: Option<At>,
    /// Its requested cache, bytes.
    pub cache: Option<u64>,
    /// Its minimum bandwidth, bytes a second; 0 if it has none.
    pub min_bytes_per_s: u64,
    pub load: Load,
}

/// The beginning of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// A byte of the disk.
    Byte(u64),
    /// A part of the room before the volume, parts per million: 0 is the outer edge, 1,000,000 the inner one.
    Part(u64),
}

impl Tenant {
    /// Its share, 0 to 1.
    pub fn share(&self) -> f64 {
        self.share.ppb() as f64 / 1e9
    }

    pub fn spec(&self) -> TenantSpec {
        let cache = self.cache.map_or(CacheSpec::Trial, CacheSpec::Asked);
        let min_bytes_per_s = self.min_bytes_per_s;
        TenantSpec { share: Some(self.share), cache, min_bytes_per_s, ..TenantSpec::default() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    policy: Option<String>,
    r: Option<Text>,
    memory: Text,
    warm_up: Option<Text>,
    counted: Option<Text>,
    max_round: Option<Text>,
    #[serde(default)]
    tenant: Vec<Keys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    name: String,
    share: Text,
    size: Text,
    at: Option<Text>,
    cache: Option<Text>,
    min_bandwidth: Option<Text>,
    load: Option<String>,
    trace: Option<PathBuf>,
    depth: Option<u32>,
    speed: Option<Text>,
}

fn parsed<T>(key: &str, text: &Text, parse: impl Fn(&str) -> Result<T, String>) -> Result<T> {
    parse(&text.text()).map_err(|error| anyhow!("{key}: {error}"))
}

/// Parses `1/4`, `0.25` or `25%`, above 0 and at most 1.
fn part(text: &str) -> Result<Share, String> {
    let wrong = || format!("'{text}' is not a share of a disk: write 1/4, 0.25 or 25%, above 0 and at most 1");
    let ppb = match text.split_once('/') {
        Some((above, below)) => {
            let number = |text: &str| text.trim().parse::<u64>().ok().filter(|&number| number > 0 && number < 1 << 32);
            let (above, below) = (number(above).ok_or_else(wrong)?, number(below).ok_or_else(wrong)?);
            above * Share::ONE.ppb() / below
        }
        None => match text.strip_suffix('%') {
            Some(percent) => decimal(percent.trim_end(), Share::ONE.ppb() / 100).ok_or_else(wrong)?,
            None => decimal(text, Share::ONE.ppb()).ok_or_else(wrong)?,
        },
    };
    Share::from_ppb(ppb).ok_or_else(wrong)
}

/// Parses a byte of the disk, or `40%` of the room before the volume.
fn place(text: &str) -> Result<At, String> {
    if text.ends_with('%') { share(text).map(At::Part) } else { size(text).map(At::Byte) }
}

/// Parses bytes a second, as in `30MiB/s`.
fn rate(text: &str) -> Result<u64, String> {
    size(text.strip_suffix("/s").unwrap_or(text)).map_err(|_| format!("'{text}' is not a rate: write 30MiB/s"))
}

fn speed(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a factor: write 2 for twice as fast, 0.5 for half");
    decimal(text, MILLION).filter(|&ppm| ppm > 0).ok_or_else(wrong)
}

impl Mix {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Mix> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        Mix::parse(&text, directory).with_context(name)
    }

    /// Parses and checks a description; the paths of traces are relative to `directory`.
    pub fn parse(text: &str, directory: &Path) -> Result<Mix> {
        // TOML's messages are one text with the place in the file; as a source they would be printed twice.
        let file: File = toml::from_str(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()))?;
        ensure!((1..=TENANTS_MAX).contains(&file.tenant.len()), "a mix has 1 to {TENANTS_MAX} [[tenant]]s");
        let optional = |key, text: &Option<Text>, default| text.as_ref().map_or(Ok(default), |t| parsed(key, t, time));
        let r_ppm = file.r.as_ref().map_or(Ok(R_PPM), |text| parsed("r", text, share))?;
        ensure!((1000..MILLION).contains(&r_ppm), "r: R is above 0 and below 1");
        let mut tenants = Vec::new();
        for keys in &file.tenant {
            tenants.push(keys.tenant(directory).with_context(|| format!("tenant {}", keys.name))?);
        }
        let mut names = BTreeSet::new();
        for tenant in &tenants {
            ensure!(names.insert(&tenant.name), "two tenants have the name {}", tenant.name);
        }
        let sum: u64 = tenants.iter().map(|tenant| tenant.share.ppb()).sum();
        ensure!(sum <= Share::ONE.ppb(), "the shares sum to {:.3}, more than the disk", sum as f64 / 1e9);
        let counted_ns = optional("counted", &file.counted, COUNTED_NS)?;
        ensure!(counted_ns >= SECOND, "counted: at least 1 s");
        let round_max_ns = optional("max_round", &file.max_round, 2 * SECOND)?;
        ensure!(round_max_ns > 0, "max_round: above 0");
        let policy = file.policy.map_or(Ok(Kind::Insulated), |text| text.parse()).context("policy")?;
        Ok(Mix {
            policy,
            insulation_permille: (r_ppm / 1000) as u32,
            memory: parsed("memory", &file.memory, size)?,
            warm_up_ns: optional("warm_up", &file.warm_up, WARM_UP_NS)?,
            counted_ns,
            round_max_ns,
            tenants,
        })
    }

    /// First byte and bytes of each tenant's volume on a disk of so many bytes.
    pub fn places(&self, disk_bytes: u64) -> Result<Vec<(u64, u64)>> {
        let count = self.tenants.len() as u64;
        let mut places = Vec::new();
        for (tenant, number) in self.tenants.iter().zip(0u64..) {
            let room = disk_bytes.checked_sub(tenant.bytes);
            let room = room.with_context(|| {
                let (size, disk) = (show_bytes(tenant.bytes), show_bytes(disk_bytes));
                format!("tenant {}: a volume of {size} does not fit on a disk of {disk}", tenant.name)
            })?;
            let part = |above: u64, below: u64| (u128::from(room) * u128::from(above) / u128::from(below)) as u64;
            let start = match tenant.at {
                Some(At::Byte(byte)) => byte,
                Some(At::Part(ppm)) => part(ppm, MILLION),
                None => part(number, (count - 1).max(1)),
            };
            let start = start / BLOCK * BLOCK;
            if start > room {
                let (end, disk) = (show_bytes(start.saturating_add(tenant.bytes)), show_bytes(disk_bytes));
                bail!("tenant {}: its volume ends at {end}, beyond the disk of {disk}", tenant.name);
            }
            places.push((start, tenant.bytes));
        }
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|&at| places[at]);
        for pair in order.windows(2) {
            let [(start, bytes), (next, _)] = [pair[0], pair[1]].map(|at| places[at]);
            let [first, second] = [pair[0], pair[1]].map(|at| &self.tenants[at].name);
            ensure!(
                start + bytes <= next,
                "the volumes of {first} and {second} overlap on this disk: give at and size"
            );
        }
        Ok(places)
    }
}

impl Keys {
    fn tenant(&self, directory: &Path) -> Result<Tenant> {
        let bytes = parsed("size", &self.size, size)? / BLOCK * BLOCK;
        ensure!(bytes > 0, "size: at least {BLOCK} bytes");
        Ok(Tenant {
            name: self.name.clone(),
            share: parsed("share", &self.share, part)?,
            bytes,
            at: self.at.as_ref().map(|text| parsed("at", text, place)).transpose()?,
            cache: self.cache.as_ref().map(|text| parsed("cache", text, size)).transpose()?,
            min_bytes_per_s: self.min_bandwidth.as_ref().map_or(Ok(0), |text| parsed("min_bandwidth", text, rate))?,
            load: self.load(bytes, directory)?,
        })
    }

    fn load(&self, bytes: u64, directory: &Path) -> Result<Load> {
        let pace = match (self.depth, &self.speed) {
            (Some(_), Some(_)) => bail!("a trace has a depth (closed) or a speed (open), not both"),
            (Some(0), None) => bail!("depth: at least 1"),
            (Some(depth), None) => Some(Pace::Closed { depth, think_ns: 0 }),
            (None, Some(text)) => Some(Pace::as_recorded(parsed("speed", text, speed)?)),
            (None, None) => None,
        };
        match (&self.load, &self.trace) {
            (Some(text), None) => {
                ensure!(pace.is_none(), "depth and speed beside load are for traces; a load has them in its text");
                let spec = crate::load::parse(text, Some(bytes), None).map_err(|error| anyhow!("load: {error}"))?;
                Ok(Load::Streams(spec.streams))
            }
            (None, Some(path)) => {
                let records = records(path, directory).with_context(|| format!("trace {}", path.display()))?;
                Ok(Load::Trace(Arc::new(records), pace.unwrap_or(Pace::as_recorded(MILLION))))
            }
            _ => bail!("it needs either load = \"…\" or trace = \"FILE\""),
        }
    }
}

/// The records of a trace, whose path is relative to the working directory or to the file of the mix.
fn records(path: &Path, directory: &Path) -> Result<Vec<Record>> {
    let beside = directory.join(path);
    let path = if !path.exists() && beside.exists() { &beside } else { path };
    let mut records = Vec::new();
    for record in Trace::open(path, None)? {
        ensure!(records.len() < RECORDS_MAX, "it has more than {RECORDS_MAX} requests");
        records.push(record?);
    }
    ensure!(!records.is_empty(), "there is no request in it");
    records.sort_by_key(|record: &Record| record.time_ns);
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        r = 0.8
        memory = "64MiB"
        warm_up = "10s"
        [[tenant]]
        name = "a"
        share = "1/4"
        size = "1GiB"
        at = "50%"
        load = "zipf:read=70%,depth=8"
        [[tenant]]
        name = "b"
        share = 0.5
        size = "2GiB"
        cache = "8MiB"
        load = "seq:size=8KiB,read=0,flush=32"
    "#;

    fn parse(text: &str) -> Result<Mix> {
        Mix::parse(text, Path::new(""))
    }

    #[test]
    fn a_mix_is_what_its_file_says() {
        let mix = parse(TWO).unwrap();
        assert_eq!((mix.insulation_permille, mix.memory, mix.warm_up_ns), (800, 64 << 20, 10 * SECOND));
        assert_eq!((mix.counted_ns, mix.tenants[0].share(), mix.tenants[1].share()), (COUNTED_NS, 0.25, 0.5));
        assert_eq!(mix.tenants[1].spec().cache, CacheSpec::Asked(8 << 20));
        assert_eq!((mix.policy, mix.tenants[0].spec().min_bytes_per_s), (Kind::Insulated, 0));
        let baseline =
            TWO.replace("r = 0.8", "policy = \"mclock:1.5\"").replace("at =", "min_bandwidth = \"3MiB/s\"\nat =");
        let baseline = parse(&baseline).unwrap();
        assert_eq!(baseline.policy, Kind::MClock { limit_permille: Some(1500) });
        assert_eq!(baseline.tenants[0].spec().min_bytes_per_s, 3 << 20);
        let places = mix.places(11 << 30).unwrap();
        assert_eq!(places, [(5 << 30, 1 << 30), (9 << 30, 2 << 30)]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |from: &str, to: &str| format!("{:#}", parse(&TWO.replace(from, to)).unwrap_err());
        assert!(wrong("0.8", "1.5").contains("r: "), "{}", wrong("0.8", "1.5"));
        assert!(wrong("\"1/4\"", "\"3/4\"").contains("1.250"));
        assert!(wrong("1/4", "0/4").contains("tenant a: share: '0/4'"));
        assert!(wrong("zipf:", "zip:").contains("tenant a: load: "));
        assert!(wrong("\"b\"", "\"a\"").contains("the name a"));
        assert!(wrong("flush=32", "flush=x").contains("tenant b"));
        assert!(wrong("r = 0.8", "policy = \"fifo\"").contains("policy: there is no policy 'fifo'"));
        assert!(wrong("cache = \"8MiB\"", "min_bandwidth = \"x/s\"").contains("tenant b: min_bandwidth: 'x/s'"));
        assert!(wrong("cache =", "cash =").contains("cash"));
        assert_eq!(wrong("cache =", "cash =").matches("TOML parse error").count(), 1);
        assert!(wrong("load = \"seq", "trace = \"seq").contains("tenant b: trace seq"));
        assert!(wrong("at = ", "depth = 3\nat = ").contains("traces"));
        let mix = parse(TWO).unwrap();
        assert!(mix.places(1 << 30).unwrap_err().to_string().contains("tenant b"));
        assert!(mix.places(5 << 29).unwrap_err().to_string().contains("overlap"));
    }
}
