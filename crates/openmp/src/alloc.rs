//! Memory allocators: the `omp_alloc` family.
//!
//! Before each block lies a `Header` that says where the memory of the C library begins and which allocator it is
//! charged to. Pools are charged with what GCC's runtime charges (the block, four words, the slack of an alignment), so
//! that as many blocks fit into a pool as there.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::{fork, message};

/// An allocator as programs name it: 0, a predefined one, or the address of an [`Allocator`].
pub type Handle = usize;

/// Stands for the default allocator of the thread.
pub const NULL_ALLOCATOR: Handle = 0;
/// The allocator of the initial device's ordinary memory.
pub const DEFAULT_MEM_ALLOC: Handle = 1;
/// `omp_thread_mem_alloc`: the last of the specification's.
pub const PREDEFINED_LAST: Handle = 8;
/// Of GCC 14. Its memory is not pinned here.
pub const GNU_PINNED_MEM_ALLOC: Handle = 200;
/// The numbers of GCC's own predefined allocators.
const EXTENSIONS: std::ops::RangeInclusive<Handle> = GNU_PINNED_MEM_ALLOC..=210;

/// `omp_low_lat_mem_space`: the last of the memory spaces.
const MEMSPACE_LAST: usize = 4;
const HIGH_BW_MEM_SPACE: usize = 3;

/// The names of predefined allocators, at their numbers.
pub const PREDEFINED: [&str; PREDEFINED_LAST + 1] = [
    "omp_null_allocator",
    "omp_default_mem_alloc",
    "omp_large_cap_mem_alloc",
    "omp_const_mem_alloc",
    "omp_high_bw_mem_alloc",
    "omp_low_lat_mem_alloc",
    "omp_cgroup_mem_alloc",
    "omp_pteam_mem_alloc",
    "omp_thread_mem_alloc",
];

/// The names of memory spaces, at their numbers.
pub const MEMSPACES: [&str; MEMSPACE_LAST + 1] = [
    "omp_default_mem_space",
    "omp_large_cap_mem_space",
    "omp_const_mem_space",
    "omp_high_bw_mem_space",
    "omp_low_lat_mem_space",
];

/// `omp_alloctrait_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trait {
    /// `omp_alloctrait_key_t`.
    pub key: u32,
    /// `omp_alloctrait_value_t`, or a number.
    pub value: usize,
}

/// Keys of traits.
#[expect(missing_docs, reason = "the names of the specification")]
pub mod key {
    pub const SYNC_HINT: u32 = 1;
    pub const ALIGNMENT: u32 = 2;
    pub const ACCESS: u32 = 3;
    pub const POOL_SIZE: u32 = 4;
    pub const FALLBACK: u32 = 5;
    pub const FB_DATA: u32 = 6;
    pub const PINNED: u32 = 7;
    pub const PARTITION: u32 = 8;
}

/// Values of traits.
#[expect(missing_docs, reason = "the names of the specification")]
pub mod value {
    pub const DEFAULT: usize = usize::MAX;
    pub const FALSE: usize = 0;
    pub const TRUE: usize = 1;
    pub const CONTENDED: usize = 3;
    pub const PRIVATE: usize = 6;
    pub const ALL: usize = 7;
    pub const CGROUP: usize = 10;
    pub const DEFAULT_MEM_FB: usize = 11;
    pub const NULL_FB: usize = 12;
    pub const ABORT_FB: usize = 13;
    pub const ALLOCATOR_FB: usize = 14;
    pub const ENVIRONMENT: usize = 15;
    pub const INTERLEAVED: usize = 18;
}

/// An allocator that ends with this.
#[derive(Debug)]
pub struct Owned(Handle);

impl Owned {
    /// A predefined one.
    pub(crate) fn predefined(handle: Handle) -> Self {
        debug_assert!(is_predefined(handle));
        Self(handle)
    }

    /// [`init_allocator`].
    pub(crate) fn made(memspace: usize, traits: &[Trait]) -> Option<Self> {
        let handle = init_allocator(memspace, traits);
        (handle != NULL_ALLOCATOR).then_some(Self(handle))
    }

