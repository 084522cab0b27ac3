//! Workloads for drives: a measured list, one request at a time, and a closed loop.

use engine::disk::Op;
use engine::units::{Nanos, SECTOR};

use super::Drive;
use super::compare::{self, Comparison, Details};

/// The columns of a measured list.
pub const HEADER: &str = "op,lbn,sectors,response_us,gap_us";

/// The longest time of a list, nanoseconds: 146 years. It is a quarter of what 64 bits hold, so that the times of a
/// drive, which are some seconds later, cannot overflow.
const TIME_NS_MAX: Nanos = 1 << 62;

/// A request that a real drive has served.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// The operation.
    pub op: Op,
    /// The first sector.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u64,
    /// Response time of the drive, microseconds.
    pub response_us: f64,
    /// From its completion to the next request, microseconds.
    pub gap_us: f64,
}

/// Why a list cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The first line does not name the columns.
    #[error("line 1: it is {0:?}; a measured list begins with {HEADER:?}")]
    Header(String),
    /// A line is not a request.
    #[error("line {line}: {text:?} is no request; write R or W, sector, sectors, and two times in microseconds")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// A request is not on the drive.
    #[error("line {line}: sectors {sector}..{end} are beyond the drive's {sectors}; is this list of another drive?")]
    Beyond {
        /// Its number, from 1.
        line: usize,
        /// The first sector.
        sector: u64,
        /// After the last sector.
        end: u64,
        /// Number of sectors of the drive.
        sectors: u64,
    },
    /// The gaps are too long.
    #[error("line {line}: with the gaps before it, it comes after more than 146 years; shorten the gaps")]
    TooLong {
        /// The number of the line, from 1.
        line: usize,
    },
    /// A part of the list is not in it.
    #[error("there is no part from request {from} to {to}: it has requests 1 to {requests}")]
    Part {
        /// The first request.
        from: usize,
        /// The last request.
        to: usize,
        /// Requests of the list.
        requests: usize,
    },
    /// The list is empty.
    #[error("there is no request in it")]
    Empty,
}

/// Parses a list: CSV with the columns of [`HEADER`].
pub fn parse(text: &str) -> Result<Vec<Measured>, ListError> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let header = lines.next().map_or("", |(_, line)| line);
    if header != HEADER {
        return Err(ListError::Header(header.chars().take(80).collect()));
    }
    let rows = lines.filter(|(_, line)| !line.is_empty());
    rows.map(|(line, text)| request(text).ok_or_else(|| ListError::Line { line, text: text.into() })).collect()
}

fn request(line: &str) -> Option<Measured> {
    let mut fields = line.split(',').map(str::trim);
    let op = match fields.next()? {
        "R" => Op::Read,
        "W" => Op::Write { durable: false },
        _ => return None,
    };
    let sector: u64 = fields.next()?.parse().ok()?;
    let sectors: u64 = fields.next()?.parse().ok().filter(|&sectors| sectors > 0)?;
    sector.checked_add(sectors)?;
    let mut time_us = || fields.next()?.parse().ok().filter(|&us: &f64| (0.0..1e12).contains(&us));
    let (response_us, gap_us) = (time_us()?, time_us()?);
    fields.next().is_none().then_some(Measured { op, sector, sectors, response_us, gap_us })
}

/// The response times of `drive` to the requests of a list, nanoseconds. Each request follows the completion of the one
/// before with the measured think time.
pub fn one_at_a_time(drive: &mut dyn Drive, list: &[Measured]) -> Result<Vec<Nanos>, ListError> {
    let sectors = drive.bytes() / SECTOR;
    let mut now = 0;
    let mut times = Vec::with_capacity(list.len());
    for (index, request) in list.iter().enumerate() {
        let (sector, end) = (request.sector, request.sector + request.sectors);
        if end > sectors {
            return Err(ListError::Beyond { line: index + 2, sector, end, sectors });
        }
        if now > TIME_NS_MAX {
            return Err(ListError::TooLong { line: index + 2 });
        }
        drive.submit(now, index as u64, request.op, sector * SECTOR, request.sectors * SECTOR);
        let (_, at) = next_done(drive);
        times.push(at - now);
        now = at.saturating_add((request.gap_us * 1e3).round() as Nanos);
    }
    if times.is_empty() { Err(ListError::Empty) } else { Ok(times) }
}

