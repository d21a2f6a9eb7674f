//! The side that takes over: at once, or when the other is killed.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amdahl_pager::Features;
use amdahl_pager::handoff::{Peer, examine};
use amdahl_pager::succession::message::{self, Message, SocketFile};
use amdahl_pager::succession::turn::{Taker, TakerAction, TakerEvent};
use amdahl_pager::succession::{Arbiter, Claim, Filled, Ledger};
use rustix::net::{AddressFamily, SocketType, sockopt};
use serde_json::json;

use super::channel::{Came, Channel};
use super::{ANSWER, Keep, Kept, process};
use crate::cli::serve::PagerServe;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::pager::serve::listen::{Listener, notify};
use crate::pager::serve::memory::Memory;
use crate::pager::serve::tell::{Line, Teller, Vm};

/// How often is looked whether we are to end.
const TICK: Duration = Duration::from_millis(100);
/// How soon a claim is tried again at first: descriptors of a process that is killed are closed one after the other.
const CLAIM: Duration = Duration::from_millis(1);
/// Beyond this no VM is numbered.
const NUMBER_MAX: u64 = u64::MAX / 2;
/// How long one that stands by looks for the one that has taken over.
const MOVED: Duration = Duration::from_secs(30);

/// What came of following another.
pub enum Succession {
    /// There is nothing to serve.
    Over,
    /// It is our turn.
    Ours(Box<Inherited>),
}

/// What was taken over.
pub struct Inherited {
    /// Where VMMs connect; `None` if no more are taken.
    pub listener: Option<Listener>,
    /// Where others follow us.
    pub control: Listener,
    /// VMs.
    pub vms: Vec<Kept>,
    /// The number of the last VM that there was.
    pub last: u64,
    /// The turn is ours.
    pub arbiter: Arbiter,
    /// To be told when all of them are served.
    pub testator: Testator,
}

/// The one before.
pub struct Testator {
    channel: Channel,
    /// Our number at the arbiter.
    member: u32,
    /// It waits to hear that we serve.
    is_awaited: bool,
    since: Instant,
}

impl Testator {
    /// Whether it goes on with all VMs if we do not serve them.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// All VMs are served: says so. False if it has taken its word back, and goes on after our end.
    pub fn learns(self, teller: &Teller, keep: &Keep, vms: usize) -> bool {
        let pid = self.channel.peer.pid;
        if self.is_awaited {
            if !keep.confirms(self.member) {
                return false;
            }
            // If it is not there any more, nobody has to know.
            let _ = self.channel.send(&Message::Mine, &[]);
        }
        let (why, how) = match self.is_awaited {
            true => ("asked", "which gave its turn"),
            false => ("died", "which has ended without a word"),
        };
        let took = self.since.elapsed();
        teller.tell(&Line::new(
            "took-over",
            format!(
                "took over {vms} VMs of {}, {how}: served again after {:.0} ms",
                process(pid),
                took.as_secs_f64() * 1e3
            ),
            json!({ "pid": pid, "vms": vms, "why": why, "seconds": took.as_secs_f64() }),
        ));
        true
    }
}

/// What the other has told until now.
struct Told {
    channel: Channel,
    arbiter: Arbiter,
    /// Our number there.
    member: u32,
    listener: Option<Listener>,
    control: Listener,
    vms: BTreeMap<u64, Kept>,
    last: u64,
    is_current: bool,
}

/// Follows the one that is controlled there, as the command line says.
pub fn inherit(
    args: &PagerServe,
    memory: &Memory,
    teller: &Teller,
    interrupt: &Interrupt,
) -> Result<Succession, Failure> {
    let (path, replaces) = match (&args.replace, &args.standby_for) {
        (Some(path), _) => (path, true),
        (None, Some(path)) => (path, false),
        (None, None) => unreachable!("nobody is followed"),
    };
    let mut told = attach(path, args, memory, replaces)?;
    loop {
        match follow(told, args, memory, teller, interrupt, path)? {
            Followed::Moved if replaces => {
                let why = "another has taken over meanwhile, or it died before it gave its turn; nothing was taken from it: look who serves, and start this again";
                return Err(failed(path, why));
            }
            Followed::Moved => {
                told = match again(path, args, memory, interrupt)? {
                    Some(told) => told,
                    None => return Ok(Succession::Over),
                };
            }
            Followed::To(succession) => return Ok(succession),
        }
    }
}

enum Followed {
    To(Succession),
    /// Somebody else has taken over.
    Moved,
}

fn failed(path: &Path, why: &str) -> Failure {
    Failure::result(format!(
        "following the one at unix:{}: {why}",
        path.display()
    ))
}

