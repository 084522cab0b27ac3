//! ASCII traces of DiskSim: `milliseconds device block blocks flags`, separated by white space.
//!
//! DiskSim 4.0 reference manual, section 8.1.1 (input traces), and its `disksim_iotrace.c`: blocks of 512 bytes; bit 0
//! of the flags, in hexadecimal, is a read. The other bits (synchronous, asynchronous and so on) have no effect on the
//! disk.

use sim::load::Op;

use super::{Line, LineFormat, field, record, sectors, shortened, time};
use crate::trace::Names;

pub struct Disksim;

impl LineFormat for Disksim {
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String> {
        let mut fields = line.split_ascii_whitespace();
        let time_ns = time(field(&mut fields, "time")?, 1_000_000)?;
        let device = field(&mut fields, "device")?;
        let offset = sectors(field(&mut fields, "block")?, "block")?;
        let bytes = sectors(field(&mut fields, "size")?, "size")?;
        let flags = field(&mut fields, "flags")?;
        let digits = flags.trim_start_matches("0x");
        let is_read = u64::from_str_radix(digits, 16)
            .map_err(|_| format!("the flags are '{}', not a hexadecimal number", shortened(flags)))?
            & 1
            == 1;
        let op = if is_read { Op::Read } else { Op::Write };
        Ok(record(time_ns, op, offset, bytes, names.number(device)?))
    }
}
