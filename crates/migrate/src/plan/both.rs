//! Both sides against each other, with everything that can go wrong at any point.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::converge::{Limits, Round};
use super::destination::{self, Destination};
use super::source::{self, Source};

/// What is on the way, with what the pages were when they were sent.
#[derive(Clone, Debug)]
enum Message {
    Hello,
    Welcome,
    Pages(Vec<(usize, u64)>),
    RoundEnd(u32),
    Ack,
    Switch(Vec<usize>),
    Prepared,
    Commit,
    Cancel,
    Refused,
    Running,
    Done,
    Farewell,
}

const PAGES: usize = 12;

/// What the owner of the source sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    Runs,
    Stopped,
}

struct World {
    source: Source,
    destination: Destination,
    /// What is in the memory of each side.
    here: [u64; PAGES],
    there: [Option<u64>; PAGES],
    /// At the destination: pages that are to be fetched.
    missing: Vec<usize>,
    dirty: Vec<usize>,
    serves: bool,
    guest: Guest,
    runs_there: bool,
    /// What the memory was when the guest left.
    left_with: [u64; PAGES],
    to_there: VecDeque<Message>,
    to_here: VecDeque<Message>,
    is_cut: bool,
    /// Another connection can be made.
    is_mended: bool,
    /// Nobody waits for that any longer.
    is_late: bool,
    redials: bool,
    is_source_dead: bool,
    round: u32,
    /// Something that the source has yet to be told, since its own steps take time.
    pending: VecDeque<source::Event>,
    pending_there: VecDeque<destination::Event>,
    was_committed: bool,
}

impl World {
    fn new(limits: Limits, redials: bool) -> World {
        World {
            source: Source::new(limits, redials),
            redials,
            is_mended: false,
            is_late: false,
            destination: Destination::new(),
            here: [1; PAGES],
            there: [None; PAGES],
            missing: Vec::new(),
            dirty: (0..PAGES).collect(),
            serves: false,
            guest: Guest::Runs,
            runs_there: false,
            left_with: [0; PAGES],
            to_there: VecDeque::from([Message::Hello]),
            to_here: VecDeque::new(),
            is_cut: false,
            is_source_dead: false,
            round: 0,
            pending: VecDeque::new(),
            pending_there: VecDeque::new(),
            was_committed: false,
        }
    }

    fn send_dirty(&mut self) -> u64 {
        let dirty = std::mem::take(&mut self.dirty);
        let pages = dirty.iter().map(|&page| (page, self.here[page])).collect();
        self.say(Message::Pages(pages));
        dirty.len() as u64
    }

    fn say(&mut self, message: Message) {
        if !self.is_cut {
            self.to_there.push_back(message);
        }
    }

    fn answer(&mut self, message: Message) {
        if !self.is_cut {
            self.to_here.push_back(message);
        }
    }

    fn source(&mut self, event: source::Event) {
        if self.is_source_dead {
            return;
        }
        for action in self.source.on(event) {
            use source::Action::*;
            match action {
                Copy => {
                    self.send_dirty();
                    self.round += 1;
                    self.say(Message::RoundEnd(self.round));
                }
                Throttle(_) | NotConverging => {}
                Pause => {
                    assert_eq!(self.guest, Guest::Runs);
                    self.guest = Guest::Stopped;
                    self.pending.push_back(source::Event::Paused {
                        state_bytes: 10,
                        dirty_pages: self.dirty.len() as u64,
                    });
                }
                SwitchWithAll => {
                    self.send_dirty();
                    self.left_with = self.here;
                    self.say(Message::Switch(Vec::new()));
                }
                SwitchAndServe => {
                    self.left_with = self.here;
                    self.serves = true;
                    self.say(Message::Switch(self.dirty.clone()));
                }
                Commit => {
                    assert_eq!(self.guest, Guest::Stopped);
                    self.was_committed = true;
                    self.say(Message::Commit);
                }
                Cancel => {
                    self.serves = false;
                    self.say(Message::Cancel);
                }
                Resume => {
                    assert_eq!(self.guest, Guest::Stopped);
                    let refused = self.destination.state() == destination::State::Refused;
                    assert!(
                        !self.was_committed || refused,
                        "who has committed does not go on"
                    );
                    assert!(!self.serves, "what is served is not written");
                    self.guest = Guest::Runs;
                }
                Unknown | Redial => assert_eq!(self.guest, Guest::Stopped),
            }
        }
    }

