//! Why a request that concerns the cluster was refused.

use super::place::{Instead, NoPlace};
use crate::control::Error;
use crate::quantity::{Name, Size};

/// Why a request was refused. Nothing was changed, unless the message says so.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("this server takes part in no cluster")]
    Off,
    #[error("etcd does not answer: {0}")]
    Etcd(String),
    #[error("etcd stopped answering while {of} was being {doing}: {why}")]
    Lost { of: String, doing: &'static str, why: String },
    #[error("this server has not joined cluster '{cluster}': {why}")]
    NotJoined { cluster: Name, why: String },
    #[error("server '{0}' does not run, and each server of the schedule has to agree to a change")]
    Away(Name),
    #[error(
        "server '{away}' does not run, so the slots of the schedule cannot move, and volume '{volume}' does not fit \
         beside them: {why}"
    )]
    NoTime { volume: Name, away: Name, why: String },
    #[error("another change of the cluster is being made, of volume '{0}'")]
    Changing(Name),
    #[error("the cluster has a volume '{0}' already")]
    Exists(Name),
    #[error("volume '{0}' is being deleted, and server {1} has not deleted its part yet")]
    Deleting(Name, String),
    #[error("cluster '{0}' has no schedule yet")]
    NoSchedule(Name),
    #[error("the cluster has no server '{0}'")]
    NoServer(Name),
    #[error("server '{0}' runs, and only a server that does not is removed")]
    Runs(Name),
    #[error("server '{server}' has parts of volumes: {}", list(.volumes))]
    HasParts { server: Name, volumes: Vec<Name> },
    #[error("server '{server}' has parts of {parts} volumes, and at most {most} are given up at a time")]
    ManyParts { server: Name, parts: usize, most: usize },
    #[error("the share of volume '{0}' is changed on all its servers, and other settings on this one")]
    ShareAlone(Name),
    #[error("the share of volume '{0}' is its length in the cluster's schedule, which no planner changes")]
    ShareAuto(Name),
    #[error("this server was removed from the cluster, and its part of volume '{0}' with it")]
    LostPart(Name),
    #[error("server '{server}' cannot take a part of volume '{volume}': {why}")]
    Unsuitable { server: Name, volume: Name, why: String },
    #[error("volume '{volume}' needs {asked} servers, and {usable} can take a part{why}")]
    TooFew { volume: Name, asked: usize, usable: usize, why: String },
    #[error("volume '{volume}' does not fit: {why}{}", fits(.instead))]
    Full { volume: Name, why: String, instead: Instead },
    #[error("{0}")]
    Invalid(String),
    #[error("{of} was not {doing}: {why}")]
    Undone { of: String, doing: &'static str, why: String },
    #[error("a stripe is a power of two from 4KiB to 16MiB, not {0}")]
    Stripe(Size),
    #[error(transparent)]
    Control(#[from] Error),
}

fn list(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

fn fits(Instead { share, servers, r_cluster }: &Instead) -> String {
    let share = share.as_ref().map(|share| format!("a share of {share}"));
    let servers = servers.map(|number| format!("{number} server{}", if number == 1 { "" } else { "s" }));
    let relaxed = r_cluster.map(|r| format!("R of the cluster {r:.2} (--least {r:.2})"));
    let all: Vec<String> = [share, servers, relaxed].into_iter().flatten().collect();
    match all.is_empty() {
        true => "; nothing similar would fit".into(),
        false => format!("; what would fit: {}", all.join(", or ")),
    }
}

impl ClusterError {
    /// A volume for which there is no place.
    pub fn no_place(volume: &Name, why: NoPlace) -> ClusterError {
        match why {
            NoPlace::Full(why, instead) => ClusterError::Full { volume: volume.clone(), why, instead },
            NoPlace::Beside { away, why } => ClusterError::NoTime { volume: volume.clone(), away, why },
            NoPlace::Share(why) => ClusterError::Invalid(why.to_string()),
        }
    }

    /// The corresponding HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            ClusterError::Off | ClusterError::Invalid(_) | ClusterError::Stripe(_) => 400,
            ClusterError::ShareAlone(_) | ClusterError::ShareAuto(_) => 400,
            ClusterError::NoServer(_) | ClusterError::NoSchedule(_) => 404,
            ClusterError::Etcd(_) => 503,
            ClusterError::Lost { .. } => 504,
            ClusterError::Control(error) => error.status(),
            ClusterError::NotJoined { .. }
            | ClusterError::Away(_)
            | ClusterError::NoTime { .. }
            | ClusterError::Changing(_)
            | ClusterError::Exists(_)
            | ClusterError::Deleting(..)
            | ClusterError::Runs(_)
            | ClusterError::HasParts { .. }
            | ClusterError::ManyParts { .. }
            | ClusterError::LostPart(_)
            | ClusterError::Unsuitable { .. }
            | ClusterError::TooFew { .. }
            | ClusterError::Full { .. }
            | ClusterError::Undone { .. } => 409,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            ClusterError::Off => "start it with --etcd, --cluster, --name and --advertise".into(),
            ClusterError::Etcd(_) => {
                "volumes are served and the last schedule is followed meanwhile; changes have to wait: `aerogel \
                 cluster status` says when etcd answers"
                    .into()
            }
            ClusterError::Lost { .. } => {
                "the servers finish or undo it when etcd answers: `aerogel cluster status` shows the volumes".into()
            }
            ClusterError::Away(server) => format!(
                "start it; a volume that is to be deleted without it: add --force (`aerogel cluster members` shows \
                 what is on '{server}'); if it is lost for good: `aerogel cluster remove {server} --lost --yes`"
            ),
            ClusterError::NoTime { away, .. } => format!(
                "start '{away}', or ask for another share or fewer servers; `aerogel cluster schedule` shows what is \
                 free; if it is lost for good: `aerogel cluster remove {away} --lost --yes`"
            ),
            ClusterError::NoSchedule(_) => "`aerogel volume create NAME SIZE --servers N --share S` makes one".into(),
            ClusterError::Changing(_) => "wait for it, and try again".into(),
            ClusterError::Exists(_) => "choose another name; `aerogel cluster schedule` shows those in use".into(),
            ClusterError::Deleting(..) => "start that server, or choose another name".into(),
            ClusterError::NoServer(_) | ClusterError::Unsuitable { .. } | ClusterError::TooFew { .. } => {
                "`aerogel cluster status` shows all servers".into()
            }
            ClusterError::Runs(server) => format!(
                "`aerogel cluster drain {server}` gives it no new volumes; stop it when its volumes are deleted"
            ),
            ClusterError::HasParts { server, .. } => format!(
                "start it; if it is lost for good with its disk, `aerogel cluster remove {server} --lost --yes` gives \
                 its parts up"
            ),
            ClusterError::ManyParts { server, .. } => {
                format!("delete some of them with --force; `aerogel cluster members` lists the volumes of '{server}'")
            }
            ClusterError::ShareAuto(_) => "name a share, such as --share 1/4".into(),
            ClusterError::ShareAlone(_) => "change --share alone, then the rest".into(),
            ClusterError::LostPart(name) => {
                format!("`aerogel volume delete {name} --yes --force` deletes the part; without parts it joins anew")
            }
            ClusterError::Control(error) => return error.hint(),
            ClusterError::NotJoined { .. }
            | ClusterError::Full { .. }
            | ClusterError::Invalid(_)
            | ClusterError::Undone { .. }
            | ClusterError::Stripe(_) => return None,
        })
    }
}
