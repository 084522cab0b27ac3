//! The log of a store by itself: writes, reclaim, recovery.

use std::collections::BTreeMap;

use engine::control::{Command, TenantSpec, WriteCache};
use engine::offload::{Scan, Settings, log_bytes};
use engine::units::{BLOCK, Nanos, SECOND};
use serde_json::json;
use sim::bench::cluster::{Cluster, START_NS, Store};
use sim::bench::{Bench, Costs, Volume};
use sim::load::workload::Lane;
use sim::load::{Op, Pace, Place, Record, Source, Stream, Workload};

use super::super::chart::{self, Group};
use super::super::lines::{Line, lines};
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::rack::{Rack, Server, seconds};

pub const LOG: Experiment = Experiment {
    name: "offload-log",
    question: "At what rate does a disk write to 1, 2 and 3 stores?",
    setup: "Random writes of 64 KiB, 64 outstanding for each store, all of them off-loaded, for 20 s; of the rate at \
            which the drive of a store writes in sequence. And one store with a part of reads, 64 outstanding.",
    paper: "Everest, section 4.3, figure 13 (a) and (c): the streaming bandwidth of the store's disk; linear to 2.",
    run: log,
};

pub const RECLAIM: Experiment = Experiment {
    name: "offload-reclaim",
    question: "How fast does off-loaded data come home?",
    setup: "Writes of 64 KiB, anywhere and in sequence, all of them off-loaded for 20 s; then nothing. The first 10 s \
            of reclaim, with the default depth and others; of the rate of random 64 KiB writes of the base with 64 \
            outstanding, and of the drive's streaming rate.",
    paper: "Everest, section 4.3, figure 13 (b): the base's random rate, and 70 % of the streaming rate.",
    run: reclaim,
};

pub const RECOVERY: Experiment = Experiment {
    name: "offload-recovery",
    question: "How long does it take to read the log of a store when a server starts?",
    setup: "1 GB of log, 220,000 records of a 4 KiB write each; read as the server does, 512 KiB at a time and 4 \
            outstanding, from a drive with nothing else to do.",
    paper: "Everest, table 3: 14.5 s for 982 MB with 218,505 records.",
    run: recovery,
};

const CHUNK: u64 = 64 << 10;
/// The volume that is off-loaded.
const VOLUME: u64 = 16 << 30;

fn stream(place: Place, read_ppm: u64, depth: u32) -> Stream {
    let pace = Pace::Closed { depth, think_ns: 0 };
    Stream {
        place,
        read_ppm,
        sizes: vec![(1, CHUNK)],
        align_bytes: CHUNK,
        area_bytes: VOLUME,
        pace,
        ..Stream::default()
    }
}

/// All writes are off-loaded, and stay.
fn always() -> Settings {
    Settings { is_always: true, limit_bytes: u64::MAX / 2, ..Settings::DEFAULT }
}

fn rack(load: Stream, stores: usize, settings: Settings, counted_s: u64) -> Result<Rack, String> {
    let client = Server { load: Some(load.into()), bytes: VOLUME, stores: (1..=stores).collect(), settings };
    let servers = std::iter::once(client).chain((0..stores).map(|_| Server::idle())).collect();
    let rack = Rack::cacheless(servers, seconds(2), seconds(counted_s))?;
    Ok(Rack { volume_cache: 64 << 20, ..rack }.with_memory(96 << 20))
}

/// MB/s of a load, with so many stores.
fn rate(load: Stream, stores: usize, seed: u64) -> Result<f64, String> {
    Ok(rack(load, stores, always(), 20)?.run(seed)?.rates[0].mb_s())
}

/// MB/s of writes in sequence at the end of the drive, where stores are.
fn streaming() -> Result<f64, String> {
    let mut rack = rack(stream(Place::Sequential, 0, 64), 0, always(), 20)?;
    rack.servers[0].bytes = rack.store_bytes;
    rack.at_end().run(1).map(|seen| seen.rates[0].mb_s())
}

