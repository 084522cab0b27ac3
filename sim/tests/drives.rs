//! The simulated drives compared with real ones, and the invariants of every drive.

use engine::disk::Op;
use engine::units::{Nanos, SECOND, SECTOR};
use proptest::prelude::*;
use sim::disk::drive::compare::Comparison;
use sim::disk::drive::describe::Description;
use sim::disk::drive::hdd::Hdd;
use sim::disk::drive::replay::{self, Measured};
use sim::disk::drive::{Drive, Tag, presets};
use sim::rng::Rng;

const CHEETAH: &str = include_str!("measured/cheetah-15k5.csv");
const BARRACUDA: &str = include_str!("measured/barracuda-st32171w.csv");

fn drive(preset: &str) -> Box<dyn Drive> {
    presets::preset(preset).unwrap().unwrap().build().unwrap()
}

/// Compares the whole list, and each half of it on a separate drive: a fit must hold for both halves.
fn compare(preset: &str, csv: &str) -> [Comparison; 3] {
    let list = replay::parse(csv).unwrap();
    let (first, second) = list.split_at(list.len() / 2);
    [&list, first, second].map(|part: &[Measured]| {
        let comparison = replay::validate(&mut *drive(preset), part).unwrap();
        println!("{preset}: {comparison:?}");
        comparison
    })
}

fn mean_error(comparison: &Comparison) -> f64 {
    (comparison.mean_simulated_ms / comparison.mean_measured_ms - 1.0).abs()
}

#[test]
fn the_cheetah_is_as_measured() {
    for comparison in compare("cheetah-15k5", CHEETAH) {
        assert!(comparison.rms_ms <= 0.40 && mean_error(&comparison) <= 0.02, "{comparison:?}");
    }
}

#[test]
fn the_barracuda_is_as_measured() {
    for comparison in compare("barracuda-st32171w", BARRACUDA) {
        assert!(comparison.rms_ms <= 0.50 && mean_error(&comparison) <= 0.02, "{comparison:?}");
    }
}

/// Random 4 KiB reads per second over the whole drive.
fn random_reads(preset: &str, depth: u64) -> f64 {
    let (mut drive, mut rng, count) = (drive(preset), Rng::new(depth), 10_000);
    let blocks = drive.bytes() / 4096;
    let elapsed = replay::closed_loop(&mut *drive, depth, count, || (Op::Read, rng.below(blocks) * 4096, 4096));
    count as f64 * SECOND as f64 / elapsed as f64
}

/// Sequential reads of `len` bytes, from the outer edge: megabytes per second.
fn sequential_reads(preset: &str, depth: u64, len: u64) -> f64 {
    sequential(preset, Op::Read, depth, len)
}

fn sequential(preset: &str, op: Op, depth: u64, len: u64) -> f64 {
    let (mut drive, mut offset, count) = (drive(preset), 0, (100 << 20) / len);
    let elapsed = replay::closed_loop(&mut *drive, depth, count, || {
        offset += len;
        (op, offset - len, len)
    });
    (count * len) as f64 * 1e3 / elapsed as f64
}

#[test]
fn the_cheetahs_queue_is_worth_what_it_should() {
    for (depth, expected) in [(1, 173.0), (2, 173.0), (4, 221.0), (8, 261.0), (16, 304.0), (32, 353.0)] {
        let rate = random_reads("cheetah-15k5", depth);
        println!("depth {depth}: {rate:.1} a second, expected {expected}");
        assert!((rate / expected - 1.0).abs() <= 0.07, "depth {depth}: {rate}");
    }
}

#[test]
fn the_cheetah_streams_from_its_outer_zone() {
    for (depth, len) in [(1, 64 << 10), (1, 1 << 20), (4, 256 << 10), (32, 4 << 10)] {
        let rate = sequential_reads("cheetah-15k5", depth, len);
        println!("depth {depth} of {len}: {rate:.1} MB/s");
        assert!((rate / 131.0 - 1.0).abs() <= 0.03, "depth {depth} of {len}: {rate}");
    }
}

