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
    let me = Members::Processes(vec![std::process::id()]);
    let Some(mut sampler) = sampler("children_made_meanwhile_count", me, how) else {
        return;
    };
    let first = sampler.read().unwrap();
    let _busy = Busy::start();
    // We sleep; whatever runs is the child.
    loop {
        std::thread::yield_now();
        let reading = sampler.read().unwrap();
        if reading.run_ns - first.run_ns > 50_000_000 && reading.wait_ns >= first.wait_ns {
            break;
        }
    }
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
