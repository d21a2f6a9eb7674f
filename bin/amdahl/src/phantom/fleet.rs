//! `amdahl phantom --serve --vm all`, or of several: one looker serves the pages of all virtual machines, which come and go.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amdahl_phantom::{Estimator, How, Machine, Sampler, Settings, SourceError};
use amdahl_phantom_page::{
    PublishError, Publisher, Source, Subject, directory, path, remove_abandoned,
};

use super::host;
use super::rhythm::{Rhythm, timed};
use super::whom::{Whom, virtual_cpus};
use super::{beside, is_endless, whom};
use crate::cli::{Phantom, ProbeKind, Vm};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;
use crate::watch::{self, processes};

/// Looking which machines there are takes at most a hundredth of a CPU.
const REFRESH_SHARE: u32 = 100;
/// By what everybody may read. BPF is for who asks for it: each machine has programs of its own then, which run at each switch of
/// any thread of the host.
const INTERVAL: Duration = Duration::from_millis(100);

/// Serves until it is ended, time is up, or all machines that were named have ended.
pub fn main(args: &Phantom, interrupt: &Interrupt) -> Result<u8, Failure> {
    let folder = args.page.as_deref().map(Folder::at).transpose()?;
    let place = match &folder {
        Some(folder) => folder.path.clone(),
        None => directory().map_err(|error| Failure::result(error.to_string()))?,
    };
    let text = place
        .to_str()
        .ok_or_else(|| Failure::result(format!("{}: the name is not UTF-8", place.display())))?;
    let mut fleet = Fleet::new(args, folder)?;
    if !fleet.is_all() {
        for &pid in &fleet.named {
            Whom::of_machine(pid)?;
        }
    }
    fleet.follow();
    if args.page.is_none() {
        remove_abandoned(&place);
    }
    screen::print(&format!("{text}\n"))?;
    let selection = whom::selection(args);
    let look = |stop: &AtomicBool| {
        let served = fleet.serve(stop);
        // It ended by itself: there is nothing to wait for.
        if served {
            interrupt.say();
        }
        served
    };
    let (is_over, _) = beside(&selection, None, interrupt, look)?;
    let is_early = interrupt.asked() && !is_over && !is_endless(args);
    watch::finished(&selection, None, is_early)
}

/// The machines and what they share.
struct Fleet<'a> {
    args: &'a Phantom,
    /// Those that are to be served; empty for all.
    named: BTreeSet<u32>,
    folder: Option<Folder>,
    machine: Machine,
    guests: Vec<Guest>,
    /// Told once that they cannot be served.
    refused: BTreeSet<(u32, u64)>,
    rhythm: Rhythm,
    window_ns: u64,
}

/// A machine that is served.
struct Guest {
    pid: u32,
    /// When its process began: numbers are used again.
    began: u64,
    words: String,
    sampler: Sampler,
    estimator: Estimator,
    ticks: u64,
    page: Page,
}

impl<'a> Fleet<'a> {
    fn new(args: &'a Phantom, folder: Option<Folder>) -> Result<Fleet<'a>, Failure> {
        let interval = args.interval.unwrap_or(INTERVAL);
        let named = args.vm.iter().filter_map(|vm| match vm {
            Vm::All => None,
            Vm::Process(pid) => Some(*pid),
        });
        let is_all = args.vm.contains(&Vm::All);
        Ok(Fleet {
            args,
            named: named.filter(|_| !is_all).collect(),
            folder,
            machine: Machine::open().map_err(|error| Failure::machine(error.to_string()))?,
            guests: Vec::new(),
            refused: BTreeSet::new(),
            rhythm: Rhythm::new(interval, REFRESH_SHARE),
            window_ns: Settings::default()
                .window_ns
                .max(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)),
        })
    }

    fn is_all(&self) -> bool {
        self.named.is_empty()
    }

    /// Looks until `stop` is set, or nobody is left who was named, which is told.
    fn serve(&mut self, stop: &AtomicBool) -> bool {
        while !stop.load(Ordering::Relaxed) {
            let ((), cost) = timed(|| self.tick());
            if self.rhythm.is_refresh_due() {
                let ((), cost) = timed(|| self.follow());
                if self.guests.is_empty() && !self.is_all() {
                    return true;
                }
                self.rhythm.refreshed(cost);
            }
            self.rhythm.wait(cost, stop);
        }
        false
    }

