//! Sets of BPF programs, and what becomes of them: loaded, attached, detached.

use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, ProgramError};
use aya::util::KernelVersion;
use aya::{Btf, Ebpf};

use super::error::{RecorderError, chain};

/// One set of programs that record: an object built from a `.bpf.c` beside this file, and where they
/// are attached.
#[derive(Debug)]
pub struct Programs {
    /// The object, aligned as ELF wants it.
    pub object: &'static [u8],
    /// What they are attached to.
    pub tracepoints: &'static [Tracepoint],
    /// It has `on_time` and `on_instructions`, which take on-CPU samples, and counts both.
    pub samples: bool,
    /// Threads are of the workload until they leave their CPU for the last time, which is told.
    pub tell_last_switch: bool,
}

/// A program and its tracepoint.
#[derive(Debug)]
pub struct Tracepoint {
    /// Name of the program in the object.
    pub program: &'static str,
    /// Name of the tracepoint in the kernel.
    pub hook: &'static str,
    /// There is no recording without it.
    pub needed: bool,
    /// When it is attached.
    pub held: Held,
}

/// When a program is attached, in a recording that keeps to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// All the time.
    Throughout,
    /// In windows.
    InWindows,
    /// From shortly before the first gap on.
    SinceGaps,
}

impl Tracepoint {
    /// The same, attached at other times.
    pub(super) const fn held(self, held: Held) -> Tracepoint {
        Tracepoint { held, ..self }
    }
}

/// The object `$name` for this machine, as a constant expression.
macro_rules! object {
    ($name:literal) => {{
        #[cfg(target_arch = "x86_64")]
        let object: &[u8] = aya::include_bytes_aligned!(concat!($name, ".x86_64.bpf.o"));
        #[cfg(target_arch = "aarch64")]
        let object: &[u8] = aya::include_bytes_aligned!(concat!($name, ".aarch64.bpf.o"));
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let object: &[u8] = &[];
        object
    }};
}
pub(super) use object;

/// A tracepoint without which there is no recording.
pub(super) const fn needed(program: &'static str, hook: &'static str) -> Tracepoint {
    Tracepoint {
        program,
        hook,
        needed: true,
        held: Held::Throughout,
    }
}

/// A tracepoint that some kernels lack.
pub(super) const fn wanted(program: &'static str, hook: &'static str) -> Tracepoint {
    Tracepoint {
        program,
        hook,
        needed: false,
        held: Held::Throughout,
    }
}

/// All that a speedup stack is made of.
pub static SCALE: Programs = Programs {
    object: object!("record"),
    tracepoints: &[
        needed("on_switch", "sched_switch").held(Held::InWindows),
        needed("on_waking", "sched_waking").held(Held::InWindows),
        needed("on_migrate", "sched_migrate_task").held(Held::InWindows),
        needed("on_fork", "sched_process_fork"),
        needed("on_exit", "sched_process_exit").held(Held::SinceGaps),
        needed("on_free", "sched_process_free").held(Held::SinceGaps),
        wanted("on_rename", "task_rename"),
        // Inlined into every slow path of a lock: attaching them takes as long as ten others.
        wanted("on_contention_begin", "contention_begin"),
        wanted("on_contention_end", "contention_end"),
        wanted("on_hrtimer_expire_entry", "hrtimer_expire_entry"),
        wanted("on_hrtimer_expire_exit", "hrtimer_expire_exit"),
        wanted("on_timer_expire_entry", "timer_expire_entry"),
        wanted("on_timer_expire_exit", "timer_expire_exit"),
        wanted("on_irq_handler_entry", "irq_handler_entry"),
        wanted("on_irq_handler_exit", "irq_handler_exit"),
    ],
    samples: true,
    tell_last_switch: true,
};

