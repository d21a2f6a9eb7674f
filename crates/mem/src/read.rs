//! The files of `/proc` and `/sys` that the parsers of this crate want: all I/O of the crate.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::buddy::{self, BlockTypes, Zone};
use crate::numa_maps::{self, Placement};
use crate::pagemap::{self, Blocks, Census, Entry, Sizes};
use crate::policy::{Policy, Size, When, size_of_folder};
use crate::smaps::{self, Mapping};
use crate::text::{chosen, decimal, lines, words};

/// A file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
#[non_exhaustive]
pub struct ReadError {
    /// Which.
    pub path: PathBuf,
    /// errno.
    #[source]
    pub source: io::Error,
}

fn bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    fs::read(path).map_err(|source| ReadError {
        path: path.to_owned(),
        source,
    })
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &Path) -> Option<u64> {
    decimal(text(path)?.trim().as_bytes())
}

/// The kernel's settings for huge pages, from `sys` (`/sys`).
pub fn policy(sys: &Path) -> Policy {
    let root = sys.join("kernel/mm/transparent_hugepage");
    let page = rustix::param::page_size() as u64;
    let switch = |name: &str| When::parse(&text(&root.join(name))?, None);
    let anonymous = switch("enabled");
    let shmem = switch("shmem_enabled");
    if anonymous.is_none() {
        return Policy {
            page,
            ..Policy::default()
        };
    }
    let defrag = text(&root.join("defrag")).unwrap_or_default();
    let scan = |name: &str| number(&root.join("khugepaged").join(name));
    let fallback = Policy {
        page,
        ..Policy::default()
    };
    Policy {
        huge: Some(number(&root.join("hpage_pmd_size")).unwrap_or_else(|| fallback.huge_bytes())),
        page,
        anonymous,
        shmem,
        defrag: chosen(&defrag).unwrap_or_default().to_owned(),
        sizes: sizes(&root, anonymous, shmem),
        missing_max: scan("max_ptes_none"),
        scan_ms: scan("scan_sleep_millisecs"),
        scan_pages: scan("pages_to_scan"),
    }
}

fn sizes(root: &Path, anonymous: Option<When>, shmem: Option<When>) -> Vec<Size> {
    let folders = fs::read_dir(root).into_iter().flatten().flatten();
    let mut sizes: Vec<Size> = folders
        .filter_map(|folder| {
            let bytes = size_of_folder(folder.file_name().to_str()?)?;
            let at = folder.path();
            let switch = |name, all| When::parse(&text(&at.join(name))?, all);
            let count = |name| number(&at.join("stats").join(name));
            Some(Size {
                bytes,
                anonymous: switch("enabled", anonymous),
                shmem: switch("shmem_enabled", shmem),
                given: count("anon_fault_alloc"),
                refused: count("anon_fault_fallback"),
                in_use: count("nr_anon"),
            })
        })
        .collect();
    sizes.sort_by_key(|size| size.bytes);
    sizes
}

/// Free memory by size of piece, from `proc` (`/proc`).
pub fn zones(proc: &Path) -> Result<Vec<Zone>, ReadError> {
    Ok(buddy::parse(&bytes(&proc.join("buddyinfo"))?))
}

/// What blocks are used for; only the administrator may read it.
pub fn block_types(proc: &Path) -> Result<Option<BlockTypes>, ReadError> {
    Ok(buddy::block_types(&bytes(&proc.join("pagetypeinfo"))?))
}

/// Counters of `/proc/vmstat` by name.
pub fn vmstat(proc: &Path) -> BTreeMap<String, u64> {
    let text = fs::read(proc.join("vmstat")).unwrap_or_default();
    lines(&text)
        .filter_map(|line| {
            let mut words = words(line);
            let name = String::from_utf8_lossy(words.next()?).into_owned();
            Some((name, decimal(words.next()?)?))
        })
        .collect()
}

