//! Entry points for fuzzers: all that is parsed of a process, from bytes.

use std::sync::Arc;

use super::demangle::demangle;
use super::elf::Bytes;
use super::fde;
use super::jit::PerfMap;
use super::module::with_elf;
use super::snapshot;
use super::symtab::SymbolTable;

/// An ELF file: headers, unwind tables, symbols, and the names of all functions.
pub fn elf(bytes: &[u8]) {
    let read = with_elf(Bytes::memory(Arc::from(bytes)), |elf| {
        (
            elf.layout(),
            elf.unwind_tables(),
            SymbolTable::new(elf.symbols()),
        )
    });
    let Some((layout, tables, symbols)) = read else {
        return;
    };
    layout.span();
    for segment in &layout.segments {
        for address in [
            segment.address,
            segment.address.wrapping_add(segment.file_len / 2),
        ] {
            layout.address_of_offset(address);
            layout.offset_of_address(address);
            layout.code_around(address);
            fde::function_range(&tables, address);
            if let Some(index) = symbols.find(address) {
                demangle(symbols.name(index));
            }
        }
    }
}

/// A `/tmp/perf-PID.map`.
pub fn perf_map(bytes: &[u8]) {
    PerfMap::default().append(bytes.to_vec());
}

/// A `/proc/PID/maps`.
pub fn process_maps(bytes: &[u8]) {
    snapshot::executable(bytes).for_each(drop);
}

/// A symbol's name.
pub fn symbol_name(bytes: &[u8]) {
    demangle(bytes);
}
