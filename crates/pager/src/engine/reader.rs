//! The thread that reads the messages of one descriptor.
//!
//! It serves most faults itself, since to wake another thread costs as much as a fault. While it does, nobody reads: so the time since
//! when it has been serving stands in the shard's `serving_ns`. When that is too long ago, a stand-in replaces it by a zero and is the
//! reader from then on; who finds on its return that its time is gone is the reader no longer. Two never read at once.

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::crew::Crew;
use super::near::Follower;
use super::queue::Fault;
use super::{Outcome, serve, worker};
use crate::event::{Event, Loss};
use crate::inner::{Inner, Shard};
use crate::plan::share::to_others;
use crate::sys::clock::now_ns;
use crate::sys::uffd::{Message, Messages, Uffd};
use crate::{BLOCK, Mapping, PAGE};

/// How a reader learns that it should end.
pub(crate) enum Doorbell {
    /// The descriptor blocks; a page of ours is touched.
    Page,
    /// The descriptor does not block; an eventfd beside it is written to.
    Event(std::os::fd::OwnedFd),
}

impl Doorbell {
    /// Has the reader of the shard, which does not serve, look at the flag `stop`.
    pub fn ring(&self, shard: &Shard) {
        match self {
            Doorbell::Page => {
                if let Some(control) = &shard.control {
                    // Returns when the reader has served it, or has ended. Volatile: nobody wants the byte, but the fault.
                    // SAFETY: a page of ours, mapped as long as `control` lives.
                    unsafe { control.as_ptr().read_volatile() };
                }
            }
            Doorbell::Event(fd) => {
                let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
        }
    }
}

/// While the memory is about to change, how long until faults are tried again without a message: the change ends when the thread
/// that makes it runs, which tells nobody.
const AGAIN: Duration = Duration::from_millis(1);

/// Why somebody is the reader no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The pager ends, or the descriptor cannot be read: there is no reader any more.
    Closed,
    /// A stand-in is the reader.
    Replaced,
}

/// A time at which serving begins, not 0.
fn since(now_ns: u64) -> u64 {
    now_ns.max(1)
}

