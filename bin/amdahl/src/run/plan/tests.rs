use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::run::facts::{Beyond, Image, Kind, Machine, Program, Runtime, Starts};
use crate::run::started::Manner;

const OURS: &str = "/opt/amdahl/libgomp.so.1";
const FOLDER: &str = "/opt/amdahl";

fn machine(online: u32, allowed: u32, quota: Option<f64>) -> Machine {
    Machine {
        online,
        allowed,
        quota: quota.map(|quota| (quota, "/sys/fs/cgroup/cpu.max".to_owned())),
        pressure: None,
    }
}

/// A program of 48 CPUs' machine that has `kinds` in it.
fn facts(kinds: &[Kind]) -> Facts {
    let runtime = |&kind| Runtime {
        kind,
        path: format!("/usr/lib/{kind:?}.so").into(),
        via: format!("it links {kind:?}.so"),
        is_reached_by_path: kind == Kind::Gomp,
    };
    Facts {
        program: Program {
            typed: "./solver".to_owned(),
            path: "./solver".into(),
            interpreters: Vec::new(),
            image: Image::Dynamic,
            runtimes: kinds.iter().map(runtime).collect(),
            beyond: Vec::new(),
            dividers: Vec::new(),
            starts: None,
            is_looked_at_in_part: false,
            privileged: None,
        },
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        unreadable: BTreeSet::new(),
        machine: machine(48, 48, None),
        libgomp: Ok(PathBuf::from(OURS)),
        library_path: Some(FOLDER.to_owned()),
        asked: BTreeSet::new(),
        stats: false,
    }
}

fn set(facts: &mut Facts, name: &str, value: &str) {
    facts.environment.insert(name.to_owned(), value.to_owned());
}

fn plan(facts: &Facts) -> Plan {
    let choice = Choice {
        with: facts.asked.clone(),
        ..Choice::default()
    };
    Plan::new(facts, &choice)
}

fn verdict(facts: &Facts, remedy: &str) -> Verdict {
    let plan = plan(facts);
    let found = plan
        .remedies
        .into_iter()
        .find(|verdict| verdict.remedy == remedy);
    found.expect("a remedy of this name")
}

fn changes(facts: &Facts) -> BTreeMap<String, String> {
    plan(facts)
        .changes()
        .map(|change| (change.variable.clone(), change.value.clone()))
        .collect()
}

#[test]
fn a_program_without_needs_gets_nothing() {
    let facts = facts(&[]);
    assert!(changes(&facts).is_empty());
    assert_eq!(plan(&facts).line(), "nothing to do; --explain says why");
    for verdict in plan(&facts).remedies {
        assert_eq!(verdict.outcome, Outcome::NotNeeded, "{}", verdict.remedy);
        assert!(!verdict.why.is_empty());
    }
}

#[test]
fn libgomp_is_preloaded_also_as_a_copy() {
    for kind in [Kind::Gomp, Kind::GompCopy] {
        let facts = facts(&[kind]);
        assert_eq!(verdict(&facts, "openmp").outcome, Outcome::Applied);
        assert_eq!(
            changes(&facts),
            BTreeMap::from([("LD_PRELOAD".into(), OURS.into())])
        );
        assert!(plan(&facts).line().contains(&format!("LD_PRELOAD={OURS}")));
    }
    let copy = verdict(&facts(&[Kind::GompCopy]), "openmp");
    assert!(copy.notes.iter().any(|note| note.contains("RTLD_DEEPBIND")));
}

#[test]
fn what_is_preloaded_stays_before_ours() {
    let mut facts = facts(&[Kind::Gomp]);
    set(&mut facts, "LD_PRELOAD", "/usr/lib/libjemalloc.so.2");
    let value = format!("/usr/lib/libjemalloc.so.2:{OURS}");
    assert_eq!(changes(&facts)["LD_PRELOAD"], value);
    // Twice is once.
    set(&mut facts, "LD_PRELOAD", &value);
    assert!(changes(&facts).is_empty());
    assert_eq!(verdict(&facts, "openmp").outcome, Outcome::LeftAlone);
    // Somebody's own one.
    set(&mut facts, "LD_PRELOAD", "/home/me/libgomp.so.1");
    assert!(changes(&facts).is_empty());
    assert!(
        verdict(&facts, "openmp")
            .why
            .contains("/home/me/libgomp.so.1")
    );
}

