//! `amdahl pager serve`: the program that VMMs hand their userfaultfd to.
//!
//! A thread takes connections; each VM has one that waits for its end, and the pager's own. VMs share the open image with its cache, the
//! limits, and nothing else.

mod listen;
mod memory;
mod pages;
mod plan;
mod tell;
mod vm;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::cli::serve::{Listen, PagerServe};
use crate::failure::Failure;
use crate::interrupt::{ABANDONED, Interrupt};
use crate::pager::image::DAMAGED;
use listen::{Listener, notify};
use memory::Memory;
use plan::Plan;
use tell::{FORMAT, Line, Teller};
use vm::{Counted, Shared};

/// Connections at once whose VM is not known yet.
const ARRIVING: u32 = 16;
/// How often is looked whether we are to end, and who has ended.
const TICK: Duration = Duration::from_millis(100);
/// Descriptors for everything else, VMs that arrive included.
const SPARE_DESCRIPTORS: u64 = 64 + 5 * ARRIVING as u64;
/// Descriptors that a VM needs: socket, process, userfaultfd and its duplicate, bell, and one to spare.
const DESCRIPTORS: u64 = 6;

/// Serves until it is told to end.
pub fn main(args: &PagerServe) -> Result<u8, Failure> {
    if let Listen::Tcp(address) = &args.listen {
        return pages::main(args, address);
    }
    let interrupt = Interrupt::catch();
    let plan = Plan::new(args)?;
    let memory = Memory::open(args, plan.cache_bytes)?;
    allow_descriptors(DESCRIPTORS * u64::from(plan.max_vms))?;
    let listener = Listener::open(&args.listen, args.socket_mode)?;
    // What was recorded before is replaced only by a daemon that serves.
    if let Some(recorder) = memory.recorder() {
        recorder.write()?;
    }
    let shared = Shared {
        memory,
        plan,
        teller: Teller::new(args.json, args.quiet),
        interrupt,
        arriving: AtomicU32::new(0),
        serving: AtomicU32::new(0),
        is_damaged: AtomicBool::new(false),
        has_failed: AtomicBool::new(false),
    };
    listening(args, &shared);
    notify("READY=1");
    std::thread::scope(|scope| {
        let mut number = 0;
        while !shared.interrupt.asked() {
            let Some(arriving) = Counted::new(&shared.arriving, ARRIVING) else {
                wait(None);
                continue;
            };
            if !wait(Some(&listener)) {
                continue;
            }
            let stream = match listener.socket().accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let errno = Errno::from_io_error(&error);
                    if !matches!(errno, Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED)) {
                        trouble(&shared, &format!("accepting a connection: {error}"));
                        wait(None);
                    }
                    continue;
                }
            };
            number += 1;
            let (shared, name) = (&shared, format!("vm-{number}"));
            let started = std::thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, move || {
                    // One that fails harms no other.
                    let serve = || vm::connection(shared, number, &stream, arriving);
                    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(serve));
                    if served.is_err() {
                        trouble(shared, &format!("VM {number}: its thread panicked"));
                    }
                });
            if let Err(error) = started {
                trouble(
                    shared,
                    &format!("VM {number} is refused: starting a thread: {error}"),
                );
            }
        }
        notify("STOPPING=1");
        // Who connects now is told at once that nobody is here.
        drop(listener);
        ending(&shared);
    });
    if let Some(recorder) = shared.memory.recorder() {
        recorder.write()?;
    }
    Ok(exit_code(&shared))
}

fn exit_code(shared: &Shared) -> u8 {
    if shared.is_damaged.load(Ordering::Relaxed) {
        return DAMAGED;
    }
    match shared.has_failed.load(Ordering::Relaxed) {
        true if shared.interrupt.insisted() => ABANDONED,
        true => 1,
        false => 0,
    }
}

/// Waits a little, or until somebody connects, which is told.
fn wait(listener: Option<&Listener>) -> bool {
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: TICK.subsec_nanos().into(),
    };
    let fd = listener.map(|listener| PollFd::new(listener.socket(), PollFlags::IN));
    poll(&mut Vec::from_iter(fd), Some(&tick)).is_ok_and(|ready| ready > 0)
}

/// So many VMs must not fail for descriptors.
fn allow_descriptors(these: u64) -> Result<(), Failure> {
    let need = SPARE_DESCRIPTORS + these;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= need) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(need),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(|_| {
        Failure::machine(format!(
            "{need} descriptors are needed: allow them by `ulimit -n {need}` or LimitNOFILE={need}, or serve fewer VMs (--max-vms)"
        ))
    })
}

fn listening(args: &PagerServe, shared: &Shared) {
    let place = match &args.listen {
        Listen::Unix(path) => format!("unix:{}", path.display()),
        Listen::Systemd => "systemd's socket".to_owned(),
        Listen::Tcp(address) => format!("tcp:{address}"),
    };
    let Shared { memory, plan, .. } = shared;
    let working_set: u64 = memory
        .working_set
        .iter()
        .map(|run| run.end - run.start)
        .sum();
    let text = format!(
        "serving {} ({}, {}{}) to at most {} VMs at {place}",
        args.image.display(),
        memory.kind,
        super::meter::size(memory.bytes),
        match working_set {
            0 => String::new(),
            pages => format!(", working set {}", tell::pages(pages as usize)),
        },
        plan.max_vms,
    );
    let fields = json!({
        "format": FORMAT,
        "listen": place,
        "image": args.image.to_string_lossy(),
        "kind": memory.kind,
        "memory_bytes": memory.bytes,
        "working_set_pages": working_set,
        "max_vms": plan.max_vms,
        "can_poison": plan.can_poison,
    });
    shared.teller.tell(&Line::new("listening", text, fields));
    if !plan.can_poison {
        trouble(
            shared,
            "this kernel cannot make pages deadly (Linux 6.6): a VM that loses some waits for ever; --on-loss kill ends it",
        );
    }
}

fn ending(shared: &Shared) {
    let vms = shared.serving.load(Ordering::Relaxed);
    let text = match vms {
        0 => "ending: no VM is served".to_owned(),
        _ => format!("ending: fetching what is missing of {vms} VMs; another signal abandons them"),
    };
    let line = Line::new("ending", text, json!({ "vms": vms }));
    shared.teller.tell(&line);
}

fn trouble(shared: &Shared, what: &str) {
    let line = Line::trouble("trouble", what.to_owned(), json!({ "why": what }));
    shared.teller.tell(&line);
}
