//! Makes an allocation: each server gets what was planned for its tenants in one request, which it does as a whole.
//!
//! All servers are asked first whether they would accept it. If one refuses nevertheless, those that were changed
//! before get back what they had.

use std::collections::BTreeMap;

use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::Failure;
use super::gather::{Observed, in_time};
use super::problem::{Has, memory};
use super::tenants::{At, Subject};
use crate::cli::client::{ClientError, Place, ask_at};
use crate::control::view::Resource;
use crate::quantity::ShareText;

/// A server gets a new plan if a value differs from the present plan by more than this part: less is rounding. The new
/// plan has smaller differences, too, since a value that grows may need what another one loses.
const DIFFERS: f64 = 0.005;
/// Servers round planned shares to parts per billion.
const SHARE_ROUNDING: f64 = 2e-9;

/// What changes at one server.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) place: Place,
    pub(super) tenants: Vec<TenantChange>,
}

/// What changes for a tenant.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TenantChange {
    pub(super) server: String,
    pub(super) disk: String,
    pub(super) tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cache_bytes: Option<Values<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<Values<f64>>,
    /// What was planned before, as it would be sent.
    #[serde(skip)]
    earlier: Value,
}

/// The present value and the new one.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Values<T> {
    pub(super) before: T,
    pub(super) after: T,
}

/// What has to change for an allocation.
pub(super) fn changes(observed: &Observed, subjects: &[Subject], all: &[Has]) -> Vec<Change> {
    let mut by_server = BTreeMap::<usize, Vec<(At, u64, Option<f64>)>>::new();
    for (subject, has) in subjects.iter().zip(all) {
        if let Some(at) = subject.gateway {
            by_server.entry(at.server).or_default().push((at, has.first, None));
        }
        let at = subject.server;
        by_server.entry(at.server).or_default().push((at, has.second, Some(has.share)));
    }
    let changes = |(server, wanted): (usize, Vec<(At, u64, Option<f64>)>)| {
        let by = |part| wanted.iter().filter_map(move |&(at, data, share)| change(observed, at, data, share, part));
        by(DIFFERS).next()?;
        Some(Change { place: observed.servers[server].place.clone(), tenants: by(0.0).collect() })
    };
    by_server.into_iter().filter_map(changes).collect()
}

/// What changes for a tenant by more than this part of it.
fn change(observed: &Observed, at: At, data: u64, share: Option<f64>, part: f64) -> Option<TenantChange> {
    let (disk, tenant) = (observed.disk(at), observed.tenant(at));
    let is_handed = |requested: bool, auto: bool| requested || auto;
    let cache = {
        let of = tenant.cache;
        let bytes = memory(disk, data).max(of.requested.unwrap_or(0)).max(disk.least_bytes);
        let differs = bytes.abs_diff(of.planned.unwrap_or(of.effective)) as f64 > part * bytes as f64;
        let is_new = of.planned.is_none() && of.requested != Some(bytes);
        let wanted = is_handed(of.requested.is_some(), of.auto) && (differs || is_new);
        wanted.then_some(Values { before: of.effective, after: bytes })
    };
    let share = share.and_then(|share| {
        let of = tenant.share;
        let share = share.max(of.requested.unwrap_or(0.0));
        let differs = (share - of.planned.unwrap_or(of.effective)).abs() > (part * share).max(SHARE_ROUNDING);
        let is_new = of.planned.is_none() && of.requested.is_none_or(|asked| (asked - share).abs() > 1e-9);
        let wanted = disk.fixed_shares.is_none() && is_handed(of.requested.is_some(), of.auto) && (differs || is_new);
        wanted.then_some(Values { before: of.effective, after: share })
    });
    (cache.is_some() || share.is_some()).then(|| TenantChange {
        server: observed.servers[at.server].place.to_string(),
        disk: disk.disk.clone(),
        tenant: tenant.tenant.clone(),
        cache_bytes: cache,
        share,
        earlier: request(
            (&disk.disk, &tenant.tenant),
            cache.map(|_| of_plan(&tenant.cache)),
            share.map(|_| of_plan(&tenant.share).map(text)),
        ),
    })
}

fn of_plan<T: Copy>(resource: &Resource<T>) -> Option<T> {
    resource.planned
}

/// A share as the API takes it.
fn text(share: f64) -> String {
    let ppb = ((share * 1e9).round() as u64).clamp(1, 1_000_000_000);
    engine::units::Share::from_ppb(ppb).map_or_else(|| share.to_string(), |share| ShareText::from(share).to_string())
}

/// A part of the request for one tenant: what is `None` inside is no plan.
fn request((disk, tenant): (&str, &str), cache: Option<Option<u64>>, share: Option<Option<String>>) -> Value {
    let mut body = json!({ "disk": disk, "tenant": tenant });
    if let Some(cache) = cache {
        body["cache"] = cache.map_or(json!("none"), |bytes| json!(bytes));
    }
    if let Some(share) = share {
        body["share"] = share.map_or(json!("none"), |share| json!(share));
    }
    body
}

impl TenantChange {
    fn wanted(&self) -> Value {
        let cache = self.cache_bytes.map(|cache| Some(cache.after));
        request((&self.disk, &self.tenant), cache, self.share.map(|share| Some(text(share.after))))
    }
}

/// Makes the changes at all servers, or at none. Returns what has changed.
pub(super) async fn apply(changes: &[Change], token: Option<&str>) -> Result<Vec<TenantChange>, Failure> {
    for change in changes {
        put(change, token, TenantChange::wanted, true).await.map_err(|error| Failure::of(&change.place, &error))?;
    }
    for (at, change) in changes.iter().enumerate() {
        let Err(error) = put(change, token, TenantChange::wanted, false).await else { continue };
        let mut failure = Failure::of(&change.place, &error);
        // It may have been done although the answer did not arrive.
        for done in changes[..=at].iter().rev() {
            if let Err(why) = put(done, token, |tenant| tenant.earlier.clone(), false).await {
                let place = &done.place;
                failure.error +=
                    &format!("; {place} could not be set back, and has a part of the new allocation: {why}");
            }
        }
        return Err(failure);
    }
    Ok(changes.iter().flat_map(|change| change.tenants.clone()).collect())
}

async fn put(
    change: &Change,
    token: Option<&str>,
    of: impl Fn(&TenantChange) -> Value,
    dry_run: bool,
) -> Result<Value, ClientError> {
    let body = json!({ "tenants": change.tenants.iter().map(of).collect::<Vec<_>>(), "dry_run": dry_run });
    in_time(ask_at(&change.place, token, Method::PUT, "/v1/allocation", Some(body))).await
}
