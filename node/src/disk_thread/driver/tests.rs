//! Passes in virtual time, with a scripted reactor: what is sent in which pass, and what is counted.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use engine::control::{Command, TenantSpec, VolumeSpec, VolumeStats};
use engine::disk::Io;
use engine::ids::IoId;
use engine::nbd::wire;
use engine::{Config, Outgoing, Session};
use tokio::sync::oneshot;

use super::mail::ATTACHES_PER_PASS;
use super::*;
use crate::disk_thread::mailbox::{self, Client};
use crate::frames::Chunk;
use crate::reactor::{BufferId, Place, Stack, Waker};

/// Connections, volumes and tenants have the same numbers. One reads a megabyte at a time, the other a sector.
const BACKLOGGED: usize = 0;
const LATENCY_BOUND: usize = 1;
const LARGE: u32 = 1 << 20;
const SMALL: u32 = 512;
/// Bytes of a reply's header.
const HEAD: u64 = 16;
/// Connections of the test.
const CONNECTIONS: usize = 16;
/// The length of a pass.
const PASS_NS: Nanos = 100_000;

/// Sockets accept what they are given at once, except those that are full. Device requests complete in the next pass.
struct Script {
    now: Nanos,
    /// How long the next turn sleeps.
    sleep_ns: Nanos,
    ready: Vec<Completion>,
    /// By receive buffer, one for each connection: what its client has written, all of it headers.
    written: [Vec<u8>; CONNECTIONS],
    /// Whether its receive waits for that.
    receiving: [bool; CONNECTIONS],
    full: [bool; CONNECTIONS],
    /// Bytes given to each socket in this pass.
    given: [u64; CONNECTIONS],
}

impl Script {
    fn new() -> Script {
        Script {
            now: 1_000 * SECOND,
            sleep_ns: 0,
            ready: Vec::new(),
            written: [const { Vec::new() }; CONNECTIONS],
            receiving: [false; CONNECTIONS],
            full: [false; CONNECTIONS],
            given: [0; CONNECTIONS],
        }
    }

    fn deliver(&mut self, at: usize) {
        let len = self.written[at].len();
        if len > 0 && std::mem::take(&mut self.receiving[at]) {
            self.ready.push(Completion::Received { conn: ConnId(at as u32), buffer: BufferId(at as u16), len });
        }
    }
}

impl Reactor for Script {
    fn waker(&self) -> Waker {
        unreachable!("nobody sleeps")
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn open_volume(&mut self, _: VolumeId, _: File) -> std::io::Result<()> {
        Ok(())
    }

    fn close_volume(&mut self, _: VolumeId) {}

    fn submit(&mut self, io: IoId, _: &Io) {
        self.ready.push(Completion::Io { io, result: Ok(()) });
    }

    fn open_socket(&mut self, _: ConnId, _: OwnedFd) -> std::io::Result<()> {
        Ok(())
    }

    fn receive_most(&mut self, conn: ConnId, _: usize) {
        self.receiving[conn.0 as usize] = true;
        self.deliver(conn.0 as usize);
    }

    fn receive_into(&mut self, _: ConnId, _: impl Iterator<Item = Segment>) {
        unreachable!("nobody writes")
    }

    fn send<'a>(&mut self, conn: ConnId, parts: impl Iterator<Item = Outgoing<'a>>) -> u64 {
        let bytes = parts.map(|part| part.bytes()).sum();
        if !self.full[conn.0 as usize] {
            self.ready.push(Completion::Sent { conn, bytes });
        }
        self.given[conn.0 as usize] += bytes;
        bytes
    }

    fn unread(&self, _: ConnId) -> u32 {
        0
    }

    fn close_socket(&mut self, _: ConnId) {}

    fn leave_socket(&mut self, _: ConnId) {}

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        &self.written[usize::from(buffer.0)]
    }

    fn release(&mut self, buffer: BufferId) {
        self.written[usize::from(buffer.0)].clear();
    }

    fn unpin(&mut self, _: &Chunk) -> bool {
        true
    }

    fn turn(&mut self, _: Option<Duration>, completions: &mut Vec<Completion>) -> std::io::Result<bool> {
        let sleep_ns = std::mem::take(&mut self.sleep_ns);
        self.now += PASS_NS + sleep_ns;
        self.given = [0; CONNECTIONS];
        completions.append(&mut self.ready);
        Ok(sleep_ns > 0)
    }
}

struct Rig {
    driver: Driver<Script>,
    sender: mailbox::Sender,
}

/// A client of a volume.
fn client(volume: VolumeId) -> Client {
    let socket = UnixStream::pair().unwrap().0.into();
    let (session, peer) = (Session::default(), crate::peer::Peer::local(0));
    Client { socket, received: Vec::new(), volume, session, peer, seat: None, lease: None }
}

impl Rig {
    /// Both volumes have their first bytes in the cache, and both tenants are present.
    fn new() -> Rig {
        let options = Options::new("test", Config::new(16 << 20));
        let server = Server::new(options.engine.clone());
        let frames = Frames::new(options.engine.frames_max()).unwrap();
        let mail = mailbox::new(Waker::new().unwrap());
        let sender = mail.0.clone();
        let reactor = Layers::new(Script::new(), Stack::default());
        let mut driver = Driver::new(options, server, frames, reactor, mail, crate::disk_thread::planning::channel().0);
        for number in 0..2 {
            let (tenant, volume) = (TenantId(number), VolumeId(number));
            let file = File::open("/dev/null").unwrap();
            let spec = VolumeSpec::plain(volume, tenant, 64 << 20);
            driver.command(Command::SetTenant(tenant, TenantSpec::default()), None, oneshot::channel().0);
            driver.command(
                Command::OpenVolume(spec),
                Some(crate::disk_thread::Backing::File(file, Place::default())),
                oneshot::channel().0,
            );
            driver.attach(client(volume));
        }
        let mut rig = Rig { driver, sender };
        rig.pass();
        rig.ask(BACKLOGGED, LARGE);
        rig.ask(LATENCY_BOUND, SMALL);
        for _ in 0..30 {
            rig.pass();
        }
        assert_eq!([BACKLOGGED, LATENCY_BOUND].map(|who| rig.stats(who).read.requests), [1, 1]);
        rig
    }