#[test]
fn what_cannot_be_replaced_is_told() {
    let says = |facts: &Facts, text: &str| {
        let verdict = verdict(facts, "openmp");
        assert_eq!(verdict.outcome, Outcome::Impossible, "{text}");
        assert!(verdict.why.contains(text), "{}", verdict.why);
        assert!(!changes(facts).contains_key("LD_PRELOAD"));
    };
    says(&facts(&[Kind::GompInside]), "linked in cannot be replaced");
    for (image, text) in [
        (Image::Static, "linked statically"),
        (
            Image::OtherLoader("/lib/ld-musl-x86_64.so.1".into()),
            "ld-musl",
        ),
        (Image::OtherMachine("arm64".into()), "for arm64"),
    ] {
        let mut facts = facts(&[Kind::Gomp]);
        facts.program.image = image.clone();
        says(&facts, text);
        // Asked for, it is impossible as well where nothing is seen.
        facts.program.runtimes.clear();
        assert_eq!(verdict(&facts, "openmp").outcome, Outcome::NotNeeded);
        facts.asked.insert("openmp".to_owned());
        says(&facts, text);
    }
    let mut missing = facts(&[Kind::Gomp]);
    missing.libgomp = Err("it is not built".to_owned());
    says(&missing, "it is not built");
    let mut spaces = facts(&[Kind::Gomp]);
    spaces.libgomp = Ok("/my programs/libgomp.so.1".into());
    says(&spaces, "a space or colon");
}

#[test]
fn asking_preloads_without_seeing() {
    let mut facts = facts(&[]);
    facts.asked.insert("openmp".to_owned());
    facts.stats = true;
    let wanted = [("LD_PRELOAD", OURS), ("AMDAHL_OMP_STATS", "true")];
    assert_eq!(
        changes(&facts),
        wanted.map(|(n, v)| (n.into(), v.into())).into()
    );
}

/// A script of the shell that names these programs, which have `kinds` in them.
fn script(kinds: &[Kind], programs: &[&str]) -> Facts {
    let mut facts = facts(kinds);
    facts.program.starts = Some(Starts {
        manner: Manner::Starts,
        programs: programs.iter().map(PathBuf::from).collect(),
    });
    facts
}

#[test]
fn what_is_started_unseen_finds_ours_first_and_nothing_is_loaded_into_others() {
    for kinds in [&[][..], &[Kind::Gomp], &[Kind::GompInside], &[Kind::Kmp]] {
        let mut facts = script(kinds, &[]);
        let by_path = |value: &str| BTreeMap::from([("LD_LIBRARY_PATH".into(), value.into())]);
        assert_eq!(changes(&facts), by_path(FOLDER), "{kinds:?}");
        let line = plan(&facts).line();
        assert!(
            line.contains("in whatever ./solver starts: LD_LIBRARY_PATH"),
            "{line}"
        );
        // A shell without a loader starts programs that have one.
        facts.program.image = Image::Static;
        assert_eq!(changes(&facts), by_path(FOLDER));
        set(&mut facts, "LD_LIBRARY_PATH", "/opt/gcc/lib64:/x");
        let value = format!("{FOLDER}:/opt/gcc/lib64:/x");
        assert_eq!(changes(&facts), by_path(&value));
        // Scripts within scripts.
        set(&mut facts, "LD_LIBRARY_PATH", &value);
        assert!(changes(&facts).is_empty());
        assert_eq!(verdict(&facts, "openmp").outcome, Outcome::LeftAlone);
        set(&mut facts, "LD_PRELOAD", "/home/me/libgomp.so.1");
        set(&mut facts, "LD_LIBRARY_PATH", "");
        assert!(changes(&facts).is_empty());
        facts.environment.clear();
        facts.asked.insert("openmp".to_owned());
        assert_eq!(changes(&facts)["LD_PRELOAD"], OURS);
        assert_eq!(changes(&facts).len(), 1);
    }
}

