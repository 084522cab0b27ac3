//! Any requests from any clients, any completions in any order: the engine never panics, never asks for more payload than
//! a piece holds, and answers each request that it has received in full once everything is completed.
#![no_main]

use arbitrary::Arbitrary;
use engine::control::{Command, TenantId, TenantSpec, VolumeSpec, WriteCache};
use engine::disk::{IoId, VolumeId};
use engine::nbd::Errno;
use engine::nbd::wire::REQUEST_MAGIC;
use engine::{Action, Config, ConnId, Event, Outgoing, Receive, Server, Session};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    Header { conn: u8, garbage: bool, flags: u16, command: u8, offset: u64, len: u32 },
    Payload { conn: u8, most: u32 },
    Send { conn: u8, most: u16 },
    Complete { which: u8, fails: bool },
    Vanish { conn: u8 },
    Wait { ms: u16 },
}

#[derive(Arbitrary, Debug)]
struct Input {
    size_sectors: u16,
    whole_blocks: bool,
    sparse: bool,
    mode: u8,
    structured: [bool; 3],
    steps: Vec<Step>,
}

struct World {
    server: Server,
    now: u64,
    submitted: Vec<IoId>,
    gone: [bool; 3],
}

impl World {
    fn handle(&mut self, event: Event<'_>) {
        self.server.handle(self.now, event);
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Submit(io) => self.submitted.push(io),
                Action::Work(tenant) => self.server.handle(self.now, Event::Work { tenant }),
                Action::Gone(conn) => self.gone[conn.0 as usize] = true,
                _ => {}
            }
        }
    }

    fn outgoing(&self, conn: ConnId) -> u64 {
        let len = |out: Outgoing<'_>| match out {
            Outgoing::Bytes(bytes) => bytes.len() as u64,
            Outgoing::Frame { len, .. } => u64::from(len),
        };
        self.server.outgoing(conn).map(len).sum()
    }

    fn send(&mut self, conn: ConnId, most: u64) {
        let bytes = self.outgoing(conn).min(most);
        if bytes > 0 && !self.gone[conn.0 as usize] {
            self.handle(Event::Sent { conn, bytes });
        }
    }

    fn feed(&mut self, conn: ConnId, most: u64) {
        match self.server.receive(conn) {
            Receive::Payload(wanted) => {
                let room: u64 = self.server.payload(conn).map(|segment| u64::from(segment.len)).sum();
                assert_eq!(room, wanted);
                self.handle(Event::Payload { conn, bytes: wanted.min(most.max(1)) });
            }
            Receive::Discard(wanted) => self.handle(Event::Discarded { conn, bytes: wanted.min(most.max(1)) }),
            Receive::Header | Receive::Pause | Receive::Closed => {}
        }
    }
}

fn begin(input: &Input) -> World {
    let server = Server::new(Config { requests_per_connection: 8, ..Config::new(2 << 20) });
    let mut world = World { server, now: 0, submitted: Vec::new(), gone: [false; 3] };
    let tenant = TenantId(0);
    let size = (u64::from(input.size_sectors) + 1) * 512;
    let spec = VolumeSpec {
        volume: VolumeId(0),
        tenant,
        size,
        write_cache: [WriteCache::Volatile, WriteCache::None, WriteCache::Unsafe][usize::from(input.mode % 3)],
        sparse: input.sparse,
        holes: vec![(0, size)],
        initialise: !input.sparse,
        grows_empty: true,
        device_block: if input.whole_blocks { 4096 } else { 512 },
        can_zero: input.mode & 4 == 0,
        can_punch: input.mode & 8 == 0,
    };
    world.handle(Event::Control { token: 0, command: Command::SetTenant(tenant, TenantSpec::default()) });
    world.handle(Event::Control { token: 1, command: Command::OpenVolume(spec) });
    for (at, structured) in input.structured.into_iter().enumerate() {
        let session = Session { structured, base_allocation: structured };
        world.handle(Event::Attach { conn: ConnId(at as u32), volume: VolumeId(0), session });
    }
    world
}

fn step(world: &mut World, step: &Step) {
    let live = |world: &World, conn: u8| {
        let conn = ConnId(u32::from(conn % 3));
        (!world.gone[conn.0 as usize]).then_some(conn)
    };
    match *step {
        Step::Header { conn, garbage, flags, command, offset, len } => {
            let Some(conn) = live(world, conn) else { return };
            if world.server.receive(conn) != Receive::Header {
                return;
            }
            let mut header = [0; 28];
            let magic = if garbage { 7 } else { REQUEST_MAGIC };
            header[0..4].copy_from_slice(&magic.to_be_bytes());
            header[4..6].copy_from_slice(&(flags & 0x1f).to_be_bytes());
            header[6..8].copy_from_slice(&u16::from(command % 9).to_be_bytes());
            header[16..24].copy_from_slice(&(offset % (40 << 20)).to_be_bytes());
            header[24..28].copy_from_slice(&(len % (36 << 20)).to_be_bytes());
            world.handle(Event::Header { conn, since: world.now, header: &header });
        }
        Step::Payload { conn, most } => {
            if let Some(conn) = live(world, conn) {
                world.feed(conn, u64::from(most));
            }
        }
        Step::Send { conn, most } => {
            if let Some(conn) = live(world, conn) {
                world.send(conn, u64::from(most) * 64);
            }
        }
        Step::Complete { which, fails } if !world.submitted.is_empty() => {
            let io = world.submitted.swap_remove(usize::from(which) % world.submitted.len());
            world.handle(Event::IoDone { io, since: world.now, result: if fails { Err(Errno::Io) } else { Ok(()) } });
        }
        Step::Vanish { conn } => {
            if let Some(conn) = live(world, conn) {
                world.handle(Event::Closed { conn });
            }
        }
        Step::Wait { ms } => {
            world.now += u64::from(ms) * 1_000_000;
            world.handle(Event::Timer);
        }
        Step::Complete { .. } => {}
    }
}

/// Everything completes, everything is sent, every client leaves: nothing may be left over.
fn end(world: &mut World) {
    for round in 0.. {
        assert!(round < 100_000, "the engine does not come to rest");
        let mut moved = !world.submitted.is_empty();
        while let Some(io) = world.submitted.pop() {
            world.handle(Event::IoDone { io, since: world.now, result: Ok(()) });
        }
        for conn in (0..3).map(ConnId) {
            if world.gone[conn.0 as usize] {
                continue;
            }
            let before = (world.outgoing(conn), world.server.receive(conn));
            world.send(conn, u64::MAX);
            world.feed(conn, u64::MAX);
            moved |= before.0 > 0 || matches!(before.1, Receive::Payload(_) | Receive::Discard(_));
        }
        if !moved {
            break;
        }
    }
    for conn in (0..3).map(ConnId) {
        if !world.gone[conn.0 as usize] {
            world.handle(Event::Closed { conn });
        }
    }
    world.now += 10_000_000_000;
    world.handle(Event::Timer);
    while let Some(io) = world.submitted.pop() {
        world.handle(Event::IoDone { io, since: world.now, result: Ok(()) });
    }
    assert_eq!(world.gone, [true; 3], "a connection is kept for a request that was never answered");
}

fuzz_target!(|input: Input| {
    let mut world = begin(&input);
    for each in &input.steps {
        step(&mut world, each);
    }
    end(&mut world);
});
