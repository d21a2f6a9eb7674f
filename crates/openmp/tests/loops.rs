//! Loops, sections and `single` with real threads: everything is done once, by one of them.

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use amdahl_openmp::loops::{self, Extras};
use amdahl_openmp::schedule::Iterations;
use amdahl_openmp::share::{self, Deal};
use amdahl_openmp::thread::{self, Thread};
use amdahl_openmp::{doacross, ordered, single};
use common::{barrier, parallel, region};
use proptest::prelude::*;

fn deals() -> impl Strategy<Value = Deal> {
    let chunk = prop_oneof![0u64..5, Just(17), Just(u64::MAX)];
    (0..5, chunk).prop_map(|(kind, chunk)| match kind {
        0 => Deal::Static { chunk },
        1 => Deal::Dynamic {
            chunk,
            is_monotonic: true,
        },
        2 => Deal::Dynamic {
            chunk,
            is_monotonic: false,
        },
        3 => Deal::Guided { chunk },
        _ => Deal::Auto,
    })
}

fn is_monotonic(deal: Deal) -> bool {
    !matches!(
        deal,
        Deal::Auto
            | Deal::Dynamic {
                is_monotonic: false,
                ..
            }
    )
}

/// What a thread does in a loop: marks its iterations.
fn mark(thread: *mut Thread, marks: &[AtomicU32], is_monotonic: bool) {
    let mut before = None;
    // SAFETY: the calling thread's.
    while let Some((first, end)) = unsafe { loops::next(thread) } {
        assert!(first < end && (!is_monotonic || before <= Some(first)));
        before = Some(end);
        for i in first..end {
            marks[i as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn marks(count: u64) -> Vec<AtomicU32> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

fn all_are(marks: &[AtomicU32], expected: u32) -> bool {
    marks
        .iter()
        .all(|mark| mark.load(Ordering::Relaxed) == expected)
}

/// Turns of a thread that make it earlier or later than others, whatever the machine does.
fn dawdle(state: &Cell<u64>) {
    state.set(
        state
            .get()
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1),
    );
    match state.get() >> 60 {
        0 => std::thread::yield_now(),
        turns => (0..turns * 20).for_each(|_| std::hint::spin_loop()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Loops after one another, with barriers between some of them, in several regions of changing size.
    #[test]
    fn each_iteration_is_dealt_out_once(
        regions in prop::collection::vec((1u32..20, 1usize..40), 1..4),
        kinds in prop::collection::vec((deals(), 0u64..300, any::<bool>()), 1..6),
        seed: u64,
    ) {
        for (nthreads, length) in regions {
            let sequence: Vec<_> = kinds.iter().cycle().take(length).collect();
            let marks: Vec<_> = sequence.iter().map(|&&(_, count, _)| marks(count)).collect();
            let (deal, count, _) = *sequence[0];
            region(
                nthreads,
                |share| share.deal(Iterations::upto(count), deal, nthreads),
                |thread, id| {
                    let state = Cell::new(seed ^ u64::from(id) << 32);
                    for (i, &&(deal, count, is_met)) in sequence.iter().enumerate() {
                        dawdle(&state);
                        if i > 0 {
                            // SAFETY: the calling thread's.
                            unsafe { loops::start(thread, || Iterations::upto(count), deal) };
                        }
                        mark(thread, &marks[i], is_monotonic(deal));
                        if is_met {
                            barrier(thread);
                            assert!(all_are(&marks[i], 1));
                        }
                    }
                },
            );
            for marks in &marks {
                prop_assert!(all_are(marks, 1));
            }
        }
    }

    #[test]
    fn ordered_regions_come_in_order(
        nthreads in 1u32..12,
        deal in deals(),
        count in 0u64..200,
        from in -50i64..50,
        step in prop_oneof![-3i64..0, 1i64..4],
        seed: u64,
    ) {
        let deal = match deal {
            Deal::Dynamic { chunk, .. } => Deal::Dynamic { chunk, is_monotonic: true },
            Deal::Auto => Deal::Static { chunk: 0 },
            other => other,
        };
        let turn = AtomicU64::new(0);
        let to = from + step * count as i64;
        for _ in 0..2 {
            turn.store(0, Ordering::Relaxed);
            parallel(nthreads, |thread, id| {
                let state = Cell::new(seed ^ u64::from(id) << 32);
                // SAFETY: the calling thread's.
                unsafe {
                    share::enter(thread, |share, threads| {
                        share.deal(Iterations::signed(from, to, step), deal, threads);
                        share.order(threads);
                    });
                    let mut range = ordered::first(thread);
                    while let Some((first, end)) = range {
                        let (mut i, end) = (first as i64, end as i64);
                        while i != end {
                            dawdle(&state);
                            // Every third iteration does nothing in order.
                            if i % 3 != 0 {
                                ordered::enter(thread);
                                let number = ((i - from) / step) as u64;
                                let before = turn.swap(number, Ordering::Relaxed);
                                assert!(before < number || number == 0);
                            }
                            i += step;
                        }
                        range = ordered::next(thread);
                    }
                }
            });
        }
    }

    /// Iteration (i, j) adds what (i - 1, j) and (i, j - 1) have: binomials, if and only if each waits for both.
    #[test]
    fn iterations_wait_for_those_before(
        nthreads in 1u32..10,
        deal in deals(),
        rows in 1u64..24,
        columns in 1u64..12,
        is_wide: bool,
    ) {
        let deal = match deal {
            Deal::Dynamic { chunk, .. } => Deal::Dynamic { chunk, is_monotonic: true },
            Deal::Auto => Deal::Static { chunk: 0 },
            other => other,
        };
        let cell = |i: u64, j: u64| (i * columns + j) as usize;
        let sums: Vec<AtomicU64> = (0..rows * columns).map(|_| AtomicU64::new(0)).collect();
        // With a third loop that has too many iterations for one word.
        let counts = [rows, columns, if is_wide { u64::MAX } else { 1 }];
        let number = |i: u64, j: u64| move |at: usize| [i, j, 0][at];
        parallel(nthreads, |thread, _| {
            // SAFETY: the calling thread's.
            unsafe {
                share::enter(thread, |share, threads| {
                    share.deal(Iterations::upto(rows), deal, threads);
                    share.cross(&counts, threads);
                });
                while let Some((first, end)) = loops::next(thread) {
                    for i in first..end {
                        for j in 0..columns {
                            let mut sum = u64::from(i == 0 && j == 0);
                            if i > 0 {
                                doacross::wait(thread, number(i - 1, j));
                                sum += sums[cell(i - 1, j)].load(Ordering::Relaxed);
                            }
                            if j > 0 {
                                doacross::wait(thread, number(i, j - 1));
                                sum += sums[cell(i, j - 1)].load(Ordering::Relaxed);
                            }
                            assert_ne!(sum, 0);
                            sums[cell(i, j)].store(sum, Ordering::Relaxed);
                            doacross::post(thread, number(i, j));
                        }
                    }
                }
            }
        });
        let mut row = vec![1u64; columns as usize];
        for i in 0..rows {
            if i > 0 {
                for j in 1..columns as usize {
                    row[j] += row[j - 1];
                }
            }
            for j in 0..columns {
                prop_assert_eq!(sums[cell(i, j)].load(Ordering::Relaxed), row[j as usize]);
            }
        }
    }
}

/// A thread that had come late to a region found its first share in use again, under a number that made all others
/// look as if everybody had left them: iterations were dealt out twice.
#[test]
fn threads_may_be_any_number_of_shares_apart() {
    const SHARES: u64 = 2_000;
    for nthreads in [2, 5, 16] {
        let done = AtomicU64::new(0);
        let ahead = AtomicU64::new(0);
        parallel(nthreads, |thread, id| {
            let each = Deal::Dynamic {
                chunk: 1,
                is_monotonic: false,
            };
            for number in 0..SHARES {
                // The first thread goes on when another one is far ahead, again and again.
                if id == 0 && number % 100 == 0 {
                    while ahead.load(Ordering::Relaxed) < (number + 150).min(SHARES) {
                        std::thread::yield_now();
                    }
                }
                // SAFETY: the calling thread's.
                unsafe {
                    loops::start(thread, || Iterations::upto(3), each);
                    while let Some((first, end)) = loops::next(thread) {
                        done.fetch_add(end - first, Ordering::Relaxed);
                    }
                }
                ahead.fetch_max(number + 1, Ordering::Relaxed);
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 3 * SHARES);
    }
}

#[test]
fn loops_outside_of_regions_are_the_thread_s_own() {
    std::thread::spawn(|| {
        for deal in [
            Deal::Static { chunk: 0 },
            Deal::Static { chunk: 3 },
            Deal::Dynamic {
                chunk: 4,
                is_monotonic: false,
            },
            Deal::Guided { chunk: 2 },
            Deal::Auto,
        ] {
            let thread = thread::current();
            let marks = marks(50);
            // SAFETY: the calling thread's.
            unsafe { loops::start(thread, || Iterations::upto(50), deal) };
            mark(thread, &marks, true);
            assert!(all_are(&marks, 1));
        }
    })
    .join()
    .unwrap();
}

#[test]
fn loops_of_any_number_end() {
    let counts = [u64::MAX, u64::MAX - 1, 1 << 63];
    for (nthreads, count) in [1, 2, 9].into_iter().flat_map(|n| counts.map(|c| (n, c))) {
        for chunk in [1 << 62, u64::MAX / 3, u64::MAX] {
            for kind in 0..4 {
                let deal = match kind {
                    0 => Deal::Static { chunk },
                    1 => Deal::Dynamic {
                        chunk,
                        is_monotonic: false,
                    },
                    2 => Deal::Guided { chunk },
                    _ => Deal::Auto,
                };
                let sum = AtomicU64::new(0);
                parallel(nthreads, |thread, _| {
                    // SAFETY: the calling thread's.
                    unsafe {
                        loops::start(thread, || Iterations::upto(count), deal);
                        while let Some((first, end)) = loops::next(thread) {
                            sum.fetch_add(end - first, Ordering::Relaxed);
                        }
                        // Nor is anything left for one who asks again.
                        assert_eq!(loops::next(thread), None);
                    }
                });
                assert_eq!(sum.load(Ordering::Relaxed), count);
            }
        }
    }
}

#[test]
fn each_section_and_single_is_done_once() {
    for nthreads in [1, 2, 7, 16] {
        let marks = marks(10);
        let singles = AtomicU32::new(0);
        parallel(nthreads, |thread, id| {
            for round in 0..200 {
                // SAFETY: the calling thread's.
                unsafe {
                    share::enter(thread, |share, threads| loops::sections(share, 10, threads));
                    loop {
                        match loops::next_section(thread) {
                            0 => break,
                            section => marks[section as usize - 1].fetch_add(1, Ordering::Relaxed),
                        };
                    }
                    if single::start(thread) {
                        singles.fetch_add(1, Ordering::Relaxed);
                    }
                    // What the one has is what all get.
                    let own = AtomicUsize::new((round * 100 + id) as usize + 1);
                    let given = single::copy_start(thread);
                    if given.is_null() {
                        single::copy_end(thread, (&raw const own).cast_mut().cast());
                    } else {
                        let got = (*given.cast::<AtomicUsize>()).load(Ordering::Relaxed);
                        assert_eq!(got as u32 / 100, round);
                    }
                    barrier(thread);
                }
            }
        });
        assert!(all_are(&marks, 200));
        assert_eq!(singles.load(Ordering::Relaxed), 200);
    }
}

#[test]
fn memory_of_a_share_is_the_same_for_all_and_zero() {
    for nthreads in [1, 2, 8] {
        parallel(nthreads, |thread, _| {
            for bytes in [8usize, 64, 1000, 1 << 17, 24] {
                let mut memory = std::ptr::without_provenance_mut(bytes);
                let extras = Extras {
                    reductions: std::ptr::null_mut(),
                    memory: &raw mut memory,
                };
                // SAFETY: the calling thread's; the memory has the size that was asked for.
                unsafe {
                    loops::enter(thread, extras, |_, _| {});
                    assert_eq!(memory.addr() % 64, 0);
                    let words = std::slice::from_raw_parts(memory.cast::<AtomicU64>(), bytes / 8);
                    for word in words {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                    barrier(thread);
                    let all = words
                        .iter()
                        .all(|w| w.load(Ordering::Relaxed) == nthreads.into());
                    assert!(all);
                }
            }
        });
    }
}
