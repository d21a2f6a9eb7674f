//! Huge pages that are reserved for a while, so that memory of hugetlb can be measured and tested where none are.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::BLOCK;

/// How many of 2 MiB the machine keeps.
const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Reserves, says how many it got, waits until nobody holds its input open, and gives exactly those back. Whoever does the same
/// at the same time waits for the lock, and counts from what is there.
const GUARD: &str = r#"
trap '' INT TERM HUP
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
        let guard = Command::new("sh")
            .args(["-c", GUARD, file, &pages.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A Ctrl-C is for us.
            .process_group(0)
            .spawn();
        let mut reserved = Reserved {
            guard: guard.map_err(|error| format!("sh: {error}"))?,
        };
        let mut line = String::new();
        let said = reserved.guard.stdout.take();
        said.and_then(|said| BufReader::new(said).read_line(&mut line).ok());
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
