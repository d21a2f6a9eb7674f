//! For fuzzers: gets damaged bytes past the checksums, to what lies behind them.

use crate::layout::{
    BLOCK_BYTES, BLOCK_CLUSTERS, DIRECTORY_ENTRY_BYTES, Group, HEADER_BYTES, Header,
    SECTION_ENTRY_BYTES, TABLE_BYTES, u32_at, u64_at,
};

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes
        .get_mut(at..at.checked_add(value.len())?)?
        .copy_from_slice(value);
    Some(())
}

fn crc(bytes: &[u8], at: u64, len: usize) -> Option<u32> {
    let at = usize::try_from(at).ok()?;
    Some(crc32c::crc32c(bytes.get(at..at.checked_add(len)?)?))
}

/// Makes all checksums, and the length that the header tells, right.
pub fn seal(bytes: &mut [u8]) {
    let _ = try_seal(bytes);
}

fn try_seal(bytes: &mut [u8]) -> Option<()> {
    let len = bytes.len() as u64;
    put(bytes, 48, &len.to_le_bytes())?;
    let sum = crc(bytes, 0, 4092)?;
    put(bytes, 4092, &sum.to_le_bytes())?;
    let first: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
    let header = Header::decode(first, len).ok()?;
    for block in 0..header.blocks() {
        let at = header.block_offset(block);
        let clusters = (header.clusters() - block * BLOCK_CLUSTERS).min(BLOCK_CLUSTERS);
        for slot in 0..clusters {
            let entry = (at + slot * 16) as usize;
            let stored = (u32_at(bytes, entry + 8) & 0xff_ffff) as usize;
            if let Some(sum) = crc(bytes, u64_at(bytes, entry), stored) {
                put(bytes, entry + 12, &sum.to_le_bytes())?;
            }
        }
        put(bytes, at as usize + 4080, &block.to_le_bytes())?;
        let sum = crc(bytes, at, BLOCK_BYTES - 4)?;
        put(bytes, at as usize + 4092, &sum.to_le_bytes())?;
    }
    for group in 0..header.groups() {
        let at = (header.directory_offset() + group * DIRECTORY_ENTRY_BYTES as u64) as usize;
        let entry = bytes.get(at..at + DIRECTORY_ENTRY_BYTES)?;
        if let Some(Group::Table(table, _)) =
            Group::decode(entry, header.group_pages(group), &header)
        {
            let sum = crc(bytes, header.table_offset(u64::from(table)), TABLE_BYTES)?;
            put(bytes, at + 8, &sum.to_le_bytes())?;
        }
    }
    for section in 0..header.sections as usize {
        let at = header.sections_offset() as usize + section * SECTION_ENTRY_BYTES;
        let len = usize::try_from(u64_at(bytes, at + 16)).ok()?;
        if let Some(sum) = crc(bytes, u64_at(bytes, at + 8), len) {
            put(bytes, at + 4, &sum.to_le_bytes())?;
        }
    }
    let directory = header.groups() as usize * DIRECTORY_ENTRY_BYTES;
    let sum = crc(bytes, header.directory_offset(), directory)?;
    put(bytes, 96, &sum.to_le_bytes())?;
    let sections = header.sections as usize * SECTION_ENTRY_BYTES;
    let sum = crc(bytes, header.sections_offset(), sections)?;
    put(bytes, 100, &sum.to_le_bytes())?;
    let sum = crc(bytes, 0, 4092)?;
    put(bytes, 4092, &sum.to_le_bytes())
}

/// Where a second image begins: behind the length that the first one's header tells, else in the middle.
pub fn second_at(bytes: &[u8]) -> usize {
    let told = bytes.get(48..56).map(|bytes| u64_at(bytes, 0));
    let told = told.and_then(|at| usize::try_from(at).ok());
    told.filter(|at| (HEADER_BYTES..bytes.len()).contains(at))
        .unwrap_or(bytes.len() / 2)
}

/// Makes one the base of the other, and all checksums right.
pub fn stack(top: &mut [u8], base: &mut [u8]) {
    let _ = try_stack(top, base);
}

fn try_stack(top: &mut [u8], base: &mut [u8]) -> Option<()> {
    put(base, 35, &[0])?;
    put(base, 136, &[0; 32])?;
    // Zeros are no identity.
    *base.get_mut(104)? |= 1;
    seal(base);
    put(top, 35, &[1])?;
    put(top, 136, base.get(104..136)?)?;
    seal(top);
    Some(())
}