/// Waits until a request completes; at least one must be outstanding.
fn next_done(drive: &mut dyn Drive) -> (u64, Nanos) {
    loop {
        let at = drive.poll_timeout().expect("a request is in the drive");
        if let Some(done) = drive.poll(at) {
            return done;
        }
    }
}

/// Replays `list` on `drive` and compares.
pub fn validate(drive: &mut dyn Drive, list: &[Measured]) -> Result<Comparison, ListError> {
    Ok(validate_part(drive, list, 1, None)?.whole)
}

/// Replays `list` on `drive` up to request number `to`, counted from 1, or to its end, and compares the requests from
/// number `from` on. Those before bring the drive into the state of the measured one.
pub fn validate_part(
    drive: &mut dyn Drive,
    list: &[Measured],
    from: usize,
    to: Option<usize>,
) -> Result<Details, ListError> {
    let to = to.unwrap_or(list.len());
    if list.is_empty() {
        return Err(ListError::Empty);
    }
    if from == 0 || from > to || to > list.len() {
        return Err(ListError::Part { from, to, requests: list.len() });
    }
    let list = &list[..to];
    let simulated = one_at_a_time(drive, list)?;
    Ok(compare::details(list, &simulated, from - 1))
}

/// Keeps `depth` requests outstanding in `drive` until `count` are complete. Returns the last completion time. `next`
/// chooses operation, offset and bytes of a request.
pub fn closed_loop(drive: &mut dyn Drive, depth: u64, count: u64, mut next: impl FnMut() -> (Op, u64, u64)) -> Nanos {
    let mut submitted = 0;
    let mut submit = |drive: &mut dyn Drive, now| {
        if submitted < count {
            let (op, offset, len) = next();
            drive.submit(now, submitted, op, offset, len);
            submitted += 1;
        }
    };
    (0..depth).for_each(|_| submit(drive, 0));
    let mut last = 0;
    for _ in 0..count {
        last = next_done(drive).1;
        submit(drive, last);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::drive::presets;

    #[test]
    fn a_list_is_read_and_what_is_wrong_is_named() {
        let list = parse("op,lbn,sectors,response_us,gap_us\nR,10,8,5000,12.5\n\nW,0,1,1,0\n").unwrap();
        assert_eq!(list[0], Measured { op: Op::Read, sector: 10, sectors: 8, response_us: 5000.0, gap_us: 12.5 });
        assert_eq!(list.len(), 2);
        assert!(parse("R,10,8,5000,12\n").unwrap_err().to_string().starts_with("line 1"));
        for bad in
            ["R,10,8,5000", "X,1,1,1,1", "R,1,0,1,1", "R,1,1,-1,1", "R,1,1,1,1,1", "R,99999999999999999999,1,1,1"]
        {
            let error = parse(&format!("{HEADER}\nR,1,1,1,1\n{bad}\n")).unwrap_err().to_string();
            assert!(error.starts_with("line 3") && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn time_that_no_drive_can_count_is_an_error() {
        let request = Measured { op: Op::Read, sector: 0, sectors: 8, response_us: 1.0, gap_us: 9.9e11 };
        for preset in ["flash", "cheetah-15k5", "throttled"] {
            let mut drive = presets::preset(preset).unwrap().unwrap().build().unwrap();
            let error = one_at_a_time(&mut *drive, &[request; 20_000]).unwrap_err().to_string();
            assert!(error.contains("line 4661: ") && error.contains("146 years"), "{error}");
        }
    }

    #[test]
    fn a_part_of_a_list_is_one() {
        let request = Measured { op: Op::Read, sector: 0, sectors: 8, response_us: 1.0, gap_us: 1.0 };
        let mut drive = presets::preset("flash").unwrap().unwrap().build().unwrap();
        let mut part = |from, to| validate_part(&mut *drive, &[request; 9], from, to);
        assert_eq!(part(4, Some(6)).unwrap().whole.requests, 3);
        assert_eq!(part(9, None).unwrap().whole.requests, 1);
        for (from, to) in [(0, None), (10, None), (5, Some(4)), (1, Some(10))] {
            let error = part(from, to).unwrap_err().to_string();
            assert!(error.contains("it has requests 1 to 9"), "{error}");
        }
    }
}
