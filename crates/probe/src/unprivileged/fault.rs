//! What a page fault costs.

use std::ffi::c_void;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::time::{ClockId, clock_gettime};

/// More than the caches of a core hold: fresh pages are seldom in them.
const BYTES: usize = 16 << 20;
const ROUNDS: usize = 5;

/// CPU nanoseconds that the kernel takes on this machine to give a process a small page of fresh
/// memory, measured on ourselves within some ten milliseconds; `None` if there is no memory.
pub fn fault_ns() -> Option<f64> {
    let page = rustix::param::page_size();
    let pages = BYTES / page;
    let len = pages * page;
    let flags = MapFlags::PRIVATE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address the kernel chooses.
    let memory = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, flags) }.ok()?;
    // SAFETY: the mapping is ours and holds nothing.
    let advise = |advice| unsafe { rustix::mm::madvise(memory, len, advice) };
    // Where there are no huge pages they need not be refused.
    let _ = advise(Advice::LinuxNoHugepage);
    let mut rounds: Vec<u64> = (0..ROUNDS)
        .map(|_| {
            let begun = spent();
            touch(memory, len, page);
            let took = spent().saturating_sub(begun);
            // Memory that stays would be touched without a fault.
            if advise(Advice::LinuxDontNeed).is_ok() {
                took
            } else {
                0
            }
        })
        .collect();
    // SAFETY: mapped above with this length, and not used any more.
    let _ = unsafe { rustix::mm::munmap(memory, len) };
    let (_, median, _) = rounds.select_nth_unstable(ROUNDS / 2);
    (*median > 0).then(|| *median as f64 / pages as f64)
}

fn touch(memory: *mut c_void, len: usize, page: usize) {
    for at in (0..len).step_by(page) {
        // SAFETY: within the mapping of `len` writable bytes.
        unsafe { memory.cast::<u8>().add(at).write_volatile(1) };
    }
}

fn spent() -> u64 {
    let at = clock_gettime(ClockId::ThreadCPUTime);
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_fault_costs_something() {
        let ns = super::fault_ns().expect("memory");
        assert!(ns > 1.0, "{ns}");
    }
}