/// Memory of the whole machine, and what of it is in huge pages; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Anonymous memory.
    pub anonymous: u64,
    /// Of it in huge pages.
    pub anonymous_huge: u64,
    /// Shared memory and tmpfs.
    pub shmem: u64,
    /// Of it in huge pages.
    pub shmem_huge: u64,
}

/// From `/proc/meminfo`, which takes no lock of any process; `None` if the kernel does not tell.
pub fn coverage(proc: &Path) -> Option<Coverage> {
    let text = fs::read(proc.join("meminfo")).ok()?;
    let field = |name: &[u8]| {
        let mut lines = lines(&text);
        let kib = lines.find_map(|line| words(line.strip_prefix(name)?).next().and_then(decimal));
        kib.map(|kib| kib.saturating_mul(1024))
    };
    Some(Coverage {
        anonymous: field(b"AnonPages:")?,
        anonymous_huge: field(b"AnonHugePages:")?,
        shmem: field(b"Shmem:").unwrap_or(0),
        shmem_huge: field(b"ShmemHugePages:").unwrap_or(0),
    })
}

/// The memory of a process at one moment.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its name.
    pub name: String,
    /// Huge pages are switched off for it.
    pub is_disabled: bool,
    /// Its mappings.
    pub mappings: Vec<Mapping>,
    /// Where their pages are; empty on kernels without NUMA.
    pub placements: Vec<Placement>,
    /// Devices that are a tmpfs, with what their `huge=` says.
    pub tmpfs: BTreeMap<(u32, u32), Option<When>>,
}

/// What `/proc` tells about the memory of `pid`. The process holds its address-space lock for
/// reading meanwhile, about a millisecond for each gigabyte in small pages.
pub fn process(proc: &Path, pid: u32) -> Result<Process, ReadError> {
    let root = proc.join(pid.to_string());
    let smaps = bytes(&root.join("smaps"))?;
    let status = fs::read(root.join("status")).unwrap_or_default();
    let placements = fs::read(root.join("numa_maps")).unwrap_or_default();
    let mounts = fs::read(root.join("mountinfo")).unwrap_or_default();
    let of = |name: &[u8]| lines(&status).find_map(|line| line.strip_prefix(name));
    let name = of(b"Name:").unwrap_or_default().trim_ascii();
    Ok(Process {
        name: String::from_utf8_lossy(name).into_owned(),
        is_disabled: of(b"THP_enabled:").is_some_and(|value| value.trim_ascii() == b"0"),
        mappings: smaps::parse(&smaps).collect(),
        placements: numa_maps::parse(&placements).collect(),
        tmpfs: tmpfs(&mounts),
    })
}

