//! Separate debug files, by build id and by `.gnu_debuglink`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{Bytes, Layout};
use super::module::{open, with_elf};

const DEBUG_ROOT: &str = "/usr/lib/debug";
/// A larger file is not read through for its checksum.
const CHECKED_BYTES_MAX: u64 = 1 << 30;

/// The debug file of the module at `path`, if it is installed and belongs to it.
pub(super) fn find(path: &Path, layout: &Layout) -> Option<PathBuf> {
    candidates(path, layout)
        .into_iter()
        .find(|candidate| belongs(candidate, layout))
}

fn candidates(path: &Path, layout: &Layout) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    if let [first, rest @ ..] = layout.build_id.as_slice()
        && !rest.is_empty()
    {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        candidates.push(format!("{DEBUG_ROOT}/.build-id/{first:02x}/{rest}.debug").into());
    }
    if let Some((name, _)) = &layout.debug_link
        && let Some(folder) = path.parent()
    {
        // Only the last component: the name comes out of an untrusted file.
        if let Some(name) = Path::new(OsStr::from_bytes(name)).file_name() {
            candidates.push(folder.join(name));
            candidates.push(folder.join(".debug").join(name));
            if let Ok(folder) = folder.strip_prefix("/") {
                candidates.push(Path::new(DEBUG_ROOT).join(folder).join(name));
            }
        }
    }
    candidates.retain(|candidate| candidate != path);
    candidates
}

fn belongs(candidate: &Path, layout: &Layout) -> bool {
    let Some(file) = open(candidate) else {
        return false;
    };
    if !layout.build_id.is_empty() {
        return with_elf(Bytes::file(file), |elf| elf.build_id()) == Some(layout.build_id.clone());
    }
    let Some((_, expected)) = layout.debug_link else {
        return false;
    };
    checksum(file) == Some(expected)
}

fn checksum(file: std::fs::File) -> Option<u32> {
    if file.metadata().ok()?.len() > CHECKED_BYTES_MAX {
        return None;
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    let mut file = file.take(CHECKED_BYTES_MAX);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(hasher.finalize()),
            len => hasher.update(&buffer[..len]),
        }
    }
}
