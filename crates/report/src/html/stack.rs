//! The speedup stacks: a bar per CPU count and the same as a table.

use maud::{Markup, html};

use super::figure::{figure, place};
use crate::number::{percent, percent_digits};
use crate::palette::{LOOKS, Look, in_order, look_of, rank};
use crate::point::PointId;
use crate::schema::{Point, ScaleResult};

/// Style class of a cause.
pub(super) fn class(id: &str) -> String {
    format!("seg c{}", rank(id))
}

/// The rules that give every cause its colour, after the fixed style sheet.
pub(super) fn style_rules() -> String {
    let rule = |(i, look): (usize, &Look)| {
        let [r, g, b] = look.rgb;
        let pattern = match look.family {
            crate::palette::Family::Useful => "",
            crate::palette::Family::Burnt => ";background-image:var(--burnt)",
            crate::palette::Family::Waiting => ";background-image:var(--waiting)",
            crate::palette::Family::Outside => ";background-image:var(--outside)",
            crate::palette::Family::Unknown => ";background-image:var(--unknown)",
        };
        format!(".c{i}{{background-color:#{r:02x}{g:02x}{b:02x}{pattern}}}")
    };
    let unknown = look_of("");
    LOOKS
        .iter()
        .chain([&unknown])
        .enumerate()
        .map(rule)
        .collect()
}

/// The letter of a cause on its colour; decoration beside its name.
pub(super) fn swatch(id: &str) -> Markup {
    html! { span class={ "swatch " (class(id)) } aria-hidden="true" { (look_of(id).letter) } }
}

/// Bars and table of all points.
pub(super) fn draw(result: &ScaleResult) -> Markup {
    let points: Vec<(usize, &Point)> = result
        .points
        .iter()
        .enumerate()
        .filter(|(_, p)| !p.stack.is_empty())
        .collect();
    let ids = in_order(points.iter().flat_map(|(_, p)| p.stack.keys()));
    html! {
        div.bars role="list" aria-label="Speedup stack per CPU count" {
            @for &(i, point) in &points { (bar(i, point)) }
        }
        p.key aria-hidden="true" {
            span { span.swatch.plainly {} "useful" }
            span { span.swatch.burnt {} "CPU time burnt" }
            span { span.swatch.waiting {} "idle, the program waits for itself" }
            span { span.swatch.outside {} "idle or taken, from outside" }
        }
        div.scroll role="region" aria-label="Table of the speedup stacks" tabindex="0" {
            table.stacks {
                caption { "Percent of the capacity, CPUs × wall time, of the runs with the probe" }
                thead { tr {
                    th scope="col" { "Cause" }
                    @for &(i, point) in &points { th.num scope="col" { (point_label(i, point)) } }
                } }
                tbody {
                    @for id in &ids {
                        tr {
                            th scope="row" {
                                (swatch(id)) (id)
                                span.means { (look_of(id).title) }
                            }
                            @for &(i, point) in &points { (cell(i, point, id)) }
                        }
                    }
                }
            }
        }
    }
}

fn cell(i: usize, point: &Point, id: &str) -> Markup {
    let Some(&part) = point.stack.get(id) else {
        return html! { td.num { "–" } };
    };
    let range = point.stack_range.get(id);
    let title =
        range.map(|[low, high]| format!("{} to {} over the runs", percent(*low), percent(*high)));
    // Quiet zeros let the eye find what is there.
    let class = if part < 0.0005 { "num zero" } else { "num" };
    html! {
        td class=(class) title=[title] {
            (figure(&format!("points.{i}.stack.{id}"), part, &percent_digits(part)))
        }
    }
}

/// `8 CPUs`, with the threads where there are more than CPUs.
pub(super) fn point_label(i: usize, point: &Point) -> Markup {
    place(&format!("points.{i}"), point.into())
}

fn bar(i: usize, point: &Point) -> Markup {
    let ids = in_order(point.stack.keys());
    let sum: f64 = point.stack.values().sum();
    let parts: Vec<(&str, f64)> = ids.iter().map(|id| (*id, point.stack[*id])).collect();
    let mut by_size = parts.clone();
    by_size.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> = by_size
        .iter()
        .filter(|(_, part)| *part >= 0.0005)
        .map(|(id, part)| format!("{id} {}", percent(*part)))
        .collect();
    html! {
        div.row role="listitem" {
            div.label { (point_label(i, point)) }
            div.bar role="img" aria-label=(format!("{}: {}", PointId::from(point).joined(), words.join(", "))) {
                @for (id, part) in parts.into_iter().filter(|(_, part)| *part > 0.0) {
                    span class=(class(id)) style=(format!("width:{:.3}%", part / sum * 100.0))
                        title=(format!("{id} {}", percent(part)))
                        data-figure=(format!("points.{i}.stack.{id}")) data-value=(part) {
                        span.letter { (look_of(id).letter) }
                    }
                }
            }
        }
    }
}
