//! Tasks that meet: nobody waits for what is there, nobody gets what is another's.

mod common;

use amdahl_des::{Costs, RunResult};
use common::{Run, check};

#[test]
fn readers_take_the_line_of_a_lock_one_after_the_other() {
    let result = Run {
        machine: "20 core",
        ..Run::default()
    }
    .text(
        "name = 'readers'
        [locks.l]
        kind = 'reader-writer'
        [[tasks]]
        name = 'writer'
        program = 'lock l; compute 1ms; unlock l'
        [[tasks]]
        name = 'reader'
        count = 19
        program = 'compute 100us; share l; compute 1us; unlock l'",
    );
    check(&result);
    let lock = &result.locks[0];
    assert_eq!((lock.acquired, lock.contended), (20, 19));
    // A millisecond, and a few hundred ns for each who goes first: not twice as much for each.
    assert!(lock.waited_ns_max < 1_100_000, "{lock:?}");
}

#[test]
fn a_wake_up_survives_the_cpu_that_it_went_to() {
    for policy in ["single", "dispatcher", "steal", "groups=2"] {
        for at in 1000..1060 {
            let result = Run {
                machine: "3 core",
                policy,
                ..Run::default()
            }
            .text(&format!(
                "name = 'gone'
                [[tasks]]
                name = 'sleeper'
                program = 'sleep 1ms; compute 1ms'
                [[changes]]
                at = '{at}us'
                offline = '0'"
            ));
            assert_eq!(result.end, "done", "{policy}, {at} us: {:?}", result.why);
            check(&result);
        }
    }
}

/// Who asks the dispatcher while that searches was not heard, and a task waited for ever.
#[test]
fn a_message_is_not_lost_while_the_dispatcher_searches() {
    for at in 1000..1200 {
        let result = Run {
            machine: "2 core",
            policy: "dispatcher",
            costs: Costs {
                examine: 60_000,
                ..Costs::default()
            },
            ..Run::default()
        }
        .text(&format!(
            "name = 'asked'
            [[tasks]]
            name = 'first'
            program = 'sleep 1ms; compute 15us'
            [[tasks]]
            name = 'second'
            program = 'sleep {at}us; compute 1us'"
        ));
        assert_eq!(result.end, "done", "{at} us: {:?}", result.why);
        check(&result);
    }
}

/// CPU 1 assigned while CPU 0 was away, and what was said to CPU 0 after that was not heard.
#[test]
fn a_dispatcher_that_comes_back_assigns_what_waits() {
    let result = Run {
        machine: "3 core",
        policy: "dispatcher",
        costs: Costs {
            tick_period: 900_000_000,
            ..Costs::default()
        },
        ..Run::default()
    }
    .text(
        "name = 'back'
        [[tasks]]
        name = 'short'
        program = 'compute 10ms'
        [[tasks]]
        name = 'long'
        count = 2
        program = 'compute 300ms'
        [[changes]]
        at = '1ms'
        offline = '0'
        [[changes]]
        at = '5ms'
        online = '0'",
    );
    assert_eq!(result.end, "done", "{:?}", result.why);
    check(&result);
    assert!(result.makespan_ns < 320_000_000, "{}", result.makespan_ns);
}

/// Children drew by the order in which all tasks were made, so that two policies or a change elsewhere were not compared on
/// the same draws.
#[test]
fn what_children_draw_does_not_depend_on_what_others_make() {
    let drawn = |others: &str| {
        let result = Run::default().text(&format!(
            "name = 'draws'
            [[tasks]]
            name = 'parent'
            program = 'loop 10 {{ compute 1ms; spawn child }}; join'
            [[tasks]]
            name = 'other'
            program = 'loop 10 {{ compute {others}; spawn none }}; join'
            [[tasks]]
            name = 'child'
            count = 0
            program = 'set x random(1000000); tally drawn x; spawn grandchild 2; join'
            [[tasks]]
            name = 'grandchild'
            count = 0
            program = 'set x random(1000000); tally drawn x'
            [[tasks]]
            name = 'none'
            count = 0
            program = 'compute 1us'"
        ));
        check(&result);
        result.counters["drawn"]
    };
    assert_eq!(drawn("100us"), drawn("10ms"));
    assert!(drawn("100us") > 0);
}

