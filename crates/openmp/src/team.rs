//! Teams: a region begins, its threads meet at barriers, it ends. The protocol is in DESIGN.md.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use crate::contention::{Contention, Own};
use crate::count::Arrivals;
use crate::gate::{Gate, Manner};
use crate::icv::{self, Icv, ProcBind};
use crate::lateness::Awaited;
use crate::meeting::{Few, Full, Meeting};
use crate::places::Placement;
use crate::share::Shares;
use crate::spinners::{Place, Spinners};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Line, Ordering};
use crate::task::{self, Board, Queue, Task};
use crate::thread::{Position, Thread};
use crate::tree::{FAN_IN, Spot, Tree};
use crate::worker::{self, Taker, Worker};
use crate::{binding, capacity, display, fork, rseq, stats};

mod letting_go;
mod near;
mod start;

pub(crate) use letting_go::Group;
use near::Progress;
use start::Start;

/// The code of a region, as the compiler outlines it. It may be left by an exception of another language only as far
/// as that ends the process.
pub type Body = unsafe extern "C-unwind" fn(*mut c_void);

/// What a team has of each of its threads. Never freed: others may look at it late.
pub struct Member {
    /// Tasks it has made ready.
    pub queue: Queue,
    /// Its implicit task; the member's thread alone replaces it, where a region begins.
    implicit: UnsafeCell<Option<Task>>,
    pub(crate) team: *mut Team,
    pub(crate) id: u32,
    pub(crate) group: *const Group,
    /// From this generation of the group's dock on its worker takes part.
    pub(crate) join_at: AtomicU32,
    /// How far it has come, for those who wait for it.
    progress: Line<Progress>,
    /// Null for the master, and where nobody is assigned.
    worker: *mut Worker,
    /// Where it is to run in this region: places, and its own plus 1.
    pub(crate) places: (u32, u32),
    pub(crate) place: u32,
}

/// A team of threads. Kept from region to region; never freed.
///
/// The plain fields are written by the master while all others wait at the dock, and read by all during the region.
pub struct Team {
    /// Threads, the master among them.
    pub nthreads: u32,
    common: Line<Common>,
    /// Regions of the program can be cancelled.
    pub(crate) may_be_cancelled: bool,
    /// Where the master was before.
    pub outer: Line<Position>,
    /// Threads that were taken from what the contention group has left.
    reserved: u32,
    /// The region's `proc_bind` clause; `False` if there is none.
    clause: ProcBind,
    /// Changes before the first worker can begin a region.
    region: Line<AtomicU64>,
    /// Meetings of all regions before.
    meetings_before: u64,
    /// One for each thread; more than `nthreads` after a larger region.
    pub members: Vec<Box<Member>>,
    #[expect(clippy::vec_box, reason = "members and their threads point to them")]
    groups: Vec<Box<Group>>,
    /// Its threads that spin, at the dock too.
    spinners: Spinners,
    /// Work shares of the region.
    pub shares: Shares,
    /// Tasks of the region.
    pub board: Board,
    /// `single` constructs that somebody has taken.
    pub singles: Line<AtomicU64>,
    /// `cancel parallel` was met.
    pub is_cancelled: AtomicBool,
    /// `cancel for` or `cancel sections` was met in the current work share.
    pub is_share_cancelled: AtomicBool,
    /// Any pointer of the region's reductions over tasks (`GOMP_parallel_reductions`).
    pub reductions: std::sync::atomic::AtomicPtr<usize>,
    /// Who meets whom at barriers and at the end.
    tree: Tree,
    /// Who lets whom begin.
    dock_tree: Tree,
    /// Of which threads the tree was made, where the machine has more than one cache.
    spots: Vec<Spot>,
    /// The region before which it is looked where the threads run.
    next_look: u64,
    barrier_arrivals: Arrivals,
    end_arrivals: Arrivals,
    /// Of teams of one leaf.
    few: Few,
    /// The region before the first one that is counted there.
    few_since: u64,
    /// The master waits here for the end.
    master_gate: Gate,
    /// All threads have arrived and tasks are left.
    full: Full,
}

