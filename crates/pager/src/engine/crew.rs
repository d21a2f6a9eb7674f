//! The threads of a pager: how they are started, replaced where one is held up, and ended.
//!
//! All that they touch is kept by those that use it, so that who is held up in a foreign read can be left behind.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::near::{Guide, Terms};
use super::queue::Queue;
use super::reader::{self, Doorbell, End};
use super::{watchdog, worker};
use crate::Error;
use crate::event::Event;
use crate::inner::Inner;
use crate::plan::in_flight::GivenUp;
use crate::plan::pages::State;
use crate::sys::clock::now_ns;

/// Threads that may stand in for others at once. With so many held up, faults are only read, and given up in time.
pub(crate) const STAND_INS: usize = 64;

pub(crate) struct Crew {
    pub inner: Arc<Inner>,
    pub bells: Box<[Doorbell]>,
    /// Faults that readers have handed over, and workers take.
    pub handed: Queue,
    /// What readers go by who run near faulting threads; `None` inside where they need not. Empty until it is known.
    pub guide: OnceLock<Option<Guide>>,
    stand_ins: AtomicUsize,
    /// Threads that may ask the source.
    alive: Mutex<usize>,
    change: Condvar,
    /// Threads of [`crate::filling`] whose fetch was given up, and of what.
    held_up: Mutex<Vec<(u64, Range<usize>)>>,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

/// How long threads are waited for that are with the source, when another serves next: they do no harm later.
const LEAVE_WAIT: Duration = Duration::from_millis(20);

/// Numbers of the threads that fill are from here on.
pub(crate) const FILLING: u64 = 1 << 63;
/// Numbers of workers are from here on.
const WORKING: u64 = u64::MAX - (1 << 32);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    /// Starts the watchdog, a reader for each bell, the workers.
    pub fn start(
        inner: Arc<Inner>,
        bells: Vec<Doorbell>,
        workers: usize,
        near: Option<Terms>,
    ) -> Result<Arc<Crew>, Error> {
        let crew = Arc::new(Crew {
            inner,
            bells: bells.into(),
            handed: Queue::default(),
            guide: OnceLock::new(),
            stand_ins: AtomicUsize::new(0),
            alive: Mutex::new(0),
            change: Condvar::new(),
            held_up: Mutex::default(),
            watchdog: Mutex::default(),
        });
        let started = crew.start_all(workers, near);
        if let Err(error) = started {
            if crew.inner.shards.iter().any(|shard| shard.gate.is_some()) {
                // Let go, what is missing of it would read as zeros.
                crew.leave();
                return Err(error);
            }
            crew.inner.pages.forget(0..crew.inner.pages.count());
            crew.stop();
            return Err(error);
        }
        Ok(crew)
    }

    fn start_all(self: &Arc<Crew>, workers: usize, near: Option<Terms>) -> Result<(), Error> {
        let mut readers = 0;
        let started = self.start_watchdog(near).and_then(|()| {
            for number in 0..self.bells.len() {
                self.spawn(format!("pager-read-{number}"), move |crew| {
                    crew.read(number);
                })?;
                readers += 1;
            }
            (0..workers).try_for_each(|number| {
                self.spawn(format!("pager-work-{number}"), move |crew| {
                    insist(&crew.inner, || {
                        worker::run(&crew.inner, &crew.handed, number);
                    });
                })
            })
        });
        for number in readers..self.bells.len() {
            self.has_no_reader(number);
        }
        started
    }

    fn start_watchdog(self: &Arc<Crew>, near: Option<Terms>) -> Result<(), Error> {
        let crew = Arc::clone(self);
        let watch = spawn("pager-watch".to_owned(), move || {
            // Here, since it is never bound itself and nobody waits for it: a large machine has some thousand files to read.
            let _ = crew.guide.set(near.and_then(Terms::guide));
            insist(&crew.inner, || watchdog::run(&crew));
        })?;
        *lock(&self.watchdog) = Some(watch);
        Ok(())
    }

    fn read(&self, number: usize) {
        if insist(&self.inner, || reader::run(self, number)) == End::Replaced {
            self.stand_ins.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.has_no_reader(number);
        }
    }

    /// Nobody answers any longer: who rings must not wait.
    fn has_no_reader(&self, number: usize) {
        let shard = &self.inner.shards[number];
        if let Some(control) = &shard.control {
            let start = control.as_ptr().addr();
            let _ = shard.uffd.unregister(start..start + control.len());
        }
    }

    /// A thread that may ask the source.
    pub fn spawn(
        self: &Arc<Crew>,
        name: String,
        run: impl FnOnce(&Arc<Crew>) + Send + 'static,
    ) -> Result<(), Error> {
        struct Alive(Arc<Crew>);
        impl Drop for Alive {
            fn drop(&mut self) {
                *lock(&self.0.alive) -= 1;
                self.0.change.notify_all();
            }
        }
        *lock(&self.alive) += 1;
        let alive = Alive(Arc::clone(self));
        spawn(name, move || run(&alive.0)).map(drop)
    }

    /// Whether there is room for another thread, in case one is held up.
    pub fn can_stand_in(&self) -> bool {
        self.stand_ins.load(Ordering::Relaxed) < STAND_INS
    }

