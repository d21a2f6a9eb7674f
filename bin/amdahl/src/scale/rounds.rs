//! All runs of a sweep, interleaved over the points so that drift hits all alike. A run that fails costs itself alone.

use std::collections::BTreeSet;

use amdahl_probe::bpf::Recorder;
use amdahl_report::point::PointId;

use super::progress::Progress;
use super::run::{ProbedError, Workload};
use super::usable::Usable;
use super::{STRETCHES_MAX, Sweep};
use crate::child::{Ended, Input, StartError};
use crate::cli::Scale;
use crate::failure::Failure;
use crate::interrupt::Interrupt;

const NO_INPUT: &str = "Standard input is a pipe, which can be read only once: every run got an empty one. Give a \
     file (amdahl scale -- sort < words.txt), or have the command open it (sh -c 'sort < words.txt').";

/// Characters of a failed program's last line that are kept.
const SAID_MAX: usize = 4_000;

/// One run to make.
#[derive(Clone, Copy)]
struct Turn {
    /// Index of the point.
    at: usize,
    /// Counts from 1.
    round: u32,
    with_probe: bool,
}

/// What a sweep's runs share, and what is known of them so far.
struct Rounds<'a> {
    workload: Workload<'a>,
    recorder: Option<Recorder>,
    usable: Usable,
    /// Points at which the program cannot be started at all.
    given_up: BTreeSet<usize>,
    /// Points of which it was told that their CPUs are gone.
    missed: BTreeSet<usize>,
    /// The first failure was the machine's.
    is_refused: bool,
}

impl Sweep {
    /// Makes all runs.
    pub(super) fn measure(
        &mut self,
        scale: &Scale,
        rate: Option<&regex::Regex>,
        interrupt: &Interrupt,
        recorder: Option<Recorder>,
    ) -> Result<(), Failure> {
        let env = self.env.clone();
        let (input, is_lost) = Input::of_ours().for_several_runs();
        if is_lost {
            self.notice("no-input", NO_INPUT.to_owned());
        }
        let mut rounds = Rounds {
            workload: Workload {
                command: &scale.command,
                env: &env,
                duration: scale.duration,
                rate,
                input,
                show_output: scale.show_output,
                interrupt,
            },
            recorder,
            usable: Usable::new(self.plan.allowed.clone()),
            given_up: BTreeSet::new(),
            missed: BTreeSet::new(),
            is_refused: false,
        };
        let turns = self.turns(scale);
        let total = turns.len() as u32 + u32::from(!scale.no_warmup);
        let mut progress = Progress::new(total, scale.quiet);
        if let (false, Some(last)) = (scale.no_warmup, self.plan.points.last()) {
            progress.step("warm-up", last.id());
            match rounds.workload.bare(&last.cpus, last.threads) {
                Err(error)
                    if self.is_hopeless(&error, scale)
                        || matches!(error, StartError::NotOurs { .. }) =>
                {
                    return Err(Failure::program(error.to_string()));
                }
                // Whatever else fails will be told by the runs that count.
                Ok(_) | Err(_) => {}
            }
        }
        for turn in turns {
            if interrupt.asked() {
                self.partial = true;
                break;
            }
            if rounds.given_up.contains(&turn.at) || self.is_impossible(turn, &mut rounds) {
                progress.skip();
                continue;
            }
            let what = if turn.with_probe {
                "with probe"
            } else {
                "bare"
            };
            progress.step(what, self.plan.points[turn.at].id());
            match self.one_run(turn, &mut rounds) {
                Ok(ended) => {
                    progress.done(ended.wall.as_secs_f64());
                    if interrupt.asked() {
                        // Cut short: not a measurement.
                        self.partial = true;
                        self.points[turn.at].drop_last(turn.with_probe);
                        break;
                    }
                    self.judge(turn, &ended, &mut rounds);
                }
                Err(ProbedError::Start(error)) if self.is_hopeless(&error, scale) => {
                    return Err(Failure::program(error.to_string()));
                }
                Err(error) => {
                    self.note(turn, &error, &mut rounds);
                    // Whatever is run next would run beside it.
                    if matches!(error, ProbedError::Start(StartError::NotOurs { .. })) {
                        self.partial = interrupt.asked();
                        break;
                    }
                }
            }
        }
        progress.finish();
        if interrupt.insisted() || self.has_runs() {
            return Ok(());
        }
        Err(self.nothing(scale, rounds.is_refused))
    }

    /// The runs in their order.
    fn turns(&self, scale: &Scale) -> Vec<Turn> {
        let runs = scale.planned_runs();
        let mut turns = Vec::new();
        for round in 1..=runs.probed.max(runs.bare) {
            for at in 0..self.plan.points.len() {
                // In turn, so that neither kind always comes second.
                let mut kinds = [(true, runs.probed), (false, runs.bare)];
                if round % 2 == 0 {
                    kinds.reverse();
                }
                let wanted = kinds.into_iter().filter(|&(_, runs)| round <= runs);
                turns.extend(wanted.map(|(with_probe, _)| Turn {
                    at,
                    round,
                    with_probe,
                }));
            }
        }
        turns
    }

