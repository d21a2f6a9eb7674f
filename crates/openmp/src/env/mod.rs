//! The environment's variables. Pure: pairs of names and values in, [`Settings`] and what there is to say about them
//! out.
//!
//! What is accepted is what GCC's runtime accepts, spaces, signs and all; a value that is not understood is told and
//! counts as not set. Where a name takes the suffixes of OpenMP 5.1 (`_ALL`, `_DEV`, `_DEV_n`), the host follows the
//! name alone, then `_ALL`.

pub(crate) mod text;
mod value;

use std::collections::BTreeMap;
use std::fmt;

use crate::alloc::{self, Handle, Trait};
use crate::icv::{ProcBind, Schedule, TargetOffload, WaitPolicy};
use crate::places::Spec;
use text::Text;
use value::BadSchedule;

/// The variables that there may be one of for each device. Numbers are as they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `OMP_DYNAMIC`.
    pub dynamic: Option<bool>,
    /// `OMP_NUM_THREADS`: at least one number.
    pub num_threads: Option<Vec<u64>>,
    /// `OMP_SCHEDULE`.
    pub schedule: Option<Schedule>,
    /// `OMP_PROC_BIND`: at least one policy; `False` and `True` only alone.
    pub proc_bind: Option<Vec<ProcBind>>,
    /// `OMP_STACKSIZE`.
    pub stack_bytes: Option<u64>,
    /// `OMP_WAIT_POLICY`.
    pub wait_policy: Option<WaitPolicy>,
    /// `OMP_THREAD_LIMIT`: positive.
    pub thread_limit: Option<u64>,
    /// `OMP_MAX_ACTIVE_LEVELS`.
    pub max_active_levels: Option<u64>,
    /// `OMP_NUM_TEAMS`: positive.
    pub num_teams: Option<i32>,
    /// `OMP_TEAMS_THREAD_LIMIT`: positive.
    pub teams_thread_limit: Option<i32>,
    /// `OMP_DEFAULT_DEVICE`.
    pub default_device: Option<i32>,
}

/// `OMP_DISPLAY_ENV`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the values of the variable")]
pub enum Display {
    #[default]
    False,
    True,
    Verbose,
}

/// `OMP_ALLOCATOR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultAllocator {
    /// One that there is.
    Predefined(Handle),
    /// A memory space with traits, and the text.
    Traits(usize, Vec<Trait>, Vec<u8>),
}

/// What only this runtime knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// `AMDAHL_OMP_DYNAMIC`: whether teams may be smaller than asked for when CPUs are taken; not set: where
    /// `OMP_DYNAMIC` allows it.
    pub dynamic: Option<bool>,
    /// `AMDAHL_OMP_STATS`: whether to say at the end what was done.
    pub stats: bool,
    /// `AMDAHL_OMP_THREADS`: positive; threads of a region at most, where neither `OMP_NUM_THREADS` nor the program says how many.
    pub threads: Option<u64>,
    /// `AMDAHL_PHANTOM`: the page that tells which CPUs are taken.
    pub phantom: Option<Vec<u8>>,
}

/// All variables, as given; `None` is not given, or not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the variables")]
pub struct Settings {
    /// Names without a suffix.
    pub plain: Device,
    /// `_ALL`.
    pub all: Device,
    /// `_DEV`.
    pub devices: Device,
    /// `_DEV_n`.
    pub numbered: BTreeMap<u32, Device>,
    pub cancellation: Option<bool>,
    pub display_affinity: Option<bool>,
    pub target_offload: Option<TargetOffload>,
    pub max_task_priority: Option<i32>,
    pub allocator: Option<DefaultAllocator>,
    /// Only read where `OMP_MAX_ACTIVE_LEVELS` is not given.
    pub nested: Option<bool>,
    pub places: Option<Spec>,
    pub cpu_affinity: Option<Spec>,
    pub affinity_format: Option<Vec<u8>>,
    pub spin_count: Option<u64>,
    /// Only read where `OMP_STACKSIZE` is not given.
    pub gomp_stack_bytes: Option<u64>,
    pub display_env: Display,
    pub own: Own,
}

