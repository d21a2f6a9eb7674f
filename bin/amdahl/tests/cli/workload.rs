//! Programs for the tool to look at.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::processes::Group;
use crate::tool::{
    Place, Ran, Running, has, skipped, until_it_opens, until_it_runs, until_it_watches,
};

const PLANTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planted");

/// Two threads that hand a byte to each other through pipes, over and over.
pub const RELAY: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static int there[2], back[2];
static void pass_on(int from, int to) {
    char byte = 0;
    for (int i = 0; i < 200000; i++)
        if (read(from, &byte, 1) != 1 || write(to, &byte, 1) != 1) exit(3);
}
static void *partner(void *unused) {
    pass_on(there[0], back[1]);
    return unused;
}
int main(void) {
    pthread_t thread;
    if (pipe(there) || pipe(back) || write(back[1], "", 1) != 1) return 2;
    pthread_create(&thread, 0, partner, 0);
    pass_on(back[0], there[1]);
    pthread_join(thread, 0);
    return 0;
}
"#;

/// Threads, as many as the first argument says, share a fixed amount of work; none waits.
pub const BUSY: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#define TOTAL 400000000UL
static unsigned long threads;
static void *churn(void *arg) {
    unsigned long x = (unsigned long)arg;
    for (unsigned long i = 0; i < TOTAL / threads; i++)
        x = x * 6364136223846793005UL + 1442695040888963407UL;
    return (void *)x;
}
int main(int argc, char **argv) {
    threads = argc > 1 ? strtoul(argv[1], 0, 10) : 1;
    pthread_t all[256];
    if (threads < 1 || threads > 256) return 2;
    for (unsigned long t = 0; t < threads; t++)
        if (pthread_create(&all[t], 0, churn, (void *)t)) return 3;
    for (unsigned long t = 0; t < threads; t++)
        pthread_join(all[t], 0);
    return 0;
}
"#;

/// Threads, as many as the first argument says, take a mutex in turn and work while they have it.
pub const CROWDED: &str = r#"
#include <pthread.h>
#include <stdlib.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long result;
static long left = 300;
static void *queue_up(void *unused) {
    for (int is_over = 0; !is_over;) {
        pthread_mutex_lock(&lock);
        unsigned long x = left;
        for (int i = 0; i < 1000000; i++)
            x = x * 6364136223846793005UL + 1442695040888963407UL;
        result = x;
        is_over = --left <= 0;
        pthread_mutex_unlock(&lock);
    }
    return unused;
}
int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    pthread_t all[256];
    if (threads < 1 || threads > 256) return 2;
    for (int t = 0; t < threads; t++)
        if (pthread_create(&all[t], 0, queue_up, 0)) return 3;
    for (int t = 0; t < threads; t++)
        pthread_join(all[t], 0);
    return 0;
}
"#;

/// One thread works, the other one spins until that is done.
pub const SPINNING: &str = r#"
#include <pthread.h>
static volatile int is_done;
static volatile unsigned long result;
static void *churn(void *arg) {
    unsigned long x = (unsigned long)arg;
    for (unsigned long i = 0; i < 400000000UL; i++)
        x = x * 6364136223846793005UL + 1442695040888963407UL;
    result = x;
    is_done = 1;
    return arg;
}
__attribute__((noinline)) static void await_the_end(void) {
    while (!is_done)
        ;
}
int main(void) {
    pthread_t worker;
    if (pthread_create(&worker, 0, churn, 0)) return 3;
    await_the_end();
    return pthread_join(worker, 0);
}
"#;

/// Reads of the memory of another process, and times the reads that sleep.
pub const READER: &str = include_str!("../mem/reader.c");

/// Runs the command that follows without the right to `perf_event_open`.
pub const WITHOUT_PERF: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof steps / sizeof *steps, steps };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 77;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
    execvp(argv[1], argv + 1);
    return 127;
}
"#;

/// Compiles a C program; `None` with SKIPPED where there is no compiler.
pub fn compiled(place: &Place, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (program, file) = (place.join(name), place.join(&format!("{name}.c")));
    std::fs::write(&file, source).expect("a source file");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command
        .args(["-O1", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&file);
    match command.output() {
        Err(error) => {
            skipped(format_args!("no C compiler: {compiler}: {error}"));
            None
        }
        Ok(output) => {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            Some(program)
        }
    }
}

/// A planted program of those for `scale`, built; `None` without a compiler.
pub fn planted(place: &Place, name: &str, compiler: &str) -> Option<PathBuf> {
    for needed in ["make", compiler] {
        if !has(needed) {
            skipped(format!("{name}: no {needed} found"));
            return None;
        }
    }
    let program = place.join(name);
    let mut make = Command::new("make");
    make.args(["-s", "-C", PLANTED]).arg(&program);
    make.arg(format!(
        "OUT={}",
        program.parent().expect("a folder").display()
    ));
    let ran = place.run(place.here(make));
    assert!(ran.status.success(), "{}", ran.err);
    Some(program)
}

/// Arguments for runs of a shell's `script` without a warm-up and a folder, told as data.
pub fn runs_of<'a>(
    cpus: &'a str,
    runs: &'a str,
    more: &[&'a str],
    script: &'a str,
) -> Vec<&'a str> {
    let usual = ["scale", "--cpus", cpus, "--runs", runs, "--no-warmup"];
    let told = ["--json", "--no-output", "--", "sh", "-c", script];
    [&usual[..], more, &told[..]].concat()
}

