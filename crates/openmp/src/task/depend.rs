//! Dependences between the children of one task: which earlier ones each has to wait for.

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Task;

/// How a task depends on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// After all before, before all after: `out`, `inout`, and `mutexinoutset`, which this is stronger than.
    Out,
    /// At once with others of the same kind only.
    InOutSet,
    /// At once with other `in`s only.
    In,
}

/// One item of a depend clause. Address 0 stands for all memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependence {
    /// Where.
    pub address: usize,
    /// How.
    pub kind: Kind,
}

/// What can be waited for.
pub trait Unit: Clone {
    /// Nobody has to wait for it any more.
    fn has_ended(&self) -> bool;
    /// The same one.
    fn is(&self, other: &Self) -> bool;
}

/// Those at an address that later ones wait for.
#[derive(Debug)]
struct Entry<U> {
    kind: Kind,
    /// The last set: of one, or of those that may run at once.
    current: Vec<U>,
    /// What the members of the current set wait for.
    previous: Vec<U>,
}

/// What the children of one task depend on. Belongs to the thread that runs the task.
#[derive(Debug)]
pub struct Table<U> {
    entries: HashMap<usize, Entry<U>, BuildHasherDefault<AddressHasher>>,
    /// The last one that depends on all memory.
    all: Option<U>,
    /// Clean up when there are so many entries.
    clean_at: usize,
}

