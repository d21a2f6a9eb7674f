//! Flame graphs. `inferno` lays them out; what goes into the page is drawn anew from its
//! rectangles, so that no script, style or identifier of its drawing gets there.

use std::collections::BTreeMap;

use inferno::flamegraph::{self, Options, TextTruncateDirection};
use maud::{Markup, html};
use quick_xml::Reader;
use quick_xml::events::Event;
use unicode_width::UnicodeWidthStr;

use crate::number::percent;
use crate::palette::look_of;
use crate::plain::plain;
use crate::point::PointId;
use crate::schema::SampleRow;

const WIDTH: usize = 1040;
const FONT_SIZE: usize = 12;
const FRAME_HEIGHT: usize = 18;
/// Of a character, in parts of the font's size: the widest of the fonts in the style sheet.
const FONT_WIDTH: f64 = 0.62;
/// From a frame's edge to its label, in percent of the width.
const MARGIN: f64 = 0.35;
/// Deeper stacks lose their outermost frames: recursion, mostly.
const FRAMES_MAX: usize = 96;
/// A drawing with more rectangles (some 300 bytes each) is drawn again without the narrow ones.
const RECTANGLES_MAX: usize = 1200;
/// Stacks that are also listed as text.
const LISTED: usize = 10;

/// Folded stacks, outermost frame first, with their time in microseconds.
struct Folded(BTreeMap<String, u64>, Unit);

/// What is counted, for the titles of the drawing.
type Unit = &'static str;

impl Folded {
    fn of<'a>(rows: impl Iterator<Item = &'a SampleRow>, unit: Unit) -> Folded {
        let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
        for row in rows {
            let frames: Vec<String> = row
                .stack
                .split(';')
                .filter(|frame| !frame.is_empty())
                .take(FRAMES_MAX)
                // In a folded line the last space ends the stack; a no-break space does not.
                .map(|frame| plain(frame).replace(char::is_whitespace, "\u{a0}"))
                .collect();
            let mut line = plain(&row.cause).replace([' ', ';'], "_");
            for frame in frames.iter().rev() {
                line.push(';');
                line.push_str(frame);
            }
            let time = stacks.entry(line).or_default();
            *time = time.saturating_add(row.charged_ns / 1000);
        }
        stacks.retain(|_, time| *time > 0);
        Folded(stacks, unit)
    }

    fn total(&self) -> u64 {
        self.0
            .values()
            .fold(0, |sum, time| sum.saturating_add(*time))
    }
}

/// A rectangle of the drawing, in pixels from the top left.
struct Rectangle {
    title: String,
    label: String,
    /// Percent of the width.
    x: f64,
    y: f64,
    width: f64,
}

impl Rectangle {
    /// The label as far as it lies in the frame; inferno knows nothing of the margin and of wide characters.
    fn label_that_fits(&self) -> String {
        let pixels = (self.width - MARGIN) / 100.0 * WIDTH as f64;
        let room = (pixels / (FONT_SIZE as f64 * FONT_WIDTH)) as usize;
        if self.label.width() <= room {
            return self.label.clone();
        }
        let mut label = self.label.trim_end_matches("..").to_owned();
        while !label.is_empty() && label.width() + 2 > room {
            label.pop();
        }
        if label.is_empty() {
            label
        } else {
            label + ".."
        }
    }
}

/// Which point of those in `rows` to draw: `wanted`, or what comes next to it where `rows` are of another result or
/// do not tell threads. None without rows.
pub(crate) fn shown(rows: &[SampleRow], wanted: Option<PointId>) -> Option<PointId> {
    let ids = || rows.iter().map(PointId::from);
    let wanted = wanted.filter(|&wanted| ids().any(|id| id == wanted));
    wanted.or_else(|| ids().max_by_key(|id| (id.cpus(), std::cmp::Reverse(id.threads()))))
}

/// On-CPU and off-CPU flame graphs of one point of those in `rows`.
pub(crate) fn draw(rows: &[SampleRow], shown: PointId) -> Markup {
    let of = |is_on_cpu: bool| {
        let wanted = |row: &&SampleRow| {
            PointId::from(*row) == shown && look_of(&row.cause).is_on_cpu() == is_on_cpu
        };
        Folded::of(rows.iter().filter(wanted), "CPU µs")
    };
    html! {
        (graph("on", "On the CPU", "Where CPUs ran, by cause and call stack.", &of(true)))
        (graph("off", "Off the CPU", "Where CPUs stood idle or were taken, by cause and by the call stack of the threads that waited.", &of(false)))
    }
}