/// Takes over from a reader that has been serving since then; false if it has come back.
pub(crate) fn replace(shard: &Shard, since_ns: u64) -> bool {
    let serving = &shard.serving_ns.0;
    serving
        .compare_exchange(since_ns, 0, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}

/// Reads and serves until `stop` is set and the bell is rung.
pub(crate) fn run(crew: &Crew, number: usize) -> End {
    let inner = &*crew.inner;
    let (shard, bell) = (&inner.shards[number], &crew.bells[number]);
    let mut messages: Messages = Messages::new();
    let mut faults: Vec<Fault> = Vec::new();
    let mut is_again = false;
    let mut follower = Follower::new(crew);
    loop {
        // After serving, as before: who ends the pager does not ring for who serves.
        if inner.stop.load(Ordering::SeqCst) {
            return End::Closed;
        }
        if let Doorbell::Event(fd) = bell {
            let dooms = &shard.dooms;
            let dooms = dooms.lock().unwrap_or_else(PoisonError::into_inner);
            let is_pending = dooms.iter().any(|doom| !doom.is_kept);
            drop(dooms);
            let soon = is_again || is_pending;
            wait(&shard.uffd, fd.as_fd(), soon.then_some(AGAIN));
            if inner.stop.load(Ordering::SeqCst) {
                return End::Closed;
            }
        }
        if is_again && matches!(bell, Doorbell::Page) {
            // Too much at once. Reading would block.
            thread::sleep(AGAIN);
        } else {
            let is_read = read(inner, shard, &mut messages, &mut faults);
            doom(inner, shard);
            match is_read {
                Ok(is_rung) if is_rung && inner.stop.load(Ordering::SeqCst) => return End::Closed,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => {
                    close(inner, shard, errno);
                    return End::Closed;
                }
            }
        }
        // The first stays with us.
        let (told, first) = (faults.len(), faults.first().map(|fault| fault.thread));
        let handed = to_others(faults.len(), crew.handed.idle());
        if handed > 0 {
            inner.tally.handed_over.add(handed as i64);
            crew.handed.push(faults.drain(faults.len() - handed..));
            inner.leash.stir();
        }
        match serve_told(crew, shard, &mut faults) {
            Ok(again) => is_again = again,
            Err(end) => return end,
        }
        // Not before: who waits for a page is not to wait for that.
        if !is_again && shard.told.is_empty() {
            follower.served(told, first.and_then(thread_of));
        }
    }
}

/// Serves what was read; whether some of it must be served again.
fn serve_told(crew: &Crew, shard: &Shard, faults: &mut Vec<Fault>) -> Result<bool, End> {
    let inner = &*crew.inner;
    let mut rest = faults.drain(..);
    // With nobody left who could stand in, only read on: who is stuck goes on with them if it comes back, else they are given up.
    let mut next = match crew.can_stand_in() {
        // Or one of those that were to be served again.
        true => rest.next().or_else(|| shard.told.pop()),
        false => None,
    };
    if rest.len() > 0 {
        shard.told.push(rest);
        inner.leash.stir();
    }
    let mut later = Vec::new();
    let mut now = next.map_or(0, |fault| since(fault.since_ns));
    while let Some(fault) = next {
        // SeqCst: who ends the pager sees that we serve, or we see that it ends.
        shard.serving_ns.0.store(now, Ordering::SeqCst);
        if inner.stop.load(Ordering::SeqCst) {
            replace(shard, now);
            return Err(End::Closed);
        }
        if serve(inner, fault) == Outcome::Later {
            later.push(fault);
        }
        let is_reader = replace(shard, now);
        if !is_reader {
            shard.told.push(later);
            // Whoever reads now may have nobody behind it.
            worker::drain(inner, &shard.told);
            return Err(End::Replaced);
        }
        next = match crew.can_stand_in() {
            true => shard.told.pop(),
            false => None,
        };
        // Another time than before, so that who stands in knows one from the other.
        if next.is_some() {
            now = since(now_ns()).max(now + 1);
        }
    }
    let is_again = !later.is_empty();
    if is_again {
        shard.told.push(later);
    }
    Ok(is_again)
}

/// Reads messages: faults to `faults`, changes at once. Whether the bell was rung.
fn read(
    inner: &Inner,
    shard: &Shard,
    messages: &mut Messages,
    faults: &mut Vec<Fault>,
) -> rustix::io::Result<bool> {
    let mut is_rung = false;
    {
        let _closed = shard
            .gate
            .as_ref()
            .map(|gate| gate.write().unwrap_or_else(PoisonError::into_inner));
        // Under the gate: who ends our reading closes it once after saying so, and from then on no message is ours.
        if inner.is_left.load(Ordering::SeqCst) {
            return Err(Errno::AGAIN);
        }
        let mut each = |message| match message {
            Message::Fault { address, thread } => match inner.space.page(address) {
                Some(page) => faults.push(Fault {
                    page,
                    thread: stream_of(thread, page),
                    since_ns: 0,
                }),
                None => is_rung |= answer(inner, shard, address),
            },
            other => change(inner, shard, other),
        };
        match &inner.ledger {
            Some(ledger) => ledger.read(&shard.uffd, each)?,
            None => shard.uffd.read(messages)?.for_each(&mut each),
        }
    }
    let since_ns = now_ns();
    for fault in faults {
        fault.since_ns = since_ns;
    }
    Ok(is_rung)
}

/// Reads what is left, of a descriptor that does not block: nobody serves any more, but who changes memory waits until it is known.
pub(crate) fn read_out(inner: &Inner, shard: &Shard) {
    let mut messages: Messages = Messages::new();
    while read(inner, shard, &mut messages, &mut Vec::new()).is_ok() {}
    doom(inner, shard);
}

/// Threads are told apart where the kernel names them, else places are.
fn stream_of(thread: u32, page: usize) -> u64 {
    match thread {
        0 => 1 + (page >> 18) as u64,
        _ => 1 << 32 | u64::from(thread),
    }
}

/// The thread that a stream is of, where the kernel named it.
fn thread_of(stream: u64) -> Option<u32> {
    (stream >> 32 == 1).then_some(stream as u32)
}

fn wait(uffd: &Uffd, bell: std::os::fd::BorrowedFd<'_>, at_most: Option<Duration>) {
    let mut fds = [
        PollFd::new(uffd, PollFlags::IN),
        PollFd::from_borrowed_fd(bell, PollFlags::IN),
    ];
    let at_most = at_most.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    });
    let _ = poll(&mut fds, at_most.as_ref());
    if fds[0].revents().contains(PollFlags::ERR)
        && let Ok(flags) = fcntl_getfl(uffd)
    {
        // The owner, who has the same open file, has made it block, and is not to stop us under the closed gate.
        let _ = fcntl_setfl(uffd, flags | OFlags::NONBLOCK);
    }
}

