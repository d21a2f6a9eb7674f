//! From raw stacks to names: which code ran, or waited.
//!
//! A [`Symbolizer`] is told what was mapped where ([`Maps`]), unwinds copied stacks
//! and names their addresses, while the processes run or after they are gone. Stacks
//! of equal code in different processes have equal [`CodePoint`]s, so they can be
//! counted before anything is named.
//!
//! # Contract
//! - *Unwinding* needs `ip`, `sp`, the frame pointer and a copy of the stack from `sp`
//!   up. Code with `.eh_frame` (or only `.debug_frame`) is unwound by it, prologues
//!   and epilogues included; other code by frame pointers. Every return address lies
//!   in a known executable mapping, or the chain ends there; [`StackEnd`] says why it
//!   ended.
//! - The first address is where the CPU stood. The others are return addresses: they
//!   are looked up one byte before, inside the call.
//! - *[`names`](Symbolizer::names)* reads symbol tables only; *[`full`](Symbolizer::full)*
//!   adds inlined functions, files and lines from DWARF. The function that holds the
//!   code has the same name in both. C++ and Rust names are demangled, suffixes of
//!   compiler-made clones are dropped.
//! - Without a symbol a frame is called `module+0xoffset`; the offset is that of the
//!   function where `.eh_frame` tells it, otherwise of the address. Generated code
//!   without a `/tmp/perf-PID.map` is `[jit]`, unmapped memory `[unknown]`.
//! - Stripped files are completed from `/usr/lib/debug` (build id, `.gnu_debuglink`), else from
//!   `.gnu_debugdata` and from the tables of Go's runtime (1.18 and later; without lines).
//!   Files are opened through the process while it lives, so those of containers are
//!   found; [`touch`](Symbolizer::touch) opens them ahead of its end. A file that was
//!   replaced since is not read.
//! - Everything of a process is untrusted: maps, stacks, ELF files, debug information
//!   and JIT maps are read in bounds, and no content makes a call panic or fail as a
//!   whole. Memory is bounded by constants of this module.
//!
//! # Limits
//! 32-bit and big-endian processes have names only as `module+0xoffset`. A function whose
//! CFA is in another register than the stack and frame pointers (`_dl_runtime_resolve`) ends
//! the chain. HotSpot code keeps no frame pointers unless it runs with
//! `-XX:+PreserveFramePointer`, so Java chains end in the JIT otherwise. A map that it writes when
//! it ends has the code that is there then: what was replaced before may have another name.
//!
//! # Costs
//! A new file costs reading its headers; its unwind tables are read at the first frame
//! in it, its symbol table at the first name, its DWARF at the first `full`. Everything
//! is kept per file, not per process. Warm, unwinding costs tens of nanoseconds a frame,
//! and so does a name. Cold, `names` reads the symbol table of a file, 0.1 s where
//! that is a hundred megabytes; `full` may take seconds there. `cargo bench --bench
//! symbol_costs` measures it.

mod code;
mod debug_file;
mod demangle;
mod elf;
mod fde;
#[doc(hidden)]
pub mod fuzz;
mod goroutines;
mod jit;
mod lines;
mod maps;
mod module;
mod pclntab;
mod snapshot;
mod symtab;
mod unwind;
mod vdso;

use std::io;
use std::sync::Arc;

use amdahl_speedup::event::{CallStack, Frame};
use amdahl_speedup::spin::Known;
use rustc_hash::FxHashMap;

pub use code::Code;
pub use goroutines::GoroutineCode;
pub use lines::kernel_names_are_readable;
pub use maps::{LATEST, MapEvent, Maps};
pub use module::ModuleId;
pub use unwind::{RawStack, StackEnd, Unwound};

use crate::unprivileged::StackCopy;
use maps::{Found, Place};
use module::{Kind, Modules};

/// Names kept per address.
const NAMES_CACHED_MAX: usize = 1 << 18;
/// Addresses kept with their inlined functions and lines.
const FULL_CACHED_MAX: usize = 1 << 16;
/// Processes whose JIT maps are kept.
const JIT_MAPS_MAX: usize = 64;

