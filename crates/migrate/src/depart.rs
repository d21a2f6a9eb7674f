//! The side that the memory leaves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::{Mapping, MemorySource, PAGE, is_zero};
use amdahl_remote::{Credentials, Serve, Server};

use crate::Error;
use crate::link::{Line, Link, Patience, Stream};
use crate::plan::converge::{Limits, Round};
use crate::plan::source::{Action, Event, Source, State};
use crate::recovery::{Outage, Redial, pause, resume};
use crate::session::Session;
use crate::set::PageSet;
use crate::sys::{self, Tracker};
use crate::wire::{self, Identity, Message, PAGES_MAX, Pages, RUNS_MAX, STATE_MAX, Secret, Switch};

/// Whoever writes the memory: the owner of a VM.
pub trait Guest {
    /// Bytes of the state that [`pause`](Guest::pause) will give, about. Asked after each round.
    fn state_bytes(&self) -> u64 {
        64 << 10
    }

    /// Stops all that writes to the memory. What the guest knows besides its memory.
    ///
    /// # Errors
    /// Why not, for people: the migration is rolled back, and [`resume`](Guest::resume) is called.
    fn pause(&mut self) -> Result<Vec<u8>, String>;

    /// Lets the guest go on, after [`pause`](Guest::pause). Nothing has changed meanwhile.
    fn resume(&mut self);

    /// Asks for less to be written, by about so many percent of the guest's time; 0: as before. A hint.
    fn throttle(&mut self, percent: u8) {
        let _ = percent;
    }
}

/// Somebody who wants to know of rounds.
pub type TellRound = dyn Fn(&Round) + Send + Sync;

/// How a memory leaves.
#[derive(Clone)]
pub struct Departure {
    /// What it may cost.
    pub limits: Limits,
    /// How long a message may take to come or to be taken, however it trickles.
    pub timeout: Duration,
    /// How long the guest may stand still until the other side says that it is ready; afterwards it goes on here. From the commitment on, which
    /// follows, the other side's answer is waited for within `timeout`.
    pub pause_max: Duration,
    /// Where pages are served after the switch-over; port 0 is any that is free.
    pub listen: String,
    /// Who may fetch them. `None` is allowed at addresses of this host alone.
    pub credentials: Option<Credentials>,
    /// Ends the migration, as long as it can be rolled back, when it becomes true, also while the guest stands still. Looked at several times a second.
    pub cancel: Arc<AtomicBool>,
    /// Says that shared memory ([`Backing::Shared`](amdahl_pager::Backing::Shared)) may leave: until [`run`](Departure::run) has returned it is
    /// written by this process and through this mapping alone, and no page of it is given up and then read.
    ///
    /// Writes through other mappings or its file are not noticed, nor is a page that was removed (`MADV_REMOVE`, a hole punched) and then read:
    /// the other side would keep old content. Without that, shared memory is refused.
    pub shared_is_written_here_only: bool,
    /// Is told each round.
    pub progress: Option<Arc<TellRound>>,
    /// How the destination is reached again when the connection ends after the commitment. `None`: it is not.
    pub redial: Option<Redial>,
}