/// A value that was not understood.
enum Problem {
    Schedule(BadSchedule),
    Value,
}

/// Reads a value, or says that it was not understood.
type Setter = fn(&mut Device, &[u8]) -> Result<(), Problem>;

/// The names that take suffixes.
const SCOPED: [(&str, Setter); 11] = [
    ("OMP_SCHEDULE", |device, value| {
        device.schedule = Some(value::schedule(value).map_err(Problem::Schedule)?);
        Ok(())
    }),
    ("OMP_DYNAMIC", |device, value| {
        put(&mut device.dynamic, value::boolean(value))
    }),
    ("OMP_DEFAULT_DEVICE", |device, value| {
        put(&mut device.default_device, value::int(value, 0))
    }),
    ("OMP_THREAD_LIMIT", |device, value| {
        put(&mut device.thread_limit, value::number(value, 1))
    }),
    ("OMP_NUM_THREADS", |device, value| {
        put(&mut device.num_threads, value::numbers(value))
    }),
    ("OMP_NUM_TEAMS", |device, value| {
        put(&mut device.num_teams, value::int(value, 1))
    }),
    ("OMP_TEAMS_THREAD_LIMIT", |device, value| {
        put(&mut device.teams_thread_limit, value::int(value, 1))
    }),
    ("OMP_PROC_BIND", |device, value| {
        put(&mut device.proc_bind, value::proc_bind(value))
    }),
    ("OMP_MAX_ACTIVE_LEVELS", |device, value| {
        put(&mut device.max_active_levels, value::number(value, 0))
    }),
    ("OMP_WAIT_POLICY", |device, value| {
        put(&mut device.wait_policy, value::wait_policy(value))
    }),
    ("OMP_STACKSIZE", |device, value| {
        put(&mut device.stack_bytes, value::stack_size(value))
    }),
];

fn put<T>(variable: &mut Option<T>, value: Option<T>) -> Result<(), Problem> {
    *variable = Some(value.ok_or(Problem::Value)?);
    Ok(())
}

/// Names and values, the first of each name.
struct Variables<'a> {
    values: BTreeMap<&'a [u8], &'a [u8]>,
    said: Vec<String>,
}

impl<'a> Variables<'a> {
    fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.values.get(name.as_bytes()).copied()
    }

    fn invalid(&mut self, name: impl fmt::Display) {
        self.said
            .push(format!("Invalid value for environment variable {name}"));
    }

    /// Reads a variable that takes no suffix.
    fn read<T>(&mut self, name: &str, parse: impl Fn(&'a [u8]) -> Option<T>) -> Option<T> {
        let value = parse(self.get(name)?);
        if value.is_none() {
            self.invalid(name);
        }
        value
    }

    fn set(&mut self, name: &str, value: &[u8], device: &mut Device, setter: Setter) {
        match setter(device, value) {
            Ok(()) => {}
            Err(Problem::Schedule(BadSchedule::Kind)) => self
                .said
                .push(format!("Unknown value for environment variable {name}")),
            Err(Problem::Schedule(BadSchedule::Chunk)) => self.said.push(format!(
                "Invalid value for chunk size in environment variable {name}"
            )),
            Err(Problem::Value) => self.invalid(name),
        }
    }
}

