//! Facts about threads, processes and the machine, from `/proc` and `/sys`.

use std::fs::{self, File};
use std::io::Read;

use amdahl_sched::event::Ns;
use amdahl_sched::proc::{CpuLook, cpu_looks};
use amdahl_sched::vmm::{ProcessFacts, ThreadFacts, guest_ticks, kvm_run, kvm_vcpu};
use amdahl_topology::CpuSet;
use flate2::read::GzDecoder;

/// `PF_KTHREAD`.
const IS_KERNEL: u64 = 0x0020_0000;

/// A thread of the kernel, by the flags in its `stat`.
pub fn is_kernel(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let flags = after.split_ascii_whitespace().nth(6);
    flags
        .and_then(|flags| flags.parse::<u64>().ok())
        .is_some_and(|flags| flags & IS_KERNEL != 0)
}

/// A living thread's name, found by its own number.
pub fn name_of(tid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{tid}/comm")).ok()?;
    Some(text.trim_end().to_owned())
}

/// Where a thread may run, unless that is everywhere or it is gone.
pub fn allowed(tid: u32, online: &CpuSet) -> Option<CpuSet> {
    let set = amdahl_topology::allowed_of(tid).ok()?;
    online.difference(&set).first().map(|_| set)
}

/// A process's name, and what it holds of virtual CPUs.
pub fn process(pid: u32) -> ProcessFacts {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok();
    let vcpus = entries.map(|entries| {
        let vcpus = entries.flatten().filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let index = kvm_vcpu(link.to_str()?)?;
            Some((entry.file_name().to_str()?.parse().ok()?, index))
        });
        vcpus.collect()
    });
    ProcessFacts {
        name: name_of(pid).unwrap_or_default(),
        kvm_vcpus: vcpus,
    }
}

/// What a thread of `process` does for a guest, as far as that can be read.
pub fn thread(pid: u32, tid: u32, process: &ProcessFacts) -> ThreadFacts {
    let folder = format!("/proc/{pid}/task/{tid}");
    let runs = process.kvm_vcpus.as_ref().and_then(|vcpus| {
        let syscall = fs::read_to_string(format!("{folder}/syscall")).ok()?;
        vcpus.get(&kvm_run(&syscall)?).copied()
    });
    ThreadFacts {
        runs,
        has_run_guest: has_run_guest(&format!("{folder}/stat")),
    }
}

/// Whether a guest has used CPU time of a process or a thread, by its `stat`, which is hidden from nobody.
pub fn has_run_guest(stat: &str) -> bool {
    let stat = fs::read_to_string(stat).unwrap_or_default();
    guest_ticks(&stat).is_some_and(|ticks| ticks > 0)
}

/// Length of a scheduler tick: 4 ms where the kernel does not say.
pub fn tick_ns() -> Ns {
    let config = File::open("/proc/config.gz").ok().and_then(unpacked);
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let config = config.or_else(|| fs::read_to_string(format!("/boot/config-{release}")).ok());
    let hz = config.as_deref().and_then(hz);
    1_000_000_000 / hz.unwrap_or(250).clamp(24, 10_000)
}

fn unpacked(packed: impl Read) -> Option<String> {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Ticks in a second, from the configuration of a kernel.
fn hz(config: &str) -> Option<u64> {
    let mut lines = config.lines();
    let line = lines.find_map(|line| line.strip_prefix("CONFIG_HZ="))?;
    line.trim().parse().ok()
}

/// The CPUs in `/proc/stat`.
pub fn cpus_now() -> Vec<CpuLook> {
    cpu_looks(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Nanoseconds of a clock tick as `/proc/stat` counts them.
pub fn clock_tick_ns() -> Ns {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// It was once read as text, which it never is, so that every kernel ticked 250 times a second.
    #[test]
    fn the_packed_configuration_of_the_kernel_is_read() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed
            .write_all(b"# CONFIG_HZ_250 is not set\nCONFIG_HZ_1000=y\nCONFIG_HZ=1000\n")
            .expect("packed");
        let packed = packed.finish().expect("packed");
        let text = unpacked(&packed[..]).expect("text");
        assert_eq!(hz(&text), Some(1000));
        assert_eq!(unpacked(&packed[..packed.len() / 2]), None);
        assert_eq!(hz("CONFIG_HZ_1000=y\n"), None);
    }
}
