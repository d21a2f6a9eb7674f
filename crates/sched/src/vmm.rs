//! Which threads are the CPUs of guests.

/// A guest's CPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GuestCpu {
    /// What runs the guest.
    pub vmm: &'static str,
    /// The guest's number of the CPU.
    pub index: u32,
}

/// What is known of a process besides the names of its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// It has descriptors of KVM's virtual CPUs; `None` if that could not be read.
    pub has_kvm_vcpus: Option<bool>,
}

/// (What runs the guest, text before the number, text after it). The kernel keeps 15 bytes of a name.
const NAMES: [(&str, &str, &str); 7] = [
    ("QEMU", "CPU ", "/KVM"),
    ("QEMU", "CPU ", "/TCG"),
    ("Firecracker", "fc_vcpu ", ""),
    ("Cloud Hypervisor", "vcpu", ""),
    ("crosvm", "crosvm_vcpu", ""),
    ("kvmtool", "kvm-vcpu-", ""),
    ("VirtualBox", "EMT-", ""),
];

/// The guest CPU that a thread of this name is, unless `facts` speak against it.
pub fn guest_cpu(thread_name: &str, facts: ProcessFacts) -> Option<GuestCpu> {
    NAMES.iter().find_map(|&(vmm, before, after)| {
        let number = thread_name.strip_prefix(before)?.strip_suffix(after)?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let uses_kvm = !after.contains("TCG") && vmm != "VirtualBox";
        if uses_kvm && facts.has_kvm_vcpus == Some(false) {
            return None;
        }
        let index = number.parse().ok()?;
        Some(GuestCpu { vmm, index })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_facts_decide() {
        let known = |name| guest_cpu(name, ProcessFacts::default()).map(|cpu| (cpu.vmm, cpu.index));
        assert_eq!(known("CPU 12/KVM"), Some(("QEMU", 12)));
        assert_eq!(known("fc_vcpu 0"), Some(("Firecracker", 0)));
        assert_eq!(known("vcpu3"), Some(("Cloud Hypervisor", 3)));
        assert_eq!(known("crosvm_vcpu15"), Some(("crosvm", 15)));
        assert_eq!(known("kvm-vcpu-7"), Some(("kvmtool", 7)));
        for other in ["CPU /KVM", "CPU 1", "vcpu", "vcpu3a", "vcpu99999999999", ""] {
            assert_eq!(known(other), None, "{other}");
        }
        let without = ProcessFacts {
            has_kvm_vcpus: Some(false),
        };
        assert_eq!(guest_cpu("vcpu3", without), None);
        assert!(guest_cpu("CPU 1/TCG", without).is_some());
    }
}
