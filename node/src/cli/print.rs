//! Text output: tables and lists.

use crate::control::view::{
    AllotmentView, ByOpView, CeilingsView, Condition, DataKind, DelayView, DiskView, DriveCache, FaultPhase, FaultView,
    LatencyView, LiveOffloadView, LiveView, PercentilesView, PolicyView, ProfileView, RatioView, ShareView, SizingView,
    SliceView, Status, TenantDetail, TenantView, ValueSource, ValueView, VolumeView,
};
use crate::quantity::{Size, duration, percent};
use crate::store::Journal;
use crate::store::spec::{Allocation, Eviction, WriteCache};

mod cluster;
mod guarantees;
mod offload;
mod policies;
mod stores;
mod upstreams;

pub use cluster::{cluster_members, cluster_status, schedule, schedule_svg};
use cluster::{in_cluster, part};
pub use guarantees::violations;
use guarantees::{guarantee, guarantee_met, rate};
pub use offload::{offload, offload_list};
pub use policies::{policies, tenant_policy};
pub use stores::{store, stores};
use upstreams::{demotion, stripes, upstream};

/// Characters of a rule that is shown in a table; if it is longer, the number of rules is shown.
const ACCESS_LETTERS_MAX: usize = 24;

/// A table with minimal column widths. Columns whose heading starts with a space hold numbers and are aligned right.
fn table(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row[i].chars().count());
        cells.chain([headings[i].trim_start().chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let width = width(i);
            let padded =
                if headings[i].starts_with(' ') { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            line += &padded;
            line += "  ";
        }
        line.trim_end().to_owned() + "\n"
    };
    let head = line(headings.iter().map(|heading| heading.trim_start()).collect());
    rows.iter().fold(head, |text, row| text + &line(row.iter().map(String::as_str).collect()))
}

/// A list of names and values. A value of several lines is indented; an empty one is omitted.
fn list(entries: &[(&str, String)]) -> String {
    let width = entries.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in entries {
        for (i, line) in value.lines().enumerate() {
            text += &format!("{:<width$}  {line}\n", if i == 0 { name } else { "" });
        }
    }
    text
}

pub(super) fn bytes(bytes: u64) -> String {
    Size(bytes).rounded()
}

pub(super) fn ratio(ratio: f64) -> String {
    percent((ratio * 1e9) as u64)
}

fn condition(condition: Condition) -> String {
    match condition {
        Condition::Online => "online",
        Condition::Offline => "offline",
        Condition::Creating => "creating",
    }
    .into()
}

/// The state of a volume; a part of it may be out of reach.
fn volume_condition(volume: &VolumeView) -> String {
    let is_away = !volume.failing_stores.is_empty() && volume.offloaded_bytes > 0;
    if is_away { condition(volume.condition) + ", STORE AWAY" } else { condition(volume.condition) }
}

/// The stores of a volume that may be off-loaded, and what is there.
fn off_load(volume: &VolumeView) -> String {
    let VolumeView { offload_stores, offloaded_bytes, .. } = volume;
    let stores = offload_stores.join(", ");
    if stores.is_empty() { stores } else { format!("{}, to {stores}", bytes(*offloaded_bytes)) }
}

fn write_cache(mode: WriteCache) -> String {
    match mode {
        WriteCache::Volatile => "volatile",
        WriteCache::None => "none",
        WriteCache::Unsafe => "UNSAFE",
    }
    .into()
}

pub(super) fn eviction(policy: Eviction) -> String {
    match policy {
        Eviction::Lru => "lru",
        Eviction::Sieve => "sieve",
    }
    .into()
}

/// The effective value and, if it differs, the requested one.
fn both(requested: Option<&String>, effective: String) -> String {
    match requested {
        Some(requested) if *requested == effective => effective,
        Some(requested) => format!("{effective} (requested: {requested})"),
        None => format!("{effective} (not requested)"),
    }
}

/// An effective share; '-' for a tenant without disk time.
fn share(share: &ShareView) -> String {
    share.effective.map_or("-".into(), ratio)
}

fn share_in_words(share: &ShareView) -> String {
    match share.effective {
        Some(effective) => both(share.requested.as_ref(), ratio(effective)),
        None => "-: no disk time, its volumes are on other servers".into(),
    }
}