/// `25 24 0:23 / /dev/shm rw,relatime shared:2 - tmpfs tmpfs rw,huge=advise`
fn tmpfs(mountinfo: &[u8]) -> BTreeMap<(u32, u32), Option<When>> {
    let mount = |line: &[u8]| {
        let mut words = words(line);
        let device = std::str::from_utf8(words.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        words.find(|word| *word == b"-")?;
        let kind = words.next()?;
        let options = std::str::from_utf8(words.nth(1)?).ok()?;
        let huge = options.split(',').find_map(|o| o.strip_prefix("huge="));
        let is_tmpfs = kind == b"tmpfs" || kind == b"devtmpfs";
        // A mount without the option gives no huge pages.
        let huge = huge.and_then(When::of_mount).unwrap_or(When::Never);
        is_tmpfs.then_some((device, Some(huge)))
    };
    lines(mountinfo).filter_map(mount).collect()
}

/// To see that a page is in memory is so much cheaper than to look at it.
const ENTRIES_PER_PAGE: u64 = 16;
/// Blocks that are looked at in a mapping at least, where it has so many, or it is left out.
const BLOCKS_MIN: u64 = 4;

/// Sizes of the pages behind `mappings` of `pid`; `None` of those that were left out. Looks at no more than `pages_max` pages
/// in memory, and some times as many of the address space; of mappings for which that is not enough, at blocks that lie evenly
/// in them. Those with most memory come first.
///
/// # Errors
/// Where page frame numbers are not to be had: they are the administrator's (`CAP_SYS_ADMIN`).
pub fn page_sizes(
    proc: &Path,
    pid: u32,
    mappings: &[Mapping],
    pages_max: u64,
) -> Result<Vec<Option<Sizes>>, ReadError> {
    let open = |path: PathBuf| match File::open(&path) {
        Ok(file) => Ok((file, path)),
        Err(source) => Err(ReadError { path, source }),
    };
    let (pagemap, pagemap_path) = open(proc.join(pid.to_string()).join("pagemap"))?;
    let (flags, _) = open(proc.join("kpageflags"))?;
    let page = rustix::param::page_size() as u64;
    let frames = Frames {
        pagemap,
        flags,
        page,
    };
    let mut order: Vec<usize> = (0..mappings.len())
        .filter(|&at| mappings[at].resident > 0)
        .collect();
    order.sort_by_key(|&at| std::cmp::Reverse(mappings[at].resident));
    let of = |pages: fn(&Mapping) -> u64| -> Vec<u64> {
        let bytes = order.iter().map(|&at| pages(&mappings[at]));
        bytes.map(|bytes| bytes.div_ceil(page)).collect()
    };
    let least = BLOCKS_MIN * frames.block();
    let entries_max = pages_max.saturating_mul(ENTRIES_PER_PAGE);
    let entries = pagemap::shares(&of(Mapping::bytes), entries_max, least);
    let wanted = of(|mapping| mapping.resident);
    let pages = pagemap::shares(&wanted, pages_max, least);
    let mut all = vec![Some(Sizes::default()); mappings.len()];
    let mut is_blind = false;
    for (nth, &at) in order.iter().enumerate() {
        all[at] = None;
        if pages[nth] >= wanted[nth].min(least) {
            let looked = frames.sizes(&mappings[at], pages[nth], entries[nth]);
            is_blind |= looked.is_blind;
            all[at] = looked.sizes;
        }
    }
    if is_blind && all.iter().flatten().all(|sizes| sizes.seen == 0) {
        return Err(ReadError {
            path: pagemap_path,
            source: io::ErrorKind::PermissionDenied.into(),
        });
    }
    Ok(all)
}

/// The page frames of a process, and what they are of.
struct Frames {
    pagemap: File,
    flags: File,
    page: u64,
}

/// What was found in a mapping.
struct Looked {
    sizes: Option<Sizes>,
    /// Pages were in memory whose frames may not be seen.
    is_blind: bool,
}

impl Frames {
    /// Pages of a block: those of a page table, or of a huge page.
    fn block(&self) -> u64 {
        self.page / size_of::<u64>() as u64
    }

    fn sizes(&self, mapping: &Mapping, pages_max: u64, entries_max: u64) -> Looked {
        let (first, last) = (mapping.start / self.page, mapping.end / self.page);
        let has_room = pages_max >= mapping.resident.div_ceil(self.page);
        if has_room && last - first <= entries_max {
            // As one: no large page is cut.
            let (bytes, is_blind) = self.census(first, last - first);
            let sizes = Some(Sizes::of_all(bytes));
            return Looked { sizes, is_blind };
        }
        let (mut seen, mut is_blind) = (BTreeMap::<u64, u64>::new(), false);
        let (mut pages, mut entries) = (0, 0);
        for (at, count) in Blocks::new(first, last, self.block()) {
            if pages >= pages_max || entries >= entries_max {
                break;
            }
            let (bytes, hidden) = self.census(at, count);
            pages += bytes.values().sum::<u64>() / self.page;
            entries += count;
            is_blind |= hidden;
            for (size, more) in bytes {
                *seen.entry(size).or_default() += more;
            }
        }
        let sizes = Sizes::of_some(&seen, mapping.resident);
        Looked { sizes, is_blind }
    }

    /// Bytes by size of page of `count` pages from page `first` on, and whether frames of them may not be seen.
    fn census(&self, first: u64, count: u64) -> (BTreeMap<u64, u64>, bool) {
        let mut census = Census::new(self.page);
        let mut is_blind = false;
        let mut flags = FrameFlags::of(&self.flags);
        for (at, entry) in entries(&self.pagemap, first, count).enumerate() {
            is_blind |= entry.is_hidden();
            if let Some(frame) = entry.frame() {
                census.add(first + at as u64, frame, flags.of_frame(frame));
            }
        }
        (census.finish(), is_blind)
    }
}

/// Flags of page frames. Those of neighbours come with one call once two have been asked for in a row, as they are in large
/// pages.
struct FrameFlags<'a> {
    file: &'a File,
    from: u64,
    words: Vec<u64>,
}

