//! The judge of the planted programs is judged: each thing it is there to notice is noticed.

#[allow(dead_code, reason = "the runner uses the rest")]
#[path = "planted/cases.rs"]
mod cases;
#[allow(dead_code, reason = "the runner uses the rest")]
#[path = "planted/check.rs"]
mod check;

use std::path::{Path, PathBuf};

use amdahl_report::schema::{CauseReport, Point, ScaleResult, Site, Source};
use cases::{Case, Expect, Line, Unprivileged};
use check::{Demand, Judgement, NamedBy, judge};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../planted")
}

fn cases_from(text: &str) -> Result<Vec<Case>, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    cases::read(file.path())
}

fn case(fields: &str) -> Case {
    let text = format!(
        "[[case]]\nname = 'c-x'\nlang = 'c'\nsource = 'c/x.c'\ncommand = ['{{bin}}']\nfunction = ['take_it']\n\
         note = ''\n{fields}"
    );
    cases_from(&text).expect("a valid case").remove(0)
}

fn lock() -> Case {
    case("cause = 'lock-wait'\nfraction_at_2 = 0.3")
}

fn point(cpus: u32, stack: &[(&str, f64)]) -> Point {
    let stack = stack
        .iter()
        .map(|(id, part)| (id.to_string(), *part))
        .collect();
    Point {
        cpus,
        stack,
        ..Point::default()
    }
}

fn report(id: &str, fraction: f64, frame: &str) -> CauseReport {
    let site = Site {
        symbol: "burn".to_owned(),
        stack: vec!["futex".to_owned(), frame.to_owned()],
        ..Site::default()
    };
    CauseReport {
        id: id.to_owned(),
        fraction,
        sites: vec![site],
        ..CauseReport::default()
    }
}

/// A third of two CPUs in `lock-wait`, and what the program says is the same.
fn result() -> ScaleResult {
    ScaleResult {
        points: vec![
            point(1, &[("work", 1.0)]),
            point(
                2,
                &[
                    ("work", 0.6),
                    ("lock-wait", 0.32),
                    ("sleep", 0.05),
                    ("unexplained", 0.03),
                ],
            ),
        ],
        causes: vec![
            report("lock-wait", 0.32, "c::take_it(int)"),
            report("sleep", 0.05, "nap"),
        ],
        ..ScaleResult::default()
    }
}

fn lines(seconds: f64) -> Vec<Line> {
    let line = |cpus, seconds| Line {
        cause: "lock-wait".to_owned(),
        seconds,
        wall: 1.0,
        cpus,
    };
    vec![line(1, 0.1), line(2, seconds)]
}

fn full(case: &Case, lines: &[Line], result: &ScaleResult) -> Judgement {
    judge(case, |_| Demand::full(case, result), lines, 1, 0.0, result)
}

/// The only failure, which holds `words`.
#[track_caller]
fn fails_with(judgement: &Judgement, words: &str) {
    let [failure] = &judgement.failures[..] else {
        panic!("{:?}", judgement.failures)
    };
    assert!(failure.contains(words), "{failure}");
}

#[test]
fn the_right_answer_passes() {
    let judgement = full(&lock(), &lines(0.6), &result());
    assert_eq!(judgement.failures, [""; 0]);
    let comparison = &judgement.comparisons[0];
    assert_eq!(comparison.function_found.as_deref(), Some("take_it"));
    assert_eq!(comparison.size_measured, Some(0.3));
    assert_eq!(judgement.noise, None);
}

#[test]
fn another_cause_in_front_fails() {
    let mut result = result();
    result.causes.swap(0, 1);
    fails_with(&full(&lock(), &lines(0.6), &result), "first cause is sleep");
    result.causes.clear();
    fails_with(&full(&lock(), &lines(0.6), &result), "no first cause");
}

