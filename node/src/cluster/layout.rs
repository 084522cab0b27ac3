//! What a gateway asks a server of a cluster, over NBD: questions about an export (`engine::nbd::wire::QUESTION`), so
//! that certificates and access lists hold for them as for the export itself.
//!
//! ```text
//!   layout                  where the volume is: a Layout, as JSON
//!   claim=CLIENT/UUID       whether the server would admit this gateway to this volume; the last epoch that it knows
//!   epoch=ABOVE             a new epoch of the volume, from etcd, above this one
//!   kept                    what this server's part of the volume keeps of its share: a PartKept, as JSON
//!   loss=NS                 what the volume loses of a slot, as the gateway measures it
//!   release=CLIENT/EPOCH    the gateway uses nothing of the volume any more that it had up to this epoch
//! ```
//!
//! All but the first need the right to write.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::quantity::Name;

/// A question of a gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Where is the volume?
    Layout,
    /// Would this client be admitted?
    Claim(String, Uuid),
    /// A new epoch, above this one.
    Epoch(u64),
    /// What does the part keep of its share?
    Kept,
    /// The volume loses so much of a slot, ns.
    Loss(u64),
    /// This client has left, with all sessions of epochs up to this one, as issued.
    Release(String, u64),
}

/// A text is no question.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this server does not know the question '{0}': is the gateway of a later release?")]
pub struct NotQuestion(String);

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Layout => f.write_str("layout"),
            Question::Kept => f.write_str("kept"),
            Question::Claim(client, volume) => write!(f, "claim={client}/{volume}"),
            Question::Epoch(above) => write!(f, "epoch={above}"),
            Question::Loss(loss_ns) => write!(f, "loss={loss_ns}"),
            Question::Release(client, epoch) => write!(f, "release={client}/{epoch}"),
        }
    }
}

impl FromStr for Question {
    type Err = NotQuestion;

    fn from_str(text: &str) -> Result<Question, NotQuestion> {
        let wrong = || NotQuestion(text.chars().filter(|letter| !letter.is_control()).take(64).collect());
        match text.split_once('=') {
            None if text == "layout" => Ok(Question::Layout),
            None if text == "kept" => Ok(Question::Kept),
            Some(("claim", of)) => {
                let (client, volume) = of.split_once('/').ok_or_else(wrong)?;
                Ok(Question::Claim(client.into(), volume.parse().map_err(|_| wrong())?))
            }
            Some(("epoch", above)) => above.parse().map(Question::Epoch).map_err(|_| wrong()),
            Some(("loss", loss_ns)) => loss_ns.parse().map(Question::Loss).map_err(|_| wrong()),
            Some(("release", of)) => {
                let (client, epoch) = of.split_once('/').ok_or_else(wrong)?;
                Ok(Question::Release(client.into(), epoch.parse().map_err(|_| wrong())?))
            }
            _ => Err(wrong()),
        }
    }
}

/// Where a volume of a cluster is, and its place in the schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// The name of the cluster.
    pub cluster: Name,
    /// The volume.
    pub uuid: Uuid,
    /// Bytes.
    pub size: u64,
    /// Bytes that follow each other on one server.
    pub stripe: u64,
    /// The addresses of its parts, in the order of the stripes.
    pub members: Vec<String>,
    /// Its place in the schedule, if it has one.
    pub slot: Option<SlotOf>,
}

/// A place in a schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SlotOf {
    /// The version of the schedule.
    pub version: u64,
    /// When its first round begins, nanoseconds since the Unix epoch.
    pub begins_ns: u64,
    /// The length of the round.
    pub round_ns: u64,
    /// From the beginning of the round.
    pub start_ns: u64,
    /// How long the slice is.
    pub length_ns: u64,
    /// R of the cluster.
    pub r_cluster: f64,
}

/// What a part keeps of its share, where that is known: against a disk of its own with the cache that it has, and with
/// the whole cache.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartKept {
    /// DISK in `aerogel top`.
    pub own_cache: Option<f64>,
    /// KEEPS.
    pub whole_cache: Option<f64>,
}

/// The address of a volume at a server that is reached at this one.
pub fn address_of(advertised: &str, name: &Name) -> String {
    let (place, query) = advertised.split_at(advertised.find('?').unwrap_or(advertised.len()));
    let (scheme, host) = place.split_once("://").unwrap_or(("nbd", place));
    format!("{scheme}://{}/{name}{query}", host.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_come_back() {
        let questions = [Question::Claim("g".into(), Uuid::from_u128(7)), Question::Release("g.v".into(), 3)];
        let more = [Question::Layout, Question::Kept, Question::Epoch(7), Question::Loss(1 << 40)];
        for question in questions.into_iter().chain(more) {
            assert_eq!(question.to_string().parse(), Ok(question));
        }
        for wrong in ["", "layout=", "kept=1", "epoch=x", "epoch=-1", "future", "claim"] {
            assert!(wrong.parse::<Question>().is_err(), "{wrong}");
        }
        assert_eq!("\u{7}x".parse::<Question>(), Err(NotQuestion("x".into())));
    }

    #[test]
    fn a_volume_has_an_address_at_each_server() {
        let at = |server: &str| address_of(server, &"big".parse().unwrap());
        assert_eq!(at("nbds://h:10810"), "nbds://h:10810/big");
        assert_eq!(at("nbd://h/"), "nbd://h/big");
        assert_eq!(at("nbd+unix://?socket=/run/s1.sock"), "nbd+unix:///big?socket=/run/s1.sock");
        assert_eq!(at("nbd+unix:///?socket=/run/s1.sock"), "nbd+unix:///big?socket=/run/s1.sock");
    }
}
