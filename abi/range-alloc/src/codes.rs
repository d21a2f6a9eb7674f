//! Codes of the header, and the types that cross the border.

use std::ffi::{CStr, c_int};

use amdahl_range_alloc::{AllocError, ArenaError, FreeError, Policy, Request, Segment, State};

pub const OK: c_int = 0;
pub const NULL: c_int = 1;
pub const NO_MEMORY: c_int = 2;
pub const BAD_ARENA: c_int = 3;
pub const OUTSIDE: c_int = 15;
pub const BAD_POLICY: c_int = 18;
pub const NOT_ALLOCATED: c_int = 20;
pub const UNKNOWN: c_int = 99;

pub fn text(code: c_int) -> &'static CStr {
    match code {
        OK => c"no error",
        NULL => c"null pointer",
        NO_MEMORY => c"no memory for bookkeeping",
        BAD_ARENA => c"no such arena",
        10 => c"size 0",
        11 => c"size exceeds 64 bits in granules",
        12 => c"alignment is not a power of two up to 2^40",
        13 => c"phase does not go with the alignment",
        14 => c"zone is not in the arena",
        OUTSIDE => c"not in the arena's granules",
        16 => c"an allocation is in the way",
        17 => c"no gap fits",
        BAD_POLICY => c"no such policy",
        NOT_ALLOCATED => c"nothing is allocated there; freed twice?",
        21 => c"freed already, lazily",
        22 => c"inside of an allocation",
        23 => c"the allocation has another size",
        24 => c"not a part of one allocation",
        _ => c"unknown error",
    }
}

pub fn of_arena(error: &ArenaError) -> c_int {
    match error {
        ArenaError::OutOfMemory => NO_MEMORY,
        ArenaError::Request(error) => of_alloc(error),
        _ => BAD_ARENA,
    }
}

pub fn of_alloc(error: &AllocError) -> c_int {
    match error {
        AllocError::ZeroSize => 10,
        AllocError::TooLarge { .. } => 11,
        AllocError::Align { .. } => 12,
        AllocError::Phase { .. } => 13,
        AllocError::Zone { .. } => 14,
        AllocError::Outside { .. } => OUTSIDE,
        AllocError::Occupied { .. } => 16,
        AllocError::NoSpace { .. } => 17,
        AllocError::OutOfMemory => NO_MEMORY,
        _ => UNKNOWN,
    }
}

pub fn of_free(error: &FreeError) -> c_int {
    match error {
        FreeError::Outside { .. } => OUTSIDE,
        FreeError::NotAllocated { .. } => NOT_ALLOCATED,
        FreeError::FreedLazily { .. } => 21,
        FreeError::Inside { .. } => 22,
        FreeError::Size { .. } => 23,
        FreeError::Part { .. } => 24,
        FreeError::OutOfMemory => NO_MEMORY,
        _ => UNKNOWN,
    }
}

/// `struct ara_request`.
#[repr(C)]
pub struct AraRequest {
    size: u64,
    align: u64,
    phase: u64,
    zone_start: u64,
    zone_end: u64,
    policy: u32,
    reserved: u32,
}

impl AraRequest {
    pub fn request(&self) -> Result<Request, c_int> {
        let policy = match self.policy {
            0 => Policy::LowestAddress,
            1 => Policy::NextFit,
            2 => Policy::BestFit,
            _ => return Err(BAD_POLICY),
        };
        let end = if self.zone_end == 0 {
            u64::MAX
        } else {
            self.zone_end
        };
        let align = if self.align == 0 { 1 } else { self.align };
        let request = Request::new(self.size).align(align).phase(self.phase);
        Ok(request.zone(self.zone_start..end).policy(policy))
    }
}

/// `struct ara_block`.
#[repr(C)]
pub struct AraBlock {
    pub start: u64,
    pub size: u64,
    pub is_lazy: u32,
    pub is_free: u32,
}

impl From<Segment> for AraBlock {
    fn from(segment: Segment) -> AraBlock {
        AraBlock {
            start: segment.range.start,
            size: segment.range.end - segment.range.start,
            is_lazy: u32::from(segment.state == State::Lazy),
            is_free: u32::from(segment.state == State::Free),
        }
    }
}

/// `struct ara_stats`.
#[repr(C)]
pub struct AraStats {
    pub units: u64,
    pub busy_units: u64,
    pub lazy_units: u64,
    pub free_units: u64,
    pub allocations: u64,
    pub lazy_allocations: u64,
    pub largest_free: u64,
    pub footprint_bytes: u64,
}

/// `struct ara_shared_stats`.
#[repr(C)]
pub struct AraSharedStats {
    pub units: u64,
    pub busy_units: u64,
    pub lazy_units: u64,
    pub held_units: u64,
    pub spans: u64,
    pub span_units: u64,
    pub footprint_bytes: u64,
}

/// `ara_visit`.
pub type AraVisit = Option<unsafe extern "C" fn(*mut std::ffi::c_void, *const AraBlock)>;

/// `ara_retire`.
pub type AraRetire = Option<unsafe extern "C" fn(*mut std::ffi::c_void, u64, u64)>;
