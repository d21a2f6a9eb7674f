//! What a running thread is doing, from a sampled stack.

use crate::event::{CallStack, Frame};
use crate::partition::Activity;

const SPIN_LOCK: &[&str] = &[
    "native_queued_spin_lock_slowpath",
    "__pv_queued_spin_lock_slowpath",
    "queued_spin_lock_slowpath",
    "queued_read_lock_slowpath",
    "queued_write_lock_slowpath",
    "osq_lock",
    "mutex_spin_on_owner",
    "rwsem_spin_on_owner",
    "rwsem_optimistic_spin",
    "rtmutex_spin_on_owner",
    // Spins itself where the kernel inlines it: of priority inheritance, and all locks of PREEMPT_RT.
    "rt_mutex_slowlock_block",
    "rtlock_slowlock_locked",
    "__mutex_lock",
    "resilient_queued_spin_lock_slowpath",
    "mutex_optimistic_spin",
];
const PAGE_FAULT: &[&str] = &[
    "asm_exc_page_fault",
    "exc_page_fault",
    "do_user_addr_fault",
    "handle_mm_fault",
    "do_page_fault",
    "do_translation_fault",
    "el0_da",
    "el0_ia",
];
const ADDRESS_SPACE: &[&str] = &[
    "do_mmap",
    "vm_mmap_pgoff",
    "__vm_munmap",
    "__x64_sys_munmap",
    "__x64_sys_mprotect",
    "do_mprotect_pkey",
    "__x64_sys_brk",
    "do_madvise",
    "__x64_sys_madvise",
    "lock_mm_and_find_vma",
    "mmap_read_lock",
    "mmap_write_lock",
    "__do_sys_brk",
    "__arm64_sys_munmap",
    "__arm64_sys_mprotect",
    "__arm64_sys_brk",
    "__arm64_sys_madvise",
    "mremap",
    "down_read_killable",
    "vma_start_read",
    "lock_vma_under_rcu",
];
const INTERRUPT: &[&str] = &[
    "asm_sysvec_",
    "asm_common_interrupt",
    "el1h_64_irq",
    "el0t_64_irq",
    "el1h_64_fiq",
    "el0t_64_fiq",
    "el0_irq",
    "el1_irq",
    "asm_exc_nmi",
];
const WAY_OUT: &[&str] = &[
    "schedule",
    "preempt_schedule_irq",
    "exit_to_user_mode_loop",
    "irqentry_exit_to_user_mode",
    "arch_do_signal_or_restart",
    "exit_to_user_mode_prepare",
    "raw_irqentry_exit_cond_resched",
    "do_notify_resume",
];
const YIELD_WRAPPERS: &[&str] = &[
    "sched_yield",
    "__sched_yield",
    "__GI___sched_yield",
    "runtime.osyield",
];
/// Wherever they are on the stack: the scheduler of Go, on behalf of a goroutine that gives up its turn.
const YIELD_IN_RUNTIME: &[&str] = &[
    "runtime.Gosched",
    "runtime.gosched_m",
    "runtime.goschedImpl",
];
/// Frames from the innermost one on in which those are looked for.
const RUNTIME_DEPTH: usize = 12;
const YIELD: &[&str] = &["sys_sched_yield", "do_sched_yield"];

