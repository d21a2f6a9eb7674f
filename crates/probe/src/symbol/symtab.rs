//! Address to function, from the symbol table of one module.

use std::ops::Range;

use object::elf::{STB_GLOBAL, STB_WEAK};

use super::elf::{RawSymbol, RawSymbols};

/// How many symbols before an address are looked at for one that covers it: labels
/// inside a function hide it.
const LOOK_BACK: usize = 16;
/// Assembly functions carry no size; the next symbol ends them, or this.
const SIZELESS_BYTES_MAX: u64 = 1 << 16;
/// Symbols of one module; Chromium with symbols has two million.
const SYMBOLS_MAX: usize = 1 << 23;

/// The functions of a module.
#[derive(Debug, Default)]
pub(super) struct SymbolTable {
    /// Sorted by address, one symbol per address.
    symbols: Vec<RawSymbol>,
    strings: Box<[u8]>,
    dynamic: bool,
}

impl SymbolTable {
    pub(super) fn new(raw: RawSymbols) -> SymbolTable {
        let RawSymbols {
            mut symbols,
            strings,
            dynamic,
        } = raw;
        symbols.truncate(SYMBOLS_MAX);
        // `$x` and `$d` mark code and data on arm64.
        symbols.retain(|symbol| !matches!(name_at(&strings, symbol.name), b"" | [b'$', ..]));
        symbols.sort_unstable_by(|one, other| {
            let preference = |symbol| Preference::of(symbol, &strings);
            one.address
                .cmp(&other.address)
                .then_with(|| preference(one).cmp(&preference(other)))
        });
        symbols.dedup_by_key(|symbol| symbol.address);
        symbols.shrink_to_fit();
        SymbolTable {
            symbols,
            strings,
            dynamic,
        }
    }

    /// Index of the function that covers `address`.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let after = self
            .symbols
            .partition_point(|symbol| symbol.address <= address);
        let candidates = after.saturating_sub(LOOK_BACK)..after;
        candidates
            .rev()
            .find(|&index| self.range(index).contains(&address))
    }

    /// Addresses of the function at `index`.
    pub(super) fn range(&self, index: usize) -> Range<u64> {
        let symbol = self.symbols[index];
        let end = if symbol.size > 0 {
            symbol.address.saturating_add(symbol.size)
        } else if self.dynamic {
            // The exported symbols are too sparse to guess.
            symbol.address.saturating_add(1)
        } else {
            let next = self
                .symbols
                .get(index + 1)
                .map_or(u64::MAX, |next| next.address);
            next.min(symbol.address.saturating_add(SIZELESS_BYTES_MAX))
        };
        symbol.address..end
    }

    /// The name as it is written in the file, without its version.
    pub(super) fn name(&self, index: usize) -> &[u8] {
        let name = name_at(&self.strings, self.symbols[index].name);
        // pthread_mutex_lock@@GLIBC_2.2.5
        let version = name
            .iter()
            .position(|&byte| byte == b'@')
            .filter(|&at| at > 0);
        &name[..version.unwrap_or(name.len())]
    }

    pub(super) fn bytes(&self) -> usize {
        self.strings.len() + self.symbols.len() * size_of::<RawSymbol>()
    }
}

/// The name at an index of a string table.
pub(super) fn name_at(strings: &[u8], at: u32) -> &[u8] {
    let tail = strings.get(at as usize..).unwrap_or_default();
    let end = tail.iter().position(|&byte| byte == 0).unwrap_or(0);
    &tail[..end]
}

/// Which of several names of one address people know: `pthread_mutex_lock`, not
/// `___pthread_mutex_lock` nor `__GI___pthread_mutex_lock`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Preference<'a> {
    sizeless: bool,
    underscores: usize,
    binding: u8,
    len: usize,
    name: &'a [u8],
}

impl<'a> Preference<'a> {
    fn of(symbol: &RawSymbol, strings: &'a [u8]) -> Preference<'a> {
        let name = name_at(strings, symbol.name);
        Preference {
            sizeless: symbol.size == 0,
            // `_Z` and `_R` begin mangled names.
            underscores: name.iter().take_while(|&&byte| byte == b'_').count(),
            binding: match symbol.binding {
                STB_GLOBAL => 0,
                STB_WEAK => 1,
                _ => 2,
            },
            len: name.len(),
            name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// (name, address, size, binding)
    fn table(entries: &[(&str, u64, u64, u8)], dynamic: bool) -> SymbolTable {
        let mut strings = vec![0];
        let mut symbols = Vec::new();
        for &(name, address, size, binding) in entries {
            symbols.push(RawSymbol {
                address,
                size,
                name: strings.len() as u32,
                binding,
            });
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        SymbolTable::new(RawSymbols {
            symbols,
            strings: strings.into(),
            dynamic,
        })
    }

    fn name(table: &SymbolTable, address: u64) -> Option<&str> {
        table
            .find(address)
            .map(|index| std::str::from_utf8(table.name(index)).unwrap())
    }

    #[test]
    fn the_public_name_wins() {
        let table = table(
            &[
                ("___pthread_mutex_lock", 16, 8, 0),
                ("__pthread_mutex_lock", 16, 8, STB_GLOBAL),
                ("pthread_mutex_lock@@GLIBC_2.2.5", 16, 8, STB_GLOBAL),
                ("cfree", 32, 8, STB_WEAK),
                ("free", 32, 8, STB_GLOBAL),
            ],
            false,
        );
        assert_eq!(name(&table, 20), Some("pthread_mutex_lock"));
        assert_eq!(name(&table, 32), Some("free"));
    }

    #[test]
    fn gaps_have_no_name_and_labels_do_not_hide_their_function() {
        let table = table(
            &[
                ("outer", 100, 50, 0),
                ("label", 110, 5, 0),
                ("asm", 200, 0, 0),
            ],
            false,
        );
        assert_eq!(name(&table, 99), None);
        assert_eq!(name(&table, 112), Some("label"));
        assert_eq!(name(&table, 149), Some("outer"));
        assert_eq!(name(&table, 150), None);
        assert_eq!(name(&table, 300), Some("asm"));
        assert_eq!(name(&table, 200 + SIZELESS_BYTES_MAX), None);
    }

    #[test]
    fn exported_symbols_without_size_are_not_stretched() {
        let table = table(&[("a", 100, 0, 1), ("b", 900, 4, 1)], true);
        assert_eq!(name(&table, 100), Some("a"));
        assert_eq!(name(&table, 101), None);
    }

    proptest! {
        #[test]
        fn any_table_is_searched(
            symbols in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u32>(), any::<u8>()), 0..50),
            strings in prop::collection::vec(any::<u8>(), 0..100),
            addresses in prop::collection::vec(any::<u64>(), 0..20),
        ) {
            let len = strings.len().max(1) as u32;
            let symbols = symbols
                .into_iter()
                .map(|(address, size, name, binding)| RawSymbol { address, size, name: name % len, binding })
                .collect();
            let table = SymbolTable::new(RawSymbols { symbols, strings: strings.into(), dynamic: false });
            for address in addresses {
                if let Some(index) = table.find(address) {
                    prop_assert!(table.range(index).contains(&address));
                    table.name(index);
                }
            }
        }
    }
}
