//! The preload library, which times pthread waits without privileges: whether a program takes it, what is lost
//! where it does not, and what of its records could not be used.

use std::path::{Path, PathBuf};

use amdahl_probe::unprivileged::preload::{
    self, Covers, DIR_VARIABLE, LIBRARY, LIBRARY_VARIABLE, Records,
};
use amdahl_probe::unprivileged::{Blindness, Unread};
use amdahl_report::schema::{Notice, Source};
use amdahl_speedup::event::Tid;
use rustix::io::Errno;

/// What the library tells of.
const WHAT: &str = "pthread waits";
/// What there is instead.
const INSTEAD: &str = "they are polled like other waits, so that short ones are seen by chance and \
    what they were for is told by names on the stack or by the use of the futex";
const WITH_BPF: &str = "use BPF, which needs no library: see amdahl doctor";

/// Why nobody times the pthread waits of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The library is not there.
    NotFound,
    /// The dynamic linker cannot be given its path.
    Path,
    /// The program is linked statically.
    Static,
    /// It has another dynamic linker.
    Foreign,
    /// It gets rights that its user does not have.
    Privileged,
    /// It runs already.
    Running,
    /// It has threads and none of them was heard of.
    Unheard,
}

impl Lack {
    /// In one sentence, with what it takes away.
    pub fn missing(self) -> String {
        let why = match self {
            Lack::NotFound => {
                return format!(
                    "{LIBRARY}, which times them without privileges, was not found: {INSTEAD}."
                );
            }
            Lack::Path => format!("the path of {LIBRARY} holds a space or a colon"),
            Lack::Static => "it is linked statically".to_owned(),
            Lack::Foreign => {
                "it has another dynamic linker than this system's (musl, another architecture)"
                    .to_owned()
            }
            Lack::Privileged => {
                "it gets rights that its user does not have (set-user-ID, file capabilities)"
                    .to_owned()
            }
            Lack::Running => "it runs already".to_owned(),
            Lack::Unheard => {
                "none of its threads recorded anything: linked statically, or started by system \
                 calls of their own"
                    .to_owned()
            }
        };
        format!("The program does not take {LIBRARY}, which times them ({why}): {INSTEAD}.")
    }

    /// What to do about it.
    pub fn remedy(self) -> String {
        match self {
            Lack::NotFound => format!(
                "put it beside amdahl or into ../lib/amdahl, or name it in {LIBRARY_VARIABLE} (make \
                 install does the former; cargo install does not bring it: cargo build --release -p \
                 amdahl-preload makes it)"
            ),
            Lack::Path => format!("put it elsewhere and name it in {LIBRARY_VARIABLE}"),
            Lack::Static | Lack::Foreign => {
                format!("link the program dynamically, against this system's libc, or {WITH_BPF}")
            }
            Lack::Privileged => {
                format!("run it as the user whose rights it gets, or {WITH_BPF}")
            }
            Lack::Running => format!("give the command instead of --pid, or {WITH_BPF}"),
            Lack::Unheard => WITH_BPF.to_owned(),
        }
    }

    /// The same for a result.
    pub fn source(self) -> Source {
        Source {
            what: WHAT.to_owned(),
            how: "missing".to_owned(),
            missing: self.missing(),
            remedy: self.remedy(),
        }
    }
}