/// Connects, and is let in.
fn attach(
    path: &Path,
    args: &PagerServe,
    memory: &Memory,
    replaces: bool,
) -> Result<Told, Failure> {
    let failed = |why: String| failed(path, &why);
    let channel = Channel::connect(path).map_err(|why| {
        failed(format!(
            "{why}: is a `pager serve --control unix:{}` running?",
            path.display()
        ))
    })?;
    let hello = Message::Hello {
        oldest: message::OLDEST,
        newest: message::VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        identity: message::identity(&memory.identity),
        memory_bytes: memory.bytes,
        max_vms: args.max_vms,
        replaces,
    };
    channel.send(&hello, &[]).map_err(failed)?;
    // It looks after others before.
    let (answer, mut sockets) = match channel.receive(ANSWER * 3).map_err(failed)? {
        Came::Message(answer, descriptors) => (answer, descriptors),
        Came::Nothing => return Err(failed("it does not answer".to_owned())),
        Came::End => return Err(failed("it closed the connection".to_owned())),
    };
    let (listen, file, control, control_file, member) = match answer {
        Message::Welcome {
            listen,
            file,
            control,
            control_file,
            member,
            ..
        } => (listen, file, control, control_file, member),
        Message::No { why } => {
            return Err(failed(format!("it refuses: {why}. It goes on serving")));
        }
        _ => return Err(failed("it does not answer as it should".to_owned())),
    };
    let arbiter = sockets.pop().expect("three, as was checked");
    let arbiter = Arbiter::open(arbiter)
        .and_then(|arbiter| arbiter.enter(member).map(|()| arbiter))
        .map_err(|error| failed(format!("who serves when: {error}")))?;
    let mut socket = |place: String, file: Option<SocketFile>| {
        let socket = sockets.pop().expect("three, as was checked");
        Listener::inherited(socket, place, file).map_err(|failure| failed(failure.message))
    };
    let control = socket(control, control_file)?;
    let listener = Some(socket(listen, file)?);
    channel.send(&Message::Entered, &[]).map_err(failed)?;
    Ok(Told {
        channel,
        arbiter,
        member,
        listener,
        control,
        vms: BTreeMap::new(),
        last: 0,
        is_current: false,
    })
}

/// The same where somebody else has just taken over, which takes a moment.
fn again(
    path: &Path,
    args: &PagerServe,
    memory: &Memory,
    interrupt: &Interrupt,
) -> Result<Option<Told>, Failure> {
    let begun = Instant::now();
    loop {
        match attach(path, args, memory, false) {
            Err(_) if interrupt.asked() => return Ok(None),
            Err(failure) if begun.elapsed() >= MOVED => return Err(failure),
            Err(_) => std::thread::sleep(TICK),
            Ok(told) => return Ok(Some(told)),
        }
    }
}

