//! The instructions around an address, for those who decide whether a loop spins.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::CodePoint;
use super::module::{Kind, ModuleId, Modules};

/// Half the window where the function is not known.
const WINDOW_BYTES: u64 = 256;
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

fn window(address: u64, bounds: &Range<u64>) -> Range<u64> {
    address.saturating_sub(WINDOW_BYTES).max(bounds.start)
        ..address.saturating_add(WINDOW_BYTES).min(bounds.end)
}
