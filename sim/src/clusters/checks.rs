//! What is checked of a server, by what its disk was given and by the time at which, which is the true one. The checker
//! knows the schedules, what the server was told of them and when, and how wrong clocks may be. It knows nothing of the
//! engine.
//!
//! ```text
//!          |◄─── slot of a ─────────────────────────►|
//!   ───────|─E─|                      |─ allowed ─|─E─|────     E: the stated error of clocks
//!    b ────────┐▲ a wants the disk:    a's last request may not fit, and a may pay for overruns
//!              │  only a's requests from here on
//! ```

use std::collections::VecDeque;

use engine::units::{MILLISECOND, Nanos, SECOND};

use super::agreed::{SLOT_NS, Spot};
use super::clock::ERROR_NS;
use super::disk::Given;
use super::server::SWITCH_NS;

/// What the thread takes to pass a request on.
const GRACE_NS: Nanos = MILLISECOND;
/// Requests of a tenant are expected to take as long as its latest ones of this time; and before there were some, so
/// long.
const LATEST_NS: Nanos = 8 * SECOND;
const EXPECTED_NS: Nanos = 9 * MILLISECOND;
/// A tenant leaves its slot early if it seems that its next request would not fit. It seems so by the mean of some
/// requests, each of which may be off by this factor.
const FIT: u64 = 3;
/// What the requests of a tenant seem to take may be with its think times, if these are shorter than this: then it may
/// leave so much more.
const THOUGHT_NS: Nanos = 50 * MILLISECOND;
const THINKS_NS: Nanos = 150 * MILLISECOND;
/// An overrun is paid in one of the next slots.
const PAID_ROUNDS: u64 = 3;
/// An owner without work for so many rounds is not waited for. It is one more than in the engine, because slots are not
/// rounds.
const IDLE_ROUNDS: u64 = 4;
/// An owner that had work in so many rounds may come back.
const ACTIVE_ROUNDS: u64 = 2;
/// A tenant that always wants its slots has this part of their time, in thousandths, after so many slots.
const KEPT_PERMILLE: u64 = 600;
const KEPT_SLOTS: u64 = 8;
/// A slot is seen from its beginning on if it is looked at so soon after that.
const SEEN_NS: Nanos = 20 * MILLISECOND;

/// A tenant.
#[derive(Debug, Default)]
struct Lane {
    /// A request of it waits for the disk.
    wants_since: Option<Nanos>,
    /// It has no request on the server.
    idle_since: Option<Nanos>,
    /// When it was last idle for a short time only.
    thought: Option<Nanos>,
    /// When each of its latest requests was done, and how long it took.
    services: VecDeque<(Nanos, Nanos)>,
    /// By how much it exceeded a slot, and when.
    overruns: VecDeque<(Nanos, Nanos)>,
    /// Its last slot, and by how much it exceeded that.
    exceeded: Option<(Spot, Nanos)>,
    /// By how much it has exceeded its slots, since it last had nothing too much.
    excess_ns: u64,
    /// Of the slots that it wanted: their number, their time, and what it had of that.
    slots: u64,
    slots_ns: Nanos,
    own_ns: Nanos,
}

impl Lane {
    /// How long its next request takes as far as can be expected.
    fn expected_ns(&self, now: Nanos) -> Nanos {
        let latest = self.services.iter().filter(|(at, _)| at + LATEST_NS >= now);
        latest.map(|&(_, ns)| ns).max().unwrap_or(0).max(EXPECTED_NS)
    }

    /// What it may leave of its slot to the next one, or to others, although it wants it.
    fn allowed_ns(&self, now: Nanos, round_ns: Nanos) -> Nanos {
        let overruns = self.overruns.iter().filter(|(at, _)| at + PAID_ROUNDS * round_ns >= now);
        let thinks_ns = if self.thought.is_some_and(|at| at + LATEST_NS >= now) { THINKS_NS } else { 0 };
        FIT * self.expected_ns(now) + thinks_ns + overruns.map(|&(_, ns)| ns).sum::<Nanos>()
    }
}

/// A slot that is in progress.
#[derive(Clone, Copy, Debug)]
struct Turn {
    spot: Spot,
    /// It is judged from its beginning on, and its owner had requests on the server all the time.
    is_whole: bool,
}

