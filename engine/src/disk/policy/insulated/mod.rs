//! Slices of disk time: the disk belongs to one tenant at a time, long enough that context switches cost little.
//!
//! ```text
//!   round  |  a's slice         |  b's slice  |      c's slice       |  a's ...
//!          |switch| issue |drain|
//!           the heads   queued and     no further request
//!           return      new requests,  would complete in time:
//!                       while they     the requests in the
//!                       fit            device complete
//! ```
//!
//! - The lengths of slices follow from R and the tenants' measured losses (`plan.rs`, `meter.rs`).
//! - How many requests fit follows from the tenant's service times. The overrun of a slice is subtracted from the
//!   tenant's next ones, and time left because the next request did not fit is added: deficits, as in deficit round
//!   robin (Shreedhar and Varghese 1995). So an overrun never costs the successor.
//! - A tenant without requests keeps its slice while its next request is likely to come soon (anticipatory idling).
//!   Then it forfeits the rest, and after three rounds without work it is not planned for. It returns to its old place
//!   with its next request.
//! - At most two sequential reads are in the device at once: a drive that reorders then keeps its place in the stream.
//! - While no other tenant wants the disk, a slice continues without a drain: a tenant alone loses nothing.
//! - A hung request delays the other tenants for [`STUCK_NS`] at most. Then they are served while it is in the device.
//!
//! Source: Argon (Wachs et al., FAST 2007), sections 3.4 and 4; `docs/design/slices.md`. Downside: response times are
//! rounds, not requests; devices that work on many requests in parallel are poorly utilised.

mod gap;
mod meter;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::queue::{Entry, Queue};
use super::{DiskTime, Policy, REQUEST_BYTES_LEAST, Settings, TenantPlan, depth_of_one};
use crate::disk::Op;
use crate::ids::{IoId, TenantId};
use crate::units::{Nanos, SECOND, Share};
use gap::Gap;
pub use gap::HOLD_MAX_NS;
use meter::{Meter, Watch};
use plan::Needs;

/// Rounds without work after which a tenant is not planned for. Argon, section 4.
const IDLE_ROUNDS: u32 = 3;
/// Time by which a drain may exceed its prediction: longer than a drive's own retries, if it answers at all. Then the
/// requests in the device count as hung.
pub const STUCK_NS: Nanos = 2 * SECOND;
/// At most two sequential reads are in the device at once, or more if they are small, up to these bytes: the next one
/// is there when one completes. Given a whole read-ahead window, command queueing may begin with the part that passes
/// first under the head, and complete last the block that the client waits for.
const FOLLOWERS_MAX: u32 = 2;
pub(crate) const FOLLOWING_BYTES: u64 = 256 << 10;
/// Number of past slices that are kept for display.
pub const SLICES_KEPT: usize = 64;

/// A past slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// Its owner.
    pub tenant: TenantId,
    /// When it began.
    pub begun: Nanos,
    /// When it ended.
    pub ended: Nanos,
    /// Standalone-equivalent time of its work.
    pub useful_ns: Nanos,
}

#[derive(Debug)]
struct Tenant {
    share: Option<Share>,
    /// The part of its slices, in thousandths, that it must not lose, if not the default.
    keep_permille: Option<u32>,
    queue: Queue,
    /// Requests in the device, and their cost.
    in_device: u32,
    in_device_ns: Nanos,
    /// Sequential reads in the device, and their bytes.
    followers: u32,
    following: u64,
    /// Hung requests in the device: all that were submitted until `stuck_until`.
    stuck: u32,
    stuck_until: Nanos,
    /// Time that remains of earlier slices; negative if they were exceeded.
    credit: i64,
    /// Time saved from its slices for a long one, which shows the meter a steady part that the usual slices do not
    /// show.
    saved: i64,
    /// Consecutive rounds without work.
    idle_rounds: u32,
    /// The tenant is backlogged: its last slice was used up, so its loss counts.
    is_greedy: bool,
    meter: Meter,
    gap: Gap,
    /// The tenant has been idle since then.
    idle_since: Nanos,
    /// The value of `Insulated::begun` since which it has had queued requests and a slice was due, but it did not own
    /// the disk.
    waiting_since: Option<u64>,
    owned_ns: Nanos,
    useful_ns: Nanos,
    slices: u64,
}