/// A fault outside of all regions: on our own page, which is how the bell rings, or on memory that nobody has told us of.
fn answer(inner: &Inner, shard: &Shard, address: usize) -> bool {
    let own = shard.control.as_ref().map(Mapping::as_ptr);
    let is_rung = own.is_some_and(|own| own.addr() == address);
    if is_rung {
        let _ = shard.uffd.zero(address..address + PAGE);
    } else {
        inner.events.tell(Event::Outside { address });
        shard.add_dooms([Doom::here(address..address + PAGE, 1)]);
    }
    is_rung
}

/// The memory's owner has changed it. Called under the closed gate: nothing is put into place meanwhile.
pub(crate) fn change(inner: &Inner, shard: &Shard, message: Message) {
    match message {
        Message::Remove(addresses) => {
            for pages in inner.space.covered(addresses) {
                inner.remove(shard, pages.clone());
                inner.events.tell(Event::Removed {
                    page: pages.start,
                    pages: pages.len(),
                });
            }
        }
        Message::Unmap(addresses) => {
            for pages in inner.space.covered(addresses) {
                inner.forget(pages.clone());
                inner.events.tell(Event::Unmapped {
                    page: pages.start,
                    pages: pages.len(),
                });
            }
        }
        Message::Remap { from, to, len } => {
            for pages in inner.space.covered(from..from.saturating_add(len)) {
                // The registration has moved along: what is missing must not be read as something else there.
                let into = inner.space.addresses(&pages).start.saturating_sub(from);
                let moved = into.saturating_add(to);
                let granule = inner.space.region(pages.start).1.granule;
                let end = moved.saturating_add(pages.len() * PAGE);
                shard.add_dooms([Doom {
                    is_moved: true,
                    ..Doom::here(moved..end, granule)
                }]);
                let missing = inner.pages.missing(&pages);
                inner.forget(pages.clone());
                inner.tally.lost_pages.add(missing as i64);
                inner.events.tell(Event::Moved {
                    page: pages.start,
                    pages: pages.len(),
                });
            }
        }
        Message::Fork(fd) => {
            let child = std::sync::Arc::new(Uffd::handed_over(fd));
            if let Ok(flags) = fcntl_getfl(&*child) {
                let _ = fcntl_setfl(&*child, flags | OFlags::NONBLOCK);
            }
            shard.add_dooms(inner.space.regions().iter().map(|(_, region)| Doom {
                child: Some(std::sync::Arc::clone(&child)),
                ..Doom::here(
                    region.start..region.start + region.pages * PAGE,
                    region.granule,
                )
            }));
            inner.events.tell(Event::Forked);
        }
        Message::Fault { .. } => {}
    }
}

/// Addresses where all that is missing is to be made deadly to touch. While the memory is about to change the kernel refuses, and the
/// message that it waits for may be ours to read: so it is tried again and again, between messages.
pub(crate) struct Doom {
    addresses: std::ops::Range<usize>,
    /// Whose memory it is, if not that of the shard's owner.
    child: Option<std::sync::Arc<Uffd>>,
    /// What of it is dealt with is unregistered: nobody serves it, and who unmaps it when nobody reads any more would wait for ever.
    is_moved: bool,
    /// Bytes that come and go together.
    step: usize,
    /// Bytes that are tried at once.
    part: usize,
    /// The kernel cannot: the descriptor is kept, so that who touches them waits rather than reads zeros.
    is_kept: bool,
}

