//! Runs a process with a time limit and keeps what it says.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// What is kept of what a process says.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` where its time was up.
    pub status: Option<ExitStatus>,
    /// Standard output and error, in their order.
    pub output: String,
    /// How long it took.
    pub wall: Duration,
}

impl Ended {
    /// Exit code 0.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// In words.
    pub fn how(&self) -> String {
        match self.status {
            None => format!("no end after {:.0} s", self.wall.as_secs_f64()),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => "ended".to_owned(),
            },
        }
    }
}

/// Runs it in a process group of its own, of which nothing is left afterwards.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    let (reader, writer) = io::pipe()?;
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .spawn()?;
    // The command keeps its ends of the pipe open, which would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let said = std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut reader = reader;
        let _ = Read::by_ref(&mut reader)
            .take(OUTPUT_BYTES_MAX)
            .read_to_end(&mut kept);
        // Whatever is beyond is thrown away, so that the process is not held up.
        let _ = io::copy(&mut reader, &mut io::sink());
        kept
    });
    let pid = Pid::from_child(&child);
    let ended = wait(pid, limit)?;
    // Also what it left behind, which would hold the pipe.
    let _ = kill_process_group(pid, Signal::KILL);
    let status = child.wait()?;
    let wall = begun.elapsed();
    let output = said.join().unwrap_or_default();
    Ok(Ended {
        status: ended.then_some(status),
        output: String::from_utf8_lossy(&output).into_owned(),
        wall,
    })
}

/// Waits for the end of a child that is not reaped yet; false where the time is up.
fn wait(pid: Pid, limit: Duration) -> io::Result<bool> {
    let handle: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        run(Command::new("sh").args(["-c", script]), limit).expect("sh starts")
    }

    #[test]
    fn tells_how_a_process_ended() {
        let long = Duration::from_secs(300);
        let ended = shell("echo out; echo err >&2", long);
        assert!(ended.is_success());
        assert_eq!(ended.output, "out\nerr\n");
        assert_eq!(shell("exit 3", long).how(), "exit code 3");
        assert_eq!(shell("kill -9 $$", long).how(), "killed by signal 9");
    }

    #[test]
    fn ends_what_does_not_end_and_what_is_left() {
        let ended = shell("sleep 1000 & sleep 1000", Duration::from_millis(50));
        assert!(ended.status.is_none() && ended.how().starts_with("no end"));
        // What is left in the background holds the pipe open, unless it is ended.
        assert!(shell("sleep 1000 &", Duration::from_secs(300)).is_success());
    }
}
