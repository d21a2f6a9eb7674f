//! The speedup stack as bars and as a table.

use anstyle::{Ansi256Color, Style as Ink};

use super::page::{Page, Span, bold, dim, ink, text};
use crate::number::percent_digits;
use crate::palette::{Look, in_order, look_of};
use crate::point::PointId;
use crate::schema::{Point, ScaleResult};

/// Causes below this in every point are left out of the table.
const VISIBLE: f64 = 0.0005;

/// Draws bars and table of all points.
pub(super) fn draw(page: &mut Page, result: &ScaleResult) {
    let points: Vec<&Point> = result
        .points
        .iter()
        .filter(|p| !p.stack.is_empty())
        .collect();
    if points.is_empty() {
        return;
    }
    page.heading("Where the CPU time goes");
    let label_width = points
        .iter()
        .map(|p| label(p).len())
        .max()
        .unwrap_or(0)
        .max(4);
    page.row(&[dim(format!("{:>label_width$}", "CPUs"))]);
    for point in &points {
        let mut line = vec![text(format!("{:>label_width$} ", label(point)))];
        line.extend(bar(point, page.width - label_width - 2, page.style.color));
        page.row(&line);
    }
    page.blank();
    let ids = in_order(points.iter().flat_map(|p| p.stack.keys()));
    let is_visible = |id: &&str| points.iter().any(|p| part(p, id) >= VISIBLE);
    let ids: Vec<&str> = ids.into_iter().filter(is_visible).collect();
    let name_width = ids
        .iter()
        .map(|id| page.columns(id))
        .max()
        .unwrap_or(0)
        .clamp(7, 24)
        + 2;
    let cell = points
        .iter()
        .map(|p| label(p).len())
        .max()
        .unwrap_or(0)
        .max(5)
        + 2;
    let per_table = ((page.width - name_width) / cell).max(1);
    for (n, chunk) in points.chunks(per_table).enumerate() {
        if n > 0 {
            page.blank();
        }
        let mut header = vec![dim(format!("{:<name_width$}", "% at"))];
        header.extend(chunk.iter().map(|p| dim(format!("{:>cell$}", label(p)))));
        page.row(&header);
        for id in &ids {
            let look = look_of(id);
            let name = crate::plain::elide(id, name_width - 2, page.ellipsis());
            let pad = " ".repeat((name_width - 2).saturating_sub(page.columns(&name)));
            let mut line = vec![swatch(look), text(format!(" {name}{pad}"))];
            for point in chunk {
                let value = part(point, id);
                let digits = if value < VISIBLE {
                    "-".to_owned()
                } else {
                    percent_digits(value)
                };
                line.push(text(format!("{digits:>cell$}")));
            }
            page.row(&line);
        }
    }
}

fn label(point: &Point) -> String {
    PointId::from(point).brief()
}

/// The letter of a cause in its colour.
pub(super) fn swatch(look: Look) -> Span {
    ink(look.letter.to_string(), fill(look).bold())
}

fn fill(look: Look) -> Ink {
    Ink::new()
        .bg_color(Some(Ansi256Color(look.ansi).into()))
        .fg_color(Some(Ansi256Color(16).into()))
}

fn part(point: &Point, id: &str) -> f64 {
    point.stack.get(id).copied().unwrap_or(0.0)
}

/// The stack over `width` columns. With colour a segment carries its letter once, without it is
/// made of its letter.
fn bar(point: &Point, width: usize, has_color: bool) -> Vec<Span> {
    let ids = in_order(point.stack.keys());
    let parts: Vec<f64> = ids.iter().map(|id| part(point, id)).collect();
    let mut spans = Vec::new();
    for (id, cells) in ids.iter().zip(share(&parts, width)) {
        let look = look_of(id);
        match cells {
            0 => {}
            _ if has_color => {
                let before = (cells - 1) / 2;
                let body = format!(
                    "{}{}{}",
                    "\u{a0}".repeat(before),
                    look.letter,
                    "\u{a0}".repeat(cells - 1 - before)
                );
                spans.push(ink(body, fill(look)));
            }
            _ => spans.push(bold(look.letter.to_string().repeat(cells))),
        }
    }
    spans
}

/// Divides `cells` in proportion to `parts` by largest remainder, so that they add up.
fn share(parts: &[f64], cells: usize) -> Vec<usize> {
    let sum: f64 = parts.iter().map(|p| p.max(0.0)).sum();
    if sum <= 0.0 {
        return vec![0; parts.len()];
    }
    let exact: Vec<f64> = parts
        .iter()
        .map(|p| p.max(0.0) / sum * cells as f64)
        .collect();
    let mut shares: Vec<usize> = exact.iter().map(|e| e.floor() as usize).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = cells.saturating_sub(shares.iter().sum());
    for &i in order.iter().take(left) {
        shares[i] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_add_up() {
        assert_eq!(share(&[0.5, 0.25, 0.25], 8), [4, 2, 2]);
        assert_eq!(share(&[0.335, 0.335, 0.33], 10), [4, 3, 3]);
        assert_eq!(share(&[0.0, 0.0], 10), [0, 0]);
        assert_eq!(share(&[1e-9, 1.0], 10), [0, 10]);
    }
}
