//! Where a new volume fits: servers for it, and a schedule with all volumes. Pure, and slow: a search.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::cluster::file::{self, FractionError};
use engine::cluster::pack::{self, Fraction, Refused, Tenant, Wanted};
use engine::cluster::{Need, round_ns};
use engine::units::{MILLISECOND, Nanos};

use super::records::{Alive, Image, Schedule, SliceNeed, Slot, Volume};
use crate::quantity::{Name, ShareText};

/// Time of the search for the schedule of a new volume.
const SEARCH: Duration = Duration::from_millis(800);
/// Sets of servers that are tried for one volume.
const SETS_MAX: usize = 8;
/// Time of the search for each thing that would fit instead.
const SEARCH_INSTEAD: Duration = Duration::from_millis(60);
/// Shares that are tried instead of one that does not fit: those that people ask for.
const SHARES: [u32; 12] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32];
/// R of the cluster is not tried below.
const R_LEAST: f64 = 0.1;
/// The least R of the cluster if nothing else is said.
pub const LEAST_DEFAULT: f64 = 0.9;

/// A server that can take a part of a new volume.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: Name,
    /// Free bytes of its disk.
    pub free_bytes: u64,
}

/// A volume for which there is to be room.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Its name.
    pub volume: Name,
    /// How many servers it is on.
    pub servers: usize,
    /// Its share.
    pub share: ShareText,
    /// The least R of the cluster that is accepted.
    pub least: f64,
    /// Whether the candidates are all to be taken, in their order.
    pub is_given: bool,
}

/// Servers and schedule for a new volume.
#[derive(Clone, Debug)]
pub struct Placed {
    /// In the order of its stripes.
    pub servers: Vec<Name>,
    /// With all volumes; without version and beginning.
    pub schedule: Schedule,
}

/// What would fit instead.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instead {
    /// A smaller share on as many servers.
    pub share: Option<String>,
    /// The same share on another number of servers.
    pub servers: Option<usize>,
    /// R of the cluster with which it would fit as asked.
    pub r_cluster: Option<f64>,
}

/// Why a volume has no place.
#[derive(Debug, thiserror::Error)]
pub enum NoPlace {
    /// There is no schedule.
    #[error("{0}")]
    Full(String, Instead),
    /// It would fit only if other slots moved, which they cannot while this server is away.
    #[error("{why}")]
    Beside { away: Name, why: String },
    /// A share that a schedule cannot have.
    #[error(transparent)]
    Share(#[from] FractionError),
}

/// The cluster as the search sees it.
#[derive(Clone, Debug)]
pub struct Known {
    names: Vec<Name>,
    tenants: Vec<(Name, Tenant)>,
    /// The servers that run.
    alive: BTreeMap<Name, Alive>,
    /// The present round, if there is a schedule.
    round_ns: Option<Nanos>,
    /// Where the volume has its slot that is to be placed, as a part of the round, if it has one.
    start: Option<f64>,
}

/// The shortest slice of which a context switch takes at most 1 - R.
pub fn switch_need_ns(switch_ns: Nanos, insulation_permille: u32) -> Nanos {
    switch_ns * 1000 / u64::from(1000 - insulation_permille.min(999))
}

/// The shortest slice with which a volume keeps R on a server: as the server measured it; else for the switch alone.
fn slice_ns(alive: &Alive, volume: &Name) -> Nanos {
    let measured = alive.needs.as_ref().and_then(|needs| needs.get(volume).copied());
    measured.unwrap_or_else(|| switch_need_ns(alive.switch_ns, alive.insulation_permille))
}

/// A slot as a part of the round: the volume, the part, and the servers.
type Part<'a> = (&'a Name, f64, &'a [Name]);

/// The round for these slots, and the need that decides it: the largest for its part of the round, of all servers that
/// run.
pub fn round_for<'a>(
    present_ns: Option<Nanos>,
    slots: impl Iterator<Item = Part<'a>>,
    alive: &BTreeMap<Name, Alive>,
) -> (Nanos, Option<SliceNeed>) {
    let on_servers = slots.flat_map(|(volume, length, servers)| {
        let running = servers.iter().filter_map(|server| Some((server, alive.get(server)?)));
        running.map(move |(server, alive)| {
            let slice_ns = slice_ns(alive, volume);
            let need = SliceNeed { server: server.clone(), volume: volume.clone(), slice_ns };
            (Need { slice_ns, length }, need)
        })
    });
    let of = |need: &Need| need.slice_ns as f64 / need.length;
    let largest = on_servers.max_by(|(a, _), (b, _)| of(a).total_cmp(&of(b)));
    let round_max_ns = alive.values().map(|alive| alive.round_max_ns).min().unwrap_or(Nanos::MAX);
    let needs = largest.iter().map(|(need, _)| *need);
    (round_ns(present_ns, needs, round_max_ns), largest.map(|(_, need)| need))
}

