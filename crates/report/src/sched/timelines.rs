//! What threads did over time, as SVG.
//!
//! A lane is a thread, a column a stretch of time. From the bottom of a lane to its top: for how much of the column the
//! thread ran, waited for a CPU, and was blocked. A thin line at the bottom is sleep, nothing at all what is not
//! known. Cells of one look are one path of thick lines, so that a picture of 300 threads stays below eight megabytes.

use std::fmt::Write;

use super::picture::{AXIS, FILE_STYLE, TOP, WIDTH, axis, escaped, label_step, label_y};
use super::schema::{SchedResult, Timelines};
use crate::plain::{elide, plain};

const LEFT: u32 = 190;
/// How much of a lane is drawn upon; the rest keeps lanes apart.
const FILLED: f64 = 0.86;
/// Of which the parts of a cell are told.
const PARTS: usize = 16;

/// How something that a thread does is drawn: by colour and by stripes, so that no reader depends on colour.
struct Look {
    label: &'static str,
    color: &'static str,
    stripes: Option<Stripes>,
}

struct Stripes {
    /// Of the pattern.
    id: &'static str,
    color: &'static str,
    angle: u32,
    /// The same as lines in a square of 12 pixels.
    square: &'static str,
}

/// In the order of the parts of a cell.
const LOOKS: [Look; 3] = [
    Look {
        label: "running",
        color: "#3d6cc0",
        stripes: None,
    },
    Look {
        label: "waiting for a CPU",
        color: "#f2bd4b",
        stripes: Some(Stripes {
            id: "timeline-waiting",
            color: "#9a6a10",
            angle: 135,
            square: "M0 4L4 0M0 8L8 0M0 12L12 0M4 12L12 4M8 12L12 8",
        }),
    },
    Look {
        label: "blocked, uninterruptibly",
        color: "#b3304f",
        stripes: Some(Stripes {
            id: "timeline-blocked",
            color: "#f0c4cf",
            angle: 90,
            square: "M2 0v12M6 0v12M10 0v12",
        }),
    },
];
const ASLEEP: &str = "asleep";
const LINE: &str = "#8a929b";

/// What is drawn how: in words, and as the content of an `svg` of 12 by 12.
pub(super) fn keys() -> Vec<(&'static str, String)> {
    let looks = LOOKS.iter().map(|look| {
        let mut square = format!("<path fill=\"{}\" d=\"M0 0h12v12h-12z\"/>", look.color);
        if let Some(stripes) = &look.stripes {
            let _ = write!(
                square,
                "<path stroke=\"{}\" stroke-width=\"1.4\" d=\"{}\"/>",
                stripes.color, stripes.square
            );
        }
        (look.label, square)
    });
    let line = format!("<path stroke=\"{LINE}\" stroke-width=\"2\" d=\"M0 11h12\"/>");
    looks.chain([(ASLEEP, line)]).collect()
}

/// Height of a lane: two are easy to read, and of 300 the busy ones are seen.
fn lane_height(lanes: usize) -> u32 {
    (900 / lanes.max(1) as u32).clamp(4, 40)
}

/// The picture as an `svg` element, for a page that styles its texts.
pub fn element(timelines: &Timelines) -> String {
    drawing(timelines, 0, "")
}

/// The picture as a file of its own, with the legend in it; `None` without any thread.
pub fn file(result: &SchedResult) -> Option<String> {
    let timelines = result.timelines.as_ref()?;
    if timelines.threads.is_empty() {
        return None;
    }
    let lanes = timelines.threads.len();
    let y = TOP + lane_height(lanes) * lanes as u32 + AXIS + 4;
    let mut legend = FILE_STYLE.to_owned();
    for (i, (label, square)) in keys().into_iter().enumerate() {
        let x = LEFT + i as u32 * 230;
        let _ = write!(
            legend,
            "<g transform=\"translate({x} {y})\">{square}<text x=\"18\" y=\"10\">{label}</text></g>"
        );
    }
    Some(drawing(timelines, 32, &legend) + "\n")
}

/// How many threads there are besides, in words.
pub(super) fn elsewhere_words(timelines: &Timelines) -> String {
    match timelines.elsewhere {
        0 => String::new(),
        1 => " 1 more thread, which ran less, has no lane.".to_owned(),
        many => format!(" {many} more threads, which ran less, have no lane."),
    }
}

