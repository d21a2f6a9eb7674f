//! What the source does about what happens.

use super::converge::{Convergence, Decision, Limits, Rest, Round};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The destination greets.
    Welcome,
    /// A round is in its place, and the guest may have written meanwhile.
    Copied { round: Round, state_bytes: u64 },
    /// The guest stands still.
    Paused { state_bytes: u64, dirty_pages: u64 },
    /// The destination can run.
    Prepared,
    /// It does.
    Running,
    /// It needs nothing more.
    Done,
    /// It says that the guest does not run there and never will.
    Refused,
    /// Anything else: the connection, the kernel, the other side or our owner do not go on.
    Failed,
    /// The destination is there again, on another connection, and runs.
    Resumed,
    /// It was tried for long enough.
    TimeOver,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send what is dirty, as a round.
    Copy,
    /// Ask the guest to write less, by so many percent; 0: as fast as it likes.
    Throttle(u8),
    /// Stop the guest. It writes nothing afterwards.
    Pause,
    /// Send what is dirty, and hand the state over.
    SwitchWithAll,
    /// Serve what is dirty, and hand the state over.
    SwitchAndServe,
    /// Say that the guest will not run here again.
    Commit,
    /// Give up what was begun, and tell the other side that nothing comes of it as soon as the guest runs.
    Cancel,
    /// Let the guest go on here.
    Resume,
    /// Rounds do not help.
    NotConverging,
    /// Whether the guest runs at the other side is not known: go on serving.
    Unknown,
    /// Try to reach the other side again, and go on serving meanwhile.
    Redial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The destination has not said anything.
    Greeting,
    /// Rounds.
    Copying,
    /// The guest is being stopped.
    Pausing,
    /// The destination has all, and has not said that it can run.
    Switching,
    /// The destination may run.
    Committed,
    /// The destination runs and fetches.
    Serving,
    /// The destination may run and fetch; nothing is heard of it, and it is tried to reach it again.
    Paused,
    /// The destination has all.
    Complete,
    /// The guest runs here, as if nothing had been.
    RolledBack,
    /// The guest stands still here, and perhaps everywhere.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Source {
    state: State,
    /// Whether it is tried to reach the destination again.
    redials: bool,
    pub plan: Convergence,
}

impl Source {
    pub fn new(limits: Limits, redials: bool) -> Source {
        Source {
            state: State::Greeting,
            redials,
            plan: Convergence::new(limits),
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Nothing happens any more that matters.
    pub fn is_over(&self) -> bool {
        matches!(
            self.state,
            State::Complete | State::RolledBack | State::Unknown
        )
    }

    fn unthrottled(&self, then: impl IntoIterator<Item = Action>) -> Vec<Action> {
        let throttled = self.plan.throttle() > 0;
        let first = throttled.then_some(Action::Throttle(0));
        first.into_iter().chain(then).collect()
    }

    pub fn on(&mut self, event: Event) -> Vec<Action> {
        use State::*;
        let (state, actions) = match (self.state, event) {
            (Greeting, Event::Welcome) => (Copying, vec![Action::Copy]),
            (Copying, Event::Copied { round, state_bytes }) => {
                match self.plan.after(&round, state_bytes) {
                    Decision::Again => (Copying, vec![Action::Copy]),
                    Decision::Slower(by) => (Copying, vec![Action::Throttle(by), Action::Copy]),
                    Decision::Switch => (Pausing, vec![Action::Pause]),
                    Decision::GiveUp => (
                        RolledBack,
                        self.unthrottled([Action::NotConverging, Action::Cancel]),
                    ),
                }
            }
            (
                Pausing,
                Event::Paused {
                    state_bytes,
                    dirty_pages,
                },
            ) => match self.plan.rest(state_bytes, dirty_pages) {
                Rest::Send => (Switching, vec![Action::SwitchWithAll]),
                Rest::Leave => (Switching, vec![Action::SwitchAndServe]),
                Rest::Retry => (Copying, vec![Action::Resume, Action::Copy]),
                Rest::GiveUp => (
                    RolledBack,
                    self.unthrottled([Action::NotConverging, Action::Cancel, Action::Resume]),
                ),
            },
            (Switching, Event::Prepared) => (Committed, vec![Action::Commit]),
            (Committed, Event::Running) => (Serving, vec![]),
            // All may be there before the word that it runs is.
            (Serving, Event::Done) => (Complete, vec![]),
            // Before the guest was to be stopped it runs.
            (Greeting | Copying, _) => (RolledBack, self.unthrottled([Action::Cancel])),
            // Who is stopped only after all that could read its memory has been given up.
            (Pausing | Switching, _) => (
                RolledBack,
                self.unthrottled([Action::Cancel, Action::Resume]),
            ),
            // Who has promised and refuses has not heard the commitment in time, and never runs.
            (Committed, Event::Refused) => (
                RolledBack,
                self.unthrottled([Action::Cancel, Action::Resume]),
            ),
            // From the commitment on the guest may run at the other side, whatever is said or not said.
            (Committed | Serving, Event::Failed) if self.redials => (Paused, vec![Action::Redial]),
            (Paused, Event::Resumed) => (Serving, vec![]),
            (Committed | Serving | Paused, _) => (Unknown, vec![Action::Unknown]),
            (Complete | RolledBack | Unknown, _) => (self.state, vec![]),
        };
        self.state = state;
        actions
    }
}