/// A write that is queued when its predecessor ends continues there. One that arrives later waits for a revolution.
#[test]
fn queued_writes_in_a_row_are_one_stream() {
    for preset in ["cheetah-15k5", "barracuda-7200.9", "nearline"] {
        let reads = sequential_reads(preset, 8, 256 << 10);
        let (queued, alone) = (sequential(preset, WRITE, 8, 256 << 10), sequential(preset, WRITE, 1, 256 << 10));
        println!("{preset}: reads {reads:.1} MB/s, writes {queued:.1}, one by one {alone:.1}");
        assert!((queued / reads - 1.0).abs() < 0.05 && alone < 0.75 * queued, "{preset}: {reads} {queued} {alone}");
    }
}

/// Average seek of 11 ms, half a revolution and little overhead; at depth 4 the rate that its users report.
#[test]
fn the_barracuda_of_the_papers_is_plausible() {
    let expected = 1000.0 / (11.0 + 60_000.0 / 7200.0 / 2.0 + 0.15);
    let alone = random_reads("barracuda-7200.9", 1);
    assert!((alone / expected - 1.0).abs() < 0.03, "{alone} a second, {expected} expected");
    assert!(random_reads("barracuda-7200.9", 4) > 82.0);
    assert_eq!(drive("barracuda-7200.9").bytes() / SECTOR, 488_397_168);
}

#[test]
fn the_nearline_drive_is_plausible() {
    let alone = random_reads("nearline", 1);
    assert!((80.0..90.0).contains(&alone), "{alone}");
    let outside = sequential_reads("nearline", 2, 1 << 20);
    assert!((200.0..240.0).contains(&outside), "{outside}");
}

/// Mean seek, half a revolution and the overhead of the data sheets; their rates at both edges, and their sizes.
#[test]
fn the_drives_from_data_sheets_are_as_they_say() {
    let of = [
        ("enterprise-10k", 3.8 + 3.0 + 0.2, 135.0, 72.0, 1_172_123_568, 0.03),
        ("laptop-5400", 12.0 + 60_000.0 / 5400.0 / 2.0 + 0.3, 83.0, 42.0, 625_142_448, 0.03),
    ];
    for (preset, access_ms, outside, inside, sectors, within) in of {
        let alone = random_reads(preset, 1);
        assert!((alone * access_ms / 1000.0 - 1.0).abs() < within, "{preset}: {alone} a second in {access_ms} ms");
        let rate = sequential_reads(preset, 2, 1 << 20);
        assert!((rate / outside - 1.0).abs() < within, "{preset}: {rate} MB/s, {outside} expected");
        let mut drive = drive(preset);
        assert_eq!(drive.bytes() / SECTOR, sectors);
        let mut at = drive.bytes() - (100 << 20);
        let elapsed = replay::closed_loop(&mut *drive, 2, 100, || {
            at += 1 << 20;
            (Op::Read, at - (1 << 20), 1 << 20)
        });
        let rate = (100 << 20) as f64 * 1e3 / elapsed as f64;
        assert!((rate / inside - 1.0).abs() < within, "{preset}: {rate} MB/s, {inside} expected");
    }
}

#[test]
fn a_throttled_drive_keeps_to_its_rate_after_its_burst() {
    let (mut drive, mut rng) = (drive("throttled"), Rng::new(1));
    let blocks = drive.bytes() / 4096;
    let elapsed = replay::closed_loop(&mut *drive, 32, 33_000, || (Op::Read, rng.below(blocks) * 4096, 4096));
    let rate = 30_000.0 * SECOND as f64 / elapsed as f64;
    assert!((rate / 3000.0 - 1.0).abs() < 0.01, "{rate}");
}

/// A cached write is acknowledged at once and is on the medium later: a flush waits for it, and is quick without one.
#[test]
fn a_flush_waits_for_the_medium() {
    let mut drive = drive("barracuda-st32171w");
    let mut run = |now, op, offset, len| {
        drive.submit(now, 0, op, offset, len);
        let (_, at) = std::iter::from_fn(|| Some(drive.poll(drive.poll_timeout()?)))
            .flatten()
            .next()
            .expect("it is done some time");
        at - now
    };
    let flush_ns = run(0, Op::Flush, 0, 0);
    let write_ns = run(SECOND, Op::Write { durable: false }, 1 << 30, 4096);
    let covered_ns = run(SECOND + write_ns, Op::Flush, 0, 0);
    let durable_ns = run(2 * SECOND, Op::Write { durable: true }, 1 << 30, 4096);
    assert!(flush_ns < 2_000_000 && write_ns < 3_000_000, "{flush_ns} {write_ns}");
    assert!(covered_ns > 3_000_000 && durable_ns > 3_000_000, "{covered_ns} {durable_ns}");
}

