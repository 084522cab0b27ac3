//! Named policies: shares, guarantees and ceilings that several tenants have in common.
//!
//! A tenant's specification on a disk has the name of its policy and a copy of the policy's values, so that a disk that
//! moves to another server keeps its promises. A change of a policy holds the lock of policies, so that no tenant takes
//! a policy or leaves it and no disk or volume is opened meanwhile, and the change locks of its users' disks. It is
//! checked for all users together. Then it is applied to the engines, which may refuse it, then the file of policies is
//! written, then the specifications.
//!
//! The file of policies is the commit point. After a crash before it, all users have the old values. After a crash
//! behind it, some specifications still have the old ones: when a disk is opened, a tenant whose values differ from its
//! policy gets those of the policy. The same rule serves a disk that was offline during the change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};
use tracing::{info, warn};

use super::tenants::{TenantChange, warn_unless_stored};
use super::turn::{TURN_TIMEOUT, Turn};
use super::view::{CreatePolicy, CreateVolume, PolicyUser, SetPolicy, SetTenant, TenantPolicyView};
use super::{Control, Done, Error, Invalid, Kind, PolicyError, State, blocking, guarantees};
use crate::quantity::{Name, OrAuto};
use crate::store::{Policies, Policy, Store, TenantSpec};

/// A change of a user: its disk, the store of that, and the change of its specification.
type UserChange = (Name, Arc<Store>, TenantChange);

impl Control {
    /// All policies, with their users.
    pub fn list_policies(&self) -> Vec<TenantPolicyView> {
        let policies = self.policies().policies.clone();
        let state = self.state();
        policies.into_iter().map(|(name, policy)| state.policy_view(name, policy)).collect()
    }

    /// One policy.
    pub fn show_policy(&self, name: &Name) -> Result<TenantPolicyView, Error> {
        let policy = self.policy(name)?;
        Ok(self.state().policy_view(name.clone(), policy))
    }

    /// Creates a policy.
    pub async fn create_policy(&self, request: CreatePolicy) -> Result<Done, Error> {
        let (name, policy) = (request.name.clone(), request.policy());
        let _changing = self.change_policies().await?;
        if name.as_str() == "none" {
            return Err(Invalid::PolicyNone.into());
        }
        if self.policies().policies.contains_key(&name) {
            return Err(Error::Exists(Kind::Policy, name));
        }
        check_policy(&name, &policy)?;
        self.write_policy(&name, Some(policy)).await?;
        info!(policy = %name, "created");
        Ok(done(format!("policy '{name}' is created: `aerogel tenant set TENANT --policy {name}` applies it")))
    }

    /// Changes a policy for all its users, or for none.
    pub async fn set_policy(&self, name: &Name, request: SetPolicy) -> Result<Done, Error> {
        let of_tenant = request.of_tenant();
        if of_tenant.changes_nothing() {
            return Err(Invalid::NoChangeOfPolicy(name.clone()).into());
        }
        let _changing = self.change_policies().await?;
        let before = self.policy(name)?;
        let _turns = self.change_disks_of(name).await?;
        let mut spec = TenantSpec::default();
        before.give(&mut spec);
        of_tenant.apply(&mut spec);
        let after = Policy::of(&spec);
        check_policy(name, &after)?;
        let changes = self.begin_changes(name, &after, request.overcommit)?;
        if let Err(error) = self.apply_changes(name, (&before, &after), &changes).await {
            for (disk, _, change) in changes {
                self.undo_tenant(&disk, Some(change)).await;
            }
            return Err(error);
        }
        info!(policy = %name, users = changes.len(), "changed");
        let users = match changes.len() {
            0 => "which has no users".to_owned(),
            n => format!("for its {n} users"),
        };
        Ok(done(format!("policy '{name}' is changed, {users}")))
    }

    /// Changes all users in the state, or none: each must fit beside the others as they are after the change.
    fn begin_changes(&self, policy: &Name, after: &Policy, overcommit: bool) -> Result<Vec<UserChange>, Error> {
        let mut state = self.state();
        let mut changes: Vec<UserChange> = Vec::new();
        for (disk, tenant) in state.users_of(policy) {
            let running = state.disk_mut(&disk)?;
            let mut spec = running.allotment(&tenant);
            after.give(&mut spec);
            let change = running.enter_change(&tenant, spec);
            changes.push((disk, running.store.clone(), change));
        }
        let check = |(disk, _, change): &UserChange| {
            let (running, tenant) = (state.disk(disk)?, change.tenant());
            let specs = (&change.before(), change.after());
            let fits = self.check_promises(running, disk, tenant, specs, overcommit);
            fits.map_err(|why| does_not_fit(policy, disk, tenant, why))
        };
        if let Err(error) = changes.iter().try_for_each(check) {
            for (disk, _, change) in changes {
                state.disk_mut(&disk)?.leave_change(change);
            }
            return Err(error);
        }
        Ok(changes)
    }

