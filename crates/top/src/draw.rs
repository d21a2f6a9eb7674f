//! The state of the screen as a frame.

use amdahl_report::plain::elide;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

use crate::detail::wrap;
use crate::grid::Grid;
use crate::help;
use crate::layout::{Layout, ascii, seconds_text};
use crate::screen::{Mode, Screen};
use crate::snapshot::{Snapshot, Tab};
use crate::views;

/// Below that there is nothing to see.
const LEAST: (u16, u16) = (20, 4);

/// Draws the screen. Cost: n log n of the rows of the result.
pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let style = Style::new();
        put(frame.buffer_mut(), 0, 0, "too small", area.width, style);
        return;
    }
    let width = area.width;
    let mut top = 1;
    title(screen, frame.buffer_mut(), width);
    if area.height >= 8 {
        for line in heading(screen) {
            let line = ascii(&line, screen.style);
            put(frame.buffer_mut(), 0, top, &line, width, Style::new());
            top += 1;
        }
    }
    let bottom = area.height - 1;
    let room = usize::from(bottom - top);
    match screen.mode.clone() {
        Mode::Table | Mode::Filter(_) => {
            screen.room = room.saturating_sub(1);
            table(screen, frame.buffer_mut(), top, width);
        }
        Mode::Help(at) => {
            screen.room = room;
            let lines = help::lines(screen);
            let at = page(screen, frame.buffer_mut(), top, width, &lines, at);
            screen.mode = Mode::Help(at);
        }
        Mode::Detail(at) => {
            screen.room = room;
            let lines = detail(screen);
            let at = page(screen, frame.buffer_mut(), top, width, &lines, at);
            screen.mode = Mode::Detail(at);
        }
    }
    footer(screen, frame, bottom, width);
}

fn put(buffer: &mut Buffer, x: u16, y: u16, text: &str, width: u16, style: Style) {
    let room = usize::from(width.saturating_sub(x));
    buffer.set_stringn(x, y, text, room, style);
}

fn colored(screen: &Screen, color: Color) -> Style {
    if screen.style.color {
        Style::new().fg(color)
    } else {
        Style::new()
    }
}

/// `amdahl top  1 locks  2 sched  3 mem   the system`, and what is special on the right.
fn title(screen: &Screen, buffer: &mut Buffer, width: u16) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut x = 0;
    if width >= 60 {
        let name = "amdahl top ";
        put(buffer, x, 0, name, width, bold);
        x += name.len() as u16;
    }
    for tab in Tab::ALL {
        let style = if tab == screen.tab {
            bold.add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        let name = format!(" {} {} ", tab as usize + 1, tab.name());
        put(buffer, x, 0, &name, width, style);
        x += name.len() as u16;
    }
    let (state, style) = if screen.is_paused {
        let style = colored(screen, Color::Yellow).add_modifier(Modifier::BOLD);
        (" PAUSED".to_owned(), style)
    } else {
        let every = screen.interval().as_secs_f64();
        (format!(" every {every}s"), Style::new())
    };
    let room = usize::from(width.saturating_sub(x + 1)).saturating_sub(state.len());
    let target = ascii(&elide(&screen.target, room, ".."), screen.style);
    put(buffer, x + 1, 0, &target, width, Style::new());
    let from = width.saturating_sub(state.len() as u16).max(x);
    put(buffer, from, 0, &state, width, style);
}

/// Since when, what it costs, what was lost.
pub fn status(snapshot: &Snapshot) -> String {
    let mut text = format!("{} counted", seconds_text(snapshot.seconds));
    if let Some(own) = snapshot.own_cpu {
        text += &format!(", needs {:.1}% of one CPU", own * 100.0);
    }
    if snapshot.lost > 0 {
        text += &format!(", LOST {} events", snapshot.lost);
    }
    if snapshot.is_cut {
        text += ", MEMORY USED UP: press r, or give more with --memory";
    }
    text
}

fn heading(screen: &Screen) -> [String; 2] {
    let Some(shown) = &screen.shown else {
        let text = screen.notice.clone();
        return [
            text.unwrap_or_else(|| "waiting for the first figures".to_owned()),
            String::new(),
        ];
    };
    let is_all_known = shown
        .sources()
        .iter()
        .all(|source| source.missing.is_empty())
        && shown.notices().is_empty();
    let mut status = status(shown);
    if let Some(notice) = screen.end.as_ref().or(screen.notice.as_ref()) {
        status = format!("{notice} {status}");
    }
    if !is_all_known {
        status += "; not all is known, see ?";
    }
    [views::headline(shown), status]
}

