//! Readers run near the threads whose faults they serve: what [`crate::plan::near`] decides is carried out here.

use std::sync::atomic::{AtomicBool, Ordering};

use amdahl_topology::{CpuSet, Topology, allowed_of, set_allowed};

use super::crew::Crew;
use crate::event::Event;
use crate::plan::near::{Near, Place};
use crate::sys::clock::now_ns;
use crate::sys::running::last_cpu;

/// One fault in so many is looked at.
const EVERY: usize = 4;

/// How readers follow faulting threads.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The machine; `None` if it is not known.
    pub topology: fn() -> Option<Topology>,
    /// Where a thread ran last.
    pub last_cpu: fn(u32) -> rustix::io::Result<u32>,
    /// CPUs that a reader keeps at least.
    pub least: usize,
    /// Between two looks at where a thread runs.
    pub pause_ns: u64,
    /// Between two decisions.
    pub gap_ns: u64,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            // CPUs may come online.
            topology: || Topology::read_present().ok(),
            last_cpu,
            least: 2,
            pause_ns: 1_000_000,
            gap_ns: 250_000_000,
        }
    }
}

impl Terms {
    /// What readers go by, made by a thread that is never bound; `None` where all CPUs are equally near.
    pub fn guide(self) -> Option<Guide> {
        let topology = (self.topology)().filter(|topology| topology.llcs() > 1)?;
        Some(Guide {
            terms: self,
            topology,
            unbound: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            is_told: AtomicBool::new(false),
        })
    }
}

pub(crate) struct Guide {
    terms: Terms,
    topology: Topology,
    /// A thread that runs wherever the process may, as it is at the time: by its cpuset, and by whoever binds all threads of it. The first thread of the
    /// process would not do: programs bind that to a CPU of its own.
    unbound: u32,
    is_told: AtomicBool,
}

impl Guide {
    fn allowed(&self) -> Option<CpuSet> {
        allowed_of(self.unbound).ok()
    }
}

/// A reader that follows. While it lives the thread may be bound.
pub(crate) struct Follower<'a> {
    crew: &'a Crew,
    near: Near,
    /// Faults since one was looked at, and when that was.
    faults: usize,
    looked_ns: u64,
}

