//! The places of a cause: code, who runs it, and what it is about.

use std::collections::HashMap;

use amdahl_probe::bpf::{Decoded, Decoder};
use amdahl_report::schema::Site;
use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{CallStack, Frame, StackId};
use amdahl_speedup::primitive::kernel_frame;

use super::explain::{Piece, frames, object_text, own_frame, thread_names};
use super::run::Probed;

/// Sites of a cause at most.
const SITES_MAX: usize = 20;
/// Stacks that are named in full for a cause at most: few of many thousand ever matter.
const STACKS_MAX: usize = 400;

/// What has one stack, or if none is known one object.
struct Group<'a> {
    ns: f64,
    /// The dearest of it.
    most: &'a Piece,
    objects: HashMap<u64, f64>,
}

/// What a site is told apart by. Numbers of objects are not in it: a site that takes any of a thousand locks is one.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    process: String,
    code: Code,
}

#[derive(PartialEq, Eq, Hash)]
enum Code {
    Known {
        symbol: String,
        module: String,
        line: Option<(String, u32)>,
    },
    /// No code is known: the object stands in its place.
    Object(u64),
}

/// A site with what it is about.
struct Found {
    site: Site,
    kernel: String,
    objects: HashMap<u64, f64>,
}

/// Calls on different lines of a function wait for different things. Where a CPU is at work its lines are parts of one.
fn has_lines(cause: Cause) -> bool {
    use Cause::*;
    matches!(
        cause,
        KernelLock | MmapLock | LockWait | Barrier | Partner | Io | Sleep
    )
}

/// The sites of `pieces`, which are those of `cause` and together `fraction` of the capacity, in falling order.
pub(super) fn sites(
    run: &Probed,
    decoder: &mut Decoder,
    cause: Cause,
    pieces: &[&Piece],
    fraction: f64,
) -> Vec<Site> {
    let total: f64 = pieces.iter().map(|piece| piece.ns).sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let mut found: HashMap<Key, Found> = HashMap::new();
    for (id, group) in by_stack(pieces) {
        let stack = id.map(|id| decoder.full(&run.decoded, id));
        let (process, thread, _) = thread_names(&run.decoded, group.most.tid);
        let frame = stack.as_ref().and_then(own_frame);
        let key = Key {
            process: process.clone(),
            code: match frame {
                Some(frame) => known(frame, has_lines(cause)),
                None => Code::Object(group.most.object),
            },
        };
        let found = found.entry(key).or_insert_with(|| Found {
            site: Site {
                symbol: frame.map_or_else(String::new, |frame| frame.symbol.clone()),
                file: frame.and_then(|frame| frame.file.clone()),
                line: frame.and_then(|frame| frame.line),
                module: frame.map(|frame| frame.module.clone()).unwrap_or_default(),
                stack: stack.as_ref().map(frames).unwrap_or_default(),
                process,
                thread,
                ..Site::default()
            },
            kernel: {
                let object = object_text(&run.decoded, cause, group.most.object);
                in_the_kernel(cause, stack.as_ref(), !object.is_empty())
            },
            objects: HashMap::new(),
        });
        let shown = fraction * group.ns / total;
        found.site.fraction += shown;
        found.site.seconds += shown * run.measured.capacity_ns * 1e-9;
        for (object, ns) in group.objects {
            *found.objects.entry(object).or_default() += ns;
        }
    }
    let told = found.into_values();
    let mut sites: Vec<Site> = told.map(|found| found.told(&run.decoded, cause)).collect();
    sites.sort_by(|a, b| b.fraction.total_cmp(&a.fraction));
    sites.truncate(SITES_MAX);
    sites
}

/// The dearest groups, in falling order.
fn by_stack<'a>(pieces: &[&'a Piece]) -> Vec<(Option<StackId>, Group<'a>)> {
    let mut groups: HashMap<(Option<StackId>, u64), Group> = HashMap::new();
    for &piece in pieces {
        let object = if piece.stack.is_some() {
            0
        } else {
            piece.object
        };
        let group = groups
            .entry((piece.stack, object))
            .or_insert_with(|| Group {
                ns: 0.0,
                most: piece,
                objects: HashMap::new(),
            });
        group.ns += piece.ns;
        *group.objects.entry(piece.object).or_default() += piece.ns;
        if piece.ns > group.most.ns {
            group.most = piece;
        }
    }
    let groups = groups.into_iter().map(|((stack, _), group)| (stack, group));
    let mut groups: Vec<_> = groups.collect();
    groups.sort_by(|a, b| b.1.ns.total_cmp(&a.1.ns));
    groups.truncate(STACKS_MAX);
    groups
}

