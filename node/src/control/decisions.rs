//! Decisions on tenants: planned before creation, reported when they change, kept across restarts.
//!
//! Each snapshot has the current decision of every tenant, not its changes. A change is found by comparing two
//! snapshots, so a missed snapshot loses only decisions that were reverted meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime};

use engine::control::{CacheSpec, Decision, LEAST_BYTES, Plan, PlanRequest, Sizing, Snapshot};
use engine::ids::TenantId;
use engine::units::Nanos;
use tracing::{info, warn};

use super::view::{CreateVolume, EventView, PlanView, SetTenant, SizingView, Verdict};
use super::volumes::which_disk;
use super::{Control, Error, Invalid, Kind, blocking};
use crate::quantity::{Name, OrAuto, ShareText, Size};
use crate::store::TenantSpec;
use crate::store::profile::date;
use crate::store::spec::check_size;

/// How long an answer waits for the planner's decision, which usually takes milliseconds: nobody takes this for a hang.
const DECISION_TIMEOUT: Duration = Duration::from_secs(1);
/// Events that are kept for the API. All of them are in the log, too.
const EVENTS_MAX: usize = 64;

/// The decisions that were reported.
#[derive(Debug, Default)]
pub struct Decisions {
    /// By disk and tenant: the decision that was reported last, and when it was made.
    told: BTreeMap<(Name, Name), (Verdict, Nanos)>,
    /// The latest events, oldest first.
    events: VecDeque<EventView>,
}

impl Decisions {
    /// Whether this decision has not been reported yet. Records it as reported.
    fn is_new(&mut self, key: (Name, Name), sizing: &Sizing) -> bool {
        let now = (Verdict::from(&sizing.decision), sizing.since);
        self.told.insert(key, now) != Some(now)
    }

    fn add(&mut self, event: EventView) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// The current date and time, as it is shown.
fn at() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    date(now.as_secs())
}

impl Control {
    fn decisions(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().expect("nobody panics while holding it")
    }

    /// The latest decisions, oldest first.
    pub(super) fn events(&self) -> Vec<EventView> {
        self.decisions().events.iter().cloned().collect()
    }

    /// Reports decisions that have changed since the last snapshot, and stores in volumes' specifications what must
    /// survive a restart.
    pub(super) async fn note_decisions(self: &Arc<Control>, disk: &Name, snapshot: &Snapshot) {
        let sizings = self.sizings(disk, snapshot);
        self.decisions().told.retain(|(of, tenant), _| of != disk || sizings.iter().any(|(name, _)| name == tenant));
        for (tenant, sizing) in &sizings {
            if self.decisions().is_new((disk.clone(), tenant.clone()), sizing) {
                self.tell(disk, tenant, &SizingView::new(sizing, snapshot.now));
            }
            let decided = match sizing.decision {
                Decision::Admitted => Some(Size(sizing.kept_bytes)),
                // Not stored: the next start decides again.
                Decision::BestEffort(_) => None,
                Decision::Trial(_) => continue,
            };
            self.keep(disk, tenant, decided);
        }
    }