impl<'a> Follower<'a> {
    /// For the calling thread.
    pub fn new(crew: &'a Crew) -> Follower<'a> {
        Follower {
            crew,
            near: Near::default(),
            faults: 0,
            looked_ns: 0,
        }
    }

    /// So many faults were served, one of this thread. The gate is open.
    pub fn served(&mut self, faults: usize, thread: Option<u32>) {
        let (Some(Some(guide)), Some(thread)) = (self.crew.guide.get(), thread) else {
            return;
        };
        self.faults += faults;
        if self.faults < EVERY {
            return;
        }
        let now = now_ns();
        if now.saturating_sub(self.looked_ns) < guide.terms.pause_ns {
            return;
        }
        (self.faults, self.looked_ns) = (0, now);
        let cpu = (guide.terms.last_cpu)(thread);
        self.near.vote(&guide.topology, cpu.ok());
        if self.near.is_blind() && !guide.is_told.swap(true, Ordering::Relaxed) {
            self.crew.inner.events.tell(Event::NotNear);
        }
        if !self.near.is_due(now, guide.terms.gap_ns) {
            return;
        }
        if let Some(allowed) = guide.allowed()
            && let Some((place, cpus)) =
                self.near
                    .decide(&guide.topology, &allowed, guide.terms.least, now)
            // Else what is allowed has changed just now, or we may not: it is tried again.
            && set_allowed(0, &cpus).is_ok()
        {
            self.near.moved(place, cpus);
            self.crew.inner.tally.reader_moves.add(1);
        }
    }
}

impl Drop for Follower<'_> {
    /// Whoever begins anew on this thread, after a panic, knows nothing of where it is bound.
    fn drop(&mut self) {
        if self.near.place() != Place::Everywhere
            && let Some(Some(guide)) = self.crew.guide.get()
            && let Some(allowed) = guide.allowed()
        {
            let _ = set_allowed(0, &allowed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, Mutex};

    use amdahl_topology::{Cpu, allowed};

    use super::*;
    use crate::{Backing, Engine, Mapping, PAGE, Pager, Source, SourceError, Stats, Support};

    const PAGES: usize = 4096;

    /// Content that notes where its reader may run.
    #[derive(Default)]
    struct Seen(Mutex<Option<CpuSet>>);

    impl Seen {
        fn last(&self) -> CpuSet {
            self.0.lock().unwrap().clone().unwrap()
        }
    }

    impl Source for Seen {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            *self.0.lock().unwrap() = Some(allowed().unwrap());
            into.fill(7);
            Ok(())
        }
    }

    /// The allowed CPUs, of which each is said to be a cache of its own, or all to be one.
    fn made_up(is_apart: bool) -> Option<Topology> {
        let cpu = |id| Cpu {
            id,
            core: id,
            llc: if is_apart { id } else { 0 },
            node: 0,
            package: 0,
            thread: 0,
            capacity: 1024,
        };
        Topology::from_cpus(&allowed().unwrap().iter().map(cpu).collect::<Vec<_>>())
    }

    /// A test decides by all faults it makes and at once, so that it need not wait.
    fn hasty(topology: fn() -> Option<Topology>) -> Terms {
        Terms {
            least: 1,
            pause_ns: 0,
            gap_ns: 0,
            topology,
            ..Terms::default()
        }
    }

    fn start(
        engine: Engine,
        near: Option<Terms>,
        memory: &Arc<Mapping>,
        source: Arc<dyn Source>,
    ) -> Pager {
        let mut builder = Pager::builder()
            .mapping(memory, 0)
            .source(source)
            .engine(engine)
            .window(PAGE)
            .shards(1)
            .workers(0);
        builder.near = near;
        let pager = builder.start().unwrap();
        // Before that no faults are counted.
        while pager.crew.guide.get().is_none() {
            std::thread::yield_now();
        }
        pager
    }

    fn memory() -> Arc<Mapping> {
        Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap())
    }

    /// A pager, and a thread that touches pages one by one on these CPUs in turn, on each until `is_enough` says so of the CPUs that the reader
    /// has and the pages touched there, or half of the pages are used up. What the reader had at last, on each.
    fn touch(
        near: Option<Terms>,
        cpus: &[u32],
        is_enough: impl Fn(u32, &CpuSet, usize) -> bool + Sync,
    ) -> (Vec<CpuSet>, Stats) {
        let (memory, seen) = (memory(), Arc::new(Seen::default()));
        let source: Arc<dyn Source> = Arc::<Seen>::clone(&seen);
        let pager = start(Engine::Sharded, near, &memory, source);
        let per_cpu = PAGES / cpus.len();
        let had = std::thread::scope(|scope| {
            let run = || {
                let on = |(nth, &cpu): (usize, &u32)| {
                    set_allowed(0, &[cpu].into_iter().collect()).unwrap();
                    for page in 0..per_cpu {
                        let mut byte = [0];
                        memory.read((nth * per_cpu + page) * PAGE, &mut byte);
                        assert_eq!(byte, [7]);
                        if is_enough(cpu, &seen.last(), page + 1) {
                            break;
                        }
                    }
                    seen.last()
                };
                cpus.iter().enumerate().map(on).collect()
            };
            scope.spawn(run).join().unwrap()
        });
        (had, pager.stats())
    }

    fn is_possible() -> bool {
        let support = Support::probe();
        if support.way.is_none() {
            println!("SKIPPED: {support}");
        }
        support.way.is_some()
    }

    #[test]
    fn a_reader_has_the_cache_of_the_thread_that_faults_and_follows_it() {
        if !is_possible() {
            return;
        }
        let cpus: Vec<u32> = allowed().unwrap().iter().take(2).collect();
        if cpus.len() < 2 {
            return println!("SKIPPED: a reader that moves needs two CPUs");
        }
        let is_there = |cpu, had: &CpuSet, _| *had == [cpu].into_iter().collect();
        let (had, stats) = touch(Some(hasty(|| made_up(true))), &cpus, is_there);
        for (cpu, had) in cpus.iter().zip(&had) {
            assert_eq!(had.to_string(), cpu.to_string());
        }
        assert!(stats.reader_moves >= 2, "{stats:?}");
    }

