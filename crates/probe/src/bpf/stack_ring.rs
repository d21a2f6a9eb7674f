//! The ring that the programs write stacks into.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::ring_buf::RingBufItem;
use aya::maps::{MapData, RingBuf};

use crate::mapping::Mapping;

/// It, and how much waits in it.
pub struct StackRing {
    ring: RingBuf<MapData>,
    /// Up to where it was read, a page; up to where it was written, a page.
    positions: Mapping,
    bytes: usize,
}

impl StackRing {
    /// One of `bytes`.
    pub fn new(ring: RingBuf<MapData>, bytes: usize) -> io::Result<StackRing> {
        Ok(StackRing {
            positions: Mapping::read_only(ring.as_fd(), 2 * rustix::param::page_size())?,
            ring,
            bytes,
        })
    }

    /// The share of it that waits to be taken out.
    pub fn fill(&self) -> f64 {
        let position = |page: usize| {
            let at = page * rustix::param::page_size();
            // SAFETY: each page begins with a u64 that the kernel and we access atomically; it is only read.
            unsafe { AtomicU64::from_ptr(self.positions.address().add(at).cast()) }
                .load(Ordering::Relaxed)
        };
        // Read first, so that it is not the later one.
        let read = position(0);
        position(1).wrapping_sub(read) as f64 / self.bytes as f64
    }

    /// The next record.
    pub fn next(&mut self) -> Option<RingBufItem<'_>> {
        self.ring.next()
    }
}
