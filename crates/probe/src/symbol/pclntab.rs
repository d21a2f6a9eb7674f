//! Functions of a Go program, from the table by which its runtime names them in tracebacks.
//!
//! `.gopclntab` stays when a program is stripped. Since Go 1.18 its header is followed by the
//! names, other tables, and at last the functions: pairs of the offset of the code and of a
//! record, in order of address, with one offset more for the end. (The format is that of
//! `runtime/symtab.go` and `debug/gosym`.)

use super::elf::{RawSymbol, RawSymbols};

/// Go 1.18 and 1.20: where they differ is of no interest here.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
const HEADER_BYTES: usize = 8;
const PAIR_BYTES: usize = 8;

/// The word of the header that told where the code begins, up to Go 1.25. Position-independent
/// programs have it filled in when they are loaded.
pub(super) const TEXT_START: usize = HEADER_BYTES + 2 * 8;
/// The same in Go 1.26's `.go.module`.
pub(super) const TEXT_START_IN_MODULE: usize = 176;

/// The functions of code that begins at `text`. `None` when it is not a table that we understand.
pub(super) fn functions(table: &[u8], text: u64) -> Option<RawSymbols> {
    let is_known = MAGICS.contains(&u32_at(table, 0)?);
    // Padding, then the size of a pointer behind that of the least instruction.
    if !is_known || table.get(4..6)? != [0, 0] || *table.get(7)? != 8 {
        return None;
    }
    let word = |index: usize| {
        let bytes = table.get(HEADER_BYTES + 8 * index..)?.first_chunk::<8>()?;
        usize::try_from(u64::from_le_bytes(*bytes)).ok()
    };
    let (count, names, after_names, records) = (word(0)?, word(3)?, word(4)?, word(7)?);
    let strings = table.get(names..after_names)?;
    let records = table.get(records..)?;
    let pairs = records.get(..count.checked_mul(PAIR_BYTES)?.checked_add(4)?)?;
    let symbols = (0..count).filter_map(|index| {
        let at = index * PAIR_BYTES;
        let (begin, end) = (u32_at(pairs, at)?, u32_at(pairs, at + PAIR_BYTES)?);
        let record = u32_at(pairs, at + 4)? as usize;
        Some(RawSymbol {
            address: text.checked_add(u64::from(begin))?,
            size: u64::from(end.checked_sub(begin)?),
            name: u32_at(records, record.checked_add(4)?)?,
            binding: 0,
        })
    });
    Some(RawSymbols {
        symbols: symbols.collect(),
        strings: strings.into(),
        dynamic: false,
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table of functions of 16 bytes each.
    fn table(names: &[&str]) -> Vec<u8> {
        let mut strings = Vec::new();
        let starts: Vec<u32> = names
            .iter()
            .map(|name| {
                let start = strings.len() as u32;
                strings.extend_from_slice(name.as_bytes());
                strings.push(0);
                start
            })
            .collect();
        let strings_at = (HEADER_BYTES + 8 * 8) as u64;
        let records_at = strings_at + strings.len() as u64;
        let mut table = 0xffff_fff1_u32.to_le_bytes().to_vec();
        table.extend([0, 0, 1, 8]);
        let words = [
            names.len() as u64,
            0,
            0,
            strings_at,
            records_at,
            records_at,
            records_at,
            records_at,
        ];
        table.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        table.extend(strings);
        let pairs_len = (names.len() * PAIR_BYTES + 4) as u32;
        for index in 0..names.len() as u32 {
            table.extend((16 * index).to_le_bytes());
            table.extend((pairs_len + 8 * index).to_le_bytes());
        }
        table.extend((16 * names.len() as u32).to_le_bytes());
        for (index, start) in starts.iter().enumerate() {
            table.extend((16 * index as u32).to_le_bytes());
            table.extend(start.to_le_bytes());
        }
        table
    }

    #[test]
    fn functions_have_addresses_and_names() {
        let raw = functions(&table(&["runtime.text", "main.inner"]), 0x1000).unwrap();
        let symbols = super::super::symtab::SymbolTable::new(raw);
        assert_eq!(symbols.find(0xfff), None);
        assert_eq!(symbols.find(0x1020), None);
        let index = symbols.find(0x1018).unwrap();
        assert_eq!(symbols.range(index), 0x1010..0x1020);
        assert_eq!(symbols.name(index), b"main.inner");
    }

    #[test]
    fn a_count_beyond_the_table_is_refused() {
        let mut bytes = table(&["f"]);
        bytes[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(functions(&bytes, 0).is_none());
    }

    proptest! {
        #[test]
        fn damaged_tables_are_read(
            damage in prop::collection::vec((any::<usize>(), any::<u8>()), 0..12),
            keep in any::<usize>(),
            text in any::<u64>(),
        ) {
            let mut bytes = table(&["runtime.text", "main.main", "main.main.func1"]);
            for (at, byte) in damage {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(keep % (bytes.len() + 1));
            if let Some(raw) = functions(&bytes, text) {
                super::super::symtab::SymbolTable::new(raw);
            }
        }
    }
}
