//! One VM, from its hand-off to its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::handoff::{
    HandedOverMemory, Layout, Malformed, Owner, Peer, Question, ReceiveError, offer, question,
    receive,
};
use amdahl_pager::succession::{Filled, Ledger};
use amdahl_pager::{Background, Features, Pager};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::ahead::{Filling, Ready, fill, replay};
use super::keep::{Keep, Kept, Verdict};
use super::memory::{Clean, Memory};
use super::plan::Plan;
use super::tally::Tally;
use super::tell::{End, Line, Outcome, Teller, Vm, pages};
use super::watch::Watch;
use crate::cli::serve::OnLoss;
use crate::interrupt::Interrupt;

/// What all VMs share.
pub struct Shared {
    /// What they begin with.
    pub memory: Memory,
    /// How they are served.
    pub plan: Plan,
    /// Says what happens.
    pub teller: Teller,
    /// Whether we are to end.
    pub interrupt: Interrupt,
    /// What others need who may serve after us.
    pub keep: Keep,
    /// Connections whose VM is not known yet.
    pub arriving: AtomicU32,
    /// VMs that are served.
    pub serving: AtomicU32,
    /// The other host that has the memory is away, and that was told.
    pub is_away: AtomicBool,
    /// Some VM lost a page because the image is damaged.
    pub is_damaged: AtomicBool,
    /// Some VM could not be served to its end for another reason.
    pub has_failed: AtomicBool,
}