/// Some drives read ahead after any request, some only in a stream: there the second request still waits.
#[test]
fn reading_ahead_may_need_a_stream() {
    let text = presets::text("barracuda-st32171w").unwrap();
    let cautious = text.replace("ahead_sectors = 281", "ahead_sectors = 281\nahead_after_sequential = true");
    let responses_ms = |text: &str| {
        let read = |sector| Measured { op: Op::Read, sector, sectors: 4, response_us: 0.0, gap_us: 20_000.0 };
        let mut drive = Description::parse(text).unwrap().build().unwrap();
        let times = replay::one_at_a_time(&mut *drive, &[1000, 1004, 1008].map(read)).unwrap();
        times.into_iter().map(|ns| ns as f64 / 1e6).collect::<Vec<_>>()
    };
    let (eager, cautious) = (responses_ms(text), responses_ms(&cautious));
    assert!(eager[1] < 1.0 && eager[2] < 1.0, "{eager:?}");
    assert!(cautious[1] > 1.0 && cautious[2] < 1.0, "{cautious:?}");
}

fn described(text: &str) -> Box<dyn Drive> {
    Description::parse(text).unwrap().build().unwrap()
}

/// Response times of `requests`, 20 ms apart, in milliseconds.
fn times_ms(text: &str, requests: &[(Op, u64, u64)]) -> Vec<f64> {
    let of = |&(op, sector, sectors)| Measured { op, sector, sectors, response_us: 0.0, gap_us: 20_000.0 };
    let list: Vec<_> = requests.iter().map(of).collect();
    let times = replay::one_at_a_time(&mut *described(text), &list).unwrap();
    times.into_iter().map(|ns| ns as f64 / 1e6).collect()
}

/// The text of a preset with `old` replaced, which must be in it.
fn changed(preset: &str, old: &str, new: &str) -> String {
    let text = presets::text(preset).unwrap();
    assert!(text.contains(old), "{old}");
    text.replace(old, new)
}

const WRITE: Op = Op::Write { durable: false };

/// The bus of 1996 takes 4.1 ms for 40 sectors: as long as the arm, or before it.
#[test]
fn the_arm_may_wait_for_the_data_of_a_write() {
    let overlaps = changed("barracuda-st32171w", "[hdd.write_cache]", "[hdd.write_cache]\nenabled = false");
    let waits = overlaps.replace("overlaps_media = true", "overlaps_media = true\nwrite_overlaps_media = false");
    let mut rng = Rng::new(1);
    let writes: Vec<_> = (0..3000).map(|_| (WRITE, rng.below(4_000_000), 40)).collect();
    let mean_ms = |text: &str| times_ms(text, &writes).iter().sum::<f64>() / writes.len() as f64;
    let (overlaps, waits) = (mean_ms(&overlaps), mean_ms(&waits));
    assert!((waits - overlaps - 4.1).abs() < 0.4, "{overlaps} {waits}");
}

/// The bus is slower than the medium, so the time until it begins is seen in the response time.
#[test]
fn a_water_mark_is_between_the_first_sector_and_the_last() {
    let preset = presets::text("barracuda-st32171w").unwrap();
    let marked = |mark: &str| preset.replace("overlaps_media = true", mark);
    let read_ms = |text: &str| times_ms(text, &[(Op::Read, 0, 100)])[0];
    let at_once = read_ms(preset);
    assert_eq!(read_ms(&marked("overlaps_media = true\nread_water_mark = 0.0")), at_once);
    let medium_ms = 60_000.0 / 7200.0 * 100.0 / 186.0;
    for part in [0.25, 0.5, 0.75, 1.0] {
        let text = marked(&format!("overlaps_media = true\nread_water_mark = {part:?}"));
        assert!((read_ms(&text) - at_once - part * medium_ms).abs() < 0.001, "{part}");
    }
    let afterwards = read_ms(&marked("overlaps_media = false"));
    assert_eq!(read_ms(&marked("overlaps_media = true\nread_water_mark = 1.0")), afterwards);
}

