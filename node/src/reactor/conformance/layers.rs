//! Faults and simulated drives.

use std::sync::{Arc, Mutex, mpsc};

use engine::disk::profile::Options;
use engine::units::{Nanos, SECOND};
use sim::disk::drive::{Drive, Tag, presets};
use sim::rng::Rng;

use super::*;
use crate::probe::Job;
use crate::probe::drive::{Heard, News, ProbeDrive};
use crate::reactor::{LayerCommand, LayerReport, Place, clock};

suite![
    a_drive_is_asked_at_once_and_never_answered_early,
    a_probe_lives_in_the_drives_time,
    a_probe_ends_with_the_first_error_or_when_it_is_cancelled,
    an_error_is_for_whom_it_is_meant,
    a_torn_write_has_a_beginning_and_no_end,
    what_hangs_goes_on_when_it_may,
    a_delay_is_not_shorter_than_it_says,
    a_device_goes_and_comes_back,
];

const BLOCK: u64 = 512;

/// The rig with volume 5, called `db`, on a file of `bytes`.
fn with_volume<R: Reactor>(rig: Rig<R>, stack: Stack, bytes: u64) -> Rig<Layers<R>> {
    let mut rig = rig.under(stack);
    rig.reactor.place(VolumeId(5), Place { volume: "db".into(), start: 1 << 30, block: BLOCK });
    rig.reactor.open_volume(VolumeId(5), file(bytes)).unwrap();
    rig
}

fn with_fault<R: Reactor>(rig: Rig<R>, fault: &str) -> Rig<Layers<R>> {
    with_volume(rig, Stack { drive: None, faults: vec![fault.parse().unwrap()] }, 1 << 20)
}

impl<R: Reactor> Rig<Layers<R>> {
    fn clear(&mut self) -> LayerReport {
        self.reactor.command(LayerCommand::Clear(None))
    }

    fn look(&mut self) -> LayerReport {
        self.reactor.command(LayerCommand::Look)
    }

    fn wait_io(&mut self, number: u32) -> Result<(), Errno> {
        self.wait_for(|c| match *c {
            Completion::Io { io, result } if io == IoId(number) => Some(result),
            _ => None,
        })
    }
}

/// A request to a drive, and the drive's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Submitted(Nanos, Tag, u64, u64),
    Done(Tag, Nanos),
}

/// Records the requests and answers of the drive inside.
#[derive(Debug)]
struct Noted(Box<dyn Drive>, Arc<Mutex<Vec<Told>>>);

