//! Expressions, and times.

use std::collections::BTreeMap;

use super::Result;
use super::lex::{Word, Words};
use crate::program::{STACK, Step, Time, Workload};
use crate::random::Dist;
use crate::time::TIME_MAX;

/// How deep parentheses and blocks may be nested.
pub(super) const NESTING: usize = 64;

/// What names mean in an expression.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub params: BTreeMap<String, i64>,
    /// Variables of the task.
    pub vars: Vec<(String, u8)>,
    /// Numbers that all tasks share.
    pub numbers: Vec<String>,
}

impl Scope {
    fn look_up(&self, name: &str) -> Option<Step> {
        let var = self.vars.iter().rev().find(|(known, _)| known == name);
        let var = var.map(|&(_, var)| Step::Var(var));
        var.or_else(|| self.number(name).map(Step::Number))
            .or_else(|| self.params.get(name).map(|&value| Step::Const(value)))
            .or_else(|| (name == "now").then_some(Step::Now))
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        let at = self.numbers.iter().position(|known| known == name)?;
        Some(at as u32)
    }

    fn known(&self) -> String {
        let names: Vec<&str> = self
            .vars
            .iter()
            .map(|(name, _)| name.as_str())
            .chain(self.numbers.iter().map(String::as_str))
            .chain(self.params.keys().map(String::as_str))
            .collect();
        if names.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        }
    }
}

/// Steps of an expression; constants are worked out.
pub(super) fn expression(words: &mut Words, scope: &Scope) -> Result<Vec<Step>> {
    let steps = level(words, scope, 0, 0)?;
    if depth(&steps) > STACK {
        return Err(words.error("the expression is too deep: use a variable in between"));
    }
    Ok(steps)
}

/// An expression without variables.
pub(super) fn constant(words: &mut Words, scope: &Scope) -> Result<i64> {
    match expression(words, scope)?.as_slice() {
        [Step::Const(value)] => Ok(*value),
        _ => Err(words.error("this must be the same for all tasks: numbers and parameters only")),
    }
}

const LEVELS: [&[(&str, Step)]; 5] = [
    &[("||", Step::Or)],
    &[("&&", Step::And)],
    &[
        ("<=", Step::Le),
        (">=", Step::Le),
        ("==", Step::Eq),
        ("!=", Step::Eq),
        ("<", Step::Lt),
        (">", Step::Lt),
    ],
    &[("+", Step::Add), ("-", Step::Sub)],
    &[("*", Step::Mul), ("/", Step::Div), ("%", Step::Rem)],
];

fn level(words: &mut Words, scope: &Scope, at: usize, nesting: usize) -> Result<Vec<Step>> {
    if nesting > NESTING {
        return Err(words.error("the expression is nested too deep"));
    }
    if at == LEVELS.len() {
        return unary(words, scope, nesting);
    }
    let mut left = level(words, scope, at + 1, nesting)?;
    while let Some(&(sign, step)) = LEVELS[at].iter().find(|(sign, _)| words.is_next(sign)) {
        words.eat(sign);
        let right = level(words, scope, at + 1, nesting)?;
        left = match sign {
            ">" | ">=" => joined(right, left, step),
            _ => joined(left, right, step),
        };
        if sign == "!=" {
            left = folded(left, Step::Not);
        }
    }
    Ok(left)
}

fn unary(words: &mut Words, scope: &Scope, nesting: usize) -> Result<Vec<Step>> {
    if words.eat("-") {
        let value = level(words, scope, LEVELS.len(), nesting + 1)?;
        return Ok(joined(vec![Step::Const(0)], value, Step::Sub));
    }
    if words.eat("!") {
        let value = level(words, scope, LEVELS.len(), nesting + 1)?;
        return Ok(folded(value, Step::Not));
    }
    if words.eat("(") {
        let value = level(words, scope, 0, nesting + 1)?;
        words.expect(")")?;
        return Ok(value);
    }
    match words.peek().cloned() {
        Some(Word::Number(number)) => {
            words.next();
            Ok(vec![Step::Const(number)])
        }
        Some(Word::Name(name)) if name == "random" => {
            words.next();
            words.expect("(")?;
            let mut value = level(words, scope, 0, nesting + 1)?;
            words.expect(")")?;
            value.push(Step::Random);
            Ok(value)
        }
        Some(Word::Name(name)) => {
            let Some(step) = scope.look_up(&name) else {
                let known = scope.known();
                return Err(words.error(format!(
                    "there is no parameter or variable `{name}`; {known}"
                )));
            };
            words.next();
            Ok(vec![step])
        }
        _ => Err(words.unexpected("a number, a parameter or a variable")),
    }
}

