//! Policies by name.

use std::str::FromStr;
use std::time::Duration;

use crate::affine::Affine;
use crate::balance::{Newidle, Periodic};
use crate::bounded::Bounded;
use crate::compose::{Composed, WakePart};
use crate::dispatcher::{AskDispatcher, Dispatcher};
use crate::groups::{GroupSize, Groups, StealGroups};
use crate::linux::Scan;
use crate::numa::Numa;
use crate::single::Single;
use crate::steal::{Idlest, Steal};
use crate::{Distance, Policy, Spin};

/// A row of the table of policies.
pub struct Named {
    /// What it is called.
    pub name: &'static str,
    /// What `=value` behind the name means; empty if nothing may follow.
    pub value: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// When not to use it.
    pub bad_case: &'static str,
    /// Makes it the first part of a policy; `None` if it cannot be that.
    base: Option<Base>,
    /// Adds it to a policy; `None` if it must be the first part.
    add: Option<Add>,
}

type Base = fn(&str) -> Result<Composed, &'static str>;
type Add = fn(Composed, &str) -> Result<Composed, &'static str>;

impl Named {
    /// Whether the name may stand first, and so is a policy of its own.
    pub fn is_policy(&self) -> bool {
        self.base.is_some()
    }

    /// Whether the name may stand behind a `+`.
    pub fn is_addition(&self) -> bool {
        self.add.is_some()
    }
}

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No such name.
    #[error("there is no policy `{name}`: choose from {}", names(|_| true))]
    Unknown {
        /// As given, cut after 40 characters.
        name: String,
    },
    /// A part that cannot begin a policy.
    #[error(
        "`{name}` only adds to a policy: write POLICY+{name}, with one of {}",
        names(Named::is_policy)
    )]
    NotFirst {
        /// The part.
        name: &'static str,
    },
    /// A policy that adds nothing to another.
    #[error(
        "`{name}` cannot be added to a policy: put it first; what can be added is {}",
        names(Named::is_addition)
    )]
    NotAdded {
        /// The part.
        name: &'static str,
    },
    /// A value that the part does not understand.
    #[error("`{name}={value}`: {expected}")]
    Value {
        /// The part.
        name: &'static str,
        /// As given, cut after 40 characters.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

fn names(which: fn(&Named) -> bool) -> String {
    let names = POLICIES.iter().filter(|row| which(row)).map(|row| row.name);
    names.collect::<Vec<_>>().join(", ")
}

/// The policy of that name: one of [`POLICIES`], with others added to it behind `+`. A policy that is none of the table's rows is named by its parts:
/// `wake=` and whose wake-ups it has, `+` where idle CPUs look, in this order, `+` what ticks do.
///
/// ```
/// let policy = amdahl_placement::policy("steal=machine+spin=20us")?;
/// assert_eq!(policy.name(), "steal=machine+spin=20us");
/// // A limited search for a woken task, and an idle CPU pulls as in newer kernels.
/// let composed = amdahl_placement::policy("wake=bounded+newidle")?;
/// assert_eq!(composed.name(), "wake=bounded+newidle");
/// # Ok::<(), amdahl_placement::PolicyError>(())
/// ```
///
/// # Errors
/// [`PolicyError`], which says what there is instead.
pub fn policy(name: &str) -> Result<Box<dyn Policy>, PolicyError> {
    let mut made: Option<Composed> = None;
    for part in name.split('+') {
        let (word, value) = part.trim().split_once('=').unwrap_or((part.trim(), ""));
        let cut = |text: &str| text.chars().take(40).collect::<String>();
        let row = POLICIES.iter().find(|row| row.name == word);
        let row = row.ok_or_else(|| PolicyError::Unknown { name: cut(word) })?;
        let wrong = |expected| PolicyError::Value {
            name: row.name,
            value: cut(value),
            expected,
        };
        if row.value.is_empty() && part.contains('=') {
            return Err(wrong("takes no value"));
        }
        made = Some(match made {
            None => {
                let base = row.base.ok_or(PolicyError::NotFirst { name: row.name })?;
                base(value).map_err(wrong)?
            }
            Some(made) => {
                let add = row.add.ok_or(PolicyError::NotAdded { name: row.name })?;
                add(made, value).map_err(wrong)?
            }
        });
    }
    let made = made.expect("a split has at least one part");
    Ok(Box::new(made.named(name)))
}

/// All policies, and what can be added to them.
pub const POLICIES: &[Named] = &[
    Named {
        name: "single",
        value: "",
        summary: "one queue for all CPUs",
        source: "Plan 9's scheduler; NIX notes (lsub, 2012)",
        bad_case: "many CPUs and short tasks: all take one lock",
        base: Some(|_| Ok(Composed::new("single", Single))),
        add: None,
    },
    Named {
        name: "groups",
        value: "CPUs in a group, or `llc`; 4 without",
        summary: "a queue for each few CPUs; idle CPUs steal from other groups",
        source: "NIX notes (lsub, 2012); shared_runq (D. Vernet, 2023)",
        bad_case: "large groups, as single",
        base: Some(|value| {
            let size = group_size(value)?;
            let steal = StealGroups { round: false };
            Ok(Composed::new("groups", Groups { size, steal: true }).idle(steal))
        }),
        add: None,
    },
    Named {
        name: "groups-round",
        value: "CPUs in a group, or `llc`; 4 without",
        summary: "as groups, but idle CPUs go round all queues, whether or not anybody waits there",
        source: "NIX notes (lsub, 2012)",
        bad_case: "idle CPUs: all of them take lines away from the few queues that are used",
        base: Some(|value| {
            let size = group_size(value)?;
            let steal = StealGroups { round: true };
            Ok(Composed::new("groups-round", Groups { size, steal: true }).idle(steal))
        }),
        add: None,
    },
    Named {
        name: "groups-apart",
        value: "CPUs in a group, or `llc`; 4 without",
        summary: "a queue for each few CPUs; no task leaves its group",
        source: "NIX notes (lsub, 2012)",
        bad_case: "one program: it never has more than one group",
        base: Some(|value| {
            let size = group_size(value)?;
            Ok(Composed::new("groups-apart", Groups { size, steal: false }))
        }),
        add: None,
    },
    Named {
        name: "steal",
        value: "how far: `llc`, `node` or `machine`; llc without, on at most two nodes",
        summary: "a queue for each CPU; an idle CPU steals one task from an overloaded one",
        source: "S. Sistare, \"steal tasks to improve CPU utilization\", version 4 (2018)",
        bad_case: "llc: a full cache beside an idle one",
        base: Some(|value| {
            let steal = steal(value)?;
            let reach = steal.reach;
            Ok(Composed::new("steal", Idlest { reach }).idle(steal))
        }),
        add: Some(|policy, value| Ok(policy.idle(steal(value)?))),
    },
    Named {
        name: "dispatcher",
        value: "",
        summary: "one CPU only assigns work to the others",
        source: "NIX's asymmetric scheduler, NIX notes (lsub, 2012)",
        bad_case: "many wake-ups: all go through one CPU, and that one never works",
        base: Some(|_| Ok(Composed::new("dispatcher", Dispatcher).idle(AskDispatcher))),
        add: None,
    },
    Named {
        name: "bounded",
        value: "`no-idle-core` to leave out the search for an idle core",
        summary: "a woken task looks at one to two cores' worth of CPUs, from where the last search ended",
        source: "S. Mazumdar, scheduler scalability, version 3 (2019)",
        bad_case: "few idle CPUs: they are missed, and the tail of latencies grows",
        base: Some(|value| Ok(kernel("bounded", bounded(value)?, Newidle::OLD))),
        add: None,
    },
    Named {
        name: "linux",
        value: "`6` for Linux from 6.0 on, `4` for 4.12 to 5.19; 6 without",
        summary: "Linux' own: near the waker or where the task ran, a limited search, pulls, periodic balance",
        source: "kernel/sched/fair.c of Linux 4.20 and 6.6, in outline",
        bad_case: "many short idle periods: idle CPUs neither found nor looking for work",
        base: Some(|value| match value {
            "" | "6" => Ok(kernel("linux", LINUX_6, Newidle::NEW)),
            "4" => Ok(kernel("linux", LINUX_4, Newidle::OLD)),
            _ => Err("takes 4 or 6"),
        }),
        add: None,
    },
    Named {
        name: "numa",
        value: "how many tasks may wait for a CPU at home before one leaves; 1 without",
        summary: "tasks stay on the node of their memory while its queues are short",
        source: "NUMA balancing of Linux 3.13 (M. Gorman, R. van Riel); NIX notes (lsub, 2012)",
        bad_case: "memory that hardly matters: tasks wait at home beside an idle node",
        base: Some(|value| {
            let numa = numa(value)?;
            Ok(Composed::new("numa", numa).idle(numa))
        }),
        add: Some(|policy, value| Ok(policy.idle(numa(value)?))),
    },
    Named {
        name: "wake",
        value: "whose wake-ups: `steal`, `bounded`, `linux` or `numa`, each with what may follow it; linux without",
        summary: "only where that policy puts woken tasks; what idle CPUs and ticks do is added behind it",
        source: "the parts of the others: linux is wake=linux+newidle+balance",
        bad_case: "nothing added: an idle CPU looks into its own queue only",
        base: Some(wake),
        add: None,
    },
    Named {
        name: "newidle",
        value: "`6` or `4`, as for linux; 6 without",
        summary: "an idle CPU pulls a task from the busiest CPU of its core, cache, node, machine, if its idle times pay for the search",
        source: "newidle_balance in kernel/sched/fair.c of Linux 6.6, idle_balance of 4.20, in outline",
        bad_case: "many short idle periods: the search is never begun",
        base: None,
        add: Some(|policy, value| Ok(policy.idle(newidle(value)?))),
    },
    Named {
        name: "balance",
        value: "",
        summary: "ticks even queues out as Linux' do, and a turn is as long as there",
        source: "load_balance and nohz_balancer_kick in kernel/sched/fair.c of Linux 4.20 and 6.6, in outline",
        bad_case: "a pool of threads, which has no ticks; what waits less than a balancing interval",
        base: None,
        add: Some(|policy, _| Ok(policy.tick(Periodic))),
    },
    Named {
        name: "spin",
        value: "a time such as 20us, or `adaptive`; adaptive without",
        summary: "idle CPUs look out for work before they sleep",
        source: "S. Mazumdar, spinning in pipes (2018); A. Karlin and others (SOSP 1991)",
        bad_case: "a fixed time: waits that are just longer",
        base: None,
        add: Some(|policy, value| Ok(policy.spin(spin(value)?))),
    },
];

/// The wake-up part of another policy, which is named as that is.
fn wake(of: &str) -> Result<Composed, &'static str> {
    let (word, value) = of.split_once('=').unwrap_or((of, ""));
    Ok(match word {
        "" | "linux" => match value {
            "" | "6" => Composed::new("wake", LINUX_6),
            "4" => Composed::new("wake", LINUX_4),
            _ => return Err("linux takes 4 or 6"),
        },
        "bounded" => Composed::new("wake", bounded(value)?),
        "steal" => {
            let reach = steal(value)?.reach;
            Composed::new("wake", Idlest { reach })
        }
        "numa" => Composed::new("wake", numa(value)?),
        _ => return Err("takes steal, bounded, linux or numa, and `=` with what may follow that"),
    })
}