/// A table of volumes.
pub fn volumes(volumes: &[VolumeView]) -> String {
    if volumes.is_empty() {
        return "no volumes: create one with `aerogel volume create NAME SIZE`\n".into();
    }
    let headings = ["VOLUME", "DISK", "TENANT", " SIZE", " SHARE", " CACHE", "WRITES", "ACCESS", " CLIENTS", "STATE"];
    let row = |volume: &VolumeView| {
        vec![
            volume.name.clone(),
            volume.disk.clone(),
            volume.tenant.clone(),
            bytes(volume.size_bytes),
            share(&volume.share),
            bytes(volume.cache.effective_bytes),
            write_cache(volume.write_cache),
            access(&volume.allow, volume.read_only),
            volume.connections.to_string(),
            volume_condition(volume),
        ]
    };
    table(&headings, volumes.iter().map(row).collect())
}

/// The access list of a volume, abbreviated.
fn access(allow: &[String], read_only: bool) -> String {
    let rules = match allow {
        [] => "-".into(),
        [rule] if rule.len() <= ACCESS_LETTERS_MAX => rule.clone(),
        rules if rules.len() == 1 => "1 rule".into(),
        rules => format!("{} rules", rules.len()),
    };
    if read_only { format!("{rules}, read-only") } else { rules }
}

/// All properties of a volume.
pub fn volume(volume: &VolumeView) -> String {
    let requested_cache = volume.cache.requested_bytes.map(bytes);
    let traffic = &volume.traffic;
    let allocation = match volume.allocation {
        _ if volume.upstream.is_some() => "by the server that has it".into(),
        Allocation::Sparse if volume.raw => "raw device; trimmed ranges are discarded on the device".into(),
        _ if volume.raw => "raw device".into(),
        Allocation::Whole | Allocation::Full => format!("whole, initialised {}", ratio(volume.initialised_ratio)),
        Allocation::Sparse => format!("sparse, written {}", ratio(volume.initialised_ratio)),
    };
    let hits = traffic.hit_ratio.map_or_else(String::new, |hits| format!(", {} from the cache", ratio(hits)));
    list(&[
        ("volume", volume.name.clone()),
        ("state", volume_condition(volume)),
        ("reason", volume.reason.clone().unwrap_or_default()),
        ("warnings", volume.warnings.join("\n")),
        ("open it at", volume.uris.join("\n")),
        ("description", volume.description.clone()),
        ("allow", volume.allow.join("\n")),
        ("read-only", if volume.read_only { "yes".into() } else { String::new() }),
        ("size", bytes(volume.size_bytes)),
        ("disk", volume.disk.clone()),
        ("data", if volume.stripes.is_some() { String::new() } else { volume.path.clone() }),
        ("cluster", volume.cluster.as_ref().map_or_else(String::new, part)),
        ("upstream", volume.upstream.as_ref().map_or_else(String::new, upstream)),
        ("stripes", volume.stripes.as_ref().map_or_else(String::new, stripes)),
        ("allocation", allocation),
        ("tenant", volume.tenant.clone()),
        (
            "policy",
            volume.spec.as_ref().and_then(|spec| spec.policy.clone()).map_or_else(String::new, |it| it.to_string()),
        ),
        ("share", share_in_words(&volume.share)),
        ("guarantee", volume.guarantee.as_ref().map_or_else(String::new, guarantee)),
        ("cache", both(requested_cache.as_ref(), bytes(volume.cache.effective_bytes))),
        ("cache used", bytes(volume.cache.used_bytes)),
        ("decision", volume.sizing.as_ref().map_or_else(String::new, SizingView::in_words)),
        ("cache for R", volume.sizing.as_ref().map_or_else(String::new, cache_for_r)),
        ("eviction", eviction(volume.cache.eviction)),
        ("ceilings", volume.ceilings.as_ref().map_or_else(String::new, CeilingsView::in_words)),
        ("slice", volume.slice.as_ref().map_or_else(String::new, SliceView::in_words)),
        ("keeps", kept(volume.insulation.as_ref(), volume.own_cache_insulation.as_ref())),
        ("latency", volume.latency.as_ref().map_or_else(String::new, latency)),
        ("write cache", write_cache(volume.write_cache)),
        ("dirty data", bytes(volume.dirty_bytes)),
        ("off-load", off_load(volume)),
        ("demotion", volume.demotion.as_ref().map_or_else(String::new, demotion)),
        ("connections", volume.connections.to_string()),
        ("reads", format!("{} ({}){hits}", traffic.reads, bytes(traffic.read_bytes))),
        ("writes", format!("{} ({})", traffic.writes, bytes(traffic.write_bytes))),
        ("flushes", traffic.flushes.to_string()),
        ("errors", traffic.errors.to_string()),
    ])
}