fn drawing(timelines: &Timelines, extra: u32, inside: &str) -> String {
    let lanes = timelines.threads.len();
    let each = lane_height(lanes);
    let height = each * lanes as u32;
    let (inner, columns) = (WIDTH - LEFT - 8, timelines.columns.max(1));
    let total = TOP + height + AXIS + extra;
    let many = if lanes == 1 { "" } else { "s" };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" role=\"img\" \
         aria-labelledby=\"timelines-title timelines-desc\">\
         <title id=\"timelines-title\">What {lanes} thread{many} did over time</title>\
         <desc id=\"timelines-desc\">A lane is a thread, the one that ran most at the top. From the bottom of a lane to its top: for how \
         much of the time it was running (plain), waiting for a CPU (slanting stripes) and blocked uninterruptibly (upright \
         stripes). A thin line is sleep.{}</desc>\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{total}\" fill=\"none\"/>{inside}",
        elsewhere_words(timelines),
    );
    let (wide, high) = (f64::from(inner) / f64::from(columns), f64::from(each));
    out.push_str("<defs>");
    for look in &LOOKS {
        if let Some(Stripes {
            id, color, angle, ..
        }) = &look.stripes
        {
            // Stripes are as wide whatever the columns are.
            let _ = write!(
                out,
                "<pattern id=\"{id}\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
                 patternTransform=\"scale({:.6} {:.6}) rotate({angle})\"><path fill=\"{}\" d=\"M0 0h5v5h-5z\"/>\
                 <path fill=\"{color}\" d=\"M0 0h5v1.4h-5z\"/></pattern>",
                1.0 / wide,
                1.0 / high,
                look.color,
            );
        }
    }
    // Parts of a low lane are less than a pixel and show by what they cover of it; in a high one edges are sharp.
    let edges = if each < 16 { "auto" } else { "crispEdges" };
    let _ = write!(
        out,
        "</defs><g transform=\"translate({LEFT} {TOP}) scale({wide:.6} {high})\" shape-rendering=\"{edges}\" fill=\"none\">",
    );
    cells(&mut out, timelines, 1.0 / high);
    out.push_str("</g>");
    labels(&mut out, timelines, inner);
    axis(
        &mut out,
        (LEFT, inner),
        height,
        timelines.column_s * f64::from(timelines.columns),
    );
    out.push_str("</svg>");
    out
}

/// Lines of one thickness, of one colour.
#[derive(Default)]
struct Lines {
    path: String,
    /// From which column on the last one goes, and to which.
    open: Option<(u32, u32)>,
    /// At which height.
    at: f64,
}

impl Lines {
    /// Goes on from column `x`, or begins there.
    fn add(&mut self, x: u32, len: u32, at: f64) {
        if let Some((_, to)) = &mut self.open
            && *to == x
            && self.at == at
        {
            *to = to.saturating_add(len);
            return;
        }
        self.close();
        (self.open, self.at) = (Some((x, x.saturating_add(len))), at);
    }

    fn close(&mut self) {
        if let Some((from, to)) = self.open.take() {
            let at = format!("{:.3}", self.at);
            let at = at.trim_end_matches('0').trim_end_matches('.');
            let _ = write!(self.path, "M{from} {at}h{}", to - from);
        }
    }
}

fn cells(out: &mut String, timelines: &Timelines, pixel: f64) {
    let mut parts: Vec<Lines> = Vec::new();
    parts.resize_with(LOOKS.len() * PARTS, Lines::default);
    let mut asleep = Lines::default();
    let line = pixel.max(0.05);
    for (lane, thread) in timelines.threads.iter().enumerate() {
        let bottom = lane as f64 + 0.5 + FILLED / 2.0;
        let mut x = 0u32;
        for &[len, running, waiting, blocked, sleeping] in &thread.runs {
            if sleeping > 0 {
                asleep.add(x, len, bottom - line / 2.0);
            }
            let mut below = 0;
            for (look, part) in [running, waiting, blocked].into_iter().enumerate() {
                let part = part.min(PARTS as u32 - below);
                if part > 0 {
                    let middle = f64::from(below) + f64::from(part) / 2.0;
                    let at = bottom - FILLED * middle / PARTS as f64;
                    parts[look * PARTS + part as usize - 1].add(x, len, at);
                }
                below += part;
            }
            x = x.saturating_add(len);
        }
    }
    let sleep = [(asleep, LINE.to_owned(), line)].into_iter();
    let others = parts.into_iter().enumerate().map(|(i, lines)| {
        let look = &LOOKS[i / PARTS];
        let paint = match &look.stripes {
            Some(stripes) => format!("url(#{})", stripes.id),
            None => look.color.to_owned(),
        };
        (lines, paint, FILLED * (i % PARTS + 1) as f64 / PARTS as f64)
    });
    for (mut lines, paint, thick) in sleep.chain(others) {
        lines.close();
        if !lines.path.is_empty() {
            let _ = write!(
                out,
                "<path stroke=\"{paint}\" stroke-width=\"{thick:.4}\" d=\"{}\"/>",
                lines.path
            );
        }
    }
}

