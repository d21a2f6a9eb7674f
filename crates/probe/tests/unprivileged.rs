//! Real process trees, polled. No timing: every test polls until what must come has come.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use amdahl_probe::unprivileged::{PollError, Poller, Scope};
use amdahl_speedup::snapshot::{Reach, Snapshot, State, ThreadState, Waiting};

/// A shell script whose processes are all ended with the test.
struct Script(Child);

impl Script {
    fn new(text: &str) -> Script {
        let mut command = Command::new("sh");
        command
            .args(["-c", text])
            .stdin(Stdio::piped())
            .process_group(0);
        Script(command.spawn().expect("a shell"))
    }

    fn poller(&self) -> Poller {
        Poller::new(Scope {
            root: Some(self.0.id()),
            ..Scope::default()
        })
        .expect("the shell is alive")
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // SAFETY: kill takes no memory; the group is that of the shell, which was not waited for.
        unsafe { libc::kill(-(self.0.id() as libc::pid_t), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// Polls until `is_there` finds what it looks for.
fn until<T>(poller: &mut Poller, mut is_there: impl FnMut(&Poller, &Snapshot) -> Option<T>) -> T {
    loop {
        let snapshot = poller.poll();
        if let Some(found) = is_there(poller, &snapshot) {
            return found;
        }
        std::thread::park_timeout(poller.pause());
    }
}

/// The wait of the thread called `name` in system call `number`.
fn waiting<'a>(
    poller: &Poller,
    snapshot: &'a Snapshot,
    name: &str,
    number: i64,
) -> Option<(&'a ThreadState, &'a Waiting)> {
    let named = |thread: &&ThreadState| {
        poller
            .names()
            .get(&thread.tid)
            .is_some_and(|known| known.name == name)
    };
    snapshot
        .threads
        .iter()
        .filter(named)
        .find_map(|thread| match &thread.state {
            State::Waiting(waiting) if waiting.blocked.syscall.map(i64::from) == Some(number) => {
                Some((thread, waiting))
            }
            _ => None,
        })
}

#[test]
fn children_and_orphans_belong_to_the_tree() {
    // The inner shell ends at once, so that its child is an orphan of the same group.
    let script = Script::new("(sleep 1001 &); sleep 1000; :");
    let mut poller = script.poller();
    let sleepers = |poller: &Poller, snapshot: &Snapshot| {
        let is_asleep = |thread: &&ThreadState| {
            poller
                .names()
                .get(&thread.tid)
                .is_some_and(|known| known.name == "sleep")
                && matches!(&thread.state, State::Waiting(waiting) if waiting.is_readable
                    && waiting.blocked.syscall.map(i64::from) == Some(libc::SYS_clock_nanosleep))
        };
        (snapshot.threads.iter().filter(is_asleep).count() == 2).then_some(())
    };
    until(&mut poller, sleepers);
    let shell = script.0.id();
    assert!(poller.pids().any(|pid| pid == shell));
    assert!(poller.pids().all(|pid| pid != std::process::id()));
    until(&mut poller, |poller, snapshot| {
        waiting(poller, snapshot, "sh", libc::SYS_wait4).map(|_| ())
    });
}

#[test]
fn pipes_within_and_out_of_the_tree_are_told_apart() {
    let script = Script::new("sleep 1000 | cat & exec sed p");
    let mut poller = script.poller();
    until(&mut poller, |poller, snapshot| {
        let (_, inner) = waiting(poller, snapshot, "cat", libc::SYS_read)?;
        // Its other end is with this test.
        let (_, outer) = waiting(poller, snapshot, "sed", libc::SYS_read)?;
        ((inner.reach, outer.reach) == (Reach::Workload, Reach::Outside)).then_some(())
    });
}

#[test]
fn counters_grow_with_what_a_thread_does() {
    let mut script = Script::new("read -r line; while :; do :; done");
    let mut poller = script.poller();
    let before = until(&mut poller, |poller, snapshot| {
        waiting(poller, snapshot, "sh", libc::SYS_read).map(|(thread, _)| thread.clone())
    });
    script
        .0
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"go\n")
        .expect("written");
    let after = until(&mut poller, |_, snapshot| {
        let thread = snapshot.threads.first()?;
        (thread.state == State::Runnable && thread.cpu_ns > before.cpu_ns + 50_000_000)
            .then(|| thread.clone())
    });
    assert_eq!(after.tid, before.tid);
    assert!(after.turns > before.turns && after.queued_ns >= before.queued_ns);
    assert!(after.user_ns + after.system_ns > 0);
}

#[test]
fn stacks_are_copied_once_per_place() {
    let script = Script::new("exec cat");
    let mut poller = script.poller().copy_stacks(7);
    let stack = until(&mut poller, |poller, snapshot| {
        waiting(poller, snapshot, "cat", libc::SYS_read).map(|(_, waiting)| waiting.blocked.stack)
    });
    let copies = poller.take_stacks();
    let ids: Vec<u32> = copies.iter().map(|copy| copy.stack.0).collect();
    assert_eq!(ids, (7..7 + copies.len() as u32).collect::<Vec<_>>());
    let copy = copies
        .iter()
        .find(|copy| Some(copy.stack) == stack)
        .expect("the stack of the wait");
    assert_eq!((copy.pid, copy.tid), (script.0.id(), script.0.id()));
    assert!(!copy.memory.is_empty() && copy.ip != 0 && copy.sp != 0);
    poller.poll();
    assert!(poller.take_stacks().is_empty());
}

#[test]
fn what_has_ended_is_gone() {
    let mut script = Script::new("read -r line");
    let mut poller = script.poller();
    until(&mut poller, |poller, snapshot| {
        waiting(poller, snapshot, "sh", libc::SYS_read).map(|_| ())
    });
    drop(script.0.stdin.take());
    script.0.wait().expect("it ends");
    assert!(poller.poll().threads.is_empty());
    let pid = script.0.id();
    let error = Poller::new(Scope {
        root: Some(pid),
        ..Scope::default()
    })
    .expect_err("it is waited for");
    assert!(matches!(error, PollError::NoProcess { pid: named } if named == pid));
}

#[test]
fn without_a_first_process_everybody_is_polled_but_the_poller_and_the_kernel() {
    let script = Script::new("exec cat");
    let mut poller = Poller::new(Scope::default()).expect("no process is asked for");
    let own = std::process::id();
    until(&mut poller, |_, snapshot| {
        let has = |pid| snapshot.threads.iter().any(|thread| thread.pid == pid);
        assert!(!has(own));
        has(script.0.id()).then_some(())
    });
    let kernel = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    let threads = poller.poll().threads;
    assert!(kernel.trim() != "kthreadd" || threads.iter().all(|thread| thread.pid != 2));
    assert_eq!(poller.blindness().left_out, 0);
}

#[test]
fn stacks_of_other_waits_than_for_locks_are_left_alone() {
    let script = Script::new("exec cat");
    let mut poller = script.poller().copy_stacks_of_locks(0);
    until(&mut poller, |poller, snapshot| {
        waiting(poller, snapshot, "cat", libc::SYS_read).map(|_| ())
    });
    assert!(poller.take_stacks().is_empty());
}

#[test]
fn no_more_threads_are_polled_than_is_asked_for() {
    let _scripts = [(); 3].map(|()| Script::new("exec cat"));
    let poller = Poller::new(Scope::default()).expect("no process is asked for");
    let mut poller = poller.at_most(2);
    assert!(poller.poll().threads.len() <= 2);
    // The test, which is not polled, is none of those three.
    assert!(poller.blindness().left_out > 0);
}

#[test]
fn the_last_poll_tells_the_times_of_the_cpus() {
    let script = Script::new("exec cat");
    let mut poller = script.poller();
    poller.poll();
    let cpus = poller.poll_with_cpus().cpus;
    assert!(!cpus.is_empty() && cpus.iter().any(|times| times.idle_ns + times.user_ns > 0));
}
