//! System calls by what they wait for.

/// A sleep at one futex, since Linux 6.7; it has the expected value where `futex` has its operation. Not in every libc.
pub const SYS_FUTEX_WAIT: libc::c_long = 455;

/// System calls that block, grouped by what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Futex,
    Timer,
    Child,
    Peer,
    Storage,
    FileLock,
    Semaphore,
    Other,
}

pub(super) fn call(number: u32) -> Call {
    let is = |list: &[libc::c_long]| list.contains(&libc::c_long::from(number));
    use libc as l;
    #[cfg(target_arch = "x86_64")]
    if is(&[
        l::SYS_poll,
        l::SYS_select,
        l::SYS_epoll_wait,
        l::SYS_pause,
        l::SYS_accept,
    ]) {
        return Call::Peer;
    }
    #[cfg(target_arch = "x86_64")]
    if is(&[l::SYS_vfork, l::SYS_fork]) {
        return Call::Child;
    }
    #[cfg(target_arch = "x86_64")]
    if is(&[
        l::SYS_open,
        l::SYS_unlink,
        l::SYS_rename,
        l::SYS_mkdir,
        l::SYS_rmdir,
        l::SYS_stat,
    ]) {
        return Call::Storage;
    }
    if is(&[l::SYS_futex, l::SYS_futex_waitv, SYS_FUTEX_WAIT]) {
        Call::Futex
    } else if is(&[l::SYS_nanosleep, l::SYS_clock_nanosleep]) {
        Call::Timer
    } else if is(&[l::SYS_wait4, l::SYS_waitid, l::SYS_clone, l::SYS_clone3]) {
        Call::Child
    } else if is(&[
        l::SYS_read,
        l::SYS_readv,
        l::SYS_write,
        l::SYS_writev,
        l::SYS_ppoll,
        l::SYS_pselect6,
        l::SYS_epoll_pwait,
        l::SYS_epoll_pwait2,
        l::SYS_recvfrom,
        l::SYS_recvmsg,
        l::SYS_recvmmsg,
        l::SYS_sendto,
        l::SYS_sendmsg,
        l::SYS_sendmmsg,
        l::SYS_accept4,
        l::SYS_connect,
        l::SYS_splice,
        l::SYS_tee,
        l::SYS_vmsplice,
        l::SYS_sendfile,
        l::SYS_io_uring_enter,
        l::SYS_io_getevents,
        l::SYS_rt_sigtimedwait,
        l::SYS_rt_sigsuspend,
        l::SYS_msgrcv,
        l::SYS_msgsnd,
        l::SYS_mq_timedreceive,
        l::SYS_mq_timedsend,
        l::SYS_close,
        l::SYS_ioctl,
    ]) {
        Call::Peer
    } else if is(&[
        l::SYS_fsync,
        l::SYS_fdatasync,
        l::SYS_sync,
        l::SYS_syncfs,
        l::SYS_sync_file_range,
        l::SYS_msync,
        l::SYS_pread64,
        l::SYS_pwrite64,
        l::SYS_preadv,
        l::SYS_pwritev,
        l::SYS_preadv2,
        l::SYS_pwritev2,
        l::SYS_openat,
        l::SYS_unlinkat,
        l::SYS_renameat2,
        l::SYS_mkdirat,
        l::SYS_getdents64,
        l::SYS_newfstatat,
        l::SYS_statx,
        l::SYS_ftruncate,
        l::SYS_fallocate,
        l::SYS_copy_file_range,
        l::SYS_execve,
        l::SYS_execveat,
        l::SYS_readahead,
        l::SYS_fadvise64,
        l::SYS_mount,
        l::SYS_umount2,
        l::SYS_linkat,
        l::SYS_symlinkat,
    ]) {
        Call::Storage
    } else if is(&[l::SYS_flock, l::SYS_fcntl]) {
        Call::FileLock
    } else if is(&[l::SYS_semop, l::SYS_semtimedop]) {
        Call::Semaphore
    } else {
        Call::Other
    }
}
