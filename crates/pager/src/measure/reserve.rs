//! Huge pages for a while: reserved ones, and those that shared memory may get, so that both can be measured and tested where there are none.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::BLOCK;

/// How many of 2 MiB the machine keeps.
const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Reserves, says how many it got, waits until nobody holds its input open, and gives exactly those back. Whoever does the same
/// at the same time waits for the lock, and counts from what is there.
const GUARD: &str = r#"
trap '' INT TERM HUP PIPE
exec 9<"$0" || exit 1
flock 9
before=$(cat "$0")
echo $((before + $1)) >"$0"
got=$(($(cat "$0") - before))
flock -u 9
echo "$got"
read -r _
flock 9
left=$(($(cat "$0") - got))
echo $((left > 0 ? left : 0)) >"$0"
"#;

/// What transparent huge pages shared memory may get.
const SHARED_FILE: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Sets `advise` unless more is set, says `yes`, waits until nobody holds its input open, and sets what was there before. Whoever wants the same at the
/// same time waits for the lock until then.
const SHARED_GUARD: &str = r#"
trap '' INT TERM HUP PIPE
exec 9<"$0" || exit 1
flock 9
chosen() { sed 's/.*\[\(.*\)\].*/\1/' "$0"; }
before=$(chosen)
case $before in
always|within_size|advise|force) echo yes; read -r _; exit;;
esac
echo advise >"$0"
[ "$(chosen)" = advise ] && echo yes || echo no
read -r _
echo "$before" >"$0"
"#;

/// Transparent huge pages for shared memory that asks for them ([`Backing::SharedHuge`](crate::Backing::SharedHuge)), where the system gives it none. What was
/// set before is set again when this is dropped, or when the process ends, however it does.
#[derive(Debug)]
pub struct SharedHugePages {
    guard: Child,
}

impl SharedHugePages {
    /// Has the system give them. Needs root; waits for others who have it do so.
    ///
    /// # Errors
    /// Why not, for people. Nothing has changed then.
    pub fn new() -> Result<SharedHugePages, String> {
        let guarded = SharedHugePages::in_file(SHARED_FILE)?;
        match crate::sys::huge::is_for_shared() {
            true => Ok(guarded),
            false => Err("shared memory gets no huge pages of any size, whatever shmem_enabled says: see /sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled".to_owned()),
        }
    }

    fn in_file(file: &str) -> Result<SharedHugePages, String> {
        let (guard, line) = guard(SHARED_GUARD, &[file])?;
        let guarded = SharedHugePages { guard };
        match line.trim() {
            "yes" => Ok(guarded),
            _ => Err(format!(
                "{file} cannot be set to `advise`: it needs root, a kernel with huge pages for shared memory, and flock (util-linux)"
            )),
        }
    }
}

impl Drop for SharedHugePages {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// A process that does something, says a line, and undoes it when its input is closed.
fn guard(script: &str, arguments: &[&str]) -> Result<(Child, String), String> {
    let guard = Command::new("sh")
        .arg("-c")
        .arg(script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // A Ctrl-C is for us.
        .process_group(0)
        .spawn();
    let mut guard = guard.map_err(|error| format!("sh: {error}"))?;
    let mut line = String::new();
    let said = guard.stdout.take();
    said.and_then(|said| BufReader::new(said).read_line(&mut line).ok());
    Ok((guard, line))
}

/// Huge pages of 2 MiB that this process has had the machine reserve. They are given back when this is dropped, or when the process ends, however
/// it does: a process of its own (`sh`) does that.
#[derive(Debug)]
pub struct Reserved {
    guard: Child,
}

impl Reserved {
    /// Has so many bytes more of huge pages reserved. Needs root, and memory that is not too fragmented.
    ///
    /// # Errors
    /// Why not, for people. Nothing has changed then.
    pub fn new(bytes: usize) -> Result<Reserved, String> {
        Reserved::in_file(FILE, bytes.div_ceil(BLOCK))
    }

    fn in_file(file: &str, pages: usize) -> Result<Reserved, String> {
        let (guard, line) = guard(GUARD, &[file, &pages.to_string()])?;
        let reserved = Reserved { guard };
        match line.trim().parse::<usize>() {
            Ok(got) if got >= pages => Ok(reserved),
            Ok(got) => Err(format!(
                "{got} of {pages} huge pages of 2 MiB could be reserved in {file}: it needs root, and so much free memory in one piece"
            )),
            Err(_) => Err(format!(
                "no huge pages can be reserved in {file}: it needs root and flock (util-linux)"
            )),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_shared_memory_may_get_is_set_back_and_more_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shmem_enabled");
        let name = file.to_str().unwrap();
        let text = |chosen: &str| {
            let words = ["always", "within_size", "advise", "never", "deny", "force"];
            let bracketed = words.map(|word| match word == chosen {
                true => format!("[{word}]"),
                false => word.to_owned(),
            });
            bracketed.join(" ")
        };
        for chosen in ["always", "within_size", "advise", "force"] {
            fs::write(&file, text(chosen)).unwrap();
            drop(SharedHugePages::in_file(name).unwrap());
            assert_eq!(fs::read_to_string(&file).unwrap(), text(chosen));
        }
        // A file has what is written to it.
        fs::write(&file, text("never")).unwrap();
        let guarded = SharedHugePages::in_file(name).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "advise\n");
        drop(guarded);
        assert_eq!(fs::read_to_string(&file).unwrap(), "never\n");
        assert!(SharedHugePages::in_file("/nowhere/shmem_enabled").is_err());
        assert!(SharedHugePages::in_file("/dev/null").is_err());
    }

    #[test]
    fn what_was_reserved_is_given_back_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nr_hugepages");
        fs::write(&file, "3\n").unwrap();
        let number = || fs::read_to_string(&file).unwrap().trim().to_owned();
        let name = file.to_str().unwrap();
        let one = Reserved::in_file(name, 4).unwrap();
        let other = Reserved::in_file(name, 10).unwrap();
        assert_eq!(number(), "17");
        drop(one);
        assert_eq!(number(), "13");
        // Whoever holds the input is killed: the guard does not need him.
        let mut guard = other;
        drop(guard.guard.stdin.take());
        guard.guard.wait().unwrap();
        assert_eq!(number(), "3");
        assert!(Reserved::in_file("/nowhere/nr_hugepages", 1).is_err());
        assert!(Reserved::in_file("/dev/null", 1).is_err());
    }
}
