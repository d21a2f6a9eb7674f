//! What changed between two results.

mod fixture;

use amdahl_report::compare::{Comparison, Measure, SCHEMA, Verdict, compare};
use amdahl_report::schema::ScaleResult;
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
        (&[2][..], 0)
    );
    let nothing = compare(&fixture::sweep(), &ScaleResult::default());
    assert!(nothing.points.is_empty() && nothing.summary.contains("no CPU count in common"));
}

#[test]
fn the_data_round_trips() {
    let comparison = compare(&fixture::sweep(), &scaled(4, 1.3));
    let json = serde_json::to_string(&comparison).unwrap();
    assert_eq!(
        serde_json::from_str::<Comparison>(&json).unwrap(),
        comparison
    );
    assert!(json.contains(r#""verdict":"slower""#) && json.contains(r#""measure":"wall""#));
}

#[test]
fn as_text() {
    let mut after = scaled(8, 0.7);
    after.points[3].stack.insert("lock-wait".to_owned(), 0.041);
    after.points[3].stack.insert("work".to_owned(), 0.686);
    after.points[3]
        .stack_range
        .insert("lock-wait".to_owned(), [0.03, 0.05]);
    let comparison = compare(&fixture::sweep(), &after);
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