fn found(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// The value of `LD_PRELOAD` with which `program` takes the library. A script may start programs that do.
fn value(program: &str, library: Option<&Path>) -> Result<String, Lack> {
    match found(program).map_or(Covers::Unknown, |file| preload::covers(&file)) {
        Covers::Yes | Covers::Unknown => {}
        Covers::Static => return Err(Lack::Static),
        Covers::Foreign => return Err(Lack::Foreign),
        Covers::Privileged => return Err(Lack::Privileged),
    }
    let library = library.ok_or(Lack::NotFound)?;
    preload::ld_preload(library, std::env::var_os("LD_PRELOAD"))
        .and_then(|value| value.into_string().ok())
        .ok_or(Lack::Path)
}

/// The variables that load the library into `program`, which then records into the folder `records`; none if it does not
/// take one.
pub fn env(program: &str, records: &Path) -> Vec<(String, String)> {
    match (
        value(program, preload::library().as_deref()),
        records.to_str(),
    ) {
        (Ok(value), Some(records)) => vec![
            ("LD_PRELOAD".to_owned(), value),
            (DIR_VARIABLE.to_owned(), records.to_owned()),
        ],
        _ => Vec::new(),
    }
}

/// How the pthread waits of `command` become known; without a command it is a process that runs.
pub fn source(command: &[String]) -> Source {
    let lack = match command.first() {
        None => Some(Lack::Running),
        Some(program) => value(program, preload::library().as_deref()).err(),
    };
    match lack {
        Some(lack) => lack.source(),
        None => Source {
            what: WHAT.to_owned(),
            how: "preload".to_owned(),
            ..Source::default()
        },
    }
}

/// How much of one or several runs was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Looks at waiting threads whose system call the kernel hides.
    pub hidden: u64,
    /// What polls could not read although it was there.
    unread: Unread,
    /// Some process has more than one thread.
    has_threads: bool,
    /// Some process recorded its waits.
    is_recorded: bool,
    /// Records that could not be read.
    damaged: u64,
    /// Records beyond the limits.
    left_out: u64,
}

/// What is hidden, and what helps.
pub const HIDDEN: [&str; 2] = [
    "Some processes belong to another user or have other rights: what they wait for is hidden.",
    "watch as the user who runs them, with sysctl kernel.yama.ptrace_scope=0, or as root",
];

/// What a reader must know of polls that could not read everything.
pub fn unread_notice(unread: Unread) -> Option<Notice> {
    let why = unread.why?;
    let remedy = match why {
        Errno::MFILE => "Allow more open files: ulimit -n 65536.",
        Errno::NFILE => "Allow more open files on this machine: sysctl fs.file-max.",
        Errno::NOMEM => "Give the machine, or the control group of amdahl, more memory.",
        _ => "amdahl doctor tells what may be read here.",
    };
    Some(Notice {
        code: "unread".to_owned(),
        text: format!(
            "{} times something in /proc could not be read ({why}): threads counted as what they were before, and what began \
             meanwhile was seen late. {remedy}",
            unread.times
        ),
    })
}

impl Seen {
    /// Of a run whose `threads` were polled, ids and those of their processes.
    pub fn new(
        blindness: Blindness,
        threads: impl Iterator<Item = (Tid, Tid)>,
        records: &Records,
    ) -> Seen {
        let mut threads = threads;
        Seen {
            hidden: blindness.hidden,
            unread: blindness.unread,
            has_threads: threads.any(|(tid, pid)| tid != pid),
            is_recorded: !records.processes.is_empty(),
            damaged: records.damaged,
            left_out: records.left_out,
        }
    }

    /// Of several.
    pub fn sum(all: impl Iterator<Item = Seen>) -> Seen {
        all.fold(Seen::default(), |sum, one| Seen {
            hidden: sum.hidden + one.hidden,
            unread: sum.unread.and(one.unread),
            has_threads: sum.has_threads | one.has_threads,
            is_recorded: sum.is_recorded | one.is_recorded,
            damaged: sum.damaged + one.damaged,
            left_out: sum.left_out + one.left_out,
        })
    }

    /// Corrects what [`source`] promised: a program with threads of which nobody recorded anything did not
    /// take the library. Without threads nothing is recorded either, and nothing is missing.
    pub fn correct(self, sources: &mut [Source]) {
        let promised = sources
            .iter_mut()
            .find(|source| source.what == WHAT && source.how == "preload");
        let is_unheard = self.has_threads && !self.is_recorded && self.damaged == 0;
        if let (Some(source), true) = (promised, is_unheard) {
            *source = Lack::Unheard.source();
        }
    }

