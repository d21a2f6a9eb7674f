//! The ring that the kernel writes perf records into.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::bindings as b;

use crate::mapping::Mapping;

const PAGE: usize = 4096;
/// Type, flags and length of a record.
const HEADER: usize = 8;

/// Of one event, or of several that write into the same one.
pub(super) struct Ring {
    mapping: Mapping,
    data_bytes: usize,
}

impl Ring {
    /// Of `event`, `pages` (a power of two) of at least 4 KiB.
    pub(super) fn new(event: impl AsFd, pages: usize) -> io::Result<Ring> {
        let page = rustix::param::page_size().max(PAGE);
        Ok(Ring {
            mapping: Mapping::new(event, (pages + 1) * page)?,
            data_bytes: pages * page,
        })
    }

    /// Up to where it was written, and up to where it was read.
    fn positions(&self) -> (&AtomicU64, &AtomicU64) {
        let header = self.mapping.address().cast::<b::perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is a perf_event_mmap_page; both words are u64s
        // that the kernel and we access atomically.
        unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*header).data_head),
                AtomicU64::from_ptr(&raw mut (*header).data_tail),
            )
        }
    }

    /// The share of it that waits to be taken out.
    pub(super) fn fill(&self) -> f64 {
        let (head, tail) = self.positions();
        let tail = tail.load(Ordering::Relaxed);
        head.load(Ordering::Relaxed).wrapping_sub(tail) as f64 / self.data_bytes as f64
    }

    /// Passes on each record that has arrived, with its header.
    pub(super) fn drain(&self, mut each: impl FnMut(&[u8])) {
        let (head, tail_word) = self.positions();
        // Acquire: pairs with the kernel's barrier before it stores data_head.
        let head = head.load(Ordering::Acquire);
        let mut tail = tail_word.load(Ordering::Relaxed);
        let mut record = Vec::new();
        while head.wrapping_sub(tail) >= HEADER as u64 {
            self.copy(tail, HEADER, &mut record);
            let size = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if size < HEADER || size as u64 > head.wrapping_sub(tail) {
                // Not a record: begin again where the kernel goes on.
                tail = head;
                break;
            }
            self.copy(tail, size, &mut record);
            each(&record);
            tail += size as u64;
        }
        // Release: everything up to here was read.
        tail_word.store(tail, Ordering::Release);
    }

    fn copy(&self, at: u64, len: usize, into: &mut Vec<u8>) {
        into.clear();
        let begin = at as usize & (self.data_bytes - 1);
        let first = len.min(self.data_bytes - begin);
        let data_at = self.mapping.bytes() - self.data_bytes;
        for (offset, len) in [(begin, first), (0, len - first)] {
            // SAFETY: offset + len <= data_bytes (a record is shorter than 64 KiB, and the second
            // part ends before the first begins), so within the mapping; the kernel does not
            // write below data_head until data_tail has passed.
            into.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.mapping.address().add(data_at + offset), len)
            });
        }
    }
}
