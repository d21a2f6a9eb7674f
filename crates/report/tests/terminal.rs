//! What a terminal shows.

mod fixture;

use amdahl_report::schema::ScaleResult;
use amdahl_report::terminal::{Style, render};

const PLAIN: Style = Style {
    color: false,
    unicode: true,
};

#[test]
fn a_sweep_on_80_columns() {
    let shown = render(&fixture::sweep(), 80, PLAIN);
    assert_eq!(shown, include_str!("terminal-80.txt"), "\n{shown}");
}

#[test]
fn colour_changes_no_text_outside_the_bars() {
    let colored = render(
        &fixture::sweep(),
        80,
        Style {
            color: true,
            unicode: true,
        },
    );
    assert!(colored.contains("\u{1b}["));
    let mut plain = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    let is_text = |line: &&str| !line.contains("WWW") && !line.contains("      W      ");
    let expected = render(&fixture::sweep(), 80, PLAIN);
    let text = |page: &str| {
        page.lines()
            .filter(is_text)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(text(&plain), text(&expected));
}

#[test]
fn ascii_stays_ascii() {
    for result in [fixture::sweep(), fixture::hostile()] {
        let shown = render(&result, 80, Style::default());
        assert!(
            shown
                .chars()
                .all(|c| c.is_ascii() && (c == '\n' || !c.is_control())),
            "{shown}"
        );
    }
}

#[test]
fn narrow_terminals_keep_every_number_whole() {
    let shown = render(&fixture::sweep(), 40, PLAIN);
    assert!(
        shown.lines().all(|line| line.chars().count() <= 40),
        "{shown}"
    );
    for number in [
        "7.790 s",
        "3.12×",
        "39.0 %",
        "34.1 %",
        "table.cc:212",
        "0x55d0c0de1040",
    ] {
        assert!(
            shown.lines().any(|line| line.contains(number)),
            "{number} in\n{shown}"
        );
    }
}

#[test]
fn an_empty_result_says_so() {
    assert!(render(&ScaleResult::default(), 80, PLAIN).starts_with("Nothing was measured.\n"));
}

#[test]
fn an_interrupted_sweep_says_so() {
    let result = ScaleResult {
        partial: true,
        ..fixture::sweep()
    };
    assert!(render(&result, 80, PLAIN).contains("Interrupted"));
}
