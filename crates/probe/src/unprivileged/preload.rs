//! What the preload library recorded, and where the library is.
//!
//! `libamdahl_preload.so` times the pthread waits of the programs that load it, each
//! process into a file of its own (layout: `abi/preload/src/region.rs`). The files are
//! written by the measured programs, so nothing in them is trusted: every length is
//! checked against the file, and nonsense is left out.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use amdahl_speedup::snapshot::{ProcessWaits, UserWait, WaitKind, WaitTotal};
use rustc_hash::FxHashMap;

/// Environment variable that tells the library where its files go.
pub const DIR_VARIABLE: &str = "AMDAHL_PRELOAD_DIR";
/// Environment variable that says where the library is.
pub const LIBRARY_VARIABLE: &str = "AMDAHL_PRELOAD";
/// File name of the library.
pub const LIBRARY: &str = "libamdahl_preload.so";

const MAGIC: u64 = u64::from_le_bytes(*b"AMDHLWT\x01");
const HEADER_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 64;
/// The kinds begin here in the header: a count and nanoseconds for each of them.
const KINDS_OFFSET: usize = 64;
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Processes of one run.
const FILES_MAX: usize = 65_536;
/// Episodes kept of all processes of one run together.
const WAITS_MAX: usize = 1 << 20;

/// What may go wrong with the files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreloadError {
    /// A file or the folder could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The bytes are not a file of the library.
    #[error("not a record of waits: {0}")]
    Format(&'static str),
}

/// All records of a run.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// One per process image.
    pub processes: Vec<ProcessWaits>,
    /// Files that could not be read or understood.
    pub damaged: u64,
    /// Files or episodes beyond the limits.
    pub left_out: u64,
}

/// Reads all `*.waits` of `dir`.
pub fn read_dir(dir: &Path) -> Result<Records, PreloadError> {
    let error = |source| PreloadError::Read {
        path: dir.to_path_buf(),
        source,
    };
    let mut records = Records::default();
    let mut waits = 0;
    for (number, entry) in fs::read_dir(dir).map_err(error)?.enumerate() {
        let path = entry.map_err(error)?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != "waits")
        {
            continue;
        }
        if number >= FILES_MAX {
            records.left_out += 1;
            continue;
        }
        match read_file(&path) {
            Ok(mut process) => {
                let room = WAITS_MAX - waits;
                if process.waits.len() > room {
                    // The newest are last, and the ones in progress after them.
                    let over = process.waits.len() - room;
                    process.waits.drain(..over);
                    records.left_out += over as u64;
                }
                waits += process.waits.len();
                records.processes.push(process);
            }
            Err(_) => records.damaged += 1,
        }
    }
    records
        .processes
        .sort_by_key(|process| (process.started, process.pid));
    Ok(records)
}

/// Reads the record of one process, which may still be running.
pub fn read_file(path: &Path) -> Result<ProcessWaits, PreloadError> {
    let error = |source| PreloadError::Read {
        path: path.to_path_buf(),
        source,
    };
    // The folder is open to the measured programs: a link or a pipe in it is not followed.
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(error)?;
    if !file.metadata().map_err(error)?.is_file() {
        return Err(PreloadError::Format("no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(error)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(PreloadError::Format("too large"));
    }
    parse(&bytes)
}

/// A field of the file at a byte offset; zero beyond its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).map_or(0, |bytes| {
            u32::from_ne_bytes(bytes.try_into().unwrap_or_default())
        })
    }

    fn u64(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).map_or(0, |bytes| {
            u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
        })
    }
}

fn kind(number: u32) -> Option<WaitKind> {
    Some(match number {
        1 => WaitKind::Mutex,
        2 => WaitKind::RwlockRead,
        3 => WaitKind::RwlockWrite,
        4 => WaitKind::Condition,
        5 => WaitKind::Semaphore,
        6 => WaitKind::Barrier,
        7 => WaitKind::Join,
        8 => WaitKind::Spin,
        _ => return None,
    })
}