impl Known {
    /// All servers, those that do not run included: their volumes keep their place.
    pub fn new(image: &Image) -> Result<Known, FractionError> {
        let names: Vec<Name> = image.members.keys().cloned().collect();
        let at = |server: &Name| names.iter().position(|name| name == server);
        let slots = image.schedule.iter().flat_map(|(it, _)| it.slots.iter().map(|slot| (slot, it.round_ns)));
        let start = |(slot, round_ns): (&Slot, u64)| (slot.volume.clone(), slot.start_ns as f64 / round_ns as f64);
        let starts: BTreeMap<Name, f64> = slots.map(start).collect();
        let lasting = image.volumes.iter().filter(|(_, volume)| !volume.deleting);
        let tenant = |(name, volume): (&Name, &Volume)| {
            let pinned = volume.holders().filter_map(at).collect();
            let share = file::fraction(&volume.share.to_string())?;
            let start = starts.get(name).copied();
            Ok((name.clone(), Tenant { servers: volume.holders().count(), share, pinned: Some(pinned), start }))
        };
        let tenants = lasting.map(tenant).collect::<Result<Vec<_>, FractionError>>()?;
        Ok(Known {
            names,
            tenants,
            alive: image.alive.clone(),
            round_ns: image.schedule.as_ref().filter(|(it, _)| !it.slots.is_empty()).map(|(it, _)| it.round_ns),
            start: None,
        })
    }

    /// The same without a volume, which is to be placed anew.
    pub fn leaving(mut self, volume: &Name) -> Known {
        let at = self.tenants.iter().position(|(name, _)| name == volume);
        self.start = at.and_then(|at| self.tenants.remove(at).1.start);
        self
    }

    /// The sum of the shares of a server.
    fn load(&self, server: &Name) -> f64 {
        let at = self.names.iter().position(|name| name == server);
        let on = |tenant: &Tenant| at.is_some_and(|at| tenant.pinned.is_some_and(|pinned| pinned.contains(at)));
        let share = |share: Fraction| f64::from(share.over) / f64::from(share.under);
        self.tenants.iter().filter(|(_, tenant)| on(tenant)).map(|(_, tenant)| share(tenant.share)).sum()
    }

    /// A schedule with a new volume on these servers, and how many volumes do not keep their places in it.
    fn with(
        &self,
        (volume, share, on): (&Name, Fraction, &[Name]),
        least: f64,
        limit: Duration,
    ) -> Result<(pack::Schedule, usize), Refused> {
        let pinned = on.iter().filter_map(|server| self.names.iter().position(|name| name == server)).collect();
        let new = Tenant { servers: on.len(), share, pinned: Some(pinned), start: self.start };
        let new = (volume.clone(), new);
        let tenants: Vec<Tenant> = self.tenants.iter().chain([&new]).map(|(_, tenant)| tenant.clone()).collect();
        let began = Instant::now();
        let wanted = Wanted { least, enough: 1.0, seed: 1 };
        let found = pack::pack(self.names.len(), &tenants, wanted, || began.elapsed() < limit)?;
        let fault = pack::fault(self.names.len(), &tenants, &found);
        assert_eq!(fault, None, "a schedule that was found is one");
        let moved = pack::moved(&tenants, &found);
        Ok((found, moved))
    }

    /// The best of several sets of servers, the least loaded ones first.
    fn best(
        &self,
        candidates: &[Candidate],
        wish: &Wish,
        share: Fraction,
        (least, limit): (f64, Duration),
    ) -> Result<(Vec<Name>, pack::Schedule), Refused> {
        let sets = self.sets(candidates, wish);
        let limit = limit / sets.len().max(1) as u32;
        let mut best: Result<(Vec<Name>, (pack::Schedule, usize)), Refused> = Err(Refused::Servers);
        for set in sets {
            let found = self.with((&wish.volume, share, &set), least, limit);
            let is_better = match (&found, &best) {
                (Ok((found, moved)), Ok((_, (best, most)))) => {
                    found.r_cluster > best.r_cluster || found.r_cluster == best.r_cluster && moved < most
                }
                (Ok(_), Err(_)) | (Err(_), Err(Refused::Servers)) => true,
                (Err(_), _) => false,
            };
            if is_better {
                best = found.map(|found| (set, found));
            }
            if best.as_ref().is_ok_and(|(_, (best, moved))| best.r_cluster >= 1.0 && *moved == 0) {
                break;
            }
        }
        best.map(|(set, (found, _))| (set, found))
    }

