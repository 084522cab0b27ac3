//! Records losses where they survive a restart of the server: see `store/loss.rs`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::control::Snapshot;
use tracing::{error, warn};

use super::reopen::Tried;
use super::{Control, blocking};
use crate::quantity::Name;
use crate::store::LossNote;

/// The time limit for making the records of one directory durable: a hung device must not keep the server from ending.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval of attempts to record a loss that could be recorded nowhere: each of them is reported.
const RETRY: Duration = Duration::from_secs(10);

impl Control {
    /// Records that these volumes have a loss, so that it is reported after a restart, too. Returns whether each of
    /// them is recorded somewhere. `attempt` ends after calls to the file system of the server's directory.
    pub(super) async fn remember_lost(&self, disk: &Name, volumes: &[Name], attempt: Option<Arc<Tried>>) -> bool {
        let (notes, questions) = {
            let state = self.state();
            let Ok(running) = state.disk(disk) else { return true };
            let places = |name: &Name| {
                let spec = running.volumes.get(name)?.spec.as_ref()?;
                Some((name.clone(), LossNote::new(&self.config.data, &running.store, name, spec).places()))
            };
            (volumes.iter().filter_map(places).collect::<Vec<_>>(), running.questions.clone())
        };
        let all_at = |at: usize| notes.iter().map(|(_, places)| places[at].clone()).collect::<Vec<_>>();
        // All of the server's directory first, since the disk may hang.
        let own = make_all(all_at(0), async { attempt }).await;
        let beside = make_all(all_at(1), questions.acquire_owned()).await;
        let mut all_noted = true;
        for ((name, places), made) in notes.iter().zip(own.into_iter().zip(beside)) {
            let failures = places.iter().zip([made.0, made.1]).filter_map(|(place, made)| Some((place, made.err()?)));
            let failures: Vec<String> = failures.map(|(place, why)| format!("{} ({why})", place.display())).collect();
            match &failures[..] {
                [] => {}
                [one] => warn!(%disk, volume = %name, "one of the two records of its loss cannot be written: {one}"),
                all => {
                    let at = all.join(", nor at ");
                    error!(%disk, volume = %name, "its loss is forgotten at a restart: it cannot be recorded at {at}");
                    all_noted = false;
                    continue;
                }
            }
            if let Some(volume) = self.state().volume_mut(disk, name) {
                volume.loss_noted = true;
            }
        }
        all_noted
    }

    /// Records losses that the disk's engine has reported and that are not recorded yet, so that a known loss survives
    /// even if the server is killed.
    pub(super) fn note_losses(self: &Arc<Control>, disk: &Name, snapshot: &Snapshot) {
        if self.unnoted(disk, snapshot).is_empty() {
            return;
        }
        // Needs the disk's change lock, since an operator may be accepting the loss. If it is taken, the next snapshot
        // is soon enough.
        let Some(attempt) = self.noting.begin((disk.clone(), None)) else { return };
        let Some(turn) = self.turns.take(disk) else { return };
        let (control, disk, attempt) = (self.clone(), disk.clone(), Arc::new(attempt));
        tokio::spawn(async move {
            let Some(snapshot) = control.snapshot(&disk).await else { return };
            let lost = control.unnoted(&disk, &snapshot);
            let all_noted = control.remember_lost(&disk, &lost, Some(attempt.clone())).await;
            drop(turn);
            if !all_noted {
                tokio::time::sleep(RETRY).await;
            }
            drop(attempt);
        });
    }

    fn unnoted(&self, disk: &Name, snapshot: &Snapshot) -> Vec<Name> {
        let lost = |id| snapshot.volumes.iter().any(|stats| stats.volume == id && stats.lost);
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return Vec::new() };
        let served = running.volumes.iter().filter(|(_, volume)| !volume.loss_noted && volume.id().is_some_and(lost));
        served.map(|(name, _)| name.clone()).collect()
    }
}

/// Makes records in one directory, within the time limit; `held` is held until the file system has answered.
async fn make_all<H: Send + 'static>(places: Vec<PathBuf>, held: impl Future<Output = H>) -> Vec<Result<(), String>> {
    let count = places.len();
    let making = async {
        let held = held.await;
        let made = blocking(move || {
            let _held = held;
            LossNote::make_all(&places)
        });
        made.await
    };
    match tokio::time::timeout(NOTE_TIMEOUT, making).await {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => vec![Err(error.to_string()); count],
        Err(_) => vec![Err("its device does not answer".into()); count],
    }
}
