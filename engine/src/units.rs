//! Units: every number with a unit has it in its type or its name.

/// Nanoseconds since an origin that the driver chose (boot, or the start of a simulated world).
pub type Nanos = u64;

/// Bytes of a sector: the granularity of validity and dirtiness.
pub const SECTOR: u64 = 512;
/// Bytes of a frame and of a block: the granularity of the cache map, and a page of memory.
pub const BLOCK: u64 = 4096;
/// Sectors of a block; one bit each in a [`SectorMask`].
pub const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;
/// Bytes processed at once: larger requests are divided into pieces, so that 32 MiB pass through a 4 MiB partition.
pub const PIECE: u64 = 256 * 1024;
/// Blocks that a piece can touch: an unaligned piece touches one block more than its length fills.
pub const PIECE_BLOCKS: usize = (PIECE / BLOCK) as usize + 1;
/// The largest volume, bytes: NBD offsets have 64 bits, and the sum of offset and length must not overflow.
pub const VOLUME_BYTES_MAX: u64 = 1 << 60;
/// A second in [`Nanos`].
pub const SECOND: Nanos = 1_000_000_000;
/// A millisecond in [`Nanos`].
pub const MILLISECOND: Nanos = 1_000_000;

const _: () = assert!(SECTORS_PER_BLOCK == 8, "a sector mask is a u8");
const _: () = assert!(PIECE.is_multiple_of(BLOCK));

/// One bit for each sector of a block, the lowest bit for the first sector.
pub type SectorMask = u8;

/// The sectors that `start..end` (bytes inside a block) touches, wholly or in part.
pub fn sectors_touched(start: u64, end: u64) -> SectorMask {
    debug_assert!(start < end && end <= BLOCK);
    mask(start / SECTOR, end.div_ceil(SECTOR))
}

/// The sectors that lie wholly inside `start..end` (bytes inside a block).
pub fn sectors_covered(start: u64, end: u64) -> SectorMask {
    debug_assert!(start <= end && end <= BLOCK);
    mask(start.div_ceil(SECTOR), end / SECTOR)
}

fn mask(first: u64, past: u64) -> SectorMask {
    if first >= past {
        return 0;
    }
    (((1u16 << past) - 1) & !((1u16 << first) - 1)) as SectorMask
}

/// Units of bytes and their powers of two, largest first.
pub const UNITS: [(&str, u32); 6] = [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Bytes in the largest unit that represents them as an integer.
pub fn exact(bytes: u64) -> String {
    match UNITS.iter().find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift)) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes}B"),
    }
}

/// Bytes for display: at most one digit after the decimal point, so not always exact.
pub fn rounded(bytes: u64) -> String {
    match UNITS.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((_, shift)) if bytes.is_multiple_of(1 << shift) => exact(bytes),
        Some((unit, shift)) => format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64),
        None => exact(bytes),
    }
}

/// A fraction of a disk's time, in parts per billion, rounded down so that three thirds fit into one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Share(u32);

impl Share {
    /// The whole disk.
    pub const ONE: Share = Share(1_000_000_000);

    /// From parts per billion; `None` outside of 0 < share <= 1.
    pub fn from_ppb(ppb: u64) -> Option<Share> {
        (1..=u64::from(Self::ONE.0)).contains(&ppb).then_some(Share(ppb as u32))
    }

    /// Parts per billion.
    pub fn ppb(self) -> u64 {
        u64::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_touch_and_cover() {
        assert_eq!(sectors_touched(0, 4096), 0xff);
        assert_eq!(sectors_touched(511, 513), 0b11);
        assert_eq!(sectors_covered(511, 513), 0);
        assert_eq!(sectors_covered(0, 512), 1);
        assert_eq!(sectors_covered(1, 4095), 0b0111_1110);
    }

    #[test]
    fn shares_are_bounded() {
        assert!(Share::from_ppb(0).is_none());
        assert!(Share::from_ppb(1_000_000_001).is_none());
        assert_eq!(Share::from_ppb(1_000_000_000), Some(Share::ONE));
    }
}