/// The record in `bytes`, as it was at the moment they were read.
pub fn parse(bytes: &[u8]) -> Result<ProcessWaits, PreloadError> {
    if bytes.len() < HEADER_BYTES {
        return Err(PreloadError::Format("shorter than its header"));
    }
    let header = Bytes(&bytes[..HEADER_BYTES]);
    if header.u64(0) != MAGIC {
        return Err(PreloadError::Format("wrong magic, version or byte order"));
    }
    if header.u32(8) as usize != HEADER_BYTES || header.u32(12) as usize != ENTRY_BYTES {
        return Err(PreloadError::Format("unknown layout"));
    }
    let [live_len, table_len, ring_len] = [20, 24, 28].map(|at| header.u32(at) as usize);
    let entries = [live_len, table_len, ring_len]
        .iter()
        .try_fold(0_usize, |sum, &len| sum.checked_add(len));
    let needed = entries.and_then(|entries| entries.checked_mul(ENTRY_BYTES));
    if needed.is_none_or(|needed| needed > bytes.len() - HEADER_BYTES) {
        return Err(PreloadError::Format("shorter than its tables"));
    }
    let episodes = header.u64(40);
    let mut record = ProcessWaits {
        pid: header.u32(16),
        started: header.u64(32),
        untabled: header.u64(48),
        ..ProcessWaits::default()
    };
    for (number, kind) in (0..16).filter_map(|number| Some((number, kind(number)?))) {
        let at = KINDS_OFFSET + number as usize * 16;
        let (count, ns) = (header.u64(at), header.u64(at + 8));
        if count > 0 {
            record.by_kind.push((kind, count, ns));
        }
    }
    let mut sections = &bytes[HEADER_BYTES..];
    let mut section = |len: usize| {
        let (head, tail) = sections.split_at(len * ENTRY_BYTES);
        sections = tail;
        head.chunks_exact(ENTRY_BYTES).map(Bytes)
    };
    let live: Vec<UserWait> = section(live_len)
        .filter_map(|entry| in_progress(&entry))
        .collect();
    let mut totals: FxHashMap<(WaitKind, u64, u64), WaitTotal> = FxHashMap::default();
    for total in section(table_len).filter_map(|entry| total(&entry)) {
        // One key may have two entries, made by two threads at once.
        totals
            .entry((total.kind, total.object, total.caller))
            .and_modify(|sum| {
                sum.count = sum.count.saturating_add(total.count);
                sum.ns = sum.ns.saturating_add(total.ns);
                sum.max_ns = sum.max_ns.max(total.max_ns);
            })
            .or_insert(total);
    }
    record.totals = totals.into_values().collect();
    record
        .totals
        .sort_by_key(|total| (std::cmp::Reverse(total.ns), total.object, total.caller));
    let oldest = episodes.saturating_sub(ring_len as u64);
    let mut numbered: Vec<(u64, UserWait)> = section(ring_len)
        .enumerate()
        .filter_map(|(slot, entry)| {
            let number = entry.u64(0).checked_sub(1)?;
            let belongs = number % ring_len as u64 == slot as u64;
            let is_kept = number >= oldest && number < episodes;
            (belongs && is_kept).then_some((number, episode(&entry)?))
        })
        .collect();
    numbered.sort_by_key(|(number, _)| *number);
    record.waits = numbered.into_iter().map(|(_, wait)| wait).collect();
    record.overwritten = oldest;
    record.waits.extend(live);
    Ok(record)
}

fn in_progress(entry: &Bytes<'_>) -> Option<UserWait> {
    let tid = entry.u32(0);
    if tid == 0 || tid > i32::MAX as u32 {
        return None;
    }
    Some(UserWait {
        tid,
        kind: kind(entry.u32(4))?,
        start: entry.u64(8),
        object: entry.u64(16),
        caller: entry.u64(24),
        end: None,
    })
}