/// The insulation of a tenant: against the cache that it has, and against the whole cache.
fn kept(whole: Option<&RatioView>, own: Option<&RatioView>) -> String {
    let line = |ratio: &RatioView, against: &str| {
        let RatioView { ratio, window_seconds, prediction } = ratio;
        format!(
            "{ratio:.2} of its share of a disk of its own with {against}, in the last {}, {prediction}",
            duration(*window_seconds)
        )
    };
    let own = own.map(|own| line(own, "the cache that it has (measured; promised: R)"));
    let whole = whole.map(|whole| line(whole, "the whole cache (estimated)"));
    own.into_iter().chain(whole).collect::<Vec<_>>().join("\n")
}

/// The cache that a tenant needs, what is guaranteed to it, and what is lent to it.
fn cache_for_r(sizing: &SizingView) -> String {
    let need = sizing.need_bytes.map_or_else(|| "not known".into(), bytes);
    let (own, lent) = (bytes(sizing.guaranteed_bytes), bytes(sizing.lent_bytes));
    format!("needed: {need}; guaranteed: {own}; lent: {lent}; {}", kept_parts(sizing))
}

/// R_time, R_cache, and R.
fn kept_parts(sizing: &SizingView) -> String {
    match (sizing.cache_ratio, sizing.best_ratio) {
        (Some(cache), Some(best)) => format!("R = {:.2} (time) x {cache:.2} (cache) = {best:.2}", sizing.time_ratio),
        _ => format!("R = {:.2} (time), cache not known", sizing.time_ratio),
    }
}

/// Latencies, recent and since the start, one per line.
fn latency(all: &LatencyView) -> String {
    let line = |op: &str, of: Option<PercentilesView>, when: &str| {
        of.map_or_else(String::new, |of| {
            let [p50, p99, p999, max] = [of.p50_seconds, of.p99_seconds, of.p999_seconds, of.max_seconds].map(duration);
            format!("{op} {when}: p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}\n")
        })
    };
    let lines = |of: &ByOpView, when: &str| line("reads", of.read, when) + &line("writes", of.write, when);
    let recent = format!("in the last {}", duration(all.window_seconds));
    lines(&all.recent, &recent) + &lines(&all.total, "in all")
}

/// A table of tenants, with a line for each disk.
pub fn tenant_list(tenants: &[TenantDetail]) -> String {
    if tenants.is_empty() {
        return "no tenants: a volume has one, create it with `aerogel volume create NAME SIZE`\n".into();
    }
    let headings = ["TENANT", "DISK", " VOLUMES", " SHARE", " GUARANTEE", " CACHE", "EVICTION", "DECISION", "STATE"];
    let row = |(tenant, on): (&TenantDetail, &AllotmentView)| {
        vec![
            tenant.name.clone(),
            on.disk.clone(),
            on.volumes.len().to_string(),
            share(&on.share),
            on.guarantee.as_ref().map_or("-".into(), |guarantee| rate(guarantee.min_bandwidth)),
            bytes(on.cache.effective_bytes),
            eviction(on.cache.eviction),
            on.sizing.as_ref().map_or("-".into(), |sizing| sizing.decision.name().into()),
            condition(on.condition),
        ]
    };
    let all = tenants.iter().flat_map(|tenant| tenant.disks.iter().map(move |on| (tenant, on)));
    table(&headings, all.map(row).collect())
}

/// The name of a tenant's policy.
fn named_policy(on: &AllotmentView) -> String {
    let policy = on.spec.as_ref().and_then(|spec| spec.policy.clone()?.value());
    policy.map_or_else(String::new, |name| name.to_string())
}

