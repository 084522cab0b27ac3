//! Converts command-line arguments to requests to the API.

use std::path::PathBuf;
use std::time::Duration;

use clap::CommandFactory;
use hyper::Method;
use serde_json::{Value, json};

use super::arguments::{
    Cli, CreateArgs, DiskVerb, EnableArgs, FaultVerb, OffloadStoreVerb, OffloadVerb, PolicyVerb, Prealloc, SetAccess,
    SetCeilings, StoreVerb, Switch, TenantVerb, VolumeVerb,
};
use super::client::ClientError;
use super::{curve, print, read, top};
use crate::access::{Access, Rule};
use crate::cluster::view::ClusterPlanView;
use crate::control::SIM;
use crate::control::view::{
    AddDisk, CreatePolicy, CreateStore, CreateVolume, DiskView, Done, EnableOffload, FaultView, GrowVolume,
    OffloadView, PlanView, Problem, RemoveStore, SetDisk, SetPolicy, SetStores, SetTenant, SetVolume, StartProbe,
    StoreView, TenantDetail, TenantPolicyView, VolumeView,
};
use crate::probe::SECONDS_QUICK;
use crate::quantity::{Name, TenantName};
use crate::store::Exports;
use crate::store::offload::StoreRef;
use crate::store::spec::Allocation;

/// A request, and how its answer is shown.
pub struct Request {
    pub method: Method,
    pub path: String,
    pub body: Option<Value>,
    pub print: fn(Value) -> Result<String, ClientError>,
    /// The volume and its size, if the progress of its creation is shown.
    pub progress: Option<(Name, u64)>,
    /// The disk, if the request starts a probe.
    pub probe: Option<Name>,
    /// Set if the request is repeated, for a live view or as text.
    pub live: Option<top::How>,
    /// A picture of the answer.
    pub svg: Option<Picture>,
    /// A disk that must be simulated, since --yes was not given.
    pub only_simulated: Option<Name>,
    /// The disk, if the request ends off-loading; and the store, if only that is removed.
    pub ends: Option<(Name, Option<StoreRef>)>,
    /// Why the request is not sent, if a confirmation is missing.
    pub unconfirmed: Option<Problem>,
    /// The interval, if the answer is printed again and again.
    pub again: Option<Duration>,
}

/// A picture of an answer, and its file.
pub struct Picture {
    pub path: PathBuf,
    pub draw: fn(Value) -> Result<String, ClientError>,
}

impl Request {
    pub fn new(method: Method, path: impl Into<String>, body: Option<Value>) -> Request {
        Request {
            method,
            path: path.into(),
            body,
            print: show_done,
            progress: None,
            probe: None,
            svg: None,
            live: None,
            only_simulated: None,
            ends: None,
            unconfirmed: None,
            again: None,
        }
    }

    pub fn get(path: impl Into<String>, print: fn(Value) -> Result<String, ClientError>) -> Request {
        Request { print, ..Request::new(Method::GET, path, None) }
    }
}

fn show_done(answer: Value) -> Result<String, ClientError> {
    let done: Done = read(answer)?;
    let uris = done.volume.map_or_else(Vec::new, |volume| volume.uris);
    Ok(uris.iter().fold(done.message + "\n", |text, uri| format!("{text}  {uri}\n")))
}

fn show_probed(answer: Value) -> Result<String, ClientError> {
    let done: Done = read(answer)?;
    let profile = done.disk.map_or_else(String::new, |disk| print::profile(&disk.profile));
    Ok(format!("{profile}\n{}\n", done.message))
}

/// The access list of a command; `None` if it has no rules.
fn access_list(rules: Vec<Rule>) -> Option<Access> {
    if rules.is_empty() {
        return None;
    }
    let list = Access::new(rules);
    Some(list.unwrap_or_else(|why| {
        Cli::command().error(clap::error::ErrorKind::ValueValidation, format!("--allow: {why}")).exit()
    }))
}