    #[test]
    fn nothing_is_bound_with_one_cache_nor_where_it_is_turned_off() {
        if !is_possible() {
            return;
        }
        let all = allowed().unwrap();
        let off = Pager::builder().near(false).near;
        assert!(off.is_none());
        for near in [Some(hasty(|| made_up(false))), off] {
            let cpus: Vec<u32> = all.iter().take(1).collect();
            let is_enough = |_, had: &CpuSet, pages| *had != all || pages >= 512;
            let (had, stats) = touch(near, &cpus, is_enough);
            assert_eq!((had, stats.reader_moves), (vec![all.clone()], 0));
        }
    }

    #[test]
    fn nothing_is_bound_to_a_single_cpu() {
        if !is_possible() {
            return;
        }
        let all = allowed().unwrap();
        let cpus: Vec<u32> = all.iter().take(1).collect();
        let terms = Terms {
            least: Terms::default().least,
            ..hasty(|| made_up(true))
        };
        let is_enough = |_, had: &CpuSet, pages| *had != all || pages >= 512;
        let (had, stats) = touch(Some(terms), &cpus, is_enough);
        assert_eq!((had, stats.reader_moves), (vec![all.clone()], 0));
    }

    #[test]
    fn where_threads_cannot_be_seen_it_is_told_once_and_nothing_is_bound() {
        if !is_possible() {
            return;
        }
        let terms = Terms {
            last_cpu: |_| Err(rustix::io::Errno::NOENT),
            ..hasty(|| Topology::synthetic("2 llc x 1 core").ok())
        };
        let (memory, seen) = (memory(), Arc::new(Seen::default()));
        let pager = start(
            Engine::Sharded,
            Some(terms),
            &memory,
            Arc::<Seen>::clone(&seen) as _,
        );
        let all = allowed().unwrap();
        let mut told = 0;
        for page in 0..PAGES {
            let mut byte = [0];
            memory.read(page * PAGE, &mut byte);
            assert_eq!((byte, seen.last()), ([7], all.clone()));
            while let Some(event) = pager.next_event(std::time::Duration::ZERO) {
                told += usize::from(event == Event::NotNear);
            }
        }
        assert_eq!((told, pager.stats().reader_moves), (1, 0));
    }

    #[test]
    fn who_is_a_reader_no_longer_is_bound_no_longer() {
        if !is_possible() {
            return;
        }
        let all = allowed().unwrap();
        if all.len() < 2 {
            return println!("SKIPPED: a reader that moves needs two CPUs");
        }
        let terms = Terms {
            last_cpu: |_| Ok(allowed_of(0).unwrap().first().unwrap()),
            ..hasty(|| made_up(true))
        };
        let memory = memory();
        let pager = start(
            Engine::Sharded,
            Some(terms),
            &memory,
            Arc::new(Seen::default()),
        );
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut follower = Follower::new(&pager.crew);
                for _ in 0..64 {
                    follower.served(EVERY, Some(1));
                }
                assert_eq!(allowed().unwrap(), all.first().into_iter().collect());
                drop(follower);
                assert_eq!(allowed().unwrap(), all);
            });
        });
    }

    #[test]
    fn who_serves_all_of_the_memory_follows_nobody() {
        if !is_possible() {
            return;
        }
        let terms = Some(hasty(|| Topology::synthetic("2 llc x 1 core").ok()));
        let pager = start(Engine::Reader, terms, &memory(), Arc::new(Seen::default()));
        assert!(matches!(pager.crew.guide.get(), Some(None)));
    }

    #[test]
    fn one_cache_needs_no_guide() {
        assert!(hasty(|| made_up(false)).guide().is_none());
        assert!(hasty(|| None).guide().is_none());
    }
}
