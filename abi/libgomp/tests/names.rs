//! The names that the library exports, and their versions.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Program, library, text};

/// `NAME@VERSION` (or `@@`) of a shared library, as `nm` prints them.
fn names(library: &Path) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(library);
    let output = nm.output().expect("nm, which link.sh needs as well");
    assert!(output.status.success(), "{nm:?}: {}", text(&output.stderr));
    let names = text(&output.stdout);
    names
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| name.contains('@'))
        .map(str::to_owned)
        .collect()
}

/// What OpenACC and offloading plugins use, which this library does not have.
fn is_absent(name: &str) -> bool {
    ["acc_", "GOACC_", "GOMP_PLUGIN_"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// The library that programs run with where nothing else is said.
fn gccs() -> Option<PathBuf> {
    let gcc = Command::new("gcc")
        .arg("-print-file-name=libgomp.so.1")
        .output()
        .ok()?;
    let path = PathBuf::from(text(&gcc.stdout).trim());
    path.is_absolute().then_some(path)
}

#[test]
fn all_names_of_gccs_library_are_there_with_their_versions() {
    let Some(gccs) = gccs() else {
        println!(
            "SKIPPED all_names_of_gccs_library_are_there_with_their_versions: gcc knows no libgomp.so.1"
        );
        return;
    };
    let ours = names(&library().join("libgomp.so.1"));
    let missing: Vec<String> = names(&gccs)
        .into_iter()
        .filter(|name| !is_absent(name) && !ours.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// What each version of GCC has added to its library, which may be younger than the one that is installed.
fn added() -> BTreeMap<u32, BTreeSet<String>> {
    let mut added: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    let mut version = 0;
    for line in include_str!("names.txt").lines() {
        if let Some(heading) = line.strip_prefix("# GCC ") {
            version = heading.parse().expect("a number");
        } else if !line.starts_with('#') && !line.is_empty() {
            assert!(line.contains("@@"), "{line}");
            added.entry(version).or_default().insert(line.to_owned());
        }
    }
    added
}

#[test]
fn names_of_gcc_13_to_15_are_there_with_their_versions() {
    let added = added();
    assert_eq!(Vec::from_iter(added.keys()), [&13, &14, &15]);
    let ours = names(&library().join("libgomp.so.1"));
    for (version, names) in &added {
        let missing: Vec<&String> = names.difference(&ours).collect();
        assert!(missing.is_empty(), "GCC {version}: {missing:#?}");
    }
    // And the list has all that is younger than the one that is installed.
    let Some(gccs) = gccs() else {
        return;
    };
    let gccs = names(&gccs);
    let unknown: Vec<&String> = ours
        .difference(&gccs)
        .filter(|&name| !added.values().any(|names| names.contains(name)))
        .collect();
    assert!(unknown.is_empty(), "GCC has no {unknown:#?}");
}

#[test]
fn nothing_else_is_exported() {
    let map = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/libgomp.map"))
        .expect("the map");
    let listed: BTreeSet<&str> = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .collect();
    let exported = names(&library().join("libgomp.so.1"));
    assert!(!exported.is_empty());
    for name in &exported {
        let bare = name.split('@').next().expect("a name");
        assert!(listed.contains(bare), "{name} is not in the map");
    }
    let exported: BTreeSet<&str> = exported
        .iter()
        .filter_map(|name| name.split('@').next())
        .collect();
    let all = listed
        .iter()
        .filter(|name| name.starts_with("GOMP_") || name.starts_with("omp_"));
    let missing: Vec<_> = all.filter(|name| !exported.contains(*name)).collect();
    assert!(
        missing.is_empty(),
        "in the map and in no source: {missing:?}"
    );
}

/// Names that no program of these tests uses, and why not: `NAME` or the beginning of names, `NAME*`.
const UNUSED: &[(&str, &str)] = &[(
    "GOMP_offload_*",
    "what is loaded with code for other devices calls it, with tables that the compiler makes; there are no such devices here",
)];

fn is_unused(name: &str) -> bool {
    UNUSED.iter().any(|(unused, _)| {
        let start = unused.strip_suffix('*');
        start.map_or(*unused == name, |start| name.starts_with(start))
    })
}

/// The identifiers of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// What programs of these tests call: by name (or through `dlsym`), or because the compiler makes it of a directive.
#[test]
fn every_name_is_used_by_a_program_of_these_tests() {
    let test = "every_name_is_used_by_a_program_of_these_tests";
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c"));
    let mut used = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("a source").path();
        let source = std::fs::read_to_string(&path).expect("a text");
        // Elsewhere a name may be declared and never called.
        let sought = source.lines().filter(|line| line.contains("dlsym("));
        used.extend(sought.flat_map(words).map(str::to_owned));
        // The others are parts of programs, and use what programs use.
        if !source.contains("int main(") {
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str());
        let Some(program) = Program::build(test, name.expect("a name")) else {
            return;
        };
        let mut nm = Command::new("nm");
        nm.args(["-D", "--undefined-only"]).arg(program.path());
        let output = nm.output().expect("nm, which link.sh needs as well");
        used.extend(words(&text(&output.stdout)).map(str::to_owned));
    }
    // The older of two versions is asked for by its whole name, see `old_locks.c`.
    let exported: BTreeSet<String> = names(&library().join("libgomp.so.1"))
        .iter()
        .filter_map(|name| name.split('@').next())
        .filter(|name| name.starts_with("omp_") || name.starts_with("GOMP_"))
        .map(str::to_owned)
        .collect();
    let missing: Vec<&String> = exported
        .iter()
        .filter(|name| !used.contains(*name) && !is_unused(name))
        .collect();
    assert!(missing.is_empty(), "no program uses {missing:#?}");
    let needless: Vec<&String> = exported
        .iter()
        .filter(|name| used.contains(*name) && is_unused(name))
        .collect();
    assert!(needless.is_empty(), "used after all: {needless:#?}");
}
