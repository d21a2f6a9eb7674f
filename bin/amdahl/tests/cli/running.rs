//! `amdahl run`: what becomes of a program, and which runtime it gets.
//!
//! The runtime is a stand-in with the names and versions of libgomp that says who it is: what is
//! tested is who is called, not what it does.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::attaching::IN_QUOTA;
use crate::tool::{ORDINARY, Place, alone, cpus, has, is_root, skipped};

/// A libgomp that says its name in `GOMP_parallel`.
const RUNTIME: &str = r#"
#include <stdio.h>
void GOMP_parallel (void (*fn) (void *), void *data, unsigned threads, unsigned flags)
{
  printf ("%s\n", NAME);
  fflush (stdout);
  fn (data);
}
"#;

const VERSIONS: &str = "GOMP_4.0 { global: GOMP_parallel; local: *; };\n";

/// Calls the runtime, as a program that GCC has compiled does.
const CALLER: &str = r#"
extern void GOMP_parallel (void (*) (void *), void *, unsigned, unsigned);
static void nothing (void *data) { (void) data; }
void call (void) { GOMP_parallel (nothing, 0, 0, 0); }
#ifdef PROGRAM
int main (void) { call (); return 0; }
#endif
"#;

/// Opens an extension as Python does: its names are not seen by others.
const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main (int argc, char **argv)
{
  void *extension = dlopen (argv[1], RTLD_NOW | RTLD_LOCAL | (argc > 2 ? RTLD_DEEPBIND : 0));
  if (!extension)
    {
      puts (dlerror ());
      return 1;
    }
  ((void (*) (void)) dlsym (extension, "call")) ();
  return 0;
}
"#;

fn cc(place: &Place, source: &str, args: &[&str], output: &str) -> bool {
    let file = place.join(&format!("{}.c", output.replace('/', "_")));
    fs::write(&file, source).expect("written");
    if let Some(folder) = place.join(output).parent() {
        fs::create_dir_all(folder).expect("a folder");
    }
    let mut command = Command::new("cc");
    command
        .arg("-O1")
        .arg("-o")
        .arg(place.join(output))
        .arg(file)
        .args(args)
        .current_dir(place.path());
    let built = command.output().expect("cc is installed");
    built.status.success()
}

/// Builds a runtime called `name` at `path`; `soname` is what it calls itself.
fn runtime(place: &Place, name: &str, soname: &str, path: &str) -> PathBuf {
    fs::write(place.join("versions"), VERSIONS).expect("written");
    let args = [
        &format!("-DNAME=\"{name}\""),
        "-shared",
        "-fPIC",
        "-Wl,--version-script=versions",
        &format!("-Wl,-soname,{soname}"),
    ];
    assert!(cc(place, RUNTIME, &args, path), "a library");
    place.join(path)
}

/// Our stand-in, where `amdahl` is told that it is.
fn ours(place: &Place) -> PathBuf {
    runtime(place, "ours", "libgomp.so.1", "ours/libgomp.so.1")
}

fn tool(place: &Place, library: Option<&Path>, args: &[&str]) -> Command {
    untold(place, library, place.tool(["run"].iter().chain(args)))
}

/// A command whose environment has none of the variables that matter, and where our library is to be.
fn untold(place: &Place, library: Option<&Path>, mut command: Command) -> Command {
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "KMP_BLOCKTIME",
        "OMP_NUM_THREADS",
        "AMDAHL_OMP_THREADS",
    ] {
        command.env_remove(name);
    }
    command.env("HOME", place.path());
    command.env(
        "AMDAHL_LIBGOMP",
        library.unwrap_or(&place.join("there-is-none")),
    );
    command
}

fn plan(place: &Place, library: Option<&Path>, command: &[&str]) -> Value {
    let args: Vec<&str> = ["--dry-run", "--json", "--"]
        .iter()
        .chain(command)
        .copied()
        .collect();
    place.run(tool(place, library, &args)).ends_with(0).json()
}

