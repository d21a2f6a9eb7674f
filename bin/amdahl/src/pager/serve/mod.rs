//! `amdahl pager serve`: the program that VMMs hand their userfaultfd to.
//!
//! A thread takes connections; each VM has one that waits for its end, and the pager's own. VMs share the open image with its cache, the
//! limits, and nothing else.

mod ahead;
mod keep;
mod listen;
mod memory;
mod outlet;
mod pages;
mod plan;
mod tally;
mod tell;
mod vm;
mod watch;

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::cli::serve::{Listen, PagerServe};
use crate::failure::Failure;
use crate::interrupt::{ABANDONED, Interrupt};
use crate::pager::image::DAMAGED;
use keep::{Inherited, Keep, Kept, Succession};
use listen::{Listener, notify};
use memory::Memory;
use plan::Plan;
use tell::{FORMAT, Line, Teller};
use vm::{Counted, Shared};

/// Connections at once whose VM is not known yet.
const ARRIVING: u32 = 16;
/// How often is looked whether we are to end, and who has ended.
const TICK: Duration = Duration::from_millis(100);
/// Descriptors for everything else, VMs that arrive and connections to an object store included.
const SPARE_DESCRIPTORS: u64 = 128 + 5 * ARRIVING as u64;
/// Descriptors that a VM needs: socket, process, userfaultfd and its duplicates, bell, ledger, what the file has that it maps, and some to spare.
const DESCRIPTORS: u64 = 10;

/// Serves until it is told to end.
pub fn main(args: &PagerServe) -> Result<u8, Failure> {
    if let Some(Listen::Tcp(address)) = &args.listen {
        return pages::main(args, address);
    }
    let interrupt = Interrupt::catch();
    let plan = Plan::new(args)?;
    let memory = Memory::open(args, plan.cache_bytes)?;
    allow_descriptors(DESCRIPTORS * u64::from(plan.max_vms))?;
    let teller = Teller::new(args.json, args.quiet);
    let Some(listen) = &args.listen else {
        return match keep::inherit(args, &memory, &teller, &interrupt)? {
            Succession::Over => Ok(0),
            Succession::Ours(inherited) => go_on(*inherited, args, memory, plan, teller, interrupt),
        };
    };
    let listener = Listener::open(listen, args.socket_mode)?;
    let control = args.control.as_deref().map(Listener::control);
    let control = control.transpose()?;
    // What was recorded before is replaced only by a daemon that serves.
    if let Some(recorder) = memory.recorder() {
        recorder.write()?;
    }
    let keep = Keep::new(control, Some(&listener), 0, None)?;
    let shared = Shared::new(memory, plan, teller, interrupt, keep);
    listening(args, &listener, &shared);
    notify("READY=1");
    serve(&shared, Some(listener), Vec::new(), false, || {})
}

/// Goes on where another process was.
fn go_on(
    inherited: Inherited,
    args: &PagerServe,
    memory: Memory,
    plan: Plan,
    teller: Teller,
    interrupt: Interrupt,
) -> Result<u8, Failure> {
    let Inherited {
        listener,
        control,
        vms,
        last,
        arbiter,
        testator,
    } = inherited;
    if let Some(recorder) = memory.recorder() {
        recorder.resume();
    }
    let keep = Keep::new(Some(control), listener.as_ref(), last, Some(arbiter))?;
    let shared = Shared::new(memory, plan, teller, interrupt, keep);
    match &listener {
        Some(listener) => listening(args, listener, &shared),
        // The one before was ending: we end in its place.
        None => shared.interrupt.say(),
    }
    let (count, is_awaited) = (vms.len(), testator.is_awaited());
    if is_awaited {
        // Unwinding would end serving, which makes missing memory deadly. The one before goes on instead.
        std::panic::set_hook(Box::new(|panic| give_up(None, &panic.to_string())));
    }
    serve(&shared, listener, vms, is_awaited, || {
        if !testator.learns(&shared.teller, &shared.keep, count) {
            give_up(Some(&shared), "the one before has taken its word back");
        }
        if is_awaited {
            drop(std::panic::take_hook());
        }
        notify("READY=1");
    })
}

