//! `amdahl mem` on programs that print how many page faults of which kind they have, and which of
//! their mappings are not in huge pages for which reason.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

/// Not captured by the test harness.
fn skipped(reason: &str) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {reason}\n").as_bytes());
}

/// The planted program of this name, built once; `None` without a compiler.
fn planted(name: &'static str) -> Option<PathBuf> {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static BUILT: Mutex<BTreeMap<&str, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    // Nobody runs one that another test is still writing.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built
        .entry(name)
        .or_insert_with(|| {
            let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder"));
            build(name, folder.path())
        })
        .clone()
}

fn build(name: &str, folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/mem/{name}.c"));
    let program = folder.join(name);
    let built = Command::new("cc")
        .args(["-O2", "-g", "-Wall", "-Werror", "-o"])
        .args([&program, &source])
        .status();
    match built {
        Ok(status) => {
            assert!(status.success(), "{name}.c does not compile");
            Some(program)
        }
        Err(error) => {
            skipped(&format!("no C compiler: {error}"));
            None
        }
    }
}

fn amdahl() -> Command {
    Command::new(env!("CARGO_BIN_EXE_amdahl"))
}

fn json(command: &mut Command) -> Value {
    let output = command.output().expect("started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Whether the result was measured with BPF; says why not.
fn is_recorded(result: &Value) -> bool {
    let sources = result["sources"].as_array().expect("a list");
    let of = |what: &str| {
        sources
            .iter()
            .find(|s| s["what"] == what)
            .expect("a source")
    };
    let faults = of("page faults");
    if faults["how"] != "bpf" {
        skipped(faults["missing"].as_str().unwrap_or_default());
    }
    faults["how"] == "bpf"
}

fn sum(sites: &[Value], function: &str, kind: &str) -> u64 {
    sites
        .iter()
        .filter(|site| site["kind"] == kind)
        .filter(|site| {
            let stack = site["code"]["stack"].as_array().expect("a stack");
            stack.iter().any(|frame| frame == function)
        })
        .map(|site| site["count"].as_u64().expect("a count"))
        .sum()
}

#[test]
fn faults_are_counted_by_kind_and_function() {
    let Some(program) = planted("faults") else {
        return;
    };
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let out = place.path().join("out");
    let result = json(
        amdahl()
            .args(["mem", "--quiet", "--json", "-o"])
            .arg(&out)
            .arg("--")
            .arg(&program)
            .arg(place.path()),
    );
    if !is_recorded(&result) {
        return;
    }
    if result["faults"]["lost"] != 0 {
        return skipped("events were lost on this busy machine");
    }
    let sites = result["faults"]["sites"].as_array().expect("a list");
    // How many faults a file takes is another number each time.
    let said = std::fs::read_to_string(place.path().join("said")).expect("what it says");
    let mut planted = 0;
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [function, kind, count] = words[..] else {
            panic!("{line}");
        };
        let count: u64 = count.parse().expect("a number");
        // Copies of what was mapped from a file are not told from first uses without error codes.
        if cfg!(not(target_arch = "x86_64")) && kind != "first-touch" {
            continue;
        }
        assert_eq!(sum(sites, function, kind), count, "{line}");
        planted += count;
    }
    let seen = result["faults"]["count"].as_u64().expect("a count");
    let accounted = result["faults"]["accounted"].as_u64().expect("counted");
    assert!(
        seen >= planted && accounted >= planted,
        "{seen} {accounted}"
    );
    // The fork of the program itself was before the recording.
    let before = accounted.abs_diff(seen);
    assert!(before < 500, "{seen} were seen, {accounted} counted");
    for file in ["result.json", "report.html", "samples.parquet"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    let shown = amdahl().arg("report").arg(&out).output().expect("started");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        shown.status.success() && text.contains("copy-on-write"),
        "{text}"
    );
}

/// Holds of the lock under a planted program, and the numbers that it prints; `None` where they are not told.
fn holds_under(name: &'static str) -> Option<(Vec<Value>, Vec<u64>)> {
    let program = planted(name)?;
    let mut command = amdahl();
    command
        .args(["mem", "--quiet", "--json", "--holds", "--"])
        .arg(&program);
    let result = json(&mut command);
    if !is_recorded(&result) || result["faults"]["lost"] != 0 {
        return None;
    }
    let sources = result["sources"].as_array().expect("a list");
    let source = sources.iter().find(|s| s["what"] == "holds of mmap_lock");
    let source = source.expect("a source");
    if source["how"] == "missing" {
        skipped(source["missing"].as_str().unwrap_or_default());
        return None;
    }
    let said = Command::new(&program).output().expect("started");
    let said = String::from_utf8_lossy(&said.stdout);
    let numbers = said.split_whitespace();
    let numbers = numbers.map(|number| number.parse().expect("a number"));
    let holds = result["mmap_lock"]["holds"].as_array().expect("a list");
    Some((holds.clone(), numbers.collect()))
}

/// How many there were in an operation, for reading or for writing.
fn count_of(holds: &[Value], operation: &str, mode: &str) -> u64 {
    let is_it = |row: &&Value| row["operation"] == operation && row["mode"] == mode;
    let rows = holds.iter().filter(is_it);
    rows.map(|row| row["count"].as_u64().expect("a count"))
        .sum()
}

#[test]
fn holds_of_the_lock_are_counted_by_operation() {
    let Some((holds, said)) = holds_under("mprotect") else {
        return;
    };
    let [calls] = said[..] else {
        panic!("{said:?}");
    };
    // The dynamic linker and threads' stacks are protected, too.
    let found = count_of(&holds, "mprotect", "write");
    assert!(
        (calls..calls + 50).contains(&found),
        "{calls} calls, {found} holds: {holds:?}"
    );
}

/// Fork takes the lock of the child while it holds the one of the parent, and unmapping goes on as a
/// reader: only the child's was told once, and of unmapping only the reading.
#[test]
fn holds_that_nest_or_are_downgraded_are_all_counted() {
    let Some((holds, said)) = holds_under("forks") else {
        return;
    };
    let [forks, unmaps] = said[..] else {
        panic!("{said:?}");
    };
    let of = |operation, mode| count_of(&holds, operation, mode);
    let forked = of("fork", "write");
    assert!(
        (2 * forks..2 * forks + 50).contains(&forked),
        "{forks} forks, {forked} holds: {holds:?}"
    );
    // Not every unmapping need go on as a reader.
    let (wrote, read) = (of("munmap", "write"), of("munmap", "read"));
    assert!(
        wrote >= unmaps && wrote >= read,
        "{unmaps} unmappings, {wrote} and {read} holds: {holds:?}"
    );
}

/// The first setting in brackets of a file of the kernel's, empty without it.
fn setting(name: &str) -> String {
    let path = Path::new("/sys/kernel/mm/transparent_hugepage").join(name);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or(String::new(), |(chosen, _)| chosen.to_owned())
}

/// The result of a planted program that waits with its memory, and for each line that it says the word behind the address
/// and the mapping there; `None` where it cannot have it.
fn mappings_under(name: &'static str, more: &[&str]) -> Option<(Value, Vec<(String, Value)>)> {
    let program = planted(name)?;
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut child = Command::new(program)
        .arg(place.path())
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let lines: Vec<String> = lines
        .map(|line| line.expect("text"))
        .take_while(|line| line != "ready")
        .collect();
    let pid = child.id().to_string();
    if lines.is_empty() {
        drop(child.stdin.take());
        let _ = child.wait();
        skipped(&format!("{name} does not get its memory"));
        return None;
    }
    let result = json(amdahl().args(["mem", "--json", "--for", "50ms", "--pid", &pid]));
    drop(child.stdin.take());
    assert!(child.wait().expect("waited for").success());
    let mappings = result["huge"]["mappings"].as_array().expect("a list");
    let found = lines.iter().map(|line| {
        let (address, reason) = line.split_once(' ').expect("two words");
        let mapping = mappings.iter().find(|m| m["start"] == address);
        let mapping = mapping.unwrap_or_else(|| panic!("no mapping at {line}: {mappings:?}"));
        (reason.to_owned(), mapping.clone())
    });
    let found = found.collect();
    Some((result, found))
}

fn reasons(more: &[&str]) -> Option<Vec<(String, Value)>> {
    Some(mappings_under("pages", more)?.1)
}

/// Mappings of more than 1 GiB of addresses had no sizes of pages, and nobody said so.
#[test]
fn sizes_of_pages_are_told_of_large_mappings() {
    let Some((result, found)) = mappings_under("sparse", &[]) else {
        return;
    };
    let sources = result["sources"].as_array().expect("a list");
    let source = sources.iter().find(|s| s["what"] == "sizes of pages");
    let source = source.expect("a source");
    if source["how"] == "missing" {
        return skipped(source["missing"].as_str().unwrap_or_default());
    }
    let page = rustix::param::page_size().to_string();
    let [small, large] = &found[..] else {
        panic!("{found:?}");
    };
    for (said, mapping) in [small, large] {
        let resident: u64 = said.parse().expect("a number");
        assert_eq!(mapping["resident_bytes"], resident, "{mapping}");
        assert_eq!(mapping["sizes"][&page], resident, "{mapping}");
    }
    // Of the larger one there are too many addresses.
    let seen = |mapping: &Value| mapping["sizes_seen_bytes"].as_u64().expect("told");
    assert_eq!(small.1["sizes_seen_bytes"], small.1["resident_bytes"]);
    let (seen, resident) = (seen(&large.1), large.1["resident_bytes"].as_u64());
    let resident = resident.expect("told");
    assert!(seen > resident / 20 && seen < resident, "{seen} {resident}");
    let missing = source["missing"].as_str().expect("text");
    assert!(
        missing.contains("of 1 mappings parts were looked at"),
        "{missing}"
    );
}

fn first_obstacle(mapping: &Value) -> &str {
    mapping["obstacles"][0][0].as_str().unwrap_or("huge")
}

#[test]
fn what_prevents_huge_pages_is_told() {
    let (anonymous, shmem) = (setting("enabled"), setting("shmem_enabled"));
    if anonymous == "never" || anonymous.is_empty() {
        return skipped("this machine gives no huge pages");
    }
    let Some(found) = reasons(&[]) else { return };
    for (reason, mapping) in &found {
        let first = first_obstacle(mapping);
        // Memory in pieces may keep any of them small: that is an answer, too.
        if first == "fragmented" {
            skipped(&format!("{reason}: memory is fragmented"));
            continue;
        }
        match reason.as_str() {
            "not-advised" if anonymous == "always" => assert_eq!(first, "huge", "{mapping}"),
            // Some file systems make large folios all the same.
            "file" => assert!(first == "file" || first == "huge", "{mapping}"),
            "shmem-policy" if shmem != "never" && shmem != "deny" => {}
            "edges" => {
                assert_eq!(first, "edges", "{mapping}");
                assert_eq!(mapping["obstacles"][0][1], 2 << 20, "{mapping}");
                assert_eq!(mapping["huge_bytes"], 4 << 20, "{mapping}");
            }
            "huge" => assert_eq!(mapping["huge_bytes"], 8 << 20, "{mapping}"),
            // The kernel may have collapsed it since.
            "not-collapsed" => assert!(first == reason || first == "huge", "{mapping}"),
            reason => assert_eq!(first, reason, "{mapping}"),
        }
    }
}

#[test]
fn a_process_may_refuse_them_all() {
    if matches!(setting("enabled").as_str(), "never" | "") {
        return skipped("this machine gives no huge pages");
    }
    let Some(found) = reasons(&["disabled"]) else {
        return;
    };
    let of = |reason: &str| found.iter().find(|(r, _)| r == reason).expect("planted");
    for reason in ["not-advised", "huge", "not-collapsed"] {
        assert_eq!(first_obstacle(&of(reason).1), "process-disabled");
    }
}

#[test]
fn without_privileges_counts_and_mappings_remain() {
    let Some(program) = planted("faults") else {
        return;
    };
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut command = amdahl();
    command.args(["mem", "--quiet", "--json", "--probe", "proc", "--"]);
    let result = json(command.arg(&program).arg(place.path()));
    let kinds = result["faults"]["kinds"].as_array().expect("a list");
    let minor = kinds
        .iter()
        .find(|kind| kind["kind"] == "minor")
        .expect("told");
    assert!(minor["count"].as_u64().expect("a count") > 6000, "{minor}");
    let sources = result["sources"].as_array().expect("a list");
    let lock = sources
        .iter()
        .find(|s| s["what"] == "waits for mmap_lock")
        .expect("told");
    assert_eq!(lock["how"], "missing");
    assert!(!lock["remedy"].as_str().expect("text").is_empty());
}
