//! Plans as text.

use super::apply::TenantChange;
use super::plan::{AllottedView, PlanView, TenantPlanView};
use crate::cli::print::{bytes, ratio, table};
use crate::quantity::duration;

/// A plan beside the present allocation and beside other methods.
pub(super) fn plan(view: &PlanView) -> String {
    let headings = ["TENANT", "DISK", " AT GATEWAY", " CACHE", " SHARE", " LATENCY", " MEASURED"];
    let row = |tenant: &TenantPlanView| {
        let has_gateway = tenant.gateway.is_some();
        let change = |of: fn(&AllottedView) -> String| arrow(of(&tenant.now), of(&tenant.planned));
        vec![
            tenant.name.clone(),
            tenant.disk.clone(),
            if has_gateway { change(|of| bytes(of.gateway_cache_bytes.unwrap_or(0))) } else { "-".into() },
            change(|of| bytes(of.cache_bytes)),
            change(|of| share(of.share)),
            change(|of| duration(of.latency_seconds)),
            tenant.measured_latency_seconds.map_or("-".into(), duration),
        ]
    };
    let mut text = table(&headings, view.tenants.iter().map(row).collect());
    text += &format!("\n{}\n", total(view));
    for tenant in &view.tenants {
        text += &format!("  {}: {}\n", tenant.name, tenant.reason);
    }
    for kept in &view.unplanned {
        text += &format!("  not planned: '{}' of {}: {}\n", kept.name, kept.server, kept.reason);
    }
    let headings = ["METHOD", " LATENCY", " COST", "TENANTS (gateway/server/share)"];
    let baseline = |of: &super::plan::BaselineView| {
        let tenant = |tenant: &super::plan::BaselineTenantView| {
            let AllottedView { gateway_cache_bytes, cache_bytes, .. } = tenant.allotted;
            let gateway = gateway_cache_bytes.map_or("-".into(), bytes);
            format!("{} {gateway}/{}/{}", tenant.name, bytes(cache_bytes), share(tenant.allotted.share))
        };
        let tenants: Vec<String> = of.tenants.iter().map(tenant).collect();
        vec![of.method.to_owned(), duration(of.total_seconds), cost(view, of.cost), tenants.join(", ")]
    };
    text + "\n" + &table(&headings, view.baselines.iter().map(baseline).collect())
}

fn share(share: f64) -> String {
    ratio((share * 1000.0).round() / 1000.0)
}

fn arrow(now: String, planned: String) -> String {
    if now == planned { now } else { format!("{now} -> {planned}") }
}

/// A cost by the goal: a time, or the negative of a utility.
fn cost(view: &PlanView, cost: f64) -> String {
    if view.goal == "utility" { format!("{cost:.3}") } else { duration(cost) }
}

/// The sums of a plan.
pub(super) fn total(view: &PlanView) -> String {
    let total = &view.total;
    let latency = format!("sum of latencies {} -> {}", duration(total.now_seconds), duration(total.planned_seconds));
    match view.is_latency() {
        true => latency,
        false => {
            let [now, planned] = [total.now_cost, total.planned_cost].map(|of| cost(view, of));
            format!("cost by {} {now} -> {planned}, {latency}", view.goal)
        }
    }
}

/// What has changed, in a line for each tenant.
pub(super) fn changes(changed: &[TenantChange]) -> Vec<String> {
    let line = |change: &TenantChange| {
        let cache = change.cache_bytes.map(|cache| format!("cache {}", arrow(bytes(cache.before), bytes(cache.after))));
        let part = change.share.map(|of| format!("share {}", arrow(share(of.before), share(of.after))));
        let all: Vec<String> = cache.into_iter().chain(part).collect();
        format!("'{}' of {}: {}", change.tenant, change.server, all.join(", "))
    };
    changed.iter().map(line).collect()
}

/// What `apply` has done.
pub(super) fn applied(view: &PlanView, changed: &[TenantChange]) -> String {
    let lines = changes(changed);
    match lines.is_empty() {
        true => format!("nothing has changed: the allocation is as planned; {}\n", total(view)),
        false => format!("{}\n{}\n", lines.join("\n"), total(view)),
    }
}
