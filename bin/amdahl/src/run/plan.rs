//! What is done for a program: the remedies' verdicts, and the environment that follows. Pure.

use std::collections::BTreeSet;

use serde::Serialize;

use super::facts::Facts;
use super::remedy::{self, Change, Outcome, Verdict};

/// What will be done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// `amdahl.run/1`.
    pub format: &'static str,
    /// What the command line says.
    pub program: String,
    /// The file that is run.
    pub path: String,
    /// The interpreters of a script, the last one an ELF file.
    pub interpreters: Vec<String>,
    /// CPUs' worth of threads.
    pub cpus: u32,
    /// What each remedy says.
    pub remedies: Vec<Verdict>,
}

/// Which remedies are looked at.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only these; empty for all.
    pub with: BTreeSet<String>,
    /// Not these.
    pub without: BTreeSet<String>,
}

impl Plan {
    /// Asks the remedies.
    pub fn new(facts: &Facts, choice: &Choice) -> Plan {
        let program = &facts.program;
        let wanted = |name: &str| {
            (choice.with.is_empty() || choice.with.contains(name)) && !choice.without.contains(name)
        };
        let mut verdicts = Vec::new();
        for remedy in remedy::ALL.iter().filter(|remedy| wanted(remedy.name())) {
            let verdict = remedy.judge(facts, &verdicts);
            verdicts.push(verdict);
        }
        Plan {
            format: "amdahl.run/1",
            program: program.typed.clone(),
            path: program.path.to_string_lossy().into_owned(),
            interpreters: program
                .interpreters
                .iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect(),
            cpus: facts.machine.cpus(),
            remedies: verdicts,
        }
    }

    /// All variables that are set.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.remedies.iter().flat_map(|verdict| &verdict.changes)
    }

    /// A remedy that was asked for by name and cannot be had.
    pub fn refused(&self, choice: &Choice) -> Option<&Verdict> {
        self.remedies.iter().find(|verdict| {
            verdict.outcome == Outcome::Impossible && choice.with.contains(verdict.remedy)
        })
    }

    /// What was done, in a line.
    pub fn line(&self) -> String {
        let mut parts = Vec::new();
        for verdict in &self.remedies {
            let variables: Vec<String> = verdict
                .changes
                .iter()
                .map(|change| format!("{}={}", change.variable, change.value))
                .collect();
            match verdict.outcome {
                Outcome::Applied => {
                    let set = match variables.as_slice() {
                        [first, _, rest @ ..] if !rest.is_empty() => {
                            format!("{first} and {} more", rest.len() + 1)
                        }
                        all => all.join(" "),
                    };
                    parts.push(format!("{}: {}: {set}", verdict.remedy, verdict.why));
                }
                Outcome::Impossible => {
                    parts.push(format!("{}: impossible: {}", verdict.remedy, verdict.why));
                }
                Outcome::NotNeeded | Outcome::LeftAlone => {}
            }
        }
        if parts.is_empty() {
            return "nothing to do; --explain says why".to_owned();
        }
        parts.join("; ")
    }

    /// All of it, for a person.
    pub fn text(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("program: {}\n", self.path);
        for interpreter in &self.interpreters {
            let _ = writeln!(text, "  run by {interpreter}");
        }
        let _ = writeln!(text, "threads that can run at once: {}", self.cpus);
        for verdict in &self.remedies {
            let _ = writeln!(
                text,
                "{}: {}: {}",
                verdict.remedy,
                verdict.outcome.name(),
                verdict.why
            );
            for change in &verdict.changes {
                let _ = writeln!(text, "  {}={}", change.variable, change.value);
            }
            for note in &verdict.notes {
                let _ = writeln!(text, "  note: {note}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
