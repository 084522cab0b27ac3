//! The thread with the real engine, real files and real sockets, on both reactors.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use engine::control::{Command, Refusal, Report, TenantSpec, Tiers, UpstreamSpec, VolumeSpec};
use engine::disk::Op;
use engine::ids::{TenantId, VolumeId};
use engine::nbd::{Uri, wire};
use engine::units::SECOND;
use engine::{Config, Session};
use sim::disk::drive::presets;
use sim::disk::drive::replay::closed_loop;
use sim::rng::Rng;

use super::{Backing, DiskHandle, DiskThread, Limits, Options, Stopped};
use crate::address::{Listener, TlsMode};
use crate::config;
use crate::control::Control;
use crate::handshakes::Handshakes;
use crate::listen::{self, Door};
use crate::reactor::{Kind, LayerCommand, Place, Stack, clock};
use crate::upstream::{Dialer, Leg, Standing, Target};

const VOLUME: VolumeId = VolumeId(3);
const SIZE: u64 = 64 << 20;

/// Runs each test once on each reactor.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod uring {
            $(#[test] fn $name() { super::$name(crate::reactor::Kind::IoUring) })+
        }
        mod threads {
            $(#[test] fn $name() { super::$name(crate::reactor::Kind::Threads) })+
        }
    };
}

on_both![
    what_is_written_is_read,
    bytes_that_came_with_the_handshake_count,
    requests_in_many_small_packets,
    large_requests_pass_through_a_small_partition,
    many_connections_take_turns,
    a_flood_of_hits_leaves_the_thread_to_others,
    large_replies_in_company_arrive_whole,
    a_client_that_vanishes_in_the_middle,
    a_client_that_does_not_read_holds_up_nobody,
    too_many_clients_are_turned_away,
    volumes_are_closed_with_their_files,
    numbers_that_are_taken_are_refused,
    an_unknown_volume_closes_the_connection,
    stopping_answers_everybody,
    a_simulated_disk_is_as_fast_as_in_virtual_time,
];

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

fn file() -> File {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("disk-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::current_exe().unwrap().with_file_name(name);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(SIZE).unwrap();
    file
}

fn spec() -> VolumeSpec {
    VolumeSpec::plain(VOLUME, TenantId(1), SIZE)
}

fn start(kind: Kind, connections_max: u32) -> DiskHandle {
    let limits = Limits { disk: connections_max, ..Limits::default() };
    let options = Options { reactor: kind, limits, ..Options::new("test", Config::new(16 << 20)) };
    let disk = DiskThread::start(options).unwrap();
    let tenant = TenantSpec::default();
    assert!(matches!(wait(disk.command(Command::SetTenant(TenantId(1), tenant))), Ok(Report::Done)));
    assert!(matches!(wait(disk.open_volume(spec(), Backing::File(file(), Place::default()))), Ok(Report::Done)));
    disk
}

fn connect(disk: &DiskHandle, received: &[u8]) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    disk.attach(ours.into(), received.to_vec(), VOLUME, Session::default());
    theirs
}

fn header(command: u16, cookie: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(0u16.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((len as u32).to_be_bytes());
    bytes
}

fn reply(client: &mut UnixStream, cookie: u64, len: usize) -> Vec<u8> {
    let mut head = [0; 16];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[..4], wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
    assert_eq!(head[4..8], [0; 4], "no error");
    assert_eq!(head[8..], cookie.to_be_bytes());
    let mut data = vec![0; len];
    client.read_exact(&mut data).unwrap();
    data
}

fn write(client: &mut UnixStream, offset: u64, data: &[u8]) {
    client.write_all(&header(wire::command::WRITE, 1, offset, data.len())).unwrap();
    client.write_all(data).unwrap();
    reply(client, 1, 0);
}

fn read(client: &mut UnixStream, offset: u64, len: usize) -> Vec<u8> {
    client.write_all(&header(wire::command::READ, 2, offset, len)).unwrap();
    reply(client, 2, len)
}

fn flush(client: &mut UnixStream) {
    client.write_all(&header(wire::command::FLUSH, 3, 0, 0)).unwrap();
    reply(client, 3, 0);
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31) ^ (i >> 9) ^ seed) as u8).collect()
}

