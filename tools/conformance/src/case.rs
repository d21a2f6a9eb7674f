//! What a test's directives mean here: how it is compiled and run, or why it is not.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::directive::{Directive, directives, words};
use crate::selector::{Facts, Unknown, holds, matches_glob};

/// The language that a test is compiled as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Language {
    /// By gcc.
    C,
    /// By g++, also what has C's ending.
    #[serde(rename = "C++")]
    Cxx,
    /// By gfortran.
    Fortran,
}

impl Language {
    /// Its compiler, of the version that the suite belongs to.
    pub fn compiler(self) -> &'static str {
        match self {
            Language::C => "gcc-12",
            Language::Cxx => "g++-12",
            Language::Fortran => "gfortran-12",
        }
    }
}

/// How a test is built and run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipe {
    /// Options of the compiler.
    pub options: Vec<String>,
    /// More source files, beside the test.
    pub sources: Vec<String>,
    /// Environment of the program.
    pub environment: BTreeMap<String, String>,
    /// The program has to fail.
    pub should_fail: bool,
    /// A regular expression that its output has to match.
    pub output: Option<String>,
    /// Its time limit, relative to the usual one.
    pub timeout_factor: f64,
}

/// Why a test is not run. Each is said in the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// It only has to compile (or not): nothing of the runtime is in it.
    CompileOnly,
    /// It is for another machine, or needs something that is not here.
    Needs(String),
    /// The suite says so; with its reason, which may be empty: what only stands beside another test.
    LeftOut(String),
    /// GCC expects its own runtime to fail.
    ExpectedToFail,
    /// A directive that is not understood.
    Unknown(String),
}

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Skip::CompileOnly => f.write_str("only has to compile"),
            Skip::Needs(what) => write!(f, "needs {what}"),
            Skip::LeftOut(why) if why.is_empty() => f.write_str("the suite leaves it out"),
            Skip::LeftOut(why) => write!(f, "the suite leaves it out: {why}"),
            Skip::ExpectedToFail => f.write_str("GCC expects it to fail"),
            Skip::Unknown(what) => f.write_str(what),
        }
    }
}

impl From<Unknown> for Skip {
    fn from(unknown: Unknown) -> Skip {
        Skip::Unknown(unknown.to_string())
    }
}

/// Reads the directives of a test, of `language`, on the machine that `facts` tells of.
pub fn recipe(source: &str, language: Language, facts: &dyn Facts) -> Result<Recipe, Skip> {
    let mut options: Option<Vec<String>> = None;
    let mut additional = Vec::new();
    let mut recipe = Recipe {
        timeout_factor: 1.0,
        ..Recipe::default()
    };
    let all = directives(source);
    for Directive { name, arguments } in &all {
        let argument = |at: usize| arguments.get(at).map_or("", String::as_str);
        // Most take a text and then whom it is for.
        let applies = || match arguments.get(1) {
            Some(selector) => holds(selector, facts),
            None => Ok(true),
        };
        match name.as_str() {
            "do" => {
                match argument(0) {
                    "run" => {}
                    _ => return Err(Skip::CompileOnly),
                }
                let selector = argument(1).trim();
                if selector.starts_with("xfail") {
                    if holds(selector, facts)? {
                        return Err(Skip::ExpectedToFail);
                    }
                } else if !applies()? {
                    return Err(Skip::Needs(selector.to_owned()));
                }
            }
            "options" if applies()? => options = Some(words(argument(0))),
            "additional-options" if applies()? => additional.extend(words(argument(0))),
            "additional-sources" => recipe.sources.extend(words(argument(0))),
            "set-target-env-var" => {
                recipe
                    .environment
                    .insert(argument(0).to_owned(), argument(1).to_owned());
            }
            "require-effective-target" => {
                if !applies()? {
                    continue;
                }
                let wanted = argument(0);
                match facts.effective(wanted) {
                    Some(true) => {}
                    Some(false) => return Err(Skip::Needs(wanted.to_owned())),
                    None => return Err(Unknown(wanted.to_owned()).into()),
                }
            }
            "shouldfail" if applies()? => recipe.should_fail = true,
            "output" if applies()? => {
                recipe
                    .output
                    .get_or_insert_default()
                    .push_str(&tcl_expression(argument(0)));
            }
            "timeout-factor" => recipe.timeout_factor = argument(0).parse().unwrap_or(1.0),
            "xfail-run-if" if applies()? => return Err(Skip::ExpectedToFail),
            _ => {}
        }
    }
    // Optimised unless it says otherwise; DejaGnu has several levels for Fortran.
    let level = || vec!["-O2".to_owned()];
    recipe.options = match (options, language) {
        (None, _) => level(),
        (Some(mut given), Language::Fortran) => {
            if !given.iter().any(|option| option.starts_with("-O")) {
                given.extend(level());
            }
            given
        }
        (Some(given), _) => given,
    };
    recipe.options.extend(additional);
    for Directive { name, arguments } in &all {
        let [why, whom, which @ ..] = arguments.as_slice() else {
            continue;
        };
        if name == "skip-if" && holds(whom, facts)? && concerns(which, &recipe.options) {
            return Err(Skip::LeftOut(why.clone()));
        }
    }
    Ok(recipe)
}

