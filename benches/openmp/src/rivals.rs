//! Who is measured: runtimes, and what their environment says.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

/// A runtime with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// What this project makes of it.
    Ours,
    /// It may start fewer threads than it is told.
    OursDynamic,
    /// GCC's runtime as it is.
    Gcc,
    /// It sleeps at once.
    GccPassive,
    /// It spins for minutes.
    GccActive,
    /// It never spins.
    GccNoSpin,
    /// It starts fewer threads when the load average is high.
    GccDynamic,
    /// LLVM's runtime as it is.
    Llvm,
    /// It sleeps at once.
    LlvmNoBlocktime,
}

impl Side {
    /// This project's.
    pub const OURS: [Side; 2] = [Side::Ours, Side::OursDynamic];

    /// All that Ours is compared with.
    pub const COMPETITORS: [Side; 7] = [
        Side::Gcc,
        Side::GccPassive,
        Side::GccActive,
        Side::GccNoSpin,
        Side::GccDynamic,
        Side::Llvm,
        Side::LlvmNoBlocktime,
    ];

    /// All there are.
    pub fn all() -> impl Iterator<Item = Side> {
        Side::OURS.into_iter().chain(Side::COMPETITORS)
    }

    /// In a table.
    pub fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::OursDynamic => "ours OMP_DYNAMIC",
            Side::Gcc => "libgomp",
            Side::GccPassive => "libgomp passive",
            Side::GccActive => "libgomp active",
            Side::GccNoSpin => "libgomp GOMP_SPINCOUNT=0",
            Side::GccDynamic => "libgomp OMP_DYNAMIC",
            Side::Llvm => "LLVM",
            Side::LlvmNoBlocktime => "LLVM KMP_BLOCKTIME=0",
        }
    }

    fn setting(self) -> Option<(&'static str, &'static str)> {
        match self {
            Side::Ours | Side::Gcc | Side::Llvm => None,
            Side::GccPassive => Some(("OMP_WAIT_POLICY", "passive")),
            Side::GccActive => Some(("OMP_WAIT_POLICY", "active")),
            Side::GccNoSpin => Some(("GOMP_SPINCOUNT", "0")),
            Side::OursDynamic | Side::GccDynamic => Some(("OMP_DYNAMIC", "true")),
            Side::LlvmNoBlocktime => Some(("KMP_BLOCKTIME", "0")),
        }
    }

    /// Whether it is this project's.
    pub fn is_ours(self) -> bool {
        Side::OURS.contains(&self)
    }

    fn is_llvm(self) -> bool {
        matches!(self, Side::Llvm | Side::LlvmNoBlocktime)
    }
}

/// Where the runtimes are, each in a folder as `libgomp.so.1`.
pub struct Runtimes {
    ours: Result<PathBuf, String>,
    llvm: Result<PathBuf, String>,
}

impl Runtimes {
    /// Makes the folders below `folder`.
    pub fn new(folder: &Path, ours: Option<&Path>) -> Runtimes {
        let linked = |name: &str, library: &Path| {
            let told = |error| format!("{}: {error}", library.display());
            let library = fs::canonicalize(library).map_err(told)?;
            let into = folder.join(name);
            fs::create_dir(&into)
                .and_then(|()| symlink(library, into.join("libgomp.so.1")))
                .map_err(|error| format!("{}: {error}", into.display()))?;
            Ok(into)
        };
        let ours = match ours {
            Some(library) => linked("ours", library),
            None => Err("no runtime of ours: name it with --ours FILE".to_owned()),
        };
        let llvm = match libomp() {
            Some(library) => linked("llvm", &library),
            None => Err(
                "no libomp.so.5: install libomp5 (Debian), libomp (Fedora) or openmp (Arch)"
                    .to_owned(),
            ),
        };
        Runtimes { ours, llvm }
    }

    /// Why it cannot be measured.
    pub fn missing(&self, side: Side) -> Option<&str> {
        match side {
            side if side.is_ours() => self.ours.as_ref().err().map(String::as_str),
            side if side.is_llvm() => self.llvm.as_ref().err().map(String::as_str),
            _ => None,
        }
    }

    /// The file that a program must have loaded; `None`: the system's.
    pub fn library(&self, side: Side) -> Option<PathBuf> {
        let folder = match side {
            side if side.is_ours() => self.ours.as_ref(),
            side if side.is_llvm() => self.llvm.as_ref(),
            _ => return None,
        };
        fs::canonicalize(folder.ok()?.join("libgomp.so.1")).ok()
    }

    /// Lets a command run with the runtime, so many threads, and no other setting that the caller's environment has.
    pub fn set(&self, command: &mut Command, side: Side, threads: usize) {
        for (name, _) in std::env::vars_os() {
            if concerns_openmp(&name) {
                command.env_remove(name);
            }
        }
        let folder = match side {
            side if side.is_ours() => self.ours.as_ref().ok(),
            side if side.is_llvm() => self.llvm.as_ref().ok(),
            _ => None,
        };
        if let Some(folder) = folder {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command.env("OMP_NUM_THREADS", threads.to_string());
        if let Some((name, value)) = side.setting() {
            command.env(name, value);
        }
    }
}

fn concerns_openmp(variable: &OsString) -> bool {
    let name = variable.to_string_lossy();
    ["OMP_", "GOMP_", "KMP_", "AMDAHL_", "LD_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// LLVM's runtime, the newest one.
fn libomp() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix("llvm-")?.parse().ok()?;
            Some((version, entry.path().join("lib/libomp.so.5")))
        })
        .collect();
    let triple = format!("/usr/lib/{}-linux-gnu/libomp.so.5", std::env::consts::ARCH);
    let others = ["/usr/lib64/libomp.so", "/usr/lib/libomp.so", &triple];
    found.extend(others.map(|path| (0, path.into())));
    found.retain(|(_, path)| path.exists());
    found.into_iter().max().map(|(_, path)| path)
}
