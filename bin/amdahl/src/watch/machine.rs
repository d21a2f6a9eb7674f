//! The machine and the time, for a result.

use amdahl_report::schema::Machine;
use amdahl_topology::{CpuSet, Topology};

use crate::failure::Failure;

/// How `cpus` lie, or all alike where the kernel does not say.
pub fn topology(cpus: &CpuSet) -> Result<Topology, Failure> {
    let topology = Topology::read().ok().or_else(|| Topology::flat(cpus));
    topology.ok_or_else(|| Failure::machine("this machine tells of no CPU".to_owned()))
}

/// This machine as it is now.
pub fn describe() -> Machine {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        line.split_once(':')
            .map(|(_, value)| value.trim().to_owned())
    };
    let flags = field("flags").unwrap_or_default();
    let kernel = rustix::system::uname();
    Machine {
        kernel: kernel.release().to_string_lossy().into_owned(),
        cpu_model: field("model name")
            .or_else(|| field("CPU part"))
            .unwrap_or_default(),
        cpus_online: amdahl_topology::online().map_or(0, |set| set.len() as u32),
        cpus_allowed: amdahl_topology::allowed().map_or(0, |set| set.len() as u32),
        quota_cpus: amdahl_topology::quota()
            .ok()
            .flatten()
            .map(|quota| quota.cpus),
        topology: Topology::read().map_or(String::new(), |topology| topology.describe()),
        is_virtual: flags.split(' ').any(|flag| flag == "hypervisor"),
    }
}

/// This kernel tells how long `mmap_lock` is held, see [`tells_holds`].
pub fn holds_are_told() -> bool {
    tells_holds(&rustix::system::uname().release().to_string_lossy())
}

/// The tracepoints of the lock have the arguments that they have since Linux 6.14: before, a path
/// was among them.
fn tells_holds(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    (next(), next()) >= (Some(6_u32), Some(14_u32))
}

/// Now, RFC 3339, in seconds.
pub fn now() -> String {
    let now = time::OffsetDateTime::now_utc();
    now.replace_nanosecond(0)
        .unwrap_or(now)
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::tells_holds;

    #[test]
    fn holds_are_told_since_6_14() {
        for release in ["6.14.0", "6.18.44-fc-v657", "7.0-rc1", "10.2.1"] {
            assert!(tells_holds(release), "{release}");
        }
        for release in ["6.13.12", "6.8.0-31-generic", "5.19.17", "6", "", "unknown"] {
            assert!(!tells_holds(release), "{release}");
        }
    }
}