fn remedy<'a>(plan: &'a Value, name: &str) -> &'a Value {
    let all = plan["remedies"].as_array().expect("a list");
    let found = all.iter().find(|remedy| remedy["remedy"] == name);
    found.expect("each remedy is told")
}

#[test]
fn the_program_takes_our_place() {
    let place = Place::new();
    for code in [0, 7, 125, 255] {
        let script = format!("exit {code}");
        place
            .run(tool(&place, None, &["-q", "--", "sh", "-c", &script]))
            .ends_with(code);
    }
    // The pipe signal too, which our own runtime ignores.
    for (name, number) in [("TERM", 15), ("KILL", 9), ("PIPE", 13)] {
        let script = format!("kill -{name} $$");
        let ran = place.run(tool(&place, None, &["--", "sh", "-c", &script]));
        assert_eq!(ran.status.signal(), Some(number));
    }
    // And what was ignored or blocked before stays so, as for services.
    let amdahl = env!("CARGO_BIN_EXE_amdahl");
    let mut ignoring = Command::new("sh");
    ignoring.args([
        "-c",
        "trap '' PIPE; exec \"$0\" run -q -- sh -c 'kill -PIPE $$; echo goes on'",
        amdahl,
    ]);
    assert_eq!(place.run(ignoring).ends_with(0).out, "goes on\n");
    let mut blocking = Command::new("env");
    blocking.args([
        "--block-signal=USR1",
        amdahl,
        "run",
        "-q",
        "--",
        "grep",
        "SigBlk",
        "/proc/self/status",
    ]);
    let blocked = place.run(blocking).ends_with(0).out;
    assert_eq!(blocked, format!("SigBlk:\t{:016x}\n", 1 << (10 - 1)));
    let running = place.start(tool(
        &place,
        None,
        &[
            "--",
            "sh",
            "-c",
            "echo $$; echo \"$0\" \"$@\"",
            "a b",
            "--with",
        ],
    ));
    let pid = running.pid();
    let ran = running.ended();
    assert_eq!(ran.out, format!("{pid}\na b --with\n"));
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("amdahl run: "), "{lines:?}");
}

#[test]
fn what_cannot_be_run_is_told_with_the_usual_codes() {
    let place = Place::new();
    let says = |command: &str, code: i32, text: &str| {
        let ran = place
            .run(tool(&place, None, &["--", command]))
            .ends_with(code);
        assert!(ran.err.contains(text), "{}", ran.err);
    };
    says(
        "of-nobody-at-all",
        127,
        "no such program in the folders of PATH",
    );
    says("./none", 127, "No such file");
    fs::write(place.join("text"), "echo hello\n").expect("written");
    says("./text", 126, "chmod +x");
    fs::create_dir(place.join("folder")).expect("made");
    says("./folder", 126, "it is a folder");
    // Neither ELF nor a script: as the shell has it, it is one.
    fs::set_permissions(place.join("text"), fs::Permissions::from_mode(0o755)).expect("changed");
    let ran = place
        .run(tool(&place, None, &["-q", "--", "./text"]))
        .ends_with(0);
    assert_eq!(ran.out, "hello\n");
}

