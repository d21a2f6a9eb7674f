//! What changed between two results.

mod fixture;

use amdahl_report::compare::{Comparison, Measure, SCHEMA, Verdict, compare};
use amdahl_report::point::PointId;
use amdahl_report::schema::{ProfileEntry, ScaleResult, Site};
use amdahl_report::terminal::{Style, render_comparison};

/// The sweep with every time multiplied at `cpus`.
fn scaled(cpus: u32, factor: f64) -> ScaleResult {
    let mut result = fixture::sweep();
    let point = result.points.iter_mut().find(|p| p.cpus == cpus).unwrap();
    point.wall_s = fixture::spread(
        &point
            .wall_s
            .runs
            .iter()
            .map(|t| t * factor)
            .collect::<Vec<_>>(),
    );
    result
}

#[test]
fn nothing_changed() {
    let comparison = compare(&fixture::sweep(), &fixture::sweep());
    assert_eq!(comparison.schema, SCHEMA);
    for point in &comparison.points {
        assert_eq!(
            (point.verdict, point.ratio),
            (Verdict::NoDifference, Some(1.0))
        );
        let [low, high] = point.interval.unwrap();
        assert!(low < 1.0 && 1.0 < high);
        assert!(point.causes.iter().all(|c| c.change == 0.0));
    }
    assert!(
        comparison.summary.contains("no difference"),
        "{}",
        comparison.summary
    );
    assert!(comparison.warnings.is_empty());
}

#[test]
fn a_change_beyond_noise_has_a_direction() {
    let comparison = compare(&fixture::sweep(), &scaled(8, 0.7));
    let verdicts: Vec<Verdict> = comparison.points.iter().map(|p| p.verdict).collect();
    use Verdict::{Faster, NoDifference};
    assert_eq!(verdicts, [NoDifference, NoDifference, NoDifference, Faster]);
    let point = &comparison.points[3];
    assert!((point.ratio.unwrap() - 0.7).abs() < 1e-12);
    let [low, high] = point.interval.unwrap();
    assert!(
        0.66 < low && low < 0.7 && 0.7 < high && high < 0.74,
        "{low} {high}"
    );
    assert!(
        comparison
            .summary
            .starts_with("On 8\u{a0}CPUs it is 1.43× as fast"),
        "{}",
        comparison.summary
    );
    assert_eq!(
        compare(&scaled(8, 0.7), &fixture::sweep()).points[3].verdict,
        Verdict::Slower
    );
}

#[test]
fn a_higher_rate_is_faster() {
    let with_rate = |factor: f64| {
        let mut result = fixture::sweep();
        result.settings.speedup_of = "rate".to_owned();
        for point in &mut result.points {
            let rates: Vec<f64> = point.wall_s.runs.iter().map(|t| factor * 1e6 / t).collect();
            point.rate = Some(fixture::spread(&rates));
        }
        result
    };
    let point = compare(&with_rate(1.0), &with_rate(1.5)).points.remove(0);
    assert_eq!(
        (point.measure, point.verdict),
        (Measure::Rate, Verdict::Faster)
    );
    assert_eq!(
        compare(&with_rate(1.0), &with_rate(0.5)).points[0].verdict,
        Verdict::Slower
    );
}

fn speedup_of(what: &str) -> ScaleResult {
    let mut result = fixture::sweep();
    result.settings.speedup_of = what.to_owned();
    result
}

