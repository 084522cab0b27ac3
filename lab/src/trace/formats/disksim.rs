//! ASCII traces of DiskSim: `milliseconds device block blocks flags`, separated by white space.
//!
//! DiskSim 4.0 reference manual, section 8.1.1 (input traces), and its `disksim_iotrace.c`: blocks of 512 bytes; bit 0
//! of the flags, in hexadecimal, is a read. The other bits (synchronous, asynchronous and so on) have no effect on the
//! disk.
//!
//! SSDSim and MQSim have the same columns with times in whole nanoseconds, and files of all three are often called
//! `.ascii`. Taken for milliseconds, such times would be a million times too long, so [`unit`] looks at them first.

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

/// Times that are whole numbers are taken for milliseconds if the mean distance of two requests is less than this, else
/// for nanoseconds. As milliseconds it would be a minute: a disk that is used so rarely is not recorded. As nanoseconds
/// it is 60 us: few disks are used more often.
const GAP_MAX: u64 = 60_000;

/// The unit of the times of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// There are fractions: only DiskSim has them.
    Milliseconds,
    /// All are whole numbers: of any of the programs.
    Unknown,
    /// All are whole numbers, and no disk is used as seldom as they would say in milliseconds.
    Nanoseconds,
}

/// What the first lines of a trace say about the unit of its times. The last line may be cut off.
pub fn unit(head: &[u8]) -> Unit {
    let (mut least, mut most, mut count) = (u64::MAX, 0, 0);
    let whole_lines = head.iter().rposition(|&byte| byte == b'\n').map_or(head, |end| &head[..end]);
    for line in String::from_utf8_lossy(whole_lines).lines() {
        let Some(text) = line.split_ascii_whitespace().next().filter(|text| time(text, 1).is_ok()) else { continue };
        match text.parse::<u64>() {
            Ok(whole) => (least, most, count) = (least.min(whole), most.max(whole), count + 1),
            Err(_) => return Unit::Milliseconds,
        }
    }
    match (most.saturating_sub(least), count) {
        // Nothing to be mistaken about.
        _ if most == 0 => Unit::Milliseconds,
        (span, 2..) if span / (count - 1) >= GAP_MAX => Unit::Nanoseconds,
        _ => Unit::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_of_whole_times_is_not_guessed() {
        let of = |text: &str| unit(text.as_bytes());
        assert_eq!(of("# one\n\n0 0 1 2 1\n13.19 0 1 2 1\n"), Unit::Milliseconds);
        assert_eq!(of("0.5 0 1 2 1"), Unit::Milliseconds);
        assert_eq!(of("0 0 1 2 1\n"), Unit::Milliseconds);
        assert_eq!(of("no trace\n"), Unit::Milliseconds);
        assert_eq!(of("5 0 1 2 1\n"), Unit::Unknown);
        assert_eq!(of("4851300 1 524288 16 0\n4864300 1 524304 16 0\n"), Unit::Unknown);
        assert_eq!(of("48513000000 1 524288 16 0\n48643000000 1 524304 16 0\n"), Unit::Nanoseconds);
        // A line that is cut off says nothing.
        assert_eq!(of("1 1 524288 16 0\n2.5"), Unit::Unknown);
    }
}
