//! All tests with all runtimes: several at a time, and those that fail once more alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::case::Recipe;
use crate::program::{self, Built, Outcome};
use crate::report::TestReport;
use crate::runtime::Runtime;
use crate::suite::Test;

/// A runtime that fails more tests than this is broken: nothing is tried again.
const AGAIN_MAX: usize = 25;

/// How far it is is told this often.
const TELL_S: u64 = 10;

/// A test and how it is run.
pub struct Job {
    /// Which.
    pub test: Test,
    /// How.
    pub recipe: Recipe,
}

/// What all tests share.
pub struct Harness<'a> {
    /// Under test.
    pub runtimes: &'a [Runtime],
    /// The one of them that is run only where another one fails.
    pub reference: Option<&'a str>,
    /// The source of GCC.
    pub gcc: &'a Path,
    /// The compiler's.
    pub version: String,
    /// Where programs are kept.
    pub cache: &'a Path,
    /// The suite is for all compilers, and ahead of them: what ours does not take is left out, and all runtimes run all tests.
    pub is_for_all: bool,
    /// `OMP_NUM_THREADS`.
    pub threads: u32,
    /// Time for one test.
    pub limit: Duration,
}

impl Harness<'_> {
    /// Runs `jobs`, `workers` at a time.
    pub fn run(
        &self,
        jobs: &[Job],
        workers: usize,
    ) -> Result<BTreeMap<String, TestReport>, String> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let (begun, told_s) = (Instant::now(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        // Relaxed: each takes another; the results go through the mutex.
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(job) = jobs.get(at) else { break };
                        let result = self.one(job);
                        let mut results = results.lock().expect("nobody panics with it");
                        results.push((job, result));
                        let now_s = begun.elapsed().as_secs();
                        if now_s >= told_s.load(Ordering::Relaxed) + TELL_S {
                            told_s.store(now_s, Ordering::Relaxed);
                            eprintln!("{} of {} tests, {now_s} s", results.len(), jobs.len());
                        }
                    }
                });
            }
        });
        let results = results.into_inner().expect("all have ended");
        let mut reports = BTreeMap::new();
        for (job, result) in results {
            reports.insert(job.test.name.clone(), result?);
        }
        for runtime in self.runtimes {
            let failed = |job: &&Job| {
                let outcome = reports[&job.test.name].outcomes.get(&runtime.name);
                outcome.is_some_and(|outcome| !outcome.passed)
            };
            let failed: Vec<&Job> = jobs.iter().filter(failed).collect();
            if failed.len() <= AGAIN_MAX {
                for job in failed {
                    let report = reports.get_mut(&job.test.name).expect("just put there");
                    self.again(job, runtime, report)?;
                }
            }
        }
        Ok(reports)
    }

    fn build(&self, job: &Job) -> Result<Built, String> {
        program::build(&job.test, &job.recipe, self.gcc, &self.version, self.cache)
            .map_err(|error| format!("{}: {error}", job.test.name))
    }

    fn with(&self, job: &Job, built: &Built, runtime: &Runtime) -> Result<Outcome, String> {
        match built {
            Built::Program(program) => {
                program::run(program, &job.recipe, runtime, self.threads, self.limit)
                    .map_err(|error| format!("{}: {error}", job.test.name))
            }
            Built::Failed(error) => Ok(Outcome {
                passed: false,
                why: format!("it does not compile: {error}"),
                timed_out: false,
                wall_s: 0.0,
            }),
        }
    }

    fn one(&self, job: &Job) -> Result<TestReport, String> {
        let mut report = TestReport::default();
        let built = self.build(job)?;
        if self.is_for_all && matches!(built, Built::Failed(_)) {
            let compiler = job.test.language.compiler();
            report.skipped = Some(format!("{compiler} does not compile it"));
            return Ok(report);
        }
        let is_reference = |runtime: &&Runtime| Some(runtime.name.as_str()) == self.reference;
        let (last, first): (Vec<_>, Vec<_>) = self.runtimes.iter().partition(is_reference);
        for runtime in first.into_iter().chain(last) {
            let all_passed = report.outcomes.values().all(|outcome| outcome.passed);
            if is_reference(&runtime) && all_passed && !self.is_for_all {
                continue;
            }
            let outcome = self.with(job, &built, runtime)?;
            if !outcome.passed {
                // As soon as it is known; the report comes at the end.
                eprintln!("{}: {}: {}", runtime.name, job.test.name, outcome.why);
            }
            report.outcomes.insert(runtime.name.clone(), outcome);
        }
        Ok(report)
    }

    /// Beside others it may have failed for want of CPUs. One whose time was up is told apart: it may have waited for what never comes.
    fn again(&self, job: &Job, runtime: &Runtime, report: &mut TestReport) -> Result<(), String> {
        let built = self.build(job)?;
        if matches!(built, Built::Failed(_)) {
            return Ok(());
        }
        let outcome = self.with(job, &built, runtime)?;
        if outcome.passed {
            let first = report.outcomes.insert(runtime.name.clone(), outcome);
            let was_late = first.is_some_and(|first| first.timed_out);
            let list = match was_late {
                true => &mut report.late,
                false => &mut report.flaky,
            };
            list.push(runtime.name.clone());
        }
        Ok(())
    }
}