    /// For requests, as long as this lives.
    pub fn handle(&self) -> Handle {
        self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: predefined, or made for this; who uses the handle longer breaks the word of `handle`, which only
        // unsafe functions rely on.
        unsafe { destroy_allocator(self.0) };
    }
}

/// What to do when an allocator has nothing left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fallback {
    DefaultMem,
    Null,
    Abort,
    Allocator(Handle),
}

/// What the traits of an allocator say, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules {
    alignment: usize,
    /// `None`: bounded by the machine alone.
    pool_size: Option<usize>,
    fallback: Fallback,
}

/// Not something that an allocator can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused;

/// An allocator that a program has made.
#[derive(Debug)]
pub struct Allocator {
    rules: Rules,
    used: AtomicUsize,
}

/// Four words, as in GCC's runtime.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    base: *mut c_void,
    charged: usize,
    allocator: Handle,
    /// Bytes that the program asked for.
    size: usize,
}

const WORD: usize = size_of::<*mut c_void>();

impl Rules {
    /// The later of two traits of the same key counts.
    fn of(memspace: usize, traits: &[Trait]) -> Result<Self, Refused> {
        if memspace > MEMSPACE_LAST {
            return Err(Refused);
        }
        let (mut alignment, mut pool_size) = (1, usize::MAX);
        let (mut fallback, mut fb_data) = (value::DEFAULT_MEM_FB, NULL_ALLOCATOR);
        let mut is_pinned = false;
        let one_of = |value, range: std::ops::RangeInclusive<usize>| {
            if value == value::DEFAULT || range.contains(&value) {
                Ok(())
            } else {
                Err(Refused)
            }
        };
        for &Trait { key, value } in traits {
            match key {
                key::SYNC_HINT => one_of(value, value::CONTENDED..=value::PRIVATE)?,
                key::ALIGNMENT => match value {
                    value::DEFAULT => alignment = 1,
                    value if value.is_power_of_two() => alignment = value,
                    _ => return Err(Refused),
                },
                key::ACCESS => one_of(value, value::ALL..=value::CGROUP)?,
                // The value that stands for the default is also the largest number: no bound.
                key::POOL_SIZE => pool_size = value,
                key::FALLBACK => {
                    one_of(value, value::DEFAULT_MEM_FB..=value::ALLOCATOR_FB)?;
                    fallback = value;
                }
                key::FB_DATA => fb_data = value,
                key::PINNED => {
                    one_of(value, value::FALSE..=value::TRUE)?;
                    is_pinned = value == value::TRUE;
                }
                // Where pages lie is decided by who touches them first, whatever is asked for.
                key::PARTITION => one_of(value, value::ENVIRONMENT..=value::INTERLEAVED)?,
                _ => return Err(Refused),
            }
        }
        // As GCC's runtime without memkind: memory of these kinds is not to be had, and saying so lets programs
        // choose something else.
        if is_pinned || memspace == HIGH_BW_MEM_SPACE {
            return Err(Refused);
        }
        Ok(Self {
            alignment: alignment.max(WORD),
            pool_size: (pool_size != usize::MAX).then_some(pool_size),
            fallback: match fallback {
                value::NULL_FB => Fallback::Null,
                value::ABORT_FB => Fallback::Abort,
                value::ALLOCATOR_FB => Fallback::Allocator(fb_data),
                _ => Fallback::DefaultMem,
            },
        })
    }
}

impl Allocator {
    /// Charges the pool with `bytes` instead of what it was charged with before; false when it does not hold that.
    fn charge(&self, bytes: usize, before: usize) -> bool {
        let Some(pool_size) = self.rules.pool_size else {
            return true;
        };
        // Relaxed: a count; the memory itself is handed over by who passes the pointer on.
        self.used
            .fetch_update(Relaxed, Relaxed, |used| {
                (used - before)
                    .checked_add(bytes)
                    .filter(|&used| used <= pool_size)
            })
            .is_ok()
    }