impl FrameFlags<'_> {
    const AHEAD: usize = 64;

    fn of(file: &File) -> FrameFlags<'_> {
        FrameFlags {
            file,
            from: 0,
            words: Vec::new(),
        }
    }

    /// 0 if they cannot be read.
    fn of_frame(&mut self, frame: u64) -> u64 {
        let known = frame.checked_sub(self.from);
        let known = known.and_then(|at| usize::try_from(at).ok());
        if let Some(&word) = known.and_then(|at| self.words.get(at)) {
            return word;
        }
        let is_next = known == Some(self.words.len());
        let count = if is_next { Self::AHEAD } else { 1 };
        let mut bytes = vec![0; count * size_of::<u64>()];
        let offset = frame.saturating_mul(size_of::<u64>() as u64);
        let read = self.file.read_at(&mut bytes, offset).unwrap_or(0);
        let words = bytes[..read].as_chunks::<8>().0.iter();
        self.words = words.map(|word| u64::from_ne_bytes(*word)).collect();
        self.from = frame;
        self.words.first().copied().unwrap_or(0)
    }
}

/// Entries of `count` pages from page `first` on, as many as can be read.
fn entries(pagemap: &File, first: u64, count: u64) -> impl Iterator<Item = Entry> + '_ {
    const CHUNK: u64 = 8192;
    (0..count.div_ceil(CHUNK)).flat_map(move |chunk| {
        let from = chunk * CHUNK;
        let mut bytes = vec![0; ((count - from).min(CHUNK) * 8) as usize];
        // What cannot be read (the top of the address space) is not present.
        let offset = first.saturating_add(from).saturating_mul(8);
        let read = pagemap.read_at(&mut bytes, offset).unwrap_or(0);
        let words: Vec<Entry> = bytes[..read]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| Entry(u64::from_ne_bytes(*word)))
            .collect();
        words
    })
}

/// Pools of hugetlb pages, from `sys`: bytes of a page, pages, free pages.
pub fn pools(sys: &Path) -> Vec<(u64, u64, u64)> {
    let folders = fs::read_dir(sys.join("kernel/mm/hugepages"));
    let mut pools: Vec<_> = folders
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|folder| {
            let size = size_of_folder(folder.file_name().to_str()?)?;
            let count = |name| number(&folder.path().join(name)).unwrap_or(0);
            Some((size, count("nr_hugepages"), count("free_hugepages")))
        })
        .collect();
    pools.sort_unstable();
    pools
}

/// Address ranges of `/proc/PID/maps` for those who came late: start, end, shared, inode, name.
pub fn regions(proc: &Path, pid: u32) -> Result<Vec<Mapping>, ReadError> {
    let maps = bytes(&proc.join(pid.to_string()).join("maps"))?;
    Ok(smaps::parse(&maps).collect())
}

/// Resident memory in bytes, from `/proc/PID/statm`.
pub fn resident(proc: &Path, pid: u32) -> Option<u64> {
    let statm = fs::read(proc.join(pid.to_string()).join("statm")).ok()?;
    let pages = words(&statm).nth(1).and_then(decimal)?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod tests;
