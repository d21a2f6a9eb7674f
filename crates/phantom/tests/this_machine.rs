//! Both sources on this machine, about processes that are known.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use amdahl_phantom::{Estimator, How, Look, Members, Sampler, Scope, Settings, SourceError};

/// Ended on drop.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        let child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn();
        Busy(child.expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scope(members: Members) -> Scope {
    Scope {
        members,
        group: None,
        virtual_cpus: None,
    }
}

/// The sampler, or SKIPPED where this machine has no such source.
fn sampler(test: &str, members: Members, how: How) -> Option<Sampler> {
    match Sampler::new(scope(members), how) {
        Ok(sampler) => Some(sampler),
        #[cfg(feature = "bpf")]
        Err(SourceError::Bpf(error)) => {
            eprintln!("SKIPPED {test}: no BPF: {error}");
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

fn ways() -> Vec<How> {
    vec![
        How::Proc,
        #[cfg(feature = "bpf")]
        How::Bpf { keeps_takers: true },
    ]
}

/// Long beside what a counter may be behind.
const WINDOW_NS: u64 = 200_000_000;
/// What a thread ran is counted at ticks, 10 ms apart at most.
const STALE_NS: f64 = 10e6;

/// A busy process is seen to run, and what it ran is neither free nor a neighbour's.
#[test]
fn a_busy_process_runs() {
    let busy = Busy::start();
    for how in ways() {
        let members = Members::Processes(vec![busy.0.id()]);
        let Some(mut sampler) = sampler("a_busy_process_runs", members, how) else {
            continue;
        };
        let mut estimator = Estimator::new(Settings {
            window_ns: WINDOW_NS,
        });
        let begun = Instant::now();
        // Until it has been on a CPU in a whole window: how soon is the scheduler's business.
        let (estimate, enclosed_ns) = loop {
            std::thread::yield_now();
            let reading = sampler.read().unwrap();
            // All counters of the reading were read by now.
            let enclosed_ns = begun.elapsed().as_nanos() as f64;
            if let Some(estimate) = estimator.tick(reading)
                && estimate.window.span_ns >= WINDOW_NS
                && estimate.window.running > 0.05
            {
                break (estimate, enclosed_ns);
            }
        };
        let window = estimate.window;
        let ran_ns = window.running * window.span_ns as f64;
        assert!(
            ran_ns <= enclosed_ns + STALE_NS,
            "{how:?}: one thread in {enclosed_ns} ns: {window:?}"
        );
        assert!(
            estimate.runnable_cpus() >= window.running,
            "{how:?}: {window:?}"
        );
        let parts = window.running + window.others + window.idle + window.steal;
        assert!((parts - window.allowed).abs() < 1e-6, "{how:?}: {window:?}");
    }
}

/// Another one is named, and we are not.
#[test]
fn a_busy_neighbour_is_named() {
    let (ours, other) = (Busy::start(), Busy::start());
    for how in ways() {
        let members = Members::Processes(vec![ours.0.id()]);
        let Some(sampler) = sampler("a_busy_neighbour_is_named", members, how) else {
            continue;
        };
        let before = Look::now(&sampler);
        loop {
            std::thread::yield_now();
            let taken = Look::now(&sampler).since(&before, &[ours.0.id()]);
            assert!(taken.iter().all(|row| row.pid != ours.0.id()), "{taken:?}");
            if taken
                .iter()
                .any(|row| row.pid == other.0.id() && row.name == "sh")
            {
                break;
            }
        }
    }
}

/// Threads that are made later belong to it, too.
#[cfg(feature = "bpf")]
#[test]
fn children_made_meanwhile_count() {
    let how = How::Bpf {
        keeps_takers: false,
    };
    // It waits until its standard input ends, then for a child that works, and says how long that had a CPU.
    let script = "read end; (i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done); times";
    let mut parent = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let members = Members::Processes(vec![parent.id()]);
    let sampler = sampler("children_made_meanwhile_count", members, how);
    let first = sampler.map(|mut sampler| (sampler.read().unwrap(), sampler));
    drop(parent.stdin.take());
    let said = parent.wait_with_output().expect("it ends");
    let Some((first, mut sampler)) = first else {
        return;
    };
    let said = String::from_utf8(said.stdout).unwrap();
    let children = said.lines().nth(1).expect("its children's times");
    let worked_s: f64 = children.split_whitespace().map(seconds).sum();
    assert!(worked_s > 0.1, "{said}");
    let counted_s = (sampler.read().unwrap().run_ns - first.run_ns) as f64 / 1e9;
    assert!(
        (0.9 * worked_s..1.1 * worked_s + 0.1).contains(&counted_s),
        "{counted_s} s of {worked_s} s"
    );
}

/// Of `1m2.34s`.
#[cfg(feature = "bpf")]
fn seconds(text: &str) -> f64 {
    let (minutes, seconds) = text.strip_suffix('s').unwrap().split_once('m').unwrap();
    60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
}

/// Everybody together has all CPUs but what the hypervisor takes.
#[test]
fn everybody_has_everything() {
    for how in ways() {
        let Some(mut sampler) = sampler("everybody_has_everything", Members::Everyone, how) else {
            continue;
        };
        let mut estimator = Estimator::new(Settings {
            window_ns: 50_000_000,
        });
        let window = loop {
            std::thread::yield_now();
            if let Some(estimate) = estimator.tick(sampler.read().unwrap())
                && estimate.window.span_ns >= 50_000_000
            {
                break estimate.window;
            }
        };
        assert!(window.running > 0.0, "{how:?}: this test runs: {window:?}");
        assert!(window.runnable <= window.allowed);
    }
}

/// A process that has ended leaves a sampler that still answers.
#[test]
fn whoever_ends_is_no_error() {
    for how in ways() {
        let busy = Busy::start();
        let pid = busy.0.id();
        let members = Members::Processes(vec![pid]);
        let Some(mut sampler) = sampler("whoever_ends_is_no_error", members.clone(), how) else {
            continue;
        };
        sampler.read().unwrap();
        drop(busy);
        sampler.refresh(members).unwrap();
        let (first, second) = (sampler.read().unwrap(), sampler.read().unwrap());
        assert_eq!(first.run_ns, second.run_ns, "{how:?}");
    }
}
