//! Transaction processing with idle stores: one database and several stores, several databases and one store, copies.

use engine::offload::Settings;
use serde_json::{Value, json};
use sim::load::{Pace, Stream};

use super::super::chart::{self, Group};
use super::super::lines::{Line, lines};
use super::super::loads::{Load, Mixture};
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::rack::{Rack, Seen, Server, seconds};
use super::references::{OffLoad, references};

pub const IDLE: Experiment = Experiment {
    name: "offload-oltp",
    question: "How much faster is a database with 1, 2 and 3 idle stores?",
    setup: "8 KiB, 30 % writes, 7.5 GB, 64 requests outstanding, without caches; the writes anywhere, or a part of all \
            requests in every hundredth block (63, 76 and 83 % with 1, 2 and 3 stores), so that more reads find \
            off-loaded data. 120 s to warm up (300 s with hot blocks), 300 s counted. The bound is 1 / (r max(1 - f, f \
            / k)) times the database without stores: r is the fraction of reads, f the measured fraction of them that \
            go to the k stores. For reference, without a bound: the same requests on a log-structured layout (a log \
            behind the database, never cleaned), on RAID-0 of two disks in chunks of 64 KiB, 64 outstanding in total, \
            and on both.",
    paper: "Everest, section 4.2: 3 times with one store, linear, 6 times with three; figures 9 and 11.",
    run: idle,
};

pub const SHARED: Experiment = Experiment {
    name: "offload-shared",
    question: "How much faster are one, two and three databases that share one idle store?",
    setup: "As offload-oltp, writes anywhere, or a part of all requests to hot blocks (54, 36 and 27 % with 1, 2 and 3 \
            databases). The bound is 1 / (r max(1 - f, m f)) with m databases.",
    paper: "Everest, section 4.2: 1.7 times with three; figure 11.",
    run: shared,
};

pub const COPIES: Experiment = Experiment {
    name: "offload-copies",
    question: "What do two copies of off-loaded writes cost?",
    setup: "As offload-oltp, writes anywhere: one database with two idle stores, and two databases that are each \
            other's store beside one idle one; one copy and two.",
    paper: "Everest, section 4.2, figure 12: a small penalty; as without off-load if no two stores are idle.",
    run: copies,
};

/// Bytes of the database.
pub const DATABASE: u64 = 7_500 << 20;
/// Its block.
const BLOCK: u64 = 8 << 10;
/// Reads, in millionths.
const READ_PPM: u64 = 700_000;
/// The fraction of reads.
const READS: f64 = READ_PPM as f64 / 1e6;
/// One block of so many is hot.
const HOT_EVERY: u64 = 100;
/// Per cent of all requests that go to hot blocks, by number of stores: a little more than k / (k + 1).
const HOT: [u64; 4] = [63, 63, 76, 83];
/// The same by number of databases that share a store: 1.08 / (m + 1), just above the part for which the bound is
/// highest.
const HOT_SHARED: [u64; 4] = [0, 54, 36, 27];
/// Requests outstanding.
const DEPTH: u32 = 64;

/// The requests of a database, anywhere in it.
pub fn anywhere(depth: u32) -> Stream {
    let pace = Pace::Closed { depth, think_ns: 0 };
    Stream {
        read_ppm: READ_PPM,
        sizes: vec![(1, BLOCK)],
        align_bytes: BLOCK,
        area_bytes: DATABASE,
        pace,
        ..Stream::default()
    }
}

/// The load of a database, with so many per cent of its requests to hot blocks.
pub fn load(hot_percent: u64) -> Load {
    match hot_percent {
        0 => anywhere(DEPTH).into(),
        _ => Load::Mixture(mixture(hot_percent)),
    }
}

/// The same as one queue.
pub fn mixture(hot_percent: u64) -> Mixture {
    let hot = Stream { align_bytes: HOT_EVERY * BLOCK, ..anywhere(DEPTH) };
    let parts = [(hot_percent, hot), (100 - hot_percent, anywhere(DEPTH))];
    let parts = parts.into_iter().filter(|&(weight, _)| weight > 0).collect();
    Mixture { parts, warm_bytes: 0, updates: false, pace: Pace::Closed { depth: DEPTH, think_ns: 0 } }
}

/// Seconds before counting begins: until most hot blocks are off-loaded.
pub fn warm_up_s(hot_percent: u64) -> u64 {
    if hot_percent > 0 { 300 } else { 120 }
}

/// Seconds that are counted.
pub fn counted_s(context: &Context) -> u64 {
    if context.quick { 60 } else { 300 }
}

