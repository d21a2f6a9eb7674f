use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn place(cpu: CpuId) -> Place {
    (cpu / 8, cpu / 4, cpu / 2, cpu)
}

#[derive(Clone, Debug)]
enum Step {
    Idle(CpuId),
    Busy(CpuId),
    AllBusy,
    Wait(Tid, CpuId, usize),
    Run(Tid),
}

fn queue_steps() -> impl Strategy<Value = Step> {
    let (cpu, tid) = (0u32..12, 1u32..16);
    prop_oneof![
        // 7 is never idle while somebody waits there.
        (tid.clone(), cpu, 0usize..5).prop_map(|(tid, cpu, class)| Step::Wait(
            tid,
            cpu - u32::from(cpu == 7),
            class
        )),
        tid.prop_map(Step::Run),
    ]
}

/// First, and in between, no CPU idles for so long that nobody keeps an order of who waits.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = || {
        let cpu = 0u32..12;
        let step = prop_oneof![
            5 => cpu.clone().prop_map(Step::Idle),
            5 => cpu.prop_map(Step::Busy),
            1 => Just(Step::AllBusy),
            10 => queue_steps(),
        ];
        prop::collection::vec(step, 1..120)
    };
    let overloaded = || prop::collection::vec(queue_steps(), 0..120);
    let parts = (overloaded(), any(), overloaded(), any());
    parts.prop_map(|(first, then, again, last)| {
        let again = [Step::AllBusy].into_iter().chain(again);
        first
            .into_iter()
            .chain(then)
            .chain(again)
            .chain(last)
            .collect()
    })
}

/// What the sets say, for the naive model.
#[derive(Default)]
struct Model {
    idle: BTreeSet<CpuId>,
    waiting: BTreeMap<Tid, usize>,
}

fn sets() -> Vec<Option<CpuSet>> {
    let parse = |text: &str| Some(text.parse().unwrap());
    vec![None, parse("0-3"), parse("2,5"), parse("7"), parse("4-11")]
}

impl Model {
    fn allows(sets: &[Option<CpuSet>], class: usize, cpu: CpuId) -> bool {
        sets[class].as_ref().is_none_or(|set| set.contains(cpu))
    }

    /// The largest possible number of allowed pairs, by augmenting paths.
    fn best(&self, sets: &[Option<CpuSet>]) -> usize {
        fn augment(
            tid: Tid,
            model: &Model,
            sets: &[Option<CpuSet>],
            of: &mut BTreeMap<CpuId, Tid>,
            seen: &mut BTreeSet<CpuId>,
        ) -> bool {
            for &cpu in &model.idle {
                if !Model::allows(sets, model.waiting[&tid], cpu) || !seen.insert(cpu) {
                    continue;
                }
                let owner = of.get(&cpu).copied();
                if owner.is_none_or(|other| augment(other, model, sets, of, seen)) {
                    of.insert(cpu, tid);
                    return true;
                }
            }
            false
        }
        let mut of = BTreeMap::new();
        let paired = self
            .waiting
            .keys()
            .filter(|&&tid| augment(tid, self, sets, &mut of, &mut BTreeSet::new()));
        paired.count()
    }
}

fn apply(wasted: &mut Wasted, classes: &[Class], model: &mut Model, now: Ns, step: &Step) {
    match *step {
        Step::Idle(cpu) => {
            wasted.cpu_idle(now, place(cpu));
            model.idle.insert(cpu);
        }
        Step::Busy(cpu) => {
            wasted.cpu_busy(now, place(cpu));
            model.idle.remove(&cpu);
        }
        Step::AllBusy => {
            for cpu in std::mem::take(&mut model.idle) {
                wasted.cpu_busy(now, place(cpu));
            }
        }
        Step::Wait(tid, cpu, class) => {
            wasted.wait(now, tid, Waiter::new(now, place(cpu), classes[class], true));
            model.waiting.insert(tid, class);
        }
        Step::Run(tid) => {
            wasted.wait_no_more(now, tid);
            model.waiting.remove(&tid);
        }
    }
}

