//! The content of writes: cells of 128 bytes. Each cell names the write it came from and its own place, so any wrong
//! byte is detected.
//!
//! A sector holds four cells, so the merging of writes of parts of a sector is checked too.

use std::ops::Range;

use engine::units::BLOCK;

/// Bytes of a cell.
pub const CELL: u64 = 128;
/// Cells of a block.
pub const CELLS_PER_BLOCK: u64 = BLOCK / CELL;

/// The content of a cell: the number of the write it came from, or [`ZERO`].
pub type Value = u64;

/// A cell of zeros.
pub const ZERO: Value = 0;

const WORDS: usize = CELL as usize / 8;

/// The bytes of `cell` after write number `value`.
pub fn content(value: Value, cell: u64) -> [u8; CELL as usize] {
    let mut bytes = [0; CELL as usize];
    if value != ZERO {
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&self::word(value, cell, i).to_le_bytes());
        }
    }
    bytes
}

fn word(value: Value, cell: u64, i: usize) -> u64 {
    match i {
        0 => value,
        1 => cell,
        _ => (value.rotate_left(20) ^ cell).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64),
    }
}

/// The write that `bytes` at `cell` came from; `None` if they come from no write.
pub fn value(bytes: &[u8], cell: u64) -> Option<Value> {
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let value = words.next().expect("a cell");
    if value == ZERO {
        return words.all(|word| word == 0).then_some(ZERO);
    }
    (1..WORDS).zip(words).all(|(i, found)| found == word(value, cell, i)).then_some(value)
}

/// Fills `into` with the bytes from `offset` on, as write number `value` leaves them.
pub fn fill(value: Value, offset: u64, into: &mut [u8]) {
    let mut at = 0;
    while at < into.len() {
        let byte = offset + at as u64;
        let inside = (byte % CELL) as usize;
        let len = (CELL as usize - inside).min(into.len() - at);
        into[at..at + len].copy_from_slice(&content(value, byte / CELL)[inside..inside + len]);
        at += len;
    }
}

/// The cells that lie entirely within a range of bytes.
pub fn covered(offset: u64, len: u64) -> Range<u64> {
    let (first, past) = (offset.div_ceil(CELL), offset.saturating_add(len) / CELL);
    first..past.max(first)
}

/// The cells that overlap a range of bytes.
pub fn touched(offset: u64, len: u64) -> Range<u64> {
    offset / CELL..offset.saturating_add(len).div_ceil(CELL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_wrong_byte_shows() {
        let bytes = content(77, 5);
        assert_eq!(value(&bytes, 5), Some(77));
        assert_eq!(value(&bytes, 6), None, "the right write at the wrong place");
        assert_eq!(value(&[0; 128], 5), Some(ZERO));
        for i in 0..128 {
            let mut wrong = bytes;
            wrong[i] ^= 1;
            assert_eq!(value(&wrong, 5), None);
        }
    }

    #[test]
    fn filling_is_the_same_in_parts() {
        let (mut whole, mut parts) = ([0; 1000], [0; 1000]);
        fill(9, 300, &mut whole);
        fill(9, 300, &mut parts[..333]);
        fill(9, 633, &mut parts[333..]);
        assert_eq!(whole, parts);
        assert_eq!((covered(300, 1000), touched(300, 1000)), (3..10, 2..11));
    }
}
