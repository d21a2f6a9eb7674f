//! Which code was mapped where, in which process, when.
//!
//! A process id has a history of *eras*: one from fork to exec, one per exec, and
//! a new one when the id is used again. Within an era the latest mapping of an
//! address wins, since the kernel reports what is mapped and never what is unmapped.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustc_hash::{FxHashMap, FxHashSet};

use super::SymbolError;
use super::module::ModuleId;
use super::snapshot;

/// A lookup time later than every event.
pub const LATEST: u64 = u64::MAX;

/// Executable mappings kept of one address space. JIT compilers make many; a
/// hostile program could make millions.
const MAPPINGS_MAX: usize = 1 << 16;
/// Eras of dead processes and of replaced images that are kept.
const DEAD_ERAS_MAX: usize = 1 << 14;
/// Processes whose first thread ended and that are not taken for dead yet: others of their threads may live on.
const ENDED_MAX: usize = 1 << 13;

/// A mapping as `PERF_RECORD_MMAP2` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEvent<'a> {
    /// When, in the clock of the samples.
    pub ts: u64,
    /// Process (thread group) id.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the file that `start` maps.
    pub file_offset: u64,
    /// Device of the file, as `stat` tells it; 0 if unknown.
    pub device: u64,
    /// Inode of the file; 0 if unknown.
    pub inode: u64,
    /// The path as the kernel tells it: a file, `[vdso]`, `//anon`, ...
    pub path: &'a Path,
    /// It may be executed. Others only hide what was there before.
    pub executable: bool,
}

/// A path as the kernel tells it, to look up by its bytes: taking it apart for that, as paths do, is dear.
#[derive(Clone, Debug)]
pub(super) struct MappedPath(pub(super) Arc<Path>);

impl MappedPath {
    fn bytes(&self) -> &[u8] {
        self.0.as_os_str().as_encoded_bytes()
    }
}

impl PartialEq for MappedPath {
    fn eq(&self, other: &MappedPath) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for MappedPath {}

impl Hash for MappedPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl Borrow<[u8]> for MappedPath {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

/// Where a mapping lies in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) module: ModuleId,
    /// Actual address minus address stated in the module, wrapping.
    pub(super) slide: u64,
}

/// An executable mapping.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) file_offset: u64,
    /// 0 if unknown, both.
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) path: Arc<Path>,
    /// Filled in at the first lookup, shared with forked children.
    pub(super) place: OnceLock<Place>,
}

impl Mapping {
    fn same_as(&self, other: &Mapping) -> bool {
        (self.start, self.end, self.file_offset) == (other.start, other.end, other.file_offset)
            && (self.device, self.inode, &self.path) == (other.device, other.inode, &other.path)
    }

    /// The part of this mapping inside `range`. Slide and module do not change.
    fn part(&self, range: Range<u64>) -> Arc<Mapping> {
        Arc::new(Mapping {
            start: range.start,
            end: range.end,
            file_offset: self.file_offset.wrapping_add(range.start - self.start),
            device: self.device,
            inode: self.inode,
            path: self.path.clone(),
            place: self.place.clone(),
        })
    }
}

/// The executable mappings of one address space, shared by processes that have the
/// same ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// Names the address space for code that has no file.
    pub(super) id: u64,
    /// Sorted, not overlapping.
    mappings: Vec<Arc<Mapping>>,
}

impl Space {
    pub(super) fn find(&self, address: u64) -> Option<&Arc<Mapping>> {
        let after = self
            .mappings
            .partition_point(|mapping| mapping.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (address < mapping.end).then_some(mapping)
    }

    pub(super) fn mappings(&self) -> &[Arc<Mapping>] {
        &self.mappings
    }

    fn overlaps(&self, range: Range<u64>) -> bool {
        let first = self
            .mappings
            .partition_point(|mapping| mapping.end <= range.start);
        self.mappings
            .get(first)
            .is_some_and(|mapping| mapping.start < range.end)
    }

    /// Forgets what was mapped in `range`.
    fn clear(&mut self, range: Range<u64>) {
        let first = self
            .mappings
            .partition_point(|mapping| mapping.end <= range.start);
        let last = self
            .mappings
            .partition_point(|mapping| mapping.start < range.end);
        if first >= last {
            return;
        }
        let mut kept = Vec::new();
        let (head, tail) = (&self.mappings[first], &self.mappings[last - 1]);
        if head.start < range.start {
            kept.push(head.part(head.start..range.start));
        }
        if tail.end > range.end {
            kept.push(tail.part(range.end..tail.end));
        }
        self.mappings.splice(first..last, kept);
    }

    fn insert(&mut self, mapping: Mapping) {
        self.clear(mapping.start..mapping.end);
        if self.mappings.len() < MAPPINGS_MAX {
            let at = self
                .mappings
                .partition_point(|other| other.start < mapping.start);
            self.mappings.insert(at, Arc::new(mapping));
        }
    }
}

/// A process id's life with one program.
#[derive(Clone, Debug)]
struct Era {
    since: u64,
    space: Arc<Space>,
    exited: Option<u64>,
    /// When the first thread of the process ended, if nothing was mapped since.
    first_thread_ended: Option<u64>,
    /// It began with an exec, a fork or a snapshot, so nothing older is missing.
    complete: bool,
}

impl Era {
    fn new(since: u64, space: Arc<Space>, complete: bool) -> Era {
        Era {
            since,
            space,
            exited: None,
            first_thread_ended: None,
            complete,
        }
    }