/// All properties of a tenant, disk by disk.
pub fn tenant(tenant: &TenantDetail) -> String {
    let on = |on: &AllotmentView| {
        list(&[
            ("tenant", tenant.name.clone()),
            ("disk", on.disk.clone()),
            ("state", condition(on.condition)),
            ("volumes", on.volumes.join("\n")),
            ("policy", named_policy(on)),
            ("share", share_in_words(&on.share)),
            ("guarantee", on.guarantee.as_ref().map_or_else(String::new, guarantee)),
            ("cache", both(on.cache.requested_bytes.map(bytes).as_ref(), bytes(on.cache.effective_bytes))),
            ("cache used", bytes(on.cache.used_bytes)),
            ("decision", on.sizing.as_ref().map_or_else(String::new, SizingView::in_words)),
            ("cache for R", on.sizing.as_ref().map_or_else(String::new, cache_for_r)),
            ("eviction", eviction(on.cache.eviction)),
            ("ceilings", on.ceilings.as_ref().map_or_else(String::new, CeilingsView::in_words)),
            ("slice", on.slice.as_ref().map_or_else(String::new, SliceView::in_words)),
            ("keeps", kept(on.insulation.as_ref(), on.own_cache_insulation.as_ref())),
            ("latency", on.latency.as_ref().map_or_else(String::new, latency)),
        ])
    };
    tenant.disks.iter().map(on).collect::<Vec<_>>().join("\n")
}

/// A table of disks.
pub fn disks(disks: &[DiskView]) -> String {
    if disks.is_empty() {
        return "no disks: add one with `aerogel disk add NAME PATH`\n".into();
    }
    let headings = ["DISK", " VOLUMES", " PROMISED", " BUSY", " MEMORY", " FREE", "STATE", "PATH"];
    let row = |disk: &DiskView| {
        vec![
            disk.name.clone(),
            disk.volumes.len().to_string(),
            ratio(disk.committed_share),
            ratio(disk.busy_ratio),
            bytes(disk.memory_bytes),
            bytes(disk.simulated.as_ref().map_or(disk.free_bytes, |simulated| simulated.free_bytes)),
            if disk.faults.is_empty() { condition(disk.condition) } else { condition(disk.condition) + ", FAULTS" },
            disk.simulated
                .as_ref()
                .map_or(disk.path.clone(), |simulated| format!("{} in {}", simulated.description, disk.path)),
        ]
    };
    table(&headings, disks.iter().map(row).collect())
}

/// A fault in one line.
fn fault(fault: &FaultView) -> String {
    let phase = match fault.phase {
        FaultPhase::Coming => ", not yet",
        FaultPhase::Active => "",
        FaultPhase::Over => ", over",
    };
    let stuck = if fault.stuck > 0 { format!(", {} requests hang", fault.stuck) } else { String::new() };
    format!("{}: {} (occurred {} times{stuck}{phase})", fault.id, fault.fault, fault.happened)
}

/// The faults of a disk.
pub fn faults(faults: &[FaultView]) -> String {
    match faults {
        [] => "no faults\n".into(),
        some => some.iter().map(|one| fault(one) + "\n").collect(),
    }
}

