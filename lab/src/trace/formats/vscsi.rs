//! vscsi captures of VMware: little-endian records, as in libCacheSim's `vscsi.h` (1a1a11a/libCacheSim) and the traces
//! published by CloudPhysics.
//!
//! ```text
//! version 1, 32 bytes: u32 serial, u32 bytes, u32 scatter-gather, u16 command, u16 version, u64 sector, u64 us
//! version 2, 40 bytes: u16 command, u16 version, u32 serial, u32 bytes, u32 parts, u64 sector, u64 us, u64 response
//! ```
//!
//! The high byte of the version field is 1 or 2. The layout is recognised from the first two records (from one if there
//! is only one).

use std::io::{self, BufRead, Read};

use sim::load::Op;

use super::{Line, record};
use crate::trace::SECTOR;

const V1_BYTES: usize = 32;
const V2_BYTES: usize = 40;

/// The state of reading a file.
#[derive(Default)]
pub struct Vscsi {
    layout: Option<Layout>,
    /// Bytes read to recognise the layout, not yet consumed.
    ahead: Vec<u8>,
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    V1,
    V2,
}

impl Vscsi {
    /// The next record; `None` at the end.
    pub fn next(&mut self, input: &mut dyn BufRead) -> io::Result<Option<Result<Line, String>>> {
        if self.ended {
            return Ok(None);
        }
        let layout = match self.layout {
            Some(layout) => layout,
            None => {
                self.fill(input, 2 * V2_BYTES)?;
                let Some(layout) = layout_of(&self.ahead) else {
                    self.ended = true;
                    let reason = "neither the layout of version 1 nor of version 2 fits it";
                    return Ok((!self.ahead.is_empty()).then(|| Err(reason.into())));
                };
                *self.layout.insert(layout)
            }
        };
        let size = if layout == Layout::V1 { V1_BYTES } else { V2_BYTES };
        self.fill(input, size)?;
        if self.ahead.len() < size {
            self.ended = true;
            let rest = self.ahead.len();
            return Ok((rest > 0).then(|| Err(format!("the file ends {rest} bytes into it: it has {size}"))));
        }
        let bytes: Vec<u8> = self.ahead.drain(..size).collect();
        Ok(Some(parse(&bytes, layout)))
    }

    fn fill(&mut self, input: &mut dyn BufRead, size: usize) -> io::Result<()> {
        let missing = size.saturating_sub(self.ahead.len());
        input.take(missing as u64).read_to_end(&mut self.ahead)?;
        Ok(())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The layout in which every record of `bytes` has a valid version field.
fn layout_of(bytes: &[u8]) -> Option<Layout> {
    let fits = |size: usize, at: usize, version: u16| {
        let records = bytes.chunks_exact(size).take(2);
        records.len() > 0 && records.into_iter().all(|record| u16_at(record, at) >> 8 == version)
    };
    if fits(V2_BYTES, 2, 2) { Some(Layout::V2) } else { fits(V1_BYTES, 14, 1).then_some(Layout::V1) }
}

fn parse(bytes: &[u8], layout: Layout) -> Result<Line, String> {
    let (command, version, length) = match layout {
        Layout::V1 => (u16_at(bytes, 12), u16_at(bytes, 14), u32_at(bytes, 4)),
        Layout::V2 => (u16_at(bytes, 0), u16_at(bytes, 2), u32_at(bytes, 8)),
    };
    if version >> 8 != layout as u16 + 1 {
        return Err(format!("its version is {version:#06x}, that of the records before it is {}", layout as u16 + 1));
    }
    let offset = u64_at(bytes, 16).checked_mul(SECTOR).ok_or("its sector is beyond any volume")?;
    let time_ns = u64_at(bytes, 24).checked_mul(1000).ok_or("its time is too late")?;
    // SCSI block commands (SBC-3): READ and WRITE of 6, 10, 12 and 16 bytes, SYNCHRONIZE CACHE.
    let op = match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
        0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
        0x35 | 0x91 => return Ok(record(time_ns, Op::Flush, 0, 0, 0)),
        _ => return Ok(Line::LeftOut("other SCSI commands")),
    };
    Ok(record(time_ns, op, offset, u64::from(length), 0))
}
