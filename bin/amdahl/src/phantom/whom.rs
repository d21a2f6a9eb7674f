//! Whom `amdahl phantom` watches.

use std::path::{Path, PathBuf};

use amdahl_phantom::{Members, Scope};
use amdahl_phantom_page::Subject;
use amdahl_sched::vmm::guest_cpu;

use crate::cli::{Phantom, Selection, Vm};
use crate::failure::Failure;
use crate::sched::facts;
use crate::watch::{self, processes};

/// One of those that can be watched.
#[derive(Clone, Debug)]
pub enum Whom {
    /// Everything.
    System,
    /// A process with its descendants, which may be one that we have started.
    Process(u32),
    /// A control group.
    Group(PathBuf),
    /// The virtual CPUs that a process runs.
    Machine(u32),
}

impl Whom {
    /// As `args` say; `child` is the command that was started. Refuses what does not exist.
    pub fn new(args: &Phantom, child: Option<u32>) -> Result<Whom, Failure> {
        if let [Vm::Process(pid)] = args.vm[..] {
            return Whom::of_machine(pid);
        }
        if let Some(pid) = args.pid {
            watch::existing(pid)?;
        }
        Ok(match (args.pid.or(child), &args.cgroup) {
            (Some(pid), _) => Whom::Process(pid),
            (None, Some(group)) => Whom::Group(group.clone()),
            (None, None) => Whom::System,
        })
    }

    /// The virtual CPUs of the machine that a process runs. Refuses what is none.
    pub fn of_machine(pid: u32) -> Result<Whom, Failure> {
        watch::existing(pid).map_err(|failure| Failure {
            message: failure.message.replace("--pid", "--vm"),
            ..failure
        })?;
        if virtual_cpus(pid).is_empty() {
            return Err(Failure::program(format!(
                "--vm {pid}: none of its threads is known to be a virtual CPU (of KVM, or by its name one of QEMU, \
                 Firecracker, Cloud Hypervisor, crosvm, kvmtool or VirtualBox; QEMU without KVM gives names with \
                 -name GUEST,debug-threads=on); --pid {pid} watches all of its threads"
            )));
        }
        Ok(Whom::Machine(pid))
    }

    /// In words.
    pub fn words(&self) -> String {
        match self {
            Whom::System => "the system".to_owned(),
            Whom::Process(pid) => format!("process {pid}"),
            Whom::Group(group) => format!("control group {}", group.display()),
            Whom::Machine(pid) => format!("virtual machine {pid}"),
        }
    }

    /// Who that is now.
    pub fn members(&self) -> Members {
        let pids = |present: Vec<(u32, Vec<u32>)>| {
            Members::Processes(present.into_iter().map(|(pid, _)| pid).collect())
        };
        match self {
            Whom::System => Members::Everyone,
            Whom::Process(pid) => pids(processes::tree(*pid)),
            Whom::Group(group) => pids(processes::in_cgroup(group)),
            Whom::Machine(pid) => {
                let threads = virtual_cpus(*pid).into_iter();
                Members::Threads(threads.map(|tid| (*pid, tid)).collect())
            }
        }
    }

    /// The same for a sampler.
    pub fn scope(&self) -> Scope {
        let members = self.members();
        Scope {
            virtual_cpus: match (&members, self) {
                (Members::Threads(threads), Whom::Machine(_)) => Some(threads.len() as u32),
                _ => None,
            },
            group: self.group().map(Path::to_owned),
            members,
        }
    }

    fn group(&self) -> Option<&Path> {
        match self {
            Whom::Group(group) => Some(group),
            _ => None,
        }
    }

    /// What a page about it is called.
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Whom::System => Subject::System,
            Whom::Process(pid) => Subject::Process(*pid),
            Whom::Group(group) => Subject::Group(group),
            Whom::Machine(pid) => Subject::Machine(*pid),
        }
    }
}

/// Threads of a process that are CPUs of a guest.
pub fn virtual_cpus(pid: u32) -> Vec<u32> {
    let process = facts::process(pid);
    let is_virtual = |&tid: &u32| {
        let thread = facts::thread(pid, tid, &process);
        guest_cpu(&processes::comm(pid, tid), thread, &process).is_some()
    };
    let threads = processes::threads(pid).into_iter();
    threads.filter(is_virtual).collect()
}

/// The command and its end, or what is waited for instead, in the words that all views share.
pub fn selection(args: &Phantom) -> Selection {
    // Who watches or serves wants it until it is ended.
    let endless = std::time::Duration::from_secs(100 * 365 * 86_400);
    let goes_on = args.command.is_empty() && (args.watch || args.serve);
    Selection {
        pid: args.pid.or(match args.vm[..] {
            [Vm::Process(pid)] => Some(pid),
            _ => None,
        }),
        cgroup: args.cgroup.clone(),
        system: args.system,
        duration: args.duration.or(goes_on.then_some(endless)),
        memory: 0,
        probe: args.probe,
        quiet: args.quiet,
        command: args.command.clone(),
    }
}
