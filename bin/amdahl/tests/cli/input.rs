//! What programs read as their standard input.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;

use crate::tool::{Place, alone, has_notice, notice};

/// Runs `scale` with this input; returns how many bytes each run read, and the notice about it.
fn sizes_read(place: &Place, input: Stdio, probe: &str) -> (Vec<String>, Option<String>) {
    let args = ["scale", "--probe", probe, "--cpus", "1", "--runs", "2"];
    let more = ["--json", "--no-output", "--", "sh", "-c", "wc -c >> sizes"];
    let mut command = place.tool(args.iter().chain(&more));
    command.stdin(input);
    let result = place.run(command).ends_with(0).result();
    let sizes = place.read("sizes");
    let text = has_notice(&result, "no-input").map(|_| notice(&result, "no-input").to_owned());
    (
        sizes.lines().map(|line| line.trim().to_owned()).collect(),
        text,
    )
}

/// Every run but none got nothing: a sort of no lines was measured.
#[test]
fn every_run_reads_the_same_file() {
    let _alone = alone();
    for probe in ["auto", "proc"] {
        let place = Place::new();
        std::fs::write(place.join("words"), "thirteen here").expect("written");
        let open = || File::open(place.join("words")).expect("a file");
        let (sizes, told) = sizes_read(&place, open().into(), probe);
        assert_eq!(sizes, ["13"; 5], "warm-up, with and without the probe");
        assert_eq!(told, None);

        // A shell that has read the first words leaves the rest to the tool.
        std::fs::remove_file(place.join("sizes")).expect("removed");
        let mut rest = open();
        rest.read_exact(&mut [0; 9]).expect("read");
        assert_eq!(sizes_read(&place, rest.into(), probe).0, ["4"; 5]);
    }
}

#[test]
fn a_pipe_cannot_be_read_by_every_run_which_is_told() {
    let _alone = alone();
    let place = Place::new();
    let (read, mut write) = std::io::pipe().expect("a pipe");
    write.write_all(b"words").expect("written");
    drop(write);
    let (sizes, told) = sizes_read(&place, read.into(), "proc");
    assert_eq!(sizes, ["0"; 5]);
    let told = told.expect("a notice");
    assert!(told.contains("empty") && told.contains("sh -c"), "{told}");
}

#[test]
fn nothing_to_read_is_nothing_to_tell() {
    let _alone = alone();
    let (at_its_end, _) = std::io::pipe().expect("a pipe");
    for input in [Stdio::null(), at_its_end.into()] {
        let place = Place::new();
        let (sizes, told) = sizes_read(&place, input, "proc");
        assert_eq!((sizes, told), (vec!["0".to_owned(); 5], None));
    }
}

#[test]
fn a_program_that_runs_once_reads_what_we_would() {
    let _alone = alone();
    let place = Place::new();
    let (read, mut write) = std::io::pipe().expect("a pipe");
    write.write_all(b"words").expect("written");
    drop(write);
    let args = ["locks", "--quiet", "--probe", "proc", "--"];
    let mut command = place.tool(args.iter().chain(&["sh", "-c", "cat > got"]));
    command.stdin(read);
    place.run(command).ends_with(0);
    assert_eq!(place.read("got"), "words");
}
