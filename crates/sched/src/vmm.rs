//! Which threads are the CPUs of guests.
//!
//! KVM tells of any virtual machine monitor: a virtual CPU is a descriptor, and the thread that runs it is in an
//! `ioctl` on that descriptor. Where that cannot be read, the names that some monitors give their threads decide.

use std::collections::BTreeMap;

/// A guest's CPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GuestCpu {
    /// What runs the guest: the name of a known monitor, or of the process.
    pub vmm: String,
    /// The guest's number of the CPU, if it is known.
    pub index: Option<u32>,
}

/// What is known of a process besides the names of its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Its name.
    pub name: String,
    /// Its descriptors of KVM's virtual CPUs, with the guest's numbers of them; `None` if that could not be read.
    pub kvm_vcpus: Option<BTreeMap<i32, u32>>,
}

/// What a thread was seen to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadFacts {
    /// It runs this CPU of the guest.
    pub runs: Option<u32>,
    /// A guest has used CPU time of it.
    pub has_run_guest: bool,
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

/// The guest CPU that a thread is, by what it was seen to do or else by its name, unless the facts speak against that.
pub fn guest_cpu(
    thread_name: &str,
    thread: ThreadFacts,
    process: &ProcessFacts,
) -> Option<GuestCpu> {
    let named = named(thread_name, process);
    if thread.runs.is_none() && !thread.has_run_guest {
        let (vmm, index) = named?;
        return Some(GuestCpu {
            vmm: vmm.to_owned(),
            index: Some(index),
        });
    }
    Some(GuestCpu {
        vmm: named.map_or_else(|| process.name.clone(), |(vmm, _)| vmm.to_owned()),
        index: thread.runs.or(named.map(|(_, index)| index)),
    })
}

fn named(thread_name: &str, process: &ProcessFacts) -> Option<(&'static str, u32)> {
    NAMES.iter().find_map(|&(vmm, before, after)| {
        let number = thread_name.strip_prefix(before)?.strip_suffix(after)?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let uses_kvm = !after.contains("TCG") && vmm != "VirtualBox";
        if uses_kvm && process.kvm_vcpus.as_ref().is_some_and(BTreeMap::is_empty) {
            return None;
        }
        Some((vmm, number.parse().ok()?))
    })
}

/// The guest's number of the virtual CPU of KVM that a descriptor is, by its link in `/proc/PID/fd`.
pub fn kvm_vcpu(link: &str) -> Option<u32> {
    // Since Linux 4.8 with the number.
    link.strip_prefix("anon_inode:kvm-vcpu:")?.parse().ok()
}

/// The descriptor of the virtual CPU that a thread is in, by its `/proc/PID/task/TID/syscall`. Of one on a CPU or in a run
/// queue the kernel says `running` alone.
pub fn kvm_run(syscall: &str) -> Option<i32> {
    #[cfg(target_arch = "x86_64")]
    const IOCTL: &str = "16";
    #[cfg(not(target_arch = "x86_64"))]
    const IOCTL: &str = "29";
    /// `KVM_RUN`, which has no argument.
    const RUN: u64 = 0xae80;
    let mut words = syscall.split_ascii_whitespace();
    if words.next() != Some(IOCTL) {
        return None;
    }
    let mut next = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (descriptor, request) = (next()?, next()?);
    // Workers of the kernel that belong to the process have the registers of who made them, but no program counter.
    let program_counter = words.next_back()?;
    (request == RUN && program_counter != "0x0").then(|| i32::try_from(descriptor).ok())?
}

