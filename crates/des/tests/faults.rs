//! What is wrong is told, with the reason.

mod common;

use std::collections::BTreeMap;

use amdahl_des::{Costs, Limits, SetupError, Simulation, workload};
use amdahl_topology::Topology;
use common::{Run, check, parse};

fn told(text: &str) -> (String, String) {
    let result = Run::default().text(text);
    check(&result);
    (result.end.clone(), result.why.join("\n"))
}

#[test]
fn a_circle_of_locks_is_told() {
    for kind in ["mutex", "ticket", "queued", "test-and-set", "semaphore"] {
        let (end, why) = told(&format!(
            "name = 'circle'
            [locks]
            a = {{ kind = '{kind}' }}
            b = {{ kind = '{kind}' }}
            [[tasks]]
            name = 'left'
            program = 'lock a; sleep 1ms; lock b'
            [[tasks]]
            name = 'right'
            program = 'lock b; sleep 1ms; lock a'"
        ));
        assert_eq!(end, "deadlock", "{kind}");
        assert!(
            why.contains("left waits for lock `b`, held by right"),
            "{why}"
        );
        assert!(why.contains("circle: left -> right -> left"), "{why}");
    }
}

/// A task with a timer hid that all others waited for each other: the run went on until its limit, which named nobody.
#[test]
fn a_circle_beside_a_timer_is_told_at_the_limit() {
    let limits = |time, events| Limits {
        time,
        events,
        ..Limits::default()
    };
    let none = Limits::default();
    for (end, limits) in [
        ("time-limit", limits(2_000_000_000, none.events)),
        ("event-limit", limits(none.time, 1 << 16)),
    ] {
        let result = Run {
            limits,
            ..Run::default()
        }
        .text(
            "name = 'hidden'
            locks.a.kind = 'mutex'
            locks.b.kind = 'mutex'
            notices.n = {}
            [[tasks]]
            name = 'left'
            program = 'lock a; sleep 1ms; lock b'
            [[tasks]]
            name = 'right'
            program = 'lock b; sleep 1ms; lock a'
            [[tasks]]
            name = 'served'
            count = 3
            program = 'suspend n'
            [[tasks]]
            name = 'clock'
            daemon = true
            program = 'forever { period 1ms; compute 1us }'",
        );
        check(&result);
        assert_eq!(result.end, end);
        let why = result.why.join("\n");
        for expected in [
            "left waits for lock `b`, held by right, since 1.",
            "served#0 waits for notice `n`, since ",
            "(and 2 more like it)",
            "circle: left -> right -> left",
        ] {
            assert!(why.contains(expected), "{expected}: {why}");
        }
        assert!(
            !why.contains("clock") && !why.contains("nobody leaves"),
            "{why}"
        );
    }
}

/// The next child got the number of one that had ended with a lock: it could give it back, and waited for itself.
#[test]
fn a_lock_stays_with_who_has_ended() {
    for kind in [
        "mutex",
        "ticket",
        "queued",
        "test-and-set",
        "reader-writer",
        "semaphore",
    ] {
        let (end, why) = told(&format!(
            "name = 'kept'
            locks.l.kind = '{kind}'
            [[tasks]]
            name = 'parent'
            program = 'spawn first; join; spawn second; join'
            [[tasks]]
            name = 'first'
            count = 0
            program = 'lock l'
            [[tasks]]
            name = 'second'
            count = 0
            program = 'unlock l; lock l'"
        ));
        assert_eq!(end, "deadlock", "{kind}");
        let expected = "waits for lock `l`, held by a task that has ended";
        assert!(why.contains(expected), "{kind}: {why}");
        assert!(!why.contains("circle"), "{kind}: {why}");
    }
}

#[test]
fn whoever_waits_for_nobody_is_told() {
    let cases = [
        ("read p 1", "data in pipe `p`"),
        ("loop 3 { write p 100 }", "room in pipe `p`"),
        ("barrier b", "barrier `b`, where 1 of 2 are"),
        ("await c", "condition `c`"),
        ("suspend n", "notice `n`"),
        ("take g { suspend n }", "notice `n`"),
        ("lock m; lock m", "lock `m`, held by one"),
    ];
    for (program, expected) in cases {
        let (end, why) = told(&format!(
            "name = 'stuck'
            [pipes.p]
            capacity = 200
            [barriers.b]
            parties = 2
            [conditions.c]
            [notices.n]
            [locks.m]
            kind = 'mutex'
            [graphs.g]
            jobs = [{{ name = 'job' }}]
            [[tasks]]
            name = 'one'
            program = '{program}'"
        ));
        assert_eq!(end, "deadlock", "{program}");
        assert!(why.contains(expected), "{program}: {why}");
    }
}

