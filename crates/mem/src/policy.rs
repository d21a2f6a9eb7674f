//! What the kernel's settings allow: `/sys/kernel/mm/transparent_hugepage`.

use crate::text::chosen;

/// Which memory gets huge pages of a size by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All of it.
    Always,
    /// What was advised by `madvise(MADV_HUGEPAGE)`.
    Madvise,
    /// Shared memory only: only within the size of the file.
    WithinSize,
    /// None.
    Never,
    /// Shared memory only: none, whatever a mount says.
    Deny,
    /// Shared memory only: all of it, whatever a mount says.
    Force,
}

impl When {
    /// The word in brackets of `text`; `inherited` is what `inherit` stands for.
    pub fn parse(text: &str, inherited: Option<When>) -> Option<When> {
        When::of_word(chosen(text)?, inherited)
    }

    /// A mount option `huge=` of tmpfs.
    pub fn of_mount(word: &str) -> Option<When> {
        When::of_word(word, None)
    }

    fn of_word(word: &str, inherited: Option<When>) -> Option<When> {
        Some(match word {
            "always" => When::Always,
            "madvise" | "advise" => When::Madvise,
            "within_size" => When::WithinSize,
            "never" => When::Never,
            "deny" => When::Deny,
            "force" => When::Force,
            "inherit" => return inherited,
            _ => return None,
        })
    }

    /// As the kernel spells it.
    pub fn id(self) -> &'static str {
        match self {
            When::Always => "always",
            When::Madvise => "madvise",
            When::WithinSize => "within_size",
            When::Never => "never",
            When::Deny => "deny",
            When::Force => "force",
        }
    }
}

/// One size of large pages: 2 MiB, or one of the smaller ones (mTHP, kernel 6.8 and later).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// Of a page.
    pub bytes: u64,
    /// For anonymous memory.
    pub anonymous: Option<When>,
    /// For shared memory.
    pub shmem: Option<When>,
    /// Given at page faults since boot, machine-wide.
    pub given: Option<u64>,
    /// Not given for want of free memory in one piece, since boot.
    pub refused: Option<u64>,
    /// In use now as anonymous memory, machine-wide.
    pub in_use: Option<u64>,
}

/// The settings of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Bytes of the huge page that one entry of a page middle directory maps; `None` where the
    /// kernel has no transparent huge pages.
    pub huge: Option<u64>,
    /// Bytes of a small page.
    pub page: u64,
    /// For anonymous memory, all sizes together.
    pub anonymous: Option<When>,
    /// For shared memory that has no mount of its own.
    pub shmem: Option<When>,
    /// What a fault may do to get a free huge page, as the kernel spells it.
    pub defrag: String,
    /// Sizes in rising order.
    pub sizes: Vec<Size>,
    /// Small pages that may be missing in a range that khugepaged collapses.
    pub missing_max: Option<u64>,
    /// Milliseconds between two looks of khugepaged.
    pub scan_ms: Option<u64>,
    /// Small pages that it looks at each time.
    pub scan_pages: Option<u64>,
}

impl Policy {
    /// Bytes of a huge page, as if there were some.
    pub fn huge_bytes(&self) -> u64 {
        // An entry of the last table is 8 bytes on all 64-bit machines.
        self.huge
            .unwrap_or_else(|| (self.small() / 8).saturating_mul(self.small()))
    }

    /// Bytes of a small page, never 0.
    pub fn small(&self) -> u64 {
        self.page.max(crate::KIB)
    }

    /// The block of the buddy allocator that is a huge page.
    pub fn huge_order(&self) -> usize {
        (self.huge_bytes() / self.small()).max(1).ilog2() as usize
    }

    /// What holds for huge pages of anonymous memory: its own switch where there is one.
    pub fn anonymous_huge(&self) -> Option<When> {
        let own = self.of_huge().and_then(|size| size.anonymous);
        own.or(self.anonymous)
    }

    /// The same for shared memory without a mount of its own.
    pub fn shmem_huge(&self) -> Option<When> {
        match self.shmem {
            // These two overrule the switches of the sizes.
            Some(When::Deny | When::Force) => self.shmem,
            all => self.of_huge().and_then(|size| size.shmem).or(all),
        }
    }

    fn of_huge(&self) -> Option<&Size> {
        self.sizes.iter().find(|size| Some(size.bytes) == self.huge)
    }
}

/// The name of a folder of a size: `hugepages-64kB` is 65,536 bytes.
pub fn size_of_folder(name: &str) -> Option<u64> {
    let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    crate::text::decimal(kib.as_bytes())?.checked_mul(crate::KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read() {
        assert_eq!(
            When::parse("always [madvise] never", None),
            Some(When::Madvise)
        );
        let inherit = "always [inherit] madvise never";
        assert_eq!(When::parse(inherit, Some(When::Always)), Some(When::Always));
        assert_eq!(When::parse("always never", None), None);
        assert_eq!(When::of_mount("advise"), Some(When::Madvise));
        assert_eq!(size_of_folder("hugepages-64kB"), Some(64 << 10));
        assert_eq!(size_of_folder("hugepages-x"), None);
    }

    #[test]
    fn the_switch_of_a_size_goes_before_that_of_all() {
        let size = |anonymous, shmem| Size {
            bytes: 2 << 20,
            anonymous,
            shmem,
            given: None,
            refused: None,
            in_use: None,
        };
        let mut policy = Policy {
            huge: Some(2 << 20),
            page: 4096,
            anonymous: Some(When::Always),
            shmem: Some(When::Never),
            ..Policy::default()
        };
        assert_eq!(policy.anonymous_huge(), Some(When::Always));
        assert_eq!(policy.huge_order(), 9);
        policy.sizes = vec![size(Some(When::Never), Some(When::Always))];
        assert_eq!(policy.anonymous_huge(), Some(When::Never));
        assert_eq!(policy.shmem_huge(), Some(When::Always));
        policy.shmem = Some(When::Deny);
        assert_eq!(policy.shmem_huge(), Some(When::Deny));
        assert_eq!(
            Policy {
                page: 65536,
                ..Policy::default()
            }
            .huge_bytes(),
            512 << 20
        );
    }
}