/// Clock ticks of a thread that a guest has used, by its `/proc/PID/task/TID/stat`.
pub fn guest_ticks(stat: &str) -> Option<u64> {
    // Counted from the state, which is field 3.
    let (_, after) = stat.rsplit_once(')')?;
    after.split_ascii_whitespace().nth(40)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn process(name: &str, vcpus: Option<&[(i32, u32)]>) -> ProcessFacts {
        ProcessFacts {
            name: name.to_owned(),
            kvm_vcpus: vcpus.map(|vcpus| vcpus.iter().copied().collect()),
        }
    }

    #[test]
    fn names_decide_where_nothing_else_is_known() {
        let known = |name| {
            guest_cpu(name, ThreadFacts::default(), &ProcessFacts::default())
                .map(|cpu| (cpu.vmm, cpu.index.unwrap()))
        };
        for (name, vmm, index) in [
            ("CPU 12/KVM", "QEMU", 12),
            ("fc_vcpu 0", "Firecracker", 0),
            ("vcpu3", "Cloud Hypervisor", 3),
            ("crosvm_vcpu15", "crosvm", 15),
            ("kvm-vcpu-7", "kvmtool", 7),
        ] {
            assert_eq!(known(name), Some((vmm.to_owned(), index)), "{name}");
        }
        for other in ["CPU /KVM", "CPU 1", "vcpu", "vcpu3a", "vcpu99999999999", ""] {
            assert_eq!(known(other), None, "{other}");
        }
        let without = process("x", Some(&[]));
        assert_eq!(guest_cpu("vcpu3", ThreadFacts::default(), &without), None);
        assert!(guest_cpu("CPU 1/TCG", ThreadFacts::default(), &without).is_some());
    }

    /// A monitor that was not in the list of names, or had other names for its threads, was missed.
    #[test]
    fn what_a_thread_runs_decides_before_its_name() {
        let mine = process("my-vmm", Some(&[(20, 0), (21, 1)]));
        let runs = ThreadFacts {
            runs: Some(1),
            has_run_guest: true,
        };
        let found = |name, thread, process| {
            guest_cpu(name, thread, process).map(|cpu| (cpu.vmm, cpu.index))
        };
        let expected = Some(("my-vmm".to_owned(), Some(1)));
        assert_eq!(found("anything", runs, &mine), expected);
        // The number in the name is another one's.
        let expected = Some(("Cloud Hypervisor".to_owned(), Some(1)));
        assert_eq!(found("vcpu7", runs, &mine), expected);
        let busy = ThreadFacts {
            runs: None,
            has_run_guest: true,
        };
        let expected = Some(("my-vmm".to_owned(), None));
        assert_eq!(found("anything", busy, &mine), expected);
        assert_eq!(found("vcpu7", busy, &mine).unwrap().1, Some(7));
        // Other threads of the same process.
        assert_eq!(found("io", ThreadFacts::default(), &mine), None);
    }

    #[test]
    fn descriptors_and_system_calls_are_read() {
        assert_eq!(kvm_vcpu("anon_inode:kvm-vcpu:12"), Some(12));
        for other in [
            "anon_inode:kvm-vm",
            "anon_inode:kvm-vcpu",
            "/tmp/kvm-vcpu:1",
        ] {
            assert_eq!(kvm_vcpu(other), None, "{other}");
        }
        let ioctl = if cfg!(target_arch = "x86_64") { 16 } else { 29 };
        let rest = "0x0 0x0 0x0 0x0 0x7f10c95fe8f0 0x7f10cb0f2d4b\n";
        assert_eq!(kvm_run(&format!("{ioctl} 0x1d 0xae80 {rest}")), Some(0x1d));
        // It reads the registers.
        assert_eq!(kvm_run(&format!("{ioctl} 0x1d 0x8090ae81 {rest}")), None);
        assert_eq!(kvm_run(&format!("202 0x1d 0xae80 {rest}")), None);
        for other in [
            "running\n",
            "16 0x5 0xae80 0x0 0x7f6e35287d6b 0x5 0x0 0x0 0x0\n",
            "-1 0x7ffd 0x0\n",
            "",
            "16",
            "16 0x1d",
            "16 29 0xae80",
        ] {
            assert_eq!(kvm_run(other), None, "{other}");
        }
    }

    #[test]
    fn guest_time_is_field_43() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("42 (a) S (b)) S {}\n", fields.join(" "));
        assert_eq!(guest_ticks(&stat), Some(43));
        assert_eq!(guest_ticks("42 (a) S 1 2"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC*", other in "[0-9a-fx ()\n]*") {
            for text in [&text, &other] {
                let _ = (kvm_vcpu(text), kvm_run(text), guest_ticks(text));
            }
        }
    }
}
