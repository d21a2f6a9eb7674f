//! Restartable sequences of Linux: which CPU this thread is on, and additions to what belongs to
//! that CPU. The protocol is in DESIGN.md.

mod area;
mod own;
#[cfg_attr(target_arch = "x86_64", path = "rseq/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "rseq/aarch64.rs")]
mod sequence;
#[cfg(test)]
mod tests;

pub(crate) use area::{Registration, registration};

/// Words of which each CPU has its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// The word of CPU 0.
    pub base: *mut i64,
    /// Bytes from the word of a CPU to that of the next.
    pub stride: usize,
    /// CPUs below this number have a word.
    pub cpus: u32,
}

/// Adds `delta` to the word of the CPU that this thread is on, as if nothing else happened on that CPU
/// meanwhile. False, and nothing is added, if the thread is not registered or its CPU has no word.
///
/// # Safety
/// `registration` is what [`registration`] gave. `rows` has writable words, of which nobody else
/// writes those of a CPU but by this function and [`add_fetch`] on that CPU.
#[inline(always)]
pub(crate) unsafe fn add(registration: Registration, rows: &Rows, delta: i64) -> bool {
    // SAFETY: with this registration the area is there, in each thread.
    unsafe {
        match registration {
            Registration::Libc { offset } => sequence::add_from_thread_pointer(offset, rows, delta),
            Registration::Own => {
                sequence::add_at(own::area(), rows, delta) || add_registered(rows, delta)
            }
            Registration::None => false,
        }
    }
}

/// As [`add`], and tells the CPU and the sum there.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn add_fetch(
    registration: Registration,
    rows: &Rows,
    delta: i64,
) -> Option<(u32, i64)> {
    // SAFETY: with this registration the area is there, in each thread.
    unsafe {
        match registration {
            Registration::Libc { offset } => {
                sequence::add_fetch_from_thread_pointer(offset, rows, delta)
            }
            Registration::Own => {
                if cpu(registration).is_none() {
                    own::register();
                }
                sequence::add_fetch_at(own::area(), rows, delta)
            }
            Registration::None => None,
        }
    }
}

/// The CPU that this thread was on a moment ago; `None` if the thread is not registered.
#[inline(always)]
pub(crate) fn cpu(registration: Registration) -> Option<u32> {
    let cpu = match registration {
        // SAFETY: with this registration the area is there, in each thread.
        Registration::Libc { offset } => unsafe { sequence::cpu_from_thread_pointer(offset) },
        // SAFETY: the area is this thread's; volatile, because the kernel writes to it.
        Registration::Own => unsafe { (&raw const (*own::area()).cpu_id).read_volatile() },
        Registration::None => return None,
    };
    // What it says of threads that are not registered is negative.
    (cpu as i32 >= 0).then_some(cpu)
}

/// Registers this thread if that is this crate's to do.
pub(crate) fn register_thread(registration: Registration) {
    if registration == Registration::Own {
        own::register();
    }
}

/// For a thread that may not be registered yet.
///
/// # Safety
/// As for [`add`].
#[cold]
unsafe fn add_registered(rows: &Rows, delta: i64) -> bool {
    // SAFETY: the caller's promise; the area is this thread's.
    cpu(Registration::Own).is_none()
        && own::register()
        && unsafe { sequence::add_at(own::area(), rows, delta) }
}
