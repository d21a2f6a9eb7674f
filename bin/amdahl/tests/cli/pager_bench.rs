//! `amdahl pager bench`.

use std::fs;

use super::tool::{Place, skipped};

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
