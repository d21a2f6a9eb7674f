//! The causes at the point that the result is about, each with the code responsible.

use maud::{Markup, html};

use super::figure::{code, count, foreign, range, share, time};
use super::stack::swatch;
use crate::headline::WORTH_BLAMING;
use crate::number::percent;
use crate::point::PointId;
use crate::schema::{CauseReport, Point, ScaleResult, Site};
use crate::terminal::sentence;

/// The table of causes. Roles are explicit because the style sheet lays rows out as blocks on
/// narrow screens, which takes the meaning of a table away in some browsers.
pub(super) fn draw(result: &ScaleResult) -> Markup {
    let Some((at, main)) = result.main_point() else {
        return html! {};
    };
    html! {
        table.causes role="table" {
            caption { "In order of cost, in percent of the capacity of " (PointId::from(main).joined()) "; ranges are over the runs" }
            thead role="rowgroup" { tr role="row" {
                th role="columnheader" scope="col" { "Cause" }
                th.num role="columnheader" scope="col" { "Share" }
                th role="columnheader" scope="col" { "What happens, and where" }
            } }
            tbody role="rowgroup" {
                @for (i, cause) in result.causes.iter().enumerate() { (row(i, cause, at, main)) }
            }
        }
    }
}

fn row(i: usize, cause: &CauseReport, at: usize, main: &Point) -> Markup {
    let path = format!("causes.{i}");
    html! {
        tr.minor[cause.fraction < WORTH_BLAMING] role="row" {
            th role="rowheader" scope="row" { (swatch(&cause.id)) (cause.id) }
            td.num role="cell" {
                span.share { (share(&format!("{path}.fraction"), cause.fraction)) }
                @if let Some(&pair) = main.stack_range.get(&cause.id) {
                    span.noise {
                        (range(&format!("points.{at}.stack_range.{}", cause.id), pair, percent))
                    }
                }
            }
            td role="cell" {
                p { (foreign(&sentence(cause))) }
                @for (j, site) in cause.sites.iter().enumerate() {
                    (details(&format!("{path}.sites.{j}"), &cause.id, site))
                }
            }
        }
    }
}

fn details(path: &str, cause: &str, site: &Site) -> Markup {
    let object = if cause == "stolen" {
        "Taken by"
    } else {
        "Waits for"
    };
    let symbol = if site.symbol.is_empty() {
        "(unknown function)"
    } else {
        &site.symbol
    };
    html! {
        details {
            summary {
                (share(&format!("{path}.fraction"), site.fraction))
                " " (code(symbol))
                @if let Some(file) = &site.file {
                    " " span.place {
                        (foreign(file))
                        @if let Some(line) = site.line {
                            ":" (count(&format!("{path}.line"), u64::from(line)))
                        }
                    }
                }
            }
            dl.site {
                dt { "CPU time" }
                dd { (time(&format!("{path}.seconds"), site.seconds)) }
                @for (name, text) in [
                    ("Thread", &site.thread),
                    ("Process", &site.process),
                    (object, &site.object),
                    ("File", &site.module),
                ] {
                    @if !text.is_empty() { dt { (name) } dd { (foreign(text)) } }
                }
            }
            @if !site.stack.is_empty() {
                p.stack-title { "Call stack, innermost first" }
                ol.frames { @for frame in &site.stack { li { (code(frame)) } } }
            }
        }
    }
}
