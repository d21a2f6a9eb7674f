//! The side that the memory comes to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_pager::{
    Background, Backing, Builder, Engine, Event as PagerEvent, Loss, Mapping, PAGE, Pager,
    SourceError, Stats, WorkingSet,
};
use amdahl_remote::{Connect, Credentials, Remote};
use rustix::io::Errno;

use crate::link::{Line, Link, Patience, Stream};
use crate::plan::destination::{Action, Destination, Event, State};
use crate::recovery::{Await, Back, Outage, Returns, pause};
use crate::session::Session;
use crate::set::PageSet;
use crate::sys;
use crate::wire::{Identity, Message, Pages, Secret, Switch, WireError};
use crate::{Error, recovery};

/// How a memory arrives.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// How long a message may take to come or to be taken, however it trickles.
    pub timeout: Duration,
    /// After the switch-over, how long a page may take, with all tries to connect again.
    pub page_timeout: Duration,
    /// The most bytes of state that are taken.
    pub state_bytes_max: u64,
    /// The host that pages are fetched from after the switch-over: the source's.
    pub host: String,
    /// The name in the source's certificate; `None`: `host`.
    pub name: Option<String>,
    /// Needed unless the source is this host.
    pub credentials: Option<Credentials>,
    /// Who serves faults after the switch-over. A guest of KVM cannot be served by [`Engine::Inline`].
    pub engine: Engine,
    /// Whether pages that nobody touches are fetched along, which ends the dependence on the source.
    pub background: Background,
    /// How the source finds us again when it was away after the switch-over; pages that are touched meanwhile are waited for. `None`: it does not.
    pub recovery: Option<Await>,
}

impl Default for Arrival {
    fn default() -> Arrival {
        Arrival {
            timeout: Duration::from_secs(10),
            page_timeout: Duration::from_secs(10),
            state_bytes_max: 64 << 20,
            host: "127.0.0.1".to_owned(),
            name: None,
            credentials: None,
            engine: Engine::Sharded,
            background: Background::Unlimited,
            recovery: None,
        }
    }
}

/// A memory that is to be taken over: all is here, or can be fetched.
pub struct Offer<S> {
    way: Way<S>,
    /// What the guest knew besides its memory.
    pub state: Vec<u8>,
    missing: PageSet,
    remote: Option<Remote>,
}

/// A memory that was taken over: the guest is to run. Dropped while pages are missing, it makes those deadly to touch.
pub struct Landed<S> {
    way: Way<S>,
    pager: Option<Served>,
    fetched: Option<Stats>,
    outages: u32,
    /// Pages that were to be fetched at the switch-over.
    pub missing_pages: u64,
}

/// Who brings what is missing, and where from.
struct Served {
    pager: Pager,
    remote: Arc<Remote>,
}

struct Way<S> {
    settings: Arrival,
    memory: Arc<Mapping>,
    link: Link<Line<S>>,
    plan: Destination,
    /// Pages of which some content came.
    received: PageSet,
    identity: Identity,
    secret: Secret,
}

impl Arrival {
    /// Takes the rounds of a memory in, up to the offer to take it over. `memory` is as large as the source's, and its content does not matter:
    /// it is given up first.
    ///
    /// # Safety
    /// Nobody else uses the memory until [`Offer::accept`] has returned.
    ///
    /// # Errors
    /// Any [`Error`]: the guest does not run here and never will; the source goes on.
    pub unsafe fn receive<S: Stream>(
        &self,
        memory: &Arc<Mapping>,
        stream: S,
    ) -> Result<Offer<S>, Error> {
        let pages = (memory.len() / PAGE) as u64;
        let mut way = Way {
            settings: self.clone(),
            memory: memory.clone(),
            link: Link::new(Line::First(stream), Patience::new(self.timeout))?,
            plan: Destination::new(),
            received: PageSet::new(pages),
            identity: [0; 16],
            secret: Secret([0; 32]),
        };
        match way.receive() {
            Ok((state, missing, remote)) => Ok(Offer {
                way,
                state,
                missing,
                remote,
            }),
            Err(error) => Err(way.refuse(error)),
        }
    }
}

impl<S: Stream> Way<S> {
    fn say(&mut self, message: &Message) -> Result<(), Error> {
        self.link.send(message)
    }

    /// Nothing comes of it; why.
    fn refuse(&mut self, error: Error) -> Error {
        self.plan.on(Event::Failed);
        if self.plan.state() == State::Refused {
            let why = error.to_string();
            let _ = self.say(&Message::Refused(&why));
        }
        error
    }