#[test]
fn a_wrong_size_fails() {
    let wrong = case("cause = 'lock-wait'\nfraction_at_2 = 0.43");
    fails_with(
        &full(&wrong, &lines(0.6), &result()),
        "32.0 %, expected 43.0 % by arithmetic",
    );
    fails_with(
        &full(&lock(), &lines(0.86), &result()),
        "32.0 %, expected 43.0 % by its own account",
    );
    // One CPU's 0.1 s are no loss where the activity is needed there too.
    let relative = case("cause = 'lock-wait'\nrelative = true");
    assert_eq!(full(&relative, &lines(0.8), &result()).failures, [""; 0]);
    fails_with(&full(&relative, &lines(0.5), &result()), "expected 20.0 %");
}

#[test]
fn a_size_that_nobody_told_fails() {
    let judgement = full(&case("cause = 'lock-wait'"), &[], &result());
    assert!(
        judgement
            .failures
            .iter()
            .any(|failure| failure.contains("nothing says how large"))
    );
    let judgement = full(&lock(), &lines(0.6)[..1], &result());
    fails_with(&judgement, "told of lock-wait 0 times");
}

#[test]
fn unnamed_code_fails() {
    let mut result = result();
    result.causes[0].sites[0].stack.clear();
    fails_with(&full(&lock(), &lines(0.6), &result), "take_it is not named");
}

/// Any of the first three sites was once good enough.
#[test]
fn only_the_top_site_names_the_code() {
    let mut result = result();
    let named = |result: &ScaleResult| {
        let judgement = full(&lock(), &lines(0.6), result);
        judgement.comparisons[0].function_by
    };
    assert_eq!(named(&result), Some(NamedBy::Stack));
    let sites = &mut result.causes[0].sites;
    sites[0].symbol = "c::take_it(int)".to_owned();
    assert_eq!(named(&result), Some(NamedBy::Symbol));
    let other = Site {
        symbol: "burn".to_owned(),
        ..Site::default()
    };
    result.causes[0].sites.insert(0, other);
    assert_eq!(named(&result), None);
    fails_with(&full(&lock(), &lines(0.6), &result), "take_it is not named");
}

#[test]
fn much_unexplained_fails() {
    let mut result = result();
    result.points[1] = point(
        2,
        &[("work", 0.63), ("lock-wait", 0.32), ("unexplained", 0.05)],
    );
    fails_with(&full(&lock(), &lines(0.6), &result), "5.0 % unexplained");
}

#[test]
fn a_stack_that_does_not_add_up_fails() {
    for (work, words) in [
        (0.6001, "2 CPUs adds up to"),
        (f64::NAN, "2 CPUs adds up to"),
    ] {
        let mut result = result();
        result.points[1].stack.insert("work".to_owned(), work);
        let judgement = full(&lock(), &lines(0.6), &result);
        assert!(
            judgement.failures[0].contains(words),
            "{:?}",
            judgement.failures
        );
    }
    let mut result = result();
    result.points[0] = point(1, &[("work", 1.5), ("sleep", -0.5)]);
    fails_with(
        &full(&lock(), &lines(0.6), &result),
        "with 1 CPUs sleep is -0.5",
    );
}

#[test]
fn a_missing_point_fails() {
    let mut result = result();
    result.points.pop();
    fails_with(&full(&lock(), &lines(0.6), &result), "points for [1] CPUs");
}

#[test]
fn only_what_others_took_counts_as_noise() {
    let mut result = result();
    result.points[0] = point(1, &[("work", 0.94), ("stolen", 0.06)]);
    assert_eq!(
        full(&lock(), &lines(0.6), &result).noise.as_deref(),
        Some("6.0 % stolen with 1 CPUs")
    );
    let stolen = case("cause = 'stolen'");
    assert_eq!(full(&stolen, &lines(0.6), &result).noise, None);
}

