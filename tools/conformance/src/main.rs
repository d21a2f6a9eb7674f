//! Runs GCC's test suite of libgomp against OpenMP runtimes.
//!
//! The tests are those of GCC 12, from Debian's package `gcc-12-source`; nothing of them is in
//! this tree. Each is compiled once against GCC's own libgomp, as programs are, and run with the
//! `libgomp.so.1` of each runtime in its place. What the directives of a test say about options,
//! environment, expected failure and output is respected, as DejaGnu would.

mod case;
mod directive;
mod facts;
mod harness;
mod process;
mod program;
mod report;
mod runtime;
mod selector;
mod suite;
mod symbols;
mod validation;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;

use case::Language;
use harness::{Harness, Job};
use report::{Report, TestReport};
use runtime::Given;
use suite::SuiteError;

/// Runs GCC's test suite of libgomp against OpenMP runtimes.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  amdahl-conformance gcc=- ours=target/release/openmp --reference gcc
  amdahl-conformance --only 'barrier|critical' --language c ours=target/release/openmp
  amdahl-conformance --list
  amdahl-conformance --validation ~/OpenMP_VV --only '^5[.]0/' --reference gcc gcc=- ours=target/release/openmp

Exit codes: 0 all passed, 1 some failed or nothing could be judged (a runtime that is not loaded, a
full disk): the reason begins with FAILED; 2 the command line is wrong; 3 the suite or the compilers
are not here: the reason begins with SKIPPED.")]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Subcommand>,
    /// Runtimes: a name and the folder of its libgomp.so.1, or - for this machine's [default: gcc=-]
    #[arg(value_name = "NAME=FOLDER")]
    runtimes: Vec<Given>,
    /// Only tests whose name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    only: Option<regex::Regex>,
    /// Leave out tests whose name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    except: Option<regex::Regex>,
    /// Only tests of these languages
    #[arg(long, value_name = "LANGUAGE", value_delimiter = ',', value_parser = language)]
    language: Vec<Language>,
    /// What fails with this runtime too is no failure; of GCC's tests it runs only those that another one fails
    #[arg(long, value_name = "NAME")]
    reference: Option<String>,
    /// Names of the tests, and why some are not run; runs none
    #[arg(long)]
    list: bool,
    /// Compile only
    #[arg(long)]
    build: bool,
    /// Tests at a time [default: CPUs that may be used]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// OMP_NUM_THREADS of tests that do not set it
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: u32,
    /// Seconds that a test may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Write all results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show the tests that took longest
    #[arg(long, value_name = "N", default_value_t = 0)]
    slowest: usize,
    /// A folder with libgomp/ and include/ of GCC, instead of Debian's package
    #[arg(long, value_name = "FOLDER")]
    gcc_source: Option<PathBuf>,
    /// The OpenMP Validation and Verification Suite in FOLDER, a checkout of it, instead of GCC's tests
    #[arg(long, value_name = "FOLDER", conflicts_with = "gcc_source")]
    validation: Option<PathBuf>,
    /// Where the suite and the compiled tests are kept [default: conformance/ in cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
}

/// What else there is to compare.
#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Compare the names that two libraries export, with their versions
    Symbols {
        /// GCC's libgomp.so.1
        reference: PathBuf,
        /// The library under test
        ours: PathBuf,
        /// Write the table of all names to this file
        #[arg(long, value_name = "FILE")]
        write: Option<PathBuf>,
        /// Fail if this file is not that table
        #[arg(long, value_name = "FILE")]
        check: Option<PathBuf>,
    },
}