    /// The address space to change, apart from that of a parent or child.
    fn own_space(&mut self, fresh_id: u64) -> &mut Space {
        if Arc::get_mut(&mut self.space).is_none() {
            let copy = Space {
                id: fresh_id,
                mappings: self.space.mappings.clone(),
            };
            self.space = Arc::new(copy);
        }
        Arc::make_mut(&mut self.space)
    }
}

/// What [`Maps::space`] found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) space: Arc<Space>,
    /// `/proc/PID` may still describe this era.
    pub(super) maybe_alive: bool,
}

/// The address spaces of all processes of a run, over time.
///
/// Feed it the events in the order of their times. Memory is bounded: the oldest
/// dead eras go first.
#[derive(Debug, Default)]
pub struct Maps {
    eras: FxHashMap<u32, Vec<Era>>,
    /// In the order in which their first threads ended, and when.
    ended: VecDeque<(u32, u64)>,
    dead: VecDeque<u32>,
    paths: FxHashSet<MappedPath>,
    next_space: u64,
}

impl Maps {
    /// No processes.
    pub fn new() -> Maps {
        Maps::default()
    }

    /// Records a mapping.
    pub fn map(&mut self, event: &MapEvent<'_>) {
        let Some(end) = event.start.checked_add(event.len).filter(|_| event.len > 0) else {
            return;
        };
        let path = self.intern(event.path);
        let mapping = Mapping {
            start: event.start,
            end,
            file_offset: event.file_offset,
            device: event.device,
            inode: event.inode,
            path,
            place: OnceLock::new(),
        };
        let fresh_id = self.next_space + 1;
        let era = self.live_era(event.pid, event.ts);
        era.first_thread_ended = None;
        if event.executable {
            let known = era.space.find(mapping.start);
            if known.is_none_or(|known| !known.same_as(&mapping)) {
                era.own_space(fresh_id).insert(mapping);
            }
        } else if era.space.overlaps(event.start..end) {
            era.own_space(fresh_id).clear(event.start..end);
        }
        self.next_space = fresh_id;
    }

    /// A new process starts with the mappings of its parent. New threads
    /// (`parent == child`) change nothing.
    pub fn fork(&mut self, ts: u64, parent: u32, child: u32) {
        if parent == child {
            return;
        }
        let Some(era) = self.last_era(parent) else {
            // The child's id may have been another's.
            self.exit(ts, child);
            return;
        };
        let (space, complete) = (era.space.clone(), era.complete);
        self.begin(child, Era::new(ts, space, complete));
    }

    /// A process replaces its program: all mappings go.
    pub fn exec(&mut self, ts: u64, pid: u32) {
        let space = self.new_space();
        self.begin(pid, Era::new(ts, space, true));
    }

    /// The first thread of a process has ended; others may live on. It is taken for dead when that of many more has, unless
    /// something is mapped there meanwhile. Constant time.
    pub fn first_thread_ended(&mut self, ts: u64, pid: u32) {
        let Some(era) = self.eras.get_mut(&pid).and_then(|eras| eras.last_mut()) else {
            return;
        };
        era.first_thread_ended = Some(ts);
        self.ended.push_back((pid, ts));
        if self.ended.len() > ENDED_MAX
            && let Some((oldest, ts)) = self.ended.pop_front()
            // Its id may be another's meanwhile.
            && self.last_era(oldest).and_then(|era| era.first_thread_ended) == Some(ts)
        {
            self.exit(ts, oldest);
        }
    }

