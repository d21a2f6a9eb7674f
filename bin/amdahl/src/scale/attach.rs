//! `--pid`: a running process instead of a command. One point, stack only.

use std::time::{Duration, Instant};

use amdahl_probe::bpf::{Decoder, Recorder, ThreadName};
use amdahl_probe::clock;
use amdahl_topology::CpuSet;

use super::analysis::{Analysis, Run};
use super::run::{Probed, steal_ns};
use crate::child::Ended;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::watch::{self, processes};

/// Watches `pid` for `duration`, until it ends, or until Ctrl-C.
pub fn watch(
    pid: u32,
    duration: Option<Duration>,
    recorder: &mut Recorder,
    decoder: &mut Decoder,
    interrupt: &Interrupt,
    stretches: usize,
) -> Result<(CpuSet, Probed), Failure> {
    let cpus = watch::existing(pid)?;
    let failed = |error: amdahl_probe::bpf::RecorderError| Failure::machine(error.to_string());
    let watched: Vec<u32> = cpus.iter().collect();
    let parts = recorder.begin(&watched).map_err(failed)?;
    let processes = processes::tree(pid);
    let mut names = Vec::new();
    for (process, tids) in &processes {
        decoder.attach(*process);
        for &tid in tids {
            recorder.add(tid, *process).map_err(failed)?;
            names.push((
                tid,
                ThreadName {
                    pid: *process,
                    name: processes::comm(*process, tid),
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
        watch::wait_for(
            Some(pid),
            duration.unwrap_or(watch::DEFAULT),
            interrupt,
            || (),
        );
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
        timed_out: false,
        user_s: 0.0,
        system_s: 0.0,
        faults: 0,
        major_faults: 0,
        stdout: String::new(),
        stderr: String::new(),
    };
    let probed = Probed::new(ended, analysed, steal, &counts);
    Ok((cpus, probed))
}
