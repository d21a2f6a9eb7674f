//! When the hooks at switches are attached: always, as long as what they take is within a budget, else in windows.
//!
//! An account: it is credited with the share of the CPUs that the hooks may take, and debited with what events and
//! changes cost. A window ends when it has overspent enough to be worth the two changes of a gap, and the gap is long enough
//! to pay all debt: windows become longer the closer the events are to the budget, and a window within it does not end. How
//! long a gap may become grows with what has been recorded: a short run has few windows, and needs each; a long one has many.
//! The lengths of gaps vary, so that no period of a program beats with them, always in the same way: the same events have
//! the same gaps.

use amdahl_speedup::event::Ns;

/// A window is at least this long: many times as long as what a thread does between two sleeps where switches are
/// frequent enough for gaps, and as what two changes take.
pub const WINDOW_NS: Ns = 60_000_000;
/// Share of the time that is recorded at least, on average, in the beginning.
const FIRST_SHARE_MIN: f64 = 0.15;
/// The same in the long run.
const SHARE_MIN: f64 = 0.05;
/// A gap is not longer than this share of the time since the beginning, where [`FIRST_SHARE_MIN`] does not allow more.
const GAP_OF_RUN: f64 = 1.0 / 3.0;
/// Nor longer than so many times that time: of a run of half a second its first moments would stand for the rest.
const GAP_OF_START: f64 = 3.0;
/// Between two looks the time since the beginning grows by no more than this share of it.
const AGE_AT_LOOK: f64 = 0.25;
/// A gap that would be shorter is not worth two changes.
const GAP_MIN_NS: f64 = 10e6;
/// What this time is credited with is there at the beginning: short runs are recorded in full.
const GRANT_NS: f64 = 300e6;
/// A window has overspent at least this share of what the two changes of a gap cost when it ends. With less, most of the budget
/// would go into changes where events are hardly beyond it; with more, few CPUs, whose budget is small beside a change, would
/// need gaps longer than [`FIRST_SHARE_MIN`] allows.
const OVERSPENT: f64 = 0.5;

/// What may be spent, and on what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HookBudget {
    /// Share of the CPU time of the run's CPUs.
    pub share: f64,
    /// What an event takes, in nanoseconds.
    pub event_ns: f64,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Begin a window.
    On,
    /// End it.
    Off,
}

/// The account of one recording.
#[derive(Clone, Copy, Debug)]
pub struct Duty {
    /// Nanoseconds of the hooks per nanosecond of the run.
    allowed: f64,
    event_ns: f64,
    /// Nanoseconds of the hooks that may be spent.
    balance: f64,
    begun: Ns,
    looked: Ns,
    events: u64,
    /// Nanoseconds of the hooks per nanosecond of the run, between the last two looks.
    spends: f64,
    /// Nanoseconds of the hooks that the window has spent beyond what it was credited with.
    overspent: f64,
    /// What ending and beginning a window took when that was last done.
    off_ns: f64,
    on_ns: f64,
    state: State,
    gaps: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// In a window since then.
    On(Ns),
    /// In a gap until then.
    Off(Ns),
}

impl Duty {
    /// Recording of `cpus` CPUs begins `now`; `events` were written before.
    pub fn new(budget: HookBudget, cpus: usize, now: Ns, events: u64) -> Duty {
        let allowed = budget.share.max(0.0) * cpus.max(1) as f64;
        Duty {
            allowed,
            event_ns: budget.event_ns,
            balance: allowed * GRANT_NS,
            begun: now,
            looked: now,
            events,
            spends: 0.0,
            overspent: 0.0,
            off_ns: 0.0,
            on_ns: 0.0,
            state: State::On(now),
            gaps: 0,
        }
    }

