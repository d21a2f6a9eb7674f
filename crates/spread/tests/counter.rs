//! Counters lose nothing, whatever happens to the threads that add.

#[cfg(all(target_os = "linux", not(miri)))]
mod again;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

use amdahl_spread::{Counter, LlcMap, Placement};
use amdahl_topology::{CpuSet, Topology};
use proptest::prelude::*;

const PLACEMENTS: [Placement; 2] = [Placement::PerCpu, Placement::PerLlc];

/// A map in which CPU 0 is all there is: whoever is elsewhere is beyond it.
fn one_cpu() -> Arc<LlcMap> {
    let cpus = CpuSet::from_iter([0]);
    Arc::new(LlcMap::new(&Topology::flat(&cpus).expect("a CPU"), 1))
}

/// A machine much larger than this one.
fn large() -> Arc<LlcMap> {
    let topology = Topology::synthetic("2 node x 8 llc x 16 core x 2 thread").expect("valid");
    Arc::new(LlcMap::new(&topology, 1024))
}

fn counters() -> Vec<Counter> {
    let maps = [LlcMap::of_this_machine(), one_cpu(), large()];
    let on = |map: &Arc<LlcMap>| PLACEMENTS.map(|placement| Counter::on(placement, map.clone()));
    maps.iter().flat_map(on).collect()
}

#[test]
fn placement_is_what_was_asked_for_where_it_can_be() {
    assert_eq!(Counter::per_llc().placement(), Placement::PerLlc);
    assert_eq!(Counter::new().placement(), Placement::best());
    let per_cpu = Counter::with(Placement::PerCpu);
    assert_eq!(per_cpu.placement(), Placement::best());
    if Placement::best() == Placement::PerLlc {
        eprintln!("SKIPPED: per CPU: this kernel or emulator has no restartable sequences");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 20 }))]

    #[test]
    fn a_counter_is_a_wrapping_sum(deltas in prop::collection::vec(any::<(bool, i64)>(), 0..30)) {
        for counter in counters() {
            let mut sum = 0_i64;
            for &(adds, delta) in &deltas {
                match adds {
                    true => { counter.add(delta); sum = sum.wrapping_add(delta); }
                    false => { counter.sub(delta); sum = sum.wrapping_sub(delta); }
                }
                prop_assert_eq!(counter.read(), sum);
            }
        }
    }
}

#[test]
fn sums_wrap_at_both_ends() {
    for counter in counters() {
        counter.add(i64::MAX);
        counter.add(1);
        assert_eq!(counter.read(), i64::MIN);
        counter.sub(1);
        assert_eq!(counter.read(), i64::MAX);
        counter.sub(i64::MIN);
        assert_eq!(counter.read(), -1);
        assert_eq!(counter.read() as u64, u64::MAX);
    }
}

/// Threads of which half jump from CPU to CPU, in generations that die.
fn migrate(threads: usize, generations: usize, additions: usize) {
    let cpus = threads::allowed();
    for counter in counters() {
        for _ in 0..generations {
            thread::scope(|scope| {
                for number in 0..threads {
                    let (counter, cpus) = (&counter, &cpus);
                    scope.spawn(move || {
                        for n in 0..additions {
                            if number % 2 == 0 && n % 256 == 0 {
                                threads::move_to(cpus[(number + n / 256) % cpus.len()]);
                            }
                            counter.add(3);
                            counter.sub(1);
                        }
                    });
                }
            });
        }
        let expected = 2 * threads * generations * additions;
        assert_eq!(counter.read(), expected as i64, "{counter:?}");
    }
}

#[test]
fn threads_that_move_and_die_lose_nothing() {
    match cfg!(miri) {
        true => migrate(3, 2, 30),
        false => migrate(8, 3, 4096),
    }
}

#[test]
#[ignore = "takes two minutes"]
fn sixty_four_threads_that_move_and_die_lose_nothing_for_minutes() {
    threads::for_minutes(|| migrate(64, 3, 20_000));
}

#[test]
fn what_is_read_meanwhile_lies_between_what_was_and_what_will_be() {
    for counter in counters() {
        let stop = AtomicBool::new(false);
        // Counted after and before the addition itself.
        let (done, begun) = (AtomicI64::new(0), AtomicI64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        begun.fetch_add(1, Ordering::SeqCst);
                        counter.add(1);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..if cfg!(miri) { 20 } else { 500 } {
                let least = done.load(Ordering::SeqCst);
                let sum = counter.read();
                let most = begun.load(Ordering::SeqCst);
                assert!((least..=most).contains(&sum), "{least} {sum} {most}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(counter.read(), done.into_inner());
    }
}

#[test]
fn counters_beside_each_other_do_not_mix() {
    const MANY: usize = if cfg!(miri) { 100 } else { 1500 };
    let counters: Vec<Counter> = (0..MANY)
        .map(|n| Counter::with(PLACEMENTS[n % 2]))
        .collect();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for (n, counter) in counters.iter().enumerate() {
                    counter.add(n as i64);
                }
            });
        }
    });
    for (n, counter) in counters.iter().enumerate() {
        assert_eq!(counter.read(), 3 * n as i64);
    }
    drop(counters);
    assert!((0..MANY).all(|_| Counter::new().read() == 0));
}

/// The child of a fork goes on with counters of its own.
#[test]
#[cfg(not(miri))]
fn forks_have_separate_counters() {
    for counter in counters() {
        counter.add(5);
        // SAFETY: the child only adds, reads and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for _ in 0..1000 {
                counter.add(2);
            }
            let right = counter.read() == 2005;
            // SAFETY: ends the process without running what the parent will run.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        counter.add(1);
        let mut status = 0;
        // SAFETY: the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{counter:?}");
        assert_eq!(counter.read(), 6);
    }
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn all_of_it_where_the_c_library_does_not_register() {
    if Placement::best() == Placement::PerLlc {
        eprintln!("SKIPPED: own registration: this kernel or emulator has no sequences");
        return;
    }
    again::unregistered();
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn all_of_it_where_the_kernel_refuses() {
    again::refused();
}
