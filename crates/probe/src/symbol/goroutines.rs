//! Where the goroutines of a program wait: in code of Go's runtime, which is part of the program.

use std::fs::File;

use amdahl_speedup::primitive::GO_WAITS;
use amdahl_speedup::spin::{Arch, Call, calls};

use super::elf::{Bytes, RawSymbol, RawSymbols};
use super::module::{read_code, with_elf};
use super::symtab::name_at;

/// What parks a goroutine; the one may be inlined into its callers.
const PARKING: [&[u8]; 2] = [b"runtime.goparkunlock", b"runtime.gopark"];
/// What lets one go on that waits for a semaphore, whose entry in the queue is its first argument.
const READY: &[u8] = b"runtime.readyWithTime";
/// Those that wait are hundreds of bytes long.
const FUNCTION_BYTES_MAX: u64 = 1 << 16;

/// Instructions of a program by their offset in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoroutineCode {
    /// A goroutine comes to wait for the lock that is the first argument. It may go on at once.
    pub waits: Vec<u64>,
    /// It is about to be parked.
    pub parks: Vec<u64>,
    /// It goes on after having been parked.
    pub parked: Vec<u64>,
    /// Another one lets it go on.
    pub ready: Vec<u64>,
}

impl GoroutineCode {
    /// Of a program in Go. `None` if it is none, or of another version than 1.18 to those of today: older ones pass arguments and
    /// the goroutine otherwise.
    pub fn of(file: &File) -> Option<GoroutineCode> {
        let arch = Arch::native()?;
        let bytes = || Some(Bytes::file(file.try_clone().ok()?));
        let (layout, functions) =
            with_elf(bytes()?, |elf| Some((elf.layout(), elf.go_functions()?)))??;
        let bytes = bytes()?;
        let read = |symbol: &RawSymbol| {
            let len = symbol.size.min(FUNCTION_BYTES_MAX);
            let end = symbol.address.checked_add(len)?;
            read_code(&bytes, &layout, symbol.address..end)
        };
        let offset = |address| layout.offset_of_address(address).map(|(offset, _)| offset);
        find(arch, &functions, read, offset)
    }
}

/// `None` where nothing waits, or where it goes on is not found.
fn find(
    arch: Arch,
    functions: &RawSymbols,
    read: impl Fn(&RawSymbol) -> Option<Vec<u8>>,
    offset: impl Fn(u64) -> Option<u64>,
) -> Option<GoroutineCode> {
    let named = |name: &[u8]| {
        let mut symbols = functions.symbols.iter();
        symbols.find(|symbol| name_at(&functions.strings, symbol.name) == name)
    };
    let parking: Vec<u64> = PARKING
        .iter()
        .filter_map(|name| Some(named(name)?.address))
        .collect();
    let mut code = GoroutineCode::default();
    for name in GO_WAITS {
        let Some(symbol) = named(name.as_bytes()) else {
            continue;
        };
        let calls = calls(arch, &read(symbol)?, symbol.address).into_iter();
        let parks: Vec<Call> = calls
            .filter(|call| parking.contains(&call.target))
            .collect();
        if parks.is_empty() {
            continue;
        }
        code.waits.push(offset(symbol.address)?);
        for call in parks {
            code.parks.push(offset(call.at)?);
            code.parked.push(offset(call.next)?);
        }
    }
    code.ready
        .extend(named(READY).and_then(|symbol| offset(symbol.address)));
    (!code.waits.is_empty()).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of 32 bytes each, in order.
    fn functions(names: &[&str]) -> RawSymbols {
        let mut strings = Vec::new();
        let symbols = names.iter().enumerate().map(|(nth, name)| {
            let at = strings.len() as u32;
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
            RawSymbol {
                address: 0x1000 + 32 * nth as u64,
                size: 32,
                name: at,
                binding: 0,
            }
        });
        RawSymbols {
            symbols: symbols.collect(),
            strings: strings.into(),
            dynamic: false,
        }
    }

    #[test]
    fn where_goroutines_wait_and_go_on_is_found() {
        let names = [
            "runtime.gopark",
            "runtime.semacquire1",
            "runtime.readyWithTime",
            "runtime.goparkunlock",
        ];
        let all = functions(&names);
        // nop; call to the distance; ret
        let calling = |to: u64| {
            move |symbol: &RawSymbol| {
                let distance = to.wrapping_sub(symbol.address + 6) as u32;
                let code = [&[0x90, 0xe8][..], &distance.to_le_bytes(), &[0xc3]];
                Some(code.concat())
            }
        };
        let offset = |address: u64| address.checked_sub(0x800);
        for parking in [0x1000, 0x1060] {
            let found = find(Arch::X86_64, &all, calling(parking), offset).expect("it waits");
            assert_eq!(found.waits, [0x820]);
            assert_eq!((found.parks, found.parked), (vec![0x821], vec![0x826]));
            assert_eq!(found.ready, [0x840]);
        }
        // It calls something else, there is no code, no offset, or nothing that waits.
        assert!(find(Arch::X86_64, &all, calling(0x1040), offset).is_none());
        assert!(find(Arch::X86_64, &all, |_| None, offset).is_none());
        assert!(find(Arch::X86_64, &all, calling(0x1000), |_| None).is_none());
        let none = functions(&names[..1]);
        assert!(find(Arch::X86_64, &none, calling(0x1000), offset).is_none());
    }

    #[test]
    fn other_programs_have_none() {
        let own = std::env::current_exe().expect("a path");
        assert_eq!(
            GoroutineCode::of(&File::open(own).expect("it is there")),
            None
        );
    }
}
