//! The table: one row per site, thread, process, lock or stack.

use std::cmp::Ordering;
use std::sync::Arc;

use amdahl_speedup::event::{CallStack, Ns, Tid};
use amdahl_speedup::primitive::Class;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::chains::LinkId;
use crate::event::{Kind, LockId, Place, Wait};
use crate::histogram::Total;
use crate::named::{Distinct, Id, Named};
use crate::site::{Names, Site, What};
use crate::tally::{Cell, CellKey, Folded, Owner, Share, Shares, Tally};
use crate::tracker::Tracker;

/// What makes a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// The line of code that waits.
    #[default]
    Site,
    /// The waiting thread.
    Thread,
    /// The waiting process.
    Process,
    /// The lock, by its address.
    Lock,
    /// The whole call stack, by the names of its functions, and the line that waits.
    Stack,
}

/// By which figure rows are sorted, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Waiting time of all together.
    #[default]
    Total,
    /// Calls that waited.
    Times,
    /// The longest wait.
    Max,
    /// The mean wait.
    Mean,
    /// The 99th percentile; rows without one are the last.
    P99,
}

impl SortBy {
    fn falling(self, a: &Row, b: &Row) -> Ordering {
        // Of two means rounded to nanoseconds nobody knows which is larger.
        let across =
            |of: &Row, other: &Row| u128::from(of.total_ns) * u128::from(other.times.max(1));
        match self {
            SortBy::Total => b.total_ns.cmp(&a.total_ns),
            SortBy::Times => b.times.cmp(&a.times),
            SortBy::Max => b.max_ns.cmp(&a.max_ns),
            SortBy::Mean => across(b, a).cmp(&across(a, b)),
            SortBy::P99 => b.p99_ns.cmp(&a.p99_ns),
        }
    }
}

/// Who a thread is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadName {
    /// Name of its process.
    pub process: String,
    /// Its own name.
    pub thread: String,
}

/// Who released, or held, the lock of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerRow {
    /// Name of the thread.
    pub who: ThreadName,
    /// Different threads of this name, at least.
    pub threads: u64,
    /// Where it was when it released the lock; for holds, where it acquired it.
    pub site: Site,
    /// Sleeps that it ended, or holds.
    pub share: Share,
}

/// What the holders of a row's lock waited for themselves, while others waited for them.
#[derive(Clone, Debug, PartialEq)]
pub struct NestedRow {
    /// From the first holder on: what it waited for and where.
    pub chain: Vec<(What, Site)>,
    /// Waits that lasted longer because of it, and by how much.
    pub share: Share,
}

/// Whose waits a row adds up, if not of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Of {
    /// The thread, or 0.
    pub tid: Tid,
    /// The process, or 0.
    pub pid: Tid,
    /// The lock; address 0 if several.
    pub lock: LockId,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was waited for.
    pub what: What,
    /// Where: of several sites the one with the longest waits.
    pub site: Site,
    /// The program's own line, where the site is the kernel's.
    pub from: Site,
    /// Whose.
    pub of: Of,
    /// Names of `of`.
    pub who: ThreadName,
    /// Calls that waited.
    pub times: u64,
    /// Sleeps in them.
    pub sleeps: u64,
    /// Waits that had not ended.
    pub open: u64,
    /// Waits that had begun before the recording did: times are lower bounds.
    pub before: u64,
    /// Waits that were only polled: `times` is a lower bound.
    pub polled: u64,
    /// Waiting time of all together.
    pub total_ns: Ns,
    /// The longest wait.
    pub max_ns: Ns,
    /// The wait that 99 of 100 do not exceed ([`crate::histogram::QUANTILE_ERROR`]).
    pub p99_ns: Option<Ns>,
    /// Different locks, at least.
    pub locks: u64,
    /// Different threads, at least.
    pub threads: u64,
    /// Sites, if several.
    pub sites: u64,
    /// The stack with the longest waits.
    pub stack: Option<Arc<CallStack>>,
    /// Who released, in falling order of the time that their sleepers had waited.
    pub owners: Vec<OwnerRow>,
    /// Sleeps whose end nobody was seen to cause, or whose causer had no room in `owners`.
    pub unowned: u64,
    /// What holders waited for, in falling order.
    pub nested: Vec<NestedRow>,
}

