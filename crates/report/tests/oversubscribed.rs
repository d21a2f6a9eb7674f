//! Points with more threads than CPUs are told apart from those with as many.

mod fixture;

use amdahl_report::compare::compare;
use amdahl_report::html;
use amdahl_report::schema::SampleRow;
use amdahl_report::terminal::{Style, render, render_comparison};

/// Text with one space between its words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_says(text: &str, wanted: &str) {
    assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
}

#[test]
fn a_terminal_names_the_threads() {
    let mut result = fixture::oversubscribed();
    let shown = words(&render(&result, 200, Style::default()));
    assert_says(&shown, "On 8 CPUs it runs 3.1x as fast as on one.");
    assert_says(
        &shown,
        "With 32 threads there it runs 0.80x as fast as with 8.",
    );
    assert_says(&shown, "What costs on 8 CPUs L lock-wait");
    assert_says(&shown, "run 3 on 8 CPUs with 32 threads: exit status");
    assert_says(&shown, " 8 (16t) ");

    // So it was before results told which point the causes are of.
    result.causes_point = None;
    let shown = words(&render(&result, 200, Style::default()));
    assert_says(
        &shown,
        "On 8 CPUs with 32 threads it runs 2.5x as fast as on one.",
    );
    assert_says(&shown, "What costs on 8 CPUs with 32 threads L lock-wait");
    assert_says(&shown, "User code on 8 CPUs with 32 threads against 1 CPU");
}

#[test]
fn a_page_names_the_threads_and_draws_the_code_of_one_point() {
    let result = fixture::oversubscribed();
    let mut rows = fixture::rows();
    let others = rows.clone().into_iter().map(|row| SampleRow {
        threads: 32,
        stack: format!("oversubscribed;{}", row.stack),
        ..row
    });
    rows.extend(others);
    let page = words(&html::render(&result, &rows));
    assert_says(&page, "What costs on 8 CPUs<");
    assert_says(&page, "Code on 8 CPUs<");
    assert!(
        !page.contains("oversubscribed"),
        "the code of another point"
    );
    assert_says(&page, "<title>8 CPUs with 32 threads: 2.50×");
    assert_says(&page, "2.50 on 8 CPUs with 32 threads");
    assert_says(&page, r#"aria-label="8 CPUs with 16 threads: "#);
    let failed = page.split_once("<b>failed</b>").expect("the notice").1;
    assert_says(
        failed,
        r#"<span data-figure="failures.0.threads" data-value="32">32</span> threads"#,
    );
}

#[test]
fn a_comparison_speaks_of_one_thread_for_each_cpu() {
    let (before, mut after) = (fixture::oversubscribed(), fixture::oversubscribed());
    let comparison = compare(&before, &after);
    assert!(words(&comparison.summary).starts_with("On 8 CPUs there is no difference"));
    let shown = words(&render_comparison(&comparison, 120, Style::default()));
    assert_says(&shown, "Causes on 8 CPUs ");
    // What both have is oversubscribed.
    after.points.truncate(5);
    after.points.drain(..4);
    let comparison = compare(&before, &after);
    assert!(words(&comparison.summary).starts_with("On 8 CPUs with 16 threads there is no"));
}

#[test]
fn a_point_that_is_not_there_is_refused() {
    let mut result = fixture::oversubscribed();
    result.causes_point = Some(6);
    let json = serde_json::to_vec(&result).expect("plain data");
    let error = amdahl_report::load::parse(&json, "r".into()).expect_err("refused");
    assert!(error.to_string().contains("causes_point"), "{error}");
}
