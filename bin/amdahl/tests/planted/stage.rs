//! Builds the planted programs and puts them, and the tool, where the user who runs them may
//! read them and write beside them.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::cases::Case;

/// The unprivileged user and group, `nobody` by convention.
pub const NOBODY: u32 = 65534;

/// Where everything lies that is started.
#[derive(Debug)]
pub struct Stage {
    /// The tool.
    pub tool: PathBuf,
    /// Folder of the planted programs.
    pub planted: PathBuf,
    /// A copy of both for somebody else, removed at the end.
    copy: Option<TempDir>,
}

/// Builds all planted programs for which there is a compiler into `planted`.
pub fn build(source: &Path, planted: &Path) -> Result<(), String> {
    let script = source.join("build.sh");
    let status = Command::new(&script)
        .arg(planted)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {}: {error}", script.display()))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", script.display()))
    }
}

/// The OpenMP runtime among the planted programs.
const LIBGOMP: &str = "libgomp.so.1";

/// Puts our OpenMP runtime beside the planted programs: where the variable says, of the same build as the tool, or the one that `make` has
/// made. One of before is taken away, so that no case is run with it.
pub fn bring_libgomp(tool: &Path, planted: &Path) -> io::Result<()> {
    let place = planted.join(LIBGOMP);
    let folder = tool.parent().unwrap_or(Path::new("/"));
    let named = std::env::var_os("AMDAHL_LIBGOMP").map(PathBuf::from);
    let built = ["openmp", "../release/openmp"].map(|place| folder.join(place).join(LIBGOMP));
    let found = match named {
        Some(path) => Some(path),
        None => built.into_iter().find(|path| path.is_file()),
    };
    match fs::remove_file(&place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Some(path) = found {
        fs::copy(path, place)?;
    }
    Ok(())
}

/// Why a case cannot be run here.
pub fn obstacle(case: &Case, planted: &Path) -> Option<String> {
    if case.needs_root && !rustix::process::geteuid().is_root() {
        return Some("it takes root to set up".to_owned());
    }
    if case.needs_libgomp && !planted.join(LIBGOMP).is_file() {
        return Some(format!("our {LIBGOMP} is not built"));
    }
    let compiler = match &*case.lang {
        "c" => "gcc",
        "cpp" => "g++",
        "rust" => "rustc",
        "java" => "javac",
        other => other,
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = std::env::split_paths(&path).any(|folder| folder.join(compiler).is_file());
    (!planted.join(case.bin()).exists() && !is_here).then(|| format!("there is no {compiler}"))
}

impl Stage {
    /// Everything is started as the user we are.
    pub fn of_this_user(tool: PathBuf, planted: PathBuf) -> Stage {
        Stage {
            tool,
            planted,
            copy: None,
        }
    }

    /// Everything is started as an unprivileged user. Needs root.
    pub fn of_nobody(tool: &Path, planted: &Path) -> io::Result<Stage> {
        // Beside the originals, because some cases depend on the disk.
        let copy = owned_by_nobody(
            tempfile::Builder::new()
                .prefix("unprivileged-")
                .tempdir_in(planted)?,
        )?;
        for entry in fs::read_dir(planted)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let (from, to) = (entry.path(), copy.path().join(entry.file_name()));
                fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop))?;
            }
        }
        let tool_copy = copy.path().join("amdahl");
        fs::copy(tool, &tool_copy)?;
        // The tool looks for its library beside itself.
        let folder = tool.parent().unwrap_or(Path::new("/"));
        let library = [folder.to_owned(), folder.join("deps")]
            .map(|folder| folder.join("libamdahl_preload.so"))
            .into_iter()
            .find(|library| library.is_file());
        if let Some(library) = library {
            fs::copy(library, copy.path().join("libamdahl_preload.so"))?;
        }
        Ok(Stage {
            tool: tool_copy,
            planted: copy.path().to_owned(),
            copy: Some(copy),
        })
    }

    /// The tool is to be started as [`NOBODY`].
    pub fn drops_privileges(&self) -> bool {
        self.copy.is_some()
    }

    /// A folder for one run that its user may write to.
    pub fn scratch(&self) -> io::Result<TempDir> {
        let scratch = tempfile::Builder::new()
            .prefix("amdahl-planted-")
            .tempdir()?;
        if self.drops_privileges() {
            owned_by_nobody(scratch)
        } else {
            Ok(scratch)
        }
    }
}

fn owned_by_nobody(folder: TempDir) -> io::Result<TempDir> {
    chown(folder.path(), Some(NOBODY), Some(NOBODY))?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}