pub fn volume_request(verb: VolumeVerb) -> Request {
    let at = |name: &Name| format!("/v1/volumes/{name}");
    match verb {
        VolumeVerb::Create(arguments) => create_request(*arguments),
        VolumeVerb::List => Request::get("/v1/volumes", |answer| Ok(print::volumes(&read::<Vec<VolumeView>>(answer)?))),
        VolumeVerb::Show { name } => Request::get(at(&name), |answer| Ok(print::volume(&read(answer)?))),
        VolumeVerb::Set {
            name,
            policy,
            share,
            min_bandwidth,
            overcommit,
            cache,
            eviction,
            ceilings,
            write_cache,
            i_accept_data_loss,
            access,
            upstream,
        } => {
            let SetCeilings { max_bandwidth, max_iops, burst } = ceilings;
            let SetAccess { allow, read_only, description } = *access;
            let body = SetVolume {
                policy,
                share,
                min_bandwidth,
                overcommit,
                cache,
                eviction,
                max_bandwidth,
                max_iops,
                burst,
                write_cache,
                accept_data_loss: i_accept_data_loss,
                allow: access_list(allow),
                read_only: read_only.map(Switch::is_on),
                description,
                upstream_deadline: upstream.upstream_deadline,
                upstream_connections: upstream.upstream_connections,
                tiers: upstream.tiers,
            };
            Request::new(Method::PATCH, at(&name), Some(json!(body)))
        }
        VolumeVerb::Curve { name, policy, svg } => {
            let policy = policy.map_or_else(String::new, |policy| format!("?policy={}", print::eviction(policy)));
            let request = Request::get(at(&name) + "/curve" + &policy, |answer| Ok(curve::text(&read(answer)?)));
            let draw = |answer| Ok(curve::svg(&read(answer)?));
            Request { svg: svg.map(|path| Picture { path, draw }), ..request }
        }
        VolumeVerb::Grow { name, size } => {
            Request::new(Method::POST, at(&name) + "/grow", Some(json!(GrowVolume { size })))
        }
        VolumeVerb::Delete { name, yes: _, force } => {
            Request::new(Method::DELETE, format!("{}?force={force}", at(&name)), None)
        }
        VolumeVerb::Clear { name, yes: _ } => Request::new(Method::POST, at(&name) + "/clear", None),
    }
}

fn create_request(arguments: CreateArgs) -> Request {
    let allocation = match (arguments.prealloc, arguments.sparse) {
        (Some(Prealloc::Full), _) => Allocation::Full,
        (None, true) => Allocation::Sparse,
        (None, false) => Allocation::Whole,
    };
    let progress = arguments.prealloc.and(arguments.size).map(|size| (arguments.name.clone(), size.0));
    let (access, upstream) = (arguments.access, arguments.upstream);
    let body = CreateVolume {
        name: arguments.name,
        size: arguments.size,
        device: arguments.device.map(|device| absolute(&device.to_string_lossy())),
        force: arguments.force,
        from: Some(Exports(upstream.from)).filter(|exports| !exports.0.is_empty()),
        stripe: upstream.stripe,
        shared: upstream.shared,
        upstream_deadline: upstream.upstream_deadline,
        upstream_connections: upstream.upstream_connections,
        tiers: upstream.tiers,
        tls_certificates: upstream.tls_certificates.map(|path| absolute(&path.to_string_lossy()).into()),
        tls_hostname: upstream.tls_hostname,
        accept_data_loss: upstream.i_accept_data_loss,
        disk: arguments.disk,
        policy: arguments.policy,
        share: arguments.share,
        min_bandwidth: arguments.min_bandwidth,
        overcommit: arguments.overcommit,
        tenant: arguments.tenant,
        cache: arguments.cache,
        like: arguments.like,
        eviction: arguments.eviction,
        max_bandwidth: arguments.max_bandwidth,
        max_iops: arguments.max_iops,
        burst: arguments.burst,
        allocation,
        allow: access_list(access.allow).unwrap_or_default(),
        read_only: access.read_only.is_some_and(Switch::is_on),
        description: access.description.unwrap_or_default(),
        servers: arguments.cluster.servers,
        on: arguments.cluster.on,
        least: arguments.cluster.least,
        lease_epoch: None,
    };
    if arguments.dry_run && body.is_of_cluster() {
        let print = |answer| Ok(read::<ClusterPlanView>(answer)?.message + "\n");
        return Request { print, ..Request::new(Method::POST, "/v1/cluster/plan", Some(json!(body))) };
    }
    if arguments.dry_run {
        let print = |answer| Ok(read::<PlanView>(answer)?.message + "\n");
        return Request { print, ..Request::new(Method::POST, "/v1/plan", Some(json!(body))) };
    }
    Request { progress, ..Request::new(Method::POST, "/v1/volumes", Some(json!(body))) }
}

