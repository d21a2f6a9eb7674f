//! Memory of this process as a source.

use std::sync::Arc;

use super::{Source, SourceError, there};
use crate::Mapping;

/// Memory of this process: content that is never changed any more.
#[derive(Debug)]
pub struct MemorySource {
    start: *const u8,
    len: usize,
    /// What keeps the memory.
    _kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Bytes(#[allow(dead_code)] Arc<[u8]>),
    Mapping(#[allow(dead_code)] Arc<Mapping>),
}

// SAFETY: the memory is only read, and kept as long as this lives.
unsafe impl Send for MemorySource {}
// SAFETY: as above.
unsafe impl Sync for MemorySource {}

impl MemorySource {
    /// Of bytes.
    pub fn of_bytes(bytes: Arc<[u8]>) -> MemorySource {
        MemorySource {
            start: bytes.as_ptr(),
            len: bytes.len(),
            _kept: Kept::Bytes(bytes),
        }
    }

    /// Of a mapping.
    ///
    /// # Safety
    /// Nobody writes to the mapping as long as a pager uses it.
    pub unsafe fn of_mapping(mapping: Arc<Mapping>) -> MemorySource {
        MemorySource {
            start: mapping.as_ptr(),
            len: mapping.len(),
            _kept: Kept::Mapping(mapping),
        }
    }
}

impl Source for MemorySource {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let len = self.len as u64;
        let into = there(len, offset, into)?;
        let from = self.in_memory(offset, into.len());
        let from = from.ok_or(SourceError::Short { end: len })?;
        // SAFETY: `in_memory` has checked that as many bytes are there; `into` is somebody's own.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn in_memory(&self, offset: u64, len: usize) -> Option<*const u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.start.wrapping_add(offset))
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}
