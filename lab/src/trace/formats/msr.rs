//! CSV of Microsoft Research Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! Its README (SNIA IOTTA, traces 388; D. Narayanan et al., "Write Off-Loading", FAST 2008): times in Windows filetime
//! (100 ns since 1601), offsets and sizes in bytes, Type is Read or Write. The published files have no header line;
//! copies may have one. A device is called `host_disk`, like the files.

use sim::load::Op;

use super::{Line, LineFormat, field, number, record, shortened};
use crate::trace::Names;

#[derive(Default)]
pub struct Msr {
    begun: bool,
}

impl LineFormat for Msr {
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String> {
        let mut fields = line.split(',');
        let ticks = field(&mut fields, "time")?;
        if !self.begun && ticks.eq_ignore_ascii_case("timestamp") {
            return Ok(Line::Nothing);
        }
        let time_ns = number(ticks, "time")?.checked_mul(100).ok_or("the time is later than the year 2185")?;
        let host = field(&mut fields, "host")?;
        let disk = field(&mut fields, "disk")?;
        let kind = field(&mut fields, "type")?;
        let offset = number(field(&mut fields, "offset")?, "offset")?;
        let bytes = number(field(&mut fields, "size")?, "size")?;
        let op = match kind.to_ascii_lowercase().as_str() {
            "read" | "r" => Op::Read,
            "write" | "w" => Op::Write,
            _ => return Err(format!("the type is '{}', neither Read nor Write", shortened(kind))),
        };
        self.begun = true;
        Ok(record(time_ns, op, offset, bytes, names.number(&format!("{host}_{disk}"))?))
    }
}