    /// What an event leads to, where that is one message at most.
    fn on(&mut self, event: Event) -> Result<(), Error> {
        for action in self.plan.on(event) {
            match action {
                Action::Greet => self.say(&Message::Welcome)?,
                Action::Acknowledge(round) => self.say(&Message::Ack { round })?,
                Action::Promise => self.say(&Message::Prepared)?,
                // Whether that is heard does not matter: the guest is to run. So with thanks.
                Action::Run => drop(self.say(&Message::Running)),
                Action::Thank => drop(self.say(&Message::Done)),
                // Said with what is missing.
                Action::WelcomeBack => {}
                // The caller says so.
                Action::Refuse => return Err(WireError::Unexpected("a message").into()),
                Action::Place | Action::Offer | Action::Stop => {}
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(Vec<u8>, PageSet, Option<Remote>), Error> {
        if self.memory.backing() == Backing::HugeTlb {
            return Err(Error::Config(
                "memory of reserved huge pages cannot be migrated: only pages of 4 KiB are followed",
            ));
        }
        let pages = self.received.room();
        // SAFETY: by the caller of `Arrival::receive`.
        unsafe { sys::give_up(&self.memory, 0..pages) }?;
        if self.memory.backing().is_shared() {
            // A huge page cannot be taken apart there so that some of it is missing. Private memory has them until the switch-over.
            sys::keep_small(&self.memory);
        }
        let mut state = Vec::new();
        let mut missing = PageSet::new(pages);
        let mut missing_end = 0;
        loop {
            let event = match self.link.receive()? {
                Message::Hello {
                    len,
                    identity,
                    secret,
                } => {
                    if len != self.memory.len() as u64 {
                        return Err(Error::Refused(format!(
                            "{len} bytes are sent, and there is room for {}",
                            self.memory.len()
                        )));
                    }
                    (self.identity, self.secret) = (identity, secret);
                    Event::Hello
                }
                Message::Pages(sent) => {
                    if self.plan.state() != State::Receiving {
                        return Err(WireError::Unexpected("pages").into());
                    }
                    place(&self.memory, &mut self.received, &sent)?;
                    Event::Pages
                }
                Message::RoundEnd { round } => Event::RoundEnd { round },
                Message::State(part) => {
                    let room = self
                        .settings
                        .state_bytes_max
                        .saturating_sub(state.len() as u64);
                    if self.plan.state() != State::Receiving || part.len() as u64 > room {
                        return Err(Error::Refused(format!(
                            "the state has more than {} bytes",
                            self.settings.state_bytes_max
                        )));
                    }
                    state.extend_from_slice(part);
                    continue;
                }
                Message::Missing(runs) => {
                    if self.plan.state() != State::Receiving {
                        return Err(WireError::Unexpected("a list of pages").into());
                    }
                    for run in runs {
                        // Rising over all messages.
                        if run.start < missing_end || run.end > pages {
                            return Err(WireError::Field {
                                field: "the start of a run",
                                value: run.start,
                            }
                            .into());
                        }
                        missing_end = run.end;
                        missing.insert(run);
                    }
                    continue;
                }
                Message::Switch(switch) => {
                    self.check(&switch, &state, &missing)?;
                    let remote = self.connect(&switch, &missing)?;
                    self.on(Event::Switch)?;
                    return Ok((state, missing, remote));
                }
                Message::Cancel(why) => {
                    let why = format!("the source goes on by itself: {why}");
                    return Err(Error::Refused(why));
                }
                other => return Err(WireError::Unexpected(other.name()).into()),
            };
            self.on(event)?;
        }
    }

    /// Whether all that the guest needs is here or can be fetched.
    fn check(&self, switch: &Switch, state: &[u8], missing: &PageSet) -> Result<(), Error> {
        let field = |field, value| Err(WireError::Field { field, value }.into());
        if self.plan.state() != State::Receiving {
            return Err(WireError::Unexpected("a switch-over").into());
        }
        if switch.state_bytes != state.len() as u64 {
            return field("the length of the state", switch.state_bytes);
        }
        if switch.state_crc != crc32c::crc32c(state) {
            return Err(WireError::Checksum("the state").into());
        }
        if switch.missing != missing.len() {
            return field("the number of missing pages", switch.missing);
        }
        let mut known = self.received.clone();
        missing.runs().for_each(|run| known.insert(run));
        match known.len() == known.room() {
            true => Ok(()),
            false => field("the number of pages", known.len()),
        }
    }

    fn connect(&self, switch: &Switch, missing: &PageSet) -> Result<Option<Remote>, Error> {
        if missing.len() == 0 {
            return Ok(None);
        }
        let settings = &self.settings;
        let mut connect = Connect::new(address_of(&settings.host, switch.port));
        connect.name = settings.name.clone();
        connect.credentials = settings.credentials.clone();
        connect.secret = Some(self.secret);
        connect.timeout = settings.page_timeout;
        connect.recovery = settings
            .recovery
            .as_ref()
            .map_or(Duration::ZERO, |of| of.within);
        let remote = Remote::connect(connect)?;
        if remote.identity() != self.identity || remote.len() != self.memory.len() as u64 {
            return Err(Error::Remote("another memory is served there".into()));
        }
        Ok(Some(remote))
    }
}

fn address_of(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Puts pages into their places.
fn place(memory: &Mapping, received: &mut PageSet, sent: &Pages) -> Result<(), Error> {
    let end = sent.first + u64::from(sent.count);
    if end > received.room() {
        return Err(WireError::Field {
            field: "the first page",
            value: sent.first,
        }
        .into());
    }
    for (page, content) in sent.each() {
        match content {
            Some(content) => memory.write(page as usize * PAGE, content),
            // What has never come is zero.
            None if received.contains(page) => memory.write(page as usize * PAGE, &[0; PAGE]),
            None => {}
        }
    }
    received.insert(sent.first..end);
    Ok(())
}

impl<S: Stream> Offer<S> {
    /// Bytes of the state and pages that are to be fetched.
    pub fn missing_pages(&self) -> u64 {
        self.missing.len()
    }

    /// Takes the guest over: on return it is to run here, and nowhere else. The source is told that it runs, so whatever can fail comes
    /// before: the VM and its devices are made, from [`state`](Offer::state), and only started afterwards. [`Landed::finish`] should follow soon, beside the guest: the
    /// source waits for a word within its timeout, and does not know what became of the guest without.
    ///
    /// # Errors
    /// Any [`Error`]: the guest must not run here. The source goes on, or says that it does not know.
    pub fn accept(self) -> Result<Landed<S>, Error> {
        let Offer {
            mut way,
            missing,
            remote,
            ..
        } = self;
        match accept(&mut way, &missing, remote) {
            Ok(pager) => Ok(Landed {
                way,
                pager,
                fetched: None,
                outages: 0,
                missing_pages: missing.len(),
            }),
            Err(error) => Err(way.refuse(error)),
        }
    }

    /// Does not take it: the source goes on.
    pub fn reject(mut self, why: &str) {
        self.way.refuse(Error::Guest(why.to_owned()));
    }
}

fn accept<S: Stream>(
    way: &mut Way<S>,
    missing: &PageSet,
    remote: Option<Remote>,
) -> Result<Option<Served>, Error> {
    let pager = match remote {
        None => None,
        Some(remote) => Some(serve(way, missing, remote)?),
    };
    way.on(Event::Accepted)?;
    match way.link.receive()? {
        Message::Commit => {}
        Message::Cancel(why) => {
            let why = format!("the source goes on by itself: {why}");
            return Err(Error::Refused(why));
        }
        other => return Err(WireError::Unexpected(other.name()).into()),
    }
    way.on(Event::Commit)?;
    Ok(pager)
}

/// Threads that fetch what nobody waits for.
const WORKERS: usize = 4;

/// Has the pages that are missing fetched when they are touched.
fn serve<S: Stream>(way: &Way<S>, missing: &PageSet, remote: Remote) -> Result<Served, Error> {
    let remote = Arc::new(remote);
    // A huge page that the kernel puts together where pages are missing would have zeros in their places.
    sys::keep_small(&way.memory);
    for run in missing.runs() {
        // SAFETY: by the caller of `Arrival::receive`; what came of these pages before is old.
        unsafe { sys::give_up(&way.memory, run) }?;
    }
    // What is there would never be fetched.
    if let Some(page) = sys::first_there(&way.memory, missing)? {
        return Err(Error::NotGivenUp { page });
    }
    let mut present = PageSet::all(missing.room());
    missing.runs().for_each(|run| present.remove(run));
    // Not before the commitment: what is being fetched when the source goes on by itself would be waited for. `finish` turns it on.
    let background = match way.settings.background {
        Background::Unlimited => Background::Off,
        other => other,
    };
    let builder: Builder = Pager::builder()
        .mapping(&way.memory, 0)
        .source(remote.clone())
        .engine(way.settings.engine)
        .background(background)
        // The background may be turned on later.
        .workers(WORKERS)
        .present(&WorkingSet::from_runs(present.runs()))
        // The source is patient for so long itself.
        .timeout(2 * way.settings.page_timeout);
    match builder.start() {
        Ok(pager) => Ok(Served { pager, remote }),
        Err(error) => Err(Error::Pager(error.to_string())),
    }
}

impl<S: Stream> Landed<S> {
    /// Pages that are missing now.
    pub fn missing_now(&self) -> usize {
        let pager = self.pager.as_ref();
        pager.map_or(0, |served| served.pager.missing_pages())
    }

    /// What the pager has done; `None` if no page was missing.
    pub fn stats(&self) -> Option<Stats> {
        let now = self.pager.as_ref().map(|served| served.pager.stats());
        now.or_else(|| self.fetched.clone())
    }

    /// How often the source was away while [`finish`](Landed::finish) went on.
    pub fn outages(&self) -> u32 {
        self.outages
    }

    /// Brings the rest, beside the running guest, and tells the source that it is not needed any more. `progress` is told how many pages
    /// are missing. With [`Arrival::recovery`] a source that is away is waited for, also to tell it that.
    ///
    /// # Errors
    /// [`Error::Lost`]: the source is gone, or what it sends is damaged. Who touches those pages is stopped by SIGBUS (a CPU of
    /// KVM returns from `KVM_RUN` with an error): the guest is to be ended. It has seen nothing wrong.
    pub fn finish(&mut self, mut progress: impl FnMut(u64)) -> Result<(), Error> {
        let Some(of) = self.way.settings.recovery.clone() else {
            return self.bring_all(&mut progress, None);
        };
        let (is_over, is_back) = (Arc::default(), Arc::default());
        let session = Session::new(&self.way.identity, &self.way.secret);
        let timeout = self.way.settings.timeout;
        let (to, from) = mpsc::channel();
        thread::scope(|scope| {
            // Also when `progress` panics: the threads are waited for.
            let _end = Over(&is_over);
            let let_in = || recovery::let_in(scope, &of, session, timeout, &is_over, &is_back, to);
            thread::Builder::new()
                .name("migrate-await".to_owned())
                .spawn_scoped(scope, let_in)
                .map_err(|error| Error::System {
                    operation: "a thread",
                    errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
                })?;
            let returns = Returns {
                of: &of,
                from,
                is_back: Arc::clone(&is_back),
            };
            self.bring_all(&mut progress, Some(&returns))
        })
    }

    fn bring_all(
        &mut self,
        progress: &mut dyn FnMut(u64),
        returns: Option<&Returns<'_>>,
    ) -> Result<(), Error> {
        let mut watch = Watch::new(returns);
        let brought = self.bring_missing(progress, &mut watch);
        let all = brought.and_then(|()| {
            self.way.on(Event::AllThere)?;
            self.take_leave(&mut watch)
        });
        self.outages += watch.outages;
        all
    }

    fn bring_missing(
        &mut self,
        progress: &mut dyn FnMut(u64),
        watch: &mut Watch<'_>,
    ) -> Result<(), Error> {
        let Some(served) = self.pager.take() else {
            return Ok(());
        };
        if let Err(error) = bring(&mut self.way, &served, progress, watch) {
            self.way.on(Event::PagesLost)?;
            self.pager = Some(served);
            return Err(error);
        }
        let (stats, missing) = served.pager.finish();
        sys::allow_huge(&self.way.memory);
        let lost = missing + stats.lost_pages;
        self.fetched = Some(stats);
        if lost > 0 {
            self.way.on(Event::PagesLost)?;
            return Err(Error::Lost {
                page: 0,
                pages: usize::try_from(lost).unwrap_or(usize::MAX),
                why: Loss::Stopped,
            });
        }
        Ok(())
    }

    /// Until the source knows that it is not needed any more, or is away for too long. Without recovery it is told once.
    fn take_leave(&mut self, watch: &mut Watch<'_>) -> Result<(), Error> {
        let way = &mut self.way;
        let Some(returns) = watch.returns else {
            return way.on(Event::TimeOver);
        };
        let mut alone = Instant::now();
        way.link.patience.cancel = Some(Arc::clone(&returns.is_back));
        while way.plan.state() != State::Complete {
            if let Some(back) = returns.next() {
                way.take_back(back, None)?;
            }
            watch.look(way.plan.state() == State::Leaving, "the connection is gone");
            match way.plan.state() {
                State::Thanking => {
                    let event = match way.link.receive() {
                        Ok(Message::Farewell) => Event::Heard,
                        // Somebody is back.
                        Err(Error::Cancelled) => continue,
                        Ok(_) | Err(_) => Event::Failed,
                    };
                    alone = Instant::now();
                    way.on(event)?;
                }
                _ if alone.elapsed() >= returns.of.within => way.on(Event::TimeOver)?,
                _ => pause(OFTEN, || returns.is_back.load(Ordering::SeqCst)),
            }
        }
        Ok(())
    }
}

/// Is true when this is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tells of outages.
struct Watch<'a> {
    returns: Option<&'a Returns<'a>>,
    since: Option<Instant>,
    outages: u32,
}

impl<'a> Watch<'a> {
    fn new(returns: Option<&'a Returns<'a>>) -> Watch<'a> {
        Watch {
            returns,
            since: None,
            outages: 0,
        }
    }

    fn look(&mut self, is_away: bool, why: &str) {
        let outage = match (self.since, is_away) {
            (None, true) => {
                self.since = Some(Instant::now());
                self.outages += 1;
                let within = self
                    .returns
                    .map_or(Duration::ZERO, |returns| returns.of.within);
                Outage::Begun {
                    why: why.to_owned(),
                    within,
                }
            }
            (Some(since), false) => {
                self.since = None;
                Outage::Over {
                    lasted: since.elapsed(),
                }
            }
            _ => return,
        };
        if let Some(tell) = self.returns.and_then(|returns| returns.of.tell.as_ref()) {
            tell(&outage);
        }
    }
}

impl<S: Stream> Way<S> {
    /// Goes on with a source that is back, on its connection, with what is missing.
    fn take_back(&mut self, back: Back, served: Option<&Served>) -> Result<(), Error> {
        let patience = Patience {
            cancel: self.link.patience.cancel.take(),
            ..Patience::new(self.settings.timeout)
        };
        self.link = Link::new(Line::Again(back.stream), patience)?;
        let mut missing = 0;
        if let Some(served) = served {
            missing = served.pager.missing_pages() as u64;
            if back.port != 0 {
                // What cannot be named is found out by who is asked for pages.
                let _ = served.remote.redirect(&address_of(&back.there, back.port));
            }
        }
        if self.say(&Message::Resumed { missing }).is_err() {
            return self.on(Event::Failed);
        }
        self.on(Event::Resumed)
    }
}

/// Often enough for the shortest patience.
const OFTEN: Duration = Duration::from_millis(100);
/// For who waits for the last pages.
const SOON: Duration = Duration::from_millis(2);

fn bring<S: Stream>(
    way: &mut Way<S>,
    served: &Served,
    progress: &mut dyn FnMut(u64),
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    let Served { pager, remote } = served;
    let timeout = way.settings.page_timeout;
    let often = (way.settings.timeout / 4).min(OFTEN);
    let mut before = u64::MAX;
    let mut changed = Instant::now();
    let mut said = None;
    pager.start_background();
    loop {
        if let Some(returns) = watch.returns
            && let Some(back) = returns.next()
        {
            way.take_back(back, Some(served))?;
        }
        let missing = pager.missing_pages() as u64;
        // Pages that are asked for are not missing until nothing came of it: what has arrived tells whether it goes on.
        let stats = pager.stats();
        if stats.pages + stats.zero_pages != before {
            (before, changed) = (stats.pages + stats.zero_pages, Instant::now());
            progress(missing);
        }
        let is_away = remote.away().is_some();
        if is_away {
            changed = Instant::now();
        }
        if said.is_none_or(|said: Instant| said.elapsed() >= often) {
            // Whether that is heard does not matter to who waits for no return.
            if way.plan.state() == State::Running
                && way.say(&Message::Progress { missing }).is_err()
                && watch.returns.is_some()
            {
                way.on(Event::Failed)?;
            }
            said = Some(Instant::now());
        }
        if watch.returns.is_some() {
            let is_cut = way.plan.state() == State::Paused;
            let why = if is_cut {
                "the connection is gone"
            } else {
                "no pages come"
            };
            watch.look(is_cut || is_away, why);
        }
        // What is on its way comes in moments, mostly.
        let wait = match missing {
            0 if pager.is_filled() => Duration::ZERO,
            0 => SOON,
            _ => often,
        };
        match pager.next_event(wait) {
            Some(PagerEvent::Lost { page, pages, why }) => {
                return Err(Error::Lost { page, pages, why });
            }
            Some(PagerEvent::NotFetched { page, pages, why }) => {
                let is_final = matches!(why, Loss::Source(SourceError::Gone(_)));
                if is_final || changed.elapsed() > 2 * timeout {
                    return Err(Error::Lost { page, pages, why });
                }
                pager.start_background();
            }
            Some(PagerEvent::Unfilled { .. }) => pager.start_background(),
            Some(_) => {}
            None if pager.is_filled() => return Ok(()),
            None => {}
        }
    }
}
