//! The round follows what slices lose: a change of the schedule that leaves every slot its part of the round. Any
//! server may propose it; a transaction of etcd lets one of them do so.
//!
//! ```text
//!   needs ──► round wanted ── longer by a fifth, for 10 s ──────────┐
//!             (round_for)  ── shorter by a quarter, for 5 minutes ──┴──► proposed, acknowledged, committed, announced
//! ```
//!
//! Up soon, since tenants keep less than R meanwhile. Down late, since each change costs up to two rounds, and a load
//! that pauses comes back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use engine::units::Nanos;
use tracing::info;

use super::etcd::{Etcd, EtcdError};
use super::place::round_for;
use super::records::{Image, Schedule, Slot, What};
use super::{Cluster, clock};
use crate::quantity::Name;

/// A longer round is proposed if it is to be longer by more than this factor. As it has a reserve, slices are then
/// shorter than needed by a tenth. The factor for a shorter one is that of [`engine::cluster::round_ns`].
const LONGER: f64 = 1.2;
/// A longer round has to be wanted for so long.
const LONGER_AFTER: Duration = Duration::from_secs(10);
/// A shorter one for so long.
const SHORTER_AFTER: Duration = Duration::from_secs(300);
/// Between two such changes, committed or not.
const PAUSE: Duration = Duration::from_secs(60);

/// Which change of the round is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Longer,
    Shorter,
}

impl Wanted {
    fn after(self) -> Duration {
        match self {
            Wanted::Longer => LONGER_AFTER,
            Wanted::Shorter => SHORTER_AFTER,
        }
    }
}

/// What a server knows of the round that is wanted, during a session with etcd.
#[derive(Debug, Default)]
pub struct Retiming {
    /// What is wanted, and since when.
    wanted: Option<(Wanted, Instant)>,
    /// When this server last saw such a change, or one that was undone.
    seen: Option<Instant>,
}

impl Retiming {
    /// Whether what is wanted has been wanted for long enough.
    fn is_due(&mut self, now: Instant, image: &Image, wanted: Option<Wanted>) -> bool {
        let is_open = image.change.as_ref().is_some_and(|change| matches!(change.what, What::Retime));
        if is_open || !image.outcomes.is_empty() {
            self.seen = Some(now);
        }
        let Some(wanted) = wanted else {
            self.wanted = None;
            return false;
        };
        let (_, since) = *self.wanted.insert(match self.wanted {
            Some(before) if before.0 == wanted => before,
            _ => (wanted, now),
        });
        let rests = |seen: Instant| now.duration_since(seen) < PAUSE;
        now.duration_since(since) >= wanted.after() && !self.seen.is_some_and(rests)
    }
}

/// The schedule with the round that the needs ask for; `None` if they ask for no other one, or it cannot change now:
/// each server with a slot has to run and to have this schedule, and no server that runs may be of a release that does
/// not know this change.
fn wanted(image: &Image) -> Option<(Wanted, Schedule)> {
    let (schedule, _) = image.schedule.as_ref().filter(|(schedule, _)| !schedule.slots.is_empty())?;
    let present_ns = schedule.round_ns;
    let has_it = |server: &Name| image.alive.get(server).is_some_and(|alive| alive.version == schedule.version);
    let is_ready = image.change.is_none()
        && schedule.slots.iter().flat_map(|slot| &slot.servers).all(has_it)
        && image.alive.values().all(|alive| alive.needs.is_some());
    if !is_ready {
        return None;
    }
    let part = |slot: &Slot| slot.length_ns as f64 / present_ns as f64;
    let parts = schedule.slots.iter().map(|slot| (&slot.volume, part(slot), &slot.servers[..]));
    let (round_ns, need) = round_for(Some(present_ns), parts, &image.alive);
    let wanted = match round_ns {
        longer if longer as f64 > present_ns as f64 * LONGER => Wanted::Longer,
        shorter if shorter < present_ns => Wanted::Shorter,
        _ => return None,
    };
    let slots = schedule.slots.iter().map(|slot| scaled(slot, present_ns, round_ns)).collect();
    let version = image.next_version();
    Some((wanted, Schedule { version, begins_ns: 0, round_ns, slots, need, ..schedule.clone() }))
}

/// A slot in a round of another length. Rounding down keeps slots apart.
fn scaled(slot: &Slot, before_ns: Nanos, after_ns: Nanos) -> Slot {
    let at = |ns: Nanos| (u128::from(ns) * u128::from(after_ns) / u128::from(before_ns)) as Nanos;
    let start_ns = at(slot.start_ns);
    Slot { start_ns, length_ns: at(slot.start_ns + slot.length_ns) - start_ns, ..slot.clone() }
}

