//! What a sweep gives: its JSON, fixed times, rates.

use std::collections::BTreeSet;

use amdahl_report::schema::{SCHEMA, ScaleResult};
use amdahl_speedup::cause::Cause;

use crate::processes::{is_alive, pid_in};
use crate::tool::{Place, alone, bpf, cpus, has_notice, notice, skipped};
use crate::workload::{BUSY, RELAY, compiled, in_some_try, runs_of};

/// Every field of the schema is there under its name, and none besides.
fn assert_documented(ran: &crate::tool::Ran) -> ScaleResult {
    let value = ran.json();
    let result = ran.result();
    assert_eq!(serde_json::to_value(&result).expect("plain data"), value);
    assert_eq!(result.schema, SCHEMA);
    result
}

fn assert_adds_up(result: &ScaleResult) {
    let known: BTreeSet<&str> = Cause::ALL.iter().map(|cause| cause.id()).collect();
    for point in &result.points {
        assert!(!point.stack.is_empty(), "{} CPUs have no stack", point.cpus);
        let sum: f64 = point.stack.values().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{} CPUs: {sum}", point.cpus);
        for (id, part) in &point.stack {
            assert!(known.contains(id.as_str()), "{id}");
            assert!((0.0..=1.0).contains(part), "{id}: {part}");
            let [low, high] = point.stack_range[id];
            assert!(
                low <= part + 1e-9 && *part <= high + 1e-9,
                "{id}: {part} in {low}..{high}"
            );
        }
    }
    let (_, main) = result.main_point().expect("a point");
    let mut before = f64::INFINITY;
    for cause in &result.causes {
        assert_ne!(cause.id, "work");
        assert!(
            (cause.fraction - main.stack[&cause.id]).abs() < 1e-9,
            "{}",
            cause.id
        );
        assert!(
            cause.fraction <= before,
            "{} is larger than the one before",
            cause.id
        );
        before = cause.fraction;
        let sites: f64 = cause.sites.iter().map(|site| site.fraction).sum();
        assert!(
            sites <= cause.fraction + 1e-6,
            "{}: {sites} of {}",
            cause.id,
            cause.fraction
        );
        assert!(
            cause.sites.is_sorted_by(|a, b| a.fraction >= b.fraction),
            "{}",
            cause.id
        );
        assert!(!cause.text.is_empty());
    }
}

#[test]
fn json_has_the_documented_shape_and_stacks_that_add_up() {
    let _alone = alone();
    let place = Place::new();
    let Some(program) = compiled(&place, "busy", BUSY, &["-g"]) else {
        return;
    };
    let program = program.to_str().expect("UTF-8");
    for probe in ["bpf", "proc"] {
        if let (Err(reason), "bpf") = (bpf(), probe) {
            skipped(reason);
            continue;
        }
        let before = place.names();
        let args = [
            "scale", "--probe", probe, "--runs", "2", "--json", "--", program, "{cpus}",
        ];
        let ran = place.amdahl(args).ends_with(0);
        let result = assert_documented(&ran);
        assert_adds_up(&result);
        assert_eq!(
            place.names(),
            before,
            "--json writes no folder unless asked"
        );
        assert_eq!(result.command, [program, "{cpus}"]);
        assert_eq!(result.machine.cpus_allowed as usize, cpus());
        assert!(!result.partial && result.failures.is_empty());
        assert!(result.points.is_sorted_by(|a, b| a.cpus < b.cpus));
        for point in &result.points {
            assert_eq!(
                (point.wall_s.runs.len(), point.probed_wall_s.runs.len()),
                (2, 2)
            );
            assert_eq!(point.cpu_list.len(), point.cpus as usize);
            // All of the work is there, whatever the number of threads.
            assert!(
                point.user_s > 0.0 && point.user_s <= point.capacity_s * 1.05,
                "{point:?}"
            );
        }
        assert!((result.points[0].speedup - 1.0).abs() < 1e-9);
        assert!(result.points[0].stack["work"] > 0.0);
        assert_eq!(
            result.probe_cost.expect("pairs").pairs as usize,
            2 * result.points.len()
        );
    }
}

