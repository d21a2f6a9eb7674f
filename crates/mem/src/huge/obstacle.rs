//! What keeps memory in small pages, in words.

use crate::policy::Policy;

/// What keeps memory in small pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Obstacle {
    /// The kernel has no transparent huge pages.
    NoSupport,
    /// The mapping is smaller than a huge page.
    TooSmall,
    /// No whole huge page fits between its ends.
    NotAligned,
    /// What stands over at its ends.
    Edges,
    /// The kernel's own pages, or those of a device.
    Special,
    /// Switched off for the process.
    ProcessDisabled,
    /// Switched off for the mapping.
    MappingDisabled,
    /// Switched off for the machine.
    PolicyNever,
    /// Only advised memory gets them, and this is not.
    NotAdvised,
    /// Pages of a file.
    File,
    /// Private copies of pages of a file.
    FileCopy,
    /// Switched off for shared memory.
    ShmemPolicy,
    /// Only advised shared memory gets them, and this is not.
    ShmemNotAdvised,
    /// A userfaultfd handles its faults.
    Userfaultfd,
    /// No free memory in pieces large enough.
    Fragmented,
    /// Equal pages were merged.
    Merged,
    /// Much of it is on a swap device.
    Swapped,
    /// Too few of its pages are in memory.
    Sparse,
    /// Allowed, but nobody has done it.
    NotCollapsed,
}

impl Obstacle {
    /// All there are.
    pub const ALL: [Obstacle; 19] = [
        Obstacle::NoSupport,
        Obstacle::TooSmall,
        Obstacle::NotAligned,
        Obstacle::Edges,
        Obstacle::Special,
        Obstacle::ProcessDisabled,
        Obstacle::MappingDisabled,
        Obstacle::PolicyNever,
        Obstacle::NotAdvised,
        Obstacle::File,
        Obstacle::FileCopy,
        Obstacle::ShmemPolicy,
        Obstacle::ShmemNotAdvised,
        Obstacle::Userfaultfd,
        Obstacle::Fragmented,
        Obstacle::Merged,
        Obstacle::Swapped,
        Obstacle::Sparse,
        Obstacle::NotCollapsed,
    ];

