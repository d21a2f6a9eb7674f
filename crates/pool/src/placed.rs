//! What the pool asks its policy, and whether it does as that answers: beside the policy alone, on what it saw.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering as StdOrdering};
use std::sync::{Mutex, mpsc};
use std::task::{Poll, Waker};

use amdahl_placement::{
    CpuId, CpuState, Flips, Machine, POLICIES, Policy, QueueId, Queues, View, Waking, Woken, policy,
};
use amdahl_spread::{CpuMask, SparseMask};
use amdahl_topology::Topology;

use crate::registry::Registry;
use crate::sync::Ordering;
use crate::worker::Worker;
use crate::{Handle, Pool, SimulatedCpus};

/// A question and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    waking: Waking<'static>,
    answer: (QueueId, Option<CpuId>),
}

pub(crate) fn note(registry: &Registry, task: &Waking, answer: (QueueId, Option<CpuId>)) {
    let waking = Waking {
        allowed: None,
        ..*task
    };
    let mut placed = registry.placed.lock().unwrap();
    if let Some(placed) = &mut *placed {
        placed.push(Placed { waking, answer });
    }
}

/// A copy of what a policy sees.
struct Seen {
    machine: Machine,
    queues: Queues,
    waiting: Vec<u32>,
    running: Vec<bool>,
    utilisation: Vec<u32>,
    online: CpuMask,
    idle: CpuMask,
    overloaded: SparseMask,
    now: u64,
}

impl Seen {
    fn of(view: &dyn View) -> Self {
        let machine = view.machine().clone();
        let cpus = machine.cpus();
        let copy = |from: &CpuMask| {
            let mask = CpuMask::new(cpus).unwrap();
            from.iter().for_each(|cpu| assert!(mask.set(cpu).is_ok()));
            mask
        };
        let overloaded = SparseMask::new(cpus).unwrap();
        let marked = view.overloaded().iter_within(0..cpus);
        marked.for_each(|cpu| assert!(overloaded.set(cpu).is_ok()));
        Seen {
            waiting: (0..view.queues().len() as u32)
                .map(|queue| view.waiting(QueueId(queue)))
                .collect(),
            running: (0..cpus).map(|cpu| view.running(cpu)).collect(),
            utilisation: (0..machine.llcs())
                .map(|llc| view.utilisation(llc))
                .collect(),
            online: copy(view.online()),
            idle: copy(view.idle()),
            overloaded,
            now: view.now(),
            queues: view.queues().clone(),
            machine,
        }
    }
}

impl View for Seen {
    fn machine(&self) -> &Machine {
        &self.machine
    }
    fn queues(&self) -> &Queues {
        &self.queues
    }
    fn waiting(&self, queue: QueueId) -> u32 {
        self.waiting[queue.index()]
    }
    fn running(&self, cpu: CpuId) -> bool {
        self.running[cpu as usize]
    }
    fn online(&self) -> &CpuMask {
        &self.online
    }
    fn idle(&self) -> &CpuMask {
        &self.idle
    }
    fn overloaded(&self) -> &SparseMask {
        &self.overloaded
    }
    fn utilisation(&self, llc: u32) -> u32 {
        self.utilisation[llc as usize]
    }
    fn now(&self) -> u64 {
        self.now
    }
}

/// What there was before a question: with it the policy alone gives the same answer.
struct Before {
    seen: Seen,
    /// How much is in each queue, with what only its workers see.
    held: Vec<u32>,
    state: CpuState,
    dispatcher: CpuState,
}

fn held(registry: &Registry) -> Vec<u32> {
    let next = |cpu: CpuId| {
        let next = &registry.slots[cpu as usize].next;
        u32::from(!next.load(Ordering::Relaxed).is_null())
    };
    let queues = (0..registry.layout.len() as u32).map(QueueId);
    let held = queues.map(|queue| {
        let nexts: u32 = registry.layout.cpus(queue).map(next).sum();
        registry.waiting(queue) + nexts
    });
    held.collect()
}

impl Before {
    fn new(registry: &Registry, state: &CpuState) -> Self {
        Before {
            seen: Seen::of(registry),
            held: held(registry),
            state: state.clone(),
            dispatcher: registry.dispatcher.lock().clone(),
        }
    }