/// Serves VMs of before and those that come. `begun` is called when those of before are served.
fn serve(
    shared: &Shared,
    mut listener: Option<Listener>,
    vms: Vec<Kept>,
    is_awaited: bool,
    begun: impl FnOnce(),
) -> Result<u8, Failure> {
    std::thread::scope(|keeping| {
        std::thread::scope(|scope| {
            resume(scope, shared, vms, is_awaited);
            begun();
            // Until then another could have gone on with the sockets.
            listener.iter().for_each(Listener::adopt);
            shared.keep.adopts(shared);
            // Not before: whoever follows is to find all VMs, and the turn is given with all of them.
            let mut follow = following(keeping, shared);
            follow();
            if let Some(listener) = &listener {
                accept(scope, shared, listener, follow);
            }
            // Until then the sockets may be another's.
            shared.keep.settles();
            if shared.keep.is_given() {
                return;
            }
            notify("STOPPING=1");
            // Who connects now is told at once that nobody is here.
            shared.keep.closes(shared);
            drop(listener.take());
            ending(shared);
        });
        shared.keep.is_done();
    });
    if shared.keep.is_given() {
        if let Some(listener) = &listener {
            listener.lend();
        }
        return Ok(exit_code(shared));
    }
    if let Some(recorder) = shared.memory.recorder() {
        recorder.write()?;
    }
    Ok(exit_code(shared))
}

/// Has a thread take followers, unless one does; to be called again while there can be none.
fn following<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
) -> impl FnMut() + 'scope {
    let (mut is_begun, mut is_told) = (false, false);
    move || {
        if is_begun || !shared.keep.is_on() {
            return;
        }
        let begun = std::thread::Builder::new()
            .name("followers".to_owned())
            .spawn_scoped(scope, || shared.keep.run(shared));
        is_begun = begun.is_ok();
        if let Err(error) = begun
            && !std::mem::replace(&mut is_told, true)
        {
            trouble(
                shared,
                &format!("nobody can follow yet: starting a thread: {error}"),
            );
        }
    }
}

/// Serves VMs of before; returns when they are served. If the one before waits for that, nothing but all of them will do.
fn resume<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
    vms: Vec<Kept>,
    is_awaited: bool,
) {
    let (to, results) = channel();
    let count = vms.len();
    let mut left = VecDeque::from(vms);
    let until = Instant::now() + shared.plan.handoff_timeout;
    while let Some(kept) = left.pop_front() {
        let number = kept.vm.number;
        let started = vm::Started {
            to: to.clone(),
            is_awaited,
        };
        let begun = on_a_thread(scope, shared, number, (kept, started), |(kept, started)| {
            vm::inherited(shared, kept, started);
        });
        let (kept, error) = match begun {
            Ok(()) => continue,
            Err(((kept, _), error)) => (kept, format!("starting a thread: {error}")),
        };
        if is_awaited {
            // The one before goes on.
            give_up(Some(shared), &format!("VM {number}: {error}"));
        }
        // Those of the one that was killed may not all have ended.
        if Instant::now() < until {
            left.push_back(kept);
            std::thread::sleep(Duration::from_millis(1));
        } else {
            vm::unserved(shared, &kept, &error);
        }
    }
    drop(to);
    let served = results.iter().map(|result: Result<(), String>| {
        if let (Err(why), true) = (&result, is_awaited) {
            give_up(Some(shared), &format!("a VM could not be served: {why}"));
        }
    });
    if served.count() < count && is_awaited {
        give_up(Some(shared), "a VM could not be served");
    }
}

/// Ends at once, without touching any VM's memory: another goes on.
fn give_up(shared: Option<&Shared>, why: &str) -> ! {
    if let Some(shared) = shared {
        // What was told is written at once, unless nobody reads it.
        shared.teller.flush(TICK);
    }
    eprintln!("amdahl: did not take over: {why}");
    // SAFETY: it ends the process, and runs nothing of ours before.
    unsafe { libc::_exit(1) }
}

