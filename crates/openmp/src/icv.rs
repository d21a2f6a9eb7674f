//! Internal control variables: what decides how the runtime behaves, and which the environment and `omp_set_*` set.
//!
//! [`Icv`] is the part that every data environment has its own copy of: a task's is copied from its parent's. The rest
//! is the process's, in [`Globals`]: made once, before the first use, from the environment and the machine.

use std::path::Path;
use std::sync::atomic::AtomicI32;
use std::sync::{OnceLock, PoisonError, RwLock};

use crate::alloc::{self, Owned};
use crate::env::{self, DefaultAllocator, Settings};
use crate::places::{CpuSet, PlaceList, Topology, Unusable};
use crate::policy::Patience;
use crate::{display, fork, message, sys};

/// How iterations are dealt out, numbered as `omp_sched_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names of the specification")]
pub enum ScheduleKind {
    Static = 1,
    Dynamic = 2,
    Guided = 3,
    Auto = 4,
}

impl ScheduleKind {
    /// The chunk where none is given: 0, as many as there are threads, for `Static`, and 1 for the others.
    pub const fn default_chunk(self) -> i32 {
        match self {
            Self::Static => 0,
            Self::Dynamic | Self::Guided | Self::Auto => 1,
        }
    }
}

/// *run-sched-var*: the schedule of loops with `schedule(runtime)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How iterations are dealt out.
    pub kind: ScheduleKind,
    /// Each thread gets its chunks in increasing order.
    pub is_monotonic: bool,
    /// Iterations of a chunk; see [`ScheduleKind::default_chunk`].
    pub chunk: i32,
}

impl Schedule {
    /// The bit of `omp_sched_t` that says monotonic.
    pub const MONOTONIC: u32 = 0x8000_0000;

    /// As `omp_set_schedule` takes it: `None` for a kind that there is not.
    pub const fn from_raw(kind: u32, chunk: i32) -> Option<Self> {
        let is_monotonic = kind & Self::MONOTONIC != 0;
        let kind = match kind & !Self::MONOTONIC {
            1 => ScheduleKind::Static,
            2 => ScheduleKind::Dynamic,
            3 => ScheduleKind::Guided,
            4 => ScheduleKind::Auto,
            _ => return None,
        };
        let chunk = match kind {
            ScheduleKind::Static | ScheduleKind::Dynamic | ScheduleKind::Guided if chunk >= 1 => {
                chunk
            }
            _ => kind.default_chunk(),
        };
        Some(Self {
            kind,
            is_monotonic,
            chunk,
        })
    }

    /// As `omp_get_schedule` gives it: kind with its bit, and chunk.
    pub const fn to_raw(self) -> (u32, i32) {
        let bit = if self.is_monotonic {
            Self::MONOTONIC
        } else {
            0
        };
        (self.kind as u32 | bit, self.chunk)
    }
}

/// *bind-var*, numbered as `omp_proc_bind_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names of the specification")]
pub enum ProcBind {
    False = 0,
    True = 1,
    Primary = 2,
    Close = 3,
    Spread = 4,
}

impl ProcBind {
    /// The policy of this number.
    pub const fn from_raw(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::False,
            1 => Self::True,
            2 => Self::Primary,
            3 => Self::Close,
            4 => Self::Spread,
            _ => return None,
        })
    }
}

/// `OMP_WAIT_POLICY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the specification")]
pub enum WaitPolicy {
    Active,
    Passive,
}

/// `OMP_TARGET_OFFLOAD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the specification")]
pub enum TargetOffload {
    Default,
    Mandatory,
    Disabled,
}

/// What each data environment has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icv {
    /// *nthreads-var*: threads of the next parallel region.
    pub nthreads: u32,
    /// *thread-limit-var*: threads of a contention group at most; `u32::MAX` is no limit.
    pub thread_limit: u32,
    /// *run-sched-var*: the schedule of loops with `schedule(runtime)`.
    pub schedule: Schedule,
    /// *default-device-var*: the device of target regions that name none.
    pub default_device: i32,
    /// *dyn-var*: whether regions may get fewer threads than they ask for.
    pub dynamic: bool,
    /// *max-active-levels-var*: regions within each other that have more than one thread, at most.
    pub max_active_levels: u32,
    /// *bind-var*: how threads are bound to places.
    pub bind: ProcBind,
}

/// More levels than this are never active.
pub const SUPPORTED_ACTIVE_LEVELS: u32 = 255;

