//! Programs that would start a thread for each CPU of the machine are told how many they may use.

use crate::knobs::{KNOBS, Knob, Takes, fill};
use crate::run::facts::Facts;

use super::openmp::is_ours;
use super::{Outcome, Remedy, Verdict, are_more_than};

/// Sets `OMP_NUM_THREADS` and its like, each only where its reader would take more.
///
/// The program may say otherwise later (`os.environ` before numpy is imported), and so may what starts workers for it.
/// So a variable is not set whose reader takes another one that is: OpenBLAS would look at its own first, whatever the
/// program says in `OMP_NUM_THREADS`. And those by which workers get their share of the CPUs stay unset where there is
/// somebody who divides, since a variable that is set is inherited by all workers: each would take all CPUs. Where our OpenMP
/// runtime is, that takes one of its own instead, which theirs go before.
pub struct Threads;

/// What Python 3.13 and later take for the number of CPUs.
const PYTHON: Knob = Knob {
    name: "PYTHON_CPU_COUNT",
    value: "{cpus}",
    takes: Takes::Host,
    at_most: u32::MAX,
    falls_back_to: &[],
    is_divided: false,
};

/// They start programs on other machines, to which the environment goes along.
const LAUNCHERS: [&str; 14] = [
    "aprun",
    "bsub",
    "condor_submit",
    "jsrun",
    "mpiexec",
    "mpiexec.hydra",
    "mpirun",
    "orterun",
    "prterun",
    "qsub",
    "salloc",
    "sbatch",
    "srun",
    "ssh",
];

/// What our OpenMP runtime takes where `OMP_NUM_THREADS` is not set: who divides the CPUs by that has the last word.
const OWN: &str = "AMDAHL_OMP_THREADS";

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

    fn judge(&self, facts: &Facts, said: &[Verdict]) -> Verdict {
        let machine = &facts.machine;
        let cpus = machine.cpus();
        if let Some(launcher) = launcher(facts)
            && !facts.asks_for(self.name())
        {
            return Verdict::new(
                self,
                Outcome::LeftAlone,
                format!(
                    "{launcher} starts programs elsewhere, where other numbers hold; have it start \
                     amdahl run, or --with threads"
                ),
            );
        }
        let mut verdict = Verdict::new(self, Outcome::NotNeeded, size(facts));
        let mut yours = Vec::new();
        let dividers = &facts.program.dividers;
        let is_left_to_dividers = !dividers.is_empty() && !facts.asks_for(self.name());
        let mut divided = Vec::new();
        for knob in KNOBS.iter().chain([&PYTHON]) {
            let untold = match knob.takes {
                Takes::Affinity => machine.allowed,
                Takes::Host => machine.online.max(machine.allowed),
                Takes::Quota | Takes::One => continue,
            };
            if untold.min(knob.at_most) <= cpus {
                continue;
            }
            let names = [knob.name]
                .into_iter()
                .chain(knob.falls_back_to.iter().copied());
            let theirs = names.filter_map(|name| Some((name, facts.variable(name)?)));
            match theirs.clone().next() {
                Some(set) if !yours.contains(&set) => yours.push(set),
                Some(_) => {}
                None if knob.falls_back_to.iter().any(|name| verdict.sets(name)) => {}
                None if knob.is_divided && is_left_to_dividers => divided.push(knob.name),
                None => verdict.set(knob.name, fill(knob.value, cpus)),
            }
        }
        let is_told = || {
            facts
                .arguments
                .iter()
                .any(|word| word.contains(JAVA_OPTION))
        };
        let is_sized = divided.contains(&"OMP_NUM_THREADS") && is_ours(facts, said);
        if is_sized && !facts.is_unreadable(OWN) {
            match facts.variable(OWN) {
                Some(value) => yours.push((OWN, value)),
                None => verdict.set(OWN, cpus.to_string()),
            }
        }
        if is_java(facts) && machine.is_limited_by_quota() && !is_told() {
            let options = [JAVA, "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"];
            let set = |&&name: &&&str| {
                facts.is_unreadable(name)
                    || facts
                        .variable(name)
                        .is_some_and(|value| value.contains(JAVA_OPTION))
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
            if are_more_than(cpus, value) {
                verdict.note(format!(
                    "{name}={value} is yours and stays, but no more than {cpus} can run at once"
                ));
            }
        }
        if !divided.is_empty() {
            let but = match verdict.sets(OWN) {
                true => format!("; our OpenMP runtime takes {OWN} where they are not set"),
                false => String::new(),
            };
            verdict.note(format!(
                "{} gives each of its workers a share of the CPUs by variables that are not set: {} stay \
                 so; --with threads sets them{but}",
                dividers.join(", "),
                divided.join(", ")
            ));
        }
        if !verdict.changes.is_empty() {
            verdict.outcome = Outcome::Applied;
        } else if !divided.is_empty() {
            verdict.outcome = Outcome::LeftAlone;
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

/// The names of the program: of the file, and of what reads it.
fn names(facts: &Facts) -> impl Iterator<Item = &str> {
    let program = &facts.program;
    let last = program.interpreters.last().unwrap_or(&program.path);
    [&program.path, last]
        .into_iter()
        .filter_map(|path| path.file_name()?.to_str())
}

fn is_java(facts: &Facts) -> bool {
    names(facts).any(|name| name == "java")
}

fn launcher(facts: &Facts) -> Option<&str> {
    let started = facts.program.starts.iter();
    let named = started.flat_map(|starts| &starts.programs);
    let named = named.filter_map(|path| path.file_name()?.to_str());
    // It sends no environment along, and scripts name it for other things.
    let named = named.filter(|&name| name != "ssh");
    names(facts)
        .chain(named)
        .find(|name| LAUNCHERS.contains(name))
}
