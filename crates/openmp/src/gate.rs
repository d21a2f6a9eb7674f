//! Gates: what threads wait at until somebody opens them.
//!
//! | word | who writes | meaning |
//! |---|---|---|
//! | `generation` | who opens, one at a time | a waiter goes on when it is not what it was |
//! | `sleepers` | waiters | how many sleep or are about to, or have passed their turn |
//! | `bell` | who wakes | the futex: whoever is about to sleep has read it before it looked for the last time |
//! | `awake_ns` | who wakes | when all who are woken are on their CPUs, if those are free |
//!
//! Nobody is missed: a waiter adds itself to `sleepers` and then looks whether to sleep; who opens or rings changes
//! what is looked at and then reads `sleepers`. Between the two steps each has a sequentially consistent fence, so one
//! of the two sees the other. If the sleeper was seen, the bell moves before the wake-up: who has read it
//! before does not fall asleep, who reads it afterwards sees what was changed.

use std::hint::black_box;
use std::sync::atomic::AtomicU64 as StdAtomicU64;

use crate::contention::{Contention, GAP_NS, Own};
use crate::lateness::{Awaited, Lateness, PASS_AFTER_NS};
use crate::policy::{Next, Patience, Situation};
use crate::spinners::Place;
use crate::sync::{AtomicU32, Ordering, fence, spin_loop};
use crate::{rseq, sys};

/// One opener at a time, any number of waiters. All words are on one line: who opens writes it anyway.
#[derive(Debug)]
#[repr(align(128))]
pub struct Gate<T = ()> {
    generation: AtomicU32,
    bell: Bell,
    sleepers: AtomicU32,
    /// No thread relies on it: the models do not follow it.
    awake_ns: StdAtomicU64,
    /// Written before it is opened, for those who go through it.
    pub(crate) word: T,
}

impl<T: Default> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate {
            generation: AtomicU32::new(0),
            bell: Bell::default(),
            sleepers: AtomicU32::new(0),
            awake_ns: StdAtomicU64::new(0),
            word: T::default(),
        }
    }
}

/// How a thread waits.
pub(crate) struct Manner<'a> {
    pub(crate) patience: Patience,
    /// Threads are more than CPUs.
    pub(crate) is_crowded: bool,
    /// The same now: longer waits ask again and again, since either may change meanwhile.
    pub(crate) are_crowded: fn() -> bool,
    pub(crate) own: &'a mut Own,
    pub(crate) contention: &'a Contention,
    /// Whether who is awaited was last seen on the caller's CPU.
    pub(crate) is_awaited_here: &'a dyn Fn() -> bool,
    /// Among those of the team who spin.
    pub(crate) place: Place<'a>,
    pub(crate) awaited: Awaited,
}

impl Manner<'_> {
    /// Whether a turn is passed, as `when` says by what is known of such waits.
    fn passes(&mut self, when: impl FnOnce(&Lateness, Awaited) -> bool) -> bool {
        let awaited = self.awaited;
        self.own
            .lateness(awaited)
            .is_some_and(|lateness| when(lateness, awaited))
    }
}

/// How long a thread has waited, and what it did meanwhile.
pub(crate) struct Wait {
    arrived: u64,
    /// Since when it has waited without leaving its CPU.
    begun: u64,
    /// The last look at the clock.
    last: u64,
    /// When others may have had this CPU the last time.
    given: u64,
    /// The thread may pass its turn.
    may_pass: bool,
    /// It has passed it, which is done once.
    has_passed: bool,
    /// It has left its CPU, which others want, for those who wait on other CPUs.
    has_left: bool,
    /// Turns of the spin loop.
    pub(crate) turns: u64,
}

impl Wait {
    /// A wait that begins now, after so many turns of the spin loop.
    pub(crate) fn begin(turns: u64) -> Wait {
        let now = sys::monotonic_ns();
        Wait {
            arrived: now,
            begun: now,
            last: now,
            given: now,
            may_pass: false,
            has_passed: false,
            has_left: false,
            turns,
        }
    }

