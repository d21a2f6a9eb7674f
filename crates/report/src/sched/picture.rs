//! Threads on CPUs over time, as SVG.
//!
//! A row is a CPU, a column a stretch of time; a cell has the colour of the thread that ran longest in it and
//! is the paler the less of it was busy. White is idle. Cells of one look are one path of thick lines, so that a
//! picture of 256 CPUs stays below three megabytes.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::schema::{Picture, SchedResult};
use crate::number::seconds;
use crate::plain::{elide, plain};

/// Colours beside the grey of all others. Neighbours differ in lightness too.
const COLORS: [&str; 12] = [
    "#4c78c8", "#e8964a", "#3f9e75", "#c7558c", "#8d6fc9", "#c9b23c", "#4fb3c4", "#d9695f",
    "#7d9c3f", "#a57a54", "#b98fd0", "#5c6b8a",
];
const OTHERS: &str = "#9aa3ad";
/// Steps of the load: the kernel of a cell's opacity.
const SHADES: usize = 4;

pub(super) const WIDTH: u32 = 1200;
const LEFT: u32 = 64;
pub(super) const TOP: u32 = 8;
pub(super) const AXIS: u32 = 34;
/// Of a file of its own, which has no page around it.
pub(super) const FILE_STYLE: &str =
    "<style>text{font:12px sans-serif;fill:#3d444d}.paper{fill:#fff}</style>";

/// What a colour stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// CSS colour.
    pub color: &'static str,
    /// A thread, or the threads of a name.
    pub label: String,
}

/// Colours per thread of the picture, and what they stand for.
fn colors(picture: &Picture) -> (Vec<usize>, Vec<Key>) {
    let mut weights = vec![0u64; picture.threads.len() + 1];
    for run in picture.cpus.iter().flat_map(|row| &row.runs) {
        if let Some(weight) = weights.get_mut(run[1] as usize) {
            *weight += u64::from(run[0]) * u64::from(run[2]);
        }
    }
    weights[0] = 0;
    let all: u64 = weights.iter().sum();
    let mut order: Vec<usize> = (1..weights.len()).filter(|&i| weights[i] > 0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(weights[i]), i));
    let first: u64 = order.iter().take(COLORS.len()).map(|&i| weights[i]).sum();
    let mut of = vec![COLORS.len(); weights.len()];
    let mut keys = Vec::new();
    // Where a dozen threads are most of it, each has its colour; else the names have.
    if first * 10 >= all * 6 {
        for (color, &i) in COLORS.into_iter().zip(&order) {
            of[i] = keys.len();
            let thread = &picture.threads[i - 1];
            let label = format!("{} {}", elide(&plain(&thread.name), 24, "…"), thread.tid);
            keys.push(Key { color, label });
        }
    } else {
        let mut names: BTreeMap<&str, u64> = BTreeMap::new();
        for &i in &order {
            *names.entry(&picture.threads[i - 1].name).or_default() += weights[i];
        }
        let mut by_weight: Vec<(&str, u64)> = names.into_iter().collect();
        by_weight.sort_by_key(|&(name, weight)| (std::cmp::Reverse(weight), name));
        for (color, (name, _)) in COLORS.into_iter().zip(by_weight) {
            let threads: Vec<usize> = order
                .iter()
                .copied()
                .filter(|&i| picture.threads[i - 1].name == name)
                .collect();
            for &i in &threads {
                of[i] = keys.len();
            }
            let many = if threads.len() == 1 { "" } else { "s" };
            let label = format!(
                "{} ({} thread{many})",
                elide(&plain(name), 24, "…"),
                threads.len()
            );
            keys.push(Key { color, label });
        }
    }
    if of
        .iter()
        .zip(&weights)
        .any(|(&of, &weight)| of == COLORS.len() && weight > 0)
    {
        keys.push(Key {
            color: OTHERS,
            label: "others".to_owned(),
        });
    }
    (of, keys)
}

/// What the colours of the picture stand for.
pub fn keys(picture: &Picture) -> Vec<Key> {
    colors(picture).1
}

/// Height of a row: two CPUs are easy to see, and 512 fit.
fn row_height(rows: usize) -> u32 {
    (640 / rows.max(1) as u32).clamp(3, 40)
}

/// The picture as an `svg` element. Texts have the classes `tick` and `cpu`, for a page that styles them.
pub fn element(picture: &Picture) -> String {
    drawing(picture, 0, "")
}

/// The picture as a file of its own, with the legend in it.
pub fn file(result: &SchedResult) -> Option<String> {
    let picture = result.picture.as_ref()?;
    let keys = keys(picture);
    let top = TOP + row_height(picture.cpus.len()) * picture.cpus.len() as u32 + AXIS;
    let mut legend = FILE_STYLE.to_owned();
    for (i, key) in keys.iter().enumerate() {
        let (column, row) = (i as u32 % 4, i as u32 / 4);
        let (x, y) = (LEFT + column * 280, top + 14 + row * 20);
        let _ = write!(
            legend,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
            y - 10,
            key.color,
            x + 18,
            escaped(&key.label),
        );
    }
    let rows = keys.len().div_ceil(4) as u32;
    Some(drawing(picture, rows * 20 + 12, &legend) + "\n")
}