/// What all threads of a region begin with and what is mostly the same from one region to the next: written only where it is not, so that the others have the
/// line already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Common {
    /// What the master executed before.
    parent: *mut Task,
    /// Variables of the implicit tasks.
    icv: Icv,
    level: u32,
    active_level: u32,
    league: (u32, u32),
    group: *const AtomicU32,
    allocator: usize,
    /// Each thread says where it is when the region begins.
    is_shown: bool,
}

impl Common {
    /// Of a team before its first region.
    fn new() -> Common {
        Common {
            parent: ptr::null_mut(),
            icv: icv::globals().initial,
            level: 0,
            active_level: 0,
            league: (0, 0),
            group: ptr::null(),
            allocator: 0,
            is_shown: false,
        }
    }
}

/// Losses of CPU time that threads of this process noticed.
pub static CONTENTION: Contention = Contention::new();

/// To be called before the first region; later calls do nothing.
pub fn init() {
    static ONCE: OnceLock<()> = OnceLock::new();
    fork::init();
    fork::filled(&ONCE, || {
        rseq::init();
        capacity::init();
        worker::init();
        stats::init();
    });
}

impl Team {
    pub(crate) fn new() -> *mut Team {
        let team = Box::into_raw(Box::new(Team {
            nthreads: 1,
            common: Line(Common::new()),
            may_be_cancelled: icv::globals().cancellation,
            outer: Line(Position::OUTSIDE),
            reserved: 0,
            clause: ProcBind::False,
            region: Line(AtomicU64::new(0)),
            meetings_before: 0,
            members: Vec::new(),
            groups: Vec::new(),
            spinners: Spinners::default(),
            shares: Shares::default(),
            board: Board::default(),
            singles: Line(AtomicU64::new(0)),
            is_cancelled: AtomicBool::new(false),
            is_share_cancelled: AtomicBool::new(false),
            reductions: std::sync::atomic::AtomicPtr::new(ptr::null_mut()),
            tree: Tree::by_number(1),
            dock_tree: Tree::of_leaves(1),
            spots: Vec::new(),
            next_look: 0,
            barrier_arrivals: Arrivals::default(),
            end_arrivals: Arrivals::default(),
            few: Few::default(),
            few_since: 0,
            master_gate: Gate::new(),
            full: Full::default(),
        }));
        // SAFETY: just made.
        unsafe {
            (*team).add_members(1);
            (*team).set_tree(Tree::by_number(1));
        }
        team
    }

    fn add_members(&mut self, threads: usize) {
        let team: *mut Team = self;
        while self.groups.len() * FAN_IN < threads {
            self.groups.push(Box::default());
        }
        for id in self.members.len()..threads {
            self.members.push(Box::new(Member {
                queue: Queue::default(),
                implicit: UnsafeCell::new(None),
                team,
                id: id as u32,
                group: &raw const *self.groups[id / FAN_IN],
                join_at: AtomicU32::new(0),
                progress: Line::default(),
                worker: ptr::null_mut(),
                places: (0, 0),
                place: 0,
            }));
            self.board.enlist(id, &self.members[id].queue);
        }
    }

    /// Between regions: from now on there are workers for `threads`. `root` is that of the calling thread.
    pub(crate) fn resize(&mut self, threads: u32, root: u64) {
        let had = self.nthreads as usize;
        let threads = threads as usize;
        let mut taker = Taker::new(root);
        for id in had..threads {
            if id >= self.members.len() {
                // Little by little: nobody has that many threads who asks for a billion.
                self.add_members(threads.min(2 * id.max(FAN_IN)));
            }
            let member: *mut Member = &mut *self.members[id];
            // SAFETY: the member is this team's and has no worker.
            unsafe {
                let dock = &(*(*member).group).dock;
                let next = dock.generation().wrapping_add(1);
                (*member).join_at.store(next, Ordering::Relaxed);
                (*member).worker = worker::assign(member, &mut taker);
            }
        }
        if threads < had {
            let mut workers = Vec::with_capacity(had - threads);
            for member in &mut self.members[threads..had] {
                workers.push(std::mem::replace(&mut member.worker, ptr::null_mut()));
            }
            worker::release(&workers);
            // They see at the dock that they are not assigned any more. Where others of the group go on, it is
            // opened when their region begins, and no sooner.
            let rest = if threads == 1 {
                0
            } else {
                threads.div_ceil(FAN_IN)
            };
            for group in &self.groups[rest..had.div_ceil(FAN_IN)] {
                group.dock.open();
            }
        }
        self.nthreads = threads as u32;
        self.spinners.set_threads(self.nthreads);
    }

