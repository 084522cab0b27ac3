//! The requests of each tenant that are not complete: queued, in the device, hung. All policies share them, and the
//! bounds on requests in the device.
//!
//! ```text
//!   arrived ─► queue (`queue.rs`) ─► in the device ─► done
//!                        depth, and      └─► hung: given up, so that other tenants are served meanwhile;
//!                        places of one       it keeps its place until it completes
//! ```
//!
//! A tenant whose requests all hang, because its file hangs, must not fill the device. So each tenant may have at most
//! three quarters of the depth that the others leave there (dynamic thresholds, Choudhury and Hahne 1998). If the
//! policy detects hung requests, only those of the others count. Otherwise all of them might hang, so all of them
//! count; then a tenant alone on the disk may use the whole depth, because it would always be at the bound.
//!
//! Downside: a tenant next to idle ones has a quarter less of the depth than alone; and four tenants whose requests all
//! hang still fill a device of the usual depth of 128.

use std::ops::Index;

use super::queue::{Entry, Queue, Which};
use crate::ids::{IoId, TenantId};
use crate::slab::Table;
use crate::units::{Nanos, SECOND};

/// Time without progress after which requests in the device count as hung: longer than a drive's own retries, if it
/// answers at all.
pub const STUCK_NS: Nanos = 2 * SECOND;

/// The requests of one tenant.
#[derive(Default, Debug)]
pub(crate) struct Lane {
    pub(crate) queue: Queue,
    /// Requests in the device, and their cost.
    in_device: u32,
    in_device_ns: Nanos,
    /// The hung ones among them: all that were submitted until `hung_at`.
    hung: u32,
    hung_ns: Nanos,
    hung_at: Nanos,
    /// Requests that were left when another tenant was served after it.
    left: usize,
}

impl Lane {
    /// Requests in the device, hung ones included.
    pub(crate) fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Requests in the device that do not hang.
    pub(crate) fn in_service(&self) -> u32 {
        self.in_device - self.hung
    }

    /// Whether a request hangs.
    pub(crate) fn hangs(&self) -> bool {
        self.hung > 0
    }

    /// The cost of the requests in the device that do not hang.
    pub(crate) fn in_service_ns(&self) -> Nanos {
        self.in_device_ns.saturating_sub(self.hung_ns)
    }

    fn outstanding(&self) -> usize {
        self.queue.len() + self.in_service() as usize
    }

    /// Whether no request is queued, and none in the device except hung ones.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_service() == 0
    }
}

/// The requests of all tenants.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Table<TenantId, Lane>,
    /// Maximum number of requests in the device.
    depth: u32,
    /// Whether the policy detects hung requests.
    detects_hung: bool,
    tenants: u32,
    waiting: usize,
    /// Requests in the device, with those that an earlier policy submitted.
    in_device: u32,
    /// Requests in the device that this policy submitted and that do not hang.
    in_service: u32,
    hung: u32,
    /// The tenant that was served last.
    served: Option<TenantId>,
}

/// Maximum number of requests of one tenant in a device of this depth, in which requests of other tenants occupy
/// `of_others` places. However many requests of the tenant hang, a quarter of the remaining places stays free for the
/// next tenant.
fn depth_of_one(depth: u32, of_others: u32) -> u32 {
    let left = depth.saturating_sub(of_others);
    (left - if planted!(HungRequestsTakeAllPlaces) { 0 } else { left / 4 }).max(1)
}

impl Lanes {
    pub(crate) fn new(depth: u32, detects_hung: bool) -> Lanes {
        Lanes {
            lanes: Table::default(),
            depth,
            detects_hung,
            tenants: 0,
            waiting: 0,
            in_device: 0,
            in_service: 0,
            hung: 0,
            served: None,
        }
    }

    /// Empty lanes of the same tenants, for another policy. Requests in the device still occupy it.
    pub(crate) fn renewed(&self, depth: u32, detects_hung: bool) -> Lanes {
        let mut lanes = Lanes { in_device: self.in_device, ..Lanes::new(depth, detects_hung) };
        self.lanes.iter().for_each(|(tenant, _)| lanes.add(tenant));
        lanes
    }

    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    /// Adds a tenant, unless it is there.
    pub(crate) fn add(&mut self, tenant: TenantId) {
        if self.lanes.get(tenant).is_none() {
            self.lanes.insert(tenant, Lane::default());
            self.tenants += 1;
        }
    }

    /// Removes a tenant without queued requests.
    pub(crate) fn remove(&mut self, tenant: TenantId) {
        if let Some(lane) = self.lanes.remove(tenant) {
            debug_assert!(lane.queue.is_empty(), "its volumes are closed");
            self.tenants -= 1;
            (self.hung, self.in_service) = (self.hung - lane.hung, self.in_service - lane.in_service());
        }
    }