/// `PERF_CONTEXT_KERNEL` and its like stand among the addresses of a call chain.
const CONTEXT_MARKERS: u64 = -4095_i64 as u64;

/// What may go wrong. Missing names are not errors: see the contract of the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// The mappings of a live process could not be read.
    #[error("cannot read /proc/{pid}/maps: {source}")]
    ReadMaps {
        /// The process.
        pid: u32,
        /// Why.
        source: io::Error,
    },
}

/// A place in code, the same in all processes that run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodePoint {
    /// The file or generated code.
    pub module: ModuleId,
    /// Address as stated in the module, already inside the call for a return address.
    pub address: u64,
}

impl CodePoint {
    fn new(place: Option<Place>, address: u64) -> CodePoint {
        match place {
            Some(Place { module, slide }) => CodePoint {
                module,
                address: address.wrapping_sub(slide),
            },
            None => CodePoint {
                module: ModuleId::UNKNOWN,
                address,
            },
        }
    }
}

/// Unwinds and names the stacks of a run. See the [module](self).
pub struct Symbolizer {
    maps: Maps,
    modules: Modules,
    unwinder: unwind::Unwinder,
    lines: lines::Lines,
    jit: FxHashMap<ModuleId, jit::PerfMap>,
    code: code::CodeCache,
    names: FxHashMap<CodePoint, Arc<str>>,
    full: FxHashMap<CodePoint, Arc<[Frame]>>,
    kernel: FxHashMap<u64, Arc<str>>,
}

impl Default for Symbolizer {
    fn default() -> Symbolizer {
        Symbolizer::new()
    }
}

impl Symbolizer {
    /// Knows nothing yet, reads nothing yet.
    pub fn new() -> Symbolizer {
        Symbolizer {
            maps: Maps::new(),
            modules: Modules::new(),
            unwinder: unwind::Unwinder::new(),
            lines: lines::Lines::default(),
            jit: FxHashMap::default(),
            code: code::CodeCache::default(),
            names: FxHashMap::default(),
            full: FxHashMap::default(),
            kernel: FxHashMap::default(),
        }
    }

    /// The address spaces, to be told of mappings, forks, execs and exits.
    pub fn maps_mut(&mut self) -> &mut Maps {
        &mut self.maps
    }

    /// Opens all files that a live process has mapped, so that they can be read after
    /// it is gone, even when they are deleted or in its own mount namespace.
    pub fn touch(&mut self, pid: u32) {
        if let Some(found) = self.space(pid, LATEST) {
            for mapping in found.space.mappings() {
                self.modules.place(pid, &found, mapping);
            }
        }
    }

    /// Walks a user stack. There is always at least one address, the instruction
    /// pointer. A process that no event told of is read from `/proc`.
    pub fn unwind(&mut self, stack: &RawStack<'_>) -> Unwound {
        let found = self.space(stack.pid, stack.ts);
        self.unwinder
            .unwind(&mut self.modules, found.as_ref(), stack)
    }

    /// Where the addresses of one process are in its modules. The first one is an
    /// instruction pointer, the others are return addresses.
    pub fn locate(&mut self, pid: u32, ts: u64, addresses: &[u64]) -> Vec<CodePoint> {
        let found = self.space(pid, ts);
        let points = addresses.iter().enumerate().map(|(depth, &address)| {
            let address = address.wrapping_sub(u64::from(depth > 0));
            let place = found.as_ref().and_then(|found| {
                let mapping = found.space.find(address)?;
                Some(self.modules.place(pid, found, mapping))
            });
            CodePoint::new(place, address)
        });
        points.collect()
    }

    /// Names without inlined functions and lines: one frame per address.
    /// `kernel` is a kernel call chain, innermost first.
    pub fn names(&mut self, user: &[CodePoint], kernel: &[u64]) -> CallStack {
        let user = user.iter().map(|&point| self.named_frame(point)).collect();
        CallStack {
            user,
            kernel: self.kernel_frames(kernel),
            ..CallStack::default()
        }
    }

