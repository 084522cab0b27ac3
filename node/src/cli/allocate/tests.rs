//! Plans from evidence that is written here.

use engine::allocate::Measured;
use uuid::Uuid;

use super::apply::changes;
use super::gather::{Observed, ObservedDisk, ObservedServer, counters, observed};
use super::problem::{Has, pose};
use super::tenants::matched;
use crate::control::view::{
    CurveEvidence, CurvePoint, DiskEvidence, EvidenceView, LoadEvidence, Resource, TenantEvidence, VolumeEvidence,
};

const MIB: u64 = 1 << 20;
/// Memory of a block of 4096 bytes, in these tests.
const BLOCK_MEMORY: u64 = 4300;

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn volume(number: u128, from: &[Option<u128>]) -> VolumeEvidence {
    let from = from.iter().map(|from| from.map(uuid)).collect();
    let (volume, tiers) = (format!("v{number}"), Default::default());
    VolumeEvidence { volume, uuid: uuid(number), from, shared: false, gateway: None, tiers }
}

/// A tenant that reads from 64 MiB evenly, 100 times a second, with half of it in the cache.
fn tenant(name: &str, volumes: Vec<VolumeEvidence>, cache: Resource<u64>, share: Resource<f64>) -> TenantEvidence {
    let point = |i: u64| CurvePoint {
        cache_bytes: i * MIB,
        miss_ratio: 1.0 - i as f64 / 64.0,
        read_miss_ratio: Some(1.0 - i as f64 / 64.0),
        write_miss_ratio: None,
    };
    TenantEvidence {
        tenant: name.into(),
        remote: volumes.iter().any(|volume| !volume.from.is_empty()),
        volumes,
        share,
        cache,
        share_least: 0.0,
        closing_seconds: Some(0.005),
        loss_seconds: Some(0.005),
        load: LoadEvidence {
            reads: 1000,
            read_seconds: 5.05,
            hits: 500,
            hit_seconds: 0.05,
            busy_seconds: 5.0,
            outstanding_max: 1,
            disk_reads: 500,
            disk_slice_seconds: 2.0,
            disk_service_seconds: 3.0,
            disk_requests: 500,
            disk_owned_seconds: 3.0,
            ..LoadEvidence::default()
        },
        curve: Some(CurveEvidence { block_reads: 10_000.0, block_writes: 0.0, points: (1..=64).map(point).collect() }),
    }
}

fn auto<T>(effective: T) -> Resource<T> {
    Resource { requested: None, auto: true, planned: None, effective }
}

fn none<T>(effective: T) -> Resource<T> {
    Resource { requested: None, auto: false, planned: None, effective }
}

fn stated<T: Copy>(requested: T) -> Resource<T> {
    Resource { requested: Some(requested), auto: false, planned: None, effective: requested }
}

fn server(place: &str, plannable: (u64, f64), tenants: Vec<TenantEvidence>) -> ObservedServer {
    let load = |tenant: &TenantEvidence| {
        let did = counters(&tenant.load, 10.0);
        Measured { window: did, total: did }
    };
    let loads = tenants.iter().map(load).collect();
    let now = DiskEvidence {
        disk: "hdd".into(),
        seconds: 100.0,
        memory_bytes: 64 * MIB,
        block_memory_bytes: BLOCK_MEMORY,
        least_bytes: MIB / 2,
        plannable_bytes: plannable.0,
        plannable_share: plannable.1,
        fixed_shares: None,
        policy: "insulated".into(),
        round_seconds: Some(0.1),
        round_seconds_max: Some(2.0),
        switch_seconds: Some(0.005),
        reads_by_depth: Vec::new(),
        tenants,
    };
    ObservedServer { place: place.parse().unwrap(), disks: vec![ObservedDisk { now, loads }] }
}

