//! One test suite for both reactors, and for layers without effect on one of them. The behaviour that the trait
//! promises is tested only here.
//!
//! Where the system forbids io_uring, its tests fail. Skipping them would hide that the default reactor was not tested.

mod devices;
mod layers;
mod sockets;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use engine::Outgoing;
use engine::disk::{Io, Op, Segment};
use engine::ids::{ConnId, FrameId, IoId, VolumeId};
use engine::nbd::Errno;

use super::{Completion, Layers, Options, Reactor, Stack, Threads, Uring};
use crate::frames::Frames;

/// Far more than any of these tests needs: a test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Frames of a test.
const FRAMES: usize = 4096;
const OPTIONS: Options = Options { device_depth: 64, connections_max: 16 };

/// Runs each test once for each reactor.
macro_rules! suite {
    ($($name:ident),+ $(,)?) => {
        mod uring {
            $(#[test] fn $name() { super::$name(crate::reactor::conformance::uring()) })+
        }
        mod threads {
            $(#[test] fn $name() { super::$name(crate::reactor::conformance::threads()) })+
        }
        mod layered {
            $(#[test] fn $name() { super::$name(crate::reactor::conformance::layered()) })+
        }
    };
}
use suite;

/// A reactor, its frames, and its collected completions.
struct Rig<R> {
    reactor: R,
    frames: Frames,
    done: Vec<Completion>,
}

fn uring() -> Rig<Uring> {
    let frames = Frames::new(FRAMES).unwrap();
    let reactor = Uring::new(OPTIONS, frames.memory()).expect("io_uring is available where tests run");
    Rig { reactor, frames, done: Vec::new() }
}

fn threads() -> Rig<Threads> {
    let frames = Frames::new(FRAMES).unwrap();
    let reactor = Threads::new(OPTIONS, frames.memory()).unwrap();
    Rig { reactor, frames, done: Vec::new() }
}

/// A rig whose requests all pass through the layers unchanged.
fn layered() -> Rig<Layers<Uring>> {
    let harmless = "error volume=nobody".parse().unwrap();
    uring().under(Stack { drive: None, faults: vec![harmless] })
}

impl<R: Reactor> Rig<R> {
    /// Puts a stack of layers on the rig's reactor.
    fn under(self, stack: Stack) -> Rig<Layers<R>> {
        Rig { reactor: Layers::new(self.reactor, stack), frames: self.frames, done: self.done }
    }

    /// Turns until there is a completion that `wanted` accepts, and takes it.
    fn wait_for<T>(&mut self, wanted: impl Fn(&Completion) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(at) = self.done.iter().position(|completion| wanted(completion).is_some()) {
                return wanted(&self.done.remove(at)).unwrap();
            }
            assert!(start.elapsed() < TIMEOUT, "it never came; instead: {:?}", self.done);
            self.reactor.turn(Some(TIMEOUT), &mut self.done).unwrap();
            assert!(start.elapsed() < TIMEOUT, "nobody was woken for it");
        }
    }

    fn perform(&mut self, io: Io) -> Result<(), Errno> {
        self.reactor.submit(IoId(3), &io);
        self.wait_for(|c| match *c {
            Completion::Io { io: IoId(3), result } => Some(result),
            _ => None,
        })
    }

    fn wait_received(&mut self, of: ConnId) -> Vec<u8> {
        let (buffer, len) = self.wait_for(|c| match *c {
            Completion::Received { conn, buffer, len } if conn == of => Some((buffer, len)),
            _ => None,
        });
        let bytes = self.reactor.buffer(buffer)[..len].to_vec();
        self.reactor.release(buffer);
        bytes
    }

    fn connect(&mut self, conn: ConnId) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.reactor.open_socket(conn, ours.into()).unwrap();
        theirs
    }

    fn close(&mut self, conn: ConnId) {
        self.reactor.close_socket(conn);
        self.wait_for(|c| (*c == Completion::Closed { conn }).then_some(()));
    }

    /// Fills whole frames, each with different bytes.
    fn paint(&mut self, frames: impl Iterator<Item = u32>) {
        for number in frames {
            self.frames.put(Segment::whole(FrameId(number)), &painted(number));
        }
    }

    fn content(&self, segments: &[Segment]) -> Vec<u8> {
        segments.iter().flat_map(|&segment| self.frames.get(segment)).collect()
    }
}

fn painted(number: u32) -> Vec<u8> {
    (0..4096u32).map(|i| (number.wrapping_mul(31) ^ i ^ (i >> 8)) as u8).collect()
}

fn io(op: Op, offset: u64, segments: Vec<Segment>) -> Io {
    let len = segments.iter().map(|segment| u64::from(segment.len)).sum();
    Io { op, volume: VolumeId(5), offset, len, segments, head: Vec::new() }
}

fn plain(op: Op, offset: u64, len: u64) -> Io {
    Io { op, volume: VolumeId(5), offset, len, segments: Vec::new(), head: Vec::new() }
}

const WRITE: Op = Op::Write { durable: false };

/// A new unnamed file in the directory of the test's program: build directories are on file systems with O_DIRECT.
fn file(bytes: u64) -> File {
    let path = new_path();
    let file = OpenOptions::new().read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT).open(&path);
    let file = file.expect("tests run on a file system with O_DIRECT");
    std::fs::remove_file(path).unwrap();
    file.set_len(bytes).unwrap();
    file
}

fn new_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    std::env::current_exe().unwrap().with_file_name(name)
}

suite![wakes_from_another_thread, a_wake_is_not_lost, timeouts_end_the_wait];

fn wakes_from_another_thread<R: Reactor>(mut rig: Rig<R>) {
    for _ in 0..3 {
        let waker = rig.reactor.waker();
        let other = std::thread::spawn(move || waker.wake());
        rig.wait_for(|c| (*c == Completion::Woken).then_some(()));
        other.join().unwrap();
    }
}

fn a_wake_is_not_lost<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.waker().wake();
    rig.reactor.waker().wake();
    rig.wait_for(|c| (*c == Completion::Woken).then_some(()));
}

fn timeouts_end_the_wait<R: Reactor>(mut rig: Rig<R>) {
    let limit = Duration::from_millis(30);
    let start = Instant::now();
    while let Some(left) = limit.checked_sub(start.elapsed()) {
        rig.reactor.turn(Some(left), &mut rig.done).unwrap();
    }
    assert!(start.elapsed() < TIMEOUT && rig.done.is_empty());
    rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
}