    /// The `proc_bind` clause of a region, as the compiler passes it: the lowest three bits. For `prepare` of [`begin`].
    pub fn set_proc_bind(&mut self, flags: u32) {
        self.clause = ProcBind::from_raw(flags & 7).unwrap_or(ProcBind::False);
    }

    /// Gives each thread its place, and decides whether they say where they are: when the team is another one than
    /// before, or somebody moves. One thread alone says it in its first region, as in GCC's runtime. Returns whether somebody moves.
    #[cold]
    unsafe fn place_members(
        &mut self,
        thread: *mut Thread,
        is_first: bool,
        is_resized: bool,
    ) -> bool {
        let threads = self.nthreads;
        let mut has_moved = false;
        let policy = binding::policy(self.common.0.icv.bind, self.clause);
        self.common.0.icv.bind = icv::globals().bind_at(self.common.level).unwrap_or(policy);
        let assignment = if threads > 1 {
            // SAFETY: the caller's own.
            unsafe { binding::of_team(thread, policy, threads) }
        } else {
            None
        };
        if let Some(assignment) = assignment {
            for (id, member) in self.members[..threads as usize].iter_mut().enumerate() {
                let Placement { place, partition } = assignment.of(id as u32);
                has_moved |= member.place != place + 1;
                member.place = place + 1;
                member.places = (partition.off, partition.len);
            }
            // SAFETY: as above.
            unsafe { (*thread).at.places = self.members[0].places };
        }
        let is_another = match threads {
            1 => is_first,
            _ => is_resized || has_moved || self.common.level > 1,
        };
        self.common.0.is_shown = is_another && icv::globals().display_affinity;
        if self.common.is_shown {
            // SAFETY: as above; the thread is in the team already.
            unsafe { display::show(thread) };
        }
        has_moved
    }

    pub(crate) fn manner<'a>(
        &'a self,
        own: &'a mut Own,
        awaited: Awaited,
        is_awaited_here: &'a dyn Fn() -> bool,
    ) -> Manner<'a> {
        Manner {
            awaited,
            is_awaited_here,
            place: Place::among(&self.spinners),
            ..Manner::outside(own)
        }
    }

    /// In a team of one leaf: the number that is reached when all have come to the end of that region of several threads.
    #[inline]
    fn few_at_end(&self, region: u64) -> Option<u32> {
        (self.nthreads > 1 && self.tree.leaves() == 1)
            .then(|| (region.wrapping_sub(self.few_since) as u32).wrapping_mul(self.nthreads))
    }

    /// All threads have arrived, the last one in this leaf: goes on, or leaves that to who ends the last task.
    fn all_arrived(&self, meeting: Meeting, leaf: u32) {
        if self.full.all_arrived(meeting, || self.board.unfinished()) {
            self.go_on(meeting, leaf);
        }
    }

    /// To be called by whoever took the number of unfinished tasks to 0 (with SeqCst), also by threads of no team.
    pub fn tasks_ended(&self) {
        // It looks itself whether the region is over, if it is awake.
        self.master_gate.ring(1);
        if let Some(meeting) = self.full.tasks_ended(|| self.board.unfinished()) {
            self.go_on(meeting, 0);
        }
    }

    /// All have arrived at the end of a work share, and nobody has gone on: the next one is not cancelled.
    #[inline]
    fn share_is_over(&self) {
        if self.is_share_cancelled.load(Ordering::Relaxed) {
            self.is_share_cancelled.store(false, Ordering::Relaxed);
        }
    }
}