/// The deadlines of two results were found to be the same, `no difference beyond noise (+0.0 %)`.
#[test]
fn lengths_that_say_nothing_about_speed_are_not_compared() {
    for (before, after) in [
        ("none", "none"),
        ("none", "wall"),
        ("rate", "none"),
        // A program whose speed is a rate may run for a time of its own.
        ("rate", "wall"),
        ("wall", "rate"),
    ] {
        let mut after = speedup_of(after);
        after.points[3].stack_range.remove("lock-wait");
        let comparison = compare(&speedup_of(before), &after);
        for point in &comparison.points {
            assert_eq!(
                (point.measure, point.verdict),
                (Measure::None, Verdict::NotComparable)
            );
            assert_eq!((point.ratio, point.interval), (None, None));
            assert!(!point.causes.is_empty());
        }
        let shown = render_comparison(&comparison, 80, Style::default());
        assert!(shown.contains("cannot be compared"), "{shown}");
        assert!(!shown.contains("no difference") && !shown.contains("no-difference"));
    }
    // The stacks are what remains.
    let mut after = speedup_of("none");
    let summary = |after: &ScaleResult| compare(&speedup_of("none"), after).summary;
    let same = summary(&after);
    assert!(
        same.ends_with("No cause changed by 1.0\u{a0}% of the CPU time."),
        "{same}"
    );
    after.points[3].stack.insert("lock-wait".to_owned(), 0.041);
    let unsure = summary(&after);
    let told =
        "The cause that changed most: lock-wait, from 34\u{a0}% to 4.1\u{a0}% of the CPU time";
    assert!(
        unsure.ends_with(&format!("{told}; that may be noise.")),
        "{unsure}"
    );
    let range = after.points[3].stack_range.get_mut("lock-wait").unwrap();
    *range = [0.03, 0.05];
    let sure = summary(&after);
    assert!(sure.ends_with(&format!("{told}.")), "{sure}");
}

#[test]
fn rates_of_runs_with_a_fixed_length_are_compared() {
    let with_rate = |what: &str, factor: f64| {
        let mut result = speedup_of(what);
        for point in &mut result.points {
            let rates: Vec<f64> = point.wall_s.runs.iter().map(|t| factor / t).collect();
            point.rate = Some(fixture::spread(&rates));
        }
        result
    };
    // Without the rate of a run with the probe there is no speedup, but a rate to compare.
    let comparison = compare(&with_rate("none", 1.0), &with_rate("rate", 1.5));
    let point = &comparison.points[0];
    assert_eq!(
        (point.measure, point.verdict),
        (Measure::Rate, Verdict::Faster)
    );
}

#[test]
fn three_runs_prove_nothing() {
    let few = |factor: f64| {
        let mut result = scaled(8, factor);
        for point in &mut result.points {
            point.wall_s = fixture::spread(&point.wall_s.runs[..3]);
        }
        result
    };
    let comparison = compare(&few(1.0), &few(0.2));
    assert_eq!(comparison.points[3].verdict, Verdict::TooFewRuns);
    assert!(
        comparison.summary.contains("too few"),
        "{}",
        comparison.summary
    );
}

#[test]
fn causes_say_whether_their_ranges_overlap() {
    let mut after = fixture::sweep();
    let point = &mut after.points[3];
    point.stack.insert("lock-wait".to_owned(), 0.041);
    point.stack.insert("work".to_owned(), 0.386 + 0.31);
    point
        .stack_range
        .insert("lock-wait".to_owned(), [0.03, 0.05]);
    point.stack_range.remove("work");
    let comparison = compare(&fixture::sweep(), &after);
    let causes = &comparison.points[3].causes;
    assert_eq!([&causes[0].id, &causes[1].id], ["work", "lock-wait"]);
    assert_eq!(
        [causes[0].ranges_overlap, causes[1].ranges_overlap],
        [None, Some(false)]
    );
    assert!((causes[1].change + 0.3).abs() < 1e-12);
    assert!(
        comparison
            .summary
            .contains("lock-wait, from 34\u{a0}% to 4.1\u{a0}%"),
        "{}",
        comparison.summary
    );
}