impl Default for Departure {
    fn default() -> Departure {
        Departure {
            limits: Limits::default(),
            timeout: Duration::from_secs(10),
            pause_max: Duration::from_secs(30),
            listen: "127.0.0.1:0".to_owned(),
            credentials: None,
            cancel: Arc::default(),
            shared_is_written_here_only: false,
            progress: None,
            redial: None,
        }
    }
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DepartureStats {
    /// The rounds while the guest ran.
    pub rounds: Vec<Round>,
    /// Bytes that were sent over the connection, all of them.
    pub sent_bytes: u64,
    /// Pages that were sent while the guest stood still.
    pub paused_pages: u64,
    /// Pages that were left to be fetched after the switch-over.
    pub left_pages: u64,
    /// How long the guest was expected to stand still, when that was decided.
    pub downtime_estimate: Duration,
    /// How long it did: from the call of [`Guest::pause`] to the word of the destination that it runs.
    pub downtime: Duration,
    /// The most that the guest was asked to be slowed down by.
    pub throttle_percent: u8,
    /// How often the destination was away after the switch-over, up to now.
    pub outages: u32,
}

impl DepartureStats {
    /// Pages a second that the guest wrote during the last round. A page counts once.
    pub fn dirty_pages_per_second(&self) -> f64 {
        self.rounds.last().map_or(0.0, |round| {
            round.dirty_pages as f64 / round.took.as_secs_f64().max(1e-9)
        })
    }
}

/// A memory that has left: the destination runs. Its content is served until this is dropped, and must not change until then.
pub struct Departed<S> {
    run: Run<S>,
    server: Option<Served>,
    unknown: Option<Error>,
    session: Session,
    redial: Option<Redial>,
    timeout: Duration,
    /// Why nothing is heard of the destination, which is to be reached again.
    cut: Option<Error>,
}

/// Pages that are served.
struct Served {
    serve: Serve,
    server: Server,
}

impl Served {
    fn new(serve: Serve, at: &str) -> Result<Served, Error> {
        let server = Server::start(at, serve.clone())?;
        Ok(Served { serve, server })
    }

    /// Where, for who comes to an address of this host; it may not have been one before.
    fn port_at(&mut self, at: &str) -> Result<u16, Error> {
        let is_there = at
            .parse()
            .is_ok_and(|at: SocketAddr| at.ip() == self.server.address().ip());
        if !is_there {
            *self = Served::new(self.serve.clone(), at)?;
        }
        Ok(self.server.address().port())
    }
}

struct Run<S> {
    link: Link<Line<S>>,
    plan: Source,
    stats: DepartureStats,
}

impl Departure {
    /// Sends the memory to who is at the other end of `stream`, while the guest runs, and switches over. On return the guest has
    /// stopped here for good, and runs there.
    ///
    /// # Safety
    /// As long as the guest is paused, and as long as what is returned lives, nobody writes to the memory or gives pages of it up. What
    /// [`shared_is_written_here_only`](Departure::shared_is_written_here_only) says is true.
    ///
    /// # Errors
    /// Any [`Error`]: nothing has changed, the guest runs here.
    /// Where it is not known whether the guest runs there, this is no error: see [`Departed::wait`].
    pub unsafe fn run<S: Stream>(
        &self,
        memory: &Arc<Mapping>,
        stream: S,
        guest: &mut dyn Guest,
    ) -> Result<Departed<S>, Error> {
        if memory.file().is_some() && !self.shared_is_written_here_only {
            return Err(Error::Config(
                "shared memory can be written from elsewhere, which nobody would notice: use private memory, or say that it is not (shared_is_written_here_only)",
            ));
        }
        let pages = (memory.len() / PAGE) as u64;
        let (identity, secret) = (sys::random()?, Secret(sys::random()?));
        let mut way = Way {
            settings: self,
            memory,
            identity,
            secret,
            guest,
            tracker: None,
            dirty: PageSet::all(pages),
            there: PageSet::new(pages),
            held: PageSet::new(pages),
            rest: (0, pages),
            paused: None,
            state: Vec::new(),
            server: None,
            round_begun: Instant::now(),
            sent_before: 0,
            round_pages: 0,
            run: Run {
                link: Link::new(
                    Line::First(stream),
                    Patience {
                        cancel: Some(self.cancel.clone()),
                        ..Patience::new(self.timeout)
                    },
                )?,
                plan: Source::new(self.limits, self.redial.is_some()),
                stats: DepartureStats::default(),
            },
        };
        let mut next = way.greet();
        let mut reason = None;
        let (mut unknown, mut cut) = (None, None);
        loop {
            let event = next.unwrap_or_else(|error| {
                let refused = matches!(error, Error::Refused(_));
                reason = Some(error);
                if refused {
                    Event::Refused
                } else {
                    Event::Failed
                }
            });
            next = Ok(event);
            let actions = way.run.plan.on(event);
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Resume => {
                        way.paused = None;
                        way.run.link.patience.until = None;
                        way.guest.resume();
                    }
                    Action::Throttle(percent) => {
                        let most = &mut way.run.stats.throttle_percent;
                        *most = percent.max(*most);
                        way.guest.throttle(percent);
                    }
                    Action::NotConverging => {
                        let (state_bytes, dirty_pages) = way.rest;
                        reason = Some(Error::NotConverging {
                            rounds: way.run.plan.plan.rounds(),
                            dirty_pages,
                            estimate: way.run.plan.plan.downtime(state_bytes, dirty_pages),
                        });
                    }
                    Action::Cancel => {
                        // Nobody reads any more when the guest writes again. The other side is told when the guest runs: that may take as
                        // long as the other side likes.
                        if let Some(server) = way.server.take() {
                            server.server.finish();
                        }
                        way.tracker = None;
                    }
                    Action::Unknown => unknown = reason.take(),
                    Action::Redial => cut = reason.take(),
                    Action::Copy => next = way.copy(),
                    Action::Pause => next = way.pause(),
                    Action::SwitchWithAll => next = way.switch(false),
                    Action::SwitchAndServe => next = way.switch(true),
                    Action::Commit => next = way.commit(),
                }
            }
            if way.run.plan.is_over() || way.run.plan.state() == State::Paused {
                break;
            }
        }
        way.run.stats.sent_bytes = way.run.link.sent;
        if way.run.plan.state() == State::RolledBack {
            let reason = reason.unwrap_or(Error::Cancelled);
            way.run.link.patience = Patience::new(self.timeout);
            let _ = way.run.link.send(&Message::Cancel(&reason.to_string()));
            return Err(reason);
        }
        way.run.link.patience = Patience::new(self.timeout);
        Ok(Departed {
            run: way.run,
            server: way.server,
            unknown,
            session: Session::new(&identity, &secret),
            redial: self.redial.clone(),
            timeout: self.timeout,
            cut,
        })
    }
}