/// What a database gets.
#[derive(Clone, Copy)]
struct Got {
    iops: f64,
    /// The fraction of its reads that go to stores.
    f: f64,
}

/// `databases` with their stores, then `idle` servers. What the databases get, on average.
fn measure(
    context: &Context,
    databases: &[Vec<usize>],
    idle: usize,
    hot: u64,
    settings: Settings,
    seed: u64,
) -> Result<Got, String> {
    let database =
        |stores: &Vec<usize>| Server { load: Some(load(hot)), bytes: DATABASE, stores: stores.clone(), settings };
    let servers = databases.iter().map(database).chain((0..idle).map(|_| Server::idle())).collect();
    let Seen { rates, store_reads, .. } =
        Rack::cacheless(servers, seconds(warm_up_s(hot)), seconds(counted_s(context)))?.run(seed)?;
    let of =
        |at: usize| Got { iops: rates[at].iops(), f: store_reads[at] as f64 / (rates[at].requests as f64 * READS) };
    let all: Vec<Got> = (0..databases.len()).map(of).collect();
    Ok(Got { iops: mean(all.iter().map(|got| got.iops)), f: mean(all.iter().map(|got| got.f)) })
}

/// A configuration, and the number of stores that share the load of one database.
struct Case {
    name: String,
    databases: Vec<Vec<usize>>,
    idle: usize,
    hot: u64,
    copies: usize,
    /// Stores for each database.
    stores: f64,
}

/// By case: the gain over a database without stores, f, and the bound, mean over seeds.
struct Row {
    gain: f64,
    f: f64,
    bound: f64,
}

fn rows(context: &Context, cases: &[Case]) -> Result<Vec<Row>, String> {
    let work: Vec<(usize, u64)> =
        (0..cases.len()).flat_map(|at| context.seeds.iter().map(move |&seed| (at, seed))).collect();
    let got = context.parallel(&work, |&(at, seed)| {
        let Case { databases, idle, hot, copies, .. } = &cases[at];
        let settings = Settings { copies: *copies, ..Settings::DEFAULT };
        let with = measure(context, databases, *idle, *hot, settings, seed)?;
        let without = measure(context, &[vec![]], 0, *hot, settings, seed)?;
        Ok((with.iops / without.iops, with.f))
    });
    let got: Vec<(f64, f64)> = got.into_iter().collect::<Result<_, String>>()?;
    let seeds = context.seeds.len();
    let rows = cases.iter().zip(got.chunks(seeds)).map(|(case, got)| {
        let bound = |f: f64| 1.0 / (READS * (1.0 - f).max(f / case.stores));
        let mean_of = |of: &dyn Fn(&(f64, f64)) -> f64| mean(got.iter().map(of));
        Row { gain: mean_of(&|got| got.0), f: mean_of(&|got| got.1), bound: mean_of(&|got| bound(got.1)) }
    });
    Ok(rows.collect())
}

fn data(cases: &[Case], rows: &[Row]) -> Value {
    let all = cases.iter().zip(rows).map(|(case, Row { gain, f, bound })| {
        json!({"case": case.name, "hot_percent": case.hot, "gain": gain, "f": f, "bound": bound})
    });
    all.collect()
}

fn bars(name: &str, caption: &str, cases: &[Case], rows: &[Row]) -> Result<Picture, String> {
    let groups: Vec<Group> = cases
        .iter()
        .zip(rows)
        .map(|(case, row)| Group { label: case.name.clone(), bars: vec![row.gain, row.bound] })
        .collect();
    let svg = chart::bars(
        "times the throughput without stores",
        &["measured", "bound"],
        &groups,
        Some((1.0, "without stores")),
    )?;
    Ok(Picture { name: name.into(), caption: caption.into(), svg })
}

fn outcome(cases: &[Case], rows: &[Row], least: f64, picture: Picture) -> Outcome {
    let claims = cases.iter().zip(rows).map(|(case, row)| {
        Claim::new(format!("{}: gain, of the bound", case.name), row.gain / row.bound, Bound::AtLeast(least))
    });
    Outcome { claims: claims.collect(), data: data(cases, rows), pictures: vec![picture], ..Outcome::default() }
}