/// What the thread was doing.
pub fn classify(stack: &CallStack, user_mode: bool) -> Activity {
    let in_kernel = |names: &[&str], exact: bool| {
        stack.kernel.iter().any(|frame| {
            names.iter().any(|name| {
                if exact {
                    frame.symbol == *name
                } else {
                    frame.symbol.contains(name)
                }
            })
        })
    };
    // On the way into and out of the call too.
    let is_in = |names: &[&str], frame: &Frame| names.contains(&frame.symbol.as_str());
    let mut runtime = stack.user.iter().take(RUNTIME_DEPTH);
    let yields = stack
        .user
        .first()
        .is_some_and(|frame| is_in(YIELD_WRAPPERS, frame))
        || runtime.any(|frame| is_in(YIELD_IN_RUNTIME, frame));
    if user_mode || stack.kernel.is_empty() {
        return if stack.in_spin_loop || yields {
            Activity::UserSpin
        } else {
            Activity::User
        };
    }
    // The innermost meaning wins: a lock inside a page fault is a lock.
    let innermost = &stack.kernel[..stack.kernel.len().min(6)];
    let spins = innermost
        .iter()
        .any(|frame| SPIN_LOCK.contains(&frame.symbol.as_str()));
    if spins {
        return if in_kernel(ADDRESS_SPACE, false) && !in_kernel(&["_raw_spin_lock"], false) {
            Activity::MmapLock
        } else {
            Activity::KernelLock
        };
    }
    // On the way out of an interrupt the scheduler and signals run on behalf of the thread.
    if in_kernel(INTERRUPT, false) && !in_kernel(WAY_OUT, true) {
        Activity::Interrupt
    } else if in_kernel(PAGE_FAULT, true) {
        Activity::PageFault
    } else if yields || in_kernel(YIELD, false) {
        Activity::UserSpin
    } else {
        Activity::Kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(names: &[&str]) -> CallStack {
        let frame = |name: &&str| Frame {
            symbol: (*name).to_owned(),
            ..Frame::default()
        };
        CallStack {
            kernel: names.iter().map(frame).collect(),
            ..CallStack::default()
        }
    }

    #[test]
    fn the_innermost_meaning_wins() {
        let fault = [
            "clear_page_erms",
            "do_anonymous_page",
            "handle_mm_fault",
            "asm_exc_page_fault",
        ];
        assert_eq!(classify(&kernel(&fault), false), Activity::PageFault);
        let lock = [
            "native_queued_spin_lock_slowpath",
            "_raw_spin_lock",
            "handle_mm_fault",
            "asm_exc_page_fault",
        ];
        assert_eq!(classify(&kernel(&lock), false), Activity::KernelLock);
        // A mutex with priority inheritance, whose holder runs.
        let inherits = [
            "rt_mutex_slowlock_block",
            "rt_mutex_wait_proxy_lock",
            "futex_lock_pi",
        ];
        assert_eq!(classify(&kernel(&inherits), false), Activity::KernelLock);
        let mmap = [
            "rwsem_spin_on_owner",
            "rwsem_down_write_slowpath",
            "down_write_killable",
            "__vm_munmap",
        ];
        assert_eq!(classify(&kernel(&mmap), false), Activity::MmapLock);
        assert_eq!(
            classify(&kernel(&["schedule", "__x64_sys_sched_yield"]), false),
            Activity::UserSpin
        );
        assert_eq!(
            classify(&kernel(&["vfs_read", "ksys_read"]), false),
            Activity::Kernel
        );
    }

    #[test]
    fn arm64_enters_the_kernel_by_other_names() {
        let fault = ["clear_page", "do_page_fault", "do_mem_abort", "el0_da"];
        assert_eq!(classify(&kernel(&fault), false), Activity::PageFault);
        for entry in ["el0t_64_irq", "el1h_64_fiq"] {
            let interrupt = ["handle_softirqs", "el0_interrupt", entry];
            assert_eq!(classify(&kernel(&interrupt), false), Activity::Interrupt);
            let way_out = ["dequeue_task", "do_notify_resume", "el0_interrupt", entry];
            assert_eq!(classify(&kernel(&way_out), false), Activity::Kernel);
        }
    }

    #[test]
    fn user_code_spins_or_works() {
        let mut stack = CallStack::default();
        assert_eq!(classify(&stack, true), Activity::User);
        stack.in_spin_loop = true;
        assert_eq!(classify(&stack, true), Activity::UserSpin);
        let user = vec![Frame {
            symbol: "__sched_yield".to_owned(),
            ..Frame::default()
        }];
        let yielding = CallStack {
            user,
            ..kernel(&["syscall_exit_to_user_mode"])
        };
        assert_eq!(classify(&yielding, false), Activity::UserSpin);
        let symbols = ["runtime.lock2", "runtime.goschedImpl", "runtime.gosched_m"];
        let gosched = CallStack {
            user: kernel(&symbols).kernel,
            ..CallStack::default()
        };
        assert_eq!(classify(&gosched, true), Activity::UserSpin);
    }
}
