//! Answers to gateways (`layout.rs`).

use std::time::{Duration, Instant};

use engine::nbd::COUNTED_BITS;
use engine::units::Nanos;
use uuid::Uuid;

use super::layout::{Layout, Question, SlotOf, address_of};
use super::{Cluster, ClusterError};
use crate::control::Target;
use crate::quantity::Name;

/// Time between two epochs of a volume. For each epoch, etcd writes durably, and each server reads all keys again.
const EPOCH_INTERVAL: Duration = Duration::from_millis(250);
/// The most gateways that wait for an epoch of a volume.
const EPOCHS_WAITING: u32 = 16;

impl Cluster {
    /// Answers a question about a volume that the client may open; an error is for people.
    pub async fn answer(
        &self,
        name: &Name,
        target: &Target,
        may_write: bool,
        question: &str,
    ) -> Result<String, String> {
        let question = question.parse().map_err(|error: super::layout::NotQuestion| error.to_string())?;
        if !may_write && question != Question::Layout {
            return Err(format!("a gateway needs the right to write to volume '{name}'"));
        }
        match question {
            Question::Layout => {
                let layout = self.layout(name)?;
                Ok(serde_json::to_string(&layout).expect("it can be written as JSON"))
            }
            Question::Claim(client, volume) => {
                let refused = |refused: crate::control::Refused| refused.to_string();
                if target.part != Some(volume) {
                    return Err(format!("volume '{name}' is another one meanwhile"));
                }
                self.control.check_claim(target, &client).await.map_err(refused)?;
                let last = self.control.last_epoch(target).await.map_err(refused)?;
                Ok((last >> COUNTED_BITS).to_string())
            }
            Question::Epoch(above) => {
                let uuid = target.part.ok_or_else(|| format!("volume '{name}' is not one of the cluster"))?;
                let etcd = self.etcd().map_err(|error| error.to_string())?;
                let turn = self.epoch_turn(uuid).ok_or_else(|| format!("too many gateways open volume '{name}'"))?;
                tokio::time::sleep_until(turn.into()).await;
                let epoch = etcd.next_epoch(uuid, above).await;
                Ok(epoch.map_err(|error| ClusterError::Etcd(error.to_string()).to_string())?.to_string())
            }
            Question::Kept => {
                let kept = self.control.part_kept(name).await;
                Ok(serde_json::to_string(&kept).expect("it can be written as JSON"))
            }
            Question::Loss(loss_ns) => {
                let permille = self.state().disk.as_ref().map_or(900, |(_, facts)| facts.insulation_permille);
                // As for what the disk loses, a quarter of the permitted loss is a reserve.
                let lost_permille = u64::from((1000 - permille.min(999)) * 3).div_ceil(4);
                let slot_ns = self.slot_ns(name).ok_or_else(|| format!("volume '{name}' has no slot"))?;
                let loss_ns = loss_ns.min(slot_ns);
                self.report_need(name, loss_ns.saturating_mul(1000) / lost_permille);
                Ok("noted".into())
            }
            Question::Release(client, epoch) => {
                let upto = (epoch << COUNTED_BITS) | ((1 << COUNTED_BITS) - 1);
                self.control.release(target, &client, upto);
                Ok("noted".into())
            }
        }
    }

    /// The time at which a gateway may get the next epoch of a volume; `None` if too many gateways wait for one.
    fn epoch_turn(&self, volume: Uuid) -> Option<Instant> {
        let (now, mut state) = (Instant::now(), self.state());
        let turns = &mut state.epoch_turns;
        turns.retain(|_, next| *next > now);
        let turn = turns.get(&volume).copied().unwrap_or(now);
        if turn > now + EPOCH_INTERVAL * EPOCHS_WAITING {
            return None;
        }
        turns.insert(volume, turn + EPOCH_INTERVAL);
        Some(turn)
    }

    /// The length of a volume's slices, and so the most that it can lose of one; `None` if it has no slot.
    fn slot_ns(&self, volume: &Name) -> Option<Nanos> {
        let state = self.state();
        let slots = &state.kept.as_ref()?.schedule.slots;
        slots.iter().find(|slot| slot.volume == *volume).map(|slot| slot.length_ns)
    }

    fn layout(&self, name: &Name) -> Result<Layout, String> {
        let image = self.image().ok_or("etcd has not answered since this server started")?;
        let volume = image.volumes.get(name).filter(|volume| !volume.deleting);
        let volume = volume.ok_or_else(|| format!("volume '{name}' is not one of the cluster"))?;
        if !volume.lost.is_empty() {
            let lost = volume.lost.iter().map(|server| format!("'{server}'")).collect::<Vec<_>>().join(", ");
            return Err(format!("volume '{name}' is broken: its part was lost with server {lost}"));
        }
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
