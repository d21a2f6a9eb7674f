//! `taskloop`: how the iterations are divided among tasks.

use std::ffi::c_void;

use super::{Copy, Creation, FLAG_GRAINSIZE, FLAG_NOGROUP, FLAG_REDUCTION, FLAG_STRICT};
use super::{group, is_cancelled, reduction, spawn_within};
use crate::icv;
use crate::schedule::Iterations;
use crate::thread::Thread;

/// How a loop is divided: `long` tasks of `long_iterations`, then tasks of `short_iterations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// All tasks.
    pub tasks: u64,
    /// Those of them that come first.
    pub long: u64,
    /// Iterations of each of the first ones.
    pub long_iterations: u64,
    /// Iterations of each of the others.
    pub short_iterations: u64,
}

/// What the clauses say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clause {
    /// At least so many iterations for each task, and less than twice as many.
    Grainsize(u64),
    /// Exactly so many, the last task excepted.
    StrictGrainsize(u64),
    /// So many tasks; 0: one for each thread.
    Tasks(u64),
}

/// Divides `iterations`, at least 1, in a team of `threads`.
pub fn divide(iterations: u64, clause: Clause, threads: u64) -> Division {
    let tasks = match clause {
        Clause::StrictGrainsize(grain) => {
            let grain = grain.clamp(1, iterations);
            let (full, rest) = (iterations / grain, iterations % grain);
            return Division {
                tasks: full + u64::from(rest != 0),
                long: full,
                long_iterations: grain,
                short_iterations: rest,
            };
        }
        Clause::Grainsize(grain) => iterations / grain.max(1),
        Clause::Tasks(0) => threads,
        Clause::Tasks(tasks) => tasks,
    }
    .clamp(1, iterations);
    let short_iterations = iterations / tasks;
    Division {
        tasks,
        long: iterations % tasks,
        long_iterations: short_iterations.wrapping_add(1),
        short_iterations,
    }
}

/// A `taskloop` as the compiler calls it. The task's data begin with its first value and its end.
///
/// # Safety
/// `thread` is the calling thread's; the rest as [`super::spawn`].
pub unsafe fn taskloop(thread: *mut Thread, creation: &Creation, amount: u64, range: Iterations) {
    // SAFETY: the caller's promise.
    unsafe {
        let flags = creation.flags;
        let team = (*thread).at.team;
        let is_team_cancelled =
            icv::globals().cancellation && is_cancelled(team, std::ptr::null_mut());
        if range.count() == 0 || is_team_cancelled {
            if flags & (FLAG_NOGROUP | FLAG_REDUCTION) == FLAG_REDUCTION {
                // Says that nothing was registered.
                *reductions_of(creation.data).add(2) = 0;
            }
            return;
        }
        let clause = match (flags & FLAG_GRAINSIZE != 0, flags & FLAG_STRICT != 0) {
            (false, _) => Clause::Tasks(amount),
            (true, false) => Clause::Grainsize(amount),
            (true, true) => Clause::StrictGrainsize(amount),
        };
        let threads = team.as_ref().map_or(1, |t| t.nthreads);
        let division = divide(range.count(), clause, u64::from(threads));

        let has_group = flags & FLAG_NOGROUP == 0;
        if has_group {
            group::start(thread);
            if flags & FLAG_REDUCTION != 0 {
                reduction::register_reductions(thread, reductions_of(creation.data));
            }
        } else if group::is_task_cancelled((*thread).task) {
            return;
        }
        let mut done = 0;
        for i in 0..division.tasks {
            let iterations = if i < division.long {
                division.long_iterations
            } else {
                division.short_iterations
            };
            let (start, end) = range.values(done, done + iterations);
            done += iterations;
            spawn_within(thread, creation, Copy::Always, &mut |data: *mut c_void| {
                let bounds = data.cast::<u64>();
                *bounds = start;
                *bounds.add(1) = end;
            });
        }
        if has_group {
            group::end(thread);
        }
    }
}

/// The array of reductions: it comes after the two bounds.
unsafe fn reductions_of(data: *mut c_void) -> *mut usize {
    // SAFETY: the caller says that there is one.
    unsafe { *data.cast::<*mut usize>().add(2) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_iterations_are_given_out_as_the_clause_says(
            iterations in 1u64..5_000,
            amount in 1u64..6_000,
            threads in 1u64..600,
        ) {
            let total = |d: Division| d.long * d.long_iterations + (d.tasks - d.long) * d.short_iterations;
            let d = divide(iterations, Clause::Grainsize(amount), threads);
            prop_assert_eq!(total(d), iterations);
            let least = if d.long == d.tasks { d.long_iterations } else { d.short_iterations };
            prop_assert!(least >= amount.min(iterations));
            let most = if d.long == 0 { d.short_iterations } else { d.long_iterations };
            prop_assert!(most < 2 * amount);

            let d = divide(iterations, Clause::StrictGrainsize(amount), threads);
            prop_assert_eq!(total(d), iterations);
            prop_assert_eq!(d.long_iterations, amount.min(iterations));
            prop_assert!(d.tasks - d.long <= 1 && d.short_iterations < d.long_iterations);

            let d = divide(iterations, Clause::Tasks(amount), threads);
            prop_assert_eq!(total(d), iterations);
            prop_assert_eq!(d.tasks, amount.min(iterations));
            let d = divide(iterations, Clause::Tasks(0), threads);
            prop_assert_eq!(d.tasks, threads.min(iterations));
        }
    }

    #[test]
    fn as_many_iterations_as_there_are_numbers_are_divided() {
        let all = divide(u64::MAX, Clause::Tasks(1), 1);
        assert_eq!((all.tasks, all.short_iterations), (1, u64::MAX));
    }
}