    fn discharge(&self, bytes: usize) {
        if self.rules.pool_size.is_some() {
            self.used.fetch_sub(bytes, Relaxed);
        }
    }

    /// Takes back that a block was given up. The pool may be fuller than allowed then, for a moment.
    fn recharge(&self, bytes: usize) {
        if self.rules.pool_size.is_some() {
            self.used.fetch_add(bytes, Relaxed);
        }
    }
}

/// Makes an allocator, or gives [`NULL_ALLOCATOR`] where traits or memory space are none that there are.
pub fn init_allocator(memspace: usize, traits: &[Trait]) -> Handle {
    match Rules::of(memspace, traits) {
        Ok(rules) => {
            let used = AtomicUsize::new(0);
            Box::into_raw(Box::new(Allocator { rules, used })).expose_provenance()
        }
        Err(Refused) => NULL_ALLOCATOR,
    }
}

/// Ends an allocator. Predefined ones stay.
///
/// # Safety
/// The handle is predefined or from [`init_allocator`], and nothing uses it afterwards.
pub unsafe fn destroy_allocator(handle: Handle) {
    if !is_predefined(handle) {
        // SAFETY: from `Box::into_raw` in `init_allocator`, and given up by the caller.
        drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<Allocator>(handle)) });
    }
}

fn is_predefined(handle: Handle) -> bool {
    handle <= PREDEFINED_LAST || EXTENSIONS.contains(&handle)
}

/// # Safety
/// The handle is predefined or of an allocator that has not been destroyed.
unsafe fn made<'a>(handle: Handle) -> Option<&'a Allocator> {
    (!is_predefined(handle)).then(|| {
        // SAFETY: from `init_allocator`, alive by the caller's word.
        unsafe { &*ptr::with_exposed_provenance::<Allocator>(handle) }
    })
}

/// A request for memory.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Bytes.
    pub size: usize,
    /// A power of two; 1 where nothing is asked for.
    pub alignment: usize,
    /// What the memory comes from.
    pub allocator: Handle,
    /// Whether it has to be zero.
    pub is_zeroed: bool,
    /// The thread's default allocator: what [`NULL_ALLOCATOR`] stands for.
    pub default: Handle,
}

/// Allocators that fall back on each other in a circle end here.
const FALLBACKS_MAX: usize = 64;

/// Memory, or null where the allocator has none left and its fallback is to say so, or where nothing or an
/// alignment that is no power of two is asked for.
///
/// # Safety
/// The handles are predefined or of allocators that have not been destroyed.
pub unsafe fn allocate(request: Request) -> *mut c_void {
    // SAFETY: the caller's promise; nothing is charged to the null allocator.
    unsafe { allocate_instead(request, (NULL_ALLOCATOR, 0)) }
}

/// [`allocate`], where `(handle, bytes)` is what a block that will be freed is charged to: if the new block comes from
/// the same pool the charge has moved over.
///
/// # Safety
/// As [`allocate`].
unsafe fn allocate_instead(request: Request, old: (Handle, usize)) -> *mut c_void {
    if request.size == 0 || !request.alignment.is_power_of_two() {
        return ptr::null_mut();
    }
    let mut handle = request.allocator;
    for _ in 0..FALLBACKS_MAX {
        if handle == NULL_ALLOCATOR {
            handle = match request.default {
                NULL_ALLOCATOR => DEFAULT_MEM_ALLOC,
                default => default,
            };
        }
        // SAFETY: the caller's promise; fallbacks were handles when the allocator was made.
        let allocator = unsafe { made(handle) };
        let before = if handle == old.0 { old.1 } else { 0 };
        let block = allocate_from(handle, allocator, request, before);
        let Some(allocator) = allocator.filter(|_| block.is_null()) else {
            return block;
        };
        match allocator.rules.fallback {
            Fallback::DefaultMem => handle = DEFAULT_MEM_ALLOC,
            Fallback::Null => break,
            Fallback::Abort => message::out_of_memory(request.size),
            Fallback::Allocator(other) => handle = other,
        }
    }
    ptr::null_mut()
}