fn log(context: &Context) -> Result<Outcome, String> {
    let streaming = streaming()?;
    let per = |stores: usize| -> Result<f64, String> {
        let rates =
            context.parallel(&context.seeds, |&seed| rate(stream(Place::Uniform, 0, 64 * stores as u32), stores, seed));
        Ok(mean(rates.into_iter().collect::<Result<Vec<_>, _>>()?))
    };
    let mut claims = Vec::new();
    let mut groups = Vec::new();
    let mut data = Vec::new();
    for stores in 1..=3 {
        let (rate, s) = (per(stores)?, if stores > 1 { "s" } else { "" });
        let part = rate / (streaming * stores as f64);
        claims.push(Claim::new(format!("{stores} store{s}: of the streaming rate"), part, Bound::AtLeast(0.95)));
        groups.push(Group { label: format!("{stores} store{s}"), bars: vec![rate, streaming * stores as f64] });
        data.push(json!({"stores": stores, "mb_per_second": rate, "streaming": streaming}));
    }
    let svg = chart::bars("MB/s", &["off-loaded", "streaming rate"], &groups, None)?;
    let caption = "Random 64 KiB writes to stores (Everest, figure 13 c).".into();
    let scaling = Picture { name: "stores".into(), caption, svg };
    let parts = [1u64, 10, 20, 40, 60, 80, 90, 100];
    let with_reads = |stores: usize| {
        let rates = context.parallel(&parts, |&percent| rate(stream(Place::Uniform, percent * 10_000, 64), stores, 1));
        rates.into_iter().collect::<Result<Vec<f64>, String>>()
    };
    let (off, base) = (with_reads(1)?, with_reads(0)?);
    let points = |of: &[f64]| parts.iter().zip(of).map(|(&part, &rate)| (part as f64, rate)).collect();
    let all = [
        Line { name: "off-loaded".into(), points: points(&off), chosen: None },
        Line { name: "base only".into(), points: points(&base), chosen: None },
    ];
    let svg = lines(("reads, per cent", "MB/s"), &all, (streaming, "streaming rate"))?;
    let caption = "64 KiB requests, all writes off-loaded (Everest, figure 13 a).".into();
    let reads = Picture { name: "reads".into(), caption, svg };
    let data = json!({"stores": data, "reads_percent": parts, "off_loaded": off, "base_only": base});
    Ok(Outcome { claims, data, pictures: vec![scaling, reads], ..Outcome::default() })
}

/// MB/s at which data comes home that was written for 20 s.
fn reclaimed(place: Place, depth: u32, seed: u64) -> Result<f64, String> {
    let written = Stream { stop_ns: seconds(20), ..stream(place, 0, 64) };
    let mut cluster = rack(written, 1, always(), 0)?.cluster(seed)?;
    cluster.run(START_NS + seconds(22), |_, _| ());
    let settings = Settings { is_always: false, reclaim_depth: depth, ..always() };
    cluster.order(0, Command::SetOffload(settings))?;
    // The last writes of the load end, and the first copies come home.
    cluster.run(START_NS + seconds(23), |_, _| ());
    let home = |cluster: &mut Cluster| -> Result<u64, String> {
        Ok(cluster.snapshot(0)?.offload.ok_or("it does not off-load")?.reclaimed_bytes)
    };
    let before = home(&mut cluster)?;
    cluster.run(START_NS + seconds(33), |_, _| ());
    Ok((home(&mut cluster)? - before) as f64 / 10.0 / 1e6)
}