/// More threads than CPUs make points of their own, which are never taken for the one with a thread for each CPU.
#[test]
fn oversubscribed_points_are_told_apart() {
    let _alone = alone();
    let place = Place::new();
    // Fails once with more threads.
    let script = "test {cpus} = 1 || test -e failed || { touch failed; exit 9; }";
    let args = [
        "scale",
        "--cpus",
        "1",
        "--oversubscribe",
        "3",
        "--runs",
        "2",
        "--no-warmup",
        "-o",
        "r",
        "--",
        "sh",
        "-c",
        script,
    ];
    let ran = place.amdahl(args).ends_with(4);
    assert!(
        ran.err.contains(": 1 CPU, bare") && ran.err.contains(": 1 CPU with 3 threads, with probe"),
        "{}",
        ran.err
    );
    let result = amdahl_report::load::load(&place.join("r")).expect("a result");
    let ids = |point: &amdahl_report::schema::Point| (point.cpus, point.threads);
    let points: Vec<_> = result.points.iter().map(ids).collect();
    assert_eq!(points, [(1, 1), (1, 3)]);
    let failed = &result.failures[0];
    assert_eq!((failed.cpus, failed.threads, failed.run), (1, 3, 1));
    assert!(notice(&result, "short").starts_with("On 1 CPU a run takes"));
    let texts = result.warnings.iter().map(|warning| &warning.text);
    let of_three = |text: &&String| text.starts_with("On 1 CPU with 3 threads ");
    assert!(texts.clone().any(|text| of_three(&text)), "{texts:?}");

    assert_eq!(result.causes_point, Some(0));
    assert_adds_up(&result);
    let ran = ran.says("run 1 on 1 CPU with 3 threads: exit code 9");
    if !result.causes.is_empty() {
        let _ = ran.says("What costs on 1 CPU ");
    }
    let rows = amdahl_report::samples::read(&place.join("r/samples.parquet")).expect("rows");
    let threads: BTreeSet<u32> = rows.iter().map(|row| row.threads).collect();
    assert_eq!(threads, BTreeSet::from([1, 3]));
    let page = place.read("r/report.html");
    assert!(page.contains(">Code on 1\u{a0}CPU<"), "of one point");
}

#[test]
fn the_folder_holds_the_same_as_standard_output() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "scale", "--cpus", "1", "--runs", "1", "--json", "-o", "r", "--", "true",
    ];
    let ran = place.amdahl(args).ends_with(0);
    assert_documented(&ran);
    let written: serde_json::Value =
        serde_json::from_str(&place.read("r/result.json")).expect("JSON");
    assert_eq!(written, ran.json());
    let files = [
        "report.html",
        "result.json",
        "samples.parquet",
        "trace.json.gz",
    ];
    assert_eq!(crate::tool::names(&place.join("r")), files);
}

/// Threads that map and unmap wait for each other's hold of the address space. They sleep for it and do not only spin: they are more
/// than CPUs, and who unmaps holds it as a reader while pages are given back, for which the kernel spins for some microseconds only.
const MAPPING: &str = r#"
#include <pthread.h>
#include <sys/mman.h>
static void *map(void *arg) {
    for (int i = 0; i < 1500; i++) {
        char *memory = mmap(0, 256 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int page = 0; page < 256; page++)
            memory[page << 12] = 1;
        munmap(memory, 256 << 12);
    }
    return 0;
}
int main(void) {
    pthread_t others[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&others[i], 0, map, 0);
    map(0);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], 0);
    return 0;
}
"#;

