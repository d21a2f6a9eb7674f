//! Call chains from registers and a copy of the stack.
//!
//! One unwinder serves all processes. Each module has a slot of a synthetic address
//! space, and every frame's address is translated into its module's slot before
//! framehop sees it. So unwind tables are added once per file, and framehop's cache
//! of rules is shared by all processes that run the same code, wherever it is mapped.

use std::sync::Arc;

use amdahl_contain::contained;
use framehop::{
    CacheNative, Error, ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module,
    UnwindRegsNative, Unwinder as _, UnwinderNative,
};

use super::CodePoint;
use super::elf::SPAN_MAX;
use super::maps::{Found, Place};
use super::module::{ModuleId, Modules};

/// Frames of one stack.
const FRAMES_MAX: usize = 1024;
/// Slots begin where no user address is.
const FIRST_SLOT: u64 = 1 << 63;
/// Unwind tables held before all are dropped and read again.
const TABLE_BYTES_MAX: usize = 512 << 20;
/// A stack address this far above the copy is not on the stack.
const STACK_BYTES_MAX: u64 = 1 << 30;

/// A user stack as it was copied at a sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawStack<'a> {
    /// Process (thread group) id.
    pub pid: u32,
    /// When, in the clock of the map events; [`LATEST`](super::LATEST) for now.
    pub ts: u64,
    /// User instruction pointer.
    pub ip: u64,
    /// User stack pointer.
    pub sp: u64,
    /// Frame pointer: `rbp`, or `x29` on arm64.
    pub bp: u64,
    /// Link register `x30` on arm64; elsewhere ignored.
    pub lr: u64,
    /// Stack memory from `sp` upwards, as much as was copied.
    pub user_stack: &'a [u8],
    /// The CPU was in user mode.
    pub user_mode: bool,
}

/// Why a chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEnd {
    /// The thread's first function was reached.
    Root,
    /// The copy of the stack ended: outer frames are missing.
    Truncated,
    /// No way on was found: code without unwind tables and frame pointers, or memory
    /// of which no mapping is known.
    Lost,
}

/// An unwound user stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// The instruction pointer, then return addresses, innermost first.
    pub addresses: Vec<u64>,
    /// The same in terms of modules: equal for equal code in any process.
    pub points: Vec<CodePoint>,
    /// Why it ends.
    pub end: StackEnd,
}

/// Where a module's addresses lie for framehop.
#[derive(Clone, Copy, Debug)]
enum Slot {
    NotAdded,
    NoTables,
    At { base: u64, low: u64, len: u64 },
}

pub(super) struct Unwinder {
    unwinder: UnwinderNative<Arc<[u8]>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    slots: Vec<Slot>,
    table_bytes: usize,
}

impl Unwinder {
    pub(super) fn new() -> Unwinder {
        Unwinder {
            unwinder: UnwinderNative::new(),
            cache: CacheNative::new(),
            slots: Vec::new(),
            table_bytes: 0,
        }
    }

    pub(super) fn unwind(
        &mut self,
        modules: &mut Modules,
        found: Option<&Found>,
        stack: &RawStack<'_>,
    ) -> Unwound {
        let mut unwound = Unwound {
            addresses: Vec::new(),
            points: Vec::new(),
            end: StackEnd::Lost,
        };
        // framehop's arithmetic on wild values may overflow where that is checked.
        match contained(|| self.walk(modules, found, stack, &mut unwound)) {
            Some(end) => unwound.end = end,
            None => *self = Unwinder::new(),
        }
        unwound
    }