fn idle(context: &Context) -> Result<Outcome, String> {
    let case = |stores: usize, hot: u64| Case {
        name: format!(
            "{}, {stores} store{}",
            if hot > 0 { "skewed" } else { "anywhere" },
            if stores > 1 { "s" } else { "" }
        ),
        databases: vec![(1..=stores).collect()],
        idle: stores,
        hot,
        copies: 1,
        stores: stores as f64,
    };
    let cases: Vec<Case> =
        (1..=3).map(|stores| case(stores, 0)).chain((1..=3).map(|stores| case(stores, HOT[stores]))).collect();
    let found = rows(context, &cases)?;
    let picture =
        bars("gain", "A database with idle stores (Everest, figures 9 and 11), and the bound.", &cases, &found)?;
    let mut outcome = outcome(&cases, &found, 0.9, picture);
    outcome.claims.extend(cases.iter().zip(&found).skip(3).zip(1..).map(|((case, row), stores)| {
        Claim::new(
            format!("{}: reads that go to stores", case.name),
            row.f,
            Bound::AtLeast(f64::from(stores) / f64::from(stores + 1)),
        )
    }));
    // The gain over the part of reads that find off-loaded data.
    let hot = [0, 20, 40, 50, 55, 60, 70, 80];
    let sweep: Vec<Case> = hot.iter().map(|&hot| case(1, hot)).collect();
    let one = Context {
        seeds: context.seeds[..1].to_vec(),
        traces: context.traces.clone(),
        stage: None,
        progress: context.progress.clone(),
        quick: context.quick,
    };
    let swept = rows(&one, &sweep)?;
    let points =
        |of: &dyn Fn(&Row) -> f64| hot.iter().zip(&swept).skip(1).map(|(&hot, row)| (hot as f64, of(row))).collect();
    let all = [
        Line { name: "measured".into(), points: points(&|row| row.gain), chosen: None },
        Line { name: "bound".into(), points: points(&|row| row.bound), chosen: None },
    ];
    let svg = lines(
        ("requests to hot blocks, per cent", "times the throughput without stores"),
        &all,
        (1.0, "without stores"),
    )?;
    let caption = "One store: the gain if a part of the requests goes to a hundredth of the blocks.".into();
    outcome.pictures.push(Picture { name: "skew".into(), caption, svg });
    // One store: the first of each three cases.
    let one_store = [0, 3].map(|at| OffLoad { name: cases[at].name.clone(), hot: cases[at].hot, gain: found[at].gain });
    let (references, picture) = references(context, &one_store)?;
    outcome.pictures.push(picture);
    outcome.data = json!({"cases": outcome.data, "sweep": data(&sweep, &swept), "references": references});
    Ok(outcome)
}

fn shared(context: &Context) -> Result<Outcome, String> {
    let case = |databases: usize, hot: u64| Case {
        name: format!(
            "{databases} {}database{}",
            if hot > 0 { "skewed " } else { "" },
            if databases > 1 { "s" } else { "" }
        ),
        databases: (0..databases).map(|_| vec![databases]).collect(),
        idle: 1,
        hot,
        copies: 1,
        stores: 1.0 / databases as f64,
    };
    let anywhere = (1..=3).map(|databases| case(databases, 0));
    let cases: Vec<Case> = anywhere.chain((1..=3).map(|databases| case(databases, HOT_SHARED[databases]))).collect();
    let found = rows(context, &cases)?;
    let picture = bars("gain", "Databases that share one idle store (Everest, figure 11), each.", &cases, &found)?;
    let mut outcome = outcome(&cases, &found, 0.9, picture);
    outcome.claims.extend(cases.iter().zip(&found).skip(3).zip(2..).map(|((case, row), disks)| {
        Claim::new(format!("{}: reads that go to the store", case.name), row.f, Bound::AtLeast(1.0 / f64::from(disks)))
    }));
    Ok(outcome)
}

fn copies(context: &Context) -> Result<Outcome, String> {
    let case = |name: &str, databases: Vec<Vec<usize>>, idle: usize, copies: usize| Case {
        name: format!("{name}, {copies}-way"),
        databases,
        idle,
        hot: 0,
        copies,
        stores: 2.0,
    };
    let (one, two) = (vec![vec![1, 2]], vec![vec![1, 2], vec![0, 2]]);
    let cases = [
        case("1 database, 2 idle", one.clone(), 2, 1),
        case("1 database, 2 idle", one, 2, 2),
        case("2 databases, 1 idle", two.clone(), 1, 1),
        case("2 databases, 1 idle", two, 1, 2),
    ];
    let found = rows(context, &cases)?;
    let picture = bars("gain", "One copy and two (Everest, figure 12).", &cases, &found)?;
    let claims = vec![
        Claim::new("2 idle stores: 2-way, of 1-way", found[1].gain / found[0].gain, Bound::AtLeast(0.85)),
        Claim::new("no two idle stores: 2-way, of the throughput without stores", found[3].gain, Bound::AtLeast(0.95)),
    ];
    Ok(Outcome { claims, data: data(&cases, &found), pictures: vec![picture], ..Outcome::default() })
}
