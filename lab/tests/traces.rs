//! Traces in all formats are read correctly, and written such that they are read back the same.

use std::io::Write;
use std::path::{Path, PathBuf};

use lab::trace::{Format, Names, Report, Summary, Trace, TraceError, Writer};
use proptest::prelude::*;
use sim::load::{Op, Record};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name)
}

fn info(path: &Path) -> Report {
    let mut trace = Trace::open(path, None).unwrap();
    let mut summary = Summary::default();
    (&mut trace).for_each(|record| summary.add(record.unwrap()));
    Report::new("x", "x", &summary, trace.tally())
}

/// The records of a text, and the trace with its device names.
fn read(text: &str, format: Format) -> (Vec<Record>, Trace) {
    let mut trace = Trace::new(std::io::Cursor::new(text.to_owned()), format).unwrap();
    let records = (&mut trace).map(|record| record.unwrap()).collect();
    (records, trace)
}

fn record(time_ns: u64, op: Op, offset: u64, bytes: u64, stream: u32) -> Record {
    Record { time_ns, op, offset, bytes, stream }
}

/// Counts that another program found in the excerpts.
#[test]
fn the_figures_of_the_excerpts() {
    type Figures = (u64, u64, f64, u64, u64, f64, u64, u64);
    let expected: [(&str, Figures); 4] = [
        (
            "excerpt-of-linux-webserver-2.load.gz",
            (1482, 705, 18.678339777, 2948, 411, 41.0 / 1482.0, 769_295_544_320, 18),
        ),
        ("excerpt-of-linux-mysql.load.gz", (1499, 535, 50.173330689, 4655, 486, 131.0 / 1499.0, 32_178_216_960, 1)),
        ("excerpt-of-windows-mssql.load.gz", (1500, 533, 983.06559767, 748, 68, 638.0 / 1500.0, 21_856_316_928, 0)),
        ("excerpt-of-cloudPhysicsIO.vscsi.xz", (1500, 0, 456.418562, 1154, 79, 163.0 / 1500.0, 21_529_041_408, 0)),
    ];
    for (name, expected) in expected {
        let report = info(&data(name));
        let left_out = report.left_out.iter().map(|left_out| left_out.lines).sum();
        let figures = (
            report.requests,
            report.reads,
            report.duration_seconds,
            report.footprint_bytes / 4096,
            report.peak_requests_in_1s,
            report.sequential_share.unwrap(),
            report.span_bytes,
            left_out,
        );
        assert_eq!((figures, report.broken_lines), (expected, 0), "{name}");
    }
}

/// The table in the data's README: requests, length, reads, footprint, peak in a second. The files are not in the
/// repository: `make test-traces TRACES=DIR`.
#[cfg(feature = "whole-traces")]
#[test]
fn the_figures_of_the_whole_traces() {
    let directory =
        PathBuf::from(std::env::var_os("AEROGEL_TRACES").expect("AEROGEL_TRACES names the traces' directory"));
    let expected = [
        ("linux-webserver-2.load.gz", 268_663, 60.0, 55.3, 2.0e9, 0.1e9, 1389),
        ("linux-mysql.load.gz", 80_793, 60.0, 8.9, 584e6, 1e6, 488),
        ("windows-mssql.load.gz", 42_976, 51.0, 5.9, 634e6, 1e6, 3112),
        ("cloudPhysicsIO.vscsi.xz", 113_872, 120.0, 41.3, 1.1e9, 0.1e9, 2204),
    ];
    for (name, requests, minutes, reads, footprint, rounding, peak) in expected {
        let report = info(&directory.join(name));
        assert_eq!((report.requests, report.peak_requests_in_1s, report.broken_lines), (requests, peak, 0), "{name}");
        assert_eq!((report.duration_seconds / 60.0).round(), minutes, "{name}");
        assert_eq!((report.read_share.unwrap() * 1000.0).round() / 10.0, reads, "{name}");
        assert!(
            (report.footprint_bytes as f64 - footprint).abs() <= rounding / 2.0 * 1.1,
            "{name}: {}",
            report.footprint_bytes
        );
    }
}