/// Copies in wheels, what Julia opens, and what a `DT_RPATH` leads to.
#[test]
fn what_the_folder_does_not_reach_is_preloaded() {
    let mut by_rpath = script(&[Kind::Gomp], &["./solver"]);
    by_rpath.program.runtimes[0].is_reached_by_path = false;
    for mut facts in [
        script(&[Kind::Gomp, Kind::GompCopy], &["python3"]),
        by_rpath,
    ] {
        let wanted = BTreeMap::from([("LD_PRELOAD".into(), OURS.into())]);
        assert_eq!(changes(&facts), wanted);
        let told = verdict(&facts, "openmp");
        assert!(
            told.notes[0].contains("into all programs in whatever"),
            "{told:?}"
        );
        // Our folder is there already, and is not enough.
        set(&mut facts, "LD_LIBRARY_PATH", FOLDER);
        assert_eq!(changes(&facts), wanted);
    }
}

#[test]
fn where_ours_cannot_be_had_for_what_is_unseen_nothing_is_said() {
    let mut not_built = script(&[], &[]);
    not_built.libgomp = Err("it is not built".to_owned());
    not_built.library_path = None;
    let mut not_alone = script(&[], &[]);
    not_alone.library_path = None;
    let mut musl = script(&[], &[]);
    musl.program.image = Image::OtherLoader("/lib/ld-musl-x86_64.so.1".into());
    for (facts, why) in [
        (not_built, "not built"),
        (not_alone, "beside other libraries"),
        (musl, "ld-musl"),
    ] {
        assert!(changes(&facts).is_empty(), "{why}");
        let told = verdict(&facts, "openmp");
        assert_eq!(told.outcome, Outcome::NotNeeded);
        assert!(told.why.contains(why), "{told:?}");
        // What is seen is told.
        let mut seen = facts.clone();
        seen.program.runtimes = super::tests::facts(&[Kind::Gomp]).program.runtimes;
        assert_eq!(
            verdict(&seen, "openmp").outcome,
            Outcome::Impossible,
            "{why}"
        );
    }
}

#[test]
fn threads_follow_quota_and_mask() {
    let mut facts = facts(&[]);
    facts.machine = machine(48, 48, Some(7.6));
    set(&mut facts, "GOMAXPROCS", "48");
    let changed = changes(&facts);
    for name in ["OMP_NUM_THREADS", "RAYON_NUM_THREADS", "PYTHON_CPU_COUNT"] {
        assert_eq!(changed.get(name).map(String::as_str), Some("8"), "{name}");
    }
    // Theirs; what would become more; what knows the quota; what asks for OMP_NUM_THREADS.
    for name in [
        "GOMAXPROCS",
        "JULIA_NUM_THREADS",
        "DOTNET_PROCESSOR_COUNT",
        "NUMEXPR_NUM_THREADS",
    ] {
        assert_eq!(changed.get(name), None, "{name}");
    }
    let verdict = verdict(&facts, "threads");
    assert!(
        verdict.why.starts_with("8 of 48 CPUs (quota of 7.60"),
        "{}",
        verdict.why
    );
    assert!(
        verdict.notes[0].starts_with("GOMAXPROCS=48 is yours"),
        "{:?}",
        verdict.notes
    );

    // A mask is known to all but those that count the machine's CPUs.
    facts.machine = machine(48, 4, None);
    let changed: Vec<String> = changes(&facts).into_keys().collect();
    assert_eq!(changed, ["NUMEXPR_NUM_THREADS", "PYTHON_CPU_COUNT"]);
    // A tiny quota is one thread, a large one no limit.
    facts.machine = machine(4, 4, Some(0.05));
    assert_eq!(changes(&facts)["OMP_NUM_THREADS"], "1");
    facts.machine = machine(4, 4, Some(64.0));
    assert!(changes(&facts).is_empty());
}