/// One flame graph of all `rows`, whatever CPU count they have; the cause is the root.
pub(crate) fn of_all(
    class: &str,
    name: &str,
    caption: &str,
    unit: &'static str,
    rows: &[SampleRow],
) -> Markup {
    graph(class, name, caption, &Folded::of(rows.iter(), unit))
}

fn graph(class: &str, name: &str, caption: &str, folded: &Folded) -> Markup {
    if folded.0.is_empty() {
        return html! { h3 { (name) } p { "No samples." } };
    }
    let rectangles = layout(folded);
    let top = rectangles.iter().map(|r| r.y).fold(f64::INFINITY, f64::min);
    let bottom = rectangles.iter().map(|r| r.y).fold(0.0, f64::max);
    let height = bottom - top + FRAME_HEIGHT as f64;
    let total = folded.total();
    let mut largest: Vec<(&String, u64)> = folded.0.iter().map(|(s, t)| (s, *t)).collect();
    largest.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    largest.truncate(LISTED);
    html! {
        h3 { (name) }
        figure.flame {
            div.scroll role="region" aria-label=(format!("Flame graph: {name}")) tabindex="0" {
                svg class=(class) viewBox=(format!("0 0 {WIDTH} {height}")) role="img"
                    aria-label=(format!("Flame graph: {name}. The largest stacks follow as text.")) {
                    @for r in &rectangles {
                        g {
                            title { (r.title) }
                            rect class=(format!("k{}", tone(&r.title))) x=(format!("{:.3}%", r.x)) y=(r.y - top)
                                width=(format!("{:.3}%", r.width)) height=(FRAME_HEIGHT - 1) rx="1.5" {}
                            // inferno leaves the root without a name.
                            @let label = if r.y == bottom { "all".to_owned() } else { r.label_that_fits() };
                            @if !label.is_empty() {
                                text x=(format!("{:.3}%", r.x + MARGIN)) y=(r.y - top + 12.5) { (label) }
                            }
                        }
                    }
                }
            }
            figcaption { (caption) " Wide is much; the outermost caller is at the bottom." }
        }
        details {
            summary { "The largest stacks as text" }
            ol.stacks {
                @for (stack, time) in largest {
                    li {
                        (percent(time as f64 / total as f64)) " "
                        @let mut frames = stack.split(';');
                        b { (frames.next().unwrap_or_default()) } " "
                        @for (i, frame) in frames.enumerate() {
                            @if i > 0 { " › " }
                            code dir="ltr" { (frame) }
                        }
                    }
                }
            }
        }
    }
}

/// Few tones, the same for the same function.
fn tone(title: &str) -> u32 {
    let name = title.rsplit_once(" (").map_or(title, |(name, _)| name);
    // FNV-1a: stable from run to run, unlike the standard library's hashes.
    name.bytes().fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
    }) % 5
}

/// Lets `inferno` place the stacks; frames too narrow to see are left out until the rest is small
/// enough for a page.
fn layout(folded: &Folded) -> Vec<Rectangle> {
    let lines: Vec<String> = folded
        .0
        .iter()
        .map(|(stack, time)| format!("{stack} {time}"))
        .collect();
    let mut min_width = 0.1;
    loop {
        let mut options = Options::default();
        options.no_javascript = true;
        options.image_width = Some(WIDTH + 20); // inferno's own margins
        options.frame_height = FRAME_HEIGHT;
        options.font_size = FONT_SIZE;
        options.font_width = FONT_WIDTH;
        options.min_width = min_width;
        options.count_name = folded.1.to_owned();
        options.text_truncate_direction = TextTruncateDirection::Right;
        let mut svg = Vec::new();
        // Writing to memory does not fail, and there is at least one stack; if inferno objects
        // all the same, the page goes without its drawing and keeps the list.
        if flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg).is_err()
        {
            return Vec::new();
        }
        let rectangles = rectangles(&svg);
        if rectangles.len() <= RECTANGLES_MAX || min_width > 10.0 {
            return rectangles;
        }
        min_width *= 2.0;
    }
}

