//! `/proc/PID/smaps`: each mapping with its resident and huge pages.

use crate::KIB;
use crate::mapping::{Access, Backing};
use crate::text::{decimal, hexadecimal, lines, words};

/// Flags of a mapping (`VmFlags`) that matter for huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

macro_rules! flags {
    ($($name:ident = $bit:literal $spelled:literal $doc:literal,)*) => {
        impl Flags {
            $(#[doc = $doc] pub const $name: Flags = Flags(1 << $bit);)*

            fn of(word: &[u8]) -> Flags {
                $(if word == $spelled { return Flags::$name; })*
                Flags(0)
            }
        }
    };
}

flags! {
    ADVISED = 0 b"hg" "`madvise(MADV_HUGEPAGE)`.",
    REFUSED = 1 b"nh" "`madvise(MADV_NOHUGEPAGE)`, or mapped with `MAP_STACK` (kernel 6.7 and later).",
    HUGETLB = 2 b"ht" "Of a pool of huge pages.",
    PFN_MAP = 3 b"pf" "Bare page frames.",
    IO = 4 b"io" "Device memory.",
    MIXED = 5 b"mm" "Page frames and pages mixed.",
    FIXED_SIZE = 6 b"de" "May not be expanded: of a driver or the kernel.",
    MISSING_TO_USER = 7 b"um" "Faults go to a userfaultfd.",
    WRITES_TO_USER = 8 b"uw" "Faults of writing go to a userfaultfd.",
    MINOR_TO_USER = 9 b"ui" "Minor faults go to a userfaultfd.",
    MERGEABLE = 10 b"mg" "Equal pages are merged (KSM).",
    LOCKED = 11 b"lo" "`mlock`.",
    GROWS_DOWN = 12 b"gd" "A stack that the kernel extends.",
}

impl Flags {
    /// One of `flags` at least is set.
    pub fn any(self, flags: &[Flags]) -> bool {
        flags.iter().any(|flag| self.0 & flag.0 != 0)
    }

    /// Both together.
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A mapping. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Permissions.
    pub access: Access,
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file, major and minor number.
    pub device: (u32, u32),
    /// Inode of the file, 0 without one.
    pub inode: u64,
    /// File, or a name in brackets.
    pub name: String,
    /// In memory and mapped.
    pub resident: u64,
    /// Of those, private and not of a file (any more).
    pub anonymous: u64,
    /// Anonymous in pages of the size of a page middle directory (2 MiB on x86-64).
    pub huge_anonymous: u64,
    /// The same for shared memory.
    pub huge_shmem: u64,
    /// The same for files.
    pub huge_file: u64,
    /// In pages of a hugetlb pool; not part of `resident`.
    pub hugetlb: u64,
    /// On a swap device.
    pub swapped: u64,
    /// Merged with equal pages.
    pub merged: u64,
    /// Size of a page of this mapping.
    pub page: u64,
    /// The kernel would give it huge pages; kernels before 5.0 do not tell.
    pub is_eligible: Option<bool>,
    /// Flags.
    pub flags: Flags,
}

impl Mapping {
    /// Size of the range of addresses.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// In huge pages, of whatever kind.
    pub fn huge(&self) -> u64 {
        [
            self.huge_anonymous,
            self.huge_shmem,
            self.huge_file,
            self.hugetlb,
        ]
        .iter()
        .fold(0, |sum, &bytes| u64::saturating_add(sum, bytes))
    }

    /// In memory, hugetlb too.
    pub fn in_memory(&self) -> u64 {
        self.resident.saturating_add(self.hugetlb)
    }

    /// What is behind it. `is_tmpfs` tells whether a device is a tmpfs.
    pub fn backing(&self, is_tmpfs: impl FnOnce((u32, u32)) -> bool) -> Backing {
        if self.flags.any(&[Flags::HUGETLB]) {
            return Backing::Hugetlb;
        }
        if self.flags.any(&[Flags::PFN_MAP, Flags::IO]) {
            return Backing::Special;
        }
        Backing::of(&self.name, self.inode, || is_tmpfs(self.device))
    }
}

/// The mappings in `text`, which is `/proc/PID/smaps` or, of one mapping, `smaps_rollup`. Lines
/// that are not understood are passed over. Linear in the text.
pub fn parse(text: &[u8]) -> impl Iterator<Item = Mapping> {
    let mut lines = lines(text).peekable();
    std::iter::from_fn(move || {
        let mut mapping = loop {
            if let Some(mapping) = head(lines.next()?) {
                break mapping;
            }
        };
        while let Some(line) = lines.next_if(|line| head(line).is_none()) {
            field(&mut mapping, line);
        }
        Some(mapping)
    })
}

/// `55e6dbbbe000-55e6dbbc0000 r--p 00000000 fe:00 247026      /usr/bin/cat`
fn head(line: &[u8]) -> Option<Mapping> {
    // Fields begin with a capital letter, addresses never do.
    if line.first()?.is_ascii_uppercase() {
        return None;
    }
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut range = fields.next()?.splitn(2, |&byte| byte == b'-');
    let (start, end) = (hexadecimal(range.next()?)?, hexadecimal(range.next()?)?);
    let access = fields.next()?;
    let offset = hexadecimal(fields.next()?)?;
    let mut device = fields.next()?.splitn(2, |&byte| byte == b':');
    let mut number = || u32::try_from(hexadecimal(device.next()?)?).ok();
    let device = (number()?, number()?);
    let inode = decimal(fields.next()?)?;
    let name = fields.next().unwrap_or_default().trim_ascii_start();
    if end < start || access.len() != 4 {
        return None;
    }
    Some(Mapping {
        start,
        end,
        access: Access {
            read: access[0] == b'r',
            write: access[1] == b'w',
            execute: access[2] == b'x',
            shared: access[3] == b's',
        },
        offset,
        device,
        inode,
        name: String::from_utf8_lossy(name).into_owned(),
        ..Mapping::default()
    })
}

fn field(mapping: &mut Mapping, line: &[u8]) {
    let mut words = words(line);
    let Some(name) = words.next() else { return };
    if name == b"VmFlags:" {
        mapping.flags = words.fold(Flags::default(), |flags, word| flags.with(Flags::of(word)));
        return;
    }
    let Some(value) = words.next().and_then(decimal) else {
        return;
    };
    if name == b"THPeligible:" {
        mapping.is_eligible = Some(value != 0);
        return;
    }
    let bytes = value.saturating_mul(KIB);
    match name {
        b"Rss:" => mapping.resident = bytes,
        b"Anonymous:" => mapping.anonymous = bytes,
        b"AnonHugePages:" => mapping.huge_anonymous = bytes,
        b"ShmemPmdMapped:" => mapping.huge_shmem = bytes,
        b"FilePmdMapped:" => mapping.huge_file = bytes,
        b"Shared_Hugetlb:" | b"Private_Hugetlb:" => {
            mapping.hugetlb = mapping.hugetlb.saturating_add(bytes);
        }
        b"Swap:" => mapping.swapped = bytes,
        b"KSM:" => mapping.merged = bytes,
        b"KernelPageSize:" => mapping.page = bytes,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"55e6dbbbe000-55e6dbbc0000 r-xp 00001000 fe:00 247026                     /usr/bin/a b (deleted)
Size:                  8 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                   8 kB
FilePmdMapped:         0 kB
THPeligible:           0
VmFlags: rd ex mr mw me
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
KernelPageSize:        4 kB
Rss:                8192 kB
Anonymous:          8192 kB
AnonHugePages:      4096 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
Swap:                 16 kB
THPeligible:           1
ProtectionKey:         0
VmFlags: rd wr mr mw me ac sd hg nh
7f0001000000-7f0001200000 rw-s 00000000 00:0f 9       /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Rss:                   0 kB
Shared_Hugetlb:     2048 kB
VmFlags: rd wr sh ht
";

    #[test]
    fn mappings_are_read() {
        let all: Vec<Mapping> = parse(TEXT).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].name, "/usr/bin/a b (deleted)");
        assert_eq!((all[0].device, all[0].inode), ((0xfe, 0), 247_026));
        assert_eq!((all[0].offset, all[0].resident), (0x1000, 8192));
        assert!(all[0].access.execute && !all[0].access.shared && !all[0].access.write);
        assert_eq!(all[0].backing(|_| false), Backing::File);
        assert_eq!(all[0].backing(|device| device == (0xfe, 0)), Backing::Shmem);
        assert_eq!(all[1].name, "");
        assert_eq!(all[1].bytes(), 8 << 20);
        assert_eq!((all[1].huge(), all[1].swapped), (4 << 20, 16 << 10));
        assert_eq!(all[1].is_eligible, Some(true));
        assert!(all[1].flags.any(&[Flags::ADVISED]) && all[1].flags.any(&[Flags::REFUSED]));
        assert!(!all[1].flags.any(&[Flags::IO, Flags::HUGETLB]));
        assert_eq!((all[2].in_memory(), all[2].page), (2 << 20, 2 << 20));
        assert_eq!(all[2].backing(|_| false), Backing::Hugetlb);
    }

    #[test]
    fn our_own_mappings_are_read() {
        let text = std::fs::read("/proc/self/smaps").expect("readable");
        let all: Vec<Mapping> = parse(&text).collect();
        assert!(all.iter().any(|mapping| mapping.name == "[stack]"));
        assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(all.iter().all(|m| m.name == "[vsyscall]" || m.page >= 4096));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&text).count();
        }

        #[test]
        fn damaged_text_is_parsed(damage in proptest::collection::vec((0..TEXT.len(), any::<u8>()), 1..30)) {
            let mut text = TEXT.to_vec();
            for (at, byte) in damage {
                text[at] = byte;
            }
            for mapping in parse(&text) {
                prop_assert!(mapping.start <= mapping.end);
                let _ = (mapping.huge(), mapping.in_memory(), mapping.backing(|_| false));
            }
        }
    }
}
