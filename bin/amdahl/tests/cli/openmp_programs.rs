//! Real programs under our OpenMP runtime and under GCC's: the same results.
//!
//! Debian's packages; what is not installed is SKIPPED.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tool::{Place, alone, bpf, cpus, skipped};

/// Our runtime: where the variable says, or where `abi/libgomp/link.sh` puts it.
fn ours() -> Option<PathBuf> {
    let found = match std::env::var_os("AMDAHL_LIBGOMP") {
        Some(path) => Some(PathBuf::from(path)),
        None => {
            // Of the same build, or the one that `make` has made.
            let folder = Path::new(env!("CARGO_BIN_EXE_amdahl")).parent()?;
            ["openmp", "../release/openmp"]
                .iter()
                .map(|place| folder.join(place).join("libgomp.so.1"))
                .find(|path| path.is_file())
        }
    };
    let found = found.and_then(|path| path.canonicalize().ok());
    if found.is_none() {
        skipped("our libgomp.so.1 is not built");
    }
    found
}

/// Runs it under both; each says first which libgomp it has, then its results.
fn compare(place: &Place, ours: &Path, command: &[&str]) {
    let run = |prefix: &[&str]| {
        let args = [prefix, &["--"], command].concat();
        let mut tool = place.tool(["run"].iter().chain(&args));
        tool.env("AMDAHL_LIBGOMP", ours)
            .env("OMP_NUM_THREADS", "4")
            .env_remove("LD_PRELOAD")
            .env_remove("LD_LIBRARY_PATH");
        let ran = place.run(tool).ends_with(0);
        let (library, results) = ran.out.split_once('\n').expect("lines");
        (PathBuf::from(library), results.to_owned(), ran.err)
    };
    let (library, gcc, _) = run(&["-q", "--without", "openmp"]);
    assert_ne!(library, ours, "GCC's");
    let (library, own, said) = run(&["-q", "--stats"]);
    assert_eq!(library, ours, "it is found without being asked for");
    assert!(said.contains("openmp:"), "it says what it counted: {said}");
    assert_eq!(gcc, own);
    assert!(gcc.lines().count() >= 2, "{gcc}");
}

/// What `amdahl scale` takes the waits of a program under `amdahl run` for, that sleeps where it waits: causes, and stacks in which both names are.
/// `None` where that cannot be found out here.
fn waits(source: &Path, names: [&str; 2]) -> Option<Vec<(String, String)>> {
    if let Err(why) = bpf() {
        skipped(why);
        return None;
    }
    if cpus() < 2 {
        skipped("takes two CPUs");
        return None;
    }
    let ours = ours()?;
    let place = Place::new();
    let mut compiler = Command::new("g++");
    compiler.args(["-O2", "-g", "-fopenmp", "-o"]);
    let built = compiler.arg(place.join("program")).arg(source).output();
    if !built.is_ok_and(|built| built.status.success()) {
        skipped("there is no g++ with OpenMP");
        return None;
    }
    let amdahl = env!("CARGO_BIN_EXE_amdahl");
    let scale = ["scale", "--json", "--no-warmup", "-q", "--bare-runs", "0"];
    let points = ["--runs", "1", "--cpus", "1,2", "--", amdahl];
    let run = ["run", "-q", "--with", "openmp", "--", "./program", "{cpus}"];
    let mut tool = place.tool(scale.iter().chain(&points).chain(&run));
    tool.env("AMDAHL_LIBGOMP", ours)
        .env("OMP_WAIT_POLICY", "passive")
        .env("PLANTED_OUT", place.join("said"));
    let result = place.run(tool).ends_with(0).json();
    let mut found = Vec::new();
    for cause in result["causes"].as_array().expect("a list") {
        for site in cause["sites"].as_array().expect("a list") {
            let stack = site["stack"].to_string();
            if names.iter().all(|name| stack.contains(name)) {
                found.push((cause["id"].as_str().expect("text").to_owned(), stack));
            }
        }
    }
    Some(found)
}

/// Some of them are what they are to be, and none is one of these.
fn assert_are(found: &[(String, String)], wanted: &str, wrong: &[&str]) {
    let is_wrong = |(cause, _): &(String, String)| wrong.contains(&cause.as_str());
    assert!(!found.iter().any(is_wrong), "{found:#?}");
    let is_wanted = |(cause, _): &(String, String)| cause == wanted;
    assert!(found.iter().any(is_wanted), "{found:#?}");
}