#[test]
fn a_lock_of_the_kernel_has_the_kernels_call_site() {
    let _alone = alone();
    if let Err(why) = bpf() {
        return skipped(why);
    }
    if cpus() < 2 {
        return skipped("only one CPU may be used");
    }
    let place = Place::new();
    let Some(program) = compiled(&place, "mapping", MAPPING, &[]) else {
        return;
    };
    let program = program.to_str().expect("a plain path");
    let args = [
        "scale",
        "--cpus",
        "2",
        "--runs",
        "1",
        "--no-warmup",
        "--no-output",
        "--json",
        "--",
        program,
    ];
    // Beside others' work the two may hardly meet.
    in_some_try(|| {
        let result = place.amdahl(args).ends_with(0).result();
        let of_lock = result
            .causes
            .iter()
            .filter(|cause| cause.id == Cause::MmapLock.id());
        let sites: Vec<_> = of_lock.flat_map(|cause| &cause.sites).collect();
        let named = |object: &str| {
            let (lock, at) = object.split_once(" in the kernel's ")?;
            lock.starts_with("lock 0x").then(|| at.to_owned())
        };
        // Who spins for it before it sleeps is a site as well.
        let sleeps = |stack: &[String]| stack.iter().any(|frame| frame.contains("schedule"));
        let slept = sites
            .iter()
            .filter(|site| sleeps(&site.stack))
            .find_map(|site| Some((site, named(&site.object)?)));
        let (slept, wants) = slept.ok_or_else(|| format!("{sites:#?}"))?;
        let stack = &slept.stack;
        assert_eq!(slept.symbol, "map", "{stack:?}");
        assert!(
            !stack.iter().any(|frame| frame.starts_with("bpf_")),
            "{stack:?}"
        );
        // From the code that sleeps outwards: the lock's own, who wants it, and how the kernel was entered.
        let at = |what: &str| stack.iter().position(|frame| frame.contains(what));
        // `munmap` and what it is called within the kernel contain the name of the program's function.
        let is = |name: &str| stack.iter().position(|frame| frame == name);
        let order = [at("schedule"), at("rwsem_"), is(&wants), is("map")];
        assert!(
            order.iter().all(Option::is_some) && order.is_sorted(),
            "{wants}: {stack:?}"
        );
        Ok(())
    });
}

#[test]
fn more_events_than_fit_into_memory_are_added_up_on_the_way() {
    let _alone = alone();
    if let Err(reason) = bpf() {
        return skipped(reason);
    }
    let place = Place::new();
    let Some(program) = compiled(&place, "relay", RELAY, &["-g"]) else {
        return;
    };
    let program = program.to_str().expect("UTF-8");
    let run = |memory: &str| -> ScaleResult {
        let args = [
            "scale", "--cpus", "1", "--runs", "1", "--budget", "none", "--memory", memory,
            "--json", "--", program,
        ];
        let result = assert_documented(&place.amdahl(args).ends_with(0));
        assert_adds_up(&result);
        result
    };
    // A busy machine may keep the recorder from its CPU for too long, or the two runs apart.
    in_some_try(|| {
        let (parts, whole) = (run("32"), run("4096"));
        // An event takes 64 bytes, and a part is a quarter of the memory.
        let (events, lost) = (parts.points[0].events, parts.points[0].events_lost);
        assert!(events + lost > 3 * (8 << 20) / 64, "{events}");
        if let Some(cut) = [&parts, &whole]
            .iter()
            .find_map(|one| has_notice(one, "cut"))
        {
            return Err(cut.to_owned());
        }
        let (parts, whole) = (&parts.points[0].stack, &whole.points[0].stack);
        let is_explained = parts["unexplained"] < 0.02;
        let is_alike = (parts["work"] - whole["work"]).abs() < 0.2;
        match is_explained && is_alike {
            true => Ok(()),
            false => Err(format!("{parts:?} {whole:?}")),
        }
    });
}

#[test]
fn a_program_that_never_ends_is_measured_for_a_time() {
    let _alone = alone();
    let place = Place::new();
    for (name, script) in [
        ("polite", "echo $$ > polite.pid; exec sleep 1000"),
        // Does not end when it is asked to, and neither do its children.
        (
            "deaf",
            "trap '' TERM; echo $$ > deaf.pid; while :; do sleep 1000; done",
        ),
    ] {
        let args = ["scale", "--cpus", "1", "--runs", "1", "--bare-runs", "0"];
        let rest = ["--no-warmup", "--json", "--", "sh", "-c", script];
        let file = place.join(&format!("{name}.pid"));
        // On a busy machine the time may be up before the program has begun.
        let (seconds, result) = [0.1, 1.0, 10.0, 100.0]
            .into_iter()
            .find_map(|seconds: f64| {
                let time = ["--for", &format!("{}ms", seconds * 1e3)];
                let args = args.iter().chain(&time).chain(&rest);
                let result = place.amdahl(args).ends_with(0).result();
                let has_begun = std::fs::read(&file).is_ok_and(|pid| pid.ends_with(b"\n"));
                has_begun.then_some((seconds, result))
            })
            .expect("begins in some time");
        assert!(!is_alive(pid_in(&place, &format!("{name}.pid"))), "{name}");
        assert!(
            result.points[0].wall_s.median >= seconds,
            "{:?}",
            result.points[0]
        );
        let text = notice(&result, "fixed-time");
        assert!(text.contains("--rate"), "{text}");
    }
}