#[test]
fn the_notice_is_kept_and_read_ahead_is_asked_for() {
    let mut trace = Trace::open(&data("excerpt-of-linux-mysql.load.gz"), None).unwrap().with_read_ahead(true);
    assert_eq!((&mut trace).count(), 1500);
    assert!(trace.tally().left_out.is_empty());
    assert!(trace.tally().notice.contains("Copyright Thomas Schoebel-Theuer"));
    assert!(trace.tally().notice.contains("example-load/natural/linux-mysql.load.gz"));
}

#[test]
fn blkreplay_as_it_comes() {
    let text = "Copyright somebody\r\n\r\nstart ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\r\n\
                0.5;8;16;R\r\n   0.600000001 ;   100 ;    1 ;   W ; 0.0 ; 0.0\r\n0.7 ; 5 ; 8 ; X ; 0\r\n0.8;5;0;R\n";
    let (records, trace) = read(text, Format::Blkreplay);
    let expected = [record(500_000_000, Op::Read, 4096, 8192, 0), record(600_000_001, Op::Write, 51_200, 512, 0)];
    assert_eq!(records, expected);
    let tally = trace.tally();
    assert_eq!((tally.broken, tally.first_broken[0].line, tally.left_out["requests of no bytes"]), (1, 6, 1));
    assert!(tally.first_broken[0].reason.contains("'X'"), "{:?}", tally.first_broken);
}

#[test]
fn disksim_as_it_comes() {
    let text = "# made by somebody\n0.000000 0 303567 7 0\n13.191135 30\t0 5 1\n\n17.8 20 576560 6 10001\n";
    let (records, trace) = read(text, Format::Disksim);
    let expected = [
        record(0, Op::Write, 303_567 * 512, 7 * 512, 0),
        record(13_191_135, Op::Read, 0, 5 * 512, 1),
        record(17_800_000, Op::Read, 576_560 * 512, 6 * 512, 2),
    ];
    assert_eq!(records, expected);
    assert_eq!((trace.names().name(1), trace.names().len()), (Some("30"), 3));
}

#[test]
fn ssdsim_as_it_comes() {
    let text = "4851300 1 524288 16 0\n4864300\t0 8 1 1\n0.5 0 8 1 1\n9 0 8 1 2\n";
    let (records, trace) = read(text, Format::Ssdsim);
    let expected = [record(4_851_300, Op::Write, 524_288 * 512, 8192, 0), record(4_864_300, Op::Read, 8 * 512, 512, 1)];
    assert_eq!(records, expected);
    let reasons: Vec<_> = trace.tally().first_broken.iter().map(|broken| broken.reason.as_str()).collect();
    assert!(reasons[0].contains("disksim has milliseconds") && reasons[1].contains("neither 0"), "{reasons:?}");
    assert_eq!("mqsim".parse(), Ok(Format::Ssdsim));
}

/// SSDSim and MQSim have DiskSim's columns with times in nanoseconds, and the extension `.ascii` is used for all three.
#[test]
fn nanoseconds_are_not_read_as_milliseconds() {
    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str, text: &str, format| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        Trace::open(&path, format).map(|trace| trace.map(|record| record.unwrap().time_ns).collect::<Vec<_>>())
    };
    let fails = |name, text, format| open(name, text, format).unwrap_err().to_string();
    let close = "4851300 1 524288 16 0\n4864300 1 524304 16 0\n";
    let far = "4851300000 1 524288 16 0\n4864300000 1 524304 16 0\n";
    for text in [close, far] {
        let error = fails("trace.ascii", text, None);
        assert!(error.contains("--format ssdsim") && error.contains("--format disksim"), "{error}");
        assert_eq!(open("trace.ascii", text, Some(Format::Ssdsim)).unwrap().len(), 2);
        assert_eq!(open("trace.mqsim", text, None).unwrap().len(), 2);
    }
    // What the user says is believed, unless it cannot be.
    assert_eq!(open("t.ascii", close, Some(Format::Disksim)).unwrap(), [4_851_300_000_000, 4_864_300_000_000]);
    let error = fails("t.ascii", far, Some(Format::Disksim));
    assert!(error.contains("too far apart for milliseconds") && error.contains("5.0"), "{error}");
    assert_eq!(open("t.ascii", "0 1 0 8 1\n4851.3 1 0 8 0\n", None).unwrap(), [0, 4_851_300_000]);
}

