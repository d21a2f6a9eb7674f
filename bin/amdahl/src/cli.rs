//! The command line as typed.

pub mod attach;
pub mod migrate;
pub mod offload;
pub mod pager;
mod run;
pub mod serve;
mod sim;
pub mod tls;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use run::Run;
pub use sim::{Sim, SimCalibrate, SimCommand, SimCosts, SimEngine, SimPolicies, SimRun, SimSweep};

/// Finds what keeps a program from scaling and says how much each cause costs.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXIT_CODES, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  a result could not be written or read
  2  the command line is wrong
  3  the program could not be started, or failed in every run
  4  the program failed in some runs; the rest was reported
  5  interrupted; what was measured was reported
  6  this machine does not let us measure
  7  a memory image is damaged
  130  interrupted twice: abandoned without a report

amdahl run ends as the program does; see amdahl run --help.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on 1..N CPUs and divide all the CPU time it owned among causes.
    #[command(after_help = SCALE_EXAMPLES)]
    Scale(Box<Scale>),
    /// Page faults, huge pages and what prevents them, the address-space lock, TLB misses, NUMA.
    #[command(after_help = MEM_EXAMPLES)]
    Mem(Box<Mem>),
    /// Compare two results: what changed, and is it more than noise?
    #[command(
        after_help = "Examples:\n  amdahl compare before/ after/\n  amdahl compare --json a/result.json b/result.json"
    )]
    Compare(Compare),
    /// Show a result again: as text, or as an HTML page.
    #[command(
        after_help = "Examples:\n  amdahl report amdahl-sort/\n  amdahl report --html page.html amdahl-sort/"
    )]
    Report(Report),
    /// Which locks threads wait for, where, how long and because of whom: kernel and user space.
    #[command(after_help = LOCKS_EXAMPLES)]
    Locks(Box<Locks>),
    /// What the scheduler did: latencies, wake-ups, migrations, CPUs that idled while threads waited.
    #[command(after_help = SCHED_EXAMPLES)]
    Sched(Sched),
    /// Simulate a workload on a machine of any size under scheduling policies.
    #[command(after_help = sim::SIM_EXAMPLES)]
    Sim(Sim),
    /// Memory that arrives on demand: images of memory, VMs served from them, and how fast pages come here.
    #[command(after_help = pager::PAGER_EXAMPLES)]
    Pager(pager::Pager),
    /// Who takes the CPUs of this machine, of a control group, a virtual machine or a process, now.
    #[command(after_help = PHANTOM_EXAMPLES)]
    Phantom(Box<Phantom>),
    /// A live screen over lock waits, scheduling and memory: sorted, filtered, paused by keys.
    #[command(after_help = TOP_EXAMPLES)]
    Top(Box<Top>),
    /// Run a program with what helps it on few or shared CPUs: OpenMP runtime, numbers of threads.
    #[command(after_help = run::RUN_EXAMPLES)]
    Run(Box<Run>),
    /// What this machine lets us measure, what not, and how to allow it.
    #[command(after_help = "Examples:\n  amdahl doctor\n  amdahl doctor --json")]
    Doctor(Doctor),
}

impl Command {
    /// It watches programs, by descriptors for each CPU or thread.
    pub fn records(&self) -> bool {
        use Command::{
            Compare, Doctor, Locks, Mem, Pager, Phantom, Report, Run, Scale, Sched, Sim, Top,
        };
        match self {
            Scale(_) | Mem(_) | Locks(_) | Sched(_) | Phantom(_) | Top(_) | Doctor(_) => true,
            // We become the program that `run` runs.
            Compare(_) | Report(_) | Sim(_) | Pager(_) | Run(_) => false,
        }
    }
}

const SCALE_EXAMPLES: &str = "\
Examples:
  amdahl scale -- sort --parallel={cpus} -S 2G words.txt -o /dev/null
  amdahl scale --cpus 1,2,4,8 --runs 5 -- make -j{cpus}
  amdahl scale --rate 'tps = ([0-9.]+)' -- pgbench -T 10 -c {cpus} -j {cpus} db
  amdahl scale --for 10s -- ./server
  amdahl scale --pid 4711 --for 10s
  amdahl scale --json -- ./server-bench

