//! One daemon follows another: a new version that takes over, or one that stands by.
//!
//! Here is the side that serves. What each of its VMs needs is kept where followers can have it; a follower holds it before the VM is served.
//! Who serves when is decided by [`Giver`], what is said is [`message`]. Whatever either side believes, it serves only while
//! it has the turn of the [`Arbiter`].

mod channel;
mod follower;
mod heir;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use amdahl_pager::handoff::Peer;
use amdahl_pager::succession::message::{self, Message, common_version};
use amdahl_pager::succession::turn::{Giver, GiverAction, GiverEvent, Heirs};
use amdahl_pager::succession::{Arbiter, Filled, Ledger};
use amdahl_pager::{Features, HandedOver};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde_json::json;

use super::TICK;
use super::listen::Listener;
use super::tell::{Line, Vm};
use super::vm::Shared;
use crate::failure::Failure;
use channel::{Came, Channel};
use follower::Follower;
pub use heir::{Inherited, Succession, inherit};

/// How long a follower may take to say what it must.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a hand-over may take from when VMs are left, before the successor is ended: VMs wait meanwhile. And how long a follower may take to hold
/// all VMs that there are. So many times the time of a hand-off.
const BEGIN: u32 = 4;
/// Of a text that a peer is told.
const WHY_MAX: usize = 1000;
/// One that stands by, and one that takes over.
const FOLLOWERS: usize = 2;

/// A VM, as it can be given to another process.
pub struct Kept {
    /// Who it is.
    pub vm: Vm,
    /// Who handed it over.
    pub peer: Peer,
    /// By this.
    pub stream: UnixStream,
    /// Its userfaultfd.
    pub descriptor: OwnedFd,
    /// What its owner asked the kernel for.
    pub features: Option<Features>,
    /// Its memory.
    pub regions: Vec<HandedOver>,
    /// What the file of clean pages has that it maps, if it does.
    pub maps: Option<Arc<Filled>>,
    /// Its VMM has asked to be told when its working set is there.
    pub waits_for_set: bool,
    /// What is known of its pages, if somebody may follow.
    pub ledger: Option<Arc<Ledger>>,
}

impl Kept {
    fn message(&self) -> Message {
        Message::Vm(message::Vm {
            number: self.vm.number,
            pid: self.peer.pid,
            uid: self.peer.uid,
            features: self.features.map(|features| features.0),
            regions: self.regions.iter().map(message::Region::from).collect(),
            maps: self.maps.is_some(),
        })
    }

    fn descriptors<'a>(&'a self, ledger: &'a Ledger) -> Vec<BorrowedFd<'a>> {
        let three = [
            self.descriptor.as_fd(),
            ledger.descriptor(),
            self.stream.as_fd(),
        ];
        let filled = self.maps.as_ref().map(|filled| filled.descriptor());
        three
            .into_iter()
            .chain(filled)
            .chain(self.peer.pidfd())
            .collect()
    }
}

/// What VMs are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Serve,
    /// Leave the memory, and wait for the next order.
    Pause,
    /// Another serves.
    Given,
}

/// What becomes of a VM that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is served again.
    Serve,
    /// Another serves it.
    Given,
}

struct State {
    vms: BTreeMap<u64, Arc<Kept>>,
    paused: BTreeSet<u64>,
    order: Order,
    /// Somebody has asked for the turn, and neither has it nor was refused yet.
    is_asked: bool,
    last: u64,
}

/// Who follows.
struct Queue {
    followers: Vec<Follower>,
    /// Who may take the turn is for us to say: it is ours, and for good.
    is_listing: bool,
}