/// It was told as a deadlock after a second.
#[test]
fn spinning_for_who_waits_for_a_cpu_is_none() {
    for kind in ["ticket", "queued"] {
        let run = Run {
            machine: "1 core",
            ..Run::default()
        };
        let result = run.text(&format!(
            "name = 'long'
            [locks.l]
            kind = '{kind}'
            [[tasks]]
            name = 'one'
            count = 3
            program = 'lock l; compute 3s; unlock l'"
        ));
        assert_eq!(result.end, "done", "{kind}: {:?}", result.why);
        check(&result);
    }
}

#[test]
fn runaways_are_stopped() {
    let forever = "name = 'x'\n[[tasks]]\nname = 'one'\nprogram = 'forever { set x 1 }'";
    let (end, why) = told(forever);
    assert_eq!(end, "livelock");
    assert!(why.contains("`one` goes round"), "{why}");
    let long = "name = 'x'\n[[tasks]]\nname = 'one'\nprogram = 'forever { compute 1ms }'";
    let limits = Limits {
        time: 50_000_000,
        ..Limits::default()
    };
    let result = Run {
        limits,
        ..Run::default()
    }
    .text(long);
    assert_eq!(
        (result.end.as_str(), result.makespan_ns),
        ("time-limit", 50_000_000)
    );
    check(&result);
    let limits = Limits {
        events: 1,
        ..Limits::default()
    };
    assert_eq!(
        Run {
            limits,
            ..Run::default()
        }
        .text(long)
        .end,
        "event-limit"
    );
    let bomb = "name = 'x'\n[[tasks]]\nname = 'bomb'\nprogram = 'forever { spawn bomb 10 }'";
    let limits = Limits {
        tasks: 1000,
        ..Limits::default()
    };
    let result = Run {
        limits,
        ..Run::default()
    }
    .text(bomb);
    assert_eq!(result.end, "task-limit");
    check(&result);
}

#[test]
fn zero_lengths_are_fine() {
    let text = "name = 'nothing'
        [pipes.p]
        [devices.d]
        service = 0
        [[tasks]]
        name = 'one'
        count = 3
        program = 'compute 0; occupy 0; sleep 0; loop 0 { compute 1s }; write p 0; read p 0; io d; fault 0; spawn none 0; join'
        [[tasks]]
        name = 'none'
        count = 0
        program = ''";
    let result = Run {
        costs: Costs::free(),
        ..Run::default()
    }
    .text(text);
    assert_eq!((result.end.as_str(), result.makespan_ns), ("done", 0));
    let empty = "name = 'empty'\n[[tasks]]\nname = 'none'\ncount = 0\nprogram = ''";
    assert_eq!(Run::default().text(empty).end, "done");
}

#[test]
fn masks_must_name_a_cpu_and_break_when_all_of_theirs_are_gone() {
    let text = |cpus: &str, change: &str| {
        format!(
            "name = 'x'\n[[tasks]]\nname = 'one'\ncpus = '{cpus}'\nprogram = 'loop 100 {{ compute 100us; sleep 10us }}'\n{change}"
        )
    };
    let workload = parse(&text("70-80", ""));
    let topology = Topology::synthetic("4 core").unwrap();
    let policy = amdahl_placement::policy("steal").unwrap();
    let costs = Costs::default();
    let simulation = Simulation {
        workload: &workload,
        topology: &topology,
        costs: &costs,
        policy: &*policy,
        seed: 1,
        limits: Limits::default(),
    };
    let error = simulation.run().unwrap_err();
    assert_eq!(
        error,
        SetupError::NoCpu {
            task: "one".into(),
            mask: "70-80".into(),
            cpus: "0-3".into()
        }
    );

    let change = "[[changes]]\nat = '2ms'\noffline = '1-2'\n";
    for policy in ["steal", "linux", "single", "dispatcher", "groups=2"] {
        let result = Run {
            policy,
            ..Run::default()
        }
        .text(&text("1-2", change));
        assert_eq!(
            (result.end.as_str(), result.sched.affinity_broken),
            ("done", 1),
            "{policy}"
        );
        check(&result);
        assert!(result.cpu_rows[1].used_ns["offline"] > 0);
    }
    // The last CPU stays.
    let all = "[[changes]]\nat = '2ms'\noffline = '0-3'\n";
    assert_eq!(Run::default().text(&text("0-3", all)).end, "done");
}