/// The slot of a tenant on one server as it was: of those of which all can be said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Had {
    pub(super) client: usize,
    pub(super) spot: Spot,
    /// When its first and its last request was served.
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    /// The part of the slot that others or the tenant itself may have left unused.
    pub(super) loses_ns: Nanos,
}

/// What was seen of a server.
#[derive(Debug)]
pub(super) struct Watch {
    lanes: Vec<Lane>,
    /// What the disk was given lately.
    given: VecDeque<Given>,
    turn: Option<Turn>,
    /// A change that came late, or a clock that was wrong, may still show.
    excused_until: Nanos,
    /// Slots that were judged.
    pub(super) judged: u64,
}

/// A moment that is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    pub(super) now: Nanos,
    /// Where in the schedule the server is, if the clocks leave no doubt which schedule it is.
    pub(super) spot: Option<Spot>,
    pub(super) round_ns: Nanos,
    /// The client whose slot follows at once.
    pub(super) next: Option<usize>,
    /// Its clock is within the stated error.
    pub(super) is_good: bool,
    pub(super) guests: &'a [usize],
}

impl Moment<'_> {
    fn owner(&self, spot: &Spot) -> Option<usize> {
        self.guests.iter().position(|&guest| Some(guest) == spot.owner)
    }
}

impl Watch {
    pub(super) fn new(guests: usize) -> Watch {
        let lanes = (0..guests).map(|_| Lane::default()).collect();
        Watch { lanes, given: VecDeque::new(), turn: None, excused_until: 0, judged: 0 }
    }

    /// A new process knows nothing of the past.
    pub(super) fn restart(&mut self, now: Nanos) {
        self.lanes = self.lanes.iter().map(|_| Lane { idle_since: Some(now), ..Lane::default() }).collect();
        // What an earlier one has submitted is nobody's.
        self.given.iter_mut().for_each(|given| given.guest = usize::MAX);
        (self.turn, self.excused_until) = (None, now);
    }

    /// Nothing is said until then.
    pub(super) fn excuse(&mut self, until: Nanos) {
        self.excused_until = self.excused_until.max(until);
    }

    /// Each guest has so many requests on the server, and so many of them in the device.
    pub(super) fn count(&mut self, now: Nanos, waiting: impl Iterator<Item = (u32, u32)>) {
        for (lane, (waiting, in_device)) in self.lanes.iter_mut().zip(waiting) {
            let since = |is: bool, since: Option<Nanos>| is.then(|| since.unwrap_or(now));
            lane.wants_since = since(waiting > in_device, lane.wants_since);
            let thought =
                lane.idle_since.is_some_and(|since| waiting > 0 && (GRACE_NS..THOUGHT_NS).contains(&(now - since)));
            lane.thought = if thought { Some(now) } else { lane.thought };
            lane.idle_since = since(waiting == 0, lane.idle_since);
        }
    }

    /// Whether a guest has waited for the disk long enough for the server to know.
    fn wants(&self, guest: usize, now: Nanos) -> bool {
        self.lanes[guest].wants_since.is_some_and(|since| since + GRACE_NS <= now)
    }

    /// The spot, where the clocks leave no doubt that it is the present one.
    fn inside(&self, moment: &Moment<'_>) -> Option<Spot> {
        let Moment { now, is_good, .. } = *moment;
        let spot = moment.spot.filter(|_| is_good && now >= self.excused_until)?;
        (spot.start + ERROR_NS <= now && now + ERROR_NS <= spot.end).then_some(spot)
    }