#[test]
fn tenants_are_matched_by_the_exports_of_their_volumes() {
    let plain = |name: &str, volumes| tenant(name, volumes, auto(8 * MIB), auto(0.25));
    let behind = server(
        "behind",
        (32 * MIB, 1.0),
        vec![
            plain("a", vec![volume(1, &[])]),
            plain("b", vec![volume(2, &[]), volume(3, &[])]),
            plain("c", vec![volume(4, &[]), volume(5, &[])]),
            plain("direct", vec![volume(6, &[])]),
            plain("twice", vec![volume(7, &[]), volume(8, &[])]),
        ],
    );
    let gateway = server(
        "gateway",
        (32 * MIB, 0.0),
        vec![
            plain("a", vec![volume(11, &[Some(1)])]),
            plain("both", vec![volume(12, &[Some(2)]), volume(13, &[Some(3)])]),
            plain("part", vec![volume(14, &[Some(4)])]),
            plain("striped", vec![volume(15, &[Some(1), Some(2)])]),
            plain("stranger", vec![volume(16, &[None])]),
            plain("elsewhere", vec![volume(17, &[Some(99)])]),
            plain("one", vec![volume(18, &[Some(7)])]),
            plain("other", vec![volume(19, &[Some(8)])]),
            plain("mixed", vec![volume(20, &[Some(1)]), volume(21, &[Some(2)])]),
        ],
    );
    let observed = Observed { servers: vec![behind, gateway] };
    let (subjects, kept) = matched(&observed);
    let name = |at| observed.tenant(at).tenant.clone();
    let pairs: Vec<_> = subjects.iter().map(|of| (name(of.server), of.gateway.map(name))).collect();
    let pair = |server: &str, gateway: Option<&str>| (server.to_owned(), gateway.map(str::to_owned));
    assert_eq!(pairs, [pair("a", Some("a")), pair("b", Some("both")), pair("direct", None)]);
    let why = |tenant: &str| kept.iter().find(|kept| name(kept.at) == tenant).map(|kept| kept.reason.clone()).unwrap();
    for (tenant, reason) in [
        ("part", "without its gateway"),
        ("c", "without its gateway"),
        ("striped", "is striped"),
        ("stranger", "another make"),
        ("elsewhere", "is not on this server"),
        ("twice", "2 tenants of gateways"),
        ("mixed", "belong to 2 tenants"),
    ] {
        assert!(why(tenant).contains(reason), "{tenant}: {}", why(tenant));
    }
}

#[test]
fn what_is_divided_is_what_was_handed_over_and_promises_are_bounds() {
    let tenants = vec![
        tenant("auto", vec![volume(1, &[])], auto(8 * MIB), auto(0.25)),
        tenant("stated", vec![volume(2, &[])], stated(12 * MIB), stated(1.0 / 3.0)),
        tenant("none", vec![volume(3, &[])], none(10 * MIB), none(0.2)),
    ];
    // Beyond 12 MiB and the smallest cache, and beyond a third.
    let observed = Observed { servers: vec![server("behind", (20 * MIB, 0.3), tenants)] };
    let posed = pose(&observed).unwrap();
    let problem = &posed.problem;
    problem.check().unwrap();
    assert!(problem.permits(&posed.problem.equal()).is_ok());
    let grid = problem.grid;
    let data = |memory: u64| memory * 4096 / BLOCK_MEMORY;
    // Both that were handed over, and the third one's.
    let whole = data(20 * MIB + 12 * MIB + MIB / 2 + 10 * MIB);
    assert!(whole - grid.bytes(problem.servers[0]) < 2 * grid.cache_step_bytes);
    let share = f64::from(problem.disks[0].share) / f64::from(grid.share_steps);
    assert!((share - (0.3 + 1.0 / 3.0 + 0.2)).abs() < 0.02, "{share}");
    let [of_auto, of_stated, of_none] = [0, 1, 2].map(|at| problem.tenants[at].bounds);
    assert_eq!((of_auto.least.second, of_auto.most.second), (1, problem.servers[0]), "its smallest cache is in a step");
    assert!(grid.bytes(of_stated.least.second) >= data(12 * MIB));
    assert!(f64::from(of_stated.least.share) / f64::from(grid.share_steps) >= 1.0 / 3.0 - 1e-9);
    assert_eq!(of_none.least, of_none.most);
    // Whatever is found fits into what there is, and keeps the promises.
    let has = posed.has(&observed, &posed.problem.equal());
    assert!(has.iter().map(|has| has.second).sum::<u64>() <= whole);
    assert!(has[1].second >= data(12 * MIB) && has[1].share >= 1.0 / 3.0 - 1e-9);
    assert_eq!((has[2].second, has[2].share), (data(10 * MIB), 0.2));
}