impl Row {
    /// Mean length of a wait.
    pub fn mean_ns(&self) -> Ns {
        self.total_ns.checked_div(self.times).unwrap_or(0)
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Waits, in the order of `sort`; equals in the order of their source lines.
    pub rows: Vec<Row>,
    /// Holds by the site that acquired, where they were recorded; in the same order.
    pub holds: Vec<Row>,
    /// By what they are sorted.
    pub sort: SortBy,
    /// Events that were lost: figures are too small by what they would have told.
    pub lost: u64,
    /// What had to be folded; rows of unknown place or thread have it.
    pub folded: Folded,
}

#[derive(PartialEq, Eq, Hash)]
struct RowKey {
    what: Id,
    site: Option<Id>,
    stack: Place,
    of: Of,
}

/// A row in the making: of a table that can have as many as there are cells there is one at a time.
#[derive(Default)]
struct Sum {
    cell: Cell,
    lengths: Total,
    locks: FxHashSet<LockId>,
    threads: FxHashSet<Tid>,
    sites: FxHashMap<(Kind, Place), Ns>,
    owners: FxHashMap<Owner, Share>,
    nested: FxHashMap<LinkId, Share>,
}

impl Sum {
    fn add(&mut self, key: CellKey, cell: &Cell) {
        // Their small tables would forget what these do not.
        gather(&mut self.owners, &cell.owners);
        gather(&mut self.nested, &cell.nested);
        self.cell.add_waits(cell);
        self.lengths.add(&cell.lengths);
        if key.lock.address != 0 {
            self.locks.insert(key.lock);
        }
        if key.tid != 0 {
            self.threads.insert(key.tid);
        }
        let ns = self.sites.entry((key.kind, key.place)).or_default();
        *ns = ns.saturating_add(cell.total_ns);
    }

    fn clear(&mut self) {
        self.cell = Cell::default();
        self.lengths.clear();
        self.locks.clear();
        self.threads.clear();
        self.sites.clear();
        self.owners.clear();
        self.nested.clear();
    }
}

fn gather<K: Copy + Eq + std::hash::Hash>(into: &mut FxHashMap<K, Share>, from: &Shares<K>) {
    for (key, share) in &from.of {
        into.entry(*key).or_default().add(*share);
    }
}

/// Stacks that look alike, from several processes or from addresses that differ in nothing that has
/// a name, are one.
#[derive(Default)]
struct Stacks {
    places: FxHashMap<(Kind, Place), Place>,
    first: FxHashMap<(Id, Vec<String>), Place>,
}

impl Stacks {
    /// The place that stands for all whose stacks look like that of `place`.
    fn one_for_all(&mut self, named: &mut Named<'_>, kind: Kind, place: Place) -> Place {
        let first = &mut self.first;
        *self.places.entry((kind, place)).or_insert_with(|| {
            let stack = named.naming.stack(place);
            let frames = stack.iter().flat_map(|of| of.kernel.iter().chain(&of.user));
            let names = frames.map(|frame| frame.symbol.clone()).collect();
            *first
                .entry((named.site(kind, place), names))
                .or_insert(place)
        })
    }
}

/// Owners and chains of a row at most.
const PARTS: usize = 16;

impl Table {
    /// The table of `tally`, which `tracker` added up, by total time. `names` tells who a thread is.
    /// Cost: linear in the cells.
    pub fn new(
        tracker: &Tracker,
        tally: &Tally,
        by: GroupBy,
        names: &dyn Fn(Tid) -> ThreadName,
    ) -> Table {
        Table::with_open(tracker, tally, &[], by, names)
    }

    /// The same with waits that have not ended yet, of which `tally` does not know.
    pub fn with_open(
        tracker: &Tracker,
        tally: &Tally,
        open: &[Wait],
        by: GroupBy,
        names: &dyn Fn(Tid) -> ThreadName,
    ) -> Table {
        let mut named = Named::new(Names { tracker, tally }, names);
        let open = tracker.cells_of(open);
        let mut stacks = Stacks::default();
        let mut waits: FxHashMap<RowKey, Cells<'_>> = FxHashMap::default();
        for (key, cell) in tally.cells.iter().chain(&open) {
            let row = RowKey {
                what: named.what(key.kind, key.place, key.lock),
                site: (by == GroupBy::Site).then(|| named.site(key.kind, key.place)),
                stack: if by == GroupBy::Stack {
                    stacks.one_for_all(&mut named, key.kind, key.place)
                } else {
                    Place::default()
                },
                of: of(key, by),
            };
            waits.entry(row).or_default().push((*key, cell));
        }
        let mut holds: FxHashMap<RowKey, Cells<'_>> = FxHashMap::default();
        for (&(kind, place, lock), cell) in &tally.holds {
            let row = RowKey {
                what: named.what(kind, place, lock),
                site: Some(named.site(kind, place)),
                stack: Place(0),
                of: Of::default(),
            };
            let key = CellKey {
                kind,
                place,
                lock,
                pid: 0,
                tid: 0,
            };
            holds.entry(row).or_default().push((key, cell));
        }
        Table {
            rows: rows(waits, &mut named),
            holds: rows(holds, &mut named),
            sort: SortBy::default(),
            lost: tally.lost,
            folded: tally.folded,
        }
    }

