//! A result as one HTML page, by the rules of [`crate::html`]: no script, no network.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::lines::{
    brief, chain, headline, is_partner, owner, place, position, target, title, total, whose,
};
use super::schema::{LockRow, LocksResult};
use super::terminal::losses;
use crate::html::figure::{code, count, figure, foreign};
use crate::html::{POLICY, STYLE, flame};
use crate::plain::elide;
use crate::schema::SampleRow;
use crate::terminal::machine_line;

/// Rows of a table on the page; the rest is in `result.json`.
const ROWS: usize = 200;

/// The report of `result`; `rows` give the flame graph of waiting (their cause is what was waited
/// for, their charge the waiting time).
pub fn render(result: &LocksResult, rows: &[SampleRow]) -> String {
    let target = target(result);
    let sections = sections(result, rows);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { "Amdahl locks: " (elide(&target, 60, "…")) }
                // The program's own text.
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the result" }
                header {
                    p.brand { "Amdahl" span { "locks" } }
                    h1 { (foreign(&headline(result))) }
                    p.command { (code(&target)) }
                    (facts(result))
                    (notices(result))
                }
                nav aria-label="Sections" {
                    ul { @for (id, short, ..) in &sections { li { a href={ "#" (id) } { (short) } } } }
                }
                main #main tabindex="-1" {
                    @for (id, _, title, body) in &sections {
                        section aria-labelledby=(id) { h2 #(id) { (title) } (body) }
                    }
                }
                footer {
                    p { "Written by amdahl " (foreign(&result.amdahl_version))
                        @if !result.started.is_empty() { ", measured " (foreign(&result.started)) }
                        ". The same numbers are in " code { "result.json" } " beside this page." }
                }
            }
        }
    }
    .into_string()
}

type Section = (&'static str, &'static str, &'static str, Markup);

fn sections(result: &LocksResult, samples: &[SampleRow]) -> Vec<Section> {
    let numbered = |wanted: bool| -> Vec<(usize, &LockRow)> {
        let rows = result.rows.iter().enumerate();
        rows.filter(|(_, row)| is_partner(row) == wanted).collect()
    };
    let (locks, partners) = (numbered(false), numbered(true));
    let holds: Vec<_> = result.holds.iter().enumerate().collect();
    let mut sections: Vec<Section> = vec![("locks", "Locks", "Locks that were waited for", {
        table("rows", &locks, "Longest waiting time first")
    })];
    if locks.iter().any(|(_, row)| has_details(row)) {
        let body = details("rows", &locks);
        sections.push((
            "owners",
            "Owners",
            "Who released them, and from where",
            body,
        ));
    }
    if !holds.is_empty() {
        let body = table("holds", &holds, "By the code that acquired");
        sections.push(("holds", "Holds", "How long locks were held", body));
    }
    if !partners.is_empty() {
        let caption = "Conditions, messages, joins and idle workers: a loss only where there was \
                       something else to do";
        let body = table("rows", &partners, caption);
        sections.push(("partners", "Others", "Waits for others' work", body));
    }
    if !samples.is_empty() {
        let caption = "What was waited for at the bottom, then the code that waited.";
        let body = flame::of_all("off", "Waiting", caption, "µs", samples);
        sections.push(("flame", "Flame graph", "Waiting by call stack", body));
    }
    sections.push(("method", "Method", "How it was measured", method(result)));
    sections
}

/// Seconds in the form of the tables.
fn time(path: &str, value: f64) -> Markup {
    figure(path, value, &brief(value))
}

fn facts(result: &LocksResult) -> Markup {
    let waited = total(&result.rows, |row| !is_partner(row));
    html! {
        dl.facts {
            div { dt { "Watched" } dd { (time("seconds", result.seconds)) } }
            div { dt { "Waited for locks" } dd { (brief(waited)) } }
            div { dt { "Events" } dd { (count("events", result.events)) } }
            div { dt { "Lost" } dd { (count("events_lost", result.events_lost)) } }
        }
    }
}

fn notices(result: &LocksResult) -> Markup {
    let losses = losses(result);
    if losses.is_empty() && result.warnings.is_empty() && !result.partial {
        return html! {};
    }
    html! {
        aside.notices aria-label="What to know about these numbers" {
            ul {
                @if result.partial {
                    li { b { "interrupted" } " This is what was measured until then." }
                }
                @for line in &losses { li { (line) } }
                @for warning in &result.warnings {
                    li { b { (foreign(&warning.code)) } " " (foreign(&warning.text)) }
                }
            }
        }
    }
}

fn table(list: &str, rows: &[(usize, &LockRow)], caption: &str) -> Markup {
    if rows.is_empty() {
        return html! { p { "Nothing was waited for." } };
    }
    let has_who = rows.iter().any(|(_, row)| !whose(row).is_empty());
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table.locks {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "What" }
                    th.num scope="col" { "Times" }
                    th.num scope="col" { "Total" }
                    th.num scope="col" { "Longest" }
                    th.num scope="col" { "Mean" }
                    th.num scope="col" { "p99" }
                    @if has_who { th scope="col" { "Who" } }
                    th scope="col" { "Site" }
                    th scope="col" { "Where" }
                } }
                tbody {
                    @for &(i, row) in rows.iter().take(ROWS) {
                        @let at = format!("{list}.{i}");
                        tr {
                            th scope="row" { (foreign(&row.what)) }
                            td.num {
                                @if row.at_least { "≥ " }
                                (count(&format!("{at}.times"), row.times))
                            }
                            td.num { (time(&format!("{at}.total_s"), row.total_s)) }
                            td.num { (time(&format!("{at}.max_s"), row.max_s)) }
                            td.num { (time(&format!("{at}.mean_s"), row.mean_s)) }
                            td.num { @match row.p99_s {
                                Some(p99) => (time(&format!("{at}.p99_s"), p99)),
                                None => "unknown",
                            } }
                            @if has_who { td { (foreign(&whose(row))) } }
                            td { (code(&row.site.symbol)) }
                            td { (code(&position(&row.site, true))) }
                        }
                    }
                }
            }
        }
        @if rows.len() > ROWS { p { "The other " (rows.len() - ROWS) " are in " code { "result.json" } "." } }
    }
}