/// Takes VMs until we are told to end, or another takes them.
fn accept<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
    listener: &Listener,
    mut follow: impl FnMut(),
) {
    let (mut late, mut is_told) = (None, false);
    while !shared.interrupt.asked() && !shared.keep.is_given() {
        follow();
        if let Some(why) = shared.memory.take_trouble() {
            trouble(shared, &why);
        }
        // Nobody is let in who could not be refused.
        let to_late = match late.take().map_or_else(|| begin_late(scope, shared), Ok) {
            Ok(begun) => late.insert(begun),
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    trouble(
                        shared,
                        &format!("nobody is let in yet: starting a thread: {error}"),
                    );
                }
                wait(None);
                continue;
            }
        };
        let Some(arriving) = Counted::new(&shared.arriving, ARRIVING) else {
            wait(None);
            continue;
        };
        // In this order: who ends the taking of VMs waits until none is counted.
        if shared.keep.is_closed() {
            drop(arriving);
            wait(None);
            continue;
        }
        if !wait(Some(listener)) {
            continue;
        }
        let stream = match listener.socket().accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                let errno = Errno::from_io_error(&error);
                if !matches!(errno, Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED)) {
                    trouble(shared, &format!("accepting a connection: {error}"));
                    wait(None);
                }
                continue;
            }
        };
        let arrived = Arrived {
            number: shared.keep.next_number(),
            stream,
            arriving,
            since: Instant::now(),
        };
        if let Err((arrived, error)) = begin(scope, shared, arrived) {
            trouble(
                shared,
                &format!("VM {} waits: starting a thread: {error}", arrived.number),
            );
            let _ = to_late.send(arrived);
        }
    }
}

/// Somebody who has connected.
struct Arrived<'scope> {
    number: u64,
    stream: UnixStream,
    arriving: Counted<'scope>,
    since: Instant,
}

/// Serves one on a thread of its own; gives it back where none can be started.
fn begin<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
    arrived: Arrived<'scope>,
) -> Result<(), (Arrived<'scope>, std::io::Error)> {
    on_a_thread(scope, shared, arrived.number, arrived, |arrived| {
        vm::connection(shared, arrived.number, arrived.stream, arrived.arriving);
    })
}

/// Serves VM `number` on a thread of its own, which is given `what`; gives it back where none can be started.
fn on_a_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
    number: u64,
    what: T,
    serve: impl FnOnce(T) + Send + 'scope,
) -> Result<(), (T, std::io::Error)> {
    // What a thread that does not start was given goes with it.
    let (hand, taken) = channel::<T>();
    let begun = std::thread::Builder::new()
        .name(format!("vm-{number}"))
        .spawn_scoped(scope, move || {
            if let Ok(what) = taken.recv() {
                caught(shared, number, || serve(what));
            }
        });
    match begun {
        Ok(_) => {
            let _ = hand.send(what);
            Ok(())
        }
        Err(error) => Err((what, error)),
    }
}

/// Has a thread serve those for which none could be started when they came: each gets one when there can be one again, or
/// is refused when the time for its hand-off is over. Were it only disconnected, it would read zeros or wait for ever.
fn begin_late<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
) -> std::io::Result<Sender<Arrived<'scope>>> {
    let (to, late) = channel::<Arrived<'scope>>();
    std::thread::Builder::new()
        .name("late".to_owned())
        .spawn_scoped(scope, move || {
            for mut arrived in late {
                let until = arrived.since + shared.plan.handoff_timeout;
                while let Err((back, error)) = begin(scope, shared, arrived) {
                    arrived = back;
                    if Instant::now() < until && !shared.interrupt.asked() {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    let why = format!("starting a thread: {error}");
                    vm::turn_away(shared, arrived.number, &arrived.stream, &why);
                    break;
                }
            }
        })?;
    Ok(to)
}

/// One that fails harms no other.
fn caught(shared: &Shared, number: u64, serve: impl FnOnce()) {
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(serve));
    if served.is_err() {
        trouble(shared, &format!("VM {number}: its thread panicked"));
        // Nobody else is to wait for it.
        shared.keep.end(shared, number);
    }
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

fn listening(args: &PagerServe, listener: &Listener, shared: &Shared) {
    let place = listener.place();
    let Shared { memory, plan, .. } = shared;
    let text = format!(
        "serving {} ({}, {}{}{}) to at most {} VMs at {place}",
        args.image.display(),
        memory.kind,
        super::meter::size(memory.bytes),
        memory.working_set_text(),
        match memory.clean {
            Some(_) => ", one copy for all",
            None => "",
        },
        plan.max_vms,
    );
    let fields = json!({
        "format": FORMAT,
        "listen": place,
        "image": args.image.to_string_lossy(),
        "kind": memory.kind,
        "memory_bytes": memory.bytes,
        "working_set_pages": memory.working_set_pages(),
        "is_shared": memory.clean.is_some(),
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