    fn walk(
        &mut self,
        modules: &mut Modules,
        found: Option<&Found>,
        stack: &RawStack<'_>,
        unwound: &mut Unwound,
    ) -> StackEnd {
        let place_of = |modules: &mut Modules, address: u64| {
            let found = found?;
            let mapping = found.space.find(address)?;
            Some(modules.place(stack.pid, found, mapping))
        };
        let mut regs = registers(stack);
        let mut read = |address: u64| word(stack, address).ok_or(());

        let place = place_of(modules, stack.ip);
        unwound.addresses.push(stack.ip);
        unwound.points.push(CodePoint::new(place, stack.ip));
        let mut frame =
            FrameAddress::from_instruction_pointer(self.translate(modules, place, stack.ip));
        while unwound.addresses.len() < FRAMES_MAX {
            let address =
                match self
                    .unwinder
                    .unwind_frame(frame, &mut regs, &mut self.cache, &mut read)
                {
                    Ok(Some(address)) => address,
                    Ok(None) => return StackEnd::Root,
                    Err(Error::CouldNotReadStack(at)) if is_above_copy(stack, at) => {
                        return StackEnd::Truncated;
                    }
                    Err(_) => return StackEnd::Lost,
                };
            // A return address that is not in code: the rule before it was wrong.
            let Some(place) = place_of(modules, address.wrapping_sub(1)) else {
                return StackEnd::Lost;
            };
            unwound.addresses.push(address);
            unwound
                .points
                .push(CodePoint::new(Some(place), address.wrapping_sub(1)));
            let translated = self.translate(modules, Some(place), address);
            let Some(next) = FrameAddress::from_return_address(translated) else {
                return StackEnd::Lost;
            };
            frame = next;
        }
        StackEnd::Lost
    }

    /// The address as framehop knows it. Where there are no unwind tables it stays
    /// what it is, outside all slots, and framehop follows the frame pointer.
    fn translate(&mut self, modules: &mut Modules, place: Option<Place>, address: u64) -> u64 {
        let outside = address & !FIRST_SLOT;
        let Some(place) = place else { return outside };
        match self.slot(modules, place.module) {
            Slot::At { base, low, len } => {
                let into = address.wrapping_sub(place.slide).wrapping_sub(low);
                if into <= len { base + into } else { outside }
            }
            Slot::NotAdded | Slot::NoTables => outside,
        }
    }

    fn slot(&mut self, modules: &mut Modules, id: ModuleId) -> Slot {
        let index = id.0 as usize;
        match self.slots.get(index) {
            None | Some(Slot::NotAdded) => {}
            Some(&slot) => return slot,
        }
        let slot = self.add(modules, id).unwrap_or(Slot::NoTables);
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Slot::NotAdded);
        }
        self.slots[index] = slot;
        slot
    }

    fn add(&mut self, modules: &mut Modules, id: ModuleId) -> Option<Slot> {
        let tables = modules.tables(id)?;
        let span = modules.get(id).layout.span()?;
        if tables.bytes() == 0 {
            return None;
        }
        if self.table_bytes + tables.bytes() > TABLE_BYTES_MAX {
            *self = Unwinder::new();
        }
        self.table_bytes += tables.bytes();
        let (eh_frame_svma, eh_frame) = tables.eh_frame.clone().unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = tables.eh_frame_hdr.clone().unzip();
        let sections = ExplicitModuleSectionInfo {
            base_svma: span.start,
            text_svma: tables.text.clone(),
            got_svma: tables.got.clone(),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            debug_frame: tables.debug_frame.clone(),
            ..ExplicitModuleSectionInfo::default()
        };
        let base = FIRST_SLOT + u64::from(id.0) * (2 * SPAN_MAX);
        let len = span.end - span.start;
        self.unwinder
            .add_module(Module::new(String::new(), base..base + len, base, sections));
        Some(Slot::At {
            base,
            low: span.start,
            len,
        })
    }
}

#[cfg(target_arch = "aarch64")]
fn registers(stack: &RawStack<'_>) -> UnwindRegsNative {
    // Pointer authentication uses the bits above a 48-bit user address.
    let mask = framehop::aarch64::PtrAuthMask((1 << 48) - 1);
    UnwindRegsNative::new_with_ptr_auth_mask(mask, stack.lr, stack.sp, stack.bp)
}

#[cfg(not(target_arch = "aarch64"))]
fn registers(stack: &RawStack<'_>) -> UnwindRegsNative {
    UnwindRegsNative::new(stack.ip, stack.sp, stack.bp)
}

fn word(stack: &RawStack<'_>, address: u64) -> Option<u64> {
    let offset = usize::try_from(address.checked_sub(stack.sp)?).ok()?;
    let bytes = stack.user_stack.get(offset..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

fn is_above_copy(stack: &RawStack<'_>, address: u64) -> bool {
    address >= stack.sp && address - stack.sp < STACK_BYTES_MAX
}