    /// The disk was given requests, now. The state of the tenants is that before.
    pub(super) fn given(&mut self, moment: &Moment<'_>, given: &Given, in_device: u32) -> Result<(), String> {
        let Moment { now, round_ns, .. } = *moment;
        let Given { guest, from, to, .. } = *given;
        let verdict = self.inside(moment).map_or(Ok(()), |spot| {
            self.pays(moment, &spot, guest)?;
            let Some(owner) = moment.owner(&spot).filter(|&owner| owner != guest) else { return Ok(()) };
            let (lane, left_ns) = (&self.lanes[owner], spot.end - now);
            let allowed_ns = lane.allowed_ns(now, round_ns);
            if left_ns <= allowed_ns + ERROR_NS {
                return Ok(());
            }
            if self.wants(owner, now) {
                return Err(format!(
                    "guest {guest} is served in {spot:?}, which guest {owner} wants since {:?} and has left {left_ns} \
                     ns of, {allowed_ns} ns allowed",
                    lane.wants_since
                ));
            }
            let is_active = lane.idle_since.is_none_or(|since| since + ACTIVE_ROUNDS * round_ns > now)
                && lane.services.back().is_some_and(|(at, _)| at + ACTIVE_ROUNDS * round_ns > now);
            if is_active && in_device > 1 {
                return Err(format!(
                    "guest {guest} has {in_device} requests in the device in {spot:?}, which was lent"
                ));
            }
            Ok(())
        });
        self.given.push_back(*given);
        self.given.pop_front_if(|first| first.to + 4 * SECOND < now);
        let lane = &mut self.lanes[guest];
        lane.services.push_back((to, to - from));
        lane.services.pop_front_if(|(at, _)| *at + LATEST_NS < now);
        verdict
    }

    /// What a tenant has exceeded its slot by, it leaves to the next owner at the end of its next slot.
    fn pays(&self, moment: &Moment<'_>, spot: &Spot, guest: usize) -> Result<(), String> {
        let Moment { now, round_ns, guests, next, .. } = *moment;
        let next = guests.iter().position(|&guest| Some(guest) == next);
        if moment.owner(spot) != Some(guest) || !next.is_some_and(|next| self.wants(next, now)) {
            return Ok(());
        }
        // In another schedule, its next slot may have another length.
        let is_last = |last: &Spot| {
            last.version == spot.version && last.end <= spot.start && last.end + round_ns * 5 / 4 > spot.start
        };
        let exceeded = self.lanes[guest].exceeded.filter(|(last, _)| is_last(last));
        let over_ns = exceeded.map_or(0, |(_, ns)| ns);
        // What it has left before counts, also in longer slots of an earlier schedule.
        let owes_ns = over_ns.saturating_sub(SLOT_NS.1 / 8 + 2 * ERROR_NS);
        if now + owes_ns > spot.end + ERROR_NS {
            return Err(format!(
                "guest {guest} is served at the end of {spot:?} although it has exceeded its last slot by {over_ns} ns"
            ));
        }
        Ok(())
    }

    /// Looks at the server, whose disk has been idle since a time, if it is. Returns a slot that is over.
    pub(super) fn look(&mut self, moment: &Moment<'_>, idle_since: Option<Nanos>) -> Result<Option<Had>, String> {
        let Moment { now, .. } = *moment;
        let Some(spot) = moment.spot else { return Ok(None) };
        let mut had = None;
        let is_same = |turn: &&mut Turn| (turn.spot.version, turn.spot.start) == (spot.version, spot.start);
        if let Some(turn) = self.turn.as_mut().filter(is_same) {
            // Meanwhile it may be known that the schedule changes.
            turn.spot.end = spot.end;
        } else {
            let before = self
                .turn
                .replace(Turn { spot, is_whole: now < spot.start + SEEN_NS && spot.start >= self.excused_until });
            had = match before.filter(|before| before.spot.end <= now) {
                Some(before) => self.ended(moment, before, spot)?,
                None => None,
            };
        }
        let has_requests = moment.owner(&spot).is_some_and(|owner| self.lanes[owner].idle_since.is_none());
        let turn = self.turn.as_mut().expect("just set");
        turn.is_whole &= moment.is_good && now >= self.excused_until && (has_requests || now < spot.start + ERROR_NS);
        if let Some(spot) = self.inside(moment)
            && idle_since.is_some_and(|since| since + 2 * GRACE_NS <= now)
        {
            self.idles(moment, &spot)?;
        }
        Ok(had)
    }

    /// The disk is idle.
    fn idles(&self, moment: &Moment<'_>, spot: &Spot) -> Result<(), String> {
        let Moment { now, round_ns, .. } = *moment;
        let left_ns = spot.end - now - ERROR_NS;
        let wants = |guest: usize| {
            let lane = &self.lanes[guest];
            lane.wants_since.is_some_and(|since| since + 2 * GRACE_NS <= now)
                && left_ns > SWITCH_NS + lane.allowed_ns(now, round_ns)
        };
        let owner = moment.owner(spot);
        if let Some(owner) = owner.filter(|&owner| wants(owner)) {
            return Err(format!("the disk is idle in {spot:?}, which guest {owner} wants"));
        }
        let is_away = owner.is_none_or(|owner| {
            self.lanes[owner].idle_since.is_some_and(|since| since + IDLE_ROUNDS * round_ns <= now)
        });
        match (0..self.lanes.len()).find(|&guest| is_away && wants(guest)) {
            Some(guest) => Err(format!("the disk is idle in {spot:?}, which nobody uses; guest {guest} wants it")),
            None => Ok(()),
        }
    }