#[test]
fn a_program_that_ends_before_the_time_is_up_is_not_held() {
    let _alone = alone();
    // The deadline is beyond that of the test.
    let args = [
        "scale", "--for", "1h", "--runs", "1", "--json", "--", "true",
    ];
    let place = Place::new();
    let result = place.amdahl(args).ends_with(0).result();
    // Each run has done all of its work.
    assert_eq!(has_notice(&result, "fixed-time"), None);
    assert_eq!(result.settings.speedup_of, "wall");
    assert!(result.points.iter().all(|point| point.speedup > 0.0));
    assert!(result.probe_cost.is_some());
}

/// Constant wall times became a speedup of 1.0, an efficiency, a flat chart and models.
#[test]
fn runs_of_a_fixed_length_have_no_speedup() {
    let _alone = alone();
    if cpus() < 2 {
        return skipped("only one CPU may be used");
    }
    let place = Place::new();
    let args = ["scale", "--for", "100ms", "--cpus", "1,2", "--runs", "2"];
    let rest = ["-q", "-o", "r", "--", "sleep", "1000"];
    let ran = place.amdahl(args.iter().chain(&rest)).ends_with(0);
    let result = amdahl_report::load::load(&place.join("r")).expect("a result");
    notice(&result, "fixed-time");
    assert_eq!(result.settings.speedup_of, "none");
    assert!(!result.has_speedup());
    assert_eq!(result.points.len(), 2);
    for point in &result.points {
        let figures = (point.speedup, point.speedup_range, point.efficiency);
        assert_eq!(figures, (0.0, [0.0; 2], 0.0));
    }
    assert_eq!((&result.models.amdahl, &result.models.usl), (&None, &None));
    assert!(!result.models.note.is_empty());
    assert_eq!(result.probe_cost, None);
    let page = place.read("r/report.html");
    let (_, page) = page.split_once("</style>").expect("a page");
    for (shown, words) in [
        (
            &*ran.out,
            ["as fast as", "(range)", "efficiency", "Cost of"],
        ),
        (page, ["as fast as", ">Speedup<", ">Efficiency<", "Cost of"]),
    ] {
        for word in words {
            assert!(!shown.contains(word), "{word:?} in\n{shown}");
        }
    }
    let ran = ran.says("On 2 CPUs, ").says("is useful work");
    assert!(ran.out.contains("Where the CPU time goes"), "{}", ran.out);

    // Nor do two of them have a difference of their lengths.
    let compared = place.amdahl(["compare", "r", "r"]).ends_with(0);
    assert!(!compared.out.contains("no difference"), "{}", compared.out);
    compared.says("cannot be compared").says("not-comparable");
}

/// A command that prints `rate R` and then does `then`; R and `then` by the number of the run.
fn by_run(cases: &str) -> String {
    format!("echo x >> runs; case $(wc -l < runs) in {cases} esac")
}

#[test]
fn noise_is_that_of_what_is_compared_and_of_what_is_divided() {
    let _alone = alone();
    // The order of runs: with the probe, without, without, with.
    let cases: [(&[&str], &str, Option<&str>); 5] = [
        // Times are not looked at where rates are.
        (
            &["--rate", "rate ([0-9]+)"],
            "4) echo rate 100; sleep 1;; *) echo rate 100;;",
            None,
        ),
        (
            &["--rate", "rate ([0-9]+)"],
            "2) echo rate 100;; 3) echo rate 200;; *) echo rate 150;;",
            Some("On 1 CPU the rates of the runs differ by 67 %:"),
        ),
        (
            &["--rate", "rate ([0-9]+)"],
            "1) echo rate 100;; 4) echo rate 200;; *) echo rate 150;;",
            Some(
                "On 1 CPU the rates of the runs with the probe, which the stack divides, differ by 67 %:",
            ),
        ),
        (
            &["--rate", "rate ([0-9]+)"],
            "1|2) echo rate 100;; *) echo rate 200;;",
            Some("On 1 CPU the rates of the runs differ by 67 %, those with the probe by 67 %:"),
        ),
        (&[], "4) sleep 1;; *) sleep 0.1;;", Some("with the probe")),
    ];
    for (options, script, wanted) in cases {
        let place = Place::new();
        let args = [
            "scale",
            "--cpus",
            "1",
            "--runs",
            "2",
            "--no-warmup",
            "--json",
        ];
        let script = by_run(script);
        let command = ["--", "sh", "-c", &script];
        let ran = place.amdahl(args.iter().chain(options).chain(&command));
        let result = ran.ends_with(0).result();
        match (wanted, has_notice(&result, "noise")) {
            (Some(wanted), Some(text)) => assert!(text.contains(wanted), "{text}"),
            (wanted, found) => assert_eq!(found, wanted, "{script}"),
        }
    }
}