/// The process's variables.
#[derive(Debug)]
pub struct Globals {
    /// Of the initial task.
    pub initial: Icv,
    /// Threads of regions by level of nesting, beginning with the outermost; empty where at most one was given.
    pub nthreads_list: Vec<u32>,
    /// Policies of regions by level of nesting; empty where at most one was given.
    pub bind_list: Vec<ProcBind>,
    /// CPUs that the process might run on when it began.
    pub allowed: CpuSet,
    /// Bytes of a thread's stack; 0 is the system's default.
    pub stack_bytes: usize,
    /// `OMP_WAIT_POLICY`; `None` where the user did not say.
    pub wait_policy: Option<WaitPolicy>,
    /// Turns of a spin loop before a thread sleeps, in GCC's runtime.
    pub spin_count: u64,
    /// How long threads spin here.
    pub patience: Patience,
    /// *cancel-var*.
    pub cancellation: bool,
    /// *max-task-priority-var*.
    pub max_task_priority: i32,
    /// Where threads are bound to; `None` where they are not.
    pub places: Option<PlaceList>,
    /// *display-affinity-var*.
    pub display_affinity: bool,
    /// *target-offload-var*.
    pub target_offload: TargetOffload,
    /// *def-allocator-var* of initial tasks.
    pub default_allocator: Owned,
    /// *nteams-var*; 0 is not set.
    pub num_teams: AtomicI32,
    /// *teams-thread-limit-var*; 0 is not set.
    pub teams_thread_limit: AtomicI32,
    /// *affinity-format-var*.
    affinity_format: RwLock<Vec<u8>>,
    /// What only this runtime knows.
    pub own: env::Own,
    /// Everything as it was given.
    pub settings: Settings,
}

/// *affinity-format-var* where nothing was said.
pub const DEFAULT_AFFINITY_FORMAT: &[u8] = b"level %L thread %i affinity %A";

/// Threads at most: the `int` of the interface.
const THREADS_MAX: u64 = i32::MAX as u64;

fn threads(number: u64) -> u32 {
    // Cannot truncate.
    number.min(THREADS_MAX) as u32
}

/// Turns that GCC's runtime spins, where there is a CPU for each thread and where there is not.
fn spin_counts(policy: Option<WaitPolicy>, given: Option<u64>) -> (u64, u64) {
    let (alone, crowded) = match policy {
        Some(WaitPolicy::Active) => (30_000_000_000, 1000),
        Some(WaitPolicy::Passive) => (0, 0),
        None => (300_000, 100),
    };
    let alone = given.unwrap_or(alone);
    (alone, alone.min(crowded))
}

impl Globals {
    /// What settings mean for a process that may run on these CPUs, and what there is to say about them.
    pub fn new(
        settings: Settings,
        allowed: &CpuSet,
        topology: impl Fn() -> Topology,
    ) -> (Self, Vec<String>) {
        let mut said = vec![];
        let host = settings.host();
        let nthreads_list: Vec<u32> = host
            .num_threads
            .iter()
            .flatten()
            .map(|&number| threads(number))
            .collect();
        let bind_list = host.proc_bind.clone().unwrap_or_default();
        let (places, bind) = places(&settings, &bind_list, allowed, topology, &mut said);
        let max_active_levels = match (host.max_active_levels, settings.nested) {
            (Some(levels), _) => levels.min(SUPPORTED_ACTIVE_LEVELS.into()) as u32,
            (None, Some(true)) => SUPPORTED_ACTIVE_LEVELS,
            (None, Some(false)) => 1,
            (None, None) if nthreads_list.len() > 1 || bind_list.len() > 1 => {
                SUPPORTED_ACTIVE_LEVELS
            }
            (None, None) => 1,
        };
        let (spin_count, crowded) = spin_counts(host.wait_policy, settings.spin_count);
        let patience = if host.wait_policy.is_some() || settings.spin_count.is_some() {
            Patience::Turns {
                alone: spin_count,
                crowded,
            }
        } else {
            Patience::Adaptive
        };
        let default_allocator = default_allocator(settings.allocator.as_ref(), &mut said);
        let usable = threads(allowed.len() as u64).max(1);
        let initial = Icv {
            nthreads: nthreads_list
                .first()
                .copied()
                .unwrap_or(settings.own.threads.map_or(usable, threads).min(usable)),
            thread_limit: host
                .thread_limit
                .filter(|&limit| limit <= THREADS_MAX)
                .map_or(u32::MAX, threads),
            schedule: host.schedule.unwrap_or(Schedule {
                kind: ScheduleKind::Dynamic,
                is_monotonic: false,
                chunk: 1,
            }),
            default_device: host.default_device.unwrap_or(0),
            dynamic: host.dynamic.unwrap_or(false),
            max_active_levels,
            bind,
        };
        let format = settings.affinity_format.clone();
        let globals = Self {
            initial,
            nthreads_list: if nthreads_list.len() > 1 {
                nthreads_list
            } else {
                vec![]
            },
            bind_list: if bind_list.len() > 1 {
                bind_list
            } else {
                vec![]
            },
            allowed: allowed.clone(),
            stack_bytes: stack_bytes(settings.stack_bytes(), &mut said),
            wait_policy: host.wait_policy,
            spin_count,
            patience,
            cancellation: settings.cancellation.unwrap_or(false),
            max_task_priority: settings.max_task_priority.unwrap_or(0),
            places,
            display_affinity: settings.display_affinity.unwrap_or(false),
            target_offload: settings.target_offload.unwrap_or(TargetOffload::Default),
            default_allocator,
            num_teams: AtomicI32::new(host.num_teams.unwrap_or(0)),
            teams_thread_limit: AtomicI32::new(host.teams_thread_limit.unwrap_or(0)),
            affinity_format: RwLock::new(
                format.unwrap_or_else(|| DEFAULT_AFFINITY_FORMAT.to_vec()),
            ),
            own: settings.own.clone(),
            settings,
        };
        (globals, said)
    }

