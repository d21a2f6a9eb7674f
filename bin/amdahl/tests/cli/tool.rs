//! Runs the program under test and waits for it, never for ever.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use amdahl_report::schema::ScaleResult;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use tempfile::TempDir;

/// Whatever takes longer hangs. Far above what anything here needs on a busy machine.
pub const HANGS_AFTER: Duration = Duration::from_secs(300);

/// An id that no person has: `nobody`.
pub const ORDINARY: u32 = 65_534;

/// Tests that need CPUs or look at what is left in the system run one after the other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that a test, or a part of it, was not done. Not captured by the test harness.
pub fn skipped(reason: impl std::fmt::Display) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    // At once, or it is torn apart by other tests.
    let line = format!("SKIPPED {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a run can be recorded with BPF here, or why not.
pub fn bpf() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    let look = || {
        let place = Place::new();
        let checks = place.amdahl(["doctor", "--json"]).ends_with(0).json();
        let check = checks
            .as_array()
            .expect("a list")
            .iter()
            .find(|check| check["name"] == "BPF recorder")
            .expect("the check");
        let found = check["found"].as_str().expect("text");
        if check["ok"] == true {
            Ok(())
        } else {
            Err(format!("no BPF: {found}"))
        }
    };
    ANSWER.get_or_init(look).clone()
}

/// CPUs that may be used.
pub fn cpus() -> usize {
    amdahl_topology::allowed().expect("an affinity mask").len()
}

/// A folder of a test's own, where the tool runs; everybody may enter it.
pub struct Place(TempDir);

impl Place {
    /// An empty one.
    pub fn new() -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        Place(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// What a file in it holds; nothing if there is none.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap_or_default()
    }

    /// Names of what is in it, hidden ones too.
    pub fn names(&self) -> Vec<String> {
        names(self.path())
    }

    /// The tool with these arguments, to be changed further.
    pub fn tool<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_amdahl"));
        command.args(args);
        self.here(command)
    }

    /// `command` in this folder and in an environment that is always the same.
    pub fn here(&self, mut command: Command) -> Command {
        for name in [
            "NO_COLOR",
            "CLICOLOR_FORCE",
            "OMP_NUM_THREADS",
            "JAVA_TOOL_OPTIONS",
        ] {
            command.env_remove(name);
        }
        command
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm-256color")
            .env("RUST_BACKTRACE", "1");
        // In a folder that may not be searched there could be anything: "permission denied"
        // instead of "not found".
        if let Some(path) = std::env::var_os("PATH") {
            let may_search = |folder: &PathBuf| fs::read_dir(folder).is_ok();
            let path = std::env::join_paths(std::env::split_paths(&path).filter(may_search));
            command.env("PATH", path.expect("parts of a path"));
        }
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// Runs the tool to its end.
    pub fn amdahl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.run(self.tool(args))
    }

    /// Runs the tool to its end as somebody without any rights, in a folder of theirs.
    pub fn amdahl_as_ordinary_user(&self, args: &[&str]) -> Option<Ran> {
        self.tool_of_ordinary_user(args)
            .map(|command| self.run(command))
    }

    /// The tool, run by somebody without any rights. `None` with SKIPPED where nobody can become
    /// such a user.
    pub fn tool_of_ordinary_user(&self, args: &[&str]) -> Option<Command> {
        if !is_root() {
            return Some(self.tool(args));
        }
        if !has("setpriv") {
            skipped("setpriv (util-linux) is not installed");
            return None;
        }
        // Where it was built may be closed to others.
        let copy = self.join("amdahl");
        if !copy.exists() {
            fs::copy(env!("CARGO_BIN_EXE_amdahl"), &copy).expect("a copy of the tool");
        }
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            &ORDINARY.to_string(),
            "--regid",
            &ORDINARY.to_string(),
        ]);
        command.args([
            "--clear-groups",
            "--bounding-set",
            "-all",
            "--inh-caps",
            "-all",
        ]);
        command.arg(copy).args(args);
        Some(self.here(command))
    }

    /// Gives a new folder in this one to the user of [`Place::amdahl_as_ordinary_user`].
    pub fn folder_of_ordinary_user(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir(&path).expect("a folder");
        if is_root() {
            std::os::unix::fs::chown(&path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
        }
        path
    }

    /// Runs `command` to its end.
    pub fn run(&self, command: Command) -> Ran {
        self.start(command).ended()
    }

    /// Starts `command`.
    pub fn start(&self, mut command: Command) -> Running {
        // Files, because nobody has to read them while it runs.
        let (out, err) = (Output::new(), Output::new());
        command.stdout(out.file()).stderr(err.file());
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running {
            what: format!("{command:?}"),
            child,
            out,
            err,
        }
    }
}

/// Names of what is in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

/// A program is installed.
pub fn has(program: &str) -> bool {
    path_of(program).is_some()
}

/// Where a program is.
pub fn path_of(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .map(|at| at.join(program))
        .find(|path| path.is_file())
}

/// Looks again and again until there is an answer.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < HANGS_AFTER, "{what}: did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the tool has taken in whom it watches: then it starts to follow them.
pub fn until_it_watches(tool: &Running) {
    until_it_has_one_of(tool, &["amdahl-analyse", "amdahl-poll"]);
}

