//! Result folders: what is written is read again, and nothing half-written is ever found.

mod fixture;

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use amdahl_report::load::{LoadError, RESULT_FILE, load, parse};
use amdahl_report::samples::{self, SAMPLES_FILE};
use amdahl_report::save::{Folder, SaveError, save, to_json};
use serde_json::{Value, json};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_saved_is_loaded() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("out");
    for result in [fixture::sweep(), fixture::hostile()] {
        save(&result, &folder).unwrap();
        assert_eq!(load(&folder).unwrap(), result);
        assert_eq!(load(&folder.join(RESULT_FILE)).unwrap(), result);
    }
    assert_eq!(names(place.path()), ["out"]);
    assert_eq!(names(&folder), [RESULT_FILE]);
    // Others may read it, as far as the umask allows.
    let usual = place.path().join("usual");
    fs::create_dir(&usual).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&folder), mode(&usual));
}

#[test]
fn other_files_of_an_existing_folder_stay() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("notes.txt"), "mine").unwrap();
    let folder = Folder::create(place.path()).unwrap();
    folder.write("report.html", b"page").unwrap();
    folder.result(&fixture::sweep()).unwrap();
    let mut before = names(place.path());
    before.retain(|name| !name.starts_with('.'));
    assert_eq!(
        before,
        ["notes.txt"],
        "nothing is visible before the commit"
    );
    folder.commit().unwrap();
    assert_eq!(
        names(place.path()),
        ["notes.txt", "report.html", RESULT_FILE]
    );
}

#[test]
fn a_writer_that_gives_up_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::create(&place.path().join("out")).unwrap();
    folder.write("a", b"a").unwrap();
    drop(folder);
    assert_eq!(names(place.path()), [""; 0]);
}

#[test]
fn the_next_writer_removes_what_a_killed_one_left() {
    let place = tempfile::tempdir().unwrap();
    let left = place.path().join(".amdahl-unfinished-1-0");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("samples.parquet"), "half").unwrap();
    let living = Folder::create(&place.path().join("first")).unwrap();
    living.write("a", b"a").unwrap();
    let second = Folder::create(&place.path().join("second")).unwrap();
    assert!(!left.exists());
    // The folder of a writer that lives is left alone.
    second.commit().unwrap();
    living.commit().unwrap();
    assert_eq!(names(place.path()), ["first", "second"]);
}

#[test]
fn refusals_of_the_system_keep_their_error_number() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let kind = |result: Result<Folder, SaveError>| match result {
        Err(SaveError::Io { source, .. }) => (source.kind(), source.raw_os_error().unwrap()),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        kind(Folder::create(&file)),
        (ErrorKind::NotADirectory, errno("NOTDIR"))
    );
    assert_eq!(
        kind(Folder::create(&place.path().join("no/where"))),
        (ErrorKind::NotFound, errno("NOENT"))
    );
    // /proc takes no folders, whoever asks.
    let (_, errno) = kind(Folder::create(Path::new("/proc/self/amdahl")));
    assert!(errno != 0);

    fs::set_permissions(place.path(), Permissions::from_mode(0o555)).unwrap();
    if rustix::process::geteuid().is_root() {
        println!("SKIPPED: a read-only folder, because root may write to it; run as another user");
    } else {
        assert_eq!(
            kind(Folder::create(&place.path().join("out"))).0,
            ErrorKind::PermissionDenied
        );
    }
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn samples_are_a_file_of_the_folder() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::create(place.path()).unwrap();
    folder.samples(fixture::rows()).unwrap();
    folder.commit().unwrap();
    assert_eq!(names(place.path()), [SAMPLES_FILE]);
    let read = samples::read(&place.path().join(SAMPLES_FILE)).unwrap();
    assert_eq!(read, fixture::rows());
}

fn errno(name: &str) -> i32 {
    match name {
        "NOTDIR" => rustix::io::Errno::NOTDIR.raw_os_error(),
        _ => rustix::io::Errno::NOENT.raw_os_error(),
    }
}

#[test]
fn a_full_disk_is_told_with_its_remedy() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::create(place.path()).unwrap();
    // /dev/full is a disk without space.
    let error = fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .write_all(b"x")
        .unwrap_err();
    let error = folder.write_error("samples.parquet", error);
    let SaveError::Io { source, path, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(
        source.raw_os_error(),
        Some(rustix::io::Errno::NOSPC.raw_os_error())
    );
    assert!(path.ends_with("samples.parquet"));
    assert!(error.to_string().contains("free some space"), "{error}");
}

#[test]
fn names_cannot_leave_the_folder() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::create(&place.path().join("out")).unwrap();
    for name in ["../x", "/etc/x", "a/b", "..", ".", ""] {
        assert!(
            matches!(folder.file(name), Err(SaveError::Name { .. })),
            "{name}"
        );
    }
}

#[test]
fn a_result_that_would_not_be_read_again_is_not_written() {
    let place = tempfile::tempdir().unwrap();
    let mut result = fixture::sweep();
    result.points[2].wall_s.median = f64::NAN;
    let folder = Folder::create(&place.path().join("out")).unwrap();
    let error = folder.result(&result).unwrap_err();
    assert!(
        matches!(&error, SaveError::Invalid { at, .. } if at == "points.2.wall_s.median"),
        "{error}"
    );
}

/// Loads the fixture after `damage`.
fn damaged(damage: impl FnOnce(&mut Value)) -> LoadError {
    let mut value: Value = serde_json::from_str(&to_json(&fixture::sweep()).unwrap()).unwrap();
    damage(&mut value);
    parse(value.to_string().as_bytes(), "result.json".into()).unwrap_err()
}

