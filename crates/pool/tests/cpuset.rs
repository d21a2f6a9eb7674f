//! Work on CPU sets while the real cpuset of this process changes. One test: it moves the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use amdahl_pool::{Pool, join};
use amdahl_topology::CpuSet;

/// A control group with a cpuset that this process is in. When it is dropped the process is back where it was, and the group
/// is gone.
struct Cpuset {
    folder: PathBuf,
    home: PathBuf,
}

impl Cpuset {
    /// Where the hierarchy with the controller is mounted, and the path of this process in it.
    fn hierarchy() -> Result<(PathBuf, String), String> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let of = |is_it: &dyn Fn(&str) -> bool| {
            groups.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                is_it(controllers).then(|| path.to_owned())
            })
        };
        if let Some(path) = of(&|names| names.split(',').any(|name| name == "cpuset")) {
            return Ok((PathBuf::from("/sys/fs/cgroup/cpuset"), path));
        }
        let root = Path::new("/sys/fs/cgroup");
        let enabled = std::fs::read_to_string(root.join("cgroup.subtree_control"));
        let enabled =
            enabled.map_err(|e| format!("no control groups at {}: {e}", root.display()))?;
        if !enabled.split_whitespace().any(|name| name == "cpuset") {
            return Err("groups have no controller `cpuset` (cgroup.subtree_control)".to_owned());
        }
        let path = of(&str::is_empty).ok_or("this process is in no group")?;
        Ok((root.to_owned(), path))
    }

    fn new(cpus: &CpuSet) -> Result<Self, String> {
        let (root, path) = Self::hierarchy()?;
        Self::remove_left(&root);
        let group = Cpuset {
            folder: root.join(format!("amdahl-pool-test-{}", std::process::id())),
            home: root.join(path.trim_start_matches('/')),
        };
        std::fs::create_dir(&group.folder).map_err(|e| format!("no group can be made: {e}"))?;
        // Version 1 takes nobody in before it knows where memory may be.
        if let Ok(nodes) = std::fs::read_to_string(root.join("cpuset.mems")) {
            group.write("cpuset.mems", nodes.trim())?;
        }
        group.write("cpuset.cpus", &cpus.to_string())?;
        group.write("cgroup.procs", &std::process::id().to_string())?;
        Ok(group)
    }

    /// Groups of tests that were killed.
    fn remove_left(root: &Path) {
        for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let of = name
                .to_str()
                .and_then(|name| name.strip_prefix("amdahl-pool-test-"));
            if of.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }

    fn write(&self, file: &str, what: &str) -> Result<(), String> {
        let path = self.folder.join(file);
        std::fs::write(&path, what).map_err(|e| format!("{}: `{what}`: {e}", path.display()))
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let me = std::process::id().to_string();
        let is_home = std::fs::write(self.home.join("cgroup.procs"), me);
        let is_gone = std::fs::remove_dir(&self.folder);
        if let Some(error) = is_home.err().or(is_gone.err()) {
            eprintln!("{} is left: {error}", self.folder.display());
        }
    }
}

/// xorshift: the same events each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Some hundred times the kernel takes one of two CPUs away, or gives it back, while work is queued on each and on both.
#[test]
fn the_real_cpuset_changes_and_nothing_is_lost() {
    const CHANGES: usize = 400;
    let allowed = amdahl_topology::allowed().unwrap();
    let pair: Vec<u32> = allowed.iter().take(2).collect();
    let &[first, second] = &pair[..] else {
        println!("SKIPPED the_real_cpuset_changes: one CPU is allowed");
        return;
    };
    let sets = [&[first][..], &[second], &[first, second]];
    let sets = sets.map(|cpus| CpuSet::from_iter(cpus.iter().copied()));
    let group = match Cpuset::new(&sets[2]) {
        Ok(group) => group,
        Err(why) => {
            println!("SKIPPED the_real_cpuset_changes: {why}");
            return;
        }
    };
    let pool = Pool::builder().follows_load(false).build().unwrap();
    let is_over = AtomicBool::new(false);
    let ran: Arc<Vec<AtomicU32>> = Arc::new((0..200_000).map(|_| AtomicU32::new(0)).collect());
    let (queued, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|s| {
        for thread in 1..3 {
            let (pool, sets, ran, is_over) = (&pool, &sets, &ran, &is_over);
            let (queued, cancelled) = (&queued, &cancelled);
            s.spawn(move || {
                let mut random = Random(thread);
                while !is_over.load(Ordering::Acquire) {
                    let n = queued.fetch_add(1, Ordering::Relaxed);
                    if n >= ran.len() {
                        return;
                    }
                    let of_work = ran.clone();
                    let on = &sets[random.below(3) as usize];
                    let handle = pool.queue_on(on, move || {
                        if n.is_multiple_of(4) {
                            join(|| std::hint::black_box(n), || std::hint::black_box(n));
                        }
                        of_work[n].fetch_add(1, Ordering::Relaxed);
                    });
                    match random.below(16) {
                        0 if handle.cancel() => {
                            cancelled.fetch_add(1, Ordering::Relaxed);
                        }
                        1..4 => handle.join().unwrap(),
                        _ => {}
                    }
                }
            });
        }
        let mut random = Random(7);
        for change in 0..CHANGES {
            let now = &sets[random.below(3) as usize];
            group.write("cpuset.cpus", &now.to_string()).unwrap();
            assert_eq!(&amdahl_topology::allowed().unwrap(), now, "it is real");
            // Now and then the pool is told; else its watch sees it later, or who is to bind itself finds out.
            if random.below(2) == 0 {
                pool.refresh();
            }
            while queued.load(Ordering::Relaxed) < change * 20 {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Release);
    });
    group.write("cpuset.cpus", &sets[2].to_string()).unwrap();
    pool.refresh();
    pool.flush();
    let queued = queued.into_inner().min(ran.len());
    let times = |wanted: u32| {
        let ran = ran[..queued].iter();
        ran.filter(|n| n.load(Ordering::Relaxed) == wanted).count()
    };
    assert_eq!(
        times(0),
        cancelled.into_inner(),
        "what was not cancelled has run"
    );
    assert_eq!(times(0) + times(1), queued, "nothing runs twice");
    assert!(pool.state().taken_over > 0, "CPUs went away beneath work");
    assert_eq!(pool.cpus(), sets[2]);
    drop(pool);
}