/// The first track has 186 sectors.
#[test]
fn reading_ahead_may_end_with_the_track() {
    let beyond = presets::text("barracuda-st32171w").unwrap();
    let track = changed("barracuda-st32171w", "ahead_sectors = 281", "ahead_sectors = 281\nahead_to_track_end = true");
    let second_ms = |text: &str, sector| times_ms(text, &[(Op::Read, 0, 4), (Op::Read, sector, 4)])[1];
    assert!(second_ms(beyond, 182) < 1.0 && second_ms(&track, 182) < 1.0);
    assert!(second_ms(beyond, 190) < 1.0 && second_ms(&track, 190) > 1.0);
    // A hit does not read on into the next track, and the next miss does.
    let hits = [0, 182, 190, 200].map(|sector| (Op::Read, sector, 4));
    let times = times_ms(&track, &hits);
    assert!(times[1] < 1.0 && times[2] > 1.0 && times[3] < 1.0, "{times:?}");
}

#[test]
fn overhead_may_depend_on_the_request_before() {
    let table = "[hdd.overhead_after_write_ms]\nread_hit = 3.45\nwrite_hit = 2.045\n\n[hdd.queue]";
    let apart = changed("barracuda-st32171w", "[hdd.queue]", table);
    let requests = [
        (Op::Read, 0, 4),
        (Op::Read, 4, 4),
        (WRITE, 9000, 4),
        (WRITE, 99_000, 4),
        (Op::Flush, 0, 0),
        (Op::Read, 8, 4),
        (Op::Read, 12, 4),
    ];
    let times = [presets::text("barracuda-st32171w").unwrap(), &apart].map(|text| times_ms(text, &requests));
    let more: Vec<_> = times[1].iter().zip(&times[0]).map(|(apart, alike)| ((apart - alike) * 1e3).round()).collect();
    assert_eq!([more[0], more[1], more[2], more[3], more[5], more[6]], [0.0, 0.0, 0.0, 1000.0, 3000.0, 0.0]);
}

/// Without skew, the next track has just begun when the head is there, and costs a revolution.
#[test]
fn a_zone_may_have_its_own_skew() {
    let first = "sectors_per_track = 1200, sectors = 37386697";
    let own = format!("{first}, skew_revolutions = {{ track = 0.0, head = 0.0, band = 0.0 }}");
    let own = changed("cheetah-15k5", first, &own);
    let stream_ns = |text: &str, from: u64| {
        let mut sector = from;
        replay::closed_loop(&mut *described(text), 2, 100, || {
            sector += 512;
            (Op::Read, (sector - 512) * SECTOR, 512 * SECTOR)
        })
    };
    let preset = presets::text("cheetah-15k5").unwrap();
    let [before, after] = [0, 37_386_697].map(|from| (stream_ns(preset, from), stream_ns(&own, from)));
    assert!(before.1 > before.0 * 3 / 2, "{before:?}");
    assert_eq!(after.0, after.1);
}

/// Measured tables end before the longest seek: their last line continues, and a note says so.
#[test]
fn a_seek_table_says_that_it_is_continued() {
    let notes = |text: &str| Description::parse(text).unwrap().notes().unwrap();
    let [note] = &notes(presets::text("cheetah-15k5").unwrap())[..] else { panic!("one note") };
    assert!(note.contains("hdd.seek.table_ms ends at 72000 cylinders (6.914 ms)"), "{note}");
    assert!(note.contains("of 72170") && note.contains("up to 6.927 ms"), "{note}");
    assert!(notes(presets::text("barracuda-7200.9").unwrap()).is_empty());
    assert!(notes(presets::text("flash").unwrap()).is_empty());
    // A table whose last rows fall does not come down to nothing.
    let falling = changed("cheetah-15k5", "[72000, 6.9139],", "[72000, 6.7],");
    let note = &notes(&falling)[0];
    assert!(note.contains("up to 6.700 ms"), "{note}");
    let steep = changed("cheetah-15k5", "[72000, 6.9139],", "[71001, 500.0],");
    let error = Description::parse(&steep).unwrap().build().unwrap_err().to_string();
    assert!(error.contains("hdd.seek.table_ms: continued to 72170 cylinders") && error.contains("add rows"), "{error}");
}

