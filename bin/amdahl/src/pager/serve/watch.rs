//! What is told of a VM while it is served.

use std::sync::atomic::Ordering;

use amdahl_pager::handoff::{Layout, Owner, Peer};
use amdahl_pager::{Event, Loss, Pager, SourceError};
use rustix::io::Errno;
use serde_json::json;

use super::tell::{Line, Vm};
use super::vm::Shared;
use crate::cli::serve::OnLoss;

/// Lines about lost pages of a VM; the rest is in the sum.
const LOSSES_TOLD: u32 = 8;

/// What is done with the events of a pager.
pub struct Watch<'a> {
    pub vm: Vm,
    pub shared: &'a Shared,
    pub layout: Layout,
    pub owner: &'a Owner,
    pub peer: &'a Peer,
    losses: u32,
    told_not_fetched: bool,
    /// Lines of other kinds.
    odd: u32,
    /// Events without a line that were known of.
    untold: u64,
    pub is_unstopped: bool,
    /// Whether the VM may be gone.
    pub ask: bool,
}

impl<'a> Watch<'a> {
    pub fn new(
        vm: Vm,
        shared: &'a Shared,
        layout: Layout,
        owner: &'a Owner,
        peer: &'a Peer,
    ) -> Watch<'a> {
        Watch {
            vm,
            shared,
            layout,
            owner,
            peer,
            losses: 0,
            told_not_fetched: false,
            odd: 0,
            untold: 0,
            is_unstopped: false,
            ask: false,
        }
    }

    /// Tells what is to be told.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::Lost { why, .. } | Event::NotFetched { why, .. } if is_end(why) => {
                self.ask = true;
            }
            Event::Lost { page, pages, why } => self.lost(page, pages, why),
            // Once is enough: the background tries many pages.
            Event::NotFetched { page, pages, why }
                if !std::mem::replace(&mut self.told_not_fetched, true) =>
            {
                let why_in_words = self.reason(why);
                let what =
                    format!("could not be fetched ahead: {why_in_words}; a fault tries again");
                self.trouble("not-fetched", page, pages, &what, why);
            }
            Event::Unstopped { pages, .. } => self.unstopped(pages),
            Event::Unfilled { pages } => self.odd(&format!(
                "the background has ended with {pages} pages missing; a fault on one tries again"
            )),
            Event::Outside { address } => self.odd(&format!(
                "it touched memory at {address:#x} that it registered and did not hand over: it gets SIGBUS"
            )),
            Event::Unreadable { .. } => self.odd("its descriptor cannot be read: what is missing is lost"),
            Event::Moved { .. } => self.odd("memory was moved, and what was missing of it is lost"),
            Event::Forked => self.odd("it forked; the child gets SIGBUS where memory is missing"),
            Event::Restarted => self.odd("a thread of ours panicked and began anew"),
            // Counted by the pager.
            _ => {}
        }
    }

    /// Lost pages that the kernel does not make deadly: the memory must stay registered, or they would be zero.
    fn unstopped(&mut self, pages: usize) {
        self.is_unstopped = true;
        self.odd(&format!(
            "{pages} lost pages cannot be made deadly: it waits for ever where it touches them: end it"
        ));
    }

    /// More happened than there was room to tell, and some of it was losses.
    pub fn untold(&mut self, pager: &Pager) {
        if pager.events_dropped() > self.untold && pager.stats().lost_pages > 0 {
            self.untold = pager.events_dropped();
            self.shared.has_failed.store(true, Ordering::Relaxed);
            let is_killed = self.shared.plan.on_loss == OnLoss::Kill && self.peer.kill();
            self.odd(match is_killed {
                true => "more pages are lost than could be told; it is killed",
                false => "more pages are lost than could be told",
            });
        }
    }

    fn lost(&mut self, page: usize, pages: usize, why: Loss) {
        let damage = matches!(why, Loss::Source(SourceError::Corrupt(_)));
        let flag = match damage {
            true => &self.shared.is_damaged,
            false => &self.shared.has_failed,
        };
        flag.store(true, Ordering::Relaxed);
        let is_killed = self.shared.plan.on_loss == OnLoss::Kill && self.peer.kill();
        self.losses += 1;
        if self.losses > LOSSES_TOLD {
            return;
        }
        let fate = match (is_killed, self.shared.plan.can_poison) {
            (true, _) => "it is killed",
            (false, true) => "it gets SIGBUS where it touches them",
            (false, false) => "it waits for ever where it touches them: end it",
        };
        let what = format!("are lost: {}; {fate}", self.reason(why));
        self.trouble("lost", page, pages, &what, why);
    }

    /// With the place in the file, if that is known.
    fn reason(&self, why: Loss) -> String {
        let more = match why {
            Loss::Source(_) => self.shared.memory.take_error(),
            _ => None,
        };
        more.unwrap_or_else(|| why.to_string())
    }

    fn trouble(&self, event: &'static str, page: usize, pages: usize, what: &str, why: Loss) {
        let first = self.layout.source_page(page as u64);
        let place = match first {
            Some(first) if pages == 1 => format!("page {first} of the image"),
            Some(first) => format!("pages {first} to {} of the image", first + pages as u64 - 1),
            None => format!("{pages} pages"),
        };
        self.shared.teller.tell(&Line::trouble(
            event,
            format!("{}: {place} {what}", self.vm.name()),
            self.vm.fields(json!({
                "first_page": first,
                "pages": pages,
                "why": why.to_string(),
                "what": what,
            })),
        ));
    }

    /// Something else that went wrong.
    pub fn odd(&mut self, what: &str) {
        // A VM can bring about as many as it likes.
        self.odd += 1;
        if self.odd > LOSSES_TOLD {
            return;
        }
        self.shared.teller.tell(&Line::trouble(
            "trouble",
            format!("{}: {what}", self.vm.name()),
            self.vm.fields(json!({ "why": what })),
        ));
    }

    /// How far it has come.
    pub fn progress(&self, pager: &Pager, stats: &amdahl_pager::Stats) {
        let missing = pager.missing_pages();
        let present = 100.0 * (1.0 - missing as f64 / pager.pages().max(1) as f64);
        self.shared.teller.tell(&Line::new(
            "progress",
            format!(
                "{}: {present:.1} % is present, {} faults",
                self.vm.name(),
                stats.faults
            ),
            self.vm.fields(json!({
                "pages": pager.pages(),
                "pages_missing": missing,
                "faults": stats.faults,
                "pages_lost": stats.lost_pages,
            })),
        ));
    }
}

/// The memory is no more: nothing is lost that somebody could miss.
fn is_end(why: Loss) -> bool {
    matches!(why, Loss::Kernel(Errno::SRCH))
}