    /// Sets of servers to try, the least loaded ones first.
    fn sets(&self, candidates: &[Candidate], wish: &Wish) -> Vec<Vec<Name>> {
        let order = self.ordered(candidates, wish);
        let sets = order.windows(wish.servers).take(SETS_MAX);
        sets.map(|set| set.iter().map(|(_, candidate)| candidate.name.clone()).collect()).collect()
    }

    /// Servers and a schedule for a new volume in time that is free. No slot moves and the round stays, so servers that
    /// do not run need not agree; `away` is one of these.
    pub fn place_beside(
        &self,
        (schedule, away): (&Schedule, Name),
        candidates: &[Candidate],
        wish: &Wish,
    ) -> Result<Placed, NoPlace> {
        let share = file::fraction(&wish.share.to_string())?;
        let refused = |why: String| Err(NoPlace::Beside { away, why });
        let Schedule { r_cluster, round_ns, .. } = *schedule;
        if r_cluster < wish.least {
            return refused(format!("R of the cluster is {r_cluster:.3} now, less than {}", wish.least));
        }
        let part = f64::from(share.over) / f64::from(share.under) * r_cluster;
        let length_ns = (part * round_ns as f64) as Nanos;
        let need_ns = |set: &Vec<Name>| {
            let running = set.iter().filter_map(|server| self.alive.get(server));
            running.map(|alive| slice_ns(alive, &wish.volume)).max().unwrap_or(0)
        };
        let sets = self.sets(candidates, wish);
        let least_ns = sets.iter().map(need_ns).min().unwrap_or(0);
        if length_ns < least_ns {
            return refused(format!(
                "its share of the round of {} ms is a slice of {} ms, and it keeps R with {} ms only",
                round_ns / MILLISECOND,
                length_ns / MILLISECOND,
                least_ns.div_ceil(MILLISECOND)
            ));
        }
        let placed = |servers: Vec<Name>| {
            let start_ns = schedule.free_ns(&servers, length_ns)?;
            let slot = Slot { volume: wish.volume.clone(), start_ns, length_ns, servers: servers.clone() };
            let slots = schedule.slots.iter().cloned().chain([slot]).collect();
            Some(Placed { servers, schedule: Schedule { slots, begins_ns: 0, ..schedule.clone() } })
        };
        let found = sets.into_iter().filter(|set| need_ns(set) <= length_ns).find_map(placed);
        found.map_or_else(|| refused("the servers that run are not free for so long at the same time".into()), Ok)
    }

    /// Servers and a schedule for a new volume.
    pub fn place(&self, candidates: &[Candidate], wish: &Wish) -> Result<Placed, NoPlace> {
        let share = file::fraction(&wish.share.to_string())?;
        match self.best(candidates, wish, share, (wish.least, SEARCH)) {
            Ok((servers, found)) => {
                let names: Vec<Name> =
                    self.tenants.iter().map(|(name, _)| name.clone()).chain([wish.volume.clone()]).collect();
                let schedule = self.timed(&names, &found);
                Ok(Placed { servers, schedule })
            }
            Err(why) => {
                let told = self.told(&why, candidates, wish, share);
                Err(NoPlace::Full(told, self.instead(candidates, wish, share)))
            }
        }
    }

    /// A refusal: of the best set of servers the one whose shares would be too much, if there is one.
    fn told(&self, why: &Refused, candidates: &[Candidate], wish: &Wish, share: Fraction) -> String {
        let set = self.ordered(candidates, wish).into_iter().take(wish.servers);
        let fullest = set.max_by(|(a, _), (b, _)| a.total_cmp(b));
        let sum = |load: f64| load + f64::from(share.over) / f64::from(share.under);
        match fullest.filter(|(load, _)| sum(*load) > 1.0 / wish.least) {
            Some((load, candidate)) => format!(
                "the shares of server '{}' would sum to {:.2}, which is too much for R = {}",
                candidate.name,
                sum(load),
                wish.least
            ),
            None => why.to_string(),
        }
    }

