//! Traces of the Storage Performance Council: `ASU,LBA,Size,Opcode,Timestamp` and optional fields.
//!
//! "SPC Trace File Format Specification", revision 1.0.1, 2002: the application storage unit is a number from 0, Size
//! is in bytes, Opcode R or W in either case, Timestamp in seconds since the beginning; fields may contain white space.
//! The block size is defined by the trace's description; it is 512 bytes in the published traces (UMass: Financial,
//! WebSearch).

use sim::load::Op;

use super::{Line, LineFormat, field, number, record, sectors, shortened, time};
use crate::trace::Names;

pub struct Spc;

impl LineFormat for Spc {
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String> {
        let mut fields = line.split(',');
        let unit = field(&mut fields, "unit (ASU)")?;
        number(unit, "unit (ASU)")?;
        let offset = sectors(field(&mut fields, "address")?, "address")?;
        let bytes = number(field(&mut fields, "size")?, "size")?;
        let opcode = field(&mut fields, "opcode")?;
        let time_ns = time(field(&mut fields, "time")?, 1_000_000_000)?;
        let op = match opcode {
            "R" | "r" => Op::Read,
            "W" | "w" => Op::Write,
            _ => return Err(format!("the opcode is '{}', neither R nor W", shortened(opcode))),
        };
        Ok(record(time_ns, op, offset, bytes, names.number(unit)?))
    }
}
