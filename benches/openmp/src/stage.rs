//! Compiles the programs once and runs them; nothing stays behind, Ctrl-C included. What `kill -9` leaves is ended
//! by the kernel (processes) and by the next start (control groups).

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::case::Case;
use crate::owner;
use crate::quota::Group;
use crate::rivals::{Runtimes, Side};

/// What is compiled, in this order.
const SOURCES: [(&str, &str); 12] = [
    ("kernel.h", include_str!("../programs/kernel.h")),
    ("main.c", include_str!("../programs/main.c")),
    ("lu.c", include_str!("../programs/lu.c")),
    ("cg.c", include_str!("../programs/cg.c")),
    ("ua.c", include_str!("../programs/ua.c")),
    ("mg.c", include_str!("../programs/mg.c")),
    ("ft.c", include_str!("../programs/ft.c")),
    ("ep.c", include_str!("../programs/ep.c")),
    ("tasks.c", include_str!("../programs/tasks.c")),
    ("overheads.c", include_str!("../programs/overheads.c")),
    ("load.c", include_str!("../programs/load.c")),
    ("busy.c", include_str!("../programs/busy.c")),
];

/// All kernels.
pub const KERNELS: [&str; 7] = ["lu", "cg", "ua", "mg", "ft", "ep", "tasks"];
/// Threads that need nothing of each other: what the scheduler grants.
pub const SHARE: &str = "share";

/// A line of the page that all processes of a run share, see `main.c`.
const LINE: u64 = 64;
/// What loads get to be there.
const LOADS_START: Duration = Duration::from_secs(10);
/// How often a wait looks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Why a run gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// Anything else, as a sentence.
    #[error("{0}")]
    Failed(String),
}

impl RunError {
    fn system(what: &str) -> impl Fn(io::Error) -> RunError + use<> {
        let what = what.to_owned();
        move |error| RunError::Failed(format!("{what}: {error}"))
    }
}

/// One run.
pub struct Run<'a> {
    /// Of `KERNELS`, or `SHARE`.
    pub kernel: &'a str,
    /// With which runtime.
    pub side: Side,
    /// Beside what.
    pub case: Case,
    /// How long it measures.
    pub seconds: f64,
    /// Chooses the steps of the load.
    pub seed: u64,
    /// Where the program runs, if its CPU time is limited.
    pub group: Option<&'a Group>,
    /// A unit that takes longer is cut.
    pub unit_s_max: f64,
}

/// What came of a run, per unit of work; of several copies the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Time.
    pub wall_s: f64,
    /// CPU time of the program.
    pub cpu_s: f64,
    /// Work of the processes beside it in a second, of all together.
    pub load_per_s: Option<f64>,
    /// It was stopped because it took too long: it counts as if the unit had ended then.
    pub is_cut: bool,
}

/// What `main.c` prints.
#[derive(Deserialize)]
struct Told {
    units: u64,
    wall_ns: u64,
    cpu_ns: u64,
    load: u64,
    least: f64,
    most: f64,
    is_exact: bool,
    threads: usize,
    runtime: PathBuf,
}

/// What `overheads.c` prints.
#[derive(Deserialize)]
pub struct Overhead {
    /// What is measured.
    pub construct: String,
    /// Nanoseconds each.
    pub ns: f64,
    runtime: PathBuf,
}

