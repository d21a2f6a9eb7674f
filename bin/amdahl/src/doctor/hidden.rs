//! What `/proc` hides from this process. Without BPF, waits are read there.

use super::{Check, check};

/// Rights that matter to `/proc` and to perf events, from the text of `/proc/self/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// `CAP_SYS_PTRACE`.
    pub may_trace: bool,
    /// `CAP_IPC_LOCK`.
    pub may_lock: bool,
    groups: Vec<u32>,
}

const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_PTRACE: u32 = 19;

impl Rights {
    /// Those that `status` tells.
    pub fn parse(status: &str) -> Rights {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or("").trim()
        };
        let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
        let has = |capability: u32| capabilities & (1 << capability) != 0;
        let own = field("Gid:").split_whitespace().nth(3);
        let groups = field("Groups:").split_whitespace().chain(own);
        Rights {
            may_trace: has(CAP_SYS_PTRACE),
            may_lock: has(CAP_IPC_LOCK),
            groups: groups.filter_map(|group| group.parse().ok()).collect(),
        }
    }
}

/// `kernel.yama.ptrace_scope`, whose text is empty where the kernel has no Yama: system calls and stacks of other processes.
pub fn ptrace_scope(scope: &str, rights: &Rights) -> Check {
    let level: u32 = scope.parse().unwrap_or(0);
    let is_open = level == 0 || (level < 3 && rights.may_trace);
    let lost = match level {
        1 => {
            "without BPF, what processes that amdahl did not start (--pid) wait for is told by the name of a kernel \
              function at best"
        }
        _ => {
            "without BPF, what programs wait for is told by the name of a kernel function at best, also those that \
              amdahl starts"
        }
    };
    let remedy = match level {
        3.. => {
            "this level cannot be left before the next boot: take kernel.yama.ptrace_scope=3 out of /etc/sysctl.d and \
             boot"
        }
        2 => "as root: sysctl kernel.yama.ptrace_scope=1, or 0 for --pid; or CAP_SYS_PTRACE",
        _ => "as root: sysctl kernel.yama.ptrace_scope=0; or CAP_SYS_PTRACE",
    };
    let found = match scope {
        "" => "this kernel restricts no reading (no Yama)".to_owned(),
        scope => format!("kernel.yama.ptrace_scope = {scope}"),
    };
    check(
        "system calls and stacks of other processes",
        is_open,
        found,
        lost,
        remedy,
    )
}

/// The option `hidepid` of `/proc`, in the text of `/proc/self/mounts`: processes of other users.
pub fn hidepid(mounts: &str, rights: &Rights) -> Check {
    let mut of_proc = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (at, kind) = (fields.nth(1)?, fields.next()?);
        (at == "/proc" && kind == "proc").then(|| fields.next().unwrap_or(""))
    });
    // A later mount covers an earlier one.
    let options = of_proc.next_back().unwrap_or("");
    let option = |name: &str| {
        let mut values = options
            .split(',')
            .filter_map(|option| option.split_once('='));
        values.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let hides = option("hidepid").unwrap_or("off");
    let is_member = option("gid")
        .and_then(|group| group.parse().ok())
        .is_some_and(|group| rights.groups.contains(&group));
    // With `ptraceable` membership does not help.
    let is_exempt = rights.may_trace || (is_member && !matches!(hides, "4" | "ptraceable"));
    check(
        "processes of other users",
        matches!(hides, "off" | "0") || is_exempt,
        format!("/proc is mounted with hidepid={hides}"),
        "without BPF, processes of the program that run as another user are not seen at all, and nobody tells who \
         else takes the CPUs",
        "as root: mount -o remount,hidepid=0 /proc; or, with hidepid 1 or 2, remount with gid=GROUP and join that group",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(capabilities: u64, groups: &str) -> Rights {
        let status = format!(
            "Name:\tamdahl\nGid:\t50\t50\t50\t50\nGroups:\t{groups} \nCapEff:\t{capabilities:016x}\n"
        );
        Rights::parse(&status)
    }

    #[test]
    fn rights_are_read_from_status() {
        let none = rights(0, "4 27");
        assert_eq!((none.may_trace, none.may_lock), (false, false));
        assert_eq!(none.groups, [4, 27, 50]);
        let some = rights(1 << CAP_SYS_PTRACE, "");
        assert_eq!((some.may_trace, some.may_lock), (true, false));
        assert!(rights(1 << CAP_IPC_LOCK, "").may_lock);
        assert_eq!(
            Rights::parse("CapEff:\tzz\nGroups:\t-1 x\n"),
            Rights::default()
        );
    }

    #[test]
    fn yama_hides_from_who_may_not_trace() {
        let (none, tracer) = (rights(0, ""), rights(1 << CAP_SYS_PTRACE, ""));
        for (scope, ordinary, capable) in [
            ("", true, true),
            ("0", true, true),
            ("1", false, true),
            ("2", false, true),
            ("3", false, false),
        ] {
            assert_eq!(ptrace_scope(scope, &none).ok, ordinary, "{scope}");
            assert_eq!(ptrace_scope(scope, &tracer).ok, capable, "{scope}");
        }
        // Programs that amdahl starts are its descendants.
        assert!(ptrace_scope("1", &none).lost.contains("did not start"));
        assert!(ptrace_scope("2", &none).lost.contains("also those that"));
        assert!(ptrace_scope("3", &none).remedy.contains("boot"));
    }

    #[test]
    fn hidepid_hides_from_who_is_not_exempt() {
        let mounts = |options: &str| {
            format!(
                "proc /proc proc rw,hidepid=2 0 0\nsysfs /sys sysfs rw,hidepid=2 0 0\nproc /proc proc rw,relatime{options} 0 0\n"
            )
        };
        let none = rights(0, "4");
        for (options, ok) in [
            ("", true),
            (",hidepid=0", true),
            (",hidepid=off", true),
            (",hidepid=1", false),
            (",hidepid=invisible", false),
            (",gid=4,hidepid=2", true),
            (",gid=5,hidepid=2", false),
            (",gid=4,hidepid=ptraceable", false),
        ] {
            let found = hidepid(&mounts(options), &none);
            assert_eq!(found.ok, ok, "{options:?}: {}", found.found);
            assert!(hidepid(&mounts(options), &rights(1 << CAP_SYS_PTRACE, "")).ok);
        }
        assert!(hidepid("", &none).ok, "no /proc of its own");
    }
}