/// A disk behind a busy hypervisor: 60 % of two CPUs were taken, mostly while the program waited for it.
#[test]
fn what_the_hypervisor_took_is_forgiven_but_not_what_the_tool_alone_calls_so() {
    let stack = [("stolen", 0.6), ("lock-wait", 0.3), ("work", 0.1)];
    let mut result = result();
    result.points[1] = point(2, &stack);
    result.points[1].probed_wall_s.median = 1.0;
    let mut taken = report("stolen", 0.6, "");
    taken.sites[0].symbol = "hypervisor".to_owned();
    result.causes = vec![taken, report("lock-wait", 0.3, "c::take_it(int)")];
    let waits = case("cause = 'lock-wait'");
    let judged = |seconds, taken_s| {
        let demand = |_: &str| Demand::full(&waits, &result);
        judge(&waits, demand, &lines(seconds), 1, taken_s, &result)
    };
    // 70 %, by its own account, of which up to 60 % may have been taken.
    let judgement = judged(1.4, 1.2);
    assert_eq!(judgement.failures, [""; 0]);
    assert!(judgement.noise.is_some());
    assert_eq!(
        judgement.comparisons[0].cause_found.as_deref(),
        Some("lock-wait")
    );
    fails_with(&judged(0.3, 1.2), "30.0 %, expected 15.0 %");
    // The kernel counted nothing, or less than half: the tool is wrong.
    for taken_s in [0.0, 0.5] {
        let failures = judged(1.4, taken_s).failures;
        assert!(
            failures[0].contains("first cause is stolen"),
            "{failures:?}"
        );
        assert!(failures[1].contains("expected 70.0 %"), "{failures:?}");
    }
}

/// A third of a CPU that was taken is no work, and nothing to blame the program for.
#[test]
fn nothing_is_blamed_for_what_the_hypervisor_took() {
    let perfect = case("cause = 'none'");
    let mut result = result();
    result.points[1] = point(2, &[("work", 0.65), ("stolen", 0.35)]);
    result.points[1].probed_wall_s.median = 1.0;
    result.causes = vec![report("stolen", 0.35, "")];
    let lines = lines(0.0).into_iter().map(|line| Line {
        cause: "none".to_owned(),
        ..line
    });
    let lines: Vec<Line> = lines.collect();
    let judged = |taken_s| {
        let demand = |_: &str| Demand::full(&perfect, &result);
        judge(&perfect, demand, &lines, 1, taken_s, &result).failures
    };
    assert_eq!(judged(0.7), [""; 0]);
    assert_eq!(
        judged(0.1),
        ["blames stolen for 35.0 %", "only 65.0 % is work"]
    );
}

#[test]
fn blame_where_nothing_is_planted_fails() {
    let perfect = case("cause = 'none'");
    let lines: Vec<Line> = lines(0.0)
        .into_iter()
        .map(|line| Line {
            cause: "none".to_owned(),
            ..line
        })
        .collect();
    let judgement = full(&perfect, &lines, &result());
    let [said, blamed, worked] = &judgement.failures[..] else {
        panic!("{:?}", judgement.failures)
    };
    assert!(said.contains("The largest loss: lock-wait"), "{said}");
    assert_eq!(blamed, "blames lock-wait for 32.0 %");
    assert_eq!(worked, "only 60.0 % is work");
    let mut result = result();
    // Below the limits, but more than a perfect program is told of.
    result.points[1] = point(2, &[("work", 0.86), ("lock-wait", 0.09), ("sleep", 0.05)]);
    result.causes[0].fraction = 0.09;
    fails_with(&full(&perfect, &lines, &result), "it says: ");
    result.points[1] = point(2, &[("work", 0.96), ("lock-wait", 0.03), ("sleep", 0.01)]);
    result.causes[0].fraction = 0.03;
    assert_eq!(full(&perfect, &lines, &result).failures, [""; 0]);
}

