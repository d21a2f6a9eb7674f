//! Who serves when one process is replaced by another, or stands by for it. Pure: events in, actions out.
//!
//! What each side believes of the other may be wrong: a connection can end while both live. So nobody serves by belief: who serves has the
//! turn of an [`Arbiter`](super::Arbiter), which is given back by its word or, by the kernel, at its death, and which only those take that are
//! among the [`Heirs`]. Here is when each side tries.

/// Who may take the turn when it is free, by their numbers: the second only if the first is no more. 0 is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Heirs {
    first: u32,
    second: u32,
}

/// Where somebody is in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The turn is its, when it is free.
    Next,
    /// Somebody lives who comes before.
    Later,
    /// It is not in the line.
    Never,
}

impl Heirs {
    /// These, without gaps.
    pub fn new(first: u32, second: u32) -> Heirs {
        match first {
            0 => Heirs {
                first: second,
                second: 0,
            },
            _ => Heirs { first, second },
        }
    }

    /// The first.
    pub fn first(self) -> u32 {
        self.first
    }

    /// In one word, so that whoever changes them is never killed in between.
    pub fn bits(self) -> u64 {
        u64::from(self.first) << 32 | u64::from(self.second)
    }

    /// Of such a word.
    pub fn from_bits(bits: u64) -> Heirs {
        Heirs {
            first: (bits >> 32) as u32,
            second: bits as u32,
        }
    }

    /// Those who are left when a member has taken the turn.
    pub fn after(self, member: u32) -> Heirs {
        match member == self.first {
            true => Heirs::new(self.second, 0),
            false => Heirs::default(),
        }
    }

    /// Where a member is, if those live of whom that is said.
    pub fn rank(self, member: u32, is_present: impl Fn(u32) -> bool) -> Rank {
        match member {
            0 => Rank::Never,
            _ if member == self.first => Rank::Next,
            _ if member == self.second && self.first != 0 && is_present(self.first) => Rank::Later,
            _ if member == self.second => Rank::Next,
            _ => Rank::Never,
        }
    }
}

/// The one that serves, and may be asked to give that up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Giver {
    /// It serves.
    Serving,
    /// It was asked, and ends serving, without having given its word.
    Pausing,
    /// It has given its word and the turn.
    Given,
    /// It has taken its word back, and waits for the turn.
    Reclaiming,
    /// Another serves. Nothing is left to do.
    Done,
}

/// What happens to a [`Giver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiverEvent {
    /// The other asks.
    Asked,
    /// Nothing is served any more, and all that the other needs is written down.
    Paused,
    /// It is not possible to end serving now.
    CannotPause,
    /// The other serves.
    Mine,
    /// The other's connection has ended, and perhaps it with it.
    Left,
    /// The other has said nothing for too long.
    Silent,
    /// The word was taken back before the other confirmed.
    Revoked,
    /// The other had confirmed.
    TooLate,
    /// The turn is ours again.
    Reclaimed,
    /// The other is no more, and a third one has the turn.
    Taken,
}

/// What a [`Giver`] has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiverAction {
    /// End serving, and say whether that was possible.
    Pause,
    /// Give the turn, and say so.
    SayYours,
    /// Say that it is not given.
    SayAbort,
    /// Serve again.
    Resume,
    /// Take the word back, and say whether that was possible.
    Revoke,
    /// End the other's process, and wait for the turn; say who has it.
    Reclaim,
    /// End: without touching the memory.
    Exit,
}

