//! The worst case: the host of a store becomes busy while much of a database is off-loaded to it.

use engine::offload::Settings;
use serde_json::json;
use sim::load::Stream;

use super::super::chart::{self, Group};
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::oltp::{DATABASE, anywhere};
use super::rack::{R, Rack, STORE_SHARE, Server, seconds};

pub const EXPERIMENT: Experiment = Experiment {
    name: "offload-worst",
    question: "What do client and host have if the host becomes busy with 13 % of the client's database on its store?",
    setup: "Two databases as in offload-oltp, each on its own server, 64 requests outstanding at the host, 16 to 128 \
            at the client. The client off-loads to the host's store until 975 MB are there; then the host begins. 60 s \
            later 300 s are counted.",
    paper: "Everest, section 4.2, figure 10: the client keeps 93 %, the host 59 % of what they have without off-load.",
    run,
};

/// The part of the database that is off-loaded when the host begins.
const AWAY: f64 = 0.13;
/// The client's requests outstanding.
const DEPTHS: [u32; 4] = [16, 32, 64, 128];
/// A client of which less is off-loaded by then does not use its store, seconds; the host begins then.
const NEVER_S: u64 = 1_800;

struct Got {
    client: f64,
    host: f64,
    f: f64,
}

fn measure(context: &Context, depth: u32, seed: u64) -> Result<Got, String> {
    let settings = Settings::DEFAULT;
    let client = Server { load: Some(anywhere(depth).into()), bytes: DATABASE, stores: vec![1], settings };
    let host = |start_ns| Server {
        load: Some(Stream { start_ns, ..anywhere(64) }.into()),
        ..Server { stores: vec![], ..client.clone() }
    };
    let idle = Rack::cacheless(vec![client.clone(), Server::idle()], 0, 0)?;
    let away = (DATABASE as f64 * AWAY) as u64;
    let from = idle.when_away(0, away, seconds(NEVER_S), seed)?.unwrap_or(seconds(NEVER_S));
    let counted = seconds(if context.quick { 100 } else { 300 });
    let seen = Rack::cacheless(vec![client.clone(), host(from)], from + seconds(60), counted)?.run(seed)?;
    let alone = |of: Server| -> Result<f64, String> {
        let of = Server { stores: vec![], ..of };
        Ok(Rack::cacheless(vec![of], seconds(60), seconds(300))?.run(seed)?.rates[0].iops())
    };
    let (client, host) = (alone(client.clone())?, alone(host(0))?);
    let (reads, rates) = (seen.store_reads[0] as f64, &seen.rates);
    Ok(Got {
        client: rates[0].iops() / client,
        host: rates[1].iops() / host,
        f: reads / (rates[0].requests as f64 * 0.7),
    })
}

fn run(context: &Context) -> Result<Outcome, String> {
    let work: Vec<(u32, u64)> =
        DEPTHS.iter().flat_map(|&depth| context.seeds.iter().map(move |&seed| (depth, seed))).collect();
    let got = context.parallel(&work, |&(depth, seed)| measure(context, depth, seed));
    let got: Vec<Got> = got.into_iter().collect::<Result<_, _>>()?;
    let by_depth: Vec<&[Got]> = got.chunks(context.seeds.len()).collect();
    let host_least = got.iter().map(|got| got.host).fold(f64::INFINITY, f64::min);
    let at_most = by_depth[DEPTHS.len() - 1];
    let client_bound = 0.93f64.min(STORE_SHARE * R / AWAY);
    let claims = vec![
        Claim::new(
            "host, of its part without off-load, least over depths and seeds",
            host_least,
            Bound::AtLeast(R * (1.0 - STORE_SHARE)),
        ),
        Claim::new(
            "client with 128 outstanding, of its part without off-load",
            mean(at_most.iter().map(|got| got.client)),
            Bound::AtLeast(0.9 * client_bound),
        ),
    ];
    let groups: Vec<Group> = DEPTHS
        .iter()
        .zip(&by_depth)
        .map(|(depth, got)| Group {
            label: format!("client's depth {depth}"),
            bars: vec![mean(got.iter().map(|got| got.client)), mean(got.iter().map(|got| got.host))],
        })
        .collect();
    let data = json!(
        DEPTHS
            .iter()
            .zip(&by_depth)
            .map(|(depth, got)| json!({
                "depth": depth,
                "client": mean(got.iter().map(|got| got.client)),
                "host": mean(got.iter().map(|got| got.host)),
                "f": mean(got.iter().map(|got| got.f)),
            }))
            .collect::<Vec<_>>()
    );
    let svg = chart::bars(
        "of the throughput without off-load",
        &["client", "host"],
        &groups,
        Some((R * (1.0 - STORE_SHARE), "R x the host's share")),
    )?;
    let caption = "The host of a store becomes busy (Everest, figure 10).".into();
    Ok(Outcome { claims, data, pictures: vec![Picture { name: "parts".into(), caption, svg }], ..Outcome::default() })
}
