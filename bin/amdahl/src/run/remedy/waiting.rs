//! Runtimes that stay are told to wait without spinning, where that helps.

use crate::run::facts::{Facts, Kind};

use super::{Outcome, Remedy, Verdict, openmp};

/// `KMP_BLOCKTIME` for LLVM's and Intel's runtime, `OMP_WAIT_POLICY` for a libgomp that is not replaced.
///
/// Waiting in a loop is right while every thread has a CPU of its own, so nothing is set on a
/// machine where that seems to be so. Nor is `OMP_WAIT_POLICY` where ours is loaded beside a copy that is linked in: it
/// would take that for the user's own wish, and no longer look at whether threads have CPUs.
pub struct Waiting;

/// Whoever set one of these has decided how threads wait.
const OF_KMP: &[&str] = &["KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_WAIT_POLICY"];
const OF_GOMP: &[&str] = &["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"];

impl Remedy for Waiting {
    fn name(&self) -> &'static str {
        "waiting"
    }

    fn about(&self) -> &'static str {
        "OpenMP runtimes that are not replaced (LLVM, Intel, linked in) wait without spinning"
    }

    fn judge(&self, facts: &Facts, said: &[Verdict]) -> Verdict {
        let find = |kind| {
            facts
                .program
                .runtimes
                .iter()
                .find(|runtime| runtime.kind == kind)
        };
        let is_ours = openmp::is_ours(facts, said);
        let kmp = find(Kind::Kmp);
        let gomp = [Kind::GompInside, Kind::Gomp, Kind::GompCopy]
            .into_iter()
            .find_map(find)
            .filter(|_| !is_ours);
        let mut notes = Vec::new();
        if let Some(mkl) = find(Kind::Mkl) {
            notes.push(format!(
                "{}: Intel MKL takes its threads from the OpenMP runtime it is linked with; \
                 MKL_NUM_THREADS says how many, MKL_DYNAMIC=TRUE lets it take fewer",
                mkl.via
            ));
        }
        if let Some(tbb) = find(Kind::Tbb) {
            notes.push(format!(
                "{}: oneTBB knows the affinity mask and no quota, and no variable tells it; \
                 taskset -c before the program does",
                tbb.via
            ));
        }
        let mut verdict = self.of_openmp(facts, kmp.map(|r| &r.via), gomp.map(|r| &r.via));
        if let Some(inside) = find(Kind::GompInside).filter(|_| is_ours) {
            let why = format!(
                "{}: that copy waits as it does, since OMP_WAIT_POLICY would hold for the runtime that is loaded beside it too",
                inside.via
            );
            if kmp.is_some() {
                notes.push(why);
            } else {
                (verdict.outcome, verdict.why) = (Outcome::LeftAlone, why);
            }
        }
        verdict.notes.extend(notes);
        verdict
    }
}

impl Waiting {
    fn of_openmp(&self, facts: &Facts, kmp: Option<&String>, gomp: Option<&String>) -> Verdict {
        let Some(via) = kmp.or(gomp) else {
            return Verdict::new(
                self,
                Outcome::NotNeeded,
                "no OpenMP runtime is seen but such as is replaced",
            );
        };
        let Some(reason) = facts.machine.contention().or_else(|| {
            facts
                .asks_for(self.name())
                .then(|| "asked for by --with".to_owned())
        }) else {
            let mut verdict = Verdict::new(
                self,
                Outcome::NotNeeded,
                format!("{via}, but nobody else seems to want our CPUs now"),
            );
            verdict.note(if kmp.is_some() {
                "where others do: KMP_BLOCKTIME=0, or --with waiting"
            } else {
                "where others do: OMP_WAIT_POLICY=passive, or --with waiting"
            });
            return verdict;
        };
        let mut verdict = Verdict::new(self, Outcome::LeftAlone, format!("{via}; {reason}"));
        for (is_there, variables, variable, value) in [
            (kmp.is_some(), OF_KMP, "KMP_BLOCKTIME", "0"),
            (gomp.is_some(), OF_GOMP, "OMP_WAIT_POLICY", "passive"),
        ] {
            if !is_there {
                continue;
            }
            let set = variables
                .iter()
                .find_map(|&name| Some((name, facts.variable(name)?)));
            match set {
                Some((name, value)) => verdict.note(format!("{name}={value} is yours")),
                None => {
                    verdict.set(variable, value);
                    verdict.outcome = Outcome::Applied;
                }
            }
        }
        if gomp.is_some() && facts.variable("OMP_DYNAMIC").is_none() {
            verdict.note("OMP_DYNAMIC=true has libgomp start fewer threads while the load is high");
        }
        verdict
    }
}
