//! Writes a mix for a real server: the volumes of the tenants, the requests of each client (logs that fio replays), and
//! what each tenant gets in virtual time, alone and together.
//!
//! ```text
//! Mix ──► mix.json: volumes, shares, caches, clients, virtual rates ──► bench/mixes.py: server, fio, real rates
//!     └─► 0-0.log, …: a client's requests, closed, without times            ──►
//! ```
//!
//! Downside: the requests of a client do not depend on when earlier ones are answered. Loads that change with time
//! cannot be written.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use engine::units::{MILLISECOND, Nanos};
use serde_json::json;
use sim::load::{Pace, Record, unroll};

use super::super::loads::Load;
use super::super::stand::{Run, Stand, mean};
use super::super::{Context, Outcome};
use super::partitions::partitions;
use super::play::{self, Job};
use super::{Actor, DISKS, Mix, Sizes};
use crate::trace::{Format, Names, Writer};

/// The options for writing a mix.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The disk's preset.
    pub disk: String,
    /// Where it is written; an existing directory.
    pub directory: PathBuf,
    /// The warm-up time, if not that of the experiment.
    pub warm_up_ns: Option<Nanos>,
    /// The counted time after that.
    pub counted_ns: Nanos,
}

/// A client's log has twice the bytes that the client gets in virtual time plus this many, in case the real server is
/// faster.
const MORE_BYTES: u64 = 64 << 20;

/// Writes a mix.
pub fn write(context: &Context, mix: &Mix, stage: &Stage) -> Result<Outcome, String> {
    let count = mix.actors.len();
    let stands = play::stands(context, mix)?;
    let stand = stands.iter().find(|stand| stand.disk == stage.disk);
    let stand = stand.ok_or_else(|| format!("the mixes are not run on '{}': {}", stage.disk, DISKS.join(", ")))?;
    let stand = Stand {
        warm_up_ns: stage.warm_up_ns.unwrap_or(stand.warm_up_ns),
        counted_ns: stage.counted_ns,
        ..stand.clone()
    };
    let loads: Vec<_> = mix.actors.iter().map(|actor| &actor.load).collect();
    let volume_bytes = stand.place(0, count)?.1;
    let sizes = (mix.sizes == Sizes::Stated).then(|| partitions(&loads, volume_bytes, mix.memory)).transpose()?;
    let keep = mix.keep[0];
    // A load that is not steady does different work alone and together in the same time. Such a mix is run together
    // only.
    let steady = mix.actors.iter().all(|actor| actor.load.is_steady());
    let alone = (0..count).filter(|_| steady).map(|at| Job::Alone(at, keep));
    let jobs: Vec<_> = alone.chain([Job::Together(keep)]).collect();
    let jobs: Vec<_> = context.seeds.iter().flat_map(|&seed| jobs.iter().map(move |job| (seed, job))).collect();
    let runs = context.parallel(&jobs, |&(seed, job)| play::perform(mix, &stand, sizes.as_ref(), seed, job));
    let runs = jobs.iter().map(|(_, job)| *job).zip(runs).map(|(job, run)| Ok((job, run?)));
    let runs: Vec<(&Job, Run)> = runs.collect::<Result<_, String>>()?;

    let of = |at: usize, together: bool| {
        runs.iter().filter_map(move |(job, run)| match job {
            Job::Alone(only, _) if !together && *only == at => Some((run, 0)),
            Job::Together(_) if together => Some((run, at)),
            _ => None,
        })
    };
    let mut tenants = Vec::new();
    for (at, actor) in mix.actors.iter().enumerate() {
        let rate = |together| mean(of(at, together).map(|(run, place)| play::rate(actor, run, place)));
        let all = |(run, place): (&Run, usize)| run.rates[place].bins.iter().sum::<u64>();
        let most = [false, true].into_iter().flat_map(|together| of(at, together)).map(all).max().unwrap_or(0);
        let start = stand.place(at, count)?.0;
        let clients = clients(actor, at, volume_bytes, 2 * most + MORE_BYTES, context.seeds[0], &stage.directory)?;
        tenants.push(json!({
            "name": actor.name, "share": format!("{}/{}", actor.share.0, actor.share.1), "start_bytes": start,
            "cache_bytes": mix.cache_bytes(at, sizes.as_ref().map(|(sizes, _)| &sizes[..])),
            "what_counts": if actor.load.only_writes() { "device_write" } else { "client" },
            "clients": clients, "mb_per_second": { "alone": rate(false), "together": rate(true) },
        }));
    }
    let data = json!({
        "disk": stage.disk, "memory_bytes": mix.memory, "volume_bytes": volume_bytes,
        "warm_up_s": stand.warm_up_ns as f64 / 1e9, "counted_s": stand.counted_ns as f64 / 1e9, "tenants": tenants,
    });
    let file = stage.directory.join("mix.json");
    std::fs::write(&file, format!("{data:#}\n")).map_err(|error| cannot(&file, &error))?;
    Ok(Outcome { data, ..Outcome::default() })
}