#[test]
fn what_is_wrong_in_a_description_is_named_with_its_fix() {
    let text = presets::text("barracuda-7200.9").unwrap();
    let cases = [
        ("rpm = 7200", "rpm = 0", "hdd.rpm: 0 is no speed; give 300 to 100000"),
        ("track = 0.1547", "track = 1.5", "hdd.skew_revolutions.track"),
        ("depth = 31", "depth = 31\nwindow = 32", "hdd.queue.window: 32 is out of range; give 1 to 31"),
        ("single_ms = 0.8", "single_ms = 12.0", "give single_ms < average_ms < full_ms"),
        ("single_ms = 0.8", "", "give table_ms, or single_ms, average_ms and full_ms"),
        ("ahead_sectors = 768", "ahead_sectors = 769", "hdd.read_cache.ahead_sectors"),
        ("first_cylinder = 0,", "first_cylinder = 9000,", "hdd.zones[1].first_cylinder"),
        ("heads = 4", "heads = 1", "hdd.zones[0].sectors"),
        ("heads = 4", "heads = 4\nhaeds = 4", "unknown field `haeds`"),
        ("heads = 4", "", "missing field `heads`"),
        ("overlaps_media = true", "overlaps_media = true\nread_water_mark = 1.5", "hdd.bus.read_water_mark: 1.5"),
        ("overlaps_media = true", "overlaps_media = false\nread_water_mark = 0.5", "give overlaps_media = true"),
        ("[hdd.queue]", "[hdd.overhead_after_write_ms]\nread = -1.0\n[hdd.queue]", "hdd.overhead_after_write_ms.read"),
        (
            "sectors = 39696510",
            "sectors = 39696510, skew_revolutions = { track = 0.1, head = 1.0, band = 0.1 }",
            "hdd.zones[0].skew_revolutions.head: 1 is not a part of a revolution",
        ),
        ("[hdd.queue]", "[throttle]\n[hdd.queue]", "throttle: it limits nothing"),
    ];
    for (right, bad, expected) in cases {
        assert!(text.contains(right), "{right}");
        let built = Description::parse(&text.replace(right, bad)).and_then(|description| description.build());
        let error = built.expect_err(bad).to_string();
        assert!(error.contains(expected), "{bad}: {error}");
    }
}

#[test]
fn presets_are_right() {
    for (name, _) in presets::PRESETS {
        assert!(drive(name).bytes() > 1 << 30, "{name}");
    }
}

/// Time since the previous request, operation, offset, bytes.
type Step = (Nanos, Op, u64, u64);

/// Requests for a drive of `bytes`: close together or anywhere, in bursts or not.
fn steps(bytes: u64) -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        5 => Just(Op::Read),
        3 => Just(Op::Write { durable: false }),
        1 => Just(Op::Write { durable: true }),
        1 => Just(Op::Flush),
        1 => Just(Op::Zero),
    ];
    let gap = prop_oneof![Just(0), 0..200_000u64, 0..50_000_000u64];
    let sectors = prop_oneof![1..64u64, 1..3000u64];
    let at = prop_oneof![2 => 0..2000u64, 1 => 0..bytes / SECTOR - 3000];
    let step = (gap, op, at, sectors).prop_map(|(gap, op, sector, sectors)| match op {
        Op::Flush => (gap, op, 0, 0),
        _ => (gap, op, sector * SECTOR, sectors * SECTOR),
    });
    prop::collection::vec(step, 1..80)
}