#[test]
fn more_threads_than_cpus_are_told_to_be_too_many_and_stay() {
    let mut facts = facts(&[Kind::Gomp]);
    facts.machine = machine(4, 4, None);
    let mut notes = |name: &str, value: &str| {
        set(&mut facts, name, value);
        assert!(!changes(&facts).contains_key(name));
        verdict(&facts, "openmp").notes
    };
    assert!(notes("OMP_NUM_THREADS", "4,8").is_empty());
    let told = notes("OMP_NUM_THREADS", "8");
    assert!(
        told.len() == 1 && told[0].contains("OMP_DYNAMIC=true"),
        "{told:?}"
    );
    assert!(notes("OMP_DYNAMIC", "false").is_empty());
}

/// llama.cpp has as many threads as the machine has CPUs, by a clause.
#[test]
fn under_a_quota_it_is_noted_that_numbers_of_the_programs_own_stay() {
    let mut facts = facts(&[Kind::Gomp]);
    let is_noted = |facts: &Facts| {
        let notes = verdict(facts, "openmp").notes;
        notes.iter().any(|note| note.contains("num_threads"))
    };
    assert!(!is_noted(&facts));
    facts.machine = machine(48, 48, Some(2.0));
    assert!(is_noted(&facts));
    set(&mut facts, "AMDAHL_OMP_DYNAMIC", "true");
    assert!(!is_noted(&facts));
}

#[test]
fn who_says_how_many_threads_openmp_has_says_it_of_those_that_ask_there() {
    let mut facts = facts(&[]);
    facts.machine = machine(48, 48, Some(8.0));
    set(&mut facts, "OMP_NUM_THREADS", "1");
    let changed = changes(&facts);
    for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
        assert_eq!(changed.get(name), None, "{name}");
    }
    assert_eq!(changed["NUMBA_NUM_THREADS"], "8");
    assert!(verdict(&facts, "threads").notes.is_empty());
    // What is too much is told once.
    set(&mut facts, "OMP_NUM_THREADS", "48,2");
    assert_eq!(verdict(&facts, "threads").notes.len(), 1);
    facts.environment.clear();
    set(&mut facts, "GOTO_NUM_THREADS", "2");
    let changed = changes(&facts);
    assert_eq!(changed.get("OPENBLAS_NUM_THREADS"), None);
    assert_eq!(changed["OMP_NUM_THREADS"], "8");
}

/// A script that set `OMP_NUM_THREADS` before it imported numpy got our number: OpenBLAS looks at its own variable first.
#[test]
fn what_the_program_itself_says_later_holds_for_all_that_ask_there() {
    let mut facts = facts(&[]);
    facts.machine = machine(48, 48, Some(2.0));
    let changed = changes(&facts);
    assert_eq!(changed["OMP_NUM_THREADS"], "2");
    for name in [
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ] {
        assert_eq!(changed.get(name), None, "{name}");
    }
    assert_eq!(changed["NUMBA_NUM_THREADS"], "2");
    // One of their own says nothing of the others.
    set(&mut facts, "OPENBLAS_NUM_THREADS", "1");
    assert_eq!(changes(&facts), changed);
}

