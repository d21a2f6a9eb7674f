//! The speedup stack of n CPUs, from runs on n and on one.
//!
//! After Eyerman, Du Bois and Eeckhout, *Speedup Stacks: Identifying Scaling
//! Bottlenecks in Multi-Threaded Applications* (ISPASS 2012): lost speedup is
//! divided among causes that add up. They use hardware proposals to tell what
//! multi-threading added; here the one-CPU run is the reference.

use rustc_hash::FxHashMap;

use crate::cause::Cause;
use crate::event::{StackTable, Tid};
use crate::partition::{Activity, RunPartition};
use crate::progress::Progress;

/// A function of the program: the symbol of the innermost user frame.
pub type Function = u64;

/// One run, ready to be compared.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Capacity in CPU nanoseconds.
    pub capacity_ns: f64,
    /// Off-CPU and foreign time by cause.
    pub off_ns: FxHashMap<Cause, f64>,
    /// On-CPU time by activity.
    pub on_ns: FxHashMap<Activity, f64>,
    /// User time (not spinning) by function.
    pub user_ns: FxHashMap<Function, f64>,
    /// Steal reported by the hypervisor for the watched CPUs while the workload held them.
    pub steal_ns: f64,
    /// User instructions outside spin loops, where counted.
    pub instructions: Option<f64>,
    /// The same by function, as samples divide them.
    pub user_instructions: FxHashMap<Function, f64>,
    /// Rates of progress.
    pub progress: Progress,
    /// Work done relative to other runs; 1 for programs whose work does not depend on time.
    pub work: f64,
}

/// Stable id of a function for [`Measured::user_ns`].
pub fn function_id(symbol: &str) -> Function {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    symbol.hash(&mut hasher);
    hasher.finish()
}

impl Measured {
    /// Condenses one run. `steal_ns` is what the hypervisor took from the watched CPUs, and
    /// `instructions` counts those of the workload in user mode, both as far as the run is accounted for.
    pub fn new(
        run: &RunPartition,
        stacks: &StackTable,
        steal_ns: f64,
        instructions: Option<f64>,
        progress: Progress,
    ) -> Measured {
        let mut measured = Measured {
            capacity_ns: run.capacity_ns(),
            progress,
            work: 1.0,
            ..Measured::default()
        };
        for (key, charge) in &run.off {
            *measured.off_ns.entry(key.cause).or_default() += charge.ns;
        }
        // What the hypervisor took from busy CPUs is not the program's; it falls on who was running.
        let busy = run.on_cpu_ns + run.other_ns;
        let of_workload = if busy > 0.0 {
            steal_ns * run.on_cpu_ns / busy
        } else {
            0.0
        };
        measured.steal_ns = of_workload.min(run.on_cpu_ns);
        let keep = if run.on_cpu_ns > 0.0 {
            1.0 - measured.steal_ns / run.on_cpu_ns
        } else {
            1.0
        };
        // Samples go on where nothing else is known.
        let accounted = run.accounted();
        let mut spin_instructions = 0.0;
        for (&(activity, _, stack), charge) in &run.on {
            *measured.on_ns.entry(activity).or_default() += charge.ns * keep;
            if activity == Activity::User {
                *measured
                    .user_ns
                    .entry(function_of(stacks, stack.0))
                    .or_default() += charge.ns * keep;
            }
        }
        for (&(_, stack), &count) in &run.instructions {
            let count = count as f64 * accounted;
            if stacks
                .get(stack.0 as usize)
                .is_some_and(|stack| stack.in_spin_loop)
            {
                spin_instructions += count;
            } else {
                *measured
                    .user_instructions
                    .entry(function_of(stacks, stack.0))
                    .or_default() += count;
            }
        }
        measured.instructions = instructions.map(|all| (all - spin_instructions).max(0.0));
        // Tracepoints time spin locks exactly; samples may be blind while interrupts are off, and
        // then see that time where interrupts come back on, in other kernel code.
        let sampled = measured.on(Activity::KernelLock) + measured.on(Activity::MmapLock);
        let unseen = (run.spun_ns - sampled)
            .max(0.0)
            .min(measured.on(Activity::Kernel));
        if unseen > 0.0 {
            *measured.on_ns.entry(Activity::KernelLock).or_default() += unseen;
            *measured.on_ns.entry(Activity::Kernel).or_default() -= unseen;
        }
        // Without a single sample nothing is known about what ran.
        measured
    }

    /// Time on CPUs of one kind.
    pub fn on(&self, activity: Activity) -> f64 {
        self.on_ns.get(&activity).copied().unwrap_or(0.0)
    }

    /// Idle and foreign time of one cause.
    pub fn off(&self, cause: Cause) -> f64 {
        self.off_ns.get(&cause).copied().unwrap_or(0.0)
    }

