//! Declared objects: locks, pipes and whatever tasks meet at.

use std::collections::BTreeMap;

use toml::Spanned;

use super::expression::{self, Scope};
use super::file::{Field, File, Number};
use super::lex::Words;
use super::{Origin, Result, WorkloadError, line_of};
use crate::program::{
    BarrierSpec, DeviceSpec, Kind, LockKind, LockSpec, Named, PipeSpec, PipeSpin, Waits, Workload,
};
use crate::random::Dist;
use crate::time::{Ns, TIME_MAX};

/// Most objects of a kind, and tasks.
pub(super) const OBJECTS_MAX: i64 = 1_000_000;

/// Reads the fields of a file.
pub(super) struct Reader<'a> {
    pub text: &'a str,
    pub scope: Scope,
}

impl Reader<'_> {
    pub fn error(&self, at: usize, message: impl Into<String>) -> WorkloadError {
        WorkloadError::new(Some(line_of(self.text, at)), message)
    }

    pub fn words(&self, text: &Spanned<String>) -> Result<Words> {
        Words::new(text.get_ref(), Origin::of(self.text, text.span()))
    }

    fn field<T>(
        &self,
        field: &Spanned<Number>,
        plain: impl Fn(i64) -> T,
        read: impl Fn(&mut Words, &Scope) -> Result<T>,
    ) -> Result<T> {
        match field.get_ref() {
            Number::Plain(value) => Ok(plain(*value)),
            Number::Text(text) => {
                let mut words = Words::new(text, Origin::of(self.text, field.span()))?;
                let value = read(&mut words, &self.scope)?;
                match words.peek() {
                    None => Ok(value),
                    Some(_) => Err(words.unexpected("the end of the text")),
                }
            }
        }
    }

    /// A number within bounds.
    pub fn number(&self, field: &Field, default: i64, min: i64, max: i64) -> Result<i64> {
        let Some(field) = field else {
            return Ok(default);
        };
        let value = self.field(field, |value| value, expression::constant)?;
        if (min..=max).contains(&value) {
            return Ok(value);
        }
        Err(self.error(
            field.span().start,
            format!("{value} must be within {min} and {max}"),
        ))
    }

    /// A time that may be drawn.
    pub fn dist(&self, field: &Field, default: Dist) -> Result<Dist> {
        let Some(field) = field else {
            return Ok(default);
        };
        let plain = |value: i64| Dist::Const(value as Ns);
        if let Number::Plain(value) = field.get_ref()
            && !(0..=TIME_MAX as i64).contains(value)
        {
            return Err(self.error(field.span().start, "a time must be within 0 and 100 days"));
        }
        self.field(field, plain, expression::fixed_time)
    }

    pub fn time(&self, field: &Field, default: Ns) -> Result<Ns> {
        match self.dist(field, Dist::Const(default))? {
            Dist::Const(ns) => Ok(ns),
            _ => {
                let at = field.as_ref().map_or(0, |field| field.span().start);
                Err(self.error(at, "this time must be fixed"))
            }
        }
    }
}

/// Names of objects to where they are.
pub(super) type Names = BTreeMap<String, (Kind, u32, u32, bool)>;

struct Declared<'a> {
    w: &'a mut Workload,
    names: Names,
}

impl Declared<'_> {
    fn add(
        &mut self,
        reader: &Reader,
        kind: Kind,
        name: &str,
        at: usize,
        base: usize,
        count: &Field,
    ) -> Result<u32> {
        let len = reader.number(count, 1, 1, OBJECTS_MAX)? as u32;
        let is_array = count.is_some();
        if base as i64 + i64::from(len) > OBJECTS_MAX {
            return Err(reader.error(at, format!("more than {OBJECTS_MAX} objects of one kind")));
        }
        if self
            .names
            .insert(name.to_owned(), (kind, base as u32, len, is_array))
            .is_some()
        {
            return Err(reader.error(at, format!("there are two objects called `{name}`")));
        }
        self.w.names[kind as usize].push(Named {
            name: name.to_owned(),
            base: base as u32,
            len,
            is_array,
        });
        Ok(len)
    }
}

