//! Fitting requests into a volume that is smaller than what they were recorded on, and into what the server can do.
//! What was changed is counted, so that it can be said.

use clap::ValueEnum;
use engine::nbd::wire::{command, export_flag};
use serde::Serialize;
use sim::load::{Op, Request};

use super::client::Export;

/// What to do with requests beyond the volume's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Beyond {
    /// Places come round: modulo the volume's size. Distances stay, far places fall together
    Wrap,
    /// All places are moved together in proportion (needs a second reading of the trace). Distances shrink
    Scale,
    /// Leave them out
    Skip,
}

/// What was changed, in requests.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Changes {
    /// Beyond the end, and brought round.
    pub wrapped: u64,
    /// Moved in proportion.
    pub scaled: u64,
    /// Beyond the end, and left out.
    pub skipped: u64,
    /// Widened to the server's smallest block.
    pub widened: u64,
    /// Cut to the longest payload, or to the volume.
    pub shortened: u64,
    /// Trims, flushes and, if asked for, writes that were left out.
    pub left_out: u64,
}

/// The rules of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Where to.
    pub export: Export,
    /// What is done beyond its end.
    pub beyond: Beyond,
    /// Past the last byte of the trace, for [`Beyond::Scale`].
    pub span: u64,
    /// Writes and trims are left out.
    pub reads_only: bool,
    /// What was done.
    pub changes: Changes,
}

/// A request as it goes out: (command, offset, bytes).
pub type Placed = (u16, u64, u32);

impl Fit {
    /// The request that is made instead, if any.
    pub fn place(&mut self, request: &Request) -> Option<Placed> {
        let Export { size, flags, .. } = self.export;
        let (command, needs) = match request.op {
            Op::Read => (command::READ, 0),
            Op::Write => (command::WRITE, 0),
            Op::Trim => (command::TRIM, export_flag::SEND_TRIM),
            Op::Flush => (command::FLUSH, export_flag::SEND_FLUSH),
        };
        let changes_data = matches!(request.op, Op::Write | Op::Trim);
        if flags & needs != needs || (self.reads_only && changes_data) {
            self.changes.left_out += 1;
            return None;
        }
        if request.op == Op::Flush {
            return Some((command, 0, 0));
        }
        let block = u64::from(self.export.block_bytes_min);
        let room = size / block * block;
        let most = match request.op {
            // Trims carry no payload; their length has 32 bits.
            Op::Trim => u64::from(u32::MAX),
            _ => u64::from(self.export.payload_bytes_max),
        };
        let most = (most / block * block).min(room);
        let mut offset = request.offset;
        if self.beyond == Beyond::Scale && self.span > size {
            offset = scaled(offset, size, self.span);
            self.changes.scaled += 1;
        }
        let first = offset / block * block;
        let whole = (offset.saturating_add(request.bytes)).next_multiple_of(block) - first;
        self.changes.widened += u64::from((first, whole) != (offset, request.bytes));
        let bytes = whole.min(most);
        self.changes.shortened += u64::from(bytes < whole);
        if bytes == 0 {
            self.changes.skipped += 1;
            return None;
        }
        if first <= room - bytes {
            return Some((command, first, bytes as u32));
        }
        if self.beyond == Beyond::Skip {
            self.changes.skipped += 1;
            return None;
        }
        self.changes.wrapped += u64::from(self.beyond == Beyond::Wrap);
        // What would reach over the end is moved before it.
        Some((command, (first % room).min(room - bytes), bytes as u32))
    }
}

/// In proportion, with the place inside of its 4 KiB block kept: alignment is a property of the load.
fn scaled(offset: u64, size: u64, span: u64) -> u64 {
    let at = (u128::from(offset) * u128::from(size) / u128::from(span)) as u64;
    at / 4096 * 4096 + offset % 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(beyond: Beyond, block_bytes_min: u32) -> Fit {
        let flags = export_flag::SEND_FLUSH;
        let export = Export { size: 1 << 20, flags, block_bytes_min, payload_bytes_max: 64 << 10 };
        Fit { export, beyond, span: 1 << 30, reads_only: false, changes: Changes::default() }
    }

    fn request(op: Op, offset: u64, bytes: u64) -> Request {
        Request { id: 0, intended_ns: 0, op, offset, bytes, stream: 0 }
    }

    #[test]
    fn requests_beyond_the_end() {
        let far = request(Op::Read, (5 << 20) + 512, 4096);
        let (mut wrap, mut scale, mut skip) = (fit(Beyond::Wrap, 1), fit(Beyond::Scale, 1), fit(Beyond::Skip, 1));
        assert_eq!(wrap.place(&far), Some((command::READ, 512, 4096)));
        assert_eq!(scale.place(&far), Some((command::READ, 4096 + 512, 4096)));
        assert_eq!(skip.place(&far), None);
        assert_eq!((wrap.changes.wrapped, scale.changes.scaled, skip.changes.skipped), (1, 1, 1));
        let over = request(Op::Write, (1 << 20) - 512, 4096);
        assert_eq!(wrap.place(&over), Some((command::WRITE, (1 << 20) - 4096, 4096)));
    }

    #[test]
    fn what_the_server_cannot_do() {
        let mut fit = fit(Beyond::Wrap, 4096);
        assert_eq!(fit.place(&request(Op::Trim, 0, 4096)), None);
        assert_eq!(fit.place(&request(Op::Flush, 0, 0)), Some((command::FLUSH, 0, 0)));
        assert_eq!(fit.place(&request(Op::Read, 512, 4096)), Some((command::READ, 0, 8192)));
        assert_eq!(fit.place(&request(Op::Read, 0, 1 << 20)), Some((command::READ, 0, 64 << 10)));
        fit.reads_only = true;
        assert_eq!(fit.place(&request(Op::Write, 0, 4096)), None);
        let Changes { left_out, widened, shortened, .. } = fit.changes;
        assert_eq!((left_out, widened, shortened), (2, 1, 1));
    }

    #[test]
    fn everything_fits_in_the_end() {
        let mut rng = sim::rng::Rng::new(4);
        for beyond in [Beyond::Wrap, Beyond::Scale, Beyond::Skip] {
            for block in [1, 512, 4096] {
                let mut fit = fit(beyond, block);
                fit.export.size = rng.between(1, 100_000);
                for _ in 0..500 {
                    let asked = request(Op::Write, rng.below(1 << 31), rng.between(1, 200_000));
                    if let Some((_, offset, bytes)) = fit.place(&asked) {
                        assert!(offset + u64::from(bytes) <= fit.export.size && bytes > 0);
                        assert!(offset % u64::from(block) == 0 && bytes % block == 0 && bytes <= 64 << 10);
                    }
                }
            }
        }
    }
}