impl Tenant {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_device == self.stuck
    }

    /// Maximum number of its requests in a device of this depth, in which `stuck` requests of all tenants hang.
    fn depth(&self, depth: u32, stuck: u32) -> u32 {
        depth_of_one(depth, stuck - self.stuck)
    }

    /// Whether a request of the tenant could be submitted if it owned the disk: one is queued, and its hung requests
    /// leave it a place in the device.
    fn wants_disk(&self, depth: u32, stuck: u32) -> bool {
        !self.queue.is_empty() && self.stuck < self.depth(depth, stuck)
    }

    /// Whether the disk should idle for the tenant: it is idle, and its next request is likely to come before its idle
    /// timeout.
    fn is_expected(&self, now: Nanos) -> bool {
        let patience = self.gap.patience();
        self.idle_rounds < IDLE_ROUNDS && self.is_idle() && patience <= HOLD_MAX_NS && now < self.idle_since + patience
    }

    /// Its slice is skipped because it has no work. It keeps its debt and forfeits its credit.
    fn passes(&mut self) {
        (self.credit, self.saved) = (self.credit.min(0), 0);
        self.idle_rounds = self.idle_rounds.saturating_add(1);
    }

    /// No slice was due to it in this round: its queued requests have waited for others' slices only since `begun`.
    fn wait_anew(&mut self, begun: u64) {
        self.waiting_since = self.waiting_since.map(|_| begun);
    }

    /// At the beginning of a slice: if the meter needs a long slice, a quarter of the time is saved for one. A long
    /// slice has at most `most_ns`, so that no tenant waits longer than two rounds. True if this slice is a long one.
    fn save(&mut self, most_ns: Nanos, is_time: bool) -> bool {
        let look_ns = self.meter.look_ns().map_or(0, |look| look.min(most_ns) as i64);
        if self.credit + self.saved < look_ns {
            let part = self.credit / 4;
            (self.credit, self.saved) = (self.credit - part, self.saved + part);
            return false;
        }
        let spends = self.saved > 0 && is_time;
        if spends {
            self.credit += std::mem::take(&mut self.saved);
        }
        spends
    }
}

/// The slice in progress.
#[derive(Debug)]
struct Current {
    owner: usize,
    begun: Nanos,
    /// When it should end.
    ends: Nanos,
    /// When the drain began: nothing more is issued.
    draining: Option<Nanos>,
    /// The owner is idle, and the disk idles for it until then.
    held_until: Option<Nanos>,
    issued: u32,
    /// The next request waits for requests in the device to complete: earlier sequential reads, or as many requests as
    /// the owner may have there.
    is_held_up: bool,
    watch: Watch,
}

/// The policy.
#[derive(Debug)]
pub(crate) struct Insulated {
    settings: Settings,
    tenants: Vec<Option<Tenant>>,
    /// The tenant that was considered last in the round.
    turn: usize,
    current: Option<Current>,
    /// The plan: the slice of each tenant, and the round.
    lengths: Vec<Nanos>,
    round_ns: Nanos,
    is_planned: bool,
    /// The input of the plan; its memory is reused.
    needs: Vec<Option<Needs>>,
    waiting: usize,
    /// Hung requests in the device, of all tenants.
    stuck: u32,
    /// Number of slices that have begun, and that number when the last long one began: one long slice per round is
    /// enough.
    begun: u64,
    looked: u64,
    slices: VecDeque<Slice>,
    time: DiskTime,
}

impl Insulated {
    pub(crate) fn new(settings: Settings) -> Insulated {
        Insulated {
            settings,
            tenants: Vec::new(),
            turn: 0,
            current: None,
            lengths: Vec::new(),
            round_ns: 0,
            is_planned: false,
            needs: Vec::new(),
            waiting: 0,
            stuck: 0,
            begun: 0,
            looked: 0,
            slices: VecDeque::with_capacity(SLICES_KEPT),
            time: DiskTime::default(),
        }
    }

    fn tenant(&mut self, id: usize) -> &mut Tenant {
        self.tenants[id].as_mut().expect("a tenant")
    }

    /// The efficiency target of slices: a quarter of the permitted loss, 1 - R, is a reserve for what the plan does not
    /// foresee.
    fn keep_permille(&self) -> u32 {
        let keep = self.settings.insulation_permille.min(999);
        keep + (1000 - keep) / 4
    }