    /// When the last of the requests ends that the disk was given until `at` for some guests.
    fn busy_until(&self, at: Nanos, is: impl Fn(usize) -> bool) -> Nanos {
        self.given.iter().filter(|given| given.at <= at && is(given.guest)).map(|given| given.to).max().unwrap_or(0)
    }

    /// A slot, or the time between two, has ended; the next one is `next`.
    fn ended(&mut self, moment: &Moment<'_>, turn: Turn, next: Spot) -> Result<Option<Had>, String> {
        let Turn { spot: Spot { owner: client, start, end, .. }, is_whole } = turn;
        let (owner, next_owner) = (moment.owner(&turn.spot), moment.owner(&next));
        for guest in (0..self.lanes.len()).filter(|&guest| Some(guest) != next_owner) {
            // What it was given later may be lent.
            let over_ns = self.busy_until(end - ERROR_NS, |of| of == guest).saturating_sub(end);
            if Some(guest) == owner {
                self.lanes[guest].exceeded = Some((turn.spot, over_ns));
            }
            if over_ns > 0 {
                self.lanes[guest].overruns.push_back((end, over_ns));
                self.lanes[guest].overruns.pop_front_if(|(at, _)| *at + 10 * SECOND < end);
            }
        }
        let (Some(client), Some(owner)) = (client, owner) else { return Ok(None) };
        // What is not judged ends the account.
        if !is_whole {
            self.lanes[owner].excess_ns = 0;
            return Ok(None);
        }
        self.judged += 1;
        let late_ns = self.busy_until(start + ERROR_NS, |of| of != owner).saturating_sub(start);
        let own = self.given.iter().filter(|given| {
            given.guest == owner && given.to > start && given.at <= end + ERROR_NS && given.at + (end - start) > start
        });
        let served = own.map(|given| (given.from.max(start), given.to)).collect::<Vec<_>>();
        let (from, to) = (served.first().map_or(end, |&(from, _)| from), served.last().map_or(start, |&(_, to)| to));
        let last = self.busy_until(end - ERROR_NS, |of| of == owner);
        let next_has = next_owner.is_some_and(|next| next != owner && self.lanes[next].idle_since.is_none());
        let lane = &mut self.lanes[owner];
        let allowed_ns = lane.allowed_ns(end, moment.round_ns);
        lane.slots += 1;
        lane.slots_ns += (end - start).saturating_sub(late_ns);
        lane.own_ns += served.iter().map(|(from, to)| to - from).sum::<Nanos>();
        // It may have more if the next owner has no use for its time, or is the same one.
        lane.excess_ns = if next_has { (lane.excess_ns + last).saturating_sub(end + ERROR_NS) } else { 0 };
        let excess_ns_max = (end - start) * 9 / 8 + FIT * lane.expected_ns(end);
        if lane.excess_ns > excess_ns_max {
            return Err(format!(
                "guest {owner} has exceeded its slots by {} ns until {:?}, {excess_ns_max} ns allowed",
                lane.excess_ns, turn.spot
            ));
        }
        let loses_ns = late_ns + allowed_ns + 2 * ERROR_NS;
        Ok(Some(Had { client, spot: turn.spot, from, to: to.min(end), loses_ns }))
    }

    /// Over many rounds: a tenant that always wanted its slots had their time.
    pub(super) fn over_all(&self) -> Result<(), String> {
        for (guest, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| lane.slots >= KEPT_SLOTS) {
            let Lane { slots, slots_ns, own_ns, .. } = *lane;
            if own_ns * 1000 < slots_ns * KEPT_PERMILLE {
                return Err(format!("guest {guest} had {own_ns} ns of the {slots_ns} ns of {slots} slots it wanted"));
            }
        }
        Ok(())
    }
}