    /// The candidates, the least loaded ones first, with the sums of their shares; as given, if they are given.
    fn ordered<'a>(&self, candidates: &'a [Candidate], wish: &Wish) -> Vec<(f64, &'a Candidate)> {
        let loaded = candidates.iter().map(|candidate| (self.load(&candidate.name), candidate));
        let mut order: Vec<(f64, &Candidate)> = loaded.collect();
        if !wish.is_given {
            order.sort_by_key(|(load, candidate)| ((load * 1e6) as u64, u64::MAX - candidate.free_bytes));
        }
        order
    }

    /// What would fit: each is tried for a short time.
    fn instead(&self, candidates: &[Candidate], wish: &Wish, share: Fraction) -> Instead {
        let tried = |wish: &Wish, share, least| self.best(candidates, wish, share, (least, SEARCH_INSTEAD));
        let is_less = |under: &&u32| u64::from(**under) * u64::from(share.over) > u64::from(share.under);
        let smaller = SHARES.iter().filter(is_less);
        let fits = |under: &&u32| tried(wish, Fraction { over: 1, under: **under }, wish.least).is_ok();
        let mut numbers: Vec<usize> = (1..=candidates.len()).filter(|&number| number != wish.servers).collect();
        numbers.sort_by_key(|&number| (number.abs_diff(wish.servers), number));
        let holds = |number: &usize| tried(&Wish { servers: *number, ..wish.clone() }, share, wish.least).is_ok();
        let relaxed = tried(wish, share, R_LEAST.min(wish.least)).ok();
        Instead {
            share: smaller.clone().find(fits).map(|under| format!("1/{under}")),
            servers: if wish.is_given { None } else { numbers.into_iter().find(holds) },
            // Rounded down, so that asking for it is enough.
            r_cluster: relaxed.map(|(_, found)| (found.r_cluster * 100.0).floor() / 100.0),
        }
    }

    /// The schedule in nanoseconds.
    fn timed(&self, names: &[Name], found: &pack::Schedule) -> Schedule {
        let on = |slot: &pack::Slot| slot.servers.iter().map(|at| self.names[at].clone()).collect::<Vec<_>>();
        let placed: Vec<(&Name, f64, Vec<Name>)> =
            names.iter().zip(&found.slots).map(|(name, slot)| (name, slot.length, on(slot))).collect();
        let parts = placed.iter().map(|(name, length, servers)| (*name, *length, &servers[..]));
        let (round_ns, need) = round_for(self.round_ns, parts, &self.alive);
        let at = |part: f64| (part * round_ns as f64).round() as u64;
        let slot = |(name, slot): (&Name, &pack::Slot)| Slot {
            volume: name.clone(),
            start_ns: at(slot.start),
            length_ns: at(slot.start + slot.length).min(round_ns) - at(slot.start),
            servers: on(slot),
        };
        let mut slots: Vec<Slot> = names.iter().zip(&found.slots).map(slot).collect();
        separate(&mut slots);
        Schedule { round_ns, r_cluster: found.r_cluster, slots, need, ..Schedule::default() }
    }
}

/// Two slices of a server that were rounded into each other by a nanosecond follow each other.
fn separate(slots: &mut [Slot]) {
    for at in 0..slots.len() {
        let shares = |other: &Slot| other.servers.iter().any(|server| slots[at].servers.contains(server));
        let later = slots.iter().filter(|other| other.start_ns > slots[at].start_ns && shares(other));
        if let Some(next) = later.map(|other| other.start_ns).min() {
            slots[at].length_ns = slots[at].length_ns.min(next - slots[at].start_ns);
        }
    }
}