/// What a block takes altogether; `None` when no address space would hold it.
fn charged_for(size: usize, alignment: usize) -> Option<usize> {
    size.checked_add(size_of::<Header>())?
        .checked_add(alignment - WORD)
}

fn allocate_from(
    handle: Handle,
    allocator: Option<&Allocator>,
    request: Request,
    charged_before: usize,
) -> *mut c_void {
    let alignment = allocator
        .map_or(WORD, |allocator| allocator.rules.alignment)
        .max(request.alignment);
    let Some(charged) = charged_for(request.size, alignment) else {
        return ptr::null_mut();
    };
    if !allocator.is_none_or(|allocator| allocator.charge(charged, charged_before)) {
        return ptr::null_mut();
    }
    // SAFETY: any size may be asked for.
    let base = unsafe {
        if request.is_zeroed {
            libc::calloc(1, charged)
        } else {
            libc::malloc(charged)
        }
    };
    if base.is_null() {
        if let Some(allocator) = allocator {
            allocator.discharge(charged);
            allocator.recharge(charged_before);
        }
        return base;
    }
    let behind_header = base.addr() + size_of::<Header>();
    let offset = behind_header.next_multiple_of(alignment) - base.addr();
    // SAFETY: the C library aligns to two words, so `offset` is at most a header and `alignment - WORD`, and
    // `charged` holds `size` bytes more.
    let block = unsafe { base.byte_add(offset) };
    let header = Header {
        base,
        charged,
        allocator: handle,
        size: request.size,
    };
    // SAFETY: a header's worth of bytes lies between `base` and `block`, and `block` is aligned to a word.
    unsafe { header_of(block).write(header) };
    block
}

fn header_of(block: *mut c_void) -> *mut Header {
    block.cast::<Header>().wrapping_sub(1)
}

/// Frees a block; null is nothing.
///
/// # Safety
/// The block is from [`allocate`] or [`reallocate`], not freed yet, and its allocator is still there.
pub unsafe fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: `allocate` wrote the header.
    let header = unsafe { header_of(block).read() };
    // SAFETY: the caller's promise.
    if let Some(allocator) = unsafe { made(header.allocator) } {
        allocator.discharge(header.charged);
    }
    // SAFETY: `base` is from the C library and has not been freed.
    unsafe { libc::free(header.base) };
}