    /// Whether to change over `now` that `events` were written in all. What it returns is taken to be done.
    pub fn look(&mut self, now: Ns, events: u64) -> Option<Turn> {
        let passed = now.saturating_sub(self.looked) as f64;
        let credit = self.allowed * passed;
        let spent = self.event_ns * events.saturating_sub(self.events) as f64;
        if passed > 0.0 {
            self.spends = spent / passed;
        }
        self.balance += credit - spent;
        self.overspent += spent - credit;
        (self.looked, self.events) = (now, events);
        match self.state {
            State::On(since) if now.saturating_sub(since) >= WINDOW_NS => {
                let longest = self.longest_gap();
                let gap = if self.allowed > 0.0 {
                    (-self.balance / self.allowed).min(longest)
                } else {
                    longest
                };
                // Who allows nothing wants the least that there can be, and no change is worth more than an event.
                let is_worth_it = self.allowed == 0.0 || self.overspent >= self.worth_a_gap();
                if gap < GAP_MIN_NS || !is_worth_it {
                    return None;
                }
                let length = gap * self.variation();
                // What even the longest gap does not pay is forgiven, or a quieter time would have to; and a gap that
                // varies pays the same, or the next one would make up for it and windows be regular after all.
                self.balance =
                    self.balance.max(-self.allowed * gap) + self.allowed * (gap - length);
                self.gaps = self.gaps.wrapping_add(1);
                self.state = State::Off(now + length as Ns);
                Some(Turn::Off)
            }
            State::Off(until) if now >= until => {
                self.overspent = 0.0;
                self.state = State::On(now);
                Some(Turn::On)
            }
            State::On(_) | State::Off(_) => None,
        }
    }

    /// A change took `ns` of CPU time, and was over `now`.
    pub fn changed(&mut self, now: Ns, ns: f64) {
        self.balance -= ns;
        match &mut self.state {
            State::On(since) => (*since, self.on_ns) = (now, ns),
            State::Off(_) => self.off_ns = ns,
        }
    }

    /// What was to be done failed: the gap lasts on, or the window, until it is tried again.
    pub fn put_off(&mut self) {
        self.state = match self.state {
            State::Off(_) => State::On((self.looked + GAP_MIN_NS as Ns).saturating_sub(WINDOW_NS)),
            State::On(_) => State::Off(self.looked + GAP_MIN_NS as Ns),
        };
    }

    /// When it is to look again at the latest. In a window: when a gap is due if it goes on like this, and before the run is
    /// much older than it is, or the first seconds of a program would be recorded in full however late its threads begin.
    pub fn next(&self) -> Ns {
        match self.state {
            State::Off(until) => until,
            State::On(since) => {
                let end = since + WINDOW_NS;
                let begins_in_debt = self.gaps > 0 && end > self.looked;
                if begins_in_debt {
                    return end;
                }
                let age = self.looked.saturating_sub(self.begun) as f64;
                let beyond = self.spends - self.allowed;
                let left = (self.balance + self.allowed * GAP_MIN_NS)
                    .max(self.worth_a_gap() - self.overspent);
                let due = if beyond > 0.0 {
                    left / beyond
                } else {
                    f64::INFINITY
                };
                let pause = due.min(age * AGE_AT_LOOK).max(GAP_MIN_NS);
                end.max(self.looked.saturating_add(pause as Ns))
            }
        }
    }

    /// Overspent so much, a window may end.
    fn worth_a_gap(&self) -> f64 {
        OVERSPENT * (self.off_ns + self.on_ns)
    }

    /// At this time of the run, in nanoseconds.
    fn longest_gap(&self) -> f64 {
        let leaves = |share: f64| WINDOW_NS as f64 * (1.0 / share - 1.0);
        let age = self.looked.saturating_sub(self.begun) as f64;
        let longest = (age * GAP_OF_RUN).clamp(leaves(FIRST_SHARE_MIN), leaves(SHARE_MIN));
        longest.min(age * GAP_OF_START)
    }