/// The frames of inferno's drawing: groups of a title, a rectangle and a label.
fn rectangles(svg: &[u8]) -> Vec<Rectangle> {
    let mut reader = Reader::from_reader(svg);
    let mut found = Vec::new();
    let mut current: Option<Rectangle> = None;
    let mut element = Vec::new();
    let mut buffer = Vec::new();
    while let Ok(event) = reader.read_event_into(&mut buffer) {
        match event {
            Event::Start(tag) | Event::Empty(tag) if tag.name().as_ref() == b"rect" => {
                if let Some(frame) = &mut current {
                    for attribute in tag.attributes().flatten() {
                        let text = String::from_utf8_lossy(&attribute.value);
                        let Ok(value) = text.trim_end_matches('%').parse() else {
                            continue;
                        };
                        match attribute.key.as_ref() {
                            b"x" => frame.x = value,
                            b"y" => frame.y = value,
                            b"width" => frame.width = value,
                            _ => {}
                        }
                    }
                }
            }
            Event::Start(tag) => {
                element = tag.name().as_ref().to_vec();
                if element == b"g" {
                    let (title, label) = (String::new(), String::new());
                    current = Some(Rectangle {
                        title,
                        label,
                        x: 0.0,
                        y: 0.0,
                        width: 0.0,
                    });
                }
            }
            Event::End(tag) => {
                if tag.name().as_ref() == b"g" {
                    found.extend(current.take());
                }
                element.clear();
            }
            Event::Text(text) => {
                let text = text.decode().unwrap_or_default();
                append(&mut current, &element, &text);
            }
            Event::GeneralRef(name) => {
                let name = name.decode().unwrap_or_default();
                let text = quick_xml::escape::unescape(&format!("&{name};"))
                    .map(std::borrow::Cow::into_owned)
                    .unwrap_or_default();
                append(&mut current, &element, &text);
            }
            Event::Eof => break,
            _ => {}
        }
        buffer.clear();
    }
    found
}

fn append(current: &mut Option<Rectangle>, element: &[u8], text: &str) {
    if let Some(frame) = current {
        match element {
            b"title" => frame.title.push_str(text),
            b"text" => frame.label.push_str(text),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cause: &str, stack: &str, charged_ns: u64) -> SampleRow {
        let (cause, stack) = (cause.to_owned(), stack.to_owned());
        SampleRow {
            cpus: 2,
            cause,
            stack,
            charged_ns,
            ..SampleRow::default()
        }
    }

    #[test]
    fn stacks_become_rectangles_under_their_own_names() {
        let rows = [
            row("work", "leaf 1 2;operator<;main", 3_000_000),
            row("work", "a&b;main", 1_000_000),
        ];
        let found = layout(&Folded::of(rows.iter(), "µs"));
        let width_of = |name: &str| {
            let frame = found
                .iter()
                .find(|r| r.title.starts_with(&format!("{name} (")));
            frame.unwrap_or_else(|| panic!("no {name}")).width
        };
        assert!((width_of("main") - 100.0).abs() < 0.01);
        assert!((width_of("operator<") - 75.0).abs() < 0.01);
        assert!((width_of("leaf\u{a0}1\u{a0}2") - 75.0).abs() < 0.01);
        assert!((width_of("a&b") - 25.0).abs() < 0.01);
    }

    #[test]
    fn rows_are_divided_by_cause() {
        let rows = [
            row("work", "runs;main", 5_000),
            row("lock-wait", "waits;main", 5_000),
        ];
        let page = draw(&rows, PointId::new(2, 2)).into_string();
        let (on, off) = page.split_once("Off the CPU").unwrap();
        assert!(on.contains("runs") && !on.contains("waits"));
        assert!(off.contains("waits") && !off.contains("runs"));
    }

    #[test]
    fn points_are_drawn_apart() {
        let rows = [(1, 1), (2, 2), (2, 8)].map(|(cpus, threads)| SampleRow {
            cpus,
            threads,
            ..row("work", &format!("on{cpus}with{threads};main"), 5_000)
        });
        for (wanted, expected) in [
            (Some(PointId::new(2, 2)), PointId::new(2, 2)),
            (Some(PointId::new(2, 8)), PointId::new(2, 8)),
            (Some(PointId::new(4, 4)), PointId::new(2, 2)),
            (None, PointId::new(2, 2)),
        ] {
            let shown = shown(&rows, wanted).expect("there are rows");
            assert_eq!(shown, expected);
            let page = draw(&rows, shown).into_string();
            for row in &rows {
                let function = row.stack.split(';').next().expect("a function");
                assert_eq!(
                    page.contains(function),
                    PointId::from(row) == shown,
                    "{function}"
                );
            }
        }
        assert_eq!(shown(&[], Some(PointId::new(2, 2))), None);
    }

    #[test]
    fn many_stacks_stay_small() {
        let rows: Vec<_> = (0..20_000)
            .map(|i| row("work", &format!("f{i};g{};main", i % 777), 1_000_000))
            .collect();
        let page = draw(&rows, PointId::new(2, 2)).into_string();
        assert!(page.len() < 400_000, "{} bytes", page.len());
    }
}
