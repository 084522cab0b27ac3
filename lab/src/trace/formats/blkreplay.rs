//! Loads of blkreplay: `seconds ; sector ; sectors ; R|W ; 0.0 ; 0.0` after a notice and a header line.
//!
//! As written by its `conv_blktrace_to_load.sh` and read by its `blkreplay.c` (schoebel/blkreplay): 512-byte sectors;
//! fields after the fourth are for blkreplay's own results. Operations come from blktrace: `RA` are read-ahead requests
//! of the kernel. They are omitted and counted, unless they are requested, since the published figures of such traces
//! omit them. blkreplay itself looks at the first letter only, so it includes them.

use sim::load::Op;

use super::{Line, LineFormat, field, record, sectors, shortened, time};
use crate::trace::Names;

#[derive(Default)]
pub struct Blkreplay {
    begun: bool,
    read_ahead: bool,
}

impl LineFormat for Blkreplay {
    fn line(&mut self, line: &str, _: &mut Names) -> Result<Line, String> {
        if !self.begun && !line.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Ok(Line::Notice);
        }
        let mut fields = line.split(';');
        let time_ns = time(field(&mut fields, "time")?, 1_000_000_000)?;
        let offset = sectors(field(&mut fields, "sector")?, "sector")?;
        let bytes = sectors(field(&mut fields, "length")?, "length")?;
        let op = field(&mut fields, "operation")?;
        self.begun = true;
        match op.to_ascii_uppercase().as_str() {
            "R" => Ok(record(time_ns, Op::Read, offset, bytes, 0)),
            "W" => Ok(record(time_ns, Op::Write, offset, bytes, 0)),
            "RA" if self.read_ahead => Ok(record(time_ns, Op::Read, offset, bytes, 0)),
            "RA" => Ok(Line::LeftOut("read-ahead requests")),
            // Barriers of older kernels: without sectors there is nothing to do at this level.
            "B" | "WB" | "RB" | "N" if bytes == 0 => Ok(Line::LeftOut("barriers")),
            _ => Err(format!("the operation is '{}', neither R nor W", shortened(op))),
        }
    }

    fn want_read_ahead(&mut self, wanted: bool) {
        self.read_ahead = wanted;
    }
}