impl<'a> Manner<'a> {
    /// As the environment says, for who waits in no region.
    fn outside(own: &'a mut Own) -> Manner<'a> {
        Manner {
            patience: icv::globals().patience,
            is_crowded: worker::are_crowded(),
            are_crowded: worker::are_crowded,
            own,
            contention: &CONTENTION,
            is_awaited_here: &|| false,
            place: Place::default(),
            awaited: Awaited::Other,
        }
    }
}

/// How the calling thread waits for others.
///
/// # Safety
/// `thread` is the calling thread's, and nobody else uses what it remembers of waits meanwhile.
pub(crate) unsafe fn manner<'a>(thread: *mut Thread) -> Manner<'a> {
    // SAFETY: the caller's promise; the team is the thread's.
    unsafe {
        let own = &mut (*thread).own;
        match (*thread).at.team.as_ref() {
            Some(team) => team.manner(own, Awaited::Other, &|| false),
            None => Manner::outside(own),
        }
    }
}

/// Begins a region of `nthreads` threads: the others run `body(data)` from now on, and the caller is to do so, then
/// to call [`end`]. `prepare` is called before anybody else is in the team.
///
/// # Safety
/// `thread` is the calling thread's; `body` may be called with `data` by all of them at once.
#[inline]
pub unsafe fn begin(
    thread: *mut Thread,
    body: Body,
    data: *mut c_void,
    nthreads: u32,
    prepare: impl FnOnce(&mut Team),
) {
    // SAFETY: the team is nobody else's until the dock is opened.
    unsafe {
        stats::region(nthreads);
        let is_outermost = (*thread).at.team.is_null();
        let is_first = is_outermost && !std::mem::replace(&mut (*thread).has_begun, true);
        // A region of one thread leaves the workers of the others alone: they keep their numbers, and what is threadprivate.
        let team = take_team(thread, is_outermost && nthreads > 1);
        let team = &mut *team;
        let is_resized = team.nthreads != nthreads;
        if is_resized {
            team.resize(nthreads, (*thread).root);
        }
        // Before the position is kept: it may give the thread its first place.
        binding::enter(thread);
        let outer = (*thread).at;
        team.outer.0 = outer;
        let mut common = Common {
            parent: (*thread).task,
            icv: (*(*thread).task).icv,
            level: outer.level + 1,
            active_level: outer.active_level + u32::from(nthreads > 1),
            league: outer.league,
            group: outer.group,
            allocator: outer.allocator,
            is_shown: team.common.is_shown,
        };
        if let Some(next) = icv::globals().nthreads_at(common.level) {
            common.icv.nthreads = next;
        }
        if *team.common != common {
            team.common.0 = common;
        }
        team.reserved = std::mem::take(&mut (*thread).reserved);
        team.clause = ProcBind::False;
        if team.singles.load(Ordering::Relaxed) != 0 {
            team.singles.store(0, Ordering::Relaxed);
        }
        let share = team.shares.begin(nthreads);
        (*thread).at = Position {
            team,
            id: 0,
            queue: &raw const team.members[0].queue,
            level: common.level,
            active_level: common.active_level,
            share,
            singles: 0,
            trip: 0,
            chunk: None,
            meetings: team.meetings_before,
            ..outer
        };
        prepare(team);
        let globals = icv::globals();
        let may_move = globals.places.is_some() || globals.display_affinity;
        let has_moved = may_move && team.place_members(thread, is_first, is_resized);
        team.arrange(has_moved);
        let member: *mut Member = &mut *team.members[0];
        (*member).begin_implicit(thread, team);
        (*member).works();
        if nthreads > 1 {
            let region = team.region.load(Ordering::Relaxed) + 1;
            // Release: who sees a task of this region sees that it has begun, though its own dock may not be open yet.
            team.region.store(region, Ordering::Release);
            team.open_docks(Start {
                body,
                data,
                region,
                meetings_before: team.meetings_before,
                share,
            });
        }
    }
}

/// Ends the region that the calling thread has begun: all have arrived, all tasks have ended.
///
/// # Safety
/// `thread` is the calling thread's, the master of its team.
#[inline]
pub unsafe fn end(thread: *mut Thread) {
    // SAFETY: the team is this thread's; after the last arrival nobody else uses its plain fields.
    unsafe {
        task::end_implicit(thread);
        let team = (*thread).at.team;
        wait_for_end(thread, team);
        let team = &mut *team;
        if team.is_cancelled.load(Ordering::Relaxed) {
            team.is_cancelled.store(false, Ordering::Relaxed);
            team.full.reset();
            team.barrier_arrivals.reset();
            // Who left it open has gone to the end.
            for group in team.barriers() {
                group.barrier_rest.reset();
            }
        }
        team.share_is_over();
        team.shares.end();
        team.meetings_before = (*thread).at.meetings;
        (*thread).at = *team.outer;
        (*thread).task = team.common.parent;
        if team.reserved > 0
            && let Some(busy) = team.outer.group.as_ref()
        {
            busy.fetch_sub(team.reserved, Ordering::Relaxed);
        }
        if !ptr::eq((*thread).hot, team) {
            team.resize(1, (*thread).root);
            (*thread).spares.push(team);
        }
    }
}

unsafe fn take_team(thread: *mut Thread, is_hot: bool) -> *mut Team {
    // SAFETY: the thread's own.
    unsafe {
        if is_hot {
            if (*thread).hot.is_null() {
                (*thread).hot = worker::kept_team();
                worker::master_came();
            }
            (*thread).hot
        } else {
            (*thread).spares.pop().unwrap_or_else(worker::kept_team)
        }
    }
}

impl Member {
    unsafe fn begin_implicit(&self, thread: *mut Thread, team: &Team) {
        // SAFETY: the member's thread replaces its own implicit task, whose children have all ended.
        unsafe {
            let implicit = self.implicit.get();
            *implicit = Some(Task::implicit(team.common.parent, team.common.icv));
            (*thread).task = (*implicit)
                .as_mut()
                .map_or(ptr::null_mut(), |t| &raw mut *t);
        }
    }
}

/// The part of a region that is a worker's. Returns when it has arrived at the end, without waiting for others.
///
/// # Safety
/// `thread` is the calling thread's, `member` is its own, and the dock was opened for it.
pub(crate) unsafe fn work(thread: *mut Thread, member: *const Member) {
    // SAFETY: the team's plain fields do not change before this has arrived at the end.
    unsafe {
        let team = (*member).team;
        {
            let team = &*team;
            let start = (*(*member).group).dock.word.start();
            team.pass_dock((*member).id as usize, &start);
            let common = &team.common;
            (*thread).at = Position {
                team: (*member).team,
                id: (*member).id,
                queue: &raw const (*member).queue,
                level: common.level,
                active_level: common.active_level,
                places: (*member).places,
                league: common.league,
                group: common.group,
                allocator: common.allocator,
                share: start.share,
                singles: 0,
                trip: 0,
                chunk: None,
                meetings: start.meetings_before,
                region: start.region,
            };
            (*member).begin_implicit(thread, team);
            if let Some(place) = (*member).place.checked_sub(1) {
                binding::move_to(thread, place);
            }
            if common.is_shown {
                display::show(thread);
            }
            (*member).works();
            (start.body)(start.data);
        }
        task::end_implicit(thread);
        let team = &*(*thread).at.team;
        (*member).comes_to((*thread).next_meeting());
        (*thread).own.look(&CONTENTION);
        // As soon as all have come the tree may be changed.
        if let Some(all) = team.few_at_end((*thread).at.region) {
            if team.few.come(all) {
                team.master_gate.ring(1);
            }
        } else if team.end_arrivals.arrive((*member).id as usize, &team.tree) {
            team.all_arrived(Meeting::End, 0);
        }
    }
}

/// A worker waits behind the end of a region for the next one, and runs tasks that are left meanwhile.
///
/// # Safety
/// `thread` is the calling thread's, `member` is or was its own.
pub(crate) unsafe fn wait_at_dock(thread: *mut Thread, member: *const Member, seen: u32) {
    // SAFETY: teams, members and groups are never freed; only what is atomic is looked at.
    unsafe {
        let (team, dock) = (&*(*member).team, &(*(*member).group).dock);
        // Before its first region it has nothing to do with the tasks of the team.
        let at = &(*thread).at;
        let mine = (ptr::eq(at.team, team)).then_some(at.region);
        let is_open = || dock.generation() != seen;
        // Acquire: pairs with the Release in `begin`.
        let is_over = || is_open() || Some(team.region.load(Ordering::Acquire)) != mine;
        let mut manner = Manner {
            place: Place::among(&team.spinners),
            awaited: Awaited::Master,
            ..Manner::outside(&mut (*thread).own)
        };
        dock.wait(&mut manner, is_open, |place| {
            run_ready(team, thread, place, &mut { is_over })
        });
    }
}

/// For who waits: runs a task of the team, if one is ready and the wait is not over.
///
/// # Safety
/// `thread` is the calling thread's, of `team`.
unsafe fn run_ready(
    team: &Team,
    thread: *mut Thread,
    place: &Place<'_>,
    is_over: &mut dyn FnMut() -> bool,
) -> bool {
    team.board.has_ready() && !is_over() && {
        place.leave();
        // SAFETY: the caller's promise.
        unsafe { task::run_one(thread, is_over) }
    }
}

/// The master arrives at the end, and waits until all have and no task is left.
unsafe fn wait_for_end(thread: *mut Thread, team: *const Team) {
    /// The master's number.
    const ID: usize = 0;
    // SAFETY: the team is the thread's.
    unsafe {
        let team = &*team;
        let seen = team.master_gate.generation();
        team.members[ID].comes_to((*thread).next_meeting());
        (*thread).own.look(&CONTENTION);
        let few = team.few_at_end(team.region.load(Ordering::Relaxed));
        let is_last = match few {
            Some(all) => team.few.come(all),
            None => team.end_arrivals.arrive(ID, &team.tree),
        };
        if is_last {
            if team.board.unfinished() == 0 {
                return;
            }
            if few.is_none() {
                team.all_arrived(Meeting::End, 0);
            }
        }
        let is_awaited_here = || team.is_awaited_here(ID);
        let mut manner = team.manner(&mut (*thread).own, Awaited::Team, &is_awaited_here);
        let other = |place: &Place<'_>| run_ready(team, thread, place, &mut || false);
        match few {
            // Once all are there nobody makes a task but tasks: there are none left for good.
            Some(all) => {
                let is_over = || team.few.are_there(all) && team.board.unfinished() == 0;
                team.master_gate.wait(&mut manner, is_over, other);
            }
            None => {
                let is_over = || team.master_gate.generation() != seen;
                team.master_gate.wait(&mut manner, is_over, other);
            }
        }
    }
}

/// All threads of the team meet; all its tasks have ended when they go on.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn barrier(thread: *mut Thread) {
    // SAFETY: the caller's promise.
    unsafe { meet(thread, false) };
}