#[test]
fn a_program_with_libgomp_gets_ours() {
    let place = Place::new();
    let ours = ours(&place);
    runtime(&place, "theirs", "libgomp.so.1", "theirs/libgomp.so.1");
    let args = [
        "-DPROGRAM",
        "theirs/libgomp.so.1",
        "-Wl,-rpath,$ORIGIN/theirs",
    ];
    assert!(cc(&place, CALLER, &args, "solver"), "a program");
    let ran = place.run(tool(
        &place,
        None,
        &["-q", "--without", "openmp", "--", "./solver"],
    ));
    assert_eq!(ran.ends_with(0).out, "theirs\n");
    let ran = place
        .run(tool(&place, Some(&ours), &["--", "./solver"]))
        .ends_with(0);
    assert_eq!(ran.out, "ours\n");
    assert!(ran.err.contains("LD_PRELOAD="), "{}", ran.err);
    // A dry run runs nothing.
    let plan = plan(&place, Some(&ours), &["./solver"]);
    let openmp = remedy(&plan, "openmp");
    assert_eq!(openmp["outcome"], "applied");
    assert_eq!(openmp["changes"][0]["variable"], "LD_PRELOAD");
    let ran = place
        .run(tool(&place, Some(&ours), &["--dry-run", "--", "./solver"]))
        .ends_with(0);
    assert!(
        ran.out.contains("openmp: applied: it links libgomp.so.1"),
        "{}",
        ran.out
    );

    // Without our library it is told where it was looked for, and the program runs.
    let ran = place
        .run(tool(&place, None, &["--", "./solver"]))
        .ends_with(0);
    assert_eq!(ran.out, "theirs\n");
    assert!(ran.err.contains("there-is-none"), "{}", ran.err);
    place
        .run(tool(&place, None, &["--with", "openmp", "--", "./solver"]))
        .ends_with(125);
}

/// An executable file of this text.
fn script(place: &Place, path: &str, text: &str) {
    let file = place.join(path);
    fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("changed");
}

/// A solver that finds their libgomp beside it by its `DT_RUNPATH`, or by its `DT_RPATH`.
fn solver(place: &Place, path: &str, tags: &str) {
    runtime(place, "theirs", "libgomp.so.1", "theirs/libgomp.so.1");
    let args = [
        "-DPROGRAM",
        "theirs/libgomp.so.1",
        "-Wl,-rpath,$ORIGIN/theirs",
        &format!("-Wl,--{tags}-new-dtags"),
    ];
    assert!(cc(place, CALLER, &args, path), "a program");
}

/// The variables by which our library is given.
fn given(plan: &Value) -> Vec<&str> {
    let changes = remedy(plan, "openmp")["changes"].as_array();
    let changes = changes.expect("a list").iter();
    changes
        .map(|change| change["variable"].as_str().expect("text"))
        .collect()
}

/// A script was not looked into, and what it started had GCC's runtime.
#[test]
fn what_scripts_start_gets_ours_and_others_see_nothing_of_it() {
    let place = Place::new();
    let ours = ours(&place);
    solver(&place, "solver", "enable");
    // Named nowhere as a word.
    script(&place, "inner", "#!/bin/sh\np=sol\nexec ./${p}ver\n");
    script(&place, "outer", "#!/usr/bin/env bash\np=inn\n./${p}er\n");
    script(&place, "text", "p=inn\n./${p}er\n");
    fs::write(place.join("file"), "exec ./inn''er\n").expect("written");
    let amdahl = env!("CARGO_BIN_EXE_amdahl");
    let nested = format!("#!/bin/sh\n'{amdahl}' run -- ./inner\n");
    script(&place, "nested", &nested);
    for command in [
        &["./outer"][..],
        &["./text"],
        &["sh", "./file"],
        &["sh", "-c", "p=inn; ./${p}er"],
        &["env", "A=B", "./inner"],
        &["./nested"],
    ] {
        let args = [&["--"][..], command].concat();
        let ran = place.run(tool(&place, Some(&ours), &args)).ends_with(0);
        assert_eq!(ran.out, "ours\n", "{command:?}: {}", ran.err);
        let wherever = format!("in whatever {} starts: LD_LIBRARY_PATH=", command[0]);
        assert!(ran.err.contains(&wherever), "{}", ran.err);
        assert_eq!(
            given(&plan(&place, Some(&ours), command)),
            ["LD_LIBRARY_PATH"]
        );
    }
    // What is said there is that it is done.
    let ran = place.run(tool(&place, Some(&ours), &["-q", "--", "./nested"]));
    let said = ran.ends_with(0).err;
    assert!(!said.contains("LD_"), "{said}");
    // Nothing is loaded into what does not ask for it.
    script(&place, "others", "#!/bin/sh\ncat /proc/self/maps\n");
    let ran = place.run(tool(&place, Some(&ours), &["-q", "--", "./others"]));
    let maps = ran.ends_with(0).out;
    assert!(
        maps.contains("libc.so") && !maps.contains("libgomp"),
        "{maps}"
    );
}

