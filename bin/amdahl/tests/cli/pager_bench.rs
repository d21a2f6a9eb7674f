//! `amdahl pager bench`.

use std::fs;

use super::tool::{Place, alone, skipped};

#[test]
fn what_it_measured_is_a_table_and_a_picture() {
    let place = Place::new();
    let ran = place.amdahl([
        "pager",
        "bench",
        "--faulters",
        "1,3",
        "--modes",
        "plain,inline",
        "--memory",
        "8",
        "--random-memory",
        "4",
        "--rounds",
        "1",
        "--plot",
        "bench.svg",
    ]);
    if ran.status.code() == Some(6) {
        return skipped(ran.err);
    }
    let text = ran.ends_with(0).out;
    assert!(text.contains("3 faulting threads"), "{text}");
    let picture = fs::read_to_string(place.join("bench.svg")).expect("drawn");
    for word in [
        "<svg",
        "plain",
        "inline",
        "MB for a CPU-second",
        "99th percentile",
        "</svg>",
    ] {
        assert!(picture.contains(word), "{word}\n{picture}");
    }
}

#[test]
fn huge_pages_are_reserved_as_long_as_it_runs() {
    const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let number = || fs::read_to_string(FILE).expect("huge pages");
    // Others do the same.
    let _alone = alone();
    let before = number();
    let place = Place::new();
    let sizes = [
        "--faulters",
        "1",
        "--memory",
        "8",
        "--random-memory",
        "8",
        "--rounds",
        "1",
    ];
    let first = [
        "pager",
        "bench",
        "--modes",
        "hugetlb",
        "--hugetlb",
        "--json",
    ];
    let ran = place.amdahl(first.iter().chain(&sizes));
    if ran.status.code() == Some(6) {
        return skipped(ran.err);
    }
    let said = ran.ends_with(0).json();
    assert_eq!(
        said["cells"][0]["skipped"],
        serde_json::Value::Null,
        "{said}"
    );
    assert!(said["cells"][0]["mb_per_s"].as_f64() > Some(0.0), "{said}");
    assert_eq!(number(), before);
    // Of somebody who may not.
    if let Some(ran) = place.amdahl_as_ordinary_user(&["pager", "bench", "--hugetlb"]) {
        let ran = ran.ends_with(6);
        assert!(!ran.message().is_empty());
    }
}

#[test]
fn restores_are_measured_beside_the_modes() {
    let place = Place::new();
    let sizes = [
        "--faulters",
        "1",
        "--memory",
        "4",
        "--random-memory",
        "4",
        "--rounds",
        "1",
    ];
    let more = ["--modes", "memcpy", "--restore", "16", "--vms", "3"];
    let args = [&["pager", "bench"][..], &sizes, &more].concat();
    let ran = place.amdahl(&args);
    if ran.status.code() == Some(6) {
        return skipped(ran.err);
    }
    let text = ran.ends_with(0).out;
    assert!(text.contains("restore of 16 MiB"), "{text}");
    let said = place
        .amdahl(args.iter().chain(&["--json"]))
        .ends_with(0)
        .json();
    let ways = said["restores"]["ways"].as_array().expect("a list");
    assert_eq!(ways.len(), 7);
    for way in ways {
        match way["skipped"].as_str() {
            Some(why) => skipped(format_args!("{}: {why}", way["name"])),
            None => assert!(way["first_answer_ns"].as_f64() > Some(0.0), "{way}"),
        }
    }
    assert_eq!(ways[0]["whole_by_this"], 1.0);
    match said["skipped"][0].as_str() {
        Some(why) => skipped(why),
        // One copy, whoever reads it, and each page once.
        None => assert_eq!(said["many"]["pages_fetched"], (64 << 20) / 4096, "{said}"),
    }
}

#[test]
fn a_picture_that_cannot_be_written_is_told_before_anything_is_measured() {
    let place = Place::new();
    let ran = place.amdahl(["pager", "bench", "--plot", "nowhere/bench.svg"]);
    if ran.status.code() == Some(6) {
        return skipped(ran.err);
    }
    let ran = ran.ends_with(1);
    assert!(
        ran.message()
            .contains("nowhere/bench.svg cannot be written"),
        "{}",
        ran.err
    );
    assert_eq!(ran.out, "");
}
