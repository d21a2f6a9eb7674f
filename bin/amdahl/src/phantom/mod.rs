//! `amdahl phantom`: who takes the CPUs away, now.

mod account;
mod fleet;
mod host;
mod look;
mod rhythm;
mod serve;
mod show;
mod whom;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::child::{Child, Ended};
use crate::cli::{Phantom, Selection, Vm};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;
use crate::watch::{self, machine};
use look::{Found, Looking, Sink};
use whom::Whom;

/// Looks, and shows or publishes what is seen.
pub fn main(args: &Phantom) -> Result<u8, Failure> {
    let cpus = watch::cpus(None)?;
    let interrupt = Interrupt::catch();
    if args.vm.len() > 1 || args.vm.contains(&Vm::All) {
        if !args.serve {
            return Err(Failure::usage(
                "several virtual machines at once are for --serve; one can be watched".to_owned(),
            ));
        }
        return fleet::main(args, &interrupt);
    }
    let selection = whom::selection(args);
    if args.serve {
        return serve::main(args, &selection, &cpus, &interrupt);
    }
    let child = watch::start_to_last(&selection, &cpus, &[])?;
    let whom = Whom::new(args, child.as_ref().map(Child::pid))?;
    let started = machine::now();
    let looking = Looking::new(args, whom.clone())?;
    let about = show::About {
        command: selection.command.clone(),
        target: whom.words(),
        started,
        sources: looking.sources.clone(),
    };
    let mut lines = show::Lines::new(args.json, looking.interval());
    let mut show = |estimate: &_| show::line(&lines.next(estimate));
    let sink = if args.watch {
        Sink::Show(&mut show)
    } else {
        Sink::None
    };
    let (found, ended) = look_while(&selection, child, looking, sink, &interrupt)?;
    let is_interrupted = interrupt.asked();
    if let Some(failure) = found.failed {
        // How the command ended is worth more than what was said already.
        watch::finished(&selection, ended.as_ref(), false)?;
        return Err(failure);
    }
    if !args.watch {
        let result = show::result(&about, &found, is_interrupted);
        let text = if args.json {
            show::json(&result)?
        } else {
            show::table(&result, &found, args.rows)
        };
        screen::print(&text)?;
    }
    let is_early = is_interrupted && !(args.watch && is_endless(args));
    watch::finished(&selection, ended.as_ref(), is_early)
}

/// It goes on until somebody ends it, who then gets what was asked for.
fn is_endless(args: &Phantom) -> bool {
    args.duration.is_none() && args.command.is_empty()
}

/// Looks on a thread of its own while the command runs, or as long as `selection` says. A command goes on if looking ends first.
fn look_while(
    selection: &Selection,
    child: Option<Child>,
    looking: Looking,
    sink: Sink<'_>,
    interrupt: &Interrupt,
) -> Result<(Found, Option<Ended>), Failure> {
    let look = |stop: &AtomicBool| {
        let found = looking.run(sink, stop);
        let has_command = !selection.command.is_empty();
        match &found.failed {
            Some(failure) if has_command => say_blind(failure, selection),
            _ if found.is_over && !has_command => interrupt.say(),
            _ => {}
        }
        found
    };
    beside(selection, child, interrupt, look)
}

/// Runs `look` on a thread of its own while the command runs, or as long as `selection` says; what it is given is true when it is to end.
fn beside<T: Send>(
    selection: &Selection,
    child: Option<Child>,
    interrupt: &Interrupt,
    look: impl FnOnce(&AtomicBool) -> T + Send,
) -> Result<(T, Option<Ended>), Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looker = std::thread::Builder::new()
            .name("amdahl-look".into())
            .spawn_scoped(scope, || look(&stop))
            .map_err(|error| Failure::machine(format!("cannot start a thread: {error}")))?;
        let ended = watch::run(selection, child, interrupt, || ());
        stop.store(true, Ordering::Relaxed);
        looker.thread().unpark();
        let found = looker.join().expect("looking does not panic");
        Ok((found, ended?))
    })
}

/// Says that nobody looks any more, while the command goes on.
fn say_blind(failure: &Failure, selection: &Selection) {
    use std::io::Write;
    // Nobody may read it.
    let _ = writeln!(
        anstream::stderr(),
        "amdahl: {}; nothing is shown or published any more, {} goes on",
        failure.message,
        selection.command[0]
    );
}
