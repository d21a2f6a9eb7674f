//! The help page.

use crate::screen::Screen;
use crate::views;

const KEYS: [(&str, &str); 14] = [
    ("1 2 3, Tab", "locks, sched, mem"),
    ("Up Down PgUp PgDn", "select a row (also k j)"),
    ("Enter", "all of a row: call stack, owners"),
    ("< > Left Right", "sort by the column beside"),
    ("i", "invert the order"),
    ("/", "show rows with this text (regular expression)"),
    ("Esc", "show all rows again"),
    ("g", "what makes a row: line, thread, process, CPU, ..."),
    ("o", "who released locks, beside each row (locks)"),
    ("Space", "hold the screen; recording goes on"),
    ("r", "forget what was counted"),
    ("+ -", "longer or shorter between two screens"),
    ("?", "this page"),
    ("q", "end"),
];

/// Lines with their indentation.
pub fn lines(screen: &Screen) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = KEYS
        .iter()
        .map(|(key, what)| (0, format!("{key:<18} {what}")))
        .collect();
    lines.push((0, String::new()));
    for column in views::columns(screen.tab, screen.shape()) {
        lines.push((0, format!("{:<18} {}", column.title, column.about)));
    }
    lines.push((0, String::new()));
    let cost = "Only the tab that is shown records. What it costs: the share of one CPU that this \
                program needs is in the second line, the probe's time in other programs is not.";
    lines.push((0, cost.to_owned()));
    let sources = screen
        .shown
        .as_ref()
        .map_or(&[][..], |shown| shown.sources());
    for source in sources {
        let what = if source.missing.is_empty() {
            format!("{}: {}", source.what, source.how)
        } else if source.remedy.is_empty() {
            format!("{}: {}. {}", source.what, source.how, source.missing)
        } else {
            format!(
                "{}: {}. {} To get it: {}",
                source.what, source.how, source.missing, source.remedy
            )
        };
        lines.push((0, amdahl_report::plain::plain(&what)));
    }
    let notices = screen.shown.iter().flat_map(|shown| shown.notices());
    lines.extend(notices.map(|notice| (0, notice)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Shape, Tab};

    const PAGE: &str = include_str!("../../../docs/top.md");

    #[test]
    fn the_page_has_every_key_and_every_column() {
        for (key, _) in KEYS {
            assert!(PAGE.contains(&format!("| `{key}` |")), "{key}");
        }
        for tab in Tab::ALL {
            for &by in tab.groupings() {
                assert!(PAGE.contains(&format!("`{}`", by.name())), "{by:?}");
                let owners = tab == Tab::Locks;
                for column in views::columns(tab, Shape { by, owners }) {
                    let title = column.title;
                    assert!(PAGE.contains(&format!("`{title}`")), "{tab:?} {title}");
                }
            }
        }
    }
}