    /// The same by another figure.
    pub fn sorted_by(mut self, sort: SortBy) -> Table {
        order(&mut self.rows, sort);
        order(&mut self.holds, sort);
        self.sort = sort;
        self
    }

    /// Rows of one class.
    pub fn of_class(&self, class: Class) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.what.class == class)
    }
}

fn of(key: &CellKey, by: GroupBy) -> Of {
    let all = Of::default();
    match by {
        GroupBy::Site | GroupBy::Stack => all,
        GroupBy::Thread => Of {
            tid: key.tid,
            pid: key.pid,
            ..all
        },
        GroupBy::Process => Of {
            pid: key.pid,
            ..all
        },
        GroupBy::Lock => Of {
            lock: key.lock,
            ..all
        },
    }
}

/// What a row is made of.
type Cells<'a> = Vec<(CellKey, &'a Cell)>;

fn rows(cells: FxHashMap<RowKey, Cells<'_>>, named: &mut Named<'_>) -> Vec<Row> {
    let mut sum = Sum::default();
    let of = |(key, cells): (RowKey, Cells<'_>)| {
        sum.clear();
        cells.into_iter().for_each(|(key, cell)| sum.add(key, cell));
        row(key, &sum, named)
    };
    let mut rows: Vec<Row> = cells.into_iter().map(of).collect();
    order(&mut rows, SortBy::default());
    rows
}

fn order(rows: &mut [Row], sort: SortBy) {
    rows.sort_by(|a, b| {
        sort.falling(a, b)
            .then_with(|| a.site.cmp(&b.site))
            .then_with(|| (&a.what, &a.of).cmp(&(&b.what, &b.of)))
            .then_with(|| b.times.cmp(&a.times))
    });
}

fn row(key: RowKey, sum: &Sum, named: &mut Named<'_>) -> Row {
    let costliest = sum
        .sites
        .iter()
        .max_by_key(|&(at, ns)| (ns, std::cmp::Reverse(at)))
        .map(|(&at, _)| at);
    let (kind, place) = costliest.unwrap_or((Kind::Futex, Place(0)));
    let id = if key.of.tid != 0 {
        key.of.tid
    } else {
        key.of.pid.max(key.of.lock.pid)
    };
    let who = if id != 0 {
        (named.names)(id)
    } else {
        ThreadName::default()
    };
    let mut different: FxHashSet<Id> = FxHashSet::default();
    if key.site.is_none() {
        let sites = sum.sites.keys().take(4096);
        different.extend(sites.map(|&(kind, place)| named.site(kind, place)));
    }
    let owners = owners(&sum.owners, named);
    let owned: u64 = owners.iter().map(|owner| owner.share.count).sum();
    let what = named.whats.name(key.what).clone();
    let site = key.site.unwrap_or_else(|| named.site(kind, place));
    let from = what.is_kernel.then(|| named.own_site(place));
    Row {
        site: named.sites.name(site).clone(),
        from: from.map_or(Site::default(), |id| named.sites.name(id).clone()),
        what,
        of: key.of,
        who,
        times: sum.cell.times,
        sleeps: sum.cell.sleeps,
        open: sum.cell.open,
        before: sum.cell.before,
        polled: sum.cell.polled,
        total_ns: sum.cell.total_ns,
        max_ns: sum.cell.max_ns,
        p99_ns: sum.lengths.quantile(0.99).map(|ns| ns.min(sum.cell.max_ns)),
        locks: sum.locks.len() as u64,
        threads: sum.threads.len() as u64,
        sites: different.len().max(1) as u64,
        stack: named.naming.stack(place),
        unowned: sum.cell.sleeps.saturating_sub(owned),
        owners,
        nested: nested(&sum.nested, sum.cell.total_ns, named),
    }
}

