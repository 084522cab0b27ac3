//! Rows and claims.

use serde_json::{Value, json};

use super::super::{Bound, Claim};
use super::level::{FUNDAMENTAL, Level, NEAR_MOST};
use super::live::Agreement;
use super::play::{ROUND_NS, Responses};
use super::policies::{self, OURS};
use super::window::Counts;
use super::{Cast, Extent, Row, detail};

/// Up to this size the tighter bounds on avoidable windows apply; above it, slack is rare.
const FEW: usize = 5;
/// Bounds on avoidable windows, outside the marginal ones and with them, at up to [`FEW`] workloads and above.
const BOUNDS: [[f64; 2]; 2] = [[0.001, 0.01], [0.01, 0.03]];
/// Missed windows of another policy with which ours are compared, at least: by chance alone, 30 vary by a fifth.
const COMPARED_LEAST: u64 = 30;
/// Windows whose class the server names as the dedicated run does, as a fraction of those that it calls missed.
const AGREED_LEAST: f64 = 0.95;
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
pub fn data(cast: &Cast, rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            let Counts { windows, no_demand, fundamental, avoidable, marginal, expected, near } = row.counts();
            let Agreement { judged, agreed, near: judged_near } = row.agreement();
            json!({
                "policy": row.policy.name, "workloads": row.size, "windows": windows, "no_demand": no_demand,
                "fundamental": fundamental, "avoidable": avoidable, "marginal": marginal,
                "fits_not": expected, "near": near, "live": judged, "live_agreed": agreed, "live_near": judged_near,
                "longest_response": detail::longest(cast, row), "avoidable_windows": detail::avoidable(cast, row),
            })
        })
        .collect()
}

/// All claims.
pub fn claims(extent: &Extent, rows: &[Row]) -> Vec<Claim> {
    let mut claims: Vec<_> = extent.sizes.iter().flat_map(|&size| of_size(rows, size)).collect();
    claims.extend(together(rows));
    claims.extend(in_total(rows));
    claims.extend(agreement(rows));
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

/// Claims that these windows are avoidable rarely enough at this size. A fraction below which a single window would not
/// be is not claimed.
fn rarely_avoidable(name: &dyn Fn(&str) -> String, counts: &Counts, size: usize) -> Vec<Claim> {
    let [outside, with] = BOUNDS[usize::from(size > FEW)];
    let claims = [
        ("avoidable, outside the marginal ones", counts.avoidable_fraction(), outside),
        ("avoidable or marginal", counts.avoidable_or_marginal_fraction(), with),
    ];
    let claims = claims.into_iter().filter(|&(.., most)| counts.windows as f64 * most >= 1.0);
    claims.map(|(what, value, most)| Claim::new(name(what), value, Bound::AtMost(most))).collect()
}

fn of_size(rows: &[Row], size: usize) -> Vec<Claim> {
    let mut of = rows.iter().filter(|row| row.size == size).map(Row::counts);
    let ours = of.next().expect("ours is the first");
    let others: Vec<_> = of.collect();
    let mut claims = rarely_avoidable(&|what| format!("{size} workloads: {what}"), &ours, size);
    let met = ours.expected.saturating_sub(ours.fundamental) as f64 / ours.expected.max(1) as f64;
    claims.push(claim(size, "windows that do not fit, met by slack", met, Bound::AtLeast(0.0)));
    if !claims.iter().any(|claim| claim.name.ends_with("marginal ones")) {
        return claims;
    }
    let fewest = others.iter().map(Counts::avoidable_fraction).fold(f64::INFINITY, f64::min);
    let what = "avoidable, ours less the fewest of another policy";
    claims.push(claim(size, what, ours.avoidable_fraction() - fewest, Bound::AtMost(0.0)));
    let fewest = others.iter().min_by(|a, b| a.missed_fraction().total_cmp(&b.missed_fraction()));
    if let Some(fewest) = fewest.filter(|fewest| size >= MANY && fewest.missed() >= COMPARED_LEAST) {
        let value = ours.missed_fraction() / fewest.missed_fraction();
        claims.push(claim(size, "missed in all, ours / the fewest of another policy", value, Bound::AtMost(FEWER)));
    }
    claims
}

/// The windows of a policy at these sizes.
fn sum(rows: &[Row], name: &str, sizes: impl Fn(usize) -> bool) -> Counts {
    let mut sum = Counts::default();
    rows.iter().filter(|row| row.policy.name == name && sizes(row.size)).for_each(|row| sum.add(&row.counts()));
    sum
}

/// Ours at small and at large sizes.
fn together(rows: &[Row]) -> Vec<Claim> {
    let (few, many) = (sum(rows, OURS, |size| size <= FEW), sum(rows, OURS, |size| size > FEW));
    let mut claims = rarely_avoidable(&|what| format!("up to {FEW} workloads together: {what}"), &few, FEW);
    claims.extend(rarely_avoidable(&|what| format!("more than {FEW} workloads together: {what}"), &many, FEW + 1));
    claims
}

/// Avoidable windows of all sizes, ours against each policy with tokens.
fn in_total(rows: &[Row]) -> Vec<Claim> {
    let avoidable = |name: &str| sum(rows, name, |_| true);
    let is_by_tokens = |name: &&str| BY_TOKENS.iter().any(|of| name.starts_with(of));
    let names = policies::ALL.iter().map(|policy| policy.name).filter(is_by_tokens);
    let enough = names.filter(|name| avoidable(name).avoidable >= COMPARED_LEAST);
    let claim = |name: &str| {
        let value = avoidable(OURS).avoidable_fraction() / avoidable(name).avoidable_fraction();
        Claim::new(format!("avoidable in total, ours / {name}"), value, Bound::AtMost(0.1))
    };
    enough.map(claim).collect()
}

/// The server's own classification under our policy against the dedicated run.
fn agreement(rows: &[Row]) -> Option<Claim> {
    let mut all = Agreement::default();
    rows.iter().filter(|row| row.policy.name == OURS).for_each(|row| all.add(&row.agreement()));
    let value = all.agreed as f64 / all.judged as f64;
    let name = "missed windows that the server classifies as the dedicated run does";
    (all.judged >= COMPARED_LEAST).then(|| Claim::new(name, value, Bound::AtLeast(AGREED_LEAST)))
}

/// Response times of ours.
fn response_times(rows: &[Row]) -> Vec<Claim> {
    let mut latency = Responses::new().times;
    let ours = rows.iter().filter(|row| row.policy.name == OURS).flat_map(|row| &row.shared);
    ours.for_each(|shared| latency.add(&shared.responses.times).expect("histograms grow"));
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