#[test]
fn without_evidence_a_tenant_is_not_planned_and_the_reason_says_why() {
    let plain = |name: &str, number| tenant(name, vec![volume(number, &[])], auto(8 * MIB), auto(0.25));
    let no_curve = TenantEvidence { curve: None, ..plain("new", 1) };
    let idle = TenantEvidence { load: LoadEvidence::default(), ..plain("idle", 2) };
    let mut cached = plain("cached", 3);
    (cached.load.disk_reads, cached.load.disk_requests) = (0, 0);
    let alone = |tenant: TenantEvidence| Observed { servers: vec![server("s", (32 * MIB, 1.0), vec![tenant])] };
    for (tenant, reason) in [
        (no_curve, "tenant 'new': no curve yet: it had 0 block requests, a curve needs 1000"),
        (idle, "tenant 'idle': it had no requests in 10 s"),
        (cached, "tenant 'cached': no read of the disk was measured yet, and the disk has no profile"),
    ] {
        let failure = pose(&alone(tenant)).err().unwrap();
        assert!(failure.error.contains(reason), "{}", failure.error);
    }
    let nothing = alone(tenant("held", vec![volume(1, &[])], none(8 * MIB), none(1.0)));
    let posed = pose(&nothing).unwrap();
    let equal = posed.problem.equal();
    assert_eq!((equal[0], posed.has(&nothing, &equal)), (posed.problem.tenants[0].bounds.least, posed.now.clone()));
}

/// The other tenant is not planned, and uses nothing of the disk: no share makes this one faster.
#[test]
fn a_tenant_to_which_more_time_is_no_use_now_has_all_of_it() {
    let busy = tenant("busy", vec![volume(1, &[])], auto(8 * MIB), auto(0.5));
    let idle = TenantEvidence { load: LoadEvidence::default(), ..tenant("idle", vec![], auto(8 * MIB), auto(0.5)) };
    let observed = Observed { servers: vec![server("s", (32 * MIB, 1.0), vec![busy, idle])] };
    let posed = pose(&observed).unwrap();
    assert!(posed.evidence[0].share_least > 0.99);
    let disk_ns = |share| posed.evidence[0].predict(0, 8 * MIB, share).disk_ns;
    assert_eq!(disk_ns(0.01), disk_ns(0.5));
    // What was measured: the time that others leave unused is not counted twice.
    assert!((disk_ns(0.5) / 10e6 - 1.0).abs() < 0.01, "{} ns for 10 ms", disk_ns(0.5));
    let least = posed.problem.tenants[0].bounds.least;
    let has = posed.has(&observed, &[least]);
    assert!((has[0].share - 0.5).abs() < 1e-9, "the half that the other one does not keep: {}", has[0].share);
}

/// Without the small decrease the sum would be more than there is.
#[test]
fn if_anything_changes_on_a_server_small_differences_change_too() {
    let planned = |bytes| Resource { planned: Some(bytes), ..auto(bytes) };
    let shares = || Resource { planned: Some(0.5), ..auto(0.5) };
    let tenants = vec![
        tenant("large", vec![volume(1, &[])], planned(BLOCK_MEMORY * 1_000_000), shares()),
        tenant("small", vec![volume(2, &[])], planned(BLOCK_MEMORY * 1000), shares()),
    ];
    let observed = Observed { servers: vec![server("s", (32 * MIB, 1.0), tenants)] };
    let posed = pose(&observed).unwrap();
    let has = |blocks: [u64; 2]| blocks.map(|blocks| Has { first: 0, second: blocks * 4096, share: 0.5 });
    let changed = |blocks| {
        let all = changes(&observed, &posed.subjects, &has(blocks));
        all.iter().flat_map(|change| &change.tenants).map(|of| of.tenant.clone()).collect::<Vec<_>>()
    };
    assert_eq!(changed([999_000, 1000]), [""; 0], "rounding");
    assert_eq!(changed([999_000, 2000]), ["large", "small"]);
    assert_eq!(changed([1_000_000, 2000]), ["small"]);
}

#[test]
fn what_a_tenant_did_in_a_window_is_told_from_what_it_did_before() {
    let view = |seconds: f64, tenants: Vec<TenantEvidence>| {
        let disk = server("s", (32 * MIB, 1.0), tenants).disks.remove(0).now;
        DiskEvidence { seconds, ..disk }
    };
    let of = |name: &str, reads| {
        let plain = tenant(name, vec![], auto(8 * MIB), auto(0.25));
        TenantEvidence { load: LoadEvidence { reads, ..LoadEvidence::default() }, ..plain }
    };
    let before = vec![of("goes on", 1000), of("loses a volume", 1000)];
    let before = EvidenceView { process: 1, disks: vec![view(100.0, before)] };
    let now = view(110.0, vec![of("goes on", 1500), of("loses a volume", 200), of("new", 70)]);
    let windows: Vec<_> = observed(now, &before).loads.iter().map(|load| load.window).collect();
    assert_eq!(windows.iter().map(|window| window.elapsed_ns).collect::<Vec<_>>(), [1e10; 3]);
    assert_eq!(windows.iter().map(|window| window.reads.count).collect::<Vec<_>>(), [500.0, 0.0, 70.0]);
}