pub(super) fn declare(reader: &Reader, file: &File, w: &mut Workload) -> Result<Names> {
    let mut all = Declared {
        w,
        names: Names::new(),
    };
    for (name, entry) in &file.locks {
        let (at, spec) = (entry.span().start, entry.get_ref());
        let kind = lock_kind(reader, &spec.kind)?;
        let lock = LockSpec {
            kind,
            spin: reader.time(&spec.spin, 0)?,
            keeps_cpu: spec.keeps_cpu,
        };
        if lock.keeps_cpu && !kind.spins() {
            return Err(reader.error(
                spec.kind.span().start,
                "only locks that spin keep the CPU: `test-and-set`, `ticket`, `queued`, `reader-writer`",
            ));
        }
        let base = all.w.locks.len();
        let len = all.add(reader, Kind::Lock, name, at, base, &spec.count)?;
        all.w.locks.extend(std::iter::repeat_n(lock, len as usize));
    }
    for (name, entry) in &file.conditions {
        let base = all.w.conditions as usize;
        all.w.conditions += all.add(
            reader,
            Kind::Condition,
            name,
            entry.span().start,
            base,
            &entry.get_ref().count,
        )?;
    }
    for (name, entry) in &file.barriers {
        let (at, spec) = (entry.span().start, entry.get_ref());
        if spec.parties.is_none() {
            return Err(reader.error(
                at,
                format!("barrier `{name}` needs `parties`: how many must come"),
            ));
        }
        let parties = reader.number(&spec.parties, 1, 1, OBJECTS_MAX)? as u32;
        let spin = reader.time(&spec.spin, 0)?;
        let waits = match spec.waits.as_ref().map(|waits| waits.get_ref().as_str()) {
            None | Some("spin") => Waits::Spin,
            Some("stubborn") => Waits::Stubborn,
            Some("openmp") => Waits::Openmp,
            Some(other) => {
                return Err(reader.error(
                    spec.waits.as_ref().map_or(at, |waits| waits.span().start),
                    format!("`{other}` is no way to wait: there are spin, stubborn and openmp"),
                ));
            }
        };
        let base = all.w.barriers.len();
        let len = all.add(reader, Kind::Barrier, name, at, base, &spec.count)?;
        all.w.barriers.extend(std::iter::repeat_n(
            BarrierSpec {
                parties,
                spin,
                waits,
            },
            len as usize,
        ));
    }
    for (name, entry) in &file.pipes {
        let (at, spec) = (entry.span().start, entry.get_ref());
        let capacity = reader.number(&spec.capacity, 65_536, 1, 1 << 30)? as u32;
        let low_water = reader.number(&spec.low_water, capacity.into(), 0, capacity.into())? as u32;
        let lines = reader.number(&spec.lines, 0, 0, 10_000)? as u32;
        let is_adaptive = spec.spin.as_ref().is_some_and(
            |spin| matches!(spin.get_ref(), Number::Text(text) if text.trim() == "adaptive"),
        );
        let spin = match is_adaptive {
            true => PipeSpin::Adaptive,
            false => PipeSpin::Fixed(reader.time(&spec.spin, 0)?),
        };
        let base = all.w.pipes.len();
        let len = all.add(reader, Kind::Pipe, name, at, base, &spec.count)?;
        all.w.pipes.extend(std::iter::repeat_n(
            PipeSpec {
                capacity,
                low_water,
                lines,
                spin,
            },
            len as usize,
        ));
    }
    let mut servers = 0;
    for (name, entry) in &file.devices {
        let (at, spec) = (entry.span().start, entry.get_ref());
        let parallelism = reader.number(&spec.parallelism, 1, 1, 65_536)? as u32;
        let service = reader.dist(&spec.service, Dist::Const(100_000))?;
        let base = all.w.devices.len();
        let len = all.add(reader, Kind::Device, name, at, base, &spec.count)?;
        servers += i64::from(len) * i64::from(parallelism);
        if servers > OBJECTS_MAX {
            let message =
                format!("all devices together serve more than {OBJECTS_MAX} requests at a time");
            return Err(reader.error(at, message));
        }
        all.w.devices.extend(std::iter::repeat_n(
            DeviceSpec {
                parallelism,
                service,
            },
            len as usize,
        ));
    }
    for (name, entry) in &file.notices {
        let (at, spec) = (entry.span().start, entry.get_ref());
        let initial = reader.number(&spec.initial, 0, 0, i64::from(u32::MAX))? as u64;
        let base = all.w.notices.len();
        let len = all.add(reader, Kind::Notice, name, at, base, &spec.count)?;
        all.w
            .notices
            .extend(std::iter::repeat_n(initial, len as usize));
    }
    for (name, entry) in &file.lines {
        let base = all.w.lines as usize;
        all.w.lines += all.add(
            reader,
            Kind::Line,
            name,
            entry.span().start,
            base,
            &entry.get_ref().count,
        )?;
    }
    let mut sizes = super::graph::Sizes::default();
    for (name, entry) in &file.graphs {
        let base = all.w.graphs.len();
        all.add(reader, Kind::Graph, name, entry.span().start, base, &None)?;
        let graph = super::graph::read(reader, name, entry, &mut sizes)?;
        all.w.graphs.push(graph);
    }
    Ok(all.names)
}

const LOCK_KINDS: [(&str, LockKind); 6] = [
    ("test-and-set", LockKind::TestAndSet),
    ("ticket", LockKind::Ticket),
    ("queued", LockKind::Queued),
    ("reader-writer", LockKind::ReaderWriter),
    ("mutex", LockKind::Mutex),
    ("semaphore", LockKind::Semaphore),
];

fn lock_kind(reader: &Reader, kind: &Spanned<String>) -> Result<LockKind> {
    let found = LOCK_KINDS.iter().find(|(name, _)| name == kind.get_ref());
    found.map(|&(_, kind)| kind).ok_or_else(|| {
        let known: Vec<&str> = LOCK_KINDS.iter().map(|&(name, _)| name).collect();
        let message = format!(
            "there is no lock of kind `{}`: choose from {}",
            kind.get_ref(),
            known.join(", ")
        );
        reader.error(kind.span().start, message)
    })
}