fn reclaim(context: &Context) -> Result<Outcome, String> {
    let streaming = streaming()?;
    let random = rate(stream(Place::Uniform, 0, 64), 0, 1)?;
    let per = |place: Place, depth: u32| -> Result<f64, String> {
        let rates = context.parallel(&context.seeds, |&seed| reclaimed(place, depth, seed));
        Ok(mean(rates.into_iter().collect::<Result<Vec<_>, _>>()?))
    };
    let depth = Settings::DEFAULT.reclaim_depth;
    let (scattered, in_order) = (per(Place::Uniform, depth)?, per(Place::Sequential, depth)?);
    let claims = vec![
        Claim::new("random: of the base's random rate", scattered / random, Bound::AtLeast(0.95)),
        Claim::new("in sequence: of the streaming rate", in_order / streaming, Bound::AtLeast(0.7)),
    ];
    let depths = [1, 4, 16, 32, 64, 256];
    let swept = |place: Place| {
        let rates = context.parallel(&depths, |&depth| reclaimed(place, depth, 1));
        rates.into_iter().collect::<Result<Vec<f64>, String>>()
    };
    let (random_swept, sequential_swept) = (swept(Place::Uniform)?, swept(Place::Sequential)?);
    let line = |name: &str, of: &[f64], chosen: f64| Line {
        name: name.into(),
        points: depths.iter().zip(of).map(|(&at, &rate)| (f64::from(at), rate)).collect(),
        chosen: Some((f64::from(depth), chosen)),
    };
    let all = [line("random", &random_swept, scattered), line("in sequence", &sequential_swept, in_order)];
    let svg = lines(("copies at a time", "MB/s"), &all, (random, "the base's random rate"))?;
    let caption = "The rate of reclaim (Everest, figure 13 b).".into();
    let data = json!({
        "random": scattered, "in_sequence": in_order, "base_random": random, "streaming": streaming,
        "depths": depths, "random_by_depth": random_swept, "in_sequence_by_depth": sequential_swept,
    });
    Ok(Outcome { claims, data, pictures: vec![Picture { name: "rate".into(), caption, svg }], ..Outcome::default() })
}

/// The reads of a scan. What they find is known already, so each names the next one at once: that is the read-ahead of
/// the server.
struct Reads {
    scan: Scan,
    kept: BTreeMap<u64, Vec<u8>>,
    found: std::sync::mpsc::Sender<u64>,
}

impl Source for Reads {
    fn next(&mut self, _: Nanos) -> Option<Record> {
        let (offset, bytes) = self.scan.wants()?;
        let mut data = vec![0; bytes as usize];
        // The longest piece is a superblock.
        for (&at, piece) in self.kept.range(offset.saturating_sub(1 << 20)..offset + bytes) {
            for (at, byte) in (at..).zip(piece).filter(|(at, _)| (offset..offset + bytes).contains(at)) {
                data[(at - offset) as usize] = *byte;
            }
        }
        self.scan.read(&data).expect("the log is good");
        self.found.send(self.scan.scanned_bytes()).expect("it is awaited");
        Some(Record { time_ns: 0, op: Op::Read, offset, bytes, stream: 0 })
    }
}

fn recovery(context: &Context) -> Result<Outcome, String> {
    let records = if context.quick { 50_000 } else { 220_000 };
    let stream =
        Stream { sizes: vec![(1, BLOCK)], align_bytes: BLOCK, requests: records, ..stream(Place::Uniform, 0, 1) };
    let rack = rack(stream, 1, always(), 0)?;
    let mut cluster = rack.keeping(1)?;
    while !cluster.is_idle(0) || cluster.now() < 2 * START_NS {
        let end = cluster.now() + 10 * SECOND;
        cluster.run(end, |_, _| ());
    }
    let bytes = rack.store_bytes;
    let (kept, start) = (cluster.kept(0, Store { site: 1, bytes }), cluster.store_start(0));
    let (found, scanned) = std::sync::mpsc::channel();
    let scan = Scan::new(1, log_bytes(bytes).expect("it is large enough"));
    let lane = Lane::of_trace(Reads { scan, kept, found }, Pace::Closed { depth: 4, think_ns: 0 });
    let volume = Volume { tenant: 0, start, bytes, write_cache: WriteCache::None, load: Workload::new(vec![lane], 0) };
    let tenants = [TenantSpec { is_store: true, ..TenantSpec::default() }];
    let mut bench = Bench::new(rack.stand.config(1), rack.stand.drive()?, Costs::default(), &tenants, vec![volume])?;
    let mut ended = 0;
    while !bench.is_done() {
        let until = bench.now() + SECOND;
        bench.run(until, |done| ended = done.done_ns);
    }
    let bytes = scanned.try_iter().last().unwrap_or(0);
    let (took_s, streaming) = (ended as f64 / 1e9, streaming()?);
    let rate = bytes as f64 / took_s / 1e6;
    let claims = vec![Claim::new("of the drive's streaming rate", rate / streaming, Bound::AtLeast(0.9))];
    let data =
        json!({"bytes": bytes, "records": records, "seconds": took_s, "mb_per_second": rate, "streaming": streaming});
    Ok(Outcome { claims, data, ..Outcome::default() })
}