impl Settings {
    /// Reads variables. `is_secure`: the program has more rights than who started it, so nobody's paths are taken.
    pub fn read<'a>(
        variables: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        is_secure: bool,
    ) -> (Self, Vec<String>) {
        let mut values = BTreeMap::new();
        for (name, value) in variables {
            values.entry(name).or_insert(value);
        }
        let mut variables = Variables {
            values,
            said: vec![],
        };
        let mut settings = Self::default();
        for (name, setter) in SCOPED {
            settings.read_scoped(&mut variables, name, setter);
        }
        let v = &mut variables;
        settings.cancellation = v.read("OMP_CANCELLATION", value::boolean);
        settings.display_affinity = v.read("OMP_DISPLAY_AFFINITY", value::boolean);
        settings.target_offload = v.read("OMP_TARGET_OFFLOAD", value::target_offload);
        settings.max_task_priority = v.read("OMP_MAX_TASK_PRIORITY", |text| value::int(text, 0));
        settings.allocator = v.read("OMP_ALLOCATOR", allocator);
        if settings.host().max_active_levels.is_none() {
            settings.nested = v.read("OMP_NESTED", value::boolean);
        }
        settings.places = v.read("OMP_PLACES", Spec::places);
        settings.cpu_affinity = v.read("GOMP_CPU_AFFINITY", Spec::cpus);
        settings.affinity_format = v.get("OMP_AFFINITY_FORMAT").map(<[u8]>::to_vec);
        settings.spin_count = v.read("GOMP_SPINCOUNT", value::spin_count);
        if settings.host().stack_bytes.is_none() {
            settings.gomp_stack_bytes = v.read("GOMP_STACKSIZE", value::stack_size);
        }
        settings.display_env = v
            .read("OMP_DISPLAY_ENV", |text| {
                value::word(
                    text,
                    &[
                        ("true", Display::True),
                        ("false", Display::False),
                        ("verbose", Display::Verbose),
                    ],
                )
            })
            .unwrap_or_default();
        settings.own = Own {
            dynamic: v.read("AMDAHL_OMP_DYNAMIC", value::boolean),
            stats: v.read("AMDAHL_OMP_STATS", value::boolean).unwrap_or(false),
            threads: v.read("AMDAHL_OMP_THREADS", |text| value::number(text, 1)),
            phantom: v
                .get("AMDAHL_PHANTOM")
                .filter(|path| !is_secure && !path.is_empty())
                .map(<[u8]>::to_vec),
        };
        (settings, variables.said)
    }

    /// A name alone and with each suffix.
    fn read_scoped(&mut self, variables: &mut Variables<'_>, name: &str, setter: Setter) {
        if let Some(value) = variables.get(name) {
            variables.set(name, value, &mut self.plain, setter);
        }
        let prefix = format!("{name}_");
        let suffixed: Vec<(&[u8], &[u8])> = variables
            .values
            .range(prefix.as_bytes()..)
            .take_while(|(other, _)| other.starts_with(prefix.as_bytes()))
            .map(|(&other, &value)| (other, value))
            .collect();
        for (full, value) in suffixed {
            let suffix = &full[prefix.len()..];
            let full = String::from_utf8_lossy(full);
            let device = match (suffix, suffix.strip_prefix(b"DEV_")) {
                (b"ALL", _) => &mut self.all,
                (b"DEV", _) => &mut self.devices,
                (_, Some(number)) => match device_number(number) {
                    Some(number) => self.numbered.entry(number).or_default(),
                    None => {
                        variables
                            .said
                            .push(format!("Invalid device number in {full}"));
                        continue;
                    }
                },
                _ => {
                    let text = format!("Invalid environment variable in {full}");
                    variables.said.push(text);
                    continue;
                }
            };
            variables.set(&full, value, device, setter);
        }
    }

    /// Bytes of a thread's stack, as given.
    pub fn stack_bytes(&self) -> Option<u64> {
        self.host().stack_bytes.or(self.gomp_stack_bytes)
    }

    /// What counts for the host.
    pub fn host(&self) -> Device {
        let (plain, all) = (self.plain.clone(), self.all.clone());
        Device {
            dynamic: plain.dynamic.or(all.dynamic),
            num_threads: plain.num_threads.or(all.num_threads),
            schedule: plain.schedule.or(all.schedule),
            proc_bind: plain.proc_bind.or(all.proc_bind),
            stack_bytes: plain.stack_bytes.or(all.stack_bytes),
            wait_policy: plain.wait_policy.or(all.wait_policy),
            thread_limit: plain.thread_limit.or(all.thread_limit),
            max_active_levels: plain.max_active_levels.or(all.max_active_levels),
            num_teams: plain.num_teams.or(all.num_teams),
            teams_thread_limit: plain.teams_thread_limit.or(all.teams_thread_limit),
            default_device: plain.default_device.or(all.default_device),
        }
    }
}

