//! Which rows are wanted.

use regex::{Regex, RegexBuilder};

use crate::grid::{Cell, Row};

/// A regular expression over the texts of a row, or the text itself where it is none.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    typed: String,
    /// `None` where every row is wanted, or the text alone counts.
    regex: Option<Regex>,
    is_literal: bool,
}

/// Bytes that a compiled expression may take: it is typed by a person.
const SIZE_MAX: usize = 1 << 20;

impl Filter {
    /// What was typed. Capital letters do not matter. Cost of use: linear in the text.
    pub fn new(typed: &str) -> Filter {
        let mut builder = RegexBuilder::new(typed);
        let built = builder.case_insensitive(true).size_limit(SIZE_MAX).build();
        let regex = built.ok().filter(|_| !typed.is_empty());
        let is_literal = regex.is_none() && !typed.is_empty();
        Filter {
            typed: typed.to_owned(),
            regex,
            is_literal,
        }
    }

    /// As typed.
    pub fn typed(&self) -> &str {
        &self.typed
    }

    /// It is no regular expression and stands for itself.
    pub fn is_literal(&self) -> bool {
        self.is_literal
    }

    /// Whether a row is wanted.
    pub fn wants(&self, row: &Row) -> bool {
        if self.typed.is_empty() {
            return true;
        }
        let typed = self.typed.to_lowercase();
        row.cells.iter().any(|cell| match (cell, &self.regex) {
            (Cell::Text(text), Some(regex)) => regex.is_match(text),
            (Cell::Text(text), None) => text.to_lowercase().contains(&typed),
            _ => false,
        })
    }
}