fn close(disk: &DiskHandle) {
    let closed = wait(disk.command(Command::CloseVolume { volume: VOLUME, discard: false }));
    assert!(matches!(closed, Ok(Report::Done)), "{closed:?}");
}

fn what_is_written_is_read(kind: Kind) {
    let disk = start(kind, 8);
    let mut client = connect(&disk, &[]);
    for (offset, len) in [(0, 4096), (8192, 512), (100, 7), (1 << 20, 65536), (4095, 100_001), (SIZE - 1, 1)] {
        let data = pattern(offset, len);
        write(&mut client, offset, &data);
        assert!(read(&mut client, offset, len) == data);
        flush(&mut client);
        assert!(read(&mut client, offset, len) == data);
    }
    client.write_all(&header(wire::command::DISC, 9, 0, 0)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed");
    close(&disk);
    disk.stop();
}

fn bytes_that_came_with_the_handshake_count(kind: Kind) {
    let disk = start(kind, 8);
    let data = pattern(5, 40_000);
    let stream = [header(wire::command::WRITE, 1, 512, data.len()), data.clone()].concat();
    for split in [0, 10, 28, 1000, stream.len()] {
        let mut client = connect(&disk, &stream[..split]);
        client.write_all(&stream[split..]).unwrap();
        reply(&mut client, 1, 0);
        assert!(read(&mut client, 512, data.len()) == data);
    }
    disk.stop();
}

fn requests_in_many_small_packets(kind: Kind) {
    let disk = start(kind, 8);
    let mut client = connect(&disk, &[]);
    let data = pattern(8, 300);
    for byte in [header(wire::command::WRITE, 1, 4000, data.len()), data.clone()].concat() {
        client.write_all(&[byte]).unwrap();
    }
    reply(&mut client, 1, 0);
    assert!(read(&mut client, 4000, 300) == data);
    disk.stop();
}

fn large_requests_pass_through_a_small_partition(kind: Kind) {
    let disk = start(kind, 8);
    let mut client = connect(&disk, &[]);
    let data = pattern(1, 32 << 20);
    write(&mut client, 12_345, &data);
    assert!(read(&mut client, 12_345, data.len()) == data);
    flush(&mut client);
    disk.stop();
}

fn many_connections_take_turns(kind: Kind) {
    let disk = start(kind, 100);
    std::thread::scope(|scope| {
        for number in 0..70u64 {
            let mut client = connect(&disk, &[]);
            scope.spawn(move || {
                for round in 0..20 {
                    let (offset, data) = (number * 65536 + round * 512, pattern(number + round, 20_000));
                    write(&mut client, offset, &data);
                    assert!(read(&mut client, offset, data.len()) == data);
                }
            });
        }
    });
    close(&disk);
    disk.stop();
}

/// Several connections of one tenant share what it may send in a pass. `driver/tests.rs` tests that replies are sent in
/// parts.
fn large_replies_in_company_arrive_whole(kind: Kind) {
    const LEN: usize = 1 << 20;
    let (other, tenant) = (VolumeId(4), TenantId(2));
    let disk = start(kind, 8);
    wait(disk.command(Command::SetTenant(tenant, TenantSpec::default()))).unwrap();
    let spec = VolumeSpec::plain(other, tenant, SIZE);
    assert!(matches!(wait(disk.open_volume(spec, Backing::File(file(), Place::default()))), Ok(Report::Done)));
    let (ours, mut single) = UnixStream::pair().unwrap();
    disk.attach(ours.into(), Vec::new(), other, Session::default());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..4u64)
            .map(|number| {
                let mut client = connect(&disk, &[]);
                scope.spawn(move || {
                    let data = pattern(number, LEN);
                    write(&mut client, number * LEN as u64, &data);
                    (0..10).for_each(|_| assert!(read(&mut client, number * LEN as u64, LEN) == data));
                })
            })
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                read(&mut single, 0, 512);
            }
        });
        let ended: Vec<_> = streams.into_iter().map(|stream| stream.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|stream| stream.unwrap());
    });
    disk.stop();
}