impl Doom {
    fn here(addresses: std::ops::Range<usize>, granule: usize) -> Doom {
        Doom {
            addresses,
            child: None,
            is_moved: false,
            step: granule * PAGE,
            part: usize::MAX,
            is_kept: false,
        }
    }

    /// As far as it goes; whether there is something left.
    fn go_on(&mut self, shard: &Shard) -> bool {
        let uffd = self.child.as_deref().unwrap_or(&shard.uffd);
        if self.child.is_some() {
            // Changes in the child: it waits until somebody has read of them.
            let mut messages: Messages = Messages::new();
            while uffd.read(&mut messages).is_ok_and(|read| read.count() > 0) {}
        }
        while !self.is_kept && self.addresses.start < self.addresses.end {
            let marked = uffd.poison_part(self.addresses.clone(), self.step, &mut self.part);
            let dealt_with = match marked.error {
                Some(Errno::EXIST) if marked.bytes == 0 => self.step,
                _ => marked.bytes,
            };
            let begin = self.addresses.start;
            self.addresses.start += dealt_with;
            if self.is_moved && dealt_with > 0 {
                // Nothing else is unregistered: where nothing is mapped now, the next moment other memory that is missing may lie,
                // which would read as zeros then.
                let _ = uffd.unregister(begin..self.addresses.start);
            }
            match marked.error {
                None => {}
                Some(_) if dealt_with > 0 => {}
                // Unmapped, or another mapping begins.
                Some(Errno::NOENT) => self.addresses.start += self.step,
                Some(Errno::AGAIN) => return true,
                Some(Errno::SRCH) => break,
                Some(Errno::INVAL) if self.addresses.len() == PAGE => {
                    // A page of which nobody has told how large it is.
                    let block = self.addresses.start / BLOCK * BLOCK;
                    (self.addresses, self.step) = (block..block.saturating_add(BLOCK), BLOCK);
                }
                // Who touches them waits: the registration stays.
                Some(_) if self.child.is_none() => return false,
                Some(_) => self.is_kept = true,
            }
        }
        self.is_kept
    }
}

/// The last chance for memory of children: nobody has its descriptors but us. What is left of our owner's faults where nobody has told of memory.
pub(crate) fn last_dooms(shard: &Shard, until_ns: u64) {
    let mut dooms = shard.dooms.lock().unwrap_or_else(PoisonError::into_inner);
    while dooms.iter().any(|doom| !doom.is_kept) && now_ns() < until_ns {
        dooms.retain_mut(|doom| doom.go_on(shard));
        thread::yield_now();
    }
}

impl Shard {
    /// Whether somebody else's memory, moved to these addresses of a region, is to be made deadly to touch and is not yet.
    pub(crate) fn is_doomed(&self, addresses: &std::ops::Range<usize>) -> bool {
        let dooms = self.dooms.lock().unwrap_or_else(PoisonError::into_inner);
        let meets = |doom: &Doom| {
            doom.addresses.start < addresses.end && addresses.start < doom.addresses.end
        };
        dooms.iter().any(|doom| doom.child.is_none() && meets(doom))
    }

    fn add_dooms(&self, dooms: impl IntoIterator<Item = Doom>) {
        let mut all = self.dooms.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(dooms);
    }
}

/// Goes on with all dooms.
fn doom(inner: &Inner, shard: &Shard) {
    if shard.gate.is_some() {
        let mut dooms = shard.dooms.lock().unwrap_or_else(PoisonError::into_inner);
        // Another has the memory now, or will.
        if inner.is_left.load(Ordering::SeqCst) {
            return;
        }
        dooms.retain_mut(|doom| doom.go_on(shard));
    }
}

/// Messages cannot be read: all that is missing is lost, so that nobody waits for what is never told.
fn close(inner: &Inner, shard: &Shard, errno: Errno) {
    inner.events.tell(Event::Unreadable { errno });
    let until_ns = inner.end_of_patience_ns();
    while inner.lose_missing(shard, Some(Loss::Unreadable(errno))) && now_ns() < until_ns {
        thread::sleep(AGAIN);
    }
    inner.release(shard);
}