fn known(frame: &Frame, has_lines: bool) -> Code {
    let line = has_lines.then(|| Some((frame.file.clone()?, frame.line?)));
    Code::Known {
        symbol: frame.symbol.clone(),
        module: frame.module.clone(),
        line: line.flatten(),
    }
}

impl Found {
    fn told(self, decoded: &Decoded, cause: Cause) -> Site {
        let Found {
            mut site,
            kernel,
            objects,
        } = self;
        let object = objects_text(&objects, |object| object_text(decoded, cause, object));
        site.object = format!("{object} {kernel}").trim().to_owned();
        if site.symbol.is_empty() {
            site.symbol.clone_from(&site.object);
        }
        site
    }
}

/// The object that most of the time is of, one that is known if there is any, and how much that is where there are others.
fn objects_text(objects: &HashMap<u64, f64>, text: impl Fn(u64) -> String) -> String {
    let all: f64 = objects.values().sum();
    let most = objects.iter().max_by(|(a, a_ns), (b, b_ns)| {
        let is_known = (**a != 0).cmp(&(**b != 0));
        is_known.then(a_ns.total_cmp(b_ns)).then(b.cmp(a))
    });
    let Some((&object, ns)) = most else {
        return String::new();
    };
    let text = text(object);
    let share = 100.0 * ns / all;
    match objects.len() - 1 {
        _ if text.is_empty() => text,
        0 => text,
        1 => format!("{text} ({share:.0} %) and another"),
        others => format!("{text} ({share:.0} %) and {others} others"),
    }
}

/// What the kernel was asked to do where that is all that is known of an object, or the function that wants a lock of the kernel.
fn in_the_kernel(cause: Cause, stack: Option<&CallStack>, has_object: bool) -> String {
    let Some(stack) = stack else {
        return String::new();
    };
    let entry = kernel_entry(stack).filter(|_| !has_object);
    let function = entry.or_else(|| lock_site(cause, stack));
    function.map_or_else(String::new, |function| {
        format!("in the kernel's {function}")
    })
}

/// What the kernel was asked to do: the system call or the fault.
fn kernel_entry(stack: &CallStack) -> Option<&str> {
    const GLUE: &[&str] = &[
        "entry_SYSCALL",
        "do_syscall",
        "x64_sys_call",
        "el0",
        "__el0",
        "do_el0",
        "invoke_syscall",
        "[unknown]",
        "asm_exc",
        "exc_",
    ];
    let mut outward = stack.kernel.iter().rev().map(|frame| frame.symbol.as_str());
    outward.find(|symbol| !GLUE.iter().any(|glue| symbol.starts_with(glue)))
}

/// The function of the kernel that wants the lock.
fn lock_site(cause: Cause, stack: &CallStack) -> Option<&str> {
    let is_of_kernel = matches!(cause, Cause::KernelLock | Cause::MmapLock);
    let wants = kernel_frame(stack).filter(|_| is_of_kernel)?;
    Some(&wants.symbol)
        .filter(|symbol| *symbol != "[unknown]")
        .map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_most_time_is_of_is_named_with_its_share_of_several() {
        let name = |object: u64| match object {
            0 => String::new(),
            object => format!("lock {object:#x}"),
        };
        let told = |objects: &[(u64, f64)]| objects_text(&objects.iter().copied().collect(), name);
        assert_eq!(told(&[]), "");
        assert_eq!(told(&[(0, 1.0)]), "");
        assert_eq!(told(&[(0xa, 1.0)]), "lock 0xa");
        assert_eq!(told(&[(0, 3.0), (0xa, 1.0)]), "lock 0xa (25 %) and another");
        assert_eq!(
            told(&[(0xa, 1.0), (0xb, 3.0)]),
            "lock 0xb (75 %) and another"
        );
        assert_eq!(
            told(&[(0xc, 1.0), (0xa, 1.0), (0xb, 1.0)]),
            "lock 0xa (33 %) and 2 others"
        );
    }
}