#[test]
fn a_job_is_done_once() {
    let result = Run::default().text(
        "name = 'twice'
        [graphs.g]
        jobs = [{ name = 'a' }, { name = 'b', after = ['a'] }, { name = 'c', after = ['b'] }]
        [[tasks]]
        name = 'worker'
        count = 2
        program = 'take g { tally jobs; finish; finish }'",
    );
    check(&result);
    assert_eq!((result.end.as_str(), result.counters["jobs"]), ("done", 3));
}

#[test]
fn a_writer_that_leaves_room_wakes_the_next() {
    let result = Run::default().text(
        "name = 'room'
        [pipes.p]
        capacity = 10
        [[tasks]]
        name = 'first'
        program = 'write p 10'
        [[tasks]]
        name = 'more'
        count = 2
        program = 'sleep 1ms; write p 5'
        [[tasks]]
        name = 'reader'
        program = 'sleep 10ms; read p 10'",
    );
    check(&result);
    assert_eq!(result.end, "done", "{:?}", result.why);
}

#[test]
fn waiting_for_ever_is_told_whatever_the_duration() {
    let result = Run::default().text(
        "name = 'stuck'
        duration = '10s'
        [notices.n]
        [[tasks]]
        name = 'one'
        program = 'suspend n'",
    );
    assert_eq!(result.end, "deadlock");
    assert!(!result.is_complete() && !result.why.is_empty());
}

#[test]
fn numbers_do_not_wrap() {
    let result = Run::default().text(
        "name = 'large'
        [devices.d]
        [[tasks]]
        name = 'one'
        program = '''
        tally x 9223372036854775807
        tally x 9223372036854775807
        tally x 9223372036854775807
        loop 10 as i { set i 9223372036854775807 }
        '''",
    );
    assert_eq!(
        (result.end.as_str(), result.counters["x"]),
        ("done", u64::MAX)
    );
}

/// A read costs what it gets, whether that was there before or came while it waited.
#[test]
fn a_read_pays_for_what_it_gets() {
    let costs = Costs {
        copy_kib: 1_024_000,
        ..Costs::free()
    };
    for (before_read, before_write) in [("1ms", "0ns"), ("0ns", "1ms")] {
        let result = Run {
            costs: costs.clone(),
            ..Run::default()
        }
        .text(&format!(
            "name = 'read'
            [pipes.p]
            [[tasks]]
            name = 'reader'
            start = '{before_read}'
            program = 'read p 1000000; compute 1us'
            [[tasks]]
            name = 'writer'
            start = '{before_write}'
            program = 'write p 10'"
        ));
        check(&result);
        // Ten bytes, each a microsecond.
        let writes_last = before_write == "1ms";
        let wanted = 1_000_000 + 11_000 + u64::from(writes_last) * 10_000;
        assert_eq!(result.makespan_ns, wanted, "{before_read}");
    }
}

#[test]
fn who_holds_a_kernels_lock_keeps_its_cpu() {
    let run = |keeps_cpu: bool| {
        let result = Run {
            machine: "2 core",
            ..Run::default()
        }
        .text(&format!(
            "name = 'kernel'
            [locks.l]
            kind = 'ticket'
            keeps_cpu = {keeps_cpu}
            [[tasks]]
            name = 'inside'
            count = 2
            cpus = '0'
            program = 'loop 5 {{ lock l; compute 20ms; unlock l; compute 1ms }}'
            [[tasks]]
            name = 'elsewhere'
            cpus = '0'
            program = 'compute 50ms'"
        ));
        check(&result);
        (
            result.used_ns.get("spin").copied().unwrap_or(0),
            result.sched.preemptions,
        )
    };
    // All on one CPU: nobody can wait for a lock whose holder never goes, and others have their turns between.
    let (spun, preempted) = run(true);
    assert_eq!(spun, 0);
    assert!(preempted > 0);
    assert!(run(false).0 > 0);
}