/// joblib's workers and torchrun's children inherited the number, each of them all CPUs: those who start them set
/// their own only where nobody has.
#[test]
fn workers_get_their_share_from_who_starts_them() {
    let mut facts = facts(&[]);
    facts.machine = machine(48, 48, Some(8.0));
    facts.program.dividers = vec!["joblib".to_owned()];
    let divided = |changed: &BTreeMap<String, String>| {
        let is_divided =
            |name: &&String| name.contains("_NUM_THREADS") && !name.starts_with("RAYON");
        changed
            .keys()
            .filter(is_divided)
            .cloned()
            .collect::<Vec<_>>()
    };
    let changed = changes(&facts);
    assert!(divided(&changed).is_empty(), "{changed:?}");
    assert_eq!(changed["PYTHON_CPU_COUNT"], "8");
    let told = verdict(&facts, "threads");
    assert!(
        told.notes[0].starts_with("joblib gives each"),
        "{:?}",
        told.notes
    );
    // NumExpr alone would take too many of the mask.
    facts.machine = machine(48, 4, None);
    assert!(divided(&changes(&facts)).is_empty());
    facts.asked.insert("threads".to_owned());
    facts.machine = machine(48, 48, Some(8.0));
    assert_eq!(
        divided(&changes(&facts)),
        ["NUMBA_NUM_THREADS", "OMP_NUM_THREADS"]
    );
}

/// Under a quota of 8 CPUs of 48 a script beside which joblib is installed had 48 threads, and a note.
#[test]
fn where_cpus_are_divided_our_runtime_has_a_number_of_its_own() {
    const OWN: &str = "AMDAHL_OMP_THREADS";
    let mut facts = facts(&[Kind::Gomp]);
    facts.machine = machine(48, 48, Some(8.0));
    assert!(!changes(&facts).contains_key(OWN), "it is told otherwise");
    facts.program.dividers = vec!["joblib".to_owned()];
    let changed = changes(&facts);
    assert_eq!(changed[OWN], "8");
    assert!(!changed.contains_key("OMP_NUM_THREADS"));
    let told = verdict(&facts, "threads");
    assert!(told.notes[0].contains(OWN), "{:?}", told.notes);

    let mut theirs = facts.clone();
    set(&mut theirs, "OMP_NUM_THREADS", "4");
    assert!(!changes(&theirs).contains_key(OWN));
    let mut theirs = facts.clone();
    set(&mut theirs, OWN, "48");
    assert!(!changes(&theirs).contains_key(OWN));
    let told = verdict(&theirs, "threads");
    assert!(told.notes[0].contains("no more than 8"), "{:?}", told.notes);
    // The mask is known, and GCC's runtime has no such variable.
    let mut masked = facts.clone();
    masked.machine = machine(48, 8, None);
    assert!(!changes(&masked).contains_key(OWN));
    facts.libgomp = Err("there is none".to_owned());
    assert!(!changes(&facts).contains_key(OWN));
}

#[test]
fn what_starts_programs_on_other_machines_is_left_alone() {
    let mut facts = facts(&[]);
    facts.machine = machine(48, 48, Some(2.0));
    facts.program.path = "/usr/bin/srun".into();
    assert_eq!(verdict(&facts, "threads").outcome, Outcome::LeftAlone);
    assert!(changes(&facts).is_empty());
    // Named by a script as well.
    let mut job = script(&[], &["/usr/bin/mpirun"]);
    job.machine = facts.machine.clone();
    assert_eq!(verdict(&job, "threads").outcome, Outcome::LeftAlone);
    let mut other = script(&[], &["/usr/bin/make", "/usr/bin/ssh"]);
    other.machine = facts.machine.clone();
    assert_eq!(changes(&other)["OMP_NUM_THREADS"], "2");
    facts.asked.insert("threads".to_owned());
    assert_eq!(changes(&facts)["OMP_NUM_THREADS"], "2");
}

/// Its functions were found in ours, and those of Intel's runtime in that.
#[test]
fn where_mkl_is_nothing_is_replaced_unasked() {
    let mut facts = facts(&[Kind::GompCopy, Kind::Mkl]);
    let left = verdict(&facts, "openmp");
    assert_eq!(left.outcome, Outcome::LeftAlone);
    assert!(left.why.contains("MKL"), "{}", left.why);
    assert!(!changes(&facts).contains_key("LD_PRELOAD"));
    facts.asked.insert("openmp".to_owned());
    assert!(changes(&facts).contains_key("LD_PRELOAD"));
}