In the command, {cpus} is replaced by the number of CPUs. Programs that take their
number of threads from the environment (OpenMP, Rayon, Go, Java, ...) are told by
the usual variables unless --keep-env is given.

A file as standard input (< FILE) is read by every run from the same place on. A pipe
can be read only once: runs get an empty input then, as they do at a terminal.
Have the command open a file instead: sh -c 'sort < words.txt'.";

const LOCKS_EXAMPLES: &str = "\
Examples:
  amdahl locks --system --for 10s
  amdahl locks --owner -- make -j8
  amdahl locks --pid 4711 --by thread --sort max
  amdahl locks --system --live --owner
  amdahl locks --goroutines --pid 4711
  amdahl locks --output locks/ -- ./server-bench; xdg-open locks/report.html";

/// `amdahl locks`.
#[derive(Debug, Args)]
pub struct Locks {
    /// Whom, and for how long.
    #[command(flatten)]
    pub selection: Selection,
    /// Where to.
    #[command(flatten)]
    pub output: Output,
    /// What makes a row
    #[arg(long, value_name = "WHAT", default_value = "site")]
    pub by: LocksBy,
    /// Sort rows by this figure, the largest first; equals by their line of code
    #[arg(
        long,
        value_name = "FIGURE",
        default_value = "total",
        conflicts_with = "live"
    )]
    pub sort: LocksSort,
    /// Also who released the locks, what holders waited for, and how long mmap_lock is held
    #[arg(long)]
    pub owner: bool,
    /// Time the waits of each goroutine of programs in Go, not those of the threads below them: mutexes, wait groups, conditions. A goroutine
    /// that waits while its thread runs others is only found this way. Each wait of every process that runs the program costs some µs
    #[arg(long, conflicts_with = "live")]
    pub goroutines: bool,
    /// Rows that are shown; a folder, JSON and CSV have all
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "live")]
    pub rows: usize,
    /// Show it on a live screen, until --for is over, q or Ctrl-C: amdahl top on its first tab, whose keys < and > sort
    #[arg(long, conflicts_with_all = ["json", "csv", "output"])]
    pub live: bool,
}

/// What makes a row of `amdahl locks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LocksBy {
    /// The line of code that waits.
    Site,
    /// The waiting thread.
    Thread,
    /// The waiting process.
    Process,
    /// The lock, by its address.
    Lock,
    /// The whole call stack.
    Stack,
}

/// By what rows of `amdahl locks` are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LocksSort {
    /// Waiting time of all together.
    Total,
    /// How often it was waited.
    Times,
    /// The longest wait.
    Max,
    /// The mean wait.
    Mean,
    /// What 99 of 100 waits do not exceed.
    P99,
}

