//! `amdahl pager migrate`: memory that threads write moves from one process to another.

mod asked;
mod recovered;

use serde_json::Value;

use super::tool::{Place, Running, skipped, until};

/// Waits until the other side listens, and says at which port, if that is one of TCP.
fn listens(waiting: &Running) -> String {
    until("it listens", || {
        let said = waiting.err_so_far();
        let line = said.lines().find(|line| line.starts_with("waiting at "))?;
        // All of the line.
        said.contains('\n')
            .then(|| line["waiting at ".len()..].to_owned())
    })
}

/// Whether writes can be followed here.
fn is_possible(message: &str) -> bool {
    let reason = message.contains("userfaultfd") || message.contains("Linux 6.7");
    if reason {
        skipped(message);
    }
    !reason
}

fn moves(listen: &str, memory: &str, more: &[&str]) -> Option<(Value, Value)> {
    let place = Place::new();
    let common = ["pager", "migrate", "--json", "--memory", memory];
    let waiting = place.start(place.tool(common.into_iter().chain(["--listen", listen])));
    let to = listens(&waiting);
    let leaving = place.tool(
        common
            .into_iter()
            .chain(["--to", &to])
            .chain(more.iter().copied()),
    );
    let left = place.start(leaving).ended();
    let arrived = waiting.ended();
    if left.status.code() == Some(6) && !is_possible(&left.err) {
        return None;
    }
    let left = left.ends_with(0);
    let arrived = arrived.ends_with(0);
    assert!(
        !place.names().contains(&"way".to_owned()),
        "{:?}",
        place.names()
    );
    let parse = |text: &str| serde_json::from_str(text).expect("JSON");
    Some((parse(&left.out), parse(&arrived.out)))
}

#[test]
fn memory_moves_while_threads_write_it() {
    for listen in ["unix:way", "tcp:127.0.0.1:0"] {
        let Some((left, arrived)) = moves(listen, "4M", &["--downtime", "60000"]) else {
            return;
        };
        assert_eq!(left["format"], "amdahl.pager.migrate/1");
        assert_eq!(
            (&left["side"], &arrived["side"]),
            (&"source".into(), &"destination".into())
        );
        assert_eq!(left["rounds"][0]["pages"], 1024);
        assert_eq!(left["left_pages"], 0);
        assert_eq!(arrived["missing_pages"], 0);
        assert!(left["downtime_ns"].as_u64() > Some(0));

        // Threads that write as fast as they can, and do not stand still. So much memory that they get to write while it is sent.
        let fast = [
            "--downtime",
            "0",
            "--rounds",
            "1",
            "--write-rate",
            "0",
            "--threads",
            "3",
        ];
        let (left, arrived) = moves(listen, "64M", &fast).expect("as before");
        assert!(left["left_pages"].as_u64() > Some(0), "{left}");
        assert_eq!(left["left_pages"], arrived["missing_pages"]);
    }
}

#[test]
fn what_cannot_move_stays_and_says_so() {
    let place = Place::new();
    let listen = ["pager", "migrate", "--listen", "unix:way", "--memory", "8M"];
    let waiting = place.start(place.tool(listen));
    listens(&waiting);
    let left = place
        .amdahl(["pager", "migrate", "--to", "unix:way", "--memory", "4M"])
        .ends_with(1);
    assert!(
        left.err.contains("there is room for 8388608"),
        "{}",
        left.err
    );
    assert!(
        left.err.contains("went on here, on their own memory"),
        "{}",
        left.err
    );
    waiting.ended().ends_with(1);

    let nobody = place
        .amdahl(["pager", "migrate", "--to", "unix:nobody"])
        .ends_with(1);
    assert!(nobody.err.contains("nobody"), "{}", nobody.err);
    for wrong in [
        &["pager", "migrate"][..],
        &["pager", "migrate", "--to", "nowhere"],
        &["pager", "migrate", "--to", "unix:a", "--listen", "unix:b"],
        &["pager", "migrate", "--listen", "tcp:0.0.0.0:0"],
    ] {
        place.amdahl(wrong).ends_with(2);
    }
}