#[test]
fn a_lock_that_sleeps_cannot_keep_the_cpu() {
    let error = amdahl_des::workload::parse(
        "name = 'x'\n[locks.l]\nkind = 'mutex'\nkeeps_cpu = true\n[[tasks]]\nname = 'a'\nprogram = 'lock l; unlock l'",
        &Default::default(),
    )
    .unwrap_err();
    assert_eq!(error.line, Some(3));
    assert!(error.message.contains("spin"), "{error}");
}

/// The first task of the inbox may run on a busy CPU only: all behind it waited as long as it, beside idle CPUs.
#[test]
fn a_task_whose_cpu_is_busy_holds_up_nobody_else() {
    let text = "name = 'held up'
        [[tasks]]
        name = 'long'
        cpus = '1'
        program = 'compute 10ms'
        [[tasks]]
        name = 'bound'
        cpus = '1'
        count = 2
        program = 'sleep 1ms; compute 1ms'
        [[tasks]]
        name = 'other'
        cpus = '1-2'
        program = 'sleep 2ms; compute 1ms'
        [[tasks]]
        name = 'free'
        program = 'sleep 2ms; compute 1ms'";
    let result = Run {
        policy: "dispatcher",
        ..Run::default()
    }
    .text(text);
    check(&result);
    assert_eq!(result.end, "done");
    let ended = |name: &str| {
        let task = result.tasks.iter().find(|task| task.name == name);
        task.unwrap().last_end_ns
    };
    let (long, bound) = (ended("long"), ended("bound"));
    assert!(bound > long, "one CPU runs both");
    for name in ["other", "free"] {
        assert!(ended(name) < long, "{name}: {}, {long}", ended(name));
    }
}

/// A watch may begin where another task has put a number: how schbench measures a row of wake-ups.
#[test]
fn a_stopwatch_may_be_started_in_the_past() {
    let result = Run::default().text(
        "name = 'past'
        [numbers]
        begun = 0
        [notices.go]
        [[tasks]]
        name = 'waker'
        program = 'sleep 1ms; put begun now; compute 300us; resume go'
        [[tasks]]
        name = 'woken'
        program = 'suspend go; start late at begun; stop late'",
    );
    check(&result);
    let late = &result.histograms["late"];
    assert_eq!(late.count, 1);
    // And what it takes to come out of sleep, deeply, and to run.
    assert!((330_000..340_000).contains(&late.max), "{late:?}");
}

fn pairs(pairs: u32, spin: &str, work: &str) -> amdahl_des::RunResult {
    let result = Run {
        machine: "2 core",
        policy: "linux",
        ..Run::default()
    }
    .text(&format!(
        "name = 'pairs'
        [pipes.to]
        count = {pairs}
        capacity = 1
        spin = '{spin}'
        [pipes.fro]
        count = {pairs}
        capacity = 1
        spin = '{spin}'
        [[tasks]]
        name = 'ping'
        count = {pairs}
        threads = true
        program = 'loop 300 {{ compute {work}; write to[index] 1; read fro[index] 1 }}'
        [[tasks]]
        name = 'pong'
        count = {pairs}
        threads = true
        program = 'loop 300 {{ read to[index] 1; compute {work}; write fro[index] 1 }}'"
    ));
    check(&result);
    result
}

/// Who spun for 200 us while its partner had no CPU took five times as long as in the pool, whose channels learn.
#[test]
fn sides_of_a_pipe_learn_whether_spinning_pays() {
    let (sleeping, learning) = (pairs(1, "0us", "2us"), pairs(1, "adaptive", "2us"));
    let wakeups = |result: &amdahl_des::RunResult| result.sched.wakeups;
    assert!(
        wakeups(&learning) < wakeups(&sleeping) / 4,
        "two CPUs: spins"
    );
    let (fixed, learning) = (pairs(4, "200us", "20us"), pairs(4, "adaptive", "20us"));
    assert!(
        learning.makespan_ns < fixed.makespan_ns / 2,
        "crowded: {} and {} ns",
        learning.makespan_ns,
        fixed.makespan_ns
    );
}

