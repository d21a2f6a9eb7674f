//! Programs and expressions to words.

use super::{Origin, Result, WorkloadError};
use crate::time;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Name(String),
    Number(i64),
    /// An operator, bracket or comma.
    Sign(&'static str),
    /// The end of a line, or `;`.
    Stop,
}

impl Word {
    fn show(&self) -> String {
        match self {
            Word::Name(name) => format!("`{name}`"),
            Word::Number(number) => format!("`{number}`"),
            Word::Sign(sign) => format!("`{sign}`"),
            Word::Stop => "the end of the line".to_owned(),
        }
    }
}

const SIGNS: [&str; 22] = [
    "<=", ">=", "==", "!=", "&&", "||", "<", ">", "+", "-", "*", "/", "%", "!", "(", ")", "[", "]",
    "{", "}", ",", "=",
];

/// Words one after the other, with their lines.
pub(super) struct Words {
    words: Vec<(Word, usize)>,
    at: usize,
    last: usize,
}

impl Words {
    pub fn new(text: &str, origin: Origin) -> Result<Words> {
        let mut words = vec![];
        let (mut at, mut line) = (0, origin.line(text, 0));
        while let Some(c) = text[at..].chars().next() {
            let rest = &text[at..];
            if c == '\n' || c == ';' {
                words.push((Word::Stop, line));
                line += usize::from(c == '\n');
                at += 1;
            } else if c.is_whitespace() {
                at += c.len_utf8();
            } else if c == '#' {
                at += rest.find('\n').unwrap_or(rest.len());
            } else if c.is_ascii_digit()
                || (c == '.' && rest[1..].starts_with(|d: char| d.is_ascii_digit()))
            {
                let end = rest
                    .find(|c: char| !(c.is_alphanumeric() || c == '.'))
                    .unwrap_or(rest.len());
                let number = number(&rest[..end])
                    .map_err(|message| WorkloadError::new(Some(line), message))?;
                words.push((Word::Number(number), line));
                at += end;
            } else if c.is_alphabetic() || c == '_' {
                let end = rest
                    .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'))
                    .unwrap_or(rest.len());
                words.push((Word::Name(rest[..end].to_owned()), line));
                at += end;
            } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                words.push((Word::Sign(sign), line));
                at += sign.len();
            } else {
                return Err(WorkloadError::new(
                    Some(line),
                    format!("`{}` means nothing here", c.escape_debug()),
                ));
            }
        }
        Ok(Words {
            words,
            at: 0,
            last: line,
        })
    }

    pub fn line(&self) -> usize {
        self.words.get(self.at).map_or(self.last, |(_, line)| *line)
    }

    pub fn peek(&self) -> Option<&Word> {
        self.words.get(self.at).map(|(word, _)| word)
    }

    pub fn is_next(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Word::Sign(next)) if *next == sign)
    }

    pub fn next(&mut self) -> Option<Word> {
        let word = self.peek().cloned();
        self.at += 1;
        word
    }

    /// Goes past a sign if it is there.
    pub fn eat(&mut self, sign: &str) -> bool {
        let is_next = self.is_next(sign);
        self.at += usize::from(is_next);
        is_next
    }

    /// Goes past a name if it is there.
    pub fn eat_name(&mut self, name: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Word::Name(next)) if next == name);
        self.at += usize::from(is_next);
        is_next
    }

    pub fn skip_stops(&mut self) {
        while self.peek() == Some(&Word::Stop) {
            self.at += 1;
        }
    }

    pub fn expect(&mut self, sign: &str) -> Result<()> {
        if self.eat(sign) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("`{sign}`")))
        }
    }

    pub fn name(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Word::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    pub fn unexpected(&self, expected: &str) -> WorkloadError {
        let found = self.peek().map_or("the end".to_owned(), Word::show);
        self.error(format!("expected {expected}, found {found}"))
    }

    pub fn error(&self, message: impl Into<String>) -> WorkloadError {
        WorkloadError::new(Some(self.line()), message)
    }
}

/// A plain number, a time (in nanoseconds), or a size with k, M or G (powers of 1024).
fn number(text: &str) -> std::result::Result<i64, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| format!("{text} is too large"));
    }
    for (unit, shift) in [("k", 10), ("M", 20), ("G", 30)] {
        if let Some(digits) = text.strip_suffix(unit)
            && digits.bytes().all(|byte| byte.is_ascii_digit())
        {
            let number: i64 = digits.parse().map_err(|_| format!("{text} is too large"))?;
            return number
                .checked_mul(1 << shift)
                .ok_or_else(|| format!("{text} is too large"));
        }
    }
    time::parse(text).map(|ns| ns as i64)
}