/// Addresses differ in their middle bits.
#[derive(Debug, Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(usize::from(byte));
        }
    }
    fn write_usize(&mut self, value: usize) {
        let mixed = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

const CLEAN_AT: usize = 64;

impl<U> Default for Table<U> {
    fn default() -> Table<U> {
        Table {
            entries: HashMap::default(),
            all: None,
            clean_at: CLEAN_AT,
        }
    }
}

impl<U: Unit> Table<U> {
    /// Adds a task with its dependences, strongest kind first. `before` is told each one that it waits for; one may
    /// be told more than once.
    pub fn add(&mut self, unit: &U, dependences: &[Dependence], mut before: impl FnMut(&U)) {
        for dependence in dependences {
            if dependence.address == 0 {
                for entry in self.entries.values() {
                    entry.current.iter().for_each(&mut before);
                }
                self.all.iter().for_each(&mut before);
                self.entries.clear();
                self.all = Some(unit.clone());
                // All else is contained in this.
                return;
            }
        }
        for dependence in dependences {
            self.add_one(unit, effective(*dependence, dependences), &mut before);
        }
        if self.entries.len() >= self.clean_at {
            self.entries
                .retain(|_, e| e.current.iter().any(|u| !u.has_ended()));
            self.clean_at = CLEAN_AT.max(2 * self.entries.len());
        }
    }

    fn add_one(&mut self, unit: &U, dependence: Dependence, before: &mut impl FnMut(&U)) {
        let all = &self.all;
        let entry = self
            .entries
            .entry(dependence.address)
            .or_insert_with(|| Entry {
                kind: Kind::Out,
                current: all.iter().cloned().collect(),
                previous: Vec::new(),
            });
        // The same address twice in one clause: the stronger kind came first.
        if entry.current.last().is_some_and(|last| last.is(unit)) {
            return;
        }
        if entry.kind != dependence.kind || dependence.kind == Kind::Out {
            entry.kind = dependence.kind;
            std::mem::swap(&mut entry.previous, &mut entry.current);
            entry.current.clear();
        } else if entry.current.len() == entry.current.capacity() {
            // Before it grows.
            entry.current.retain(|u| !u.has_ended());
        }
        entry.previous.retain(|u| !u.has_ended());
        entry.previous.iter().for_each(before);
        entry.current.push(unit.clone());
    }

    /// Tells each one that a task with these dependences would wait for.
    pub fn look(&self, dependences: &[Dependence], mut before: impl FnMut(&U)) {
        for dependence in dependences {
            if dependence.address == 0 {
                for entry in self.entries.values() {
                    entry.current.iter().for_each(&mut before);
                }
            }
            let dependence = effective(*dependence, dependences);
            self.all.iter().for_each(&mut before);
            if let Some(entry) = self.entries.get(&dependence.address) {
                let joins = entry.kind == dependence.kind && dependence.kind != Kind::Out;
                let units = if joins {
                    &entry.previous
                } else {
                    &entry.current
                };
                units.iter().for_each(&mut before);
            }
        }
    }
}

/// A task that is both `in` and `inoutset` at an address runs at once with nobody there.
fn effective(dependence: Dependence, all: &[Dependence]) -> Dependence {
    let is_mixed = dependence.kind == Kind::InOutSet
        && all
            .iter()
            .any(|d| d.address == dependence.address && d.kind == Kind::In);
    if is_mixed {
        return Dependence {
            kind: Kind::Out,
            ..dependence
        };
    }
    dependence
}

const DEPEND_IN: usize = 1;
const DEPEND_OUT: usize = 2;
const DEPEND_INOUT: usize = 3;
const DEPEND_MUTEXINOUTSET: usize = 4;
const DEPEND_INOUTSET: usize = 5;

/// An `omp_depend_t` that is of no kind which is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownKind(pub usize);

/// The dependences in the array that the compiler passes, strongest kind first.
///
/// If its first word is not 0: the number of addresses, how many of them are `out`, the addresses, `out` before `in`.
/// Otherwise 0, the number of addresses, how many are `out`, `mutexinoutset` and `in`, then these, then the addresses
/// of `omp_depend_t`s: each a pair of an address and a kind.
///
/// # Errors
/// An `omp_depend_t` is of no known kind.
///
/// # Safety
/// The array is of one of the two forms.
pub unsafe fn parse(array: *const *mut c_void) -> Result<Vec<Dependence>, UnknownKind> {
    // SAFETY: the caller's promise.
    unsafe {
        let word = |i: usize| *array.add(i) as usize;
        if word(0) != 0 {
            let (total, outs) = (word(0), word(1));
            return Ok((0..total)
                .map(|i| Dependence {
                    address: word(2 + i),
                    kind: if i < outs { Kind::Out } else { Kind::In },
                })
                .collect());
        }
        let (total, outs, mutexes, ins) = (word(1), word(2), word(3), word(4));
        let strong = outs + mutexes;
        let mut dependences = Vec::with_capacity(total);
        for i in 0..total {
            let item = word(5 + i);
            dependences.push(if i < strong + ins {
                Dependence {
                    address: item,
                    kind: if i < strong { Kind::Out } else { Kind::In },
                }
            } else {
                let object = item as *const usize;
                Dependence {
                    address: *object,
                    kind: match *object.add(1) {
                        DEPEND_IN => Kind::In,
                        DEPEND_OUT | DEPEND_INOUT | DEPEND_MUTEXINOUTSET => Kind::Out,
                        DEPEND_INOUTSET => Kind::InOutSet,
                        other => return Err(UnknownKind(other)),
                    },
                }
            });
        }
        dependences.sort_by_key(|d| d.kind);
        Ok(dependences)
    }
}

/// A task that others may have to wait for. Outlives it.
#[derive(Debug, Default)]
pub struct Node {
    has_ended: AtomicBool,
    next: Mutex<Vec<Successor>>,
}

/// Who waits for a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Successor {
    /// A task that was not begun.
    Task(*mut Task),
    /// A running task that waits itself.
    Waiter(*mut Task),
}

// SAFETY: the tasks are there as long as they have not been told; what is done with them is the caller's matter.
unsafe impl Send for Successor {}

impl Unit for Arc<Node> {
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }
}

impl Node {
    fn next(&self) -> MutexGuard<'_, Vec<Successor>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `successor` told when this ends. False: it has ended.
    pub(crate) fn tell(&self, successor: Successor) -> bool {
        let mut next = self.next();
        let lives = !self.has_ended.load(Ordering::Relaxed);
        if lives {
            next.push(successor);
        }
        lives
    }

