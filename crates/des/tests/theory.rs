//! Where theory knows the answer, the simulator gives it.

mod common;

use amdahl_des::Costs;
use common::{Run, parse};

/// Mean and its standard error.
fn estimate(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// Ten seeds; 4.78 is Student's t for 99.9 % and nine degrees of freedom. A start with empty queues shortens the
/// first waits: one per cent is allowed for it.
fn agrees(samples: &[f64], theory: f64) {
    let (mean, error) = estimate(samples);
    assert!(
        (mean - theory).abs() < 4.78 * error + 0.01 * theory,
        "{mean} +- {error}, theory {theory}"
    );
    assert!(
        error < 0.05 * theory,
        "the estimate says little: {mean} +- {error}"
    );
}

/// Erlang's C: the probability that all of `c` servers are busy, with `a` of them used on average.
fn erlang_c(c: u32, a: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..c {
        sum += term;
        term *= a / f64::from(k + 1);
    }
    let all = term * f64::from(c) / (f64::from(c) - a);
    all / (sum + all)
}

fn waits(servers: u32, mean_between_ns: u32, jobs: u32) -> Vec<f64> {
    let workload = parse(&format!(
        "name = 'queue'
        [[tasks]]
        name = 'source'
        cpus = '{servers}'
        program = 'loop {jobs} {{ sleep exp({mean_between_ns}); spawn job }}; join'
        [[tasks]]
        name = 'job'
        count = 0
        cpus = '0-{}'
        program = 'compute exp(100us)'",
        servers - 1
    ));
    let machine = format!("{} core", servers + 1);
    let one = |seed| {
        let result = Run {
            machine: &machine,
            policy: "single",
            costs: Costs::free(),
            seed,
            ..Run::default()
        }
        .of(&workload);
        assert_eq!(
            (result.end.as_str(), result.tasks[1].count),
            ("done", u64::from(jobs))
        );
        common::check(&result);
        result.tasks[1].waited_ns as f64 / f64::from(jobs)
    };
    (1..=10).map(one).collect()
}

#[test]
fn one_server_waits_as_m_m_1() {
    // 70 % of the server: W = rho / (mu - lambda).
    let theory = 0.7 * 100_000.0 / 0.3;
    agrees(&waits(1, 142_857, 20_000), theory);
}

#[test]
fn four_servers_wait_as_m_m_c() {
    // 80 % of four servers.
    let theory = erlang_c(4, 3.2) * 100_000.0 / (4.0 - 3.2);
    agrees(&waits(4, 31_250, 20_000), theory);
}

#[test]
fn a_device_waits_as_m_m_c() {
    let workload = parse(
        "name = 'disk'
        [devices.disk]
        parallelism = 2
        service = 'exp(100us)'
        [[tasks]]
        name = 'source'
        program = 'loop 20000 { sleep exp(71429); spawn request }; join'
        [[tasks]]
        name = 'request'
        count = 0
        program = 'io disk'",
    );
    let one = |seed| {
        let result = Run {
            costs: Costs::free(),
            seed,
            ..Run::default()
        }
        .of(&workload);
        let disk = result
            .objects
            .iter()
            .find(|row| row.kind == "device")
            .unwrap();
        disk.waited_ns as f64 / disk.uses as f64
    };
    let samples: Vec<f64> = (1..=10).map(one).collect();
    agrees(
        &samples,
        erlang_c(2, 1.400_011) * 100_000.0 / (2.0 - 1.400_011),
    );
}

#[test]
fn a_lock_bounds_the_speedup_as_amdahl_says() {
    let time = |threads: u32| {
        let text = format!(
            "name = 'serial'
            [locks.serial]
            kind = 'queued'
            [[tasks]]
            name = 'worker'
            count = {threads}
            program = 'loop {} {{ compute 3us; lock serial; compute 1us; unlock serial }}'",
            9600 / threads
        );
        let result = Run {
            machine: "16 core",
            costs: Costs::free(),
            ..Run::default()
        }
        .text(&text);
        common::check(&result);
        result.makespan_ns as f64
    };
    let alone = time(1);
    assert_eq!(alone, 9600.0 * 4_000.0);
    // Up to four threads the lock is free when it is asked for; then it is always taken.
    for (threads, speedup) in [(2, 2.0), (4, 4.0), (8, 4.0), (16, 4.0)] {
        let found = alone / time(threads);
        assert!(
            (found / speedup - 1.0).abs() < 0.01,
            "{threads} threads: {found}, theory {speedup}"
        );
    }
}

#[test]
fn hand_overs_of_ticket_locks_grow_with_the_waiters_and_of_queued_ones_do_not() {
    let handed = |kind: &str, threads: u32| {
        let text = format!(
            "name = 'storm'
            [locks.hot]
            kind = '{kind}'
            [[tasks]]
            name = 'worker'
            count = {threads}
            program = 'loop 500 {{ lock hot; compute 100; unlock hot }}'"
        );
        let result = Run {
            machine: "32 core",
            ..Run::default()
        }
        .text(&text);
        common::check(&result);
        result.locks[0].handed_ns as f64 / result.locks[0].contended as f64
    };
    // One line to one waiter: 50 ns within the cache; a ticket lock adds half of the other waiters' reads.
    for threads in [8, 32] {
        let (queued, ticket) = (handed("queued", threads), handed("ticket", threads));
        assert!((queued - 50.0).abs() < 3.0, "{threads}: {queued}");
        let theory = 50.0 + 50.0 * f64::from(threads - 2) / 2.0;
        assert!(
            (ticket / theory - 1.0).abs() < 0.15,
            "{threads}: {ticket}, theory {theory}"
        );
    }
}

#[test]
fn two_busy_hardware_threads_share_a_core() {
    let text = "name = 'smt'
        [[tasks]]
        name = 'worker'
        count = 2
        program = 'compute 10ms'";
    let costs = Costs {
        smt_permille: 600,
        ..Costs::free()
    };
    let time = |machine| {
        Run {
            machine,
            costs: costs.clone(),
            ..Run::default()
        }
        .text(text)
        .makespan_ns
    };
    assert_eq!(time("2 core"), 10_000_000);
    let shared = time("1 core x 2 thread") as f64;
    assert!((shared - 10_000_000.0 / 0.6).abs() < 20_000.0, "{shared}");
}

#[test]
fn slow_cpus_and_far_memory_take_longer() {
    let text = "name = 'slow'
        [[tasks]]
        name = 'worker'
        cpus = '0'
        node = 1
        memory = 1000
        program = 'compute 6ms'";
    let costs = Costs {
        remote_memory_permille: 600,
        ..Costs::free()
    };
    let run = |machine| {
        Run {
            machine,
            costs: costs.clone(),
            ..Run::default()
        }
        .text(text)
        .makespan_ns as f64
    };
    let far = run("2 node x 1 core");
    assert!((far / 10_000_000.0 - 1.0).abs() < 0.01, "{far}");
    let slow = run("2 node x 1 core@512");
    assert!((slow / far - 2.0).abs() < 0.01, "{slow}");
}