/// The same, if nobody cancels the region. True: it was cancelled, and the caller is to go to its end.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn barrier_cancellable(thread: *mut Thread) -> bool {
    // SAFETY: the caller's promise.
    unsafe { meet(thread, true) }
}

#[inline]
unsafe fn meet(thread: *mut Thread, is_cancellable: bool) -> bool {
    // SAFETY: the team is the thread's.
    unsafe {
        if (*thread).at.team.is_null() {
            return false;
        }
        let team = &*(*thread).at.team;
        let id = (*thread).at.id;
        let is_cancelled = || is_cancellable && team.is_cancelled.load(Ordering::SeqCst);
        if is_cancelled() {
            return true;
        }
        task::settle(thread);
        let leaf = team.tree.leaf(id as usize);
        let gate = &team.groups[leaf as usize].barrier;
        let member = &team.members[id as usize];
        member.comes_to((*thread).next_meeting());
        let seen = gate.generation();
        (*thread).own.look(&CONTENTION);
        if team.barrier_arrivals.arrive(id as usize, &team.tree) {
            if team.nthreads == 1 && team.board.unfinished() == 0 {
                team.share_is_over();
                return false;
            }
            team.all_arrived(Meeting::Barrier, leaf);
        }
        let is_awaited_here = || team.is_awaited_here(id as usize);
        let mut manner = team.manner(&mut (*thread).own, Awaited::Team, &is_awaited_here);
        gate.wait(
            &mut manner,
            || gate.generation() != seen || is_cancelled(),
            |place| run_ready(team, thread, place, &mut || false),
        );
        if gate.generation() != seen {
            team.pass_barrier(leaf);
        }
        member.works();
        is_cancelled()
    }
}

#[cfg(test)]
mod tests;
