//! Text laid out for a terminal: no line is wider than the page, no word of a number is broken.

use std::fmt::Write;

use anstyle::Style as Ink;
use unicode_width::UnicodeWidthStr;

use super::Style;
use crate::plain::{elide, plain};

/// A piece of a line in one style.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    text: String,
    ink: Ink,
}

/// Unstyled text.
pub(crate) fn text(text: impl AsRef<str>) -> Span {
    ink(text, Ink::new())
}

/// Headings and what matters.
pub(crate) fn bold(text: impl AsRef<str>) -> Span {
    ink(text, Ink::new().bold())
}

/// What can be skipped.
pub(crate) fn dim(text: impl AsRef<str>) -> Span {
    ink(text, Ink::new().dimmed())
}

/// Text in any style.
pub(crate) fn ink(text: impl AsRef<str>, ink: Ink) -> Span {
    Span {
        text: plain(text.as_ref()),
        ink,
    }
}

/// Lines of text up to a width.
pub(crate) struct Page {
    pub width: usize,
    pub style: Style,
    out: String,
    /// The end of the current line, all in one style.
    open: Option<Span>,
}

impl Page {
    pub fn new(width: usize, style: Style) -> Page {
        Page {
            width: width.clamp(40, 200),
            style,
            out: String::new(),
            open: None,
        }
    }

    pub fn finish(self) -> String {
        self.out
    }

    /// The sign for left-out text.
    pub fn ellipsis(&self) -> &'static str {
        if self.style.unicode { "…" } else { "..." }
    }

    /// Columns that `text` takes on this page.
    pub fn columns(&self, text: &str) -> usize {
        self.spelled(&plain(text)).width()
    }

    pub fn blank(&mut self) {
        self.out.push('\n');
    }

    pub fn heading(&mut self, title: &str) {
        self.blank();
        self.paragraph(0, 0, &[bold(title)]);
    }

    /// A line as it stands; one that is too wide becomes a paragraph.
    pub fn row(&mut self, spans: &[Span]) {
        let total: usize = spans.iter().map(|span| self.columns(&span.text)).sum();
        if total > self.width {
            return self.paragraph(0, 4, spans);
        }
        let last = spans
            .iter()
            .rposition(|span| !span.text.trim_end().is_empty());
        for (i, span) in spans.iter().enumerate() {
            let spelled = self.spelled(&span.text);
            // Spaces at the end of a coloured bar are part of it.
            let is_end = Some(i) == last && span.ink.get_bg_color().is_none();
            if Some(i) <= last {
                self.emit(if is_end { spelled.trim_end() } else { &spelled }, span.ink);
            }
        }
        self.end_line();
    }

    /// Words flowing from `indent`, further lines from `hang`. Words end at spaces only; a word
    /// that is wider than the line loses its middle.
    pub fn paragraph(&mut self, indent: usize, hang: usize, spans: &[Span]) {
        let mut column = indent;
        let mut is_first_in_line = true;
        self.out.extend(std::iter::repeat_n(' ', indent));
        for word in words(spans, |text| self.spelled(text)) {
            let width: usize = word.iter().map(|span| span.text.width()).sum();
            if !is_first_in_line && column + 1 + width > self.width {
                self.end_line();
                self.out.extend(std::iter::repeat_n(' ', hang));
                column = hang;
                is_first_in_line = true;
            }
            if !is_first_in_line {
                // A space between words of one style has it too.
                let ink = self.open.as_ref().map_or(Ink::new(), |open| open.ink);
                self.emit(" ", if ink == word[0].ink { ink } else { Ink::new() });
                column += 1;
            }
            let mut room = self.width - column;
            if width <= room {
                for span in &word {
                    self.emit(&span.text, span.ink);
                }
                column += width;
            } else {
                // Pieces of a word in several styles are rare: one style is enough here.
                let whole: String = word.iter().map(|span| span.text.as_str()).collect();
                let shortened = elide(&whole, room, self.ellipsis());
                room -= shortened.width();
                self.emit(&shortened, word[0].ink);
                column = self.width - room;
            }
            is_first_in_line = false;
        }
        self.end_line();
    }

    fn emit(&mut self, text: &str, ink: Ink) {
        let text = text.replace('\u{a0}', " ");
        match &mut self.open {
            Some(open) if open.ink == ink => open.text.push_str(&text),
            _ => {
                self.close_span();
                self.open = Some(Span { text, ink });
            }
        }
    }

    fn close_span(&mut self) {
        let Some(Span { text, ink }) = self.open.take() else {
            return;
        };
        if self.style.color && ink != Ink::new() && !text.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(self.out, "{ink}{text}{ink:#}");
        } else {
            self.out.push_str(&text);
        }
    }

    fn end_line(&mut self) {
        self.close_span();
        self.out.push('\n');
    }

    /// Text in the characters that this terminal has.
    fn spelled(&self, text: &str) -> String {
        if self.style.unicode || text.is_ascii() {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\u{a0}' => out.push(c),
                '×' => out.push('x'),
                'µ' => out.push('u'),
                '·' => out.push('-'),
                '…' => out.push_str("..."),
                c if c.is_ascii() => out.push(c),
                _ => out.push('?'),
            }
        }
        out
    }
}

/// Words with the styles of their pieces; a boundary of spans without a space joins.
fn words(spans: &[Span], spell: impl Fn(&str) -> String) -> Vec<Vec<Span>> {
    let mut words: Vec<Vec<Span>> = Vec::new();
    let mut is_open = false;
    for span in spans {
        for (i, piece) in span.text.split(' ').enumerate() {
            is_open &= i == 0;
            if piece.is_empty() {
                continue;
            }
            let piece = Span {
                text: spell(piece),
                ink: span.ink,
            };
            match words.last_mut() {
                Some(word) if is_open => word.push(piece),
                _ => words.push(vec![piece]),
            }
            is_open = true;
        }
        is_open &= !span.text.ends_with(' ');
    }
    words
}
