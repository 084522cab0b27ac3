//! What the planner is told of a tenant: counters and curves of its gateway and its server, of one run with one
//! allotment, and the profile of the disk. The program asks servers for the same.

use engine::Config;
use engine::allocate::{Depth, Evidence, Interruption, Loss, Measured, MissRatios, Other, Round, Subject, Tiers};
use engine::control::{Snapshot, TenantStats};
use engine::disk::profile::{Key, Profile, Quantile};
use engine::ids::TenantId;

use super::play::{Told, between};

/// Network between a client and its gateway, ns: the bench's, both ways.
const CLIENT_NS: f64 = 14_000.0;

/// The evidence of this tenant, which has caches of so many bytes and this share.
pub fn evidence(told: &Told, (first, second): (u64, u64), share: f64, profile: &Profile) -> Result<Evidence, String> {
    let [before, after] = &told.disk;
    let did = |tenant: TenantId| {
        let window = between([before, after], tenant);
        Measured { window, total: window }
    };
    let switch_ns = profile.number(Key::SwitchCost(Quantile::P50)).ok_or("the profile has no cost of a switch")?;
    let by_depth = Depth::of_profile(profile);
    if by_depth.is_empty() {
        return Err("the profile has no rates of random reads".into());
    }
    let others = after.tenants.iter().filter(|stats| stats.tenant != told.tenant).filter_map(|stats| {
        let plan = stats.plan.filter(|plan| plan.round_ns > 0)?;
        let share = plan.slice_ns as f64 / plan.round_ns as f64;
        Some(Other { share, did: did(stats.tenant), loss_ns: Some(plan.loss_ns as f64) })
    });
    let server = did(told.tenant);
    let round = plan_of(after, told.tenant).map(|plan| Round {
        others_ns: server.mean_ns(|of| of.rounds).unwrap_or(plan.round_ns as f64)
            * (1.0 - plan.slice_ns as f64 / plan.round_ns as f64),
        round_ns_max: Config::new(0).round_max_ns as f64,
        loss: Loss { switch_ns, closing_ns: plan.closing_ns as f64 },
        interruption: Some(Interruption::of(others, switch_ns)),
    });
    let subject = Subject {
        tiers: Tiers::Lru,
        reads: MissRatios::of_reads(&told.curve),
        writes: MissRatios::of_writes(&told.curve),
        reads_there: Some(MissRatios::of_reads(&told.curve_there)),
        gateway: Some(Measured { window: told.at_gateway, total: told.at_gateway }),
        server,
        first,
        second,
        share,
        unused: 0.0,
        client_ns: CLIENT_NS,
        by_depth,
        round,
    };
    subject.evidence().map_err(|missing| format!("{:?} has no evidence: {missing:?}", told.tenant))
}

fn plan_of(snapshot: &Snapshot, tenant: TenantId) -> Option<engine::disk::policy::TenantPlan> {
    let of = |stats: &&TenantStats| stats.tenant == tenant;
    snapshot.tenants.iter().find(of)?.plan.filter(|plan| plan.round_ns > 0)
}