    /// Applies changes, which are in the state, to the engines, and stores them.
    async fn apply_changes(
        &self,
        name: &Name,
        (before, after): (&Policy, &Policy),
        changes: &[UserChange],
    ) -> Result<(), Error> {
        for (disk, _, change) in changes {
            let tenant = change.tenant();
            let refused = |refusal| Error::Refused { kind: Kind::Tenant, name: tenant.clone(), refusal };
            let synced = self.sync_tenant(disk, tenant).await.map_err(refused);
            synced.map_err(|why| does_not_fit(name, disk, tenant, why))?;
        }
        self.write_policy(name, Some(after.clone())).await?;
        for (_, store, change) in changes {
            if let Err(error) = self.store_tenant(store, Some(change)).await {
                if let Err(why) = self.write_policy(name, Some(before.clone())).await {
                    // The change has been committed: tenants are brought in line when their disks are opened.
                    warn!(policy = %name, "changed; a tenant is not stored ({error}), and it cannot be undone: {why}");
                    return Ok(());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes a policy that has no users.
    pub async fn delete_policy(&self, name: &Name) -> Result<Done, Error> {
        let _changing = self.change_policies().await?;
        self.policy(name)?;
        let users = self.state().users_of(name);
        if !users.is_empty() {
            return Err(PolicyError::InUse { policy: name.clone(), users }.into());
        }
        self.write_policy(name, None).await?;
        info!(policy = %name, "deleted");
        Ok(done(format!("policy '{name}' is deleted")))
    }

    /// Waits until no other change of policies is in progress and no disk is being added, with a time limit.
    async fn change_policies(&self) -> Result<RwLockWriteGuard<'_, ()>, Error> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.changing_policies.write()).await;
        turn.map_err(|_| PolicyError::Changing.into())
    }

    /// Waits until no change of policies is in progress, and prevents one until the guard is dropped, with a time
    /// limit. `None` for a change that concerns no policy.
    pub(super) async fn keep_policies(&self, is_concerned: bool) -> Result<Option<RwLockReadGuard<'_, ()>>, Error> {
        if !is_concerned {
            return Ok(None);
        }
        let kept = tokio::time::timeout(TURN_TIMEOUT, self.changing_policies.read()).await;
        Ok(Some(kept.map_err(|_| PolicyError::Changing)?))
    }

    /// Takes the change locks of the disks on which a policy has users, in the order of their names. The caller holds
    /// `changing_policies`, so no other disk gets a user.
    async fn change_disks_of(&self, policy: &Name) -> Result<Vec<Turn>, Error> {
        let disks: BTreeSet<Name> = self.state().users_of(policy).into_iter().map(|(disk, _)| disk).collect();
        let mut turns = Vec::new();
        for disk in disks {
            turns.push(self.change(&disk).await?);
        }
        Ok(turns)
    }

    fn policy(&self, name: &Name) -> Result<Policy, Error> {
        let policy = self.policies().policies.get(name).cloned();
        policy.ok_or_else(|| Error::Unknown(Kind::Policy, name.clone()))
    }

    /// Creates, replaces or removes a policy in the file and in memory, or changes neither. The caller holds
    /// `changing_policies`.
    async fn write_policy(&self, name: &Name, policy: Option<Policy>) -> Result<(), Error> {
        let mut next: Policies = self.policies().clone();
        match policy {
            Some(policy) => next.policies.insert(name.clone(), policy),
            None => next.policies.remove(name),
        };
        let (data, written) = (self.config.data.clone(), next.clone());
        blocking(move || written.write(&data)).await?.map_err(PolicyError::Write)?;
        *self.policies() = next;
        Ok(())
    }

    /// Applies a request to a tenant's specification. A tenant that has a policy has the policy's values.
    pub(super) fn apply_request(&self, tenant: &Name, request: &SetTenant, spec: &mut TenantSpec) -> Result<(), Error> {
        if let Some(policy) = request.policy.clone() {
            spec.policy = policy.value();
            if let Some(name) = &spec.policy {
                self.policy(name)?.give(spec);
            }
        }
        request.apply(spec);
        match &spec.policy {
            Some(name) if self.policy(name)? != Policy::of(spec) => {
                Err(PolicyError::Determined { tenant: tenant.clone(), policy: name.clone() }.into())
            }
            _ => Ok(()),
        }
    }

    /// Enters the values of the policy that a request for a volume names.
    pub(super) fn with_policy(&self, mut request: CreateVolume) -> Result<CreateVolume, Error> {
        let Some(name) = &request.policy else { return Ok(request) };
        let Policy { share, min_bandwidth, max_bandwidth, max_iops, burst } = self.policy(name)?;
        request.share = request.share.or(share.map(OrAuto::To));
        request.min_bandwidth = request.min_bandwidth.or(min_bandwidth);
        request.max_bandwidth = request.max_bandwidth.or(max_bandwidth);
        request.max_iops = request.max_iops.or(max_iops);
        request.burst = request.burst.or(burst);
        Ok(request)
    }

    /// Gives tenants that were found on a disk the values of their policies. One whose policy this server does not have
    /// keeps its values and loses the policy. Returns the tenants that have changed, for `store_aligned`.
    pub(super) fn align(&self, disk: &Name, tenants: &mut BTreeMap<Name, TenantSpec>) -> BTreeMap<Name, TenantSpec> {
        let mut changed = BTreeMap::new();
        for (tenant, spec) in tenants {
            let Some(name) = spec.policy.clone() else { continue };
            match self.policy(&name) {
                Ok(policy) if policy == Policy::of(spec) => continue,
                Ok(policy) => {
                    policy.give(spec);
                    info!(%disk, %tenant, policy = %name, "its values are those of its policy now");
                }
                Err(_) => {
                    spec.policy = None;
                    warn!(%disk, %tenant, policy = %name, "no such policy here: its values are its own now");
                }
            }
            changed.insert(tenant.clone(), spec.clone());
        }
        changed
    }

    /// Stores the tenants that `align` has changed. What cannot be stored is changed again at the next start. The
    /// caller holds the change lock of the disk.
    pub(super) async fn store_aligned(&self, disk: &Name, changed: BTreeMap<Name, TenantSpec>) {
        let Some(store) = self.state().disk(disk).ok().map(|running| running.store.clone()) else { return };
        for (tenant, spec) in changed {
            let (store, name) = (store.clone(), tenant.clone());
            let stored = blocking(move || store.put_tenant(&name, &spec)).await;
            warn_unless_stored(disk, &tenant, stored);
        }
    }
}

impl State {
    /// The tenants that have a policy, on the disks that are online: disk and tenant.
    fn users_of(&self, policy: &Name) -> Vec<(Name, Name)> {
        let running = self.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?)));
        let users = running.flat_map(|(disk, running)| {
            let users = running.promises().filter(|(_, spec)| spec.policy.as_ref() == Some(policy));
            users.map(move |(tenant, _)| (disk.clone(), tenant.clone()))
        });
        users.collect()
    }

    fn policy_view(&self, name: Name, policy: Policy) -> TenantPolicyView {
        let user = |(disk, tenant): (Name, Name)| PolicyUser { tenant: tenant.to_string(), disk: disk.to_string() };
        let users = self.users_of(&name).into_iter().map(user).collect();
        TenantPolicyView { name: name.to_string(), spec: SetPolicy::to(policy), users }
    }
}

