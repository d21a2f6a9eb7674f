//! The index of pages, as groups come in.

use std::io::{self, Write};

use tempfile::SpooledTempFile;

use crate::layout::{Entry, GROUP_PAGES, Group, TABLE_BYTES};

/// Directory and tables.
pub(super) struct Index {
    /// 16 bytes for 2 MiB of memory.
    pub directory: Vec<u8>,
    pub tables: SpooledTempFile,
    pub tables_len: u64,
    pub zero_pages: u64,
    pub absent_pages: u64,
}

impl Index {
    pub fn new(spool: SpooledTempFile) -> Index {
        Index {
            directory: Vec::new(),
            tables: spool,
            tables_len: 0,
            zero_pages: 0,
            absent_pages: 0,
        }
    }

    /// Adds the entries of the next group.
    pub fn add(&mut self, entries: &[Entry]) -> io::Result<()> {
        let count = |kind: Entry| entries.iter().filter(|entry| **entry == kind).count();
        let (zero, absent) = (count(Entry::Zero), count(Entry::Absent));
        self.zero_pages += zero as u64;
        self.absent_pages += absent as u64;
        let group = match entries {
            _ if absent == entries.len() => Group::Absent,
            _ if zero == entries.len() => Group::Zero,
            [Entry::Stored(first), ..] if is_run(*first, entries) => Group::Run(*first as u32),
            _ => self.table(entries)?,
        };
        self.directory.extend_from_slice(&group.encode());
        Ok(())
    }

    fn table(&mut self, entries: &[Entry]) -> io::Result<Group> {
        debug_assert!(entries.len() as u64 <= GROUP_PAGES);
        let mut bytes = [0; TABLE_BYTES];
        for (word, entry) in bytes.chunks_exact_mut(4).zip(entries) {
            word.copy_from_slice(&entry.encode().to_le_bytes());
        }
        self.tables.write_all(&bytes)?;
        self.tables_len += 1;
        Ok(Group::Table(
            self.tables_len as u32 - 1,
            crc32c::crc32c(&bytes),
        ))
    }
}

fn is_run(first: u64, entries: &[Entry]) -> bool {
    let mut numbers = first..;
    entries
        .iter()
        .all(|entry| numbers.next().map(Entry::Stored) == Some(*entry))
}