/// Wall times of a program that runs for a fixed time hide what the probe costs.
#[test]
fn the_cost_of_the_probe_is_that_of_the_rate() {
    let _alone = alone();
    let place = Place::new();
    let script = by_run("1) echo rate 100;; *) echo rate 150;;");
    let args = [
        "scale",
        "--rate",
        "rate ([0-9]+)",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--no-warmup",
        "-q",
    ];
    let rest = ["-o", "r", "--", "sh", "-c", &script];
    let ran = place.amdahl(args.iter().chain(&rest)).ends_with(0);
    let result = amdahl_report::load::load(&place.join("r")).expect("a result");
    let cost = result.probe_cost.expect("a pair");
    assert_eq!((cost.wall_ratio, cost.pairs), (1.5, 1));
    ran.says("Cost of the probe: 1.500 times the time for the same work");
    assert!(
        place
            .read("r/report.html")
            .contains("the time for the same work")
    );
}

#[test]
fn two_results_made_by_default_can_be_told_apart() {
    let _alone = alone();
    let place = Place::new();
    for folder in ["before", "after"] {
        let args = ["scale", "--cpus", "1", "-q", "-o", folder, "--", "true"];
        place.amdahl(args).ends_with(0);
    }
    let compared = place.amdahl(["compare", "--json", "before", "after"]);
    let compared = compared.ends_with(0).json();
    let point = &compared["points"][0];
    assert_ne!(point["verdict"], "too-few-runs", "{point}");
    assert!(point["interval"].is_array(), "{point}");
    // Who asks for few runs gets few.
    let args = [
        "scale", "--cpus", "1", "--runs", "1", "--json", "--", "true",
    ];
    let result = place.amdahl(args).ends_with(0).result();
    let settings = &result.settings;
    assert_eq!((settings.runs, settings.bare_runs), (1, 1));
    assert_eq!(result.points[0].wall_s.runs.len(), 1);
}

#[test]
fn a_rate_is_read_from_the_programs_output() {
    let _alone = alone();
    let place = Place::new();
    // On either stream; the last match counts.
    for stream in ["1", "2"] {
        let script = format!("echo tps = 1; echo \"tps = $((250 * {{cpus}})).5\" >&{stream}");
        let args = [
            "scale",
            "--rate",
            "tps = ([0-9.]+)",
            "--runs",
            "2",
            "--json",
            "--",
        ];
        let command = ["sh", "-c", &script];
        let result = place
            .amdahl(args.iter().chain(&command))
            .ends_with(0)
            .result();
        assert_eq!(result.settings.speedup_of, "rate");
        for point in &result.points {
            let rate = point.rate.as_ref().expect("a rate");
            let wanted = 250.0 * f64::from(point.cpus) + 0.5;
            assert_eq!((rate.min, rate.median, rate.max), (wanted, wanted, wanted));
            let speedup = wanted / 250.5;
            assert!(
                (point.speedup - speedup).abs() < 1e-9,
                "{} {speedup}",
                point.speedup
            );
        }
    }
}

#[test]
fn a_fixed_time_with_a_rate_has_a_speedup() {
    let _alone = alone();
    let place = Place::new();
    let script = "echo rate $((100 * {cpus})); exec sleep 1000";
    let rate = ["--rate", "rate ([0-9]+)", "--runs", "1", "--json"];
    // On a busy machine the time may be up before the program says its rate.
    let result = ["50ms", "500ms", "5s", "50s"]
        .iter()
        .map(|time| {
            let args = ["scale", "--for", time].into_iter().chain(rate);
            let args = args.chain(["--", "sh", "-c", script]);
            place.amdahl(args).ends_with(0).result()
        })
        .find(|result| has_notice(result, "no-rate").is_none())
        .expect("a rate in some time");
    assert_eq!(has_notice(&result, "fixed-time"), None);
    for point in &result.points {
        assert!(
            (point.speedup - f64::from(point.cpus)).abs() < 1e-9,
            "{point:?}"
        );
    }
}

