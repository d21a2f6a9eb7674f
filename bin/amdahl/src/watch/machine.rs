//! The machine, for a result.

use amdahl_report::schema::Machine;
use amdahl_topology::CpuSet;

/// As it is now; `cpus` are those online.
pub fn describe(cpus: &CpuSet) -> Machine {
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
        cpus_online: cpus.len() as u32,
        cpus_allowed: amdahl_topology::allowed().map_or(0, |set| set.len() as u32),
        is_virtual: flags.split(' ').any(|flag| flag == "hypervisor"),
        ..Machine::default()
    }
}