    /// What to do next.
    pub(crate) fn next(&mut self, manner: &mut Manner<'_>) -> Next {
        manner.is_crowded = (manner.are_crowded)();
        #[cfg(not(loom))]
        crate::runnable::follow(self.last);
        #[cfg(not(loom))]
        let is_rationed = crate::worker::are_rationed();
        #[cfg(loom)]
        let is_rationed = false;
        let situation = Situation {
            waited_ns: self.last.saturating_sub(self.begun),
            alone_ns: self.last.saturating_sub(self.given),
            turns: self.turns,
            is_crowded: manner.is_crowded,
            may_yield: manner.contention.may_yield(self.last),
            is_contended: manner.contention.is_expected(self.last),
            is_rationed,
            is_awaited_here: (manner.is_awaited_here)(),
            may_pass: self.may_pass,
        };
        let may_spin = || manner.place.may_spin(manner.contention.runnable());
        let next = manner.patience.next(situation, may_spin);
        if next != Next::Spin {
            manner.place.leave();
            let is_elsewhere = !situation.is_crowded && !situation.is_awaited_here;
            self.has_left |= situation.is_contended && is_elsewhere;
        }
        next
    }

    /// The thread has spun. A long time since the last look was taken from it.
    pub(crate) fn spun(&mut self, manner: &mut Manner<'_>) {
        let now = sys::monotonic_ns();
        let gap = now.saturating_sub(self.last);
        if gap > GAP_NS {
            manner.own.lost(manner.contention, now, gap);
        }
        self.last = now;
    }

    /// Lets others run who are ready.
    pub(crate) fn give_way(&mut self, manner: &mut Manner<'_>) {
        manner.own.watch();
        sys::yield_now();
        let was_given = rseq::is_armed() != Some(true);
        let now = sys::monotonic_ns();
        let took = now.saturating_sub(self.last);
        manner.contention.yielded(now, took);
        // Given, not taken.
        manner.own.slept(took);
        self.last = now;
        if was_given {
            self.given = now;
        }
    }

    /// Lets others have their turn on this CPU, and begins anew.
    fn pass(&mut self, manner: &mut Manner<'_>) {
        let begun = sys::monotonic_ns();
        manner.own.watch();
        sys::yield_now();
        let was_given = rseq::is_armed() != Some(true);
        let now = sys::monotonic_ns();
        let took = now.saturating_sub(begun);
        // Given, not taken.
        manner.own.slept(took);
        let given = if was_given { took } else { 0 };
        manner.contention.passed(given);
        (self.begun, self.last, self.given) = (now, now, now);
        self.may_pass = false;
        self.has_passed = true;
    }

    /// The thread has slept.
    fn slept(&mut self) {
        self.last = sys::monotonic_ns();
    }
}

/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u64 = 32;
/// What waking one of several takes who wakes them.
const WAKE_NS: u64 = 1_000;

/// Looks once, and so many times more with a pause before each.
#[inline]
fn looks(turns: u64, is_done: &mut impl FnMut() -> bool) -> bool {
    for _ in 0..turns {
        if is_done() {
            return true;
        }
        spin_loop();
    }
    is_done()
}

impl Gate {
    /// A gate that was never opened.
    pub fn new() -> Gate {
        Gate::default()
    }
}

impl<T> Gate<T> {
    /// Changes with each opening. Who reads it sees what the last opener did before.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Lets all go on who wait.
    #[inline]
    pub fn open(&self) {
        // One opener at a time. Release: pairs with the Acquire in `generation`.
        let next = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        self.generation.store(next, Ordering::Release);
        self.ring(u32::MAX);
    }

    /// Wakes up to `count` sleepers, who look again and may sleep on, and says how many were asleep. What they are to
    /// see was written before.
    #[inline]
    pub fn ring(&self, count: u32) -> u32 {
        // Pairs with the fence in `sleep`.
        fence(Ordering::SeqCst);
        match self.sleepers.load(Ordering::Relaxed) {
            0 => 0,
            sleepers => self.wake(count, sleepers),
        }
    }

    #[cold]
    fn wake(&self, count: u32, sleepers: u32) -> u32 {
        let takes_ns = u64::from(sleepers.min(count)) * WAKE_NS;
        self.awake_ns
            .store(sys::monotonic_ns() + takes_ns, Ordering::Relaxed);
        self.bell.ring(count)
    }

