//! What the destination does about what happens.

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The source greets, with a memory that fits.
    Hello,
    /// Pages came.
    Pages,
    /// A round is over.
    RoundEnd { round: u32 },
    /// All was said, and it is all there or can be fetched.
    Switch,
    /// Our owner can run the guest, and pages that are missing are served.
    Accepted,
    /// The source will not run again.
    Commit,
    /// Nothing is missing.
    AllThere,
    /// Pages can be had no more.
    PagesLost,
    /// Anything else: the connection, the other side or our owner do not go on.
    Failed,
    /// The source is there again, on another connection.
    Resumed,
    /// The source knows that it is not needed any more.
    Heard,
    /// Whether the source knows that is waited for no longer.
    TimeOver,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say welcome.
    Greet,
    /// Put the pages that came into their places.
    Place,
    /// Say that the round is in its place.
    Acknowledge(u32),
    /// Ask our owner whether it can run that state.
    Offer,
    /// Say that the guest can run.
    Promise,
    /// Let the guest run, and say so.
    Run,
    /// Say that the source is not needed any more.
    Thank,
    /// Say that it goes on from there.
    WelcomeBack,
    /// Tell the other side why, if it hears it. The guest never runs here.
    Refuse,
    /// The guest cannot go on.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody has greeted.
    Waiting,
    /// Rounds, then what the switch-over needs.
    Receiving,
    /// Our owner is asked.
    Preparing,
    /// The source has our word.
    Promised,
    /// The guest runs; pages may be missing.
    Running,
    /// The same, and the source says and hears nothing.
    Paused,
    /// The guest runs; no page is missing, which the source has been told.
    Thanking,
    /// The guest runs; no page is missing, which the source cannot be told.
    Leaving,
    /// The guest runs; none are.
    Complete,
    /// The guest has never run here.
    Refused,
    /// The guest ran here, and cannot go on.
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Destination(State);

impl Destination {
    pub fn new() -> Destination {
        Destination(State::Waiting)
    }

    pub fn state(&self) -> State {
        self.0
    }

    pub fn on(&mut self, event: Event) -> Vec<Action> {
        use State::*;
        let (state, actions) = match (self.0, event) {
            (Waiting, Event::Hello) => (Receiving, vec![Action::Greet]),
            (Receiving, Event::Pages) => (Receiving, vec![Action::Place]),
            (Receiving, Event::RoundEnd { round }) => (Receiving, vec![Action::Acknowledge(round)]),
            (Receiving, Event::Switch) => (Preparing, vec![Action::Offer]),
            (Preparing, Event::Accepted) => (Promised, vec![Action::Promise]),
            (Promised, Event::Commit) => (Running, vec![Action::Run]),
            (Running, Event::AllThere) => (Thanking, vec![Action::Thank]),
            (Paused, Event::AllThere) => (Leaving, vec![]),
            (Running | Paused, Event::PagesLost) => (Stopped, vec![Action::Stop]),
            (Running, Event::Failed) => (Paused, vec![]),
            (Thanking, Event::Failed) => (Leaving, vec![]),
            // Also where the end of the connection before has not been noticed.
            (Running | Paused, Event::Resumed) => (Running, vec![Action::WelcomeBack]),
            (Thanking | Leaving, Event::Resumed) => {
                (Thanking, vec![Action::WelcomeBack, Action::Thank])
            }
            (Thanking, Event::Heard) => (Complete, vec![]),
            (Thanking | Leaving, Event::TimeOver) => (Complete, vec![]),
            // Nothing that is said here is needed any more.
            (Running | Paused | Thanking | Leaving, _) => (self.0, vec![]),
            (Waiting | Receiving | Preparing | Promised, _) => (Refused, vec![Action::Refuse]),
            (Complete | Refused | Stopped, _) => (self.0, vec![]),
        };
        self.0 = state;
        actions
    }
}
