//! Programs under test: compiled, started, halted at a known place, looked into.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use amdahl_probe::symbol::{LATEST, MapEvent, Maps, RawStack};

/// Stack bytes copied, as a probe would.
pub const STACK_BYTES: usize = 4096;

/// Compiles `source` with `command`, or says why not.
pub fn compile(folder: &Path, command: &[&str], source: &str, name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/symbol/programs")
        .join(source);
    let program = folder.join(name);
    let (compiler, arguments) = command.split_first().unwrap();
    let output = Command::new(compiler)
        .args(arguments)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .current_dir(folder)
        .env("GO111MODULE", "off")
        .output();
    match output {
        Err(error) => {
            eprintln!("SKIPPED: cannot run {compiler}: {error}");
            None
        }
        Ok(output) if !output.status.success() => {
            panic!(
                "{command:?} failed: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        }
        Ok(_) => Some(program),
    }
}

/// A halted program. It is killed when dropped.
pub struct Halted {
    child: Child,
    pub pid: u32,
    tid: i32,
}

/// Registers and stack of a halted thread.
pub struct Captured {
    pub pid: u32,
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    pub lr: u64,
    pub stack: Vec<u8>,
}

impl Captured {
    pub fn raw(&self) -> RawStack<'_> {
        RawStack {
            pid: self.pid,
            ts: LATEST,
            ip: self.ip,
            sp: self.sp,
            bp: self.bp,
            lr: self.lr,
            user_stack: &self.stack,
            user_mode: true,
        }
    }
}

impl Halted {
    /// Starts `program` and halts the thread that blocks in system call `number`.
    pub fn in_syscall(program: &Path, arguments: &[&str], number: i64) -> Halted {
        let name = program.file_name().unwrap().to_str().unwrap();
        Halted::in_syscall_of(name, program, arguments, number)
    }

    /// The same for a program that becomes the one called `name`.
    pub fn in_syscall_of(name: &str, program: &Path, arguments: &[&str], number: i64) -> Halted {
        let child = start(program, arguments);
        let pid = child.id();
        let tid = loop {
            match blocked_thread(pid, name, number) {
                Some(tid) => break tid,
                None => std::thread::yield_now(),
            }
        };
        seize(tid);
        // SAFETY: no pointers; the thread is ours to trace.
        let asked = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) };
        assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
        wait_for_stop(tid);
        Halted { child, pid, tid }
    }

    /// Starts `program`, which stops itself.
    pub fn at_stop(program: &Path, arguments: &[&str]) -> Halted {
        let child = start(program, arguments);
        let tid = child.id() as i32;
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: `info` is writable for the call; WNOWAIT leaves the child's state.
        let waited = unsafe {
            libc::waitid(
                libc::P_PID,
                child.id(),
                info.as_mut_ptr(),
                libc::WSTOPPED | libc::WNOWAIT,
            )
        };
        assert_eq!(waited, 0, "{}", std::io::Error::last_os_error());
        seize(tid);
        // SAFETY: sends a signal to our own child.
        unsafe { libc::kill(tid, libc::SIGCONT) };
        // SAFETY: no pointers; the thread is ours to trace.
        unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) };
        wait_for_stop(tid);
        Halted {
            pid: child.id(),
            child,
            tid,
        }
    }

    /// Executes one instruction.
    pub fn step(&self) {
        // SAFETY: no pointers; the thread is halted by us.
        let stepped = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.tid, 0, 0) };
        assert_eq!(stepped, 0, "{}", std::io::Error::last_os_error());
        wait_for_stop(self.tid);
    }

    pub fn capture(&self, stack_bytes: usize) -> Captured {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
        let mut vector = libc::iovec {
            iov_base: registers.as_mut_ptr().cast(),
            iov_len: size_of::<libc::user_regs_struct>(),
        };
        // SAFETY: `vector` describes `registers`, which outlives the call.
        let got = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, self.tid, 1, &mut vector) };
        assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a plain struct of integers, filled in by the kernel.
        let registers = unsafe { registers.assume_init() };
        #[cfg(target_arch = "x86_64")]
        let (ip, sp, bp, lr) = (registers.rip, registers.rsp, registers.rbp, 0);
        #[cfg(target_arch = "aarch64")]
        let (ip, sp, bp, lr) = (
            registers.pc,
            registers.sp,
            registers.regs[29],
            registers.regs[30],
        );
        Captured {
            pid: self.pid,
            ip,
            sp,
            bp,
            lr,
            stack: self.memory(sp, stack_bytes),
        }
    }

    /// Memory of the process, less where less is mapped.
    pub fn memory(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        let count = memory.read_at(&mut bytes, address).unwrap();
        bytes.truncate(count);
        bytes
    }

    /// Tells `maps` of the program's mappings as perf events would.
    pub fn tell(&self, maps: &mut Maps) {
        let mut text = String::new();
        File::open(format!("/proc/{}/maps", self.pid))
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        maps.exec(1, self.pid);
        for line in text.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = fields[0].split_once('-').unwrap();
            let start = u64::from_str_radix(start, 16).unwrap();
            maps.map(&MapEvent {
                ts: 2,
                pid: self.pid,
                start,
                len: u64::from_str_radix(end, 16).unwrap() - start,
                file_offset: u64::from_str_radix(fields[2], 16).unwrap(),
                device: 0,
                inode: 0,
                path: Path::new(fields.get(5).unwrap_or(&"//anon")),
                executable: fields[1].contains('x'),
            });
        }
    }

    /// Ends the program.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", self.pid));
    }
}

fn start(program: &Path, arguments: &[&str]) -> Child {
    // Standard input stays open and empty: a read blocks.
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn blocked_thread(pid: u32, name: &str, number: i64) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(!stat.contains(") Z "), "the program has ended");
    // The kernel cuts names at 15 bytes.
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if comm.trim_end() != &name[..name.len().min(15)] {
        return None;
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the program has ended");
    let is_there = |tid: &i32| {
        let syscall = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat"));
        let (Ok(syscall), Ok(stat)) = (syscall, stat) else {
            return false;
        };
        let sleeps = stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('S'));
        sleeps && syscall.split(' ').next() == Some(&number.to_string())
    };
    tasks
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
        .find(is_there)
}

fn seize(tid: i32) {
    // SAFETY: no pointers.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0) };
    assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
}

fn wait_for_stop(tid: i32) {
    let mut status = 0;
    // SAFETY: `status` is writable for the call.
    let waited = unsafe { libc::waitpid(tid, &mut status, libc::__WALL) };
    assert_eq!(waited, tid, "{}", std::io::Error::last_os_error());
    assert!(libc::WIFSTOPPED(status), "status {status:#x}");
}