/// `amdahl scale`.
#[derive(Debug, Args)]
pub struct Scale {
    /// CPU counts, e.g. 1,2,4,8 [default: 1, 2, 4, ... up to what is allowed]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpus: Vec<u32>,
    /// Counted runs for each CPU count with the probe [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Runs without the probe for each CPU count, whose times speedups and `amdahl compare` take [default: as many as
    /// --runs, and 4 if that is not given: with fewer on either side compare cannot tell a change from noise]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub bare_runs: Option<u32>,
    /// Do not run once, uncounted, before the measured runs
    #[arg(long)]
    pub no_warmup: bool,
    /// Use CPUs far from each other first (default: one cache after the other)
    #[arg(long)]
    pub spread: bool,
    /// Thread counts beyond the CPUs, as further points: {cpus} becomes each factor times the largest count
    #[arg(long, value_name = "FACTORS", value_delimiter = ',')]
    pub oversubscribe: Vec<u32>,
    /// Leave the environment as it is
    #[arg(long)]
    pub keep_env: bool,
    /// End each run after this time: for programs that never end
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub duration: Option<std::time::Duration>,
    /// Watch a running process instead of a command: one point, stack only
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = [
        "cpus", "runs", "bare_runs", "no_warmup", "spread", "oversubscribe", "keep_env", "rate", "show_output", "command",
    ])]
    pub pid: Option<u32>,
    /// Regular expression whose first group is the work per second in the program's output
    #[arg(long, value_name = "REGEX")]
    pub rate: Option<String>,
    /// On-CPU samples per CPU and second [default: 499; fewer where their interrupts are dear, and fewer still after the first 200 of a CPU; less on more than 64 CPUs]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub sample_hz: Option<u32>,
    /// What recording may cost, in percent of the CPU time of a run's CPUs: where scheduler events and samples would be more,
    /// events are recorded a part of the time, which stands for the rest; "none" records all
    #[arg(long, value_name = "PERCENT", default_value = "1")]
    pub budget: EventBudget,
    /// Memory for recorded events; a quarter of it full, they are added up while the program runs
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..))]
    pub memory: u32,
    /// How to look inside: all that is allowed, or only what works without privileges
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub probe: ProbeKind,
    /// Folder for the results [default: ./amdahl-PROGRAM]
    #[arg(long, short, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Print result.json to standard output instead of the report
    #[arg(long)]
    pub json: bool,
    /// Do not write a folder
    #[arg(long, conflicts_with = "output")]
    pub no_output: bool,
    /// Show the program's output
    #[arg(long)]
    pub show_output: bool,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "pid")]
    pub command: Vec<String>,
}

/// What recording may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventBudget {
    /// Whatever it costs.
    Unlimited,
    /// Percent of the CPU time of a run's CPUs.
    Percent(f64),
}

impl std::str::FromStr for EventBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<EventBudget, String> {
        if text == "none" {
            return Ok(EventBudget::Unlimited);
        }
        let percent = text.strip_suffix('%').unwrap_or(text).trim_end().parse();
        match percent {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(EventBudget::Percent(percent)),
            _ => Err("give a percentage from 0 to 100, such as 0.5, or none".to_owned()),
        }
    }
}

/// By what the workload is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProbeKind {
    /// BPF where allowed, else /proc.
    Auto,
    /// BPF or nothing.
    Bpf,
    /// Only what an ordinary user may read.
    Proc,
}

/// Whom a deep view watches, and for how long. One of the four is given.
#[derive(Clone, Debug, Args)]
#[group(skip)]
#[allow(dead_code)]
pub struct Selection {
    /// Watch a running process with its descendants
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..), group = "whom")]
    pub pid: Option<u32>,
    /// Watch a control group: a path, or a name below where they are mounted
    #[arg(long, value_name = "GROUP", value_parser = control_group, group = "whom")]
    pub cgroup: Option<PathBuf>,
    /// Watch everything on this machine; with a command, for as long as that runs
    #[arg(long, conflicts_with_all = ["pid", "cgroup"])]
    pub system: bool,
    /// Stop after this time [default: 10s, or when the command ends]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub duration: Option<std::time::Duration>,
    /// Memory for recorded events; a quarter of it full, they are added up meanwhile. Rings of the kernel and sums are bounded by it, too
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..))]
    pub memory: u32,
    /// How to look: all that is allowed, or only what works without privileges
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub probe: ProbeKind,
    /// Nothing on standard error, and not the program's output
    #[arg(long, short)]
    pub quiet: bool,
    /// The program to run and watch, and its arguments
    #[arg(last = true, value_name = "COMMAND", group = "whom", required_unless_present_any = ["pid", "cgroup", "system"])]
    pub command: Vec<String>,
}

impl Selection {
    /// The command, or what is watched instead, by words.
    pub fn whom(&self) -> Vec<String> {
        if self.command.is_empty() {
            self.target().split(' ').map(str::to_owned).collect()
        } else {
            self.command.clone()
        }
    }

    /// Memory for recorded events.
    pub fn memory_bytes(&self) -> usize {
        (self.memory as usize) << 20
    }

    /// What is watched other than a command, in words.
    pub fn target(&self) -> String {
        match (self.pid, &self.cgroup) {
            (Some(pid), _) => format!("process {pid}"),
            (_, Some(group)) => format!("control group {}", group.display()),
            _ => "the system".to_owned(),
        }
    }
}

