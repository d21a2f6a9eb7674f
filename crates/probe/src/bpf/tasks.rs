//! The table of threads that belong to the workload, shared with the BPF side
//! (`tasks.bpf.h`): what user space enters and clears in it.

use std::sync::atomic::{AtomicU32, Ordering};

use aya::maps::{HashMap, MapData, MapError};

use crate::mapping::Mapping;

/// Entries: `AMDAHL_TASKS` in record.h.
pub const ENTRIES: usize = 65536;

/// No thread's id: an entry that is being written.
pub(super) const RESERVED: u32 = u32::MAX;

/// `struct amdahl_task` as far as user space writes it.
#[repr(C)]
pub struct Task {
    tid: AtomicU32,
    tgid: AtomicU32,
    crowded: AtomicU32,
    internal: [u32; 13],
}

/// The same as words.
type Words = [u32; size_of::<Task>() / size_of::<u32>()];

/// Threads of the workload.
pub struct Tasks {
    table: Mapping,
    crowd: HashMap<MapData, u32, Words>,
}

impl Tasks {
    pub fn new(table: Mapping, crowd: HashMap<MapData, u32, Words>) -> Tasks {
        assert!(table.bytes() >= ENTRIES * size_of::<Task>());
        Tasks { table, crowd }
    }

    fn entry(&self, tid: u32) -> &Task {
        let index = tid as usize % ENTRIES;
        // SAFETY: in bounds (see `new`), page-aligned, and what is accessed is atomic.
        unsafe { &*self.table.address().cast::<Task>().add(index) }
    }

    /// Makes `tid` of process `pid` part of the workload. Nothing happens if it is already.
    pub fn enter(&mut self, tid: u32, pid: u32) -> Result<(), MapError> {
        let entry = self.entry(tid);
        // The id is written last: whoever finds it finds the rest.
        let free = entry
            .tid
            .compare_exchange(0, RESERVED, Ordering::AcqRel, Ordering::Acquire);
        match free {
            Ok(_) => {
                entry.tgid.store(pid, Ordering::Relaxed);
                entry.tid.store(tid, Ordering::Release);
                Ok(())
            }
            Err(other) if other == tid => Ok(()),
            Err(_) => {
                const BPF_NOEXIST: u64 = 1;
                let mut task = Words::default();
                (task[0], task[1]) = (tid, pid);
                match self.crowd.insert(tid, task, BPF_NOEXIST) {
                    Ok(()) => {
                        self.entry(tid).crowded.fetch_add(1, Ordering::AcqRel);
                        Ok(())
                    }
                    Err(_) if self.crowd.get(&tid, 0).is_ok() => Ok(()),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Threads of the workload that have not left it. O(entries).
    pub fn present(&self) -> Vec<u32> {
        let mut tids: Vec<u32> = self.crowd.keys().flatten().collect();
        for index in 0..ENTRIES as u32 {
            match self.entry(index).tid.load(Ordering::Acquire) {
                0 | RESERVED => {}
                tid => tids.push(tid),
            }
        }
        tids
    }

    /// Forgets all. For when no program is attached.
    pub fn clear(&mut self) {
        let left: Vec<u32> = self.crowd.keys().flatten().collect();
        for tid in left {
            // It may be gone already.
            let _ = self.crowd.remove(&tid);
        }
        for index in 0..ENTRIES as u32 {
            let entry = self.entry(index);
            if entry.tid.load(Ordering::Relaxed) != 0 || entry.crowded.load(Ordering::Relaxed) != 0
            {
                let entry = std::ptr::from_ref(entry).cast_mut();
                // SAFETY: no program is attached, so nobody else accesses the entry.
                unsafe { entry.write_bytes(0, 1) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn layout_is_that_of_record_h() {
        assert_eq!(size_of::<super::Task>(), 64);
    }
}