fn does_not_fit(policy: &Name, disk: &Name, tenant: &Name, why: Error) -> Error {
    let (policy, disk, tenant) = (policy.clone(), disk.clone(), tenant.clone());
    PolicyError::DoesNotFit { policy, tenant, disk, why: Box::new(why) }.into()
}

/// Refuses a policy that is empty, or that no disk could keep.
fn check_policy(name: &Name, policy: &Policy) -> Result<(), Error> {
    if *policy == Policy::default() {
        return Err(Invalid::EmptyPolicy(name.clone()).into());
    }
    let mut spec = TenantSpec::default();
    policy.give(&mut spec);
    Ok(guarantees::check_consistent(&spec)?)
}

fn done(message: String) -> Done {
    Done { message, volume: None, disk: None, tenant: None }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::config::Config;

    async fn server(dir: &Path) -> Arc<Control> {
        let cache = "64MiB".parse().unwrap();
        Control::open(Config { data: dir.join("data"), cache, ..Config::default() }).await.unwrap()
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn request<T: serde::de::DeserializeOwned>(body: Value) -> T {
        serde_json::from_value(body).unwrap()
    }

    fn allotment(control: &Control, tenant: &str) -> TenantSpec {
        control.state().disk(&name("default")).unwrap().allotment(&name(tenant))
    }

    fn stored(control: &Control, tenant: &str) -> TenantSpec {
        let store = control.state().disk(&name("default")).unwrap().store.clone();
        store.tenant(&name(tenant)).unwrap().unwrap()
    }

    /// A server with the policy `gold` of a quarter of the disk, and two volumes that have it.
    async fn with_users(dir: &Path) -> Arc<Control> {
        let control = server(dir).await;
        control.create_policy(request(json!({"name": "gold", "share": "1/4", "max_iops": "500"}))).await.unwrap();
        for volume in ["a", "b"] {
            let body = json!({"name": volume, "size": "1MiB", "policy": "gold"});
            control.create_volume(request(body)).await.unwrap();
        }
        control
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_change_is_for_all_users_or_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let control = with_users(dir.path()).await;
        control.set_policy(&name("gold"), request(json!({"share": "1/3"}))).await.unwrap();
        let third = Some("1/3".parse().unwrap());
        for tenant in ["a", "b"] {
            assert_eq!((&allotment(&control, tenant).share, &stored(&control, tenant).share), (&third, &third));
            assert!(stored(&control, tenant).max_iops.is_some());
        }
        // It would fit for one of them. The engine is not told of it.
        let disk = name("default");
        let before = control.snapshot(&disk).await.unwrap();
        let refused = control.set_policy(&name("gold"), request(json!({"share": "3/5"}))).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("tenant 'a' on disk 'default'") && text.contains("40% remains"), "{text}");
        assert_eq!(control.snapshot(&disk).await.unwrap().generation, before.generation);
        for tenant in ["a", "b"] {
            assert_eq!((&allotment(&control, tenant).share, &stored(&control, tenant).share), (&third, &third));
        }
        assert_eq!(control.show_policy(&name("gold")).unwrap().users.len(), 2);
        assert_eq!(Policies::read(&control.config.data).unwrap().policies[&name("gold")].share, third);
        assert!(control.drain().await.is_empty());
    }

    /// A minimum bandwidth that fits into each one's part of an overcommitted disk, once all have smaller shares.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_change_is_checked_for_all_users_together() {
        let dir = tempfile::tempdir().unwrap();
        let control = with_users(dir.path()).await;
        set_rate(&control, 100_000_000);
        control.set_policy(&name("gold"), request(json!({"share": "3/4", "overcommit": true}))).await.unwrap();
        let change = json!({"share": "1/2", "min_bandwidth": "45000000"});
        control.set_policy(&name("gold"), request(change)).await.unwrap();
        let more = control.set_policy(&name("gold"), request(json!({"min_bandwidth": "55000000"}))).await;
        assert!(matches!(more, Err(Error::Policy(PolicyError::DoesNotFit { .. }))), "{more:?}");
        assert!(control.drain().await.is_empty());
    }

    /// Makes this the sequential rate of the disk.
    fn set_rate(control: &Control, bytes_per_s: u64) {
        use engine::disk::profile::{Direction, Finding, Key};
        let store = control.state().disk(&name("default")).unwrap().store.clone();
        let found = [(Key::Sequential(Direction::Read, 0), Finding::plain(Some(bytes_per_s as f64)))];
        store.change(|known| known.profile.take(&found, 0)).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_without_users_does_not_hold_up_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let control = with_users(dir.path()).await;
        control
            .add_disk(request(json!({"name": "other", "path": dir.path().join("other"), "force": true})))
            .await
            .unwrap();
        let held = control.turns.take(&name("other")).expect("it is free");
        control.set_policy(&name("gold"), request(json!({"share": "1/3"}))).await.unwrap();
        for tenant in ["a", "b"] {
            control.set_tenant(&name(tenant), request(json!({"policy": "none"}))).await.unwrap();
        }
        control.delete_policy(&name("gold")).await.unwrap();
        drop(held);
        assert!(control.drain().await.is_empty());
    }

    /// Otherwise it would have the old values, and the policy the new ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn no_tenant_takes_a_policy_while_it_is_being_changed() {
        let dir = tempfile::tempdir().unwrap();
        let control = with_users(dir.path()).await;
        control.create_volume(request(json!({"name": "c", "size": "1MiB"}))).await.unwrap();
        let changing = control.change_policies().await.unwrap();
        let taking = {
            let control = control.clone();
            tokio::spawn(async move { control.set_tenant(&name("c"), request(json!({"policy": "gold"}))).await })
        };
        let waits = tokio::time::timeout(std::time::Duration::from_millis(200), async {
            while allotment(&control, "c").policy.is_none() {
                tokio::task::yield_now().await;
            }
        });
        assert!(waits.await.is_err());
        drop(changing);
        taking.await.unwrap().unwrap();
        assert_eq!(allotment(&control, "c").policy, Some(name("gold")));
        assert!(control.drain().await.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn if_a_specification_cannot_be_written_all_users_have_the_old_values() {
        let dir = tempfile::tempdir().unwrap();
        let control = with_users(dir.path()).await;
        let before = allotment(&control, "a");
        let place = control.config.data.join("disks/default/tenants/b.toml");
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir_all(place.join("full")).unwrap();
        let refused = control.set_policy(&name("gold"), request(json!({"share": "1/3"}))).await;
        assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
        assert_eq!((allotment(&control, "a"), stored(&control, "a")), (before.clone(), before.clone()));
        assert_eq!(allotment(&control, "b"), before);
        assert_eq!(Policies::read(&control.config.data).unwrap().policies[&name("gold")], Policy::of(&before));
        assert!(control.drain().await.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_policy_determines_the_values_of_a_user_until_it_is_detached() {
        let dir = tempfile::tempdir().unwrap();
        let control = with_users(dir.path()).await;
        let tenant = name("a");
        let set = |body| control.set_tenant(&tenant, request(body));
        assert!(matches!(set(json!({"share": "1/8"})).await, Err(Error::Policy(PolicyError::Determined { .. }))));
        assert!(matches!(set(json!({"policy": "absent"})).await, Err(Error::Unknown(Kind::Policy, _))));
        set(json!({"cache": "8MiB"})).await.unwrap();
        let refused = control.delete_policy(&name("gold")).await.unwrap_err().to_string();
        assert!(refused.contains("tenant 'a' on disk 'default', tenant 'b' on disk 'default'"), "{refused}");
        set(json!({"policy": "none", "share": "1/8"})).await.unwrap();
        let spec = allotment(&control, "a");
        assert_eq!((spec.policy, spec.share), (None, Some("1/8".parse().unwrap())));
        assert!(spec.max_iops.is_some(), "it keeps the other values");
        set(json!({"policy": "gold"})).await.unwrap();
        assert_eq!(allotment(&control, "a").share, Some("1/4".parse().unwrap()));
        for tenant in ["a", "b"] {
            control.set_tenant(&name(tenant), request(json!({"policy": "none"}))).await.unwrap();
        }
        control.delete_policy(&name("gold")).await.unwrap();
        assert!(control.list_policies().is_empty());
        assert!(control.drain().await.is_empty());
    }

    /// A crash between the file of policies, which is the commit point, and the specifications of the users.
    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_crash_behind_the_commit_point_all_users_have_the_new_values() {
        let dir = tempfile::tempdir().unwrap();
        let control = with_users(dir.path()).await;
        assert!(control.drain().await.is_empty());
        let data = control.config.data.clone();
        drop(control);
        let mut policies = Policies::read(&data).unwrap();
        let after = Policy { share: Some("1/3".parse().unwrap()), ..Policy::default() };
        policies.policies.insert(name("gold"), after.clone());
        policies.write(&data).unwrap();
        let control = server(dir.path()).await;
        for tenant in ["a", "b"] {
            let (now, kept) = (allotment(&control, tenant), stored(&control, tenant));
            assert_eq!((Policy::of(&now), Policy::of(&kept)), (after.clone(), after.clone()));
        }
        // A disk of another server: its users keep their values.
        assert!(control.drain().await.is_empty());
        drop(control);
        std::fs::remove_file(data.join("policies.toml")).unwrap();
        let control = server(dir.path()).await;
        assert_eq!(stored(&control, "a"), TenantSpec { policy: None, ..allotment(&control, "a") });
        assert_eq!(Policy::of(&allotment(&control, "a")), after);
        assert!(control.drain().await.is_empty());
    }
}
