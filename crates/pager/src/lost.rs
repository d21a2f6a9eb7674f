//! Pages that will never be there: who touches them is stopped by a signal, because zeros would be wrong.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::PAGE;
use crate::event::{Event, Loss};
use crate::inner::{Inner, Shard};
use crate::plan::pages::{Claim, State};
use crate::sys::mapping::forbid;

/// What came of making pages deadly to touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barred {
    All,
    /// From this page on not now: the memory is about to change.
    Changing(usize),
    /// From this page on the kernel cannot, and it is not our memory.
    Refused(usize),
}

impl Inner {
    /// Claimed pages will never be there: who touches them is stopped by a signal. Those whose content was given up are zero. `why`
    /// is told; without a reason nothing is.
    pub fn lose(&self, shard: &Shard, pages: Range<usize>, why: Option<Loss>) {
        let _open = shard.open();
        // Who leaves closes the gate after saying so: from then on the memory is another's, who finds out by itself what is lost.
        if self.is_left.load(Ordering::SeqCst) {
            self.by_struck(&pages, |run| self.pages.release(run, State::Missing));
            self.waits.wake(pages);
            return;
        }
        let is_struck = self.first_changed(pages.clone()).is_some();
        self.by_struck(&pages, |run| {
            if run.is_empty() {
                return;
            }
            for page in run.clone() {
                self.lost.note(page);
            }
            if let Some(ledger) = &self.ledger {
                ledger.lost(run.clone());
            }
            if let Some(why) = why {
                self.tally.lost_pages.add(run.len() as i64);
                self.events.tell(Event::Lost {
                    page: run.start,
                    pages: run.len(),
                    why,
                });
            }
            match self.bar(shard, run.clone()) {
                Barred::All => {}
                Barred::Changing(from) => self.note(&self.unmarked, from..run.end),
                Barred::Refused(from) => self.refused(from..run.end),
            }
            self.settle(shard, run);
        });
        if is_struck {
            self.waits.wake(pages.clone());
            let _ = shard.uffd.wake(self.space.addresses(&pages));
        }
    }

    /// Makes missing pages deadly to touch, rather than zero; wakes who waits for them. With the gate open.
    pub(crate) fn bar(&self, shard: &Shard, pages: Range<usize>) -> Barred {
        let (mut at, mut part) = (pages.start, usize::MAX);
        while at < pages.end {
            let granule = self.space.region(at).1.granule;
            let addresses = self.space.addresses(&(at..pages.end));
            let barred = shard.uffd.poison_part(addresses, granule * PAGE, &mut part);
            let done = barred.bytes / PAGE;
            at += done;
            match barred.error {
                Some(Errno::EXIST) if done == 0 => at += granule,
                Some(Errno::AGAIN) if done == 0 => return Barred::Changing(at),
                // The process is gone.
                Some(Errno::SRCH) if done == 0 => return Barred::All,
                // Unmapped: there is nothing to touch. Who waited finds that out.
                Some(Errno::NOENT) if done == 0 => {
                    let _ = shard.uffd.wake(self.space.addresses(&(at..at + granule)));
                    at += granule;
                }
                Some(_) if done == 0 => {
                    let addresses = self.space.addresses(&(at..pages.end));
                    if !self.space.region(at).1.own {
                        return Barred::Refused(at);
                    }
                    // SAFETY: it is memory of this pager, which must not be read any more.
                    unsafe { forbid(addresses.start, addresses.len()) };
                    let _ = shard.uffd.wake(addresses);
                    return Barred::All;
                }
                _ => {}
            }
        }
        Barred::All
    }

    /// The same for those of some pages that are lost, and not given up since.
    pub fn bar_lost(&self, shard: &Shard, pages: Range<usize>) -> Barred {
        let _open = shard.open();
        // As in `lose`.
        if self.is_left.load(Ordering::SeqCst) {
            return Barred::All;
        }
        let mut at = pages.start;
        while let Some(start) = (at..pages.end).find(|page| self.lost.has(*page)) {
            let end = (start..pages.end).find(|page| !self.lost.has(*page));
            at = end.unwrap_or(pages.end);
            match self.bar(shard, start..at) {
                Barred::All => {}
                not_all => return not_all,
            }
        }
        Barred::All
    }

