//! The data path allocates nothing: hits, misses, writes, write-back and flushes of a server that has run for a while.

use engine::control::{Command, LEAST_BYTES, TenantSpec, VolumeSpec};
use engine::disk::policy::Kind;
use engine::ids::{ConnId, IoId, TenantId, VolumeId};
use engine::nbd::wire::command;
use engine::nbd::{Form, RawHeader};
use engine::plan::Planner;
use engine::units::{BLOCK, MILLISECOND, Nanos};
use engine::{Action, Config, Event, Receive, Server, Session};

const CONN: ConnId = ConnId(0);
/// Twice as many blocks as the cache has.
const BLOCKS: u64 = 16 * LEAST_BYTES / BLOCK;
const WARM_UP: u64 = 20_000;
/// Requests of a window, and windows: 20 ms, in which there is at most one review of the tenants, once a second.
const WINDOW: u64 = 500;
const WINDOWS: u64 = 20;

/// A server with a driver that completes device requests at once, and allocates nothing either.
struct Rig {
    server: Server,
    /// It is on another thread, so what it allocates does not count.
    planner: Planner,
    now: Nanos,
    device: Vec<IoId>,
    answered: u64,
    /// Time between requests.
    gap: Nanos,
}

impl Rig {
    fn new(policy: Kind, needs_slices: bool) -> Rig {
        let config = Config { policy, needs_slices, ..Config::new(8 * LEAST_BYTES) };
        let mut rig = Rig {
            planner: Planner::new(&config),
            server: Server::new(config),
            now: 0,
            device: Vec::with_capacity(1024),
            answered: 0,
            gap: MILLISECOND,
        };
        // A second tenant, so that policies have to choose. Baselines are about guarantees; this one limits nothing.
        let min_bytes_per_s = if policy == Kind::Insulated { 0 } else { 1 << 40 };
        for number in 0..2 {
            let (tenant, volume) = (TenantId(number), VolumeId(number));
            let spec = TenantSpec { min_bytes_per_s, ..TenantSpec::default() };
            rig.handle(Event::Control { token: 1, command: Command::SetTenant(tenant, spec) });
            let spec = VolumeSpec::plain(volume, tenant, BLOCKS * BLOCK);
            rig.handle(Event::Control { token: 2, command: Command::OpenVolume(spec) });
        }
        rig.handle(Event::Attach { conn: CONN, volume: VolumeId(0), session: Session::default() });
        rig
    }

    fn handle(&mut self, event: Event<'_>) {
        self.server.handle(self.now, event);
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Submit(io) => self.device.push(io),
                Action::Send(conn) => {
                    let bytes = self.server.outgoing(conn).map(|part| part.bytes()).sum();
                    self.answered += 1;
                    self.server.handle(self.now, Event::Sent { conn, bytes });
                }
                Action::Work(tenant) => self.server.handle(self.now, Event::Work { tenant }),
                Action::Close(conn, why) => panic!("{conn:?} is closed: {why:?}"),
                Action::Copy { .. } | Action::Zero { .. } | Action::Receive(_) | Action::Gone(_) => {}
                Action::Evidence(evidence) => {
                    let mut targets = None;
                    allocation_counter::opt_out(|| targets = Some(Box::new(self.planner.handle(*evidence))));
                    self.server.handle(self.now, Event::Targets(targets.expect("just made")));
                }
                Action::Retired | Action::Report { .. } => {}
                Action::Upstream { .. } | Action::Sum(_) => unreachable!("no volume is on another server"),
            }
        }
        while self.server.take_spent().is_some() {}
    }

    /// A request, its payload, and all that the device and timers have to do until it is answered.
    fn ask(&mut self, command: u16, block: u64, blocks: u64) {
        let header = RawHeader::new(Form::Simple, command, 0, 0, block * BLOCK, blocks * BLOCK);
        self.now += self.gap;
        let before = self.answered;
        self.handle(Event::Header { conn: CONN, since: self.now, header: &header });
        while let Receive::Payload(bytes) = self.server.receive(CONN) {
            self.handle(Event::Payload { conn: CONN, bytes });
        }
        loop {
            while let Some(io) = self.device.pop() {
                self.handle(Event::IoDone { io, since: self.now, result: Ok(()) });
            }
            if self.answered > before {
                return;
            }
            self.now = self.server.poll_timeout().expect("it waits for something").max(self.now);
            self.handle(Event::Timer);
        }
    }
}

/// Runs `request` until nothing grows any more, then counts what further runs allocate.
fn count(mut request: impl FnMut(&mut Rig, u64)) {
    for (policy, needs_slices) in Kind::ALL.map(|kind| (kind, true)).into_iter().chain([(Kind::Insulated, false)]) {
        let mut rig = Rig::new(policy, needs_slices);
        (0..WARM_UP).for_each(|at| request(&mut rig, at));
        rig.gap = 2000;
        let mut window = |from: u64| {
            let measured = allocation_counter::measure(|| (from..from + WINDOW).for_each(|at| request(&mut rig, at)));
            measured.count_total
        };
        let mut counts: Vec<u64> = (0..WINDOWS).map(|at| window(WARM_UP + at * WINDOW)).collect();
        counts.sort_unstable();
        // The last one may have the review.
        counts.pop();
        assert!(counts.iter().all(|&count| count == 0), "{policy:?}, slices: {needs_slices}: {counts:?}");
    }
}

/// A pseudo-random number.
fn scattered(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[test]
fn hits_allocate_nothing() {
    count(|rig, at| rig.ask(command::READ, scattered(at) % 64, 1));
}

#[test]
fn misses_allocate_nothing() {
    count(|rig, at| rig.ask(command::READ, scattered(at) % BLOCKS, 1));
}

#[test]
fn streams_allocate_nothing() {
    count(|rig, at| rig.ask(command::READ, at * 4 % BLOCKS, 4));
}

#[test]
fn writes_and_flushes_allocate_nothing() {
    count(|rig, at| match at % 16 {
        0 => rig.ask(command::FLUSH, 0, 0),
        _ => rig.ask(command::WRITE, scattered(at) % (BLOCKS - 8), 1 + at % 8),
    });
}