    /// Names with inlined functions, files and lines where there is debug
    /// information. The first use of a large module may take seconds.
    pub fn full(&mut self, user: &[CodePoint], kernel: &[u64]) -> CallStack {
        self.load_full(user);
        let mut frames = Vec::with_capacity(user.len());
        for point in user {
            match self.full.get(point) {
                Some(known) => frames.extend_from_slice(known),
                None => frames.push(self.named_frame(*point)),
            }
        }
        CallStack {
            user: frames,
            kernel: self.kernel_frames(kernel),
            ..CallStack::default()
        }
    }

    /// [`locate`](Self::locate) at [`LATEST`] and [`names`](Self::names).
    pub fn resolve_names(&mut self, pid: u32, user: &[u64], kernel: &[u64]) -> CallStack {
        let points = self.locate(pid, LATEST, user);
        self.names(&points, kernel)
    }

    /// [`locate`](Self::locate) at [`LATEST`] and [`full`](Self::full).
    pub fn resolve_full(&mut self, pid: u32, user: &[u64], kernel: &[u64]) -> CallStack {
        let points = self.locate(pid, LATEST, user);
        self.full(&points, kernel)
    }

    /// Unwinds the copied stack of a thread that waits, at [`LATEST`], and names it in
    /// [`full`](Self::full).
    pub fn resolve_copy(&mut self, copy: &StackCopy) -> CallStack {
        let unwound = self.unwind(&RawStack {
            pid: copy.pid,
            ts: LATEST,
            ip: copy.ip,
            sp: copy.sp,
            user_stack: &copy.memory,
            user_mode: true,
            ..RawStack::default()
        });
        self.full(&unwound.points, &[])
    }

    /// The function around an instruction of a process, as machine code. Generated
    /// code is read out of the process while it lives.
    pub fn code(&mut self, pid: u32, ip: u64) -> Option<Code> {
        let found = self.space(pid, LATEST)?;
        let mapping = found.space.find(ip)?.clone();
        let place = self.modules.place(pid, &found, &mapping);
        let point = CodePoint::new(Some(place), ip);
        self.code_at(point).or_else(|| {
            let alive = found.maybe_alive.then_some(mapping.start..mapping.end)?;
            self.code.of_process(&self.modules, pid, point, alive)
        })
    }

    /// The function around a place in a file, as machine code.
    pub fn code_at(&mut self, point: CodePoint) -> Option<Code> {
        self.code.of_file(&mut self.modules, point)
    }

    /// What the name of the function there tells of what it does in a loop that waits; also of an entry of a PLT or GOT.
    pub fn known_at(&mut self, point: CodePoint) -> Option<Known> {
        self.code.known(&mut self.modules, point)
    }

    /// Whether the code there is in no file.
    pub fn is_generated(&self, point: CodePoint) -> bool {
        matches!(self.modules.get(point.module).kind, Kind::Jit { .. })
    }

    /// Path of a module, `[vdso]`, `[jit]`, or empty.
    pub fn module_path(&self, module: ModuleId) -> &str {
        &self.modules.get(module).path
    }

    fn space(&mut self, pid: u32, ts: u64) -> Option<Found> {
        if !self.maps.is_complete(pid) && self.maps.snapshot(pid).is_err() {
            // Gone or foreign: what the events told must do.
            self.maps.give_up(pid);
        }
        self.maps.space(pid, ts)
    }

    fn named_frame(&mut self, point: CodePoint) -> Frame {
        let symbol = match self.names.get(&point) {
            Some(symbol) => symbol.to_string(),
            None => {
                let (symbol, is_final) = self.name(point);
                if is_final {
                    if self.names.len() >= NAMES_CACHED_MAX {
                        self.names.clear();
                    }
                    self.names.insert(point, symbol.clone());
                }
                symbol.to_string()
            }
        };
        Frame {
            symbol,
            file: None,
            line: None,
            module: self.modules.get(point.module).path.to_string(),
        }
    }

    /// The name, and whether it will stay: a JIT map may still grow.
    fn name(&mut self, point: CodePoint) -> (Arc<str>, bool) {
        match self.modules.get(point.module).kind {
            Kind::Unknown => ("[unknown]".into(), false),
            Kind::Jit { pid } => {
                if self.jit.len() >= JIT_MAPS_MAX && !self.jit.contains_key(&point.module) {
                    self.jit.clear();
                }
                let map = self.jit.entry(point.module).or_default();
                match map.name(pid, point.address) {
                    // Code is replaced: the next answer may differ.
                    Some(name) => (name, false),
                    None => ("[jit]".into(), false),
                }
            }
            Kind::Elf => (self.elf_name(point).into(), true),
        }
    }

