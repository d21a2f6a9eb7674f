//! Our libgomp has every name of GCC's, and `docs/libgomp-symbols.md` is true.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `abi/libgomp/link.sh` puts it, or where the variable says that it is.
fn ours() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("AMDAHL_LIBGOMP") {
        return Some(path.into());
    }
    let runner = Path::new(env!("CARGO_BIN_EXE_amdahl-conformance"));
    let folder = runner.parent()?;
    ["openmp", "../release/openmp"]
        .iter()
        .map(|place| folder.join(place).join("libgomp.so.1"))
        .find(|path| path.exists())
}

#[test]
fn all_names_are_there_and_the_table_is_true() {
    let Some(ours) = ours() else {
        println!("SKIPPED: our libgomp.so.1 is not built (abi/libgomp/link.sh)");
        return;
    };
    let reference = Path::new("/usr/lib/x86_64-linux-gnu/libgomp.so.1");
    if !reference.exists() {
        println!("SKIPPED: GCC's libgomp is not installed (libgomp1)");
        return;
    }
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/libgomp-symbols.md");
    let output = Command::new(env!("CARGO_BIN_EXE_amdahl-conformance"))
        .arg("symbols")
        .args([reference, &ours])
        .arg("--check")
        .arg(&table)
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}