#[test]
fn msr_as_it_comes() {
    let text = "\u{feff}Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\r\n\
                128166372003061629,hm,1,Read,383496192,32768,413\r\n\
                128166372002869395,hm,0,write,2822144,4096,58011\r\n";
    let (records, trace) = read(text, Format::Msr);
    let expected = [
        record(12_816_637_200_306_162_900, Op::Read, 383_496_192, 32_768, 0),
        record(12_816_637_200_286_939_500, Op::Write, 2_822_144, 4096, 1),
    ];
    assert_eq!((records.as_slice(), trace.tally().broken), (&expected[..], 0));
    assert_eq!(trace.names().name(0), Some("hm_1"));
}

#[test]
fn spc_as_it_comes() {
    let text = "0,303567,3584,w,0.000000\n 1, 55590 , 3072 , R , 0.026214 , extra\n";
    let (records, _) = read(text, Format::Spc);
    let expected = [record(0, Op::Write, 303_567 * 512, 3584, 0), record(26_214_000, Op::Read, 55_590 * 512, 3072, 1)];
    assert_eq!(records, expected);
}

const BLKPARSE: &str = "\
  8,0    3        1     0.000000000   697  A   W 223490 + 8 <- (8,1) 223427
  8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000005000   697  G   W 223490 + 8 [kjournald]
  8,0    3        4     0.000009000   697  D   W 223490 + 16 [kjournald]
  8,16   1        5     1.5           100  Q  RA 64 + 256 [dd]
  8,0    0        6     2.000000000   100  Q FWS [jbd2/sda1-8]
  8,0    0        7     2.100000000   100  Q  DS 2048 + 4096 [fstrim]
  8,0    0        8     2.200000000   100  Q FWFSM 10 + 8 [jbd2]
  8,0    0        9     2.300000000     0  m   N cfq workload slice:100
  8,0    0       10     2.400000000     0  C   W 223490 + 16 [0]
CPU0 (sda):
 Reads Queued:           0,        0KiB\t Writes Queued:          10,       44KiB
Throughput (R/W): 0KiB/s / 88KiB/s
Events (sda): 10 entries
Skips: 0 forward (0 -   0.0%)
";

#[test]
fn blkparse_as_it_comes() {
    let (asked, trace) = read(BLKPARSE, Format::BlkparseQ);
    let expected = [
        record(1829, Op::Write, 223_490 * 512, 4096, 0),
        record(1_500_000_000, Op::Read, 64 * 512, 256 * 512, 1),
        record(2_000_000_000, Op::Flush, 0, 0, 0),
        record(2_100_000_000, Op::Trim, 2048 * 512, 4096 * 512, 0),
        record(2_200_000_000, Op::Write, 5120, 4096, 0),
    ];
    assert_eq!((asked.as_slice(), trace.tally().broken), (&expected[..], 0), "{:?}", trace.tally());
    assert_eq!((trace.names().name(1), trace.tally().left_out["events of other kinds"]), (Some("8,16"), 5));
    let one = Trace::new(BLKPARSE.as_bytes(), Format::BlkparseQ).unwrap().with_device(Some("8,16".into()));
    assert_eq!(one.map(|record| record.unwrap()).collect::<Vec<_>>(), expected[1..2]);
    let (issued, _) = read(BLKPARSE, Format::BlkparseD);
    assert_eq!(issued, [record(9000, Op::Write, 223_490 * 512, 8192, 0)]);
}