    /// Stable name.
    pub fn id(self) -> &'static str {
        match self {
            Obstacle::NoSupport => "no-support",
            Obstacle::TooSmall => "too-small",
            Obstacle::NotAligned => "not-aligned",
            Obstacle::Edges => "edges",
            Obstacle::Special => "special",
            Obstacle::ProcessDisabled => "process-disabled",
            Obstacle::MappingDisabled => "mapping-disabled",
            Obstacle::PolicyNever => "policy-never",
            Obstacle::NotAdvised => "not-advised",
            Obstacle::File => "file",
            Obstacle::FileCopy => "file-copy",
            Obstacle::ShmemPolicy => "shmem-policy",
            Obstacle::ShmemNotAdvised => "shmem-not-advised",
            Obstacle::Userfaultfd => "userfaultfd",
            Obstacle::Fragmented => "fragmented",
            Obstacle::Merged => "merged",
            Obstacle::Swapped => "swapped",
            Obstacle::Sparse => "sparse",
            Obstacle::NotCollapsed => "not-collapsed",
        }
    }

    /// Somebody could put this memory into huge pages.
    pub fn is_removable(self) -> bool {
        !matches!(
            self,
            Obstacle::TooSmall | Obstacle::Special | Obstacle::FileCopy
        )
    }

    /// What is in the way, in one sentence.
    pub fn text(self, policy: &Policy) -> String {
        let size = size(policy);
        match self {
            Obstacle::NoSupport => "The kernel was built without transparent huge pages.".into(),
            Obstacle::TooSmall => format!("Smaller than {size}."),
            Obstacle::NotAligned => format!("No {size} aligned to {size} fit into it."),
            Obstacle::Edges => format!("Beyond the first and last multiple of {size}."),
            Obstacle::Special => "Pages of a device or of the kernel.".into(),
            Obstacle::ProcessDisabled => {
                "Switched off for the whole process by prctl(PR_SET_THP_DISABLE).".into()
            }
            Obstacle::MappingDisabled => {
                "Switched off by madvise(MADV_NOHUGEPAGE), or a thread's stack (MAP_STACK).".into()
            }
            Obstacle::PolicyNever => {
                format!("Huge pages of {size} are switched off on this machine.")
            }
            Obstacle::NotAdvised => "Only memory that the program advises gets huge pages, and it did not.".into(),
            Obstacle::File => "Pages of a file, which this kernel and file system keep small.".into(),
            Obstacle::FileCopy => "Copies of a file's pages made on writing, always small.".into(),
            Obstacle::ShmemPolicy => "Huge pages are switched off for shared memory.".into(),
            Obstacle::ShmemNotAdvised => {
                "Only advised shared memory gets huge pages, and this is not.".into()
            }
            Obstacle::Userfaultfd => "A userfaultfd handles its faults page by page.".into(),
            Obstacle::Fragmented => format!("No free memory in pieces of {size} when it was needed."),
            Obstacle::Merged => "Equal pages were merged (KSM).".into(),
            Obstacle::Swapped => "Much of it was swapped out, page by page.".into(),
            Obstacle::Sparse => format!(
                "Too few pages of each {size} were touched: khugepaged wants all but {}.",
                policy.missing_max.unwrap_or(511)
            ),
            Obstacle::NotCollapsed => {
                "Allowed, but touched before that, or divided since (fork, mprotect, partial munmap), and khugepaged has not come by.".into()
            }
        }
    }

    /// What would help, empty if nothing does.
    pub fn remedy(self, policy: &Policy) -> String {
        let size = size(policy);
        let switch = "/sys/kernel/mm/transparent_hugepage";
        match self {
            Obstacle::NoSupport => "Use a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or a hugetlb pool.".into(),
            Obstacle::TooSmall => "Gather small mappings in one large one (an arena).".into(),
            Obstacle::NotAligned | Obstacle::Edges => format!(
                "Map a multiple of {size} at such an address; of a file, at one that lies in its {size} as the offset does."
            ),
            Obstacle::Special | Obstacle::FileCopy => String::new(),
            Obstacle::ProcessDisabled => "Remove the prctl, or start it without the one it inherits.".into(),
            Obstacle::MappingDisabled => "Remove the madvise; for stacks, map them without MAP_STACK.".into(),
            Obstacle::PolicyNever => format!(
                "Write madvise (or always) to {switch}/enabled, and where there is {switch}/hugepages-{}kB/enabled, inherit to that.",
                policy.huge_bytes() / crate::KIB
            ),
            Obstacle::NotAdvised => format!(
                "madvise(MADV_HUGEPAGE) it before touching; for malloc of glibc GLIBC_TUNABLES=glibc.malloc.hugetlb=1; or write always to {switch}/enabled."
            ),
            Obstacle::File => "For code: CONFIG_READ_ONLY_THP_FOR_FS and madvise, a file system with large folios, or copy the text to anonymous memory at start.".into(),
            Obstacle::ShmemPolicy => format!(
                "Write advise (or within_size) to {switch}/shmem_enabled, or mount the tmpfs with huge=advise."
            ),
            Obstacle::ShmemNotAdvised => "madvise(MADV_HUGEPAGE) it before touching.".into(),
            Obstacle::Userfaultfd => format!("Fill {size} at a time (UFFDIO_MOVE), or use hugetlb."),
            Obstacle::Fragmented => format!(
                "Write 1 to /proc/sys/vm/compact_memory, set {switch}/defrag to madvise (now {}), or keep a hugetlb pool from boot on.",
                if policy.defrag.is_empty() { "unknown" } else { &policy.defrag }
            ),
            Obstacle::Merged => "madvise(MADV_UNMERGEABLE) it.".into(),
            Obstacle::Swapped => "Give it more memory, or lock what matters (mlock).".into(),
            Obstacle::Sparse => format!(
                "madvise(MADV_COLLAPSE), or raise {switch}/khugepaged/max_ptes_none; memory grows by what was not touched."
            ),
            Obstacle::NotCollapsed => {
                let wait = match (policy.scan_ms, policy.scan_pages) {
                    (Some(ms), Some(pages)) => {
                        format!(" (it looks at {pages} pages every {} s)", ms as f64 / 1000.0)
                    }
                    _ => String::new(),
                };
                format!("madvise(MADV_COLLAPSE), kernel 6.1 and later; or wait for khugepaged{wait}.")
            }
        }
    }
}

/// `2 MiB`
fn size(policy: &Policy) -> String {
    format!("{} MiB", policy.huge_bytes() >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = Obstacle::ALL.iter().map(|o| o.id()).collect();
        assert_eq!(names.len(), Obstacle::ALL.len());
        for obstacle in Obstacle::ALL {
            let policy = Policy::default();
            assert!(!obstacle.text(&policy).is_empty());
            assert!(obstacle.remedy(&policy).is_empty() <= !obstacle.is_removable());
        }
    }
}
