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

/// Draws `rows` of as many cells as there are columns.
pub(crate) fn draw(page: &mut Page, columns: &[Column], rows: &[Vec<String>]) {
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
    for row in rows {
        let spans = line(page, &|i| row[i].clone(), text);
        page.row(&spans);
    }
}
