//! On files of our own making, and on this machine's.

use super::*;

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("created");
    fs::write(path, text).expect("written");
}

#[test]
fn what_of_the_machine_is_in_huge_pages_is_read() {
    let proc = tempfile::tempdir().expect("a folder");
    assert_eq!(coverage(proc.path()), None);
    let text = "MemTotal: 100 kB\nAnonPages:    4096 kB\nShmem:  8 kB\nAnonHugePages:  2048 kB\n";
    write(proc.path().join("meminfo"), text);
    let found = Coverage {
        anonymous: 4 << 20,
        anonymous_huge: 2 << 20,
        shmem: 8 << 10,
        shmem_huge: 0,
    };
    assert_eq!(coverage(proc.path()), Some(found));
    // This machine's.
    let here = coverage(Path::new("/proc")).expect("Linux tells of it");
    assert!(here.anonymous > 0);
    write(
        proc.path().join("meminfo"),
        "AnonPages: x kB\nAnonHugePages:",
    );
    assert_eq!(coverage(proc.path()), None);
}

#[test]
fn settings_are_read() {
    let sys = tempfile::tempdir().expect("a folder");
    assert_eq!(policy(sys.path()).huge, None);
    let root = sys.path().join("kernel/mm/transparent_hugepage");
    write(root.join("enabled"), "always [madvise] never\n");
    write(
        root.join("shmem_enabled"),
        "always within_size advise [never] deny force\n",
    );
    write(
        root.join("defrag"),
        "always defer [defer+madvise] madvise never\n",
    );
    write(root.join("hpage_pmd_size"), "2097152\n");
    write(root.join("khugepaged/max_ptes_none"), "511\n");
    write(
        root.join("hugepages-2048kB/enabled"),
        "always [inherit] madvise never\n",
    );
    write(
        root.join("hugepages-64kB/enabled"),
        "[always] inherit madvise never\n",
    );
    write(root.join("hugepages-64kB/stats/nr_anon"), "12\n");
    let policy = policy(sys.path());
    assert_eq!(
        (policy.huge, policy.anonymous),
        (Some(2 << 20), Some(When::Madvise))
    );
    assert_eq!(
        (policy.defrag.as_str(), policy.missing_max),
        ("defer+madvise", Some(511))
    );
    assert_eq!(policy.shmem_huge(), Some(When::Never));
    assert_eq!(policy.anonymous_huge(), Some(When::Madvise));
    let sizes: Vec<_> = policy
        .sizes
        .iter()
        .map(|s| (s.bytes, s.anonymous, s.in_use))
        .collect();
    assert_eq!(sizes[0], (64 << 10, Some(When::Always), Some(12)));
    assert_eq!(sizes[1], (2 << 20, Some(When::Madvise), None));
}

#[test]
fn mounts_tell_what_is_tmpfs() {
    let text = b"25 24 0:23 / /dev/shm rw,relatime shared:2 - tmpfs tmpfs rw,size=1k,huge=advise\n\
        26 24 0:24 / /run rw - tmpfs tmpfs rw\n27 1 254:0 / / rw - ext4 /dev/vda rw\nrubbish\n";
    let found = tmpfs(text);
    let expected = [((0, 23), Some(When::Madvise)), ((0, 24), Some(When::Never))];
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn our_own_process_is_read() {
    let proc = Path::new("/proc");
    let memory = process(proc, std::process::id()).expect("our own");
    assert!(!memory.name.is_empty() && !memory.mappings.is_empty());
    assert!(resident(proc, std::process::id()).expect("resident") > 0);
    assert!(regions(proc, std::process::id()).expect("maps").len() > 3);
    assert!(process(proc, u32::MAX).is_err());
    assert!(!zones(proc).expect("readable").is_empty());
}

#[test]
fn page_sizes_add_up_to_what_is_resident() {
    let proc = Path::new("/proc");
    let bytes = 8 << 20;
    let memory = vec![1_u8; bytes];
    let at = memory.as_ptr() as u64;
    let id = std::process::id();
    let all = process(proc, id).expect("our own").mappings;
    let ours: Vec<Mapping> = all
        .into_iter()
        .filter(|m| (m.start..m.end).contains(&at))
        .collect();
    match page_sizes(proc, id, &ours, 1 << 20) {
        Ok(sizes) => {
            let sizes = sizes[0].as_ref().expect("looked at");
            let sum: u64 = sizes.bytes.values().sum();
            assert!(sum >= bytes as u64 && sum == sizes.seen, "{sum}");
            let none = page_sizes(proc, id, &ours, 1).expect("as before");
            assert_eq!(none[0], None);
            // Too little to tell from.
            let page = rustix::param::page_size() as u64;
            let some = page_sizes(proc, id, &ours, BLOCKS_MIN * (page / 8) - 1).expect("as before");
            assert_eq!(some[0], None);
        }
        Err(error) => println!("SKIPPED: page frames: {error}"),
    }
    assert_eq!(memory[bytes - 1], 1);
}

/// Mappings larger than what was left of a budget had none: those of most memory.
#[test]
fn of_large_mappings_parts_are_looked_at() {
    let page = rustix::param::page_size() as u64;
    let pages = 64 * (page / 8);
    let memory = vec![1_u8; (pages * page) as usize];
    let at = memory.as_ptr() as u64;
    let (proc, id) = (Path::new("/proc"), std::process::id());
    let all = process(proc, id).expect("our own").mappings;
    let ours = all.iter().position(|m| (m.start..m.end).contains(&at));
    let ours = ours.expect("our own");
    // More than is there, and much that is not.
    let budget = 8 * (page / 8);
    match page_sizes(proc, id, &all, budget) {
        Ok(sizes) => {
            let sizes = sizes[ours].as_ref().expect("looked at");
            let resident = all[ours].resident;
            let sum: u64 = sizes.bytes.values().sum();
            assert!(resident - sum < 16 * page, "{sizes:?} {resident}");
            assert!(sizes.seen >= BLOCKS_MIN * page / 8 * page, "{sizes:?}");
            // Blocks are looked at as a whole.
            assert!(sizes.seen <= (budget + page / 8) * page, "{sizes:?}");
        }
        Err(error) => println!("SKIPPED: page frames: {error}"),
    }
    assert_eq!(memory[memory.len() - 1], 1);
}
