//! Requests of striped clients that arrive at their servers in different orders.

use engine::cluster::pack::Fraction;
use engine::units::{MILLISECOND, Nanos};
use serde_json::json;
use sim::bench::striped::Network;

use super::super::chart::{self, Group};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::play::{Clocks, Cluster, Slices, Striper};
use super::stripes::{FRAGMENT, Kept, R, cacheless, kept, means, reader};

pub const ORDER: Experiment = Experiment {
    name: "cluster-order",
    question: "What is it worth that servers serve reads in the order of the client's numbers?",
    setup: "Three tenants with share 1/3 on four servers with a barracuda-7200.9 each: random reads of 4 KiB per \
            server, 4, 16 and 64 requests outstanding. The network delays each fragment by up to 0, 1 or 20 ms, so \
            that fragments overtake one another; servers serve them in order of arrival, or by number. 60 s of \
            warm-up, then 120 s.",
    paper: "Wachs and Ganger, section 4.3: the oldest requests by the client's ids, so that servers choose the same \
            requests; not measured.",
    run: order,
};

const SERVERS: usize = 4;
const DEPTHS: [u32; 3] = [4, 16, 64];
const JITTERS: [Nanos; 3] = [0, MILLISECOND, 20 * MILLISECOND];

fn order(context: &Context) -> Result<Outcome, String> {
    let stand = cacheless(context)?;
    let bytes = stand.drive()?.bytes() / 4 / FRAGMENT * FRAGMENT;
    let third = Fraction { over: 1, under: 3 };
    let tenants = DEPTHS.into_iter().zip(0..).map(|(depth, at)| reader(SERVERS, third, depth, at * bytes, bytes));
    let tenants: Vec<Striper> = tenants.collect();
    let cluster = |jitter_ns, numbers| Cluster {
        stand: stand.clone(),
        servers: SERVERS,
        tenants: tenants.clone(),
        clocks: Clocks::Exact,
        round_ns: None,
        network: Network { jitter_ns, numbers, seed: 0 },
    };
    let kinds: Vec<(Nanos, bool)> = JITTERS.iter().flat_map(|&jitter| [(jitter, false), (jitter, true)]).collect();
    let work: Vec<(usize, u64)> =
        (0..kinds.len()).flat_map(|at| context.seeds.iter().map(move |&seed| (at, seed))).collect();
    let found = context.parallel(&work, |&(at, seed)| {
        let (jitter_ns, numbers) = kinds[at];
        kept(&cluster(jitter_ns, numbers), &[Slices::Together], seed)
    });
    let found: Vec<Kept> = found.into_iter().collect::<Result<_, _>>()?;
    let (mut claims, mut rows, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    for (&(jitter_ns, numbers), of) in kinds.iter().zip(found.chunks(context.seeds.len())) {
        let kept: Vec<f64> = means(of)[0].1.iter().map(|kept| kept * 3.0).collect();
        let least = kept.iter().copied().fold(f64::INFINITY, f64::min);
        let order = if numbers { "by number" } else { "by arrival" };
        let label = format!("{} ms, {order}", jitter_ns / MILLISECOND);
        let bound = if numbers { Bound::AtLeast(R) } else { Bound::AtLeast(0.0) };
        claims.push(Claim::new(format!("{label}: least kept, of the share"), least, bound));
        let rates: Vec<f64> = of[0].together.rates.iter().map(|rate| rate.iops()).collect();
        rows.push(json!({"delay_ms": jitter_ns / MILLISECOND, "numbers": numbers, "kept": kept, "iops": rates}));
        groups.push(Group { label, bars: kept });
    }
    let svg = chart::bars("kept, of the share", &["depth 4", "depth 16", "depth 64"], &groups, Some((R, "R")))?;
    let caption = "Striped tenants on four servers, by delay of the network and order of service.".into();
    let pictures = vec![Picture { name: "kept".into(), caption, svg }];
    Ok(Outcome { claims, data: rows.into(), pictures, ..Outcome::default() })
}
