//! Where a woken worker begins.
//!
//! Some kernels put a woken thread onto its waker's CPU, or leave it on a taken one, though others are idle: to save those
//! a wake-up, or because they take the halted CPUs of a virtual machine for busy ones. The waker knows better: there is
//! work for both. So a worker that begins on its waker's CPU goes to one that was free, and where that was seen to happen the
//! next ones are confined to a CPU that is free until they run. Only hints:
//! a CPU counts as taken by the threads of this pool alone. Who is confined to a CPU that somebody else keeps is let go by the
//! watch; and where load is not followed nobody is confined.

use amdahl_placement::{CpuId, Machine};
use amdahl_topology::CpuSet;

use crate::registry::Registry;
use crate::sync::{AtomicU32, Ordering};
use crate::sys;
use crate::worker::Worker;

/// So many CPUs are looked at for a free one, beside the obvious.
const LOOKS: usize = 16;

/// So many workers are confined after one that began behind its waker; then the kernel is trusted again, once.
const DISTRUST: u32 = 64;

/// No CPU.
const NONE: u32 = u32::MAX;

/// A CPU's part and its worker's part in this. Hints, but for `confined`.
pub(crate) struct Landing {
    /// Threads of the pool that are awake and were last seen on this CPU.
    tenants: AtomicU32,
    /// The CPU on which the slot's thread was last seen.
    seen_on: AtomicU32,
    /// Whence it was woken last, while another CPU was free, without being confined.
    woken_from: AtomicU32,
    /// The CPU that was free then.
    beside: AtomicU32,
    /// [`FREE`], or how far its confinement by a waker is.
    confined: AtomicU32,
    /// Which of the masks where workers may be it has; 0 before the first.
    mask: AtomicU32,
}

/// For [`Landing::confined`]: it is not.
const FREE: u32 = 0;
/// Its waker has confined it to one CPU.
const CONFINED: u32 = 1;
/// The watch is about to let it go.
const RELEASING: u32 = 2;

impl Landing {
    pub(crate) fn new() -> Self {
        Landing {
            tenants: AtomicU32::new(0),
            seen_on: AtomicU32::new(0),
            woken_from: AtomicU32::new(NONE),
            beside: AtomicU32::new(0),
            confined: AtomicU32::new(FREE),
            mask: AtomicU32::new(0),
        }
    }
}

/// What the pool knows of the kernel in this.
pub(crate) struct Landings {
    /// The machine's CPUs by the kernel's numbers.
    by_kernel: Box<[Option<CpuId>]>,
    /// So many workers more will be confined.
    distrust: AtomicU32,
}

impl Landings {
    pub(crate) fn new(machine: &Machine) -> Self {
        let numbers = (0..machine.cpus()).map(|cpu| machine.kernel_cpu(cpu));
        let mut by_kernel = vec![None; numbers.max().map_or(0, |last| last as usize + 1)];
        for cpu in 0..machine.cpus() {
            by_kernel[machine.kernel_cpu(cpu) as usize] = Some(cpu);
        }
        Landings {
            by_kernel: by_kernel.into(),
            distrust: AtomicU32::new(0),
        }
    }

    /// The CPU this thread is on, if it is of the machine.
    pub(crate) fn here(&self) -> Option<CpuId> {
        *self.by_kernel.get(sys::current_cpu() as usize)?
    }

