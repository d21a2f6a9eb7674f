//! What is known before a program is run: all that a plan depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::started::Manner;

/// All facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The program.
    pub program: Program,
    /// What follows it on the command line.
    pub arguments: Vec<String>,
    /// Environment variables as they are now.
    pub environment: BTreeMap<String, String>,
    /// Those of them that are not UTF-8: what stands in `environment` is not what is there.
    pub unreadable: BTreeSet<String>,
    /// The machine, as far as this process may use it.
    pub machine: Machine,
    /// Our own OpenMP runtime, or where it was looked for.
    pub libgomp: Result<PathBuf, String>,
    /// Its folder, if it can stand before all others in `LD_LIBRARY_PATH`.
    pub library_path: Option<String>,
    /// Remedies that were asked for by name; empty for all.
    pub asked: BTreeSet<String>,
    /// What the runtime counted is wanted at the end.
    pub stats: bool,
}

impl Facts {
    /// A variable that is set to something.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let value = self.environment.get(name)?;
        (!value.trim().is_empty()).then_some(value)
    }

    /// It is set, to something that is not UTF-8.
    pub fn is_unreadable(&self, name: &str) -> bool {
        self.unreadable.contains(name)
    }

    /// `remedy` was named, not only taken along with all others.
    pub fn asks_for(&self, remedy: &str) -> bool {
        self.asked.contains(remedy)
    }
}

/// A program and what is in it.
#[derive(Clone, Debug)]
pub struct Program {
    /// What the command line says.
    pub typed: String,
    /// The file that is run.
    pub path: PathBuf,
    /// The program that reads it, and the one that reads that: of scripts. The last is an ELF file.
    pub interpreters: Vec<PathBuf>,
    /// What the kernel loads in the end.
    pub image: Image,
    /// The parallel runtimes that it loads or may load.
    pub runtimes: Vec<Runtime>,
    /// What it wants of libgomp that ours has not, by the library or program that wants it.
    pub beyond: Vec<Beyond>,
    /// What of it starts workers on this machine and divides the CPUs among them, by variables that are not set yet.
    pub dividers: Vec<String>,
    /// What it is there for is to start other programs, or to open packages.
    pub starts: Option<Starts>,
    /// Files of its packages were too many to look at all of them.
    pub is_looked_at_in_part: bool,
    /// The kernel gives it rights that we do not have; why that is known.
    pub privileged: Option<String>,
}

/// How a program is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// By glibc's loader: it can be given libraries.
    Dynamic,
    /// By the kernel alone.
    Static,
    /// By another C library's loader, named here.
    OtherLoader(String),
    /// It is for another machine, named here.
    OtherMachine(String),
    /// It could not be read; why.
    Unknown(String),
}

/// A parallel runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Which.
    pub kind: Kind,
    /// The library or program that has it.
    pub path: PathBuf,
    /// How it comes to the program: `it links libgomp.so.1`.
    pub via: String,
    /// Who loads it gets ours, if our folder is the first one of `LD_LIBRARY_PATH`.
    pub is_reached_by_path: bool,
}

/// Of a program that starts others or opens packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starts {
    /// Which of both.
    pub manner: Manner,
    /// The programs that its script or its arguments name. Their runtimes are among those of the program.
    pub programs: Vec<PathBuf>,
}

/// Something that ours cannot replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// Who wants it.
    pub who: String,
    /// What: a version, `GOACC_2.0`, or a name, `GOMP_interop`.
    pub what: String,
    /// The loader would not start the program without it, or would end it where it is called.
    pub is_needed: bool,
}

/// Kinds of parallel runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// GCC's, by its usual name.
    Gomp,
    /// GCC's, under a name of its own: a wheel brought it along.
    GompCopy,
    /// GCC's, linked into a program or library.
    GompInside,
    /// LLVM's or Intel's.
    Kmp,
    /// Intel's mathematics library, which has one of the above.
    Mkl,
    /// Threading Building Blocks.
    Tbb,
}

/// The machine, as far as this process may use it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// CPUs that run.
    pub online: u32,
    /// CPUs in the affinity mask.
    pub allowed: u32,
    /// CPU-seconds per second of the tightest control group, and the file that says so.
    pub quota: Option<(f64, String)>,
    /// Share of the last ten seconds in which somebody waited for a CPU, of PSI; 0 to 1.
    pub pressure: Option<f64>,
}

/// Above this share of waiting somebody else uses our CPUs.
const PRESSURE: f64 = 0.1;

impl Machine {
    /// Threads that can run at once: at least one, and rounded up, so that all of a quota can be used.
    pub fn cpus(&self) -> u32 {
        let allowed = self.allowed.max(1);
        match &self.quota {
            // The cast saturates.
            Some((quota, _)) => allowed.min(quota.ceil().max(1.0) as u32),
            None => allowed,
        }
    }

    /// The quota is what limits us, not the number of CPUs.
    pub fn is_limited_by_quota(&self) -> bool {
        let quota = self.quota.as_ref();
        quota.is_some_and(|(quota, _)| *quota < f64::from(self.allowed))
    }

    /// Why a thread that waits in a loop takes CPU time from others, if it does.
    pub fn contention(&self) -> Option<String> {
        if let Some((quota, _)) = &self.quota
            && self.is_limited_by_quota()
        {
            return Some(format!(
                "the quota is {quota:.2} CPUs' worth of time on {} CPUs",
                self.allowed
            ));
        }
        let pressure = self.pressure.filter(|&pressure| pressure >= PRESSURE)?;
        Some(format!(
            "threads wait for CPUs here {:.0} % of the time",
            pressure * 100.0
        ))
    }
}
