//! Routes of the cluster.

use std::sync::Arc;

use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

use super::routes::{Answer, Asked, Body, Failure, Joined, Named, name, to_the_end};
use crate::cluster::view::{ClusterPlanView, ClusterView, ScheduleView};
use crate::cluster::{Cluster, ClusterError};
use crate::control::view::{CreateVolume, Done, Problem};

fn joined(cluster: Option<Arc<Cluster>>) -> Result<Arc<Cluster>, Failure> {
    Ok(cluster.ok_or(ClusterError::Off)?)
}

/// The cluster, as this server sees it.
#[utoipa::path(get, path = "/v1/cluster",
    responses((status = 200, body = ClusterView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn show_cluster(Extension(cluster): Joined) -> Answer<ClusterView> {
    Ok(Json(joined(cluster)?.show()))
}

/// The last schedule of the cluster.
#[utoipa::path(get, path = "/v1/cluster/schedule",
    responses((status = 200, body = ScheduleView), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn show_schedule(Extension(cluster): Joined) -> Answer<ScheduleView> {
    Ok(Json(joined(cluster)?.show_schedule()?))
}

/// Where a volume of the cluster would be, if it were made now. Nothing changes.
#[utoipa::path(post, path = "/v1/cluster/plan", request_body = CreateVolume,
    responses((status = 200, body = ClusterPlanView),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn plan_in_cluster(Extension(cluster): Joined, Body(request): Body<CreateVolume>) -> Answer<ClusterPlanView> {
    Ok(Json(joined(cluster)?.plan(request).await?))
}

/// How a server is removed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveServer {
    /// Even if it has parts of volumes, which are lost then.
    #[serde(default)]
    lost: bool,
}

/// Remove a server that does not run from the cluster. Refused if it has parts of volumes, unless these are lost.
#[utoipa::path(delete, path = "/v1/cluster/members/{name}", params(("name" = String, Path), RemoveServer),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn remove_server(
    Extension(cluster): Joined,
    Named(server): Named,
    Asked(how): Asked<RemoveServer>,
) -> Answer<Done> {
    let (cluster, server) = (joined(cluster)?, name(&server)?);
    to_the_end(async move { cluster.remove(&server, how.lost).await }).await
}

/// Give a server of the cluster no new volumes.
#[utoipa::path(put, path = "/v1/cluster/draining/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn drain_server(Extension(cluster): Joined, Named(server): Named) -> Answer<Done> {
    let (cluster, server) = (joined(cluster)?, name(&server)?);
    to_the_end(async move { cluster.drain(&server, false).await }).await
}

/// Give a server of the cluster new volumes again.
#[utoipa::path(delete, path = "/v1/cluster/draining/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Done), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn undrain_server(Extension(cluster): Joined, Named(server): Named) -> Answer<Done> {
    let (cluster, server) = (joined(cluster)?, name(&server)?);
    to_the_end(async move { cluster.drain(&server, true).await }).await
}
