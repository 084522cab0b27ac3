//! ASCII traces of SSDSim and MQSim: `nanoseconds device block blocks operation`, separated by white space.
//!
//! As read by SSDSim's `ssd.c` and described in MQSim's README (CMU-SAFARI/MQSim, "Trace-based workload"): whole
//! nanoseconds, blocks of 512 bytes, operation 0 is a write and 1 a read. MQSim can be told that the times of a trace
//! are in another unit; such a trace does not say so.

use sim::load::Op;

use super::{Line, LineFormat, field, number, record, sectors, shortened};
use crate::trace::Names;

pub struct Ssdsim;

impl LineFormat for Ssdsim {
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String> {
        let mut fields = line.split_ascii_whitespace();
        let text = field(&mut fields, "time")?;
        let time_ns = number(text, "time").map_err(|error| match text.contains('.') {
            true => format!("the time is '{}', not whole nanoseconds; disksim has milliseconds", shortened(text)),
            false => error,
        })?;
        let device = field(&mut fields, "device")?;
        let offset = sectors(field(&mut fields, "block")?, "block")?;
        let bytes = sectors(field(&mut fields, "size")?, "size")?;
        let op = match field(&mut fields, "operation")? {
            "0" => Op::Write,
            "1" => Op::Read,
            other => {
                return Err(format!("the operation is '{}', neither 0 (write) nor 1 (read)", shortened(other)));
            }
        };
        Ok(record(time_ns, op, offset, bytes, names.number(device)?))
    }
}
