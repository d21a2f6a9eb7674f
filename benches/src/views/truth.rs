//! Whether the table of locks tells what planted programs measured themselves.

use std::path::Path;

use amdahl_report::locks::{self, schema::LockRow};
use amdahl_report::schema::Source;
use amdahl_sched::proc;
use serde::{Deserialize, Serialize};

use crate::stage::Stage;
use amdahl_figures::{Figure, Target, Unit};

/// Planted waits: what they are called, what the table calls them, and where it is waited for.
pub struct Family {
    name: &'static str,
    what: &'static str,
    function: &'static str,
    program: Program,
}

/// What makes them.
#[derive(PartialEq)]
enum Program {
    /// A family of `planted/locks/families.c` whose waiter sleeps: it knows how often.
    Sleeps,
    /// The same for a lock whose waiter is woken by each who leaves it, looks, and may sleep again: a wait is one or more sleeps, and
    /// the table has sleeps.
    SleepsAgain,
    /// One of the kernel's locks. The holder may have waited for the waiter, of which the program does not know: their
    /// times together are little longer than the waiter's.
    InKernel,
    /// The same on one CPU, where nobody spins while the owner runs: of a rwsem the kernel does not tell of that.
    OnOne,
    /// A planted program of its own, of two threads.
    Own,
    /// Goroutines for which no thread sleeps, `planted/locks/crowd.go`.
    Goroutines,
}

const fn family(name: &'static str, what: &'static str, function: &'static str) -> Family {
    Family {
        name,
        what,
        function,
        program: Program::Sleeps,
    }
}

/// Stacks are dear, and not taken of each wait for a lock of the kernel: all waits of the kind count.
const fn in_kernel(name: &'static str, what: &'static str, program: Program) -> Family {
    Family {
        program,
        ..family(name, what, "")
    }
}

const fn program(name: &'static str, what: &'static str, function: &'static str) -> Family {
    Family {
        program: Program::Own,
        ..family(name, what, function)
    }
}

/// Families of C programs, one of each kind of lock; and where a runtime stands between the program and its sleeps, or nothing does.
pub const FAMILIES: &[Family] = &[
    family("mutex", "pthread mutex", "want_mutex"),
    family("mutex-inheriting", "pthread mutex", "want_mutex"),
    family("uneven", "pthread mutex", "want_mutex"),
    family("nested", "pthread mutex", "want_mutex"),
    family("stream", "stdio mutex", "want_stream"),
    family("rwlock-read", "pthread rwlock (read)", "want_reading"),
    family("rwlock-write", "pthread rwlock (write)", "want_writing"),
    family("semaphore", "pthread semaphore", "want_semaphore"),
    family("barrier", "pthread barrier", "want_barrier"),
    family("condvar", "pthread condvar", "want_condition"),
    family("several", "futex (condition)", "want_any"),
    family("sysv-semaphore", "SysV semaphore", "want_set"),
    family("flock", "file lock", "want_flock"),
    family("fcntl", "file lock", "want_range"),
    family("rcu", "RCU", "want_grace"),
    Family {
        program: Program::SleepsAgain,
        ..family("probed", "percpu-rwsem (write)", "want_to_probe")
    },
    in_kernel("inode", "rwsem (write)", Program::OnOne),
    in_kernel("position", "mutex", Program::InKernel),
    in_kernel("mmap", "mmap_lock (write)", Program::OnOne),
    in_kernel("fault", "mmap_lock (read)", Program::OnOne),
    in_kernel("exec", "rwsem (read)", Program::InKernel),
    in_kernel("listed", "percpu-rwsem (read)", Program::InKernel),
    in_kernel("spin", "spinlock", Program::InKernel),
    program("c-raw_futex", "futex", "open_the_vault"),
    program("rust-barrier", "Rust barrier", "meet_at_the_summit"),
    program("go-mutex", "Go mutex", "main.lockTheCache"),
    Family {
        program: Program::Goroutines,
        ..family("goroutines", "Go mutex", "main.wantTheVault")
    },
];
const DIFFERENCE: Target = Target::AtMost(0.05);

/// What the program says, and what the table says.
#[derive(Serialize)]
pub struct Agreement {
    family: &'static str,
    program: Truth,
    table: Truth,
    events_lost: u64,
    /// What the hypervisor took of all CPUs meanwhile.
    stolen_s: f64,
    /// How often it was measured for the sake of that.
    runs: usize,
}

