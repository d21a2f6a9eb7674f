//! What a thread waits for, as far as one poll tells.

use crate::cause::Cause;
use crate::event::{Blocked, StackTable, Tid};
use crate::wait::{Wait, classify};

use super::futex::{address, joins};
use super::{Reach, Waiting};

/// A wait, as far as it is known at the poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    /// Certain.
    Cause(Cause),
    /// What the futex at this address of this process is used for tells.
    Futex { pid: Tid, address: u64 },
    /// For somebody, nobody knows whom.
    Peer,
    /// For the next time to look after others.
    Service,
    /// The thread was never seen waiting, though it did wait: like all the others.
    Unseen,
    /// Nothing is known.
    Unknown,
}

/// Kernel functions in which a thread waits for a device, by their beginnings.
const DEVICE: &[&str] = &[
    "io_schedule",
    "folio_wait",
    "__folio_lock",
    "wait_on_page",
    "bit_wait",
    "out_of_line_wait_on_bit",
    "__wait_on_bit",
    "__wait_on_buffer",
    "blk_",
    "blkdev_",
    "submit_bio_wait",
    "jbd2_",
    "xlog_",
    "xfs_buf_",
    "xfs_log_",
    "nfs_",
    "nfs4_",
    "rpc_",
    "request_wait_answer",
    "fuse_",
    "dio_",
    "__iomap_dio",
    "iomap_dio",
    "balance_dirty_pages",
    "wb_wait",
    "writeback_",
    "sync_inodes",
    "rq_qos_wait",
    "wbt_wait",
    "wait_transaction",
    "do_blockdev_direct",
    "__blockdev_direct",
    "swap_",
    "folio_lock",
    "filemap_",
    "btrfs_wait",
    "btrfs_sync",
    "wait_log_commit",
    "wait_current_trans",
    "virtio",
    "nvme",
    "scsi",
    "generic_file_fsync",
];
/// Kernel functions that hold or take the address-space lock, by their beginnings. The functions
/// of the lock itself are not shown: the kernel skips the scheduler's and the locks' own code.
const ADDRESS_SPACE: &[&str] = &[
    "vm_mmap",
    "do_mmap",
    "__vm_munmap",
    "__x64_sys_munmap",
    "__arm64_sys_munmap",
    "__do_sys_munmap",
    "__x64_sys_mprotect",
    "do_mprotect",
    "__x64_sys_brk",
    "__do_sys_brk",
    "__arm64_sys_brk",
    "do_madvise",
    "madvise_",
    "lock_mm_and_find_vma",
    "do_user_addr_fault",
    "exc_page_fault",
    "do_page_fault",
    "mmap_",
    "vma_start",
    "__vma_start",
    "lock_vma",
    "__se_sys_mremap",
    "__do_sys_mremap",
    "__x64_sys_mremap",
    "mm_populate",
    "__mm_populate",
    "do_mlock",
    "dup_mm",
    "dup_mmap",
    "exit_mmap",
    "__x64_sys_madvise",
    "vma_link",
    "__vma_enter",
];

fn begins(wchan: &str, names: &[&str]) -> bool {
    names.iter().any(|name| wchan.starts_with(name))
}

#[cfg(target_arch = "x86_64")]
const POLLS: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_ppoll];
#[cfg(not(target_arch = "x86_64"))]
const POLLS: &[libc::c_long] = &[libc::SYS_ppoll];
#[cfg(target_arch = "x86_64")]
const SELECTS: &[libc::c_long] = &[libc::SYS_select, libc::SYS_pselect6];
#[cfg(not(target_arch = "x86_64"))]
const SELECTS: &[libc::c_long] = &[libc::SYS_pselect6];

/// `poll` or `select` of nothing at all is an old way to sleep.
fn polls_nothing(blocked: &Blocked) -> bool {
    let Some(number) = blocked.syscall.map(libc::c_long::from) else {
        return false;
    };
    let [first, second, third, fourth] = blocked.args;
    (POLLS.contains(&number) && second == 0)
        || (SELECTS.contains(&number) && (first == 0 || second | third | fourth == 0))
}