fn cannot(file: &Path, error: &io::Error) -> String {
    format!("{} cannot be written: {error}", file.display())
}

/// The clients of a tenant, each with its log and its number of outstanding requests.
fn clients(
    actor: &Actor,
    at: usize,
    volume_bytes: u64,
    bytes: u64,
    seed: u64,
    to: &Path,
) -> Result<Vec<serde_json::Value>, String> {
    let parts: Vec<(Load, Pace)> = match &actor.load {
        Load::Streams(streams) => streams.iter().map(|stream| (stream.clone().into(), stream.pace)).collect(),
        Load::Mixture(mixture) => vec![(actor.load.clone(), mixture.pace)],
        Load::Trace(_, pace) => vec![(actor.load.clone(), *pace)],
        Load::Change(..) | Load::Logged(..) => {
            return Err(format!("{}: a load that changes with time cannot be written down", actor.name));
        }
    };
    let client = |(number, (load, pace)): (usize, &(Load, Pace))| {
        let Pace::Closed { depth, .. } = *pace else {
            return Err(format!("{}: clients that do not wait for answers cannot be written down", actor.name));
        };
        let name = format!("{at}-{number}.log");
        let records = unroll(load.workload(volume_bytes, seed + number as u64)?, MILLISECOND);
        let file = to.join(&name);
        log(&file, records, bytes).map_err(|error| cannot(&file, &error))?;
        Ok(json!({ "log": name, "depth": depth }))
    };
    parts.iter().enumerate().map(client).collect()
}

/// Writes requests of so many bytes in total, without times: each is sent as soon as an earlier one is answered.
fn log(file: &Path, records: impl Iterator<Item = Record>, bytes: u64) -> io::Result<()> {
    let mut writer = Writer::new(BufWriter::new(File::create(file)?), Format::Iolog2, "", "")?;
    let (names, mut left) = (Names::default(), bytes);
    for record in records {
        writer.write(Record { time_ns: 0, stream: 0, ..record }, &names)?;
        left = left.saturating_sub(record.bytes);
        if left == 0 {
            break;
        }
    }
    writer.finish()?.0.into_inner()?.sync_all()
}

#[cfg(test)]
mod tests {
    use sim::load::Op;

    use super::super::cached;
    use super::*;
    use crate::trace::Trace;

    const GIB: u64 = 1 << 30;

    #[test]
    fn each_client_has_a_log_of_what_it_asks_for() {
        let directory = tempfile::tempdir().unwrap();
        let three = Actor::new("scans", (1, 2), cached::scans());
        let written = clients(&three, 1, 32 * GIB, 8 << 20, 5, directory.path()).unwrap();
        let depths: Vec<_> = written.iter().map(|client| client["depth"].as_u64().unwrap()).collect();
        assert_eq!(depths, [2, 2, 1]);
        let log = |at: usize| {
            let file = directory.path().join(written[at]["log"].as_str().unwrap());
            Trace::open(&file, Some(Format::Iolog2)).unwrap().collect::<Result<Vec<_>, _>>().unwrap()
        };
        let (first, random) = (log(0), log(2));
        assert_eq!(first.len(), 64, "8 MiB in requests of 128 KiB");
        assert!(first.iter().zip(0..).all(|(record, at)| record.op == Op::Read && record.offset == at * (128 << 10)));
        assert!(random.iter().all(|record| record.bytes == 8 << 10 && record.time_ns == 0));
    }

    #[test]
    fn what_does_not_wait_for_answers_cannot_be_written_down() {
        let directory = tempfile::tempdir().unwrap();
        let open = Actor::new("open", (1, 2), Load::Trace(Default::default(), Pace::as_recorded(1_000_000)));
        let error = clients(&open, 0, GIB, 1 << 20, 5, directory.path()).unwrap_err();
        assert!(error.contains("open: clients that do not wait"), "{error}");
    }
}