    fn destination(&mut self, event: destination::Event, pages: &[(usize, u64)]) {
        for action in self.destination.on(event) {
            use destination::Action::*;
            match action {
                Greet => self.answer(Message::Welcome),
                Place => {
                    for &(page, content) in pages {
                        self.there[page] = Some(content);
                    }
                }
                Acknowledge(_) => self.answer(Message::Ack),
                Offer => {
                    for &page in &self.missing {
                        self.there[page] = None;
                    }
                    self.pending_there.push_back(destination::Event::Accepted);
                }
                Promise => self.answer(Message::Prepared),
                Run => {
                    assert!(self.was_committed);
                    assert_eq!(self.guest, Guest::Stopped, "it runs at one side alone");
                    for page in 0..PAGES {
                        match self.there[page] {
                            Some(content) => assert_eq!(content, self.left_with[page]),
                            None => assert!(self.missing.contains(&page)),
                        }
                    }
                    self.runs_there = true;
                    self.answer(Message::Running);
                }
                Thank => self.answer(Message::Done),
                WelcomeBack => assert!(self.runs_there),
                Refuse => {
                    assert!(!self.runs_there);
                    self.answer(Message::Refused);
                }
                Stop => self.runs_there = false,
            }
        }
    }

    /// The source tries to reach the destination again. Who is there runs.
    fn redial(&mut self) {
        use destination::State::*;
        let there = self.destination.state();
        if self.is_mended && matches!(there, Running | Paused | Thanking | Leaving) {
            self.to_here.clear();
            self.to_there.clear();
            self.is_cut = false;
            self.source(source::Event::Resumed);
            self.destination(destination::Event::Resumed, &[]);
        } else if self.is_late {
            self.source(source::Event::TimeOver);
        }
    }

    /// One step of somebody, by `choice`; false if nobody has one.
    fn step(&mut self, choice: u8, refuses: bool) -> bool {
        match choice % 4 {
            0 => {
                if self.guest == Guest::Runs {
                    let page = usize::from(choice / 4) % PAGES;
                    self.here[page] += 1;
                    if !self.dirty.contains(&page) {
                        self.dirty.push(page);
                    }
                }
                true
            }
            1 => {
                if let Some(event) = self.pending.pop_front() {
                    self.source(event);
                    return true;
                }
                if self.source.state() == source::State::Paused {
                    self.redial();
                    return true;
                }
                let Some(message) = self.to_here.pop_front() else {
                    if self.is_cut {
                        self.source(source::Event::Failed);
                    }
                    return !self.is_cut;
                };
                let event = match message {
                    Message::Welcome => source::Event::Welcome,
                    Message::Ack => source::Event::Copied {
                        round: Round {
                            pages: PAGES as u64,
                            bytes: 1 << 20,
                            took: Duration::from_secs(1),
                            sending: Duration::from_secs(1),
                            turnaround: Duration::ZERO,
                            dirty_pages: self.dirty.len() as u64,
                            downtime_estimate: Duration::ZERO,
                        },
                        state_bytes: 10,
                    },
                    Message::Prepared => source::Event::Prepared,
                    Message::Running => source::Event::Running,
                    Message::Done => {
                        self.say(Message::Farewell);
                        source::Event::Done
                    }
                    Message::Refused => source::Event::Refused,
                    _ => source::Event::Failed,
                };
                self.source(event);
                true
            }
            2 => {
                if let Some(event) = self.pending_there.pop_front() {
                    let event = if refuses {
                        destination::Event::Failed
                    } else {
                        event
                    };
                    self.destination(event, &[]);
                    return true;
                }
                let Some(message) = self.to_there.pop_front() else {
                    if self.is_cut {
                        self.destination(destination::Event::Failed, &[]);
                    }
                    return !self.is_cut;
                };
                match message {
                    Message::Hello => self.destination(destination::Event::Hello, &[]),
                    Message::Pages(pages) => {
                        self.destination(destination::Event::Pages, &pages);
                    }
                    Message::RoundEnd(round) => {
                        self.destination(destination::Event::RoundEnd { round }, &[]);
                    }
                    Message::Switch(missing) => {
                        self.missing = missing;
                        self.destination(destination::Event::Switch, &[]);
                    }
                    Message::Commit => self.destination(destination::Event::Commit, &[]),
                    Message::Farewell => self.destination(destination::Event::Heard, &[]),
                    _ => self.destination(destination::Event::Failed, &[]),
                }
                true
            }
            _ => {
                use destination::State::*;
                match self.destination.state() {
                    Running | Paused => {}
                    Thanking | Leaving if !self.redials || self.is_late => {
                        self.destination(destination::Event::TimeOver, &[]);
                        return true;
                    }
                    _ => return true,
                }
                match self.there.iter().position(Option::is_none) {
                    None => self.destination(destination::Event::AllThere, &[]),
                    Some(_) if self.is_source_dead => {
                        self.destination(destination::Event::PagesLost, &[]);
                    }
                    Some(page) => {
                        assert!(self.serves, "who may have to be asked serves");
                        assert_eq!(self.here[page], self.left_with[page]);
                        self.there[page] = Some(self.here[page]);
                    }
                }
                true
            }
        }
    }

