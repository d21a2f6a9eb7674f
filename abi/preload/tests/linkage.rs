//! What the library needs of the programs that load it, and what it takes from them.

use std::path::PathBuf;

use object::{Object, ObjectSymbol};

fn library() -> Vec<u8> {
    let test = std::env::current_exe().expect("the path of the test");
    let deps = test.parent().expect("its folder");
    let name = "libamdahl_preload.so";
    let found: Option<PathBuf> = [deps.join(name), deps.join("..").join(name)]
        .into_iter()
        .find(|path| path.exists());
    std::fs::read(found.expect("cargo builds the library before its tests")).expect("readable")
}

/// A library that needs more than libc does not load everywhere, and a musl program that is
/// given one that does not load ends at once.
#[test]
fn nothing_but_libc_is_needed() {
    let bytes = library();
    let file = object::File::parse(&*bytes).expect("an ELF file");
    const LIBC: &[&str] = &[
        "__cxa_finalize",
        "__errno_location",
        "clock_gettime",
        "close",
        "dlsym",
        "getenv",
        "getpid",
        "getrlimit",
        "memcpy",
        "memset",
        "mmap",
        "open",
        "posix_fallocate",
        "strlen",
        "syscall",
        "unlink",
        // Weak, of the C start files.
        "_ITM_deregisterTMCloneTable",
        "_ITM_registerTMCloneTable",
        "__gmon_start__",
    ];
    let needed: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty() && !LIBC.contains(name))
        .collect();
    assert!(
        needed.is_empty(),
        "{needed:?}: a panic or an allocation has come in"
    );
}

/// Every symbol that is exported is taken from the program.
#[test]
fn only_what_is_documented_is_interposed() {
    let bytes = library();
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let mut exported: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    exported.sort_unstable();
    assert_eq!(
        exported,
        [
            "pthread_barrier_wait",
            "pthread_clockjoin_np",
            "pthread_cond_clockwait",
            "pthread_cond_timedwait",
            "pthread_cond_wait",
            "pthread_create",
            "pthread_join",
            "pthread_mutex_clocklock",
            "pthread_mutex_lock",
            "pthread_mutex_timedlock",
            "pthread_rwlock_clockrdlock",
            "pthread_rwlock_clockwrlock",
            "pthread_rwlock_rdlock",
            "pthread_rwlock_timedrdlock",
            "pthread_rwlock_timedwrlock",
            "pthread_rwlock_wrlock",
            "pthread_spin_lock",
            "pthread_timedjoin_np",
            "sem_clockwait",
            "sem_timedwait",
            "sem_wait",
        ]
    );
}