/// Compares values of the server only, and requests instead of time: the machine may be slow or busy.
fn a_flood_of_hits_leaves_the_thread_to_others(kind: Kind) {
    const BATCH: usize = 8;
    const READS: usize = 1000;
    let (other, tenant) = (VolumeId(4), TenantId(2));
    let disk = start(kind, 32);
    wait(disk.command(Command::SetTenant(tenant, TenantSpec::default()))).unwrap();
    let spec = VolumeSpec::plain(other, tenant, SIZE);
    assert!(matches!(wait(disk.open_volume(spec, Backing::File(file(), Place::default()))), Ok(Report::Done)));
    let connect_to = |volume| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        disk.attach(ours.into(), Vec::new(), volume, Session::default());
        theirs
    };
    let mut single = connect_to(other);
    let mut flood: Vec<UnixStream> = (0..16).map(|_| connect_to(VOLUME)).collect();
    let batch = header(wire::command::READ, 2, 0, 512).repeat(BATCH);
    read(&mut single, 0, 512);
    let over = AtomicBool::new(false);
    let begun = clock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            flood.iter_mut().for_each(|client| client.write_all(&batch).unwrap());
            let mut replies = [0; (16 + 512) * BATCH];
            while !over.load(Ordering::Relaxed) {
                for client in &mut flood {
                    client.read_exact(&mut replies).unwrap();
                    client.write_all(&batch).unwrap();
                }
            }
        });
        (0..READS).for_each(|_| drop(read(&mut single, 0, 512)));
        over.store(true, Ordering::Relaxed);
    });
    let passed_ns = clock() - begun;
    let Ok(Report::Snapshot(snapshot)) = wait(disk.command(Command::Snapshot)) else { panic!("a snapshot") };
    let of = |id| snapshot.tenants.iter().find(|stats| stats.tenant == id).unwrap().latency.total.read;
    let (many, one) = (of(TenantId(1)), of(tenant));
    let delays_ns: u64 = snapshot.volumes.iter().map(|volume| volume.thread_delay_ns).sum();
    let each_ns = passed_ns / many.count;
    eprintln!("{kind:?}: {} reads of the flood, {each_ns} ns each; one at a time {one:?}", many.count);
    assert!(one.count as usize > READS && delays_ns > 0);
    // Its half of a pass is eight of the flood's requests, and one may have just begun. Without fair quanta it would
    // wait for all 128 requests of the flood.
    assert!(one.p50_ns < 48 * each_ns, "{} ns, while {each_ns} ns are a request of the others", one.p50_ns);
    disk.stop();
}

fn a_client_that_vanishes_in_the_middle(kind: Kind) {
    // Slots for all of them: those that disconnected may hold their slots for a while.
    let disk = start(kind, 16);
    let mut other = connect(&disk, &[]);
    for cut in [10, 28, 5000, 200_000] {
        let mut client = connect(&disk, &[]);
        let stream = [header(wire::command::WRITE, 1, 0, 1 << 20), pattern(9, 1 << 20)].concat();
        client.write_all(&stream[..cut]).unwrap();
        let mut reader = connect(&disk, &[]);
        for _ in 0..50 {
            reader.write_all(&header(wire::command::READ, 2, 0, 1 << 20)).unwrap();
        }
        drop((client, reader));
        assert_eq!(read(&mut other, SIZE - 4096, 4096), [0; 4096]);
    }
    drop(other);
    close(&disk);
    disk.stop();
}

fn a_client_that_does_not_read_holds_up_nobody(kind: Kind) {
    let disk = start(kind, 4);
    let mut lazy = connect(&disk, &[]);
    for cookie in 0..100 {
        lazy.write_all(&header(wire::command::READ, cookie, 0, 1 << 20)).unwrap();
    }
    let mut other = connect(&disk, &[]);
    for round in 0..100 {
        let data = pattern(round, 10_000);
        write(&mut other, 10_000 * round, &data);
        assert!(read(&mut other, 10_000 * round, data.len()) == data);
    }
    drop(lazy);
    close(&disk);
    disk.stop();
}

