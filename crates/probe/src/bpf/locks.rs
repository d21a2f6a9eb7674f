//! The programs that record waits for locks, and their slots as events of `amdahl-locks`.

use std::io::{BufRead, BufReader};
use std::sync::Arc;

use amdahl_locks::{Event, Hold, Kind, LockId, Place, Wait, Waker};
use amdahl_speedup::event::{CallStack, Ns};
use amdahl_speedup::primitive::KernelPrimitive;
use aya::maps::{HashMap, Map, MapData};

use super::before::{WaitTable, primitive};
use super::decode::{Decoded, Decoder};
use super::drain::Part;
use super::elements::map_fd;
use super::error::{RecorderError, chain, system};
use super::goroutines::parked;
use super::programs::{Programs, Tracepoint, needed, object, wanted};
use super::recorder::Recorder;
use super::stacks::look;
use super::tasks::ENTRIES;
use super::wire::{OpenWait, Slot, Stack, flag, kind, sleep, stack_kind};

/// Waits for locks, one slot each.
pub static LOCKS: Programs = Programs {
    object: object!("locks"),
    tracepoints: &WAITS,
    samples: false,
    tell_last_switch: false,
};

/// The same, and each time that an address-space lock is held. That costs every page fault.
pub static LOCKS_AND_HOLDS: Programs = Programs {
    object: object!("locks"),
    tracepoints: &WAITS_AND_HOLDS,
    samples: false,
    tell_last_switch: false,
};

/// Waits of threads that share an entry of the table with another.
const CROWD: &str = "waits_crowd";

const WAITS: [Tracepoint; 9] = [
    needed("on_switch", "sched_switch"),
    needed("on_waking", "sched_waking"),
    needed("on_fork", "sched_process_fork"),
    needed("on_exit", "sched_process_exit"),
    wanted("on_rename", "task_rename"),
    wanted("on_contention_begin", "contention_begin"),
    wanted("on_contention_end", "contention_end"),
    wanted("on_hrtimer_expire_entry", "hrtimer_expire_entry"),
    wanted("on_hrtimer_expire_exit", "hrtimer_expire_exit"),
];

const WAITS_AND_HOLDS: [Tracepoint; 11] = {
    let [a, b, c, d, e, f, g, h, i] = WAITS;
    let acquired = wanted("on_mmap_acquired", "mmap_lock_acquire_returned");
    let released = wanted("on_mmap_released", "mmap_lock_released");
    [a, b, c, d, e, f, g, h, i, acquired, released]
};

/// Constants of [`LOCKS`] on this machine.
pub fn constants() -> Vec<(&'static str, u32)> {
    let [begin, end] = text().unwrap_or_default();
    vec![
        ("text_high", (begin >> 32) as u32),
        ("text_begin", begin as u32),
        ("text_end", end as u32),
    ]
}

/// Where kernel code is, by which the programs know return addresses.
fn text() -> Option<[u64; 2]> {
    // Below the top of the address space, with code of modules; hidden or not, it is always there.
    if cfg!(target_arch = "x86_64") {
        return Some([0xffff_ffff_8100_0000, 0xffff_ffff_ff00_0000]);
    }
    let symbols = BufReader::new(std::fs::File::open("/proc/kallsyms").ok()?);
    let mut bounds = [0; 2];
    for line in symbols.lines().map_while(Result::ok) {
        for (bound, name) in bounds.iter_mut().zip([" T _stext", " T _etext"]) {
            if let Some(address) = line.strip_suffix(name) {
                *bound = u64::from_str_radix(address, 16).ok()?;
            }
        }
        if bounds.iter().all(|&bound| bound != 0) {
            break;
        }
    }
    let [begin, end] = bounds;
    (begin != 0 && begin >> 32 == end >> 32).then_some(bounds)
}

/// Places of waiting, of waking and of getting a kernel lock are hashes of their own.
pub(super) fn place(of: u8, hash: u32) -> Place {
    Place(if hash == 0 {
        0
    } else {
        u64::from(of) << 32 | u64::from(hash)
    })
}

