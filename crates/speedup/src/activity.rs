//! What a running thread is doing, from a sampled stack.

use crate::event::{CallStack, Frame};
use crate::partition::Activity;
use crate::wait::callee_name;

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
/// Functions of runtimes and libraries that poll for a task, a lock or others' arrival, over and over through so many functions that
/// no loop shows it. What they run once they have found it lies farther in, behind a call.
const POLLS: &[&str] = &[
    // Go: a thread without a goroutine looks into the queues of all others.
    "runtime.stealWork",
    "runtime.runqsteal",
    "runtime.runqgrab",
    "runtime.checkRunqsNoP",
    "runtime.checkTimersNoP",
    "runtime.checkIdleGCNoP",
    // Rayon and Tokio.
    "rayon_core::registry::WorkerThread::find_work",
    "rayon_core::registry::WorkerThread::steal",
    "rayon_core::registry::WorkerThread::wait_until_cold",
    "rayon_core::registry::Registry::pop_injected_job",
    "rayon_core::sleep::Sleep::no_work_found",
    "tokio::runtime::scheduler::multi_thread::worker::Core::steal_work",
    // Our own pool.
    "amdahl_pool::worker::Worker::idle",
    "amdahl_pool::worker::Worker::idle_guest",
    "amdahl_pool::worker::Worker::look",
    "amdahl_pool::worker::Worker::look_harder",
    "amdahl_pool::spin::Spinner::spin",
    "amdahl_pool::states::look_for_helpers",
    // oneTBB.
    "tbb::detail::r1::task_dispatcher::receive_or_steal_task",
    "tbb::detail::r1::arena::steal_task",
    "tbb::detail::r1::arena::get_stream_task",
    "tbb::detail::r1::waiter_base::pause",
    // LLVM's OpenMP.
    "__kmp_wait_template",
    "__kmp_steal_task",
    // OpenBLAS.
    "blas_thread_server",
    "exec_blas_async_wait",
    // HotSpot.
    "TaskTerminator::offer_termination",
    "ObjectMonitor::TrySpin",
    "ObjectMonitor::try_spin",
    "SpinPause",
    // Abseil.
    "absl::base_internal::SpinLock::SpinLoop",
];
/// The same of PostgreSQL's server, whose names might be anybody's.
const POSTGRES_POLLS: &[&str] = &["s_lock", "perform_spin_delay"];
/// Packages whose functions those call to look, which end at once: so a poll is found behind them.
const LOOKS: &[&str] = &[
    // Beneath those of our pool alone, which look at the clock, too.
    "__vdso_clock_gettime",
    "amdahl_placement::",
    "amdahl_pool::",
    "amdahl_spread::",
    "clock_gettime",
    "std::time::",
    "core::",
    "crossbeam_deque::",
    "crossbeam_epoch::",
    "crossbeam_utils::",
    "internal/runtime/",
    "runtime.(*randomEnum)",
    "runtime/internal/",
];
/// Frames behind which it is not looked for any more.
const LOOKS_DEPTH: usize = 6;

/// The name of a function without the types that it is for: `<rayon_core::registry::WorkerThread>::find_work`,
/// `crossbeam_deque::deque::Stealer<T>::steal`, `s_lock.isra.0` and `tbb::detail::r1::arena::steal_task(unsigned)`.
fn plain_name(symbol: &str) -> String {
    let symbol = callee_name(symbol);
    let symbol = symbol.strip_prefix('<').unwrap_or(symbol);
    let (mut plain, mut depth) = (String::with_capacity(symbol.len()), 0_usize);
    for character in symbol.chars() {
        match character {
            '(' if depth == 0 && !plain.ends_with('.') => break,
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    plain
}

/// Polls for something to do, by the names of the innermost frames.
fn polls(user: &[Frame]) -> bool {
    for frame in user.iter().take(LOOKS_DEPTH) {
        let name = plain_name(&frame.symbol);
        let name = name.split("::{").next().unwrap_or(&name);
        let is_it = |poll: &&str| match name.strip_prefix(*poll) {
            // A clone of the compiler's.
            Some(rest) => rest.is_empty() || rest.starts_with(['.', '@']),
            None => false,
        };
        let is_of_postgres = frame.module.ends_with("/postgres");
        if POLLS.iter().any(is_it) || is_of_postgres && POSTGRES_POLLS.iter().any(is_it) {
            return true;
        }
        if !LOOKS.iter().any(|package| name.starts_with(package)) {
            return false;
        }
    }
    false
}

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
        return if stack.in_spin_loop || yields || polls(&stack.user) {
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
    fn runtimes_that_poll_for_a_task_are_known() {
        let of = |names: &[&str]| {
            let user = kernel(names).kernel;
            classify(
                &CallStack {
                    user,
                    ..CallStack::default()
                },
                true,
            )
        };
        for polling in [
            &["runtime.runqgrab", "runtime.runqsteal", "runtime.stealWork"][..],
            &[
                "internal/runtime/atomic.(*Uint32).Load",
                "runtime.stealWork",
            ],
            &["runtime.(*randomEnum).next", "runtime.stealWork"],
            &[
                "crossbeam_deque::deque::Stealer<T>::steal",
                "<rayon_core::registry::WorkerThread>::find_work",
            ],
            &["rayon_core::registry::WorkerThread::find_work::{{closure}}"],
            &["amdahl_pool::worker::Worker::look"],
            &[
                "__vdso_clock_gettime",
                "clock_gettime@@GLIBC_2.17",
                "std::time::Instant::elapsed",
                "amdahl_pool::worker::Worker::idle",
            ],
            &[
                "<amdahl_placement::compose::Composed as amdahl_placement::policy::Policy>::idle",
                "amdahl_pool::worker::Worker::look",
            ],
            &["amdahl_pool::spin::Spinner::spin"],
            &[
                "bool __kmp_wait_template<kmp_flag_64<false, true>, true, false, true>(kmp_info*, kmp_flag_64<false, true>*)",
            ],
            &["tbb::detail::r1::arena::steal_task(unsigned int, tbb::detail::r1::FastRandom&)"],
        ] {
            assert_eq!(of(polling), Activity::UserSpin, "{polling:?}");
        }
        let in_module = |name: &str, module: &str| {
            let mut user = kernel(&[name]).kernel;
            user[0].module = module.to_owned();
            classify(
                &CallStack {
                    user,
                    ..CallStack::default()
                },
                true,
            )
        };
        let server = "/usr/lib/postgresql/15/bin/postgres";
        assert_eq!(in_module("s_lock", server), Activity::UserSpin);
        assert_eq!(in_module("s_lock.isra.0", server), Activity::UserSpin);
        assert_eq!(in_module("s_locked", server), Activity::User);
        assert_eq!(in_module("s_lock", "/usr/bin/own"), Activity::User);
        for working in [
            // What it found, and what looks like it.
            &[
                "work",
                "rayon_core::registry::WorkerThread::wait_until_cold",
            ][..],
            &["core::slice::sort", "work", "runtime.stealWork"],
            &["runtime.findRunnable", "runtime.schedule"],
            &["runtime.stealWorkOfMine"],
            &["(anonymous namespace)::work(int)"],
            &[""],
            &[],
        ] {
            assert_eq!(of(working), Activity::User, "{working:?}");
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