impl Giver {
    /// What follows from an event; what cannot be in a state is passed over.
    pub fn on(&mut self, event: GiverEvent) -> &'static [GiverAction] {
        use GiverAction as Do;
        use GiverEvent as On;
        let (next, actions): (Giver, &[Do]) = match (*self, event) {
            (Giver::Serving, On::Asked) => (Giver::Pausing, &[Do::Pause]),
            (Giver::Pausing, On::Paused) => (Giver::Given, &[Do::SayYours]),
            (Giver::Pausing, On::CannotPause) => (Giver::Serving, &[Do::SayAbort, Do::Resume]),
            // It has no word of ours.
            (Giver::Pausing, On::Left) => (Giver::Serving, &[Do::Resume]),
            (Giver::Given, On::Mine | On::TooLate) => (Giver::Done, &[Do::Exit]),
            // It may serve.
            (Giver::Given, On::Left | On::Silent) => (Giver::Given, &[Do::Revoke]),
            (Giver::Given, On::Revoked) => (Giver::Reclaiming, &[Do::Reclaim]),
            (Giver::Reclaiming, On::Reclaimed) => (Giver::Serving, &[Do::Resume]),
            (Giver::Reclaiming, On::Taken) => (Giver::Done, &[Do::Exit]),
            (same, _) => (same, &[]),
        };
        *self = next;
        actions
    }
}

/// The one that stands by, or asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Taker {
    /// It has what is needed, and waits.
    Holding,
    /// It has asked.
    Asking,
    /// It tries to have the turn.
    Claiming,
    /// It serves.
    Serving,
    /// It will never serve in this line.
    Over,
}

/// What happens to a [`Taker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakerEvent {
    /// It is to take over now.
    Wanted,
    /// The other has given its word.
    Yours,
    /// The other goes on: it cannot, or will not.
    Abort,
    /// There is nothing to take over, and will not be.
    Released,
    /// The other's connection has ended.
    Left,
    /// The turn is ours.
    Claimed,
    /// It never will be.
    Refused,
}

/// What a [`Taker`] has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakerAction {
    /// Ask.
    SayTake,
    /// Claim the turn, until it is known.
    Claim,
    /// Serve.
    Serve,
    /// Confirm that it serves and say so, after that is so; end if the word was taken back.
    SayMine,
    /// Look for another that serves.
    Again,
    /// End: without touching the memory.
    Exit,
}

impl Taker {
    /// What follows from an event.
    pub fn on(&mut self, event: TakerEvent) -> &'static [TakerAction] {
        use TakerAction as Do;
        use TakerEvent as On;
        let (next, actions): (Taker, &[Do]) = match (*self, event) {
            (Taker::Holding, On::Wanted) => (Taker::Asking, &[Do::SayTake]),
            (Taker::Asking, On::Yours) | (Taker::Holding | Taker::Asking, On::Left) => {
                (Taker::Claiming, &[Do::Claim])
            }
            (Taker::Claiming, On::Claimed) => (Taker::Serving, &[Do::Serve, Do::SayMine]),
            (Taker::Claiming, On::Refused) => (Taker::Over, &[Do::Again]),
            (Taker::Holding | Taker::Asking, On::Abort | On::Released) => {
                (Taker::Over, &[Do::Exit])
            }
            (same, _) => (same, &[]),
        };
        *self = next;
        actions
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Word {
        Take,
        Yours,
        Mine,
        Abort,
    }

    /// The numbers of the one that takes over, and of the one that stands by; the one that serves at first has 0.
    const HEIR: usize = 1;
    const STANDBY: usize = 2;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Process {
        lives: bool,
        /// Acts on the memory: not the same as what it believes.
        serves: bool,
        /// Held up: it does nothing. Ends only by being killed.
        hangs: bool,
        /// As one that takes over.
        taker: Taker,
        /// Serves by a word, and has not confirmed that.
        confirms: bool,
        /// Serves for good, and takes new VMs when it has put others out of the line, who do not hold those.
        adopts: bool,
        /// Its connection with the giver.
        is_connected: bool,
        heard: VecDeque<Word>,
    }