#[test]
fn iolog_as_it_comes() {
    let second = "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda read 0 4096\n/dev/sda wait 500 0\n\
                  /dev/sda write 4096 512\n/dev/sda sync 0 0\n/dev/sda trim 8192 4096\n/dev/sda close\n";
    let ms = 1_000_000;
    let expected = [
        record(0, Op::Read, 0, 4096, 0),
        record(500 * ms, Op::Write, 4096, 512, 0),
        record(500 * ms, Op::Flush, 0, 0, 0),
        record(500 * ms, Op::Trim, 8192, 4096, 0),
    ];
    assert_eq!(read(second, Format::Iolog3).0, expected, "the file says which version it is");
    let third = "fio version 3 iolog\n0 f add\n0 f open\n123 f read 0 4096\n456 g datasync 0 0\n456 f close\n";
    let expected = [record(123_000, Op::Read, 0, 4096, 0), record(456_000, Op::Flush, 0, 0, 1)];
    assert_eq!(read(third, Format::Iolog2).0, expected);
}

fn vscsi_record(second: bool, command: u16, bytes: u32, sector: u64, us: u64) -> Vec<u8> {
    let mut record = Vec::new();
    let version = if second { 0x200u16 } else { 0x100 };
    if second {
        record.extend([command.to_le_bytes(), version.to_le_bytes()].concat());
    }
    [7u32, bytes, 1].iter().for_each(|number| record.extend(number.to_le_bytes()));
    if !second {
        record.extend([command.to_le_bytes(), version.to_le_bytes()].concat());
    }
    [sector, us].iter().for_each(|number| record.extend(number.to_le_bytes()));
    if second {
        record.extend(99u64.to_le_bytes());
    }
    record
}

#[test]
fn both_versions_of_vscsi() {
    for second in [false, true] {
        let records = [(0x28, 512, 9, 5), (0x2a, 4096, 7, 6), (0x00, 0, 0, 7), (0x8a, 512, 1, 8)];
        let of =
            |&(command, bytes, sector, us): &(u16, u32, u64, u64)| vscsi_record(second, command, bytes, sector, us);
        let mut bytes: Vec<u8> = records.iter().flat_map(of).collect();
        bytes.extend([1, 2, 3]);
        let mut trace = Trace::new(std::io::Cursor::new(bytes), Format::Vscsi).unwrap();
        let records: Vec<_> = (&mut trace).map(|record| record.unwrap()).collect();
        let expected = [
            record(5000, Op::Read, 9 * 512, 512, 0),
            record(6000, Op::Write, 7 * 512, 4096, 0),
            record(8000, Op::Write, 512, 512, 0),
        ];
        assert_eq!(records, expected);
        let tally = trace.tally();
        assert_eq!((tally.broken, tally.left_out["other SCSI commands"]), (1, 1));
        assert!(tally.first_broken[0].reason.contains("ends 3 bytes into it"));
    }
}

#[test]
fn what_is_mostly_broken_is_an_error_that_says_where() {
    let mut trace = Trace::new(&b"0 1 2 3 1\nnonsense\nmore\n"[..], Format::Disksim).unwrap();
    assert!(trace.next().unwrap().is_ok());
    let error = trace.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("2 broken lines beside 1 requests, the first at line 2"), "{error}");
    assert!(trace.next().is_none());
    // The error comes before the whole of a large file is read.
    let noise = "x\n".repeat(1_000_000);
    let mut trace = Trace::new(std::io::Cursor::new(noise), Format::Spc).unwrap();
    assert!(matches!(trace.next(), Some(Err(TraceError::MostlyBroken { broken: 1000, .. }))));
    // Impossible numbers are broken lines, too.
    let text = "0,1,512,R,0\n0,99999999999999999,512,R,1\n0,1,99999999999,R,1\n0,5,512,R,1\n0,1,512,W,2\n";
    let (records, trace) = read(text, Format::Spc);
    assert_eq!((records.len(), trace.tally().broken), (3, 2));
}