    /// The same with all times and counts multiplied: a part of a run that stands for the whole.
    pub fn scaled(mut self, factor: f64) -> Measured {
        self.capacity_ns *= factor;
        self.steal_ns *= factor;
        self.instructions = self.instructions.map(|count| count * factor);
        let times = self.off_ns.values_mut().chain(self.on_ns.values_mut());
        let by_function = self
            .user_ns
            .values_mut()
            .chain(self.user_instructions.values_mut());
        for ns in times.chain(by_function) {
            *ns *= factor;
        }
        self
    }

    /// The mean of several runs.
    pub fn mean(runs: &[Measured]) -> Measured {
        let n = runs.len().max(1) as f64;
        let mut mean = Measured {
            work: 0.0,
            ..Measured::default()
        };
        for run in runs {
            mean.capacity_ns += run.capacity_ns / n;
            mean.steal_ns += run.steal_ns / n;
            mean.work += run.work / n;
            for (&cause, ns) in &run.off_ns {
                *mean.off_ns.entry(cause).or_default() += ns / n;
            }
            for (&activity, ns) in &run.on_ns {
                *mean.on_ns.entry(activity).or_default() += ns / n;
            }
            for (&function, ns) in &run.user_ns {
                *mean.user_ns.entry(function).or_default() += ns / n;
            }
            for (&function, count) in &run.user_instructions {
                *mean.user_instructions.entry(function).or_default() += count / n;
            }
            mean.progress.merge(&run.progress);
        }
        let counted: Option<Vec<f64>> = runs.iter().map(|run| run.instructions).collect();
        mean.instructions = counted
            .filter(|all| !all.is_empty())
            .map(|all| all.iter().sum::<f64>() / n);
        mean
    }
}

fn function_of(stacks: &StackTable, stack: u32) -> Function {
    let symbol = stacks
        .get(stack as usize)
        .and_then(|stack| stack.user.first())
        .map_or("", |frame| frame.symbol.as_str());
    function_id(symbol)
}

/// A speedup stack: fractions of capacity that add up to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stack {
    /// By cause; absent is 0.
    pub fractions: FxHashMap<Cause, f64>,
}

impl Stack {
    /// Fraction of `cause`.
    pub fn get(&self, cause: Cause) -> f64 {
        self.fractions.get(&cause).copied().unwrap_or(0.0)
    }
}

/// How user time beyond the one-CPU run divides, function by function.
#[derive(Clone, Debug, Default)]
pub struct UserGrowth {
    /// Nanoseconds of more instructions.
    pub extra_ns: f64,
    /// Nanoseconds of slower instructions.
    pub slow_ns: f64,
    /// The same function by function.
    pub functions: FxHashMap<Function, FunctionGrowth>,
    /// By what the two were told apart.
    pub told_by: ToldBy,
}

/// What one function takes, against the same work on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FunctionGrowth {
    /// User nanoseconds, without spinning.
    pub ns: f64,
    /// What they were on one CPU, for as much work.
    pub base_ns: f64,
    /// Growth by more instructions; negative for fewer.
    pub extra_ns: f64,
    /// Growth by slower instructions; negative for faster ones.
    pub slow_ns: f64,
    /// Instructions relative to one CPU, where they are counted and seen on both.
    pub instructions_ratio: Option<f64>,
    /// Time per instruction relative to one CPU, by counters or by the progress of loops.
    pub slowdown: Option<f64>,
}

impl FunctionGrowth {
    fn of(function: Function, run: &Measured, base: &Measured, scale: f64) -> FunctionGrowth {
        let at = |of: &FxHashMap<Function, f64>| of.get(&function).copied().unwrap_or(0.0);
        let (ns, base_ns) = (at(&run.user_ns), at(&base.user_ns) * scale);
        let (count, base_count) = (
            at(&run.user_instructions),
            at(&base.user_instructions) * scale,
        );
        let counted = ns > 0.0 && base_ns > 0.0 && count > 0.0 && base_count > 0.0;
        let instructions_ratio = counted.then(|| count / base_count);
        let slowdown = match instructions_ratio {
            Some(more) => Some(ns / base_ns / more),
            None => run.progress.slowdown(&base.progress, function),
        };
        let (extra_ns, slow_ns) = match slowdown {
            Some(slowdown) => (ns / slowdown - base_ns, ns - ns / slowdown),
            // Code that one CPU hardly runs at all is more work; what both run is slower work.
            None if base_ns < 0.05 * ns => (ns - base_ns, 0.0),
            // What only one CPU runs is less work.
            None if ns == 0.0 => (-base_ns, 0.0),
            None => (0.0, ns - base_ns),
        };
        FunctionGrowth {
            ns,
            base_ns,
            extra_ns,
            slow_ns,
            instructions_ratio,
            slowdown,
        }
    }
}

