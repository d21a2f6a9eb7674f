//! Reading memory of another process.

use rustix::io::Errno;

/// Reads from `address` of process `pid`; how many bytes that were. Async-signal-safe but for `errno`.
pub(crate) fn read_process(pid: i32, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: into.len(),
    };
    // SAFETY: writes into `into` alone; the remote address is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(read)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