impl Shared {
    /// Nothing is served yet.
    pub fn new(
        memory: Memory,
        plan: Plan,
        teller: Teller,
        interrupt: Interrupt,
        keep: Keep,
    ) -> Shared {
        Shared {
            memory,
            plan,
            teller,
            interrupt,
            keep,
            arriving: AtomicU32::new(0),
            serving: AtomicU32::new(0),
            is_away: AtomicBool::new(false),
            is_damaged: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }
}

/// How often is looked whether something has changed that is not told.
const TICK: Duration = Duration::from_millis(100);
/// How often is looked whether the memory is still there.
const ALIVE: Duration = Duration::from_secs(1);

/// A number that is higher while this lives.
pub struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    /// One more, if there are fewer than `most`.
    pub fn new(count: &'a AtomicU32, most: u32) -> Option<Counted<'a>> {
        let more = |now: u32| (now < most).then(|| now + 1);
        // SeqCst: who counts and then asks whether VMs are taken, and who ends that and then looks at the count, do not miss each other.
        let added = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        added.is_ok().then(|| Counted(count))
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A VM's memory as it was handed over.
struct Taken {
    memory: HandedOverMemory,
    /// Its VMM has asked for the clean pages, and maps their file, which has these.
    maps: Option<Arc<Filled>>,
    /// It wants to know when its working set is there.
    waits_for_set: bool,
}

/// Why nothing was taken, and whether it was a VMM; `None` if somebody only looked whether we are there.
type Refusal = Option<(String, bool)>;

/// Takes the message of a VMM, who may ask for the clean pages before.
fn take(shared: &Shared, stream: &UnixStream) -> Result<Taken, Refusal> {
    let timeout = shared.plan.handoff_timeout;
    let failed = |error: ReceiveError| {
        // Who speaks something else is no VMM, and not killed for it.
        let is_vmm = !matches!(
            error,
            ReceiveError::Malformed(Malformed::Foreign(_) | Malformed::Json(_))
                | ReceiveError::Silent { .. }
                | ReceiveError::Closed { .. }
        );
        match error {
            ReceiveError::Closed { bytes: 0 } => None,
            error => Some((error.to_string(), is_vmm)),
        }
    };
    let refused = |why: &str| {
        Some((
            format!("it asks for the one copy of all pages, {why}"),
            false,
        ))
    };
    let (mut maps, mut waits_for_set) = (None, false);
    // Each once: who asks without an end would keep a place of those that arrive.
    loop {
        match question(stream, timeout).map_err(failed)? {
            Some(Question::WorkingSet) if !waits_for_set => waits_for_set = true,
            Some(Question::CleanPages) if maps.is_none() => {
                let Some(Clean { pages, filled }) = &shared.memory.clean else {
                    return Err(refused("and there is none without --share"));
                };
                offer(stream, pages)
                    .map_err(|error| refused(&format!("which cannot be offered: {error}")))?;
                maps = Some(Arc::clone(filled));
            }
            Some(_) => return Err(Some(("it asks for the same twice".to_owned(), false))),
            None => break,
        }
    }
    let memory = receive(stream, shared.memory.bytes, timeout).map_err(failed)?;
    Ok(Taken {
        memory,
        maps,
        waits_for_set,
    })
}

/// Takes over what a VMM hands over; who hands over nothing that can be served is refused.
fn receive_vm(
    shared: &Shared,
    number: u64,
    stream: &UnixStream,
) -> Option<(Vm, Peer, Taken, Owner)> {
    let peer = match Peer::of(stream) {
        Ok(peer) => peer,
        Err(error) => {
            let vm = Vm { number, pid: None };
            let why = format!("who connected is not known: {error}");
            refused(shared, vm, &why, None);
            return None;
        }
    };
    let vm = Vm {
        number,
        pid: peer.pid,
    };
    let taken = match take(shared, stream) {
        Ok(taken) => taken,
        Err(None) => return None,
        Err(Some((why, is_vmm))) => {
            refused(shared, vm, &why, is_vmm.then_some((&peer, None)));
            return None;
        }
    };
    let memory = &taken.memory;
    match Owner::new(&memory.descriptor, &memory.regions) {
        Ok(owner) => Some((vm, peer, taken, owner)),
        Err(error) => {
            let why = format!("its descriptor cannot be duplicated: {error}");
            refused(shared, vm, &why, Some((&peer, None)));
            None
        }
    }
}

/// Takes a VM over that cannot be served.
pub fn turn_away(shared: &Shared, number: u64, stream: &UnixStream, why: &str) {
    if let Some((vm, peer, _taken, owner)) = receive_vm(shared, number, stream) {
        refused(shared, vm, why, Some((&peer, Some(&owner))));
    }
}

/// Takes a VM over from a connection, and serves it to its end.
pub fn connection(shared: &Shared, number: u64, stream: UnixStream, arriving: Counted<'_>) {
    let Some((vm, peer, taken, owner)) = receive_vm(shared, number, &stream) else {
        return;
    };
    let Some(_place) = Counted::new(&shared.serving, shared.plan.max_vms) else {
        let why = format!("{} VMs are served already (--max-vms)", shared.plan.max_vms);
        return refused(shared, vm, &why, Some((&peer, Some(&owner))));
    };
    let ledger = match shared.keep.is_on() {
        true => Ledger::new(&taken.memory.regions, shared.memory.identity).map(Some),
        false => Ok(None),
    };
    let ledger = match ledger {
        Ok(ledger) => ledger,
        Err(error) => {
            let why = format!("there is no memory for what another would need: {error}");
            return refused(shared, vm, &why, Some((&peer, Some(&owner))));
        }
    };
    let HandedOverMemory {
        descriptor,
        features,
        regions,
    } = taken.memory;
    let kept = Arc::new(Kept {
        vm,
        peer,
        stream,
        descriptor,
        features,
        regions,
        maps: taken.maps,
        waits_for_set: taken.waits_for_set,
        ledger: ledger.map(Arc::new),
    });
    shared.keep.begin(shared, &kept);
    // Kept by those that are refused: there are no more of them at once than may arrive.
    drop(arriving);
    serve(shared, &kept, &owner, true, None);
}

/// Learns whether a VM of before is served.
pub struct Started {
    /// Told once.
    pub to: Sender<Result<(), String>>,
    /// The one before waits, and goes on with all VMs if we cannot serve one: nothing is to be done about such a VM.
    pub is_awaited: bool,
}

/// Goes on with a VM that another process has served.
pub fn inherited(shared: &Shared, kept: Kept, started: Started) {
    let owner = match Owner::new(&kept.descriptor, &kept.regions) {
        Ok(owner) => owner,
        Err(error) => {
            let why = format!("its descriptor cannot be duplicated: {error}");
            if !started.is_awaited {
                refused(shared, kept.vm, &why, Some((&kept.peer, None)));
            }
            let _ = started.to.send(Err(why));
            return;
        }
    };
    // There are no more than the other could serve, which is not more than we can.
    let _place = Counted::new(&shared.serving, u32::MAX);
    let kept = Arc::new(kept);
    shared.keep.begin(shared, &kept);
    serve(shared, &kept, &owner, false, Some(started));
}

/// A VM that another process has served is not served by us.
pub fn unserved(shared: &Shared, kept: &Kept, why: &str) {
    let owner = Owner::new(&kept.descriptor, &kept.regions).ok();
    refused(shared, kept.vm, why, Some((&kept.peer, owner.as_ref())));
}

/// Serves a VM until it ends, or another process serves it.
fn serve(
    shared: &Shared,
    kept: &Arc<Kept>,
    owner: &Owner,
    mut is_new: bool,
    mut started: Option<Started>,
) {
    let vm = kept.vm;
    loop {
        let served = match Served::start(shared, kept, owner, is_new) {
            Ok(served) => served,
            Err(why) => {
                let is_awaited = started.as_ref().is_some_and(|started| started.is_awaited);
                if !is_awaited {
                    refused(shared, vm, &why, Some((&kept.peer, Some(owner))));
                }
                if let Some(started) = started {
                    let _ = started.to.send(Err(why));
                }
                break;
            }
        };
        if let Some(started) = started.take() {
            let _ = started.to.send(Ok(()));
        }
        match served.until_its_end(&kept.stream) {
            false => break,
            true if shared.keep.verdict(vm.number) == Verdict::Given => return,
            true => is_new = false,
        }
    }
    shared.keep.end(shared, vm.number);
}

/// A VM is not served. It does not notice by itself: it must not wait for ever, nor read zeros.
fn refused(shared: &Shared, vm: Vm, why: &str, whom: Option<(&Peer, Option<&Owner>)>) {
    let fate = match whom {
        Some((peer, _)) if shared.plan.on_loss == OnLoss::Kill && peer.kill() => "is killed",
        Some((_, Some(owner))) if owner.poison() => {
            // Nobody will read its messages, and nobody needs to.
            let _ = owner.release();
            "gets SIGBUS where it touches its memory"
        }
        _ => "waits for ever where it touches its memory: end it",
    };
    shared.teller.tell(&Line::trouble(
        "refused",
        format!("{} is refused: {why}; if it is a VM, it {fate}", vm.name()),
        vm.fields(json!({ "why": why, "fate": fate })),
    ));
}

/// A VM that is served.
struct Served<'a> {
    pager: Pager,
    watch: Watch<'a>,
    since: Instant,
    tally: Tally,
    ledger: Option<Arc<Ledger>>,
    is_mapped: bool,
    waits_for_set: bool,
}

impl<'a> Served<'a> {
    fn start(
        shared: &'a Shared,
        kept: &'a Kept,
        owner: &'a Owner,
        is_new: bool,
    ) -> Result<Served<'a>, String> {
        let Kept {
            vm,
            peer,
            features,
            regions,
            ..
        } = kept;
        let (vm, ledger) = (*vm, kept.ledger.clone());
        let plan = &shared.plan;
        let since = Instant::now();
        let descriptor = kept
            .descriptor
            .try_clone()
            .map_err(|error| format!("its descriptor cannot be duplicated: {error}"))?;
        let builder = Pager::builder().handed_over(descriptor, regions);
        let Memory { source, clean, .. } = &shared.memory;
        let builder = match (&kept.maps, clean) {
            (Some(maps), Some(clean)) if Arc::ptr_eq(maps, &clean.filled) => {
                builder.clean(&clean.pages)
            }
            // A file that one before us filled.
            (Some(maps), _) => builder.clean_before(maps, Arc::clone(source)),
            (None, _) => builder.source(Arc::clone(source)),
        };
        let mut builder = builder
            .staging(plan.staging_bytes)
            .workers(plan.workers)
            .background(plan.background)
            .timeout(plan.read_timeout)
            .record(shared.memory.recorder().is_some());
        if let Some(budget) = plan.budget {
            builder = builder.budget(budget);
        }
        if let Some(ledger) = &ledger {
            builder = builder.ledger(Arc::clone(ledger));
        }
        let pager = builder.start().map_err(|error| error.to_string())?;
        if pager.stats().lost_pages > 0 && plan.on_loss == OnLoss::Kill {
            // Who served before may not have come to it.
            peer.kill();
        }
        let tally = match &ledger {
            Some(ledger) => Tally::from(ledger.counters()),
            None => Tally::default(),
        };
        let balloon = features.map(|features| features.contain(Features::EVENT_REMOVE));
        let huge = regions
            .iter()
            .any(|region| region.page_bytes > amdahl_pager::PAGE);
        match is_new {
            true => shared.teller.tell(&Line::new(
                "begin",
                format!(
                    "{} begins: {} in {} regions{}{}",
                    vm.name(),
                    pages(pager.pages()),
                    regions.len(),
                    if huge { ", pages of 2 MiB" } else { "" },
                    match balloon {
                        Some(false) => ", a balloon is not told",
                        _ => "",
                    },
                ),
                vm.fields(json!({
                    "uid": peer.uid,
                    "pages": pager.pages(),
                    "regions": regions.len(),
                    "huge_pages": huge,
                    "balloon_told": balloon,
                })),
            )),
            false => shared.teller.tell(&Line::new(
                "resume",
                format!(
                    "{} goes on: {} of {} missing",
                    vm.name(),
                    pages(pager.missing_pages()),
                    pages(pager.pages())
                ),
                vm.fields(json!({
                    "pages": pager.pages(),
                    "pages_missing": pager.missing_pages(),
                })),
            )),
        }
        let watch = Watch::new(vm, shared, Layout::new(regions), owner, peer);
        Ok(Served {
            is_mapped: kept.maps.is_some(),
            // By the one before, if there was one.
            waits_for_set: kept.waits_for_set && is_new,
            pager,
            watch,
            since,
            tally,
            ledger,
        })
    }

    /// Whether it was left to be served by another, or again.
    fn until_its_end(mut self, stream: &UnixStream) -> bool {
        let (outcome, present) = self.serve(stream);
        let Some(outcome) = outcome else {
            return true;
        };
        let Served {
            mut pager,
            mut watch,
            since,
            tally,
            ledger: _,
            is_mapped: _,
            waits_for_set: _,
        } = self;
        let Watch {
            vm,
            shared,
            peer,
            owner,
            ..
        } = watch;
        let (pages, missing) = (pager.pages(), pager.missing_pages());
        // A page may be lost, and kill its VM, before that is told and counted. What is missing is poisoned by this.
        pager.stop();
        while let Some(event) = pager.next_event(Duration::ZERO) {
            watch.event(event);
        }
        watch.untold(&pager);
        // The line about it may have had no room.
        watch.is_unstopped |= pager.has_unstopped();
        if let Some(recorder) = shared.memory.recorder()
            && let Err(failure) = recorder.write()
        {
            shared.has_failed.store(true, Ordering::Relaxed);
            watch.odd(&failure.message);
        }
        let stats = tally.with(&pager.stats());
        let is_lost = matches!(outcome, Outcome::Incomplete | Outcome::Abandoned);
        if is_lost {
            shared.has_failed.store(true, Ordering::Relaxed);
        }
        let fate = is_lost.then(|| self::fate(shared, peer, owner, watch.is_unstopped));
        let end = End {
            vm,
            outcome,
            served: tally.served(since.elapsed()),
            present: present.map(|present| tally.served(present)),
            pages,
            missing,
            stats: &stats,
            fate,
        };
        shared.teller.tell(&end.line());
        false
    }

    /// Until all is present, the VM is gone, or we are to end; no outcome if it was left.
    fn serve(&mut self, stream: &UnixStream) -> (Option<Outcome>, Option<Duration>) {
        let cancel = AtomicBool::new(false);
        let state = Filling::default();
        // What fetches beside us borrows the pager; events are ours.
        let Served {
            pager,
            watch,
            since,
            tally,
            ledger,
            is_mapped,
            waits_for_set,
        } = self;
        let mut ready = waits_for_set.then(|| Ready(stream));
        let (pager, since, shared, is_mapped) = (&*pager, *since, watch.shared, *is_mapped);
        // What another would begin with.
        let is_replayed = AtomicBool::new(tally.is_replayed());
        let note = || {
            if let Some(ledger) = &*ledger {
                let now = tally.plus(&pager.stats(), since.elapsed());
                let now = now.replayed(is_replayed.load(Ordering::Relaxed));
                ledger.set_counters(&now.counters());
            }
        };
        let layout = watch.layout.clone();
        thread::scope(|scope| {
            if !shared.memory.working_set.is_empty() && !tally.is_replayed() {
                let (cancel, layout, vm) = (&cancel, &layout, watch.vm);
                let (is_replayed, ready) = (&is_replayed, ready.take());
                let begun = thread::Builder::new()
                    .name("working-set".to_owned())
                    .spawn_scoped(scope, move || {
                        let is_there = replay(shared, vm, pager, layout, cancel, ready.is_some());
                        drop(ready);
                        is_replayed.store(is_there, Ordering::Relaxed);
                    });
                if let Err(error) = begun {
                    watch.odd(&format!(
                        "its working set is not fetched ahead: starting a thread: {error}"
                    ));
                }
            }
            // There is nothing to wait for.
            drop(ready);
            // The end of a socket is told without being asked for; that of a process by what can be read.
            let bell = shared.keep.bell();
            let mut ends = vec![(stream.as_fd(), PollFlags::RDHUP)];
            ends.extend(watch.peer.pidfd().map(|pidfd| (pidfd, PollFlags::IN)));
            let (mut looked, mut told) = (since, since);
            let (mut done, mut is_filling, mut has_no_thread) = (u64::MAX, false, false);
            let outcome = loop {
                let ended = wait(&mut ends, bell);
                if shared.keep.is_pausing() {
                    match pager.leave() {
                        Ok(()) => {
                            // The other knows of the pages, and not of what was to be told.
                            while let Some(event) = pager.next_event(Duration::ZERO) {
                                watch.event(event);
                            }
                            watch.untold(pager);
                            note();
                            shared.keep.has_paused(watch.vm.number);
                            break None;
                        }
                        // The memory of a child is being dealt with: tried again, until whoever waits for it has had enough.
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
                note();
                while let Some(event) = pager.next_event(Duration::ZERO) {
                    watch.event(event);
                }
                watch.untold(pager);
                if ended || watch.ask || looked.elapsed() >= ALIVE {
                    watch.ask = false;
                    looked = Instant::now();
                    tell_of_outage(shared);
                    if watch.owner.is_gone() {
                        break Some(Outcome::Gone);
                    }
                }
                let stats = pager.stats();
                let now = stats.pages + stats.zero_pages + stats.lost_pages + stats.removed_pages;
                // Looking costs some microseconds for each GiB. What is mapped is not let go: without us what is given up of it would not be zero.
                if !is_mapped && now != done && stats.lost_pages == 0 && pager.missing_pages() == 0
                {
                    if is_let_go(pager, watch.owner) {
                        break Some(Outcome::Complete);
                    }
                    // Something is on its way: looked at again, whatever is counted.
                } else {
                    done = now;
                }
                if shared.interrupt.insisted() {
                    break Some(Outcome::Abandoned);
                }
                if shared.interrupt.asked() && !is_filling {
                    if let Some(recorder) = shared.memory.recorder() {
                        recorder.end();
                    }
                    let (cancel, state) = (&cancel, &state);
                    let read_timeout = shared.plan.read_timeout;
                    let begun = thread::Builder::new()
                        .name("fill".to_owned())
                        .spawn_scoped(scope, move || fill(pager, cancel, state, read_timeout));
                    is_filling = begun.is_ok();
                    // Tried again at each look: it is the machine's trouble, and may pass. A second signal ends it.
                    if let Err(error) = begun
                        && !std::mem::replace(&mut has_no_thread, true)
                    {
                        watch.odd(&format!(
                            "what is missing is not fetched yet: starting a thread: {error}"
                        ));
                    }
                }
                if state.is_done.load(Ordering::Acquire) {
                    match pager.missing_pages() == 0 && stats.lost_pages == 0 {
                        // All is there but for this moment.
                        // The pager's end lets go of it, after it has put zeros where something was given up.
                        true if is_mapped && pager.is_filled() => break Some(Outcome::Complete),
                        true if is_mapped => {}
                        true if is_let_go(pager, watch.owner) => break Some(Outcome::Complete),
                        true => {}
                        false => break Some(Outcome::Incomplete),
                    }
                }
                let every = shared.plan.progress;
                if !every.is_zero() && told.elapsed() >= every {
                    told = Instant::now();
                    watch.progress(pager, &stats);
                }
            };
            cancel.store(true, Ordering::Relaxed);
            let present = (outcome == Some(Outcome::Complete)).then(|| since.elapsed());
            (outcome, present)
        })
    }
}

/// What becomes of a VM that is served no more, with pages missing.
fn fate(shared: &Shared, peer: &Peer, owner: &Owner, is_unstopped: bool) -> &'static str {
    if shared.plan.on_loss == OnLoss::Kill && peer.kill() {
        return "is killed";
    }
    match shared.plan.can_poison && !is_unstopped {
        true => {
            // Nobody reads its messages from now on, and nobody needs to.
            let _ = owner.release();
            "gets SIGBUS where it touches them"
        }
        false => "waits for ever where it touches them: end it",
    }
}

/// Lets the memory go if all is present now. Never waits: who watches a VM has more to do.
fn is_let_go(pager: &Pager, owner: &Owner) -> bool {
    // Pages that are just being put into place are not missing, nor there.
    pager.is_filled() && pager.stats().lost_pages == 0 && owner.release().is_ok()
}

/// Waits for the end of one of these, which is waited for no more then, or for the next tick.
///
/// The bell ends the wait as well, and is told by nothing but itself.
fn wait(ends: &mut Vec<(BorrowedFd<'_>, PollFlags)>, bell: Option<BorrowedFd<'_>>) -> bool {
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: TICK.subsec_nanos().into(),
    };
    let mut fds: Vec<PollFd<'_>> = ends
        .iter()
        .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
        .collect();
    fds.extend(bell.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)));
    let ready = poll(&mut fds, Some(&tick)).unwrap_or(0);
    let mut has_ended = fds.iter().map(|fd| !fd.revents().is_empty());
    let before = ends.len();
    if ready > 0 {
        ends.retain(|_| !has_ended.next().unwrap_or(false));
    }
    ends.len() < before
}

/// Says once, for all VMs, that the other host is away, and that it is back.
fn tell_of_outage(shared: &Shared) {
    let away = shared.memory.away();
    if shared.is_away.swap(away.is_some(), Ordering::Relaxed) == away.is_some() {
        return;
    }
    shared.teller.tell(&match away {
        Some(left) => Line::trouble(
            "away",
            format!(
                "the host that has the memory is away: who touches what is missing waits, for {} at most",
                super::tell::duration(left)
            ),
            json!({ "waits_s": left.as_secs_f64() }),
        ),
        None => Line::new(
            "back",
            "the host that has the memory is there again, or lost".to_owned(),
            json!({}),
        ),
    });
}

/// How a background is asked for.
pub fn background(fill: Option<crate::cli::serve::Fill>) -> Background {
    use crate::cli::serve::Fill;
    match fill {
        None => Background::Off,
        Some(Fill::Max) => Background::Unlimited,
        Some(Fill::Rate(rate)) => Background::BytesPerSecond(rate),
    }
}