/// By what extra work and slow work were told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToldBy {
    /// Hardware instruction counts.
    Instructions,
    /// Rates of progress of loops ([`crate::progress`]).
    Progress,
    /// Nothing: growth of known code counts as slow, new code as extra.
    #[default]
    Nothing,
}

/// Divides the growth of user time over `base`, whose work is scaled by `scale`.
pub fn user_growth(run: &Measured, base: &Measured, scale: f64) -> UserGrowth {
    let mut growth = UserGrowth::default();
    let total = |measured: &Measured| measured.user_ns.values().sum::<f64>();
    let (here, there) = (total(run), total(base) * scale);
    let mut told = 0.0;
    for &function in run.user_ns.keys().chain(base.user_ns.keys()) {
        let of_function = FunctionGrowth::of(function, run, base, scale);
        if growth.functions.insert(function, of_function).is_none()
            && of_function.slowdown.is_some()
        {
            told += (of_function.ns - of_function.base_ns).abs();
        }
    }
    let grown = here - there;
    let (mut extra, mut slow) = match (run.instructions, base.instructions) {
        (Some(n), Some(one)) if n > 0.0 && one > 0.0 && there > 0.0 => {
            growth.told_by = ToldBy::Instructions;
            let one = one * scale;
            let ns_per_instruction = there / one;
            let extra = (n - one) * ns_per_instruction;
            (extra, grown - extra)
        }
        _ => {
            if told > 0.0 {
                growth.told_by = ToldBy::Progress;
            }
            let functions = growth.functions.values();
            let (extra, slow): (Vec<f64>, Vec<f64>) =
                functions.map(|of| (of.extra_ns, of.slow_ns)).unzip();
            (extra.iter().sum(), slow.iter().sum())
        }
    };
    // The two must add up to the growth; a negative one is noise or less work, and reduces the other.
    if grown <= 0.0 {
        (extra, slow) = (0.0, 0.0);
    } else if extra < 0.0 {
        (extra, slow) = (0.0, grown);
    } else if slow < 0.0 {
        (extra, slow) = (grown, 0.0);
    }
    growth.extra_ns = extra;
    growth.slow_ns = slow;
    growth
}

/// The stack of `run` against the one-CPU run `base` (`None`: there is none; then all CPU time
/// that is not lost by itself counts as work).
pub fn speedup_stack(run: &Measured, base: Option<&Measured>) -> (Stack, UserGrowth) {
    let mut ns: FxHashMap<Cause, f64> = run.off_ns.clone();
    let mut add = |cause: Cause, amount: f64| *ns.entry(cause).or_default() += amount.max(0.0);
    let beyond = |activity: Activity, scale: f64| match base {
        Some(base) => (run.on(activity) - base.on(activity) * scale).max(0.0),
        None => 0.0,
    };
    let scale = base.map_or(1.0, |base| {
        if base.work > 0.0 {
            run.work / base.work
        } else {
            1.0
        }
    });
    let growth = base
        .map(|base| user_growth(run, base, scale))
        .unwrap_or_default();
    let fault = beyond(Activity::PageFault, scale);
    let kernel = beyond(Activity::Kernel, scale);
    let work = (run.on(Activity::User) - growth.extra_ns - growth.slow_ns)
        + (run.on(Activity::PageFault) - fault)
        + (run.on(Activity::Kernel) - kernel);
    add(Cause::Work, work);
    add(Cause::ExtraWork, growth.extra_ns);
    add(Cause::SlowWork, growth.slow_ns);
    add(Cause::PageFault, fault);
    add(Cause::ExtraKernel, kernel);
    add(Cause::UserSpin, run.on(Activity::UserSpin));
    add(Cause::KernelLock, run.on(Activity::KernelLock));
    add(Cause::MmapLock, run.on(Activity::MmapLock));
    add(Cause::Stolen, run.on(Activity::Interrupt) + run.steal_ns);
    let capacity = run.capacity_ns.max(1.0);
    let mut stack = Stack::default();
    let mut sum = 0.0;
    for (cause, ns) in ns {
        if cause != Cause::Unexplained {
            stack.fractions.insert(cause, ns / capacity);
            sum += ns / capacity;
        }
    }
    // Whatever the events do not account for. Rounding aside it cannot be negative, since CPUs are
    // never charged twice; if it were, the parts are scaled so that they still add up.
    if sum > 1.0 {
        for fraction in stack.fractions.values_mut() {
            *fraction /= sum;
        }
        sum = 1.0;
    }
    stack.fractions.insert(Cause::Unexplained, 1.0 - sum);
    let _ = run.off(Cause::Work);
    (stack, growth)
}

/// CPU time by thread, for choosing names.
pub fn busiest(threads: &FxHashMap<Tid, f64>) -> Option<Tid> {
    threads
        .iter()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .map(|(&tid, _)| tid)
}