/// What followers need.
pub struct Keep {
    control: Option<Listener>,
    /// Where it is decided who serves, if somebody may follow.
    arbiter: Option<Arbiter>,
    /// Where VMMs connect, once more, until nobody may.
    offered: Mutex<Option<Listener>>,
    state: Mutex<State>,
    change: Condvar,
    /// Readable while VMs are to pause.
    bell: Option<OwnedFd>,
    line: Mutex<Queue>,
    /// No VM is taken.
    is_closed: AtomicBool,
    /// All VMs have ended.
    is_over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keep {
    /// With a control socket, or without followers; for VMMs that connect there; `last` is the number of the last VM that there was. The turn of an
    /// arbiter that is inherited is ours.
    pub fn new(
        control: Option<Listener>,
        listener: Option<&Listener>,
        last: u64,
        arbiter: Option<Arbiter>,
    ) -> Result<Keep, Failure> {
        let is_inherited = arbiter.is_some();
        let arbiter = match (&control, arbiter) {
            (Some(_), None) => Some(
                Arbiter::new().map_err(|error| Failure::machine(format!("--control: {error}")))?,
            ),
            (_, arbiter) => arbiter,
        };
        let offered = match (&control, listener) {
            (Some(_), Some(listener)) => Some(
                listener
                    .duplicate()
                    .map_err(|error| Failure::result(format!("duplicating a socket: {error}")))?,
            ),
            _ => None,
        };
        let bell = match &control {
            Some(_) => Some(
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(|errno| Failure::result(format!("eventfd: {errno}")))?,
            ),
            None => None,
        };
        Ok(Keep {
            control,
            arbiter,
            offered: Mutex::new(offered),
            state: Mutex::new(State {
                vms: BTreeMap::new(),
                paused: BTreeSet::new(),
                order: Order::Serve,
                is_asked: false,
                last,
            }),
            change: Condvar::new(),
            bell,
            // Until it is confirmed, those before us may.
            line: Mutex::new(Queue {
                followers: Vec::new(),
                is_listing: !is_inherited,
            }),
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    /// Whether there may be followers.
    pub fn is_on(&self) -> bool {
        self.control.is_some()
    }

    /// Readable when VMs are to pause.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(AsFd::as_fd)
    }

    /// No VM is to be taken now.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Another serves.
    pub fn is_given(&self) -> bool {
        lock(&self.state).order == Order::Given
    }

    /// VMs are to be left.
    pub fn is_pausing(&self) -> bool {
        self.is_on() && lock(&self.state).order != Order::Serve
    }

    /// The number of the next VM.
    pub fn next_number(&self) -> u64 {
        let mut state = lock(&self.state);
        // A peer's numbers are bounded: this does not come to its end.
        state.last = state.last.saturating_add(1);
        state.last
    }

    /// A VM begins. Whoever stands by has it when this returns.
    pub fn begin(&self, shared: &Shared, kept: &Arc<Kept>) {
        let Some(ledger) = &kept.ledger else { return };
        // In this order everywhere: who comes now is told of all VMs, and of none twice.
        let mut line = lock(&self.line);
        lock(&self.state)
            .vms
            .insert(kept.vm.number, Arc::clone(kept));
        for follower in &mut line.followers {
            follower.told(kept, ledger);
        }
        self.drop_gone(shared, &mut line);
    }

    /// A VM needs nobody any more.
    pub fn end(&self, shared: &Shared, number: u64) {
        let mut line = lock(&self.line);
        {
            let mut state = lock(&self.state);
            state.vms.remove(&number);
            state.paused.remove(&number);
        }
        self.change.notify_all();
        for follower in &mut line.followers {
            follower.forgets(number);
        }
        self.drop_gone(shared, &mut line);
    }

    /// A VM is left, and its ledger says all.
    pub fn has_paused(&self, number: u64) {
        lock(&self.state).paused.insert(number);
        self.change.notify_all();
    }

    /// Waits until it is known who serves a VM that was left.
    pub fn verdict(&self, number: u64) -> Verdict {
        let mut state = lock(&self.state);
        loop {
            match state.order {
                Order::Given => return Verdict::Given,
                // If it is not among those any more, another order came between.
                Order::Pause if state.paused.contains(&number) => {}
                _ => return Verdict::Serve,
            }
            state = self
                .change
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn order(&self, order: Order) {
        {
            let mut state = lock(&self.state);
            state.order = order;
            state.paused.clear();
        }
        if let Some(bell) = &self.bell {
            match order {
                Order::Pause => drop(rustix::io::write(bell, &1u64.to_ne_bytes())),
                Order::Serve => drop(rustix::io::read(bell, &mut [0; 8][..])),
                Order::Given => {}
            }
        }
        self.change.notify_all();
    }

    /// We have been told to end: waits until it is known whether another serves, if one has asked before. Whoever asks later is refused.
    pub fn settles(&self) {
        let mut state = lock(&self.state);
        while state.is_asked {
            state = self
                .change
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No more VMs are taken, for good: those who connect must not find the socket at a follower's.
    pub fn closes(&self, shared: &Shared) {
        let mut line = lock(&self.line);
        self.is_closed.store(true, Ordering::SeqCst);
        *lock(&self.offered) = None;
        for follower in &mut line.followers {
            follower.say(&Message::Closing, &[]);
        }
        self.drop_gone(shared, &mut line);
    }

    /// We serve for good: the control socket's file is ours, and who stood by for the one before is put out of the line, before any VM is taken.
    pub fn adopts(&self, shared: &Shared) {
        self.control.iter().for_each(Listener::adopt);
        let mut line = lock(&self.line);
        line.is_listing = true;
        self.drop_gone(shared, &mut line);
    }

    /// All VMs are served by us, for good; false if the one before has taken its word back.
    pub fn confirms(&self, member: u32) -> bool {
        let confirms = |arbiter: &Arbiter| arbiter.confirm(member);
        self.arbiter.as_ref().is_some_and(confirms)
    }

    /// Those that have gone follow no more, and never take over: the arbiter knows before any VM begins that they do not hold.
    fn drop_gone(&self, shared: &Shared, line: &mut Queue) {
        line.followers.retain(|follower| !follower.is_gone(shared));
        if let (Some(arbiter), true) = (&self.arbiter, line.is_listing) {
            arbiter.set_heirs(line.heirs(0));
        }
    }

    /// All VMs have ended.
    pub fn is_done(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Keeps followers informed, until all VMs have ended or one of them has taken over.
    pub fn run(&self, shared: &Shared) {
        let (Some(control), Some(arbiter)) = (&self.control, &self.arbiter) else {
            return;
        };
        loop {
            if self.is_over.load(Ordering::SeqCst) {
                for follower in &mut lock(&self.line).followers {
                    follower.say(&Message::Released, &[]);
                }
                return;
            }
            if self.wait(control) {
                match control.socket().accept() {
                    Ok((socket, _)) => {
                        self.comes(shared, control, arbiter, OwnedFd::from(socket));
                    }
                    // Without descriptors it would be tried for ever.
                    Err(_) => std::thread::sleep(TICK),
                }
            }
            let mut line = lock(&self.line);
            let mut asks = None;
            for (nth, follower) in line.followers.iter_mut().enumerate() {
                follower.hear(Duration::ZERO);
                while let Some(message) = follower.inbox.pop_front() {
                    if message == Message::Take && follower.replaces {
                        asks = Some(nth);
                    }
                }
            }
            let successor = asks.map(|nth| line.followers.swap_remove(nth));
            self.drop_gone(shared, &mut line);
            drop(line);
            let Some(mut successor) = successor else {
                continue;
            };
            lock(&self.state).is_asked = true;
            let is_given = self.hand_over(shared, control, arbiter, &mut successor);
            lock(&self.state).is_asked = false;
            self.change.notify_all();
            if is_given {
                // Whoever stood by for us looks for the one that serves now, or takes over from it if it dies before it takes VMs.
                // The files are the other's.
                control.lend();
                return;
            }
        }
    }

    /// Waits for somebody to come or to say something; whether one comes.
    fn wait(&self, control: &Listener) -> bool {
        let sockets: Vec<OwnedFd> = lock(&self.line)
            .followers
            .iter()
            .filter_map(|follower| follower.channel.socket().try_clone_to_owned().ok())
            .collect();
        let mut fds = vec![PollFd::new(control.socket(), PollFlags::IN)];
        fds.extend(sockets.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: TICK.subsec_nanos().into(),
        };
        poll(&mut fds, Some(&tick)).is_ok() && !fds[0].revents().is_empty()
    }

    /// Somebody has connected: it follows, or is told why not.
    fn comes(&self, shared: &Shared, control: &Listener, arbiter: &Arbiter, socket: OwnedFd) {
        let channel = match Channel::new(socket) {
            Ok(channel) => channel,
            Err(why) => return refused(shared, None, &why),
        };
        let hello = match channel.receive(ANSWER) {
            Ok(Came::Message(hello, _)) => hello,
            // Somebody looked whether we are there.
            Ok(Came::End) => return,
            Ok(Came::Nothing) => return refused(shared, channel.peer.pid, "it says nothing"),
            Err(why) => {
                let answer = format!("this is amdahl {}: {why}", env!("CARGO_PKG_VERSION"));
                let _ = channel.send(&no(answer), &[]);
                return refused(shared, channel.peer.pid, &why);
            }
        };
        let (version, replaces) = match self.examine(shared, hello, &channel.peer) {
            Ok(agreed) => agreed,
            Err(why) => {
                let _ = channel.send(&no(why.clone()), &[]);
                return refused(shared, channel.peer.pid, &why);
            }
        };
        // Before the socket is taken: whoever closes it tells all that have it.
        let mut line = lock(&self.line);
        let offered = match &*lock(&self.offered) {
            Some(offered) => offered.duplicate().ok(),
            None => None,
        };
        let Some(listener) = offered else {
            let why = "this one has been told to end".to_owned();
            let _ = channel.send(&no(why.clone()), &[]);
            return refused(shared, channel.peer.pid, &why);
        };
        let member = arbiter.invite();
        let welcome = Message::Welcome {
            version,
            listen: listener.place().to_owned(),
            file: listener.file(),
            control: control.place().to_owned(),
            control_file: control.file(),
            member,
        };
        let sockets = [
            listener.socket().as_fd(),
            control.socket().as_fd(),
            arbiter.descriptor(),
        ];
        let hold = shared.plan.handoff_timeout;
        let mut follower = Follower::new(channel, member, version, hold, replaces);
        let pid = follower.channel.peer.pid;
        follower.say(&welcome, &sockets);
        follower.enters();
        if follower.gone.is_none() && !arbiter.is_present(member) {
            follower.gone = Some("it has not locked its number".to_owned());
        }
        let (vms, last) = {
            let state = lock(&self.state);
            (state.vms.clone(), state.last)
        };
        follower.holds(&vms, Instant::now() + shared.plan.handoff_timeout * BEGIN);
        follower.say(&Message::Current { last }, &[]);
        if follower.gone.is_none() {
            let what = match replaces {
                true => "is about to take over",
                false => "stands by",
            };
            shared.teller.tell(&Line::new(
                "follower",
                format!("{} {what}", process(pid)),
                json!({ "pid": pid, "replaces": replaces, "vms": vms.len() }),
            ));
        }
        line.followers.push(follower);
        self.drop_gone(shared, &mut line);
    }

    /// Whether somebody can follow: the version that is spoken, and whether it takes over.
    fn examine(&self, shared: &Shared, hello: Message, peer: &Peer) -> Result<(u32, bool), String> {
        let Message::Hello {
            oldest,
            newest,
            program,
            identity,
            memory_bytes,
            max_vms,
            replaces,
        } = hello
        else {
            return Err("it does not begin with a hello".to_owned());
        };
        let version = common_version(oldest, newest).ok_or_else(|| {
            format!(
                "amdahl {program} speaks versions {oldest} to {newest} of the protocol, amdahl {} versions {} to {}",
                env!("CARGO_PKG_VERSION"),
                message::OLDEST,
                message::VERSION
            )
        })?;
        let ours = (
            message::identity(&shared.memory.identity),
            shared.memory.bytes,
        );
        if (identity, memory_bytes) != ours {
            return Err(
                "it has another image than its VMs began with, or the file was changed".to_owned(),
            );
        }
        if max_vms < shared.plan.max_vms {
            return Err(format!(
                "it serves {max_vms} VMs at most, and this one {} (--max-vms)",
                shared.plan.max_vms
            ));
        }
        if shared.interrupt.asked() {
            return Err("this one has been told to end".to_owned());
        }
        // It must be possible to end one that takes over and hangs.
        if replaces && peer.pidfd().is_none() {
            return Err(
                "this kernel does not tell processes apart for sure (Linux 5.3), which replacing needs"
                    .to_owned(),
            );
        }
        let followers = &lock(&self.line).followers;
        if followers.len() >= FOLLOWERS
            || followers
                .iter()
                .any(|follower| follower.replaces == replaces)
        {
            return Err(match replaces {
                true => "another takes over just now".to_owned(),
                false => "another stands by already".to_owned(),
            });
        }
        Ok((version, replaces))
    }

    /// Gives the turn to a successor; false if we go on.
    fn hand_over(
        &self,
        shared: &Shared,
        control: &Listener,
        arbiter: &Arbiter,
        successor: &mut Follower,
    ) -> bool {
        let mut paused_at = Instant::now();
        let mut giver = Giver::Serving;
        let mut events = VecDeque::from([GiverEvent::Asked]);
        let mut why = "it went away".to_owned();
        let pid = successor.channel.peer.pid;
        loop {
            let event = match events.pop_front() {
                Some(event) => event,
                None => successor.next_event(paused_at + shared.plan.handoff_timeout * BEGIN),
            };
            for action in giver.on(event) {
                match action {
                    GiverAction::Pause => events.push_back(match self.pause(shared, successor) {
                        Ok(at) => {
                            paused_at = at;
                            GiverEvent::Paused
                        }
                        Err(reason) => {
                            why = reason;
                            GiverEvent::CannotPause
                        }
                    }),
                    GiverAction::SayYours => {
                        {
                            let mut line = lock(&self.line);
                            line.is_listing = false;
                            arbiter.give(line.heirs(successor.member));
                        }
                        let last = lock(&self.state).last;
                        // Not there any more: seen below.
                        successor.say(&Message::Yours { last }, &[]);
                    }
                    GiverAction::SayAbort => {
                        successor.say(&Message::Abort { why: short(&why) }, &[]);
                    }
                    GiverAction::Revoke => {
                        events.push_back(match arbiter.revoke(successor.member) {
                            true => GiverEvent::Revoked,
                            false => GiverEvent::TooLate,
                        });
                    }
                    GiverAction::Reclaim => {
                        why = match &successor.gone {
                            Some(gone) => format!("{gone}, before it served"),
                            None => "it did not begin to serve, and was ended".to_owned(),
                        };
                        events.push_back(self.reclaim(shared, arbiter, successor));
                    }
                    GiverAction::Resume => {
                        // The successor may have done it.
                        control.relisten();
                        lock(&self.offered).iter().for_each(Listener::relisten);
                        self.order(Order::Serve);
                        self.is_closed
                            .store(shared.interrupt.asked(), Ordering::SeqCst);
                        refused(shared, pid, &why);
                        return false;
                    }
                    GiverAction::Exit => {
                        let vms = lock(&self.state).vms.len();
                        self.order(Order::Given);
                        let took = paused_at.elapsed();
                        // One that stood by, if the successor died and it was sooner than we.
                        let pid = pid.filter(|_| event != GiverEvent::Taken);
                        shared.teller.tell(&Line::new(
                            "handed-over",
                            format!(
                                "{} serves now, with {vms} VMs of ours, which nobody served for {:.0} ms",
                                process(pid),
                                took.as_secs_f64() * 1e3
                            ),
                            json!({ "pid": pid, "vms": vms, "seconds": took.as_secs_f64() }),
                        ));
                        return true;
                    }
                }
            }
        }
    }

    /// Ends a successor whose word was taken back, and waits until the turn is ours, or that of one that stood by.
    fn reclaim(&self, shared: &Shared, arbiter: &Arbiter, successor: &Follower) -> GiverEvent {
        let mut is_told = false;
        loop {
            let is_killed = successor.channel.peer.kill();
            // Before the turn: who is no more has none.
            let is_present = arbiter.is_present(successor.member);
            let mut line = lock(&self.line);
            if arbiter.reclaim(line.heirs(0)) {
                line.is_listing = true;
                return GiverEvent::Reclaimed;
            }
            drop(line);
            if !is_present {
                return GiverEvent::Taken;
            }
            if !is_killed && !std::mem::replace(&mut is_told, true) {
                let pid = successor.channel.peer.pid;
                let why = "it cannot be ended: VMs wait until it is";
                refused(shared, pid, why);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends serving all VMs, and says since when; or why that is not possible now. The successor holds them all then.
    fn pause(&self, shared: &Shared, successor: &mut Follower) -> Result<Instant, String> {
        if shared.interrupt.asked() {
            return Err("this one has been told to end".to_owned());
        }
        // VMs that are being handed over just now are let in before.
        self.is_closed.store(true, Ordering::SeqCst);
        let until = Instant::now() + shared.plan.handoff_timeout * BEGIN;
        while shared.arriving.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= until {
                return Err("VMs are being handed over".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // What takes time comes before VMs wait: telling of those that came after it had asked, and files.
        let vms = lock(&self.state).vms.clone();
        successor.holds(&vms, until);
        if let Some(recorder) = shared.memory.recorder() {
            let _ = recorder.write();
        }
        if let Some(why) = &successor.gone {
            return Err(why.clone());
        }
        let begun = Instant::now();
        let until = begun + shared.plan.handoff_timeout * BEGIN;
        self.order(Order::Pause);
        let mut state = lock(&self.state);
        while !state.vms.keys().all(|number| state.paused.contains(number)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!(
                    "a VM could not be left within {} s",
                    until.duration_since(begun).as_secs()
                ));
            }
            (state, _) = self
                .change
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let vms = state.vms.clone();
        drop(state);
        // Nobody comes any more: these are among those of before.
        successor.holds(&vms, until);
        match &successor.gone {
            Some(why) => Err(why.clone()),
            None => Ok(begun),
        }
    }
}

impl Queue {
    /// Who may take the turn: this one, if it is not 0, then whoever stands by.
    fn heirs(&self, first: u32) -> Heirs {
        let standby = self.followers.iter().find(|other| !other.replaces);
        Heirs::new(first, standby.map_or(0, |standby| standby.member))
    }
}

/// A text that is not too long to be said.
fn short(why: &str) -> String {
    why.chars().take(WHY_MAX).collect()
}

fn no(why: String) -> Message {
    Message::No { why: short(&why) }
}

fn refused(shared: &Shared, pid: Option<u32>, why: &str) {
    shared.teller.tell(&Line::trouble(
        "not-followed",
        format!("{} does not follow: {why}; this one goes on", process(pid)),
        json!({ "pid": pid, "why": why }),
    ));
}

fn process(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "a process".to_owned(),
    }
}