    /// How many sleep here or are about to. A fence has to be between what they are to see and this.
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::Relaxed)
    }

    /// Waits until `is_done`. In between `other` is asked whether it has something better to do, and does it; it
    /// says whether it had. It leaves its place among those who spin before.
    #[inline]
    pub(crate) fn wait(
        &self,
        manner: &mut Manner<'_>,
        mut is_done: impl FnMut() -> bool,
        mut other: impl FnMut(&Place<'_>) -> bool,
    ) {
        let mut is_done_within = |turns| looks(turns, &mut is_done);
        let first = manner.patience.first_turns(manner.is_crowded);
        if !is_done_within(first) {
            self.wait_longer(manner, &mut is_done_within, &mut other);
        }
    }

    /// `is_done_within` so many turns says whether what is awaited came meanwhile. The loop is there and not here, where each look would be a call:
    /// whoever samples the program (`amdahl scale`) sees a thread in it that spins, and not one that runs a function.
    #[cold]
    fn wait_longer(
        &self,
        manner: &mut Manner<'_>,
        is_done_within: &mut dyn FnMut(u64) -> bool,
        other: &mut dyn FnMut(&Place<'_>) -> bool,
    ) {
        let begin = |manner: &mut Manner<'_>| Wait {
            may_pass: manner.passes(Lateness::passes_at_once),
            ..Wait::begin(0)
        };
        let mut wait = begin(manner);
        loop {
            if is_done_within(0) {
                self.tell_lateness(&wait, manner);
                return;
            }
            if other(&manner.place) {
                wait = begin(manner);
                continue;
            }
            match wait.next(manner) {
                Next::Spin => {
                    if is_done_within(TURNS_PER_LOOK) {
                        self.tell_lateness(&wait, manner);
                        return;
                    }
                    wait.turns += TURNS_PER_LOOK;
                    wait.spun(manner);
                }
                Next::Yield => wait.give_way(manner),
                Next::Pass => {
                    // Whoever opens is to write down when.
                    self.sleepers.fetch_add(1, Ordering::Relaxed);
                    wait.pass(manner);
                    self.sleepers.fetch_sub(1, Ordering::Relaxed);
                }
                Next::Sleep => {
                    manner.own.look_at(manner.contention);
                    let may_pass = wait.has_left && !wait.has_passed;
                    let passes = may_pass && manner.passes(Lateness::passes_later);
                    let most_ns = passes.then_some(PASS_AFTER_NS);
                    let slept = self.sleep(manner, is_done_within, other, most_ns);
                    manner.own.slept(slept);
                    wait.may_pass |= most_ns.is_some_and(|ns| slept >= ns);
                    // Who was woken for a task that somebody else took sleeps again.
                    wait.slept();
                }
            }
        }
    }

    /// A wait is over: how late were those who were awaited?
    fn tell_lateness(&self, wait: &Wait, manner: &mut Manner<'_>) {
        let Some(lateness) = manner.own.lateness(manner.awaited) else {
            return;
        };
        let awake = self.awake_ns.load(Ordering::Relaxed);
        // Who opens writes it down where somebody has left its CPU, and who has not left it has just looked at the clock.
        let end = if wait.has_left && awake > wait.arrived {
            awake
        } else {
            wait.last
        };
        lateness.waited(end.saturating_sub(wait.arrived));
    }

    /// Sleeps until woken, or for `most_ns`. Returns how long until it ran again.
    fn sleep(
        &self,
        manner: &Manner<'_>,
        is_done_within: &mut dyn FnMut(u64) -> bool,
        other: &mut dyn FnMut(&Place<'_>) -> bool,
        most_ns: Option<u64>,
    ) -> u64 {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        let bell = self.bell.read();
        let mut slept = 0;
        if !is_done_within(0) && !other(&manner.place) {
            let begun = sys::monotonic_ns();
            match manner.awaited {
                Awaited::Team => at_barrier(&self.bell, bell, most_ns),
                Awaited::Master | Awaited::Other => self.bell.wait(bell, most_ns),
            }
            let now = sys::monotonic_ns();
            slept = now.saturating_sub(begun);
            // A later ring may have moved it: then the loss is taken for too short.
            let awake = self.awake_ns.load(Ordering::Relaxed);
            if awake > begun {
                manner.contention.woken(now, awake);
            }
            #[cfg(not(loom))]
            crate::stats::slept(slept);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        slept
    }
}

/// Sleeps for the others of a team. By its name on the stack tools (`amdahl scale`, `amdahl locks`) know a barrier: what the compiler calls
/// ends in a jump to what waits, so that its own name is not there. So this one is not inlined and does not end in a jump.
#[cold]
#[inline(never)]
fn at_barrier(bell: &Bell, read: u32, most_ns: Option<u64>) {
    bell.wait(read, most_ns);
    black_box(bell);
}

/// A futex.
#[cfg(not(loom))]
#[derive(Debug, Default)]
struct Bell(AtomicU32);

#[cfg(not(loom))]
impl Bell {
    fn read(&self) -> u32 {
        // Acquire: pairs with the Release in `ring`.
        self.0.load(Ordering::Acquire)
    }

    fn ring(&self, count: u32) -> u32 {
        // Release: who reads the new value sees what it was rung for.
        self.0.fetch_add(1, Ordering::Release);
        sys::futex_wake(&raw const self.0, count)
    }

    /// Sleeps until it is rung, or for `most_ns`, unless it was rung since it was read.
    fn wait(&self, read: u32, most_ns: Option<u64>) {
        sys::futex_wait_for(&self.0, read, most_ns);
    }
}

/// What it is in the models.
#[cfg(loom)]
#[derive(Debug, Default)]
struct Bell {
    rung: loom::sync::Mutex<u32>,
    sleepers: loom::sync::Condvar,
}

#[cfg(loom)]
impl Bell {
    fn read(&self) -> u32 {
        *self.rung.lock().unwrap()
    }

    fn ring(&self, count: u32) -> u32 {
        *self.rung.lock().unwrap() += 1;
        self.sleepers.notify_all();
        count
    }

    fn wait(&self, read: u32, _most_ns: Option<u64>) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == read {
            rung = self.sleepers.wait(rung).unwrap();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::spinners::Spinners;
    use std::sync::atomic::{AtomicBool, AtomicU32 as Count};

    fn manner<'a>(own: &'a mut Own, contention: &'a Contention, turns: u64) -> Manner<'a> {
        Manner {
            patience: Patience::Turns {
                alone: turns,
                crowded: turns,
            },
            is_crowded: false,
            are_crowded: || false,
            own,
            contention,
            is_awaited_here: &|| false,
            place: Place::default(),
            awaited: Awaited::Other,
        }
    }

    #[test]
    fn each_opening_lets_all_go_on_whether_they_spin_or_sleep() {
        const ROUNDS: u32 = 2_000;
        let (gate, back) = (Gate::new(), Count::new(0));
        std::thread::scope(|scope| {
            for turns in [0, 50, 1_000_000] {
                let (gate, back) = (&gate, &back);
                scope.spawn(move || {
                    let contention = Contention::new();
                    let mut own = Own::default();
                    for round in 0..ROUNDS {
                        let mut manner = manner(&mut own, &contention, turns);
                        gate.wait(&mut manner, || gate.generation() != round, |_| false);
                        assert_eq!(gate.generation(), round + 1);
                        back.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for round in 0..ROUNDS {
                gate.open();
                while back.load(Ordering::SeqCst) != 3 * (round + 1) {
                    std::thread::yield_now();
                }
            }
        });
    }

    /// Two threads of which one can run, and which is spinning: the other one sleeps after its first look.
    #[test]
    fn who_finds_no_place_among_those_who_spin_sleeps() {
        let (gate, looks, spinners) = (Gate::new(), Count::new(0), Spinners::default());
        spinners.set_threads(2);
        let first = Place::among(&spinners);
        assert!(first.may_spin(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let contention = Contention::new();
                contention.set_runnable(1);
                let mut own = Own::default();
                let mut manner = Manner {
                    patience: Patience::Adaptive,
                    place: Place::among(&spinners),
                    ..manner(&mut own, &contention, 0)
                };
                let is_done = || {
                    looks.fetch_add(1, Ordering::Relaxed);
                    gate.generation() != 0
                };
                gate.wait(&mut manner, is_done, |_| false);
            });
            while gate.sleepers() == 0 {
                std::thread::yield_now();
            }
            gate.open();
        });
        let most = crate::policy::FIRST_TURNS + TURNS_PER_LOOK;
        assert!(u64::from(looks.load(Ordering::Relaxed)) < most);
    }

    /// Whether threads were too many was decided where a region began: in a long one they spun on, on CPUs that were gone or had
    /// another team.
    #[test]
    fn who_waits_finds_out_that_threads_are_too_many_now() {
        const MOST_LOOKS: u32 = 100_000;
        static IS_CROWDED: AtomicBool = AtomicBool::new(false);
        let (gate, looks) = (Gate::new(), Count::new(0));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let contention = Contention::new();
                let mut own = Own::default();
                let mut manner = Manner {
                    patience: Patience::Turns {
                        alone: u64::MAX,
                        crowded: 0,
                    },
                    are_crowded: || IS_CROWDED.load(Ordering::Relaxed),
                    ..manner(&mut own, &contention, 0)
                };
                let is_done = || {
                    let looked = looks.fetch_add(1, Ordering::Relaxed);
                    if looked == MOST_LOOKS / 2 {
                        IS_CROWDED.store(true, Ordering::Relaxed);
                    }
                    looked > MOST_LOOKS || gate.generation() != 0
                };
                gate.wait(&mut manner, is_done, |_| false);
            });
            while gate.sleepers() == 0 && !waiter.is_finished() {
                std::thread::yield_now();
            }
            gate.open();
        });
        assert!(looks.load(Ordering::Relaxed) < MOST_LOOKS);
    }

    /// Waits on contended CPUs, after waits that lasted so long: how often it passes its turn until it has slept, or for who passes it
    /// before, until then.
    fn passes(awaited: Awaited, earlier_ns: &[u64], is_crowded: bool, is_opened: bool) -> u64 {
        let (gate, contention) = (Gate::new(), Contention::new());
        let mut own = Own::default();
        for &ns in earlier_ns.iter().cycle().take(100) {
            if let Some(lateness) = own.lateness(awaited) {
                lateness.waited(ns);
            }
        }
        // Expected for longer than a test is off its CPU.
        contention.lost(sys::monotonic_ns() + 3_600_000_000_000, u64::MAX);
        let mut manner = Manner {
            patience: Patience::Adaptive,
            is_crowded,
            are_crowded: if is_crowded { || true } else { || false },
            awaited,
            ..manner(&mut own, &contention, 0)
        };
        std::thread::scope(|scope| {
            if is_opened {
                scope.spawn(|| {
                    while gate.sleepers() == 0 {
                        std::thread::yield_now();
                    }
                    gate.open();
                });
            }
            let is_over = || gate.generation() != 0 || !is_opened && contention.passes() != 0;
            gate.wait(&mut manner, is_over, |_| false);
        });
        contention.passes()
    }

    #[test]
    fn a_turn_is_passed_for_who_has_no_cpu() {
        const SLICE: u64 = 2_500_000;
        let (taken, slower) = ([10_000, SLICE], [200_000, 300_000, 300_000, SLICE]);
        assert_eq!(passes(Awaited::Team, &taken, false, false), 1);
        let prompt = [SLICE, 5_000, 4_000, 5_000, 4_000];
        assert_eq!(passes(Awaited::Master, &prompt, false, false), 1);
        // After it has slept for a while.
        assert_eq!(passes(Awaited::Team, &slower, false, false), 1);
        // Not for a master who works, a lock, or on a CPU that the team's others wait for. Who opens does so when it sleeps.
        assert_eq!(passes(Awaited::Master, &[SLICE], false, true), 0);
        assert_eq!(passes(Awaited::Other, &taken, false, true), 0);
        assert_eq!(passes(Awaited::Team, &taken, true, true), 0);
    }

    #[test]
    fn who_sleeps_is_woken_for_other_work() {
        let (gate, work, done) = (Gate::new(), Count::new(0), Count::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let contention = Contention::new();
                let mut own = Own::default();
                gate.wait(
                    &mut manner(&mut own, &contention, 0),
                    || gate.generation() != 0,
                    |_| {
                        let taken = work.swap(0, Ordering::SeqCst);
                        done.fetch_add(taken, Ordering::SeqCst);
                        taken != 0
                    },
                );
            });
            for round in 1..=1_000 {
                work.store(1, Ordering::SeqCst);
                gate.ring(1);
                while done.load(Ordering::SeqCst) != round {
                    std::thread::yield_now();
                }
            }
            gate.open();
        });
    }
}
