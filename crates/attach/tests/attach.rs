//! Programs that know nothing of it get their memory on demand: a child of this test, with other threads that touch it all the time.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use amdahl_attach::maps::Place;
use amdahl_attach::{Error, attach, attach_in_parts, maps};
use amdahl_pager::{MemorySource, PAGE, Pager, Support, Way};

const PAGES: usize = 2100;
/// How the child is told what to be.
const CHILD: &str = "ATTACH_TEST_CHILD";

fn content(page: usize) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&((page * 511 + at) as u64 + 1).to_le_bytes());
    }
    bytes
}

/// No test, but the program of the others. It sleeps in a system call in one thread, and waits on its input in another.
#[test]
fn program() {
    let Ok(kind) = std::env::var(CHILD) else {
        return;
    };
    let len = PAGES * PAGE;
    let shared = kind == "shared";
    let (flags, fd) = match shared {
        true => {
            // SAFETY: a new descriptor.
            let fd = unsafe { libc::memfd_create(c"memory of a guest".as_ptr(), 0) };
            // SAFETY: it is ours.
            assert_eq!(unsafe { libc::ftruncate(fd, len as i64) }, 0);
            (libc::MAP_SHARED, fd)
        }
        false => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // Between pages that cannot be touched: else it is one mapping with what is next to it.
    let wide = len + 2 * PAGE;
    let hidden = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), wide, libc::PROT_NONE, hidden, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let at = at.wrapping_byte_add(PAGE);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: in the place of a part of that.
    let at = unsafe { libc::mmap(at, len, protection, flags | libc::MAP_FIXED, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let at = at.cast::<u8>();
    // What it has before, which nobody sees again.
    for page in 0..PAGES {
        // SAFETY: of that memory.
        unsafe { at.add(page * PAGE).write_bytes(0xee, PAGE) };
    }
    let address = at.addr();
    println!("at {address:#x}");
    // A thread that computes, and one that is told by signals, all the time.
    std::thread::spawn(|| {
        let busy = AtomicU8::new(0);
        loop {
            busy.fetch_add(1, Ordering::Relaxed);
        }
    });
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe {
        libc::signal(
            libc::SIGALRM,
            nothing as extern "C" fn(libc::c_int) as usize,
        )
    };
    let often = libc::timeval {
        tv_sec: 0,
        tv_usec: 300,
    };
    let timer = libc::itimerval {
        it_interval: often,
        it_value: often,
    };
    // SAFETY: a valid structure.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    for line in std::io::stdin().lock().lines() {
        let page: usize = line.expect("a line").parse().expect("a number");
        let mut bytes = [0; PAGE];
        // SAFETY: of that memory.
        unsafe { at.add(page * PAGE).copy_to(bytes.as_mut_ptr(), PAGE) };
        let is_right = bytes == content(page);
        // Written, too.
        // SAFETY: as above.
        unsafe { at.add(page * PAGE).write_bytes(7, 1) };
        println!("{page} {is_right} {}", bytes[0]);
    }
    println!("end");
}

struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Program {
    fn start(kind: &str) -> Program {
        let mut child = Command::new(std::env::current_exe().expect("us"))
            .args(["--exact", "program", "--nocapture", "--test-threads=1"])
            .env(CHILD, kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("ourselves");
        let mut program = Program {
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
            address: String::new(),
        };
        let line = program.hear("at ");
        program.address = line;
        program
    }

    /// What follows that in the next line that has it.
    fn hear(&mut self, what: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.output.read_line(&mut line).expect("a line") > 0,
                "{what}: it has ended"
            );
            if let Some(at) = line.find(what) {
                return line[at + what.len()..].trim_end().to_owned();
            }
        }
    }

    /// Its memory, of that kind.
    fn places(&self, kind: &str) -> Vec<Place> {
        let name = match kind {
            "shared" => "memory of a guest",
            _ => &self.address,
        };
        let all = maps::of(self.child.id()).unwrap();
        let places = maps::places(&all, name, 0);
        assert_eq!(places.len(), 1, "{kind}: {all:?}");
        places
    }

    /// Touches a page, which is right.
    #[track_caller]
    fn has(&mut self, page: usize, kind: &str) {
        let expected = format!("true {}", content(page)[0]);
        assert_eq!(self.touch(page), expected, "{kind} {page}");
    }

    fn touch(&mut self, page: usize) -> String {
        writeln!(self.input, "{page}").expect("it listens");
        self.hear(&format!("{page} "))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_possible() -> bool {
    let why = match Support::probe().way {
        _ if cfg!(not(target_arch = "x86_64")) => "only x86-64",
        Some(Way::Device | Way::Call) => return true,
        _ => "no userfaultfd that serves the kernel, too",
    };
    println!("SKIPPED: {why}");
    false
}

#[test]
fn memory_of_a_program_that_knows_nothing_of_it_arrives_when_it_is_touched() {
    if !is_possible() {
        return;
    }
    for kind in ["private", "shared"] {
        let mut program = Program::start(kind);
        let (pid, places) = (program.child.id(), program.places(kind));
        let attached = attach(pid, &places).unwrap();
        assert_eq!(attached.regions[0].len, PAGES * PAGE);
        let bytes: Vec<u8> = (0..PAGES).flat_map(content).collect();
        let pager = Pager::builder()
            .handed_over(attached.descriptor, &attached.regions)
            .source(Arc::new(MemorySource::of_bytes(bytes.into())))
            .start()
            .unwrap();
        for page in [0, 599, 17, 300, 18] {
            program.has(page, kind);
        }
        // It keeps what it writes.
        assert!(program.touch(17).ends_with(" 7"), "{kind}");
        assert!(pager.stats().faults >= 5);
        pager.fill();
        let (_, missing) = pager.finish();
        assert_eq!(missing, 0);
        program.has(400, kind);
        assert!(program.child.try_wait().unwrap().is_none());
    }
}

#[test]
fn parts_of_its_memory_are_served_by_themselves() {
    if !is_possible() {
        return;
    }
    for kind in ["private", "shared"] {
        let mut program = Program::start(kind);
        let (pid, places) = (program.child.id(), program.places(kind));
        // A third is more than one huge page.
        let parts = attach_in_parts(pid, &places, 3).unwrap();
        assert!((2..=3).contains(&parts.len()), "{parts:?}");
        let bytes: Arc<[u8]> = (0..PAGES).flat_map(content).collect();
        let pagers = parts.into_iter().map(|part| {
            Pager::builder()
                .handed_over(part.descriptor, &part.regions)
                .source(Arc::new(MemorySource::of_bytes(bytes.clone())))
                .start()
                .unwrap()
        });
        let pagers: Vec<Pager> = pagers.collect();
        for page in [0, 2099, 17, 700, 1400, 300, 511, 512, 1024] {
            program.has(page, kind);
        }
        for pager in pagers {
            assert!(pager.stats().faults > 0, "{kind}");
            let (_, missing) = pager.finish();
            assert_eq!(missing, 0);
        }
        program.has(400, kind);
    }
}

#[test]
fn a_program_that_is_not_taken_goes_on_with_what_it_had() {
    if !is_possible() {
        return;
    }
    let mut program = Program::start("shared");
    let pid = program.child.id();
    let all = maps::of(pid).unwrap();
    // Its code and data come from files.
    let mine = |name: &str| maps::places(&all, name, 0);
    let memory = mine("memory of a guest");
    let data = mine("libc.so");
    assert!(!data.is_empty(), "{all:?}");
    let both = [memory.clone(), data].concat();
    let refused = attach(pid, &both).unwrap_err();
    assert!(matches!(refused, Error::Kind { .. }), "{refused:?}");
    assert_eq!(program.touch(5), format!("false {}", 0xee));
    assert!(matches!(attach(pid, &[]), Err(Error::Nothing)));
    // Once by its name and once by its address: the second time its threads would have stood still for minutes.
    let twice = [
        memory.clone(),
        maps::places(&all, "memory of a guest", 4 << 30),
    ]
    .concat();
    let start = memory[0].start;
    assert_eq!(attach(pid, &twice).unwrap_err(), Error::Twice { start });
    assert_eq!(program.touch(4), format!("false {}", 0xee));

    // Nothing of a try is left: neither threads that stand still nor descriptors.
    let descriptors = |pid: u32| -> HashSet<String> {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .flatten();
        open.filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.display().to_string()))
            .collect()
    };
    assert!(!descriptors(pid).contains("anon_inode:[userfaultfd]"));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("TracerPid:\t0"), "{status}");

    // One that somebody else has stopped.
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) }, 0);
    let refused = attach(pid, &memory).unwrap_err();
    assert_eq!(refused, Error::Refused { pid });
    // SAFETY: as above; stopped first, which detaching needs.
    unsafe {
        libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0);
        libc::waitpid(pid as i32, std::ptr::null_mut(), libc::__WALL);
        libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0);
    }
    assert_eq!(program.touch(6), format!("false {}", 0xee));
    let ended = program
        .child
        .kill()
        .and_then(|()| program.child.wait())
        .unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGKILL));
    let gone = attach(u32::MAX >> 2, &memory).unwrap_err();
    assert!(matches!(gone, Error::Gone { .. }), "{gone:?}");
}
