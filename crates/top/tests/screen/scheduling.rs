//! The tab of the scheduler.

use std::time::Duration;

use amdahl_report::sched::schema::{
    CpuEntry, Elsewhere, GuestEntry, SchedResult, StealEntry, Totals, Wasted, WastedPair,
};
use amdahl_top::{By, Data, Screen, Tab};

use super::{PLAIN, lines, press, snapshot};

/// A machine of two CPUs whose second one idles in vain, with a guest.
fn scheduled() -> SchedResult {
    let cpu = |cpu, run_s, idle_s, idle_wasted_s| CpuEntry {
        cpu,
        run_s,
        idle_s,
        idle_wasted_s,
        switches: 4321,
        ..CpuEntry::default()
    };
    let pair = |reason: &str, total_s| WastedPair {
        idle_cpu: 7,
        busy_cpu: 0,
        reason: reason.to_owned(),
        total_s,
        stretches: 12,
        longest_s: 0.5,
    };
    let guest = |guest_cpu, tid, phantom_s| GuestEntry {
        vmm: "QEMU".to_owned(),
        pid: 4711,
        tid,
        guest_cpu,
        run_s: 3.0,
        phantom_s,
        ..GuestEntry::default()
    };
    SchedResult {
        totals: Totals {
            switches: 8642,
            ..Totals::default()
        },
        cpus: vec![cpu(0, 10.0, 2.0, 0.25), cpu(7, 4.0, 8.0, 5.0)],
        wasted: Wasted {
            affinity_s: 4.25,
            placement_s: 0.625,
            balancing_s: 0.315,
            transient_s: 0.06,
            pairs: vec![pair("placement", 0.625), pair("affinity", 4.375)],
            ..Wasted::default()
        },
        guests: vec![guest(Some(0), 4712, 0.5), guest(None, 4713, 1.0)],
        steal: vec![StealEntry {
            cpu: 7,
            steal_s: 0.75,
        }],
        ..SchedResult::default()
    }
}

/// The screen of the scheduler, with rows made by what `keys` choose.
fn scheduling(result: SchedResult, keys: &str) -> Screen {
    let mut screen = Screen::new(PLAIN, "the system", Tab::Sched, Duration::from_secs(1));
    press(&mut screen, keys);
    screen.take(snapshot(Data::Sched(result)));
    screen
}

#[test]
fn what_was_wasted_is_told_by_its_reasons_within_80_columns() {
    let headline = |result| lines(&mut scheduling(result, ""), 80, 24)[1].clone();
    let all = headline(scheduled());
    let expected =
        "CPUs busy 58%, wasted 5.25s: affinity 81% wake-up 12% balancing 6% transient 1%";
    assert!(all.starts_with(expected), "{all}");
    let one = headline(SchedResult {
        wasted: Wasted {
            balancing_s: 0.5,
            ..Wasted::default()
        },
        ..scheduled()
    });
    let expected = "CPUs busy 58%, wasted 500ms: balancing 100%; wake-up to run p99 0";
    assert!(one.starts_with(expected), "{one}");
    let none = headline(SchedResult {
        wasted: Wasted::default(),
        ..scheduled()
    });
    assert!(none.starts_with("CPUs busy 58%, wasted 0; "), "{none}");
}

#[test]
fn threads_that_are_in_no_row_are_counted() {
    let told = |result| snapshot(Data::Sched(result)).notices().join(" ");
    assert!(!told(scheduled()).contains("no row"));
    let many = told(SchedResult {
        threads_elsewhere: Elsewhere {
            threads: 40_000,
            run_s: 2.5,
            wait_s: 0.25,
        },
        ..scheduled()
    });
    assert!(
        many.contains("40000 more threads are in no row: 2.50s on CPUs, 250ms waiting"),
        "{many}"
    );
}

#[test]
fn cpus_are_told_with_what_they_wasted_and_why() {
    let mut screen = scheduling(scheduled(), "gg");
    let shown = lines(&mut screen, 80, 24);
    assert!(shown[23].contains("by cpu"), "{shown:?}");
    for title in ["cpu", "run", "idle", "wastedv", "why", "switches", "steal"] {
        assert!(shown[3].contains(title), "{title}: {}", shown[3]);
    }
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    // Who wasted most comes first; most of it was for the affinity.
    let most = words(&shown[4]);
    assert_eq!(most[..5], ["7", "4.00s", "8.00s", "5.00s", "affinity"]);
    assert!(
        most.contains(&"4321".to_owned()) && most.contains(&"750ms".to_owned()),
        "{most:?}"
    );
    assert_eq!(words(&shown[5])[..4], ["0", "10.0s", "2.00s", "250ms"]);
    press(&mut screen, "\n");
    let detail = lines(&mut screen, 80, 24).join("\n");
    for expected in [
        "CPU 7",
        "CPU 0: 4.38s by affinity, 12 times, longest 500ms",
        "CPU 0: 625ms by wake-up",
        "the hypervisor took 750ms",
    ] {
        assert!(detail.contains(expected), "{expected}: {detail}");
    }
}

/// Without events nothing is known of waste, which is not none.
#[test]
fn cpus_without_events_have_no_figures_of_waste() {
    let mut result = scheduled();
    (result.totals, result.wasted) = (Totals::default(), Wasted::default());
    let shown = lines(&mut scheduling(result, "gg"), 80, 24);
    let words: Vec<&str> = shown[4].split_whitespace().collect();
    assert_eq!(words[..4], ["0", "10.0s", "2.00s", "-"]);
    assert!(!shown[1].contains("wasted"), "{}", shown[1]);
}

#[test]
fn cpus_of_guests_are_told_with_their_phantom_time() {
    let mut screen = scheduling(scheduled(), "ggg");
    let shown = lines(&mut screen, 80, 24);
    assert!(shown[23].contains("by guest"), "{shown:?}");
    assert!(shown[3].contains("phantomv"), "{}", shown[3]);
    let words: Vec<&str> = shown[4].split_whitespace().collect();
    assert_eq!(
        words[..7],
        ["QEMU", "4711", "-", "3.00s", "1.00s", "0", "25%"]
    );
    assert!(
        shown[5].contains("500ms") && shown[5].contains("14%"),
        "{}",
        shown[5]
    );
    press(&mut screen, "\n");
    let detail = lines(&mut screen, 80, 24).join("\n");
    assert!(detail.contains("thread 4713 of process 4711"), "{detail}");
    press(&mut screen, "\u{1b}g");
    assert_eq!(screen.by(), By::Thread);
    let mut none = scheduling(SchedResult::default(), "ggg");
    assert!(lines(&mut none, 80, 24)[4].starts_with("Nothing yet."));
}
