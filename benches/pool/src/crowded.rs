//! The same when others want the CPUs: busy processes, or a quota.
//!
//! Measured in a process of its own, which finds the CPUs crowded from its start, and beside which
//! the competitors' CPU time is not counted.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use amdahl_figures::{Figure, Target, Unit};
use amdahl_pool::Pool;

use crate::fork_join::{loop_of, loop_of_blocks, random};
use crate::rivals::Rival;
use crate::rounds::{Cost, cost, ratio, rounds};
use crate::wake;

/// What makes CPUs scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scarce {
    Busy,
    Quota,
}

const TIMES: usize = 5;

type Work = Box<dyn Fn(&str)>;

/// The pool, those of the others that are installed, and the work alone.
fn with(others: [(Rival, Option<&str>); 3]) -> Vec<Rival> {
    let others = others.into_iter().filter(|(_, why)| why.is_none());
    let others = others.map(|(rival, _)| rival);
    let rivals = [Rival::Pool].into_iter().chain(others);
    rivals.chain([Rival::Alone]).collect()
}

/// A name, who takes part (the pool first), and the work by name of who does it.
fn cases() -> Vec<(&'static str, Vec<String>, Work)> {
    let installed = || with(Rival::OTHERS).into_iter();
    let names = || {
        installed()
            .map(|rival| rival.name().to_owned())
            .collect::<Vec<_>>()
    };
    let of = move |name: &str| {
        installed()
            .find(|rival| rival.name() == name)
            .expect("a rival")
    };
    let best_sorts = || with(Rival::with_best_sort()).into_iter();
    let tasks = || ["pool", "tokio"].map(str::to_owned).into();
    // Numbers and threads are there when somebody first wants them.
    static NUMBERS: LazyLock<Vec<u64>> = LazyLock::new(|| random(500_000));
    static TOKIO: LazyLock<tokio::runtime::Runtime> = LazyLock::new(wake::tokio);
    vec![
        (
            "200 loops of 200 us",
            names(),
            Box::new(move |who| {
                for _ in 0..200 {
                    loop_of(of(who), 2000, 8);
                }
            }),
        ),
        (
            "2000 loops of 20 us",
            names(),
            Box::new(move |who| {
                for _ in 0..2000 {
                    loop_of_blocks(of(who));
                }
            }),
        ),
        (
            "fib(27), 10 times",
            names(),
            Box::new(move |who| {
                (0..10).for_each(|_| assert_eq!(of(who).fib(27), 196_418));
            }),
        ),
        (
            "sort of 500,000 numbers",
            names(),
            Box::new(move |who| of(who).sort(&mut NUMBERS.clone())),
        ),
        (
            "best sort of 500,000 numbers",
            best_sorts()
                .map(|rival| rival.name_of_best_sort().to_owned())
                .collect(),
            Box::new(move |who| {
                let rival = best_sorts().find(|rival| rival.name_of_best_sort() == who);
                rival.expect("a rival").best_sort(&mut NUMBERS.clone());
            }),
        ),
        (
            "skewed loop of 200,000",
            names(),
            Box::new(move |who| loop_of(of(who), 200_000, 16)),
        ),
        (
            "ping-pong of two tasks",
            tasks(),
            Box::new(|who| match who {
                "pool" => wake::tasks_pool(Pool::global(), 5_000),
                _ => wake::tasks_tokio(&TOKIO, 5_000),
            }),
        ),
        (
            "spawning 20,000 tasks",
            tasks(),
            Box::new(|who| match who {
                "pool" => wake::spawns_pool(Pool::global(), 20_000),
                _ => wake::spawns_tokio(&TOKIO, 20_000),
            }),
        ),
        (
            "channel between two tasks",
            tasks(),
            Box::new(|who| match who {
                "pool" => wake::stream_pool(Pool::global(), 50_000),
                _ => wake::stream_tokio(&TOKIO, 50_000),
            }),
        ),
        (
            "ping-pong of two threads",
            ["pool", "tokio", "crossbeam-channel"]
                .map(str::to_owned)
                .into(),
            Box::new(|who| match who {
                "pool" => wake::threads_pool(2000),
                "tokio" => wake::threads_tokio(2000),
                _ => wake::threads_crossbeam(2000),
            }),
        ),
    ]
}

/// In the process of its own: a line for each case, side and round.
pub fn measure() {
    for (name, sides, work) in cases() {
        let mut runs: Vec<_> = sides
            .iter()
            .map(|who| {
                let work = &work;
                move || cost(|| work(who))
            })
            .collect();
        let mut runs: Vec<&mut dyn FnMut() -> Cost> = runs.iter_mut().map(|run| run as _).collect();
        for (who, costs) in sides.iter().zip(rounds(TIMES, &mut runs)) {
            for cost in costs {
                println!("{name}\t{who}\t{}\t{}", cost.wall_s, cost.cpu_s);
            }
        }
    }
}

