//! Speedup against CPUs as SVG. Colours and fonts come from the page's style sheet, so that one
//! drawing serves light and dark.

use maud::{Markup, html};

use crate::number::factor_digits;
use crate::point::PointId;
use crate::schema::{Point, ScaleResult};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 52.0;
/// Up to here CPUs stand at equal distances per CPU, beyond at equal distances per doubling.
const LINEAR_UP_TO: f64 = 16.0;

/// Maps CPUs and speedups to the drawing. Both axes have the same scale, so ideal is a diagonal.
struct Axes {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Axes {
    fn of(points: &[Point]) -> Axes {
        let values = || {
            points
                .iter()
                .flat_map(|p| [f64::from(p.cpus), p.speedup, p.speedup_range[1]])
        };
        let high = values().fold(2.0_f64, f64::max);
        let is_log = high > LINEAR_UP_TO;
        // A speedup of zero has no place on a logarithmic axis; half a CPU is below all else.
        let low = if is_log {
            values().fold(1.0_f64, f64::min).max(0.5)
        } else {
            0.0
        };
        Axes { low, high, is_log }
    }

    fn position(&self, value: f64) -> f64 {
        let scale = |v: f64| {
            if self.is_log {
                v.max(self.low).log2()
            } else {
                v
            }
        };
        let (low, high) = (scale(self.low), scale(self.high));
        ((scale(value) - low) / (high - low)).clamp(0.0, 1.0)
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.position(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.position(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let first = self.low.log2().ceil() as i32;
            let last = self.high.log2().floor() as i32;
            let step = ((last - first) / 6 + 1) as usize;
            (first..=last)
                .step_by(step)
                .map(|power| 2_f64.powi(power))
                .collect()
        } else {
            let step = [1.0, 2.0, 4.0]
                .into_iter()
                .find(|step| self.high / step <= 6.0)
                .unwrap_or(4.0);
            (0..=(self.high / step) as i32)
                .map(|n| f64::from(n) * step)
                .collect()
        }
    }
}

/// The chart with its caption, or nothing when there are fewer than two points to compare.
pub(super) fn draw(result: &ScaleResult) -> Markup {
    let points = &result.points;
    // More threads on the same CPUs are no step of the line.
    let mut ordinary = points.iter().filter(|&p| !is_oversubscribed(p));
    let (Some(first), Some(last)) = (ordinary.clone().next(), ordinary.next_back()) else {
        return html! {};
    };
    if !result.has_speedup() || first.cpus == last.cpus {
        return html! {};
    }
    let axes = Axes::of(points);
    let at = |x: f64, y: f64| format!("{:.1},{:.1}", axes.x(x), axes.y(y));
    let steps = points.iter().filter(|&p| !is_oversubscribed(p));
    let line: Vec<String> = steps.map(|p| at(f64::from(p.cpus), p.speedup)).collect();
    let (from, to) = (f64::from(first.cpus), f64::from(last.cpus));
    // On the diagonal, where neither grid nor points are near.
    let ideal_at = if axes.is_log {
        (from * to).sqrt()
    } else {
        from + (to - from) * 0.7
    };
    let labelled = labelled(points, &axes);
    // What is lost: between ideal and measured.
    let lost = format!("{} {} {}", line.join(" "), at(to, to), at(from, from));
    html! {
        figure.chart {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-labelledby="chart-title chart-text" {
                title #chart-title { "Speedup against the number of CPUs" }
                desc #chart-text { (in_words(points)) }
                g.grid {
                    @for tick in axes.ticks() {
                        line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(px(axes.y(tick))) y2=(px(axes.y(tick))) {}
                        text.tick x=(LEFT - 10.0) y=(px(axes.y(tick) + 4.5)) text-anchor="end" {
                            (factor_label(tick))
                        }
                    }
                }
                line.axis x1=(LEFT) x2=(WIDTH - RIGHT) y1=(HEIGHT - BOTTOM) y2=(HEIGHT - BOTTOM) {}
                @for &(x, label) in &tick_labels(points, &axes) {
                    text.tick x=(px(axes.x(x))) y=(HEIGHT - BOTTOM + 21.0) text-anchor="middle" { (label) }
                }
                text.axis-title x=(WIDTH - RIGHT) y=(HEIGHT - 8.0) text-anchor="end" { "CPUs" }
                polygon.lost points=(lost) {}
                line.ideal x1=(px(axes.x(from))) y1=(px(axes.y(from)))
                    x2=(px(axes.x(to))) y2=(px(axes.y(to))) {}
                text.ideal-label x=(px(axes.x(ideal_at) - 10.0)) y=(px(axes.y(ideal_at) - 4.0))
                    text-anchor="end" { "ideal" }
                polyline.measured points=(line.join(" ")) {}
                @for (i, point) in points.iter().enumerate() {
                    (mark(i, point, &axes, labelled.contains(&i)))
                }
            }
            figcaption {
                "Measured speedup against ideal. Bars show the least and the greatest speedup that the runs allow."
                @if points.iter().any(is_oversubscribed) { " Hollow marks have more threads than CPUs." }
                @if axes.is_log { " Both axes are logarithmic." }
            }
        }
    }
}

/// Indexes of the points that have room for their number, the last one first. The first point
/// is one by definition.
fn labelled(points: &[Point], axes: &Axes) -> Vec<usize> {
    let mut labelled: Vec<usize> = Vec::new();
    for i in (1..points.len())
        .rev()
        .filter(|&i| !is_oversubscribed(&points[i]))
    {
        let x = |i: usize| axes.x(f64::from(points[i].cpus));
        if labelled.last().is_none_or(|&right| x(right) - x(i) >= 84.0) {
            labelled.push(i);
        }
    }
    labelled
}

fn is_oversubscribed(point: &Point) -> bool {
    PointId::from(point).is_oversubscribed()
}

/// A point with its range and, where there is room, its number.
fn mark(i: usize, point: &Point, axes: &Axes, has_label: bool) -> Markup {
    let x = axes.x(f64::from(point.cpus));
    let y = axes.y(point.speedup);
    let [low, high] = point.speedup_range;
    let (top, bottom) = (axes.y(high), axes.y(low));
    let (label_x, anchor) = if x > WIDTH - RIGHT - 24.0 {
        (x, "end")
    } else {
        (x + 2.0, "middle")
    };
    html! {
        g.mark.over[is_oversubscribed(point)] {
            title { (PointId::from(point).joined()) ": " (factor_digits(point.speedup)) "×, "
                (factor_digits(low)) " to " (factor_digits(high)) }
            @if high > 0.0 {
                g.range data-figure=(format!("points.{i}.speedup_range.0")) data-value=(low) {
                    line x1=(px(x)) x2=(px(x)) y1=(px(top)) y2=(px(bottom)) {}
                    line x1=(px(x - 7.0)) x2=(px(x + 7.0)) y1=(px(top)) y2=(px(top)) {}
                    line x1=(px(x - 7.0)) x2=(px(x + 7.0)) y1=(px(bottom)) y2=(px(bottom)) {}
                }
            }
            circle cx=(px(x)) cy=(px(y)) r="3.5" data-figure=(format!("points.{i}.speedup"))
                data-value=(point.speedup) {}
            @if has_label {
                text.value x=(px(label_x)) y=(px(y.max(bottom) + 22.0)) text-anchor=(anchor) {
                    (factor_label(point.speedup))
                }
            }
        }
    }
}

/// CPU counts below the axis, those left out that would touch a neighbour; the last one stays.
fn tick_labels(points: &[Point], axes: &Axes) -> Vec<(f64, u32)> {
    let mut labels: Vec<(f64, u32)> = Vec::new();
    for point in points.iter().rev() {
        let x = f64::from(point.cpus);
        if labels
            .last()
            .is_none_or(|&(right, _)| axes.x(right) - axes.x(x) >= 26.0)
        {
            labels.push((x, point.cpus));
        }
    }
    labels
}

fn factor_label(value: f64) -> String {
    let text = factor_digits(value);
    let short = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{short}×")
}

fn px(value: f64) -> String {
    format!("{value:.1}")
}

fn in_words(points: &[Point]) -> String {
    let list: Vec<String> = points
        .iter()
        .map(|p| {
            format!(
                "{} on {}",
                factor_digits(p.speedup),
                PointId::from(p).joined()
            )
        })
        .collect();
    format!(
        "Speedup {}. The table of runs has the same numbers.",
        list.join(", ")
    )
}