    /// A process has ended. Its addresses can still be looked up.
    pub fn exit(&mut self, ts: u64, pid: u32) {
        if let Some(era) = self.eras.get_mut(&pid).and_then(|eras| eras.last_mut())
            && era.exited.is_none()
        {
            era.exited = Some(ts);
            self.buried(pid);
        }
    }

    /// Reads the executable mappings of a live process, for processes that were there
    /// before the events began, or after events were lost. Returns how many there are.
    ///
    /// # Errors
    /// [`SymbolError::ReadMaps`] when the process is gone or belongs to another user.
    pub fn snapshot(&mut self, pid: u32) -> Result<usize, SymbolError> {
        let text = snapshot::read(pid).map_err(|source| SymbolError::ReadMaps { pid, source })?;
        let before = self.last_era(pid).map(|era| era.space.clone());
        let mut space = Space {
            id: 0,
            mappings: Vec::new(),
        };
        for line in snapshot::executable(&text) {
            let mapping = Mapping {
                start: line.start,
                end: line.end,
                file_offset: line.file_offset,
                device: line.device,
                inode: line.inode,
                path: self.intern(&line.path),
                place: OnceLock::new(),
            };
            match before
                .as_ref()
                .and_then(|before| before.find(mapping.start))
            {
                Some(known) if known.same_as(&mapping) && space.mappings.len() < MAPPINGS_MAX => {
                    space.mappings.push(known.clone());
                }
                _ => space.insert(mapping),
            }
        }
        let count = space.mappings.len();
        // The id may have been another's before: the new era begins where that ended.
        let since = self.last_era(pid).and_then(|era| era.exited).unwrap_or(0);
        let era = self.live_era(pid, since);
        space.id = era.space.id;
        era.space = Arc::new(space);
        era.complete = true;
        Ok(count)
    }

    /// Whether the process was seen from the beginning of its program on. If not, a
    /// [`snapshot`](Self::snapshot) tells what is missing.
    pub fn is_complete(&self, pid: u32) -> bool {
        self.last_era(pid).is_some_and(|era| era.complete)
    }

    /// Makes do with what is known of a process.
    pub(super) fn give_up(&mut self, pid: u32) {
        if let Some(era) = self.eras.get_mut(&pid).and_then(|eras| eras.last_mut()) {
            era.complete = true;
        }
    }

    /// The address space of `pid` at `ts`: the latest era that began before, or the
    /// first one.
    pub(super) fn space(&self, pid: u32, ts: u64) -> Option<Found> {
        let eras = self.eras.get(&pid)?;
        let index = eras.iter().rposition(|era| era.since <= ts).unwrap_or(0);
        let era = eras.get(index)?;
        Some(Found {
            space: era.space.clone(),
            maybe_alive: era.exited.is_none() && index + 1 == eras.len(),
        })
    }

    fn intern(&mut self, path: &Path) -> Arc<Path> {
        if let Some(known) = self.paths.get(path.as_os_str().as_encoded_bytes()) {
            return known.0.clone();
        }
        let path: Arc<Path> = path.into();
        // Mappings keep their own reference; the set only saves memory.
        if self.paths.len() >= MAPPINGS_MAX {
            self.paths.clear();
        }
        self.paths.insert(MappedPath(path.clone()));
        path
    }

    fn last_era(&self, pid: u32) -> Option<&Era> {
        self.eras.get(&pid)?.last()
    }

    fn new_space(&mut self) -> Arc<Space> {
        self.next_space += 1;
        Arc::new(Space {
            id: self.next_space,
            mappings: Vec::new(),
        })
    }

    /// The era that an event of `pid` belongs to.
    fn live_era(&mut self, pid: u32, ts: u64) -> &mut Era {
        let live = self.last_era(pid).is_some_and(|era| era.exited.is_none());
        if !live {
            let space = self.new_space();
            self.begin(pid, Era::new(ts, space, false));
        }
        let eras = self.eras.entry(pid).or_default();
        let last = eras.len() - 1;
        &mut eras[last]
    }

    fn begin(&mut self, pid: u32, era: Era) {
        let eras = self.eras.entry(pid).or_default();
        let replaces_live = eras.last().is_some_and(|last| last.exited.is_none());
        eras.push(era);
        if replaces_live {
            self.buried(pid);
        }
    }

