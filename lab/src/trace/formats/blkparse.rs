//! Text of blkparse in its default format: `major,minor cpu sequence seconds.nanoseconds pid action RWBS sector +
//! sectors [process]`.
//!
//! blkparse(1), "Default output". Of the events of a request one is taken: Q, the request to the block layer (the
//! default, since it is the client's load), or D, the request issued to the device, after merging. RWBS is R, W, D
//! (discard), or N or F alone (flush), with other letters around it: F before it is a flush first, A after it is
//! read-ahead; S, M and B are attributes. Unlike in blkreplay's loads, read-ahead is included: otherwise a file that is
//! read through the page cache would not appear. The events end at the summary ("CPU0 (sda):").

use sim::load::Op;

use super::{Line, LineFormat, field, number, record, sectors, shortened, time};
use crate::trace::Names;

pub struct Blkparse {
    action: &'static str,
    ended: bool,
}

impl Blkparse {
    pub fn new(action: &'static str) -> Blkparse {
        Blkparse { action, ended: false }
    }
}

impl LineFormat for Blkparse {
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String> {
        self.ended |= line.starts_with("CPU") || line.starts_with("Total (") || line.starts_with("Throughput (");
        if self.ended {
            return Ok(Line::Nothing);
        }
        let mut fields = line.split_ascii_whitespace();
        let device = field(&mut fields, "device")?;
        let (major, minor) = device.split_once(',').ok_or_else(|| not_a_device(device))?;
        if number(major, "major").is_err() || number(minor, "minor").is_err() {
            return Err(not_a_device(device));
        }
        number(field(&mut fields, "processor")?, "processor")?;
        number(field(&mut fields, "sequence number")?, "sequence number")?;
        let time_ns = time(field(&mut fields, "time")?, 1_000_000_000)?;
        number(field(&mut fields, "process")?, "process")?;
        if field(&mut fields, "action")? != self.action {
            return Ok(Line::LeftOut("events of other kinds"));
        }
        let flags = field(&mut fields, "flags (RWBS)")?;
        let rest: Vec<&str> = fields.take(3).collect();
        let range = match rest[..] {
            [sector, "+", count] => Some((sectors(sector, "sector")?, sectors(count, "length")?)),
            _ => None,
        };
        let op = match (flags.strip_prefix('F').filter(|rest| !rest.is_empty()).unwrap_or(flags), range) {
            (op, Some((_, 1..))) if op.starts_with('R') => Op::Read,
            (op, Some((_, 1..))) if op.starts_with('W') => Op::Write,
            (op, Some((_, 1..))) if op.starts_with('D') => Op::Trim,
            _ if flags.starts_with('F') => Op::Flush,
            (op, None | Some((_, 0))) if op.starts_with(['R', 'W', 'D', 'N']) => {
                return Ok(Line::LeftOut("events without a range"));
            }
            (op, _) if op.starts_with('N') => return Ok(Line::LeftOut("commands that are not block I/O")),
            _ => return Err(format!("the flags (RWBS) are '{}'", shortened(flags))),
        };
        let (offset, bytes) = range.filter(|_| op != Op::Flush).unwrap_or((0, 0));
        Ok(record(time_ns, op, offset, bytes, names.number(device)?))
    }
}

fn not_a_device(text: &str) -> String {
    format!("it does not begin with a device such as 8,0 but with '{}'", shortened(text))
}
