//! The CPUs a thread may run on.

use std::io;

use crate::{CpuSet, Error, Result};

/// The CPUs that the calling thread may run on: its affinity mask, which the
/// kernel keeps within the cpuset and the online CPUs.
///
/// # Errors
/// [`Error::Affinity`] where the kernel denies the system call.
pub fn allowed() -> Result<CpuSet> {
    allowed_of(0)
}

/// The CPUs that thread `tid` may run on; 0 is the caller.
///
/// # Errors
/// [`Error::Affinity`], with `ESRCH` if there is no such thread.
pub fn allowed_of(tid: u32) -> Result<CpuSet> {
    mask_of(tid, 1024 / 64)
}

/// Asks with a mask of `words` words first.
///
/// Safe wrappers have a mask of 1024 CPUs, which larger kernels refuse: they
/// answer EINVAL while the mask is shorter than their own.
fn mask_of(tid: u32, words: usize) -> Result<CpuSet> {
    let mut words = vec![0u64; words];
    loop {
        // SAFETY: the buffer is writable for the given number of bytes, and any
        // alignment that u64 has is enough for the kernel's unsigned long.
        let rc = unsafe {
            libc::sched_getaffinity(
                tid as libc::pid_t,
                size_of_val(words.as_slice()),
                words.as_mut_ptr().cast(),
            )
        };
        if rc == 0 {
            return Ok(words.into());
        }
        let source = io::Error::last_os_error();
        let longest = CpuSet::MAX_PARSED as usize / 64 + 1;
        if source.raw_os_error() != Some(libc::EINVAL) || words.len() >= longest {
            return Err(Error::Affinity {
                operation: "sched_getaffinity",
                tid,
                source,
            });
        }
        words = vec![0; words.len() * 2 + 1];
    }
}

/// Confines thread `tid` (0 is the caller) and the threads it starts from now on to `cpus`.
///
/// Allocates nothing, so that it may run between fork and exec.
///
/// # Errors
/// [`Error::Affinity`], with `EINVAL` if none of `cpus` may be used.
pub fn set_allowed(tid: u32, cpus: &CpuSet) -> Result<()> {
    let words = cpus.words();
    // SAFETY: the kernel reads only the given number of bytes from the slice.
    let rc = unsafe {
        libc::sched_setaffinity(
            tid as libc::pid_t,
            size_of_val(words),
            words.as_ptr().cast(),
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(Error::Affinity {
            operation: "sched_setaffinity",
            tid,
            source: io::Error::last_os_error(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_proc() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .unwrap();
        assert_eq!(allowed().unwrap(), list.parse().unwrap());
    }

    #[test]
    fn a_mask_that_is_too_short_grows() {
        // Shorter than any kernel's.
        assert_eq!(mask_of(0, 0).unwrap(), allowed().unwrap());
    }

    #[test]
    fn confines_the_calling_thread_only() {
        let all = allowed().unwrap();
        let last: CpuSet = all.last().into_iter().collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_allowed(0, &last).unwrap();
                assert_eq!(allowed().unwrap(), last);
            });
        });
        assert_eq!(allowed().unwrap(), all);
    }

    #[test]
    fn refuses_what_cannot_be() {
        assert!(matches!(
            set_allowed(0, &CpuSet::new()),
            Err(Error::Affinity { operation: "sched_setaffinity", tid: 0, source })
                if source.raw_os_error() == Some(libc::EINVAL)
        ));
        // Process ids end at 2^22.
        assert!(matches!(
            allowed_of(1 << 30),
            Err(Error::Affinity { source, .. }) if source.raw_os_error() == Some(libc::ESRCH)
        ));
    }
}