fn total(entry: &Bytes<'_>) -> Option<WaitTotal> {
    const READY: u32 = 2;
    if entry.u32(0) != READY {
        return None;
    }
    let total = WaitTotal {
        kind: kind(entry.u32(4))?,
        object: entry.u64(8),
        caller: entry.u64(16),
        count: entry.u64(24),
        ns: entry.u64(32),
        max_ns: entry.u64(40),
    };
    (total.count > 0).then_some(total)
}

fn episode(entry: &Bytes<'_>) -> Option<UserWait> {
    let (start, end) = (entry.u64(8), entry.u64(16));
    if end < start {
        return None;
    }
    Some(UserWait {
        start,
        end: Some(end),
        object: entry.u64(24),
        caller: entry.u64(32),
        tid: entry.u32(40),
        kind: kind(entry.u32(44))?,
    })
}

/// Entry for fuzzing: any bytes at all.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(record) = parse(bytes) {
        assert!(record.totals.len() + record.waits.len() <= bytes.len() / ENTRY_BYTES);
    }
}

/// Where the library is: `AMDAHL_PRELOAD`, beside the running executable, beside it in `deps`
/// (as cargo lays it out for tests), or in `../lib/amdahl`.
pub fn library() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok();
    let beside = executable.as_deref().and_then(Path::parent);
    find_library(std::env::var_os(LIBRARY_VARIABLE), beside)
}

fn find_library(named: Option<OsString>, beside: Option<&Path>) -> Option<PathBuf> {
    // Said to be somewhere and not there: better no library than another one.
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return (named.is_absolute() && named.is_file()).then_some(named);
    }
    let beside = beside?;
    [
        beside.join(LIBRARY),
        beside.join("../lib/amdahl").join(LIBRARY),
        beside.join("deps").join(LIBRARY),
        beside.join("..").join(LIBRARY),
    ]
    .into_iter()
    .find(|path| path.is_file())
    .and_then(|path| path.canonicalize().ok())
}

/// `LD_PRELOAD` with `library` in front of what is there already.
///
/// The dynamic linker separates by spaces and colons and knows no quoting, so a library whose
/// path holds one of them cannot be preloaded: `None`.
pub fn ld_preload(library: &Path, before: Option<OsString>) -> Option<OsString> {
    let path = library.as_os_str();
    if path
        .as_encoded_bytes()
        .iter()
        .any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n'))
    {
        return None;
    }
    let mut value = path.to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Some(value)
}

/// Whether a program takes a preloaded library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covers {
    /// It is linked dynamically against this machine's own libc.
    Yes,
    /// It is a script or nothing known: what it starts may.
    Unknown,
    /// It is linked statically: its waits cannot be seen.
    Static,
    /// It uses another dynamic linker (musl) or is of another machine, which may refuse to start
    /// with the library: do not preload.
    Foreign,
    /// It gets rights that its user does not have: its dynamic linker takes no library from the environment.
    Privileged,
}

/// A set-user-ID or set-group-ID program of somebody else, or one with capabilities of its own.
fn gains_rights(program: &Path) -> bool {
    let Ok(file) = fs::metadata(program) else {
        return false;
    };
    let [owner, group] = [libc::S_ISUID, libc::S_ISGID | libc::S_IXGRP];
    let has = |bits: u32| file.mode() & bits == bits;
    let uid = rustix::process::geteuid();
    // Root has all capabilities already.
    let gains_capabilities = || {
        let mut value = [0; 64];
        let size = rustix::fs::getxattr(program, "security.capability", &mut value[..]);
        !uid.is_root() && size.is_ok_and(|size| size > 0)
    };
    (has(owner) && file.uid() != uid.as_raw())
        || (has(group) && file.gid() != rustix::process::getegid().as_raw())
        || gains_capabilities()
}

