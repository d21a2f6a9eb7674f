//! Tests as programs: compiled once, kept, run with a runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::case::Recipe;
use crate::process::{self, Ended};
use crate::runtime::{Runtime, environment};
use crate::suite::Test;

/// A test's program, or the reason why there is none.
pub enum Built {
    /// Its path.
    Program(PathBuf),
    /// What the compiler said.
    Failed(String),
}

/// What `configure` finds out on Linux, as far as tests ask for it.
const CONFIG: &str = "#define HAVE_PTHREAD_AFFINITY_NP 1\n";
const CONFIG_FOLDER: &str = "config";

/// Writes what tests include of a build of GCC.
pub fn configure(cache: &Path) -> std::io::Result<()> {
    let folder = cache.join(CONFIG_FOLDER);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("config.h"), CONFIG)
}

/// Longer than any of them takes on a busy machine.
const COMPILE_LIMIT: Duration = Duration::from_secs(300);

/// Compiles a test, unless that has been done before with the same options.
pub fn build(
    test: &Test,
    recipe: &Recipe,
    gcc: &Path,
    version: &str,
    cache: &Path,
) -> std::io::Result<Built> {
    let folder = cache.join("programs").join(folder_name(&test.name));
    let program = folder.join("test");
    let mut arguments: Vec<String> = vec!["-fopenmp".into(), "-w".into()];
    // Where GCC finds the headers of its own build.
    arguments.push(format!("-I{}", gcc.join("include").display()));
    arguments.push(format!("-I{}", gcc.join("libgomp").display()));
    arguments.push(format!("-I{}", cache.join(CONFIG_FOLDER).display()));
    // What Fortran modules are written to.
    if test.language == crate::case::Language::Fortran {
        arguments.push(format!("-J{}", folder.display()));
    }
    arguments.push(test.source.display().to_string());
    let beside = test.source.parent().unwrap_or(Path::new("."));
    arguments.extend(
        recipe
            .sources
            .iter()
            .map(|source| beside.join(source).display().to_string()),
    );
    arguments.extend(recipe.options.iter().cloned());
    arguments.extend(["-o".into(), program.display().to_string(), "-lm".into()]);
    // What the program was made by; whatever changes makes another.
    let stamp = format!("{version}\n{}\n", arguments.join("\n"));
    let (stamp_file, error_file) = (folder.join("stamp"), folder.join("error"));
    if fs::read_to_string(&stamp_file).is_ok_and(|before| before == stamp) {
        if program.exists() {
            return Ok(Built::Program(program));
        }
        if let Ok(error) = fs::read_to_string(&error_file) {
            return Ok(Built::Failed(error));
        }
    }
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let mut command = Command::new(test.language.compiler());
    command
        .args(&arguments)
        .current_dir(&folder)
        .env("LC_ALL", "C");
    let ended = process::run(&mut command, COMPILE_LIMIT)?;
    let built = if ended.is_success() {
        Built::Program(program)
    } else {
        let error = format!("{}: {}", ended.how(), first_error(&ended.output));
        if ended.status.is_none() {
            // The machine was busy: another time it may be different.
            return Ok(Built::Failed(error));
        }
        fs::write(&error_file, &error)?;
        Built::Failed(error)
    };
    // Last: who finds it finds all.
    fs::write(&stamp_file, stamp)?;
    Ok(built)
}

fn folder_name(name: &str) -> String {
    name.replace(['/', ' '], "_")
}

fn first_error(output: &str) -> String {
    let line = output.lines().find(|line| line.contains("rror:"));
    line.or(output.lines().next()).unwrap_or("").to_owned()
}

/// How a test ended with a runtime.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// As it should.
    pub passed: bool,
    /// What was wrong; empty if nothing was.
    pub why: String,
    /// It did not end within its time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// How long it took.
    pub wall_s: f64,
}

/// Runs the program of a test, in an empty folder of its own.
pub fn run(
    program: &Path,
    recipe: &Recipe,
    runtime: &Runtime,
    threads: u32,
    limit: Duration,
) -> std::io::Result<Outcome> {
    let place = tempfile::tempdir()?;
    let mut command = Command::new(program);
    environment(&mut command, runtime.folder.as_deref());
    command
        .current_dir(place.path())
        .env("OMP_NUM_THREADS", threads.to_string())
        .envs(&recipe.environment);
    let ended = process::run(&mut command, limit.mul_f64(recipe.timeout_factor.max(1.0)))?;
    let why = complaint(&ended, recipe);
    Ok(Outcome {
        passed: why.is_none(),
        why: why.unwrap_or_default(),
        timed_out: ended.status.is_none(),
        wall_s: ended.wall.as_secs_f64(),
    })
}

fn complaint(ended: &Ended, recipe: &Recipe) -> Option<String> {
    let last = || {
        let line = ended.output.lines().rfind(|line| !line.trim().is_empty());
        line.map_or(String::new(), |line| format!(": {}", shortened(line)))
    };
    if ended.status.is_none() || ended.is_success() == recipe.should_fail {
        let wanted = if recipe.should_fail {
            ", but it has to fail"
        } else {
            ""
        };
        return Some(format!("{}{wanted}{}", ended.how(), last()));
    }
    let wanted = recipe.output.as_ref()?;
    match regex::Regex::new(wanted) {
        Ok(regex) if regex.is_match(&ended.output) => None,
        Ok(_) => Some(format!("its output does not match {wanted:?}{}", last())),
        Err(error) => Some(format!(
            "the runner does not understand {wanted:?}: {error}"
        )),
    }
}

fn shortened(line: &str) -> String {
    line.trim().chars().take(120).collect()
}
