//! What the tests of the baselines share: a scheduler, tenants that send requests, and a device of a fixed rate that
//! serves one request after the other, in the order of submission.

use std::collections::VecDeque;
use std::ops::Range;

use crate::Config;
use crate::disk::policy::{Kind, Settings};
use crate::disk::queue::Entry;
use crate::disk::scheduler::Scheduler;
use crate::ids::{IoId, TenantId};
use crate::spec::Terms;
use crate::units::{Nanos, SECOND, Share};

/// A request that went to the device, or that completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct One {
    pub(super) tenant: u32,
    pub(super) bytes: u64,
    pub(super) at: Nanos,
    /// Since it arrived.
    pub(super) latency_ns: Nanos,
    /// Requests in the device, with it.
    pub(super) in_device: u32,
}

pub(super) struct Rig {
    scheduler: Scheduler,
    rate: u64,
    hangs: bool,
    now: Nanos,
    /// When each request arrived, by number.
    arrived: Vec<Nanos>,
    /// Requests to come: when, the tenant, bytes.
    to_come: VecDeque<(Nanos, u32, u64)>,
    /// Requests that each tenant keeps under way, and their size.
    backlogs: Vec<(u32, u64)>,
    under_way: Vec<u32>,
    /// Tenant, request, when it was submitted.
    device: VecDeque<(TenantId, Entry, Nanos)>,
    /// When the first of them completes.
    completes_at: Nanos,
    pub(super) submitted: Vec<One>,
    pub(super) completed: Vec<One>,
}

impl Rig {
    /// Tenants by share, percent, and guarantee, bytes a second.
    pub(super) fn new(kind: Kind, rate: u64, tenants: &[(u64, u64)]) -> Rig {
        Rig::seeded(kind, 1, rate, tenants)
    }

    pub(super) fn seeded(kind: Kind, seed: u64, rate: u64, tenants: &[(u64, u64)]) -> Rig {
        // A request in the device is out of the policy's hands: only Façade is about many of them.
        let depth = if matches!(kind, Kind::Facade { .. }) { 128 } else { 1 };
        let settings = Settings { kind, depth, seed, ..Config::new(0).policy() };
        let mut scheduler = Scheduler::new(settings.build(false), depth);
        for (number, &(percent, min_bytes_per_s)) in tenants.iter().enumerate() {
            let share = Share::from_ppb(percent * 10_000_000);
            scheduler.set_tenant(0, TenantId(number as u32), Terms { min_bytes_per_s, ..share.into() });
        }
        Rig {
            scheduler,
            rate,
            hangs: false,
            now: 0,
            arrived: Vec::new(),
            to_come: VecDeque::new(),
            backlogs: vec![(0, 0); tenants.len()],
            under_way: vec![0; tenants.len()],
            device: VecDeque::new(),
            completes_at: 0,
            submitted: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// Requests in the device never complete.
    pub(super) fn hang(&mut self) {
        self.hangs = true;
    }

    /// The tenant sends a read now.
    pub(super) fn ask(&mut self, tenant: u32, len: u64) {
        let io = IoId(self.arrived.len() as u32);
        self.arrived.push(self.now);
        self.under_way[tenant as usize] += 1;
        let entry = Entry { io, len, ..Entry::EMPTY };
        self.scheduler.arrived(self.now, TenantId(tenant), entry, false);
    }

    /// The tenant sends a read later.
    pub(super) fn ask_at(&mut self, tenant: u32, at: Nanos, len: u64) {
        self.to_come.push_back((at, tenant, len));
    }

    /// The tenant keeps `depth` requests under way.
    pub(super) fn backlog(&mut self, tenant: u32, depth: u32, len: u64) {
        self.backlogs[tenant as usize] = (depth, len);
    }

    /// Bytes of a tenant that completed in a period.
    pub(super) fn bytes(&self, tenant: u32, period: Range<Nanos>) -> u64 {
        self.completed.iter().filter(|one| one.tenant == tenant && period.contains(&one.at)).map(|one| one.bytes).sum()
    }

    fn one(&self, tenant: TenantId, entry: &Entry) -> One {
        let latency_ns = self.now - self.arrived[entry.io.0 as usize];
        let in_device = self.scheduler.in_device();
        One { tenant: tenant.0, bytes: entry.len, at: self.now, latency_ns, in_device }
    }

    /// All that happens at this time.
    fn step(&mut self) {
        while let Some((_, tenant, len)) = self.to_come.pop_front_if(|&mut (at, ..)| at <= self.now) {
            self.ask(tenant, len);
        }
        for tenant in 0..self.backlogs.len() {
            let (depth, len) = self.backlogs[tenant];
            while self.under_way[tenant] < depth {
                self.ask(tenant as u32, len);
            }
        }
        while let Some((tenant, entry)) = self.scheduler.next(self.now) {
            if self.device.is_empty() {
                self.completes_at = self.now + entry.len * SECOND / self.rate;
            }
            self.device.push_back((tenant, entry, self.now));
            self.submitted.push(self.one(tenant, &entry));
        }
    }

    /// Runs until this time.
    pub(super) fn run(&mut self, until: Nanos) {
        loop {
            self.step();
            let completes = (!self.device.is_empty() && !self.hangs).then_some(self.completes_at);
            let comes = self.to_come.front().map(|&(at, ..)| at);
            let asks = self.scheduler.poll_timeout();
            let next = [completes, comes, asks].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next < until) else { break };
            assert!(next > self.now || completes == Some(next), "no progress at {}", self.now);
            self.now = next;
            if completes == Some(next) {
                let (tenant, entry, submitted) = self.device.pop_front().expect("a request completes");
                self.completed.push(self.one(tenant, &entry));
                self.under_way[tenant.0 as usize] -= 1;
                self.scheduler.done(next, tenant, &entry, submitted);
                if let Some((_, entry, _)) = self.device.front() {
                    self.completes_at = next + entry.len * SECOND / self.rate;
                }
            }
        }
        self.now = until;
    }
}