/// A departure on its way.
struct Way<'a, S> {
    settings: &'a Departure,
    memory: &'a Arc<Mapping>,
    identity: Identity,
    secret: Secret,
    guest: &'a mut dyn Guest,
    tracker: Option<Tracker>,
    dirty: PageSet,
    /// Pages that could hold anything at the last look; the others are zeros.
    there: PageSet,
    /// Pages that were last sent as something else than zeros.
    held: PageSet,
    /// Bytes of state and pages that are left, as they were last counted.
    rest: (u64, u64),
    paused: Option<Instant>,
    state: Vec<u8>,
    server: Option<Served>,
    round_begun: Instant,
    sent_before: u64,
    round_pages: u64,
    run: Run<S>,
}

impl<S: Stream> Run<S> {
    fn say(&mut self, message: &Message) -> Result<(), Error> {
        let sent = self.link.send(message);
        // Who refuses says so before it closes: that is the better reason.
        sent.map_err(|error| match error {
            Error::Cut(_) => match self.hear() {
                Err(refused @ Error::Refused(_)) => refused,
                _ => error,
            },
            error => error,
        })
    }

    fn hear(&mut self) -> Result<Message<'_>, Error> {
        match self.link.receive()? {
            Message::Refused(why) => Err(Error::Refused(why.to_owned())),
            message => Ok(message),
        }
    }

    /// That message, or an error.
    fn expect(&mut self, expected: &Message) -> Result<(), Error> {
        let heard = self.hear()?;
        match heard == *expected {
            true => Ok(()),
            false => Err(wire::WireError::Unexpected(heard.name()).into()),
        }
    }
}