    /// *affinity-format-var*.
    pub fn affinity_format(&self) -> Vec<u8> {
        let format = self.affinity_format.read();
        format.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `omp_set_affinity_format`.
    pub fn set_affinity_format(&self, format: &[u8]) {
        let mut old = self
            .affinity_format
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *old = format.to_vec();
    }

    /// CPUs that the process might run on when it began; at least 1.
    pub fn available_cpus(&self) -> u32 {
        threads(self.allowed.len() as u64).max(1)
    }

    /// What *nthreads-var* is inside of a region at `level` (the outermost region is at 1), if it was given.
    pub fn nthreads_at(&self, level: u32) -> Option<u32> {
        self.nthreads_list.get(level as usize).copied()
    }

    /// The same for *bind-var*.
    pub fn bind_at(&self, level: u32) -> Option<ProcBind> {
        self.bind_list.get(level as usize).copied()
    }
}

/// Where threads are bound to, and how.
fn places(
    settings: &Settings,
    bind_list: &[ProcBind],
    allowed: &CpuSet,
    topology: impl Fn() -> Topology,
    said: &mut Vec<String>,
) -> (Option<PlaceList>, ProcBind) {
    let bind = bind_list.first().copied();
    // Binding was forbidden, whatever places there are.
    if bind == Some(ProcBind::False) {
        return (None, ProcBind::False);
    }
    let given = [
        ("OMP_PLACES", &settings.places),
        ("GOMP_CPU_AFFINITY", &settings.cpu_affinity),
    ];
    for (name, spec) in given {
        let Some(spec) = spec else { continue };
        match PlaceList::resolve(spec, allowed, &topology) {
            Ok((list, left_out)) => {
                let (is, was) = (list.len() as usize, list.len() as usize + left_out);
                if left_out > 0 && name == "OMP_PLACES" {
                    said.push(format!(
                        "Number of places reduced from {was} to {is} because some places didn't contain any usable \
                         logical CPUs"
                    ));
                }
                return (Some(list), bind.unwrap_or(ProcBind::True));
            }
            Err(why) => {
                said.push(why.to_string());
                if why != Unusable::NoneWanted {
                    said.push(format!("Invalid value for environment variable {name}"));
                }
            }
        }
    }
    match bind {
        None => (None, ProcBind::False),
        Some(bind) => (PlaceList::threads(allowed, &topology()), bind),
    }
}

fn stack_bytes(given: Option<u64>, said: &mut Vec<String>) -> usize {
    let Some(given) = given else { return 0 };
    let (given, min) = (
        usize::try_from(given).unwrap_or(usize::MAX),
        libc::PTHREAD_STACK_MIN,
    );
    if given < min {
        said.push(format!(
            "Stack size less than minimum of {}k",
            min.div_ceil(1024)
        ));
        return 0;
    }
    given
}

fn default_allocator(given: Option<&DefaultAllocator>, said: &mut Vec<String>) -> Owned {
    match given {
        None => Owned::predefined(alloc::DEFAULT_MEM_ALLOC),
        Some(DefaultAllocator::Predefined(handle)) => Owned::predefined(*handle),
        Some(DefaultAllocator::Traits(memspace, traits, _)) => Owned::made(*memspace, traits)
            .unwrap_or_else(|| {
                said.push(
                    "Allocator of environment variable OMP_ALLOCATOR cannot be created, using \
                     omp_default_mem_alloc instead"
                        .into(),
                );
                Owned::predefined(alloc::DEFAULT_MEM_ALLOC)
            }),
    }
}

/// CPUs that the calling thread might run on at the first call.
pub fn look_at_cpus() -> &'static CpuSet {
    static ALLOWED: OnceLock<CpuSet> = OnceLock::new();
    fork::filled(&ALLOWED, || {
        amdahl_topology::allowed()
            .ok()
            .filter(|allowed| !allowed.is_empty())
            .unwrap_or_else(|| (0..sys::allowed_cpus()).collect())
    })
}

