//! Probes in programs of Go, by which the waits of goroutines are timed ([`LOCKS`](super::LOCKS)).

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use amdahl_locks::{Kind, LockId, Parked, Wait, Waker};
use amdahl_speedup::event::Ns;
use aya::maps::{HashMap, Map, MapData};
use aya::programs::UProbe;
use rustc_hash::FxHashMap;

use super::elements::map_fd;
use super::error::{RecorderError, chain, system};
use super::locks::place;
use super::programs::refusal;
use super::recorder::Recorder;
use super::wire::{Slot, stack_kind};
use crate::clock;
use crate::perf;
use crate::symbol::GoroutineCode;

/// Goroutines whose last wait is known: 15 MiB of the kernel's memory. More count as lost events.
pub(super) const GOROUTINES_MAX: u32 = 1 << 17;

const MAP: &str = "goroutines";
/// In the order of [`GoroutineCode`].
const PROGRAMS: [&str; 4] = ["on_go_wait", "on_go_park", "on_go_parked", "on_go_ready"];

/// `struct amdahl_goroutine` and `struct amdahl_go_wait` as words.
type Key = [u64; 2];
type Value = [u64; 6];

/// Probes that are in programs now; dropped, they are taken out.
#[derive(Debug)]
pub struct GoroutineProbes {
    programs: Vec<OwnedFd>,
    cpu: u32,
    files: FxHashMap<(u64, u64), Probed>,
    table: HashMap<MapData, Key, Value>,
}

#[derive(Debug)]
struct Probed {
    /// Since when; `None` where there are no probes.
    since: Option<Ns>,
    _events: Vec<OwnedFd>,
}

impl GoroutineProbes {
    /// Puts probes into the program of a live process, if it is one in Go and has none yet. Since when its goroutines are timed;
    /// `None` if they are not.
    pub fn look_at(&mut self, pid: u32) -> Result<Option<Ns>, RecorderError> {
        self.look_at_program(Path::new(&format!("/proc/{pid}/exe")))
    }

    /// The same for a file that is to be started.
    pub fn look_at_program(&mut self, path: &Path) -> Result<Option<Ns>, RecorderError> {
        // A thread of the kernel has none, and a process may be gone.
        let Ok(file) = File::open(path) else {
            return Ok(None);
        };
        let metadata = file.metadata().map_err(system("look at a program"))?;
        let id = (metadata.dev(), metadata.ino());
        if let Some(probed) = self.files.get(&id) {
            return Ok(probed.since);
        }
        let code = GoroutineCode::of(&file).unwrap_or_default();
        let events = self.attach(path, &code)?;
        let since = (!events.is_empty()).then(clock::monotonic);
        let probed = Probed {
            since,
            _events: events,
        };
        self.files.insert(id, probed);
        Ok(since)
    }

    fn attach(&self, path: &Path, code: &GoroutineCode) -> Result<Vec<OwnedFd>, RecorderError> {
        let failed = |error: std::io::Error| RecorderError::Attach {
            hook: format!("the waits of goroutines in {}", path.display()),
            why: error.to_string(),
        };
        let path = CString::new(path.as_os_str().as_bytes())
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let places = [&code.waits, &code.parks, &code.parked, &code.ready];
        let mut events = Vec::new();
        // Where a wait begins comes last: nobody comes to its end without having come by its beginning.
        for (program, offsets) in self.programs.iter().zip(places).rev() {
            for &offset in offsets {
                let event = perf::in_file(&path, offset, self.cpu).map_err(failed)?;
                perf::set_program(&event, program.as_fd()).map_err(failed)?;
                perf::enable(&event, true).map_err(failed)?;
                events.push(event);
            }
        }
        Ok(events)
    }

    /// Whether any program has probes.
    pub fn are_any(&self) -> bool {
        self.files.values().any(|probed| probed.since.is_some())
    }

    /// The waits that have not ended by now, `until`.
    pub fn open(&self, until: Ns) -> Vec<Wait> {
        let entries = self.table.iter().flatten();
        let open = entries.filter_map(|(key, value)| parked_now(key, value, until));
        open.map(|wait| Wait {
            is_open: true,
            ..wait
        })
        .collect()
    }

    /// The waits that ended with the program of process `pid`, at `ts`. O(goroutines of all programs).
    pub fn ended(&mut self, pid: u32, ts: Ns) -> Vec<Wait> {
        let entries = self.table.iter().flatten();
        let of_it: Vec<(Key, Value)> = entries
            .filter(|([_, tgid], _)| *tgid as u32 == pid)
            .collect();
        for (key, _) in &of_it {
            // It may have gone on meanwhile if it was not its end: then a wait is missing.
            let _ = self.table.remove(key);
        }
        of_it
            .into_iter()
            .filter_map(|(key, value)| parked_now(key, value, ts))
            .collect()
    }
}

