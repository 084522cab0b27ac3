//! A volume gets another share, or becomes larger: a change like its creation, with a search for a place in the
//! schedule. Its parts follow when it is committed (`decide.rs`).

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::change::{PAUSE, down, member_size, on, other_change, waits_for};
use super::etcd::Etcd;
use super::place::{Candidate, Instead, Known, LEAST_DEFAULT, NoPlace, Wish};
use super::records::{Image, Schedule, Volume, What};
use super::{Cluster, ClusterError};
use crate::control::Error;
use crate::control::view::Done;
use crate::quantity::{Name, ShareText, Size, duration};
use crate::store::spec::check_size;

/// What is asked for.
enum Wanted {
    Share(ShareText),
    Size(u64),
}

impl Cluster {
    /// Gives a volume another share on all its servers, if there is a place for it.
    pub async fn set_share(&self, name: &Name, share: ShareText) -> Result<Done, ClusterError> {
        let (schedule, _) = self.update(name, Wanted::Share(share.clone())).await?;
        let slot = schedule.slots.iter().find(|slot| slot.volume == *name).expect("it has a slot");
        let message = format!(
            "volume '{name}' has a share of {share} on {}; its slice is {} of each round of {}, R of the cluster is \
             {:.3}",
            on(&slot.servers),
            duration(slot.length_ns as f64 / 1e9),
            duration(schedule.round_ns as f64 / 1e9),
            schedule.r_cluster
        );
        Ok(Done { message, volume: self.control.show_volume(name).await.ok(), disk: None, tenant: None })
    }

    /// Makes a volume larger. No client may have it open.
    pub async fn grow(&self, name: &Name, size: Option<Size>) -> Result<Done, ClusterError> {
        let Some(Size(size)) = size else {
            return Err(ClusterError::Invalid(format!("volume '{name}' of the cluster: its new size is missing")));
        };
        check_size(size).map_err(|why| ClusterError::Invalid(why.to_string()))?;
        let (_, has_grown) = self.update(name, Wanted::Size(size)).await?;
        let message = match has_grown {
            true => format!("volume '{name}' now has {}; clients see the new size when they open it", Size(size)),
            false => {
                format!("volume '{name}' will have {}; not all servers have made their parts larger yet", Size(size))
            }
        };
        Ok(Done { message, volume: self.control.show_volume(name).await.ok(), disk: None, tenant: None })
    }

    /// Makes the change. Returns the schedule with it, and whether all parts are as large as they should be.
    async fn update(&self, name: &Name, wanted: Wanted) -> Result<(Schedule, bool), ClusterError> {
        let until = Instant::now() + self.settings.change_timeout;
        loop {
            let etcd: Etcd = self.joined()?;
            let image = etcd.image().await.map_err(down)?;
            match other_change(&image) {
                Some(other) if Instant::now() > until => return Err(ClusterError::Changing(other)),
                Some(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                None => {}
            }
            let volume = image.volumes.get(name).ok_or_else(|| {
                ClusterError::Invalid(format!("the cluster does not know volume '{name}', of which a part is here"))
            })?;
            if volume.deleting {
                return Err(ClusterError::Deleting(name.clone(), waits_for(&image, volume)));
            }
            let (volume, schedule) = match &wanted {
                Wanted::Share(share) => self.reshared(&image, (name, volume), share).await?,
                Wanted::Size(size) => grown(&image, (name, volume), *size)?,
            };
            let version = image.next_version();
            let schedule = Schedule { version, begins_ns: 0, retimed_ns: image.schedule().retimed_ns, ..schedule };
            let named = volume.holders().chain(schedule.slots.iter().flat_map(|slot| &slot.servers));
            let servers: BTreeSet<Name> = named.cloned().collect();
            if let Some(away) = servers.iter().find(|server| !image.alive.contains_key(*server)) {
                return Err(ClusterError::Away(away.clone()));
            }
            let what = What::Update { volume: volume.clone() };
            let proposed = self.propose(&etcd, &image, (name, what), schedule, servers).await?;
            let Some((change, revision)) = proposed else { continue };
            self.completed(&change, revision, "changed").await?;
            let is_served = self.served(name, &volume, version).await;
            return Ok((change.schedule, is_served));
        }
    }

    /// A volume with another share, and a schedule with it on the same servers.
    async fn reshared(
        &self,
        image: &Image,
        (name, volume): (&Name, &Volume),
        share: &ShareText,
    ) -> Result<(Volume, Schedule), ClusterError> {
        let known = Known::new(image).map_err(|why| ClusterError::Invalid(why.to_string()))?.leaving(name);
        let candidate = |server: &Name| Candidate { name: server.clone(), free_bytes: 0 };
        let candidates: Vec<Candidate> = volume.holders().map(candidate).collect();
        let wish = Wish {
            volume: name.clone(),
            servers: candidates.len(),
            share: share.clone(),
            // It need not be more than there is.
            least: LEAST_DEFAULT.min(image.schedule().r_cluster),
            is_given: true,
        };
        let placed = tokio::task::spawn_blocking(move || known.place(&candidates, &wish)).await.map_err(Error::Task)?;
        let placed = placed.map_err(|why| match why {
            // A lower R cannot be asked for here.
            NoPlace::Full(why, instead) => NoPlace::Full(why, Instead { r_cluster: None, ..instead }),
            other => other,
        });
        let schedule = placed.map_err(|why| ClusterError::no_place(name, why))?.schedule;
        Ok((Volume { share: share.clone(), ..volume.clone() }, schedule))
    }
}

/// A larger volume. The schedule stays.
fn grown(image: &Image, (name, volume): (&Name, &Volume), size: u64) -> Result<(Volume, Schedule), ClusterError> {
    let wrong = |why: String| Err(ClusterError::Invalid(format!("volume '{name}' of the cluster {why}")));
    if size < volume.size {
        return wrong(format!("has {} and cannot become smaller", Size(volume.size)));
    }
    if !volume.lost.is_empty() {
        return wrong("is broken, since a part of it is lost: it cannot become larger".into());
    }
    let member_size = member_size(size, volume.servers.len() as u64, volume.stripe);
    let needed = member_size - volume.member_size;
    let is_short = |server: &&Name| image.alive.get(*server).is_some_and(|alive| alive.free_bytes < needed);
    if let Some(server) = volume.holders().find(is_short) {
        let free = image.alive.get(server).map_or(0, |alive| alive.free_bytes);
        let (free, needed) = (Size(free).rounded(), Size(needed).rounded());
        return wrong(format!("needs {needed} more on each server, and server '{server}' has {free} of free space"));
    }
    Ok((Volume { size, member_size, ..volume.clone() }, image.schedule()))
}
