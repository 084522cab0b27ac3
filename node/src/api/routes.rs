//! All routes with their descriptions, from which the OpenAPI document is generated.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::openapi::OpenApi;
use utoipa::{IntoParams, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{cluster, metrics};
use crate::cluster::{Cluster, ClusterError};
use crate::control::view::{
    AddDisk, AddFault, CreatePolicy, CreateStore, CreateVolume, CurveView, DiskView, Done, EnableOffload, EvidenceView,
    FaultView, GrowVolume, Health, LiveView, OffloadView, PlanView, ProbeView, Problem, RemoveStore, SetAllocation,
    SetDisk, SetPolicy, SetStores, SetTenant, SetVolume, Setting, StartProbe, Status, StoreView, TenantDetail,
    TenantPolicyView, ViolationsView, VolumeView,
};
use crate::control::{Control, Error};
use crate::quantity::{Name, QuantityError, TenantName};
use crate::store::spec::{Allocation, Eviction};

#[derive(utoipa::OpenApi)]
#[openapi(info(
    title = "Aerogel",
    description = "Block storage for many tenants. A failed request changes nothing, unless its message says so. Its \
                   answer names the error and, where there is one, the remedy."
))]
struct Document;

/// The router, and its OpenAPI document.
pub fn routes() -> (axum::Router<Arc<Control>>, OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status))
        .routes(routes!(top))
        .routes(routes!(list_volumes, create_volume))
        .routes(routes!(show_volume, set_volume, delete_volume))
        .routes(routes!(plan_volume))
        .routes(routes!(grow_volume))
        .routes(routes!(clear_volume))
        .routes(routes!(show_curve))
        .routes(routes!(list_stores, create_store, set_stores))
        .routes(routes!(show_store, delete_store))
        .routes(routes!(list_offload))
        .routes(routes!(show_offload, enable_offload, disable_offload))
        .routes(routes!(remove_offload_store))
        .routes(routes!(list_tenants))
        .routes(routes!(show_tenant, set_tenant))
        .routes(routes!(show_violations))
        .routes(routes!(show_evidence))
        .routes(routes!(set_allocation))
        .routes(routes!(list_policies, create_policy))
        .routes(routes!(show_policy, set_policy, delete_policy))
        .routes(routes!(list_disks, add_disk))
        .routes(routes!(show_disk, set_disk, remove_disk))
        .routes(routes!(list_faults, add_fault, clear_faults))
        .routes(routes!(show_probe, start_probe, cancel_probe))
        .routes(routes!(cluster::show_cluster))
        .routes(routes!(cluster::show_schedule))
        .routes(routes!(cluster::plan_in_cluster))
        .routes(routes!(cluster::drain_server, cluster::undrain_server))
        .routes(routes!(cluster::remove_server))
        .routes(routes!(show_metrics))
        .routes(routes!(document))
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .split_for_parts()
}

pub(super) type Server = State<Arc<Control>>;
/// The cluster that the server takes part in, if it does.
pub(super) type Joined = Extension<Option<Arc<Cluster>>>;
pub(super) type Answer<T> = Result<Json<T>, Failure>;

/// The answer to a failed request.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    problem: Problem,
}

impl Failure {
    /// A failure with its reason, and a hint on the remedy.
    pub fn new(status: StatusCode, error: impl Into<String>, hint: Option<String>) -> Failure {
        Failure { status, problem: Problem { error: error.into(), hint } }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Failure::new(status, error.to_string(), error.hint())
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Failure {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Failure::new(status, error.to_string(), error.hint())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self.problem)).into_response()
    }
}

/// Time limit for receiving the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A change is answered after at most this time, and continues. Flushing the dirty data of a slow disk takes seconds.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// A body in JSON. Errors in it are reported in the form of all other errors.
pub struct Body<T>(pub(super) T);

impl<T: serde::de::DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let read = tokio::time::timeout(BODY_TIMEOUT, Json::from_request(request, state));
        let late = || Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout: the request's body is not complete", None);
        let Json(value) = read.await.map_err(|_| late())?.map_err(|error: JsonRejection| {
            let hint = "GET /openapi.json describes every body";
            Failure::new(error.status(), error.body_text(), Some(hint.into()))
        })?;
        Ok(Body(value))
    }
}

