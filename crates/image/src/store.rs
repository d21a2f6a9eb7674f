//! Where bytes come from and go to: the only door to files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at any place by many threads at once: a file, memory, an object.
pub trait Store: Send + Sync {
    /// How many bytes there are.
    ///
    /// # Errors
    /// Those of the store.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buf` with what is at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` where there are not so many bytes, and those of the store.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// All of the range is known to be zeros that need not be read.
    fn is_hole(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    /// There are none.
    ///
    /// # Errors
    /// As [`len`](Store::len).
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A store that can also be written.
pub trait Sink: Store {
    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// Those of the store.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
}

impl Store for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }

    /// Moves the file's position, which nothing else here uses.
    fn is_hole(&self, offset: u64, len: u64) -> bool {
        match rustix::fs::seek(self, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data >= offset.saturating_add(len),
            // Nothing but a hole up to the end, which may have come nearer.
            Err(error) => {
                error == rustix::io::Errno::NXIO
                    && self
                        .metadata()
                        .is_ok_and(|file| file.len() >= offset.saturating_add(len))
            }
        }
    }
}

impl Sink for File {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, buf, offset)
    }
}

impl Store for Vec<u8> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.as_slice().len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.get(offset..offset.checked_add(buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_the_end_is_no_hole() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(!file.is_hole(0, 12288));
        assert!(!file.is_hole(8192, 4096));
        file.set_len(0).unwrap();
        assert!(!file.is_hole(0, 4096));
        Sink::write_all_at(&file, &[1], 0).unwrap();
        assert!(!file.is_hole(0, 1));
    }
}