impl Drive for Noted {
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64) {
        self.1.lock().unwrap().push(Told::Submitted(now, tag, offset, len));
        self.0.submit(now, tag, op, offset, len);
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        let done = self.0.poll(now);
        self.1.lock().unwrap().extend(done.map(|(tag, at)| Told::Done(tag, at)));
        done
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.0.poll_timeout()
    }

    fn power_cut(&mut self, now: Nanos) {
        self.0.power_cut(now);
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// A drive behaves in real time as in virtual time: a second drive that gets the same requests at the same moments, and
/// is polled when it asks for it, gives the same answers.
fn a_drive_is_asked_at_once_and_never_answered_early<R: Reactor>(rig: Rig<R>) {
    const DEPTH: u32 = 4;
    const REQUESTS: u32 = 80;
    let drive = || presets::preset("cheetah-15k5").unwrap().unwrap().build().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let noted: Box<dyn Drive> = Box::new(Noted(drive(), told.clone()));
    let mut rig = with_volume(rig, Stack { drive: Some(noted), faults: Vec::new() }, 1 << 30);
    let mut rng = Rng::new(3);
    let mut submit = |rig: &mut Rig<Layers<R>>, number: u32| {
        let offset = rng.below((1 << 30) / 4096) * 4096;
        rig.reactor.submit(IoId(number), &io(Op::Read, offset, vec![Segment::whole(FrameId(1 + number % DEPTH))]));
    };
    (0..DEPTH).for_each(|number| submit(&mut rig, number));
    let mut seen = 0;
    for next in DEPTH..REQUESTS + DEPTH {
        let number = rig.wait_for(|c| match *c {
            Completion::Io { io, result } => {
                assert_eq!(result, Ok(()));
                Some(io.0)
            }
            _ => None,
        });
        let now = clock();
        let done = |told: &Told| matches!(*told, Told::Done(tag, at) if tag == u64::from(number) && at <= now);
        assert!(told.lock().unwrap().iter().any(done), "{number} was done before the drive was");
        seen += 1;
        if next < REQUESTS {
            submit(&mut rig, next);
        }
    }
    assert_eq!(seen, REQUESTS);
    let lates = rig.look().view.late.unwrap();
    assert_eq!(lates.clock.count() + lates.file.count(), u64::from(REQUESTS));

    let told = told.lock().unwrap();
    let at_its_place = |told: &Told| match *told {
        Told::Submitted(_, _, offset, _) => (1 << 30..2 << 30).contains(&offset),
        Told::Done(..) => true,
    };
    assert!(told.iter().all(at_its_place), "the volume has its place on the drive");
    as_in_virtual_time(drive(), &told);
}

/// Asserts that a drive that was only read from gave the same answers as its twin.
fn as_in_virtual_time(mut twin: Box<dyn Drive>, told: &[Told]) {
    let mut done = Vec::new();
    for told in told {
        let Told::Submitted(now, tag, offset, len) = *told else { continue };
        while let Some(at) = twin.poll_timeout().filter(|&at| at < now) {
            done.extend(std::iter::from_fn(|| twin.poll(at)));
        }
        twin.submit(now, tag, Op::Read, offset, len);
    }
    while let Some(at) = twin.poll_timeout() {
        done.extend(std::iter::from_fn(|| twin.poll(at)));
    }
    let said = told.iter().filter_map(|told| match *told {
        Told::Done(tag, at) => Some((tag, at)),
        Told::Submitted(..) => None,
    });
    assert_eq!(said.collect::<Vec<_>>(), done);
}

/// Starts a read-only probe of a drive; returns the job and the channel of its news.
fn probe<R: Reactor>(rig: &mut Rig<Layers<R>>) -> (Arc<Job>, mpsc::Receiver<News>) {
    let (job, (listener, heard)) = (Arc::new(Job::new()), mpsc::channel());
    let options = Options { budget_ns: SECOND, seed: 1, read_only: true };
    let asked = ProbeDrive { bytes: 64 << 30, options, job: job.clone(), listener };
    rig.reactor.command(LayerCommand::Probe(Box::new(asked)));
    (job, heard)
}

/// A probe sends its next request at the moment at which the drive completes one, even if the thread is late. Only
/// phases and pauses begin at other moments. Meanwhile a volume is served.
fn a_probe_lives_in_the_drives_time<R: Reactor>(rig: Rig<R>) {
    let drive = || presets::preset("cheetah-15k5").unwrap().unwrap().build().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let noted: Box<dyn Drive> = Box::new(Noted(drive(), told.clone()));
    let mut rig = with_volume(rig, Stack { drive: Some(noted), faults: Vec::new() }, 1 << 30);
    let (_, heard) = probe(&mut rig);
    let mut phases = 0;
    loop {
        let read = io(Op::Read, phases << 20, vec![Segment::whole(FrameId(1))]);
        assert_eq!(rig.perform(read), Ok(()));
        match heard.try_recv() {
            Ok(Ok(Heard::Phase(_))) => phases += 1,
            Ok(Ok(Heard::Over)) => break,
            Err(mpsc::TryRecvError::Empty) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(phases > 20, "{phases} phases");
    assert!(matches!(heard.try_recv(), Err(mpsc::TryRecvError::Disconnected)), "nothing is left of it");
    let told = told.lock().unwrap();
    let (mut last_done, mut asked, mut at_once) = (0, 0, 0);
    for told in told.iter() {
        match *told {
            Told::Done(_, at) => last_done = at,
            Told::Submitted(at, tag, ..) if tag > u64::from(u32::MAX) => {
                asked += 1;
                at_once += u32::from(at == last_done);
            }
            Told::Submitted(..) => {}
        }
    }
    assert!(asked > 50 && at_once * 10 > asked * 7, "{at_once} of {asked} requests came at once");
    as_in_virtual_time(drive(), &told);
}

fn a_probe_ends_with_the_first_error_or_when_it_is_cancelled<R: Reactor>(rig: Rig<R>) {
    let drive = presets::preset("cheetah-15k5").unwrap().unwrap().build().unwrap();
    let stack = Stack { drive: Some(drive), faults: Vec::new() };
    let mut rig = with_volume(rig, stack, 1 << 20);
    // A probe that is cancelled while nothing else happens; one that gets an error; and one after it, which succeeds.
    let (job, heard) = probe(&mut rig);
    job.cancel();
    let said = |rig: &mut Rig<Layers<R>>, heard: &mpsc::Receiver<News>| loop {
        match heard.try_recv() {
            Ok(Ok(Heard::Phase(_))) => {}
            Ok(Ok(Heard::Over)) => return Ok("over"),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(mpsc::TryRecvError::Disconnected) => return Ok("cancelled"),
            Err(mpsc::TryRecvError::Empty) => {
                let done = rig.perform(io(Op::Read, 0, vec![Segment::whole(FrameId(1))]));
                assert_eq!(done, Ok(()), "the error is the probe's");
            }
        }
    };
    assert_eq!(said(&mut rig, &heard), Ok("cancelled"));
    rig.clear();
    rig.reactor.command(LayerCommand::Add("error read count=1 range=1GiB..".parse().unwrap()));
    let (_, heard) = probe(&mut rig);
    let error = said(&mut rig, &heard).unwrap_err();
    assert!(error.contains("of the simulated drive failed"), "{error}");
    let (_, heard) = probe(&mut rig);
    assert_eq!(said(&mut rig, &heard), Ok("over"));
}

fn an_error_is_for_whom_it_is_meant<R: Reactor>(rig: Rig<R>) {
    let mut rig = with_fault(rig, "error read range=8KiB..12KiB volume=db errno=ENOSPC");
    let read = |offset| io(Op::Read, offset, vec![Segment::whole(FrameId(1))]);
    assert_eq!(rig.perform(read(8192)), Err(Errno::NoSpace));
    assert_eq!(rig.perform(read(8192 - 512)), Err(Errno::NoSpace));
    assert_eq!(rig.perform(read(4096)), Ok(()));
    assert_eq!(rig.perform(read(12288)), Ok(()));
    assert_eq!(rig.perform(io(WRITE, 8192, vec![Segment::whole(FrameId(1))])), Ok(()));
    rig.reactor.place(VolumeId(6), Place { volume: "other".into(), start: 0, block: BLOCK });
    rig.reactor.open_volume(VolumeId(6), file(1 << 20)).unwrap();
    assert_eq!(rig.perform(Io { volume: VolumeId(6), ..read(8192) }), Ok(()));
    let view = rig.look().view;
    assert_eq!((view.faults[0].hits, view.injected[0]), (2, 2));
    assert_eq!(rig.clear().changed.len(), 1);
    assert_eq!(rig.perform(read(8192)), Ok(()));
}

fn a_torn_write_has_a_beginning_and_no_end<R: Reactor>(rig: Rig<R>) {
    let mut rig = with_fault(rig, "torn seed=4 volume=db");
    rig.paint(1..20);
    let segments = |first: u32| (first..first + 4).map(|number| Segment::whole(FrameId(number))).collect::<Vec<_>>();
    let (old, new) = (rig.content(&segments(1)), rig.content(&segments(5)));
    let mut cuts = Vec::new();
    for _ in 0..12 {
        rig.clear();
        assert_eq!(rig.perform(io(WRITE, 4096, segments(1))), Ok(()));
        let fault = format!("torn seed={}", cuts.len()).parse().unwrap();
        rig.reactor.command(LayerCommand::Add(fault));
        assert_eq!(rig.perform(io(WRITE, 4096, segments(5))), Err(Errno::Io));
        assert_eq!(rig.perform(io(Op::Read, 4096, segments(9))), Ok(()));
        let found = rig.content(&segments(9));
        let cut = found.chunks(512).zip(new.chunks(512)).take_while(|(found, new)| found == new).count() * 512;
        assert!(found[cut..] == old[cut..], "old content behind the first {cut} bytes");
        cuts.push(cut);
    }
    assert!(cuts.iter().all(|&cut| cut < old.len()) && cuts.iter().any(|&cut| cut % 4096 != 0), "{cuts:?}");
}

fn what_hangs_goes_on_when_it_may<R: Reactor>(rig: Rig<R>) {
    let mut rig = with_fault(rig, "stuck write count=1");
    rig.paint(1..2);
    rig.reactor.submit(IoId(1), &io(WRITE, 0, vec![Segment::whole(FrameId(1))]));
    assert_eq!(rig.perform(io(Op::Read, 0, vec![Segment::whole(FrameId(2))])), Ok(()));
    assert_eq!(rig.content(&[Segment::whole(FrameId(2))]), [0; 4096], "it has not begun");
    assert!(rig.done.is_empty());
    assert_eq!(rig.look().view.stuck, 1);
    rig.clear();
    assert_eq!(rig.wait_io(1), Ok(()));
    assert_eq!(rig.perform(io(Op::Read, 0, vec![Segment::whole(FrameId(2))])), Ok(()));
    assert_eq!(rig.content(&[Segment::whole(FrameId(2))]), painted(1));
}

fn a_delay_is_not_shorter_than_it_says<R: Reactor>(rig: Rig<R>) {
    let mut rig = with_fault(rig, "delay flush by=30ms..40ms");
    let before = clock();
    assert_eq!(rig.perform(plain(Op::Flush, 0, 0)), Ok(()));
    assert!(clock() - before >= 30_000_000);
    assert_eq!(rig.look().view.injected, [0, 1, 0, 0, 0]);
}

fn a_device_goes_and_comes_back<R: Reactor>(rig: Rig<R>) {
    let mut rig = with_fault(rig, "gone");
    rig.paint(1..2);
    let write = || io(WRITE, 0, vec![Segment::whole(FrameId(1))]);
    for request in [write(), plain(Op::Flush, 0, 0), plain(Op::Punch, 0, 4096)] {
        assert_eq!(rig.perform(request), Err(Errno::Io));
    }
    rig.clear();
    assert_eq!(rig.perform(io(Op::Read, 0, vec![Segment::whole(FrameId(2))])), Ok(()));
    assert_eq!(rig.content(&[Segment::whole(FrameId(2))]), [0; 4096], "nothing of it happened");
    assert_eq!(rig.perform(write()), Ok(()));
    assert_eq!(rig.perform(plain(Op::Flush, 0, 0)), Ok(()));
}
