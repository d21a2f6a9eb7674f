//! The real programs, each with about one to three seconds of work for two CPUs.

use std::path::PathBuf;

use super::stage::Stage;
use super::{inputs, postgres};

/// A program to measure.
pub struct Program {
    /// What it is called in the table.
    pub name: &'static str,
    /// What the probe may cost it: wall time with it / without it.
    pub cost_max: f64,
    /// Other tools are measured beside ours.
    pub has_rivals: bool,
    /// Makes what it needs; gives its command with `{cpus}` in it, or why it cannot run.
    pub prepare: fn(&Stage) -> Result<Vec<String>, String>,
}

/// Messages of each sender of hackbench.
pub const HACKBENCH_LOOPS: u64 = 1000;

/// All of them, in the order of the table.
pub const ALL: [Program; 10] = [
    Program {
        has_rivals: true,
        ..ordinary("sort", sort)
    },
    ordinary("xz", xz),
    ordinary("zstd", zstd),
    ordinary("pigz", pigz),
    ordinary("pbzip2", pbzip2),
    ordinary("make", make),
    Program {
        has_rivals: true,
        cost_max: 1.10,
        ..ordinary("hackbench", hackbench)
    },
    ordinary("go", go),
    ordinary("java", java),
    ordinary("postgres", postgres::prepare),
];

const fn ordinary(
    name: &'static str,
    prepare: fn(&Stage) -> Result<Vec<String>, String>,
) -> Program {
    Program {
        name,
        cost_max: 1.02,
        has_rivals: false,
        prepare,
    }
}

/// Command of hackbench; the work does not depend on the CPUs.
pub fn hackbench_of(loops: u64) -> Vec<String> {
    words(&["hackbench", "-g", "4", "-l", &loops.to_string()])
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn need(program: &str, package: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if is_here {
        Ok(())
    } else {
        Err(format!("there is no {program} (package {package})"))
    }
}

fn text(stage: &Stage) -> Result<String, String> {
    let made = inputs::text(&stage.bench.join("data"));
    let path = made.map_err(|error| format!("cannot make the text: {error}"))?;
    Ok(path.to_string_lossy().into_owned())
}

fn sort(stage: &Stage) -> Result<Vec<String>, String> {
    need("sort", "coreutils")?;
    Ok(words(&[
        "sort",
        "--parallel={cpus}",
        "-S",
        "1G",
        &text(stage)?,
        "-o",
        "/dev/null",
    ]))
}

fn xz(stage: &Stage) -> Result<Vec<String>, String> {
    need("xz", "xz-utils")?;
    // Blocks small enough that many CPUs find one each.
    Ok(words(&[
        "xz",
        "-T{cpus}",
        "-1",
        "--block-size=1MiB",
        "-k",
        "-c",
        &text(stage)?,
    ]))
}

fn zstd(stage: &Stage) -> Result<Vec<String>, String> {
    need("zstd", "zstd")?;
    Ok(words(&[
        "zstd",
        "-T{cpus}",
        "-12",
        "-B1MiB",
        "-q",
        "-c",
        &text(stage)?,
    ]))
}

fn pigz(stage: &Stage) -> Result<Vec<String>, String> {
    need("pigz", "pigz")?;
    Ok(words(&[
        "pigz",
        "-p",
        "{cpus}",
        "-7",
        "-k",
        "-c",
        &text(stage)?,
    ]))
}

fn pbzip2(stage: &Stage) -> Result<Vec<String>, String> {
    need("pbzip2", "pbzip2")?;
    Ok(words(&["pbzip2", "-p{cpus}", "-k", "-c", &text(stage)?]))
}

fn make(stage: &Stage) -> Result<Vec<String>, String> {
    need("make", "make")?;
    need("cc", "gcc")?;
    let made = inputs::project(&stage.bench.join("data"));
    let folder = made.map_err(|error| format!("cannot make the C project: {error}"))?;
    // -B: everything again, every time.
    Ok(words(&[
        "make",
        "-s",
        "-B",
        "-C",
        &folder.to_string_lossy(),
        "-j{cpus}",
    ]))
}

fn hackbench(_: &Stage) -> Result<Vec<String>, String> {
    need("hackbench", "rt-tests")?;
    Ok(hackbench_of(HACKBENCH_LOOPS))
}

fn source(stage: &Stage, name: &str) -> PathBuf {
    stage.root.join("benches/programs").join(name)
}

fn go(stage: &Stage) -> Result<Vec<String>, String> {
    need("go", "golang-go")?;
    let binary = stage.bench.join("data/words-go");
    let mut build = stage.command("go");
    build
        .arg("build")
        .arg("-o")
        .arg(&binary)
        .arg(source(stage, "words.go"));
    stage.run(&mut build).map_err(|error| error.to_string())?;
    Ok(words(&[&binary.to_string_lossy(), "{cpus}", "800"]))
}

fn java(stage: &Stage) -> Result<Vec<String>, String> {
    need("java", "default-jdk-headless")?;
    need("javac", "default-jdk-headless")?;
    let classes = stage.bench.join("data/java");
    let mut build = stage.command("javac");
    build
        .arg("-d")
        .arg(&classes)
        .arg(source(stage, "Words.java"));
    stage.run(&mut build).map_err(|error| error.to_string())?;
    Ok(words(&[
        "java",
        "-cp",
        &classes.to_string_lossy(),
        "Words",
        "{cpus}",
        "800",
    ]))
}
