//! Names of generated code, from the `/tmp/perf-PID.map` that a JIT compiler writes.
//!
//! The file is the workload's: it is read in bounds, never through a symbolic link.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes read of one map.
const MAP_BYTES_MAX: u64 = 64 << 20;
const ENTRIES_MAX: usize = 1 << 20;
/// No compiler emits a larger function.
const CODE_BYTES_MAX: u64 = 64 << 20;
const NAME_BYTES_MAX: usize = 1024;

/// The generated functions of one process.
#[derive(Debug, Default)]
pub(super) struct PerfMap {
    path: Option<PathBuf>,
    inode: u64,
    bytes_read: u64,
    /// A line that was not complete at the last read.
    rest: Vec<u8>,
    /// Start to end and name, not overlapping: later code replaces earlier code.
    functions: BTreeMap<u64, (u64, Arc<str>)>,
}

impl PerfMap {
    /// The name of the function at `address`, reading what was appended to the map
    /// since the last time.
    pub(super) fn name(&mut self, pid: u32, address: u64) -> Option<Arc<str>> {
        if let Some(name) = self.find(address) {
            return Some(name);
        }
        self.refresh(pid)?;
        self.find(address)
    }

    fn find(&self, address: u64) -> Option<Arc<str>> {
        let (_, (end, name)) = self.functions.range(..=address).next_back()?;
        (address < *end).then(|| name.clone())
    }

    /// `None` when there is nothing new.
    fn refresh(&mut self, pid: u32) -> Option<()> {
        let path = match &self.path {
            Some(path) => path.clone(),
            None => candidates(pid)
                .into_iter()
                .find(|path| is_plain_file(path))?,
        };
        let metadata = std::fs::symlink_metadata(&path)
            .ok()
            .filter(std::fs::Metadata::is_file)?;
        if metadata.ino() != self.inode || metadata.len() < self.bytes_read {
            *self = PerfMap {
                inode: metadata.ino(),
                ..PerfMap::default()
            };
        }
        if metadata.len() == self.bytes_read || self.bytes_read >= MAP_BYTES_MAX {
            return None;
        }
        let mut file = open(&path)?;
        file.seek(SeekFrom::Start(self.bytes_read)).ok()?;
        let mut text = std::mem::take(&mut self.rest);
        let read = file
            .take(MAP_BYTES_MAX - self.bytes_read)
            .read_to_end(&mut text)
            .ok()?;
        self.bytes_read += read as u64;
        self.path = Some(path);
        self.append(text);
        Some(())
    }

    pub(super) fn append(&mut self, mut text: Vec<u8>) {
        let complete = text
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in text[..complete].split(|&byte| byte == b'\n') {
            if let Some((start, end, name)) = parse(line) {
                self.insert(start, end, name);
            }
        }
        text.drain(..complete);
        if text.len() <= 4 * NAME_BYTES_MAX {
            self.rest = text;
        }
    }

    fn insert(&mut self, start: u64, end: u64, name: Arc<str>) {
        while let Some((&other, _)) = self
            .functions
            .range(..end)
            .next_back()
            .filter(|(_, (until, _))| *until > start)
        {
            self.functions.remove(&other);
        }
        if self.functions.len() < ENTRIES_MAX {
            self.functions.insert(start, (end, name));
        }
    }
}

/// `START SIZE name`, in hexadecimal.
fn parse(line: &[u8]) -> Option<(u64, u64, Arc<str>)> {
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let text = std::str::from_utf8(fields.next()?).ok()?;
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
    };
    let (start, len) = (number()?, number()?);
    let name = plain(fields.next()?.trim_ascii());
    if len == 0 || len > CODE_BYTES_MAX || name.is_empty() {
        return None;
    }
    let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES_MAX)]);
    let name: String = name
        .chars()
        .filter(|character| !character.is_control())
        .collect();
    Some((start, start.checked_add(len)?, name.into()))
}

/// `a.b.C.f` of Java's `void a.b.C.f(int, java.lang.Object)`; other names as they are.
fn plain(name: &[u8]) -> &[u8] {
    let call = name.strip_suffix(b")").and_then(|rest| {
        let mut words = rest
            .split(|&byte| byte == b'(')
            .next()?
            .split(|&byte| byte == b' ');
        let (result, method) = (words.next()?, words.next()?);
        let is_method = !result.is_empty() && method.contains(&b'.') && words.next().is_none();
        is_method.then_some(method)
    });
    call.unwrap_or(name)
}

fn candidates(pid: u32) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    if let Some(inner) = innermost_pid(pid) {
        candidates.push(format!("/proc/{pid}/root/tmp/perf-{inner}.map").into());
    }
    candidates.push(format!("/tmp/perf-{pid}.map").into());
    candidates
}

/// The id that the process knows itself by, inside a container.
fn innermost_pid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().next_back()?.parse().ok()
}

fn is_plain_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

fn open(path: &Path) -> Option<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(text: &str) -> PerfMap {
        let mut map = PerfMap::default();
        map.append(text.as_bytes().to_vec());
        map
    }

    #[test]
    fn later_code_replaces_earlier_code() {
        let map = map("1000 100 old one\n2000 10 other\n0x10f0 20 new\n");
        assert_eq!(map.find(0x10f8).as_deref(), Some("new"));
        assert_eq!(map.find(0x1000), None, "old code was overwritten in part");
        assert_eq!(map.find(0x200f).as_deref(), Some("other"));
        assert_eq!(map.find(0x2010), None);
    }

    #[test]
    fn a_line_may_arrive_in_two_pieces() {
        let mut map = map("1000 100 com.acme.Po");
        assert_eq!(map.find(0x1000), None);
        let mut text = std::mem::take(&mut map.rest);
        text.extend_from_slice(b"ol.run\n");
        map.append(text);
        assert_eq!(map.find(0x1000).as_deref(), Some("com.acme.Pool.run"));
    }

    #[test]
    fn java_methods_lose_result_and_parameters() {
        for (name, expected) in [
            ("void a.b.C.f(int, java.lang.Object)", "a.b.C.f"),
            ("long P.lambda$main$0(int[])", "P.lambda$main$0"),
            ("void a.C$D.<init>()", "a.C$D.<init>"),
            ("Interpreter", "Interpreter"),
            ("StubRoutines (1)", "StubRoutines (1)"),
            ("LazyCompile:*f /a b.js:1", "LazyCompile:*f /a b.js:1"),
            ("a(b)", "a(b)"),
            ("(", "("),
            (")", ")"),
            ("( )", "( )"),
        ] {
            assert_eq!(plain(name.as_bytes()), expected.as_bytes(), "{name}");
        }
    }

    #[test]
    fn nonsense_is_left_out() {
        let map = map(
            "0 ffffffffffffffff all\nffffffffffffffff 2 wraps\nx y z\n10 0 empty\n20 5\n30 5 \n",
        );
        assert!(map.functions.is_empty());
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "1000 100 stolen\n").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(is_plain_file(&target) && !is_plain_file(&link));
        assert!(open(&target).is_some() && open(&link).is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_read(pieces in prop::collection::vec("([0-9a-f]{1,4} [0-9a-f]{1,3} [a-z]{0,3}|[ -~]{0,20})\n?", 0..30)) {
            let mut map = PerfMap::default();
            for piece in pieces {
                let mut text = std::mem::take(&mut map.rest);
                text.extend_from_slice(piece.as_bytes());
                map.append(text);
            }
            let ends: Vec<u64> = map.functions.values().map(|(end, _)| *end).collect();
            for (start, end) in map.functions.keys().skip(1).zip(&ends) {
                prop_assert!(end <= start);
            }
        }
    }
}