/// All properties of a disk.
pub fn disk(disk: &DiskView) -> String {
    let simulated = disk.simulated.as_ref().map_or_else(String::new, |simulated| {
        let (all, free) = (bytes(simulated.size_bytes), bytes(simulated.free_bytes));
        format!("{}, {}\n{all}, {free} of it free", simulated.description, simulated.model)
    });
    let note = match disk.simulated {
        Some(_) => "requests take as long as on the described drive; the data is in sparse files",
        None => "I/O of other programs on the device is not accounted for",
    };
    let io = if disk.direct_io { "direct" } else { "through the kernel's cache" };
    let drive_cache = match disk.drive_cache {
        Some(DriveCache::WriteBack) => {
            "write-back: emptied by flushes; the drive may write a tenant's data during another tenant's slice"
        }
        Some(DriveCache::WriteThrough) => "write-through: no flushes needed",
        None => "",
    };
    let journal = match (disk.data, disk.journal) {
        (DataKind::Raw, _) => "; it holds specifications only",
        (_, Journal::Shared) => "; its volumes share its journal (raw devices do not)",
        _ => "",
    };
    let file_system = disk.file_system.clone().map_or_else(String::new, |kind| kind + journal);
    let data = match disk.data {
        DataKind::Files => "files",
        DataKind::Raw => "raw devices: there is no file system and no journal to share",
        DataKind::Both => "files and raw devices",
    };
    list(&[
        ("disk", disk.name.clone()),
        ("state", condition(disk.condition)),
        ("reason", disk.reason.clone().unwrap_or_default()),
        ("warnings", disk.warnings.join("\n")),
        ("simulated", simulated),
        ("path", disk.path.clone()),
        ("uuid", disk.uuid.to_string()),
        ("device", disk.device.clone().unwrap_or_default()),
        ("drive's cache", drive_cache.into()),
        ("scheduler", disk.scheduler.clone().unwrap_or_default()),
        ("volumes are", data.into()),
        ("file system", file_system),
        ("I/O", format!("{io}, in blocks of {}", bytes(u64::from(disk.device_block_bytes)))),
        ("free space", bytes(disk.free_bytes)),
        ("policy", disk.policy.as_ref().map_or_else(String::new, policy)),
        ("insulation", disk.policy.as_ref().map_or_else(String::new, insulation)),
        ("round", disk.policy.as_ref().map_or_else(String::new, round)),
        ("promised", promised(disk)),
        ("busy", ratio(disk.busy_ratio)),
        ("memory", bytes(disk.memory_bytes)),
        ("dirty data", bytes(disk.dirty_bytes)),
        ("tenants", tenants(&disk.tenants)),
        ("volumes", disk.volumes.join("\n")),
        ("unclaimed data", disk.unclaimed.join("\n")),
        ("faults", disk.faults.iter().map(|one| fault(one) + "\n").collect()),
        ("note", note.into()),
        ("profile", profile(&disk.profile)),
    ])
}

/// The sum of the shares; above 1 with --overcommit.
fn promised(disk: &DiskView) -> String {
    let sum = ratio(disk.committed_share);
    match disk.committed_share > 1.0 {
        true => format!("{sum}, OVERCOMMITTED: a share of 1/2 is {}", ratio(0.5 / disk.committed_share)),
        false => sum,
    }
}

fn policy(policy: &PolicyView) -> String {
    format!("{}: {}", policy.name, policy.reason)
}

/// R, and the reason if it is lower than requested.
fn insulation(policy: &PolicyView) -> String {
    let requested = format!("R = {}", policy.insulation.requested);
    match (policy.insulation.effective, &policy.insulation.reason) {
        (None, _) => format!("none under this policy; {requested} under an insulating one"),
        (Some(_), None) => requested,
        (Some(effective), Some(reason)) => {
            format!("R = {effective:.2} (requested: {}): {reason}", policy.insulation.requested)
        }
    }
}

fn round(policy: &PolicyView) -> String {
    let longest = format!("at most {}", duration(policy.round_seconds_max));
    match policy.round_seconds {
        Some(round) => {
            format!(
                "{} at present, {longest} (--max-round); maximum wait for a slice: one round, rarely two",
                duration(round)
            )
        }
        None if policy.insulation.effective.is_some() => longest,
        None => String::new(),
    }
}

/// The headings of the table of tenants.
pub const TENANT_HEADINGS: [&str; 17] = [
    "TENANT",
    " SHARE",
    " SLICE",
    " LOST",
    " DISK",
    " KEEPS",
    "GUARANTEE",
    " READS",
    " WRITES",
    " P50",
    " P99",
    " P99.9",
    " MAX",
    "DECISION",
    " CACHE",
    "R",
    "WAITS FOR",
];
/// The columns of the insulation, against the cache that a tenant has and against the whole cache, and of the
/// guarantee.
pub const DISK: usize = 4;
pub const KEEPS: usize = 5;
pub const GUARANTEE: usize = 6;

