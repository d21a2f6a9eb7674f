//! The real programs, each with about one to three seconds of work for two CPUs.

use std::path::Path;

use crate::rounds::Watcher;
use crate::stage::Stage;
use crate::{inputs, postgres};

/// A program to measure.
pub struct Program {
    /// What it is called in the table.
    pub name: &'static str,
    /// What the probe may cost it: wall time with it / without it.
    pub cost_max: f64,
    /// Other tools that are measured beside ours.
    pub rivals: &'static [Watcher],
    /// Makes what it needs; gives its command with `{cpus}` in it, or why it cannot run.
    pub prepare: fn(&Stage) -> Result<Vec<String>, String>,
}

/// Messages of each sender of hackbench.
pub const HACKBENCH_LOOPS: u64 = 1000;

/// One that records about as much as ours, and two that tell less.
const FEW: [Watcher; 3] = [
    Watcher::PerfStacks,
    Watcher::PerfSched,
    Watcher::PerfContention,
];
/// And, where there is much to record, what the last costs in Debian's form.
const MANY: [Watcher; 4] = [
    Watcher::PerfStacks,
    Watcher::PerfSched,
    Watcher::PerfContention,
    Watcher::PerfLock,
];

/// All of them, in the order of the table.
pub const ALL: [Program; 10] = [
    Program {
        rivals: &MANY,
        ..ordinary("sort", sort)
    },
    ordinary("xz", xz),
    ordinary("zstd", zstd),
    ordinary("pigz", pigz),
    ordinary("pbzip2", pbzip2),
    ordinary("make", make),
    Program {
        rivals: &MANY,
        cost_max: 1.10,
        ..ordinary("hackbench", hackbench)
    },
    ordinary("go", go),
    ordinary("java", java),
    Program {
        rivals: &MANY,
        ..ordinary("postgres", postgres::prepare)
    },
];

const fn ordinary(
    name: &'static str,
    prepare: fn(&Stage) -> Result<Vec<String>, String>,
) -> Program {
    Program {
        name,
        cost_max: 1.02,
        rivals: &FEW,
        prepare,
    }
}

/// Command of hackbench; the work does not depend on the CPUs.
pub fn hackbench_of(loops: u64) -> Vec<String> {
    command(&format!("hackbench -g 4 -l {loops}"), Path::new(""))
}

/// The words of a command; `{input}` is one that may have blanks in it.
fn command(template: &str, input: &Path) -> Vec<String> {
    let input = input.to_string_lossy();
    let words = template.split_whitespace();
    words.map(|word| word.replace("{input}", &input)).collect()
}

fn need(program: &str, package: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        Ok(())
    } else {
        Err(format!("there is no {program} (package {package})"))
    }
}

/// A program that works on the text.
fn on_text(stage: &Stage, package: &str, template: &str) -> Result<Vec<String>, String> {
    need(template.split(' ').next().unwrap_or_default(), package)?;
    let made = inputs::text(&stage.bench.join("data"));
    let path = made.map_err(|error| format!("cannot make the text: {error}"))?;
    Ok(command(template, &path))
}

fn sort(stage: &Stage) -> Result<Vec<String>, String> {
    let template = "sort --parallel={cpus} -S 1G {input} {input} -o /dev/null";
    on_text(stage, "coreutils", template)
}

fn xz(stage: &Stage) -> Result<Vec<String>, String> {
    // Blocks small enough that many CPUs find one each.
    on_text(
        stage,
        "xz-utils",
        "xz -T{cpus} -0 --block-size=1MiB -k -c {input}",
    )
}

fn zstd(stage: &Stage) -> Result<Vec<String>, String> {
    on_text(stage, "zstd", "zstd -T{cpus} -9 -B1MiB -q -c {input}")
}

fn pigz(stage: &Stage) -> Result<Vec<String>, String> {
    on_text(stage, "pigz", "pigz -p {cpus} -9 -k -c {input} {input}")
}

fn pbzip2(stage: &Stage) -> Result<Vec<String>, String> {
    on_text(stage, "pbzip2", "pbzip2 -p{cpus} -k -c {input}")
}

fn make(stage: &Stage) -> Result<Vec<String>, String> {
    need("make", "make")?;
    need("cc", "gcc")?;
    let made = inputs::project(&stage.bench.join("data"));
    let folder = made.map_err(|error| format!("cannot make the C project: {error}"))?;
    // -B: everything again, every time.
    Ok(command("make -s -B -C {input} -j{cpus}", &folder))
}

fn hackbench(_: &Stage) -> Result<Vec<String>, String> {
    need("hackbench", "rt-tests")?;
    Ok(hackbench_of(HACKBENCH_LOOPS))
}

/// Builds one of the programs that come with the bench.
fn build(stage: &Stage, compiler: &[&str], to: &Path, source: &str) -> Result<(), String> {
    let mut command = stage.command(compiler[0]);
    let source = stage.root.join("benches/programs").join(source);
    command.args(&compiler[1..]).arg(to).arg(source);
    let done = stage.run(&mut command);
    done.map(drop).map_err(|error| error.to_string())
}

fn go(stage: &Stage) -> Result<Vec<String>, String> {
    need("go", "golang-go")?;
    let binary = stage.bench.join("data/words-go");
    build(stage, &["go", "build", "-o"], &binary, "words.go")?;
    Ok(command("{input} {cpus} 600", &binary))
}

fn java(stage: &Stage) -> Result<Vec<String>, String> {
    need("java", "default-jdk-headless")?;
    need("javac", "default-jdk-headless")?;
    let classes = stage.bench.join("data/java");
    build(stage, &["javac", "-d"], &classes, "Words.java")?;
    Ok(command("java -cp {input} Words {cpus} 600", &classes))
}
