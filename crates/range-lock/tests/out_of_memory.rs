//! A lock that is too large for memory is an error.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};

use amdahl_range_lock::{RangeLock, SegmentsError};

/// Has so much for anybody, and no more.
const MOST: usize = 4 << 20;

struct Small;

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
fn segments_for_which_there_is_no_memory_are_refused() {
    let most = RangeLock::SEGMENTS_MAX;
    let error = RangeLock::segmented(1, most).unwrap_err();
    assert_eq!(error, SegmentsError::OutOfMemory(most));
    assert!(error.to_string().contains("65536"), "{error}");
    let smaller = RangeLock::segmented(1, most / 4).expect("2 MiB");
    drop(smaller.write(0..2));
}