/// A row of the table of tenants.
pub fn tenant_cells(tenant: &TenantView) -> Vec<String> {
    let kept = |of: Option<&RatioView>| of.map_or("-".into(), |kept| format!("{:.2}", kept.ratio));
    let slice = |of: fn(&SliceView) -> f64| tenant.slice.as_ref().map_or("-".into(), |slice| duration(of(slice)));
    let rates = tenant.rates.clone().unwrap_or_default();
    let recent = tenant.latency.and_then(|all| all.recent.both);
    let latency = |of: fn(&PercentilesView) -> f64| recent.map_or("-".into(), |all| duration(of(&all)));
    vec![
        tenant.name.clone(),
        share(&tenant.share),
        slice(|slice| slice.seconds),
        slice(|slice| slice.loss_seconds),
        kept(tenant.own_cache_insulation.as_ref()),
        kept(tenant.insulation.as_ref()),
        tenant.guarantee.as_ref().map_or("-".into(), guarantee_met),
        throughput(rates.reads, rates.read_bytes),
        throughput(rates.writes, rates.write_bytes),
        latency(|latency| latency.p50_seconds),
        latency(|latency| latency.p99_seconds),
        latency(|latency| latency.p999_seconds),
        latency(|latency| latency.max_seconds),
        tenant.sizing.as_ref().map_or("-".into(), |sizing| sizing.decision.name().into()),
        tenant.sizing.as_ref().map_or("-".into(), cache_parts),
        tenant.sizing.as_ref().map_or("-".into(), r_parts),
        waits_for(&rates.delay_seconds),
    ]
}

/// The guaranteed cache, and the lent one.
fn cache_parts(sizing: &SizingView) -> String {
    match sizing.lent_bytes {
        0 => bytes(sizing.guaranteed_bytes),
        lent => format!("{}+{}", bytes(sizing.guaranteed_bytes), bytes(lent)),
    }
}

/// R_time and R_cache; `?` while the tenant's load, and thus R_cache, is unknown.
fn r_parts(sizing: &SizingView) -> String {
    let cache = sizing.cache_ratio.map_or("?".into(), |cache| format!("{cache:.2}"));
    format!("{:.2}x{cache}", sizing.time_ratio)
}

/// A table of tenants.
fn tenants(tenants: &[TenantView]) -> String {
    match tenants {
        [] => String::new(),
        some => table(&TENANT_HEADINGS, some.iter().map(tenant_cells).collect()),
    }
}

