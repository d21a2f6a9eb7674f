//! A result as one HTML page, by the rules of [`crate::html`]: no script, no network.

use maud::{Markup, html};

use super::lines::{
    brief, chain, headline, is_partner, order, owner, place, position, target, title, total, whose,
};
use super::schema::{LockRow, LocksResult};
use super::terminal::{begun_before, losses};
use crate::html::figure::{code, count, figure, foreign};
use crate::html::flame;
use crate::html::page::{self, Page, Section};
use crate::schema::SampleRow;
use crate::terminal::machine_line;

/// Rows of a table on the page; the rest is in `result.json`.
const ROWS: usize = 200;

/// The report of `result`; `rows` give the flame graph of waiting (their cause is what was waited
/// for, their charge the waiting time).
pub fn render(result: &LocksResult, rows: &[SampleRow]) -> String {
    Page {
        window: "Amdahl locks",
        view: "locks",
        style: "",
        headline: foreign(&headline(result)),
        lede: Vec::new(),
        target: &target(result),
        facts: html! { (facts(result)) (notices(result)) },
        sections: sections(result, rows),
        made: "measured",
        started: &result.started,
        amdahl_version: &result.amdahl_version,
    }
    .render()
}

fn sections(result: &LocksResult, samples: &[SampleRow]) -> Vec<Section> {
    let numbered = |wanted: bool| -> Vec<(usize, &LockRow)> {
        let rows = result.rows.iter().enumerate();
        rows.filter(|(_, row)| is_partner(row) == wanted).collect()
    };
    let (locks, partners) = (numbered(false), numbered(true));
    let holds: Vec<_> = result.holds.iter().enumerate().collect();
    let mut sections = Vec::new();
    let mut add = |id, short, title, body| sections.push(Section::new(id, short, title, body));
    let body = table("rows", &locks, order(result));
    add("locks", "Locks", "Locks that were waited for", body);
    if locks.iter().any(|(_, row)| has_details(row)) {
        let body = details("rows", &locks);
        add(
            "owners",
            "Owners",
            "Who released them, and from where",
            body,
        );
    }
    if !holds.is_empty() {
        let body = table("holds", &holds, "By the code that acquired");
        add("holds", "Holds", "How long locks were held", body);
    }
    if !partners.is_empty() {
        let caption = "Conditions, messages, joins and idle workers: a loss only where there was \
                       something else to do";
        let body = table("rows", &partners, caption);
        add("partners", "Others", "Waits for others' work", body);
    }
    if !samples.is_empty() {
        let caption = "What was waited for at the bottom, then the code that waited.";
        let body = flame::of_all("off", "Waiting", caption, "µs", samples);
        add("flame", "Flame graph", "Waiting by call stack", body);
    }
    add("method", "Method", "How it was measured", method(result));
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
    let mut items = Vec::new();
    if result.partial {
        items.push(page::interrupted());
    }
    items.extend(begun_before(result).map(|line| html! { (line) }));
    items.extend(losses(result).iter().map(|line| html! { (line) }));
    items.extend(result.warnings.iter().map(page::warning));
    page::notices(&items)
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
                            td.num {
                                @if row.before > 0 { "≥ " }
                                (time(&format!("{at}.total_s"), row.total_s))
                            }
                            td.num {
                                @if row.before > 0 { "≥ " }
                                (time(&format!("{at}.max_s"), row.max_s))
                            }
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
        (page::sources(&result.sources))
        dl.method {
            dt { "Machine" } dd { (foreign(&machine_line(&result.machine))) }
            dt { "p99" } dd { "within " (figure("p99_error", result.p99_error,
                &crate::number::percent(result.p99_error))) }
        }
    }
}
