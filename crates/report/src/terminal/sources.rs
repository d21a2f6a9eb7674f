//! Where the figures of a result come from, what is missing, and what to know about it.

use super::page::{Page, bold, text};
use crate::schema::{Notice, Source};

/// What gave figures, and by which means: `stacks by bpf, counts by perf`.
pub(crate) fn means<'a>(sources: impl IntoIterator<Item = &'a Source>) -> String {
    let given = sources
        .into_iter()
        .filter(|source| source.how != "missing")
        .map(|source| format!("{} by {}", source.what, source.how));
    given.collect::<Vec<_>>().join(", ")
}

/// Something of it is missing.
pub(crate) fn lacks(source: &Source) -> bool {
    source.how == "missing" || !source.missing.is_empty()
}

/// What is missing, and how to get it.
pub(crate) fn missing(page: &mut Page, sources: &[Source]) {
    for source in sources.iter().filter(|source| lacks(source)) {
        let what = format!("{}: {}", source.what, source.missing);
        let mut line = vec![bold("Missing: "), text(what)];
        if !source.remedy.is_empty() {
            line.push(text(format!(" To get it: {}", source.remedy)));
        }
        page.paragraph(0, 2, &line);
    }
}

/// Warnings, a paragraph each.
pub(crate) fn warnings(page: &mut Page, warnings: &[Notice]) {
    for warning in warnings {
        let code = bold(format!("{}: ", warning.code));
        page.paragraph(0, 2, &[code, text(&warning.text)]);
    }
}