#[test]
fn what_ours_does_not_have_is_not_replaced() {
    let mut facts = facts(&[Kind::Gomp]);
    let beyond = |what: &str, is_needed| Beyond {
        who: "./solver".to_owned(),
        what: what.to_owned(),
        is_needed,
    };
    facts.program.beyond = vec![beyond("GOMP_offload_register_ver", false)];
    let refused = verdict(&facts, "openmp");
    assert_eq!(refused.outcome, Outcome::Impossible);
    assert!(refused.why.contains("accelerators"), "{}", refused.why);
    facts.asked.insert("openmp".to_owned());
    assert!(changes(&facts).contains_key("LD_PRELOAD"));
    facts.program.beyond.push(beyond("GOACC_2.0", true));
    let refused = verdict(&facts, "openmp");
    assert_eq!(refused.outcome, Outcome::Impossible);
    assert!(refused.why.contains("GOACC_2.0"), "{}", refused.why);
}

#[test]
fn what_cannot_be_read_is_not_appended_to() {
    let mut facts = facts(&[Kind::Gomp]);
    facts.machine = machine(8, 8, Some(2.0));
    facts.program.path = "/usr/bin/java".into();
    for name in ["LD_PRELOAD", "JDK_JAVA_OPTIONS"] {
        set(&mut facts, name, "\u{fffd}");
        facts.unreadable.insert(name.to_owned());
        assert!(!changes(&facts).contains_key(name), "{name}");
    }
    assert_eq!(verdict(&facts, "openmp").outcome, Outcome::Impossible);
}

#[test]
fn java_is_told_once() {
    let mut facts = facts(&[]);
    facts.program.path = "/usr/bin/java".into();
    facts.machine = machine(8, 8, Some(2.0));
    set(&mut facts, "JDK_JAVA_OPTIONS", "-Xmx1g");
    let wanted = "-Xmx1g -XX:ActiveProcessorCount=2";
    assert_eq!(changes(&facts)["JDK_JAVA_OPTIONS"], wanted);
    set(&mut facts, "JDK_JAVA_OPTIONS", wanted);
    assert_eq!(changes(&facts).get("JDK_JAVA_OPTIONS"), None);
    set(&mut facts, "JDK_JAVA_OPTIONS", "");
    set(
        &mut facts,
        "JAVA_TOOL_OPTIONS",
        "-XX:ActiveProcessorCount=3",
    );
    assert_eq!(changes(&facts).get("JDK_JAVA_OPTIONS"), None);
    facts.environment.clear();
    facts.arguments = vec!["-XX:ActiveProcessorCount=3".to_owned()];
    assert_eq!(changes(&facts).get("JDK_JAVA_OPTIONS"), None);
}

#[test]
fn other_runtimes_are_told_to_block_where_cpus_are_short() {
    let mut facts = facts(&[Kind::Kmp, Kind::Mkl, Kind::Tbb]);
    let quiet = verdict(&facts, "waiting");
    assert_eq!(quiet.outcome, Outcome::NotNeeded);
    let notes = quiet.notes.join("\n");
    for text in ["KMP_BLOCKTIME=0", "MKL_NUM_THREADS", "taskset"] {
        assert!(notes.contains(text), "{text}: {notes}");
    }
    facts.machine.pressure = Some(0.5);
    assert_eq!(changes(&facts)["KMP_BLOCKTIME"], "0");
    facts.machine = machine(8, 8, Some(4.0));
    assert_eq!(changes(&facts)["KMP_BLOCKTIME"], "0");
    set(&mut facts, "KMP_BLOCKTIME", "200");
    assert_eq!(verdict(&facts, "waiting").outcome, Outcome::LeftAlone);
    assert_eq!(changes(&facts).get("KMP_BLOCKTIME"), None);
}

