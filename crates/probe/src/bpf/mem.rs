//! The programs of `mem.bpf.c`.

use super::programs::{Programs, needed, object, wanted};

/// Page faults, the address-space lock, the kernel's own address ranges.
///
/// The ends of page faults come by software events, which the recorder opens for the programs
/// `on_minor_fault` and `on_major_fault`.
pub static MEM: Programs = Programs {
    object: object!("mem"),
    tracepoints: &[
        needed("on_fork", "sched_process_fork"),
        needed("on_free", "sched_process_free"),
        wanted("on_rename", "task_rename"),
        wanted("on_fault_user", "page_fault_user"),
        wanted("on_fault_kernel", "page_fault_kernel"),
        wanted("on_page_alloc", "mm_page_alloc"),
        wanted("on_contention_begin", "contention_begin"),
        wanted("on_contention_end", "contention_end"),
        wanted("on_alloc_vmap_area", "alloc_vmap_area"),
        wanted("on_free_vmap_area", "free_vmap_area_noflush"),
        wanted("on_purge_vmap_area", "purge_vmap_area_lazy"),
    ],
    samples: false,
    tell_last_switch: false,
};

/// The same and how long the address-space lock is held, which costs a tenth of a program that does
/// nothing but map and fault.
pub static MEM_HOLDS: Programs = Programs {
    object: MEM.object,
    tracepoints: &[
        needed("on_fork", "sched_process_fork"),
        needed("on_free", "sched_process_free"),
        wanted("on_rename", "task_rename"),
        wanted("on_fault_user", "page_fault_user"),
        wanted("on_fault_kernel", "page_fault_kernel"),
        wanted("on_page_alloc", "mm_page_alloc"),
        wanted("on_contention_begin", "contention_begin"),
        wanted("on_contention_end", "contention_end"),
        wanted("on_alloc_vmap_area", "alloc_vmap_area"),
        wanted("on_free_vmap_area", "free_vmap_area_noflush"),
        wanted("on_purge_vmap_area", "purge_vmap_area_lazy"),
        wanted("on_mmap_lock_acquired", "mmap_lock_acquire_returned"),
        wanted("on_mmap_lock_released", "mmap_lock_released"),
    ],
    samples: false,
    tell_last_switch: false,
};
