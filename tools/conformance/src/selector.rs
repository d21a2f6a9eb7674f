//! Whether a directive counts here: `{ target { x86_64-*-* && { ! lp64 } } }`.

use std::fmt;

use crate::directive::words;

/// What is known of the machine, the compiler and the language of a test.
pub trait Facts {
    /// Whether `name` is an effective target here; `None` where that is not known.
    fn effective(&self, name: &str) -> Option<bool>;
    /// The configuration, such as `x86_64-pc-linux-gnu`.
    fn triplet(&self) -> &str;
}

/// A keyword that nobody has taught us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the effective target {:?} is not known to the runner",
            self.0
        )
    }
}

/// Whether the selector in `argument` (`target ...` or `xfail ...`) holds.
///
/// Without such a word the argument is a plain list of targets.
pub fn holds(argument: &str, facts: &dyn Facts) -> Result<bool, Unknown> {
    let all = words(argument);
    match all.first().map(String::as_str) {
        Some("target" | "xfail") => any(&all[1..], facts),
        _ => any(&all, facts),
    }
}

/// A list is true if one of its words is, an expression if it is.
fn any(all: &[String], facts: &dyn Facts) -> Result<bool, Unknown> {
    let is_operator = |word: &String| matches!(word.as_str(), "&&" | "||" | "!");
    if all.iter().any(is_operator) {
        let mut rest = all;
        let value = or(&mut rest, facts)?;
        return Ok(value);
    }
    for word in all {
        if atom(word, facts)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn or(rest: &mut &[String], facts: &dyn Facts) -> Result<bool, Unknown> {
    let mut value = and(rest, facts)?;
    while rest.first().is_some_and(|word| word == "||") {
        *rest = &rest[1..];
        value |= and(rest, facts)?;
    }
    Ok(value)
}

fn and(rest: &mut &[String], facts: &dyn Facts) -> Result<bool, Unknown> {
    let mut value = not(rest, facts)?;
    while rest.first().is_some_and(|word| word == "&&") {
        *rest = &rest[1..];
        value &= not(rest, facts)?;
    }
    Ok(value)
}

fn not(rest: &mut &[String], facts: &dyn Facts) -> Result<bool, Unknown> {
    let Some((first, after)) = rest.split_first() else {
        return Ok(false);
    };
    *rest = after;
    if first == "!" {
        return Ok(!not(rest, facts)?);
    }
    atom(first, facts)
}

fn atom(word: &str, facts: &dyn Facts) -> Result<bool, Unknown> {
    let word = word.trim();
    if word.contains(char::is_whitespace) {
        return any(&words(word), facts);
    }
    if word.contains('-') || word.contains('*') {
        return Ok(matches_glob(word, facts.triplet()));
    }
    // `!x` in one word.
    if let Some(word) = word.strip_prefix('!').filter(|word| !word.is_empty()) {
        return Ok(!atom(word, facts)?);
    }
    facts
        .effective(word)
        .ok_or_else(|| Unknown(word.to_owned()))
}

/// Tcl's `string match` as far as triplets and options need it: `*`, `?`, `[abc]`.
pub fn matches_glob(pattern: &str, text: &str) -> bool {
    let mut expression = String::from("^(?s:");
    for c in pattern.chars() {
        match c {
            '*' => expression.push_str(".*"),
            '?' => expression.push('.'),
            '[' | ']' => expression.push(c),
            c => expression.push_str(&regex::escape(&c.to_string())),
        }
    }
    expression.push_str(")$");
    regex::Regex::new(&expression).is_ok_and(|regex| regex.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Here;

    impl Facts for Here {
        fn effective(&self, name: &str) -> Option<bool> {
            match name {
                "yes" | "c" => Some(true),
                "no" => Some(false),
                _ => None,
            }
        }
        fn triplet(&self) -> &str {
            "x86_64-pc-linux-gnu"
        }
    }

    #[test]
    fn evaluates() {
        for (text, value) in [
            (" target yes ", true),
            (" target no ", false),
            (" target no yes ", true),
            (" target { ! no } ", true),
            (" target { yes && { ! no } } ", true),
            (" target { no || yes } && no ", false),
            (" target no || yes && yes ", true),
            (" target x86_64-*-* i?86-*-* ", true),
            (" target { i?86-*-* && yes } ", false),
            (" *-*-* ", true),
            (" xfail *-*-darwin* ", false),
            ("!no", true),
            ("", false),
        ] {
            assert_eq!(holds(text, &Here), Ok(value), "{text}");
        }
        assert_eq!(holds("target what", &Here), Err(Unknown("what".to_owned())));
    }

    #[test]
    fn globs() {
        assert!(matches_glob("x86_64-*-linux*", "x86_64-pc-linux-gnu"));
        assert!(!matches_glob("x86_64", "x86_64-pc-linux-gnu"));
        assert!(matches_glob("-O[23]", "-O2"));
        assert!(!matches_glob("[", "["), "a damaged pattern matches nothing");
    }
}