#[test]
fn a_libgomp_that_stays_is_told_to_block() {
    let mut facts = facts(&[Kind::GompInside]);
    facts.machine.pressure = Some(0.5);
    assert_eq!(changes(&facts)["OMP_WAIT_POLICY"], "passive");
    set(&mut facts, "GOMP_SPINCOUNT", "1000");
    assert_eq!(changes(&facts).get("OMP_WAIT_POLICY"), None);
    // Not where ours comes in its place.
    let mut facts = super::tests::facts(&[Kind::Gomp]);
    facts.machine.pressure = Some(0.5);
    assert_eq!(changes(&facts).get("OMP_WAIT_POLICY"), None);
    facts.libgomp = Err("it is not built".to_owned());
    assert_eq!(changes(&facts)["OMP_WAIT_POLICY"], "passive");
}

/// Whatever could be replaced was taken to be, and so a libgomp that was not went on spinning.
#[test]
fn a_libgomp_that_is_left_alone_is_told_to_block() {
    let mut cases = Vec::new();
    for kind in [Kind::Gomp, Kind::GompCopy] {
        cases.push(facts(&[kind, Kind::Mkl]));
        let mut offload = facts(&[kind]);
        offload.program.beyond = vec![Beyond {
            who: "./solver".to_owned(),
            what: "GOMP_target_ext".to_owned(),
            is_needed: false,
        }];
        let mut open_acc = offload.clone();
        open_acc.program.beyond[0].is_needed = true;
        let mut own = facts(&[kind]);
        set(&mut own, "LD_PRELOAD", "/home/me/libgomp.so.1");
        let mut only = facts(&[kind]);
        only.asked.insert("waiting".to_owned());
        cases.extend([offload, open_acc, own, only]);
    }
    for mut facts in cases {
        facts.machine.pressure = Some(0.5);
        let wanted = BTreeMap::from([("OMP_WAIT_POLICY".into(), "passive".into())]);
        assert_eq!(changes(&facts), wanted, "{facts:?}");
        // Ours is there without us.
        set(&mut facts, "LD_PRELOAD", OURS);
        assert_eq!(changes(&facts).get("OMP_WAIT_POLICY"), None, "{facts:?}");
    }
    let mut facts = facts(&[Kind::Gomp]);
    facts.machine.pressure = Some(0.5);
    let choice = Choice {
        without: BTreeSet::from(["openmp".to_owned()]),
        ..Choice::default()
    };
    let plan = Plan::new(&facts, &choice);
    let changes: Vec<_> = plan.changes().map(|change| &change.variable).collect();
    assert_eq!(changes, ["OMP_WAIT_POLICY"]);
}

/// `OMP_WAIT_POLICY` was set for the copy that is linked in, and had ours sleep at once whatever threads had CPUs.
#[test]
fn ours_is_not_told_how_to_wait() {
    let mut facts = facts(&[Kind::Gomp, Kind::GompInside]);
    facts.machine.pressure = Some(0.5);
    let changed: Vec<String> = changes(&facts).into_keys().collect();
    assert_eq!(changed, ["LD_PRELOAD"]);
    let told = verdict(&facts, "waiting");
    assert_eq!(told.outcome, Outcome::LeftAlone);
    assert!(told.why.contains("that copy waits as it does"), "{told:?}");
    // LLVM's has a variable of its own.
    facts = super::tests::facts(&[Kind::Gomp, Kind::GompInside, Kind::Kmp]);
    facts.machine.pressure = Some(0.5);
    let changed: Vec<String> = changes(&facts).into_keys().collect();
    assert_eq!(changed, ["KMP_BLOCKTIME", "LD_PRELOAD"]);
    let notes = verdict(&facts, "waiting").notes;
    assert!(notes[0].contains("that copy waits as it does"), "{notes:?}");
}

