//! The machine and the time, for a result.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

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

/// Of which waiters for a spin lock the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinLocks {
    /// All: the hypervisor helps, and they queue up at once.
    All,
    /// Those who queue up behind another one: the first spins on the lock itself.
    Queued,
    /// None: in a virtual machine without help they try again and again, without a queue.
    None,
    /// `All` or `None`: the kernel's log would say, and its beginning cannot be read.
    Unknown,
}

/// What this kernel tells of spin locks.
pub fn spin_locks() -> SpinLocks {
    if cfg!(target_arch = "x86_64") && describe().is_virtual {
        virtual_spin_locks(&kernel_log())
    } else {
        SpinLocks::Queued
    }
}

/// In a virtual machine, by the kernel's log. `kvm_spinlock_init` of Linux 5.19 and later: without help locks are tried
/// again and again; where help is declined they are queued as on real hardware.
fn virtual_spin_locks(log: &str) -> SpinLocks {
    let says = |text: &str| log.contains(text);
    if says("PV spinlocks enabled") {
        SpinLocks::All
    } else if says("PV spinlocks disabled, no host support") {
        SpinLocks::None
    } else if says("PV spinlocks disabled") {
        SpinLocks::Queued
    } else if says("Linux version ") {
        SpinLocks::None
    } else {
        SpinLocks::Unknown
    }
}

/// The kernel's log as far as it is kept; empty where it may not be read.
fn kernel_log() -> String {
    const RECORDS_MAX: usize = 1 << 16;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let Ok(mut file) = options.open("/dev/kmsg") else {
        return String::new();
    };
    let (mut log, mut record) = (String::new(), [0; 8192]);
    for _ in 0..RECORDS_MAX {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(bytes) => log += &String::from_utf8_lossy(&record[..bytes]),
            // Records were overwritten before they were read.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    log
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
    use super::*;

    #[test]
    fn the_log_tells_whether_the_hypervisor_helps_with_spin_locks() {
        let begin = "6,0,0,-;Linux version 6.18.0\n";
        for (log, told) in [
            ("kvm-guest: PV spinlocks enabled", SpinLocks::All),
            ("PV spinlocks disabled, no host support", SpinLocks::None),
            (
                "PV spinlocks disabled with KVM_HINTS_REALTIME hints",
                SpinLocks::Queued,
            ),
            (
                "PV spinlocks disabled, forced by \"nopvspin\" parameter",
                SpinLocks::Queued,
            ),
            ("Hypervisor detected: VMware", SpinLocks::None),
        ] {
            assert_eq!(
                virtual_spin_locks(&format!("{begin}{log}\n")),
                told,
                "{log}"
            );
        }
        assert_eq!(virtual_spin_locks(""), SpinLocks::Unknown);
        assert_eq!(virtual_spin_locks("eth0: up\n"), SpinLocks::Unknown);
    }
}
