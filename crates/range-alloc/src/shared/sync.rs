//! What the tests under loom replace.

use std::boxed::Box;
use std::vec::Vec;

use super::with_room;
use crate::error::OutOfMemory;

#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard, TryLockError,
    atomic::{AtomicU32, Ordering},
};

#[cfg(loom)]
pub(super) use {
    loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    std::sync::TryLockError,
};

/// Lets one thread in at a time; tells one that is in already, which would wait for itself.
#[derive(Default)]
pub(super) struct Alone {
    one: Mutex<()>,
    #[cfg(not(loom))]
    who: Mutex<Option<std::thread::ThreadId>>,
}

/// This thread is in, until this is dropped.
pub(super) struct IsIn<'a> {
    /// Dropped after `drop` has said that nobody is in.
    _one: MutexGuard<'a, ()>,
    #[cfg(not(loom))]
    alone: &'a Alone,
}

impl Alone {
    /// A panic of who is in leaves everything as it is.
    pub fn enter(&self) -> IsIn<'_> {
        #[cfg(not(loom))]
        assert!(
            *self.who() != Some(std::thread::current().id()),
            "purged within a purge of the same arena"
        );
        let one = self.one.lock().unwrap_or_else(|poison| poison.into_inner());
        #[cfg(not(loom))]
        self.who().replace(std::thread::current().id());
        IsIn {
            _one: one,
            #[cfg(not(loom))]
            alone: self,
        }
    }

    #[cfg(not(loom))]
    fn who(&self) -> MutexGuard<'_, Option<std::thread::ThreadId>> {
        self.who.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

#[cfg(not(loom))]
impl Drop for IsIn<'_> {
    fn drop(&mut self) {
        self.alone.who().take();
    }
}

/// The places of CPUs. Those that may be used when an arena is made have neighbouring places, whatever their numbers: else who may use every other CPU
/// would have all of them in half of the slots.
pub(super) struct Homes {
    /// By the CPU's number; the number itself for those that are not here.
    places: Box<[u32]>,
}

impl Homes {
    /// Of the CPUs that the calling thread may use.
    pub fn of_this_thread() -> Result<Homes, OutOfMemory> {
        Homes::of(&allowed()?)
    }

    /// Of the CPUs of a mask, the lowest bits first.
    fn of(allowed: &[u64]) -> Result<Homes, OutOfMemory> {
        let is_allowed = |cpu: usize| allowed[cpu / 64] >> (cpu % 64) & 1 != 0;
        let last = (0..allowed.len() * 64).rfind(|cpu| is_allowed(*cpu));
        // Their numbers do, where there are no others between.
        let cpus = match last {
            Some(last) if !(0..last).all(is_allowed) => last + 1,
            _ => 0,
        };
        let mut places = with_room(cpus)?;
        let mut next = 0;
        for cpu in 0..cpus {
            let place = if is_allowed(cpu) { next } else { cpu as u32 };
            places.push(place);
            next += u32::from(is_allowed(cpu));
        }
        Ok(Homes {
            places: places.into_boxed_slice(),
        })
    }

    /// On the heap.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// Of the calling thread, which may change at any time: only locality depends on it.
    pub fn here(&self) -> usize {
        let cpu = cpu();
        self.places.get(cpu).map_or(cpu, |place| *place as usize)
    }
}

/// The mask of the CPUs that the calling thread may use; none where that is not told.
fn allowed() -> Result<Vec<u64>, OutOfMemory> {
    #[cfg(all(target_os = "linux", not(loom)))]
    for words in (4..12).map(|shift| 1usize << shift) {
        let mut mask: Vec<u64> = with_room(words)?;
        mask.resize(words, 0);
        // SAFETY: the kernel writes at most as many bytes as there are, or says that it has more.
        let bytes = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                0,
                size_of_val(&*mask),
                mask.as_mut_ptr(),
            )
        };
        if bytes > 0 {
            return Ok(mask);
        }
    }
    Ok(Vec::new())
}

#[cfg(not(loom))]
fn cpu() -> usize {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: there is no condition; without the system call it answers -1.
        let cpu = unsafe { libc::sched_getcpu() };
        if let Ok(cpu) = usize::try_from(cpu) {
            return cpu;
        }
    }
    use std::sync::atomic::AtomicUsize;
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static HOME: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    HOME.with(|home| *home)
}

#[cfg(loom)]
fn cpu() -> usize {
    0
}

/// How many slots there are if nobody says so.
pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn places(mask: &[u64], cpus: &[usize]) -> Vec<usize> {
        let homes = Homes::of(mask).unwrap();
        let place = |cpu: &usize| homes.places.get(*cpu).map_or(*cpu, |place| *place as usize);
        cpus.iter().map(place).collect()
    }

    #[test]
    fn cpus_that_may_be_used_are_neighbours() {
        assert_eq!(places(&[0b1111], &[0, 1, 2, 3, 9]), [0, 1, 2, 3, 9]);
        // Both would have the first of two slots.
        assert_eq!(places(&[0b101], &[0, 2]), [0, 1]);
        assert_eq!(places(&[0xff00], &[8, 9, 15, 3]), [0, 1, 7, 3]);
        let high = [0, 1 << 63, 0, 1];
        assert_eq!(places(&high, &[127, 192, 500]), [0, 1, 500]);
        assert_eq!(places(&[], &[5]), [5]);
    }
}