fn mates(wasted: &Wasted, is_allowed: bool) -> Vec<(CpuId, Tid)> {
    let pairs = wasted
        .idle
        .iter()
        .filter_map(|(place, idle)| Some((place.3, idle.mate?)));
    pairs
        .filter(|(_, mate)| mate.is_allowed == is_allowed)
        .map(|(cpu, mate)| (cpu, mate.tid))
        .collect()
}

proptest! {
    #[test]
    fn the_pairing_is_maximal_and_allowed(steps in steps()) {
        let sets = sets();
        let mut wasted = Wasted::new(4_000_000);
        let mut model = Model::default();
        let classes: Vec<Class> = sets
            .iter()
            .map(|set| set.as_ref().map_or(Class::ANY, |set| wasted.class(set)))
            .collect();
        for (i, step) in steps.iter().enumerate() {
            apply(&mut wasted, &classes, &mut model, i as Ns * 10, step);
            let (allowed, apart) = (mates(&wasted, true), mates(&wasted, false));
            for &(cpu, tid) in &allowed {
                prop_assert!(Model::allows(&sets, model.waiting[&tid], cpu));
            }
            let best = model.best(&sets);
            prop_assert!(allowed.len() * 2 >= best && allowed.len() <= best);
            // Whoever could have a mate has one, if only one that affinity keeps away.
            let most = model.idle.len().min(model.waiting.len());
            prop_assert_eq!(allowed.len() + apart.len(), most);
            let threads: BTreeSet<Tid> = allowed.iter().chain(&apart).map(|pair| pair.1).collect();
            prop_assert_eq!(threads.len(), most);
        }
    }

    #[test]
    fn without_affinity_it_is_the_smaller_of_idle_cpus_and_waiting_threads(
        steps in steps(),
        step_ns in prop_oneof![Just(10), Just(BRIEF_NS)],
    ) {
        let mut wasted = Wasted::new(4_000_000);
        let mut model = Model::default();
        let (mut expected, mut settled) = (0, 0);
        for (i, step) in steps.iter().enumerate() {
            expected += step_ns * model.idle.len().min(model.waiting.len()) as Ns;
            let now = (i as Ns + 1) * step_ns;
            apply(&mut wasted, &[Class::ANY; 5], &mut model, now, step);
            settled += wasted.take_settled().map(|(_, ns)| ns).sum::<Ns>();
        }
        let now = (steps.len() as Ns) * step_ns;
        let table = wasted.table(now);
        prop_assert_eq!(table.total_ns(), expected);
        let is_brief = step_ns < BRIEF_NS;
        prop_assert_eq!(table.brief_ns, if is_brief { expected } else { 0 });
        prop_assert_eq!(table.pairs.iter().map(|row| row.ns).sum::<Ns>(), expected);
        prop_assert_eq!(table.by_reason[Reason::Affinity as usize], 0);
        prop_assert!(settled <= expected);
    }
}

const MS: Ns = 1_000_000;

/// One CPU idles from `idle_at`, one thread waits from `queued_at`, both until 20 ms.
fn reason(idle_at: Ns, queued_at: Ns, until: Ns, is_woken: bool, cpus: &str) -> (Reason, Ns) {
    let mut wasted = Wasted::new(4 * MS);
    let class = wasted.class(&cpus.parse().unwrap());
    let waiter = Waiter::new(queued_at, place(0), class, is_woken);
    if idle_at <= queued_at {
        wasted.cpu_idle(idle_at, place(1));
        wasted.wait(queued_at, 7, waiter);
    } else {
        wasted.wait(queued_at, 7, waiter);
        wasted.cpu_idle(idle_at, place(1));
    }
    wasted.wait_no_more(until, 7);
    let row = wasted.table(until).pairs[0];
    assert_eq!((row.idle, row.busy, row.stretches), (1, 0, 1));
    (row.reason, row.ns)
}

#[test]
fn reasons_follow_who_was_first() {
    assert_eq!(reason(0, MS, 2 * MS, true, "0-1"), (Reason::Placement, MS));
    assert_eq!(
        reason(MS, 0, 20 * MS, true, "0-1"),
        (Reason::Balancing, 19 * MS)
    );
    assert_eq!(
        reason(MS, 0, 3 * MS, true, "0-1"),
        (Reason::Transient, 2 * MS)
    );
    // Preempted, not woken: balancing could have moved it.
    assert_eq!(
        reason(0, MS, 20 * MS, false, "0-1"),
        (Reason::Balancing, 19 * MS)
    );
    assert_eq!(
        reason(0, MS, 20 * MS, true, "0"),
        (Reason::Affinity, 19 * MS)
    );
}