#[test]
fn an_unknown_format_names_those_that_there_are() {
    let error = Trace::open(Path::new("a.txt.gz"), None).err().unwrap().to_string();
    assert!(Format::ALL.iter().all(|(_, name, _)| error.contains(name)), "{error}");
    let error = "diskmon".parse::<Format>().unwrap_err();
    assert!(Format::ALL.iter().all(|(_, name, _)| error.contains(name)), "{error}");
}

#[test]
fn compression_is_told_by_content() {
    let text = "0.1;8;16;R\n".repeat(3);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(text.as_bytes()).unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    // Two concatenated gzip files are one, as for gunzip.
    let twice = [gzip.clone(), gzip.clone()].concat();
    for (bytes, count) in [(text.into_bytes(), 3), (gzip.clone(), 3), (xz.finish().unwrap(), 3), (zstd, 3), (twice, 6)]
    {
        let trace = Trace::new(std::io::Cursor::new(bytes), Format::Blkreplay).unwrap();
        assert_eq!(trace.collect::<Result<Vec<_>, _>>().unwrap().len(), count);
    }
    let mut cut = Trace::new(std::io::Cursor::new(gzip[..gzip.len() - 9].to_vec()), Format::Blkreplay).unwrap();
    assert!(cut.any(|record| matches!(record, Err(TraceError::Read { .. }))), "a file that ends too early");
}

const WRITTEN: [Format; 6] =
    [Format::Blkreplay, Format::Disksim, Format::Msr, Format::Spc, Format::Iolog2, Format::Iolog3];

fn written(format: Format, records: &[Record], names: &Names) -> (Vec<u8>, lab::trace::Losses) {
    let mut writer = Writer::new(Vec::new(), format, "a\nname", "a notice\n").unwrap();
    records.iter().for_each(|&record| writer.write(record, names).unwrap());
    writer.finish().unwrap()
}

fn any_record() -> impl Strategy<Value = Record> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Trim), Just(Op::Flush)];
    (0..1u64 << 60, op, 0..1u64 << 50, 1..1u64 << 25, 0..4u32).prop_map(|(time_ns, op, offset, bytes, stream)| {
        let (offset, bytes) = if op == Op::Flush { (0, 0) } else { (offset, bytes) };
        Record { time_ns, op, offset, bytes, stream }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// What a format can represent is read back; what it cannot is counted.
    #[test]
    fn a_trace_comes_back_as_it_was_written(mut records in prop::collection::vec(any_record(), 1..40)) {
        records.sort_by_key(|record| record.time_ns);
        let mut names = Names::default();
        // Names that every format can represent: numbers, and a host with a number.
        for number in 0..4 {
            names.number(&number.to_string()).unwrap();
        }
        for format in WRITTEN {
            let (bytes, losses) = written(format, &records, &names);
            let mut trace = Trace::new(std::io::Cursor::new(bytes), format).unwrap();
            let back: Vec<Record> = (&mut trace).map(|record| record.unwrap()).collect();
            prop_assert_eq!(trace.tally().broken, 0);
            let has_all = matches!(format, Format::Iolog2 | Format::Iolog3);
            let kept: Vec<&Record> =
                records.iter().filter(|record| has_all || matches!(record.op, Op::Read | Op::Write)).collect();
            prop_assert_eq!(back.len(), kept.len());
            prop_assert_eq!(losses.left_out.values().sum::<u64>() as usize, records.len() - kept.len());
            let (mut times, mut ranges) = (0, 0);
            for (back, kept) in back.iter().zip(kept) {
                let unit = format.unit_ns();
                prop_assert_eq!(back.time_ns, kept.time_ns / unit * unit);
                prop_assert_eq!(back.op, kept.op);
                prop_assert!(back.offset <= kept.offset && kept.end() <= back.end());
                prop_assert!(back.offset + 512 > kept.offset && back.end() < kept.end() + 512);
                times += u64::from(back.time_ns != kept.time_ns);
                ranges += u64::from((back.offset, back.bytes) != (kept.offset, kept.bytes));
                if format != Format::Blkreplay {
                    let is_other = |c: char| !c.is_ascii_digit();
                    let number = |name: Option<&str>| name.unwrap().trim_start_matches(is_other).to_owned();
                    let name = number(trace.names().name(back.stream));
                    prop_assert!(name.starts_with(&kept.stream.to_string()), "{} {}", name, kept.stream);
                }
            }
            prop_assert_eq!((losses.times, losses.ranges), (times, ranges));
            // The second conversion loses nothing.
            let (again, lost) = written(format, &back, trace.names());
            prop_assert_eq!(lost, lab::trace::Losses::default());
            let trace = Trace::new(std::io::Cursor::new(again), format).unwrap();
            let part = |r: &Record| (r.time_ns, r.op, r.offset, r.bytes);
            let same = |records: &[Record]| records.iter().map(part).collect::<Vec<_>>();
            let twice: Vec<Record> = trace.map(|record| record.unwrap()).collect();
            prop_assert_eq!(same(&twice), same(&back));
        }
    }

    /// Any bytes lead to an end without a panic, and to possible records only.
    #[test]
    fn any_text_is_read_to_an_end(text in "([0-9a-zRW ,;.+\r\n-]|fio version 2 iolog\n|8,0 1 1 0.1 1 Q W 1 [+] \
                                           8){0,200}") {
        for (format, ..) in Format::ALL {
            for record in Trace::new(std::io::Cursor::new(text.clone()), format).unwrap().flatten() {
                prop_assert!(record.end() <= 1 << 60);
            }
        }
    }
}

#[test]
fn the_original_is_named_in_a_copy() {
    let (bytes, _) = written(Format::Blkreplay, &[record(0, Op::Read, 0, 512, 0)], &Names::default());
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains("the original is a\\nname\na notice\n"), "{text}");
}

