//! Programs that would start a thread for each CPU of the machine are told how many they may use.

use crate::knobs::{KNOBS, Knob, Takes, fill};
use crate::run::facts::Facts;

use super::{Outcome, Remedy, Verdict};

/// Sets `OMP_NUM_THREADS` and its like, each only where its reader would take more.
pub struct Threads;

/// What Python 3.13 and later take for the number of CPUs.
const PYTHON: Knob = Knob {
    name: "PYTHON_CPU_COUNT",
    value: "{cpus}",
    takes: Takes::Host,
    at_most: u32::MAX,
};

/// What the `java` launcher takes options from, since JDK 9.
const JAVA: &str = "JDK_JAVA_OPTIONS";
const JAVA_OPTION: &str = "-XX:ActiveProcessorCount";

impl Remedy for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn about(&self) -> &'static str {
        "numbers of threads follow the CPU quota and the affinity mask"
    }

    fn judge(&self, facts: &Facts) -> Verdict {
        let machine = &facts.machine;
        let cpus = machine.cpus();
        let mut verdict = Verdict::new(self, Outcome::NotNeeded, size(facts));
        let mut yours = Vec::new();
        for knob in KNOBS.iter().chain([&PYTHON]) {
            let untold = match knob.takes {
                Takes::Affinity => machine.allowed,
                Takes::Host => machine.online.max(machine.allowed),
                Takes::Quota | Takes::One => continue,
            };
            if untold.min(knob.at_most) <= cpus {
                continue;
            }
            match facts.variable(knob.name) {
                None => verdict.set(knob.name, fill(knob.value, cpus)),
                Some(value) => yours.push((knob.name, value)),
            }
        }
        if is_java(facts) && machine.is_limited_by_quota() {
            let options = [JAVA, "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"];
            let set = |&&name: &&&str| {
                facts
                    .variable(name)
                    .is_some_and(|value| value.contains(JAVA_OPTION))
                    || facts.program.typed.contains(JAVA_OPTION)
            };
            match options.iter().find(set) {
                Some(name) => yours.push((*name, facts.variable(name).unwrap_or(""))),
                None => {
                    let before = facts
                        .variable(JAVA)
                        .map_or(String::new(), |value| format!("{} ", value.trim()));
                    verdict.set(JAVA, format!("{before}{JAVA_OPTION}={cpus}"));
                }
            }
        }
        for (name, value) in &yours {
            // The first number is that of the outermost regions.
            let first = value.split(',').next().unwrap_or("").trim();
            if first.parse::<u32>().is_ok_and(|threads| threads > cpus) {
                verdict.note(format!(
                    "{name}={value} is yours and stays, but no more than {cpus} can run at once"
                ));
            }
        }
        if !verdict.changes.is_empty() {
            verdict.outcome = Outcome::Applied;
        } else if !yours.is_empty() {
            verdict.outcome = Outcome::LeftAlone;
            verdict.why.push_str("; the variables are set by you");
        }
        verdict
    }
}

/// `2 of 48 CPUs (quota 1.50, /sys/fs/cgroup/cpu.max)`.
fn size(facts: &Facts) -> String {
    let machine = &facts.machine;
    let cpus = machine.cpus();
    let all = machine.online.max(machine.allowed);
    let mut reasons = Vec::new();
    if machine.allowed < all {
        reasons.push(format!("affinity mask of {}", machine.allowed));
    }
    if let Some((quota, file)) = &machine.quota
        && machine.is_limited_by_quota()
    {
        reasons.push(format!("quota of {quota:.2}, {file}"));
    }
    match reasons.as_slice() {
        [] => format!("all {all} CPUs may be used"),
        _ => format!("{cpus} of {all} CPUs ({})", reasons.join("; ")),
    }
}

fn is_java(facts: &Facts) -> bool {
    let program = &facts.program;
    let last = program.interpreters.last().unwrap_or(&program.path);
    [&program.path, last]
        .iter()
        .any(|path| path.file_name().is_some_and(|name| name == "java"))
}