    fn sizings(&self, disk: &Name, snapshot: &Snapshot) -> Vec<(Name, Sizing)> {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return Vec::new() };
        let sizing = |id: TenantId| snapshot.tenants.iter().find(|stats| stats.tenant == id)?.sizing;
        running.tenants.iter().filter_map(|(name, tenant)| Some((name.clone(), sizing(tenant.id)?))).collect()
    }

    fn tell(&self, disk: &Name, tenant: &Name, sizing: &SizingView) {
        let (decision, reason) = (sizing.decision, sizing.reason.clone());
        match decision {
            Verdict::BestEffort => warn!(%disk, %tenant, decision = decision.name(), "{reason}"),
            Verdict::Trial | Verdict::Admitted => info!(%disk, %tenant, decision = decision.name(), "{reason}"),
        }
        let (tenant, decision) = (Some(tenant.to_string()), Some(decision));
        self.decisions().add(EventView { at: at(), disk: disk.to_string(), tenant, decision, reason });
    }

    /// Reports an event that concerns a tenant and is no decision.
    pub(super) fn tell_of_tenant(&self, disk: &Name, tenant: &Name, reason: String) {
        let (tenant, disk) = (Some(tenant.to_string()), disk.to_string());
        self.decisions().add(EventView { at: at(), disk, tenant, decision: None, reason });
    }

    /// Reports an event that concerns a disk as a whole.
    pub(super) fn tell_disk(&self, disk: &Name, reason: String) {
        info!(%disk, "{reason}");
        let event = EventView { at: at(), disk: disk.to_string(), tenant: None, decision: None, reason };
        self.decisions().add(event);
    }

    /// Stores the partition size that was decided for a tenant in its specification, if it has changed. Runs in a task
    /// of its own, since the file system of this disk may hang.
    fn keep(self: &Arc<Control>, disk: &Name, tenant: &Name, decided: Option<Size>) {
        // If the disk is being changed, this is repeated with the next snapshot.
        let Some(turn) = self.turns.take(disk) else { return };
        let (store, to) = {
            let state = self.state();
            let Ok(running) = state.disk(disk) else { return };
            let now = running.allotment(tenant);
            let is_given = now.cache.is_some() || now.planned_cache.is_some();
            if is_given || !differs(now.decided, decided) || !running.has_tenant(tenant) {
                return;
            }
            // What an earlier release stored with the tenant's volumes is not moved while one may have a later one.
            if running.has_unknown() && running.members(tenant).any(|(_, spec)| spec.allotment.is_some()) {
                return;
            }
            (running.store.clone(), TenantSpec { decided, ..now })
        };
        let (control, disk, tenant) = (self.clone(), disk.clone(), tenant.clone());
        tokio::spawn(async move {
            let _turn = turn;
            let (name, new) = (tenant.clone(), to.clone());
            let kept = blocking(move || store.put_tenant(&name, &new)).await;
            match kept.and_then(|kept| kept.map_err(Error::from)) {
                Ok(()) => {
                    if let Ok(running) = control.state().disk_mut(&disk) {
                        running.specs.insert(tenant, to);
                    }
                }
                Err(error) => {
                    warn!(%disk, %tenant, "its decided cache size cannot be stored and is lost at a restart: {error}")
                }
            }
        });
    }

    /// The decision that a volume would get if it were created now. Changes nothing.
    pub async fn plan_volume(&self, request: CreateVolume) -> Result<PlanView, Error> {
        let disk = which_disk(&self.state(), request.disk.as_ref())?;
        if request.from.is_some() {
            return Err(Invalid::PlanOfExport.into());
        }
        if request.is_of_cluster() {
            return Err(Invalid::PlanOfCluster.into());
        }
        let request = self.with_policy(request)?;
        if let Some(size) = request.size {
            check_size(size.0).map_err(Invalid::from)?;
        }
        if !matches!(self.state().find(&request.name), Err(Error::Unknown(..))) {
            return Err(Error::Exists(Kind::Volume, request.name));
        }
        let tenant = request.tenant.clone().unwrap_or_else(|| request.name.clone());
        let (asked, share, admission) = {
            let state = self.state();
            let running = state.disk(&disk)?;
            let is_new = !state.may_have_tenant(&disk, &tenant);
            let now = if is_new { TenantSpec::default() } else { running.allotment(&tenant) };
            let mut after = now.clone();
            self.apply_request(&tenant, &SetTenant::of_new(&request), &mut after)?;
            let share = after.share.clone();
            self.check_promises(running, &disk, &tenant, (&running.allotment(&tenant), &after), request.overcommit)?;
            let admission = self.admission(&disk, running, &tenant, &after);
            let others =
                running.allotments().iter().filter(|(name, of)| **name != tenant && of.share.is_none()).count();
            let left = engine::units::Share::ONE.ppb().saturating_sub(running.committed_ppb(Some(&tenant)));
            let ppb = share.as_ref().map_or(left / (others as u64 + 1), |share: &ShareText| share.share.ppb());
            let cache = after.cache_spec();
            let like = request.like.as_ref().map(|like| running.tenant_like(&disk, like)).transpose()?;
            let known = running.tenants.get(&tenant).map(|tenant| tenant.id);
            let (share, overcommit) =
                (share.map(|share| share.share), running.is_overcommitted() || request.overcommit);
            let asked = PlanRequest { tenant: known, share, overcommit, cache, like };
            (asked, ppb as f64 / 1e9, admission)
        };
        let plan = self.ask_plan(&disk, &request.name, asked).await?;
        let view = PlanView::new(&plan, request.name.as_str(), (disk.as_str(), tenant.as_str()), share, asked.share);
        Ok(view.with_guarantee(admission))
    }

    /// The partition size for a new volume that is to be like another one (`like`). `None` if the request names none,
    /// or if the plan does not admit the tenant.
    pub(super) async fn decide_like(&self, request: &CreateVolume, disk: &Name) -> Result<Option<Size>, Error> {
        let Some(like) = &request.like else { return Ok(None) };
        let asked = {
            let state = self.state();
            let running = state.disk(disk)?;
            if request.cache.is_some() {
                return Err(Invalid::CacheAndLike.into());
            }
            if let Some(tenant) = request.tenant.as_ref().filter(|tenant| running.has_tenant(tenant)) {
                return Err(Invalid::LikeOfTenant(tenant.clone()).into());
            }
            let share = request.share.clone().and_then(OrAuto::value).map(|share| share.share);
            let tenant = request.tenant.as_ref().unwrap_or(&request.name);
            running.check_share(disk, tenant, running.share_ppb(tenant), share, request.overcommit)?;
            let like = Some(running.tenant_like(disk, like)?);
            PlanRequest { tenant: None, share, overcommit: request.overcommit, cache: CacheSpec::Trial, like }
        };
        let plan = self.ask_plan(disk, &request.name, asked).await?;
        let admitted = plan.sizing.filter(|sizing| sizing.decision == Decision::Admitted);
        Ok(admitted.map(|sizing| Size(sizing.kept_bytes)))
    }

    /// Waits in bounded time until an insulated disk is planned for its present tenants: before that, a snapshot has
    /// no decisions, or those before the change that is being answered.
    pub(super) async fn wait_for_decision(&self, disk: &Name) {
        let Some(store) = self.state().disk(disk).ok().map(|running| running.store.clone()) else { return };
        if !self.chosen(disk, &store).settings.insulates() {
            return;
        }
        let planned = async { while self.snapshot(disk).await.is_some_and(|snapshot| !snapshot.is_planned) {} };
        let _ = tokio::time::timeout(DECISION_TIMEOUT, planned).await;
    }

    async fn ask_plan(&self, disk: &Name, name: &Name, asked: PlanRequest) -> Result<Plan, Error> {
        let planning = self.state().disk(disk)?.thread.planning();
        // So the plan is not older than the changes that were answered before it.
        let snapshot = self.snapshot(disk).await.ok_or_else(|| Error::NoPlan)?;
        let plan = planning.plan(asked, snapshot.generation).await;
        plan.map_err(|refusal| Error::Refused { kind: Kind::Volume, name: name.clone(), refusal })
    }
}

