//! The instructions around an address, for those who decide whether a loop spins.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use amdahl_speedup::spin::Known;
use rustc_hash::FxHashMap;

use super::CodePoint;
use super::demangle::demangle;
use super::module::{Kind, ModuleId, Modules};

/// Half the window where the function is not known.
const WINDOW_BYTES: u64 = 256;
/// An entry of a PLT has no more.
const STUB_BYTES: u64 = 16;
/// A larger function is cut to a window.
const FUNCTION_BYTES_MAX: u64 = 1 << 16;
const FUNCTIONS_CACHED_MAX: usize = 1 << 12;

/// Machine code around an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The bytes from `start` on.
    pub bytes: Arc<[u8]>,
    /// Address of the first byte as stated in the module.
    pub start: u64,
    /// Address of the instruction as stated in the module.
    pub ip: u64,
    /// The module.
    pub module: ModuleId,
    /// `bytes` are one whole function. Otherwise they are a window, which may begin
    /// inside an instruction.
    pub is_function: bool,
}

#[derive(Debug, Default)]
pub(super) struct CodeCache {
    functions: FxHashMap<(ModuleId, u64), Arc<[u8]>>,
}

impl CodeCache {
    /// Code of a module's file.
    pub(super) fn of_file(&mut self, modules: &mut Modules, point: CodePoint) -> Option<Code> {
        let CodePoint { module, address } = point;
        let function = modules.function_range(module, address);
        let segment = modules.get(module).layout.code_around(address)?;
        let bounds = function.clone().unwrap_or(segment.clone());
        let is_function = function.is_some() && bounds.end - bounds.start <= FUNCTION_BYTES_MAX;
        let range = if is_function {
            bounds
        } else {
            window(address, &bounds)
        };
        let bytes = match self.functions.get(&(module, range.start)) {
            Some(bytes) if bytes.len() as u64 == range.end - range.start => bytes.clone(),
            _ => {
                let bytes: Arc<[u8]> = modules.read_code(module, range.clone())?.into();
                if self.functions.len() >= FUNCTIONS_CACHED_MAX {
                    self.functions.clear();
                }
                self.functions.insert((module, range.start), bytes.clone());
                bytes
            }
        };
        Some(Code {
            bytes,
            start: range.start,
            ip: address,
            module,
            is_function,
        })
    }

    /// What the name of the function at an address tells of it, be it code of the module, the entry of its PLT through
    /// which it calls another module, or the one of its GOT.
    pub(super) fn known(&mut self, modules: &mut Modules, point: CodePoint) -> Option<Known> {
        let CodePoint { module, address } = point;
        let symbols = modules.symbols(module);
        let name = symbols.and_then(|symbols| Some(demangle(symbols.name(symbols.find(address)?))));
        if let Some(known) = name.as_deref().and_then(Known::of) {
            return Some(known);
        }
        // What the vDSO does not export are parts of its clocks.
        if &*modules.get(module).path == "[vdso]" {
            return name.is_none().then_some(Known::Clock);
        }
        let imports = modules.imports(module);
        if imports.is_empty() {
            return None;
        }
        if let Some(&known) = imports.get(&address) {
            return Some(known);
        }
        // Where there is a name it may be that of `_init`, whose end is not told. Entries begin at multiples of 16, or of 8 in
        // a PLT of its own for functions whose address is taken.
        let aligned = address & !15;
        let other = (address != aligned).then_some(address);
        let slot = [aligned].into_iter().chain(other).find_map(|start| {
            let code = modules.read_code(module, start..start.checked_add(STUB_BYTES)?)?;
            slot_of_stub(&code, start)
        });
        imports.get(&slot?).copied()
    }

    /// Code that exists only in the memory of a live process.
    pub(super) fn of_process(
        &self,
        modules: &Modules,
        pid: u32,
        point: CodePoint,
        mapped: Range<u64>,
    ) -> Option<Code> {
        if !matches!(modules.get(point.module).kind, Kind::Jit { .. }) {
            return None;
        }
        let range = window(point.address, &mapped);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
        std::fs::File::open(format!("/proc/{pid}/mem"))
            .ok()?
            .read_exact_at(&mut bytes, range.start)
            .ok()?;
        Some(Code {
            bytes: bytes.into(),
            start: range.start,
            ip: point.address,
            module: point.module,
            is_function: false,
        })
    }
}