/// What `waiting` waits for. `is_thread` tells whether there is such a thread.
pub(super) fn why(
    pid: Tid,
    waiting: &Waiting,
    stacks: &StackTable,
    is_thread: impl Fn(Tid) -> bool,
) -> Why {
    let blocked = &waiting.blocked;
    let wchan = &*waiting.wchan;
    if blocked.uninterruptible && blocked.kernel_lock.is_none() {
        if begins(wchan, DEVICE) {
            return Why::Cause(Cause::Io);
        }
        if begins(wchan, ADDRESS_SPACE) {
            return Why::Cause(Cause::MmapLock);
        }
        // `vfork` waits uninterruptibly for its child, a file system's inode lock for its holder.
        let known = classify(blocked, None);
        if known != Wait::For(Cause::Serial) && holds_up_files(wchan) {
            return Why::Cause(Cause::KernelLock);
        }
    }
    if polls_nothing(blocked) {
        return Why::Cause(Cause::Sleep);
    }
    let stack = blocked
        .stack
        .and_then(|id| stacks.get(id.0 as usize))
        .map(|stack| &**stack);
    match classify(blocked, stack) {
        Wait::For(cause) => Why::Cause(cause),
        Wait::IdleWorker | Wait::Nap => Why::Cause(Cause::Serial),
        Wait::Service => Why::Service,
        Wait::Futex | Wait::PoolFutex => match joins(&blocked.args) {
            Some(thread) if is_thread(thread) => Why::Cause(Cause::Serial),
            _ => Why::Futex {
                pid,
                address: blocked.args[0],
            },
        },
        Wait::Peer => match waiting.reach {
            Reach::Workload => Why::Cause(Cause::Partner),
            Reach::Outside => Why::Cause(Cause::Io),
            Reach::Timer => Why::Cause(Cause::Sleep),
            Reach::Storage => Why::Cause(Cause::Io),
            Reach::Unknown if address(blocked).is_some() => Why::Cause(Cause::Partner),
            Reach::Unknown => Why::Peer,
        },
        Wait::Unknown if waiting.is_readable => Why::Unknown,
        Wait::Unknown => by_wchan(wchan),
    }
}

/// The kernel function in whose inode or directory lock a file operation waits.
fn holds_up_files(wchan: &str) -> bool {
    const WAITS: &[&str] = &[
        "path_openat",
        "open_last_lookups",
        "do_unlinkat",
        "filename_create",
        "do_renameat2",
        "lock_rename",
        "iterate_dir",
        "walk_component",
        "lookup_slow",
        "do_rmdir",
        "do_mkdirat",
        "start_dir",
        "start_creating",
        "start_removing",
        "__start_dirop",
        "vfs_",
        "do_last",
        "inode_lock",
        "simple_",
        "pipe_",
        "ext4_file",
        "ext4_buffered",
        "ext4_dio",
        "ext4_dax",
        "xfs_ilock",
        "generic_file_write",
        "shmem_file_write",
        "__f_unlock_pos",
        "fdget_pos",
        "__fdget_pos",
        "btrfs_inode_lock",
        "btrfs_tree",
        "do_truncate",
        "vfs_truncate",
        "chmod_common",
        "chown_common",
        "generic_file_llseek",
        "ext4_llseek",
        "generic_write_sync",
    ];
    begins(wchan, WAITS) || wchan.ends_with("_write_iter") || wchan.ends_with("_read_iter")
}