fn has_details(row: &LockRow) -> bool {
    !(row.owners.is_empty() && row.nested.is_empty() && row.stack.is_empty())
}

fn details(list: &str, rows: &[(usize, &LockRow)]) -> Markup {
    html! {
        @for &(i, row) in rows.iter().filter(|(_, row)| has_details(row)).take(ROWS / 4) {
            @let at = format!("{list}.{i}");
            details {
                summary { (foreign(&row.what)) " in " (code(&title(row))) " "
                    (time(&format!("{at}.total_s"), row.total_s)) }
                @if !row.from.symbol.is_empty() { p.place { "from " (code(&place(&row.from))) } }
                ul {
                    @for (n, by) in row.owners.iter().enumerate() {
                        @let at = format!("{at}.owners.{n}");
                        li { "released by " (foreign(&owner(by))) ": "
                            (count(&format!("{at}.times"), by.times)) " times, "
                            (time(&format!("{at}.seconds"), by.seconds)) }
                    }
                    @for (n, nested) in row.nested.iter().enumerate() {
                        @let at = format!("{at}.nested.{n}");
                        li { (time(&format!("{at}.seconds"), nested.seconds)) " of it in "
                            (count(&format!("{at}.times"), nested.times))
                            " waits: the holder waited for " (foreign(&chain(nested))) }
                    }
                }
                @if !row.stack.is_empty() {
                    p.stack-title { "Call stack of the longest waits" }
                    ol.frames { @for frame in &row.stack { li { (code(frame)) } } }
                }
            }
        }
    }
}

fn method(result: &LocksResult) -> Markup {
    html! {
        @if !result.sources.is_empty() {
            table.sources {
                caption { "Where the figures come from" }
                thead { tr {
                    th scope="col" { "Measured" } th scope="col" { "By" } th scope="col" { "What is missing" }
                } }
                tbody {
                    @for source in &result.sources {
                        tr {
                            th scope="row" { (foreign(&source.what)) }
                            td { (foreign(&source.how)) }
                            td {
                                @if source.missing.is_empty() { "nothing" } @else {
                                    b { (foreign(&source.missing)) }
                                    @if !source.remedy.is_empty() { " " (foreign(&source.remedy)) }
                                }
                            }
                        }
                    }
                }
            }
        }
        dl.method {
            dt { "Machine" } dd { (foreign(&machine_line(&result.machine))) }
            dt { "p99" } dd { "within " (figure("p99_error", result.p99_error,
                &crate::number::percent(result.p99_error))) }
        }
    }
}
