//! One run watched without privileges: polled through `/proc`, its waits recorded by the preload
//! library where the program takes one.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amdahl_probe::bpf::{Decoded, ThreadName};
use amdahl_probe::symbol::{LATEST, RawStack, Symbolizer};
use amdahl_probe::unprivileged::preload::{self, Covers};
use amdahl_probe::unprivileged::{Poller, Scope, StackCopy};
use amdahl_speedup::event::{CallStack, StackId, StackTable};
use amdahl_speedup::progress::Progress as LoopProgress;
use amdahl_speedup::snapshot::{Charger, CpuUsage};
use amdahl_speedup::stack::Measured;
use amdahl_topology::CpuSet;

use super::cgroup::Group;
use super::run::{Probed, ProbedError, Workload, monotonic_ns, steal_ns};

/// Stacks of waiting threads copied at most per poll.
const STACKS_PER_POLL: u32 = 1;

/// The variables that load the preload library into `program`; none if it does not take one.
fn preload_env(program: &str, records: &std::path::Path) -> Vec<(String, String)> {
    let path = if program.contains('/') {
        Some(std::path::PathBuf::from(program))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|folder| folder.join(program))
            .find(|file| file.is_file())
    };
    let takes =
        path.is_some_and(|path| matches!(preload::covers(&path), Covers::Yes | Covers::Unknown));
    let value = preload::library()
        .filter(|_| takes)
        .and_then(|library| preload::ld_preload(&library, std::env::var_os("LD_PRELOAD")))
        .and_then(|value| value.into_string().ok());
    match (value, records.to_str()) {
        (Some(value), Some(records)) => vec![
            ("LD_PRELOAD".to_owned(), value),
            (preload::DIR_VARIABLE.to_owned(), records.to_owned()),
        ],
        _ => Vec::new(),
    }
}

impl Workload<'_> {
    /// Runs under the poller.
    pub fn polled(&self, cpus: &CpuSet, threads: u32, serial: u32) -> Result<Probed, ProbedError> {
        let failed = |what: &dyn std::fmt::Display| ProbedError::Poll(what.to_string());
        let mut group = Group::new(cpus, serial);
        let version = group.as_ref().map(|group| group.version);
        let records = tempfile::tempdir().map_err(|error| failed(&error))?;
        let env = preload_env(&self.command[0], records.path());
        let child = self.start(cpus, threads, group.as_ref(), &env)?;
        let scope = Scope {
            root: child.pid(),
            adopter: None,
            cgroup: None,
        };
        let mut poller = Poller::new(scope)
            .map_err(|error| failed(&error))?
            .copy_stacks(STACKS_PER_POLL);
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        let watcher = std::thread::Builder::new()
            .name("amdahl-poll".into())
            .spawn(move || {
                let (mut snapshots, mut copies) = (Vec::new(), Vec::new());
                let mut symbolizer = Symbolizer::new();
                let mut programs = HashMap::new();
                while !watched.load(Ordering::Relaxed) {
                    snapshots.push(poller.poll());
                    for copy in poller.take_stacks() {
                        // A process that has become another program has other mappings. One that
                        // is gone again has no names: that is no failure.
                        let program = std::fs::metadata(format!("/proc/{}/exe", copy.pid));
                        let program = program.map(|file| (file.dev(), file.ino())).ok();
                        if programs.insert(copy.pid, program) != Some(program) {
                            let _ = symbolizer.maps_mut().snapshot(copy.pid);
                            symbolizer.touch(copy.pid);
                        }
                        copies.push(copy);
                    }
                    std::thread::park_timeout(poller.pause());
                }
                snapshots.push(poller.poll_with_cpus());
                (poller, snapshots, copies, symbolizer)
            })
            .map_err(|error| failed(&error))?;
        let steal_before = steal_ns(cpus);
        let from = monotonic_ns();
        let waited = self.wait(child, &mut group);
        let steal = steal_ns(cpus).saturating_sub(steal_before);
        over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        let (poller, snapshots, copies, mut symbolizer) = watcher
            .join()
            .map_err(|_| failed(&"the poller ended early"))?;
        let (ended, left) = waited?;
        let to = from + ended.wall.as_nanos() as u64;
        let begun = Instant::now();

        // The first stack stands for CPU time, of which nobody sees the code here.
        let mut stacks: StackTable = vec![Arc::new(CallStack::default())];
        stacks.extend(
            copies
                .iter()
                .map(|copy| Arc::new(named(&mut symbolizer, copy))),
        );
        let waits = preload::read_dir(records.path()).map_err(|error| failed(&error))?;
        let watched: Vec<u32> = cpus.iter().collect();
        let mut charger = Charger::new(&watched, from);
        for snapshot in &snapshots {
            charger.feed(snapshot, &stacks);
        }
        let usage = CpuUsage {
            user_ns: (ended.user_s * 1e9) as u64,
            system_ns: (ended.system_s * 1e9) as u64,
        };
        let mut sites = Vec::new();
        let next = stacks.len() as u32;
        let partition = charger.finish(
            to,
            Some(usage),
            &waits.processes,
            |pid, caller| {
                sites.push(Arc::new(symbolizer.resolve_full(pid, &[caller], &[])));
                Some(StackId(next + sites.len() as u32 - 1))
            },
            StackId(0),
        );
        stacks.extend(sites);
        let names = poller.names().iter();
        let names = names
            .map(|(&tid, name)| {
                (
                    tid,
                    ThreadName {
                        pid: name.pid,
                        name: name.name.clone(),
                    },
                )
            })
            .collect();
        let measured = Measured::new(
            &partition,
            &stacks,
            steal as f64,
            None,
            LoopProgress::default(),
        );
        let rate = self.rate_of(&ended);
        Ok(Probed {
            ended,
            partition,
            measured,
            decoded: Decoded::of_others(stacks, names),
            rate,
            analysis_s: begun.elapsed().as_secs_f64(),
            group: version,
            left,
            covered: 1.0,
        })
    }
}

fn named(symbolizer: &mut Symbolizer, copy: &StackCopy) -> CallStack {
    let unwound = symbolizer.unwind(&RawStack {
        pid: copy.pid,
        ts: LATEST,
        ip: copy.ip,
        sp: copy.sp,
        user_stack: &copy.memory,
        user_mode: true,
        ..RawStack::default()
    });
    symbolizer.full(&unwound.points, &[])
}
