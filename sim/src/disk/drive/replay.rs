//! Workloads for drives: a measured list, one request at a time, and a closed loop.

use engine::disk::Op;
use engine::units::{Nanos, SECTOR};

use super::Drive;

/// The columns of a measured list.
pub const HEADER: &str = "op,lbn,sectors,response_us,gap_us";

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
        drive.submit(now, index as u64, request.op, sector * SECTOR, request.sectors * SECTOR);
        let (_, at) = next_done(drive);
        times.push(at - now);
        now = at + (request.gap_us * 1e3).round() as Nanos;
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

/// The difference between a simulated drive and a measured one.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Root mean square distance between the two sorted lists of response times, milliseconds. This is the demerit
    /// figure of Ruemmler and Wilkes, "An introduction to disk drive modeling", as DiskSim's `rms` computes it.
    pub rms_ms: f64,
    /// Mean simulated response time, milliseconds.
    pub mean_simulated_ms: f64,
    /// Mean measured response time, milliseconds.
    pub mean_measured_ms: f64,
    /// Requests compared.
    pub requests: usize,
}

/// Replays `list` on `drive` and compares.
pub fn validate(drive: &mut dyn Drive, list: &[Measured]) -> Result<Comparison, ListError> {
    let simulated: Vec<f64> = one_at_a_time(drive, list)?.into_iter().map(|ns| ns as f64 / 1e6).collect();
    let measured: Vec<f64> = list.iter().map(|request| request.response_us / 1e3).collect();
    Ok(compare(simulated, measured))
}

/// Compares two lists of response times of the same length, milliseconds.
pub fn compare(mut simulated: Vec<f64>, mut measured: Vec<f64>) -> Comparison {
    simulated.sort_by(f64::total_cmp);
    measured.sort_by(f64::total_cmp);
    let requests = simulated.len();
    let mean = |times: &[f64]| times.iter().sum::<f64>() / requests as f64;
    let squares: f64 = simulated.iter().zip(&measured).map(|(a, b)| (a - b) * (a - b)).sum();
    Comparison {
        rms_ms: (squares / requests as f64).sqrt(),
        mean_simulated_ms: mean(&simulated),
        mean_measured_ms: mean(&measured),
        requests,
    }
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
    fn the_distance_is_between_sorted_lists() {
        let same = compare(vec![1.0, 3.0, 2.0], vec![3.0, 1.0, 2.0]);
        assert_eq!((same.rms_ms, same.mean_simulated_ms), (0.0, 2.0));
        let other = compare(vec![1.0, 2.0], vec![2.0, 3.0]);
        assert_eq!((other.rms_ms, other.requests), (1.0, 2));
    }
}