/// Digits without a zero before them, of an `int`.
fn device_number(digits: &[u8]) -> Option<u32> {
    let is_plain = !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
        && (digits[0] != b'0' || digits.len() == 1);
    let number: u32 = is_plain.then(|| std::str::from_utf8(digits).ok()?.parse().ok())??;
    (number <= i32::MAX.unsigned_abs()).then_some(number)
}

/// A predefined allocator, a memory space, or a memory space with traits: `SPACE:KEY=VALUE,...`.
fn allocator(value: &[u8]) -> Option<DefaultAllocator> {
    let mut text = Text::new(value);
    text.skip_spaces();
    let begin = text.rest();
    for (handle, name) in alloc::PREDEFINED.iter().enumerate().skip(1) {
        if text.take_word(name) {
            return text.ends().then_some(DefaultAllocator::Predefined(handle));
        }
    }
    if text.take_word("ompx_gnu_pinned_mem_alloc") {
        return text
            .ends()
            .then_some(DefaultAllocator::Predefined(alloc::GNU_PINNED_MEM_ALLOC));
    }
    let memspace = alloc::MEMSPACES
        .iter()
        .position(|name| text.take_word(name))?;
    if !text.take(b':') {
        // The spaces are numbered as their allocators, from 0.
        return text
            .ends()
            .then_some(DefaultAllocator::Predefined(memspace + 1));
    }
    let mut traits = vec![];
    loop {
        traits.push(allocator_trait(&mut text)?);
        if text.ends() {
            return Some(DefaultAllocator::Traits(memspace, traits, begin.to_vec()));
        }
        if !text.take(b',') {
            return None;
        }
    }
}

fn allocator_trait(text: &mut Text<'_>) -> Option<Trait> {
    use crate::alloc::{key, value};
    const SYNC_HINTS: Words = &[
        ("contended", value::CONTENDED),
        ("uncontended", value::CONTENDED + 1),
        ("serialized", value::CONTENDED + 2),
        ("private", value::PRIVATE),
    ];
    const ACCESSES: Words = &[
        ("all", value::ALL),
        ("thread", value::ALL + 1),
        ("pteam", value::ALL + 2),
        ("cgroup", value::CGROUP),
    ];
    const FALLBACKS: Words = &[
        ("default_mem_fb", value::DEFAULT_MEM_FB),
        ("null_fb", value::NULL_FB),
        ("abort_fb", value::ABORT_FB),
        ("allocator_fb", value::ALLOCATOR_FB),
    ];
    const PARTITIONS: Words = &[
        ("environment", value::ENVIRONMENT),
        ("nearest", value::ENVIRONMENT + 1),
        ("blocked", value::ENVIRONMENT + 2),
        ("interleaved", value::INTERLEAVED),
    ];
    const BOOLEANS: Words = &[("true", value::TRUE), ("false", value::FALSE)];
    /// Words and what they stand for; none: a number.
    type Words = &'static [(&'static str, usize)];
    const KEYS: &[(&str, (u32, Words))] = &[
        ("sync_hint=", (key::SYNC_HINT, SYNC_HINTS)),
        ("alignment=", (key::ALIGNMENT, &[])),
        ("access=", (key::ACCESS, ACCESSES)),
        ("pool_size=", (key::POOL_SIZE, &[])),
        ("fallback=", (key::FALLBACK, FALLBACKS)),
        ("pinned=", (key::PINNED, BOOLEANS)),
        ("partition=", (key::PARTITION, PARTITIONS)),
    ];
    let (key, words) = text.take_one_of(KEYS)?;
    let value = if words.is_empty() {
        let number = text.signed().filter(|&number| number > 0)?;
        usize::try_from(number).ok()?
    } else {
        text.take_one_of(words)?
    };
    Some(Trait { key, value })
}

#[cfg(test)]
mod tests;