fn drawing(picture: &Picture, extra: u32, inside: &str) -> String {
    let rows = picture.cpus.len();
    let height = row_height(rows) * rows as u32;
    let (inner, columns) = (WIDTH - LEFT - 8, picture.columns.max(1));
    let total = TOP + height + AXIS + extra;
    // A gap between rows of a few pixels would be a pixel here and none there.
    let thick = if rows <= 64 { ".86" } else { "1" };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" role=\"img\" \
         aria-label=\"Threads on {rows} CPUs over time\"><rect class=\"paper\" width=\"{WIDTH}\" height=\"{total}\" fill=\"none\"/>{inside}",
    );
    let _ = write!(
        out,
        "<svg x=\"{LEFT}\" y=\"{TOP}\" width=\"{inner}\" height=\"{height}\" viewBox=\"0 0 {columns} {rows}\" \
         preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\" fill=\"none\" stroke-width=\"{thick}\">",
    );
    cells(&mut out, picture);
    out.push_str("</svg>");
    labels(&mut out, picture, inner, height);
    out.push_str("</svg>");
    out
}

fn cells(out: &mut String, picture: &Picture) {
    let (of, _) = colors(picture);
    let mut paths = vec![String::new(); (COLORS.len() + 1) * SHADES];
    for (y, row) in picture.cpus.iter().enumerate() {
        let mut x = 0u32;
        // Runs that look alike are drawn as one.
        let mut open: Option<(usize, u32)> = None;
        let mut close = |open: &mut Option<(usize, u32)>, x: u32| {
            if let Some((path, from)) = open.take() {
                let _ = write!(paths[path], "M{from} {y}.5h{}", x - from);
            }
        };
        for &[len, who, load] in &row.runs {
            let shade = (load as usize * SHADES).div_ceil(16).min(SHADES);
            let look = (load > 0)
                .then(|| of.get(who as usize).map_or(COLORS.len(), |&of| of) * SHADES + shade - 1);
            if open.map(|(path, _)| path) != look {
                close(&mut open, x);
                open = look.map(|path| (path, x));
            }
            x = x.saturating_add(len);
        }
        close(&mut open, x);
    }
    for (i, path) in paths
        .iter()
        .enumerate()
        .filter(|(_, path)| !path.is_empty())
    {
        let color = COLORS.get(i / SHADES).unwrap_or(&OTHERS);
        let opacity = [".3", ".55", ".8", "1"][i % SHADES];
        let _ = write!(
            out,
            "<path stroke=\"{color}\" stroke-opacity=\"{opacity}\" d=\"{path}\"/>"
        );
    }
}

fn labels(out: &mut String, picture: &Picture, inner: u32, height: u32) {
    let each = row_height(picture.cpus.len());
    for (i, row) in picture.cpus.iter().enumerate().step_by(label_step(each)) {
        let y = label_y(each, i);
        let _ = write!(
            out,
            "<text class=\"cpu\" x=\"{}\" y=\"{y}\" text-anchor=\"end\">CPU {}</text>",
            LEFT - 8,
            row.cpu
        );
    }
    let total_s = picture.column_s * f64::from(picture.columns);
    axis(out, (LEFT, inner), height, total_s);
}

/// Of how many rows of that height one can have a label, which needs 13 pixels.
pub(super) fn label_step(each: u32) -> usize {
    13u32.div_ceil(each).next_power_of_two() as usize
}

/// Where the label of a row is.
pub(super) fn label_y(each: u32, row: usize) -> u32 {
    TOP + each * row as u32 + each.min(16) / 2 + 4
}

/// The axis of time below rows of `height` pixels, from `left` on `inner` pixels long.
pub(super) fn axis(out: &mut String, (left, inner): (u32, u32), height: u32, total_s: f64) {
    for i in 0..=5u32 {
        let x = left + inner * i / 5;
        let anchor = ["start", "middle", "middle", "middle", "middle", "end"][i as usize];
        let _ = write!(
            out,
            "<path class=\"axis\" stroke=\"#8a929b\" d=\"M{x} {}v5\"/><text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            TOP + height + 2,
            TOP + height + 21,
            escaped(&seconds(total_s * f64::from(i) / 5.0)),
        );
    }
}

pub(super) fn escaped(text: &str) -> String {
    plain(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::schema::{PictureCpu, PictureThread};
    use super::*;

    fn picture(cpus: u32, columns: u32, threads: u32) -> Picture {
        let runs = |cpu: u32| {
            (0..columns)
                .map(|i| [1, 1 + (cpu + i) % threads, 1 + (i * 7) % 16])
                .collect()
        };
        Picture {
            column_s: 0.001,
            columns,
            threads: (0..threads)
                .map(|tid| PictureThread {
                    tid,
                    name: format!("t{}", tid / 20),
                })
                .collect(),
            cpus: (0..cpus)
                .map(|cpu| PictureCpu {
                    cpu,
                    runs: runs(cpu),
                })
                .collect(),
        }
    }

    #[test]
    fn many_cpus_stay_small() {
        let text = element(&picture(256, 781, 400));
        assert!(text.len() < 3 << 20, "{}", text.len());
        assert!(text.contains(">CPU 0<") && !text.contains(">CPU 1<"));
    }

    #[test]
    fn few_threads_have_their_own_colours_and_many_those_of_their_names() {
        let few = keys(&picture(2, 100, 4));
        assert_eq!(few.len(), 4);
        assert!(few.iter().any(|key| key.label == "t0 0"));
        let many = keys(&picture(2, 500, 60));
        assert_eq!(many.len(), 3);
        assert_eq!(many[0].label, "t0 (20 threads)");
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let mut picture = picture(2, 10, 1);
        picture.threads[0].name = "</text><script>\u{202e}".to_owned();
        let result = SchedResult {
            picture: Some(picture),
            ..SchedResult::default()
        };
        let text = file(&result).unwrap();
        assert!(!text.contains("<script") && !text.contains('\u{202e}'));
    }

    #[test]
    fn runs_that_are_out_of_range_draw_nothing_wrong() {
        let mut picture = picture(1, 4, 1);
        picture.cpus[0].runs = vec![[u32::MAX, 900, 16], [u32::MAX, 1, 3]];
        assert!(element(&picture).starts_with("<svg"));
    }
}
