#![cfg(not(loom))]
//! What a pool tells of itself is what `amdahl report` reads.

use amdahl_pool::{Pool, SimulatedCpus};
use amdahl_topology::Topology;

#[test]
fn waits_are_a_result_of_amdahl_locks() {
    let cpus = SimulatedCpus::new(Topology::synthetic("4 core").unwrap());
    // The limit is asked for below; beside other tests the pool would lower it.
    let pool = Pool::builder()
        .cpus(cpus)
        .name("shown")
        .follows_load(false)
        .build()
        .unwrap();
    let handles: Vec<_> = (0..1000).map(|n| pool.spawn(move || n)).collect();
    handles.into_iter().for_each(|handle| drop(handle.join()));
    // Workers that have slept have waited.
    let is_idle = |row: &amdahl_pool::PoolWaits| row.what == "idle worker" && row.count.sleeps > 0;
    while !pool.waits().iter().any(is_idle) {
        pool.spawn(|| ()).join().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("result.json"), pool.waits_json()).unwrap();
    let result = amdahl_report::locks::load(folder.path()).unwrap();
    let idle = result
        .rows
        .iter()
        .find(|row| row.what == "pool: idle worker")
        .unwrap();
    assert!(idle.times > 0 && idle.sleeps > 0 && idle.total_s >= idle.max_s);
    assert_eq!(idle.class, "partner");
    assert!(result.target.contains("`shown`"));
    let state = pool.state();
    assert_eq!((state.limit, state.guests), (4, 0));
}

/// Each thread that had been a guest left a file open: a server with a thread for each request ran out of descriptors.
#[test]
fn threads_that_were_guests_leave_no_file_open() {
    let pool = Pool::builder().threads_max(2).build().unwrap();
    let work = || {
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 30 {
            std::hint::spin_loop();
        }
    };
    let guest = || {
        pool.join(work, work);
        let me = std::fs::read_link("/proc/thread-self").expect("a thread");
        me.file_name().expect("its number").to_owned()
    };
    let guests: Vec<_> = (0..20)
        .map(|_| std::thread::scope(|scope| scope.spawn(guest).join().unwrap()))
        .collect();
    // The watch looks again while there is work.
    work();
    pool.join(work, work);
    let open: Vec<_> = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|path| path.ends_with("schedstat"))
        .collect();
    let left = guests[..15].iter().filter(|guest| {
        let is_of = |path: &std::path::PathBuf| path.iter().any(|part| part == guest.as_os_str());
        open.iter().any(is_of)
    });
    assert_eq!(left.count(), 0, "{open:?}");
}