/// Else the speedup silently is one of wall times that the user did not ask for.
#[test]
fn a_rate_that_the_output_does_not_have_is_told() {
    let _alone = alone();
    let place = Place::new();
    for output in ["nothing of the kind", "tps = many", "tps = inf", "tps = -1"] {
        let args = [
            "scale",
            "--rate",
            "tps = (\\S+)",
            "--cpus",
            "1",
            "--runs",
            "1",
            "--json",
            "--",
        ];
        let ran = place.amdahl(args.iter().chain(&["echo", output]));
        let told = ran.err.contains("--rate")
            || ran
                .result()
                .warnings
                .iter()
                .any(|notice| notice.text.contains("--rate"));
        assert!(told, "{}{}", ran.out, ran.err);
    }
}

/// One run of many: it once made rates and times one sum.
#[test]
fn a_run_without_the_rate_that_others_have_is_left_out() {
    let _alone = alone();
    let place = Place::new();
    // The fourth is with the probe or without, whichever comes then.
    let script = "echo >> runs; test $(wc -l < runs) = 4 || echo rate $((100 * {cpus}))";
    let rate = ["--rate", "rate ([0-9]+)"];
    let ran = place.amdahl(runs_of("1", "3", &rate, script));
    let result = ran.result();
    let [failure] = &result.failures[..] else {
        panic!("{:?}", result.failures);
    };
    assert!(failure.what.contains("--rate"), "{failure:?}");
    assert_eq!(has_notice(&result, "no-rate"), None);
    let point = &result.points[0];
    let rate = point.rate.as_ref().expect("of the others");
    assert!(rate.runs.iter().all(|&rate| rate == 100.0), "{rate:?}");
    assert_eq!(point.wall_s.runs.len() + point.probed_wall_s.runs.len(), 5);
}

/// Such a command, of ten thousand files, was refused when all had been measured.
#[test]
fn a_command_may_have_many_words() {
    let _alone = alone();
    let place = Place::new();
    let args = [
        "scale",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--no-warmup",
        "-o",
        "r",
        "--",
        "true",
    ];
    let files: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let args = args.into_iter().chain(files.iter().map(String::as_str));
    place.amdahl(args).ends_with(0);
    place.amdahl(["report", "r"]).ends_with(0);
}

#[test]
fn output_is_shown_on_request_and_not_mixed_with_the_report() {
    let _alone = alone();
    let place = Place::new();
    let script = "echo from the program; echo its complaint >&2";
    let scale = |more: &[&str]| {
        let args = ["scale", "--cpus", "1", "--runs", "1", "--json"];
        let command = ["--", "sh", "-c", script];
        let ran = place
            .amdahl(args.iter().chain(more).chain(&command))
            .ends_with(0);
        ran.result();
        ran.err
    };
    let quiet = scale(&["-q"]);
    assert!(quiet.is_empty(), "{quiet}");
    let shown = scale(&["-q", "--show-output"]);
    assert!(
        shown.contains("from the program\n") && shown.contains("its complaint\n"),
        "{shown}"
    );
    let progress = scale(&[]);
    assert!(
        progress.contains("run 1/3") && !progress.contains("complaint"),
        "{progress}"
    );
}

/// The end of a long output is kept, the rest does not fill memory or block the program.
#[test]
fn much_output_is_swallowed() {
    let _alone = alone();
    let place = Place::new();
    let script = "head -c 50000000 /dev/zero >&2; head -c 50000000 /dev/zero; echo rate 5";
    let args = [
        "scale",
        "--rate",
        "rate ([0-9]+)",
        "--cpus",
        "1",
        "--runs",
        "1",
        "--json",
        "--",
    ];
    let result = place
        .amdahl(args.iter().chain(&["sh", "-c", script]))
        .ends_with(0)
        .result();
    assert_eq!(result.points[0].rate.as_ref().expect("a rate").median, 5.0);
}