    /// Whether the next worker that is woken is confined.
    fn distrusts(&self) -> bool {
        let left = self.distrust.load(Ordering::Relaxed);
        if left > 0 {
            self.distrust.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// A worker that was woken from `from` while another CPU was free began on `on`.
    fn began(&self, from: CpuId, on: CpuId) {
        if from == on {
            self.distrust.store(DISTRUST, Ordering::Relaxed);
        }
    }
}

impl Registry {
    /// The thread of slot `index` goes on.
    pub(crate) fn land(&self, index: u32) {
        let own = &self.slots[index as usize].landing;
        let is_bound =
            || Worker::current_in(self).is_some_and(|worker| worker.bound_to.get().is_some());
        let mut was_confined = false;
        if let Some(here) = self.landings.here() {
            own.seen_on.store(here, Ordering::Relaxed);
            let from = own.woken_from.load(Ordering::Relaxed);
            if from != NONE {
                own.woken_from.store(NONE, Ordering::Relaxed);
                self.landings.began(from, here);
                was_confined = from == here && !is_bound() && self.step_aside(own);
            }
        }
        self.tenants_of(own).fetch_add(1, Ordering::Relaxed);
        // Relaxed: who confines a worker does so before the Release of `is_counted`, without which it does not get here.
        if own.confined.load(Ordering::Relaxed) != FREE {
            was_confined = true;
            // The watch shall not let it go when it is confined by its work already.
            while own.confined.compare_exchange(
                CONFINED,
                FREE,
                Ordering::Acquire,
                Ordering::Acquire,
            ) == Err(RELEASING)
            {
                std::thread::yield_now();
            }
        }
        // Guests have the mask that their program gave them.
        if !self.settings.binds || !self.is_worker(index) {
            return;
        }
        let mask = self.roaming_mask();
        if (was_confined || own.mask.load(Ordering::Relaxed) != mask) && !is_bound() {
            self.roam(index);
        }
    }

    /// This thread has begun on its waker's CPU, and is confined to the one that was free then, if it still is.
    fn step_aside(&self, own: &Landing) -> bool {
        let to = own.beside.load(Ordering::Relaxed);
        let has_left = self.tenants_of(own).load(Ordering::Relaxed) == 0;
        if has_left || !self.is_free(to) {
            return false;
        }
        let goes = sys::bind(0, &CpuSet::from_iter([self.machine.kernel_cpu(to)])).is_ok();
        if goes {
            own.seen_on.store(to, Ordering::Relaxed);
        }
        goes
    }

    /// Whether workers may be on the CPU, and none was seen there.
    fn is_free(&self, cpu: CpuId) -> bool {
        let tenants = &self.slots[cpu as usize].landing.tenants;
        self.may_roam(cpu) && tenants.load(Ordering::Relaxed) == 0
    }

    /// This thread, that of slot `index`, goes where workers may be.
    pub(crate) fn roam(&self, index: u32) {
        let mask = self.roaming_mask();
        // If that fails all those CPUs have just gone: it tries again when it has slept.
        let is_free = sys::bind(0, &self.roaming_of(index)).is_ok();
        let mask = if is_free { mask } else { 0 };
        let of_slot = &self.slots[index as usize].landing.mask;
        of_slot.store(mask, Ordering::Relaxed);
    }

    /// Lets workers that their wakers have confined, and which have not run since, go where they may.
    pub(crate) fn release_confined(&self) {
        for (index, slot) in (0..).zip(&self.slots[..self.cpus() as usize]) {
            let confined = &slot.landing.confined;
            let claimed = confined.load(Ordering::Relaxed) == CONFINED
                && confined
                    .compare_exchange(CONFINED, RELEASING, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if claimed {
                let thread = slot.thread_id.load(Ordering::Relaxed);
                // If all its CPUs have just gone, it tries itself when it runs.
                if sys::bind(thread, &self.roaming_of(index)).is_err() {
                    slot.landing.mask.store(0, Ordering::Relaxed);
                }
                // Release: pairs with the Acquire in `land`, after which the worker may be bound by its work.
                confined.store(FREE, Ordering::Release);
            }
        }
    }

    /// It will sleep, or leaves.
    pub(crate) fn take_off(&self, index: u32) {
        let own = &self.slots[index as usize].landing;
        self.tenants_of(own).fetch_sub(1, Ordering::Relaxed);
        // It may have been moved while it ran.
        if let Some(here) = self.landings.here() {
            own.seen_on.store(here, Ordering::Relaxed);
        }
    }

    fn tenants_of(&self, landing: &Landing) -> &AtomicU32 {
        let on = landing.seen_on.load(Ordering::Relaxed);
        &self.slots[on as usize].landing.tenants
    }

    /// This thread wakes the worker `cpu`, whose bit it has cleared. If it is of the pool it goes on here itself, so the
    /// other one shall begin elsewhere. On crowded CPUs where is left to the kernel, which knows who else is there.
    pub(crate) fn steer(&self, cpu: CpuId) {
        let slot = &self.slots[cpu as usize];
        // One that waits may be confined by work on a CPU.
        if !self.settings.binds || !self.settings.steers || slot.is_waiting.load(Ordering::Relaxed)
        {
            return;
        }
        let Some(waker) = Worker::current_in(self) else {
            return;
        };
        let Some(here) = self.landings.here() else {
            return;
        };
        let last = slot.landing.seen_on.load(Ordering::Relaxed);
        let is_free = |&cpu: &CpuId| cpu != here && self.is_free(cpu);
        let others = self.online_mask().iter_from(cpu + 1).take(LOOKS);
        let near = [last, cpu, waker.cpu].into_iter();
        let Some(to) = near.chain(others).find(is_free) else {
            return;
        };
        let thread = slot.thread_id.load(Ordering::Relaxed);
        if thread != 0 && !self.crowd.is_crowded() && self.landings.distrusts() {
            let to = self.machine.kernel_cpu(to);
            // Only a hint: if the CPU has just gone, the kernel chooses.
            if sys::bind(thread, &CpuSet::from_iter([to])).is_ok() {
                // Release: who lets it go does so after this.
                slot.landing.confined.store(CONFINED, Ordering::Release);
            }
        } else {
            slot.landing.beside.store(to, Ordering::Relaxed);
            slot.landing.woken_from.store(here, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool as StdBool;

    use amdahl_topology::Topology;

    use super::*;
    use crate::Pool;

    #[test]
    fn a_kernel_that_stacks_is_not_trusted_for_a_while() {
        let landings = Landings::new(&Machine::new(&Topology::synthetic("4 core").unwrap()));
        landings.began(0, 1);
        assert!(!landings.distrusts());
        landings.began(2, 2);
        assert!((0..DISTRUST).all(|_| landings.distrusts()));
        assert!(!landings.distrusts(), "once more it may show what it does");
    }

    #[test]
    fn a_confined_thread_that_asks_confines_no_workers() {
        let allowed = amdahl_topology::allowed().unwrap();
        let pool = Pool::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sys::bind(0, &CpuSet::from_iter([allowed.first().unwrap()])).unwrap();
                pool.refresh();
                assert_eq!(pool.registry.roaming(), allowed);
            });
        });
    }

    /// A pool that steers, and the CPUs it may use; `None` where they are too few.
    fn steering() -> Option<(Arc<Pool>, CpuSet)> {
        let allowed = amdahl_topology::allowed().unwrap();
        if allowed.len() < 2 {
            eprintln!("SKIPPED: one CPU is allowed, workers cannot begin beside each other");
            return None;
        }
        // Load is not followed, so that all may run whoever else is there.
        let mut builder = Pool::builder().follows_load(false);
        builder.settings.steers = true;
        Some((Arc::new(builder.build().unwrap()), allowed))
    }

    /// Once one had begun behind its waker the threads' waits made the pool look crowded, where nobody is confined: all ranges
    /// that followed had one CPU.
    #[test]
    fn a_worker_that_begins_on_its_wakers_cpu_steps_aside_even_if_it_is_crowded() {
        let Some((pool, allowed)) = steering() else {
            return;
        };
        let all = pool.threads();
        pool.registry.crowd.set(true);
        let inner = pool.clone();
        let job = move || {
            let registry = &inner.registry;
            while inner.state().sleeping < all - 1 {
                std::thread::yield_now();
            }
            let here = CpuSet::from_iter([sys::current_cpu()]);
            let index = Worker::current().unwrap().index;
            let others = registry.slots[..registry.cpus() as usize].iter();
            for slot in others.filter(|slot| slot.thread_id.load(Ordering::Relaxed) != 0) {
                // This one, too: it shall stay.
                sys::bind(slot.thread_id.load(Ordering::Relaxed), &here).unwrap();
            }
            registry.take_off(index);
            registry.land(index);
            let here = registry.landings.here().unwrap();
            let began = Arc::new(StdBool::new(false));
            let told = began.clone();
            let woken = crate::spawn(move || {
                let seen_on = &Worker::current().unwrap().slot().landing.seen_on;
                told.store(true, Ordering::Release);
                (
                    seen_on.load(Ordering::Relaxed),
                    amdahl_topology::allowed().unwrap(),
                )
            });
            // Who joins would run it.
            while !began.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let (began_on, may_run_on) = woken.join().unwrap();
            (here, began_on, may_run_on)
        };
        let (here, began_on, may_run_on) = pool.spawn(job).join().unwrap();
        pool.registry.crowd.set(false);
        assert_ne!(began_on, here);
        assert_eq!(may_run_on, allowed, "and roams again");
    }

    /// Jobs given from outside after a pause ran nearly all on one worker: the kernel put the second one behind it, on the
    /// same CPU, and left the other CPU idle.
    #[test]
    fn a_worker_begins_beside_its_waker_and_roams_again() {
        let Some((pool, allowed)) = steering() else {
            return;
        };
        let all = pool.threads();
        let landings = &pool.registry.landings;
        let mut steered = 0;
        for round in 0..20 {
            while pool.state().sleeping < all {
                std::thread::yield_now();
            }
            landings.distrust.store(1, Ordering::Relaxed);
            let inner = pool.clone();
            let job = move || {
                let registry = &inner.registry;
                while inner.state().sleeping < all - 1 {
                    std::thread::yield_now();
                }
                // Where the waker is shall not change meanwhile.
                let at = sys::current_cpu();
                sys::bind(0, &CpuSet::from_iter([at])).unwrap();
                let index = Worker::current().unwrap().index;
                registry.take_off(index);
                registry.land(index);
                let here = registry.landings.here();
                // Nor shall the watch let the other one go before it has begun.
                let control = registry.control.lock();
                let began = Arc::new(StdBool::new(false));
                let told = began.clone();
                let woken = crate::spawn(move || {
                    let worker = Worker::current().unwrap();
                    let seen_on = &worker.slot().landing.seen_on;
                    told.store(true, Ordering::Release);
                    (
                        seen_on.load(Ordering::Relaxed),
                        amdahl_topology::allowed().unwrap(),
                    )
                });
                while !began.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                drop(control);
                sys::bind(0, &registry.roaming()).unwrap();
                (here.unwrap(), woken.join().unwrap())
            };
            let (here, (began_on, may_run_on)) = pool.spawn(job).join().unwrap();
            // It may have been about to park only, and gone on by itself.
            if landings.distrust.load(Ordering::Relaxed) == 0 {
                steered += 1;
                assert_ne!(began_on, here, "round {round}");
            }
            assert_eq!(may_run_on, allowed, "round {round}");
        }
        assert!(steered > 0, "nobody was woken");
    }
}