/// An entry of the table, if it is of a goroutine that is parked, until now.
fn parked_now([_, tgid]: Key, [lock, begin, .., state]: Value, until: Ns) -> Option<Wait> {
    let (pid, place_of, is_parked) = (tgid as u32, state as u32, state >> 32 != 0);
    (is_parked && begin < until).then(|| Wait {
        begin,
        end: until,
        ..wait_of(pid, lock, place_of)
    })
}

/// Of a goroutine of `pid`.
fn wait_of(pid: u32, address: u64, place_of: u32) -> Wait {
    Wait {
        tid: pid,
        pid,
        lock: LockId { pid, address },
        kind: Kind::Goroutine,
        begin: 0,
        end: 0,
        place: place(stack_kind::WAIT, place_of),
        waker: None,
        expected: 0,
        is_open: false,
        began_before: false,
        is_polled: false,
    }
}

/// A wait that is over, as the programs tell it.
pub(super) fn parked(slot: &Slot) -> Option<Parked> {
    let waker = (slot.other != 0).then(|| Waker {
        tid: slot.other,
        ts: slot.ts,
        place: place(stack_kind::WAKE, slot.cpu),
    });
    Some(Parked {
        wait: Wait {
            tid: slot.tid,
            begin: slot.ts.checked_sub(slot.arg[1])?,
            end: slot.ts,
            waker,
            ..wait_of(slot.syscall as u32, slot.arg[0], slot.place)
        },
        before: slot.arg[2],
    })
}

impl Recorder {
    /// Loads the programs that time goroutines; no program of anybody has probes yet. Ask for them by
    /// [`Settings::goroutines`](super::Settings::goroutines).
    pub fn goroutine_probes(&mut self) -> Result<GoroutineProbes, RecorderError> {
        let mut programs = Vec::new();
        for name in PROGRAMS {
            let failed = |why: String| RecorderError::Attach {
                hook: name.to_owned(),
                why,
            };
            let program = self.bpf.program_mut(name);
            let program: &mut UProbe = program
                .expect("the object has this program")
                .try_into()
                .expect("it is one for probes in programs");
            program.load().map_err(|error| failed(refusal(&error)))?;
            let fd = program.fd().map_err(|error| failed(chain(&error)))?.as_fd();
            let fd = fd.try_clone_to_owned();
            programs.push(fd.map_err(|error| failed(error.to_string()))?);
        }
        let table = map_fd(&self.bpf, MAP)?.try_clone_to_owned();
        let table = MapData::from_fd(table.map_err(system("keep a map of BPF"))?);
        let table = table.and_then(|data| HashMap::try_from(Map::HashMap(data)));
        Ok(GoroutineProbes {
            programs,
            cpu: self.cpus().first().copied().unwrap_or(0),
            files: FxHashMap::default(),
            table: table.map_err(|error| RecorderError::Load(chain(&error)))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_wait_while_the_goroutine_is_parked() {
        let entry = |state| parked_now([0xc000, 5], [0x1000, 4_000, 0, 0, 0, state], 9_000);
        let wait = entry(1 << 32 | 0xabc).expect("it waits");
        assert_eq!((wait.pid, wait.begin, wait.end), (5, 4_000, 9_000));
        assert_eq!(wait.place, place(stack_kind::WAIT, 0xabc));
        assert_eq!(entry(0xabc), None);
        let later = [0x1000, 9_000, 0, 0, 0, 1 << 32];
        assert_eq!(parked_now([0xc000, 5], later, 9_000), None);
    }

    #[test]
    fn a_slot_is_the_wait_of_a_goroutine() {
        let slot = Slot {
            ts: 10_000,
            tid: 7,
            other: 8,
            syscall: 5,
            place: 0xabc,
            cpu: 0xdef,
            arg: [0x1000, 9_000, 4_000],
            ..Slot::default()
        };
        let told = parked(&slot).expect("a wait");
        assert_eq!((told.wait.begin, told.before), (1_000, 4_000));
        let waker = told.wait.waker.expect("a waker");
        assert_eq!(
            (waker.tid, waker.place),
            (8, place(stack_kind::WAKE, 0xdef))
        );
        let impossible = Slot {
            arg: [0, 20_000, 0],
            ..slot
        };
        assert!(parked(&impossible).is_none());
    }
}