/// While recording: runs without the probe must not pay for it.
pub type Links = Vec<(&'static str, BtfTracePointLinkId)>;

/// Loads what the kernel takes.
pub fn load_all(
    programs: &Programs,
    bpf: &mut Ebpf,
    btf: &Btf,
) -> Result<Vec<&'static Tracepoint>, RecorderError> {
    let mut loaded = Vec::new();
    for tracepoint in programs.tracepoints {
        match load(bpf, tracepoint.program, tracepoint.hook, btf) {
            Ok(()) => loaded.push(tracepoint),
            Err(why) if tracepoint.needed && is_too_old() => {
                let needed = OLDEST.1;
                return Err(RecorderError::TooOld { needed, why });
            }
            Err(why) if tracepoint.needed => {
                let hook = tracepoint.hook.to_owned();
                return Err(RecorderError::Attach { hook, why });
            }
            Err(_) => {}
        }
    }
    Ok(loaded)
}

/// Whether the kernel has a tracepoint to which programs can be attached; `None` where it does not tell its types.
pub fn has_tracepoint(hook: &str) -> Option<bool> {
    let types = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
    let name = format!("btf_trace_{hook}");
    let mut names = types.split(|&byte| byte == 0);
    Some(names.any(|other| other == name.as_bytes()))
}

/// The program of that name.
pub fn tracepoint<'a>(bpf: &'a mut Ebpf, program: &str) -> Result<&'a mut BtfTracePoint, String> {
    bpf.program_mut(program)
        .ok_or("not in the object")?
        .try_into()
        .map_err(|error: aya::programs::ProgramError| chain(&error))
}

fn load(bpf: &mut Ebpf, program: &str, hook: &str, btf: &Btf) -> Result<(), String> {
    let program = tracepoint(bpf, program)?;
    program.load(hook, btf).map_err(|error| refusal(&error))
}

/// What the programs need is `bpf_task_pt_regs`, and atomic operations that return the old value,
/// which arm64 got later.
const OLDEST: (KernelVersion, &str) = if cfg!(target_arch = "aarch64") {
    (KernelVersion::new(5, 18, 0), "5.18")
} else {
    (KernelVersion::new(5, 15, 0), "5.15")
};

/// Asked only after a refusal: distributions add what is newer to older kernels.
fn is_too_old() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel < OLDEST.0)
}

/// What the kernel has against a program.
pub fn refusal(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => match verdict(&verifier_log.to_string()) {
            "" => io_error.to_string(),
            verdict => format!("{io_error}: {verdict}"),
        },
        other => chain(other),
    }
}

/// The verifier's last word: before it are the instructions, after it statistics.
fn verdict(log: &str) -> &str {
    const STATISTICS: &[&str] = &["verification time ", "stack depth ", "processed "];
    let is_statistics = |line: &&str| STATISTICS.iter().any(|text| line.starts_with(text));
    let mut lines = log.lines().map(str::trim).rev();
    lines
        .find(|line| !line.is_empty() && !is_statistics(line))
        .unwrap_or_default()
}

/// Attaches all of `loaded` that are `wanted`, or none.
pub fn attach(
    bpf: &mut Ebpf,
    loaded: &[&'static Tracepoint],
    wanted: impl Fn(Held) -> bool,
) -> Result<Links, RecorderError> {
    let mut links = Links::new();
    let wanted = loaded.iter().filter(|tracepoint| wanted(tracepoint.held));
    for &&Tracepoint { program, hook, .. } in wanted {
        let link = tracepoint(bpf, program)
            .and_then(|program| program.attach().map_err(|error| chain(&error)));
        match link {
            Ok(link) => links.push((program, link)),
            Err(why) => {
                detach(bpf, links);
                let hook = hook.to_owned();
                return Err(RecorderError::Attach { hook, why });
            }
        }
    }
    Ok(links)
}

/// Undoes it.
pub fn detach(bpf: &mut Ebpf, links: Links) {
    for (program, link) in links {
        if let Ok(program) = tracepoint(bpf, program) {
            // A link that is gone already is what is wanted.
            let _ = program.detach(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifier_s_verdict_is_one_line() {
        let log = "0: (bf) r6 = r1\nBPF_STX uses reserved fields\nverification time 185 usec\n\
                   stack depth 0\nprocessed 0 insns (limit 1000000) max_states_per_insn 0\n";
        assert_eq!(verdict(log), "BPF_STX uses reserved fields");
        assert_eq!(verdict(""), "");
    }
}