#[test]
fn damage_is_named() {
    let at = |error: LoadError| match error {
        LoadError::Invalid { at, .. } => at,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        at(damaged(|v| v["points"][0]["stack"]["work"] = json!(0.5))),
        "points.0.stack"
    );
    assert_eq!(
        at(damaged(|v| v["points"][1]["stack"]["io"] = json!(1.5))),
        "points.1.stack.io"
    );
    assert_eq!(
        at(damaged(|v| v["points"][1]["cpus"] = json!(9))),
        "points.2.cpus"
    );
    assert_eq!(
        at(damaged(|v| v["points"][1]["cpus"] = json!(0))),
        "points.1.cpus"
    );
    assert_eq!(
        at(damaged(
            |v| v["points"][3]["wall_s"]["runs"][0] = json!(-1.0)
        )),
        "points.3.wall_s.runs.0"
    );
    assert_eq!(
        at(damaged(|v| v["points"][3]["wall_s"]["median"] = json!(99.0))),
        "points.3.wall_s"
    );
    assert_eq!(
        at(damaged(|v| v["points"][3]["speedup"] = json!(1e300))),
        "points.3.speedup"
    );
    assert_eq!(
        at(damaged(
            |v| v["points"][3]["speedup_range"] = json!([2.0, 1.0])
        )),
        "points.3.speedup_range"
    );
    assert_eq!(
        at(damaged(|v| v["causes"][0]["id"] = json!("a b\""))),
        "causes.0.id"
    );
    assert_eq!(
        at(damaged(
            |v| v["causes"][0]["sites"][1]["fraction"] = json!(-0.2)
        )),
        "causes.0.sites.1.fraction"
    );
    assert_eq!(
        at(damaged(
            |v| v["causes"][0]["text"] = json!("x".repeat(1 << 20))
        )),
        "causes.0.text"
    );
    assert_eq!(
        at(damaged(|v| v["command"] = json!(vec!["x"; (1 << 20) + 1]))),
        "command"
    );
    assert_eq!(
        at(damaged(
            |v| v["models"]["usl"]["parameters"]["<b>"] = json!(1.0)
        )),
        "models.usl.parameters"
    );
    assert_eq!(
        at(damaged(
            |v| v["points"] = json!(vec![json!({"cpus": 1}); 5000])
        )),
        "points"
    );
}

/// Three bytes of a list of empty points are hundreds once they are read, so that a file of the
/// size that is still accepted took 12 GB.
#[test]
fn lists_without_end_are_not_kept() {
    let list = |entry: &str, count| format!("[{}]", vec![entry; count].join(","));
    let damaged = |field: &str, list: String| {
        let text = format!(r#"{{"schema": "amdahl.scale/1", "{field}": {list}}}"#);
        parse(text.as_bytes(), "r".into()).unwrap_err().to_string()
    };
    let message = damaged("points", list(r#"{"cpus":1}"#, 500_000));
    assert!(
        message.contains("`points` has more than 1024 entries"),
        "{message}"
    );
    let cause = format!(r#"{{"id":"io","sites":{}}}"#, list("{}", 500_000));
    let message = damaged("causes", list(&cause, 1));
    assert!(
        message.contains("`causes.0.sites` has more than 1000 entries"),
        "{message}"
    );
    // What is beyond the limit must be JSON all the same.
    let message = damaged("points", list(r#"{"cpus":1}"#, 2000).replace("]", ",]"));
    assert!(message.contains("not a readable result"), "{message}");
}

#[test]
fn what_is_no_result_is_refused() {
    assert!(matches!(
        damaged(|v| v["schema"] = json!("amdahl.scale/2")),
        LoadError::Schema { .. }
    ));
    assert!(matches!(
        damaged(|v| v["schema"] = json!("")),
        LoadError::Schema { .. }
    ));
    assert!(matches!(
        damaged(|v| v["points"] = json!("\u{1b}[2J")),
        LoadError::Syntax { .. }
    ));
    let parse = |bytes: &[u8]| parse(bytes, "r".into());
    for bytes in [
        &b""[..],
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{\"schema\": 1e999}",
        &[b'['; 100_000],
    ] {
        let error = parse(bytes).unwrap_err();
        assert!(
            matches!(error, LoadError::Syntax { .. } | LoadError::Schema { .. }),
            "{error:?}"
        );
        assert!(error.to_string().len() < 500);
    }
    let hostile = damaged(|v| v["schema"] = json!(fixture::HOSTILE.concat()));
    assert!(
        !hostile.to_string().contains(['\u{1b}', '\n', '\u{202e}']),
        "{hostile}"
    );
}

#[test]
fn only_regular_files_of_a_bearable_size_are_read() {
    let place = tempfile::tempdir().unwrap();
    assert!(matches!(
        load(Path::new("/dev/zero")),
        Err(LoadError::NotAFile { .. })
    ));
    let fifo = place.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    assert!(matches!(load(&fifo), Err(LoadError::NotAFile { .. })));
    let Err(LoadError::Io { path, source, .. }) = load(place.path()) else {
        panic!()
    };
    assert_eq!(
        (path, source.kind()),
        (place.path().join(RESULT_FILE), ErrorKind::NotFound)
    );
    let large = fs::File::create(place.path().join(RESULT_FILE)).unwrap();
    large.set_len(1 << 40).unwrap();
    assert!(matches!(
        load(place.path()),
        Err(LoadError::TooLarge { .. })
    ));
}