/// Where everything lies and runs.
pub struct Stage {
    folder: Folder,
    /// Competitors and ours.
    pub runtimes: Runtimes,
    /// Those that may be used.
    pub cpus: usize,
    /// The result of each kernel, of a build without OpenMP.
    results: Vec<(&'static str, f64)>,
    asked: Arc<AtomicBool>,
}

impl Stage {
    /// Compiles.
    ///
    /// # Errors
    /// What the compiler says, or that there is none.
    pub fn new(ours: Option<&Path>) -> Result<Stage, RunError> {
        let system = RunError::system("cannot prepare");
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            signal_hook::flag::register(signal.as_raw(), Arc::clone(&asked)).map_err(&system)?;
        }
        let folder = Folder::new().map_err(RunError::Failed)?;
        let path = |name: &str| folder.path().join(name);
        for (name, text) in SOURCES {
            fs::write(path(name), text).map_err(&system)?;
        }
        // Products and sums are rounded one by one, so that results are the same on all machines.
        let flags = ["-std=gnu11", "-O2", "-ffp-contract=off"];
        let compile = |openmp: bool, sources: &[&str], to: &str| {
            let mut command = Command::new("gcc");
            command.current_dir(folder.path()).args(flags).args(sources);
            if openmp {
                command.arg("-fopenmp");
            }
            command.args(["-lm", "-ldl", "-o", to]).stdin(Stdio::null());
            let output = command.output().map_err(|error| {
                RunError::Failed(format!("gcc (the package gcc has it): {error}"))
            })?;
            match output.status.success() {
                true => Ok(()),
                false => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    Err(RunError::Failed(format!("gcc, for {to}: {said}")))
                }
            }
        };
        let kernels: Vec<&str> = ["main.c"].into_iter().chain(KERNELS.map(source)).collect();
        compile(true, &kernels, "kernels")?;
        compile(false, &kernels, "serial")?;
        compile(true, &["overheads.c"], "overheads")?;
        compile(false, &["load.c"], "load")?;
        compile(false, &["busy.c", "-pthread"], "busy")?;
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let runtimes = Runtimes::new(folder.path(), ours);
        let mut stage = Stage {
            folder,
            runtimes,
            cpus,
            results: Vec::new(),
            asked,
        };
        for kernel in KERNELS {
            let told = stage.serial(kernel)?;
            stage.results.push((kernel, told.least));
        }
        Ok(stage)
    }

    /// The user wants to stop.
    pub fn is_asked_to_stop(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One of the programs.
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.path(name))
    }

    fn serial(&self, kernel: &str) -> Result<Told, RunError> {
        let mut command = Command::new(self.path("serial"));
        command.args([kernel, "0", &self.cpus.to_string()]);
        let child = Started::start(&mut command)?;
        self.wait(&[&child], Duration::from_secs(60))?;
        child.told(kernel)
    }

    /// What the constructs cost with a thread for each CPU.
    ///
    /// # Errors
    /// It failed, or took too long.
    pub fn overheads(&self, side: Side, samples: usize) -> Result<Vec<Overhead>, RunError> {
        let mut command = Command::new(self.path("overheads"));
        command.arg(samples.to_string());
        self.runtimes.set(&mut command, side, self.cpus);
        let child = Started::start(&mut command)?;
        if !self.wait(&[&child], Duration::from_secs(60))? {
            return Err(RunError::Failed("took more than a minute".into()));
        }
        let text = child.ended(side.name())?;
        let lines = text.lines().map(serde_json::from_str);
        let all: Vec<Overhead> = lines
            .collect::<Result<_, _>>()
            .map_err(|error| RunError::Failed(format!("{}: {error}", side.name())))?;
        for overhead in &all {
            self.check_runtime(side, &overhead.runtime)?;
        }
        Ok(all)
    }

    /// Runs.
    ///
    /// # Errors
    /// A program failed, or its result is wrong, or the user wants to stop.
    pub fn run(&self, run: &Run) -> Result<Measured, RunError> {
        let (loads, copies) = (run.case.loads(self.cpus), run.case.copies());
        let page = Page::new(&self.path("page"), loads, copies)?;
        let (slot_ms, levels) = run.case.slots(self.cpus, run.seed);
        let levels: Vec<String> = levels.iter().map(usize::to_string).collect();
        let mut beside = Vec::new();
        for load in 0..loads {
            let mut command = Command::new(self.path("load"));
            command.arg(&page.path).arg(load.to_string());
            command.arg(slot_ms.to_string()).arg(levels.join(","));
            beside.push(Started::start(&mut command)?);
        }
        self.wait_for_loads(&page)?;
        let mut children = Vec::new();
        for copy in 0..copies {
            let mut command = Command::new(self.path("kernels"));
            command
                .arg(run.kernel)
                .args([run.seconds.to_string(), self.cpus.to_string()])
                .arg(&page.path)
                .args([loads, copies, copy].map(|number| number.to_string()));
            self.runtimes.set(&mut command, run.side, run.case.threads);
            if let Some(group) = run.group {
                group.take_in(&mut command);
            }
            children.push(Started::start(&mut command)?);
        }
        // To prepare, for the unit that is not measured, to measure, and for the last unit.
        let limit = 1.0 + run.seconds + 2.0 * run.unit_s_max;
        let have_ended = self.wait(&children.iter().collect::<Vec<_>>(), from_s(limit))?;
        let mut all = Vec::new();
        for (copy, child) in children.into_iter().enumerate() {
            all.push(match have_ended || child.has_ended()? {
                true => self.measured(run, child)?,
                false => cut(child, &page, copy)?,
            });
        }
        Ok(mean(&all))
    }

    fn measured(&self, run: &Run, child: Started) -> Result<Measured, RunError> {
        let what = format!("{} with {}", run.kernel, run.side.name());
        let told = child.told(&what)?;
        self.check_runtime(run.side, &told.runtime)?;
        let failed = |why: String| Err(RunError::Failed(format!("{what}: {why}")));
        // Its maximum; it decides by itself for each region.
        if told.threads != run.case.threads && run.side != Side::GccDynamic {
            return failed(format!("{} threads at most", told.threads));
        }
        if let Some((_, right)) = self.results.iter().find(|(name, _)| *name == run.kernel) {
            let near = right.abs() * if told.is_exact { 0.0 } else { 1e-9 };
            if [told.least, told.most]
                .iter()
                .any(|found| (found - right).abs() > near || found.is_nan())
            {
                return failed(format!(
                    "result {} to {}, right is {right}",
                    told.least, told.most
                ));
            }
        }
        if told.units == 0 {
            return failed("no unit was done".into());
        }
        let (units, wall_s) = (told.units as f64, told.wall_ns as f64 * 1e-9);
        Ok(Measured {
            wall_s: wall_s / units,
            cpu_s: told.cpu_ns as f64 * 1e-9 / units,
            load_per_s: (told.load > 0).then(|| told.load as f64 / wall_s),
            is_cut: false,
        })
    }

    fn check_runtime(&self, side: Side, loaded: &Path) -> Result<(), RunError> {
        let is_right = match self.runtimes.library(side) {
            Some(library) => library == loaded,
            None => loaded
                .file_name()
                .is_some_and(|name| name.to_string_lossy().contains("libgomp")),
        };
        match is_right {
            true => Ok(()),
            false => Err(RunError::Failed(format!(
                "{}: {} was loaded instead",
                side.name(),
                loaded.display()
            ))),
        }
    }

    fn wait_for_loads(&self, page: &Page) -> Result<(), RunError> {
        let begun = Instant::now();
        while (0..page.loads).any(|load| page.word(1 + load as u64, 0).unwrap_or(0) == 0) {
            if self.is_asked_to_stop() {
                return Err(RunError::Interrupted);
            }
            if begun.elapsed() > LOADS_START {
                return Err(RunError::Failed("the load does not begin".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits until all have ended; whether they have within the limit.
    fn wait(&self, children: &[&Started], limit: Duration) -> Result<bool, RunError> {
        let begun = Instant::now();
        let look = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(LOOK.subsec_nanos()),
        };
        for child in children {
            let system = RunError::system("cannot wait");
            let pidfd = pidfd_open(Pid::from_child(&child.child), PidfdFlags::empty())
                .map_err(|errno| system(errno.into()))?;
            loop {
                match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&look)) {
                    Ok(1..) => break,
                    Ok(0) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(system(errno.into())),
                }
                if self.is_asked_to_stop() {
                    return Err(RunError::Interrupted);
                }
                if begun.elapsed() > limit {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// A folder for files that the next start removes if this process is killed.
struct Folder {
    /// Below a folder that has this process's name.
    inner: Option<tempfile::TempDir>,
    named: PathBuf,
}

impl Folder {
    fn new() -> Result<Folder, String> {
        let named = std::env::temp_dir().join(owner::name()?);
        let made = fs::create_dir_all(&named).and_then(|()| tempfile::tempdir_in(&named));
        let inner = made.map_err(|error| format!("{}: {error}", named.display()))?;
        Ok(Folder {
            inner: Some(inner),
            named,
        })
    }

    fn path(&self) -> &Path {
        self.inner
            .as_ref()
            .expect("it is there until the end")
            .path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.inner.take();
        // Another one of this process may be in it.
        let _ = fs::remove_dir(&self.named);
    }
}

/// Removes what a bench left that was killed.
pub fn clean_up_after_the_killed() {
    for folder in owner::left_in(&std::env::temp_dir()) {
        let _ = fs::remove_dir_all(folder);
    }
}

fn source(kernel: &'static str) -> &'static str {
    let named = |name: &&(&'static str, &str)| name.0.strip_suffix(".c") == Some(kernel);
    SOURCES.iter().find(named).expect("it has a source").0
}

fn from_s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 600.0))
}

/// Ends a program that takes too long; what it did until now.
fn cut(mut child: Started, page: &Page, copy: usize) -> Result<Measured, RunError> {
    let system = RunError::system("cannot stop a program");
    let cpu_s = child.cpu_s();
    let time = clock_gettime(ClockId::Monotonic);
    let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    child.end();
    let line = 1 + (page.loads + copy) as u64;
    let word = |line, at| page.word(line, at).map_err(&system);
    let (measuring, first, units) = (word(0, 0)?, word(line, 0)?, word(line, 1)?);
    if first == 0 {
        let why = "it did not begin its first unit in time; is the machine busy?";
        return Err(RunError::Failed(why.to_owned()));
    }
    Ok(of_cut(now, measuring, first, units, cpu_s))
}

/// What a program had done that was cut `now`: begun to measure (0: not yet), begun its first unit, and units since.
fn of_cut(now: u64, measuring: u64, first: u64, units: u64, cpu_s: f64) -> Measured {
    let (begun, before) = match measuring {
        0 => (first, 0),
        measuring => (measuring, 1),
    };
    // As if the one that it was in had just ended.
    let units = units + 1;
    Measured {
        wall_s: now.saturating_sub(begun) as f64 * 1e-9 / units as f64,
        cpu_s: cpu_s / (before + units) as f64,
        load_per_s: None,
        is_cut: true,
    }
}

fn mean(all: &[Measured]) -> Measured {
    let of = |value: fn(&Measured) -> f64| all.iter().map(value).sum::<f64>() / all.len() as f64;
    Measured {
        wall_s: of(|m| m.wall_s),
        cpu_s: of(|m| m.cpu_s),
        load_per_s: all[0].load_per_s,
        is_cut: all.iter().any(|m| m.is_cut),
    }
}

/// The page of a run.
struct Page {
    path: PathBuf,
    file: File,
    loads: usize,
}

impl Page {
    fn new(path: &Path, loads: usize, copies: usize) -> Result<Page, RunError> {
        let system = RunError::system("cannot make a file for the runs");
        // A new one each time: nothing of the run before is in it.
        let _ = fs::remove_file(path);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(&system)?;
        file.set_len(LINE * (1 + loads + copies) as u64)
            .map_err(&system)?;
        Ok(Page {
            path: path.to_owned(),
            file,
            loads,
        })
    }

    fn word(&self, line: u64, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, line * LINE + at * 8)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// A process that ends with its owner.
pub struct Started {
    child: Child,
    out: File,
    err: File,
}

impl Started {
    /// Starts it in a process group of its own.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(command: &mut Command) -> Result<Started, RunError> {
        let system = RunError::system(&command.get_program().to_string_lossy());
        let out = tempfile::tempfile().map_err(&system)?;
        let err = tempfile::tempfile().map_err(&system)?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(&system)?)
            .stderr(err.try_clone().map_err(&system)?)
            // A terminal's Ctrl-C is for us alone.
            .process_group(0);
        let me = getpid();
        let end_with_parent = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have ended before that.
            match getppid() == Some(me) {
                true => Ok(()),
                false => Err(Errno::SRCH.into()),
            }
        };
        // SAFETY: two system calls, which are async-signal-safe; nothing is allocated.
        unsafe { command.pre_exec(end_with_parent) };
        let child = command.spawn().map_err(&system)?;
        Ok(Started { child, out, err })
    }

    /// Its number, which stays its own until it is dropped.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn has_ended(&self) -> Result<bool, RunError> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.map_err(RunError::system("/proc"))?;
        let state = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.trim_start().chars().next());
        Ok(state == Some('Z'))
    }

    /// CPU time so far, all threads.
    fn cpu_s(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after_name.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|word| word.parse::<u64>().ok()).sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it printed, if it ended well.
    fn ended(mut self, what: &str) -> Result<String, RunError> {
        let system = RunError::system(what);
        let status: ExitStatus = self.child.wait().map_err(&system)?;
        let read = |file: &mut File| {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        if status.success() {
            return read(&mut self.out).map_err(&system);
        }
        let said = read(&mut self.err).map_err(&system)?;
        let last = said.trim_end().lines().last().unwrap_or("it said nothing");
        Err(RunError::Failed(format!("{what}: {status}: {last}")))
    }

    fn told(self, what: &str) -> Result<Told, RunError> {
        let text = self.ended(what)?;
        serde_json::from_str(&text).map_err(|error| RunError::Failed(format!("{what}: {error}")))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_counts_with_the_time_it_had() {
        let s = 1_000_000_000;
        // In its first unit, which is not measured otherwise.
        let first = of_cut(5 * s, 0, 3 * s, 0, 4.0);
        assert_eq!((first.wall_s, first.cpu_s), (2.0, 4.0));
        // Two units since the measurement began, and in the third.
        let third = of_cut(10 * s, 4 * s, 3 * s, 2, 4.0);
        assert_eq!((third.wall_s, third.cpu_s), (2.0, 1.0));
        assert!(first.is_cut && third.is_cut);
    }

    /// All errors but a missing compiler are errors.
    fn stage(test: &str) -> Option<Stage> {
        if Command::new("gcc").arg("--version").output().is_err() {
            println!("SKIPPED {test}: there is no gcc");
            return None;
        }
        Some(Stage::new(None).unwrap())
    }

    #[test]
    fn kernels_have_the_same_results_with_teams_of_any_size() {
        let test = "kernels_have_the_same_results_with_teams_of_any_size";
        let Some(stage) = stage(test) else { return };
        for kernel in KERNELS.into_iter().chain([SHARE]) {
            for case in [
                Case {
                    trouble: crate::case::Trouble::Nobody,
                    threads: 3,
                },
                Case {
                    trouble: crate::case::Trouble::Copies,
                    threads: 2,
                },
                Case {
                    trouble: crate::case::Trouble::Steps { slot_ms: 100 },
                    threads: 1,
                },
            ] {
                let run = Run {
                    kernel,
                    side: Side::GccPassive,
                    case,
                    seconds: 0.01,
                    seed: 1,
                    group: None,
                    unit_s_max: 30.0,
                };
                let measured = stage.run(&run).unwrap();
                assert!(measured.wall_s > 0.0 && !measured.is_cut, "{kernel} {case}");
            }
        }
    }

    #[test]
    fn what_takes_too_long_is_cut() {
        let Some(stage) = stage("what_takes_too_long_is_cut") else {
            return;
        };
        let case = Case {
            trouble: crate::case::Trouble::Nobody,
            threads: 1,
        };
        // It wants an hour.
        let page = Page::new(&stage.path("page"), 0, 1).unwrap();
        let mut command = Command::new(stage.path("kernels"));
        command.args(["lu", "3600", "2"]).arg(&page.path);
        command.args(["0", "1", "0"]);
        stage.runtimes.set(&mut command, Side::Gcc, case.threads);
        let child = Started::start(&mut command).unwrap();
        for _ in 0..600 {
            assert!(!stage.wait(&[&child], LOOK).unwrap(), "it ended");
            // It measures, and has done some of it.
            if page.word(1, 1).unwrap() > 0 {
                break;
            }
        }
        let measured = cut(child, &page, 0).unwrap();
        assert!(measured.is_cut && measured.wall_s > 0.0);
    }
}