/// Where a deep view's result goes.
#[derive(Debug, Args)]
#[allow(dead_code)]
pub struct Output {
    /// Folder for the results [default: none is written]
    #[arg(long, short, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Print result.json to standard output instead of the report
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print the table as CSV instead
    #[arg(long)]
    pub csv: bool,
}

const MEM_EXAMPLES: &str = "\
Examples:
  amdahl mem -- ./server-bench
  amdahl mem --pid 4711 --for 10s
  amdahl mem --holds -o amdahl-mem -- make -j8
  amdahl mem --system --json";

/// `amdahl mem`.
#[derive(Debug, Args)]
pub struct Mem {
    /// Whom to watch.
    #[command(flatten)]
    pub selection: Selection,
    /// Where the result goes.
    #[command(flatten)]
    pub output: Output,
    /// Also tell how long the address-space lock is held, which may cost a tenth of the run
    #[arg(long)]
    pub holds: bool,
}

const SCHED_EXAMPLES: &str = "\
Examples:
  amdahl sched record -- ./server-bench
  amdahl sched record --system --for 10s -o amdahl-sched
  amdahl sched show amdahl-sched
  amdahl sched show --svg threads.svg amdahl-sched
  amdahl sched show --from 2s --to 2.5s amdahl-sched";

/// `amdahl sched`.
#[derive(Debug, Args)]
pub struct Sched {
    /// What to do
    #[command(subcommand)]
    pub command: SchedCommand,
}

/// What `amdahl sched` does.
#[derive(Debug, Subcommand)]
pub enum SchedCommand {
    /// Record what the scheduler does, into a folder
    Record(SchedRecord),
    /// Show a recording, or write it in another form
    Show(SchedShow),
}

/// `amdahl sched record`.
#[derive(Debug, Args)]
pub struct SchedRecord {
    #[command(flatten)]
    pub selection: Selection,
    /// Folder for events and results [default: ./amdahl-sched, none with --json or --csv]
    #[arg(long, short, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Space for events on disk; when it is used up, the oldest give way
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_disk: u32,
    /// Print result.json to standard output instead of the report
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print all tables as CSV instead
    #[arg(long)]
    pub csv: bool,
}

/// `amdahl sched show`.
#[derive(Debug, Args)]
pub struct SchedShow {
    /// A folder that `sched record` wrote, its result.json, its events, or one part of them
    pub recording: PathBuf,
    /// Print result.json to standard output instead of the report
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print all tables as CSV instead
    #[arg(long)]
    pub csv: bool,
    /// Write an HTML page to this file instead
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the picture of threads on CPUs to this file instead
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the picture of what threads did over time to this file instead
    #[arg(long, value_name = "FILE", conflicts_with = "svg")]
    pub timelines: Option<PathBuf>,
    /// Write a trace of all events for Perfetto to this file instead (.json.gz); a part of a long recording is
    /// FOLDER/events/N.parquet
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Leave out what happened before this time, counted from the beginning of the recording: figures, pictures and trace are made of the rest
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub from: Option<std::time::Duration>,
    /// Leave out what happened after this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub to: Option<std::time::Duration>,
}

const PHANTOM_EXAMPLES: &str = "\
Examples:
  amdahl phantom --for 5s
  amdahl phantom --pid 4711 --watch
  amdahl phantom --cgroup system.slice --json
  amdahl phantom --vm 815 --for 1min
  amdahl phantom -- ./lu.C.x
  amdahl phantom --serve -- ./lu.C.x
  amdahl phantom --serve --pid 4711
  amdahl phantom --serve --vm 815 --page /dev/shm/guest
  amdahl phantom --serve --vm all --page /srv/pages
  amdahl phantom --serve --pid 42 --host-page /mnt/host/guest

A phantom is a thread that could run and has no CPU. --serve publishes the figures in a page of
shared memory, whose path it prints and hands to the command in AMDAHL_PHANTOM. --page names a
file that is mapped into a guest, where what the host publishes is a source: of QEMU's device
ivshmem-plain, which is found, or of the file that --host-page names (docs/phantom.md).";

/// Virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vm {
    /// All that there are, as they come and go.
    All,
    /// The one that this process runs.
    Process(u32),
}

fn vm(text: &str) -> Result<Vm, String> {
    match text.parse() {
        _ if text == "all" => Ok(Vm::All),
        Ok(pid) if pid > 0 => Ok(Vm::Process(pid)),
        _ => Err("a process id or all".to_owned()),
    }
}

/// `amdahl phantom`.
#[derive(Debug, Args)]
pub struct Phantom {
    /// Watch a running process with its descendants
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..), group = "whom")]
    pub pid: Option<u32>,
    /// Watch a control group: a path, or a name below where they are mounted
    #[arg(long, value_name = "GROUP", value_parser = control_group, group = "whom")]
    pub cgroup: Option<PathBuf>,
    /// Watch the virtual CPUs of a virtual machine, by the process that runs it; with --serve also several, or all that there are
    #[arg(long, value_name = "PID|all", value_delimiter = ',', value_parser = vm, group = "whom")]
    pub vm: Vec<Vm>,
    /// Watch everything on this machine: so it is where nothing else is said
    #[arg(long, group = "whom")]
    pub system: bool,
    /// Stop after this time [default: 10s, or when the command ends; with --watch and --serve when they are ended]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub duration: Option<std::time::Duration>,
    /// Time between looks; longer where looking takes more than half a percent of a CPU [default: 100ms, with --serve and BPF 20ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub interval: Option<std::time::Duration>,
    /// How to look: all that is allowed, or only what works without privileges
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub probe: ProbeKind,
    /// A line for each look
    #[arg(long)]
    pub watch: bool,
    /// Publish each look in a page of shared memory, for runtimes to read
    #[arg(long, conflicts_with_all = ["watch", "json"])]
    pub serve: bool,
    /// With --serve: publish in this file, which can be mapped into a guest, and leave it there in the end; of several virtual
    /// machines it is a folder, with a file for each
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub page: Option<PathBuf>,
    /// What the host publishes of this guest: a file, or off [default: that of an ivshmem device, if there is one]
    #[arg(long, value_name = "FILE")]
    pub host_page: Option<PathBuf>,
    /// Print JSON; with --watch a line for each look
    #[arg(long)]
    pub json: bool,
    /// Rows of the table of who else ran; JSON has more
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub rows: usize,
    /// Nothing on standard error, and not the program's output
    #[arg(long, short)]
    pub quiet: bool,
    /// The program to run and watch, and its arguments
    #[arg(last = true, value_name = "COMMAND", group = "whom")]
    pub command: Vec<String>,
}

const TOP_EXAMPLES: &str = "\
Examples:
  amdahl top
  amdahl top --pid 4711 --tab sched
  amdahl top --filter 'mysqld|futex' --by thread
  amdahl top --owner --pid 4711
  amdahl top --tab mem --by mapping
  amdahl top --batch 3 --for 6s -- ./server-bench
  amdahl top --batch 10 --json --pid 4711 | jq .rows[0].what

Press ? for the keys. Only the tab that is shown records.";

