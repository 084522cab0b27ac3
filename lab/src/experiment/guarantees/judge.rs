//! Rows and claims.

use serde_json::{Value, json};

use super::super::{Bound, Claim};
use super::level::{FUNDAMENTAL, Level, NEAR_MOST};
use super::live::Agreement;
use super::play::{ROUND_NS, latencies};
use super::policies::{self, OURS};
use super::window::Counts;
use super::{Cast, Extent, Row};

/// Up to this size the tighter bounds on avoidable windows apply; above it, slack is rare.
const FEW: usize = 5;
/// Bounds on avoidable windows, outside the marginal ones and with them, at up to [`FEW`] workloads and above.
const BOUNDS: [[f64; 2]; 2] = [[0.001, 0.01], [0.01, 0.03]];
/// From this size on, ours misses fewer windows in all than each other policy.
const MANY: usize = 4;
/// Missed windows in all of ours are at most this part of another's: fewer.
const FEWER: f64 = 0.999;
/// Policies (without parameters) that have at least ten times as many avoidable windows as ours in total.
const BY_TOKENS: [&str; 2] = ["token-bucket", "pclock"];
/// Rounds that a request may wait: its own and the next one, and two of slack.
const ROUNDS_MOST: f64 = 4.0;
/// Rounds that 99 % of requests wait at most.
const ROUNDS_P99: f64 = 2.0;

/// One row per policy and size. Checks outside of the project read these keys.
pub fn data(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            let Counts { windows, no_demand, fundamental, avoidable, marginal, expected, near } = row.counts();
            let Agreement { judged, agreed, near: judged_near } = row.agreement();
            json!({
                "policy": row.policy.name, "workloads": row.size, "windows": windows, "no_demand": no_demand,
                "fundamental": fundamental, "avoidable": avoidable, "marginal": marginal,
                "fits_not": expected, "near": near, "live": judged, "live_agreed": agreed, "live_near": judged_near,
            })
        })
        .collect()
}

/// All claims.
pub fn claims(extent: &Extent, rows: &[Row]) -> Vec<Claim> {
    let mut claims: Vec<_> = extent.sizes.iter().flat_map(|&size| of_size(rows, size)).collect();
    claims.extend(in_total(rows));
    claims.extend(response_times(rows));
    claims
}

fn claim(size: usize, what: &str, value: f64, bound: Bound) -> Claim {
    Claim::new(format!("{size} workloads: {what}"), value, bound)
}

/// Whether the guarantee of each workload is such as the method requires.
pub fn of_guarantees(cast: &Cast, size: usize) -> Vec<Claim> {
    let levels = cast.levels(size);
    let all = |of: fn(&Level) -> f64| levels.iter().map(of);
    let least = all(Level::fundamental).fold(f64::INFINITY, f64::min);
    let most = |of| all(of).fold(0.0, f64::max);
    let what = "windows of a workload that do not fit into the share";
    vec![
        claim(size, &format!("{what}, the fewest"), least, Bound::AtLeast(FUNDAMENTAL[0])),
        claim(size, &format!("{what}, the most"), most(Level::fundamental), Bound::AtMost(FUNDAMENTAL[1])),
        claim(
            size,
            "windows of a workload within 5 % of the threshold, the most",
            most(Level::near),
            Bound::AtMost(NEAR_MOST),
        ),
    ]
}

fn of_size(rows: &[Row], size: usize) -> Vec<Claim> {
    let mut of = rows.iter().filter(|row| row.size == size).map(|row| (row.policy.name, row.counts()));
    let (_, ours) = of.next().expect("ours is the first");
    let others: Vec<_> = of.collect();
    let least =
        |value: fn(&Counts) -> f64| others.iter().map(|(_, counts)| value(counts)).fold(f64::INFINITY, f64::min);
    let missed = |counts: &Counts| counts.missed() as f64 / counts.windows as f64;
    let [outside, with] = BOUNDS[usize::from(size > FEW)];
    let met = ours.expected.saturating_sub(ours.fundamental) as f64 / ours.expected.max(1) as f64;
    let mut claims = vec![
        claim(size, "avoidable, outside the marginal ones", ours.avoidable_fraction(), Bound::AtMost(outside)),
        claim(size, "avoidable or marginal", ours.avoidable_or_marginal_fraction(), Bound::AtMost(with)),
        claim(
            size,
            "avoidable, ours less the fewest of another policy",
            ours.avoidable_fraction() - least(Counts::avoidable_fraction),
            Bound::AtMost(0.0),
        ),
        claim(size, "windows that do not fit, met by slack", met, Bound::AtLeast(0.0)),
    ];
    if size >= MANY {
        let value = missed(&ours) / least(missed);
        claims.push(claim(size, "missed in all, ours / the fewest of another policy", value, Bound::AtMost(FEWER)));
    }
    claims
}

/// Avoidable windows of all sizes, ours against each policy with tokens.
fn in_total(rows: &[Row]) -> Vec<Claim> {
    let avoidable = |name: &str| {
        let mut sum = Counts::default();
        rows.iter().filter(|row| row.policy.name == name).for_each(|row| sum.add(&row.counts()));
        sum.avoidable_fraction()
    };
    let is_by_tokens = |name: &&str| BY_TOKENS.iter().any(|of| name.starts_with(of));
    let claim = |name: &str| {
        Claim::new(format!("avoidable in total, ours / {name}"), avoidable(OURS) / avoidable(name), Bound::AtMost(0.1))
    };
    policies::ALL.iter().map(|policy| policy.name).filter(is_by_tokens).map(claim).collect()
}

/// Response times of ours.
fn response_times(rows: &[Row]) -> Vec<Claim> {
    let mut latency = latencies();
    let ours = rows.iter().filter(|row| row.policy.name == OURS).flat_map(|row| &row.shared);
    ours.for_each(|shared| latency.add(&shared.latency).expect("histograms grow"));
    let rounds = |ns: u64| ns as f64 / ROUND_NS as f64;
    let p99 = rounds(latency.value_at_quantile(0.99));
    vec![
        Claim::new(
            "longest response time where demand fits, rounds",
            rounds(latency.max()),
            Bound::AtMost(ROUNDS_MOST),
        ),
        Claim::new("99th percentile of response times where demand fits, rounds", p99, Bound::AtMost(ROUNDS_P99)),
    ]
}
