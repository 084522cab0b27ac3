//! Any bytes as a trace of any format: reading ends without a panic, with possible records only and correct counts;
//! what was read gives the same number of records when it is written and read again.

use std::io::Cursor;

use lab::trace::{Format, Trace, Writer};
use sim::load::Record;

/// The magic numbers of zstd, gzip and xz files: decompression is tested by the libraries, and bombs take too long.
const PACKED: [&[u8]; 3] = [&[0x28, 0xb5, 0x2f, 0xfd], &[0x1f, 0x8b], &[0xfd, b'7', b'z', b'X', b'Z', 0]];

fn read(bytes: Vec<u8>, format: Format) -> (Vec<Record>, Trace) {
    let mut trace = Trace::new(Cursor::new(bytes), format).expect("nothing to unpack");
    let records = (&mut trace).flatten().collect();
    (records, trace)
}

/// Runs one input.
pub fn run(input: (u8, Vec<u8>)) {
    let (choice, bytes) = input;
    if PACKED.iter().any(|magic| bytes.starts_with(magic)) {
        return;
    }
    let (format, ..) = Format::ALL[usize::from(choice) % Format::ALL.len()];
    let (records, trace) = read(bytes, format);
    let tally = trace.tally();
    assert_eq!(records.len() as u64, tally.records);
    assert!(tally.records + tally.broken <= tally.lines);
    assert!(tally.first_broken.len() as u64 <= tally.broken);
    assert!(records.iter().all(|record| record.end() <= 1 << 60 && record.stream < 1 << 16));
    if format.is_written() {
        let mut writer = Writer::new(Vec::new(), format, "fuzz", &tally.notice).expect("memory takes it");
        records.iter().for_each(|&record| writer.write(record, trace.names()).expect("memory takes it"));
        let (written, losses) = writer.finish().expect("memory takes it");
        assert!(losses.left_out.is_empty(), "it was read from this format");
        assert_eq!(read(written, format).0.len(), records.len());
    }
}
