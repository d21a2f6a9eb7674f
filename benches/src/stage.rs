//! Where the bench works: the tool, the folders, the way programs are started.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::postgres;
use crate::process::{Ended, RunError, Runner};

/// What makes our temporary folders known, followed by our process id.
const PREFIX: &str = "amdahl-bench-";
/// What `make` and `cargo` tell their children and no workload should hear.
const NOT_FOR_WORKLOADS: [&str; 5] = [
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "CARGO_MAKEFLAGS",
    "RUSTFLAGS",
];

/// Everything that the parts of the bench share.
pub struct Stage {
    /// Root of the checkout.
    pub root: PathBuf,
    /// For inputs that are made once and for results.
    pub bench: PathBuf,
    /// Folder of the planted programs.
    pub planted: PathBuf,
    /// The tool.
    pub tool: PathBuf,
    /// This program.
    pub me: PathBuf,
    /// CPUs that may be used.
    pub cpus: u32,
    scratch: TempDir,
    /// The same in memory, where there is room.
    memory: Option<TempDir>,
    runner: Runner,
}

impl Stage {
    /// Builds the tool unless one is given, removes what a killed bench left, makes the folders.
    pub fn new(tool: Option<&Path>, out: Option<&Path>) -> Result<Stage, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let root = root.canonicalize().map_err(|error| at(&root, error))?;
        let me = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        // target/release/amdahl-bench
        let release = me.parent().ok_or("this program has no folder")?.to_owned();
        let target = release
            .parent()
            .ok_or("this program's folder has no parent")?
            .to_owned();
        let bench = out.map_or_else(|| target.join("bench"), Path::to_owned);
        fs::create_dir_all(bench.join("data")).map_err(|error| at(&bench, error))?;
        let cpus = amdahl_topology::allowed()
            .map_err(|error| error.to_string())?
            .len();
        let temporary = std::env::temp_dir();
        let scratch = temporary_folder(&temporary).map_err(|error| at(&temporary, error))?;
        let in_memory = Path::new("/dev/shm");
        let memory = has_room(in_memory).then(|| temporary_folder(in_memory));
        let mut stage = Stage {
            bench: bench.canonicalize().map_err(|error| at(&bench, error))?,
            planted: target.join("planted"),
            tool: PathBuf::new(),
            me,
            cpus: u32::try_from(cpus).map_err(|error| error.to_string())?,
            scratch,
            memory: memory.and_then(Result::ok),
            runner: Runner::new().map_err(|error| format!("cannot set up signals: {error}"))?,
            root,
        };
        stage.tool = match tool {
            Some(tool) => tool.canonicalize().map_err(|error| at(tool, error))?,
            None => stage.build_tool(&release)?,
        };
        Ok(stage)
    }

    fn build_tool(&self, release: &Path) -> Result<PathBuf, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.command(&cargo.to_string_lossy());
        command
            .args(["build", "--release", "-q", "-p", "amdahl"])
            .current_dir(&self.root);
        if let Some(target) = release.parent() {
            command.arg("--target-dir").arg(target);
        }
        self.run(&mut command)
            .map_err(|error| format!("cannot build the tool: {error}"))?;
        Ok(release.join("amdahl"))
    }

    /// Installs what is missing of what is measured.
    pub fn install(&self) {
        let script = self.root.join("benches/install.sh");
        if let Err(error) = self.run(&mut self.command(&script.to_string_lossy())) {
            eprintln!("amdahl-bench: {error}");
        }
    }

    /// A folder that is removed when the bench ends.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The same in memory where there is room, for what must not wait for a disk.
    pub fn memory(&self) -> &Path {
        self.memory.as_ref().unwrap_or(&self.scratch).path()
    }

    /// The user wants to stop.
    pub fn is_asked_to_stop(&self) -> bool {
        self.runner.is_asked_to_stop()
    }

    /// A command without output and without what our callers said to us.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.stdout(Stdio::null()).env("LC_ALL", "C");
        for name in NOT_FOR_WORKLOADS {
            command.env_remove(name);
        }
        command
    }

    /// A command as a list of words, `{cpus}` replaced.
    pub fn filled(&self, words: &[String]) -> Command {
        let cpus = self.cpus.to_string();
        let fill = |word: &String| word.replace("{cpus}", &cpus);
        self.unfilled(&words.iter().map(fill).collect::<Vec<_>>())
    }

    /// A command as a list of words, `{cpus}` left to the tool.
    pub fn unfilled(&self, words: &[String]) -> Command {
        let mut words = words.iter();
        let mut command = self.command(words.next().map_or("", String::as_str));
        command.args(words);
        command
    }

    /// Runs to the end.
    pub fn run(&self, command: &mut Command) -> Result<Ended, RunError> {
        self.runner.run(command)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        postgres::clean_up(self.memory());
    }
}

/// Makes a folder below `parent`, and removes those of killed benches.
fn temporary_folder(parent: &Path) -> io::Result<TempDir> {
    remove_stale(parent);
    let folder = tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir_in(parent)?;
    // The database server runs as another user below it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// Whether a file system has room for a database and its log.
fn has_room(folder: &Path) -> bool {
    const BYTES: u64 = 4 << 30;
    rustix::fs::statvfs(folder).is_ok_and(|found| found.f_bavail * found.f_frsize >= BYTES)
}

/// Removes the temporary folders of benches that were killed.
fn remove_stale(temporary: &Path) {
    let us = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let pid = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == us);
        let Some(pid) = pid.filter(|_| is_ours) else {
            continue;
        };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            postgres::clean_up(&entry.path());
            // What cannot be removed stays visible under its telling name.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