#[test]
fn the_second_cause_is_checked_too() {
    let two = case(
        "cause = 'lock-wait'\nsecond = 'sleep'\nsecond_function = ['nap']\nsecond_fraction_at_2 = 0.06",
    );
    let mut lines = lines(0.6);
    lines.extend(lines.clone().into_iter().map(|line| Line {
        cause: "sleep".to_owned(),
        seconds: 0.1,
        ..line
    }));
    assert_eq!(full(&two, &lines, &result()).failures, [""; 0]);
    let mut result = result();
    result.causes.insert(1, report("io", 0.06, ""));
    fails_with(&full(&two, &lines, &result), "second cause is io");
}

#[test]
fn without_counters_the_twin_is_as_good() {
    let twin =
        case("cause = 'barrier'\nfraction_at_2 = 0.3\nmerged_without_counters = ['lock-wait']");
    let lines: Vec<Line> = lines(0.6)
        .into_iter()
        .map(|line| Line {
            cause: "barrier".to_owned(),
            ..line
        })
        .collect();
    let mut result = result();
    assert_eq!(full(&twin, &lines, &result).failures, [""; 0]);
    for point in &mut result.points {
        point.instructions = Some(1.0);
    }
    assert!(
        full(&twin, &lines, &result).failures[0].contains("first cause is lock-wait, not barrier")
    );
}

#[test]
fn without_privileges_less_is_expected() {
    let text = "[cause.barrier]\nexpect = 'merged'\ninto = ['lock-wait']\nunexplained_below = 0.02\n\
                [case.c-x]\nexpect = 'approximated'\n";
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    let named = case("cause = 'barrier'");
    let all = Unprivileged::read(file.path(), std::slice::from_ref(&named)).expect("valid");
    let mut other = named.clone();
    other.name = "c-y".to_owned();
    let lines: Vec<Line> = lines(0.9)
        .into_iter()
        .map(|line| Line {
            cause: "barrier".to_owned(),
            ..line
        })
        .collect();
    let judged = |case: &Case| {
        judge(
            case,
            |cause| Demand::of(all.of(case, cause, &result())),
            &lines,
            1,
            0.0,
            &result(),
        )
        .failures
    };
    assert_eq!(judged(&other), ["3.0 % unexplained"]);
    assert!(judged(&named)[0].contains("first cause is lock-wait, not barrier"));
}

#[test]
fn without_samples_still_less_is_expected() {
    let text = "[cause.barrier]\nexpect = 'found'\n\
                [cause.barrier.without_samples]\nexpect = 'merged'\ninto = ['lock-wait']\n";
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    let case = case("cause = 'barrier'");
    let all = Unprivileged::read(file.path(), std::slice::from_ref(&case)).expect("valid");
    let expects = |how: &str| {
        let mut result = result();
        result.sources = vec![Source {
            what: "user stacks".to_owned(),
            how: how.to_owned(),
            missing: String::new(),
            remedy: String::new(),
        }];
        all.of(&case, "barrier", &result).expect
    };
    assert_eq!(expects("perf events"), Expect::Found);
    assert_eq!(expects("missing"), Expect::Merged);
}

#[test]
fn the_lists_are_valid() {
    let all = cases::read(&folder().join("cases.toml")).expect("valid");
    assert!(all.len() >= 24);
    Unprivileged::read(&folder().join("unprivileged.toml"), &all).expect("valid");
}

#[test]
fn a_damaged_list_is_refused() {
    let good =
        "[[case]]\nname='a'\nlang='c'\nsource='a.c'\ncommand=['{bin}']\nfunction=[]\nnote=''\n";
    assert!(cases_from(&format!("{good}cause = 'lock-wait'")).is_ok());
    let refused = |text: String| cases_from(&text).expect_err("refused");
    assert!(refused(format!("{good}cause = 'look-wait'")).contains("no cause look-wait"));
    assert!(refused(format!("{good}cause = 'sleep'\nsecnd = 'io'")).contains("secnd"));
    let twice = format!("{good}cause = 'none'\n");
    assert!(refused(twice.clone() + &twice).contains("occurs twice"));
}