/// Looks at the ELF header of `program`.
pub fn covers(program: &Path) -> Covers {
    use object::elf::{ET_DYN, ET_EXEC, FileHeader64, PT_INTERP};
    use object::read::elf::{FileHeader, ProgramHeader};
    let mut bytes = Vec::new();
    let read = File::open(program).and_then(|file| file.take(1 << 16).read_to_end(&mut bytes));
    if read.is_err() || !bytes.starts_with(b"\x7fELF") {
        return Covers::Unknown;
    }
    let Ok(header) = FileHeader64::<object::Endianness>::parse(&*bytes) else {
        return Covers::Foreign;
    };
    let Ok(endian) = header.endian() else {
        return Covers::Foreign;
    };
    let machine = if cfg!(target_arch = "aarch64") {
        object::elf::EM_AARCH64
    } else {
        object::elf::EM_X86_64
    };
    let kind = header.e_type.get(endian);
    if header.e_machine.get(endian) != machine || (kind != ET_EXEC && kind != ET_DYN) {
        return Covers::Foreign;
    }
    let Ok(segments) = header.program_headers(endian, &*bytes) else {
        return Covers::Unknown;
    };
    let interpreter = segments
        .iter()
        .find(|segment| segment.p_type(endian) == PT_INTERP);
    let Some(interpreter) = interpreter else {
        return Covers::Static;
    };
    match interpreter.interpreter(endian, &*bytes) {
        Ok(Some(path)) => {
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
            if name.starts_with(b"ld-linux") {
                if gains_rights(program) {
                    Covers::Privileged
                } else {
                    Covers::Yes
                }
            } else {
                Covers::Foreign
            }
        }
        _ => Covers::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    /// A file as the library lays it out, with the given entries.
    fn file(live: &[[u64; 8]], table: &[[u64; 8]], ring: &[[u64; 8]], episodes: u64) -> Vec<u8> {
        let mut words = vec![0_u64; HEADER_BYTES / 8];
        let two = |low: usize, high: usize| low as u64 | (high as u64) << 32;
        words[0] = MAGIC;
        words[1] = two(HEADER_BYTES, ENTRY_BYTES);
        words[2] = two(4711, live.len());
        words[3] = two(table.len(), ring.len());
        words[4] = 99;
        words[5] = episodes;
        words.extend([live, table, ring].concat().concat());
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn slot(number: u64, start: u64, end: u64, kind: u64) -> [u64; 8] {
        [number, start, end, 0x1000, 0x400, 5 | kind << 32, 0, 0]
    }

    #[test]
    fn a_ring_that_went_round_is_put_in_order_and_the_lost_are_counted() {
        let ring = [slot(4, 40, 41, 1), slot(2, 20, 21, 1), slot(3, 30, 31, 1)];
        let record = parse(&file(&[], &[], &ring, 4)).expect("a record");
        let starts: Vec<u64> = record.waits.iter().map(|wait| wait.start).collect();
        assert_eq!(starts, [20, 30, 40]);
        assert_eq!(
            (record.overwritten, record.pid, record.started),
            (1, 4711, 99)
        );
    }

    #[test]
    fn half_written_and_impossible_entries_are_left_out() {
        // In turn: being written, of another round, ends before it begins, of no known kind.
        let ring = [
            slot(0, 1, 2, 1),
            slot(9, 1, 2, 1),
            slot(3, 9, 2, 1),
            slot(4, 1, 2, 77),
        ];
        let table = [
            [1 | 1 << 32, 1, 1, 1, 1, 1, 0, 0],
            [2 | 9 << 32, 1, 1, 1, 1, 1, 0, 0],
        ];
        let live = [[u64::from(u32::MAX) | 1 << 32, 1, 1, 1, 0, 0, 0, 0]];
        let record = parse(&file(&live, &table, &ring, 4)).expect("a record");
        assert!(
            record.waits.is_empty() && record.totals.is_empty(),
            "{record:?}"
        );
    }

    #[test]
    fn two_entries_of_one_key_are_added() {
        let entry = |count, ns, max| [2 | 6 << 32, 0x1000, 0x400, count, ns, max, 0, 0];
        let record =
            parse(&file(&[], &[entry(2, 10, 7), entry(3, 90, 80)], &[], 0)).expect("a record");
        assert_eq!(
            record.totals,
            [WaitTotal {
                kind: WaitKind::Barrier,
                object: 0x1000,
                caller: 0x400,
                count: 5,
                ns: 100,
                max_ns: 80
            }]
        );
    }

    #[test]
    fn lengths_beyond_the_file_are_an_error() {
        let mut bytes = file(&[], &[], &[], 0);
        bytes[20..32].fill(0xff);
        assert!(matches!(
            parse(&bytes),
            Err(PreloadError::Format("shorter than its tables"))
        ));
        assert!(matches!(parse(b"AMDHLWT"), Err(PreloadError::Format(_))));
    }

    #[test]
    fn only_plain_paths_can_be_preloaded() {
        assert_eq!(ld_preload(Path::new("/a b/x.so"), None), None);
        let both = ld_preload(Path::new("/x.so"), Some("/y.so".into()));
        assert_eq!(both, Some("/x.so:/y.so".into()));
        assert_eq!(
            ld_preload(Path::new("/x.so"), Some("".into())),
            Some("/x.so".into())
        );
    }

    #[test]
    fn the_named_library_is_the_only_one_tried() {
        let dir = tempfile::tempdir().expect("a folder");
        let beside = dir.path().canonicalize().expect("its path");
        fs::write(beside.join(LIBRARY), b"").expect("a file");
        assert_eq!(
            find_library(None, Some(&beside)),
            Some(beside.join(LIBRARY))
        );
        assert_eq!(
            find_library(Some("/nowhere/x.so".into()), Some(&beside)),
            None
        );
        assert_eq!(find_library(None, None), None);
    }

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(covers(Path::new("/nowhere")), Covers::Unknown);
        let itself = std::env::current_exe().expect("a path");
        if cfg!(target_env = "gnu") {
            assert_eq!(covers(&itself), Covers::Yes);
        }
    }

    /// It once was given the library, did not load it, and nobody said so.
    #[test]
    fn programs_that_gain_rights_take_no_library() {
        if !cfg!(target_env = "gnu") {
            return println!("SKIPPED: the test is linked against another libc than GNU's");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let copy = dir.path().join("program");
        let itself = std::env::current_exe().expect("a path");
        fs::copy(itself, &copy).expect("a copy");
        let mode = |mode| fs::set_permissions(&copy, fs::Permissions::from_mode(mode));
        mode(0o4755).expect("a mode");
        assert_eq!(covers(&copy), Covers::Yes, "one's own rights are no gain");
        if std::os::unix::fs::chown(&copy, Some(65_534), None).is_err() {
            return println!("SKIPPED: only root may give a file away");
        }
        assert_eq!(covers(&copy), Covers::Yes, "giving it away takes the bit");
        mode(0o4755).expect("a mode");
        assert_eq!(covers(&copy), Covers::Privileged);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_in_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            fuzz(&bytes);
        }

        #[test]
        fn any_tables_are_read_in_bounds(
            live in proptest::collection::vec(any::<[u64; 8]>(), 0..6),
            table in proptest::collection::vec(any::<[u64; 8]>(), 0..6),
            ring in proptest::collection::vec(any::<[u64; 8]>(), 0..6),
            episodes in any::<u64>(),
            damage in proptest::collection::vec((0_usize..4200, any::<u8>()), 0..4),
        ) {
            let mut bytes = file(&live, &table, &ring, episodes);
            for (at, value) in damage {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            fuzz(&bytes);
        }
    }
}
