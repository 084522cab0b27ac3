//! A server in a cluster: the control side. What a cluster is, it keeps in etcd (`records.rs`); the data path knows
//! nothing of it but a timetable and a clock.
//!
//! ```text
//!   etcd ══ everything below /aerogel/CLUSTER/ ══► Image (records.rs)
//!              ▲                                     │ what to do next (decide.rs)
//!              │ transactions                        ├──► etcd: members, leases, commits      (session.rs)
//!              │                                     ├──► parts of volumes on the disk        (local.rs)
//!              ├──────────── change.rs ◄── API       └──► the schedule (kept.rs) ──► the disk (follow.rs)
//!              └──────────── retime.rs ◄── what slices lose on each server (needs.rs) ◄───────────┘
//! ```
//!
//! Each server looks at everything again whenever anything changes, and does what is missing: there is no coordinator,
//! and no state between two looks but for how long another round has been wanted (retime.rs). When etcd does not
//! answer, the last image is shown, the last schedule followed, and changes are refused.

mod change;
mod clock;
pub mod config;
mod decide;
mod error;
mod etcd;
mod failpoint;
mod follow;
mod gateways;
mod kept;
pub mod layout;
mod local;
mod needs;
mod place;
mod records;
mod remove;
mod retime;
mod session;
mod show;
mod update;
pub mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub use self::clock::ahead_ns;
pub use self::config::{Options, Settings};
pub use self::error::ClusterError;
use self::etcd::{Etcd, EtcdError};
use self::follow::Following;
use self::kept::Kept;
use self::needs::Needs;
use self::records::{ClockState, Image};
pub use self::show::ClusterStanding;
use crate::control::{Control, DiskFacts};
use crate::quantity::Name;

/// A server's place in a cluster.
pub struct Cluster {
    settings: Settings,
    control: Arc<Control>,
    state: Mutex<State>,
    /// What etcd had last; `None` before it answered for the first time.
    image: watch::Sender<Option<Arc<Image>>>,
    /// Notified when something was done that etcd has to know.
    wake: Notify,
    /// Held while the disk is told something, so that it is told in order.
    telling: tokio::sync::Mutex<()>,
}

struct State {
    /// The connection, or why there is none, and since when.
    link: Result<Etcd, Down>,
    /// The lease under which this server is known to run.
    lease: Option<i64>,
    /// Why this server has not joined, if so.
    standing: Result<(), String>,
    /// The disk that takes part, and what is known of it.
    disk: Option<(Name, DiskFacts)>,
    /// The last schedule.
    kept: Option<Kept>,
    /// What the disk was told.
    following: Following,
    /// The clock.
    clock: ClockState,
    /// What the slices on the disk are measured to need.
    needs: Needs,
    /// For each volume that has just had an epoch: the earliest time of the next one.
    epoch_turns: BTreeMap<Uuid, Instant>,
    /// Whether parts are being created or deleted.
    is_working: bool,
    /// What fails on this server, by what it does.
    trouble: BTreeMap<Doing, String>,
}

/// What a server does for the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Doing {
    /// It keeps schedules.
    Keeping,
    /// Its disk follows them.
    Following,
    /// It creates and deletes parts of volumes.
    Parts,
}

/// Why etcd is not used.
#[derive(Clone, Debug)]
struct Down {
    why: String,
    since: SystemTime,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads the last schedule. Nothing is done before [`Cluster::run`].
    pub fn new(control: Arc<Control>, settings: Settings) -> anyhow::Result<Arc<Cluster>> {
        let kept = Kept::read(&control.config.data)?.filter(|kept| {
            let is_ours = kept.cluster == settings.cluster;
            if !is_ours {
                tracing::warn!(cluster = %kept.cluster, "the last schedule is that of another cluster: not followed");
            }
            is_ours
        });
        let state = State {
            link: Err(Down { why: "it was not asked yet".into(), since: SystemTime::now() }),
            lease: None,
            standing: Err("it is starting".into()),
            disk: None,
            kept,
            following: Following::default(),
            clock: clock::state(&settings),
            needs: Needs::default(),
            epoch_turns: BTreeMap::new(),
            is_working: false,
            trouble: BTreeMap::new(),
        };
        Ok(Arc::new(Cluster {
            settings,
            control,
            state: Mutex::new(state),
            image: watch::Sender::new(None),
            wake: Notify::new(),
            telling: tokio::sync::Mutex::new(()),
        }))
    }

    /// Takes part until the process ends.
    pub async fn run(self: Arc<Cluster>) {
        let (following, measuring) = (self.clone(), self.clone());
        tokio::spawn(async move { following.follow().await });
        tokio::spawn(async move { measuring.measure().await });
        loop {
            let Err(error) = self.session().await;
            self.lose_touch(&error);
            tokio::time::sleep(session::PAUSE).await;
        }
    }

    /// Says that this server ends, so that the others need not wait for its lease to end.
    pub async fn leave(&self) {
        let (link, lease) = {
            let state = self.state();
            (state.link.clone(), state.lease)
        };
        if let (Ok(etcd), Some(lease)) = (link, lease)
            && let Err(error) = etcd.end_lease(lease).await
        {
            tracing::warn!("etcd cannot be told that this server ends: {error}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding it")
    }

    fn lose_touch(&self, error: &EtcdError) {
        let mut state = self.state();
        let since = match &state.link {
            Err(down) => down.since,
            Ok(_) => {
                tracing::warn!("etcd does not answer: {error}; the last schedule is followed, changes are refused");
                SystemTime::now()
            }
        };
        state.link = Err(Down { why: error.to_string(), since });
    }

    /// Notes what fails on this server, or that it does not any more.
    fn note(&self, doing: Doing, result: Result<(), String>) {
        let trouble = &mut self.state().trouble;
        match result {
            Ok(()) => drop(trouble.remove(&doing)),
            Err(why) if trouble.get(&doing) == Some(&why) => {}
            Err(why) => {
                tracing::warn!("{why}");
                trouble.insert(doing, why);
            }
        }
    }

    /// The connection to etcd, for a change.
    fn etcd(&self) -> Result<Etcd, ClusterError> {
        let state = self.state();
        state.link.clone().map_err(|down| ClusterError::Etcd(down.why))
    }

    /// The last image.
    fn image(&self) -> Option<Arc<Image>> {
        self.image.borrow().clone()
    }

    /// The version of the schedule that this server has; 0 for none.
    fn version(&self) -> u64 {
        self.state().kept.as_ref().map_or(0, |kept| kept.schedule.version)
    }
}