impl<S: Stream> Way<'_, S> {
    /// Whether to go on, between two messages.
    fn check(&self) -> Result<(), Error> {
        self.run.link.patience.check(Instant::now())
    }

    fn greet(&mut self) -> Result<Event, Error> {
        self.run.say(&Message::Hello {
            len: self.memory.len() as u64,
            identity: self.identity,
            secret: self.secret,
        })?;
        self.run.expect(&Message::Welcome)?;
        let tracker = Tracker::new(self.memory)?;
        self.there = tracker.there()?;
        self.tracker = Some(tracker);
        Ok(Event::Welcome)
    }

    /// Sends what is dirty.
    fn send_dirty(&mut self) -> Result<(), Error> {
        let pages = self.dirty.room();
        let dirty = std::mem::replace(&mut self.dirty, PageSet::new(pages));
        let mut content = Vec::with_capacity(PAGES_MAX * PAGE);
        for run in dirty.runs() {
            let mut at = run.start;
            while at < run.end {
                self.check()?;
                let end = (at + PAGES_MAX as u64).min(run.end);
                content.clear();
                let mut zeros = 0;
                for page in at..end {
                    let before = content.len();
                    content.resize(before + PAGE, 0);
                    // What is not there would be allocated by reading, if it is shared.
                    if self.there.contains(page) {
                        self.memory
                            .read(page as usize * PAGE, &mut content[before..]);
                    }
                    if is_zero(&content[before..]) {
                        zeros |= 1 << (page - at);
                        content.truncate(before);
                        self.held.remove(page..page + 1);
                    } else {
                        self.held.insert(page..page + 1);
                    }
                }
                self.run.say(&Message::Pages(Pages {
                    first: at,
                    count: (end - at) as u32,
                    zeros,
                    content: &content,
                }))?;
                at = end;
            }
        }
        Ok(())
    }

    /// Looks what was written since the last look, and what was given up.
    fn look(&mut self) -> Result<(), Error> {
        let tracker = self.tracker.as_ref().expect("greeted");
        tracker.written(&mut self.dirty)?;
        // In this order: what is not there now and is written afterwards is told by the next look.
        self.there = tracker.there()?;
        // Pages that are given up are not told as written: the kernel passes over what has no page table, or an empty entry in one.
        self.dirty.insert_difference(&self.held, &self.there);
        Ok(())
    }

    fn copy(&mut self) -> Result<Event, Error> {
        self.check()?;
        self.round_begun = Instant::now();
        self.sent_before = self.run.link.sent;
        let spent_before = self.run.link.spent;
        self.round_pages = self.dirty.len();
        let number = self.run.stats.rounds.len() as u32 + 1;
        self.send_dirty()?;
        self.run.say(&Message::RoundEnd { round: number })?;
        let asked = Instant::now();
        self.run.expect(&Message::Ack { round: number })?;
        let turnaround = asked.elapsed();
        let took = self.round_begun.elapsed();
        let state_bytes = self.guest.state_bytes();
        self.look()?;
        self.rest = (state_bytes, self.dirty.len());
        let mut round = Round {
            pages: self.round_pages,
            bytes: self.run.link.sent - self.sent_before,
            took,
            sending: self.run.link.spent - spent_before,
            turnaround,
            dirty_pages: self.dirty.len(),
            downtime_estimate: Duration::ZERO,
        };
        round.downtime_estimate = self.run.plan.plan.downtime_after(&round, state_bytes);
        self.run.stats.rounds.push(round);
        if let Some(tell) = &self.settings.progress {
            tell(&round);
        }
        self.check()?;
        Ok(Event::Copied { round, state_bytes })
    }

    fn pause(&mut self) -> Result<Event, Error> {
        let now = Instant::now();
        self.paused = Some(now);
        let pause_max = self.settings.pause_max;
        // As good as for ever, where there is no such time.
        self.run.link.patience.until = now.checked_add(pause_max).map(|until| (until, pause_max));
        self.state = self.guest.pause().map_err(Error::Guest)?;
        self.look()?;
        let (state_bytes, dirty_pages) = (self.state.len() as u64, self.dirty.len());
        self.rest = (state_bytes, dirty_pages);
        self.run.stats.downtime_estimate = self.run.plan.plan.downtime(state_bytes, dirty_pages);
        Ok(Event::Paused {
            state_bytes,
            dirty_pages,
        })
    }

    fn switch(&mut self, serves: bool) -> Result<Event, Error> {
        let (mut missing, mut port) = (0, 0);
        if serves {
            // What was given up is told now: zeros cost little, and to read them later would allocate them.
            let left = std::mem::replace(&mut self.dirty, PageSet::new(self.there.room()));
            self.dirty.insert_difference(&left, &self.there);
            self.send_dirty()?;
            let mut none = PageSet::all(self.there.room());
            left.runs().for_each(|run| none.remove(run));
            self.dirty.insert_difference(&self.there, &none);
            missing = self.dirty.len();
            // SAFETY: the guest is paused until the server has been dropped, and the caller answers for the rest.
            let source = unsafe { MemorySource::of_mapping(self.memory.clone()) };
            let len = self.memory.len() as u64;
            let mut serve = Serve::new(Arc::new(source), len, self.identity);
            serve.secret = Some(self.secret);
            serve.credentials = self.settings.credentials.clone();
            let served = Served::new(serve, &self.settings.listen)?;
            port = served.server.address().port();
            self.server = Some(served);
            let runs: Vec<_> = self.dirty.runs().collect();
            for runs in runs.chunks(RUNS_MAX) {
                self.run.say(&Message::Missing(runs.to_vec()))?;
            }
            self.run.stats.left_pages = missing;
        } else {
            self.run.stats.paused_pages = self.dirty.len();
            self.send_dirty()?;
        }
        let state = std::mem::take(&mut self.state);
        for part in state.chunks(STATE_MAX) {
            self.run.say(&Message::State(part))?;
        }
        self.run.say(&Message::Switch(Switch {
            state_bytes: state.len() as u64,
            state_crc: crc32c::crc32c(&state),
            missing,
            port,
        }))?;
        self.run.expect(&Message::Prepared)?;
        self.check()?;
        // Nothing is written any more.
        Ok(Event::Prepared)
    }

    fn commit(&mut self) -> Result<Event, Error> {
        // There is no way back.
        self.run.link.patience = Patience::new(self.settings.timeout);
        self.run.say(&Message::Commit)?;
        self.run.expect(&Message::Running)?;
        self.run.stats.downtime = self
            .paused
            .map_or(Duration::ZERO, |paused| paused.elapsed());
        self.tracker = None;
        Ok(Event::Running)
    }
}

