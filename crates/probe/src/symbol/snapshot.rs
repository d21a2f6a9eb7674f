//! `/proc/PID/maps`.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Far beyond what `vm.max_map_count` allows by default.
const MAPS_BYTES_MAX: u64 = 64 << 20;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) file_offset: u64,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Empty for anonymous memory.
    pub(super) path: PathBuf,
}

/// The whole file.
pub(super) fn read(pid: u32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(format!("/proc/{pid}/maps"))?
        .take(MAPS_BYTES_MAX)
        .read_to_end(&mut text)?;
    if text.is_empty() {
        // A zombie or a kernel thread has no address space.
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    Ok(text)
}

/// The lines of executable mappings; lines that do not parse are left out.
pub(super) fn executable(text: &[u8]) -> impl Iterator<Item = Line> {
    text.split(|&byte| byte == b'\n').filter_map(parse)
}

fn parse(line: &[u8]) -> Option<Line> {
    // 7f5c0e000000-7f5c0e021000 r-xp 00002000 fe:00 247026    /usr/bin/cat
    let mut rest = line;
    let mut field = || {
        let end = rest
            .iter()
            .position(|&byte| byte == b' ')
            .unwrap_or(rest.len());
        let (head, tail) = rest.split_at(end);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        std::str::from_utf8(head).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let permissions = field()?;
    let file_offset = u64::from_str_radix(field()?, 16).ok()?;
    let (major, minor) = field()?.split_once(':')?;
    let major = u32::from_str_radix(major, 16).ok()?;
    let minor = u32::from_str_radix(minor, 16).ok()?;
    let inode = field()?.parse().ok()?;
    if start >= end || permissions.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let path = unescape(rest.trim_ascii_start());
    Some(Line {
        start,
        end,
        file_offset,
        device: libc::makedev(major, minor),
        inode,
        path: PathBuf::from(OsString::from_vec(path)),
    })
}

/// The kernel writes a newline in a path as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    #[test]
    fn paths_with_blanks_and_newlines_survive() {
        let text =
            b"00400000-00401000 r-xp 00001000 fe:00 12                 /tmp/a b\\012c (deleted)\n\
            00500000-00501000 r--p 00000000 fe:00 12 /tmp/data\n\
            7f00000000-7f00001000 rwxp 00000000 00:00 0 \n";
        let lines: Vec<Line> = executable(text).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].path, Path::new("/tmp/a b\nc (deleted)"));
        assert_eq!(
            (
                lines[0].start,
                lines[0].end,
                lines[0].device,
                lines[0].inode
            ),
            (0x400000, 0x401000, libc::makedev(0xfe, 0), 12)
        );
        assert_eq!(lines[1].path, Path::new(""));
    }

    #[test]
    fn own_code_is_found() {
        let text = read(std::process::id()).unwrap();
        let here = own_code_is_found as *const () as u64;
        let line = executable(&text)
            .find(|line| (line.start..line.end).contains(&here))
            .unwrap();
        assert_eq!(line.path, std::env::current_exe().unwrap());
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in prop::collection::vec(any::<u8>(), 0..400)) {
            executable(&text).count();
        }

        #[test]
        fn damaged_lines_are_read(at in 0_usize..60, byte in any::<u8>()) {
            let mut text = b"00400000-00401000 r-xp 00001000 fe:00 12                 /tmp/a".to_vec();
            let at = at % text.len();
            text[at] = byte;
            executable(&text).count();
        }
    }
}