    fn make_plan(&mut self) {
        let (switch_ns, keep_permille) = (self.settings.switch_ns, self.keep_permille());
        let lost_permille = |tenant: &Tenant| 1000 - tenant.keep_permille.unwrap_or(keep_permille).min(999);
        let needs = |tenant: &Tenant| Needs {
            share: tenant.share,
            active: tenant.idle_rounds < IDLE_ROUNDS,
            slice_ns: tenant.is_greedy.then(|| tenant.meter.need_ns(lost_permille(tenant), switch_ns)),
        };
        self.needs.clear();
        self.needs.extend(self.tenants.iter().map(|tenant| tenant.as_ref().map(needs)));
        self.round_ns = plan::slices(&self.needs, self.settings.round_max_ns, &mut self.lengths);
        self.is_planned = true;
    }

    /// Begins the slice of the next tenant in the round. False if no tenant wants the disk.
    fn begin(&mut self, now: Nanos) -> bool {
        let (depth, stuck) = (self.settings.depth, self.stuck);
        if self.waiting == 0 || !self.tenants.iter().flatten().any(|tenant| tenant.wants_disk(depth, stuck)) {
            return false;
        }
        // All waiting tenants may have debts: then as many rounds are skipped as the smallest debt takes, more if the
        // plan has changed meanwhile.
        while !self.pass(now) {
            self.skip_rounds();
        }
        true
    }

    /// Considers each tenant once, until one takes the disk.
    fn pass(&mut self, now: Nanos) -> bool {
        let count = self.tenants.len();
        for _ in 0..count {
            let (depth, stuck) = (self.settings.depth, self.stuck);
            let goes_on = |tenant: &Tenant| planted!(TurnNotPassed) && tenant.wants_disk(depth, stuck);
            if !self.tenants[self.turn].as_ref().is_some_and(goes_on) {
                self.turn = (self.turn + 1) % count;
            }
            if self.turn == 0 || !self.is_planned {
                self.make_plan();
            }
            let length = self.lengths[self.turn];
            let Some(tenant) = &mut self.tenants[self.turn] else { continue };
            let places = tenant.depth(depth, stuck);
            if !tenant.wants_disk(depth, stuck) && !tenant.is_expected(now) {
                tenant.passes();
                tenant.wait_anew(self.begun);
                continue;
            }
            tenant.credit += length as i64;
            if tenant.credit <= 0 {
                tenant.wait_anew(self.begun);
                continue;
            }
            let is_time = self.begun >= self.looked + self.lengths.len() as u64;
            if tenant.save(length.saturating_add(self.round_ns), is_time) {
                self.looked = self.begun;
            }
            let at_once = (places as usize).saturating_sub(tenant.in_device as usize);
            if !tenant.queue.is_empty() {
                tenant.meter.begin(tenant.queue.cost_ns(at_once, FOLLOWING_BYTES));
            }
            tenant.waiting_since = None;
            self.begun += 1;
            self.current = Some(Current {
                owner: self.turn,
                begun: now,
                ends: now + tenant.credit as Nanos,
                draining: None,
                held_until: None,
                issued: 0,
                is_held_up: false,
                watch: tenant.meter.watch(now),
            });
            return true;
        }
        false
    }

    /// The slice ends, and no other tenant has work: the owner's next slice follows without a drain. It counts as a
    /// round without work for the others, so that they do not stay in the plan during a slice that continues for hours.
    fn go_on(&mut self, now: Nanos, cost_ns: Nanos) {
        let owner = self.current.as_ref().expect("a slice").owner;
        for (_, tenant) in self.tenants.iter_mut().enumerate().filter(|&(at, _)| at != owner) {
            let Some(tenant) = tenant else { continue };
            tenant.passes();
            self.is_planned &= tenant.idle_rounds != IDLE_ROUNDS;
        }
        if !self.is_planned {
            self.make_plan();
        }
        let current = self.current.as_mut().expect("a slice");
        let tenant = self.tenants[current.owner].as_ref().expect("a tenant");
        let drain_ns = tenant.meter.drain_ns(tenant.in_device_ns + cost_ns);
        current.ends = now + self.lengths[current.owner].max(drain_ns);
    }