fn joined(mut left: Vec<Step>, right: Vec<Step>, step: Step) -> Vec<Step> {
    if let ([Step::Const(a)], [Step::Const(b)]) = (left.as_slice(), right.as_slice()) {
        return vec![Step::Const(crate::engine::binary(step, *a, *b))];
    }
    left.extend(right);
    left.push(step);
    left
}

fn folded(mut value: Vec<Step>, step: Step) -> Vec<Step> {
    if let [Step::Const(a)] = value.as_slice() {
        return vec![Step::Const(i64::from(*a == 0))];
    }
    value.push(step);
    value
}

fn depth(steps: &[Step]) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for step in steps {
        match step {
            Step::Const(_) | Step::Var(_) | Step::Number(_) | Step::Now => now += 1,
            Step::Random | Step::Not => {}
            _ => now -= 1,
        }
        most = most.max(now);
    }
    most
}

/// A time: a distribution, `job`, or an expression in nanoseconds.
pub(super) fn time(words: &mut Words, scope: &Scope, w: &mut Workload) -> Result<Time> {
    if let Some(Word::Name(name)) = words.peek()
        && name == "job"
    {
        words.next();
        return Ok(Time::Job);
    }
    if let Some(dist) = distribution(words, scope)? {
        return Ok(Time::Dist(dist));
    }
    let steps = expression(words, scope)?;
    if let [Step::Const(ns)] = *steps.as_slice() {
        return Ok(Time::Dist(Dist::Const(in_range(ns, words)?)));
    }
    Ok(Time::Val(w.expression(&steps)))
}

/// A time that needs no task: a distribution or a constant.
pub(super) fn fixed_time(words: &mut Words, scope: &Scope) -> Result<Dist> {
    if let Some(dist) = distribution(words, scope)? {
        return Ok(dist);
    }
    let ns = constant(words, scope)?;
    Ok(Dist::Const(in_range(ns, words)?))
}

fn in_range(ns: i64, words: &Words) -> Result<u64> {
    match u64::try_from(ns) {
        Ok(ns) if ns <= TIME_MAX => Ok(ns),
        _ => Err(words.error(format!(
            "a time of {ns} ns: it must be within 0 and 100 days"
        ))),
    }
}

fn distribution(words: &mut Words, scope: &Scope) -> Result<Option<Dist>> {
    let name = match words.peek() {
        Some(Word::Name(name)) => name.clone(),
        _ => return Ok(None),
    };
    let takes = match name.as_str() {
        "exp" => 1,
        "uniform" | "normal" | "pareto" => 2,
        "rare" => 3,
        _ => return Ok(None),
    };
    words.next();
    words.expect("(")?;
    let mut values = vec![];
    for i in 0..takes {
        if i > 0 {
            words.expect(",")?;
        }
        let value = constant(words, scope)?;
        values.push(in_range(value, words)?);
    }
    words.expect(")")?;
    let dist = match (name.as_str(), values.as_slice()) {
        ("exp", &[mean]) => Dist::Exp(mean),
        ("uniform", &[low, high]) if low <= high => Dist::Uniform(low, high),
        ("uniform", _) => return Err(words.error("uniform(least, most): the first one is larger")),
        ("normal", &[mean, deviation]) => Dist::Normal(mean, deviation),
        ("pareto", &[least, shape @ 1..=1_000_000]) => Dist::Pareto(least, shape as u32),
        ("pareto", _) => {
            return Err(
                words.error("pareto(least, shape): the shape is in thousandths, 1 to 1000000")
            );
        }
        ("rare", &[usual, rare, ppm @ 0..=1_000_000]) => Dist::Bimodal(usual, rare, ppm as u32),
        _ => return Err(words.error("rare(usual, rare, how often): the last one is of a million")),
    };
    Ok(Some(dist))
}