    /// Queues a request; an urgent one (a flush or a writer waits for it) ahead of the tenant's others.
    pub(crate) fn push(&mut self, tenant: TenantId, entry: Entry, urgent: bool) {
        self.lanes[tenant].queue.push(entry, urgent);
        self.waiting += 1;
    }

    /// Promotes the tenant's queued requests that `wanted` selects: they become urgent.
    pub(crate) fn promote(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool) {
        self.lanes[tenant].queue.promote(wanted);
    }

    /// Cancels the tenant's queued requests that `unwanted` selects, and adds them to `dropped`.
    pub(crate) fn withdraw(&mut self, tenant: TenantId, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>) {
        let before = dropped.len();
        self.lanes[tenant].queue.withdraw(unwanted, dropped);
        self.waiting -= dropped.len() - before;
    }

    /// Submits the next one of these requests of the tenant.
    pub(crate) fn submit(&mut self, tenant: TenantId, which: Which) -> Entry {
        if self.served != Some(tenant)
            && let Some(before) = self.served.replace(tenant)
            && let Some(before) = self.lanes.get_mut(before)
        {
            before.left = before.outstanding();
        }
        let lane = &mut self.lanes[tenant];
        let entry = lane.queue.pop_of(which).expect("a queued request");
        lane.in_device += 1;
        lane.in_device_ns += entry.cost_ns;
        self.waiting -= 1;
        (self.in_device, self.in_service) = (self.in_device + 1, self.in_service + 1);
        entry
    }

    /// A request completed that this policy submitted to the device at `submitted`. Whether it hung.
    pub(crate) fn done(&mut self, tenant: TenantId, entry: &Entry, submitted: Nanos) -> bool {
        self.left();
        let Some(lane) = self.lanes.get_mut(tenant) else { return true };
        lane.in_device -= 1;
        lane.in_device_ns -= entry.cost_ns;
        // A request that was submitted at the very moment at which others were given up may be taken for one of them.
        let hung = lane.hung > 0 && submitted <= lane.hung_at;
        if hung {
            (lane.hung, self.hung) = (lane.hung - 1, self.hung - 1);
            lane.hung_ns = if lane.hung == 0 { 0 } else { lane.hung_ns.saturating_sub(entry.cost_ns) };
        } else {
            self.in_service -= 1;
        }
        hung
    }

    /// A request completed that an earlier policy submitted to the device.
    pub(crate) fn left(&mut self) {
        self.in_device -= 1;
    }

    /// Gives up the requests of a tenant that are in the device: they hang. Returns their number.
    pub(crate) fn give_up(&mut self, now: Nanos, tenant: TenantId) -> u32 {
        let lane = &mut self.lanes[tenant];
        let given_up = lane.in_service();
        if given_up > 0 {
            (lane.hung, lane.hung_ns, lane.hung_at) = (lane.in_device, lane.in_device_ns, now);
            (self.hung, self.in_service) = (self.hung + given_up, self.in_service - given_up);
        }
        given_up
    }

    /// The tenants that have a request queued which may go to the device now.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (TenantId, &Lane)> {
        self.lanes.iter().filter(|(_, lane)| !lane.queue.is_empty() && self.has_place(lane))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, &Lane)> {
        self.lanes.iter()
    }

    /// The requests of a tenant that are not complete: all of them if it was served last, otherwise those that were
    /// left then, and are still.
    pub(crate) fn load(&self, tenant: TenantId) -> u32 {
        let Some(lane) = self.lanes.get(tenant) else { return 0 };
        let left = if self.served.is_none_or(|served| served == tenant) { usize::MAX } else { lane.left };
        lane.outstanding().min(left) as u32
    }

    /// Queued requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Requests in the device.
    pub(crate) fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Requests in the device that this policy submitted and that do not hang.
    pub(crate) fn in_service(&self) -> u32 {
        self.in_service
    }

    /// Whether the device takes no further request.
    pub(crate) fn is_full(&self) -> bool {
        self.in_device >= self.depth
    }

    /// Maximum number of requests of the tenant in the device.
    pub(crate) fn places(&self, lane: &Lane) -> u32 {
        match self.detects_hung {
            true => depth_of_one(self.depth, self.hung - lane.hung),
            false if self.tenants < 2 => self.depth,
            false => depth_of_one(self.depth, self.in_device.saturating_sub(lane.in_device)),
        }
    }

    /// Whether one more request of the tenant may go to the device.
    pub(crate) fn has_place(&self, lane: &Lane) -> bool {
        !self.is_full() && lane.in_device < self.places(lane)
    }

    /// Whether a request of the tenant could be submitted if it had the device to itself: one is queued, and its hung
    /// requests leave it a place in the device.
    pub(crate) fn wants_device(&self, lane: &Lane) -> bool {
        !lane.queue.is_empty() && lane.hung < self.places(lane)
    }
}

impl Index<TenantId> for Lanes {
    type Output = Lane;
    fn index(&self, tenant: TenantId) -> &Lane {
        &self.lanes[tenant]
    }
}