/// The loader complains of a preloaded library of another machine, at each start of each program.
#[test]
fn programs_of_another_machine_and_such_with_rights_of_their_own_start_in_silence() {
    let place = Place::new();
    let ours = ours(&place);
    let program = "int main (void) { return 0; }";
    script(
        &place,
        "script",
        "#!/bin/sh\nfor p in plain plain32; do if test -x $p; then ./$p || exit; fi; done\n",
    );
    assert!(cc(&place, program, &[], "plain"));
    let path = place.join("plain");
    if is_root() {
        std::os::unix::fs::chown(&path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    } else {
        skipped("giving a program rights of its own takes root");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("chmod");
    if !cc(&place, program, &["-m32"], "plain32") {
        skipped("the compiler has no C library of 32 bits");
    }
    let ran = place.run(tool(&place, Some(&ours), &["-q", "--", "./script"]));
    assert_eq!(ran.ends_with(0).err, "");
}

/// As conda links: what a `DT_RPATH` leads to goes before `LD_LIBRARY_PATH`.
#[test]
fn what_a_script_names_is_looked_at_and_preloaded_where_the_path_does_not_reach_it() {
    let place = Place::new();
    let ours = ours(&place);
    solver(&place, "solver", "disable");
    let extension = environment_with_a_wheel(&place);
    script(&place, "solve.sh", "#!/bin/sh\n./solver\n");
    let text = format!("#!/bin/bash\nexec venv/bin/python \"{extension}\"\n");
    script(&place, "train.sh", &text);
    script(&place, "all.sh", "#!/bin/sh\n./train.sh\n");
    for (command, why) in [
        (
            &["./solve.sh"][..],
            "./solver in ./solve.sh: it links libgomp.so.1",
        ),
        (&["./train.sh"], "venv/bin/python in ./train.sh: Python"),
        (&["./all.sh"], "venv/bin/python in ./train.sh: Python"),
        (
            &["sh", "-c", "./train.sh"],
            "venv/bin/python in ./train.sh: Python",
        ),
    ] {
        let args = [&["--"][..], command].concat();
        let ran = place.run(tool(&place, Some(&ours), &args)).ends_with(0);
        assert_eq!(ran.out, "ours\n", "{command:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{}", ran.err);
        assert_eq!(given(&plan(&place, Some(&ours), command)), ["LD_PRELOAD"]);
    }
}

/// `R` is a script that executes another program, `Rscript` a program that executes that script; packages are opened later.
#[test]
fn the_packages_of_r_get_ours() {
    let place = Place::new();
    let ours = ours(&place);
    let package = "lib/R/library/data/libs/data.so";
    runtime(&place, "theirs", "libgomp.so.1", "theirs/libgomp.so.1");
    let theirs = place.join("theirs");
    let rpath = format!("-Wl,--enable-new-dtags,-rpath,{}", theirs.display());
    let args = ["-shared", "-fPIC", "theirs/libgomp.so.1", &rpath];
    assert!(cc(&place, CALLER, &args, package), "a package");
    assert!(cc(&place, HOST, &["-ldl"], "lib/R/bin/exec/R"), "R");
    let text = format!(
        "#!/bin/sh\nR_HOME_DIR={}\nR_HOME=\"${{R_HOME_DIR}}\"\n\
         LD_LIBRARY_PATH=${{R_HOME}}/lib${{LD_LIBRARY_PATH:+:}}${{LD_LIBRARY_PATH}}\nexport LD_LIBRARY_PATH\n\
         exec \"${{R_HOME}}/bin/exec${{R_ARCH}}/R\" \"${{@}}\"\n",
        place.join("lib/R").display()
    );
    script(&place, "bin/R", &text);
    let start = "#include <unistd.h>\nint main (int c, char **v) { (void) c; return execv (\"bin/R\", v); }";
    assert!(cc(&place, start, &[], "bin/Rscript"), "Rscript");
    for name in ["bin/R", "bin/Rscript"] {
        let args = ["--", name, package];
        let ran = place.run(tool(&place, Some(&ours), &args)).ends_with(0);
        assert_eq!(ran.out, "ours\n", "{name}: {}", ran.err);
        let wherever = format!(
            "R's data.so links libgomp.so.1; in whatever {name} opens or starts: LD_LIBRARY_PATH="
        );
        assert!(ran.err.contains(&wherever), "{}", ran.err);
        let plan = plan(&place, Some(&ours), &[name]);
        let last = plan["interpreters"].as_array().and_then(|all| all.last());
        let last = last.and_then(Value::as_str).expect("a program");
        assert!(last.ends_with("lib/R/bin/exec/R"), "{plan:#}");
    }

    // A script that names `Rscript`, and a start script that reads what goes before all folders.
    let reader = format!("#!{}\n", place.join("bin/Rscript").display());
    script(&place, "sums.R", &reader);
    fs::create_dir(place.join("lib/R/etc")).expect("made");
    let first = format!(": ${{R_LD_LIBRARY_PATH={}}}\n", theirs.display());
    fs::write(place.join("lib/R/etc/ldpaths"), first).expect("written");
    let text = text.replace(
        "LD_LIBRARY_PATH=${R_HOME}/lib",
        ". \"${R_HOME}/etc/ldpaths\"\nLD_LIBRARY_PATH=${R_LD_LIBRARY_PATH}",
    );
    script(&place, "bin/R", &text);
    let args = ["--", "bin/R", package];
    let ran = place.run(tool(&place, Some(&ours), &args)).ends_with(0);
    assert_eq!(ran.out, "ours\n", "{}", ran.err);
    assert!(ran.err.contains("LD_PRELOAD="), "{}", ran.err);
    let plan = plan(&place, Some(&ours), &["./sums.R"]);
    let last = plan["interpreters"].as_array().and_then(|all| all.last());
    let last = last.and_then(Value::as_str).expect("a program");
    assert!(last.ends_with("lib/R/bin/exec/R"), "{plan:#}");
}

/// Julia opens the libgomp that it brings along by its path, and packages of libraries after that, each apart from others.
#[test]
fn the_packages_of_julia_get_ours() {
    let place = Place::new();
    let ours = ours(&place);
    let bundled = "julia/lib/julia/libgomp.so.1";
    runtime(&place, "bundled", "libgomp.so.1", bundled);
    let args = ["-shared", "-fPIC", bundled];
    assert!(
        cc(&place, CALLER, &args, "artifact/libfinufft.so"),
        "a library"
    );
    let host = HOST.replace(
        "void *extension",
        "if (!dlopen (argv[2], RTLD_LAZY | RTLD_DEEPBIND)) return 1;\n  void *extension",
    );
    assert!(cc(&place, &host, &["-ldl"], "julia/bin/julia"), "julia");
    let command = ["julia/bin/julia", "artifact/libfinufft.so", bundled];
    let run = |options: &[&str]| {
        let args = [options, &["--"], &command].concat();
        place.run(tool(&place, Some(&ours), &args)).ends_with(0)
    };
    assert_eq!(run(&["-q", "--without", "openmp"]).out, "bundled\n");
    let ran = run(&[]);
    assert_eq!(ran.out, "ours\n", "{}", ran.err);
    assert!(
        ran.err.contains("Julia opens ") && ran.err.contains("LD_PRELOAD="),
        "{}",
        ran.err
    );
}

const PACKAGES: &str = "venv/lib/python3.11/site-packages";

/// A virtual environment with a package whose wheel brings libgomp along under another name, and its extension.
fn environment_with_a_wheel(place: &Place) -> String {
    let copy = format!("{PACKAGES}/thing.libs/libgomp-abc123.so.1.0.0");
    runtime(place, "copy", "libgomp-abc123.so.1.0.0", &copy);
    let extension = format!("{PACKAGES}/thing/_thing.so");
    let args = [
        "-shared",
        "-fPIC",
        copy.as_str(),
        "-Wl,-rpath,$ORIGIN/../thing.libs",
    ];
    assert!(cc(place, CALLER, &args, &extension), "an extension");
    assert!(cc(place, HOST, &["-ldl"], "usr/bin/python3.11"), "a host");
    fs::create_dir_all(place.join("venv/bin")).expect("made");
    symlink(
        place.join("usr/bin/python3.11"),
        place.join("venv/bin/python"),
    )
    .expect("linked");
    fs::write(
        place.join("venv/pyvenv.cfg"),
        "include-system-site-packages = false\n",
    )
    .expect("written");
    extension
}

/// A wheel brings libgomp along under another name, and Python opens the extension that needs it
/// by `dlopen`, out of the sight of others.
#[test]
fn a_copy_in_a_wheel_is_found_and_not_called() {
    let place = Place::new();
    let ours = ours(&place);
    let extension = environment_with_a_wheel(&place);
    // The command of a package: a script of that interpreter.
    let script = format!("#!{}\n", place.join("venv/bin/python").display());
    fs::write(place.join("venv/bin/train"), script).expect("written");
    fs::set_permissions(
        place.join("venv/bin/train"),
        fs::Permissions::from_mode(0o755),
    )
    .expect("changed");

    let python = ["--", "venv/bin/python", extension.as_str()];
    let ran = place.run(tool(&place, Some(&ours), &python)).ends_with(0);
    assert_eq!(ran.out, "ours\n", "{}", ran.err);
    for command in ["venv/bin/python", "venv/bin/train"] {
        let plan = plan(&place, Some(&ours), &[command]);
        let openmp = remedy(&plan, "openmp");
        assert_eq!(openmp["outcome"], "applied", "{plan:#}");
        let why = openmp["why"].as_str().expect("text");
        assert!(why.contains("libgomp-abc123.so.1.0.0"), "{why}");
        let notes = openmp["notes"].to_string();
        assert!(notes.contains("RTLD_DEEPBIND"), "{notes}");
    }
    // What the note says is so.
    let python = ["-q", "--", "venv/bin/python", &extension, "deep"];
    let ran = place.run(tool(&place, Some(&ours), &python)).ends_with(0);
    assert_eq!(ran.out, "copy\n", "RTLD_DEEPBIND keeps its own");
    let python = [
        "-q",
        "--without",
        "openmp",
        "--",
        "venv/bin/python",
        &extension,
    ];
    let ran = place.run(tool(&place, Some(&ours), &python)).ends_with(0);
    assert_eq!(ran.out, "copy\n");
}

/// Where joblib is installed `OMP_NUM_THREADS` is left to it, and a script under a quota had a thread for each CPU of the machine.
#[test]
fn under_a_quota_our_runtime_is_told_a_number_that_workers_do_not_inherit_as_theirs() {
    let _alone = alone();
    if cpus() < 2 {
        skipped("takes two CPUs");
        return;
    }
    let place = Place::new();
    let ours = ours(&place);
    environment_with_a_wheel(&place);
    fs::create_dir(place.join(PACKAGES).join("joblib")).expect("made");
    let mut command = Command::new("sh");
    command.args([IN_QUOTA, "0.9", env!("CARGO_BIN_EXE_amdahl"), "run"]);
    command.args(["--dry-run", "--json", "--", "venv/bin/python"]);
    let ran = place.run(untold(&place, Some(&ours), place.here(command)));
    if ran.status.code() == Some(77) {
        skipped(format!("no control group with a quota: {:?}", ran.err));
        return;
    }
    let plan = ran.ends_with(0).json();
    let threads = remedy(&plan, "threads");
    let changes = threads["changes"].as_array().expect("a list");
    let is_set = |name| changes.iter().any(|change| change["variable"] == name);
    let own = changes
        .iter()
        .find(|change| change["variable"] == "AMDAHL_OMP_THREADS");
    assert_eq!(own.expect("it is set")["value"], "1", "{plan:#}");
    assert!(!is_set("OMP_NUM_THREADS"), "{plan:#}");
    assert!(threads["notes"].to_string().contains("joblib"), "{plan:#}");
}

#[test]
fn what_is_linked_in_gets_a_clear_word() {
    let place = Place::new();
    let ours = ours(&place);
    let inside = format!("{}\n{CALLER}", RUNTIME.replace("NAME", "\"inside\""));
    let source = inside.replace(
        "extern void GOMP_parallel (void (*) (void *), void *, unsigned, unsigned);",
        "",
    );
    assert!(cc(&place, &source, &["-DPROGRAM"], "inside"), "a program");
    let ran = place
        .run(tool(&place, Some(&ours), &["--", "./inside"]))
        .ends_with(0);
    assert_eq!(ran.out, "inside\n");
    assert!(
        ran.err.contains("linked in cannot be replaced"),
        "{}",
        ran.err
    );

    if !cc(&place, &source, &["-DPROGRAM", "-static"], "static") {
        skipped("there is no libc.a to link statically");
        return;
    }
    let ran = place
        .run(tool(&place, Some(&ours), &["--", "./static"]))
        .ends_with(0);
    assert_eq!(ran.out, "inside\n");
    assert!(ran.err.contains("linked statically"), "{}", ran.err);
    let refused = place.run(tool(
        &place,
        Some(&ours),
        &["--with", "openmp", "--", "./static"],
    ));
    let refused = refused.ends_with(125);
    assert!(
        refused.err.contains("link it without -static"),
        "{}",
        refused.err
    );
    assert_eq!(refused.out, "");
}

#[test]
fn what_ours_does_not_have_is_left_to_gccs() {
    let place = Place::new();
    let ours = ours(&place);
    // As GCC's: another function under a version of its own.
    let source = format!("{RUNTIME}\nvoid GOACC_wait (void) {{}}\n");
    let versions = format!("{VERSIONS}GOACC_2.0 {{ global: GOACC_wait; }};\n");
    fs::write(place.join("all-versions"), versions).expect("written");
    let args = [
        "-DNAME=\"gcc\"",
        "-shared",
        "-fPIC",
        "-Wl,--version-script=all-versions",
        "-Wl,-soname,libgomp.so.1",
    ];
    assert!(cc(&place, &source, &args, "gcc/libgomp.so.1"), "a library");
    let program = CALLER.replace(
        "call ();",
        "extern void GOACC_wait (void); GOACC_wait (); call ();",
    );
    let args = ["-DPROGRAM", "gcc/libgomp.so.1", "-Wl,-rpath,$ORIGIN/gcc"];
    assert!(cc(&place, &program, &args, "accelerated"), "a program");
    let ran = place
        .run(tool(&place, Some(&ours), &["--", "./accelerated"]))
        .ends_with(0);
    assert_eq!(ran.out, "gcc\n");
    assert!(
        ran.err.contains("wants GOACC_2.0 of libgomp"),
        "{}",
        ran.err
    );
}

/// A version was there, and a name in it that a later GCC has was not: the program ended where it called it.
#[test]
fn a_name_that_ours_does_not_have_is_told() {
    let place = Place::new();
    let runtime_with = |name: &str, functions: &[&str], path: &str| {
        let mut source = RUNTIME.to_owned();
        for function in functions {
            source += &format!("void {function} (void) {{}}\n");
        }
        let younger = functions.join("; ");
        let versions = format!("{VERSIONS}GOMP_5.1.2 {{ global: {younger}; }};\n");
        let script = format!("{name}-versions");
        fs::write(place.join(&script), versions).expect("written");
        let args = [
            &*format!("-DNAME=\"{name}\""),
            "-shared",
            "-fPIC",
            &*format!("-Wl,--version-script={script}"),
            "-Wl,-soname,libgomp.so.1",
        ];
        assert!(cc(&place, &source, &args, path), "a library");
        place.join(path)
    };
    let ours = runtime_with("ours", &["GOMP_first"], "ours/libgomp.so.1");
    let both = ["GOMP_first", "GOMP_second"];
    runtime_with("gcc", &both, "gcc/libgomp.so.1");
    let solver = |attribute: &str, function: &str| {
        let call = format!(
            "extern void {function} (void) {attribute}; if ({function}) {function} (); call ();"
        );
        let program = CALLER.replace("call ();", &call);
        let args = [
            "-DPROGRAM",
            "-Wno-address",
            "gcc/libgomp.so.1",
            "-Wl,-rpath,$ORIGIN/gcc",
        ];
        assert!(cc(&place, &program, &args, "solver"), "a program");
        place
            .run(tool(&place, Some(&ours), &["--", "./solver"]))
            .ends_with(0)
    };
    let left = solver("", "GOMP_second");
    assert_eq!(left.out, "gcc\n");
    let why = "solver wants GOMP_second of libgomp, which ours does not have";
    assert!(left.err.contains(why), "{}", left.err);
    assert_eq!(solver("", "GOMP_first").out, "ours\n");
    // It can do without.
    let weak = solver("__attribute__ ((weak))", "GOMP_second");
    assert_eq!(weak.out, "ours\n");
}

#[test]
fn programs_with_rights_of_their_own_are_refused() {
    if !is_root() {
        skipped("giving a program rights of its own takes root");
        return;
    }
    let place = Place::new();
    assert!(cc(&place, "int main (void) { return 0; }", &[], "plain"));
    let path = place.join("plain");
    std::os::unix::fs::chown(&path, Some(ORDINARY), Some(ORDINARY)).expect("chown");
    for (mode, text) in [(0o4755, "set-uid"), (0o2755, "set-gid")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        for args in [&["--", "./plain"][..], &["--dry-run", "--", "./plain"]] {
            let ran = place.run(tool(&place, None, args)).ends_with(125);
            assert!(ran.err.contains(text), "{}", ran.err);
        }
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    place
        .run(tool(&place, None, &["--", "./plain"]))
        .ends_with(0);
}

#[test]
fn threads_follow_the_affinity_mask() {
    let _alone = alone();
    if cpus() < 2 || !has("taskset") {
        skipped("takes two CPUs and taskset (util-linux)");
        return;
    }
    let place = Place::new();
    let first = amdahl_topology::allowed()
        .expect("a mask")
        .iter()
        .next()
        .expect("a CPU");
    let of = |theirs: Option<&str>| {
        let mut command = Command::new("taskset");
        command.args([
            "-c",
            &first.to_string(),
            env!("CARGO_BIN_EXE_amdahl"),
            "run",
            "-q",
            "--",
        ]);
        command.args(["sh", "-c", "echo $PYTHON_CPU_COUNT $OMP_NUM_THREADS"]);
        let mut command = place.here(command);
        command.env_remove("PYTHON_CPU_COUNT");
        command.envs(theirs.map(|value| ("PYTHON_CPU_COUNT", value)));
        place.run(command).ends_with(0).out
    };
    // Who asks for the mask finds one CPU without being told.
    assert_eq!(of(None), "1\n");
    assert_eq!(of(Some("5")), "5\n");
}

#[test]
fn the_command_line_is_checked() {
    let place = Place::new();
    let ran = place
        .run(tool(&place, None, &["--with", "nothing", "--", "true"]))
        .ends_with(2);
    assert!(
        ran.err.contains("openmp") && ran.err.contains("threads"),
        "{}",
        ran.err
    );
    place
        .run(tool(&place, None, &["--json", "--", "true"]))
        .ends_with(2);
    place.run(tool(&place, None, &[])).ends_with(2);
    let help = place.run(tool(&place, None, &["--help"])).ends_with(0);
    assert!(help.out.contains("amdahl run --dry-run -- python train.py"));
}