/// A busy process, until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // SAFETY: one system call, which takes integers: it must not outlive this process.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        command.arg("--busy").spawn().map(Busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A control group with half of the machine's CPU time, removed when dropped.
struct Half(PathBuf);

impl Half {
    fn new(cpus: usize) -> Result<Self, String> {
        let v1 = PathBuf::from("/sys/fs/cgroup/cpu");
        let (root, is_v1) = match v1.join("cpu.shares").exists() || v1.join("tasks").exists() {
            true => (v1, true),
            false => (PathBuf::from("/sys/fs/cgroup"), false),
        };
        let half = Half(root.join(format!("amdahl-bench-{}", std::process::id())));
        fs::create_dir(&half.0).map_err(|e| format!("no control group can be made: {e}"))?;
        let quota = cpus * 50_000;
        let written = match is_v1 {
            true => fs::write(half.0.join("cpu.cfs_period_us"), "100000")
                .and_then(|()| fs::write(half.0.join("cpu.cfs_quota_us"), quota.to_string())),
            false => fs::write(half.0.join("cpu.max"), format!("{quota} 100000")),
        };
        written.map_err(|e| format!("no quota can be set: {e}"))?;
        Ok(half)
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn costs(scarce: Scarce) -> Result<Vec<(String, String, Cost)>, String> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    command.arg("--crowded").stdout(Stdio::piped());
    let mut busy = Vec::new();
    let mut half = None;
    match scarce {
        Scarce::Busy => {
            for _ in 0..cpus {
                busy.push(Busy::start().map_err(|e| e.to_string())?);
            }
        }
        Scarce::Quota => {
            let group = half.insert(Half::new(cpus)?);
            let procs = group.0.join("cgroup.procs");
            // SAFETY: between fork and exec, of a process with one thread: opens and writes a file.
            unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
        }
    }
    let output = command
        .spawn()
        .and_then(Child::wait_with_output)
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!(
            "the measuring process ended with {}",
            output.status
        ));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| {
        let mut words = line.split('\t');
        let (name, who) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (wall_s, cpu_s) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((name, who, Cost { wall_s, cpu_s }))
    };
    Ok(text.lines().filter_map(line).collect())
}

pub fn figures(wanted: &dyn Fn(&str) -> bool) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (what, scarce) in [("crowded", Scarce::Busy), ("quota of 50 %", Scarce::Quota)] {
        if !wanted(what) {
            continue;
        }
        let measured = costs(scarce);
        for (name, sides, _) in cases() {
            // Of sorts each has a name of its own.
            let alone = [Rival::Alone.name(), Rival::Alone.name_of_best_sort()];
            let alone = sides.iter().find(|side| alone.contains(&side.as_str()));
            let of = |who: &str| -> Result<Vec<Cost>, String> {
                let rows = measured.as_ref().map_err(String::clone)?.iter();
                Ok(rows
                    .filter(|row| row.0 == name && row.1 == who)
                    .map(|row| row.2)
                    .collect())
            };
            if let Some(alone) = alone {
                let least = of(alone).and_then(|least| {
                    let ours = of(&sides[0])?;
                    Ok(ratio(&ours, &least, |cost| cost.cpu_s))
                });
                figures.push(Figure {
                    name: format!("{what}: {name}, CPU use by the least"),
                    value: least,
                    unit: Unit::Ratio,
                    target: Target::Stated,
                    versus: format!(
                        "the work alone on one thread, which nobody does with less; medians of {TIMES} interleaved rounds"
                    ),
                });
            }
            for rival in sides[1..].iter().filter(|side| Some(*side) != alone) {
                let beside = |who: &str| {
                    let (costs, theirs) = (of(who)?, of(rival)?);
                    let wall = ratio(&costs, &theirs, |c| c.wall_s);
                    Ok::<_, String>((wall, ratio(&costs, &theirs, |c| c.cpu_s)))
                };
                let value = beside(&sides[0]);
                let mut told = match &value {
                    Ok((wall, cpu)) => format!("time {wall:.2} and CPU use {cpu:.2} of {rival}'s"),
                    Err(_) => rival.clone(),
                };
                if let Some(alone) = alone
                    && let Ok((wall, cpu)) = beside(alone)
                {
                    told += &format!(
                        " (the work alone on one thread: time {wall:.2} and CPU use {cpu:.2}; nobody uses less)"
                    );
                }
                figures.push(Figure {
                    name: format!("{what}: {name}, {rival}"),
                    value: value.map(|(wall, cpu)| wall.min(cpu)),
                    unit: Unit::Ratio,
                    target: Target::AtMost(0.5),
                    versus: format!(
                        "the better one of: {told}; medians of {TIMES} interleaved rounds"
                    ),
                });
            }
        }
    }
    figures
}