/// Runs all requests to the end. Returns for each when it was submitted and when it completed. `each` sees the drive
/// after every call.
fn run<D: Drive + ?Sized>(drive: &mut D, steps: &[Step], mut each: impl FnMut(&D)) -> Vec<(Nanos, Nanos)> {
    let mut times: Vec<(Nanos, Nanos)> = Vec::new();
    let note = |times: &mut Vec<(Nanos, Nanos)>, last: &mut Nanos, (tag, at): (Tag, Nanos)| {
        assert!(at >= *last, "completions come in order");
        assert_eq!(times[tag as usize].1, 0, "each is done once");
        *last = at;
        times[tag as usize].1 = at;
    };
    let (mut now, mut last) = (0, 0);
    for (tag, &(gap, op, offset, len)) in steps.iter().enumerate() {
        let then = now + gap;
        while let Some(at) = drive.poll_timeout().filter(|&at| at <= then) {
            while let Some(done) = drive.poll(at) {
                note(&mut times, &mut last, done);
            }
            each(drive);
        }
        now = then;
        times.push((now, 0));
        drive.submit(now, tag as Tag, op, offset, len);
        each(drive);
    }
    while let Some(at) = drive.poll_timeout() {
        while let Some(done) = drive.poll(at) {
            note(&mut times, &mut last, done);
        }
        each(drive);
    }
    assert!(times.iter().all(|&(came, done)| done >= came.max(1)), "all are done, none before it came");
    times
}

const SMALLEST: u64 = 2_100_000_000;

/// Every preset, again with the write caches of hard disks enabled, and with the keys that older drives need.
fn descriptions() -> Vec<Description> {
    let on = |text: &str| text.replace("enabled = false", "enabled = true");
    let older = |text: &str| {
        let bus = "overlaps_media = true\nread_water_mark = 0.4\nwrite_overlaps_media = false";
        let table = "[hdd.overhead_after_write_ms]\nread = 2.0\nwrite_hit = 1.0\n\n[hdd.queue]";
        let text = text.replace("overlaps_media = true", bus).replace("[hdd.queue]", table);
        text.replace("\nahead_sectors", "\nahead_to_track_end = true\nahead_sectors")
    };
    let texts = presets::PRESETS.iter().flat_map(|(_, text)| [text.to_string(), on(text), older(text)]);
    texts.map(|text| Description::parse(&text).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The same requests at the same times complete at the same times.
    #[test]
    fn the_same_input_gives_the_same_output(steps in steps(SMALLEST)) {
        for description in descriptions() {
            let times = [(); 2].map(|()| run(&mut *description.build().unwrap(), &steps, |_| ()));
            prop_assert_eq!(&times[0], &times[1], "{}", description.model);
        }
    }

    /// The arm does one thing at a time; no transfer is faster than the bus, cached or not.
    #[test]
    fn time_is_conserved(steps in steps(SMALLEST)) {
        for description in descriptions() {
            let Some(spec) = description.hdd().unwrap() else { continue };
            let byte_ps = spec.bus.byte_ps;
            let mut served = Vec::new();
            let times = run(&mut Hdd::new(spec), &steps, |drive: &Hdd| served.push(drive.served()));
            served.dedup();
            prop_assert!(served.iter().all(|(start, end)| start <= end));
            prop_assert!(served.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{}: {served:?}", description.model);
            let mut bus_ns = 0;
            for ((came, done), (_, op, _, len)) in times.iter().zip(&steps) {
                if matches!(op, Op::Read | Op::Write { .. }) {
                    prop_assert!(done - came >= len * byte_ps / 1000, "{}", description.model);
                    bus_ns += len * byte_ps / 1000;
                }
            }
            let last = times.iter().map(|(_, done)| *done).max().unwrap_or(0);
            prop_assert!(last >= bus_ns, "{}: the bus carries one thing at a time", description.model);
        }
    }

    /// Polling all the time gives the same completions as polling at `poll_timeout`.
    #[test]
    fn polling_changes_nothing(steps in steps(SMALLEST)) {
        for description in descriptions() {
            let mut often = description.build().unwrap();
            let told = run(&mut *description.build().unwrap(), &steps, |_| ());
            let (mut now, mut times) = (0, vec![0; steps.len()]);
            for (tag, &(gap, op, offset, len)) in steps.iter().enumerate() {
                let then = now + gap;
                for at in (now..=then).step_by(1 + gap as usize / 20) {
                    while let Some((tag, at)) = often.poll(at) {
                        times[tag as usize] = at;
                    }
                }
                now = then;
                often.submit(now, tag as Tag, op, offset, len);
            }
            while let Some((tag, at)) = often.poll(Nanos::MAX / 2) {
                times[tag as usize] = at;
            }
            let told: Vec<_> = told.into_iter().map(|(_, done)| done).collect();
            prop_assert_eq!(times, told, "{}", description.model);
        }
    }
}