/// Waits until a process that the tool has started, at whatever remove, runs a program.
pub fn until_it_runs(tool: &Running, program: &Path) {
    let runs = || has_child_that_runs(tool.pid(), program).then_some(());
    until("the program", runs);
}

/// One of the processes that `pid` has started, at whatever remove, runs a program.
fn has_child_that_runs(pid: u32, program: &Path) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let mut pids = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    pids.any(|pid: u32| {
        let runs = std::fs::read_link(format!("/proc/{pid}/exe"));
        runs.is_ok_and(|runs| runs == program) || has_child_that_runs(pid, program)
    })
}

/// Waits until the tool has opened a file, which it does when it learns who has it mapped.
pub fn until_it_opens(tool: &Running, file: &Path) {
    let open = format!("/proc/{}/fd", tool.pid());
    until("the program's file opened", || {
        let mut open = std::fs::read_dir(&open).ok()?.flatten();
        let is_it = |fd: std::fs::DirEntry| {
            std::fs::read_link(fd.path()).is_ok_and(|target| target == file)
        };
        open.any(is_it).then_some(())
    });
}

/// Waits until the tool has a thread of this name.
pub fn until_it_has(tool: &Running, thread: &str) {
    until_it_has_one_of(tool, &[thread]);
}

fn until_it_has_one_of(tool: &Running, threads: &[&str]) {
    let folder = format!("/proc/{}/task", tool.pid());
    until(&format!("a thread {}", threads.join(" or ")), || {
        let mut names = fs::read_dir(&folder).ok()?.flatten().map(|thread| {
            let name = fs::read_to_string(thread.path().join("comm"));
            name.unwrap_or_default()
        });
        names
            .any(|name| threads.contains(&name.trim_end()))
            .then_some(())
    });
}

struct Output(tempfile::NamedTempFile);

impl Output {
    fn new() -> Output {
        Output(tempfile::NamedTempFile::new().expect("a temporary file"))
    }

    fn file(&self) -> File {
        File::options()
            .append(true)
            .open(self.0.path())
            .expect("opened again")
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.0.path()).expect("readable")).into_owned()
    }
}

/// Something that runs. Dropping it kills it.
pub struct Running {
    what: String,
    child: Child,
    out: Output,
    err: Output,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed until now.
    pub fn out_so_far(&self) -> String {
        self.out.text()
    }

    /// The same, on standard error.
    pub fn err_so_far(&self) -> String {
        self.err.text()
    }

    /// Writes a line to its standard input, which is a pipe.
    pub fn say(&mut self, line: &str) {
        use std::io::Write;
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for its end.
    pub fn ended(mut self) -> Ran {
        let begun = Instant::now();
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).expect("a child");
        loop {
            let left = HANGS_AFTER.saturating_sub(begun.elapsed());
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: 0,
            };
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
                Ok(1..) => break,
                Ok(0) => panic!(
                    "hangs: {}\n{}{}",
                    self.what,
                    self.out.text(),
                    self.err.text()
                ),
                Err(Errno::INTR) => {}
                Err(error) => panic!("poll: {error}"),
            }
        }
        let status = self.child.wait().expect("a child");
        Ran {
            what: self.what.clone(),
            status,
            out: self.out.text(),
            err: self.err.text(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What has run.
#[derive(Debug)]
pub struct Ran {
    /// What it was.
    pub what: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Ran {
    /// Demands an exit code, and that nothing panicked on the way.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Ran {
        assert!(
            self.status.code() == Some(code) && !self.err.contains("panicked at"),
            "{}\nended with {:?} (signal {:?}) instead of {code}\n{}{}",
            self.what,
            self.status.code(),
            self.status.signal(),
            self.out,
            self.err
        );
        self
    }

    /// Demands a piece of text on standard output, however its lines are broken.
    #[track_caller]
    pub fn says(self, text: &str) -> Ran {
        let words = self.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains(text),
            "{}\nno {text:?} in\n{}",
            self.what,
            self.out
        );
        self
    }

    /// The one line of a message: what the tool says of a failure, without the progress before.
    #[track_caller]
    pub fn message(&self) -> &str {
        let (_, message) = self.err.rsplit_once("amdahl: ").unwrap_or_else(|| {
            panic!("{}\nno message in\n{}", self.what, self.err);
        });
        message.trim_end()
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{}\n{error} in\n{}", self.what, self.out))
    }

    /// Standard output as a result that the tool itself would read.
    #[track_caller]
    pub fn result(&self) -> ScaleResult {
        amdahl_report::load::parse(self.out.as_bytes(), "standard output".into())
            .unwrap_or_else(|error| panic!("{}\n{error}\n{}", self.what, self.out))
    }
}

/// The text of the notice with this code.
#[track_caller]
pub fn notice<'a>(result: &'a ScaleResult, code: &str) -> &'a str {
    has_notice(result, code).unwrap_or_else(|| panic!("no notice {code}: {:#?}", result.warnings))
}

/// The text of the notice with this code, if there is one.
pub fn has_notice<'a>(result: &'a ScaleResult, code: &str) -> Option<&'a str> {
    let notice = result.warnings.iter().find(|notice| notice.code == code)?;
    Some(&notice.text)
}
