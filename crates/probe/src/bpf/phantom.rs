//! Sums of how long threads ran and waited, kept in the kernel (`phantom.bpf.c`) and read at will.

use std::io;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

use aya::maps::{HashMap, Map, MapData, MapError};
use aya::{Btf, Ebpf, EbpfLoader};

use super::elements::{convert, lookup_u64, map, map_fd};
use super::error::{RecorderError, chain, system};
use super::programs::{self, Programs, needed, object};
use crate::mapping::Mapping;

static PHANTOM: Programs = Programs {
    object: object!("phantom"),
    tracepoints: &[
        needed("on_switch", "sched_switch"),
        needed("on_wakeup", "sched_wakeup"),
        needed("on_new", "sched_wakeup_new"),
    ],
    samples: false,
    tell_last_switch: false,
};

/// What is summed up.
#[derive(Clone, Debug)]
pub struct PhantomSettings {
    /// Every thread is of the workload. Else those that were added, and whom they make.
    pub everyone: bool,
    /// Time of others is kept by process, which costs a look-up at each of their switches.
    pub by_process: bool,
    /// Threads of the workload at most.
    pub threads: u32,
}

impl Default for PhantomSettings {
    fn default() -> PhantomSettings {
        PhantomSettings {
            everyone: false,
            by_process: false,
            threads: 16_384,
        }
    }
}

/// `struct amdahl_phantom_cpu`.
#[repr(C)]
struct Line {
    seq: AtomicU64,
    since: AtomicU64,
    tid: AtomicU32,
    tgid: AtomicU32,
    ours: AtomicU32,
    watched: AtomicU32,
    run: AtomicU64,
    idle: AtomicU64,
    waits: AtomicI64,
    waiting: AtomicI64,
}

/// The sums of a CPU, all of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSums {
    /// Its last switch; 0 if none was seen.
    pub since: u64,
    /// Who has run since then; 0 is nobody.
    pub tid: u32,
    /// The process of that thread.
    pub pid: u32,
    /// That thread was of the workload when it came.
    pub is_ours: bool,
    /// Nanoseconds that threads of the workload ran here, up to `since`.
    pub run_ns: u64,
    /// Nanoseconds that nobody ran here, up to `since`.
    pub idle_ns: u64,
    /// With `waiting`: the integral up to `t` of how many threads of the workload could run and did not is the sum over all
    /// CPUs of `waits_ns + t * waiting`, in wrapping arithmetic.
    pub waits_ns: i64,
    /// Threads that began to wait here, less those that ended to.
    pub waiting: i64,
}

/// A process that is not of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taker {
    /// Process.
    pub pid: u32,
    /// Its name when it was first seen.
    pub name: String,
    /// Nanoseconds on watched CPUs, without what has not ended.
    pub ns: u64,
}

/// Loaded and attached programs. Dropping it removes them.
pub struct PhantomSums {
    _bpf: Ebpf,
    cpus: Mapping,
    cpu_slots: u32,
    threads: HashMap<MapData, u32, u32>,
    takers: HashMap<MapData, u32, [u8; 24]>,
}

