//! Whose a folder is, by its name: what a bench left that was killed is removed by the next one.

use std::fs;
use std::path::{Path, PathBuf};

const PREFIX: &str = "amdahl-bench-openmp-";

/// A name that no other process has, now or later.
///
/// # Errors
/// `/proc` cannot be read.
pub fn name() -> Result<String, String> {
    let me = std::process::id();
    let started = start_time(me).ok_or("/proc cannot be read")?;
    Ok(format!("{PREFIX}{me}-{started}"))
}

/// What lies in a folder and has a name of a process that has ended.
pub fn left_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let left = entries.filter_map(|entry| {
        let (pid, started) = owner(entry.file_name().to_str()?)?;
        (start_time(pid) != Some(started)).then(|| entry.path())
    });
    left.collect()
}

/// In clock ticks after the machine's start.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit(')').next()?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

fn owner(name: &str) -> Option<(u32, u64)> {
    let (pid, started) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some((pid.parse().ok()?, started.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_whose_it_is() {
        assert_eq!(owner("amdahl-bench-openmp-17-4711"), Some((17, 4711)));
        assert_eq!(owner("amdahl-bench-openmp-17"), None);
        assert_eq!(owner("amdahl-17-4711"), None);
        assert_eq!(owner(&name().unwrap()).unwrap().0, std::process::id());
    }

    #[test]
    fn what_the_dead_left_is_found_and_what_the_living_have_is_not() {
        let folder = tempfile::tempdir().unwrap();
        // No process of this number started then.
        let dead = format!("{PREFIX}{}-0", std::process::id());
        for name in [&dead, &name().unwrap(), "amdahl-1-0"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(left_in(folder.path()), [folder.path().join(dead)]);
    }
}