/// True if `ours` lacks nothing and the table is up to date.
fn compare_symbols(
    reference: &Path,
    ours: &Path,
    write: Option<&Path>,
    check: Option<&Path>,
) -> Result<bool, Stop> {
    let (reference, ours) = (symbols::exported(reference)?, symbols::exported(ours)?);
    let table = symbols::table(&reference, &ours);
    if let Some(path) = write {
        std::fs::write(path, &table).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let missing = symbols::missing(&reference, &ours);
    for symbol in &missing {
        let mark = if symbol.is_default { "@@" } else { "@" };
        println!("missing: {}{mark}{}", symbol.name, symbol.version);
    }
    let mut is_right = missing.is_empty();
    if let Some(path) = check {
        let found = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if found != table {
            println!(
                "{} is out of date: write it again with --write",
                path.display()
            );
            is_right = false;
        }
    }
    println!(
        "{} of {} names are there",
        reference.intersection(&ours).count(),
        reference.len()
    );
    Ok(is_right)
}

fn language(text: &str) -> Result<Language, String> {
    match text {
        "c" => Ok(Language::C),
        "c++" => Ok(Language::Cxx),
        "fortran" => Ok(Language::Fortran),
        _ => Err("there are c, c++ and fortran".to_owned()),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Some(Subcommand::Symbols {
            reference,
            ours,
            write,
            check,
        }) => compare_symbols(reference, ours, write.as_deref(), check.as_deref()),
        None => conformance(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(Stop::Lacks(what)) => {
            println!("SKIPPED conformance: {what}");
            ExitCode::from(3)
        }
        Err(Stop::Broken(why)) => {
            println!("FAILED conformance: {why}");
            ExitCode::from(1)
        }
    }
}

/// Why nothing was judged.
enum Stop {
    /// The suite or the compilers are not here.
    Lacks(String),
    /// They are, and something else is wrong.
    Broken(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Stop {
        Stop::Broken(why)
    }
}

fn conformance(arguments: &Arguments) -> Result<bool, Stop> {
    let cache = match &arguments.cache {
        Some(cache) => cache.clone(),
        None => {
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
            target.join("conformance")
        }
    };
    std::fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let cache = cache
        .canonicalize()
        .map_err(|error| format!("{}: {error}", cache.display()))?;
    let gcc = match &arguments.validation {
        Some(given) => validation::source(given),
        None => suite::source(arguments.gcc_source.as_deref(), &cache)
            .map(|gcc| gcc.canonicalize().unwrap_or(gcc)),
    };
    let gcc = gcc.map_err(|error| match error {
        SuiteError::NoPackage => Stop::Lacks(error.to_string()),
        _ => Stop::Broken(error.to_string()),
    })?;
    // Which library programs load is found out with a C program.
    compiler_version(Language::C).map_err(Stop::Lacks)?;
    program::configure(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let mut report = Report::default();
    let jobs = select(arguments, &gcc, &mut report)?;
    if arguments.list {
        for job in &jobs {
            println!("{}", job.test.name);
        }
        print!("{}", report.text(&[], 0));
        return Ok(true);
    }
    let default = [Given {
        name: "gcc".to_owned(),
        folder: None,
    }];
    let runtimes = if arguments.build {
        Vec::new()
    } else if arguments.runtimes.is_empty() {
        runtime::check(&default, &cache)?
    } else {
        runtime::check(&arguments.runtimes, &cache)?
    };
    report.runtimes = runtimes
        .iter()
        .map(|runtime| (runtime.name.clone(), runtime.library.display().to_string()))
        .collect();
    if let Some(reference) = &arguments.reference
        && !report.runtimes.contains_key(reference)
    {
        let why = format!("--reference {reference}: there is no runtime of that name");
        return Err(Stop::Broken(why));
    }
    let harness = Harness {
        runtimes: &runtimes,
        reference: arguments.reference.as_deref(),
        gcc: &gcc,
        version: report.compiler.clone(),
        cache: &cache,
        is_for_all: arguments.validation.is_some(),
        threads: arguments.threads,
        limit: Duration::from_secs(arguments.timeout),
    };
    let workers = arguments.jobs.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    report.tests.extend(harness.run(&jobs, workers)?);
    print!("{}", report.text(&runtimes, arguments.slowest));
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&report).expect("a report is JSON");
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let reference = arguments.reference.as_deref();
    let judged = || {
        runtimes
            .iter()
            .filter(|runtime| Some(runtime.name.as_str()) != reference)
    };
    let failed: usize = judged()
        .map(|runtime| report.failed(&runtime.name, reference).len())
        .sum();
    let passed: usize = judged().map(|runtime| report.passed(&runtime.name)).sum();
    if arguments.validation.is_some() {
        print!("\n{}", report.differences());
    }
    let late = report.late(reference);
    if !late.is_empty() {
        print!("\n{late}");
    }
    println!(
        "\n{passed} passed, {failed} failed, {} skipped",
        report.skipped()
    );
    Ok(failed == 0)
}

/// The tests that are run; what is skipped goes into the report.
fn select(arguments: &Arguments, gcc: &Path, report: &mut Report) -> Result<Vec<Job>, Stop> {
    let all = [Language::C, Language::Cxx, Language::Fortran];
    let wanted: Vec<Language> = all
        .into_iter()
        .filter(|language| arguments.language.is_empty() || arguments.language.contains(language))
        .collect();
    let mut jobs = Vec::new();
    for language in wanted {
        let facts = facts::Here::read(language);
        let compiler = compiler_version(language);
        if let Ok(version) = &compiler {
            report.compiler = version.clone();
        }
        let tests = match &arguments.validation {
            Some(_) => validation::tests(gcc, language),
            None => suite::tests(gcc, language),
        };
        for test in tests.map_err(|error| error.to_string())? {
            let is = |regex: &Option<regex::Regex>, otherwise| {
                regex
                    .as_ref()
                    .map_or(otherwise, |regex| regex.is_match(&test.name))
            };
            if !is(&arguments.only, true) || is(&arguments.except, false) {
                continue;
            }
            let source = std::fs::read(&test.source)
                .map_err(|error| format!("{}: {error}", test.source.display()))?;
            let text = String::from_utf8_lossy(&source);
            let recipe = match &arguments.validation {
                Some(_) => Ok(validation::recipe(&test, gcc, &text)),
                None => case::recipe(&text, language, &facts).map_err(|skip| skip.to_string()),
            };
            match compiler.clone().and(recipe) {
                Ok(recipe) => jobs.push(Job { test, recipe }),
                Err(reason) => {
                    report.tests.insert(
                        test.name,
                        TestReport {
                            skipped: Some(reason),
                            ..TestReport::default()
                        },
                    );
                }
            }
        }
    }
    if jobs.is_empty() {
        return Err(Stop::Broken("no test is left to run".to_owned()));
    }
    Ok(jobs)
}

fn compiler_version(language: Language) -> Result<String, String> {
    let compiler = language.compiler();
    let missing = || format!("{compiler}, which is not installed");
    let output = Command::new(compiler)
        .arg("--version")
        .output()
        .map_err(|_| missing())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(str::to_owned).ok_or_else(missing)
}
