//! perf events: sampling counters that trigger BPF programs, and the side band of mappings.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use sys::bindings as b;

use super::mapping::Mapping;

/// What makes a sampling event overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Cycles, user and kernel.
    Cycles,
    /// User instructions.
    UserInstructions,
    /// A software clock, where there is no hardware counter.
    Clock,
}

fn open(attr: &mut b::perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    attr.size = size_of::<b::perf_event_attr>() as u32;
    // SAFETY: attr is valid for the call, which only reads it.
    let fd = unsafe {
        sys::perf_event_open(attr, pid, cpu, -1, u64::from(b::PERF_FLAG_FD_CLOEXEC) as _)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a disabled sampling event on `cpu` for all threads, one overflow per `period`.
pub fn sampling(counter: Counter, period: u64, cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = b::perf_event_attr::default();
    match counter {
        Counter::Cycles => {
            attr.type_ = b::PERF_TYPE_HARDWARE;
            attr.config = b::PERF_COUNT_HW_CPU_CYCLES.into();
        }
        Counter::UserInstructions => {
            attr.type_ = b::PERF_TYPE_HARDWARE;
            attr.config = b::PERF_COUNT_HW_INSTRUCTIONS.into();
            attr.set_exclude_kernel(1);
        }
        Counter::Clock => {
            attr.type_ = b::PERF_TYPE_SOFTWARE;
            attr.config = b::PERF_COUNT_SW_CPU_CLOCK.into();
        }
    }
    attr.__bindgen_anon_1.sample_period = period;
    attr.set_disabled(1);
    attr.set_exclude_hv(1);
    open(&mut attr, -1, cpu as i32)
}

/// Lets `program` run at each overflow of `event`.
pub fn set_program(event: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open; the call takes the program's number by value.
    let rc = unsafe { sys::ioctls::SET_BPF(event.as_raw_fd(), program.as_raw_fd() as u32) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Starts or stops an event.
pub fn enable(event: &OwnedFd, on: bool) -> io::Result<()> {
    // SAFETY: the descriptor is an open perf event; no pointers are passed.
    let rc = unsafe {
        if on {
            sys::ioctls::ENABLE(event.as_raw_fd(), 0)
        } else {
            sys::ioctls::DISABLE(event.as_raw_fd(), 0)
        }
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A change of some process's address space, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideBand {
    /// A file was mapped executable.
    Map {
        /// Monotonic nanoseconds.
        ts: u64,
        /// Process.
        pid: u32,
        /// Address and length in bytes.
        start: u64,
        /// Length.
        len: u64,
        /// Offset in the file.
        file_offset: u64,
        /// File, or a name in brackets or slashes.
        path: String,
    },
    /// A process replaced its program.
    Exec {
        /// Monotonic nanoseconds.
        ts: u64,
        /// Process.
        pid: u32,
    },
    /// A process was made by another.
    Fork {
        /// Monotonic nanoseconds.
        ts: u64,
        /// Parent process.
        parent: u32,
        /// Child process.
        pid: u32,
    },
    /// Records were lost.
    Lost(u64),
}

/// The ring of one CPU's side band.
pub struct SideBandRing {
    event: OwnedFd,
    ring: Mapping,
    pages: usize,
}

const PAGE: usize = 4096;

impl SideBandRing {
    /// Opens the side band of `cpu` for all processes, `pages` (a power of two) of 4 KiB.
    pub fn open(cpu: u32, pages: usize) -> io::Result<SideBandRing> {
        let mut attr = b::perf_event_attr {
            type_: b::PERF_TYPE_SOFTWARE,
            config: b::PERF_COUNT_SW_DUMMY.into(),
            sample_type: (b::PERF_SAMPLE_TIME | b::PERF_SAMPLE_TID).into(),
            clockid: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        attr.set_disabled(1);
        attr.set_mmap(1);
        attr.set_mmap2(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        attr.set_task(1);
        attr.set_sample_id_all(1);
        attr.set_use_clockid(1);
        let event = open(&mut attr, -1, cpu as i32)?;
        let page = rustix::param::page_size().max(PAGE);
        let ring = Mapping::new(&event, (pages + 1) * page)?;
        Ok(SideBandRing {
            event,
            ring,
            pages: pages * page,
        })
    }

    /// Starts or stops it.
    pub fn enable(&self, on: bool) -> io::Result<()> {
        enable(&self.event, on)
    }

    /// Appends what has arrived.
    pub fn drain(&self, out: &mut Vec<SideBand>) {
        let header = self.ring.address().cast::<b::perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is a perf_event_mmap_page; both words are u64s
        // that the kernel and we access atomically.
        let (head, tail_word) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*header).data_head),
                AtomicU64::from_ptr(&raw mut (*header).data_tail),
            )
        };
        // Acquire: pairs with the kernel's barrier before it stores data_head.
        let head = head.load(Ordering::Acquire);
        let mut tail = tail_word.load(Ordering::Relaxed);
        let data_at = self.ring.bytes() - self.pages;
        let mut record = Vec::new();
        while tail + 8 <= head {
            let read = |at: u64, len: usize, into: &mut Vec<u8>| {
                into.clear();
                for i in 0..len {
                    let offset = (at as usize + i) & (self.pages - 1);
                    // SAFETY: offset < pages, so within the mapping; the kernel does not write
                    // below data_head until data_tail has passed.
                    into.push(unsafe { self.ring.address().add(data_at + offset).read() });
                }
            };
            read(tail, 8, &mut record);
            let size = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if size < 8 {
                break;
            }
            read(tail, size, &mut record);
            if let Some(event) = parse(&record) {
                out.push(event);
            }
            tail += size as u64;
        }
        // Release: everything up to here was read.
        tail_word.store(tail, Ordering::Release);
    }
}

/// One record with `sample_id_all` of TID | TIME (the last 16 bytes).
fn parse(record: &[u8]) -> Option<SideBand> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let ts = u64_at(record.len().checked_sub(8)?)?;
    let misc = u16::from_ne_bytes(record.get(4..6)?.try_into().ok()?);
    match u32_at(0)? {
        b::PERF_RECORD_MMAP2 => {
            // header 8, pid, tid, addr, len, pgoff, 24 of inode or build id, prot, flags, name
            let name = record.get(72..record.len().checked_sub(16)?)?;
            let name = name.split(|&byte| byte == 0).next().unwrap_or(name);
            Some(SideBand::Map {
                ts,
                pid: u32_at(8)?,
                start: u64_at(16)?,
                len: u64_at(24)?,
                file_offset: u64_at(32)?,
                path: String::from_utf8_lossy(name).into_owned(),
            })
        }
        b::PERF_RECORD_COMM if u32::from(misc) & b::PERF_RECORD_MISC_COMM_EXEC != 0 => {
            Some(SideBand::Exec {
                ts,
                pid: u32_at(8)?,
            })
        }
        b::PERF_RECORD_FORK => {
            let (pid, parent) = (u32_at(8)?, u32_at(12)?);
            (pid != parent).then_some(SideBand::Fork { ts, parent, pid })
        }
        b::PERF_RECORD_LOST => Some(SideBand::Lost(u64_at(16)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_records_are_ignored() {
        for len in 0..100 {
            let mut record = vec![0u8; len];
            parse(&record);
            if len >= 8 {
                record[0] = b::PERF_RECORD_MMAP2 as u8;
                parse(&record);
            }
        }
    }
}