    fn tick(&mut self) {
        let tick_ns = self.rhythm.interval().as_nanos() as u64;
        self.machine.begin_look();
        self.guests.retain_mut(|guest| match guest.tick(tick_ns) {
            Ok(()) => true,
            Err(error) => {
                // The others are served all the same.
                say(format_args!(
                    "{} is not served any more: {error}",
                    guest.words
                ));
                self.refused.insert((guest.pid, guest.began));
                false
            }
        });
    }

    /// Lets those go that have ended, looks at those that live, and takes in who has come.
    fn follow(&mut self) {
        let is_quiet = self.args.quiet;
        self.guests.retain_mut(|guest| {
            let members = Whom::Machine(guest.pid).members();
            if began(guest.pid) != Some(guest.began) || members.threads().is_empty() {
                if !is_quiet {
                    say(format_args!("{} has ended", guest.words));
                }
                return false;
            }
            let refreshed = guest.sampler.refresh(members);
            if let Err(error) = &refreshed {
                say(format_args!(
                    "{} is not served any more: {error}",
                    guest.words
                ));
                self.refused.insert((guest.pid, guest.began));
            }
            refreshed.is_ok()
        });
        let candidates = match self.is_all() {
            true => processes::pids(),
            false => self.named.iter().copied().collect(),
        };
        let mut living = BTreeSet::new();
        for pid in candidates {
            let Some(began) = began(pid) else { continue };
            living.insert((pid, began));
            let is_new = !self.guests.iter().any(|guest| guest.pid == pid)
                && !self.refused.contains(&(pid, began));
            if !is_new || virtual_cpus(pid).is_empty() {
                continue;
            }
            match self.guest(pid, began) {
                Ok(guest) => {
                    if !is_quiet {
                        say(format_args!(
                            "publishing about {} in {}",
                            guest.words,
                            guest.page.path.display()
                        ));
                    }
                    self.guests.push(guest);
                }
                // The others are served all the same.
                Err(failure) => {
                    say(format_args!("virtual machine {pid}: {}", failure.message));
                    self.refused.insert((pid, began));
                }
            }
        }
        self.refused.retain(|process| living.contains(process));
    }

    fn guest(&self, pid: u32, began: u64) -> Result<Guest, Failure> {
        let scope = Whom::Machine(pid).scope();
        let how = match self.args.probe {
            ProbeKind::Bpf => How::Bpf {
                keeps_takers: false,
            },
            _ => How::Proc,
        };
        let mut sampler = Sampler::together(scope, how, &self.machine)
            .map_err(|error| Failure::machine(error.to_string()))?;
        host::follow(self.args, &mut sampler)?;
        let name = name(pid);
        let page = match &self.folder {
            Some(folder) => folder.page(pid, name.as_deref(), sampler.source())?,
            None => Page::usual(pid, sampler.source())?,
        };
        Ok(Guest {
            pid,
            began,
            words: match name {
                Some(name) => format!("virtual machine {pid} ({name})"),
                None => format!("virtual machine {pid}"),
            },
            sampler,
            estimator: Estimator::new(Settings {
                window_ns: self.window_ns,
            }),
            ticks: 0,
            page,
        })
    }
}

impl Guest {
    fn tick(&mut self, tick_ns: u64) -> Result<(), SourceError> {
        let reading = self.sampler.read()?;
        if let Some(estimate) = self.estimator.tick(reading) {
            self.ticks += 1;
            let snapshot = estimate.snapshot(self.ticks, tick_ns);
            self.page.publisher.publish(snapshot);
        }
        Ok(())
    }
}

/// The page of a machine, and what goes with it in the end.
struct Page {
    publisher: Publisher,
    path: PathBuf,
    /// Of the process alone: nobody will look for it again.
    passing: Option<PathBuf>,
}

impl Page {
    fn usual(pid: u32, source: Source) -> Result<Page, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::result(error.to_string());
        let path = path(Subject::Machine(pid)).map_err(|error| failed(&error))?;
        Ok(Page {
            publisher: Publisher::create(&path, source).map_err(|error| failed(&error))?,
            path,
            passing: None,
        })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(path) = &self.passing {
            let _ = fs::remove_file(path);
        }
    }
}

