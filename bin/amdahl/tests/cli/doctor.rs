//! `amdahl doctor`: what is missing is named with how to get it.

use crate::tool::{Place, Ran};

const CHECKS: [&str; 11] = [
    "topology",
    "several CPUs",
    "no CPU quota",
    "kernel type information (BTF)",
    "BPF recorder",
    "perf events of all threads",
    "perf events of own programs",
    "hardware counters",
    "kernel symbol names",
    "cpuset control groups",
    "steal time",
];

fn assert_complete(text: &Ran, json: &Ran) {
    let checks = json.json();
    let checks = checks.as_array().expect("a list");
    let names: Vec<&str> = checks
        .iter()
        .filter_map(|check| check["name"].as_str())
        .collect();
    for name in CHECKS {
        assert!(names.contains(&name), "{name}");
    }
    let mut missing = 0;
    for check in checks {
        let field = |name: &str| check[name].as_str().expect("text");
        let ok = check["ok"].as_bool().expect("yes or no");
        assert!(!field("found").is_empty(), "{check}");
        // With nothing lost there is nothing to do, and the other way round.
        assert_eq!(
            (field("lost").is_empty(), field("remedy").is_empty()),
            (ok, ok),
            "{check}"
        );
        let mark = if ok { "ok     " } else { "MISSING" };
        let line = format!("{mark}  {}: {}\n", field("name"), field("found"));
        assert!(text.out.contains(&line), "no {line:?} in\n{}", text.out);
        missing += usize::from(!ok);
    }
    let end = text.out.trim_end().lines().last().expect("a line");
    if missing == 0 {
        assert_eq!(end, "Everything can be measured here.");
    } else {
        assert!(
            end.starts_with(&format!("{missing} of {} are missing", checks.len())),
            "{end}"
        );
    }
}

#[test]
fn doctor_tells_the_same_as_text_and_as_json() {
    let place = Place::new();
    let text = place.amdahl(["doctor"]).ends_with(0);
    assert_complete(&text, &place.amdahl(["doctor", "--json"]).ends_with(0));
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn doctor_works_without_any_rights() {
    let place = Place::new();
    let run = |args: &[&str]| {
        place
            .amdahl_as_ordinary_user(args)
            .map(|ran| ran.ends_with(0))
    };
    let (Some(text), Some(json)) = (run(&["doctor"]), run(&["doctor", "--json"])) else {
        return;
    };
    assert_complete(&text, &json);
}