const LINUX_6: Affine<Scan> = Affine {
    search: Scan::Utilisation,
};
const LINUX_4: Affine<Scan> = Affine {
    search: Scan::Proportional,
};

fn bounded(value: &str) -> Result<Affine<Bounded>, &'static str> {
    let idle_core = match value {
        "" => true,
        "no-idle-core" => false,
        _ => return Err("takes no-idle-core or nothing"),
    };
    Ok(Affine {
        search: Bounded { idle_core },
    })
}

fn newidle(value: &str) -> Result<Newidle, &'static str> {
    match value {
        "" | "6" => Ok(Newidle::NEW),
        "4" => Ok(Newidle::OLD),
        _ => Err("takes 4 or 6"),
    }
}

fn kernel(name: &str, wake: impl WakePart + 'static, newidle: Newidle) -> Composed {
    Composed::new(name, wake).idle(newidle).tick(Periodic)
}

fn numa(value: &str) -> Result<Numa, &'static str> {
    match value {
        "" => Ok(Numa::default()),
        number => number
            .parse()
            .map(|patience| Numa { patience })
            .map_err(|_| "takes a number of tasks"),
    }
}

fn group_size(value: &str) -> Result<GroupSize, &'static str> {
    match value {
        "" => Ok(GroupSize::Cpus(4)),
        "llc" => Ok(GroupSize::Llc),
        number => match u32::from_str(number) {
            Ok(size) if size > 0 => Ok(GroupSize::Cpus(size)),
            _ => Err("takes a number of CPUs from 1 on, or llc"),
        },
    }
}

