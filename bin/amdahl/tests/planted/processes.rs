//! Ends what a case has started, whatever process group or session it went to.
//!
//! The runner adopts orphans, so that everything a case starts stays among its descendants;
//! and cases run one after the other, so that all descendants belong to the case.

use std::collections::BTreeMap;
use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper,
    wait as wait_any,
};

/// What a tool gets to put things in order after it was asked to end.
const GRACE: Duration = Duration::from_secs(5);

/// To be called once, before anything is started.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Waits for the end of a child, `limit` at most.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => return child.wait().map(Some),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends a child that took too long: asks the processes to end, so that control groups are
/// removed; what then is left is killed. `is_wrapped`: the child itself is only a wrapper that
/// puts things in order when what it wraps has ended.
pub fn end(child: &mut Child, is_wrapped: bool) -> io::Result<()> {
    let spared = is_wrapped.then(|| Pid::from_child(child));
    for pid in descendants()?
        .into_iter()
        .filter(|pid| Some(*pid) != spared)
    {
        let _ = kill_process(pid, Signal::TERM);
    }
    wait(child, GRACE)?;
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Kills and reaps all descendants. No [`Child`] may be left unwaited.
pub fn end_left_behind() -> io::Result<()> {
    loop {
        let left = descendants()?;
        if left.is_empty() {
            return Ok(());
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        // Whoever dies becomes ours, now or when its parent dies too.
        match wait_any(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// All descendants, zombies included.
fn descendants() -> io::Result<Vec<Pid>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // It may have ended meanwhile.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        // The name in parentheses may hold anything; state and parent come after it.
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = next.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(pid));
            next.push(pid);
        }
    }
    Ok(found)
}