/// A path parameter. Errors in it are reported in the form of all other errors.
pub struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let wrong = |error: PathRejection| Failure::new(error.status(), error.body_text(), None);
        let Path(text) = Path::from_request_parts(parts, state).await.map_err(wrong)?;
        Ok(Named(text))
    }
}

/// Query parameters. Errors in them are reported in the form of all other errors.
pub struct Asked<T>(pub T);

impl<T: serde::de::DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let wrong = |error: QueryRejection| Failure::new(error.status(), error.body_text(), None);
        let Query(value) = Query::from_request_parts(parts, state).await.map_err(wrong)?;
        Ok(Asked(value))
    }
}

pub(super) fn name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error: QuantityError| Failure::new(StatusCode::BAD_REQUEST, error.to_string(), None))
}

/// The name of a tenant that exists.
fn tenant_name(text: &str) -> Result<Name, Failure> {
    text.parse().map(|TenantName(name)| name).or_else(|_: QuantityError| name(text))
}

/// Completes a change even if its client disconnects, or gets an answer earlier because a disk hangs.
pub(super) async fn to_the_end<F, E>(work: F) -> Answer<Done>
where
    F: Future<Output = Result<Done, E>> + Send + 'static,
    E: Send + 'static,
    Failure: From<E>,
{
    let done = tokio::time::timeout(CHANGE_TIMEOUT, tokio::spawn(work)).await;
    let done = done.map_err(|_| Error::Unanswered("the change", CHANGE_TIMEOUT.as_secs()))?;
    Ok(Json(done.map_err(Error::Task)??))
}

/// As `to_the_end`, for changes that write zeros first: without a time limit.
async fn to_the_end_of_zeros<F>(work: F) -> Answer<Done>
where
    F: Future<Output = Result<Done, Error>> + Send + 'static,
{
    let done = tokio::spawn(work).await.map_err(Error::Task)?;
    Ok(Json(done?))
}