/// Where the address lies that an entry of a PLT at `start` jumps to; `None` if it is none.
fn slot_of_stub(code: &[u8], start: u64) -> Option<u64> {
    if cfg!(target_arch = "x86_64") {
        slot_of_x86_64(code, start)
    } else if cfg!(target_arch = "aarch64") {
        slot_of_aarch64(code, start)
    } else {
        None
    }
}

/// `endbr64; bnd jmp *slot(%rip)`, of which the first two may be missing.
fn slot_of_x86_64(code: &[u8], start: u64) -> Option<u64> {
    let rest = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let rest = rest.strip_prefix(&[0xf2]).unwrap_or(rest);
    let rest = rest.strip_prefix(&[0xff, 0x25])?;
    let (distance, after) = rest.split_first_chunk::<4>()?;
    let next = start.wrapping_add((code.len() - after.len()) as u64);
    Some(next.wrapping_add_signed(i64::from(i32::from_le_bytes(*distance))))
}

/// `bti c; adrp x16, page; ldr x17, [x16, #offset]`, of which the first may be missing.
fn slot_of_aarch64(code: &[u8], start: u64) -> Option<u64> {
    let mut words = code.chunks_exact(4).enumerate().map(|(index, word)| {
        let word = u32::from_le_bytes(word.try_into().unwrap_or_default());
        (start.wrapping_add(4 * index as u64), word)
    });
    let (mut at, mut adrp) = words.next()?;
    if adrp == 0xd503_245f {
        (at, adrp) = words.next()?;
    }
    let (_, load) = words.next()?;
    if adrp & 0x9f00_001f != 0x9000_0010 || load & 0xffc0_03ff != 0xf940_0211 {
        return None;
    }
    let pages = (adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3;
    // 21 bits with a sign.
    let pages = i64::from((pages << 11) as i32 >> 11);
    let offset = u64::from(load >> 10 & 0xfff) * 8;
    Some(
        (at & !0xfff)
            .wrapping_add_signed(pages << 12)
            .wrapping_add(offset),
    )
}

fn window(address: u64, bounds: &Range<u64>) -> Range<u64> {
    address.saturating_sub(WINDOW_BYTES).max(bounds.start)
        ..address.saturating_add(WINDOW_BYTES).min(bounds.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_plt_tell_where_the_address_lies() {
        // jmp *0x1234(%rip); push 0
        let plain = [0xff, 0x25, 0x34, 0x12, 0, 0, 0x68, 0, 0, 0, 0];
        assert_eq!(slot_of_x86_64(&plain, 0x1000), Some(0x1006 + 0x1234));
        // endbr64; bnd jmp *-5(%rip)
        let marked = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0xfb, 0xff, 0xff, 0xff, 0x0f,
        ];
        assert_eq!(slot_of_x86_64(&marked, 0x2000), Some(0x200b - 5));
        assert_eq!(slot_of_x86_64(&[0x48, 0x89, 0xe5, 0xc3], 0), None);
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        // adrp x16, +0x1f000; ldr x17, [x16, #0xfa0]
        let stub = words(&[0xf000_00f0, 0xf947_d211, 0x913e_8210, 0xd61f_0220]);
        assert_eq!(
            slot_of_aarch64(&stub, 0x1450),
            Some(0x1000 + 0x1f000 + 0xfa0)
        );
        // A page before, behind a landing pad.
        let marked = words(&[0xd503_245f, 0xf0ff_fff0, 0xf940_0211, 0xd61f_0220]);
        assert_eq!(slot_of_aarch64(&marked, 0x5010), Some(0x4000));
        assert_eq!(slot_of_aarch64(&words(&[0xd65f_03c0; 4]), 0), None);
        assert_eq!(slot_of_aarch64(&[], 0), None);
    }
}
