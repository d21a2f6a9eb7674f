//! The map against an array with a value for each address.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, LazyLock};
use std::thread;

use proptest::prelude::*;

use super::*;
use node::{View, WIDTH};

/// Addresses that tests use: small ones, all between as one, and the last ones.
const SMALL: u64 = 3000;
const TOP: u64 = 30;

/// The addresses of a cell of the model.
fn cell(at: u64) -> Span {
    match at {
        0..SMALL => Span {
            start: at,
            last: at,
        },
        SMALL => Span {
            start: SMALL,
            last: u64::MAX - TOP,
        },
        _ => {
            let address = u64::MAX - TOP + (at - SMALL);
            Span {
                start: address,
                last: address,
            }
        }
    }
}

const CELLS: u64 = SMALL + 1 + TOP;

#[derive(Clone, Debug)]
struct Step {
    from: u64,
    to: u64,
    value: Option<u8>,
}

fn steps(cells: impl Strategy<Value = u64>, most: usize) -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![8 => 0..12_u64, 1 => 0..800_u64];
    let value = prop_oneof![3 => (0..3_u8).prop_map(Some), 1 => Just(None)];
    let step = (cells, length, value).prop_map(|(from, more, value)| Step {
        from,
        to: (from + more).min(CELLS - 1),
        value,
    });
    prop::collection::vec(step, 1..most)
}

/// Runs of equal values.
fn runs(model: &[Option<u8>]) -> Vec<(RangeInclusive<u64>, Option<u8>)> {
    let mut runs: Vec<(RangeInclusive<u64>, Option<u8>)> = Vec::new();
    for (at, &value) in model.iter().enumerate() {
        let span = cell(at as u64);
        match runs.last_mut() {
            Some((range, last)) if *last == value => *range = *range.start()..=span.last,
            _ => runs.push((span.range(), value)),
        }
    }
    runs
}

/// All leaves are equally deep, nodes are neither empty nor too full, and keys are what they say.
fn check_tree(root: *const Node) -> u64 {
    // SAFETY: the tests change no map meanwhile.
    match unsafe { node::view::<u8>(root) } {
        View::Leaf(leaf) => {
            assert!((1..=WIDTH).contains(&leaf.len()));
            leaf.span(leaf.len() - 1).last
        }
        View::Inner(lasts, children) => {
            assert!((1..=WIDTH).contains(&children.len()));
            // SAFETY: as above.
            let height = |node: *const Node| unsafe { (*node).height() };
            for (&child, &last) in children.iter().zip(lasts) {
                assert_eq!(height(child) + 1, height(root));
                assert_eq!(check_tree(child), last);
            }
            assert!(lasts.is_sorted());
            *lasts.last().expect("not empty")
        }
    }
}

fn check(map: &SeqRangeMap<u8>, model: &[Option<u8>]) {
    let reader = map.reader();
    let runs = runs(model);
    let filled = runs
        .iter()
        .filter_map(|(range, v)| Some((range.clone(), (*v)?)));
    let found = reader.snapshot().iter().map(|(range, v)| (range, *v));
    assert!(found.eq(filled.clone()), "{map:?}");
    assert_eq!(map.len(), filled.count());
    let gaps = runs
        .iter()
        .filter(|run| run.1.is_none())
        .map(|run| run.0.clone());
    assert!(reader.snapshot().gaps(..).eq(gaps));
    for (range, value) in &runs {
        for address in [*range.start(), *range.end()] {
            let expected = value.map(|v| (range.clone(), v));
            assert_eq!(reader.get_entry(address).map(|(r, v)| (r, *v)), expected);
        }
    }
    let root = reader.root();
    if !root.is_null() {
        check_tree(root);
    }
}

fn play(steps: Vec<Step>, check_each: bool) {
    let map = SeqRangeMap::new();
    let mut model = vec![None; CELLS as usize];
    for step in steps {
        let range = cell(step.from).start..=cell(step.to).last;
        match step.value {
            Some(value) => map.insert(range, value),
            None => map.remove(range),
        }
        model[step.from as usize..=step.to as usize].fill(step.value);
        if check_each {
            check(&map, &model);
        }
    }
    check(&map, &model);
    map.clear();
    assert!(map.is_empty() && map.reader().root().is_null());
}