impl PhantomSums {
    /// Begins to sum up. Nobody is of the workload yet, unless everyone is.
    ///
    /// # Errors
    /// [`RecorderError`].
    pub fn new(settings: &PhantomSettings) -> Result<PhantomSums, RecorderError> {
        super::namespace::thread_ids_are_the_kernels()?;
        let btf = Btf::from_sys_fs().map_err(|error| RecorderError::NoBtf(error.to_string()))?;
        // CPU numbers can have holes: the map is sized by the largest number possible.
        let cpu_slots = super::recorder::cpus_possible();
        let everyone = u32::from(settings.everyone);
        let by_process = u32::from(settings.by_process);
        let mut bpf = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("everyone", &everyone, true)
            .override_global("by_process", &by_process, true)
            .map_max_entries("cpus", cpu_slots)
            .map_max_entries("threads", settings.threads.max(1))
            .load(PHANTOM.object)
            .map_err(|error| RecorderError::Load(chain(&error)))?;
        let mut take = |name: &'static str| -> Map {
            bpf.take_map(name)
                .unwrap_or_else(|| panic!("the object has the map {name}"))
        };
        let threads = convert(take("threads"))?;
        let takers = convert(take("takers"))?;
        let cpus = map(&bpf, "cpus", cpu_slots as usize * size_of::<Line>())?;
        let loaded = programs::load_all(&PHANTOM, &mut bpf, &btf)?;
        // The links live as long as the programs do, in `bpf`.
        programs::attach(&mut bpf, &loaded, |_| true)?;
        Ok(PhantomSums {
            _bpf: bpf,
            cpus,
            cpu_slots,
            threads,
            takers,
        })
    }

    fn line(&self, cpu: u32) -> Option<&Line> {
        if cpu >= self.cpu_slots {
            return None;
        }
        // SAFETY: in bounds of the mapping, page-aligned at its beginning, and consists of atomics.
        Some(unsafe { &*self.cpus.address().cast::<Line>().add(cpu as usize) })
    }

    /// Keeps the time of others on `cpu` by process, or no more.
    pub fn watch(&self, cpu: u32, is_watched: bool) {
        if let Some(line) = self.line(cpu) {
            line.watched.store(is_watched.into(), Ordering::Relaxed);
        }
    }

    /// Makes a thread part of the workload; those it makes from now on are, too. Nothing happens if it is already. `false` if there is no
    /// room for it.
    ///
    /// # Errors
    /// When the system call fails otherwise.
    pub fn add(&mut self, tid: u32) -> Result<bool, RecorderError> {
        const BPF_NOEXIST: u64 = 1;
        const OFF: u32 = 0;
        match self.threads.insert(tid, OFF, BPF_NOEXIST) {
            Ok(()) => Ok(true),
            Err(MapError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(libc::EEXIST) =>
            {
                Ok(true)
            }
            Err(MapError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(libc::E2BIG) =>
            {
                Ok(false)
            }
            Err(error) => Err(system("add a thread")(io::Error::other(chain(&error)))),
        }
    }

    /// Whether a thread is part of the workload.
    pub fn has(&self, tid: u32) -> bool {
        self.threads.get(&tid, 0).is_ok()
    }

    /// The sums of `cpu`, all of one moment; `None` for a CPU that cannot be, or one whose line changes all the time (which it does not).
    pub fn cpu(&self, cpu: u32) -> Option<CpuSums> {
        let line = self.line(cpu)?;
        for _ in 0..1000 {
            // Acquire: pairs with `end_change`; what is read below is at least as new.
            let before = line.seq.load(Ordering::Acquire);
            let sums = CpuSums {
                since: line.since.load(Ordering::Relaxed),
                tid: line.tid.load(Ordering::Relaxed),
                pid: line.tgid.load(Ordering::Relaxed),
                is_ours: line.ours.load(Ordering::Relaxed) != 0,
                run_ns: line.run.load(Ordering::Relaxed),
                idle_ns: line.idle.load(Ordering::Relaxed),
                waits_ns: line.waits.load(Ordering::Relaxed),
                waiting: line.waiting.load(Ordering::Relaxed),
            };
            // Acquire: pairs with `begin_change`. If anything above is of a later change, its odd number is seen.
            fence(Ordering::Acquire);
            if before % 2 == 0 && line.seq.load(Ordering::Relaxed) == before {
                return Some(sums);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Who else was on the watched CPUs, in no order.
    pub fn takers(&self) -> Vec<Taker> {
        let entries = self.takers.iter().flatten();
        entries.map(|(pid, value)| taker(pid, &value)).collect()
    }

    /// Threads made by others of the workload that found no room and are missing.
    pub fn lost(&self) -> u64 {
        map_fd(&self._bpf, "lost")
            .and_then(|map| lookup_u64(map, 0).map_err(system("read a BPF map")))
            .unwrap_or(0)
    }
}

/// `struct amdahl_phantom_taker`.
fn taker(pid: u32, value: &[u8; 24]) -> Taker {
    let (ns, name) = value.split_at(8);
    let end = name.iter().position(|&byte| byte == 0);
    Taker {
        pid,
        name: String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned(),
        ns: u64::from_ne_bytes(ns.try_into().expect("eight bytes")),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layout_is_that_of_phantom_h() {
        assert_eq!(size_of::<Line>(), 64);
        assert_eq!(offset_of!(Line, watched), 28);
        assert_eq!(offset_of!(Line, run), 32);
        assert_eq!(offset_of!(Line, waiting), 56);
    }

    #[test]
    fn names_end_at_their_zero_or_at_the_end() {
        let mut value = [b'x'; 24];
        value[..8].copy_from_slice(&7u64.to_ne_bytes());
        assert_eq!(taker(1, &value).name, "x".repeat(16));
        value[10] = 0;
        let expected = Taker {
            pid: 1,
            name: "xx".to_owned(),
            ns: 7,
        };
        assert_eq!(taker(1, &value), expected);
    }
}
