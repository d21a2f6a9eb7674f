//! Where the runtime's own memory comes from: the C library, and where that has none the program ends as with GCC's runtime,
//! whatever asked for it. Rust would abort it.

use std::alloc::{GlobalAlloc, Layout, System};

use amdahl_openmp::message;

struct OrEnd;

#[global_allocator]
static MEMORY: OrEnd = OrEnd;

fn there(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        message::out_of_memory(bytes);
    }
    memory
}

// SAFETY: the system's allocator, less the answer that there is no memory. Nothing unwinds.
unsafe impl GlobalAlloc for OrEnd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        there(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        there(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        there(unsafe { System.realloc(block, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}