proptest! {
    // Miri takes a thousand times as long.
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 40 }))]

    #[test]
    fn a_small_map_is_what_an_array_is(steps in steps(prop_oneof![0..40_u64, SMALL - 5..CELLS], 40)) {
        play(steps, true);
    }

    #[test]
    fn a_large_map_is_what_an_array_is(steps in steps(0..CELLS, if cfg!(miri) { 60 } else { 3000 })) {
        play(steps, false);
    }
}

#[test]
fn ranges_within_a_range() {
    let map: SeqRangeMap<u8> = (0..100)
        .map(|at| (at * 10..at * 10 + 5, at as u8))
        .collect();
    let reader = map.reader();
    let snapshot = reader.snapshot();
    let starts: Vec<u64> = snapshot
        .overlapping(34..61)
        .map(|(r, _)| *r.start())
        .collect();
    assert_eq!(starts, [30, 40, 50, 60]);
    let gaps: Vec<_> = snapshot.gaps(32..58).collect();
    assert_eq!(gaps, [35..=39, 45..=49, 55..=57]);
    assert_eq!(
        snapshot.overlapping(7..7).count() + snapshot.gaps(7..7).count(),
        0
    );
    assert!(
        SeqRangeMap::<u8>::new()
            .reader()
            .snapshot()
            .gaps(5..7)
            .eq([5..=6])
    );
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let map: SeqRangeMap<u8> = (0..1000).map(|at| (at..at + 1, at as u8)).collect();
    let mut reader = map.reader();
    let before = reader.snapshot();
    map.clear();
    map.insert(.., 7);
    assert_eq!((before.iter().count(), before.get(999)), (1000, Some(&231)));
    assert_eq!(
        reader.get(999),
        Some(&7),
        "a look-up sees the latest version"
    );
    reader.refresh();
    assert_eq!(reader.get_entry(5), Some((0..=u64::MAX, &7)));
}

#[test]
#[cfg_attr(miri, ignore = "so many ranges take Miri an hour")]
fn many_ranges_make_a_shallow_tree_and_few_a_small_one() {
    let map: SeqRangeMap<u8> = (0..20_000).map(|at| (at * 2..at * 2 + 1, 0)).collect();
    // SAFETY: nobody changes the map.
    let height = |reader: &Reader<'_, u8>| unsafe { (*reader.root()).height() };
    assert!(height(&map.reader()) <= 5);
    for at in (0..20_000).filter(|at| at % 1000 != 0) {
        map.remove(at * 2..=at * 2);
    }
    assert_eq!(map.len(), 20);
    assert!(height(&map.reader()) <= 1, "few entries lie in few nodes");
}

/// Counts how many of them there are, and panics when told to.
struct Counted<'a> {
    alive: &'a Cell<isize>,
    clones_left: &'a Cell<usize>,
}

impl Clone for Counted<'_> {
    fn clone(&self) -> Self {
        let left = self.clones_left.get();
        assert!(left > 0, "on purpose");
        self.clones_left.set(left - 1);
        self.alive.set(self.alive.get() + 1);
        Counted { ..*self }
    }
}

impl PartialEq for Counted<'_> {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

#[test]
fn a_clone_that_panics_changes_and_loses_nothing() {
    let (alive, clones_left) = (Cell::new(0), Cell::new(usize::MAX));
    let map = SeqRangeMap::new();
    let new = || {
        alive.set(alive.get() + 1);
        Counted {
            alive: &alive,
            clones_left: &clones_left,
        }
    };
    for at in 0..40 {
        map.insert(at * 10..at * 10 + 9, new());
    }
    for clones in 0..20 {
        clones_left.set(clones);
        let changed = catch_unwind(AssertUnwindSafe(|| map.insert(33..337, new())));
        if changed.is_err() {
            clones_left.set(usize::MAX);
            assert_eq!(map.len(), 40);
            assert!(map.contains(35) && !map.contains(39));
        }
    }
    clones_left.set(usize::MAX);
    drop(map);
    assert_eq!(alive.get(), 0);
}

/// Says how often it was dropped, and panics then if it is told to.
struct Fragile<'a>(&'a Cell<u32>, bool);