/// Policy, R and round of a disk in one line.
pub fn live_title(disk: &LiveView) -> String {
    let Some(about) = &disk.policy else { return condition(disk.condition) };
    let parts = [
        policy(about),
        insulation(about),
        about.round_seconds.map_or(String::new(), |s| format!("round {}", duration(s))),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// How busy a disk is.
pub fn busy(disk: &LiveView) -> String {
    disk.busy_ratio.map_or(String::new(), |busy| format!("busy {:.0}%", busy * 100.0))
}

/// What is off-loaded of a disk.
pub fn offloaded(offload: &LiveOffloadView) -> String {
    let rate = |bytes_a_second: f64| bytes(bytes_a_second as u64);
    let (away, home) = (rate(offload.written_bytes_per_s), rate(offload.reclaimed_bytes_per_s));
    format!("off-loaded {}, {away}/s away, {home}/s home", bytes(offload.offloaded_bytes))
}

/// The output of `top --once`.
pub fn top(disks: &[LiveView]) -> String {
    let disk = |disk: &LiveView| {
        let tenants = if disk.tenants.is_empty() { "no tenants\n".into() } else { tenants(&disk.tenants) };
        let (title, busy) = (live_title(disk), busy(disk));
        let gap = if busy.is_empty() { "" } else { "; " };
        let offload = disk.offload.as_ref().map_or(String::new(), |offload| offloaded(offload) + "\n");
        format!("{}  {title}{gap}{busy}\n{offload}{tenants}", disk.disk)
    };
    disks.iter().map(disk).collect::<Vec<_>>().join("\n")
}

/// Requests and bytes per second.
fn throughput(requests: f64, bytes_a_second: f64) -> String {
    if requests == 0.0 { "-".into() } else { format!("{requests:.0}/s {}/s", bytes(bytes_a_second as u64)) }
}

/// Where requests spend their time, in percent.
fn waits_for(delays: &DelayView) -> String {
    let all = [
        ("thread", delays.thread),
        ("cache", delays.cache),
        ("queue", delays.queue),
        ("slice", delays.slice),
        ("disk", delays.disk),
        ("ceiling", delays.ceiling),
    ];
    let sum: f64 = all.iter().map(|(_, delay)| delay).sum();
    let parts = all.iter().map(|(name, delay)| (name, (delay / sum * 100.0).round()));
    let shown: Vec<String> =
        parts.filter(|(_, part)| *part >= 1.0).map(|(name, part)| format!("{name} {part}%")).collect();
    shown.join(" ")
}

/// A table of the profile's values with their sources.
pub fn profile(profile: &ProfileView) -> String {
    if profile.values.is_empty() {
        return "not measured: run `aerogel disk probe`\n".into();
    }
    let row = |value: &ValueView| {
        let error = value.error_ratio.map_or_else(String::new, |ratio| format!("± {:.0}%", ratio * 100.0));
        let measured = match value.source {
            ValueSource::Measured | ValueSource::AutomaticQuick => value.method.clone().unwrap_or_default(),
            ValueSource::Override => match value.measured {
                Some(measured) => format!("measured: {}", number(&value.name, Some(measured))),
                None => String::new(),
            },
        };
        let source = match value.source {
            ValueSource::Measured => "measured",
            ValueSource::AutomaticQuick => "automatic quick",
            ValueSource::Override => "OVERRIDE",
        };
        let error = if value.source == ValueSource::Override { String::new() } else { error };
        vec![value.name.clone(), number(&value.name, value.value), error, source.into(), value.at.clone(), measured]
    };
    table(&["VALUE", " NUMBER", " ERROR", "SOURCE", "WHEN", "HOW"], profile.values.iter().map(row).collect())
}

/// A value in a readable unit, which follows from the suffix of its name.
fn number(name: &str, value: Option<f64>) -> String {
    let Some(value) = value else { return "none".into() };
    if name.ends_with("_ns") {
        return match value {
            ms if ms >= 1e6 => format!("{:.3} ms", ms / 1e6),
            us => format!("{:.1} us", us / 1e3),
        };
    }
    if name.ends_with("_bytes_per_s") {
        return format!("{}/s", bytes(value as u64));
    }
    if name.ends_with("_requests_per_s") {
        return format!("{value:.0}/s");
    }
    if name.ends_with("_ratio") {
        return format!("{:.1}%", value * 100.0);
    }
    if value == 0.0 { "no".into() } else { "yes".into() }
}

/// Events that `status` shows; the API returns more.
const EVENTS_SHOWN: usize = 8;

/// The output of `status`.
pub fn status(status: &Status) -> String {
    let mut text = list(&[
        ("server", format!("Aerogel {}, process {}", status.version, status.process)),
        ("state", if status.shutting_down { "shutting down" } else { "serving" }.into()),
        ("data", status.data.clone()),
        ("up", format!("{} s", status.uptime_seconds)),
        ("memory", format!("{} for caches", bytes(status.memory_bytes))),
        ("NBD", status.nbd.join("\n")),
        ("HTTP", status.http.join("\n")),
        ("connections", status.connections.to_string()),
        ("cluster", status.cluster.as_ref().map_or(String::new(), in_cluster)),
    ]);
    for warning in &status.warnings {
        text += &format!("\nwarning: {warning}");
    }
    if !status.warnings.is_empty() {
        text += "\n";
    }
    for event in status.events.iter().rev().take(EVENTS_SHOWN).rev() {
        let (at, disk, reason) = (&event.at, &event.disk, &event.reason);
        text += &match (&event.tenant, event.decision) {
            (Some(tenant), Some(decision)) => {
                format!("\n{at} tenant '{tenant}' of disk '{disk}': {}: {reason}", decision.name())
            }
            _ => format!("\n{at} disk '{disk}': {reason}"),
        };
    }
    if !status.events.is_empty() {
        text += "\n";
    }
    format!("{text}\n{}\n{}", disks(&status.disks), volumes(&status.volumes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = vec![vec!["a".into(), "10".into()], vec!["longer".into(), "7".into()]];
        assert_eq!(table(&["NAME", " N"], rows), "NAME     N\na       10\nlonger   7\n");
        assert_eq!(list(&[("a", "1\n2".into()), ("bc", String::new()), ("d", "3".into())]), "a   1\n    2\nd   3\n");
    }
}
