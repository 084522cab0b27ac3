//! Changes of a disk's scheduling while it is running.

use engine::control::Command;
use engine::disk::profile::{Key, Override};
use tracing::info;

use super::probes::parse;
use super::view::SetDisk;
use super::{Control, Done, Error, Invalid, blocking};
use crate::quantity::Name;
use crate::store::{Chosen, Store};

impl Control {
    /// The policy and settings of a disk, with the reason.
    pub(super) fn chosen(&self, disk: &Name, store: &Store) -> Chosen {
        let known = store.known();
        let seed = store.identity.uuid.as_u64_pair().0;
        let device_depth = self.config.limits.device_depth;
        let usual = engine::Config { device_depth, seed, ..engine::Config::new(0) }.policy();
        let chosen = known.scheduling.choose(usual, disk.as_str(), store.model.as_ref(), &known.profile);
        match (chosen.settings.insulates(), known.scheduling.policy) {
            (false, None) => Chosen { reason: self.why_unprobed(disk, &known.scheduling), ..chosen },
            _ => chosen,
        }
    }

    /// Gives the disk's engine the settings that follow from the present state. The caller holds the disk's change
    /// lock.
    pub(super) async fn apply_policy(&self, disk: &Name) {
        let told = {
            let state = self.state();
            let Ok(running) = state.disk(disk) else { return };
            let chosen = self.chosen(disk, &running.store);
            info!(%disk, policy = %chosen.name, "{}", chosen.reason);
            running.thread.command(Command::SetPolicy(Box::new(chosen.settings)))
        };
        // A stopped thread needs no policy, and no policy is refused.
        let _ = told.await;
        self.forget_samples(disk);
    }

    /// Changes the scheduling of a disk or values of its profile; all of them or none.
    pub async fn set_disk(&self, name: &Name, request: SetDisk) -> Result<Done, Error> {
        if request == SetDisk::default() {
            return Err(Invalid::NoChangeOfDisk(name.clone()).into());
        }
        let _turn = self.change(name).await?;
        let overrides = request.profile.iter().map(|(key, to)| parse(name, key, to));
        let overrides: Vec<(Key, Option<Override>)> = overrides.collect::<Result<_, _>>()?;
        let store = self.state().disk(name)?.store.clone();
        let mut scheduling = store.known().scheduling;
        let mut set: Vec<String> = request.profile.iter().map(|(key, to)| format!("{key} = {to}")).collect();
        if let Some(policy) = request.policy {
            set.push(format!("policy = {policy}"));
            scheduling.policy = policy.value();
        }
        if let Some(insulation) = request.insulation {
            set.push(format!("insulation = {insulation}"));
            scheduling.insulation = insulation.value();
        }
        if let Some(max_round) = request.max_round {
            set.push(format!("max_round = {max_round}"));
            scheduling.max_round = max_round.value();
        }
        scheduling.check().map_err(Invalid::from)?;
        let kept = blocking(move || {
            store.change(|known| {
                known.scheduling = scheduling;
                overrides.into_iter().for_each(|(key, to)| known.profile.set_override(key, to));
            })
        });
        kept.await??;
        self.apply_policy(name).await;
        info!(disk = %name, set = set.join(", "), "set by hand");
        let message = format!("disk '{name}' has {}", set.join(", "));
        Ok(Done { message, disk: self.show_disk(name).await.ok(), volume: None, tenant: None })
    }
}
