//! A comparison as text for a terminal.

use super::Style;
use super::page::{Page, Span, bold, dim, text};
use super::stack::swatch;
use super::table::{Column, draw};
use crate::compare::{CauseChange, CodeChange, Comparison, GrowthChange, Measure, PointChange};
use crate::number::{change, percent, seconds, significant};
use crate::palette::look_of;
use crate::plain::{command_line, elide};
use crate::point::PointId;
use crate::schema::Spread;

/// Changes of a cause below this are not listed.
const VISIBLE: f64 = 0.005;
/// Changes of code that are listed at most; JSON has more.
const FUNCTIONS: usize = 8;

/// The whole comparison, at most `width` columns wide (clamped to 40..=200).
pub fn render_comparison(comparison: &Comparison, width: usize, style: Style) -> String {
    let mut page = Page::new(width, style);
    page.paragraph(0, 0, &[bold(&comparison.summary)]);
    page.blank();
    let line = |command: &[String]| elide(&command_line(command), 400, "...");
    if comparison.before == comparison.after {
        page.paragraph(0, 2, &[dim(line(&comparison.before))]);
    } else {
        page.paragraph(0, 2, &[dim("before: "), dim(line(&comparison.before))]);
        page.paragraph(0, 2, &[dim("after: "), dim(line(&comparison.after))]);
    }
    for warning in &comparison.warnings {
        page.paragraph(
            0,
            2,
            &[bold(format!("{}: ", warning.code)), text(&warning.text)],
        );
    }
    if !comparison.points.is_empty() {
        points(&mut page, &comparison.points);
    }
    for (which, only) in [
        ("before", &comparison.only_before),
        ("after", &comparison.only_after),
    ] {
        if !only.is_empty() {
            let list: Vec<String> = only.iter().map(PointId::to_string).collect();
            page.paragraph(0, 2, &[dim(format!("Only {which}: {}.", list.join(", ")))]);
        }
    }
    if let Some(main) = comparison.main_point() {
        causes(&mut page, main);
        code(&mut page, &comparison.code, main);
        growth(&mut page, &comparison.growth, main);
    }
    if !comparison.points.is_empty() {
        page.blank();
        page.paragraph(0, 2, &[dim(format!(
            "Method: {}. Runs of one session share what drifts between sessions: to be sure, measure both again in the other order.",
            comparison.method
        ))]);
    }
    page.finish()
}

fn points(page: &mut Page, points: &[PointChange]) {
    page.heading(match points[0].measure {
        Measure::Wall => "Wall time",
        Measure::Rate => "Work per second",
        Measure::None => "Wall time, not comparable",
    });
    let columns = [
        Column::new("CPUs", true, 0),
        Column::new("before", true, 3),
        Column::new("after", true, 2),
        Column::new("change", true, 0),
        Column::new("95 % interval", false, 1),
        Column::new("runs", true, 4),
        Column::new("verdict", false, 0),
    ];
    let median = |p: &PointChange, spread: &Spread| match p.measure {
        Measure::Wall | Measure::None => seconds(spread.median),
        Measure::Rate => significant(spread.median),
    };
    let rows: Vec<Vec<String>> = points
        .iter()
        .map(|p| {
            let interval = p.interval.map(|ends| ends.map(change).join(" to "));
            vec![
                PointId::from(p).brief(),
                median(p, &p.before),
                median(p, &p.after),
                p.ratio.map_or("-".to_owned(), change),
                interval.unwrap_or_default(),
                format!("{}+{}", p.before.runs.len(), p.after.runs.len()),
                p.verdict.id().to_owned(),
            ]
        })
        .collect();
    draw(page, &columns, &rows);
}

fn causes(page: &mut Page, point: &PointChange) {
    let listed: Vec<&CauseChange> = point
        .causes
        .iter()
        .filter(|c| c.change.abs() >= VISIBLE)
        .collect();
    if point.causes.is_empty() {
        return;
    }
    page.heading(&format!("Causes on {}", PointId::from(point).joined()));
    if listed.is_empty() {
        let most = percent(VISIBLE);
        page.paragraph(
            0,
            0,
            &[text(format!(
                "No cause changed by more than {most} of the CPU time."
            ))],
        );
    }
    for c in listed {
        let trust = match c.ranges_overlap {
            Some(false) => "",
            Some(true) => ", ranges overlap",
            None => ", ranges unknown",
        };
        page.paragraph(
            0,
            4,
            &[
                swatch(look_of(&c.id)),
                text(" "),
                bold(&c.id),
                text(format!(
                    " {:+.1}\u{a0}points ({} to {}; {} to {} of CPU time{trust})",
                    c.change * 100.0,
                    percent(c.before),
                    percent(c.after),
                    seconds(c.before_s),
                    seconds(c.after_s)
                )),
            ],
        );
    }
}

fn code(page: &mut Page, code: &[CodeChange], point: &PointChange) {
    let listed = code.iter().filter(|c| c.change.abs() >= VISIBLE);
    for (i, c) in listed.take(FUNCTIONS).enumerate() {
        if i == 0 {
            let on = PointId::from(point).joined();
            page.heading(&format!("Code on {on}, as one run of each has it"));
        }
        let line = c.line.map_or(String::new(), |line| format!(":{line}"));
        let file = c.file.as_deref().and_then(|file| file.rsplit('/').next());
        let place = file.map_or(String::new(), |file| format!("; {file}{line}"));
        let change = moved(c.change, c.before, c.after, &place);
        let head = [swatch(look_of(&c.cause)), text(" ")];
        let rest = [
            function(page, &c.symbol),
            text(format!(" {}: {change}", c.cause)),
        ];
        page.paragraph(0, 4, &[&head[..], &rest].concat());
    }
}

fn growth(page: &mut Page, growth: &[GrowthChange], point: &PointChange) {
    let listed = growth.iter().filter(|c| c.change.abs() >= VISIBLE);
    for (i, c) in listed.take(FUNCTIONS).enumerate() {
        if i == 0 {
            page.heading(&format!(
                "Growth of user code up to {}",
                PointId::from(point).joined()
            ));
        }
        let change = moved(c.change, c.before, c.after, "");
        page.paragraph(
            0,
            4,
            &[function(page, &c.symbol), text(format!(" {change}"))],
        );
    }
}

/// `-25.6 points (28.7 % to 3.1 %)`, with what else belongs into the parentheses.
fn moved(change: f64, before: f64, after: f64, more: &str) -> String {
    format!(
        "{:+.1}\u{a0}points ({} to {}{more})",
        change * 100.0,
        percent(before),
        percent(after)
    )
}

/// A name in one piece, whose middle may give way.
fn function(page: &Page, name: &str) -> Span {
    let name = name.replace(' ', "\u{a0}");
    bold(elide(&name, page.width - 8, page.ellipsis()))
}
