//! Which rows are wanted.

use regex::{Regex, RegexBuilder};

use crate::grid::{Cell, Row};

/// A regular expression over the texts of a row, or the text itself where it is none.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    typed: String,
    regex: Option<Regex>,
    is_literal: bool,
}

/// Bytes that a compiled expression may take: it is typed by a person.
const SIZE_MAX: usize = 1 << 20;

impl Filter {
    /// What was typed. Capital letters do not matter. Cost of use: linear in the text.
    pub fn new(typed: &str) -> Filter {
        let build = |pattern: &str| {
            let mut builder = RegexBuilder::new(pattern);
            builder.case_insensitive(true).size_limit(SIZE_MAX).build()
        };
        let (regex, is_literal) = match typed {
            "" => (None, false),
            _ => match build(typed) {
                Ok(regex) => (Some(regex), false),
                Err(_) => (build(&regex::escape(typed)).ok(), true),
            },
        };
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
        let Some(regex) = &self.regex else {
            return true;
        };
        let texts = row.cells.iter().filter_map(|cell| match cell {
            Cell::Text(text) => Some(text),
            _ => None,
        });
        texts.into_iter().any(|text| regex.is_match(text))
    }
}