/// The planted program, whose size is a matter of `planted/`; here it is what its waits are taken for, which holds on a busy machine too.
#[test]
fn the_barriers_of_a_program_under_run_are_barriers() {
    let _alone = alone();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planted/cpp/openmp.cpp");
    let names = ["amdahl_openmp::gate", "relax_the_grid"];
    let Some(found) = waits(Path::new(source), names) else {
        return;
    };
    let wrong = ["partner", "sleep", "lock-wait", "unexplained"];
    assert_are(&found, "barrier", &wrong);
}

/// `GOMP_critical_start` ends in a jump too.
#[test]
fn the_critical_sections_of_a_program_under_run_are_locks() {
    let _alone = alone();
    let place = Place::new();
    let source = place.join("critical.cpp");
    let text = "\
        #include <cstdlib>
        static volatile unsigned long sum;
        __attribute__((noinline)) static void guard_the_sum() {
        #pragma omp critical
            for (int turn = 0; turn < 200000; turn++) sum = sum + 1;
        }
        int main(int, char **argv) {
        #pragma omp parallel num_threads(std::atoi(argv[1]))
            for (int turn = 0; turn < 1000; turn++) guard_the_sum();
        }
        ";
    fs::write(&source, text).unwrap();
    let Some(found) = waits(&source, ["amdahl_openmp::lock", "guard_the_sum"]) else {
        return;
    };
    let wrong = ["partner", "sleep", "barrier", "unexplained"];
    assert_are(&found, "lock-wait", &wrong);
}

/// Products of whole numbers are exact; decompositions are right when what they give back is.
/// Of OpenBLAS's builds the one with OpenMP, whichever the system prefers.
const NUMPY: &str = "\
import glob, os, sys
builds = glob.glob('/usr/lib/*/openblas-openmp')
paths = os.environ.get('LD_LIBRARY_PATH', '').split(':')
if builds and builds[0] not in paths:
    os.environ['LD_LIBRARY_PATH'] = ':'.join(builds[:1] + [path for path in paths if path])
    os.execv(sys.executable, sys.orig_argv)
import hashlib
import numpy as np
rng = np.random.default_rng(7)
def maps():
    with open('/proc/self/maps') as f:
        return sorted({line.split()[-1] for line in f if '/libgomp' in line})
a = rng.integers(-50, 50, (700, 600)).astype(np.float64)
b = rng.integers(-50, 50, (600, 800)).astype(np.float64)
product = a @ b
print(*maps())
print('product', hashlib.sha256(product.tobytes()).hexdigest())
s = rng.standard_normal((400, 400)) + 400 * np.eye(400)
x = np.linalg.solve(s, np.ones(400))
print('solve', np.allclose(s @ x, 1, atol=1e-10))
q, r = np.linalg.qr(s)
print('qr', np.allclose(q @ r, s), np.allclose(q.T @ q, np.eye(400)))
u, d, v = np.linalg.svd(s[:200])
print('svd', np.allclose((u * d) @ v[:200], s[:200]))
w = np.linalg.eigvalsh(s + s.T)
print('eigvalsh', abs(w.sum() - np.trace(s + s.T)) < 1e-6)
";

/// Clusters that lie apart, trees over histograms and neighbours: what each computes in parallel loops and reductions.
const SKLEARN: &str = "\
import hashlib
import numpy as np
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.manifold import TSNE
from sklearn.metrics import pairwise_distances_argmin
def maps():
    with open('/proc/self/maps') as f:
        return sorted({line.split()[-1] for line in f if '/libgomp' in line})
rng = np.random.default_rng(11)
centers = np.array([[0, 0], [20, 0], [0, 20], [20, 20]])
group = rng.integers(0, 4, 20000)
x = centers[group] + rng.standard_normal((20000, 2))
print(*maps())
for algorithm in 'lloyd', 'elkan':
    k = KMeans(4, n_init=2, algorithm=algorithm, random_state=1).fit(x)
    named = pairwise_distances_argmin(k.cluster_centers_, centers)[k.labels_]
    print(algorithm, hashlib.sha256(named.astype('int32').tobytes()).hexdigest(), (named == group).mean() > 0.999)
c = HistGradientBoostingClassifier(max_iter=10, random_state=1).fit(x, group)
print('classes', (c.predict(x) == group).mean() > 0.999)
y = x[:, 0] * 3 - x[:, 1]
r = HistGradientBoostingRegressor(max_iter=60, random_state=1).fit(x, y)
print('regression', r.score(x, y) > 0.99)
t = TSNE(perplexity=10, n_iter=250, init='pca', random_state=1).fit_transform(x[:200])
print('tsne', t.shape, bool(np.isfinite(t).all()))
";