/// Waits.
#[derive(Deserialize, Serialize)]
struct Truth {
    /// Not all programs count.
    #[serde(default)]
    times: u64,
    seconds: f64,
}

/// What the hypervisor has taken of all CPUs.
fn stolen_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    proc::stolen_s(&stat, rustix::param::clock_ticks_per_second())
}

fn first_cpu() -> Result<String, String> {
    let cpus = amdahl_topology::allowed().map_err(|error| error.to_string())?;
    let first = cpus.first().ok_or("no CPU is allowed")?;
    Ok(first.to_string())
}

/// The words that run it.
fn command(stage: &Stage, family: &Family) -> Result<Vec<String>, String> {
    let folder = stage.scratch();
    let built = |program: &Path| program.to_string_lossy().into_owned();
    let mut compiler = match family.program {
        Program::Sleeps | Program::SleepsAgain | Program::InKernel | Program::OnOne => {
            let mut gcc = stage.command("gcc");
            gcc.args(["-std=gnu11", "-O2", "-g", "-pthread", "-o"])
                .arg(folder.join("families"))
                .arg(stage.root.join("planted/locks/families.c"));
            gcc
        }
        Program::Own => {
            let mut make = stage.command("make");
            make.args(["-s", "-C"]).arg(stage.root.join("planted"));
            make.arg(format!("OUT={}", folder.display()));
            make.arg(folder.join(family.name));
            make
        }
        Program::Goroutines => {
            let mut go = stage.command("go");
            go.args(["build", "-o"])
                .arg(folder.join(family.name))
                .arg(stage.root.join("planted/locks/crowd.go"));
            go
        }
    };
    let words = match family.program {
        Program::Own => [built(&folder.join(family.name)), "2".into()].to_vec(),
        Program::Goroutines => [built(&folder.join(family.name)), "200".into()].to_vec(),
        _ => [
            built(&folder.join("families")),
            family.name.into(),
            "200".into(),
        ]
        .to_vec(),
    };
    if !Path::new(&words[0]).exists() {
        stage
            .run(&mut compiler)
            .map_err(|error| error.to_string())?;
    }
    if family.program == Program::OnOne {
        let on_one = ["taskset".to_owned(), "-c".to_owned(), first_cpu()?];
        return Ok(on_one.into_iter().chain(words).collect());
    }
    Ok(words)
}

/// Measures at most so often.
const RUNS: usize = 5;

/// Runs a family under `amdahl locks`; again, where the hypervisor took more than a hundredth of what was waited: if that was
/// between the clock of the one and that of the other, they differ by it. The least disturbed run counts.
pub fn measure(stage: &Stage, family: &Family) -> Result<Agreement, String> {
    let mut least: Option<Agreement> = None;
    for runs in 1..=RUNS {
        let found = once(stage, family)?;
        let stolen = least.as_ref().map_or(f64::INFINITY, |least| least.stolen_s);
        if found.stolen_s < stolen {
            least = Some(found);
        }
        let least = least.as_mut().expect("a run");
        least.runs = runs;
        if least.stolen_s <= 0.01 * least.program.seconds {
            break;
        }
    }
    Ok(least.expect("a run"))
}

/// What the program says of the family, of several kinds of waits if it makes such.
fn made(family: &Family, told: &[u8]) -> serde_json::Result<Truth> {
    if family.program != Program::Goroutines {
        return serde_json::from_slice(told);
    }
    #[derive(Deserialize)]
    struct Waits {
        mutex: Truth,
    }
    serde_json::from_slice::<Waits>(told).map(|waits| waits.mutex)
}