impl<S: Stream> Departed<S> {
    /// What was done.
    pub fn stats(&self) -> &DepartureStats {
        &self.run.stats
    }

    /// Whether it is not known that the destination runs. It may be found out by [`wait`](Departed::wait).
    pub fn is_unknown(&self) -> bool {
        self.unknown.is_some() || self.cut.is_some()
    }

    /// Connections over which pages are fetched now. With none for long, and after [`Error::Unknown`], nobody fetches any.
    pub fn connections(&self) -> usize {
        let server = self.server.as_ref();
        server.map_or(0, |served| served.server.stats().connections)
    }

    /// Goes on serving pages after [`Error::Unknown`], for the other side may run and need what is here: until nobody has been connected for so long, or
    /// `is_over`.
    pub fn serve_on(&self, alone: Duration, is_over: impl Fn() -> bool) {
        let mut seen = Instant::now();
        while self.stats().left_pages > 0 && !is_over() && seen.elapsed() < alone {
            if self.connections() > 0 {
                seen = Instant::now();
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until the destination needs nothing more: then the memory can be given up. `progress` is told how many pages it lacks.
    ///
    /// # Errors
    /// [`Error::Unknown`]: nothing is heard of the destination any more, and it was tried to reach it again ([`Departure::redial`]). It may run, and may be fetching pages still, which is
    /// possible until this is dropped. The guest must not go on here unless it is known from there that it does not run there.
    pub fn wait(&mut self, mut progress: impl FnMut(u64)) -> Result<(), Error> {
        if let Some(why) = &self.unknown {
            return Err(Error::Unknown(Box::new(why.clone())));
        }
        while !self.run.plan.is_over() {
            if let Some(why) = self.cut.take() {
                match self.recover(&why) {
                    Some(missing) => {
                        self.run.plan.on(Event::Resumed);
                        progress(missing);
                    }
                    None => return Err(self.in_doubt(Event::TimeOver, why)),
                }
                continue;
            }
            let heard = match self.run.hear() {
                Ok(Message::Progress { missing }) => Ok(Some(missing)),
                Ok(Message::Done) => Ok(None),
                Ok(other) => Err(wire::WireError::Unexpected(other.name()).into()),
                Err(error) => Err(error),
            };
            match heard {
                Ok(Some(missing)) => progress(missing),
                Ok(None) => {
                    self.run.plan.on(Event::Done);
                    // Whether that is heard matters to who waits for it alone.
                    let _ = self.run.link.send(&Message::Farewell);
                }
                Err(error @ Error::Refused(_)) => {
                    return Err(self.in_doubt(Event::Refused, error));
                }
                Err(error) => match self.run.plan.on(Event::Failed)[..] {
                    [Action::Redial] => self.cut = Some(error),
                    _ => return Err(self.in_doubt(Event::Failed, error)),
                },
            }
        }
        Ok(())
    }

    fn in_doubt(&mut self, event: Event, why: Error) -> Error {
        self.run.plan.on(event);
        self.unknown = Some(why.clone());
        Error::Unknown(Box::new(why))
    }

    /// Tries to reach the destination again: how many pages it lacks.
    fn recover(&mut self, why: &Error) -> Option<u64> {
        let redial = self.redial.clone()?;
        let tell = |outage| {
            if let Some(tell) = &redial.tell {
                tell(&outage);
            }
        };
        let within = redial.within;
        self.run.stats.outages += 1;
        tell(Outage::Begun {
            why: why.to_string(),
            within,
        });
        let begun = Instant::now();
        let mut step = REDIAL_MIN;
        loop {
            let left = within.saturating_sub(begun.elapsed());
            if left.is_zero() || redial.give_up.load(Ordering::Relaxed) {
                return None;
            }
            if let Ok(missing) = self.resume(&redial, left) {
                let lasted = begun.elapsed();
                tell(Outage::Over { lasted });
                return Some(missing);
            }
            let left = within.saturating_sub(begun.elapsed());
            pause(step.min(left), || redial.give_up.load(Ordering::Relaxed));
            step = (2 * step).min(REDIAL_MAX);
        }
    }

    fn resume(&mut self, redial: &Redial, left: Duration) -> Result<u64, Error> {
        let timeout = self.timeout.min(left);
        let connection = (redial.connect)(timeout)?;
        let patience = Patience {
            cancel: Some(redial.give_up.clone()),
            ..Patience::new(timeout)
        };
        let mut link = Link::new(Line::Again(connection.stream), patience)?;
        let missing = resume(&mut link, &self.session, || match &mut self.server {
            None => Ok(0),
            Some(served) => served.port_at(&connection.here),
        })?;
        link.patience = Patience::new(self.timeout);
        self.run.link = link;
        Ok(missing)
    }
}

/// The first pause between two tries to reach the destination, and the longest.
const REDIAL_MIN: Duration = Duration::from_millis(50);
const REDIAL_MAX: Duration = Duration::from_secs(1);