/// The server, its disks and its volumes.
#[utoipa::path(get, path = "/v1/status",
    responses((status = 200, body = Status), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn status(State(control): Server, Extension(cluster): Joined) -> Json<Status> {
    let cluster = cluster.map(|cluster| cluster.status());
    Json(Status { cluster, ..control.status().await })
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Top {
    /// This one only.
    disk: Option<String>,
}

/// Disks and their tenants at this moment: what each gets, keeps and waits for, and the last slices.
#[utoipa::path(get, path = "/v1/top", params(Top),
    responses((status = 200, body = Vec<LiveView>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn top(State(control): Server, Asked(which): Asked<Top>) -> Answer<Vec<LiveView>> {
    let only = which.disk.as_deref().map(name).transpose()?;
    Ok(Json(control.live(only.as_ref()).await?))
}

/// All volumes.
#[utoipa::path(get, path = "/v1/volumes",
    responses((status = 200, body = Vec<VolumeView>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn list_volumes(State(control): Server) -> Json<Vec<VolumeView>> {
    Json(control.list_volumes().await)
}

/// Make a volume.
#[utoipa::path(post, path = "/v1/volumes", request_body = CreateVolume,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn create_volume(
    State(control): Server,
    Extension(cluster): Joined,
    Body(request): Body<CreateVolume>,
) -> Answer<Done> {
    if let Some(cluster) = cluster.filter(|cluster| cluster.concerns(&request)) {
        return to_the_end(async move { cluster.create(request).await }).await;
    }
    let writes_zeros = request.allocation == Allocation::Full;
    let work = async move { control.create_volume(request).await };
    if writes_zeros { to_the_end_of_zeros(work).await } else { to_the_end(work).await }
}

/// What would be decided for a volume, if it were made now. Nothing changes.
#[utoipa::path(post, path = "/v1/plan", request_body = CreateVolume,
    responses((status = 200, body = PlanView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn plan_volume(State(control): Server, Body(request): Body<CreateVolume>) -> Answer<PlanView> {
    Ok(Json(control.plan_volume(request).await?))
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", params(("name" = String, Path)),
    responses((status = 200, body = VolumeView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_volume(State(control): Server, Named(volume): Named) -> Answer<VolumeView> {
    Ok(Json(control.show_volume(&name(&volume)?).await?))
}

/// Change a volume.
#[utoipa::path(patch, path = "/v1/volumes/{name}", params(("name" = String, Path)), request_body = SetVolume,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn set_volume(
    State(control): Server,
    Extension(cluster): Joined,
    Named(volume): Named,
    Body(request): Body<SetVolume>,
) -> Answer<Done> {
    let name = name(&volume)?;
    if let (Some(cluster), Some(Setting::To(share))) = (cluster.filter(|cluster| cluster.has(&name)), &request.share) {
        let Some(share) = share.clone().value() else { return Err(ClusterError::ShareAuto(name).into()) };
        if !(SetVolume { share: None, ..request }).changes_nothing() {
            return Err(ClusterError::ShareAlone(name).into());
        }
        return to_the_end(async move { cluster.set_share(&name, share).await }).await;
    }
    to_the_end(async move { control.set_volume(&name, request).await }).await
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DeleteVolume {
    /// Even if clients are connected: they are disconnected.
    #[serde(default)]
    force: bool,
}

/// Delete a volume with its data. Refused while clients are connected, unless it is forced.
#[utoipa::path(delete, path = "/v1/volumes/{name}", params(("name" = String, Path), DeleteVolume),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn delete_volume(
    State(control): Server,
    Extension(cluster): Joined,
    Named(volume): Named,
    Asked(how): Asked<DeleteVolume>,
) -> Answer<Done> {
    let name = name(&volume)?;
    if let Some(cluster) = cluster.filter(|cluster| cluster.has(&name)) {
        return to_the_end(async move { cluster.delete(&name, how.force).await }).await;
    }
    to_the_end(async move { control.delete_volume(&name, how.force).await }).await
}

/// Make a volume larger.
#[utoipa::path(post, path = "/v1/volumes/{name}/grow", params(("name" = String, Path)), request_body = GrowVolume,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn grow_volume(
    State(control): Server,
    Extension(cluster): Joined,
    Named(volume): Named,
    Body(request): Body<GrowVolume>,
) -> Answer<Done> {
    let name = name(&volume)?;
    if let Some(cluster) = cluster.filter(|cluster| cluster.has(&name)) {
        return to_the_end(async move { cluster.grow(&name, request.size).await }).await;
    }
    to_the_end_of_zeros(async move { control.grow_volume(&name, request).await }).await
}

/// Give up blocks that could not be written, so that flushes succeed again.
#[utoipa::path(post, path = "/v1/volumes/{name}/clear", params(("name" = String, Path)),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn clear_volume(State(control): Server, Named(volume): Named) -> Answer<Done> {
    let name = name(&volume)?;
    to_the_end(async move { control.clear_volume(&name).await }).await
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ShowCurve {
    /// As if the cache evicted by this one; by the one that it does if left out.
    policy: Option<Eviction>,
}

/// Miss ratio against cache size of a volume's tenant, as of its latest requests.
#[utoipa::path(get, path = "/v1/volumes/{name}/curve", params(("name" = String, Path), ShowCurve),
    responses((status = 200, body = CurveView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_curve(
    State(control): Server,
    Named(volume): Named,
    Asked(ShowCurve { policy }): Asked<ShowCurve>,
) -> Answer<CurveView> {
    Ok(Json(control.show_curve(&name(&volume)?, policy).await?))
}

/// All stores: volumes set aside for writes that other disks off-load.
#[utoipa::path(get, path = "/v1/stores",
    responses((status = 200, body = Vec<StoreView>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn list_stores(State(control): Server) -> Json<Vec<StoreView>> {
    Json(control.list_stores().await)
}

/// Make a store.
#[utoipa::path(post, path = "/v1/stores", request_body = CreateStore,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn create_store(State(control): Server, Body(request): Body<CreateStore>) -> Answer<Done> {
    to_the_end(async move { control.create_store(request).await }).await
}

/// Change the share of all stores of a disk.
#[utoipa::path(patch, path = "/v1/stores", request_body = SetStores,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn set_stores(State(control): Server, Body(request): Body<SetStores>) -> Answer<Done> {
    to_the_end(async move { control.set_stores(request).await }).await
}

/// One store.
#[utoipa::path(get, path = "/v1/stores/{name}", params(("name" = String, Path)),
    responses((status = 200, body = StoreView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_store(State(control): Server, Named(store): Named) -> Answer<StoreView> {
    Ok(Json(control.show_store(&name(&store)?).await?))
}

/// Delete a store, with whatever is in it. Refused while clients are connected, unless it is forced.
#[utoipa::path(delete, path = "/v1/stores/{name}", params(("name" = String, Path), DeleteVolume),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn delete_store(State(control): Server, Named(store): Named, Asked(how): Asked<DeleteVolume>) -> Answer<Done> {
    let name = name(&store)?;
    to_the_end(async move { control.delete_store(&name, how.force).await }).await
}

/// The disks whose writes are off-loaded when they are overloaded.
#[utoipa::path(get, path = "/v1/offload",
    responses((status = 200, body = Vec<OffloadView>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn list_offload(State(control): Server) -> Json<Vec<OffloadView>> {
    Json(control.list_offload().await)
}

/// Off-loading of a disk.
#[utoipa::path(get, path = "/v1/offload/{disk}", params(("disk" = String, Path)),
    responses((status = 200, body = OffloadView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_offload(State(control): Server, Named(disk): Named) -> Answer<OffloadView> {
    Ok(Json(control.show_offload(&name(&disk)?).await?))
}

/// Off-load the writes of a disk from now on, or change the settings.
#[utoipa::path(put, path = "/v1/offload/{disk}", params(("disk" = String, Path)), request_body = EnableOffload,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn enable_offload(
    State(control): Server,
    Named(disk): Named,
    Body(request): Body<EnableOffload>,
) -> Answer<Done> {
    let disk = name(&disk)?;
    to_the_end(async move { control.enable_offload(&disk, request).await }).await
}

/// End off-loading. Everything is brought home first; off-loading has ended when it is not found any more.
#[utoipa::path(delete, path = "/v1/offload/{disk}", params(("disk" = String, Path)),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn disable_offload(State(control): Server, Named(disk): Named) -> Answer<Done> {
    let disk = name(&disk)?;
    to_the_end(async move { control.disable_offload(&disk).await }).await
}

/// Do without a store. Its data is brought home first, unless it is gone for good; this is answered when that has
/// begun.
#[utoipa::path(post, path = "/v1/offload/{disk}/remove-store", params(("disk" = String, Path)),
    request_body = RemoveStore,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn remove_offload_store(
    State(control): Server,
    Named(disk): Named,
    Body(request): Body<RemoveStore>,
) -> Answer<Done> {
    let disk = name(&disk)?;
    to_the_end(async move { control.remove_offload_store(&disk, request).await }).await
}

/// All tenants, with what each has of every disk.
#[utoipa::path(get, path = "/v1/tenants",
    responses((status = 200, body = Vec<TenantDetail>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn list_tenants(State(control): Server) -> Json<Vec<TenantDetail>> {
    Json(control.list_tenants().await)
}

/// One tenant.
#[utoipa::path(get, path = "/v1/tenants/{name}", params(("name" = String, Path)),
    responses((status = 200, body = TenantDetail), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_tenant(State(control): Server, Named(tenant): Named) -> Answer<TenantDetail> {
    Ok(Json(control.show_tenant(&tenant_name(&tenant)?).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ShowViolations {
    /// On this disk only.
    disk: Option<String>,
}

/// The latest windows in which a tenant missed its guarantee, with their classes and the evidence.
#[utoipa::path(get, path = "/v1/tenants/{name}/violations", params(("name" = String, Path), ShowViolations),
    responses((status = 200, body = ViolationsView),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_violations(
    State(control): Server,
    Named(tenant): Named,
    Asked(which): Asked<ShowViolations>,
) -> Answer<ViolationsView> {
    let only = which.disk.as_deref().map(name).transpose()?;
    Ok(Json(control.violations(&tenant_name(&tenant)?, only.as_ref()).await?))
}

/// Set what is requested for a tenant on one disk, for all its volumes there.
#[utoipa::path(put, path = "/v1/tenants/{name}", params(("name" = String, Path)), request_body = SetTenant,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn set_tenant(State(control): Server, Named(tenant): Named, Body(request): Body<SetTenant>) -> Answer<Done> {
    let name = tenant_name(&tenant)?;
    to_the_end(async move { control.set_tenant(&name, request).await }).await
}

/// Evidence for an allocation over several resources: curves, latencies and load of all tenants. Its counters are
/// totals, so that rates follow from two answers.
#[utoipa::path(get, path = "/v1/evidence",
    responses((status = 200, body = EvidenceView),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_evidence(State(control): Server) -> Json<EvidenceView> {
    Json(control.evidence().await)
}

/// Set shares and caches that were planned, for all of these tenants or for none. They promise nothing: what is
/// requested does.
#[utoipa::path(put, path = "/v1/allocation", request_body = SetAllocation,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn set_allocation(State(control): Server, Body(request): Body<SetAllocation>) -> Answer<Done> {
    to_the_end(async move { control.set_allocation(request).await }).await
}

/// All named policies, with their users.
#[utoipa::path(get, path = "/v1/policies",
    responses((status = 200, body = Vec<TenantPolicyView>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn list_policies(State(control): Server) -> Json<Vec<TenantPolicyView>> {
    Json(control.list_policies())
}

/// Create a named policy.
#[utoipa::path(post, path = "/v1/policies", request_body = CreatePolicy,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn create_policy(State(control): Server, Body(request): Body<CreatePolicy>) -> Answer<Done> {
    to_the_end(async move { control.create_policy(request).await }).await
}

/// One named policy.
#[utoipa::path(get, path = "/v1/policies/{name}", params(("name" = String, Path)),
    responses((status = 200, body = TenantPolicyView),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_policy(State(control): Server, Named(policy): Named) -> Answer<TenantPolicyView> {
    Ok(Json(control.show_policy(&name(&policy)?)?))
}

/// Change a named policy for all its users, or for none.
#[utoipa::path(put, path = "/v1/policies/{name}", params(("name" = String, Path)), request_body = SetPolicy,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn set_policy(State(control): Server, Named(policy): Named, Body(request): Body<SetPolicy>) -> Answer<Done> {
    let name = name(&policy)?;
    to_the_end(async move { control.set_policy(&name, request).await }).await
}

/// Delete a named policy that has no users.
#[utoipa::path(delete, path = "/v1/policies/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn delete_policy(State(control): Server, Named(policy): Named) -> Answer<Done> {
    let name = name(&policy)?;
    to_the_end(async move { control.delete_policy(&name).await }).await
}

/// All disks.
#[utoipa::path(get, path = "/v1/disks",
    responses((status = 200, body = Vec<DiskView>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn list_disks(State(control): Server) -> Json<Vec<DiskView>> {
    Json(control.list_disks().await)
}

/// Add a disk, or try an offline one again.
#[utoipa::path(post, path = "/v1/disks", request_body = AddDisk,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn add_disk(State(control): Server, Body(request): Body<AddDisk>) -> Answer<Done> {
    to_the_end(async move { control.add_disk(request).await }).await
}

/// One disk.
#[utoipa::path(get, path = "/v1/disks/{name}", params(("name" = String, Path)),
    responses((status = 200, body = DiskView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_disk(State(control): Server, Named(disk): Named) -> Answer<DiskView> {
    Ok(Json(control.show_disk(&name(&disk)?).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RemoveDisk {
    /// Even if clients are connected.
    #[serde(default)]
    force: bool,
}

/// Detach a disk: flushed, closed, forgotten. Its data stays.
#[utoipa::path(delete, path = "/v1/disks/{name}", params(("name" = String, Path), RemoveDisk),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn remove_disk(State(control): Server, Named(disk): Named, Asked(how): Asked<RemoveDisk>) -> Answer<Done> {
    let name = name(&disk)?;
    to_the_end(async move { control.remove_disk(&name, how.force).await }).await
}

/// The faults stacked on a disk's device.
#[utoipa::path(get, path = "/v1/disks/{name}/faults", params(("name" = String, Path)),
    responses((status = 200, body = Vec<FaultView>),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn list_faults(State(control): Server, Named(disk): Named) -> Answer<Vec<FaultView>> {
    Ok(Json(control.list_faults(&name(&disk)?).await?))
}

/// Stack a fault on a disk's device, until it is cleared or the server ends.
#[utoipa::path(post, path = "/v1/disks/{name}/faults", params(("name" = String, Path)), request_body = AddFault,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn add_fault(State(control): Server, Named(disk): Named, Body(request): Body<AddFault>) -> Answer<Done> {
    let name = name(&disk)?;
    to_the_end(async move { control.add_fault(&name, request).await }).await
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ClearFaults {
    /// This one only.
    id: Option<u64>,
}

/// Take faults away: all, or one. What hangs because of them goes on.
#[utoipa::path(delete, path = "/v1/disks/{name}/faults", params(("name" = String, Path), ClearFaults),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn clear_faults(State(control): Server, Named(disk): Named, Asked(which): Asked<ClearFaults>) -> Answer<Done> {
    let name = name(&disk)?;
    to_the_end(async move { control.clear_faults(&name, which.id).await }).await
}

/// Change how a disk is shared, live, or set values of its profile by hand; or take that back.
#[utoipa::path(patch, path = "/v1/disks/{name}", params(("name" = String, Path)), request_body = SetDisk,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn set_disk(State(control): Server, Named(disk): Named, Body(request): Body<SetDisk>) -> Answer<Done> {
    let name = name(&disk)?;
    to_the_end(async move { control.set_disk(&name, request).await }).await
}

/// How far the probe of a disk is, or how the last one ended.
#[utoipa::path(get, path = "/v1/disks/{name}/probe", params(("name" = String, Path)),
    responses((status = 200, body = ProbeView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn show_probe(State(control): Server, Named(disk): Named) -> Answer<ProbeView> {
    Ok(Json(control.show_probe(&name(&disk)?)?))
}

/// Begin to measure what a disk's device can do. Answered at once; its volumes are slower meanwhile.
#[utoipa::path(post, path = "/v1/disks/{name}/probe", params(("name" = String, Path)), request_body = StartProbe,
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn start_probe(State(control): Server, Named(disk): Named, Body(request): Body<StartProbe>) -> Answer<Done> {
    let name = name(&disk)?;
    to_the_end(async move { control.start_probe(&name, request).await }).await
}

/// End the probe of a disk; what it found is not kept.
#[utoipa::path(delete, path = "/v1/disks/{name}/probe", params(("name" = String, Path)),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn cancel_probe(State(control): Server, Named(disk): Named) -> Answer<Done> {
    Ok(Json(control.cancel_probe(&name(&disk)?)?))
}

/// Counters and levels for Prometheus, as OpenMetrics; in the older format for those who ask for text/plain.
#[utoipa::path(get, path = "/metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn show_metrics(
    State(control): Server,
    Extension(cluster): Joined,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let (observed, standing) = futures::future::join(control.observe(), control.standing()).await;
    let cluster = cluster.map(|cluster| cluster.standing());
    let text = metrics::encode(observed, standing, cluster).map_err(Error::Metrics)?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let (kind, text) = match metrics::plain_is_wanted(accept) {
        true => ("text/plain; version=0.0.4; charset=utf-8", metrics::plain(&text)),
        false => ("application/openmetrics-text; version=1.0.0; charset=utf-8", text),
    };
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Whether the process is alive: it answers, and its state can be read.
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = Health)))]
async fn healthz(State(control): Server) -> Json<Health> {
    Json(control.health())
}

/// Whether the server serves: it is not shutting down, and every disk is open. 503 with the reason otherwise.
#[utoipa::path(get, path = "/readyz", responses((status = 200, body = Health), (status = 503, body = Problem)))]
async fn readyz(State(control): Server) -> Result<Json<Health>, Failure> {
    let reason = control.unready();
    match reason {
        None => Ok(Json(control.health())),
        Some(reason) => {
            let hint = "`aerogel status` shows the server and its disks".to_owned();
            Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, reason, Some(hint)))
        }
    }
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Object)))]
async fn document(Extension(document): Extension<Arc<OpenApi>>) -> Json<OpenApi> {
    Json((*document).clone())
}
