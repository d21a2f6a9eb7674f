//! The names that the library exports, and their versions.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{library, text};

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