    /// What a reader must know of the polls and of the records.
    pub fn notices(self) -> Vec<Notice> {
        let mut notices = unread_notice(self.unread).into_iter().collect::<Vec<_>>();
        if self.damaged > 0 {
            notices.push(Notice {
                code: "records-damaged".to_owned(),
                text: format!(
                    "{} of the records of {LIBRARY} could not be read: the pthread waits of those processes are known from \
                     polls only. The file system of temporary files may be full: free some space, or set TMPDIR.",
                    self.damaged
                ),
            });
        }
        if self.left_out > 0 {
            notices.push(Notice {
                code: "records-left-out".to_owned(),
                text: format!(
                    "{} of the processes and single waits that {LIBRARY} recorded are more than is kept of a run: those \
                     waits are known from polls or sums only. Make the run shorter.",
                    self.left_out
                ),
            });
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amdahl_speedup::snapshot::ProcessWaits;

    fn library() -> &'static Path {
        Path::new("/lib/x.so")
    }

    /// What is not there cannot be loaded; what cannot take it has no use for it.
    #[test]
    fn the_reason_is_that_of_the_program_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let foreign = folder.path().join("foreign");
        std::fs::write(&foreign, b"\x7fELF of another world").expect("a file");
        let foreign = foreign.to_str().expect("UTF-8");
        assert_eq!(value(foreign, None), Err(Lack::Foreign));
        assert_eq!(value("/nowhere", None), Err(Lack::NotFound));
        assert_eq!(
            value("/nowhere", Some(Path::new("/a b/x.so"))),
            Err(Lack::Path)
        );
        assert!(
            value("/nowhere", Some(library())).is_ok_and(|value| value.starts_with("/lib/x.so"))
        );
    }

    #[test]
    fn every_lack_says_what_why_and_what_to_do() {
        let all = [
            Lack::NotFound,
            Lack::Path,
            Lack::Static,
            Lack::Foreign,
            Lack::Privileged,
            Lack::Running,
            Lack::Unheard,
        ];
        let mut reasons = std::collections::HashSet::new();
        for lack in all {
            let source = lack.source();
            assert_eq!((&*source.what, &*source.how), (WHAT, "missing"));
            assert!(source.missing.contains(LIBRARY) && source.missing.contains(INSTEAD));
            assert!(!source.remedy.is_empty());
            assert!(reasons.insert(source.missing), "{lack:?}");
        }
    }

    fn seen(has_threads: bool, records: &Records) -> Seen {
        let tid = 7 + Tid::from(has_threads);
        Seen::new(
            Blindness::default(),
            [(7, 7), (tid, 7)].into_iter(),
            records,
        )
    }

    #[test]
    fn only_threads_that_say_nothing_break_the_promise() {
        let heard = Records {
            processes: vec![ProcessWaits::default()],
            ..Records::default()
        };
        let silent = Records::default();
        for (records, has_threads, how) in [
            (&heard, true, "preload"),
            (&silent, false, "preload"),
            (&silent, true, "missing"),
        ] {
            let mut sources = vec![Source {
                what: WHAT.to_owned(),
                how: "preload".to_owned(),
                ..Source::default()
            }];
            seen(has_threads, records).correct(&mut sources);
            assert_eq!(sources[0].how, how);
        }
        let mut lacking = vec![Lack::Static.source()];
        seen(true, &silent).correct(&mut lacking);
        assert_eq!(lacking, [Lack::Static.source()]);
    }

    #[test]
    fn what_of_the_records_is_lost_is_told() {
        assert!(Seen::default().notices().is_empty());
        let records = Records {
            damaged: 2,
            left_out: 3,
            ..Records::default()
        };
        let one = seen(true, &records);
        let notices = Seen::sum([one, one].into_iter()).notices();
        let told: Vec<(&str, &str)> = notices
            .iter()
            .map(|notice| (&*notice.code, notice.text.split(' ').next().unwrap_or("")))
            .collect();
        assert_eq!(told, [("records-damaged", "4"), ("records-left-out", "6")]);
    }
}