/// Whether a `dg-skip-if` is about these options: its list of those that are, and of those that are not.
fn concerns(which: &[String], options: &[String]) -> bool {
    let matches = |list: &str| {
        words(list).iter().any(|pattern| {
            pattern == "*" || options.iter().any(|option| matches_glob(pattern, option))
        })
    };
    let included = which.first().is_none_or(|list| matches(list));
    let excluded = which
        .get(1)
        .is_some_and(|list| !list.trim().is_empty() && matches(list));
    included && !excluded
}

/// What Tcl writes otherwise than the `regex` crate does.
fn tcl_expression(text: &str) -> String {
    // A brace that begins no repetition is itself in Tcl.
    let mut expression = String::new();
    let mut rest = text.chars().peekable();
    let mut is_repetition = false;
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                expression.push(c);
                expression.extend(rest.next());
            }
            '{' => {
                is_repetition = rest.peek().is_some_and(char::is_ascii_digit);
                if !is_repetition {
                    expression.push('\\');
                }
                expression.push(c);
            }
            '}' => {
                if !is_repetition {
                    expression.push('\\');
                }
                is_repetition = false;
                expression.push(c);
            }
            _ => expression.push(c),
        }
    }
    expression
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Here;

    impl Facts for Here {
        fn effective(&self, name: &str) -> Option<bool> {
            match name {
                "tls_runtime" | "c" => Some(true),
                "offload_device" | "c++" => Some(false),
                _ => None,
            }
        }
        fn triplet(&self) -> &str {
            "x86_64-pc-linux-gnu"
        }
    }

    fn c(source: &str) -> Result<Recipe, Skip> {
        recipe(source, Language::C, &Here)
    }

    #[test]
    fn a_test_without_directives_is_run() {
        let recipe = c("int main (void) { return 0; }").expect("run");
        assert_eq!(recipe.options, ["-O2"]);
        assert!(!recipe.should_fail && recipe.output.is_none());
    }

    #[test]
    fn options_replace_and_add() {
        let recipe = c("/* { dg-do run } */\n\
             /* { dg-options \"-O3 -std=gnu99\" { target c } } */\n\
             /* { dg-options \"-O1\" { target c++ } } */\n\
             /* { dg-additional-options \"-lm\" } */\n\
             /* { dg-set-target-env-var OMP_DYNAMIC \"true\" } */\n\
             /* { dg-shouldfail \"why\" } */\n")
        .expect("run");
        assert_eq!(recipe.options, ["-O3", "-std=gnu99", "-lm"]);
        assert_eq!(recipe.environment["OMP_DYNAMIC"], "true");
        assert!(recipe.should_fail);
    }

    #[test]
    fn fortran_is_optimised_unless_it_says() {
        let of = |source| {
            recipe(source, Language::Fortran, &Here)
                .expect("run")
                .options
        };
        assert_eq!(of("! { dg-options \"-cpp\" }"), ["-cpp", "-O2"]);
        assert_eq!(of("! { dg-options \"-O0\" }"), ["-O0"]);
    }

    #[test]
    fn what_is_left_out_has_its_reason() {
        assert_eq!(c("/* { dg-do compile } */"), Err(Skip::CompileOnly));
        assert_eq!(
            c("/* { dg-do run { target offload_device } } */"),
            Err(Skip::Needs("target offload_device".to_owned()))
        );
        assert_eq!(
            c("/* { dg-require-effective-target offload_device } */"),
            Err(Skip::Needs("offload_device".to_owned()))
        );
        assert!(matches!(
            c("/* { dg-require-effective-target of_nobody } */"),
            Err(Skip::Unknown(_))
        ));
        assert_eq!(
            c("/* { dg-xfail-run-if \"why\" { *-*-linux* } } */"),
            Err(Skip::ExpectedToFail)
        );
        assert!(c("/* { dg-xfail-run-if \"why\" { *-*-darwin* } } */").is_ok());
        assert!(c("/* { dg-do run { xfail *-*-darwin* } } */").is_ok());
        assert!(c("/* { dg-require-effective-target tls_runtime } */").is_ok());
    }

    #[test]
    fn skips_by_options() {
        let test = |which| {
            c(&format!(
                "/* {{ dg-skip-if \"why\" {{ *-*-* }} {which} }} */"
            ))
        };
        assert!(test("").is_err());
        assert!(test("{ \"*\" } { \"\" }").is_err());
        assert!(test("{ \"*\" } { \"-O2\" }").is_ok());
        assert!(test("{ \"-O0\" } { \"\" }").is_ok());
    }

    #[test]
    fn outputs_add_up_to_one_expression() {
        let recipe = c("/* { dg-output \"a {x}:(\\n|\\r\\n|\\r)\" } */\n\
             /* { dg-output \"x\\[0-9\\]{2}$\" } */")
        .expect("run");
        let regex = regex::Regex::new(&recipe.output.expect("one")).expect("an expression");
        assert!(regex.is_match("a {x}:\nx12"));
        assert!(!regex.is_match("a {x}:\nx1"));
    }
}
