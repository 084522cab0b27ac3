//! Answers to gateways (`layout.rs`).

use engine::nbd::Claim;

use super::layout::{Layout, Question, SlotOf, address_of};
use super::{Cluster, ClusterError};
use crate::control::{EPOCH_BITS, Target};
use crate::quantity::Name;

impl Cluster {
    /// Answers a question about a volume that the client may open; an error is for people.
    pub async fn answer(&self, name: &Name, target: &Target, question: &str) -> Result<String, String> {
        match question.parse().map_err(|error: super::layout::NotQuestion| error.to_string())? {
            Question::Layout => {
                let layout = self.layout(name)?;
                Ok(serde_json::to_string(&layout).expect("it can be written as JSON"))
            }
            Question::Claim(client) => {
                let refused = |refused: crate::control::Refused| refused.to_string();
                let claim = format!("aerogel:session={client}/{}/lease", u64::MAX);
                let claim = Claim::parse(claim.as_bytes()).ok_or("no gateway has such a name")?;
                self.control.check_claim(target, &claim).await.map_err(refused)?;
                let last = self.control.last_epoch(target).await.map_err(refused)?;
                Ok((last >> EPOCH_BITS).to_string())
            }
            Question::Epoch(above) => {
                let uuid = target.part.ok_or_else(|| format!("volume '{name}' is not one of the cluster"))?;
                let etcd = self.etcd().map_err(|error| error.to_string())?;
                let epoch = etcd.next_epoch(uuid, above).await;
                Ok(epoch.map_err(|error| ClusterError::Etcd(error.to_string()).to_string())?.to_string())
            }
            Question::Release(client) => {
                self.control.release(target, &client);
                Ok(String::new())
            }
        }
    }

    fn layout(&self, name: &Name) -> Result<Layout, String> {
        let image = self.image().ok_or("etcd has not answered since this server started")?;
        let volume = image.volumes.get(name).filter(|volume| !volume.deleting);
        let volume = volume.ok_or_else(|| format!("volume '{name}' is not one of the cluster"))?;
        let address = |server: &Name| {
            let member = image.members.get(server).ok_or_else(|| format!("server '{server}' is unknown"))?;
            Ok(address_of(&member.advertise, name))
        };
        let schedule = image.schedule();
        let slot = schedule.slots.iter().find(|slot| slot.volume == *name).map(|slot| SlotOf {
            version: schedule.version,
            begins_ns: schedule.begins_ns,
            round_ns: schedule.round_ns,
            start_ns: slot.start_ns,
            length_ns: slot.length_ns,
            r_cluster: schedule.r_cluster,
        });
        Ok(Layout {
            cluster: self.settings.cluster.clone(),
            uuid: volume.uuid,
            size: volume.size,
            stripe: volume.stripe,
            members: volume.servers.iter().map(address).collect::<Result<_, String>>()?,
            slot,
        })
    }
}
