//! Codes of the header, and the types that cross the border.

use std::ffi::{CStr, c_int};
use std::mem::offset_of;

use amdahl_range_alloc::{
    AllocError, ArenaError, Fragmentation, FreeError, LayoutError, Policy, Request, Segment,
    SharedConfig, SharedStats, State, Stats,
};

pub const OK: c_int = 0;
pub const NULL: c_int = 1;
pub const NO_MEMORY: c_int = 2;
pub const BAD_LAYOUT: c_int = 4;
pub const STOPPED: c_int = 5;
pub const BAD_CONFIG: c_int = 9;
pub const OUTSIDE: c_int = 15;
pub const BAD_POLICY: c_int = 18;
pub const BAD_RESERVED: c_int = 19;
pub const NOT_ALLOCATED: c_int = 20;
pub const UNKNOWN: c_int = 99;

pub fn text(code: c_int) -> &'static CStr {
    match code {
        OK => c"no error",
        NULL => c"null pointer",
        NO_MEMORY => c"no memory for bookkeeping",
        BAD_LAYOUT => c"not the layout of an arena",
        STOPPED => c"the function that was given said so",
        6 => c"the arena has no addresses",
        7 => c"granule is not a power of two up to 2^40",
        8 => c"the arena does not begin and end at multiples of the granule",
        BAD_CONFIG => c"not a configuration that this library knows",
        10 => c"size 0",
        11 => c"size exceeds 64 bits in granules",
        12 => c"alignment is not a power of two up to 2^40",
        13 => c"phase does not go with the alignment",
        14 => c"zone is not in the arena",
        OUTSIDE => c"not in the arena's granules",
        16 => c"an allocation is in the way",
        17 => c"no gap fits",
        BAD_POLICY => c"no such policy",
        BAD_RESERVED => c"what is reserved is not 0",
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
        ArenaError::Empty { .. } => 6,
        ArenaError::Granule { .. } => 7,
        ArenaError::Uneven { .. } => 8,
        _ => UNKNOWN,
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

/// The code, and the line that is wrong if it is one.
pub fn of_layout(error: &LayoutError) -> (c_int, u64) {
    let is_memory = match error {
        LayoutError::Arena(error) => of_arena(error) == NO_MEMORY,
        LayoutError::Block { error, .. } => of_alloc(error) == NO_MEMORY,
        _ => false,
    };
    let line = match error {
        LayoutError::Line(line) | LayoutError::Block { line, .. } => *line as u64,
        _ => 0,
    };
    (if is_memory { NO_MEMORY } else { BAD_LAYOUT }, line)
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
        if self.reserved != 0 {
            return Err(BAD_RESERVED);
        }
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

/// `struct ara_shared_config`.
#[repr(C)]
#[derive(Default)]
pub struct AraSharedConfig {
    bytes: u64,
    start: u64,
    end: u64,
    granule: u64,
    slots: u64,
    span: u64,
    magazine_largest: u64,
    magazine_depth: u64,
}

impl AraSharedConfig {
    /// Bytes of the first version; what it has not is 0.
    const LEAST: usize = offset_of!(AraSharedConfig, magazine_depth) + size_of::<u64>();
    /// What is said to be longer was not filled in.
    const MOST: usize = 4096;

    /// What a caller says that may know less of it than this library, or more.
    ///
    /// # Safety
    /// Null, or valid for as many bytes as its first word says.
    pub unsafe fn read(from: *const AraSharedConfig) -> Result<AraSharedConfig, c_int> {
        if from.is_null() {
            return Err(NULL);
        }
        // SAFETY: it is not null, and its first word is always there.
        let bytes = unsafe { (&raw const (*from).bytes).read() };
        let bytes = usize::try_from(bytes).map_err(|_| BAD_CONFIG)?;
        if !(Self::LEAST..=Self::MOST).contains(&bytes) {
            return Err(BAD_CONFIG);
        }
        // SAFETY: the caller says that so many bytes are there.
        let said = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
        let (known, unknown) = said.split_at(bytes.min(size_of::<AraSharedConfig>()));
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(BAD_CONFIG);
        }
        let mut config = AraSharedConfig::default();
        // SAFETY: both are as long at least, whatever bits they have are numbers, and the one is our own.
        unsafe {
            let to = (&raw mut config).cast::<u8>();
            to.copy_from_nonoverlapping(known.as_ptr(), known.len());
        }
        Ok(config)
    }

    pub fn config(&self) -> SharedConfig {
        // What does not fit is more than there is memory for.
        let all = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut config = SharedConfig::new(self.start..self.end)
            .granule(self.granule.max(1))
            .magazines(self.magazine_largest, all(self.magazine_depth));
        if self.slots != 0 {
            config = config.slots(all(self.slots));
        }
        if self.span != 0 {
            config = config.span(self.span);
        }
        config
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
    units: u64,
    busy_units: u64,
    lazy_units: u64,
    free_units: u64,
    allocations: u64,
    lazy_allocations: u64,
    largest_free: u64,
    levels: u64,
    leaves: u64,
    inner_nodes: u64,
    alignments: u64,
    footprint_bytes: u64,
}

impl From<Stats> for AraStats {
    fn from(now: Stats) -> AraStats {
        AraStats {
            units: now.units,
            busy_units: now.busy_units,
            lazy_units: now.lazy_units,
            free_units: now.free_units,
            allocations: now.allocations as u64,
            lazy_allocations: now.lazy_allocations as u64,
            largest_free: now.largest_free,
            levels: now.levels as u64,
            leaves: now.leaves as u64,
            inner_nodes: now.inner_nodes as u64,
            alignments: now.alignments as u64,
            footprint_bytes: now.footprint_bytes as u64,
        }
    }
}

/// `struct ara_shared_stats`.
#[repr(C)]
pub struct AraSharedStats {
    units: u64,
    busy_units: u64,
    lazy_units: u64,
    free_units: u64,
    allocations: u64,
    lazy_allocations: u64,
    largest_free: u64,
    levels: u64,
    leaves: u64,
    inner_nodes: u64,
    alignments: u64,
    held_units: u64,
    cached_units: u64,
    spans: u64,
    span_units: u64,
    footprint_bytes: u64,
}

impl From<SharedStats> for AraSharedStats {
    fn from(now: SharedStats) -> AraSharedStats {
        AraSharedStats {
            units: now.units,
            busy_units: now.busy_units,
            lazy_units: now.lazy_units,
            free_units: now.free_units,
            allocations: now.allocations as u64,
            lazy_allocations: now.lazy_allocations as u64,
            largest_free: now.largest_free,
            levels: now.levels as u64,
            leaves: now.leaves as u64,
            inner_nodes: now.inner_nodes as u64,
            alignments: now.alignments as u64,
            held_units: now.held_units,
            cached_units: now.cached_units,
            spans: now.spans as u64,
            span_units: now.span_units,
            footprint_bytes: now.footprint_bytes as u64,
        }
    }
}

/// `struct ara_fragmentation`.
#[repr(C)]
pub struct AraFragmentation {
    gaps: [u64; 64],
    units: [u64; 64],
}

impl From<Fragmentation> for AraFragmentation {
    fn from(Fragmentation { gaps, units }: Fragmentation) -> AraFragmentation {
        AraFragmentation { gaps, units }
    }
}

impl AraFragmentation {
    pub fn unusable(&self, size: u64) -> f64 {
        let (gaps, units) = (self.gaps, self.units);
        Fragmentation { gaps, units }.unusable(size)
    }
}

/// `ara_visit`.
pub type AraVisit = Option<unsafe extern "C" fn(*mut std::ffi::c_void, *const AraBlock)>;

/// `ara_retire`.
pub type AraRetire = Option<unsafe extern "C" fn(*mut std::ffi::c_void, u64, u64)>;

/// `ara_write`.
pub type AraWrite =
    Option<unsafe extern "C" fn(*mut std::ffi::c_void, *const std::ffi::c_char, usize) -> c_int>;