    /// One more era of `pid` is over: forget the oldest one of all when there are many.
    fn buried(&mut self, pid: u32) {
        self.dead.push_back(pid);
        if self.dead.len() <= DEAD_ERAS_MAX {
            return;
        }
        let Some(oldest) = self.dead.pop_front() else {
            return;
        };
        if let Some(eras) = self.eras.get_mut(&oldest) {
            // Eras end in the order in which they began, so the first one is meant.
            if eras.len() == 1 {
                self.eras.remove(&oldest);
            } else {
                eras.remove(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(ts: u64, pid: u32, start: u64, len: u64, path: &str) -> MapEvent<'_> {
        MapEvent {
            ts,
            pid,
            start,
            len,
            file_offset: 0,
            device: 0,
            inode: 0,
            path: Path::new(path),
            executable: true,
        }
    }

    fn path_at(maps: &Maps, pid: u32, ts: u64, address: u64) -> Option<String> {
        let found = maps.space(pid, ts)?;
        found
            .space
            .find(address)
            .map(|mapping| mapping.path.display().to_string())
    }

    #[test]
    fn exec_fork_exit_and_reuse_of_an_id_are_told_apart() {
        let mut maps = Maps::new();
        maps.map(&event(10, 7, 0x1000, 0x1000, "/bin/sh"));
        maps.fork(20, 7, 8);
        maps.map(&event(30, 7, 0x2000, 0x1000, "/lib/late.so"));
        assert_eq!(
            path_at(&maps, 8, LATEST, 0x1800).as_deref(),
            Some("/bin/sh")
        );
        assert_eq!(
            path_at(&maps, 8, LATEST, 0x2800),
            None,
            "mapped by the parent after the fork"
        );

        maps.exec(40, 8);
        maps.map(&event(41, 8, 0x1000, 0x1000, "/bin/cat"));
        assert_eq!(path_at(&maps, 8, 39, 0x1800).as_deref(), Some("/bin/sh"));
        assert_eq!(path_at(&maps, 8, 41, 0x1800).as_deref(), Some("/bin/cat"));

        maps.exit(50, 8);
        assert_eq!(
            path_at(&maps, 8, LATEST, 0x1800).as_deref(),
            Some("/bin/cat")
        );
        assert!(!maps.space(8, LATEST).unwrap().maybe_alive);
        maps.fork(60, 7, 8);
        assert_eq!(
            path_at(&maps, 8, 61, 0x2800).as_deref(),
            Some("/lib/late.so")
        );
        assert_eq!(path_at(&maps, 8, 55, 0x1800).as_deref(), Some("/bin/cat"));
    }

    #[test]
    fn a_forked_child_shares_the_mappings() {
        let mut maps = Maps::new();
        maps.map(&event(1, 1, 0x1000, 0x1000, "/bin/a"));
        maps.fork(2, 1, 2);
        let (parent, child) = (
            maps.space(1, LATEST).unwrap(),
            maps.space(2, LATEST).unwrap(),
        );
        assert!(Arc::ptr_eq(&parent.space, &child.space));
    }

    #[test]
    fn a_snapshot_completes_what_events_began_to_tell() {
        let pid = std::process::id();
        let mut maps = Maps::new();
        maps.map(&event(5, pid, 0x1000, 0x1000, "/stale"));
        assert!(!maps.is_complete(pid));
        maps.exit(7, pid);
        maps.snapshot(pid).unwrap();
        assert!(maps.is_complete(pid));
        let here = Maps::new as *const () as u64;
        assert_eq!(
            path_at(&maps, pid, 5, 0x1000).as_deref(),
            Some("/stale"),
            "before the id was reused"
        );
        assert!(path_at(&maps, pid, LATEST, here).is_some());
    }

    #[test]
    fn the_file_offset_follows_when_a_mapping_is_cut() {
        let mut maps = Maps::new();
        maps.map(&event(1, 1, 0x1000, 0x4000, "/bin/a"));
        maps.map(&event(2, 1, 0x2000, 0x1000, "/bin/b"));
        let found = maps.space(1, LATEST).unwrap();
        let upper = found.space.find(0x3000).unwrap();
        assert_eq!(
            (upper.start, upper.end, upper.file_offset),
            (0x3000, 0x5000, 0x2000)
        );
        assert_eq!(path_at(&maps, 1, LATEST, 0x2fff).as_deref(), Some("/bin/b"));
        assert_eq!(path_at(&maps, 1, LATEST, 0x1fff).as_deref(), Some("/bin/a"));
    }

    /// What the kernel tells is that the first thread ended, which was ignored: an era stayed until its id was used again.
    #[test]
    fn processes_whose_first_thread_ended_do_not_pile_up() {
        let mut maps = Maps::new();
        maps.map(&event(0, 1, 0x1000, 0x1000, "/bin/sh"));
        let last = 2 + 2 * (DEAD_ERAS_MAX + ENDED_MAX) as u32;
        for pid in 2..=last {
            let ts = u64::from(pid);
            maps.fork(ts, 1, pid);
            maps.exec(ts, pid);
            maps.map(&event(ts, pid, 0x1000, 0x1000, "/bin/a"));
            maps.first_thread_ended(ts, pid);
        }
        assert!(maps.eras.len() <= DEAD_ERAS_MAX + ENDED_MAX + 1);
        assert!(maps.ended.len() <= ENDED_MAX);
        let late = path_at(&maps, last, LATEST, 0x1800);
        assert_eq!(late.as_deref(), Some("/bin/a"), "its stacks may come late");
        assert!(maps.space(1, LATEST).is_some(), "who lives is kept");
    }

    #[test]
    fn who_lives_on_after_its_first_thread_is_not_taken_for_dead() {
        let mut maps = Maps::new();
        for pid in [1, 2, 3] {
            maps.map(&event(10, pid, 0x1000, 0x1000, "/bin/a"));
            maps.first_thread_ended(20, pid);
        }
        maps.map(&event(30, 2, 0x2000, 0x1000, "/lib/late.so"));
        maps.exec(30, 3);
        for pid in 10..10 + ENDED_MAX as u32 {
            maps.map(&event(40, pid, 0x1000, 0x1000, "/bin/b"));
            maps.first_thread_ended(50, pid);
        }
        let lives = |pid| maps.space(pid, LATEST).unwrap().maybe_alive;
        assert_eq!([1, 2, 3].map(lives), [false, true, true]);
        assert_eq!(path_at(&maps, 1, 15, 0x1800).as_deref(), Some("/bin/a"));
    }

    #[test]
    fn the_child_of_somebody_unknown_does_not_get_the_mappings_of_who_had_its_id() {
        let mut maps = Maps::new();
        maps.map(&event(10, 2, 0x1000, 0x1000, "/bin/old"));
        maps.first_thread_ended(20, 2);
        maps.fork(30, 1, 2);
        maps.map(&event(40, 2, 0x5000, 0x1000, "/bin/new"));
        assert_eq!(path_at(&maps, 2, 15, 0x1800).as_deref(), Some("/bin/old"));
        assert_eq!(path_at(&maps, 2, LATEST, 0x1800), None);
        assert!(!maps.is_complete(2));
    }

    #[test]
    fn dead_processes_do_not_pile_up() {
        let mut maps = Maps::new();
        for pid in 0..(2 * DEAD_ERAS_MAX as u32) {
            maps.map(&event(u64::from(pid), pid, 0x1000, 0x1000, "/bin/a"));
            maps.exit(u64::from(pid), pid);
        }
        assert!(maps.eras.len() <= DEAD_ERAS_MAX);
        let newest = 2 * DEAD_ERAS_MAX as u32 - 1;
        assert!(maps.eras.contains_key(&newest), "the newest stay");
    }

    proptest! {
        /// Against a table with one entry per address.
        #[test]
        fn the_latest_mapping_of_an_address_wins(
            events in prop::collection::vec((0_u64..64, 1_u64..32, 0_usize..4, any::<bool>()), 0..40)
        ) {
            const PATHS: [&str; 4] = ["/a", "/b", "/c", "/d"];
            let mut maps = Maps::new();
            let mut model = [None; 128];
            maps.exec(0, 1);
            for (ts, &(start, len, path, executable)) in events.iter().enumerate() {
                maps.map(&MapEvent { executable, ..event(ts as u64, 1, start, len, PATHS[path]) });
                for address in start..start + len {
                    model[address as usize] = executable.then_some(PATHS[path]);
                }
            }
            for address in 0..128 {
                let found = path_at(&maps, 1, LATEST, address);
                prop_assert_eq!(found.as_deref(), model[address as usize]);
            }
        }

        #[test]
        fn hostile_events_do_not_panic(
            events in prop::collection::vec((any::<u64>(), 0_u32..3, any::<u64>(), any::<u64>(), 0_u8..6), 0..60)
        ) {
            let mut maps = Maps::new();
            for (ts, pid, start, len, kind) in events {
                match kind {
                    0 => maps.exec(ts, pid),
                    1 => maps.fork(ts, pid, (start % 3) as u32),
                    2 => maps.exit(ts, pid),
                    3 => maps.first_thread_ended(ts, pid),
                    _ => maps.map(&event(ts, pid, start, len, "/x")),
                }
                if let Some(found) = maps.space(pid, ts) {
                    found.space.find(start);
                }
            }
        }
    }
}
