//! Statements of programs to operations.

use std::collections::BTreeMap;

use toml::Spanned;

use super::expression::{NESTING, Scope, constant, expression, time};
use super::file::{File, Number, TaskEntry, TeamEntry};
use super::lex::{Word, Words};
use super::objects::{Names, OBJECTS_MAX, Reader, declare};
use super::{Origin, Result, WorkloadError};
use crate::program::{
    Change, Element, Kind, Level, NONE, Object, Op, Page, Step, TeamSpec, Template, Time,
    VAR_COUNT, VAR_INDEX, VAR_JOB, VARS_FREE, Val, Workload,
};
use crate::random::Dist;
use crate::time::Ns;

/// Most operations of all programs.
const OPS_MAX: usize = 1 << 20;

/// Most variables of a task, and the first number beyond those of stopwatches.
const VARS_MAX: u8 = 100;
const STOPWATCHES: u8 = 200;

pub(super) fn compile(text: &str, file: File, set: &BTreeMap<String, String>) -> Result<Workload> {
    let params = params(text, &file.params, set)?;
    let mut reader = Reader {
        text,
        scope: Scope {
            params: params.clone(),
            ..Scope::default()
        },
    };
    let mut w = Workload {
        name: file.name.clone(),
        params,
        ..Workload::default()
    };
    if let Some(duration) = &file.duration {
        let ns = reader.time(&file.duration, 0)?;
        if ns == 0 {
            return Err(reader.error(duration.span().start, "the duration must be more than 0"));
        }
        w.duration = Some(ns);
    }
    w.level = match file.level.as_ref().map(|level| level.get_ref().as_str()) {
        None | Some("threads") => Level::Threads,
        Some("jobs") => Level::Jobs,
        Some(other) => {
            let at = file.level.as_ref().map_or(0, |level| level.span().start);
            let message = format!("tasks are no `{other}`: there are threads and jobs");
            return Err(reader.error(at, message));
        }
    };
    let names = declare(&reader, &file, &mut w)?;
    let kinds: BTreeMap<String, u32> = file
        .tasks
        .iter()
        .zip(0..)
        .map(|(task, i)| (task.get_ref().name.clone(), i))
        .collect();
    if kinds.len() < file.tasks.len() {
        return Err(WorkloadError::new(
            None,
            "two kinds of tasks have the same name",
        ));
    }
    if file.teams.len() > TEAMS_MAX {
        let message = format!("more than {TEAMS_MAX} teams");
        return Err(WorkloadError::new(None, message));
    }
    for team in file.teams.values() {
        w.teams.push(read_team(&reader, team, &kinds)?);
    }
    let teams: Vec<&str> = file.teams.keys().map(String::as_str).collect();
    for number in file.numbers.values() {
        let value = match number.get_ref() {
            Number::Plain(value) => *value,
            Number::Text(inner) => value(inner, Origin::of(text, number.span()), &reader.scope)?,
        };
        w.numbers.push(value);
    }
    reader.scope.numbers = file.numbers.keys().cloned().collect();
    let built_in = [("index", VAR_INDEX), ("count", VAR_COUNT), ("job", VAR_JOB)];
    reader.scope.vars = built_in.map(|(name, var)| (name.to_owned(), var)).to_vec();
    let mut vars = usize::from(VARS_FREE);
    for task in &file.tasks {
        let template = template(&reader, task, &mut w)?;
        w.templates.push(template);
        let program = &task.get_ref().program;
        let mut compiler = Compiler {
            words: reader.words(program)?,
            scope: reader.scope.clone(),
            names: &names,
            kinds: &kinds,
            teams: &teams,
            w: &mut w,
            free: VARS_FREE,
            most: VARS_FREE,
            stopwatches: vec![],
        };
        compiler.block(0, None)?;
        compiler.op(Op::Exit)?;
        let all = usize::from(compiler.most) + compiler.stopwatches.len();
        let most = compiler.most;
        let entry = w.templates[w.templates.len() - 1].entry as usize;
        for op in &mut w.ops[entry..] {
            if let Op::Start { var }
            | Op::Stop { var, .. }
            | Op::Period { var, .. }
            | Op::Set { var, .. } = op
                && *var >= VARS_MAX
            {
                *var = most + (STOPWATCHES - 1 - *var);
            }
        }
        vars = vars.max(all);
    }
    w.vars = vars;
    for change in &file.changes {
        let (at, change) = (change.span().start, change.get_ref());
        if change.at.is_none() {
            return Err(reader.error(at, "a change needs `at`: when"));
        }
        let when = reader.time(&change.at, 0)?;
        let what = match (
            &change.offline,
            &change.online,
            &change.cpus,
            &change.frequency,
        ) {
            (Some(cpus), None, None, None) => Change::Offline(mask(&reader, cpus, &mut w)?),
            (None, Some(cpus), None, None) => Change::Online(mask(&reader, cpus, &mut w)?),
            (None, None, Some(cpus), Some(_)) => {
                let permille = reader.number(&change.frequency, 1000, 1, 10_000)?;
                Change::Frequency(mask(&reader, cpus, &mut w)?, permille as u32)
            }
            _ => {
                return Err(reader.error(
                    at,
                    "a change has `offline`, `online`, or `cpus` with `frequency`",
                ));
            }
        };
        w.changes.push((when, what));
    }
    w.changes.sort_by_key(|&(at, _)| at);
    Ok(w)
}