fn too_many_clients_are_turned_away(kind: Kind) {
    let disk = start(kind, 2);
    let (mut first, second) = (connect(&disk, &[]), connect(&disk, &[]));
    assert_eq!(connect(&disk, &[]).read(&mut [0]).unwrap(), 0, "closed");
    drop(second);
    read(&mut first, 0, 512);
    // The slot becomes free again soon.
    loop {
        let mut third = connect(&disk, &[]);
        let sent = third.write_all(&header(wire::command::READ, 7, 0, 512));
        if sent.is_ok() && third.read_exact(&mut [0; 16 + 512]).is_ok() {
            break;
        }
    }
    disk.stop();
}

fn volumes_are_closed_with_their_files(kind: Kind) {
    let disk = start(kind, 8);
    for round in 0..3 {
        let mut client = connect(&disk, &[]);
        write(&mut client, 0, &pattern(round, 8192));
        close(&disk);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed");
        assert!(matches!(wait(disk.open_volume(spec(), Backing::File(file(), Place::default()))), Ok(Report::Done)));
        assert_eq!(read(&mut connect(&disk, &[]), 0, 8192), [0; 8192], "another file");
    }
    disk.stop();
}

fn numbers_that_are_taken_are_refused(kind: Kind) {
    let disk = start(kind, 8);
    let mut client = connect(&disk, &[]);
    write(&mut client, 0, &pattern(1, 4096));
    flush(&mut client);
    assert!(matches!(
        wait(disk.open_volume(spec(), Backing::File(file(), Place::default()))),
        Ok(Report::Refused(Refusal::Taken))
    ));
    assert!(read(&mut client, 0, 4096) == pattern(1, 4096), "still the old file");
    disk.stop();
}

fn an_unknown_volume_closes_the_connection(kind: Kind) {
    let disk = start(kind, 8);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    disk.attach(ours.into(), vec![1; 100], VolumeId(77), Session::default());
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "closed");
    disk.stop();
}

fn stopping_answers_everybody(kind: Kind) {
    let disk = start(kind, 8);
    let mut client = connect(&disk, &[]);
    for cookie in 0..50 {
        client.write_all(&header(wire::command::READ, cookie, 0, 1 << 20)).unwrap();
    }
    let answer = disk.command(Command::Snapshot);
    disk.stop();
    assert!(matches!(wait(answer), Err(Stopped)));
}

/// The same reads, one at a time, through the whole thread and on the drive alone in virtual time. The think time of
/// the client changes the rotational position, so single requests differ, but their sum must not.
fn a_simulated_disk_is_as_fast_as_in_virtual_time(kind: Kind) {
    const READS: u64 = 200;
    const BYTES: u64 = 16 << 30;
    let drive = || presets::preset("barracuda-7200.9").unwrap().unwrap().build().unwrap();
    let offsets = |seed| {
        let mut rng = Rng::new(seed);
        std::iter::repeat_with(move || rng.below(BYTES / 4096) * 4096)
    };
    let mut next = offsets(1);
    let predicted_ns = closed_loop(drive().as_mut(), 1, READS, || (Op::Read, next.next().unwrap(), 4096));

    let stack = Stack { drive: Some(drive()), faults: Vec::new() };
    let options = Options { reactor: kind, stack, ..Options::new("test", Config::new(16 << 20)) };
    let disk = DiskThread::start(options).unwrap();
    let tenant = TenantSpec::default();
    wait(disk.command(Command::SetTenant(TenantId(1), tenant))).unwrap();
    let file = file();
    file.set_len(BYTES).unwrap();
    let opened = wait(disk.open_volume(VolumeSpec { size: BYTES, ..spec() }, Backing::File(file, Place::default())));
    assert!(matches!(opened, Ok(Report::Done)));
    let mut client = connect(&disk, &[]);
    let started = clock();
    for offset in offsets(1).take(READS as usize) {
        assert_eq!(read(&mut client, offset, 4096), [0; 4096]);
    }
    let ratio = (clock() - started) as f64 / predicted_ns as f64;
    let late = wait(disk.layers(LayerCommand::Look)).unwrap().view.late.unwrap();
    eprintln!("{kind:?}: {ratio:.3} of the time predicted for {READS} reads; {late:?}");
    assert_eq!(late.clock.count() + late.file.count(), READS);
    // On a machine that is busy it may take much longer, but never less.
    assert!((0.95..10.0).contains(&ratio), "{ratio}");
    disk.stop();
}