    fn elf_name(&mut self, point: CodePoint) -> String {
        self.symbol_name(point).unwrap_or_else(|| {
            let function = self.modules.function_range(point.module, point.address);
            let offset = function.map_or(point.address, |range| range.start);
            format!("{}+{offset:#x}", self.modules.get(point.module).file_name())
        })
    }

    fn symbol_name(&mut self, point: CodePoint) -> Option<String> {
        let symbols = self.modules.symbols(point.module)?;
        Some(demangle::demangle(
            symbols.name(symbols.find(point.address)?),
        ))
    }

    /// Fills the cache for points of modules that have debug information.
    fn load_full(&mut self, points: &[CodePoint]) {
        let mut wanted: FxHashMap<ModuleId, Vec<u64>> = FxHashMap::default();
        for point in points {
            if !self.full.contains_key(point) && self.modules.get(point.module).kind == Kind::Elf {
                wanted.entry(point.module).or_default().push(point.address);
            }
        }
        if self.full.len() + points.len() > FULL_CACHED_MAX {
            self.full.clear();
        }
        for (module, addresses) in wanted {
            let Some(path) = self.modules.debug_info_path(module) else {
                continue;
            };
            let answers = self.lines.elf(path, addresses.clone());
            for (&address, locations) in addresses.iter().zip(&answers) {
                let point = CodePoint { module, address };
                if let Some(frames) = self.full_frames(point, locations) {
                    self.full.insert(point, frames);
                }
            }
        }
    }

    fn full_frames(
        &mut self,
        point: CodePoint,
        locations: &[lines::Location],
    ) -> Option<Arc<[Frame]>> {
        let (outer, inlined) = locations.split_last()?;
        let module = self.modules.get(point.module).path.to_string();
        let frame = |symbol, location: &lines::Location| Frame {
            symbol,
            file: location.file.clone(),
            line: location.line,
            module: module.clone(),
        };
        let inlined = inlined
            .iter()
            .map(|inlined| frame(demangle::demangle(inlined.name.as_bytes()), inlined));
        let mut frames: Vec<Frame> = inlined.collect();
        // The symbol table has the public name; sources of libraries often do not.
        let name = match self.symbol_name(point) {
            Some(name) => name,
            None if !outer.name.is_empty() => demangle::demangle(outer.name.as_bytes()),
            None => self.elf_name(point),
        };
        frames.push(frame(name, outer));
        Some(frames.into())
    }

    fn kernel_frames(&mut self, addresses: &[u64]) -> Vec<Frame> {
        let lookup = |depth: usize, address: u64| address.wrapping_sub(u64::from(depth > 0));
        let addresses: Vec<u64> = addresses
            .iter()
            .filter(|address| **address < CONTEXT_MARKERS)
            .enumerate()
            .map(|(depth, &address)| lookup(depth, address))
            .collect();
        let unknown: Vec<u64> = addresses
            .iter()
            .copied()
            .filter(|address| !self.kernel.contains_key(address))
            .collect();
        if !unknown.is_empty() {
            if self.kernel.len() + unknown.len() > NAMES_CACHED_MAX {
                self.kernel.clear();
            }
            let answers = self.lines.kernel(unknown.clone());
            for (&address, locations) in unknown.iter().zip(&answers) {
                let symbol = match locations.last() {
                    Some(location) => demangle::demangle(location.name.as_bytes()),
                    None => format!("[kernel]+{address:#x}"),
                };
                self.kernel.insert(address, symbol.into());
            }
        }
        let frame = |address: &u64| Frame {
            symbol: self
                .kernel
                .get(address)
                .map_or_else(|| "[kernel]".into(), |symbol| symbol.to_string()),
            file: None,
            line: None,
            module: "[kernel]".into(),
        };
        addresses.iter().map(frame).collect()
    }
}
