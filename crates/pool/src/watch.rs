//! Follows CPUs, quota and load while the pool works.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amdahl_topology::{CpuSet, ThrottleStat};

use crate::budget;
use crate::counts::{Counts, SharedCounts};
use crate::load::Look;
use crate::parker::Parker;
use crate::priority;
use crate::registry::{Control, Registry};
use crate::spin;
use crate::states;
use crate::stuck::Stuck;
use crate::sync::{AtomicBool, Ordering};
use crate::sys::SchedStat;
use crate::worker::Worker;

/// From one look to the next.
const EVERY: Duration = Duration::from_millis(10);

/// So many looks at a pool that does nothing, and the watch sleeps too.
const IDLE_LOOKS: u32 = 100;

/// Where the thread that follows CPUs and load sleeps while the pool does.
#[derive(Default)]
pub(crate) struct Watch {
    is_asleep: AtomicBool,
    parker: Parker,
}

impl Watch {
    /// The watch's thread only: sleeps until a worker is awake, a guest has come, or the pool ends.
    pub(crate) fn sleep(&self, counts: &SharedCounts, is_ending: &AtomicBool) {
        self.is_asleep.store(true, Ordering::Relaxed);
        // Somebody may have come since the counts were looked at, and have found nobody asleep. So they are looked at
        // again, and by a change that changes nothing: who changes them later sees `is_asleep`, without a fence.
        let (_, now) = counts.change(|counts| counts);
        // A searcher may find something at once, and tells nobody.
        if now.awake() == 0 && now.guests() == 0 {
            while self.is_asleep.load(Ordering::Relaxed) && !is_ending.load(Ordering::Acquire) {
                states::watch(&self.parker, None);
            }
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// After every change of the counts by which more are awake, or guests.
    pub(crate) fn wake(&self) {
        // Relaxed: the change of the counts before this is ordered against that in `sleep`, and if it comes after
        // that one it has acquired the flag.
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Asleep or not, it looks at once.
    pub(crate) fn ring(&self) {
        self.parker.unpark();
    }

    #[cfg(all(test, not(loom)))]
    fn is_asleep(&self) -> bool {
        self.is_asleep.load(Ordering::Relaxed)
    }
}

impl Registry {
    /// Asks the source and does what it says: threads start, stop and go on, work moves.
    pub(crate) fn refresh(self: &Arc<Self>) {
        let mut control = self.control.lock();
        let allowed = control.source.allowed();
        self.apply_cpus(&mut control, &allowed);
        drop(control);
        // A source may tell what this thread is allowed; what the pool is, the watch knows.
        if self.settings.binds {
            self.wake_watch();
        }
    }

    /// The first look, by who builds the pool: its threads may be where it may.
    pub(crate) fn set_up(self: &Arc<Self>) {
        let mut control = self.control.lock();
        self.look_at_cpus(&mut control);
    }

    fn look_at_cpus(self: &Arc<Self>, control: &mut Control) {
        let allowed = control.source.allowed();
        if self.settings.binds {
            spin::set_allowed(allowed.len());
        }
        if !allowed.is_empty() {
            self.set_roaming(&allowed);
        }
        self.apply_cpus(control, &allowed);
    }

    fn apply_cpus(self: &Arc<Self>, control: &mut Control, allowed: &CpuSet) {
        if self.is_ending.load(Ordering::Acquire) {
            return;
        }
        let most = self.settings.threads_max.unwrap_or(u32::MAX) as usize;
        let mut cpus: Vec<u32> = self.machine.cpus_of(allowed).collect();
        cpus.sort_unstable();
        cpus.truncate(most.max(1));
        if cpus.is_empty() {
            let kept = self.online_mask().count();
            if kept > 0 {
                self.apply_limit(control, kept);
                return;
            }
            // There never was one: work must run somewhere.
            cpus.push(0);
        }
        let wanted = |cpu: u32| cpus.binary_search(&cpu).is_ok();
        let is_online = |cpu: u32| self.slots[cpu as usize].is_online.load(Ordering::SeqCst);
        let come: Vec<u32> = cpus
            .iter()
            .copied()
            .filter(|&cpu| !is_online(cpu))
            .collect();
        let gone: Vec<u32> = (0..self.cpus())
            .filter(|&cpu| is_online(cpu) && !wanted(cpu))
            .collect();
        if come.is_empty() && gone.is_empty() && control.changes > 0 {
            self.apply_limit(control, cpus.len() as u32);
            return;
        }
        control.changes += 1;
        // First who comes: at any instant somebody is online.
        for &cpu in &come {
            self.slots[cpu as usize].bound.open();
            self.set_online(cpu, true);
        }
        for &cpu in &gone {
            self.set_online(cpu, false);
        }
        for &cpu in &gone {
            self.orphan(cpu);
            // Asleep or not, it sees that it has no CPU.
            if !self.notify(cpu) {
                self.slots[cpu as usize].parker.unpark();
            }
        }
        for &cpu in &come {
            self.start(cpu, control);
            self.adopt(cpu);
        }
        self.apply_limit(control, cpus.len() as u32);
        crate::sys::probe!(amdahl_pool, cpus, cpus.len(), come.len(), gone.len());
    }

    /// How many may run: CPUs, quota, and what the load leaves; and some more if those do not get on.
    fn apply_limit(&self, control: &mut Control, cpus: u32) {
        let load = control.load.verdict().limit.unwrap_or(u32::MAX);
        control.quota = control.source.quota();
        let quota = control
            .quota
            .map_or(u32::MAX, |quota| match self.settings.follows_load {
                true => control.load.threads_of(quota),
                false => budget::without_burst(quota),
            });
        control.limit = cpus.min(quota).min(load).max(1);
        let limit = control.limit + control.extra;
        if self.counts.load().limit() != limit {
            self.counts.change(|counts| counts.with_limit(limit));
            self.wake_any(0);
            if self.offers.wants_help() {
                self.wake_helper(0);
            }
        }
    }

    /// A thread for the CPU; one that waits for it goes on.
    fn start(self: &Arc<Self>, cpu: u32, control: &mut Control) {
        let slot = &self.slots[cpu as usize];
        if slot.is_started.swap(true, Ordering::AcqRel) {
            slot.parker.unpark();
            return;
        }
        let registry = self.clone();
        let name = format!("{}-{}", self.settings.name, self.machine.kernel_cpu(cpu));
        let mut thread = std::thread::Builder::new().name(name);
        if let Some(bytes) = self.settings.stack_bytes {
            thread = thread.stack_size(bytes);
        }
        self.counts.change(Counts::start);
        self.wake_watch();
        match thread.spawn(move || registry.thread(cpu)) {
            Ok(thread) => control.threads.push(thread),
            Err(_) => {
                // No thread, no CPU: others take its work. The next look tries again.
                self.counts.change(Counts::stop);
                slot.is_started.store(false, Ordering::Release);
                self.set_online(cpu, false);
                self.orphan(cpu);
            }
        }
    }

    fn thread(self: Arc<Self>, cpu: u32) {
        let slot = &self.slots[cpu as usize];
        slot.thread_id
            .store(crate::sys::thread_id(), Ordering::Release);
        slot.is_running.store(true, Ordering::Relaxed);
        self.land(cpu);
        // SAFETY: the `Arc` keeps the registry; the slot is this thread's, which is started once.
        let worker = unsafe { Worker::new(&self, cpu, cpu) };
        let _at_work = worker.at_work();
        // Jobs keep their panics. Should one escape (from the destructor of a panic's payload), the worker goes on:
        // its deque is where it was.
        while std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.main())).is_err() {
            self.restarts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The thread that looks now and then. Sleeps for good while the pool does.
    pub(crate) fn watch(self: Arc<Self>) {
        let mut stats: HashMap<u32, SchedStat> = HashMap::new();
        let mut last_look = Instant::now();
        let mut throttled: Option<ThrottleStat> = None;
        let mut idle_looks = 0;
        let mut stuck = Stuck::new(self.cpus());
        loop {
            self.wait_for_next(&mut idle_looks);
            if self.is_ending.load(Ordering::Acquire) {
                // Nobody looks for this pool any more.
                self.crowd.set(false);
                return;
            }
            let mut control = self.control.lock();
            if self.settings.follows_load {
                let now = control.source.throttled();
                let is_throttled = match (now, throttled) {
                    (Some(now), Some(before)) => now.throttled_ns > before.throttled_ns,
                    _ => false,
                };
                throttled = now;
                let threads = self.sample(&mut stats);
                let wall_ns = last_look.elapsed().as_nanos() as u64;
                last_look = Instant::now();
                let most = self.online_mask().count().max(1);
                // Where nobody takes CPUs away a page has nothing to say.
                let wants_page = control.load.wants_page();
                let look = Look {
                    now_ns: amdahl_phantom_page::coarse_now_ns(),
                    wall_ns,
                    threads: &threads,
                    has_lowered: self.lowered.swap(false, Ordering::Relaxed),
                    quota: control.quota,
                    is_throttled,
                    steal: control.source.stolen(),
                    published: wants_page.then(|| control.source.published()).flatten(),
                    most,
                };
                let verdict = control.load.look(&look);
                control.load.retain(|thread| stats.contains_key(&thread));
                self.crowd.set(verdict.is_crowded);
            }
            for slot in self
                .slots
                .iter()
                .filter(|slot| slot.helps.load(Ordering::Relaxed))
            {
                if priority::lower_if_due(slot) {
                    self.lowered.store(true, Ordering::Relaxed);
                }
            }
            self.look_at_stuck(&mut stuck, &mut control);
            // With the limit that has just been found.
            self.look_at_cpus(&mut control);
            if control.extra > 0
                && self.counts.load().has_room()
                && let Some(cpu) = self.sleeper_with_jobs()
            {
                self.notify(cpu);
            }
            self.release_confined();
        }
    }

    /// A task that comes next to one that has not ended since the last look: somebody else shall take it. And one more
    /// may run if jobs wait and none of those gets on who have the places.
    fn look_at_stuck(&self, stuck: &mut Stuck, control: &mut Control) {
        for (cpu, slot) in (0..self.cpus()).zip(&self.slots) {
            let begun = slot.begun.load(Ordering::Relaxed);
            if stuck.see(cpu, begun, self.has_place(cpu))
                && !slot.next.load(Ordering::Relaxed).is_null()
            {
                self.wake_any(cpu);
            }
        }
        let counts = self.counts.load().with_limit(control.limit);
        control.extra = stuck.extra(counts.places(), || self.sleeper_with_jobs().is_some());
    }

    fn wait_for_next(&self, idle_looks: &mut u32) {
        let counts = self.counts.load();
        let is_idle = counts.awake() == counts.searching() && counts.guests() == 0;
        *idle_looks = if is_idle { *idle_looks + 1 } else { 0 };
        if *idle_looks < IDLE_LOOKS {
            states::watch(&self.watch.parker, Some(EVERY));
            return;
        }
        *idle_looks = 0;
        self.control.lock().load.forget();
        self.crowd.set(false);
        self.watch.sleep(&self.counts, &self.is_ending);
    }

    /// What the threads in the pool's places ran and waited.
    fn sample(&self, stats: &mut HashMap<u32, SchedStat>) -> Vec<(u32, u64, u64)> {
        let mut threads = Vec::new();
        let workers = self.slots[..self.cpus() as usize].iter();
        for slot in workers.chain(self.guest_slots().map(|(_, slot)| slot)) {
            let thread = slot.thread_id.load(Ordering::Acquire);
            if thread == 0 {
                continue;
            }
            if !stats.contains_key(&thread) {
                stats.extend(SchedStat::open(thread).map(|stat| (thread, stat)));
            }
            match stats.get(&thread).and_then(SchedStat::read) {
                Some((ran, waited)) => threads.push((thread, ran, waited)),
                None => drop(stats.remove(&thread)),
            }
        }
        // Each has a file open; guests come and go.
        let here: HashSet<u32> = threads.iter().map(|&(thread, ..)| thread).collect();
        stats.retain(|thread, _| here.contains(thread));
        threads
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::sync::Arc;

    use amdahl_topology::Topology;

    use super::*;
    use crate::{Pool, SimulatedCpus};

    /// Ends a test that would hang.
    const LIMIT: Duration = Duration::from_secs(20);

    fn comes_true(is_so: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        while !is_so() {
            if begun.elapsed() > LIMIT {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// The watch slept on while a worker that had blocked for a second went on with its job.
    #[test]
    fn a_worker_that_comes_back_from_a_wait_wakes_the_watch() {
        let cpus = SimulatedCpus::new(Topology::synthetic("1 core").unwrap());
        let pool = Pool::builder().cpus(cpus).build().unwrap();
        let (to, from) = crate::channel(1);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let job = pool.spawn(move || {
            from.recv().unwrap();
            while !ends.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        let watch = &pool.registry.watch;
        assert!(
            comes_true(|| watch.is_asleep()),
            "it sleeps while the pool does"
        );
        to.send(()).unwrap();
        let is_awake = comes_true(|| !watch.is_asleep());
        is_over.store(true, Ordering::Release);
        job.join().unwrap();
        assert!(is_awake);
    }

    /// Eight CPUs of which a hypervisor keeps half while it is there, and a page tells it.
    struct Published {
        is_there: Arc<AtomicBool>,
        looks: u64,
        /// Whose threads run on them.
        pool: Arc<std::sync::OnceLock<std::sync::Weak<Registry>>>,
    }

    impl crate::CpuSource for Published {
        fn topology(&mut self) -> Topology {
            Topology::synthetic("8 core").unwrap()
        }
        fn allowed(&mut self) -> CpuSet {
            (0..8).collect()
        }
        fn stolen(&mut self) -> Option<crate::StealStat> {
            self.looks += 1;
            let second = 1_000_000_000;
            let taken = u64::from(self.is_there.load(Ordering::Relaxed));
            Some(crate::StealStat {
                stolen_ns: self.looks * taken * second,
                ran_ns: self.looks * second,
            })
        }
        fn published(&mut self) -> Option<amdahl_phantom_page::Snapshot> {
            use amdahl_phantom_page::{Cpus, Snapshot, coarse_now_ns};
            let registry = self.pool.get()?.upgrade()?;
            let threads = registry.counts.load().limit() as u16;
            self.is_there.load(Ordering::Relaxed).then(|| Snapshot {
                time_ns: coarse_now_ns(),
                ticks: self.looks,
                tick_us: 1000,
                window_us: 1000,
                running: Cpus::whole(threads.min(4)),
                phantom: Cpus::whole(threads.saturating_sub(4)),
                allowed: 8,
                ..Snapshot::default()
            })
        }
    }

    #[test]
    fn a_page_makes_workers_fewer_and_what_it_said_ends_with_it() {
        let is_there = Arc::new(AtomicBool::new(true));
        let whose = Arc::new(std::sync::OnceLock::new());
        let source = Published {
            is_there: is_there.clone(),
            looks: 0,
            pool: whose.clone(),
        };
        let pool = Pool::builder().cpus(source).build().unwrap();
        whose.set(Arc::downgrade(&pool.registry)).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let job = pool.spawn(move || {
            while !ends.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        });
        let is_down = comes_true(|| pool.threads() == 4);
        is_there.store(false, Ordering::Relaxed);
        let is_up = comes_true(|| pool.threads() > 4);
        is_over.store(true, Ordering::Release);
        job.join().unwrap();
        assert!(is_down && is_up, "{is_down} {is_up}");
    }
}
