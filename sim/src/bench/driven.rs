//! A bench in a world of several servers: requests come from outside, and time is the world's.

use engine::Config;
use engine::Session;
use engine::control::{TenantSpec, WriteCache};
use engine::nbd::ORDER_SHIFT;
use engine::units::Nanos;

use super::{Bench, Costs, Done, Volume, Wake};
use crate::disk::drive::Drive;
use crate::load::{Request, Workload};

impl Bench {
    /// One volume for each tenant, `bytes` each, in a row from the beginning of the drive. Writes are durable when they
    /// are acknowledged. Clients number their requests.
    pub(crate) fn driven(
        config: Config,
        drive: Box<dyn Drive>,
        costs: Costs,
        tenants: &[TenantSpec],
        bytes: u64,
    ) -> Result<Bench, String> {
        let volume = |tenant: usize| Volume {
            tenant,
            start: tenant as u64 * bytes,
            bytes,
            write_cache: WriteCache::None,
            load: Workload::new(Vec::new(), 0),
        };
        let volumes = (0..tenants.len()).map(volume).collect();
        let session = Session { numbers: true, ..Session::default() };
        Ok(Bench { is_driven: true, ..Bench::with_session(config, drive, costs, tenants, volumes, session)? })
    }

    /// A request has arrived at the server. Its number is its order.
    pub(crate) fn arrives(&mut self, now: Nanos, volume: usize, request: Request) {
        self.queue.push(now, Wake::Arrive(volume, Request { id: request.id << ORDER_SHIFT, ..request }));
    }

    /// When something happens next.
    pub(crate) fn due_at(&self) -> Option<Nanos> {
        self.next_at()
    }

    /// What is due at `now`.
    pub(crate) fn step(&mut self, now: Nanos, done: &mut dyn FnMut(Done)) {
        self.now = now;
        self.happen(&mut |what| {
            let request = Request { id: what.request.id >> ORDER_SHIFT, ..what.request };
            done(Done { request, ..what });
        });
    }

    /// The time without an event.
    pub(crate) fn pass_to(&mut self, now: Nanos) {
        self.now = now;
    }
}
