//! What the daemon that serves knows of one that follows, and says to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amdahl_pager::succession::Ledger;
use amdahl_pager::succession::message::{MAPS_SINCE, Message};
use amdahl_pager::succession::turn::GiverEvent;
use serde_json::json;

use super::channel::{Came, Channel};
use super::{ANSWER, Kept, process};
use crate::pager::serve::TICK;
use crate::pager::serve::tell::Line;
use crate::pager::serve::vm::Shared;

/// Somebody that stands by, or takes over.
pub struct Follower {
    pub channel: Channel,
    /// Its number at the arbiter.
    pub member: u32,
    /// What is spoken with it.
    version: u32,
    /// How long it may take to hold a VM, which waits meanwhile.
    hold: Duration,
    pub replaces: bool,
    pub inbox: VecDeque<Message>,
    /// VMs that it holds.
    held: BTreeSet<u64>,
    /// It has gone, and why.
    pub gone: Option<String>,
}

impl Follower {
    pub fn new(
        channel: Channel,
        member: u32,
        version: u32,
        hold: Duration,
        replaces: bool,
    ) -> Follower {
        Follower {
            channel,
            member,
            version,
            hold,
            replaces,
            inbox: VecDeque::new(),
            held: BTreeSet::new(),
            gone: None,
        }
    }

    pub fn say(&mut self, message: &Message, descriptors: &[BorrowedFd<'_>]) {
        if self.gone.is_none()
            && let Err(why) = self.channel.send(message, descriptors)
        {
            self.gone = Some(why);
        }
    }

    /// Waits until it is known to the arbiter.
    pub fn enters(&mut self) {
        let until = Instant::now() + ANSWER;
        while self.gone.is_none() {
            if self.inbox.pop_front() == Some(Message::Entered) {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.gone = Some("it does not answer as it should".to_owned());
            }
            self.hear(left);
        }
    }

    /// Is told of a VM, and waited for until it holds it.
    pub fn told(&mut self, kept: &Kept, ledger: &Ledger) {
        if kept.maps.is_some() && self.version < MAPS_SINCE && self.gone.is_none() {
            let why =
                "it is too old to go on with VMs that map the one copy of all pages (--share)";
            self.gone = Some(why.to_owned());
        }
        self.say(&kept.message(), &kept.descriptors(ledger));
        let until = Instant::now() + self.hold;
        let held = Message::Held {
            number: kept.vm.number,
        };
        while self.gone.is_none() {
            let before = self.inbox.len();
            self.hear(until.saturating_duration_since(Instant::now()));
            if let Some(at) = self.inbox.iter().position(|message| *message == held) {
                self.inbox.remove(at);
                self.held.insert(kept.vm.number);
                return;
            }
            if self.gone.is_none() && self.inbox.len() == before && Instant::now() >= until {
                let within = self.hold.as_secs();
                self.gone = Some(format!("it did not hold a VM within {within} s"));
            }
        }
    }

    /// Is told that a VM needs nobody.
    pub fn forgets(&mut self, number: u64) {
        if self.held.remove(&number) {
            self.say(&Message::Ended { number }, &[]);
        }
    }

    /// Is told of all that has changed: it holds these VMs, and no others; not beyond some time.
    pub fn holds(&mut self, vms: &BTreeMap<u64, Arc<Kept>>, until: Instant) {
        let ended: Vec<u64> = self.held.iter().copied().collect();
        for number in ended {
            if !vms.contains_key(&number) {
                self.forgets(number);
            }
        }
        for (number, kept) in vms {
            if let Some(ledger) = &kept.ledger
                && !self.held.contains(number)
            {
                if Instant::now() >= until && self.gone.is_none() {
                    self.gone = Some("it is too slow to hold all VMs".to_owned());
                }
                self.told(kept, ledger);
            }
        }
    }

    /// One more message, if there is one in time.
    pub fn hear(&mut self, within: Duration) {
        if self.gone.is_some() {
            return;
        }
        match self.channel.receive(within) {
            // More than it may ever say is not kept.
            Ok(Came::Message(message, _)) if self.inbox.len() < 16 => {
                self.inbox.push_back(message);
            }
            Ok(Came::Message(..)) => self.gone = Some("it says too much".to_owned()),
            Ok(Came::Nothing) => {}
            Ok(Came::End) => self.gone = Some("it closed the connection".to_owned()),
            Err(why) => self.gone = Some(why),
        }
    }

    /// What happens next to one that has our word, which is taken back if it says nothing until then.
    pub fn next_event(&mut self, until: Instant) -> GiverEvent {
        loop {
            while let Some(message) = self.inbox.pop_front() {
                if message == Message::Mine {
                    return GiverEvent::Mine;
                }
            }
            if self.gone.is_some() {
                // What it said before its end has been heard.
                return GiverEvent::Left;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return GiverEvent::Silent;
            }
            self.hear(left.min(TICK));
        }
    }

    /// Whether it has gone, which is told.
    pub fn is_gone(&self, shared: &Shared) -> bool {
        let Some(why) = &self.gone else {
            return false;
        };
        let pid = self.channel.peer.pid;
        let role = match self.replaces {
            true => "takes over no more",
            false => "stands by no more",
        };
        let text = format!("{} {role}: {why}", process(pid));
        let fields = json!({ "pid": pid, "replaces": self.replaces, "why": why });
        shared
            .teller
            .tell(&Line::trouble("follower-lost", text, fields));
        true
    }
}