/// Parameters may be made of other ones.
fn params(
    text: &str,
    given: &BTreeMap<String, Spanned<Number>>,
    set: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, i64>> {
    for name in set.keys() {
        if !given.contains_key(name) {
            let known: Vec<&str> = given.keys().map(String::as_str).collect();
            let known = if known.is_empty() {
                "it has none".to_owned()
            } else {
                format!("it has {}", known.join(", "))
            };
            return Err(WorkloadError::new(
                None,
                format!("the workload has no parameter `{name}`; {known}"),
            ));
        }
    }
    let mut scope = Scope::default();
    let mut left: Vec<&String> = given.keys().collect();
    loop {
        let before = left.len();
        let mut failure = None;
        left.retain(|&name| {
            let field = &given[name];
            let value = match (set.get(name), field.get_ref()) {
                (None, Number::Plain(value)) => Ok(*value),
                (Some(text), _) => value(text, Origin::of("", 0..0), &scope).map_err(|error| {
                    WorkloadError::new(None, format!("--set {name}={text}: {}", error.message))
                }),
                (None, Number::Text(inner)) => value(inner, Origin::of(text, field.span()), &scope),
            };
            match value {
                Ok(value) => {
                    scope.params.insert(name.clone(), value);
                    false
                }
                Err(error) => {
                    failure.get_or_insert(error);
                    true
                }
            }
        });
        match failure {
            None => return Ok(scope.params),
            Some(error) if left.len() == before => return Err(error),
            Some(_) => {}
        }
    }
}

fn value(text: &str, origin: Origin, scope: &Scope) -> Result<i64> {
    let mut words = Words::new(text, origin)?;
    let value = constant(&mut words, scope)?;
    if words.peek().is_some() {
        return Err(words.unexpected("the end of the text"));
    }
    Ok(value)
}

fn mask(reader: &Reader, cpus: &Spanned<String>, w: &mut Workload) -> Result<u32> {
    let set = cpus.get_ref().parse().map_err(|error| {
        reader.error(
            cpus.span().start,
            format!("CPUs `{}`: {error}", cpus.get_ref()),
        )
    })?;
    w.masks.push(set);
    Ok(w.masks.len() as u32 - 1)
}

fn template(reader: &Reader, task: &Spanned<TaskEntry>, w: &mut Workload) -> Result<Template> {
    let entry = task.get_ref();
    let start = reader.dist(&entry.start, Dist::Const(0))?;
    let node = match &entry.node {
        None => None,
        field => Some(reader.number(field, 0, 0, 65_535)? as u32),
    };
    Ok(Template {
        name: entry.name.clone(),
        count: reader.number(&task.get_ref().count, 1, 0, OBJECTS_MAX)? as u32,
        entry: w.ops.len() as u32,
        start: Time::Dist(start),
        is_daemon: entry.daemon,
        is_process: !entry.threads,
        nice: reader.number(&entry.nice, 0, -20, 19)? as i8,
        mask: entry
            .cpus
            .as_ref()
            .map(|cpus| mask(reader, cpus, w))
            .transpose()?,
        node,
        memory_permille: reader.number(&entry.memory, 0, 0, 1_000)? as u32,
    })
}

/// Most teams, since each event looks whether one of their pages is due.
const TEAMS_MAX: usize = 100;
/// Between two looks of `amdahl phantom`.
const TICK: Ns = 20_000_000;
const TICK_MIN: Ns = 1_000_000;

fn read_team(
    reader: &Reader,
    team: &Spanned<TeamEntry>,
    kinds: &BTreeMap<String, u32>,
) -> Result<TeamSpec> {
    let entry = team.get_ref();
    let tasks = entry.tasks.iter().map(|name| {
        let kind = kinds.get(name.get_ref()).copied();
        kind.ok_or_else(|| {
            let message = format!("there is no task `{}`", name.get_ref());
            reader.error(name.span().start, message)
        })
    });
    let page = match &entry.page {
        None => Page::Host,
        Some(page) => match page.get_ref().as_str() {
            "host" => Page::Host,
            "guest" => Page::Guest,
            "steal" => Page::Steal,
            other => {
                return Err(reader.error(
                    page.span().start,
                    format!("`{other}` has no page: there are host, guest and steal"),
                ));
            }
        },
    };
    let tasks = tasks.collect::<Result<_>>()?;
    let tick = reader.time(&entry.tick, TICK)?;
    if tick < TICK_MIN {
        let at = entry.tick.as_ref().map_or(0, |tick| tick.span().start);
        return Err(reader.error(at, "a page is renewed each millisecond at most"));
    }
    Ok(TeamSpec { tasks, page, tick })
}

struct Compiler<'a> {
    words: Words,
    scope: Scope,
    names: &'a Names,
    kinds: &'a BTreeMap<String, u32>,
    teams: &'a [&'a str],
    w: &'a mut Workload,
    free: u8,
    most: u8,
    stopwatches: Vec<(String, u8)>,
}

