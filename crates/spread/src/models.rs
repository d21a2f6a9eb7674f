//! All interleavings of the lock-free paths, by loom: `RUSTFLAGS="--cfg loom" cargo test -p amdahl-spread --release --lib models`.
//!
//! What loom does not see: restartable sequences (they are not atomics; see rseq/tests.rs), and hashed locks, whose
//! locks are parking_lot's.

use std::num::NonZeroU64;

use amdahl_topology::Topology;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::cpu::be_on;
use crate::mask::SparseMask;
use crate::{Clock, Counter, LlcMap, Placement, PublishedCounter};

fn two_llcs() -> std::sync::Arc<LlcMap> {
    let topology = Topology::synthetic("2 llc x 1 core").expect("valid");
    std::sync::Arc::new(LlcMap::new(&topology, 2))
}

/// Two threads that both set and clear: every set bit is taken by one, who sees what was done before it was set.
#[test]
fn a_bit_is_taken_once_and_with_what_came_before() {
    loom::model(|| {
        let mask = Arc::new(SparseMask::new(2).unwrap());
        let work = Arc::new(AtomicU64::new(0));
        let setter = {
            let (mask, work) = (mask.clone(), work.clone());
            thread::spawn(move || {
                work.store(1, Ordering::Relaxed);
                assert_eq!(mask.set(1), Ok(false));
            })
        };
        let take = |mask: &SparseMask, work: &AtomicU64| {
            let taken = mask
                .first_from(1)
                .is_some_and(|cpu| mask.clear(cpu) == Ok(true));
            assert!(!taken || work.load(Ordering::Relaxed) == 1);
            taken
        };
        let taker = {
            let (mask, work) = (mask.clone(), work.clone());
            thread::spawn(move || take(&mask, &work))
        };
        let here = take(&mask, &work);
        setter.join().unwrap();
        let there = taker.join().unwrap();
        assert_eq!(u32::from(here) + u32::from(there) + mask.count(), 1);
    });
}

/// Whoever adds work and then sets the bit is not missed by one who clears it and then looks for work.
#[test]
fn no_work_is_left_behind_a_cleared_bit() {
    loom::model(|| {
        let mask = Arc::new(SparseMask::new(1).unwrap());
        let work = Arc::new(AtomicU64::new(0));
        mask.set(0).unwrap();
        let adder = {
            let (mask, work) = (mask.clone(), work.clone());
            thread::spawn(move || {
                work.fetch_add(1, Ordering::Relaxed);
                mask.set(0).unwrap();
            })
        };
        mask.clear(0).unwrap();
        let seen = work.load(Ordering::Relaxed) == 1;
        adder.join().unwrap();
        assert!(seen || mask.test(0));
    });
}

/// A sum that is read meanwhile has each addition wholly or not, and all that happened before.
#[test]
fn a_sum_has_what_came_before() {
    loom::model(|| {
        let counter = Arc::new(Counter::on(Placement::PerLlc, two_llcs()));
        counter.add(1);
        let adders: Vec<_> = (0..2)
            .map(|cpu| {
                let counter = counter.clone();
                thread::spawn(move || {
                    be_on(cpu);
                    counter.add(10);
                })
            })
            .collect();
        assert!([1, 11, 21].contains(&counter.read()));
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        assert_eq!(counter.read(), 21);
    });
}

struct Simulated(Arc<AtomicU64>);

impl Clock for Simulated {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Two threads cross the threshold while a publication is due or under way: while time stands the sum is published once, and an
/// interval after the last of them nothing but the slack is missing.
#[test]
fn what_crossed_is_published_in_the_end() {
    const INTERVAL_NS: u64 = PublishedCounter::<Simulated>::INTERVAL_NS;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let time = Arc::new(AtomicU64::new(0));
        let threshold = NonZeroU64::new(2).unwrap();
        let clock = Simulated(time.clone());
        let counter = PublishedCounter::with(threshold, Placement::PerLlc, two_llcs(), clock);
        let counter = Arc::new(counter);
        // Due from the beginning.
        time.store(INTERVAL_NS, Ordering::Relaxed);
        let adders: Vec<_> = (0..2)
            .map(|cpu| {
                let counter = counter.clone();
                thread::spawn(move || {
                    be_on(cpu);
                    counter.add(2);
                })
            })
            .collect();
        let meanwhile = counter.read();
        assert!([0, 2, 4].contains(&meanwhile), "{meanwhile}");
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        let afterwards = counter.read();
        assert!(
            meanwhile == 0 || meanwhile == afterwards,
            "{meanwhile} {afterwards}"
        );
        time.store(2 * INTERVAL_NS, Ordering::Relaxed);
        // Both additions reached the threshold, so that both marks have moved: nothing may be missing.
        assert_eq!(counter.read(), 4, "{counter:?}");
    });
}