/// A planted program, which begins when it is told to, and where it will say what it measured.
pub fn to_be_told(place: &Place, program: &Path, how: &[&str], out: &str) -> Running {
    let mut command = Command::new(program);
    command.args(how).env("PLANTED_OUT", place.join(out));
    let mut command = place.here(command);
    command.stdin(Stdio::piped());
    place.start(command)
}

/// The line that a planted program wrote there.
pub fn said(place: &Place, out: &str) -> Value {
    serde_json::from_str(&place.read(out)).expect("a line")
}

/// Runs a planted program under a view of the tool. What the program says, and what the tool does.
pub fn watched(place: &Place, view: &str, options: &[&str], command: &[&OsStr]) -> (Value, Ran) {
    let _ = std::fs::remove_file(place.join("said"));
    let mut tool = place.tool(view.split(' '));
    tool.args(["--json", "--quiet"]).args(options);
    tool.arg("--").args(command);
    tool.env("PLANTED_OUT", place.join("said"));
    let ran = place.run(tool).ends_with(0);
    (said(place, "said"), ran)
}

/// A view of the tool at work on processes that are there, for longer than the test lasts.
pub fn watching(place: &Place, view: &str, options: &[&OsStr]) -> Running {
    let mut tool = place.tool(view.split(' '));
    tool.args(["--json", "--quiet", "--for", "1h"])
        .args(options);
    let tool = place.start(tool);
    until_it_watches(&tool);
    tool
}

/// Watches a planted program that begins then, until it ends. Its process, what it says, and what the tool does.
pub fn watched_to_its_end(
    place: &Place,
    view: &str,
    program: &Path,
    how: &[&str],
) -> (u32, Value, Ran) {
    let _ = std::fs::remove_file(place.join("said"));
    let mut process = to_be_told(place, program, how, "said");
    let pid = process.pid();
    let tool = watching(place, view, &["--pid", &pid.to_string()].map(OsStr::new));
    process.say("begin");
    process.ended().ends_with(0);
    let ran = tool.ended().ends_with(0);
    (pid, said(place, "said"), ran)
}

/// Starts the tool, and puts `other` in the place of `it`, a file that its `program` has mapped: when the tool knows the file, or as soon as the
/// program runs. Then there is a file `enough`.
pub fn replaced_while_watched(
    place: &Place,
    tool: Command,
    program: &Path,
    (it, other): (&Path, &Path),
    is_known: bool,
) -> Ran {
    let enough = place.join("enough");
    let _ = std::fs::remove_file(&enough);
    let tool = place.start(tool);
    if is_known {
        until_it_opens(&tool, it);
    } else {
        until_it_runs(&tool, program);
    }
    put_in_place(place, other, it);
    std::fs::write(&enough, "").expect("a file");
    tool.ended()
}

/// Replaces a file by a copy of another: who has the old one open keeps that.
pub fn put_in_place(place: &Place, other: &Path, it: &Path) {
    let new = place.join("new");
    std::fs::copy(other, &new).expect("a copy");
    std::fs::rename(new, it).expect("replaced");
}

/// Of a planted program that runs in a control group and beside it.
pub struct InAGroup {
    /// The process in it.
    pub pid: u32,
    /// What that one says, and the other one.
    pub inside: Value,
    pub outside: Value,
    /// What the tool does.
    pub ran: Ran,
}

/// Watches the control group until both have ended; `None` with SKIPPED where it takes no process.
pub fn watched_in_a_group(
    place: &Place,
    view: &str,
    options: &[&str],
    (program, how): (&Path, &[&str]),
    group: &Group,
) -> Option<InAGroup> {
    for name in ["inside", "outside"] {
        let _ = std::fs::remove_file(place.join(name));
    }
    let mut inside = to_be_told(place, program, how, "inside");
    let mut outside = to_be_told(place, program, how, "outside");
    let pid = inside.pid();
    if !group.takes_in(pid) {
        return None;
    }
    let mut options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    options.extend([OsStr::new("--cgroup"), group.folder().as_os_str()]);
    let tool = watching(place, view, &options);
    for process in [&mut inside, &mut outside] {
        process.say("begin");
    }
    for process in [inside, outside] {
        process.ended().ends_with(0);
    }
    tool.signal(rustix::process::Signal::INT);
    let ran = tool.ended().ends_with(5);
    Some(InAGroup {
        pid,
        inside: said(place, "inside"),
        outside: said(place, "outside"),
        ran,
    })
}

/// What the hypervisor has taken of all CPUs until now, in seconds.
fn stolen_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("readable");
    amdahl_sched::proc::stolen_s(&stat, rustix::param::clock_ticks_per_second())
}

/// How often [`in_some_try`] measures.
pub const TRIES: usize = 4;
/// The same with what the hypervisor disturbs.
const TRIES_MAX: usize = 12;
/// A try in which the hypervisor takes more than this of a CPU is one that it disturbs.
const STOLEN_MAX: f64 = 0.03;

/// Measures until the tool and the program agree, a few times: somebody else may take the CPU away
/// between the clock of the one and that of the other. What the hypervisor disturbs is measured again.
#[track_caller]
pub fn in_some_try(mut measure: impl FnMut() -> Result<(), String>) {
    let mut misses = Vec::new();
    let mut undisturbed = 0;
    while undisturbed < TRIES && misses.len() < TRIES_MAX {
        let (before, begun) = (stolen_s(), Instant::now());
        let Err(miss) = measure() else { return };
        let stolen = (stolen_s() - before) / begun.elapsed().as_secs_f64();
        undisturbed += usize::from(stolen <= STOLEN_MAX);
        misses.push(format!("{miss} ({:.1} % of a CPU stolen)", stolen * 100.0));
    }
    panic!("never: {misses:#?}");
}