pub fn store_request(verb: StoreVerb) -> Request {
    let at = |name: &Name| format!("/v1/stores/{name}");
    match verb {
        StoreVerb::Create { name, size, disk, share, overcommit, allow, description } => {
            let (allow, description) = (access_list(allow).unwrap_or_default(), description.unwrap_or_default());
            let body = CreateStore { name, size, disk, share, overcommit, allow, description };
            Request::new(Method::POST, "/v1/stores", Some(json!(body)))
        }
        StoreVerb::List => Request::get("/v1/stores", |answer| Ok(print::stores(&read::<Vec<StoreView>>(answer)?))),
        StoreVerb::Show { name } => Request::get(at(&name), |answer| Ok(print::store(&read(answer)?))),
        StoreVerb::Set { disk, share, overcommit } => {
            Request::new(Method::PATCH, "/v1/stores", Some(json!(SetStores { disk, share, overcommit })))
        }
        StoreVerb::Delete { name, yes: _, force } => {
            Request::new(Method::DELETE, format!("{}?force={force}", at(&name)), None)
        }
    }
}

/// The interval of `offload show --watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

pub fn offload_request(verb: OffloadVerb) -> Request {
    let at = |disk: &Name| format!("/v1/offload/{disk}");
    match verb {
        OffloadVerb::Enable(arguments) => {
            let EnableArgs { disk, stores, copies, limit, except, force, .. } = *arguments;
            let EnableArgs { base_threshold, store_threshold, reclaim_depth, .. } = *arguments;
            let body =
                EnableOffload { stores, copies, limit, base_threshold, store_threshold, reclaim_depth, except, force };
            Request::new(Method::PUT, at(&disk), Some(json!(body)))
        }
        OffloadVerb::Show { disk, watch } => {
            let request = Request::get(at(&disk), |answer| Ok(print::offload(&read(answer)?)));
            Request { again: watch.then_some(WATCH_INTERVAL), ..request }
        }
        OffloadVerb::List => {
            Request::get("/v1/offload", |answer| Ok(print::offload_list(&read::<Vec<OffloadView>>(answer)?)))
        }
        OffloadVerb::Disable { disk } => {
            let request = Request::new(Method::DELETE, at(&disk), None);
            Request { ends: Some((disk, None)), ..request }
        }
        OffloadVerb::Store { verb: OffloadStoreVerb::Remove { disk, store, lost, yes } } => {
            let unconfirmed = (lost && !yes).then(|| Problem {
                error: format!(
                    "store '{store}' of disk '{disk}' is not removed: ranges of which only it has the newest content \
                     would be old"
                ),
                hint: Some("add --yes to confirm; without --lost its data is brought home first".into()),
            });
            let body = RemoveStore { store: store.clone(), lost };
            let request = Request::new(Method::POST, at(&disk) + "/remove-store", Some(json!(body)));
            Request { unconfirmed, ends: (!lost).then_some((disk, Some(store))), ..request }
        }
    }
}

pub fn tenant_request(verb: TenantVerb) -> Request {
    let at = |TenantName(name): &TenantName| format!("/v1/tenants/{name}");
    match verb {
        TenantVerb::List => {
            Request::get("/v1/tenants", |answer| Ok(print::tenant_list(&read::<Vec<TenantDetail>>(answer)?)))
        }
        TenantVerb::Violations { name, disk } => {
            let only = disk.map_or_else(String::new, |disk| format!("?disk={disk}"));
            Request::get(at(&name) + "/violations" + &only, |answer| Ok(print::violations(&read(answer)?)))
        }
        TenantVerb::Show { name } => Request::get(at(&name), |answer| Ok(print::tenant(&read(answer)?))),
        TenantVerb::Set { name, disk, policy, share, min_bandwidth, overcommit, cache, eviction, ceilings } => {
            let SetCeilings { max_bandwidth, max_iops, burst } = ceilings;
            let body = SetTenant {
                disk,
                policy,
                share,
                min_bandwidth,
                overcommit,
                cache,
                eviction,
                max_bandwidth,
                max_iops,
                burst,
            };
            Request::new(Method::PUT, at(&name), Some(json!(body)))
        }
    }
}

