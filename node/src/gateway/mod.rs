//! A gateway to a cluster: it opens volumes when its clients ask for them, striped over the servers that have them.
//!
//! ```text
//!   client ── GO big ─► open ── layout ───────► any server       where it is
//!                        │  ─── claim=ME ─────► each member      nobody else has it, or refused
//!                        │  ─── epoch=ABOVE ──► any server       from etcd
//!                        └─► volume 'big': upstreams with leases, striped
//!   no client for a while ─► volume closed ── release=ME ─► each member
//! ```
//!
//! Nothing of a volume is kept here when it is closed, or when the process starts: the cluster knows where it is. An
//! epoch is asked for only when each member would admit this gateway, since a new epoch fences the gateway that has the
//! volume as soon as that one has to open a session again.

mod config;
mod lookups;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::cluster::{Slot, Timetable};
use engine::ids::TenantId;
use engine::nbd::{NotUri, Unopened, Uri};
use engine::units::Nanos;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::timeout;
use tracing::{info, warn};

pub use self::config::{Options, Settings};
use self::lookups::Lookups;
use crate::cluster::ahead_ns;
use crate::cluster::layout::{Layout, PartKept, Question, SlotOf};
use crate::control::kept::Kept;
use crate::control::turn::Turns;
use crate::control::view::CreateVolume;
use crate::control::{Control, Error};
use crate::peer::Source;
use crate::quantity::{Name, Size};
use crate::store::{ExportUri, Exports};
use crate::tls::ClientFiles;
use crate::upstream::{DialError, Target, ask};