/// Idle CPUs that go round all queues slow down those that use one of them; those that look at their own do not.
#[test]
fn who_looks_at_a_run_queue_makes_it_slower() {
    let of = |policy| {
        let costs = Costs {
            queue_poller: 500,
            ..Costs::default()
        };
        let result = Run {
            machine: "4 node x 4 core",
            policy,
            costs,
            ..Run::default()
        }
        .text(
            "name = 'looking'
            [notices.go]
            [notices.back]
            [[tasks]]
            name = 'a'
            program = 'loop 200 { resume go; suspend back }'
            [[tasks]]
            name = 'b'
            program = 'loop 200 { suspend go; resume back }'
            [[tasks]]
            name = 'boot'
            count = 16
            program = 'compute 100us'",
        );
        check(&result);
        result.makespan_ns
    };
    let (own, all) = (of("groups=4+spin=1s"), of("groups-round=4+spin=1s"));
    assert!(all > own * 3 / 2, "{own} and {all} ns");
}

/// Under a dispatcher tasks waited for a free CPU when the last other one went offline: the dispatcher, which would have run
/// them itself from then on, was not told of those that waited already.
#[test]
fn a_dispatcher_that_is_left_alone_runs_what_waits() {
    let result = Run {
        machine: "3 core",
        policy: "dispatcher",
        ..Run::default()
    }
    .text(
        "name = 'alone'
        [[tasks]]
        name = 'worker'
        count = 8
        program = 'compute 100us'
        [[changes]]
        at = '150us'
        offline = '1-2'",
    );
    check(&result);
    assert_eq!(result.end, "done", "{:?}", result.why);
}

/// A task that wakes another one at each step and then works for long, on two CPUs: what the pool does about it by default, and what
/// a kernel does with the same policy.
#[test]
fn who_wakes_a_job_keeps_it_where_the_policy_lets_it() {
    let run = |level: &str, policy, program: &str| {
        Run {
            machine: "2 core",
            policy,
            ..Run::default()
        }
        .text(&format!(
            "name = 'kept'
            level = '{level}'
            [notices.go]
            [notices.back]
            [[tasks]]
            name = 'waker'
            program = '{program}'
            [[tasks]]
            name = 'woken'
            program = 'loop 100 {{ suspend go; compute 5us; resume back }}'"
        ))
    };
    let turns = "loop 100 { compute 5us; resume go; suspend back }";
    // What the CPU computes that computes less.
    let less = |result: &RunResult| {
        let of_cpus = result.cpu_rows.iter();
        of_cpus
            .map(|cpu| cpu.used_ns.get("user").copied().unwrap_or(0))
            .min()
            .unwrap()
    };
    // Who wakes is about to wait: both run on one worker but for the first step, and nobody else is told.
    let jobs = run("jobs", "steal=machine+spin", turns);
    assert_eq!(jobs.end, "done", "{:?}", jobs.why);
    assert!(less(&jobs) < 20_000, "{:?}", jobs.cpu_rows);
    // A kernel has them where they were; so does a pool whose policy wants to be asked.
    assert!(less(&run("threads", "steal=machine+spin", turns)) > 400_000);
    assert!(less(&run("jobs", "linux", turns)) > 400_000);
    // Who wakes goes on for long: another worker takes what would come next, later than a kernel would.
    let works = "loop 5 { resume go; compute 50ms }; loop 95 { resume go }";
    let jobs = run("jobs", "steal=machine+spin", works);
    assert!(jobs.sched.steals > 0);
    let late = jobs.wakeup_ns.max;
    assert!((1_000_000..20_000_000).contains(&late), "{late}");
    let threads = run("threads", "steal=machine+spin", works);
    assert!(threads.wakeup_ns.max < 100_000);
}
