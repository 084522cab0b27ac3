//! The disk is told the last schedule and the clock, whether etcd answers or not.
//!
//! A disk that follows a schedule is told the next one before that begins, and changes to it then. A disk that follows
//! none would follow the first one at once. So it is told a schedule when that begins, and has slices of its own until
//! then: a server that was restarted between a change and its beginning does not know the schedule before.

use std::sync::Weak;
use std::time::Duration;

use engine::cluster::{Clock, Slot, Timetable};
use engine::control::Command;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::clock::{self, INTERVAL, Steps, TOLD_NS, ahead_ns};
use super::records::Schedule;
use super::{Cluster, Doing};
use crate::control::Follower;
use crate::disk_thread::DiskHandle;
use crate::quantity::Name;

/// A retry of the watch for steps of the clock.
const STEPS_PAUSE: Duration = Duration::from_secs(60);

/// What a disk was told.
#[derive(Debug, Default)]
pub struct Following {
    /// The thread that was told.
    thread: Weak<DiskHandle>,
    timetable: Option<Timetable>,
    ahead_ns: Option<i64>,
}

impl Cluster {
    /// Follows until the process ends.
    pub(super) async fn follow(&self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut begins = None;
        loop {
            let watched = Steps::watch();
            if let Err(error) = &watched {
                warn!("steps of the clock are noticed within {INTERVAL:?} only: {error}");
            }
            let retry = tokio::time::Instant::now() + STEPS_PAUSE;
            while watched.is_ok() || tokio::time::Instant::now() < retry {
                let step = async {
                    match &watched {
                        Ok(steps) => steps.next().await,
                        Err(_) => std::future::pending().await,
                    }
                };
                let beginning = async {
                    match begins {
                        Some(after) => tokio::time::sleep(after).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = beginning => {}
                    step = step => match step {
                        Ok(()) => info!("the system's clock was set"),
                        Err(_) => break,
                    }
                }
                begins = self.follow_now().await;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Tells the disk what has changed. Returns the time until a schedule begins that it has to be told then.
    pub(super) async fn follow_now(&self) -> Option<Duration> {
        let _turn = self.telling.lock().await;
        self.state().clock = clock::state(&self.settings);
        let disk = self.control.cluster_disk(self.settings.disk.as_ref()).ok()?;
        let follower = self.control.follower(&disk)?;
        let kept = self.state().kept.clone().filter(|kept| kept.disk == follower.uuid);
        if kept.is_some() {
            self.control.set_scheduled(disk.clone());
        }
        let timetable = kept.and_then(|kept| self.timetable(&kept.schedule, &follower));
        let ahead_ns = ahead_ns();
        let (tells_clock, tells_timetable, mut is_first) = {
            let mut state = self.state();
            if !state.following.thread.ptr_eq(&follower.thread) {
                state.following = Following { thread: follower.thread.clone(), ..Following::default() };
            }
            let has_moved = |told: i64| told.abs_diff(ahead_ns) > TOLD_NS;
            let Following { timetable: told, ahead_ns: told_ns, .. } = &state.following;
            (told_ns.is_none_or(has_moved), *told != timetable, told.is_none())
        };
        let until_it_begins = || until(timetable.as_ref()?.begins_ns, clock::now_ns());
        // The clock first: without it a timetable says nothing.
        let told = async {
            if tells_clock {
                self.tell_clock(&disk, ahead_ns).await?;
            }
            if !tells_timetable {
                return Ok(());
            }
            is_first |= self.end_same(&disk, timetable.as_ref()).await?;
            match is_first && until_it_begins().is_some() {
                true => Ok(()),
                false => self.tell_timetable(&disk, timetable.clone()).await,
            }
        };
        self.note(Doing::Following, told.await);
        until_it_begins().filter(|_| is_first)
    }

    async fn tell_clock(&self, disk: &Name, ahead_ns: i64) -> Result<(), String> {
        let told = self.control.command_disk(disk, Command::SetClock(Clock { ahead_ns })).await;
        told.map_err(|refusal| format!("disk '{disk}' cannot be told the clock: {refusal}"))?;
        self.state().following.ahead_ns = Some(ahead_ns);
        Ok(())
    }

    /// Another volume of the same schedule was opened or closed: disks take later versions only, so it follows none for
    /// a moment. Whether that was so.
    async fn end_same(&self, disk: &Name, timetable: Option<&Timetable>) -> Result<bool, String> {
        let told = self.state().following.timetable.as_ref().map(|told| told.version);
        let is_same = told.is_some() && told == timetable.map(|timetable| timetable.version);
        if is_same {
            self.tell_timetable(disk, None).await?;
        }
        Ok(is_same)
    }

    async fn tell_timetable(&self, disk: &Name, timetable: Option<Timetable>) -> Result<(), String> {
        let wrong = |refusal| format!("disk '{disk}' cannot follow the schedule: {refusal}");
        let command = Command::SetTimetable(timetable.clone().map(Box::new));
        self.control.command_disk(disk, command).await.map_err(wrong)?;
        self.state().following.timetable = timetable;
        Ok(())
    }

    /// This server's part of a schedule; `None` if it has no slot in it. A volume that is not open has none.
    fn timetable(&self, schedule: &Schedule, follower: &Follower) -> Option<Timetable> {
        let slots = part_of(&self.settings.name, schedule, follower);
        let Schedule { version, begins_ns, round_ns, .. } = *schedule;
        (!slots.is_empty()).then_some(Timetable { version, begins_ns, round_ns, slots })
    }

    /// Refuses a schedule that the disk could not follow.
    pub(super) fn check_timetable(&self, schedule: &Schedule) -> Result<(), String> {
        let disk = self.control.cluster_disk(self.settings.disk.as_ref())?;
        let follower = self.control.follower(&disk).ok_or_else(|| format!("disk '{disk}' is offline"))?;
        // It begins with its commit.
        let proposed = Schedule { begins_ns: clock::now_ns(), ..schedule.clone() };
        match self.timetable(&proposed, &follower) {
            Some(timetable) => {
                timetable.check().map_err(|why| format!("disk '{disk}' cannot follow the schedule: {why}"))
            }
            None => Ok(()),
        }
    }
}

/// The time until a schedule begins, if it has not begun.
fn until(begins_ns: u64, now_ns: u64) -> Option<Duration> {
    begins_ns.checked_sub(now_ns).filter(|&ns| ns > 0).map(Duration::from_nanos)
}

/// The slots of a server, in order.
fn part_of(me: &Name, schedule: &Schedule, follower: &Follower) -> Vec<Slot> {
    let here = schedule.slots.iter().filter(|slot| slot.servers.contains(me));
    let mut slots: Vec<Slot> = here
        .filter_map(|slot| {
            let tenant = *follower.tenants.get(&slot.volume)?;
            let is_striped = slot.servers.len() > 1;
            Some(Slot { tenant, start_ns: slot.start_ns, length_ns: slot.length_ns, is_striped })
        })
        .collect();
    slots.sort_by_key(|slot| slot.start_ns);
    slots
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use engine::ids::TenantId;
    use uuid::Uuid;

    use super::super::records;
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn a_schedule_that_has_begun_is_not_waited_for() {
        assert_eq!(until(1_500, 1_000), Some(Duration::from_nanos(500)));
        assert_eq!([until(1_000, 1_000), until(999, 1_000)], [None; 2]);
    }

    #[test]
    fn a_server_takes_its_own_slots_of_volumes_that_it_serves() {
        let slot = |volume: &str, start_ns, on: &[&str]| records::Slot {
            volume: name(volume),
            start_ns,
            length_ns: 10,
            servers: on.iter().map(|on| name(on)).collect(),
        };
        let slots =
            vec![slot("b", 50, &["s1"]), slot("a", 20, &["s1", "s2"]), slot("c", 70, &["s2"]), slot("d", 0, &["s1"])];
        let schedule = Schedule { version: 3, slots, ..Schedule::default() };
        let tenants = BTreeMap::from([(name("a"), TenantId(5)), (name("b"), TenantId(2)), (name("c"), TenantId(1))]);
        let follower = Follower { uuid: Uuid::nil(), tenants, thread: Weak::new() };
        let slots = part_of(&name("s1"), &schedule, &follower);
        let found: Vec<_> = slots.iter().map(|slot| (slot.tenant.0, slot.start_ns, slot.is_striped)).collect();
        assert_eq!(found, [(5, 20, true), (2, 50, false)]);
    }
}