    /// The task has ended: all who wait for it.
    pub(crate) fn end(&self) -> Vec<Successor> {
        let mut next = self.next();
        // Release: who sees this without the lock sees what the task did.
        self.has_ended.store(true, Ordering::Release);
        std::mem::take(&mut next)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// A unit of the test: its number, and who has ended.
    #[derive(Clone, Debug)]
    struct Numbered(usize, Rc<RefCell<Vec<bool>>>);

    impl Unit for Numbered {
        fn has_ended(&self) -> bool {
            self.1.borrow()[self.0]
        }
        fn is(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    /// Whether the later has to wait for the earlier, by the specification.
    fn conflicts(earlier: &[Dependence], later: &[Dependence]) -> bool {
        let has_all = |all: &[Dependence]| all.iter().any(|d| d.address == 0);
        if has_all(earlier) || has_all(later) {
            return true;
        }
        earlier.iter().any(|e| {
            later
                .iter()
                .any(|l| e.address == l.address && (e.kind != l.kind || l.kind == Kind::Out))
        })
    }

    fn dependence() -> impl Strategy<Value = Dependence> {
        (0usize..40, 0..3).prop_map(|(address, kind)| Dependence {
            // All memory is rare.
            address: if address == 0 { 0 } else { address % 5 + 1 },
            kind: match kind {
                _ if address == 0 => Kind::Out,
                0 => Kind::Out,
                1 => Kind::InOutSet,
                _ => Kind::In,
            },
        })
    }

    /// The closure of a relation that is given row by row: `rows` are closed already.
    fn closed(direct: &[bool], rows: &[Vec<bool>]) -> Vec<bool> {
        (0..direct.len())
            .map(|j| (j..direct.len()).any(|k| direct[k] && (k == j || rows[k][j])))
            .collect()
    }

    proptest! {
        #[test]
        fn who_conflicts_waits_and_nobody_else(
            mut tasks in proptest::collection::vec(
                (proptest::collection::vec(dependence(), 1..4), 0u32..4), 1..40),
        ) {
            let ended = Rc::new(RefCell::new(vec![false; tasks.len()]));
            let mut table = Table::default();
            let (mut told_rows, mut expected_rows) = (Vec::new(), Vec::new());
            for i in 0..tasks.len() {
                tasks[i].0.sort_by_key(|d| d.kind);
                let dependences = &tasks[i].0;
                let mut looked = vec![false; i];
                table.look(dependences, |u: &Numbered| looked[u.0] = true);
                let mut told = vec![false; i];
                table.add(&Numbered(i, ended.clone()), dependences, |u| told[u.0] = true);
                let direct: Vec<bool> = (0..i).map(|j| conflicts(&tasks[j].0, dependences)).collect();
                let looked = closed(&looked, &told_rows);
                let told = closed(&told, &told_rows);
                let expected = closed(&direct, &expected_rows);
                for j in (0..i).filter(|&j| !ended.borrow()[j]) {
                    prop_assert_eq!(told[j], expected[j], "{} after {}", i, j);
                    prop_assert_eq!(looked[j], expected[j], "{} after {}", i, j);
                }
                told_rows.push(told);
                expected_rows.push(expected);
                // Now and then the earliest ends: it waits for nobody.
                if tasks[i].1 == 0 {
                    let earliest = ended.borrow().iter().position(|e| !e);
                    ended.borrow_mut()[earliest.unwrap_or(0).min(i)] = true;
                }
            }
        }
    }

    #[test]
    fn addresses_whose_tasks_have_ended_are_forgotten() {
        let ended = Rc::new(RefCell::new(vec![true; 1]));
        let mut table = Table::default();
        for address in 1..10_000 {
            let out = Dependence {
                address,
                kind: Kind::Out,
            };
            table.add(&Numbered(0, ended.clone()), &[out], |_| {});
        }
        assert!(table.entries.len() <= CLEAN_AT);
    }

    #[test]
    fn both_forms_of_the_array_are_read() {
        let object = [7usize, DEPEND_INOUTSET];
        let of = |words: &[usize]| {
            let words: Vec<*mut c_void> = words.iter().map(|&w| w as *mut c_void).collect();
            // SAFETY: of one of the two forms.
            unsafe { parse(words.as_ptr()) }
        };
        let item = |address, kind| Dependence { address, kind };
        assert_eq!(
            of(&[3, 1, 10, 20, 30]),
            Ok(vec![
                item(10, Kind::Out),
                item(20, Kind::In),
                item(30, Kind::In)
            ])
        );
        assert_eq!(
            of(&[0, 4, 1, 1, 1, 10, 20, 30, object.as_ptr() as usize]),
            Ok(vec![
                item(10, Kind::Out),
                item(20, Kind::Out),
                item(7, Kind::InOutSet),
                item(30, Kind::In),
            ])
        );
        let strange = [7usize, 99];
        assert_eq!(
            of(&[0, 1, 0, 0, 0, strange.as_ptr() as usize]),
            Err(UnknownKind(99))
        );
    }
}