impl super::Running {
    /// The tenant of a volume of this disk.
    fn tenant_like(&self, disk: &Name, like: &Name) -> Result<TenantId, Error> {
        let spec = self.volumes.get(like).and_then(|volume| volume.spec.as_ref());
        let id = spec
            .filter(|spec| !spec.store)
            .and_then(|spec| self.tenants.get(&spec.tenant(like)))
            .map(|tenant| tenant.id);
        id.ok_or_else(|| Invalid::LikeNoVolume { disk: disk.clone(), like: like.clone() }.into())
    }
}

/// Whether a decision is stored: if it is new, or differs from the stored one by more than an eighth.
fn differs(before: Option<Size>, now: Option<Size>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => before.0.abs_diff(now.0) > before.0 / 8,
        (before, now) => before != now,
    }
}

/// The side effects of `--cache`: the cache of the tenant's other volumes changes too, from `before` (`None` if there
/// are no other volumes); and a size below the minimum is raised.
pub(super) fn cache_note(tenant: &Name, before: Option<Option<OrAuto<Size>>>, now: Option<OrAuto<Size>>) -> String {
    let shown = |cache: Option<OrAuto<Size>>| match cache {
        None => "decided by its load".into(),
        Some(OrAuto::Auto) => "found by `aerogel allocate`".into(),
        Some(OrAuto::To(size)) => Size(size.0.max(LEAST_BYTES)).rounded(),
    };
    let mut note = String::new();
    if let Some(before) = before.filter(|&before| before != now) {
        let (before, now) = (shown(before), shown(now));
        note = format!("; the cache of tenant '{tenant}' was {before} and is now {now}, for all its volumes");
    }
    if let Some(size) = now.and_then(OrAuto::value).filter(|size| size.0 < LEAST_BYTES) {
        note += &format!("; a cache of {size} is below the minimum: it is {}", shown(now));
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_steps_are_not_written() {
        let size = |mib: u64| Some(Size(mib << 20));
        assert!(differs(None, size(1)) && differs(size(1), None) && differs(size(64), size(73)));
        assert!(!differs(None, None) && !differs(size(64), size(72)) && !differs(size(64), size(60)));
    }

    #[test]
    fn events_are_bounded() {
        let mut decisions = Decisions::default();
        for i in 0..2 * EVENTS_MAX {
            let (disk, tenant) = ("d".to_string(), i.to_string());
            let reason = String::new();
            decisions.add(EventView {
                at: String::new(),
                disk,
                tenant: Some(tenant),
                decision: Some(Verdict::Trial),
                reason,
            });
        }
        assert_eq!(decisions.events.len(), EVENTS_MAX);
        assert_eq!(decisions.events.back().unwrap().tenant, Some((2 * EVENTS_MAX - 1).to_string()));
    }

    #[test]
    fn who_asks_for_a_cache_is_told_what_changes_for_others_and_what_is_raised() {
        let tenant: Name = "db".parse().unwrap();
        let mib = |count: u64| Some(OrAuto::To(Size(count << 20)));
        assert_eq!(cache_note(&tenant, None, mib(64)), "", "it has no other volumes");
        assert_eq!(cache_note(&tenant, Some(mib(64)), mib(64)), "", "the same");
        assert_eq!(
            cache_note(&tenant, Some(mib(64)), mib(32)),
            "; the cache of tenant 'db' was 64MiB and is now 32MiB, for all its volumes"
        );
        assert!(cache_note(&tenant, Some(None), mib(32)).contains("was decided by its load and is now 32MiB"));
        let least = Size(LEAST_BYTES).rounded();
        let raised = format!("; a cache of 64KiB is below the minimum: it is {least}");
        assert_eq!(cache_note(&tenant, None, Some(OrAuto::To(Size(64 << 10)))), raised);
        assert!(cache_note(&tenant, Some(mib(64)), Some(OrAuto::Auto)).contains("is now found by `aerogel allocate`"));
    }
}