    /// Makes what is missing of a shard deadly to touch; whether something was, or is on its way: then once more is needed.
    pub fn lose_missing(&self, shard: &Shard, why: Option<Loss>) -> bool {
        let mut is_left = false;
        for part in self.space.parts(&shard.pages) {
            let mut at = part.start;
            while let Some(page) = self.pages.next_unsettled(at, part.end) {
                is_left = true;
                at = page + 1;
                if let Claim::Taken { pages, was } = self.pages.claim(page, page..part.end) {
                    at = pages.end;
                    match was {
                        State::Missing if self.is_whole(&pages) => self.lose(shard, pages, why),
                        _ => self.give_back(shard, pages, was),
                    }
                }
            }
        }
        is_left
    }

    /// Tries once more to mark lost pages that the kernel would not mark. They stay noted meanwhile: at the end another thread asks for what is not marked.
    pub fn mark_again(&self) {
        let unmarked = || self.unmarked.lock().unwrap_or_else(PoisonError::into_inner);
        let all = unmarked().clone();
        for pages in all {
            let shard = self.shard(pages.start);
            let barred = self.bar_lost(shard, pages.clone());
            if matches!(barred, Barred::Changing(_)) {
                continue;
            }
            let mut noted = unmarked();
            // Another has dealt with them where they are not noted any more.
            let Some(at) = noted.iter().position(|other| *other == pages) else {
                continue;
            };
            noted.swap_remove(at);
            drop(noted);
            if matches!(barred, Barred::Refused(_)) {
                self.refused(pages);
            }
        }
    }

    /// Lost pages that the kernel has not marked until the end stay registered, or they would be zero: it is told as if it could not.
    pub fn keep_unmarked(&self) {
        let left =
            std::mem::take(&mut *self.unmarked.lock().unwrap_or_else(PoisonError::into_inner));
        for pages in left {
            if pages.clone().any(|page| self.lost.has(page)) {
                self.refused(pages);
            }
        }
    }

    /// Whether there are lost pages that are not deadly.
    pub fn has_unstopped(&self) -> bool {
        let unmarkable = self
            .unmarkable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unmarkable
            .iter()
            .flat_map(Range::clone)
            .any(|page| self.lost.has(page))
    }

    fn note(&self, list: &Mutex<Vec<Range<usize>>>, pages: Range<usize>) {
        let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(pages);
    }

    fn refused(&self, pages: Range<usize>) {
        self.events.tell(Event::Unstopped {
            page: pages.start,
            pages: pages.len(),
        });
        self.note(&self.unmarkable, pages);
    }

    /// Faults of a shard are the kernel's again; who waits is woken. But not where lost pages could not be marked: they would be zero,
    /// so who touches them waits on, for which the descriptor is never closed.
    pub fn release(&self, shard: &Shard) {
        let unmarkable = self
            .unmarkable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_kept = |pages: &Range<usize>| {
            let overlap = |kept: &Range<usize>| {
                let (low, high) = (kept.start.max(pages.start), kept.end.min(pages.end));
                (low..high).any(|page| self.lost.has(page))
            };
            unmarkable.iter().any(overlap)
        };
        let mut is_leaked = false;
        for part in self.space.parts(&shard.pages) {
            if !is_kept(&part) && shard.uffd.unregister(self.space.addresses(&part)).is_ok() {
                continue;
            }
            // Piece by piece: some of it may be unmapped, or must stay.
            let mut at = part.start;
            while at < part.end {
                let block = self.space.block(self.space.block_of(at));
                let piece = at..block.end.min(part.end);
                at = piece.end;
                match is_kept(&piece) {
                    true => is_leaked = true,
                    false => {
                        let _ = shard.uffd.unregister(self.space.addresses(&piece));
                    }
                }
            }
        }
        if is_leaked {
            shard.uffd.keep_open();
        }
    }
}
