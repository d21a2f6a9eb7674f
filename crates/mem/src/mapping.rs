//! One mapping of an address space, and what is behind it.

/// What may be done with a mapping, as its first columns tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// `MAP_SHARED`: writes are seen by others.
    pub shared: bool,
}

/// What the pages of a mapping come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backing {
    /// Private memory without a file, the heap too.
    Anonymous,
    /// The stack of the main thread.
    Stack,
    /// Memory of tmpfs: shared anonymous memory, memfd, System V, `/dev/shm`.
    Shmem,
    /// A file.
    File,
    /// A pool of huge pages (hugetlbfs, `MAP_HUGETLB`).
    Hugetlb,
    /// The kernel's own pages or a device: no memory that could be of another size.
    Special,
}

impl Backing {
    /// Stable name.
    pub fn id(self) -> &'static str {
        match self {
            Backing::Anonymous => "anonymous",
            Backing::Stack => "stack",
            Backing::Shmem => "shmem",
            Backing::File => "file",
            Backing::Hugetlb => "hugetlb",
            Backing::Special => "special",
        }
    }

    /// By the name that `/proc` and perf give a mapping. `is_tmpfs` is asked for files.
    pub fn of(name: &str, inode: u64, is_tmpfs: impl FnOnce() -> bool) -> Backing {
        match name {
            "" | "[heap]" | "//anon" => Backing::Anonymous,
            "[stack]" => Backing::Stack,
            "[vdso]" | "[vvar]" | "[vvar_vclock]" | "[vsyscall]" | "[uprobes]" => Backing::Special,
            "/anon_hugepage" | "/anon_hugepage (deleted)" => Backing::Hugetlb,
            name if name.starts_with("[anon_shmem:") => Backing::Shmem,
            name if name.starts_with('[') && inode == 0 => Backing::Anonymous,
            "/dev/zero" | "/dev/zero (deleted)" => Backing::Shmem,
            name if ["/memfd:", "/SYSV", "/dev/shm/"]
                .iter()
                .any(|p| name.starts_with(p)) =>
            {
                Backing::Shmem
            }
            name if name.starts_with("anon_inode:") => Backing::Special,
            _ if is_tmpfs() => Backing::Shmem,
            _ => Backing::File,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_is_behind() {
        let of = |name, inode| Backing::of(name, inode, || name == "/run/x");
        for (name, inode, backing) in [
            ("", 0, Backing::Anonymous),
            ("[heap]", 0, Backing::Anonymous),
            ("[anon:arena]", 0, Backing::Anonymous),
            ("[anon_shmem:arena]", 7, Backing::Shmem),
            ("[stack]", 0, Backing::Stack),
            ("[vdso]", 0, Backing::Special),
            ("/dev/zero (deleted)", 3, Backing::Shmem),
            ("/memfd:x (deleted)", 3, Backing::Shmem),
            ("/run/x", 3, Backing::Shmem),
            ("/usr/bin/cat", 3, Backing::File),
            ("/anon_hugepage (deleted)", 3, Backing::Hugetlb),
            ("anon_inode:kvm-vcpu:0", 3, Backing::Special),
        ] {
            assert_eq!(of(name, inode), backing, "{name}");
        }
    }
}
