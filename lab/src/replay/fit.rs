//! Fits requests into a volume that is smaller than the recorded one, and to the limits of the server. Changes are
//! counted, so that they can be reported.

use clap::ValueEnum;
use engine::nbd::Opened;
use engine::nbd::wire::{command, export_flag};
use serde::Serialize;
use sim::load::{Op, Request};

/// What to do with requests beyond the volume's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Beyond {
    /// Offsets modulo the volume's size. Distances are kept; distant offsets may coincide
    Wrap,
    /// Scale all offsets in proportion (reads the trace twice). Distances shrink
    Scale,
    /// Omit these requests
    Skip,
}

/// The number of requests that were changed, by kind of change.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Changes {
    /// Beyond the volume's end, and wrapped around.
    pub wrapped: u64,
    /// Scaled in proportion.
    pub scaled: u64,
    /// Beyond the volume's end, and omitted.
    pub skipped: u64,
    /// Widened to the server's minimum block size.
    pub widened: u64,
    /// Cut to the longest payload, or to the volume.
    pub shortened: u64,
    /// Trims, flushes and, if requested, writes that were omitted.
    pub left_out: u64,
}

/// The rules of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// The export to replay on.
    pub export: Opened,
    /// The rule for requests beyond its end.
    pub beyond: Beyond,
    /// The end of the last byte in the trace, for [`Beyond::Scale`].
    pub span: u64,
    /// Whether writes and trims are omitted.
    pub reads_only: bool,
    /// Counts of changes.
    pub changes: Changes,
}

/// A request as it is sent: (command, offset, bytes).
pub type Placed = (u16, u64, u32);

impl Fit {
    /// The request to send instead, if any.
    pub fn place(&mut self, request: &Request) -> Option<Placed> {
        let Opened { size, flags, .. } = self.export;
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
            // A trim has no payload; its length is a 32-bit number.
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
        // A request that would cross the end is moved in front of it.
        Some((command, (first % room).min(room - bytes), bytes as u32))
    }
}

/// Scales an offset in proportion; the offset inside its 4 KiB block is kept, since alignment is a property of the
/// load.
fn scaled(offset: u64, size: u64, span: u64) -> u64 {
    let at = (u128::from(offset) * u128::from(size) / u128::from(span)) as u64;
    at / 4096 * 4096 + offset % 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(beyond: Beyond, block_bytes_min: u32) -> Fit {
        let flags = export_flag::SEND_FLUSH;
        let export = Opened { size: 1 << 20, flags, block_bytes_min, payload_bytes_max: 64 << 10, ..Opened::default() };
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
