//! Builds the rivals that are written in C++, those that are installed.

use std::process::Command;
use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=src/rivals.cpp");
    println!("cargo::rustc-check-cfg=cfg(has_openmp, has_parallel_mode, has_tbb)");
    let openmp = compiles(
        "#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }",
        &["-fopenmp"],
    );
    let parallel_mode = openmp
        && compiles(
            "#include <parallel/algorithm>\nint main() { int a[] = {2, 1}; __gnu_parallel::sort(a, a + 2); return a[0] != 1; }",
            &["-fopenmp"],
        );
    let tbb = compiles(
        "#include <tbb/parallel_for.h>\nint main() { return tbb::this_task_arena::max_concurrency() < 1; }",
        &["-ltbb"],
    );
    if !openmp && !tbb {
        return;
    }
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .warnings(false)
        .file("src/rivals.cpp");
    if openmp {
        println!("cargo::rustc-cfg=has_openmp");
        build.flag("-fopenmp").define("HAS_OPENMP", None);
    }
    if parallel_mode {
        println!("cargo::rustc-cfg=has_parallel_mode");
        build.define("HAS_PARALLEL_MODE", None);
    }
    if tbb {
        println!("cargo::rustc-cfg=has_tbb");
        build.define("HAS_TBB", None);
    }
    build.compile("rivals");
    if openmp {
        println!("cargo::rustc-link-lib=gomp");
    }
    if tbb {
        println!("cargo::rustc-link-lib=tbb");
    }
}

/// Whether a C++ program builds: what a rival needs is installed.
fn compiles(source: &str, flags: &[&str]) -> bool {
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let (from, to) = (folder.join("try.cpp"), folder.join("try"));
    if fs::write(&from, source).is_err() {
        return false;
    }
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let built = Command::new(compiler)
        .arg("-std=c++17")
        .arg(&from)
        .args(flags)
        .arg("-o")
        .arg(&to)
        .output();
    built.is_ok_and(|built| built.status.success())
}