impl Cluster {
    /// Proposes another round if it is due. Whether it is committed, the next looks show.
    pub(super) async fn retime(&self, etcd: &Etcd, image: &Image, retiming: &mut Retiming) -> Result<(), EtcdError> {
        let has_joined = self.state().standing.is_ok();
        let wanted = wanted(image).filter(|_| has_joined);
        if !retiming.is_due(Instant::now(), image, wanted.as_ref().map(|(wanted, _)| *wanted)) {
            return Ok(());
        }
        let Some((_, schedule)) = wanted else { return Ok(()) };
        let Some(need) = schedule.need.clone() else { return Ok(()) };
        // The last one that was committed may be another server's, before this session.
        let now_ns = clock::now_ns();
        if now_ns.abs_diff(schedule.retimed_ns) < PAUSE.as_nanos() as u64 {
            return Ok(());
        }
        let servers: BTreeSet<Name> = schedule.slots.iter().flat_map(|slot| slot.servers.iter().cloned()).collect();
        let round = Duration::from_nanos(schedule.round_ns);
        let schedule = Schedule { retimed_ns: now_ns, ..schedule };
        let proposed = self.propose(etcd, image, (&need.volume, What::Retime), schedule, servers).await?;
        if proposed.is_some() {
            let slice = Duration::from_nanos(need.slice_ns);
            info!(?round, volume = %need.volume, server = %need.server, ?slice, "another round is proposed");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::records::{Ack, Alive, Change, ClockState, Member};
    use super::*;

    const MS: Nanos = 1_000_000;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    /// Two servers, and a round of 400 ms: `a` has half of it on both, `b` a quarter on the second. A switch needs a
    /// slice of 80 ms, for which this round is neither too short nor too long.
    fn image() -> Image {
        let mut image = Image::default();
        for at in 1..=2 {
            let alive = Alive {
                disk: name("hdd"),
                size_bytes: 1 << 40,
                free_bytes: 1 << 40,
                insulation_permille: 900,
                switch_ns: 8 * MS,
                round_max_ns: 2000 * MS,
                clock: ClockState { synchronised: true, trusted: true, error_ns: 0, good: true },
                version: 3,
                missing: Vec::new(),
                needs: Some([].into()),
            };
            let member = Member { uuid: Uuid::from_u128(at), advertise: "nbd://h".into() };
            image.members.insert(name(&format!("s{at}")), member);
            image.alive.insert(name(&format!("s{at}")), alive);
        }
        let slot = |volume, start_ns, length_ns, on: &[&str]| Slot {
            volume: name(volume),
            start_ns: start_ns * MS,
            length_ns: length_ns * MS,
            servers: on.iter().map(|on| name(on)).collect(),
        };
        let slots = vec![slot("a", 0, 200, &["s1", "s2"]), slot("b", 200, 100, &["s2"])];
        let schedule = Schedule { version: 3, begins_ns: 77, round_ns: 400 * MS, slots, ..Schedule::default() };
        image.schedule = Some((schedule, 9));
        image
    }

    fn needs(image: &mut Image, server: &str, volume: &str, ms: Nanos) {
        let alive = image.alive.get_mut(&name(server)).expect("it runs");
        alive.needs.as_mut().expect("it measures").insert(name(volume), ms * MS);
    }

    fn change(what: What) -> Option<Change> {
        let (volume, schedule, servers) = (name("a"), Schedule::default(), BTreeSet::new());
        Some(Change { id: Uuid::from_u128(1), lease: 1, volume, what, schedule, servers })
    }

    #[test]
    fn the_largest_need_of_any_server_scales_the_schedule() {
        let mut image = image();
        assert_eq!(wanted(&image), None);
        needs(&mut image, "s2", "a", 300);
        let (wants, schedule) = wanted(&image).expect("a needs a longer round");
        // 300 ms in half of the round, and a tenth in reserve.
        assert_eq!((wants, schedule.round_ns, schedule.version, schedule.begins_ns), (Wanted::Longer, 660 * MS, 4, 0));
        let slots: Vec<_> = schedule.slots.iter().map(|slot| (slot.start_ns / MS, slot.length_ns / MS)).collect();
        assert_eq!(slots, [(0, 330), (330, 165)]);
        let need = schedule.need.expect("one decided");
        assert_eq!((need.server, need.volume, need.slice_ns), (name("s2"), name("a"), 300 * MS));
        needs(&mut image, "s2", "a", 5000);
        assert_eq!(wanted(&image).expect("as long as it may be").1.round_ns, 2000 * MS);
        needs(&mut image, "s2", "a", 100);
        assert_eq!(wanted(&image), None, "the loss of b is not measured");
        needs(&mut image, "s2", "b", 50);
        let shorter = wanted(&image).map(|(wants, schedule)| (wants, schedule.round_ns / MS));
        assert_eq!(shorter, Some((Wanted::Shorter, 220)));
    }

    #[test]
    fn a_little_more_than_there_is_changes_nothing() {
        let mut image = image();
        needs(&mut image, "s1", "a", 215);
        assert_eq!(wanted(&image), None, "473 ms");
        needs(&mut image, "s1", "a", 220);
        assert!(wanted(&image).is_some(), "484 ms");
    }

    #[test]
    fn the_round_changes_only_if_all_servers_can_follow() {
        let mut ready = image();
        needs(&mut ready, "s1", "a", 300);
        assert!(wanted(&ready).is_some());
        let not = |why: &str, hinder: &dyn Fn(&mut Image)| {
            let mut image = ready.clone();
            hinder(&mut image);
            assert_eq!(wanted(&image), None, "{why}");
        };
        not("a server is away", &|image| drop(image.alive.remove(&name("s2"))));
        let second = |image: &mut Image| image.alive.remove(&name("s2")).expect("it runs");
        not("a server is out of step", &|image| {
            let behind = Alive { version: 2, ..second(image) };
            image.alive.insert(name("s2"), behind);
        });
        not("a server of an earlier release", &|image| {
            let earlier = Alive { needs: None, ..second(image) };
            image.alive.insert(name("s2"), earlier);
        });
        not("another change", &|image| {
            image.change = change(What::Delete { uuid: Uuid::from_u128(2), force: false });
        });
        not("no volumes", &|image| image.schedule = Some((Schedule::default(), 1)));
        not("no schedule", &|image| image.schedule = None);
    }

    #[test]
    fn slots_that_touch_still_touch_in_every_round() {
        let slot = |start_ns, length_ns| Slot { volume: name("a"), start_ns, length_ns, servers: Vec::new() };
        let (first, second) = (slot(0, 33_333_333), slot(33_333_333, 66_666_667));
        for after_ns in [100_000_001, 123_456_789, 2_000_000_000, 77_777_777] {
            let [first, second] = [&first, &second].map(|slot| scaled(slot, 100_000_000, after_ns));
            assert_eq!((first.start_ns, first.length_ns), (0, second.start_ns));
            assert_eq!(second.start_ns + second.length_ns, after_ns);
        }
    }

    const NEVER: [u64; 0] = [];

    /// Looks one second apart, and whether a proposal is due in each.
    struct Looks(Retiming, Instant);

    impl Looks {
        fn due(&mut self, image: &Image, wanted: Option<Wanted>, seconds: u64) -> Vec<u64> {
            let Looks(retiming, now) = self;
            let looks = 1..=seconds;
            let due = looks.filter(|_| {
                *now += Duration::from_secs(1);
                retiming.is_due(*now, image, wanted)
            });
            due.collect()
        }
    }

    #[test]
    fn a_longer_round_is_due_soon_and_a_shorter_one_late() {
        let (image, mut looks) = (image(), Looks(Retiming::default(), Instant::now()));
        assert_eq!(looks.due(&image, Some(Wanted::Longer), 11), [11]);
        assert_eq!(looks.due(&image, None, 1), NEVER);
        assert_eq!(looks.due(&image, Some(Wanted::Longer), 9), NEVER);
        assert_eq!(looks.due(&image, Some(Wanted::Shorter), 300), NEVER, "the other one was wanted before");
        assert_eq!(looks.due(&image, Some(Wanted::Shorter), 1), [1]);
    }

    #[test]
    fn between_two_changes_there_is_a_minute() {
        let (calm, mut looks) = (image(), Looks(Retiming::default(), Instant::now()));
        let mut open = image();
        open.change = change(What::Retime);
        let mut undone = image();
        undone.outcomes.insert(Uuid::from_u128(4), Ack { error: Some("no".into()) });
        for seen in [open, undone] {
            assert_eq!(looks.due(&seen, None, 1), NEVER);
            assert_eq!(looks.due(&calm, Some(Wanted::Longer), 60), [60]);
        }
        let mut other = image();
        other.change = change(What::Delete { uuid: Uuid::from_u128(2), force: false });
        assert_eq!(looks.due(&other, None, 1), NEVER);
        assert_eq!(looks.due(&calm, Some(Wanted::Longer), 11), [11], "a user's change is none");
    }
}