fn owners(of: &FxHashMap<Owner, Share>, named: &mut Named<'_>) -> Vec<OwnerRow> {
    let mut who: Distinct<ThreadName> = Distinct::default();
    let mut ids: FxHashMap<Tid, Id> = FxHashMap::default();
    let mut grouped: FxHashMap<(Id, Id), (Share, FxHashSet<Tid>)> = FxHashMap::default();
    for (&(tid, place), share) in of {
        let id = *ids.entry(tid).or_insert_with(|| who.id((named.names)(tid)));
        let (sum, threads) = grouped.entry((id, named.own_site(place))).or_default();
        sum.add(*share);
        threads.insert(tid);
    }
    let mut rows: Vec<OwnerRow> = grouped
        .into_iter()
        .map(|((id, site), (share, threads))| OwnerRow {
            who: who.name(id).clone(),
            threads: threads.len() as u64,
            site: named.sites.name(site).clone(),
            share,
        })
        .collect();
    rows.sort_by(|a, b| {
        let falling = b.share.ns.cmp(&a.share.ns);
        falling.then_with(|| (&a.who, &a.site).cmp(&(&b.who, &b.site)))
    });
    rows.truncate(PARTS);
    rows
}

/// Below this part of the row's waiting time a chain says nothing: holders always meet a spin lock.
const WORTH_TELLING: u64 = 1000;

fn nested(of: &FxHashMap<LinkId, Share>, total: Ns, named: &mut Named<'_>) -> Vec<NestedRow> {
    let mut grouped: FxHashMap<Vec<(Id, Id)>, Share> = FxHashMap::default();
    for (&id, share) in of {
        let mut chain = Vec::new();
        let mut at = Some(id);
        while let Some(link) = at.and_then(|id| named.naming.tracker.link(id)) {
            chain.push((
                named.what(link.kind, link.place, link.lock),
                named.site(link.kind, link.place),
            ));
            at = link.next;
        }
        grouped.entry(chain).or_default().add(*share);
    }
    let name = |(what, site): (Id, Id)| {
        let (what, site) = (named.whats.name(what), named.sites.name(site));
        (what.clone(), site.clone())
    };
    let mut rows: Vec<NestedRow> = grouped
        .into_iter()
        .filter(|(_, share)| share.ns >= total / WORTH_TELLING)
        .map(|(chain, share)| NestedRow {
            chain: chain.into_iter().map(name).collect(),
            share,
        })
        .collect();
    rows.sort_by(|a, b| {
        let falling = b.share.ns.cmp(&a.share.ns);
        falling.then_with(|| a.chain.cmp(&b.chain))
    });
    rows.truncate(PARTS);
    rows
}

/// Waiting time by what and call stack.
#[derive(Clone, Debug, PartialEq)]
pub struct FoldedStack {
    /// What was waited for.
    pub what: What,
    /// The stack; `None` where none was taken.
    pub stack: Option<Arc<CallStack>>,
    /// Waits.
    pub share: Share,
    /// One of the waiting threads.
    pub tid: Tid,
    /// Its process.
    pub pid: Tid,
}

/// All waits by their stack, those of most time first: for flame graphs of waiting.
pub fn folded_stacks(tracker: &Tracker, tally: &Tally) -> Vec<FoldedStack> {
    let naming = Names { tracker, tally };
    let mut sums: FxHashMap<(What, Place), (Share, (Tid, Tid))> = FxHashMap::default();
    for (key, cell) in &tally.cells {
        let what = naming.what(key.kind, key.place, key.lock);
        let (sum, who) = sums.entry((what, key.place)).or_default();
        sum.add(Share {
            count: cell.times,
            ns: cell.total_ns,
        });
        *who = (*who).max((key.tid, key.pid));
    }
    let mut folded: Vec<_> = sums.into_iter().collect();
    folded.sort_by(|((a_what, a), (a_sum, _)), ((b_what, b), (b_sum, _))| {
        (b_sum.ns, a_what, a).cmp(&(a_sum.ns, b_what, b))
    });
    folded
        .into_iter()
        .map(|((what, place), (share, (tid, pid)))| FoldedStack {
            what,
            stack: naming.stack(place),
            share,
            tid,
            pid,
        })
        .collect()
}
