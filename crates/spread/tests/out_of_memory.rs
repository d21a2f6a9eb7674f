//! What is too large for memory is an error, not the end of the process.
#![cfg(not(miri))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::panic::catch_unwind;
use std::sync::Arc;

use amdahl_spread::{
    Buckets, CpuMask, HashedMutexes, Histogram, HistogramError, LlcMap, MaskError, OutOfMemory,
    Placement, SparseMask,
};
use amdahl_topology::Topology;

/// Has 256 MiB for anybody, and no more: the kernel promises more than there is, and ends whoever believes it.
struct Small;

const MOST: usize = 256 << 20;

// SAFETY: it is the system's allocator, or answers that there is no memory.
unsafe impl GlobalAlloc for Small {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST {
            return std::ptr::null_mut();
        }
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller; it came from there.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static SMALL: Small = Small;

/// It ended the process.
#[test]
fn a_mask_of_all_numbers_is_refused() {
    let (cpus, bytes) = (u32::MAX, 32 << 30);
    let error = SparseMask::new(cpus).unwrap_err();
    assert_eq!(error, MaskError::OutOfMemory { cpus, bytes });
    let said = error.to_string();
    assert!(
        said.contains("4294967295") && said.contains("34359738368"),
        "{said}"
    );
    let (bits, bytes) = (1, (u64::from(cpus)) * 64);
    let error = SparseMask::with_bits_per_line(cpus, bits).unwrap_err();
    assert_eq!(error, MaskError::OutOfMemory { cpus, bytes });
    let bytes = 1 << 29;
    assert_eq!(
        CpuMask::new(cpus).unwrap_err(),
        MaskError::OutOfMemory { cpus, bytes }
    );
}

#[test]
fn more_locks_than_there_is_memory_for_are_refused() {
    let locks = NonZeroUsize::MAX;
    let hasher = std::hash::RandomState::new;
    let made = HashedMutexes::<u32, _>::try_with_hasher(locks, hasher());
    let bytes = 128 << 30;
    assert_eq!(made.err(), Some(OutOfMemory { bytes }));
    let said = catch_unwind(|| HashedMutexes::<u32>::with_locks(locks)).unwrap_err();
    let said = said.downcast_ref::<String>().expect("a text");
    assert!(said.contains("no memory for 137438953472 bytes"), "{said}");
}

/// Its rows are address space, which the process may be short of.
#[test]
fn a_histogram_that_is_too_large_is_refused() {
    // On 32 bits there are no more than 4 GiB at all.
    #[cfg(target_pointer_width = "64")]
    {
        // Beyond what it has: a sanitizer has terabytes.
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let most = pages * 4096 + (4 << 30);
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: the limit is a valid structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    }
    let topology = Topology::synthetic("4096 llc x 1 core").expect("valid");
    let map = Arc::new(LlcMap::new(&topology, 4096));
    let finest = Buckets::new(Buckets::PRECISION_MAX, u64::MAX).unwrap();
    let made = Histogram::try_on(finest, Placement::PerLlc, Arc::clone(&map));
    let stride = ((finest.count() + 2) * 8).next_multiple_of(4096);
    let bytes = stride as u64 * 4096;
    assert_eq!(
        made.err(),
        Some(HistogramError::OutOfMemory(OutOfMemory { bytes }))
    );
    let coarse = Buckets::new(0, 1000).unwrap();
    assert!(Histogram::try_on(coarse, Placement::PerLlc, map).is_ok());
}