/// A block of another size with the content of the old one, which is freed. Where that fails the old one stays and
/// null is given. [`NULL_ALLOCATOR`] stands for the allocator of the old block.
///
/// # Safety
/// As [`free`] and [`allocate`].
pub unsafe fn reallocate(block: *mut c_void, request: Request) -> *mut c_void {
    if block.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { allocate(request) };
    }
    if request.size == 0 {
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: `allocate` wrote the header.
    let old = unsafe { header_of(block).read() };
    let allocator = match request.allocator {
        NULL_ALLOCATOR => old.allocator,
        allocator => allocator,
    };
    // SAFETY: the caller's promise.
    let is_plain = unsafe { made(allocator) }
        .is_none_or(|made| made.rules.pool_size.is_none() && made.rules.alignment <= WORD);
    // The C library may be able to grow the block where it is.
    if is_plain
        && allocator == old.allocator
        && request.alignment <= WORD
        && let Some(charged) = charged_for(request.size, WORD)
        && block.addr() - old.base.addr() == size_of::<Header>()
    {
        // SAFETY: `base` is from the C library.
        let base = unsafe { libc::realloc(old.base, charged) };
        if !base.is_null() {
            // SAFETY: there is room for a header and `size` bytes.
            let block = unsafe { base.byte_add(size_of::<Header>()) };
            let header = Header {
                base,
                charged,
                allocator,
                size: request.size,
            };
            // SAFETY: as above.
            unsafe { header_of(block).write(header) };
            return block;
        }
    }
    let request = Request {
        allocator,
        is_zeroed: false,
        ..request
    };
    // SAFETY: the caller's promise.
    let new = unsafe { allocate_instead(request, (old.allocator, old.charged)) };
    if !new.is_null() {
        // SAFETY: `allocate` wrote the header.
        let is_charge_moved = unsafe { header_of(new).read() }.allocator == old.allocator;
        // SAFETY: both blocks hold that much, and they are different ones.
        unsafe {
            ptr::copy_nonoverlapping(
                block.cast::<u8>(),
                new.cast::<u8>(),
                old.size.min(request.size),
            );
        }
        if is_charge_moved {
            // SAFETY: from the C library, and the pool is charged for the new block alone.
            unsafe { libc::free(old.base) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { free(block) };
        }
    }
    new
}

/// Addresses of Fortran's allocatables and pointers whose memory is from an allocator: only this tells them from those
/// that `free` takes.
static MARKED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// What `change` makes of them, while the process does not fork: the child would find them locked for ever.
fn marked<T>(change: impl FnOnce(&mut BTreeSet<usize>) -> T) -> T {
    let _held = fork::hold();
    change(&mut MARKED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Marks a block as one from an allocator; null is nothing.
pub fn mark(block: *mut c_void) {
    if !block.is_null() {
        marked(|all| all.insert(block.addr()));
    }
}

/// Whether a block was marked. It no longer is: who asks is about to free it or to have another one in its place.
pub fn unmark(block: *mut c_void) -> bool {
    marked(|all| all.remove(&block.addr()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(size: usize, allocator: Handle) -> Request {
        Request {
            size,
            alignment: 1,
            allocator,
            is_zeroed: false,
            default: NULL_ALLOCATOR,
        }
    }

    fn with(traits: &[(u32, usize)]) -> Handle {
        let traits: Vec<Trait> = traits
            .iter()
            .map(|&(key, value)| Trait { key, value })
            .collect();
        init_allocator(0, &traits)
    }

    #[test]
    fn a_mark_is_found_once_and_null_has_none() {
        let blocks = [0_u8; 2];
        let [first, second] = [0, 1].map(|at| (&raw const blocks[at]).cast_mut().cast());
        mark(first);
        mark(first);
        mark(ptr::null_mut());
        assert!(!unmark(second));
        assert!(unmark(first));
        assert!(!unmark(first));
        assert!(!unmark(ptr::null_mut()));
    }

    #[test]
    fn what_is_no_trait_is_refused() {
        for traits in [
            [(0, 0)],
            [(9, 0)],
            [(key::SYNC_HINT, 2)],
            [(key::ALIGNMENT, 24)],
            [(key::ALIGNMENT, 0)],
            [(key::ACCESS, 6)],
            [(key::FALLBACK, 10)],
            [(key::PINNED, 2)],
            [(key::PINNED, value::TRUE)],
            [(key::PARTITION, 19)],
        ] {
            assert_eq!(with(&traits), NULL_ALLOCATOR, "{traits:?}");
        }
        assert_eq!(init_allocator(5, &[]), NULL_ALLOCATOR);
        assert_eq!(init_allocator(HIGH_BW_MEM_SPACE, &[]), NULL_ALLOCATOR);
    }

    #[test]
    fn the_default_of_each_trait_is_accepted() {
        for key in 1..=8 {
            let handle = with(&[(key, value::DEFAULT)]);
            assert_ne!(handle, NULL_ALLOCATOR, "key {key}");
            // SAFETY: made above.
            unsafe { destroy_allocator(handle) };
        }
    }

    #[test]
    fn blocks_are_aligned_and_hold_what_was_asked_for() {
        for (of_allocator, of_request) in [(1, 1), (8, 64), (4096, 16), (64, 1 << 16)] {
            let handle = with(&[(key::ALIGNMENT, of_allocator)]);
            let asked = Request {
                alignment: of_request,
                is_zeroed: true,
                ..request(100, handle)
            };
            // SAFETY: the allocator is there; the block is used within its size and freed once.
            unsafe {
                let block = allocate(asked).cast::<u8>();
                assert_eq!(block.addr() % of_allocator.max(of_request), 0);
                assert!((0..100).all(|at| *block.add(at) == 0));
                block.write_bytes(7, 100);
                free(block.cast());
                destroy_allocator(handle);
            }
        }
    }

    /// GCC's runtime charges four words to a block, and what alignment may waste.
    #[test]
    fn a_pool_holds_as_many_blocks_as_in_gccs_runtime() {
        let handle = with(&[(key::POOL_SIZE, 4096), (key::FALLBACK, value::NULL_FB)]);
        // SAFETY: the allocator is there, blocks are freed once.
        unsafe {
            assert!(allocate(request(4096 - 31, handle)).is_null());
            let all = allocate(request(4096 - 32, handle));
            assert!(!all.is_null());
            assert!(allocate(request(1, handle)).is_null());
            free(all);
            let some = allocate(request(2048, handle));
            assert!(!some.is_null());
            let more = reallocate(some, request(4000, handle));
            assert!(
                !more.is_null(),
                "the old block's charge counts as given back"
            );
            assert!(reallocate(more, request(5000, handle)).is_null());
            free(more);
            assert!(!all.is_null());
            let again = allocate(request(4096 - 32, handle));
            assert!(!again.is_null(), "nothing is left charged");
            free(again);
            destroy_allocator(handle);
        }
    }

    #[test]
    fn an_empty_pool_falls_back_as_told() {
        let second = with(&[(key::POOL_SIZE, 1 << 20)]);
        let first = with(&[
            (key::POOL_SIZE, 64),
            (key::FALLBACK, value::ALLOCATOR_FB),
            (key::FB_DATA, second),
        ]);
        let default = with(&[(key::POOL_SIZE, 64)]);
        let circle = with(&[(key::POOL_SIZE, 64), (key::FALLBACK, value::ALLOCATOR_FB)]);
        // SAFETY: the allocators are there, blocks are freed once.
        unsafe {
            let block = allocate(request(1000, first));
            assert_eq!(header_of(block).read().allocator, second);
            free(block);
            let block = allocate(request(1000, default));
            assert_eq!(header_of(block).read().allocator, DEFAULT_MEM_ALLOC);
            free(block);
            let endless = Request {
                default: circle,
                ..request(1000, circle)
            };
            assert!(allocate(endless).is_null());
            for handle in [first, second, default, circle] {
                destroy_allocator(handle);
            }
        }
    }

    #[test]
    fn sizes_that_no_machine_has_give_null() {
        // SAFETY: predefined allocators.
        unsafe {
            assert!(allocate(request(usize::MAX, 1)).is_null());
            assert!(allocate(request(usize::MAX - 40, 1)).is_null());
            assert!(allocate(request(0, 1)).is_null());
            assert!(
                allocate(Request {
                    alignment: 3,
                    ..request(8, 1)
                })
                .is_null()
            );
            assert!(
                allocate(Request {
                    alignment: 1 << 63,
                    ..request(8, 1)
                })
                .is_null()
            );
        }
    }

    #[test]
    fn content_survives_each_way_of_reallocating() {
        let aligned = with(&[(key::ALIGNMENT, 256)]);
        for (from, to) in [
            (1, 1),
            (1, aligned),
            (aligned, 2),
            (aligned, aligned),
            (1, NULL_ALLOCATOR),
        ] {
            for (old, new) in [(10, 1000), (1000, 10), (64, 64)] {
                // SAFETY: blocks are used within their sizes and freed once.
                unsafe {
                    let block = allocate(request(old, from)).cast::<u8>();
                    for at in 0..old {
                        block.add(at).write(at as u8);
                    }
                    let block = reallocate(block.cast(), request(new, to)).cast::<u8>();
                    assert!((0..old.min(new)).all(|at| block.add(at).read() == at as u8));
                    assert!(reallocate(block.cast(), request(0, to)).is_null());
                }
            }
        }
        // SAFETY: made above, no block is left.
        unsafe { destroy_allocator(aligned) };
    }
}