    fn check(&self) {
        let runs_here = self.guest == Guest::Runs && !self.is_source_dead;
        assert!(!(runs_here && self.runs_there));
        if self.runs_there {
            assert!(
                self.there
                    .iter()
                    .zip(self.left_with)
                    .all(|(there, left)| there.is_none_or(|there| there == left))
            );
        }
    }
}

/// What breaks, and after how many steps.
#[derive(Clone, Copy, Debug)]
enum Break {
    Nothing,
    Cut(usize),
    /// The connection ends, and what was on its way is lost.
    CutAndLost(usize),
    /// The same, and so many steps later another can be made.
    Passing(usize, usize),
    SourceDies(usize),
    SourceFails(usize),
    DestinationFails(usize),
    OwnerRefuses,
}

fn breaks() -> impl Strategy<Value = Break> {
    prop_oneof![
        Just(Break::Nothing),
        (0usize..120).prop_map(Break::Cut),
        (0usize..120).prop_map(Break::CutAndLost),
        (0usize..120, 1usize..100).prop_map(|(at, lasts)| Break::Passing(at, lasts)),
        (0usize..120).prop_map(Break::SourceDies),
        (0usize..120).prop_map(Break::SourceFails),
        (0usize..120).prop_map(Break::DestinationFails),
        Just(Break::OwnerRefuses),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn whatever_breaks_the_guest_runs_at_one_side_on_its_own_memory_or_at_none(
        choices in prop::collection::vec(any::<u8>(), 0..200),
        post_copy in any::<bool>(),
        downtime in 0u64..80,
        what in breaks(),
        redials in any::<bool>(),
    ) {
        let limits = Limits {
            downtime_max: Duration::from_millis(downtime),
            rounds_max: 6,
            post_copy,
            throttle: true,
        };
        let mut world = World::new(limits, redials);
        let refuses = matches!(what, Break::OwnerRefuses);
        // Then without writing, until nobody has anything to do.
        let rest = (0..600).map(|nth| (nth % 3 + 1) as u8);
        for (nth, choice) in choices.iter().copied().chain(rest).enumerate() {
            match what {
                Break::Cut(at) if at == nth => world.is_cut = true,
                Break::Passing(at, lasts) if at + lasts == nth => world.is_mended = true,
                Break::CutAndLost(at) | Break::Passing(at, _) if at == nth => {
                    world.is_cut = true;
                    world.to_here.clear();
                    world.to_there.clear();
                }
                Break::SourceDies(at) if at == nth => {
                    world.is_cut = true;
                    world.is_source_dead = true;
                    world.serves = false;
                }
                Break::SourceFails(at) if at == nth => world.source(source::Event::Failed),
                Break::DestinationFails(at) if at == nth => {
                    world.destination(destination::Event::Failed, &[]);
                    // It says nothing there any more.
                    use destination::State::{Leaving, Paused};
                    world.is_cut |= matches!(world.destination.state(), Paused | Leaving);
                }
                _ => {}
            }
            world.is_late = nth > choices.len() + 450;
            world.step(choice, refuses);
            world.check();
        }
        let (source, destination) = (world.source.state(), world.destination.state());
        use destination::State as There;
        use source::State as Here;
        // Everything has come to an end.
        prop_assert!(world.is_source_dead || world.source.is_over(), "{source:?} {destination:?}");
        prop_assert!(matches!(destination, There::Complete | There::Refused | There::Stopped), "{destination:?}");
        match (source, destination) {
            _ if world.is_source_dead => {}
            // Before the commitment all is as it was.
            (Here::RolledBack, There::Refused) => prop_assert_eq!(world.guest, Guest::Runs),
            (Here::Complete, There::Complete) => {}
            // Whoever runs is found again.
            (Here::Unknown, There::Complete) if matches!(what, Break::Passing(..)) && redials => prop_assert!(false),
            (Here::Unknown, There::Complete | There::Refused) => prop_assert_eq!(world.guest, Guest::Stopped),
            other => prop_assert!(false, "{other:?}"),
        }
        match what {
            Break::Nothing if post_copy => prop_assert_eq!(source, Here::Complete),
            Break::OwnerRefuses => prop_assert_eq!(source, Here::RolledBack),
            _ => {}
        }
    }
}