impl Compiler<'_> {
    fn op(&mut self, op: Op) -> Result<usize> {
        if self.w.ops.len() >= OPS_MAX {
            return Err(self.words.error("the programs are too long"));
        }
        self.w.ops.push(op);
        Ok(self.w.ops.len() - 1)
    }

    fn here(&self) -> u32 {
        self.w.ops.len() as u32
    }

    fn var(&mut self) -> Result<u8> {
        if self.free >= VARS_MAX {
            return Err(self.words.error("a task has at most 100 variables"));
        }
        self.free += 1;
        self.most = self.most.max(self.free);
        Ok(self.free - 1)
    }

    fn val(&mut self) -> Result<Val> {
        let steps = expression(&mut self.words, &self.scope)?;
        Ok(self.w.expression(&steps))
    }

    fn val_or(&mut self, default: u32) -> Result<Val> {
        if self.is_at_end() {
            Ok(Val::constant(default))
        } else {
            self.val()
        }
    }

    fn is_at_end(&self) -> bool {
        matches!(self.words.peek(), None | Some(Word::Stop)) || self.words.is_next("}")
    }

    fn time(&mut self) -> Result<u32> {
        let time = time(&mut self.words, &self.scope, self.w)?;
        Ok(self.w.time(time))
    }

    fn object(&mut self, kind: Kind, what: &str) -> Result<Object> {
        let name = self.words.name(what)?;
        let Some(&(found, base, len, is_array)) = self.names.get(&name) else {
            let known: Vec<&str> = self
                .names
                .iter()
                .filter(|(_, found)| found.0 == kind)
                .map(|(name, _)| name.as_str())
                .collect();
            let known = if known.is_empty() {
                "none is declared".to_owned()
            } else {
                format!("there are {}", known.join(", "))
            };
            return Err(self
                .words
                .error(format!("expected {what}, but `{name}` is none; {known}")));
        };
        if found != kind {
            return Err(self.words.error(format!(
                "expected {what}, but `{name}` is a {}",
                format!("{found:?}").to_lowercase()
            )));
        }
        let index = if self.words.eat("[") {
            let index = self.val()?;
            self.words.expect("]")?;
            index
        } else if is_array {
            return Err(self.words.error(format!(
                "`{name}` is an array: say which one, as in `{name}[index]`"
            )));
        } else {
            Val::constant(0)
        };
        Ok(self.w.element(Element { base, len, index }))
    }

    /// The name of a number that all tasks share.
    fn number(&mut self) -> Result<u32> {
        let name = self.words.name("a number")?;
        self.scope.number(&name).ok_or_else(|| {
            self.words.error(format!(
                "there is no number `{name}` that all tasks share: declare it in [numbers]"
            ))
        })
    }

    /// Statements up to the end, or to the closing brace.
    fn block(&mut self, depth: usize, open: Option<usize>) -> Result<()> {
        if depth > NESTING {
            return Err(self.words.error("blocks are nested too deep"));
        }
        let (vars, free) = (self.scope.vars.len(), self.free);
        loop {
            self.words.skip_stops();
            match (self.words.peek(), open) {
                (None, None) => break,
                (None, Some(line)) => {
                    return Err(self
                        .words
                        .error(format!("the block that begins in line {line} has no `}}`")));
                }
                (Some(Word::Sign("}")), Some(_)) => {
                    self.words.next();
                    break;
                }
                _ => {}
            }
            self.statement(depth)?;
            if !self.is_at_end() {
                return Err(self.words.unexpected("the end of the line"));
            }
        }
        self.scope.vars.truncate(vars);
        self.free = free;
        Ok(())
    }

    fn braces(&mut self, depth: usize) -> Result<()> {
        let line = self.words.line();
        self.words.expect("{")?;
        self.block(depth + 1, Some(line))
    }

    fn statement(&mut self, depth: usize) -> Result<()> {
        let line = self.words.line();
        let verb = self.words.name("a statement")?;
        let op = match verb.as_str() {
            "compute" => Op::Compute(self.time()?),
            "occupy" => Op::Occupy(self.time()?),
            "sleep" => Op::Sleep(self.time()?),
            "period" => {
                let time = self.time()?;
                let is_absolute = self.words.eat_name("absolute");
                // It lives as long as the program.
                let var = self.watch("period ")?;
                Op::Period {
                    var,
                    is_absolute,
                    time,
                }
            }
            "lock" => Op::Lock {
                lock: self.object(Kind::Lock, "a lock")?,
                is_shared: false,
            },
            "share" => Op::Lock {
                lock: self.object(Kind::Lock, "a lock")?,
                is_shared: true,
            },
            "unlock" => Op::Unlock(self.object(Kind::Lock, "a lock")?),
            "await" => {
                let condition = self.object(Kind::Condition, "a condition")?;
                let lock = match self.words.eat_name("with") {
                    true => self.object(Kind::Lock, "a lock")?,
                    false => Object::NONE,
                };
                Op::Await { condition, lock }
            }
            "signal" => Op::Signal {
                condition: self.object(Kind::Condition, "a condition")?,
                is_all: false,
            },
            "broadcast" => Op::Signal {
                condition: self.object(Kind::Condition, "a condition")?,
                is_all: true,
            },
            "barrier" => Op::Barrier {
                barrier: self.object(Kind::Barrier, "a barrier")?,
                parties: match self.words.eat_name("of") {
                    true => self.val()?,
                    false => Val::constant(0),
                },
            },
            "put" => Op::Put {
                number: self.number()?,
                value: self.val()?,
            },
            "resize" => {
                let number = self.number()?;
                if !self.words.eat_name("by") {
                    return Err(self.words.unexpected("`by` and a team"));
                }
                let name = self.words.name("a team")?;
                let Some(team) = self.teams.iter().position(|known| *known == name) else {
                    return Err(self.words.error(format!("there is no team `{name}`")));
                };
                Op::Resize {
                    number,
                    team: team as u32,
                }
            }
            "read" => Op::Read {
                pipe: self.object(Kind::Pipe, "a pipe")?,
                bytes: self.val()?,
            },
            "write" => Op::Write {
                pipe: self.object(Kind::Pipe, "a pipe")?,
                bytes: self.val()?,
            },
            "io" => {
                let device = self.object(Kind::Device, "a device")?;
                let time = if self.is_at_end() { NONE } else { self.time()? };
                Op::Io { device, time }
            }
            "suspend" => Op::Suspend(self.object(Kind::Notice, "a notice")?),
            "resume" => Op::Resume(self.object(Kind::Notice, "a notice")?),
            "touch" => Op::Touch(self.object(Kind::Line, "a line")?),
            "spawn" | "fork" => {
                let name = self.words.name("a kind of task")?;
                let Some(&template) = self.kinds.get(&name) else {
                    return Err(self.words.error(format!("there is no task `{name}`")));
                };
                Op::Spawn {
                    template,
                    count: self.val_or(1)?,
                    is_process: verb == "fork",
                }
            }
            "join" => Op::Join,
            "exec" => Op::Exec,
            "yield" => Op::Yield,
            "finish" => Op::Finish,
            "exit" => Op::Exit,
            "nice" => {
                let is_children = self.words.eat_name("children");
                let nice = constant(&mut self.words, &self.scope)?;
                if !(-20..=19).contains(&nice) {
                    return Err(self
                        .words
                        .error(format!("nice {nice} must be within -20 and 19")));
                }
                Op::Nice {
                    nice: nice as i8,
                    is_children,
                }
            }
            "tally" => {
                let name = self.words.name("the name of a counter")?;
                let counter = position(&mut self.w.counters, name)
                    .map_err(|message| self.words.error(message))?;
                Op::Count {
                    counter,
                    amount: self.val_or(1)?,
                }
            }
            "start" => {
                let name = self.words.name("the name of a stopwatch")?;
                let var = self.watch(&name)?;
                match self.words.eat_name("at") {
                    true => Op::Set {
                        var,
                        value: self.val()?,
                    },
                    false => Op::Start { var },
                }
            }
            "stop" => {
                let name = self.words.name("the name of a stopwatch")?;
                let Some(&(_, var)) = self.stopwatches.iter().find(|(known, _)| *known == name)
                else {
                    return Err(self
                        .words
                        .error(format!("stopwatch `{name}` is not started above")));
                };
                Op::Stop {
                    var,
                    histogram: position(&mut self.w.histograms, name)
                        .map_err(|message| self.words.error(message))?,
                }
            }
            "fault" => return self.faults(),
            "map" => {
                let time = self.time()?;
                self.op(Op::LockSpace { is_shared: false })?;
                self.op(Op::Occupy(time))?;
                Op::UnlockSpace
            }
            "set" => return self.set(),
            "loop" => return self.repeat(depth),
            "forever" => {
                let to = self.here();
                self.braces(depth)?;
                Op::Jump(to)
            }
            "if" => return self.branch(depth),
            "choose" => return self.choose(depth),
            "take" => return self.jobs(depth),
            verb => {
                let message =
                    format!("there is no statement `{verb}`; docs/sim-workload.md lists them");
                return Err(WorkloadError::new(Some(line), message));
            }
        };
        self.op(op)?;
        Ok(())
    }

    /// The variable of a stopwatch or period, which is kept beyond the block.
    fn watch(&mut self, name: &str) -> Result<u8> {
        let is_period = name.contains(' ');
        if let Some(&(_, var)) = self
            .stopwatches
            .iter()
            .find(|(known, _)| !is_period && known == name)
        {
            return Ok(var);
        }
        // Counted from the other end until the number of the others, which blocks give back, is known.
        let Some(var) = (STOPWATCHES - 1)
            .checked_sub(self.stopwatches.len() as u8)
            .filter(|&var| var >= VARS_MAX)
        else {
            return Err(self
                .words
                .error("a task has at most 100 stopwatches and periods"));
        };
        self.stopwatches.push((name.to_owned(), var));
        Ok(var)
    }

    fn faults(&mut self) -> Result<()> {
        let count = self.val_or(1)?;
        let (var, end) = self.count_to(count)?;
        let skip = self.op(Op::Jump(0))?;
        let to = self.here();
        self.op(Op::LockSpace { is_shared: true })?;
        self.op(Op::Fault)?;
        self.op(Op::UnlockSpace)?;
        self.close_loop(var, end, to, skip)
    }

    /// Sets up a counter and its bound; the operation that comes next leaves when there is nothing to do.
    fn count_to(&mut self, count: Val) -> Result<(u8, u8)> {
        let (var, end) = (self.var()?, self.var()?);
        self.op(Op::Set {
            var,
            value: Val::constant(0),
        })?;
        self.op(Op::Set {
            var: end,
            value: count,
        })?;
        Ok((var, end))
    }

    fn close_loop(&mut self, var: u8, end: u8, to: u32, skip: usize) -> Result<()> {
        self.op(Op::Next { var, end, to })?;
        let over = self.here();
        let positive = self
            .w
            .expression(&[Step::Const(0), Step::Var(end), Step::Lt]);
        self.w.ops[skip] = Op::Unless {
            value: positive,
            to: over,
        };
        self.free -= 2;
        Ok(())
    }

    fn repeat(&mut self, depth: usize) -> Result<()> {
        let count = self.val()?;
        let (var, end) = self.count_to(count)?;
        let vars = self.scope.vars.len();
        if self.words.eat_name("as") {
            let name = self.words.name("the name of a variable")?;
            self.scope.vars.push((name, var));
        }
        let skip = self.op(Op::Jump(0))?;
        let to = self.here();
        self.braces(depth)?;
        self.scope.vars.truncate(vars);
        self.close_loop(var, end, to, skip)
    }

    fn set(&mut self) -> Result<()> {
        let name = self.words.name("the name of a variable")?;
        self.words.eat("=");
        let value = self.val()?;
        let known = self
            .scope
            .vars
            .iter()
            .rev()
            .find(|(known, _)| *known == name)
            .map(|&(_, var)| var);
        let var = match known {
            Some(var) if var < VARS_FREE && var != VAR_JOB => {
                return Err(self.words.error(format!("`{name}` cannot be set")));
            }
            Some(var) => var,
            None => {
                let var = self.var()?;
                self.scope.vars.push((name, var));
                var
            }
        };
        self.op(Op::Set { var, value })?;
        Ok(())
    }

    fn branch(&mut self, depth: usize) -> Result<()> {
        let value = self.val()?;
        let test = self.op(Op::Jump(0))?;
        self.braces(depth)?;
        let mut to = self.here();
        if self.words.eat_name("else") {
            let leave = self.op(Op::Jump(0))?;
            to = self.here();
            self.braces(depth)?;
            self.w.ops[leave] = Op::Jump(self.here());
        }
        self.w.ops[test] = Op::Unless { value, to };
        Ok(())
    }

    /// `choose { 90 { ... } 10 { ... } }`.
    fn choose(&mut self, depth: usize) -> Result<()> {
        let line = self.words.line();
        self.words.expect("{")?;
        let draw = self.var()?;
        let set = self.op(Op::Jump(0))?;
        let (mut sum, mut leaves) = (0i64, vec![]);
        loop {
            self.words.skip_stops();
            if self.words.eat("}") {
                break;
            }
            if self.words.peek().is_none() {
                return Err(self
                    .words
                    .error(format!("the block that begins in line {line} has no `}}`")));
            }
            let weight = constant(&mut self.words, &self.scope)?;
            if !(0..=1_000_000).contains(&weight) {
                return Err(self
                    .words
                    .error(format!("weight {weight} must be within 0 and 1000000")));
            }
            sum += weight;
            let value = self
                .w
                .expression(&[Step::Var(draw), Step::Const(sum), Step::Lt]);
            let test = self.op(Op::Jump(0))?;
            self.braces(depth)?;
            leaves.push(self.op(Op::Jump(0))?);
            let to = self.here();
            self.w.ops[test] = Op::Unless { value, to };
        }
        if sum == 0 {
            return Err(self.words.error("the weights of `choose` add up to 0"));
        }
        let value = self.w.expression(&[Step::Const(sum), Step::Random]);
        self.w.ops[set] = Op::Set { var: draw, value };
        for leave in leaves {
            self.w.ops[leave] = Op::Jump(self.here());
        }
        self.free -= 1;
        Ok(())
    }

    fn jobs(&mut self, depth: usize) -> Result<()> {
        let name = self.words.name("a graph")?;
        let Some(&(Kind::Graph, graph, ..)) = self.names.get(&name) else {
            return Err(self.words.error(format!("there is no graph `{name}`")));
        };
        let take = self.op(Op::Take { graph, done: 0 })?;
        self.braces(depth)?;
        self.op(Op::Jump(take as u32))?;
        self.w.ops[take] = Op::Take {
            graph,
            done: self.here(),
        };
        Ok(())
    }
}

/// Most counters, and most stopwatches.
const NAMES_MAX: usize = 1_000;

fn position(names: &mut Vec<String>, name: String) -> std::result::Result<u32, String> {
    if let Some(at) = names.iter().position(|known| *known == name) {
        return Ok(at as u32);
    }
    if names.len() >= NAMES_MAX {
        return Err(format!(
            "`{name}` is one more than the {NAMES_MAX} names that there may be"
        ));
    }
    names.push(name);
    Ok(names.len() as u32 - 1)
}