#[test]
fn remedies_are_chosen_by_name() {
    let facts = facts(&[Kind::Gomp]);
    let names = |with: &[&str], without: &[&str]| -> Vec<&str> {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let choice = Choice {
            with: set(with),
            without: set(without),
        };
        let plan = Plan::new(&facts, &choice);
        plan.remedies.iter().map(|verdict| verdict.remedy).collect()
    };
    assert_eq!(names(&[], &[]), ["openmp", "waiting", "threads"]);
    assert_eq!(names(&["threads", "openmp"], &[]), ["openmp", "threads"]);
    assert_eq!(names(&[], &["openmp"]), ["waiting", "threads"]);
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Gomp,
        Kind::GompCopy,
        Kind::GompInside,
        Kind::Kmp,
        Kind::Mkl,
        Kind::Tbb,
    ])
}

fn any_image() -> impl Strategy<Value = Image> {
    prop::sample::select(vec![
        Image::Dynamic,
        Image::Static,
        Image::OtherLoader("/lib/ld-musl-x86_64.so.1".to_owned()),
        Image::OtherMachine("arm64".to_owned()),
        Image::Unknown("damaged".to_owned()),
    ])
}

const VARIABLES: [&str; 10] = [
    "OMP_NUM_THREADS",
    "GOMAXPROCS",
    "KMP_BLOCKTIME",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "JDK_JAVA_OPTIONS",
    "PYTHON_CPU_COUNT",
    "RAYON_NUM_THREADS",
];

proptest! {
    /// Whatever the user has set is still there, each variable is set once, a verdict that
    /// changes nothing says so, and nothing is loaded where there is no loader for it.
    #[test]
    fn nothing_of_the_users_is_lost(
        kinds in prop::collection::vec(any_kind(), 0..4),
        image in any_image(),
        online in 1_u32..200,
        allowed in 1_u32..200,
        quota in prop::option::of(0.01_f64..300.0),
        pressure in prop::option::of(0.0_f64..1.0),
        theirs in prop::collection::btree_map(prop::sample::select(VARIABLES.to_vec()), "[a-z0-9/:. ]{0,12}", 0..6),
        asked in prop::sample::subsequence(vec!["openmp", "waiting", "threads"], 0..3),
        is_java: bool,
        is_script: bool,
        has_library: bool,
    ) {
        let mut facts = facts(&kinds);
        facts.program.image = image.clone();
        facts.machine = Machine { pressure, ..machine(online, allowed, quota) };
        facts.asked = asked.iter().map(|&name| name.to_owned()).collect();
        for (name, value) in &theirs {
            set(&mut facts, name, value);
        }
        if is_java {
            facts.program.path = "/usr/bin/java".into();
        }
        if is_script {
            facts.program.starts = script(&[], &[]).program.starts;
        }
        if !has_library {
            facts.library_path = None;
            facts.libgomp = Err("it is not built".to_owned());
        }
        let plan = plan(&facts);
        let mut seen = BTreeSet::new();
        for change in plan.changes() {
            prop_assert!(seen.insert(&change.variable), "{} twice", change.variable);
            if let Some(before) = facts.variable(&change.variable) {
                let kept = match change.variable.as_str() {
                    "LD_PRELOAD" | "JDK_JAVA_OPTIONS" => change.value.starts_with(before.trim()),
                    "LD_LIBRARY_PATH" => change.value.ends_with(before.trim()),
                    _ => false,
                };
                prop_assert!(kept, "{before:?} became {:?}", change.value);
            }
            let threads = change.value.parse::<u32>();
            prop_assert!(change.variable != "OMP_NUM_THREADS" || threads.is_ok_and(|n| n >= 1 && n < allowed));
        }
        let has_loader = match image {
            Image::Dynamic | Image::Unknown(_) => true,
            Image::Static => is_script,
            _ => false,
        };
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH"].map(str::to_owned) {
            prop_assert!(!seen.contains(&name) || has_loader && has_library);
            let both = [name, "OMP_WAIT_POLICY".to_owned()];
            prop_assert!(!both.iter().all(|name| seen.contains(name)), "ours is told how to wait");
        }
        for verdict in &plan.remedies {
            prop_assert_eq!(!verdict.changes.is_empty(), verdict.outcome == Outcome::Applied, "{:?}", verdict);
        }
        prop_assert!(!plan.line().contains('\n'));
    }
}
