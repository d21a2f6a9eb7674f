use std::sync::OnceLock;
use std::sync::atomic::AtomicU32 as Count;

use super::*;
use crate::places::Topology;
use crate::thread;

/// As if nobody took CPUs, whatever there is here, and as if each of 16 CPUs had a cache of its own.
pub(super) static IS_CALM: AtomicBool = AtomicBool::new(false);

pub(super) fn machine() -> &'static Topology {
    static MACHINE: OnceLock<Topology> = OnceLock::new();
    MACHINE.get_or_init(|| crate::places::machine(2, 2, 4, 1, 1))
}

fn parallel<F: Fn(u32) + Sync>(nthreads: u32, body: F) {
    unsafe extern "C-unwind" fn call<F: Fn(u32) + Sync>(data: *mut c_void) {
        // SAFETY: `data` is the closure below, which outlives the region.
        unsafe { (*data.cast_const().cast::<F>())((*thread::current()).at.id) }
    }
    let data = (&raw const body).cast_mut().cast();
    let thread = thread::current();
    // SAFETY: the calling thread's; the closure may be called by all at once.
    unsafe {
        begin(thread, call::<F>, data, nthreads, |_| {});
        call::<F>(data);
        end(thread);
    }
}

/// Teams in which those who were let go let others go, which on small machines they do not otherwise: their threads are too
/// many for the CPUs.
#[test]
fn large_teams_are_let_go_by_their_trees() {
    const CANCEL_AT: u32 = 7;
    init();
    IS_CALM.store(true, Ordering::Relaxed);
    for nthreads in [70, 200, 9, 65, 130, 64, 100, 2, 66] {
        let steps: Vec<Count> = (0..nthreads).map(|_| Count::new(0)).collect();
        let all_are_at = |step| steps.iter().all(|s| s.load(Ordering::Relaxed) >= step);
        for _ in 0..3 {
            steps.iter().for_each(|s| s.store(0, Ordering::Relaxed));
            parallel(nthreads, |id| {
                // SAFETY: the calling thread's.
                let meet = || unsafe { barrier(thread::current()) };
                for step in 1..=10 {
                    steps[id as usize].store(step, Ordering::Relaxed);
                    meet();
                    assert!(all_are_at(step));
                    meet();
                }
            });
            assert!(all_are_at(10));
            // Cancelled while some were not let go yet: the next region must know nothing of it.
            parallel(nthreads, |id| {
                let thread = thread::current();
                for step in 0.. {
                    // SAFETY: the calling thread's, in a team.
                    unsafe {
                        if barrier_cancellable(thread) {
                            break;
                        }
                        if id == nthreads / 2 && step == CANCEL_AT {
                            (*(*thread).at.team).cancel();
                        }
                    }
                }
            });
        }
        // SAFETY: the calling thread's; its team is at rest.
        let team = unsafe { &*(*thread::current()).hot };
        assert_eq!(team.tree.threads(), nthreads as usize);
        // Smaller ones may have as many, by where their threads were last seen.
        assert!(team.tree.leaves() > FAN_IN || nthreads <= 64);
    }
    IS_CALM.store(false, Ordering::Relaxed);
}
