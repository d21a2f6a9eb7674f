//! `amdahl-bench time`: the clock that every measured run carries inside, whatever measures it
//! from outside, so that no tool's own start and end count.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use amdahl_probe::perf::interruption_ns;
use aya::programs::{ProgramError, ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use rustix::process::getppid;
use serde::{Deserialize, Serialize};

use crate::process::{Usage, end_with_parent, parent_of, reap};

/// Flags of `amdahl-bench time`.
#[derive(clap::Args)]
pub struct Arguments {
    /// File that gets a line of JSON
    #[arg(long)]
    to: PathBuf,
    /// Account for what watching takes as well, in BPF programs and in all processes between us and this one; as root
    #[arg(long, value_name = "PID")]
    account: Option<i32>,
    /// Command to run
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// What one run took.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Timed {
    /// From its start to its end.
    pub wall_s: f64,
    /// User CPU seconds of it and its waited-for descendants.
    pub user_s: f64,
    /// Kernel CPU seconds of the same.
    pub system_s: f64,
    /// What watching it took, if that was accounted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Taken>,
}

/// CPU time that a watcher takes from what it watches, while that runs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Taken {
    /// In BPF programs, by the kernel's account, which costs them two looks at a clock each.
    pub hooks_s: f64,
    /// In the watcher itself: who started us, and who started that.
    pub itself_s: f64,
    /// In the interrupts that run BPF programs as samples are taken, each as long as one was measured to take before the run.
    #[serde(default)]
    pub interrupts_s: f64,
}

impl Taken {
    /// All of it.
    pub fn all_s(&self) -> f64 {
        self.hooks_s + self.itself_s + self.interrupts_s
    }
}

/// Runs the command; exits as it does.
pub fn main(arguments: &Arguments) -> Result<u8, String> {
    let (program, rest) = arguments.command.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command.args(rest);
    end_with_parent(&mut command);
    let account = arguments.account.map(Account::open).transpose()?;
    let begun = Instant::now();
    let child = command
        .spawn()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    let failed = |error| format!("cannot wait for {program}: {error}");
    let (
        status,
        Usage {
            user_s, system_s, ..
        },
    ) = reap(child).map_err(failed)?;
    let timed = Timed {
        wall_s: begun.elapsed().as_secs_f64(),
        user_s,
        system_s,
        taken: account.map(Account::close).transpose()?,
    };
    let line = serde_json::to_string(&timed).map_err(|error| error.to_string())?;
    File::options()
        .create(true)
        .append(true)
        .open(&arguments.to)
        .and_then(|mut file| writeln!(file, "{line}"))
        .map_err(|error| format!("cannot write {}: {error}", arguments.to.display()))?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// From here on.
struct Account {
    /// The kernel accounts as long as it is open.
    _stats: OwnedFd,
    hooks: BTreeMap<u32, Hook>,
    /// What an interrupt for a sample takes.
    interruption: Duration,
    watcher: Vec<i32>,
    itself: Duration,
}

/// What a BPF program has done so far.
#[derive(Clone, Copy, Default)]
struct Hook {
    ran: Duration,
    /// How often it ran on a sample, which interrupted somebody.
    samples: u64,
}

impl Hook {
    fn since(self, before: Hook) -> Hook {
        Hook {
            ran: self.ran.saturating_sub(before.ran),
            samples: self.samples.saturating_sub(before.samples),
        }
    }
}

impl Account {
    fn open(above: i32) -> Result<Account, String> {
        let interruption = interruption_ns(CLOCK_HZ)
            .ok_or("no account: what an interrupt takes cannot be measured")?;
        let stats = enable_stats(Stats::RunTime);
        let mut watcher = Vec::new();
        let mut next = getppid().map(|pid| pid.as_raw_nonzero().get());
        while let Some(pid) = next.filter(|&pid| pid != above && pid > 1) {
            watcher.push(pid);
            next = parent_of(pid);
        }
        Ok(Account {
            _stats: stats.map_err(|error| format!("no account of BPF programs: {error}"))?,
            hooks: hooks()?,
            interruption: Duration::from_nanos(interruption),
            itself: cpu_time(&watcher)?,
            watcher,
        })
    }

    fn close(self) -> Result<Taken, String> {
        // First, since it goes on.
        let itself = cpu_time(&self.watcher)?.saturating_sub(self.itself);
        let of =
            |(id, hook): (u32, Hook)| hook.since(self.hooks.get(&id).copied().unwrap_or_default());
        let hooks: Vec<Hook> = hooks()?.into_iter().map(of).collect();
        let ran: Duration = hooks.iter().map(|hook| hook.ran).sum();
        let samples: u64 = hooks.iter().map(|hook| hook.samples).sum();
        Ok(Taken {
            hooks_s: ran.as_secs_f64(),
            itself_s: itself.as_secs_f64(),
            interrupts_s: samples as f64 * self.interruption.as_secs_f64(),
        })
    }
}

/// What all BPF programs have done.
fn hooks() -> Result<BTreeMap<u32, Hook>, String> {
    let of = |program: Result<ProgramInfo, ProgramError>| {
        let program = program.map_err(|error| format!("BPF programs: {error}"))?;
        let is_sampler = SAMPLERS.contains(&program.name_as_str().unwrap_or_default());
        let hook = Hook {
            ran: program.run_time(),
            samples: if is_sampler { times_run(&program) } else { 0 },
        };
        Ok((program.id(), hook))
    };
    loaded_programs().map(of).collect()
}

/// Programs that samples run: those of `amdahl scale`. No other tool here has any.
const SAMPLERS: [&str; 2] = ["on_time", "on_instructions"];

/// About the clock of a CPU, for the period of an event.
const CLOCK_HZ: u64 = 2_000_000_000;

/// How often a program has run since somebody has asked for an account; 0 if it is gone.
fn times_run(program: &ProgramInfo) -> u64 {
    let Ok(fd) = program.fd() else { return 0 };
    let fd = fd.as_fd().as_raw_fd();
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let mut lines = text.lines();
    let count = lines.find_map(|line| line.strip_prefix("run_cnt:"));
    count.map_or(0, |count| count.trim().parse().unwrap_or(0))
}

/// Of processes with all of their threads, so far.
fn cpu_time(pids: &[i32]) -> Result<Duration, String> {
    let failed = |error| format!("CPU time of the watcher: {error}");
    let of = |&pid: &i32| {
        let mut clock = 0;
        // SAFETY: `clock` is a local.
        let error = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
        if error != 0 {
            return Err(failed(std::io::Error::from_raw_os_error(error)));
        }
        // SAFETY: all zero is a valid time.
        let mut time: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: `time` is a local.
        if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    };
    pids.iter().map(of).sum()
}

/// Reads the only line of `file` and removes it.
pub fn take(file: &Path) -> Result<Timed, String> {
    let failed = |error: &dyn std::fmt::Display| format!("times in {}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    fs::remove_file(file).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}