/// Damaged files: the line, and a part of the message.
#[test]
fn damaged_files_are_told_with_the_line() {
    let head = "name = 'x'\n[locks.l]\nkind = 'mutex'\n[[tasks]]\nname = 'one'\n";
    let program = |program: &str| format!("{head}program = '''\n{program}\n'''\n");
    let cases: Vec<(String, usize, &str)> = vec![
        ("name = ".into(), 1, ""),
        ("name = 'x'\ntasks = []\ncolour = 1".into(), 3, "colour"),
        (format!("{head}count = 'nobody'\nprogram = ''"), 6, "no parameter or variable `nobody`"),
        (format!("{head}count = -1\nprogram = ''"), 6, "must be within"),
        (format!("{head}cpus = 'a-b'\nprogram = ''"), 6, "CPUs `a-b`"),
        (program("compute 1us\n\ncompte 2us"), 9, "no statement `compte`"),
        (program("compute 1parsec"), 7, "unknown unit"),
        (program("lock nothing"), 7, "expected a lock, but `nothing` is none; there are l"),
        (program("barrier l"), 7, "`l` is a lock"),
        (program("loop 3 {\ncompute 1us"), 9, "line 7 has no `}`"),
        (program("compute 1us 2us"), 7, "the end of the line"),
        (program("compute (1 + 2"), 7, "expected `)`"),
        (program("compute uniform(5us, 1us)"), 7, "the first one is larger"),
        (program("stop watch"), 7, "not started"),
        (program("nice 40"), 7, "within -20 and 19"),
        (program("fork two"), 7, "no task `two`"),
        (program("\u{1f980}"), 7, "means nothing"),
        (program(&"(".repeat(3)), 7, "a statement"),
        (program(&format!("compute {}1", "(".repeat(5000))), 7, "too deep"),
        (program(&"forever {".repeat(5000)), 7, "too deep"),
        ("name = 'x'\n[locks.l]\nkind = 'magic'\n[[tasks]]\nname = 'a'\nprogram = ''".into(), 3, "choose from"),
        ("name = 'x'\n[barriers.b]\n[[tasks]]\nname = 'a'\nprogram = ''".into(), 2, "needs `parties`"),
        ("name = 'x'\n[params]\na = 'b'\nb = 'a'\n[[tasks]]\nname = 'a'\nprogram = ''".into(), 3, "`b`"),
        ("name = 'x'\n[graphs.g]\njobs = [\n{ name = 'a', after = ['b'] },\n{ name = 'b', after = ['a'] },\n]\n[[tasks]]\nname = 'a'\nprogram = ''".into(), 4, "circle: a -> b -> a"),
        ("name = 'x'\n[graphs.g]\njobs = [\n{ name = 'a', after = ['c'] },\n]\n[[tasks]]\nname = 'a'\nprogram = ''".into(), 4, "no job `c`"),
        ("name = 'x'\n[devices.a]\nparallelism = 60000\ncount = 10\n[devices.b]\nparallelism = 60000\ncount = 10\n[[tasks]]\nname = 'a'\nprogram = ''".into(), 5, "serve more than"),
        (format!("name = 'x'\n{}[[tasks]]\nname = 'a'\nprogram = ''", (0..3).map(|i| format!("[graphs.g{i}]\njobs = [{{ name = 'a', count = 400000 }}]\n")).collect::<String>()), 7, "more than 1000000 jobs"),
        (format!("name = 'x'\n{}[[tasks]]\nname = 'a'\nprogram = ''", (0..3).map(|i| format!("[graphs.g{i}]\njobs = [\n{{ name = 'a', count = 3000 }},\n{{ name = 'b', count = 3000, after = ['a'] }},\n]\n")).collect::<String>()), 15, "dependencies"),
        (program(&(0..1001).map(|i| format!("tally c{i}\n")).collect::<String>()), 1007, "one more than the 1000"),
    ];
    for (text, line, part) in cases {
        let error = workload::parse(&text, &BTreeMap::new()).expect_err(&text);
        assert_eq!(error.line, Some(line), "{error}\n{text}");
        assert!(error.message.contains(part), "{error}\n{text}");
    }
}

#[test]
fn parameters_are_set_and_checked() {
    let text = "name = 'x'\n[params]\na = 2\nb = 'a * 3'\nt = '5us'\n[[tasks]]\nname = 'one'\ncount = 'b'\nprogram = 'compute t'";
    let set = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|&(a, b)| (a.to_owned(), b.to_owned()))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(
        workload::parse(text, &set(&[("a", "4")]))
            .unwrap()
            .templates[0]
            .count,
        12
    );
    assert_eq!(
        workload::parse(text, &set(&[("t", "1ms")])).unwrap().params["t"],
        1_000_000
    );
    for (bad, part) in [
        (("c", "1"), "no parameter `c`; it has a, b, t"),
        (("a", "x y"), "--set a=x y"),
        (("t", "3 parsecs"), "the end of the text"),
    ] {
        let error = workload::parse(text, &set(&[bad])).unwrap_err();
        assert!(error.message.contains(part), "{error}");
    }
}

/// A loop that only owed time, for cache lines, was once taken for one that goes round without any.
#[test]
fn a_loop_of_shared_lines_takes_time() {
    let text = "name = 'x'\n[lines.l]\n[[tasks]]\nname = 'one'\ncount = 2\nprogram = 'loop 2000000 { touch l }'";
    let result = Run::default().text(text);
    check(&result);
    assert_eq!(result.end, "done");
    assert!(result.makespan_ns > 2_000_000 * 5, "{}", result.makespan_ns);
}