    /// Skips at once the rounds in which all waiting tenants have debts.
    fn skip_rounds(&mut self) {
        let (depth, stuck) = (self.settings.depth, self.stuck);
        let waiting = |tenant: &Option<Tenant>| tenant.as_ref().is_some_and(|tenant| tenant.wants_disk(depth, stuck));
        let owing = self.tenants.iter().zip(&self.lengths).filter(|(tenant, _)| waiting(tenant));
        let rounds = owing.map(|(tenant, &length)| {
            let debt = tenant.as_ref().map_or(0, |tenant| tenant.credit.min(0).unsigned_abs());
            debt / length
        });
        let rounds = rounds.min().unwrap_or(0);
        for (tenant, &length) in self.tenants.iter_mut().zip(&self.lengths) {
            if waiting(tenant)
                && let Some(tenant) = tenant
            {
                tenant.credit += (rounds * length) as i64;
            }
        }
    }

    /// Ends the slice; `used_up` if its owner had more requests.
    fn end(&mut self, now: Nanos, used_up: bool) {
        let current = self.current.take().expect("a slice");
        let length = self.lengths[current.owner] as i64;
        let tenant = self.tenants[current.owner].as_mut().expect("a tenant");
        let useful_ns = tenant.meter.slice(now, &current.watch, used_up);
        tenant.slices += 1;
        tenant.waiting_since = (!tenant.queue.is_empty()).then_some(self.begun);
        if used_up || !planted!(IdleSliceNotBooked) {
            let owned_ns = now - current.begun;
            tenant.owned_ns += owned_ns;
            tenant.useful_ns += useful_ns;
            self.time.tenant_ns += useful_ns;
            self.time.switch_ns += owned_ns - useful_ns;
        }
        tenant.is_greedy = used_up;
        let left = current.ends as i64 - now as i64;
        // Time left because the next request did not fit is less than that request takes.
        let most = if used_up { length } else { 0 };
        tenant.credit = left.clamp(-(self.settings.round_max_ns as i64), most);
        if self.slices.len() == SLICES_KEPT {
            self.slices.pop_front();
        }
        let id = TenantId(current.owner as u32);
        self.slices.push_back(Slice { tenant: id, begun: current.begun, ended: now, useful_ns });
    }
}

impl Insulated {
    /// Whether a tenant other than the owner was served recently and is likely to send its next request at once: a
    /// client with one request outstanding has none queued at the moment at which a slice ends.
    fn is_expected(&self, now: Nanos, owner: usize) -> bool {
        let expected = |tenant: &Tenant| tenant.is_expected(now);
        self.tenants.iter().enumerate().any(|(at, tenant)| at != owner && tenant.as_ref().is_some_and(expected))
    }
}