/// A folder with a file for each machine, which can be mapped into it.
struct Folder {
    path: PathBuf,
}

/// How the names of files begin that are of a process.
const OF_PROCESS: &str = "pid-";

impl Folder {
    /// Makes it if it is not there. What ended servers have left of processes is removed.
    fn at(path: &Path) -> Result<Folder, Failure> {
        let refused = |why: &dyn std::fmt::Display| {
            Failure::usage(format!("--page {}: {why}", path.display()))
        };
        let path = std::path::absolute(path).map_err(|error| refused(&error))?;
        if let Err(error) = DirBuilder::new().mode(0o755).create(&path)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(refused(&error));
        }
        let metadata = fs::metadata(&path).map_err(|error| refused(&error))?;
        if !metadata.is_dir() {
            return Err(refused(
                &"of several virtual machines it is a folder, with a file for each",
            ));
        }
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
        if !is_ours || metadata.mode() & 0o022 != 0 {
            return Err(refused(
                &"it must be this user's own folder, and nobody else may write in it",
            ));
        }
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(OF_PROCESS));
            let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| virtual_cpus(pid).is_empty()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Folder { path })
    }

    /// The page of a machine: by its name, with a link by its process, or by that alone where it has no name, or where another machine of
    /// that name is served.
    fn page(&self, pid: u32, name: Option<&str>, source: Source) -> Result<Page, Failure> {
        let of_process = self.path.join(format!("{OF_PROCESS}{pid}"));
        // Left by a server that was killed.
        if of_process.is_symlink() {
            let _ = fs::remove_file(&of_process);
        }
        if let Some(name) = name {
            let path = self.path.join(name);
            match Publisher::keeping(&path, source) {
                Ok(publisher) => {
                    let is_linked = symlink(name, &of_process).is_ok();
                    return Ok(Page {
                        publisher,
                        path,
                        passing: is_linked.then_some(of_process),
                    });
                }
                Err(PublishError::Taken { .. }) => {}
                Err(error) => return Err(Failure::result(error.to_string())),
            }
        }
        let publisher = Publisher::keeping(&of_process, source)
            .map_err(|error| Failure::result(error.to_string()))?;
        Ok(Page {
            publisher,
            path: of_process.clone(),
            passing: Some(of_process),
        })
    }
}

/// When a process began, in the clock ticks of its `stat`.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    // Counted from the state, which is field 3.
    after.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// What QEMU's `-name` calls the machine that a process runs.
fn name(pid: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = words.split(|&byte| byte == 0);
    words.find(|&word| word == b"-name" || word == b"--name")?;
    let value = std::str::from_utf8(words.next()?).ok()?;
    named(value).map(str::to_owned)
}

/// The name in a value of `-name`, where it can be that of a file: `web1`, `guest=web1,debug-threads=on`.
fn named(value: &str) -> Option<&str> {
    let parts = value.split(',');
    let name = parts.enumerate().find_map(|(at, part)| {
        let is_first = at == 0 && !part.contains('=');
        part.strip_prefix("guest=").or(is_first.then_some(part))
    })?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+:@-".contains(&byte);
    let is_file = (1..=128).contains(&name.len())
        && name.bytes().all(is_plain)
        && !name.starts_with(['.', '-'])
        && !name.starts_with(OF_PROCESS)
        // So are those called that are removed when their writer is gone.
        && !name.starts_with("phantom-");
    is_file.then_some(name)
}

fn say(what: std::fmt::Arguments<'_>) {
    // Nobody may read it.
    let _ = writeln!(anstream::stderr(), "amdahl: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_machines_become_names_of_files_where_they_can() {
        for (value, name) in [
            ("web1", Some("web1")),
            ("guest=web1,debug-threads=on", Some("web1")),
            ("debug-threads=on,guest=db.a:7", Some("db.a:7")),
            ("web1,process=x", Some("web1")),
            ("debug-threads=on", None),
            ("../../etc/passwd", None),
            ("..", None),
            (".hidden", None),
            ("pid-17", None),
            ("phantom-vm-17", None),
            ("a b", None),
            ("", None),
        ] {
            assert_eq!(named(value), name, "{value}");
        }
        assert_eq!(named(&"x".repeat(129)), None);
    }
}
