//! `--pid`: a running process instead of a command. One point, stack only.

use std::time::{Duration, Instant};

use amdahl_probe::bpf::{Decoder, Recorder, ThreadName};
use amdahl_probe::clock;
use amdahl_topology::CpuSet;

use super::analysis::{Analysis, Run};
use super::child::Ended;
use super::interrupt::Interrupt;
use super::run::{Probed, steal_ns};
use crate::failure::Failure;

/// How long to look when `--for` does not say.
const DEFAULT: Duration = Duration::from_secs(10);

/// A process and its descendants, each with its threads.
fn tree(root: u32) -> Vec<(u32, Vec<u32>)> {
    let threads = |pid: u32| -> Vec<u32> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    };
    let mut found = vec![(root, threads(root))];
    let mut at = 0;
    while at < found.len() {
        let (pid, tids) = found[at].clone();
        for tid in tids {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
            for child in children
                .unwrap_or_default()
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok())
            {
                found.push((child, threads(child)));
            }
        }
        at += 1;
    }
    found
}

fn comm(pid: u32, tid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    text.unwrap_or_default().trim_end().to_owned()
}

/// Watches `pid` for `duration`, until it ends, or until Ctrl-C.
pub fn watch(
    pid: u32,
    duration: Option<Duration>,
    recorder: &mut Recorder,
    decoder: &mut Decoder,
    interrupt: &Interrupt,
    stretches: usize,
) -> Result<(CpuSet, Probed), Failure> {
    let cpus = amdahl_topology::allowed_of(pid).map_err(|error| {
        Failure::program(format!("--pid {pid}: there is no such process ({error})"))
    })?;
    let failed = |error: amdahl_probe::bpf::RecorderError| Failure::machine(error.to_string());
    let watched: Vec<u32> = cpus.iter().collect();
    let parts = recorder.begin(&watched).map_err(failed)?;
    let processes = tree(pid);
    let mut names = Vec::new();
    for (process, tids) in &processes {
        decoder.attach(*process);
        for &tid in tids {
            recorder.add(tid, *process).map_err(failed)?;
            names.push((
                tid,
                ThreadName {
                    pid: *process,
                    name: comm(*process, tid),
                },
            ));
        }
    }
    let steal_before = steal_ns(&cpus);
    let (from, begun) = (clock::monotonic(), Instant::now());
    let run = Run {
        cpus: &cpus,
        from,
        pid: 0,
        stretches,
    };
    let mut analysis = Analysis::new(run, decoder);
    let followed = analysis.follow_during(recorder, parts, || {
        wait_for(pid, duration.unwrap_or(DEFAULT), interrupt);
        clock::monotonic()
    });
    let (to, last, counts) = followed.map_err(failed)?;
    let steal = steal_ns(&cpus).saturating_sub(steal_before);
    let mut analysed = analysis.finish(last, to, 0, &counts);
    for (tid, name) in names {
        analysed.decoded.threads.entry(tid).or_insert(name);
    }
    let ended = Ended {
        outcome: Ok(()),
        wall: begun.elapsed(),
        user_s: 0.0,
        system_s: 0.0,
        faults: 0,
        stdout: String::new(),
        stderr: String::new(),
    };
    let probed = Probed::new(ended, analysed, steal, &counts);
    Ok((cpus, probed))
}

/// Waits until `duration` is over, the process has ended, or the user wants no more.
fn wait_for(pid: u32, duration: Duration, interrupt: &Interrupt) {
    let begun = Instant::now();
    let handle = rustix::process::Pid::from_raw(pid as i32).and_then(|pid| {
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    });
    while begun.elapsed() < duration && !interrupt.asked() {
        let left = duration
            .saturating_sub(begun.elapsed())
            .min(Duration::from_secs(1));
        let timeout = rustix::event::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let Some(handle) = &handle else { break };
        let mut polled = [rustix::event::PollFd::new(
            handle,
            rustix::event::PollFlags::IN,
        )];
        if rustix::event::poll(&mut polled, Some(&timeout)) == Ok(1) {
            break;
        }
    }
}