/// `amdahl top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Watch a running process with its descendants
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..), group = "whom")]
    pub pid: Option<u32>,
    /// Watch a control group: a path, or a name below where they are mounted
    #[arg(long, value_name = "GROUP", value_parser = control_group, group = "whom")]
    pub cgroup: Option<PathBuf>,
    /// Watch everything on this machine: so it is where nothing else is said
    #[arg(long, group = "whom")]
    pub system: bool,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub duration: Option<std::time::Duration>,
    /// Memory for recorded events
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..))]
    pub memory: u32,
    /// How to look: all that is allowed, or only what works without privileges
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub probe: ProbeKind,
    /// The tab to begin with
    #[arg(long, value_name = "TAB", default_value = "locks")]
    pub tab: TopTab,
    /// Record how long the address-space lock is held, too (mem): costs every page fault
    #[arg(long)]
    pub holds: bool,
    /// Who released locks, beside each row (key o), and how long mmap_lock is held (locks): costs every page fault
    #[arg(long)]
    pub owner: bool,
    /// What makes a row [default: line of code, in sched thread]
    #[arg(long, value_name = "WHAT")]
    pub by: Option<TopBy>,
    /// Show rows with this text only: a regular expression
    #[arg(
        long,
        value_name = "REGEX",
        default_value = "",
        hide_default_value = true
    )]
    pub filter: String,
    /// Time between two screens
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub interval: std::time::Duration,
    /// No terminal: print this many tables, one each interval, or over the time of --for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// Print each as a line of JSON: what `amdahl locks --json` and the others print
    #[arg(long, requires = "batch")]
    pub json: bool,
    /// Rows of a table of --batch
    #[arg(long, value_name = "N", default_value_t = 20, requires = "batch")]
    pub rows: usize,
    /// The program to run and watch, and its arguments
    #[arg(last = true, value_name = "COMMAND", group = "whom")]
    pub command: Vec<String>,
}

impl From<&Locks> for Top {
    fn from(locks: &Locks) -> Top {
        let selection = &locks.selection;
        Top {
            pid: selection.pid,
            cgroup: selection.cgroup.clone(),
            system: selection.system,
            duration: selection.duration,
            memory: selection.memory,
            probe: selection.probe,
            tab: TopTab::Locks,
            holds: false,
            owner: locks.owner,
            by: Some(match locks.by {
                LocksBy::Site => TopBy::Site,
                LocksBy::Thread => TopBy::Thread,
                LocksBy::Process => TopBy::Process,
                LocksBy::Lock => TopBy::Lock,
                LocksBy::Stack => TopBy::Stack,
            }),
            filter: String::new(),
            interval: std::time::Duration::from_secs(1),
            batch: None,
            json: false,
            rows: locks.rows,
            command: selection.command.clone(),
        }
    }
}

/// A tab of `amdahl top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TopTab {
    /// Waits for locks.
    Locks,
    /// What the scheduler does.
    Sched,
    /// Page faults and the address-space lock.
    Mem,
}

/// What makes a row of `amdahl top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TopBy {
    /// A line of code (locks, mem).
    Site,
    /// A thread (locks, sched).
    Thread,
    /// A process.
    Process,
    /// A lock, by its address (locks).
    Lock,
    /// A whole call stack (locks).
    Stack,
    /// A kind of fault or wait (mem).
    Kind,
    /// A mapping, with what of it is in huge pages (mem).
    Mapping,
    /// A CPU (sched).
    Cpu,
    /// A CPU of a guest that runs here (sched).
    Guest,
}

/// `amdahl compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// The earlier result: a folder or its result.json
    pub before: PathBuf,
    /// The later result
    pub after: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `amdahl report`.
#[derive(Debug, Args)]
pub struct Report {
    /// A result: a folder or its result.json
    pub result: PathBuf,
    /// Write an HTML page to this file instead
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `amdahl doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn control_group(text: &str) -> Result<PathBuf, String> {
    crate::watch::processes::cgroup(text).ok_or_else(|| {
        "this is no control group, of either version; see systemd-cgls or /sys/fs/cgroup".to_owned()
    })
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    time_of_at_least(0.01, "10ms", text)
}

/// Since something has begun.
fn moment(text: &str) -> Result<std::time::Duration, String> {
    time_of_at_least(0.0, "0", text)
}

fn time_of_at_least(
    least: f64,
    least_text: &str,
    text: &str,
) -> Result<std::time::Duration, String> {
    let number = text.trim_end_matches(char::is_alphabetic);
    let factor = match &text[number.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        unit => {
            return Err(format!(
                "unknown unit {unit:?}; use ms, s, min or h, e.g. 10s"
            ));
        }
    };
    let seconds = number
        .parse::<f64>()
        .map_err(|_| "expected a time such as 10s".to_owned())?
        * factor;
    if !(least..=31_536_000.0).contains(&seconds) {
        return Err(format!("the time must be between {least_text} and a year"));
    }
    Ok(std::time::Duration::from_secs_f64(seconds))
}