fn once(stage: &Stage, family: &Family) -> Result<Agreement, String> {
    let out = stage.scratch().join("truth.json");
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", family.name);
    let words = command(stage, family).map_err(|error| failed(&error))?;
    // The program adds a line to it.
    let _ = std::fs::remove_file(&out);
    let result = stage.scratch().join("locks");
    let mut tool = stage.command(&stage.tool.to_string_lossy());
    tool.args(["locks", "--probe", "bpf", "--quiet", "--output"])
        .arg(&result)
        .env("PLANTED_OUT", &out);
    if family.program == Program::Goroutines {
        tool.arg("--goroutines");
    }
    tool.arg("--").args(words);
    let stolen_before = stolen_s();
    stage.run(&mut tool).map_err(|error| failed(&error))?;
    let stolen_s = stolen_s() - stolen_before;
    let told = std::fs::read(&out).map_err(|error| failed(&error))?;
    let found = result.join("result.json");
    let bytes = std::fs::read(&found).map_err(|error| failed(&error))?;
    let found = locks::parse(&bytes, found).map_err(|error| failed(&error))?;
    std::fs::remove_dir_all(&result).map_err(|error| failed(&error))?;
    let is_it = |row: &&LockRow| {
        let mut names = row.stack.iter().chain([&row.site.symbol]);
        let is_what = match family.name {
            // Who looks at the memory of another process waits for two of its locks.
            "exec" if row.what == "mmap_lock (read)" => {
                return row.site.symbol == "process_vm_rw_core";
            }
            // The first of some writers waits for a grace period instead of readers.
            "probed" => [family.what, "RCU"].contains(&&*row.what),
            _ => row.what == family.what,
        };
        is_what && names.any(|name| name.contains(family.function))
    };
    let rows: Vec<&LockRow> = found.rows.iter().filter(is_it).collect();
    let is_silent = |source: &Source| source.what == "kernel locks" && source.how == "missing";
    if matches!(family.program, Program::InKernel | Program::OnOne)
        && found.sources.iter().any(is_silent)
    {
        return Err(failed(&"this kernel does not tell of its locks"));
    }
    if family.name == "spin" && rows.is_empty() {
        return Err(failed(&"this kernel does not tell of who spins alone"));
    }
    Ok(Agreement {
        family: family.name,
        program: made(family, &told).map_err(|error| failed(&error))?,
        table: Truth {
            times: rows.iter().map(|row| row.times).sum(),
            seconds: rows.iter().map(|row| row.total_s).sum(),
        },
        events_lost: found.events_lost,
        stolen_s: stolen_s.max(0.0),
        runs: 1,
    })
}

impl Agreement {
    /// How far table and program are apart, as a share of what the program says.
    fn difference(&self) -> f64 {
        (self.table.seconds - self.program.seconds).abs() / self.program.seconds
    }
}

/// How far they are apart.
pub fn figure(family: &Family, measured: &Result<Agreement, String>) -> Figure {
    let said = measured.as_ref().map_or_else(
        |_| String::new(),
        |Agreement {
             program,
             table,
             stolen_s,
             runs,
             ..
         }| {
            let counted = match program.times {
                0 => String::new(),
                times => format!(" of {times} that the program counted"),
            };
            format!(
                "; {} waits{counted}, {:.4} s of {:.4} s; the hypervisor took {stolen_s:.2} s meanwhile, the least of {runs} runs",
                table.times, table.seconds, program.seconds
            )
        },
    );
    Figure {
        name: format!("waits told / waits made: {}", family.name),
        value: measured
            .as_ref()
            .map(Agreement::difference)
            .map_err(Clone::clone),
        unit: Unit::Difference,
        target: DIFFERENCE,
        versus: format!(
            "total wait in the table against the program's own clock{}{said}",
            if family.program == Program::OnOne {
                ", on one CPU"
            } else {
                ""
            }
        ),
    }
}

/// By how many waits table and programs differ, of those that know how often they waited and lost no event.
pub fn counts<'a>(measured: impl Iterator<Item = &'a Agreement>) -> Figure {
    let counting = |found: &&Agreement| {
        let mut families = FAMILIES.iter();
        families.any(|of| of.name == found.family && of.program == Program::Sleeps)
    };
    let (lost, whole): (Vec<&Agreement>, Vec<&Agreement>) = measured
        .filter(counting)
        .partition(|found| found.events_lost > 0);
    let apart = |found: &&Agreement| found.table.times.abs_diff(found.program.times);
    let differ = |found: &&&Agreement| apart(found) > 0;
    let told = |found: &&Agreement| {
        let Agreement {
            family,
            program,
            table,
            ..
        } = found;
        format!("; {family}: {} of {}", table.times, program.times)
    };
    let differing: String = whole.iter().filter(differ).map(told).collect();
    let left_out = match lost.len() {
        0 => String::new(),
        n => format!("; {n} lost events and are left out"),
    };
    Figure {
        name: "waits told - waits made: all families that count".to_owned(),
        value: match whole.len() {
            0 => Err("no family was measured without a lost event".to_owned()),
            _ => Ok(whole.iter().map(apart).sum::<u64>() as f64),
        },
        unit: Unit::Count,
        target: Target::AtMost(0.0),
        versus: format!(
            "waits in the table against the program's own count, of {} families{differing}{left_out}",
            whole.len()
        ),
    }
}
