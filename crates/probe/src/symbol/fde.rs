//! Extent of functions without symbols, from `.eh_frame`: a stripped program still
//! says where each of its functions begins and ends.

use std::ops::Range;

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindSection};

use super::elf::UnwindTables;

/// Addresses of the function around `address`.
pub(super) fn function_range(tables: &UnwindTables, address: u64) -> Option<Range<u64>> {
    let (frame_range, frame) = tables.eh_frame.as_ref()?;
    let (index_range, index) = tables.eh_frame_hdr.as_ref()?;
    let mut bases = BaseAddresses::default()
        .set_eh_frame(frame_range.start)
        .set_eh_frame_hdr(index_range.start);
    if let Some(text) = &tables.text {
        bases = bases.set_text(text.start);
    }
    if let Some(got) = &tables.got {
        bases = bases.set_got(got.start);
    }
    let frame = EhFrame::from(EndianSlice::new(frame, LittleEndian));
    let index = EhFrameHdr::new(index, LittleEndian).parse(&bases, 8).ok()?;
    let table = index.table()?;
    let fde = table
        .fde_for_address(&frame, &bases, address, EhFrame::cie_from_offset)
        .ok()?;
    let start = fde.initial_address();
    let range = start..start.checked_add(fde.len())?;
    range.contains(&address).then_some(range)
}