/// How long a server has to answer a question: a handshake of a client waits for several.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How often the servers are told what a volume loses of its slots: they forget it after 30 s.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Tenants matter to servers only.
const NO_TENANT: TenantId = TenantId(0);
/// How often volumes without clients are looked for.
const TICK: Duration = Duration::from_secs(1);

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("no server of the cluster answers: {0}")]
    NoServer(String),
    #[error("no server of the cluster has it")]
    Unknown,
    #[error(
        "this client asks for more than {} names a second that no server knows: try again",
        lookups::UNKNOWN_PER_SOURCE
    )]
    ManyUnknown,
    #[error(transparent)]
    Refused(#[from] DialError),
    #[error("{0} is no server of a cluster")]
    Stranger(String),
    #[error("the answer of {0} cannot be read: {1}")]
    Answer(String, String),
    #[error("the cluster has a wrong address: {0}")]
    Address(#[from] NotUri),
    #[error(transparent)]
    Control(#[from] Error),
    #[error("it has {size} and is about to grow to {will}: try again")]
    Growing { size: Size, will: Size },
    #[error("its opening failed: {0}")]
    Broken(tokio::task::JoinError),
}

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    control: Arc<Control>,
    settings: Settings,
    /// Held, by volume, while the gateway opens or closes it.
    turns: Turns,
    /// The volumes that it has opened.
    open: Mutex<BTreeMap<Name, Opened>>,
    lookups: Lookups,
}

/// A volume that is open.
#[derive(Clone, Debug)]
struct Opened {
    members: Vec<Target>,
    /// The name by which they know this gateway.
    client: String,
    /// The epoch that was issued for it.
    epoch: u64,
    /// When it had a client last.
    used: Instant,
    /// How long requests had waited for its servers when that was last looked at.
    waited_ns: Nanos,
}

impl GatewayError {
    /// Whether the volume does not exist, as far as the client may know.
    pub fn is_unknown(&self) -> bool {
        matches!(self, GatewayError::Unknown)
    }

    fn is_of_unknown_export(&self) -> bool {
        matches!(self, GatewayError::Refused(DialError::Unopened(_, why)) if matches!(**why, Unopened::Unknown { .. }))
    }
}

impl Gateway {
    /// Removes what an earlier process has left behind.
    pub async fn start(control: Arc<Control>, settings: Settings) -> Result<Arc<Gateway>, Error> {
        for name in control.volumes_of_gateway() {
            control.delete_volume(&name, true).await?;
        }
        let (turns, open, lookups) = Default::default();
        Ok(Arc::new(Gateway { control, settings, turns, open, lookups }))
    }

    /// Closes volumes that no client has used for a while, until the process ends.
    pub async fn run(self: Arc<Gateway>) {
        let mut measured = Instant::now();
        loop {
            tokio::time::sleep(TICK).await;
            let names: Vec<Name> = self.opened().keys().cloned().collect();
            for name in names {
                self.close_if_idle(&name).await;
            }
            if measured.elapsed() >= MEASURE_INTERVAL {
                measured = Instant::now();
                let names: Vec<Name> = self.opened().keys().cloned().collect();
                for name in names {
                    self.measure(&name).await;
                }
            }
        }
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, BTreeMap<Name, Opened>> {
        self.open.lock().expect("nobody panics while holding it")
    }

    /// Opens a volume of the cluster for a client, unless it is open. If the client disconnects during the lookup, the
    /// lookup ends; an opening that has begun is completed.
    pub async fn open(self: &Arc<Gateway>, name: &Name, client: Source) -> Result<(), GatewayError> {
        {
            let _turn = self.turns.wait(name).await;
            if self.touch(name).await == Some(false) {
                return Ok(());
            }
        }
        // Not under the volume's lock: the lookup may wait for earlier ones of its source, and clients of other sources
        // may want the volume.
        let exists = async {
            // Another connection may have opened the volume meanwhile.
            if !self.opened().contains_key(name) {
                self.layout(name).await?;
            }
            Ok(())
        };
        self.lookups.find(client, name, exists).await?;
        let turn = self.turns.wait(name).await;
        let (gateway, name) = (self.clone(), name.clone());
        let opening = tokio::spawn(async move {
            let _turn = turn;
            gateway.open_to_the_end(&name).await
        });
        opening.await.unwrap_or_else(|error| Err(GatewayError::Broken(error)))
    }

    /// Notes that a client wants a volume. Returns whether it is fenced; `None` if it is neither open nor a volume of
    /// this host. Only under the volume's lock: otherwise the volume may be half open or half closed.
    async fn touch(&self, name: &Name) -> Option<bool> {
        if let Some(opened) = self.opened().get_mut(name) {
            opened.used = Instant::now();
        }
        self.control.is_fenced(name).await
    }

    async fn open_to_the_end(&self, name: &Name) -> Result<(), GatewayError> {
        match self.touch(name).await {
            None => {}
            Some(false) => return Ok(()),
            // Another gateway had the volume meanwhile. No client uses it here any more, so it is opened anew.
            Some(true) => self.close(name, true).await?,
        }
        let layout = self.layout(name).await?;
        let members = layout.members.iter().map(|member| self.target(member)).collect::<Result<Vec<_>, _>>()?;
        let client = self.control.gateway_client(name)?;
        let claims = members.iter().map(|member| self.number(member, Question::Claim(client.clone(), layout.uuid)));
        let known = futures::future::try_join_all(claims).await?.into_iter().max().unwrap_or(0);
        let epoch = self.number(&members[0], Question::Epoch(known)).await?;
        let uris = members.iter().map(|member| ExportUri(member.uri.clone())).collect::<Vec<_>>();
        let first = members.first();
        let request = CreateVolume {
            stripe: (uris.len() > 1).then_some(Size(layout.stripe)),
            from: Some(Exports(uris)),
            upstream_deadline: Some(self.settings.deadline),
            tls_certificates: first.filter(|first| first.uri.tls).and(self.settings.certificates.clone()),
            lease_epoch: Some(epoch),
            ..CreateVolume::plain(name.clone(), None)
        };
        self.control.create_volume(request).await?;
        let servers = members.len();
        self.opened().insert(name.clone(), Opened { members, client, epoch, used: Instant::now(), waited_ns: 0 });
        // The parts are about to grow. Later sessions would see another size and refuse the volume.
        let size = self.control.size_of(name)?;
        if size < layout.size {
            self.close(name, true).await?;
            return Err(GatewayError::Growing { size: Size(size), will: Size(layout.size) });
        }
        info!(volume = %name, cluster = %layout.cluster, servers, epoch, "a volume of the cluster is open");
        Ok(())
    }

    async fn close(&self, name: &Name, force: bool) -> Result<(), Error> {
        self.control.delete_volume(name, force).await?;
        let Some(opened) = self.opened().remove(name) else { return Ok(()) };
        info!(volume = %name, "a volume of the cluster is closed");
        self.release(name, &opened).await;
        Ok(())
    }

    async fn close_if_idle(&self, name: &Name) {
        let connections = self.control.connections_to(name).await;
        if !matches!(connections, Ok(0))
            && let Some(opened) = self.opened().get_mut(name)
        {
            opened.used = Instant::now();
        }
        let is_idle = || self.opened().get(name).is_some_and(|opened| opened.used.elapsed() >= self.settings.idle);
        if !is_idle() {
            return;
        }
        let _turn = self.turns.wait(name).await;
        // A client may have asked for it meanwhile.
        if !is_idle() {
            return;
        }
        // What it had not flushed when another gateway was admitted is lost already.
        let is_fenced = self.control.is_fenced(name).await == Some(true);
        match self.close(name, is_fenced).await {
            Ok(()) | Err(Error::InUse(..)) => {}
            Err(error) => warn!(volume = %name, "an idle volume cannot be closed: {error}"),
        }
    }

    /// Follows the slots of a volume, and tells its servers what it loses of them: the round may have to be longer.
    /// Notes what the volume keeps of its share.
    async fn measure(&self, name: &Name) {
        let used = self.control.slot_use(name).await;
        let opened = {
            let mut open = self.opened();
            let Some(opened) = open.get_mut(name) else { return };
            let before = std::mem::replace(&mut opened.waited_ns, used.map_or(0, |(waited_ns, _)| waited_ns));
            // Without load, the last figures say nothing. A server takes pauses of its clients for useful.
            if opened.waited_ns == before { None } else { Some(opened.clone()) }
        };
        let Some(opened) = opened else { return self.control.set_kept(name, None) };
        let kept = match opened.members.len() {
            1 => self.parts_kept(&opened).await.and_then(|parts| Kept::single(parts[0])),
            _ => self.measure_slots(name, &opened, used.and_then(|(_, loss_ns)| loss_ns)).await,
        };
        self.control.set_kept(name, kept);
    }

    async fn measure_slots(&self, name: &Name, opened: &Opened, loss_ns: Option<Nanos>) -> Option<Kept> {
        let slot = self.layout(name).await.ok()?.slot?;
        self.control.set_slot(name, local(&slot, ahead_ns()), slot_of(&slot)).await;
        let loss_ns = loss_ns?;
        for member in &opened.members {
            // One of them is enough: each knows what all need.
            if self.ask(member, Question::Loss(loss_ns)).await.is_ok() {
                break;
            }
        }
        let parts = self.parts_kept(opened).await?;
        Kept::striped(&slot, loss_ns, &parts)
    }

    /// What each server says of its part; `None` if one does not, for example because its release is older.
    async fn parts_kept(&self, opened: &Opened) -> Option<Vec<PartKept>> {
        let asked = opened.members.iter().map(async |member| {
            let answer = self.ask(member, Question::Kept).await.ok()?;
            serde_json::from_str(&answer).ok()
        });
        futures::future::join_all(asked).await.into_iter().collect()
    }

    /// Closes what is open, when the process ends: everything is flushed by then.
    pub async fn leave(&self) {
        let opened = std::mem::take(&mut *self.opened());
        futures::future::join_all(opened.iter().map(|(name, opened)| self.release(name, opened))).await;
    }

    async fn release(&self, name: &Name, opened: &Opened) {
        let Opened { members, client, epoch, .. } = opened;
        let releases = members.iter().map(|member| self.ask(member, Question::Release(client.clone(), *epoch)));
        for error in futures::future::join_all(releases).await.into_iter().filter_map(Result::err) {
            info!(volume = %name, "a lease is not released, and runs for some seconds: {error}");
        }
    }

    fn target(&self, address: &str) -> Result<Target, GatewayError> {
        let uri: Uri = address.parse()?;
        let host = uri.host().to_owned();
        let tls = self.settings.certificates.clone().filter(|_| uri.tls);
        Ok(Target { tls: tls.map(|directory: PathBuf| ClientFiles { directory, host }), uri })
    }

    /// Where a volume is, from the first server that knows.
    async fn layout(&self, name: &Name) -> Result<Layout, GatewayError> {
        let (mut why, mut is_unknown) = (Vec::new(), true);
        let targets = self.settings.servers.iter().map(|server| self.target(&server.of(name)));
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        let asked = targets.iter().map(async |target| (target, self.ask(target, Question::Layout).await));
        let mut answers: FuturesUnordered<_> = asked.collect();
        while let Some((target, answer)) = answers.next().await {
            match answer {
                Ok(text) => {
                    let layout: Layout = serde_json::from_str(&text)
                        .map_err(|error| GatewayError::Answer(target.uri.to_string(), error.to_string()))?;
                    if layout.members.is_empty() {
                        return Err(GatewayError::Answer(target.uri.to_string(), "no server has it".into()));
                    }
                    return Ok(layout);
                }
                Err(error) => {
                    is_unknown &= error.is_of_unknown_export();
                    why.push(error.to_string());
                }
            }
        }
        if is_unknown {
            return Err(GatewayError::Unknown);
        }
        Err(GatewayError::NoServer(why.join("; ")))
    }

    async fn number(&self, target: &Target, question: Question) -> Result<u64, GatewayError> {
        let text = self.ask(target, question).await?;
        text.parse().map_err(|_| GatewayError::Answer(target.uri.to_string(), format!("'{text}' is no number")))
    }

    async fn ask(&self, target: &Target, question: Question) -> Result<String, GatewayError> {
        let answer = timeout(ANSWER_TIMEOUT, ask(target, &question.to_string())).await;
        let answer = answer.unwrap_or_else(|_| Err(DialError::Timeout(Box::new(target.uri.clone()))));
        let answer = answer?;
        if answer.is_empty() {
            return Err(GatewayError::Stranger(target.uri.to_string()));
        }
        String::from_utf8(answer).map_err(|error| GatewayError::Answer(target.uri.to_string(), error.to_string()))
    }
}

fn slot_of(slot: &SlotOf) -> Slot {
    Slot { tenant: NO_TENANT, start_ns: slot.start_ns, length_ns: slot.length_ns, is_striped: true }
}

/// The rounds of a schedule by the clock of the engines, which is `ahead_ns` behind the system's. They may have begun
/// before that clock did: any round may count as the first one then.
fn local(slot: &SlotOf, ahead_ns: i64) -> Timetable {
    let begins_ns = i128::from(slot.begins_ns) - i128::from(ahead_ns);
    let begins_ns = if begins_ns < 0 { begins_ns.rem_euclid(i128::from(slot.round_ns.max(1))) } else { begins_ns };
    let begins_ns = u64::try_from(begins_ns).unwrap_or(0);
    Timetable { version: slot.version, begins_ns, round_ns: slot.round_ns, slots: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_those_of_the_cluster_by_another_clock() {
        let slot = SlotOf { version: 3, begins_ns: 10_050, round_ns: 100, start_ns: 20, length_ns: 30, r_cluster: 1.0 };
        assert_eq!(local(&slot, 10_000).begins_ns, 50);
        assert_eq!(local(&slot, -5).begins_ns, 10_055);
        let earlier = local(&slot, 10_075);
        assert_eq!((earlier.begins_ns, earlier.round_ns, earlier.version), (75, 100, 3));
    }
}
