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

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use engine::nbd::{NotUri, Unopened, Uri};
use tokio::time::timeout;
use tracing::{info, warn};

pub use self::config::{Options, Settings};
use crate::cluster::layout::{Layout, Question};
use crate::control::view::CreateVolume;
use crate::control::{Control, Error};
use crate::quantity::{Name, Size};
use crate::store::{ExportUri, Exports};
use crate::tls::ClientFiles;
use crate::upstream::{DialError, Target, ask};

/// How long a server has to answer a question: a handshake of a client waits for several.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How often volumes without clients are looked for.
const TICK: Duration = Duration::from_secs(1);

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("no server of the cluster answers: {0}")]
    NoServer(String),
    #[error("no server of the cluster has it")]
    Unknown,
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
}

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    control: Arc<Control>,
    settings: Settings,
    /// Held, by volume, while it is being opened or closed.
    turns: Mutex<BTreeMap<Name, Weak<tokio::sync::Mutex<()>>>>,
    /// The volumes that it has opened.
    open: Mutex<BTreeMap<Name, Opened>>,
}

/// A volume that is open.
#[derive(Clone, Debug)]
struct Opened {
    members: Vec<Target>,
    /// The name by which they know this gateway.
    client: String,
    /// When it had a client last.
    used: Instant,
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
        Ok(Arc::new(Gateway { control, settings, turns: Mutex::default(), open: Mutex::default() }))
    }

    /// Closes volumes that no client has used for a while, until the process ends.
    pub async fn run(self: Arc<Gateway>) {
        loop {
            tokio::time::sleep(TICK).await;
            let names: Vec<Name> = self.opened().keys().cloned().collect();
            for name in names {
                self.close_if_idle(&name).await;
            }
        }
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, BTreeMap<Name, Opened>> {
        self.open.lock().expect("nobody panics while holding it")
    }

    async fn turn(&self, name: &Name) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().expect("nobody panics while holding it");
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(name).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(name.clone(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }

    /// Opens a volume of the cluster, unless it is open.
    pub async fn open(&self, name: &Name) -> Result<(), GatewayError> {
        let _turn = self.turn(name).await;
        if let Some(opened) = self.opened().get_mut(name) {
            opened.used = Instant::now();
        }
        match self.control.is_fenced(name).await {
            None => {}
            Some(false) => return Ok(()),
            // Another gateway had it meanwhile. Nobody here uses it any more: it begins anew.
            Some(true) => self.close(name, true).await?,
        }
        let layout = self.layout(name).await?;
        let members = layout.members.iter().map(|member| self.target(member)).collect::<Result<Vec<_>, _>>()?;
        let client = self.control.gateway_client(name)?;
        let claims = members.iter().map(|member| self.number(member, Question::Claim(client.clone())));
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
        self.opened().insert(name.clone(), Opened { members, client, used: Instant::now() });
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
        let is_idle = {
            let mut open = self.opened();
            let Some(opened) = open.get_mut(name) else { return };
            if !matches!(connections, Ok(0)) {
                opened.used = Instant::now();
            }
            opened.used.elapsed() >= self.settings.idle
        };
        if !is_idle {
            return;
        }
        let _turn = self.turn(name).await;
        match self.close(name, false).await {
            Ok(()) | Err(Error::InUse(..)) => {}
            Err(error) => warn!(volume = %name, "an idle volume cannot be closed: {error}"),
        }
    }

    /// Closes what is open, when the process ends: everything is flushed by then.
    pub async fn leave(&self) {
        let opened = std::mem::take(&mut *self.opened());
        for (name, opened) in &opened {
            self.release(name, opened).await;
        }
    }

    async fn release(&self, name: &Name, opened: &Opened) {
        let releases = opened.members.iter().map(|member| self.ask(member, Question::Release(opened.client.clone())));
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
        for server in &self.settings.servers {
            let target = self.target(&server.of(name))?;
            match self.ask(&target, Question::Layout).await {
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
        let releases = matches!(question, Question::Release(_));
        let answer = timeout(ANSWER_TIMEOUT, ask(target, &question.to_string())).await;
        let answer = answer.unwrap_or_else(|_| Err(DialError::Timeout(Box::new(target.uri.clone()))));
        let answer = answer?;
        if answer.is_empty() && !releases {
            return Err(GatewayError::Stranger(target.uri.to_string()));
        }
        String::from_utf8(answer).map_err(|error| GatewayError::Answer(target.uri.to_string(), error.to_string()))
    }
}