impl Decoder {
    /// Takes from a part what can be learned only while its processes live: mappings, also of those that
    /// were there before, and the files that they map. [`Decoder::locks`] may then come at any later time.
    pub fn look(&mut self, part: &mut Part) {
        for pid in look(&mut self.symbols, part) {
            self.attach(pid);
        }
        part.side_band = Vec::new();
    }

    /// Takes a part of a recording of [`LOCKS`]: names its stacks for `learn`, then gives its events
    /// in the order in which waits ended.
    pub fn locks(
        &mut self,
        mut part: Part,
        decoded: &mut Decoded,
        mut take: impl FnMut(LockFact<'_>),
    ) {
        let ids = self.name_stacks(&mut part, decoded);
        for (raw, id) in part.stacks.iter().zip(ids) {
            take(LockFact::Stack(
                place_of_stack(raw),
                &decoded.stacks[id.0 as usize],
            ));
        }
        let mut slots: Vec<&Slot> = part.slots.iter().flatten().collect();
        slots.sort_by_key(|slot| slot.ts);
        for event in slots.into_iter().filter_map(event) {
            take(LockFact::Event(event));
        }
    }
}

/// What a part of a recording tells of locks.
#[derive(Debug)]
pub enum LockFact<'a> {
    /// A stack was taken at a place.
    Stack(Place, &'a Arc<CallStack>),
    /// Something happened.
    Event(Event),
}

fn place_of_stack(raw: &Stack) -> Place {
    place(raw.kind, raw.place)
}

fn lock_kind(kind_of: u8, flags: u8) -> (Kind, u8) {
    match (kind_of, flags) {
        (kind::FUTEX_WAIT, _) => return (Kind::Futex, stack_kind::WAIT),
        (kind::SLEEP, sleep::SEMAPHORE) => {
            return (
                Kind::Kernel(KernelPrimitive::SysvSemaphore),
                stack_kind::WAIT,
            );
        }
        (kind::SLEEP, sleep::FILE) => {
            return (Kind::Kernel(KernelPrimitive::FileLock), stack_kind::WAIT);
        }
        (kind::SLEEP, sleep::NAP) => return (Kind::Nap, stack_kind::WAIT),
        (kind::SLEEP, other) => {
            return match primitive(other) {
                Some(primitive) => (Kind::Kernel(primitive), stack_kind::WAIT),
                None => (Kind::KernelSleep, stack_kind::LOCK),
            };
        }
        _ => {}
    }
    let is_mmap_lock = flags & flag::LOCK_IS_MMAP != 0;
    let primitive = KernelPrimitive::from_flags(u32::from(flags), is_mmap_lock);
    (Kind::Kernel(primitive), stack_kind::LOCK)
}

/// A futex of one process is one address; that of several (without `FUTEX_PRIVATE_FLAG`) is at
/// another address in each, and the process tells them apart all the same.
fn lock_id(kind: Kind, address: u64, pid: u32) -> LockId {
    let pid = match kind {
        Kind::Kernel(_) | Kind::KernelSleep => 0,
        Kind::Futex | Kind::Goroutine | Kind::User(_) | Kind::Nap => pid,
    };
    LockId { pid, address }
}

/// -1 is common (OpenMP's critical sections).
fn expected(low: u8) -> u32 {
    if low == u8::MAX {
        u32::MAX
    } else {
        u32::from(low)
    }
}

fn event(slot: &Slot) -> Option<Event> {
    let pid = slot.syscall as u32;
    let (kind, of) = match slot.kind {
        kind::FUTEX_WAIT | kind::KERNEL_WAIT | kind::SLEEP => lock_kind(slot.kind, slot.lock_kind),
        kind::HOLD => lock_kind(kind::KERNEL_WAIT, slot.lock_kind),
        kind::GO_WAIT => return parked(slot).map(Event::Parked),
        _ => return None,
    };
    let lock = lock_id(kind, slot.arg[0], pid);
    let begin = slot.ts.checked_sub(slot.arg[1])?;
    if slot.kind == kind::HOLD {
        return Some(Event::Hold(Hold {
            tid: slot.tid,
            lock,
            kind,
            begin,
            end: slot.ts,
            place: place(of, slot.place),
        }));
    }
    let since = slot.arg[2] & u64::from(u32::MAX);
    let waker = (slot.flags & flag::WAKER_WORKLOAD != 0 && slot.other != 0).then(|| Waker {
        tid: slot.other,
        ts: slot.ts.saturating_sub(since),
        place: place(stack_kind::WAKE, (slot.arg[2] >> 32) as u32),
    });
    Some(Event::Wait(Wait {
        tid: slot.tid,
        pid,
        lock,
        kind,
        begin,
        end: slot.ts,
        place: place(of, slot.place),
        waker,
        expected: expected(slot.unused),
        is_open: false,
        began_before: false,
        is_polled: false,
    }))
}

/// A wait that has not ended, `until` now.
pub(super) fn open_wait(wait: &OpenWait, until: Ns) -> Event {
    let (kind, of) = lock_kind(wait.kind, wait.lock_kind);
    let woken_at = (wait.woken_at >= wait.begin).then_some(wait.woken_at);
    Event::Wait(Wait {
        tid: wait.tid,
        pid: wait.pid,
        lock: lock_id(kind, wait.lock, wait.pid),
        kind,
        begin: wait.begin,
        end: woken_at.unwrap_or(until),
        place: place(of, wait.place),
        waker: None,
        expected: expected(wait.expected),
        is_open: woken_at.is_none(),
        began_before: false,
        is_polled: false,
    })
}

impl Recorder {
    /// The waits in progress of [`LOCKS`].
    pub fn wait_table(&self) -> Result<WaitTable, RecorderError> {
        let table = self.table("waits", ENTRIES * size_of::<OpenWait>())?;
        let crowd = map_fd(&self.bpf, CROWD)?.try_clone_to_owned();
        let crowd = MapData::from_fd(crowd.map_err(system("keep a map of BPF"))?);
        let crowd = crowd.and_then(|data| HashMap::try_from(Map::HashMap(data)));
        let crowd = crowd.map_err(|error| RecorderError::Load(chain(&error)))?;
        Ok(WaitTable::new(table, crowd, self.variable("sleepers")?))
    }

