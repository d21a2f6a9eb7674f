//! Where the kernel tells a thread which CPU it is on.

use std::ptr::NonNull;
use std::sync::OnceLock;

/// How the threads of this process are registered with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    /// By the C library (glibc from 2.35 on), every thread; the area lies this many bytes from the thread
    /// pointer.
    Libc { offset: isize },
    /// By this crate, each thread when it first needs it.
    Own,
    /// Not at all.
    None,
}

/// `struct rseq` of linux/rseq.h as it was at first; the kernel accepts it for ever.
#[repr(C, align(32))]
pub(super) struct Area {
    pub cpu_id_start: u32,
    /// The CPU, kept up to date by the kernel; [`UNREGISTERED`] and its like are above any CPU number.
    pub cpu_id: u32,
    /// The sequence that the thread is in, or was in last: address of a descriptor.
    pub rseq_cs: u64,
    pub flags: u32,
    /// Written by later kernels: node and concurrency id.
    pub padding: [u32; 3],
}

/// What `cpu_id` says before and after registration.
pub(super) const UNREGISTERED: u32 = u32::MAX;

pub(crate) fn registration() -> Registration {
    static FOUND: OnceLock<Registration> = OnceLock::new();
    *FOUND.get_or_init(|| match offset_of_libc() {
        Some(offset) => Registration::Libc { offset },
        None if super::own::register() => Registration::Own,
        None => Registration::None,
    })
}

/// Looked up by name, because the symbols are absent before glibc 2.35 and in musl.
fn offset_of_libc() -> Option<isize> {
    // SAFETY: the names are C strings, and RTLD_DEFAULT is a valid handle.
    let (offset, size) = unsafe {
        (
            libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()),
            libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()),
        )
    };
    let offset = NonNull::new(offset.cast::<isize>())?;
    let size = NonNull::new(size.cast::<u32>())?;
    // SAFETY: glibc documents them as `const ptrdiff_t __rseq_offset` and `const unsigned int
    // __rseq_size`, constant once the program runs. A size of 0 means that registration failed.
    unsafe { (size.read() != 0).then(|| offset.read()) }
}