/// Until it is our turn, or never will be.
fn follow(
    mut told: Told,
    args: &PagerServe,
    memory: &Memory,
    teller: &Teller,
    interrupt: &Interrupt,
    path: &Path,
) -> Result<Followed, Failure> {
    let replaces = args.replace.is_some();
    let mut events = VecDeque::new();
    let mut pause = CLAIM;
    let mut taker = Taker::Holding;
    let mut since = Instant::now();
    let mut is_awaited = false;
    loop {
        // Whatever we hold is the other's as well: to go away harms nobody.
        if interrupt.asked() {
            return Ok(Followed::To(Succession::Over));
        }
        let mut reason = String::new();
        if taker == Taker::Claiming && events.is_empty() {
            match told.arbiter.claim(told.member) {
                Claim::Ours => events.push_back(TakerEvent::Claimed),
                Claim::Never => events.push_back(TakerEvent::Refused),
                // It lives, or is not dead yet, or somebody comes first: however long that takes.
                Claim::Wait => {
                    std::thread::sleep(pause);
                    pause = TICK.min(pause * 2);
                    continue;
                }
            }
        }
        let came = match events.is_empty() {
            true => told.channel.receive(TICK),
            false => Ok(Came::Nothing),
        };
        let event = match came.unwrap_or(Came::End) {
            Came::Nothing => match events.pop_front() {
                Some(event) => event,
                None => continue,
            },
            Came::End => {
                since = Instant::now();
                TakerEvent::Left
            }
            Came::Message(message, descriptors) => match message {
                Message::Vm(vm) => {
                    let number = vm.number;
                    if told.vms.len() >= args.max_vms as usize || number > NUMBER_MAX {
                        return Err(failed(
                            path,
                            "it tells of more VMs than it said it may serve",
                        ));
                    }
                    let kept = kept(vm, descriptors, memory)
                        .map_err(|why| failed(path, &format!("VM {number}: {why}")))?;
                    told.vms.insert(number, kept);
                    told.last = told.last.max(number);
                    let held = Message::Held { number };
                    // One that cannot be told is gone: seen by the next look.
                    let _ = told.channel.send(&held, &[]);
                    continue;
                }
                Message::Ended { number } => {
                    told.vms.remove(&number);
                    continue;
                }
                Message::Current { last } => {
                    told.last = told.last.max(last.min(NUMBER_MAX));
                    if std::mem::replace(&mut told.is_current, true) {
                        continue;
                    }
                    match replaces {
                        true => TakerEvent::Wanted,
                        false => {
                            standing_by(teller, &told);
                            continue;
                        }
                    }
                }
                Message::Yours { last } => {
                    told.last = told.last.max(last.min(NUMBER_MAX));
                    (is_awaited, since) = (true, Instant::now());
                    TakerEvent::Yours
                }
                Message::Abort { why } => {
                    reason = format!("it does not give its turn: {why}. It goes on serving");
                    TakerEvent::Abort
                }
                Message::Closing => {
                    told.listener = None;
                    continue;
                }
                Message::Released => TakerEvent::Released,
                _ => continue,
            },
        };
        for action in taker.on(event) {
            match action {
                TakerAction::SayTake => {
                    told.channel
                        .send(&Message::Take, &[])
                        .map_err(|why| failed(path, &why))?;
                }
                TakerAction::Serve => {
                    // Those who follow us must find us, and not the one before, at the other end.
                    told.control.relisten();
                    told.listener.iter().for_each(Listener::relisten);
                    return Ok(Followed::To(Succession::Ours(Box::new(Inherited {
                        listener: told.listener,
                        control: told.control,
                        vms: told.vms.into_values().collect(),
                        last: told.last,
                        arbiter: told.arbiter,
                        testator: Testator {
                            channel: told.channel,
                            member: told.member,
                            is_awaited,
                            since,
                        },
                    }))));
                }
                // When VMs are served.
                TakerAction::SayMine => {}
                // At the next turn of the loop.
                TakerAction::Claim => {}
                TakerAction::Again => return Ok(Followed::Moved),
                TakerAction::Exit => {
                    if event == TakerEvent::Released && !replaces {
                        let text =
                            "the one that was stood by for has ended; nothing is left to serve";
                        let pid = told.channel.peer.pid;
                        let fields = json!({ "pid": pid });
                        teller.tell(&Line::new("released", text.to_owned(), fields));
                        return Ok(Followed::To(Succession::Over));
                    }
                    if reason.is_empty() {
                        reason = "it has ended meanwhile".to_owned();
                    }
                    return Err(failed(path, &reason));
                }
            }
        }
    }
}

fn standing_by(teller: &Teller, told: &Told) {
    let (pid, vms) = (told.channel.peer.pid, told.vms.len());
    teller.tell(&Line::new(
        "standing-by",
        format!("standing by for {}, with {vms} VMs", process(pid)),
        json!({ "pid": pid, "vms": vms }),
    ));
    notify("READY=1");
}

/// What was told of a VM, checked as what a VMM tells.
fn kept(vm: message::Vm, descriptors: Vec<OwnedFd>, memory: &Memory) -> Result<Kept, String> {
    let regions = vm
        .regions(memory.bytes)
        .map_err(|error| error.to_string())?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or("a descriptor is missing");
    let (descriptor, ledger, stream) = (next()?, next()?, next()?);
    let filled = vm.maps.then(&mut next).transpose()?;
    let pidfd = descriptors.next();
    let is_stream = sockopt::socket_domain(&stream) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&stream) == Ok(SocketType::STREAM);
    if !is_stream {
        return Err("its connection is no socket".to_owned());
    }
    let features = examine(&descriptor).map_err(|error| error.to_string())?;
    let ledger =
        Ledger::open(ledger, &regions, memory.identity).map_err(|error| error.to_string())?;
    let maps = filled
        .map(|filled| Filled::open(filled, memory.bytes, memory.identity).map(Arc::new))
        .transpose()
        .map_err(|error| error.to_string())?;
    Ok(Kept {
        maps,
        waits_for_set: false,
        vm: Vm {
            number: vm.number,
            pid: vm.pid,
        },
        peer: Peer::from_parts(vm.pid, vm.uid, pidfd),
        stream: UnixStream::from(stream),
        descriptor,
        features: features.or(vm.features.map(Features)),
        regions,
        ledger: Some(Arc::new(ledger)),
    })
}
