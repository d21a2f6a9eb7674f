//! Tables whose least important columns give way on narrow terminals.

use super::page::{Page, Span, dim, text};

/// A column: its title, whether numbers stand right, and which column goes first (highest) when
/// there is no room; 0 stays.
pub(crate) struct Column {
    pub title: &'static str,
    pub is_right: bool,
    pub expendable: u8,
}

impl Column {
    pub fn new(title: &'static str, is_right: bool, expendable: u8) -> Column {
        Column {
            title,
            is_right,
            expendable,
        }
    }
}

/// How far notes are set in, and their further lines.
const NOTE_INDENT: usize = 4;
const NOTE_HANG: usize = 6;

/// Draws `rows` of as many cells as there are columns.
pub(crate) fn draw(page: &mut Page, columns: &[Column], rows: &[Vec<String>]) {
    draw_noted(page, columns, rows, &[]);
}

/// The same with a note below each row that has one: what is too long for a column.
pub(crate) fn draw_noted(
    page: &mut Page,
    columns: &[Column],
    rows: &[Vec<String>],
    notes: &[Option<String>],
) {
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, column)| {
            let cells = rows.iter().map(|row| page.columns(&row[i]));
            cells.chain([column.title.len()]).max().unwrap_or(0)
        })
        .collect();
    let has_content = |i: usize| rows.iter().any(|row| !row[i].is_empty());
    let mut kept: Vec<usize> = (0..columns.len()).filter(|&i| has_content(i)).collect();
    let total = |kept: &[usize], gap: usize| -> usize {
        kept.iter().map(|&i| widths[i] + gap).sum::<usize>()
    };
    while total(&kept, 2) > page.width {
        let victim = kept
            .iter()
            .enumerate()
            .filter(|(_, i)| columns[**i].expendable > 0)
            .max_by_key(|(_, i)| columns[**i].expendable);
        match victim {
            Some((position, _)) => drop(kept.remove(position)),
            None => break,
        }
    }
    let gap = if total(&kept, 2) > page.width { 1 } else { 2 };
    let line = |page: &Page, cells: &dyn Fn(usize) -> String, span: fn(String) -> Span| {
        let mut spans = Vec::new();
        for (n, &i) in kept.iter().enumerate() {
            let cell = cells(i);
            let pad = " ".repeat(widths[i].saturating_sub(page.columns(&cell)));
            if n > 0 {
                spans.push(text(" ".repeat(gap)));
            }
            if columns[i].is_right {
                spans.extend([text(pad), span(cell)]);
            } else {
                spans.extend([span(cell), text(pad)]);
            }
        }
        spans
    };
    let header = line(page, &|i| columns[i].title.to_owned(), dim);
    page.row(&header);
    for (n, row) in rows.iter().enumerate() {
        let spans = line(page, &|i| row[i].clone(), text);
        page.row(&spans);
        if let Some(Some(note)) = notes.get(n) {
            page.paragraph(NOTE_INDENT, NOTE_HANG, &[dim(note)]);
        }
    }
}
