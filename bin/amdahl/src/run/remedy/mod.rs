//! What can be done for a program without changing it. One file each.
//!
//! A remedy looks at [`Facts`] and says what it changes in the environment of the program, or why
//! it does not. To add one: a file here, a line in [`ALL`], a section in `docs/run.md`.

mod openmp;
mod threads;
mod waiting;

use serde::Serialize;

use super::facts::Facts;

/// One kind of help.
pub trait Remedy {
    /// Its name for `--with`.
    fn name(&self) -> &'static str;
    /// What it does, in a line.
    fn about(&self) -> &'static str;
    /// Whether it applies, and what it changes then. Asks nobody: all that it may know is in `facts`, and in what the remedies
    /// before it have `said`, of those that are wanted.
    fn judge(&self, facts: &Facts, said: &[Verdict]) -> Verdict;
}

/// All of them, in the order in which they are asked and told.
pub const ALL: &[&dyn Remedy] = &[&openmp::OpenMp, &waiting::Waiting, &threads::Threads];

/// What a remedy says of a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Who says so.
    pub remedy: &'static str,
    /// In a word.
    pub outcome: Outcome,
    /// Why.
    pub why: String,
    /// What is set for the program.
    pub changes: Vec<Change>,
    /// What else the user should know.
    pub notes: Vec<String>,
}

/// What became of a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Something is changed.
    Applied,
    /// The program has nothing to gain.
    NotNeeded,
    /// The user has decided already.
    LeftAlone,
    /// It would help and cannot be had.
    Impossible,
}

impl Outcome {
    /// For a person.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Applied => "applied",
            Outcome::NotNeeded => "not needed",
            Outcome::LeftAlone => "left alone",
            Outcome::Impossible => "impossible",
        }
    }
}

/// A variable of the program's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its name.
    pub variable: String,
    /// Its value, with what was there before where that is kept.
    pub value: String,
}

impl Verdict {
    fn new(remedy: &dyn Remedy, outcome: Outcome, why: impl Into<String>) -> Verdict {
        Verdict {
            remedy: remedy.name(),
            outcome,
            why: why.into(),
            changes: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn set(&mut self, variable: &str, value: impl Into<String>) {
        self.changes.push(Change {
            variable: variable.to_owned(),
            value: value.into(),
        });
    }

    /// The variable is set by us.
    fn sets(&self, variable: &str) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| change.variable == variable)
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

/// Whether a variable like `OMP_NUM_THREADS` asks for more threads than `cpus`. The first number is that of the outermost regions.
fn are_more_than(cpus: u32, value: &str) -> bool {
    let first = value.split(',').next().unwrap_or("").trim();
    first.parse::<u32>().is_ok_and(|threads| threads > cpus)
}