pub fn policy_request(verb: PolicyVerb) -> Request {
    let at = |name: &Name| format!("/v1/policies/{name}");
    match verb {
        PolicyVerb::Create { name, share, min_bandwidth, max_bandwidth, max_iops, burst } => {
            let body = CreatePolicy { name, share, min_bandwidth, max_bandwidth, max_iops, burst };
            Request::new(Method::POST, "/v1/policies", Some(json!(body)))
        }
        PolicyVerb::List => {
            Request::get("/v1/policies", |answer| Ok(print::policies(&read::<Vec<TenantPolicyView>>(answer)?)))
        }
        PolicyVerb::Show { name } => Request::get(at(&name), |answer| Ok(print::tenant_policy(&read(answer)?))),
        PolicyVerb::Set { name, share, min_bandwidth, overcommit, ceilings } => {
            let SetCeilings { max_bandwidth, max_iops, burst } = ceilings;
            let body = SetPolicy { share, min_bandwidth, overcommit, max_bandwidth, max_iops, burst };
            Request::new(Method::PUT, at(&name), Some(json!(body)))
        }
        PolicyVerb::Delete { name } => Request::new(Method::DELETE, at(&name), None),
    }
}

pub fn disk_request(verb: DiskVerb) -> Request {
    let at = |name: &Name| format!("/v1/disks/{name}");
    match verb {
        DiskVerb::Add { name, path, force, size, directory, faults, policy, insulation, max_round, no_probe } => {
            let (path, directory) =
                (absolute(&path), directory.map(|directory| absolute(&directory.to_string_lossy())));
            let body = AddDisk { name, path, force, size, directory, faults, policy, insulation, max_round, no_probe };
            Request::new(Method::POST, "/v1/disks", Some(json!(body)))
        }
        DiskVerb::Fault { verb } => fault_request(verb),
        DiskVerb::List => Request::get("/v1/disks", |answer| Ok(print::disks(&read::<Vec<DiskView>>(answer)?))),
        DiskVerb::Show { name } => Request::get(at(&name), |answer| Ok(print::disk(&read(answer)?))),
        DiskVerb::Probe { name, cancel: true, .. } => Request::new(Method::DELETE, at(&name) + "/probe", None),
        DiskVerb::Probe { name, seconds, quick, .. } => {
            let body = StartProbe { seconds: seconds.or(quick.then_some(SECONDS_QUICK)) };
            let request = Request::new(Method::POST, at(&name) + "/probe", Some(json!(body)));
            Request { probe: Some(name), print: show_probed, ..request }
        }
        DiskVerb::Set { name, policy, insulation, max_round, profile } => {
            let body = SetDisk { policy, insulation, max_round, profile: profile.into_iter().collect() };
            Request::new(Method::PATCH, at(&name), Some(json!(body)))
        }
        DiskVerb::Remove { name, force } => Request::new(Method::DELETE, format!("{}?force={force}", at(&name)), None),
    }
}

fn fault_request(verb: FaultVerb) -> Request {
    let at = |name: &Name| format!("/v1/disks/{name}/faults");
    match verb {
        // The server reports errors in the fault.
        FaultVerb::Add { name, fault, yes } => {
            let request = Request::new(Method::POST, at(&name), Some(json!({ "fault": fault.join(" ") })));
            Request { only_simulated: Some(name).filter(|_| !yes), ..request }
        }
        FaultVerb::List { name } => {
            Request::get(at(&name), |answer| Ok(print::faults(&read::<Vec<FaultView>>(answer)?)))
        }
        FaultVerb::Clear { name, id } => {
            let which = id.map_or_else(String::new, |id| format!("?id={id}"));
            Request::new(Method::DELETE, at(&name) + &which, None)
        }
    }
}

/// Makes a path absolute, relative to the user's working directory instead of the server's. After `sim:`, only text
/// with a slash is a path.
fn absolute(path: &str) -> String {
    let (scheme, rest) = match path.strip_prefix(SIM) {
        Some(rest) if !rest.contains('/') => return path.to_owned(),
        Some(rest) => (SIM, rest),
        None => ("", path),
    };
    let path = std::path::absolute(rest).map_or_else(|_| rest.to_owned(), |path| path.to_string_lossy().into_owned());
    format!("{scheme}{path}")
}
