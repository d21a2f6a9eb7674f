//! Times waits in pthread primitives: an `LD_PRELOAD` library.
//!
//! Mutexes, reader-writer locks, condition variables, semaphores, barriers, joins and
//! spin locks are interposed. A lock that is free costs one `trylock` through a
//! pointer; only a call that would block is timed. Each such episode goes into a file
//! that the process shares with whoever reads it: totals by (kind, object, caller), a
//! ring of the last episodes, and the waits in progress.
//!
//! * `AMDAHL_PRELOAD_DIR`: the folder (absolute) for the files, `PID-NANOSECONDS.waits`.
//!   Without it nothing is recorded. A process makes its file with its second thread or
//!   its first wait, so programs without threads cost no file.
//! * A forked child and every image after an `exec` have files of their own. The file is
//!   a shared mapping: what was recorded survives `kill -9`.
//! * The file is about 340 KiB whatever the run; what the ring overwrote and the tables
//!   had no room for is counted.
//!
//! Absent: programs that are linked statically, use another libc, are set-user-id, or
//! wait by system calls of their own (Go, most of Rust, C11 `mtx_lock`, OpenMP).
//!
//! The library depends on libc alone, allocates nothing, uses no thread-local storage,
//! leaves `errno` as the interposed function would, and takes no lock.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the file layout and the system calls are those of 64-bit Linux");

// The unit-test binary must not interpose in itself.
#[cfg(not(test))]
mod hooks;
#[cfg(not(test))]
mod real;
#[cfg(not(test))]
mod region;
#[cfg(not(test))]
mod sys;

#[cfg(not(test))]
extern "C" fn init() {
    real::look_up_all();
    region::configure();
    real::at_fork_in_child(region::forked);
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;
