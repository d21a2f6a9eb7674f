//! The directives that a test of GCC's suite has in its comments: `{ dg-NAME argument... }`.
//!
//! DejaGnu evaluates them as Tcl; what tests use of that is words, quotes, braces and
//! backslashes, which is what is read here.

/// One directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// Its name without `dg-`.
    pub name: String,
    /// Its arguments; what was in braces is still a list.
    pub arguments: Vec<String>,
}

/// All directives of a file, in their order: at most one a line, as DejaGnu has it.
pub fn directives(source: &str) -> Vec<Directive> {
    source.lines().filter_map(of_line).collect()
}

fn of_line(line: &str) -> Option<Directive> {
    let begin = line
        .match_indices('{')
        .map(|(at, _)| at + 1)
        .find(|&at| line[at..].trim_start().starts_with("dg-"))?;
    // Up to the last brace of the line, so that arguments may have braces of their own.
    let end = line.rfind('}').filter(|&end| end >= begin)?;
    let mut words = words(&line[begin..end]).into_iter();
    let name = words.next()?;
    Some(Directive {
        name: name.strip_prefix("dg-")?.to_owned(),
        arguments: words.collect(),
    })
}

/// The words of a Tcl list: bare, `"quoted"` with backslashes replaced, `{braced}` as they are.
pub fn words(list: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = list.trim_start().chars();
    while let Some(first) = rest.clone().next() {
        let mut word = String::new();
        match first {
            '"' => {
                rest.next();
                while let Some(c) = rest.next() {
                    match c {
                        '"' => break,
                        '\\' => word.extend(escaped(rest.next())),
                        _ => word.push(c),
                    }
                }
            }
            '{' => {
                rest.next();
                let mut depth = 1;
                while let Some(c) = rest.next() {
                    match c {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                    word.push(c);
                    // Braces that are escaped do not count, and stay escaped.
                    if c == '\\' {
                        word.extend(rest.next());
                    }
                }
            }
            _ => {
                while let Some(c) = rest.clone().next() {
                    if c.is_whitespace() {
                        break;
                    }
                    rest.next();
                    match c {
                        '\\' => word.extend(escaped(rest.next())),
                        _ => word.push(c),
                    }
                }
            }
        }
        words.push(word);
        rest = rest.as_str().trim_start().chars();
    }
    words
}

fn escaped(c: Option<char>) -> Option<char> {
    Some(match c? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        c => c,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> (String, Vec<String>) {
        let mut all = directives(line);
        assert_eq!(all.len(), 1, "{line}");
        let directive = all.remove(0);
        (directive.name, directive.arguments)
    }

    #[test]
    fn reads_what_tests_write() {
        let (name, arguments) = one("/* { dg-do run } */");
        assert_eq!((name.as_str(), arguments), ("do", vec!["run".to_owned()]));
        let (name, arguments) = one(r#"// { dg-options "-O0 -DX=\"a b\"" { target c++ } }"#);
        assert_eq!(name, "options");
        assert_eq!(arguments, [r#"-O0 -DX="a b""#, " target c++ "]);
        let (name, arguments) =
            one(r#"! { dg-output "L:0 A:\[0-9\]+(\n|\r\n|\r)$" { target { ! x } } }"#);
        assert_eq!(name, "output");
        assert_eq!(arguments, ["L:0 A:[0-9]+(\n|\r\n|\r)$", " target { ! x } "]);
        let (_, arguments) = one("/* {dg-set-target-env-var OMP_PLACES \"{0:2}\"} */");
        assert_eq!(arguments, ["OMP_PLACES", "{0:2}"]);
    }

    #[test]
    fn leaves_the_rest_alone() {
        assert!(directives("int main () { return dg; }\n#pragma omp for\n").is_empty());
        assert!(directives("{ dg-do run").is_empty());
        assert!(directives("} { dg-").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[ -~\n{}\\\\\"é]{0,80}") {
            for directive in directives(&text) {
                for argument in &directive.arguments {
                    words(argument);
                }
            }
        }
    }
}