/// A server with the volume "db", and its address.
fn server(runtime: &tokio::runtime::Runtime, dir: &std::path::Path) -> (Arc<Control>, Uri) {
    let path = dir.join("nbd.sock");
    let control = runtime.block_on(async {
        let config =
            config::Config { data: dir.join("data"), cache: "64MiB".parse().unwrap(), ..config::Config::default() };
        let control = Control::open(config).await.unwrap();
        let volume = serde_json::json!({"name": "db", "size": "64MiB"});
        control.create_volume(serde_json::from_value(volume).unwrap()).await.unwrap();
        let listener = Listener::Unix(tokio::net::UnixListener::bind(&path).unwrap());
        let (handshakes, mode) = (Handshakes::new(16, 16), TlsMode::Off);
        tokio::spawn(listen::accept(listener, Door::plain(control.clone(), handshakes, mode)));
        control
    });
    (control, format!("nbd+unix:///db?socket={}", path.display()).parse().unwrap())
}

#[test]
fn a_volume_on_another_server_is_written_flushed_and_read() {
    for kind in [Kind::IoUring, Kind::Threads] {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (control, uri) = server(&runtime, dir.path());
        let options = Options { reactor: kind, ..Options::new("gateway", Config::new(16 << 20)) };
        let disk = DiskThread::start(options).unwrap();
        let tenant = TenantSpec { is_remote: true, ..TenantSpec::default() };
        assert!(matches!(wait(disk.command(Command::SetTenant(TenantId(1), tenant))), Ok(Report::Done)));
        let upstream = UpstreamSpec {
            name: uri.name.clone(),
            size: spec().size,
            volume: None,
            client: "gateway".into(),
            epoch: 1,
            connections: 4,
            window: 128,
            deadline_ns: 60 * SECOND,
            unsafe_without_flush: false,
            tls: false,
            is_shared: false,
            is_leased: false,
            tiers: Tiers::Lru,
        };
        let gate = disk.tls_gate(TenantId(1));
        let dialer = runtime.block_on(async { Dialer::new(Target { uri, tls: None }, gate) });
        let spec = VolumeSpec { upstream: Some(upstream), ..spec() };
        let legs = vec![Leg { number: VOLUME, dialer: dialer.clone() }];
        assert!(matches!(wait(disk.open_volume(spec, Backing::Upstream(legs))), Ok(Report::Done)));
        let mut client = connect(&disk, &[]);
        let mut rng = Rng::new(7);
        // More than the cache, so that it is written back, flushed to be evicted, and read again.
        let pieces: Vec<(u64, u8)> = (0..96).map(|at| (at * (512 << 10), rng.below(255) as u8 + 1)).collect();
        for &(offset, byte) in &pieces {
            write(&mut client, offset, &vec![byte; 256 << 10]);
        }
        client.write_all(&header(wire::command::FLUSH, 9, 0, 0)).unwrap();
        reply(&mut client, 9, 0);
        for &(offset, byte) in &pieces {
            client.write_all(&header(wire::command::READ, 2, offset + 4096, 128 << 10)).unwrap();
            assert!(reply(&mut client, 2, 128 << 10).iter().all(|&found| found == byte), "at {offset}");
        }
        assert_eq!(dialer.standing(), Standing { is_online: true, failure: None });
        assert!(matches!(
            wait(disk.command(Command::CloseVolume { volume: VOLUME, discard: false })),
            Ok(Report::Done)
        ));
        disk.stop();
        assert!(runtime.block_on(control.drain()).is_empty());
    }
}