    /// Forgets waits of an earlier recording of [`LOCKS`]. Call it before each one.
    pub fn clear_waits(&self) -> Result<(), RecorderError> {
        self.wait_table()?.clear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_wait() {
        let slot = Slot {
            ts: 10_000,
            kind: kind::FUTEX_WAIT,
            flags: flag::WAKER_WORKLOAD,
            unused: 0xff,
            tid: 7,
            other: 8,
            syscall: 5,
            place: 0xabc,
            arg: [0x1000, 9_000, 0xdef << 32 | 300],
            ..Slot::default()
        };
        let Some(Event::Wait(wait)) = event(&slot) else {
            panic!("a wait");
        };
        assert_eq!(
            (wait.begin, wait.end, wait.expected),
            (1_000, 10_000, u32::MAX)
        );
        assert_eq!(
            wait.lock,
            LockId {
                pid: 5,
                address: 0x1000
            }
        );
        let waker = wait.waker.unwrap();
        assert_eq!((waker.tid, waker.ts), (8, 9_700));
        assert_ne!(waker.place, wait.place);
        // Longer than it can have lasted: not from our programs.
        let impossible = Slot {
            arg: [0, 20_000, 0],
            ..slot
        };
        assert!(event(&impossible).is_none());
    }

    #[test]
    fn kernel_code_is_where_the_kernel_says() {
        let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let stext = symbols.lines().find(|line| line.ends_with(" T _stext"));
        let stext = stext.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok());
        if let (Some(stext), Some([begin, end])) = (stext.filter(|&at| at != 0), text()) {
            assert!((begin..end).contains(&stext), "{stext:x}");
        }
    }
}
