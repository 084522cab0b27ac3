//! Parsers of option data.

use super::wire;

/// Splits off a string with a length prefix.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_be_bytes(*data.first_chunk()?) as usize;
    if len > wire::STRING_BYTES_MAX {
        return None;
    }
    data[4..].split_at_checked(len)
}

/// The data of INFO and GO: name, requests.
pub fn parse_info(data: &[u8]) -> Option<(&[u8], impl Iterator<Item = u16> + '_)> {
    let (name, rest) = string(data)?;
    let count = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let requests = &rest[2..];
    let even = requests.len() == count * 2;
    even.then(|| (name, requests.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]))))
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT: name, queries.
pub fn parse_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = string(data)?;
    let count = u32::from_be_bytes(*rest.first_chunk()?) as usize;
    let mut rest = &rest[4..];
    let mut queries = Vec::new();
    // Each query takes at least four bytes, so a large count cannot make this allocate more than was sent.
    for _ in 0..count {
        let (query, after) = string(rest)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some((name, queries))
}
