//! Grants the sessions that clients claim of volumes: see `crate::sessions`.

use std::sync::Arc;

use engine::nbd::Claim;

use super::{Control, Error, Target, Volume, VolumeState, with_files};
use crate::quantity::Name;
use crate::sessions::{Conflict, Lease, Sessions, ended};
use crate::store::{EpochError, Store};

/// Why a claim is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("volume '{0}' is in use by the gateway '{1}'")]
    InUse(Name, String),
    #[error(
        "epoch {} of the gateway '{}' is not above {latest}, that of its latest session", claim.epoch, claim.client
    )]
    NotAbove { claim: Claim, latest: u64 },
    #[error(
        "{} since session {} of the gateway '{}', so its content is outdated",
        by.as_ref().map_or("the volume was changed".into(), |by| format!("'{by}' has been admitted")),
        claim.after.unwrap_or_default(), claim.client
    )]
    Interrupted { claim: Claim, by: Option<String> },
    #[error("a later session of volume '{0}' has begun")]
    Superseded(Name),
    #[error("the volume was closed")]
    Closed,
    #[error("the session cannot be recorded: {0}")]
    Unrecorded(#[from] EpochError),
    #[error("the session cannot be recorded: {0}")]
    Unknown(#[from] Error),
    #[error("an earlier session has outstanding writes, or the disk does not answer: try again")]
    Late,
}

impl Volume {
    pub(super) fn sessions(&self) -> Option<&Arc<Sessions>> {
        match &self.state {
            VolumeState::Serving { sessions, .. } => Some(sessions),
            _ => None,
        }
    }
}

impl Control {
    /// Grants a session, or one more connection of it. When this returns, its epoch is recorded and the sessions that
    /// it supersedes have ended, their writes included. The caller limits the time.
    pub async fn claim(&self, target: &Target, claim: &Claim, may_write: bool) -> Result<Lease, Refused> {
        let (store, name, uuid) = {
            let state = self.state();
            let (running, name, volume) = state.target(target).ok_or(Refused::Closed)?;
            (running.store.clone(), name.clone(), volume.spec.as_ref().ok_or(Refused::Closed)?.uuid)
        };
        let lease = target.sessions.enter(claim, may_write).map_err(|conflict| match conflict {
            Conflict::InUse(by) => Refused::InUse(name.clone(), by),
            Conflict::NotAbove(latest) => Refused::NotAbove { claim: claim.clone(), latest },
        })?;
        self.record(&store, &name, uuid, &lease).await?;
        let earlier = target.sessions.supersede(&lease);
        if !earlier.is_empty() {
            // If the thread was stopped, it has no connections any more.
            let _ = target.thread.expel().await;
            ended(earlier).await;
        }
        // The disk's thread closes connections that are superseded after this.
        if lease.is_superseded() { Err(Refused::Superseded(name)) } else { Ok(lease) }
    }

    /// Records the epoch of a session, unless another connection of it has done so.
    async fn record(&self, store: &Arc<Store>, name: &Name, uuid: uuid::Uuid, lease: &Lease) -> Result<(), Refused> {
        if !lease.is_to_be_recorded() {
            return Ok(());
        }
        // Moves to the thread that writes: if this handshake gives up, the next writer waits all the same.
        let recording = self.recording.wait(name).await;
        if !lease.is_to_be_recorded() {
            return Ok(());
        }
        let session = lease.clone();
        let recorded = with_files(store, name, move |files| {
            let _recording = recording;
            files.record_epoch(uuid, &session.claim)?;
            session.recorded();
            Ok(())
        });
        match recorded.await? {
            Err(EpochError::NotAbove(latest)) => Err(Refused::NotAbove { claim: lease.claim.clone(), latest }),
            Err(EpochError::Interrupted(by)) => Err(Refused::Interrupted { claim: lease.claim.clone(), by }),
            recorded => Ok(recorded?),
        }
    }
}