impl Policy for Insulated {
    fn set_tenant(&mut self, now: Nanos, tenant: TenantId, share: Option<Share>) {
        let at = tenant.0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize_with(at + 1, || None);
            self.lengths.resize(at + 1, 0);
        }
        match &mut self.tenants[at] {
            Some(tenant) => tenant.share = share,
            none => {
                *none = Some(Tenant {
                    share,
                    keep_permille: None,
                    queue: Queue::default(),
                    in_device: 0,
                    in_device_ns: 0,
                    followers: 0,
                    following: 0,
                    stuck: 0,
                    stuck_until: 0,
                    credit: 0,
                    saved: 0,
                    idle_rounds: IDLE_ROUNDS,
                    is_greedy: true,
                    meter: Meter::default(),
                    gap: Gap::UNKNOWN,
                    idle_since: now,
                    waiting_since: None,
                    owned_ns: 0,
                    useful_ns: 0,
                    slices: 0,
                });
            }
        }
        self.is_planned = false;
    }

    fn set_keep(&mut self, tenant: TenantId, keep_permille: Option<u32>) {
        self.tenant(tenant.0 as usize).keep_permille = keep_permille;
    }

    fn drop_tenant(&mut self, now: Nanos, tenant: TenantId) {
        let at = tenant.0 as usize;
        if self.current.as_ref().is_some_and(|current| current.owner == at) {
            self.end(now, false);
        }
        let gone = self.tenants[at].take();
        debug_assert!(gone.is_none_or(|tenant| tenant.queue.is_empty() && tenant.in_device == 0), "it has volumes");
        self.is_planned = false;
    }

    fn arrived(&mut self, now: Nanos, tenant: TenantId, entry: Entry, urgent: bool) {
        let at = tenant.0 as usize;
        let tenant = self.tenants[at].as_mut().expect("a tenant");
        if tenant.is_idle() {
            tenant.gap.add(now - tenant.idle_since);
        }
        if tenant.idle_rounds >= IDLE_ROUNDS {
            self.is_planned = false;
        }
        tenant.idle_rounds = 0;
        tenant.queue.push(entry, urgent);
        if self.current.as_ref().is_none_or(|current| current.owner != at) {
            tenant.waiting_since.get_or_insert(self.begun);
        }
        self.waiting += 1;
    }

    fn hurry(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool) {
        self.tenant(tenant.0 as usize).queue.hurry(wanted);
    }

    fn withdraw(&mut self, now: Nanos, tenant: TenantId, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>) {
        let before = dropped.len();
        let tenant = self.tenants[tenant.0 as usize].as_mut().expect("a tenant");
        tenant.queue.withdraw(unwanted, dropped);
        self.waiting -= dropped.len() - before;
        tenant.waiting_since = tenant.waiting_since.filter(|_| !tenant.queue.is_empty());
        if dropped.len() > before && tenant.is_idle() {
            tenant.idle_since = now;
        }
    }

    fn next(&mut self, now: Nanos, in_device: u32) -> Option<IoId> {
        loop {
            if self.current.is_none() && !self.begin(now) {
                return None;
            }
            let current = self.current.as_mut().expect("a slice");
            let owner = current.owner;
            let tenant = self.tenants[owner].as_mut().expect("a tenant");
            let out = tenant.in_device - tenant.stuck;
            let others = tenant.queue.len() < self.waiting;
            if let Some(since) = current.draining {
                if out == 0 || planted!(SliceNotDrained) {
                    self.end(now, true);
                } else if planted!(HungRequestHoldsSlice)
                    || now < since + tenant.meter.drain_ns(tenant.in_device_ns) + STUCK_NS
                {
                    return None;
                } else {
                    self.stuck += out;
                    (tenant.stuck, tenant.stuck_until) = (tenant.in_device, now);
                    (tenant.followers, tenant.following) = (0, 0);
                    self.time.stuck += u64::from(out);
                    self.end(now, true);
                }
                continue;
            }
            let depth = tenant.depth(self.settings.depth, self.stuck);
            if in_device >= self.settings.depth && out == 0 {
                return None;
            }
            let is_full = in_device >= self.settings.depth || tenant.in_device >= depth;
            current.is_held_up = is_full && others;
            let Some(entry) = tenant.queue.peek().copied().filter(|_| !is_full) else {
                if out > 0 {
                    if now < current.ends || !others {
                        return None;
                    }
                    // The slice is over, and the owner's requests in the device may hang.
                    current.draining = Some(now);
                    current.watch.drain(now, tenant.in_device - tenant.stuck, tenant.in_device_ns);
                    continue;
                }
                // The owner is idle: the disk idles for it until its idle timeout.
                let until = (tenant.idle_since + tenant.gap.patience()).min(current.ends);
                if tenant.is_expected(now) && now < until {
                    current.held_until = Some(until);
                    return None;
                }
                self.end(now, false);
                continue;
            };
            current.held_until = None;
            let left = current.ends.saturating_sub(now);
            let fits = tenant.meter.drain_ns(tenant.in_device_ns + entry.cost_ns) <= left;
            if !fits && current.issued > 0 {
                if others || self.is_expected(now, owner) {
                    let current = self.current.as_mut().expect("a slice");
                    let tenant = self.tenants[owner].as_ref().expect("a tenant");
                    current.draining = Some(now);
                    current.watch.drain(now, tenant.in_device - tenant.stuck, tenant.in_device_ns);
                } else {
                    self.go_on(now, entry.cost_ns);
                }
                continue;
            }
            let are_many = tenant.followers >= FOLLOWERS_MAX && tenant.following >= FOLLOWING_BYTES;
            current.is_held_up = entry.reads_on() && are_many;
            if current.is_held_up {
                return None;
            }
            tenant.queue.pop();
            self.waiting -= 1;
            current.issued += 1;
            current.watch.issued(now, &entry);
            if entry.reads_on() {
                tenant.followers += 1;
                tenant.following += entry.len;
            }
            tenant.in_device += 1;
            tenant.in_device_ns += entry.cost_ns;
            return Some(entry.io);
        }
    }

    fn done(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, submitted: Nanos) {
        let cost_ns = entry.cost_ns;
        let at = tenant.0 as usize;
        let tenant = self.tenants[at].as_mut().expect("a tenant");
        tenant.in_device -= 1;
        tenant.in_device_ns -= cost_ns;
        if tenant.stuck > 0 && submitted <= tenant.stuck_until {
            (tenant.stuck, self.stuck) = (tenant.stuck - 1, self.stuck - 1);
            return;
        }
        if entry.reads_on() {
            // A request that was submitted at the very moment at which others were declared hung may have been counted
            // as one of them.
            tenant.followers = tenant.followers.saturating_sub(1);
            tenant.following = tenant.following.saturating_sub(entry.len);
        }
        if let Some(current) = self.current.as_mut().filter(|current| current.owner == at && !entry.internal) {
            current.watch.done(now, cost_ns, tenant.in_device - tenant.stuck + 1);
        }
        if tenant.is_idle() {
            tenant.idle_since = now;
        }
    }

    /// An eighth of a slice (`docs/design/slices.md`), so that little of it is lost because the next request does not
    /// fit. A tenant alone is not limited.
    fn request_bytes_max(&self, tenant: TenantId, _op: Op) -> u64 {
        let at = tenant.0 as usize;
        let alone = self.needs.iter().flatten().filter(|needs| needs.active).count() < 2;
        match &self.tenants[at] {
            Some(tenant) if !alone => tenant.meter.bytes_in(self.lengths[at] / 8).max(REQUEST_BYTES_LEAST),
            _ => u64::MAX,
        }
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        let current = self.current.as_ref()?;
        let tenant = self.tenants[current.owner].as_ref()?;
        match current.draining {
            Some(since) => Some(since + tenant.meter.drain_ns(tenant.in_device_ns) + STUCK_NS),
            None if current.held_until.is_some() => current.held_until,
            // The owner only has requests in the device, which may hang, and another tenant waits.
            None => (current.is_held_up || tenant.queue.is_empty() && self.waiting > 0).then_some(current.ends),
        }
    }

    fn plan(&mut self, now: Nanos, tenant: TenantId) -> Option<TenantPlan> {
        if !self.is_planned {
            self.make_plan();
        }
        let (at, round_ns) = (tenant.0 as usize, self.round_ns);
        let slice_ns = self.lengths[at];
        let tenant = self.tenants[at].as_ref()?;
        let loss_ns = tenant.meter.loss_ns().unwrap_or(self.settings.switch_ns);
        let current = self.current.as_ref().filter(|current| current.owner == at);
        let (owned_ns, useful_ns) =
            current.map_or((0, 0), |current| (now - current.begun, tenant.meter.useful_ns(now, &current.watch)));
        Some(TenantPlan {
            slice_ns,
            round_ns,
            loss_ns,
            efficiency_permille: 1000 - (1000 * loss_ns).checked_div(slice_ns).unwrap_or(1000).min(1000) as u32,
            owned_ns: tenant.owned_ns + owned_ns,
            useful_ns: tenant.useful_ns + useful_ns,
            slices: tenant.slices,
            debt_ns: tenant.credit.min(0).unsigned_abs(),
            waiting_slices: tenant.waiting_since.map_or(0, |since| self.begun - since),
            need_ns: self.needs[at].filter(|needs| needs.active).and_then(|needs| needs.slice_ns),
            burst_ns: if tenant.is_greedy { tenant.meter.burst_ns() } else { 0 },
        })
    }

    fn set(&mut self, settings: Settings) {
        self.settings = settings;
        self.is_planned = false;
    }

    fn time(&self, now: Nanos) -> Option<DiskTime> {
        let mut time = self.time;
        if let Some(current) = &self.current {
            let useful_ns = self.tenants[current.owner].as_ref().map_or(0, |t| t.meter.useful_ns(now, &current.watch));
            time.tenant_ns += useful_ns;
            time.switch_ns += now - current.begun - useful_ns;
        }
        Some(time)
    }

    fn others_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        let owned_ns = self.tenants[tenant.0 as usize].as_ref().map_or(0, |tenant| tenant.owned_ns);
        let others = self.current.as_ref().filter(|current| current.owner != tenant.0 as usize);
        let current_ns = others.map_or(0, |current| now - current.begun);
        (self.time.tenant_ns + self.time.switch_ns + current_ns).saturating_sub(owned_ns)
    }

    fn slices(&self) -> Vec<Slice> {
        self.slices.iter().copied().collect()
    }
}
