//! Tells the library which model it is: a hash of the sources that results depend on.

use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "src/hash.rs"]
mod hash;

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files = vec![];
    // Policies are a part of it, and so is how OpenMP threads wait and how many there are. Outside of the workspace their version says enough.
    for folder in [here.join("src"), here.join("../placement/src")] {
        println!("cargo::rerun-if-changed={}", folder.display());
        sources(&folder, &mut files);
    }
    let decisions = [
        "openmp/src/policy.rs",
        "openmp/src/contention.rs",
        "openmp/src/sizing.rs",
        "phantom/src/average.rs",
        "phantom/src/estimate.rs",
        "phantom/src/host.rs",
    ];
    for decision in decisions {
        let file = here.join("..").join(decision);
        println!("cargo::rerun-if-changed={}", file.display());
        files.push(file);
    }
    files.sort();
    let texts: Vec<String> = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    let mut parts = vec![env!("CARGO_PKG_VERSION")];
    parts.extend(texts.iter().map(String::as_str));
    println!(
        "cargo::rustc-env=AMDAHL_MODEL={}",
        hash::content_hash(&parts)
    );
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