    /// Between 0.5 and 1.5, 1 on average: the number of the gap, mixed by SplitMix64 (Steele, Lea, Flood: *Fast Splittable
    /// Pseudorandom Number Generators*, OOPSLA 2014). A more even sequence would do worse: its sums are regular.
    fn variation(&self) -> f64 {
        let mut mixed = u64::from(self.gaps)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        0.5 + (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Ns = 1_000_000;
    const BUDGET: HookBudget = HookBudget {
        share: 0.015,
        event_ns: 200.0,
    };

    /// What became of a run.
    #[derive(Debug, Default)]
    struct Outcome {
        windows: Vec<(Ns, Ns)>,
        spent_ns: f64,
    }

    impl Outcome {
        fn on_ns(&self) -> Ns {
            self.windows.iter().map(|(from, to)| to - from).sum()
        }
    }

    /// [`run_on`] two CPUs.
    fn run(
        budget: HookBudget,
        ms: Ns,
        tick: Ns,
        change_ns: f64,
        rate: impl Fn(Ns) -> u64,
    ) -> Outcome {
        run_on(2, budget, ms, tick, change_ns, rate)
    }

    /// A run of `ms` on `cpus` CPUs whose events in a millisecond are `rate` of it; who looks does so every `tick`, and
    /// when asked to. A change takes `change_ns`.
    fn run_on(
        cpus: usize,
        budget: HookBudget,
        ms: Ns,
        tick: Ns,
        change_ns: f64,
        rate: impl Fn(Ns) -> u64,
    ) -> Outcome {
        let mut duty = Duty::new(budget, cpus, 0, 0);
        let (mut outcome, mut events) = (Outcome::default(), 0);
        let mut on = Some(0);
        for at in 1..=ms {
            let now = at * MS;
            if on.is_some() {
                events += rate(at);
                outcome.spent_ns += rate(at) as f64 * budget.event_ns;
            }
            if !at.is_multiple_of(tick) && duty.next() > now {
                continue;
            }
            let Some(turn) = duty.look(now, events) else {
                continue;
            };
            outcome.spent_ns += change_ns;
            match turn {
                Turn::On => on = Some(now),
                Turn::Off => outcome.windows.extend(on.take().map(|since| (since, now))),
            }
            duty.changed(now, change_ns);
        }
        outcome.windows.extend(on.map(|since| (since, ms * MS)));
        outcome
    }

    #[test]
    fn what_is_within_the_budget_is_recorded_all_the_time() {
        // 1.5 % of two CPUs is 30 µs in a millisecond: 150 events.
        let outcome = run(BUDGET, 20_000, 20, 0.0, |_| 150);
        assert_eq!(outcome.windows, [(0, 20_000 * MS)]);
    }

    #[test]
    fn short_runs_are_recorded_all_the_time() {
        // Three times too many: twice the budget is missing, which the grant pays for 150 ms.
        let outcome = run(BUDGET, 150, 20, 0.0, |_| 450);
        assert_eq!(outcome.windows.len(), 1);
    }

    #[test]
    fn what_is_beyond_it_is_recorded_a_part_of_the_time() {
        let outcome = run(BUDGET, 20_000, 20, 100_000.0, |_| 500);
        let share = outcome.on_ns() as f64 / (20_000 * MS) as f64;
        assert!((0.25..0.32).contains(&share), "{share}");
        let all = 2.0 * 20_000.0 * MS as f64;
        assert!(
            outcome.spent_ns / all < 0.0165,
            "{}",
            outcome.spent_ns / all
        );
        // The end of the run may cut the last one short.
        let whole = &outcome.windows[..outcome.windows.len() - 1];
        let shortest = whole.iter().map(|(from, to)| to - from).min();
        assert!(shortest >= Some(WINDOW_NS), "{shortest:?}");
    }

    #[test]
    fn some_is_always_recorded() {
        for budget in [
            BUDGET,
            HookBudget {
                share: 1e-9,
                ..BUDGET
            },
        ] {
            for (ms, expected) in [
                (1000, 0.13..0.26),
                (4000, 0.08..0.14),
                (60_000, 0.045..0.07),
            ] {
                let outcome = run(budget, ms, 20, 100_000.0, |_| 100_000);
                let share = outcome.on_ns() as f64 / (ms * MS) as f64;
                assert!(expected.contains(&share), "{ms} ms: {share}");
            }
        }
    }

    /// Once, the second window of what has far too many events came after 400 ms.
    #[test]
    fn the_first_moments_do_not_stand_for_a_short_run() {
        let outcome = run(BUDGET, 500, 20, 100_000.0, |_| 100_000);
        let &[(_, first), (second, _), ..] = &outcome.windows[..] else {
            panic!("{outcome:?}");
        };
        // The gap varies.
        assert!(first == WINDOW_NS && second < 6 * WINDOW_NS, "{outcome:?}");
    }

    /// Looks come seldom while nothing happens: what begins to cost too much is not recorded much longer than it may be.
    #[test]
    fn what_begins_late_is_looked_at_in_time() {
        // 500 events a millisecond take 100 µs of it, 30 are allowed: after 150 ms of nothing the grant of 9 ms and
        // what that time was credited with last for 193 ms more.
        let busy = |at| if at < 150 { 0 } else { 500 };
        let outcome = run(BUDGET, 1000, 1000, 0.0, busy);
        let (_, first) = outcome.windows[0];
        assert!((340 * MS..365 * MS).contains(&first), "{first}");
    }

    #[test]
    fn a_quieter_time_is_recorded_again_and_pays_for_nothing() {
        let busy = |at| if at < 10_000 { 100_000 } else { 10 };
        let outcome = run(BUDGET, 20_000, 20, 0.0, busy);
        let late: Vec<_> = outcome
            .windows
            .iter()
            .filter(|(_, to)| *to > 10_500 * MS)
            .collect();
        assert_eq!(late.len(), 1, "{late:?}");
        // The gap that was due when it became quiet.
        let longest = WINDOW_NS as f64 * (1.0 / SHARE_MIN - 1.0) * 1.5;
        assert!(late[0].0 < 10_000 * MS + longest as Ns);
    }

    /// Attaching and detaching cost as much as a hundred milliseconds of the budget of two CPUs. Once, a window ended in debt
    /// because it had begun in debt, however little happened in it: after one gap most of the budget went into changes.
    #[test]
    fn changes_do_not_take_the_budget_of_events() {
        const PERCENT: HookBudget = HookBudget {
            share: 0.01,
            event_ns: 200.0,
        };
        const CHANGE_NS: f64 = 1e6;
        for cpus in [1, 2, 8, 64] {
            // One percent of a CPU is 10 µs in a millisecond: 50 events.
            let times = move |factor: f64| (50.0 * cpus as f64 * factor).round() as u64;
            let share = |outcome: &Outcome| outcome.on_ns() as f64 / (60_000 * MS) as f64;
            let of_budget = |outcome: &Outcome| {
                outcome.spent_ns / (cpus as f64 * 0.01 * (60_000 + 300) as f64 * MS as f64)
            };
            let scarcely = run_on(cpus, PERCENT, 60_000, 20, CHANGE_NS, |_| times(1.06));
            assert!(share(&scarcely) > 0.8, "{cpus} CPUs: {}", share(&scarcely));
            for factor in [1.06, 1.5, 2.0, 3.0] {
                let outcome = run_on(cpus, PERCENT, 60_000, 20, CHANGE_NS, |_| times(factor));
                let spent = of_budget(&outcome);
                assert!(spent < 1.05, "{cpus} CPUs, {factor}: {spent}");
            }
            let burst = |at| times(if at < 3000 { 3.0 } else { 0.9 });
            let outcome = run_on(cpus, PERCENT, 60_000, 20, CHANGE_NS, burst);
            let &(from, to) = outcome.windows.last().expect("one is open");
            assert!(
                from < 4000 * MS && to == 60_000 * MS,
                "{cpus} CPUs: from {from}"
            );
        }
    }

    #[test]
    fn a_budget_of_nothing_has_gaps_whatever_happens() {
        let outcome = run(
            HookBudget {
                share: 0.0,
                ..BUDGET
            },
            20_000,
            20,
            1e6,
            |_| 0,
        );
        let share = outcome.on_ns() as f64 / (20_000 * MS) as f64;
        assert!((0.05..0.1).contains(&share), "{share}");
        assert_eq!(outcome.windows[0], (0, WINDOW_NS));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever period the program has, its phases are recorded in equal parts.
        #[test]
        fn no_period_beats_with_the_windows(period in 2..1000u64, rate in 300..1000u64) {
            let outcome = run(BUDGET, 60_000, 20, 0.0, |_| rate);
            let first = outcome.windows[0].1;
            let mut halves = [0u64; 2];
            for &(from, to) in &outcome.windows[1..] {
                for at in from / MS..to / MS {
                    halves[(at % period * 2 / period) as usize] += 1;
                }
            }
            prop_assert!(first < 1000 * MS);
            let all: u64 = halves.iter().sum();
            let odd = period % 2;
            // An odd period has halves that differ by one.
            let expected = (period / 2 + odd) as f64 / period as f64;
            let found = halves[0] as f64 / all as f64;
            prop_assert!((found - expected).abs() < 0.15, "{found} for {expected}");
        }

        /// Whatever happens: the budget is kept to where it can be, no gap is long, and time only goes on.
        #[test]
        fn any_load_is_within_bounds(
            rates in prop::collection::vec(0..3000u64, 1..40),
            tick in 1..60u64,
            change_ns in 0.0..500_000f64,
        ) {
            let ms = 400 * rates.len() as u64;
            let outcome = run(BUDGET, ms, tick, change_ns, |at| {
                rates[((at - 1) / 400) as usize % rates.len()]
            });
            let (mut before, longest) = (0, 1.5 * WINDOW_NS as f64 * (1.0 / SHARE_MIN - 1.0));
            for &(from, to) in &outcome.windows {
                prop_assert!(from >= before && to >= from);
                prop_assert!(((from - before) as f64) <= longest + 2.0 * MS as f64);
                before = to;
            }
        }
    }
}