/// A single run is its own range: any change at all looked sure.
#[test]
fn one_run_has_no_range() {
    let mut after = fixture::sweep();
    for point in &mut after.points {
        point.probed_wall_s = fixture::spread(&point.probed_wall_s.runs[..1]);
        for (id, part) in &point.stack {
            point.stack_range.insert(id.clone(), [*part; 2]);
        }
    }
    after.points[3].stack.insert("lock-wait".to_owned(), 0.041);
    after.points[3]
        .stack_range
        .insert("lock-wait".to_owned(), [0.041; 2]);
    let comparison = compare(&fixture::sweep(), &after);
    let mut causes = comparison.points[3].causes.iter();
    assert!(causes.all(|cause| cause.ranges_overlap.is_none()));
}

/// The sweep after `index::Table::insert` has got a lock for each part of the table.
fn mended() -> ScaleResult {
    let mut result = scaled(8, 0.7);
    let last = &mut result.points[3];
    last.stack.insert("lock-wait".to_owned(), 0.091);
    last.stack.insert("work".to_owned(), 0.636);
    last.stack_range
        .insert("lock-wait".to_owned(), [0.08, 0.10]);
    let locks = &mut result.causes[0];
    locks.fraction = 0.091;
    // Two of its stacks are other code of the same function; the log costs what it did.
    locks.sites[0].fraction = 0.021;
    locks.sites[0].seconds = 1.2;
    locks.sites[1] = Site {
        fraction: 0.010,
        seconds: 0.6,
        ..locks.sites[0].clone()
    };
    locks.sites[2].fraction = 0.014;
    locks.sites.push(Site {
        symbol: "index::Part::lock".to_owned(),
        fraction: 0.046,
        seconds: 2.5,
        ..Site::default()
    });
    // Who takes CPUs away has a name with a number, which is no code.
    let stolen = result.causes.iter_mut().find(|c| c.id == "stolen").unwrap();
    stolen.sites = vec![Site {
        symbol: "cron [4711]".to_owned(),
        object: "cron [4711]".to_owned(),
        fraction: 0.009,
        ..Site::default()
    }];
    result.profile[0].slow_work = 0.0131;
    result.profile[0].user_s = 2.5;
    result
}

#[test]
fn the_code_that_changed_is_named() {
    let comparison = compare(&fixture::sweep(), &mended());
    let code: Vec<(&str, &str, [f64; 2])> = comparison
        .code
        .iter()
        .map(|c| (&*c.cause, &*c.symbol, [c.before, c.after]))
        .collect();
    assert_eq!(code.len(), 3, "{code:?}");
    let insert = "index::Table::insert(std::string_view, unsigned long)";
    assert_eq!(code[0], ("lock-wait", insert, [0.287, 0.021 + 0.010]));
    assert_eq!(code[1], ("lock-wait", "index::Part::lock", [0.0, 0.046]));
    assert_eq!(code[2], ("lock-wait", "index::Table::evict", [0.041, 0.0]));
    let insert = &comparison.code[0];
    assert_eq!(
        (insert.file.as_deref(), insert.line),
        (Some("/src/wordindex/table.cc"), Some(212))
    );
    assert!((insert.change + 0.256).abs() < 1e-12);
    assert!((insert.after_s - 1.8).abs() < 1e-12);
    // What is gone has its place from before.
    assert_eq!(comparison.code[2].line, Some(268));
    assert!(
        comparison.summary.ends_with(
            "lock-wait, from 34\u{a0}% to 9.1\u{a0}% of the CPU time, most of it in \
             `index::Table::insert(std::string_view, unsigned long)`."
        ),
        "{}",
        comparison.summary
    );
    let growth = &comparison.growth[..];
    let [hash] = growth else {
        panic!("{growth:?}");
    };
    assert_eq!(hash.symbol, "index::Table::hash_of");
    assert!((hash.change + 0.06).abs() < 1e-12, "{hash:?}");
    assert_eq!(
        (hash.before_user_s, hash.after_user_s),
        (Some(3.921), Some(2.5))
    );
}