fn steal(value: &str) -> Result<Steal, &'static str> {
    match value {
        "" => Ok(Steal::PATCHES),
        other => Ok(Steal {
            reach: reach(other)?,
            ..Steal::ANYWHERE
        }),
    }
}

fn reach(value: &str) -> Result<Distance, &'static str> {
    match value {
        "core" => Ok(Distance::Core),
        "llc" => Ok(Distance::Llc),
        "node" => Ok(Distance::Node),
        "machine" => Ok(Distance::Remote),
        _ => Err("takes core, llc, node or machine"),
    }
}

fn spin(value: &str) -> Result<Spin, &'static str> {
    const EXPECTED: &str = "takes a time up to 10 s such as 800ns, 20us or 1ms, or adaptive";
    if matches!(value, "" | "adaptive") {
        return Ok(Spin::Adaptive {
            max_ns: Duration::from_millis(1).as_nanos() as u64,
        });
    }
    let digits = value.find(|c: char| !c.is_ascii_digit()).ok_or(EXPECTED)?;
    let (number, unit) = value.split_at(digits);
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(EXPECTED),
    };
    let number: u64 = number.parse().map_err(|_| EXPECTED)?;
    match number.checked_mul(unit) {
        Some(ns) if ns <= 10_000_000_000 => Ok(Spin::Fixed { ns }),
        _ => Err(EXPECTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        policy(name).err().expect("no policy").to_string()
    }

    #[test]
    fn names_are_found_and_kept() {
        for row in POLICIES {
            assert!(row.is_policy() || row.is_addition(), "{}", row.name);
            let twice = POLICIES.iter().filter(|other| other.name == row.name);
            assert_eq!(twice.count(), 1);
            let name = match row.is_policy() {
                true => row.name.to_string(),
                false => format!("linux+{}", row.name),
            };
            assert_eq!(policy(&name).unwrap().name(), name);
        }
        for name in [
            "bounded + steal=node + spin=800ns",
            "linux=4+numa=2",
            "groups=llc",
            "wake=bounded=no-idle-core+newidle=4+steal=node+balance+spin",
        ] {
            assert_eq!(policy(name).unwrap().name(), name);
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_there_is() {
        assert!(error("").contains("no policy ``: choose from single, groups,"));
        assert!(error("lnux").contains("no policy `lnux`"));
        assert!(error("spin=1us").contains("write POLICY+spin, with one of single,"));
        assert!(
            error("linux+single")
                .contains("put it first; what can be added is steal, numa, newidle, balance, spin")
        );
        assert!(error("linux+wake=bounded").contains("`wake` cannot be added"));
        assert!(error("newidle+spin").contains("write POLICY+newidle, with one of single,"));
        assert_eq!(
            error("wake=single+newidle"),
            "`wake=single`: takes steal, bounded, linux or numa, and `=` with what may follow that"
        );
        assert_eq!(error("wake=linux=5"), "`wake=linux=5`: linux takes 4 or 6");
        assert_eq!(error("single=4"), "`single=4`: takes no value");
        for wrong in [
            "groups=0",
            "groups=many",
            "steal=far",
            "linux=5",
            "numa=-1",
            "bounded=x",
            "wake=x",
            "wake=bounded=x",
            "linux+newidle=5",
            "linux+balance=1",
        ] {
            assert!(error(wrong).contains(": takes "), "{wrong}");
        }
        for wrong in ["20", "us", "1h", "11s", "99999999999999999999us"] {
            assert!(error(&format!("linux+spin={wrong}")).contains("takes a time up to 10 s"));
        }
        assert!(error(&"x".repeat(1000)).len() < 200);
    }
}