#[test]
fn a_cpu_that_idles_on_while_the_queue_moves_lacks_balancing() {
    // Threads come and go in the queue, each for 1 ms; the CPU beside idles all the time.
    let mut wasted = Wasted::new(4 * MS);
    wasted.wait(0, 1, Waiter::new(0, place(0), Class::ANY, false));
    wasted.cpu_idle(0, place(1));
    for i in 1..20 {
        let now = Ns::from(i) * MS;
        wasted.wait(now, i + 1, Waiter::new(now, place(0), Class::ANY, false));
        wasted.wait_no_more(now, i);
    }
    let table = wasted.table(20 * MS);
    assert_eq!(table.total_ns(), 20 * MS);
    assert!(table.by_reason[Reason::Balancing as usize] >= 15 * MS);
    // Each of them waited briefly, but the CPU did not idle briefly.
    assert_eq!(table.brief_ns, 0);
}

#[test]
fn who_has_waited_longest_is_found_after_an_overload_too() {
    let mut wasted = Wasted::new(4 * MS);
    let pinned = wasted.class(&"0".parse().unwrap());
    wasted.wait(0, 1, Waiter::new(0, place(0), pinned, false));
    wasted.wait(1, 2, Waiter::new(1, place(2), Class::ANY, false));
    for now in 2..1000 {
        wasted.wait(now, 3, Waiter::new(now, place(3), Class::ANY, false));
        wasted.wait_no_more(now, 3);
    }
    assert_eq!(
        wasted.seeking.first_alone(),
        None,
        "nobody asked for an order"
    );
    wasted.cpu_idle(1000, place(1));
    assert_eq!(mates(&wasted, true), [(1, 2)]);
    wasted.cpu_idle(1000, place(5));
    assert_eq!(mates(&wasted, false), [(5, 1)]);
}

#[test]
fn turns_that_are_over_before_anybody_could_help_are_brief() {
    let mut wasted = Wasted::new(4 * MS);
    let mut turn = |begin: Ns, ns: Ns| {
        wasted.cpu_idle(begin, place(1));
        wasted.wait(begin, 7, Waiter::new(begin, place(0), Class::ANY, true));
        wasted.wait_no_more(begin + ns, 7);
        wasted.table(begin + ns)
    };
    let brief = BRIEF_NS - 1;
    turn(0, brief);
    // The CPU idles on, and nobody waits in between.
    let table = turn(MS, brief);
    assert_eq!((table.total_ns(), table.brief_ns), (2 * brief, 2 * brief));
    let table = turn(2 * MS, BRIEF_NS);
    assert_eq!(table.brief_ns, 2 * brief);
    assert_eq!(table.total_ns(), 2 * brief + BRIEF_NS);
    // One that lasts still counts as what it is so far.
    wasted.wait(4 * MS, 7, Waiter::new(4 * MS, place(0), Class::ANY, true));
    assert_eq!(wasted.table(4 * MS + 100).brief_ns, 2 * brief + 100);
    assert_eq!(wasted.table(5 * MS).brief_ns, 2 * brief);
}

#[test]
fn many_pairs_are_added_up() {
    let mut wasted = Wasted::new(MS);
    for i in 0..(PAIRS_MAX as u32 + 100) {
        let now = Ns::from(i) * 100;
        wasted.wait(now, 1, Waiter::new(now, place(i + 1), Class::ANY, true));
        wasted.cpu_idle(now, place(0));
        wasted.cpu_busy(now + 10 + Ns::from(i % 7), place(0));
    }
    let table = wasted.table(Ns::MAX);
    assert!(table.pairs.len() <= PAIRS_MAX);
    let kept: Ns = table.pairs.iter().map(|row| row.ns).sum();
    assert_eq!(kept + table.other_pairs_ns, table.total_ns());
}
