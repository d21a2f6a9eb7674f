//! Traces hold what importers need to show them as they are.

mod chrome_trace;

use amdahl_report::schema::Slice;
use amdahl_report::trace::{self, Names};
use proptest::prelude::*;

fn names() -> Names {
    let mut names = Names::default();
    for pid in [70, 80] {
        names
            .processes
            .insert(pid, format!("program \"{pid}\"\n\u{1}"));
        for tid in [pid, pid + 1] {
            names
                .threads
                .insert((pid, tid), "worker \\ \u{7f}ä".to_owned());
        }
    }
    names
}

fn written(slices: Vec<Slice>, names: &Names) -> Vec<u8> {
    trace::write(slices, names, Vec::new()).expect("written")
}

proptest! {
    /// Threads that run on one of two CPUs or wait, one after the other.
    #[test]
    fn what_does_not_overlap_is_shown_as_it_is(
        steps in proptest::collection::vec((0_usize..4, 0_u32..4, 0_u64..5_000_000_000, 0_u64..10), 0..60),
    ) {
        let threads = [(70, 70), (70, 71), (80, 80), (80, 81)];
        let (mut slices, mut now) = (Vec::new(), 1 << 50);
        for (thread, what, len_ns, pause) in steps {
            let (pid, tid) = threads[thread];
            slices.push(Slice {
                cpu: (what < 2).then_some(what),
                pid,
                tid,
                start_ns: now,
                len_ns,
                label: if what < 2 { "worker" } else { "lock-wait" }.to_owned(),
            });
            now += len_ns + pause;
        }
        let trace = chrome_trace::read(&written(slices.clone(), &names())).map_err(TestCaseError::fail)?;
        // A slice on a CPU is one of its thread, too.
        let shown = |tid: u32| trace.tracks.get(&(u64::from(tid / 10 * 10), u64::from(tid)));
        for (_, tid) in threads {
            let of_thread = slices.iter().filter(|slice| slice.tid == tid);
            let expected: Vec<_> = of_thread
                .map(|slice| chrome_trace::Slice {
                    start: slice.start_ns,
                    end: slice.start_ns + slice.len_ns,
                    name: if slice.cpu.is_some() { "running" } else { "lock-wait" }.to_owned(),
                })
                .collect();
            prop_assert_eq!(shown(tid).map_or(&[][..], |slices| &slices[..]), &expected[..]);
        }
        let all: usize = trace.tracks.values().map(Vec::len).sum();
        let on_cpus = slices.iter().filter(|slice| slice.cpu.is_some()).count();
        prop_assert_eq!(all, slices.len() + on_cpus);
    }
}

#[test]
fn the_process_of_the_cpus_says_how_they_were_seen() {
    let of_cpus = |cpus: &str| {
        let names = Names {
            cpus: cpus.to_owned(),
            ..names()
        };
        let trace = chrome_trace::read(&written(Vec::new(), &names)).expect("a trace");
        trace
            .processes
            .into_values()
            .next_back()
            .expect("a process")
    };
    assert_eq!(of_cpus(""), "CPUs");
    assert_eq!(of_cpus("CPUs, polled"), "CPUs, polled");
}

/// The reader of the other tests finds each kind of damage.
#[test]
fn what_importers_would_not_show_is_found() {
    let process = r#"{"name":"process_name","ph":"M","pid":7,"tid":7,"args":{"name":"p"}}"#;
    let thread = r#"{"name":"thread_name","ph":"M","pid":7,"tid":8,"args":{"name":"t"}}"#;
    let slice = r#"{"name":"s","ph":"X","pid":7,"tid":8,"ts":1.5,"dur":2}"#;
    let read = |events: &[&str]| {
        chrome_trace::parse(&format!("{{\"traceEvents\":[{}]}}", events.join(",")))
    };
    let trace = read(&[process, thread, slice]).expect("all is there");
    assert_eq!(trace.tracks[&(7, 8)][0].end, 3_500);
    for (from, to, found) in [
        ("\"ts\":1.5,", "", "no ts"),
        (",\"dur\":2", "", "no dur"),
        ("\"dur\":2", "\"dur\":-2", "no dur"),
        ("\"dur\":2", "\"dur\":\"2\"", "no dur"),
        ("\"pid\":7,", "", "no pid"),
        ("\"tid\":8", "\"tid\":5000000000", "no tid"),
        ("\"tid\":8", "\"tid\":0", "no tid"),
        ("\"name\":\"s\"", "\"name\":\"\"", "no name"),
        ("\"ph\":\"X\"", "\"ph\":\"B\"", "phase B"),
    ] {
        let damaged = slice.replacen(from, to, 1);
        assert_ne!(damaged, slice);
        let why = read(&[process, thread, &damaged]).expect_err(&damaged);
        assert!(why.starts_with(found), "{why}");
    }
    let overlapping = slice.replace("1.5", "3.4");
    let touching = slice.replace("1.5", "3.5");
    let of_another = slice.replace("\"pid\":7", "\"pid\":9");
    let (other_process, other_thread) = (process.replace('7', "9"), thread.replace('7', "9"));
    assert!(read(&[process, thread, slice, &touching]).is_ok());
    for (events, found) in [
        (&[process, slice][..], "has no name"),
        (&[thread, slice], "has no name"),
        (&[process, process, thread, slice], "named twice"),
        (&[process, thread, slice, &overlapping], "overlap"),
        (&[process, thread, slice, slice], "overlap"),
        (
            &[
                process,
                thread,
                slice,
                &other_process,
                &other_thread,
                &of_another,
            ],
            "is of 7 and of 9",
        ),
    ] {
        let why = read(events).expect_err(found);
        assert!(why.contains(found), "{why}");
    }
    assert!(chrome_trace::parse("[]").is_err());
    assert!(chrome_trace::parse(r#"{"displayTimeUnit":"s","traceEvents":[]}"#).is_err());
    assert!(chrome_trace::read(b"{}").is_err());
}
