//! JSON as rt-app's files have it: comments, commas before a closing bracket, and keys that come several times and
//! in an order that matters. Each value knows its line.

use super::{Result, WorkloadError};

const DEPTH_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub line: usize,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(#[allow(dead_code)] bool),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    pub fn error(&self, message: impl Into<String>) -> WorkloadError {
        WorkloadError::new(Some(self.line), message)
    }

    pub fn object(&self, what: &str) -> Result<&[(String, Node)]> {
        match &self.value {
            Value::Object(fields) => Ok(fields),
            _ => Err(self.error(format!("{what} must be an object"))),
        }
    }

    /// The last of that name.
    pub fn get(&self, name: &str) -> Option<&Node> {
        let Value::Object(fields) = &self.value else {
            return None;
        };
        fields
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, node)| node)
    }

    pub fn text(&self, what: &str) -> Result<&str> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.error(format!("{what} must be a text"))),
        }
    }

    /// A whole number within bounds.
    pub fn integer(&self, what: &str, min: i64, max: i64) -> Result<i64> {
        match self.value {
            Value::Number(number)
                if number.fract() == 0.0 && number >= min as f64 && number <= max as f64 =>
            {
                Ok(number as i64)
            }
            _ => Err(self.error(format!("{what} must be a whole number from {min} to {max}"))),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Node> {
    let mut parser = Parser {
        rest: text,
        line: 1,
    };
    let node = parser.value(0)?;
    parser.blanks()?;
    if parser.rest.is_empty() {
        Ok(node)
    } else {
        Err(parser.unexpected("the end of the file"))
    }
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
}

impl Parser<'_> {
    fn error(&self, message: impl Into<String>) -> WorkloadError {
        WorkloadError::new(Some(self.line), message)
    }

    fn unexpected(&self, expected: &str) -> WorkloadError {
        let found = self
            .rest
            .chars()
            .next()
            .map_or("the end of the file".to_owned(), |c| {
                format!("`{}`", c.escape_debug())
            });
        self.error(format!("expected {expected}, found {found}"))
    }

    fn skip(&mut self, bytes: usize) {
        let (gone, rest) = self.rest.split_at(bytes);
        self.line += gone.bytes().filter(|&byte| byte == b'\n').count();
        self.rest = rest;
    }

    fn blanks(&mut self) -> Result<()> {
        loop {
            self.skip(self.rest.len() - self.rest.trim_start().len());
            if self.rest.starts_with("//") {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                match self.rest.find("*/") {
                    Some(end) => self.skip(end + 2),
                    None => return Err(self.error("a comment begins here that does not end")),
                }
            } else {
                return Ok(());
            }
        }
    }

    fn eat(&mut self, sign: char) -> Result<bool> {
        self.blanks()?;
        let is_next = self.rest.starts_with(sign);
        if is_next {
            self.skip(sign.len_utf8());
        }
        Ok(is_next)
    }

    fn value(&mut self, depth: usize) -> Result<Node> {
        if depth > DEPTH_MAX {
            return Err(self.error("the file is nested too deep"));
        }
        self.blanks()?;
        let line = self.line;
        let value = if self.eat('{')? {
            let mut fields = vec![];
            while !self.eat('}')? {
                if !self.rest.starts_with('"') {
                    return Err(self.unexpected("a name in quotes, or `}`"));
                }
                let name = self.string()?;
                if !self.eat(':')? {
                    return Err(self.unexpected("`:`"));
                }
                fields.push((name, self.value(depth + 1)?));
                self.comma('}')?;
            }
            Value::Object(fields)
        } else if self.eat('[')? {
            let mut items = vec![];
            while !self.eat(']')? {
                items.push(self.value(depth + 1)?);
                self.comma(']')?;
            }
            Value::List(items)
        } else if self.rest.starts_with('"') {
            Value::Text(self.string()?)
        } else {
            let end = self
                .rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))
                .unwrap_or(self.rest.len());
            let word = &self.rest[..end];
            let value = match word.to_ascii_lowercase().as_str() {
                "null" => Value::Null,
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                _ => match word.parse::<f64>() {
                    Ok(number)
                        if number.is_finite()
                            && word.starts_with(|c: char| c.is_ascii_digit() || c == '-') =>
                    {
                        Value::Number(number)
                    }
                    _ => return Err(self.unexpected("a value")),
                },
            };
            self.skip(end);
            value
        };
        Ok(Node { line, value })
    }

    /// A comma, which may be left out before the closing bracket.
    fn comma(&mut self, close: char) -> Result<()> {
        if self.eat(',')? || self.rest.starts_with(close) {
            return Ok(());
        }
        Err(self.unexpected(&format!("`,` or `{close}`")))
    }

    fn string(&mut self) -> Result<String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.skip(at + 1);
                    return Ok(text);
                }
                '\n' => break,
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, c @ ('"' | '\\' | '/'))) => text.push(c),
                    _ => return Err(self.error("an escape that is not known")),
                },
                c => text.push(c),
            }
        }
        Err(self.error("a text begins here that does not end on its line"))
    }
}