    fn script(&mut self) -> &mut Script {
        self.driver.reactor.below()
    }

    /// Requests the first bytes of a volume.
    fn ask(&mut self, who: usize, len: u32) {
        let mut header = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
        header.extend([0, 0]);
        header.extend(wire::command::READ.to_be_bytes());
        header.extend([0; 16]);
        header.extend(len.to_be_bytes());
        let script = self.script();
        script.written[who].extend(header);
        script.deliver(who);
    }

    /// Runs a pass, and returns the bytes given to each socket in it.
    fn pass(&mut self) -> [u64; 2] {
        self.driver.pass();
        self.script().given[..2].try_into().expect("two of them")
    }

    fn stats(&mut self, who: usize) -> VolumeStats {
        self.driver.server.snapshot().volumes.swap_remove(who)
    }
}

#[test]
fn a_storm_of_connections_holds_up_no_request_and_is_paid_for() {
    let mut rig = Rig::new();
    for _ in 2..CONNECTIONS {
        let room = futures::FutureExt::now_or_never(rig.sender.room()).unwrap().unwrap();
        room.take(client(VolumeId(BACKLOGGED as u32)));
    }
    rig.driver.mail = true;
    let mut passes = 0;
    while rig.driver.mail {
        let before = rig.driver.connections.len();
        rig.ask(LATENCY_BOUND, SMALL);
        assert_eq!(rig.pass()[LATENCY_BOUND], HEAD + u64::from(SMALL), "answered in the pass in which it comes");
        assert!(rig.driver.connections.len() <= before + ATTACHES_PER_PASS);
        passes += 1;
    }
    assert_eq!(rig.driver.connections.len(), CONNECTIONS);
    assert!(passes >= (CONNECTIONS - 2) / ATTACHES_PER_PASS, "{passes}");
    let in_deficit = [BACKLOGGED, LATENCY_BOUND].map(|who| rig.driver.cpu.has_deficit(TenantId(who as u32)));
    assert_eq!(in_deficit, [true, false]);
}

#[test]
fn large_replies_in_company_go_in_parts_and_hold_up_nobody() {
    let mut rig = Rig::new();
    let part = rig.driver.cpu.may_send(TenantId(BACKLOGGED as u32));
    assert!(part <= u64::from(LARGE) / 16, "each has half of what goes in a pass: {part}");
    rig.ask(BACKLOGGED, LARGE);
    let (mut sent, mut passes) = (0, 0);
    while sent < HEAD + u64::from(LARGE) {
        rig.ask(LATENCY_BOUND, SMALL);
        let [large, small] = rig.pass();
        assert!((1..part + 4096).contains(&large), "{large} bytes, of {part}");
        assert_eq!(small, HEAD + u64::from(SMALL), "answered in the pass in which it comes");
        sent += large;
        passes += 1;
    }
    assert_eq!(passes, 16);
}

#[test]
fn the_rest_of_a_reply_waits_for_the_thread() {
    let mut rig = Rig::new();
    let before = [BACKLOGGED, LATENCY_BOUND].map(|who| rig.stats(who));
    rig.ask(BACKLOGGED, LARGE);
    rig.ask(LATENCY_BOUND, SMALL);
    let mut passes = 0;
    while rig.pass()[BACKLOGGED] > 0 {
        passes += 1;
    }
    let after = [BACKLOGGED, LATENCY_BOUND].map(|who| rig.stats(who));
    for (who, passes) in [(BACKLOGGED, passes), (LATENCY_BOUND, 1)] {
        let (before, after) = (&before[who], &after[who]);
        assert_eq!(after.read.latency.count() - before.read.latency.count(), 1);
        let latency_ns = after.read.latency.sum_ns - before.read.latency.sum_ns;
        // It is assumed to have come in the middle of a pass.
        assert_eq!(latency_ns, PASS_NS / 2 + passes * PASS_NS, "of {who}");
        assert_eq!(after.thread_delay_ns - before.thread_delay_ns, latency_ns, "hits wait for nothing else");
    }
}

#[test]
fn what_a_client_does_not_take_does_not_wait_for_the_thread() {
    for sleep_ns in [0, SECOND / 2] {
        let mut rig = Rig::new();
        let before = rig.stats(BACKLOGGED);
        rig.script().full[BACKLOGGED] = true;
        rig.ask(BACKLOGGED, LARGE);
        assert!(rig.pass()[BACKLOGGED] > 0);
        rig.script().sleep_ns = sleep_ns;
        for _ in 0..100 {
            assert_eq!(rig.pass()[BACKLOGGED], 0, "one send at a time");
        }
        let after = rig.stats(BACKLOGGED);
        assert_eq!(after.read.latency.count() - before.read.latency.count(), 1);
        let delay_ns = after.thread_delay_ns - before.thread_delay_ns;
        assert!(delay_ns <= 3 * PASS_NS, "{delay_ns}");
    }
}