/// The command line from end to end: a load is generated, converted, compressed and described. A failure keeps the
/// existing file.
#[test]
fn made_converted_and_described() {
    let directory = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let program = env!("CARGO_BIN_EXE_aerogel-lab");
        let done = std::process::Command::new(program).args(words).current_dir(&directory).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.success(), text(done.stdout), text(done.stderr))
    };
    let load = "zipf:area=64MiB,read=70%,depth=4,requests=900 + seq:at=1GiB,area=1GiB,rate=50,poisson=false,stop=2s";
    let (done, said, error) = run(&["trace", "make", load, "a.iolog.zst", "--service", "2ms"]);
    assert!(done && said.contains("1,000 requests"), "{said}{error}");
    let (done, said, error) = run(&["trace", "convert", "a.iolog.zst", "b.load.gz"]);
    assert!(done && said.contains("1,000 requests"), "{said}{error}");
    let (done, said, error) = run(&["trace", "info", "b.load.gz", "--svg", "b.svg"]);
    assert!(done && said.contains("1,000 in 1.98 s") && said.contains('█'), "{said}{error}");
    let svg = std::fs::read_to_string(directory.path().join("b.svg")).unwrap();
    assert!(svg.contains("<svg") && svg.contains("requests a second") && svg.contains("place (GiB)"));
    let (done, said, _) = run(&["trace", "info", "b.load.gz", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(done && report["requests"] == 1000 && report["reads"].as_u64().unwrap() > 700, "{report}");

    let before = std::fs::read(directory.path().join("b.load.gz")).unwrap();
    std::fs::write(directory.path().join("bad.spc"), "0,1,512,R,0\nno\nno\n").unwrap();
    let (done, _, error) = run(&["trace", "convert", "bad.spc", "b.load.gz"]);
    assert!(!done && error.contains("line 2"), "{error}");
    assert_eq!(std::fs::read(directory.path().join("b.load.gz")).unwrap(), before);
    let (done, _, error) = run(&["trace", "convert", "b.load.gz", "b.vscsi"]);
    assert!(!done && error.contains("disksim"), "{error}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 4, "nothing half-written is left");
}