/// The process's variables, read at the first call. What there is to say about the environment is said then.
pub fn globals() -> &'static Globals {
    static GLOBALS: OnceLock<Globals> = OnceLock::new();
    fork::filled(&GLOBALS, || {
        let variables = sys::environment();
        let pairs = variables
            .iter()
            .map(|(name, value)| (&name[..], &value[..]));
        let (settings, mut said) = Settings::read(pairs, sys::is_secure());
        let allowed = look_at_cpus();
        let topology = || Topology::read(Path::new("/sys"), allowed);
        let (globals, more) = Globals::new(settings, allowed, topology);
        said.extend(more);
        for text in said {
            message::error(format_args!("{text}"));
        }
        if globals.settings.display_env != env::Display::False {
            let is_verbose = globals.settings.display_env == env::Display::Verbose;
            sys::write_error(display::environment(&globals, is_verbose).as_slice());
        }
        globals
    })
}

/// What is near to what on this machine, of the CPUs that the process might run on when it began. Read at the first call.
pub(crate) fn near() -> &'static Topology {
    static NEAR: OnceLock<Topology> = OnceLock::new();
    fork::filled(&NEAR, || {
        Topology::read_near(Path::new("/sys"), &globals().allowed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globals(variables: &[(&str, &str)], allowed: &str) -> (Globals, Vec<String>) {
        let pairs = variables
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let (settings, mut said) = Settings::read(pairs, false);
        let (globals, more) = Globals::new(settings, &allowed.parse().unwrap(), Topology::default);
        said.extend(more);
        (globals, said)
    }

    fn quiet(variables: &[(&str, &str)]) -> Globals {
        let (globals, said) = globals(variables, "0-3");
        assert_eq!(said, [""; 0], "{variables:?}");
        globals
    }

    #[test]
    fn without_variables_all_is_as_in_gccs_runtime() {
        let globals = quiet(&[]);
        let expected = Icv {
            nthreads: 4,
            thread_limit: u32::MAX,
            schedule: Schedule {
                kind: ScheduleKind::Dynamic,
                is_monotonic: false,
                chunk: 1,
            },
            default_device: 0,
            dynamic: false,
            max_active_levels: 1,
            bind: ProcBind::False,
        };
        assert_eq!(globals.initial, expected);
        assert!(globals.places.is_none());
        assert_eq!(globals.patience, Patience::Adaptive);
    }

    #[test]
    fn levels_of_nesting() {
        for (variables, levels) in [
            (vec![("OMP_NUM_THREADS", "4,2")], 255),
            (vec![("OMP_PROC_BIND", "spread,close")], 255),
            (vec![("OMP_NESTED", "true")], 255),
            (vec![("OMP_NESTED", "false"), ("OMP_NUM_THREADS", "4,2")], 1),
            (
                vec![("OMP_MAX_ACTIVE_LEVELS", "3"), ("OMP_NESTED", "true")],
                3,
            ),
            (vec![("OMP_MAX_ACTIVE_LEVELS", "0")], 0),
            (vec![("OMP_MAX_ACTIVE_LEVELS", "300")], 255),
            (vec![("OMP_MAX_ACTIVE_LEVELS_ALL", "7")], 7),
        ] {
            assert_eq!(
                quiet(&variables).initial.max_active_levels,
                levels,
                "{variables:?}"
            );
        }
        let globals = quiet(&[("OMP_NUM_THREADS", "5,4294967296,2")]);
        assert_eq!(globals.initial.nthreads, 5);
        assert_eq!(globals.nthreads_at(1), Some(i32::MAX.unsigned_abs()));
        assert_eq!(
            (globals.nthreads_at(2), globals.nthreads_at(3)),
            (Some(2), None)
        );
        assert_eq!(quiet(&[("OMP_NUM_THREADS", "5")]).nthreads_at(0), None);
    }

    #[test]
    fn our_own_number_of_threads_counts_where_nobody_has_said_another() {
        let own = ("AMDAHL_OMP_THREADS", "1");
        let nthreads = |variables: &[_]| quiet(variables).initial.nthreads;
        assert_eq!(nthreads(&[own]), 1);
        for name in ["OMP_NUM_THREADS", "OMP_NUM_THREADS_ALL"] {
            assert_eq!(nthreads(&[own, (name, "7,2")]), 7);
        }
        // A program that is started with fewer CPUs has no more threads for it.
        assert_eq!(nthreads(&[("AMDAHL_OMP_THREADS", "4000")]), nthreads(&[]));
    }

    #[test]
    fn places_bring_binding_and_binding_brings_places() {
        let given = quiet(&[("OMP_PLACES", "{0:2},{2}")]);
        assert_eq!(given.initial.bind, ProcBind::True);
        assert_eq!(
            given.places.map(|list| list.to_string()).as_deref(),
            Some("{0:2},{2}")
        );
        let bound = quiet(&[("OMP_PROC_BIND", "spread")]);
        assert_eq!(bound.places.map(|list| list.len()), Some(4));
        let forbidden = quiet(&[("OMP_PROC_BIND", "false"), ("OMP_PLACES", "threads")]);
        assert!(forbidden.places.is_none());
        let cpus = quiet(&[("GOMP_CPU_AFFINITY", "3 1")]);
        assert_eq!(
            cpus.places.map(|list| list.to_string()).as_deref(),
            Some("{3},{1}")
        );
        let (other, said) = globals(&[("OMP_PLACES", "{9}"), ("GOMP_CPU_AFFINITY", "0")], "0-3");
        assert_eq!(other.places.map(|list| list.len()), Some(1));
        assert_eq!(
            said,
            [
                "None of the places contain usable logical CPUs",
                "Invalid value for environment variable OMP_PLACES"
            ]
        );
    }

    #[test]
    fn how_long_to_spin() {
        for (variables, alone, crowded) in [
            (vec![("OMP_WAIT_POLICY", "active")], 30_000_000_000, 1000),
            (vec![("OMP_WAIT_POLICY", "passive")], 0, 0),
            (vec![("GOMP_SPINCOUNT", "50")], 50, 50),
            (vec![("GOMP_SPINCOUNT", "infinite")], u64::MAX, 100),
            (
                vec![("GOMP_SPINCOUNT", "5k"), ("OMP_WAIT_POLICY", "passive")],
                5000,
                0,
            ),
        ] {
            let expected = Patience::Turns { alone, crowded };
            assert_eq!(quiet(&variables).patience, expected, "{variables:?}");
        }
    }

    #[test]
    fn stacks_and_limits() {
        assert_eq!(quiet(&[("OMP_STACKSIZE", "2 M")]).stack_bytes, 2 << 20);
        // The least that there may be is 16 KiB on x86-64, 128 KiB on arm64.
        let kib = quiet(&[("GOMP_STACKSIZE", "256")]).stack_bytes;
        assert_eq!(kib, 256 << 10);
        let (small, said) = globals(&[("OMP_STACKSIZE", "1B")], "0");
        assert_eq!(small.stack_bytes, 0);
        assert_eq!(said.len(), 1);
        assert_eq!(quiet(&[("OMP_THREAD_LIMIT", "7")]).initial.thread_limit, 7);
        let large = quiet(&[("OMP_THREAD_LIMIT", "2147483648")]);
        assert_eq!(large.initial.thread_limit, u32::MAX);
    }

    #[test]
    fn a_default_allocator_with_traits_is_made() {
        let made = quiet(&[(
            "OMP_ALLOCATOR",
            "omp_default_mem_space:alignment=64,pool_size=1024",
        )]);
        assert!(made.default_allocator.handle() > 1000, "an address");
        let (refused, said) = globals(
            &[("OMP_ALLOCATOR", "omp_high_bw_mem_space:pinned=true")],
            "0",
        );
        assert_eq!(refused.default_allocator.handle(), alloc::DEFAULT_MEM_ALLOC);
        assert_eq!(said.len(), 1);
    }

    #[test]
    fn schedules_are_given_back_as_they_were_set() {
        for (kind, chunk) in [
            (1, 0),
            (1, 7),
            (2, 1),
            (3, 9),
            (4, 1),
            (0x8000_0001, 0),
            (0x8000_0003, 4),
        ] {
            let schedule = Schedule::from_raw(kind, chunk).expect("a kind");
            assert_eq!(schedule.to_raw(), (kind, chunk));
        }
        assert_eq!(Schedule::from_raw(1, -3).map(|s| s.chunk), Some(0));
        assert_eq!(Schedule::from_raw(2, 0).map(|s| s.chunk), Some(1));
        assert_eq!(Schedule::from_raw(5, 1), None);
        assert_eq!(Schedule::from_raw(0, 1), None);
    }
}