/// Where the system call is hidden, the kernel function is what there is.
fn by_wchan(wchan: &str) -> Why {
    const SLEEPS: &[&str] = &[
        "hrtimer_nanosleep",
        "do_nanosleep",
        "common_nsleep",
        "__x64_sys_clock_nanosleep",
    ];
    const CHILDREN: &[&str] = &["do_wait", "kernel_wait", "kernel_clone", "wait_for_vfork"];
    const PEERS: &[&str] = &[
        "pipe_",
        "anon_pipe",
        "unix_",
        "sock_",
        "sk_",
        "skb_",
        "inet_",
        "tcp_",
        "udp_",
        "do_poll",
        "poll_",
        "do_select",
        "do_sys_poll",
        "ep_poll",
        "do_epoll",
        "eventfd_",
        "wait_woken",
        "__skb",
        "wait_for_space",
    ];
    if begins(wchan, SLEEPS) {
        Why::Cause(Cause::Sleep)
    } else if begins(wchan, CHILDREN) {
        Why::Cause(Cause::Serial)
    } else if begins(wchan, DEVICE) {
        Why::Cause(Cause::Io)
    } else if begins(wchan, PEERS) {
        Why::Peer
    } else if wchan.contains("futex") {
        // Which futex is hidden too: all that is certain is that it is another thread.
        Why::Cause(Cause::Partner)
    } else {
        Why::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn waiting(number: libc::c_long, args: [u64; 4], wchan: &str) -> Waiting {
        Waiting {
            blocked: Blocked {
                syscall: Some(number as u32),
                args,
                ..Blocked::default()
            },
            is_readable: true,
            wchan: Arc::from(wchan),
            reach: Reach::Unknown,
        }
    }

    fn asleep(number: libc::c_long, wchan: &str) -> Waiting {
        let mut waiting = waiting(number, [0; 4], wchan);
        waiting.blocked.uninterruptible = true;
        waiting
    }

    fn tell(waiting: &Waiting) -> Why {
        why(7, waiting, &StackTable::new(), |tid| tid == 1262)
    }

    #[test]
    fn a_wait_for_a_thread_id_is_a_join() {
        let join = waiting(libc::SYS_futex, [0x7f00, 0x109, 1262, 0], "futex_do_wait");
        assert_eq!(tell(&join), Why::Cause(Cause::Serial));
        let other = waiting(libc::SYS_futex, [0x7f00, 0x109, 1263, 0], "futex_do_wait");
        assert_eq!(
            tell(&other),
            Why::Futex {
                pid: 7,
                address: 0x7f00
            }
        );
    }

    #[test]
    fn the_kernel_function_tells_locks_from_devices() {
        assert_eq!(
            tell(&asleep(libc::SYS_munmap, "__vm_munmap")),
            Why::Cause(Cause::MmapLock)
        );
        assert_eq!(
            tell(&asleep(libc::SYS_openat, "path_openat")),
            Why::Cause(Cause::KernelLock)
        );
        assert_eq!(
            tell(&asleep(libc::SYS_openat, "folio_wait_bit_common")),
            Why::Cause(Cause::Io)
        );
        assert_eq!(
            tell(&asleep(libc::SYS_write, "ext4_buffered_write_iter")),
            Why::Cause(Cause::KernelLock)
        );
        assert_eq!(
            tell(&asleep(libc::SYS_fsync, "jbd2_log_wait_commit")),
            Why::Cause(Cause::Io)
        );
    }

    #[test]
    fn selecting_nothing_is_a_sleep() {
        let select = waiting(libc::SYS_pselect6, [0, 0, 0, 0], "do_select");
        assert_eq!(tell(&select), Why::Cause(Cause::Sleep));
        let mut poll = waiting(libc::SYS_ppoll, [0x1000, 1, 0, 0], "do_sys_poll");
        assert_eq!(tell(&poll), Why::Peer);
        poll.reach = Reach::Workload;
        assert_eq!(tell(&poll), Why::Cause(Cause::Partner));
    }

    #[test]
    fn a_hidden_system_call_leaves_the_kernel_function() {
        let mut hidden = waiting(0, [0; 4], "do_wait");
        hidden.blocked.syscall = None;
        hidden.is_readable = false;
        assert_eq!(tell(&hidden), Why::Cause(Cause::Serial));
        hidden.wchan = Arc::from("");
        assert_eq!(tell(&hidden), Why::Unknown);
    }
}