    /// No other run can do better: the program, which is the same in all of them, cannot be started.
    fn is_hopeless(&self, error: &StartError, scale: &Scale) -> bool {
        let is_same = !scale.command[0].contains("{cpus}");
        matches!(error, StartError::Exec { .. }) && is_same && !self.has_runs()
    }

    fn has_runs(&self) -> bool {
        self.points.iter().any(|point| !point.is_empty())
    }

    /// Whether CPUs of the point are gone, which is told once.
    fn is_impossible(&mut self, turn: Turn, rounds: &mut Rounds<'_>) -> bool {
        self.look_at_cpus(rounds);
        let point = &self.plan.points[turn.at];
        let Some(why) = rounds.usable.lacks(&point.cpus) else {
            return false;
        };
        if rounds.missed.insert(turn.at) {
            let on = point.id();
            self.fail(on, turn.round, format!("not run: {why}"));
        }
        true
    }

    fn look_at_cpus(&mut self, rounds: &mut Rounds<'_>) {
        let Some(change) = rounds.usable.look() else {
            return;
        };
        let text = format!(
            "The CPUs changed while runs were made: {change}. Runs on CPUs that had gone do not count or were left \
             out; the others are kept."
        );
        // CPUs may come and go very often.
        if self.notices.iter().all(|notice| notice.text != text) {
            self.notice("cpus-changed", text);
        }
    }

    /// Makes one run and keeps it.
    fn one_run(&mut self, turn: Turn, rounds: &mut Rounds<'_>) -> Result<Ended, ProbedError> {
        let Turn { at, with_probe, .. } = turn;
        let point = self.plan.points[at].clone();
        let workload = &rounds.workload;
        if !with_probe {
            let mut bare = workload.bare(&point.cpus, point.threads)?;
            bare.round = turn.round;
            let ended = bare.ended.clone();
            self.points[at].bare.push(bare);
            return Ok(ended);
        }
        let is_main = Some(at) == self.plan.main_point();
        let stretches = if is_main { STRETCHES_MAX } else { 0 };
        let mut probed = match &mut rounds.recorder {
            Some(recorder) => {
                let probed = workload.probed(
                    &point.cpus,
                    point.threads,
                    recorder,
                    &mut self.decoder,
                    stretches,
                );
                if probed.is_err() {
                    // The next run may be one without the probe.
                    let _ = recorder.end();
                }
                probed?
            }
            None => workload.polled(
                &point.cpus,
                point.threads,
                self.means,
                &mut self.decoder,
                stretches,
            )?,
        };
        probed.round = turn.round;
        let ended = probed.ended.clone();
        self.points[at].probed.push(probed);
        self.points[at].keep_stretches_of_typical();
        Ok(ended)
    }

    /// Takes back a run that is no measurement.
    fn judge(&mut self, turn: Turn, ended: &Ended, rounds: &mut Rounds<'_>) {
        self.look_at_cpus(rounds);
        let cpus = &self.plan.points[turn.at].cpus;
        let why = match (&ended.outcome, rounds.usable.lacks(cpus)) {
            (Err(what), _) => {
                let last = ended.stderr.trim_end().lines().last().unwrap_or("");
                // What is shown of it anywhere is shorter.
                let last: String = last.chars().take(SAID_MAX).collect();
                if last.is_empty() {
                    what.clone()
                } else {
                    format!("{what}: {last}")
                }
            }
            (Ok(()), Some(lacking)) => format!("during the run: {lacking}"),
            (Ok(()), None) => return,
        };
        let on = self.plan.points[turn.at].id();
        self.fail(on, turn.round, why);
        self.points[turn.at].drop_last(turn.with_probe);
    }

    /// Notes a run that could not be made.
    fn note(&mut self, turn: Turn, error: &ProbedError, rounds: &mut Rounds<'_>) {
        let is_program = matches!(error, ProbedError::Start(_));
        rounds.is_refused |= self.failures.is_empty() && !is_program;
        let is_exec = matches!(error, ProbedError::Start(StartError::Exec { .. }));
        // A file that is replaced just now will be there again; one that never was will not.
        if is_exec && self.points[turn.at].is_empty() {
            rounds.given_up.insert(turn.at);
        }
        let on = self.plan.points[turn.at].id();
        self.fail(on, turn.round, error.to_string());
    }

    /// Why there is no run at all.
    fn nothing(&self, scale: &Scale, is_refused: bool) -> Failure {
        let why = self.failures.first().map_or_else(
            || "interrupted before the first run ended".to_owned(),
            |failure| {
                format!(
                    "it failed in every run; on {}: {}",
                    PointId::from(failure),
                    failure.what
                )
            },
        );
        let message = format!("{}: {why}", scale.command[0]);
        match (self.partial, is_refused) {
            (true, _) => Failure { message, code: 5 },
            (false, true) => Failure::machine(message),
            (false, false) => Failure::program(message),
        }
    }
}