    /// Has another thread be the reader of a shard whose reader has been serving since then.
    pub fn stand_in(self: &Arc<Crew>, number: usize, since_ns: u64) {
        self.spawn_extra(move |crew| {
            if reader::replace(&crew.inner.shards[number], since_ns) {
                crew.read(number);
            } else {
                crew.stand_ins.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }

    /// Has another thread serve what waits in the queue of a shard, or in that of the workers.
    pub fn help(self: &Arc<Crew>, shard: Option<usize>) {
        self.spawn_extra(move |crew| {
            let queue = shard.map_or(&crew.handed, |number| &crew.inner.shards[number].told);
            worker::drain(&crew.inner, queue);
            crew.stand_ins.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// One more thread, until it, or the one that it has replaced, ends. If there can be none, the next look tries again.
    fn spawn_extra(self: &Arc<Crew>, run: impl FnOnce(&Arc<Crew>) + Send + 'static) {
        if !self.can_stand_in() {
            return;
        }
        self.stand_ins.fetch_add(1, Ordering::Relaxed);
        let spawned = self.spawn("pager-stand-in".to_owned(), run);
        if spawned.is_err() {
            self.stand_ins.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The fetch of a thread was given up.
    pub fn given_up(&self, fetch: GivenUp) {
        if (FILLING..WORKING).contains(&fetch.thread) {
            lock(&self.held_up).push((fetch.thread, fetch.pages));
        }
    }

    /// What this thread was fetching, if that was given up.
    pub fn held_up(&self, thread: u64) -> Option<Range<usize>> {
        let mut held_up = lock(&self.held_up);
        let of_it = held_up.extract_if(.., |(other, _)| *other == thread);
        of_it.map(|(_, pages)| pages).last()
    }

    /// Ends serving: what is missing becomes deadly to touch. Does not wait longer than twice the timeout for who is held up.
    pub fn stop(&self) {
        let inner = &*self.inner;
        // SeqCst: who begins something afterwards sees it, or is seen below.
        inner.stop.store(true, Ordering::SeqCst);
        let until_ns = inner.end_of_patience_ns();
        while self.seal() && now_ns() < until_ns {
            thread::sleep(Duration::from_micros(100));
        }
        inner.keep_unmarked();
        for shard in &inner.shards {
            inner.release(shard);
            if shard.gate.is_some() {
                reader::read_out(inner, shard);
            }
        }
        for (shard, bell) in inner.shards.iter().zip(&self.bells) {
            // Who is serving looks at `stop` when it comes back; who is not, before it serves.
            if shard.serving_ns.0.load(Ordering::SeqCst) == 0 {
                bell.ring(shard);
            }
        }
        self.handed.call();
        self.await_threads(inner.timeout);
    }

    /// Ends serving, and leaves the memory as it is, for another to go on: nothing is put into place any more, no message is read, nothing is
    /// lost by it. Waits for the kernel, but not for the source: who is held up there finds its fetch given up.
    pub fn leave(&self) {
        let inner = &*self.inner;
        // In this order: who sees the second sees the first.
        inner.is_left.store(true, Ordering::SeqCst);
        inner.stop.store(true, Ordering::SeqCst);
        for shard in &inner.shards {
            // Who has begun to read has marked what it read of. Nobody else begins.
            if let Some(gate) = &shard.gate {
                drop(gate.write().unwrap_or_else(PoisonError::into_inner));
            }
            reader::last_dooms(shard, now_ns() + LEAVE_WAIT.as_nanos() as u64);
        }
        loop {
            // Those that ask the source. Zeros and what is being put into place are done in no time.
            for fetch in inner.in_flight.give_up(u64::MAX) {
                let shard = inner.shard(fetch.pages.start);
                for run in fetch.own() {
                    inner.give_back(shard, run, State::Missing);
                }
                self.given_up(fetch);
            }
            if inner.in_flight.is_quiet() {
                break;
            }
            thread::sleep(Duration::from_micros(100));
        }
        for (shard, bell) in inner.shards.iter().zip(&self.bells) {
            bell.ring(shard);
        }
        self.handed.call();
        self.await_threads(LEAVE_WAIT);
    }

    /// Waits at most so long for those who may be with the source, then ends the watchdog.
    fn await_threads(&self, at_most: Duration) {
        let inner = &*self.inner;
        let until = Instant::now() + at_most;
        let mut alive = lock(&self.alive);
        while *alive > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (alive, _) = self
                .change
                .wait_timeout(alive, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(alive);
        // Last: it has ended what the others began. It asks no source, so it ends.
        inner.leash.end();
        if let Some(watchdog) = lock(&self.watchdog).take() {
            let _ = watchdog.join();
        }
    }

    /// Makes all that is missing deadly to touch, and gives up what is on its way; whether something may be left.
    fn seal(&self) -> bool {
        let inner = &*self.inner;
        for fetch in inner.in_flight.give_up(u64::MAX) {
            for run in fetch.own() {
                inner.lose(inner.shard(run.start), run, None);
            }
        }
        let mut is_left = false;
        for shard in &inner.shards {
            if shard.gate.is_some() {
                // The kernel may wait for us to read of a change before it lets us do anything.
                reader::read_out(inner, shard);
            }
            is_left |= inner.lose_missing(shard, None) | inner.put_removed(shard);
        }
        inner.mark_again();
        is_left || !lock(&inner.unmarked).is_empty()
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    thread::Builder::new()
        .name(name)
        .spawn(run)
        .map_err(|error| Error::System {
            operation: "starting a thread",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })
}

/// Runs until it returns: a thread that panics would leave others waiting.
fn insist<T>(inner: &Inner, run: impl Fn() -> T) -> T {
    loop {
        match catch_unwind(AssertUnwindSafe(&run)) {
            Ok(done) => return done,
            Err(_) => inner.events.tell(Event::Restarted),
        }
    }
}