fn labels(out: &mut String, timelines: &Timelines, inner: u32) {
    let each = lane_height(timelines.threads.len());
    let step = label_step(each);
    for (i, thread) in timelines.threads.iter().enumerate() {
        let name = format!("{} {}", elide(&plain(&thread.name), 18, "…"), thread.tid);
        let name = escaped(&name);
        if i % step == 0 {
            let _ = write!(
                out,
                "<text class=\"thread\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
                LEFT - 8,
                label_y(each, i),
            );
        }
        // Which thread a lane is, shown by the pointer.
        let _ = write!(
            out,
            "<rect x=\"{LEFT}\" y=\"{}\" width=\"{inner}\" height=\"{each}\" fill=\"none\" pointer-events=\"all\">\
             <title>{name}, process {}</title></rect>",
            TOP + each * i as u32,
            thread.pid,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::Timeline;
    use super::*;

    fn of(threads: Vec<Timeline>, columns: u32) -> Timelines {
        Timelines {
            column_s: 0.001,
            columns,
            threads,
            elsewhere: 7,
        }
    }

    fn timelines(threads: u32, columns: u32) -> Timelines {
        let runs = |thread: u32| {
            (0..columns)
                .map(|i| {
                    let (running, waiting) = ((thread + i) % 9, (thread + i / 3) % 5);
                    [1, running, waiting, 2, 16 - 2 - running - waiting]
                })
                .collect()
        };
        let threads = (0..threads).map(|tid| Timeline {
            tid,
            pid: 1,
            name: format!("t{tid}"),
            runs: runs(tid),
        });
        of(threads.collect(), columns)
    }

    #[test]
    fn many_threads_stay_small() {
        let text = element(&timelines(300, 666));
        assert!(text.len() < 8 << 20, "{}", text.len());
        assert!(text.contains(">t0 0<") && !text.contains(">t1 1<"));
        assert!(text.contains("<title>t1 1, process 1</title>"));
    }

    #[test]
    fn a_cell_is_divided_from_the_bottom_up() {
        let text = element(&of(
            vec![Timeline {
                runs: vec![[3, 8, 2, 0, 6], [2, 8, 2, 0, 5], [1, 0, 0, 16, 0]],
                ..Timeline::default()
            }],
            6,
        ));
        let path = |paint: &str| {
            let (_, after) = text
                .split_once(&format!("<path stroke=\"{paint}\""))
                .unwrap();
            after
                .split_once("d=\"")
                .unwrap()
                .1
                .split_once('"')
                .unwrap()
                .0
        };
        // Runs that look alike are one line; the lower half, an eighth above it, and all of the last column.
        assert_eq!(path("#3d6cc0"), "M0 0.715h5");
        assert_eq!(path("url(#timeline-waiting)"), "M0 0.446h5");
        assert_eq!(path("url(#timeline-blocked)"), "M5 0.5h1");
        assert_eq!(path(LINE), "M0 0.905h5");
        assert!(text.contains("7 more threads"));
    }

    #[test]
    fn what_is_not_known_is_not_drawn() {
        let text = element(&of(
            vec![Timeline {
                runs: vec![[6, 0, 0, 0, 0]],
                ..Timeline::default()
            }],
            6,
        ));
        assert!(!text.contains("stroke-width"), "{text}");
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let mut timelines = timelines(2, 10);
        timelines.threads[0].name = "</text><script>\u{202e}".to_owned();
        let result = SchedResult {
            timelines: Some(timelines),
            ..SchedResult::default()
        };
        let text = file(&result).unwrap();
        assert!(!text.contains("<script") && !text.contains('\u{202e}'));
    }

    #[test]
    fn runs_that_are_out_of_range_draw_nothing_wrong() {
        let mut timelines = timelines(1, 4);
        timelines.threads[0].runs = vec![[u32::MAX; 5], [u32::MAX, 1, 3, 0, 0]];
        assert!(element(&timelines).starts_with("<svg"));
        assert!(element(&Timelines::default()).starts_with("<svg"));
    }
}
