//! `amdahl top`: a live screen over lock waits, scheduling and memory.

mod batch;
mod control;
pub mod live;
mod record;
mod terminal;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use amdahl_top::{By, Filter, Key, Screen, Snapshot, Tab};

use crate::child::Child;
use crate::cli::{Selection, Top, TopBy, TopTab};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{screen, watch};
use control::Control;
use record::Recording;
use terminal::Terminal;

/// What the other threads tell the one that shows.
pub enum Message {
    /// The result so far, of this turn.
    Snapshot(u64, Arc<Snapshot>),
    /// Why there is none, or what to know of it.
    Notice(Tab, String),
    /// The command has ended.
    Ended(Result<(), String>),
    /// A key.
    Key(Key),
    /// Another size of the terminal.
    Resized,
    /// Nobody can press keys any more.
    Gone,
}

/// Shows until somebody says that it is enough.
pub fn main(args: &Top) -> Result<u8, Failure> {
    if args.batch.is_none() {
        terminal::check()?;
    }
    let cpus = watch::cpus(args.pid)?;
    let interrupt = Interrupt::catch();
    let (tab, by) = first(args)?;
    let interval = match (args.batch, args.duration) {
        (Some(count), Some(duration)) => duration / count,
        _ => args.interval,
    };
    let control = Control::new(tab, by, interval);
    let (messages, received) = mpsc::channel();
    // It dies with the thread that starts it: this one.
    let wanted = selection(args);
    let whom = wanted.whom();
    let child = watch::start(&wanted, &cpus, &[])?;
    let selection = Selection {
        pid: args.pid.or(child.as_ref().map(Child::pid)),
        command: Vec::new(),
        ..wanted
    };
    std::thread::scope(|scope| {
        let over = Over {
            control: &control,
            interrupt: &interrupt,
        };
        let (let_go, go) = mpsc::sync_channel::<()>(1);
        if let Some(child) = child {
            let (messages, interrupt) = (messages.clone(), interrupt.clone());
            std::thread::Builder::new()
                .name("amdahl-child".into())
                .spawn_scoped(scope, move || {
                    wait_for(child, &go, &interrupt, &messages);
                })
                .map_err(thread_failed)?;
        }
        let recording = Recording {
            selection: &selection,
            cpus: &cpus,
            holds: args.holds,
            owners: args.owner,
            control: &control,
            messages: messages.clone(),
            ready: Box::new(move || {
                // Once is enough.
                let _ = let_go.try_send(());
            }),
        };
        let recording = std::thread::Builder::new()
            .name("amdahl-record".into())
            .spawn_scoped(scope, || recording.run());
        let done = recording.map_err(thread_failed).and_then(|_| {
            let shown = Shown {
                args,
                control: &control,
                interrupt: &interrupt,
                target: whom.join(" "),
            };
            match args.batch {
                Some(count) => batch::print(&shown, count, &received),
                None => shown.on_terminal((tab, by), &received, messages),
            }
        });
        let was_asked = interrupt.asked();
        drop(over);
        done.map(|code| if was_asked { 5 } else { code })
    })
}

/// Ends what goes on beside the screen when it is dropped, also by a panic: the threads are waited for then, too.
struct Over<'a> {
    control: &'a Control,
    interrupt: &'a Interrupt,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.control.ask(|asked| asked.is_over = true);
        // The command ends with us.
        self.interrupt.say();
    }
}

fn thread_failed(error: std::io::Error) -> Failure {
    Failure::machine(format!("cannot start a thread: {error}"))
}

/// The tab and the rows to begin with.
fn first(args: &Top) -> Result<(Tab, By), Failure> {
    let tab = match args.tab {
        TopTab::Locks => Tab::Locks,
        TopTab::Sched => Tab::Sched,
        TopTab::Mem => Tab::Mem,
    };
    let by = match args.by {
        None => tab.groupings()[0],
        Some(TopBy::Site) => By::Site,
        Some(TopBy::Thread) => By::Thread,
        Some(TopBy::Process) => By::Process,
        Some(TopBy::Lock) => By::Lock,
        Some(TopBy::Stack) => By::Stack,
        Some(TopBy::Kind) => By::Kind,
        Some(TopBy::Mapping) => By::Mapping,
        Some(TopBy::Cpu) => By::Cpu,
        Some(TopBy::Guest) => By::Guest,
    };
    if !tab.groupings().contains(&by) {
        let known: Vec<&str> = tab.groupings().iter().map(|by| by.name()).collect();
        return Err(Failure::usage(format!(
            "--by {} is not for --tab {}; choose from: {}",
            by.name(),
            tab.name(),
            known.join(", ")
        )));
    }
    Ok((tab, by))
}

fn selection(args: &Top) -> Selection {
    Selection {
        pid: args.pid,
        cgroup: args.cgroup.clone(),
        system: args.system
            || args.pid.is_none() && args.cgroup.is_none() && args.command.is_empty(),
        duration: args.duration,
        memory: args.memory,
        probe: args.probe,
        // The program's output would be written over the screen.
        quiet: args.batch.is_none(),
        command: args.command.clone(),
    }
}

/// Lets the command begin when it is watched, and tells how it ended.
fn wait_for(child: Child, go: &Receiver<()>, interrupt: &Interrupt, messages: &Sender<Message>) {
    if go.recv().is_err() {
        return;
    }
    let how = match child.run(None, interrupt, || ()) {
        Ok(ended) => ended.outcome,
        Err(error) => Err(error.to_string()),
    };
    let _ = messages.send(Message::Ended(how));
}

/// What both ways of showing need.
pub struct Shown<'a> {
    args: &'a Top,
    control: &'a Control,
    interrupt: &'a Interrupt,
    target: String,
}

impl Shown<'_> {
    fn on_terminal(
        &self,
        (tab, by): (Tab, By),
        received: &Receiver<Message>,
        messages: Sender<Message>,
    ) -> Result<u8, Failure> {
        let args = self.args;
        let mut screen = Screen::new(screen::style(), &self.target, tab, args.interval);
        screen.filter(Filter::new(&args.filter));
        screen.group_by(by);
        screen.show_owners(args.owner);
        let mut terminal = Terminal::enter(messages)?;
        let until = args.duration.map(|duration| Instant::now() + duration);
        terminal.run(
            &mut screen,
            received,
            |turn| self.control.now().turn == turn,
            |wish| self.grant(wish),
            || {
                let is_late = until.is_some_and(|until| Instant::now() >= until);
                !is_late && !self.interrupt.asked()
            },
        )
    }

    /// Does what a key asks for. Whether it goes on.
    fn grant(&self, wish: amdahl_top::Wish) -> bool {
        use amdahl_top::Wish;
        match wish {
            Wish::Quit => return false,
            Wish::Show(tab, by) => self.control.ask(|asked| {
                (asked.tab, asked.by) = (tab, by);
                asked.turn += 1;
            }),
            Wish::GroupBy(by) => self.control.ask(|asked| asked.by = by),
            Wish::Reset => self.control.ask(|asked| asked.turn += 1),
            Wish::Interval(interval) => self.control.ask(|asked| asked.interval = interval),
        }
        true
    }
}