#[test]
fn code_of_other_cpu_counts_is_not_compared() {
    let named = |before: &ScaleResult, after: &ScaleResult| {
        let comparison = compare(before, after);
        (comparison.code.len(), comparison.growth.len())
    };
    let (before, after) = (fixture::sweep(), mended());
    assert_eq!(named(&before, &after), (3, 1));
    let without = |at: usize| {
        let mut after = mended();
        after.points.remove(at);
        // The last of those that are left.
        after.causes_point = None;
        after
    };
    assert_eq!(named(&before, &without(3)), (0, 0), "another largest count");
    assert_eq!(
        named(&before, &without(0)),
        (3, 0),
        "another smallest count"
    );
    let mut after = mended();
    after.points[3].stack.clear();
    after.causes.clear();
    assert_eq!(named(&before, &after), (0, 0), "nobody has looked inside");
    let mut after = mended();
    after.settings.speedup_of = "none".to_owned();
    assert_eq!(named(&before, &after).1, 0, "nothing to have grown from");
}

#[test]
fn changes_of_code_are_bounded() {
    let mut after = fixture::sweep();
    let site = |n: usize| Site {
        symbol: format!("f{n}"),
        fraction: 0.5 - n as f64 / 2000.0,
        ..Site::default()
    };
    after.causes[0].sites = (0..1000).map(site).collect();
    let entry = |n: usize| ProfileEntry {
        symbol: format!("f{n}"),
        extra_work: -(n as f64) / 2000.0,
        ..ProfileEntry::default()
    };
    after.profile = (0..1000).map(entry).collect();
    let comparison = compare(&fixture::sweep(), &after);
    assert_eq!((comparison.code.len(), comparison.growth.len()), (50, 50));
    assert_eq!(comparison.code[0].symbol, "f0");
    assert_eq!(comparison.growth[0].symbol, "f999");
    // A screen of it, not all.
    let shown = render_comparison(&comparison, 80, Style::default());
    assert!(shown.lines().count() < 60, "{shown}");
}

#[test]
fn differing_machines_and_commands_are_told() {
    let mut after = fixture::sweep();
    after.command.push("--new".to_owned());
    after.machine.cpu_model = "another".to_owned();
    after.points.remove(1);
    let comparison = compare(&fixture::sweep(), &after);
    let codes: Vec<&str> = comparison
        .warnings
        .iter()
        .map(|w| w.code.as_str())
        .collect();
    assert_eq!(codes, ["command", "machine"]);
    assert_eq!(
        (&comparison.only_before[..], comparison.only_after.len()),
        (&[PointId::new(2, 2)][..], 0)
    );
    let nothing = compare(&fixture::sweep(), &ScaleResult::default());
    assert!(nothing.points.is_empty() && nothing.summary.contains("no CPU count in common"));
}

#[test]
fn points_of_one_result_are_told_with_their_threads() {
    let mut after = fixture::sweep();
    let mut more = after.points[1].clone();
    more.threads = 4 * more.cpus;
    let id = PointId::from(&more);
    after.points.push(more);
    let comparison = compare(&fixture::sweep(), &after);
    assert_eq!(
        (&comparison.only_after[..], comparison.only_before.len()),
        (&[id][..], 0)
    );
    let text = render_comparison(&comparison, 80, Style::default());
    assert!(
        text.contains("Only after: 2 CPUs with 8 threads."),
        "{text}"
    );
}

#[test]
fn the_data_round_trips() {
    let mut after = scaled(4, 1.3);
    after.points.pop();
    let comparison = compare(&fixture::sweep(), &after);
    let json = serde_json::to_string(&comparison).unwrap();
    assert_eq!(
        serde_json::from_str::<Comparison>(&json).unwrap(),
        comparison
    );
    assert!(json.contains(r#""verdict":"slower""#) && json.contains(r#""measure":"wall""#));
}

#[test]
fn as_text() {
    let comparison = compare(&fixture::sweep(), &mended());
    let shown = render_comparison(
        &comparison,
        80,
        Style {
            color: false,
            unicode: true,
        },
    );
    let expected = include_str!("comparison-80.txt");
    assert_eq!(shown, expected, "\n{shown}");
}