fn table(screen: &mut Screen, buffer: &mut Buffer, top: u16, width: u16) {
    let Some(grid) = screen.grid() else {
        return;
    };
    let order = screen.order();
    let layout = Layout::new(grid.columns, usize::from(width), order.column);
    let titles = layout
        .titles(grid.columns, order.column, order.is_falling)
        .join(" ");
    let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    put(buffer, 0, top, &titles, width, bold);
    if grid.rows.is_empty() {
        let text = if screen.filter.typed().is_empty() {
            "Nothing yet."
        } else {
            "No row has this text. Esc shows all."
        };
        put(buffer, 0, top + 1, text, width, Style::new());
        return;
    }
    let selected = screen.selected(&grid.rows);
    let at = scrolled(screen.state().top, selected, screen.room, grid.rows.len());
    screen.state_mut().top = at;
    rows(screen, buffer, top + 1, width, (&grid, &layout), selected);
}

fn rows(
    screen: &Screen,
    buffer: &mut Buffer,
    top: u16,
    width: u16,
    (grid, layout): (&Grid, &Layout),
    selected: usize,
) {
    let from = screen.state().top;
    let shown = grid.rows.iter().enumerate().skip(from).take(screen.room);
    for (y, (at, row)) in (top..).zip(shown) {
        let text = layout.cells(grid.columns, row, screen.style).join(" ");
        let style = match (at == selected, row.is_faint) {
            (true, _) => Style::new().add_modifier(Modifier::REVERSED),
            (false, true) => Style::new().add_modifier(Modifier::DIM),
            (false, false) => Style::new(),
        };
        let padded = format!("{text:<wide$}", wide = usize::from(width));
        put(buffer, 0, y, &padded, width, style);
    }
}

/// The first row on the screen, so that the selected one is on it.
fn scrolled(top: usize, selected: usize, room: usize, rows: usize) -> usize {
    let room = room.max(1);
    let top = top.min(rows.saturating_sub(room));
    top.clamp(selected.saturating_sub(room - 1), selected)
}

/// Lines from `at` on, which is moved back where there are not so many.
fn page(
    screen: &Screen,
    buffer: &mut Buffer,
    top: u16,
    width: u16,
    lines: &[(usize, String)],
    at: usize,
) -> usize {
    let wrapped = wrap(lines, usize::from(width));
    let at = at.min(wrapped.len().saturating_sub(screen.room));
    for (y, line) in (top..).zip(wrapped.iter().skip(at).take(screen.room)) {
        put(
            buffer,
            0,
            y,
            &ascii(line, screen.style),
            width,
            Style::new(),
        );
    }
    at
}

fn detail(screen: &Screen) -> Vec<(usize, String)> {
    let found = screen.shown.as_ref().and_then(|shown| {
        let grid = screen.grid()?;
        let key = screen.state().selected_key()?;
        let row = grid.rows.iter().find(|row| row.key == key)?;
        Some(views::detail(shown, screen.by(), row.index))
    });
    found.unwrap_or_else(|| vec![(0, "This row is not there any more.".to_owned())])
}

const TABLE_KEYS: [&str; 11] = [
    "?:help",
    "q:quit",
    "/:filter",
    "<>:sort",
    "g:group",
    "Spc:pause",
    "Enter:details",
    "r:reset",
    "i:invert",
    "o:owners",
    "+-:interval",
];

fn footer(screen: &Screen, frame: &mut Frame<'_>, y: u16, width: u16) {
    let style = Style::new().add_modifier(Modifier::REVERSED);
    let text = match &screen.mode {
        Mode::Filter(_) => {
            let note = if screen.filter.is_literal() {
                " (as text)"
            } else {
                ""
            };
            let typed = elide(
                screen.filter.typed(),
                usize::from(width).saturating_sub(24),
                "..",
            );
            let typed = ascii(&amdahl_report::plain::plain(&typed), screen.style);
            let text = format!("filter: {typed}");
            let x = (text.width() as u16).min(width - 1);
            frame.set_cursor_position(Position { x, y });
            format!("{text}  {note}")
        }
        Mode::Help(_) | Mode::Detail(_) => "Up Down PgUp PgDn:scroll  Esc:back  q:quit".to_owned(),
        Mode::Table => {
            let mut text = String::new();
            let filter = screen.filter.typed();
            if !filter.is_empty() {
                let filter = elide(&amdahl_report::plain::plain(filter), 20, "..");
                text = format!("only /{}/  Esc:all  ", ascii(&filter, screen.style));
            }
            text += &format!("by {}  ", screen.by().name());
            for key in TABLE_KEYS {
                if text.width() + key.len() <= usize::from(width) {
                    text += key;
                    text += "  ";
                }
            }
            text
        }
    };
    let padded = format!("{text:<wide$}", wide = usize::from(width));
    put(frame.buffer_mut(), 0, y, &padded, width, style);
}