impl Clone for Fragile<'_> {
    /// A clone is no more than what it was.
    fn clone(&self) -> Self {
        Fragile(self.0, false)
    }
}

impl PartialEq for Fragile<'_> {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Drop for Fragile<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.set(self.0.get() + 1);
            panic!("on purpose");
        }
    }
}

/// Where values cannot be dropped the map goes on, and nothing is dropped twice. In a process of its own, where a sanitizer does not look for
/// leaks: what was to be freed besides is one.
#[test]
#[cfg_attr(miri, ignore = "what is not freed is a leak")]
fn a_drop_that_panics_leaves_the_change() {
    const ALONE: &str = "RANGE_LOCK_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let this = std::env::current_exe().expect("it runs");
        let alone = std::process::Command::new(this)
            .args([
                "--exact",
                "map::tests::a_drop_that_panics_leaves_the_change",
            ])
            .envs([(ALONE, "1"), ("ASAN_OPTIONS", "detect_leaks=0")])
            .output()
            .expect("it runs again");
        let said = String::from_utf8_lossy(&alone.stdout);
        assert!(
            alone.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    let drops = Cell::new(0);
    let map = SeqRangeMap::new();
    let mut panics = 0;
    for at in 0..2000 {
        let range = at % 50 * 10..at % 50 * 10 + 9;
        // Replaced at once: so it is what is dropped, not a clone.
        for is_fragile in [at % 100 == 0, false] {
            let value = Fragile(&drops, is_fragile);
            let changed = catch_unwind(AssertUnwindSafe(|| map.insert(range.clone(), value)));
            panics += u32::from(changed.is_err());
            assert!(map.get(range.start).is_some_and(|value| !value.1));
        }
    }
    assert_eq!(map.len(), 50);
    assert!(panics > 0 && panics <= drops.get() && drops.get() <= 20);
    let ranges = map.reader().snapshot().iter().count();
    assert_eq!(ranges, 50);
}

/// A value that counts how many of it there are: those in versions that are not freed yet are among them.
#[derive(Clone)]
struct Alive(Arc<()>);

/// None is equal to another, so that neighbours stay two ranges: all share one count.
impl PartialEq for Alive {
    fn eq(&self, other: &Self) -> bool {
        !Arc::ptr_eq(&self.0, &other.0)
    }
}

/// As many changes as make many times `ALIVE_MOST` values.
fn change_often(map: &SeqRangeMap<Alive>, all: &Arc<()>, mut after_each: impl FnMut(u64)) {
    for change in 0..if cfg!(miri) { 400 } else { 4000 } {
        let at = change * 7 % 100;
        map.insert(at * 10..at * 10 + 9, Alive(Arc::clone(all)));
        after_each(change);
    }
}

const RANGES_ALIVE: usize = 100;
/// What is in use, and garbage that waits to become a batch.
const ALIVE_MOST: usize = if cfg!(miri) { 2500 } else { 5000 };

fn alive() -> (SeqRangeMap<Alive>, Arc<()>) {
    let all = Arc::new(());
    let new = |at| (at * 10..at * 10 + 9, Alive(Arc::clone(&all)));
    let map: SeqRangeMap<Alive> = (0..RANGES_ALIVE as u64).map(new).collect();
    (map, all)
}

#[test]
fn what_is_replaced_is_freed_while_the_map_lives() {
    let (map, all) = alive();
    let mut reader = map.reader();
    let mut most = 0;
    change_often(&map, &all, |change| {
        assert!(reader.get(change * 7 % 100 * 10).is_some());
        reader.refresh();
        most = most.max(Arc::strong_count(&all));
    });
    assert!(most < ALIVE_MOST, "{most} values at once");
    drop(reader);
    drop(map);
    assert_eq!(Arc::strong_count(&all), 1, "all values are dropped");
}

/// A reader that stays keeps its version, and all that came after; once it goes, what it kept is freed with the garbage of the next
/// changes.
#[test]
fn what_a_reader_kept_is_freed_after_it() {
    let (map, all) = alive();
    let reader = map.reader();
    let snapshot = reader.snapshot();
    let first: Vec<*const Alive> = snapshot
        .iter()
        .map(|(_, value)| &raw const *value)
        .collect();
    change_often(&map, &all, |_| ());
    assert!(
        Arc::strong_count(&all) > ALIVE_MOST,
        "all versions since are there"
    );
    let still: Vec<*const Alive> = snapshot
        .iter()
        .map(|(_, value)| &raw const *value)
        .collect();
    assert_eq!((first.len(), first), (RANGES_ALIVE, still));
    drop(reader);
    change_often(&map, &all, |_| ());
    let left = Arc::strong_count(&all);
    assert!(left < ALIVE_MOST, "{left} values are left");
}

/// Each writer changes a thousand addresses of its own, so often at least; readers look at all of them, so often at least.
fn work_together(readers: u64, writers: u64, versions: u64, enough: usize) {
    let map = SeqRangeMap::new();
    let shared = Arc::new(());
    let value = |version: u64| (version, Arc::clone(&shared));
    let part = |writer: u64| writer * 1000..(writer + 1) * 1000;
    for writer in 0..writers {
        map.insert(part(writer), value(0));
    }
    let (over, looks) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = || over.load(Ordering::Relaxed) == writers as usize;
    thread::scope(|scope| {
        for first in 0..readers {
            let (map, looks) = (&map, &looks);
            scope.spawn(move || {
                let mut latest = vec![0; writers as usize];
                for look in first.. {
                    let latest = &mut latest[(look % writers) as usize];
                    let part = part(look % writers);
                    let reader = map.reader();
                    let snapshot = reader.snapshot();
                    let (one, other) = (snapshot.get(part.start), snapshot.get(part.end - 1));
                    let version = one.map(|value| value.0);
                    assert_eq!(version, other.map(|value| value.0), "half a change");
                    assert!(version >= Some(*latest), "back in time");
                    *latest = version.unwrap_or(*latest);
                    assert!(snapshot.gaps(0..writers * 1000).eq([]));
                    let ends = snapshot.iter().map(|(range, _)| *range.end());
                    assert!(ends.is_sorted());
                    looks.fetch_add(1, Ordering::Relaxed);
                    if is_over() {
                        return;
                    }
                }
            });
        }
        for writer in 0..writers {
            let (map, value, over, looks) = (&map, &value, &over, &looks);
            scope.spawn(move || {
                let mut version = 1;
                while version < versions || looks.load(Ordering::Relaxed) < enough {
                    map.insert(part(writer), value(version));
                    for at in 1..20 {
                        let from = part(writer).start + at * 40;
                        map.insert(from..from + 20, value(u64::MAX - at));
                    }
                    version += 1;
                }
                over.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    drop(map);
    assert_eq!(Arc::strong_count(&shared), 1, "all values are dropped");
}

#[test]
fn readers_see_whole_changes_while_a_writer_works() {
    let (versions, enough) = if cfg!(miri) { (10, 3) } else { (2000, 300) };
    work_together(3, 1, versions, enough);
}

#[test]
fn readers_see_whole_changes_while_several_writers_work() {
    let (versions, enough) = if cfg!(miri) { (5, 3) } else { (300, 300) };
    work_together(3, 3, versions, enough);
}

/// The long tier.
#[test]
#[ignore = "takes two minutes"]
fn sixty_four_threads_read_and_write_for_minutes() {
    let seconds = std::env::var("AMDAHL_STRESS_S").map_or(120, |text| text.parse().unwrap());
    let begun = std::time::Instant::now();
    while begun.elapsed().as_secs() < seconds {
        work_together(56, 8, 300, 10_000);
        work_together(63, 1, 2000, 10_000);
    }
}

/// Its end is foreign code, which may want to change the map. That locked itself out.
struct Nosy;

static NOSY: LazyLock<SeqRangeMap<Arc<Nosy>>> = LazyLock::new(SeqRangeMap::new);

impl PartialEq for Nosy {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        NOSY.remove(u64::MAX..);
    }
}

#[test]
fn values_may_change_the_map_when_they_are_dropped() {
    let count = if cfg!(miri) { 100 } else { 10_000 };
    for at in 0..count {
        NOSY.insert(at % 64..at % 64 + 1, Arc::new(Nosy));
    }
    NOSY.flush();
    assert_eq!(NOSY.len(), 64);
    NOSY.clear();
}
