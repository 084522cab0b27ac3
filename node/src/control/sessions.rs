//! Grants the sessions that clients claim of volumes: see `crate::sessions`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::ids::TenantId;
use engine::nbd::{COUNTED_BITS, Claim};
use tokio::time::timeout;
use uuid::Uuid;

use super::{Control, Error, Running, Target, Volume, VolumeState, with_files};
use crate::quantity::Name;
use crate::sessions::{Conflict, DIRECT, Lease, Session, Sessions, ended};
use crate::store::{EpochError, Store};

/// Why a claim is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("volume '{0}' is in use by {1}")]
    InUse(Name, String),
    #[error(
        "volume '{0}' is in use by the gateway '{1}', whose lease runs for {ms} ms unless it is renewed",
        ms = .2.as_millis()
    )]
    Leased(Name, String, Duration),
    #[error("the cluster has issued epoch {issued} of volume '{volume}' to another gateway, so '{client}' is outdated")]
    Outdated { volume: Name, client: String, issued: u64 },
    #[error("epoch {epoch} of volume '{volume}' was not issued; the last one that this server knows is {issued}")]
    NotIssued { volume: Name, epoch: u64, issued: u64 },
    #[error("volume '{0}' waits for etcd, which has not answered since this server started")]
    NoEpochs(Name),
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
    #[error("its sessions cannot be recorded: {0}")]
    Unrecorded(#[from] EpochError),
    #[error("its sessions are not known: {0}")]
    Unknown(#[from] Error),
    #[error("an earlier session has outstanding writes, or the disk does not answer: try again")]
    Late,
}

/// How long a claim waits for another client's session without a lease: its connections may just have been closed, and
/// the end of one is noticed some milliseconds after the beginning of the next.
const CLOSING: Duration = Duration::from_millis(250);

/// How long a disk has to say whether clients may write to a volume.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// A client that has no session. No claim has such a name.
const NOBODY: &str = "(nobody)";

/// The epochs that a cluster has issued, by volume; `None` before that is known.
pub type Issued = Option<BTreeMap<Uuid, u64>>;

impl Refused {
    /// Whether the client must not use what it has of the volume any more.
    pub fn is_final(&self) -> bool {
        match self {
            Refused::Interrupted { .. } | Refused::Outdated { .. } => true,
            Refused::NotAbove { claim, latest } => claim.is_outdated_by(*latest),
            _ => false,
        }
    }
}

/// The name of a session's client, for people.
fn holder(session: &Session) -> String {
    match session.claim.client.as_str() {
        DIRECT => "clients that have opened it directly".into(),
        client => format!("the gateway '{client}'"),
    }
}

impl Volume {
    pub(super) fn sessions(&self) -> Option<&Arc<Sessions>> {
        match &self.state {
            VolumeState::Serving { sessions, .. } => Some(sessions),
            _ => None,
        }
    }
}

impl Running {
    /// What clients of a volume are handed over with, while it is served.
    pub(super) fn target(&self, name: &Name, volume: &Volume) -> Option<Target> {
        let (Some(spec), VolumeState::Serving { id, sessions, .. }) = (&volume.spec, &volume.state) else {
            return None;
        };
        Some(Target {
            thread: self.thread.clone(),
            volume: *id,
            sessions: sessions.clone(),
            part: spec.cluster.as_ref().map(|part| part.volume),
            tenant: self.tenants.get(&spec.tenant(name)).map_or(TenantId(0), |tenant| tenant.id),
            tenants: self.tenants.len(),
        })
    }
}

impl Control {
    /// Grants a session, or one more connection of it. When this returns, its epoch is recorded and the sessions that
    /// it supersedes have ended, their writes included. The caller limits the time.
    pub async fn claim(&self, target: &Target, claim: &Claim, may_write: bool) -> Result<Lease, Refused> {
        let (_, name, _) = self.claimed(target)?;
        if let (true, Some(part)) = (claim.leased, target.part) {
            let recorded = self.last_epoch(target).await? >> COUNTED_BITS;
            self.check_issued(&name, (part, recorded), claim)?;
        }
        self.admit_client(target, may_write, |sessions| sessions.enter(claim, may_write)).await
    }

    /// Grants a client that claims nothing its place in the session of all such clients. Only parts of a cluster's
    /// volumes have that: gateways and such clients exclude each other there.
    pub async fn claim_direct(&self, target: &Target) -> Result<Lease, Refused> {
        self.admit_client(target, true, Sessions::enter_direct).await
    }

    fn claimed(&self, target: &Target) -> Result<(Arc<Store>, Name, Uuid), Refused> {
        let state = self.state();
        let (running, name, volume) = state.target(target).ok_or(Refused::Closed)?;
        Ok((running.store.clone(), name.clone(), volume.spec.as_ref().ok_or(Refused::Closed)?.uuid))
    }

    /// Refuses a claim unless its epoch is the last one that etcd has issued for the volume. If etcd was restored from
    /// a backup, it may have issued later ones; the `recorded` epoch of the part is one of these.
    fn check_issued(&self, name: &Name, (part, recorded): (Uuid, u64), claim: &Claim) -> Result<(), Refused> {
        let issued = self.issued.lock().expect("no one panics while holding it");
        let issued = issued.as_ref().ok_or_else(|| Refused::NoEpochs(name.clone()))?;
        let (issued, epoch) = (issued.get(&part).copied().unwrap_or(0), claim.epoch >> COUNTED_BITS);
        if epoch < issued {
            return Err(Refused::Outdated { volume: name.clone(), client: claim.client.clone(), issued });
        }
        // It may be new: etcd tells within milliseconds.
        if epoch > issued.max(recorded) {
            Err(Refused::NotIssued { volume: name.clone(), epoch, issued })
        } else {
            Ok(())
        }
    }

    /// Sets the epochs that the cluster has issued.
    pub fn set_issued(&self, issued: BTreeMap<Uuid, u64>) {
        *self.issued.lock().expect("no one panics while holding it") = Some(issued);
    }

    /// Whether a client could be admitted to a volume now.
    pub async fn check_claim(&self, target: &Target, client: &str) -> Result<(), Refused> {
        self.enter_session(target, true, |sessions| sessions.admits(client)).await
    }

    /// Whether no client may write to a volume, now or before its lease ends.
    pub async fn check_unclaimed(&self, name: &Name) -> Result<(), Refused> {
        let target = {
            let state = self.state();
            let (disk, volume) = state.find(name)?;
            state.disk(&disk)?.target(name, volume)
        };
        match target {
            Some(target) => {
                let asked = timeout(ANSWER_TIMEOUT, self.check_claim(&target, NOBODY)).await;
                asked.unwrap_or(Err(Refused::Late))
            }
            None => Ok(()),
        }
    }

    /// The latest epoch of a session of a volume with a lease.
    pub async fn last_epoch(&self, target: &Target) -> Result<u64, Refused> {
        let (store, name, uuid) = self.claimed(target)?;
        let turn = self.recording.wait(&name).await;
        let last = with_files(&store, &name, move |files| {
            // One thread for each volume waits for a file system that hangs.
            let _turn = turn;
            files.last_epoch(uuid)
        });
        Ok(last.await??)
    }

    /// A gateway uses nothing of a volume any more.
    pub fn release(&self, target: &Target, client: &str, epoch: u64) {
        target.sessions.release(client, epoch);
    }

    /// The place in a session, as `enter` says, after a session whose lease has ended was closed.
    async fn enter_session<T>(
        &self,
        target: &Target,
        may_write: bool,
        enter: impl Fn(&Sessions) -> Result<T, Conflict>,
    ) -> Result<T, Refused> {
        let (store, name, uuid) = self.claimed(target)?;
        if may_write && target.sessions.must_learn_last() {
            let turn = self.recording.wait(&name).await;
            let last = with_files(&store, &name, move |files| {
                let _turn = turn;
                files.last_leased(uuid)
            });
            target.sessions.learn_last(last.await??);
        }
        let mut entered = enter(&target.sessions);
        if let Err(Conflict::InUse(by)) = &entered {
            let by = by.clone();
            let left = match by.claim.leased {
                true => target.thread.expel_silent(by.clone()).await.map_err(|_| Refused::Closed)?,
                false => None,
            };
            if let Some(left) = left {
                return Err(Refused::Leased(name, by.claim.client.clone(), left));
            }
            let (is_leased, end) = (by.claim.leased, by.end());
            drop((by, entered));
            match is_leased {
                true => ended(vec![end]).await,
                false => _ = timeout(CLOSING, ended(vec![end])).await,
            }
            entered = enter(&target.sessions);
        }
        entered.map_err(|conflict| match conflict {
            Conflict::InUse(by) => Refused::InUse(name, holder(&by)),
            Conflict::Leased(by, left) => Refused::Leased(name, by, left),
            Conflict::NotAbove { claim, latest } => Refused::NotAbove { claim, latest },
            Conflict::Superseded => Refused::Superseded(name),
        })
    }

    async fn admit_client(
        &self,
        target: &Target,
        may_write: bool,
        enter: impl Fn(&Sessions) -> Result<Lease, Conflict>,
    ) -> Result<Lease, Refused> {
        let (store, name, uuid) = self.claimed(target)?;
        let lease = self.enter_session(target, may_write, enter).await?;
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