/// A Python program whose first line is the libgomp that it has loaded; `needs` are Debian's packages.
fn python(program: &str, needs: &str) {
    let place = Place::new();
    let Some(ours) = ours() else { return };
    let python = "/usr/bin/python3";
    let uses_openmp = Command::new(python)
        .args(["-c", program])
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout.starts_with(b"/"));
    if !uses_openmp {
        skipped(format!(
            "a Python program with OpenMP does not run ({needs})"
        ));
        return;
    }
    compare(&place, &ours, &[python, "-c", program]);
}

#[test]
fn numpy_with_openblas() {
    python(NUMPY, "python3-numpy, libopenblas0-openmp");
}

#[test]
fn scikit_learn() {
    python(SKLEARN, "python3-sklearn");
}

/// Says which libgomp R has, and sums that R itself computes with OpenMP.
const R: &str = r#"
maps <- grep("libgomp", readLines("/proc/self/maps"), value = TRUE)
cat(unique(sub("^[^/]*", "", maps)), sep = "\n")
x <- matrix((0:999999 * 7919) %% 1009, 1000)
cat("sums", sum(colSums(x)), max(colSums(x)), "\n")
cat("means", format(mean(colMeans(x)), digits = 12), "\n")
"#;

/// Debian's R has the system's folder searched before all others.
#[test]
fn r() {
    let place = Place::new();
    let Some(ours) = ours() else { return };
    let tried = Command::new("Rscript").args(["-e", R]).output();
    if !tried.is_ok_and(|output| output.status.success() && output.stdout.starts_with(b"/")) {
        skipped("no R with OpenMP (r-base-core)");
        return;
    }
    compare(&place, &ours, &["Rscript", "-e", R]);
    let script = place.join("sums.R");
    fs::write(&script, format!("#!/usr/bin/env Rscript\n{R}")).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its own");
    compare(&place, &ours, &["./sums.R"]);
}

/// Transforms forth and back, in one and three dimensions, by four threads.
const FFTW: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fftw3.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int transform (const char *name, int rank, const int *sizes)
{
  size_t count = 1;
  for (int i = 0; i < rank; i++)
    count *= sizes[i];
  fftw_complex *x = fftw_alloc_complex (count), *y = fftw_alloc_complex (count);
  fftw_plan_with_nthreads (4);
  fftw_plan forth = fftw_plan_dft (rank, sizes, x, y, FFTW_FORWARD, FFTW_ESTIMATE);
  fftw_plan back = fftw_plan_dft (rank, sizes, y, x, FFTW_BACKWARD, FFTW_ESTIMATE);
  for (size_t i = 0; i < count; i++)
    {
      x[i][0] = (double) (i * 7919 % 1009) - 504;
      x[i][1] = (double) (i * 104729 % 997) - 498;
    }
  fftw_execute (forth);
  unsigned long long sum = 0;
  for (size_t i = 0; i < count; i++)
    sum = sum * 31 + (long long) llround (y[i][0]) + 3 * (long long) llround (y[i][1]);
  fftw_execute (back);
  double worst = 0;
  for (size_t i = 0; i < count; i++)
    {
      double real = (double) (i * 7919 % 1009) - 504, imaginary = (double) (i * 104729 % 997) - 498;
      worst = fmax (worst, fmax (fabs (x[i][0] / count - real), fabs (x[i][1] / count - imaginary)));
    }
  printf ("%s %llu %s\n", name, sum, worst < 1e-6 ? "right" : "wrong");
  return worst >= 1e-6;
}
int main (void)
{
  Dl_info info;
  char path[4096];
  if (!fftw_init_threads () || !dladdr (dlsym (RTLD_DEFAULT, "omp_get_max_threads"), &info)
      || !realpath (info.dli_fname, path))
    return 1;
  puts (path);
  int line[] = {1 << 17}, cube[] = {48, 60, 64};
  return transform ("line", 1, line) | transform ("cube", 3, cube);
}
"#;

#[test]
fn fftw_with_openmp() {
    let place = Place::new();
    let Some(ours) = ours() else { return };
    fs::write(place.join("transform.c"), FFTW).expect("written");
    let built = Command::new("cc")
        .args(["-O2", "-fopenmp", "transform.c", "-o", "transform"])
        .args(["-lfftw3_omp", "-lfftw3", "-lm", "-ldl"])
        .current_dir(place.path())
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        skipped("no FFTW with OpenMP to build against (libfftw3-dev)");
        return;
    }
    compare(&place, &ours, &["./transform"]);
}