/// A schedule without one of its volumes: nothing else moves.
pub fn without(schedule: &Schedule, volume: &Name) -> Schedule {
    let slots: Vec<Slot> = schedule.slots.iter().filter(|slot| slot.volume != *volume).cloned().collect();
    match slots.is_empty() {
        true => Schedule { version: schedule.version, ..Schedule::default() },
        false => {
            let need = schedule.need.clone().filter(|need| need.volume != *volume);
            Schedule { slots, need, begins_ns: 0, ..schedule.clone() }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::records::{ClockState, Member};
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn alive() -> Alive {
        Alive {
            disk: name("hdd"),
            size_bytes: 1 << 40,
            free_bytes: 1 << 40,
            insulation_permille: 900,
            switch_ns: 12_000_000,
            round_max_ns: 2_000_000_000,
            clock: ClockState { synchronised: true, trusted: true, error_ns: 0, good: true },
            version: 0,
            missing: Vec::new(),
            needs: Some(BTreeMap::new()),
        }
    }

    fn cluster(servers: usize, volumes: &[(&str, &str, &[&str])]) -> Image {
        let mut image = Image::default();
        for at in 1..=servers {
            let server = name(&format!("s{at}"));
            let uuid = Uuid::from_u128(at as u128);
            image.members.insert(server.clone(), Member { uuid, advertise: "nbd://h".into() });
            image.alive.insert(server, alive());
        }
        for (volume, share, on) in volumes {
            let servers: Vec<Name> = on.iter().map(|on| name(on)).collect();
            let share = share.parse().expect("a share");
            let (uuid, size) = (Uuid::from_u128(99), 1 << 30);
            let volume_record = Volume {
                uuid,
                size,
                member_size: size,
                stripe: 65536,
                share,
                servers,
                deleting: false,
                lost: Vec::new(),
            };
            image.volumes.insert(name(volume), volume_record);
        }
        image
    }

    fn candidates(image: &Image) -> Vec<Candidate> {
        image.alive.iter().map(|(name, it)| Candidate { name: name.clone(), free_bytes: it.free_bytes }).collect()
    }

    fn wish(servers: usize, share: &str) -> Wish {
        let share = share.parse().expect("a share");
        Wish { volume: name("new"), servers, share, least: LEAST_DEFAULT, is_given: false }
    }

    fn place(image: &Image, wish: &Wish) -> Result<Placed, NoPlace> {
        Known::new(image).expect("shares").place(&candidates(image), wish)
    }

    #[test]
    fn the_least_loaded_servers_are_taken() {
        let image = cluster(3, &[("a", "1/2", &["s1"]), ("b", "1/4", &["s2"])]);
        let placed = place(&image, &wish(2, "1/3")).expect("there is room");
        assert_eq!(placed.servers, [name("s3"), name("s2")]);
        let schedule = placed.schedule;
        assert_eq!((schedule.r_cluster, schedule.slots.len()), (1.0, 3));
        // 120 ms in a quarter of the round, and a tenth more in reserve.
        assert_eq!(schedule.round_ns, 528_000_000);
        let new = schedule.slots.iter().find(|slot| slot.volume == name("new")).expect("it has a slot");
        assert_eq!(new.length_ns, 176_000_000);
        assert!(schedule.slots.iter().all(|slot| slot.start_ns + slot.length_ns <= schedule.round_ns));
    }

    #[test]
    fn a_volume_fits_beside_others_that_do_not_move() {
        let mut image = cluster(3, &[("a", "1/2", &["s1", "s3"]), ("b", "1/3", &["s2"])]);
        let schedule = place(&image, &wish(1, "1/3")).expect("there is room").schedule;
        let schedule = without(&schedule, &name("new"));
        image.alive.remove(&name("s3"));
        let known = Known::new(&image).expect("shares");
        let beside = |share: &str| {
            let wish = Wish { servers: 2, ..wish(2, share) };
            known.place_beside((&schedule, name("s3")), &candidates(&image), &wish).map_err(|why| why.to_string())
        };
        let placed = beside("1/3").expect("time that both have");
        assert_eq!(placed.servers.len(), 2);
        let (new, others) = placed.schedule.slots.split_last().expect("it has a slot");
        assert_eq!((others, placed.schedule.round_ns), (&schedule.slots[..], schedule.round_ns));
        assert_eq!(new.length_ns, schedule.round_ns / 3);
        for other in others.iter().filter(|other| other.servers.iter().any(|server| new.servers.contains(server))) {
            let (new_end, other_end) = (new.start_ns + new.length_ns, other.start_ns + other.length_ns);
            assert!(new_end <= other.start_ns || other_end <= new.start_ns, "{new:?} and {other:?}");
        }
        assert!(beside("3/4").expect_err("a has half of s1").contains("not free for so long"));
        let short = beside("1/4").expect_err("a context switch would take too much of it");
        assert_eq!(short, "its share of the round of 396 ms is a slice of 99 ms, and it keeps R with 120 ms only");
    }

    #[test]
    fn a_measured_need_sets_the_round_and_is_named() {
        let mut image = cluster(3, &[("a", "1/2", &["s1"]), ("b", "1/4", &["s2"])]);
        let need = |server: &str, volume: &str, ms: u64| SliceNeed {
            server: name(server),
            volume: name(volume),
            slice_ns: ms * 1_000_000,
        };
        let planned = |image: &Image| place(image, &wish(2, "1/3")).expect("there is room").schedule;
        assert_eq!(planned(&image).need, Some(need("s2", "b", 120)), "the context switch, in the smallest slot");
        // 250 ms in half of the round; a tenth more in reserve.
        let mut measures = |server: &str, volume: &str, ms: u64| {
            let alive = image.alive.get_mut(&name(server)).expect("it runs");
            alive.needs.as_mut().expect("it measures").insert(name(volume), ms * 1_000_000);
            planned(&image)
        };
        let schedule = measures("s1", "a", 250);
        assert_eq!((schedule.round_ns, schedule.need), (550_000_000, Some(need("s1", "a", 250))));
        assert_eq!(measures("s2", "b", 200).round_ns, 880_000_000, "200 ms in a quarter");
        let schedule = measures("s2", "b", 12);
        assert_eq!(schedule.round_ns, 550_000_000, "less than its context switch seems to need");
        let left = without(&schedule, &name("b"));
        assert_eq!((left.need, without(&schedule, &name("a")).need), (Some(need("s1", "a", 250)), None));
    }

    #[test]
    fn servers_that_are_given_keep_their_order() {
        let image = cluster(3, &[("a", "1/2", &["s3"])]);
        let on = [name("s3"), name("s1")].map(|name| Candidate { name, free_bytes: 1 });
        let given = Wish { is_given: true, ..wish(2, "1/2") };
        let placed = Known::new(&image).expect("shares").place(&on, &given).expect("there is room");
        assert_eq!(placed.servers, [name("s3"), name("s1")]);
    }

    #[test]
    fn a_refusal_says_what_would_fit() {
        let image = cluster(2, &[("a", "3/4", &["s1"])]);
        let Err(NoPlace::Full(why, instead)) = place(&image, &wish(2, "1/2")) else { panic!("it does not fit") };
        assert!(why.contains("server 's1' would sum to 1.25"), "{why}");
        assert_eq!(instead, Instead { share: Some("1/3".into()), servers: Some(1), r_cluster: Some(0.8) });
        let lower = Wish { least: 0.8, ..wish(2, "1/2") };
        assert!(place(&image, &lower).is_ok(), "what it said fits");
        assert!(place(&image, &wish(2, "1/3")).is_ok() && place(&image, &wish(1, "1/2")).is_ok());
    }

    #[test]
    fn volumes_keep_their_places_when_another_one_comes() {
        let mut image = cluster(3, &[("a", "1/4", &["s1", "s2"]), ("b", "1/4", &["s2", "s3"])]);
        let slot = |volume, start_ns, on: &[&str]| Slot {
            volume: name(volume),
            start_ns,
            length_ns: 250_000_000,
            servers: on.iter().map(|on| name(on)).collect(),
        };
        // Between them, and before the first one, is room on all servers; not all to the left.
        let slots = vec![slot("a", 333_333_333, &["s1", "s2"]), slot("b", 750_000_000, &["s2", "s3"])];
        image.schedule = Some((Schedule { round_ns: 1_000_000_000, slots, ..Schedule::default() }, 1));
        let schedule = place(&image, &wish(3, "1/3")).expect("there is room").schedule;
        let part = |volume: &str| {
            let slot = schedule.slots.iter().find(|slot| slot.volume == name(volume)).expect("it has a slot");
            slot.start_ns as f64 / schedule.round_ns as f64
        };
        assert!((part("a") - 1.0 / 3.0).abs() < 1e-4 && (part("b") - 0.75).abs() < 1e-4, "{schedule:?}");
        assert_eq!((part("new"), schedule.r_cluster), (0.0, 1.0));
    }

    #[test]
    fn nothing_moves_when_a_volume_leaves() {
        let image = cluster(2, &[("a", "1/2", &["s1", "s2"])]);
        let schedule = Schedule { version: 7, ..place(&image, &wish(2, "1/3")).expect("there is room").schedule };
        let left = without(&schedule, &name("a"));
        assert_eq!(left.slots, [schedule.slots[1].clone()]);
        assert_eq!((left.round_ns, left.version), (schedule.round_ns, 7));
        assert_eq!(without(&left, &name("new")), Schedule { version: 7, ..Schedule::default() });
    }

    #[test]
    fn slices_that_touch_do_not_overlap() {
        let slot =
            |volume, start_ns, length_ns| Slot { volume: name(volume), start_ns, length_ns, servers: vec![name("s1")] };
        let mut slots = [slot("a", 0, 11), slot("b", 10, 5)];
        separate(&mut slots);
        assert_eq!(slots[0].length_ns, 10);
    }
}