    /// All three, what is on its way between them, and the arbiter.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        giver: Giver,
        is_pausing: bool,
        /// Has taken its word back and kills.
        kills: bool,
        all: [Process; 3],
        turn: Option<usize>,
        heirs: Heirs,
        given: usize,
        has_word: [bool; 3],
        /// The giver has not dropped it.
        standby_is_followed: bool,
    }

    impl World {
        fn dies(&mut self, who: usize) {
            let process = &mut self.all[who];
            (process.lives, process.serves) = (false, false);
            (process.confirms, process.adopts) = (false, false);
            process.heard.clear();
            if self.turn == Some(who) {
                self.turn = None;
            }
        }

        fn standby(&self) -> u32 {
            match self.standby_is_followed {
                true => STANDBY as u32,
                false => 0,
            }
        }

        fn giver_on(&mut self, event: GiverEvent) {
            let mut events = VecDeque::from([event]);
            while let Some(event) = events.pop_front() {
                let mut giver = self.giver;
                for action in giver.on(event) {
                    match action {
                        GiverAction::Pause => self.is_pausing = true,
                        GiverAction::SayYours => {
                            assert!(!self.all[0].serves);
                            self.given = HEIR;
                            self.heirs = Heirs::new(HEIR as u32, self.standby());
                            self.turn = None;
                            self.all[HEIR].heard.push_back(Word::Yours);
                        }
                        GiverAction::SayAbort => self.all[HEIR].heard.push_back(Word::Abort),
                        GiverAction::Resume => {
                            self.is_pausing = false;
                            self.all[0].serves = true;
                        }
                        GiverAction::Revoke => events.push_back(match self.given == HEIR {
                            true => GiverEvent::Revoked,
                            false => GiverEvent::TooLate,
                        }),
                        GiverAction::Reclaim => (self.kills, self.given) = (true, 0),
                        GiverAction::Exit => {
                            assert!(!self.all[0].serves);
                            self.dies(0);
                        }
                    }
                }
                self.giver = giver;
            }
        }

        fn taker_on(&mut self, who: usize, event: TakerEvent) {
            self.has_word[who] |= event == TakerEvent::Yours;
            let mut taker = self.all[who].taker;
            for action in taker.on(event) {
                match action {
                    TakerAction::SayTake => self.all[0].heard.push_back(Word::Take),
                    // As long as it is in that state.
                    TakerAction::Claim => {}
                    TakerAction::Serve => self.all[who].serves = true,
                    // By a death it is for good at once.
                    TakerAction::SayMine => {
                        let is_awaited = self.has_word[who];
                        self.all[who].confirms = is_awaited;
                        self.all[who].adopts = !is_awaited;
                    }
                    // Elsewhere it is another member.
                    TakerAction::Again | TakerAction::Exit => {
                        assert!(!self.all[who].serves);
                        self.dies(who);
                    }
                }
            }
            self.all[who].taker = taker;
        }

        fn rank(&self, who: usize) -> Rank {
            let is_present = |earlier: u32| self.all[earlier as usize].lives;
            self.heirs.rank(who as u32, is_present)
        }

        /// All that may happen next. `true`: it must not be waited for.
        fn next(&self) -> Vec<(World, bool)> {
            let mut all = Vec::new();
            let mut step = |is_certain: bool, change: &dyn Fn(&mut World)| {
                let mut world = self.clone();
                change(&mut world);
                all.push((world, is_certain));
            };
            if self.all[0].lives {
                step(false, &|w| w.dies(0));
                if self.is_pausing {
                    step(true, &|w| {
                        (w.is_pausing, w.all[0].serves) = (false, false);
                        w.giver_on(GiverEvent::Paused);
                    });
                    step(false, &|w| {
                        w.is_pausing = false;
                        w.giver_on(GiverEvent::CannotPause);
                    });
                }
                if let Some(word) = self.all[0].heard.front() {
                    step(true, &|w| {
                        w.all[0].heard.pop_front();
                        w.giver_on(match word {
                            Word::Take => GiverEvent::Asked,
                            _ => GiverEvent::Mine,
                        });
                    });
                } else if !(self.all[HEIR].lives && self.all[HEIR].is_connected) {
                    // The end of a connection is seen after all that was said.
                    step(true, &|w| w.giver_on(GiverEvent::Left));
                }
                if self.giver == Giver::Given {
                    // Nothing of it can be read, whatever it does.
                    step(false, &|w| w.giver_on(GiverEvent::Left));
                    // Its clock is not ours.
                    step(self.all[HEIR].hangs, &|w| w.giver_on(GiverEvent::Silent));
                }
                if self.giver == Giver::Reclaiming {
                    if self.turn.is_none() {
                        step(true, &|w| {
                            w.turn = Some(0);
                            w.heirs = Heirs::new(w.standby(), 0);
                            w.giver_on(GiverEvent::Reclaimed);
                        });
                    } else if !self.all[HEIR].lives {
                        step(true, &|w| w.giver_on(GiverEvent::Taken));
                    }
                }
                // One that is too slow is dropped, and does not know it yet. Only by who has the turn.
                if self.turn == Some(0) && self.standby_is_followed {
                    step(false, &|w| {
                        w.standby_is_followed = false;
                        w.all[STANDBY].is_connected = false;
                        w.heirs = Heirs::default();
                    });
                }
            }
            // It is on its way, whoever has sent it.
            if self.kills && self.all[HEIR].lives {
                step(true, &|w| w.dies(HEIR));
            }
            for who in [HEIR, STANDBY] {
                let process = &self.all[who];
                if !process.lives {
                    continue;
                }
                step(false, &|w| w.dies(who));
                step(false, &|w| w.all[who].hangs = true);
                if process.hangs {
                    continue;
                }
                step(false, &|w| w.all[who].is_connected = false);
                if who == HEIR && process.taker == Taker::Holding {
                    step(true, &|w| w.taker_on(HEIR, TakerEvent::Wanted));
                }
                if let Some(word) = process.heard.front() {
                    step(true, &|w| {
                        w.all[who].heard.pop_front();
                        let event = match word {
                            Word::Yours => TakerEvent::Yours,
                            _ => TakerEvent::Abort,
                        };
                        w.taker_on(who, event);
                    });
                } else if !self.all[0].lives || !process.is_connected {
                    step(true, &|w| w.taker_on(who, TakerEvent::Left));
                }
                if process.taker == Taker::Claiming {
                    match self.rank(who) {
                        Rank::Next if self.turn.is_none() => step(true, &|w| {
                            w.turn = Some(who);
                            w.heirs = w.heirs.after(who as u32);
                            w.taker_on(who, TakerEvent::Claimed);
                        }),
                        Rank::Never => step(true, &|w| w.taker_on(who, TakerEvent::Refused)),
                        _ => {}
                    }
                }
                if process.adopts {
                    step(true, &|w| {
                        w.all[who].adopts = false;
                        w.heirs = Heirs::default();
                    });
                }
                if process.confirms {
                    step(true, &|w| {
                        w.all[who].confirms = false;
                        if w.given == who {
                            w.given = 0;
                            w.all[0].heard.push_back(Word::Mine);
                            w.all[who].adopts = true;
                        } else {
                            w.dies(who);
                        }
                    });
                    // Before it could say so.
                    step(false, &|w| {
                        if w.given == who {
                            w.given = 0;
                        }
                        w.dies(who);
                    });
                }
            }
            all
        }

        /// Whether one that lives could serve.
        fn could(&self) -> bool {
            let can = |who: usize| {
                let process = &self.all[who];
                process.lives
                    && !process.hangs
                    && process.taker != Taker::Over
                    && self.rank(who) == Rank::Next
            };
            self.all[0].lives || can(HEIR) || can(STANDBY)
        }
    }

    /// Whatever happens in whatever order, with any of three dying or held up at any point, connections that end while both live, and a standby
    /// that is dropped: never do two serve, nobody serves without the turn, and when nothing more must happen, one that lives serves, unless
    /// none lives that may.
    #[test]
    fn one_serves_whatever_fails() {
        let process = |serves: bool| Process {
            lives: true,
            serves,
            hangs: false,
            taker: Taker::Holding,
            confirms: false,
            adopts: false,
            is_connected: true,
            heard: VecDeque::new(),
        };
        let start = World {
            giver: Giver::Serving,
            is_pausing: false,
            kills: false,
            all: [process(true), process(false), process(false)],
            turn: Some(0),
            heirs: Heirs::new(STANDBY as u32, 0),
            given: 0,
            has_word: [false; 3],
            standby_is_followed: true,
        };
        let mut seen = BTreeSet::from([start.clone()]);
        let mut left = vec![start];
        let (mut handed_over, mut taken_over, mut saved, mut resumed) = (0, 0, 0, 0);
        while let Some(world) = left.pop() {
            for (who, process) in world.all.iter().enumerate() {
                assert!(!process.serves || world.turn == Some(who), "{world:?}");
            }
            let next = world.next();
            let is_at_rest = !next
                .iter()
                .any(|(next, is_certain)| *is_certain && *next != world);
            if is_at_rest {
                let serves = world.all.iter().any(|process| process.serves);
                assert!(serves || !world.could(), "nobody serves: {world:?}");
                let [_, heir, standby] = &world.all;
                match world.giver {
                    Giver::Done if heir.serves => handed_over += 1,
                    Giver::Done if standby.serves => saved += 1,
                    Giver::Serving if standby.serves => taken_over += 1,
                    Giver::Serving if world.kills && world.all[0].serves => resumed += 1,
                    _ => {}
                }
            }
            for (next, _) in next {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        // The ends that there should be are among them.
        let ends = [handed_over, taken_over, saved, resumed];
        assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
    }

    #[test]
    fn a_word_is_taken_back_before_serving_again() {
        let mut giver = Giver::Serving;
        assert_eq!(giver.on(GiverEvent::Asked), [GiverAction::Pause]);
        assert_eq!(giver.on(GiverEvent::Asked), []);
        assert_eq!(giver.on(GiverEvent::Paused), [GiverAction::SayYours]);
        assert_eq!(giver.on(GiverEvent::Left), [GiverAction::Revoke]);
        assert_eq!(giver, Giver::Given);
        assert_eq!(giver.on(GiverEvent::Revoked), [GiverAction::Reclaim]);
        assert_eq!(giver.on(GiverEvent::Reclaimed), [GiverAction::Resume]);
        assert_eq!(giver, Giver::Serving);
        assert_eq!(giver.on(GiverEvent::Mine), []);
    }

    #[test]
    fn a_standby_claims_after_an_end_and_serves_by_that_alone() {
        let mut taker = Taker::Holding;
        assert_eq!(taker.on(TakerEvent::Yours), []);
        assert_eq!(taker.on(TakerEvent::Left), [TakerAction::Claim]);
        assert_eq!(taker.on(TakerEvent::Left), []);
        let mut refused = taker;
        assert_eq!(
            taker.on(TakerEvent::Claimed),
            [TakerAction::Serve, TakerAction::SayMine]
        );
        assert_eq!(refused.on(TakerEvent::Refused), [TakerAction::Again]);
        assert_eq!(refused.on(TakerEvent::Claimed), []);
    }

    #[test]
    fn heirs_come_one_after_the_other() {
        let heirs = Heirs::from_bits(Heirs::new(7, 9).bits());
        assert_eq!(heirs, Heirs::new(7, 9));
        assert_eq!(Heirs::new(0, 9), Heirs::new(9, 0));
        assert_eq!(heirs.after(7), Heirs::new(9, 0));
        assert_eq!(heirs.after(9), Heirs::default());
        for (member, lives, rank) in [
            (7, true, Rank::Next),
            (9, true, Rank::Later),
            (9, false, Rank::Next),
            (8, false, Rank::Never),
            (0, false, Rank::Never),
        ] {
            assert_eq!(heirs.rank(member, |_| lives), rank, "{member}");
        }
    }
}