    fn answer(mut self, policy: &dyn Policy, task: &Waking) -> (QueueId, Option<CpuId>) {
        match policy.wake(&mut self.state, &self.seen, task) {
            Woken::Queue { queue, notify, .. } => (queue, notify),
            Woken::Ask { .. } => {
                let assigned = policy.dispatch(&mut self.dispatcher, &self.seen, task);
                match assigned.cpu {
                    Some(cpu) => (self.seen.queues.of(cpu), Some(cpu)),
                    None => (self.seen.queues.inbox().unwrap(), None),
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// To a task that runs.
enum Order {
    /// Wakes another one.
    Wake(Waker),
    /// Makes a new one.
    Spawn(Arc<Actor>),
    /// Becomes ready at once, behind the others.
    Yield,
    Sleep,
    End,
}

/// A task that keeps its worker until it is told what to do.
struct Actor {
    /// The CPU whose worker it is on; [`NOWHERE`].
    on: AtomicU32,
    orders: Mutex<mpsc::Receiver<Order>>,
    waker: Mutex<Option<Waker>>,
    /// Counts the orders that were carried out.
    heard: AtomicU32,
    stage: Arc<Stage>,
}

const NOWHERE: u32 = u32::MAX;

/// What all actors of a pool share.
struct Stage {
    pool: Mutex<Option<Arc<Pool>>>,
    /// How many keep a worker.
    playing: AtomicUsize,
    before: Mutex<mpsc::Sender<Before>>,
    handles: Mutex<Vec<Handle<()>>>,
}

impl Stage {
    fn pool(&self) -> Arc<Pool> {
        self.pool.lock().unwrap().clone().expect("it is there")
    }

    fn start(self: &Arc<Self>, actor: Arc<Actor>) {
        let handle = self
            .pool()
            .spawn_future(std::future::poll_fn(move |context| {
                actor.play(context.waker())
            }));
        self.handles.lock().unwrap().push(handle);
    }

    fn tell_before(&self) {
        let worker = Worker::current().expect("actors are polled by workers");
        let before = Before::new(worker.registry(), &worker.state.borrow());
        self.before.lock().unwrap().send(before).unwrap();
    }
}

impl Actor {
    fn play(&self, waker: &Waker) -> Poll<()> {
        let cpu = Worker::current().expect("polled by a worker").cpu;
        *self.waker.lock().unwrap() = Some(waker.clone());
        self.on.store(cpu, StdOrdering::SeqCst);
        self.stage.playing.fetch_add(1, StdOrdering::SeqCst);
        let end = loop {
            let order = self.orders.lock().unwrap().recv();
            match order {
                Ok(Order::Wake(other)) => {
                    self.stage.tell_before();
                    other.wake();
                }
                Ok(Order::Spawn(other)) => {
                    self.stage.tell_before();
                    self.stage.start(other);
                }
                Ok(Order::Yield) => {
                    waker.wake_by_ref();
                    break Poll::Pending;
                }
                Ok(Order::Sleep) => break Poll::Pending,
                Ok(Order::End) | Err(_) => break Poll::Ready(()),
            }
            self.heard.fetch_add(1, StdOrdering::SeqCst);
        };
        self.on.store(NOWHERE, StdOrdering::SeqCst);
        self.stage.playing.fetch_sub(1, StdOrdering::SeqCst);
        self.heard.fetch_add(1, StdOrdering::SeqCst);
        end
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    Running,
    Ready,
    Asleep,
}

/// An actor, how to tell it what to do, what it does, and the CPU that it was on last.
type Role = (Arc<Actor>, mpsc::Sender<Order>, Is, Option<CpuId>);

/// A pool whose workers do nothing but what a test tells them.
struct Theatre {
    pool: Arc<Pool>,
    stage: Arc<Stage>,
    before: mpsc::Receiver<Before>,
    cast: Vec<Role>,
    policy: Box<dyn Policy>,
    random: u64,
    /// How many tasks were begun at once by an idle CPU, and how many were put where they wait.
    begun: Cell<u32>,
    waited: Cell<u32>,
}

impl Theatre {
    fn new(machine: &str, name: &str, seed: u64) -> Self {
        let cpus = SimulatedCpus::new(Topology::synthetic(machine).unwrap());
        let builder = Pool::builder().cpus(cpus).follows_load(false).policy(name);
        let pool = Arc::new(builder.build().unwrap());
        *pool.registry.placed.lock().unwrap() = Some(vec![]);
        let (tell, before) = mpsc::channel();
        let stage = Arc::new(Stage {
            pool: Mutex::new(Some(pool.clone())),
            playing: AtomicUsize::new(0),
            before: Mutex::new(tell),
            handles: Mutex::default(),
        });
        let mut theatre = Theatre {
            pool,
            stage,
            before,
            cast: vec![],
            policy: policy(name).unwrap(),
            random: seed,
            begun: Cell::new(0),
            waited: Cell::new(0),
        };
        theatre.settle();
        theatre
    }

    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    /// Until nobody is about to do anything.
    fn settle(&mut self) {
        loop {
            let counts = self.pool.registry.counts.load();
            let playing = self.stage.playing.load(StdOrdering::SeqCst);
            if counts.searching() == 0
                && counts.awake() as usize == playing
                && self.pool.registry.counts.load() == counts
            {
                break;
            }
            std::thread::yield_now();
        }
        for (actor, _, is, last) in &mut self.cast {
            let on = actor.on.load(StdOrdering::SeqCst);
            if on != NOWHERE {
                *last = Some(on);
                *is = Is::Running;
            } else if *is == Is::Running {
                // It ran when it was last looked at: it yielded, for who was told to sleep was noted then.
                *is = Is::Ready;
            }
        }
    }

    fn which(&mut self, what: Is) -> Option<usize> {
        let all: Vec<usize> = (0..self.cast.len())
            .filter(|&actor| self.cast[actor].2 == what)
            .collect();
        match all.len() {
            0 => None,
            len => Some(all[self.random(len)]),
        }
    }

    fn actor(&mut self) -> Arc<Actor> {
        let (tell, orders) = mpsc::channel();
        let actor = Arc::new(Actor {
            on: AtomicU32::new(NOWHERE),
            orders: Mutex::new(orders),
            waker: Mutex::default(),
            heard: AtomicU32::new(0),
            stage: self.stage.clone(),
        });
        self.cast.push((actor.clone(), tell, Is::Ready, None));
        actor
    }

    fn outside(&self) -> Before {
        let state = self.pool.registry.outside.lock().clone();
        Before::new(&self.pool.registry, &state)
    }

    fn placed(&self) -> Option<Placed> {
        let mut placed = self.pool.registry.placed.lock().unwrap();
        let placed = placed.as_mut().unwrap();
        assert!(placed.len() < 2, "asked once for each task: {placed:?}");
        placed.pop()
    }

    /// One event. Whether the policy was asked where to put a task that another one woke.
    fn step(&mut self) -> bool {
        let what = self.random(11);
        let by = self.which(Is::Running);
        let sleeper = self.which(Is::Asleep);
        let name = self.policy.name().to_owned();
        match (what, by, sleeper) {
            (0..=2, Some(by), Some(woken)) => {
                let waker = self.cast[woken].0.waker.lock().unwrap().clone().unwrap();
                let (last, at) = (self.cast[woken].3, self.cast[by].3);
                self.cast[woken].2 = Is::Ready;
                self.order(by, Order::Wake(waker));
                let before = self.before.recv().unwrap();
                self.settle();
                let Some(placed) = self.placed() else {
                    assert!(self.pool.registry.may_keep(), "{name}: not asked");
                    return false;
                };
                let waking = placed.waking;
                let known = (waking.new, waking.preempted, waking.last, waking.waker);
                assert_eq!(known, (false, false, last, at), "{name}: what it was asked");
                self.check(before, placed, woken);
                return true;
            }
            (3, Some(by), _) if self.cast.len() < 12 => {
                let at = self.cast[by].3;
                let actor = self.actor();
                self.order(by, Order::Spawn(actor));
                let before = self.before.recv().unwrap();
                self.settle();
                if let Some(placed) = self.placed() {
                    let waking = placed.waking;
                    let known = (waking.new, waking.last, waking.waker);
                    assert_eq!(known, (true, None, at), "{name}: what it was asked");
                    self.check(before, placed, self.cast.len() - 1);
                }
            }
            (4, _, Some(woken)) => {
                let waker = self.cast[woken].0.waker.lock().unwrap().clone().unwrap();
                let last = self.cast[woken].3;
                self.cast[woken].2 = Is::Ready;
                let before = self.outside();
                waker.wake();
                self.settle();
                let placed = self.placed().expect("who comes from outside is placed");
                let waking = placed.waking;
                let known = (waking.new, waking.last, waking.waker);
                assert_eq!(known, (false, last, None), "{name}: what it was asked");
                self.check(before, placed, woken);
            }
            (5, Some(by), _) => {
                self.order(by, Order::Yield);
                self.settle();
                if let Some(placed) = self.placed() {
                    let at = self.cast[by].3.filter(|_| self.cast[by].2 == Is::Ready);
                    assert!(placed.waking.preempted && !placed.waking.new);
                    assert_eq!(placed.waking.last, placed.waking.waker);
                    assert!(at.is_none_or(|at| placed.waking.last == Some(at)));
                }
            }
            (6.., Some(by), _) if self.cast.len() > 4 => {
                self.cast[by].2 = Is::Asleep;
                self.order(by, Order::Sleep);
                self.settle();
            }
            _ if self.cast.len() < 12 => {
                let actor = self.actor();
                let before = self.outside();
                self.stage.start(actor);
                self.settle();
                let placed = self.placed().expect("who comes from outside is placed");
                assert!(placed.waking.new);
                self.check(before, placed, self.cast.len() - 1);
            }
            _ => {}
        }
        false
    }

    /// Has it carry out an order, to the end.
    fn order(&self, actor: usize, order: Order) {
        let (actor, tell, ..) = &self.cast[actor];
        let before = actor.heard.load(StdOrdering::SeqCst);
        tell.send(order).unwrap();
        while actor.heard.load(StdOrdering::SeqCst) == before {
            std::thread::yield_now();
        }
    }

    /// The policy alone answers the same, and what it says has been done.
    fn check(&self, before: Before, placed: Placed, actor: usize) {
        let name = self.policy.name();
        let (queue, notify) = placed.answer;
        let is_idle = notify.is_some_and(|cpu| before.seen.idle.test(cpu));
        // Who is idle elsewhere may come and take it, but for groups that are apart.
        let near = match name.starts_with("groups-apart") {
            true => before.seen.queues.cpus(queue),
            false => 0..before.seen.machine.cpus(),
        };
        let nobody_idle = before.seen.idle.iter_within(near).next().is_none();
        let held_before = before.held[queue.index()];
        let alone = before.answer(&*self.policy, &placed.waking);
        assert_eq!(alone, placed.answer, "{name}: {:?}", placed.waking);
        let (_, _, is, last) = &self.cast[actor];
        if is_idle {
            assert!(*is == Is::Running, "{name}: {placed:?} and nobody ran it");
            assert_eq!(*last, notify, "{name}: {placed:?}");
            self.begun.set(self.begun.get() + 1);
        } else if nobody_idle {
            assert!(*is == Is::Ready, "{name}: {placed:?}");
            let held = held(&self.pool.registry)[queue.index()];
            assert_eq!(held, held_before + 1, "{name}: {placed:?}");
            self.waited.set(self.waited.get() + 1);
        }
    }

    fn end(self) {
        for (_, tell, ..) in &self.cast {
            drop(tell.send(Order::End));
        }
        for (actor, ..) in &self.cast {
            let waker = actor.waker.lock().unwrap().clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        *self.stage.pool.lock().unwrap() = None;
        for handle in std::mem::take(&mut *self.stage.handles.lock().unwrap()) {
            handle.join().unwrap();
        }
    }
}

/// The wake-up searches of `bounded`, `linux` and `numa` never ran in a pool: a task that was woken always stayed with its
/// waker.
#[test]
fn a_pool_does_as_its_policy_says() {
    let mut names: Vec<&str> = POLICIES
        .iter()
        .filter(|row| row.is_policy())
        .map(|row| row.name)
        .collect();
    names.extend([
        "groups=2",
        "groups-apart=2",
        "steal=machine",
        "steal=machine+spin",
        "bounded=no-idle-core",
        "linux=4",
        "linux+steal=machine",
        "wake=bounded+newidle",
        "numa=2",
    ]);
    for name in names {
        let mut waited = 0;
        for (seed, machine) in [(1, "2 node x 2 llc x 2 core"), (2, "3 core x 2 thread")] {
            let mut theatre = Theatre::new(machine, name, seed);
            // Without the watch.
            let registry = theatre.pool.registry.clone();
            let control = registry.control.lock();
            let asked = (0..400).filter(|_| theatre.step()).count();
            let begun = theatre.begun.get();
            assert!(begun > 10, "{name} on {machine}: {begun} begun");
            waited += theatre.waited.get();
            // By default what a worker wakes is its own next job.
            let may_keep = registry.may_keep();
            let is_so = if may_keep { asked == 0 } else { asked > 10 };
            assert!(is_so, "{name} on {machine}: asked {asked} times");
            if name.starts_with("steal=machine") {
                assert!(may_keep, "the default asks nobody");
            }
            drop(control);
            theatre.end();
        }
        assert!(waited > 0, "{name}: none waited");
    }
}

#[test]
fn a_task_that_wakes_many_is_told_to() {
    let mut theatre = Theatre::new("4 core", "linux", 1);
    let registry = theatre.pool.registry.clone();
    let control = registry.control.lock();
    for _ in 0..3 {
        let actor = theatre.actor();
        theatre.stage.start(actor);
    }
    theatre.settle();
    let mut many = Flips::default();
    (0..10_000).for_each(|task| many.woke(task, 0));
    for woken in 1..=12 {
        let sleeper = 1 + woken % 2;
        theatre.cast[sleeper].2 = Is::Asleep;
        theatre.order(sleeper, Order::Sleep);
        theatre.settle();
        let waker = theatre.cast[sleeper].0.waker.lock().unwrap().clone();
        registry.placed.lock().unwrap().as_mut().unwrap().clear();
        theatre.order(0, Order::Wake(waker.unwrap()));
        theatre.settle();
        let waking = theatre.placed().unwrap().waking;
        // Another one each time, so it has changed so often whom it wakes.
        let changes = |at_least| Flips::are_wide(waking.waker_flips, many, at_least);
        assert!(
            changes(woken as u32) && !changes(woken as u32 + 1),
            "{woken}"
        );
        assert_eq!(waking.wakee_flips, Flips::default(), "it wakes nobody");
    }
    drop(control);
    theatre.end();
}
